//! Plain objects come from a bucket, by the rules of `EvalHub`'s own downloader (evalhub.md 2), but
//! many at once, and compared with casepack's record where there is one.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plain::{Record, record_of};
use super::{PublishError, failed};
use crate::bundle::{Bad, INDEX_JSON, OCI_LAYOUT};
use crate::digest::{Digest, Hasher};
use crate::fs::Root;
use crate::path::TreePath;
use crate::store::{AT_ONCE, Entry, Listed, Store, for_each};

/// What keys of releases look like.
const RELEASES: &str = "Releases are named by their digests, never by a tag: the key is \
                        `PREFIX@sha256:…/`, as `casepack emit evalhub` writes it.";
/// Bytes of an object that are read at once.
const PIECE: u64 = 4 << 20;

/// What was fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether every file was compared with what its publisher recorded.
    pub verified: bool,
}

/// Fetches every object whose key starts with `key`, a text, into `dest`, which must be there.
/// `store` is the whole bucket.
///
/// # Errors
/// When there is no object, one has no place in `dest`, or is not what was recorded of it.
pub fn fetch(
    store: &dyn Store,
    key: &str,
    dest: &Path,
    stop: &AtomicBool,
) -> Result<Fetched, PublishError> {
    let key = key.trim();
    let prefix = key.strip_prefix('/').unwrap_or(key);
    if prefix.is_empty() {
        return Err(PublishError::refused(
            "The key is empty",
            "Name a prefix of the bucket, with its last slash.",
        ));
    }
    let objects = objects(store, prefix)?;
    if objects.is_empty() {
        let place = prefix.trim_end_matches('/');
        let tag = place.rsplit('/').next().is_some_and(|it| it.contains('@'));
        let help = if tag {
            RELEASES
        } else {
            "Correct the key; `casepack publish` prints it."
        };
        return Err(PublishError::refused(
            format!("There are no objects below {}", store.show(prefix)),
            help,
        ));
    }
    let is_there = |name: &&str| TreePath::new(name).is_ok_and(|it| objects.contains_key(&it));
    if [OCI_LAYOUT, INDEX_JSON].iter().all(is_there) {
        return Err(PublishError::refused(
            format!(
                "{} is a store of releases, and no test data",
                store.show(prefix)
            ),
            RELEASES,
        ));
    }
    let record = record_of(store, prefix)?;
    if let Some(record) = &record
        && let Some(lost) = record.paths().find(|path| !objects.contains_key(*path))
    {
        return Err(Bad::new(
            store.show(prefix),
            format!("lacks '{lost}', which was published"),
        )
        .into());
    }
    let root = Root::open(dest).map_err(|error| failed("can not open", dest)(error.source))?;
    for_each(&objects, AT_ONCE, |(path, entry)| {
        if stop.load(Ordering::Relaxed) {
            return Err(PublishError::Stopped);
        }
        write(store, &root, path, entry, record.as_ref())
    })?;
    Ok(Fetched {
        files: objects.len() as u64,
        bytes: objects
            .values()
            .fold(0, |sum, entry| sum.saturating_add(entry.size)),
        verified: record.is_some_and(|record| {
            objects
                .keys()
                .all(|path| record.expected(path.as_str()).is_some())
        }),
    })
}

/// What is to be fetched, by its place.
fn objects(store: &dyn Store, prefix: &str) -> Result<BTreeMap<TreePath, Entry>, PublishError> {
    let mut objects = BTreeMap::new();
    let mut bad = None;
    store.list(prefix, &mut |listed| {
        let (key, entry) = match listed {
            Listed::Entry(entry) => (entry.key.as_str().to_owned(), Ok(entry)),
            // What consoles make for directories.
            Listed::Unusable { key, .. } if key.ends_with('/') => return ControlFlow::Continue(()),
            Listed::EmptyDir(_) => return ControlFlow::Continue(()),
            Listed::Unusable { key, why } => (key, Err(why)),
        };
        let rest = key.strip_prefix(prefix).unwrap_or(&key);
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let name = if rest.is_empty() {
            key.rsplit('/').next().unwrap_or_default()
        } else {
            rest
        };
        let path = || TreePath::new(name).map_err(|why| why.to_string());
        let placed = entry.and_then(|entry| Ok((path()?, entry)));
        let why = match placed {
            Err(why) => why,
            Ok((path, entry)) => match objects.insert(path, entry) {
                None => return ControlFlow::Continue(()),
                Some(_) => "needs the place of another object".to_owned(),
            },
        };
        bad = Some(Bad::new(store.show(&key), why));
        ControlFlow::Break(())
    })?;
    match bad {
        Some(bad) => Err(bad.into()),
        None => Ok(objects),
    }
}

fn write(
    store: &dyn Store,
    root: &Root,
    path: &TreePath,
    entry: &Entry,
    record: Option<&Record>,
) -> Result<(), PublishError> {
    let expected = record.and_then(|record| record.expected(path.as_str()));
    let mode = match expected {
        Some((_, true)) => 0o755,
        _ => 0o644,
    };
    let io = |error: crate::fs::FsError| failed("can not write", &error.path)(error.source);
    let staged = root.stage(path, mode).map_err(io)?;
    let mut hasher = Hasher::new();
    let mut at = 0;
    while at < entry.size {
        let size = usize::try_from((entry.size - at).min(PIECE)).unwrap_or(0);
        let bytes = store.get_range(&entry.key, at, size)?;
        hasher.update(&bytes);
        let mut file = staged.file();
        file.write_all(&bytes)
            .map_err(failed("can not write", &root.absolute(Some(path))))?;
        at += size as u64;
    }
    let found: Digest = hasher.finish();
    if expected.is_some_and(|(wanted, _)| wanted != found.hex()) {
        let why = format!("has the digest {found}, which is not what was published");
        return Err(Bad::new(store.show(entry.key.as_str()), why).into());
    }
    staged.commit().map_err(io)
}
