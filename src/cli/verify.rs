//! `casepack verify`: what was built, read and compared with what was recorded; or a store.

pub(super) mod stored;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::args::Verify;
use super::exit::Exit;
use super::outcome::{Failure, Outcome, interrupted};
use super::ui::{Cell, Ink, Progress, Table, count, size};
use super::{Context, settings};
use crate::dataset::OUTPUT_MARK;
use crate::diag::{Diagnostics, Levels};
use crate::escape;
use crate::plan::{self, Change, Crew, Difference};
use crate::target::Target;

/// Differences that are shown to people without `-v`.
const SHOWN: usize = 50;

pub(super) fn run(args: &Verify, context: &Context) -> Outcome {
    let mut diags = Diagnostics::new(Levels::default());
    let given = context.machine.absolute(&args.path);
    if let Some(url) = stored::at(&args.path, &given) {
        return stored::run(&url, args, context);
    }
    let shown = escape::line(&args.path.to_string_lossy()).into_owned();
    let Some(out) = build_at(&given) else {
        let failure = Failure::new(
            format!("{shown} is no output directory of casepack."),
            "Name the directory that was given to `casepack build -o`, which holds a directory \
             .casepack with what was recorded; or a store: s3://BUCKET/PREFIX, or the directory \
             that releases were published to.",
        );
        return Outcome::of(diags).failed(Exit::Usage, failure);
    };
    // What is in OUT/bundle is a store, and read as one.
    let bundle = out.join(Target::Bundle.name());
    let bundle = stored::at(&bundle, &bundle);
    let progress = Progress::new(&context.look);
    let crew = Crew {
        jobs: settings::jobs(args.jobs),
        stop: &context.stop,
        observer: &progress,
    };
    let verified = plan::verify(&out, &crew, &mut diags);
    drop(progress);
    let verified = match verified {
        Ok(Some(verified)) => verified,
        Ok(None) => {
            if let Some(url) = bundle {
                return stored::run(&url, args, context);
            }
            let failure = Failure::new(
                format!("Nothing is recorded in {shown}."),
                "Build it first: `casepack build`.",
            );
            return Outcome::of(diags).failed(Exit::Usage, failure);
        }
        Err(error) => {
            let help = "Check that you may read there.";
            return Outcome::of(diags).failed(Exit::System, Failure::from_error(&error, help));
        }
    };
    let differences = &verified.differences;
    let mut text = table(differences, context);
    let outputs = count(verified.outputs, "output", "outputs");
    let files = count(
        verified.files.try_into().unwrap_or(usize::MAX),
        "file",
        "files",
    );
    text.extend([
        shown.as_str(),
        ": ",
        &outputs,
        " read (",
        &files,
        ", ",
        &size(verified.bytes),
        "), ",
    ]);
    if differences.is_empty() {
        text.push_str("all as they were built.\n");
    } else {
        let number = count(differences.len(), "difference", "differences");
        text.extend([&number, ". `casepack build --force` makes them anew.\n"]);
    }
    let targets: Vec<_> = verified.targets.iter().map(|it| it.name()).collect();
    let fine = differences.is_empty();
    let mut outcome = Outcome::of(diags)
        .field("out", out.to_string_lossy().into_owned())
        .field("targets", targets)
        .field("outputs", verified.outputs)
        .field("files", verified.files)
        .field("bytes", verified.bytes)
        .field(
            "differences",
            differences.iter().map(document).collect::<Vec<_>>(),
        );
    outcome.text = text;
    if verified.interrupted {
        return interrupted(outcome, "Not every output was read.");
    }
    if let Some(url) = bundle {
        let stored = stored::run(&url, args, context);
        outcome.text.push_str(&stored.text);
        outcome.failure = stored.failure;
        outcome.exit = stored.exit;
        outcome = outcome.field("bundle", Value::Object(stored.fields));
    }
    if fine {
        outcome
    } else {
        outcome.at_least(Exit::Findings)
    }
}

/// The output directory that `path` is, or is a target's directory of.
pub(super) fn build_at(path: &Path) -> Option<PathBuf> {
    [Some(path), path.parent()]
        .into_iter()
        .flatten()
        .find(|dir| dir.join(OUTPUT_MARK).is_dir())
        .map(Path::to_owned)
}

fn document(difference: &Difference) -> Value {
    json!({
        "target": difference.target.name(),
        "output": difference.place,
        "file": difference.path,
        "change": difference.change.name(),
        "recorded": difference.recorded,
        "found": difference.found,
    })
}

fn table(differences: &[Difference], context: &Context) -> String {
    let mut table = Table::default();
    let all = context.look.verbose;
    let shown = if all { differences.len() } else { SHOWN };
    for difference in differences.iter().take(shown) {
        let file = difference.path.as_deref().unwrap_or("");
        let place = format!("{}/{}", difference.target.name(), difference.place);
        let place = match difference.change {
            Change::Listed => format!("{place} [{file}]"),
            _ if file.is_empty() => place,
            _ => format!("{place}/{file}"),
        };
        table.row([
            Cell::new(difference.change.name()).ink(ink(difference.change)),
            Cell::new(place),
            Cell::new(match (&difference.recorded, &difference.found) {
                (Some(recorded), Some(found)) => {
                    format!("{} → {}", brief(recorded), brief(found))
                }
                (None, Some(found)) if difference.change == Change::Unusable => found.clone(),
                _ => String::new(),
            })
            .ink(Ink::Faint),
        ]);
    }
    let mut text = table.show(context.look.color_out);
    if differences.len() > shown {
        let more = (differences.len() - shown).to_string();
        text.extend(["… and ", &more, " more (-v shows all)\n"]);
    }
    text
}

/// The colour of a change.
pub(super) fn ink(change: Change) -> Ink {
    match change {
        Change::Added => Ink::Good,
        Change::Removed | Change::Unusable => Ink::Bad,
        Change::Content | Change::Mode | Change::Listed => Ink::Unsure,
    }
}

/// The first digits of a digest, which is hex with `sha256:` before it or without; other texts whole.
pub(super) fn brief(digest: &str) -> &str {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    let is_digest = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.get(..8).filter(|_| is_digest).unwrap_or(digest)
}
