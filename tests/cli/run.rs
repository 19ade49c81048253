//! `casepack run`: the template passes, verdicts become exit codes, and interrupts end it whole.

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::{Invocation, Project, ProjectBuilder};

/// Without a sandbox, and without the warning about it: what is tested here is the command line.
const RUN: &[&str] = &["run", "--sandbox", "none", "--allow", "run-not-isolated"];

/// Two cases; the agent `sh -c script` finds its prompt in input.yaml.
fn project(script: &str) -> Project {
    ProjectBuilder::new()
        .eval_yaml(&format!(
            "name: small\n\
             dataset: {{path: cases, schema: prompt}}\n\
             execution: {{prompt: '{{prompt}}'}}\n\
             runner:\n  type: cli\n  command:\n    - sh\n    - -c\n    - {script:?}\n\
             outputs: [{{path: out}}]\n\
             judges: [{{name: wrote, check: 'return \"out/a\" in outputs[\"files\"]'}}]\n",
        ))
        .case("a", |case| case.input("prompt: one\n"))
        .case("b", |case| case.input("prompt: two\n"))
        .build()
}

fn run(project: &Project, args: &[&str]) -> Invocation {
    project.invoke(RUN.iter().chain(args))
}

#[test]
fn the_template_passes_from_outside_and_from_inside() {
    let project = ProjectBuilder::new().build();
    project.casepack(["init", "data"]).assert_code(0);
    let outcome = run(&project, &["data"]).run().assert_code(0);
    for case in ["ticket-101", "ticket-102", "ticket-103"] {
        assert!(
            outcome.stdout.contains(&format!("passed  {case}  1.00")),
            "{outcome}"
        );
    }
    assert!(
        outcome.stdout.contains("3 passed; mean reward 1.00.\n"),
        "{outcome}"
    );
    assert!(
        outcome
            .stdout
            .contains("Results: runs/20231114-221320/results.json\n"),
        "{outcome}"
    );
    assert!(!outcome.stderr.contains("warning"), "{outcome}");
    let outcome = run(&project, &["--agent", "oracle"])
        .cwd(project.path("data"))
        .run();
    outcome.assert_code(0);
    // Whoever does nothing passes nothing.
    let outcome = run(&project, &["data", "--agent", "nop", "--run-id", "nop"]).run();
    assert!(outcome.assert_code(1).stdout.contains("0 passed, 3 failed"));
}

#[test]
fn check_has_nothing_to_say_about_the_template() {
    let project = ProjectBuilder::new().build();
    project.casepack(["init", "data"]).assert_code(0);
    let outcome = project.casepack(["check", "data", "-v"]).assert_code(0);
    assert_eq!(
        outcome.stdout,
        "ticket-triage: 3 cases checked, no errors.\n"
    );
    assert_eq!(outcome.stderr, "Checking 3 cases\n");
}

#[test]
fn cases_that_do_not_pass_are_exit_1_in_every_output() {
    let project = project("grep -q one input.yaml && mkdir -p out && touch out/a");
    let outcome = run(&project, &["--run-id", "human"]).run().assert_code(1);
    assert!(outcome.stdout.contains("passed  a  1.00"), "{outcome}");
    assert!(outcome.stdout.contains("failed  b  0.00"), "{outcome}");
    let outcome = run(&project, &["--run-id", "json", "--output", "json"])
        .run()
        .assert_code(1);
    let document = outcome.json();
    assert_eq!(document["schema"], "casepack.run.v1");
    assert_eq!(document["results"], "runs/json/results.json");
    assert_eq!(document["exit_code"], 1);
    assert_eq!(document["summary"]["passed"], 1);
    assert_eq!(document["cases"][1]["status"], "failed");
    let results = project.read("runs/json/results.json");
    let results: serde_json::Value = serde_json::from_str(&results).expect("a document");
    assert_eq!(results["cases"], document["cases"]);
    let outcome = run(&project, &["--run-id", "github", "--output", "github"])
        .run()
        .assert_code(1);
    assert!(
        outcome.stdout.starts_with("::error title=b::failed 0.00 "),
        "{outcome}"
    );
}

#[test]
fn another_agent_can_be_tried_without_a_change_of_the_dataset() {
    let project = project("exit 1");
    let command = "sh -c 'mkdir out; cp input.yaml out/a'";
    run(&project, &["--agent-command", command])
        .run()
        .assert_code(0);
}

#[test]
fn runs_have_names_of_their_own() {
    let project = project("mkdir out; touch out/a");
    for args in [&["--run-id", "../x"][..], &["--run-id", ""]] {
        let outcome = run(&project, args).run().assert_code(2);
        assert!(outcome.stderr.contains("run id"), "{outcome}");
    }
    run(&project, &["--run-id", "one"]).run().assert_code(0);
    let outcome = run(&project, &["--run-id", "one"]).run().assert_code(2);
    assert!(outcome.stderr.contains("exists already"), "{outcome}");
    assert!(outcome.stderr.contains("another --run-id"), "{outcome}");
    // Two that start in one second are told apart.
    run(&project, &[]).run().assert_code(0);
    let outcome = run(&project, &[]).run().assert_code(0);
    assert!(
        outcome
            .stdout
            .contains("runs/20231114-221320-2/results.json"),
        "{outcome}"
    );
}

#[test]
fn nothing_is_run_when_a_case_can_not_be_built() {
    let project = project("touch ran");
    project.write("cases/a/input.yaml", "prompt: [\n");
    let outcome = run(&project, &["--output", "json"]).run().assert_code(1);
    let document = outcome.json();
    assert!(
        document["error"]["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("Nothing was run")),
        "{outcome}"
    );
    assert!(!project.path("runs").exists());
    run(&project, &["--case", "b"]).run();
    assert!(project.path("runs").exists());
}

/// Starts a run whose agents have begun when this returns.
fn started(first: &str, args: &[&str]) -> (Project, std::process::Child) {
    let project = project("");
    let marker = project.path("started");
    let script = format!("{first}touch {}; sleep 10", marker.display());
    let config = project
        .read("eval.yaml")
        .replace("\"\"", &format!("{script:?}"));
    project.write("eval.yaml", config);
    let child = run(&project, args)
        .command()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let begin = Instant::now();
    while !marker.exists() {
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "no agent was started"
        );
        sleep(Duration::from_millis(10));
    }
    (project, child)
}

fn signal(child: &std::process::Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("it is running");
    kill_process(pid, signal).expect("it is ours");
}

#[test]
fn an_interrupt_ends_agents_and_keeps_what_is_known() {
    for kind in [Signal::INT, Signal::TERM] {
        let (project, child) = started("", &["--run-id", "r", "--output", "json"]);
        signal(&child, kind);
        let begin = Instant::now();
        let output = child.wait_with_output().expect("it ends");
        assert!(begin.elapsed() < Duration::from_secs(8));
        assert_eq!(output.status.code(), Some(130));
        let document: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("a document");
        assert_eq!(document["exit_code"], 130);
        assert_eq!(document["interrupted"], json!(true));
        assert!(
            document["error"]["message"]
                .as_str()
                .is_some_and(|text| text.starts_with("Interrupted"))
        );
        assert!(
            project
                .read("runs/r/results.json")
                .contains("\"interrupted\": true")
        );
    }
}

#[test]
fn a_second_interrupt_ends_it_at_once() {
    let (project, child) = started("trap '' TERM; ", &["--run-id", "r"]);
    signal(&child, Signal::INT);
    sleep(Duration::from_millis(50));
    signal(&child, Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert!(!project.path("runs/r/results.json").exists());
}
