//! How numbers and verdicts are written in every report.

use std::time::Duration;

use crate::run::{CaseResult, ErrorKind, JudgeResult, Summary, Tokens};

/// The largest value of a judge that is written out, in bytes.
const VALUE_MAX: usize = 80;

/// A reward or a rate: two digits, where they say something.
pub(super) fn number(number: f64) -> String {
    let size = number.abs();
    if size >= 1e6 || (size > 0.0 && size < 0.005) {
        format!("{number:.2e}")
    } else {
        format!("{number:.2}")
    }
}

/// The mean reward, in words that say of what it is the mean; `None`: nothing was run.
pub fn mean_reward(summary: &Summary) -> Option<String> {
    let all = summary.mean_reward_errors_as_zero?;
    let told = format!("mean reward {}", number(all));
    Some(match summary.mean_reward {
        _ if summary.errors == 0 => told,
        None => format!("{told} (no verdict counts as 0)"),
        Some(judged) => format!(
            "{told} (no verdict counts as 0; {} where there is one)",
            number(judged)
        ),
    })
}

/// What the agents say that they took, in all.
pub fn usage(summary: &Summary) -> Vec<String> {
    let cost = summary
        .cost_usd
        .map(|cost| format!("cost {} $", number(cost)));
    let tokens = summary.token_usage.as_ref().map(tokens);
    let tokens = tokens.map(|tokens| format!("tokens {tokens}"));
    cost.into_iter().chain(tokens).collect()
}

/// Tokens, in words.
pub(super) fn tokens(tokens: &Tokens) -> String {
    let (input, output, cached) = (tokens.input, tokens.output, tokens.cache_read);
    format!("{input} in, {output} out, {cached} from cache")
}

/// What became of a case in one of two runs: its status, and its reward when it has one.
pub(super) fn outcome(case: Option<&CaseResult>) -> String {
    match case {
        None => "–".to_owned(),
        Some(case) => match case.reward {
            Some(reward) => format!("{} {}", case.status.name(), number(reward)),
            None => case.status.name().to_owned(),
        },
    }
}

/// `850 ms`, `12.3 s`, `4 min 05 s`, `2 h 03 min`.
pub(super) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A share, in whole percent; all of it and nothing of it are never rounded to.
pub(super) fn percent(part: usize, of: usize) -> String {
    if of == 0 {
        return "–".to_owned();
    }
    let whole = (part * 100 + of / 2) / of;
    let whole = match whole {
        100 if part < of => 99,
        0 if part > 0 => 1,
        whole => whole,
    };
    format!("{whole} %")
}

/// Why there is no verdict: the word of `results.json`.
pub(super) fn error(kind: ErrorKind) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "error".to_owned(),
    }
}

/// What a judge said, in a word.
pub(super) fn value(judge: &JudgeResult) -> String {
    match &judge.value {
        _ if judge.skipped => "skipped".to_owned(),
        _ if judge.error.is_some() => "error".to_owned(),
        None => "nothing".to_owned(),
        Some(serde_json::Value::Bool(true)) => "yes".to_owned(),
        Some(serde_json::Value::Bool(false)) => "no".to_owned(),
        Some(value) => {
            let text = value.as_f64().map_or_else(|| value.to_string(), number);
            super::excerpt::cut(&text, VALUE_MAX).0.to_owned()
        }
    }
}

/// What judges said about a case: after each step where there are some, with its name.
pub(super) fn verdicts(case: &CaseResult) -> Vec<(Option<&str>, &JudgeResult)> {
    if case.steps.is_empty() {
        return case.judges.iter().map(|judge| (None, judge)).collect();
    }
    case.steps
        .iter()
        .flat_map(|step| {
            let name = Some(step.name.as_str());
            step.judges.iter().map(move |judge| (name, judge))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_short() {
        for (given, shown) in [
            (1.0, "1.00"),
            (0.666, "0.67"),
            (0.0, "0.00"),
            (-0.5, "-0.50"),
            (1e300, "1.00e300"),
            (0.001, "1.00e-3"),
        ] {
            assert_eq!(number(given), shown);
        }
        for (millis, shown) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_234, "1.2 s"),
            (245_000, "4 min 05 s"),
            (7_380_000, "2 h 03 min"),
        ] {
            assert_eq!(time(Duration::from_millis(millis)), shown);
        }
        for (part, of, shown) in [
            (0, 0, "–"),
            (0, 3, "0 %"),
            (2, 3, "67 %"),
            (999, 1000, "99 %"),
            (1, 1000, "1 %"),
            (3, 3, "100 %"),
        ] {
            assert_eq!(percent(part, of), shown);
        }
    }
}
