//! What a destination has already: known by what it looks like, or else by its digest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{PublishError, failed, refused};
use crate::digest::{Digest, TreeId};
use crate::fs::{Kind, Root, StagedDir, remove_at_once, write_atomic};
use crate::path::{CaseId, TreePath, fold};
use crate::plan::fingerprint::{Aids, GRANULARITY, look};
use crate::tree::Tree;

const SCHEMA: &str = "casepack.pulled.v1";
/// How often something is tried that other pulls are in the way of.
const TRIES: u32 = 1000;
/// Bytes of a record that are believed to be one.
const MAX_RECORD: u64 = 512 << 20;

/// What casepack pulled into a destination.
#[derive(Serialize, Deserialize, Default)]
pub(super) struct Record {
    schema: String,
    cases: BTreeMap<String, Known>,
}

#[derive(Serialize, Deserialize, Clone)]
struct Known {
    /// The tree that was written.
    tree: String,
    /// What the directory looked like then.
    seen: Option<String>,
    /// The dataset that it is a case of; earlier casepacks did not say.
    #[serde(default)]
    dataset: Option<String>,
}

/// What is at a case's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum There {
    /// Nothing.
    Nothing,
    /// The tree that is wanted.
    Same,
    /// Another tree, which casepack wrote.
    Ours,
    /// Something else.
    Foreign,
}

/// A directory in which one pull works. As long as it is there, nobody takes those above it for
/// empty; when it goes, those go that were made for it and have nothing in them.
pub(super) struct Workshop {
    // Gone before those that it is in.
    dir: StagedDir,
    _made: Made,
}

/// Directories that are removed if they are empty, the deepest first.
struct Made(Vec<PathBuf>);

impl Workshop {
    /// A directory in `parent`, which is made where it is missing, with all above it.
    pub(super) fn new(parent: &Path) -> Result<Self, PublishError> {
        let missing = parent.ancestors().take_while(|dir| !dir.exists());
        let made = Made(missing.map(Path::to_owned).collect());
        let mut left = TRIES;
        loop {
            left -= 1;
            let dir = fs::create_dir_all(parent)
                .map_err(failed("can not create", parent))
                .and_then(|()| {
                    StagedDir::new(parent).map_err(refused("can not create a directory in"))
                });
            match dir {
                Ok(dir) => return Ok(Self { dir, _made: made }),
                // Another pull has ended, and taken along what was empty then.
                Err(PublishError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && left > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in &self.0 {
            // Of another pull's, something may be in them.
            fs::remove_dir(dir).ok();
        }
    }
}

impl Record {
    /// The record at `path`; an empty one when it can't be read.
    pub(super) fn read(path: &Path) -> Self {
        let read = || -> Option<Self> {
            let root = Root::open(path.parent()?).ok()?;
            let name = TreePath::new(path.file_name()?.to_str()?).ok()?;
            let (bytes, _) = root.read(&name, MAX_RECORD).ok()?;
            let record: Self = serde_json::from_slice(&bytes).ok()?;
            (record.schema == SCHEMA).then_some(record)
        };
        read().unwrap_or_default()
    }

    /// What is at the place `name` of `out`, where `tree` is wanted. `by_content`: what it looks
    /// like is no proof.
    pub(super) fn there(
        &self,
        out: &Arc<Root>,
        name: &CaseId,
        tree: TreeId,
        by_content: bool,
    ) -> There {
        let place = name.to_path();
        match out.stat(&place) {
            Ok(None) => return There::Nothing,
            Ok(Some((Kind::Dir, _))) => {}
            _ => return There::Foreign,
        }
        let known = self.cases.get(name.as_str());
        let wanted = tree.0.hex();
        if !by_content
            && let Some(known) = known.filter(|known| known.tree == wanted)
            && let (Some(seen), Some(now)) = (&known.seen, seen(out, Some(&place)))
            && *seen == now
        {
            return There::Same;
        }
        match Tree::from_dir(out, Some(&place), 0) {
            Ok(found) if found.id() == tree => There::Same,
            Ok(found) if known.is_some_and(|known| known.tree == found.id().0.hex()) => There::Ours,
            _ => There::Foreign,
        }
    }

    /// Notes that `tree`, a case of `dataset`, was put at the place `name`, and what it looked like
    /// before it came there.
    pub(super) fn note(
        &mut self,
        name: &CaseId,
        tree: TreeId,
        seen: Option<String>,
        dataset: &str,
    ) {
        let known = Known {
            tree: tree.0.hex(),
            seen,
            dataset: Some(dataset.to_owned()),
        };
        self.cases.insert(name.as_str().to_owned(), known);
    }

    /// What was pulled of `dataset`, or of who knows which, and is none of `names`, folded.
    pub(super) fn gone(&self, dataset: &str, names: &BTreeSet<String>) -> Vec<String> {
        let gone = self.cases.iter().filter(|(name, known)| {
            let of = known.dataset.as_deref();
            !names.contains(&fold(name)) && of.is_none_or(|of| of == dataset)
        });
        gone.map(|(name, _)| name.clone()).collect()
    }

    /// Removes `name`, a case that is gone, from `out`, if it is as it was pulled; `temp` is in the
    /// same file system. Returns whether nothing is left of it.
    pub(super) fn remove(
        &mut self,
        out: &Arc<Root>,
        name: &str,
        temp: &Path,
    ) -> Result<bool, PublishError> {
        let whose = |known: &Known| {
            let id = CaseId::new(name).ok()?;
            let tree = TreeId(Digest::from_hex(&known.tree).ok()?);
            let known = known.dataset.is_some();
            Some((self.there(out, &id, tree, false), known))
        };
        match self.cases.get(name).and_then(whose) {
            Some((There::Nothing, _)) => {}
            Some((There::Same, true)) => {
                let path = out.path().join(name);
                remove_at_once(&path, temp).map_err(refused("can not remove"))?;
            }
            _ => return Ok(false),
        }
        self.cases.remove(name);
        Ok(true)
    }

    /// Writes the record; it has to be younger than what it vouches for. Where none is and nothing
    /// is to be recorded, none is made.
    pub(super) fn write(mut self, path: &Path) -> Result<(), PublishError> {
        if self.cases.is_empty() && path.symlink_metadata().is_err() {
            return Ok(());
        }
        SCHEMA.clone_into(&mut self.schema);
        let bytes = serde_json::to_vec(&self)
            .map_err(|error| failed("can not write", path)(error.into()))?;
        if fs::read(path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        std::thread::sleep(GRANULARITY);
        write_atomic(path, &bytes, 0o644).map_err(refused("can not write"))
    }
}

/// What a directory looks like; `None` when a look can't vouch for it.
pub(super) fn seen(root: &Arc<Root>, place: Option<&TreePath>) -> Option<String> {
    let look = look(root, place, Aids::default()).ok()?;
    (!look.odd).then(|| look.fingerprint.hex())
}
