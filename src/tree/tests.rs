//! Properties of trees, on paper and on the disk.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

/// Paths that meet often; names around the slash in the order of bytes, and awkward ones.
fn any_path() -> impl Strategy<Value = TreePath> {
    let names = [
        "a",
        "a",
        "a",
        "a-b",
        "a.b",
        "a!",
        "\u{1}",
        "b",
        "A",
        "caf\u{e9}",
        "cafe\u{301}",
        "n\nl",
        "-x",
    ];
    prop::collection::vec(prop::sample::select(names.to_vec()), 1..5)
        .prop_map(|names| path(&names.join("/")))
}

fn any_file() -> impl Strategy<Value = (TreePath, bool, Vec<u8>)> {
    (
        any_path(),
        any::<bool>(),
        prop::collection::vec(any::<u8>(), 0..9),
    )
}

fn mode(executable: bool) -> Mode {
    if executable {
        Mode::Executable
    } else {
        Mode::Regular
    }
}

/// The files that can be added one after the other.
fn build(files: &[(TreePath, bool, Vec<u8>)]) -> Tree {
    let mut builder = TreeBuilder::new();
    for (path, executable, bytes) in files {
        // Those that clash stay out.
        drop(builder.insert(
            path.clone(),
            mode(*executable),
            Content::bytes(bytes.clone()),
        ));
    }
    builder.finish()
}

fn on_disk(tree: &Tree) -> (TempDir, Arc<Root>) {
    let temp = TempDir::new().unwrap();
    let root = Arc::new(Root::open(temp.path()).unwrap());
    let written = materialise(tree, root.handle()).unwrap();
    assert_eq!(
        (written.files, written.bytes),
        (tree.len() as u64, tree.bytes())
    );
    (temp, root)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn finds_every_clash(paths in prop::collection::vec(any_path(), 1..12)) {
        let mut builder = TreeBuilder::new();
        let mut taken: Vec<TreePath> = Vec::new();
        for path in paths {
            let clashes = |other: &TreePath| other.starts_with(&path) || path.starts_with(other);
            match builder.insert(path.clone(), Mode::Regular, Content::bytes(*b"")) {
                Ok(()) => {
                    prop_assert!(!taken.iter().any(clashes), "{:?} in {:?}", path, taken);
                    taken.push(path);
                }
                Err(clash) => {
                    prop_assert!(taken.contains(&clash.at) && clashes(&clash.at));
                    prop_assert_eq!(clash.adding, path);
                }
            }
        }
        prop_assert_eq!(builder.finish().len(), taken.len());
    }

    #[test]
    fn is_a_set(files in prop::collection::vec(any_file(), 0..12), seed in any::<u64>()) {
        let tree = build(&files);
        let mut again: Vec<_> = tree
            .iter()
            .map(|(path, entry)| (path.clone(), entry.mode, entry.content.clone()))
            .collect();
        let turn = again.len().checked_rem(7).unwrap_or(0);
        again.rotate_left(turn);
        if seed % 2 == 0 {
            again.reverse();
        }
        let mut builder = TreeBuilder::new();
        for (path, mode, content) in again {
            builder.insert(path, mode, content).unwrap();
        }
        let again = builder.finish();
        prop_assert_eq!(again.id(), tree.id());
        prop_assert!(diff(&tree, &again).is_empty());
        prop_assert!(tree.iter().map(|(path, _)| path).is_sorted());
    }

    #[test]
    fn parts_are_what_their_names_say(files in prop::collection::vec(any_file(), 0..12)) {
        let tree = build(&files);
        let paths: Vec<_> = tree.iter().map(|(path, _)| path.clone()).collect();
        for top in ["a", "a/a", "a-b", "A", "none"] {
            let top = path(top);
            let below: Vec<_> = paths.iter().filter_map(|path| path.strip_prefix(&top)).collect();
            let part = tree.below(&top);
            prop_assert_eq!(part.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(), below);
            // Taken off and put on again.
            let mut builder = TreeBuilder::new();
            builder.graft(&top, &part).unwrap();
            let same = tree.filter(|path| path.strip_prefix(&top).is_some());
            prop_assert_eq!(builder.finish().id(), same.id());
        }
        for (path, entry) in tree.iter() {
            prop_assert_eq!(tree.get(path).unwrap().content.digest, entry.content.digest);
        }
        prop_assert!(tree.get(&path("none")).is_none());
    }

    #[test]
    fn differences_lead_from_one_to_the_other(
        a in prop::collection::vec(any_file(), 0..8),
        b in prop::collection::vec(any_file(), 0..8),
    ) {
        let (a, b) = (build(&a), build(&b));
        let found = diff(&a, &b);
        let mut patched: BTreeMap<_, _> = a.iter().map(|(p, e)| (p.clone(), e.clone())).collect();
        for gone in &found.removed {
            prop_assert!(patched.remove(gone).is_some());
        }
        for new in &found.added {
            prop_assert!(patched.insert(new.clone(), b.get(new).unwrap().clone()).is_none());
        }
        for changed in &found.changed {
            let entry = b.get(changed).unwrap().clone();
            let old = patched.insert(changed.clone(), entry.clone()).unwrap();
            prop_assert!(old.mode != entry.mode || old.content.digest != entry.content.digest);
        }
        let mut builder = TreeBuilder::new();
        for (path, entry) in patched {
            builder.insert(path, entry.mode, entry.content).unwrap();
        }
        prop_assert_eq!(builder.finish().id(), b.id());
        prop_assert_eq!(found.is_empty(), a.id() == b.id());
    }

    #[test]
    fn survives_the_disk(files in prop::collection::vec(any_file(), 0..12)) {
        let tree = build(&files);
        let (_temp, root) = on_disk(&tree);
        for keep in [0, 4, u64::MAX] {
            let read = Tree::from_dir(&root, None, keep).unwrap();
            prop_assert_eq!(read.id(), tree.id());
            for (_, entry) in read.iter() {
                let kept = matches!(entry.content.data, Data::Bytes(_));
                prop_assert_eq!(kept, entry.content.size <= keep);
            }
            // Also when the bytes are fetched from the first copy.
            let (_temp, root) = on_disk(&read);
            prop_assert_eq!(Tree::from_dir(&root, None, 0).unwrap().id(), tree.id());
        }
    }
}

#[test]
fn the_digest_is_the_documented_one() {
    let mut builder = TreeBuilder::new();
    builder
        .insert(path("b/run.sh"), Mode::Executable, Content::bytes(*b"hi\n"))
        .unwrap();
    builder
        .insert(path("a"), Mode::Regular, Content::bytes(*b""))
        .unwrap();
    let tree = builder.finish();
    let lines = "a\0-\0e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n\
        b/run.sh\0x\098ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4\n";
    assert_eq!(tree.id().0, Digest::of(lines.as_bytes()));
    assert_eq!(Tree::default().id().0, Digest::of(b""));
}

#[test]
fn reads_no_directory_that_is_no_tree() {
    let temp = TempDir::new().unwrap();
    let at = temp.path();
    fs::create_dir_all(at.join("d/empty")).unwrap();
    fs::write(at.join("d/file"), "x").unwrap();
    let root = Arc::new(Root::open(at).unwrap());
    let tree = Tree::from_dir(&root, Some(&path("d")), 0).unwrap();
    assert_eq!(
        tree.iter()
            .map(|(path, _)| path.as_str())
            .collect::<Vec<_>>(),
        ["file"]
    );

    symlink("file", at.join("d/link")).unwrap();
    symlink("../..", at.join("d/up")).unwrap();
    let kind = rustix::fs::FileType::Fifo;
    let permissions = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(root.handle(), "d/fifo", kind, permissions, 0).unwrap();
    let bad = Tree::from_dir(&root, Some(&path("d")), 0).unwrap_err();
    assert_eq!(
        bad.iter().map(|bad| bad.shown.as_str()).collect::<Vec<_>>(),
        ["d/fifo", "d/link", "d/up"]
    );
    assert!(Tree::from_dir(&root, Some(&path("none")), 0).is_err());
}

#[test]
fn only_the_owners_executable_bit_counts() {
    let temp = TempDir::new().unwrap();
    let root = Arc::new(Root::open(temp.path()).unwrap());
    for (bits, expected) in [
        (0o644, Mode::Regular),
        (0o666, Mode::Regular),
        (0o655, Mode::Regular),
        (0o4755, Mode::Executable),
        (0o500, Mode::Executable),
    ] {
        let at = temp.path().join("f");
        fs::write(&at, "").unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(bits)).unwrap();
        let (mode, _) = Content::from_file(&root, &path("f"), 9).unwrap();
        assert_eq!(mode, expected, "{bits:o}");
        fs::remove_file(&at).unwrap();
    }
}

/// Runs itself again where almost nothing may be opened and the umask takes everything from
/// others: neither may show in the result.
#[test]
fn modes_and_depth_do_not_depend_on_the_process() {
    const INSIDE: &str = "CASEPACK_TEST_CONSTRAINED";
    if std::env::var_os(INSIDE).is_none() {
        let status = Command::new("sh")
            .args(["-c", "umask 077 && ulimit -n 60 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--quiet", "--test-threads=1"])
            .arg("tree::tests::modes_and_depth_do_not_depend_on_the_process")
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&status.stdout);
        assert!(
            status.status.success() && told.contains("1 passed"),
            "{told}"
        );
        return;
    }
    let mut builder = TreeBuilder::new();
    for depth in [1, 2, 40, 41, 500, 2000] {
        for (name, mode) in [("r", Mode::Regular), ("x", Mode::Executable)] {
            let at = path(&format!("{}{name}{depth}", "d/".repeat(depth)));
            builder
                .insert(at, mode, Content::bytes(format!("{depth}").into_bytes()))
                .unwrap();
        }
    }
    let tree = builder.finish();
    let temp = TempDir::new().unwrap();
    let staged = crate::fs::StagedDir::new(temp.path()).unwrap();
    materialise(&tree, staged.handle()).unwrap();
    let out = temp.path().join("out");
    staged.commit(&out).unwrap();
    let bits = |at: &str| fs::metadata(out.join(at)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(bits(""), 0o755);
    for (at, expected) in [
        ("d", 0o755),
        ("d/d", 0o755),
        ("d/r1", 0o644),
        ("d/d/x2", 0o755),
        ("d/x1", 0o755),
    ] {
        assert_eq!(bits(at), expected, "{at}");
    }
    let root = Arc::new(Root::open(&out).unwrap());
    assert_eq!(Tree::from_dir(&root, None, 0).unwrap().id(), tree.id());
    crate::fs::remove_tree(&out).unwrap();
    assert!(!out.exists());
}
