//! A tree becomes files.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode as Permissions, OFlags};
use rustix::io::Errno;

use super::{Content, Data, FileAt, Links, Mode, Tree};
use crate::digest::Hasher;
use crate::fs::{ReadError, Stamp, open_below, write_all};
use crate::path::TreePath;

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The state of each file, in the order of the tree; none when some are links.
    pub stamps: Vec<Stamp>,
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
    write(tree, into.as_fd(), None)
}

/// As [`materialise`], but files that `links` wants become hard links, read-only.
///
/// # Errors
/// As [`materialise`].
pub fn materialise_linked(
    tree: &Tree,
    into: impl AsFd,
    links: &Links,
) -> Result<Written, MaterialiseError> {
    write(tree, into.as_fd(), Some(links))
}

fn write(
    tree: &Tree,
    into: BorrowedFd<'_>,
    links: Option<&Links>,
) -> Result<Written, MaterialiseError> {
    let mut faithful = None;
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
            let handle = make_dir(innermost(&dirs, into), name, &mut faithful).map_err(failed)?;
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
        let (name, content) = (path.name(), &entry.content);
        let links = links.filter(|links| links.wants(content));
        let linked = match links {
            Some(links) => links.link(content, entry.mode, at, name).map_err(failed)?,
            None => false,
        };
        if !linked {
            let file = make_file(at, name, entry.mode).map_err(failed)?;
            fill(&file, path, content)?;
            let stamp = exactly(&file, permissions(entry.mode)).map_err(failed)?;
            written.stamps.push(stamp);
            if let Some(links) = links {
                links.take(content, entry.mode, at, name).map_err(failed)?;
            }
        }
        written.files += 1;
        written.bytes = written.bytes.saturating_add(entry.content.size);
        last = text;
    }
    if links.is_some() {
        written.stamps.clear();
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

fn make_dir(at: BorrowedFd<'_>, name: &str, faithful: &mut Option<bool>) -> Result<OwnedFd, Errno> {
    let mode = Permissions::from_raw_mode(0o755);
    rustix::fs::mkdirat(at, name, mode)?;
    let handle = rustix::fs::openat(at, name, DIR, Permissions::empty())?;
    // Whether the umask, or the directory's default permissions, let the mode through is looked at
    // once per tree.
    if faithful.is_none() {
        let there = rustix::fs::fstat(&handle)?.st_mode;
        *faithful = Some(Permissions::from_raw_mode(there) & ALL == mode);
    }
    if *faithful == Some(false) {
        rustix::fs::fchmod(&handle, mode)?;
    }
    Ok(handle)
}

fn make_file(at: BorrowedFd<'_>, name: &str, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, permissions(mode))
}

fn permissions(mode: Mode) -> Permissions {
    Permissions::from_raw_mode(match mode {
        Mode::Regular => 0o644,
        Mode::Executable => 0o755,
    })
}

const ALL: Permissions = Permissions::RWXU
    .union(Permissions::RWXG)
    .union(Permissions::RWXO);

/// Gives the new file exactly `mode`, whatever the umask made of it; its state then.
fn exactly(new: &OwnedFd, mode: Permissions) -> Result<Stamp, Errno> {
    let mut stat = rustix::fs::fstat(new)?;
    if Permissions::from_raw_mode(stat.st_mode) & ALL != mode {
        rustix::fs::fchmod(new, mode)?;
        stat = rustix::fs::fstat(new)?;
    }
    Ok(Stamp::of(&stat).1)
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
    let FileAt {
        root,
        path: at,
        stamp,
    } = match &content.data {
        Data::Bytes(bytes) => return write_all(file, bytes).map_err(write),
        Data::File(at) => &**at,
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
                Ok(1..) | Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                    return Err(Copy::Write(copied.err().unwrap_or(Errno::NOSPC)));
                }
                // Some file systems can't, and some say so by copying nothing.
                Ok(0) | Err(_) if at == 0 && read == start => {
                    rustix::fs::seek(from, SeekFrom::Start(0))
                        .map_err(|errno| Copy::Read(errno.into()))?;
                    return Ok(false);
                }
                Ok(0) => return Err(changed()),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;
    use std::sync::Arc;

    use tempfile::TempDir;

    use super::*;
    use crate::fs::Root;
    use crate::tree::TreeBuilder;

    /// A tree of one file at `d/f` that stays on the disk at `source`.
    fn tree_of(root: &Arc<Root>, source: &str) -> Tree {
        let (mode, content) = Content::from_file(root, &TreePath::new(source).unwrap(), 0).unwrap();
        assert!(matches!(content.data, Data::File(_)));
        let mut builder = TreeBuilder::new();
        builder
            .insert(TreePath::new("d/f").unwrap(), mode, content)
            .unwrap();
        builder.finish()
    }

    fn into(dir: &Path) -> OwnedFd {
        fs::create_dir(dir).unwrap();
        File::open(dir).unwrap().into()
    }

    #[test]
    fn large_files_keep_their_content_and_holes() {
        const MB: u64 = 1 << 20;
        let temp = TempDir::new().unwrap();
        let at = temp.path().join("sparse");
        let file = File::create(&at).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"head", 0).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 7 * MB).unwrap();
        file.set_len(16 * MB).unwrap();
        drop(file);
        let root = Arc::new(Root::open(temp.path()).unwrap());
        let tree = tree_of(&root, "sparse");
        let written = materialise(&tree, into(&temp.path().join("out"))).unwrap();
        let out = temp.path().join("out/d/f");
        let stamp = Stamp::of_open(File::open(&out).unwrap()).unwrap().1;
        let wanted = Written {
            files: 1,
            bytes: 16 * MB,
            stamps: vec![stamp],
        };
        assert_eq!(written, wanted);
        assert!(fs::read(&out).unwrap() == fs::read(&at).unwrap());
        if fs::metadata(&at).unwrap().blocks() * 512 < MB && cfg!(target_os = "linux") {
            assert!(fs::metadata(&out).unwrap().blocks() * 512 < MB);
        }
    }

    #[test]
    fn copies_by_hand_only_what_was_hashed() {
        let temp = TempDir::new().unwrap();
        fs::write(temp.path().join("f"), vec![7; 300_000]).unwrap();
        let root = Arc::new(Root::open(temp.path()).unwrap());
        let tree = tree_of(&root, "f");
        let content = &tree.iter().next().unwrap().1.content;
        let from = File::open(temp.path().join("f")).unwrap();
        let to = File::create(temp.path().join("to")).unwrap().into();
        assert!(copy_by_hand(&from, &to, content).is_ok());
        assert!(fs::read(temp.path().join("to")).unwrap() == vec![7; 300_000]);
        fs::write(temp.path().join("other"), vec![8; 300_000]).unwrap();
        let from = File::open(temp.path().join("other")).unwrap();
        let copied = copy_by_hand(&from, &to, content);
        assert!(matches!(copied, Err(Copy::Read(ReadError::Changed))));
    }

    #[test]
    fn refuses_a_source_that_is_not_what_was_hashed() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 4] = [
            ("rewritten", |at| fs::write(at, "other").unwrap()),
            ("replaced", |at| {
                fs::write(at.with_extension("new"), "first").unwrap();
                fs::rename(at.with_extension("new"), at).unwrap();
            }),
            ("a link", |at| {
                fs::rename(at, at.with_extension("real")).unwrap();
                symlink(at.with_extension("real"), at).unwrap();
            }),
            ("gone", |at| fs::remove_file(at).unwrap()),
        ];
        for (name, change) in changes {
            let temp = TempDir::new().unwrap();
            let at = temp.path().join("f");
            fs::write(&at, "first").unwrap();
            let root = Arc::new(Root::open(temp.path()).unwrap());
            let tree = tree_of(&root, "f");
            std::thread::sleep(std::time::Duration::from_millis(20));
            change(&at);
            let error = materialise(&tree, into(&temp.path().join("out"))).unwrap_err();
            assert!(
                matches!(error, MaterialiseError::Source { .. }),
                "{name}: {error:?}"
            );
            assert!(error.to_string().contains("d/f"), "{error}");
        }
    }

    #[test]
    fn writes_over_nothing_and_through_no_link() {
        let temp = TempDir::new().unwrap();
        let mut builder = TreeBuilder::new();
        let path = TreePath::new("d/f").unwrap();
        builder
            .insert(path, Mode::Regular, Content::bytes(*b"new"))
            .unwrap();
        let tree = builder.finish();
        fs::create_dir(temp.path().join("away")).unwrap();
        let prepare: [fn(&Path); 3] = [
            |out| symlink("../away", out.join("d")).unwrap(),
            |out| fs::write(out.join("d"), "old").unwrap(),
            |out| fs::create_dir(out.join("d")).unwrap(),
        ];
        for (number, prepare) in prepare.iter().enumerate() {
            let out = temp.path().join(format!("out{number}"));
            let handle = into(&out);
            prepare(&out);
            let error = materialise(&tree, handle).unwrap_err();
            assert!(matches!(error, MaterialiseError::Write { .. }), "{error:?}");
        }
        assert_eq!(fs::read_dir(temp.path().join("away")).unwrap().count(), 0);
    }
}
