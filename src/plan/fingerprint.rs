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
use crate::fs::{Found, FsError, Kind, Listing, Root, Roots, Stamp, Walk};
use crate::path::TreePath;
use crate::tree::{Links, Tree};

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
    let top = dir.map_or(0, |dir| dir.as_str().len() + 1);
    let mut sight = Sight::new(top, aids);
    root.walk(dir, &mut |found| sight.see(found))?;
    match sight.gone.take() {
        Some((path, source)) => Err(FsError {
            path: root.path().join(path.as_str()),
            source,
        }),
        None => Ok(sight.finish()),
    }
}

/// What a look at the directory `dir` saw that was kept in `listing`; `None` when a part of it could
/// not be looked at.
pub(super) fn look_again(
    listing: &Listing,
    dir: Option<&TreePath>,
    aids: Aids<'_>,
) -> Option<Look> {
    let top = dir.map_or(0, |dir| dir.as_str().len() + 1);
    let mut sight = Sight::new(top, aids);
    listing.walk(&mut |found| sight.see(found)).ok()?;
    sight.gone.is_none().then(|| sight.finish())
}

/// What [`look`] sees of a directory that holds the files of `tree` and nothing else, with the
/// stamps `written` that they have.
pub(super) fn look_of(tree: &Tree, written: &[Stamp]) -> Look {
    let mut sight = Sight::new(0, Aids::default());
    let mut last = "";
    for ((path, _), stamp) in tree.iter().zip(written) {
        let text = path.as_str();
        let shared = last.bytes().zip(text.bytes()).take_while(|(a, b)| a == b);
        let shared = shared.count();
        for (end, _) in text.match_indices('/').filter(|(end, _)| *end >= shared) {
            sight.dir(&text[..end]);
        }
        sight.thing(path, Kind::File, stamp);
        last = text;
    }
    sight.finish()
}

/// A look while it is taken: things in the order of the bytes of their paths.
struct Sight<'a> {
    hasher: Hasher,
    /// Where the places of things below the directory begin.
    top: usize,
    aids: Aids<'a>,
    odd: bool,
    changed_ns: i128,
    /// The first thing that could not be looked at.
    gone: Option<(TreePath, io::Error)>,
}

impl<'a> Sight<'a> {
    fn new(top: usize, aids: Aids<'a>) -> Self {
        Self {
            hasher: Hasher::new(),
            top,
            aids,
            odd: false,
            changed_ns: 0,
            gone: None,
        }
    }

    fn see(&mut self, found: Found<'_>) -> Walk {
        match found {
            Found::EmptyDir(path) => self.odd_one("empty", path.as_str()),
            Found::Unusable { shown, why, .. } => {
                // Too deep to be looked into.
                self.odd |= why.is_some();
                self.odd_one("unusable", &shown);
            }
            Found::Thing(thing) if thing.kind == Kind::Dir => {
                self.dir(thing.path.as_str());
                return Walk::Enter;
            }
            Found::Thing(thing) => match thing.stat() {
                Ok((kind, stamp)) => self.thing(&thing.path, kind, &stamp),
                Err(error) => {
                    self.gone.get_or_insert((thing.path, error));
                }
            },
        }
        Walk::Skip
    }

    fn below<'p>(&self, path: &'p str) -> &'p str {
        path.get(self.top..).unwrap_or(path)
    }

    fn odd_one(&mut self, what: &str, path: &str) {
        self.hasher.update(what.as_bytes());
        self.hasher.update(b"\0");
        self.hasher.update(self.below(path).as_bytes());
        self.hasher.update(b"\n");
    }

    /// A directory's own times say nothing about content; what is in it is seen one by one.
    fn dir(&mut self, path: &str) {
        self.hasher.update(self.below(path).as_bytes());
        self.hasher.update(b"\0d\n");
    }

    /// Anything else.
    fn thing(&mut self, path: &TreePath, kind: Kind, stamp: &Stamp) {
        // Not the modification time, which anybody can set.
        self.changed_ns = self.changed_ns.max(stamp.ctime_ns);
        let below = self.below(path.as_str());
        if self.aids.links.is_some_and(|links| links.has(stamp)) {
            add_linked(&mut self.hasher, below, stamp);
        } else {
            add(&mut self.hasher, below, kind, stamp);
        }
        if kind == Kind::Link {
            match target(path, self.aids.roots) {
                Some(Target::File(root, stamp)) => {
                    self.changed_ns = self.changed_ns.max(stamp.ctime_ns);
                    add(&mut self.hasher, &root.to_string(), Kind::File, &stamp);
                }
                Some(Target::None(why)) => self.hasher.update(why.as_bytes()),
                None => self.odd = true,
            }
        }
        self.hasher.update(b"\n");
    }

    fn finish(self) -> Look {
        Look {
            fingerprint: self.hasher.finish(),
            odd: self.odd,
            changed_ns: self.changed_ns,
        }
    }
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
        Kind::Dir => b'd',
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::path::CaseId;
    use crate::tree::{Content, Mode, TreeBuilder, materialise};

    fn look_at(dir: &Path) -> Look {
        let root = Arc::new(Root::open(dir).unwrap());
        look(&root, None, Aids::default()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn what_was_written_looks_as_it_was_written(
            names in prop::collection::vec("[a-c.-]{0,1}[a-c](/[a-c.-]{0,1}[a-c]){0,3}", 0..12)
        ) {
            let mut builder = TreeBuilder::new();
            for (number, name) in names.iter().enumerate() {
                let mode = if number % 3 == 0 { Mode::Executable } else { Mode::Regular };
                // Some clash.
                drop(builder.insert(TreePath::new(name).unwrap(), mode, Content::bytes(name.as_bytes())));
            }
            let tree = builder.finish();
            let temp = TempDir::new().unwrap();
            let written = {
                let into = fs::File::open(temp.path()).unwrap();
                materialise(&tree, &into).unwrap()
            };
            prop_assert_eq!(written.stamps.len(), tree.len());
            prop_assert_eq!(look_of(&tree, &written.stamps), look_at(temp.path()));
        }
    }

    #[test]
    fn a_listing_shows_what_a_look_sees() {
        let temp = TempDir::new().unwrap();
        let case = temp.path().join("case-1");
        for dir in ["a/b", "a.d", "empty/deep", "skipped/inner"] {
            fs::create_dir_all(case.join(dir)).unwrap();
        }
        for file in ["a/b/c", "a.d/x", "a.txt", "skipped/inner/f", "z"] {
            fs::write(case.join(file), file).unwrap();
        }
        symlink("a.txt", case.join("link")).unwrap();
        symlink("nowhere", case.join("dangling")).unwrap();
        let root = Arc::new(Root::open(temp.path()).unwrap());
        let dir = CaseId::new("case-1").unwrap().to_path();
        let roots = Roots::new(vec![Arc::clone(&root)]);
        let aids = Aids {
            roots: Some((&roots, 0)),
            ..Aids::default()
        };
        let listing = Listing::of(&root, Some(&dir));
        let seen = look(&root, Some(&dir), aids).unwrap();
        assert!(!seen.odd);
        assert_eq!(look_again(&listing, Some(&dir), aids), Some(seen));

        let get = |path: &str| {
            let path = TreePath::new(path).unwrap();
            let found = listing.get(&path).ok()?;
            Some(found.map(|(place, kind)| (place.as_str().to_owned(), kind)))
        };
        let there = |place: &str, kind| Some(Some((place.to_owned(), kind)));
        assert_eq!(get("a/b/c"), there("case-1/a/b/c", Kind::File));
        assert_eq!(get("a/b"), there("case-1/a/b", Kind::Dir));
        assert_eq!(get("link"), there("case-1/link", Kind::Link));
        assert_eq!(get("none"), Some(None));
        assert_eq!(get("a/none/x"), Some(None));
        // Only step by step can tell.
        assert_eq!(get("link/x"), None);
        assert_eq!(get("z/x"), None);

        let mut walked = Vec::new();
        let mut listed = Vec::new();
        let visit = |into: &mut Vec<String>, found: Found<'_>| {
            let skip = matches!(&found, Found::Thing(thing) if thing.path.name() == "skipped");
            into.push(match found {
                Found::Thing(thing) => format!("{:?} {}", thing.kind, thing.path.as_str()),
                other => format!("{other:?}"),
            });
            if skip { Walk::Skip } else { Walk::Enter }
        };
        root.walk(Some(&dir), &mut |found| visit(&mut walked, found))
            .unwrap();
        listing
            .walk(&mut |found| visit(&mut listed, found))
            .unwrap();
        assert_eq!(listed, walked);
        assert!(!listed.iter().any(|it| it.contains("inner")) && listed.len() > 8);
    }
}
