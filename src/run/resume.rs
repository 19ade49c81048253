//! Taking up a run again: what it was, and which of its cases need not be run any more.
//!
//! Owns `run.json`, which is written before the first case. Refuses to know how cases are run.
//! Invariant: a verdict is kept only for the very package that it was given on.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agent::{self, PLUGIN_ROOTS};
use super::package::Package;
use super::results::{AgentRef, CaseResult, DatasetRef, Status, to_text};
use super::{Agent, Error, PackageRef, Request, SandboxMode};
use crate::dataset::{Runner, Step};
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::fs::{FsError, Root, remove_tree, write_atomic};
use crate::path::TreePath;

/// What a run is, in its directory.
pub(super) const NAME: &str = "run.json";
/// The largest `run.json` and `result.json` that are read.
const MAX: u64 = 64 << 20;

/// What a run is: the part of its results that is known before.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) dataset: DatasetRef,
    pub(super) agent: AgentRef,
    /// Who runs the cases; not known of runs of earlier versions.
    #[serde(default)]
    engine: Option<String>,
    attempts: u32,
    pass_at: f64,
    /// What chose the cases; not known of runs of earlier versions.
    #[serde(default)]
    selection: Option<Vec<String>>,
    /// The digest of each setting that makes a verdict another one and is in no package, by its
    /// name: a setting may hold what is not to be written down. Not known of runs of earlier
    /// versions.
    #[serde(default)]
    settings: Option<BTreeMap<String, String>>,
    /// Whether no sandbox is asked for; [`OPEN`] says what was.
    #[serde(skip)]
    open: bool,
}

impl Start {
    pub(super) fn of(request: &Request<'_>, agent: &str) -> Self {
        Self {
            dataset: DatasetRef {
                name: request.dataset_name.to_owned(),
                digest: request.dataset_digest.map(|digest| digest.to_string()),
                packages_digest: None,
            },
            agent: AgentRef {
                name: agent.to_owned(),
                model: super::model(request),
                files: Vec::new(),
            },
            engine: Some(super::engine_of(request).to_owned()),
            attempts: request.attempts,
            pass_at: request.pass_at,
            selection: Some(request.selection.to_vec()),
            settings: Some(settings(request)),
            open: request.sandbox == SandboxMode::None,
        }
    }

    /// Writes it to the directory of a new run. The run is held while the file is open.
    pub(super) fn begin(&self, dir: &Path) -> Result<File, Error> {
        let path = dir.join(NAME);
        write_atomic(&path, &to_text(self), 0o644).map_err(|error| failed(&path, error.source))?;
        hold(dir, &path)
    }

    /// Checks that the run in `dir` is this one, and holds it.
    pub(super) fn take_up(&self, dir: &Path) -> Result<File, Error> {
        self.is_that_in(dir, true)?;
        hold(dir, &dir.join(NAME))
    }

    /// Whether the run in `dir` is this one; told is all that contradicts it. Where the agent that is
    /// asked for is none, it is not `known`.
    pub(super) fn is_that_in(&self, dir: &Path, known: bool) -> Result<(), Error> {
        let refused = |reason: String| {
            let path = dir.to_owned();
            Err(Error::Resume { path, reason })
        };
        let Some(there) = read::<Self>(dir, NAME) else {
            return refused("its run.json can not be read".to_owned());
        };
        let name = |agent: &AgentRef| match &agent.model {
            Some(model) => format!("{} with {model}", agent.name),
            None => agent.name.clone(),
        };
        let mut reasons = Vec::new();
        if there.dataset.name != self.dataset.name {
            reasons.push(format!(
                "its dataset was {}, not {}",
                there.dataset.name, self.dataset.name
            ));
        }
        let ours = self.engine.as_deref();
        if let Some(engine) = there.engine.as_deref().filter(|name| Some(*name) != ours) {
            reasons.push(format!("it was run with --engine {engine}"));
        } else if known && there.agent != self.agent {
            reasons.push(format!(
                "its agent was {}, not {}",
                name(&there.agent),
                name(&self.agent)
            ));
        } else if known {
            let others = others(there.settings.as_ref(), self.settings.as_ref());
            reasons.extend(others.iter().map(|name| format!("it had another {name}")));
        }
        // The other way round is told in the results.
        if self.open && !was_open(dir) {
            reasons.push("it was run in a sandbox".to_owned());
        }
        if there.attempts != self.attempts {
            reasons.push(format!("it had --attempts {}", there.attempts));
        }
        if there.pass_at.total_cmp(&self.pass_at).is_ne() {
            reasons.push(format!("it had --pass-at {}", there.pass_at));
        }
        // The results of the others would be lost.
        if there.selection.is_some() && there.selection != self.selection {
            let told = there.selection.unwrap_or_default().join(" ");
            let told = if told.is_empty() { "all cases" } else { &told };
            reasons.push(format!("it was of {told}"));
        }
        if reasons.is_empty() {
            Ok(())
        } else {
            refused(reasons.join(", and "))
        }
    }
}

/// The settings that differ, where both are known.
fn others<'a>(
    there: Option<&'a BTreeMap<String, String>>,
    here: Option<&'a BTreeMap<String, String>>,
) -> Vec<&'a str> {
    let (Some(there), Some(here)) = (there, here) else {
        return Vec::new();
    };
    let mut names: Vec<&str> = there
        .keys()
        .chain(here.keys())
        .filter(|name| there.get(*name) != here.get(*name))
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What the agent is called with and what hooks do around it: nothing of it is in the packages, whose
/// digests say whether anything else changed. References to the caller's environment count by their
/// names. Thresholds are held against all cases anew.
fn settings(request: &Request<'_>) -> BTreeMap<String, String> {
    let mut all: Vec<(&str, Value)> = Vec::new();
    if let Some(limit) = request.agent_timeout {
        all.push(("--agent-timeout", json!(limit.as_secs_f64())));
    }
    if let Some(dataset) = request.dataset {
        let hooks = dataset.hooks.iter().map(|hook| {
            let (phase, fail, limit) = (hook.phase.name(), hook.fail, hook.timeout_sec);
            json!([phase, hook.command, hook.condition, limit, fail])
        });
        all.push(("hooks", hooks.collect()));
    }
    if let (Agent::Runner, Some(execution)) = (request.agent, request.execution) {
        let runner = &execution.runner;
        all.extend(of_runner(runner));
        all.push(("execution.env", json!(execution.env)));
        all.push(("execution.max_budget_usd", json!(execution.max_budget_usd)));
        all.push(("models.subagent", json!(execution.subagent_model)));
        if let Some(dataset) = request.dataset {
            let roots = &dataset.sources.roots;
            let plugins = (PLUGIN_ROOTS..roots.len()).filter_map(|at| roots.get(at));
            let plugins = plugins.map(|root| {
                let path = root.path();
                // A project may be moved between two parts of a run.
                let own = path.strip_prefix(request.project).unwrap_or(path);
                Value::from(own.to_string_lossy())
            });
            all.push(("runner.plugin_dirs", plugins.collect()));
            // All cases have the same steps; what is wrong with one is told when it is built.
            let first = dataset.cases.first();
            let case = first.and_then(|id| dataset.read_case(id, &mut Diagnostics::default()));
            let steps = case.iter().flat_map(|case| &case.steps);
            let steps = steps.map(|step| of_step(step, request.step_runners));
            all.push(("execution.steps", steps.collect()));
        }
    }
    all.retain(|(_, value)| !matches!(value, Value::Null));
    all.into_iter()
        .map(|(name, value)| {
            let digest = Digest::of(value.to_string().as_bytes());
            (name.to_owned(), digest.to_string())
        })
        .collect()
}

fn of_runner(runner: &Runner) -> [(&'static str, Value); 5] {
    // However it is written.
    let words = runner.command.as_ref().filter(|_| runner.kind == "cli");
    let words = words.and_then(|command| agent::words(command).ok());
    [
        ("runner.command", json!(words)),
        ("runner.effort", json!(runner.effort)),
        ("runner.env", json!(runner.env)),
        ("runner.permission_mode", json!(runner.permission_mode)),
        ("runner.system_prompt", json!(runner.system_prompt)),
    ]
}

fn of_step(step: &Step, runners: bool) -> Value {
    let runner = step.runner.as_ref().filter(|_| runners);
    let runner = runner.map(|runner| (&runner.kind, of_runner(runner)));
    let (budget, stops) = (step.max_budget_usd, step.stop_on_failure);
    json!([step.id, step.env, budget, stops, runner])
}

/// In the directory of a run of which a part had no sandbox.
const OPEN: &str = ".not-isolated";

/// Takes note that this part of the run in `dir` has no sandbox.
pub(super) fn note_open(dir: &Path) -> Result<(), Error> {
    let path = dir.join(OPEN);
    // Whatever an agent put there: a link is replaced, not followed.
    write_atomic(&path, b"", 0o644).map_err(|error| failed(&path, error.source))
}

/// Whether a part of the run in `dir` had no sandbox.
pub(super) fn was_open(dir: &Path) -> bool {
    dir.join(OPEN).symlink_metadata().is_ok()
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io {
        doing: "writing",
        path: path.to_owned(),
        source,
    }
}

/// Nobody else may work on the run meanwhile.
fn hold(dir: &Path, path: &Path) -> Result<File, Error> {
    let file = File::open(path).map_err(|error| failed(path, error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Resume {
            path: dir.to_owned(),
            reason: "another casepack is at work on it".to_owned(),
        }),
        Err(error) => Err(failed(path, error.into())),
    }
}

/// The verdict that the earlier run gave in `dir`, when it is one on this very package.
pub(super) fn kept(dir: &Path, package: &PackageRef) -> Option<CaseResult> {
    let mut result: CaseResult = read(dir, "result.json")?;
    let judged = matches!(result.status, Status::Passed | Status::Failed);
    if !judged || result.id != package.id {
        return None;
    }
    let digest = Package::read(&package.dir).ok()?.digest?;
    if result.package_digest.as_deref() != Some(digest.to_string().as_str()) {
        return None;
    }
    result.resumed = true;
    Some(result)
}

/// Takes away what an earlier try left in `dir`.
pub(super) fn clear(dir: &Path) -> Result<(), FsError> {
    remove_tree(dir)
}

/// The document `name` in `dir`, when it is there and whole.
pub(super) fn read<T: for<'d> Deserialize<'d>>(dir: &Path, name: &str) -> Option<T> {
    let root = Root::open(dir).ok()?;
    let (bytes, _) = root.read(&TreePath::new(name).ok()?, MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}
