//! Local runs: every case of a build, on its own package, on this machine.
//!
//! Owns processes, the sandbox, the verifier and what came out of a case. Refuses to know the
//! command line and how results are shown (`report`), and reads nothing of a dataset but what a
//! package can not carry: the agent's command, its environment and the fields of the input.
//! Invariant: what an agent left behind is hostile; it is read through handles only (policy 20).

mod results;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use self::results::{
    AgentRun, CaseResult, DatasetRef, ErrorKind, OutputFile, OutputSkipped, Outputs, RunResults,
    Status, StepResult, Summary, VerifierRun,
};
use crate::dataset::Dataset;
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::event::Observer;
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
    let _ = (request, observer, diags);
    Err(Error::Refused)
}
