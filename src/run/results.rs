//! What came out of a run, as `results.json` says it (`casepack.results.v1`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::path::CaseId;

/// What came out of a run.
#[derive(Debug, Clone)]
pub struct RunResults {
    /// The run's name.
    pub run_id: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Of which dataset.
    pub dataset: DatasetRef,
    /// The agent's name: `oracle`, `nop`, or `runner.type`.
    pub agent: String,
    /// The model it was told.
    pub model: Option<String>,
    /// Whether agents and verifiers ran in a sandbox.
    pub isolated: bool,
    /// The reward that passes a case.
    pub pass_at: f64,
    /// Files and directories of the project that the agent was shown, as absolute paths.
    pub agent_files: Vec<String>,
    /// What is to be known about the whole run: that it was not isolated, and why.
    pub warnings: Vec<String>,
    /// Whether it was stopped before all cases had a verdict.
    pub interrupted: bool,
    /// One for each package, in the order of the request.
    pub cases: Vec<CaseResult>,
}

/// A dataset, by name and content.
#[derive(Debug, Clone, Serialize)]
pub struct DatasetRef {
    /// Its name.
    pub name: String,
    /// `sha256:…`, when known.
    pub digest: Option<String>,
}

/// The verdict on a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The reward is high enough.
    Passed,
    /// It is not.
    Failed,
    /// There is no verdict.
    Error,
    /// The case was not run, or not to its end.
    Skipped,
}

impl Status {
    /// The word in results and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Error => "error",
            Self::Skipped => "skipped",
        }
    }
}

/// Why a case has no verdict, in a word that scripts can rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The package can not be used.
    Package,
    /// The agent did not start.
    AgentStart,
    /// `test.sh` did not start.
    VerifierStart,
    /// `test.sh` did not end in time.
    VerifierTimeout,
    /// `test.sh` left no reward file.
    RewardMissing,
    /// The reward file is empty.
    RewardEmpty,
    /// The reward file does not hold finite numbers.
    RewardInvalid,
    /// The rewards have no key `reward`.
    RewardUnnamed,
    /// Nothing judged the case.
    Unjudged,
    /// The disk failed.
    Io,
    /// The run was stopped.
    Interrupted,
    /// A bug in casepack.
    Internal,
}

/// What came out of a case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseResult {
    /// Which one.
    #[serde(serialize_with = "as_text")]
    pub id: CaseId,
    /// The verdict.
    pub status: Status,
    /// The value of `reward`.
    pub reward: Option<f64>,
    /// All that the verifier gave.
    pub rewards: BTreeMap<String, f64>,
    /// From the start of the case to its verdict.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
    /// The digest that Harbor computes for the package.
    pub package_digest: Option<String>,
    /// What is to be said about the verdict, in sentences.
    pub message: Option<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorKind>,
    /// The agent's part; of a case with steps, that of the last one that ran.
    pub agent: Option<AgentRun>,
    /// The verifier's part; of a case with steps, that of the last one that ran.
    pub verifier: Option<VerifierRun>,
    /// The steps of a case that has some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepResult>,
    /// What casepack's own judges said; of a case with steps, after the last one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub judges: Vec<JudgeResult>,
    /// The declared outputs that were collected.
    pub outputs: Outputs,
}

/// What one judge said. The texts come from the package and are to be escaped where shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgeResult {
    /// Its name.
    pub name: String,
    /// A boolean or a number; none when it was skipped or failed.
    pub value: Option<serde_json::Value>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rationale: Option<String>,
    /// Why it has no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its condition left it out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

/// What an agent did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AgentRun {
    /// `None`: it was ended by a signal, or there was nobody.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it was ended because its time was up.
    pub timed_out: bool,
    /// How long it worked.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
    /// Bytes of output beyond what is kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub output_dropped: u64,
}

/// What `test.sh` did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct VerifierRun {
    /// Never decides anything (Harbor's rule).
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it was ended because its time was up.
    pub timed_out: bool,
    /// How long it took.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
}

/// What came out of one step.
#[derive(Debug, Clone, Serialize)]
pub struct StepResult {
    /// Its name.
    pub name: String,
    /// The value of `reward`.
    pub reward: Option<f64>,
    /// All that the verifier gave.
    pub rewards: BTreeMap<String, f64>,
    /// What is to be said about it.
    pub message: Option<String>,
    /// The agent's part.
    pub agent: Option<AgentRun>,
    /// The verifier's part.
    pub verifier: Option<VerifierRun>,
    /// What casepack's own judges said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub judges: Vec<JudgeResult>,
}

/// The declared outputs of a case, below `outputs/` of its run directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outputs {
    /// What was collected, sorted by path.
    pub files: Vec<OutputFile>,
    /// What was not, with the reason.
    pub skipped: Vec<OutputSkipped>,
}

/// A file that was collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutputFile {
    /// Below the workspace.
    pub path: String,
    /// Bytes.
    pub size: u64,
}

/// Something that was not collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutputSkipped {
    /// Below the workspace.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// The numbers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[expect(
    missing_docs,
    reason = "the fields are those of results.json, by their names"
)]
pub struct Summary {
    pub total: usize,
    pub passed: usize,
    pub failed: usize,
    pub errors: usize,
    pub skipped: usize,
    /// Over the cases that have a reward.
    pub mean_reward: Option<f64>,
}

impl RunResults {
    /// The numbers.
    pub fn summary(&self) -> Summary {
        let count = |status| {
            self.cases
                .iter()
                .filter(|case| case.status == status)
                .count()
        };
        let rewards: Vec<f64> = self.cases.iter().filter_map(|case| case.reward).collect();
        #[expect(clippy::cast_precision_loss, reason = "a count of cases")]
        let mean_reward =
            (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64);
        Summary {
            total: self.cases.len(),
            passed: count(Status::Passed),
            failed: count(Status::Failed),
            errors: count(Status::Error),
            skipped: count(Status::Skipped),
            mean_reward,
        }
    }

    /// Whether there is nothing to complain about: every case passed, none was skipped.
    pub fn all_passed(&self) -> bool {
        self.cases.iter().all(|case| case.status == Status::Passed)
    }
}

impl CaseResult {
    /// A case of which nothing is known yet.
    pub(crate) fn new(id: &CaseId) -> Self {
        Self {
            id: id.clone(),
            status: Status::Error,
            reward: None,
            rewards: BTreeMap::new(),
            duration: Duration::ZERO,
            package_digest: None,
            message: None,
            error: None,
            agent: None,
            verifier: None,
            steps: Vec::new(),
            judges: Vec::new(),
            outputs: Outputs::default(),
        }
    }
}

impl StepResult {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            reward: None,
            rewards: BTreeMap::new(),
            message: None,
            agent: None,
            verifier: None,
            judges: Vec::new(),
        }
    }

    pub(super) fn add_message(&mut self, told: &str) {
        match &mut self.message {
            Some(message) => message.extend([" ", told]),
            none => *none = Some(told.to_owned()),
        }
    }
}

/// JSON with a final newline. What is written here has only text keys, so it can be written.
pub(super) fn to_text(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

fn as_text<S: Serializer>(id: &CaseId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run")]
    let seconds = duration.as_millis() as f64 / 1000.0;
    serializer.serialize_f64(seconds)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
