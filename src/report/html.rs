//! `report.html`: one file that needs nothing else, for people.
//!
//! Owns the page: what is on it, in which order, and how much of what agents left is put into it.
//! Refuses to know how it looks (`templates/report.css`) and how tables sort (`report.js`).
//! Invariants: every text goes through `escape::html`; the page's own script and style are the only
//! ones that a browser may run (their hashes are in its policy, and it may load nothing); cases are
//! written one after the other, so that memory does not grow with them.

mod case;
mod timeline;

use std::collections::BTreeMap;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::compare::{Change, strangeness};
use super::excerpt::cut;
use super::words::{self, number, outcome, percent, time};
use super::{Report, excerpt::Home};
use crate::diag::count;
use crate::digest::Digest;
use crate::escape::html as escaped;
use crate::run::{CaseResult, Status};

const STYLE: &str = include_str!("../../templates/report.css");
const SCRIPT: &str = include_str!("../../templates/report.js");

/// So many bytes of files are put into the page, over all cases.
const FILES_MAX: usize = 24 << 20;
/// Of the files of one case never more.
const CASE_MAX: usize = 512 << 10;
/// A case that did not pass gets so many times what another one gets.
const BAD: usize = 4;
/// Of a message in a table.
const MESSAGE_MAX: usize = 300;
/// Of a name.
const NAME_MAX: usize = 200;

/// Writes the page.
pub(super) fn write(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    let results = report.results;
    let name = name(&results.dataset.name);
    let hash = |text: &str| STANDARD.encode(Digest::of(text.as_bytes()).as_bytes());
    write!(
        to,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{name}: casepack report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        hash(STYLE),
        hash(SCRIPT),
    )?;
    write!(
        to,
        "<a class=\"skip\" href=\"#cases\">Skip to the cases</a>\n<header>\n<h1>{name}</h1>\n"
    )?;
    verdict(report, to)?;
    facts(report, to)?;
    writeln!(to, "</header>\n<main>")?;
    warnings(report, to)?;
    thresholds(report, to)?;
    compared(report, to)?;
    table(report, to)?;
    timeline::overview(&results.cases, to)?;
    let passed = |case: &CaseResult| case.status == Status::Passed;
    let good = results.cases.iter().filter(|case| passed(case)).count();
    let shares = good + (results.cases.len() - good) * BAD;
    let share = FILES_MAX / shares.max(1);
    writeln!(
        to,
        "<section aria-labelledby=\"details\">\n<h2 id=\"details\">Case by case</h2>"
    )?;
    for (at, (case, root)) in report.cases().enumerate() {
        let most = share * if passed(case) { 1 } else { BAD };
        case::write(
            at,
            case,
            &|it| Home::of(root, it, &report.secrets),
            most.min(CASE_MAX),
            to,
        )?;
    }
    write!(
        to,
        "</section>\n</main>\n<footer>casepack {}</footer>\n<script>{SCRIPT}</script>\n</body>\n\
         </html>\n",
        escaped(cut(&results.casepack_version, NAME_MAX).0),
    )
}

/// The numbers of the whole run.
fn verdict(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    let summary = report.results.summary();
    let passed = report.results.all_passed();
    writeln!(
        to,
        "<p class=\"rate {}\"><strong>{}</strong> <span>{} of {} passed{}</span></p>",
        if passed { "passed" } else { "failed" },
        percent(summary.passed, summary.total),
        summary.passed,
        count(summary.total, "case", "cases"),
        if passed { "" } else { "; the run did not pass" },
    )?;
    let parts = [
        (summary.passed, Status::Passed, "passed"),
        (summary.failed, Status::Failed, "failed"),
        (summary.errors, Status::Error, "without a verdict"),
        (summary.skipped, Status::Skipped, "skipped"),
    ];
    let total = summary.total.max(1);
    write!(
        to,
        "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" \
         aria-hidden=\"true\">"
    )?;
    let mut from = 0;
    for (count, status, _) in parts {
        // In thousandths of all cases.
        let until = from + count;
        let (x, end) = (from * 1000 / total, until * 1000 / total);
        let (class, width) = (status.name(), end - x);
        write!(
            to,
            "<rect class=\"{class}\" x=\"{x}\" y=\"0\" width=\"{width}\" height=\"10\"/>"
        )?;
        from = until;
    }
    writeln!(to, "</svg>\n<ul class=\"numbers\">")?;
    for (count, status, what) in parts {
        if count > 0 {
            writeln!(to, "<li class=\"{}\">{count} {what}</li>", status.name())?;
        }
    }
    for told in words::mean_reward(&summary)
        .into_iter()
        .chain(words::usage(&summary))
    {
        writeln!(to, "<li>{told}</li>")?;
    }
    for (k, rate) in summary.pass_at_k.iter().take(10) {
        writeln!(to, "<li>pass@{k} {}</li>", number(*rate))?;
    }
    writeln!(to, "</ul>")
}

fn facts(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "<dl class=\"facts\">")?;
    for (what, value) in report.facts() {
        let value = escaped(cut(&value, NAME_MAX).0).into_owned();
        writeln!(to, "<div><dt>{what}</dt><dd>{value}</dd></div>")?;
    }
    writeln!(to, "</dl>")
}

fn warnings(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    let results = report.results;
    if results.interrupted {
        writeln!(
            to,
            "<p class=\"warning\">The run was stopped before all cases were done.</p>"
        )?;
    }
    for warning in results.warnings.iter().take(20) {
        let (warning, _) = cut(warning, 1000);
        writeln!(to, "<p class=\"warning\">{}</p>", escaped(warning))?;
    }
    Ok(())
}

fn thresholds(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    let all = &report.results.thresholds;
    if all.is_empty() {
        return Ok(());
    }
    writeln!(
        to,
        "<section aria-labelledby=\"bounds\">\n<h2 id=\"bounds\">Thresholds</h2>\n\
         <div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">Status</th>\
         <th scope=\"col\">Judge</th><th scope=\"col\">Bound</th>\
         <th scope=\"col\" class=\"n\">Limit</th><th scope=\"col\" class=\"n\">Reached</th></tr></thead>\n<tbody>"
    )?;
    for bound in all {
        let (class, word) = if bound.met {
            ("passed", "met")
        } else {
            ("failed", "missed")
        };
        writeln!(
            to,
            "<tr><td><span class=\"badge {class}\">{word}</span></td><td>{}</td><td>{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            name(&bound.judge),
            name(&bound.rule),
            number(bound.limit),
            bound.value.map_or_else(|| "nothing".to_owned(), number),
        )?;
    }
    writeln!(to, "</tbody>\n</table></div>\n</section>")
}

/// What differs from the earlier run.
fn compared(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    let Some((before, changes)) = report.compared() else {
        return Ok(());
    };
    writeln!(
        to,
        "<section aria-labelledby=\"compared\">\n<h2 id=\"compared\">Compared with {}</h2>\n\
         <ul class=\"numbers\">",
        name(&before.run_id)
    )?;
    for (change, what) in [
        (Change::Fixed, "fixed"),
        (Change::Broken, "broken"),
        (Change::Reward, "with another reward"),
        (Change::New, "new"),
        (Change::Gone, "gone"),
    ] {
        let count = changes.iter().filter(|it| it.change == change).count();
        writeln!(to, "<li class=\"{}\">{count} {what}</li>", change.name())?;
    }
    writeln!(to, "</ul>")?;
    let told = strangeness(before, report.results).join(" ");
    if !told.is_empty() {
        let told = escaped(cut(&told, 1000).0);
        writeln!(to, "<p class=\"warning\">{told}</p>")?;
    }
    if !changes.is_empty() {
        writeln!(
            to,
            "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">Change</th>\
             <th scope=\"col\">Case</th><th scope=\"col\">Before</th><th scope=\"col\">Now</th>\
             </tr></thead>\n<tbody>"
        )?;
    }
    let cases = report.results.cases.iter().enumerate();
    let places: BTreeMap<&str, usize> = cases.map(|(at, case)| (case.id.as_str(), at)).collect();
    for it in changes {
        let word = it.change.name();
        let case = match places.get(it.case) {
            Some(at) => format!("<a href=\"#c{at}\">{}</a>", name(it.case)),
            None => name(it.case),
        };
        writeln!(
            to,
            "<tr><td><span class=\"badge {word}\">{word}</span></td><td class=\"id\">{case}</td>\
             <td class=\"o\">{}</td><td class=\"o\">{}</td></tr>",
            outcome(it.before),
            outcome(it.after),
        )?;
    }
    if !changes.is_empty() {
        writeln!(to, "</tbody>\n</table></div>")?;
    }
    writeln!(to, "</section>")
}

/// The table of all cases. The script sorts by `data-` values and hides rows.
fn table(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    writeln!(
        to,
        "<section aria-labelledby=\"cases\">\n<h2 id=\"cases\" tabindex=\"-1\">Cases</h2>\n\
         <p class=\"filter\" hidden><label>Find <input id=\"find\" type=\"search\" \
         autocomplete=\"off\" placeholder=\"name or message\"></label>"
    )?;
    for (status, what) in [
        (Status::Passed, "passed"),
        (Status::Failed, "failed"),
        (Status::Error, "error"),
        (Status::Skipped, "skipped"),
    ] {
        let (class, word) = (status.name(), what);
        writeln!(
            to,
            "<label><input type=\"checkbox\" data-show=\"{class}\" checked> {word}</label>"
        )?;
    }
    writeln!(
        to,
        "<output id=\"shown\" aria-live=\"polite\"></output></p>\n\
         <div class=\"scroll\"><table id=\"all\">\n<thead><tr>\
         <th scope=\"col\" data-by=\"status\">Status</th><th scope=\"col\" data-by=\"text\">Case</th>\
         <th scope=\"col\" class=\"n\" data-by=\"reward\">Reward</th>\
         <th scope=\"col\" class=\"n\" data-by=\"time\">Time</th><th scope=\"col\">Message</th>\
         </tr></thead>\n<tbody>"
    )?;
    for (at, case) in report.results.cases.iter().enumerate() {
        let status = case.status.name();
        let message = case.message.as_deref().unwrap_or_default();
        let (message, more) = cut(message, MESSAGE_MAX);
        writeln!(
            to,
            "<tr data-status=\"{status}\"><td data-v=\"{}\"><span class=\"badge {status}\">{status}\
             </span></td><td class=\"id\"><a href=\"#c{at}\">{}</a></td><td class=\"n\" data-v=\"{}\">{}</td>\
             <td class=\"n\" data-v=\"{}\">{}</td><td class=\"m\">{}{}</td></tr>",
            case.status as u8,
            name(case.id.as_str()),
            case.reward.unwrap_or(-1e308),
            case.reward.map_or_else(String::new, number),
            case.duration.as_millis(),
            time(case.duration),
            escaped(message),
            if more > 0 { " …" } else { "" },
        )?;
    }
    writeln!(to, "</tbody>\n</table></div>\n</section>")
}

/// A name, cut and escaped.
fn name(text: &str) -> String {
    let (text, more) = cut(text, NAME_MAX);
    let dots = if more > 0 { "…" } else { "" };
    let text = if text.is_empty() { "–" } else { text };
    format!("{}{dots}", escaped(text))
}
