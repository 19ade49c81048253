//! `casepack diff`: what differs between two builds, two datasets, a dataset and a build, or two
//! releases.

mod stored;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Context;
use super::args::{Diff, Input};
use super::exit::Exit;
use super::input::{self, Loaded};
use super::outcome::{Failure, Outcome, interrupted};
use super::ui::{Cell, Ink, Progress, Table, count};
use super::verify::{brief, build_at, ink};
use super::{build, settings, store};
use crate::diag::Diagnostics;
use crate::escape;
use crate::plan::{self, Change, Comparison, Crew, FileChange, Side};
use crate::target::Target;

/// Lines that are shown to people without `-v`.
const SHOWN: usize = 50;

/// A side, as far as the command line knows it.
enum Found {
    Built(PathBuf),
    Dataset(Box<Loaded>),
}

pub(super) fn run(args: &Diff, context: &Context) -> Outcome {
    let mut diags = Diagnostics::new(args.levels.levels());
    let target = args.target.meant();
    match stored::sides(args, context) {
        Ok(Some(sides)) => {
            return stored::run(&sides, args, context).unwrap_or_else(store::stopped);
        }
        Ok(None) => {}
        Err(failure) => return input::refused(diags, failure),
    }
    let mut found = Vec::new();
    for path in [&args.a, &args.b] {
        match find(path, args, context, &mut diags) {
            Ok(Some(side)) => found.push(side),
            Ok(None) => return Outcome::of(diags),
            Err(failure) => return input::refused(diags, failure),
        }
    }
    let select = match input::select(&args.reading) {
        Ok(select) => select,
        Err(failure) => return input::refused(diags, failure),
    };
    let progress = Progress::new(&context.look);
    let nowhere = PathBuf::new();
    let targets = [target];
    let vet = |_: &mut Diagnostics| {};
    let requests: Vec<Option<plan::Request<'_>>> = found
        .iter()
        .map(|side| match side {
            Found::Built(_) => None,
            Found::Dataset(loaded) => Some(build::compare_request(
                loaded, &targets, &nowhere, &vet, context,
            )),
        })
        .collect();
    let sides: Vec<Side<'_>> = found
        .iter()
        .zip(&requests)
        .map(|(side, request)| match (side, request) {
            (Found::Built(out), _) => Side::Built(out, &select),
            (Found::Dataset(_), Some(request)) => Side::Dataset(request),
            // A dataset has a request: see above.
            (Found::Dataset(_), None) => Side::Built(&nowhere, &select),
        })
        .collect();
    let [a, b] = sides.as_slice() else {
        return Outcome::of(diags);
    };
    let crew = Crew {
        jobs: settings::jobs(args.reading.jobs),
        stop: &context.stop,
        observer: &progress,
    };
    let compared = plan::diff([a, b], target, &crew, &mut diags);
    drop(progress);
    match compared {
        Ok(Some(comparison)) => tell(args, target, &comparison, diags, context),
        Ok(None) if diags.has_errors() => Outcome::of(diags),
        Ok(None) => {
            let failure = Failure::new(
                format!("One of the two was not built for {}.", target.name()),
                "Name another target with --target, or build for this one first.",
            );
            Outcome::of(diags).failed(Exit::Usage, failure)
        }
        Err(error) => {
            let help = "Check that you may read there.";
            Outcome::of(diags).failed(Exit::System, Failure::from_error(&error, help))
        }
    }
}

fn find(
    path: &Path,
    args: &Diff,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Option<Found>, Failure> {
    if let Some(out) = build_at(&context.machine.absolute(path)) {
        return Ok(Some(Found::Built(out)));
    }
    let input = Input {
        path: path.to_owned(),
        reading: args.reading.clone(),
        levels: args.levels.clone(),
    };
    let loaded = input::load(&input, &args.packaging, context, diags)?;
    Ok(loaded.map(|loaded| Found::Dataset(Box::new(loaded))))
}

fn tell(
    args: &Diff,
    target: Target,
    comparison: &Comparison,
    diags: Diagnostics,
    context: &Context,
) -> Outcome {
    let Comparison {
        added,
        removed,
        changed,
        same,
        interrupted: stopped,
    } = comparison;
    let mut text = table(target, comparison, context);
    let [a, b] = [&args.a, &args.b].map(|path| path.to_string_lossy().into_owned());
    let numbers = [
        (added.len(), "added"),
        (removed.len(), "removed"),
        (changed.len(), "changed"),
        (*same, "the same"),
    ];
    let outputs = count(
        added.len() + removed.len() + changed.len() + same,
        "output",
        "outputs",
    );
    text.extend([
        &escape::line(&a),
        " → ",
        &escape::line(&b),
        ", ",
        &outputs,
        &build::tally(&numbers),
        ".\n",
    ]);
    let files = |changed: &plan::Changed| {
        let files = changed.files.as_ref();
        json!({
            "output": changed.place,
            "files": files.map(|files| files.iter().map(file).collect::<Vec<_>>()),
        })
    };
    let differ = added.len() + removed.len() + changed.len() > 0;
    let mut outcome = Outcome::of(diags)
        .field("a", a)
        .field("b", b)
        .field("target", target.name())
        .field("added", added.clone())
        .field("removed", removed.clone())
        .field("changed", changed.iter().map(files).collect::<Vec<_>>())
        .field("same", *same);
    outcome.text = text;
    if *stopped {
        return interrupted(outcome, "Not everything was compared.");
    }
    if differ {
        outcome.at_least(Exit::Findings)
    } else {
        outcome
    }
}

fn file(file: &FileChange) -> Value {
    let text = |digest: &Option<crate::digest::Digest>| digest.as_ref().map(ToString::to_string);
    json!({
        "file": file.path.as_str(),
        "change": file.change.name(),
        "old": text(&file.old),
        "new": text(&file.new),
    })
}

fn table(target: Target, comparison: &Comparison, context: &Context) -> String {
    let mut table = Table::default();
    let mut rows = 0;
    let limit = if context.look.verbose {
        usize::MAX
    } else {
        SHOWN
    };
    let mut row = |word: &str, ink: Ink, place: String, what: String| {
        rows += 1;
        if rows <= limit {
            table.row([
                Cell::new(word).ink(ink),
                Cell::new(format!("{}/{place}", target.name())),
                Cell::new(what).ink(Ink::Faint),
            ]);
        }
    };
    for place in &comparison.added {
        row("added", Ink::Good, place.clone(), String::new());
    }
    for place in &comparison.removed {
        row("removed", Ink::Bad, place.clone(), String::new());
    }
    for changed in &comparison.changed {
        let Some(files) = &changed.files else {
            row(
                "changed",
                Ink::Unsure,
                changed.place.clone(),
                "one side can not be read file by file".to_owned(),
            );
            continue;
        };
        for file in files {
            let what = match (&file.old, &file.new) {
                (Some(old), Some(new)) if file.change == Change::Content => {
                    format!("{} → {}", brief(&old.to_string()), brief(&new.to_string()))
                }
                _ => String::new(),
            };
            row(
                file.change.name(),
                ink(file.change),
                format!("{}/{}", changed.place, file.path),
                what,
            );
        }
    }
    let mut text = table.show(context.look.color_out);
    if rows > limit {
        let more = (rows - limit).to_string();
        text.extend(["… and ", &more, " more (-v shows all)\n"]);
    }
    text
}
