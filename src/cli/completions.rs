//! `casepack completions SHELL`.

use super::args::{self, Completions};
use super::outcome::Outcome;

pub(super) fn run(args: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "casepack", &mut script);
    Outcome::text(String::from_utf8_lossy(&script).into_owned())
}
