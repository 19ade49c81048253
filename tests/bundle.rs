//! Bundles as users meet them: published, listed, pulled, collected; whatever is killed or altered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use casepack::bundle::Compression;
use casepack::digest::Digest;
use serde_json::Value;

use crate::support::read_tree as read;
use crate::support::{BUCKET, Case, Outcome, Project, ProjectBuilder, S3Server, many, pack, tree};

/// A project with a release of `cases` in `bundle/`.
fn with_release(cases: &BTreeMap<String, Case>) -> Project {
    let project = ProjectBuilder::new().build();
    pack(&project.path("bundle"), cases, Compression::Zstd, 2);
    project
}

/// Runs casepack with the access to a server.
fn run_with(project: &Project, server: &S3Server, args: &[&str]) -> Outcome {
    let mut invocation = project.invoke(args.iter().copied());
    for (name, value) in server.env() {
        invocation = invocation.env(name, value);
    }
    invocation.run()
}

/// A store in a directory and one on a server, each with where its files are.
fn stores(project: &Project, server: &S3Server) -> [(String, PathBuf); 2] {
    let dir = project.path("store");
    let shown = dir.to_str().unwrap().to_owned();
    let url = format!("s3://{BUCKET}/store");
    [(shown, dir), (url, server.files().join("store"))]
}

fn json(project: &Project, args: &[&str]) -> Value {
    let args = args
        .iter()
        .chain(&["--output", "json", "--progress", "none"]);
    project.casepack(args.copied()).assert_code(0).json()
}

fn publish(project: &Project, dest: &str, tag: &str) -> Value {
    json(
        project,
        &["publish", dest, "--from", "bundle", "--tag", tag],
    )
}

/// Directories in a destination but casepack's own.
fn cases_in(out: &Path) -> Vec<String> {
    let Ok(list) = fs::read_dir(out) else {
        return Vec::new();
    };
    let names = list.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names
        .filter(|name| !name.starts_with(".casepack") && name != "dataset.toml")
        .collect();
    names.sort();
    names
}

/// Every blob of the store root, by name.
fn blobs(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let list = fs::read_dir(root.join("blobs/sha256")).unwrap();
    list.map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(&path).unwrap())
    })
    .collect()
}

#[test]
fn a_directory_store_gives_back_what_was_published() {
    let cases = many(25);
    let project = with_release(&cases);
    let published = publish(&project, "store", "v1");
    assert_eq!(published["schema"], "casepack.publish.v1");
    assert_eq!(published["cases"], 25);
    let digest = published["release"].as_str().unwrap().to_owned();
    let dataset = published["dataset_digest"].as_str().unwrap().to_owned();

    let at = format!("store@{digest}");
    for (out, args) in [
        ("by-ref", vec!["store", "--ref", "v1"]),
        ("by-digest", vec![at.as_str()]),
    ] {
        let mut all = vec!["pull", "-o", out, "--expect-dataset", &dataset];
        all.extend(args);
        let pulled = json(&project, &all);
        assert_eq!(pulled["schema"], "casepack.pull.v1");
        assert_eq!(
            (&pulled["cases"], &pulled["written"]),
            (&25.into(), &25.into())
        );
        for (id, case) in &cases {
            assert_eq!(read(&project.path(out).join(id)).id(), case.package().id());
        }
    }
    let again = json(&project, &["pull", "store", "--ref", "v1", "-o", "by-ref"]);
    assert_eq!(
        (&again["cases"], &again["written"]),
        (&25.into(), &0.into())
    );

    // The same bytes, published twice, are the same store.
    publish(&project, "other", "v1");
    assert_eq!(project.tree("store"), project.tree("other"));

    let listed = json(&project, &["ls", "store"]);
    assert_eq!(listed["refs"][0]["name"], "v1");
    assert_eq!(listed["refs"][0]["release"], digest);
    let listed = json(&project, &["ls", "store", "--ref", "v1"]);
    assert_eq!(listed["cases"].as_array().unwrap().len(), 25);
    let inspected = json(&project, &["inspect", "store", "case-00003", "--ref", "v1"]);
    let tree_of_case = tree(&cases["case-00003"].workspace).id().to_string();
    assert_eq!(inspected["views"]["workspace"]["tree"], tree_of_case);
    let document = json(&project, &["inspect", "store", "--ref", "v1"]);
    assert_eq!(document["document"]["dataset"], dataset);
}

#[test]
fn a_bucket_gives_back_what_was_published() {
    let mut cases = many(25);
    let noise: Vec<u8> = (0..100_000_u64)
        .flat_map(|at| *Digest::of(&at.to_le_bytes()).as_bytes())
        .collect();
    for id in ["case-00001", "case-00002"] {
        let case = cases.remove(id).unwrap();
        cases.insert(id.to_owned(), case.workspace("big.bin", noise.clone()));
    }
    let project = with_release(&cases);
    let server = S3Server::start();
    let url = format!("s3://{BUCKET}/some/prefix");
    let run = |args: &[&str], code| run_with(&project, &server, args).assert_code(code);
    run(&["publish", &url, "--from", "bundle", "--tag", "v1"], 0);
    assert_eq!(
        blobs(&project.path("bundle")),
        blobs(&server.files().join("some/prefix"))
    );
    server.take_requests();
    // Again: one look at the ref, one at the index.
    run(&["publish", &url, "--from", "bundle", "--tag", "v1"], 0);
    let requests = server.take_requests();
    assert!(requests.len() <= 3, "{requests:?}");
    assert!(requests.iter().all(|it| it.method != "PUT"), "{requests:?}");

    run(&["pull", &url, "--ref", "v1", "-o", "out"], 0);
    for (id, case) in &cases {
        assert_eq!(
            read(&project.path("out").join(id)).id(),
            case.package().id()
        );
    }
    // One case: its shards, its frames, and nothing else.
    server.take_requests();
    let args = [
        "pull",
        &url,
        "--ref",
        "v1",
        "-o",
        "one",
        "--case",
        "case-00007",
    ];
    run(&args, 0);
    assert_eq!(cases_in(&project.path("one")), ["case-00007"]);
    let requests = server.take_requests();
    assert!(requests.len() <= 14, "{requests:?}");
    // What only judges see is not even asked for.
    let secret: Vec<String> = {
        let document = run(&["inspect", &url, "--ref", "v1", "--output", "json"], 0).json();
        let document = &document["document"];
        let of = |list: &Value| -> Vec<Value> { list.as_array().unwrap().clone() };
        let all = [of(&document["shards"]), of(&document["packs"])].concat();
        let other = all.iter().filter(|it| it["view"] != "workspace");
        let digests = other.flat_map(|it| [&it["digest"], &it["index"]["digest"]]);
        let digests = digests.filter_map(|digest| digest.as_str());
        digests
            .map(|digest| digest.replace("sha256:", ""))
            .collect()
    };
    assert!(secret.len() >= 4);
    server.take_requests();
    run(
        &[
            "pull",
            &url,
            "--ref",
            "v1",
            "-o",
            "seen",
            "--view",
            "workspace",
        ],
        0,
    );
    for request in server.take_requests() {
        assert!(
            !secret.iter().any(|hex| request.key.contains(hex)),
            "{request:?}"
        );
    }
    for (id, case) in &cases {
        assert_eq!(
            read(&project.path("seen").join(id)).id(),
            tree(&case.workspace).id()
        );
    }
    let outcome = run(&["pull", &format!("s3://{BUCKET}/nowhere"), "-o", "x"], 2);
    assert!(
        outcome.stderr.contains("There is no ref 'latest'"),
        "{outcome}"
    );
}

#[test]
fn the_layout_of_adapters_is_told_to_have_answers() {
    let project = with_release(&many(3));
    publish(&project, "store", "v1");
    let args = [
        "pull", "store", "--ref", "v1", "-o", "out", "--as", "cases", "--output", "json",
    ];
    let outcome = project.casepack(args).assert_code(0);
    let findings = outcome.findings("answer-key-readable");
    assert_eq!(findings.len(), 2, "{outcome}");
    let mut merged = Case::numbered(1).workspace;
    merged.extend(Case::numbered(1).evaluation);
    assert_eq!(
        read(&project.path("out/case-00001")).id(),
        tree(&merged).id()
    );
}

#[test]
fn a_store_without_a_release_is_not_whole() {
    let project = ProjectBuilder::new().build();
    let server = S3Server::start();
    let run = |args: &[&str]| run_with(&project, &server, args);
    // Mistyped, as likely as not.
    let listed = run(&["ls", "s3://bucket/nowhere"]).assert_code(0);
    assert!(
        listed.stdout.contains("no release in s3://bucket/nowhere"),
        "{listed}"
    );
    let verified = run(&["verify", "s3://bucket/nowhere"]).assert_code(2);
    assert!(
        verified
            .stderr
            .contains("no release in s3://bucket/nowhere"),
        "{verified}"
    );
    let collected = run(&["gc", "s3://bucket/nowhere", "--write"]).assert_code(2);
    assert!(
        collected
            .stderr
            .contains("no release in s3://bucket/nowhere"),
        "{collected}"
    );
    assert!(server.take_requests().iter().all(|it| it.method == "GET"));
    let pulled = run(&["pull", "s3://bucket/nowhere", "-o", "out"]).assert_code(2);
    assert!(pulled.stderr.contains("no ref 'latest'"), "{pulled}");
    assert!(!project.path("out").exists());
}

#[test]
fn what_sends_nothing_makes_nothing() {
    let project = with_release(&many(3));
    project.write("plain/eval.yaml", "name: x\ndataset: {path: cases}\n");
    project.write("plain/cases/a/input.yaml", "a: 1\n");
    let before = project.tree(".");
    let plain = ["--from", "plain", "--layout", "evalhub-testdata"];
    for (args, code, says) in [
        (
            vec!["--from", "bundle", "--dry-run"],
            0,
            "Would send 9 blobs",
        ),
        (vec!["--dry-run"], 0, "Would send 2 objects"),
        (vec!["--from", "nothing"], 3, "no such directory"),
        (
            vec!["--from", "plain"],
            2,
            "There is no release of a build in",
        ),
        (vec!["nothing"], 1, "does not exist"),
        (vec!["--from", "bundle", "plain"], 2, "cannot be used with"),
        (vec!["--from", "bundle", "--tag", "a b"], 2, "--tag"),
    ] {
        let mut all = vec!["publish", "new/store"];
        if args == ["--dry-run"] {
            all.extend(plain);
        }
        all.extend(args);
        let outcome = project.casepack(all).assert_code(code);
        let told = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(told.contains(says), "{outcome}");
        assert_eq!(project.tree("."), before, "{outcome}");
    }
}

#[test]
fn what_can_not_be_pulled_is_said() {
    let project = with_release(&many(4));
    publish(&project, "store", "v1");
    let wrong = format!("sha256:{}", "0".repeat(64));
    for (args, code, says) in [
        (
            vec!["--case", "nothing-*"],
            2,
            "No case of the release is wanted",
        ),
        (vec!["--ref", "v9"], 2, "There is no ref 'v9'"),
        (vec!["--expect-dataset", &wrong], 2, "is of the dataset"),
        (vec!["--max-bytes", "10"], 2, "more than the 10"),
        (
            vec!["--view", "task", "--as", "cases"],
            2,
            "Leave one of them out",
        ),
    ] {
        let mut all = vec!["pull", "store", "-o", "out", "--summary", "summary.json"];
        if !args.contains(&"--ref") {
            all.extend(["--ref", "v1"]);
        }
        all.extend(args);
        let outcome = project.casepack(all).assert_code(code);
        assert!(outcome.stderr.contains(says), "{outcome}");
        assert_eq!(cases_in(&project.path("out")), Vec::<String>::new());
        let summary: Value = serde_json::from_str(&project.read("summary.json")).unwrap();
        assert_eq!(summary["exit_code"], code);
        assert!(
            summary["error"]
                .as_str()
                .is_some_and(|error| !error.is_empty())
        );
    }
    let at = project
        .casepack(["pull", "store@v1", "-o", "out"])
        .assert_code(3);
    assert!(at.stderr.contains("write --ref v1"), "{at}");
    let outcome = project
        .casepack(["pull", "nowhere", "-o", "out"])
        .assert_code(3);
    assert!(outcome.stderr.contains("no such directory"), "{outcome}");
    let args = [
        "pull",
        "store",
        "--ref",
        "v1",
        "-o",
        "out",
        "--summary",
        "summary.json",
    ];
    project.casepack(args).assert_code(0);
    let summary: Value = serde_json::from_str(&project.read("summary.json")).unwrap();
    assert_eq!(
        (&summary["cases"], &summary["exit_code"]),
        (&4.into(), &0.into())
    );
    // Somebody's work stays where it is.
    project.write("out/case-00002/task.toml", "mine");
    let args = ["pull", "store", "--ref", "v1", "-o", "out"];
    let outcome = project.casepack(args).assert_code(2);
    assert!(
        outcome.stderr.contains("out/case-00002 is something else"),
        "{outcome}"
    );
    assert_eq!(project.read("out/case-00002/task.toml"), "mine");
    project
        .casepack(args.into_iter().chain(["--force"]))
        .assert_code(0);
    let package = Case::numbered(2).package();
    assert_eq!(read(&project.path("out/case-00002")).id(), package.id());
}

#[test]
fn publishing_again_mends_what_a_store_has_lost() {
    let project = with_release(&many(25));
    publish(&project, "store", "v1");
    let whole = project.tree("store");
    let pack = {
        let inspected = json(&project, &["inspect", "store", "--ref", "v1"]);
        let digest = inspected["document"]["packs"][0]["digest"].as_str();
        digest.unwrap().replace("sha256:", "store/blobs/sha256/")
    };
    let shorter = |name: &str| {
        let bytes = fs::read(project.path(name)).unwrap();
        fs::write(project.path(name), &bytes[..bytes.len() - 7]).unwrap();
    };
    let pull = ["pull", "store", "--ref", "v1", "-o", "out"];
    for force in [false, true] {
        let damages: [&dyn Fn(); 5] = [
            &|| shorter(&pack),
            &|| project.remove(&pack),
            &|| project.remove("store/oci-layout"),
            &|| shorter("store/oci-layout"),
            &|| project.remove("store/index.json"),
        ];
        for (at, damage) in damages.iter().enumerate() {
            damage();
            if at < 2 {
                let told = project.casepack(pull).assert_code(3);
                assert!(told.stderr.contains("The store is damaged"), "{told}");
                assert!(told.stderr.contains("publish --repair"), "{told}");
            }
            let mut args = vec!["publish", "store", "--from", "bundle", "--tag", "v1"];
            args.extend(force.then_some("--force"));
            let again = json(&project, &args);
            assert_eq!(again["unchanged"], false, "{at} {again}");
            assert_eq!(project.tree("store"), whole, "{at} {force}");
        }
    }
    let again = publish(&project, "store", "v1");
    assert_eq!(again["unchanged"], true, "{again}");
}

/// Bytes of the same number that are others.
fn alter(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, &bytes).unwrap();
}

#[test]
fn what_verify_finds_one_command_mends() {
    let project = with_release(&many(25));
    let server = S3Server::start();
    let run = |args: &[&str], code| run_with(&project, &server, args).assert_code(code);
    for (store, files) in stores(&project, &server) {
        let (store, files) = (store.as_str(), files.as_path());
        let publish = ["publish", store, "--from", "bundle", "--tag", "v1"];
        run(&publish, 0);
        let whole = blobs(files);
        let names = whole.keys().map(|name| format!("blobs/sha256/{name}"));
        let rest = ["refs/v1.json", "index.json", "oci-layout"];
        let names: Vec<String> = names.chain(rest.map(str::to_owned)).collect();
        for (at, name) in names.iter().enumerate() {
            alter(&files.join(name));
            // All at once as well.
            if at == 0 {
                continue;
            }
            let told = run(&["verify", store], 1);
            assert!(
                told.stdout.contains(name) || name == "refs/v1.json",
                "{told}"
            );
            let fix = format!("`casepack publish {} --tag v1 --repair`", "STORE");
            let shown = told
                .stderr
                .replace(store, "STORE")
                .replace("[PROJECT]/store", "STORE");
            assert!(
                shown.contains(&fix) || name == "refs/v1.json",
                "{fix}: {told}"
            );
            let dry = [&publish[..], &["--repair", "--dry-run", "--output", "json"]].concat();
            let dry = run(&dry, 0).json();
            run(&[&publish[..], &["--repair"]].concat(), 0);
            run(&["verify", store], 0);
            assert_eq!(blobs(files), whole, "{name}");
            let is_blob = name.starts_with("blobs/");
            assert!(!is_blob || dry["damaged"].as_u64() <= Some(2), "{dry}");
        }
    }
}

/// A digest is one of all bytes, also of those that come after what a release needs.
#[test]
fn a_blob_that_goes_on_is_found() {
    let mut cases = many(25);
    let case = cases.get_mut("case-00001").unwrap();
    // More than is read at once, also when it is compressed.
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    let noise: Vec<u8> = (0..5 << 20).map(|_| next()).collect();
    case.workspace.insert("noise".to_owned(), noise);
    let project = with_release(&cases);
    let server = S3Server::start();
    let run = |args: &[&str], code| run_with(&project, &server, args).assert_code(code);
    for (store, files) in stores(&project, &server) {
        let (store, files) = (store.as_str(), files.as_path());
        let publish = ["publish", store, "--from", "bundle", "--tag", "v1"];
        run(&publish, 0);
        let whole = blobs(files);
        for (name, bytes) in &whole {
            let path = files.join("blobs/sha256").join(name);
            if !store.starts_with("s3:") {
                fs::remove_file(&path).unwrap();
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
                let told = run(&["verify", store], 1);
                assert!(told.stdout.contains(name), "{name}: {told}");
                assert!(told.stderr.contains("--repair"), "{name}: {told}");
                fs::remove_file(&path).unwrap();
            }
            fs::write(&path, [bytes, &b"x"[..]].concat()).unwrap();
            let told = run(&["verify", store], 1);
            assert!(told.stdout.contains(name), "{name}: {told}");
            assert!(told.stdout.contains("is longer than"), "{name}: {told}");
            fs::write(&path, bytes).unwrap();
        }
        for name in whole.keys() {
            let path = files.join("blobs/sha256").join(name);
            fs::write(&path, [&whole[name], &b"x"[..]].concat()).unwrap();
        }
        run(&[&publish[..], &["--repair"]].concat(), 0);
        run(&["verify", store], 0);
        assert_eq!(blobs(files), whole);
    }
}

/// A listing gives a thousand objects at a time, and a publish of what is there already asks for
/// one of them.
#[test]
fn what_is_lost_among_thousands_of_objects_is_found() {
    let mut cases = many(6);
    let project = with_release(&cases);
    let server = S3Server::start();
    let url = format!("s3://{BUCKET}/store");
    let run = |args: &[&str]| -> Value {
        let args = [
            &["publish", &url, "--from", "bundle", "--output", "json"],
            args,
        ]
        .concat();
        let mut invocation = project.invoke(args);
        for (name, value) in server.env() {
            invocation = invocation.env(name, value);
        }
        invocation.run().assert_code(0).json()
    };
    run(&[]);
    let files = server.files().join("store/blobs/sha256");
    let ours: Vec<String> = blobs(&project.path("bundle")).into_keys().collect();
    // Before all, and before the last but a few, of what the release needs.
    for at in 0..1100 {
        fs::write(files.join(format!("{at:064x}")), "of another release").unwrap();
    }
    server.take_requests();
    let again = run(&[]);
    assert_eq!(
        (&again["unchanged"], &again["compared"]),
        (&true.into(), &999.into())
    );
    assert!(server.take_requests().len() <= 3);
    let lost = files.join(ours.last().unwrap());
    let whole = fs::read(&lost).unwrap();
    // Beyond the first page nothing is seen, unless something is to be sent anyway,
    fs::remove_file(&lost).unwrap();
    assert_eq!(run(&[])["unchanged"], true);
    run(&["--tag", "other"]);
    assert_eq!(fs::read(&lost).unwrap(), whole);
    fs::remove_file(&lost).unwrap();
    cases
        .get_mut("case-00001")
        .unwrap()
        .workspace
        .insert("new".to_owned(), b"new\n".to_vec());
    pack(&project.path("bundle"), &cases, Compression::Zstd, 2);
    let needed = blobs(&project.path("bundle")).contains_key(ours.last().unwrap());
    run(&[]);
    assert_eq!(lost.exists(), needed);
    // or one of the flags asks for all.
    let lost = files.join(blobs(&project.path("bundle")).into_keys().last().unwrap());
    for flag in ["--force", "--repair"] {
        fs::remove_file(&lost).unwrap();
        let mended = run(&[flag]);
        assert_eq!(
            (&mended["unchanged"], &mended["uploaded"]),
            (&false.into(), &1.into())
        );
        assert!(lost.exists());
    }
}

#[test]
fn cases_that_are_gone_go_unless_they_were_changed() {
    let mut cases = many(6);
    let project = with_release(&cases);
    publish(&project, "store", "v1");
    for id in ["case-00001", "case-00002", "case-00003"] {
        cases.remove(id);
    }
    pack(&project.path("bundle"), &cases, Compression::Zstd, 2);
    publish(&project, "store", "v2");
    for (out, more) in [("a", &[][..]), ("b", &["--as", "cases"])] {
        let pull = |tag, also: &[&str]| {
            let args = ["pull", "store", "-o", out, "--ref", tag, "--output", "json"];
            let args = args.iter().chain(more).chain(also);
            project.casepack(args.copied()).assert_code(0)
        };
        pull("v1", &[]);
        let changed = format!("{out}/case-00001/mine.txt");
        project.write(&changed, "mine");
        project.write(&format!("{out}/notes/mine.txt"), "mine");
        // A part says nothing of the rest.
        pull("v2", &["--shard", "1/2"]);
        assert_eq!(cases_in(&project.path(out)).len(), 7);
        let pulled = pull("v2", &[]);
        let left = pulled.findings("output-left-behind");
        assert_eq!(left.len(), 1, "{pulled}");
        let there = cases_in(&project.path(out));
        let expected = [
            "case-00000",
            "case-00001",
            "case-00004",
            "case-00005",
            "notes",
        ];
        assert_eq!(there, expected);
        assert_eq!(project.read(&changed), "mine");
    }
}

#[test]
fn a_case_that_is_changed_during_its_pull_is_not_taken_for_whole() {
    let project = with_release(&many(700));
    publish(&project, "store", "v1");
    let args = ["pull", "store", "--ref", "v1", "-o", "out", "-j", "1"];
    // As soon as it is in place, long before the last one is.
    let file = project.path("out/case-00000/task.toml");
    thread::scope(|scope| {
        let pull = scope.spawn(|| project.casepack(args).assert_code(0));
        while !file.exists() && !pull.is_finished() {
            thread::yield_now();
        }
        // No longer at the time that the file was written.
        thread::sleep(Duration::from_millis(30));
        fs::write(&file, "mine").unwrap();
    });
    let again = project.casepack(args).assert_code(2);
    assert!(
        again.stderr.contains("case-00000 is something else"),
        "{again}"
    );
    project
        .casepack(args.iter().chain(&["--force"]).copied())
        .assert_code(0);
    let package = many(1)["case-00000"].package();
    assert_eq!(read(&project.path("out/case-00000")).id(), package.id());
}

#[test]
fn what_a_release_is_named_by_agrees() {
    let project = with_release(&many(3));
    publish(&project, "store", "v1");
    pack(&project.path("bundle"), &many(4), Compression::Zstd, 2);
    let second = publish(&project, "store", "v2");
    let at = format!("store@{}", second["release"].as_str().unwrap());
    let pull = |name| {
        let args = ["pull", at.as_str(), "--ref", name, "-o", "out"];
        project.casepack(args)
    };
    let refused = pull("v1").assert_code(2);
    assert!(
        refused.stderr.contains("--ref v1 is the release"),
        "{refused}"
    );
    assert!(!project.path("out").exists());
    pull("v2").assert_code(0);
    // What a store consists of is no place for cases.
    let before = project.tree("store");
    for out in ["store", "./store/", "store/blobs", "store/refs/new"] {
        let args = ["pull", "store", "--ref", "v1", "-o", out];
        let refused = project.casepack(args).assert_code(2);
        assert!(refused.stderr.contains("belongs to the store"), "{refused}");
        assert_eq!(project.tree("store"), before);
    }
}

#[test]
fn an_index_that_is_not_what_the_refs_say_is_found() {
    let project = with_release(&many(3));
    publish(&project, "store", "v1");
    project.casepack(["verify", "store"]).assert_code(0);
    for name in ["oci-layout", "index.json"] {
        let path = format!("store/{name}");
        let whole = fs::read(project.path(&path)).unwrap();
        for altered in [None, Some("{}")] {
            match altered {
                None => project.remove(&path),
                Some(text) => project.write(&path, text),
            }
            let told = project.casepack(["verify", "store"]).assert_code(1);
            assert!(told.stdout.contains(name), "{told}");
            assert!(told.stderr.contains("--tag v1 --repair"), "{told}");
        }
        fs::write(project.path(&path), &whole).unwrap();
    }
    let whole = project.casepack(["verify", "store"]).assert_code(0);
    assert!(!whole.stdout.contains('%'), "{whole}");
    let part = project.casepack(["verify", "store", "--share", "0"]);
    let part = part.assert_code(0);
    assert!(part.stdout.contains("read (of the packs 0 %)"), "{part}");
}

#[test]
fn parts_make_the_whole_and_a_cache_is_used() {
    let cases = many(30);
    let project = with_release(&cases);
    publish(&project, "store", "v1");
    let mut seen = Vec::new();
    for part in ["1/3", "2/3", "3/3"] {
        let out = part.replace('/', "-");
        let args = [
            "pull", "store", "--ref", "v1", "-o", &out, "--shard", part, "--cache", "cache",
        ];
        json(&project, &args);
        seen.extend(cases_in(&project.path(&out)));
    }
    seen.sort();
    assert_eq!(seen, cases.keys().cloned().collect::<Vec<_>>());
    // With all packs gone, the cache still has what is needed.
    let args = [
        "pull", "store", "--ref", "v1", "-o", "all", "--cache", "cache",
    ];
    project.remove("store/blobs");
    fs::create_dir_all(project.path("store/blobs/sha256")).unwrap();
    json(&project, &args);
    assert_eq!(cases_in(&project.path("all")).len(), 30);
    // A damaged cache is no harm where the store is whole.
    for entry in fs::read_dir(project.path("cache/sha256")).unwrap() {
        fs::write(entry.unwrap().path(), "damaged").unwrap();
    }
    publish(&project, "store", "v2");
    let args = [
        "pull", "store", "--ref", "v2", "-o", "more", "--cache", "cache",
    ];
    json(&project, &args);
    assert_eq!(cases_in(&project.path("more")).len(), 30);
}

#[test]
fn common_tools_read_what_is_written() {
    for (compression, test, list) in [
        (
            Compression::Zstd,
            &["zstd", "-q", "-t"][..],
            &["tar", "--zstd", "-tf"][..],
        ),
        (Compression::Gzip, &["gzip", "-t"], &["tar", "-tzf"]),
    ] {
        let project = ProjectBuilder::new().build();
        let root = project.path("bundle");
        let mut cases = many(400);
        let big = Case::numbered(400).workspace("big", vec![7; 3 << 20]);
        cases.insert("big".to_owned(), big);
        let packed = pack(&root, &cases, compression, 2);
        for (name, bytes) in blobs(&root) {
            assert_eq!(Digest::of(&bytes).hex(), name);
        }
        for pack in &packed.release.document.packs {
            let path = root.join("blobs/sha256").join(pack.blob.digest.hex());
            // These tools go by the name.
            let copy = project.path(format!(
                "pack.tar.{}",
                if compression == Compression::Zstd {
                    "zst"
                } else {
                    "gz"
                }
            ));
            fs::copy(&path, &copy).unwrap();
            for command in [test, list] {
                let Ok(output) = Command::new(command[0])
                    .args(&command[1..])
                    .arg(&copy)
                    .stdin(Stdio::null())
                    .output()
                else {
                    println!("skipped: there is no {}", command[0]);
                    continue;
                };
                assert!(output.status.success(), "{command:?}: {output:?}");
                if command[0] == "tar" {
                    let names = String::from_utf8(output.stdout).unwrap();
                    let (last, contents) =
                        names.trim().rsplit_once('\n').map(|(a, b)| (b, a)).unwrap();
                    assert_eq!(last, "index.jsonl");
                    assert!(
                        contents.lines().all(|name| name.starts_with("sha256/")),
                        "{names}"
                    );
                }
            }
        }
        let jq = Command::new("jq")
            .args(["-r", ".manifests[0].digest"])
            .arg(root.join("index.json"))
            .output();
        match jq {
            Ok(output) => {
                let digest = String::from_utf8(output.stdout).unwrap();
                assert_eq!(digest.trim(), packed.release.digest.to_string());
            }
            Err(_) => println!("skipped: there is no jq"),
        }
    }
}

/// Tools that know OCI image layouts copy a release whole, and what they wrote can be pulled.
#[test]
fn tools_for_image_layouts_copy_a_release() {
    let cases = many(40);
    let project = with_release(&cases);
    let index: Value = serde_json::from_str(&project.read("bundle/index.json")).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    for (tool, args) in [
        (
            "skopeo",
            "copy -q --insecure-policy --preserve-digests oci:bundle:latest oci:skopeo:latest",
        ),
        (
            "oras",
            "cp --from-oci-layout bundle:latest --to-oci-layout oras:latest",
        ),
        (
            "regctl",
            "image copy ocidir://bundle:latest ocidir://regctl:latest",
        ),
    ] {
        let done = Command::new(tool)
            .args(args.split(' '))
            .current_dir(project.path("."))
            .stdin(Stdio::null())
            .output();
        let Ok(done) = done else {
            println!("skipped: there is no {tool}");
            continue;
        };
        assert!(done.status.success(), "{tool}: {done:?}");
        assert_eq!(blobs(&project.path("bundle")), blobs(&project.path(tool)));
        let (at, out) = (format!("{tool}@{digest}"), format!("out-{tool}"));
        let pulled = json(&project, &["pull", &at, "-o", &out]);
        assert_eq!(pulled["written"], 40);
        assert_eq!(
            read(&project.path(&out).join("case-00007")).id(),
            cases["case-00007"].package().id()
        );
    }
}

#[test]
fn threads_and_history_leave_no_trace_in_a_bundle() {
    let project = ProjectBuilder::new().build();
    let cases = many(300);
    pack(&project.path("one"), &cases, Compression::Zstd, 1);
    pack(&project.path("many"), &many(200), Compression::Zstd, 8);
    pack(&project.path("many"), &cases, Compression::Zstd, 8);
    assert_eq!(project.tree("one"), project.tree("many"));
}

#[test]
fn a_change_costs_its_own_blobs() {
    let project = ProjectBuilder::new().build();
    let mut cases = many(2000);
    for (at, case) in cases.values_mut().enumerate() {
        let noise = (0..64_u64).flat_map(|word| {
            *Digest::of(&[at as u64, word].map(u64::to_le_bytes).concat()).as_bytes()
        });
        case.workspace
            .insert("noise.bin".to_owned(), noise.collect());
    }
    let root = project.path("bundle");
    let server = S3Server::start();
    // What a publish to a bucket writes, and how often.
    let writes = || {
        let url = format!("s3://{BUCKET}/store");
        let args = ["publish", &url, "--from", "bundle", "--tag", "v1"];
        let mut invocation = project.invoke(args);
        for (name, value) in server.env() {
            invocation = invocation.env(name, value);
        }
        invocation.run().assert_code(0);
        let requests = server.take_requests().into_iter();
        let puts = requests.filter(|request| request.method == "PUT");
        puts.fold((0, 0), |(count, bytes), put| (count + 1, bytes + put.sent))
    };
    pack(&root, &cases, Compression::Zstd, 2);
    publish(&project, "store", "v1");
    writes();
    cases
        .get_mut("case-01000")
        .unwrap()
        .workspace
        .insert("input.yaml".to_owned(), b"new: 1\n".to_vec());
    pack(&root, &cases, Compression::Zstd, 2);
    let changed = publish(&project, "store", "v1");
    // Workspace: shard and pack; task: the package's digest; and the document.
    assert!(changed["uploaded"].as_u64().unwrap() <= 4, "{changed}");
    // Besides: manifest, ref, index.json, and what asks for conditions.
    let (puts, bytes) = writes();
    assert!(puts <= 8 && bytes <= 6_000_000, "{puts} {bytes}");
    assert!(
        changed["uploaded_bytes"].as_u64().unwrap() < 6_000_000,
        "{changed}"
    );
    assert!(changed["reused"].as_u64().unwrap() > 5, "{changed}");
    cases.remove("case-00500");
    pack(&root, &cases, Compression::Zstd, 2);
    let removed = publish(&project, "store", "v1");
    assert!(
        removed["uploaded"].as_u64().unwrap() <= 1 + 3 * 3 + 3 * 3,
        "{removed}"
    );
    assert!(removed["reused"].as_u64().unwrap() > 5, "{removed}");
}

#[test]
fn publishers_at_once_lose_nothing() {
    let projects: Vec<Project> = (0..8).map(|at| with_release(&many(3 + at))).collect();
    let store = ProjectBuilder::new().build();
    let dest = store.path("store");
    let publish_all = |tag: &dyn Fn(usize) -> String| -> Vec<Outcome> {
        let children: Vec<_> = projects
            .iter()
            .enumerate()
            .map(|(at, project)| {
                let args = [
                    "publish",
                    dest.to_str().unwrap(),
                    "--from",
                    "bundle",
                    "--tag",
                ];
                let invocation = project.invoke(args).args([tag(at)]);
                let invocation = invocation.args(["--output", "json", "--progress", "none"]);
                thread::spawn(move || invocation.run())
            })
            .collect();
        children
            .into_iter()
            .map(|child| child.join().unwrap())
            .collect()
    };
    let outcomes = publish_all(&|at| format!("v{at}"));
    let listed = json(&store, &["ls", "store"]);
    let index: Value = serde_json::from_str(&store.read("store/index.json")).unwrap();
    for (at, outcome) in outcomes.into_iter().enumerate() {
        let release = outcome.assert_code(0).json()["release"].clone();
        assert_eq!(listed["refs"][at]["release"], release);
        assert_eq!(index["manifests"][at]["digest"], release);
    }
    let outcomes = publish_all(&|_| "same".to_owned());
    let listed = json(&store, &["ls", "store"]);
    let refs = listed["refs"].as_array().unwrap();
    let now = &refs.iter().find(|it| it["name"] == "same").unwrap()["release"];
    let mut winners = 0;
    for outcome in &outcomes {
        let document = outcome.json();
        if outcome.code == 0 {
            winners += usize::from(document["release"] == *now);
        } else {
            let message = document["error"]["message"].as_str().unwrap();
            assert!(message.contains("by another publisher"), "{message}");
        }
    }
    assert_eq!(winners, 1);
    json(&store, &["pull", "store", "--ref", "same", "-o", "out"]);
}

/// How often things are killed; more with `CASEPACK_TEST_KILLS`.
fn kills() -> u64 {
    let said = std::env::var("CASEPACK_TEST_KILLS").ok();
    said.and_then(|said| said.parse().ok()).unwrap_or(6)
}

#[test]
fn a_publish_may_be_killed_at_any_moment() {
    let mut cases = many(40);
    let project = with_release(&cases);
    publish(&project, "store", "stable");
    let stable = json(&project, &["ls", "store"])["refs"][0].clone();
    for round in 0..kills() {
        let case = cases.get_mut("case-00001").unwrap();
        case.workspace
            .insert("input.yaml".to_owned(), format!("round: {round}\n").into());
        case.workspace
            .insert("big".to_owned(), round.to_le_bytes().repeat(400_000));
        pack(&project.path("bundle"), &cases, Compression::Zstd, 2);
        let args = ["publish", "store", "--from", "bundle", "--tag", "moving"];
        let mut child = project
            .invoke(args)
            .command()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(1500 * (round % 17)));
        child.kill().unwrap();
        child.wait().unwrap();
        // Whatever is there is whole.
        let listed = json(&project, &["ls", "store"]);
        for named in listed["refs"].as_array().unwrap() {
            let name = named["name"].as_str().unwrap();
            let out = format!("out-{name}-{round}");
            json(&project, &["pull", "store", "--ref", name, "-o", &out]);
        }
        assert_eq!(listed["refs"].as_array().unwrap().last(), Some(&stable));
        let done = publish(&project, "store", "moving");
        let out = format!("done-{round}");
        json(&project, &["pull", "store", "--ref", "moving", "-o", &out]);
        let package = cases["case-00001"].package().id();
        assert_eq!(
            read(&project.path(&out).join("case-00001")).id(),
            package,
            "{done}"
        );
    }
}

#[test]
fn a_pull_may_be_killed_at_any_moment() {
    let cases = many(150);
    let project = with_release(&cases);
    publish(&project, "store", "v1");
    for round in 0..kills() {
        let out = format!("out-{round}");
        let args = ["pull", "store", "--ref", "v1", "-o", &out];
        let mut child = project
            .invoke(args)
            .command()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(23 * (round + 1) % 110));
        child.kill().unwrap();
        child.wait().unwrap();
        for id in cases_in(&project.path(&out)) {
            assert_eq!(
                read(&project.path(&out).join(&id)).id(),
                cases[&id].package().id()
            );
        }
        let pulled = json(&project, &args);
        assert_eq!(pulled["cases"], 150);
        assert_eq!(cases_in(&project.path(&out)).len(), 150);
        let left = fs::read_dir(project.path(&out).join(".casepack/tmp"));
        assert_eq!(left.map_or(0, Iterator::count), 0);
    }
}

#[test]
fn garbage_goes_and_nothing_that_is_needed() {
    let mut cases = many(20);
    let project = with_release(&cases);
    let first = publish(&project, "store", "v1");
    cases
        .get_mut("case-00001")
        .unwrap()
        .workspace
        .insert("input.yaml".to_owned(), b"new: 1\n".to_vec());
    pack(&project.path("bundle"), &cases, Compression::Zstd, 2);
    publish(&project, "store", "v1");
    let gc = |args: &[&str]| json(&project, &[&["gc", "store"], args].concat());
    // A job may hold the first release by its digest.
    let kept = gc(&["--write", "--grace", "0"]);
    assert_eq!(
        (&kept["lost_releases"], &kept["named"]),
        (&1.into(), &0.into())
    );
    let at = format!("store@{}", first["release"].as_str().unwrap());
    json(&project, &["pull", &at, "-o", "held"]);
    let before = project.tree("store");
    let shown = project.casepack(["gc", "store"]).assert_code(0);
    assert!(
        shown
            .stdout
            .contains("1 release without a ref, since 90 days"),
        "{shown}"
    );
    let told = gc(&["--keep", "0", "--grace", "0"]);
    assert!(told["named"].as_u64().unwrap() >= 4, "{told}");
    assert_eq!(project.tree("store"), before, "only told");
    gc(&["--keep", "0", "--grace", "0", "--write"]);
    let removed = gc(&["--keep", "0", "--grace", "0", "--write"]);
    assert_eq!(removed["removed"], told["named"]);
    project.casepack(["pull", &at, "-o", "gone"]).assert_code(2);
    json(&project, &["pull", "store", "--ref", "v1", "-o", "now"]);
    let package = cases["case-00001"].package().id();
    assert_eq!(read(&project.path("now/case-00001")).id(), package);
}

#[test]
fn a_store_that_was_altered_is_found_out() {
    let cases = many(6);
    let project = with_release(&cases);
    publish(&project, "store", "v1");
    let store = project.path("store");
    let objects: Vec<_> = blobs(&store)
        .into_keys()
        .map(|name| format!("blobs/sha256/{name}"))
        .chain(["refs/v1.json".to_owned()])
        .collect();
    let mut refused = 0;
    for (number, name) in objects.iter().enumerate() {
        let path = store.join(name);
        let whole = fs::read(&path).unwrap();
        for (what, altered) in [
            ("a byte", {
                let mut bytes = whole.clone();
                let at = (number * 37 + 11) % bytes.len();
                bytes[at] ^= 1;
                bytes
            }),
            ("the end", whole[..whole.len() / 2].to_vec()),
            ("all", Vec::new()),
        ] {
            fs::write(&path, altered).unwrap();
            let out = format!("out-{number}-{}", what.replace(' ', ""));
            let outcome = project.casepack(["pull", "store", "--ref", "v1", "-o", &out]);
            // Document and manifest are in the ref as well; with them, nothing is lost.
            if outcome.code == 0 {
                assert_eq!(cases_in(&project.path(&out)).len(), 6);
                continue;
            }
            refused += 1;
            let outcome = outcome.assert_code(3);
            assert!(
                outcome.stderr.contains("sha256") || outcome.stderr.contains("v1"),
                "{name}, {what}: {outcome}"
            );
            for id in cases_in(&project.path(&out)) {
                assert_eq!(
                    read(&project.path(&out).join(&id)).id(),
                    cases[&id].package().id()
                );
            }
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(refused >= 3 * 6, "{refused}");
    // Whoever looks for it finds every one of them.
    let whole = json(&project, &["verify", "store"]);
    assert_eq!(
        (&whole["bad"], &whole["releases"]),
        (&serde_json::json!([]), &1.into())
    );
    for name in blobs(&store).into_keys() {
        let path = store.join("blobs/sha256").join(&name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let outcome = project.casepack(["verify", "store"]).assert_code(1);
        assert!(outcome.stdout.contains(&name), "{outcome}");
        bytes[0] ^= 1;
        fs::write(&path, &bytes).unwrap();
    }
    json(&project, &["pull", "store", "--ref", "v1", "-o", "last"]);
}

/// Changes document and manifest of the release `v1`, and names both by what they are then.
fn rewrite(store: &Path, change: &dyn Fn(&mut Value, &mut Value)) {
    let decoded = |of: &Value| -> Value {
        let bytes = BASE64.decode(of["data"].as_str().unwrap()).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    let put = |of: &mut Value, value: &Value| {
        let bytes = value.to_string().into_bytes();
        let digest = Digest::of(&bytes);
        fs::write(store.join("blobs/sha256").join(digest.hex()), &bytes).unwrap();
        of["digest"] = digest.to_string().into();
        of["size"] = bytes.len().into();
        of["data"] = BASE64.encode(&bytes).into();
    };
    let path = store.join("refs/v1.json");
    let mut named: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut manifest = decoded(&named);
    let mut document = decoded(&manifest["config"]);
    change(&mut document, &mut manifest);
    put(&mut manifest["config"], &document);
    let before = named.clone();
    put(&mut named, &manifest);
    fs::write(&path, named.to_string()).unwrap();
    // In the index as well, which is compared with the ref.
    let path = store.join("index.json");
    let index = fs::read_to_string(&path).unwrap();
    let text = |of: &Value| {
        format!(
            "{},\"mediaType\":{},\"size\":{}",
            of["digest"], of["mediaType"], of["size"]
        )
    };
    fs::write(&path, index.replace(&text(&before), &text(&named))).unwrap();
}

/// Makes of the release `v1` one that another version of the format has, as `writer` would.
fn rewrite_version(store: &Path, version: u64, writer: &str) {
    rewrite(store, &|document, _| {
        document["schemaVersion"] = version.into();
        document["writer"] = writer.into();
        // What other versions have and lack, nobody knows.
        document.as_object_mut().unwrap().remove("packages");
    });
}

/// A pack whose frames, index and document agree, and which has another content than it says: only
/// who reads the contents finds that out.
#[test]
fn a_content_that_is_another_one_is_found() {
    let project = with_release(&many(6));
    publish(&project, "store", "v1");
    let store = project.path("store");
    let blob = |digest: &Value| {
        store
            .join("blobs/sha256")
            .join(&digest.as_str().unwrap()[7..])
    };
    let pack_again = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).unwrap();
    rewrite(&store, &|document, manifest| {
        let shards = document["shards"].as_array().unwrap().len();
        let pack = &mut document["packs"][0];
        let bytes = fs::read(blob(&pack["digest"])).unwrap();
        let at = bytes.len() - usize::try_from(pack["index"]["size"].as_u64().unwrap()).unwrap();
        let (frame, index) = bytes.split_at(at);
        // The first byte of the first content.
        let mut raw = zstd::decode_all(frame).unwrap();
        raw[512] ^= 1;
        let altered = pack_again(&raw);
        let line = |frame: &[u8]| {
            let digest = Digest::of(frame).hex();
            format!("[{},{},\"{digest}\"]", frame.len(), raw.len())
        };
        let index = zstd::decode_all(index).unwrap();
        let text = String::from_utf8(index).unwrap();
        assert!(text.contains(&line(frame)), "the pack has one frame");
        let text = text.replace(&line(frame), &line(&altered));
        assert_eq!(line(frame).len(), line(&altered).len());
        let index = pack_again(text.as_bytes());
        let whole = [altered, index.clone()].concat();
        pack["index"]["digest"] = Digest::of(&index).to_string().into();
        pack["index"]["size"] = index.len().into();
        for named in [pack, &mut manifest["layers"][shards]] {
            named["digest"] = Digest::of(&whole).to_string().into();
            named["size"] = whole.len().into();
        }
        fs::write(blob(&manifest["layers"][shards]["digest"]), &whole).unwrap();
    });
    let told = project.casepack(["verify", "store"]).assert_code(1);
    assert!(
        told.stdout.contains("has other bytes than its name says"),
        "{told}"
    );
    assert!(told.stdout.contains("1 thing wrong"), "{told}");
    project
        .casepack(["pull", "store", "--ref", "v1", "-o", "out"])
        .assert_code(3);
    assert_eq!(cases_in(&project.path("out")), Vec::<String>::new());
}

/// What may be meant for a ref needs blobs, as far as anybody knows.
#[test]
fn nothing_is_collected_beside_what_may_be_a_ref() {
    let project = with_release(&many(3));
    publish(&project, "other", "v1");
    let link = |name: &str| {
        let target = project.path("other/refs/v1.json");
        std::os::unix::fs::symlink(target, project.path("store/refs").join(name)).unwrap();
    };
    let make = |name: &str| fs::create_dir_all(project.path("store/refs").join(name)).unwrap();
    let write = |name: &str| project.write(&format!("store/refs/{name}"), "{}");
    let gc = ["gc", "store", "--write", "--grace", "0", "--keep", "0"];
    for (act, name) in [
        (&link as &dyn Fn(&str), "v1.json"),
        (&make, "v1.json"),
        (&write, "v1.json/mine"),
        (&write, "bad name!.json"),
        (&write, "v1"),
        (&link, "link"),
    ] {
        fs::remove_dir_all(project.path("store")).ok();
        publish(&project, "store", "v1");
        project.remove("store/refs/v1.json");
        act(name);
        let before = blobs(&project.path("store"));
        for _ in 0..2 {
            let refused = project.casepack(gc).assert_code(2);
            assert!(refused.stderr.contains("Nothing is collected"), "{refused}");
            assert!(refused.stderr.contains(name), "{refused}");
        }
        assert_eq!(blobs(&project.path("store")), before, "{name}");
        publish(&project, "store", "v2");
        let told = project.casepack(["verify", "store"]).assert_code(1);
        assert!(told.stdout.contains(name), "{told}");
    }
    // What is plainly none stays where it is.
    fs::remove_dir_all(project.path("store")).unwrap();
    publish(&project, "store", "v1");
    make("team");
    project.casepack(gc).assert_code(0);
}

/// Several pulls into one place, each with its part, as the containers of one pod may do.
#[test]
fn pulls_at_once_share_a_destination() {
    let cases = many(40);
    let project = with_release(&cases);
    publish(&project, "store", "v1");
    for (round, layout) in ["harbor", "cases", "harbor", "cases"].iter().enumerate() {
        let out = format!("out-{round}");
        thread::scope(|scope| {
            for part in 1..=8 {
                let (project, out) = (&project, &out);
                scope.spawn(move || {
                    let shard = format!("{part}/8");
                    let args = ["pull", "store", "--ref", "v1", "-o", out, "--shard", &shard];
                    json(project, &[&args[..], &["--as", layout]].concat());
                });
            }
        });
        assert_eq!(cases_in(&project.path(&out)).len(), 40);
        let args = ["pull", "store", "--ref", "v1", "-o", &out, "--as", layout];
        assert_eq!(json(&project, &args)["written"], 0);
    }
}

/// A dry run says what a publish would do, and leaves no output directory where none was.
#[test]
fn a_dry_run_leaves_nothing_that_was_not_there() {
    let project = project_with("{prompt: Go}");
    let before = project.tree("");
    for more in [
        &["new/store"][..],
        &["new/{digest}", "--layout", "evalhub-testdata"],
    ] {
        let args = [&["publish", "--dry-run", "--output", "json"], more].concat();
        let dry = project.casepack(args.iter().copied()).assert_code(0).json();
        assert_eq!(project.tree(""), before, "{dry}");
        let again = project
            .casepack([&args[..], &["-o", "a/b"]].concat())
            .assert_code(0)
            .json();
        assert_eq!(project.tree(""), before, "{again}");
        let real: Vec<_> = args
            .iter()
            .copied()
            .filter(|arg| *arg != "--dry-run")
            .collect();
        let real = project.casepack(real).assert_code(0).json();
        for field in ["release", "tree", "uploaded", "uploaded_bytes"] {
            assert_eq!(
                (&dry[field], &again[field]),
                (&real[field], &real[field]),
                "{field}"
            );
        }
        project.remove("new");
        project.remove("dist");
    }
}

/// What is in the place of a file of a bundle is somebody else's, and named.
#[test]
fn a_directory_in_the_place_of_an_object_is_told() {
    let project = project_with("{prompt: Go}");
    let build = ["build", "--target", "bundle"];
    project.casepack(build).assert_code(0);
    let some = blobs(&project.path("dist/bundle"))
        .into_keys()
        .next()
        .unwrap();
    let blob = format!("blobs/sha256/{some}");
    project.casepack(["publish", "store"]).assert_code(0);
    let publish = ["publish", "store", "--repair"];
    for name in ["index.json", "oci-layout", "refs/latest.json", &blob] {
        for (root, args) in [("dist/bundle", &build[..]), ("store", &publish[..])] {
            let path = format!("{root}/{name}");
            let whole = fs::read(project.path(&path)).unwrap();
            project.remove(&path);
            project.write(&format!("{path}/mine.txt"), "mine");
            let told = project.casepack(args.iter().copied()).assert_code(3);
            assert!(told.stderr.contains(name), "{told}");
            assert!(told.stderr.contains("move it away"), "{told}");
            assert_eq!(project.read(&format!("{path}/mine.txt")), "mine");
            project.remove(&path);
            project.casepack(args.iter().copied()).assert_code(0);
            assert_eq!(fs::read(project.path(&path)).unwrap(), whole, "{path}");
        }
    }
    json(&project, &["verify", "store"]);
}

#[test]
fn what_a_damaged_ref_left_in_a_bundle_is_garbage() {
    let project = project_with("{prompt: Go}");
    let build = ["build", "--target", "bundle"];
    project.casepack(build).assert_code(0);
    project.write("dist/bundle/refs/latest.json", "{}");
    project.write("cases/case 1/input.yaml", "question: another\n");
    project.casepack(build).assert_code(0);
    let fresh = project_with("{prompt: Go}");
    fresh.write("cases/case 1/input.yaml", "question: another\n");
    fresh.casepack(build).assert_code(0);
    let needed = blobs(&fresh.path("dist/bundle"));
    assert!(blobs(&project.path("dist/bundle")).len() > needed.len());
    let gc = [
        "gc",
        "dist/bundle",
        "--write",
        "--grace",
        "0",
        "--keep",
        "0",
    ];
    let named = json(&project, &gc);
    assert!(named["named"].as_u64() > Some(0), "{named}");
    json(&project, &gc);
    assert_eq!(blobs(&project.path("dist/bundle")), needed);
    let built = json(&project, &build);
    assert_eq!(built["built"], serde_json::json!([]), "{built}");
    json(&project, &["verify", "dist"]);
}

/// A pull that may not be, or can't, leaves a place as it was.
#[test]
fn a_pull_of_nothing_leaves_nothing() {
    let project = with_release(&many(6));
    publish(&project, "store", "v1");
    fs::create_dir(project.path("empty")).unwrap();
    project.write("other/mine.txt", "mine");
    let pack = json(&project, &["inspect", "store", "--ref", "v1"])["document"]["packs"][0].clone();
    let pack = pack["digest"]
        .as_str()
        .unwrap()
        .replace("sha256:", "store/blobs/sha256/");
    let before = project.tree("");
    for more in [
        &["--max-bytes", "10"][..],
        &["--as", "cases", "--max-bytes", "10"],
    ] {
        for out in ["a/b/c", "empty", "other"] {
            let args = ["pull", "store", "--ref", "v1", "-o", out];
            project.casepack([&args[..], more].concat()).assert_code(2);
            assert_eq!(project.tree(""), before, "{out}");
            // Nor one whose store fails before the first case is there.
            alter(&project.path(&pack));
            let lost = project.casepack(args).assert_code(3);
            assert!(lost.stderr.contains("damaged"), "{lost}");
            alter(&project.path(&pack));
            assert_eq!(project.tree(""), before, "{out}");
        }
    }
    // What others have there stays.
    json(&project, &["pull", "store", "--ref", "v1", "-o", "other"]);
    assert_eq!(cases_in(&project.path("other")).len(), 7);
}

/// Whoever wrote a release may have stated anything: `verify` compares it with what is there.
#[test]
fn every_size_that_a_release_states_is_compared_with_what_is_there() {
    let project = with_release(&many(6));
    publish(&project, "store", "v1");
    let whole = fs::read(project.path("store/refs/v1.json")).unwrap();
    let index = fs::read(project.path("store/index.json")).unwrap();
    let shards = json(&project, &["inspect", "store", "--ref", "v1"])["document"]["shards"].clone();
    let shards = shards.as_array().unwrap().len();
    let sizes = [
        ("/shards/0/rawSize", None),
        ("/packs/0/rawSize", None),
        ("/packs/1/rawSize", None),
        ("/shards/0/size", Some("/layers/0/size".to_owned())),
        ("/packs/0/size", Some(format!("/layers/{shards}/size"))),
        ("/packs/0/index/size", None),
        ("/views/workspace/files", None),
        ("/views/evaluation/bytes", None),
        ("/views/task/bytes", None),
        ("/cases", None),
        ("/shards/1/cases", None),
    ];
    for (field, layer) in sizes {
        for value in [0, 1, 1 << 20, 1 << 43, 1 << 63, u64::MAX] {
            rewrite(&project.path("store"), &|document, manifest| {
                *document.pointer_mut(field).unwrap() = value.into();
                if let Some(layer) = &layer {
                    *manifest.pointer_mut(layer).unwrap() = value.into();
                }
            });
            let told = project.casepack(["verify", "store"]).assert_code(1);
            assert!(told.stdout.contains("sha256"), "{field} {value}: {told}");
            assert!(told.stderr.contains("--repair"), "{field} {value}: {told}");
            if field.contains("rawSize") || field.contains("views") {
                let name = field.rsplit('/').next().unwrap();
                assert!(told.stdout.contains(name), "{field} {value}: {told}");
                let shown = value.to_string();
                assert!(told.stdout.contains(&shown), "{field} {value}: {told}");
            }
            fs::write(project.path("store/refs/v1.json"), &whole).unwrap();
            fs::write(project.path("store/index.json"), &index).unwrap();
        }
    }
    json(&project, &["verify", "store"]);
}

#[test]
fn a_release_of_another_version_of_the_format_is_told_from_damage() {
    let cases = many(6);
    for (version, fix) in [
        (1, "Publish the dataset again"),
        (3, "Use a newer casepack"),
    ] {
        let project = with_release(&cases);
        publish(&project, "store", "v1");
        publish(&project, "store", "v2");
        rewrite_version(&project.path("store"), version, "casepack\u{1b}[31m 9");
        let tree = project.tree("store");
        for args in [
            &["ls", "store"][..],
            &["ls", "store", "--ref", "v1"],
            &["inspect", "store", "--ref", "v1"],
            &["pull", "store", "--ref", "v1", "-o", "out"],
            &["verify", "store"],
            &["diff", "store@v2", "@v1"],
        ] {
            let outcome = project.casepack(args.iter().copied());
            let told = format!("{}{}", outcome.stdout, outcome.stderr);
            assert!(matches!(outcome.code, 1 | 3), "{outcome}");
            let found = format!("version {version} of the format by 'casepack");
            assert!(told.contains(&found) && told.contains(fix), "{outcome}");
            // Once, where nothing else is told.
            let times = told.matches(&found).count();
            assert!(times == 1 || args[0] != "pull", "{outcome}");
            assert!(
                !told.contains("damaged") && !told.contains('\u{1b}'),
                "{outcome}"
            );
        }
        assert!(!project.path("out").exists());
        // What it needs is known all the same, and stays.
        let gc = ["gc", "store", "--write", "--grace", "0", "--keep", "0"];
        json(&project, &gc);
        json(&project, &gc);
        assert_eq!(project.tree("store"), tree);
        publish(&project, "store", "v1");
        json(&project, &["pull", "store", "--ref", "v1", "-o", "out"]);
        assert_eq!(cases_in(&project.path("out")).len(), 6);
    }
}

const CONFIG: &str = "
name: demo
dataset:
  path: cases
  workspace:
    files: [notes.md, tools/, {dest: guide.md, source: shared/guide.md}]
judges:
  - {name: done, check: \"return True\"}
  - {name: asked, prompt_file: judges/ask.md}
";

/// A project with all that a view can have.
fn project_with(execution: &str) -> Project {
    let mut project = ProjectBuilder::new()
        .eval_yaml(&format!("{CONFIG}execution: {execution}\n"))
        .file("judges/ask.md", "Is it {{ annotations.want }}?\n")
        .file("shared/guide.md", "the guide\n");
    for number in 0..3 {
        project = project.case(&format!("case {number}"), |case| {
            case.input(&format!("prompt: task {number}\n"))
                .annotations(&format!("want: secret-{number}\n"))
                .file("notes.md", format!("note {number}\n"))
                .file("gold/answer.md", "the gold answer\n")
                .executable("tools/go", "#!/bin/sh\nexit 0\n")
                .file("solution/solve.sh", "#!/bin/sh\ntouch done\n")
        });
    }
    project.build()
}

#[test]
fn pulled_packages_are_the_built_ones() {
    let one = "{prompt: 'Do {{ input.prompt }}'}";
    let steps = "{steps: [{id: plan, prompt: Plan}, {id: work, prompt: 'Do {{ input.prompt }}'}]}";
    for (execution, mode) in [
        (one, &[][..]),
        (one, &["--image", "example/image:1"]),
        (steps, &[]),
        (steps, &["--image", "example/image:1"]),
    ] {
        let project = project_with(execution);
        let run = |args: &[&str]| project.casepack([args, mode].concat()).assert_code(0);
        run(&["build", "--target", "harbor,bundle", "-o", "dist"]);
        run(&["publish", "store", "-o", "dist"]);
        project
            .casepack(["pull", "store", "-o", "pulled"])
            .assert_code(0);
        let built = project.path("dist/harbor");
        assert_eq!(cases_in(&built), cases_in(&project.path("pulled")));
        for name in cases_in(&built)
            .into_iter()
            .chain(["dataset.toml".to_owned()])
        {
            let (a, b) = (built.join(&name), project.path("pulled").join(&name));
            if a.is_dir() {
                assert_eq!(read(&a).id(), read(&b).id(), "{name} {execution} {mode:?}");
            } else {
                assert_eq!(
                    fs::read_to_string(a).unwrap(),
                    fs::read_to_string(b).unwrap()
                );
            }
        }
        // The workspace view is what a local run starts from (invariant same-layout).
        run(&["build", "--target", "workspace", "-o", "plain"]);
        let args = ["pull", "store", "-o", "seen", "--view", "workspace"];
        project.casepack(args).assert_code(0);
        for id in cases_in(&project.path("plain/workspace")) {
            let (a, b) = (
                project.path("plain/workspace").join(&id),
                project.path("seen").join(&id),
            );
            assert_eq!(read(&a).id(), read(&b).id());
        }
    }
}

#[test]
fn a_release_of_harbor_tasks_gives_them_back() {
    let project = project_with("{prompt: 'Do {{ input.prompt }}'}");
    let build = [
        "build",
        "--target",
        "harbor",
        "-o",
        "dist",
        "--image",
        "example/image:1",
    ];
    project.casepack(build).assert_code(0);
    let tasks = project.path("tasks");
    fs::create_dir(&tasks).unwrap();
    for name in cases_in(&project.path("dist/harbor")) {
        fs::rename(project.path("dist/harbor").join(&name), tasks.join(&name)).unwrap();
    }
    let args = [
        "publish",
        "store",
        "tasks",
        "--format",
        "harbor-task",
        "-o",
        "again",
    ];
    project.casepack(args).assert_code(0);
    project
        .casepack(["pull", "store", "-o", "pulled"])
        .assert_code(0);
    for name in cases_in(&tasks) {
        let (a, b) = (tasks.join(&name), project.path("pulled").join(&name));
        assert_eq!(read(&a).id(), read(&b).id(), "{name}");
    }
    // EvalHub's adapters run by an eval.yaml, which tasks don't have.
    for verb in [
        &["build", "tasks", "--target", "evalhub"][..],
        &["plan", "tasks", "--target", "evalhub"],
    ] {
        let refused = project.casepack(verb.iter().copied()).assert_code(1);
        assert!(refused.stderr.contains("have no eval.yaml"), "{refused}");
    }
}

#[test]
fn publishing_again_builds_only_what_changed() {
    let project = project_with("{prompt: 'Do {{ input.prompt }}'}");
    let first = json(&project, &["publish", "store", "--tag", "v1"]);
    assert_eq!(
        (&first["cases"], &first["unchanged"]),
        (&3.into(), &false.into())
    );
    let again = json(&project, &["publish", "store", "--tag", "v1"]);
    assert_eq!(again["unchanged"], true);
    assert_eq!(again["release"], first["release"]);
    let told = json(&project, &["publish", "store", "--tag", "v2", "--dry-run"]);
    assert_eq!(told["uploaded"], 0);
    project.write("cases/case 1/notes.md", "another note\n");
    let changed = json(&project, &["publish", "store", "--tag", "v1"]);
    assert_eq!(changed["before"], first["release"]);
    assert_ne!(changed["dataset_digest"], first["dataset_digest"]);
    // As if it had been built from nothing.
    let fresh = json(
        &project,
        &["publish", "other", "--tag", "v1", "-o", "elsewhere"],
    );
    assert_eq!(changed["release"], fresh["release"]);
    // A dataset with an error is not published.
    project.remove("cases/case 1/input.yaml");
    let outcome = project
        .casepack(["publish", "store", "--tag", "v1"])
        .assert_code(1);
    assert!(outcome.stderr.contains("case 1"), "{outcome}");
    let listed = json(&project, &["ls", "store"]);
    assert_eq!(listed["refs"][0]["release"], changed["release"]);
}

#[test]
fn releases_are_compared_by_what_differs() {
    let mut cases = many(2000);
    let project = with_release(&cases);
    publish(&project, "store", "v1");
    cases.remove("case-00003");
    let case = cases.get_mut("case-00017").unwrap();
    case.workspace
        .insert("input.yaml".to_owned(), b"other: 1\n".to_vec());
    case.evaluation.remove("annotations.yaml");
    pack(&project.path("bundle"), &cases, Compression::Zstd, 2);
    let second = publish(&project, "store", "v2");
    let diff = |a: &str, b: &str, code: i32| {
        let args = ["diff", a, b, "--output", "json"];
        project.casepack(args).assert_code(code).json()
    };
    let changed = diff("store@v1", "@v2", 1);
    assert_eq!(changed["removed"], serde_json::json!(["case-00003"]));
    assert_eq!(changed["added"], serde_json::json!([]));
    assert_eq!(changed["same"], 1998);
    let files = changed["changed"][0]["files"].as_array().unwrap();
    assert_eq!(changed["changed"][0]["output"], "case-00017");
    let told: Vec<_> = files
        .iter()
        .map(|file| [&file["view"], &file["file"], &file["change"]].map(|it| it.as_str().unwrap()))
        .filter(|[view, ..]| *view != "task")
        .collect();
    assert_eq!(
        told,
        [
            ["workspace", "input.yaml", "content"],
            ["evaluation", "annotations.yaml", "removed"],
        ]
    );
    // Both refs, which bring manifests and documents, and the shards that one of the two does not have: nothing else.
    let shards = |name: &str| {
        let document = json(&project, &["inspect", "store", "--ref", name])["document"].clone();
        let shards = document["shards"].as_array().unwrap().clone();
        let digests = shards.iter().map(|it| it["digest"].to_string());
        digests.collect::<BTreeSet<_>>()
    };
    let (old, new) = (shards("v1"), shards("v2"));
    assert!(old.intersection(&new).next().is_some());
    let read = old.symmetric_difference(&new).count();
    assert_eq!(changed["requests"], 2 + read);

    let digest = format!("store@{}", second["release"].as_str().unwrap());
    assert_eq!(diff(&digest, "@v2", 0)["same"], 1999);
    // What was built, and what was published of it.
    assert_eq!(diff("bundle", "store@v2", 0)["same"], 1999);
    let one = ["diff", "store@v1", "@v2", "--case", "case-00003"];
    let told = project.casepack(one).assert_code(1);
    assert!(told.stdout.starts_with("removed  case-00003"), "{told}");
    for (args, code, says) in [
        (["store@v1", "@v9"], 2, "no ref 'v9'"),
        (["store@v1", "nowhere@v2"], 2, "no store before the '@'"),
        (
            ["store@v1", "store@b a d"],
            2,
            "neither the name nor the digest",
        ),
        (["store@v1", "bundle/blobs"], 2, "holds no release"),
        (["@v1", "store@v1"], 2, "no store before the '@'"),
    ] {
        let refused = project
            .casepack(["diff", args[0], args[1]])
            .assert_code(code);
        assert!(refused.stderr.contains(says), "{args:?} {refused}");
    }
}
