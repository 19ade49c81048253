//! Whether a store has what its releases say; what differs between two releases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::remote::{NO_FILE, OTHER_CHECKSUM, runs};
use super::{PublishError, Remote, key, list};
use crate::bundle::{
    Bad, Descriptor, Frame, INDEX_JSON, Name, OCI_LAYOUT, OCI_LAYOUT_BYTES, Pack, PackIndex, Place,
    Release, Shard, View, blob_key, index_json,
};
use crate::digest::{Digest, Hasher, TreeId};
use crate::event::{Event, Observer, Stage};
use crate::path::{CaseId, TreePath};
use crate::plan::Change;
use crate::store::{AT_ONCE, Reason, Store, StoreError, for_each};
use crate::tree::id_of;

/// Bytes of a blob that are read at once.
const PIECE: u64 = 4 << 20;
/// Bytes of an index at most.
const INDEX_BYTES: u64 = 64 << 20;
/// How often an index that others write meanwhile is looked at.
const LOOKS: usize = 5;
/// And how long after another.
const PAUSE: Duration = Duration::from_secs(1);

/// What was verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blobs read and hashed.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong, sorted.
    pub bad: Vec<String>,
    /// The releases that it is wrong with.
    pub damaged: BTreeSet<Digest>,
}

/// The digests of what packs hold, by pack, in the order of its index.
type Contents = BTreeMap<Digest, Vec<Digest>>;

/// Reads the blobs of the releases, and compares them with their digests; packs are inflated, and
/// each content compared with its own. Also whether documents, catalogs, indexes and packs fit
/// together: every size that is stated is the one that is found, and every content of every tree
/// lies in a pack that its view reads. `share` of packs are read, in per cent; the rest always is.
///
/// # Errors
/// When the store can't be read; what is wrong in it is no error but in the result.
pub fn verify(
    remote: Remote<'_>,
    releases: &[Release],
    share: u8,
    stop: &AtomicBool,
    observer: &dyn Observer,
) -> Result<Checked, PublishError> {
    let mut packs: BTreeMap<Descriptor, &Pack> = BTreeMap::new();
    let mut rest: BTreeSet<Descriptor> = BTreeSet::new();
    for release in releases {
        packs.extend(release.document.packs.iter().map(|pack| (pack.blob, pack)));
        rest.extend(release.blobs());
        rest.insert(Descriptor::of(&release.manifest));
    }
    let sampled =
        |blob: &Descriptor| u64::from(blob.digest.as_bytes()[31]) * 100 < u64::from(share) * 256;
    let blobs: Vec<Descriptor> = rest
        .into_iter()
        .filter(|blob| !packs.contains_key(blob) || sampled(blob))
        .collect();
    let contents: Mutex<Contents> = Mutex::default();
    let wrong = each(&blobs, stop, observer, |blob| {
        let Some(pack) = packs.get(&blob) else {
            return whole(remote.store, blob);
        };
        let (wrong, found) = whole_pack(remote, pack)?;
        let mut contents = contents.lock().unwrap_or_else(PoisonError::into_inner);
        contents.insert(blob.digest, found);
        Ok(wrong)
    })?;
    let contents = contents
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let mut done = Checked {
        blobs: blobs.len() as u64,
        bytes: blobs.iter().map(|blob| blob.size).sum(),
        ..Checked::default()
    };
    for release in releases {
        let mut of_release = release.blobs().into_iter().chain([release.manifest_blob()]);
        if of_release.any(|blob| wrong.contains_key(&blob)) {
            done.damaged.insert(release.digest);
            continue;
        }
        match consistent(remote, release, &contents) {
            Err(PublishError::Bad(bad)) => {
                done.damaged.insert(release.digest);
                done.bad.push(bad.to_string());
            }
            checked => checked?,
        }
    }
    done.bad.extend(wrong.into_values());
    done.bad.sort();
    Ok(done)
}

/// What is wrong with each of the blobs, where something is.
pub(super) fn damaged(
    store: &dyn Store,
    blobs: &[Descriptor],
    stop: &AtomicBool,
    observer: &dyn Observer,
) -> Result<BTreeMap<Descriptor, String>, PublishError> {
    each(blobs, stop, observer, |blob| whole(store, blob))
}

/// Looks at each of the blobs, several at a time.
fn each(
    blobs: &[Descriptor],
    stop: &AtomicBool,
    observer: &dyn Observer,
    look: impl Fn(Descriptor) -> Result<Option<String>, PublishError> + Sync,
) -> Result<BTreeMap<Descriptor, String>, PublishError> {
    observer.on(Event::TransferStarted {
        stage: Stage::Verify,
        objects: blobs.len(),
        bytes: blobs.iter().map(|blob| blob.size).sum(),
    });
    let wrong: Mutex<BTreeMap<Descriptor, String>> = Mutex::default();
    for_each(blobs, AT_ONCE, |blob| -> Result<(), PublishError> {
        if stop.load(Ordering::Relaxed) {
            return Err(PublishError::Stopped);
        }
        if let Some(why) = look(*blob)? {
            let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
            wrong.insert(*blob, why);
        }
        observer.on(Event::Transferred {
            objects: 1,
            bytes: blob.size,
        });
        Ok(())
    })?;
    observer.on(Event::StageFinished {
        stage: Stage::Verify,
    });
    Ok(wrong.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// What is wrong with `oci-layout` and `index.json`, which follow from the refs, and what stands among
/// the refs and is none.
///
/// # Errors
/// When the store can't be read.
pub fn verify_layout(remote: Remote<'_>) -> Result<Vec<String>, PublishError> {
    let store = remote.store;
    let read = |name: &str| match store.get(&key(name)?, INDEX_BYTES) {
        Ok(object) => Ok(Some(object.bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error)
            if error.is_no_file()
                || matches!(
                    *error.reason,
                    Reason::TooLarge { .. } | Reason::DamagedOnTheWay(_)
                ) =>
        {
            Ok(Some(Vec::new()))
        }
        Err(error) => Err(PublishError::from(error)),
    };
    let wrong = |name: &str, bytes: Option<Vec<u8>>, expected: &[u8], why: &str| match bytes {
        None => Some(format!("{} is missing", store.show(name))),
        Some(bytes) => (bytes != expected).then(|| format!("{} {why}", store.show(name))),
    };
    let why = "is not what every image layout has";
    let mut bad = Vec::new();
    bad.extend(wrong(OCI_LAYOUT, read(OCI_LAYOUT)?, OCI_LAYOUT_BYTES, why));
    if let Some((stray, why)) = remote.stray_ref()? {
        bad.push(format!("{} is no ref: {why}", store.show(&stray)));
    }
    // A publisher may be between its ref and the index: what stays so is wrong.
    let mut seen = None;
    for _ in 0..LOOKS {
        let mut refs = Vec::new();
        let mut unreadable = false;
        remote.each_ref(&mut |found| {
            match found.manifest {
                Ok((digest, manifest)) => {
                    let size = manifest.len() as u64;
                    refs.push((found.name, Descriptor { digest, size }));
                }
                Err(PublishError::Bad(_)) => unreadable = true,
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        // Told of already; what the index says of it is anybody's guess.
        if unreadable {
            break;
        }
        let expected = index_json(refs.iter().map(|(name, manifest)| (name, *manifest)));
        let found = read(INDEX_JSON)?;
        let Some(told) = wrong(
            INDEX_JSON,
            found.clone(),
            &expected,
            "is not what the refs say",
        ) else {
            break;
        };
        let state = Some((found, expected));
        if seen == state {
            bad.push(told);
            break;
        }
        seen = state;
        std::thread::sleep(PAUSE);
    }
    Ok(bad)
}

/// What is wrong with a blob, read in pieces.
fn whole(store: &dyn Store, blob: Descriptor) -> Result<Option<String>, PublishError> {
    let path = key(&blob_key(blob.digest))?;
    if blob.size <= PIECE {
        // At once, and of a longer one nothing.
        let why = match store.get(&path, blob.size) {
            Ok(object) if Descriptor::of(&object.bytes) == blob => return Ok(None),
            Ok(object) if (object.bytes.len() as u64) < blob.size => SHORTER,
            Ok(_) => OTHER,
            Err(error) => wrong(error)?,
        };
        return Ok(Some(format!("{} {why}", store.show(path.as_str()))));
    }
    let mut hasher = Hasher::new();
    let mut at = 0;
    while at < blob.size {
        let size = (blob.size - at).min(PIECE);
        match piece(store, &path, at, size)? {
            Ok(bytes) => hasher.update(&bytes),
            Err(why) => return Ok(Some(why)),
        }
        at += size;
    }
    ends(store, &path, blob, hasher)
}

const OTHER: &str = "has other bytes than its digest says";
const SHORTER: &str = "is shorter than its release says";
const LONGER: &str = "is longer than its release says";

/// What is wrong with a blob whose bytes, as far as they are known, were hashed.
fn ends(
    store: &dyn Store,
    path: &TreePath,
    blob: Descriptor,
    hasher: Hasher,
) -> Result<Option<String>, PublishError> {
    let same = hasher.finish() == blob.digest;
    // One that goes on has another digest than its name says, whatever it begins with.
    let why = match piece(store, path, blob.size, 1)? {
        Ok(_) => LONGER,
        Err(_) if same => return Ok(None),
        Err(_) => OTHER,
    };
    Ok(Some(format!("{} {why}", store.show(path.as_str()))))
}

/// What is wrong with an object that can't be read; an error when the store is.
fn wrong(error: StoreError) -> Result<&'static str, PublishError> {
    Ok(match *error.reason {
        _ if error.is_no_file() => NO_FILE,
        Reason::NotFound => "is missing",
        Reason::Short { .. } => SHORTER,
        Reason::TooLarge { .. } => LONGER,
        Reason::DamagedOnTheWay(_) => OTHER_CHECKSUM,
        _ => return Err(error.into()),
    })
}

/// Some bytes of a blob, or why they are not there.
fn piece(
    store: &dyn Store,
    path: &TreePath,
    at: u64,
    size: u64,
) -> Result<Result<Bytes, String>, PublishError> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    match store.get_range(path, at, size) {
        Ok(bytes) => Ok(Ok(bytes)),
        Err(error) => Ok(Err(format!(
            "{} {}",
            store.show(path.as_str()),
            wrong(error)?
        ))),
    }
}

/// What is wrong with a pack: with its bytes, with a frame of its index, or with a content; and the
/// digests of its contents, when nothing is.
fn whole_pack(
    remote: Remote<'_>,
    pack: &Pack,
) -> Result<(Option<String>, Vec<Digest>), PublishError> {
    let store = remote.store;
    let wrong = |why| Ok((Some(why), Vec::new()));
    let index = match remote.index(pack) {
        Ok(index) => index,
        // What is wrong with its bytes says more.
        Err(PublishError::Bad(bad)) => {
            let bytes = whole(store, pack.blob)?;
            return wrong(bytes.unwrap_or_else(|| bad.to_string()));
        }
        Err(error) => return Err(error),
    };
    let path = key(&blob_key(pack.blob.digest))?;
    let frames: Vec<(usize, Frame)> = index.frames.iter().copied().enumerate().collect();
    let mut hasher = Hasher::new();
    let mut reading = Reading::of(&index);
    let mut first = None;
    for run in runs(&frames) {
        let run = frames.get(run).unwrap_or_default();
        let at = run.first().map_or(0, |(_, frame)| frame.offset);
        let size = run.iter().map(|(_, frame)| frame.length).sum();
        let bytes = match piece(store, &path, at, size)? {
            Ok(bytes) => bytes,
            Err(why) => return wrong(why),
        };
        hasher.update(&bytes);
        for (number, frame) in run {
            let place = |from: u64| usize::try_from(from - at).unwrap_or(usize::MAX);
            let part = bytes.get(place(frame.offset)..place(frame.offset + frame.length));
            let read = frame
                .inflate(part.unwrap_or_default())
                .map_err(|bad| bad.to_string())
                .and_then(|raw| reading.frame(*number, &raw));
            first = first.or(read.err());
        }
    }
    match piece(store, &path, pack.data(), pack.index.size)? {
        Ok(bytes) => hasher.update(&bytes),
        Err(why) => return wrong(why),
    }
    if let Some(why) = ends(store, &path, pack.blob, hasher)? {
        return wrong(why);
    }
    match first {
        Some(why) => wrong(format!("{}: {why}", pack.object())),
        None => Ok((None, reading.found)),
    }
}

/// Follows the contents of a pack from frame to frame.
struct Reading<'a> {
    /// Those that have not begun.
    rest: &'a [(Name, Place)],
    /// The one that goes on in the next frame, and how many of its bytes are there.
    open: Option<(Name, Hasher, u64)>,
    found: Vec<Digest>,
}

impl<'a> Reading<'a> {
    fn of(index: &'a PackIndex) -> Self {
        Self {
            rest: &index.contents,
            open: None,
            found: Vec::new(),
        }
    }

    /// Reads the next frame, inflated; says what is wrong with a content in it.
    fn frame(&mut self, number: usize, raw: &[u8]) -> Result<(), String> {
        if let Some((name, hasher, left)) = self.open.take() {
            self.take(name, hasher, left, raw)?;
        }
        while let Some(((name, place), rest)) = self.rest.split_first() {
            if place.frame != number {
                break;
            }
            self.rest = rest;
            let example = name.example();
            if !example.is_some_and(|it| PackIndex::is_file(it, *place, raw)) {
                return Err(format!(
                    "the entry of the content {name} is no file, or has another size or name than \
                     the index says"
                ));
            }
            let start = usize::try_from(place.offset).unwrap_or(usize::MAX);
            let data = raw.get(start..).unwrap_or_default();
            self.take(*name, Hasher::new(), place.size, data)?;
        }
        Ok(())
    }

    /// Takes what `data` has of a content of which `left` bytes are to come.
    fn take(
        &mut self,
        name: Name,
        mut hasher: Hasher,
        left: u64,
        data: &[u8],
    ) -> Result<(), String> {
        let here = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        hasher.update(data.get(..here).unwrap_or_default());
        let left = left - here as u64;
        if left > 0 {
            self.open = Some((name, hasher, left));
            return Ok(());
        }
        let digest = hasher.finish();
        if !Name::of(digest).contains(&name) {
            return Err(format!(
                "the content {name} has other bytes than its name says"
            ));
        }
        self.found.push(digest);
        Ok(())
    }
}

/// Whether every size is as the document says, and every content that a tree names lies in a pack
/// of its view or of one before. `contents` are those of the packs that were read.
fn consistent(
    remote: Remote<'_>,
    release: &Release,
    contents: &Contents,
) -> Result<(), PublishError> {
    let document = &release.document;
    let mut homes: BTreeMap<Name, (View, u64, Option<Digest>)> = BTreeMap::new();
    for pack in &document.packs {
        let index = remote.index(pack)?;
        let frames = index.frames.iter().map(|frame| frame.raw);
        let raw = frames.fold(index.raw, u64::saturating_add);
        if raw != pack.raw {
            let stated = pack.raw;
            let why =
                format!("inflates to {raw} bytes, and the document gives it a rawSize of {stated}");
            return Err(Bad::new(pack.object(), why).into());
        }
        let found = contents.get(&pack.blob.digest);
        for (at, (name, place)) in index.contents.into_iter().enumerate() {
            let found = found.and_then(|found| found.get(at).copied());
            let home = (pack.view, place.size, found);
            if homes.insert(name, home).is_some() {
                let why = format!("has the content {name}, which another pack has");
                return Err(Bad::new(pack.object(), why).into());
            }
        }
    }
    let mut totals: BTreeMap<View, (u64, u64)> = BTreeMap::new();
    let mut trees: BTreeMap<CaseId, BTreeMap<View, (TreeId, Option<Digest>)>> = BTreeMap::new();
    for shard in &document.shards {
        let read = list::read(remote, shard)?;
        let object = || format!("the catalog shard {}", shard.blob.digest);
        for case in &read.cases {
            let listing = read.listing(case)?;
            for file in &listing {
                let mut names = Name::of(file.digest).into_iter();
                match names.find_map(|name| homes.get(&name)) {
                    Some((home, size, found))
                        if *home <= shard.view
                            && *size == file.size
                            && found.is_none_or(|found| found == file.digest) => {}
                    _ => {
                        let why = format!(
                            "names a content that no pack of its view has: {}",
                            file.digest
                        );
                        return Err(Bad::new(object(), why).into());
                    }
                }
            }
            let total = totals.entry(shard.view).or_default();
            total.0 += listing.len() as u64;
            for file in &listing {
                total.1 = total.1.saturating_add(file.size);
            }
            let harbor = case.placement.as_ref().map(|placement| placement.harbor);
            let views = trees.entry(case.id.clone()).or_default();
            views.insert(shard.view, (id_of(&listing), harbor));
        }
    }
    for view in View::ALL {
        let (files, bytes) = totals.get(&view).copied().unwrap_or_default();
        let stated = document.views.get(&view).copied().unwrap_or_default();
        for (field, found, stated) in [("files", files, stated.0), ("bytes", bytes, stated.1)] {
            if found != stated {
                let why = format!(
                    "gives views.{view}.{field} as {stated}, and its catalogs have {found}"
                );
                let object = format!("the document {}", release.config.digest);
                return Err(Bad::new(object, why).into());
            }
        }
    }
    let mut dataset = Hasher::new();
    let mut packages = Hasher::new();
    for (id, views) in &trees {
        let (Some(workspace), Some(evaluation), Some((task, Some(harbor)))) = (
            views.get(&View::Workspace),
            views.get(&View::Evaluation),
            views.get(&View::Task),
        ) else {
            let why = format!("has not every view of '{id}'");
            return Err(Bad::new(format!("the release {}", release.digest), why).into());
        };
        let hex = |tree: &TreeId| tree.0.hex();
        dataset.update(format!("{id}\0{}\0{}\n", hex(&workspace.0), hex(&evaluation.0)).as_bytes());
        packages.update(format!("{id}\0{}\0{}\n", hex(task), harbor.hex()).as_bytes());
    }
    if (dataset.finish(), packages.finish()) != (document.dataset, document.packages) {
        let why = "has another dataset or packages digest than its catalogs give";
        return Err(Bad::new(format!("the release {}", release.digest), why).into());
    }
    Ok(())
}

/// One file that differs between two releases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The case.
    pub case: CaseId,
    /// In which view.
    pub view: View,
    /// The file.
    pub path: String,
    /// What is different about it.
    pub change: Change,
    /// Its content in the first release.
    pub old: Option<Digest>,
    /// Its content in the second release.
    pub new: Option<Digest>,
}

/// What differs between two releases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Cases that only the second one has.
    pub added: Vec<CaseId>,
    /// Cases that only the first one has.
    pub removed: Vec<CaseId>,
    /// Files of cases that both have.
    pub files: Vec<Difference>,
}

/// Compares two releases, shard by shard: those that both have are not read.
///
/// # Errors
/// When a store fails or is damaged.
pub fn diff(
    (a, old): (Remote<'_>, &Release),
    (b, new): (Remote<'_>, &Release),
) -> Result<Changes, PublishError> {
    let mut changes = Changes::default();
    for view in View::ALL {
        let before = Side::read(a, old, view, new)?;
        let after = Side::read(b, new, view, old)?;
        for id in before
            .cases
            .keys()
            .chain(after.cases.keys())
            .collect::<BTreeSet<_>>()
        {
            match (before.get(id)?, after.get(id)?) {
                (Some(_), None) if view == View::Workspace => changes.removed.push(id.clone()),
                (None, Some(_)) if view == View::Workspace => changes.added.push(id.clone()),
                (Some(x), Some(y)) => {
                    for path in x.keys().chain(y.keys()).collect::<BTreeSet<_>>() {
                        let (old, new) = (x.get(path), y.get(path));
                        let change = match (old, new) {
                            (Some(old), Some(new)) if old == new => continue,
                            (Some((_, old)), Some((_, new))) if old == new => Change::Mode,
                            (Some(_), Some(_)) => Change::Content,
                            (Some(_), None) => Change::Removed,
                            _ => Change::Added,
                        };
                        changes.files.push(Difference {
                            case: id.clone(),
                            view,
                            path: path.clone(),
                            change,
                            old: old.map(|(_, digest)| *digest),
                            new: new.map(|(_, digest)| *digest),
                        });
                    }
                }
                _ => {}
            }
        }
    }
    let place = |file: &Difference| (file.case.clone(), file.view, file.path.clone());
    changes.files.sort_by_cached_key(place);
    Ok(changes)
}

/// The cases of one view of one release that are not in a shard of the other release.
struct Side {
    shards: Vec<Shard>,
    cases: BTreeMap<CaseId, usize>,
}

type Files = BTreeMap<String, (crate::tree::Mode, Digest)>;

impl Side {
    fn read(
        remote: Remote<'_>,
        release: &Release,
        view: View,
        other: &Release,
    ) -> Result<Self, PublishError> {
        let theirs: BTreeSet<Digest> = other
            .document
            .shards
            .iter()
            .filter(|shard| shard.view == view)
            .map(|shard| shard.blob.digest)
            .collect();
        let mut side = Self {
            shards: Vec::new(),
            cases: BTreeMap::new(),
        };
        for shard in &release.document.shards {
            if shard.view != view || theirs.contains(&shard.blob.digest) {
                continue;
            }
            let read = list::read(remote, shard)?;
            for case in &read.cases {
                side.cases.insert(case.id.clone(), side.shards.len());
            }
            side.shards.push(read);
        }
        Ok(side)
    }

    fn get(&self, id: &CaseId) -> Result<Option<Files>, PublishError> {
        let shard = self.cases.get(id).and_then(|at| self.shards.get(*at));
        let Some((shard, case)) = shard.and_then(|shard| Some((shard, shard.case(id)?))) else {
            return Ok(None);
        };
        let files = shard.listing(case)?.into_iter();
        let files = files.map(|file| (file.path.as_str().to_owned(), (file.mode, file.digest)));
        Ok(Some(files.collect()))
    }
}
