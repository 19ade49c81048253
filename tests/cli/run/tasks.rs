//! Tasks of others: what their `task.toml` says is kept to, or named with the reason.

use super::{run, sandboxes};
use crate::support::{Project, ProjectBuilder};

const REWARD: &str = "echo 1 > \"${CASEPACK_LOGS_DIR:-/logs}/verifier/reward.txt\"\n";

/// One task for each `task.toml`; `test` is what its verifier does before it is content.
fn tasks(all: &[(&str, &str)], test: &str) -> Project {
    let mut builder = ProjectBuilder::new();
    for (name, toml) in all {
        let toml = format!("{toml}\n[metadata]\n");
        builder = builder
            .file(format!("tasks/{name}/task.toml"), toml)
            .file(format!("tasks/{name}/instruction.md"), "Do it.\n")
            .file(format!("tasks/{name}/environment/given"), "x\n")
            .file(
                format!("tasks/{name}/tests/test.sh"),
                format!("#!/bin/sh\n{test}\n{REWARD}"),
            );
    }
    builder.build()
}

/// Types that Harbor's loader refuses, so that it leaves the task out in silence, and amounts that no
/// machine can have.
#[test]
fn what_a_task_says_wrongly_is_named_with_its_field() {
    let image = "[environment]\ndocker_image = 'x'\n";
    let wrong = [
        (
            "memory_mb = 'much'",
            "`environment.memory_mb` must be a whole number",
        ),
        (
            "memory_mb = 1.5",
            "`environment.memory_mb` must be a whole number",
        ),
        ("memory_mb = -1", "environment.memory_mb is -1"),
        ("storage = '4'", "`environment.storage` must be a size like"),
        ("cpus = nan", "`environment.cpus` must be a number"),
        ("cpus = 0", "environment.cpus is 0"),
        (
            "network_mode = 'publik'",
            "`environment.network_mode` must be one of",
        ),
        ("env = {A = 1}", "`environment.env.A` must be a text"),
        (
            "env = {'A=B' = '1'}",
            "env.A=B can not be an environment variable",
        ),
        ("workdir = 7", "`environment.workdir` must be a text"),
        (
            "[agent]\ntimeout_sec = 'soon'",
            "`agent.timeout_sec` must be a number of seconds",
        ),
        ("[agent]\nuser = -4", "user is -4"),
        // The number that stands for no user.
        ("[agent]\nuser = 4294967295", "user is 4294967295"),
        ("[verifier]\nuser = '4294967295'", "user is 4294967295"),
        // More than bubblewrap takes.
        ("[agent]\nuser = 2147483648", "user is 2147483648"),
        ("[verifier]\nuser = '99999999999'", "user is 99999999999"),
        ("[agent]\nuser = \"a\\u0000b\"", "user is \"a\\0b\""),
        (
            "workdir = \"/a\\u0000b\"",
            "[environment].workdir has a NUL character",
        ),
        (
            "[[verifier.collect]]\ncommand = \"a\\u0000b\"",
            "a command of verifier.collect has a NUL character",
        ),
        (
            "env = {A = \"a\\u0000b\"}",
            "env.A can not be an environment variable",
        ),
        (
            "[verifier]\nuser = []",
            "`verifier.user` must be a text or a whole number",
        ),
        (
            "[verifier.environment]\ncpus = []",
            "`verifier.environment.cpus` must be a number",
        ),
        (
            "[verifier.environment]\nmemory_mb = -5",
            "verifier.environment.memory_mb is -5",
        ),
        ("[[steps]]\nname = 'a/b'", "A step can not be called"),
    ];
    let names: Vec<_> = (0..wrong.len()).map(|at| format!("t{at:02}")).collect();
    let tomls = wrong.map(|(toml, _)| format!("{image}{toml}\n"));
    let all: Vec<_> = names
        .iter()
        .map(String::as_str)
        .zip(tomls.iter().map(String::as_str))
        .collect();
    let project = tasks(&all, "");
    let outcome = run(&project, &["tasks", "--agent", "nop", "--output", "json"]).run();
    let document = outcome.assert_code(1).json();
    for (case, (toml, told)) in document["cases"].as_array().unwrap().iter().zip(wrong) {
        assert_eq!(case["error"], "package", "{toml}: {case:#}");
        let message = case["message"].as_str().unwrap();
        assert!(
            message.contains("task.toml") && message.contains(told),
            "{toml}: {message}"
        );
    }
    // What Harbor's reader converts is no mistake.
    let project = tasks(
        &[(
            "a",
            "[environment]\ndocker_image = 'x'\nmemory_mb = '4096'\ncpus = '1'\nallow_internet = 'no'\n[agent]\ntimeout_sec = inf\n",
        )],
        "",
    );
    run(&project, &["tasks", "--agent", "nop"])
        .run()
        .assert_code(0);
}

/// A verifier with an environment of its own has its own variables and bounds, and of what the agent
/// did the artifacts.
#[test]
fn the_environment_of_a_verifier_is_its_own() {
    let toml = "artifacts = ['/workspace/kept']\n\
        [environment]\ndocker_image = 'x'\nworkdir = '/workspace'\nenv = {WHOSE = 'agent'}\n\
        [verifier]\nenv = {MORE = 'yes'}\n\
        [verifier.environment]\nmemory_mb = 300\nworkdir = '/workspace'\nenv = {WHOSE = 'verifier'}\n\
        mcp_servers = [{name = 'a', url = 'http://x'}]\n\
        [[verifier.collect]]\ncommand = 'echo $WHOSE > kept'\n\
        [[verifier.collect]]\ncommand = 'exit 3'\n";
    let test = "cd \"${CASEPACK_WORKDIR:-.}\"; set -e\n\
                [ \"$WHOSE $MORE\" = 'verifier yes' ]; [ \"$(cat kept)\" = agent ]; [ ! -e other ]\n\
                ! python3 -c 'bytearray(400 << 20)' 2>/dev/null";
    for sandbox in sandboxes() {
        let project = tasks(&[("a", toml)], test);
        let agent = "sh -c 'touch other; python3 -c \"bytearray(400 << 20)\"'";
        let args = [
            "tasks",
            "--sandbox",
            sandbox,
            "--agent-command",
            agent,
            "-v",
        ];
        let outcome = run(&project, &args).run().assert_code(0);
        for told in [
            "[verifier.environment].memory_mb of task.toml is held to by each process",
            "[verifier.environment].mcp_servers of task.toml is not held to",
            "Command 2 of verifier.collect failed: exit status 3.",
        ] {
            let all = format!("{}{}", outcome.stdout, outcome.stderr);
            assert!(all.contains(told), "{told}: {outcome}");
        }
    }
}

/// What `exclude` names stays behind, of the workdir as a whole, too; of two artifacts that overlap
/// the first one counts. What the verifier can not see here is told.
#[test]
fn of_artifacts_stays_behind_what_they_exclude() {
    let separate = "[environment]\ndocker_image = 'x'\nworkdir = '/srv/dir'\n\
                    [verifier]\nenvironment_mode = 'separate'\n";
    let whole = "find . -type f | sort | tr '\\n' ' '";
    let cases = [
        (
            "artifacts = [{source = '/srv/dir', exclude = ['*.log', 'tmp']}]",
            "./given ./out/a ",
        ),
        (
            "artifacts = [{source = '/srv', exclude = ['dir/out', './dir/t*', 'x.log']}]",
            "./given ",
        ),
        (
            "artifacts = ['/srv/dir/out', {source = '/srv/dir/tmp', exclude = ['*']}]",
            "./given ./out/a ./out/x.log ",
        ),
        (
            "artifacts = [{source = '/srv/dir/out', exclude = ['a']}, '/srv/dir/out/a', '/srv/dir/gone']",
            "./given ./out/x.log ",
        ),
    ];
    for sandbox in sandboxes() {
        for (artifacts, wanted) in cases {
            let toml = format!("{artifacts}\n{separate}");
            let test = format!(
                "cd \"${{CASEPACK_WORKDIR:-.}}\"; [ \"$({whole})\" = '{wanted}' ] || exec {whole}"
            );
            let project = tasks(&[("a", &toml)], &test);
            let agent = "sh -c 'mkdir out tmp; touch out/a out/x.log tmp/b'";
            let args = ["tasks", "--sandbox", sandbox, "--agent-command", agent];
            run(&project, &args).run().assert_code(0);
        }
    }
    let toml = format!("artifacts = ['/home/x', '/srv/dir', '/logs/agent']\n{separate}");
    let logs = "test -f \"${CASEPACK_LOGS_DIR:-/logs}/agent/said\" || exit";
    let project = tasks(&[("a", &toml)], logs);
    let agent = "sh -c 'echo x > \"$0/said\"; ln -s given link' {output_dir}";
    let args = ["tasks", "--agent-command", agent];
    let outcome = run(&project, &args).run().assert_code(0);
    let told = "The artifact /home/x of task.toml is outside of the workdir";
    assert!(outcome.stderr.contains(told), "{outcome}");
    assert!(!outcome.stderr.contains("artifact /srv"), "{outcome}");
}

/// A link to a file that a container gets with it is that file; one that leads from the workspace to
/// what judges is not, and nobody gets to see its content.
#[test]
fn links_between_files_of_a_task_are_those_files() {
    let toml = "[environment]\ndocker_image = 'x'\n";
    let test = "cd \"${CASEPACK_WORKDIR:-.}\"; grep -q x dir/also && . \"${0%/*}/lib.sh\" || exit";
    let project = tasks(
        &[("a", toml), ("b", toml), ("leak", toml), ("out", toml)],
        test,
    );
    for (case, link, target) in [
        ("a", "environment/dir/also", "../given"),
        ("a", "tests/lib.sh", "more.sh"),
        ("leak", "environment/key", "../tests/test.sh"),
        ("out", "environment/key", "/etc/hostname"),
    ] {
        let link = project.path(format!("tasks/{case}/{link}"));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, link).unwrap();
    }
    project.write("tasks/b/environment/dir/also", "x\n");
    for file in ["a/tests/more.sh", "b/tests/more.sh", "b/tests/lib.sh"] {
        project.write(&format!("tasks/{file}"), ":\n");
    }
    for sandbox in sandboxes() {
        let args = [
            "tasks",
            "--sandbox",
            sandbox,
            "--agent",
            "nop",
            "--output",
            "json",
        ];
        let outcome = run(&project, &args).run();
        let document = outcome.assert_code(1).json();
        let cases = &document["cases"];
        for case in 0..2 {
            assert_eq!(cases[case]["status"], "passed", "{document:#}");
        }
        // As Harbor has it.
        assert!(cases[0]["package_digest"].is_string());
        assert_eq!(cases[0]["package_digest"], cases[1]["package_digest"]);
        assert_eq!(cases[2]["status"], "skipped");
        let message = cases[2]["message"].as_str().unwrap();
        assert!(
            message.contains("its environment/key is a link"),
            "{message}"
        );
        assert_eq!(cases[3]["error"], "package");
    }
    let outcome = run(&project, &["tasks", "--case", "a", "--agent", "nop", "-v"]).run();
    assert!(
        outcome.stderr.contains("(environment/dir/also) is a copy"),
        "{outcome}"
    );
}

/// Sockets of some families reach out of a network namespace, and rings make sockets that no filter
/// sees.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn no_socket_leaves_where_there_is_no_network() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let image = "[environment]\ndocker_image = 'x'\nnetwork_mode = ";
    let [with, without] = ["'public'", "'no-network'"].map(|mode| format!("{image}{mode}\n"));
    let project = tasks(&[("with", &with), ("without", &without)], "");
    let agent = "import ctypes, socket, sys\n\
         def family(it, kind=socket.SOCK_STREAM):\n \
         try: socket.socket(it, kind).close()\n \
         except OSError as error: return error.errno\n \
         return 0\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         libc.syscall(425, 1, None)\n\
         said = [ctypes.get_errno(), family(40), family(42, socket.SOCK_DGRAM),\n \
         family(17, socket.SOCK_DGRAM), family(1), family(2), family(10) in (0, 97),\n \
         family(16, socket.SOCK_RAW)]\n\
         open(sys.argv[1] + '/said', 'w').write(' '.join(map(str, said)))\n";
    project.write("agent.py", agent);
    let agent = "python3 agent.py {output_dir}";
    let args = [
        "tasks",
        "--sandbox",
        "bwrap",
        "--run-id",
        "r",
        "--agent-command",
        agent,
    ];
    run(&project, &args).run().assert_code(0);
    let said = |case: &str| project.read(&format!("runs/r/{case}/logs/agent/said"));
    // ENOSYS, EAFNOSUPPORT
    assert_eq!(said("without"), "38 97 97 97 0 0 True 0");
    let with = said("with");
    assert!(!with.starts_with("38 "), "a network has rings: {with}");
    if with.split(' ').nth(1) == Some("97") {
        eprintln!("left out: this kernel has no AF_VSOCK to be refused");
    }
}

/// What only a container can give is left out with the reason, and the rest is run.
#[test]
fn what_needs_a_container_is_skipped() {
    if !sandboxes().contains(&"bwrap") {
        return;
    }
    let image = "[environment]\ndocker_image = 'x'\n";
    let skipped = [
        ("workdir = '/usr/src/nowhere-9'", "read-only"),
        ("workdir = '/etc/app'", "something else in that place"),
        ("workdir = '/'", "something else in that place"),
        (
            "[verifier.environment]\ndocker_image = 'y'",
            "an image of its own",
        ),
        (
            "[verifier.environment]\nworkdir = '/other'",
            "another workdir",
        ),
        ("[verifier.environment]\nos = 'windows'", "for Windows"),
        (
            "[[verifier.collect]]\ncommand = 'x'\nservice = 'db'",
            "the service 'db'",
        ),
    ];
    let names: Vec<_> = (0..skipped.len()).map(|at| format!("t{at}")).collect();
    let tomls = skipped.map(|(toml, _)| format!("{image}{toml}\n"));
    let mut all: Vec<_> = names
        .iter()
        .map(String::as_str)
        .zip(tomls.iter().map(String::as_str))
        .collect();
    all.push(("fine", image));
    let project = tasks(&all, "");
    let args = [
        "tasks",
        "--agent",
        "nop",
        "--sandbox",
        "bwrap",
        "--output",
        "json",
    ];
    let document = run(&project, &args).run().assert_code(1).json();
    let cases = document["cases"].as_array().unwrap();
    assert_eq!(cases[0]["status"], "passed", "{document:#}");
    for (case, (toml, why)) in cases.iter().skip(1).zip(skipped) {
        assert_eq!(case["status"], "skipped", "{toml}: {case:#}");
        let message = case["message"].as_str().unwrap();
        assert!(
            message.contains(why) && message.contains("--engine harbor"),
            "{toml}: {message}"
        );
    }
}

/// What an agent tells in its trajectory is in the results, and summed up.
#[test]
fn a_trajectory_tells_what_it_cost() {
    let image = "[environment]\ndocker_image = 'x'\n";
    let project = tasks(&[("a", image), ("b", image)], "");
    let metrics = r#"{"final_metrics": {"total_prompt_tokens": 10, "total_cached_tokens": 4, "total_completion_tokens": 3, "total_cost_usd": 0.25}}"#;
    project.write(
        "agent.sh",
        format!("echo '{metrics}' > \"$1/trajectory.json\"\n"),
    );
    let agent = "sh {config_dir}/agent.sh {output_dir}";
    let agent = agent.replace("{config_dir}/", &format!("{}/", project.path("").display()));
    let args = [
        "tasks",
        "--run-id",
        "r",
        "--agent-command",
        &agent,
        "--output",
        "json",
    ];
    let document = run(&project, &args).run().assert_code(0).json();
    let usage = &document["cases"][0]["agent"];
    assert_eq!(usage["cost_usd"], 0.25, "{document:#}");
    assert_eq!(usage["token_usage"]["input"], 6);
    assert_eq!(document["summary"]["cost_usd"], 0.5);
    assert_eq!(document["summary"]["token_usage"]["cache_read"], 8);
    let told = "cost 0.50 $, tokens 12 in, 6 out, 8 from cache";
    assert!(project.read("runs/r/summary.md").contains(told));
}
