//! `casepack build`: what is told about a build, and how it ends. What is in the outputs is tested
//! with the targets.

use serde_json::json;

use crate::support::{Project, ProjectBuilder};

fn project() -> Project {
    ProjectBuilder::new()
        .eval_yaml(
            "dataset: {path: cases, schema: prompt}\nexecution: {prompt: '{prompt}'}\n\
             judges: [{name: ok, check: return True}]\n",
        )
        .case("a", |case| case.input("prompt: one\n"))
        .case("b", |case| case.input("prompt: two\n"))
        .build()
}

#[test]
fn tells_what_was_built_and_then_that_nothing_changed() {
    let project = project();
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    let document = outcome.json();
    assert_eq!(document["schema"], "casepack.build.v1");
    assert_eq!(document["out"], "dist");
    assert_eq!(document["targets"], json!(["harbor"]));
    assert_eq!(document["built"], json!(["a", "b"]));
    assert_eq!(document["unchanged"], json!([]));
    assert!(
        document["files"].as_u64().is_some_and(|files| files >= 4),
        "{outcome}"
    );
    let document = project
        .casepack(["build", "--output", "json"])
        .assert_code(0)
        .json();
    assert_eq!(document["built"], json!([]));
    assert_eq!(document["unchanged"], json!(["a", "b"]));
    assert_eq!(document["files"], 0);

    project.write("cases/a/input.yaml", "prompt: three\n");
    project.remove("cases/b");
    let outcome = project.casepack(["build"]).assert_code(0);
    assert!(
        outcome.stdout.starts_with("Built 1 case in dist ("),
        "{outcome}"
    );
    assert!(outcome.stdout.ends_with(", 1 removed.\n"), "{outcome}");
    assert_eq!(outcome.stderr, "Building 1 case\n");
}

#[test]
fn quiet_builds_say_nothing() {
    let outcome = project().casepack(["build", "-q"]).assert_code(0);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
}

#[test]
fn targets_come_from_flag_then_environment_then_dataset() {
    let project = project();
    project.write(
        "eval.yaml",
        format!(
            "{}casepack: {{target: [workspace]}}\n",
            project.read("eval.yaml")
        ),
    );
    let targets =
        |outcome: crate::support::Outcome| outcome.assert_code(0).json()["targets"].clone();
    let json = ["build", "--output", "json"];
    assert_eq!(targets(project.casepack(json)), json!(["workspace"]));
    let by_variable = || {
        project
            .invoke(json)
            .env("CASEPACK_TARGET", "harbor,workspace")
    };
    assert_eq!(targets(by_variable().run()), json!(["workspace", "harbor"]));
    let by_flag = by_variable().args(["--target", "evalhub"]).run();
    assert_eq!(targets(by_flag), json!(["evalhub"]));
}

#[test]
fn cases_with_errors_are_left_out_and_the_others_built() {
    let project = project();
    project.write("cases/a/input.yaml", "prompt: [\n");
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(1);
    let document = outcome.json();
    assert_eq!(document["built"], json!(["b"]));
    assert_eq!(document["failed"], json!(["a"]));
    assert!(project.path("dist/harbor/b").is_dir());
    assert!(!project.path("dist/harbor/a").exists());
}

#[test]
fn a_dataset_with_errors_is_not_built_at_all() {
    let project = project();
    project.write(
        "eval.yaml",
        format!("{}outputs: [{{path: ../x}}]\n", project.read("eval.yaml")),
    );
    let outcome = project.casepack(["build"]).assert_code(1);
    assert!(
        outcome.stderr.contains("error[parent-traversal]"),
        "{outcome}"
    );
    assert!(!project.path("dist").exists(), "{}", project.tree("."));
}

#[test]
fn an_output_directory_that_can_not_be_used_is_a_failure_of_the_system() {
    let project = project();
    project.write("taken", "");
    for format in ["human", "json"] {
        let outcome = project
            .casepack(["build", "-o", "taken/dist", "--output", format])
            .assert_code(3);
        let said = if format == "json" {
            let document = outcome.json();
            assert_eq!(document["exit_code"], 3);
            document["error"].to_string()
        } else {
            outcome.stderr.clone()
        };
        assert!(said.contains("taken"), "{outcome}");
        assert!(said.contains("a file stands where"), "{outcome}");
        assert!(said.contains("Check that you may write there"), "{outcome}");
    }
}

#[test]
fn a_skill_is_staged_without_the_dataset_that_lies_in_it() {
    for (config, cases) in [("skills/fix/eval/", "cases"), ("skills/fix/", "\"\"")] {
        let project = ProjectBuilder::new()
            .file("skills/fix/SKILL.md", "fix it")
            .build();
        let below = if cases == "cases" { "cases/" } else { "" };
        project.write(
            &format!("{config}eval.yaml"),
            format!(
                "dataset: {{path: {cases}}}\nexecution: {{skill: fix}}\n\
                 judges: [{{name: ok, check: return True}}]\n"
            ),
        );
        project.write(&format!("{config}{below}one/input.yaml"), "prompt: x\n");
        project.write(
            &format!("{config}{below}one/annotations.yaml"),
            "key: secret\n",
        );
        let outcome = project
            .casepack(["build", config, "--target", "workspace", "--output", "json"])
            .assert_code(0);
        let rules: Vec<_> = outcome.json()["diagnostics"]
            .as_array()
            .map(|all| all.iter().map(|it| it["rule"].clone()).collect())
            .unwrap_or_default();
        assert!(rules.contains(&json!("unpackaged-file")), "{outcome}");
        let tree = project.tree("dist/workspace/one");
        assert!(tree.contains(".claude/skills/fix/SKILL.md"), "{tree}");
        assert!(
            !tree.contains("annotations.yaml") && !tree.contains("eval.yaml"),
            "{tree}"
        );
    }
}
