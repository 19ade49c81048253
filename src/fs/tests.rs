//! Reads and walks against hostile directories, with `openat2` and without.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};
use tempfile::TempDir;

use super::*;
use crate::path::TreePathError;

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

fn both_ways(test: impl Fn()) {
    for by_component in [false, true] {
        open::BY_COMPONENT.set(by_component);
        test();
    }
    open::BY_COMPONENT.set(false);
}

/// Ends the other thread, also when this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn fifo(at: &Path) {
    let kind = FileType::Fifo;
    rustix::fs::mknodat(CWD, at, kind, Mode::from_raw_mode(0o644), 0).unwrap();
}

/// `root/` beside `secret` and `away/secret`, which nobody may read through the root.
fn root_and_secret() -> (TempDir, Root) {
    let temp = TempDir::new().unwrap();
    let at = temp.path();
    fs::create_dir_all(at.join("root/dir/sub")).unwrap();
    fs::create_dir(at.join("away")).unwrap();
    fs::write(at.join("secret"), "secret").unwrap();
    fs::write(at.join("away/secret"), "secret").unwrap();
    fs::write(at.join("root/file"), "public").unwrap();
    fs::write(at.join("root/dir/sub/file"), "public").unwrap();
    let root = Root::open(&at.join("root")).unwrap();
    (temp, root)
}

#[test]
fn reads_what_is_inside() {
    both_ways(|| {
        let (_temp, root) = root_and_secret();
        for at in ["file", "dir/sub/file"] {
            let (bytes, stamp) = root.read(&path(at), 6).unwrap();
            assert_eq!((bytes.as_slice(), stamp.size), (&b"public"[..], 6), "{at}");
            assert_eq!(
                root.stat(&path(at)).unwrap(),
                Some((Kind::File, stamp)),
                "{at}"
            );
        }
        assert_eq!(root.stat(&path("dir/sub")).unwrap().unwrap().0, Kind::Dir);
        assert!(root.stat(&path("dir/none")).unwrap().is_none());
        assert!(root.stat(&path("file/none")).unwrap().is_none());
    });
}

#[test]
fn follows_no_link_in_any_place() {
    both_ways(|| {
        let (temp, root) = root_and_secret();
        let at = temp.path();
        let links = [
            ("to-file", "../secret".into()),
            ("to-file-absolute", at.join("secret")),
            ("to-dir", "../away".into()),
            ("to-dir-absolute", at.join("away")),
            ("dir/up", "../..".into()),
            ("dangling", "nowhere".into()),
            ("loop", "loop".into()),
            ("back", "../root/file".into()),
            ("proc", "/proc/self/root".into()),
        ];
        for (link, target) in &links {
            symlink(target, at.join("root").join(link)).unwrap();
            assert_eq!(
                root.stat(&path(link)).unwrap().unwrap().0,
                Kind::Link,
                "{link}"
            );
            let read = root.read(&path(link), 100);
            assert!(matches!(read, Err(ReadError::Link)), "{link}: {read:?}");
            assert!(root.open_dir(Some(&path(link))).is_err(), "{link}");
            for below in ["secret", "away/secret", "x", "x/y"] {
                let below = path(&format!("{link}/{below}"));
                let read = root.read(&below, 100);
                assert!(matches!(read, Err(ReadError::Link)), "{below}: {read:?}");
                assert!(root.stat(&below).is_err(), "{below}");
                assert!(root.list(Some(&below)).is_err(), "{below}");
            }
        }
        let mut links_met = 0;
        root.walk(None, &mut |found| {
            let Found::Thing(thing) = found else {
                panic!("{found:?}")
            };
            assert!(!thing.path.as_str().contains("secret"));
            links_met += usize::from(thing.kind == Kind::Link);
            assert_eq!(thing.stat().unwrap().0, thing.kind);
            Walk::Enter
        })
        .unwrap();
        assert_eq!(links_met, links.len());
    });
}

#[test]
fn opens_nothing_but_regular_files() {
    both_ways(|| {
        let (temp, root) = root_and_secret();
        let at = temp.path().join("root");
        // A fifo without a writer would block an ordinary open for ever.
        fifo(&at.join("fifo"));
        let _socket = std::os::unix::net::UnixListener::bind(at.join("socket")).unwrap();
        for (name, kind) in [
            ("fifo", Kind::Special),
            ("socket", Kind::Special),
            ("dir", Kind::Dir),
        ] {
            assert_eq!(root.stat(&path(name)).unwrap().unwrap().0, kind, "{name}");
            let read = root.read(&path(name), 100);
            assert!(matches!(read, Err(ReadError::NotAFile)), "{name}: {read:?}");
        }
        let missing = root.read(&path("none"), 100);
        assert!(matches!(missing, Err(ReadError::Missing)), "{missing:?}");
        let large = root.read(&path("file"), 5);
        assert!(
            matches!(large, Err(ReadError::TooLarge { size: 6, limit: 5 })),
            "{large:?}"
        );
        if !rustix::process::geteuid().is_root() {
            fs::set_permissions(at.join("file"), fs::Permissions::from_mode(0o000)).unwrap();
            let refused = root.read(&path("file"), 100);
            assert!(matches!(refused, Err(ReadError::Io(_))), "{refused:?}");
        }
    });
}

#[test]
fn tells_when_a_file_changed_under_the_read() {
    let (temp, root) = root_and_secret();
    for change in ["longer than it was", "short", "sixsix"] {
        fs::write(temp.path().join("root/file"), "public").unwrap();
        let (file, stamp) = root.open_file(&path("file")).unwrap();
        // Two changes within one tick of a coarse clock can't be told apart (the racy rule).
        std::thread::sleep(Duration::from_millis(20));
        fs::write(temp.path().join("root/file"), change).unwrap();
        let read = read_open(&file, &stamp, 100);
        assert!(
            matches!(read, Err(ReadError::Changed)),
            "{change}: {read:?}"
        );
    }
}

#[test]
fn never_reads_a_secret_in_a_race() {
    both_ways(|| {
        let (temp, root) = root_and_secret();
        let at = temp.path().join("root");
        symlink("../secret", at.join("file-link")).unwrap();
        symlink("../../away", at.join("dir/link")).unwrap();
        fs::write(at.join("dir/sub/secret"), "public").unwrap();
        let swap = |a: &str, b: &str| {
            let flags = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(root.handle(), a, root.handle(), b, flags).unwrap();
        };
        let stop = AtomicBool::new(false);
        let (mut read, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    swap("file", "file-link");
                    swap("dir/sub", "dir/link");
                }
            });
            let start = Instant::now();
            while (read < 500 || refused < 500) && start.elapsed() < Duration::from_secs(4) {
                for place in ["file", "dir/sub/secret", "dir/link/secret"] {
                    match root.read(&path(place), 100) {
                        Ok((bytes, _)) => {
                            assert_eq!(bytes, b"public", "{place}");
                            read += 1;
                        }
                        // Renaming touches the change time.
                        Err(ReadError::Link | ReadError::Changed) => refused += 1,
                        Err(error) => panic!("{place}: {error:?}"),
                    }
                }
                let walked = root.walk(None, &mut |found| {
                    if let Found::Thing(thing) = found
                        && thing.kind == Kind::File
                        && let Ok((bytes, _)) = root.read(&thing.path, 100)
                    {
                        assert_eq!(bytes, b"public", "{}", thing.path);
                    }
                    Walk::Enter
                });
                // A directory that became a link before it was entered.
                drop(walked);
            }
        });
        assert!(read > 0 && refused > 0, "{read} {refused}");
    });
}

#[test]
fn never_resolves_to_a_secret_in_a_race() {
    let (temp, root) = root_and_secret();
    let roots = Roots::new(vec![Arc::new(root)]);
    let root = roots.get(0).unwrap();
    let at = temp.path().join("root");
    symlink("../away", at.join("link")).unwrap();
    symlink("dir/sub", at.join("inward")).unwrap();
    fs::write(at.join("dir/sub/secret"), "public").unwrap();
    let stop = AtomicBool::new(false);
    let (mut read, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let flags = RenameFlags::EXCHANGE;
                let (a, b) = ("link", "inward");
                rustix::fs::renameat_with(root.handle(), a, root.handle(), b, flags).unwrap();
            }
        });
        let start = Instant::now();
        while (read < 500 || refused < 500) && start.elapsed() < Duration::from_secs(4) {
            for place in ["link/secret", "inward/secret", "dir/../inward/secret"] {
                match roots.resolve(0, None, place) {
                    Ok(Resolved {
                        path: Some(path), ..
                    }) => {
                        let (bytes, _) = root.read(&path, 100).unwrap();
                        assert_eq!(bytes, b"public");
                        read += 1;
                    }
                    Err(ResolveError::Outside) => refused += 1,
                    other => panic!("{place}: {other:?}"),
                }
            }
        }
    });
    assert!(read > 0 && refused > 0, "{read} {refused}");
}

#[test]
fn lists_and_walks_in_the_order_of_bytes() {
    both_ways(|| {
        let temp = TempDir::new().unwrap();
        let longest = "x".repeat(255);
        let names = [
            "-rf",
            "a",
            "a-b",
            "a.b",
            "new\nline",
            "tab\t",
            "caf\u{e9}",
            "cafe\u{301}",
            &longest,
            " ",
        ];
        for name in names {
            if name == "a" {
                fs::create_dir_all(temp.path().join("a/empty")).unwrap();
                fs::write(temp.path().join("a/z"), "").unwrap();
            } else {
                fs::write(temp.path().join(name), "").unwrap();
            }
        }
        let root = Root::open(temp.path()).unwrap();
        let mut sorted = names;
        sorted.sort_unstable();
        let listed = root.list(None).unwrap();
        assert_eq!(
            listed,
            root.list(None).unwrap(),
            "a listing does not disturb the next"
        );
        let listed: Vec<_> = listed
            .into_iter()
            .map(|entry| entry.name.unwrap())
            .collect();
        assert_eq!(listed, sorted);

        let (mut files, mut empty) = (Vec::new(), Vec::new());
        root.walk(None, &mut |found| {
            match found {
                Found::Thing(thing) if thing.kind == Kind::File => files.push(thing.path),
                Found::Thing(_) => {}
                Found::EmptyDir(path) => empty.push(path),
                Found::Unusable { .. } => panic!("{found:?}"),
            }
            Walk::Enter
        })
        .unwrap();
        assert_eq!(files.len(), names.len());
        assert!(files.is_sorted(), "{files:?}");
        assert_eq!(empty, [path("a/empty")]);

        let mut skipped = Vec::new();
        root.walk(None, &mut |found| {
            if let Found::Thing(thing) = found {
                skipped.push(thing.path.as_str().to_owned());
            }
            Walk::Skip
        })
        .unwrap();
        assert!(
            skipped.iter().all(|path| !path.starts_with("a/")),
            "{skipped:?}"
        );
        let below = root.list(Some(&path("a"))).unwrap();
        assert_eq!(below.len(), 2);
    });
}

#[test]
fn reports_names_that_are_not_utf8() {
    let temp = TempDir::new().unwrap();
    let name = OsStr::from_bytes(b"latin\xe9");
    fs::create_dir(temp.path().join("d")).unwrap();
    if fs::create_dir(temp.path().join("d").join(name)).is_err() {
        eprintln!("skipped: this file system has no such names");
        return;
    }
    fs::write(temp.path().join("d").join(name).join("x"), "").unwrap();
    let root = Root::open(temp.path()).unwrap();
    let mut shown = Vec::new();
    root.walk(None, &mut |found| {
        if let Found::Unusable {
            shown: name,
            kind,
            why,
        } = found
        {
            shown.push((name, kind, why));
        }
        Walk::Enter
    })
    .unwrap();
    assert_eq!(shown, [("d/latin\u{fffd}".to_owned(), Kind::Dir, None)]);
    let entry = &root.list(Some(&path("d"))).unwrap()[0];
    assert_eq!(entry.name, Err("latin\u{fffd}".to_owned()));
}

/// Makes `depth` directories inside each other.
fn nest(at: &Path, depth: usize) {
    let mut dir = rustix::fs::open(at, open::DIR, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&dir, "d", Mode::from_raw_mode(0o755)).unwrap();
        dir = open::entry(dir.as_fd(), "d", open::DIR).unwrap();
    }
}

#[test]
fn five_thousand_levels_cost_neither_stack_nor_handles() {
    let temp = TempDir::new().unwrap();
    fs::create_dir(temp.path().join("deep")).unwrap();
    nest(&temp.path().join("deep"), 5000);
    // Handles are opened again on the way out.
    let top = temp.path().join("deep/d/d");
    fs::write(top.join("z"), "").unwrap();
    both_ways(|| {
        let root = Root::open(temp.path()).unwrap();
        let (mut dirs, mut files, mut unusable, mut handles) = (0, 0, Vec::new(), 0);
        root.walk(None, &mut |found| {
            match found {
                Found::Thing(thing) if thing.kind == Kind::Dir => dirs += 1,
                Found::Thing(thing) => {
                    assert_eq!(thing.stat().unwrap().0, Kind::File);
                    files += 1;
                }
                Found::Unusable { why, .. } => unusable.push(why),
                Found::EmptyDir(_) => panic!("the innermost directory can't be reached"),
            }
            if dirs % 500 == 0
                && let Ok(open) = fs::read_dir("/proc/self/fd")
            {
                handles = handles.max(open.count());
            }
            Walk::Enter
        })
        .unwrap();
        assert_eq!((dirs, files), (2047, 1));
        assert_eq!(unusable, [Some(TreePathError::Long)]);
        assert!(handles < 500, "{handles} handles");

        let deep = path(&format!("deep{}", "/d".repeat(2000)));
        assert_eq!(root.stat(&deep).unwrap().unwrap().0, Kind::Dir);
        assert_eq!(root.list(Some(&deep)).unwrap().len(), 1);
        // A target's prefix may make a path longer than what the kernel takes in one piece.
        let deeper = deep.join(&path(&format!("d{}", "/d".repeat(1999))));
        assert_eq!(root.stat(&deeper).unwrap().unwrap().0, Kind::Dir);
        assert_eq!(root.list(Some(&deeper)).unwrap().len(), 1);
    });
    remove_tree(&temp.path().join("deep")).unwrap();
    assert!(!temp.path().join("deep").exists());
}

/// A name that is not UTF-8 is shown as another thing may be called.
#[test]
fn a_listing_takes_no_thing_for_another() {
    let temp = TempDir::new().unwrap();
    let bad = OsStr::from_bytes(b"x\xff");
    for (number, first) in ["x\u{fffd}", "x"].iter().enumerate() {
        let dir = temp.path().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(first), "").unwrap();
        fs::write(dir.join(bad), "").unwrap();
        fs::write(dir.join("x\u{fffd}"), "").unwrap();
        fs::create_dir_all(dir.join("y\u{fffd}/in")).unwrap();
        fs::create_dir(dir.join(OsStr::from_bytes(b"y\xff"))).unwrap();
        let root = Root::open(&dir).unwrap();
        for answer in [Walk::Enter, Walk::Skip] {
            let met = |met: &mut Vec<String>, found: Found<'_>| {
                met.push(
                    format!("{found:?}")
                        .split("state")
                        .next()
                        .unwrap()
                        .to_owned(),
                );
                answer
            };
            let (mut walked, mut listed) = (Vec::new(), Vec::new());
            root.walk(None, &mut |found| met(&mut walked, found))
                .unwrap();
            let listing = Listing::of(&root, None);
            listing.walk(&mut |found| met(&mut listed, found)).unwrap();
            assert_eq!(listed, walked);
            assert!(walked.len() >= 4, "{walked:?}");
        }
    }
}
