//! The disk, contained: reads through handles, sorted walks, atomic writes.
//!
//! Owns [`Root`] (an open directory below which everything is opened, links never followed by the
//! kernel), [`Roots`] (hop-by-hop resolution of links over several allowed roots, policy 8), and
//! how outputs come into being ([`write_atomic`], [`StagedDir`]). Refuses to know datasets.
//! Invariant: what is checked is what is read: opened by handle, no second look-up by name, so
//! that files which change under our hands can make a read fail but never lead it elsewhere.

mod lock;
mod open;
mod resolve;
mod walk;
mod write;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

pub(crate) use self::lock::lock;
pub(crate) use self::open::below as open_below;
pub use self::resolve::{ResolveError, Resolved, Roots};
pub use self::walk::{DirEntry, Found, Listing, Thing, Unknown, Walk};
pub(crate) use self::write::{STAGING, write_all};
pub use self::write::{
    StagedDir, StagedFile, drop_set_ids, remove_at_once, remove_tree, replace, sweep_stale,
    unlock_dir, write_atomic,
};
use crate::path::TreePath;

/// What kind of thing a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A fifo, socket or device: never opened.
    Special,
}

/// What identifies one state of a file: when it is unchanged, so is the content (with the racy
/// rule of the metadata index, issue of the incremental build).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Modification time, ns since 1970.
    pub mtime_ns: i128,
    /// Change time, ns since 1970.
    pub ctime_ns: i128,
    /// The owner's executable bit, the only one that counts (policy 5).
    pub executable: bool,
}

/// An open directory: every path below it is opened without following any link.
#[derive(Debug)]
pub struct Root {
    handle: OwnedFd,
    path: PathBuf,
    named: PathBuf,
}

/// A failure with the path that it was about.
#[derive(Debug, thiserror::Error)]
#[error("{path}", path = path.display())]
pub struct FsError {
    /// The path as it is to be shown.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Why a file below a root could not be read. Whoever asked knows the path.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Nothing there.
    #[error("it does not exist")]
    Missing,
    /// It, or a directory on the way, is a link: callers resolve links first, so it became one.
    #[error("a symbolic link is in its place")]
    Link,
    /// A directory, fifo, socket or device.
    #[error("it is no regular file")]
    NotAFile,
    /// More bytes than the caller takes.
    #[error("it has {size} bytes, more than the {limit} that are allowed")]
    TooLarge {
        /// Its bytes.
        size: u64,
        /// How many were allowed.
        limit: u64,
    },
    /// Another process wrote to it.
    #[error("it changed while it was read")]
    Changed,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for ReadError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Missing,
            Errno::LOOP | Errno::MLINK => Self::Link,
            // What opening a socket, a device without a driver, and a directory for writing say.
            Errno::NXIO | Errno::NODEV | Errno::ISDIR => Self::NotAFile,
            errno => Self::Io(errno.into()),
        }
    }
}

impl Kind {
    fn of(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Dir,
            FileType::Symlink => Self::Link,
            _ => Self::Special,
        }
    }
}

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> (Kind, Self) {
        const NS: i128 = 1_000_000_000;
        #[cfg(target_os = "linux")]
        let dev = stat.st_dev;
        #[cfg(not(target_os = "linux"))]
        let dev = u64::from(stat.st_dev.cast_unsigned());
        let stamp = Self {
            dev,
            ino: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime_ns: i128::from(stat.st_mtime) * NS + i128::from(stat.st_mtime_nsec),
            ctime_ns: i128::from(stat.st_ctime) * NS + i128::from(stat.st_ctime_nsec),
            executable: Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR),
        };
        (Kind::of(FileType::from_raw_mode(stat.st_mode)), stamp)
    }

    /// The state of an open file.
    ///
    /// # Errors
    /// What the system said.
    pub fn of_open(file: impl AsFd) -> io::Result<(Kind, Self)> {
        Ok(Self::of(&rustix::fs::fstat(file)?))
    }
}

/// Where `path` is without links; of one that is not there yet, where it will be. `None` when not
/// even a directory above it can be looked at.
pub fn real_place(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|above| {
        let below = path.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(below))
    })
}

impl Root {
    /// Opens the directory at `path`, links in `path` itself followed (it was named by the user).
    ///
    /// # Errors
    /// When it can't be opened as a directory.
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let error = |source: io::Error| FsError {
            path: path.to_owned(),
            source,
        };
        let real = path.canonicalize().map_err(error)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle =
            rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| error(errno.into()))?;
        Ok(Self {
            handle,
            path: real,
            named: path.to_owned(),
        })
    }

    /// Its canonical path, for messages and for comparing roots.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path that it was opened by.
    pub fn named(&self) -> &Path {
        &self.named
    }

    /// The handle.
    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Opens the directory at `dir` (`None`: the root itself) for reading; no link is followed.
    /// Every call gives a handle of its own, so that listings don't disturb each other.
    ///
    /// # Errors
    /// When it is no directory or can't be opened.
    pub fn open_dir(&self, dir: Option<&TreePath>) -> Result<OwnedFd, FsError> {
        let opened = match dir {
            None => open::again(self.handle.as_fd()),
            Some(dir) => open::below(self.handle.as_fd(), dir.as_str(), open::DIR),
        };
        opened.map_err(|errno| self.error(dir, errno))
    }

    /// What is at `path`, itself not followed when it is a link; `None`: nothing.
    ///
    /// # Errors
    /// When a directory on the way is a link or can't be searched.
    pub fn stat(&self, path: &TreePath) -> Result<Option<(Kind, Stamp)>, FsError> {
        match self.lstat(path) {
            Ok(stat) => Ok(Some(Stamp::of(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(self.error(Some(path), errno)),
        }
    }

    /// Whether a directory is at `path`, no link on the way; cheaper than [`Root::stat`] where most
    /// often nothing is.
    pub fn has_dir(&self, path: &TreePath) -> bool {
        open::below(self.handle.as_fd(), path.as_str(), open::STEP).is_ok()
    }

    /// Reads the regular file at `path`, at most `limit` bytes; no link is followed.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&self, path: &TreePath, limit: u64) -> Result<(Vec<u8>, Stamp), ReadError> {
        let (file, stamp) = self.open_file(path)?;
        let bytes = read_open(&file, &stamp, limit)?;
        Ok((bytes, stamp))
    }

    /// Opens the regular file at `path`; no link is followed. Whoever reads it compares the stamp
    /// with [`Stamp::of_open`] afterwards.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn open_file(&self, path: &TreePath) -> Result<(File, Stamp), ReadError> {
        let file = open::below(self.handle.as_fd(), path.as_str(), open::FILE)?;
        match Stamp::of_open(&file)? {
            (Kind::File, stamp) => Ok((file.into(), stamp)),
            _ => Err(ReadError::NotAFile),
        }
    }

    /// The absolute path of `path`, for messages and comparisons; never for opening.
    pub fn absolute(&self, path: Option<&TreePath>) -> PathBuf {
        path.map_or_else(|| self.path.clone(), |path| self.path.join(path.as_str()))
    }

    fn lstat(&self, path: &TreePath) -> Result<Stat, Errno> {
        self.in_parent(path, |dir, name| {
            rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        })
    }

    /// Calls `act` with a handle of the directory that holds `path`, and its name there.
    fn in_parent<T>(
        &self,
        path: &TreePath,
        act: impl FnOnce(BorrowedFd<'_>, &str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match path.as_str().rsplit_once('/') {
            None => act(self.handle.as_fd(), path.as_str()),
            Some((dir, name)) => {
                let dir = open::below(self.handle.as_fd(), dir, open::STEP)?;
                act(dir.as_fd(), name)
            }
        }
    }

    fn error(&self, path: Option<&TreePath>, errno: Errno) -> FsError {
        FsError {
            path: self.absolute(path),
            source: errno.into(),
        }
    }
}

/// Reads the regular file at `path`, at most `limit` bytes. For places that others may write to as
/// well: a link there is not followed, and what is no file makes nobody wait.
///
/// # Errors
/// See [`ReadError`].
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let file = rustix::fs::open(path, open::FILE | OFlags::NOFOLLOW, Mode::empty())?;
    match Stamp::of_open(&file)? {
        (Kind::File, stamp) => read_open(&file.into(), &stamp, limit),
        _ => Err(ReadError::NotAFile),
    }
}

/// All bytes of `file`, whose state was `stamp` before.
pub(crate) fn read_open(file: &File, stamp: &Stamp, limit: u64) -> Result<Vec<u8>, ReadError> {
    if stamp.size > limit {
        return Err(ReadError::TooLarge {
            size: stamp.size,
            limit,
        });
    }
    let size = usize::try_from(stamp.size).map_err(|_| Errno::NOMEM)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| ReadError::from(Errno::NOMEM))?;
    while bytes.len() < size {
        match rustix::io::read(file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => return Err(ReadError::Changed),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // The allocator may have given more room than asked for, and the file may have grown into it.
    if bytes.len() == size && Stamp::of_open(file)?.1 == *stamp {
        Ok(bytes)
    } else {
        Err(ReadError::Changed)
    }
}

#[cfg(test)]
mod tests;
