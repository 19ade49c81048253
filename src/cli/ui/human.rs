//! Findings and failures as text for people: the line is shown, the field underlined, and the way
//! out named.

use std::fmt::Write as _;

use miette::{GraphicalReportHandler, GraphicalTheme};

use super::super::outcome::Failure;
use super::super::settings::Look;
use super::count;
use super::snippet::Snippet;
use super::table::Ink;
use crate::diag::{Diagnostic, Diagnostics, Severity};
use crate::escape;
use crate::path::CaseId;

/// How many case ids are told unless all are asked for.
const CASES_TOLD: usize = 8;

/// All findings that are to be told, and how many there are.
pub(super) fn findings(look: &Look, verb: &str, diagnostics: &Diagnostics) -> String {
    let mut out = String::new();
    let mut unseen = 0;
    for diagnostic in diagnostics.iter() {
        let told = match diagnostic.severity {
            Severity::Error => true,
            Severity::Warning => !look.quiet,
            // `check` is asked for everything; elsewhere notes would be told at every build.
            Severity::Note => !look.quiet && (look.verbose || verb == "check"),
        };
        if told {
            finding(&mut out, look, diagnostic);
            out.push('\n');
        } else {
            unseen += 1;
        }
    }
    if !look.quiet && !diagnostics.is_empty() {
        out.push_str(&total(diagnostics, unseen));
    }
    out
}

/// `2 errors, 1 warning.`, and what is to be done to see the rest.
fn total(diagnostics: &Diagnostics, unseen: usize) -> String {
    let parts: Vec<_> = [
        (Severity::Error, "error", "errors"),
        (Severity::Warning, "warning", "warnings"),
        (Severity::Note, "note", "notes"),
    ]
    .into_iter()
    .filter_map(|(severity, one, many)| {
        let number = diagnostics.count(severity);
        (number > 0).then(|| count(number, one, many))
    })
    .collect();
    let more = if unseen > 0 { " (-v shows notes)" } else { "" };
    // The first one of the worst; later ones are often its consequences.
    let worst = diagnostics
        .iter()
        .map(|diagnostic| diagnostic.severity)
        .max();
    let rule = diagnostics
        .iter()
        .find(|diagnostic| Some(diagnostic.severity) == worst)
        .filter(|diagnostic| diagnostic.severity > Severity::Note)
        .map_or_else(String::new, |diagnostic| {
            format!("; `casepack explain {}` says more", diagnostic.rule.name())
        });
    format!("{}{more}{rule}.\n", parts.join(", "))
}

fn finding(out: &mut String, look: &Look, diagnostic: &Diagnostic) {
    let severity = diagnostic.severity;
    let head = format!("{}[{}]", severity.name(), diagnostic.rule.name());
    let ink = match severity {
        Severity::Error => Ink::Bad,
        Severity::Warning => Ink::Unsure,
        Severity::Note => Ink::Strong,
    };
    line(out, &ink.paint(&head, look.color_err));

    let theme = match (look.unicode, look.color_err) {
        (true, true) => GraphicalTheme::unicode(),
        (true, false) => GraphicalTheme::unicode_nocolor(),
        (false, true) => GraphicalTheme::ascii(),
        (false, false) => GraphicalTheme::none(),
    };
    let report = Report {
        severity,
        message: escape::line(&diagnostic.message).into_owned(),
        help: escape::line(help(diagnostic)).into_owned(),
        snippet: Snippet::of(diagnostic),
    };
    GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .with_width(look.width)
        .with_wrap_lines(look.wrap)
        .with_context_lines(1)
        .without_primary_span_start()
        .without_syntax_highlighting()
        .render_report(out, &report)
        .expect("writing to a string does not fail, and labels lie in their text");

    for text in footers(look, diagnostic) {
        line(out, &format!("  {}", escape::line(&text)));
    }
}

/// What stands in no text: file and field without a place, places in other files, cases. Raw.
fn footers(look: &Look, diagnostic: &Diagnostic) -> Vec<String> {
    let mut out = Vec::new();
    if diagnostic.place.is_none() {
        let field = diagnostic
            .field
            .as_ref()
            .map(|field| format!("field {field}"));
        let at: Vec<_> = diagnostic.file.iter().cloned().chain(field).collect();
        if !at.is_empty() {
            out.push(format!("at: {}", at.join(", ")));
        }
    }
    for (place, text) in Snippet::elsewhere(diagnostic) {
        let (line, column) = place.source.position(place.range.start);
        out.push(format!("{}:{line}:{column}: {text}", place.source.name));
    }
    out.extend(cases(diagnostic, look.verbose));
    out
}

/// The way out: the finding's own, else the rule's. Raw.
pub(super) fn help(diagnostic: &Diagnostic) -> &str {
    if diagnostic.help.is_empty() {
        diagnostic.rule.info().fix
    } else {
        &diagnostic.help
    }
}

/// `in 12 cases: a, b, c, …`; raw. `None` when the finding is about no case.
pub(super) fn cases(diagnostic: &Diagnostic, all: bool) -> Option<String> {
    let number = diagnostic.cases.len();
    if number < 2 {
        return diagnostic
            .cases
            .first()
            .map(|case| format!("in case {case}"));
    }
    let told = if all { number } else { CASES_TOLD };
    let mut ids: Vec<_> = diagnostic
        .cases
        .iter()
        .take(told)
        .map(CaseId::as_str)
        .collect();
    if number > told {
        ids.push("…");
    }
    Some(format!("in {number} cases: {}", ids.join(", ")))
}

/// Why a command stopped.
pub(super) fn failure(look: &Look, failure: Option<&Failure>) -> String {
    let Some(failure) = failure else {
        return String::new();
    };
    let mut out = String::new();
    let head = Ink::Bad.paint("error:", look.color_err);
    line(
        &mut out,
        &format!("{head} {}", escape::line(&failure.message)),
    );
    for cause in &failure.causes {
        line(&mut out, &format!("  because: {}", escape::line(cause)));
    }
    if !failure.help.is_empty() {
        line(
            &mut out,
            &format!("  help: {}", escape::line(&failure.help)),
        );
    }
    out
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("writing to a string does not fail");
}

/// A finding as miette shows it; all text is escaped.
#[derive(Debug)]
struct Report {
    severity: Severity,
    message: String,
    help: String,
    snippet: Option<Snippet>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Report {}

impl miette::Diagnostic for Report {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
            Severity::Note => miette::Severity::Advice,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        Some(Box::new(&self.help))
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.snippet.as_ref().map(|snippet| snippet as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let snippet = self.snippet.as_ref()?;
        Some(Box::new(snippet.labels()))
    }
}
