//! What a build would do, and why: the inputs of an output then and now.

use super::inventory::{Listing, Made};
use super::settings::Settings;
use crate::assemble::Views;
use crate::digest::{ActionKey, Digest};
use crate::path::{CaseId, TreePath};
use crate::target::Target;
use crate::tree::{Mode, Tree};

/// What a build would do about one output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Of which case.
    pub case: CaseId,
    /// For which target.
    pub target: Target,
    /// Where the output is, below `OUT/<target>/`.
    pub place: String,
    /// What would be done.
    pub action: Action,
    /// The action key now; `None` for a case that is not read or gone.
    pub key: Option<ActionKey>,
    /// The key that the output has; `None` when there is none, or it is not recorded.
    pub was: Option<ActionKey>,
    /// Which inputs are others now; `None` when it is not recorded what the output was made of.
    pub moved: Option<Vec<Moved>>,
}

impl Step {
    /// A step of which nothing else is to be said.
    pub(super) fn bare(case: &CaseId, target: Target, place: &str, action: Action) -> Self {
        Self {
            case: case.clone(),
            target,
            place: place.to_owned(),
            action,
            key: None,
            was: None,
            moved: Some(Vec::new()),
        }
    }
}

/// What is done about an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It is made; there is none.
    New,
    /// It is made anew.
    Changed,
    /// Nothing: it is what it has to be.
    Unchanged,
    /// It is removed: its case is gone.
    Removed,
    /// Nothing: something else is there that casepack may not replace or remove.
    Kept,
    /// Nothing: the case has errors.
    Failed,
}

impl Action {
    /// The word in documents and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
            Self::Kept => "kept",
            Self::Failed => "failed",
        }
    }
}

/// An input that is another one now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moved {
    /// An option, a value of the config, or a part of casepack itself.
    Setting {
        /// `--image`, `eval.yaml execution.prompt`, `casepack templates`.
        name: String,
        /// Its value then; `None`: it was not given.
        old: Option<String>,
        /// Its value now.
        new: Option<String>,
    },
    /// A file of one of the case's views.
    File {
        /// `workspace`, `evaluation` or `task`.
        view: &'static str,
        /// Its path there.
        path: TreePath,
        /// Its content then; `None`: there was none.
        old: Option<Digest>,
        /// Its content now. The same as `old` when only the executable bit is another.
        new: Option<Digest>,
    },
}

/// The inputs that are others than those that the output was `made` of. Sorted.
pub(super) fn moved(made: &Made, settings: &Settings, views: &Views) -> Vec<Moved> {
    let mut moved = Vec::new();
    let names = made.settings.0.keys().chain(settings.0.keys());
    let (then, now) = (&made.settings.0, &settings.0);
    for name in names {
        let (old, new) = (then.get(name), now.get(name));
        if old != new {
            moved.push(Moved::Setting {
                name: name.clone(),
                old: old.cloned(),
                new: new.cloned(),
            });
        }
    }
    files("workspace", &made.workspace, &views.workspace, &mut moved);
    files(
        "evaluation",
        &made.evaluation,
        &views.evaluation,
        &mut moved,
    );
    files("task", &made.task, &views.task, &mut moved);
    moved.sort();
    moved.dedup();
    moved
}

fn files(view: &'static str, then: &Listing, now: &Tree, moved: &mut Vec<Moved>) {
    let new_of = |path: &TreePath| {
        let entry = now.get(path)?;
        Some((entry.mode, entry.content.digest))
    };
    let old_of = |path: &TreePath| then.get(path).map(|(mode, digest, _)| (*mode, *digest));
    for path in then.keys().chain(now.iter().map(|(path, _)| path)) {
        let (old, new): (Option<(Mode, Digest)>, _) = (old_of(path), new_of(path));
        if old != new {
            moved.push(Moved::File {
                view,
                path: path.clone(),
                old: old.map(|(_, digest)| digest),
                new: new.map(|(_, digest)| digest),
            });
        }
    }
}
