//! The shards of one run, put together.
//!
//! Owns what makes runs parts of one, and which of two results of a case counts. Refuses to know
//! where documents come from.
//! Invariant: a merge never looks better than its parts: of results that contradict each other the
//! worse one counts, and a case that none of them has is one that was not run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::diag::{Diagnostic, Diagnostics, Rule, Severity, count};
use crate::path::CaseId;
use crate::run::{CaseResult, ErrorKind, RunResults, Status};

/// Results, and where the files of each case are.
#[derive(Debug)]
pub struct Merged {
    /// All of them as one run.
    pub results: RunResults,
    /// The run directory of each case, in the order of the results.
    pub homes: Vec<PathBuf>,
}

/// Puts the results of `runs` together; one run stays as it is. `None`: they are no parts of one
/// run, and the reasons are in `diags`.
pub fn merge(runs: &[RunResults], diags: &mut Diagnostics) -> Option<Merged> {
    let mut others = runs.iter().skip(1);
    let first = runs.first()?;
    if others.len() == 0 {
        let results = first.clone();
        let homes = vec![results.dir.clone(); results.cases.len()];
        if !results.other_shards.is_empty() {
            let left = count(results.other_shards.len(), "case", "cases");
            let told = format!(
                "The run {} is one shard of several: it left {left} of the dataset to others.",
                results.run_id
            );
            diags.push(
                Diagnostic::new(Rule::ResultsMissing, told)
                    .severity(Severity::Warning)
                    .help("Name the runs of all shards for a report of the whole."),
            );
        }
        return Some(Merged { results, homes });
    }
    let before = others.clone().map(|run| differences(first, run));
    let strangers: Vec<_> = before.zip(others.by_ref()).collect();
    let mut fine = true;
    for (differences, run) in strangers {
        for (what, ours, theirs, severity) in differences {
            fine &= severity != Severity::Error;
            diags.push(
                Diagnostic::new(
                    Rule::ResultsOfOtherRun,
                    format!(
                        "The runs {} and {} are not of one {what}: {ours} and {theirs}.",
                        first.run_id, run.run_id
                    ),
                )
                .severity(severity)
                .help("Merge only the shards of one run."),
            );
        }
    }
    if !fine {
        return None;
    }
    let mut together = first.clone();
    together.merged = runs.iter().map(|run| run.run_id.clone()).collect();
    together.run_id = name(&together.merged);
    together.other_shards = Vec::new();
    let known = runs.iter().find_map(|run| run.dataset.digest.clone());
    together.dataset.digest = known;
    for run in runs.iter().skip(1) {
        together.isolated &= run.isolated;
        together.hooks.extend(run.hooks.iter().cloned());
        add_new(&mut together.warnings, &run.warnings);
        add_new(&mut together.agent.files, &run.agent.files);
    }
    let mut missing: BTreeSet<CaseId> = runs
        .iter()
        .flat_map(|run| &run.other_shards)
        .filter_map(|id| CaseId::new(id).ok())
        .collect();
    let mut cases: BTreeMap<CaseId, (CaseResult, &RunResults)> = BTreeMap::new();
    for run in runs {
        for case in &run.cases {
            // Of an earlier merge: one of the others may have it.
            if case.message.as_deref() == Some(NOWHERE) {
                missing.insert(case.id.clone());
                continue;
            }
            match cases.get_mut(&case.id) {
                None => {
                    cases.insert(case.id.clone(), (case.clone(), run));
                }
                Some(there) => {
                    if let Some(finding) = contradiction(there, case, run) {
                        diags.push(finding);
                    }
                    if counts_more(case, &there.0) {
                        *there = (case.clone(), run);
                    }
                }
            }
        }
    }
    for id in missing {
        if cases.contains_key(&id) {
            continue;
        }
        diags.push(
            Diagnostic::new(
                Rule::ResultsMissing,
                "No shard has a result of some cases of the dataset.",
            )
            .help("Name the runs of all shards, or run the one that is missing.")
            .case(&id),
        );
        let mut none = CaseResult::new(&id);
        none.status = Status::Skipped;
        none.message = Some(NOWHERE.to_owned());
        cases.insert(id, (none, first));
    }
    let (cases, homes) = cases
        .into_values()
        .map(|(case, run)| (case, run.dir.clone()))
        .unzip();
    let results = together.with_cases(cases);
    Some(Merged { results, homes })
}

/// What is said of a case that none of the runs has.
const NOWHERE: &str = "None of the runs has a result of this case.";

/// What two parts of one run have in common, where they have not.
fn differences(a: &RunResults, b: &RunResults) -> Vec<(&'static str, String, String, Severity)> {
    let model = |run: &RunResults| run.agent.model.clone().unwrap_or_default();
    // A shard that was built alone does not know the digest of the whole.
    let digest = |run: &RunResults, other: &RunResults| {
        let both = run.dataset.digest.is_some() && other.dataset.digest.is_some();
        let own = both.then(|| run.dataset.digest.clone()).flatten();
        own.unwrap_or_default()
    };
    let bounds = |run: &RunResults| {
        let all = run.thresholds.iter();
        let all = all.map(|bound| format!("{}.{} {}", bound.judge, bound.rule, bound.limit));
        all.collect::<Vec<_>>().join(", ")
    };
    let of = |run: &RunResults, other: &RunResults| {
        [
            ("dataset", run.dataset.name.clone()),
            ("dataset digest", digest(run, other)),
            ("agent", run.agent.name.clone()),
            ("model", model(run)),
            ("engine", run.engine.clone()),
            ("reward that passes", run.pass_at.to_string()),
            ("number of attempts", run.attempts.to_string()),
            ("set of thresholds", bounds(run)),
            ("version of casepack", run.casepack_version.clone()),
        ]
    };
    of(a, b)
        .into_iter()
        .zip(of(b, a))
        .filter(|((_, ours), (_, theirs))| ours != theirs)
        .map(|((what, ours), (_, theirs))| {
            let shown = |text: String| {
                if text.is_empty() {
                    "none".to_owned()
                } else {
                    format!("'{text}'")
                }
            };
            let severity = if what == "version of casepack" {
                Severity::Warning
            } else {
                Severity::Error
            };
            (what, shown(ours), shown(theirs), severity)
        })
        .collect()
}

/// The name of what was put together.
fn name(runs: &[String]) -> String {
    const NAMED: usize = 4;
    let named: Vec<_> = runs.iter().take(NAMED).map(String::as_str).collect();
    let mut name = named.join("+");
    if runs.len() > NAMED {
        name.extend(["+", &(runs.len() - NAMED).to_string(), " more"]);
    }
    name
}

fn add_new(all: &mut Vec<String>, more: &[String]) {
    for text in more {
        if !all.contains(text) {
            all.push(text.clone());
        }
    }
}

/// Whether a case was left out before it had a verdict.
fn was_stopped(case: &CaseResult) -> bool {
    case.error == Some(ErrorKind::Interrupted)
}

/// Whether `new` takes the place of `old`: a verdict that of a run that was stopped, else the worse
/// one that of the better.
fn counts_more(new: &CaseResult, old: &CaseResult) -> bool {
    if was_stopped(old) != was_stopped(new) {
        return was_stopped(old);
    }
    if new.status != old.status {
        return new.status > old.status;
    }
    let reward = |case: &CaseResult| case.reward.unwrap_or(f64::INFINITY);
    reward(new) < reward(old)
}

/// What is said when two runs do not agree on a case.
fn contradiction(
    (there, of): &(CaseResult, &RunResults),
    case: &CaseResult,
    run: &RunResults,
) -> Option<Diagnostic> {
    let told = |case: &CaseResult| match case.reward {
        Some(reward) => format!("{} with {reward}", case.status.name()),
        None => case.status.name().to_owned(),
    };
    let same = there.package_digest == case.package_digest && told(there) == told(case);
    if same || was_stopped(there) || was_stopped(case) {
        return None;
    }
    let mut message = format!(
        "The runs {} and {} have results that differ: {} and {}",
        of.run_id,
        run.run_id,
        told(there),
        told(case)
    );
    if there.package_digest != case.package_digest {
        message.push_str(", on different packages");
    }
    Some(
        Diagnostic::new(
            Rule::ResultsConflict,
            format!("{message}. The worse one counts."),
        )
        .help("Name each shard once, and only one run of it.")
        .case(&case.id),
    )
}
