//! `thresholds`: what the judges of all cases together have to reach.
//!
//! Owns what counts. Refuses to know where results come from.
//! Invariant: a judge that gave no verdict never helps to keep a bound.

use std::collections::BTreeMap;

use serde_json::Value;

use super::results::{CaseResult, JudgeResult, MAX_ERROR_RATE, Status, ThresholdResult, mean_over};
use crate::dataset::Threshold;

/// Rounding in sums of rewards is no failure.
const TOLERANCE: f64 = 1e-9;

/// What one judge said over all cases.
#[derive(Debug, Default)]
struct Said {
    yes: u32,
    no: u32,
    /// Errors, and cases in which it should have spoken and did not.
    none: u32,
    numbers: Vec<f64>,
    /// Left out by its own condition.
    skipped: u32,
}

/// Holds every bound against the cases that were run.
pub(super) fn evaluate(
    thresholds: &BTreeMap<String, Threshold>,
    cases: &[CaseResult],
) -> Vec<ThresholdResult> {
    let mut results = Vec::new();
    for (judge, bounds) in thresholds {
        let said = said(judge, cases);
        let spoken =
            said.yes + said.no + said.none + u32::try_from(said.numbers.len()).unwrap_or(u32::MAX);
        let share = |part: u32, of: u32| (of > 0).then(|| f64::from(part) / f64::from(of));
        let mean = || mean_over(&said.numbers, said.numbers.len());
        let mean = (!said.numbers.is_empty()).then(mean);
        // Yes and no have a mean too, as in the harness: the share of yes.
        let mean = mean.or_else(|| share(said.yes, said.yes + said.no));
        let pass_rate = if said.yes + said.no > 0 || said.numbers.is_empty() {
            share(said.yes, said.yes + said.no + said.none)
        } else {
            None
        };
        let error_rate = share(said.none, spoken);
        // Where its own condition left it out of every case, there is nothing to reach; nor is there
        // in a part of a run that has no cases. All parts together are held against it anew.
        let idle = cases.is_empty() || spoken == 0 && said.skipped > 0;
        for (rule, limit, value, least) in [
            ("min_pass_rate", bounds.min_pass_rate, pass_rate, true),
            ("min_mean", bounds.min_mean, mean, true),
            (MAX_ERROR_RATE, bounds.max_error_rate, error_rate, false),
        ] {
            let Some(limit) = limit else { continue };
            let met = match value {
                Some(value) if least => value >= limit - TOLERANCE,
                Some(value) => value <= limit + TOLERANCE,
                None => idle,
            };
            results.push(ThresholdResult {
                judge: judge.clone(),
                rule: rule.to_owned(),
                limit,
                value,
                met,
            });
        }
    }
    results
}

/// Holds the bounds of `held` against other cases.
pub(super) fn again(held: &[ThresholdResult], cases: &[CaseResult]) -> Vec<ThresholdResult> {
    let mut thresholds: BTreeMap<String, Threshold> = BTreeMap::new();
    for bound in held {
        let bounds = thresholds.entry(bound.judge.clone()).or_default();
        let limit = match bound.rule.as_str() {
            "min_pass_rate" => &mut bounds.min_pass_rate,
            "min_mean" => &mut bounds.min_mean,
            MAX_ERROR_RATE => &mut bounds.max_error_rate,
            _ => continue,
        };
        *limit = Some(bound.limit);
    }
    evaluate(&thresholds, cases)
}

fn said(judge: &str, cases: &[CaseResult]) -> Said {
    let mut said = Said::default();
    for case in cases {
        for attempt in case
            .each_attempt()
            .iter()
            .filter(|it| it.status != Status::Skipped)
        {
            let mut silent = true;
            for verdict in verdicts(attempt).filter(|verdict| verdict.name == judge) {
                silent = false;
                said.add(verdict);
            }
            said.none += u32::from(silent);
        }
    }
    said
}

/// What judges said, after each step where there are some.
fn verdicts(case: &CaseResult) -> Box<dyn Iterator<Item = &JudgeResult> + '_> {
    if case.steps.is_empty() {
        Box::new(case.judges.iter())
    } else {
        Box::new(case.steps.iter().flat_map(|step| &step.judges))
    }
}

impl Said {
    fn add(&mut self, verdict: &JudgeResult) {
        match &verdict.value {
            _ if verdict.skipped => self.skipped += 1,
            Some(Value::Bool(true)) => self.yes += 1,
            Some(Value::Bool(false)) => self.no += 1,
            Some(Value::Number(number)) => self.numbers.extend(number.as_f64()),
            _ => self.none += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::CaseId;

    fn case(values: &[Option<Value>]) -> CaseResult {
        let mut case = CaseResult::new(&CaseId::new("a").unwrap());
        case.judges = values
            .iter()
            .map(|value| JudgeResult {
                name: "j".to_owned(),
                skipped: *value == Some(Value::Null),
                error: value.is_none().then(|| "no".to_owned()),
                value: value.clone().filter(|value| !value.is_null()),
                rationale: None,
            })
            .collect();
        case
    }

    fn of(cases: &[CaseResult]) -> [(Option<f64>, bool); 3] {
        let bounds = Threshold {
            min_pass_rate: Some(0.5),
            min_mean: Some(0.5),
            max_error_rate: Some(0.25),
            min_win_rate: None,
        };
        let bounds = BTreeMap::from([("j".to_owned(), bounds)]);
        let found = evaluate(&bounds, cases);
        assert_eq!(again(&found, cases), found);
        let found = found.into_iter();
        let found: Vec<_> = found.map(|it| (it.value, it.met)).collect();
        found.try_into().unwrap()
    }

    #[test]
    fn no_verdict_helps_to_keep_a_bound() {
        let (yes, no) = (Some(Value::Bool(true)), Some(Value::Bool(false)));
        let half = (Some(0.5), true);
        let cases = [case(std::slice::from_ref(&yes)), case(&[no])];
        assert_eq!(of(&cases), [half, half, (Some(0.0), true)]);
        let cases = [case(&[yes]), case(&[None]), case(&[])];
        let third = 1.0 / 3.0;
        assert_eq!(
            of(&cases),
            [
                (Some(third), false),
                (Some(1.0), true),
                (Some(2.0 / 3.0), false)
            ]
        );
        let numbers = [case(&[Some(0.25.into())]), case(&[Some(0.75.into())])];
        assert_eq!(of(&numbers), [(None, false), half, (Some(0.0), true)]);
        assert_eq!(of(&[]), [(None, true), (None, true), (None, true)]);
        let idle = [case(&[Some(Value::Null)])];
        assert_eq!(of(&idle), [(None, true), (None, true), (None, true)]);
    }
}
