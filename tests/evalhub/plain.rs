//! Plain layouts: each rule about them, what is sent as `eval.yaml`, and kills at any moment.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use casepack::digest::Digest;

use super::{EVAL_YAML, bucket, files, get, keys, project, publish, published, test_data};
use crate::support::{BUCKET, Outcome, Project, ProjectBuilder, S3Server, http, serve};

const TEST_DATA: [&str; 2] = ["--layout", "evalhub-testdata"];

/// Publishes to a server that lists `listed` and has nothing else.
fn publish_among(project: &Project, listed: &[&str], args: &[&str]) -> Outcome {
    let contents: String = listed
        .iter()
        .flat_map(|key| ["<Contents><Key>", key, "</Key><Size>1</Size></Contents>"])
        .collect();
    let endpoint = serve(move |head, _| {
        if head.contains("list-type=2") {
            let page = format!("<ListBucketResult>{contents}</ListBucketResult>");
            return http("200 OK", "content-type: application/xml\r\n", &page);
        }
        let lost = "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>";
        http("404 Not Found", "", lost)
    });
    let all = [
        "publish",
        "s3://bucket/data/v1",
        "--output",
        "json",
        "--dry-run",
    ];
    let command = project.invoke(all.iter().chain(&TEST_DATA).chain(args).copied());
    let command = command.env("AWS_ENDPOINT_URL_S3", endpoint);
    let command = command.env("AWS_ACCESS_KEY_ID", "x");
    command.env("AWS_SECRET_ACCESS_KEY", "y").run()
}

#[test]
fn keys_that_downloaders_stumble_over_are_told() {
    let project = project(true);
    for (listed, rule) in [
        // What consoles make for directories: at the top, and of a case.
        ("data/v1/", "placeholder-object"),
        ("data/v1/cases/case-001/", "placeholder-object"),
        ("data/v1/cases//x", "placeholder-object"),
        // A file where a directory of ours belongs.
        ("data/v1/cases/case-001", "foreign-object"),
        // Below a prefix of that name, fetched when the slash is forgotten.
        ("data/v1-old/x", "shared-key-prefix"),
    ] {
        let code = i32::from(rule != "shared-key-prefix");
        let told = publish_among(&project, &[listed], &[]).assert_code(code);
        let found = told.findings(rule);
        assert_eq!(found.len(), 1, "{listed}: {told}");
        let message = found[0]["message"].as_str().unwrap();
        assert!(message.contains(listed), "{message}");
    }
    publish_among(&project, &[], &[]).assert_code(0);
}

#[test]
fn what_can_not_be_published_is_told_before_anything_is_sent() {
    let project = ProjectBuilder::new()
        .file("no-cases/eval.yaml", EVAL_YAML)
        .file("no-config/cases/a/input.yaml", "ticket: x\n")
        .file("long/eval.yaml", EVAL_YAML)
        .file("long/cases/a/input.yaml", "ticket: x\n")
        .file(
            format!("long/cases/a/{}", vec!["x".repeat(200); 2].join("/")),
            "x",
        )
        .build();
    let server = S3Server::start();
    let prefix = vec!["p".repeat(200); 4].join("/");
    for (from, prefix, rule) in [
        ("no-cases", "data", "no-cases"),
        ("no-config", "data", "config-not-found"),
        ("long", prefix.as_str(), "path-too-long"),
    ] {
        let dest = format!("s3://{BUCKET}/{prefix}");
        let args = [TEST_DATA[0], TEST_DATA[1], "--from", from];
        let told = publish(&project, &server, &dest, &args).assert_code(1);
        assert_eq!(told.findings(rule).len(), 1, "{told}");
    }
    assert_eq!(keys(&bucket(&server), ""), Vec::<String>::new());
    // Objects have no tags.
    let dest = format!("s3://{BUCKET}/data");
    let args = [TEST_DATA[0], TEST_DATA[1], "--from", "long", "--tag", "v1"];
    let refused = publish(&project, &server, &dest, &args).assert_code(2);
    assert!(refused.stdout.contains("no tags"), "{refused}");
    let untagged = [&args[..4], &["--dry-run"]].concat();
    publish(&project, &server, &dest, &untagged).assert_code(0);
}

/// In the pod the cases are in `cases`, shared files are in them, and agent-eval refuses a config
/// with shared entries (evalhub.md 6.1).
#[test]
fn the_config_is_as_pods_can_read_it() {
    let text = "\
# Triage.
name: triage
skill: triage
dataset:
  path: eval/data   # here
  workspace:
    files:
      - notes.md
      # For all cases.
      - dest: guide.md
        source: docs/guide.md
execution:
  mode: case
  arguments: '{ticket}'
judges:
  - name: there
    check: 'return True, \"there\"'
";
    let project = ProjectBuilder::new()
        .eval_yaml(text)
        .file("docs/guide.md", "guide\n")
        .file("eval/data/a/input.yaml", "ticket: x\n")
        .file("eval/data/a/notes.md", "notes\n")
        .build();
    let server = S3Server::start();
    published(
        &project,
        &server,
        &format!("s3://{BUCKET}/data"),
        &TEST_DATA,
    );
    let there = test_data(&server, "data/");
    let names: Vec<&str> = there.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "cases/a/guide.md",
            "cases/a/input.yaml",
            "cases/a/notes.md",
            "eval.yaml"
        ]
    );
    let expected = text.replace("eval/data ", "cases ").replace(
        "      - dest: guide.md\n        source: docs/guide.md\n",
        "",
    );
    assert_eq!(String::from_utf8_lossy(&there["eval.yaml"]), expected);
    // Nothing is left of what was in the project's config.
    assert_eq!(project.read("eval.yaml"), text);
    // What was built is a dataset again.
    project.casepack(["check", "dist/evalhub"]).assert_code(0);
}

/// The record names exactly what is there.
fn assert_recorded(server: &S3Server, prefix: &str, there: &BTreeMap<String, Vec<u8>>) {
    let store = bucket(server);
    let (parent, name) = prefix.rsplit_once('/').unwrap();
    let record = get(&store, &format!("{parent}/.casepack/{name}.json"));
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["pending"], serde_json::Value::Null);
    let recorded = record["files"].as_object().unwrap();
    let digests: BTreeMap<&str, &str> = recorded
        .iter()
        .map(|(path, file)| (path.as_str(), file["sha256"].as_str().unwrap()))
        .collect();
    let found: BTreeMap<&str, String> = there
        .iter()
        .map(|(path, bytes)| (path.as_str(), Digest::of(bytes).hex()))
        .collect();
    let found: BTreeMap<&str, &str> = found
        .iter()
        .map(|(path, hex)| (*path, hex.as_str()))
        .collect();
    assert_eq!(digests, found);
}

#[test]
fn a_publish_of_plain_objects_may_be_killed_at_any_moment() {
    let mut builder = ProjectBuilder::new().eval_yaml(EVAL_YAML);
    for number in 0..20 {
        builder = builder.case(&format!("case-{number:02}"), |case| {
            case.input(&format!("ticket: {number}\n"))
                .file("a/data", "x")
        });
    }
    let project = builder.build();
    let server = S3Server::start();
    let dest = format!("s3://{BUCKET}/data/v1");
    published(&project, &server, &dest, &TEST_DATA);
    let rounds = std::env::var("CASEPACK_TEST_KILLS").ok();
    let rounds: usize = rounds.and_then(|it| it.parse().ok()).unwrap_or(5);
    let mut killed = 0;
    for round in 0..rounds {
        // Everything changes, some cases go and others come.
        for number in 0..20 {
            let input = format!("cases/case-{number:02}/input.yaml");
            if (number + round) % 5 == 0 {
                project.remove(&format!("cases/case-{number:02}"));
            } else {
                project.write(&input, format!("ticket: {number} of {round}\n"));
                project.write(&format!("cases/case-{number:02}/b{round}"), "y");
            }
        }
        server.take_requests();
        let all = ["publish", &dest, "--progress", "none"];
        let mut command = project.invoke(all.iter().chain(&TEST_DATA).copied());
        for (name, value) in server.env() {
            command = command.env(name, value);
        }
        let mut command: Command = command.command();
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // After so many requests: while it looks, announces, writes and removes.
        let (moment, mut seen) = (1 + round * 11, 0);
        while seen < moment && child.try_wait().unwrap().is_none() {
            seen += server.take_requests().len();
            thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        // A job that starts now is told, or finds one whole state.
        published(&project, &server, &dest, &TEST_DATA);
        let there = test_data(&server, "data/v1/");
        assert_eq!(there, files(&project.path("dist/evalhub")), "round {round}");
        assert!(there.keys().all(|path| {
            let case = path.split('/').nth(1).unwrap_or_default();
            path == "eval.yaml" || project.path("cases").join(case).is_dir()
        }));
        assert_recorded(&server, "data/v1", &there);
    }
    assert!(killed > 0, "nothing was ever killed before it ended");
    // Unfinished uploads leave nothing beside.
    let all = keys(&bucket(&server), "");
    let beside: Vec<&String> = all
        .iter()
        .filter(|key| !key.starts_with("data/v1/"))
        .collect();
    assert_eq!(beside, ["data/.casepack/v1.json"]);
    fs::remove_dir_all(project.path("dist")).unwrap();
}
