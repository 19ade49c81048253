//! Agents that do their worst: the run goes on, the case is reported rightly, nothing stays behind.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{run, sandboxes};
use crate::support::{Project, ProjectBuilder};

/// A project whose agent does what the case's prompt says.
fn project(agent: &str, cases: &[&str], check: &str) -> Project {
    let mut builder = ProjectBuilder::new()
        .eval_yaml(&format!(
            "name: hostile\n\
             dataset: {{path: cases, schema: prompt}}\n\
             execution: {{prompt: '{{prompt}}'}}\n\
             runner: {{type: cli, command: [bash, agent.sh, '{{prompt}}']}}\n\
             outputs: [{{path: out}}]\n\
             judges:\n  - name: good\n    check: |\n      {check}\n"
        ))
        .file("agent.sh", agent);
    for case in cases {
        builder = builder.case(case, |files| {
            files
                .input(&format!("prompt: {case}\n"))
                .annotations("answer: THE-ANSWER\n")
        });
    }
    builder.build()
}

/// Processes whose command line has `word`.
fn alive(word: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let has = |line: Vec<u8>| String::from_utf8_lossy(&line).contains(word);
    processes
        .filter(|process| std::fs::read(process.path().join("cmdline")).is_ok_and(has))
        .count()
}

fn case<'d>(document: &'d Value, id: &str) -> &'d Value {
    let cases = document["cases"].as_array().unwrap();
    cases.iter().find(|case| case["id"] == id).unwrap()
}

#[test]
fn the_worst_of_agents_end_and_are_judged() {
    let number = format!("97{}", std::process::id());
    let agent = format!(
        "case $1 in\n\
         bomb) f() {{ [ $1 -gt 0 ] && {{ f $(($1-1)) & f $(($1-1)) & }}; exec sleep {number}; }}; f 7 & touch out/a;;\n\
         daemon) touch out/a; setsid nohup sleep {number} >/dev/null 2>&1 < /dev/null & disown;;\n\
         hidden) touch out/a; setsid env -i sleep {number} >/dev/null 2>&1 < /dev/null & disown;;\n\
         stubborn) touch out/a; trap '' TERM INT HUP; while :; do sleep {number} & wait; done;;\n\
         loud) touch out/a; head -c 1000000000 /dev/zero;;\n\
         gone) rm -rf \"$PWD\"; mkdir -p out 2>/dev/null; true;;\n\
         shut) touch out/a; mkdir x; touch x/y; chmod 0 x ../logs/agent .;;\n\
         fine) touch out/a;;\n\
         esac\n"
    );
    let cases = [
        "bomb", "daemon", "fine", "gone", "hidden", "loud", "shut", "stubborn",
    ];
    for sandbox in sandboxes() {
        let check = "return 'out/a' in outputs['files']";
        let project = project(&agent, &cases, check);
        let args = [
            "--run-id",
            "r",
            "--sandbox",
            sandbox,
            "--agent-timeout",
            "15",
        ];
        let outcome = run(&project, &args).args(["-j", "2", "--output", "json"]);
        let document = outcome.run().assert_code(1).json();
        for id in [
            "bomb", "daemon", "fine", "hidden", "loud", "shut", "stubborn",
        ] {
            assert_eq!(
                case(&document, id)["status"],
                "passed",
                "{sandbox} {id}: {document:#}"
            );
        }
        assert_eq!(case(&document, "gone")["status"], "failed");
        let stubborn = &case(&document, "stubborn")["agent"];
        assert_eq!(stubborn["timed_out"], true);
        let loud = &case(&document, "loud")["agent"];
        let kept = 16 << 20;
        assert_eq!(loud["output_dropped"], 1_000_000_000_u64 - kept);
        let log = project
            .path("runs/r/loud/stdout.txt")
            .metadata()
            .unwrap()
            .len();
        assert!((kept..kept + 100).contains(&log), "{log}");
        assert_eq!(alive(&number), 0, "{sandbox}");
    }
}

#[test]
fn nothing_outlives_a_run_that_is_killed() {
    let number = format!("96{}", std::process::id());
    let agent = format!("touch out/a; sleep {number} & setsid env -i sleep {number} & wait\n");
    for sandbox in sandboxes() {
        let project = project(&agent, &["a"], "return True");
        let args = ["--run-id", "r", "--sandbox", sandbox];
        let mut child = run(&project, &args).command().spawn().unwrap();
        let begin = Instant::now();
        let wait_for = |count: &dyn Fn(usize) -> bool, what: &str| {
            while !count(alive(&number)) {
                assert!(
                    begin.elapsed() < Duration::from_mins(1),
                    "{sandbox}: {what}"
                );
                sleep(Duration::from_millis(10));
            }
        };
        wait_for(&|count| count >= 2, "the agent did not start");
        child.kill().unwrap();
        child.wait().unwrap();
        wait_for(&|count| count == 0, "something is left");
    }
}

/// What casepack was starting when it was killed has not yet asked to end with it.
#[test]
fn no_sandbox_begins_after_a_run_that_was_killed() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let path = std::env::var("PATH").unwrap();
    let mut dirs = path.split(':').map(Path::new);
    let bwrap = dirs.find_map(|dir| Some(dir.join("bwrap")).filter(|it| it.is_file()));
    let project = project("touch out/a; sleep 600\n", &["a"], "return True");
    let slow = format!(
        "#!/bin/sh\ncase \"$*\" in *agent.sh*) touch '{}'; sleep 2;; esac\nexec {} \"$@\"\n",
        project.path("starting").display(),
        bwrap.unwrap().display(),
    );
    project.write("bin/bwrap", slow);
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(project.path("bin/bwrap"), executable).unwrap();
    let path = format!("{}:{path}", project.path("bin").display());
    let command = run(&project, &["--run-id", "r", "--sandbox", "bwrap"]).env("PATH", path);
    let mut child = command.command().spawn().unwrap();
    let begin = Instant::now();
    let wait_for = |what: &str, so_far: &dyn Fn() -> bool| {
        while !so_far() {
            assert!(begin.elapsed() < Duration::from_mins(1), "{what}");
            sleep(Duration::from_millis(10));
        }
    };
    wait_for("the agent is not started", &|| {
        project.path("starting").exists()
    });
    let sandbox = format!("{}/runs/r/a/workspace", project.root().display());
    assert!(alive(&sandbox) > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("a sandbox is left", &|| alive(&sandbox) == 0);
    assert!(!project.path("runs/r/a/workspace/out/a").exists());
}

/// bubblewrap's own process has no filter around it; stopped, it would never tell that the agent has
/// ended.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn the_first_process_of_a_sandbox_is_out_of_reach() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let (ptrace, memory) = if cfg!(target_arch = "x86_64") {
        (101, 310)
    } else {
        (117, 270)
    };
    // Attaching, seizing, reading, writing; then a child of its own, which is allowed.
    let agent = format!(
        "exec python3 - <<'X'\nimport ctypes, os, time\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(*args):\n ctypes.set_errno(0)\n libc.syscall(*args)\n return ctypes.get_errno()\n\
         child = os.fork()\nif child == 0: time.sleep(600)\n\
         said = [call({ptrace}, 16, 1, 0, 0), call({ptrace}, 0x4206, 1, 0, 0),\n  \
         call({memory}, 1, 0, 0, 0, 0, 0), call({memory} + 1, 1, 0, 0, 0, 0, 0),\n  \
         os.path.exists('/proc/1/mem'), os.path.exists('/proc/1/task'),\n  \
         call({ptrace}, 16, child, 0, 0), call({memory}, child, 0, 0, 0, 0, 0) == 1]\n\
         open('out/said', 'w').write(' '.join(map(str, said)))\nX\n"
    );
    let project = project(&agent, &["a"], "return True");
    let args = [
        "--sandbox",
        "bwrap",
        "--run-id",
        "r",
        "--agent-timeout",
        "60",
    ];
    let outcome = run(&project, &args).args(["--output", "json"]).run();
    let document = outcome.assert_code(0).json();
    assert_eq!(case(&document, "a")["agent"]["timed_out"], false);
    let said = project.read("runs/r/a/workspace/out/said");
    assert_eq!(said, "1 1 1 1 False False 0 False");
}

/// Numbers that are none together, names that call people, and secrets of the caller.
#[test]
fn what_an_agent_says_harms_no_report() {
    let project = ProjectBuilder::new().build();
    for case in ["@all", "b"] {
        let dir = format!("tasks/{case}");
        project.write(
            &format!("{dir}/task.toml"),
            "[environment]\ndocker_image = 'x'\nworkdir = '/workspace'\nenv = {K = '${MY_API_KEY}'}\n",
        );
        project.write(&format!("{dir}/instruction.md"), "Do it.\n");
        project.write(
            &format!("{dir}/tests/test.sh"),
            "#!/bin/bash\necho @octocat $K >&2\nL=${CASEPACK_LOGS_DIR:-/logs}/verifier\n\
             echo 1e308 > $L/reward.txt; [ $K ] || rm $L/reward.txt\n",
        );
    }
    let agent = "bash -c 'echo $K; echo $K >out; echo \"{\\\"final_metrics\\\": \
                 {\\\"total_cost_usd\\\": 1.7e308}}\" > ../logs/agent/trajectory.json'";
    for sandbox in sandboxes() {
        let args = [
            "tasks",
            "--sandbox",
            sandbox,
            "--attempts",
            "2",
            "--run-id",
            sandbox,
            "--pass-at",
            "1.5e308",
            "--output",
            "json",
            "--agent-command",
            agent,
        ];
        let run = run(&project, &args).env("MY_API_KEY", "topsecret-12345");
        let outcome = run.run().assert_code(1);
        let told = outcome.findings("callers-variables");
        assert_eq!(told.len(), 1, "{outcome}");
        assert_eq!(told[0]["severity"], "warning");
        assert!(
            told[0]["message"]
                .as_str()
                .unwrap()
                .ends_with(": MY_API_KEY.")
        );
        let summary = &outcome.json()["summary"];
        assert_eq!(summary["cost_usd"], f64::MAX, "{outcome}");
        assert_eq!(summary["mean_reward"], 1e308, "{outcome}");
        for document in ["results.json", "summary.md", "junit.xml", "report.html"] {
            let text = project.read(&format!("runs/{sandbox}/{document}"));
            assert!(!text.contains("topsecret"), "{document}");
            assert!(!text.contains(" inf "), "{document}");
        }
        let page = project.read(&format!("runs/{sandbox}/report.html"));
        assert!(page.contains("[MY_API_KEY]"), "{page}");
        let summary = project.read(&format!("runs/{sandbox}/summary.md"));
        assert!(
            summary.contains("@&#8203;all") && !summary.contains("@all"),
            "{summary}"
        );
        // Later, by another command.
        let again = ["report", sandbox];
        let again = project
            .invoke(again.iter())
            .env("MY_API_KEY", "topsecret-12345");
        again.run().assert_code(1);
        let page = project.read(&format!("runs/{sandbox}/report.html"));
        assert!(!page.contains("topsecret"));
    }
    // Before anything is run.
    let args = ["tasks", "--agent", "nop", "--run-id", "told"];
    let told = run(&project, &args).env("MY_API_KEY", "topsecret-12345");
    let told = told.run();
    let at = |text: &str| told.stderr.find(text);
    assert!(
        at("ask for variables of yours").is_some_and(|asked| Some(asked) < at("Running ")),
        "{told}"
    );
    // Who must not have it is not even started.
    let args = [
        "tasks",
        "--agent",
        "nop",
        "--deny",
        "callers-variables",
        "--run-id",
        "denied",
    ];
    let denied = run(&project, &args).env("MY_API_KEY", "topsecret-12345");
    denied.run().assert_code(1);
    assert!(!project.path("runs/denied").exists());
    // Nobody asks for what is not set; then there is no verdict, with what was said.
    let args = ["tasks", "--agent", "nop", "--run-id", "unset", "-v"];
    let unset = run(&project, &args).run().assert_code(1);
    assert!(!unset.stderr.contains("callers-variables"), "{unset}");
}

/// What an agent left runs as nobody but who starts it, and nobody else gets there.
#[test]
fn nobody_gets_the_callers_rights_from_what_is_left() {
    let agent = "mkdir -p out d; for to in out/sh sh d/sh; do cp /bin/sh $to; chmod 6755 $to; done\n\
                 cp -p sh ../logs/agent/sh; mv d ../logs/artifacts/\n";
    for sandbox in sandboxes() {
        let project = project(agent, &["a"], "return 'out/sh' in outputs['files']");
        let args = ["--sandbox", sandbox, "--run-id", "r"];
        run(&project, &args).run().assert_code(0);
        let mode = |path: &str| {
            let meta = project.path(path).symlink_metadata().unwrap();
            meta.permissions().mode() & 0o7777
        };
        assert_eq!(mode("runs/r"), 0o700, "{sandbox}");
        for left in [
            "workspace/out/sh",
            "workspace/sh",
            "logs/agent/sh",
            "logs/artifacts/d/sh",
            "outputs/out/sh",
        ] {
            assert_eq!(mode(&format!("runs/r/a/{left}")) & 0o6000, 0, "{left}");
        }
        // One of an earlier version, taken up again.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(project.path("runs/r"), open).unwrap();
        let args = ["--sandbox", sandbox, "--resume", "r"];
        run(&project, &args).run().assert_code(0);
        assert_eq!(mode("runs/r"), 0o700, "{sandbox}");
    }
}

#[test]
fn a_hundred_thousand_files_are_no_end() {
    let agent = "python3 - <<'END'\nimport os\nfor number in range(100_000):\n    \
                 os.close(os.open('out/%d' % number, os.O_CREAT))\nEND\n";
    for sandbox in sandboxes() {
        let project = project(agent, &["many"], "return 'out/1' in outputs['files']");
        let args = [
            "--run-id",
            "r",
            "--sandbox",
            sandbox,
            "--keep-workspaces",
            "none",
        ];
        let outcome = run(&project, &args).args(["--output", "json"]).run();
        let document = outcome.assert_code(0).json();
        let outputs = &case(&document, "many")["outputs"];
        assert_eq!(outputs["files"].as_array().unwrap().len(), 10_000);
        let told = outputs["skipped"].as_array().unwrap();
        assert!(
            told[0]["reason"]
                .as_str()
                .unwrap()
                .contains("too many files")
        );
        assert!(!project.path("runs/r/many/workspace").exists());
    }
}

#[test]
fn an_agent_finds_no_way_to_what_it_is_judged_by() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let tries = [
        "cat /tests/*/annotations.yaml",
        "cat /tests/config.json",
        "cat ../cases/a/annotations.yaml ../../cases/a/annotations.yaml",
        "cat ../../../../cases/a/annotations.yaml",
        "cat @/cases/a/annotations.yaml",
        "cat @/dist/harbor/a/tests/config.json",
        "cat @/runs/r/a/tests/config.json",
        "cat /proc/1/root@/cases/a/annotations.yaml",
        "cat /proc/self/root@/cases/a/annotations.yaml",
        "cat /proc/*/root@/cases/a/annotations.yaml",
        "cat /proc/*/cwd/cases/a/annotations.yaml",
        "cat /proc/*/environ | tr '\\0' '\\n'",
        "ln @/cases/a/annotations.yaml out/hard && cat out/hard",
        "ln -s @/cases/a/annotations.yaml out/soft && cat out/soft",
        "mount --bind / out && cat out@/cases/a/annotations.yaml",
        "chroot /proc/1/root cat @/cases/a/annotations.yaml",
        "unshare -Urm cat @/cases/a/annotations.yaml",
        "find / -name annotations.yaml -not -path '/proc/*' -exec cat {} +",
        "cat /dev/sd* /dev/vd* | head -c 1000000",
    ];
    // What is found by the same means is noticed.
    let mut agent = String::from(
        "exec 2>/dev/null\n(echo THE-ANSWER) | grep -aE 'THE-ANSWER|k-secret' && touch out/control\n",
    );
    for one in tries {
        agent.extend([
            "(",
            one,
            ") | grep -aE 'THE-ANSWER|k-secret' && echo '",
            &one.replace('\'', ""),
            "' >> out/found\n",
        ]);
    }
    // One waits for the verifier's time, and one leaves a link where the verifier writes.
    agent.push_str(
        "setsid sh -c 'while :; do grep -r THE-ANSWER /tests && touch /workspace/out/late; done' &\n\
         mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/agent/reward.txt\n\
         touch out/a; true\n",
    );
    let project = project(
        &agent,
        &["a"],
        "return (outputs['annotations']['answer'] == 'THE-ANSWER' and 'out/control' in outputs['files'] and 'out/found' not in outputs['files'] and 'out/late' not in outputs['files']), str(outputs['files'])",
    );
    let root = project.root().display().to_string();
    project.write("agent.sh", project.read("agent.sh").replace('@', &root));
    let outcome = run(
        &project,
        &["--sandbox", "bwrap", "--run-id", "r", "--output", "json"],
    );
    let outcome = outcome.env("SECRET", "k-secret").run().assert_code(0);
    assert_eq!(outcome.json()["isolated"], true);
    assert!(!project.path("runs/r/a/workspace/out/found").exists());
    assert!(!project.path("runs/r/a/workspace/out/late").exists());
}

/// What whoever starts casepack has open is not for what casepack starts.
#[test]
fn nothing_open_is_handed_down() {
    // What lists them has one more open: the directory itself.
    let look = "readlink /proc/self/fd/* | grep -e cases -e eval.yaml > $1; ls /proc/$$/fd > $2\n";
    for sandbox in sandboxes() {
        let project = project(
            &format!("set -- out/found out/open\n{look}"),
            &["a"],
            "return True",
        );
        let hook = look.replace("$1", "hook-found").replace("$2", "hook-open");
        let config = project.read("eval.yaml");
        let hooks = format!(
            "hooks: {{before_each: [{{command: bash $AGENT_EVAL_PROJECT_ROOT/hook.sh}}]}}\n{config}"
        );
        project.write("eval.yaml", hooks);
        project.write(
            "hook.sh",
            format!("cd \"$AGENT_EVAL_PROJECT_ROOT\"\n{hook}"),
        );
        let opened = ["-c", "exec 7<cases 9<eval.yaml; exec \"$@\"", "bash"];
        let args = [
            "--sandbox",
            sandbox,
            "--run-id",
            "r",
            "--keep-workspaces",
            "all",
        ];
        let command = run(&project, &args).within("bash", opened.map(Into::into));
        command.run().assert_code(0);
        for place in ["runs/r/a/workspace/out/", "hook-"] {
            assert_eq!(project.read(&format!("{place}found")), "", "{sandbox}");
            let open = project.read(&format!("{place}open"));
            // Bash keeps its script open far above.
            let low = open.lines().filter(|fd| fd.len() < 3);
            assert_eq!(low.collect::<Vec<_>>(), ["0", "1", "2"], "{sandbox}");
        }
    }
}

/// The kernel's keyrings are divided by no namespace.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn no_keys_are_left_to_the_next() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let first = if cfg!(target_arch = "x86_64") {
        248
    } else {
        217
    };
    // add_key, request_key, keyctl (get the id of the user's keyring); then one that is allowed.
    let agent = format!(
        "exec python3 - <<'X'\nimport ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(*args):\n ctypes.set_errno(0)\n libc.syscall(*args)\n return ctypes.get_errno()\n\
         said = [call({first}, b'user', b'casepack', b'x', 1, -4),\n  \
         call({first} + 1, b'user', b'casepack', None, 0), call({first} + 2, 0, -4, 1), call(999)]\n\
         open('out/said', 'w').write(' '.join(map(str, said)))\nX\n"
    );
    let project = project(&agent, &["a"], "return True");
    let args = [
        "--sandbox",
        "bwrap",
        "--run-id",
        "r",
        "--keep-workspaces",
        "all",
    ];
    run(&project, &args).run().assert_code(0);
    // EPERM, and ENOSYS
    assert_eq!(project.read("runs/r/a/workspace/out/said"), "1 1 1 38");
}

#[test]
fn the_agent_is_the_user_that_the_package_names() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let agent = "id -u > out/a; echo x > mine; touch /usr/bin/x 2>/dev/null; true\n";
    let check = "return outputs['files']['out/a'] == '1234\\n'";
    let project = project(agent, &["a"], check);
    let args = [
        "--sandbox",
        "bwrap",
        "--run-id",
        "r",
        "--agent-user",
        "1234",
    ];
    run(&project, &args).run().assert_code(0);
}
