//! One case directory, read: input, annotations, instructions (policy 8, 13 to 16).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::execution::{StepPlan, Template, What};
use crate::dataset::dirs::CaseDir;
use crate::dataset::{
    COMMAND_PLACEHOLDERS, Case, CaseReader, Dataset, Instruction, Listed, Material, Mode,
    OWN_PLACEHOLDERS, Rest, Runner, RunnerCommand, Step, Verifier, View, batch_yaml, canary_line,
    unknown_placeholder,
};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::path::{CaseId, TreePath};
use crate::template::{self, MissingField, TemplateError};
use crate::yaml::{Document, Node, Yaml};

/// The input file is the first of these that is there.
const INPUTS: [&str; 3] = ["input.yaml", "input.yml", "input.json"];
const ANNOTATIONS: &str = "annotations.yaml";
const ANSWERS: &str = "answers.yaml";

/// What all cases have in common.
pub(super) struct Reader {
    pub(super) steps: Vec<StepPlan>,
    pub(super) multi_step: bool,
    pub(super) runner: Runner,
    pub(super) listed: Vec<Listed>,
    /// The dataset directory as findings show it.
    pub(super) shown: String,
}

impl CaseReader for Reader {
    fn read(&self, dataset: &Dataset, id: &CaseId, diags: &mut Diagnostics) -> Option<Case> {
        let case = CaseDir::open(&dataset.sources, id, &self.shown, diags)?;
        // All three files are looked at, so that everything wrong with a case is told at once.
        let input = input(&case, diags);
        let annotations = annotations(&case, diags);
        answers(&case, diags);
        let (input_name, input) = input?;
        external(&case, &input, diags);
        let steps = self.steps(&case, &input_name, &input, diags);
        let (annotations, steps) = (annotations?, steps?);
        let mut listed: Vec<Listed> = [&input_name, ANSWERS]
            .into_iter()
            .map(|name| Listed {
                source: name.to_owned(),
                dest: TreePath::new(name).ok(),
                by_user: false,
                place: None,
                field: String::new(),
            })
            .collect();
        listed.extend(self.listed.iter().cloned());
        let mut generated = Vec::new();
        if dataset.mode == Mode::Batch
            && let Ok(path) = TreePath::new("batch.yaml")
        {
            let text = batch_yaml([&input.root.value]);
            generated.push((View::Workspace, path, Arc::from(text.into_bytes())));
        }
        Some(Case {
            id: id.clone(),
            material: Material {
                listed,
                generated,
                ..case.material(Rest::Evaluation)
            },
            steps,
            multi_step: self.multi_step,
            input: input.root.value,
            annotations,
            image: None,
            metadata: BTreeMap::new(),
            verifier: Verifier::Judges,
        })
    }
}

/// The input file's name and content.
fn input(case: &CaseDir<'_>, diags: &mut Diagnostics) -> Option<(String, Document)> {
    for name in INPUTS {
        let Some(found) = case.file(name, diags).ok()? else {
            continue;
        };
        let rule = Some(Rule::InputInvalid);
        let document = case.parse(&found, name, rule, Severity::Error, diags)?;
        return Some((name.to_owned(), document));
    }
    let near = near_input(case);
    let help = match &near {
        Some(name) => format!("Did you mean '{name}'? Rename it to input.yaml."),
        None => "Add an input.yaml, or move the directory out of the dataset.".to_owned(),
    };
    diags.push(
        Diagnostic::new(
            Rule::InputMissing,
            "The case has no input.yaml, input.yml or input.json.",
        )
        .help(help)
        .file(case.shown.clone())
        .case(case.id),
    );
    None
}

/// A file of the case that was probably meant to be the input.
fn near_input(case: &CaseDir<'_>) -> Option<String> {
    let entries = case
        .sources
        .roots
        .get(case.root)?
        .list(case.dir.as_ref())
        .ok()?;
    entries
        .into_iter()
        .filter_map(|entry| entry.name.ok())
        .find(|name| {
            name.len() < 100
                && INPUTS
                    .iter()
                    .any(|input| strsim::damerau_levenshtein(&name.to_lowercase(), input) <= 1)
        })
}

/// `annotations.yaml`; null without one, `None` when it can't be used: judges would take that for
/// no annotations.
fn annotations(case: &CaseDir<'_>, diags: &mut Diagnostics) -> Option<Yaml> {
    let Some(found) = case.file(ANNOTATIONS, diags).ok()? else {
        return Some(Yaml::Null);
    };
    let document = case.parse(&found, ANNOTATIONS, None, Severity::Error, diags)?;
    if !matches!(document.root.value, Yaml::Map(_) | Yaml::Null) {
        diags.push(
            Diagnostic::new(
                Rule::NotAMapping,
                format!("'{ANNOTATIONS}' is no mapping, so judges can not read fields of it."),
            )
            .severity(Severity::Warning)
            .help("Write lines of `key: value`.")
            .at(&document.source, document.root.span.clone())
            .case(case.id),
        );
    }
    Some(document.root.value)
}

/// `answers.yaml` is the agent's; only whether it can be parsed is looked at here. Whether it may
/// be copied is decided with all other files of the workspace.
fn answers(case: &CaseDir<'_>, diags: &mut Diagnostics) {
    if let Ok(Some(found)) = case.file(ANSWERS, &mut diags.fork()) {
        case.parse(&found, ANSWERS, None, Severity::Warning, diags);
    }
}

/// Warns of `TODO_<SYSTEM>_<FIELD>` values (policy 15). Where they must not pass (`build`,
/// `publish`, `run`), the caller denies the rule.
fn external(case: &CaseDir<'_>, document: &Document, diags: &mut Diagnostics) {
    let mut ahead: Vec<(String, &Node)> = vec![(String::new(), &document.root)];
    while let Some((path, node)) = ahead.pop() {
        match &node.value {
            Yaml::Str(text) if is_external(text) => diags.push(
                Diagnostic::new(
                    Rule::UnresolvedExternalPlaceholder,
                    format!("The input still holds the placeholder {text}."),
                )
                .severity(Severity::Warning)
                .help("Replace it with the real value in the external system.")
                .at(&document.source, node.span.clone())
                .field(path)
                .entry(&**text)
                .case(case.id),
            ),
            Yaml::Map(entries) | Yaml::Pairs(entries) => {
                for (key, value) in entries.iter().rev() {
                    let key = template::python_str(&key.value);
                    let dot = if path.is_empty() { "" } else { "." };
                    ahead.push((format!("{path}{dot}{key}"), value));
                }
            }
            Yaml::Seq(items) => {
                for (index, value) in items.iter().enumerate().rev() {
                    ahead.push((format!("{path}[{index}]"), value));
                }
            }
            _ => {}
        }
    }
}

/// `TODO_`, a system, `_`, a field: capitals, digits and underscores.
fn is_external(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("TODO_") else {
        return false;
    };
    let letters =
        |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    rest.chars().all(letters)
        && rest
            .split_once('_')
            .is_some_and(|(system, field)| !system.is_empty() && !field.is_empty())
}

impl Reader {
    fn steps(
        &self,
        case: &CaseDir<'_>,
        input_name: &str,
        input: &Document,
        diags: &mut Diagnostics,
    ) -> Option<Vec<Step>> {
        // Every step is rendered, so that every hole is told.
        let steps: Vec<Option<Step>> = self
            .steps
            .iter()
            .map(|plan| {
                let instruction = self.instruction(plan, case, input_name, input, diags)?;
                let runner = plan.runner.as_ref().unwrap_or(&self.runner);
                command_placeholders(runner, case, input, diags);
                Some(Step {
                    id: plan.id.clone(),
                    instruction,
                    timeout_sec: plan.timeout_sec,
                    max_budget_usd: plan.max_budget_usd,
                    env: plan.env.clone(),
                    runner: plan.runner.clone(),
                    stop_on_failure: plan.stop_on_failure,
                })
            })
            .collect();
        steps.into_iter().collect()
    }

    /// System prompt, command and rendered template (agent-eval-harness 4.1).
    fn instruction(
        &self,
        plan: &StepPlan,
        case: &CaseDir<'_>,
        input_name: &str,
        input: &Document,
        diags: &mut Diagnostics,
    ) -> Option<Instruction> {
        let runner = plan.runner.as_ref().unwrap_or(&self.runner);
        let system = plan
            .runner
            .as_ref()
            .and_then(|runner| runner.system_prompt.as_deref())
            .or(self.runner.system_prompt.as_deref())
            .map(str::trim_end)
            .filter(|text| !text.is_empty());
        let mut prefix = system.map_or_else(String::new, |text| format!("{text}\n\n"));
        let codex = runner.kind == "codex";
        // What stands between the command and its arguments, when there are any.
        let mut joint = "";
        if let What::Skill { name, .. } = &plan.what {
            if codex {
                let last = name.rsplit(':').next().unwrap_or(name);
                prefix.push_str("Use the ");
                prefix.push_str(last);
                prefix.push_str(" skill");
                joint = " with arguments: ";
            } else {
                prefix.push('/');
                prefix.push_str(name);
                joint = " ";
            }
        }
        let template = plan.what.template();
        if let Some(template) = template
            && self.multi_step
            && template::fields(&template.text).1
        {
            return Some(Instruction::Deferred {
                prefix: prefix + joint,
                template: template.text.clone(),
            });
        }
        let rendered = match template {
            Some(template) => render(template, case, input, diags)?,
            None => String::new(),
        };
        if !rendered.is_empty() {
            prefix.push_str(joint);
        }
        let text = prefix + &rendered;
        // Without a template the config was told already.
        if text.trim().is_empty() && template.is_some_and(|template| !template.is_blank()) {
            let mut finding = Diagnostic::new(
                Rule::Empty,
                "The instruction is empty: the agent is told nothing.",
            )
            .severity(Severity::Warning)
            .help("Fill the field of the input that the instruction is made of.")
            .file(case.name(input_name))
            .case(case.id);
            if let Some(template) = template {
                finding = finding
                    .at_place(Some(&template.place(None)))
                    .field(template.field.clone());
            }
            diags.push(finding);
        }
        if canary_line(&text) {
            let mut finding = Diagnostic::new(
                Rule::CanaryLine,
                "The first line of the instruction would be deleted by Harbor: it looks like a canary marker.",
            )
            .help("Begin the instruction with another line.")
            .file(case.name(input_name))
            .case(case.id);
            if let Some(template) = template {
                finding = finding
                    .at_place(Some(&template.place(None)))
                    .field(template.field.clone());
            }
            diags.push(finding);
            return None;
        }
        Some(Instruction::Text(text))
    }
}

/// Renders a template with the input, or tells why not.
fn render(
    template: &Template,
    case: &CaseDir<'_>,
    input: &Document,
    diags: &mut Diagnostics,
) -> Option<String> {
    let error = match template::render(&template.text, &input.root.value, &Yaml::Null) {
        Ok(text) => return Some(text),
        Err(error) => error,
    };
    let findings = match error {
        TemplateError::MissingFields(missing) => missing
            .iter()
            .map(|missing| missing_field(template, missing, &input.root.value))
            .collect(),
        TemplateError::NotAMapping => vec![
            template
                .finding(
                    Rule::NotAMapping,
                    "The template names fields, but the input is not a mapping.".to_owned(),
                    None,
                )
                .help("Write the input as a mapping with named fields."),
        ],
        TemplateError::Invalid { message, range } => vec![
            template
                .finding(
                    Rule::TemplateError,
                    format!("The template can not be rendered: {message}."),
                    range.as_ref(),
                )
                .help("Mend the template at the place that is shown."),
        ],
    };
    for finding in findings {
        diags.push(finding.case(case.id));
    }
    None
}

/// The finding about a field that the template needs and the input does not have.
fn missing_field(template: &Template, missing: &MissingField, input: &Yaml) -> Diagnostic {
    let MissingField { field, range } = missing;
    let names: Vec<&str> = match input {
        Yaml::Map(entries) => entries
            .iter()
            .filter_map(|(key, _)| key.value.as_str())
            .collect(),
        _ => Vec::new(),
    };
    let null = input
        .get(field)
        .is_some_and(|node| node.value == Yaml::Null);
    let message = if null {
        format!("The template needs the field `{field}`, which is null in the input.")
    } else {
        let shown = names.get(..20).unwrap_or(&names).join(", ");
        let has = match names.len() {
            0 => "has no fields".to_owned(),
            1..=20 => format!("has {shown}"),
            more => format!("has {shown} and {} more", more - 20),
        };
        format!("The template needs the field `{field}`, but the input {has}.")
    };
    let near = crate::yaml::nearest(field, names.into_iter()).filter(|_| !null);
    let help = match near {
        Some(near) => format!("Did you mean `{near}`?"),
        None => format!(
            "Add `{field}` to the input, or make it optional: {{{field}?}} or \
             {{{{ input.get('{field}', '') }}}}."
        ),
    };
    template
        .finding(Rule::TemplateMissingField, message, range.as_ref())
        .help(help)
        .entry(field.clone())
}

/// Warns of placeholders of a command line that nothing replaces.
fn command_placeholders(
    runner: &Runner,
    case: &CaseDir<'_>,
    input: &Document,
    diags: &mut Diagnostics,
) {
    let words: &[String] = match &runner.command {
        Some(RunnerCommand::Text(text)) => std::slice::from_ref(text),
        Some(RunnerCommand::List(words)) => words,
        None => return,
    };
    for word in words {
        let mut rest = word.as_str();
        while let Some((_, after)) = rest.split_once('{') {
            rest = after;
            let Some((name, _)) = after.split_once('}') else {
                break;
            };
            let is_name = !name.is_empty()
                && name
                    .chars()
                    .all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-');
            if !is_name
                || COMMAND_PLACEHOLDERS.contains(&name)
                || OWN_PLACEHOLDERS.contains(&name)
                || input.root.value.get(name).is_some()
            {
                continue;
            }
            let fields = match &input.root.value {
                Yaml::Map(entries) => entries.as_slice(),
                _ => &[],
            };
            let known = COMMAND_PLACEHOLDERS
                .into_iter()
                .chain(OWN_PLACEHOLDERS)
                .chain(fields.iter().filter_map(|(key, _)| key.value.as_str()));
            let mut finding = unknown_placeholder(name).case(case.id);
            if let Some(near) = crate::yaml::nearest(name, known) {
                finding.help = format!("Did you mean {{{near}}}?");
            }
            diags.push(finding);
        }
    }
}
