//! What is shown of one outcome in each format; hostile names in all of them (policy 31).

use std::sync::Arc;

use super::*;
use crate::cli::args::{ProgressStyle, Talk, When};
use crate::cli::settings::Machine;
use crate::diag::{Diagnostic, Diagnostics, Place, Rule, Source};
use crate::path::CaseId;

/// What a dataset, a file name or an agent may hold.
const HOSTILE: &str = "x\u{1b}]0;t\u{7}\u{9b}2J\u{202e}\u{2066}\n::error::pwned\n##[group]##vso[x]<b>&amp;\"]]>,:% `*_|";

fn look(output: OutputFormat, change: impl FnOnce(&mut Talk)) -> Look {
    let mut talk = Talk {
        output,
        quiet: false,
        verbose: false,
        color: When::Never,
        progress: ProgressStyle::None,
    };
    change(&mut talk);
    Machine::unknown().look(&talk)
}

fn source(text: &str) -> Arc<Source> {
    Arc::new(Source::new("eval.yaml", text))
}

fn case(id: &str) -> CaseId {
    CaseId::new(id).unwrap()
}

/// A finding with a place, two cases and a second place; one without a place; a note.
fn outcome() -> Outcome {
    let config = source(
        "dataset:\n  workspace:\n    files:\n      - dest: answers.yaml\n        source: a.yaml\n      - dest: b.yaml\n",
    );
    let at = config.text.find("answers").unwrap();
    let other = Place {
        source: source("judges: []\n"),
        range: 0..6,
    };
    let mut diags = Diagnostics::default();
    diags.push(
        Diagnostic::new(Rule::PathCollision, "The dest 'answers.yaml' is reserved.")
            .help("Choose another dest.")
            .at(&config, at..at + 12)
            .field("dataset.workspace.files[0].dest")
            .entry("answers.yaml")
            .related(Some(&other), "the judges are here")
            .case(&case("b"))
            .case(&case("a")),
    );
    diags.push(
        Diagnostic::new(
            Rule::WorkspaceFileMissing,
            "The file 'strategy.md' is missing.",
        )
        .help("Add it.")
        .file("cases/a")
        .field("dataset.workspace.files[1]")
        .case(&case("a")),
    );
    diags.push(Diagnostic::new(
        Rule::EmptyDirectory,
        "The directory 'd' is empty.",
    ));
    Outcome::of(diags)
}

/// Everything that a dataset can say, hostile.
fn hostile() -> Outcome {
    let mut file = source(&format!("key: {HOSTILE}\n"));
    Arc::get_mut(&mut file).unwrap().name = HOSTILE.to_owned();
    let id = case(&HOSTILE.replace('/', ""));
    let mut diags = Diagnostics::default();
    diags.push(
        Diagnostic::new(Rule::BadValue, HOSTILE)
            .help(HOSTILE)
            .at(&file, 5..9)
            .field(HOSTILE)
            .entry(HOSTILE)
            .case(&id),
    );
    diags.push(
        Diagnostic::new(Rule::UnknownKey, HOSTILE)
            .file(HOSTILE)
            .related(
                Some(&Place {
                    source: file,
                    range: 0..3,
                }),
                HOSTILE,
            )
            .case(&id)
            .case(&case("::error::id")),
    );
    let failure = Failure {
        message: HOSTILE.to_owned(),
        causes: vec![HOSTILE.to_owned()],
        help: HOSTILE.to_owned(),
    };
    let mut outcome = Outcome::of(diags)
        .field("results", HOSTILE)
        .failed(Exit::System, failure);
    let mut table = Table::default();
    table.row([Cell::new("::error::id"), Cell::new(HOSTILE)]);
    outcome.text = table.show(false);
    outcome.not_passed = vec![(HOSTILE.to_owned(), HOSTILE.to_owned())];
    outcome
}

#[test]
fn people_see_the_line_the_field_the_cases_and_the_way_out() {
    let (out, err) = rendered(&look(OutputFormat::Human, |_| ()), "check", &outcome());
    assert_eq!(out, "");
    assert_eq!(
        err,
        "\
error[path-collision]
  × The dest 'answers.yaml' is reserved.
   ╭─[eval.yaml:4:15]
 3 │     files:
 4 │       - dest: answers.yaml
   ·               ──────┬─────
   ·                     ╰── dataset.workspace.files[0].dest
 5 │         source: a.yaml
   ╰────
  help: Choose another dest.
  eval.yaml:1:1: the judges are here
  in 2 cases: a, b

warning[workspace-file-missing]
  ⚠ The file 'strategy.md' is missing.
  help: Add it.
  at: cases/a, field dataset.workspace.files[1]
  in case a

note[empty-directory]
  ☞ The directory 'd' is empty.
  help: Put a file into it, or declare it in outputs: it is created before the agent starts.

1 error, 1 warning, 1 note; `casepack explain path-collision` says more.
"
    );
}

#[test]
fn notes_and_warnings_are_told_as_wished() {
    let outcome = outcome();
    let told = |verb, change: fn(&mut Talk)| {
        let err = rendered(&look(OutputFormat::Human, change), verb, &outcome).1;
        let heads = err
            .lines()
            .filter(|line| line.contains('[') && !line.starts_with(' '));
        (
            heads.count(),
            err.ends_with("says more.\n"),
            err.contains("(-v shows notes)"),
        )
    };
    assert_eq!(told("build", |_| ()), (2, true, true));
    assert_eq!(told("build", |talk| talk.verbose = true), (3, true, false));
    assert_eq!(told("check", |_| ()), (3, true, false));
    assert_eq!(told("check", |talk| talk.quiet = true), (1, false, false));
}

#[test]
fn many_cases_are_counted_and_some_named() {
    let mut finding = Diagnostic::new(Rule::WorkspaceFileMissing, "m");
    for number in 1..=12 {
        finding = finding.case(&case(&format!("c{number:02}")));
    }
    assert_eq!(
        human::cases(&finding, false).unwrap(),
        "in 12 cases: c01, c02, c03, c04, c05, c06, c07, c08, …"
    );
    assert!(
        human::cases(&finding, true)
            .unwrap()
            .ends_with("c10, c11, c12")
    );
}

#[test]
fn the_document_has_the_fixed_shape() {
    let (out, err) = rendered(&look(OutputFormat::Json, |_| ()), "check", &outcome());
    assert_eq!(err, "");
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        document,
        serde_json::json!({
            "schema": "casepack.check.v1",
            "diagnostics": [
                {
                    "rule": "path-collision", "severity": "error",
                    "message": "The dest 'answers.yaml' is reserved.",
                    "help": "Choose another dest.",
                    "file": "eval.yaml", "line": 4, "column": 15,
                    "field": "dataset.workspace.files.dest", "entry": "answers.yaml",
                    "cases": ["a", "b"],
                },
                {
                    "rule": "workspace-file-missing", "severity": "warning",
                    "message": "The file 'strategy.md' is missing.", "help": "Add it.",
                    "file": "cases/a", "line": null, "column": null,
                    "field": "dataset.workspace.files", "entry": null, "cases": ["a"],
                },
                {
                    "rule": "empty-directory", "severity": "note",
                    "message": "The directory 'd' is empty.",
                    "help": Rule::EmptyDirectory.info().fix,
                    "file": null, "line": null, "column": null,
                    "field": null, "entry": null, "cases": [],
                },
            ],
            "findings": {"errors": 1, "warnings": 1, "notes": 1},
            "error": null,
            "exit_code": 1,
        })
    );
}

#[test]
fn annotations_name_file_line_and_rule() {
    let (out, err) = rendered(&look(OutputFormat::Github, |_| ()), "check", &outcome());
    assert_eq!(err, "");
    assert_eq!(
        out,
        "\
::error file=eval.yaml,line=4,col=15,title=path-collision::The dest 'answers.yaml' is reserved.%0A\
field: dataset.workspace.files[0].dest%0Ahelp: Choose another dest.%0Ain 2 cases: a, b
::warning file=cases/a,title=workspace-file-missing::The file 'strategy.md' is missing.%0A\
field: dataset.workspace.files[1]%0Ahelp: Add it.%0Ain case a
::notice title=empty-directory::The directory 'd' is empty.%0A\
help: Put a file into it, or declare it in outputs: it is created before the agent starts.
"
    );
}

#[test]
fn hostile_text_is_harmless_to_terminals_and_logs() {
    for wrap in [false, true] {
        for width in [40, 100] {
            let look = Look {
                wrap,
                width,
                ..look(OutputFormat::Human, |_| ())
            };
            let (out, err) = rendered(&look, "check", &hostile());
            for text in [&out, &err] {
                harmless(text);
                for line in text.lines() {
                    assert!(!line.trim_start().starts_with("::"), "{line:?}");
                    assert!(
                        !line.contains("##[") && !line.contains("##vso["),
                        "{line:?}"
                    );
                }
            }
            assert!(
                err.contains("\\u{1b}]0;t\\u{7}\\u{9b}2J\\u{202e}\\u{2066}\\n"),
                "{err}"
            );
        }
    }
}

#[test]
fn hostile_text_adds_no_annotation_and_ends_none() {
    let (out, err) = rendered(&look(OutputFormat::Github, |_| ()), "check", &hostile());
    harmless(&out);
    harmless(&err);
    let commands: Vec<_> = out
        .lines()
        .filter(|line| line.trim_start().starts_with("::"))
        .collect();
    assert_eq!(commands.len(), 4, "{out}");
    let starts = [
        "::error file=",
        "::warning file=",
        "::error title=x",
        "::error title=casepack",
    ];
    for (command, start) in commands.iter().zip(starts) {
        assert!(command.starts_with(start), "{command}");
        // Between the command and its message there is nothing but well-formed properties.
        let (properties, message) = command[2..].split_once("::").unwrap();
        let (_, properties) = properties.split_once(' ').unwrap();
        for property in properties.split(',') {
            assert_eq!(property.matches('=').count(), 1, "{command}");
            assert!(!property.contains(':'), "{command}");
        }
        assert!(message.contains("%0A::error::pwned"), "{command}");
    }
}

#[test]
fn hostile_text_is_the_same_text_in_the_document() {
    let (out, _) = rendered(&look(OutputFormat::Json, |_| ()), "run", &hostile());
    harmless(&out);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["diagnostics"][0]["message"], HOSTILE);
    assert_eq!(document["diagnostics"][0]["file"], HOSTILE);
    assert_eq!(document["error"]["causes"][0], HOSTILE);
    assert_eq!(document["results"], HOSTILE);
    assert_eq!(document["exit_code"], 3);
}

#[test]
fn plain_terminals_get_plain_characters_and_colours_are_only_ours() {
    let ascii = Look {
        unicode: false,
        ..look(OutputFormat::Human, |_| ())
    };
    let (_, err) = rendered(&ascii, "check", &outcome());
    assert!(err.is_ascii(), "{err}");
    let coloured = look(OutputFormat::Human, |talk| talk.color = When::Always);
    let (_, err) = rendered(&coloured, "check", &hostile());
    assert!(err.contains("\u{1b}[31merror[bad-value]\u{1b}[0m"), "{err}");
    // Colours start with ESC [, which the hostile text does not.
    let plain = err
        .split('\u{1b}')
        .skip(1)
        .all(|rest| rest.starts_with('['));
    assert!(plain && !err.contains('\u{9b}'), "{err}");
}

#[track_caller]
fn harmless(text: &str) {
    let bad = text
        .chars()
        .find(|c| (c.is_control() && *c != '\n') || matches!(c, '\u{202e}' | '\u{2066}'));
    assert_eq!(bad, None, "{text:?}");
}

#[test]
fn sizes_have_three_digits_or_less() {
    for (bytes, text) in [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_950, "99.9 kB"),
        (123_456, "123 kB"),
        (u64::MAX, "18446744 TB"),
    ] {
        assert_eq!(size(bytes), text);
    }
}

#[test]
fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
    struct Broken(io::ErrorKind);
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    assert!(write(&mut Broken(io::ErrorKind::BrokenPipe), "x").is_ok());
    assert!(write(&mut Broken(io::ErrorKind::StorageFull), "x").is_err());
}
