//! Tests of whole configs and their cases.

use super::super::tests::{Project, request, rules, snapshot, told};
use super::super::*;
use crate::diag::{Levels, Severity};

#[test]
fn twelve_mistakes_are_twelve_findings() {
    let project = Project::new().eval(
        include_str!("../../../examples/mistakes/eval.yaml"),
        &["one"],
    );
    let (dataset, diags) = project.load();
    assert!(dataset.is_some());
    snapshot("twelve", &told(&diags));
    assert_eq!(diags.iter().count(), 12, "{}", told(&diags));
    let fields: Vec<_> = diags
        .iter()
        .filter_map(|item| item.field.as_deref())
        .collect();
    assert!(fields.contains(&"dataset.workspace.files[2]"));
    assert!(
        diags
            .iter()
            .all(|item| item.place.is_some() && !item.help.is_empty())
    );
}

#[test]
fn a_full_config_has_no_finding_and_loses_nothing() {
    let project = Project::new()
        .eval(FULL, &["one", "two"])
        .file("cases/one/annotations.yaml", "dup: true\n")
        .file("cases/two/annotations.yaml", "dup: false\n")
        .file("guide.md", "guide")
        .file("prompts/q.md", "judge it")
        .file("docs/c.md", "context")
        .file("judges/code.py", "def f(outputs): return True")
        .file("handlers/ask.md", "say yes")
        .file(".claude/skills/triage/SKILL.md", "skill")
        .file("tool_handlers.yaml", "handlers: []");
    let (dataset, mut diags) = project.load();
    let dataset = dataset.unwrap();
    let mut coverage = Coverage::new(&dataset);
    for id in &dataset.cases {
        coverage.add(&coverage.values(&dataset.read_case(id, &mut diags).unwrap()));
    }
    coverage.finish(&dataset, &mut diags);
    assert_eq!(told(&diags), "");

    assert_eq!(
        (dataset.name.as_str(), dataset.description.as_str()),
        ("full", "everything")
    );
    assert_eq!(dataset.skills.len(), 1);
    let files: Vec<_> = dataset
        .judge_files
        .iter()
        .map(|file| file.dest.as_str())
        .collect();
    assert_eq!(files, ["prompts/q.md", "docs/c.md", "judges/code.py"]);
    let judges = &dataset.verification.judges;
    assert_eq!(
        judges[1].prompt_file.as_ref().unwrap().as_str(),
        "prompts/q.md"
    );
    assert_eq!(judges[1].context[0].as_str(), "docs/c.md");
    assert_eq!(
        (judges[1].score_range, judges[1].samples),
        (Some((0.0, 2.0)), 3)
    );
    assert_eq!(
        judges[0].condition.as_deref(),
        Some("annotations.get('dup')")
    );
    assert_eq!(
        judges[0].check_place.as_ref().unwrap().source.name,
        "eval.yaml"
    );
    let reward = dataset.verification.reward.as_ref().unwrap();
    assert_eq!(
        (reward.weights["chk"], reward.gate, &reward.raw),
        (2.0, true, &vec!["chk".to_owned()])
    );
    let outputs = &dataset.verification.outputs;
    assert_eq!(outputs[0].path.as_ref().unwrap().as_str(), "out/report");
    assert!(outputs[0].directory && outputs[1].path.is_none() && outputs[1].tool == "mcp__x");
    assert!(!dataset.verification.traces.stdout && dataset.verification.traces.stderr);
    assert_eq!(dataset.verification.thresholds["q"].min_mean, Some(1.5));
    assert_eq!(dataset.verification.judge_model.as_deref(), Some("m-judge"));
    let execution = &dataset.execution;
    assert_eq!(execution.env["PORT"], "8080");
    assert_eq!(
        (execution.timeout_sec, execution.parallelism),
        (Some(90.0), Some(4))
    );
    assert_eq!(
        execution.runner.command,
        Some(RunnerCommand::List(vec!["agent".into(), "{args}".into()]))
    );
    let interception = &dataset.interception;
    assert_eq!(
        interception.tools[0].prompt_text.as_deref(),
        Some("say yes")
    );
    assert_eq!(interception.permissions.deny.len(), 2);
    assert_eq!(
        interception.handlers_file.as_ref().unwrap().1.as_str(),
        "tool_handlers.yaml"
    );
    assert_eq!(interception.settings["model"], "x");
    assert_eq!(
        (dataset.hooks[0].phase, dataset.hooks[0].fail),
        (Phase::BeforeEach, false)
    );
    assert_eq!(dataset.options["image"].text, "python:3");
    assert_eq!(dataset.options["no-llm-judges"].text, "true");
    assert_eq!(dataset.options["target"].text, "harbor,bundle");
    assert_eq!(dataset.shared[0].source, "guide.md");
    let case = dataset.read_case(&dataset.cases[0], &mut diags).unwrap();
    let listed: Vec<_> = case
        .material
        .listed
        .iter()
        .map(|entry| (entry.source.as_str(), entry.by_user))
        .collect();
    assert_eq!(
        listed,
        [
            ("input.yaml", false),
            ("answers.yaml", false),
            ("src", true),
            ("a.md", true)
        ]
    );
    assert!(
        matches!(&case.steps[0].instruction, Instruction::Text(text) if text == "Be brief.\n\n/triage --p do it")
    );
}

const FULL: &str = r#"name: full
description: everything
unknown_block_of_another_tool: {x: 1}
dataset:
  path: cases
  schema: Each case has a 'prompt'; annotations have 'dup'.
  workspace:
    files:
      - src/
      - a.md
      - {dest: docs/guide.md, source: guide.md}
execution:
  mode: case
  skill: triage
  arguments: "--p {prompt}"
  timeout: 90
  max_budget_usd: 2.5
  parallelism: 4
  env: {PORT: 8080, TOKEN: $TOKEN}
runner:
  type: cli
  command: [agent, "{args}"]
  settings: {model: x, enabledPlugins: {"*": true}}
  env: {A: b}
  system_prompt: |
    Be brief.
  effort: high
  permission_mode: plan
models: {skill: m, subagent: m-sub, judge: m-judge, hook: m-hook}
mlflow: {experiment: e, tracking_uri: u, tags: {a: b}}
permissions:
  allow: [Read]
  deny: ["mcp__*", {path: eval/, tools: [Read]}]
outputs:
  - {path: ./out//report/, schema: s, batch_pattern: "R-{n}", types: {"*.md": report}}
  - {tool: mcp__x}
inputs:
  tools:
    - {match: AskUserQuestion, prompt_file: handlers/ask.md}
traces: {stdout: false}
judges:
  - name: chk
    description: d
    if: annotations.get('dup')
    check: |
      return True
  - {name: q, prompt_file: prompts/q.md, context: [docs/c.md], feedback_type: int, score_range: [0, 2], model: m, samples: 3}
  - {name: code, module: judges.code, function: f, arguments: {x: 1}}
  - {name: cost, builtin: efficiency/cost_budget}
  - {name: short, builtin: no_harmful_content}
  - {name: deep, prompt: p, feedback_type: bool, agent: {timeout: 60, runner: {type: claude-code}}}
reward: {weights: {chk: 2, q: 1}, raw: chk}
thresholds:
  q: {min_mean: 1.5}
  chk: {min_pass_rate: 1, max_error_rate: 0.1}
hooks:
  before_each: [{command: ./stage.sh, timeout: 10, on_failure: continue, description: d, condition: "true"}]
generation:
  strategy: synthetic
  context: {a: b}
  seeds: [{category: a, count: 2, prompt: p}]
casepack:
  image: python:3
  no_llm_judges: true
  target: [harbor, bundle]
"#;

#[test]
fn every_rejection_has_its_rule_and_its_field() {
    for (text, rule, field) in REJECTED {
        let mut config = (*text).to_owned();
        if !text.contains("dataset:") {
            config.push_str("\ndataset: {path: cases}");
        }
        if !text.contains("execution") {
            config.push_str("\nexecution: {prompt: x}");
        }
        let project = Project::new().eval(&config, &["one"]);
        let (_, diags) = project.load();
        let found: Vec<_> = diags
            .iter()
            .filter(|item| item.severity > Severity::Note)
            .map(|item| (item.rule.name(), item.field.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(found, [(*rule, *field)], "{config}\n{}", told(&diags));
        assert!(
            diags
                .iter()
                .all(|item| !item.help.is_empty() && item.message.ends_with('.'))
        );
    }
}

/// Configs and their one finding: rule and config path.
const REJECTED: &[(&str, &str, &str)] = &[
    (
        "dataset: {path: cases, workspace: {files: [a/../b]}}",
        "parent-traversal",
        "dataset.workspace.files[0]",
    ),
    (
        "dataset: {path: cases, workspace: {files: [true]}}",
        "wrong-type",
        "dataset.workspace.files[0]",
    ),
    (
        "dataset: {path: cases, workspace: {files: src}}",
        "wrong-type",
        "dataset.workspace.files",
    ),
    (
        "dataset: {path: cases, workspace: {files: {dest: a, source: b}}}",
        "wrong-type",
        "dataset.workspace.files",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dest: '', source: b}]}}",
        "empty",
        "dataset.workspace.files[0].dest",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dest: a, source: ''}]}}",
        "empty",
        "dataset.workspace.files[0].source",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dest: a, source: [b]}]}}",
        "wrong-type",
        "dataset.workspace.files[0].source",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dest: /, source: b}]}}",
        "root",
        "dataset.workspace.files[0].dest",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dest: a/../.., source: b}]}}",
        "parent-traversal",
        "dataset.workspace.files[0].dest",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{source: b}]}}",
        "missing-key",
        "dataset.workspace.files[0]",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dst: a, source: b}]}}",
        "missing-key",
        "dataset.workspace.files[0]",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dest: a, source: b, 1: c}]}}",
        "wrong-type",
        "dataset.workspace.files[0]",
    ),
    (
        "dataset: {path: cases, workspace: {files: [{dest: \"a\\0b\", source: b}]}}",
        "bad-segment",
        "dataset.workspace.files[0].dest",
    ),
    (
        "dataset: {path: cases, workspace: {fils: []}}",
        "unknown-key",
        "dataset.workspace.fils",
    ),
    (
        "dataset: {path: cases, shema: x}",
        "unknown-key",
        "dataset.shema",
    ),
    ("dateset: {path: x}", "unknown-key", "dateset"),
    ("extends: base.yaml", "unsupported", "extends"),
    (
        "execution: {skill: s, prompt: p}",
        "mutually-exclusive",
        "execution",
    ),
    ("execution: {prompt: [a]}", "wrong-type", "execution.prompt"),
    (
        "execution: {prompt: x, timeout: 0}",
        "bad-value",
        "execution.timeout",
    ),
    (
        "execution: {prompt: x, max_budget_usd: -1}",
        "bad-value",
        "execution.max_budget_usd",
    ),
    (
        "execution: {prompt: x, parallelism: 1.5}",
        "bad-value",
        "execution.parallelism",
    ),
    (
        "execution: {prompt: x, env: {A: [b]}}",
        "wrong-type",
        "execution.env.A",
    ),
    (
        "execution: {prompt: x, env: {A: \"b\\0c\"}}",
        "bad-value",
        "execution.env.A",
    ),
    (
        "execution: {prompt: x, env: {A=B: c}}",
        "bad-segment",
        "execution.env.A=B",
    ),
    (
        "execution: {prompt: x, env: [A]}",
        "wrong-type",
        "execution.env",
    ),
    ("execution: {}", "missing-key", "execution"),
    (
        "execution: {steps: [{id: a, prompt: p}, {id: b}]}",
        "missing-key",
        "execution.steps[1]",
    ),
    (
        "execution: {steps: [{id: \"a\\x01\", prompt: p}]}",
        "bad-segment",
        "execution.steps[0].id",
    ),
    (
        "execution: {steps: [{id: a, prompt: p, max_budget_usd: true}]}",
        "bad-value",
        "execution.steps[0].max_budget_usd",
    ),
    (
        "execution: {steps: [{id: a, prompt: p, env: x}]}",
        "wrong-type",
        "execution.steps[0].env",
    ),
    (
        "execution: {steps: [{id: a, prompt: p, promt: x}]}",
        "unknown-key",
        "execution.steps[0].promt",
    ),
    (
        "skill: s\nexecution: {mode: case}",
        "deprecated-field",
        "skill",
    ),
    (
        "runner: {type: codex, workspace_mode: repo}",
        "unsupported",
        "runner.type",
    ),
    (
        "execution: {steps: [{id: a, prompt: p, runner: {type: codex}}]}\ninputs: {tools: [{match: x}]}",
        "unsupported",
        "execution.steps[0].runner.type",
    ),
    ("runner: {settings: [a]}", "wrong-type", "runner.settings"),
    (
        "runner: {plugin_dirs: [nowhere]}",
        "plugin-dir-refused",
        "runner.plugin_dirs[0]",
    ),
    (
        "runner: {plugin_dirs: [/]}",
        "plugin-dir-refused",
        "runner.plugin_dirs[0]",
    ),
    (
        "runner: {plugin_dirs: [..]}",
        "plugin-dir-refused",
        "runner.plugin_dirs[0]",
    ),
    (
        "runner: {plugin_dirs: [5]}",
        "plugin-dir-refused",
        "runner.plugin_dirs[0]",
    ),
    ("models: {judge: [a]}", "wrong-type", "models.judge"),
    ("outputs: {path: a}", "wrong-type", "outputs"),
    ("outputs: [a]", "wrong-type", "outputs[0]"),
    ("outputs: [{}]", "missing-key", "outputs[0]"),
    ("traces: {stdout: 'no'}", "wrong-type", "traces.stdout"),
    (
        "judges: [{name: a, check: x}, {name: a, check: y}]",
        "duplicate",
        "judges[1].name",
    ),
    (
        "judges: [{name: reward, check: x}]",
        "reserved-judge-name",
        "judges[0].name",
    ),
    ("judges: [{check: x}]", "missing-key", "judges[0].name"),
    (
        "judges: [{name: j, module: m}]",
        "judge-without-kind",
        "judges[0]",
    ),
    (
        "judges: [{name: j, prompt: p}]",
        "score-range-missing",
        "judges[0]",
    ),
    (
        "judges: [{name: j, prompt: p, score_range: [1, .inf]}]",
        "bad-value",
        "judges[0].score_range",
    ),
    (
        "judges: [{name: j, prompt: p, score_range: 5}]",
        "bad-value",
        "judges[0].score_range",
    ),
    (
        "judges: [{name: j, check: x, feedback_type: boolean}]",
        "bad-value",
        "judges[0].feedback_type",
    ),
    (
        "judges: [{name: j, check: x, samples: few}]",
        "wrong-type",
        "judges[0].samples",
    ),
    (
        "judges: [{name: j, check: x, samples: 0}]",
        "bad-value",
        "judges[0].samples",
    ),
    (
        "judges: [{name: j, check: x, step: a}]",
        "bad-value",
        "judges[0].step",
    ),
    (
        "judges: [{name: j, builtin: no_harmful_content, score_range: [0, 1]}]",
        "mutually-exclusive",
        "judges[0].score_range",
    ),
    (
        "judges: [{name: j, builtin: no_harmful_contents}]",
        "bad-value",
        "judges[0].builtin",
    ),
    (
        "judges: [{name: j, prompt_file: nowhere.md, feedback_type: bool}]",
        "judge-file-missing",
        "judges[0].prompt_file",
    ),
    (
        "judges: [{name: j, check: x, context: [/etc/hosts]}]",
        "judge-file-missing",
        "judges[0].context[0]",
    ),
    (
        "judges: [{name: j, module: no.where, function: f}]",
        "judge-file-missing",
        "judges[0].module",
    ),
    (
        "judges: [{name: j, module: no/where.py, function: f}]",
        "bad-value",
        "judges[0].module",
    ),
    (
        "judges: [{name: j, check: x, agent: {runner: {workspace_mode: x}}}]",
        "bad-value",
        "judges[0].agent.runner.workspace_mode",
    ),
    ("reward: {weights: [a]}", "wrong-type", "reward.weights"),
    ("reward: {judge: a}", "bad-value", "reward.judge"),
    ("reward: {formula: '2 ** 2'}", "bad-value", "reward.formula"),
    (
        "reward: {formula: weightd}",
        "weight-unknown-judge",
        "reward.formula",
    ),
    (
        "reward: {formula: 'a * 2'}",
        "weight-unknown-judge",
        "reward.formula",
    ),
    (
        "reward: {raw: nobody}",
        "weight-unknown-judge",
        "reward.raw",
    ),
    (
        "judges: [{name: j, check: x, score_range: [0, 10]}]\nreward: {judge: j}",
        "bad-value",
        "reward.judge",
    ),
    (
        "judges: [{name: j, check: x, score_range: [0, 10]}]\nreward: {weights: {j: 1}, score_range: [1, 5]}",
        "deprecated-field",
        "reward.score_range",
    ),
    ("thresholds: {j: 5}", "wrong-type", "thresholds.j"),
    (
        "judges: [{name: qual, check: x}]\nthresholds: {qaul: {min_mean: 3}}",
        "threshold-unknown-judge",
        "thresholds.qaul",
    ),
    (
        "hooks: {before_each: [{command: x, timeout: 0}]}",
        "bad-value",
        "hooks.before_each[0].timeout",
    ),
    (
        "hooks: {before_each: {command: x}}",
        "wrong-type",
        "hooks.before_each",
    ),
    ("hooks: {before_al: []}", "unknown-key", "hooks.before_al"),
    (
        "hooks: {before_each: [{comand: x}]}",
        "missing-key",
        "hooks.before_each[0].command",
    ),
    (
        "execution: {mode: batch, prompt: x}\nhooks: {after_each: [{command: x}]}",
        "unsupported",
        "hooks.after_each",
    ),
    (
        "execution: {mode: batch, prompt: x}\ndataset: {path: cases, workspace: {files: [a, b]}}",
        "batch-files-ignored",
        "dataset.workspace.files",
    ),
    (
        "generation: {seeds: [{category: a, count: 1, prompt: p}]}",
        "bad-value",
        "generation.seeds",
    ),
    (
        "generation: {strategy: synthetic, seeds: [{category: a, count: 1}]}",
        "exactly-one",
        "generation.seeds[0]",
    ),
    (
        "generation: {strategy: synthetic, seeds: [{category: '', count: 1, prompt: p}]}",
        "empty",
        "generation.seeds[0].category",
    ),
    (
        "permissions: {allow: Read}",
        "wrong-type",
        "permissions.allow",
    ),
    (
        "permissions: {allow: [5]}",
        "wrong-type",
        "permissions.allow[0]",
    ),
    (
        "permissions: {deny: [{tools: [Read]}]}",
        "missing-key",
        "permissions.deny[0].path",
    ),
    (
        "inputs: {tools: [{prompt: x}]}",
        "missing-key",
        "inputs.tools[0].match",
    ),
    (
        "inputs: {tools: [{match: x, prompt_file: nowhere.md}]}",
        "file-unreadable",
        "inputs.tools[0].prompt_file",
    ),
    (
        "judges: [{name: [a], check: x}]\nthresholds: {a: {min_mean: 1}}",
        "wrong-type",
        "judges[0].name",
    ),
    (
        "judges: [{name: a, check: 5}]",
        "wrong-type",
        "judges[0].check",
    ),
    (
        "execution: {steps: [{id: [a], prompt: p}]}\njudges: [{name: j, check: x, step: a}]",
        "wrong-type",
        "execution.steps[0].id",
    ),
    (
        "execution: {steps: [{ids: a, prompt: p}]}",
        "empty",
        "execution.steps[0].id",
    ),
    ("casepack: {image: {a: b}}", "wrong-type", "casepack.image"),
    ("name: a\nname: b", "duplicate-key", ""),
    (
        "dataset: {path: nowhere}",
        "dataset-not-found",
        "dataset.path",
    ),
    (
        "dataset: {path: eval.yaml}",
        "dataset-not-found",
        "dataset.path",
    ),
];

#[test]
fn null_blocks_count_as_absent() {
    for block in super::BLOCKS {
        if block == "dataset" || block == "execution" {
            continue;
        }
        let text = format!("dataset: {{path: cases}}\nexecution: {{prompt: x}}\n{block}:\n");
        let (_, diags) = Project::new().eval(&text, &["one"]).load();
        assert_eq!(told(&diags), "", "{block}");
    }
}

#[test]
fn tells_what_is_wrong_with_cases() {
    let project = Project::new()
        .eval(
            "dataset: {path: cases}\nexecution: {prompt: \"Fix {ticket} for {{team?}}\"}\n"
                .replace("{{team?}}", "{team?}")
                .as_str(),
            &[],
        )
        .file("cases/broken/input.yaml", "ticket: [1\n")
        .file(
            "cases/double/input.json",
            "{\"ticket\": \"T\", \"ticket\": \"U\"}",
        )
        .file("cases/list/input.yaml", "- a\n")
        .file("cases/misnamed/Input.yaml", "ticket: T\n")
        .file("cases/missing/notes.md", "x")
        .file("cases/no-field/input.yaml", "tiket: T\nteam: t\n")
        .file("cases/null-field/input.yaml", "ticket:\n")
        .file(
            "cases/todo/input.yaml",
            "ticket: TODO_JIRA_TICKET\nmore: [{x: TODO_GH_REPO}, TODO_x, TODO_A]\n",
        )
        .file("cases/bad-annotations/input.yml", "ticket: T\n")
        .file("cases/bad-annotations/annotations.yaml", "a: b: c\n")
        .file("cases/bad-answers/input.yaml", "ticket: T\n")
        .file(
            "cases/bad-answers/answers.yaml",
            "!!python/name:os.system\n",
        )
        .file("cases/latin/input.yaml", "ticket: T\n")
        .file("cases/.hidden/x", "")
        .file("cases/__pycache__/x", "")
        .file("cases/README.md", "no case");
    std::fs::write(
        project.path().join("cases/latin/input.yaml"),
        b"a: b\nticket: \xe9\n",
    )
    .unwrap();
    let (cases, text) = project.cases();
    snapshot("cases", &text);
    let good: Vec<_> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(good, ["bad-answers", "double", "todo"]);
}

#[test]
fn links_are_followed_within_the_rules() {
    let project = Project::new()
        .eval(
            "dataset: {path: cases}\nexecution: {prompt: \"{p}\"}\n",
            &[],
        )
        .file("shared/input.yaml", "p: shared\n")
        .file("elsewhere/case/input.yaml", "p: linked case\n")
        .link("cases/a-project-file/input.yaml", "../../shared/input.yaml")
        .link("cases/b-linked-case", "../elsewhere/case")
        .link("cases/c-sibling/input.yaml", "../d-real/input.yaml")
        .file("cases/d-real/input.yaml", "p: real\n")
        .link("cases/e-outside/input.yaml", "/etc/hostname")
        .link("cases/f-dangling/input.yaml", "nowhere.yaml")
        .link("cases/g-outside-case", "/etc")
        .link("cases/h-dangling-case", "nowhere")
        .file("cases/i-annotations/input.yaml", "p: x\n")
        .link(
            "cases/i-annotations/annotations.yaml",
            "../d-real/input.yaml",
        )
        .file("cases/j-directory/input.yaml/x", "")
        .link("cases/README.md", "../shared/input.yaml");
    let (cases, text) = project.cases();
    snapshot("links", &text);
    let good: Vec<_> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(good, ["a-project-file", "b-linked-case", "d-real"]);
    // A linked case is read where it really lies.
    assert_eq!(
        cases[1].material.dir.as_ref().unwrap().as_str(),
        "elsewhere/case"
    );
}

#[test]
fn steps_wait_for_what_earlier_steps_give() {
    let project = Project::new().eval(
        r#"dataset: {path: cases}
runner: {system_prompt: "Be brief.\n"}
execution:
  steps:
    - {id: plan, prompt: "Plan {{ input.prompt }}", timeout: 5, on_failure: continue}
    - {id: 2, skill: "team:fix", arguments: "--plan {{ steps.plan.output }}", runner: {type: codex, system_prompt: "Be long."}}
    - {id: last, skill: done, env: {A: b}}
"#,
        &["one"],
    );
    let (cases, text) = project.cases();
    assert!(!text.contains("error"), "{text}");
    let case = &cases[0];
    assert!(case.multi_step);
    let ids: Vec<_> = case
        .steps
        .iter()
        .map(|step| step.id.as_deref().unwrap())
        .collect();
    assert_eq!(ids, ["plan", "2", "last"]);
    assert!(
        matches!(&case.steps[0].instruction, Instruction::Text(text) if text == "Be brief.\n\nPlan do it")
    );
    assert!(!case.steps[0].stop_on_failure && case.steps[0].timeout_sec == Some(5.0));
    let Instruction::Deferred { prefix, template } = &case.steps[1].instruction else {
        panic!("{:?}", case.steps[1].instruction)
    };
    assert_eq!(prefix, "Be long.\n\nUse the fix skill with arguments: ");
    assert_eq!(template, "--plan {{ steps.plan.output }}");
    assert!(
        matches!(&case.steps[2].instruction, Instruction::Text(text) if text == "Be brief.\n\n/done")
    );
}

#[test]
fn batch_cases_bring_their_entries() {
    let project = Project::new()
        .eval("dataset: {path: cases}\nexecution: {mode: batch, skill: s, arguments: --input batch.yaml}\n", &["one"])
        .file("cases/two/input.yaml", "- {prompt: a}\n- {prompt: b}\n");
    let (cases, text) = project.cases();
    assert!(!text.contains("error"), "{text}");
    let inputs: Vec<_> = cases.iter().map(|case| &case.input).collect();
    let whole = batch_yaml(inputs);
    let read = |text: &str| {
        let source = crate::diag::Source::new("batch.yaml", text);
        match yaml::parse(Arc::new(source)).unwrap().root.value {
            Yaml::Seq(items) => items.len(),
            _ => 0,
        }
    };
    assert_eq!(read(&whole), 3);
    let own = |case: &Case| read(std::str::from_utf8(&case.material.generated[0].2).unwrap());
    assert_eq!((own(&cases[0]), own(&cases[1])), (1, 2));
}

#[test]
fn a_canary_line_is_refused() {
    for (prompt, refused) in [
        ("# Find the CANARY bug\\nmore", true),
        ("<!-- a canary -->", true),
        ("  #canary", true),
        ("Find the # canary", false),
        ("# Bug\\n# canary", false),
    ] {
        let config = format!("dataset: {{path: cases}}\nexecution: {{prompt: \"{prompt}\"}}\n");
        let (cases, text) = Project::new().eval(&config, &["one"]).cases();
        assert_eq!(text.contains("canary-line"), refused, "{prompt}");
        assert_eq!(cases.is_empty(), refused);
    }
}

#[test]
fn a_missing_field_is_underlined_in_every_scalar_style() {
    for (scalar, line, column) in [
        ("Fix {ticket} now", 3, 15),
        ("\"Fix {ticket} now\"", 3, 16),
        ("|\n    Fix\n    {ticket} now", 5, 5),
        (">-\n    Fix\n    {ticket} now", 5, 5),
        ("\"Fix \\x7bticket} now\"", 3, 11),
    ] {
        let config = format!("dataset: {{path: cases}}\nexecution:\n  prompt: {scalar}\n");
        let project = Project::new().eval(&config, &["one"]);
        let (dataset, mut diags) = project.load();
        let dataset = dataset.unwrap();
        assert!(dataset.read_case(&dataset.cases[0], &mut diags).is_none());
        let item = diags
            .iter()
            .find(|item| item.rule == Rule::TemplateMissingField)
            .unwrap();
        let place = item.place.as_ref().unwrap();
        assert_eq!(
            place.source.position(place.range.start),
            (line, column),
            "{config}"
        );
        assert_eq!(item.field.as_deref(), Some("execution.prompt"));
    }
}

#[test]
fn cases_without_a_branch_are_told_when_all_were_seen() {
    let config = r#"dataset: {path: cases, schema: "Each case has a 'prompt'."}
execution: {prompt: "{prompt} {extra?}"}
judges:
  - {name: a, check: x, if: "annotations.get('dup')"}
  - {name: b, check: x, if: "annotations['kind'] == 'x'"}
"#;
    let project = Project::new()
        .eval(config, &["one", "two"])
        .file("cases/one/annotations.yaml", "dup: true\nkind: x\n")
        .file("cases/two/annotations.yaml", "dup: true\nkind: y\n");
    let (dataset, mut diags) = project.load();
    let dataset = dataset.unwrap();
    let mut coverage = Coverage::new(&dataset);
    let add = |index: usize, coverage: &mut Coverage, diags: &mut Diagnostics| {
        let case = dataset.read_case(&dataset.cases[index], diags).unwrap();
        let values = coverage.values(&case);
        coverage.add(&values);
    };
    add(0, &mut coverage, &mut diags);
    let mut early = Diagnostics::default();
    coverage.finish(&dataset, &mut early);
    assert!(!told(&early).contains("judge-branch-uncovered"));
    add(1, &mut coverage, &mut diags);
    coverage.finish(&dataset, &mut diags);
    snapshot("coverage", &told(&diags));
}

#[test]
fn plugins_widen_what_may_be_read() {
    let outside = tempfile::tempdir().unwrap();
    let plugin = outside.path().canonicalize().unwrap();
    std::fs::create_dir_all(plugin.join(".claude-plugin")).unwrap();
    std::fs::create_dir_all(plugin.join("abilities/fix")).unwrap();
    std::fs::write(
        plugin.join(".claude-plugin/plugin.json"),
        r#"{"skills": ["./abilities"]}"#,
    )
    .unwrap();
    std::fs::write(plugin.join("abilities/fix/SKILL.md"), "fix").unwrap();
    let config = format!(
        "dataset: {{path: cases}}\nexecution: {{skill: fix}}\nrunner: {{plugin_dirs: [{}, link, .]}}\n",
        plugin.display()
    );
    let project = Project::new().eval(&config, &["one"]).link("link", "/usr");
    let (dataset, diags) = project.load();
    let dataset = dataset.unwrap();
    assert_eq!(dataset.skills[0].path.as_str(), "abilities/fix");
    let text = told(&diags);
    assert_eq!(rules(&text), ["plugin-dir-outside", "plugin-dir-refused"]);
    // The operator's own are taken as they are.
    let (cwd, root) = (project.path(), [Path::new("/").to_path_buf()]);
    let request = LoadRequest {
        plugin_dirs: &root,
        ..request(&cwd, Path::new("."))
    };
    let dataset = load(&request, &mut Diagnostics::default()).unwrap();
    assert_eq!(dataset.sources.roots.len(), 4);
}

#[test]
fn external_placeholders_are_errors_where_the_caller_denies_them() {
    let project = Project::new()
        .eval("dataset: {path: cases}\nexecution: {prompt: x}\n", &[])
        .file("cases/one/input.yaml", "a: TODO_JIRA_KEY\n");
    let (dataset, _) = project.load();
    let dataset = dataset.unwrap();
    let levels = Levels {
        deny: [Rule::UnresolvedExternalPlaceholder].into(),
        ..Levels::default()
    };
    let mut diags = Diagnostics::new(levels);
    dataset.read_case(&dataset.cases[0], &mut diags);
    assert!(diags.has_errors());
}

#[test]
fn hostile_yaml_never_panics() {
    let deep = format!("execution: {}{}", "[".repeat(5000), "]".repeat(5000));
    let wide = format!("judges: [{}]", "{name: a}, ".repeat(3000));
    for text in [
        "",
        "~",
        "[]",
        "- a",
        "a",
        "\u{feff}name: x",
        "name: !!binary aGk=",
        "? [a]\n: b",
        "1: 2\n~: 3\ntrue: x",
        "execution: &a {steps: [*a]}",
        "judges: [&j {name: a}, *j]",
        "dataset: &d\n  path: *d",
        "name: 2024-02-31",
        "dataset: {path: \"\\0\"}",
        "dataset: {path: //}",
        "execution: {skill: \"\\0\"}",
        "outputs: [[[]]]",
        "reward: {weights: {a: .nan}}",
        "reward: {formula: [1]}",
        "thresholds: [1]",
        "hooks: [1]",
        "models: x",
        "judges: [{name: [a], check: {a: b}, context: 5, score_range: [[1], 2], samples: 1e99, step: {}}]",
        "execution: {steps: [[], 5, ~, {id: {}}], timeout: .inf, parallelism: 99999999999999999999}",
        "casepack: [1]",
        "casepack: {a: [[1]], 5: x}",
        "generation: {seeds: [5, {count: 99999999999999999999}]}",
        "runner: {command: [[1]], settings: {enabledPlugins: {\"*\": 5}}, plugin_dirs: {}, env: {\"\": a}}",
        "inputs: {tools: {}}",
        "permissions: {allow: [{path: 5, tools: 5}]}",
        &deep,
        &wide,
    ] {
        let (_, diags) = Project::new().eval(text, &["one"]).load();
        for item in diags.iter() {
            assert!(
                item.message.ends_with('.') && !item.help.is_empty(),
                "{text:?}: {item:?}"
            );
        }
    }
}

mod fuzz {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::super::BLOCKS;
    use super::*;

    /// Any YAML value, as flow text.
    fn value() -> impl Strategy<Value = String> {
        let scalar = prop_oneof![
            "[a-z{}./~\\-]{0,6}".prop_map(|text| format!("{text:?}")),
            Just("~".to_owned()),
            Just("yes".to_owned()),
            Just("5".to_owned()),
            Just("-1.5".to_owned()),
            Just(".nan".to_owned()),
            Just("2024-01-31".to_owned()),
            Just("\"{{ input.x }} {y}\"".to_owned()),
        ];
        scalar.prop_recursive(3, 24, 4, |inner| {
            let key = prop::sample::select(KEYS);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4)
                    .prop_map(|items| format!("[{}]", items.join(", "))),
                prop::collection::btree_map(key, inner, 0..4).prop_map(|map| {
                    let pairs: Vec<_> = map
                        .iter()
                        .map(|(key, value)| format!("{key}: {value}"))
                        .collect();
                    format!("{{{}}}", pairs.join(", "))
                }),
            ]
        })
    }

    const KEYS: &[&str] = &[
        "path",
        "workspace",
        "files",
        "dest",
        "source",
        "mode",
        "skill",
        "prompt",
        "arguments",
        "steps",
        "id",
        "runner",
        "env",
        "timeout",
        "type",
        "command",
        "settings",
        "plugin_dirs",
        "name",
        "check",
        "score_range",
        "context",
        "module",
        "function",
        "builtin",
        "weights",
        "formula",
        "judge",
        "raw",
        "before_each",
        "tools",
        "match",
        "allow",
        "seeds",
        "strategy",
        "count",
        "min_mean",
        "if",
        "samples",
        "agent",
        "step",
        "5",
        "~",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_config_loads_or_is_told(
            blocks in prop::collection::btree_map(prop::sample::select(&BLOCKS[..]), value(), 0..6),
        ) {
            let mut text = String::new();
            for (name, value) in &blocks {
                writeln!(text, "{name}: {value}").unwrap();
            }
            let project = Project::new().eval(&text, &["one"]);
            let (dataset, mut diags) = project.load();
            prop_assert!(dataset.is_some() || diags.has_errors(), "{text}");
            if let Some(dataset) = dataset {
                for id in &dataset.cases {
                    let before = diags.count(Severity::Error);
                    let case = dataset.read_case(id, &mut diags);
                    prop_assert!(case.is_some() || diags.count(Severity::Error) > before, "{text}");
                }
            }
            for item in diags.iter() {
                prop_assert!(!item.help.is_empty() && !item.message.is_empty(), "{item:?}");
            }
        }
    }
}
