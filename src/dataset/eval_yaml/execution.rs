//! `execution`, `runner` and `models`: what is run for a case, and by whom.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::{non_negative, positive, text};
use crate::dataset::{Execution, Mode, Runner, RunnerCommand};
use crate::diag::{Diagnostic, Diagnostics, Place, Rule, Source};
use crate::template;
use crate::yaml::{Fields, Value, Yaml};

/// A text with placeholders, and the scalar that it was written in.
#[derive(Debug, Clone)]
pub(super) struct Template {
    pub(super) text: String,
    source: Arc<Source>,
    span: Range<usize>,
    pub(super) field: String,
}

/// What one step tells the agent.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// `prompt`
    Prompt(Template),
    /// `skill` and `arguments`
    Skill {
        name: String,
        arguments: Option<Template>,
    },
    /// Neither: the arguments are all there is.
    Arguments(Option<Template>),
}

/// One step, before the input is known.
#[derive(Debug, Clone)]
pub(super) struct StepPlan {
    pub(super) id: Option<String>,
    pub(super) what: What,
    pub(super) timeout_sec: Option<f64>,
    pub(super) max_budget_usd: Option<f64>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) runner: Option<Runner>,
    pub(super) stop_on_failure: bool,
}

/// The three blocks, read.
pub(super) struct ExecutionBlocks<'d> {
    pub(super) mode: Mode,
    /// At least one.
    pub(super) steps: Vec<StepPlan>,
    pub(super) multi_step: bool,
    /// Whether the ids of all steps are known.
    pub(super) all_steps: bool,
    pub(super) execution: Execution,
    /// `runner.settings`, when it is a mapping.
    pub(super) settings: Option<Value<'d>>,
    /// `runner.plugin_dirs`
    pub(super) plugin_dirs: Vec<Value<'d>>,
    /// `execution.skill`, where it stands.
    pub(super) skill: Option<(String, Place, String)>,
    pub(super) hook_model: Option<String>,
    pub(super) judge_model: Option<String>,
}

impl Template {
    fn new(value: &Value<'_>, diags: &mut Diagnostics) -> Option<Self> {
        let text = value.str(diags)?;
        Some(Self {
            text: text.to_owned(),
            source: Arc::clone(&value.place().source),
            span: value.node().span.clone(),
            field: value.path().to_owned(),
        })
    }

    fn read(fields: &mut Fields<'_>, key: &'static str, diags: &mut Diagnostics) -> Option<Self> {
        let value = fields.get(key)?;
        Self::new(&value, diags)
    }

    pub(super) fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Where bytes `range` of the text stand in the file: the very place where the scalar holds
    /// them as they are, else all of the scalar.
    pub(super) fn place(&self, range: Option<&Range<usize>>) -> Place {
        let exact = || {
            let range = range?;
            let wanted = self
                .text
                .get(range.clone())
                .filter(|wanted| !wanted.is_empty())?;
            let written = self.source.text.get(self.span.clone())?;
            // Folding and escapes move bytes, but they keep their order.
            if written.matches(wanted).count() != self.text.matches(wanted).count() {
                return None;
            }
            let (at, _) = written
                .match_indices(wanted)
                .nth(self.text.get(..range.start)?.matches(wanted).count())?;
            let start = self.span.start + at;
            Some(start..start + wanted.len())
        };
        Place {
            source: Arc::clone(&self.source),
            range: exact().unwrap_or_else(|| self.span.clone()),
        }
    }

    /// A finding about it.
    pub(super) fn finding(
        &self,
        rule: Rule,
        message: String,
        range: Option<&Range<usize>>,
    ) -> Diagnostic {
        Diagnostic::new(rule, message)
            .at_place(Some(&self.place(range)))
            .field(self.field.clone())
    }
}

impl What {
    /// The template that the input's fields go into.
    pub(super) fn template(&self) -> Option<&Template> {
        match self {
            Self::Prompt(template) => Some(template),
            Self::Skill { arguments, .. } | Self::Arguments(arguments) => arguments.as_ref(),
        }
    }
}

/// Reads the blocks. The deprecated `skill` at the top counts as `execution.skill`.
pub(super) fn read<'d>(top: &mut Fields<'d>, diags: &mut Diagnostics) -> ExecutionBlocks<'d> {
    let old_skill = top.get("skill");
    let mut blocks = ExecutionBlocks {
        mode: Mode::Case,
        steps: Vec::new(),
        multi_step: false,
        all_steps: true,
        execution: Execution::default(),
        settings: None,
        plugin_dirs: Vec::new(),
        skill: None,
        hook_model: None,
        judge_model: None,
    };
    let mut own = What::Arguments(None);
    match top.fields("execution", diags) {
        Some(mut execution) => {
            own = self::execution(&mut execution, old_skill, &mut blocks, diags);
            execution.finish(diags);
        }
        None => {
            if let Some(name) = old_skill.and_then(|value| deprecated_skill(&value, diags)) {
                blocks.skill = Some(name.clone());
                own = What::Skill {
                    name: name.0,
                    arguments: None,
                };
            }
        }
    }
    blocks.execution.runner = Runner {
        kind: DEFAULT_RUNNER.to_owned(),
        ..Runner::default()
    };
    if let Some(mut runner) = top.fields("runner", diags) {
        blocks.execution.runner = self::runner(&mut runner, diags);
        blocks.settings = runner
            .get("settings")
            .filter(|value| matches!(value.yaml(), Yaml::Map(_)));
        blocks.plugin_dirs = runner.items("plugin_dirs", diags);
        runner.finish(diags);
    }
    if let Some(mut models) = top.fields("models", diags) {
        let mut model = |key| models.str(key, diags).map(str::to_owned);
        blocks.execution.model = model("skill");
        blocks.execution.subagent_model = model("subagent");
        blocks.judge_model = model("judge");
        blocks.hook_model = model("hook");
        models.finish(diags);
    }
    if blocks.steps.is_empty() {
        blocks.steps.push(StepPlan {
            id: None,
            what: own,
            timeout_sec: None,
            max_budget_usd: None,
            env: BTreeMap::new(),
            runner: None,
            stop_on_failure: true,
        });
    }
    blocks
}

fn execution<'d>(
    execution: &mut Fields<'d>,
    old_skill: Option<Value<'d>>,
    blocks: &mut ExecutionBlocks<'d>,
    diags: &mut Diagnostics,
) -> What {
    let modes = [("case", Mode::Case), ("batch", Mode::Batch)];
    blocks.mode = execution
        .choice("mode", &modes, diags)
        .unwrap_or(Mode::Case);
    blocks.execution.timeout_sec = execution
        .get("timeout")
        .and_then(|value| positive(&value, diags));
    blocks.execution.max_budget_usd = execution
        .get("max_budget_usd")
        .and_then(|value| non_negative(&value, diags));
    blocks.execution.parallelism = execution
        .get("parallelism")
        .and_then(|value| super::whole(&value, diags))
        .and_then(|count| usize::try_from(count).ok());
    blocks.execution.env = env(execution, diags);

    let skill = execution.get("skill").filter(|value| !is_blank(value));
    let named = match &skill {
        Some(value) => skill_name(value, diags),
        None => old_skill
            .as_ref()
            .filter(|value| !is_blank(value))
            .and_then(|value| deprecated_skill(value, diags)),
    };
    let prompt = execution.get("prompt").filter(|value| !is_blank(value));
    let arguments = Template::read(execution, "arguments", diags);
    let skill = skill.or(old_skill.filter(|value| !is_blank(value)));
    if let Some(steps) = execution.get("steps") {
        let list = steps.items(diags).unwrap_or_default();
        if !list.is_empty() {
            blocks.multi_step = true;
            if let Some(other) = skill.as_ref().or(prompt.as_ref()) {
                diags.push(
                    steps
                        .finding(
                            Rule::MutuallyExclusive,
                            format!(
                                "`{}` and `{}` can not be used together.",
                                steps.path(),
                                other.path()
                            ),
                        )
                        .help(format!("Make `{}` a step of its own.", other.path()))
                        .related(Some(&other.place()), "used here"),
                );
            }
            if blocks.mode == Mode::Batch {
                diags.push(
                    steps
                        .finding(Rule::BadValue, "Steps can not be used with `mode: batch`.")
                        .help("Remove `mode`, so that each case has its own workspace."),
                );
            }
            let count = list.len();
            blocks.steps = self::steps(list, diags);
            blocks.all_steps =
                blocks.steps.len() == count && blocks.steps.iter().all(|step| step.id.is_some());
            return What::Arguments(None);
        }
    }
    if let (Some(skill), Some(prompt)) = (&skill, &prompt) {
        diags.push(
            prompt
                .finding(
                    Rule::MutuallyExclusive,
                    format!("`{}` and `{}` can not be used together.", skill.path(), prompt.path()),
                )
                .field(execution.path())
                .help("Keep `skill` to call a skill with `arguments`, or `prompt` to give the agent a text.")
                .related(Some(&skill.place()), "used here"),
        );
    }
    blocks.skill.clone_from(&named);
    match (named, prompt) {
        (Some((name, ..)), None) => What::Skill { name, arguments },
        (_, Some(prompt)) => match Template::new(&prompt, diags) {
            Some(template) => What::Prompt(template),
            None => What::Arguments(None),
        },
        (None, None) => {
            if skill.is_none() && arguments.as_ref().is_none_or(Template::is_blank) {
                diags.push(
                    execution
                        .finding(
                            Rule::MissingKey,
                            "Nothing says what the agent is told: `execution` has no `skill`, no \
                             `prompt` and no `steps`.",
                        )
                        .severity(crate::diag::Severity::Warning)
                        .help("Add one of them, for example prompt: \"{{ input.prompt }}\""),
                );
            }
            What::Arguments(arguments)
        }
    }
}

fn steps(list: Vec<Value<'_>>, diags: &mut Diagnostics) -> Vec<StepPlan> {
    let mut ids: BTreeMap<String, Place> = BTreeMap::new();
    let mut plans = Vec::new();
    for value in list {
        let Some(mut step) = value.fields(diags) else {
            continue;
        };
        let id = step_id(&mut step, diags);
        if let Some((id, place, field)) = &id
            && let Some(first) = ids.insert(id.clone(), place.clone())
        {
            diags.push(
                Diagnostic::new(Rule::Duplicate, format!("Two steps have the id `{id}`."))
                    .help("Give each step an id of its own.")
                    .at_place(Some(place))
                    .field(field.clone())
                    .entry(id.clone())
                    .related(Some(&first), "the other one"),
            );
        }
        step.known(&["name"]);
        let skill = step.get("skill").filter(|value| !is_blank(value));
        let prompt = step.get("prompt").filter(|value| !is_blank(value));
        let arguments = Template::read(&mut step, "arguments", diags);
        let named = skill.as_ref().and_then(|value| skill_name(value, diags));
        let what = match (&skill, &prompt) {
            (Some(skill), Some(prompt)) => {
                diags.push(
                    prompt
                        .finding(
                            Rule::MutuallyExclusive,
                            "A step has a `skill` or a `prompt`, not both.",
                        )
                        .field(step.path())
                        .help("Remove one of them, or make it two steps.")
                        .related(Some(&skill.place()), "used here"),
                );
                What::Arguments(None)
            }
            (None, None) => {
                let help = super::add(&mut step, "skill", "Add one of them.");
                let help = super::add(&mut step, "prompt", &help);
                diags.push(
                    step.finding(
                        Rule::MissingKey,
                        format!("`{}` needs a `skill` or a `prompt`.", step.path()),
                    )
                    .help(help),
                );
                What::Arguments(None)
            }
            (Some(_), None) => match named {
                Some((name, ..)) => What::Skill { name, arguments },
                None => What::Arguments(None),
            },
            (None, Some(prompt)) => match Template::new(prompt, diags) {
                Some(template) => What::Prompt(template),
                None => What::Arguments(None),
            },
        };
        let timeout_sec = step
            .get("timeout")
            .and_then(|value| super::whole(&value, diags))
            .and_then(|seconds| u32::try_from(seconds).ok())
            .map(f64::from);
        let max_budget_usd = step
            .get("max_budget_usd")
            .and_then(|value| non_negative(&value, diags));
        let env = env(&mut step, diags);
        let runner = step.fields("runner", diags).map(|mut runner| {
            let read = self::runner(&mut runner, diags);
            runner.known(&["plugin_dirs"]);
            runner.finish(diags);
            read
        });
        let stop_on_failure = step
            .choice("on_failure", &ON_FAILURE, diags)
            .unwrap_or(true);
        step.finish(diags);
        plans.push(StepPlan {
            id: id.map(|(id, ..)| id),
            what,
            timeout_sec,
            max_budget_usd,
            env,
            runner,
            stop_on_failure,
        });
    }
    plans
}

/// `fail` stops, `continue` does not.
pub(super) const ON_FAILURE: [(&str, bool); 2] = [("fail", true), ("continue", false)];

fn step_id(step: &mut Fields<'_>, diags: &mut Diagnostics) -> Option<(String, Place, String)> {
    let value = step.get("id");
    let id = match &value {
        Some(value) => text(value, diags)?,
        None => String::new(),
    };
    let Some(value) = value.filter(|_| !id.trim().is_empty()) else {
        let field = step.path_of("id");
        let otherwise = "Add an id that is unique among the steps, for example `id: plan`.";
        let help = super::add(step, "id", otherwise);
        diags.push(
            step.finding(
                Rule::Empty,
                format!("`{field}` is empty: every step needs an id."),
            )
            .field(field)
            .help(help),
        );
        return None;
    };
    if let Some(why) = bad_segment(&id) {
        diags.push(
            value
                .finding(Rule::BadSegment, format!("The id of a step can not be `{id}`: {why}."))
                .help("Use letters, digits, dots, dashes and underscores: it becomes the name of a directory.")
                .entry(id),
        );
        return None;
    }
    Some((id, value.place(), value.path().to_owned()))
}

/// A skill's name, where it stands, and its config path.
fn skill_name(value: &Value<'_>, diags: &mut Diagnostics) -> Option<(String, Place, String)> {
    let name = value.str(diags)?;
    if let Some(why) = bad_segment(name) {
        diags.push(
            value
                .finding(
                    Rule::BadSegment,
                    format!("The skill can not be `{name}`: {why}."),
                )
                .help("Write the skill's name, or plugin:skill; not its path.")
                .entry(name),
        );
        return None;
    }
    Some((name.to_owned(), value.place(), value.path().to_owned()))
}

fn deprecated_skill(value: &Value<'_>, diags: &mut Diagnostics) -> Option<(String, Place, String)> {
    if is_blank(value) {
        return None;
    }
    diags.push(
        value
            .finding(
                Rule::DeprecatedField,
                "`skill` at the top is deprecated: its place is `execution.skill`.",
            )
            .help("Move it into the `execution` block."),
    );
    skill_name(value, diags)
}

/// Why `name` can't be one path component (agent-eval-harness 1.2).
fn bad_segment(name: &str) -> Option<&'static str> {
    if name.contains(['/', '\\']) {
        Some("it has a slash or backslash")
    } else if matches!(name, "." | "..") {
        Some("it names a directory itself")
    } else if name.chars().any(|letter| letter < ' ') {
        Some("it has control characters")
    } else if name.len() > crate::path::MAX_COMPONENT_BYTES {
        Some("it is longer than 255 bytes")
    } else {
        None
    }
}

/// An empty or blank string, which counts as absent.
fn is_blank(value: &Value<'_>) -> bool {
    value
        .yaml()
        .as_str()
        .is_some_and(|text| text.trim().is_empty())
}

const DEFAULT_RUNNER: &str = "claude-code";

/// A `runner` block; its `settings` and `plugin_dirs` are checked or left for the caller.
pub(super) fn runner(runner: &mut Fields<'_>, diags: &mut Diagnostics) -> Runner {
    let kind = runner
        .str("type", diags)
        .unwrap_or(DEFAULT_RUNNER)
        .to_owned();
    let command = runner
        .get("command")
        .and_then(|value| command(&value, diags));
    let repo_mode = runner
        .choice("workspace_mode", &[("repo", true)], diags)
        .unwrap_or(false);
    if let Some(mut settings) = runner.fields("settings", diags)
        && let Some(plugins) = settings
            .get("enabledPlugins")
            .filter(|value| matches!(value.yaml(), Yaml::Map(_)))
    {
        for (name, value) in plugins.entries(diags).unwrap_or_default() {
            if name == "*" && !matches!(value.yaml(), Yaml::Bool(_)) {
                let field = format!("{}.\"*\"", plugins.path());
                let mut finding = value
                    .wrong_type("true or false")
                    .help("Write true or false, without quotes.");
                finding.field = Some(field);
                diags.push(finding);
            }
        }
    }
    let env = env(runner, diags);
    let mut text = |key| runner.str(key, diags).map(str::to_owned);
    Runner {
        kind,
        command,
        env,
        system_prompt: text("system_prompt"),
        effort: text("effort"),
        permission_mode: text("permission_mode"),
        repo_mode,
    }
}

fn command(value: &Value<'_>, diags: &mut Diagnostics) -> Option<RunnerCommand> {
    match value.yaml() {
        Yaml::Str(text) => Some(RunnerCommand::Text(text.to_string())),
        Yaml::Seq(_) => {
            let items = value.items(diags)?;
            let words: Vec<Option<String>> = items
                .iter()
                .map(|item| item.str(diags).map(str::to_owned))
                .collect();
            words
                .into_iter()
                .collect::<Option<_>>()
                .map(RunnerCommand::List)
        }
        _ => {
            diags.push(
                value
                    .wrong_type("a string or a list of strings")
                    .help("Write the command as one text, or its words as a list."),
            );
            None
        }
    }
}

/// An `env` mapping. Numbers count as text, since nobody quotes ports.
fn env(fields: &mut Fields<'_>, diags: &mut Diagnostics) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (name, value) in fields.entries("env", diags) {
        let text = match value.yaml() {
            Yaml::Int(_) | Yaml::Float(_) => Some(template::python_str(value.yaml())),
            Yaml::Null => None,
            _ => value.str(diags).map(str::to_owned),
        };
        if name.is_empty() || name.contains(['=', '\0']) {
            diags.push(
                value
                    .finding(
                        Rule::BadSegment,
                        format!("`{name}` is no name of an environment variable."),
                    )
                    .help("Use letters, digits and underscores."),
            );
        } else if text.as_ref().is_some_and(|text| text.contains('\0')) {
            diags.push(
                value
                    .finding(
                        Rule::BadValue,
                        format!("The environment variable `{name}` has a NUL character, which none can hold."),
                    )
                    .help("Remove it."),
            );
        } else if let Some(text) = text {
            env.insert(name.to_owned(), text);
        }
    }
    env
}

/// Names of the input fields that any step mentions.
pub(super) fn fields(steps: &[StepPlan]) -> BTreeSet<String> {
    steps
        .iter()
        .filter_map(|step| step.what.template())
        .flat_map(|template| template::fields(&template.text).0)
        .collect()
}
