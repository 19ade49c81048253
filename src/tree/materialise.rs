//! A tree becomes files.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode as Permissions, OFlags};
use rustix::io::Errno;

use super::{Content, Data, Mode, Tree};
use crate::digest::Hasher;
use crate::fs::{ReadError, Stamp, write_all};
use crate::path::TreePath;

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Why a tree could not be written.
#[derive(Debug, thiserror::Error)]
pub enum MaterialiseError {
    /// The file that has the content is not what it was when it was hashed.
    #[error("the source of '{path}' can't be used")]
    Source {
        /// The place in the tree.
        path: TreePath,
        /// Why.
        source: ReadError,
    },
    /// The system refused to write.
    #[error("'{path}' can't be written")]
    Write {
        /// The place in the tree.
        path: TreePath,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Writes all files of `tree` into the empty directory `into`, and the directories that they need,
/// with modes 0644 or 0755 whatever the umask. Nothing that exists is written to or followed. On
/// an error what was written stays: callers use a [`crate::fs::StagedDir`].
///
/// # Errors
/// When a source changed or can't be read, or the system refuses to write.
pub fn materialise(tree: &Tree, into: impl AsFd) -> Result<Written, MaterialiseError> {
    let into = into.as_fd();
    let mut umask = Umask::default();
    let mut written = Written::default();
    // The directories on the way to the last file: up to which byte of its path, and the handle.
    let mut dirs: Vec<(usize, OwnedFd)> = Vec::new();
    let mut last = "";
    for (path, entry) in tree.iter() {
        let failed = |errno: Errno| MaterialiseError::Write {
            path: path.clone(),
            source: errno.into(),
        };
        let text = path.as_str();
        let shared = |end: usize| {
            text.get(..end) == last.get(..end) && text.as_bytes().get(end) == Some(&b'/')
        };
        while dirs.last().is_some_and(|(end, _)| !shared(*end)) {
            dirs.pop();
        }
        let mut start = dirs.last().map_or(0, |(end, _)| end + 1);
        while let Some(rest) = text.get(start..)
            && let Some((name, _)) = rest.split_once('/')
        {
            let at = dirs.last().map_or(into, |(_, handle)| handle.as_fd());
            let handle = make_dir(at, name, &mut umask).map_err(failed)?;
            dirs.push((start + name.len(), handle));
            start += name.len() + 1;
        }
        let at = dirs.last().map_or(into, |(_, handle)| handle.as_fd());
        let file = make_file(at, path.name(), entry.mode, &mut umask).map_err(failed)?;
        fill(&file, path, &entry.content)?;
        written.files += 1;
        written.bytes = written.bytes.saturating_add(entry.content.size);
        last = text;
    }
    Ok(written)
}

/// Whether the umask, or the directory's default permissions, let the modes through that we ask
/// for: looked at once per tree and mode instead of once per file.
#[derive(Default)]
struct Umask {
    dir: Option<bool>,
    regular: Option<bool>,
    executable: Option<bool>,
}

fn make_dir(at: BorrowedFd<'_>, name: &str, umask: &mut Umask) -> Result<OwnedFd, Errno> {
    let mode = Permissions::from_raw_mode(0o755);
    rustix::fs::mkdirat(at, name, mode)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(at, name, flags, Permissions::empty())?;
    exactly(&handle, mode, &mut umask.dir)?;
    Ok(handle)
}

fn make_file(
    at: BorrowedFd<'_>,
    name: &str,
    mode: Mode,
    umask: &mut Umask,
) -> Result<OwnedFd, Errno> {
    let (mode, faithful) = match mode {
        Mode::Regular => (0o644, &mut umask.regular),
        Mode::Executable => (0o755, &mut umask.executable),
    };
    let mode = Permissions::from_raw_mode(mode);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at, name, flags, mode)?;
    exactly(&file, mode, faithful)?;
    Ok(file)
}

fn exactly(made: &OwnedFd, mode: Permissions, faithful: &mut Option<bool>) -> Result<(), Errno> {
    let all = Permissions::RWXU | Permissions::RWXG | Permissions::RWXO;
    if faithful.is_none() {
        let stat = rustix::fs::fstat(made)?;
        *faithful = Some(Permissions::from_raw_mode(stat.st_mode) & all == mode);
    }
    if *faithful == Some(false) {
        rustix::fs::fchmod(made, mode)?;
    }
    Ok(())
}

fn fill(file: &OwnedFd, path: &TreePath, content: &Content) -> Result<(), MaterialiseError> {
    let write = |errno: Errno| MaterialiseError::Write {
        path: path.clone(),
        source: errno.into(),
    };
    let source = |source: ReadError| MaterialiseError::Source {
        path: path.clone(),
        source,
    };
    let (root, at, stamp) = match &content.data {
        Data::Bytes(bytes) => return write_all(file, bytes).map_err(write),
        Data::File { root, path, stamp } => (root, path, stamp),
    };
    let (from, before) = root.open_file(at).map_err(source)?;
    if before != *stamp {
        return Err(source(ReadError::Changed));
    }
    copy(&from, file, content).map_err(|error| match error {
        Copy::Read(error) => source(error),
        Copy::Write(errno) => write(errno),
    })?;
    match Stamp::of_open(&from) {
        Ok((_, after)) if after == *stamp => Ok(()),
        Ok(_) => Err(source(ReadError::Changed)),
        Err(error) => Err(source(error.into())),
    }
}

enum Copy {
    Read(ReadError),
    Write(Errno),
}

/// Copies by hand, with a look at the digest.
fn copy(mut from: &File, to: &OwnedFd, content: &Content) -> Result<(), Copy> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 128 * 1024];
    let mut size: u64 = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Copy::Read(error.into())),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        hasher.update(bytes);
        write_all(to, bytes).map_err(Copy::Write)?;
        size += read as u64;
    }
    if size == content.size && hasher.finish() == content.digest {
        Ok(())
    } else {
        Err(Copy::Read(ReadError::Changed))
    }
}
