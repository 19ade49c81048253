//! `reward` and `thresholds`: what becomes of the verdicts.

use std::collections::BTreeMap;

use super::text;
use crate::dataset::{Judge, Reward, Threshold, formula};
use crate::diag::{Diagnostics, Rule, Severity};
use crate::template::python_str;
use crate::yaml::{Fields, Value, Yaml, nearest};

/// The judges that others may name.
#[derive(Clone, Copy)]
pub(super) struct Known<'j> {
    pub(super) judges: &'j [Judge],
    /// Whether these are all.
    pub(super) complete: bool,
}

impl Known<'_> {
    /// Whether nobody has this name.
    fn lack(self, name: &str) -> bool {
        self.complete && !self.names().any(|judge| judge == name)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.judges.iter().map(|judge| judge.name.as_str())
    }
}

/// Reads `thresholds`.
pub(super) fn thresholds(
    top: &mut Fields<'_>,
    known: Known<'_>,
    diags: &mut Diagnostics,
) -> BTreeMap<String, Threshold> {
    let mut thresholds = BTreeMap::new();
    for (name, value) in top.entries("thresholds", diags) {
        if *value.yaml() == Yaml::Null {
            continue;
        }
        let Some(mut fields) = value.fields(diags) else {
            continue;
        };
        let mut number = |key| fields.number(key, diags);
        let threshold = Threshold {
            min_pass_rate: number("min_pass_rate"),
            min_mean: number("min_mean"),
            max_error_rate: number("max_error_rate"),
            min_win_rate: number("min_win_rate"),
        };
        fields.finish(diags);
        unknown_judge(name, known, &value, Rule::ThresholdUnknownJudge, diags);
        thresholds.insert(name.to_owned(), threshold);
    }
    thresholds
}

/// Warns of a name that no judge has.
fn unknown_judge(
    name: &str,
    known: Known<'_>,
    value: &Value<'_>,
    rule: Rule,
    diags: &mut Diagnostics,
) {
    if !known.lack(name) {
        return;
    }
    let help = match nearest(name, known.names()) {
        Some(judge) => format!("Did you mean `{judge}`?"),
        None if known.judges.is_empty() => "Remove it: there are no judges.".to_owned(),
        None => format!("The judges are {}.", listing(known.names())),
    };
    diags.push(
        value
            .finding(
                rule,
                format!(
                    "`{}` names the judge `{name}`, which does not exist.",
                    value.path()
                ),
            )
            .help(help)
            .entry(name),
    );
}

/// The `reward` block (agent-eval-harness 1.2, 4.4).
pub(super) fn reward(
    value: &Value<'_>,
    known: Known<'_>,
    diags: &mut Diagnostics,
) -> Option<Reward> {
    let mut fields = value.fields(diags)?;
    let range = fields.get("score_range");
    let score_range = range.as_ref().and_then(|value| score_range(value, diags));
    let mut weights = BTreeMap::new();
    for (name, value) in fields.entries("weights", diags) {
        let Some(weight) = value.number(diags) else {
            continue;
        };
        if weight < 0.0 {
            diags.push(
                value
                    .finding(
                        Rule::BadValue,
                        format!("`{}` must not be negative.", value.path()),
                    )
                    .help("Write 0 or more.")
                    .entry(name),
            );
            continue;
        }
        unknown_judge(name, known, &value, Rule::WeightUnknownJudge, diags);
        weights.insert(name.to_owned(), weight);
    }
    let mut raw = Vec::new();
    if let Some(value) = fields.get("raw") {
        let items = match value.yaml() {
            Yaml::Seq(_) => value.items(diags).unwrap_or_default(),
            // One name is as good as a list of one.
            _ => vec![value],
        };
        for item in items {
            if let Some(name) = text(&item, diags) {
                unknown_judge(&name, known, &item, Rule::WeightUnknownJudge, diags);
                raw.push(name);
            }
        }
    }
    let formula_value = fields.get("formula");
    let formula = match &formula_value {
        Some(value) => match value.yaml() {
            Yaml::Bool(_) => python_str(value.yaml()),
            _ => text(value, diags)?,
        },
        None => "weighted".to_owned(),
    };
    let normalize_value = fields.get("normalize");
    let normalize = fields.bool("normalize", diags).unwrap_or(false);
    let gate = fields.bool("gate", diags);
    let judge_value = fields.get("judge");
    let judge = judge_value
        .as_ref()
        .and_then(|value| single_judge(value, known, diags));
    if let Some(value) = &judge_value {
        let others: Vec<&str> = ["formula", "weights", "raw"]
            .into_iter()
            .filter(|key| fields.get(key).is_some())
            .collect();
        if !others.is_empty() {
            diags.push(
                value
                    .finding(
                        Rule::MutuallyExclusive,
                        format!(
                            "`reward.judge` takes the reward from one judge, so {} can not be used with it.",
                            listing(others.iter().copied())
                        ),
                    )
                    .help("Keep `judge`, or compose the reward from several judges."),
            );
        }
    } else if let Some(value) = &formula_value {
        self::formula(value, &formula, known, diags);
    }
    let reward = Reward {
        formula: formula.trim().to_owned(),
        weights,
        gate: gate.unwrap_or(judge_value.is_none()),
        score_range,
        raw,
        judge,
        normalize,
    };
    let own = |name: &str| {
        known
            .judges
            .iter()
            .find(|judge| judge.name == name)
            .and_then(|judge| judge.score_range)
    };
    if let (Some(judge), Some(value)) = (&reward.judge, &judge_value)
        && normalize_value.is_none()
        && let Some((low, high)) = own(judge).filter(|range| *range != (0.0, 1.0))
    {
        let effect = if high >= 1.0 {
            "every score from 1 on is the full reward".to_owned()
        } else {
            format!("the reward never gets over {high}")
        };
        diags.push(
            value
                .finding(
                    Rule::BadValue,
                    format!(
                        "The judge `{judge}` scores from {low} to {high}, but its value is taken as \
                         the reward as it is: {effect}."
                    ),
                )
                .severity(Severity::Warning)
                .help("Add normalize: true.")
                .entry(judge.clone()),
        );
    }
    if let Some(value) = &range {
        shadowed_range(value, &reward, known.judges, diags);
    }
    fields.finish(diags);
    Some(reward)
}

fn single_judge(value: &Value<'_>, known: Known<'_>, diags: &mut Diagnostics) -> Option<String> {
    let name = value.str(diags)?;
    if name.trim().is_empty() {
        diags.push(
            value
                .finding(Rule::Empty, "`reward.judge` is empty.")
                .help("Write the name of a judge, or remove the key."),
        );
        return None;
    }
    if known.lack(name) {
        let help = match nearest(name, known.names()) {
            Some(judge) => format!("Did you mean `{judge}`?"),
            None if known.judges.is_empty() => "Add the judge.".to_owned(),
            None => format!("The judges are {}.", listing(known.names())),
        };
        diags.push(
            value
                .finding(
                    Rule::BadValue,
                    format!("`reward.judge` names the judge `{name}`, which does not exist."),
                )
                .help(help)
                .entry(name),
        );
        return None;
    }
    Some(name.to_owned())
}

/// An expression must be valid; a bare word must be `weighted` or a judge.
fn formula(value: &Value<'_>, formula: &str, known: Known<'_>, diags: &mut Diagnostics) {
    if formula::is_bare(formula) {
        let name = formula.trim();
        if name != "weighted" && known.lack(name) {
            let names = known.names().chain(["weighted"]);
            let help = match nearest(name, names) {
                Some(meant) => format!("Did you mean `{meant}`?"),
                None => "Write `weighted`, the name of a judge, or an expression.".to_owned(),
            };
            diags.push(
                value
                    .finding(
                        Rule::WeightUnknownJudge,
                        format!("`reward.formula` is `{name}`, which is no judge: the reward is always 0."),
                    )
                    .help(help)
                    .entry(name),
            );
        }
        return;
    }
    match formula::check(formula) {
        Err(why) => diags.push(
            value
                .finding(
                    Rule::BadValue,
                    format!("`reward.formula` can not be used: {why}."),
                )
                .help(
                    "Use judges' names, numbers, + - * / // %, comparisons, and, or, if else, and \
                     the functions min, max, abs, round, sum, len, mean.",
                ),
        ),
        Ok(names) => {
            for name in names.iter().filter(|name| known.lack(name)) {
                let help = match nearest(name, known.names()) {
                    Some(meant) => format!("Did you mean `{meant}`?"),
                    None => "Use names of judges that are Python names.".to_owned(),
                };
                diags.push(
                    value
                        .finding(
                            Rule::WeightUnknownJudge,
                            format!("`reward.formula` reads `{name}`, which is no judge: the reward is always 0."),
                        )
                        .help(help)
                        .entry(name.clone()),
                );
            }
        }
    }
}

/// `reward.score_range` is an old fallback: a judge's own range wins.
fn shadowed_range(value: &Value<'_>, reward: &Reward, judges: &[Judge], diags: &mut Diagnostics) {
    let Some(fallback) = reward.score_range else {
        return;
    };
    let composed = |name: &str| {
        if let Some(judge) = &reward.judge {
            return judge == name && reward.normalize;
        }
        let named = if reward.formula == "weighted" {
            reward.weights.contains_key(name)
        } else {
            reward.formula == name
                || formula::check(&reward.formula).is_ok_and(|names| names.contains(name))
        };
        named && !reward.raw.iter().any(|raw| raw == name)
    };
    let shadowed: Vec<&str> = judges
        .iter()
        .filter(|judge| composed(&judge.name))
        .filter(|judge| judge.score_range.is_some_and(|range| range != fallback))
        .map(|judge| judge.name.as_str())
        .collect();
    if !shadowed.is_empty() {
        diags.push(
            value
                .finding(
                    Rule::DeprecatedField,
                    format!(
                        "`reward.score_range` is deprecated and has no effect on {}: the judge's own \
                         score_range wins.",
                        listing(shadowed.into_iter())
                    ),
                )
                .help("Declare score_range at each judge and remove it here."),
        );
    }
}

/// `[min, max]`
pub(super) fn score_range(value: &Value<'_>, diags: &mut Diagnostics) -> Option<(f64, f64)> {
    let help = "Write the lowest and the highest score, for example [1, 5].";
    let wrong = |why: &str| {
        value
            .finding(Rule::BadValue, format!("`{}` {why}.", value.path()))
            .help(help)
    };
    let items = match value.yaml() {
        Yaml::Seq(items) if items.len() == 2 => value.items(diags)?,
        _ => {
            diags.push(wrong("must be a list of two numbers"));
            return None;
        }
    };
    let bounds: Vec<f64> = items
        .iter()
        .filter_map(|item| match item.yaml() {
            Yaml::Int(number) => number.to_string().parse().ok(),
            Yaml::Float(number) => Some(*number),
            _ => None,
        })
        .collect();
    let &[low, high] = bounds.as_slice() else {
        let message = format!("`{}` must be a list of two numbers.", value.path());
        diags.push(value.finding(Rule::WrongType, message).help(help));
        return None;
    };
    if !low.is_finite() || !high.is_finite() {
        diags.push(wrong("must be finite"));
        return None;
    }
    if low >= high {
        diags.push(wrong("must have the lower number first"));
        return None;
    }
    Some((low, high))
}

pub(super) fn listing<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
