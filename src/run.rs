//! Local runs: every case of a build, on its own package, on this machine.
//!
//! Owns processes, the sandbox, the verifier and what came out of a case. Refuses to know the
//! command line and how results are shown (`report`), and reads nothing of a dataset but what a
//! package can not carry: the agent's command, its environment and the fields of the input.
//! Invariant: what an agent left behind is hostile; it is read through handles only (policy 20).

mod agent;
mod case;
mod collect;
mod env;
mod overlay;
mod package;
mod process;
mod results;
mod sandbox;
mod verdict;
mod verifier;
mod worker;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use self::agent::Project;
use self::case::Runner;
pub use self::results::{
    AgentRun, CaseResult, DatasetRef, ErrorKind, JudgeResult, OutputFile, OutputSkipped, Outputs,
    RunResults, Status, StepResult, Summary, VerifierRun,
};
use self::sandbox::Sandbox;
use crate::dataset::{Dataset, Mode, OUTPUT_MARK, Runner as RunnerBlock, RunnerCommand};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::digest::Digest;
use crate::event::{Event, Observer, Stage};
use crate::path::CaseId;

/// One built package: a Harbor task directory.
#[derive(Debug, Clone)]
pub struct PackageRef {
    /// The case that it was made from.
    pub id: CaseId,
    /// Where it lies (`dist/harbor/<name>`).
    pub dir: PathBuf,
}

/// Who works on the cases (`--agent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// The dataset's `runner` block.
    Config,
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

/// What is to be run.
pub struct Request<'a> {
    /// The dataset that the packages were built from. Without it only [`Agent::Oracle`] and
    /// [`Agent::Nop`] can work.
    pub dataset: Option<&'a Dataset>,
    /// The dataset's name, for the results.
    pub dataset_name: &'a str,
    /// The dataset's digest (bundle-format, "Digests"), for the results.
    pub dataset_digest: Option<Digest>,
    /// The packages, in the order of the results.
    pub packages: &'a [PackageRef],
    /// Where runs are kept (`--runs-dir`); created when missing.
    pub runs_dir: &'a Path,
    /// Name of this run's directory there; must not exist yet.
    pub run_id: &'a str,
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
    /// The caller's environment: `$NAME` and `${NAME}` are looked up here.
    pub env: &'a BTreeMap<String, String>,
    /// A case with at least this reward has passed; [`PASS_AT`] by default.
    pub pass_at: f64,
    /// Over every other agent timeout.
    pub agent_timeout: Option<Duration>,
    /// Set by the signal handler: children are ended and what is known is returned.
    pub stop: &'a AtomicBool,
}

/// The reward that passes a case unless `--pass-at` says otherwise: all of it.
pub const PASS_AT: f64 = 1.0;

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
    check_id(request.run_id)?;
    let agent = check_agent(request, diags)?;
    let io = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io {
            doing,
            path,
            source,
        }
    };
    if request.runs_dir.is_symlink() {
        let why = std::io::Error::other("it is a link: name the directory that it leads to");
        return Err(io("using the directory of runs", request.runs_dir)(why));
    }
    // The mark says that it is no case, where the dataset is where casepack is started.
    std::fs::create_dir_all(request.runs_dir.join(OUTPUT_MARK))
        .map_err(io("creating the directory of runs", request.runs_dir))?;
    let runs_dir = request.runs_dir.canonicalize();
    let runs_dir = runs_dir.map_err(io("opening the directory of runs", request.runs_dir))?;
    let dir = runs_dir.join(request.run_id);
    if dir.symlink_metadata().is_ok() {
        return Err(Error::Exists { path: dir });
    }
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
    if request
        .dataset
        .is_some_and(|dataset| dataset.mode == Mode::Batch)
    {
        let told = "execution.mode is batch, but each case is run by itself, in its own workspace \
                    with a batch.yaml of one entry, as Harbor does.";
        diags.push(
            Diagnostic::new(Rule::Unsupported, told)
                .severity(Severity::Note)
                .field("execution.mode")
                .help(
                    "Nothing has to be done; a run of all cases in one workspace is not made yet.",
                ),
        );
    }
    match std::fs::create_dir(&dir) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(Error::Exists { path: dir });
        }
        Err(error) => return Err(io("creating the run directory", &dir)(error)),
    }
    let runner = Runner {
        request,
        project: project(request, &runs_dir, sandbox.is_some()),
        sandbox,
        dir,
        diags: Mutex::new(diags.fork()),
        shown: Mutex::default(),
    };
    observer.on(Event::StageStarted {
        stage: Stage::Run,
        total: request.packages.len(),
    });
    let cases = all_cases(&runner, observer);
    observer.on(Event::StageFinished { stage: Stage::Run });
    let interrupted = cases
        .iter()
        .any(|case| case.error == Some(ErrorKind::Interrupted));
    let shown = runner.shown.lock().unwrap_or_else(PoisonError::into_inner);
    let results = RunResults {
        run_id: request.run_id.to_owned(),
        dir: runner.dir.clone(),
        dataset: DatasetRef {
            name: request.dataset_name.to_owned(),
            digest: request.dataset_digest.map(|digest| digest.to_string()),
        },
        agent,
        model: runner.model(),
        isolated: runner.sandbox.is_some(),
        pass_at: request.pass_at,
        agent_files: shown
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect(),
        warnings,
        interrupted,
        cases,
    };
    drop(shown);
    let found = runner.diags.into_inner();
    diags.append(found.unwrap_or_else(PoisonError::into_inner));
    Ok(results)
}

/// Runs every case on some threads. A thread lives until its cases are done, and so until every
/// child that it started has ended.
fn all_cases(runner: &Runner<'_>, observer: &dyn Observer) -> Vec<CaseResult> {
    let packages = runner.request.packages;
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<CaseResult>>> = Mutex::new(vec![None; packages.len()]);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(package) = packages.get(index) else {
                return;
            };
            if runner.request.stop.load(Ordering::Relaxed) {
                continue;
            }
            observer.on(Event::CaseStarted { case: &package.id });
            let run = || runner.case(package);
            let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
                let mut result = CaseResult::new(&package.id);
                result.error = Some(ErrorKind::Internal);
                result.message = Some("This is a bug in casepack: please report it.".to_owned());
                result
            });
            observer.on(Event::CaseRun {
                case: &package.id,
                status: result.status.name(),
                reward: result.reward,
                duration: result.duration,
            });
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = done.get_mut(index) {
                *place = Some(result);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..runner.request.jobs.clamp(1, packages.len().clamp(1, 256)) {
            scope.spawn(work);
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter()
        .zip(packages)
        .map(|(result, package)| {
            result.unwrap_or_else(|| {
                let mut result = CaseResult::new(&package.id);
                result.status = Status::Skipped;
                result.error = Some(ErrorKind::Interrupted);
                result.message = Some("The run was stopped before this case started.".to_owned());
                result
            })
        })
        .collect()
}

fn check_id(id: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let fine =
        id.bytes().all(plain) && !id.starts_with(['.', '-']) && (1..=128).contains(&id.len());
    let id = id.to_owned();
    fine.then_some(()).ok_or(Error::RunId { id })
}

/// The agent's name; refuses what can't be run at all before anything is written.
fn check_agent(request: &Request<'_>, diags: &mut Diagnostics) -> Result<String, Error> {
    let refused = |diags: &mut Diagnostics, message: String| {
        let help = "Use runner.type: cli with a runner.command, or run with --agent oracle (the \
                    package's own solution) or --agent nop (nobody).";
        diags.push(
            Diagnostic::new(Rule::Unsupported, message)
                .field("runner")
                .help(help),
        );
        Err(Error::Refused)
    };
    match (request.agent, request.dataset) {
        (Agent::Oracle, _) => Ok("oracle".to_owned()),
        (Agent::Nop, _) => Ok("nop".to_owned()),
        (Agent::Config, None) => refused(
            diags,
            "Packages do not say which agent is to run them.".to_owned(),
        ),
        (Agent::Config, Some(dataset)) => match cli_command(&dataset.execution.runner) {
            Ok(_) => Ok(dataset.execution.runner.kind.clone()),
            Err(message) => refused(diags, message),
        },
    }
}

/// The command of a runner, when it is of the kind that can be run.
fn cli_command(runner: &RunnerBlock) -> Result<&RunnerCommand, String> {
    match (runner.kind.as_str(), &runner.command) {
        ("cli", Some(command)) => Ok(command),
        ("cli", None) => Err("runner.type is cli, and runner.command is missing.".to_owned()),
        ("", _) => Err("The dataset names no runner.type.".to_owned()),
        (kind, _) => Err(format!(
            "casepack can not run agents of runner.type '{kind}' yet: it knows cli, oracle and nop."
        )),
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
    let mut hidden = vec![request.project.to_owned(), runs_dir.to_owned()];
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
