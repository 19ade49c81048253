//! Times, drawn: one bar for each case, in scale with all others.

use std::io::{self, Write};
use std::time::Duration;

use super::name;
use crate::diag::count;
use crate::report::words::time;
use crate::run::CaseResult;

/// So many cases have a bar.
const BARS_MAX: usize = 300;
/// Bars are drawn on so many units; the page stretches them.
const UNITS: u128 = 10_000;

/// The bars of all cases, or of those that took longest.
pub(super) fn overview(cases: &[CaseResult], to: &mut dyn Write) -> io::Result<()> {
    let end = cases.iter().map(|case| start(case) + case.duration).max();
    let Some(end) = end.filter(|end| !end.is_zero()) else {
        return Ok(());
    };
    let mut order: Vec<(usize, &CaseResult)> = cases.iter().enumerate().collect();
    if order.len() > BARS_MAX {
        order.sort_by_key(|(_, case)| std::cmp::Reverse(case.duration));
        order.truncate(BARS_MAX);
    }
    order.sort_by_key(|(at, case)| (start(case), *at));
    let started = cases.iter().any(|case| case.started.is_some());
    writeln!(
        to,
        "<section class=\"timeline\" aria-labelledby=\"times\">\n<h2 id=\"times\">Time line</h2>\n\
         <p class=\"key\"><span class=\"agent\">agent</span> <span class=\"verifier\">verifier</span> \
         <span class=\"rest\">everything else</span>{}</p>\n<ol>",
        if started {
            ""
        } else {
            " – when each case began is not known"
        },
    )?;
    for (at, case) in &order {
        let id = case.id.as_str();
        write!(to, "<li><a href=\"#c{at}\">{}</a>", name(id))?;
        bar(case, end, to)?;
        writeln!(to, "<span class=\"n\">{}</span></li>", time(case.duration))?;
    }
    writeln!(
        to,
        "</ol>\n<p class=\"axis\"><span>0</span><span>{}</span></p>",
        time(end)
    )?;
    if order.len() < cases.len() {
        let (shown, all) = (order.len(), cases.len());
        writeln!(
            to,
            "<p>The {shown} longest of {}.</p>",
            count(all, "case", "cases")
        )?;
    }
    writeln!(to, "</section>")
}

/// When a case began; one that was taken over from an earlier run has no place on this line.
fn start(case: &CaseResult) -> Duration {
    case.started.filter(|_| !case.resumed).unwrap_or_default()
}

/// One bar: all of the case, and in it agents and verifiers in their order.
fn bar(case: &CaseResult, end: Duration, to: &mut dyn Write) -> io::Result<()> {
    let units = |time: Duration| time.as_millis() * UNITS / end.as_millis().max(1);
    let (from, whole) = (start(case), case.duration);
    let mut parts: Vec<(&str, Duration)> = Vec::new();
    let attempts = std::slice::from_ref(case);
    let attempts = if case.attempts.is_empty() {
        attempts
    } else {
        &case.attempts
    };
    for attempt in attempts {
        let steps = attempt.steps.iter();
        let mut runs: Vec<_> = steps.map(|step| (&step.agent, &step.verifier)).collect();
        if runs.is_empty() {
            runs.push((&attempt.agent, &attempt.verifier));
        }
        for (agent, verifier) in runs {
            parts.extend(agent.as_ref().map(|run| ("agent", run.duration)));
            parts.extend(verifier.as_ref().map(|run| ("verifier", run.duration)));
        }
    }
    write!(
        to,
        "<svg viewBox=\"0 0 {UNITS} 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"rest\" x=\"{}\" y=\"1\" width=\"{}\" height=\"8\"/>",
        units(from),
        units(whole).max(10),
    )?;
    let mut at = from;
    let stop = from + whole;
    for (class, time) in parts {
        // What does not fit into the case was told wrongly.
        let time = time.min(stop.saturating_sub(at));
        let (x, width) = (units(at), units(time));
        if width > 0 {
            write!(
                to,
                "<rect class=\"{class}\" x=\"{x}\" y=\"1\" width=\"{width}\" height=\"8\"/>"
            )?;
        }
        at += time;
    }
    write!(to, "</svg>")
}
