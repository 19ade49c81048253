//! Following links by hand, over several roots (policy 8).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::{Kind, Root};
use crate::path::{TreePath, TreePathError};

/// A listed thing, resolved: which root it lies in and where there, no link on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Index into [`Roots`]: the first root, in their order, that the place lies in.
    pub root: usize,
    /// Place below that root; `None` for the root itself.
    pub path: Option<TreePath>,
    /// What is there; never a link.
    pub kind: Kind,
    /// Whether any link was followed, in the middle or at the end.
    pub through_link: bool,
    /// Whether the last component itself was a link.
    pub last_was_link: bool,
}

/// Why a path did not resolve.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Nothing there.
    #[error("it does not exist")]
    Missing,
    /// A link on the way leads nowhere.
    #[error("a link on the way leads nowhere")]
    Dangling,
    /// Links lead in a circle.
    #[error("its links lead in a circle")]
    Loop,
    /// It leads out of every root.
    #[error("it leads out of every allowed directory")]
    Outside,
    /// A component is longer than the system takes, not UTF-8, or has a NUL.
    #[error("it is no usable path: {0}")]
    Unusable(String),
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The allowed roots, in order of precedence. They may lie in each other.
#[derive(Debug, Default)]
pub struct Roots {
    roots: Vec<Arc<Root>>,
}

/// As many links as Linux follows in one path.
const MAX_LINKS: usize = 40;

impl Roots {
    /// The given roots.
    pub fn new(roots: Vec<Arc<Root>>) -> Self {
        Self { roots }
    }

    /// Root number `index`.
    pub fn get(&self, index: usize) -> Option<&Arc<Root>> {
        self.roots.get(index)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.roots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// The canonical path of a place, for messages and comparisons; never for opening.
    pub fn absolute(&self, root: usize, path: Option<&TreePath>) -> Option<PathBuf> {
        Some(self.get(root)?.absolute(path))
    }

    /// Whether place `b` is place `a` or lies below it, whichever roots they are named by. Both
    /// are resolved places (no link on the way), so that comparing their names is right.
    pub fn contains(&self, a: (usize, Option<&TreePath>), b: (usize, Option<&TreePath>)) -> bool {
        match (self.absolute(a.0, a.1), self.absolute(b.0, b.1)) {
            (Some(a), Some(b)) => b.starts_with(a),
            _ => false,
        }
    }

    /// All names that a place has: every root that it lies in, in their order, and where there.
    pub fn locate(&self, root: usize, path: Option<&TreePath>) -> Vec<(usize, Option<TreePath>)> {
        let Some(place) = self.absolute(root, path) else {
            return Vec::new();
        };
        (0..self.roots.len())
            .filter_map(|index| Some((index, self.within(index, &place)?.ok()?)))
            .collect()
    }

    /// Where `text` leads: relative to the directory `dir` (`None`: the root itself) of root
    /// `base`, or absolute. Links are followed hop by hop and every place on the way must lie in
    /// a root. Absolute paths and `..` may pass the directories above a root, by name alone, to
    /// come (back) into a root; a link above a root counts only when the user named the root
    /// through it.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub fn resolve(
        &self,
        base: usize,
        dir: Option<&TreePath>,
        text: &str,
    ) -> Result<Resolved, ResolveError> {
        let root = self.get(base).ok_or(ResolveError::Outside)?;
        if text.contains('\0') {
            return Err(ResolveError::Unusable(TreePathError::Nul.to_string()));
        }
        let mut way = Way {
            roots: self,
            at: root.absolute(dir),
            kind: Kind::Dir,
            ahead: Vec::new(),
            links: 0,
            last_was_link: false,
        };
        if let Some(kind) = without_links(root, dir, text) {
            way.at.push(text);
            way.kind = kind;
        } else {
            way.push(Path::new(text));
        }
        while let Some(step) = way.ahead.pop() {
            way.step(&step)?;
        }
        let Some((root, _, path)) = self.first(&way.at) else {
            return Err(ResolveError::Outside);
        };
        Ok(Resolved {
            root,
            path: path.map_err(|why| ResolveError::Unusable(why.to_string()))?,
            kind: way.kind,
            through_link: way.links > 0,
            last_was_link: way.last_was_link,
        })
    }

    /// The first root that the canonical path `place` lies in.
    fn first(&self, place: &Path) -> Option<(usize, &Root, Within)> {
        self.roots
            .iter()
            .enumerate()
            .find_map(|(index, root)| Some((index, &**root, self.within(index, place)?)))
    }

    /// Where the canonical path `place` lies in root `index`; `None`: not in it.
    fn within(&self, index: usize, place: &Path) -> Option<Within> {
        let rest = place.strip_prefix(self.roots.get(index)?.path()).ok()?;
        if rest.as_os_str().is_empty() {
            return Some(Ok(None));
        }
        let Some(text) = rest.to_str() else {
            return Some(Err(BadPlace::NotUtf8));
        };
        Some(TreePath::new(text).map(Some).map_err(BadPlace::Path))
    }
}

/// The place below a root, `None` for the root itself; or why it has no tree path.
type Within = Result<Option<TreePath>, BadPlace>;

/// Why a place in a root has no tree path.
#[derive(Debug, thiserror::Error)]
enum BadPlace {
    #[error("a name on the way is not UTF-8")]
    NotUtf8,
    #[error("{0}")]
    Path(TreePathError),
}

/// A path that is being followed.
struct Way<'a> {
    roots: &'a Roots,
    /// Where we are: absolute, without links; in a root or above one.
    at: PathBuf,
    /// What is there.
    kind: Kind,
    /// Components that are left, in reverse.
    ahead: Vec<OsString>,
    links: usize,
    last_was_link: bool,
}

impl Way<'_> {
    /// Puts `path` before what is left.
    fn push(&mut self, path: &Path) {
        let mut rest = path;
        if path.is_absolute() {
            self.at = PathBuf::from("/");
            self.kind = Kind::Dir;
            // Where the user's name for a root is not its canonical path (`/tmp` on macOS), paths
            // that start with it mean that root.
            let named =
                |root: &&Arc<Root>| root.named.is_absolute() && path.starts_with(&root.named);
            let longest = |root: &&Arc<Root>| root.named.components().count();
            if let Some(root) = self.roots.roots.iter().filter(named).max_by_key(longest)
                && let Ok(below) = path.strip_prefix(&root.named)
            {
                self.at.clone_from(&root.path);
                rest = below;
            }
        }
        let steps = rest.components().rev().filter_map(|step| match step {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        });
        self.ahead.extend(steps);
    }

    fn step(&mut self, step: &OsStr) -> Result<(), ResolveError> {
        if self.kind != Kind::Dir {
            return Err(self.nothing());
        }
        if step.as_bytes() == b".." {
            self.at.pop();
            return Ok(());
        }
        let next = self.at.join(step);
        let roots = self.roots;
        let Some((_, root, path)) = roots.first(&next) else {
            // Above every root: a name that leads to one, or out.
            let leads = |root: &Arc<Root>| root.path.starts_with(&next);
            if !self.roots.roots.iter().any(leads) {
                return Err(ResolveError::Outside);
            }
            self.at = next;
            return Ok(());
        };
        // A root is a directory and no link: its path is canonical.
        if let Some(path) = path.map_err(|why| ResolveError::Unusable(why.to_string()))? {
            let (kind, target) = look(root, &path).map_err(|errno| match errno {
                Errno::NOENT | Errno::NOTDIR => self.nothing(),
                Errno::NAMETOOLONG => {
                    ResolveError::Unusable(TreePathError::LongComponent.to_string())
                }
                errno => ResolveError::Io(errno.into()),
            })?;
            if let Some(target) = target {
                self.links += 1;
                if self.links > MAX_LINKS {
                    return Err(ResolveError::Loop);
                }
                self.last_was_link |= self.ahead.is_empty();
                self.push(Path::new(&target));
                return Ok(());
            }
            self.kind = kind;
        } else {
            self.kind = Kind::Dir;
        }
        self.at = next;
        Ok(())
    }

    /// Nothing is where we wanted to go.
    fn nothing(&self) -> ResolveError {
        if self.links > 0 {
            ResolveError::Dangling
        } else {
            ResolveError::Missing
        }
    }
}

/// What is at `text` below `dir`, the usual way: no link, no detour. `None`: find out step by step.
fn without_links(root: &Root, dir: Option<&TreePath>, text: &str) -> Option<Kind> {
    let path = TreePath::new(text).ok()?;
    let path = dir.map_or(path.clone(), |dir| dir.join(&path));
    match root.stat(&path) {
        Ok(Some((kind, _))) if kind != Kind::Link => Some(kind),
        _ => None,
    }
}

/// What is at `path`, and where it leads when it is a link.
fn look(root: &Root, path: &TreePath) -> Result<(Kind, Option<OsString>), Errno> {
    root.in_parent(path, |dir, name| {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(dir, name, flags)?;
        let kind = Kind::of(rustix::fs::FileType::from_raw_mode(stat.st_mode));
        if kind != Kind::Link {
            return Ok((kind, None));
        }
        let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
        Ok((kind, Some(OsString::from_vec(target.into_bytes()))))
    })
}
