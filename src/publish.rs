//! Releases on their way: from the directory where they were built to a store, and back.
//!
//! Owns the order of what is written (blobs, manifest, ref, index), what need not be moved, and
//! that nothing is believed or left in place before its digest was compared. Refuses to know
//! datasets, the command line and how a store works.
//! Invariants: whatever is killed when, every ref names a whole release, and a destination has
//! whole cases only; nothing is written outside the destination.

mod destination;
mod fetch;
mod gc;
mod list;
mod locate;
mod plain;
mod pull;
mod push;
mod remote;
#[cfg(test)]
mod tests;
mod verify;

use std::io;
use std::path::{Path, PathBuf};

pub use self::destination::RECORD;
pub use self::fetch::{Fetched, fetch};
pub use self::gc::{Collected, Collection, collect};
pub use self::list::{CaseRow, case, cases};
pub use self::plain::{Plain, PlainPushed, Published, Work, published, survey};
pub use self::pull::{Layout, Pull, Pulled, pull};
pub use self::push::{Push, Pushed, push};
pub use self::remote::{Cache, Named, Remote, Which};
pub use self::verify::{Changes, Checked, Difference, diff, verify, verify_layout};
use crate::bundle::Bad;
use crate::fs::FsError;
use crate::path::{CaseId, TreePath};
use crate::store::{Reason, StoreError};

/// Which cases are wanted.
pub struct Chosen<'a> {
    /// Whether a case is.
    pub has: &'a (dyn Fn(&CaseId) -> bool + Sync),
    /// All that can be, when they are named one by one: then only their shards are read.
    pub only: Option<Vec<CaseId>>,
}

/// Why something was not published, pulled, verified or collected.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// An object is not what it has to be.
    #[error(transparent)]
    Bad(#[from] Bad),
    /// What was asked for can't be done, however often: something else has to be asked for.
    #[error("{what}")]
    Refused {
        /// Why.
        what: String,
        /// What to do next.
        help: String,
    },
    /// What was asked for can't be done now.
    #[error("{what}")]
    Busy {
        /// Why.
        what: String,
        /// What to do next.
        help: String,
    },
    /// No case is wanted.
    #[error("no case of the release is wanted")]
    NoCase,
    /// The system refused.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// What was being done, as `can not write`.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// It was stopped from outside.
    #[error("stopped")]
    Stopped,
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        match *error.reason {
            Reason::Stopped => Self::Stopped,
            _ => Self::Store(error),
        }
    }
}

impl PublishError {
    /// What to do next.
    pub fn help(&self) -> String {
        match self {
            Self::Store(error) => error.help(),
            Self::Bad(bad) => bad.help().to_owned(),
            Self::Refused { help, .. } | Self::Busy { help, .. } => help.clone(),
            Self::NoCase => {
                "See the cases of a release with `casepack ls STORE --ref NAME`.".to_owned()
            }
            Self::Io { .. } => "Check that the place can be used and has room.".to_owned(),
            Self::Stopped => "What is finished is whole: the same command goes on.".to_owned(),
        }
    }

    fn refused(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Refused {
            what: what.into(),
            help: help.into(),
        }
    }

    fn busy(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Busy {
            what: what.into(),
            help: help.into(),
        }
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PublishError + use<> {
    let path = path.to_owned();
    move |source| PublishError::Io {
        doing,
        path,
        source,
    }
}

fn refused(doing: &'static str) -> impl FnOnce(FsError) -> PublishError {
    move |FsError { path, source }| PublishError::Io {
        doing,
        path,
        source,
    }
}

/// A key of the format as a store takes it.
fn key(text: &str) -> Result<TreePath, Bad> {
    TreePath::new(text).map_err(|why| Bad::new(format!("the key '{text}'"), why.to_string()))
}
