//! What every store promises, asked of every store.

mod ways_in;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use casepack::digest::Digest;
use casepack::path::TreePath;
use casepack::store::{
    Access, AccessKeys, Body, Conditions, Directory, Entry, Etag, Expected, Memory, Object,
    Purpose, Reason, S3, S3Settings, Store, StoreError, Swap, for_each, open as open_url,
};

use crate::support::{BUCKET, Fault, Proxy, Request, S3Server, Way, http, serve};

pub(crate) fn key(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

pub(crate) fn put(store: &dyn Store, at: &str, bytes: &[u8]) -> Etag {
    store
        .put(&key(at), Body::Bytes(bytes), &Digest::of(bytes))
        .unwrap()
}

pub(crate) fn get(store: &dyn Store, at: &str) -> Object {
    store.get(&key(at), 1 << 20).unwrap()
}

pub(crate) fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    let entries = store.entries(prefix, 10_000).unwrap();
    let key = |entry: Entry| entry.key.as_str().to_owned();
    entries.into_iter().map(key).collect()
}

#[track_caller]
pub(crate) fn assert_reason<T: std::fmt::Debug>(
    result: Result<T, StoreError>,
    expected: impl Fn(&Reason) -> bool,
) {
    let error = result.unwrap_err();
    assert!(expected(&error.reason), "{error:?}");
    assert!(!error.help().is_empty());
}

/// Everything that a store promises. It must be empty, and is again afterwards.
pub(crate) fn conforms(store: &dyn Store) {
    refuses_what_is_damaged(store);
    conforms_but_for_damage(store);
}

fn conforms_but_for_damage(store: &dyn Store) {
    reads_what_was_written(store);
    refuses_what_is_too_much(store);
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
    assert_eq!(range(0, 10).unwrap(), &b"0123456789"[..]);
    assert_eq!(range(3, 4).unwrap(), &b"3456"[..]);
    assert_eq!(range(9, 1).unwrap(), &b"9"[..]);
    assert_eq!(range(4, 0).unwrap(), &b""[..]);
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

fn refuses_what_is_damaged(store: &dyn Store) {
    put(store, "kept", b"as it was");
    let wrong = store.put(&key("kept"), Body::Bytes(b"damaged"), &Digest::of(b"other"));
    assert_reason(wrong, is_damage);
    assert_eq!(get(store, "kept").bytes, b"as it was");
    store.delete(&key("kept")).unwrap();
}

fn is_damage(reason: &Reason) -> bool {
    matches!(reason, Reason::Damaged { .. } | Reason::DamagedOnTheWay(_))
}

fn refuses_what_is_too_much(store: &dyn Store) {
    put(store, "kept", b"as it was");
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
        if let Some(etag) = &entry.etag {
            assert_eq!(*etag, get(store, entry.key.as_str()).etag, "{}", entry.key);
        }
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

/// What is empty may be taken for something: plain layouts have a directory for each case.
#[test]
fn a_directory_leaves_no_empty_ones() {
    let temp = tempfile::tempdir().unwrap();
    let store = Directory::open(temp.path()).unwrap();
    put(&store, "cases/a/deep/x", b"1");
    put(&store, "cases/b", b"2");
    store.delete(&key("cases/a/deep/x")).unwrap();
    assert_eq!(names(&temp.path().join("cases")), ["b"]);
    // Objects that come and go do not stand in each other's way.
    for_each(0..8, 8, |writer| {
        for _ in 0..200 {
            let at = format!("shared/dir/{}", writer % 4);
            put(&store, &at, &[writer]);
            (&store as &dyn Store).entries("", 100)?;
            store.delete(&key(&at))?;
        }
        Ok::<_, StoreError>(())
    })
    .unwrap();
    assert_eq!(names(temp.path()), ["cases"]);
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

/// Below a prefix of the server's bucket; not patient, since nobody waits for a test.
fn open(server: &S3Server) -> S3 {
    open_at(server, server.endpoint())
}

fn open_at(server: &S3Server, endpoint: &str) -> S3 {
    let settings = S3Settings {
        endpoint: Some(endpoint.to_owned()),
        timeout: Duration::from_secs(2),
        patience: Duration::from_secs(20),
        ..server.settings()
    };
    S3::open(BUCKET, Some(&key("some/prefix")), &settings).unwrap()
}

#[test]
fn s3_conforms() {
    let server = S3Server::start();
    let store = open(&server);
    conforms_but_for_damage(&store);
    conforms_with_conditions(&store);
    // This server says so, and keeps them all the same.
    let wrong = store.put(&key("x"), Body::Bytes(b"damaged"), &Digest::of(b"other"));
    assert_reason(wrong, is_damage);
    let requests = server.take_requests();
    let elsewhere =
        |request: &&Request| !request.key.is_empty() && !request.key.starts_with("some/prefix/");
    assert_eq!(requests.iter().find(elsewhere), None);
}

#[test]
fn urls_open_stores() {
    let server = S3Server::start();
    let temp = tempfile::tempdir().unwrap();
    let directory = format!("file://{}/new", temp.path().display());
    let open = |url: &str, purpose| open_url(&url.parse().unwrap(), &server.settings(), purpose);
    let missing = open(&directory, Purpose::Read).map(drop);
    assert_reason(missing, |r| matches!(r, Reason::NoDirectory));
    for url in [&directory, "s3://bucket/a/prefix"] {
        put(&*open(url, Purpose::Write).unwrap(), "there", b"1");
        assert_eq!(
            get(&*open(url, Purpose::Read).unwrap(), "there").bytes,
            b"1"
        );
    }
    assert!(temp.path().join("new/there").exists());
    assert!(server.files().join("a/prefix/there").exists());
}

/// Bodies are not part of the signature there, and their progress is watched.
#[test]
fn s3_speaks_https_with_an_authority_of_its_own() {
    let Some((server, authority)) = S3Server::start_tls() else {
        println!("s3_speaks_https…: skipped: it needs openssl");
        return;
    };
    let with = |ca_bundle| {
        let settings = S3Settings {
            ca_bundle,
            timeout: Duration::from_secs(10),
            ..server.settings()
        };
        S3::open(BUCKET, None, &settings).unwrap()
    };
    assert_reason(with(None).get(&key("x"), 10), |r| {
        matches!(r, Reason::Untrusted(_))
    });
    let store = with(Some(authority.path().to_owned()));
    conforms_but_for_damage(&store);
    let wrong = store.put(&key("x"), Body::Bytes(b"damaged"), &Digest::of(b"other"));
    assert_reason(wrong, is_damage);
    let content: Vec<u8> = (0..=255).cycle().take(20 << 20).collect();
    store
        .put(&key("large"), Body::Bytes(&content), &Digest::of(&content))
        .unwrap();
    assert!(store.get(&key("large"), 1 << 25).unwrap().bytes == content);
}

#[test]
fn s3_shows_where_and_hides_who() {
    let server = S3Server::start();
    let store = open(&server);
    let shown = store.show("refs/x.json");
    let expected = format!(
        "s3://{BUCKET}/some/prefix/refs/x.json (at {})",
        server.endpoint()
    );
    assert_eq!(shown, expected);
    let (id, secret) = match server.settings().access {
        Access::Keys(AccessKeys { id, secret, .. }) => (id, secret),
        access => panic!("{access:?}"),
    };
    put(&store, "x", b"");
    let debug = format!("{store:?} {:?} {store:#?}", server.settings());
    assert!(!debug.contains(&id) && !debug.contains(&secret), "{debug}");
}

#[test]
fn s3_asks_no_more_than_it_must() {
    let server = S3Server::start();
    let store = open(&server);
    put(&store, "a", b"0123456789");
    store.get_range(&key("a"), 2, 3).unwrap();
    store.get(&key("a"), 10).unwrap();
    let request = |method: &str, key: &str, range: Option<&str>, sent, received, status| Request {
        method: method.to_owned(),
        key: key.to_owned(),
        query: String::new(),
        range: range.map(str::to_owned),
        host: Some(server.endpoint().replace("http://", "")),
        signed: true,
        sent,
        received,
        status,
    };
    let mut requests = server.take_requests();
    for request in &mut requests {
        // What the SDK calls its operation.
        request.query.clear();
    }
    let expected = [
        request("PUT", "some/prefix/a", None, 10, 0, 200),
        request("GET", "some/prefix/a", Some("bytes=2-4"), 0, 3, 206),
        request("GET", "some/prefix/a", None, 0, 10, 200),
    ];
    assert_eq!(requests, expected);
    assert_eq!(store.traffic().requests, 3);

    let many = server.files().join("some/prefix/many");
    fs::create_dir(&many).unwrap();
    for at in 0..2500 {
        fs::write(many.join(format!("{at:04}")), "x").unwrap();
    }
    assert_eq!(keys(&store, "many/").len(), 2500);
    assert_eq!(server.take_requests().len(), 3);
    let traffic = store.traffic();
    assert_eq!((traffic.requests, traffic.retries), (6, 0));
}

#[test]
fn s3_sends_large_objects_in_parts() {
    const SIZE: usize = 17 << 20;
    let server = S3Server::start();
    let store = open(&server);
    let mut bytes: Vec<u8> = (0..=250).cycle().take(SIZE).collect();
    bytes[9 << 20] = 255;
    let digest = Digest::of(&bytes);
    let mut temp = tempfile::tempfile().unwrap();
    temp.write_all(b"before").unwrap();
    temp.write_all(&bytes).unwrap();
    let from_file = Body::File {
        file: &temp,
        offset: 6,
        size: SIZE as u64,
    };
    for (at, body) in [("bytes", Body::Bytes(&bytes)), ("file", from_file)] {
        let etag = store.put(&key(at), body, &digest).unwrap();
        let requests = server.take_requests();
        let mut sent: Vec<_> = requests
            .iter()
            .map(|r| (r.method.as_str(), r.sent))
            .collect();
        sent.sort_unstable();
        let [
            ("POST", _),
            ("POST", _),
            ("PUT", 1_048_576),
            ("PUT", 8_388_608),
            ("PUT", 8_388_608),
        ] = sent[..]
        else {
            panic!("{sent:?}");
        };
        let object = store.get(&key(at), SIZE as u64).unwrap();
        assert!(object.bytes == bytes);
        assert_eq!(object.etag, etag);
        server.take_requests();
    }
    assert_eq!(store.traffic().bytes_written, 2 * SIZE as u64);
    let wrong = store.put(&key("wrong"), from_file, &Digest::of(b""));
    assert_reason(wrong, |r| matches!(r, Reason::Damaged { .. }));
    let requests = server.take_requests();
    assert_eq!(requests.last().map(|r| r.method.as_str()), Some("DELETE"));
    assert_eq!(keys(&store, ""), ["bytes", "file"]);
}

#[test]
fn s3_has_few_bytes_in_hand_however_much_is_sent() {
    const SIZE: u64 = 17 << 20;
    let server = S3Server::start();
    let store = open(&server);
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let digest = Digest::of(&vec![0; 17 << 20]);
    for_each(0..4, 4, |at| {
        let body = Body::File {
            file: &file,
            offset: 0,
            size: SIZE,
        };
        let put = store.put(&key(&format!("large-{at}")), body, &digest);
        put.map(drop)
    })
    .unwrap();
    // Four objects, of each of which four parts might be under way.
    let most = server.most_bytes_at_once();
    assert!((8 << 20..=32 << 20).contains(&most), "{most}");
}

#[test]
fn s3_tells_what_is_wrong() {
    let server = S3Server::start();
    let keys = |id: &str, secret: &str| {
        Access::Keys(AccessKeys {
            id: id.to_owned(),
            secret: secret.to_owned(),
            session: None,
        })
    };
    let ask = |bucket: &str, settings: S3Settings| {
        let settings = S3Settings {
            timeout: Duration::from_secs(2),
            ..settings
        };
        S3::open(bucket, None, &settings)?.get(&key("x"), 10)
    };
    let settings = || server.settings();
    let access = |access| S3Settings {
        access,
        ..settings()
    };
    assert_reason(ask(BUCKET, settings()), |r| matches!(r, Reason::NotFound));
    let other = S3::open("other-bucket", None, &settings()).unwrap();
    assert_reason((&other as &dyn Store).entries("", 10), |r| {
        matches!(r, Reason::NoBucket(_))
    });
    assert_reason(ask(BUCKET, access(keys("AKTEST", "no"))), |r| {
        matches!(r, Reason::BadCredentials(_))
    });
    assert_reason(ask(BUCKET, access(keys("NOBODY", "no"))), |r| {
        matches!(r, Reason::BadCredentials(_))
    });
    assert_reason(ask(BUCKET, access(Access::Anonymous)), |r| {
        matches!(r, Reason::Denied(_))
    });

    let endpoint = |endpoint: &str| S3Settings {
        endpoint: Some(endpoint.to_owned()),
        ..settings()
    };
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let closed = ask(BUCKET, endpoint(&format!("http://{free}")));
    assert_reason(closed, |r| matches!(r, Reason::Unreachable(_)));
    // TLS, with a server that has none.
    let plain = server.endpoint().replace("http://", "https://");
    assert_reason(ask(BUCKET, endpoint(&plain)), |r| {
        matches!(r, Reason::NotS3(_))
    });
    let nowhere = ask(BUCKET, endpoint("http://no-such-host.invalid"));
    assert_reason(nowhere, |r| matches!(r, Reason::Unreachable(_)));
    for text in [
        "s3.example:3900",
        "ftp://x",
        "http://",
        "http://user@host",
        "http://a b",
    ] {
        assert_reason(ask(BUCKET, endpoint(text)), |r| {
            matches!(r, Reason::Settings(_))
        });
    }
    let temp = tempfile::tempdir().unwrap();
    let bundle = temp.path().join("ca.pem");
    let ca = || S3Settings {
        ca_bundle: Some(bundle.clone()),
        ..settings()
    };
    assert_reason(ask(BUCKET, ca()), |r| matches!(r, Reason::Settings(_)));
    for text in [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        fs::write(&bundle, text).unwrap();
        assert_reason(ask(BUCKET, ca()), |r| matches!(r, Reason::Settings(_)));
    }
    let long = TreePath::new(&vec!["x".repeat(250); 5].join("/")).unwrap();
    assert_reason(open(&server).get(&long, 1), |r| {
        matches!(r, Reason::LongKey(_))
    });
}

/// A server that has one answer to everything.
fn canned(status: &str, head: &str, body: &str) -> String {
    let answer = http(status, head, body);
    serve(move |_, _| answer.clone())
}

#[test]
fn s3_understands_what_servers_answer() {
    let server = S3Server::start();
    let error = |code: &str, more: &str| {
        format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>told by the server</Message>{more}</Error>"
        )
    };
    let ask = |status: &str, head: &str, body: &str| {
        let settings = S3Settings {
            endpoint: Some(canned(status, head, body)),
            patience: Duration::from_secs(1),
            ..server.settings()
        };
        let store = S3::open(BUCKET, None, &settings).unwrap();
        let error = store.get(&key("x"), 10).unwrap_err();
        let text = format!("{error}: {}", error.reason);
        assert!(
            text.contains("s3://bucket/x (at http://127.0.0.1:"),
            "{text}"
        );
        error
    };
    let told =
        |status: &str, head: &str, code: &str, more: &str| ask(status, head, &error(code, more));
    let region = |error: &StoreError, expected: Option<&str>| {
        let Reason::WrongRegion {
            expected: found, ..
        } = &*error.reason
        else {
            panic!("{error:?}")
        };
        assert_eq!(found.as_deref(), expected);
        if let Some(expected) = expected {
            assert!(
                error.help().contains(&format!("AWS_REGION={expected}")),
                "{}",
                error.help()
            );
        }
    };
    region(
        &told(
            "400 Bad Request",
            "",
            "AuthorizationHeaderMalformed",
            "<Region>garage</Region>",
        ),
        Some("garage"),
    );
    region(
        &told(
            "301 Moved",
            "x-amz-bucket-region: eu-west-1\r\n",
            "PermanentRedirect",
            "",
        ),
        Some("eu-west-1"),
    );
    region(
        &told("400 Bad Request", "", "AuthorizationHeaderMalformed", ""),
        None,
    );
    let skew = told("403 Forbidden", "", "RequestTimeTooSkewed", "");
    assert!(matches!(*skew.reason, Reason::ClockSkew(_)), "{skew:?}");
    let denied = told("403 Forbidden", "", "AccessDenied", "");
    assert!(matches!(*denied.reason, Reason::Denied(_)), "{denied:?}");
    assert!(
        denied
            .reason
            .to_string()
            .contains("403 AccessDenied (told by the server)"),
        "{}",
        denied.reason
    );
    // Garage tells by its words alone that a key or its secret is wrong.
    for said in [
        "Forbidden: Invalid signature",
        "Forbidden: No such key: GK1",
    ] {
        let body = error("AccessDenied", "").replace("told by the server", said);
        let wrong = ask("403 Forbidden", "", &body);
        assert!(
            matches!(*wrong.reason, Reason::BadCredentials(_)),
            "{wrong:?}"
        );
    }
    let expired = told("400 Bad Request", "", "ExpiredToken", "");
    assert!(
        matches!(*expired.reason, Reason::BadCredentials(_)),
        "{expired:?}"
    );
    for (status, code) in [
        ("503 Slow Down", "SlowDown"),
        ("500 Oh", "InternalError"),
        ("429 Much", "TooManyRequests"),
    ] {
        let busy = told(status, "", code, "");
        assert!(matches!(*busy.reason, Reason::Unavailable(_)), "{busy:?}");
    }
    for (status, body) in [
        ("404 Not Found", "<html>nginx</html>"),
        ("403 Forbidden", "<html>a proxy</html>"),
        ("400 Bad Request", "HTTP to an HTTPS port"),
    ] {
        let other = ask(status, "", body);
        assert!(matches!(*other.reason, Reason::NotS3(_)), "{other:?}");
    }
    let open = |status: &str, body: &str| {
        let settings = S3Settings {
            endpoint: Some(canned(status, "", body)),
            ..server.settings()
        };
        S3::open(BUCKET, None, &settings).unwrap()
    };
    let all = |store: S3, limit| (&store as &dyn Store).entries("", limit);
    let whole = open("200 OK", "0123456789").get_range(&key("x"), 2, 3);
    assert_reason(whole, |r| matches!(r, Reason::NotS3(_)));
    let console = all(open("200 OK", "<html>a console</html>"), 10);
    assert_reason(console, |r| matches!(r, Reason::NotS3(_)));
    let endless = all(open("200 OK", PAGE), 1_000_000);
    assert_reason(endless, |r| matches!(r, Reason::NotS3(_)));
    let refused = open("501 No", &error("NotImplemented", ""));
    let put = refused.put_if(&key("x"), b"", Expected::Absent);
    assert_reason(put, |r| matches!(r, Reason::NoConditions));
    // Like Garage: whatever is asked, it writes.
    for store in [refused, open("200 OK", "")] {
        let probed = store.probe_conditions(&key("x"), b"").unwrap();
        assert_eq!(probed, Conditions::Unsupported);
    }
}

/// A page that says that it is followed by itself.
const PAGE: &str = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated>\
    <NextContinuationToken>again</NextContinuationToken>\
    <Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>";

#[test]
fn s3_survives_a_bad_network() {
    let server = S3Server::start();
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    put(&open(&server), "there", &content);
    let places = [Way::Up, Way::Down]
        .into_iter()
        .flat_map(|way| [0, 100, 1000, 100_000].map(|at| (way, at)));
    let faults = places
        .flat_map(|(way, at)| {
            [
                Fault::Stall(way, at),
                Fault::Cut(way, at),
                Fault::Flip(way, at),
            ]
        })
        .chain([Fault::Refuse, Fault::SlowDown]);
    let checks =
        faults.flat_map(|fault| ["get", "range", "put", "list", "swap"].map(|act| (fault, act)));
    for_each(checks.enumerate(), 16, |(at, (fault, act))| {
        survives(&server, &content, &format!("new-{at}"), fault, act);
        Ok::<_, ()>(())
    })
    .unwrap();
}

/// Does `act` over two connections that have `fault`: what comes out is right, or a clear error.
fn survives(server: &S3Server, content: &[u8], new: &str, fault: Fault, act: &str) {
    let proxy = Proxy::before(server.endpoint());
    let store = open_at(server, &proxy.endpoint());
    proxy.next(2, fault);
    let there = key("there");
    let good = match act {
        "get" => store.get(&there, 1 << 20).map(|got| got.bytes == content),
        "range" => store
            .get_range(&there, 100_000, 150_000)
            .map(|got| got == content[100_000..250_000]),
        "put" => store
            .put(&key(new), Body::Bytes(content), &Digest::of(content))
            .map(|_| true),
        "list" => (&store as &dyn Store)
            .entries("there", 10)
            .map(|got| got.len() == 1 && got[0].size == 300_000),
        _ => store
            .put_if(&key(new), content, Expected::Absent)
            .map(|swap| matches!(swap, Swap::Done(_))),
    };
    let done = proxy.take_done();
    let flipped = matches!(fault, Fault::Flip(..)) && !done.is_empty();
    match good {
        Ok(true) => {}
        // A range and a listing bring no digest; whoever asked for them knows it.
        Ok(false) if flipped && act != "get" => {}
        // A flipped byte may make the request another one.
        Err(error) if flipped => assert!(!error.reason.to_string().is_empty()),
        other => panic!("{fault:?} {act}: {other:?} {done:?}"),
    }
    if matches!(act, "put" | "swap") && !flipped {
        assert!(get(&open(server), new).bytes == content, "{fault:?}");
    }
}

#[test]
fn s3_sends_parts_over_a_bad_network() {
    let server = S3Server::start();
    let proxy = Proxy::before(server.endpoint());
    let content: Vec<u8> = (0..=255).cycle().take(20 << 20).collect();
    let digest = Digest::of(&content);
    for fault in [
        Fault::SlowDown,
        Fault::Cut(Way::Up, 3_000_000),
        Fault::Cut(Way::Down, 100),
    ] {
        let store = open_at(&server, &proxy.endpoint());
        // The first connection begins the upload; parts open further ones.
        proxy.next(2, fault);
        store
            .put(&key("large"), Body::Bytes(&content), &digest)
            .unwrap();
        assert!(!proxy.take_done().is_empty(), "{fault:?}");
        let whole = store.get(&key("large"), 1 << 25).unwrap();
        assert!(whole.bytes == content, "{fault:?}");
        store.delete(&key("large")).unwrap();
    }
    // A byte that changes on its way is found by the server, which has the digest of the part.
    let store = open_at(&server, &proxy.endpoint());
    proxy.next(4, Fault::Flip(Way::Up, 3_000_000));
    store
        .put(&key("large"), Body::Bytes(&content), &digest)
        .unwrap();
    assert!(!proxy.take_done().is_empty());
    assert!(store.get(&key("large"), 1 << 25).unwrap().bytes == content);
}

/// An outage ends in bounded time with an error; when it is over, the same store works again.
#[test]
fn s3_waits_for_a_server_that_was_there() {
    let server = S3Server::start();
    let proxy = Proxy::before(server.endpoint());
    let settings = S3Settings {
        endpoint: Some(proxy.endpoint()),
        timeout: Duration::from_millis(200),
        patience: Duration::from_secs(2),
        ..server.settings()
    };
    let store = S3::open(BUCKET, None, &settings).unwrap();
    put(&store, "x", b"1");
    proxy.next(10_000, Fault::SlowDown);
    // Connections that are open already are not what fails: use them up.
    let results: Vec<_> = (0..3).map(|_| store.get(&key("x"), 10)).collect();
    drop(results);
    let fresh = S3::open(BUCKET, None, &settings).unwrap();
    assert_reason(fresh.get(&key("x"), 10), |r| {
        matches!(r, Reason::Unavailable(_))
    });
    assert!(fresh.traffic().retries >= 2);
    proxy.take_done();
    assert_eq!(get(&fresh, "x").bytes, b"1");
}
