//! `casepack report`: what a run came to, for CI systems, pull requests and people.

use serde_json::{Value, json};

use crate::support::{Outcome, Project, ProjectBuilder};

/// Without a sandbox, and without the warning about it: what is tested here are reports.
const RUN: &[&str] = &["run", "--sandbox", "none", "--allow", "run-not-isolated"];

fn case(id: &str, status: &str, reward: Option<f64>) -> Value {
    json!({
        "id": id, "status": status, "reward": reward, "rewards": {}, "duration_s": 1.5,
        "package_digest": format!("sha256:{}", "0".repeat(64)), "message": null,
        "agent": {"exit_code": 0, "timed_out": false, "duration_s": 1.0},
        "verifier": {"exit_code": 0, "timed_out": false, "duration_s": 0.25},
    })
}

fn results(id: &str, cases: &[Value]) -> Value {
    json!({
        "schema": "casepack.results.v1", "run_id": id, "casepack_version": "0.1.0",
        "dataset": {"name": "support-triage", "digest": "sha256:00ff"},
        "agent": {"name": "claude-code", "model": "some-model", "files": []},
        "engine": "casepack", "isolated": true, "warnings": [], "interrupted": false,
        "pass_at": 1.0, "attempts": 1, "cases": cases,
    })
}

/// A run as `casepack run` leaves it.
fn put(project: &Project, id: &str, results: &Value) {
    project.write(&format!("runs/{id}/results.json"), results.to_string());
}

/// Passed, failed with judges and logs, without a verdict, left out; a bound that was missed.
fn triage(project: &Project) {
    let mut failed = case("ticket-102", "failed", Some(0.5));
    failed["message"] = json!("The verifier was not pleased.");
    failed["judges"] = json!([
        {"name": "category", "value": true},
        {"name": "tone", "value": 2.0, "rationale": "Too short & <rude>.\nSecond line."},
        {"name": "language", "value": null, "error": "ModuleNotFoundError: No module named 'x'"},
        {"name": "refund", "value": null, "skipped": true},
    ]);
    let mut error = case("ticket-103", "error", None);
    error["error"] = json!("reward-missing");
    error["message"] = json!("The verifier wrote neither reward.json nor reward.txt.");
    let mut skipped = case("ticket-104", "skipped", None);
    skipped["message"] = json!("This package can not be run here: it needs an image.");
    let passed = case("ticket-101", "passed", Some(1.0));
    let mut all = results("triage", &[passed, failed, error, skipped]);
    all["thresholds"] = json!([
        {"judge": "tone", "rule": "min_mean", "limit": 3.5, "value": 2.0, "met": false},
        {"judge": "category", "rule": "min_pass_rate", "limit": 0.9, "value": 1.0, "met": true},
    ]);
    put(project, "triage", &all);
    project.write(
        "runs/triage/ticket-102/stdout.txt",
        "\u{1b}[31mI triaged ]]> it\u{0}.\n",
    );
    project.write(
        "runs/triage/ticket-102/logs/verifier/test-stdout.txt",
        "x".repeat(9000),
    );
}

fn report(project: &Project, args: &[&str]) -> Outcome {
    project.casepack(["report"].iter().chain(args))
}

/// Checks `junit.xml` of a run as CI systems do.
fn check_junit(project: &Project, id: &str) {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/report/junit.xsd");
    let mut command = std::process::Command::new("xmllint");
    command.args(["--noout", "--nonet", "--huge", "--schema", schema]);
    command.arg(project.path(format!("runs/{id}/junit.xml")));
    match command.output() {
        Ok(told) => assert!(
            told.status.success(),
            "{}",
            String::from_utf8_lossy(&told.stderr)
        ),
        Err(error) => println!("not checked by the schema: xmllint: {error}"),
    }
}

#[test]
fn documents_of_a_run() {
    let project = ProjectBuilder::new().build();
    triage(&project);
    let outcome = report(&project, &["triage"]).assert_code(1);
    let before = project.read("runs/triage/results.json");
    insta::with_settings!({snapshot_path => "golden/report", prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("told", outcome);
        let junit = project.read("runs/triage/junit.xml");
        insta::assert_snapshot!("junit.xml", junit.replace(&"x".repeat(8000), "[8000 x]"));
        insta::assert_snapshot!("summary.md", project.read("runs/triage/summary.md"));
    });
    assert_eq!(before, project.read("runs/triage/results.json"));
    check_junit(&project, "triage");
    put(&project, "none", &results("none", &[]));
    report(&project, &["none"]).assert_code(0);
    check_junit(&project, "none");
}

#[test]
fn shards_of_a_run_become_one() {
    let project = ProjectBuilder::new()
        .eval_yaml(
            "name: small\n\
             dataset: {path: cases, schema: prompt}\n\
             execution: {prompt: '{prompt}'}\n\
             runner:\n  type: cli\n  command: [sh, -c, 'touch out']\n\
             outputs: [{path: out}]\n\
             judges: [{name: wrote, check: 'return True'}]\n\
             thresholds: {wrote: {min_pass_rate: 1}}\n",
        )
        .case("a", |case| case.input("prompt: a\n"))
        .case("b", |case| case.input("prompt: b\n"))
        .case("c", |case| case.input("prompt: c\n"))
        .case("d", |case| case.input("prompt: d\n"))
        .case("e", |case| case.input("prompt: e\n"))
        .build();
    let run = |args: &[&str]| project.casepack(RUN.iter().chain(args));
    for shard in ["1", "2", "3"] {
        run(&["--shard", &format!("{shard}/3"), "--run-id", shard]);
    }
    // A part without cases breaks no bound, and says what it is; a choice of none is refused.
    let empty =
        (1..=8).map(|part| ["--case", "a", "--shard", &format!("{part}/8")].map(str::to_owned));
    let empty = empty.map(|args| run(&args.each_ref().map(String::as_str)).assert_code(0));
    let told = "This part of the run has no case: 1 case left to others.\n\n0 passed.\n";
    assert_eq!(
        empty
            .filter(|outcome| outcome.stdout.contains(told))
            .count(),
        7
    );
    run(&["--case", "x", "--shard", "1/8"]).assert_code(2);
    run(&["--run-id", "whole"]).assert_code(0);
    let outcome = report(&project, &["1", "2", "runs/3", "-o", "all"]).assert_code(0);
    assert!(
        outcome.stdout.contains("5 passed; mean reward 1.00.\n"),
        "{outcome}"
    );
    let document = |path: &str| -> Value { serde_json::from_str(&project.read(path)).unwrap() };
    let (all, whole) = (
        document("all/results.json"),
        document("runs/whole/results.json"),
    );
    for same in ["agent", "thresholds", "summary", "schema"] {
        assert_eq!(all[same], whole[same], "{same}");
    }
    // A shard that is built alone does not know the digest of the whole dataset; all of them do.
    assert!(document("runs/1/results.json")["dataset"]["digest"].is_null());
    assert!(whole["dataset"]["digest"].is_string());
    assert_eq!(all["dataset"], whole["dataset"]);
    assert_eq!(all["merged"], json!(["1", "2", "3"]));
    for document in ["junit.xml", "summary.md", "report.html"] {
        assert!(project.path("all").join(document).is_file());
        assert!(project.path("runs/1").join(document).is_file());
    }
    // Part of a whole is what each says that it is.
    let others = whole["summary"]["total"].as_u64().unwrap()
        - document("runs/1/results.json")["summary"]["total"]
            .as_u64()
            .unwrap();
    let told = format!("| cases of other shards | {others} |");
    assert!(project.read("runs/1/summary.md").contains(&told));
    assert!(!project.read("all/summary.md").contains("other shards"));
    // One of them alone says that it is not the whole.
    let alone = report(&project, &["1", "--output", "json"]).assert_code(0);
    let told = alone.findings("results-missing");
    assert_eq!(told.len(), 1, "{alone}");
    let left = format!("{others} cases");
    assert!(told[0]["message"].as_str().unwrap().contains(&left));
    assert!(
        report(&project, &["1"])
            .stdout
            .contains(&format!("{left} left to other"))
    );
    // Again into the same directory; one that holds other things is refused.
    report(&project, &["1", "2", "3", "-o", "all"]).assert_code(0);
    report(&project, &["1", "2", "3", "-o", "cases"]).assert_code(2);
    report(&project, &["1", "2", "3", "-o", "runs/1"]).assert_code(2);
    report(&project, &["1", "2", "3"]).assert_code(2);
    // The merge of a merge and of what was left out is the same.
    report(&project, &["1", "2", "-o", "part", "--output", "json"]).assert_code(1);
    let outcome = report(&project, &["1", "2", "-o", "part", "--output", "json"]);
    let missing = outcome.findings("results-missing");
    let third = document("runs/3/results.json");
    let ids: Vec<_> = third["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["id"])
        .collect();
    assert_eq!(missing[0]["cases"], json!(ids), "{outcome}");
    assert_eq!(outcome.json()["summary"]["skipped"], json!(ids.len()));
    assert!(outcome.json()["dataset"]["digest"].is_null());
    for parts in [["part", "3"], ["3", "part"]] {
        let args = [parts[0], parts[1], "-o", "mended", "--output", "json"];
        let outcome = report(&project, &args).assert_code(0);
        assert_eq!(outcome.json()["summary"], whole["summary"]);
        assert_eq!(outcome.findings("results-conflict").len(), 0, "{outcome}");
    }
}

#[test]
fn a_run_is_no_shard_beside_itself() {
    let project = ProjectBuilder::new().build();
    put(
        &project,
        "r",
        &results("r", &[case("a", "passed", Some(1.0))]),
    );
    let outcome = report(&project, &["r", "runs/r", "-o", "all"]).assert_code(2);
    assert!(outcome.stderr.contains("is named twice"), "{outcome}");
    assert!(!project.path("all").exists());
}

#[test]
fn contradictions_are_found_and_the_worse_result_counts() {
    let project = ProjectBuilder::new().build();
    let good = case("a", "passed", Some(1.0));
    let bad = case("a", "failed", Some(0.0));
    let mut stopped = case("a", "skipped", None);
    stopped["error"] = json!("interrupted");
    let again = good.clone();
    for (id, case) in [
        ("good", good),
        ("again", again),
        ("bad", bad),
        ("stopped", stopped),
    ] {
        put(&project, id, &results(id, &[case]));
    }
    for (runs, found, status) in [
        (["good", "bad"], 1, "failed"),
        (["bad", "good"], 1, "failed"),
        (["good", "again"], 0, "passed"),
        (["stopped", "good"], 0, "passed"),
        (["bad", "stopped"], 0, "failed"),
    ] {
        let args = [runs[0], runs[1], "-o", "all", "--output", "json"];
        let outcome = report(&project, &args);
        assert_eq!(
            outcome.findings("results-conflict").len(),
            found,
            "{outcome}"
        );
        assert_eq!(outcome.json()["cases"][0]["status"], status, "{outcome}");
    }
    let mut other = results("other", &[case("b", "passed", Some(1.0))]);
    other["agent"]["model"] = json!("another-model");
    put(&project, "other", &other);
    let outcome = report(&project, &["good", "other", "-o", "new"]).assert_code(1);
    assert!(outcome.stderr.contains("results-of-other-run"), "{outcome}");
    assert!(!project.path("new").exists());
}

#[test]
fn an_earlier_run_is_compared_with() {
    let project = ProjectBuilder::new().build();
    triage(&project);
    let cases = [
        case("ticket-101", "failed", Some(0.0)),
        case("ticket-102", "failed", Some(0.25)),
        case("ticket-103", "passed", Some(1.0)),
    ];
    put(&project, "before", &results("before", &cases));
    let args = ["triage", "--baseline", "before", "--output", "json"];
    let outcome = report(&project, &args).assert_code(1);
    let changes = &outcome.json()["changes"];
    let told: Vec<_> = changes
        .as_array()
        .unwrap()
        .iter()
        .map(|it| format!("{} {}", it["change"], it["case"]).replace('"', ""))
        .collect();
    let expected = [
        "broken ticket-103",
        "fixed ticket-101",
        "reward ticket-102",
        "new ticket-104",
    ];
    assert_eq!(told, expected);
    let summary = project.read("runs/triage/summary.md");
    assert!(
        summary.contains(
            "Compared with before: 1 fixed, 1 broken, 1 with another reward, 1 new, 0 gone."
        ),
        "{summary}"
    );
    outcome.assert_stderr_without("baseline-differs");
    // Of another dataset, by another measure.
    let mut other = results("other", &[case("ticket-101", "failed", Some(0.0))]);
    other["dataset"] = json!({"name": "other-data", "digest": null, "packages_digest": "sha256:1"});
    other["pass_at"] = json!(0.5);
    put(&project, "other", &other);
    let outcome = report(
        &project,
        &["triage", "--baseline", "other", "--output", "json"],
    );
    let told = &outcome.assert_code(1).json()["diagnostics"][0];
    assert_eq!(told["rule"], "baseline-differs");
    let message = told["message"].as_str().unwrap();
    let summary = project.read("runs/triage/summary.md");
    let page = project.read("runs/triage/report.html");
    for part in [
        "of another dataset, ",
        "1 case is in both runs",
        "had --pass-at 0.5, and this run 1.",
    ] {
        assert!(message.contains(part), "{message}");
        assert!(page.contains(part), "{part}");
    }
    assert!(message.contains("'other-data'"), "{message}");
    assert!(summary.contains("another dataset"), "{summary}");
}

#[test]
fn what_is_no_run_is_named() {
    let project = ProjectBuilder::new().directory("runs/killed").build();
    for named in ["killed", "nothing", "runs/nothing"] {
        let outcome = report(&project, &[named]).assert_code(2);
        assert!(outcome.stderr.contains("is no run"), "{outcome}");
    }
    project.write("runs/killed/run.json", "{}");
    project.write("runs/killed/a/result.json", "{}");
    let outcome = report(&project, &["killed"]).assert_code(2);
    for told in [
        "was not finished",
        "cases with a result: 1)",
        "--resume killed",
    ] {
        assert!(outcome.stderr.contains(told), "{outcome}");
    }
    project.write(
        "runs/bad/results.json",
        "{\"schema\": \"casepack.results.v2\"}",
    );
    let outcome = report(&project, &["bad"]).assert_code(1);
    assert!(
        outcome.stderr.contains("not casepack.results.v1"),
        "{outcome}"
    );
}

/// Names and texts that try to be something else in each of the documents.
#[test]
fn hostile_texts_stay_texts() {
    let project = ProjectBuilder::new().build();
    let text = "\u{1b}]0;x\u{7}</failure><script>alert(1)</script>]]>\u{202e}\u{0}\u{ffff}&#0; \
                | ``` [x](javascript:y) ![i](http://x) @team";
    let mut bad = case("a\"><script>alert(2)<|x", "failed", Some(0.0));
    bad["message"] = json!(text);
    bad["judges"] = json!([{"name": text, "value": text, "rationale": text}]);
    let mut all = results("r", &[bad]);
    all["dataset"]["name"] = json!(text);
    all["warnings"] = json!([text]);
    put(&project, "r", &all);
    report(&project, &["r"]).assert_code(1);
    let xml = project.read("runs/r/junit.xml");
    assert!(!xml.contains("<script"), "{xml}");
    assert_eq!(xml.matches("</failure>").count(), 1, "{xml}");
    let allowed = |c: char| matches!(c, '\n' | '\t' | ' '..='\u{fffd}' | '\u{10000}'..);
    assert!(xml.chars().all(allowed), "{xml}");
    check_junit(&project, "r");
    let markdown = project.read("runs/r/summary.md");
    for line in markdown.lines() {
        assert!(
            !line.contains("<script") && !line.replace("\\]", "").contains("]("),
            "{line}"
        );
        assert!(!line.contains("``"), "{line}");
    }
}

/// XML 1.0 has no way to write most control characters and what is no character at all.
#[test]
fn every_character_has_a_place_in_xml() {
    let project = ProjectBuilder::new().build();
    let edges = [
        0x7e..0xa1,
        0xad..0xae,
        0x200b..0x2070,
        0xd7ff..0xe001,
        0xfdd0..0xfdf0,
    ];
    let planes = (0..=16).map(|plane| plane * 0x1_0000 + 0xfff0..plane * 0x1_0000 + 0x1_0000);
    let starts = (1..=16).map(|plane| plane * 0x1_0000..plane * 0x1_0000 + 2);
    let all = std::iter::once(0..0x300)
        .chain(edges)
        .chain(planes)
        .chain(starts);
    let text: String = all.flatten().filter_map(char::from_u32).collect();
    let mut cases = Vec::new();
    for (status, error) in [("failed", None), ("error", Some("io")), ("skipped", None)] {
        let mut bad = case(status, status, None);
        bad["message"] = json!(text);
        bad["error"] = json!(error);
        bad["judges"] = json!([{"name": text, "value": text, "rationale": text, "error": text}]);
        project.write(&format!("runs/r/{status}/stdout.txt"), &text);
        cases.push(bad);
    }
    let mut all = results("r", &cases);
    for name in ["agent", "dataset"] {
        all[name]["name"] = json!(text);
    }
    all["thresholds"] = json!([
        {"judge": text, "rule": "min_mean", "limit": 3.5, "value": 2.0, "met": false},
    ]);
    put(&project, "r", &all);
    report(&project, &["r"]).assert_code(1);
    let xml = project.read("runs/r/junit.xml");
    // Production 2 of XML 1.0.
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(xml.chars().all(allowed));
    check_junit(&project, "r");
}

/// A browser shows the page, runs its own script, and nothing that a run brought.
#[test]
fn a_browser_runs_nothing_that_a_case_brings() {
    let programs = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let browser = std::env::split_paths(&path)
        .flat_map(|dir| programs.map(|program| dir.join(program)))
        .find(|program| program.is_file());
    let Some(browser) = browser else {
        println!("skipped: there is no chromium in PATH");
        return;
    };
    let project = ProjectBuilder::new().build();
    let evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\
                </pre></style></script><svg onload=\"document.title='owned'\">&lt;b&gt;'\"";
    let id = "x\"><script>document.title='owned'<|script>";
    let mut bad = case(id, "failed", Some(0.0));
    bad["message"] = json!(evil);
    bad["judges"] = json!([{"name": evil, "value": evil, "rationale": evil}]);
    let mut all = results(evil, &[case("fine", "passed", Some(1.0)), bad]);
    for name in ["agent", "dataset"] {
        all[name]["name"] = json!(evil);
    }
    put(&project, "r", &all);
    for file in ["stdout.txt", "instruction.md"] {
        project.write(&format!("runs/r/{id}/{file}"), evil);
    }
    project.write(
        &format!("runs/r/{id}/workspace.diff"),
        format!("+{evil}\n-{evil}\n"),
    );
    report(&project, &["r"]).assert_code(1);
    let html = project.read("runs/r/report.html");
    assert_eq!(html.matches("<script").count(), 1, "{html}");
    assert_eq!(html.matches("<style").count(), 1, "{html}");
    // A browser that hangs is ended by `timeout`, and the test fails.
    let output = std::process::Command::new("timeout")
        .arg("--signal=KILL")
        .arg("120")
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg("--virtual-time-budget=5000")
        .arg(format!(
            "--user-data-dir={}",
            project.path("browser").display()
        ))
        .arg(format!(
            "file://{}",
            project.path("runs/r/report.html").display()
        ))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    // Its own script ran: it counts the rows and makes buttons of the heads.
    assert!(dom.contains("2 cases</output>"), "{dom}");
    assert!(
        dom.contains("<button type=\"button\">Status</button>"),
        "{dom}"
    );
    assert!(!dom.contains("<title>owned"), "{dom}");
    assert_eq!(dom.matches("<script").count(), 1, "{dom}");
    assert!(
        !dom.contains("<img") && !dom.contains("<svg onload"),
        "{dom}"
    );
}
