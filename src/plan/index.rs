//! Digests of large input files by what the files look like, so that a build that has to do
//! something does not read again what did not change.
//!
//! `OUT/.casepack/inputs.index`: the schema and the SHA-256 of the rest, then a line of JSON for each
//! file. One that is damaged or of another version is not trusted: the files are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use super::fingerprint::GRANULARITY;
use crate::digest::Digest;
use crate::fs::Stamp;
use crate::tree::KnownDigests;

/// Another one is not trusted.
const SCHEMA: &str = "casepack.inputs.v1";

/// Device, inode, size, modification and change time. A path is not part of it: a file that was
/// renamed has another change time.
type Key = (u64, u64, u64, i128, i128);

/// What is known of files, and what of it was asked for.
#[derive(Debug, Default)]
pub(super) struct Index {
    earlier: BTreeMap<Key, Digest>,
    used: Mutex<BTreeMap<Key, Digest>>,
    /// The file system's time before anything was read: what changed shortly before could change
    /// again without another time (the racy rule of git's index).
    now_ns: i128,
}

impl Index {
    /// The index with this text; `None` when it can't be trusted.
    pub(super) fn parse(text: &[u8], now_ns: i128) -> Option<Self> {
        Some(Self {
            earlier: parse(text)?,
            ..Self::new(now_ns)
        })
    }

    /// Nothing is known.
    pub(super) fn new(now_ns: i128) -> Self {
        Self {
            now_ns,
            ..Self::default()
        }
    }

    /// The text for the next build. With `all`, what nothing asked for is left out: every case was
    /// read. Else only what is known to be gone: earlier states of a file.
    pub(super) fn text(self, all: bool) -> Vec<u8> {
        let used = self
            .used
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut files = if all { BTreeMap::new() } else { self.earlier };
        let now: BTreeSet<(u64, u64)> = used.keys().map(|key| (key.0, key.1)).collect();
        files.retain(|key, _| !now.contains(&(key.0, key.1)));
        files.extend(used);
        let mut body = String::new();
        for ((dev, ino, size, mtime, ctime), digest) in &files {
            let hex = digest.hex();
            // Proof: a String takes all.
            writeln!(body, "[{dev},{ino},{size},{mtime},{ctime},\"{hex}\"]").unwrap_or_default();
        }
        format!("{SCHEMA} {}\n{body}", Digest::of(body.as_bytes()).hex()).into_bytes()
    }
}

fn parse(bytes: &[u8]) -> Option<BTreeMap<Key, Digest>> {
    let text = str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once('\n')?;
    let digest = head.strip_prefix(SCHEMA)?.strip_prefix(' ')?;
    if Digest::of(body.as_bytes()).hex() != digest {
        return None;
    }
    let line = |line: &str| {
        let (dev, ino, size, mtime, ctime, hex): (u64, u64, u64, i128, i128, String) =
            serde_json::from_str(line).ok()?;
        Some(((dev, ino, size, mtime, ctime), Digest::from_hex(&hex).ok()?))
    };
    body.lines().map(line).collect()
}

fn key(stamp: &Stamp) -> Key {
    (
        stamp.dev,
        stamp.ino,
        stamp.size,
        stamp.mtime_ns,
        stamp.ctime_ns,
    )
}

impl KnownDigests for Index {
    fn get(&self, stamp: &Stamp) -> Option<Digest> {
        let digest = *self.earlier.get(&key(stamp))?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(key(stamp), digest);
        Some(digest)
    }

    fn put(&self, stamp: &Stamp, digest: Digest) {
        let granularity = i128::try_from(GRANULARITY.as_nanos()).unwrap_or(i128::MAX);
        if stamp.ctime_ns.saturating_add(granularity) < self.now_ns {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.insert(key(stamp), digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ino: u64, ctime_ns: i128) -> Stamp {
        Stamp {
            dev: 1,
            ino,
            size: 70_000,
            mtime_ns: 5,
            ctime_ns,
            executable: false,
        }
    }

    #[test]
    fn knows_files_that_did_not_change_and_forgets_what_is_gone() {
        const NOW: i128 = 1_000_000_000;
        let (old, other) = (stamp(1, 10), stamp(2, 20));
        let fresh = stamp(3, NOW - 1_000);
        let index = Index::new(NOW);
        for file in [&old, &other, &fresh] {
            assert_eq!(index.get(file), None);
            index.put(file, Digest::of(b"x"));
        }
        let text = index.text(true);
        let index = Index::parse(&text, NOW).unwrap();
        assert_eq!(index.get(&old), Some(Digest::of(b"x")));
        // It changed a moment before it was read.
        assert_eq!(index.get(&fresh), None);
        assert_eq!(index.get(&stamp(1, 11)), None);
        // A build of some cases keeps what it did not ask for, one of all does not.
        let some = Index::parse(&text, NOW).unwrap();
        assert!(some.get(&old).is_some());
        assert_eq!(
            Index::parse(&some.text(false), NOW).unwrap().earlier.len(),
            2
        );
        // Of a file that was written anew, no earlier state is kept.
        let some = Index::parse(&text, NOW).unwrap();
        some.put(&stamp(1, 30), Digest::of(b"y"));
        assert_eq!(
            Index::parse(&some.text(false), NOW).unwrap().earlier.len(),
            2
        );
        let all = Index::parse(&text, NOW).unwrap();
        assert!(all.get(&old).is_some());
        assert_eq!(Index::parse(&all.text(true), NOW).unwrap().earlier.len(), 1);

        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            assert!(Index::parse(&damaged, NOW).is_none(), "byte {at}");
        }
    }
}
