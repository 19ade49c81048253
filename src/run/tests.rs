//! Whole runs on packages made here, with real processes.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::OnceLock;

use super::*;
use crate::dataset::{
    Case, CaseReader, Format, Interception, Material, Output, RunnerCommand, Sources, Verification,
    Verifier,
};
use crate::diag::Levels;
use crate::fs::{Root, Roots};
use crate::path::TreePath;
use crate::yaml::{Node, Yaml};

/// The caller's environment.
fn caller() -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = std::env::vars().collect();
    env.insert("CALLERS_SECRET".to_owned(), "s3cret".to_owned());
    env
}

/// Whether bubblewrap works here; says so once when it does not.
fn bwrap() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| match Sandbox::find(&caller(), &[]) {
        Ok(_) => true,
        Err(reason) => {
            println!("skipped: bubblewrap does not work here: {reason}");
            false
        }
    })
}

/// The sandboxes that can be tested here.
fn modes() -> Vec<SandboxMode> {
    let mut modes = vec![SandboxMode::None];
    modes.extend(bwrap().then_some(SandboxMode::Bwrap));
    modes
}

const TOML: &str = "schema_version = \"1.4\"\n[metadata]\nenvironment_mode = \"image\"\n\
                    [environment]\ndocker_image = \"x\"\nworkdir = \"/workspace\"\n";

/// A project with packages and an agent.
struct World {
    dir: tempfile::TempDir,
    packages: Vec<PackageRef>,
    runner: dataset::Runner,
    execution_env: BTreeMap<String, String>,
    outputs: Vec<Output>,
    agent: Agent,
    sandbox: SandboxMode,
    jobs: usize,
    stop: AtomicBool,
    again: AtomicBool,
    inputs: BTreeMap<CaseId, Yaml>,
}

struct Inputs(BTreeMap<CaseId, Yaml>);

impl CaseReader for Inputs {
    fn read(&self, _: &Dataset, id: &CaseId, _: &mut Diagnostics) -> Option<Case> {
        Some(Case {
            id: id.clone(),
            material: Material::default(),
            steps: Vec::new(),
            multi_step: false,
            input: self.0.get(id).cloned().unwrap_or(Yaml::Null),
            annotations: Yaml::Null,
            image: None,
            metadata: BTreeMap::new(),
            verifier: Verifier::Judges,
        })
    }
}

impl World {
    fn new(sandbox: SandboxMode) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            packages: Vec::new(),
            runner: dataset::Runner::default(),
            execution_env: BTreeMap::new(),
            outputs: Vec::new(),
            agent: Agent::Runner,
            sandbox,
            jobs: 1,
            stop: AtomicBool::new(false),
            again: AtomicBool::new(false),
            inputs: BTreeMap::new(),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A package; `test` is the body of its `test.sh`.
    fn package(mut self, id: &str, toml: &str, files: &[(&str, &str)], test: &str) -> Self {
        let dir = format!("project/dist/harbor/{id}");
        self.write(&format!("{dir}/task.toml"), toml);
        self.write(&format!("{dir}/instruction.md"), "Do it.\n");
        self.write(&format!("{dir}/tests/test.sh"), &script(test));
        for (path, text) in files {
            self.write(&format!("{dir}/{path}"), text);
        }
        self.write(
            &format!("project/cases/{id}/annotations.yaml"),
            "answer: 42\n",
        );
        self.packages.push(PackageRef {
            id: CaseId::new(id).unwrap(),
            dir: self.path(&dir),
            views: None,
        });
        self
    }

    /// A package whose verifier gives what the agent wrote to `reward`.
    fn simple(self, id: &str) -> Self {
        self.package(
            id,
            TOML,
            &[],
            "cat reward > \"$LOGS/verifier/reward.txt\"\nexit 7\n",
        )
    }

    /// The agent: the body of a shell script in the project.
    fn agent(self, body: &str) -> Self {
        self.write("project/agent/run.sh", &script(body));
        self.command("sh agent/run.sh {instruction}")
    }

    fn command(mut self, command: &str) -> Self {
        self.runner.kind = "cli".to_owned();
        self.runner.command = Some(RunnerCommand::Text(command.to_owned()));
        self
    }

    fn output(mut self, path: &str) -> Self {
        self.outputs.push(Output {
            path: Some(TreePath::new(path).unwrap()),
            directory: true,
            ..Output::default()
        });
        self
    }

    fn dataset(&self) -> Dataset {
        std::fs::create_dir_all(self.path("project/cases")).unwrap();
        self.write("project/eval.yaml", "name: test\n");
        let root = |path: &str| std::sync::Arc::new(Root::open(&self.path(path)).unwrap());
        Dataset {
            read: Vec::new(),
            format: Format::EvalYaml,
            name: "test".to_owned(),
            description: String::new(),
            sources: Sources {
                roots: Roots::new(vec![root("project"), root("project/cases")]),
                dataset_root: 1,
                config: self.path("project/eval.yaml"),
                project: self.path("project"),
                guarded: vec![(1, None), (0, Some(TreePath::new("eval.yaml").unwrap()))],
            },
            cases: self
                .packages
                .iter()
                .map(|package| package.id.clone())
                .collect(),
            shared: Vec::new(),
            judge_files: Vec::new(),
            mode: Mode::Case,
            skills: Vec::new(),
            schema: String::new(),
            template_fields: BTreeSet::new(),
            interception: Interception::default(),
            execution: Execution {
                runner: self.runner.clone(),
                env: self.execution_env.clone(),
                model: Some("m-1".to_owned()),
                ..Execution::default()
            },
            verification: Verification {
                outputs: self.outputs.clone(),
                ..Verification::default()
            },
            hooks: Vec::new(),
            options: BTreeMap::new(),
            reader: Box::new(Inputs(self.inputs.clone())),
        }
    }

    fn try_run(&self) -> (Result<RunResults, Error>, Diagnostics) {
        let dataset = self.dataset();
        let mut diags = Diagnostics::new(Levels::default());
        let result = run(
            &Request {
                dataset: Some(&dataset),
                execution: Some(&dataset.execution),
                step_runners: true,
                thresholds: &dataset.verification.thresholds,
                selection: &[],
                resume: false,
                attempts: 1,
                retries: 0,
                agent_home: None,
                harbor: None,
                dataset_name: "test",
                dataset_digest: None,
                packages: &self.packages,
                runs_dir: &self.path("project/runs"),
                run_id: "r1",
                project: &self.path("project"),
                agent: self.agent,
                model: None,
                sandbox: self.sandbox,
                keeper: false,
                keep: Keep::All,
                jobs: self.jobs,
                env: &caller(),
                pass_at: PASS_AT,
                agent_timeout: None,
                stop: &self.stop,
                again: &self.again,
            },
            &(),
            &mut diags,
        );
        (result, diags)
    }

    fn run(&self) -> RunResults {
        self.try_run().0.unwrap()
    }

    fn one(&self) -> CaseResult {
        self.run().cases.remove(0)
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(&format!("project/runs/r1/{path}"))).unwrap()
    }

    fn has(&self, path: &str) -> bool {
        self.path(&format!("project/runs/r1/{path}"))
            .symlink_metadata()
            .is_ok()
    }
}

/// Agents are not told where their logs are: with a sandbox and without one they lie beside the workdir,
/// never at `/logs` of this machine.
fn script(body: &str) -> String {
    format!(
        "#!/bin/sh\nLOGS=${{CASEPACK_LOGS_DIR:-$(cd ../logs && pwd)}} TESTS=${{CASEPACK_TESTS_DIR:-/tests}}\n{body}\n"
    )
}

/// A time to sleep that no other test run sleeps.
fn unique(number: u32) -> String {
    format!("{number}{}", std::process::id())
}

/// Processes whose command line has `word`.
fn alive(word: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|process| {
            std::fs::read(process.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(word))
        })
        .count()
}

#[test]
fn runs_an_agent_and_its_verifier() {
    for mode in modes() {
        let world = World::new(mode)
            .simple("a")
            .simple("b")
            .agent("echo \"$1\"; echo hm >&2; [ -e reward ] && exit 9; echo 0.5 > reward; exit 3");
        let results = world.run();
        assert_eq!(results.isolated, mode == SandboxMode::Bwrap);
        assert_eq!(results.warnings.is_empty(), results.isolated);
        let case = &results.cases[0];
        assert_eq!(
            (case.status, case.reward),
            (Status::Failed, Some(0.5)),
            "{case:?}"
        );
        let (agent, verifier) = (
            case.agent.as_ref().unwrap(),
            case.verifier.as_ref().unwrap(),
        );
        assert_eq!((agent.exit_code, verifier.exit_code), (Some(3), Some(7)));
        assert_eq!(
            case.message.as_deref(),
            Some("The agent failed: exit status 3.")
        );
        assert_eq!(world.read("a/stdout.txt"), "Do it.\n");
        assert_eq!(world.read("a/logs/agent/stdout.txt"), "Do it.\n");
        assert_eq!(world.read("a/stderr.txt"), "hm\n");
        assert_eq!(world.read("b/workspace/reward"), "0.5\n");
        for gone in ["a/tests", "a/home", "a/tmp", "a/solution"] {
            assert!(!world.has(gone), "{gone}");
        }
        let text: serde_json::Value = serde_json::from_str(&world.read("a/result.json")).unwrap();
        assert_eq!(
            (&text["status"], &text["reward"]),
            (&"failed".into(), &0.5.into())
        );
        assert!(matches!(world.try_run().0, Err(Error::Exists { .. })));
    }
}

/// What can not be written is told after what there was to say before.
#[test]
fn a_result_that_can_not_be_written_is_told_in_a_sentence() {
    let world = World::new(SandboxMode::None)
        .simple("a")
        .agent("echo 1 > reward; mkdir ../result.json; exit 3");
    let told = world.one().message.unwrap();
    assert!(
        told.starts_with("The agent failed: exit status 3. result.json can not be written: "),
        "{told}"
    );
}

#[test]
fn oracle_passes_and_nop_fails() {
    for mode in modes() {
        let solution = script("[ \"$DEBIAN_FRONTEND\" = noninteractive ] && echo 1 > reward");
        let mut world = World::new(mode).package(
            "a",
            TOML,
            &[
                ("solution/solve.sh", &solution),
                ("environment/reward", "0"),
            ],
            "cat reward > $LOGS/verifier/reward.txt",
        );
        world.agent = Agent::Oracle;
        let case = world.one();
        assert_eq!(
            (case.status, case.reward),
            (Status::Passed, Some(1.0)),
            "{case:?}"
        );
        std::fs::remove_dir_all(world.path("project/runs")).unwrap();
        world.agent = Agent::Nop;
        let case = world.one();
        assert_eq!(
            (case.status, case.reward, &case.agent),
            (Status::Failed, Some(0.0), &None)
        );
        std::fs::remove_dir_all(world.path("project/runs")).unwrap();
        std::fs::remove_dir_all(world.path("project/dist/harbor/a/solution")).unwrap();
        world.agent = Agent::Oracle;
        assert_eq!(world.one().error, Some(ErrorKind::AgentStart));
    }
}

/// What `setup.sh`, `solve.sh` and `test.sh` can count on is what they have in Harbor.
#[test]
fn scripts_find_what_they_find_in_harbor() {
    let steps = |names: &[&str]| {
        let steps = names
            .iter()
            .map(|name| format!("[[steps]]\nname = \"{name}\"\n"));
        let steps: Vec<_> = steps.collect();
        format!("{TOML}{}", steps.concat())
    };
    let ok = |test: &str| format!("set -e; {test}; echo 1 > $LOGS/verifier/reward.txt");
    let solves =
        script("cd ${CASEPACK_SOLUTION_DIR:-/solution}; touch made; echo out; echo err >&2");
    let solved = ok(
        "ls ${CASEPACK_SOLUTION_DIR:-/solution}/made; cd $TESTS; touch made; \
                     [ \"$(cat $LOGS/agent/oracle.txt)\" = \"$(printf 'out\\nerr')\" ]",
    );
    let marks = script("touch mark");
    let no_time = format!("{TOML}[agent]\ntimeout_sec = 0\n");
    let sets_up = script("touch $LOGS/artifacts/x $LOGS/agent/y");
    let [one, two] = ["steps/a/instruction.md", "steps/b/instruction.md"].map(|path| (path, "Do."));
    for mode in modes() {
        let mut world = World::new(mode)
            .package("a", TOML, &[("solution/solve.sh", &solves)], &solved)
            .package(
                "no-time",
                &no_time,
                &[("solution/solve.sh", &marks)],
                &ok("[ ! -e mark ]"),
            )
            .package(
                "set-up",
                &steps(&["a"]),
                &[one, ("steps/a/workdir/setup.sh", &sets_up)],
                &ok("ls $LOGS/artifacts/x $LOGS/agent/y"),
            )
            .package(
                "no-solution",
                &steps(&["a", "b"]),
                &[one, two, ("steps/a/solution/solve.sh", &marks)],
                &ok("[ -e mark ]"),
            )
            .package(
                "no-set-up",
                &steps(&["a", "b"]),
                &[one, two, ("steps/b/workdir/setup.sh", "exit 3")],
                &ok(":"),
            );
        world.agent = Agent::Oracle;
        let cases = world.run().cases;
        for case in &cases {
            assert_eq!(case.reward, Some(1.0), "{mode:?} {case:?}");
        }
        let agent = cases[1].agent.as_ref().unwrap();
        assert_eq!((agent.timed_out, agent.exit_code), (true, None));
        let told = cases[3].message.as_ref().unwrap();
        assert!(told.contains("Step b: There is no solve.sh"), "{told}");
        assert_eq!(cases[4].error, Some(ErrorKind::AgentStart));
        assert!(!world.has("a/tests") && !world.has("a/solution"));
    }
}

const OWN_DOCKERFILE: &str = "FROM x\nWORKDIR /workspace\nCOPY workspace/ .\n\
                              RUN [\"mkdir\", \"-p\", \"--\", \"/workspace/out\"]\n";

#[test]
fn both_environment_modes_give_the_same_workspace() {
    let list =
        "find . -type f | LC_ALL=C sort > $LOGS/verifier/list; echo 1 > $LOGS/verifier/reward.txt";
    let dockerfile = TOML
        .replace("\"image\"", "\"dockerfile\"\ngenerated_by = \"casepack\"")
        .replace("docker_image = \"x\"\n", "");
    let mut world = World::new(SandboxMode::None)
        .package(
            "image",
            TOML,
            &[("environment/input.yaml", "a: 1"), ("environment/d/f", "")],
            list,
        )
        .package(
            "built",
            &dockerfile,
            &[
                ("environment/Dockerfile", OWN_DOCKERFILE),
                ("environment/workspace/input.yaml", "a: 1"),
                ("environment/workspace/d/f", ""),
            ],
            list,
        )
        .package(
            "foreign",
            &dockerfile.replace("environment_mode = \"dockerfile\"\n", ""),
            &[("environment/Dockerfile", OWN_DOCKERFILE)],
            "",
        )
        // What a task says of itself is not enough.
        .package(
            "posing",
            &dockerfile.replace("generated_by = \"casepack\"\n", ""),
            &[("environment/Dockerfile", OWN_DOCKERFILE)],
            "",
        )
        .package(
            "more",
            &dockerfile,
            &[(
                "environment/Dockerfile",
                "FROM x\nWORKDIR /workspace\nRUN apt-get install -y gcc\n",
            )],
            "",
        )
        .package(
            "composed",
            &dockerfile,
            &[
                ("environment/Dockerfile", OWN_DOCKERFILE),
                ("environment/docker-compose.yaml", "services: {}"),
            ],
            "",
        )
        .output("out/put");
    world.agent = Agent::Nop;
    let results = world.run();
    assert_eq!(
        world.read("image/logs/verifier/list"),
        "./d/f\n./input.yaml\n"
    );
    assert_eq!(
        world.read("built/logs/verifier/list"),
        "./d/f\n./input.yaml\n"
    );
    assert!(
        world
            .path("project/runs/r1/built/workspace/out/put")
            .is_dir()
    );
    for foreign in &results.cases[2..] {
        assert_eq!(foreign.status, Status::Skipped, "{}", foreign.id);
        let told = foreign.message.as_ref().unwrap();
        assert!(told.contains("environment/Dockerfile"), "{told}");
    }
}

/// Harbor's table (harbor.md 3), seen from a whole run.
#[test]
fn what_is_no_verdict_is_an_error() {
    use ErrorKind::*;
    let tests = [
        ("none", "exit 1", RewardMissing),
        ("empty", ": > $LOGS/verifier/reward.txt", RewardEmpty),
        (
            "nested",
            "echo '{\"reward\": {}}' > $LOGS/verifier/reward.json",
            RewardInvalid,
        ),
        (
            "unnamed",
            "echo '{\"score\": 1}' > $LOGS/verifier/reward.json",
            RewardUnnamed,
        ),
        (
            "unjudged",
            "echo '{\"reward\": 0, \"casepack_unjudged\": 1}' > $LOGS/verifier/reward.json",
            Unjudged,
        ),
        (
            "link",
            "echo 1 > one; ln -s $PWD/one $LOGS/verifier/reward.txt",
            RewardInvalid,
        ),
        (
            "slow",
            "echo 1 > $LOGS/verifier/reward.txt; sleep 60",
            VerifierTimeout,
        ),
    ];
    let slow = format!("{TOML}[verifier]\ntimeout_sec = 0.5\n");
    for mode in modes() {
        let mut world = World::new(mode);
        for (id, test, _) in tests {
            let toml = if id == "slow" { &slow } else { TOML };
            world = world.package(id, toml, &[], test);
        }
        // Whatever the agent puts there does not count.
        world = world.agent("echo 1 > $LOGS/verifier/reward.txt");
        for (case, (id, _, kind)) in world.run().cases.iter().zip(tests) {
            assert_eq!(
                (case.status, case.error),
                (Status::Error, Some(kind)),
                "{id}: {case:?}"
            );
            assert_eq!(case.reward, None);
        }
    }
}

#[test]
fn a_package_without_judges_casepack_brought_is_explained() {
    let mut world = World::new(SandboxMode::None).package("a", "this is no toml", &[], "");
    world.agent = Agent::Nop;
    let case = world.one();
    assert_eq!(
        (case.status, case.error),
        (Status::Error, Some(ErrorKind::Package))
    );
    assert!(case.message.unwrap().contains("task.toml"));
}

#[test]
fn a_timeout_ends_everything_and_the_verifier_still_runs() {
    for mode in modes() {
        let toml = format!("{TOML}[agent]\ntimeout_sec = 3\n");
        let sleep = unique(9);
        // Ignores TERM, has a child in its group, and one that left it.
        let world = World::new(mode)
            .package("a", &toml, &[], "cat reward > $LOGS/verifier/reward.txt")
            .agent(&format!(
                "echo 1 > reward; trap '' TERM\n\
                 sleep {sleep} & (setsid sleep {sleep} &) & while :; do sleep 0.1; done"
            ));
        let start = Instant::now();
        let case = world.one();
        assert!(start.elapsed() < Duration::from_mins(1));
        assert_eq!(
            (case.status, case.reward),
            (Status::Passed, Some(1.0)),
            "{case:?}"
        );
        assert!(case.agent.unwrap().timed_out);
        assert_eq!(alive(&sleep), 0, "{mode:?}");
    }
}

#[test]
fn term_leaves_time_to_clean_up() {
    for mode in modes() {
        let toml = format!("{TOML}[agent]\ntimeout_sec = 3\n");
        let world = World::new(mode)
            .package("a", &toml, &[], "cat reward > $LOGS/verifier/reward.txt")
            .agent("trap 'echo 0.25 > reward; exit 0' TERM; sleep 60 & wait");
        let case = world.one();
        assert_eq!(case.reward, Some(0.25), "{mode:?} {case:?}");
        assert!(case.agent.unwrap().timed_out);
    }
}

#[test]
fn a_daemon_is_dead_before_the_verifier_starts() {
    for mode in modes() {
        let world = World::new(mode)
            .package(
                "a",
                TOML,
                &[],
                "sleep 0.5; cmp -s ticks ticks-then || cp ticks ticks-then\n\
                 sleep 0.3; cmp -s ticks ticks-then && echo 1 > $LOGS/verifier/reward.txt \
                 || echo 0 > $LOGS/verifier/reward.txt",
            )
            .agent(
                "(setsid sh -c 'while :; do echo tick >> ticks; sleep 0.05; done' \
                 >/dev/null 2>&1 &) ; sleep 0.2",
            );
        let case = world.one();
        assert_eq!(case.reward, Some(1.0), "{mode:?} {case:?}");
    }
}

#[test]
fn output_is_capped() {
    for mode in modes() {
        let world = World::new(mode)
            .simple("a")
            .agent("echo 1 > reward; head -c 40000000 /dev/zero; echo end >&2");
        let case = world.one();
        assert_eq!(case.status, Status::Passed, "{case:?}");
        assert_eq!(case.agent.unwrap().output_dropped, 40_000_000 - (16 << 20));
        assert!(
            world
                .path("project/runs/r1/a/stdout.txt")
                .metadata()
                .unwrap()
                .len()
                < 17 << 20
        );
        assert_eq!(world.read("a/stderr.txt"), "end\n");
    }
}

#[test]
fn hostile_leftovers_are_not_followed() {
    for mode in modes() {
        let world = World::new(mode)
            .package("a", TOML, &[], "echo 1 > $LOGS/verifier/reward.txt")
            .output("out")
            .agent(
                "mkdir -p out; cd out; ln -s /etc/passwd passwd; ln -s /tests tests; ln -s / root\n\
                 ln -s ../../../../cases/a/annotations.yaml key; mkfifo fifo\n\
                 truncate -s 10G sparse; echo fine > fine\n\
                 rm -rf $LOGS/agent/stdout.txt; ln -s /etc/passwd $LOGS/agent/stdout.txt\n\
                 ln -s /etc/passwd $LOGS/agent/run_result.json",
            );
        let case = world.one();
        let files: Vec<_> = case
            .outputs
            .files
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        assert_eq!(files, ["out/fine"], "{case:?}");
        let skipped: Vec<_> = case
            .outputs
            .skipped
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        assert_eq!(
            skipped,
            [
                "out/fifo",
                "out/key",
                "out/passwd",
                "out/root",
                "out/sparse",
                "out/tests"
            ]
        );
        assert!(!world.has("a/outputs/out/passwd"));
        assert_eq!(world.read("a/logs/agent/stdout.txt"), "");
        assert!(
            world
                .read("a/logs/agent/run_result.json")
                .contains("exit_code")
        );
        assert!(
            !std::fs::read_to_string("/etc/passwd")
                .unwrap()
                .contains("exit_code")
        );
    }
}

#[test]
fn a_removed_workdir_is_judged_empty() {
    for mode in modes() {
        let world = World::new(mode)
            .package(
                "a",
                TOML,
                &[("environment/f", "")],
                "ls | wc -l > $LOGS/verifier/reward.txt",
            )
            .agent("d=$PWD; cd /; rm -rf $d; [ -d $d ] || ln -s /etc $d");
        let case = world.one();
        assert_eq!(case.reward, Some(0.0), "{mode:?} {case:?}");
    }
}

#[test]
fn the_environment_is_what_was_asked_for() {
    let toml = format!(
        "{TOML}env = {{ GIVEN = \"${{GONE:-given}}\", OWN = \"task\", LITERAL = \"$HOME\", \
         MISSING = \"${{NOT_SET_ANYWHERE}}\" }}\n"
    );
    for mode in modes() {
        let mut world = World::new(mode)
            .simple("a")
            .package("b", &toml, &[], "")
            .agent("env > env; echo 1 > reward");
        world
            .execution_env
            .insert("OWN".to_owned(), "execution".to_owned());
        world
            .execution_env
            .insert("MISSING".to_owned(), "$NOT_SET_ANYWHERE".to_owned());
        world
            .runner
            .env
            .insert("TOKEN".to_owned(), "$CALLERS_SECRET".to_owned());
        world.run();
        let env = world.read("b/workspace/env");
        let lines = [
            "GIVEN=given",
            "OWN=execution",
            "TOKEN=s3cret",
            "LITERAL=$HOME",
        ];
        for line in lines {
            assert!(env.lines().any(|have| have == line), "{line}: {env}");
        }
        for name in ["CALLERS_SECRET=", "MISSING=", "CARGO", "USER="] {
            assert!(
                !env.lines().any(|have| have.starts_with(name)),
                "{name}: {env}"
            );
        }
        assert!(!env.contains(&format!("HOME={}", caller()["HOME"])) || mode == SandboxMode::None);
    }
    let toml = format!("{TOML}env = {{ KEY = \"${{NOT_SET_ANYWHERE}}\" }}\n");
    let case = World::new(SandboxMode::None)
        .package("a", &toml, &[], "")
        .agent(":")
        .one();
    assert_eq!(case.error, Some(ErrorKind::Package));
    assert!(case.message.unwrap().contains("NOT_SET_ANYWHERE"));
}

#[test]
fn texts_of_a_case_reach_the_agent_as_they_are() {
    let hostile = "it's \"$(touch /tmp/x)\"; `id` \\ \n-rf *";
    for mode in modes() {
        let mut world = World::new(mode).simple("a").command(
            "sh agent/run.sh {instruction} {ticket} --m={model} {workspace} {fle} {instruction_file}",
        );
        world.write(
            "project/agent/run.sh",
            "printf '%s|' \"$@\" > args; cat \"$6\" > told; echo 1 > reward",
        );
        let node = |value| Node { value, span: 0..0 };
        let input = vec![(
            node(Yaml::Str("ticket".into())),
            node(Yaml::Str(hostile.into())),
        )];
        world
            .inputs
            .insert(CaseId::new("a").unwrap(), Yaml::Map(input));
        let (results, diags) = world.try_run();
        assert_eq!(results.unwrap().cases[0].status, Status::Passed);
        let args = world.read("a/workspace/args");
        let args: Vec<_> = args.split('|').collect();
        assert_eq!(args[..3], ["Do it.", hostile, "--m=m-1"]);
        assert_eq!(args[4], "{fle}");
        assert_eq!(args[3] == "/workspace", mode == SandboxMode::Bwrap);
        assert_eq!(world.read("a/workspace/told"), "Do it.\n");
        let rules: Vec<_> = diags.iter().map(|finding| finding.rule).collect();
        let wanted = match mode {
            SandboxMode::Bwrap => vec![Rule::CommandPlaceholder],
            _ => vec![Rule::RunNotIsolated, Rule::CommandPlaceholder],
        };
        assert_eq!(rules, wanted);
    }
}

#[test]
fn agents_that_can_not_be_run_are_refused_or_explained() {
    let mut world = World::new(SandboxMode::None).simple("a").command("x");
    world.runner.kind = "claude-code".to_owned();
    let (result, diags) = world.try_run();
    assert!(matches!(result, Err(Error::Refused)));
    let finding = diags.iter().next().unwrap();
    assert_eq!(finding.rule, Rule::Unsupported);
    assert!(finding.message.contains("claude-code") && finding.help.contains("oracle"));
    assert!(!world.path("project/runs").exists());
    for mode in modes() {
        let case = World::new(mode)
            .simple("a")
            .command("/no/such-agent-9 x")
            .one();
        assert_eq!(
            (case.status, case.error),
            (Status::Error, Some(ErrorKind::AgentStart))
        );
        let told = case.message.unwrap();
        assert!(told.contains("/no/such-agent-9"), "{told}");
        let case = World::new(mode)
            .simple("a")
            .command("sh -c 'x {instruction}'")
            .one();
        assert!(case.message.unwrap().contains("run as code"));
    }
}

#[test]
fn steps_share_a_workspace() {
    let toml = |strategy: &str, least: &str| {
        format!(
            "multi_step_reward_strategy = \"{strategy}\"\n{TOML}\n\
             [[steps]]\nname = \"one\"\n{least}\n[[steps]]\nname = \"two\"\n\
             [[steps]]\nname = \"three\"\n"
        )
    };
    let take = "cp $TESTS/reward.json $LOGS/verifier/reward.json";
    let step = |name: &str, reward: &str| {
        vec![
            (
                format!("steps/{name}/instruction.md"),
                format!("Do {name}.\n"),
            ),
            (format!("steps/{name}/tests/reward.json"), reward.to_owned()),
        ]
    };
    let mut files = step("one", "{\"reward\": 0.5, \"x\": 1}");
    files.extend(step("two", "{\"reward\": 0}"));
    files.extend(step("three", "{\"reward\": 1}"));
    files.push(("steps/two/workdir/f".to_owned(), "brought".to_owned()));
    files.push((
        "steps/two/workdir/setup.sh".to_owned(),
        "cat f >> set-up".to_owned(),
    ));
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let garbage: Vec<_> = files
        .iter()
        .map(|(path, text)| {
            let spoilt = *path == "steps/two/tests/reward.json";
            (*path, if spoilt { "{" } else { text })
        })
        .collect();
    for mode in modes() {
        let mut world = World::new(mode)
            .package("final", &toml("final", ""), &files, take)
            .package("mean", &toml("mean", ""), &files, take)
            .package("stops", &toml("final", "min_reward = 0.6"), &files, take)
            .package(
                "goes",
                &toml("final", "min_reward = { x = 1.0 }"),
                &files,
                take,
            )
            .package("spoilt", &toml("mean", ""), &garbage, take)
            .package("spoilt-final", &toml("final", ""), &garbage, take)
            .agent("ls $LOGS/verifier 2>/dev/null; echo \"$1\" >> done");
        world.jobs = 2;
        let results = world.run();
        let rewards: Vec<_> = results.cases.iter().map(|case| case.reward).collect();
        assert_eq!(
            rewards,
            [Some(1.0), Some(0.5), Some(0.5), Some(1.0), Some(0.5), None],
            "{results:?}"
        );
        for spoilt in &results.cases[4..] {
            assert_eq!(spoilt.error, Some(ErrorKind::RewardInvalid));
            assert_eq!((spoilt.status, spoilt.steps.len()), (Status::Error, 2));
        }
        assert!((results.cases[1].rewards["x"] - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            world.read("final/workspace/done"),
            "Do one.\nDo two.\nDo three.\n"
        );
        assert_eq!(world.read("final/workspace/set-up"), "brought");
        assert_eq!(world.read("final/steps/three/stdout.txt"), "");
        assert_eq!(world.read("stops/workspace/done"), "Do one.\n");
        assert_eq!(results.cases[2].steps.len(), 1);
        assert!(
            results.cases[2]
                .message
                .as_ref()
                .unwrap()
                .contains("min_reward wants 0.6")
        );
    }
}

#[test]
fn a_separate_verifier_sees_only_artifacts() {
    let toml = |artifacts: &str| {
        format!("artifacts = [{artifacts}]\n{TOML}[verifier]\nenvironment_mode = \"separate\"\n")
    };
    let test = "cat $(find . -type f | LC_ALL=C sort) > $LOGS/verifier/seen; ls $LOGS/agent >> $LOGS/verifier/seen\n\
                echo 1 > $LOGS/verifier/reward.txt";
    for mode in modes() {
        let start = &[("environment/a", "start ")][..];
        let world = World::new(mode)
            .package("none", &toml(""), start, test)
            .package("some", &toml("\"/workspace/out\""), start, test)
            .package("all", &toml("\"/workspace\""), start, test)
            .agent(
                "echo -n changed > a; mkdir out; echo -n ' made' > out/b; ln -s /etc/passwd out/c",
            );
        world.run();
        assert_eq!(world.read("none/logs/verifier/seen"), "start ");
        assert_eq!(world.read("some/logs/verifier/seen"), "start  made");
        assert_eq!(world.read("all/logs/verifier/seen"), "changed made");
    }
    // They come as they are, but for what is no file, or leads elsewhere.
    let ok = |test: &str| format!("set -e; {test}; echo 1 > $LOGS/verifier/reward.txt");
    let whole = "[ -x d/run ]; [ \"$(cat d/link)\" = x ]; [ -L d/link ]; [ -d d/empty ]; \
                 [ $(stat -c %s big) = 68157440 ]";
    let some = ok(&format!("{whole}; [ ! -e d/old ]; [ ! -e given ]"));
    let all = ok(&format!(
        "{whole}; [ ! -L out ]; [ ! -e fifo ]; [ -e given ]; \
         [ $LOGS != /logs ] || [ ! -L $LOGS/artifacts/out ]"
    ));
    for mode in modes() {
        let world = World::new(mode)
            .package(
                "some",
                &toml("\"/workspace/d\", \"/workspace/big\""),
                &[("environment/d/old", "")],
                &some,
            )
            .package("all", &toml("\"/workspace\""), &[], &all)
            .agent(
                "mkdir -p d/empty; rm -f d/old; touch given; echo x > d/run; chmod +x d/run\n\
                 ln -s run d/link; truncate -s 65M big; mkfifo fifo\n\
                 ln -s /etc/passwd out\n\
                 [ \"$PWD\" != /workspace ] || ln -s /tests $LOGS/artifacts/out",
            );
        let cases = world.run().cases;
        for case in &cases {
            assert_eq!(case.reward, Some(1.0), "{mode:?} {case:?}");
        }
        let told = cases[1].message.as_ref().unwrap();
        assert!(
            told.contains("Of the artifacts fifo stayed behind"),
            "{told}"
        );
    }
    // Where they lie elsewhere, that is kept for them.
    if bwrap() {
        let elsewhere = toml("\"/tmp/m\", \"/made/by\", \"/only\", \"/none.txt\", \"/usr/x\"");
        let test = ok("cat /tmp/m /made/by/whom /only/this; [ ! -e /tmp/other ]; touch /only/x");
        let (results, diags) = World::new(SandboxMode::Bwrap)
            .package("a", &elsewhere, &[], &test)
            .agent(
                "echo x > /tmp/m; touch /tmp/other; mkdir -p /made/by; touch /made/by/whom\n\
                 touch /only/this",
            )
            .try_run();
        let case = results.unwrap().cases.remove(0);
        assert_eq!(case.reward, Some(1.0), "{case:?}");
        let told: Vec<_> = diags.iter().map(|it| it.message.as_str()).collect();
        assert!(told.iter().any(|told| told.contains("/usr/x")), "{told:?}");
        assert!(!told.iter().any(|told| told.contains("/tmp/m")), "{told:?}");
    }
}

#[test]
fn a_place_that_no_verifier_sees_is_told_where_it_may_be_why() {
    let told = [("instruction.md", "Write 1 to /tmp/v5/answer.txt.\n")];
    let test = "[ -e /tmp/v5/answer.txt ] && exit; echo $(cat own) > $LOGS/verifier/reward.txt";
    for mode in modes() {
        let world = World::new(mode)
            .package("a", TOML, &told, test)
            .package("b", TOML, &[("environment/own", "0")], test)
            .agent("echo 0 > own");
        let [told, untold] = world.run().cases.try_into().unwrap();
        assert!(told.message.unwrap().contains("name /tmp/v5/answer.txt"));
        assert_eq!((untold.reward, untold.message), (Some(0.0), None));
    }
}

#[test]
fn stopping_ends_children_and_keeps_what_is_known() {
    for mode in modes() {
        let sleep = unique(8);
        let mut world = World::new(mode)
            .simple("a")
            .simple("b")
            .simple("c")
            .simple("d");
        world.write(
            "project/agent/run.sh",
            &format!("echo 1 > reward; case $(cat name) in a) ;; *) sleep {sleep};; esac"),
        );
        for id in ["a", "b", "c", "d"] {
            world.write(&format!("project/dist/harbor/{id}/environment/name"), id);
        }
        world = world.command("sh agent/run.sh");
        world.jobs = 2;
        let results = std::thread::scope(|scope| {
            scope.spawn(|| {
                let until = Instant::now() + Duration::from_mins(2);
                let started = |id: &str| world.has(&format!("{id}/workspace/reward"));
                while !(world.has("a/result.json") && started("b") && started("c"))
                    && Instant::now() < until
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                world.stop.store(true, Ordering::Relaxed);
            });
            world.run()
        });
        assert!(results.interrupted);
        let of = |index: usize| (results.cases[index].status, results.cases[index].error);
        assert_eq!(of(0), (Status::Passed, None));
        for index in 1..4 {
            assert_eq!(of(index), (Status::Skipped, Some(ErrorKind::Interrupted)));
        }
        assert_eq!(alive(&sleep), 0);
        assert!(!world.has("b/tests") && world.has("b/result.json") && !world.has("d"));
    }
}

#[test]
fn an_agent_reaches_neither_the_key_nor_the_machine() {
    if !bwrap() {
        return;
    }
    let mut world = World::new(SandboxMode::Bwrap).package(
        "a",
        TOML,
        &[("tests/evaluation/annotations.yaml", "answer: 42"), ("environment/f", "f")],
        "cat found > $LOGS/verifier/found; cat $TESTS/evaluation/annotations.yaml > $LOGS/verifier/key\n\
         echo spoilt > $TESTS/evaluation/annotations.yaml || echo 'not its own' >> $LOGS/verifier/found\n\
         echo 1 > $LOGS/verifier/reward.txt",
    );
    let project = world.path("project").display().to_string();
    let home = caller()["HOME"].clone();
    world.write("outside/secret", "secret");
    let outside = world.path("outside").display().to_string();
    // Everything that must not work says so in `found` when it does.
    let body = format!(
        "exec 2>/dev/null; found() {{ echo \"$1\" >> found; }}\n\
         for p in /tests /tests/evaluation/annotations.yaml /solution '{project}' '{project}/cases' \
           '{project}/dist' '{project}/runs' '{outside}' '{outside}/secret' '{home}/.ssh' \
           /etc/shadow /etc/ssl/private /etc/ssh /root/.bashrc /sys/kernel /var/lib/dpkg /boot; do\n\
           [ -e \"$p\" ] && found \"$p\"; done\n\
         for up in .. ../.. ../../..; do find \"$up\" -xdev -name annotations.yaml | grep . >> found; done\n\
         find / -name 'annotations.yaml' -o -name eval.yaml -o -name result.json | grep . >> found\n\
         for p in /proc/[0-9]*; do\n\
           [ -e \"$p/root{project}/cases\" ] && found \"$p/root\"; ls \"$p/cwd/../cases\" && found \"$p/cwd\"; done\n\
         [ $(ls -d /proc/[0-9]* | wc -l) -gt 20 ] && found 'processes of the machine'\n\
         ln /etc/passwd hard && found 'hard link'; ln '{outside}/secret' hard2 && found 'hard link 2'\n\
         true >> /usr/bin/env && found 'wrote /usr'; true > /usr/casepack-test && found 'wrote /usr'\n\
         true >> /etc/passwd && found 'wrote /etc'\n\
         true >> /proc/sys/kernel/core_pattern && found 'core_pattern'\n\
         [ $(id -u) != 0 ] || find /proc -not -path '/proc/[0-9]*' -not -path '/proc/self*' -not -path '/proc/thread-self*' \
           -type f -writable >> found\n\
         true >> /proc/sysrq-trigger && found 'sysrq'\n\
         mount -o remount,rw /usr && found remount; mount -t tmpfs x /mnt && found mount\n\
         umount /logs/agent && found umount; chroot / true && found chroot\n\
         mknod disk b 8 0 && found mknod; [ -e /dev/sda ] || [ -e /dev/vda ] && found disk\n\
         grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && found capabilities\n\
         grep -q '^CapPrm:.*[1-9a-f]' /proc/self/status && found capabilities\n\
         unshare -Ur sh -c 'umount /usr || mount -o remount,rw,bind /usr' && found 'nested namespace'\n\
         true >> /casepack/project/agent/run.sh && found 'wrote the script'\n\
         tr '\\0' '\\n' < /proc/1/environ | grep -q s3cret && found environ\n\
         [ -n \"$CALLERS_SECRET\" ] && found env\n\
         echo end >> found"
    );
    world = world.agent(&body);
    let case = world.one();
    assert_eq!(case.status, Status::Passed, "{case:?}");
    assert_eq!(world.read("a/logs/verifier/found"), "end\n");
    assert_eq!(world.read("a/logs/verifier/key"), "answer: 42");
    // The verifier has a copy of its own.
    let key = world.path("project/dist/harbor/a/tests/evaluation/annotations.yaml");
    assert_eq!(std::fs::read_to_string(key).unwrap(), "answer: 42");
    assert!(!Path::new("/usr/casepack-test").exists());
    assert!(!world.has("a/workspace/hard"));
}

#[test]
fn the_network_is_there_or_not() {
    if !bwrap() {
        return;
    }
    let ways = "ls /sys/class/net 2>/dev/null; cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' ' | sort > net";
    let toml = format!("{TOML}network_mode = \"no-network\"\n");
    let world = World::new(SandboxMode::Bwrap)
        .package("without", &toml, &[], "")
        .package("with", TOML, &[], "")
        .package(
            "some",
            &format!("{TOML}network_mode = \"allowlist\"\n"),
            &[],
            "",
        )
        .agent(ways);
    let results = world.run();
    assert_eq!(world.read("without/workspace/net"), "lo\n");
    let here = std::fs::read_to_string("/proc/net/dev")
        .unwrap()
        .lines()
        .count()
        - 2;
    assert_eq!(world.read("with/workspace/net").lines().count(), here);
    assert_eq!(results.cases[2].status, Status::Skipped);
}

#[test]
fn a_workdir_is_where_the_package_says() {
    if !bwrap() {
        return;
    }
    for (workdir, works) in [
        ("/app", true),
        ("/home/user/deep/er", true),
        ("/tmp", true),
        ("/srv", true),
        ("/var/tmp/x", true),
        ("/", false),
        ("/usr", false),
        ("/usr/bin", false),
        ("/lib/nowhere-9", false),
        ("/usr/src/nowhere-9/app", false),
        ("/etc/app", false),
        ("/tests/x", false),
        ("/logs", false),
        ("/proc/x", false),
        ("relative", false),
        ("/a/../b", false),
        ("", false),
    ] {
        let toml = TOML.replace("/workspace", workdir);
        let world = World::new(SandboxMode::Bwrap)
            .package(
                "a",
                &toml,
                &[("environment/f", "x")],
                "[ -f f ] && echo 1 > $LOGS/verifier/reward.txt",
            )
            .agent("pwd; [ -f f ]");
        let case = world.one();
        assert_eq!(case.status == Status::Passed, works, "{workdir} {case:?}");
        if works {
            assert_eq!(world.read("a/stdout.txt"), format!("{workdir}\n"));
        } else if workdir.starts_with('/') && !workdir.contains("..") {
            // A container can have it.
            assert_eq!(case.status, Status::Skipped, "{workdir} {case:?}");
        } else {
            assert_eq!(case.error, Some(ErrorKind::Package), "{workdir} {case:?}");
        }
    }
}

#[test]
fn a_package_with_a_link_is_refused() {
    let mut world = World::new(SandboxMode::None).simple("a");
    world.agent = Agent::Nop;
    symlink("/etc/passwd", world.path("project/dist/harbor/a/tests/key")).unwrap();
    let case = world.one();
    assert_eq!(case.error, Some(ErrorKind::Package));
    assert!(case.message.unwrap().contains("tests/key"));
    // One that stays in the task is none of casepack's, and fine for Harbor.
    let mut world = World::new(SandboxMode::None).simple("a");
    world.agent = Agent::Nop;
    symlink(
        "../instruction.md",
        world.path("project/dist/harbor/a/tests/key"),
    )
    .unwrap();
    let case = world.one();
    assert_eq!(case.status, Status::Skipped);
    assert!(case.message.unwrap().contains("tests/key is a link"));
}

#[test]
fn ids_of_runs_and_cases_stay_in_their_place() {
    for id in [
        "",
        ".",
        "..",
        "a/b",
        "-x",
        ".x",
        "a b",
        "é",
        &"x".repeat(129),
    ] {
        assert!(check_id(id).is_err(), "{id:?}");
    }
    assert!(check_id("20250101-120000-ab12").is_ok());
    let mut world = World::new(SandboxMode::None).simple("results.json");
    world.agent = Agent::Nop;
    assert_eq!(world.one().error, Some(ErrorKind::Package));
}
