//! The section of one case.

use std::io::{self, Write};

use super::{escaped, name};
use crate::diag::count;
use crate::report::excerpt::{End, Excerpt, Home, cut};
use crate::report::words::{self, error, number, time, value};
use crate::run::{AgentRun, CaseResult, HookRun, JudgeResult, Status, VerifierRun};

/// Lines of a table that come from a run are at most so many.
const ROWS_MAX: usize = 200;
/// Of a rationale or a message so many bytes are shown.
const TEXT_MAX: usize = 8 << 10;

/// How many bytes of a case's files may still be shown.
struct Room {
    left: usize,
}

/// Writes the section of the case number `at`, with at most `most` bytes of its files.
pub(super) fn write<'a>(
    at: usize,
    case: &'a CaseResult,
    home: &dyn Fn(&'a CaseResult) -> Home<'a>,
    most: usize,
    to: &mut dyn Write,
) -> io::Result<()> {
    let status = case.status.name();
    let open = matches!(case.status, Status::Failed | Status::Error) && at < 50;
    write!(
        to,
        "<details class=\"case\" id=\"c{at}\" data-status=\"{status}\"{}>\n<summary>\
         <span class=\"badge {status}\">{status}</span> <span class=\"id\">{}</span> \
         <span class=\"n\">{}{}</span></summary>\n",
        if open { " open" } else { "" },
        name(case.id.as_str()),
        case.reward
            .map_or_else(String::new, |reward| format!("{} · ", number(reward))),
        time(case.duration),
    )?;
    let mut room = Room { left: most };
    message(case.message.as_deref(), to)?;
    if case.attempts.is_empty() {
        attempt(case, &home(case), &mut room, to)?;
    } else {
        let each = most / case.attempts.len();
        for (number, it) in case.attempts.iter().enumerate() {
            let status = it.status.name();
            writeln!(
                to,
                "<details class=\"part\"><summary><span class=\"badge {status}\">{status}</span> \
                 Attempt {}</summary>",
                number + 1
            )?;
            message(it.message.as_deref(), to)?;
            attempt(it, &home(it), &mut Room { left: each }, to)?;
            writeln!(to, "</details>")?;
        }
    }
    writeln!(
        to,
        "<p class=\"up\"><a href=\"#cases\">All cases</a></p>\n</details>"
    )
}

fn message(text: Option<&str>, to: &mut dyn Write) -> io::Result<()> {
    match text.filter(|text| !text.is_empty()) {
        Some(text) => writeln!(
            to,
            "<p class=\"message\">{}</p>",
            escaped(cut(text, TEXT_MAX).0)
        ),
        None => Ok(()),
    }
}

/// One attempt at a case.
fn attempt(
    case: &CaseResult,
    home: &Home<'_>,
    room: &mut Room,
    to: &mut dyn Write,
) -> io::Result<()> {
    facts(case, to)?;
    for retried in case.retried.iter().take(ROWS_MAX) {
        let why = retried.message.as_deref().unwrap_or_default();
        writeln!(
            to,
            "<p class=\"message\">An earlier try ended without a verdict ({}): {}</p>",
            error(retried.error),
            escaped(cut(why, TEXT_MAX).0),
        )?;
    }
    if case.steps.is_empty() {
        judges(&case.judges, to)?;
    }
    let files = &case.outputs.files;
    let changes = home.read("workspace.diff", End::First, room.left / 2);
    if case.steps.is_empty() {
        pre("Instruction", "instruction.md", home, End::First, room, to)?;
    }
    if let Some(changes) = changes.filter(|changes| !changes.text.is_empty()) {
        room.left -= changes.text.len().min(room.left);
        diff(&changes, &home.path("workspace.diff"), to)?;
    }
    if !files.is_empty() || !case.outputs.skipped.is_empty() {
        writeln!(to, "<h3>Outputs</h3>\n<ul class=\"files\">")?;
        for file in files.iter().take(ROWS_MAX) {
            let path = escaped(cut(&file.path, TEXT_MAX).0).into_owned();
            writeln!(
                to,
                "<li>{path} <span class=\"n\">{}</span></li>",
                count(file.size, "byte", "bytes")
            )?;
        }
        if files.len() > ROWS_MAX {
            writeln!(to, "<li>… and {} more</li>", files.len() - ROWS_MAX)?;
        }
        for left in case.outputs.skipped.iter().take(ROWS_MAX) {
            let path = escaped(cut(&left.path, TEXT_MAX).0).into_owned();
            let reason = escaped(cut(&left.reason, TEXT_MAX).0).into_owned();
            writeln!(to, "<li>{path} was left: {reason}</li>")?;
        }
        writeln!(to, "</ul>")?;
    }
    if case.steps.is_empty() {
        logs(home, room, to)?;
    }
    for step in case.steps.iter().take(ROWS_MAX) {
        let home = home.step(&step.name);
        let mut own = Room {
            left: room.left / case.steps.len(),
        };
        let reward = step
            .reward
            .map_or_else(String::new, |reward| format!(": {}", number(reward)));
        writeln!(
            to,
            "<details class=\"part\"><summary>Step {}{reward}</summary>",
            name(&step.name)
        )?;
        message(step.message.as_deref(), to)?;
        writeln!(to, "<dl class=\"facts\">")?;
        parties(
            step.agent.as_ref(),
            step.verifier.as_ref(),
            &mut |what, value| writeln!(to, "<div><dt>{what}</dt><dd>{value}</dd></div>"),
        )?;
        writeln!(to, "</dl>")?;
        judges(&step.judges, to)?;
        pre(
            "Instruction",
            "instruction.md",
            &home,
            End::First,
            &mut own,
            to,
        )?;
        logs(&home, &mut own, to)?;
        writeln!(to, "</details>")?;
    }
    hooks(&case.hooks, to)
}

fn facts(case: &CaseResult, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "<dl class=\"facts\">")?;
    let mut one = |what: &str, value: &str| {
        let value = escaped(cut(value, TEXT_MAX).0);
        writeln!(to, "<div><dt>{what}</dt><dd>{value}</dd></div>")
    };
    if let Some(kind) = case.error {
        one("no verdict", &error(kind))?;
    }
    // The one that counts stands beside the case's name.
    let others = case.rewards.iter().filter(|(name, _)| *name != "reward");
    for (name, reward) in others {
        one(&super::name(name), &number(*reward))?;
    }
    // With steps each has its own.
    if case.steps.is_empty() {
        parties(case.agent.as_ref(), case.verifier.as_ref(), &mut one)?;
    }
    if case.resumed {
        one("taken over", "from an earlier run")?;
    }
    if let Some(digest) = &case.package_digest {
        one("package digest", digest)?;
    }
    writeln!(to, "</dl>")
}

/// How agent and verifier ended.
fn parties(
    agent: Option<&AgentRun>,
    verifier: Option<&VerifierRun>,
    one: &mut dyn FnMut(&str, &str) -> io::Result<()>,
) -> io::Result<()> {
    if let Some(agent) = agent {
        let how = ended(agent.exit_code, agent.signal, agent.timed_out);
        one("agent", &how)?;
        one("agent's time", &time(agent.duration))?;
        usage(agent, one)?;
    }
    if let Some(verifier) = verifier {
        let how = ended(verifier.exit_code, verifier.signal, verifier.timed_out);
        one("verifier", &how)?;
        one("verifier's time", &time(verifier.duration))?;
    }
    Ok(())
}

fn usage(agent: &AgentRun, one: &mut dyn FnMut(&str, &str) -> io::Result<()>) -> io::Result<()> {
    if let Some(cost) = agent.cost_usd {
        one("cost", &format!("{} $", number(cost)))?;
    }
    if let Some(turns) = agent.num_turns {
        one("turns", &turns.to_string())?;
    }
    if let Some(tokens) = &agent.token_usage {
        one("tokens", &words::tokens(tokens))?;
    }
    if agent.output_dropped > 0 {
        one(
            "output dropped",
            &count(agent.output_dropped, "byte", "bytes"),
        )?;
    }
    Ok(())
}

fn ended(code: Option<i32>, signal: Option<i32>, timed_out: bool) -> String {
    match (timed_out, code, signal) {
        (true, _, _) => "its time was up".to_owned(),
        (_, Some(code), _) => format!("exit status {code}"),
        (_, None, Some(signal)) => format!("signal {signal}"),
        _ => "–".to_owned(),
    }
}

fn judges(all: &[JudgeResult], to: &mut dyn Write) -> io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(
        to,
        "<h3>Judges</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">Judge</th>\
         <th scope=\"col\">Value</th><th scope=\"col\">Why</th></tr></thead>\n<tbody>"
    )?;
    for judge in all.iter().take(ROWS_MAX) {
        let why = judge.error.as_ref().or(judge.rationale.as_ref());
        let (why, more) = cut(why.map_or("", String::as_str), TEXT_MAX);
        let class = match value(judge).as_str() {
            "yes" => "passed",
            "no" => "failed",
            "error" | "nothing" => "error",
            "skipped" => "skipped",
            _ => "number",
        };
        writeln!(
            to,
            "<tr><th scope=\"row\">{}</th><td><span class=\"badge {class}\">{}</span></td>\
             <td class=\"m\">{}{}</td></tr>",
            name(&judge.name),
            escaped(&value(judge)),
            escaped(why),
            if more > 0 { " …" } else { "" },
        )?;
    }
    writeln!(to, "</tbody>\n</table></div>")
}

/// What agent and verifier printed, the end of it.
fn logs(home: &Home<'_>, room: &mut Room, to: &mut dyn Write) -> io::Result<()> {
    for (what, file) in [
        ("Agent's output", "stdout.txt"),
        ("Agent's errors", "stderr.txt"),
        ("Verifier's output", "logs/verifier/test-stdout.txt"),
        ("Set-up's output", "setup-stdout.txt"),
    ] {
        pre(what, file, home, End::Last, room, to)?;
    }
    Ok(())
}

/// One file, as far as there is room for it.
fn pre(
    what: &str,
    file: &str,
    home: &Home<'_>,
    end: End,
    room: &mut Room,
    to: &mut dyn Write,
) -> io::Result<()> {
    // Half of what is left, so that there is some for what comes after.
    let Some(Excerpt { text, left_out }) = home.read(file, end, room.left / 2) else {
        return Ok(());
    };
    if text.is_empty() && left_out == 0 {
        return Ok(());
    }
    room.left -= text.len().min(room.left);
    writeln!(to, "<h3>{what}</h3>")?;
    if left_out > 0 {
        omitted(left_out, end, &home.path(file), to)?;
    }
    let lines = text.lines().count();
    let tall = if lines > 40 { " class=\"tall\"" } else { "" };
    // The parser drops one line feed after the tag.
    writeln!(to, "<pre tabindex=\"0\"{tall}>\n{}</pre>", escaped(&text))
}

fn omitted(bytes: u64, end: End, path: &str, to: &mut dyn Write) -> io::Result<()> {
    let side = match end {
        End::First => "after",
        End::Last => "before",
    };
    let path = escaped(path);
    writeln!(
        to,
        "<p class=\"omitted\">Left out: {} {side} this; all of it is in {path}.</p>",
        count(bytes, "byte", "bytes")
    )
}

/// What changed in the workspace, coloured by lines.
fn diff(changes: &Excerpt, path: &str, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "<h3>Changes in the workspace</h3>")?;
    if changes.left_out > 0 {
        omitted(changes.left_out, End::First, path, to)?;
    }
    let lines = changes.text.lines().count();
    let tall = if lines > 40 { " tall" } else { "" };
    write!(to, "<pre tabindex=\"0\" class=\"diff{tall}\">")?;
    let mut heads = 0;
    let mut all = changes.text.split_inclusive('\n').peekable();
    while let Some(line) = all.next() {
        let text = escaped(line);
        let named = |line: &str, side: &str| {
            let rest = line.strip_prefix(side).unwrap_or_default();
            ["a/", "b/", "/dev/null"]
                .iter()
                .any(|name| rest.starts_with(name))
        };
        if named(line, "--- ") && all.peek().is_some_and(|next| named(next, "+++ ")) {
            heads = 2;
        }
        match line.as_bytes().first() {
            _ if heads > 0 => {
                write!(to, "<b>{text}</b>")?;
                heads -= 1;
            }
            Some(b'+') => write!(to, "<ins>{text}</ins>")?,
            Some(b'-') => write!(to, "<del>{text}</del>")?,
            Some(b' ' | b'\\') => write!(to, "{text}")?,
            Some(b'@') => write!(to, "<i>{text}</i>")?,
            _ => write!(to, "<b>{text}</b>")?,
        }
    }
    writeln!(to, "</pre>")
}

fn hooks(all: &[HookRun], to: &mut dyn Write) -> io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(
        to,
        "<h3>Hooks</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">Phase</th>\
         <th scope=\"col\">What</th><th scope=\"col\">Ended</th>\
         <th scope=\"col\" class=\"n\">Time</th></tr></thead>\n<tbody>"
    )?;
    for hook in all.iter().take(ROWS_MAX) {
        let how = if hook.skipped {
            "left out".to_owned()
        } else {
            ended(hook.exit_code, None, hook.timed_out)
        };
        writeln!(
            to,
            "<tr><td>{}</td><td class=\"m\">{}</td><td>{how}</td><td class=\"n\">{}</td></tr>",
            name(&hook.phase),
            escaped(cut(&hook.what, TEXT_MAX).0),
            time(hook.duration),
        )?;
    }
    writeln!(to, "</tbody>\n</table></div>")
}
