//! Stores in a Garage cluster whose nodes die and freeze: see `scripts/fault-tests`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use casepack::digest::Digest;
use casepack::event::{Event, Observer};
use casepack::path::TreePath;
use casepack::publish::PublishError;
use casepack::store::{
    Body, Conditions, Expected, Reason, S3, S3Settings, Store, StoreError, Swap, for_each,
};

use crate::faults::{Local, noise};
use crate::store::{assert_reason, conforms, get, key, keys, put};
use crate::support::{Cluster, many};

/// Below a prefix of the test's own, through one node.
fn open(cluster: &Cluster, node: usize, prefix: &str, settings: impl Fn(&mut S3Settings)) -> S3 {
    let mut given = cluster.settings(node);
    settings(&mut given);
    // Every run has a prefix of its own, so that a cluster can be used twice.
    let prefix = format!("{prefix}-{}", std::process::id());
    S3::open(
        cluster.bucket(),
        Some(&TreePath::new(&prefix).unwrap()),
        &given,
    )
    .unwrap()
}

fn impatient(settings: &mut S3Settings) {
    settings.timeout = Duration::from_secs(3);
    settings.patience = Duration::from_secs(5);
}

/// Writes and reads back objects `from..to`, each as large as its number and some more.
fn write_and_read(
    writer: &S3,
    reader: &S3,
    objects: std::ops::Range<usize>,
    meanwhile: impl Fn(usize) + Sync,
) {
    let content = |at: usize| at.to_string().repeat(1000 + at).into_bytes();
    let done = AtomicUsize::new(0);
    for_each(objects.clone(), 8, |at| {
        meanwhile(done.fetch_add(1, Ordering::SeqCst));
        let bytes = content(at);
        writer.put(
            &key(&format!("many/{at}")),
            Body::Bytes(&bytes),
            &Digest::of(&bytes),
        )?;
        Ok::<_, StoreError>(())
    })
    .unwrap();
    let done = AtomicUsize::new(0);
    for_each(objects, 8, |at| {
        meanwhile(done.fetch_add(1, Ordering::SeqCst));
        let object = reader.get(&key(&format!("many/{at}")), 1 << 20)?;
        assert!(object.bytes == content(at), "{at}");
        Ok::<_, StoreError>(())
    })
    .unwrap();
}

#[test]
fn garage_conforms() {
    let Some(cluster) = Cluster::for_test("garage_conforms") else {
        return;
    };
    let store = open(&cluster, 1, "conforms", |_| ());
    conforms(&store);
    // What a file system can't hold.
    put(&store, "x", b"1");
    put(&store, "x/y", b"2");
    assert_eq!(keys(&store, "x"), ["x", "x/y"]);
    // Garage ignores conditions in silence: the last writer wins, and a probe says so.
    assert_eq!(
        store.probe_conditions(&key("x"), b"1").unwrap(),
        Conditions::Unsupported
    );
    let swap = store.put_if(&key("x"), b"3", Expected::Absent).unwrap();
    assert!(matches!(swap, Swap::Done(_)), "{swap:?}");
    assert_eq!(get(&store, "x").bytes, b"3");
    for at in ["x", "x/y"] {
        store.delete(&key(at)).unwrap();
    }
}

#[test]
fn garage_takes_parts() {
    let Some(cluster) = Cluster::for_test("garage_takes_parts") else {
        return;
    };
    let store = open(&cluster, 1, "parts", |_| ());
    let content: Vec<u8> = (0..=250).cycle().take(20 << 20).collect();
    let large = key("large");
    store
        .put(&large, Body::Bytes(&content), &Digest::of(&content))
        .unwrap();
    assert!(store.get(&large, 1 << 25).unwrap().bytes == content);
    let range = store.get_range(&large, (8 << 20) - 5, 10).unwrap();
    assert_eq!(range, &content[(8 << 20) - 5..(8 << 20) + 5]);
    let wrong = store.put(&key("wrong"), Body::Bytes(&content), &Digest::of(b""));
    assert_reason(wrong, |r| matches!(r, Reason::Damaged { .. }));
    assert_eq!(keys(&store, ""), ["large"]);
    store.delete(&large).unwrap();
}

#[test]
fn garage_tells_what_is_wrong() {
    let Some(cluster) = Cluster::for_test("garage_tells_what_is_wrong") else {
        return;
    };
    let region = open(&cluster, 1, "wrong", |s| {
        s.region = Some("eu-west-1".to_owned());
    });
    let error = region.get(&key("x"), 1).unwrap_err();
    assert!(
        error.help().contains("AWS_REGION=garage"),
        "{error:?} {}",
        error.help()
    );
    let other = S3::open("no-such-bucket", None, &cluster.settings(1)).unwrap();
    // Garage does not tell strangers which buckets there are.
    assert_reason(other.get(&key("x"), 1), |r| {
        matches!(r, Reason::NoBucket(_) | Reason::Denied(_))
    });
    let long = TreePath::new(&vec!["x".repeat(250); 5].join("/")).unwrap();
    assert_reason(region.get(&long, 1), |r| matches!(r, Reason::LongKey(_)));
}

#[test]
fn one_node_dies() {
    let Some(cluster) = Cluster::for_test("one_node_dies") else {
        return;
    };
    let (writer, reader) = (
        open(&cluster, 1, "dies", |_| ()),
        open(&cluster, 2, "dies", |_| ()),
    );
    write_and_read(&writer, &reader, 0..100, |done| {
        if done == 20 {
            cluster.restart(3);
            cluster.kill(3);
        }
    });
}

#[test]
fn one_node_freezes() {
    let Some(cluster) = Cluster::for_test("one_node_freezes") else {
        return;
    };
    let (writer, reader) = (
        open(&cluster, 1, "freezes", |_| ()),
        open(&cluster, 2, "freezes", |_| ()),
    );
    write_and_read(&writer, &reader, 0..100, |done| {
        if done == 20 {
            cluster.freeze(3);
        }
    });
}

/// The node that is asked: its kernel still takes connections and bytes, and nobody answers.
#[test]
fn the_asked_node_freezes() {
    let Some(cluster) = Cluster::for_test("the_asked_node_freezes") else {
        return;
    };
    let store = open(&cluster, 1, "asked", impatient);
    let content = vec![7; 3 << 20];
    let digest = Digest::of(&content);
    store
        .put(&key("x"), Body::Bytes(&content), &digest)
        .unwrap();
    cluster.freeze(1);
    assert_reason(store.get(&key("x"), 1 << 22), |r| {
        matches!(r, Reason::Timeout(_))
    });
    assert_reason(store.put(&key("y"), Body::Bytes(&content), &digest), |r| {
        matches!(r, Reason::Timeout(_) | Reason::Broken(_))
    });
    assert_reason(store.delete(&key("x")), |r| matches!(r, Reason::Timeout(_)));
    cluster.thaw(1);
    store
        .put(&key("y"), Body::Bytes(&content), &digest)
        .unwrap();
    assert!(store.get(&key("y"), 1 << 22).unwrap().bytes == content);
}

#[test]
fn two_nodes_die() {
    let Some(cluster) = Cluster::for_test("two_nodes_die") else {
        return;
    };
    let store = open(&cluster, 1, "two", impatient);
    put(&store, "before", b"1");
    cluster.kill(2);
    cluster.kill(3);
    let put = |store: &S3| store.put(&key("after"), Body::Bytes(b"2"), &Digest::of(b"2"));
    assert_reason(put(&store), |r| {
        matches!(r, Reason::Unavailable(_) | Reason::Timeout(_))
    });
    assert_reason(store.get(&key("after"), 10), |r| {
        matches!(r, Reason::Unavailable(_) | Reason::Timeout(_))
    });
    cluster.restart(2);
    cluster.restart(3);
    // As patient as a user's.
    let patient = open(&cluster, 1, "two", |_| ());
    put(&patient).unwrap();
    assert_eq!(get(&patient, "after").bytes, b"2");
    assert_eq!(get(&patient, "before").bytes, b"1");
}

/// A release of some packs, 80 MB: long enough to be in the middle of it.
fn release() -> Local {
    let mut cases = many(240);
    for (at, case) in cases.values_mut().enumerate() {
        let file = case
            .clone()
            .workspace("noise.bin", noise(at as u64, 330_000));
        *case = file;
    }
    Local::new(cases)
}

/// Does something when so many objects have been moved.
struct After<'a> {
    objects: u64,
    moved: AtomicUsize,
    act: &'a (dyn Fn() + Sync),
}

impl Observer for After<'_> {
    fn on(&self, event: Event<'_>) {
        if let Event::Transferred { .. } = event {
            let before = self.moved.fetch_add(1, Ordering::SeqCst);
            if before as u64 + 1 == self.objects {
                (self.act)();
            }
        }
    }
}

fn after(objects: u64, act: &(dyn Fn() + Sync)) -> After<'_> {
    After {
        objects,
        moved: AtomicUsize::new(0),
        act,
    }
}

/// Publishes and pulls while `act` is done to a node in the middle of each.
fn survives(test: &str, act: impl Fn(&Cluster) + Sync, undo: impl Fn(&Cluster)) {
    let Some(cluster) = Cluster::for_test(test) else {
        return;
    };
    let local = release();
    let store = open(&cluster, 1, test, |_| ());
    let start = Instant::now();
    let act = || act(&cluster);
    local.push(&store, "v1", &after(3, &act)).unwrap();
    println!("{test}: published in {:.1?}", start.elapsed());
    // Before it is back: what was published is there, right, through another node.
    let other = open(&cluster, 2, test, |_| ());
    local.assert_comes_back(&other, "v1", "meanwhile");
    undo(&cluster);
    cluster.wait();
    let start = Instant::now();
    local.pull(&store, "v1", "out", &after(20, &act)).unwrap();
    println!("{test}: pulled in {:.1?}", start.elapsed());
    assert_eq!(local.assert_whole("out"), local.cases.len());
}

#[test]
fn releases_survive_a_node_that_dies() {
    survives(
        "releases_survive_a_node_that_dies",
        |cluster| cluster.kill(3),
        |cluster| cluster.restart(3),
    );
}

#[test]
fn releases_survive_a_node_that_freezes() {
    survives(
        "releases_survive_a_node_that_freezes",
        |cluster| cluster.freeze(3),
        |cluster| cluster.thaw(3),
    );
}

/// Without a quorum there is an error, soon; when the nodes are back, the same does the rest.
#[test]
fn releases_wait_for_two_nodes_that_died() {
    let test = "releases_wait_for_two_nodes_that_died";
    let Some(cluster) = Cluster::for_test(test) else {
        return;
    };
    let local = release();
    let (store, patient) = (
        open(&cluster, 1, test, impatient),
        open(&cluster, 1, test, |_| ()),
    );
    let kill = || {
        cluster.kill(2);
        cluster.kill(3);
    };
    let restart = || {
        cluster.restart(2);
        cluster.restart(3);
    };
    let tell = |error: PublishError, start: Instant, what: &str| {
        println!(
            "{test}: {what} gave up after {:.1?}: {error}",
            start.elapsed()
        );
        let PublishError::Store(error) = error else {
            panic!("{error:?}");
        };
        assert_reason(Err::<(), _>(error), |r| {
            matches!(
                r,
                Reason::Unavailable(_) | Reason::Timeout(_) | Reason::Broken(_)
            )
        });
    };
    let start = Instant::now();
    let error = local.push(&store, "v1", &after(3, &kill)).unwrap_err();
    tell(error, start, "publish");
    restart();
    let start = Instant::now();
    let pushed = local.push(&patient, "v1", &()).unwrap();
    println!(
        "{test}: published again in {:.1?}: {pushed:?}",
        start.elapsed()
    );
    cluster.wait();

    let start = Instant::now();
    let error = local
        .pull(&store, "v1", "out", &after(10, &kill))
        .unwrap_err();
    tell(error, start, "pull");
    let there = local.assert_whole("out");
    assert!((10..local.cases.len()).contains(&there), "{there}");
    restart();
    let start = Instant::now();
    let pulled = local.pull(&patient, "v1", "out", &()).unwrap();
    println!(
        "{test}: pulled the rest in {:.1?}: {pulled:?}",
        start.elapsed()
    );
    assert_eq!(pulled.written, (local.cases.len() - there) as u64);
    assert_eq!(local.assert_whole("out"), local.cases.len());
}
