//! `casepack report`: the reports of a run, or of the shards of one run merged.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Context;
use super::args;
use super::exit::Exit;
use super::input::refused;
use super::outcome::{Failure, Outcome};
use super::run::show;
use super::ui::{Cell, Ink, Table, count};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::escape;
use crate::report::{self, Change, Changed, DOCUMENTS, Report, Unreadable};
use crate::run::{RunResults, Secrets};

/// Cases that differ from the earlier run and are shown to people without `-v`.
const SHOWN: usize = 20;

pub(super) fn run(args: &args::Report, context: &Context) -> Outcome {
    let mut diags = Diagnostics::new(args.levels.levels());
    let read = |named: &Path| report::read(&find(named, &args.runs_dir, context));
    let mut runs = Vec::new();
    for named in &args.runs {
        match read(named) {
            Ok(results) => runs.push(results),
            Err(error) => return unreadable(&error, diags),
        }
    }
    let before = match args.baseline.as_deref().map(read).transpose() {
        Ok(before) => before,
        Err(error) => return unreadable(&error, diags),
    };
    for (at, run) in runs.iter().enumerate() {
        if runs.iter().take(at).any(|other| other.dir == run.dir) {
            let failure = Failure::new(
                format!(
                    "The run '{}' is named twice.",
                    context.machine.shown(&run.dir)
                ),
                "Name each shard of a run once.",
            );
            return refused(diags, failure);
        }
    }
    let own = (runs.len() == 1).then(|| runs.first()).flatten();
    let into = match (&args.dir, own) {
        (Some(dir), _) => context.machine.absolute(dir),
        (None, Some(own)) => own.dir.clone(),
        (None, None) => {
            let failure = Failure::new(
                "Several runs are merged into a directory of their own, and none is named.",
                "Add -o DIR.",
            );
            return refused(diags, failure);
        }
    };
    let in_place = own.is_some_and(|own| is_same(&own.dir, &into));
    if !in_place && let Err(failure) = check_free(&into, &runs, context) {
        return refused(diags, failure);
    }
    let Some(merged) = report::merge(&runs, &mut diags) else {
        let failure = Failure::new(
            "Nothing was written, because of the errors above.",
            "Name runs that are parts of one.",
        );
        return Outcome::of(diags).failed(Exit::Findings, failure);
    };
    let mut report = Report::of_merged(&merged, Secrets::of(&context.machine.env));
    if let Some(before) = &before {
        report = report.against(before);
        let told = report::strangeness(before, &merged.results);
        if !told.is_empty() {
            diags.push(Diagnostic::new(Rule::BaselineDiffers, told.join(" ")).help(
                "Nothing has to be done if that is meant; else name a run of the same dataset.",
            ));
        }
    }
    let written = write(&report, &merged.results, &into, in_place);
    let path = match written {
        Ok(path) => path,
        Err(error) => {
            let failure = Failure::from_error(
                &error,
                "Check that you may write there and that there is space.",
            );
            return Outcome::of(diags).failed(Exit::System, failure);
        }
    };
    let mut outcome = show(&merged.results, &path, context, diags);
    let documents = DOCUMENTS.map(|name| context.machine.shown(&into.join(name)));
    for document in &documents {
        outcome
            .text
            .extend(["Report: ", &escape::line(document), "\n"]);
    }
    outcome = outcome.field("reports", documents.to_vec());
    if let Some((before, changes)) = report.compared() {
        outcome.text.push_str(&compared(before, changes, context));
        let changes: Vec<_> = changes.iter().map(document).collect();
        outcome = outcome
            .field("baseline", before.run_id.clone())
            .field("changes", changes);
    }
    outcome
}

/// A run is named by its directory, by a file in it that casepack wrote, or by its name.
fn find(named: &Path, runs_dir: &Path, context: &Context) -> PathBuf {
    let path = context.machine.absolute(named);
    if path.is_dir() {
        return path;
    }
    if path.is_file()
        && let Some(dir) = path.parent()
    {
        return dir.to_owned();
    }
    if named.components().count() == 1 {
        return context.machine.absolute(runs_dir).join(named);
    }
    path
}

fn unreadable(error: &Unreadable, diags: Diagnostics) -> Outcome {
    let (exit, help) = match error {
        Unreadable::NoRun { .. } => (
            Exit::Usage,
            "Name a run by its directory, or by its name below --runs-dir.".to_owned(),
        ),
        Unreadable::Unfinished { path, .. } => {
            let id = path.file_name().unwrap_or_default().to_string_lossy();
            let help = format!(
                "Add --resume {id} to the command that began it: it runs the rest and writes the \
                 reports."
            );
            (Exit::Usage, help)
        }
        Unreadable::Invalid { .. } => (
            Exit::Findings,
            "Name the run as casepack left it; results.json is not to be edited.".to_owned(),
        ),
        Unreadable::Io { .. } => (Exit::System, "Check that you may read it.".to_owned()),
    };
    Outcome::of(diags).failed(exit, Failure::from_error(error, help))
}

fn is_same(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(a) == real(b)
}

/// Whether reports may be written to `dir`: nothing is there, or earlier reports are.
fn check_free(dir: &Path, runs: &[RunResults], context: &Context) -> Result<(), Failure> {
    let shown = context.machine.shown(dir);
    if runs.iter().any(|run| is_same(&run.dir, dir)) {
        return Err(Failure::new(
            format!("'{shown}' is one of the runs that are merged."),
            "Name another directory with -o.",
        ));
    }
    let mut entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // That it can't be made is told when it is made.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Failure {
                message: format!("'{shown}' can not be used for reports."),
                causes: vec![error.to_string()],
                help: "Name another directory with -o.".to_owned(),
            });
        }
    };
    if entries.next().is_none() || report::read(dir).is_ok() {
        return Ok(());
    }
    Err(Failure::new(
        format!("'{shown}' holds other things than reports."),
        "Name a directory with -o that is empty or does not exist yet.",
    ))
}

/// Writes the reports; returns where the results are.
fn write(
    report: &Report<'_>,
    results: &RunResults,
    into: &Path,
    in_place: bool,
) -> Result<PathBuf, crate::fs::FsError> {
    if in_place {
        // They are there, perhaps from a later casepack that knows more.
        report.write(into)?;
        return Ok(into.join("results.json"));
    }
    fs::create_dir_all(into).map_err(|source| crate::fs::FsError {
        path: into.to_owned(),
        source,
    })?;
    let path = report::write_results(results, into)?;
    report.write(into)?;
    Ok(path)
}

fn document(changed: &Changed<'_>) -> Value {
    let result = |case: Option<&crate::run::CaseResult>| {
        case.map(|case| json!({ "status": case.status.name(), "reward": case.reward }))
    };
    json!({
        "case": changed.case,
        "change": changed.change.name(),
        "before": result(changed.before),
        "now": result(changed.after),
    })
}

fn compared(before: &RunResults, changes: &[Changed<'_>], context: &Context) -> String {
    let mut table = Table::default();
    let shown = if context.look.verbose {
        changes.len()
    } else {
        SHOWN
    };
    let told = |case: Option<&crate::run::CaseResult>| {
        case.map_or_else(String::new, |case| {
            let reward = case.reward.map(|reward| format!(" {reward:.2}"));
            format!("{}{}", case.status.name(), reward.unwrap_or_default())
        })
    };
    for it in changes.iter().take(shown) {
        let ink = match it.change {
            Change::Broken => Ink::Bad,
            Change::Fixed => Ink::Good,
            Change::Reward | Change::New | Change::Gone => Ink::Unsure,
        };
        table.row([
            Cell::new(it.change.name()).ink(ink),
            Cell::new(it.case),
            Cell::new(told(it.before)),
            Cell::new("→"),
            Cell::new(told(it.after)),
        ]);
    }
    let id = escape::line(&before.run_id);
    let differ = count(changes.len(), "case differs", "cases differ");
    let mut text = format!(
        "Compared with {id}: {differ}.\n{}",
        table.show(context.look.color_out)
    );
    if changes.len() > shown {
        let more = (changes.len() - shown).to_string();
        text.extend(["… and ", &more, " more (-v shows all)\n"]);
    }
    text
}
