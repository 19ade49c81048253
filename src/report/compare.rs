//! A run held against an earlier one (`--baseline`).
//!
//! Owns what became better and what became worse. Refuses to know how it is shown.

use std::collections::BTreeMap;

use crate::diag::count;
use crate::run::{CaseResult, RunResults, Status};

/// Rounding in sums of rewards is no change.
const TOLERANCE: f64 = 1e-9;

/// How the result of a case differs from the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It had passed and does not any more.
    Broken,
    /// It passes now.
    Fixed,
    /// The verdict is the same, the reward is not.
    Reward,
    /// The earlier run had no such case.
    New,
    /// Only the earlier run had it.
    Gone,
}

/// One case that differs.
#[derive(Debug, Clone)]
pub struct Changed<'a> {
    /// Its id.
    pub case: &'a str,
    /// How.
    pub change: Change,
    /// Its earlier result.
    pub before: Option<&'a CaseResult>,
    /// Its result.
    pub after: Option<&'a CaseResult>,
}

impl Change {
    /// The word in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Fixed => "fixed",
            Self::Reward => "reward",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }
}

/// The cases of `now` and `before` that differ, what is broken first, sorted by id.
pub fn compare<'a>(before: &'a RunResults, now: &'a RunResults) -> Vec<Changed<'a>> {
    let mut earlier: BTreeMap<&str, &CaseResult> = before
        .cases
        .iter()
        .map(|case| (case.id.as_str(), case))
        .collect();
    let mut all: Vec<_> = now
        .cases
        .iter()
        .filter_map(|case| {
            let before = earlier.remove(case.id.as_str());
            Some(Changed {
                case: case.id.as_str(),
                change: before.map_or(Some(Change::New), |before| change(before, case))?,
                before,
                after: Some(case),
            })
        })
        .collect();
    all.extend(earlier.into_iter().map(|(id, case)| Changed {
        case: id,
        change: Change::Gone,
        before: Some(case),
        after: None,
    }));
    all.sort_by_key(|changed| (changed.change, changed.case));
    all
}

/// Why what differs may come from something else than the agent: the runs are not of one dataset, or
/// were not judged by one measure. Sentences with raw names; none where all is the same.
pub fn strangeness(before: &RunResults, now: &RunResults) -> Vec<String> {
    let mut told = Vec::new();
    let (old, new) = (&before.dataset, &now.dataset);
    let digests = match (&old.digest, &new.digest) {
        (Some(old), Some(new)) => Some((old, new)),
        _ => old
            .packages_digest
            .as_ref()
            .zip(new.packages_digest.as_ref()),
    };
    let digests = digests.filter(|(old, new)| old != new);
    let with =
        |digest: Option<&String>| digest.map_or_else(String::new, |digest| format!(" ({digest})"));
    if old.name != new.name {
        told.push(format!(
            "The baseline {} is of another dataset, '{}'{}, and this run of '{}'{}.",
            before.run_id,
            old.name,
            with(digests.map(|(old, _)| old)),
            new.name,
            with(digests.map(|(_, new)| new)),
        ));
    } else if let Some((old, new)) = digests {
        told.push(format!(
            "The baseline {} is of another state of the dataset, {old}, and this run of {new}.",
            before.run_id
        ));
    }
    if !told.is_empty() {
        let cases: BTreeMap<_, _> = before.cases.iter().map(|case| (&case.id, case)).collect();
        let both = now
            .cases
            .iter()
            .filter_map(|case| Some((case, cases.get(&case.id)?)));
        let (all, same) = both.fold((0, 0), |(all, same), (case, old)| {
            let known = case.package_digest.is_some();
            let equal = known && case.package_digest == old.package_digest;
            (all + 1, same + usize::from(equal))
        });
        told.push(match all {
            0 => "No case is in both runs.".to_owned(),
            _ => format!(
                "{} in both runs and compared; {same} of them on the same package.",
                count(all, "case is", "cases are")
            ),
        });
    }
    let measures = [
        (
            "--pass-at",
            before.pass_at.to_string(),
            now.pass_at.to_string(),
        ),
        (
            "--attempts",
            before.attempts.to_string(),
            now.attempts.to_string(),
        ),
    ];
    for (option, old, new) in measures.into_iter().filter(|(_, old, new)| old != new) {
        told.push(format!(
            "The baseline {} had {option} {old}, and this run {new}.",
            before.run_id
        ));
    }
    told
}

fn change(before: &CaseResult, after: &CaseResult) -> Option<Change> {
    let passed = |case: &CaseResult| case.status == Status::Passed;
    match (passed(before), passed(after)) {
        (true, false) => Some(Change::Broken),
        (false, true) => Some(Change::Fixed),
        _ => match (before.reward, after.reward) {
            (Some(before), Some(after)) if (before - after).abs() <= TOLERANCE => None,
            (None, None) if before.status == after.status => None,
            _ => Some(Change::Reward),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{case, results};

    #[test]
    fn tells_what_became_of_each_case() {
        let before = results(vec![
            case("a", Status::Passed, Some(1.0)),
            case("b", Status::Failed, Some(0.0)),
            case("c", Status::Failed, Some(0.1)),
            case("d", Status::Passed, Some(1.0)),
            case("e", Status::Passed, Some(1.0)),
            case("f", Status::Error, None),
            case("g", Status::Failed, Some(0.3)),
        ]);
        let now = results(vec![
            case("a", Status::Error, None),
            case("b", Status::Passed, Some(1.0)),
            case("c", Status::Failed, Some(0.2)),
            case("d", Status::Passed, Some(1.0 - 1e-12)),
            case("f", Status::Error, None),
            case("g", Status::Error, None),
            case("h", Status::Passed, Some(1.0)),
        ]);
        let found: Vec<_> = compare(&before, &now)
            .iter()
            .map(|it| (it.case, it.change))
            .collect();
        assert_eq!(
            found,
            [
                ("a", Change::Broken),
                ("b", Change::Fixed),
                ("c", Change::Reward),
                ("g", Change::Reward),
                ("h", Change::New),
                ("e", Change::Gone),
            ]
        );
        assert!(compare(&now, &now).is_empty());
    }
}
