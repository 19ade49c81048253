//! Whether a store has what its releases say; what differs between two releases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{PublishError, Remote, key, list};
use crate::bundle::{
    Bad, Descriptor, INDEX_JSON, Name, OCI_LAYOUT, OCI_LAYOUT_BYTES, Release, Shard, View,
    blob_key, index_json,
};
use crate::digest::{Digest, Hasher, TreeId};
use crate::event::{Event, Observer, Stage};
use crate::path::CaseId;
use crate::plan::Change;
use crate::store::{AT_ONCE, Reason, Store, for_each};
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
}

/// Reads the blobs of the releases, and compares them with their digests. Also whether catalogs,
/// indexes and packs fit together: every content of every tree lies in a pack that its view reads.
/// `share` of packs are read, in per cent; catalogs and indexes always are.
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
    let mut packs: BTreeSet<Descriptor> = BTreeSet::new();
    let mut rest: BTreeSet<Descriptor> = BTreeSet::new();
    for release in releases {
        let all = release.document.packs.iter().map(|pack| pack.blob);
        packs.extend(all);
        rest.extend(release.blobs());
        rest.insert(Descriptor::of(&release.manifest));
    }
    let sampled =
        |blob: &Descriptor| u64::from(blob.digest.as_bytes()[31]) * 100 < u64::from(share) * 256;
    let blobs: Vec<Descriptor> = rest
        .into_iter()
        .filter(|blob| !packs.contains(blob) || sampled(blob))
        .collect();
    observer.on(Event::TransferStarted {
        stage: Stage::Verify,
        objects: blobs.len(),
        bytes: blobs.iter().map(|blob| blob.size).sum(),
    });
    let done = Mutex::new(Checked::default());
    for_each(&blobs, AT_ONCE, |blob| -> Result<(), PublishError> {
        if stop.load(Ordering::Relaxed) {
            return Err(PublishError::Stopped);
        }
        let wrong = whole(remote.store, *blob)?;
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.blobs += 1;
        done.bytes += blob.size;
        done.bad.extend(wrong);
        observer.on(Event::Transferred {
            objects: 1,
            bytes: blob.size,
        });
        Ok(())
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    if done.bad.is_empty() {
        for release in releases {
            match consistent(remote, release) {
                Err(PublishError::Bad(bad)) => done.bad.push(bad.to_string()),
                checked => checked?,
            }
        }
    }
    observer.on(Event::StageFinished {
        stage: Stage::Verify,
    });
    done.bad.sort();
    Ok(done)
}

/// What is wrong with `oci-layout` and `index.json`, which follow from the refs.
///
/// # Errors
/// When the store can't be read.
pub fn verify_layout(remote: Remote<'_>) -> Result<Vec<String>, PublishError> {
    let store = remote.store;
    let read = |name: &str| match store.get(&key(name)?, INDEX_BYTES) {
        Ok(object) => Ok(Some(object.bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) if matches!(*error.reason, Reason::TooLarge { .. }) => Ok(Some(Vec::new())),
        Err(error) => Err(PublishError::from(error)),
    };
    let wrong = |name: &str, bytes: Option<Vec<u8>>, expected: &[u8], why: &str| match bytes {
        None => Some(format!("{} is missing", store.show(name))),
        Some(bytes) => (bytes != expected).then(|| format!("{} {why}", store.show(name))),
    };
    let why = "is not what every image layout has";
    let mut bad = Vec::new();
    bad.extend(wrong(OCI_LAYOUT, read(OCI_LAYOUT)?, OCI_LAYOUT_BYTES, why));
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
    let shown = store.show(path.as_str());
    let mut hasher = Hasher::new();
    let mut at = 0;
    while at < blob.size {
        let size = usize::try_from((blob.size - at).min(PIECE)).unwrap_or(0);
        match store.get_range(&path, at, size) {
            Ok(bytes) => hasher.update(&bytes),
            Err(error) if matches!(*error.reason, Reason::NotFound) => {
                return Ok(Some(format!("{shown} is missing")));
            }
            Err(error) if matches!(*error.reason, Reason::Short { .. }) => {
                return Ok(Some(format!("{shown} is shorter than its release says")));
            }
            Err(error) => return Err(error.into()),
        }
        at += size as u64;
    }
    let same = hasher.finish() == blob.digest;
    Ok((!same).then(|| format!("{shown} has other bytes than its digest says")))
}

/// Whether every content that a tree names lies in a pack of its view or of one before.
fn consistent(remote: Remote<'_>, release: &Release) -> Result<(), PublishError> {
    let document = &release.document;
    let mut homes: BTreeMap<Name, (View, u64)> = BTreeMap::new();
    for pack in &document.packs {
        for (name, place) in remote.index(pack)?.contents {
            if homes.insert(name, (pack.view, place.size)).is_some() {
                let why = format!("has the content {name}, which another pack has");
                return Err(Bad::new(pack.object(), why).into());
            }
        }
    }
    let mut trees: BTreeMap<CaseId, BTreeMap<View, (TreeId, Option<Digest>)>> = BTreeMap::new();
    for shard in &document.shards {
        let read = list::read(remote, shard)?;
        let object = || format!("the catalog shard {}", shard.blob.digest);
        for case in &read.cases {
            let listing = read.listing(case)?;
            for file in &listing {
                let mut names = Name::of(file.digest).into_iter();
                match names.find_map(|name| homes.get(&name)) {
                    Some((home, size)) if *home <= shard.view && *size == file.size => {}
                    _ => {
                        let why = format!(
                            "names a content that no pack of its view has: {}",
                            file.digest
                        );
                        return Err(Bad::new(object(), why).into());
                    }
                }
            }
            let harbor = case.placement.as_ref().map(|placement| placement.harbor);
            let views = trees.entry(case.id.clone()).or_default();
            views.insert(shard.view, (id_of(&listing), harbor));
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
