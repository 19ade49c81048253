//! Listing and walking, sorted, by handle, at any depth.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::{FsError, Kind, Root, Stamp, open};
use crate::path::{TreePath, TreePathError};

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; when it is not UTF-8, an approximation of it.
    pub name: Result<String, String>,
    /// What it is; of a link, that it is one.
    pub kind: Kind,
}

/// What a walk meets.
#[derive(Debug)]
pub enum Found<'a> {
    /// A file, directory, link or special file.
    Thing(Thing<'a>),
    /// A directory that was entered and holds nothing.
    EmptyDir(TreePath),
    /// Something that can't be in a tree, because of its name or because it lies too deep. A
    /// directory is not entered.
    Unusable {
        /// The path, approximately.
        shown: String,
        /// What it is.
        kind: Kind,
        /// Why; `None`: the name is not UTF-8.
        why: Option<TreePathError>,
    },
}

/// A thing that a walk met.
#[derive(Debug)]
pub struct Thing<'a> {
    /// Its place below the root.
    pub path: TreePath,
    /// What it is; of a link, that it is one.
    pub kind: Kind,
    state: State<'a>,
}

/// How the state of a thing is known.
#[derive(Debug)]
enum State<'a> {
    /// By looking: its directory.
    In(BorrowedFd<'a>),
    /// It was looked at before; `None`: it was gone.
    Seen(Option<Stamp>),
}

/// What to do with a directory. The answer for anything else is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// Go on with what is in it.
    Enter,
    /// Leave it out.
    Skip,
}

/// Handles that one walk keeps open; of directories further out they are opened again when their
/// turn comes, so that depth costs no handles.
const MAX_HANDLES: usize = 32;

impl Thing<'_> {
    /// Its state, cheaper than [`Root::stat`].
    ///
    /// # Errors
    /// What the system said; it may be gone by now.
    pub fn stat(&self) -> io::Result<(Kind, Stamp)> {
        match self.state {
            State::In(dir) => {
                let stat = rustix::fs::statat(dir, self.path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(Stamp::of(&stat))
            }
            State::Seen(Some(stamp)) => Ok((self.kind, stamp)),
            State::Seen(None) => Err(Errno::NOENT.into()),
        }
    }
}

/// What one walk below a directory met, kept: so that what is asked of it several times costs one
/// walk, and gets one answer.
#[derive(Debug)]
pub struct Listing {
    /// Bytes of a place below the root that name the directory.
    top: usize,
    entries: Vec<Entry>,
    error: Option<FsError>,
}

#[derive(Debug)]
enum Entry {
    /// With its state, unless it is a directory or was gone.
    Thing(TreePath, Kind, Option<Stamp>),
    EmptyDir(TreePath),
    Unusable(String, Kind, Option<TreePathError>),
}

impl Entry {
    fn path(&self) -> &str {
        match self {
            Self::Thing(path, ..) | Self::EmptyDir(path) => path.as_str(),
            Self::Unusable(shown, ..) => shown,
        }
    }
}

impl Listing {
    /// Walks below `dir` of `root` (`None`: the root itself) and looks at everything there.
    pub fn of(root: &Root, dir: Option<&TreePath>) -> Self {
        let mut entries = Vec::new();
        let walked = root.walk(dir, &mut |found| {
            entries.push(match found {
                Found::Thing(thing) if thing.kind == Kind::Dir => {
                    Entry::Thing(thing.path, thing.kind, None)
                }
                Found::Thing(thing) => match thing.stat() {
                    Ok((kind, stamp)) => Entry::Thing(thing.path, kind, Some(stamp)),
                    Err(_) => Entry::Thing(thing.path, thing.kind, None),
                },
                Found::EmptyDir(path) => Entry::EmptyDir(path),
                Found::Unusable { shown, kind, why } => Entry::Unusable(shown, kind, why),
            });
            Walk::Enter
        });
        Self {
            top: dir.map_or(0, |dir| dir.as_str().len() + 1),
            entries,
            error: walked.err(),
        }
    }

    /// As [`Root::walk`], of what was met.
    ///
    /// # Errors
    /// What that walk gave, after what it met.
    pub fn walk(&self, visit: &mut dyn FnMut(Found<'_>) -> Walk) -> Result<(), &FsError> {
        let mut left_out: Option<&str> = None;
        for entry in &self.entries {
            let path = entry.path();
            let is_end = matches!(entry, Entry::EmptyDir(_));
            let below = |dir: &str| {
                let rest = path.strip_prefix(dir);
                rest.is_some_and(|rest| rest.starts_with('/') || is_end && rest.is_empty())
            };
            if left_out.is_some_and(below) {
                continue;
            }
            let found = match entry {
                Entry::Thing(path, kind, stamp) => Found::Thing(Thing {
                    path: path.clone(),
                    kind: *kind,
                    state: State::Seen(*stamp),
                }),
                Entry::EmptyDir(path) => Found::EmptyDir(path.clone()),
                Entry::Unusable(shown, kind, why) => Found::Unusable {
                    shown: shown.clone(),
                    kind: *kind,
                    why: *why,
                },
            };
            // The name of another thing can be that of a directory, approximately.
            let is_dir = matches!(entry, Entry::Thing(_, Kind::Dir, _));
            left_out = (visit(found) == Walk::Skip && is_dir).then_some(path);
        }
        self.error.as_ref().map_or(Ok(()), Err)
    }

    /// What is at `path` below the directory, with the place below the root; no link is on the way.
    /// `Err`: the listing does not tell.
    pub fn get(&self, path: &TreePath) -> Result<Option<(&TreePath, Kind)>, Unknown> {
        if self.error.is_some() {
            return Err(Unknown);
        }
        let text = path.as_str();
        for (end, _) in text.match_indices('/').chain([(text.len(), "")]) {
            let there = self.entries.iter().find_map(|entry| match entry {
                Entry::Thing(path, kind, _) => {
                    (path.as_str().get(self.top..) == text.get(..end)).then_some((path, *kind))
                }
                _ => None,
            });
            match there {
                Some(there) if end == text.len() => return Ok(Some(there)),
                Some((_, Kind::Dir)) => {}
                Some(_) => return Err(Unknown),
                None => break,
            }
        }
        Ok(None)
    }
}

/// A listing does not tell: a link is on the way, or it is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown;

/// A directory on the way of a walk.
struct Level {
    dir: Option<TreePath>,
    handle: Option<OwnedFd>,
    /// In reverse.
    left: Vec<DirEntry>,
}

impl Root {
    /// What the directory `dir` (`None`: the root itself) holds, sorted by the bytes of the names.
    ///
    /// # Errors
    /// When it can't be opened or listed.
    pub fn list(&self, dir: Option<&TreePath>) -> Result<Vec<DirEntry>, FsError> {
        let handle = self.open_dir(dir)?;
        let mut entries =
            entries(handle.as_fd(), &mut Vec::new()).map_err(|errno| self.error(dir, errno))?;
        entries.sort_unstable_by(|a, b| text(a).cmp(text(b)));
        Ok(entries)
    }

    /// Shows everything below `dir` (`None`: the root itself) to `visit`: files in the order of the
    /// bytes of their paths, a directory before what is in it. No link is followed; depth costs
    /// neither stack nor handles.
    ///
    /// # Errors
    /// When a directory can't be opened or listed.
    pub fn walk(
        &self,
        dir: Option<&TreePath>,
        visit: &mut dyn FnMut(Found<'_>) -> Walk,
    ) -> Result<(), FsError> {
        let mut buffer = Vec::new();
        let handle = self.open_dir(dir)?;
        let mut levels = vec![self.level(dir.cloned(), handle, &mut buffer)?];
        while let Some(level) = levels.last_mut() {
            let Some(entry) = level.left.pop() else {
                levels.pop();
                continue;
            };
            let path = match place(level.dir.as_ref(), &entry) {
                Ok(path) => path,
                Err(found) => {
                    visit(found);
                    continue;
                }
            };
            let parent = match &mut level.handle {
                Some(handle) => handle,
                gone => gone.insert(self.open_dir(level.dir.as_ref())?),
            };
            let thing = Thing {
                path: path.clone(),
                kind: entry.kind,
                state: State::In(parent.as_fd()),
            };
            if visit(Found::Thing(thing)) == Walk::Skip || entry.kind != Kind::Dir {
                continue;
            }
            let handle = open::entry(parent.as_fd(), path.name(), open::DIR)
                .map_err(|errno| self.error(Some(&path), errno))?;
            let inner = self.level(Some(path), handle, &mut buffer)?;
            match &inner.dir {
                Some(path) if inner.left.is_empty() => {
                    visit(Found::EmptyDir(path.clone()));
                }
                _ => levels.push(inner),
            }
            if let Some(outer) = levels.len().checked_sub(MAX_HANDLES + 1)
                && let Some(outer) = levels.get_mut(outer)
            {
                outer.handle = None;
            }
        }
        Ok(())
    }

    fn level(
        &self,
        dir: Option<TreePath>,
        handle: OwnedFd,
        buffer: &mut Vec<u8>,
    ) -> Result<Level, FsError> {
        let mut left =
            entries(handle.as_fd(), buffer).map_err(|errno| self.error(dir.as_ref(), errno))?;
        // Whole paths compare like names of which those of directories end with a slash.
        left.sort_unstable_by(|a, b| key(b).cmp(key(a)));
        Ok(Level {
            dir,
            handle: Some(handle),
            left,
        })
    }
}

fn text(entry: &DirEntry) -> &str {
    match &entry.name {
        Ok(name) | Err(name) => name,
    }
}

fn key(entry: &DirEntry) -> impl Iterator<Item = u8> + '_ {
    let slash = (entry.kind == Kind::Dir).then_some(b'/');
    text(entry).bytes().chain(slash)
}

fn place(dir: Option<&TreePath>, entry: &DirEntry) -> Result<TreePath, Found<'static>> {
    let path = match (&entry.name, dir) {
        (Err(_), _) => Err(None),
        (Ok(name), None) => TreePath::new(name).map_err(Some),
        (Ok(name), Some(dir)) => dir.child(name).map_err(Some),
    };
    path.map_err(|why| Found::Unusable {
        shown: match dir {
            None => text(entry).to_owned(),
            Some(dir) => format!("{dir}/{}", text(entry)),
        },
        kind: entry.kind,
        why,
    })
}

/// What `dir` holds, in no order. `dir` is a fresh handle; `buffer` is room to work in.
fn entries(dir: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<Vec<DirEntry>, Errno> {
    let mut entries = Vec::new();
    each_name(dir, buffer, &mut |name, kind| {
        let kind = match kind {
            // Some file systems don't say.
            FileType::Unknown => match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => return Ok(()),
                Err(errno) => return Err(errno),
            },
            kind => kind,
        };
        let name = match name.to_str() {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(name.to_string_lossy().into_owned()),
        };
        entries.push(DirEntry {
            name,
            kind: Kind::of(kind),
        });
        Ok(())
    })?;
    Ok(entries)
}

/// Calls `each` with every name in `dir` but `.` and `..`.
#[cfg(target_os = "linux")]
pub(super) fn each_name(
    dir: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
    each: &mut dyn FnMut(&CStr, FileType) -> Result<(), Errno>,
) -> Result<(), Errno> {
    buffer.clear();
    buffer.reserve(32 * 1024);
    let mut names = rustix::fs::RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(name) = names.next() {
        let name = name?;
        if !matches!(name.file_name().to_bytes(), b"." | b"..") {
            each(name.file_name(), name.file_type())?;
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn each_name(
    dir: BorrowedFd<'_>,
    _buffer: &mut Vec<u8>,
    each: &mut dyn FnMut(&CStr, FileType) -> Result<(), Errno>,
) -> Result<(), Errno> {
    for name in rustix::fs::Dir::read_from(dir)? {
        let name = name?;
        if !matches!(name.file_name().to_bytes(), b"." | b"..") {
            each(name.file_name(), name.file_type())?;
        }
    }
    Ok(())
}
