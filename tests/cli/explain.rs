//! `casepack explain`.

use std::path::Path;

use casepack::diag::Rule;

use crate::support::ProjectBuilder;

#[test]
fn tells_all_there_is_about_a_rule() {
    let project = ProjectBuilder::new().build();
    let outcome = project
        .casepack(["explain", "reserved-dest"])
        .assert_code(0);
    let info = Rule::ReservedDest.info();
    for text in [info.summary, info.why, info.fix, info.example] {
        assert!(outcome.stdout.contains(text), "{outcome}");
    }
    assert_eq!(outcome.stderr, "");
}

#[test]
fn lists_all_rules() {
    let project = ProjectBuilder::new().build();
    let outcome = project.casepack(["explain"]).assert_code(0);
    assert_eq!(outcome.stdout.lines().count(), Rule::ALL.len());
    let outcome = project
        .casepack(["explain", "--output", "json"])
        .assert_code(0);
    let document = outcome.json();
    assert_eq!(document["schema"], "casepack.explain.v1");
    let rules = document["rules"].as_array().expect("a list").len();
    assert_eq!(rules, Rule::ALL.len());
}

#[test]
fn the_page_of_rules_is_made_from_the_table() {
    let project = ProjectBuilder::new().build();
    let made = project
        .casepack(["explain", "--markdown"])
        .assert_code(0)
        .stdout;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rules.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == made,
        "docs/rules.md is out of date: casepack explain --markdown > docs/rules.md"
    );
}
