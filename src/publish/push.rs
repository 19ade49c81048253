//! A release goes to a store: blobs, then the manifest, then the ref, then the index of all refs.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::gc::{named_as_garbage, settle};
use super::verify::damaged;
use super::{PublishError, Remote, key};
use crate::bundle::{
    BLOBS, Bad, Descriptor, INDEX_JSON, OCI_LAYOUT, OCI_LAYOUT_BYTES, REFS, RefName, Release,
    blob_key, digest_of_key, index_json, limits, ref_object, release_of_ref,
};
use crate::digest::{Digest, hash_reader};
use crate::event::{Event, Observer, Stage};
use crate::fs::Root;
use crate::store::{
    AT_ONCE, Body, Conditions, Entry, Etag, Expected, Listed, Reason, Store, StoreError, Swap,
    for_each,
};

/// Blobs of a store at most.
const MAX_BLOBS: usize = 10_000_000;
/// How often the index is made again because refs moved meanwhile.
const ROUNDS: usize = 50;

/// What is to be published.
pub struct Push<'a> {
    /// The store root that has the release: a directory.
    pub from: &'a Path,
    /// The release.
    pub release: &'a Release,
    /// Where it goes.
    pub remote: Remote<'a>,
    /// Under which name.
    pub reference: &'a RefName,
    /// Whether the ref is moved whatever it names by then.
    pub force: bool,
    /// Whether blobs that the store has are read, and sent again when they are damaged.
    pub repair: bool,
    /// Whether nothing is written.
    pub dry_run: bool,
    /// How long garbage stays before it is removed; a publish that takes half as long is refused.
    pub grace: Duration,
    /// Set from outside to stop.
    pub stop: &'a AtomicBool,
}

/// What was published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Blobs written, or with a dry run to be written.
    pub uploaded: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Blobs that the store had.
    pub present: u64,
    /// Their bytes.
    pub present_bytes: u64,
    /// What the ref named before.
    pub before: Option<Digest>,
    /// Whether the ref named the release already, and nothing was written.
    pub unchanged: bool,
    /// When nothing was written: how many objects of the store were compared, if not all.
    pub compared: Option<u64>,
    /// Blobs that the store had with other bytes than their digests say.
    pub damaged: u64,
    /// Whether the store ignores conditions: then the last of two publishers wins unseen.
    pub unconditional: bool,
}

/// Publishes; returns what was done.
///
/// # Errors
/// When the store fails, when the ref was moved meanwhile, or when the local release is damaged.
pub fn push(push: &Push<'_>, observer: &dyn Observer) -> Result<Pushed, PublishError> {
    let started = Instant::now();
    let store = push.remote.store;
    let anew = push.force || push.repair;
    let mut is_damaged = false;
    let before = match push.remote.reference(push.reference) {
        // What is there is no release: it is replaced by who said so.
        Err(PublishError::Bad(_)) if anew => {
            is_damaged = true;
            None
        }
        before => before?,
    };
    let mut done = Pushed {
        before: before.as_ref().map(|(_, digest, _)| *digest),
        ..Pushed::default()
    };
    let blobs = push.release.blobs();
    let named = done.before == Some(push.release.digest);
    // Whoever was killed after it had moved the ref left the index as it was.
    if named
        && !anew
        && index_has(store, push.reference, push.release)?
        && let Looks::Whole { compared } = look(store, &blobs, push.release)?
    {
        done.unchanged = true;
        done.compared = compared;
        done.present = blobs.len() as u64;
        done.present_bytes = blobs.iter().map(|blob| blob.size).sum();
        return Ok(done);
    }
    if before.is_none() {
        refuse_twin(push)?;
    }
    let (missing, risky) = missing(push, &blobs, &mut done, observer)?;
    done.uploaded = missing.len() as u64;
    done.uploaded_bytes = missing.iter().map(|blob| blob.size).sum();
    if push.dry_run {
        return Ok(done);
    }
    upload(push, &missing, observer)?;
    let manifest = key(&blob_key(push.release.digest))?;
    let bytes = &push.release.manifest;
    store.put(&manifest, Body::Bytes(bytes), &push.release.digest)?;
    if started.elapsed() > push.grace / 2 {
        return Err(PublishError::busy(
            "The publish took longer than half the grace period of garbage; blobs that it rests on may be gone",
            "Run it again: what was uploaded is there.",
        ));
    }
    // What is sent again may include what conditions are asked with.
    done.unconditional = !conditions(store, before.is_some() && !named && !anew)?;
    let before = before.map(|(etag, ..)| etag);
    move_ref(push, before.as_ref(), is_damaged, &mut done)?;
    if !risky.is_empty() {
        // Now that the ref names them, what is sent again stays.
        let lost = settle(store, push.reference, &risky, push.stop)?;
        upload(push, &lost, &())?;
    }
    rebuild_index(push.remote)?;
    Ok(done)
}

/// What one request shows of a store that names the release.
enum Looks {
    /// Something is missing or has another size.
    Broken,
    /// Nothing is. Only so many objects were compared, if not all.
    Whole { compared: Option<u64> },
}

/// Whether a store that names the release has all of it, by one page of a listing: presence and
/// sizes. What lies beyond the page is taken to be there.
fn look(store: &dyn Store, blobs: &[Descriptor], release: &Release) -> Result<Looks, PublishError> {
    let mut missing: BTreeMap<String, u64> = blobs
        .iter()
        .chain([&release.manifest_blob()])
        .map(|blob| (blob_key(blob.digest), blob.size))
        .collect();
    missing.insert(OCI_LAYOUT.to_owned(), OCI_LAYOUT_BYTES.len() as u64);
    // The last entry of a page must not lead to another one.
    let most = store.page().map(|page| page - 1);
    let mut whole = true;
    let mut seen = 0;
    // By the bytes of their keys: what is smaller than the last one seen and was not seen is not
    // there.
    let mut end = None;
    store.list("", &mut |listed| {
        seen += 1;
        let Listed::Entry(entry) = listed else {
            return ControlFlow::Continue(());
        };
        let text = entry.key.as_str();
        whole &= missing.remove(text).is_none_or(|size| size == entry.size);
        if most.is_some_and(|most| seen >= most) {
            end = Some(text.to_owned());
        }
        if end.is_some() || text >= OCI_LAYOUT {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    let lost = |key: &String| end.as_ref().is_none_or(|end| key < end);
    if !whole || missing.keys().any(lost) {
        return Ok(Looks::Broken);
    }
    let compared = (!missing.is_empty()).then_some(seen as u64);
    Ok(Looks::Whole { compared })
}

/// Two refs that are one name on some file systems would overwrite each other there.
fn refuse_twin(push: &Push<'_>) -> Result<(), PublishError> {
    let fold = push.reference.fold();
    for entry in push.remote.store.entries(REFS, MAX_BLOBS)? {
        let other = RefName::from_key(entry.key.as_str());
        if let Some(other) = other.filter(|other| other != push.reference && other.fold() == fold) {
            return Err(PublishError::refused(
                format!(
                    "The store has a ref '{other}', which is '{}' but for letter case",
                    push.reference
                ),
                "Use that name, or another one.",
            ));
        }
    }
    Ok(())
}

/// The blobs that the store has not, or has with another size, or may lose as garbage, or has
/// damaged, where that is to be repaired; and those that it may lose.
fn missing(
    push: &Push<'_>,
    blobs: &[Descriptor],
    done: &mut Pushed,
    observer: &dyn Observer,
) -> Result<(Vec<Descriptor>, Vec<Descriptor>), PublishError> {
    // Garbage before blobs: what is no longer named by then is no longer there either, and what is
    // named later stays for the grace period.
    let garbage = named_as_garbage(push.remote.store)?;
    let mut there: BTreeMap<Digest, u64> = BTreeMap::new();
    for entry in push.remote.store.entries(BLOBS, MAX_BLOBS)? {
        if let Some(digest) = digest_of_key(entry.key.as_str()) {
            there.insert(digest, entry.size);
        }
    }
    let is_there = |blob: &Descriptor| {
        there.get(&blob.digest) == Some(&blob.size) && !garbage.contains(&blob.digest)
    };
    let (mut present, mut missing): (Vec<_>, Vec<_>) =
        blobs.iter().copied().partition(|it| is_there(it));
    if push.repair {
        let damaged = damaged(push.remote.store, &present, push.stop, observer)?;
        present.retain(|blob| !damaged.contains_key(blob));
        done.damaged = damaged.len() as u64;
        missing.extend(damaged.into_keys());
    }
    done.present = present.len() as u64;
    done.present_bytes = present.iter().map(|blob| blob.size).sum();
    // It is sent in any case.
    let manifest = Descriptor::of(&push.release.manifest);
    let risky = missing.iter().chain([&manifest]);
    let risky = risky.filter(|blob| garbage.contains(&blob.digest));
    let risky = risky.copied().collect();
    Ok((missing, risky))
}

fn upload(
    push: &Push<'_>,
    missing: &[Descriptor],
    observer: &dyn Observer,
) -> Result<(), PublishError> {
    let root = Root::open(push.from).map_err(|error| PublishError::Io {
        doing: "can not read",
        path: error.path,
        source: error.source,
    })?;
    observer.on(Event::TransferStarted {
        stage: Stage::Upload,
        objects: missing.len(),
        bytes: missing.iter().map(|blob| blob.size).sum(),
    });
    let sent = AtomicU64::new(0);
    for_each(missing, AT_ONCE, |blob| {
        if push.stop.load(Ordering::Relaxed) {
            return Err(PublishError::Stopped);
        }
        let path = key(&blob_key(blob.digest))?;
        let bad = |why: String| {
            Bad::new(
                format!("the blob {} in {}", blob.digest, push.from.display()),
                why,
            )
        };
        let (file, stamp) = root
            .open_file(&path)
            .map_err(|error| bad(error.to_string()))?;
        if stamp.size != blob.size {
            return Err(bad("has another size than the release says".to_owned()).into());
        }
        let body = Body::File {
            file: &file,
            offset: 0,
            size: blob.size,
        };
        let put = push.remote.store.put(&path, body, &blob.digest);
        put.map_err(|error| changed_here(error, &file, *blob, push.from))?;
        sent.fetch_add(blob.size, Ordering::Relaxed);
        observer.on(Event::Transferred {
            objects: 1,
            bytes: blob.size,
        });
        Ok(())
    })?;
    observer.on(Event::StageFinished {
        stage: Stage::Upload,
    });
    Ok(())
}

/// What is said when a blob could not be sent: some stores compare its bytes with the digest, and
/// can't know where they were damaged.
fn changed_here(error: StoreError, file: &File, blob: Descriptor, from: &Path) -> PublishError {
    let compared = matches!(
        *error.reason,
        Reason::Damaged { .. } | Reason::DamagedOnTheWay(_)
    );
    // The handle was read at places of its choice: its own is at the beginning.
    let mut file = file;
    if !compared || hash_reader(&mut file).is_ok_and(|it| it == (blob.digest, blob.size)) {
        return error.into();
    }
    PublishError::refused(
        format!(
            "The blob {} in {} has other bytes than its digest says",
            blob.digest,
            from.display()
        ),
        "Build it anew: `casepack build --target bundle --force`.",
    )
}

/// Whether the store honours conditions. `known`: somebody has published there, so that what is asked
/// with is there.
fn conditions(store: &dyn Store, known: bool) -> Result<bool, PublishError> {
    let path = key(OCI_LAYOUT)?;
    if known && store.probe_conditions(&path, OCI_LAYOUT_BYTES)? == Conditions::Honoured {
        return Ok(true);
    }
    match store.put_if(&path, OCI_LAYOUT_BYTES, Expected::Absent) {
        // It was not there; now it is, and can be asked with.
        Ok(Swap::Done(_)) => {
            Ok(store.probe_conditions(&path, OCI_LAYOUT_BYTES)? == Conditions::Honoured)
        }
        Ok(Swap::Lost { now }) => {
            if now.is_none_or(|now| now.bytes != OCI_LAYOUT_BYTES) {
                store.put(
                    &path,
                    Body::Bytes(OCI_LAYOUT_BYTES),
                    &Digest::of(OCI_LAYOUT_BYTES),
                )?;
            }
            Ok(true)
        }
        Err(error) => {
            let honoured = match *error.reason {
                Reason::NoConditions => false,
                // It was there, and can't be read.
                Reason::DamagedOnTheWay(_) => true,
                _ => return Err(error.into()),
            };
            store.put(
                &path,
                Body::Bytes(OCI_LAYOUT_BYTES),
                &Digest::of(OCI_LAYOUT_BYTES),
            )?;
            Ok(honoured)
        }
    }
}

/// Moves the ref from where it was `before`; from wherever it is, when it `is_damaged`.
fn move_ref(
    push: &Push<'_>,
    before: Option<&Etag>,
    is_damaged: bool,
    done: &mut Pushed,
) -> Result<(), PublishError> {
    let store = push.remote.store;
    let path = key(&push.reference.key())?;
    let bytes = ref_object(push.release);
    if bytes.len() as u64 > 2 * limits::MANIFEST_BYTES {
        return Err(PublishError::refused(
            "The release is too large for a ref",
            "Split the dataset.",
        ));
    }
    if push.force || is_damaged || done.unconditional {
        store.put(&path, Body::Bytes(&bytes), &Digest::of(&bytes))?;
        return Ok(());
    }
    let expected = before.map_or(Expected::Absent, Expected::At);
    let Swap::Lost { now } = store.put_if(&path, &bytes, expected)? else {
        return Ok(());
    };
    let now = now.and_then(|now| release_of_ref(push.reference, &now.bytes).ok());
    match now {
        // Somebody else has published the same.
        Some((digest, _)) if digest == push.release.digest => Ok(()),
        now => {
            let what = now.map_or_else(
                || "was removed".to_owned(),
                |(digest, _)| format!("was moved to {digest}"),
            );
            Err(PublishError::busy(
                format!(
                    "The ref '{}' {what} by another publisher while this one was at work; it was left so",
                    push.reference
                ),
                "Look at what is there with `casepack ls`; publish again to replace it, or use another --tag.",
            ))
        }
    }
}

/// Whether `index.json` names the release.
fn index_has(
    store: &dyn Store,
    reference: &RefName,
    release: &Release,
) -> Result<bool, PublishError> {
    let object = match store.get(&key(INDEX_JSON)?, 64 << 20) {
        // There or not: it has to be written.
        Err(error)
            if error.is_no_file()
                || matches!(
                    *error.reason,
                    Reason::NotFound | Reason::TooLarge { .. } | Reason::DamagedOnTheWay(_)
                ) =>
        {
            return Ok(false);
        }
        object => object?,
    };
    let index: serde_json::Value = serde_json::from_slice(&object.bytes).unwrap_or_default();
    let manifests = index.get("manifests").and_then(|list| list.as_array());
    Ok(manifests.into_iter().flatten().any(|manifest| {
        let name = manifest
            .pointer("/annotations/org.opencontainers.image.ref.name")
            .and_then(|name| name.as_str());
        let digest = manifest.get("digest").and_then(|digest| digest.as_str());
        name == Some(reference.as_str()) && digest == Some(&release.digest.to_string())
    }))
}

/// Writes `index.json` over all refs, until none has moved meanwhile.
pub(super) fn rebuild_index(remote: Remote<'_>) -> Result<(), PublishError> {
    let store = remote.store;
    let mut known: BTreeMap<RefName, (Entry, Descriptor)> = BTreeMap::new();
    let mut written: Option<Vec<u8>> = None;
    for _ in 0..ROUNDS {
        let mut listed = Vec::new();
        for entry in store.entries(REFS, MAX_BLOBS)? {
            if let Some(name) = RefName::from_key(entry.key.as_str()) {
                listed.push((name, entry));
            }
        }
        // What was read stays known as long as the store says that it is the same.
        known.retain(|name, (seen, _)| {
            let same = |it: &(RefName, Entry)| it.0 == *name && it.1 == *seen;
            seen.etag.is_some() && listed.iter().any(same)
        });
        for (name, entry) in listed {
            if known.contains_key(&name) {
                continue;
            }
            match remote.reference(&name) {
                Ok(Some((_, digest, manifest))) => {
                    let size = manifest.len() as u64;
                    known.insert(name, (entry, Descriptor { digest, size }));
                }
                // Gone meanwhile, or damaged: no business of this publish.
                Ok(None) | Err(PublishError::Bad(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let bytes = index_json(known.iter().map(|(name, (_, manifest))| (name, *manifest)));
        if written.as_ref() == Some(&bytes) {
            return Ok(());
        }
        store.put(&key(INDEX_JSON)?, Body::Bytes(&bytes), &Digest::of(&bytes))?;
        written = Some(bytes);
    }
    // Others move refs all the time: the last of them leaves the index right.
    Ok(())
}
