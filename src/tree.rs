//! Trees of content: what a case's views, a package and a bundle are made of.
//!
//! Owns [`Tree`], its builder, the canonical digest, comparison, and materialising. Refuses to know
//! where files came from.
//! Invariant: a tree has no two entries at one place, and no entry below a file.

mod diff;
mod links;
mod listing;
mod materialise;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

pub use self::diff::{Diff, diff};
pub use self::links::{Links, Seen};
pub use self::listing::{Row, id_of, listing_file, push_row, push_text};
pub use self::materialise::{MaterialiseError, Written, materialise, materialise_linked};
use crate::digest::{Digest, TreeId, hash_reader};
use crate::fs::{Found, FsError, Kind, ReadError, Root, Stamp, Thing, Walk, read_open};
use crate::path::TreePath;

/// Of a file's mode only the executable bit is carried (policy 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// 0644
    Regular,
    /// 0755
    Executable,
}

impl Mode {
    /// That of a file: its owner's executable bit.
    pub fn of(stamp: &Stamp) -> Self {
        if stamp.executable {
            Self::Executable
        } else {
            Self::Regular
        }
    }

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

/// Digests of files that were read before, by their state.
pub trait KnownDigests: Sync {
    /// The digest of a file in this state.
    fn get(&self, stamp: &Stamp) -> Option<Digest>;

    /// Notes that of a file that was read in this state.
    fn put(&self, stamp: &Stamp, digest: Digest);
}

/// Knows nothing.
impl KnownDigests for () {
    fn get(&self, _: &Stamp) -> Option<Digest> {
        None
    }

    fn put(&self, _: &Stamp, _: Digest) {}
}

/// Where the bytes of a content are.
#[derive(Debug, Clone)]
pub enum Data {
    /// In memory.
    Bytes(Arc<[u8]>),
    /// In a file that had `stamp` when its digest was computed; checked again when it is copied.
    /// (A change within the same tick of the file system's clock as the hashing is not seen when
    /// the kernel copies; whoever verifies the copy sees it.)
    File(Arc<FileAt>),
}

/// A file that is read again when its bytes are needed.
#[derive(Debug)]
pub struct FileAt {
    /// The root that it is opened through.
    pub root: Arc<Root>,
    /// Its place there.
    pub path: TreePath,
    /// Its state when it was hashed.
    pub stamp: Stamp,
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

    /// Reads and hashes the file at `path`, once. At most `keep` bytes stay in memory; of a larger
    /// file only its place and state do. No link is followed (see [`Root::read`]).
    ///
    /// # Errors
    /// When it is no regular file, can't be read, or changes meanwhile.
    pub fn from_file(
        root: &Arc<Root>,
        path: &TreePath,
        keep: u64,
    ) -> Result<(Mode, Self), ReadError> {
        Self::from_known_file(root, path, keep, &())
    }

    /// The same, but a file too large to be kept is only read when `known` has no digest for its
    /// state; what is read, it is told.
    ///
    /// # Errors
    /// As [`Content::from_file`].
    pub fn from_known_file(
        root: &Arc<Root>,
        path: &TreePath,
        keep: u64,
        known: &dyn KnownDigests,
    ) -> Result<(Mode, Self), ReadError> {
        let (mut file, stamp) = root.open_file(path)?;
        let mode = Mode::of(&stamp);
        let (digest, size) = if stamp.size <= keep.max(SMALL) {
            let content = Self::bytes(read_open(&file, &stamp, u64::MAX)?);
            if content.size <= keep {
                return Ok((mode, content));
            }
            (content.digest, content.size)
        } else if let Some(digest) = known.get(&stamp) {
            (digest, stamp.size)
        } else {
            let hashed = hash_reader(&mut file)?;
            if hashed.1 != stamp.size || Stamp::of_open(&file)?.1 != stamp {
                return Err(ReadError::Changed);
            }
            known.put(&stamp, hashed.0);
            hashed
        };
        let data = Data::File(Arc::new(FileAt {
            root: Arc::clone(root),
            path: path.clone(),
            stamp,
        }));
        Ok((mode, Self { digest, size, data }))
    }
}

/// Files that are read at once even if their bytes are not kept.
const SMALL: u64 = 64 * 1024;

/// One file of a tree.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its mode.
    pub mode: Mode,
    /// Its content.
    pub content: Content,
}

/// A frozen set of files, sorted by path bytes. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tree(Arc<Frozen>);

#[derive(Debug, Default)]
struct Frozen {
    entries: Vec<(TreePath, Entry)>,
    /// Computed when it is asked for.
    id: OnceLock<TreeId>,
}

impl FromIterator<(TreePath, Entry)> for Frozen {
    fn from_iter<I: IntoIterator<Item = (TreePath, Entry)>>(entries: I) -> Self {
        Self {
            entries: entries.into_iter().collect(),
            id: OnceLock::new(),
        }
    }
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

    /// What stands in the way of a file at `path`: the same place, a file above it, or the first
    /// file below it.
    pub fn clash(&self, path: &TreePath) -> Option<TreePath> {
        let text = path.as_str();
        let above = text
            .match_indices('/')
            .filter_map(|(end, _)| text.get(..end));
        for place in above.chain([text]) {
            if let Some((taken, _)) = self.entries.get_key_value(place) {
                return Some(taken.clone());
            }
        }
        // Most trees come sorted.
        if self.entries.last_key_value()?.0.as_str() < text {
            return None;
        }
        // All that lies below sorts together, right after the name with a slash.
        let below = format!("{text}/");
        let range = (Bound::Excluded(below.as_str()), Bound::Unbounded);
        let (next, _) = self.entries.range::<str, _>(range).next()?;
        next.as_str().starts_with(&below).then(|| next.clone())
    }

    /// The file at `path`.
    pub fn get(&self, path: &TreePath) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Adds all files of `tree` below `prefix`.
    ///
    /// # Errors
    /// As [`TreeBuilder::insert`]; what was added before the clash stays.
    pub fn graft(&mut self, prefix: &TreePath, tree: &Tree) -> Result<(), Clash> {
        if self.clash(prefix).is_none() {
            // Nothing is there that a file of the tree could clash with.
            let mut join = prefix.joining();
            let below = tree.iter().map(|(path, entry)| (join(path), entry.clone()));
            self.entries.extend(below);
            return Ok(());
        }
        for (path, entry) in tree.iter() {
            self.insert(prefix.join(path), entry.mode, entry.content.clone())?;
        }
        Ok(())
    }

    /// The frozen tree.
    pub fn finish(self) -> Tree {
        Tree::of(self.entries.into_iter())
    }
}

impl Tree {
    /// The tree of these files, of which no two clash.
    pub(crate) fn of(entries: impl Iterator<Item = (TreePath, Entry)>) -> Self {
        let frozen: Frozen = entries.collect();
        debug_assert!(
            frozen
                .entries
                .is_sorted_by(|a, b| a.0 < b.0 && !b.0.starts_with(&a.0)),
            "sorted, and no file below another"
        );
        Self(Arc::new(frozen))
    }

    /// Its files, sorted by path bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&TreePath, &Entry)> {
        self.0.entries.iter().map(|(path, entry)| (path, entry))
    }

    /// The file at `path`.
    pub fn get(&self, path: &TreePath) -> Option<&Entry> {
        let entries = &self.0.entries;
        let at = entries.binary_search_by(|(other, _)| other.cmp(path));
        Some(&entries.get(at.ok()?)?.1)
    }

    /// Its files from the place `start` on.
    pub fn starting_at<'a>(
        &'a self,
        start: &str,
    ) -> impl ExactSizeIterator<Item = (&'a TreePath, &'a Entry)> + use<'a> {
        let entries = &self.0.entries;
        let start = entries.partition_point(|(path, _)| path.as_str() < start);
        entries[start..].iter().map(|(path, entry)| (path, entry))
    }

    /// How many files it has.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    /// Bytes of all contents together.
    pub fn bytes(&self) -> u64 {
        self.iter().fold(0, |sum: u64, (_, entry)| {
            sum.saturating_add(entry.content.size)
        })
    }

    /// The canonical digest ([`id_of`]); computed once.
    pub fn id(&self) -> TreeId {
        *self.0.id.get_or_init(|| id_of(self.iter()))
    }

    /// The files below `prefix`, which is taken off.
    #[must_use]
    pub fn below(&self, prefix: &TreePath) -> Self {
        let below = self.starting_at(&format!("{prefix}/"));
        let kept =
            below.map_while(|(path, entry)| Some((path.strip_prefix(prefix)?, entry.clone())));
        Self(Arc::new(kept.collect()))
    }

    /// The files that `keep` wants.
    #[must_use]
    pub fn filter(&self, keep: impl Fn(&TreePath) -> bool) -> Self {
        let kept = self.0.entries.iter().filter(|(path, _)| keep(path));
        Self(Arc::new(kept.cloned().collect()))
    }

    /// Reads the directory `dir` (`None`: the root itself) of `root`, to compare what is there
    /// with what should be. Directories without files don't count; files over `keep` bytes stay
    /// on the disk.
    ///
    /// # Errors
    /// All that has no place in a tree: links, special files, names, what can't be read.
    pub fn from_dir(
        root: &Arc<Root>,
        dir: Option<&TreePath>,
        keep: u64,
    ) -> Result<Self, Vec<BadThing>> {
        Self::from_dir_with(root, dir, keep, &mut |_| None)
    }

    /// As [`Tree::from_dir`], with the file that `resolve` gives (a place in `root`) for a link.
    ///
    /// # Errors
    /// As there; a link is one for which `resolve` gives nothing.
    pub fn from_dir_with(
        root: &Arc<Root>,
        dir: Option<&TreePath>,
        keep: u64,
        resolve: &mut dyn FnMut(&TreePath) -> Option<TreePath>,
    ) -> Result<Self, Vec<BadThing>> {
        let mut builder = TreeBuilder::new();
        let mut bad = Vec::new();
        let walked = root.walk(dir, &mut |found| {
            match found {
                Found::Unusable { shown, why, .. } => {
                    let why = why
                        .map_or_else(|| "its name is not UTF-8".to_owned(), |why| why.to_string());
                    bad.push(BadThing { shown, why });
                }
                Found::EmptyDir(_)
                | Found::Thing(Thing {
                    kind: Kind::Dir, ..
                }) => {}
                Found::Thing(Thing { path, kind, .. }) => {
                    let place = dir.map_or(Some(path.clone()), |dir| path.strip_prefix(dir));
                    let target = (kind == Kind::Link).then(|| resolve(&path)).flatten();
                    let read = Content::from_file(root, target.as_ref().unwrap_or(&path), keep);
                    let why = match (read, place) {
                        (Ok((mode, content)), Some(place)) => {
                            match builder.insert(place, mode, content) {
                                Ok(()) => return Walk::Enter,
                                Err(clash) => clash.to_string(),
                            }
                        }
                        (Ok(_), None) => "it lies elsewhere".to_owned(),
                        (Err(error), _) => error.to_string(),
                    };
                    let shown = path.as_str().to_owned();
                    bad.push(BadThing { shown, why });
                }
            }
            Walk::Enter
        });
        if let Err(FsError { path, source }) = walked {
            bad.push(BadThing {
                shown: path.display().to_string(),
                why: source.to_string(),
            });
        }
        if bad.is_empty() {
            Ok(builder.finish())
        } else {
            Err(bad)
        }
    }
}

/// Something in a directory that has no place in a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{shown}: {why}")]
pub struct BadThing {
    /// Its path, approximately.
    pub shown: String,
    /// Why.
    pub why: String,
}

#[cfg(test)]
mod tests;
