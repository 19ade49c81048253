//! `casepack man [COMMAND]`: manual pages.

use super::args::{self, Man};
use super::exit::Exit;
use super::outcome::{Failure, Outcome};

pub(super) fn run(args: &Man) -> Outcome {
    let mut command = args::command();
    // Global flags belong to the page of every verb.
    command.build();
    let page = args.command.as_deref().and_then(|name| {
        let verb = command.find_subcommand(name)?.clone();
        Some(verb.display_name(format!("casepack-{name}")))
    });
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(page.unwrap_or(command))
        .source(concat!("casepack ", env!("CARGO_PKG_VERSION")));
    match page.render(&mut text) {
        Ok(()) => Outcome::text(String::from_utf8_lossy(&text).into_owned()),
        Err(error) => Outcome::text(String::new()).failed(
            Exit::System,
            Failure::from_error(&error, "Run the command again."),
        ),
    }
}
