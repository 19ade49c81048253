//! `--output json`: one document, whose shape scripts rest on (cli.md, "Fixed names").

use serde_json::{Map, Value, json};

use super::super::outcome::{Failure, Outcome};
use crate::diag::{Diagnostic, Severity};
use crate::escape;
use crate::path::CaseId;

/// The document of the command `verb`; present also when the command fails.
pub(super) fn document(verb: &str, outcome: &Outcome) -> String {
    let mut document = Map::new();
    document.insert("schema".to_owned(), format!("casepack.{verb}.v1").into());
    let diagnostics: Vec<_> = outcome.diagnostics.iter().map(diagnostic).collect();
    document.insert("diagnostics".to_owned(), diagnostics.into());
    let count = |severity| outcome.diagnostics.count(severity);
    document.insert(
        "findings".to_owned(),
        json!({
            "errors": count(Severity::Error),
            "warnings": count(Severity::Warning),
            "notes": count(Severity::Note),
        }),
    );
    document.insert(
        "error".to_owned(),
        outcome.failure.as_ref().map_or(Value::Null, failure),
    );
    document.insert("exit_code".to_owned(), (outcome.exit as u8).into());
    for (name, value) in &outcome.fields {
        document.insert(name.clone(), value.clone());
    }
    escape::json(&Value::Object(document))
}

fn failure(failure: &Failure) -> Value {
    json!({
        "message": failure.message,
        "causes": failure.causes,
        "help": failure.help,
    })
}

fn diagnostic(diagnostic: &Diagnostic) -> Value {
    let place = diagnostic.place.as_ref();
    let position = place.map(|place| place.source.position(place.range.start));
    let file = place.map(|place| &place.source.name);
    let cases: Vec<_> = diagnostic.cases.iter().map(CaseId::as_str).collect();
    json!({
        "rule": diagnostic.rule.name(),
        "severity": diagnostic.severity.name(),
        "message": diagnostic.message,
        "help": super::human::help(diagnostic),
        "file": file.or(diagnostic.file.as_ref()),
        "line": position.map(|(line, _)| line),
        "column": position.map(|(_, column)| column),
        "field": diagnostic.field.as_deref().map(without_indices),
        "entry": diagnostic.entry,
        "cases": cases,
    })
}

/// A config path without the numbers of list items: `dataset.workspace.files[2].dest` becomes
/// `dataset.workspace.files.dest`.
fn without_indices(field: &str) -> String {
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        match after.split_once(']') {
            Some((index, after))
                if !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()) =>
            {
                rest = after;
            }
            _ => {
                out.push('[');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lose_their_indices_only() {
        for (field, without) in [
            (
                "dataset.workspace.files[2].dest",
                "dataset.workspace.files.dest",
            ),
            ("a[0][11]", "a"),
            ("hooks[x].y[", "hooks[x].y["),
            ("a[]", "a[]"),
            ("", ""),
        ] {
            assert_eq!(without_indices(field), without);
        }
    }
}
