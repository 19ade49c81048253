//! Local runs: every case of a build, on its own package, on this machine.
//!
//! Owns processes, the sandbox, the verifier and what came out of a case. Refuses to know the
//! command line and how results are shown (`report`), and reads nothing of a dataset but what a
//! package can not carry: the agent's command, its environment and the fields of the input.
//! Invariant: what an agent left behind is hostile; it is read through handles only (policy 20).

mod agent;
mod batch;
mod case;
mod cgroup;
mod changes;
mod collect;
mod engine;
mod env;
mod exclude;
mod guard;
mod hooks;
mod json;
mod keeper;
mod known;
mod limits;
mod outside;
mod overlay;
mod package;
mod packages;
mod process;
mod results;
mod resume;
mod sandbox;
mod seccomp;
mod thresholds;
mod verdict;
mod verifier;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::agent::Project;
use self::case::{Runner, write_result};
use self::cgroup::Groups;
pub use self::env::Secrets;
use self::guard::Guard;
pub use self::guard::{GUARD, guard};
use self::hooks::{Around, Hooks, Told};
pub use self::keeper::{KEEP, keep};
pub use self::known::Known;
pub use self::packages::{Packages, find as find_packages};
pub use self::results::{
    AgentRef, AgentRun, CaseResult, DatasetRef, ErrorKind, HookRun, JudgeResult, OutputFile,
    OutputSkipped, Outputs, Retried, RunResults, Status, StepResult, Summary, ThresholdResult,
    Tokens, VerifierRun, ViewDigests,
};
use self::resume::Start;
use self::sandbox::{Sandbox, find_program};
use self::worker::Worker;
use crate::dataset::{self, Dataset, Execution, Mode, OUTPUT_MARK, Phase, Threshold};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::digest::Digest;
use crate::event::{Event, Observer, Stage};
use crate::fs::{drop_set_ids, remove_tree};
use crate::path::CaseId;
use crate::target::harbor;

/// One built package: a Harbor task directory.
#[derive(Debug, Clone)]
pub struct PackageRef {
    /// The case that it was made from.
    pub id: CaseId,
    /// Where it lies (`dist/harbor/<name>`).
    pub dir: PathBuf,
    /// Of a case of a dataset of which only some are run: what it adds to the dataset's identity.
    pub views: Option<ViewDigests>,
}

/// Who works on the cases (`--agent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// The one of the `runner` block: [`Request::execution`].
    Runner,
    /// The package's own `solution/solve.sh`, as Harbor's agent of that name does.
    Oracle,
    /// Nobody: the verifier sees the workspace as it was.
    Nop,
}

/// How agents and verifiers are kept from the machine (`--sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// bubblewrap if it works here, else none, with a warning.
    Auto,
    /// bubblewrap, or an error.
    Bwrap,
    /// None, with a warning.
    None,
}

/// Which workspaces are kept when a case has its verdict (`--keep-workspaces`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Those of all cases.
    All,
    /// Those of the cases that did not pass.
    Failed,
    /// None.
    None,
}

impl Keep {
    fn keeps(self, status: Status) -> bool {
        match self {
            Self::All => true,
            Self::Failed => status != Status::Passed,
            Self::None => false,
        }
    }
}

/// What is to be run.
pub struct Request<'a> {
    /// The dataset that the packages were built from, when there is one: its hooks, the fields of
    /// its inputs, and what its agent may see.
    pub dataset: Option<&'a Dataset>,
    /// How an agent is run. Without it only [`Agent::Oracle`] and [`Agent::Nop`] can work.
    pub execution: Option<&'a Execution>,
    /// Whether a step's own `runner` block counts.
    pub step_runners: bool,
    /// What the judges of all cases together have to reach.
    pub thresholds: &'a BTreeMap<String, Threshold>,
    /// The dataset's name, for the results.
    pub dataset_name: &'a str,
    /// The dataset's digest (bundle-format, "Digests"), for the results.
    pub dataset_digest: Option<Digest>,
    /// The packages, in the order of the results.
    pub packages: &'a [PackageRef],
    /// Where runs are kept (`--runs-dir`); created when missing.
    pub runs_dir: &'a Path,
    /// Name of this run's directory there; must not exist yet, but when it is resumed.
    pub run_id: &'a str,
    /// What chose the packages among all (`--case …`, `--shard …`); nothing when all were.
    pub selection: &'a [String],
    /// Whether a run of that name is taken up again: only what has no verdict is run.
    pub resume: bool,
    /// The project root.
    pub project: &'a Path,
    /// Who works.
    pub agent: Agent,
    /// The model that the agent is told, over `models.skill`.
    pub model: Option<&'a str>,
    /// How it is kept from the machine.
    pub sandbox: SandboxMode,
    /// Cases at a time; at least 1.
    pub jobs: usize,
    /// How often each case is run; at least 1.
    pub attempts: u32,
    /// How often a try that ended without a verdict is made again.
    pub retries: u32,
    /// The home directory whose login files of known agents are shown to them.
    pub agent_home: Option<&'a Path>,
    /// Whether this very program becomes [`keep`] when its first argument is [`KEEP`].
    pub keeper: bool,
    /// Which workspaces are kept.
    pub keep: Keep,
    /// The caller's environment: `$NAME` and `${NAME}` are looked up here.
    pub env: &'a BTreeMap<String, String>,
    /// A case with at least this reward has passed; [`PASS_AT`] by default.
    pub pass_at: f64,
    /// Hand the packages to Harbor, with these arguments passed through, in place of running them.
    pub harbor: Option<&'a [String]>,
    /// Over every other agent timeout.
    pub agent_timeout: Option<Duration>,
    /// Set by the signal handler: children are ended and what is known is returned.
    pub stop: &'a AtomicBool,
    /// Set by the signal handler each time: where Harbor is the engine, a second signal does not
    /// give it the time to end by itself.
    pub again: &'a AtomicBool,
}

/// The permissions of a run's directory.
const PRIVATE: u32 = 0o700;

/// Where sandboxes find `/etc` while the run lasts, in its directory.
const ETC: &str = ".etc";

/// The reward that passes a case unless `--pass-at` says otherwise: all of it.
pub const PASS_AT: f64 = 1.0;

/// What to do where nobody is named who could work.
const NAME_AN_AGENT: &str = "Name one with --agent claude-code, codex or opencode, give a command \
                             with --agent-command, or run with --agent oracle (the package's own \
                             solution) or --agent nop (nobody).";

/// Why nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The reasons are errors among the diagnostics.
    #[error("the run was refused")]
    Refused,
    /// A directory of that name is there.
    #[error("the run directory {path} exists already", path = path.display())]
    Exists {
        /// The run directory.
        path: PathBuf,
    },
    /// There is no run to take up again.
    #[error("{path} is no run that can be taken up again: {reason}", path = path.display())]
    Resume {
        /// The run directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The directory of runs is a link.
    #[error("the directory of runs {path} is a link", path = path.display())]
    Linked {
        /// The link.
        path: PathBuf,
    },
    /// Not usable as the name of a directory.
    #[error("'{id}' is no run id: use letters, digits, dots, dashes and underscores")]
    RunId {
        /// What was given.
        id: String,
    },
    /// The sandbox that was asked for does not work.
    #[error("bubblewrap does not work here: {reason}")]
    Sandbox {
        /// What it said.
        reason: String,
    },
    /// The disk.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// What was being done: "creating the run directory".
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Runs all packages, several at a time; tells the observer as cases start and end.
///
/// Each case's `result.json` is written when it ends. Writing `results.json` is the caller's part:
/// `report::write`, also when the results say that the run was interrupted.
///
/// # Errors
/// When nothing could be run. What goes wrong with one case is in its result.
pub fn run(
    request: &Request<'_>,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Result<RunResults, Error> {
    check_place(request.runs_dir, request.run_id, request.resume)?;
    let agent = who(request, diags)?;
    let io = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io {
            doing,
            path,
            source,
        }
    };
    // The mark says that it is no case, where the dataset is where casepack is started.
    std::fs::create_dir_all(request.runs_dir.join(OUTPUT_MARK))
        .map_err(io("creating the directory of runs", request.runs_dir))?;
    let runs_dir = request.runs_dir.canonicalize();
    let runs_dir = runs_dir.map_err(io("opening the directory of runs", request.runs_dir))?;
    let dir = runs_dir.join(request.run_id);
    if let Some(args) = request.harbor {
        // Which is not asked whether they may have them, as Harbor's own command line does.
        tell_of_variables(request, observer, diags);
        if diags.has_errors() {
            return Err(Error::Refused);
        }
        return by_harbor(request, args, &agent, dir, observer);
    }
    // Without it all ends with casepack as well, but for what was just being started.
    let _guard = request.keeper.then(Guard::start);
    let sandbox = find_sandbox(request, &runs_dir);
    let mut warnings = Vec::new();
    let sandbox = match (sandbox, request.sandbox) {
        (Ok(sandbox), _) => Some(sandbox),
        (Err(reason), SandboxMode::Bwrap) => return Err(Error::Sandbox { reason }),
        (Err(reason), _) => {
            let finding = not_isolated(&reason);
            warnings.push(finding.message.clone());
            diags.push(finding);
            if diags.has_errors() {
                return Err(Error::Refused);
            }
            None
        }
    };
    if let Some(dataset) = request.dataset {
        tell_about(request, dataset, diags);
    }
    tell_of_variables(request, observer, diags);
    if diags.has_errors() {
        return Err(Error::Refused);
    }
    let start = Start::of(request, &agent);
    let _held = if request.resume {
        let held = start.take_up(&dir)?;
        // Those of earlier versions were open to others.
        let private = std::fs::Permissions::from_mode(PRIVATE);
        std::fs::set_permissions(&dir, private).map_err(io("closing to others", &dir))?;
        held
    } else {
        match make_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { path: dir });
            }
            Err(error) => return Err(io("creating the run directory", &dir)(error)),
        }
        start.begin(&dir)?
    };
    let was_open = resume::was_open(&dir);
    if sandbox.is_none() {
        resume::note_open(&dir)?;
    }
    let project = project(request, &runs_dir, sandbox.is_some());
    let etc = dir.join(ETC);
    // Of an earlier run that was killed.
    remove_tree(&etc).map_err(|error| io("clearing", &etc)(error.source))?;
    let sandbox = sandbox.map(|mut sandbox| {
        sandbox.stage_etc(&etc);
        sandbox
    });
    let mut runner = Runner {
        request,
        project,
        sandbox,
        secrets: Secrets::of(request.env),
        groups: Groups::find(),
        hooks: hooks(request, &dir),
        told: Told::default(),
        batches: Vec::new(),
        dir: dir.clone(),
        start: Instant::now(),
        diags: Mutex::new(diags.fork()),
        shown: Mutex::default(),
    };
    observer.on(Event::StageStarted {
        stage: Stage::Run,
        total: request.packages.len(),
    });
    let scope = process::mark();
    let mut hooked = Vec::new();
    let cases = match around_all(&runner, Phase::BeforeAll, &scope, &mut hooked) {
        Ok(told) => {
            runner.told = told;
            if let Some(dataset) = batch_of(request) {
                let trials = 1..=request.attempts.max(1);
                runner.batches = trials
                    .map(|attempt| runner.batch(dataset, attempt))
                    .collect();
                for attempt in 1..=request.attempts.max(1) {
                    let dir = runner.place(batch::NAME, attempt);
                    if let Err(error) = runner.disarm(&dir) {
                        let told = format!(
                            "A file of the batch may run as you, whoever starts it: {}.",
                            error.source
                        );
                        warnings.push(told);
                    }
                }
            }
            all_cases(&runner, observer)
        }
        Err(message) => request
            .packages
            .iter()
            .map(|package| not_run(package, &message))
            .collect(),
    };
    around_all(&runner, Phase::AfterAll, &scope, &mut hooked).ok();
    around_all(&runner, Phase::BeforeReport, &scope, &mut hooked).ok();
    if !runner.hooks.all.is_empty() && !process::end_scope(&scope) {
        warnings.push("A process that a hook started could not be ended.".to_owned());
    }
    let mut cases = cases;
    for (case, package) in cases.iter_mut().zip(request.packages) {
        case.views.clone_from(&package.views);
    }
    // It holds nothing that is not in /etc; a rest of it does no harm.
    remove_tree(&etc).ok();
    observer.on(Event::StageFinished { stage: Stage::Run });
    let interrupted = cases
        .iter()
        .any(|case| case.error == Some(ErrorKind::Interrupted));
    let resumed = |case: &CaseResult| case.each_attempt().iter().any(|it| it.resumed);
    let batches = runner.batches.iter().flatten();
    let kept = cases.iter().any(resumed) || batches.into_iter().any(|batch| batch.resumed);
    let kept_open = was_open && kept;
    if kept_open && runner.sandbox.is_some() {
        let told = "Verdicts of an earlier part of this run were given without a sandbox.";
        warnings.push(told.to_owned());
    }
    let shown = runner.shown.lock().unwrap_or_else(PoisonError::into_inner);
    let results = RunResults {
        run_id: request.run_id.to_owned(),
        dir,
        casepack_version: env!("CARGO_PKG_VERSION").to_owned(),
        dataset: DatasetRef {
            packages_digest: packages_digest(&cases),
            ..start.dataset
        },
        agent: AgentRef {
            files: shown
                .iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect(),
            ..start.agent
        },
        engine: engine_of(request).to_owned(),
        isolated: runner.sandbox.is_some() && !kept_open,
        pass_at: request.pass_at,
        attempts: request.attempts,
        thresholds: thresholds::evaluate(request.thresholds, &cases),
        hooks: hooked,
        warnings,
        interrupted,
        other_shards: Vec::new(),
        merged: Vec::new(),
        cases,
    };
    drop(shown);
    let found = runner.diags.into_inner();
    diags.append(found.unwrap_or_else(PoisonError::into_inner));
    Ok(results)
}

/// Makes the directory of a run. What agents leave in it is for nobody but the caller: a program that
/// is marked to run as its owner would give all others what the caller may.
fn make_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(PRIVATE).create(dir)
}

/// Who runs the cases.
fn engine_of(request: &Request<'_>) -> &'static str {
    match request.harbor {
        Some(_) => engine::PROGRAM,
        None => "casepack",
    }
}

/// Hands the packages to Harbor.
fn by_harbor(
    request: &Request<'_>,
    args: &[String],
    agent: &str,
    dir: PathBuf,
    observer: &dyn Observer,
) -> Result<RunResults, Error> {
    let start = Start::of(request, agent);
    make_dir(&dir).map_err(|source| Error::Io {
        doing: "creating the run directory",
        path: dir.clone(),
        source,
    })?;
    let _held = start.begin(&dir)?;
    observer.on(Event::StageStarted {
        stage: Stage::Run,
        total: request.packages.len(),
    });
    let (mut cases, killed) = engine::run(request, args, &dir, observer)?;
    // As far as they are the caller's: what containers left belongs to their users.
    drop_set_ids(&dir, false).ok();
    let secrets = Secrets::of(request.env);
    for case in &mut cases {
        case.without(&secrets);
        for attempt in &mut case.attempts {
            attempt.without(&secrets);
        }
    }
    observer.on(Event::StageFinished { stage: Stage::Run });
    let told =
        "Harbor was killed before it could clean up: containers that it started may be left.";
    Ok(RunResults {
        run_id: request.run_id.to_owned(),
        dir,
        casepack_version: env!("CARGO_PKG_VERSION").to_owned(),
        dataset: DatasetRef {
            packages_digest: packages_digest(&cases),
            ..start.dataset
        },
        agent: start.agent,
        engine: engine_of(request).to_owned(),
        isolated: true,
        pass_at: request.pass_at,
        attempts: request.attempts,
        thresholds: thresholds::evaluate(request.thresholds, &cases),
        hooks: Vec::new(),
        warnings: killed.then(|| told.to_owned()).into_iter().collect(),
        interrupted: cases
            .iter()
            .any(|case| case.error == Some(ErrorKind::Interrupted)),
        other_shards: Vec::new(),
        merged: Vec::new(),
        cases,
    })
}

/// What is wrong with a run before any package is looked at (`packages` may be empty): all of it at
/// once, as findings. Nothing is written.
///
/// # Errors
/// When it can not be begun.
pub fn check(request: &Request<'_>, diags: &mut Diagnostics) -> Result<(), Error> {
    let agent = who(request, diags);
    if let (Some(model), Agent::Oracle | Agent::Nop) = (request.model, request.agent) {
        let message = format!("The model {model} is not asked: neither oracle nor nop has one.");
        let finding = Diagnostic::new(Rule::AgentOptionIgnored, message);
        diags.push(finding.help("Leave --model out, or name another --agent."));
    }
    if request.resume && request.harbor.is_none() {
        let name = agent.as_deref().ok();
        let dir = request.runs_dir.join(request.run_id);
        Start::of(request, name.unwrap_or_default()).is_that_in(&dir, name.is_some())?;
    }
    agent?;
    if request.harbor.is_none() && request.sandbox == SandboxMode::Bwrap {
        let _guard = request.keeper.then(Guard::start);
        find_sandbox(request, request.runs_dir).map_err(|reason| Error::Sandbox { reason })?;
    }
    Ok(())
}

/// Who works: the agent's name.
fn who(request: &Request<'_>, diags: &mut Diagnostics) -> Result<String, Error> {
    match request.harbor {
        Some(args) => check_harbor(request, args, diags),
        None => check_agent(request, diags),
    }
}

/// Who works, when Harbor is the engine.
fn check_harbor(
    request: &Request<'_>,
    args: &[String],
    diags: &mut Diagnostics,
) -> Result<String, Error> {
    let mut fine = true;
    let mut refused = |message: String, help: &str| {
        fine = false;
        diags.push(Diagnostic::new(Rule::Unsupported, message).help(help));
    };
    if find_program(engine::PROGRAM, request.env).is_none() {
        refused(
            "The program 'harbor' is not found in PATH.".to_owned(),
            "Install Harbor (a Python package of that name), or run without --engine harbor.",
        );
    }
    if request.resume {
        refused(
            "A run by Harbor can not be taken up again with --resume.".to_owned(),
            "Use `harbor job resume` on the jobs directory of the run.",
        );
    }
    let agent = if engine::names_agent(args) {
        Some(engine::PROGRAM)
    } else {
        engine::agent(request)
    };
    if agent.is_none() {
        refused(
            engine::no_agent(request),
            "Name one with --agent, or pass Harbor's own option through: -- -a NAME.",
        );
    }
    match agent {
        Some(agent) if fine => Ok(agent.to_owned()),
        _ => Err(Error::Refused),
    }
}

/// The dataset, when one agent is to work on all of its cases at once.
fn batch_of<'a>(request: &Request<'a>) -> Option<&'a Dataset> {
    let dataset = request.dataset?;
    (request.agent == Agent::Runner && dataset.mode == Mode::Batch).then_some(dataset)
}

/// What is to be known about a dataset before it is run.
fn tell_about(request: &Request<'_>, dataset: &Dataset, diags: &mut Diagnostics) {
    if !dataset.hooks.is_empty() && request.sandbox != SandboxMode::None {
        diags.push(
            Diagnostic::new(
                Rule::RunNotIsolated,
                "The dataset's hooks run as you, outside of the sandbox.",
            )
            .severity(Severity::Note)
            .field("hooks")
            .help("Nothing has to be done if you trust the dataset; its packages have no hooks."),
        );
    }
    for (judge, _) in dataset
        .verification
        .thresholds
        .iter()
        .filter(|(_, bounds)| bounds.min_win_rate.is_some())
    {
        diags.push(
            Diagnostic::new(
                Rule::Unsupported,
                format!(
                    "thresholds.{judge}.min_win_rate is not held: a run compares with no other."
                ),
            )
            .severity(Severity::Warning)
            .field(format!("thresholds.{judge}.min_win_rate"))
            .help("Use min_pass_rate or min_mean."),
        );
    }
}

/// Which of the caller's variables get to agents and verifiers, as packages and dataset ask for them:
/// packages alone are often those of others.
fn tell_of_variables(request: &Request<'_>, observer: &dyn Observer, diags: &mut Diagnostics) {
    const NAMED: usize = 20;
    let mut names = BTreeSet::new();
    let mut look = |value: &str, resolve: env::Resolve| {
        names.extend(env::asked(value, request.env, resolve).map(str::to_owned));
    };
    for package in request.packages {
        for value in package::references(&package.dir) {
            look(&value, env::of_package);
        }
    }
    if let (Agent::Runner, Some(execution)) = (request.agent, request.execution) {
        let own = execution.env.values().chain(execution.runner.env.values());
        own.for_each(|value| look(value, env::of_dataset));
    }
    if names.is_empty() {
        return;
    }
    let named: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    let mut named = named.join(", ");
    if names.len() > NAMED {
        named.extend([" and ", &(names.len() - NAMED).to_string(), " more"]);
    }
    let (who, severity) = match request.dataset {
        Some(_) => ("The dataset asks", Severity::Note),
        None => ("The packages ask", Severity::Warning),
    };
    let told = format!("{who} for variables of yours, and agents or verifiers get them: {named}.");
    // Findings come at the end, when there is nothing to be done about it any more.
    if severity == Severity::Warning && !diags.allows(Rule::CallersVariables) {
        observer.on(Event::Told { text: &told });
    }
    diags.push(
        Diagnostic::new(Rule::CallersVariables, told)
        .severity(severity)
        .help(
            "Nothing has to be done if whoever wrote it may have them; else take them out of the \
             environment that casepack is started in.",
        ),
    );
}

/// The hooks of the dataset; none for packages alone.
fn hooks<'a>(request: &'a Request<'a>, dir: &Path) -> Hooks<'a> {
    let mut env = request.env.clone();
    let mut all: &[_] = &[];
    if let Some(dataset) = request.dataset {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        all = &dataset.hooks;
        for (name, value) in [
            ("AGENT_EVAL_WORKSPACE", text(dir)),
            ("AGENT_EVAL_RUN_ID", request.run_id.to_owned()),
            ("AGENT_EVAL_CONFIG", text(&dataset.sources.config)),
            ("AGENT_EVAL_PROJECT_ROOT", text(request.project)),
            ("AGENT_EVAL_MODEL", model(request).unwrap_or_default()),
        ] {
            env.insert(name.to_owned(), value);
        }
    }
    Hooks {
        all,
        env,
        run_dir: dir.to_owned(),
        stop: request.stop,
    }
}

/// Runs the hooks of a phase that is about the whole run.
fn around_all(
    runner: &Runner<'_>,
    phase: Phase,
    scope: &str,
    done: &mut Vec<HookRun>,
) -> Result<Told, String> {
    if !runner.hooks.has(phase) {
        return Ok(Told::default());
    }
    let around = Around {
        cwd: runner.request.project,
        outputs: vec![runner.request.project, &runner.dir],
        logs: runner.dir.join("hooks"),
        told: Vec::new(),
        step: None,
        scope,
    };
    runner.hooks.run(phase, &around, done)
}

/// The digest that Harbor has for a dataset of these packages, when each of them is known.
fn packages_digest(cases: &[CaseResult]) -> Option<String> {
    let digests: Option<Vec<Digest>> = cases
        .iter()
        .map(|case| case.package_digest.as_ref()?.parse().ok())
        .collect();
    Some(harbor::dataset_digest(&digests?).to_string())
}

/// The result of a case that was left out because a hook before all of them failed.
fn not_run(package: &PackageRef, why: &str) -> CaseResult {
    let mut result = CaseResult::new(&package.id);
    result.status = Status::Skipped;
    result.error = Some(ErrorKind::Hook);
    result.message = Some(why.to_owned());
    result
}

/// The model that agents are told; oracle and nop ask none.
fn model(request: &Request<'_>) -> Option<String> {
    if request.agent != Agent::Runner {
        return None;
    }
    let own = || {
        request
            .execution
            .and_then(|execution| execution.model.clone())
    };
    request.model.map(str::to_owned).or_else(own)
}

/// One attempt at one case.
#[derive(Clone, Copy)]
struct Unit {
    package: usize,
    /// From 1.
    attempt: u32,
}

/// Runs every case on some threads. A thread lives until its cases are done, and so until every
/// child that it started has ended.
fn all_cases(runner: &Runner<'_>, observer: &dyn Observer) -> Vec<CaseResult> {
    let packages = runner.request.packages;
    let attempts = runner.request.attempts.max(1);
    let units: Vec<Unit> = (0..packages.len())
        .flat_map(|package| (1..=attempts).map(move |attempt| Unit { package, attempt }))
        .collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Vec<(u32, CaseResult)>>> = Mutex::new(vec![Vec::new(); packages.len()]);
    let work = || {
        loop {
            let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let Some(package) = packages.get(unit.package) else {
                return;
            };
            if runner.request.stop.load(Ordering::Relaxed) {
                continue;
            }
            observer.on(Event::CaseStarted { case: &package.id });
            let result = attempt(runner, package, unit.attempt);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(place) = done.get_mut(unit.package) else {
                return;
            };
            place.push((unit.attempt, result));
            if place.len() < usize::try_from(attempts).unwrap_or(usize::MAX) {
                continue;
            }
            let result = together(runner, package, place);
            drop(done);
            observer.on(Event::CaseRun {
                case: &package.id,
                status: result.status.name(),
                reward: result.reward,
                duration: result.duration,
            });
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..runner.request.jobs.clamp(1, units.len().clamp(1, 256)) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let of = |(results, package): (&mut Vec<(u32, CaseResult)>, &PackageRef)| {
        let all = usize::try_from(attempts).unwrap_or(usize::MAX);
        if results.len() < all {
            let mut result = CaseResult::new(&package.id);
            result.status = Status::Skipped;
            result.error = Some(ErrorKind::Interrupted);
            result.message = Some("The run was stopped before this case was done.".to_owned());
            result.attempts = results.drain(..).map(|(_, result)| result).collect();
            return result;
        }
        let result = results.pop().map(|(_, result)| result);
        result.unwrap_or_else(|| CaseResult::new(&package.id))
    };
    done.iter_mut().zip(packages).map(of).collect()
}

/// Makes one result of all attempts at a case, in place.
fn together(
    runner: &Runner<'_>,
    package: &PackageRef,
    attempts: &mut [(u32, CaseResult)],
) -> CaseResult {
    if runner.request.attempts <= 1 {
        // There is exactly one.
        return attempts.first().map_or_else(
            || CaseResult::new(&package.id),
            |(_, result)| result.clone(),
        );
    }
    attempts.sort_by_key(|(attempt, _)| *attempt);
    let results = attempts.iter().map(|(_, result)| result.clone()).collect();
    let mut result = CaseResult::of_attempts(&package.id, results);
    let dir = runner.dir.join(package.id.as_str());
    if dir.is_dir() {
        write_result(&dir, &mut result);
    }
    // Every attempt is in it; the last place stands for all.
    if let Some((_, last)) = attempts.last_mut() {
        last.clone_from(&result);
    }
    result
}

/// One attempt at a case: taken over from the run that is taken up again, or made, again where
/// there is no verdict and that may be tried.
fn attempt(runner: &Runner<'_>, package: &PackageRef, attempt: u32) -> CaseResult {
    let dir = runner.place(package.id.as_str(), attempt);
    // What one agent did for all cases anew is judged anew.
    let same = runner
        .batch_of(attempt)
        .is_none_or(|batch| batch.as_ref().is_ok_and(|batch| batch.resumed));
    if runner.request.resume
        && same
        && let Some(result) = resume::kept(&dir, package)
    {
        return result;
    }
    let mut retried: Vec<Retried> = Vec::new();
    loop {
        let run = || {
            resume::clear(&dir)?;
            Ok::<_, crate::fs::FsError>(runner.case(package, attempt, &dir))
        };
        let failed = |error, message: String| {
            let mut result = CaseResult::new(&package.id);
            result.error = Some(error);
            result.message = Some(message);
            result
        };
        let mut result = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                let message = format!("Clearing the case's directory failed: {}.", error.source);
                failed(ErrorKind::Io, message)
            }
            Err(_) => {
                let message = "This is a bug in casepack: please report it.".to_owned();
                failed(ErrorKind::Internal, message)
            }
        };
        let tries = u32::try_from(retried.len()).unwrap_or(u32::MAX);
        match result.error {
            Some(error) if error.may_pass() && tries < runner.request.retries => {
                retried.push(Retried {
                    error,
                    message: result.message.take(),
                });
            }
            _ => {
                if !retried.is_empty() {
                    result.retried = retried;
                    if dir.is_dir() {
                        write_result(&dir, &mut result);
                    }
                }
                return result;
            }
        }
    }
}

/// Whether a run of that name can be begun, or taken up again: what can be told before anything is
/// built. Nothing is written.
///
/// # Errors
/// A name that is none, a run that is there already, or one to take up again that is not.
pub fn check_place(runs_dir: &Path, run_id: &str, resume: bool) -> Result<(), Error> {
    check_id(run_id)?;
    check_runs_dir(runs_dir)?;
    let path = runs_dir.join(run_id);
    let there = path.symlink_metadata().is_ok();
    let reason = match (resume, there) {
        (false, false) => return Ok(()),
        (false, true) => return Err(Error::Exists { path }),
        // What is removed and written is in the directory of runs.
        (true, true) if path.is_symlink() => {
            "it is a link: name the directory that it leads to".to_owned()
        }
        (true, true) if path.join(resume::NAME).is_file() => return Ok(()),
        (true, true) => "it has no run.json".to_owned(),
        (true, false) => "it does not exist".to_owned(),
    };
    Err(Error::Resume { path, reason })
}

/// Whether runs can be kept in `runs_dir`.
///
/// # Errors
/// It is a link.
pub fn check_runs_dir(runs_dir: &Path) -> Result<(), Error> {
    let path = runs_dir.to_owned();
    (!runs_dir.is_symlink())
        .then_some(())
        .ok_or(Error::Linked { path })
}

fn check_id(id: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let fine =
        id.bytes().all(plain) && !id.starts_with(['.', '-']) && (1..=128).contains(&id.len());
    let id = id.to_owned();
    fine.then_some(()).ok_or(Error::RunId { id })
}

/// The agent's name; tells of everybody who is to work and can't.
fn check_agent(request: &Request<'_>, diags: &mut Diagnostics) -> Result<String, Error> {
    let execution = match (request.agent, request.execution) {
        (Agent::Oracle, _) => return Ok("oracle".to_owned()),
        (Agent::Nop, _) => return Ok("nop".to_owned()),
        (Agent::Runner, execution) => execution,
    };
    let mut refused = |place: &str, message: String, help: &str| {
        let finding = Diagnostic::new(Rule::Unsupported, message).field(place);
        diags.push(finding.help(help));
    };
    let mut fine = true;
    let mut look = |runner: &dataset::Runner, place: &str| {
        let (field, message, help) = match Worker::of(runner) {
            Ok(Worker::Known(known)) if find_program(known.program(), request.env).is_none() => (
                format!("{place}.type"),
                format!(
                    "The program '{}' of the agent {} is not found in PATH.",
                    known.program(),
                    known.name()
                ),
                "Install it, or run with --agent oracle or --agent nop.",
            ),
            Ok(Worker::Cli(command)) => match worker::missing(command, runner, request) {
                Some(program) => (
                    format!("{place}.command"),
                    format!("The program '{program}' of the agent's command is not found in PATH."),
                    "Install it, name it by its path in the project, or run with --agent oracle or \
                     --agent nop.",
                ),
                None => return,
            },
            Ok(_) => return,
            Err(message) => (place.to_owned(), message, NAME_AN_AGENT),
        };
        fine = false;
        refused(&field, message, help);
    };
    let Some(execution) = execution else {
        let message = "Packages do not say which agent is to run them.".to_owned();
        refused("runner", message, NAME_AN_AGENT);
        return Err(Error::Refused);
    };
    look(&execution.runner, "runner");
    // All cases have the same steps; what is wrong with the case is told when it is built.
    let first = request.dataset.filter(|_| request.step_runners);
    let first = first.and_then(|dataset| {
        let first = dataset.cases.first()?;
        dataset.read_case(first, &mut Diagnostics::default())
    });
    for (index, step) in first.iter().flat_map(|case| case.steps.iter().enumerate()) {
        if let Some(runner) = &step.runner {
            look(runner, &format!("execution.steps[{index}].runner"));
        }
    }
    if fine {
        Ok(execution.runner.kind.clone())
    } else {
        Err(Error::Refused)
    }
}

fn not_isolated(reason: &str) -> Diagnostic {
    Diagnostic::new(
        Rule::RunNotIsolated,
        format!(
            "Agents and verifiers run without a sandbox ({reason}): they can read this machine, the \
             dataset and the answer keys, and network_mode is not kept."
        ),
    )
    .help("Install bubblewrap (bwrap) and allow it to make namespaces here, or trust the agent.")
}

fn find_sandbox(request: &Request<'_>, runs_dir: &Path) -> Result<Sandbox, String> {
    if request.sandbox == SandboxMode::None {
        return Err("as asked for".to_owned());
    }
    let mut hidden = vec![runs_dir.to_owned()];
    // Packages alone have no project: it is where casepack was started, which may be `/`.
    hidden.extend(request.dataset.map(|_| request.project.to_owned()));
    hidden.extend(request.packages.iter().map(|package| package.dir.clone()));
    if let Some(dataset) = request.dataset {
        hidden.extend(dataset_dir(dataset));
        hidden.extend(dataset.sources.config.parent().map(Path::to_owned));
    }
    // Packages of one build lie in one directory: one is enough.
    hidden.sort();
    hidden.dedup_by(|inner, outer| inner.starts_with(outer));
    Sandbox::find(request.env, &hidden)
}

fn dataset_dir(dataset: &Dataset) -> Option<PathBuf> {
    let root = dataset.sources.roots.get(dataset.sources.dataset_root)?;
    Some(root.path().to_owned())
}

fn project(request: &Request<'_>, runs_dir: &Path, sandboxed: bool) -> Project {
    let canonical = |path: &Path| path.canonicalize().ok();
    let mut guarded = vec![runs_dir.to_owned()];
    guarded.extend(
        request
            .packages
            .iter()
            .filter_map(|package| canonical(&package.dir)),
    );
    let mut roots = Vec::new();
    if let Some(dataset) = request.dataset {
        let sources = &dataset.sources;
        roots.extend(sources.config.parent().and_then(canonical));
        guarded.extend(sources.guarded.iter().filter_map(|(root, path)| {
            let root = sources.roots.get(*root)?;
            // The dataset directory itself is known apart.
            let whole = path.is_none() && Some(root.path()) == dataset_dir(dataset).as_deref();
            (!whole).then(|| root.absolute(path.as_ref()))
        }));
    }
    roots.extend(canonical(request.project));
    roots.dedup();
    Project {
        roots,
        dataset: request.dataset.and_then(dataset_dir),
        guarded,
        sandboxed,
    }
}

#[cfg(test)]
mod tests;
