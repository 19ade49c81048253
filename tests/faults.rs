//! Releases on their way over a bad network: what arrives is right, or an error says that it is
//! not, in bounded time; whatever was there before stays.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use casepack::bundle::{Compression, RefName, Release};
use casepack::event::Observer;
use casepack::path::{CaseId, TreePath};
use casepack::publish::{
    Chosen, Layout, PublishError, Pull, Pulled, Push, Pushed, Remote, Which, pull, push,
};
use casepack::store::{AT_ONCE, S3, S3Settings, Store, for_each};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    BUCKET, Case, Fault, Outcome, Project, ProjectBuilder, Proxy, S3Server, Way, many, pack,
    read_tree,
};

/// A release in a directory, and its cases.
pub(crate) struct Local {
    project: Project,
    pub(crate) cases: BTreeMap<String, Case>,
    release: Release,
}

impl Local {
    pub(crate) fn new(cases: BTreeMap<String, Case>) -> Self {
        let project = ProjectBuilder::new().build();
        let release = pack(&project.path("bundle"), &cases, Compression::Zstd, 2).release;
        Self {
            project,
            cases,
            release,
        }
    }

    /// Publishes it to `store` under `tag`.
    pub(crate) fn push(
        &self,
        store: &dyn Store,
        tag: &str,
        observer: &dyn Observer,
    ) -> Result<Pushed, PublishError> {
        let push_it = Push {
            from: &self.project.path("bundle"),
            release: &self.release,
            remote: Remote::new(store, None),
            reference: &RefName::new(tag).unwrap(),
            force: false,
            repair: false,
            dry_run: false,
            grace: Duration::from_hours(24),
            stop: &AtomicBool::new(false),
        };
        push(&push_it, observer)
    }

    /// Pulls what `tag` names into the directory `out` of the project.
    pub(crate) fn pull(
        &self,
        store: &dyn Store,
        tag: &str,
        out: &str,
        observer: &dyn Observer,
    ) -> Result<Pulled, PublishError> {
        let remote = Remote::new(store, None);
        let release = remote.release(&Which::Ref(RefName::new(tag).unwrap()))?;
        let pull_it = Pull {
            remote,
            release: &release,
            chosen: Chosen {
                has: &|_: &CaseId| true,
                only: None,
            },
            layout: Layout::Harbor,
            out: &self.project.path(out),
            max_bytes: None,
            force: false,
            jobs: 2,
            stop: &AtomicBool::new(false),
        };
        fs::create_dir_all(self.project.path(out)).unwrap();
        pull(&pull_it, observer)
    }

    /// Fails unless every case in `out` is whole; returns how many there are.
    #[track_caller]
    pub(crate) fn assert_whole(&self, out: &str) -> usize {
        let Ok(list) = fs::read_dir(self.project.path(out)) else {
            return 0;
        };
        let mut count = 0;
        for entry in list {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name == ".casepack" || name == "dataset.toml" {
                continue;
            }
            let found = read_tree(&self.project.path(out).join(&name));
            assert_eq!(found.id(), self.cases[&name].package().id(), "{name}");
            count += 1;
        }
        count
    }

    /// Fails unless all of `tag` comes back right.
    #[track_caller]
    pub(crate) fn assert_comes_back(&self, store: &dyn Store, tag: &str, out: &str) {
        self.pull(store, tag, out, &()).unwrap();
        assert_eq!(self.assert_whole(out), self.cases.len());
    }
}

/// Bytes that don't compress.
pub(crate) fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed + 1;
    let words = std::iter::repeat_with(|| {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes()
    });
    words.flatten().take(size).collect()
}

/// A few cases with a content for each way of packing: shared, own, and in frames of its own.
fn cases() -> BTreeMap<String, Case> {
    let mut cases = many(12);
    for (at, case) in cases.values_mut().enumerate() {
        let file = case
            .clone()
            .workspace("noise.bin", noise(at as u64, 30_000));
        *case = file;
    }
    let last = cases.remove("case-00011").unwrap();
    cases.insert(
        "case-00011".to_owned(),
        last.workspace("large.bin", noise(99, 1_500_000)),
    );
    cases
}

/// Soon tired of a server that keeps silent, and patient for as long as it may take all the same: how
/// many faults there are is bounded, and how busy the machine is, is not. That patience ends is
/// tested where one server has nothing else to do.
fn open(server: &S3Server, endpoint: &str, prefix: &str) -> S3 {
    let settings = S3Settings {
        endpoint: Some(endpoint.to_owned()),
        timeout: Duration::from_secs(2),
        patience: Duration::from_mins(10),
        ..server.settings()
    };
    S3::open(BUCKET, Some(&TreePath::new(prefix).unwrap()), &settings).unwrap()
}

/// Everything that goes wrong, early and late in a connection; on the first connections, or on those
/// of the blobs, which go at once.
fn faults() -> impl Iterator<Item = (usize, Fault, bool)> {
    let places = [Way::Up, Way::Down]
        .into_iter()
        .flat_map(|way| [0, 1_000, 100_000].map(|at| (way, at)));
    places
        .flat_map(|(way, at)| {
            [
                Fault::Stall(way, at),
                Fault::Cut(way, at),
                Fault::Flip(way, at),
            ]
        })
        .chain([Fault::Refuse, Fault::SlowDown])
        .flat_map(|fault| [(fault, false), (fault, true)])
        .enumerate()
        .map(|(at, (fault, late))| (at, fault, late))
}

/// A proxy that will do what [`faults`] says: often, but not as often as a client gives up.
fn proxy(server: &S3Server, fault: Fault, late: bool) -> Proxy {
    let proxy = Proxy::before(server.endpoint());
    proxy.pass(usize::from(late));
    proxy.next(if late { 4 } else { 2 }, fault);
    proxy
}

fn is_flip(fault: &Fault) -> bool {
    matches!(fault, Fault::Flip(..))
}

#[test]
fn a_publish_survives_a_bad_network() {
    let server = S3Server::start();
    let before = Local::new(many(3));
    let local = Local::new(cases());
    let happened = std::sync::atomic::AtomicUsize::new(0);
    for_each(faults(), 16, |(at, fault, late)| {
        let prefix = format!("store-{at}");
        let straight = open(&server, server.endpoint(), &prefix);
        before.push(&straight, "before", &()).unwrap();
        let proxy = proxy(&server, fault, late);
        let bad = open(&server, &proxy.endpoint(), &prefix);
        let pushed = local.push(&bad, "new", &());
        let done = proxy.take_done();
        happened.fetch_add(done.len(), Ordering::SeqCst);
        match &pushed {
            Ok(_) => local.assert_comes_back(&straight, "new", &format!("new-{at}")),
            // Nothing else is worth an error: a later try succeeds.
            Err(error) => {
                assert!(done.iter().any(is_flip), "{fault:?}: {error:?}");
                assert!(!error.to_string().is_empty() && !error.help().is_empty());
            }
        }
        // What was there is as it was, and so is what can be read of the new one.
        before.assert_comes_back(&straight, "before", &format!("before-{at}"));
        if pushed.is_err() {
            rerun(&local, &straight, &format!("again-{at}"));
        }
        Ok::<_, ()>(())
    })
    .unwrap();
    let happened = happened.into_inner();
    assert!(happened > faults().count(), "{happened}");
}

/// The same command again, without faults. This server keeps what it has refused (see
/// [`S3Server`]), under the right name and with the right size: then a pull finds it, and a
/// verified repair is to remove it and to publish again.
fn rerun(local: &Local, store: &S3, out: &str) {
    local.push(store, "new", &()).unwrap();
    match local.pull(store, "new", out, &()) {
        Ok(_) => {}
        Err(PublishError::Bad(bad)) => assert!(bad.object.contains("sha256:"), "{bad}"),
        Err(error) => panic!("{error:?}"),
    }
    local.assert_whole(out);
}

#[test]
fn a_pull_survives_a_bad_network() {
    let server = S3Server::start();
    let local = Local::new(cases());
    let straight = open(&server, server.endpoint(), "store");
    local.push(&straight, "v1", &()).unwrap();
    let happened = std::sync::atomic::AtomicUsize::new(0);
    for_each(faults(), 16, |(at, fault, late)| {
        let proxy = proxy(&server, fault, late);
        let bad = open(&server, &proxy.endpoint(), "store");
        let out = format!("out-{at}");
        let pulled = local.pull(&bad, "v1", &out, &());
        let done = proxy.take_done();
        happened.fetch_add(done.len(), Ordering::SeqCst);
        let there = local.assert_whole(&out);
        match pulled {
            Ok(_) => assert_eq!(there, local.cases.len()),
            Err(error) => {
                assert!(done.iter().any(is_flip), "{fault:?}: {error:?}");
                assert!(!error.to_string().is_empty() && !error.help().is_empty());
                local.assert_comes_back(&straight, "v1", &out);
            }
        }
        Ok::<_, ()>(())
    })
    .unwrap();
    let happened = happened.into_inner();
    assert!(happened > faults().count(), "{happened}");
}

/// The same through the binary, with a user's patience.
#[test]
fn commands_survive_a_bad_network() {
    let server = S3Server::start();
    let local = Local::new(cases());
    let url = format!("s3://{BUCKET}/store");
    let faults = [
        Fault::Refuse,
        Fault::SlowDown,
        Fault::Cut(Way::Up, 60_000),
        Fault::Cut(Way::Down, 60_000),
        Fault::Flip(Way::Up, 60_000),
        Fault::Flip(Way::Down, 60_000),
    ];
    for (at, fault) in faults.into_iter().enumerate() {
        let proxy = Proxy::before(server.endpoint());
        let run = |args: &[&str]| {
            let mut invocation = local.project.invoke(args.iter().copied());
            for (name, value) in server.env() {
                invocation = invocation.env(name, value);
            }
            let invocation = invocation.env("AWS_ENDPOINT_URL_S3", proxy.endpoint());
            proxy.pass(1);
            proxy.next(3, fault);
            let outcome = invocation.run();
            (outcome, proxy.take_done())
        };
        let tag = format!("v{at}");
        let out = format!("out-{at}");
        let publish = ["publish", &url, "--from", "bundle", "--tag", &tag];
        let pull = ["pull", &url, "--ref", &tag, "-o", &out];
        for args in [&publish[..], &pull] {
            let (outcome, done) = run(args);
            if outcome.code != 0 {
                assert!(done.iter().any(is_flip), "{fault:?}: {outcome}");
                assert!(outcome.stderr.contains("help: "), "{outcome}");
                outcome.assert_code(3);
                let mut again = local.project.invoke(args.iter().copied());
                for (name, value) in server.env() {
                    again = again.env(name, value);
                }
                again.run().assert_code(0);
            }
        }
        assert_eq!(local.assert_whole(&out), local.cases.len());
    }
}

/// A child that works with the store behind `proxy`.
fn start(local: &Local, server: &S3Server, proxy: &Proxy, args: &[&str]) -> Child {
    let mut invocation = local.project.invoke(args.iter().copied());
    for (name, value) in server.env() {
        invocation = invocation.env(name, value);
    }
    let invocation = invocation.env("AWS_ENDPOINT_URL_S3", proxy.endpoint());
    let mut command = invocation.command();
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs a command with the store as it is.
fn run(local: &Local, server: &S3Server, args: &[&str]) -> Outcome {
    let mut invocation = local.project.invoke(args.iter().copied());
    for (name, value) in server.env() {
        invocation = invocation.env(name, value);
    }
    invocation.run()
}

/// Killed at each step of the order in which a release is written: before its first blob, between
/// the manifest and the ref, between the ref and the index.
#[test]
fn a_publish_that_is_killed_between_two_steps_leaves_whole_releases() {
    let server = S3Server::start();
    let url = format!("s3://{BUCKET}/store");
    let mut local = Local::new(cases());
    let publish = ["publish", &url, "--from", "bundle", "--tag", "v1"];
    run(&local, &server, &publish).assert_code(0);
    let object = |key: &str| fs::read(server.files().join("store").join(key));
    for (round, step) in ["blobs/", "refs/v1.json", "index.json"].iter().enumerate() {
        let before = object("refs/v1.json").unwrap();
        let case = local.cases.values_mut().next().unwrap();
        case.workspace
            .insert("round".to_owned(), format!("{round}\n").into());
        local.release = pack(
            &local.project.path("bundle"),
            &local.cases,
            Compression::Zstd,
            2,
        )
        .release;
        let manifest = format!("blobs/sha256/{}", local.release.digest.hex());
        let proxy = Proxy::before(server.endpoint());
        let held = proxy.hold(&format!("PUT /{BUCKET}/store/{step}"));
        let mut child = start(&local, &server, &proxy, &publish);
        held.recv().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // The manifest is there before the ref names it, and the ref before the index does.
        assert_eq!(object(&manifest).is_ok(), round > 0, "{step}");
        assert_eq!(
            object("refs/v1.json").unwrap() == before,
            round < 2,
            "{step}"
        );
        let out = format!("out-{round}");
        let pull = ["pull", &url, "--ref", "v1", "-o", &out, "--output", "json"];
        let pulled = run(&local, &server, &pull).assert_code(0).json();
        assert_eq!(pulled["cases"], local.cases.len());
        let is_new = pulled["release"] == local.release.digest.to_string();
        assert_eq!(is_new, round == 2, "{step}");
        run(&local, &server, &publish).assert_code(0);
        run(&local, &server, &["verify", &url]).assert_code(0);
        let done = format!("done-{round}");
        run(&local, &server, &["pull", &url, "--ref", "v1", "-o", &done]).assert_code(0);
        assert_eq!(local.assert_whole(&done), local.cases.len());
    }
}

/// Somebody who presses Ctrl-C does not wait for a store that does not answer.
#[test]
fn an_interrupt_ends_what_waits_for_the_store() {
    let server = S3Server::start();
    let url = format!("s3://{BUCKET}/store");
    let local = Local::new(cases());
    let publish = ["publish", &url, "--from", "bundle", "--tag", "v1"];
    let pull = ["pull", &url, "--ref", "v1", "-o", "out"];
    let verify = ["verify", &url];
    for (args, request) in [
        (&publish[..], "PUT /bucket/store/blobs/"),
        (&pull[..], "GET /bucket/store/blobs/"),
        (&verify[..], "GET /bucket/store/blobs/"),
    ] {
        let proxy = Proxy::before(server.endpoint());
        let held = proxy.hold(request);
        let child = start(&local, &server, &proxy, args);
        held.recv().unwrap();
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::INT).unwrap();
        let ended = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(130), "{args:?}: {told}");
        local.assert_whole("out");
        run(&local, &server, args).assert_code(0);
    }
    assert_eq!(local.assert_whole("out"), local.cases.len());
}

/// What a store refuses once is not asked of it for every object: the first refusal ends the work,
/// and what is in place is whole.
#[test]
fn the_first_refusal_of_a_store_ends_the_work() {
    let server = S3Server::start();
    let mut cases = many(24);
    for (at, case) in cases.values_mut().enumerate() {
        let noise = noise(at as u64, 1 << 20);
        case.workspace.insert("noise".to_owned(), noise);
    }
    let local = Local::new(cases);
    let url = format!("s3://{BUCKET}/store");
    let plain = format!("s3://{BUCKET}/plain");
    for at in 0..200 {
        let name = format!("files/cases/case-{at:03}/input.yaml");
        local.project.write(&name, format!("number: {at}\n"));
    }
    let release = ["publish", &url, "--from", "bundle"];
    let pull = ["pull", &url, "-o", "out"];
    let verify = ["verify", &url];
    let files = [
        "publish",
        &plain,
        "--from",
        "files",
        "--layout",
        "agent-eval-s3",
    ];
    for (args, request, pass) in [
        (&release[..], "PUT /bucket/store/blobs/", 2),
        (&files[..], "PUT /bucket/plain/", 30),
        (&pull[..], "GET /bucket/store/blobs/", 14),
        (&verify[..], "GET /bucket/store/blobs/", 3),
    ] {
        let proxy = Proxy::before(server.endpoint());
        let denied = proxy.deny(request, pass);
        let child = start(&local, &server, &proxy, args);
        let ended = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(3), "{args:?}: {told}");
        assert!(told.contains("access is denied"), "{args:?}: {told}");
        // Those that were under way, of hundreds; large objects go in several requests.
        let denied = denied.try_iter().count();
        let most = if args == files { AT_ONCE } else { 4 * AT_ONCE };
        assert!((1..=most).contains(&denied), "{args:?}: {denied}");
        let whole = local.assert_whole("out");
        assert!(args[0] != "pull" || whole < local.cases.len());
        run(&local, &server, args).assert_code(0);
    }
    assert_eq!(local.assert_whole("out"), local.cases.len());
}
