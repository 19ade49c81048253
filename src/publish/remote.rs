//! A store as a place of releases: what is read from it is compared with its digest.

use std::collections::BTreeMap;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use super::{PublishError, failed, key, refused};
use crate::bundle::{
    Bad, Descriptor, Frame, Pack, PackIndex, REFS, RefName, Release, blob_key, limits,
    release_of_ref,
};
use crate::digest::Digest;
use crate::fs::{Kind, Root, write_all};
use crate::path::TreePath;
use crate::store::{Etag, Listed, Reason, Store, StoreError};

/// Bytes between two frames that are read rather than asked for apart.
const GAP: u64 = 64 << 10;
/// Bytes that are asked for at once at most.
const RANGE: u64 = 4 << 20;
/// Where blobs are in a cache.
const CACHED: &str = "sha256";
/// Refs of a store at most.
const MAX_REFS: usize = 100_000;

/// Which release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one that a ref names.
    Ref(RefName),
    /// The one with that manifest.
    Manifest(Digest),
}

/// A ref as it is in a store.
#[derive(Debug)]
pub struct Named {
    /// Its name.
    pub name: RefName,
    /// When it was written, seconds since 1970.
    pub modified: i64,
    /// The release that it names, or what is wrong with it.
    pub release: Result<Release, Bad>,
}

/// A ref, and the manifest that it names, with its digest.
pub(super) struct FoundRef {
    pub(super) name: RefName,
    modified: i64,
    pub(super) manifest: Result<(Digest, Vec<u8>), PublishError>,
}

/// A store with releases, and a directory where what was read once is kept.
#[derive(Debug, Clone, Copy)]
pub struct Remote<'a> {
    /// The store.
    pub store: &'a dyn Store,
    cache: Option<&'a Cache>,
}

/// A directory that several machines' pulls may share, and others write to: what is in it is read
/// and written below its handle, never through a link, and believed when its digest says so.
#[derive(Debug)]
pub struct Cache(Root);

impl Cache {
    /// Opens the cache at `dir`, made when it is missing.
    ///
    /// # Errors
    /// When it can't be made or opened, or a link is in the place of its directory.
    pub fn open(dir: &Path) -> Result<Self, PublishError> {
        fs::create_dir_all(dir).map_err(failed("can not create", dir))?;
        let root = Root::open(dir).map_err(refused("can not use"))?;
        let blobs = key(CACHED)?;
        root.make_dir(&blobs)
            .map_err(|error| match root.stat(&blobs) {
                Ok(Some((Kind::Link | Kind::File | Kind::Special, _))) => PublishError::refused(
                    format!(
                        "{} is a link or something else than a directory of a cache",
                        dir.join(CACHED).display()
                    ),
                    "Remove it, or name another directory with --cache.",
                ),
                _ => refused("can not use")(error),
            })?;
        Ok(Self(root))
    }

    fn place(digest: Digest) -> Option<TreePath> {
        TreePath::new(&format!("{CACHED}/{}", digest.hex())).ok()
    }

    fn get(&self, digest: Digest, size: u64) -> Option<Vec<u8>> {
        let (bytes, _) = self.0.read(&Self::place(digest)?, size).ok()?;
        // Whoever else wrote it, or was killed.
        (bytes.len() as u64 == size && Digest::of(&bytes) == digest).then_some(bytes)
    }

    /// A cache that can't be written is as good as none.
    fn put(&self, digest: Digest, bytes: &[u8]) {
        let place = Self::place(digest);
        let staged = place.and_then(|place| self.0.stage(&place, 0o644).ok());
        if let Some(staged) = staged
            && write_all(staged.file(), bytes).is_ok()
        {
            staged.commit().ok();
        }
    }
}

impl<'a> Remote<'a> {
    /// The releases of `store`, and what was read of any store before.
    pub fn new(store: &'a dyn Store, cache: Option<&'a Cache>) -> Self {
        Self { store, cache }
    }

    /// The release.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn release(&self, which: &Which) -> Result<Release, PublishError> {
        let (digest, manifest) = match which {
            Which::Ref(name) => match self.reference(name)? {
                Some((_, digest, manifest)) => (digest, manifest),
                None => {
                    return Err(PublishError::refused(
                        format!("There is no ref '{name}' in {}", self.store.show("")),
                        "See the refs with `casepack ls`.",
                    ));
                }
            },
            Which::Manifest(digest) => {
                let key = key(&blob_key(*digest))?;
                let manifest = match self.store.get(&key, limits::MANIFEST_BYTES) {
                    Err(error) if error.is_not_found() => {
                        return Err(PublishError::refused(
                            format!("There is no release {digest} in {}", self.store.show("")),
                            "See the releases with `casepack ls`; one that lost its ref may be \
                             garbage, and gone.",
                        ));
                    }
                    got => got.map_err(|error| lost(error, &format!("the manifest {digest}")))?,
                };
                (*digest, manifest.bytes)
            }
        };
        self.parse(digest, manifest)
    }

    /// The release with that manifest.
    pub(super) fn parse(&self, digest: Digest, manifest: Vec<u8>) -> Result<Release, PublishError> {
        Release::parse(digest, manifest, |config| self.blob(config))
    }

    /// The state of a ref and the manifest that it names, when it is there.
    pub(super) fn reference(
        &self,
        name: &RefName,
    ) -> Result<Option<(Etag, Digest, Vec<u8>)>, PublishError> {
        match self
            .store
            .get(&key(&name.key())?, 2 * limits::MANIFEST_BYTES)
        {
            Ok(object) => {
                let (digest, manifest) = release_of_ref(name, &object.bytes)?;
                Ok(Some((object.etag, digest, manifest)))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(lost(error, &format!("the ref '{name}'"))),
        }
    }

    /// Every ref, sorted by name.
    ///
    /// # Errors
    /// When they can't be listed or read; a damaged one is told in its place.
    pub fn refs(&self) -> Result<Vec<Named>, PublishError> {
        let mut refs = Vec::new();
        self.each_ref(&mut |found| {
            let release = found
                .manifest
                .and_then(|(digest, manifest)| self.parse(digest, manifest));
            let release = match release {
                Ok(release) => Ok(release),
                Err(PublishError::Bad(bad)) => Err(bad),
                Err(error) => return Err(error),
            };
            refs.push(Named {
                name: found.name,
                modified: found.modified,
                release,
            });
            Ok(())
        })?;
        refs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(refs)
    }

    /// What lies among the refs and may be meant to be one, but is no plain object with the name of
    /// one; the first of them, and why.
    pub(super) fn stray_ref(&self) -> Result<Option<(String, String)>, PublishError> {
        let mut stray = None;
        self.store.list(REFS, &mut |listed| {
            stray = match listed {
                Listed::Entry(entry) => {
                    RefName::from_key(entry.key.as_str()).is_none().then(|| {
                        (
                            entry.key.to_string(),
                            "its name is none of a ref".to_owned(),
                        )
                    })
                }
                // As tools make them for directories.
                Listed::Unusable { key, .. } if key.ends_with('/') => None,
                Listed::Unusable { key, why } => Some((key, why)),
                Listed::EmptyDir(dir) => RefName::from_key(dir.as_str())
                    .map(|_| (dir.to_string(), "it is a directory".to_owned())),
            };
            match stray {
                None => ControlFlow::Continue(()),
                Some(_) => ControlFlow::Break(()),
            }
        })?;
        Ok(stray)
    }

    /// Gives every ref to `each`, without a look at documents.
    pub(super) fn each_ref(
        &self,
        each: &mut dyn FnMut(FoundRef) -> Result<(), PublishError>,
    ) -> Result<(), PublishError> {
        for entry in self.store.entries(REFS, MAX_REFS)? {
            let Some(name) = RefName::from_key(entry.key.as_str()) else {
                continue;
            };
            let manifest = match self.reference(&name) {
                Ok(Some((_, digest, manifest))) => Ok((digest, manifest)),
                // Gone since it was listed.
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            each(FoundRef {
                name,
                modified: entry.modified,
                manifest,
            })?;
        }
        Ok(())
    }

    /// The bytes of a blob that fits into memory.
    pub(super) fn blob(&self, blob: Descriptor) -> Result<Vec<u8>, PublishError> {
        if let Some(bytes) = self.cached(blob.digest, blob.size) {
            return Ok(bytes);
        }
        let limit = limits::SHARD_BYTES + (1 << 20);
        let object = self
            .store
            .get(&key(&blob_key(blob.digest))?, blob.size.min(limit))
            .map_err(|error| lost(error, &format!("the blob {}", blob.digest)))?;
        if Descriptor::of(&object.bytes) != blob {
            let why = "has other bytes than its digest says";
            return Err(Bad::new(format!("the blob {}", blob.digest), why).into());
        }
        self.keep(blob.digest, &object.bytes);
        Ok(object.bytes)
    }

    /// The index of a pack.
    pub(super) fn index(&self, pack: &Pack) -> Result<PackIndex, PublishError> {
        if let Some(bytes) = self.cached(pack.index.digest, pack.index.size) {
            return Ok(pack.parse_index(&bytes)?);
        }
        let size = usize::try_from(pack.index.size).unwrap_or(usize::MAX);
        let path = key(&blob_key(pack.blob.digest))?;
        let bytes = self
            .store
            .get_range(&path, pack.data(), size)
            .map_err(|error| lost(error, &pack.object()))?;
        let index = pack.parse_index(&bytes)?;
        self.keep(pack.index.digest, &bytes);
        Ok(index)
    }

    /// Inflated frames of a pack: `numbers`, sorted, one after the other. Neighbours are asked for
    /// together.
    pub(super) fn frames(
        &self,
        pack: Digest,
        index: &PackIndex,
        numbers: &[usize],
        each: &mut dyn FnMut(usize, Vec<u8>) -> Result<(), PublishError>,
    ) -> Result<(), PublishError> {
        let mut missing: Vec<(usize, Frame)> = Vec::new();
        for number in numbers {
            let Some(frame) = index.frames.get(*number) else {
                continue;
            };
            match self.cached(frame.digest, frame.length) {
                None => missing.push((*number, *frame)),
                Some(bytes) => {
                    self.fetch(pack, &std::mem::take(&mut missing), each)?;
                    each(*number, frame.inflate(&bytes)?)?;
                }
            }
        }
        self.fetch(pack, &missing, each)
    }

    /// Inflated frames that the cache has not.
    fn fetch(
        &self,
        pack: Digest,
        frames: &[(usize, Frame)],
        each: &mut dyn FnMut(usize, Vec<u8>) -> Result<(), PublishError>,
    ) -> Result<(), PublishError> {
        for run in runs(frames) {
            let Some(frames) = frames.get(run) else {
                continue;
            };
            let (Some((_, first)), Some((_, last))) = (frames.first(), frames.last()) else {
                continue;
            };
            let end = last.offset + last.length;
            let size = usize::try_from(end - first.offset).unwrap_or(usize::MAX);
            let bytes = self
                .store
                .get_range(&key(&blob_key(pack))?, first.offset, size)
                .map_err(|error| lost(error, &format!("the pack {pack}")))?;
            for (number, frame) in frames {
                let from = usize::try_from(frame.offset - first.offset).unwrap_or(usize::MAX);
                let length = usize::try_from(frame.length).unwrap_or(usize::MAX);
                let part = bytes
                    .get(from..from.saturating_add(length))
                    .unwrap_or_default();
                let raw = frame.inflate(part).map_err(|bad| {
                    Bad::new(format!("{} of the pack {pack}", bad.object), bad.why)
                })?;
                self.keep(frame.digest, part);
                each(*number, raw)?;
            }
        }
        Ok(())
    }

    fn cached(&self, digest: Digest, size: u64) -> Option<Vec<u8>> {
        self.cache?.get(digest, size)
    }

    fn keep(&self, digest: Digest, bytes: &[u8]) {
        if let Some(cache) = self.cache {
            cache.put(digest, bytes);
        }
    }
}

/// What is said of an object that comes as something else however often it is asked for: it lies
/// there so.
pub(super) const OTHER_CHECKSUM: &str = "has other bytes than the store's own checksum of it says";

/// What is said of something else in the place of an object.
pub(super) const NO_FILE: &str = "is no plain file";

/// What a release names and the store has not whole is damage.
fn lost(error: StoreError, object: &str) -> PublishError {
    let why = match &*error.reason {
        _ if error.is_no_file() => NO_FILE,
        Reason::NotFound => "is missing",
        Reason::Short { .. } => "is shorter than its release says",
        Reason::TooLarge { .. } => "is longer than it can be",
        Reason::DamagedOnTheWay(_) => OTHER_CHECKSUM,
        _ => return error.into(),
    };
    Bad::new(format!("{object} ({})", error.object), why).into()
}

/// Runs of frames that are asked for together.
pub(super) fn runs(frames: &[(usize, Frame)]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for (at, pair) in frames.windows(2).enumerate() {
        let [(_, before), (_, after)] = pair else {
            continue;
        };
        let from = frames.get(start).map_or(0, |(_, first)| first.offset);
        let near = after.offset.saturating_sub(before.offset + before.length) <= GAP;
        if !near || after.offset + after.length - from > RANGE {
            runs.push(start..at + 1);
            start = at + 1;
        }
    }
    if start < frames.len() {
        runs.push(start..frames.len());
    }
    runs
}

/// The frames of each pack, split so that each part is one request.
pub(super) fn requests(
    indexes: &BTreeMap<usize, PackIndex>,
    wanted: BTreeMap<usize, Vec<usize>>,
) -> Vec<(usize, Vec<usize>)> {
    let mut parts = Vec::new();
    for (pack, numbers) in wanted {
        let Some(index) = indexes.get(&pack) else {
            continue;
        };
        let frames: Vec<(usize, Frame)> = numbers
            .iter()
            .filter_map(|number| Some((*number, *index.frames.get(*number)?)))
            .collect();
        for run in runs(&frames) {
            let numbers = frames.get(run).unwrap_or_default();
            parts.push((pack, numbers.iter().map(|(number, _)| *number).collect()));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_asked_for_together() {
        let frame = |offset, length| {
            let frame = Frame {
                offset,
                length,
                raw: 0,
                digest: Digest::of(b""),
            };
            (0, frame)
        };
        let frames = [
            frame(0, 100_000),
            frame(100_000, 100_000),
            frame(264_000, 10),
            frame(400_000, 3_000_000),
            frame(3_400_000, 2_000_000),
        ];
        assert_eq!(runs(&frames), [0..3, 3..4, 4..5]);
        assert!(runs(&[]).is_empty());
    }
}
