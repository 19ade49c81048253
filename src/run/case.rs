//! The life of one case: workspace, agent, verifier, verdict.
//!
//! Owns the order of things and what each party can see. Refuses to know how a child is watched
//! (`process`), mounted (`sandbox`) and judged (`verdict`).
//! Invariant: `/tests` is on the disk of this run only while no process of an agent lives. With a
//! sandbox that is certain; without one it is as certain as `process` can make it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::agent::Project;
use super::batch::{self, Batch};
use super::cgroup::{Group, Groups};
use super::env::Secrets;
use super::hooks::{Around, Hooks, Told};
use super::limits::Limits;
use super::package::{Artifact, ORDINARY, Package, SETUP, Step, Strategy, Unusable};
use super::process::{self, Capture, Cut, Ended, Job};
use super::results::{
    AgentRun, CaseResult, ErrorKind, HookRun, Outputs, Status, StepResult, mean_over, to_text,
};
use super::sandbox::{self, Mount, Sandbox};
use super::{Agent, PackageRef, Request, changes, collect, env, known, outside, overlay, verdict};
use crate::dataset::{self, Execution, Instruction, Phase};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::fs::{FsError, Root, drop_set_ids, read_regular, remove_tree, unlock_dir, write_atomic};
use crate::path::{CaseId, TreePath};
use crate::template;
use crate::tree::{Data, Tree, materialise};
use crate::yaml::{Node, Yaml};

/// Of each of an agent's and a verifier's output streams so much is kept.
const OUTPUT_MAX: u64 = 16 << 20;
/// How long a step's `setup.sh` may take.
const SETUP_TIMEOUT: Duration = Duration::from_mins(10);
/// Names in a run's directory that are not those of cases.
const TAKEN: [&str; 8] = [
    batch::NAME,
    "hooks",
    "run.json",
    "results.json",
    "junit.xml",
    "summary.md",
    "report.html",
    ".results.json.tmp",
];

/// What the cases of a run share.
pub(super) struct Runner<'a> {
    pub(super) request: &'a Request<'a>,
    /// The run's directory, canonical.
    pub(super) dir: PathBuf,
    /// When the run began.
    pub(super) start: Instant,
    pub(super) sandbox: Option<Sandbox>,
    /// What of the caller's is not to be shown around.
    pub(super) secrets: Secrets,
    /// Where a control group can be made for each party.
    pub(super) groups: Option<Groups>,
    pub(super) project: Project,
    /// Hooks of the dataset.
    pub(super) hooks: Hooks<'a>,
    /// What the hooks before all cases told.
    pub(super) told: Told,
    /// What one agent did for all cases, by attempt; what it could not, with the reason. Empty where
    /// each case has an agent of its own.
    pub(super) batches: Vec<Result<Batch, Failure>>,
    pub(super) diags: Mutex<Diagnostics>,
    /// What of the project agents were shown.
    pub(super) shown: Mutex<BTreeSet<PathBuf>>,
}

/// Why a case has no verdict.
#[derive(Clone)]
pub(super) enum Failure {
    NoVerdict(ErrorKind, String),
    Skipped(String),
}

impl From<Unusable> for Failure {
    fn from(why: Unusable) -> Self {
        match why {
            Unusable::Broken(message) => Self::NoVerdict(ErrorKind::Package, message),
            Unusable::Elsewhere(message) => Self::Skipped(format!(
                "This package can not be run here: {message} Hand it to Harbor with --engine \
                     harbor."
            )),
        }
    }
}

impl Failure {
    pub(super) fn io(doing: &str, error: &impl std::fmt::Display) -> Self {
        Self::NoVerdict(ErrorKind::Io, format!("{doing} failed: {error}."))
    }

    pub(super) fn stopped() -> Self {
        Self::NoVerdict(
            ErrorKind::Interrupted,
            "The run was stopped before there was a verdict.".to_owned(),
        )
    }
}

/// One case in the works.
pub(super) struct Work<'r> {
    pub(super) runner: &'r Runner<'r>,
    pub(super) id: CaseId,
    pub(super) package: Package,
    /// The case as the dataset has it, for its agent and its hooks.
    pub(super) case: Option<dataset::Case>,
    /// The case's directory in the run.
    pub(super) dir: PathBuf,
    pub(super) workspace: Root,
    /// Declared outputs, and whether each is a directory.
    pub(super) outputs: Vec<(TreePath, bool)>,
    /// From 1.
    pub(super) attempt: u32,
}

/// What becomes known while a case is worked on.
#[derive(Default)]
pub(super) struct Life {
    /// What hooks told.
    told: Told,
    /// Hooks that ran.
    hooks: Vec<HookRun>,
    /// Marks processes that hooks around the whole case started.
    scope: String,
    /// `steps` of templates: by id.
    steps: Vec<(String, Yaml)>,
}

impl Life {
    /// A life that begins with what hooks told before.
    pub(super) fn of(told: Told) -> Self {
        Self {
            told,
            scope: process::mark(),
            ..Self::default()
        }
    }
}

/// What one party sees and gets.
pub(super) struct Party {
    pub(super) command: Vec<OsString>,
    pub(super) mounts: Vec<Mount>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) network: bool,
    /// As whom, in the sandbox.
    pub(super) user: Option<u32>,
    pub(super) timeout: Option<Duration>,
    pub(super) input: Option<std::fs::File>,
    /// Files that are copied into the sandbox, in memory.
    pub(super) files: Vec<(std::fs::File, String)>,
    pub(super) output: (Capture, Option<Capture>),
    /// What its processes are held to.
    pub(super) limits: Limits,
}

impl Runner<'_> {
    /// Where the files of a case (or of a batch) are, or those of one attempt of several at it.
    pub(super) fn place(&self, name: &str, attempt: u32) -> PathBuf {
        let dir = self.dir.join(name);
        if self.request.attempts > 1 {
            dir.join(format!("attempt-{attempt}"))
        } else {
            dir
        }
    }

    /// What the attempt `attempt` of one agent at all cases came to.
    pub(super) fn batch_of(&self, attempt: u32) -> Option<&Result<Batch, Failure>> {
        let index = usize::try_from(attempt).ok()?.checked_sub(1)?;
        self.batches.get(index)
    }

    /// Adds a finding.
    pub(super) fn tell(&self, finding: Diagnostic) {
        let mut diags = self.diags.lock().unwrap_or_else(PoisonError::into_inner);
        diags.push(finding);
    }

    /// Runs one case in `dir`; whatever goes wrong is in its result.
    pub(super) fn case(&self, package: &PackageRef, attempt: u32, dir: &Path) -> CaseResult {
        let start = Instant::now();
        let mut result = CaseResult::new(&package.id);
        result.started = Some(start.duration_since(self.start));
        if self.request.attempts > 1 {
            let place = dir.strip_prefix(&self.dir).unwrap_or(dir);
            result.dir = Some(place.to_string_lossy().into_owned());
        }
        let mut messages = Vec::new();
        let failure = match self.prepare(package, attempt, dir, &mut result) {
            Err(failure) => Some(failure),
            Ok(work) => {
                let failure = work.live(&mut result, &mut messages).err();
                if failure.is_none()
                    && result
                        .reward
                        .is_some_and(|reward| reward < self.request.pass_at)
                {
                    messages.extend(outside::told(&work.package));
                }
                result.outputs = work.collect(&mut messages);
                work.leave_changes(&mut messages);
                work.clean_up(&mut messages);
                failure
            }
        };
        match failure {
            None => {
                let passed = result
                    .reward
                    .is_some_and(|reward| reward >= self.request.pass_at - 1e-9);
                result.status = if passed {
                    Status::Passed
                } else {
                    Status::Failed
                };
                messages.extend(verdict::complaints(&result.judges));
            }
            Some(Failure::Skipped(message)) => {
                result.status = Status::Skipped;
                messages.push(message);
            }
            Some(Failure::NoVerdict(kind, message)) => {
                result.status = if kind == ErrorKind::Interrupted {
                    Status::Skipped
                } else {
                    Status::Error
                };
                result.error = Some(kind);
                messages.push(message);
            }
        }
        if !self.request.keep.keeps(result.status)
            && let Err(error) = remove_tree(&dir.join("workspace"))
        {
            messages.push(format!(
                "The workspace could not be removed: {}.",
                error.source
            ));
        }
        if let Err(error) = self.disarm(dir) {
            messages.push(format!(
                "A file of the case may run as you, whoever starts it: {}.",
                error.source
            ));
        }
        result.duration = start.elapsed();
        if !messages.is_empty() {
            result.message = Some(messages.join(" "));
        }
        result.without(&self.secrets);
        if dir.is_dir() {
            write_result(dir, &mut result);
        }
        result
    }

    /// Lets no program that an agent or a verifier left in `dir` run as the caller when somebody else
    /// starts it. In a sandbox all names of a file lie here; without one an agent can have given a
    /// program of the system another name.
    pub(super) fn disarm(&self, dir: &Path) -> Result<(), FsError> {
        drop_set_ids(dir, self.sandbox.is_some())
    }

    fn prepare<'r>(
        &'r self,
        reference: &PackageRef,
        attempt: u32,
        dir: &Path,
        result: &mut CaseResult,
    ) -> Result<Work<'r>, Failure> {
        let id = &reference.id;
        let package = Package::read(&reference.dir)?;
        result.package_digest = package.digest.map(|digest| digest.to_string());
        self.tell_unheld(&package, id);
        if let Some(sandbox) = &self.sandbox {
            sandbox.check_workdir(&package.workdir)?;
            if package.needs_python && sandbox.program("python3").is_none() {
                return Err(Failure::NoVerdict(
                    ErrorKind::VerifierStart,
                    "The judges need python3, and the sandbox shows only that of the system, which \
                     is missing (a python3 in a home directory is not seen). Install it so that \
                     it lies in /usr/bin or /usr/local/bin, or run with --sandbox none."
                        .to_owned(),
                ));
            }
        }
        if TAKEN.contains(&id.as_str()) {
            let message =
                format!("A case can not be called {id}: the run itself has a file there.");
            return Err(Failure::NoVerdict(ErrorKind::Package, message));
        }
        let case = match self.request.dataset {
            Some(dataset) if self.request.agent == Agent::Runner || !self.hooks.all.is_empty() => {
                Some(self.read_case(dataset, reference)?)
            }
            _ => None,
        };
        let workspace = dir.join("workspace");
        let made = |error: io::Error| Failure::io("Making the case's directory", &error);
        std::fs::create_dir_all(dir).map_err(made)?;
        std::fs::create_dir(&workspace).map_err(made)?;
        for own in ["home", "tmp"].iter().filter(|_| self.sandbox.is_none()) {
            std::fs::create_dir(dir.join(own)).map_err(made)?;
        }
        let root = Root::open(&workspace).map_err(|error| made(error.source))?;
        write_tree(&package.workspace, &root)?;
        let outputs = self.declared(&package);
        make_outputs(&root, &outputs);
        Ok(Work {
            runner: self,
            id: id.clone(),
            package,
            case,
            dir: dir.to_owned(),
            workspace: root,
            outputs,
            attempt,
        })
    }

    /// Tells what the package asks for and is not given here; the same for every package, so that it
    /// is told once.
    fn tell_unheld(&self, package: &Package, id: &CaseId) {
        let separate = package
            .steps
            .iter()
            .filter_map(|step| step.separate.as_ref());
        let limits = separate.map(|own| &own.limits).chain([&package.limits]);
        let grouped = self.groups.is_some();
        let unheld = package
            .unheld
            .iter()
            .map(|field| format!("{field} of task.toml is not held to: there is no container."));
        let users = package.steps.iter().filter(|_| self.sandbox.is_some());
        let users = users.flat_map(Step::unknown_users).map(|name| {
            format!(
                "The user '{name}' of task.toml is nobody's name on this machine, and there is no \
                 image that knows it: user {ORDINARY} stands for it."
            )
        });
        let limits = limits.flat_map(|limits| limits.told(grouped));
        let separate = package
            .steps
            .iter()
            .filter_map(|step| step.separate.as_ref());
        let kept = self.sandbox.as_ref();
        let kept = kept.map_or_else(Vec::new, |sandbox| outside::kept(package, sandbox));
        let is_kept = |artifact: &Artifact| {
            let source = Path::new(&artifact.source);
            kept.iter().any(|place| source.starts_with(place))
        };
        for artifact in separate.flat_map(|own| &own.artifacts) {
            let is_workdir = artifact.covers(&package.workdir)
                || Path::new(&artifact.source).starts_with(&package.workdir);
            let logs = artifact.covers("/logs/artifacts");
            let message = if logs && !artifact.exclude.is_empty() {
                "`exclude` of the artifact /logs/artifacts of task.toml is not held to.".to_owned()
            } else if is_workdir || logs || artifact.covers("/logs/agent") || is_kept(artifact) {
                continue;
            } else {
                format!(
                    "The artifact {} of task.toml is outside of the workdir, and its verifier does \
                     not see it here.",
                    artifact.source
                )
            };
            self.tell(
                Diagnostic::new(Rule::Unsupported, message)
                    .severity(Severity::Warning)
                    .help(
                        "Write it into the workdir or to /logs/artifacts, or use --engine harbor.",
                    )
                    .case(id),
            );
        }
        let link = package.link.iter().map(|link| {
            format!(
                "What agent and verifier see of a link of the task ({link}) is a copy of its file."
            )
        });
        for message in unheld.chain(users).chain(link).chain(limits) {
            self.tell(
                Diagnostic::new(Rule::Unsupported, message)
                    .severity(Severity::Note)
                    .help(
                        "Nothing has to be done if the task works without; else use --engine \
                         harbor.",
                    )
                    .case(id),
            );
        }
    }

    pub(super) fn read_case(
        &self,
        dataset: &dataset::Dataset,
        reference: &PackageRef,
    ) -> Result<dataset::Case, Failure> {
        let mut found = {
            let diags = self.diags.lock().unwrap_or_else(PoisonError::into_inner);
            diags.fork()
        };
        let case = dataset.read_case(&reference.id, &mut found);
        match case {
            Some(case) if !found.has_errors() => Ok(case),
            _ => {
                let why = found.iter().next().map(|finding| finding.message.clone());
                let why = why.unwrap_or_else(|| "it is gone.".to_owned());
                let mut diags = self.diags.lock().unwrap_or_else(PoisonError::into_inner);
                diags.append(found);
                Err(Failure::NoVerdict(
                    ErrorKind::Package,
                    format!("The case can not be read from the dataset: {why}"),
                ))
            }
        }
    }

    /// Declared outputs: from the dataset, else from what the package's judges are told.
    pub(super) fn declared(&self, package: &Package) -> Vec<(TreePath, bool)> {
        // As the harness has it: without a trailing slash a name with a suffix is a file's.
        let directory = |path: &TreePath| !path.name().contains('.');
        if let Some(dataset) = self.request.dataset {
            let outputs = dataset.verification.outputs.iter();
            return outputs
                .filter_map(|output| {
                    let path = output.path.clone()?;
                    let directory = output.directory || directory(&path);
                    Some((path, directory))
                })
                .collect();
        }
        let tests = package.steps.last().map(|step| &step.tests);
        let config = tests.and_then(|tests| tests.get(&TreePath::new("config.json").ok()?));
        let Some(Data::Bytes(bytes)) = config.map(|entry| &entry.content.data) else {
            return Vec::new();
        };
        let config: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
        let outputs = config.get("outputs").and_then(serde_json::Value::as_array);
        outputs
            .into_iter()
            .flatten()
            .filter_map(|output| {
                let text = output.get("path")?.as_str()?;
                let path = TreePath::new(text.trim_end_matches('/')).ok()?;
                let directory = text.ends_with('/') || directory(&path);
                Some((path, directory))
            })
            .collect()
    }
}

pub(super) fn write_tree(tree: &Tree, root: &Root) -> Result<(), Failure> {
    materialise(tree, root.handle()).map(drop).map_err(|error| {
        match std::error::Error::source(&error) {
            Some(source) => Failure::io(&format!("Copying ({error})"), &source),
            None => Failure::io("Copying", &error),
        }
    })
}

/// Makes the directories of declared outputs. Nothing but the package's own files is there yet; one
/// that is in the way is no error: then the output is a file.
pub(super) fn make_outputs(workspace: &Root, outputs: &[(TreePath, bool)]) {
    for (path, directory) in outputs {
        let host = workspace.absolute(Some(path));
        let made = if *directory {
            std::fs::create_dir_all(host)
        } else {
            host.parent().map_or(Ok(()), std::fs::create_dir_all)
        };
        made.ok();
    }
}

/// Writes `result.json`; that it can't be is told in the result itself.
pub(super) fn write_result(dir: &Path, result: &mut CaseResult) {
    if let Err(error) = write_atomic(&dir.join("result.json"), &to_text(result), 0o644) {
        let message = format!("result.json can not be written: {}.", error.source);
        let told = result.message.get_or_insert_default();
        if !told.is_empty() {
            told.push(' ');
        }
        told.push_str(&message);
    }
}

impl Work<'_> {
    /// The case between its hooks.
    fn live(&self, result: &mut CaseResult, messages: &mut Vec<String>) -> Result<(), Failure> {
        let mut life = Life::of(self.runner.told.clone());
        let mut done = self.hooks(Phase::BeforeEach, None, &mut life);
        if done.is_ok() {
            done = self.run(&mut life, result, messages);
        }
        // What was begun is cleaned up, however it ended.
        self.hooks(Phase::AfterEach, None, &mut life).ok();
        if !self.runner.hooks.all.is_empty() && !process::end_scope(&life.scope) {
            messages.push("A process that a hook started could not be ended.".to_owned());
        }
        result.hooks = life.hooks;
        done
    }

    /// Runs the hooks of a phase that is about a case or a step.
    fn hooks(
        &self,
        phase: Phase,
        step: Option<(usize, &Step, Option<i32>)>,
        life: &mut Life,
    ) -> Result<(), Failure> {
        let hooks = &self.runner.hooks;
        // With one agent for all cases there is nothing around each (policy 16).
        let alone = self.runner.batches.is_empty() || phase == Phase::BeforeScoring;
        if !alone || !hooks.has(phase) {
            return Ok(());
        }
        let workspace = self.dir.join("workspace");
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut told = vec![
            ("CASE_ID", self.id.to_string()),
            ("CASE_WORKSPACE", text(&workspace)),
        ];
        if let (Some(case), Some(dataset)) = (&self.case, self.runner.request.dataset) {
            if let Some(root) = dataset.sources.roots.get(case.material.root) {
                let source = root.absolute(case.material.dir.as_ref());
                told.push(("CASE_SOURCE_DIR", text(&source)));
            }
            let input = case.material.listed.first();
            if let Some(input) = input.and_then(|listed| listed.dest.as_ref()) {
                told.push(("CASE_INPUT", text(&workspace.join(input.as_str()))));
            }
        }
        let mut logs = self.dir.join("hooks");
        if let Some((index, step, exit_code)) = step {
            if !step.name.is_empty() {
                logs = self.dir.join("steps").join(&step.name).join("hooks");
            }
            told.push(("STEP_ID", step.name.clone()));
            told.push(("STEP_INDEX", index.to_string()));
            let code = exit_code.map(|code| code.to_string());
            told.extend(code.map(|code| ("STEP_EXIT_CODE", code)));
        }
        // Judges are prepared in the project, everything else is about the workspace.
        let scoring = phase == Phase::BeforeScoring;
        let around = Around {
            cwd: if scoring {
                self.runner.request.project
            } else {
                &workspace
            },
            outputs: vec![&workspace],
            logs,
            told,
            step: step
                .map(|(_, step, _)| step.name.as_str())
                .filter(|name| !name.is_empty()),
            scope: &life.scope,
        };
        let told = hooks
            .run(phase, &around, &mut life.hooks)
            .map_err(|message| Failure::NoVerdict(ErrorKind::Hook, message))?;
        life.told.add(told);
        Ok(())
    }

    fn run(
        &self,
        life: &mut Life,
        result: &mut CaseResult,
        messages: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let mut taken: Vec<BTreeMap<String, f64>> = Vec::new();
        for (index, step) in self.package.steps.iter().enumerate() {
            let mut report = StepResult::new(&step.name);
            let done = self.step(index, step, life, &mut report);
            result.agent.clone_from(&report.agent);
            result.verifier.clone_from(&report.verifier);
            result.rewards.clone_from(&report.rewards);
            result.judges.clone_from(&report.judges);
            taken.push(report.rewards.clone());
            let told = report.message.iter().map(|told| step.say(told));
            messages.extend(told);
            let done = done.map_err(|failure| match failure {
                Failure::NoVerdict(kind, told) => {
                    report.add_message(&told);
                    Failure::NoVerdict(kind, step.say(&told))
                }
                failure @ Failure::Skipped(_) => failure,
            });
            let failed = report
                .agent
                .as_ref()
                .is_some_and(|run| run.exit_code != Some(0));
            if self.package.strategy.is_some() {
                result.steps.push(report);
            }
            if let Err(failure) = done {
                taken.pop();
                self.reward_without_last(&failure, &taken, result, messages);
                return Err(failure);
            }
            let left = index + 1 < self.package.steps.len();
            // `on_failure: fail` of the dataset's step.
            let stops = self.runner.request.agent == Agent::Runner
                && self
                    .dataset_step(index)
                    .is_some_and(|step| step.stop_on_failure);
            if left && failed && stops && self.package.strategy.is_some() {
                messages.push(step.say("its agent failed, so the rest was left out."));
                // The steps that were left out were not done: the last one's reward is not that
                // of the whole.
                result.rewards = BTreeMap::from([("reward".to_owned(), 0.0)]);
                taken.resize(self.package.steps.len(), BTreeMap::new());
                break;
            }
            if let Some(why) = below_minimum(step, taken.last()) {
                if left {
                    messages.push(step.say(&format!("{why}, so the rest was left out.")));
                }
                break;
            }
        }
        if self.package.strategy == Some(Strategy::Mean) {
            result.rewards = mean(&taken);
        }
        let reward = verdict::reward(&result.rewards)
            .map_err(|(kind, message)| Failure::NoVerdict(kind, message))?;
        result.reward = Some(reward);
        Ok(())
    }

    /// As in Harbor a step that got no verdict is left out of the mean. That is the case's reward, and
    /// no verdict all the same.
    fn reward_without_last(
        &self,
        failure: &Failure,
        taken: &[BTreeMap<String, f64>],
        result: &mut CaseResult,
        messages: &mut Vec<String>,
    ) {
        if matches!(
            failure,
            Failure::Skipped(_) | Failure::NoVerdict(ErrorKind::Interrupted, _)
        ) {
            return;
        }
        if self.package.strategy == Some(Strategy::Mean) && !taken.is_empty() {
            result.rewards = mean(taken);
            result.reward = verdict::reward(&result.rewards).ok();
            messages.push("The reward is the mean of the steps before, as in Harbor.".to_owned());
        }
    }

    /// One turn of agent and verifier.
    fn step(
        &self,
        index: usize,
        step: &Step,
        life: &mut Life,
        report: &mut StepResult,
    ) -> Result<(), Failure> {
        let dir = if self.package.strategy.is_some() {
            self.dir.join("steps").join(&step.name)
        } else {
            self.dir.clone()
        };
        let made = |error: io::Error| Failure::io("Making a directory for the logs", &error);
        for logs in ["logs/agent", "logs/artifacts", "logs/verifier"] {
            std::fs::create_dir_all(dir.join(logs)).map_err(made)?;
        }
        self.hooks(Phase::BeforeStep, Some((index, step, None)), life)?;
        self.set_up(index, step, &dir, life)?;
        if self.runner.request.agent != Agent::Runner {
            // Another agent writes what it is really told.
            write_atomic(
                &dir.join("instruction.md"),
                step.instruction.as_bytes(),
                0o644,
            )
            .map_err(|error| Failure::io("Writing the instruction", &error.source))?;
        }
        let run = match self.runner.batch_of(self.attempt) {
            None => self.agent(index, step, &dir, life, report),
            Some(Ok(batch)) => self.take_share(batch, report).map(Some),
            Some(Err(failure)) => Err(failure.clone()),
        };
        self.unlock(&dir);
        let code = run.as_ref().ok().and_then(Option::as_ref);
        let code = code.map(|run| run.exit_code.unwrap_or(-1));
        self.hooks(Phase::AfterStep, Some((index, step, code)), life)
            .ok();
        report.agent = run?;
        if self.stopped() {
            return Err(Failure::stopped());
        }
        self.check_workspace(report)?;
        self.remember(step, &dir, report.agent.as_ref(), life);
        self.collect_evidence(step, &dir, report)?;
        self.hooks(Phase::BeforeScoring, Some((index, step, code)), life)?;
        let oracle = self.runner.request.agent == Agent::Oracle;
        leave_traces(&dir, report.agent.as_ref(), oracle, life)?;
        let judged = self.verify(step, &dir, report);
        let verifier = Root::open(&dir.join("logs/verifier")).ok();
        if let Some(verifier) = &verifier {
            report.judges = verdict::judges(verifier, &self.runner.secrets);
        }
        report.rewards = judged?;
        report.reward = report.rewards.get("reward").copied();
        Ok(())
    }

    /// What the agent of a step is told. Only a run knows what earlier steps came to.
    pub(super) fn instruction(
        &self,
        index: usize,
        step: &Step,
        life: &Life,
    ) -> Result<String, Failure> {
        let (Some(case), Some(Instruction::Deferred { prefix, template })) = (
            &self.case,
            self.dataset_step(index).map(|step| &step.instruction),
        ) else {
            return Ok(step.instruction.clone());
        };
        let node = |value: Yaml| Node { value, span: 0..0 };
        let steps = life
            .steps
            .iter()
            .map(|(name, value)| (node(Yaml::Str(name.as_str().into())), node(value.clone())));
        let steps = Yaml::Map(steps.collect());
        let text = template::render(template, &case.input, &steps).map_err(|error| {
            let message = format!("The instruction can not be rendered: {error}.");
            Failure::NoVerdict(ErrorKind::AgentStart, message)
        })?;
        Ok(format!("{prefix}{text}\n"))
    }

    /// Keeps what templates of later steps can ask for.
    fn remember(&self, step: &Step, dir: &Path, run: Option<&AgentRun>, life: &mut Life) {
        let id = self
            .package
            .steps
            .iter()
            .position(|it| it.name == step.name);
        let id = id.and_then(|index| self.dataset_step(index)?.id.clone());
        let Some(id) = id else { return };
        let node = |value: Yaml| Node { value, span: 0..0 };
        let entry = |name: &str, value: Yaml| (node(Yaml::Str(name.into())), node(value));
        let stdout = printed(dir, "stdout.txt");
        let stdout = String::from_utf8_lossy(&stdout);
        let said = known::last_words(&stdout);
        let code = run.and_then(|run| run.exit_code).unwrap_or(-1);
        let files = self
            .outputs
            .iter()
            .flat_map(|(path, _)| collect::texts(&self.workspace, path));
        let files = files.map(|(path, text)| entry(path.as_str(), Yaml::Str(text.into())));
        let value = Yaml::Map(vec![
            entry("output", Yaml::Str(said.into())),
            entry("exit_code", Yaml::Int(code.into())),
            entry("files", Yaml::Map(files.collect())),
        ]);
        life.steps.retain(|(name, _)| *name != id);
        life.steps.push((id, value));
    }

    pub(super) fn stopped(&self) -> bool {
        self.runner.request.stop.load(Ordering::Relaxed)
    }

    /// Puts a step's own files into the workdir and runs its `setup.sh`.
    fn set_up(&self, index: usize, step: &Step, dir: &Path, life: &Life) -> Result<(), Failure> {
        if step.workdir.is_empty() {
            return Ok(());
        }
        overlay::put(&step.workdir, &self.workspace, &self.dir)
            .map_err(|error| Failure::io("Putting the step's files into the workdir", &error))?;
        if TreePath::new(SETUP).is_ok_and(|setup| step.workdir.get(&setup).is_none()) {
            return Ok(());
        }
        let mut env = self.agent_env(index, life)?;
        self.add_places(&mut env, dir);
        let party = Party {
            command: vec![self.shell().into(), SETUP.into()],
            mounts: self.agent_mounts(dir)?,
            env,
            network: step.agent.network,
            user: step.agent.user(),
            timeout: Some(SETUP_TIMEOUT),
            limits: self.package.limits.clone(),
            input: None,
            files: Vec::new(),
            output: (capture(&dir.join("setup-stdout.txt"))?, None),
        };
        let ended = self.start(party).map_err(|error| {
            Failure::NoVerdict(
                ErrorKind::AgentStart,
                format!("setup.sh did not start: {error}."),
            )
        })?;
        match (ended.cut, ended.exit_code) {
            (Some(Cut::Stopped), _) => Err(Failure::stopped()),
            (None, Some(0)) => Ok(()),
            _ => Err(Failure::NoVerdict(
                ErrorKind::AgentStart,
                format!("setup.sh failed: {}.", how(&ended)),
            )),
        }
    }

    /// The package's own commands between agent and verifier; as in Harbor one that fails is told and
    /// ends nothing.
    fn collect_evidence(
        &self,
        step: &Step,
        dir: &Path,
        report: &mut StepResult,
    ) -> Result<(), Failure> {
        for (number, (command, turn)) in step.collect.iter().enumerate() {
            let mut env = self.base_env();
            env.append(&mut self.resolved("environment", &self.package.env)?);
            self.add_places(&mut env, dir);
            let party = Party {
                command: [self.shell(), "-c", command].map(OsString::from).into(),
                mounts: self.agent_mounts(dir)?,
                env,
                network: turn.network,
                user: turn.user(),
                timeout: turn.timeout,
                input: None,
                files: Vec::new(),
                output: (
                    capture(&dir.join(format!("collect-{}.txt", number + 1)))?,
                    None,
                ),
                limits: self.package.limits.clone(),
            };
            let told = match self.start(party) {
                Err(error) => format!("did not start: {error}"),
                Ok(ended) if ended.cut == Some(Cut::Stopped) => return Err(Failure::stopped()),
                Ok(ended) if ended.cut.is_none() && ended.exit_code == Some(0) => continue,
                Ok(ended) => format!("failed: {}", how(&ended)),
            };
            report.add_message(&format!(
                "Command {} of verifier.collect {told}.",
                number + 1
            ));
        }
        Ok(())
    }

    /// What is there in the environment of the agent beside the workdir: `/logs`, which is in `dir`, and
    /// where artifacts lie.
    pub(super) fn agent_mounts(&self, dir: &Path) -> Result<Vec<Mount>, Failure> {
        let logs = ["agent", "artifacts"];
        let logs =
            logs.map(|name| Mount::write(dir.join("logs").join(name), format!("/logs/{name}")));
        let mut mounts = Vec::from(logs);
        for (host, place) in self.kept_outside() {
            std::fs::create_dir_all(&host)
                .map_err(|error| Failure::io("Making a directory for artifacts", &error))?;
            mounts.push(Mount::write(host, place));
        }
        Ok(mounts)
    }

    /// The directories outside of the workdir that are kept for artifacts: on disk, and inside.
    pub(super) fn kept_outside(&self) -> Vec<(PathBuf, String)> {
        let sandbox = self.runner.sandbox.as_ref();
        let places = sandbox.map_or_else(Vec::new, |sandbox| outside::kept(&self.package, sandbox));
        let host = |at: usize| self.dir.join("outside").join(at.to_string());
        let places = places.into_iter().enumerate();
        places.map(|(at, place)| (host(at), place)).collect()
    }

    pub(super) fn dataset_step(&self, index: usize) -> Option<&dataset::Step> {
        self.case.as_ref()?.steps.get(index)
    }

    /// The environment of the agent: nothing of the caller's but what programs need to speak to
    /// people, and what package, dataset and hooks ask for.
    pub(super) fn agent_env(
        &self,
        index: usize,
        life: &Life,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut env = self.base_env();
        env.append(&mut self.resolved("environment", &self.package.env)?);
        if let (Agent::Runner, Some(execution)) =
            (self.runner.request.agent, self.runner.request.execution)
        {
            env.extend(self.execution_env(index, execution));
        }
        env.extend(life.told.env.clone());
        Ok(env)
    }

    /// What the dataset says about the agent's environment.
    pub(super) fn execution_env(
        &self,
        index: usize,
        execution: &Execution,
    ) -> BTreeMap<String, String> {
        let own = [
            Some(&execution.env),
            self.dataset_step(index).map(|step| &step.env),
            Some(&self.runner_of(index, execution).env),
        ];
        let mut env = BTreeMap::new();
        for (name, value) in own.into_iter().flatten().flatten() {
            // As in the harness, a reference to nothing is left out.
            if let Some(value) = env::of_dataset(value, self.runner.request.env) {
                env.insert(name.clone(), value);
            }
        }
        env
    }

    /// The `runner` block that counts for a step.
    pub(super) fn runner_of<'a>(
        &'a self,
        index: usize,
        execution: &'a Execution,
    ) -> &'a dataset::Runner {
        let of_step = self
            .dataset_step(index)
            .and_then(|step| step.runner.as_ref());
        of_step
            .filter(|_| self.runner.request.step_runners)
            .unwrap_or(&execution.runner)
    }

    pub(super) fn base_env(&self) -> BTreeMap<String, String> {
        let caller = self.runner.request.env;
        let mut env = env::passed_on(caller);
        let (path, home, tmp) = match &self.runner.sandbox {
            Some(sandbox) => (
                sandbox.path().to_owned(),
                sandbox::HOME.to_owned(),
                "/tmp".to_owned(),
            ),
            None => (
                caller.get("PATH").cloned().unwrap_or_default(),
                self.dir.join("home").to_string_lossy().into_owned(),
                self.dir.join("tmp").to_string_lossy().into_owned(),
            ),
        };
        env.insert("PATH".to_owned(), path);
        env.insert("HOME".to_owned(), home);
        env.insert("TMPDIR".to_owned(), tmp);
        env
    }

    pub(super) fn resolved(
        &self,
        table: &str,
        values: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let caller = self.runner.request.env;
        // What `execution.env` refers to and is not set is left out, as in the harness; only Harbor,
        // which has the package alone, takes it for an error.
        let execution = self.runner.request.execution;
        let left_out = |name: &String| {
            let value = execution.and_then(|execution| execution.env.get(name));
            value.is_some_and(|value| env::of_dataset(value, caller).is_none())
        };
        let mut resolved = BTreeMap::new();
        for (name, value) in values {
            match env::of_package(value, caller) {
                Some(value) => {
                    resolved.insert(name.clone(), value);
                }
                None if left_out(name) => {}
                None => {
                    return Err(Failure::NoVerdict(
                        ErrorKind::Package,
                        format!("[{table}].env of task.toml asks for {value}, and it is not set."),
                    ));
                }
            }
        }
        Ok(resolved)
    }

    /// bash, which Harbor starts scripts with; where there is none, what stands for it.
    fn shell(&self) -> &'static str {
        match &self.runner.sandbox {
            Some(sandbox) if sandbox.program("bash").is_none() => "sh",
            _ => "bash",
        }
    }

    /// Runs the script `name` of `tree`, which lies at `path`, as Harbor does: by its first line, and
    /// by the shell when it has none.
    pub(super) fn script(&self, tree: &Tree, name: &str, path: &str) -> Vec<OsString> {
        let entry = TreePath::new(name).ok().and_then(|name| tree.get(&name));
        let says = entry.is_some_and(|entry| match &entry.content.data {
            Data::Bytes(bytes) => bytes.starts_with(b"#!/"),
            Data::File(_) => false,
        });
        // Without a sandbox a file that was just written may be open in a process that another
        // thread is starting, so that it can't be executed yet; the shell takes its time.
        if says && self.runner.sandbox.is_some() {
            return vec![path.into()];
        }
        [self.shell(), "-c", "\"$0\"", path]
            .map(OsString::from)
            .into()
    }

    /// Where `test.sh` and `solve.sh` find things (README of the package format).
    pub(super) fn add_places(&self, env: &mut BTreeMap<String, String>, dir: &Path) {
        let workdir = self.seen(&self.dir.join("workspace"), &self.package.workdir);
        env.insert("CASEPACK_WORKDIR".to_owned(), workdir);
        env.insert(
            "CASEPACK_LOGS_DIR".to_owned(),
            self.seen(&dir.join("logs"), "/logs"),
        );
    }

    /// The path at which a party finds what lies at `host`.
    pub(super) fn seen(&self, host: &Path, inside: &str) -> String {
        match self.runner.sandbox {
            Some(_) => inside.to_owned(),
            None => host.to_string_lossy().into_owned(),
        }
    }

    /// Agents can shut directories, to themselves and all others. In a container nobody would notice,
    /// as root judges there; so it is no way around a verdict here.
    pub(super) fn unlock(&self, dir: &Path) {
        let own = self.dir.join("workspace");
        let logs = ["logs", "logs/agent", "logs/artifacts"];
        for path in std::iter::once(own).chain(logs.map(|name| dir.join(name))) {
            // Where it can not be, what fails next says so.
            unlock_dir(&path).ok();
        }
    }

    /// Without a sandbox an agent can move its workspace away and put a link there.
    pub(super) fn check_workspace(&self, report: &mut StepResult) -> Result<(), Failure> {
        let path = self.dir.join("workspace");
        let failed = |error: io::Error| Failure::io("Looking at the workspace", &error);
        let same = |meta: std::fs::Metadata| -> io::Result<bool> {
            use std::os::unix::fs::MetadataExt;
            let own = rustix::fs::fstat(self.workspace.handle())?;
            Ok(meta.ino() == own.st_ino && meta.is_dir())
        };
        match std::fs::symlink_metadata(&path).and_then(same) {
            Ok(true) => return Ok(()),
            Ok(false) => remove_tree(&path).map_err(|error| failed(error.source))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        std::fs::create_dir(&path).map_err(failed)?;
        report.add_message("The agent removed its workdir, so an empty one was judged.");
        Ok(())
    }

    pub(super) fn start(&self, party: Party) -> io::Result<Ended> {
        self.start_in(None, party)
    }

    /// Starts somebody in the workdir and waits for the end. `workspace` is mounted already.
    pub(super) fn start_in(&self, workspace: Option<&Path>, party: Party) -> io::Result<Ended> {
        let own = self.dir.join("workspace");
        let (argv, cwd) = match &self.runner.sandbox {
            Some(sandbox) => {
                let mut mounts = Vec::new();
                if workspace.is_none() {
                    mounts.push(Mount::write(own, &self.package.workdir));
                }
                mounts.extend(party.mounts);
                let workdir = &self.package.workdir;
                let argv =
                    sandbox.command(workdir, &mounts, party.network, party.user, &party.command);
                (argv, Path::new("/"))
            }
            None => (party.command, workspace.unwrap_or(&own)),
        };
        let make = |groups: &Groups| groups.make(&party.limits);
        let group = self.runner.groups.as_ref().map(make).transpose()?;
        let mut limits = group.as_ref().map_or_else(Vec::new, Group::words);
        limits.extend(party.limits.words(group.is_some(), self.runner.request.env));
        let ended = process::watch(Job {
            argv: &argv,
            env: &party.env,
            cwd,
            input: party.input,
            files: &party.files,
            output: party.output,
            timeout: party.timeout,
            limits: &limits,
            bwrap: self.runner.sandbox.is_some(),
            network: party.network,
            kept: self.runner.request.keeper,
            scope: None,
            stop: self.runner.request.stop,
        });
        let Some(group) = group else { return ended };
        let mut ended = ended?;
        ended.out_of_memory = group.out_of_memory();
        ended.undead |= !group.end();
        Ok(ended)
    }

    fn collect(&self, messages: &mut Vec<String>) -> Outputs {
        let paths: Vec<TreePath> = self.outputs.iter().map(|(path, _)| path.clone()).collect();
        if paths.is_empty() {
            return Outputs::default();
        }
        let into = self.dir.join("outputs");
        let cleared = remove_tree(&into).map_err(|error| error.source);
        let limits = collect::Limits::default();
        let mut outputs = cleared
            .and_then(|()| collect::outputs(&self.workspace, &paths, &into, limits))
            .unwrap_or_else(|error| {
                messages.push(format!("The outputs could not be collected: {error}."));
                Outputs::default()
            });
        // What one agent made for all cases was left behind before it was shared out.
        if let Some(Ok(batch)) = self.runner.batch_of(self.attempt) {
            outputs.skipped.extend_from_slice(batch.skipped(&self.id));
        }
        outputs
    }

    /// Writes how the workspace differs from its start, for reports.
    fn leave_changes(&self, messages: &mut Vec<String>) {
        let text = changes::since(
            &self.package.workspace,
            &self.workspace,
            &self.runner.secrets,
        );
        let path = self.dir.join("workspace.diff");
        if let Err(error) = write_atomic(&path, text.as_bytes(), 0o644) {
            messages.push(format!(
                "workspace.diff can not be written: {}.",
                error.source
            ));
        }
    }

    /// Takes away what only the parties needed.
    pub(super) fn clean_up(&self, messages: &mut Vec<String>) {
        for own in [
            "home",
            "tmp",
            "tests",
            "solution",
            "outside",
            outside::OUTSIDE,
        ] {
            if let Err(error) = remove_tree(&self.dir.join(own)) {
                messages.push(format!("{own} could not be removed: {}.", error.source));
            }
        }
    }
}

/// Writes `tree` to the new directory `dir`.
pub(super) fn stage(tree: &Tree, dir: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io("Copying from the package", &error);
    remove_tree(dir).map_err(|error| failed(error.source))?;
    std::fs::create_dir(dir).map_err(failed)?;
    let root = Root::open(dir).map_err(|error| failed(error.source))?;
    write_tree(tree, &root)
}

pub(super) fn capture(path: &Path) -> Result<Capture, Failure> {
    Capture::create(path, OUTPUT_MAX).map_err(|error| Failure::io("Making a log file", &error))
}

/// What was captured in `name`; nothing when something else has taken its place, which an agent that
/// is not isolated can do.
pub(super) fn printed(dir: &Path, name: &str) -> Vec<u8> {
    read_regular(&dir.join(name), OUTPUT_MAX + (1 << 20)).unwrap_or_default()
}

/// How a process ended, in words.
pub(super) fn how(ended: &Ended) -> String {
    match (ended.cut, ended.exit_code, ended.signal) {
        (Some(Cut::TimeUp), _, _) => "its time was up".to_owned(),
        _ if ended.out_of_memory => "its memory was used up".to_owned(),
        (_, Some(code), _) => format!("exit status {code}"),
        (_, None, Some(signal)) => format!("signal {signal}"),
        _ => "it is not known how".to_owned(),
    }
}

/// The first line with something on it, of the first bytes of a log.
pub(super) fn first_line(dir: &Path, name: &str) -> String {
    use io::Read;
    let mut bytes = Vec::new();
    if let (Ok(root), Ok(path)) = (Root::open(dir), TreePath::new(name))
        && let Ok((file, _)) = root.open_file(&path)
        && file.take(2000).read_to_end(&mut bytes).is_ok()
    {
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        return line.unwrap_or_default().to_owned();
    }
    String::new()
}

fn below_minimum(step: &Step, rewards: Option<&BTreeMap<String, f64>>) -> Option<String> {
    step.min_reward.iter().find_map(|(key, least)| {
        match rewards.and_then(|rewards| rewards.get(key)) {
            None => Some(format!("There is no '{key}', and min_reward wants {least}")),
            Some(value) if value < least => Some(format!(
                "its '{key}' is {value}, and min_reward wants {least}"
            )),
            Some(_) => None,
        }
    })
}

/// The mean per key; where a step has no such key it counts as 0 (harbor.md 3).
fn mean(steps: &[BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let keys: BTreeSet<&String> = steps.iter().flat_map(BTreeMap::keys).collect();
    keys.into_iter()
        .map(|key| {
            let values = steps.iter().filter_map(|step| step.get(key).copied());
            let values: Vec<f64> = values.collect();
            (key.clone(), mean_over(&values, steps.len()))
        })
        .collect()
}

/// What the agent printed and how it ended, where `judge.py` and others look for it.
fn leave_traces(
    dir: &Path,
    run: Option<&AgentRun>,
    oracle: bool,
    life: &Life,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io("Writing the agent's logs", &error);
    let logs = dir.join("logs/agent");
    if run.is_none() && life.told.data.is_empty() {
        return Ok(());
    }
    for name in ["stdout.txt", "stderr.txt"]
        .iter()
        .filter(|_| run.is_some())
    {
        let to = logs.join(name);
        // Whatever the agent put there: a link is removed, not followed.
        remove_tree(&to).map_err(|error| failed(error.source))?;
        let from = dir.join(name);
        std::fs::hard_link(&from, &to)
            .or_else(|_| std::fs::copy(&from, &to).map(drop))
            .map_err(failed)?;
    }
    if oracle {
        // Where Harbor's agent of that name has both.
        let to = logs.join("oracle.txt");
        remove_tree(&to).map_err(|error| failed(error.source))?;
        let mut file = std::fs::File::create_new(&to).map_err(failed)?;
        for name in ["stdout.txt", "stderr.txt"] {
            io::Write::write_all(&mut file, &printed(dir, name)).map_err(failed)?;
        }
    }
    let told = logs.join("run_result.json");
    remove_tree(&told).map_err(|error| failed(error.source))?;
    let mut document = match run {
        Some(run) => serde_json::to_value(run).unwrap_or_default(),
        None => serde_json::json!({}),
    };
    if !life.told.data.is_empty() {
        document["hook_outputs"] = life.told.data.clone().into();
    }
    write_atomic(&told, &to_text(&document), 0o644).map_err(|error| failed(error.source))
}
