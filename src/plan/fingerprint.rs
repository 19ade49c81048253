//! What a directory looks like from outside: names, kinds and stamps, no content.
//!
//! Two looks with one fingerprint saw the same content, as long as no file had changed so shortly
//! before the first look that a later change could carry the same time ([`Look::settled`]).

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::digest::{Digest, Hasher};
use crate::fs::{Found, FsError, Kind, Root, Roots, Stamp, Walk};
use crate::path::TreePath;
use crate::tree::Links;

/// Clocks of file systems move in steps of up to 10 ms (a kernel tick); twice that is safe.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(20);

/// One look at a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// Of everything that was seen.
    pub(crate) fingerprint: Digest,
    /// Whether there is something in it that a look can't vouch for: a link to what was not looked
    /// at, or a directory that can't be entered.
    pub(crate) odd: bool,
    /// The latest change of anything in it, ns since 1970.
    pub(super) changed_ns: i128,
}

impl Look {
    /// Whether nothing had changed within the clock's granularity before `now_ns`, the file
    /// system's own time when the look began: the racy rule of git's index.
    pub(super) fn settled(&self, now_ns: i128) -> bool {
        self.changed_ns + i128::try_from(GRANULARITY.as_nanos()).unwrap_or(0) < now_ns
    }
}

/// What helps a look to see more.
#[derive(Clone, Copy, Default)]
pub(crate) struct Aids<'a> {
    /// The roots, and the index of the one that is looked at: the file that a symbolic link leads to
    /// is looked at as well.
    pub(crate) roots: Option<(&'a Roots, usize)>,
    /// The pool of hard links: its files are known by their inodes.
    pub(crate) links: Option<&'a Links>,
}

/// Looks at `dir` of `root` and everything below it, without opening a file.
///
/// # Errors
/// When a directory can't be listed.
pub(crate) fn look(
    root: &Arc<Root>,
    dir: Option<&TreePath>,
    aids: Aids<'_>,
) -> Result<Look, FsError> {
    let mut hasher = Hasher::new();
    let mut odd = false;
    let mut changed_ns = 0;
    let mut gone = None;
    root.walk(dir, &mut |found| {
        match found {
            Found::EmptyDir(path) => {
                hasher.update(b"empty\0");
                hasher.update(path.as_str().as_bytes());
            }
            Found::Unusable { shown, why, .. } => {
                // Too deep to be looked into.
                odd |= why.is_some();
                hasher.update(b"unusable\0");
                hasher.update(shown.as_bytes());
            }
            Found::Thing(thing) => match thing.stat() {
                Ok((kind, stamp)) => {
                    if kind != Kind::Dir {
                        // Not the modification time, which anybody can set.
                        changed_ns = changed_ns.max(stamp.ctime_ns);
                    }
                    if aids.links.is_some_and(|links| links.has(&stamp)) {
                        add_linked(&mut hasher, thing.path.as_str(), &stamp);
                    } else {
                        add(&mut hasher, thing.path.as_str(), kind, &stamp);
                    }
                    if kind == Kind::Link {
                        match target(&thing.path, aids.roots) {
                            Some(Target::File(root, stamp)) => {
                                changed_ns = changed_ns.max(stamp.ctime_ns);
                                add(&mut hasher, &root.to_string(), Kind::File, &stamp);
                            }
                            Some(Target::None(why)) => hasher.update(why.as_bytes()),
                            None => odd = true,
                        }
                    }
                    hasher.update(b"\n");
                    return Walk::Enter;
                }
                Err(error) => {
                    gone.get_or_insert((thing.path.clone(), error));
                }
            },
        }
        hasher.update(b"\n");
        Walk::Skip
    })?;
    if let Some((path, source)) = gone {
        return Err(FsError {
            path: root.path().join(path.as_str()),
            source,
        });
    }
    Ok(Look {
        fingerprint: hasher.finish(),
        odd,
        changed_ns,
    })
}

/// What a link leads to.
enum Target {
    /// A file of the root with that index.
    File(usize, Stamp),
    /// Nothing that is carried, and why.
    None(String),
}

/// `None`: something that a look at the link does not vouch for, as a directory elsewhere.
fn target(link: &TreePath, roots: Option<(&Roots, usize)>) -> Option<Target> {
    let (roots, base) = roots?;
    let found = match roots.resolve(base, None, link.as_str()) {
        Ok(found) => found,
        Err(why) => return Some(Target::None(why.to_string())),
    };
    let path = found.path.filter(|_| found.kind == Kind::File)?;
    match roots.get(found.root)?.stat(&path) {
        Ok(Some((Kind::File, stamp))) => Some(Target::File(found.root, stamp)),
        _ => None,
    }
}

fn add(hasher: &mut Hasher, path: &str, kind: Kind, stamp: &Stamp) {
    hasher.update(path.as_bytes());
    hasher.update(b"\0");
    let kind = match kind {
        Kind::File if stamp.executable => b'x',
        Kind::File => b'f',
        // A directory's own times say nothing about content; what is in it is seen one by one.
        Kind::Dir => return hasher.update(b"d"),
        Kind::Link => b'l',
        Kind::Special => b's',
    };
    hasher.update(&[kind]);
    for number in [stamp.dev, stamp.ino, stamp.size] {
        hasher.update(&number.to_le_bytes());
    }
    for time in [stamp.mtime_ns, stamp.ctime_ns] {
        hasher.update(&time.to_le_bytes());
    }
}

/// A file of the pool: its content is that of the inode, which the pool vouches for.
fn add_linked(hasher: &mut Hasher, path: &str, stamp: &Stamp) {
    hasher.update(path.as_bytes());
    hasher.update(if stamp.executable { b"\0X" } else { b"\0L" });
    for number in [stamp.dev, stamp.ino] {
        hasher.update(&number.to_le_bytes());
    }
}

/// The file system's own time at `dir`: that of a file that is made now, and removed.
///
/// # Errors
/// When no file can be made there.
pub(super) fn now_ns(dir: &Path) -> io::Result<i128> {
    let path = dir.join(format!("clock-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&path);
    let file = match file {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // Left by a killed process with our number.
            fs::remove_file(&path)?;
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)?
        }
        file => file?,
    };
    let stamp = Stamp::of_open(&file);
    fs::remove_file(&path)?;
    Ok(stamp?.1.ctime_ns)
}
