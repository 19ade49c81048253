//! `casepack init`.

use crate::support::ProjectBuilder;

#[test]
fn writes_every_file_of_the_template() {
    let project = ProjectBuilder::new().build();
    let outcome = project.casepack(["init", "my data"]).assert_code(0);
    assert!(
        outcome.stdout.contains("\n  casepack run 'my data'\n"),
        "{outcome}"
    );
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/init");
    assert_eq!(project.tree("my data"), project.tree(template));
}

#[test]
fn fills_an_empty_directory_and_refuses_any_other() {
    let project = ProjectBuilder::new()
        .directory("empty")
        .file("full/a", "")
        .build();
    project
        .invoke(["init", "."])
        .cwd(project.path("empty"))
        .run()
        .assert_code(0);
    assert!(project.read("empty/eval.yaml").contains("ticket-triage"));
    for (dir, says) in [("full", "is not empty"), ("full/a", "is no directory")] {
        let outcome = project.casepack(["init", dir]).assert_code(2);
        assert!(outcome.stderr.contains(says), "{outcome}");
        assert_eq!(outcome.stdout, "");
    }
    assert_eq!(project.tree("full").lines().count(), 1);
}

#[test]
fn is_a_document_when_one_is_asked_for_also_when_it_fails() {
    let project = ProjectBuilder::new().file("full/a", "").build();
    let outcome = project
        .casepack(["init", "new", "--output", "json"])
        .assert_code(0);
    let document = outcome.json();
    assert_eq!(document["schema"], "casepack.init.v1");
    assert_eq!(document["next"][1], "casepack run new");
    let outcome = project
        .casepack(["init", "full", "--output", "json"])
        .assert_code(2);
    let document = outcome.json();
    assert_eq!(document["schema"], "casepack.init.v1");
    assert!(
        document["error"]["message"]
            .as_str()
            .unwrap_or_default()
            .contains("is not empty")
    );
}
