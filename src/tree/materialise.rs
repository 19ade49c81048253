//! A tree becomes files.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode as Permissions, OFlags};
use rustix::io::Errno;

use super::{Content, Data, Mode, Tree};
use crate::digest::Hasher;
use crate::fs::{ReadError, Stamp, open_below, write_all};
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
    let mut dirs = Vec::<Dir>::new();
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
        while dirs.last().is_some_and(|dir| !shared(dir.end)) {
            dirs.pop();
        }
        if let Some(dir) = dirs.last_mut()
            && dir.handle.is_none()
        {
            let place = text.get(..dir.end).unwrap_or_default();
            dir.handle = Some(open_below(into, place, DIR).map_err(failed)?);
        }
        let mut start = dirs.last().map_or(0, |dir| dir.end + 1);
        while let Some(rest) = text.get(start..)
            && let Some((name, _)) = rest.split_once('/')
        {
            let handle = make_dir(innermost(&dirs, into), name, &mut umask).map_err(failed)?;
            let end = start + name.len();
            dirs.push(Dir {
                end,
                handle: Some(handle),
            });
            start = end + 1;
            if let Some(outer) = dirs.len().checked_sub(MAX_HANDLES + 1)
                && let Some(outer) = dirs.get_mut(outer)
            {
                outer.handle = None;
            }
        }
        let at = innermost(&dirs, into);
        let file = make_file(at, path.name(), entry.mode, &mut umask).map_err(failed)?;
        fill(&file, path, &entry.content)?;
        written.files += 1;
        written.bytes = written.bytes.saturating_add(entry.content.size);
        last = text;
    }
    Ok(written)
}

/// A directory on the way to the last file.
struct Dir {
    /// Where its name ends in the file's path.
    end: usize,
    /// None but the innermost need one, so those far out are closed.
    handle: Option<OwnedFd>,
}

/// As many directories are kept open, so that depth costs no handles.
const MAX_HANDLES: usize = 32;
const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn innermost<'a>(dirs: &'a [Dir], into: BorrowedFd<'a>) -> BorrowedFd<'a> {
    let innermost = dirs.last().and_then(|dir| dir.handle.as_ref());
    innermost.map_or(into, AsFd::as_fd)
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
    let handle = rustix::fs::openat(at, name, DIR, Permissions::empty())?;
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

fn exactly(new: &OwnedFd, mode: Permissions, faithful: &mut Option<bool>) -> Result<(), Errno> {
    let all = Permissions::RWXU | Permissions::RWXG | Permissions::RWXO;
    if faithful.is_none() {
        let stat = rustix::fs::fstat(new)?;
        *faithful = Some(Permissions::from_raw_mode(stat.st_mode) & all == mode);
    }
    if *faithful == Some(false) {
        rustix::fs::fchmod(new, mode)?;
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

/// Copies all of `from`; in the kernel where it can (then the file's unchanged state is what
/// vouches for its content), else by hand with a look at the digest.
fn copy(from: &File, to: &OwnedFd, content: &Content) -> Result<(), Copy> {
    #[cfg(target_os = "linux")]
    {
        if rustix::fs::ioctl_ficlone(to, from).is_ok() {
            return Ok(());
        }
        if copy_in_kernel(from, to, content.size)? {
            return Ok(());
        }
    }
    copy_by_hand(from, to, content)
}

/// Copies what is not a hole of the `size` bytes of `from`. `false`: nothing was written, the
/// kernel can't do it between these files.
#[cfg(target_os = "linux")]
fn copy_in_kernel(from: &File, to: &OwnedFd, size: u64) -> Result<bool, Copy> {
    use rustix::fs::SeekFrom;

    let changed = || Copy::Read(ReadError::Changed);
    let mut at = 0;
    while at < size {
        let (start, end) = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => {
                let end = rustix::fs::seek(from, SeekFrom::Hole(start));
                (start, end.map_err(|_| changed())?.min(size))
            }
            // No more data.
            Err(Errno::NXIO) => break,
            // The file system does not know holes.
            Err(Errno::INVAL) => (at, size),
            Err(errno) => return Err(Copy::Read(errno.into())),
        };
        let (mut read, mut write) = (start, start);
        while read < end {
            let left = usize::try_from(end - read)
                .unwrap_or(usize::MAX)
                .min(1 << 30);
            let copied =
                rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut write), left);
            match copied {
                Ok(0) => return Err(changed()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                    return Err(Copy::Write(copied.err().unwrap_or(Errno::NOSPC)));
                }
                Err(_) if at == 0 && read == start => {
                    rustix::fs::seek(from, SeekFrom::Start(0))
                        .map_err(|errno| Copy::Read(errno.into()))?;
                    return Ok(false);
                }
                Err(errno) => return Err(Copy::Read(errno.into())),
            }
        }
        at = end;
    }
    rustix::fs::ftruncate(to, size).map_err(Copy::Write)?;
    Ok(true)
}

fn copy_by_hand(mut from: &File, to: &OwnedFd, content: &Content) -> Result<(), Copy> {
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
