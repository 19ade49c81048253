//! `hooks`, `permissions`, `inputs`, `generation` and `mlflow`: what surrounds a case.

use std::collections::BTreeMap;

use super::execution::ON_FAILURE;
use super::{add, text, whole};
use crate::dataset::{Hook, Mode, PermissionRule, Permissions, Phase, ToolHandler};
use crate::diag::{Diagnostics, Place, Rule, Severity};
use crate::template::python_str;
use crate::yaml::{Fields, Value, Yaml};

/// Reads `hooks`.
pub(super) fn hooks(top: &mut Fields<'_>, mode: Mode, diags: &mut Diagnostics) -> Vec<Hook> {
    let mut hooks = Vec::new();
    let Some(mut block) = top.fields("hooks", diags) else {
        return hooks;
    };
    let mut per_case: Vec<Value<'_>> = Vec::new();
    for phase in Phase::ALL {
        let Some(list) = block.get(phase.name()) else {
            continue;
        };
        let per_case_phase = matches!(
            phase,
            Phase::BeforeEach | Phase::AfterEach | Phase::BeforeStep | Phase::AfterStep
        );
        let items = list.items(diags).unwrap_or_default();
        if per_case_phase && !items.is_empty() {
            per_case.push(list);
        }
        for value in items {
            let Some(mut fields) = value.fields(diags) else {
                continue;
            };
            hooks.push(hook(&mut fields, phase, diags));
            fields.finish(diags);
        }
    }
    if mode == Mode::Batch {
        for list in per_case {
            diags.push(
                list.finding(
                    Rule::Unsupported,
                    format!(
                        "`{}` is ignored: with `mode: batch` there is one run for all cases.",
                        list.path()
                    ),
                )
                .severity(Severity::Warning)
                .help("Use before_all and after_all, or mode: case."),
            );
        }
    }
    block.finish(diags);
    hooks
}

fn hook(fields: &mut Fields<'_>, phase: Phase, diags: &mut Diagnostics) -> Hook {
    let command = fields.str("command", diags).unwrap_or_default().to_owned();
    if command.trim().is_empty()
        && fields
            .get("command")
            .is_none_or(|value| value.yaml().as_str().is_some())
    {
        let help = add(fields, "command", "Add `command`.");
        diags.push(
            fields
                .finding(
                    Rule::MissingKey,
                    "A hook has no `command`, so it does nothing.",
                )
                .severity(Severity::Warning)
                .field(fields.path_of("command"))
                .help(help),
        );
    }
    let timeout_sec = fields
        .get("timeout")
        .and_then(|value| match value.yaml() {
            // Python counts true as 1.
            Yaml::Bool(true) => Some(1),
            _ => whole(&value, diags),
        })
        .and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or(120);
    let mut text_of = |key| fields.str(key, diags).unwrap_or_default().to_owned();
    let (description, condition) = (text_of("description"), text_of("condition"));
    Hook {
        phase,
        command,
        timeout_sec,
        description,
        fail: fields
            .choice("on_failure", &ON_FAILURE, diags)
            .unwrap_or(true),
        condition,
    }
}

/// Reads `permissions`.
pub(super) fn permissions(top: &mut Fields<'_>, diags: &mut Diagnostics) -> Permissions {
    let mut permissions = Permissions::default();
    let Some(mut block) = top.fields("permissions", diags) else {
        return permissions;
    };
    permissions.allow = rules(&mut block, "allow", diags);
    permissions.deny = rules(&mut block, "deny", diags);
    // The agent's settings write it in camel case, this file does not mind.
    for key in ["additionalDirectories", "additional_directories"] {
        for value in block.items(key, diags) {
            permissions
                .additional_directories
                .extend(value.str(diags).map(str::to_owned));
        }
    }
    block.finish(diags);
    permissions
}

fn rules(
    block: &mut Fields<'_>,
    key: &'static str,
    diags: &mut Diagnostics,
) -> Vec<PermissionRule> {
    let mut rules = Vec::new();
    for value in block.items(key, diags) {
        match value.yaml() {
            Yaml::Str(rule) => rules.push(PermissionRule::Text(rule.to_string())),
            Yaml::Map(_) => {
                let Some(mut fields) = value.fields(diags) else {
                    continue;
                };
                let path = fields.need("path", diags).and_then(|path| path.str(diags));
                let mut tools = Vec::new();
                if let Some(value) = fields.get("tools") {
                    let items = match value.yaml() {
                        Yaml::Str(_) => vec![value],
                        _ => value.items(diags).unwrap_or_default(),
                    };
                    tools.extend(
                        items
                            .iter()
                            .filter_map(|tool| tool.str(diags))
                            .map(str::to_owned),
                    );
                }
                fields.finish(diags);
                if let Some(path) = path {
                    rules.push(PermissionRule::Path {
                        path: path.to_owned(),
                        tools,
                    });
                }
            }
            _ => diags.push(
                value
                    .wrong_type("a string or a {path, tools} mapping")
                    .help(
                        "Write a rule as the agent's settings do, for example \"Read(docs/**)\".",
                    ),
            ),
        }
    }
    rules
}

/// The prompt file of a tool handler, to be read: which handler, what is written, where.
pub(super) struct HandlerFile {
    pub(super) handler: usize,
    pub(super) text: String,
    pub(super) place: Place,
    pub(super) field: String,
}

/// `inputs.tools`, read.
#[derive(Default)]
pub(super) struct Tools {
    pub(super) handlers: Vec<ToolHandler>,
    pub(super) files: Vec<HandlerFile>,
    /// Where the list stands, when it has entries.
    pub(super) place: Option<Place>,
}

/// Reads `inputs`.
pub(super) fn inputs(top: &mut Fields<'_>, diags: &mut Diagnostics) -> Tools {
    let mut tools = Tools::default();
    let Some(mut block) = top.fields("inputs", diags) else {
        return tools;
    };
    for value in block.items("tools", diags) {
        tools.place.get_or_insert_with(|| value.place());
        let Some(mut fields) = value.fields(diags) else {
            continue;
        };
        let mut text_of = |key| fields.str(key, diags).unwrap_or_default().to_owned();
        let (matches, prompt) = (text_of("match"), text_of("prompt"));
        let file = fields.get("prompt_file").and_then(|value| {
            let text = value.str(diags).filter(|text| !text.is_empty())?;
            tools.files.push(HandlerFile {
                handler: tools.handlers.len(),
                text: text.to_owned(),
                place: value.place(),
                field: value.path().to_owned(),
            });
            Some(text.to_owned())
        });
        if matches.trim().is_empty() {
            let otherwise = "Name the tools, for example `match: AskUserQuestion`.";
            let help = add(&mut fields, "match", otherwise);
            diags.push(
                fields
                    .finding(
                        Rule::MissingKey,
                        "A tool handler has no `match`, so it answers for every tool.",
                    )
                    .severity(Severity::Warning)
                    .field(fields.path_of("match"))
                    .help(help),
            );
        }
        fields.finish(diags);
        tools.handlers.push(ToolHandler {
            matches,
            prompt,
            prompt_file: file,
            prompt_text: None,
        });
    }
    block.finish(diags);
    tools
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Skill,
    Synthetic,
    FromTraces,
}

/// Checks `generation`, which no build uses (policy 17).
pub(super) fn generation(top: &mut Fields<'_>, diags: &mut Diagnostics) {
    let Some(mut block) = top.fields("generation", diags) else {
        return;
    };
    let strategies = [
        ("skill", Strategy::Skill),
        ("synthetic", Strategy::Synthetic),
        ("from-traces", Strategy::FromTraces),
    ];
    let written = block
        .get("strategy")
        .filter(|value| value.yaml().as_str() != Some(""));
    let strategy = match &written {
        Some(value) => value.choice(&strategies, diags),
        None => Some(Strategy::Skill),
    };
    if let Some(context) = block.get("context")
        && !matches!(context.yaml(), Yaml::Str(_) | Yaml::Map(_))
    {
        diags.push(
            context
                .wrong_type("a text or a mapping")
                .help("Describe what the generator has to know."),
        );
    }
    let list = block.get("seeds");
    let seeds = list
        .as_ref()
        .and_then(|list| list.items(diags))
        .unwrap_or_default();
    for value in &seeds {
        if let Some(mut fields) = value.fields(diags) {
            seed(&mut fields, diags);
            fields.finish(diags);
        }
    }
    match (strategy, seeds.is_empty(), &list) {
        (Some(Strategy::Synthetic), true, _) => {
            let field = block.path_of("seeds");
            diags.push(
                block
                    .finding(Rule::MissingKey, "The strategy `synthetic` needs `seeds`.")
                    .field(field)
                    .help("Add a seed: {category: …, count: …, prompt: …}"),
            );
        }
        (Some(Strategy::Skill | Strategy::FromTraces), false, Some(list)) => diags.push(
            list.finding(
                Rule::BadValue,
                "`generation.seeds` can only be used with `strategy: synthetic`.",
            )
            .help("Write strategy: synthetic, or remove the seeds.")
            .related(
                written.as_ref().map(Value::place).as_ref(),
                "another strategy",
            ),
        ),
        _ => {}
    }
    block.finish(diags);
}

fn seed(fields: &mut Fields<'_>, diags: &mut Diagnostics) {
    if let Some(value) = fields.get("category") {
        if value.str(diags) == Some("") {
            diags.push(
                value
                    .finding(Rule::Empty, format!("`{}` is empty.", value.path()))
                    .help("Write a name: it becomes annotations.category of the cases."),
            );
        }
    } else {
        let field = fields.path_of("category");
        let otherwise = "Add `category`: it becomes annotations.category of the cases.";
        let help = add(fields, "category", otherwise);
        let message = format!("`{field}` is empty: every seed needs a category.");
        diags.push(fields.finding(Rule::Empty, message).field(field).help(help));
    }
    match fields.get("count") {
        Some(value) if *value.yaml() == Yaml::Bool(true) => {}
        Some(value) => {
            whole(&value, diags);
        }
        None => {
            let field = fields.path_of("count");
            let otherwise = "Add `count`: how many cases are made from the seed.";
            let help = add(fields, "count", otherwise);
            diags.push(
                fields
                    .finding(
                        Rule::BadValue,
                        format!("`{field}` must be a whole number of at least 1; it is missing."),
                    )
                    .field(field)
                    .help(help),
            );
        }
    }
    let mut given = BTreeMap::new();
    for key in ["builtin", "prompt_file", "prompt"] {
        if let Some(value) = fields.get(key)
            && value.str(diags) != Some("")
        {
            given.insert(key, value.place());
        }
    }
    if given.len() != 1 {
        let names: Vec<String> = given.keys().map(|key| format!("`{key}`")).collect();
        let what = if names.is_empty() {
            "none is".to_owned()
        } else {
            format!("{} are", names.join(" and "))
        };
        diags.push(
            fields
                .finding(
                    Rule::ExactlyOne,
                    format!("A seed needs exactly one of `builtin`, `prompt_file` and `prompt`; {what} given."),
                )
                .help("Keep one of them."),
        );
    }
    fields.str("description", diags);
}

/// Checks `mlflow`, which no target uses.
pub(super) fn mlflow(top: &mut Fields<'_>, diags: &mut Diagnostics) {
    if let Some(mut block) = top.fields("mlflow", diags) {
        for key in ["experiment", "tracking_uri"] {
            if let Some(value) = block.get(key) {
                text(&value, diags);
            }
        }
        block.entries("tags", diags);
        block.finish(diags);
    }
}

/// JSON as Python's `json.dumps` would write it: the agent's settings are JSON.
pub(super) fn plain_json(value: &Yaml) -> serde_json::Value {
    match value {
        Yaml::Null => serde_json::Value::Null,
        Yaml::Bool(value) => (*value).into(),
        Yaml::Int(number) => match i64::try_from(number) {
            Ok(number) => number.into(),
            Err(_) => number.to_string().into(),
        },
        Yaml::Float(number) => (*number).into(),
        Yaml::Seq(items) | Yaml::Set(items) => {
            items.iter().map(|item| plain_json(&item.value)).collect()
        }
        Yaml::Map(entries) | Yaml::Pairs(entries) => entries
            .iter()
            .map(|(key, node)| (python_str(&key.value), plain_json(&node.value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Yaml::Str(_) | Yaml::Date(_) | Yaml::DateTime(_) | Yaml::Binary(_) => {
            python_str(value).into()
        }
    }
}
