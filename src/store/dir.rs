//! A store in a directory: every object is a file.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rustix::fs::{FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::{
    Action, Body, Conditions, Counters, Entry, Etag, Expected, Listed, Object, Reason, Room, Store,
    StoreError, Swap, Traffic, verify,
};
use crate::digest::{Digest, Hasher};
use crate::fs::{
    Found, FsError, Kind, ReadError, Root, STAGING, StagedFile, Stamp, Walk, write_all,
};
use crate::path::TreePath;

/// The largest object that is compared with what a conditional write would put in its place.
const MAX_COMPARED: u64 = 64 * 1024 * 1024;
/// How often something is tried that others are in the way of.
const MAX_TRIES: u32 = 1000;
/// Whoever writes on a condition holds it. It is no object, since its name starts like [`STAGING`].
const LOCK: &str = ".casepack-lock";
const NS: i128 = 1_000_000_000;

/// Objects in a directory. No link below it is followed.
#[derive(Debug)]
pub struct Directory {
    root: Root,
    /// Directories in which what killed processes left was looked for.
    swept: Mutex<BTreeSet<Option<TreePath>>>,
    counters: Counters,
}

impl Directory {
    /// The store at `path`, a directory.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let root = Root::open(path).map_err(|error| {
            let reason = match error.source.kind() {
                io::ErrorKind::NotFound => Reason::NoDirectory,
                _ => Reason::Io(error.source),
            };
            StoreError::new(Action::Open, path.display().to_string(), reason)
        })?;
        Ok(Self {
            root,
            swept: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// The store at `path`, made when nothing is there.
    ///
    /// # Errors
    /// When it can't be made or opened.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(path).map_err(|error| {
            StoreError::new(Action::Open, path.display().to_string(), error.into())
        })?;
        Self::open(path)
    }

    fn error(&self, action: Action, key: &TreePath, reason: impl Into<Reason>) -> StoreError {
        StoreError::new(action, self.show(key.as_str()), reason.into())
    }

    /// Whether `key` could be one of casepack's unfinished files.
    fn check(&self, action: Action, key: &TreePath) -> Result<(), StoreError> {
        if key.components().any(|name| name.starts_with(STAGING)) {
            return Err(self.error(action, key, Reason::ReservedKey));
        }
        Ok(())
    }

    /// A new file that will be at `key`.
    fn stage(&self, key: &TreePath) -> Result<StagedFile, FsError> {
        let mut left = MAX_TRIES;
        let staged = loop {
            left -= 1;
            match self.root.stage(key, 0o644) {
                // Somebody deleted the last object of its directory meanwhile.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound && left > 0 => {}
                staged => break staged?,
            }
        };
        let dir = key.parent();
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if !swept.contains(&dir) {
            // What can't be removed is in nobody's way.
            self.root.sweep_stale(dir.as_ref()).ok();
            swept.insert(dir);
        }
        Ok(staged)
    }

    /// Puts `staged` at `key`, later than what is there, so that no two states of an object have
    /// one etag.
    fn commit(&self, key: &TreePath, staged: StagedFile) -> Result<Etag, Reason> {
        let (_, mut stamp) = Stamp::of_open(staged.file())?;
        if let Some((_, before)) = self.root.stat(key)?
            && before.mtime_ns >= stamp.mtime_ns
        {
            let mtime = before.mtime_ns + 1;
            let nanos = mtime.rem_euclid(NS);
            let times = Timestamps {
                last_access: Timespec {
                    tv_sec: 0,
                    tv_nsec: UTIME_OMIT,
                },
                last_modification: Timespec {
                    tv_sec: ((mtime - nanos) / NS)
                        .try_into()
                        .map_err(|_| Errno::RANGE)?,
                    tv_nsec: nanos.try_into().map_err(|_| Errno::RANGE)?,
                },
            };
            rustix::fs::futimens(staged.file(), &times)?;
            stamp = Stamp::of_open(staged.file())?.1;
        }
        staged.commit()?;
        Ok(etag(&stamp))
    }

    /// Keeps everybody else from writing on a condition, until dropped.
    fn lock(&self) -> Result<OwnedFd, Reason> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let lock = rustix::fs::openat(self.root.handle(), LOCK, flags, mode)?;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Reason::NoLock(errno.into())),
            }
        }
    }

    /// What lies below `dir` and has a key that starts with `prefix`.
    fn below(&self, dir: Option<&TreePath>, prefix: &str) -> Result<Vec<Listed>, FsError> {
        let mut listed = Vec::new();
        if let Some(dir) = dir
            && !matches!(self.root.stat(dir)?, Some((Kind::Dir, _)))
        {
            return Ok(listed);
        }
        self.root.walk(dir, &mut |found| {
            match found {
                Found::Thing(thing) if thing.path.name().starts_with(STAGING) => {}
                Found::Thing(thing) if thing.kind == Kind::Dir => {
                    let path = thing.path.as_str();
                    if path.starts_with(prefix) || prefix.starts_with(path) {
                        return Walk::Enter;
                    }
                }
                Found::Thing(thing) if thing.path.as_str().starts_with(prefix) => {
                    match thing.stat() {
                        Ok((Kind::File, stamp)) => {
                            let seconds = stamp.mtime_ns.div_euclid(NS);
                            listed.push(Listed::Entry(Entry {
                                key: thing.path,
                                size: stamp.size,
                                etag: Some(etag(&stamp)),
                                modified: i64::try_from(seconds).unwrap_or(i64::MAX),
                            }));
                        }
                        Ok(_) => listed.push(Listed::Unusable {
                            key: thing.path.as_str().to_owned(),
                            why: "it is a link, or else no file".to_owned(),
                        }),
                        // Gone since its directory was read: then it is not in the list.
                        Err(_) => {}
                    }
                }
                Found::Unusable {
                    shown,
                    kind: Kind::File,
                    why: Some(why),
                } if shown.starts_with(prefix) => {
                    let why = why.to_string();
                    listed.push(Listed::Unusable { key: shown, why });
                }
                Found::EmptyDir(path) if path.as_str().starts_with(prefix) => {
                    listed.push(Listed::EmptyDir(path));
                }
                Found::Thing(_) | Found::EmptyDir(_) | Found::Unusable { .. } => {}
            }
            Walk::Skip
        })?;
        Ok(listed)
    }

    fn read(&self, key: &TreePath, limit: u64) -> Result<Object, ReadError> {
        let mut left = MAX_TRIES;
        loop {
            left -= 1;
            match self.root.read(key, limit) {
                Ok((bytes, stamp)) => {
                    let etag = etag(&stamp);
                    return Ok(Object { bytes, etag });
                }
                // It was replaced, which changes the old file too: the new one is whole.
                Err(ReadError::Changed) if left > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&self, key: &TreePath, body: Body<'_>, digest: &Digest) -> Result<Etag, Reason> {
        let staged = self.stage(key)?;
        let mut hasher = Hasher::new();
        body.pieces(128 * 1024, |piece| {
            hasher.update(piece);
            write_all(staged.file(), piece).map_err(Reason::from)
        })?;
        verify(hasher, digest)?;
        self.commit(key, staged)
    }

    fn swap(&self, key: &TreePath, bytes: &[u8], expected: Expected<'_>) -> Result<Swap, Reason> {
        let _lock = self.lock()?;
        let now = match self.read(key, MAX_COMPARED) {
            Ok(now) => Some(now),
            Err(ReadError::Missing) => None,
            Err(error) => return Err(error.into()),
        };
        let as_expected = match expected {
            Expected::Absent => now.is_none(),
            Expected::At(etag) => now.as_ref().is_some_and(|now| now.etag == *etag),
        };
        match now {
            _ if as_expected => {
                let staged = self.stage(key)?;
                write_all(staged.file(), bytes)?;
                Ok(Swap::Done(self.commit(key, staged)?))
            }
            Some(now) if now.bytes == bytes => Ok(Swap::Done(now.etag)),
            now => Ok(Swap::Lost { now }),
        }
    }
}

/// Size, time and inode: what a listing can tell without reading.
fn etag(stamp: &Stamp) -> Etag {
    Etag(format!(
        "{:x}-{:x}-{:x}",
        stamp.size, stamp.mtime_ns, stamp.ino
    ))
}

impl Store for Directory {
    fn show(&self, key: &str) -> String {
        self.root.named().join(key).display().to_string()
    }

    fn get(&self, key: &TreePath, limit: u64) -> Result<Object, StoreError> {
        self.counters.request();
        let object = self
            .read(key, limit)
            .map_err(|error| self.error(Action::Read, key, error))?;
        self.counters.read(object.bytes.len());
        Ok(object)
    }

    fn get_range(&self, key: &TreePath, start: u64, size: usize) -> Result<Bytes, StoreError> {
        self.counters.request();
        let read = || {
            let (file, stamp) = self.root.open_file(key)?;
            let end = start.checked_add(size as u64);
            if end.is_none_or(|end| end > stamp.size) {
                return Err(Reason::Short { start, size });
            }
            let mut bytes = Room::new(size)?;
            match file.read_exact_at(&mut bytes, start) {
                Ok(()) => Ok(bytes.freeze()),
                // It was cut since.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Err(Reason::Short { start, size })
                }
                Err(error) => Err(error.into()),
            }
        };
        let bytes = read().map_err(|reason| self.error(Action::Read, key, reason))?;
        self.counters.read(size);
        Ok(bytes)
    }

    fn put(&self, key: &TreePath, body: Body<'_>, digest: &Digest) -> Result<Etag, StoreError> {
        self.check(Action::Write, key)?;
        self.counters.request();
        let etag = self
            .write(key, body, digest)
            .map_err(|reason| self.error(Action::Write, key, reason))?;
        self.counters.wrote(body.size());
        Ok(etag)
    }

    fn put_if(
        &self,
        key: &TreePath,
        bytes: &[u8],
        expected: Expected<'_>,
    ) -> Result<Swap, StoreError> {
        self.check(Action::Write, key)?;
        self.counters.request();
        let swap = self
            .swap(key, bytes, expected)
            .map_err(|reason| self.error(Action::Write, key, reason))?;
        if let Swap::Done(_) = swap {
            self.counters.wrote(bytes.len() as u64);
        }
        Ok(swap)
    }

    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Listed) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.counters.request();
        let failed =
            |error: FsError| StoreError::new(Action::List, self.show(prefix), error.into());
        let dir = match prefix.rsplit_once('/') {
            None => None,
            // No object can have a key that starts with what is no path.
            Some((dir, _)) => match TreePath::new(dir) {
                Ok(dir) => Some(dir),
                Err(_) => return Ok(()),
            },
        };
        let mut left = MAX_TRIES;
        let found = loop {
            left -= 1;
            match self.below(dir.as_ref(), prefix) {
                // A directory went away with its last object.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound && left > 0 => {}
                found => break found.map_err(failed)?,
            }
        };
        for listed in found {
            if each(listed).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn delete(&self, key: &TreePath) -> Result<(), StoreError> {
        self.check(Action::Delete, key)?;
        self.counters.request();
        self.root
            .remove_file(key)
            .map_err(|error| self.error(Action::Delete, key, error))?;
        // Whoever reads the directory may take what is empty for something (a case, say).
        let mut dir = key.parent();
        while let Some(empty) = dir
            && self.root.remove_empty_dir(&empty).unwrap_or(false)
        {
            dir = empty.parent();
        }
        Ok(())
    }

    fn probe_conditions(&self, _: &TreePath, _: &[u8]) -> Result<Conditions, StoreError> {
        Ok(Conditions::Honoured)
    }

    fn traffic(&self) -> Traffic {
        self.counters.traffic()
    }
}
