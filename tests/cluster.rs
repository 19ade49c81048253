//! Stores in a Garage cluster whose nodes die and freeze: see `scripts/fault-tests`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use casepack::digest::Digest;
use casepack::path::TreePath;
use casepack::store::{
    Body, Conditions, Expected, Reason, S3, S3Settings, Store, StoreError, Swap, for_each,
};

use crate::store::{assert_reason, conforms, get, key, keys, put};
use crate::support::Cluster;

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
    assert_eq!(range, content[(8 << 20) - 5..(8 << 20) + 5]);
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
