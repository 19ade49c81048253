//! Tests of native Harbor tasks and of `casepack.yaml`.

use super::super::tests::{Project, request, rules, snapshot, told};
use super::super::*;

fn task(project: Project, name: &str, toml: &str) -> Project {
    project
        .file(&format!("{name}/task.toml"), toml)
        .file(&format!("{name}/instruction.md"), "Do it.\n")
        .file(
            &format!("{name}/tests/test.sh"),
            "echo 1 > /logs/verifier/reward.txt\n",
        )
        .file(&format!("{name}/environment/Dockerfile"), "FROM scratch\n")
}

fn read(project: &Project, path: &str) -> (Option<Dataset>, Vec<Case>, Diagnostics) {
    let (dataset, mut diags) = project.load_path(path);
    let mut cases = Vec::new();
    if let Some(dataset) = &dataset {
        for id in &dataset.cases {
            cases.extend(dataset.read_case(id, &mut diags));
        }
    }
    (dataset, cases, diags)
}

const GOOD: &str = r#"schema_version = "1.4"
artifacts = ["/logs/x", {source = "/out", destination = "out"}]

[task]
name = "org/good"
authors = [{name = "A"}]
keywords = ["k"]

[metadata]
difficulty = "easy"
score = 5

[environment]
docker_image = "python:3.12"
cpus = 0.5
memory_mb = 512
env = {A = "${B:-c}"}

[[environment.mcp_servers]]
name = "m"
url = "http://m"

[agent]
timeout_sec = 60

[verifier]
user = 1000
"#;

#[test]
fn reads_a_directory_of_tasks_and_a_single_one() {
    let project = task(Project::new(), "tasks/good", GOOD);
    let project = task(project, "tasks/plain", "");
    let project = project
        .file("tasks/README.md", "x")
        .file("tasks/no-task/x", "");
    let (dataset, cases, diags) = read(&project, "tasks");
    let dataset = dataset.unwrap();
    assert_eq!(told(&diags), "");
    assert_eq!(
        (dataset.format, dataset.name.as_str()),
        (Format::HarborTask, "tasks")
    );
    let names: Vec<_> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(names, ["good", "plain"]);
    let good = &cases[0];
    assert_eq!(good.image.as_deref(), Some("python:3.12"));
    assert_eq!(
        good.metadata.get("difficulty").map(String::as_str),
        Some("easy")
    );
    assert!(!good.metadata.contains_key("score"));
    assert_eq!(
        (good.steps[0].timeout_sec, good.multi_step),
        (Some(60.0), false)
    );
    assert!(matches!(&good.steps[0].instruction, Instruction::Text(text) if text == "Do it."));
    assert_eq!(
        (good.material.rest, good.verifier),
        (Rest::HarborTask, Verifier::Own)
    );

    for path in ["tasks/good", "tasks/good/task.toml"] {
        let (dataset, cases, diags) = read(&project, path);
        assert_eq!(told(&diags), "");
        assert_eq!(dataset.unwrap().cases[0].as_str(), "good");
        assert_eq!((cases.len(), &cases[0].material.dir), (1, &None));
    }
}

#[test]
fn steps_have_their_own_files() {
    let toml = r#"multi_step_reward_strategy = "final"
[agent]
timeout_sec = 60
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
[steps.agent]
timeout_sec = 5.5
"#;
    let project = Project::new()
        .file("t/task.toml", toml)
        .file("t/environment/Dockerfile", "FROM scratch\n")
        .file("t/tests/test.sh", "x")
        .file("t/steps/one/instruction.md", "One.\n\n")
        .file("t/steps/two/instruction.md", "Two.");
    let (_, cases, diags) = read(&project, "t");
    assert_eq!(told(&diags), "");
    let steps: Vec<_> = cases[0]
        .steps
        .iter()
        .map(|step| (step.id.as_deref(), step.timeout_sec))
        .collect();
    assert_eq!(steps, [(Some("one"), Some(60.0)), (Some("two"), Some(5.5))]);
    assert!(matches!(&cases[0].steps[0].instruction, Instruction::Text(text) if text == "One.\n"));
}

#[test]
fn tells_why_harbor_would_skip_a_task() {
    let mut project = Project::new();
    for (name, toml) in [
        ("bad-hosts", "[agent]\nallowed_hosts = []\n"),
        ("bad-name", "[task]\nname = \"my task\"\n"),
        ("bad-toml", "[task\n"),
        (
            "bad-types",
            "[environment]\nenv = {A = 1}\nos = \"mac\"\nmemory_mb = \"much\"\n[verifier]\nenvironment_mode = \"shared\"\n[verifier.environment]\n",
        ),
        ("bad-version", "schema_version = 1.4\n"),
        (
            "misplaced",
            "[task]\nname = \"a/b\"\nschema_version = \"1.4\"\n[agent]\ntimout_sec = 5\nnew_key = 1\n",
        ),
        ("no-name", "[task]\nversion = \"\"\n"),
        (
            "steps",
            "[[steps]]\nname = \"a\"\n[[steps]]\nname = \"A\"\n[[steps]]\nname = \"nul.txt\"\n[[steps]]\n",
        ),
    ] {
        project = task(project, &format!("tasks/{name}"), toml);
    }
    let project = project
        .file("tasks/empty/task.toml", "")
        .file(
            "tasks/windows/task.toml",
            "[environment]\nos = \"Windows\"\ndocker_image = \"w\"\n",
        )
        .file("tasks/windows/instruction.md", "x")
        .file("tasks/windows/tests/test.sh", "x")
        .file(
            "tasks/bundled/task.toml",
            "[verifier.environment]\ndocker_image = \"v\"\n[environment]\ndocker_image = \"w\"\n",
        )
        .file("tasks/bundled/instruction.md", "x");
    let project = task(project, "tasks/links", "");
    let project = project
        .link("tasks/links/tests/out", "/etc")
        .link("tasks/links/tests/circle", ".")
        .link("tasks/links/environment/loop", "loop")
        .link("tasks/links/environment/fine", "/etc")
        .link("tasks/links/solution/fine", "../instruction.md");
    let project = task(project, "tasks/latin", "");
    std::fs::write(project.path().join("tasks/latin/instruction.md"), b"\xe9").unwrap();
    let (_, cases, diags) = read(&project, "tasks");
    snapshot("harbor-tasks", &told(&diags));
    let good: Vec<_> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(good, ["bundled", "misplaced"]);
}

#[test]
fn casepack_yaml_says_what_tasks_share() {
    let project = task(Project::new(), "lib/tasks/a", "").file(
        "lib/casepack.yaml",
        "image: python:3\nstage_skill: false\nno-llm-judges: true\ndataset:\n  path: tasks\n  workspace:\n    files:\n      - {dest: guide.md, source: docs/guide.md}\n",
    );
    for path in ["lib", "lib/casepack.yaml"] {
        let (dataset, cases, diags) = read(&project, path);
        let dataset = dataset.unwrap();
        assert_eq!(told(&diags), "");
        assert_eq!((dataset.format, cases.len()), (Format::HarborTask, 1));
        assert_eq!(dataset.shared[0].field, "dataset.workspace.files[0]");
        let options: Vec<_> = dataset
            .options
            .iter()
            .map(|(name, value)| (name.as_str(), value.text.as_str()))
            .collect();
        assert_eq!(options, [("image", "python:3"), ("no-llm-judges", "true")]);
    }
}

#[test]
fn casepack_yaml_belongs_to_the_config_it_names() {
    let project = Project::new()
        .file(
            "sub/eval.yaml",
            "dataset: {path: cases}\nexecution: {prompt: x}\ncasepack: {image: old, workdir: /w}\n",
        )
        .file(
            "sub/other.yaml",
            "dataset: {path: cases}\nexecution: {prompt: y}\n",
        )
        .file("sub/cases/one/input.yaml", "a: b")
        .file("sub/casepack.yaml", "config: other.yaml\nimage: new\n")
        .file("casepack.yaml", "config: sub/eval.yaml\nimage: top\n");
    let image = |path: &str| {
        let (dataset, diags) = project.load_path(path);
        assert!(!diags.has_errors(), "{}", told(&diags));
        let dataset = dataset.unwrap();
        let name = dataset
            .sources
            .config
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        (
            name,
            dataset.options.get("image").map(|value| value.text.clone()),
        )
    };
    assert_eq!(image("."), ("eval.yaml".into(), Some("top".into())));
    assert_eq!(image("sub"), ("other.yaml".into(), Some("new".into())));
    assert_eq!(
        image("sub/eval.yaml"),
        ("eval.yaml".into(), Some("old".into()))
    );
    assert_eq!(
        image("sub/other.yaml"),
        ("other.yaml".into(), Some("new".into()))
    );
}

#[test]
fn a_path_is_recognised_or_refused_with_a_reason() {
    let project = task(Project::new(), "both/task-a", "")
        .file(
            "both/eval.yaml",
            "dataset: {path: cases}\nexecution: {prompt: x}\n",
        )
        .file("both/cases/one/input.yaml", "a: b")
        .file("empty/x", "")
        .file("hinted/eval/demo/eval.yaml", "name: x")
        .file("notes.txt", "x")
        .file(
            "bad/casepack.yaml",
            "config: nowhere.yaml\ndataset: {path: x}\n",
        );
    let mut text = String::new();
    for path in ["both", "empty", "hinted", "nowhere", "notes.txt", "bad"] {
        let (dataset, diags) = project.load_path(path);
        assert!(dataset.is_none());
        text.push_str(&told(&diags).replace(&project.path().display().to_string(), "[PROJECT]"));
    }
    snapshot("paths", &text);
    let cwd = project.path();
    for (format, cases) in [(Format::EvalYaml, "one"), (Format::HarborTask, "task-a")] {
        let wanted = LoadRequest {
            format: Some(format),
            ..request(&cwd, Path::new("both"))
        };
        let mut diags = Diagnostics::default();
        let dataset = load(&wanted, &mut diags).unwrap();
        assert_eq!(dataset.cases[0].as_str(), cases);
    }
    assert!(rules(&text).contains(&"dataset-ambiguous"));
}

#[test]
fn the_project_is_the_current_directory_or_the_configs() {
    let project = Project::new()
        .file(
            "sub/eval.yaml",
            "dataset: {path: cases}\nexecution: {prompt: x}\n",
        )
        .file("sub/cases/one/input.yaml", "a: b")
        .file("other/x", "");
    let top = project.path();
    let root = |cwd: &Path, path: &str, given: Option<&str>| {
        let wanted = LoadRequest {
            project_root: given.map(Path::new),
            ..request(cwd, Path::new(path))
        };
        let dataset = load(&wanted, &mut Diagnostics::default()).unwrap();
        dataset
            .sources
            .project
            .strip_prefix(&top)
            .unwrap()
            .display()
            .to_string()
    };
    assert_eq!(root(&top, "sub", None), "");
    assert_eq!(root(&top.join("other"), "../sub/eval.yaml", None), "sub");
    assert_eq!(root(&top, "sub", Some("other")), "other");
}
