//! What judges a case inside its package: the typed judges, and what they need (policy 19).
//!
//! Owns `tests/config.json`, which `templates/judge.py` reads, and `tests/eval.yaml`, which the
//! engine of agent-eval-harness reads. Refuses to know where in the package they lie.
//! Invariant: nothing of the dataset's config gets in but judges, reward, outputs, traces,
//! thresholds and the judge model, so that no secret and no unrelated edit does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::options::Options;
use crate::dataset::{Case, Dataset, Judge, Output, Reward, Threshold, Traces, Verification};
use crate::diag::Rule;
use crate::path::TreePath;
use crate::yaml::{self, Node, Tagged, Yaml};

/// The judge that compares whole runs; no case has it.
const PAIRWISE: &str = "pairwise";

/// Builtin judges: group, name, and whether they ask a model.
const BUILTINS: &[(&str, &str, bool)] = &[
    ("efficiency", "cost_budget", false),
    ("process", "simulator_provenance", false),
    ("quality", "output_completeness", true),
    ("safety", "no_harmful_content", true),
];

/// The judges that packages have, and everything that goes with them; the same for all cases.
#[derive(Debug)]
pub(super) struct Judging {
    judges: Vec<Judge>,
    fixed: Fixed,
    reward: Option<Reward>,
    thresholds: BTreeMap<String, Threshold>,
    outputs: Vec<Output>,
    traces: Traces,
    model: Option<String>,
    deterministic: bool,
    /// Seconds that Harbor gives the verifier: judges end earlier, so that a reward is written.
    timeout_sec: f64,
}

/// What is the same in every `config.json`, as JSON.
#[derive(Debug)]
struct Fixed {
    judges: Vec<String>,
    models: String,
    outputs: String,
    thresholds: String,
    traces: String,
}

/// Which judges of a case are asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    /// The step; `None` for a single-step case.
    pub(super) step: Option<&'a str>,
    /// Whether it is the last one, which judges of the whole case belong to.
    pub(super) last: bool,
}

impl Judging {
    /// The judges that are left under `options` (agent-eval-harness 4.3).
    pub(super) fn new(verification: &Verification, options: &Options) -> Self {
        let mut judges = verification.judges.clone();
        let mut thresholds = verification.thresholds.clone();
        let mut reward = verification.reward.clone();
        if options.no_llm_judges {
            let removed: BTreeSet<String> = judges
                .iter()
                .filter(|judge| is_llm(judge))
                .map(|judge| judge.name.clone())
                .collect();
            judges.retain(|judge| !removed.contains(&judge.name));
            thresholds.retain(|judge, _| !removed.contains(judge));
            reward = reward.and_then(|reward| without(&reward, |judge| removed.contains(judge)));
        }
        let model = options.judge_model.as_ref();
        let model = model.or(verification.judge_model.as_ref()).cloned();
        let outputs = verification.outputs.clone();
        Self {
            fixed: Fixed {
                judges: judges
                    .iter()
                    .map(|judge| judge_json(judge).to_string())
                    .collect(),
                models: json!({ "judge": model }).to_string(),
                outputs: outputs_json(&outputs).to_string(),
                thresholds: thresholds_json(&thresholds).to_string(),
                traces: traces_json(verification.traces).to_string(),
            },
            judges,
            reward,
            thresholds,
            outputs,
            traces: verification.traces,
            model,
            deterministic: options.no_llm_judges,
            timeout_sec: options.verifier_timeout_sec,
        }
    }

    /// `full`, `deterministic-only` or `none`, for `[metadata].judge_mode`.
    pub(super) fn mode(&self) -> &'static str {
        match self.deterministic {
            _ if !self.judges.iter().any(runs) => "none",
            true => "deterministic-only",
            false => "full",
        }
    }

    /// Whether a verdict needs a model, so that the verifier needs a key.
    pub(super) fn asks_model(&self) -> bool {
        self.judges.iter().any(asks_model)
    }

    /// Names of the judges that ask a model and have none.
    pub(super) fn without_model(&self) -> Vec<&Judge> {
        self.judges
            .iter()
            .filter(|judge| self.model.is_none() && judge.model.is_none() && asks_model(judge))
            .collect()
    }

    /// Judges that only the engine of agent-eval-harness can run, and why.
    pub(super) fn beyond_bundled(&self) -> Vec<(&Judge, &'static str)> {
        self.judges
            .iter()
            .filter_map(|judge| match kind(judge) {
                Kind::Agent => Some((judge, "agent judges need the harness")),
                Kind::Builtin(None) => Some((judge, "the bundled runner has no such builtin")),
                _ if asks_model(judge) && self.through_runner(judge) => {
                    Some((judge, "a runner:/ model is asked through the harness"))
                }
                _ => None,
            })
            .collect()
    }

    /// Whether the judge's model is asked through the command line of an agent.
    fn through_runner(&self, judge: &Judge) -> bool {
        let model = judge.model.as_deref().or(self.model.as_deref());
        model.is_some_and(|model| model.starts_with("runner:/"))
    }

    /// What `reward` and judges lose on the last step, which gives the case its reward: judges of
    /// earlier steps that `reward` reads, or everything when no judge is left there.
    pub(super) fn lost_on_last_step(&self, last: &str) -> Option<(Rule, String)> {
        let part = Part {
            step: Some(last),
            last: true,
        };
        if !self
            .judges
            .iter()
            .any(|judge| applies(judge, part) && runs(judge))
        {
            let message = format!(
                "Nothing judges the last step '{last}', and the reward of a case is that of its \
                 last step: it is always 0."
            );
            return Some((Rule::NoVerdict, message));
        }
        let reward = self.reward.as_ref()?;
        let earlier: Vec<&str> = self
            .judges
            .iter()
            .filter(|judge| !applies(judge, part))
            .map(|judge| judge.name.as_str())
            .filter(|name| reads(reward, name))
            .collect();
        (!earlier.is_empty()).then(|| {
            let message = format!(
                "`reward` reads judges of earlier steps ({}), but the reward of a case is that of \
                 its last step, where they give no value.",
                earlier.join(", ")
            );
            (Rule::WeightUnknownJudge, message)
        })
    }

    /// Paths of the declared outputs.
    pub(super) fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// `config.json`: one line of canonical JSON (sorted keys).
    pub(super) fn config(
        &self,
        dataset: &Dataset,
        case: &Case,
        part: Part<'_>,
        image: &str,
        workdir: &str,
    ) -> Vec<u8> {
        let judges: Vec<&str> = self
            .judges
            .iter()
            .zip(&self.fixed.judges)
            // One without a kind is skipped, as the harness does; the reader told it.
            .filter(|(judge, _)| applies(judge, part) && !matches!(kind(judge), Kind::None))
            .map(|(_, json)| json.as_str())
            .collect();
        let fixed = &self.fixed;
        let mut json = Object::default();
        json.put("annotations", &Tagged(&case.annotations));
        json.put("case", case.id.as_str());
        json.put("dataset", &dataset.name);
        json.put("image", image);
        json.put("input", &Tagged(&case.input));
        json.text("judges", &format!("[{}]", judges.join(",")));
        json.text("models", &fixed.models);
        json.text("outputs", &fixed.outputs);
        json.put("reward", &self.reward_json(part));
        json.put("schema", "casepack.verifier.v1");
        json.put("step", &part.step);
        json.text("thresholds", &fixed.thresholds);
        json.text("traces", &fixed.traces);
        json.put("verifier_timeout", &number(self.timeout_sec));
        json.put("workdir", workdir);
        json.finish()
    }

    /// `reward` for the judges of `part`: what reads others is taken out, as agent-eval-harness
    /// does for judges that are left out (4.3).
    fn reward(&self, part: Part<'_>) -> Option<Reward> {
        let reward = self.reward.as_ref()?;
        without(reward, |name| {
            self.judges
                .iter()
                .any(|judge| judge.name == name && !applies(judge, part))
        })
    }

    fn reward_json(&self, part: Part<'_>) -> Value {
        let Some(reward) = self.reward(part) else {
            return Value::Null;
        };
        let weights: Map<String, Value> = reward
            .weights
            .iter()
            .map(|(name, weight)| (name.clone(), number(*weight)))
            .collect();
        json!({
            "formula": reward.formula,
            "gate": reward.gate,
            "judge": reward.judge,
            "normalize": reward.normalize,
            "raw": reward.raw,
            "score_range": reward.score_range.map(range),
            "weights": weights,
        })
    }

    /// `eval.yaml` for the engine of agent-eval-harness (4.2): as [`Judging::config`], without the
    /// case. Judges lose their `step`, which only means something beside `execution.steps`.
    pub(super) fn eval_yaml(&self, dataset: &Dataset, part: Part<'_>) -> Vec<u8> {
        let judges = self.judges.iter().filter(|judge| applies(judge, part));
        let outputs = self.outputs.iter().map(|output| {
            map([
                (
                    "path",
                    output.path.as_ref().map(|path| {
                        let slash = if output.directory { "/" } else { "" };
                        string(&format!("{path}{slash}"))
                    }),
                ),
                ("tool", filled(&output.tool)),
                ("schema", filled(&output.schema)),
                ("batch_pattern", filled(&output.batch_pattern)),
                ("types", output.types.clone()),
            ])
        });
        let thresholds = self.thresholds.iter().map(|(judge, threshold)| {
            let limits = limits(threshold)
                .into_iter()
                .map(|(name, limit)| (name, Some(Yaml::Float(limit))));
            (judge.as_str(), Some(map(limits)))
        });
        let reward = self.reward(part).map(|reward| {
            let weights = reward
                .weights
                .iter()
                .map(|(name, weight)| (name.as_str(), Some(Yaml::Float(*weight))));
            let weights = map(weights);
            match &reward.judge {
                Some(judge) => map([
                    ("judge", Some(string(judge))),
                    ("gate", Some(Yaml::Bool(reward.gate))),
                    ("normalize", Some(Yaml::Bool(reward.normalize))),
                    ("score_range", reward.score_range.map(yaml_range)),
                ]),
                None => map([
                    ("formula", Some(string(&reward.formula))),
                    ("weights", Some(weights)),
                    ("gate", Some(Yaml::Bool(reward.gate))),
                    ("score_range", reward.score_range.map(yaml_range)),
                    ("raw", Some(strings(&reward.raw))),
                ]),
            }
        });
        let traces = map([
            ("stdout", Some(Yaml::Bool(self.traces.stdout))),
            ("stderr", Some(Yaml::Bool(self.traces.stderr))),
            ("events", Some(Yaml::Bool(self.traces.events))),
            ("metrics", Some(Yaml::Bool(self.traces.metrics))),
        ]);
        let config = map([
            ("name", Some(string(&dataset.name))),
            ("dataset", Some(map([("path", Some(string("")))]))),
            ("outputs", Some(list(outputs))),
            ("traces", Some(traces)),
            (
                "models",
                self.model
                    .as_deref()
                    .map(|model| map([("judge", Some(string(model)))])),
            ),
            ("judges", Some(list(judges.map(judge_yaml)))),
            ("reward", reward),
            ("thresholds", Some(map(thresholds))),
        ]);
        yaml::emit(&config).into_bytes()
    }
}

fn thresholds_json(thresholds: &BTreeMap<String, Threshold>) -> Value {
    let rows = thresholds.iter().map(|(judge, threshold)| {
        let limits: Map<String, Value> = limits(threshold)
            .into_iter()
            .map(|(name, limit)| (name.to_owned(), number(limit)))
            .collect();
        (judge.clone(), Value::Object(limits))
    });
    Value::Object(rows.collect())
}

fn outputs_json(outputs: &[Output]) -> Value {
    let rows = outputs.iter().map(|output| {
        json!({
            "batch_pattern": output.batch_pattern,
            "directory": output.directory,
            "path": output.path.as_ref().map(TreePath::as_str),
            "schema": output.schema,
            "tool": output.tool,
            "types": output.types.as_ref().map(Yaml::to_tagged_json),
        })
    });
    Value::Array(rows.collect())
}

fn traces_json(traces: Traces) -> Value {
    let Traces {
        stdout,
        stderr,
        events,
        metrics,
    } = traces;
    json!({ "events": events, "metrics": metrics, "stderr": stderr, "stdout": stdout })
}

/// The text of a JSON object on one line, field by field.
#[derive(Default)]
pub(super) struct Object(Vec<u8>);

impl Object {
    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// A field whose value is JSON text already.
    fn text(&mut self, key: &str, json: &str) {
        self.key(key);
        self.0.extend_from_slice(json.as_bytes());
    }

    pub(super) fn put(&mut self, key: &str, value: &(impl Serialize + ?Sized)) {
        self.key(key);
        let written = serde_json::to_writer(&mut self.0, value);
        debug_assert!(
            written.is_ok(),
            "all keys are strings, and memory takes all"
        );
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"}\n");
        self.0
    }
}

/// Whether the judge is asked in `part`: judges of the whole case are on the last step
/// (agent-eval-harness 4.1).
fn applies(judge: &Judge, part: Part<'_>) -> bool {
    match (&judge.step, part.step) {
        (Some(wanted), Some(step)) => wanted == step,
        (Some(_), None) => false,
        (None, _) => part.last,
    }
}

/// What gives the verdict, in the order in which the harness looks (agent-eval-harness 4.5).
enum Kind {
    /// Known: whether it asks a model.
    Builtin(Option<bool>),
    Check,
    Agent,
    Llm,
    Code,
    None,
}

fn kind(judge: &Judge) -> Kind {
    if let Some(builtin) = judge.builtin.as_deref().filter(|name| !name.is_empty()) {
        let known = BUILTINS.iter().find(|(group, name, _)| {
            builtin == *name || builtin.split_once('/') == Some((*group, *name))
        });
        return Kind::Builtin(known.map(|(_, _, asks)| *asks));
    }
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if given(&judge.check) {
        Kind::Check
    } else if judge.agent.is_some() {
        Kind::Agent
    } else if given(&judge.prompt) || judge.prompt_file.is_some() || given(&judge.llm_rubric) {
        Kind::Llm
    } else if given(&judge.module) && given(&judge.function) {
        Kind::Code
    } else {
        Kind::None
    }
}

/// Whether `--no-llm-judges` drops the judge: everything that has to do with a model, and what is
/// not known (agent-eval-harness 4.3).
fn is_llm(judge: &Judge) -> bool {
    judge.name == PAIRWISE
        || judge.prompt.is_some()
        || judge.prompt_file.is_some()
        || judge.llm_rubric.is_some()
        || judge.agent.is_some()
        || matches!(kind(judge), Kind::Builtin(None | Some(true)))
}

/// Whether a verdict takes a model.
fn asks_model(judge: &Judge) -> bool {
    runs(judge)
        && matches!(
            kind(judge),
            Kind::Llm | Kind::Agent | Kind::Builtin(Some(true))
        )
}

/// Whether the judge gives a verdict about a case.
fn runs(judge: &Judge) -> bool {
    judge.name != PAIRWISE && !matches!(kind(judge), Kind::None)
}

/// `reward` without the judges that `gone` names; `None` when it can't be computed without them
/// (agent-eval-harness 4.3).
fn without(reward: &Reward, gone: impl Fn(&str) -> bool) -> Option<Reward> {
    if reward.judge.as_deref().is_some_and(&gone) || names(&reward.formula).any(&gone) {
        return None;
    }
    let mut reward = reward.clone();
    let before = reward.weights.len();
    reward.weights.retain(|judge, _| !gone(judge));
    reward.raw.retain(|judge| !gone(judge));
    (before == 0 || !reward.weights.is_empty()).then_some(reward)
}

/// Whether the value of `judge` counts in the reward.
fn reads(reward: &Reward, judge: &str) -> bool {
    reward.judge.as_deref() == Some(judge)
        || reward.weights.contains_key(judge)
        || names(&reward.formula).any(|name| name == judge)
}

/// Names that a formula may read: the whole of it, which may be a judge's name with dots and
/// dashes, and every identifier.
fn names(formula: &str) -> impl Iterator<Item = &str> {
    let identifiers = formula.split(|c: char| !c.is_alphanumeric() && c != '_');
    std::iter::once(formula.trim()).chain(identifiers)
}

fn judge_json(judge: &Judge) -> Value {
    let mut fields = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            fields.insert(key.to_owned(), value);
        }
    };
    put("name", json!(judge.name));
    put("description", json!(judge.description));
    put("if", json!(judge.condition));
    put("check", json!(judge.check));
    put("prompt", json!(judge.prompt));
    put(
        "prompt_file",
        json!(judge.prompt_file.as_ref().map(TreePath::as_str)),
    );
    put("llm_rubric", json!(judge.llm_rubric));
    let context: Vec<&str> = judge.context.iter().map(TreePath::as_str).collect();
    put("context", json!(context));
    put("feedback_type", json!(judge.feedback_type));
    put("score_range", json!(judge.score_range.map(range)));
    put("model", json!(judge.model));
    put("module", json!(judge.module));
    put("function", json!(judge.function));
    put("builtin", json!(judge.builtin));
    let arguments = judge.arguments.as_ref().map(Yaml::to_tagged_json);
    put("arguments", arguments.unwrap_or_default());
    put("step", json!(judge.step));
    put("samples", json!(judge.samples));
    put(
        "agent",
        judge
            .agent
            .as_ref()
            .map(Yaml::to_tagged_json)
            .unwrap_or_default(),
    );
    Value::Object(fields)
}

fn judge_yaml(judge: &Judge) -> Yaml {
    let optional = |text: &Option<String>| text.as_deref().map(string);
    let context: Vec<&str> = judge.context.iter().map(TreePath::as_str).collect();
    map([
        ("name", Some(string(&judge.name))),
        ("description", filled(&judge.description)),
        ("if", optional(&judge.condition)),
        ("check", optional(&judge.check)),
        ("prompt", optional(&judge.prompt)),
        (
            "prompt_file",
            judge.prompt_file.as_ref().map(|path| string(path.as_str())),
        ),
        ("llm_rubric", optional(&judge.llm_rubric)),
        ("context", (!context.is_empty()).then(|| strings(&context))),
        ("feedback_type", filled(&judge.feedback_type)),
        ("score_range", judge.score_range.map(yaml_range)),
        ("model", optional(&judge.model)),
        ("module", optional(&judge.module)),
        ("function", optional(&judge.function)),
        ("builtin", optional(&judge.builtin)),
        ("arguments", judge.arguments.clone()),
        (
            "samples",
            (judge.samples > 1).then(|| Yaml::Int(judge.samples.into())),
        ),
        ("agent", judge.agent.clone()),
    ])
}

fn limits(threshold: &Threshold) -> Vec<(&'static str, f64)> {
    [
        ("max_error_rate", threshold.max_error_rate),
        ("min_mean", threshold.min_mean),
        ("min_pass_rate", threshold.min_pass_rate),
        ("min_win_rate", threshold.min_win_rate),
    ]
    .into_iter()
    .filter_map(|(name, limit)| Some((name, limit?)))
    .collect()
}

/// A number as the user would write it: `1`, not `1.0`.
fn number(value: f64) -> Value {
    whole(value).map_or_else(|| json!(value), |value| json!(value))
}

fn range((low, high): (f64, f64)) -> Value {
    json!([number(low), number(high)])
}

fn whole(value: f64) -> Option<i64> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked by the bound before"
    )]
    (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
}

fn yaml_number(value: f64) -> Yaml {
    whole(value).map_or(Yaml::Float(value), |value| Yaml::Int(value.into()))
}

fn yaml_range((low, high): (f64, f64)) -> Yaml {
    list([yaml_number(low), yaml_number(high)].into_iter())
}

fn node(value: Yaml) -> Node {
    Node { value, span: 0..0 }
}

fn string(text: &str) -> Yaml {
    Yaml::Str(Arc::from(text))
}

fn filled(text: &str) -> Option<Yaml> {
    (!text.is_empty()).then(|| string(text))
}

fn strings<T: AsRef<str>>(texts: &[T]) -> Yaml {
    list(texts.iter().map(|text| string(text.as_ref())))
}

fn list(items: impl Iterator<Item = Yaml>) -> Yaml {
    Yaml::Seq(items.map(node).collect())
}

fn map<'a>(fields: impl IntoIterator<Item = (&'a str, Option<Yaml>)>) -> Yaml {
    let fields = fields
        .into_iter()
        .filter_map(|(key, value)| Some((node(string(key)), node(value?))));
    Yaml::Map(fields.collect())
}
