//! The reader of `eval.yaml` and its case directories (agent-eval-harness 1).
//!
//! Owns which keys the file may have and what they may be; each block has a file. Refuses to know
//! targets. Invariant: everything that is wrong is told in one pass, at its place; a block that is
//! null counts as absent.

mod around;
mod case;
mod execution;
mod judging;
mod reward;
mod sources;

use std::path::Path;

use self::case::Reader;
use self::execution::ExecutionBlocks;
use super::casepack_yaml::{self, CasepackYaml};
use super::find::{self, Found};
use super::{Dataset, Format, Interception, LoadRequest, Mode, expand_home, files};
use crate::diag::{Diagnostics, Place, Rule, Severity};
use crate::digest::Digest;
use crate::template::python_str;
use crate::yaml::{Document, Fields, Value, Yaml};

/// The blocks of the file.
const BLOCKS: [&str; 18] = [
    "name",
    "description",
    "skill",
    "permissions",
    "thresholds",
    "dataset",
    "execution",
    "runner",
    "models",
    "mlflow",
    "outputs",
    "inputs",
    "traces",
    "judges",
    "reward",
    "hooks",
    "generation",
    "casepack",
];

/// Reads the config that was found, and where its cases are.
pub(super) fn load(
    found: Found,
    request: &LoadRequest,
    diags: &mut Diagnostics,
) -> Option<Dataset> {
    let shown = shown(&found.path, &found.project);
    let document = find::read_yaml(&found.path, shown, diags)?;
    let mut read = vec![Digest::of(document.source.text.as_bytes())];
    read.extend(found.casepack.as_ref().map(|casepack| casepack.read));
    let mut top = Fields::root(&document, diags)?;
    top_keys(&document, diags);
    let name = top
        .get("name")
        .and_then(|value| text(&value, diags))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| stem(&found.path));
    let description = top
        .get("description")
        .and_then(|value| text(&value, diags))
        .unwrap_or_default();
    let (cases, schema, mut files) = dataset_block(&mut top, diags);
    let blocks = execution::read(&mut top, diags);
    let steps: Vec<&str> = blocks
        .steps
        .iter()
        .filter_map(|step| step.id.as_deref())
        .collect();
    let (mut verification, wanted) =
        judging::read(&mut top, blocks.all_steps.then_some(&steps), diags);
    let tools = around::inputs(&mut top, diags);
    codex(&mut top, &blocks, tools.place.as_ref(), diags);
    let permissions = around::permissions(&mut top, diags);
    let hooks = around::hooks(&mut top, blocks.mode, diags);
    around::generation(&mut top, diags);
    around::mlflow(&mut top, diags);
    if blocks.mode == Mode::Batch {
        batch_files(&files, diags);
    }
    let (mut options, stage_skill) = options(&mut top, found.casepack, diags);
    let project = find::project_option(&mut options, &found.path, found.project, request, diags);
    top.finish_open();

    verification.judge_model.clone_from(&blocks.judge_model);
    let mut places = sources::open(
        &found.path,
        &project,
        cases.as_ref(),
        &blocks.plugin_dirs,
        request,
        diags,
    )?;
    let judge_files = places.judge_files(&wanted, &mut verification, diags);
    let mut handlers = tools.handlers;
    places.handler_files(&tools.files, &mut handlers, diags);
    let skills = places.skills(&blocks, stage_skill, diags);
    let interception = Interception {
        permissions,
        tools: handlers,
        hook_model: blocks.hook_model,
        handlers_file: places.beside("tool_handlers.yaml"),
        settings: blocks
            .settings
            .as_ref()
            .map_or(serde_json::Value::Null, |settings| {
                around::plain_json(settings.yaml())
            }),
    };
    let listed = match blocks.mode {
        Mode::Case => files.listed,
        Mode::Batch => Vec::new(),
    };
    let cases = places.cases(diags);
    let shown = places.shown_cases();
    let sources = places.finish()?;
    for entry in &mut files.shared {
        entry.source = expand_home(&entry.source, request.home);
    }
    Some(Dataset {
        read,
        format: Format::EvalYaml,
        name,
        description,
        schema,
        template_fields: execution::fields(&blocks.steps),
        cases,
        shared: files.shared,
        judge_files,
        mode: blocks.mode,
        skills,
        interception,
        reader: Box::new(Reader {
            steps: blocks.steps,
            multi_step: blocks.multi_step,
            runner: blocks.execution.runner.clone(),
            listed,
            shown,
        }),
        execution: blocks.execution,
        verification,
        hooks,
        options,
        sources,
    })
}

/// The name of the config in findings.
fn shown(path: &Path, project: &Path) -> String {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match real.strip_prefix(project) {
        Ok(below) => below.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(
        || "eval".to_owned(),
        |stem| stem.to_string_lossy().into_owned(),
    )
}

/// Warns of a top-level key that is one edit away from a block: all others belong to other tools
/// (policy 11).
fn top_keys(document: &Document, diags: &mut Diagnostics) {
    let Yaml::Map(entries) = &document.root.value else {
        return;
    };
    let values = Value::root(document)
        .entries(&mut diags.fork())
        .unwrap_or_default();
    // Both have the keys that are strings, in the order of the file.
    let keys = entries
        .iter()
        .map(|(key, _)| key)
        .filter(|key| key.value.as_str().is_some());
    for ((name, value), key) in values.into_iter().zip(keys) {
        if name == "extends" {
            diags.push(
                value
                    .finding(
                        Rule::Unsupported,
                        "`extends` is not supported: what it brings would be missing.",
                    )
                    .help("Write everything into one file."),
            );
        }
        if BLOCKS.contains(&name) || name.len() > 100 {
            continue;
        }
        let near = BLOCKS
            .into_iter()
            .find(|block| strsim::damerau_levenshtein(&name.to_lowercase(), block) <= 1);
        if let Some(block) = near {
            diags.push(
                value
                    .finding(
                        Rule::UnknownKey,
                        format!("`{name}` is not a known key, so it has no effect."),
                    )
                    .at(&document.source, key.span.clone())
                    .help(format!("Did you mean `{block}`?")),
            );
        }
    }
}

/// `dataset`: where the cases are, the schema, and `workspace.files`.
fn dataset_block<'d>(
    top: &mut Fields<'d>,
    diags: &mut Diagnostics,
) -> (Option<Value<'d>>, String, files::Files) {
    let Some(mut dataset) = top.fields("dataset", diags) else {
        return (None, String::new(), files::Files::default());
    };
    let path = dataset.get("path").filter(|value| {
        let Some(text) = value.str(diags) else {
            return false;
        };
        let upwards = text.split('/').any(|part| part == "..");
        if upwards {
            diags.push(
                value
                    .finding(
                        Rule::ParentTraversal,
                        format!("The dataset path `{text}` leads upwards (`..`)."),
                    )
                    .help("Move eval.yaml above the cases, or write an absolute path.")
                    .entry(text),
            );
        }
        !upwards
    });
    let schema = dataset
        .get("schema")
        .and_then(|value| text(&value, diags))
        .unwrap_or_default();
    let files = files::workspace(&mut dataset, diags);
    dataset.finish(diags);
    (path, schema, files)
}

/// What codex can't do (agent-eval-harness 1.2).
fn codex(
    top: &mut Fields<'_>,
    blocks: &ExecutionBlocks<'_>,
    tools: Option<&Place>,
    diags: &mut Diagnostics,
) {
    let runners = std::iter::once((&blocks.execution.runner, "runner.type".to_owned())).chain(
        blocks.steps.iter().enumerate().filter_map(|(index, step)| {
            Some((
                step.runner.as_ref()?,
                format!("execution.steps[{index}].runner.type"),
            ))
        }),
    );
    // A step's own place is not kept; the block it belongs to is near enough.
    let place = |field: &str, top: &mut Fields<'_>| {
        let block = if field == "runner.type" {
            "runner"
        } else {
            "execution"
        };
        let value = top.get(block)?;
        let inner = value
            .fields(&mut Diagnostics::default())
            .and_then(|mut fields| fields.get("type"));
        Some(inner.unwrap_or(value).place())
    };
    for (runner, field) in runners.filter(|(runner, _)| runner.kind == "codex") {
        let at = place(&field, top);
        let finding = |message: &str| {
            crate::diag::Diagnostic::new(Rule::Unsupported, message)
                .at_place(at.as_ref())
                .field(field.clone())
        };
        if let Some(tools) = tools {
            diags.push(
                finding("The runner codex does not support `inputs.tools`.")
                    .help("Use claude-code, or remove the tool handlers.")
                    .related(Some(tools), "the tool handlers"),
            );
        }
        if runner.repo_mode {
            diags.push(
                finding("The runner codex does not support `workspace_mode: repo`: nothing would keep it from the answer keys.")
                    .help("Remove workspace_mode, or use claude-code."),
            );
        }
    }
}

fn batch_files(files: &files::Files, diags: &mut Diagnostics) {
    let Some(first) = files.listed.first() else {
        return;
    };
    let names: Vec<String> = files
        .listed
        .iter()
        .map(|entry| format!("`{}`", entry.source))
        .collect();
    diags.push(
        crate::diag::Diagnostic::new(
            Rule::BatchFilesIgnored,
            format!("With `mode: batch` all cases share one workspace, so {} of each case stays behind.", names.join(", ")),
        )
        .help("Use mode: case, or a shared {dest, source} entry.")
        .at_place(first.place.as_ref())
        .field("dataset.workspace.files"),
    );
}

/// Options: those of `casepack.yaml` win over the `casepack:` block (policy 33).
fn options(
    top: &mut Fields<'_>,
    casepack: Option<CasepackYaml>,
    diags: &mut Diagnostics,
) -> (std::collections::BTreeMap<String, super::OptionValue>, bool) {
    let (mut options, mut stage_skill) = match top.get("casepack") {
        Some(value) => casepack_yaml::options(&value, &[], diags),
        None => Default::default(),
    };
    if let Some(casepack) = casepack {
        options.extend(casepack.options);
        stage_skill = casepack.stage_skill.or(stage_skill);
    }
    (options, stage_skill.unwrap_or(true))
}

/// A text; numbers, booleans and dates count as what Python's `str` makes of them, where the
/// harness does not look at the type.
fn text(value: &Value<'_>, diags: &mut Diagnostics) -> Option<String> {
    match value.yaml() {
        Yaml::Int(_) | Yaml::Float(_) | Yaml::Bool(_) | Yaml::Date(_) | Yaml::DateTime(_) => {
            Some(python_str(value.yaml()))
        }
        _ => value.str(diags).map(str::to_owned),
    }
}

/// The help for a key that is missing: a misspelled one, or what to add.
fn add(fields: &mut Fields<'_>, key: &'static str, otherwise: &str) -> String {
    match fields.meant(key) {
        Some(written) => format!("Did you mean `{key}` instead of `{written}`?"),
        None => otherwise.to_owned(),
    }
}

/// A number as it is, without a finding.
fn number(value: &Value<'_>) -> Option<f64> {
    match value.yaml() {
        Yaml::Int(number) => number.to_string().parse().ok(),
        Yaml::Float(number) => Some(*number),
        _ => None,
    }
}

fn bad_number(value: &Value<'_>, what: &str, diags: &mut Diagnostics) {
    diags.push(
        value
            .finding(
                Rule::BadValue,
                format!("`{}` must be {what}.", value.path()),
            )
            .help(format!("Write {what}, without quotes."))
            .severity(Severity::Error),
    );
}

/// A number above zero.
fn positive(value: &Value<'_>, diags: &mut Diagnostics) -> Option<f64> {
    let found = number(value).filter(|number| *number > 0.0 && number.is_finite());
    if found.is_none() {
        bad_number(value, "a number above 0", diags);
    }
    found
}

/// A number of at least zero.
fn non_negative(value: &Value<'_>, diags: &mut Diagnostics) -> Option<f64> {
    let found = number(value).filter(|number| *number >= 0.0 && number.is_finite());
    if found.is_none() {
        bad_number(value, "a number of at least 0", diags);
    }
    found
}

/// A whole number of at least one.
fn whole(value: &Value<'_>, diags: &mut Diagnostics) -> Option<i64> {
    let found = match value.yaml() {
        Yaml::Int(number) => i64::try_from(number).ok().filter(|number| *number > 0),
        _ => None,
    };
    if found.is_none() {
        bad_number(value, "a whole number of at least 1", diags);
    }
    found
}

#[cfg(test)]
mod tests;
