//! The disk, contained: reads through handles, sorted walks, atomic writes.
//!
//! Owns [`Root`] (an open directory below which everything is opened, links never followed by the
//! kernel) and [`Roots`] (hop-by-hop resolution of links over several allowed roots, policy 8).
//! Refuses to know datasets.
//! Invariant: what is checked is what is read: opened by handle, no second look-up by name.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::path::TreePath;

/// What kind of thing a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A fifo, socket or device: never opened.
    Special,
}

/// What identifies one state of a file: when it is unchanged, so is the content (with the racy
/// rule of the metadata index, issue of the incremental build).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Modification time, ns since 1970.
    pub mtime_ns: i128,
    /// Change time, ns since 1970.
    pub ctime_ns: i128,
    /// Any of the three executable bits... only the owner's counts (policy 5).
    pub executable: bool,
}

/// An open directory: every path below it is opened without following any link.
#[derive(Debug)]
pub struct Root {
    handle: OwnedFd,
    path: PathBuf,
}

/// A failure with the path that it was about.
#[derive(Debug, thiserror::Error)]
#[error("{path}", path = path.display())]
pub struct FsError {
    /// The path as it is to be shown.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// A listed thing, resolved: which root it lies in and where there, no link on the way.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Index into [`Roots`].
    pub root: usize,
    /// Place below that root; `None` for the root itself.
    pub path: Option<TreePath>,
    /// What is there.
    pub kind: Kind,
    /// Whether a link was followed, and whether the last component was one.
    pub through_link: bool,
    /// Whether the last component itself was a link.
    pub last_was_link: bool,
}

/// Why a path did not resolve.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Nothing there.
    #[error("it does not exist")]
    Missing,
    /// A link on the way leads nowhere.
    #[error("a link on the way leads nowhere")]
    Dangling,
    /// Links lead in a circle.
    #[error("its links lead in a circle")]
    Loop,
    /// It leads out of every root.
    #[error("it leads out of every allowed directory")]
    Outside,
    /// A component is longer than the system takes, not UTF-8, or has a NUL.
    #[error("it is no usable path: {0}")]
    Unusable(String),
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The allowed roots, in order of precedence.
#[derive(Debug, Default)]
pub struct Roots {
    roots: Vec<Arc<Root>>,
}

impl Root {
    /// Opens the directory at `path`, links in `path` itself followed (it was named by the user).
    ///
    /// # Errors
    /// When it can't be opened as a directory.
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let error = |source: io::Error| FsError {
            path: path.to_owned(),
            source,
        };
        let real = path.canonicalize().map_err(error)?;
        let handle = File::open(&real).map_err(error)?.into();
        Ok(Self { handle, path: real })
    }

    /// Its canonical path, for messages and for comparing roots.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handle.
    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }
}

impl Roots {
    /// The given roots.
    pub fn new(roots: Vec<Arc<Root>>) -> Self {
        Self { roots }
    }

    /// Root number `index`.
    pub fn get(&self, index: usize) -> Option<&Arc<Root>> {
        self.roots.get(index)
    }
}
