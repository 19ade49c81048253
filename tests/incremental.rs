//! Builds that say why, and what is done about outputs that are not what they were: plan, verify,
//! diff, watch, link, and everything that may go wrong on the disk.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Project, ProjectBuilder};

const CONFIG: &str = "
name: demo
dataset:
  path: cases
  schema: prompt
  workspace:
    files:
      - notes.md
      - {dest: guide.md, source: shared/guide.md}
execution: {prompt: 'Do {{ input.prompt }}'}
judges:
  - {name: done, check: return True}
";

fn project(count: usize) -> Project {
    let mut project = ProjectBuilder::new()
        .eval_yaml(CONFIG)
        .file("shared/guide.md", "the guide\n");
    for number in 0..count {
        project = project.case(&format!("case-{number}"), |case| {
            case.input(&format!("prompt: task {number}\n"))
                .annotations(&format!("want: {number}\n"))
                .file("notes.md", format!("note {number}\n"))
        });
    }
    let project = project.build();
    // Nothing vouches for files that are as young as the build.
    std::thread::sleep(Duration::from_millis(60));
    project
}

fn json(project: &Project, args: &[&str], code: i32) -> Value {
    let all = args.iter().chain(&["--output", "json"]);
    project.casepack(all).assert_code(code).json()
}

/// `case action` of every output.
fn actions(plan: &Value) -> Vec<String> {
    let outputs = plan["outputs"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    outputs
        .iter()
        .map(|it| format!("{} {}", text(&it["case"]), text(&it["action"])))
        .collect()
}

#[test]
fn plan_says_what_a_build_would_do_and_why() {
    let project = project(4);
    let plan = json(&project, &["plan"], 0);
    assert_eq!(plan["schema"], "casepack.plan.v1");
    assert_eq!(plan["summary"]["new"], 4);
    assert!(!project.path("dist").exists(), "a plan writes nothing");
    project.casepack(["build"]).assert_code(0);
    assert_eq!(json(&project, &["plan"], 0)["summary"]["unchanged"], 4);

    project.write("cases/case-1/notes.md", "another note\n");
    project.write("cases/case-2/annotations.yaml", "want: more\n");
    project.write("cases/case-3/new.md", "for judges\n");
    project.remove("cases/case-0");
    let before = project.tree("dist");
    let plan = json(&project, &["plan"], 0);
    assert_eq!(
        actions(&plan),
        [
            "case-1 changed",
            "case-2 changed",
            "case-3 changed",
            "case-0 removed"
        ]
    );
    let inputs = |at: usize| {
        let inputs = plan["outputs"][at]["inputs"].as_array().unwrap().clone();
        inputs
            .iter()
            .map(|it| format!("{} {}", it["view"], it["file"]))
            .collect::<Vec<_>>()
    };
    assert_eq!(inputs(0), ["\"workspace\" \"notes.md\""]);
    assert_eq!(inputs(1), ["\"evaluation\" \"annotations.yaml\""]);
    assert_eq!(inputs(2), ["\"evaluation\" \"new.md\""]);
    let moved = &plan["outputs"][0]["inputs"][0];
    assert!(moved["old"].as_str().unwrap().starts_with("sha256:"));
    assert_ne!(moved["old"], moved["new"]);
    assert_eq!(plan["outputs"][2]["inputs"][0]["old"], Value::Null);
    assert_ne!(
        plan["outputs"][0]["key"],
        plan["outputs"][0]["previous_key"]
    );
    assert_eq!(project.tree("dist"), before, "a plan writes nothing");

    // What is built is what was planned.
    let built = json(&project, &["build"], 0);
    assert_eq!(built["changed"], json!(["case-1", "case-2", "case-3"]));
    assert_eq!(built["removed"], json!(["harbor/case-0"]));
    assert_eq!(json(&project, &["plan"], 0)["summary"]["unchanged"], 3);

    // Options and the config, by name and value; nothing where no output changes.
    let plan = json(&project, &["plan", "--workdir", "/work"], 0);
    assert_eq!(
        plan["settings"],
        json!([{"name": "--workdir", "old": "/workspace", "new": "/work", "outputs": 3}])
    );
    project.write(
        "eval.yaml",
        CONFIG.replace("Do {{", "Please do {{") + "# a remark\n",
    );
    let plan = json(&project, &["plan"], 0);
    assert_eq!(plan["settings"][0]["name"], "eval.yaml execution.prompt");
    assert_eq!(plan["settings"][0]["old"], "Do {{ input.prompt }}");
    project.write("eval.yaml", format!("{CONFIG}# a remark\n"));
    assert_eq!(json(&project, &["plan"], 0)["summary"]["unchanged"], 3);
    let text = project.casepack(["plan", "--image", "example/x:1"]);
    assert!(
        text.stdout
            .contains("--image was not given, now `example/x:1` (3 outputs)"),
        "{text}"
    );
}

#[test]
fn plan_without_what_was_written_down_says_so() {
    let project = project(2);
    project.casepack(["build"]).assert_code(0);
    project.write("cases/case-1/notes.md", "another note\n");
    for damage in ["", "no such thing\n", "0123456789abcdef h - {}\n"] {
        project.write("dist/.casepack/harbor.files", damage);
        let plan = json(&project, &["plan"], 0);
        assert_eq!(plan["outputs"][1]["action"], "changed");
        assert_eq!(plan["outputs"][1]["inputs"], Value::Null, "{damage:?}");
    }
    project.casepack(["build"]).assert_code(0);
    project.casepack(["build", "--no-index"]).assert_code(0);
    project.write("cases/case-1/notes.md", "a third note\n");
    let plan = json(&project, &["plan"], 0);
    assert_eq!(plan["outputs"][1]["inputs"][0]["file"], "notes.md");
}

#[test]
fn findings_are_told_again_without_reading() {
    let project = project(3);
    project.write("eval.yaml", CONFIG.replace("notes.md", "missing.md"));
    project.write("cases/case-1/missing.md", "here\n");
    fs::create_dir(project.path("cases/case-2/empty")).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    let first = json(&project, &["build", "-v"], 0);
    assert!(
        first["diagnostics"].as_array().unwrap().len() >= 2,
        "{first}"
    );
    let again = json(&project, &["build", "-v"], 0);
    assert_eq!(again["diagnostics"], first["diagnostics"]);
    assert_eq!(again["unchanged"].as_array().unwrap().len(), 3);
    let human = |outcome: crate::support::Outcome| {
        let lines = outcome.stderr.lines().map(str::to_owned);
        lines
            .filter(|line| !line.starts_with("Building"))
            .collect::<Vec<_>>()
    };
    let fresh = human(project.casepack(["build", "-v", "-o", "other"]));
    assert_eq!(human(project.casepack(["build", "-v"])), fresh);
    // Another judgement of the user is another state.
    project
        .casepack(["build", "--deny", "warnings"])
        .assert_code(1);
    project.casepack(["build"]).assert_code(0);
}

/// Why a shared source is left out is found anew when it is another reason.
#[test]
fn a_shared_source_that_is_left_out_for_another_reason_is_told() {
    let project = project(1);
    project.remove("shared/guide.md");
    let told = |args: &[&str]| json(&project, args, 0)["diagnostics"].clone();
    assert_eq!(told(&["build"])[0]["rule"], "shared-source-missing");
    std::os::unix::fs::symlink("/etc/passwd", project.path("shared/guide.md")).unwrap();
    let now = told(&["build"]);
    assert_eq!(now[0]["rule"], "shared-source-outside-roots");
    assert_eq!(now, told(&["build", "-o", "other"]));
}

#[test]
fn verify_names_each_difference() {
    let project = project(3);
    project
        .casepack(["build", "--target", "harbor,workspace"])
        .assert_code(0);
    let fine = json(&project, &["verify"], 0);
    assert_eq!(fine["differences"], json!([]));
    assert_eq!(fine["targets"], json!(["workspace", "harbor"]));
    assert_eq!(fine["outputs"], 6);

    project.write("dist/harbor/case-0/instruction.md", "mine\n");
    project.write("dist/harbor/case-0/extra.md", "mine\n");
    fs::remove_file(project.path("dist/harbor/case-1/task.toml")).unwrap();
    fs::remove_dir_all(project.path("dist/workspace/case-2")).unwrap();
    let run = project.path("dist/workspace/case-0/guide.md");
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
    project.write("dist/harbor/stranger/task.toml", "x = 1\n");
    let found = json(&project, &["verify", "dist"], 1);
    let differences = found["differences"].as_array().unwrap();
    let told: Vec<String> = differences
        .iter()
        .map(|it| {
            let text = |key: &str| it[key].as_str().unwrap_or("-").to_owned();
            format!(
                "{} {} {} {}",
                text("change"),
                text("target"),
                text("output"),
                text("file")
            )
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"), @r"
    mode workspace case-0 guide.md
    removed workspace case-2 -
    added harbor case-0 extra.md
    content harbor case-0 instruction.md
    removed harbor case-1 task.toml
    listed harbor dataset.toml demo/case-0
    listed harbor dataset.toml demo/case-1
    added harbor stranger -
    ");
    // A target's directory does as well; what is no build is the command line's fault.
    assert_eq!(
        json(&project, &["verify", "dist/harbor"], 1)["differences"]
            .as_array()
            .unwrap()
            .len(),
        8
    );
    project.casepack(["verify", "cases"]).assert_code(2);
    project
        .casepack(["build", "--target", "harbor,workspace", "--force"])
        .assert_code(0);
    project.remove("dist/harbor/stranger");
    json(&project, &["verify"], 0);
}

#[test]
fn diff_compares_builds_and_datasets() {
    let project = project(3);
    project.casepack(["build", "-o", "a"]).assert_code(0);
    project.casepack(["diff", "a", "."]).assert_code(0);
    project.write("cases/case-1/notes.md", "another note\n");
    project.remove("cases/case-0");
    project.write("cases/case-9/input.yaml", "prompt: nine\n");
    project.casepack(["build", "-o", "b"]).assert_code(0);
    for (a, b) in [("a", "b"), ("a", "."), ("a", "eval.yaml")] {
        let found = json(&project, &["diff", a, b], 1);
        assert_eq!(found["schema"], "casepack.diff.v1");
        assert_eq!(found["added"], json!(["case-9"]), "{a} {b}");
        assert_eq!(found["removed"], json!(["case-0"]));
        assert_eq!(found["same"], 1);
        assert_eq!(found["changed"][0]["output"], "case-1");
        let files = found["changed"][0]["files"].as_array().unwrap();
        assert!(
            files
                .iter()
                .any(|it| it["file"] == "environment/workspace/notes.md"
                    && it["change"] == "content"),
            "{files:?}"
        );
    }
    assert_eq!(
        json(&project, &["diff", ".", "a"], 1)["added"],
        json!(["case-0"])
    );
    // What somebody changed in a build is seen.
    project.write("b/harbor/case-2/instruction.md", "mine\n");
    let found = json(&project, &["diff", "b", "."], 1);
    assert_eq!(found["changed"][0]["files"][0]["file"], "instruction.md");
    project.casepack(["diff", "a", "nowhere"]).assert_code(1);
    project
        .casepack(["diff", "a", "b", "--target", "workspace"])
        .assert_code(2);
}

#[test]
fn outputs_are_read_when_nobody_is_trusted() {
    let project = project(2);
    project.casepack(["build"]).assert_code(0);
    assert_eq!(
        json(&project, &["build", "--no-index"], 0)["unchanged"],
        json!(["case-0", "case-1"])
    );
    // A byte that changes behind the file system's back can't be made here; so the record is made
    // to say that the changed output looks right.
    project.write("dist/harbor/case-1/instruction.md", "Do task X\n");
    let changed = json(&project, &["build", "--verify-outputs"], 1);
    assert_eq!(changed["failed"], json!(["case-1"]));
    assert_eq!(
        json(&project, &["build", "--verify-outputs", "--force"], 0)["changed"],
        json!(["case-1"])
    );
}

#[test]
fn links_are_read_only_and_the_same_files() {
    let project = project(4);
    let plain = ["build", "-o", "plain"];
    project.casepack(plain).assert_code(0);
    project.casepack(["build", "--link"]).assert_code(0);
    assert_eq!(
        project
            .casepack(["diff", "plain", "dist"])
            .assert_code(0)
            .stderr,
        ""
    );
    let at = |case: &str, file: &str| {
        let path = project.path(format!("dist/harbor/{case}/{file}"));
        path.metadata().unwrap()
    };
    for file in ["environment/workspace/guide.md", "tests/judge.py"] {
        let (one, other) = (at("case-0", file), at("case-3", file));
        assert_eq!((one.dev(), one.ino()), (other.dev(), other.ino()), "{file}");
        assert_eq!(one.mode() & 0o222, 0, "{file} can not be written");
    }
    let own = at("case-0", "environment/workspace/notes.md");
    assert_eq!((own.nlink(), own.mode() & 0o777), (1, 0o644));

    // Links make nothing look changed, and what was linked is found again.
    let again = json(&project, &["build"], 0);
    assert_eq!(again["unchanged"].as_array().unwrap().len(), 4);
    project.write("cases/case-4/input.yaml", "prompt: four\n");
    assert_eq!(
        json(&project, &["build", "--link"], 0)["new"],
        json!(["case-4"])
    );
    assert_eq!(
        at("case-4", "tests/judge.py").ino(),
        at("case-0", "tests/judge.py").ino()
    );
    json(&project, &["verify"], 0);

    // One that is changed all the same is found in every output, and is linked no more.
    let judge = project.path("dist/harbor/case-0/tests/judge.py");
    fs::set_permissions(&judge, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&judge, "print('mine')\n").unwrap();
    let found = json(&project, &["build"], 1);
    assert_eq!(found["failed"].as_array().unwrap().len(), 5);
    assert_eq!(
        json(&project, &["build", "--link", "--force"], 0)["changed"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
    json(&project, &["verify"], 0);
    json(
        &project,
        &["diff", "plain", "dist", "--case", "case-[0-3]"],
        0,
    );
}

/// Waits for `what`, for as long as a busy machine may take.
fn until(mut what: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_mins(2);
    while Instant::now() < end {
        if what() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

#[test]
fn watch_builds_again_when_something_changes() {
    let project = project(2);
    let mut child = project
        .invoke(["build", "--watch"])
        .command()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let has = |file: &str, text: &str| {
        let path = project.path(file);
        until(|| fs::read_to_string(&path).is_ok_and(|there| there.contains(text)))
    };
    assert!(has("dist/harbor/dataset.toml", "case-1"));
    project.write("cases/case-0/notes.md", "seen\n");
    assert!(has(
        "dist/harbor/case-0/environment/workspace/notes.md",
        "seen"
    ));
    project.write("shared/guide.md", "seen as well\n");
    assert!(has(
        "dist/harbor/case-1/environment/workspace/guide.md",
        "seen as well"
    ));
    project.write("cases/case-2/input.yaml", "prompt: new\n");
    assert!(has("dist/harbor/case-2/instruction.md", "Do new"));
    // A directory that is replaced by one of its name, as checkouts do.
    fs::rename(project.path("cases"), project.path("aside")).unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .args([project.path("aside"), project.path("cases")])
        .status();
    assert!(copied.unwrap().success());
    fs::remove_dir_all(project.path("aside")).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    project.write("cases/case-0/notes.md", "seen again\n");
    assert!(has(
        "dist/harbor/case-0/environment/workspace/notes.md",
        "seen again"
    ));
    // An error is told, and mended.
    project.write("eval.yaml", "name: [\n");
    std::thread::sleep(Duration::from_millis(500));
    project.write("eval.yaml", CONFIG.replace("Do {{", "Now do {{"));
    assert!(has("dist/harbor/case-2/instruction.md", "Now do new"));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(until(|| child.try_wait().unwrap().is_some()));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("2 new") && text.contains("1 changed"),
        "{text}"
    );
    // That the directory is missed while it is replaced is told, and then that all is well again.
    let nothing = text.matches("Built 0 cases").count();
    assert!(nothing <= 1, "only news are told: {text}");
}

/// Runs `script` with bubblewrap's `mounts`; `None`, told, where that is not possible.
fn in_mounts(project: &Project, mounts: &[&str], script: &str) -> Option<(i32, String)> {
    let command = project.invoke(["unused"]).command();
    let mut bwrap = Command::new("bwrap");
    bwrap.args(["--dev-bind", "/", "/"]).args(mounts);
    bwrap.args(["sh", "-c", script]).arg(command.get_program());
    bwrap.current_dir(project.root()).env_clear();
    bwrap.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let probe = Command::new("bwrap")
        .args(["--dev-bind", "/", "/"])
        .args(mounts)
        .arg("true")
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: no bubblewrap that mounts {mounts:?}");
        return None;
    }
    let output = bwrap.output().unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Some((output.status.code().unwrap(), text))
}

#[test]
fn a_full_disk_is_told_and_costs_nothing_that_was_there() {
    let project = project(8);
    fs::create_dir(project.path("small")).unwrap();
    let small = project.path("small");
    let small = small.to_str().unwrap();
    // Eight packages do not fit; the first two do.
    let script = "
        \"$0\" build -q --case 'case-[01]' -o small/dist || exit 10
        cp -r small/dist before
        \"$0\" build --output human -o small/dist; code=$?
        [ $code = 3 ] || exit 11
        for case in case-0 case-1; do diff -r before/harbor/$case small/dist/harbor/$case || exit 12; done
        rm -r small/dist/harbor/case-1
        \"$0\" verify small/dist | grep -q 'removed *harbor/case-1' || exit 13
        \"$0\" build -q --case 'case-[01]' -o small/dist || exit 14
        for case in case-0 case-1; do diff -r before/harbor/$case small/dist/harbor/$case || exit 15; done
    ";
    let Some((code, text)) = in_mounts(&project, &["--size", "300000", "--tmpfs", small], script)
    else {
        return;
    };
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    assert!(
        text.contains("Check that you may write there and that there is space"),
        "{text}"
    );
}

#[test]
fn a_read_only_output_directory_is_told() {
    let project = project(2);
    project.casepack(["build"]).assert_code(0);
    project.write("cases/case-1/notes.md", "another note\n");
    let dist = project.path("dist");
    let dist = dist.to_str().unwrap();
    let script = "\"$0\" build; [ $? = 3 ] || exit 11; \"$0\" plan || exit 12";
    let Some((code, text)) = in_mounts(&project, &["--ro-bind", dist, dist], script) else {
        return;
    };
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Read-only file system"), "{text}");
    assert!(text.contains("1 changed, 1 unchanged"), "{text}");
}

/// A command line that runs as nobody, who owns all of `project`; `None`, told, for those who are
/// not root.
fn as_nobody(project: &Project, args: &[&str]) -> Option<std::process::Output> {
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let probe = Command::new("setpriv").args(nobody).arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: nobody can be become only by root, with setpriv");
        return None;
    }
    // The temporary directory itself is root's alone.
    for above in project.root().ancestors().skip(1) {
        let mode = above.metadata().unwrap().permissions().mode();
        if mode & 0o005 != 0o005 {
            fs::set_permissions(above, fs::Permissions::from_mode(mode | 0o055)).unwrap();
        }
    }
    let chown = Command::new("chown")
        .args(["-R", "65534:65534"])
        .arg(project.root())
        .status();
    assert!(chown.unwrap().success());
    let command = project.invoke(args.iter().copied()).command();
    let mut setpriv = Command::new("setpriv");
    setpriv
        .args(nobody)
        .arg(command.get_program())
        .args(command.get_args());
    setpriv.current_dir(project.root()).env_clear();
    setpriv.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    Some(setpriv.output().unwrap())
}

#[test]
fn another_user_gets_the_same_bytes() {
    let (one, two) = (project(3), project(3));
    let args = ["build", "--target", "workspace,harbor,evalhub,bundle"];
    one.casepack(args).assert_code(0);
    let Some(output) = as_nobody(&two, &args) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    for target in ["workspace", "harbor", "evalhub", "bundle"] {
        let dist = format!("dist/{target}");
        assert_eq!(one.tree(&dist), two.tree(&dist));
    }
}

#[test]
fn what_names_a_release_is_mended_by_force() {
    let project = project(2);
    let build = ["build", "--target", "bundle", "--force"];
    project.casepack(build).assert_code(0);
    let whole = project.tree("dist/bundle");
    for name in ["oci-layout", "index.json"] {
        project.write(&format!("dist/bundle/{name}"), "mine\n");
        project.casepack(["verify", "dist/bundle"]).assert_code(1);
        project.casepack(build).assert_code(0);
        assert_eq!(project.tree("dist/bundle"), whole);
    }
    project.casepack(["verify", "dist/bundle"]).assert_code(0);
}

#[test]
fn what_can_not_be_read_fails_its_case_only() {
    let project = project(3);
    let secret = project.path("cases/case-1/notes.md");
    let Some(output) = as_nobody(&project, &["build"]) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    project.write("cases/case-2/notes.md", "another note\n");
    let output = as_nobody(&project, &["build", "--output", "json"]).unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{document:#}");
    assert_eq!(document["failed"], json!(["case-1"]));
    assert_eq!(document["changed"], json!(["case-2"]));
    assert_eq!(
        project.read("dist/harbor/case-1/environment/workspace/notes.md"),
        "note 1\n",
        "the earlier package stays"
    );
}

/// Somebody rewrites a large file all the time: what is built is one of its states, never a mixture,
/// and a case that was caught changing is told.
#[test]
fn inputs_that_change_while_they_are_read_are_never_mixed() {
    let project = project(1);
    let file = project.path("cases/case-0/notes.md");
    let state = |byte: u8| vec![byte; 3 << 20];
    fs::write(&file, state(b'a')).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let caught = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = b'a';
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                byte = if byte == b'z' { b'a' } else { byte + 1 };
                fs::write(&file, state(byte)).unwrap();
            }
        });
        let mut caught = 0;
        for round in 0..12 {
            let out = format!("out{}", round % 3);
            let outcome = project.casepack(["build", "-o", &out, "--output", "json"]);
            caught +=
                outcome.findings("file-changed").len() + outcome.findings("file-unreadable").len();
            let there = project.path(format!(
                "{out}/harbor/case-0/environment/workspace/notes.md"
            ));
            if let Ok(bytes) = fs::read(there) {
                let first = bytes.first().copied().unwrap_or_default();
                let whole = bytes.iter().all(|byte| *byte == first);
                assert!(whole, "a mixture was built in round {round}");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        caught
    });
    println!("caught changing: {caught} of 12");
    std::thread::sleep(Duration::from_millis(60));
    project.casepack(["build", "-o", "out0"]).assert_code(0);
    project.casepack(["build", "-o", "fresh"]).assert_code(0);
    project.casepack(["diff", "out0", "fresh"]).assert_code(0);
}

/// A config is replaced while a build begins: what is recorded is what was read.
/// A link of a case leads through another link, which leads elsewhere while the case is read: what
/// is built may be either, and the next build notices which.
#[test]
fn links_that_lead_elsewhere_during_a_build_are_built_next() {
    use std::os::unix::fs::symlink;
    let project = project(1);
    for name in ["x", "y"] {
        project.write(
            &format!("shared/{name}/file"),
            vec![name.as_bytes()[0]; 8 << 20],
        );
    }
    symlink("x", project.path("shared/now")).unwrap();
    symlink("../../shared/now/file", project.path("cases/case-0/linked")).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    for round in 0..10_u64 {
        let out = format!("out{round}");
        let target = if round % 2 == 0 { "y" } else { "x" };
        std::thread::scope(|scope| {
            let build = scope.spawn(|| project.casepack(["build", "-o", &out]));
            // While it reads, and in some rounds a little later or earlier.
            until(|| project.path(&out).join(".casepack").exists() || build.is_finished());
            std::thread::sleep(Duration::from_millis(20 * round));
            symlink(target, project.path("shared/new")).unwrap();
            fs::rename(project.path("shared/new"), project.path("shared/now")).unwrap();
            build.join().unwrap();
        });
        project.casepack(["build", "-o", &out]).assert_code(0);
        let linked = format!("{out}/harbor/case-0/tests/evaluation/linked");
        let linked = fs::read(project.path(&linked)).unwrap();
        assert!(linked.starts_with(target.as_bytes()), "round {round}");
        fs::remove_dir_all(project.path(&out)).unwrap();
    }
}

#[test]
fn a_config_that_changes_during_a_build_is_built_next() {
    let project = project(3);
    for round in 0..12_u64 {
        let config = |seconds: u64| format!("{CONFIG}casepack: {{agent_timeout: {seconds}}}\n");
        let (first, second) = (1000 + round, 2000 + round);
        project.write("eval.yaml", config(first));
        project.write("next.yaml", config(second));
        let mut child = project.invoke(["build", "-q"]).command().spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 * round));
        fs::rename(project.path("next.yaml"), project.path("eval.yaml")).unwrap();
        child.wait().unwrap();
        project.casepack(["build", "-q"]).assert_code(0);
        let task = project.read("dist/harbor/case-0/task.toml");
        assert!(task.contains(&second.to_string()), "round {round}: {task}");
    }
}

#[test]
fn a_batch_of_some_cases_is_no_batch() {
    let project = project(4);
    project.write(
        "eval.yaml",
        CONFIG.replace("prompt: 'Do {{ input.prompt }}'", "mode: batch, skill: x"),
    );
    let all = ["build", "--target", "workspace"];
    project.casepack(all).assert_code(0);
    let whole = project.read("dist/workspace/_batch/batch.yaml");
    let outcome = json(
        &project,
        &["build", "--target", "workspace", "--shard", "1/2"],
        0,
    );
    assert_eq!(project.read("dist/workspace/_batch/batch.yaml"), whole);
    let rules = outcome["diagnostics"].as_array().unwrap();
    assert!(
        rules.iter().any(|it| it["rule"] == "batch-incomplete"),
        "{outcome:#}"
    );
}

#[test]
fn what_looks_at_a_dataset_is_part_of_its_state() {
    let project = project(1);
    project.write("eval.yaml", CONFIG.replace("return True", "return (True"));
    let blind = project
        .invoke(["build", "--output", "json"])
        .env("PATH", "/nonexistent");
    blind.run().assert_code(0);
    let seeing = project
        .casepack(["build", "--output", "json"])
        .assert_code(1);
    assert_eq!(seeing.findings("check-syntax").len(), 1, "{seeing}");
}

/// Scripts of version managers take long, and are asked only about what the program behind them
/// finds fault with.
#[test]
fn a_python_that_is_a_script_has_the_last_word() {
    let Some(real) = std::env::split_paths("/usr/bin:/usr/local/bin")
        .map(|dir| dir.join("python3"))
        .find(|program| program.is_file())
    else {
        println!("skipped: no python3 in /usr/bin or /usr/local/bin");
        return;
    };
    let project = project(1);
    let script = "#!/bin/sh\ntouch \"$(dirname \"$0\")/asked\"\ncat >/dev/null\n\
                  echo '{\"wrong\": [], \"imports\": []}'\n";
    project.write("shims/python3", script);
    let shim = project.path("shims/python3");
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}:/bin",
        project.path("shims").display(),
        real.parent().unwrap().display()
    );
    let build = || {
        project
            .invoke(["build", "--output", "json"])
            .env("PATH", &path)
            .run()
    };
    build().assert_code(0);
    assert!(!project.path("shims/asked").exists());
    project.write("eval.yaml", CONFIG.replace("return True", "return (True"));
    // This one takes everything for Python.
    let outcome = build().assert_code(0);
    assert!(outcome.findings("check-syntax").is_empty());
    assert!(project.path("shims/asked").exists());
}

#[test]
fn outputs_do_not_go_where_cases_are() {
    let project = project(2);
    let outcome = project.casepack(["build", "-o", "cases"]).assert_code(3);
    assert!(
        outcome.stderr.contains("would be taken for cases"),
        "{outcome}"
    );
    assert!(!project.path("cases/harbor").exists());
    project.casepack(["build", "-o", "."]).assert_code(0);
    project.casepack(["build", "-o", "."]).assert_code(0);
}

#[test]
fn who_waits_for_another_build_can_be_interrupted() {
    let project = project(1);
    project.casepack(["build"]).assert_code(0);
    let lock = fs::File::open(project.path("dist/.casepack/lock")).unwrap();
    lock.lock().unwrap();
    for verb in ["build", "plan", "verify"] {
        let mut child = project
            .invoke([verb])
            .command()
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(700));
        assert!(child.try_wait().unwrap().is_none(), "{verb} waits");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(until(|| child.try_wait().unwrap().is_some()), "{verb}");
        assert_eq!(child.wait().unwrap().code(), Some(130), "{verb}");
    }
}

#[test]
fn a_damaged_release_is_made_again() {
    let project = project(3);
    let build = ["build", "--target", "bundle"];
    project.casepack(build).assert_code(0);
    let whole = project.tree("dist/bundle");
    let blobs = fs::read_dir(project.path("dist/bundle/blobs/sha256")).unwrap();
    let largest = blobs
        .map(|it| it.unwrap())
        .max_by_key(|it| it.metadata().unwrap().len());
    let path = largest.unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let found = project.casepack(["verify"]).assert_code(1);
    assert!(found.stderr.contains("The store is damaged"), "{found}");
    let again = [
        "build",
        "--target",
        "bundle",
        "--verify-outputs",
        "--output",
        "json",
    ];
    let outcome = project.casepack(again).assert_code(0);
    assert_eq!(outcome.findings("record-damaged").len(), 1);
    assert_eq!(project.tree("dist/bundle"), whole);
    // What another ref needs stays, unless it is damaged as well.
    let other = "b".repeat(64);
    project.write(&format!("dist/bundle/blobs/sha256/{other}"), "damaged\n");
    let fine = casepack::digest::Digest::of(b"fine\n").hex();
    project.write(&format!("dist/bundle/blobs/sha256/{fine}"), "fine\n");
    project.casepack(again).assert_code(0);
    let blobs = project.path("dist/bundle/blobs/sha256");
    assert!(blobs.join(&fine).exists() && !blobs.join(other).exists());
    fs::remove_file(blobs.join(fine)).unwrap();
    assert_eq!(project.tree("dist/bundle"), whole);
    project.casepack(["verify"]).assert_code(0);
    project
        .casepack(["build", "--target", "harbor"])
        .assert_code(0);
    let both = json(&project, &["verify"], 0);
    assert_eq!(both["bundle"]["bad"], json!([]), "{both:#}");
    fs::remove_file(project.path("dist/bundle/index.json")).unwrap();
    project.casepack(build).assert_code(0);
    assert_eq!(project.tree("dist/bundle"), whole);
    project.write("cases/case-1/notes.md", "another note\n");
    let plan = json(&project, &["plan", "--target", "bundle"], 0);
    assert_eq!(plan["outputs"][1]["inputs"][0]["file"], "notes.md");
}

/// A checkout may bring an output directory, with a link in it.
#[test]
fn damaged_blobs_are_not_removed_through_a_link() {
    let project = project(1);
    project
        .casepack(["build", "--target", "bundle"])
        .assert_code(0);
    project.write("mine/letter.txt", "mine\n");
    let blobs = project.path("dist/bundle/blobs/sha256");
    fs::rename(&blobs, project.path("dist/aside")).unwrap();
    std::os::unix::fs::symlink(project.path("mine"), &blobs).unwrap();
    let again = ["build", "--target", "bundle", "--verify-outputs"];
    let outcome = project.casepack(again);
    assert_eq!(project.read("mine/letter.txt"), "mine\n", "{outcome}");
    outcome.assert_code(3);
}

/// The index is believed, as is shown by one that is wrong; until it is damaged, or not wanted.
#[test]
fn large_files_that_did_not_change_are_not_read_again() {
    let config = CONFIG.replace("- notes.md", "- notes.md\n      - big.bin");
    let project = ProjectBuilder::new()
        .eval_yaml(&config)
        .file("shared/guide.md", vec![b'g'; 300_000])
        .case("a", |case| {
            case.input("prompt: x\n")
                .file("notes.md", "one\n")
                .file("big.bin", vec![7; 400_000])
        })
        .build();
    std::thread::sleep(Duration::from_millis(60));
    let listed = |name: &str| {
        let start: Value =
            serde_json::from_str(&project.read("dist/harbor/a/tests/start.json")).unwrap();
        let files = start["files"].as_array().unwrap().iter();
        let mut digests = files.filter(|it| it[0] == name).map(|it| it[2].clone());
        digests.next().unwrap().as_str().unwrap().to_owned()
    };
    project.casepack(["build"]).assert_code(0);
    let (big, guide) = (listed("big.bin"), listed("guide.md"));
    let index = project.path("dist/.casepack/inputs.index");
    let text = fs::read_to_string(&index).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    // A case that is not read now may be read next.
    project.write("cases/b/input.yaml", "prompt: y\n");
    project.casepack(["build"]).assert_code(0);
    assert_eq!(fs::read_to_string(&index).unwrap(), text);
    fs::remove_dir_all(project.path("cases/b")).unwrap();
    let other = "0".repeat(64);
    let (_, body) = text.split_once('\n').unwrap();
    let body = body.replace(&big, &other).replace(&guide, &other);
    let sum = casepack::digest::Digest::of(body.as_bytes()).hex();
    fs::write(&index, format!("casepack.inputs.v1 {sum}\n{body}")).unwrap();

    project.write("cases/a/notes.md", "two\n");
    project.casepack(["build"]).assert_code(0);
    assert_eq!(
        (listed("big.bin"), listed("guide.md")),
        (other.clone(), other)
    );

    let whole = fs::read_to_string(&index).unwrap();
    fs::write(&index, whole.replace('[', "[ ")).unwrap();
    project.write("cases/a/notes.md", "three\n");
    project.casepack(["build"]).assert_code(0);
    assert_eq!(
        (listed("big.bin"), listed("guide.md")),
        (big.clone(), guide.clone())
    );
    fs::write(&index, whole).unwrap();
    project.write("cases/a/notes.md", "four\n");
    project.casepack(["build", "--no-index"]).assert_code(0);
    assert_eq!((listed("big.bin"), listed("guide.md")), (big, guide));
    json(&project, &["verify"], 0);
}

#[test]
fn what_stands_in_the_place_of_state_is_moved_away() {
    let project = project(2);
    project.casepack(["build"]).assert_code(0);
    let whole = project.tree("dist/harbor");
    for name in ["harbor.record", "harbor.journal", "harbor.files"] {
        fs::remove_file(project.path(format!("dist/.casepack/{name}"))).ok();
        project.write(&format!("dist/.casepack/{name}/mine.txt"), "mine\n");
    }
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.findings("record-damaged").len(), 3, "{outcome}");
    assert_eq!(project.tree("dist/harbor"), whole);
    let kept = project.read("dist/.casepack/harbor.record.aside-1/mine.txt");
    assert_eq!(kept, "mine\n");
    let again = json(&project, &["build"], 0);
    assert_eq!(again["diagnostics"], json!([]), "{again:#}");
}

#[test]
fn plan_tells_what_is_none_of_casepacks() {
    let project = project(1);
    project.casepack(["build"]).assert_code(0);
    project.write("dist/harbor/stranger/task.toml", "x = 1\n");
    for verb in ["plan", "build"] {
        let outcome = project.casepack([verb, "--output", "json"]).assert_code(0);
        assert_eq!(outcome.findings("output-left-behind").len(), 1, "{outcome}");
    }
}

#[test]
fn plan_tells_what_is_wrong_beside_the_cases() {
    let project = project(1);
    project.casepack(["build"]).assert_code(0);
    assert_eq!(json(&project, &["plan"], 0)["files"], json!([]));
    project.write("dist/harbor/dataset.toml", "[dataset]\n");
    for action in ["changed", "new"] {
        let plan = json(&project, &["plan"], 0);
        let file = json!([{"path": "harbor/dataset.toml", "action": action}]);
        assert_eq!(plan["files"], file);
        fs::remove_file(project.path("dist/harbor/dataset.toml")).ok();
    }
    project.casepack(["build"]).assert_code(0);
    assert_eq!(json(&project, &["plan"], 0)["files"], json!([]));
}

#[test]
fn looking_changes_nothing() {
    let project = project(2);
    project.casepack(["build", "--link"]).assert_code(0);
    let pool = project.path("dist/.casepack/harbor.links");
    let judge = project.path("dist/harbor/case-0/tests/judge.py");
    fs::set_permissions(&judge, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(pool.join("stranger"), "x").unwrap();
    let before = project.tree("dist");
    project.casepack(["plan"]).assert_code(1);
    project.casepack(["verify", "dist"]).assert_code(1);
    project.casepack(["diff", "dist", "."]).assert_code(1);
    assert_eq!(project.tree("dist"), before);
}

#[test]
fn a_blob_that_somebody_changed_is_made_again() {
    let project = project(2);
    let build = ["build", "--target", "bundle"];
    project.casepack(build).assert_code(0);
    project
        .casepack(build)
        .assert_code(0)
        .assert_stderr_without("warning");
    let blobs = fs::read_dir(project.path("dist/bundle/blobs/sha256")).unwrap();
    let blobs: Vec<_> = blobs.map(|blob| blob.unwrap().path()).collect();
    let built = project.tree("dist/bundle");
    for blob in blobs {
        let right = fs::read(&blob).unwrap();
        let times = fs::File::open(&blob)
            .unwrap()
            .metadata()
            .unwrap()
            .modified()
            .unwrap();
        let mut wrong = right.clone();
        *wrong.last_mut().unwrap() ^= 1;
        fs::write(&blob, &wrong).unwrap();
        fs::File::open(&blob).unwrap().set_modified(times).unwrap();
        let plan = json(&project, &["plan", "--target", "bundle"], 0);
        assert_eq!(plan["diagnostics"][0]["rule"], "record-damaged", "{blob:?}");
        assert_eq!(fs::read(&blob).unwrap(), wrong, "a plan changes nothing");
        project.casepack(build).assert_code(0);
        assert_eq!(project.tree("dist/bundle"), built, "{blob:?}");
    }
}

#[test]
fn a_batch_and_its_cases_take_turns() {
    let project = project(2);
    let batch = CONFIG.replace("prompt: 'Do {{ input.prompt }}'", "mode: batch, skill: x");
    let build = ["build", "--target", "workspace"];
    for (config, expected) in [
        (CONFIG, vec!["case-0", "case-1"]),
        (&batch, vec!["_batch"]),
        (CONFIG, vec!["case-0", "case-1"]),
    ] {
        project.write("eval.yaml", config);
        project.casepack(build).assert_code(0);
        let there = fs::read_dir(project.path("dist/workspace")).unwrap();
        let mut names: Vec<_> = there.map(|it| it.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, expected);
        project.casepack(["verify", "dist"]).assert_code(0);
    }
}

#[test]
fn the_record_of_another_target_is_not_trusted() {
    let project = project(2);
    project
        .casepack(["build", "--target", "workspace", "--target", "harbor"])
        .assert_code(0);
    let state = project.path("dist/.casepack");
    fs::copy(state.join("workspace.record"), state.join("harbor.record")).unwrap();
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.findings("record-damaged").len(), 1, "{outcome}");
    project.casepack(["verify", "dist"]).assert_code(0);
}

#[test]
fn a_damaged_index_is_told_and_made_again() {
    let project = project(3);
    project.casepack(["build"]).assert_code(0);
    let index = project.path("dist/.casepack/inputs.index");
    let right = fs::read(&index).unwrap();
    fs::write(&index, "nonsense").unwrap();
    project.write("cases/case-3/input.yaml", "prompt: x\n");
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.findings("record-damaged").len(), 1, "{outcome}");
    assert_eq!(fs::read(&index).unwrap(), right);
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    // Not all cases are read again, though young ones may be: the list stays.
    let list = project.path("dist/.casepack/harbor.files");
    fs::write(&list, "nonsense").unwrap();
    project.write("cases/case-4/input.yaml", "prompt: x\n");
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.findings("record-damaged").len(), 2, "{outcome}");
    assert_eq!(fs::read(&index).unwrap(), right);
    project.casepack(["verify", "dist"]).assert_code(0);
}

#[test]
fn a_directory_in_the_place_of_a_list_is_moved_away() {
    let project = project(1);
    project.casepack(["build"]).assert_code(0);
    let list = project.path("dist/harbor/dataset.toml");
    let right = fs::read(&list).unwrap();
    fs::write(&list, [&*right, b"# more\n"].concat()).unwrap();
    let found = json(&project, &["verify"], 1);
    assert_eq!(found["differences"][0]["output"], "dataset.toml");
    fs::remove_file(&list).unwrap();
    fs::create_dir(&list).unwrap();
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.findings("output-left-behind").len(), 1, "{outcome}");
    assert_eq!(fs::read(&list).unwrap(), right);
}

#[test]
fn a_build_that_fails_at_the_end_knows_what_it_made() {
    let project = project(2);
    let targets = ["build", "--target", "harbor", "--target", "evalhub"];
    project.casepack(targets).assert_code(0);
    project.write("cases/case-0/notes.md", "other\n");
    // A mount can not be moved away, not even by root.
    let list = project.path("dist/harbor/dataset.toml");
    fs::remove_file(&list).unwrap();
    fs::create_dir(&list).unwrap();
    let script = "\"$0\" build --target harbor --target evalhub; [ $? = 3 ] || exit 11";
    let mounts = ["--tmpfs", list.to_str().unwrap()];
    let Some((code, text)) = in_mounts(&project, &mounts, script) else {
        return;
    };
    assert_eq!(code, 0, "{text}");
    fs::remove_dir(&list).unwrap();
    let found = json(&project, &["verify"], 1);
    let differences = found["differences"].as_array().unwrap();
    let names: Vec<_> = differences.iter().map(|it| &it["output"]).collect();
    assert!(
        names.iter().all(|name| *name == "dataset.toml"),
        "{found:#}"
    );
    project.casepack(targets).assert_code(0);
    json(&project, &["verify"], 0);
}

#[test]
fn plan_knows_the_workspace_of_a_batch() {
    let project = project(2);
    project.write(
        "eval.yaml",
        CONFIG.replace("prompt: 'Do {{ input.prompt }}'", "mode: batch, skill: x"),
    );
    let build = ["build", "--target", "workspace"];
    let plan = ["plan", "--target", "workspace"];
    let actions = |expected: &str| {
        let plan = json(&project, &plan, 0);
        let outputs = plan["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), 1, "{plan}");
        assert_eq!(outputs[0]["place"], "_batch");
        assert_eq!(outputs[0]["action"], expected);
    };
    actions("new");
    project.casepack(build).assert_code(0);
    actions("unchanged");
    project.write("cases/case-0/input.yaml", "prompt: other\n");
    actions("changed");
}

#[test]
fn files_beside_the_cases_are_verified_too() {
    let project = project(1);
    project
        .casepack(["build", "--target", "evalhub"])
        .assert_code(0);
    json(&project, &["verify"], 0);
    project.write("dist/evalhub/eval.yaml", "name: other\n");
    let found = json(&project, &["verify"], 1);
    let one = &found["differences"][0];
    assert_eq!(
        (&one["output"], &one["change"]),
        (&json!("eval.yaml"), &json!("content"))
    );
    fs::remove_file(project.path("dist/evalhub/eval.yaml")).unwrap();
    let found = json(&project, &["verify"], 1);
    assert_eq!(found["differences"][0]["change"], "removed");
}

#[test]
fn an_output_in_a_shared_source_is_not_shared() {
    let project = ProjectBuilder::new()
        .eval_yaml(&CONFIG.replace(
            "{dest: guide.md, source: shared/guide.md}",
            "{dest: docs, source: shared}",
        ))
        .file("shared/guide.md", "the guide\n")
        .case("a", |case| {
            case.input("prompt: x\n").file("notes.md", "one\n")
        })
        .build();
    // Into the shared directory itself it is refused to share; what was built there before stays.
    fs::create_dir_all(project.path("elsewhere")).unwrap();
    project
        .casepack(["build", "-o", "elsewhere/dist"])
        .assert_code(0);
    fs::rename(project.path("elsewhere/dist"), project.path("shared/dist")).unwrap();
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.findings("unpackaged-file").len(), 1, "{outcome}");
    let tree = project.tree("dist/harbor/a/environment");
    assert!(
        tree.contains("docs/guide.md") && !tree.contains("docs/dist"),
        "{tree}"
    );
}

/// What other machines made of the examples, against what this one makes.
#[test]
fn machines_agree_about_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("tests/golden/machines.json");
    let project = ProjectBuilder::new().build();
    let mut here = serde_json::Map::new();
    for example in ["support-triage", "pipeline"] {
        let dataset = root.join("examples").join(example);
        let dataset = dataset.to_str().unwrap();
        let targets = "--target=harbor,bundle";
        let built = json(&project, &["build", dataset, targets, "-o", example], 0);
        let packages = project.read(&format!("{example}/harbor/dataset.toml"));
        here.insert(
            example.to_owned(),
            json!({
                "dataset": built["dataset_digest"],
                "packages": packages.lines().filter(|line| line.starts_with("digest")).collect::<Vec<_>>(),
                "release": built["release"],
            }),
        );
    }
    let here = Value::Object(here);
    if std::env::var_os("CASEPACK_TEST_RECORD").is_some() {
        let uname = Command::new("uname").arg("-msr").output().unwrap();
        let machine = String::from_utf8(uname.stdout).unwrap().trim().to_owned();
        let mut all: Value = fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_else(|| json!({}));
        // What another machine made of an earlier casepack says nothing of this one.
        if let Some(all) = all.as_object_mut() {
            all.retain(|_, theirs| *theirs == here);
        }
        all[machine] = here.clone();
        fs::write(&path, format!("{all:#}\n")).unwrap();
    }
    let all: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let all = all.as_object().unwrap();
    assert!(!all.is_empty());
    for (machine, theirs) in all {
        assert_eq!(theirs, &here, "{machine} made other bytes");
    }
}
