//! `casepack explain`: what a rule means. `docs/rules.md` is made from the same table.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Context;
use super::args::Explain;
use super::outcome::Outcome;
use super::ui::{Cell, Ink, Table};
use crate::diag::{Rule, RuleInfo, Severity};
use crate::escape;

pub(super) fn run(args: &Explain, context: &Context) -> Outcome {
    let color = context.look.color_out;
    let (text, rules) = match args.rule {
        _ if args.markdown => (markdown(), Rule::ALL),
        Some(rule) => (one(rule, color), &[rule][..]),
        None => (all(color), Rule::ALL),
    };
    let rules: Vec<Value> = rules.iter().map(|rule| fields(*rule)).collect();
    Outcome::text(text).field("rules", rules)
}

fn one(rule: Rule, color: bool) -> String {
    let RuleInfo {
        summary,
        why,
        fix,
        example,
        ..
    } = rule.info();
    let mut out = format!(
        "{} ({})\n\n{summary}\n",
        Ink::Strong.paint(rule.name(), color),
        level(rule)
    );
    for (title, text) in [("Why", why), ("Fix", fix), ("Example", example)] {
        if !text.is_empty() {
            let text = text.replace('\n', "\n    ");
            add(&mut out, format_args!("\n{title}:\n    {text}\n"));
        }
    }
    out
}

fn all(color: bool) -> String {
    let mut table = Table::default();
    for rule in Rule::ALL {
        let info = rule.info();
        let ink = match info.severity {
            Severity::Error => Ink::Bad,
            Severity::Warning => Ink::Unsure,
            Severity::Note => Ink::Faint,
        };
        table.row([
            Cell::new(info.name),
            Cell::new(info.severity.name()).ink(ink),
            Cell::new(info.summary),
        ]);
    }
    table.show(color)
}

/// What `--deny` and `--allow` do to it.
fn level(rule: Rule) -> String {
    let severity = rule.info().severity;
    let allow = if rule.may_be_allowed() {
        ", may be allowed with --allow"
    } else {
        ""
    };
    let deny = if severity == Severity::Warning {
        ", an error with --deny"
    } else {
        ""
    };
    format!("{}{deny}{allow}", severity.name())
}

fn fields(rule: Rule) -> Value {
    let info = rule.info();
    json!({
        "name": info.name,
        "severity": info.severity.name(),
        "allowable": rule.may_be_allowed(),
        "summary": info.summary,
        "why": info.why,
        "fix": info.fix,
        "example": info.example,
    })
}

/// The content of `docs/rules.md`.
fn markdown() -> String {
    let mut out = String::from(
        "# Rules\n\n\
         What casepack says about datasets. The names are stable: `--deny RULE` turns warnings of a \
         rule into errors, `--allow RULE` turns off what may be turned off, and \
         `casepack explain RULE` shows a part of this page, which is made from the same table.\n\n\
         | rule | level | what was found |\n| --- | --- | --- |\n",
    );
    for rule in Rule::ALL {
        let (name, info) = (rule.name(), rule.info());
        let summary = escape::markdown(info.summary);
        let severity = info.severity.name();
        add(
            &mut out,
            format_args!("| [`{name}`](#{name}) | {severity} | {summary} |\n"),
        );
    }
    for rule in Rule::ALL {
        let info = rule.info();
        let summary = escape::markdown(info.summary);
        let (name, level) = (rule.name(), level(*rule));
        add(
            &mut out,
            format_args!("\n## {name}\n\n{summary} *({level})*\n"),
        );
        for (title, text) in [("Why", info.why), ("Fix", info.fix)] {
            if !text.is_empty() {
                let text = escape::markdown(text);
                add(&mut out, format_args!("\n**{title}.** {text}\n"));
            }
        }
        if !info.example.is_empty() {
            add(&mut out, format_args!("\n```yaml\n{}\n```\n", info.example));
        }
    }
    out
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to a string does not fail");
}
