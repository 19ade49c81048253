//! Help, usage errors, completions and manual pages.

use crate::support::ProjectBuilder;

/// Every verb, for tests of all of them.
const VERBS: &[&str] = &[
    "init",
    "check",
    "plan",
    "build",
    "run",
    "verify",
    "diff",
    "publish",
    "pull",
    "ls",
    "inspect",
    "gc",
    "emit",
    "explain",
    "completions",
    "man",
];

#[test]
fn help_of_every_verb_is_what_it_was() {
    let project = ProjectBuilder::new().build();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../golden/help");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        let outcome = project.casepack(["--help"]).assert_code(0);
        insta::assert_snapshot!("casepack", outcome.stdout);
        for verb in VERBS {
            let outcome = project.casepack([verb, "--help"]).assert_code(0);
            insta::assert_snapshot!(format!("casepack-{verb}"), outcome.stdout);
        }
    });
}

#[test]
fn without_a_command_it_shows_help_and_fails_as_usage() {
    let project = ProjectBuilder::new().build();
    let outcome = project.casepack([] as [&str; 0]).assert_code(2);
    assert!(outcome.stderr.contains("Usage: casepack"), "{outcome}");
    assert_eq!(outcome.stdout, "");
}

#[test]
fn unknown_rules_are_refused_with_the_nearest_name() {
    let project = ProjectBuilder::new().build();
    for (flag, rule, says) in [
        ("--deny", "unknwon-key", "did you mean 'unknown-key'?"),
        ("--allow", "no-case", "did you mean 'no-cases'?"),
        ("--allow", "yaml-syntax", "can not be allowed"),
    ] {
        let outcome = project.casepack(["check", flag, rule]).assert_code(2);
        assert!(outcome.stderr.contains(says), "{outcome}");
        assert_eq!(outcome.stdout, "");
    }
    let outcome = project.casepack(["explain", "reserved-dst"]).assert_code(2);
    assert!(
        outcome.stderr.contains("did you mean 'reserved-dest'?"),
        "{outcome}"
    );
}

#[test]
fn usage_errors_are_a_document_when_one_is_asked_for() {
    let project = ProjectBuilder::new().build();
    let by_flag = project.invoke(["check", "--output", "json", "--jobs", "none"]);
    let by_variable = project
        .invoke(["check", "--jobs", "none"])
        .env("CASEPACK_OUTPUT", "json");
    for invocation in [by_flag, by_variable] {
        let outcome = invocation.run().assert_code(2);
        let document = outcome.json();
        assert_eq!(document["schema"], "casepack.check.v1", "{outcome}");
        assert_eq!(document["diagnostics"], serde_json::json!([]));
        assert_eq!(document["exit_code"], 2);
        let message = document["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("--jobs"), "{outcome}");
    }
}

#[test]
fn flags_can_be_given_by_the_environment() {
    let project = ProjectBuilder::new().build();
    let outcome = project
        .invoke(["check"])
        .env("CASEPACK_DENY", "unknown-key,unknwon-key")
        .run()
        .assert_code(2);
    assert!(
        outcome.stderr.contains("did you mean 'unknown-key'?"),
        "{outcome}"
    );
    let outcome = project
        .invoke(["explain", "no-cases"])
        .env("CASEPACK_OUTPUT", "json")
        .run()
        .assert_code(0);
    assert_eq!(outcome.json()["rules"][0]["name"], "no-cases");
}

#[test]
fn completions_know_verbs_and_flags() {
    let project = ProjectBuilder::new().build();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = project.casepack(["completions", shell]).assert_code(0);
        assert!(outcome.stdout.contains("explain"), "{shell}");
        assert!(outcome.stdout.contains("project-root"), "{shell}");
    }
    let outcome = project.casepack(["completions", "tcsh"]).assert_code(2);
    assert!(outcome.stderr.contains("[possible values:"), "{outcome}");
}

#[test]
fn there_is_a_page_for_casepack_and_each_verb() {
    let project = ProjectBuilder::new().build();
    let outcome = project.casepack(["man"]).assert_code(0);
    assert!(outcome.stdout.contains(".TH casepack 1"), "{outcome}");
    let outcome = project.casepack(["man", "check"]).assert_code(0);
    assert!(outcome.stdout.contains(".TH casepack-check 1"), "{outcome}");
    assert!(outcome.stdout.contains("CASEPACK_JOBS"), "{outcome}");
}
