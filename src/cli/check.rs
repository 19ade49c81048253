//! `casepack check`: everything is loaded and validated, nothing is written.

use super::Context;
use super::args::Check;
use super::outcome::Outcome;
use crate::dataset;
use crate::diag::Diagnostics;

pub(super) fn run(args: &Check, context: &Context) -> Outcome {
    let mut diags = Diagnostics::new(args.input.levels.levels());
    let request = context.machine.load_request(&args.input);
    drop(dataset::load(&request, &mut diags));
    Outcome::of(diags)
}
