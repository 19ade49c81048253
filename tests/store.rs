//! What every store promises, asked of every store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;

use casepack::digest::Digest;
use casepack::path::TreePath;
use casepack::store::{
    Body, Conditions, Directory, Entry, Etag, Expected, Memory, Object, Reason, Store, StoreError,
    Swap, for_each,
};

fn key(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

fn put(store: &dyn Store, at: &str, bytes: &[u8]) -> Etag {
    store
        .put(&key(at), Body::Bytes(bytes), &Digest::of(bytes))
        .unwrap()
}

fn get(store: &dyn Store, at: &str) -> Object {
    store.get(&key(at), 1 << 20).unwrap()
}

fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    let entries = store.entries(prefix, 10_000).unwrap();
    let key = |entry: Entry| entry.key.as_str().to_owned();
    entries.into_iter().map(key).collect()
}

#[track_caller]
fn assert_reason<T: std::fmt::Debug>(
    result: Result<T, StoreError>,
    expected: impl Fn(&Reason) -> bool,
) {
    let error = result.unwrap_err();
    assert!(expected(&error.reason), "{error:?}");
    assert!(!error.help().is_empty());
}

/// Everything that a store promises. It must be empty, and is again afterwards.
fn conforms(store: &dyn Store) {
    reads_what_was_written(store);
    refuses_what_is_not_as_it_should_be(store);
    lists(store);
    takes_files(store);
    writes_at_once(store);
    for at in keys(store, "") {
        store.delete(&key(&at)).unwrap();
    }
    assert_eq!(keys(store, ""), [""; 0]);
}

/// What a store promises that honours conditions.
fn conforms_with_conditions(store: &dyn Store) {
    let layout = put(store, "oci-layout", b"{}");
    assert_eq!(
        store.probe_conditions(&key("oci-layout"), b"{}").unwrap(),
        Conditions::Honoured
    );
    assert_eq!(get(store, "oci-layout").etag, layout);
    let at = key("refs/one.json");
    let swap = |bytes: &[u8], expected| store.put_if(&at, bytes, expected).unwrap();
    let Swap::Done(first) = swap(b"first", Expected::Absent) else {
        panic!("nothing was there");
    };
    let lost = Swap::Lost {
        now: Some(Object {
            bytes: b"first".to_vec(),
            etag: first.clone(),
        }),
    };
    assert_eq!(swap(b"second", Expected::Absent), lost);
    // A write whose answer got lost, tried again.
    assert_eq!(swap(b"first", Expected::Absent), Swap::Done(first.clone()));
    let Swap::Done(second) = swap(b"2nd", Expected::At(&first)) else {
        panic!("nobody else wrote");
    };
    assert_ne!(first, second);
    assert!(matches!(
        swap(b"third", Expected::At(&first)),
        Swap::Lost { now: Some(_) }
    ));
    assert_eq!(get(store, "refs/one.json").bytes, b"2nd");
    assert_eq!(get(store, "refs/one.json").etag, second);
    store.delete(&at).unwrap();
    let gone = swap(b"third", Expected::At(&second));
    assert_eq!(gone, Swap::Lost { now: None });
    assert_eq!(keys(store, ""), ["oci-layout"]);
    store.delete(&key("oci-layout")).unwrap();
}

fn reads_what_was_written(store: &dyn Store) {
    let names = [
        "empty",
        "blobs/sha256/ab",
        "blobs/sha256/abc",
        "a b+c%20d&e=f/#?.txt",
        "ключ/鍵/e\u{301}",
        "-dash/.hidden/..x",
        "back\\slash",
    ];
    for (at, name) in names.iter().enumerate() {
        let bytes: Vec<u8> = (0..=255).cycle().take(at * 1000).collect();
        let etag = put(store, name, &bytes);
        assert_eq!(get(store, name), Object { bytes, etag }, "{name}");
    }
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    assert_eq!(keys(store, ""), sorted);

    let before = get(store, "blobs/sha256/ab").etag;
    let after = put(store, "blobs/sha256/ab", b"0123456789");
    assert_ne!(before, after);
    let range = |start, size| store.get_range(&key("blobs/sha256/ab"), start, size);
    assert_eq!(range(0, 10).unwrap(), b"0123456789");
    assert_eq!(range(3, 4).unwrap(), b"3456");
    assert_eq!(range(9, 1).unwrap(), b"9");
    assert_eq!(range(4, 0).unwrap(), b"");
    for (start, size) in [(9, 2), (10, 1), (11, 1), (u64::MAX, 1), (1 << 62, 1 << 20)] {
        assert_reason(range(start, size), |r| matches!(r, Reason::Short { .. }));
    }

    store.delete(&key("blobs/sha256/ab")).unwrap();
    store.delete(&key("blobs/sha256/ab")).unwrap();
    store.delete(&key("never/there")).unwrap();
    let missing = store.get(&key("blobs/sha256/ab"), 10);
    assert!(missing.as_ref().unwrap_err().is_not_found());
    let message = missing.unwrap_err().to_string();
    assert!(message.contains("blobs/sha256/ab"), "{message}");
    assert_reason(range(0, 1), |r| matches!(r, Reason::NotFound));
    assert_eq!(get(store, "blobs/sha256/abc").bytes.len(), 2000);
}

fn refuses_what_is_not_as_it_should_be(store: &dyn Store) {
    put(store, "kept", b"as it was");
    let wrong = store.put(&key("kept"), Body::Bytes(b"damaged"), &Digest::of(b"other"));
    assert_reason(wrong, |r| matches!(r, Reason::Damaged { .. }));
    assert_eq!(get(store, "kept").bytes, b"as it was");
    assert_eq!(store.get(&key("kept"), 9).unwrap().bytes, b"as it was");
    assert_reason(store.get(&key("kept"), 8), |r| {
        matches!(r, Reason::TooLarge { limit: 8 })
    });
    assert_reason(store.entries("", 3).map(drop), |r| {
        matches!(r, Reason::TooMany { limit: 3 })
    });
    store.delete(&key("kept")).unwrap();
}

fn lists(store: &dyn Store) {
    put(store, "refs/a.json", b"1");
    put(store, "refs/b/c.json", b"22");
    put(store, "refs-old/x", b"333");
    assert_eq!(keys(store, "refs/"), ["refs/a.json", "refs/b/c.json"]);
    assert_eq!(
        keys(store, "refs"),
        ["refs-old/x", "refs/a.json", "refs/b/c.json"]
    );
    assert_eq!(keys(store, "refs/b"), ["refs/b/c.json"]);
    assert_eq!(keys(store, "refs/a.json"), ["refs/a.json"]);
    for none in ["refs/c", "absent/", "../", "/", "refs//"] {
        assert_eq!(keys(store, none), [""; 0], "{none}");
    }
    let entries = store.entries("refs/", 10).unwrap();
    assert_eq!(entries.iter().map(|e| e.size).collect::<Vec<_>>(), [1, 2]);
    for entry in &entries {
        assert_eq!(
            entry.etag,
            get(store, entry.key.as_str()).etag,
            "{}",
            entry.key
        );
    }
    let mut seen = 0;
    store
        .list("refs", &mut |_| {
            seen += 1;
            if seen == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
    assert_eq!(seen, 2);
    for at in keys(store, "refs") {
        store.delete(&key(&at)).unwrap();
    }
}

fn takes_files(store: &dyn Store) {
    let temp = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0_u32..300_000).flat_map(u32::to_le_bytes).collect();
    fs::write(temp.path(), &bytes).unwrap();
    let file = File::open(temp.path()).unwrap();
    let part = &bytes[1000..1_000_000];
    let body = |offset, size| Body::File {
        file: &file,
        offset,
        size,
    };
    let at = key("from/file");
    store
        .put(&at, body(1000, 999_000), &Digest::of(part))
        .unwrap();
    assert_eq!(get(store, "from/file").bytes, part);
    // A file that was cut while it was published.
    let cut = store.put(&at, body(1000, 1_200_000), &Digest::of(part));
    assert_reason(cut, |r| matches!(r, Reason::Source(_)));
    assert_eq!(get(store, "from/file").bytes, part);
    store.put(&at, body(7, 0), &Digest::of(b"")).unwrap();
    assert_eq!(get(store, "from/file").bytes, b"");
}

fn writes_at_once(store: &dyn Store) {
    let before = store.traffic();
    let name = |at: usize| format!("many/{at:03}");
    let write = |at: usize| {
        let bytes = at.to_string().repeat(100);
        let put = store.put(
            &key(&name(at)),
            Body::Bytes(bytes.as_bytes()),
            &Digest::of(bytes.as_bytes()),
        );
        put.map(drop)
    };
    for_each(0..100, 16, write).unwrap();
    let written = store.traffic();
    assert_eq!(written.objects_written - before.objects_written, 100);
    assert_eq!(written.bytes_written - before.bytes_written, 19_000);
    let listed: BTreeMap<_, _> = store
        .entries("many/", 1000)
        .unwrap()
        .into_iter()
        .map(|entry| (entry.key.as_str().to_owned(), entry.size))
        .collect();
    let expected = (0..100).map(|at| (name(at), at.to_string().len() as u64 * 100));
    assert_eq!(listed, expected.collect());
    for_each(0..100, 16, |at| {
        let object = store.get(&key(&name(at)), 1000)?;
        assert_eq!(object.bytes, at.to_string().repeat(100).as_bytes());
        Ok::<_, StoreError>(())
    })
    .unwrap();
    let read = store.traffic();
    assert_eq!(read.objects_read - written.objects_read, 100);
    assert_eq!(read.bytes_read - written.bytes_read, 19_000);
    assert!(read.requests >= before.requests + 201);
    for_each(0..100, 16, |at| store.delete(&key(&name(at)))).unwrap();
}

/// Everybody adds a line of their own to one object until it is there; none gets lost.
fn moves_in_turn(store: &(dyn Store + '_)) {
    let at = key("refs/shared.json");
    for_each(0..8, 8, |writer| {
        for line in 0..5 {
            loop {
                let (text, expected) = match store.get(&at, 1 << 20) {
                    Ok(now) => (now.bytes, Some(now.etag)),
                    Err(error) if error.is_not_found() => (Vec::new(), None),
                    Err(error) => return Err(error),
                };
                let text = [&*text, format!("{writer}-{line};").as_bytes()].concat();
                let expected = expected.as_ref().map_or(Expected::Absent, Expected::At);
                if let Swap::Done(_) = store.put_if(&at, &text, expected)? {
                    break;
                }
            }
        }
        Ok(())
    })
    .unwrap();
    let text = get(store, "refs/shared.json").bytes;
    let mut lines: Vec<_> = text.split_inclusive(|&b| b == b';').collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 40);
    store.delete(&at).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn memory_conforms() {
    let store = Memory::new();
    conforms(&store);
    conforms_with_conditions(&store);
    moves_in_turn(&store);
    store.set_clock(1_700_000_000);
    put(&store, "timed", b"");
    assert_eq!(
        (&store as &dyn Store).entries("", 1).unwrap()[0].modified,
        1_700_000_000
    );
}

#[test]
fn a_directory_conforms() {
    let temp = tempfile::tempdir().unwrap();
    let store = Directory::create(&temp.path().join("new/store")).unwrap();
    conforms(&store);
    conforms_with_conditions(&store);
    moves_in_turn(&store);
    let missing = Directory::open(&temp.path().join("none"));
    assert_reason(missing, |r| matches!(r, Reason::NoDirectory));
}

/// Nobody else writes: whoever expects an older state has lost, however fast the writes follow.
#[test]
fn a_directory_tells_states_apart() {
    let temp = tempfile::tempdir().unwrap();
    let store = Directory::open(temp.path()).unwrap();
    let mut seen = BTreeSet::new();
    for (round, bytes) in [b"0", b"1"].into_iter().cycle().take(500).enumerate() {
        assert!(seen.insert(put(&store, "ref", bytes)), "{round}");
    }
    let after = |entry: &Etag| {
        store
            .put_if(&key("ref"), b"x", Expected::At(entry))
            .unwrap()
    };
    let last = get(&store, "ref").etag;
    for etag in &seen {
        assert_eq!(
            matches!(after(etag), Swap::Done(_)),
            *etag == last,
            "{etag:?}"
        );
        if *etag == last {
            break;
        }
    }
}

#[test]
fn a_directory_keeps_to_itself() {
    let temp = tempfile::tempdir().unwrap();
    let away = temp.path().join("away");
    fs::create_dir(&away).unwrap();
    fs::write(away.join("secret"), "secret").unwrap();
    let root = temp.path().join("store");
    let store = Directory::create(&root).unwrap();
    put(&store, "blobs/one", b"1");
    symlink(&away, root.join("dir")).unwrap();
    symlink(away.join("secret"), root.join("blobs/link")).unwrap();
    symlink(away.join("new"), root.join("blobs/dangling")).unwrap();
    for at in ["dir/secret", "blobs/link"] {
        assert_reason(store.get(&key(at), 100), |r| matches!(r, Reason::Read(_)));
        assert_reason(store.get_range(&key(at), 0, 1), |r| {
            matches!(r, Reason::Read(_))
        });
    }
    assert_eq!(keys(&store, ""), ["blobs/one"]);
    // A link in the place of an object is replaced, not followed; one on the way is not passed.
    put(&store, "blobs/link", b"mine");
    put(&store, "blobs/dangling", b"mine");
    assert_eq!(get(&store, "blobs/link").bytes, b"mine");
    for at in ["dir/secret", "dir/new", "dir/sub/new"] {
        let put = store.put(&key(at), Body::Bytes(b"x"), &Digest::of(b"x"));
        assert_reason(put, |r| matches!(r, Reason::Io(_)));
        let swap = store.put_if(&key(at), b"x", Expected::Absent);
        assert_reason(swap, |r| matches!(r, Reason::Io(_) | Reason::Read(_)));
    }
    store.delete(&key("dir/secret")).unwrap_err();
    assert_eq!(fs::read_to_string(away.join("secret")).unwrap(), "secret");
    assert_eq!(names(&away), ["secret"]);
}

#[test]
fn a_directory_hides_and_sweeps_what_is_unfinished() {
    let temp = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    fs::create_dir(temp.path().join("blobs")).unwrap();
    let left = temp.path().join(format!("blobs/.casepack-{dead}-0"));
    fs::write(&left, "half").unwrap();
    let store = Directory::open(temp.path()).unwrap();
    assert_eq!(keys(&store, ""), [""; 0]);
    let reserved = format!(".casepack-{dead}-1/x");
    let refused = store.put(&key(&reserved), Body::Bytes(b""), &Digest::of(b""));
    assert_reason(refused, |r| matches!(r, Reason::ReservedKey));
    put(&store, "blobs/one", b"1");
    assert_eq!(names(&temp.path().join("blobs")), ["one"]);
    // A failed write leaves nothing.
    let wrong = store.put(&key("blobs/two"), Body::Bytes(b"2"), &Digest::of(b""));
    assert_reason(wrong, |r| matches!(r, Reason::Damaged { .. }));
    assert_eq!(names(&temp.path().join("blobs")), ["one"]);
}
