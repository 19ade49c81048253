//! `casepack init DIR`: a small dataset that runs as it is.
//!
//! The files are those of `templates/init`, compiled in.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde_json::Value;

use super::Context;
use super::args::Init;
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::ui::count;
use crate::diag::Diagnostics;
use crate::escape;
use crate::fs::StagedDir;
use crate::path::TreePath;
use crate::tree::{Content, Mode, Tree, TreeBuilder, materialise};

macro_rules! files {
    ($($path:literal)*) => {
        &[$(($path, include_str!(concat!("../../templates/init/", $path)))),*]
    };
}

const FILES: &[(&str, &str)] = files! {
    "README.md"
    "agent/agent.py"
    "cases/ticket-101/annotations.yaml"
    "cases/ticket-101/input.yaml"
    "cases/ticket-101/solution/solve.sh"
    "cases/ticket-101/ticket.md"
    "cases/ticket-102/annotations.yaml"
    "cases/ticket-102/input.yaml"
    "cases/ticket-102/solution/solve.sh"
    "cases/ticket-102/ticket.md"
    "cases/ticket-103/annotations.yaml"
    "cases/ticket-103/input.yaml"
    "cases/ticket-103/solution/solve.sh"
    "cases/ticket-103/ticket.md"
    "eval.yaml"
    "skills/triage/SKILL.md"
};

pub(super) fn run(args: &Init, context: &Context) -> Outcome {
    let outcome = Outcome::of(Diagnostics::default());
    let dir = context.machine.absolute(&args.dir);
    let shown = args.dir.display().to_string();
    let found = match look_at(&dir) {
        Ok(found) => found,
        Err(error) => return outcome.failed(Exit::System, trouble("Reading", &shown, &error)),
    };
    let written = match found {
        Found::Nothing => in_new(&dir),
        Found::Empty => in_empty(&dir),
        Found::Other(what) => {
            return outcome.failed(
                Exit::Usage,
                Failure::new(
                    format!("'{shown}' {what}, so no dataset was written to it."),
                    "Name a directory that is empty or does not exist yet.",
                ),
            );
        }
    };
    if let Err(error) = written {
        return outcome.failed(
            Exit::System,
            trouble("Writing the dataset to", &shown, &*error),
        );
    }
    let next = [
        format!("casepack check {}", quoted(&shown)),
        format!("casepack run {}", quoted(&shown)),
    ];
    let files = count(FILES.len(), "file", "files");
    let text = format!(
        "Wrote a dataset of 3 cases to {} ({files}).\n\nNext:\n  {}\n  {}\n",
        escape::line(&shown),
        escape::line(&next[0]),
        escape::line(&next[1]),
    );
    let names: Vec<Value> = FILES.iter().map(|(path, _)| (*path).into()).collect();
    let mut outcome = outcome
        .field("directory", shown)
        .field("files", names)
        .field("next", next.to_vec());
    outcome.text = text;
    outcome
}

enum Found {
    Nothing,
    Empty,
    Other(&'static str),
}

fn look_at(dir: &Path) -> io::Result<Found> {
    let mut entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Ok(Found::Other("is no directory"));
        }
        entries => entries?,
    };
    Ok(match entries.next() {
        Some(_) => Found::Other("is not empty"),
        None => Found::Empty,
    })
}

/// Fills a directory beside `dir` and renames it, so that there is all or nothing.
fn in_new(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let parent = dir.parent().ok_or("it has no parent directory")?;
    fs::create_dir_all(parent)?;
    let staged = StagedDir::new(parent)?;
    materialise(&tree(), staged.handle())?;
    staged.commit(dir)?;
    Ok(())
}

/// The directory may be the current one of some shell, so it stays what it is.
fn in_empty(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    materialise(&tree(), &File::open(dir)?)?;
    Ok(())
}

fn tree() -> Tree {
    let mut tree = TreeBuilder::new();
    for (path, text) in FILES {
        let mode = if text.starts_with("#!") {
            Mode::Executable
        } else {
            Mode::Regular
        };
        let path = TreePath::new(path).expect("the names of the templates are valid");
        tree.insert(path, mode, Content::bytes(text.as_bytes()))
            .expect("the templates were files of one directory");
    }
    tree.finish()
}

fn trouble(doing: &str, what: &str, error: &dyn std::error::Error) -> Failure {
    let reason = Failure::from_error(error, "");
    let mut causes = vec![reason.message];
    causes.extend(reason.causes);
    Failure {
        message: format!("{doing} '{what}' failed."),
        causes,
        help: "Check that you may write there and that there is space.".to_owned(),
    }
}

/// `text` as one word for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
