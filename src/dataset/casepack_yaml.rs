//! `casepack.yaml` and the `casepack:` block: options of targets, and what a dataset is that has
//! no place for them (policy 33).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Format, LoadRequest, OptionValue, SharedEntry, files, find};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::digest::Digest;
use crate::template::python_str;
use crate::yaml::{Fields, Value, Yaml};

/// What a `casepack.yaml` says.
pub(super) struct CasepackYaml {
    /// The digest of its text.
    pub(super) read: Digest,
    /// The directory it lies in; absolute.
    pub(super) directory: PathBuf,
    /// `config`: the `eval.yaml` that it belongs to; absolute.
    config: Option<PathBuf>,
    /// `dataset.path`: the directory of the Harbor tasks; absolute.
    tasks: Option<PathBuf>,
    /// `dataset.workspace.files`: what every task gets.
    pub(super) shared: Vec<SharedEntry>,
    /// `stage_skill`
    pub(super) stage_skill: Option<bool>,
    /// All other keys, by flag name.
    pub(super) options: BTreeMap<String, OptionValue>,
}

impl CasepackYaml {
    /// The dataset that it names.
    pub(super) fn names(&self) -> Option<(Format, PathBuf)> {
        match (&self.config, &self.tasks) {
            (Some(config), _) => Some((Format::EvalYaml, config.clone())),
            (None, Some(tasks)) => Some((Format::HarborTask, tasks.clone())),
            (None, None) => None,
        }
    }
}

/// Reads a `casepack.yaml`.
pub(super) fn read(
    path: &Path,
    request: &LoadRequest,
    diags: &mut Diagnostics,
) -> Option<CasepackYaml> {
    let directory = path.parent().unwrap_or(path).to_owned();
    let document = find::read_yaml(path, find::relative(path, request.cwd), diags)?;
    let mut top = Fields::root(&document, diags)?;
    let config = top.get("config");
    let dataset = top.get("dataset");
    if let (Some(config), Some(dataset)) = (&config, &dataset) {
        diags.push(
            dataset
                .finding(
                    Rule::MutuallyExclusive,
                    "`config` and `dataset` can not be used together: an eval.yaml has a dataset \
                     block of its own.",
                )
                .help("Remove one of them.")
                .related(Some(&config.place()), "`config` is here"),
        );
    }
    let names_config = config.is_some();
    let config =
        config.and_then(|value| existing(&value, &directory, fs::Metadata::is_file, "file", diags));
    let (tasks, shared) = dataset.and_then(|value| value.fields(diags)).map_or_else(
        || (Ok(None), Vec::new()),
        |dataset| tasks(dataset, &directory, diags),
    );
    let (options, stage_skill) = options(&Value::root(&document), &["config", "dataset"], diags);
    top.finish_open();
    // What it names is not there: told, and nothing else is meant.
    let usable = (config.is_some() || !names_config) && tasks.is_ok();
    let tasks = tasks.unwrap_or_default();
    usable.then_some(CasepackYaml {
        read: Digest::of(document.source.text.as_bytes()),
        directory,
        config,
        tasks,
        shared,
        stage_skill,
        options,
    })
}

/// `dataset`: the directory of the tasks, or `Err` when it is not there; and what they share.
fn tasks(
    mut dataset: Fields<'_>,
    directory: &Path,
    diags: &mut Diagnostics,
) -> (Result<Option<PathBuf>, ()>, Vec<SharedEntry>) {
    let tasks = match dataset.get("path") {
        Some(value) => existing(&value, directory, fs::Metadata::is_dir, "directory", diags)
            .map(Some)
            .ok_or(()),
        None => Ok(None),
    };
    let files = files::workspace(&mut dataset, diags);
    for entry in &files.listed {
        diags.push(
            Diagnostic::new(
                Rule::Unsupported,
                format!(
                    "'{}' can not be listed here: a Harbor task already has its own files.",
                    entry.source
                ),
            )
            .help("Use {dest, source} for what all tasks share.")
            .at_place(entry.place.as_ref())
            .field(entry.field.clone())
            .entry(entry.source.clone()),
        );
    }
    dataset.finish(diags);
    (tasks, files.shared)
}

fn existing(
    value: &Value<'_>,
    directory: &Path,
    wanted: fn(&fs::Metadata) -> bool,
    what: &str,
    diags: &mut Diagnostics,
) -> Option<PathBuf> {
    let text = value.str(diags)?;
    let path: PathBuf = directory.join(text).components().collect();
    if fs::metadata(&path).is_ok_and(|metadata| wanted(&metadata)) {
        return Some(path);
    }
    diags.push(
        value
            .finding(
                if what == "file" {
                    Rule::ConfigNotFound
                } else {
                    Rule::DatasetNotFound
                },
                format!("There is no {what} '{text}'."),
            )
            .help("Correct the path; it is relative to the directory of casepack.yaml.")
            .entry(text),
    );
    None
}

/// The options of a mapping, by flag name, without the keys `not`; and `stage_skill`.
pub(super) fn options(
    value: &Value<'_>,
    not: &[&str],
    diags: &mut Diagnostics,
) -> (BTreeMap<String, OptionValue>, Option<bool>) {
    let mut options = BTreeMap::new();
    let mut stage_skill = None;
    let entries = match value.yaml() {
        Yaml::Null => Vec::new(),
        _ => value.entries(diags).unwrap_or_default(),
    };
    for (name, value) in entries {
        let flag = name.replace('_', "-");
        if not.contains(&name) || *value.yaml() == Yaml::Null {
            continue;
        }
        if flag == "stage-skill" {
            stage_skill = value.bool(diags);
            continue;
        }
        let Some(text) = option_text(&value, diags) else {
            continue;
        };
        let place = Some(value.place());
        options.insert(flag, OptionValue { text, place });
    }
    (options, stage_skill)
}

/// An option as its flag would take it: lists with commas.
fn option_text(value: &Value<'_>, diags: &mut Diagnostics) -> Option<String> {
    match value.yaml() {
        Yaml::Bool(value) => Some(value.to_string()),
        Yaml::Str(text) => Some(text.to_string()),
        Yaml::Int(_) | Yaml::Float(_) => Some(python_str(value.yaml())),
        Yaml::Seq(_) => {
            let items = value.items(diags)?;
            let texts: Vec<String> = items
                .iter()
                .filter_map(|item| match item.yaml() {
                    Yaml::Int(_) | Yaml::Float(_) => Some(python_str(item.yaml())),
                    _ => item.str(diags).map(str::to_owned),
                })
                .collect();
            Some(texts.join(","))
        }
        _ => {
            diags.push(
                value
                    .wrong_type("a text, a number, true or false, or a list")
                    .help("Write the option as its flag takes it."),
            );
            None
        }
    }
}
