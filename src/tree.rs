//! Trees of content: what a case's views, a package and a bundle are made of.
//!
//! Owns [`Tree`], its builder, the canonical digest, comparison, and materialising. Refuses to know
//! where files came from.
//! Invariant: a tree has no two entries at one place, and no entry below a file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::digest::{Digest, Hasher, TreeId};
use crate::fs::{Root, Stamp};
use crate::path::TreePath;

/// Of a file's mode only the executable bit is carried (policy 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// 0644
    Regular,
    /// 0755
    Executable,
}

impl Mode {
    /// `-` or `x`, as in tree digests (bundle-format, "Digests").
    pub fn letter(self) -> &'static str {
        match self {
            Self::Regular => "-",
            Self::Executable => "x",
        }
    }
}

/// The content of one file, with its identity.
#[derive(Debug, Clone)]
pub struct Content {
    /// SHA-256 of the bytes.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
    /// Where to get them.
    pub data: Data,
}

/// Where the bytes of a content are.
#[derive(Debug, Clone)]
pub enum Data {
    /// In memory.
    Bytes(Arc<[u8]>),
    /// In a file that had `stamp` when its digest was computed; checked again when it is copied.
    File {
        /// The root that it is opened through.
        root: Arc<Root>,
        /// Its place there.
        path: TreePath,
        /// Its state when it was hashed.
        stamp: Stamp,
    },
}

impl Content {
    /// A content that casepack made itself, or read whole.
    pub fn bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            data: Data::Bytes(bytes),
        }
    }
}

/// One file of a tree.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its mode.
    pub mode: Mode,
    /// Its content.
    pub content: Content,
}

/// A frozen set of files, sorted by path bytes.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    entries: BTreeMap<TreePath, Entry>,
}

/// Two entries that can't both be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{adding}' clashes with '{at}'")]
pub struct Clash {
    /// What is there already.
    pub at: TreePath,
    /// What was to be added.
    pub adding: TreePath,
}

/// Collects entries.
#[derive(Debug, Default)]
pub struct TreeBuilder {
    entries: BTreeMap<TreePath, Entry>,
}

impl TreeBuilder {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file.
    ///
    /// # Errors
    /// When the place is taken, lies below a file, or has files below it.
    pub fn insert(&mut self, path: TreePath, mode: Mode, content: Content) -> Result<(), Clash> {
        if let Some(at) = self.clash(&path) {
            return Err(Clash { at, adding: path });
        }
        self.entries.insert(path, Entry { mode, content });
        Ok(())
    }

    /// What stands in the way of a file at `path`.
    pub fn clash(&self, path: &TreePath) -> Option<TreePath> {
        let mut above = path.parent();
        while let Some(parent) = above {
            if self.entries.contains_key(&parent) {
                return Some(parent);
            }
            above = parent.parent();
        }
        let (next, _) = self.entries.range(path..).next()?;
        if next.starts_with(path) {
            return Some(next.clone());
        }
        // `a-b` sorts between `a` and `a/b`: look at the directory's own range too.
        let below = path.child("\u{1}").ok()?;
        let (next, _) = self.entries.range(below..).next()?;
        next.starts_with(path).then(|| next.clone())
    }

    /// Adds all files of `tree` below `prefix`.
    ///
    /// # Errors
    /// As [`TreeBuilder::insert`]; what was added before the clash stays.
    pub fn graft(&mut self, prefix: &TreePath, tree: &Tree) -> Result<(), Clash> {
        for (path, entry) in tree.iter() {
            self.insert(prefix.join(path), entry.mode, entry.content.clone())?;
        }
        Ok(())
    }

    /// The frozen tree.
    pub fn finish(self) -> Tree {
        Tree {
            entries: self.entries,
        }
    }
}

impl Tree {
    /// Its files, sorted by path bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&TreePath, &Entry)> {
        self.entries.iter()
    }

    /// The file at `path`.
    pub fn get(&self, path: &TreePath) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// How many files it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all contents together.
    pub fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.content.size).sum()
    }

    /// The canonical digest: for every entry sorted by path `path NUL mode NUL hex LF`
    /// (bundle-format, "Digests").
    pub fn id(&self) -> TreeId {
        let mut hasher = Hasher::new();
        for (path, entry) in &self.entries {
            hasher.update(path.as_str().as_bytes());
            hasher.update(b"\0");
            hasher.update(entry.mode.letter().as_bytes());
            hasher.update(b"\0");
            hasher.update(entry.content.digest.hex().as_bytes());
            hasher.update(b"\n");
        }
        TreeId(hasher.finish())
    }

    /// The files below `prefix`, which is taken off.
    #[must_use]
    pub fn below(&self, prefix: &TreePath) -> Self {
        let entries = self
            .entries
            .iter()
            .filter_map(|(path, entry)| Some((path.strip_prefix(prefix)?, entry.clone())))
            .collect();
        Self { entries }
    }

    /// The files that `keep` wants.
    #[must_use]
    pub fn filter(&self, keep: impl Fn(&TreePath) -> bool) -> Self {
        let entries = self
            .entries
            .iter()
            .filter(|(path, _)| keep(path))
            .map(|(path, entry)| (path.clone(), entry.clone()))
            .collect();
        Self { entries }
    }
}
