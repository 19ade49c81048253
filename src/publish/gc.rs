//! Garbage: blobs that no release needs, named in one pass and removed in a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{PublishError, Remote, key};
use crate::bundle::{BLOBS, Descriptor, RefName, blobs_of_manifest, digest_of_key, limits};
use crate::digest::Digest;
use crate::store::{AT_ONCE, Body, Entry, Store, for_each};

const SCHEMA: &str = "casepack.garbage.v1";
/// Below it are the records.
const RECORDS: &str = "gc/";
/// Is there while garbage is being removed.
const SWEEP: &str = "gc/sweep";
/// How long that takes at most; whoever was killed at it is waited for twice as long.
const SWEEP_TIME: Duration = Duration::from_mins(10);
/// Bytes of a record at most.
const MAX_RECORD: u64 = 1 << 30;
/// Blobs of a store at most.
const MAX_BLOBS: usize = 10_000_000;

/// One pass over a store.
#[derive(Debug, Clone, Copy)]
pub struct Collection {
    /// How long garbage stays after it was named.
    pub grace: Duration,
    /// How long a release that no ref names stays, from when a pass first found it so.
    pub keep: Duration,
    /// The time, seconds since 1970.
    pub now: i64,
    /// Whether anything is written or removed.
    pub write: bool,
}

/// What a pass found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Blobs that are needed, and their bytes.
    pub needed: (u64, u64),
    /// Releases that no ref names, and that stay for now.
    pub lost_releases: u64,
    /// Blobs that nothing needs, which stay for the grace period.
    pub named: (u64, u64),
    /// Blobs removed; with a dry run, that would be.
    pub removed: (u64, u64),
    /// Refs that can't be read: then nothing is removed.
    pub unreadable: Vec<String>,
}

#[derive(Serialize, Deserialize, Default)]
struct Record {
    schema: String,
    /// When it was made, seconds since 1970.
    time: i64,
    /// Blobs that nothing needed.
    blobs: Vec<String>,
    /// Manifests that no ref named, and since when that is known.
    lost: BTreeMap<String, i64>,
}

/// One pass: names what nothing needs, and removes what an earlier pass named longer ago than the
/// grace period, is still not needed and was not written since.
///
/// # Errors
/// When the store fails or a ref is damaged, which could be one that needs blobs; and when `stop`
/// was set from outside.
pub fn collect(
    remote: Remote<'_>,
    pass: Collection,
    stop: &AtomicBool,
) -> Result<Collected, PublishError> {
    let store = remote.store;
    let mut done = Collected::default();
    // Records before refs, refs before blobs: a publisher goes the other way.
    let records = records(store)?;
    let mut blobs: BTreeMap<Digest, Entry> = BTreeMap::new();
    for entry in store.entries(BLOBS, MAX_BLOBS)? {
        if let Some(digest) = digest_of_key(entry.key.as_str()) {
            blobs.insert(digest, entry);
        }
    }
    if let Some((stray, why)) = remote.stray_ref()? {
        let stray = store.show(&stray);
        return Err(PublishError::refused(
            format!("Nothing is collected, since {stray} may be meant for a ref, and {why}"),
            "Make a plain object of it, with the name of a ref and `.json`, or remove it.",
        ));
    }
    let mut needed = BTreeSet::new();
    remote.each_ref(&mut |found| {
        match found.manifest.and_then(|manifest| named_by(&manifest)) {
            Ok(blobs) => needed.extend(blobs),
            Err(PublishError::Bad(bad)) => done.unreadable.push(bad.to_string()),
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    if let Some(first) = done.unreadable.first() {
        return Err(PublishError::refused(
            format!("Nothing is collected, since a ref can't be read: {first}"),
            "Publish that ref again, or remove its object.",
        ));
    }
    let mut lost = BTreeMap::new();
    for (digest, named) in lost_releases(remote, &blobs, &needed)? {
        let since = records
            .iter()
            .filter_map(|old| old.record.lost.get(&digest.hex()).copied())
            .min()
            .unwrap_or(pass.now);
        lost.insert(digest.hex(), since);
        if pass.now.saturating_sub(since) < seconds(pass.keep) {
            done.lost_releases += 1;
            needed.extend(named);
        }
    }
    let mut record = Record {
        schema: SCHEMA.to_owned(),
        time: pass.now,
        lost,
        ..Record::default()
    };
    let mut gone: BTreeMap<Digest, Entry> = BTreeMap::new();
    let mut waiting = BTreeSet::new();
    for (digest, entry) in &blobs {
        if needed.contains(digest) {
            done.needed.0 += 1;
            done.needed.1 += entry.size;
            continue;
        }
        let hex = digest.hex();
        // What was written since it was named counts as new.
        let since = records
            .iter()
            .filter(|old| old.names(&hex, entry))
            .map(|old| old.record.time)
            .min();
        let count = match since {
            Some(since) if pass.now.saturating_sub(since) >= seconds(pass.grace) => {
                gone.insert(*digest, entry.clone());
                &mut done.removed
            }
            Some(_) => {
                waiting.insert(*digest);
                &mut done.named
            }
            None => {
                record.blobs.push(hex);
                &mut done.named
            }
        };
        count.0 += 1;
        count.1 += entry.size;
    }
    if !pass.write {
        return Ok(done);
    }
    if !gone.is_empty() {
        done.removed = sweep(remote, &gone, stop)?;
    }
    write(store, &records, &record, &waiting)?;
    Ok(done)
}

/// Removes what is `gone`, as far as it still is; returns how many blobs, and their bytes.
///
/// A publisher that needs one of them writes it again, perhaps between a look at it and its removal.
/// So a sweep is told by an object of its own before it looks at refs, and a publisher looks for
/// that after it has moved its ref ([`settle`]): one of the two sees the other.
fn sweep(
    remote: Remote<'_>,
    gone: &BTreeMap<Digest, Entry>,
    stop: &AtomicBool,
) -> Result<(u64, u64), PublishError> {
    let store = remote.store;
    let started = Instant::now();
    let marker = key(SWEEP)?;
    store.put(&marker, Body::Bytes(b"{}"), &Digest::of(b"{}"))?;
    let swept = || -> Result<(u64, u64), PublishError> {
        let mut needed = BTreeSet::new();
        remote.each_ref(&mut |found| {
            needed.extend(named_by(&found.manifest?)?);
            Ok(())
        })?;
        let now = store.entries(BLOBS, MAX_BLOBS)?;
        let still = |entry: &&Entry| {
            digest_of_key(entry.key.as_str())
                .filter(|digest| !needed.contains(digest))
                .and_then(|digest| gone.get(&digest))
                .is_some_and(|seen| seen.etag == entry.etag && seen.modified == entry.modified)
        };
        let gone: Vec<&Entry> = now.iter().filter(still).collect();
        for_each(&gone, AT_ONCE, |entry| -> Result<(), PublishError> {
            if stop.load(Ordering::Relaxed) {
                return Err(PublishError::Stopped);
            }
            if started.elapsed() > SWEEP_TIME {
                return Err(PublishError::busy(
                    "Removing garbage takes too long to go on safely",
                    "Run it again: it goes on where it stopped.",
                ));
            }
            Ok(store.delete(&entry.key)?)
        })?;
        let bytes = gone.iter().map(|entry| entry.size).sum();
        Ok((gone.len() as u64, bytes))
    };
    let swept = swept();
    let told = store.delete(&marker);
    let swept = swept?;
    told?;
    Ok(swept)
}

/// Waits for a sweep at work, after the ref was moved; then says which of `risky` are not there,
/// blobs that were named as garbage and sent again.
pub(super) fn settle(
    store: &dyn Store,
    reference: &RefName,
    risky: &[Descriptor],
    stop: &AtomicBool,
) -> Result<Vec<Descriptor>, PublishError> {
    let moved = store.entries(&reference.key(), 100)?;
    let moved = moved.first().map_or(i64::MAX, |entry| entry.modified);
    let started = Instant::now();
    // Both times are by the store's clock. What is older was killed.
    let at_work = || -> Result<bool, PublishError> {
        let marker = store.entries(SWEEP, 100)?;
        let alive = |entry: &Entry| {
            moved.saturating_sub(entry.modified) <= seconds(2 * SWEEP_TIME)
                && started.elapsed() < 2 * SWEEP_TIME
        };
        Ok(marker.iter().any(alive))
    };
    while at_work()? {
        if stop.load(Ordering::Relaxed) {
            return Err(PublishError::Stopped);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let there: BTreeMap<Digest, u64> = store
        .entries(BLOBS, MAX_BLOBS)?
        .into_iter()
        .filter_map(|entry| Some((digest_of_key(entry.key.as_str())?, entry.size)))
        .collect();
    let lost = |blob: &&Descriptor| there.get(&blob.digest) != Some(&blob.size);
    Ok(risky.iter().filter(lost).copied().collect())
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// What a release needs, by its manifest alone: those of other versions of the format stay too.
fn named_by((digest, manifest): &(Digest, Vec<u8>)) -> Result<Vec<Digest>, PublishError> {
    Ok(blobs_of_manifest(*digest, manifest)?)
}

/// Writes what this pass named, and removes records of which no blob waits any more.
fn write(
    store: &dyn Store,
    records: &[Old],
    record: &Record,
    waiting: &BTreeSet<Digest>,
) -> Result<(), PublishError> {
    if !record.blobs.is_empty() || !record.lost.is_empty() {
        let bytes = serde_json::to_vec(record).unwrap_or_default();
        let name = |time: i64| format!("{RECORDS}{time}.json");
        let mut time = record.time;
        while records
            .iter()
            .any(|old| old.entry.key.as_str() == name(time))
        {
            time += 1;
        }
        store.put(&key(&name(time))?, Body::Bytes(&bytes), &Digest::of(&bytes))?;
    }
    for old in records {
        let hex = old.record.blobs.iter();
        let mut digests = hex.filter_map(|hex| Digest::from_hex(hex).ok());
        if !digests.any(|digest| waiting.contains(&digest)) {
            store.delete(&old.entry.key)?;
        }
    }
    Ok(())
}

/// Releases that no ref names, with what they need: blobs that nothing needs and that are
/// manifests.
fn lost_releases(
    remote: Remote<'_>,
    blobs: &BTreeMap<Digest, Entry>,
    needed: &BTreeSet<Digest>,
) -> Result<Vec<(Digest, Vec<Digest>)>, PublishError> {
    const HEAD: &[u8] = b"{\"artifactType\":\"application/vnd.casepack.dataset.v1\"";
    let store = remote.store;
    let candidates = blobs.iter().filter(|(digest, entry)| {
        let size = entry.size;
        !needed.contains(digest) && size <= limits::MANIFEST_BYTES && size > HEAD.len() as u64
    });
    let mut found = Vec::new();
    for (digest, entry) in candidates {
        let head = match store.get_range(&entry.key, 0, HEAD.len()) {
            Err(error) if error.is_not_found() => continue,
            head => head?,
        };
        if *head != *HEAD {
            continue;
        }
        let manifest = match store.get(&entry.key, limits::MANIFEST_BYTES) {
            Err(error) if error.is_not_found() => continue,
            manifest => manifest?.bytes,
        };
        // Otherwise it lost its blobs in an earlier pass, or never was whole.
        if let Ok(named) = named_by(&(*digest, manifest))
            && named.iter().all(|blob| blobs.contains_key(blob))
        {
            found.push((*digest, named));
        }
    }
    Ok(found)
}

/// The blobs that a pass has named: a publisher writes them again rather than rest on them.
pub(super) fn named_as_garbage(store: &dyn Store) -> Result<BTreeSet<Digest>, PublishError> {
    let records = records(store)?;
    let blobs = records.iter().flat_map(|old| &old.record.blobs);
    Ok(blobs.filter_map(|hex| Digest::from_hex(hex).ok()).collect())
}

/// A record of an earlier pass.
struct Old {
    entry: Entry,
    record: Record,
}

impl Old {
    /// Whether it names the blob, as it is now; both times are by the store's clock.
    fn names(&self, hex: &String, blob: &Entry) -> bool {
        self.record.blobs.binary_search(hex).is_ok() && blob.modified <= self.entry.modified
    }
}

fn records(store: &dyn Store) -> Result<Vec<Old>, PublishError> {
    let mut records = Vec::new();
    for entry in store.entries(RECORDS, 100_000)? {
        let bytes = match store.get(&entry.key, MAX_RECORD) {
            Err(error) if error.is_not_found() => continue,
            object => object?.bytes,
        };
        if let Ok(mut record) = serde_json::from_slice::<Record>(&bytes)
            && record.schema == SCHEMA
        {
            record.blobs.sort_unstable();
            records.push(Old { entry, record });
        }
    }
    Ok(records)
}
