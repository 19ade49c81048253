//! `--output github`: findings as workflow commands, which GitHub shows beside the lines of a
//! pull request.

use std::fmt::Write as _;

use super::super::outcome::Outcome;
use super::super::settings::Look;
use super::human;
use crate::diag::{Diagnostic, Severity};
use crate::escape::{github_message, github_property};

/// One command a line.
pub(super) fn annotations(look: &Look, outcome: &Outcome) -> String {
    let mut out = String::new();
    for diagnostic in outcome.diagnostics.iter() {
        if !look.quiet || diagnostic.severity == Severity::Error {
            annotation(&mut out, look, diagnostic);
        }
    }
    for (case, why) in &outcome.not_passed {
        let (case, why) = (github_property(case), github_message(why));
        line(&mut out, format_args!("::error title={case}::{why}"));
    }
    if let Some(failure) = &outcome.failure {
        let message = std::iter::once(&failure.message)
            .chain(&failure.causes)
            .chain(Some(&failure.help).filter(|help| !help.is_empty()))
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n");
        line(
            &mut out,
            format_args!("::error title=casepack::{}", github_message(&message)),
        );
    }
    out
}

fn annotation(out: &mut String, look: &Look, diagnostic: &Diagnostic) {
    let command = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "notice",
    };
    let mut properties = String::new();
    if let Some(place) = &diagnostic.place {
        let (line, column) = place.source.position(place.range.start);
        let file = github_property(&place.source.name);
        add(
            &mut properties,
            format_args!("file={file},line={line},col={column},"),
        );
    } else if let Some(file) = &diagnostic.file {
        add(
            &mut properties,
            format_args!("file={},", github_property(file)),
        );
    }
    let mut message = diagnostic.message.clone();
    let more = [
        diagnostic
            .field
            .as_ref()
            .map(|field| format!("field: {field}")),
        Some(format!("help: {}", human::help(diagnostic))),
        human::cases(diagnostic, look.verbose),
    ];
    for part in more.into_iter().flatten() {
        message.push('\n');
        message.push_str(&part);
    }
    let title = diagnostic.rule.name();
    let message = github_message(&message);
    line(
        out,
        format_args!("::{command} {properties}title={title}::{message}"),
    );
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to a string does not fail");
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    add(out, text);
    out.push('\n');
}
