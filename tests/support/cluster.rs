//! The Garage cluster that `scripts/fault-tests` starts, with nodes to break.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use casepack::store::{Access, AccessKeys, S3, S3Settings, Store as _};

/// Tests that break nodes take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Three nodes that keep three copies; all of them run again when this is dropped.
pub(crate) struct Cluster {
    dir: String,
    bucket: String,
    region: String,
    keys: AccessKeys,
    endpoints: Vec<String>,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// The cluster, when there is one; otherwise says that `test` is skipped.
    pub(crate) fn for_test(test: &str) -> Option<Self> {
        let Ok(dir) = std::env::var("CASEPACK_TEST_CLUSTER") else {
            println!("{test}: skipped: it needs a Garage cluster; run scripts/fault-tests");
            return None;
        };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let variable = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| panic!("scripts/s3 env sets {name}"))
        };
        let endpoints = variable("CASEPACK_TEST_ENDPOINTS");
        let cluster = Self {
            dir,
            bucket: variable("CASEPACK_TEST_BUCKET"),
            region: variable("AWS_REGION"),
            keys: AccessKeys {
                id: variable("AWS_ACCESS_KEY_ID"),
                secret: variable("AWS_SECRET_ACCESS_KEY"),
                session: None,
            },
            endpoints: endpoints.split_whitespace().map(str::to_owned).collect(),
            _turn: turn,
        };
        assert_eq!(
            cluster.endpoints.len(),
            3,
            "the tests are about three nodes"
        );
        cluster.wait();
        Some(cluster)
    }

    /// The only bucket.
    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// How to reach it through node `node`, counted from 1.
    pub(crate) fn settings(&self, node: usize) -> S3Settings {
        S3Settings {
            endpoint: Some(self.endpoints[node - 1].clone()),
            region: Some(self.region.clone()),
            access: Access::Keys(self.keys.clone()),
            ..S3Settings::default()
        }
    }

    pub(crate) fn kill(&self, node: usize) {
        self.script("kill", node);
    }

    pub(crate) fn freeze(&self, node: usize) {
        self.script("freeze", node);
    }

    pub(crate) fn thaw(&self, node: usize) {
        self.script("thaw", node);
    }

    /// Starts it again, unless it runs; it may need half a minute to find the others.
    pub(crate) fn restart(&self, node: usize) {
        self.script("restart", node);
    }

    /// Waits until every node answers for all of them.
    pub(crate) fn wait(&self) {
        let start = Instant::now();
        for node in 1..=3 {
            let settings = S3Settings {
                timeout: Duration::from_secs(5),
                patience: Duration::from_secs(5),
                ..self.settings(node)
            };
            let store = S3::open(&self.bucket, None, &settings).expect("settings are good");
            while let Err(error) = store.list("", &mut |_| std::ops::ControlFlow::Break(())) {
                assert!(start.elapsed().as_secs() < 120, "node {node}: {error:?}");
            }
        }
    }

    #[track_caller]
    fn script(&self, verb: &str, node: usize) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/s3");
        let done = Command::new(script)
            .args([verb, &node.to_string()])
            .env("S3_DIR", &self.dir)
            .output()
            .expect("scripts/s3 starts");
        assert!(done.status.success(), "{verb} {node}: {done:?}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in 1..=3 {
            self.restart(node);
            self.thaw(node);
        }
        if !std::thread::panicking() {
            self.wait();
        }
    }
}
