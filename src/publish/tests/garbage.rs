//! Garbage goes, and never what somebody needs, whoever is at work at the same time.

use super::*;

#[test]
fn garbage_goes_in_two_passes_and_nothing_that_is_needed() {
    let mut world = World::new(many(30));
    let memory = Memory::new();
    world.push(&memory, "v1").unwrap();
    let old = world.release.clone();
    let made = world.cases.get_mut("case-00007").unwrap();
    made.workspace
        .insert("input.yaml".to_owned(), b"case: new\n".to_vec());
    world.rebuild();
    world.push(&memory, "v1").unwrap();
    let remote = Remote::new(&memory, None);
    let now = 4_000_000_000;
    let day = 86_400;
    let pass = |days: i64, keep: u64| {
        memory.set_clock(now + days * day);
        let pass = Collection {
            grace: WEEK,
            keep: Duration::from_hours(24 * keep),
            now: now + days * day,
            write: true,
        };
        collect(remote, pass, &AtomicBool::new(false)).unwrap()
    };
    // A job may still hold the old release by its digest.
    let first = pass(0, 90);
    assert_eq!(
        (first.lost_releases, first.named.0, first.removed.0),
        (1, 0, 0)
    );
    assert!(remote.release(&Which::Manifest(old.digest)).is_ok());
    // Its time is over: named, and after the grace period removed.
    let second = pass(91, 90);
    assert!(second.named.0 >= 4 && second.removed.0 == 0, "{second:?}");
    let third = pass(92, 90);
    assert_eq!((third.named.0, third.removed.0), (second.named.0, 0));
    // A publisher that needs a named blob writes it again: it stays, the rest goes.
    let made = world.cases.get_mut("case-00007").unwrap();
    made.workspace
        .insert("input.yaml".to_owned(), b"case: 7\n".to_vec());
    world.rebuild();
    assert_eq!(world.release.digest, old.digest);
    let again = world.push(&memory, "back").unwrap();
    assert!(again.uploaded >= 3, "{again:?}");
    let last = pass(99, 90);
    assert_eq!(last.removed.0, 0, "{last:?}");
    for name in ["v1", "back"] {
        let out = world.path(name);
        let release = remote.release(&named(name)).unwrap();
        let checked = verify(remote, &[release], 100, &AtomicBool::new(false), &());
        assert_eq!(
            checked.unwrap().bad,
            Vec::<String>::new(),
            "{}",
            out.display()
        );
    }
    memory.delete(&key("refs/back.json").unwrap()).unwrap();
    pass(100, 0);
    let gone = pass(108, 0);
    assert!(gone.removed.0 >= 4, "{gone:?}");
    assert!(remote.release(&Which::Manifest(old.digest)).is_err());
    assert!(remote.release(&named("v1")).is_ok());
}

/// A store with a blob that was named as garbage long ago, and a release that needs it again.
fn garbage_that_is_needed(memory: &Memory) -> World {
    let mut world = World::new(many(30));
    let made = world.cases.get_mut("case-00007").unwrap();
    made.workspace
        .insert("input.yaml".to_owned(), b"case: other\n".to_vec());
    world.rebuild();
    world.push(memory, "v1").unwrap();
    memory.delete(&key("refs/v1.json").unwrap()).unwrap();
    World::new(many(30)).push(memory, "kept").unwrap();
    assert!(collect_after(memory, memory, 0).named.0 >= 4);
    world
}

/// A pass with nothing kept, some days after the first one.
fn collect_after(memory: &Memory, store: &dyn Store, days: i64) -> Collected {
    let now = 4_000_000_000 + days * 86_400;
    memory.set_clock(now);
    let pass = Collection {
        grace: WEEK,
        keep: Duration::ZERO,
        now,
        write: true,
    };
    let remote = Remote::new(store, None);
    collect(remote, pass, &AtomicBool::new(false)).unwrap()
}

fn assert_whole(store: &dyn Store, name: &str) {
    let remote = Remote::new(store, None);
    let release = remote.release(&named(name)).unwrap();
    let checked = verify(remote, &[release], 100, &AtomicBool::new(false), &());
    assert_eq!(checked.unwrap().bad, Vec::<String>::new());
}

/// A publisher sends a blob again after a sweep has looked at it, and before it removes it.
#[test]
fn a_sweep_takes_nothing_from_a_publisher() {
    let memory = Memory::new();
    let world = garbage_that_is_needed(&memory);
    thread::scope(|scope| {
        let (world, memory) = (&world, &memory);
        let (tell, told) = std::sync::mpsc::channel();
        let publisher = scope.spawn(move || {
            told.recv().unwrap();
            world.push(memory, "late").unwrap()
        });
        let mut tell = Some(tell);
        // With the first removal the publisher sets out, and it has moved its ref before the rest.
        let slow = Hooked::new(memory, move |act, path| {
            if act == "delete"
                && path.starts_with(BLOBS)
                && let Some(tell) = tell.take()
            {
                tell.send(()).unwrap();
                let late = key("refs/late.json").unwrap();
                while memory.get(&late, 1 << 20).is_err() {
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
        assert!(collect_after(memory, &slow, 8).removed.0 >= 4);
        assert!(publisher.join().unwrap().uploaded >= 3);
    });
    assert_whole(&memory, "late");
    let sweep = memory.get(&key("gc/sweep").unwrap(), 10);
    assert!(sweep.unwrap_err().is_not_found());
}

/// A whole sweep between two looks of a publisher at the store.
#[test]
fn a_sweep_between_two_looks_is_seen() {
    let memory = Memory::new();
    let world = garbage_that_is_needed(&memory);
    let mut looks = 0;
    let hooked = Hooked::new(&memory, |act, prefix| {
        if act == "list" && (prefix == BLOBS || prefix == "gc/") {
            looks += 1;
            if looks == 2 {
                assert!(collect_after(&memory, &memory, 8).removed.0 >= 4);
            }
        }
    });
    world.push(&hooked, "late").unwrap();
    drop(hooked);
    assert!(looks >= 2);
    assert_whole(&memory, "late");
}

/// Whoever was killed while it removed garbage is not waited for.
#[test]
fn a_sweep_that_was_killed_holds_nobody_up() {
    let memory = Memory::new();
    let world = garbage_that_is_needed(&memory);
    let sweep = key("gc/sweep").unwrap();
    memory
        .put(&sweep, Body::Bytes(b"{}"), &Digest::of(b"{}"))
        .unwrap();
    memory.set_clock(4_000_000_000 + 86_400);
    world.push(&memory, "late").unwrap();
    assert_whole(&memory, "late");
}

/// Is told what is about to be done, and to what.
type Hook<'a> = Box<dyn FnMut(&str, &str) + Send + 'a>;

/// Tells what is about to be done.
struct Hooked<'a> {
    inner: &'a dyn Store,
    hook: Mutex<Hook<'a>>,
}

impl std::fmt::Debug for Hooked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl<'a> Hooked<'a> {
    fn new(inner: &'a dyn Store, hook: impl FnMut(&str, &str) + Send + 'a) -> Self {
        Self {
            inner,
            hook: Mutex::new(Box::new(hook)),
        }
    }

    fn tell(&self, act: &str, at: &str) {
        (self.hook.lock().unwrap())(act, at);
    }
}

impl Store for Hooked<'_> {
    fn show(&self, key: &str) -> String {
        self.inner.show(key)
    }

    fn get(&self, key: &TreePath, limit: u64) -> Result<Object, StoreError> {
        self.inner.get(key, limit)
    }

    fn get_range(&self, key: &TreePath, start: u64, size: usize) -> Result<Bytes, StoreError> {
        self.inner.get_range(key, start, size)
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
        self.tell("list", prefix);
        self.inner.list(prefix, each)
    }

    fn delete(&self, path: &TreePath) -> Result<(), StoreError> {
        self.tell("delete", path.as_str());
        self.inner.delete(path)
    }

    fn probe_conditions(&self, key: &TreePath, bytes: &[u8]) -> Result<Conditions, StoreError> {
        self.inner.probe_conditions(key, bytes)
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}
