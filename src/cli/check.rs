//! `casepack check`: everything is loaded and validated, nothing is written.

use super::Context;
use super::args::Check;
use super::checks;
use super::input::{self, Loaded};
use super::outcome::{Outcome, ids, interrupted};
use super::ui::{Progress, count};
use crate::diag::Diagnostics;
use crate::{escape, plan};

pub(super) fn run(args: &Check, context: &Context) -> Outcome {
    let mut diags = Diagnostics::new(args.input.levels.levels());
    let loaded = match input::load(&args.input, &args.packaging, context, &mut diags) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Outcome::of(diags),
        Err(failure) => return input::refused(diags, failure),
    };
    let Loaded {
        dataset,
        select,
        options,
        jobs,
    } = &loaded;
    checks::compile(dataset, options, &context.machine.env, &mut diags);
    let progress = Progress::new(&context.look);
    let summary = plan::check(
        dataset,
        select,
        options,
        *jobs,
        &context.stop,
        &progress,
        &mut diags,
    );
    drop(progress);

    let (fine, failed) = (summary.unchanged.len(), summary.failed.len());
    let end = match (failed, diags.has_errors()) {
        (0, false) => ", no errors.".to_owned(),
        (0, true) => "; the dataset has errors.".to_owned(),
        (failed, _) => format!(", {failed} with errors."),
    };
    let name = escape::line(&dataset.name);
    let cases = count(fine + failed, "case", "cases");
    let text = format!("{name}: {cases} checked{end}\n");
    let mut outcome = Outcome::of(diags)
        .field("dataset", input::describe(dataset))
        .field("checked", fine + failed)
        .field("failed", ids(&summary.failed));
    outcome.text = text;
    if summary.interrupted {
        return interrupted(outcome, "Not every case was checked.");
    }
    outcome
}
