//! A run held against an earlier one (`--baseline`).
//!
//! Owns what became better and what became worse. Refuses to know how it is shown.

use std::collections::BTreeMap;

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
