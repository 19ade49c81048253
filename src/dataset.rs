//! Datasets as one model for every format: what the cases are and what each one is made of.
//!
//! Owns [`Dataset`], [`Case`] and one reader per format, which are the only way to make them:
//! files in, checked values out, all findings in one pass. Refuses to know targets.
//! Memory stays flat: a dataset holds the ids of its cases; a [`Case`] is read when it is needed.

mod casepack_yaml;
mod coverage;
mod dirs;
mod eval_yaml;
mod files;
mod find;
mod formula;
mod harbor_task;
pub(crate) use harbor_task::schema as task_toml;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::coverage::Coverage;
use crate::diag::{Diagnostic, Diagnostics, Place, Rule};
use crate::digest::Digest;
use crate::fs::{Kind, Listing, ResolveError, Resolved, Roots, Unknown};
use crate::path::{CaseId, TreePath};
use crate::tree::{Content, Mode as FileMode};
use crate::yaml::{self, Node, Yaml};

/// The formats that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `eval.yaml` and case directories (agent-eval-harness).
    EvalYaml,
    /// Directories that are Harbor tasks already.
    HarborTask,
}

impl Format {
    /// The name, as `--format` takes it and the results carry it.
    pub fn name(self) -> &'static str {
        match self {
            Self::EvalYaml => "eval-yaml",
            Self::HarborTask => "harbor-task",
        }
    }
}

/// What to load, and what the shell knows that loading needs.
#[derive(Debug, Clone, Copy)]
pub struct LoadRequest<'a> {
    /// A config file, or a directory that holds one or is a dataset itself; absolute or relative
    /// to `cwd`.
    pub path: &'a Path,
    /// `--format`; `None`: recognised.
    pub format: Option<Format>,
    /// `--project-root`; relative to `cwd` (policy 12).
    pub project_root: Option<&'a Path>,
    /// The current directory; absolute.
    pub cwd: &'a Path,
    /// The home directory, for `~`; absolute.
    pub home: Option<&'a Path>,
    /// `--plugin-dir`: roots that the operator names, however wide (policy 8); relative to `cwd`.
    pub plugin_dirs: &'a [PathBuf],
}

/// Reads everything of a dataset but its cases; all findings in one pass.
///
/// `None` when it can't be used at all; a dataset with errors in `diags` is there for more checks
/// (of its cases), never to be built.
pub fn load(request: &LoadRequest, diags: &mut Diagnostics) -> Option<Dataset> {
    let found = find::find(request, diags)?;
    match found.format {
        Format::EvalYaml => eval_yaml::load(found, request, diags),
        Format::HarborTask => harbor_task::load(found, request, diags),
    }
}

/// The `batch.yaml` of these inputs: one list, in which the items of inputs that are lists stand
/// for themselves (agent-eval-harness 3.1).
pub fn batch_yaml<'a>(inputs: impl IntoIterator<Item = &'a Yaml>) -> String {
    let mut entries = Vec::new();
    for input in inputs {
        match input {
            Yaml::Null => {}
            Yaml::Seq(items) => entries.extend(items.iter().cloned()),
            value => entries.push(Node {
                value: value.clone(),
                span: 0..0,
            }),
        }
    }
    yaml::emit(&Yaml::Seq(entries))
}

/// `~` and `~/…` with the home directory in place of the tilde.
fn expand_home(text: &str, home: Option<&Path>) -> String {
    let rest = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => return text.to_owned(),
    };
    match home.and_then(Path::to_str) {
        Some(home) => format!("{}{rest}", home.trim_end_matches('/')),
        None => text.to_owned(),
    }
}

/// Whether Harbor would delete the first line of this instruction (harbor.md 3).
fn canary_line(instruction: &str) -> bool {
    let line = instruction
        .split('\n')
        .next()
        .unwrap_or_default()
        .trim()
        .to_lowercase();
    let comment = line
        .strip_prefix("<!--")
        .and_then(|rest| rest.strip_suffix("-->"))
        .or_else(|| line.strip_prefix('#'));
    comment.is_some_and(|text| text.contains("canary"))
}

/// What was read of a dataset, its cases excepted.
pub struct Dataset {
    /// Where it comes from.
    pub format: Format,
    /// Its name; the config's file stem when it has none.
    pub name: String,
    /// What it is about.
    pub description: String,
    /// `dataset.schema`: what a case holds, in words.
    pub schema: String,
    /// Fields of the input that instructions mention.
    pub template_fields: BTreeSet<String>,
    /// The digests of the configs' texts as they were read: what is in the files by now may be
    /// something else.
    pub read: Vec<Digest>,
    /// Where sources may lie.
    pub sources: Sources,
    /// The cases, sorted by id (bytewise).
    pub cases: Vec<CaseId>,
    /// Shared files: in the workspace of every case.
    pub shared: Vec<SharedEntry>,
    /// Files that judges need, carried with the evaluation view below [`JUDGE_FILES`].
    pub judge_files: Vec<JudgeFile>,
    /// Whether every case has its own workspace, or all share one.
    pub mode: Mode,
    /// The skills under test whose files are part of the workspace (policy 1).
    pub skills: Vec<SkillSource>,
    /// What the agent may and may not do, and which of its tools are answered for.
    pub interception: Interception,
    /// How an agent is run locally.
    pub execution: Execution,
    /// How the work is judged, the same for all cases.
    pub verification: Verification,
    /// Commands around local runs. Never put into a package (policy 18).
    pub hooks: Vec<Hook>,
    /// Options for targets as the dataset's files give them, by flag name (policy 33): from
    /// `casepack.yaml`, else from the `casepack:` block.
    pub options: BTreeMap<String, OptionValue>,
    /// Reads one case.
    pub reader: Box<dyn CaseReader>,
}

/// Reads the cases of one dataset. Called from several threads at once.
pub trait CaseReader: Send + Sync {
    /// The case `id`, or findings that say why not.
    fn read(&self, dataset: &Dataset, id: &CaseId, diags: &mut Diagnostics) -> Option<Case>;
}

impl Dataset {
    /// Reads the case `id`, one of [`Dataset::cases`].
    pub fn read_case(&self, id: &CaseId, diags: &mut Diagnostics) -> Option<Case> {
        self.reader.read(self, id, diags)
    }
}

/// Directories that sources may come from, and files in them that no workspace may get.
pub struct Sources {
    /// Project root first, then the dataset directory, then plugin directories (policy 8).
    pub roots: Roots,
    /// Index of the root that is the dataset directory (that holds the case directories).
    pub dataset_root: usize,
    /// The config file, for messages; absolute.
    pub config: PathBuf,
    /// The project root; absolute.
    pub project: PathBuf,
    /// Files and directories that are evaluation material wherever they are reached: root index
    /// and place (`None`: the root itself). The dataset directory, the config, judge files.
    pub guarded: Vec<(usize, Option<TreePath>)>,
}

/// One `{dest, source}` entry.
#[derive(Debug, Clone)]
pub struct SharedEntry {
    /// Where it goes in the workspace.
    pub dest: TreePath,
    /// What the user wrote: relative to the project root, or absolute, or with `~`.
    pub source: String,
    /// Where the user wrote it.
    pub place: Option<Place>,
    /// The config path of the entry (`dataset.workspace.files[2]`).
    pub field: String,
}

/// The directory in each output directory of casepack: such a directory is no case.
pub const OUTPUT_MARK: &str = ".casepack";

/// Judge files lie here in the evaluation view, each at its path below the project root, so that
/// they never meet files of a case.
pub const JUDGE_FILES: &str = ".casepack/judges";

/// A file or directory that a judge needs.
#[derive(Debug, Clone)]
pub struct JudgeFile {
    /// Which root it lies in.
    pub root: usize,
    /// Its place there.
    pub path: TreePath,
    /// Where it goes below [`JUDGE_FILES`].
    pub dest: TreePath,
    /// Where the user named it.
    pub place: Option<Place>,
    /// The config path that names it.
    pub field: String,
}

/// `execution.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A workspace for each case.
    Case,
    /// One workspace for all cases.
    Batch,
}

/// Where the skill under test was found.
#[derive(Debug, Clone)]
pub struct SkillSource {
    /// Its plain name.
    pub name: String,
    /// Which root its directory lies in.
    pub root: usize,
    /// The directory.
    pub path: TreePath,
}

/// What compiles to `.claude/settings.json`, `hooks/` and `tool_handlers.yaml`.
#[derive(Debug, Clone, Default)]
pub struct Interception {
    /// `permissions` (agent-eval-harness 3.2).
    pub permissions: Permissions,
    /// `inputs.tools`.
    pub tools: Vec<ToolHandler>,
    /// `models.hook`.
    pub hook_model: Option<String>,
    /// A `tool_handlers.yaml` beside the config, which replaces the generated one; its place in
    /// the roots.
    pub handlers_file: Option<(usize, TreePath)>,
    /// `runner.settings`, merged over the generated settings; a JSON object or null.
    pub settings: serde_json::Value,
}

/// `permissions`: rules as the agent's settings write them (`Read(eval/**)`).
#[derive(Debug, Clone, Default)]
pub struct Permissions {
    /// What is allowed.
    pub allow: Vec<PermissionRule>,
    /// What is denied.
    pub deny: Vec<PermissionRule>,
    /// More directories that the agent may use.
    pub additional_directories: Vec<String>,
}

/// One permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermissionRule {
    /// As it is: `Bash(git status)`.
    Text(String),
    /// `{path, tools}`: compiled for each tool.
    Path {
        /// File, or directory with a trailing slash.
        path: String,
        /// Tool names.
        tools: Vec<String>,
    },
}

/// One entry of `inputs.tools`.
#[derive(Debug, Clone)]
pub struct ToolHandler {
    /// `match`: which tools, in words.
    pub matches: String,
    /// `prompt`.
    pub prompt: String,
    /// `prompt_file`: as written; its content is read by the reader into `prompt_text`.
    pub prompt_file: Option<String>,
    /// Content of `prompt_file`.
    pub prompt_text: Option<String>,
}

/// How an agent is run locally (`execution`, `runner`, `models`).
#[derive(Debug, Clone, Default)]
pub struct Execution {
    /// Whole-case timeout in seconds.
    pub timeout_sec: Option<f64>,
    /// `max_budget_usd`.
    pub max_budget_usd: Option<f64>,
    /// `parallelism`.
    pub parallelism: Option<usize>,
    /// `execution.env`, as written (`$NAME` is a reference).
    pub env: BTreeMap<String, String>,
    /// The agent.
    pub runner: Runner,
    /// `models.skill`.
    pub model: Option<String>,
    /// `models.subagent`.
    pub subagent_model: Option<String>,
}

/// `runner`, of the dataset or of a step.
#[derive(Debug, Clone, Default)]
pub struct Runner {
    /// `claude-code`, `cli`, `codex`, …
    pub kind: String,
    /// `runner.command`.
    pub command: Option<RunnerCommand>,
    /// `runner.env`, as written.
    pub env: BTreeMap<String, String>,
    /// `runner.system_prompt`.
    pub system_prompt: Option<String>,
    /// `runner.effort`.
    pub effort: Option<String>,
    /// `runner.permission_mode`.
    pub permission_mode: Option<String>,
    /// Whether `workspace_mode: repo` is set.
    pub repo_mode: bool,
}

/// Placeholders of a command line that no field of the input can hide (agent-eval-harness 3.3).
pub const COMMAND_PLACEHOLDERS: [&str; 11] = [
    "agent",
    "workspace",
    "output_dir",
    "model",
    "subagent_model",
    "timeout",
    "max_budget_usd",
    "effort",
    "system_prompt",
    "config_dir",
    "args",
];
/// Casepack's own placeholders, where the input has no field of the name.
pub const OWN_PLACEHOLDERS: [&str; 3] = ["instruction", "instruction_file", "prompt"];

/// The finding about a placeholder that stands for nothing.
pub fn unknown_placeholder(name: &str) -> Diagnostic {
    Diagnostic::new(
        Rule::CommandPlaceholder,
        format!(
            "The placeholder {{{name}}} in `runner.command` is not known, so it stays as it is."
        ),
    )
    .help("Use a known placeholder or a field of the input.")
    .field("runner.command")
    .entry(format!("{{{name}}}"))
}

/// `runner.command`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunnerCommand {
    /// Split into words without a shell.
    Text(String),
    /// Words.
    List(Vec<String>),
}

/// How the work is judged (agent-eval-harness 1.1, 4.4, 4.5).
#[derive(Debug, Clone, Default)]
pub struct Verification {
    /// Who judges.
    pub judges: Vec<Judge>,
    /// `reward`; `None` without the block.
    pub reward: Option<Reward>,
    /// Declared results of the work.
    pub outputs: Vec<Output>,
    /// Which traces judges see.
    pub traces: Traces,
    /// `thresholds`, by judge.
    pub thresholds: BTreeMap<String, Threshold>,
    /// `models.judge`.
    pub judge_model: Option<String>,
}

/// One judge.
#[derive(Debug, Clone, Default)]
#[expect(
    missing_docs,
    reason = "the fields are those of agent-eval-harness.md 1.1, by their names"
)]
pub struct Judge {
    pub name: String,
    pub description: String,
    /// `if`
    pub condition: Option<String>,
    pub check: Option<String>,
    pub prompt: Option<String>,
    /// Below [`JUDGE_FILES`].
    pub prompt_file: Option<TreePath>,
    pub llm_rubric: Option<String>,
    /// Below [`JUDGE_FILES`].
    pub context: Vec<TreePath>,
    pub feedback_type: String,
    pub score_range: Option<(f64, f64)>,
    pub model: Option<String>,
    pub module: Option<String>,
    pub function: Option<String>,
    pub builtin: Option<String>,
    /// A mapping, or null.
    pub arguments: Option<Yaml>,
    pub step: Option<String>,
    pub samples: u32,
    /// The `agent` block, when there is one.
    pub agent: Option<Yaml>,
    /// Where it stands.
    pub place: Option<Place>,
    /// Where its check stands, for syntax errors.
    pub check_place: Option<Place>,
}

/// `reward`.
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the fields are those of agent-eval-harness.md 1.1, by their names"
)]
pub struct Reward {
    pub formula: String,
    pub weights: BTreeMap<String, f64>,
    pub gate: bool,
    pub score_range: Option<(f64, f64)>,
    pub raw: Vec<String>,
    pub judge: Option<String>,
    pub normalize: bool,
}

/// One entry of `outputs`.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// Below the workspace; `None` for outputs of a tool.
    pub path: Option<TreePath>,
    /// Whether it was written with a trailing slash, so that it is a directory.
    pub directory: bool,
    /// `tool`
    pub tool: String,
    /// `schema`
    pub schema: String,
    /// `batch_pattern`
    pub batch_pattern: String,
    /// `types`
    pub types: Option<Yaml>,
}

/// `traces`.
#[derive(Debug, Clone, Copy)]
#[expect(
    missing_docs,
    reason = "the fields are those of agent-eval-harness.md 1.1, by their names"
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the four switches of the format"
)]
pub struct Traces {
    pub stdout: bool,
    pub stderr: bool,
    pub events: bool,
    pub metrics: bool,
}

impl Default for Traces {
    fn default() -> Self {
        Self {
            stdout: true,
            stderr: true,
            events: true,
            metrics: true,
        }
    }
}

/// `thresholds.<judge>`.
#[derive(Debug, Clone, Copy, Default)]
#[expect(
    missing_docs,
    reason = "the fields are those of agent-eval-harness.md 1.1, by their names"
)]
pub struct Threshold {
    pub min_pass_rate: Option<f64>,
    pub min_mean: Option<f64>,
    pub max_error_rate: Option<f64>,
    pub min_win_rate: Option<f64>,
}

/// When a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(
    missing_docs,
    reason = "the phases of agent-eval-harness.md 1.1, by their names"
)]
pub enum Phase {
    BeforeAll,
    BeforeEach,
    BeforeStep,
    AfterStep,
    AfterEach,
    BeforeScoring,
    AfterAll,
    BeforeReport,
}

impl Phase {
    /// All of them, in the order in which a run comes to them.
    pub const ALL: [Self; 8] = [
        Self::BeforeAll,
        Self::BeforeEach,
        Self::BeforeStep,
        Self::AfterStep,
        Self::AfterEach,
        Self::BeforeScoring,
        Self::AfterAll,
        Self::BeforeReport,
    ];

    /// The key in `hooks`.
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeAll => "before_all",
            Self::BeforeEach => "before_each",
            Self::BeforeStep => "before_step",
            Self::AfterStep => "after_step",
            Self::AfterEach => "after_each",
            Self::BeforeScoring => "before_scoring",
            Self::AfterAll => "after_all",
            Self::BeforeReport => "before_report",
        }
    }
}

/// One command of `hooks.<phase>`.
#[derive(Debug, Clone)]
pub struct Hook {
    /// When.
    pub phase: Phase,
    /// What, for `bash -c`.
    pub command: String,
    /// Seconds.
    pub timeout_sec: u64,
    /// What it is for.
    pub description: String,
    /// Whether a failure stops the case or run (`fail`) or not (`continue`).
    pub fail: bool,
    /// A command whose exit status 0 lets the hook run.
    pub condition: String,
}

/// A value in a place where targets take options.
#[derive(Debug, Clone)]
pub struct OptionValue {
    /// The value as text, as the flag would take it; `true` and `false` for switches.
    pub text: String,
    /// Where it stands.
    pub place: Option<Place>,
}

/// One case, read.
pub struct Case {
    /// Its id.
    pub id: CaseId,
    /// What goes into the views.
    pub material: Material,
    /// What the agent is told: one step, or several.
    pub steps: Vec<Step>,
    /// Whether the steps have names (then the package has `[[steps]]`, even for one).
    pub multi_step: bool,
    /// The parsed input file.
    pub input: Yaml,
    /// The parsed `annotations.yaml`; null without one.
    pub annotations: Yaml,
    /// The image this case needs, when the dataset says so per case.
    pub image: Option<String>,
    /// More for the package's metadata: string values by key.
    pub metadata: BTreeMap<String, String>,
    /// Who judges it.
    pub verifier: Verifier,
}

/// Who judges a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verifier {
    /// The dataset's [`Verification`].
    Judges,
    /// Tests that the case itself brings, as a Harbor task does.
    Own,
}

/// What a case's views are made of. All places are below the case's directory.
#[derive(Debug, Default)]
pub struct Material {
    /// The case directory: root index and place below it (`None`: the root itself).
    pub root: usize,
    /// See `root`.
    pub dir: Option<TreePath>,
    /// What goes into the workspace.
    pub listed: Vec<Listed>,
    /// Files that the reader made (`batch.yaml` of a per-case package, turns, fixtures).
    pub generated: Vec<(View, TreePath, Arc<[u8]>)>,
    /// What becomes of the files that are not listed.
    pub rest: Rest,
    /// What is in the case directory, when the reader listed it; no link leads to the directory.
    pub listing: Option<Listing>,
    /// Files that the reader read: what it read is what goes into the views.
    pub read: Vec<ReadFile>,
}

/// Files up to this size are read once and stay in memory until they are written.
pub const KEEP_BYTES: u64 = 256 * 1024;

/// A file of a case, read.
#[derive(Debug)]
pub struct ReadFile {
    /// The index of its root.
    pub root: usize,
    /// Its place there.
    pub path: TreePath,
    /// Its mode.
    pub mode: FileMode,
    /// Its bytes.
    pub content: Content,
}

impl Material {
    /// Where `source`, a clean path below the case directory, leads: by the listing when it tells,
    /// else step by step.
    ///
    /// # Errors
    /// See [`Roots::resolve`].
    pub fn resolve(&self, roots: &Roots, source: &str) -> Result<Resolved, ResolveError> {
        resolve(
            roots,
            self.root,
            self.dir.as_ref(),
            self.listing.as_ref(),
            source,
        )
    }
}

/// See [`Material::resolve`].
fn resolve(
    roots: &Roots,
    root: usize,
    dir: Option<&TreePath>,
    listing: Option<&Listing>,
    source: &str,
) -> Result<Resolved, ResolveError> {
    if let Some(listing) = listing
        && let Ok(path) = TreePath::new(source)
    {
        match listing.get(&path) {
            Ok(Some((place, kind))) if kind != Kind::Link => {
                return Ok(Resolved {
                    root,
                    path: Some(place.clone()),
                    kind,
                    through_link: false,
                    last_was_link: false,
                });
            }
            Ok(None) => return Err(ResolveError::Missing),
            Ok(Some(_)) | Err(Unknown) => {}
        }
    }
    roots.resolve(root, dir, source)
}

/// One thing of the case directory that the workspace gets.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its path below the case directory as written: trailing slashes taken off; empty or `.` for
    /// the directory itself (which policy 3 refuses).
    pub source: String,
    /// Where it goes; the same as `source` but for formats that stage files elsewhere.
    pub dest: Option<TreePath>,
    /// Whether the user listed it (a missing one is told), or it goes along when it is there.
    pub by_user: bool,
    /// Where the user wrote it.
    pub place: Option<Place>,
    /// The config path (`dataset.workspace.files[0]`).
    pub field: String,
}

/// What becomes of the files of a case directory that are not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rest {
    /// They are evaluation material (policy 2).
    #[default]
    Evaluation,
    /// The directory is a Harbor task: `environment/` is the workspace (or the build context),
    /// everything else the task.
    HarborTask,
    /// They stay where they are.
    Ignored,
}

/// Who may see a tree (bundle-format, "Words").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    /// The agent.
    Workspace,
    /// Judges only.
    Evaluation,
    /// What a Harbor package adds around them.
    Task,
}

/// What the agent is told, once.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its id, unique in the case; `None` for the only step of a single-step case.
    pub id: Option<String>,
    /// The instruction.
    pub instruction: Instruction,
    /// Seconds; `None`: the case's.
    pub timeout_sec: Option<f64>,
    /// `max_budget_usd`.
    pub max_budget_usd: Option<f64>,
    /// More environment for this step.
    pub env: BTreeMap<String, String>,
    /// Another agent for this step.
    pub runner: Option<Runner>,
    /// Whether the following steps are left out when this one fails.
    pub stop_on_failure: bool,
}

/// The text for the agent.
#[derive(Debug, Clone)]
pub enum Instruction {
    /// Ready: what `instruction.md` holds, without the final newline.
    Text(String),
    /// Needs the results of earlier steps (`{{ steps.plan.output }}`), so only a local run can
    /// render it: prefix, template, suffix are joined after rendering.
    Deferred {
        /// Text before (system prompt, command).
        prefix: String,
        /// The template.
        template: String,
    },
}

#[cfg(test)]
mod tests;
