//! `casepack check`: findings in each output, levels, and which dataset is meant.

use crate::support::{Project, ProjectBuilder};

/// Two cases, one listed file that one of them lacks, and an unknown key.
fn project() -> Project {
    ProjectBuilder::new()
        .eval_yaml(
            "name: small\n\
             dataset:\n  path: cases\n  schema: prompt\n  workspace:\n    files:\n      - notes.md\n\
             execution: {prompt: '{prompt}'}\n\
             judges:\n  - {name: ok, check: 'return True'}\n\
             runer: {}\n",
        )
        .case("a", |case| case.input("prompt: one\n").file("notes.md", "n"))
        .case("b", |case| case.input("prompt: two\n"))
        .build()
}

#[test]
fn people_see_every_finding_in_one_pass() {
    let outcome = project().casepack(["check"]).assert_code(0);
    assert_eq!(outcome.stdout, "small: 2 cases checked, no errors.\n");
    for text in [
        "warning[unknown-key]\n",
        " 11 │ runer: {}\n    · ──┬──\n",
        "warning[workspace-file-missing]\n",
        " 7 │       - notes.md\n   ·         ────┬───\n",
        "╰── dataset.workspace.files[0]\n",
        "\n  in case b\n",
        "2 warnings; `casepack explain unknown-key` says more.\n",
    ] {
        assert!(outcome.stderr.contains(text), "{text}\n{outcome}");
    }
}

#[test]
fn the_document_names_field_entry_and_cases() {
    let outcome = project()
        .casepack(["check", "--output", "json"])
        .assert_code(0);
    let document = outcome.json();
    assert_eq!(document["schema"], "casepack.check.v1");
    assert_eq!(document["dataset"]["name"], "small");
    assert_eq!(document["checked"], 2);
    let [missing] = &outcome.findings("workspace-file-missing")[..] else {
        panic!("{outcome}");
    };
    for (name, value) in [
        ("severity", "warning".into()),
        ("file", "eval.yaml".into()),
        ("line", 7.into()),
        ("column", 9.into()),
        ("field", "dataset.workspace.files".into()),
        ("entry", "notes.md".into()),
        ("cases", serde_json::json!(["b"])),
    ] {
        assert_eq!(missing[name], value, "{name} in {missing}");
    }
}

#[test]
fn a_config_that_can_not_be_parsed_is_a_finding() {
    let project = ProjectBuilder::new().eval_yaml("a: [1\n").build();
    let outcome = project
        .casepack(["check", "--output", "json"])
        .assert_code(1);
    let [finding] = &outcome.findings("yaml-syntax")[..] else {
        panic!("{outcome}");
    };
    assert_eq!(finding["file"], "eval.yaml");
    let outcome = project
        .casepack(["check", "--output", "github"])
        .assert_code(1);
    assert!(
        outcome.stdout.starts_with("::error file=eval.yaml,line="),
        "{outcome}"
    );
}

#[test]
fn denied_warnings_are_errors_and_allowed_ones_silent() {
    let project = project();
    for (flags, code, errors, warnings) in [
        (&[][..], 0, 0, 2),
        (&["--deny", "warnings"], 1, 2, 0),
        (&["--deny", "unknown-key"], 1, 1, 1),
        (&["--allow", "unknown-key,workspace-file-missing"], 0, 0, 0),
        (&["--allow", "unknown-key", "--deny", "warnings"], 1, 1, 0),
    ] {
        let args = ["check", "--output", "json"].iter().chain(flags);
        let outcome = project.casepack(args).assert_code(code);
        let findings = &outcome.json()["findings"];
        assert_eq!(findings["errors"], errors, "{flags:?}\n{outcome}");
        assert_eq!(findings["warnings"], warnings, "{flags:?}\n{outcome}");
    }
}

#[test]
fn only_the_chosen_cases_are_checked() {
    let project = project();
    for (globs, checked) in [
        (&["a"][..], 1),
        (&["[ab]"], 2),
        (&["a", "b"], 2),
        (&["?", "x*"], 2),
    ] {
        let args = globs.iter().flat_map(|glob| ["--case", glob]);
        let args = ["check", "--output", "json"].into_iter().chain(args);
        let outcome = project.casepack(args).assert_code(0);
        assert_eq!(outcome.json()["checked"], checked, "{globs:?}");
    }
    let outcome = project.casepack(["check", "--case", "c*"]).assert_code(2);
    assert!(
        outcome.stderr.contains("No case matches --case c*"),
        "{outcome}"
    );
    assert!(outcome.stderr.contains("The cases are: a, b"), "{outcome}");
    let outcome = project.casepack(["check", "--case", "["]).assert_code(2);
    assert!(
        outcome.stderr.contains("is no pattern for --case"),
        "{outcome}"
    );
    let outcome = project
        .invoke(["check", "--output", "json"])
        .env("CASEPACK_CASE", "a\nb\n")
        .run()
        .assert_code(0);
    assert_eq!(outcome.json()["checked"], 2);
}

#[test]
fn values_of_flags_are_the_fault_of_the_command_line() {
    let project = project();
    for (flag, value) in [
        ("--workdir", "here"),
        ("--agent-timeout", "-1"),
        ("--image", "a b"),
        ("--jobs", "0"),
        ("--format", "yaml"),
    ] {
        let flag = format!("{flag}={value}");
        let outcome = project.casepack(["check", &flag]).assert_code(2);
        assert!(outcome.stderr.contains(value), "{outcome}");
    }
}

#[test]
fn options_of_the_dataset_are_known_or_told() {
    let project = project();
    project.write(
        "eval.yaml",
        format!("{}casepack: {{workdri: /w}}\n", project.read("eval.yaml")),
    );
    let outcome = project.casepack(["check"]).assert_code(0);
    assert!(
        outcome.stderr.contains("Did you mean `workdir`?"),
        "{outcome}"
    );
}

#[test]
fn a_dataset_names_its_project_root_but_not_a_larger_one() {
    let dataset = |root: &str| {
        format!(
            "dataset: {{path: cases, schema: prompt, workspace: {{files: [{{dest: s, source: shared/s}}]}}}}\n\
             execution: {{prompt: '{{prompt}}'}}\njudges: [{{name: ok, check: return True}}]\n\
             casepack: {{project_root: '{root}'}}\n"
        )
    };
    let project = ProjectBuilder::new()
        .file("data/eval.yaml", dataset("."))
        .file("data/shared/s", "s")
        .file("data/cases/a/input.yaml", "prompt: x\n")
        .build();
    for cwd in [".", "data", "data/cases"] {
        let cwd = project.path(cwd);
        let config = project.path("data/eval.yaml");
        let outcome = project
            .invoke(["check".as_ref(), config.as_os_str()])
            .cwd(cwd)
            .run();
        outcome.assert_code(0).assert_stderr_without("warning");
    }
    project.write("data/eval.yaml", dataset(".."));
    let outcome = project
        .invoke(["check"])
        .cwd(project.path("data"))
        .run()
        .assert_code(1);
    assert!(outcome.stderr.contains("error[bad-value]"), "{outcome}");
    assert!(outcome.stderr.contains("--project-root"), "{outcome}");
    let outcome = project
        .invoke(["check", "--project-root", "."])
        .cwd(project.path("data"))
        .run();
    outcome.assert_code(0);
}

#[test]
fn names_of_cases_and_files_are_hostile() {
    let id = "a\u{1b}[2J\u{202e}\n::error::pwned";
    let project = ProjectBuilder::new()
        .eval_yaml(
            "dataset: {path: cases, schema: prompt, workspace: {files: [\"no\\e]0;x\\a\"]}}\n\
             execution: {prompt: '{prompt}'}\njudges: [{name: ok, check: return True}]\n\
             \"key\\e[31m\\u202e\\n::error::x\": 1\n",
        )
        .case(id, |case| case.input("prompt: x\n"))
        .case("::error::b", |case| case.file("notes.md", ""))
        .build();
    for format in ["human", "github", "json"] {
        let outcome = project.casepack(["check", "-v", "--output", format]);
        for text in [&outcome.stdout, &outcome.stderr] {
            let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(bad), "{text:?}");
            for line in text.lines().map(str::trim_start) {
                let ours = format == "github"
                    && ["::error file=", "::warning file=", "::notice "]
                        .iter()
                        .any(|start| line.starts_with(start));
                assert!(ours || !line.starts_with("::"), "{line:?} of {format}");
            }
        }
        if format == "json" {
            let cases = &outcome.findings("workspace-file-missing")[0]["cases"];
            assert!(
                cases
                    .as_array()
                    .is_some_and(|cases| cases.contains(&id.into())),
                "{outcome}"
            );
        }
    }
}

#[test]
fn nothing_is_written() {
    let project = project();
    let before = project.tree(".");
    project.casepack(["check"]).assert_code(0);
    assert_eq!(project.tree("."), before);
}

/// Packages without an image of their own have Python and nothing else.
#[test]
fn modules_that_the_default_image_lacks_are_told_once_each() {
    let project = ProjectBuilder::new()
        .eval_yaml(
            "name: ledger\n\
             dataset: {path: cases, schema: ask}\n\
             execution: {prompt: '{ask}'}\n\
             judges:\n\
             \x20 - name: balanced\n    check: |\n      import json, yaml\n      return True\n\
             \x20 - name: dated\n    check: |\n      from yaml.nodes import Node\n      return True\n\
             \x20 - name: careful\n    check: |\n      try:\n        import orjson\n      except ImportError:\n        pass\n      return True\n",
        )
        .case("june", |case| case.input("ask: close the month\n"))
        .build();
    for command in [&["check"][..], &["build", "-o", "made"]] {
        let outcome = project
            .casepack(command.iter().copied().chain(["--output", "json"]))
            .assert_code(0);
        let [found] = &outcome.findings("check-import")[..] else {
            panic!("{outcome}");
        };
        assert_eq!(found["entry"], "yaml");
        assert_eq!(found["line"], 6);
        assert_eq!(
            found["message"],
            "Checks import yaml, which python:3.12-slim does not have: in its packages they end in \
             an error ('balanced', 'dated')."
        );
    }
    for image in ["--image", "--base-image"] {
        let outcome = project
            .casepack(["check", image, "books:7", "--output", "json"])
            .assert_code(0);
        assert!(outcome.findings("check-import").is_empty(), "{outcome}");
    }
}

/// Neither packages nor `casepack run` run hooks, and no help may send anybody there.
#[test]
fn no_help_promises_that_run_runs_hooks_or_other_agents() {
    let outcome = ProjectBuilder::new()
        .eval_yaml(
            "name: ledger\n\
             dataset: {path: cases, schema: ask}\n\
             execution: {prompt: '{ask}'}\n\
             runner: {type: claude-code, effort: low}\n\
             hooks: {before_each: [{command: ./stage}]}\n\
             judges:\n  - {name: ok, check: 'return True'}\n",
        )
        .case("june", |case| case.input("ask: close the month\n"))
        .build()
        .casepack(["check", "--output", "json"])
        .assert_code(0);
    let help = |rule: &str| outcome.findings(rule)[0]["help"].to_string();
    for rule in ["hooks-not-portable", "agent-option-ignored"] {
        assert!(!help(rule).contains("casepack run"), "{rule}");
    }
}

#[test]
fn directories_of_the_command_line_that_are_none_are_its_fault() {
    let project = ProjectBuilder::new()
        .eval_yaml("execution: {prompt: x}\n")
        .case("a", |case| case.input("prompt: x\n"))
        .build();
    for flag in ["--project-root", "--plugin-dir"] {
        let outcome = project.casepack(["check", flag, "nowhere"]).assert_code(2);
        assert!(
            outcome.stderr.contains(&format!("{flag} 'nowhere'")),
            "{outcome}"
        );
    }
}
