//! The release that a directory has already: its listings, and its packs as a source of contents.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use super::catalog::{Listed, Placement, Shard};
use super::pack::{PackIndex, Place};
use super::{Bad, Descriptor, Pack, RefName, Release, View, blob_key, limits, release_of_ref};
use crate::digest::Digest;
use crate::fs::{Kind, ReadError, Root};
use crate::path::{CaseId, TreePath};

/// A release in a directory.
pub(super) struct Previous {
    root: Root,
    pub(super) release: Release,
}

/// Where contents lie in its packs.
pub(super) struct Contents {
    packs: Vec<(File, PackIndex)>,
}

/// The inflated frames that one reader has in hand.
pub(super) type Frames = BTreeMap<(usize, usize), Arc<Vec<u8>>>;

impl Previous {
    /// The release that `reference` names in the directory `root`; `None` when there is none that
    /// can be read, and everything is to be made anew.
    pub(super) fn open(root: &Path, reference: &RefName) -> Option<Self> {
        let root = Root::open(root).ok()?;
        let key = TreePath::new(&reference.key()).ok()?;
        let (bytes, _) = root.read(&key, 2 * limits::MANIFEST_BYTES).ok()?;
        let (digest, manifest) = release_of_ref(reference, &bytes).ok()?;
        let release = Release::parse(digest, manifest, |config| blob(&root, config)).ok()?;
        Some(Self { root, release })
    }

    /// Whether the blob is there, by its size.
    pub(super) fn has(&self, blob: Descriptor) -> bool {
        let Ok(path) = TreePath::new(&blob_key(blob.digest)) else {
            return false;
        };
        matches!(self.root.stat(&path), Ok(Some((Kind::File, stamp))) if stamp.size == blob.size)
    }

    /// The listings of the cases that `wants` names.
    pub(super) fn listings(
        &self,
        view: View,
        wants: &dyn Fn(&CaseId) -> bool,
        each: &mut dyn FnMut(CaseId, Vec<Listed>, Option<Placement>),
    ) -> Result<(), Bad> {
        let shards = &self.release.document.shards;
        for shard in shards.iter().filter(|shard| shard.view == view) {
            let bytes = blob(&self.root, shard.blob)?;
            let shard = Shard::parse(shard.blob.digest, &bytes)?;
            for case in shard.cases.iter().filter(|case| wants(&case.id)) {
                each(
                    case.id.clone(),
                    shard.listing(case)?,
                    case.placement.clone(),
                );
            }
        }
        Ok(())
    }

    /// The indexes of its packs, in the document's order.
    pub(super) fn indexes(&self) -> Result<Vec<PackIndex>, Bad> {
        let packs = self.release.document.packs.iter();
        packs
            .map(|pack| {
                let size = usize::try_from(pack.index.size).unwrap_or(usize::MAX);
                let mut bytes = vec![0; size];
                self.pack(pack)?
                    .read_exact_at(&mut bytes, pack.data())
                    .map_err(|error| Bad::new(pack.object(), error.to_string()))?;
                pack.parse_index(&bytes)
            })
            .collect()
    }

    /// Its packs, opened.
    pub(super) fn contents(&self, indexes: Vec<PackIndex>) -> Result<Contents, Bad> {
        let packs = self.release.document.packs.iter().zip(indexes);
        let packs = packs.map(|(pack, index)| Ok((self.pack(pack)?, index)));
        Ok(Contents {
            packs: packs.collect::<Result<_, Bad>>()?,
        })
    }

    fn pack(&self, pack: &Pack) -> Result<File, Bad> {
        let path = TreePath::new(&blob_key(pack.blob.digest));
        path.map_err(|error| error.to_string())
            .and_then(|path| {
                let opened = self.root.open_file(&path);
                opened.map_err(|error| error.to_string())
            })
            .map(|(file, _)| file)
            .map_err(|why| Bad::new(pack.object(), why))
    }
}

impl Contents {
    /// Whether it has the content.
    pub(super) fn has(&self, digest: Digest) -> bool {
        self.find(digest).is_some()
    }

    fn find(&self, digest: Digest) -> Option<(usize, Place)> {
        let mut packs = self.packs.iter().enumerate();
        packs.find_map(|(at, (_, index))| Some((at, index.find(digest)?)))
    }

    /// Appends the bytes `range` of the content.
    pub(super) fn read(
        &self,
        digest: Digest,
        range: Range<u64>,
        frames: &mut Frames,
        out: &mut Vec<u8>,
    ) -> Result<(), Bad> {
        let object = || format!("the content {digest} of the earlier release");
        let missing = || Bad::new(object(), "is not there");
        let (pack, place) = self.find(digest).ok_or_else(missing)?;
        let (file, index) = self.packs.get(pack).ok_or_else(missing)?;
        // Where the frame's first byte is, counted from the content's first.
        let mut start = -i128::from(place.offset);
        for number in index.frames_of(place) {
            let Some(frame) = index.frames.get(number) else {
                break;
            };
            let end = start + i128::from(frame.raw);
            let from = start.max(range.start.into());
            let to = end.min(range.end.into());
            if from < to {
                let raw = if let Some(raw) = frames.get(&(pack, number)) {
                    Arc::clone(raw)
                } else {
                    let mut bytes = vec![0; usize::try_from(frame.length).unwrap_or(0)];
                    file.read_exact_at(&mut bytes, frame.offset)
                        .map_err(|error| Bad::new(object(), error.to_string()))?;
                    let raw = Arc::new(frame.inflate(&bytes)?);
                    frames.insert((pack, number), Arc::clone(&raw));
                    raw
                };
                let bounds = usize::try_from(from - start)
                    .ok()
                    .zip(usize::try_from(to - start).ok());
                let part = bounds.and_then(|(from, to)| raw.get(from..to));
                out.extend_from_slice(part.ok_or_else(missing)?);
            }
            start = end;
        }
        Ok(())
    }
}

/// The blob's bytes, compared with its digest.
fn blob(root: &Root, blob: Descriptor) -> Result<Vec<u8>, Bad> {
    let bad = |why: String| Bad::new(format!("the blob {}", blob.digest), why);
    let path = TreePath::new(&blob_key(blob.digest)).map_err(|error| bad(error.to_string()))?;
    let (bytes, _) = root
        .read(&path, blob.size)
        .map_err(|error: ReadError| bad(format!("can't be read: {error}")))?;
    if Descriptor::of(&bytes) == blob {
        Ok(bytes)
    } else {
        Err(bad("has other bytes than its digest says".to_owned()))
    }
}

impl From<Bad> for io::Error {
    fn from(bad: Bad) -> Self {
        Self::new(io::ErrorKind::InvalidData, bad)
    }
}
