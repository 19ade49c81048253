//! `casepack emit evalhub`: what it writes is what EvalHub takes, and what can be fetched.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use casepack::bundle::Compression;
use casepack::diag::Source;
use casepack::yaml::{self, Node, Yaml};
use serde_json::{Value, json};

use super::{EVAL_YAML, agent_eval, files, init_container, project, published, test_data};
use crate::support::{BUCKET, Outcome, Project, ProjectBuilder, S3Server, many, pack};

fn emit(project: &Project, server: &S3Server, args: &[&str]) -> Outcome {
    let all = ["emit", "evalhub", "--output", "json"];
    let mut command = project.invoke(all.iter().chain(args).copied());
    for (name, value) in server.env() {
        command = command.env(name, value);
    }
    command.run()
}

fn check(project: &Project, files: &[&str]) -> Outcome {
    let all = ["emit", "evalhub", "--output", "json", "--check"];
    project.casepack(all.iter().chain(files).copied())
}

#[test]
fn a_job_on_plain_objects_names_what_was_published() {
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/{{digest}}");
    let sent = published(&project, &server, &dest, &["--layout", "evalhub-testdata"]);
    let source = sent["store"].as_str().unwrap();
    let args = [
        source,
        "--model",
        "m",
        "--model-url",
        "https://model.example/v1",
    ];
    let adapter = [
        "--adapter-image",
        "quay.io/x/y:1",
        "--adapter-command",
        "run",
    ];
    let args: Vec<&str> = args
        .into_iter()
        .chain(adapter)
        .chain(["-o", "hub"])
        .collect();
    let emitted = emit(&project, &server, &args).assert_code(0);
    let job = emitted.json()["job"].clone();
    let digest = sent["tree"].as_str().unwrap();
    let hex = digest.trim_start_matches("sha256:");
    assert_eq!(
        job,
        json!({
            "name": format!("data-{}", &hex[..8]),
            "description": "Cases that casepack published.",
            "tags": ["casepack"],
            "model": {"name": "m", "url": "https://model.example/v1"},
            "benchmarks": [{
                "id": "skill-eval",
                "provider_id": "agent-eval",
                "parameters": {
                    "casepack_digest": digest,
                    "casepack_dataset": sent["dataset_digest"],
                },
                "test_data_ref": {"s3": {
                    "bucket": BUCKET, "key": sent["key"], "secret_ref": "casepack-s3",
                }},
            }],
        })
    );
    let key = job["benchmarks"][0]["test_data_ref"]["s3"]["key"]
        .as_str()
        .unwrap();
    assert_eq!(
        test_data(&server, key),
        files(&project.path("dist/evalhub"))
    );
    // Keys are still to be filled in; they are never taken from here.
    let left = emitted.findings("change-me");
    assert!(
        left.iter().all(|it| it["file"] == "secret.yaml"),
        "{emitted}"
    );
    assert_eq!(left.len(), 1, "{emitted}");
    assert_eq!(
        left[0]["message"],
        "Still to be filled in: `stringData.AWS_ACCESS_KEY_ID`, \
         `stringData.AWS_SECRET_ACCESS_KEY`."
    );
    assert_eq!(emitted.findings("loopback-endpoint").len(), 1, "{emitted}");
    let env = server.env();
    for file in ["job.json", "provider.yaml", "secret.yaml"] {
        let text = project.read(&format!("hub/{file}"));
        assert_eq!(emitted.json()["files"][file], text.as_str());
        assert!(
            !text.contains(&env[2].1) && !text.contains(&env[3].1),
            "{text}"
        );
    }
    assert!(project.read("hub/secret.yaml").contains(server.endpoint()));

    // What is there is not lost.
    emit(&project, &server, &args).assert_code(0);
    project.write("hub/secret.yaml", "mine\n");
    emit(&project, &server, &args).assert_code(2);
    assert_eq!(project.read("hub/secret.yaml"), "mine\n");
    let forced: Vec<&str> = args.iter().copied().chain(["--force"]).collect();
    emit(&project, &server, &forced).assert_code(0);
    let all = check(
        &project,
        &["hub/job.json", "hub/provider.yaml", "hub/secret.yaml"],
    );
    let kinds = all.assert_code(0).json()["checked"].clone();
    let kind = |at: usize| kinds[at]["kind"].clone();
    assert_eq!([kind(0), kind(1), kind(2)], ["job", "provider", "secret"]);
}

#[test]
fn several_prefixes_are_benchmarks_of_one_job() {
    let project = project(false);
    let server = S3Server::start();
    let of = |part: &str| format!("s3://{BUCKET}/parts/{part}");
    for part in ["1", "2"] {
        let case = format!("case-00{part}");
        let args = ["--layout", "agent-eval-s3", "--case", &case];
        published(&project, &server, &of(part), &args);
    }
    let emitted = emit(&project, &server, &[&of("1"), &of("2")]).assert_code(0);
    let job = &emitted.json()["job"];
    let restored = project.path("restored");
    for (at, prefix) in ["parts/1/", "parts/2/"].iter().enumerate() {
        let benchmark = &job["benchmarks"][at];
        assert_eq!(benchmark["test_data_ref"], Value::Null);
        assert_eq!(benchmark["parameters"]["s3_bucket"], BUCKET);
        assert_eq!(benchmark["parameters"]["s3_prefix"], *prefix);
        agent_eval(&server, prefix, &restored);
    }
    assert_eq!(files(&restored).len(), 6);
    // The adapter never sees the Secret of a job.
    assert_eq!(emitted.json()["files"]["secret.yaml"], Value::Null);

    // One job has one provider and one Secret.
    let other = of("whole");
    published(&project, &server, &other, &["--layout", "evalhub-testdata"]);
    emit(&project, &server, &[&of("1"), &other]).assert_code(2);
    emit(&project, &server, &[&of("1"), "--shards", "2"]).assert_code(2);
}

/// The benchmarks of a collection's file, as a request for a job would name them.
fn as_in_a_job(collection: &str) -> Value {
    fn plain(yaml: &Yaml) -> Value {
        match yaml {
            Yaml::Seq(items) => items.iter().map(|item| plain(&item.value)).collect(),
            Yaml::Map(entries) => {
                let entry = |(key, value): &(Node, Node)| {
                    let key = key
                        .value
                        .as_str()
                        .unwrap()
                        .replace("secretref", "secret_ref");
                    (key, plain(&value.value))
                };
                Value::Object(entries.iter().map(entry).collect())
            }
            other => other.as_str().unwrap().into(),
        }
    }
    let read = yaml::parse(Arc::new(Source::new("collection.yaml", collection))).unwrap();
    plain(&read.root.value)["benchmarks"].clone()
}

#[test]
fn a_collection_has_the_benchmarks_that_the_job_would_have() {
    let project = project(false);
    let server = S3Server::start();
    let store = format!("s3://{BUCKET}/store");
    let release = published(&project, &server, &store, &["--tag", "v1"]);
    let release = format!("{store}@{}", release["release"].as_str().unwrap());
    for layout in ["evalhub-testdata", "agent-eval-s3"] {
        let dest = format!("s3://{BUCKET}/{layout}");
        published(&project, &server, &dest, &["--layout", layout]);
    }
    for source in [
        vec![release.as_str(), "--shards", "2"],
        vec!["s3://bucket/evalhub-testdata"],
        vec!["s3://bucket/agent-eval-s3"],
    ] {
        let job = emit(&project, &server, &source).assert_code(0).json()["job"].clone();
        let args: Vec<&str> = source
            .iter()
            .copied()
            .chain(["--collection", "triage"])
            .collect();
        let emitted = emit(&project, &server, &args).assert_code(0).json();
        let collection = emitted["files"]["collection.yaml"].as_str().unwrap();
        assert_eq!(as_in_a_job(collection), job["benchmarks"], "{collection}");
        let mut of_collection = emitted["job"].clone();
        assert_eq!(of_collection["collection"], json!({ "id": "triage" }));
        let keys = of_collection.as_object_mut().unwrap();
        keys.remove("collection");
        keys.insert("benchmarks".to_owned(), job["benchmarks"].clone());
        assert_eq!(of_collection, job);
        let out: Vec<&str> = args
            .iter()
            .copied()
            .chain(["-o", "hub", "--force"])
            .collect();
        emit(&project, &server, &out).assert_code(0);
        let checked = check(&project, &["hub/collection.yaml", "hub/job.json"]).assert_code(0);
        assert_eq!(checked.json()["checked"][0]["kind"], "collection");
    }
    // With such an id the server would not start.
    let long = "x".repeat(37);
    let odd = ["..", "a/b", "a b", "a\nb", "Triage"].map(|id| (id, "is no name in Kubernetes"));
    let ids = [("", "0 characters"), (long.as_str(), "37 characters")];
    for (id, text) in ids.into_iter().chain(odd) {
        let args = [
            "s3://bucket/evalhub-testdata",
            "--collection",
            id,
            "-o",
            "none",
        ];
        let refused = emit(&project, &server, &args).assert_code(1);
        assert!(refused.stdout.contains(text), "{refused}");
        assert!(!project.path("none").exists());
    }
}

#[test]
fn casepack_as_init_image_pulls_the_release_that_a_job_names() {
    let project = project(true);
    let server = S3Server::start();
    let store = format!("s3://{BUCKET}/store");
    published(&project, &server, &store, &["--tag", "v1"]);
    let emitted = emit(&project, &server, &[&store, "--ref", "v1"]).assert_code(0);
    let key = |emitted: &Outcome, at: usize| {
        let key = &emitted.json()["job"]["benchmarks"][at]["test_data_ref"]["s3"]["key"];
        key.as_str().unwrap().to_owned()
    };
    let pull = |project: &Project, key: &str| {
        let (code, said) = init_container(project, &server, &[("TEST_DATA_S3_KEY", key)]);
        assert_eq!(code, 0, "{said}");
        files(&project.path("test_data/cases"))
    };
    let args = [
        "pull", &store, "--ref", "v1", "--as", "cases", "-o", "whole",
    ];
    let mut command = project.invoke(args);
    for (name, value) in server.env() {
        command = command.env(name, value);
    }
    command.run().assert_code(0);
    let whole = files(&project.path("whole"));
    assert_eq!(whole.len(), 6);
    assert_eq!(pull(&project, &key(&emitted, 0)), whole);
    // Adapters take every directory for a case; and a second try does no harm.
    let names = |dir: &str| {
        let list = fs::read_dir(project.path(dir)).unwrap();
        let names = list.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<_>>()
    };
    let cases = BTreeSet::from(["case-001".to_owned(), "case-002".to_owned()]);
    assert_eq!(names("test_data/cases"), cases);
    let record = [".casepack.pulled".to_owned()].into();
    assert_eq!(names("whole"), &cases | &record);
    assert_eq!(pull(&project, &key(&emitted, 0)), whole);

    let release = format!(
        "{store}@{}",
        key(&emitted, 0)
            .trim_end_matches('/')
            .rsplit('@')
            .next()
            .unwrap()
    );
    // However many parts are asked for, none is without a case.
    let parts = emit(&project, &server, &[&release, "--shards", "50"]).assert_code(0);
    let benchmarks = parts.json()["job"]["benchmarks"].as_array().unwrap().len();
    assert!((1..=2).contains(&benchmarks));
    let mut all = std::collections::BTreeMap::new();
    for at in 0..benchmarks {
        fs::remove_dir_all(project.path("test_data")).unwrap();
        all.extend(pull(&project, &key(&parts, at)));
    }
    assert_eq!(all, whole);

    // What means a release and names none.
    let named = key(&emitted, 0);
    for (odd, code, says) in [
        (
            format!("{named}3-of-2/"),
            2,
            "'3-of-2' after the digest is no part",
        ),
        (
            format!("{named}cases/"),
            2,
            "'cases' after the digest is no part",
        ),
        (
            "store@sha256:12/".to_owned(),
            2,
            "'12' after '@sha256:' is no digest",
        ),
        ("store@v1/".to_owned(), 2, "PREFIX@sha256:"),
        ("store/".to_owned(), 2, "is a store of releases"),
    ] {
        fs::remove_dir_all(project.path("test_data")).unwrap();
        let (found, said) = init_container(&project, &server, &[("TEST_DATA_S3_KEY", &odd)]);
        assert!(
            found == code && said.contains(says),
            "{odd}: {found} {said}"
        );
        assert_eq!(names("test_data"), BTreeSet::new(), "{odd}");
    }
    // Without the volume of the pod nobody would find what is made.
    let missing = project.path("nowhere/test_data");
    let env = [
        ("TEST_DATA_S3_KEY", named.as_str()),
        ("CASEPACK_TEST_DATA", missing.to_str().unwrap()),
    ];
    let (code, said) = init_container(&project, &server, &env);
    assert!(
        code == 2 && said.contains("mounts a volume there"),
        "{code} {said}"
    );
    assert!(!missing.exists());

    let lost = "store@sha256:".to_owned() + &"0".repeat(64) + "/";
    let (code, said) = init_container(&project, &server, &[("TEST_DATA_S3_KEY", &lost)]);
    assert!(
        code == 2 && said.contains("There is no release sha256:0000"),
        "{code} {said}"
    );
}

#[test]
fn what_was_not_published_by_casepack_is_refused() {
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/v1");
    published(&project, &server, &dest, &["--layout", "evalhub-testdata"]);
    for (args, code, says) in [
        (vec!["s3://bucket/none"], 2, "no record"),
        (vec!["s3://bucket"], 2, "no record"),
        (vec!["s3://bucket/data/v1", "--ref", "v9"], 2, "no ref 'v9'"),
        (vec!["dist/evalhub"], 2, "is a directory"),
        (vec![], 2, "Nothing is named"),
    ] {
        let outcome = emit(&project, &server, &args).assert_code(code);
        let error = outcome.json()["error"]["message"].to_string();
        assert!(error.contains(says), "{args:?}: {outcome}");
    }
    // What the downloader would stumble over since.
    super::put(&server, "data/v1/mine.txt", b"x");
    let outcome = emit(&project, &server, &[&dest]).assert_code(1);
    assert_eq!(outcome.findings("foreign-object").len(), 1, "{outcome}");
    fs::remove_file(server.files().join("data/v1/mine.txt")).unwrap();
    fs::remove_file(server.files().join("data/v1/cases/case-001/input.yaml")).unwrap();
    let outcome = emit(&project, &server, &[&dest]).assert_code(3);
    assert!(
        outcome.stdout.contains("lacks 'cases/case-001/input.yaml'"),
        "{outcome}"
    );
}

const JOB: &str = r#"{"name": "n", "model": {"url": "https://m.example/v1", "name": "m"},
  "benchmarks": [{"id": "b", "provider_id": "p",
    "test_data_ref": {"s3": {"bucket": "bbb", "key": "k/", "secret_ref": "s"}}}]}"#;
const PROVIDER: &str = "id: p\nname: P\nruntime:\n  k8s:\n    image: i\n    entrypoint: [run]\n    env:\n      - name: A\n        value: b\nbenchmarks:\n  - id: b\n";
const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  AWS_ACCESS_KEY_ID: a\n  AWS_SECRET_ACCESS_KEY: b\n  AWS_DEFAULT_REGION: c\n  AWS_S3_ENDPOINT: https://s3.example\n";
const COLLECTION: &str = "id: c\nname: c\ncategory: agents\nbenchmarks:\n  - id: b\n    provider_id: p\n    test_data_ref: {s3: {bucket: bbb, key: k/, secretref: s}}\n";

/// Each of these is taken by the server without a word, or keeps it from starting.
#[test]
fn files_are_checked_more_strictly_than_the_server_does() {
    let project = ProjectBuilder::new().build();
    let found = |file: &str, text: &str| {
        project.write(file, text);
        let outcome = check(&project, &[file]);
        let found = outcome.json()["diagnostics"].as_array().unwrap().clone();
        let rules: Vec<String> = found
            .iter()
            .map(|it| {
                assert!(
                    it["line"].is_u64() || it["rule"] == "job-too-large",
                    "{outcome}"
                );
                format!("{} {}", it["severity"], it["rule"]).replace('"', "")
            })
            .collect();
        rules.join(", ")
    };
    for (file, text) in [
        ("job.json", JOB),
        ("provider.yaml", PROVIDER),
        ("secret.yaml", SECRET),
        ("collection.yaml", COLLECTION),
    ] {
        assert_eq!(found(file, text), "", "{file}");
    }
    for (from, to, rules) in [
        ("test_data_ref", "test_dat_ref", "error unknown-key"),
        ("\"bbb\"", "\"NOT A BUCKET\"", "error bucket-name"),
        ("\"bbb\"", "\"10.0.0.1\"", "error bucket-name"),
        ("\"k/\"", "\"k\"", "error key-without-slash"),
        ("\"k/\"", "\"/\"", "error prefix-empty"),
        ("\"k/\"", "\"a/../b/\"", "error odd-object-name"),
        ("\"s\"", "\"S_S\"", "error kubernetes-name"),
        ("secret_ref", "secretref", "error collection-secret-ref"),
        (
            "\"https://m.example/v1\"",
            "\"vertex-ai\"",
            "error model-url",
        ),
        ("\"url\": \"https://m.example/v1\", ", "", "error model-url"),
        (
            "\"name\": \"n\"",
            "\"name\": \"n\", \"name\": \"m\"",
            "error duplicate-key",
        ),
        (
            "\"name\": \"n\"",
            "\"name\": \"n\", \"tags\": [\"a,b\"]",
            "error bad-value",
        ),
        (
            "\"name\": \"n\"",
            "\"name\": \"n\", \"experiment\": {\"name\": \"e\"}",
            "warning experiment-needs-mlflow",
        ),
        (
            "\"name\": \"n\"",
            "\"name\": \"CHANGE-ME\"",
            "warning change-me",
        ),
        ("\"name\": \"n\",", "", "error missing-key"),
        (
            "\"id\": \"b\"",
            "\"id\": \"b\", \"parameters\": {\"s3_prefix\": \"a\"}",
            "warning both-downloads",
        ),
        (
            "\"id\": \"b\"",
            "\"id\": \"b\", \"weight\": -1",
            "error bad-value",
        ),
        (
            "\"id\": \"b\"",
            "\"id\": \"b\", \"hardware_config\": {\"hardware_profile_name\": \"h\", \"cpu\": {\"limit\": \"1\"}}",
            "error bad-value",
        ),
        (
            "{\"s3\":",
            "{\"resolved_sha\": \"x\", \"s3\":",
            "error unknown-key",
        ),
        (
            "{\"s3\":",
            "{\"pvc\": {\"claim_name\": \"c\"}, \"s3\":",
            "error bad-value",
        ),
    ] {
        let text = JOB.replace(from, to);
        assert_ne!(text, JOB);
        assert_eq!(found("job.json", &text), rules, "{text}");
    }
    let recorded = JOB
        .replace("\"url\": \"https://m.example/v1\", ", "")
        .replace("{\"s3\":", "{\"type\": \"pre_recorded_data\", \"s3\":");
    assert_eq!(found("job.json", &recorded), "");
    let large = JOB.replace(
        "\"id\": \"b\"",
        &format!(
            "\"id\": \"b\", \"parameters\": {{\"x\": \"{}\"}}",
            "x".repeat(1 << 20)
        ),
    );
    assert_eq!(found("job.json", &large), "warning job-too-large");
    for (file, good, from, to, rules) in [
        (
            "p.yaml",
            PROVIDER,
            "value: b",
            "valueFrom: {secretKeyRef: {}}",
            "error provider-not-literal",
        ),
        (
            "p.yaml",
            PROVIDER,
            "    image: i\n",
            "    image: i\n    volumes: []\n",
            "error provider-not-literal",
        ),
        (
            "p.yaml",
            PROVIDER,
            "name: A\n        value: b",
            "name: AWS_SECRET_ACCESS_KEY\n        value: hush",
            "warning secret-literal",
        ),
        (
            "p.yaml",
            PROVIDER,
            "name: A\n        value: b",
            "name: AWS_ENDPOINT_URL_S3\n        value: http://127.0.0.1",
            "warning loopback-endpoint",
        ),
        (
            "p.yaml",
            PROVIDER,
            "id: p\n",
            "id: ppppppppppppppppppppppppppppppppppppp\n",
            "error bad-value",
        ),
        (
            "c.yaml",
            COLLECTION,
            "id: c\n",
            "id: ccccccccccccccccccccccccccccccccccccc\n",
            "error bad-value",
        ),
        ("c.yaml", COLLECTION, "id: c\n", "", "error missing-key"),
        (
            "p.yaml",
            PROVIDER,
            "entrypoint",
            "command",
            "error missing-key, error unknown-key",
        ),
        (
            "s.yaml",
            SECRET,
            "  AWS_S3_ENDPOINT: https://s3.example\n",
            "",
            "error secret-incomplete",
        ),
        (
            "s.yaml",
            SECRET,
            "https://s3.example",
            "http://localhost:9000",
            "warning loopback-endpoint",
        ),
        (
            "s.yaml",
            SECRET,
            "https://s3.example",
            "http://[::1]:9000",
            "warning loopback-endpoint",
        ),
        (
            "s.yaml",
            SECRET,
            "name: s",
            "name: S_S",
            "error kubernetes-name",
        ),
        (
            "c.yaml",
            COLLECTION,
            "secretref",
            "secret_ref",
            "error collection-secret-ref",
        ),
        (
            "c.yaml",
            COLLECTION,
            "category: agents\n",
            "",
            "error missing-key",
        ),
        (
            "x.yaml",
            COLLECTION,
            COLLECTION,
            "a: 1\n",
            "error missing-key",
        ),
        (
            "x.yaml",
            COLLECTION,
            COLLECTION,
            "a: [\n",
            "error yaml-syntax",
        ),
    ] {
        let text = good.replace(from, to);
        assert_eq!(found(file, &text), rules, "{text}");
    }
    // A request for a collection has the other key.
    let request = r#"{"name": "c", "category": "a", "benchmarks": [{"id": "b", "provider_id": "p",
        "test_data_ref": {"s3": {"bucket": "bbb", "key": "k/", "secret_ref": "s"}}}]}"#;
    assert_eq!(found("c.json", request), "");
}

#[test]
fn a_release_of_many_files_is_split() {
    let mut builder = ProjectBuilder::new()
        .file("plain/eval.yaml", EVAL_YAML)
        .file("plain/cases/a/input.yaml", "ticket: x\n");
    for file in 0..5_000 {
        builder = builder.file(format!("plain/cases/a/{}/{file}", file % 10), "x");
    }
    let project = builder.build();
    let server = S3Server::start();
    pack(&project.path("bundle"), &many(1_500), Compression::Zstd, 2);
    let store = format!("s3://{BUCKET}/store");
    published(&project, &server, &store, &["--from", "bundle"]);
    let emitted = emit(&project, &server, &[&store, "--ref", "latest"]).assert_code(0);
    let job = &emitted.json()["job"];
    assert_eq!(job["benchmarks"].as_array().unwrap().len(), 2, "{job}");
    // The directory that the server serves: quicker than thousands of requests.
    let plain = server.files().join("plain").to_str().unwrap().to_owned();
    let args = ["--layout", "evalhub-testdata", "--from", "plain"];
    published(&project, &server, &plain, &args);
    let plain = format!("s3://{BUCKET}/plain");
    let emitted = emit(&project, &server, &[&plain]).assert_code(0);
    assert_eq!(emitted.findings("slow-download").len(), 1, "{emitted}");
}

/// EvalHub's own server, where there is one: `eval-hub` of the package `eval-hub-server`, in the
/// path or named by `CASEPACK_TEST_EVAL_HUB`.
#[test]
fn evalhubs_server_takes_what_is_emitted() {
    let named = std::env::var_os("CASEPACK_TEST_EVAL_HUB").map(PathBuf::from);
    let in_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|dir| dir.join("eval-hub"))
            .find(|program| program.is_file())
    };
    let Some(program) = named.or_else(in_path) else {
        println!("skipped: no eval-hub here (pip install eval-hub-server==1.0.2)");
        return;
    };
    let project = project(true);
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/v1");
    published(&project, &server, &dest, &["--layout", "evalhub-testdata"]);
    emit(&project, &server, &[&dest, "-o", "hub"]).assert_code(0);
    let of_collection = ["--collection", "triage", "-o", "hub2"];
    let args: Vec<&str> = [dest.as_str()].into_iter().chain(of_collection).collect();
    emit(&project, &server, &args).assert_code(0);
    project.write(
        "conf/collections/triage.yaml",
        project.read("hub2/collection.yaml"),
    );

    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    project.write(
        "conf/config.yaml",
        format!(
            "service:\n  host: 127.0.0.1\n  port: {port}\nprometheus:\n  enabled: false\n\
             database:\n  driver: sqlite\n  url: file::hub{port}:?mode=memory&cache=shared\n"
        ),
    );
    let provider = project.read("hub/provider.yaml");
    // Without a cluster the server starts a command of the provider.
    let local = "runtime:\n  local:\n    command: \"true\"\n";
    project.write(
        "conf/providers/agent-eval.yaml",
        provider.replace("runtime:\n", local),
    );
    let hub = Hub::start(&program, &project, port);
    let job = project.read("hub/job.json");
    let (status, answer) = hub.ask("POST", "/api/v1/evaluations/jobs", &job);
    assert_eq!(status, 202, "{answer}");
    let (status, answer) = hub.ask("GET", "/api/v1/evaluations/providers/agent-eval", "");
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("/test_data/eval.yaml"), "{answer}");
    let (status, answer) = hub.ask("GET", "/api/v1/evaluations/collections/triage", "");
    assert_eq!(status, 200, "{answer}");
    let body = answer.split("\r\n\r\n").nth(1).unwrap();
    let collection: Value = serde_json::from_str(body).unwrap();
    let direct: Value = serde_json::from_str(&job).unwrap();
    assert_eq!(collection["benchmarks"], direct["benchmarks"], "{answer}");
    let (status, answer) = hub.ask(
        "POST",
        "/api/v1/evaluations/jobs",
        &project.read("hub2/job.json"),
    );
    assert_eq!(status, 202, "{answer}");
    // What only the check finds.
    let misspelt = job.replace("test_data_ref", "test_dat_ref");
    assert_eq!(
        hub.ask("POST", "/api/v1/evaluations/jobs", &misspelt).0,
        202
    );
    project.write("hub/job.json", &misspelt);
    let found = check(&project, &["hub/job.json"]).assert_code(1);
    assert_eq!(found.findings("unknown-key").len(), 1, "{found}");
}

/// A running server of EvalHub; ended when it is dropped.
struct Hub {
    child: Child,
    port: u16,
}

impl Hub {
    fn start(program: &std::path::Path, project: &Project, port: u16) -> Self {
        let child = Command::new(program)
            .args(["-local", "-configdir", "conf"])
            .current_dir(project.path("."))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let hub = Self { child, port };
        let end = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the server does not start");
            thread::sleep(Duration::from_millis(50));
        }
        hub
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
