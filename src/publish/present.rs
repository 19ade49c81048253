//! What a destination has already: known by what it looks like, or else by its digest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{PublishError, failed};
use crate::digest::TreeId;
use crate::fs::{FsError, Kind, Root, write_atomic};
use crate::path::{CaseId, TreePath};
use crate::plan::fingerprint::{Aids, GRANULARITY, look};
use crate::tree::Tree;

const SCHEMA: &str = "casepack.pulled.v1";
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

    /// What is at the place `name` of `out`, where `tree` is wanted. Also whether a file had to be
    /// opened to say so.
    pub(super) fn there(&self, out: &Arc<Root>, name: &CaseId, tree: TreeId) -> (There, bool) {
        let place = name.to_path();
        match out.stat(&place) {
            Ok(None) => return (There::Nothing, false),
            Ok(Some((Kind::Dir, _))) => {}
            _ => return (There::Foreign, false),
        }
        let known = self.cases.get(name.as_str());
        let wanted = tree.0.hex();
        if let Some(known) = known.filter(|known| known.tree == wanted)
            && let (Some(seen), Some(now)) = (&known.seen, seen(out, &place))
            && *seen == now
        {
            return (There::Same, false);
        }
        let there = match Tree::from_dir(out, Some(&place), 0) {
            Ok(found) if found.id() == tree => There::Same,
            Ok(found) if known.is_some_and(|known| known.tree == found.id().0.hex()) => There::Ours,
            _ => There::Foreign,
        };
        (there, true)
    }

    /// Notes that `tree` is at the place `name`.
    pub(super) fn note(&mut self, out: &Arc<Root>, name: &CaseId, tree: TreeId) {
        let known = Known {
            tree: tree.0.hex(),
            seen: seen(out, &name.to_path()),
        };
        self.cases.insert(name.as_str().to_owned(), known);
    }

    /// Writes the record; it has to be younger than what it vouches for.
    pub(super) fn write(mut self, path: &Path) -> Result<(), PublishError> {
        SCHEMA.clone_into(&mut self.schema);
        let bytes = serde_json::to_vec(&self)
            .map_err(|error| failed("can not write", path)(error.into()))?;
        if fs::read(path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        std::thread::sleep(GRANULARITY);
        write_atomic(path, &bytes, 0o644).map_err(|FsError { path, source }| PublishError::Io {
            doing: "can not write",
            path,
            source,
        })
    }
}

/// What the directory looks like; `None` when a look can't vouch for it.
fn seen(out: &Arc<Root>, place: &TreePath) -> Option<String> {
    let look = look(out, Some(place), Aids::default()).ok()?;
    (!look.odd).then(|| look.fingerprint.hex())
}
