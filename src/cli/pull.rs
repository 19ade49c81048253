//! `casepack pull`: cases come from a store, verified.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::Context;
use super::args::{Pull, PullAs, PullView};
use super::exit::Exit;
use super::outcome::{Failure, Outcome, interrupted};
use super::settings::jobs;
use super::store;
use super::ui::{Progress, count, size};
use crate::bundle::{Release, View};
use crate::diag::{Diagnostic, Diagnostics, Levels, Rule};
use crate::escape;
use crate::fs::real_place;
use crate::path::CaseId;
use crate::plan::Select;
use crate::publish::{self, Chosen, Layout, Pulled, Remote};
use crate::store::StoreUrl;

/// Where Kubernetes looks for what a container said last.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Kubernetes keeps that much of it.
const MAX_SUMMARY: usize = 4096;
/// Paths of answer keys that are told one by one.
const TOLD: usize = 20;

pub(super) fn run(args: &Pull, context: &Context) -> Outcome {
    let mut outcome = match pull(args, context) {
        Ok(outcome) => outcome,
        Err(failed) => store::stopped(failed),
    };
    let to = match (&args.pulling.summary, args.pulling.in_pod) {
        (Some(path), _) => Some(context.machine.absolute(path)),
        (None, true) => Some(PathBuf::from(TERMINATION_LOG)),
        (None, false) => None,
    };
    if let Some(path) = to
        // In place: Kubernetes has mounted a file there.
        && let Err(error) = fs::write(&path, summary(&outcome))
    {
        let message = format!("The summary can not be written to {}.", path.display());
        let failure = Failure {
            causes: vec![error.to_string()],
            ..Failure::new(message, "Check --summary; what was pulled is in place.")
        };
        if outcome.failure.is_none() {
            outcome = outcome.failed(Exit::System, failure);
        }
    }
    outcome
}

/// One JSON object of at most 4 KiB.
fn summary(outcome: &Outcome) -> String {
    let mut document = outcome.fields.clone();
    document.insert("schema".to_owned(), json!("casepack.pull.v1"));
    document.insert("exit_code".to_owned(), json!(outcome.exit as u8));
    document.remove("answer_keys");
    if let Some(failure) = &outcome.failure {
        let text = [&failure.message].into_iter().chain(&failure.causes);
        let text: Vec<&str> = text.map(String::as_str).collect();
        // Escapes make at most six bytes of one.
        let mut text = text.join(": ");
        let end = (0..=text.len().min(400))
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        document.insert("error".to_owned(), json!(text));
    }
    let text = format!("{}\n", serde_json::Value::Object(document));
    if text.len() <= MAX_SUMMARY {
        return text;
    }
    let short = json!({"schema": "casepack.pull.v1", "exit_code": outcome.exit as u8});
    format!("{short}\n")
}

fn pull(args: &Pull, context: &Context) -> Result<Outcome, (Exit, Failure)> {
    let pulling = &args.pulling;
    let one = match pulling.view {
        PullView::All => None,
        PullView::Workspace => Some(View::Workspace),
        PullView::Evaluation => Some(View::Evaluation),
        PullView::Task => Some(View::Task),
    };
    let layout = match (one, pulling.r#as) {
        (None, None | Some(PullAs::Harbor)) => Layout::Harbor,
        (None, Some(PullAs::Cases)) => Layout::Cases,
        (Some(view), None) => Layout::View(view),
        (Some(_), Some(_)) => {
            let message =
                "--view with one view gives the files of that view; --as puts several together.";
            return Err((Exit::Usage, Failure::new(message, "Leave one of them out.")));
        }
    };
    let globs: Vec<String> = pulling
        .case
        .iter()
        .filter(|glob| !glob.is_empty())
        .cloned()
        .collect();
    let mut select = Select::new(&globs).map_err(|(glob, why)| {
        let failure = Failure::new(format!("--case {glob} is no pattern: {why}"), "");
        (Exit::Usage, failure)
    })?;
    if let Some((index, of)) = pulling.shard {
        select = select.shard(index, of);
    }
    store::with_release(&args.source, &args.s3, context, |remote, release| {
        let chosen = Chosen {
            has: &|id| select.has(id),
            only: literal(&globs),
        };
        get(args, context, remote, release, chosen, layout)
    })
}

fn get(
    args: &Pull,
    context: &Context,
    remote: Remote<'_>,
    release: &Release,
    chosen: Chosen<'_>,
    layout: Layout,
) -> Result<Outcome, (Exit, Failure)> {
    let pulling = &args.pulling;
    let out = context.machine.absolute(&pulling.out);
    if is_of_store(&args.source.src.0, &out, context) {
        let message = format!("{} belongs to the store itself.", out.display());
        let help = "Pull into another directory with -o.";
        return Err((Exit::Usage, Failure::new(message, help)));
    }
    let progress = Progress::new(&context.look);
    let pulled = publish::pull(
        &publish::Pull {
            remote,
            release,
            chosen,
            layout,
            out: &out,
            max_bytes: pulling.max_bytes,
            force: pulling.force,
            jobs: jobs(pulling.jobs),
            stop: &context.stop,
        },
        &progress,
    );
    drop(progress);
    let pulled = pulled.map_err(|error| store::told(&error))?;
    let traffic = remote.store.traffic();
    let mut outcome = Outcome::of(warnings(&pulled, &out))
        .field("store", args.source.src.0.to_string())
        .field("release", release.digest.to_string())
        .field("dataset_digest", release.document.dataset.to_string())
        .field("out", pulling.out.to_string_lossy().into_owned())
        .field("cases", pulled.cases)
        .field("written", pulled.written)
        .field("files", pulled.files)
        .field("bytes", pulled.bytes)
        .field("requests", traffic.requests)
        .field("bytes_read", traffic.bytes_read)
        .field("retries", traffic.retries);
    outcome.text = told(&pulled, &pulling.out.to_string_lossy());
    if pulled.interrupted {
        return Ok(interrupted(
            outcome,
            "The cases that are in place are whole.",
        ));
    }
    Ok(outcome)
}

/// Whether `out` is the store, or where it has its objects.
fn is_of_store(url: &StoreUrl, out: &Path, context: &Context) -> bool {
    let StoreUrl::Directory(store) = url.clone().absolute(&context.machine.cwd) else {
        return false;
    };
    let Ok(store) = store.canonicalize() else {
        return false;
    };
    let out = real_place(out);
    let below = out.as_ref().and_then(|out| out.strip_prefix(&store).ok());
    let objects = ["blobs", "refs", "gc"];
    below.is_some_and(|below| {
        below == Path::new("") || objects.iter().any(|name| below.starts_with(name))
    })
}

/// The cases that are named one by one, when none of the globs is a pattern.
fn literal(globs: &[String]) -> Option<Vec<CaseId>> {
    let id = |glob: &String| {
        let plain = !glob.contains(['*', '?', '[', ']', '{', '}', '\\']);
        plain.then(|| CaseId::new(glob).ok()).flatten()
    };
    let ids: Option<Vec<CaseId>> = globs.iter().map(id).collect();
    ids.filter(|ids| !ids.is_empty())
}

/// Names what the agent can read in the layout of EvalHub's adapters (policy 26), and what was left.
fn warnings(pulled: &Pulled, out: &Path) -> Diagnostics {
    let mut diags = Diagnostics::new(Levels::default());
    if let Some(record) = &pulled.damaged {
        let message = format!(
            "{} is no record that casepack wrote, or was damaged: what was pulled before and is no \
             part of this pull is not known.",
            record.display()
        );
        let help =
            "Look through the directory, or pull into a new one; the record was written anew.";
        diags.push(Diagnostic::new(Rule::RecordDamaged, message).help(help));
    }
    for name in &pulled.left {
        let message = format!(
            "{} was pulled before and is no part of this pull, and is not as casepack pulled it, \
             or could not be removed; it is left.",
            out.join(name).display()
        );
        let help = "Remove it if it is not needed.";
        diags.push(Diagnostic::new(Rule::OutputLeftBehind, message).help(help));
    }
    let help = "Pull packages (--as harbor) for cases whose answers must stay secret.";
    for (path, cases) in pulled.readable.iter().take(TOLD) {
        let cases = count(
            usize::try_from(*cases).unwrap_or(usize::MAX),
            "case",
            "cases",
        );
        let message = format!("The agent can read '{path}' of {cases} in this layout.");
        diags.push(Diagnostic::new(Rule::AnswerKeyReadable, message).help(help));
    }
    let more = pulled.readable.len().saturating_sub(TOLD);
    if more > 0 {
        let files = count(more, "other file", "other files");
        let message = format!("The agent can read {files} of evaluation material in this layout.");
        diags.push(Diagnostic::new(Rule::AnswerKeyReadable, message).help(help));
    }
    diags
}

fn told(pulled: &Pulled, out: &str) -> String {
    let number = |it: u64| usize::try_from(it).unwrap_or(usize::MAX);
    format!(
        "Pulled {} to {} ({}, {}), {} there already.\n",
        count(number(pulled.written), "case", "cases"),
        escape::line(out),
        count(number(pulled.files), "file", "files"),
        size(pulled.bytes),
        pulled.cases - pulled.written,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_short_whatever_failed() {
        for text in [
            "x".repeat(10_000),
            "\u{1}".repeat(10_000),
            "é".repeat(10_000),
        ] {
            let outcome = store::stopped((Exit::System, Failure::new(text, "")));
            let summary = summary(&outcome);
            assert!(summary.len() <= MAX_SUMMARY);
            let document: serde_json::Value = serde_json::from_str(&summary).unwrap();
            assert_eq!(document["exit_code"], 3);
            assert!(document["error"].as_str().unwrap().len() >= 399);
        }
    }

    #[test]
    fn names_are_told_from_patterns() {
        let list = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(ToString::to_string).collect();
            literal(&globs).map(|ids| ids.len())
        };
        assert_eq!(list(&["a", "b"]), Some(2));
        assert_eq!(list(&["a", "b*"]), None);
        assert_eq!(list(&[]), None);
        assert_eq!(list(&["a/b"]), None);
    }
}
