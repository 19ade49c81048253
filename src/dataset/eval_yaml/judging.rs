//! `judges`, `outputs` and `traces`, with `reward` and `thresholds`: how the work is judged.

use std::collections::BTreeMap;

use super::reward::{self, Known, listing, score_range};
use super::text;
use crate::dataset::files::{self, Bad};
use crate::dataset::{Judge, Output, Traces, Verification};
use crate::diag::{Diagnostic, Diagnostics, Place, Rule, Severity};
use crate::path::TreePath;
use crate::yaml::{Fields, Value, Yaml, nearest};

/// A file that a judge names.
pub(super) struct Wanted {
    /// Which judge.
    pub(super) judge: usize,
    pub(super) kind: WantedKind,
    /// As written.
    pub(super) text: String,
    pub(super) place: Place,
    pub(super) field: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedKind {
    Prompt,
    Context,
    /// A dotted Python module.
    Module,
}

/// Judges that the harness brings, and whether a model gives their verdict. They are named with
/// or without their group.
const BUILTINS: [(&str, bool); 4] = [
    ("efficiency/cost_budget", false),
    ("process/simulator_provenance", false),
    ("quality/output_completeness", true),
    ("safety/no_harmful_content", true),
];

/// The judge of this name compares two runs; no scale applies to it.
const PAIRWISE: &str = "pairwise";

/// Reads the blocks; `steps` are the ids that a judge may name, when all of them are known.
pub(super) fn read(
    top: &mut Fields<'_>,
    steps: Option<&[&str]>,
    diags: &mut Diagnostics,
) -> (Verification, Vec<Wanted>) {
    let mut wanted = Vec::new();
    let mut judges = Vec::new();
    // A judge that could not be read may be the one that is named elsewhere.
    let mut complete = true;
    for value in top.items("judges", diags) {
        let index = judges.len();
        complete &= value
            .yaml()
            .get("name")
            .is_some_and(|name| !matches!(name.value, Yaml::Seq(_) | Yaml::Map(_) | Yaml::Null));
        if let Some(mut fields) = value.fields(diags) {
            judges.push(judge(&mut fields, index, steps, &mut wanted, diags));
            fields.finish(diags);
        }
    }
    unique(&judges, diags);
    let outputs = outputs(top, diags);
    let traces = traces(top, diags);
    let reward = top.get("reward").and_then(|value| {
        reward::reward(
            &value,
            Known {
                judges: &judges,
                complete,
            },
            diags,
        )
    });
    let thresholds = reward::thresholds(
        top,
        Known {
            judges: &judges,
            complete,
        },
        diags,
    );
    let verification = Verification {
        judges,
        reward,
        outputs,
        traces,
        thresholds,
        judge_model: None,
    };
    (verification, wanted)
}

fn judge(
    fields: &mut Fields<'_>,
    index: usize,
    steps: Option<&[&str]>,
    wanted: &mut Vec<Wanted>,
    diags: &mut Diagnostics,
) -> Judge {
    let place = fields.place();
    let name = judge_name(fields, index, diags);
    let title = |what: &str| format!("The judge `{name}` {what}");
    let mut text_of = |key| {
        let value = fields.get(key)?;
        value.str(diags).map(str::to_owned)
    };
    let mut judge = Judge {
        description: text_of("description").unwrap_or_default(),
        condition: text_of("if").filter(|text| !text.trim().is_empty()),
        prompt: text_of("prompt").filter(|text| !text.is_empty()),
        llm_rubric: text_of("llm_rubric").filter(|text| !text.is_empty()),
        model: text_of("model").filter(|text| !text.is_empty()),
        function: text_of("function").filter(|text| !text.is_empty()),
        samples: 1,
        place: Some(place),
        ..Judge::default()
    };
    if let Some(value) = fields.get("check") {
        judge.check = value
            .str(diags)
            .filter(|text| !text.trim().is_empty())
            .map(str::to_owned);
        // All lines of it: a syntax error names one of them.
        judge.check_place = Some(Place {
            source: value.place().source,
            range: value.node().span.clone(),
        });
    }
    let mut want = |value: &Value<'_>, kind, diags: &mut Diagnostics| {
        let text = value.str(diags).filter(|text| !text.is_empty())?;
        wanted.push(Wanted {
            judge: index,
            kind,
            text: text.to_owned(),
            place: value.place(),
            field: value.path().to_owned(),
        });
        Some(text.to_owned())
    };
    let prompt_file = fields
        .get("prompt_file")
        .and_then(|value| want(&value, WantedKind::Prompt, diags));
    for value in fields.items("context", diags) {
        want(&value, WantedKind::Context, diags);
    }
    let module = fields.get("module");
    judge.module = match &judge.function {
        // Without a function there is nothing to call, so nobody needs the file.
        None => module.and_then(|value| value.str(diags).map(str::to_owned)),
        Some(_) => module.and_then(|value| want(&value, WantedKind::Module, diags)),
    };

    let builtin = fields.get("builtin");
    judge.builtin = builtin
        .as_ref()
        .and_then(|value| value.str(diags))
        .filter(|text| !text.is_empty())
        .map(str::to_owned);
    let known = judge.builtin.as_deref().map(|builtin| {
        BUILTINS
            .iter()
            .find(|(name, _)| *name == builtin || name.rsplit('/').next() == Some(builtin))
    });
    if let (Some(None), Some(value), Some(builtin)) = (known, &builtin, &judge.builtin) {
        let names = || BUILTINS.iter().map(|(name, _)| *name);
        let help = match nearest(builtin, names()) {
            Some(name) => format!("Did you mean `{name}`?"),
            None => format!("Write one of {}.", listing(names())),
        };
        diags.push(
            value
                .finding(
                    Rule::BadValue,
                    title(&format!("names a builtin `{builtin}` that does not exist.")),
                )
                .help(help)
                .entry(builtin.clone()),
        );
    }
    judge.arguments = mapping(fields, "arguments", diags);
    judge.agent = mapping(fields, "agent", diags);
    if let Some(mut agent) = fields
        .get("agent")
        .filter(is_map)
        .and_then(|value| value.fields(diags))
        && let Some(mut runner) = agent.fields("runner", diags)
    {
        super::execution::runner(&mut runner, diags);
        runner.known(&["plugin_dirs"]);
        runner.finish(diags);
    }
    scale(
        fields,
        &mut judge,
        known.flatten(),
        prompt_file.is_some(),
        &title,
        diags,
    );
    judge.step = fields
        .get("step")
        .and_then(|value| step(&value, steps, &title, diags));
    judge.samples = fields
        .get("samples")
        .and_then(|value| samples(&value, diags))
        .unwrap_or(1);
    // A field of the wrong type was told already.
    let has_kind = ["builtin", "check", "prompt", "prompt_file", "llm_rubric"]
        .into_iter()
        .any(|key| {
            fields
                .get(key)
                .is_some_and(|value| value.yaml().as_str().is_none_or(|text| !text.is_empty()))
        })
        || judge.module.is_some() && judge.function.is_some();
    if !has_kind {
        let help = match (&judge.module, &judge.function) {
            (Some(_), None) => "Add `function`: the name of the function in the module.",
            (None, Some(_)) => "Add `module`: where the function is.",
            _ => {
                "Add one of check, prompt, prompt_file, llm_rubric, builtin, or module with function."
            }
        };
        diags.push(
            fields
                .finding(
                    Rule::JudgeWithoutKind,
                    title("has nothing to judge with, so it is skipped."),
                )
                .help(help)
                .entry(name.clone()),
        );
    }
    judge.name = name;
    judge
}

fn judge_name(fields: &mut Fields<'_>, index: usize, diags: &mut Diagnostics) -> String {
    let value = fields.get("name");
    let name = value.as_ref().and_then(|value| text(value, diags));
    match (name, value) {
        (Some(name), Some(value)) if !name.is_empty() => {
            if name == "reward" {
                diags.push(
                    value
                        .finding(
                            Rule::ReservedJudgeName,
                            "A judge can not be called `reward`: that is the name of the total.",
                        )
                        .help("Rename the judge.")
                        .entry("reward"),
                );
            }
            name
        }
        (None, Some(_)) => format!("judge-{}", index + 1),
        _ => {
            let name = format!("judge-{}", index + 1);
            let field = fields.path_of("name");
            let otherwise = "Add `name`: results and thresholds go by it.";
            let help = super::add(fields, "name", otherwise);
            diags.push(
                fields
                    .finding(
                        Rule::MissingKey,
                        format!("A judge has no name; it is called `{name}`."),
                    )
                    .severity(Severity::Warning)
                    .field(field)
                    .help(help),
            );
            name
        }
    }
}

fn unique(judges: &[Judge], diags: &mut Diagnostics) {
    let mut names: BTreeMap<&str, &Judge> = BTreeMap::new();
    for (index, judge) in judges.iter().enumerate() {
        let Some(first) = names.get(judge.name.as_str()) else {
            names.insert(&judge.name, judge);
            continue;
        };
        diags.push(
            Diagnostic::new(
                Rule::Duplicate,
                format!("Two judges are called `{}`.", judge.name),
            )
            .help("Rename one of them: the second verdict would replace the first.")
            .at_place(judge.place.as_ref())
            .related(first.place.as_ref(), "the other one")
            .field(format!("judges[{index}].name"))
            .entry(judge.name.clone()),
        );
    }
}

/// `feedback_type` and `score_range`, which have to agree with each other and with who judges.
fn scale(
    fields: &mut Fields<'_>,
    judge: &mut Judge,
    builtin: Option<&(&str, bool)>,
    prompt_file: bool,
    title: &dyn Fn(&str) -> String,
    diags: &mut Diagnostics,
) {
    const TYPES: [&str; 4] = ["bool", "int", "float", "str"];
    let feedback = fields.get("feedback_type");
    if let Some(text) = feedback.as_ref().and_then(|value| value.str(diags)) {
        text.clone_into(&mut judge.feedback_type);
    }
    if let Some(value) = &feedback
        && !judge.feedback_type.is_empty()
        && !TYPES.contains(&judge.feedback_type.as_str())
        && !judge.feedback_type.starts_with("Literal[")
    {
        let meant = match judge.feedback_type.to_lowercase().as_str() {
            "boolean" => Some("bool"),
            "integer" => Some("int"),
            "number" | "numeric" => Some("float"),
            "string" | "text" => Some("str"),
            other => nearest(other, TYPES.into_iter()),
        };
        let help = match meant {
            Some(meant) => format!("Did you mean `{meant}`?"),
            None => format!("Write one of {}.", listing(TYPES.into_iter())),
        };
        diags.push(
            value
                .finding(
                    Rule::BadValue,
                    title(&format!(
                        "has the feedback_type `{}`, which nobody knows: it is taken as a number.",
                        judge.feedback_type
                    )),
                )
                .severity(Severity::Warning)
                .help(help),
        );
    }
    let range = fields.get("score_range");
    judge.score_range = range.as_ref().and_then(|value| score_range(value, diags));
    if let (Some(value), Some((low, high))) = (&range, judge.score_range) {
        if judge.feedback_type == "bool" {
            diags.push(
                value
                    .finding(
                        Rule::MutuallyExclusive,
                        title("has a score_range although its verdict is pass or fail."),
                    )
                    .help("Drop `score_range`, or write feedback_type: float.")
                    .related(feedback.as_ref().map(Value::place).as_ref(), "pass or fail"),
            );
        } else if judge.feedback_type == "int" && (low.fract() != 0.0 || high.fract() != 0.0) {
            diags.push(
                value
                    .finding(
                        Rule::BadValue,
                        title(
                            "has whole numbers as verdicts, so its score_range must be whole too.",
                        ),
                    )
                    .help("Write whole numbers, or feedback_type: float.")
                    .related(
                        feedback.as_ref().map(Value::place).as_ref(),
                        "whole numbers",
                    ),
            );
        }
    }
    if builtin.is_some_and(|(_, by_model)| *by_model) {
        let numeric = feedback
            .as_ref()
            .filter(|_| !matches!(judge.feedback_type.as_str(), "" | "bool"));
        if let Some(value) = range
            .as_ref()
            .filter(|_| judge.feedback_type != "bool")
            .or(numeric)
        {
            diags.push(
                value
                    .finding(
                        Rule::MutuallyExclusive,
                        title("is a builtin that always gives pass or fail, so a scale has no meaning."),
                    )
                    .help("Drop `feedback_type` and `score_range`."),
            );
        }
    }
    let asks_model = judge.prompt.is_some() || judge.llm_rubric.is_some() || prompt_file;
    if asks_model
        && range.is_none()
        && judge.builtin.is_none()
        && matches!(judge.feedback_type.as_str(), "" | "int" | "float")
        && fields
            .get("name")
            .is_none_or(|name| name.yaml().as_str() != Some(PAIRWISE))
    {
        diags.push(
            fields
                .finding(
                    Rule::ScoreRangeMissing,
                    title(
                        "gives numbers but has no score_range: 1 to 5 is assumed and not enforced.",
                    ),
                )
                .help("Add score_range: [1, 5], or feedback_type: bool for pass or fail."),
        );
    }
}

fn step(
    value: &Value<'_>,
    steps: Option<&[&str]>,
    title: &dyn Fn(&str) -> String,
    diags: &mut Diagnostics,
) -> Option<String> {
    let name = text(value, diags).filter(|name| !name.is_empty())?;
    let Some(steps) = steps.filter(|steps| !steps.contains(&name.as_str())) else {
        return Some(name);
    };
    let (message, help) = if steps.is_empty() {
        (
            format!("is for the step `{name}`, but there are no steps."),
            "Remove `step`, or add execution.steps.".to_owned(),
        )
    } else {
        let help = match nearest(&name, steps.iter().copied()) {
            Some(step) => format!("Did you mean `{step}`?"),
            None => format!("The steps are {}.", listing(steps.iter().copied())),
        };
        (
            format!("is for the step `{name}`, which does not exist."),
            help,
        )
    };
    diags.push(
        value
            .finding(Rule::BadValue, title(&message))
            .help(help)
            .entry(name.clone()),
    );
    Some(name)
}

/// What Python's `int` makes of it.
fn samples(value: &Value<'_>, diags: &mut Diagnostics) -> Option<u32> {
    let help = "Write a whole number of at least 1.";
    let number: Option<i64> = match value.yaml() {
        Yaml::Int(number) => Some(i64::try_from(number).unwrap_or(i64::MAX)),
        // Through text: there is no conversion that can't lose something.
        Yaml::Float(number) => format!("{:.0}", number.trunc()).parse().ok(),
        Yaml::Bool(flag) => Some(i64::from(*flag)),
        Yaml::Str(text) => text.trim().parse().ok(),
        _ => None,
    };
    let Some(number) = number else {
        diags.push(value.wrong_type("a whole number").help(help));
        return None;
    };
    if let Some(number) = u32::try_from(number)
        .ok()
        .filter(|number| (1..=1000).contains(number))
    {
        return Some(number);
    }
    diags.push(
        value
            .finding(
                Rule::BadValue,
                format!("`{}` must be between 1 and 1000.", value.path()),
            )
            .help(help),
    );
    None
}

fn mapping(fields: &mut Fields<'_>, key: &'static str, diags: &mut Diagnostics) -> Option<Yaml> {
    let value = fields.get(key)?;
    if is_map(&value) {
        return Some(value.yaml().clone());
    }
    diags.push(
        value
            .wrong_type("a mapping")
            .help("Write a mapping: lines of `key: value`."),
    );
    None
}

fn is_map(value: &Value<'_>) -> bool {
    matches!(value.yaml(), Yaml::Map(_))
}

fn outputs(top: &mut Fields<'_>, diags: &mut Diagnostics) -> Vec<Output> {
    let mut outputs = Vec::new();
    for value in top.items("outputs", diags) {
        let Some(mut fields) = value.fields(diags) else {
            continue;
        };
        let mut output = Output::default();
        if let Some(path) = fields.get("path") {
            let written = path.str(diags).unwrap_or_default();
            output.directory = written.ends_with('/');
            if !written.is_empty() {
                output.path = output_path(&path, written, diags);
            }
        }
        let mut text_of = |key| {
            fields
                .get(key)
                .and_then(|value| text(&value, diags))
                .unwrap_or_default()
        };
        output.tool = text_of("tool");
        output.schema = text_of("schema");
        output.batch_pattern = text_of("batch_pattern");
        output.types = fields.get("types").map(|value| value.yaml().clone());
        if fields.get("path").is_none() && output.tool.is_empty() {
            diags.push(
                fields
                    .finding(
                        Rule::MissingKey,
                        "An output has neither `path` nor `tool`, so it collects nothing.",
                    )
                    .severity(Severity::Warning)
                    .help("Add `path`: the directory that the agent writes to."),
            );
        }
        fields.finish(diags);
        outputs.push(output);
    }
    outputs
}

fn output_path(value: &Value<'_>, written: &str, diags: &mut Diagnostics) -> Option<TreePath> {
    match files::relative(written) {
        Ok(path) => Some(path),
        Err(bad) => {
            let help = match bad {
                Bad::Root => {
                    "Name a directory of its own: outputs are collected and cleaned there."
                }
                _ => "Write a path relative to the workspace, for example results.",
            };
            let what = format!("The output `{written}`");
            diags.push(bad.finding(value, &what, help).entry(written));
            None
        }
    }
}

fn traces(top: &mut Fields<'_>, diags: &mut Diagnostics) -> Traces {
    let mut traces = Traces::default();
    if let Some(mut fields) = top.fields("traces", diags) {
        let mut switch = |key| fields.bool(key, diags).unwrap_or(true);
        traces = Traces {
            stdout: switch("stdout"),
            stderr: switch("stderr"),
            events: switch("events"),
            metrics: switch("metrics"),
        };
        fields.finish(diags);
    }
    traces
}
