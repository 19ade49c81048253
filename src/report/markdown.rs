//! `summary.md`, for a comment on a pull request.
//!
//! Owns what fits into one. Refuses to know who posts it.
//! Invariant: every text of others is escaped, and the whole is bounded: platforms refuse comments
//! of more than 65,536 characters.

use std::fmt::Write as _;

use super::Report;
use super::compare::{Change, strangeness};
use super::excerpt::cut;
use super::words::{self, number, outcome, percent, time};
use crate::diag::count;
use crate::escape::markdown;
use crate::run::{CaseResult, Status};

/// So many lines are in a table.
const CASES_MAX: usize = 100;
/// No table goes on beyond so many bytes of the whole text.
const TEXT_MAX: usize = 48 << 10;
/// Of a message so many bytes are shown.
const MESSAGE_MAX: usize = 200;
/// Of a name.
const NAME_MAX: usize = 80;

/// The whole text.
pub(super) fn text(report: &Report<'_>) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    write(report, &mut out).ok();
    out
}

fn write(report: &Report<'_>, out: &mut String) -> std::fmt::Result {
    let results = report.results;
    let summary = results.summary();
    let verdict = if results.all_passed() {
        "passed"
    } else {
        "did not pass"
    };
    writeln!(out, "## {} {verdict}\n", short(&results.dataset.name))?;
    let mut parts = vec![format!(
        "**{} of {} passed ({})**",
        summary.passed,
        count(summary.total, "case", "cases"),
        percent(summary.passed, summary.total)
    )];
    for (count, what) in [
        (summary.failed, "failed"),
        (summary.errors, "without a verdict"),
        (summary.skipped, "skipped"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.extend(words::mean_reward(&summary));
    parts.extend(words::usage(&summary));
    for (k, rate) in summary.pass_at_k.iter().take(10) {
        parts.push(format!("pass@{k} {}", number(*rate)));
    }
    writeln!(out, "{}.\n", parts.join(", "))?;
    if results.interrupted {
        writeln!(out, "The run was stopped before all cases were done.\n")?;
    }
    for warning in results.warnings.iter().take(5) {
        writeln!(out, "> {}\n", markdown(cut(warning, 500).0))?;
    }
    cases(results.cases.iter(), out)?;
    thresholds(report, out)?;
    compared(report, out)?;
    writeln!(out, "| | |\n| --- | --- |")?;
    for (name, value) in report.facts() {
        writeln!(out, "| {name} | {} |", markdown(cut(&value, 200).0))?;
    }
    Ok(())
}

/// The cases that did not pass.
fn cases<'a>(all: impl Iterator<Item = &'a CaseResult>, out: &mut String) -> std::fmt::Result {
    let mut bad: Vec<_> = all.filter(|case| case.status != Status::Passed).collect();
    if bad.is_empty() {
        return Ok(());
    }
    bad.sort_by_key(|case| match case.status {
        Status::Failed => 0,
        Status::Error => 1,
        Status::Skipped | Status::Passed => 2,
    });
    writeln!(out, "| status | case | reward | time | why |")?;
    writeln!(out, "| --- | --- | ---: | ---: | --- |")?;
    let mut left = bad.len();
    for case in bad.iter().take(CASES_MAX) {
        if out.len() > TEXT_MAX {
            break;
        }
        left -= 1;
        let message = case.message.as_deref().unwrap_or_default();
        let (message, more) = cut(message, MESSAGE_MAX);
        let dots = if more > 0 { " …" } else { "" };
        writeln!(
            out,
            "| {} | {} | {} | {} | {}{dots} |",
            case.status.name(),
            short(case.id.as_str()),
            case.reward.map_or_else(String::new, number),
            time(case.duration),
            markdown(message),
        )?;
    }
    more(left, out)?;
    writeln!(out)
}

fn thresholds(report: &Report<'_>, out: &mut String) -> std::fmt::Result {
    let all = &report.results.thresholds;
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "| threshold | bound | reached | |")?;
    writeln!(out, "| --- | ---: | ---: | --- |")?;
    let mut left = all.len();
    for bound in all.iter().take(CASES_MAX) {
        if out.len() > TEXT_MAX {
            break;
        }
        left -= 1;
        writeln!(
            out,
            "| {} {} | {} | {} | {} |",
            short(&bound.judge),
            short(&bound.rule),
            number(bound.limit),
            bound.value.map_or_else(|| "nothing".to_owned(), number),
            if bound.met { "met" } else { "**missed**" },
        )?;
    }
    more(left, out)?;
    writeln!(out)
}

/// What differs from the earlier run.
fn compared(report: &Report<'_>, out: &mut String) -> std::fmt::Result {
    let Some((before, changes)) = report.compared() else {
        return Ok(());
    };
    let number_of = |change| changes.iter().filter(|it| it.change == change).count();
    writeln!(
        out,
        "Compared with {}: {} fixed, {} broken, {} with another reward, {} new, {} gone.\n",
        short(&before.run_id),
        number_of(Change::Fixed),
        number_of(Change::Broken),
        number_of(Change::Reward),
        number_of(Change::New),
        number_of(Change::Gone),
    )?;
    for told in strangeness(before, report.results) {
        writeln!(out, "> {}\n", markdown(cut(&told, 500).0))?;
    }
    let told = changes
        .iter()
        .filter(|it| matches!(it.change, Change::Fixed | Change::Broken | Change::Reward));
    let told: Vec<_> = told.collect();
    if told.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "| change | case | before | now |\n| --- | --- | --- | --- |"
    )?;
    let mut left = told.len();
    for it in told.iter().take(CASES_MAX) {
        if out.len() > TEXT_MAX {
            break;
        }
        left -= 1;
        writeln!(
            out,
            "| {} | {} | {} | {} |",
            it.change.name(),
            short(it.case),
            outcome(it.before),
            outcome(it.after),
        )?;
    }
    more(left, out)?;
    writeln!(out)
}

/// What a table left out.
fn more(left: usize, out: &mut String) -> std::fmt::Result {
    if left == 0 {
        return Ok(());
    }
    writeln!(out, "\n… and {left} more.")
}

/// A name, escaped.
fn short(name: &str) -> String {
    let (name, more) = cut(name, NAME_MAX);
    let dots = if more > 0 { "…" } else { "" };
    format!("{}{dots}", markdown(name))
}
