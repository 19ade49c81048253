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
    #[error(transparent)]
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
    /// through it. A final `/` or `/.` says nothing.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    /// `project/` with the dataset in it, a plugin directory elsewhere, and `away/`, which is no
    /// root.
    struct World {
        temp: TempDir,
        roots: Roots,
    }

    impl World {
        fn new(files: &[&str], links: &[(&str, &str)]) -> Self {
            let temp = TempDir::new().unwrap();
            let at = temp.path().canonicalize().unwrap();
            for dir in ["project/cases/one", "plugins/p", "away"] {
                fs::create_dir_all(at.join(dir)).unwrap();
            }
            for file in files {
                fs::create_dir_all(at.join(file).parent().unwrap()).unwrap();
                fs::write(at.join(file), "").unwrap();
            }
            for (link, target) in links {
                let target = target.replace('@', at.to_str().unwrap());
                // Random worlds make some that can't be.
                drop(symlink(target, at.join(link)));
            }
            let roots = ["project", "project/cases", "plugins/p"];
            let roots = roots.map(|root| Arc::new(Root::open(&at.join(root)).unwrap()));
            let roots = Roots::new(roots.into());
            Self { temp, roots }
        }

        fn absolute(&self, text: &str) -> String {
            let at = self.temp.path().canonicalize().unwrap();
            text.replace('@', at.to_str().unwrap())
        }

        /// `root:path kind`, with `>` when a link was followed and `!` when it was the last.
        fn resolve(&self, dir: Option<&str>, text: &str) -> String {
            let dir = dir.map(|dir| TreePath::new(dir).unwrap());
            match self.roots.resolve(0, dir.as_ref(), &self.absolute(text)) {
                Ok(found) => format!(
                    "{}:{} {:?}{}{}",
                    found.root,
                    found.path.as_ref().map_or("", |path| path.as_str()),
                    found.kind,
                    if found.through_link { ">" } else { "" },
                    if found.last_was_link { "!" } else { "" },
                ),
                Err(ResolveError::Unusable(_)) => "Unusable".to_owned(),
                Err(error) => format!("{error:?}"),
            }
        }
    }

    #[test]
    fn follows_links_as_long_as_every_step_is_inside() {
        let world = World::new(
            &[
                "project/f",
                "project/dir/g",
                "project/cases/one/a",
                "plugins/p/skill/s",
                "away/secret",
            ],
            &[
                ("project/to-f", "f"),
                ("project/to-dir", "dir"),
                ("project/cases/one/up", "../../dir"),
                ("project/cases/one/up-f", "../../f"),
                ("project/absolute", "@/project/dir/g"),
                ("project/chain", "chain2"),
                ("project/chain2", "to-dir/../to-f"),
                ("project/plugin", "../plugins/p/skill"),
                ("project/plugin-absolute", "@/plugins/p"),
                ("plugins/p/back", "../../project/f"),
                ("project/around", "plugin/../back"),
                ("project/out", "../away/secret"),
                ("project/out-dir", "../away"),
                ("project/out-absolute", "@/away/secret"),
                ("project/etc", "/etc/hostname"),
                ("project/root", "/"),
                ("away/in", "../project"),
                ("project/out-and-in", "../away/in/f"),
                ("project/dangling", "nowhere"),
                ("project/dangling-dir", "nowhere/x"),
                ("project/under-file", "f/x"),
                ("project/loop", "loop"),
                ("project/loop-a", "loop-b"),
                ("project/loop-b", "./loop-a"),
                ("project/outside-prefix", "../project-not"),
            ],
        );
        for (dir, text, expected) in [
            (None, "f", "0:f File"),
            (None, "dir/g", "0:dir/g File"),
            (None, "./dir//g/", "0:dir/g File"),
            (None, "", "0: Dir"),
            (None, ".", "0: Dir"),
            (None, "dir", "0:dir Dir"),
            (None, "dir/..", "0: Dir"),
            (None, "dir/../f", "0:f File"),
            (None, "@/project/f", "0:f File"),
            (None, "@/project/../project/f", "0:f File"),
            (None, "@/plugins/p/skill/s", "2:skill/s File"),
            (None, "../plugins/p/skill/s", "2:skill/s File"),
            (Some("cases/one"), "a", "0:cases/one/a File"),
            (Some("cases/one"), "../one/a", "0:cases/one/a File"),
            (Some("cases/one"), "up", "0:dir Dir>!"),
            (Some("cases/one"), "up/g", "0:dir/g File>"),
            (Some("cases/one"), "up/..", "0: Dir>"),
            (Some("cases/one"), "up-f", "0:f File>!"),
            (None, "to-f", "0:f File>!"),
            (None, "to-dir/g", "0:dir/g File>"),
            (None, "absolute", "0:dir/g File>!"),
            (None, "chain", "0:f File>!"),
            (None, "plugin/s", "2:skill/s File>"),
            (None, "plugin-absolute", "2: Dir>!"),
            (None, "plugin-absolute/back", "0:f File>!"),
            (None, "around", "0:f File>!"),
            (None, "out", "Outside"),
            (None, "out-dir", "Outside"),
            (None, "out-dir/secret", "Outside"),
            (None, "out-dir/../project/f", "Outside"),
            (None, "out-absolute", "Outside"),
            (None, "out-and-in", "Outside"),
            (None, "outside-prefix", "Outside"),
            (None, "etc", "Outside"),
            // Only above a root, so by name alone; but that is no root.
            (None, "root", "Outside"),
            (None, "..", "Outside"),
            (None, "../away/secret", "Outside"),
            (None, "../../../../../../../../../etc/hostname", "Outside"),
            (None, "/", "Outside"),
            (None, "@/away/secret", "Outside"),
            (None, "@/plugins/p/../q", "Outside"),
            (None, "root/@/project/f", "0:f File>"),
            (None, "nowhere", "Missing"),
            (None, "nowhere/..", "Missing"),
            (None, "f/x", "Missing"),
            (None, "f/..", "Missing"),
            (None, "dangling", "Dangling"),
            (None, "dangling-dir", "Dangling"),
            (None, "under-file", "Dangling"),
            (None, "to-f/x", "Dangling"),
            (None, "loop", "Loop"),
            (None, "loop/x", "Loop"),
            (None, "loop-a", "Loop"),
            (None, "a\0b", "Unusable"),
        ] {
            let found = world.resolve(dir, text);
            assert_eq!(found, expected, "{dir:?} {text:?}");
        }
        let long = "x".repeat(256);
        assert_eq!(world.resolve(None, &long), "Unusable");
    }

    #[test]
    fn a_root_may_be_reached_by_the_name_that_the_user_gave_it() {
        let temp = TempDir::new().unwrap();
        let at = temp.path().canonicalize().unwrap();
        fs::create_dir_all(at.join("var/home/me/project")).unwrap();
        fs::write(at.join("var/home/me/project/f"), "").unwrap();
        symlink("var/home", at.join("home")).unwrap();
        symlink(
            at.join("home/me/project/f"),
            at.join("var/home/me/project/l"),
        )
        .unwrap();
        let root = Arc::new(Root::open(&at.join("home/me/project")).unwrap());
        let found = Roots::new(vec![root]).resolve(0, None, "l").unwrap();
        assert_eq!(found.path.unwrap().as_str(), "f");
        let root = Arc::new(Root::open(&at.join("var/home/me/project")).unwrap());
        let found = Roots::new(vec![root]).resolve(0, None, "l");
        assert!(matches!(found, Err(ResolveError::Outside)), "{found:?}");
    }

    #[test]
    fn tells_what_lies_in_what_across_roots() {
        let world = World::new(&["project/cases/one/a"], &[]);
        let path = |text| TreePath::new(text).unwrap();
        let (one, full, other) = (path("one"), path("cases/one/a"), path("cases/on"));
        let contains = |a, b| world.roots.contains(a, b);
        assert!(contains((1, None), (0, Some(&full))));
        assert!(contains((1, Some(&one)), (0, Some(&full))));
        assert!(contains((0, Some(&full)), (0, Some(&full))));
        assert!(contains((0, None), (1, None)));
        assert!(!contains((0, Some(&full)), (1, Some(&one))));
        assert!(!contains((0, Some(&other)), (1, Some(&one))));
        assert!(!contains((2, None), (0, None)));
        let places = world.roots.locate(1, Some(&one));
        assert_eq!(places, [(0, Some(path("cases/one"))), (1, Some(one))]);
    }

    fn step() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "a", "b", "c", "l", "m", "..", "..", ".", "cases", "one",
        ])
        .prop_map(str::to_owned)
    }

    fn text() -> impl Strategy<Value = String> {
        let tops = [
            "",
            "",
            "",
            "",
            "@/project/",
            "@/away/",
            "@/plugins/p/",
            "@/",
            "../plugins/p/",
        ];
        (
            prop::sample::select(tops.to_vec()),
            prop::collection::vec(step(), 1..5),
        )
            // A final dot says nothing to us, but that it is a directory to the kernel.
            .prop_map(|(top, steps)| {
                format!("{top}{}", steps.join("/"))
                    .trim_end_matches("/.")
                    .to_owned()
            })
    }

    fn link() -> impl Strategy<Value = (String, String)> {
        let dirs = [
            "project",
            "project/a",
            "project/cases/one",
            "plugins/p",
            "away",
            "project/b",
        ];
        let names = ["l", "m", "c", "b"];
        let place = (
            prop::sample::select(dirs.to_vec()),
            prop::sample::select(names.to_vec()),
        );
        (place, text()).prop_map(|((dir, name), text)| (format!("{dir}/{name}"), text))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        /// The kernel's own answer is the oracle: where we say that a place is, it is; and what
        /// leads out, we refuse.
        #[test]
        fn agrees_with_the_kernel(links in prop::collection::vec(link(), 0..8), texts in prop::collection::vec(text(), 8)) {
            let files = ["project/a/a", "project/cases/one/a", "plugins/p/a/b", "away/a", "away/b/c"];
            let links: Vec<_> = links.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let world = World::new(&files, &links);
            let base = TreePath::new("cases/one").unwrap();
            for (base, text) in texts.iter().flat_map(|text| [(None, text), (Some(&base), text)]) {
                let text = world.absolute(text);
                let root = world.roots.get(0).unwrap();
                let truth = root.absolute(base).join(&text).canonicalize();
                match (world.roots.resolve(0, base, &text), truth) {
                    (Ok(found), Ok(place)) => {
                        let told = world.roots.absolute(found.root, found.path.as_ref()).unwrap();
                        prop_assert_eq!(&told, &place, "{}", text);
                        prop_assert_eq!(found.kind == Kind::Dir, place.is_dir());
                    }
                    (Err(_), Err(_)) => {}
                    (Err(ResolveError::Outside), Ok(place)) => {
                        let inside = (0..3).any(|root| world.roots.within(root, &place).is_some());
                        let detour = text.contains("/away")
                            || links.iter().any(|(at, to)| at.contains("away") || to.contains("away"));
                        prop_assert!(!inside || detour, "{text}: really {place:?}");
                    }
                    (ours, truth) => prop_assert!(false, "{text}: {ours:?}, really {truth:?}"),
                }
            }
        }
    }
}
