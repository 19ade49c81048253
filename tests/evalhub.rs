//! Plain layouts as `EvalHub`'s stock downloaders meet them: what casepack publishes, they restore.

mod emit;
mod plain;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use casepack::digest::Digest;
use casepack::path::TreePath;
use casepack::store::{Body, Listed, S3, Store};
use serde_json::Value;

use crate::support::{BUCKET, Outcome, Project, ProjectBuilder, S3Server};

const EVAL_YAML: &str = "\
name: triage
skill: triage
dataset:
  path: cases
execution:
  mode: case
  arguments: \"{ticket}\"
judges:
  - name: there
    check: |
      return True, \"there\"
";

/// A project with two cases; `nested` files lie in a directory of their case.
fn project(nested: bool) -> Project {
    let file = if nested {
        "data/table.csv"
    } else {
        "table.csv"
    };
    let case = |name: &'static str| {
        move |case: crate::support::CaseBuilder| {
            case.input(&format!("ticket: {name}\n"))
                .annotations("answer: 42\n")
                .file(file, format!("a,{name}\n"))
        }
    };
    ProjectBuilder::new()
        .eval_yaml(EVAL_YAML)
        .case("case-001", case("one"))
        .case("case-002", case("two"))
        .build()
}

fn publish(project: &Project, server: &S3Server, dest: &str, args: &[&str]) -> Outcome {
    let all = ["publish", dest, "--output", "json", "--progress", "none"];
    let mut command = project.invoke(all.iter().chain(args).copied());
    for (name, value) in server.env() {
        command = command.env(name, value);
    }
    command.run()
}

fn published(project: &Project, server: &S3Server, dest: &str, args: &[&str]) -> Value {
    publish(project, server, dest, args).assert_code(0).json()
}

/// Every key of the bucket that starts with `prefix`, a text, as both downloaders ask.
fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    let mut keys = Vec::new();
    store
        .list(prefix, &mut |listed| {
            keys.push(match listed {
                Listed::Entry(entry) => entry.key.as_str().to_owned(),
                Listed::Unusable { key, .. } => key,
                Listed::EmptyDir(dir) => format!("{dir}/"),
            });
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    keys
}

fn bucket(server: &S3Server) -> S3 {
    S3::open(BUCKET, None, &server.settings()).unwrap()
}

fn get(store: &dyn Store, key: &str) -> Vec<u8> {
    store
        .get(&TreePath::new(key).unwrap(), u64::MAX)
        .unwrap()
        .bytes
}

/// What EvalHub's init container does, written from its description (evalhub.md 2): raw prefix,
/// keys that end in a slash skipped, the rest of the key is the path.
fn test_data(server: &S3Server, key: &str) -> BTreeMap<String, Vec<u8>> {
    let store = bucket(server);
    let key = key.trim();
    let prefix = key.strip_prefix('/').unwrap_or(key);
    let mut files = BTreeMap::new();
    for key in keys(&store, prefix) {
        if key.ends_with('/') {
            continue;
        }
        let rest = key.strip_prefix(prefix).unwrap();
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let name = if rest.is_empty() {
            key.rsplit('/').next().unwrap()
        } else {
            rest
        };
        files.insert(name.to_owned(), get(&store, &key));
    }
    assert!(!files.is_empty(), "no objects found");
    files
}

/// What agent-eval does, written from its description (evalhub.md 5): a slash is appended, the
/// first component is the case, and only the case's directory is made.
fn agent_eval(server: &S3Server, prefix: &str, dest: &Path) {
    let store = bucket(server);
    let prefix = format!("{}/", prefix.trim_end_matches('/'));
    for key in keys(&store, &prefix) {
        let rest = key.strip_prefix(&prefix).unwrap();
        let Some((case, file)) = rest.split_once('/') else {
            continue;
        };
        fs::create_dir_all(dest.join(case)).unwrap();
        fs::write(dest.join(case).join(file), get(&store, &key)).unwrap();
    }
}

/// The files below a directory, but casepack's own.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(top: &Path, dir: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            if name.starts_with(".casepack") {
                continue;
            }
            if path.is_dir() {
                walk(top, &path, files);
            } else {
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(dir, dir, &mut all);
    all
}

fn put(server: &S3Server, key: &str, bytes: &[u8]) {
    let key = TreePath::new(key).unwrap();
    let digest = Digest::of(bytes);
    bucket(server)
        .put(&key, Body::Bytes(bytes), &digest)
        .unwrap();
}

/// Keys that were written and removed since the last call.
fn changed(server: &S3Server) -> (BTreeSet<String>, BTreeSet<String>) {
    let requests = server.take_requests();
    let of = |method: &str| {
        let all = requests.iter().filter(|it| it.method == method);
        all.map(|it| it.key.clone())
            .filter(|key| !key.contains(".casepack"))
            .collect()
    };
    (of("PUT"), of("DELETE"))
}

#[test]
fn evalhubs_downloader_restores_what_was_built() {
    let project = project(true);
    let server = S3Server::start();
    let args = ["--layout", "evalhub-testdata"];
    let dest = format!("s3://{BUCKET}/data/triage");
    let done = publish(&project, &server, &dest, &args).assert_code(0);
    // Both files that the workspace does not have, each by its name.
    assert_eq!(done.findings("answer-key-readable").len(), 2, "{done}");
    assert_eq!(done.json()["key"], "data/triage/");
    assert_eq!(done.json()["uploaded"], 7);
    let built = files(&project.path("dist/evalhub"));
    assert!(built.contains_key("cases/case-002/data/table.csv"));
    assert_eq!(test_data(&server, "data/triage/"), built);
    // Nothing beside it begins like it, so that a forgotten slash does no harm either.
    assert_eq!(test_data(&server, "/data/triage"), built);
}

#[test]
fn agent_evals_downloader_restores_flat_cases() {
    let project = project(false);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/cases/triage");
    published(&project, &server, &dest, &["--layout", "agent-eval-s3"]);
    agent_eval(&server, "cases/triage/", &project.path("restored"));
    let built = files(&project.path("dist/evalhub/cases"));
    assert_eq!(files(&project.path("restored")), built);
    assert_eq!(built.len(), 6);
}

#[test]
fn nested_files_are_refused_for_agent_eval() {
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/cases/triage");
    let refused = publish(
        &project(true),
        &server,
        &dest,
        &["--layout", "agent-eval-s3"],
    )
    .assert_code(1);
    let found = refused.findings("nested-object");
    assert_eq!(found[0]["cases"].as_array().unwrap().len(), 2, "{refused}");
    assert_eq!(keys(&bucket(&server), ""), Vec::<String>::new());
}

#[test]
fn only_changes_are_sent_and_only_ours_is_removed() {
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/triage");
    let args = ["--layout", "evalhub-testdata"];
    published(&project, &server, &dest, &args);
    changed(&server);

    let again = published(&project, &server, &dest, &args);
    assert_eq!(
        (&again["uploaded"], &again["reused"]),
        (&0.into(), &7.into())
    );
    assert_eq!(changed(&server), Default::default());

    project.write("cases/case-001/input.yaml", "ticket: other\n");
    project.remove("cases/case-002/data");
    let dry = published(&project, &server, &dest, &[args[0], args[1], "--dry-run"]);
    assert_eq!((&dry["uploaded"], &dry["removed"]), (&1.into(), &1.into()));
    assert_eq!(changed(&server), Default::default());
    published(&project, &server, &dest, &args);
    let one = |key: &str| BTreeSet::from([format!("data/triage/cases/{key}")]);
    assert_eq!(
        changed(&server),
        (one("case-001/input.yaml"), one("case-002/data/table.csv"))
    );
    assert_eq!(
        test_data(&server, "data/triage/"),
        files(&project.path("dist/evalhub"))
    );

    // This server's listings have sizes and no entity tags, so another size it is.
    // What somebody else overwrote is mended, what somebody else added stays and is told.
    put(
        &server,
        "data/triage/cases/case-001/input.yaml",
        b"ticket: very evil\n",
    );
    put(&server, "data/triage/cases/mine/notes.md", b"mine");
    let refused = publish(&project, &server, &dest, &args).assert_code(1);
    assert_eq!(refused.findings("foreign-object").len(), 1, "{refused}");
    let allowed = [args[0], args[1], "--allow", "foreign-object"];
    let mended = published(&project, &server, &dest, &allowed);
    assert_eq!(
        (&mended["uploaded"], &mended["removed"]),
        (&1.into(), &0.into())
    );
    let there = test_data(&server, "data/triage/");
    assert_eq!(there["cases/mine/notes.md"], b"mine");
    assert_eq!(there["cases/case-001/input.yaml"], b"ticket: other\n");
}

#[test]
fn a_file_that_became_a_directory_is_sent_to_a_server_that_keeps_files() {
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/triage");
    let args = ["--layout", "evalhub-testdata"];
    project.write("cases/case-001/more.md", "a file\n");
    published(&project, &server, &dest, &args);
    project.remove("cases/case-001/more.md");
    project.write("cases/case-001/more.md/inner.md", "in a directory\n");
    let done = published(&project, &server, &dest, &args);
    assert_eq!(
        (&done["uploaded"], &done["removed"]),
        (&1.into(), &1.into())
    );
    assert_eq!(
        test_data(&server, "data/triage/"),
        files(&project.path("dist/evalhub"))
    );
}

#[test]
fn what_is_in_the_way_is_overwritten_only_by_force() {
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/triage");
    put(&server, "data/triage/eval.yaml", b"theirs");
    let args = ["--layout", "evalhub-testdata"];
    let refused = publish(&project, &server, &dest, &args).assert_code(1);
    assert_eq!(refused.findings("foreign-object").len(), 1, "{refused}");
    assert_eq!(test_data(&server, "data/triage/").len(), 1);
    published(&project, &server, &dest, &[args[0], args[1], "--force"]);
    assert_eq!(
        test_data(&server, "data/triage/"),
        files(&project.path("dist/evalhub"))
    );
}

#[test]
fn a_digest_in_the_prefix_gives_each_release_its_own() {
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/triage/{{digest}}");
    let args = ["--layout", "evalhub-testdata"];
    let first = published(&project, &server, &dest, &args);
    let before = test_data(&server, first["key"].as_str().unwrap());
    let digest = first["tree"].as_str().unwrap().replace("sha256:", "");
    assert_eq!(first["key"], format!("triage/{digest}/"));
    project.write("cases/case-001/input.yaml", "ticket: other\n");
    let second = published(&project, &server, &dest, &args);
    assert_ne!(first["key"], second["key"]);
    assert_eq!(test_data(&server, first["key"].as_str().unwrap()), before);
}

#[test]
fn keys_that_begin_alike_and_empty_prefixes_are_told() {
    let project = project(true);
    let server = S3Server::start();
    let args = ["--layout", "evalhub-testdata"];
    published(&project, &server, &format!("s3://{BUCKET}/data/v10"), &args);
    let told = publish(&project, &server, &format!("s3://{BUCKET}/data/v1"), &args);
    let told = told.assert_code(0);
    assert_eq!(told.findings("shared-key-prefix").len(), 1, "{told}");
    // With its slash the key is safe; without, it is as the warning says.
    let built = files(&project.path("dist/evalhub"));
    assert_eq!(test_data(&server, "data/v1/"), built);
    assert!(test_data(&server, "data/v1").contains_key("0/eval.yaml"));
    let refused = publish(&project, &server, &format!("s3://{BUCKET}"), &args).assert_code(1);
    assert_eq!(refused.findings("prefix-empty").len(), 1, "{refused}");
}

#[test]
fn a_directory_can_hold_the_objects_too() {
    let project = project(true);
    let args = ["publish", "objects/triage", "--layout", "evalhub-testdata"];
    project.casepack(args).assert_code(0);
    let built = files(&project.path("dist/evalhub"));
    assert_eq!(files(&project.path("objects/triage")), built);
    assert!(project.path("objects/.casepack/triage.json").is_file());
}

#[test]
fn odd_names_and_lost_modes_are_told() {
    let built = |more: &str| {
        let project = ProjectBuilder::new()
            .file("plain/eval.yaml", EVAL_YAML)
            .file("plain/cases/a/input.yaml", "ticket: x\n")
            .executable("plain/cases/a/run.sh", "#!/bin/sh\n")
            .file(format!("plain/{more}"), "x")
            .build();
        let args = ["publish", "objects/x", "--layout", "evalhub-testdata"];
        let from = ["--from", "plain", "--output", "json"];
        let outcome = project.casepack(args.iter().chain(&from).copied());
        assert_eq!(
            outcome.findings("executable-bit-lost").len(),
            1,
            "{outcome}"
        );
        outcome
    };
    for (more, rule) in [
        ("cases/a/back\\slash", "odd-object-name"),
        ("cases/a/INPUT.yaml", "path-collision"),
        ("cases/loose.md", "object-outside-case"),
        ("cases/.git/config", "object-outside-case"),
        ("README.md", "object-outside-case"),
        ("cases/b/notes.md", "input-missing"),
    ] {
        let outcome = built(more).assert_code(1);
        assert_eq!(outcome.findings(rule).len(), 1, "{more}: {outcome}");
    }
    built("cases/a/fine.md").assert_code(0);
}

/// The same downloaders with boto3 over HTTP, where a Python has it.
#[test]
fn boto3_restores_what_was_built() {
    let has = Command::new("python3")
        .args(["-c", "import boto3"])
        .output();
    if !has.is_ok_and(|has| has.status.success()) {
        println!("skipped: no python3 with boto3 here");
        return;
    }
    let script = "
import os, sys, boto3
bucket, prefix, dest = sys.argv[1:]
s3 = boto3.client('s3')
for page in s3.get_paginator('list_objects_v2').paginate(Bucket=bucket, Prefix=prefix):
    for found in page.get('Contents', []):
        path = os.path.join(dest, found['Key'][len(prefix):])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        s3.download_file(bucket, found['Key'], path)
";
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/triage");
    published(&project, &server, &dest, &["--layout", "evalhub-testdata"]);
    let out: PathBuf = project.path("restored");
    let ran = Command::new("python3")
        .args(["-c", script, BUCKET, "data/triage/"])
        .arg(&out)
        .envs(server.env())
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert_eq!(files(&out), files(&project.path("dist/evalhub")));
}

/// The binary under the name of EvalHub's init container, with the job's variables.
fn init_container(project: &Project, server: &S3Server, env: &[(&str, &str)]) -> (i32, String) {
    let program = project.path("eval-runtime-init");
    if !program.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_casepack"), &program).unwrap();
        let keys: BTreeMap<_, _> = server.env().into_iter().collect();
        for (name, value) in [
            ("AWS_ACCESS_KEY_ID", &keys["AWS_ACCESS_KEY_ID"]),
            ("AWS_SECRET_ACCESS_KEY", &keys["AWS_SECRET_ACCESS_KEY"]),
            ("AWS_DEFAULT_REGION", &keys["AWS_REGION"]),
            ("AWS_S3_ENDPOINT", &keys["AWS_ENDPOINT_URL_S3"]),
        ] {
            project.write(&format!("secret/{name}"), value);
        }
    }
    fs::create_dir_all(project.path("test_data")).unwrap();
    let output = Command::new(program)
        .env_clear()
        .env("CASEPACK_TEST_DATA", project.path("test_data"))
        .env("CASEPACK_S3_SECRET_DIR", project.path("secret"))
        .env("TEST_DATA_S3_BUCKET", BUCKET)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), said.into_owned())
}

#[test]
fn casepack_can_be_evalhubs_init_container() {
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/triage");
    published(&project, &server, &dest, &["--layout", "evalhub-testdata"]);
    let key = ("TEST_DATA_S3_KEY", "/data/triage/");
    let (code, said) = init_container(&project, &server, &[key]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("compared with what was published"), "{said}");
    let built = files(&project.path("dist/evalhub"));
    assert_eq!(files(&project.path("test_data")), built);
    assert_eq!(test_data(&server, "data/triage/"), built);

    for (env, text) in [
        (vec![("TEST_DATA_S3_KEY", "data/none/")], "no objects"),
        (vec![("TEST_DATA_S3_KEY", "/")], "key is empty"),
        (
            vec![key, ("TEST_DATA_GIT_URL", "https://x.example")],
            "S3 only",
        ),
        (vec![], "TEST_DATA_S3_KEY is not set"),
    ] {
        let (code, said) = init_container(&project, &server, &env);
        assert!(code != 0 && said.contains(text), "{code} {said}");
    }

    // Something else of the same size is found by its digest.
    project.remove("test_data");
    put(
        &server,
        "data/triage/cases/case-001/input.yaml",
        b"ticket: two\n",
    );
    let (code, said) = init_container(&project, &server, &[key]);
    assert!(code == 3 && said.contains("case-001/input.yaml"), "{said}");
    assert!(!project.path("test_data/cases/case-001/input.yaml").exists());
}
