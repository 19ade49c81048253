//! What came out of a run, as `results.json` says it (`casepack.results.v1`).
//!
//! Owns the model: it is written and read back (by `--resume`, and by reports). Refuses to know
//! how results come about.
//! Invariant: every field but those of the first version may be missing in a document.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::env::Secrets;
use super::thresholds;
use crate::bundle;
use crate::diag::count;
use crate::digest::TreeId;
use crate::path::CaseId;

/// What came out of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunResults {
    /// The run's name.
    pub run_id: String,
    /// Its directory; not part of the document.
    #[serde(skip)]
    pub dir: PathBuf,
    /// The version that ran it.
    pub casepack_version: String,
    /// Of which dataset.
    pub dataset: DatasetRef,
    /// Who worked.
    pub agent: AgentRef,
    /// What ran the packages: `casepack`, or `harbor` (`--engine`).
    #[serde(default = "own_engine")]
    pub engine: String,
    /// Whether agents and verifiers ran in a sandbox.
    pub isolated: bool,
    /// What is to be known about the whole run: that it was not isolated, and why.
    pub warnings: Vec<String>,
    /// Whether it was stopped before all cases had a verdict.
    pub interrupted: bool,
    /// The reward that passes a case.
    pub pass_at: f64,
    /// How often each case was run.
    #[serde(default = "one")]
    pub attempts: u32,
    /// What the dataset's `thresholds` say; they decide when there are any.
    #[serde(default)]
    pub thresholds: Vec<ThresholdResult>,
    /// Hooks around all cases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookRun>,
    /// Cases that `--shard` left to other runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_shards: Vec<String>,
    /// The runs whose results were put together here (`casepack report`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<String>,
    /// One for each package, in the order of the request.
    pub cases: Vec<CaseResult>,
}

/// A dataset, by name and content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetRef {
    /// Its name.
    pub name: String,
    /// `sha256:…`, when known.
    pub digest: Option<String>,
    /// The digest that Harbor has for a dataset of the packages that were run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages_digest: Option<String>,
}

/// Who worked on the cases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRef {
    /// `oracle`, `nop`, or the `runner.type`.
    pub name: String,
    /// The model it was told.
    pub model: Option<String>,
    /// Files and directories of the project that it was shown, as absolute paths.
    #[serde(default)]
    pub files: Vec<String>,
}

/// One bound of `thresholds.<judge>`, and what was reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThresholdResult {
    /// The judge.
    pub judge: String,
    /// `min_pass_rate`, `min_mean` or `max_error_rate`.
    pub rule: String,
    /// The bound.
    pub limit: f64,
    /// What was reached; `None`: the judge gave nothing that it could be computed from.
    pub value: Option<f64>,
    /// Whether the bound is kept.
    pub met: bool,
}

/// A hook that was run, or left out by its condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookRun {
    /// `before_each` and its like.
    pub phase: String,
    /// The step around which it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Its description, or the beginning of its command.
    pub what: String,
    /// Whether its condition left it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// `None`: it was ended by a signal, or did not run.
    pub exit_code: Option<i32>,
    /// Whether it was ended because its time was up.
    #[serde(default)]
    pub timed_out: bool,
    /// How long it took.
    #[serde(rename = "duration_s", with = "as_seconds")]
    pub duration: Duration,
    /// Its output, relative to the run's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// The verdict on a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The package can not be used.
    Package,
    /// The agent did not start.
    AgentStart,
    /// A hook of the dataset failed.
    Hook,
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
    /// Harbor, as the engine, failed or left the package out.
    Engine,
    /// The disk failed.
    Io,
    /// The run was stopped.
    Interrupted,
    /// A bug in casepack.
    Internal,
}

impl ErrorKind {
    /// Whether another try may end otherwise.
    pub(super) fn may_pass(self) -> bool {
        !matches!(
            self,
            Self::Package | Self::Unjudged | Self::Interrupted | Self::Internal
        )
    }
}

/// What came out of a case. With several attempts this is what they come to: `passed` when all of
/// them passed, the mean of the rewards; the rest is the last attempt's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseResult {
    /// Which one.
    #[serde(with = "as_text")]
    pub id: CaseId,
    /// The verdict.
    pub status: Status,
    /// The value of `reward`.
    pub reward: Option<f64>,
    /// All that the verifier gave.
    pub rewards: BTreeMap<String, f64>,
    /// From the start of the case to its verdict.
    #[serde(rename = "duration_s", with = "as_seconds")]
    pub duration: Duration,
    /// When it began, counted from the start of the run.
    #[serde(
        rename = "started_s",
        default,
        with = "as_maybe_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub started: Option<Duration>,
    /// The digest that Harbor computes for the package.
    pub package_digest: Option<String>,
    /// The digests of both views of a case of a shard: over all cases they make the dataset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub views: Option<ViewDigests>,
    /// What is to be said about the verdict, in sentences.
    pub message: Option<String>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorKind>,
    /// The agent's part; of a case with steps, that of the last one that ran.
    pub agent: Option<AgentRun>,
    /// The verifier's part; of a case with steps, that of the last one that ran.
    pub verifier: Option<VerifierRun>,
    /// The steps of a case that has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepResult>,
    /// What casepack's own judges said; of a case with steps, after the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judges: Vec<JudgeResult>,
    /// Hooks around this case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookRun>,
    /// The declared outputs that were collected.
    #[serde(default)]
    pub outputs: Outputs,
    /// Earlier tries that ended without a verdict (`--retries`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retried: Vec<Retried>,
    /// The attempts, when there were several (`--attempts`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Self>,
    /// Where its files are, relative to the run's directory, when that is not its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Whether it was taken over from an earlier run (`--resume`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumed: bool,
}

/// The identity of a case, as the dataset's digest has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewDigests {
    /// `sha256:…` of what the agent sees.
    pub workspace: String,
    /// `sha256:…` of what it is judged by.
    pub evaluation: String,
}

/// A try that ended without a verdict and was made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// Why there was no verdict.
    pub error: ErrorKind,
    /// The same, in sentences.
    pub message: Option<String>,
}

/// What one judge said. The texts come from the package and are to be escaped where shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgeResult {
    /// Its name.
    pub name: String,
    /// A boolean or a number; none when it was skipped or failed.
    pub value: Option<serde_json::Value>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rationale: Option<String>,
    /// Why it has no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its condition left it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

/// What an agent did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentRun {
    /// `None`: it was ended by a signal, or there was nobody.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it was ended because its time was up.
    pub timed_out: bool,
    /// How long it worked.
    #[serde(rename = "duration_s", with = "as_seconds")]
    pub duration: Duration,
    /// Bytes of output beyond what is kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_dropped: u64,
    /// What it says that it cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Turns of the model, as it counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_turns: Option<u64>,
    /// Tokens, as it counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_usage: Option<Tokens>,
    /// Whether this is the work of one agent on all cases together (`mode: batch`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// Tokens that an agent says it used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the fields are those of the harness's run_result.json, by their names"
)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_create: u64,
}

/// What `test.sh` did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifierRun {
    /// Never decides anything (Harbor's rule).
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it was ended because its time was up.
    pub timed_out: bool,
    /// How long it took.
    #[serde(rename = "duration_s", with = "as_seconds")]
    pub duration: Duration,
}

/// What came out of one step.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judges: Vec<JudgeResult>,
}

/// The declared outputs of a case, below `outputs/` of its run directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outputs {
    /// What was collected, sorted by path.
    pub files: Vec<OutputFile>,
    /// What was not, with the reason.
    pub skipped: Vec<OutputSkipped>,
}

/// A file that was collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Below the workspace.
    pub path: String,
    /// Bytes.
    pub size: u64,
}

/// Something that was not collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputSkipped {
    /// Below the workspace.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// The numbers of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// Over the cases that have a reward; those without a verdict are left out.
    pub mean_reward: Option<f64>,
    /// Over all attempts that were made; one without a verdict counts as 0, as in Harbor.
    #[serde(default)]
    pub mean_reward_errors_as_zero: Option<f64>,
    /// What the agents say that all of it cost, in US dollars; missing where none says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The same for tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_usage: Option<Tokens>,
    /// By k: the chance that of k attempts at a case one passes, where one without a verdict has not
    /// passed, over the cases of which as many were made (Chen et al. 2021, the unbiased estimator). Only with several attempts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_at_k: BTreeMap<u32, f64>,
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
        let attempts = self.cases.iter().flat_map(CaseResult::each_attempt);
        let made = attempts.filter(|attempt| attempt.status != Status::Skipped);
        let counted: Vec<f64> = made.map(|it| it.reward.unwrap_or(0.0)).collect();
        let agents = self.agents();
        Summary {
            total: self.cases.len(),
            passed: count(Status::Passed),
            failed: count(Status::Failed),
            errors: count(Status::Error),
            skipped: count(Status::Skipped),
            mean_reward: mean(&rewards),
            mean_reward_errors_as_zero: mean(&counted),
            cost_usd: agents
                .iter()
                .filter_map(|agent| agent.cost_usd)
                // Agents say what they like; the sum of two such numbers need not be one.
                .reduce(|a, b| (a + b).min(f64::MAX)),
            token_usage: agents
                .iter()
                .filter_map(|agent| agent.token_usage)
                .reduce(Tokens::and),
            pass_at_k: self.pass_at_k(),
        }
    }

    /// All that agents did; what one did for all cases together is there once.
    fn agents(&self) -> Vec<&AgentRun> {
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for case in &self.cases {
            for (attempt, result) in case.each_attempt().iter().enumerate() {
                // Two that are alike in everything are one.
                let new = result
                    .agents()
                    .filter(|agent| !agent.shared || seen.insert((attempt, format!("{agent:?}"))));
                all.extend(new);
            }
        }
        all
    }

    /// The same run with other cases: what is computed from all of them is computed anew.
    #[must_use]
    pub fn with_cases(mut self, cases: Vec<CaseResult>) -> Self {
        self.thresholds = thresholds::again(&self.thresholds, &cases);
        self.dataset.packages_digest = super::packages_digest(&cases);
        if self.dataset.digest.is_none() {
            self.dataset.digest = dataset_of(&cases);
        }
        self.interrupted = cases
            .iter()
            .any(|case| case.error == Some(ErrorKind::Interrupted));
        self.cases = cases;
        self
    }

    fn pass_at_k(&self) -> BTreeMap<u32, f64> {
        let tried: Vec<(u32, u32)> = self
            .cases
            .iter()
            .filter(|case| !case.attempts.is_empty())
            .map(|case| {
                let of = |wanted: &dyn Fn(Status) -> bool| {
                    let found = case.attempts.iter().filter(|it| wanted(it.status));
                    u32::try_from(found.count()).unwrap_or(u32::MAX)
                };
                // As in Harbor, one without a verdict has not passed.
                let made = of(&|it| it != Status::Skipped);
                (made, of(&|it| it == Status::Passed))
            })
            .collect();
        let most = tried.iter().map(|(tries, _)| *tries).min().unwrap_or(0);
        (1..=most)
            .map(|k| {
                let sum: f64 = tried
                    .iter()
                    .map(|(tries, passed)| {
                        // 1 - C(n - c, k) / C(n, k), as a product so that nothing overflows.
                        let none: f64 = (0..k)
                            .map(|at| {
                                let left = f64::from((tries - passed).saturating_sub(at));
                                left / f64::from(tries - at)
                            })
                            .product();
                        1.0 - none
                    })
                    .sum();
                #[expect(clippy::cast_precision_loss, reason = "a count of cases")]
                let mean = sum / tried.len() as f64;
                (k, mean)
            })
            .collect()
    }

    /// Whether there is nothing to complain about. Without thresholds: every case passed, none was
    /// skipped. With them: all are met, and a case without a verdict is only excused where a
    /// threshold says how many of those there may be.
    pub fn all_passed(&self) -> bool {
        if self.thresholds.is_empty() {
            return self.cases.iter().all(|case| case.status == Status::Passed);
        }
        let excused = self.thresholds.iter().any(|it| it.rule == MAX_ERROR_RATE);
        self.thresholds.iter().all(|threshold| threshold.met)
            && self.cases.iter().all(|case| match case.status {
                Status::Passed | Status::Failed => true,
                Status::Error => excused,
                Status::Skipped => false,
            })
    }
}

/// The name of the bound on judges without a verdict.
pub(super) const MAX_ERROR_RATE: &str = "max_error_rate";

/// The digest of the dataset that has exactly these cases, when all of them are known.
fn dataset_of(cases: &[CaseResult]) -> Option<String> {
    let known = |case: &CaseResult| -> Option<(CaseId, TreeId, TreeId)> {
        let views = case.views.as_ref()?;
        let (workspace, evaluation) = (views.workspace.parse(), views.evaluation.parse());
        Some((
            case.id.clone(),
            TreeId(workspace.ok()?),
            TreeId(evaluation.ok()?),
        ))
    };
    let mut all: Vec<_> = cases.iter().map(known).collect::<Option<_>>()?;
    all.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let all = all.iter();
    (!cases.is_empty())
        .then(|| bundle::dataset_digest(all.map(|(id, a, b)| (id, *a, *b))).to_string())
}

fn mean(rewards: &[f64]) -> Option<f64> {
    (!rewards.is_empty()).then(|| mean_over(rewards, rewards.len()))
}

/// The sum of `numbers` over `count`, which is at least their number and not 0. Of finite numbers it
/// is one, though their sum need not be.
pub(super) fn mean_over(numbers: &[f64], count: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count of cases or steps")]
    let count = count as f64;
    let sum: f64 = numbers.iter().sum();
    if sum.is_finite() {
        return sum / count;
    }
    numbers.iter().map(|number| number / count).sum()
}

impl Tokens {
    fn and(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            output: self.output.saturating_add(more.output),
            cache_read: self.cache_read.saturating_add(more.cache_read),
            cache_create: self.cache_create.saturating_add(more.cache_create),
        }
    }
}

impl CaseResult {
    /// The attempts at the case; itself where there was one.
    pub(crate) fn each_attempt(&self) -> &[Self] {
        if self.attempts.is_empty() {
            std::slice::from_ref(self)
        } else {
            &self.attempts
        }
    }

    /// What agents did in this attempt: after each step where there are some.
    pub(crate) fn agents(&self) -> impl Iterator<Item = &AgentRun> {
        let steps = self.steps.iter().filter_map(|step| step.agent.as_ref());
        let alone = self.agent.iter().filter(|_| self.steps.is_empty());
        steps.chain(alone)
    }

    /// Hides the caller's secrets in all that agents, verifiers and judges said.
    pub(super) fn without(&mut self, secrets: &Secrets) {
        let hide = |text: &mut Option<String>| {
            if let Some(text) = text {
                *text = secrets.hide(std::mem::take(text));
            }
        };
        let judges = |judges: &mut Vec<JudgeResult>| {
            for judge in judges {
                hide(&mut judge.rationale);
                hide(&mut judge.error);
                if let Some(serde_json::Value::String(text)) = &mut judge.value {
                    *text = secrets.hide(std::mem::take(text));
                }
            }
        };
        let names = |rewards: &mut BTreeMap<String, f64>| {
            let all = std::mem::take(rewards).into_iter();
            *rewards = all
                .map(|(name, value)| (secrets.hide(name), value))
                .collect();
        };
        hide(&mut self.message);
        judges(&mut self.judges);
        names(&mut self.rewards);
        for step in &mut self.steps {
            hide(&mut step.message);
            names(&mut step.rewards);
            judges(&mut step.judges);
        }
        for retried in &mut self.retried {
            hide(&mut retried.message);
        }
        let skipped = self.outputs.skipped.iter_mut().map(|it| &mut it.path);
        for path in self
            .outputs
            .files
            .iter_mut()
            .map(|it| &mut it.path)
            .chain(skipped)
        {
            *path = secrets.hide(std::mem::take(path));
        }
    }

    /// A case of which nothing is known yet.
    pub(crate) fn new(id: &CaseId) -> Self {
        Self {
            id: id.clone(),
            status: Status::Error,
            reward: None,
            rewards: BTreeMap::new(),
            duration: Duration::ZERO,
            started: None,
            package_digest: None,
            views: None,
            message: None,
            error: None,
            agent: None,
            verifier: None,
            steps: Vec::new(),
            judges: Vec::new(),
            hooks: Vec::new(),
            outputs: Outputs::default(),
            retried: Vec::new(),
            attempts: Vec::new(),
            dir: None,
            resumed: false,
        }
    }

    /// What several attempts at one case come to.
    pub(super) fn of_attempts(id: &CaseId, attempts: Vec<Self>) -> Self {
        let mut all = attempts.last().cloned().unwrap_or_else(|| Self::new(id));
        let worst = attempts.iter().map(|it| it.status).max();
        all.status = worst.unwrap_or(Status::Error);
        let rewards: Vec<f64> = attempts.iter().filter_map(|it| it.reward).collect();
        all.reward = mean(&rewards);
        all.rewards = all
            .reward
            .into_iter()
            .map(|mean| ("reward".to_owned(), mean))
            .collect();
        all.duration = attempts.iter().map(|it| it.duration).sum();
        let of_worst = attempts.iter().find(|it| it.status == all.status);
        all.error = of_worst.and_then(|it| it.error);
        let passed = attempts.iter().filter(|it| it.status == Status::Passed);
        let mut told = format!(
            "{} of {} passed.",
            passed.count(),
            count(attempts.len(), "attempt", "attempts")
        );
        if let Some(why) = of_worst.and_then(|it| it.message.as_deref()) {
            told.extend([" ", why]);
        }
        all.message = Some(told);
        all.dir = None;
        all.attempts = attempts;
        all
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

mod as_text {
    use super::{CaseId, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &CaseId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(id.as_str())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<CaseId, D::Error> {
        let text = String::deserialize(from)?;
        CaseId::new(&text).map_err(serde::de::Error::custom)
    }
}

/// Seconds, with milliseconds.
mod as_seconds {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run")]
        let seconds = time.as_millis() as f64 / 1000.0;
        to.serialize_f64(seconds)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// The same, where it may not be known.
mod as_maybe_seconds {
    use super::{Deserializer, Duration, Serializer, as_seconds};

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => as_seconds::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        as_seconds::deserialize(from).map(Some)
    }
}

fn own_engine() -> String {
    "casepack".to_owned()
}

fn one() -> u32 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
