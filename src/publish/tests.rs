//! Releases go to stores and come back; what a store says is believed only as far as it is proven.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::bundle::tests::{Made, files, many, pack_all, tree};
use crate::bundle::{BLOBS, RefName, Release, View};
use crate::digest::Digest;
use crate::fs::Root;
use crate::plan::Change;
use crate::store::{
    Body, Conditions, Directory, Etag, Expected, Listed, Memory, Object, Store, Swap, Traffic,
};
use crate::tree::Tree;

mod garbage;

/// Gives what another store has, and remembers what was read of it.
#[derive(Debug)]
struct Watched<'a> {
    inner: &'a dyn Store,
    /// Key, first byte and bytes of every read.
    reads: Mutex<Vec<(String, u64, u64)>>,
    /// Bytes that are being read, and the most that ever were.
    in_hand: AtomicUsize,
    most_in_hand: AtomicUsize,
}

impl<'a> Watched<'a> {
    fn new(inner: &'a dyn Store) -> Self {
        Self {
            inner,
            reads: Mutex::default(),
            in_hand: AtomicUsize::new(0),
            most_in_hand: AtomicUsize::new(0),
        }
    }

    fn reads(&self) -> Vec<(String, u64, u64)> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }

    fn note(&self, key: &TreePath, start: u64, size: u64) {
        let read = (key.as_str().to_owned(), start, size);
        self.reads.lock().unwrap().push(read);
    }
}

impl Store for Watched<'_> {
    fn show(&self, key: &str) -> String {
        self.inner.show(key)
    }

    fn get(&self, key: &TreePath, limit: u64) -> Result<Object, StoreError> {
        let object = self.inner.get(key, limit)?;
        self.note(key, 0, object.bytes.len() as u64);
        Ok(object)
    }

    fn get_range(&self, key: &TreePath, start: u64, size: usize) -> Result<Bytes, StoreError> {
        self.note(key, start, size as u64);
        let now = self.in_hand.fetch_add(size, Ordering::SeqCst) + size;
        self.most_in_hand.fetch_max(now, Ordering::SeqCst);
        if size > 1 << 20 {
            // So that whoever may do the same at the same time does.
            thread::sleep(Duration::from_millis(50));
        }
        let got = self.inner.get_range(key, start, size);
        self.in_hand.fetch_sub(size, Ordering::SeqCst);
        got
    }

    fn put(&self, key: &TreePath, body: Body<'_>, digest: &Digest) -> Result<Etag, StoreError> {
        self.inner.put(key, body, digest)
    }

    fn put_if(
        &self,
        key: &TreePath,
        bytes: &[u8],
        expected: Expected<'_>,
    ) -> Result<Swap, StoreError> {
        self.inner.put_if(key, bytes, expected)
    }

    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Listed) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.note(&TreePath::new("list").unwrap(), 0, 0);
        self.inner.list(prefix, each)
    }

    fn delete(&self, key: &TreePath) -> Result<(), StoreError> {
        self.inner.delete(key)
    }

    fn probe_conditions(&self, key: &TreePath, bytes: &[u8]) -> Result<Conditions, StoreError> {
        self.inner.probe_conditions(key, bytes)
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

/// A release in a directory of its own.
struct World {
    temp: TempDir,
    cases: BTreeMap<String, Made>,
    release: Release,
}

impl World {
    fn new(cases: BTreeMap<String, Made>) -> Self {
        let temp = TempDir::new().unwrap();
        let release = pack_all(&temp.path().join("bundle"), &cases, 2).release;
        Self {
            temp,
            cases,
            release,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn rebuild(&mut self) {
        self.release = pack_all(&self.path("bundle"), &self.cases, 2).release;
    }

    fn push(&self, store: &dyn Store, name: &str) -> Result<Pushed, PublishError> {
        push(
            &Push {
                from: &self.path("bundle"),
                release: &self.release,
                remote: Remote::new(store, None),
                reference: &RefName::new(name).unwrap(),
                force: false,
                repair: false,
                dry_run: false,
                grace: WEEK,
                stop: &AtomicBool::new(false),
            },
            &(),
        )
    }
}

const WEEK: Duration = Duration::from_hours(7 * 24);

fn named(name: &str) -> Which {
    Which::Ref(RefName::new(name).unwrap())
}

/// Pulls all cases, or one.
fn pull_to(
    store: &dyn Store,
    out: &Path,
    layout: Layout,
    only: Option<&str>,
) -> Result<Pulled, PublishError> {
    pull_by(2, store, out, layout, only)
}

/// Pulls with so many threads.
fn pull_by(
    jobs: usize,
    store: &dyn Store,
    out: &Path,
    layout: Layout,
    only: Option<&str>,
) -> Result<Pulled, PublishError> {
    let remote = Remote::new(store, None);
    let release = remote.release(&named("v1"))?;
    fs::create_dir_all(out).unwrap();
    pull(
        &Pull {
            remote,
            release: &release,
            chosen: Chosen {
                has: &|id| only.is_none_or(|only| id.as_str() == only),
                only: only.map(|id| vec![CaseId::new(id).unwrap()]),
            },
            layout,
            out,
            max_bytes: None,
            force: false,
            jobs,
            stop: &AtomicBool::new(false),
        },
        &(),
    )
}

fn read(dir: &Path) -> Tree {
    Tree::from_dir(&Arc::new(Root::open(dir).unwrap()), None, 0).unwrap()
}

/// The directories of a destination but casepack's own.
fn cases_in(out: &Path) -> Vec<String> {
    let Ok(list) = fs::read_dir(out) else {
        return Vec::new();
    };
    let mut names: Vec<String> = list
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(".casepack") && name != "dataset.toml")
        .collect();
    names.sort();
    names
}

#[test]
fn what_was_published_comes_back() {
    let mut cases = many(40);
    let noise: Vec<u8> = (0..700_000_u32)
        .flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    for id in ["case-00003", "case-00011"] {
        let made = cases.get_mut(id).unwrap();
        made.workspace
            .insert("data/big.bin".to_owned(), noise.clone());
        made.workspace.insert("data/empty".to_owned(), Vec::new());
    }
    let world = World::new(cases);
    let dir = Directory::create(&world.path("store")).unwrap();
    let memory = Memory::new();
    for (number, store) in [&dir as &dyn Store, &memory].into_iter().enumerate() {
        let pushed = world.push(store, "v1").unwrap();
        assert_eq!(pushed.uploaded, world.release.blobs().len() as u64);
        let out = world.path(&format!("harbor{number}"));
        let pulled = pull_to(store, &out, Layout::Harbor, None).unwrap();
        assert_eq!((pulled.cases, pulled.written), (40, 40));
        for (id, made) in &world.cases {
            assert_eq!(read(&out.join(id)).id(), made.package().id(), "{id}");
        }
        assert_eq!(cases_in(&out).len(), 40);
        assert!(out.join("dataset.toml").exists());

        // Again: nothing is read but what says so.
        let watched = Watched::new(store);
        let again = pull_to(&watched, &out, Layout::Harbor, None).unwrap();
        assert_eq!((again.cases, again.written), (40, 0));
        let packs: Vec<_> = watched.reads();
        assert!(
            packs.len() <= 1 + world.release.document.shards.len(),
            "{packs:?}"
        );

        // A file that was changed is somebody's work: it stays.
        fs::write(out.join("case-00001/task.toml"), "mine").unwrap();
        let error = pull_to(store, &out, Layout::Harbor, None).unwrap_err();
        assert!(error.to_string().contains("case-00001"), "{error}");
        assert_eq!(fs::read(out.join("case-00001/task.toml")).unwrap(), b"mine");

        let out = world.path(&format!("cases{number}"));
        let pulled = pull_to(store, &out, Layout::Cases, None).unwrap();
        assert_eq!(
            pulled.readable,
            BTreeMap::from([("annotations.yaml".to_owned(), 40)])
        );
        let made = &world.cases["case-00011"];
        let mut merged = made.workspace.clone();
        merged.insert(
            "annotations.yaml".to_owned(),
            made.evaluation["annotations.yaml"].clone(),
        );
        assert_eq!(read(&out.join("case-00011")).id(), tree(&merged).id());
    }
    // A directory store is the directory of the build, byte for byte, but for the ref's name.
    let (built, stored) = (files(&world.path("bundle")), files(&world.path("store")));
    let blobs = |all: &BTreeMap<String, Vec<u8>>| -> BTreeMap<String, Vec<u8>> {
        let blobs = all.iter().filter(|(key, _)| key.starts_with(BLOBS));
        blobs
            .map(|(key, bytes)| (key.clone(), bytes.clone()))
            .collect()
    };
    assert!(blobs(&built) == blobs(&stored));
}

#[test]
fn large_contents_are_few_at_a_time_whatever_the_threads() {
    let mut cases = many(12);
    for (number, made) in (0_u32..).zip(cases.values_mut()) {
        let noise = (0..1_250_000).map(|at: u32| (at ^ number << 24).wrapping_mul(2_654_435_761));
        let noise = noise.flat_map(u32::to_le_bytes).collect();
        made.workspace.insert("big.bin".to_owned(), noise);
    }
    let first = cases["case-00000"].workspace["big.bin"].clone();
    let second = cases.get_mut("case-00001").unwrap();
    second.workspace.insert("big.bin".to_owned(), first);
    let world = World::new(cases);
    let memory = Memory::new();
    world.push(&memory, "v1").unwrap();
    let watched = Watched::new(&memory);
    let out = world.path("out");
    let pulled = pull_by(12, &watched, &out, Layout::Harbor, None).unwrap();
    assert_eq!(pulled.written, 12);
    for (id, made) in &world.cases {
        assert_eq!(read(&out.join(id)).id(), made.package().id(), "{id}");
    }
    let asked: u64 = watched.reads().iter().map(|(.., size)| size).sum();
    let most = watched.most_in_hand.into_inner();
    // Several at once, and not the twelve of 36 MiB that there are threads for.
    assert!((5 << 20..=16 << 20).contains(&most), "{most}");
    // What two cases have is fetched once, also when both want it at the same time.
    assert!((55_000_000..57_000_000).contains(&asked), "{asked}");
}

#[test]
fn a_workspace_pull_reads_nothing_of_the_answers() {
    let world = World::new(many(300));
    let memory = Memory::new();
    world.push(&memory, "v1").unwrap();
    let watched = Watched::new(&memory);
    let out = world.path("out");
    pull_to(&watched, &out, Layout::View(View::Workspace), None).unwrap();
    for (id, made) in &world.cases {
        assert_eq!(read(&out.join(id)).id(), tree(&made.workspace).id());
    }
    let document = &world.release.document;
    let secret: Vec<String> = document
        .shards
        .iter()
        .map(|shard| (shard.view, shard.blob.digest))
        .chain(
            document
                .packs
                .iter()
                .map(|pack| (pack.view, pack.blob.digest)),
        )
        .chain(
            document
                .packs
                .iter()
                .map(|pack| (pack.view, pack.index.digest)),
        )
        .filter(|(view, _)| *view != View::Workspace)
        .map(|(_, digest)| crate::bundle::blob_key(digest))
        .collect();
    assert!(secret.len() >= 6);
    let mut seen = Vec::new();
    for (key, start, size) in watched.reads() {
        assert!(!secret.contains(&key), "{key} was read");
        if let Ok(bytes) = memory.get_range(
            &TreePath::new(&key).unwrap(),
            start,
            usize::try_from(size).unwrap(),
        ) {
            seen.extend(bytes);
        }
    }
    // Contents that are easy to guess can't be recognised from what was read.
    let text = String::from_utf8_lossy(&seen).into_owned();
    for guess in ["dup: true\n", "dup: false\n"] {
        assert!(!text.contains(&Digest::of(guess.as_bytes()).hex()));
    }
}

#[test]
fn one_case_of_many_costs_a_few_requests() {
    let mut cases = many(2000);
    for (at, made) in cases.values_mut().enumerate() {
        made.workspace.insert(
            "notes.md".to_owned(),
            Digest::of(&at.to_le_bytes()).hex().repeat(30).into_bytes(),
        );
        made.evaluation.insert(
            "gold.md".to_owned(),
            Digest::of(&[at.to_le_bytes(); 2].concat())
                .hex()
                .into_bytes(),
        );
    }
    let world = World::new(cases);
    let memory = Memory::new();
    world.push(&memory, "v1").unwrap();
    for (layout, requests) in [(Layout::View(View::Workspace), 6), (Layout::Harbor, 14)] {
        let watched = Watched::new(&memory);
        let out = world.path(&format!("{layout:?}"));
        let pulled = pull_to(&watched, &out, layout, Some("case-01234")).unwrap();
        assert_eq!((pulled.cases, pulled.written), (1, 1));
        assert_eq!(cases_in(&out), ["case-01234"]);
        let reads = watched.reads();
        assert!(reads.len() <= requests, "{layout:?}: {reads:?}");
        let bytes: u64 = reads.iter().map(|read| read.2).sum();
        assert!(bytes < 1_500_000, "{bytes}");
    }
}

#[test]
fn publishing_again_moves_only_what_is_new() {
    let mut world = World::new(many(200));
    let memory = Memory::new();
    world.push(&memory, "v1").unwrap();
    let before = memory.traffic();
    assert!(world.push(&memory, "v1").unwrap().unchanged);
    let after = memory.traffic();
    assert!(after.requests - before.requests <= 3);
    assert_eq!(after.objects_written, before.objects_written);

    let made = world.cases.get_mut("case-00100").unwrap();
    made.workspace
        .insert("input.yaml".to_owned(), b"case: changed\n".to_vec());
    world.rebuild();
    let pushed = world.push(&memory, "v1").unwrap();
    // Document, workspace shard, pack and index; the task shard has the package's digest.
    assert!(pushed.uploaded <= 5, "{pushed:?}");
    // Besides: manifest, ref, index.json and what asks for conditions.
    let written = memory.traffic().objects_written - after.objects_written;
    assert!(written <= 9, "{written}");

    // Another name for the same: no blob at all.
    assert_eq!(world.push(&memory, "v2").unwrap().uploaded, 0);
    // A name that is another one but for letter case would overwrite it on some file systems.
    let error = world.push(&memory, "V2").unwrap_err();
    assert!(error.to_string().contains("letter case"), "{error}");
}

#[test]
fn a_blob_of_another_size_is_sent_again() {
    let world = World::new(many(5));
    let memory = Memory::new();
    world.push(&memory, "v1").unwrap();
    let pack = world.release.document.packs[0].blob.digest;
    let path = key(&crate::bundle::blob_key(pack)).unwrap();
    memory
        .put(&path, Body::Bytes(b"cut"), &Digest::of(b"cut"))
        .unwrap();
    assert_eq!(world.push(&memory, "v2").unwrap().uploaded, 1);
    let checked = verify(
        Remote::new(&memory, None),
        std::slice::from_ref(&world.release),
        100,
        &AtomicBool::new(false),
        &(),
    );
    assert_eq!(checked.unwrap().bad, Vec::<String>::new());
}

#[test]
fn publishers_at_once_lose_nothing() {
    let worlds: Vec<World> = (0..8).map(|at| World::new(many(3 + at))).collect();
    let memory = Memory::new();
    thread::scope(|scope| {
        for (at, world) in worlds.iter().enumerate() {
            let memory = &memory;
            scope.spawn(move || world.push(memory, &format!("v{at}")).unwrap());
        }
    });
    let refs = Remote::new(&memory, None).refs().unwrap();
    assert_eq!(refs.len(), 8);
    let index = memory.get(&key("index.json").unwrap(), u64::MAX).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index.bytes).unwrap();
    for (at, world) in worlds.iter().enumerate() {
        let digest = world.release.digest;
        assert_eq!(refs[at].release.as_ref().unwrap().digest, digest);
        assert_eq!(index["manifests"][at]["digest"], digest.to_string());
    }

    // Two to the same name: one wins, the other says so, and what is there is whole.
    let memory = Memory::new();
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .iter()
            .map(|world| {
                let memory = &memory;
                scope.spawn(move || (world.push(memory, "same"), world.release.digest))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let remote = Remote::new(&memory, None);
    let now = remote.release(&named("same")).unwrap().digest;
    let mut lost = 0;
    for (result, digest) in &results {
        match result {
            Ok(_) => {}
            Err(error) => {
                lost += 1;
                assert_ne!(now, *digest);
                assert!(error.to_string().contains("another publisher"), "{error}");
            }
        }
    }
    assert!(lost < results.len());
}

#[test]
fn differences_are_told_by_case_view_and_file() {
    let mut world = World::new(many(50));
    let memory = Memory::new();
    world.push(&memory, "a").unwrap();
    world.cases.remove("case-00010");
    world.cases.insert("new".to_owned(), Made::numbered(4000));
    let made = world.cases.get_mut("case-00020").unwrap();
    made.workspace
        .insert("skill/a.md".to_owned(), b"other".to_vec());
    made.evaluation.remove("annotations.yaml");
    world.rebuild();
    world.push(&memory, "b").unwrap();
    let remote = Remote::new(&memory, None);
    let (a, b) = (
        remote.release(&named("a")).unwrap(),
        remote.release(&named("b")).unwrap(),
    );
    let changes = diff((remote, &a), (remote, &b)).unwrap();
    assert_eq!(changes.added, [CaseId::new("new").unwrap()]);
    assert_eq!(changes.removed, [CaseId::new("case-00010").unwrap()]);
    let files: Vec<_> = changes
        .files
        .iter()
        .map(|it| (it.case.as_str(), it.view, it.path.as_str(), it.change))
        .collect();
    assert_eq!(
        files,
        [
            ("case-00020", View::Workspace, "skill/a.md", Change::Content),
            (
                "case-00020",
                View::Evaluation,
                "annotations.yaml",
                Change::Removed
            ),
        ]
    );
}

#[test]
fn nothing_that_is_altered_is_taken_for_true() {
    let world = World::new(many(12));
    let memory = Memory::new();
    world.push(&memory, "v1").unwrap();
    let entries = (&memory as &dyn Store).entries("", 1000).unwrap();
    let objects: Vec<(TreePath, Vec<u8>)> = entries
        .into_iter()
        .map(|entry| {
            (
                entry.key.clone(),
                memory.get(&entry.key, u64::MAX).unwrap().bytes,
            )
        })
        .collect();
    let out = world.path("out");
    let mut refused = 0;
    for (path, bytes) in &objects {
        if matches!(path.as_str(), "index.json" | "oci-layout") {
            continue;
        }
        for step in 0..12 {
            let mut altered = bytes.clone();
            let at = step * (bytes.len() - 1) / 11;
            match step % 3 {
                0 => altered[at] ^= 1,
                1 => altered.truncate(at),
                _ => altered.insert(at, b'0'),
            }
            if altered == *bytes {
                continue;
            }
            memory
                .put(path, Body::Bytes(&altered), &Digest::of(&altered))
                .unwrap();
            let dest = out.join(format!("{}-{step}", path.name()));
            match pull_to(&memory, &dest, Layout::Harbor, None) {
                // The manifest blob is not read when the ref has it, nor is the document.
                Ok(_) => {
                    for (id, made) in &world.cases {
                        assert_eq!(read(&dest.join(id)).id(), made.package().id());
                    }
                }
                Err(error) => {
                    refused += 1;
                    let text = format!("{error} {:?}", std::error::Error::source(&error));
                    assert!(text.contains("sha256") || text.contains("v1"), "{text}");
                    for id in cases_in(&dest) {
                        assert_eq!(read(&dest.join(&id)).id(), world.cases[&id].package().id());
                    }
                }
            }
        }
        memory
            .put(path, Body::Bytes(bytes), &Digest::of(bytes))
            .unwrap();
    }
    assert!(refused > 50, "{refused}");
    pull_to(&memory, &out.join("last"), Layout::Harbor, None).unwrap();
}
