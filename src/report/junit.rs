//! `junit.xml`, for CI systems.
//!
//! Owns the form that both the schema of Jenkins (junit-10.xsd) and that of Maven Surefire
//! (surefire-test-report-3.0.xsd) accept: one `testsuite`, in each `testcase` first what is wrong,
//! then `system-out`. Refuses to know how cases were run.
//! Invariant: well-formed XML 1.0 with legal characters only, whatever the texts are.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::time::Duration;

use super::Report;
use super::excerpt::{End, Home, cut};
use super::words::{error, number, value, verdicts};
use crate::diag::count;
use crate::escape::{xml, xml_attribute};
use crate::fs::Root;
use crate::run::{CaseResult, Secrets, Status, ThresholdResult};

/// Of the output of an agent or a verifier of a case that did not pass so many bytes are shown.
const OUTPUT_MAX: usize = 8 << 10;
/// Over all cases.
const OUTPUTS_MAX: usize = 16 << 20;
/// Of any other text.
const TEXT_MAX: usize = 4 << 10;

/// Writes the document.
pub(super) fn write(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    let results = report.results;
    let summary = results.summary();
    let missed = results.thresholds.iter().filter(|bound| !bound.met);
    let time: Duration = results.cases.iter().map(|case| case.duration).sum();
    let name = if results.dataset.name.is_empty() {
        "casepack"
    } else {
        &results.dataset.name
    };
    writeln!(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(
        to,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" \
         time=\"{}\">",
        xml_attribute(name),
        summary.total + results.thresholds.len(),
        summary.failed + missed.count(),
        summary.errors,
        summary.skipped,
        Seconds(time),
    )?;
    writeln!(to, "  <properties>")?;
    // By the names of results.json.
    let figures = [
        ("mean_reward", summary.mean_reward),
        (
            "mean_reward_errors_as_zero",
            summary.mean_reward_errors_as_zero,
        ),
        ("cost_usd", summary.cost_usd),
    ];
    let figures = figures
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?.to_string())));
    for (name, value) in report.facts().into_iter().chain(figures) {
        writeln!(
            to,
            "    <property name=\"{}\" value=\"{}\"/>",
            xml_attribute(name),
            xml_attribute(&value),
        )?;
    }
    writeln!(to, "  </properties>")?;
    let most = OUTPUTS_MAX / (summary.failed + summary.errors).max(1);
    let most = most.min(OUTPUT_MAX);
    for (case, root) in report.cases() {
        one(name, case, (root, &report.secrets), most, to)?;
    }
    for bound in &results.thresholds {
        threshold(name, bound, to)?;
    }
    writeln!(to, "</testsuite>")
}

/// A case, with at most `most` bytes of its output.
fn one(
    suite: &str,
    case: &CaseResult,
    run: (Option<&Root>, &Secrets),
    most: usize,
    to: &mut dyn Write,
) -> io::Result<()> {
    write!(
        to,
        "  <testcase name=\"{}\" classname=\"{}\" time=\"{}\"",
        xml_attribute(case.id.as_str()),
        xml_attribute(suite),
        Seconds(case.duration),
    )?;
    let (message, _) = cut(case.message.as_deref().unwrap_or_default(), TEXT_MAX);
    match case.status {
        Status::Passed => return writeln!(to, "/>"),
        Status::Skipped => {
            writeln!(to, ">")?;
            let message = xml_attribute(message);
            writeln!(to, "    <skipped message=\"{message}\"/>")?;
            return writeln!(to, "  </testcase>");
        }
        Status::Failed => {
            let reward = case.reward.map_or_else(String::new, number);
            let mut told = format!("Reward {reward}.");
            if !message.is_empty() {
                told.extend([" ", message]);
            }
            writeln!(to, ">")?;
            problem("failure", "reward", &told, case, to)?;
        }
        Status::Error => {
            let kind = case.error.map_or_else(|| "error".to_owned(), error);
            writeln!(to, ">")?;
            problem("error", &kind, message, case, to)?;
        }
    }
    output(run, case, most, to)?;
    writeln!(to, "  </testcase>")
}

/// What is wrong, with what the judges said.
fn problem(
    element: &str,
    kind: &str,
    message: &str,
    case: &CaseResult,
    to: &mut dyn Write,
) -> io::Result<()> {
    let mut said = String::new();
    for (step, judge) in verdicts(case) {
        let why = judge.error.as_ref().or(judge.rationale.as_ref());
        let (why, more) = cut(why.map_or("", String::as_str), TEXT_MAX);
        let dots = if more > 0 { " …" } else { "" };
        let step = step.map_or_else(String::new, |step| format!("{step}: "));
        // Writing to a string does not fail.
        writeln!(said, "{step}{}: {}: {why}{dots}", judge.name, value(judge)).ok();
    }
    writeln!(
        to,
        "    <{element} message=\"{}\" type=\"{kind}\">{}</{element}>",
        xml_attribute(message),
        xml(&said),
    )
}

/// The last that agent and verifier printed, in the first attempt that did not pass.
fn output(
    (run, secrets): (Option<&Root>, &Secrets),
    case: &CaseResult,
    most: usize,
    to: &mut dyn Write,
) -> io::Result<()> {
    let mut attempts = case.attempts.iter();
    let attempt = attempts.find(|attempt| attempt.status != Status::Passed);
    let attempt = attempt.unwrap_or(case);
    let home = Home::of(run, attempt, secrets);
    let mut all = String::new();
    if attempt.steps.is_empty() {
        add_output(&home, most, &mut all);
    }
    for step in &attempt.steps {
        let each = most / attempt.steps.len();
        add_output(&home.step(&step.name), each, &mut all);
    }
    if all.is_empty() {
        return Ok(());
    }
    writeln!(to, "    <system-out>{}</system-out>", xml(&all))
}

fn add_output(home: &Home<'_>, most: usize, all: &mut String) {
    for name in ["stdout.txt", "stderr.txt", "logs/verifier/test-stdout.txt"] {
        let Some(excerpt) = home.read(name, End::Last, most) else {
            continue;
        };
        if excerpt.text.is_empty() {
            continue;
        }
        // Writing to a string does not fail.
        writeln!(all, "--- {}", home.path(name)).ok();
        if excerpt.left_out > 0 {
            let left_out = count(excerpt.left_out, "byte", "bytes");
            writeln!(all, "(left out before: {left_out})").ok();
        }
        all.push_str(&excerpt.text);
        if !all.ends_with('\n') {
            all.push('\n');
        }
    }
}

/// A bound over all cases, as a test of its own: else a run that missed it would look fine.
fn threshold(suite: &str, bound: &ThresholdResult, to: &mut dyn Write) -> io::Result<()> {
    let name = format!("{}.{}", bound.judge, bound.rule);
    write!(
        to,
        "  <testcase name=\"{}\" classname=\"{}.thresholds\" time=\"0.000\"",
        xml_attribute(&name),
        xml_attribute(suite),
    )?;
    if bound.met {
        return writeln!(to, "/>");
    }
    let reached = bound.value.map_or_else(|| "nothing".to_owned(), number);
    let told = format!(
        "The bound is {}, reached is {reached}.",
        number(bound.limit)
    );
    writeln!(to, ">")?;
    let told = xml_attribute(&told);
    writeln!(to, "    <failure message=\"{told}\" type=\"threshold\"/>")?;
    writeln!(to, "  </testcase>")
}

/// Seconds with three digits, as both schemas want them.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0.as_secs(), self.0.subsec_millis())
    }
}
