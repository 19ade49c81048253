//! `casepack run`: the template passes, verdicts become exit codes, and interrupts end it whole.

mod hostile;
mod limits;
mod tasks;

use std::os::unix::fs::symlink;
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
    let own = if args.contains(&"--sandbox") {
        &["run", "--allow", "run-not-isolated"][..]
    } else {
        RUN
    };
    project.invoke(own.iter().chain(args))
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
    // Whoever does nothing passes nothing, and asks no model.
    let args = [
        "data", "--agent", "nop", "--run-id", "nop", "--model", "big", "-v",
    ];
    let outcome = run(&project, &args).run().assert_code(1);
    assert!(outcome.stdout.contains("0 passed, 3 failed"), "{outcome}");
    assert!(outcome.stderr.contains("agent-option-ignored"), "{outcome}");
    assert!(
        project
            .read("runs/nop/results.json")
            .contains("\"model\": null")
    );
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
fn a_directory_of_runs_that_is_a_link_is_refused_with_the_way_out() {
    let project = project("touch ran");
    std::fs::create_dir(project.path("there")).unwrap();
    symlink(project.path("there"), project.path("linked")).unwrap();
    for args in [
        &["--runs-dir", "linked"][..],
        &["--runs-dir", "linked", "--run-id", "r"],
    ] {
        let outcome = run(&project, args).run().assert_code(2);
        assert!(
            outcome.stderr.contains("that it leads to with --runs-dir"),
            "{outcome}"
        );
    }
    assert!(!project.path("dist").exists());
    assert_eq!(std::fs::read_dir(project.path("there")).unwrap().count(), 0);
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
    let child = begun(&run(&project, args), || marker.exists());
    (project, child)
}

/// Starts a command, and returns when it has come so far.
fn begun(command: &Invocation, so_far: impl Fn() -> bool) -> std::process::Child {
    let child = command
        .command()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let begin = Instant::now();
    while !so_far() {
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "it did not come so far"
        );
        sleep(Duration::from_millis(10));
    }
    child
}

fn signal(child: &std::process::Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("it is running");
    kill_process(pid, signal).expect("it is ours");
}

#[test]
fn an_interrupt_ends_agents_and_keeps_what_is_known() {
    for kind in [Signal::INT, Signal::TERM, Signal::HUP] {
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

/// Whoever is started by nohup is not to end with the terminal.
#[test]
fn a_hangup_that_is_ignored_is_none() {
    let project = project(
        "touch ../started; until test -e ../go; do sleep 0.05; done; mkdir out; touch out/a",
    );
    let words = ["-c", "trap '' HUP; exec \"$@\"", "sh"].map(Into::into);
    let command = run(&project, &["--run-id", "r", "--case", "a"]).within("sh", words);
    let marker = project.path("runs/r/a/started");
    let child = begun(&command, || marker.exists());
    signal(&child, Signal::HUP);
    project.write("runs/r/a/go", "");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn an_interrupt_says_last_how_to_go_on_and_lists_no_case_that_had_not_begun() {
    let (_project, child) = started("", &["--run-id", "r", "-j", "1"]);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        told.ends_with(
            "Interrupted. Add --resume r to the same command, in place of --run-id, to run the rest.\n"
        ),
        "{told}"
    );
    assert!(told.contains("… and 1 case that had not begun\n"), "{told}");
    assert!(told.contains("  a  ") && !told.contains("  b  "), "{told}");
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

/// What hooks start may outlive them, but not casepack, however that ends.
#[test]
#[cfg(target_os = "linux")]
fn what_hooks_started_ends_with_casepack() {
    for signals in [&[Signal::INT, Signal::INT][..], &[Signal::KILL]] {
        let hooks = "hooks:\n  before_all:\n    - command: 'sleep 300 > /dev/null 2>&1 & echo $! > pid'\n  \
                     before_each:\n    - command: 'echo $$ > $AGENT_EVAL_PROJECT_ROOT/each; sleep 301'\n";
        let project = judged("true\n", hooks);
        let pid = |name: &str| std::fs::read_to_string(project.path(name)).unwrap_or_default();
        let command = run(&project, &["--run-id", "r", "-j", "1"]);
        let child = begun(&command, || pid("each").ends_with('\n'));
        for it in signals {
            signal(&child, *it);
            sleep(Duration::from_millis(50));
        }
        drop(child.wait_with_output().unwrap());
        let begin = Instant::now();
        for name in ["pid", "each"] {
            let line = || std::fs::read(format!("/proc/{}/cmdline", pid(name).trim()));
            while line().is_ok_and(|line| !line.is_empty()) {
                assert!(begin.elapsed() < Duration::from_mins(1), "{name} goes on");
                sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A project whose agent is a stand-in for `program`, found in `PATH`, that records how it was
/// called: its arguments, its standard input and the variables that matter.
fn stand_in(runner: &str, program: &str, output: &str) -> Project {
    let script = format!(
        "#!/bin/sh\nmkdir -p out\nfor word; do printf '<%s>\\n' \"$word\"; done > out/a\n\
         cat > out/stdin\n\
         env | grep -E '^(ANTHROPIC|OPENAI|CLAUDE_CODE|OPENCODE|IS_SANDBOX|SECRET|MINE)' | sort > out/env\n\
         cat \"$HOME/.claude/.credentials.json\" \"$HOME/.codex/auth.json\" > out/login 2>/dev/null\n\
         for plugin in $(sed -n 's/^<--plugin-dir=\\(.*\\)>$/\\1/p' out/a); do ls \"$plugin\"; done > out/plugins\n\
         cat <<'END'\n{output}\nEND\n"
    );
    ProjectBuilder::new()
        .eval_yaml(&format!(
            "name: small\n\
             dataset: {{path: cases, schema: prompt}}\n\
             execution: {{prompt: '{{prompt}}', env: {{MINE: $OTHER}}, max_budget_usd: 2.5}}\n\
             models: {{skill: big, subagent: small}}\n\
             runner:\n{runner}\
             outputs: [{{path: out}}]\n\
             judges: [{{name: wrote, check: 'return \"out/a\" in outputs[\"files\"]'}}]\n",
        ))
        .executable(format!("bin/{program}"), script)
        .file("plugin/skills/x/SKILL.md", "x\n")
        .case("a", |case| {
            case.input("prompt: --version of \"$(id)\" 'x'\n")
        })
        .build()
}

/// Runs a stand-in with secrets around it.
fn run_stand_in(project: &Project, args: &[&str]) -> crate::support::Outcome {
    let path = std::env::var("PATH").unwrap();
    project
        .invoke(
            ["run", "--run-id", "r", "--output", "json"]
                .iter()
                .chain(args),
        )
        .env("PATH", format!("{}:{path}", project.path("bin").display()))
        .env("ANTHROPIC_API_KEY", "k-anthropic")
        .env("OPENAI_API_KEY", "k-openai")
        .env("SECRET_TOKEN", "k-secret")
        .env("OTHER", "other")
        .run()
}

#[test]
fn claude_code_is_called_as_documented() {
    let runner = "  type: claude-code\n  effort: high\n  permission_mode: bypassPermissions\n  \
                  system_prompt: Be brief.\n  plugin_dirs: [plugin]\n";
    let said = r#"{"type":"result","result":"done","total_cost_usd":0.5,"num_turns":2,"usage":{"input_tokens":3,"output_tokens":4}}"#;
    for sandbox in sandboxes() {
        let project = stand_in(runner, "claude", said);
        let outcome = run_stand_in(
            &project,
            &["--sandbox", sandbox, "--allow", "run-not-isolated"],
        );
        let outcome = outcome.assert_code(0);
        let out = |name: &str| project.read(&format!("runs/r/a/workspace/out/{name}"));
        let plugin = match sandbox {
            "bwrap" => "/casepack/plugins/0/plugin".to_owned(),
            _ => project.path("plugin").display().to_string(),
        };
        assert_eq!(
            out("a"),
            format!(
                "<--print>\n<--output-format=stream-json>\n<--verbose>\n<--model=big>\n\
                 <--max-budget-usd=2.5>\n<--effort=high>\n<--permission-mode=bypassPermissions>\n\
                 <--plugin-dir={plugin}>\n<--append-system-prompt=Be brief.>\n"
            )
        );
        assert_eq!(out("stdin"), "--version of \"$(id)\" 'x'");
        assert_eq!(out("plugins"), "skills\n");
        let inside = if sandbox == "bwrap" {
            "IS_SANDBOX=1\n"
        } else {
            ""
        };
        assert_eq!(
            out("env"),
            format!(
                "ANTHROPIC_API_KEY=k-anthropic\nCLAUDE_CODE_SUBAGENT_MODEL=small\n{inside}MINE=other\n"
            )
        );
        let agent = &outcome.json()["cases"][0]["agent"];
        assert_eq!(agent["cost_usd"], 0.5);
        assert_eq!(agent["num_turns"], 2);
        assert_eq!(agent["token_usage"]["output"], 4);
        // The stream is kept, and no secret is written down.
        assert!(project.read("runs/r/a/stdout.txt").contains(said));
        assert_no_secret(&project, "runs/r/a/workspace");
    }
}

/// Nothing below `runs` but what the agent itself wrote holds a secret of the caller.
#[track_caller]
fn assert_no_secret(project: &Project, own: &str) {
    let mut ahead = vec![project.path("runs"), project.path("dist")];
    while let Some(dir) = ahead.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.starts_with(project.path(own)) || path.ends_with("outputs") {
                continue;
            }
            if path.is_dir() {
                ahead.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains("k-anthropic"), "{}", path.display());
            }
        }
    }
}

/// The sandboxes that can be tested here.
fn sandboxes() -> Vec<&'static str> {
    let works = std::process::Command::new("bwrap")
        .args(["--ro-bind", "/", "/", "--unshare-pid", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if works {
        vec!["none", "bwrap"]
    } else {
        println!("skipped: bubblewrap does not work here");
        vec!["none"]
    }
}

#[test]
fn codex_and_opencode_are_called_as_documented() {
    for sandbox in sandboxes() {
        let args = ["--sandbox", sandbox, "--allow", "run-not-isolated"];
        let said = r#"{"type":"turn.completed","usage":{"input_tokens":9,"cached_input_tokens":4,"output_tokens":1}}"#;
        let project = stand_in("  type: codex\n  effort: low\n", "codex", said);
        let outcome = run_stand_in(&project, &args).assert_code(0);
        let (mode, workdir) = match sandbox {
            "bwrap" => (
                "--dangerously-bypass-approvals-and-sandbox",
                "/workspace".to_owned(),
            ),
            _ => (
                "--sandbox=workspace-write",
                project.path("runs/r/a/workspace").display().to_string(),
            ),
        };
        assert_eq!(
            project.read("runs/r/a/workspace/out/a"),
            format!(
                "<exec>\n<--json>\n<--ephemeral>\n<--skip-git-repo-check>\n<{mode}>\n\
                 <--cd={workdir}>\n<--model=big>\n<--config=model_reasoning_effort=\"low\">\n<->\n"
            )
        );
        assert_eq!(
            project.read("runs/r/a/workspace/out/stdin"),
            "--version of \"$(id)\" 'x'"
        );
        let env = project.read("runs/r/a/workspace/out/env");
        assert_eq!(env, "MINE=other\nOPENAI_API_KEY=k-openai\n");
        assert_eq!(
            outcome.json()["cases"][0]["agent"]["token_usage"]["input"],
            5
        );
        // What it has no option for is told.
        let ignored = outcome.findings("agent-option-ignored");
        let ignored: Vec<_> = ignored.iter().map(|finding| &finding["entry"]).collect();
        assert!(ignored.contains(&&json!("max_budget_usd")), "{outcome}");

        let said = r#"{"type":"step_finish","part":{"cost":0.25,"tokens":{"input":2,"output":3}}}"#;
        let runner = "  type: opencode\n  effort: max\n  permission_mode: bypassPermissions\n";
        let project = stand_in(runner, "opencode", said);
        let outcome = run_stand_in(&project, &args).assert_code(0);
        assert_eq!(
            project.read("runs/r/a/workspace/out/a"),
            "<run>\n<--format=json>\n<--model=big>\n<--variant=max>\n<-->\n\
             <--version of \"$(id)\" 'x'>\n"
        );
        let env = project.read("runs/r/a/workspace/out/env");
        assert!(
            env.contains("OPENCODE_PERMISSION={\"*\":\"allow\"}\n"),
            "{env}"
        );
        assert_eq!(outcome.json()["cases"][0]["agent"]["cost_usd"], 0.25);
    }
}

#[test]
fn logins_are_shown_on_request_only() {
    for sandbox in sandboxes() {
        let project = stand_in("  type: claude-code\n", "claude", "");
        project.write("home/.claude/.credentials.json", "login\n");
        project.write("home/.codex/auth.json", "another\n");
        let args = ["--sandbox", sandbox, "--allow", "run-not-isolated"];
        run_stand_in(&project, &args).assert_code(0);
        assert_eq!(project.read("runs/r/a/workspace/out/login"), "");
        project.remove("runs");
        let home = project.path("home").display().to_string();
        run_stand_in(&project, &[&args[..], &["--agent-home", &home]].concat()).assert_code(0);
        assert_eq!(project.read("runs/r/a/workspace/out/login"), "login\n");
        // Not even a copy is left, and the file is as it was.
        assert!(!project.path("runs/r/a/home").exists());
        assert_eq!(project.read("home/.claude/.credentials.json"), "login\n");
    }
}

#[test]
fn agents_that_are_not_there_are_told_with_those_that_could_be() {
    let project = stand_in("  type: claude-code\n", "other", "");
    let outcome = project
        .invoke(["run", "--sandbox", "none", "--allow", "run-not-isolated"])
        .env("PATH", "/usr/bin:/bin")
        .run()
        .assert_code(1);
    assert!(outcome.stderr.contains("'claude'"), "{outcome}");
    assert!(outcome.stderr.contains("not found in PATH"), "{outcome}");
    assert!(!project.path("runs").exists());
    let project = stand_in("  type: responses-api\n", "other", "");
    let outcome = run(&project, &[]).run().assert_code(1);
    for known in [
        "responses-api",
        "cli, claude-code, codex, opencode",
        "--agent oracle",
    ] {
        assert!(outcome.stderr.contains(known), "{outcome}");
    }
    assert!(!project.path("dist").exists(), "told before the build");
    let steps = "execution: {steps: [{id: a, prompt: x, runner: {type: a-robot}}, \
                 {id: b, prompt: x, runner: {type: cli, command: 'sh -c \"x'}}], ";
    let config = project.read("eval.yaml");
    let config = config.replace("execution: {prompt: '{prompt}', ", steps);
    project.write("eval.yaml", config);
    let outcome = run(&project, &[]).run().assert_code(1);
    for told in ["responses-api", "a-robot", "a quotation is not closed"] {
        assert!(outcome.stderr.contains(told), "{told}: {outcome}");
    }
    assert!(!project.path("dist").exists(), "told before the build");
    let steps =
        "execution: {steps: [{id: a, prompt: x, runner: {type: cli, command: no-program-2}}], ";
    let project = stand_in("  type: cli\n  command: sh\n", "other", "");
    let config = project.read("eval.yaml");
    project.write(
        "eval.yaml",
        config.replace("execution: {prompt: '{prompt}', ", steps),
    );
    let outcome = run(&project, &[]).run().assert_code(1);
    assert!(outcome.stderr.contains("'no-program-2'"), "{outcome}");
    assert!(!project.path("dist").exists(), "told before the build");
    let outcome = run(&project, &["--agent-command", "no-program x"]);
    let outcome = outcome.run().assert_code(1);
    assert!(outcome.stderr.contains("'no-program'"), "{outcome}");
    assert!(!project.path("dist").exists(), "told before the build");
    // Another one than the dataset names.
    let project = stand_in("  type: responses-api\n", "claude", "");
    let args = [
        "--agent",
        "claude-code",
        "--sandbox",
        "none",
        "--allow",
        "run-not-isolated",
    ];
    let outcome = run_stand_in(&project, &args).assert_code(0);
    assert_eq!(outcome.json()["agent"]["name"], "claude-code");
}

/// Cases `a` and `b`, judged yes and no, with more lines of config.
fn judged(agent: &str, more: &str) -> Project {
    ProjectBuilder::new()
        .eval_yaml(&format!(
            "name: small\n\
             dataset: {{path: cases, schema: prompt}}\n\
             execution: {{prompt: '{{prompt}}'}}\n\
             runner: {{type: cli, command: [sh, agent.sh]}}\n\
             outputs: [{{path: out}}]\n\
             judges:\n  - name: good\n    check: 'return \"out/a\" in outputs[\"files\"]'\n{more}"
        ))
        .file("agent.sh", agent)
        .case("a", |case| case.input("prompt: one\n"))
        .case("b", |case| case.input("prompt: two\n"))
        .build()
}

const ONE_OF_TWO: &str = "grep -q one input.yaml && touch out/a; true\n";

#[test]
fn thresholds_decide_the_exit_code_and_are_shown() {
    for (bounds, code, told) in [
        (
            "{min_pass_rate: 0.5}",
            0,
            "met  good.min_pass_rate  0.50  got 0.50",
        ),
        (
            "{min_pass_rate: 0.6}",
            1,
            "missed  good.min_pass_rate  0.60  got 0.50",
        ),
        (
            "{min_mean: 0.5, max_error_rate: 0}",
            0,
            "good.max_error_rate  0.00  got 0.00",
        ),
    ] {
        let project = judged(ONE_OF_TWO, &format!("thresholds: {{good: {bounds}}}\n"));
        let outcome = run(&project, &["--run-id", "r"]).run().assert_code(code);
        assert!(outcome.stdout.contains(told), "{outcome}");
        assert!(outcome.stdout.contains("1 passed, 1 failed"), "{outcome}");
        let results: serde_json::Value =
            serde_json::from_str(&project.read("runs/r/results.json")).unwrap();
        assert_eq!(results["thresholds"][0]["met"], code == 0);
    }
    // A case without a verdict is excused only where a bound says how many there may be.
    for (bounds, code) in [
        ("{min_mean: 1}", 1),
        ("{min_mean: 1, max_error_rate: 0.4}", 1),
        ("{min_mean: 1, max_error_rate: 0.5}", 0),
    ] {
        let hooks = "hooks: {before_each: [{command: 'test $CASE_ID = a'}]}\n";
        let more = format!("thresholds: {{good: {bounds}}}\n{hooks}");
        let project = judged("touch out/a\n", &more);
        let outcome = run(&project, &[]).run().assert_code(code);
        assert!(
            outcome.stdout.contains("1 passed, 1 without a verdict"),
            "{outcome}"
        );
    }
}

#[test]
fn hooks_run_in_all_phases_with_what_they_are_told() {
    let log = "echo \"$PHASE $CASE_ID $STEP_INDEX $STEP_EXIT_CODE $(basename $PWD) $AGENT_EVAL_RUN_ID\" >> $AGENT_EVAL_PROJECT_ROOT/log";
    let mut hooks = String::from("hooks:\n");
    for phase in [
        "before_all",
        "before_each",
        "before_step",
        "after_step",
        "after_each",
        "before_scoring",
        "after_all",
        "before_report",
    ] {
        let command = log.replace("$PHASE", phase);
        hooks.extend(["  ", phase, ":\n    - command: '", &command, "'\n"]);
        hooks.push_str("    - {command: 'touch never', condition: 'exit 1', description: never}\n");
    }
    hooks = hooks.replace(
        "  before_each:\n",
        "  before_each:\n    - command: 'echo \"{env: {FROM_HOOK: $CASE_ID}, data: {port: 8080}}\" > .hook-outputs.yaml; \
         test -f \"$CASE_INPUT\" && test -d \"$CASE_SOURCE_DIR\" && test \"$CASE_WORKSPACE\" = \"$PWD\"'\n",
    );
    let agent = "touch out/a; echo $FROM_HOOK > out/hook; exit 3\n";
    let judge = "  - name: told\n    check: 'return outputs[\"hook_outputs\"][\"port\"] == 8080'\n";
    let project = judged(agent, &format!("{judge}{hooks}"));
    let outcome = run(
        &project,
        &["--run-id", "r", "--case", "a", "--output", "json"],
    )
    .run();
    let outcome = outcome.assert_code(0);
    assert_eq!(
        project.read("log"),
        "before_all    project r\n\
         before_each a   workspace r\n\
         before_step a 0  workspace r\n\
         after_step a 0 3 workspace r\n\
         before_scoring a 0 3 project r\n\
         after_each a   workspace r\n\
         after_all    project r\n\
         before_report    project r\n"
    );
    assert_eq!(project.read("runs/r/a/outputs/out/hook"), "a\n");
    assert!(
        !project
            .path("runs/r/a/workspace/.hook-outputs.yaml")
            .exists()
    );
    assert!(!project.path("never").exists());
    let told = project.read("runs/r/a/logs/agent/run_result.json");
    assert!(told.contains("\"port\": 8080"), "{told}");
    let document = outcome.json();
    let hooks = document["cases"][0]["hooks"].as_array().unwrap();
    assert!(
        hooks
            .iter()
            .any(|hook| hook["what"] == "never" && hook["skipped"] == true)
    );
    let log = hooks[0]["log"].as_str().unwrap();
    assert!(project.path(format!("runs/r/{log}")).exists());
    assert_eq!(document["hooks"][0]["phase"], "before_all");
    // Judges are told of hooks where nobody worked, too.
    let args = [
        "--run-id", "n", "--case", "a", "--agent", "nop", "--output", "json",
    ];
    let document = run(&project, &args).run().assert_code(1).json();
    let judges = document["cases"][0]["judges"].as_array().unwrap();
    let told = judges.iter().find(|judge| judge["name"] == "told").unwrap();
    assert_eq!(told["value"], true, "{told}");
}

#[test]
fn failing_hooks_end_what_they_are_around_and_nothing_else() {
    let hooks = "hooks:\n  before_each:\n    - {command: 'test $CASE_ID = b', description: prepare}\n  \
                 after_each:\n    - {command: 'touch $AGENT_EVAL_PROJECT_ROOT/after-$CASE_ID; exit 1'}\n";
    let project = judged("touch out/a\n", hooks);
    let outcome = run(&project, &["--run-id", "r", "--output", "json"]).run();
    let document = outcome.assert_code(1).json();
    assert_eq!(document["cases"][0]["error"], "hook");
    let message = document["cases"][0]["message"].as_str().unwrap();
    assert!(
        message.contains("before_each hook 'prepare' failed: exit status 1"),
        "{message}"
    );
    assert_eq!(document["cases"][1]["status"], "passed");
    assert!(project.path("after-a").exists() && project.path("after-b").exists());
    // One before all of them: nothing is run, and what was begun is cleaned up.
    let hooks = "hooks:\n  before_all:\n    - {command: 'sleep 77', timeout: 1}\n  \
                 after_all:\n    - {command: 'touch cleaned'}\n";
    let project = judged("touch out/a\n", hooks);
    let outcome = run(&project, &["--run-id", "r", "--output", "json"]).run();
    let document = outcome.assert_code(1).json();
    assert_eq!(document["summary"]["skipped"], 2);
    assert_eq!(document["cases"][0]["error"], "hook");
    assert_eq!(document["hooks"][0]["timed_out"], true);
    assert!(project.path("cleaned").exists());
    // One that may fail.
    let hooks = "hooks:\n  before_all:\n    - {command: 'exit 1', on_failure: continue}\n";
    let project = judged("touch out/a\n", hooks);
    run(&project, &[]).run().assert_code(0);
}

#[test]
fn an_interrupt_lets_hooks_clean_up() {
    let hooks = "hooks:\n  before_all: [{command: 'touch .hook-outputs.json.mine'}]\n  \
                 after_each: [{command: 'sleep 0.3; touch $AGENT_EVAL_PROJECT_ROOT/after-each'}]\n  \
                 after_all: [{command: 'sleep 0.3; touch after-all'}]\n";
    let project = judged("touch $CASE; exec sleep 60\n", hooks);
    let marker = project.path("begun");
    let config = project.read("eval.yaml").replace(
        "prompt: '{prompt}'}",
        &format!(
            "prompt: '{{prompt}}', env: {{CASE: {}}}}}",
            marker.display()
        ),
    );
    project.write("eval.yaml", config);
    let command = run(&project, &["--run-id", "r", "-j", "1"]);
    let child = begun(&command, || marker.exists());
    signal(&child, Signal::TERM);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert!(project.path("after-each").exists() && project.path("after-all").exists());
}

#[test]
fn an_agent_from_a_package_manager_finds_its_modules() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let project = stand_in("  type: claude-code\n", "none", "");
    let cli = "#!/bin/sh\nmkdir -p out; cp \"$(dirname \"$0\")/data\" out/a; cat > /dev/null\n";
    let module = "tool/lib/node_modules/@x/cli";
    project.write(&format!("{module}/cli.js"), cli);
    project.write(&format!("{module}/data"), "found\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(project.path(format!("{module}/cli.js")), mode).unwrap();
    std::fs::remove_dir_all(project.path("bin")).unwrap();
    std::fs::create_dir(project.path("bin")).unwrap();
    let link = format!("../{module}/cli.js");
    symlink(link, project.path("bin/claude")).unwrap();
    run_stand_in(&project, &["--sandbox", "bwrap"]).assert_code(0);
    assert_eq!(project.read("runs/r/a/workspace/out/a"), "found\n");
}

#[test]
fn what_a_hook_starts_lives_until_its_scope_ends() {
    let number = format!("98{}", std::process::id());
    let hooks = format!(
        "hooks:\n  before_each:\n    - {{command: 'sleep {number} & echo $! > out/pid'}}\n"
    );
    let agent = "touch out/a\n";
    let project = judged(agent, &hooks);
    let config = project.read("eval.yaml").replace(
        "check: 'return \"out/a\" in outputs[\"files\"]'",
        "check: 'import os; return os.path.exists(\"/proc/\" + outputs[\"files\"][\"out/pid\"].strip())'",
    );
    project.write("eval.yaml", config);
    // Without a sandbox the judge sees the process.
    run(&project, &["--run-id", "r"]).run().assert_code(0);
    let left = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|process| {
            std::fs::read(process.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&number))
        });
    assert_eq!(left.count(), 0);
}

#[test]
fn attempts_count_all_of_them_and_not_the_luckiest() {
    let agent = "n=$(cat $COUNT 2>/dev/null || echo 0); echo $((n + 1)) > $COUNT\n\
                 test $n != 1 && touch out/a; true\n";
    let project = judged(agent, "");
    let config = project.read("eval.yaml").replace(
        "prompt: '{prompt}'}",
        &format!(
            "prompt: '{{prompt}}', env: {{COUNT: {}}}}}",
            project.path("count").display()
        ),
    );
    project.write("eval.yaml", config);
    let args = ["--run-id", "r", "--case", "a", "--attempts", "4", "-j", "1"];
    let outcome = run(&project, &args).run().assert_code(1);
    assert!(
        outcome
            .stdout
            .contains("4 attempts each: pass@1 0.75, pass@2 1.00, pass@3 1.00, pass@4 1.00."),
        "{outcome}"
    );
    assert!(
        outcome.stdout.contains("3 of 4 attempts passed."),
        "{outcome}"
    );
    let results: serde_json::Value =
        serde_json::from_str(&project.read("runs/r/results.json")).unwrap();
    let case = &results["cases"][0];
    assert_eq!(
        (&case["status"], &case["reward"]),
        (&json!("failed"), &json!(0.75))
    );
    assert_eq!(case["attempts"][1]["status"], "failed");
    assert!(project.path("runs/r/a/attempt-4/workspace/out/a").exists());
}

/// As in Harbor.
#[test]
fn an_attempt_without_a_verdict_has_not_passed() {
    let hooks = "hooks:\n  before_each:\n    - command: 'echo x >> $AGENT_EVAL_PROJECT_ROOT/tries; \
                 test $(wc -l < $AGENT_EVAL_PROJECT_ROOT/tries) -ge 2'\n";
    let project = judged("touch out/a\n", hooks);
    let args = [
        "--case",
        "a",
        "--attempts",
        "2",
        "-j",
        "1",
        "--output",
        "json",
    ];
    let document = run(&project, &args).run().assert_code(1).json();
    assert_eq!(document["cases"][0]["attempts"][0]["status"], "error");
    let wanted = json!({"1": 0.5, "2": 1.0});
    assert_eq!(document["summary"]["pass_at_k"], wanted);
}

#[test]
fn verdicts_without_a_sandbox_stay_what_they_are() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let project = judged("touch out/a\n", "");
    run(&project, &["--run-id", "r"]).run().assert_code(0);
    let again = || {
        let args = ["--sandbox", "bwrap", "--resume", "r", "--output", "json"];
        run(&project, &args).run().assert_code(0).json()
    };
    std::fs::remove_file(project.path("runs/r/b/result.json")).unwrap();
    for _ in 0..2 {
        let document = again();
        assert_eq!(document["isolated"], false);
        assert!(
            document["warnings"][0]
                .as_str()
                .unwrap()
                .contains("earlier part")
        );
    }
    for case in ["a", "b"] {
        std::fs::remove_file(project.path(format!("runs/r/{case}/result.json"))).unwrap();
    }
    assert_eq!(again()["isolated"], true, "no verdict is of that time");
    run(&project, &["--sandbox", "bwrap", "--run-id", "s"]).run();
    let outcome = run(&project, &["--resume", "s"]).run().assert_code(2);
    assert!(
        outcome.stderr.contains("it was run in a sandbox"),
        "{outcome}"
    );
}

#[test]
fn a_try_without_a_verdict_is_made_again() {
    let hooks = "hooks:\n  before_each:\n    - command: 'echo x >> $AGENT_EVAL_PROJECT_ROOT/tries; \
                 test $(wc -l < $AGENT_EVAL_PROJECT_ROOT/tries) -ge 3'\n";
    let project = judged("touch out/a\n", hooks);
    let args = [
        "--run-id",
        "r",
        "--case",
        "a",
        "--retries",
        "2",
        "--output",
        "json",
    ];
    let document = run(&project, &args).run().assert_code(0).json();
    let retried = document["cases"][0]["retried"].as_array().unwrap();
    assert_eq!(retried.len(), 2);
    assert_eq!(retried[0]["error"], "hook");
    // A case that failed has its verdict.
    let project = judged("echo x >> $AGENT_EVAL/tries; true\n", "");
    let document = run(&project, &args).run().assert_code(1).json();
    assert_eq!(document["cases"][0].get("retried"), None);
}

#[test]
fn a_stopped_run_is_taken_up_again() {
    let agent =
        "echo x >> $LOG; test -e $GO || grep -q one input.yaml || exec sleep 30; touch out/a\n";
    let project = judged(agent, "");
    let config = project.read("eval.yaml").replace(
        "prompt: '{prompt}'}",
        &format!(
            "prompt: '{{prompt}}', env: {{LOG: {}, GO: {}}}}}",
            project.path("log").display(),
            project.path("go").display()
        ),
    );
    project.write("eval.yaml", config);
    let log = || std::fs::read_to_string(project.path("log")).unwrap_or_default();
    let command = run(&project, &["--run-id", "r", "-j", "1"]);
    let child = begun(&command, || log().lines().count() >= 2);
    // While it runs, nobody else takes it up.
    let outcome = run(&project, &["--resume", "r"]).run().assert_code(2);
    assert!(
        outcome.stderr.contains("another casepack is at work on it"),
        "{outcome}"
    );
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("Add --resume r to the same command"),
        "{told}"
    );
    project.write("go", "");
    let outcome = run(&project, &["--resume", "r", "--output", "json"])
        .run()
        .assert_code(0);
    let document = outcome.json();
    assert_eq!(document["cases"][0]["resumed"], true);
    assert_eq!(document["cases"][1].get("resumed"), None);
    assert_eq!(document["interrupted"], false);
    assert_eq!(project.read("log").lines().count(), 3);
    // By its path, and a case that changed is run again.
    project.write("cases/a/input.yaml", "prompt: one more\n");
    let path = project.path("runs/r").display().to_string();
    run(&project, &["--resume", &path]).run().assert_code(0);
    assert_eq!(project.read("log").lines().count(), 4);
    // What can not be a run is told before anything is built, and leaves nothing anywhere.
    std::fs::remove_dir_all(project.path("dist")).unwrap();
    symlink("r", project.path("runs/link")).unwrap();
    for (args, why) in [
        (&["--resume", "link"][..], "it is a link"),
        (&["--resume", "gone"], "it does not exist"),
        (&["--resume", "else/where/r"], "it does not exist"),
        (&["--resume", "cases/a"], "it has no run.json"),
        (&["--resume", ".."], "is no run id"),
        (&["--run-id", "../r"], "is no run id"),
        (&["--run-id", "r"], "exists already"),
        (
            &[
                "--resume",
                "r",
                "--agent",
                "nop",
                "--pass-at",
                "0.5",
                "--attempts",
                "2",
            ],
            "its agent was cli, not nop, and it had --attempts 1, and it had --pass-at 1",
        ),
        (
            &["--resume", "r", "--agent-command", "sh other.sh"],
            "it had another runner.command",
        ),
        // The results of the other case would be lost.
        (&["--resume", "r", "--case", "a"], "it was of all cases"),
        (
            &["--agent", "nop", "--agent-command", "x"],
            "two who are to work",
        ),
        (&["--agent-home", "nowhere"], "--agent-home 'nowhere'"),
    ] {
        let outcome = run(&project, args).run().assert_code(2);
        assert!(outcome.stderr.contains(why), "{outcome}");
        for left in ["dist", "else", "cases/.casepack", ".casepack"] {
            assert!(!project.path(left).exists(), "{args:?} left {left}");
        }
    }
}

#[test]
fn a_run_is_taken_up_with_the_settings_that_it_had_only() {
    let project = judged(
        "touch out/a\n",
        "models: {subagent: small}\n\
         hooks: {after_all: [{command: 'true'}]}\n",
    );
    let config = project
        .read("eval.yaml")
        .replace(
            "execution: {prompt: '{prompt}'}",
            "execution:\n  max_budget_usd: 2\n  env: {A: $HOME}\n  steps:\n  - {id: s, prompt: '{prompt}', \
             max_budget_usd: 1, runner: {type: cli, command: [sh, agent.sh], effort: low}}",
        )
        .replace(
            "command: [sh, agent.sh]}\noutputs",
            "command: [sh, agent.sh], effort: low, system_prompt: Be brief., permission_mode: plan, \
             env: {TOKEN: s3cret-s3cret}, plugin_dirs: [plugin]}\noutputs",
        );
    for plugin in ["plugin", "other"] {
        project.write(&format!("{plugin}/skills/x/SKILL.md"), "x\n");
    }
    project.write("eval.yaml", &config);
    let allow = ["--allow", "secret-literal"];
    let run = |args: &[&str]| run(&project, &[args, &allow[..]].concat()).run();
    run(&["--run-id", "r"]).assert_code(0);
    assert!(!project.read("runs/r/run.json").contains("s3cret"));
    for (from, to, name) in [
        ("{A: $HOME}", "{A: $USER}", "execution.env"),
        ("{A: $HOME}", "{B: $HOME}", "execution.env"),
        ("max_budget_usd: 1", "max_budget_usd: 3", "execution.steps"),
        (
            "sh], effort: low}}",
            "sh], effort: high}}",
            "execution.steps",
        ),
        ("after_all", "after_each", "hooks"),
        (
            "max_budget_usd: 2",
            "max_budget_usd: 3",
            "execution.max_budget_usd",
        ),
        ("subagent: small", "subagent: big", "models.subagent"),
        (
            "[sh, agent.sh], effort: low, s",
            "[sh, ./agent.sh], effort: low, s",
            "runner.command",
        ),
        ("effort: low, s", "effort: high, s", "runner.effort"),
        ("s3cret-s3cret", "s3cret-other1", "runner.env"),
        (
            "permission_mode: plan",
            "permission_mode: default",
            "runner.permission_mode",
        ),
        ("Be brief.", "Be long.", "runner.system_prompt"),
        ("[plugin]", "[other]", "runner.plugin_dirs"),
    ] {
        let other = config.replace(from, to);
        assert_ne!(other, config, "{from} is there");
        project.write("eval.yaml", other);
        let outcome = run(&["--resume", "r"]);
        assert_eq!(outcome.code, 2, "{to}: {outcome}");
        let wanted = format!("it had another {name}.\n");
        assert!(outcome.stderr.contains(&wanted), "{to}: {outcome}");
    }
    // Written in another way it is the same.
    project.write(
        "eval.yaml",
        config.replace(
            "[sh, agent.sh], effort: low, s",
            "'sh agent.sh', effort: low, s",
        ),
    );
    run(&["--resume", "r"]).assert_code(0);
    let outcome = run(&["--resume", "r", "--agent-timeout", "7"]).assert_code(2);
    assert!(
        outcome.stderr.contains("it had another --agent-timeout"),
        "{outcome}"
    );
}

#[test]
fn packages_are_run_without_their_dataset() {
    let project = judged(ONE_OF_TWO, "thresholds: {good: {min_pass_rate: 0.5}}\n");
    project.casepack(["build"]).assert_code(0);
    for name in ["eval.yaml", "cases"] {
        project.remove(name);
    }
    for (path, cases) in [
        ("dist", 2),
        ("dist/harbor", 2),
        ("dist/harbor/a", 1),
        ("dist/harbor/a/task.toml", 1),
    ] {
        let args = [path, "--agent-command", "sh agent.sh", "--output", "json"];
        let outcome = run(&project, &args).run().assert_code(0);
        let document = outcome.json();
        assert_eq!(document["summary"]["total"], cases, "{path}");
        assert_eq!(document["dataset"]["name"], "small");
        assert_eq!(document["thresholds"][0]["judge"], "good");
        assert!(document["dataset"]["packages_digest"].is_string());
    }
    let outcome = run(&project, &["dist", "--case", "b", "--agent", "nop"])
        .run()
        .assert_code(1);
    assert!(outcome.stdout.contains("failed  b"), "{outcome}");
    let outcome = run(&project, &["dist"]).run().assert_code(1);
    assert!(
        outcome.stderr.contains("do not say which agent"),
        "{outcome}"
    );
    let outcome = run(&project, &["dist", "--case", "x"]).run().assert_code(2);
    assert!(outcome.stderr.contains("The cases are: a, b"), "{outcome}");
}

#[test]
fn tasks_of_others_are_run_or_named_with_the_reason() {
    let toml = "[environment]\ndocker_image = \"some/image\"\nworkdir = \"/app\"\n";
    let test =
        "#!/bin/bash\ntest -f done && echo 1 > $OUT/reward.txt || echo 0 > $OUT/reward.txt\n";
    let test = test.replace("$OUT", "${CASEPACK_LOGS_DIR:-/logs}/verifier");
    let mut builder = ProjectBuilder::new();
    for (name, toml) in [
        ("also", toml.to_owned()),
        ("plain", toml.to_owned()),
        ("built", "[environment]\n".to_owned()),
        (
            "fenced",
            toml.replace("workdir", "network_mode = \"allowlist\"\nworkdir"),
        ),
        ("broken", "[environment".to_owned()),
    ] {
        builder = builder
            .file(format!("tasks/{name}/task.toml"), toml)
            .file(format!("tasks/{name}/instruction.md"), "Make done.\n")
            .executable(format!("tasks/{name}/tests/test.sh"), &test)
            .file(format!("tasks/{name}/environment/given"), "x\n")
            .executable(format!("tasks/{name}/solution/solve.sh"), "touch done\n");
    }
    let project = builder
        .file("tasks/built/environment/Dockerfile", "FROM x\n")
        .build();
    for name in ["plain", "also"] {
        let path = format!("tasks/{name}/task.toml");
        project.write(&path, project.read(&path) + "memory_mb = 64\n");
    }
    let args = ["tasks", "--agent", "oracle", "--output", "json"];
    let document = run(&project, &args).run().assert_code(1).json();
    // Where somebody stands in a task, runs lie beside what counts of it; so may anything.
    symlink("nowhere", project.path("tasks/plain/link")).unwrap();
    let digest = document["cases"][4]["package_digest"].clone();
    assert!(digest.is_string(), "{document:#}");
    for runs in 1..=2 {
        let args = [".", "--agent", "oracle", "--output", "json"];
        let inside = run(&project, &args).cwd(project.path("tasks/plain"));
        let inside = inside.run().assert_code(0).json();
        assert_eq!(inside["cases"][0]["package_digest"], digest);
        let kept = std::fs::read_dir(project.path("tasks/plain/runs")).unwrap();
        assert_eq!(kept.count(), runs + 1, "with the mark");
    }
    let cases = document["cases"].as_array().unwrap();
    let told: Vec<_> = cases
        .iter()
        .map(|case| {
            (
                case["id"].as_str().unwrap(),
                case["status"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("also", "passed"),
            ("broken", "error"),
            ("built", "skipped"),
            ("fenced", "skipped"),
            ("plain", "passed")
        ]
    );
    let message = |at: usize| cases[at]["message"].as_str().unwrap().to_owned();
    assert!(message(1).contains("not valid TOML"), "{}", message(1));
    assert!(
        message(2).contains("environment/Dockerfile") && message(2).contains("--engine harbor"),
        "{}",
        message(2)
    );
    assert!(message(3).contains("allowlist"), "{}", message(3));
    // What can not be held to is told once, not once per case.
    let notes = document["diagnostics"].as_array().unwrap();
    assert_eq!(notes.len(), 1, "{document:#}");
    assert!(notes[0]["message"].as_str().unwrap().contains("memory_mb"));
    assert_eq!(document["dataset"]["name"], "tasks");
    // One of them alone, from inside.
    let args = RUN.iter().chain(&["--agent", "oracle"]);
    project
        .invoke(args)
        .cwd(project.path("tasks/plain"))
        .run()
        .assert_code(0);
}

#[test]
fn later_steps_are_told_what_earlier_ones_came_to() {
    let project = ProjectBuilder::new()
        .eval_yaml(
            "name: steps\n\
             dataset: {path: cases, schema: prompt}\n\
             execution:\n  steps:\n    - {id: plan, prompt: 'Plan {{ input.prompt }}'}\n    \
             - {id: work, prompt: 'Then {{ steps.plan.output }} ({{ steps.plan.exit_code }}) {{ steps.plan.files[\"plan.txt\"] }}'}\n\
             runner: {type: cli, command: [sh, agent.sh, '{instruction}']}\n\
             outputs: [{path: plan.txt}, {path: told.txt}]\n\
             judges:\n  - name: told\n    step: work\n    check: 'return outputs[\"files\"][\"told.txt\"] == \"Then I plan (0) of one\\n\"'\n  \
             - name: planned\n    step: plan\n    check: 'return True'\n",
        )
        .file(
            "agent.sh",
            "case $1 in Plan*) echo 'I plan'; printf 'of one' > plan.txt;; *) echo \"$1\" > told.txt;; esac\n",
        )
        .case("a", |case| case.input("prompt: one\n"))
        .build();
    let outcome = run(&project, &["--run-id", "r"]).run().assert_code(0);
    assert!(outcome.stdout.contains("1 passed"), "{outcome}");
    // What only a run can render is never among the packages for others.
    let outcome = project.casepack(["build"]).assert_code(1);
    assert!(
        outcome.stderr.contains("exist only while a case runs"),
        "{outcome}"
    );
}

/// What an agent that is not isolated puts in the place of its own output is nothing that it said.
#[test]
fn nobody_waits_for_what_took_the_place_of_an_output() {
    let project = ProjectBuilder::new()
        .eval_yaml(
            "name: steps\n\
             dataset: {path: cases, schema: prompt}\n\
             execution:\n  steps:\n    - {id: plan, prompt: Plan}\n    \
             - {id: work, prompt: 'Then <{{ steps.plan.output }}>'}\n\
             runner: {type: cli, command: [sh, agent.sh, '{instruction}']}\n\
             outputs: [{path: told.txt}]\n\
             judges:\n  - name: told\n    step: work\n    \
             check: 'return outputs[\"files\"][\"told.txt\"] == \"Then <>\\n\"'\n",
        )
        .file(
            "agent.sh",
            "echo said; echo \"$1\" > told.txt; cd ..\n\
             for it in $(find \"$PWD\" -name stdout.txt); do rm \"$it\"; mkfifo \"$it\"; done\n",
        )
        .case("a", |case| case.input("prompt: one\n"))
        .build();
    let run = run(&project, &["--run-id", "r"]).within("timeout", ["120".into()]);
    let outcome = run.run().assert_code(0);
    assert!(outcome.stdout.contains("1 passed"), "{outcome}");
}

#[test]
fn a_step_that_fails_ends_the_case_unless_it_may() {
    for (on_failure, code, told) in [("fail", 1, false), ("continue", 0, true)] {
        let project = ProjectBuilder::new()
            .eval_yaml(&format!(
                "name: steps\n\
                 dataset: {{path: cases, schema: prompt}}\n\
                 execution:\n  steps:\n    - {{id: plan, prompt: Plan, on_failure: {on_failure}}}\n    \
                 - {{id: work, prompt: Work, runner: {{type: cli, command: 'sh other.sh'}}, timeout: 20}}\n\
                 runner: {{type: cli, command: 'sh agent.sh'}}\n\
                 outputs: [{{path: worked}}]\n\
                 judges:\n  - {{name: planned, step: plan, check: 'return True'}}\n  \
                 - {{name: worked, step: work, check: 'return \"worked/x\" in outputs[\"files\"]'}}\n"
            ))
            .file("agent.sh", "exit 1\n")
            .file("other.sh", "touch worked/x\n")
            .case("a", |case| case.input("prompt: one\n"))
            .build();
        let outcome = run(&project, &["--run-id", "r", "--output", "json"]).run();
        let document = outcome.assert_code(code).json();
        assert_eq!(
            document["cases"][0]["steps"].as_array().unwrap().len() == 2,
            told
        );
        assert_eq!(project.path("runs/r/a/workspace/worked/x").exists(), told);
    }
}

#[test]
fn a_batch_is_one_trial_whose_outputs_are_shared_out() {
    let agent = "ls -A | sort > out/RFE-1.list; cp batch.yaml out/RFE-1.yaml; echo x >> $LOG\n\
                 echo notes > out/NOTES; echo two > out/RFE-2.md; echo third > out/RFE-3.md; echo all > shared/note\n\
                 ln -s /etc/hostname out/RFE-2.link\n\
                 echo '{\"final_metrics\": {\"total_cost_usd\": 0.5}}' > \"$1/trajectory.json\"\n";
    let project = ProjectBuilder::new()
        .eval_yaml(
            "name: batch\n\
             dataset:\n  path: cases\n  schema: prompt\n  workspace: {files: [{dest: rules.md, source: rules.md}]}\n\
             execution: {mode: batch, prompt: Do batch.yaml, env: {LOG: '@/log'}}\n\
             runner: {type: cli, command: [sh, agent.sh, '{output_dir}']}\n\
             outputs: [{path: out, batch_pattern: 'RFE-{n}'}, {path: shared, batch_pattern: '*'}]\n\
             judges:\n  - name: own\n    check: 'return outputs[\"annotations\"][\"files\"] == \" \".join(sorted(outputs[\"files\"]))'\n",
        )
        .file("rules.md", "rules\n")
        .file("agent.sh", agent)
        .case("a", |case| {
            let files = "out/RFE-1.list out/RFE-1.yaml out/RFE-2.md shared/note";
            case.input("- prompt: one\n- prompt: two\n").annotations(&format!("files: {files}\n"))
        })
        .case("b", |case| {
            case.input("prompt: three\n").annotations("files: out/RFE-3.md shared/note\n")
        })
        .build();
    let config = project
        .read("eval.yaml")
        .replace('@', &project.root().display().to_string());
    project.write("eval.yaml", config);
    let outcome = run(&project, &["--run-id", "r", "--output", "json"])
        .run()
        .assert_code(0);
    assert_eq!(project.read("log"), "x\n");
    // Whose share it would be is told that it was left behind.
    let document = outcome.json();
    let skipped = |case: usize| &document["cases"][case]["outputs"]["skipped"];
    assert_eq!(skipped(0)[0]["path"], "out/RFE-2.link");
    assert_eq!(skipped(1).as_array().unwrap().len(), 1);
    // What is in no share is told.
    for case in outcome.json()["cases"].as_array().unwrap() {
        let left = json!({"path": "out/NOTES", "reason": "it is in the share of no case"});
        let skipped = case["outputs"]["skipped"].as_array().unwrap();
        assert!(skipped.contains(&left), "{case:#}");
        let message = case["message"].as_str().unwrap();
        assert!(message.contains("1 of the batch's outputs"), "{message}");
    }
    // What it cost is told with each case, and counts once.
    assert_eq!(outcome.json()["cases"][1]["agent"]["cost_usd"], 0.5);
    assert_eq!(outcome.json()["summary"]["cost_usd"], 0.5);
    // The agent saw what the workspace target has for all cases.
    project
        .casepack(["build", "--target", "workspace"])
        .assert_code(0);
    assert_eq!(
        project.read("runs/r/_batch/outputs/out/RFE-1.yaml"),
        project.read("dist/workspace/_batch/batch.yaml")
    );
    let mut seen: Vec<_> = std::fs::read_dir(project.path("dist/workspace/_batch"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .chain(["out".to_owned(), "shared".to_owned()])
        .collect();
    seen.sort();
    let list = project.read("runs/r/_batch/outputs/out/RFE-1.list");
    assert_eq!(list.lines().collect::<Vec<_>>(), seen);
    assert_eq!(outcome.json()["cases"][1]["agent"]["exit_code"], 0);
    // Two attempts are two trials, each with its own outputs.
    let args = ["--run-id", "k", "--attempts", "2", "--output", "json"];
    let document = run(&project, &args).run().assert_code(0).json();
    assert_eq!(project.read("log"), "x\nx\nx\n");
    assert_eq!(document["summary"]["pass_at_k"]["2"], 1.0);
    assert!(
        project
            .path("runs/k/_batch/attempt-2/outputs/out/RFE-2.md")
            .exists()
    );
    assert!(
        project
            .path("runs/k/b/attempt-2/workspace/out/RFE-3.md")
            .exists()
    );
    // Taken up again: the trial is over, and what has no verdict is judged on what came of it.
    std::fs::remove_file(project.path("runs/r/b/result.json")).unwrap();
    let resume = ["--resume", "r", "--output", "json"];
    let document = run(&project, &resume).run().assert_code(0).json();
    assert_eq!(project.read("log"), "x\nx\nx\n");
    assert_eq!(document["cases"][0]["resumed"], true);
    assert!(document["cases"][1]["resumed"].is_null());
    assert_eq!(document["cases"][1]["status"], "passed");
    // A trial that did not end is made again, and so is the trial over cases that changed.
    std::fs::remove_file(project.path("runs/r/_batch/batch.json")).unwrap();
    run(&project, &resume).run().assert_code(0);
    assert_eq!(project.read("log"), "x\n".repeat(4));
    project.write("cases/b/input.yaml", "prompt: other\n");
    let document = run(&project, &resume).run().assert_code(0).json();
    assert_eq!(project.read("log"), "x\n".repeat(5));
    assert!(document["cases"][0]["resumed"].is_null());
    // Nobody started: no case has a verdict, and each says so.
    let outcome = run(
        &project,
        &["--agent-command", "/no/such/program", "--output", "json"],
    )
    .run();
    let document = outcome.assert_code(1).json();
    assert_eq!(document["summary"]["errors"], 2);
    assert_eq!(document["cases"][1]["error"], "agent-start");
}

/// A stand-in for Harbor that writes a job directory as the real one does, and says how it was
/// called.
const HARBOR: &str = r#"#!/bin/sh
printf '%s\n' "$@" > called
while [ $# -gt 0 ]; do [ "$1" = -o ] && jobs=$2; shift; done
echo "streamed"
trial() {
  mkdir -p "$jobs/harbor/$1/verifier"
  printf '%s' "{\"task_id\": {\"path\": \"x/$2\"}, \"started_at\": \"2026-11-30T22:47:1$3Z\", \"finished_at\": \"2026-11-30T22:47:19Z\",
    \"agent_execution\": {\"started_at\": \"2026-11-30T22:47:12Z\", \"finished_at\": \"2026-11-30T22:47:14.5Z\"},
    \"agent_result\": {\"n_input_tokens\": 9, \"n_cache_tokens\": 4, \"n_output_tokens\": 2, \"cost_usd\": 0.5}, $4}" > "$jobs/harbor/$1/result.json"
  printf '%s' '{"task": {"digest": "sha256:8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4"}}' > "$jobs/harbor/$1/lock.json"
}
trial a__1 a 1 '"verifier_result": {"rewards": {"reward": 1.0}}, "exception_info": null'
printf '{"judges": [{"name": "good", "value": true}]}' > "$jobs/harbor/a__1/verifier/judges.json"
trial b__1 b 2 '"verifier_result": null, "exception_info": {"exception_type": "RewardFileNotFoundError", "exception_message": "no file"}'
"#;

/// A search path on which the first `harbor` is `script`.
fn path_with_harbor(project: &Project, script: &str) -> String {
    project.write("bin/harbor", script);
    std::fs::set_permissions(
        project.path("bin/harbor"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    format!(
        "{}:{}",
        project.path("bin").display(),
        std::env::var("PATH").unwrap()
    )
}

#[test]
fn packages_are_handed_to_harbor() {
    let project = judged("true\n", "thresholds: {good: {min_pass_rate: 0.3}}\n");
    for case in ["c", "d"] {
        project.write(&format!("cases/{case}/input.yaml"), "prompt: x\n");
    }
    let path = path_with_harbor(&project, HARBOR);
    let harbor = |args: &[&str]| {
        let own = ["run", "--engine", "harbor", "--case", "[abc]"];
        project
            .invoke(own.iter().chain(args))
            .env("PATH", &path)
            .run()
    };
    let args = [
        "--run-id", "r", "-j", "3", "--model", "m", "--agent", "codex", "--output", "json",
    ];
    let outcome = harbor(&[&args[..], &["--", "--env", "docker"]].concat()).assert_code(1);
    let runs = project.path("runs/r/jobs").display().to_string();
    assert_eq!(
        project.read("called"),
        format!(
            "run\n-p\n{}\n-i\na\n-i\nb\n-i\nc\n--yes\n--job-name\nharbor\n-o\n{runs}\n-n\n3\n-k\n1\n-r\n0\n\
             -a\ncodex\n-m\nm\n--env\ndocker\n",
            project.path("dist/harbor").display()
        )
    );
    assert!(outcome.stderr.contains("streamed"), "{outcome}");
    assert!(project.read("runs/r/harbor.log").contains("streamed"));
    let document = outcome.json();
    assert_eq!(document["engine"], "harbor");
    let cases = &document["cases"];
    assert_eq!(
        (&cases[0]["status"], &cases[0]["reward"]),
        (&json!("passed"), &json!(1.0))
    );
    assert_eq!(cases[0]["dir"], "jobs/harbor/a__1");
    assert_eq!(cases[0]["judges"][0]["name"], "good");
    assert_eq!(cases[0]["agent"]["duration_s"], 2.5);
    assert_eq!(cases[0]["agent"]["token_usage"]["input"], 5);
    assert!(
        cases[0]["package_digest"]
            .as_str()
            .unwrap()
            .starts_with("sha256:8f43")
    );
    assert_eq!(cases[1]["error"], "reward-missing");
    // What Harbor leaves out in silence is named.
    assert_eq!(cases[2]["error"], "engine");
    let message = cases[2]["message"].as_str().unwrap();
    assert!(message.contains("no trial of this package") && message.contains("harbor lint"));
    assert_eq!(document["thresholds"][0]["met"], true);
    // What Harbor found is not casepack's to go on with.
    let other = ["run", "--agent", "nop", "--case", "[abc]", "--resume", "r"];
    let other = project.casepack(other).assert_code(2);
    assert!(
        other.stderr.contains("it was run with --engine harbor"),
        "{other}"
    );
    // With several attempts it counts as so many that came to nothing, and so does one that is missing.
    let args = [
        "--run-id",
        "k",
        "--attempts",
        "2",
        "--agent",
        "nop",
        "--output",
        "json",
    ];
    let document = harbor(&args).assert_code(1).json();
    for case in document["cases"].as_array().unwrap() {
        let attempts = case["attempts"].as_array().unwrap();
        assert_eq!(
            (attempts.len(), &attempts[1]["error"]),
            (2, &json!("engine"))
        );
    }
    let summary = &document["summary"];
    let mean = summary["mean_reward_errors_as_zero"].as_f64().unwrap();
    assert!((mean - 1.0 / 6.0).abs() < 1e-9, "{summary}");
    let pass = summary["pass_at_k"]["2"].as_f64().unwrap();
    assert!((pass - 1.0 / 3.0).abs() < 1e-9, "{summary}");
    for (args, told) in [
        (&[][..], "Harbor can not run the command of runner.type cli"),
        (&["--resume", "r", "--agent", "nop"], "harbor job resume"),
    ] {
        let outcome = harbor(args).assert_code(1);
        assert!(outcome.stderr.contains(told), "{outcome}");
    }
    harbor(&["--", "-a", "own:Agent"]).assert_code(1);
    assert!(project.read("called").ends_with("-r\n0\n-a\nown:Agent\n"));
    let outcome = run(&project, &["--", "-a", "x"]).run().assert_code(2);
    assert!(outcome.stderr.contains("--engine harbor"), "{outcome}");
    let outcome = project.invoke(["run", "--engine", "harbor", "--agent", "nop"]);
    let outcome = outcome.env("PATH", "/usr/bin:/bin").run().assert_code(1);
    assert!(
        outcome.stderr.contains("'harbor' is not found"),
        "{outcome}"
    );
}

#[test]
fn what_harbor_started_ends_with_an_interrupt() {
    let project = judged("true\n", "");
    let harbor = "#!/bin/sh\nsetpid() { echo $1 > pid; }\nsleep 300 &\nsetpid $!\nwait\n";
    let path = path_with_harbor(&project, harbor);
    let command = project.invoke(["run", "--engine", "harbor", "--agent", "nop"]);
    let pid = || std::fs::read_to_string(project.path("pid")).unwrap_or_default();
    let child = begun(&command.env("PATH", path), || pid().ends_with('\n'));
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    // Who waits to be reaped has no command line.
    let line = std::fs::read(format!("/proc/{}/cmdline", pid().trim())).unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&line), "");
}

#[test]
fn a_second_interrupt_ends_harbor_at_once_and_what_is_known_is_written() {
    let project = judged("true\n", "");
    // One trial is done, and Harbor takes its time to clean up.
    let lines: Vec<&str> = HARBOR.lines().collect();
    let script = lines[..lines.len() - 3].join("\n");
    let harbor = format!(
        "{script}\ntrial a__1 a 1 '\"verifier_result\": {{\"rewards\": {{\"reward\": 1.0}}}}'\n\
         trap 'touch asked' INT\ntrap '' TERM\necho $$ > pid\nwhile :; do sleep 1; done\n"
    );
    let path = path_with_harbor(&project, &harbor);
    let args = [
        "run", "--engine", "harbor", "--agent", "nop", "--run-id", "r",
    ];
    let pid = || std::fs::read_to_string(project.path("pid")).unwrap_or_default();
    let child = begun(&project.invoke(args).env("PATH", path), || {
        pid().ends_with('\n')
    });
    signal(&child, Signal::INT);
    while !project.path("asked").exists() {
        sleep(Duration::from_millis(10));
    }
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let line = std::fs::read(format!("/proc/{}/cmdline", pid().trim())).unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&line), "");
    let results: serde_json::Value =
        serde_json::from_str(&project.read("runs/r/results.json")).unwrap();
    assert_eq!(results["cases"][0]["status"], "passed");
    assert_eq!(results["cases"][1]["error"], "interrupted");
    assert!(
        results["warnings"][0]
            .as_str()
            .unwrap()
            .contains("containers")
    );
}

/// What lies outside of the project is not seen in the sandbox: that is no failure of the agent.
#[test]
fn a_script_that_the_sandbox_does_not_show_is_named() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let project = judged("touch out/a\n", "");
    let elsewhere = ProjectBuilder::new()
        .executable("agent.sh", "#!/bin/sh\ntouch out/a\n")
        .build();
    let script = elsewhere.path("agent.sh").display().to_string();
    for command in [script.clone(), format!("sh -e {script} {{prompt}}")] {
        let args = ["--sandbox", "bwrap", "--output", "json", "--agent-command"];
        let outcome = run(&project, &[&args[..], &[&command]].concat()).run();
        let document = outcome.assert_code(1).json();
        assert_eq!(document["cases"][0]["error"], "agent-start", "{document:#}");
        let message = document["cases"][0]["message"].as_str().unwrap();
        let told = format!("names {script}, which is on this machine, but not seen in the sandbox");
        assert!(message.contains(&told), "{message}");
        run(&project, &["--agent-command", &command])
            .run()
            .assert_code(0);
    }
}

#[test]
fn workspaces_are_kept_as_asked_for() {
    for (keep, kept) in [
        (None, [true, true]),
        (Some("failed"), [false, true]),
        (Some("none"), [false, false]),
    ] {
        let project = judged(ONE_OF_TWO, "");
        let mut args = vec!["--run-id", "r"];
        args.extend(keep.iter().flat_map(|keep| ["--keep-workspaces", *keep]));
        run(&project, &args).run().assert_code(1);
        for (case, kept) in ["a", "b"].into_iter().zip(kept) {
            let workspace = project.path(format!("runs/r/{case}/workspace"));
            assert_eq!(workspace.exists(), kept, "{keep:?} {case}");
            assert!(
                project
                    .path(format!("runs/r/{case}/workspace.diff"))
                    .exists()
            );
        }
        // What the judges saw is kept in any case.
        assert!(project.path("runs/r/a/outputs/out/a").exists());
    }
}
