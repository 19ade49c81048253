//! Files that many trees have, on the disk once: hard links of read-only files (`--link`).
//!
//! A directory beside the trees, the pool, has each of them under its digest. Nothing is linked
//! whose content was not looked at in this run, or in an earlier one after which nobody touched it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use rustix::fs::{AtFlags, Mode as Permissions};
use rustix::io::Errno;

use super::{Content, Mode};
use crate::digest::{Digest, hash_reader};
use crate::fs::{Root, Stamp};
use crate::path::TreePath;

/// What the files of the pool looked like when a run ended, by name.
pub type Seen = BTreeMap<String, String>;

/// The pool.
#[derive(Debug)]
pub struct Links {
    root: Root,
    /// Contents that may be linked.
    wanted: BTreeSet<Digest>,
    /// Device and inode of the pool's files that are what their names say.
    trusted: RwLock<BTreeSet<(u64, u64)>>,
}

impl Links {
    /// Opens the pool in the directory `dir`, of which `seen` was known. Files that look otherwise
    /// now are read; those that are not what their names say are not used, and with `mend` removed.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn open(dir: &Path, seen: &Seen, mend: bool) -> io::Result<Self> {
        let root = Root::open(dir).map_err(|error| error.source)?;
        let mut trusted = BTreeSet::new();
        for entry in root.list(None).map_err(|error| error.source)? {
            let Some(path) = entry.name.ok().and_then(|name| TreePath::new(&name).ok()) else {
                continue;
            };
            let Ok(Some((_, stamp))) = root.stat(&path) else {
                continue;
            };
            let known = seen.get(path.as_str()) == Some(&shown(&stamp));
            if known || is_what_it_says(&root, &path) {
                trusted.insert((stamp.dev, stamp.ino));
            } else if mend {
                rustix::fs::unlinkat(root.handle(), path.as_str(), AtFlags::empty()).ok();
            }
        }
        Ok(Self {
            root,
            wanted: BTreeSet::new(),
            trusted: RwLock::new(trusted),
        })
    }

    /// Lets `contents` be linked from now on.
    pub fn want(&mut self, contents: impl IntoIterator<Item = Digest>) {
        self.wanted.extend(contents);
    }

    /// Whether that file is one of the pool, and so is known by its inode alone: its change time
    /// moves with every link.
    pub fn has(&self, stamp: &Stamp) -> bool {
        let trusted = self.trusted.read().unwrap_or_else(PoisonError::into_inner);
        trusted.contains(&(stamp.dev, stamp.ino))
    }

    /// Makes `name` in `at` a link to the pool's file of that content; whether there was one.
    pub(super) fn link(
        &self,
        content: &Content,
        mode: Mode,
        at: BorrowedFd<'_>,
        name: &str,
    ) -> Result<bool, Errno> {
        let pooled = pooled(content, mode);
        let from = self.root.handle();
        match rustix::fs::linkat(from, &pooled, at, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // A file system takes only so many links to one file: the next one starts anew.
            Err(Errno::MLINK) => {
                rustix::fs::unlinkat(from, &pooled, AtFlags::empty()).ok();
                Ok(false)
            }
            // Where files can't be linked they are copied.
            Err(Errno::NOENT | Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Whether `content` is one that is linked.
    pub(super) fn wants(&self, content: &Content) -> bool {
        self.wanted.contains(&content.digest)
    }

    /// Takes the file `name` in `at`, just written with that content, into the pool.
    pub(super) fn take(
        &self,
        content: &Content,
        mode: Mode,
        at: BorrowedFd<'_>,
        name: &str,
    ) -> Result<(), Errno> {
        let read_only = match mode {
            Mode::Regular => 0o444,
            Mode::Executable => 0o555,
        };
        rustix::fs::chmodat(
            at,
            name,
            Permissions::from_raw_mode(read_only),
            AtFlags::empty(),
        )?;
        let to = self.root.handle().as_fd();
        let pooled = pooled(content, mode);
        match rustix::fs::linkat(at, name, to, &pooled, AtFlags::empty()) {
            Ok(()) => {
                let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let mut trusted = self.trusted.write().unwrap_or_else(PoisonError::into_inner);
                trusted.insert((stat.st_dev, stat.st_ino));
                Ok(())
            }
            // Another thread was quicker: its file is taken.
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(at, name, AtFlags::empty())?;
                rustix::fs::linkat(to, &pooled, at, name, AtFlags::empty())
            }
            // Some file systems have no links: no harm done.
            Err(_) => Ok(()),
        }
    }

    /// Removes what nothing is linked to any more; what the rest looks like.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn finish(&self) -> io::Result<Seen> {
        let mut seen = Seen::new();
        for entry in self.root.list(None).map_err(|error| error.source)? {
            let Ok(name) = entry.name else { continue };
            let stat = rustix::fs::statat(self.root.handle(), &name, AtFlags::SYMLINK_NOFOLLOW)?;
            if stat.st_nlink < 2 {
                rustix::fs::unlinkat(self.root.handle(), &name, AtFlags::empty())?;
            } else if let Ok(path) = TreePath::new(&name)
                && let Ok(Some((_, stamp))) = self.root.stat(&path)
                && self.has(&stamp)
            {
                seen.insert(name, shown(&stamp));
            }
        }
        Ok(seen)
    }
}

/// Its name in the pool.
fn pooled(content: &Content, mode: Mode) -> String {
    let hex = content.digest.hex();
    match mode {
        Mode::Regular => hex,
        Mode::Executable => format!("{hex}.x"),
    }
}

fn is_what_it_says(root: &Root, path: &TreePath) -> bool {
    let name = path.as_str();
    let (hex, executable) = name
        .strip_suffix(".x")
        .map_or((name, false), |hex| (hex, true));
    let Ok((mut file, stamp)) = root.open_file(path) else {
        return false;
    };
    let writable = rustix::fs::fstat(&file).map_or(true, |stat| stat.st_mode & 0o222 != 0);
    let Ok((digest, _)) = hash_reader(&mut file) else {
        return false;
    };
    !writable && stamp.executable == executable && digest.hex() == hex
}

fn shown(stamp: &Stamp) -> String {
    let Stamp {
        dev,
        ino,
        size,
        mtime_ns,
        ctime_ns,
        executable,
    } = stamp;
    format!("{dev} {ino} {size} {mtime_ns} {ctime_ns} {executable}")
}
