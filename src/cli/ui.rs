//! What the user sees: an [`Outcome`] as text, as one JSON document, or as annotations.
//!
//! Owns standard output, standard error and their formats. Refuses to know what the verbs do.
//! Invariant: everything that comes from datasets goes through `escape` (policy 31), and a closed
//! pipe ends the output quietly.

mod github;
mod human;
mod json;
mod progress;
mod snippet;
mod table;

use std::io::{self, Write};

pub(super) use self::progress::Progress;
pub(super) use self::table::{Cell, Ink, Table};
use super::args::OutputFormat;
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::settings::Look;
pub(super) use crate::diag::count;
use crate::escape;

/// Shows how the command `verb` went.
pub(super) fn show(look: &Look, verb: &str, outcome: &Outcome) -> Exit {
    let (out, err) = rendered(look, verb, outcome);
    // The findings first: on a terminal, the result is what is seen last.
    to_stderr(&err);
    match write(&mut io::stdout().lock(), &out) {
        Ok(()) => outcome.exit,
        Err(error) => {
            let failure = Failure {
                message: "The result can not be written to standard output.".to_owned(),
                causes: vec![error.to_string()],
                help: String::new(),
            };
            to_stderr(&human::failure(look, Some(&failure)));
            outcome.exit.max(Exit::System)
        }
    }
}

/// What goes to standard output and to standard error.
fn rendered(look: &Look, verb: &str, outcome: &Outcome) -> (String, String) {
    let text = escape::log(&outcome.text);
    let (out, mut err) = match look.output {
        OutputFormat::Json => return (json::document(verb, outcome), String::new()),
        OutputFormat::Github => {
            let annotations = github::annotations(look, outcome);
            return (format!("{annotations}{text}"), String::new());
        }
        OutputFormat::Human => (
            if look.quiet && matches!(verb, "init" | "check" | "build") {
                String::new()
            } else {
                text.into_owned()
            },
            human::findings(look, verb, &outcome.diagnostics),
        ),
    };
    err.push_str(&human::failure(look, outcome.failure.as_ref()));
    (out, escape::log(&err).into_owned())
}

/// Tells `text`, which is no result; no line of it is a command to a CI system. Where standard
/// error fails, there is nobody to be told, and no reason to stop.
pub(super) fn to_stderr(text: &str) {
    drop(write(&mut io::stderr().lock(), &escape::log(text)));
}

/// A reader that has gone away wants no more, which is no failure.
fn write(stream: &mut impl Write, text: &str) -> io::Result<()> {
    match stream
        .write_all(text.as_bytes())
        .and_then(|()| stream.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Bytes as people read them.
pub(super) fn size(bytes: u64) -> String {
    let mut unit = "B";
    let (mut whole, mut tenths) = (bytes, 0);
    for next in ["kB", "MB", "GB", "TB"] {
        if whole < 1000 {
            break;
        }
        (whole, tenths, unit) = (whole / 1000, whole % 1000 / 100, next);
    }
    if unit == "B" || whole >= 100 {
        format!("{whole} {unit}")
    } else {
        format!("{whole}.{tenths} {unit}")
    }
}

#[cfg(test)]
mod tests;
