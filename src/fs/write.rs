//! How outputs come into being: whole or not at all; and how they go.
//!
//! Everything unfinished has a name that starts with [`STAGING`] and a lock that lives as long as
//! its process, so that what a killed process left can be told from what a living one works on.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::walk::each_name;
use super::{FsError, Kind, ReadError, Root, Stamp, open};
use crate::path::TreePath;

/// How names of unfinished things start; the process and a number follow.
pub(crate) const STAGING: &str = ".casepack-";
/// The number of the next one that this process makes.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Puts a file with `bytes` and the permissions `mode` in the place of whatever file or link is
/// at `path`, at once. Its directory must exist.
///
/// # Errors
/// When it can't be written; what was at `path` is still there then.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FsError> {
    let failed = |source: io::Error| FsError {
        path: path.to_owned(),
        source,
    };
    let (parent, name) = open_parent(path).map_err(failed)?;
    let staged = StagedFile::new(parent, name, path.to_owned(), mode)?;
    write_all(&staged.file, bytes).map_err(|errno| failed(errno.into()))?;
    staged.commit()
}

/// Puts the file at `from` in the place of whatever file or link is at `to`, on the same file system.
///
/// # Errors
/// When it can't be moved; what was at `to` is still there then.
pub fn replace(from: &Path, to: &Path) -> Result<(), FsError> {
    std::fs::rename(from, to).map_err(|error| not_over_a_directory(to, error))
}

/// Why nothing took the place `path`: a directory there is somebody else's, whatever is in it.
fn not_over_a_directory(path: &Path, error: io::Error) -> FsError {
    let source = match error.kind() {
        kind @ io::ErrorKind::IsADirectory => io::Error::new(
            kind,
            "a directory is in its place: move it away, or remove it",
        ),
        _ => error,
    };
    FsError {
        path: path.to_owned(),
        source,
    }
}

/// A new file that is filled out of sight and then takes its place at once.
#[derive(Debug)]
pub struct StagedFile {
    parent: OwnedFd,
    temp: CString,
    name: CString,
    file: File,
    path: PathBuf,
    done: bool,
}

impl StagedFile {
    /// An empty file in `parent` that will be `name` there, with the permissions `mode` whatever
    /// the umask; gone when dropped.
    fn new(parent: OwnedFd, name: CString, path: PathBuf, mode: u32) -> Result<Self, FsError> {
        let mode = Mode::from_raw_mode((mode & 0o777) as rustix::fs::RawMode);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = fresh(|temp| rustix::fs::openat(&parent, temp, flags, mode));
        let (temp, file) = made.map_err(|errno| FsError {
            path: path.clone(),
            source: errno.into(),
        })?;
        let staged = Self {
            parent,
            temp,
            name,
            file: file.into(),
            path,
            done: false,
        };
        // A file system without locks has no sweeping either.
        rustix::fs::flock(&staged.file, FlockOperation::LockExclusive).ok();
        set_mode(&staged.file, mode).map_err(|errno| staged.failed(errno))?;
        Ok(staged)
    }

    /// The file, to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Puts it in the place of whatever file or link is there, at once.
    ///
    /// # Errors
    /// When it can't be moved; what was there is still there then.
    pub fn commit(mut self) -> Result<(), FsError> {
        rustix::fs::renameat(&self.parent, &self.temp, &self.parent, &self.name)
            .map_err(|errno| not_over_a_directory(&self.path, errno.into()))?;
        // The lock was for the file that nobody else had a name for; a child that another thread is
        // starting may have the handle a little longer than we.
        rustix::fs::flock(&self.file, FlockOperation::Unlock).ok();
        self.done = true;
        Ok(())
    }

    fn failed(&self, errno: Errno) -> FsError {
        FsError {
            path: self.path.clone(),
            source: errno.into(),
        }
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.done {
            // What stays is swept by a later run.
            rustix::fs::unlinkat(&self.parent, &self.temp, AtFlags::empty()).ok();
        }
    }
}

impl Root {
    /// A file that will be at `path`, with the permissions `mode`. Directories on the way are
    /// made, mode 0755; none of them may be a link.
    ///
    /// # Errors
    /// When a directory or the file can't be made.
    pub fn stage(&self, path: &TreePath, mode: u32) -> Result<StagedFile, FsError> {
        let failed = |errno: Errno| self.error(Some(path), errno);
        let name = CString::new(path.name()).map_err(|_| failed(Errno::INVAL))?;
        let parent = match path.parent() {
            None => open::again(self.handle.as_fd()),
            Some(dir) => match open::below(self.handle.as_fd(), dir.as_str(), open::DIR) {
                Err(Errno::NOENT) => self.make_dirs(&dir),
                opened => opened,
            },
        };
        StagedFile::new(
            parent.map_err(failed)?,
            name,
            self.absolute(Some(path)),
            mode,
        )
    }

    /// Removes the file or link at `path`; whether one was there.
    ///
    /// # Errors
    /// When it is a directory, or can't be removed.
    pub fn remove_file(&self, path: &TreePath) -> Result<bool, FsError> {
        match self.in_parent(path, |dir, name| {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())
        }) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(self.error(Some(path), errno)),
        }
    }

    /// Removes the directory `dir` if nothing is in it; whether it did.
    ///
    /// # Errors
    /// When it can't be removed although it is empty.
    pub fn remove_empty_dir(&self, dir: &TreePath) -> Result<bool, FsError> {
        match self.in_parent(dir, |parent, name| {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
        }) {
            Ok(()) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(self.error(Some(dir), errno)),
        }
    }

    /// [`sweep_stale`] in the directory `dir` (`None`: the root itself).
    ///
    /// # Errors
    /// When it can't be listed, or something there can't be removed.
    pub fn sweep_stale(&self, dir: Option<&TreePath>) -> Result<usize, FsError> {
        sweep(self.open_dir(dir)?.as_fd(), &self.absolute(dir))
    }

    /// Makes the directory `dir` and those above it, mode 0755, as far as they are missing; none of
    /// them may be a link.
    ///
    /// # Errors
    /// When one can't be made, or something else is in its place.
    pub fn make_dir(&self, dir: &TreePath) -> Result<(), FsError> {
        self.make_dirs(dir)
            .map(drop)
            .map_err(|errno| self.error(Some(dir), errno))
    }

    /// Opens the regular file at `path` to read it and to write at its end; made when nothing is
    /// there. No link is followed.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn open_to_append(&self, path: &TreePath) -> Result<File, ReadError> {
        let flags = open::FILE | OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o644);
        let file = self.in_parent(path, |dir, name| rustix::fs::openat(dir, name, flags, mode))?;
        match Stamp::of_open(&file)? {
            (Kind::File, _) => Ok(file.into()),
            _ => Err(ReadError::NotAFile),
        }
    }

    /// Removes what is at `path`, at once for whoever looks there: whoever is killed leaves all of it
    /// or nothing. `temp` is a directory below the same root, in which it goes.
    ///
    /// # Errors
    /// When it can't be moved; it is as it was then.
    pub fn remove_at_once(&self, path: &TreePath, temp: &TreePath) -> Result<(), FsError> {
        let grave = StagedDir::below(self, temp)?;
        self.in_parent(path, |dir, name| {
            rustix::fs::renameat(dir, name, grave.handle(), "gone")
        })
        .map_err(|errno| self.error(Some(path), errno))
    }

    fn make_dirs(&self, dir: &TreePath) -> Result<OwnedFd, Errno> {
        let mode = Mode::from_raw_mode(0o755);
        let mut at = open::again(self.handle.as_fd())?;
        for name in dir.components() {
            let made = match rustix::fs::mkdirat(&at, name, mode) {
                Err(Errno::EXIST) => false,
                made => made.map(|()| true)?,
            };
            at = open::entry(at.as_fd(), name, open::DIR)?;
            if made {
                set_mode(&at, mode)?;
            }
        }
        Ok(at)
    }
}

/// A new directory that is filled out of sight and then takes its place at once.
#[derive(Debug)]
pub struct StagedDir {
    parent: Arc<OwnedFd>,
    name: CString,
    handle: Arc<OwnedFd>,
    path: PathBuf,
    done: bool,
}

impl StagedDir {
    /// An empty directory in the directory `parent`, mode 0755; gone when dropped.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn new(parent: &Path) -> Result<Self, FsError> {
        let holder =
            rustix::fs::open(parent, open::DIR, Mode::empty()).map_err(|errno| FsError {
                path: parent.to_owned(),
                source: errno.into(),
            })?;
        Self::locked(holder, parent)
    }

    /// The same in the directory `dir` of `root`, which is no link.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn below(root: &Root, dir: &TreePath) -> Result<Self, FsError> {
        Self::locked(root.open_dir(Some(dir))?, &root.absolute(Some(dir)))
    }

    fn locked(holder: OwnedFd, parent: &Path) -> Result<Self, FsError> {
        let staged = Self::make(Arc::new(holder), parent)?;
        // A file system without locks has no sweeping either.
        rustix::fs::flock(&staged.handle, FlockOperation::LockExclusive).ok();
        Ok(staged)
    }

    /// Another one inside this one, whose lock serves for both. It may outlive this one only when
    /// it was committed before.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn inside(&self) -> Result<Self, FsError> {
        Self::make(Arc::clone(&self.handle), &self.path)
    }

    fn make(holder: Arc<OwnedFd>, parent: &Path) -> Result<Self, FsError> {
        let failed = |errno: Errno| FsError {
            path: parent.to_owned(),
            source: errno.into(),
        };
        let mode = Mode::from_raw_mode(0o755);
        let (name, ()) = fresh(|name| rustix::fs::mkdirat(&holder, name, mode)).map_err(failed)?;
        let path = parent.join(OsStr::from_bytes(name.to_bytes()));
        let handle = open::entry(holder.as_fd(), name.as_c_str(), open::DIR).map_err(failed)?;
        let staged = Self {
            parent: holder,
            name,
            handle: Arc::new(handle),
            path,
            done: false,
        };
        set_mode(&staged.handle, mode).map_err(failed)?;
        Ok(staged)
    }

    /// Its handle, to write below.
    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Where it is for now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It as a place to look at, whatever its name becomes.
    ///
    /// # Errors
    /// When it can't be opened again.
    pub fn root(&self) -> Result<Root, FsError> {
        let handle = open::again(self.handle.as_fd()).map_err(|errno| FsError {
            path: self.path.clone(),
            source: errno.into(),
        })?;
        Ok(Root {
            handle,
            path: self.path.clone(),
            named: self.path.clone(),
        })
    }

    /// Puts it at `dest`, on the same file system. A directory that is there is exchanged for it
    /// at once and then removed; anything else that is there is an error.
    ///
    /// # Errors
    /// When it can't be moved, then `dest` is as it was; or when the directory that was there
    /// could not be removed: its rest then has a staging name.
    pub fn commit(self, dest: &Path) -> Result<(), FsError> {
        let (dir, name) = open_parent(dest).map_err(|source| FsError {
            path: dest.to_owned(),
            source,
        })?;
        self.commit_at(dir.as_fd(), &name, dest)
    }

    /// The same, to the name `name`, one component, in `root`.
    ///
    /// # Errors
    /// As [`StagedDir::commit`].
    pub fn commit_in(self, root: &Root, name: &str) -> Result<(), FsError> {
        let dest = root.path().join(name);
        let name = CString::new(name).map_err(|_| FsError {
            path: dest.clone(),
            source: Errno::INVAL.into(),
        })?;
        self.commit_at(root.handle().as_fd(), &name, &dest)
    }

    fn commit_at(mut self, dir: BorrowedFd<'_>, name: &CStr, dest: &Path) -> Result<(), FsError> {
        let failed = |errno: Errno| FsError {
            path: dest.to_owned(),
            source: errno.into(),
        };
        let moved = |flags| rustix::fs::renameat_with(&*self.parent, &self.name, dir, name, flags);
        match moved(RenameFlags::NOREPLACE) {
            Ok(()) => {
                self.done = true;
                return Ok(());
            }
            Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::PERM) => {}
            Err(errno) => return Err(failed(errno)),
        }
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if !FileType::from_raw_mode(stat.st_mode).is_dir() => {
                return Err(failed(Errno::NOTDIR));
            }
            Ok(_) => {}
            Err(Errno::NOENT) => {
                rustix::fs::renameat(&*self.parent, &self.name, dir, name).map_err(failed)?;
                self.done = true;
                return Ok(());
            }
            Err(errno) => return Err(failed(errno)),
        }
        match moved(RenameFlags::EXCHANGE) {
            // Dropping removes what now has our old name.
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::PERM) => {
                self.exchange_in_steps(dir, name).map_err(failed)?;
            }
            Err(errno) => return Err(failed(errno)),
        }
        self.done = true;
        remove(self.parent.as_fd(), &self.name).map_err(|errno| FsError {
            path: self.path.clone(),
            source: errno.into(),
        })
    }

    /// For file systems that can't exchange: for an instant nothing is at `name`.
    fn exchange_in_steps(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let (aside, ()) = fresh(|aside| {
            match rustix::fs::statat(&self.parent, aside, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => rustix::fs::renameat(dir, name, &self.parent, aside),
                Err(errno) => Err(errno),
                Ok(_) => Err(Errno::EXIST),
            }
        })?;
        rustix::fs::renameat(&self.parent, &self.name, dir, name).inspect_err(|_| {
            // The first error is the one to tell.
            rustix::fs::renameat(&self.parent, &aside, dir, name).ok();
        })?;
        rustix::fs::renameat(&self.parent, &aside, &self.parent, &self.name)
    }
}

impl Drop for StagedDir {
    fn drop(&mut self) {
        if !self.done {
            // What stays is swept by a later run.
            remove(self.parent.as_fd(), &self.name).ok();
        }
    }
}

/// Removes what killed processes left unfinished in `dir`; returns how many things. What a living
/// process works on is locked, here and in other containers, and stays.
///
/// # Errors
/// When `dir` can't be listed, or something there can't be removed.
pub fn sweep_stale(dir: &Path) -> Result<usize, FsError> {
    let handle = rustix::fs::open(dir, open::DIR, Mode::empty()).map_err(|errno| FsError {
        path: dir.to_owned(),
        source: errno.into(),
    })?;
    sweep(handle.as_fd(), dir)
}

/// The same in the directory `handle`, a fresh one, which is at `dir`.
fn sweep(handle: BorrowedFd<'_>, dir: &Path) -> Result<usize, FsError> {
    let failed = |path: &Path, errno: Errno| FsError {
        path: path.to_owned(),
        source: errno.into(),
    };
    let mut removed = 0;
    for (name, kind) in names(handle).map_err(|errno| failed(dir, errno))? {
        if !is_left(&name) {
            continue;
        }
        let flags = match kind {
            FileType::Directory => open::DIR,
            FileType::RegularFile => open::FILE,
            _ => continue,
        };
        let Ok(thing) = open::entry(handle, name.as_c_str(), flags) else {
            continue;
        };
        if rustix::fs::flock(&thing, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        remove(handle, &name)
            .map_err(|errno| failed(&dir.join(OsStr::from_bytes(name.to_bytes())), errno))?;
        removed += 1;
    }
    Ok(removed)
}

/// Removes what is at `path`, at once for whoever looks there: whoever is killed leaves all of it or
/// nothing. `temp` is a directory on the same file system, in which it goes.
///
/// # Errors
/// When it can't be moved; it is as it was then.
pub fn remove_at_once(path: &Path, temp: &Path) -> Result<(), FsError> {
    let grave = StagedDir::new(temp)?;
    std::fs::rename(path, grave.path().join("gone")).map_err(|source| FsError {
        path: path.to_owned(),
        source,
    })
}

/// Removes what is at `path`, with everything in it when it is a directory, at any depth. Links
/// are removed, not followed. Nothing there is no error.
///
/// # Errors
/// When something can't be removed; the rest may be gone by then.
pub fn remove_tree(path: &Path) -> Result<(), FsError> {
    let failed = |source: io::Error| FsError {
        path: path.to_owned(),
        source,
    };
    let (parent, name) = match open_parent(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(failed)?,
    };
    remove(parent.as_fd(), &name).map_err(|errno| failed(errno.into()))
}

/// Takes the bits by which a program runs as its owner or group off every file below the directory
/// at `path`; links are not followed. A file that also has another name, which may lie elsewhere, is
/// only changed when all names of it are known to lie here (`linked`). Nothing there is no error.
///
/// # Errors
/// The first that could not be looked at or changed; what comes after it was.
pub fn drop_set_ids(path: &Path, linked: bool) -> Result<(), FsError> {
    let failed = |errno: Errno| FsError {
        path: path.to_owned(),
        source: errno.into(),
    };
    let mut at = match rustix::fs::open(path, open::DIR | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(failed)?,
    };
    let set = Mode::SUID | Mode::SGID;
    let mut first = Ok(());
    // Depth costs no handles: what is left in each directory further out, and the way back up.
    let mut left = vec![names(at.as_fd()).map_err(failed)?];
    while let Some(here) = left.last_mut() {
        let Some((name, kind)) = here.pop() else {
            left.pop();
            if !left.is_empty() {
                at = open::entry(at.as_fd(), c"..", open::DIR).map_err(failed)?;
            }
            continue;
        };
        let looked = match kind {
            FileType::Directory => open_locked(at.as_fd(), &name).and_then(|dir| {
                left.push(names(dir.as_fd())?);
                at = dir;
                Ok(())
            }),
            FileType::RegularFile | FileType::Unknown => {
                let stat = rustix::fs::statat(&at, &name, AtFlags::SYMLINK_NOFOLLOW);
                stat.and_then(|stat| {
                    let mode = Mode::from_raw_mode(stat.st_mode);
                    let file = FileType::from_raw_mode(stat.st_mode).is_file();
                    if file && mode.intersects(set) && (linked || stat.st_nlink == 1) {
                        change_mode(at.as_fd(), &name, mode - set)?;
                    }
                    Ok(())
                })
            }
            _ => Ok(()),
        };
        if first.is_ok() {
            first = looked.map_err(failed);
        }
    }
    first
}

/// Opens the directory `name` of `parent`, unlocked where it has to be.
fn open_locked(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    match open::entry(parent, name, open::DIR) {
        Err(Errno::ACCESS) => {
            unlock(parent, name)?;
            open::entry(parent, name, open::DIR)
        }
        opened => opened,
    }
}

/// Gives its owner all rights in the directory at `path`, as far as they are missing. A link, and
/// what is no directory, stays as it is; nothing there is no error.
///
/// # Errors
/// When it belongs to somebody else.
pub fn unlock_dir(path: &Path) -> Result<(), FsError> {
    let unlocked = open_parent(path).and_then(|(parent, name)| Ok(unlock(parent.as_fd(), &name)?));
    match unlocked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| FsError {
            path: path.to_owned(),
            source,
        }),
    }
}

/// The same of the entry `name` of `parent`.
fn unlock(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !FileType::from_raw_mode(stat.st_mode).is_dir() || mode.contains(Mode::RWXU) {
        return Ok(());
    }
    change_mode(parent, name, mode | Mode::RWXU)
}

/// Gives the entry `name` of `parent`, which is no link, the permissions `mode`.
fn change_mode(parent: BorrowedFd<'_>, name: &CStr, mode: Mode) -> Result<(), Errno> {
    // Linux changes no mode without following a link, but has names for what is held, and holding
    // needs no rights.
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let held = open::entry(parent, name, flags)?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), mode)
    }
    #[cfg(not(target_os = "linux"))]
    rustix::fs::chmodat(parent, name, mode, AtFlags::SYMLINK_NOFOLLOW)
}

/// Directories that are emptied in place; deeper ones are first moved up, so that depth costs
/// neither stack nor handles.
const MAX_DEPTH: usize = 32;

/// Removes the entry `name` of `parent` with everything in it.
fn remove(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    struct Level {
        name: CString,
        handle: OwnedFd,
        left: Vec<(CString, FileType)>,
    }
    let enter = |at: BorrowedFd<'_>, name: CString| -> Result<Level, Errno> {
        let handle = open_locked(at, &name)?;
        let left = names(handle.as_fd())?;
        // Agents leave directories that they made read-only, and package caches are.
        if !left.is_empty() {
            let mode = Mode::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode);
            if !mode.contains(Mode::RWXU) {
                rustix::fs::fchmod(&handle, mode | Mode::RWXU)?;
            }
        }
        Ok(Level { name, handle, left })
    };
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Linux says the first of a directory, POSIX the second.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    let mut levels = match enter(parent, name.to_owned()) {
        Err(Errno::NOENT) => return Ok(()),
        level => vec![level?],
    };
    while let Some(at) = levels.len().checked_sub(1) {
        let Some(level) = levels.get_mut(at) else {
            break;
        };
        let Some((name, kind)) = level.left.pop() else {
            let empty = levels.pop();
            let above = levels.last().map_or(parent, |level| level.handle.as_fd());
            if let Some(level) = empty {
                gone(rustix::fs::unlinkat(above, &level.name, AtFlags::REMOVEDIR))?;
            }
            continue;
        };
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(&level.handle, &name, AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) if kind == FileType::Unknown => {}
                done => {
                    gone(done)?;
                    continue;
                }
            }
        }
        if at < MAX_DEPTH {
            let inner = enter(level.handle.as_fd(), name)?;
            levels.push(inner);
        } else if rustix::fs::unlinkat(&level.handle, &name, AtFlags::REMOVEDIR).is_err() {
            let deep = level.handle.try_clone().map_err(|_| Errno::MFILE)?;
            // Where a directory is moved, its `..` changes.
            unlock(deep.as_fd(), &name)?;
            if let Some(top) = levels.first_mut() {
                let (moved, ()) = fresh(|moved| {
                    match rustix::fs::statat(&top.handle, moved, AtFlags::SYMLINK_NOFOLLOW) {
                        Err(Errno::NOENT) => rustix::fs::renameat(&deep, &name, &top.handle, moved),
                        Err(errno) => Err(errno),
                        Ok(_) => Err(Errno::EXIST),
                    }
                })?;
                top.left.push((moved, FileType::Directory));
            }
        }
    }
    Ok(())
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// The names in `dir`, a fresh handle.
fn names(dir: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut names = Vec::new();
    each_name(dir, &mut Vec::new(), &mut |name, kind| {
        names.push((name.to_owned(), kind));
        Ok(())
    })?;
    Ok(names)
}

/// Calls `create` with new staging names until one is free.
fn fresh<T>(mut create: impl FnMut(&CStr) -> Result<T, Errno>) -> Result<(CString, T), Errno> {
    let pid = std::process::id();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("{STAGING}{pid}-{number}")).map_err(|_| Errno::INVAL)?;
        match create(&name) {
            Ok(made) => return Ok((name, made)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether `name` may name what a process left that is no more. A living process could be just
/// about to take its lock; processes in other containers may have our own number.
fn is_left(name: &CStr) -> bool {
    let Some((pid, number)) = name
        .to_str()
        .ok()
        .and_then(|name| name.strip_prefix(STAGING)?.split_once('-'))
    else {
        return false;
    };
    let (Ok(pid), Ok(number)) = (pid.parse(), number.parse::<u64>()) else {
        return false;
    };
    let Some(pid) =
        rustix::process::Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 0)
    else {
        return false;
    };
    if pid == rustix::process::getpid() {
        number >= NEXT.load(Ordering::Relaxed)
    } else {
        rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
    }
}

/// A handle of the directory that holds `path`, and its name there.
fn open_parent(path: &Path) -> io::Result<(OwnedFd, CString)> {
    let name: OsString = path.file_name().ok_or(Errno::INVAL)?.to_owned();
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let handle = rustix::fs::open(parent, open::DIR, Mode::empty())?;
    Ok((handle, CString::new(name.as_bytes())?))
}

/// Writes all of `bytes` at the file's position.
pub(crate) fn write_all(file: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Gives an open file exactly the permissions `mode`, whatever the umask made of them.
fn set_mode(file: impl AsFd, mode: Mode) -> Result<(), Errno> {
    let current = Mode::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    let permissions = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    if current & permissions == mode {
        return Ok(());
    }
    rustix::fs::fchmod(&file, mode)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::TempDir;

    use super::*;

    fn names_in(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_takes_its_place_whole() {
        let temp = TempDir::new().unwrap();
        let at = temp.path().join("file");
        write_atomic(&at, b"one", 0o644).unwrap();
        assert_eq!(
            (fs::read(&at).unwrap(), mode(&at)),
            (b"one".to_vec(), 0o644)
        );
        write_atomic(&at, b"", 0o755).unwrap();
        assert_eq!((fs::read(&at).unwrap(), mode(&at)), (Vec::new(), 0o755));

        // A link is replaced, what it names stays.
        fs::write(temp.path().join("other"), "other").unwrap();
        symlink("other", temp.path().join("link")).unwrap();
        write_atomic(&temp.path().join("link"), b"two", 0o600).unwrap();
        assert_eq!(fs::read(temp.path().join("link")).unwrap(), b"two");
        assert_eq!(fs::read(temp.path().join("other")).unwrap(), b"other");

        fs::create_dir(temp.path().join("dir")).unwrap();
        assert!(write_atomic(&temp.path().join("dir"), b"", 0o644).is_err());
        assert!(write_atomic(&temp.path().join("none/file"), b"", 0o644).is_err());
        assert!(write_atomic(Path::new("/"), b"", 0o644).is_err());
        assert_eq!(names_in(temp.path()), ["dir", "file", "link", "other"]);
    }

    #[test]
    fn a_directory_takes_its_place_whole_or_leaves_no_trace() {
        let temp = TempDir::new().unwrap();
        let dest = temp.path().join("dest");
        for round in ["one", "two"] {
            let staged = StagedDir::new(temp.path()).unwrap();
            fs::write(staged.path().join(round), round).unwrap();
            assert_eq!(mode(staged.path()), 0o755);
            staged.commit(&dest).unwrap();
            assert_eq!(names_in(&dest), [round]);
            assert_eq!(names_in(temp.path()), ["dest"]);
        }
        let staged = StagedDir::new(temp.path()).unwrap();
        fs::write(staged.path().join("three"), "").unwrap();
        drop(staged);
        assert_eq!(names_in(temp.path()), ["dest"]);

        // By steps, as where the system can't exchange.
        let staged = StagedDir::new(temp.path()).unwrap();
        fs::write(staged.path().join("four"), "").unwrap();
        let parent = rustix::fs::open(temp.path(), open::DIR, Mode::empty()).unwrap();
        staged.exchange_in_steps(parent.as_fd(), c"dest").unwrap();
        assert_eq!(names_in(&dest), ["four"]);
        assert_eq!(names_in(staged.path()), ["two"]);
        drop(staged);
        assert_eq!(names_in(temp.path()), ["dest"]);
    }

    #[test]
    fn a_directory_takes_no_place_of_something_else() {
        let temp = TempDir::new().unwrap();
        fs::create_dir(temp.path().join("real")).unwrap();
        fs::write(temp.path().join("real/file"), "").unwrap();
        fs::write(temp.path().join("file"), "").unwrap();
        symlink("real", temp.path().join("link")).unwrap();
        for dest in ["file", "link", "none/dest"] {
            let staged = StagedDir::new(temp.path()).unwrap();
            assert!(staged.commit(&temp.path().join(dest)).is_err(), "{dest}");
        }
        assert_eq!(names_in(temp.path()), ["file", "link", "real"]);
        assert_eq!(names_in(&temp.path().join("real")), ["file"]);
    }

    #[test]
    fn removes_without_following() {
        let temp = TempDir::new().unwrap();
        let at = temp.path();
        fs::create_dir_all(at.join("keep/dir")).unwrap();
        fs::write(at.join("keep/dir/file"), "").unwrap();
        fs::create_dir_all(at.join("go/a/b/c/d")).unwrap();
        symlink(at.join("keep"), at.join("go/link")).unwrap();
        symlink("../../keep", at.join("go/a/link")).unwrap();
        symlink("keep", at.join("top-link")).unwrap();
        fs::write(at.join("go/a/b/file"), "").unwrap();
        // As package caches are left, and by an agent that shuts what it made; nothing to root.
        fs::set_permissions(at.join("go/a/b/c"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(at.join("go/a/b"), fs::Permissions::from_mode(0o555)).unwrap();
        fs::set_permissions(at.join("go"), fs::Permissions::from_mode(0o000)).unwrap();
        for name in ["go", "top-link", "none", "none/none"] {
            remove_tree(&at.join(name)).unwrap();
        }
        assert_eq!(names_in(at), ["keep"]);
        assert_eq!(names_in(&at.join("keep/dir")), ["file"]);
    }

    #[test]
    fn unlocks_directories_and_nothing_else() {
        let temp = TempDir::new().unwrap();
        let at = temp.path();
        let mode = |name: &str| at.join(name).metadata().unwrap().permissions().mode() & 0o777;
        fs::create_dir(at.join("shut")).unwrap();
        fs::create_dir(at.join("other")).unwrap();
        fs::write(at.join("file"), "").unwrap();
        symlink("other", at.join("link")).unwrap();
        for name in ["shut", "other", "file"] {
            fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o010)).unwrap();
        }
        for name in ["shut", "file", "link", "none", "none/none"] {
            unlock_dir(&at.join(name)).unwrap();
        }
        assert_eq!(["shut", "other", "file"].map(mode), [0o710, 0o010, 0o010]);
    }

    #[test]
    fn no_file_runs_as_its_owner_any_more() {
        let temp = TempDir::new().unwrap();
        let (at, out) = (temp.path().join("at"), temp.path().join("out"));
        let mut deep = at.clone();
        deep.extend(std::iter::repeat_n("d", 100));
        fs::create_dir_all(&deep).unwrap();
        let odd = at.join(OsStr::from_bytes(b"\xff"));
        fs::create_dir(&odd).unwrap();
        let shut = at.join("shut");
        fs::create_dir(&shut).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        let files = [
            deep.join("f"),
            odd.join("f"),
            shut.join("f"),
            at.join("f"),
            out,
        ];
        for file in &files {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o6755)).unwrap();
        }
        let [.., other, out] = &files;
        symlink(out, at.join("link")).unwrap();
        symlink(temp.path(), at.join("up")).unwrap();
        fs::hard_link(other, at.join("other")).unwrap();
        fs::set_permissions(&shut, fs::Permissions::from_mode(0o000)).unwrap();
        drop_set_ids(&at, false).unwrap();
        assert_eq!(
            files.each_ref().map(|file| mode(file)),
            [0o755, 0o755, 0o755, 0o6755, 0o6755]
        );
        drop_set_ids(&at, true).unwrap();
        assert_eq!((mode(other), mode(out)), (0o755, 0o6755));
        drop_set_ids(&at.join("gone"), true).unwrap();
        assert!(drop_set_ids(&at.join("link"), true).is_err());
    }

    #[test]
    fn removes_wide_and_deep() {
        let temp = TempDir::new().unwrap();
        let top = temp.path().join("top");
        let mut deep = top.clone();
        for level in 0..100 {
            deep.push("d");
            fs::create_dir_all(&deep).unwrap();
            for sibling in ["x", "y"] {
                fs::create_dir(deep.join(sibling)).unwrap();
                fs::write(deep.join(sibling).join("file"), format!("{level}")).unwrap();
            }
        }
        remove_tree(&top).unwrap();
        assert!(names_in(temp.path()).is_empty());
    }

    #[test]
    fn a_file_in_its_place_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let staged = root.stage(&TreePath::new("a").unwrap(), 0o644).unwrap();
        let inherited = staged.file.try_clone().unwrap();
        staged.commit().unwrap();
        let file = File::open(dir.path().join("a")).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(inherited);
    }

    #[test]
    fn sweeps_what_the_dead_left_and_nothing_else() {
        let temp = TempDir::new().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let alive = std::process::id();
        let next = NEXT.load(Ordering::Relaxed) + 1_000_000;
        let left = [
            format!(".casepack-{dead}-0"),
            // A process of an earlier container that had our number.
            format!(".casepack-{alive}-{next}"),
        ];
        for name in &left {
            fs::create_dir_all(temp.path().join(name).join("dir")).unwrap();
        }
        fs::write(temp.path().join(format!(".casepack-{dead}-1")), "").unwrap();
        let kept = [
            ".casepack-",
            ".casepack-x-1",
            ".casepack-0-1",
            ".casepack--1-1",
            ".other",
            "dest",
        ];
        for name in kept {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        symlink("dest", temp.path().join(format!(".casepack-{dead}-2"))).unwrap();
        let ours = StagedDir::new(temp.path()).unwrap();
        // Locked by somebody whose process we can't see.
        let foreign = temp.path().join(format!(".casepack-{dead}-3"));
        fs::create_dir(&foreign).unwrap();
        let lock = File::open(&foreign).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();

        assert_eq!(sweep_stale(temp.path()).unwrap(), 3);
        assert!(ours.path().exists() && foreign.exists());
        assert_eq!(names_in(temp.path()).len(), kept.len() + 3);
        // Closing would not do where another test's child has not yet closed its copy.
        rustix::fs::flock(&lock, FlockOperation::Unlock).unwrap();
        assert_eq!(sweep_stale(temp.path()).unwrap(), 1);
    }
}
