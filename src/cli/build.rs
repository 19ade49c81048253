//! `casepack build`: the dataset, compiled for its targets.

use std::path::Path;

use super::Context;
use super::args::{Build, Building, Destination, TargetName};
use super::checks;
use super::exit::Exit;
use super::input::{self, Loaded};
use super::outcome::{Failure, Outcome, ids, interrupted};
use super::ui::{Progress, count, size};
use super::watch;
use crate::bundle::Compression;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::escape;
use crate::plan::{self, Doubt, Summary};
use crate::target::Target;

pub(super) fn run(args: &Build, context: &Context) -> Outcome {
    if args.watch {
        return watch::run(&args.building, context);
    }
    once(&args.building, context).0
}

/// One build, and where what it read lies.
pub(super) fn once(args: &Building, context: &Context) -> (Outcome, Option<watch::Places>) {
    let mut diags = Diagnostics::new(args.input.levels.levels_to_ship());
    let loaded = match input::load(&args.input, &args.packaging, context, &mut diags) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return (Outcome::of(diags), None),
        Err(failure) => return (input::refused(diags, failure), None),
    };
    let places = Some(watch::places(&loaded.dataset));
    let targets = targets(&args.target, &loaded, &mut diags);
    let summary = match build(&loaded, &targets, &args.destination, context, &mut diags) {
        Ok(summary) => summary,
        Err(stopped) => return (stopped.outcome(diags), places),
    };
    let out = args.destination.out.to_string_lossy().into_owned();
    let text = told(&summary, &out);
    let mut built = ids(&summary.new);
    built.extend(ids(&summary.changed));
    built.sort();
    let names: Vec<_> = targets.iter().map(|target| target.name()).collect();
    let mut outcome = Outcome::of(diags)
        .field("dataset", input::describe(&loaded.dataset))
        .field("out", out)
        .field("targets", names)
        .field("built", built)
        .field("new", ids(&summary.new))
        .field("changed", ids(&summary.changed))
        .field("unchanged", ids(&summary.unchanged))
        .field("failed", ids(&summary.failed))
        .field(
            "dataset_digest",
            summary.dataset_digest.map(|digest| digest.to_string()),
        )
        .field("release", summary.release.map(|digest| digest.to_string()))
        .field("removed", summary.removed)
        .field("files", summary.files)
        .field("bytes", summary.bytes);
    outcome.text = text;
    if summary.interrupted {
        outcome = interrupted(outcome, "What was built is whole.");
    }
    (outcome, places)
}

/// Why nothing was built.
pub(super) enum Stopped {
    /// The dataset has errors.
    Findings,
    /// The output directory can't be used.
    Failed(Failure),
}

impl Stopped {
    /// How the command ends.
    pub(super) fn outcome(self, diags: Diagnostics) -> Outcome {
        match self {
            Self::Findings => Outcome::of(diags),
            Self::Failed(failure) => Outcome::of(diags).failed(Exit::System, failure),
        }
    }
}

/// Builds what is selected, and shows the progress.
pub(super) fn build(
    loaded: &Loaded,
    targets: &[Target],
    destination: &Destination,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Summary, Stopped> {
    // What is wrong with a case is told with the case; what is wrong with the dataset is wrong with
    // all of them, and no output is made of it.
    if diags.has_errors() {
        return Err(Stopped::Findings);
    }
    let out = context.machine.absolute(&destination.out);
    let env = &context.machine.env;
    let vet =
        |diags: &mut Diagnostics| checks::compile(&loaded.dataset, &loaded.options, env, diags);
    let request = request(loaded, targets, destination, &out, &vet, context);
    let progress = Progress::new(&context.look);
    plan::build(&request, &progress, diags).map_err(|error| {
        let help =
            "Check that you may write there and that there is space; what is finished stays.";
        Stopped::Failed(Failure::from_error(&error, help))
    })
}

/// What is asked of `plan`.
pub(super) fn request<'a>(
    loaded: &'a Loaded,
    targets: &'a [Target],
    destination: &Destination,
    out: &'a Path,
    vet: &'a dyn Fn(&mut Diagnostics),
    context: &'a Context,
) -> plan::Request<'a> {
    plan::Request {
        link: destination.link,
        compression: destination.compression,
        doubt: Doubt {
            inputs: destination.no_index,
            outputs: destination.no_index || destination.verify_outputs,
        },
        force: destination.force,
        ..compare_request(loaded, targets, out, vet, context)
    }
}

/// What is asked of `plan` where nothing is written.
pub(super) fn compare_request<'a>(
    loaded: &'a Loaded,
    targets: &'a [Target],
    out: &'a Path,
    vet: &'a dyn Fn(&mut Diagnostics),
    context: &'a Context,
) -> plan::Request<'a> {
    plan::Request {
        dataset: &loaded.dataset,
        targets,
        out,
        jobs: loaded.jobs,
        select: &loaded.select,
        harbor: &loaded.options,
        link: false,
        compression: Compression::default(),
        doubt: Doubt::default(),
        force: false,
        vet,
        helpers: context.machine.python(),
        stop: &context.stop,
    }
}

/// The targets that are named, else those of the dataset's files, else Harbor.
pub(super) fn targets(
    given: &[TargetName],
    loaded: &Loaded,
    diags: &mut Diagnostics,
) -> Vec<Target> {
    let mut targets: Vec<Target> = given.iter().map(|target| target.meant()).collect();
    if targets.is_empty() {
        targets = from_dataset(loaded, diags);
    }
    if targets.is_empty() {
        targets.push(Target::Harbor);
    }
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// The option `target` of the dataset's files.
fn from_dataset(loaded: &Loaded, diags: &mut Diagnostics) -> Vec<Target> {
    let Some(option) = loaded.dataset.options.get("target") else {
        return Vec::new();
    };
    let mut targets = Vec::new();
    for name in option
        .text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        match Target::from_name(name) {
            Some(target) => targets.push(target),
            None => diags.push(
                Diagnostic::new(Rule::BadValue, format!("There is no target '{name}'."))
                    .help("The targets are: workspace, harbor, evalhub, bundle.")
                    .at_place(option.place.as_ref())
                    .entry(name),
            ),
        }
    }
    targets
}

fn told(summary: &Summary, out: &str) -> String {
    let built = summary.new.len() + summary.changed.len();
    let mut text = format!(
        "Built {} in {} ({}, {})",
        count(built, "case", "cases"),
        escape::line(out),
        count(
            summary.files.try_into().unwrap_or(usize::MAX),
            "file",
            "files"
        ),
        size(summary.bytes),
    );
    let numbers = [
        (summary.new.len(), "new"),
        (summary.changed.len(), "changed"),
        (summary.unchanged.len(), "unchanged"),
        (summary.removed.len(), "removed"),
        (summary.failed.len(), "failed"),
    ];
    text.push_str(&tally(&numbers));
    text.push_str(".\n");
    text
}

/// `: 2 new, 7 unchanged`; nothing where there is nothing to count.
pub(super) fn tally(numbers: &[(usize, &str)]) -> String {
    let some = numbers.iter().filter(|(number, _)| *number > 0);
    let words: Vec<String> = some
        .map(|(number, what)| format!("{number} {what}"))
        .collect();
    if words.is_empty() {
        return String::new();
    }
    format!(": {}", words.join(", "))
}

impl TargetName {
    /// The target of that name.
    pub(super) fn meant(self) -> Target {
        match self {
            Self::Harbor => Target::Harbor,
            Self::Workspace => Target::Workspace,
            Self::Evalhub => Target::EvalHub,
            Self::Bundle => Target::Bundle,
        }
    }
}
