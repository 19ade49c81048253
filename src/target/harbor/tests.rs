//! Packages made from real files, read and assembled as a build does it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::dataset::{self, LoadRequest, OptionValue};
use crate::tree::{Data, Entry};
use crate::yaml::Yaml;

/// A project in a temporary directory.
struct World {
    dir: TempDir,
}

/// What became of a dataset: packages by name, and findings as `rule: message`.
#[derive(Debug)]
struct Built {
    packages: Vec<Package>,
    findings: Vec<String>,
}

impl World {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let world = Self { dir };
        for (path, text) in files {
            world.file(path, text.as_bytes());
        }
        world
    }

    fn file(&self, path: &str, bytes: &[u8]) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        if path.extension().is_some_and(|suffix| suffix == "sh") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    fn build(&self, options: &Options) -> Built {
        self.build_at("eval.yaml", options)
    }

    fn build_at(&self, path: &str, options: &Options) -> Built {
        let mut diags = Diagnostics::default();
        let packages = self.packages(path, options, &mut diags);
        let findings = diags
            .iter()
            .map(|found| {
                format!(
                    "{} {}: {}",
                    found.severity.name(),
                    found.rule.name(),
                    found.message
                )
            })
            .collect();
        Built {
            packages: packages.unwrap_or_default(),
            findings,
        }
    }

    fn packages(
        &self,
        path: &str,
        options: &Options,
        diags: &mut Diagnostics,
    ) -> Option<Vec<Package>> {
        let request = LoadRequest {
            path: Path::new(path),
            format: None,
            project_root: None,
            cwd: self.dir.path(),
            home: None,
            plugin_dirs: &[],
        };
        let dataset = dataset::load(&request, diags)?;
        let common = crate::assemble::prepare(&dataset, &[], &(), diags)?;
        let shared = prepare(&dataset, options, diags)?;
        let mut packages = Vec::new();
        for id in &dataset.cases {
            let package = dataset.read_case(id, diags).and_then(|case| {
                let views = crate::assemble::case(&dataset, &common, &case, diags)?;
                package(&dataset, &case, &views, options, &shared, diags)
            });
            packages.extend(package);
        }
        Some(packages)
    }
}

fn bytes(entry: &Entry) -> &[u8] {
    let Data::Bytes(bytes) = &entry.content.data else {
        panic!("not in memory");
    };
    bytes
}

fn text(package: &Package, path: &str) -> String {
    let entry = package.tree.get(&TreePath::new(path).unwrap());
    let entry = entry.unwrap_or_else(|| panic!("no {path} in {:?}", paths(package)));
    String::from_utf8(bytes(entry).to_vec()).unwrap()
}

fn paths(package: &Package) -> Vec<&str> {
    package.tree.iter().map(|(path, _)| path.as_str()).collect()
}

/// Path, mode, size and short digest of every file; all of the text of those that casepack makes.
/// Of templates only the name: their text changes on its own.
fn show(package: &Package) -> String {
    let mut shown = format!("{} ({})\n", package.name.as_str(), package.task_name);
    let mut texts = String::new();
    for (path, Entry { mode, content }) in package.tree.iter() {
        let name = path.name();
        if matches!(name, "judge.py" | "judge_llm.py" | "test.sh") {
            writeln!(shown, "{} {path} (template)", mode.letter()).unwrap();
            continue;
        }
        let digest = &content.digest.hex()[..12];
        writeln!(shown, "{} {path} {} {digest}", mode.letter(), content.size).unwrap();
        let made = [
            "task.toml",
            "instruction.md",
            "config.json",
            "start.json",
            "Dockerfile",
        ];
        if made.contains(&name) || path.as_str().ends_with("tests/eval.yaml") {
            writeln!(
                texts,
                "\n--- {path}\n{}",
                text(package, path.as_str()).trim_end()
            )
            .unwrap();
        }
    }
    shown + &texts
}

macro_rules! golden {
    ($name:literal, $packages:expr) => {{
        let shown: Vec<String> = $packages.iter().map(show).collect();
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("../../../tests/golden/harbor");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!($name, shown.join("\n=====\n")));
    }};
}

const TRIAGE: &str = r#"
name: Triage
description: Answers one ticket.
dataset:
  path: cases
  workspace:
    files: [thread.md, {dest: skill.md, source: docs/skill.md}]
execution:
  prompt: "Triage {ticket}."
  timeout: 900
  env: {JIRA_URL: $JIRA_URL, MODE: fast}
models: {judge: claude-x}
outputs:
  - path: out
  - path: answer/reply.md
judges:
  - name: answered
    check: return bool(outputs["files"])
  - name: quality
    prompt_file: prompts/quality.md
    score_range: [1, 5]
    arguments: {due: 2024-01-31, strict: yes}
  - name: odd
    if: annotations.get("odd")
    check: return 1.0
reward: {weights: {answered: 1, quality: 2.5}}
thresholds: {quality: {min_mean: 3}}
"#;

fn triage() -> World {
    World::new(&[
        ("eval.yaml", TRIAGE),
        ("docs/skill.md", "do it\n"),
        ("prompts/quality.md", "Is it good?\n"),
        ("cases/case 1/input.yaml", "ticket: T-1\n"),
        ("cases/case 1/annotations.yaml", "gold: gold.md\nodd: yes\n"),
        ("cases/case 1/gold.md", "the answer\n"),
        ("cases/case 1/thread.md", "hello\n"),
        ("cases/case 1/solution/solve.sh", "#!/bin/sh\n"),
        ("cases/case 1/solution/data/x", "1"),
        ("cases/case-2/input.yaml", "ticket: T-2\n"),
        ("cases/case-2/annotations.yaml", "odd: no\n"),
        ("cases/case-2/thread.md", "hello\n"),
    ])
}

const PINNED: &str =
    "ghcr.io/acme/agent@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn a_case_with_a_dockerfile() {
    let built = triage().build(&Options::default());
    insta::assert_debug_snapshot!(built.findings, @r#"
        [
            "note case-name-changed: Case ids that are no valid names for Harbor were replaced in packages.",
        ]
        "#);
    golden!("dockerfile", built.packages);
}

#[test]
fn a_case_with_an_image() {
    let options = Options {
        image: Some("acme/agent:1".to_owned()),
        no_llm_judges: true,
        agent_timeout_sec: Some(60.0),
        org: Some("acme".to_owned()),
        workdir: "/app/work".to_owned(),
        ..Options::default()
    };
    golden!("image", triage().build(&options).packages[1..]);
}

#[test]
fn a_strict_package() {
    let options = Options {
        image: Some(PINNED.to_owned()),
        profile: Profile::Strict,
        agent_user: Some("agent".to_owned()),
        ..Options::default()
    };
    golden!("strict", triage().build(&options).packages[1..]);
    let loose = Options {
        image: Some("acme/agent:1".to_owned()),
        profile: Profile::Strict,
        agent_user: Some("0".to_owned()),
        ..Options::default()
    };
    let built = triage().build(&loose);
    assert!(built.packages.is_empty());
    insta::assert_debug_snapshot!(built.findings, @r#"
        [
            "note case-name-changed: Case ids that are no valid names for Harbor were replaced in packages.",
            "error strict-user: The strict profile needs a user for the agent that is not root.",
            "error image-without-digest: The strict profile wants an image that is pinned by its digest, not 'acme/agent:1'.",
        ]
        "#);
    let none = Options {
        profile: Profile::Strict,
        agent_user: Some("1000".to_owned()),
        ..Options::default()
    };
    insta::assert_debug_snapshot!(triage().build(&none).findings.last(), @r#"
        Some(
            "error image-without-digest: The strict profile wants a prebuilt image that is pinned by its digest.",
        )
        "#);
}

#[test]
fn a_package_for_the_harness() {
    let options = Options {
        image: Some("acme/harness:1".to_owned()),
        verifier: VerifierKind::Harness,
        judge_model: Some("other".to_owned()),
        ..Options::default()
    };
    let built = triage().build(&options);
    golden!("harness", built.packages[1..]);
    let script = text(&built.packages[0], "tests/test.sh");
    assert!(script.contains("work=${CASEPACK_WORKDIR:-/workspace}\n"));
    assert!(script.contains("for path in 'out' 'answer/reply.md'; do\n"));
    assert!(!script.contains('@'));
}

#[test]
fn the_harness_script_trusts_nothing_of_the_agent() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|python| python.status.success()) {
        println!("skipped: no python3");
        return;
    }
    let options = Options {
        image: Some("acme/harness:1".to_owned()),
        verifier: VerifierKind::Harness,
        ..Options::default()
    };
    let package = triage().build(&options).packages.remove(0);
    let place = World::new(&[
        ("logs/agent/a.txt", "said\n"),
        ("logs/verifier/reward.json", "{\"reward\": 1}"),
        ("work/out/x", "1"),
        ("work/agent_eval/harbor/reward.py", "print('planted')"),
        // The engine, as the image would have it: it tells how it was called, and fails.
        ("site/agent_eval/__init__.py", ""),
        ("site/agent_eval/harbor/__init__.py", ""),
        (
            "site/agent_eval/harbor/reward.py",
            "import os, sys\nprint(os.getcwd(), *sys.argv[1:])\nsys.exit(7)\n",
        ),
    ]);
    for (path, entry) in package.tree.below(&TreePath::new("tests").unwrap()).iter() {
        place.file(&format!("tests/{path}"), bytes(entry));
    }
    let at = |path: &str| place.dir.path().join(path);
    place.file("secret", b"kept");
    std::os::unix::fs::symlink(at("secret"), at("work/stdout.log")).unwrap();
    let done = Command::new("sh")
        .arg(at("tests/test.sh"))
        .current_dir(at("work"))
        .env("CASEPACK_TESTS_DIR", at("tests"))
        .env("CASEPACK_LOGS_DIR", at("logs"))
        .env("CASEPACK_WORKDIR", at("work"))
        .env("PYTHONPATH", at("site"))
        .output()
        .unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    let told = told.replace(
        place.dir.path().canonicalize().unwrap().to_str().unwrap(),
        "",
    );
    let told = told.replace(place.dir.path().to_str().unwrap(), "");
    assert_eq!(
        told.trim_end(),
        "/tests/judges --config /tests/eval.yaml --case-dir /work --out-dir /logs/verifier"
    );
    assert_eq!(done.status.code(), Some(7), "{:?}", done.stderr);
    assert_eq!(fs::read(at("secret")).unwrap(), b"kept");
    assert_eq!(fs::read(at("work/stdout.log")).unwrap(), b"said\n");
    assert_eq!(fs::read(at("logs/verifier/outputs/out/x")).unwrap(), b"1");
    assert!(!at("logs/verifier/reward.json").exists());
}

const STEPS: &str = r#"
name: build
dataset: {path: cases}
execution:
  steps:
    - {id: plan, prompt: "Plan {task}", timeout: 30}
    - {id: nul, prompt: "Build {task}", env: {A: b}, max_budget_usd: 1}
judges:
  - {name: planned, check: return True, step: plan}
  - {name: built, check: return True}
reward: {weights: {planned: 1, built: 1}}
"#;

#[test]
fn a_case_with_steps() {
    let world = World::new(&[
        ("eval.yaml", STEPS),
        ("cases/a/input.yaml", "task: it\n"),
        ("cases/a/solution/plan/solve.sh", "#!/bin/sh\n"),
        ("cases/a/solution/notes.md", "not a solution of its own\n"),
    ]);
    let built = world.build(&Options::default());
    insta::assert_debug_snapshot!(built.findings, @r#"
        [
            "warning agent-option-ignored: Harbor has no place for what the step 'nul' says about its agent; left out: env, max_budget_usd.",
            "warning weight-unknown-judge: `reward` reads judges of earlier steps (planned), but the reward of a case is that of its last step, where they give no value.",
        ]
        "#);
    golden!("steps", built.packages);
}

#[test]
fn the_last_step_is_judged() {
    let config = STEPS.replace("  - {name: built, check: return True}\n", "");
    let config = config.replace(", built: 1", "");
    let world = World::new(&[("eval.yaml", &config), ("cases/a/input.yaml", "task: it\n")]);
    let findings = world.build(&Options::default()).findings;
    insta::assert_debug_snapshot!(findings.last(), @r#"
        Some(
            "warning no-verdict: Nothing judges the last step 'nul', and the reward of a case is that of its last step: it is always 0.",
        )
        "#);
}

#[test]
fn steps_can_not_read_what_earlier_steps_left() {
    let config = STEPS.replace("Build {task}", "{{ steps.plan.output }}");
    let world = World::new(&[("eval.yaml", &config), ("cases/a/input.yaml", "task: it\n")]);
    let built = world.build(&Options::default());
    assert!(built.packages.is_empty());
    assert!(
        built
            .findings
            .iter()
            .any(|found| found.starts_with("error steps-reference-in-package")),
        "{:?}",
        built.findings
    );
}

#[test]
fn a_batch_package_has_its_own_batch() {
    let world = World::new(&[
        (
            "eval.yaml",
            "name: b\ndataset: {path: cases}\nexecution: {mode: batch, prompt: go}\njudges: [{name: j, check: return True}]\n",
        ),
        ("cases/a/input.yaml", "x: 1\n"),
        ("cases/b/input.yaml", "x: 2\n"),
    ]);
    golden!("batch", world.build(&Options::default()).packages);
}

#[test]
fn native_tasks_pass_unchanged() {
    let files = [
        (
            "tasks/one/task.toml",
            "# mine\n[task]\nname = 'me/first'\n[environment]\ndocker_image = 'x'\n",
        ),
        ("tasks/one/instruction.md", "Do.\r\n"),
        ("tasks/one/environment/data.txt", "1"),
        ("tasks/one/tests/test.sh", "#!/bin/sh\necho 1\n"),
        ("tasks/one/tests/.harborignore", "*.tmp\n"),
        ("tasks/one/tests/x.tmp", ""),
        ("tasks/two/task.toml", ""),
        ("tasks/two/instruction.md", "Do it.\n"),
        ("tasks/two/environment/Dockerfile", "FROM scratch\n"),
        ("tasks/two/environment/src/a.py", "1"),
        ("tasks/two/tests/test.sh", "#!/bin/sh\necho 1\n"),
    ];
    let world = World::new(&files);
    let built = world.build_at("tasks", &Options::default());
    assert_eq!(built.packages.len(), 2, "{:?}", built.findings);
    for package in &built.packages {
        let name = package.name.as_str();
        let own: Vec<_> = files
            .iter()
            .filter_map(|(path, text)| Some((path.strip_prefix(&format!("tasks/{name}/"))?, *text)))
            .collect();
        assert_eq!(package.tree.len(), own.len(), "{:?}", paths(package));
        for (path, expected) in own {
            assert_eq!(text(package, path), expected, "{path}");
        }
        digest(&package.tree).unwrap();
    }
    assert_eq!(built.packages[0].task_name, "me/first");
    assert_eq!(built.packages[1].task_name, "tasks/two");
    assert!(digest(&built.packages[0].tree) != digest(&built.packages[1].tree));
}

#[test]
fn findings_name_what_packages_leave_out() {
    let world = World::new(&[
        (
            "eval.yaml",
            r#"
name: f
dataset: {path: cases, workspace: {files: [Dockerfile, "notes~"]}}
execution:
  prompt: go
  env: {API_TOKEN: abcdefgh123, "a-b": c, OK: $OK}
runner: {type: claude-code, effort: high}
hooks:
  before_each: [{command: ./stage.sh}]
  after_all: [{command: "true"}]
judges:
  - {name: asks, prompt: "good?", feedback_type: bool}
  - {name: deep, prompt: p, agent: {timeout: 5}, feedback_type: bool, model: m}
  - {name: told, prompt: p, feedback_type: bool, model: "runner:/m"}
  - {name: own, builtin: efficiency/cost_budget}
"#,
        ),
        ("cases/a/input.yaml", "x: 1\n"),
        ("cases/a/Dockerfile", "FROM x\n"),
        ("cases/a/notes~", "x\n"),
    ]);
    let mut findings = world.build(&Options::default()).findings;
    findings.retain(|found| !found.contains("schema-"));
    insta::assert_debug_snapshot!(findings, @r#"
        [
            "warning hooks-not-portable: Hooks do not run in packages (before_each, after_all): what they stage or check is missing there.",
            "warning llm-judge-without-model: The judge 'asks' asks a model, and none is named: it ends in an error when a package is verified.",
            "warning bundled-verifier-limits: The judge 'deep' ends in an error in packages: agent judges need the harness.",
            "warning bundled-verifier-limits: The judge 'told' ends in an error in packages: a runner:/ model is asked through the harness.",
            "note agent-option-ignored: Packages say what to do, not which agent does it; left out: runner.effort.",
            "warning secret-literal: The value of 'API_TOKEN' looks like a secret and would be written into every package in clear.",
            "error bad-value: 'a-b' can not be set in an environment.",
        ]
        "#);
    world.file(
        "eval.yaml",
        b"name: f\ndataset: {path: cases, workspace: {files: [Dockerfile, 'notes~']}}\nexecution: {prompt: go}\n",
    );
    let options = Options {
        image: Some("x".to_owned()),
        ..Options::default()
    };
    insta::assert_debug_snapshot!(world.build(&options).findings, @r#"
        [
            "warning no-verdict: Nothing judges the cases: every package reports the reward 0 and says so.",
            "error harbor-environment-name: With an image, 'Dockerfile' at the top of the workspace makes Harbor build it and upload nothing of the workspace.",
            "warning harbor-digest-ignores: Harbor leaves 'notes~' of the workspace out of its digest because of its name.",
        ]
        "#);
}

#[test]
fn judges_without_a_model_are_what_the_harness_keeps() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../shared/vectors/aeh/bundle_and_tools.json"
    );
    let Ok(vectors) = fs::read(path) else {
        println!("skipped: no vectors at {path}");
        return;
    };
    let vectors: serde_json::Value = serde_json::from_slice(&vectors).unwrap();
    let rows = vectors["bundled"].as_array().unwrap();
    assert!(rows.len() >= 6);
    for row in rows {
        let name = row["name"].as_str().unwrap();
        let world = World::new(&[
            ("eval.yaml", row["eval_yaml"].as_str().unwrap()),
            ("m.py", ""),
            ("f.md", ""),
            ("cases/a/input.yaml", "x: 1\n"),
        ]);
        let options = Options {
            no_llm_judges: row["options"]["no_llm_judges"] == true,
            judge_model: row["options"]["judge_model"].as_str().map(str::to_owned),
            ..Options::default()
        };
        let mut diags = Diagnostics::default();
        let request = LoadRequest {
            path: Path::new("eval.yaml"),
            format: None,
            project_root: None,
            cwd: world.dir.path(),
            home: None,
            plugin_dirs: &[],
        };
        let dataset = dataset::load(&request, &mut diags);
        let dataset = dataset.unwrap_or_else(|| panic!("{name}: {diags:?}"));
        let judging = Judging::new(&dataset.verification, &options);
        let part = Part {
            step: None,
            last: true,
        };
        let text = String::from_utf8(judging.eval_yaml(&dataset, part)).unwrap();
        let source = crate::diag::Source::new("eval.yaml", text);
        let config = crate::yaml::parse(Arc::new(source)).unwrap().root.value;
        let at = |keys: &[&str]| {
            let mut value = &config;
            for key in keys {
                value = &value.get(key)?.value;
            }
            Some(value.clone())
        };
        let text_at = |keys: &[&str]| at(keys).map(|value| value.as_str().unwrap().to_owned());
        let Some(Yaml::Seq(judges)) = at(&["judges"]) else {
            panic!("{name}: no judges");
        };
        let judges: Vec<_> = judges
            .iter()
            .map(|judge| judge.value.get("name").unwrap().value.as_str().unwrap())
            .collect();
        let wanted = &row["bundled"];
        assert_eq!(json!(judges), wanted["judges"], "{name}");
        assert_eq!(
            json!(text_at(&["dataset", "path"])),
            wanted["dataset_path"],
            "{name}"
        );
        assert_eq!(
            at(&["reward"]).is_none(),
            wanted["reward"].is_null(),
            "{name}"
        );
        if let Some(formula) = wanted["reward"].get("formula") {
            assert_eq!(&json!(text_at(&["reward", "formula"])), formula, "{name}");
        }
        if let Some(judge) = wanted["models"].get("judge") {
            assert_eq!(&json!(text_at(&["models", "judge"])), judge, "{name}");
        }
    }
}

#[test]
fn config_is_canonical_json() {
    let built = triage().build(&Options::default());
    let config = text(&built.packages[0], "tests/config.json");
    let value: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(format!("{value}\n"), config);
}

#[test]
fn options_come_from_flags_then_from_the_dataset() {
    let value = |text: &str| OptionValue {
        text: text.to_owned(),
        place: None,
    };
    let dataset = BTreeMap::from([
        ("agent_timeout".to_owned(), value("12.5")),
        ("image".to_owned(), value("a:1")),
        ("no-llm-judges".to_owned(), value("true")),
        ("verifier".to_owned(), value("harness")),
        ("workdir".to_owned(), value("/srv//w/")),
    ]);
    let flags = Flags {
        image: Some("b:2".to_owned()),
        ..Flags::default()
    };
    let mut diags = Diagnostics::default();
    let options = Options::from_settings(&flags, &dataset, &mut diags);
    assert!(diags.is_empty());
    let expected = Options {
        image: Some("b:2".to_owned()),
        agent_timeout_sec: Some(12.5),
        no_llm_judges: true,
        verifier: VerifierKind::Harness,
        workdir: "/srv/w".to_owned(),
        ..Options::default()
    };
    assert_eq!(options, expected);
    for (name, bad) in [
        ("workdir", "work"),
        ("workdir", "/a b"),
        ("workdir", "/"),
        ("workdir", "/a/../b"),
        ("workdir", "/tests"),
        ("agent-timeout", "0"),
        ("verifier-timeout", "inf"),
        ("agent-timeout", "soon"),
        ("image", "a b"),
        ("base-image", "a\nRUN x"),
        ("base-image", ""),
        ("verifier", "Harness"),
        ("profile", "lax"),
        ("agent-user", "a b"),
        ("org", "a/b"),
        ("judge-model", " "),
        ("no-llm-judges", "maybe"),
    ] {
        let mut diags = Diagnostics::default();
        let dataset = BTreeMap::from([(name.to_owned(), value(bad))]);
        let options = Options::from_settings(&Flags::default(), &dataset, &mut diags);
        assert_eq!(options, Options::default(), "{name} {bad:?}");
        let found: Vec<_> = diags.iter().map(|found| found.rule).collect();
        assert_eq!(found, [Rule::BadValue], "{name} {bad:?}");
    }
    assert!(Options::NAMES.is_sorted());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Whatever a case is called and holds: the package has the files and names that Harbor needs,
    /// the workspace is in it as it is, and no answer key is below `environment/`.
    #[test]
    fn every_package_is_what_harbor_loads(
        id in "[a-zA-Z0-9 ._é-]{1,12}x",
        names in prop::collection::btree_set("[a-zA-Z.~ é\\[\"$\\\\-]{1,8}q", 1..5),
        image in any::<bool>(),
    ) {
        prop_assume!(!id.starts_with('.'));
        let world = triage();
        let case = format!("cases/{id}");
        world.file(&format!("{case}/input.yaml"), b"ticket: T\n");
        world.file(&format!("{case}/thread.md"), b"t");
        for name in &names {
            world.file(&format!("{case}/deep/{name}"), b"key");
        }
        let options = Options {
            image: image.then(|| "x".to_owned()),
            ..Options::default()
        };
        let built = world.build(&options);
        let package = built.packages.iter().find(|package| {
            text(package, "task.toml").contains(&format!("case_id = \"{id}\""))
        });
        let package = package.unwrap();
        let all = paths(package);
        for needed in ["task.toml", "instruction.md", "tests/test.sh", "tests/judge.py", "tests/config.json"] {
            prop_assert!(all.contains(&needed));
        }
        prop_assert_eq!(name::part(package.name.as_str(), ""), package.name.as_str());
        let place = if image { "environment" } else { "environment/workspace" };
        let workspace = package.tree.below(&TreePath::new(place).unwrap());
        let found: Vec<_> = workspace.iter().map(|(path, _)| path.as_str()).collect();
        prop_assert_eq!(found, ["input.yaml", "skill.md", "thread.md"]);
        for name in &names {
            let key = format!("tests/evaluation/deep/{name}");
            prop_assert!(all.contains(&&*key) || name.ends_with('~'), "{} {:?}", key, all);
        }
        prop_assert!(text(package, "task.toml").contains(&workspace.id().to_string()));
        toml_edit::Document::parse(text(package, "task.toml")).unwrap();
        digest(&package.tree).unwrap();
    }
}
