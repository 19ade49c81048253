//! Releases of a dataset, stored by content: the bundle format (`docs/bundles.md`), written and read.
//!
//! Owns every byte of the format: packs and their indexes, catalog shards, the document, the
//! manifest, refs; and [`Packer`], which makes a release in a directory. Refuses to know networks
//! (whoever has fetched bytes hands them in) and datasets.
//! Invariants: the same cases give the same bytes, whatever threads, machine and history; what is
//! read is bounded by [`limits`] and worth nothing before its digest was compared; every refusal
//! names the object.

mod catalog;
mod catalog_writer;
mod json;
mod pack;
mod packer;
mod previous;
mod release;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;

pub use self::catalog::{Listed, Mount, Placement, Shard, ShardCase};
pub use self::pack::{Frame, Name, PackIndex, Place};
pub use self::packer::{About, CaseDigests, PackError, PackageTree, Packed, Packer, intact};
pub use self::release::{
    CatalogShard, Descriptor, Document, Pack, Release, blobs_of_manifest, dataset_digest,
    index_json, ref_object, release_of_ref,
};
use crate::digest::Digest;
use crate::path::fold;

/// Bounds on what is read (bundle-format, "Pull"); beyond them an object is an error.
pub mod limits {
    /// Bytes of a manifest, a document or a ref.
    pub const MANIFEST_BYTES: u64 = 8 << 20;
    /// Inflated bytes of a catalog shard or a pack index.
    pub const SHARD_BYTES: u64 = 16 << 20;
    /// Bytes of one line of them.
    pub const LINE_BYTES: usize = 8 << 20;
    /// Inflated bytes of a frame.
    pub const FRAME_BYTES: u64 = 2 << 20;
    /// Bytes of a blob, also inflated: no store has larger objects, and all of a release add up to
    /// less than a `u64` holds.
    pub const BLOB_BYTES: u64 = 1 << 44;
    /// Cases of a release.
    pub const CASES: u64 = 1_000_000;
    /// Files of one view of one case.
    pub const FILES: usize = 100_000;
}

/// Who may see a tree. A content that several views have lies in the packs of the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum View {
    /// The agent.
    Workspace,
    /// Judges only.
    Evaluation,
    /// What a Harbor package adds around them.
    Task,
}

impl View {
    /// Every view, in the order in which they claim contents.
    pub const ALL: [Self; 3] = [Self::Workspace, Self::Evaluation, Self::Task];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Evaluation => "evaluation",
            Self::Task => "task",
        }
    }

    /// The view of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.name() == name)
    }
}

/// How frames are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// zstd frames: small, and four times as quick as gzip.
    #[default]
    Zstd,
    /// gzip members, for readers without zstd.
    Gzip,
}

impl Compression {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// The compression of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Zstd, Self::Gzip]
            .into_iter()
            .find(|compression| compression.name() == name)
    }
}

/// An object of a store that is not what it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object} {why}")]
pub struct Bad {
    /// Which one, as `the catalog shard sha256:…`.
    pub object: String,
    /// What is wrong with it, as `has a path that is absolute`.
    pub why: String,
    /// What that means.
    pub fault: Fault,
}

/// What it means that an object is not what it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is damaged, or was made to be.
    Damaged,
    /// It is whole, and of an earlier version of the format.
    Older,
    /// It is whole, and of a later version of the format.
    Newer,
}

impl Bad {
    /// An object and what is wrong with it.
    pub fn new(object: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            object: object.into(),
            why: why.into(),
            fault: Fault::Damaged,
        }
    }

    /// What to do next.
    pub fn help(&self) -> &'static str {
        match self.fault {
            Fault::Damaged => {
                "The store is damaged, or is none of casepack: publish the release again with \
                 `casepack publish --repair`, or take it from another store."
            }
            Fault::Older => {
                "Publish the dataset again with this casepack; until then the one that wrote the \
                 release reads it."
            }
            Fault::Newer => "Use a newer casepack: the one that wrote the release reads it.",
        }
    }
}

/// A name for a release: one or two components of letters, digits and single `.`, `_`, `-` between
/// them, at most 128 bytes, not ending in `.json`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefName(String);

/// A text that is no [`RefName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a ref is made of letters, digits and single '.', '_' or '-' between them, with at most one \
     '/', has at most 128 bytes and does not end in '.json'"
)]
pub struct RefNameError;

impl RefName {
    /// The name of a release when none is given.
    pub fn latest() -> Self {
        Self("latest".to_owned())
    }

    /// Checks `text`; the only way in.
    ///
    /// # Errors
    /// When it is no name for a release.
    pub fn new(text: &str) -> Result<Self, RefNameError> {
        let component = |part: &str| {
            part.split(['.', '_', '-']).all(|word| {
                !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
            })
        };
        let json = text
            .len()
            .checked_sub(5)
            .and_then(|at| text.get(at..))
            .is_some_and(|end| end.eq_ignore_ascii_case(".json"));
        let parts = text.split('/').count();
        if text.len() <= 128 && parts <= 2 && !json && text.split('/').all(component) {
            Ok(Self(text.to_owned()))
        } else {
            Err(RefNameError)
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of its object.
    pub fn key(&self) -> String {
        format!("{REFS}{}.json", self.0)
    }

    /// The ref that the object `key` is for.
    pub fn from_key(key: &str) -> Option<Self> {
        Self::new(key.strip_prefix(REFS)?.strip_suffix(".json")?).ok()
    }

    /// The form in which two refs are one name on some file systems.
    pub fn fold(&self) -> String {
        fold(&self.0)
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Below it are the refs.
pub const REFS: &str = "refs/";
/// Below it are the blobs.
pub const BLOBS: &str = "blobs/sha256/";
/// Says that a directory is an OCI image layout.
pub const OCI_LAYOUT: &str = "oci-layout";
/// The bytes of [`OCI_LAYOUT`].
pub const OCI_LAYOUT_BYTES: &[u8] = b"{\"imageLayoutVersion\":\"1.0.0\"}";
/// All refs, for other tools.
pub const INDEX_JSON: &str = "index.json";

/// The key of the blob with that digest.
pub fn blob_key(digest: Digest) -> String {
    format!("{BLOBS}{}", digest.hex())
}

/// The digest of the blob at `key`.
pub fn digest_of_key(key: &str) -> Option<Digest> {
    Digest::from_hex(key.strip_prefix(BLOBS)?).ok()
}

/// Whether something of `size` bytes with that digest ends a run (bundle-format, "Packing"): runs
/// of `mean` bytes on average, which find each other again after an insertion or a removal.
fn cuts(digest: &Digest, size: u64, mean: u64) -> bool {
    let head = digest
        .as_bytes()
        .iter()
        .take(8)
        .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    u128::from(head) * u128::from(mean) < u128::from(size) << 64
}
