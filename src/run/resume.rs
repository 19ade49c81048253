//! Taking up a run again: what it was, and which of its cases need not be run any more.
//!
//! Owns `run.json`, which is written before the first case. Refuses to know how cases are run.
//! Invariant: a verdict is kept only for the very package that it was given on.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::agent;
use super::package::Package;
use super::results::{AgentRef, CaseResult, DatasetRef, Status, to_text};
use super::{Agent, Error, PackageRef, Request};
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
    attempts: u32,
    pass_at: f64,
    /// What chose the cases; not known of runs of earlier versions.
    #[serde(default)]
    selection: Option<Vec<String>>,
    /// The digest of the command of a `cli` agent, which may hold what is not to be written down;
    /// not known of runs of earlier versions.
    #[serde(default)]
    command: Option<String>,
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
            attempts: request.attempts,
            pass_at: request.pass_at,
            selection: Some(request.selection.to_vec()),
            command: command(request),
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
        if known && there.agent != self.agent {
            reasons.push(format!(
                "its agent was {}, not {}",
                name(&there.agent),
                name(&self.agent)
            ));
        } else if known && there.command.is_some() && there.command != self.command {
            reasons.push("its agent was called by another command".to_owned());
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

/// The command by which the agent is called.
fn command(request: &Request<'_>) -> Option<String> {
    let runner = request.execution.map(|execution| &execution.runner);
    let runner = runner.filter(|it| request.agent == Agent::Runner && it.kind == "cli")?;
    let words = agent::words(runner.command.as_ref()?).ok()?;
    Some(Digest::of(words.join("\0").as_bytes()).to_string())
}

/// In the directory of a run of which a part had no sandbox.
const OPEN: &str = ".not-isolated";

/// Takes note that this part of the run in `dir` has no sandbox.
pub(super) fn note_open(dir: &Path) -> Result<(), Error> {
    let path = dir.join(OPEN);
    File::create(&path)
        .map(drop)
        .map_err(|error| failed(&path, error))
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
