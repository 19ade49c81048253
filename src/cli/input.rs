//! From arguments to a dataset and the options of its targets (policy 33): what `check`, `build`
//! and `run` begin with.

use super::Context;
use super::args::{Input, Packaging, Reading};
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::settings;
use crate::dataset::{self, Dataset};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::path::CaseId;
use crate::plan::Select;
use crate::target::harbor;

/// What is to be worked on.
pub(super) struct Loaded {
    pub(super) dataset: Dataset,
    pub(super) select: Select,
    pub(super) options: harbor::Options,
    /// Cases at a time.
    pub(super) jobs: usize,
}

/// Options of the dataset's files that are none of the Harbor target.
const OWN_OPTIONS: &[&str] = &["project-root", "stage-skill", "target"];

/// Loads the dataset. `None` when it can't be used at all; the reasons are in `diags`.
///
/// # Errors
/// What is wrong with the command line.
pub(super) fn load(
    input: &Input,
    packaging: &Packaging,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Option<Loaded>, Failure> {
    let flags = packaging.flags();
    refuse_bad_flags(&flags)?;
    let globs = input.reading.globs();
    let select = select(&input.reading)?;
    let request = context.machine.load_request(input);
    refuse_missing_dirs(&request)?;
    let Some(dataset) = dataset::load(&request, diags) else {
        return Ok(None);
    };
    if !globs.is_empty() && !dataset.cases.iter().any(|case| select.names(case)) {
        return Err(no_case(&globs, &dataset.cases));
    }
    unknown_options(&dataset, diags);
    let options = harbor::Options::from_settings(&flags, &dataset.options, diags);
    Ok(Some(Loaded {
        dataset,
        select,
        options,
        jobs: settings::jobs(input.reading.jobs),
    }))
}

/// The cases that are meant by `--case` and `--shard`.
///
/// # Errors
/// The pattern that is none.
pub(super) fn select(reading: &Reading) -> Result<Select, Failure> {
    let select = Select::new(&reading.globs()).map_err(|(glob, why)| {
        Failure::new(
            format!("'{glob}' is no pattern for --case: {why}."),
            "Use *, ?, [abc] and {a,b}; put [*] for a star that is meant.",
        )
    })?;
    Ok(match reading.shard {
        Some((index, count)) => select.shard(index, count),
        None => select,
    })
}

/// Directories of the command line that are none: exit 2.
fn refuse_missing_dirs(request: &dataset::LoadRequest<'_>) -> Result<(), Failure> {
    let root = request.project_root.map(|root| ("--project-root", root));
    let plugins = request
        .plugin_dirs
        .iter()
        .map(|dir| ("--plugin-dir", dir.as_path()));
    for (flag, dir) in root.into_iter().chain(plugins) {
        if !request.cwd.join(dir).is_dir() {
            return Err(Failure::new(
                format!("{flag} '{}' is no directory.", dir.display()),
                "Correct the path; it is relative to the current directory.",
            ));
        }
    }
    Ok(())
}

/// How a command ends whose command line is wrong.
pub(super) fn refused(diags: Diagnostics, failure: Failure) -> Outcome {
    Outcome::of(diags).failed(Exit::Usage, failure)
}

/// The dataset, for documents.
pub(super) fn describe(dataset: &Dataset) -> serde_json::Value {
    serde_json::json!({
        "name": dataset.name,
        "format": dataset.format.name(),
        "config": dataset.sources.config.to_string_lossy(),
        "project_root": dataset.sources.project.to_string_lossy(),
        "cases": dataset.cases.len(),
    })
}

/// Values of flags are the command line's fault, not the dataset's: exit 2.
fn refuse_bad_flags(flags: &harbor::Flags) -> Result<(), Failure> {
    let mut diags = Diagnostics::default();
    harbor::Options::from_settings(flags, &std::collections::BTreeMap::new(), &mut diags);
    match diags.iter().find(|it| it.severity == Severity::Error) {
        Some(finding) => Err(Failure::new(finding.message.clone(), finding.help.clone())),
        None => Ok(()),
    }
}

pub(super) fn no_case(globs: &[String], all: &[CaseId]) -> Failure {
    let cases: Vec<_> = all.iter().take(8).map(CaseId::as_str).collect();
    let more = if all.len() > cases.len() { ", …" } else { "" };
    let help = if cases.is_empty() {
        "The dataset has no cases.".to_owned()
    } else {
        format!("The cases are: {}{more}", cases.join(", "))
    };
    Failure::new(format!("No case matches --case {}.", globs.join(" ")), help)
}

fn unknown_options(dataset: &Dataset, diags: &mut Diagnostics) {
    for (name, value) in &dataset.options {
        let flag = name.replace('_', "-");
        let known = || harbor::Options::NAMES.iter().chain(OWN_OPTIONS);
        if known().any(|known| *known == flag) {
            continue;
        }
        let near = super::args::nearest(&flag, known().copied());
        let help = near.map_or_else(
            || {
                format!(
                    "The options are: {}.",
                    known().copied().collect::<Vec<_>>().join(", ")
                )
            },
            |near| format!("Did you mean `{near}`?"),
        );
        diags.push(
            Diagnostic::new(Rule::UnknownKey, format!("There is no option `{name}`."))
                .help(help)
                .at_place(value.place.as_ref())
                .entry(name),
        );
    }
}
