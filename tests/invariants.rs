//! The promises of the architecture, each with a test of its name.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::inotify;

use crate::support::{Project, ProjectBuilder};

const CONFIG: &str = "
name: demo
dataset:
  path: cases
  schema: prompt, n and want
  workspace:
    files:
      - notes.md
      - tools/
      - {dest: guide.md, source: shared/guide.md}
      - {dest: reference, source: shared/reference}
execution: {prompt: 'Do {{ input.prompt }}'}
hooks:
  before_all: [{command: touch hooked}]
judges:
  - {name: done, check: \"open('/tmp/judged', 'w'); return True\"}
permissions: {allow: ['Read(docs/**)']}
";

/// A project with everything that a view can have, and `count` cases.
fn project(count: usize) -> Project {
    let mut project = ProjectBuilder::new()
        .eval_yaml(CONFIG)
        .file("shared/guide.md", "the guide\n")
        .file("shared/reference/a.md", "a\n")
        .executable("shared/reference/bin/run", "#!/bin/sh\n");
    for number in 0..count {
        project = project.case(&format!("case-{number:03}"), |case| {
            case.input(&format!("prompt: task {number}\nn: {number}\n"))
                .annotations(&format!("want: secret-{number}\n"))
                .file("notes.md", format!("note {number}\n"))
                .file("reference.md", "the gold answer\n")
                .executable("tools/go", "#!/bin/sh\nexit 0\n")
                .file("solution/solve.sh", "#!/bin/sh\ntouch done\n")
        });
    }
    project.build()
}

fn build(project: &Project, args: &[&str]) {
    project
        .casepack(["build"].iter().chain(args))
        .assert_code(0);
}

/// Path, content and executable bit of every file below `dir`.
fn tree(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, bool)> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                left.push(path);
                continue;
            }
            assert!(metadata.is_file(), "{} is no regular file", path.display());
            let executable = metadata.permissions().mode() & 0o111 != 0;
            let below = path.strip_prefix(dir).unwrap().to_owned();
            found.insert(below, (fs::read(&path).unwrap(), executable));
        }
    }
    found
}

#[test]
fn same_layout() {
    let project = project(2);
    let all = ["--target", "workspace,harbor,evalhub"];
    build(&project, &[&all[..], &["-o", "plain"]].concat());
    build(
        &project,
        &[&all[..], &["-o", "image", "--image", "example/image:1"]].concat(),
    );
    for case in ["case-000", "case-001"] {
        let workspace = tree(&project.path(format!("plain/workspace/{case}")));
        assert!(workspace.len() >= 6, "{workspace:?}");
        let built = project.path(format!("plain/harbor/{case}/environment/workspace"));
        assert_eq!(tree(&built), workspace);
        assert_eq!(
            tree(&project.path(format!("image/harbor/{case}/environment"))),
            workspace
        );
        let evalhub = tree(&project.path(format!("plain/evalhub/cases/{case}")));
        for (path, content) in &workspace {
            assert_eq!(evalhub.get(path), Some(content), "{}", path.display());
        }
    }
    // The local run starts from the same tree: an agent that copies what it finds shows it.
    let runner = "outputs: [{path: copy}]\nrunner: {type: cli, command: [sh, agent.sh]}\n";
    project.write("eval.yaml", format!("{CONFIG}{runner}"));
    project.write(
        "agent.sh",
        "mkdir copy; find . -path ./copy -prune -o -type f -exec cp --parents -t copy {} +\n",
    );
    build(&project, &["--target", "workspace", "-o", "ran"]);
    let outcome = project.casepack(["run", "-o", "rundist", "--run-id", "one"]);
    println!("{outcome}");
    let copied = project.path("runs/one/case-000/outputs/copy");
    // Collected outputs keep no executable bit.
    let bytes = |dir: PathBuf| -> BTreeMap<PathBuf, Vec<u8>> {
        let files = tree(&dir).into_iter();
        files.map(|(path, (content, _))| (path, content)).collect()
    };
    assert_eq!(bytes(copied), bytes(project.path("ran/workspace/case-000")));
}

#[test]
fn answer_key_stays_behind() {
    let project = project(2);
    build(&project, &["--target", "workspace,harbor"]);
    let mut keys = 0;
    for dir in ["dist/workspace", "dist/harbor"] {
        for (path, (content, _)) in tree(&project.path(dir)) {
            let text = String::from_utf8_lossy(&content).into_owned();
            let inside = path.display().to_string();
            let judges_only = inside.contains("/tests/") || inside.contains("/solution/");
            for secret in ["secret-", "the gold answer", "touch done"] {
                assert!(
                    judges_only || !text.contains(secret),
                    "{inside} holds {secret:?}"
                );
                keys += usize::from(text.contains(secret));
            }
        }
    }
    assert!(keys > 4, "judges have the keys");
}

#[test]
fn contained() {
    let project = ProjectBuilder::new()
        .eval_yaml(CONFIG)
        .file("../outside/secret.txt", "the secret\n")
        .file("shared/guide.md", "the guide\n")
        .symlink("shared/reference/out", "../../../outside/secret.txt")
        .file("shared/reference/a.md", "a\n")
        .case("a", |case| {
            case.input("prompt: x\nn: 1\n")
                .symlink("notes.md", "../../../outside/secret.txt")
                .symlink("tools", "../../../outside")
                .symlink("gold.md", "../../../outside/secret.txt")
                .symlink("deep", "/etc")
                .symlink("loop", "loop")
                .symlink("sibling", "../b/annotations.yaml")
        })
        .case("b", |case| {
            case.input("prompt: y\nn: 2\n")
                .annotations("want: theirs\n")
        })
        .build();
    build(&project, &["--target", "workspace,harbor,evalhub"]);
    for (path, (content, _)) in tree(&project.path("dist")) {
        let text = String::from_utf8_lossy(&content);
        assert!(!text.contains("the secret"), "{}", path.display());
        assert!(!text.contains("root:"), "{}", path.display());
        let own = path.to_string_lossy().contains("/b");
        assert!(own || !text.contains("theirs"), "{}", path.display());
    }
}

#[test]
fn reproducible() {
    let (one, two) = (project(7), project(7));
    // Another order of directory entries and other file times.
    for number in (0..7).rev() {
        let case = two.path(format!("cases/case-{number:03}"));
        let aside = two.path("aside");
        fs::rename(&case, &aside).unwrap();
        fs::create_dir(&case).unwrap();
        let mut names: Vec<_> = fs::read_dir(&aside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort_by(|a, b| b.as_bytes().cmp(a.as_bytes()));
        for name in names {
            fs::rename(aside.join(&name), case.join(&name)).unwrap();
        }
        fs::remove_dir(&aside).unwrap();
    }
    let targets = ["--target", "workspace,harbor,evalhub"];
    build(&one, &[&targets[..], &["-j", "1"]].concat());
    let invocation = two
        .invoke([
            "-c",
            "umask 077; exec \"$0\" build --target workspace,harbor,evalhub -j 4",
        ])
        .env("TZ", "Asia/Kathmandu")
        .env("LC_ALL", "tr_TR.UTF-8");
    let command = invocation.command();
    // The same command, below a shell with another umask.
    let mut shell = Command::new("sh");
    shell.args(command.get_args()).arg(command.get_program());
    shell.current_dir(two.root()).env_clear();
    shell.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for target in ["workspace", "harbor", "evalhub"] {
        let (a, b) = (one.path("dist").join(target), two.path("dist").join(target));
        assert_eq!(tree(&a), tree(&b), "{target}");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        for path in tree(&a).keys() {
            assert_eq!(
                mode(&a.join(path)),
                mode(&b.join(path)),
                "{}",
                path.display()
            );
        }
    }
}

/// Files below `dir` with what would change if one was written.
fn stamps(dir: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                left.push(path);
            } else if !path.ends_with(".casepack/lock") {
                let stamp = (metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
                found.insert(path, stamp);
            }
        }
    }
    found
}

#[test]
fn incremental() {
    let project = project(5);
    let targets = ["--target", "workspace,harbor"];
    // Nothing vouches for files that are as young as the build.
    std::thread::sleep(Duration::from_millis(60));
    build(&project, &targets);
    let before = stamps(&project.path("dist"));

    // Who opens a file of the cases, the shared directory or the outputs?
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let mut left = vec![
        project.path("cases"),
        project.path("shared"),
        project.path("dist/harbor"),
        project.path("dist/workspace"),
    ];
    while let Some(dir) = left.pop() {
        inotify::add_watch(&watch, &dir, inotify::WatchFlags::OPEN).unwrap();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    build(&project, &targets);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 8 * 1024];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let mut opened = Vec::new();
    while let Ok(event) = events.next() {
        if !event.events().contains(inotify::ReadFlags::ISDIR) {
            opened.push(event.file_name().map(ToOwned::to_owned));
        }
    }
    opened.retain(|name| name.as_deref() != Some(c"dataset.toml"));
    assert_eq!(opened, [], "a build with nothing to do opens no file");
    assert_eq!(stamps(&project.path("dist")), before, "and writes none");

    // The same size, and the time put back: only the change time and the content tell.
    let file = project.path("cases/case-003/notes.md");
    let old = fs::metadata(&file).unwrap();
    fs::write(&file, "NOTE 3\n").unwrap();
    let times = fs::FileTimes::new().set_modified(old.modified().unwrap());
    fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_times(times)
        .unwrap();
    let outcome = project.casepack(["build", "--target", "workspace,harbor", "--output", "json"]);
    assert_eq!(
        outcome.json()["built"],
        serde_json::json!(["case-003"]),
        "{outcome}"
    );
    assert_eq!(project.read("dist/workspace/case-003/notes.md"), "NOTE 3\n");

    // An option, a shared file and a file of an output each have their effect.
    let built = |args: &[&str]| {
        let all = ["build", "--target", "workspace,harbor", "--output", "json"];
        let outcome = project.casepack(all.iter().chain(args));
        (outcome.json()["built"].as_array().unwrap().len(), outcome)
    };
    assert_eq!(built(&["--workdir", "/work"]).0, 5);
    assert_eq!(built(&[]).0, 5);
    project.write("shared/reference/a.md", "b\n");
    assert_eq!(built(&[]).0, 5);
    assert_eq!(built(&[]).0, 0);
}

#[test]
fn owns_what_it_wrote() {
    let project = project(3);
    build(&project, &[]);
    project.write("dist/harbor/case-001/instruction.md", "mine now\n");
    project.write("dist/harbor/stranger/task.toml", "x = 1\n");
    project.remove("cases/case-002");
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(1);
    assert_eq!(
        outcome.json()["removed"],
        serde_json::json!(["harbor/case-002"])
    );
    assert_eq!(outcome.findings("output-not-ours").len(), 1);
    assert_eq!(outcome.findings("output-left-behind").len(), 1);
    assert_eq!(
        project.read("dist/harbor/case-001/instruction.md"),
        "mine now\n"
    );
    assert!(!project.path("dist/harbor/case-002").exists());
    assert!(project.path("dist/harbor/stranger/task.toml").exists());

    project.casepack(["build", "--force"]).assert_code(0);
    assert_eq!(
        project.read("dist/harbor/case-001/instruction.md"),
        "Do task 1\n"
    );
    // A case that is gone, but whose package somebody changed.
    project.write("dist/harbor/case-001/instruction.md", "mine again\n");
    project.remove("cases/case-001");
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.json()["removed"], serde_json::json!([]));
    assert!(project.path("dist/harbor/case-001").exists());
    assert!(
        !project
            .read("dist/harbor/dataset.toml")
            .contains("case-001")
    );
    // A damaged record is told, not trusted.
    project.write("dist/.casepack/harbor.record", "casepack.record.v2 0");
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    assert_eq!(outcome.findings("record-damaged").len(), 1);
    assert_eq!(outcome.json()["unchanged"], serde_json::json!(["case-000"]));
}

#[test]
fn told() {
    let project = ProjectBuilder::new()
        .eval_yaml(
            "name: demo
dataset:
  path: cases
  schema: prompt
  workspace:
    files: [gone.md, dir/, link.md, {dest: x, source: nowhere}, {dest: hooks/x, source: eval.yaml}]
execution: {prompt: '{prompt}'}
judges: [{name: ok, check: return True}]
",
        )
        .case("a", |case| {
            case.input("prompt: x\n")
                .symlink("link.md", "nowhere")
                .symlink("dir/inner", "../input.yaml")
                .file("dir/kept.txt", "kept\n")
                .file("dir/__pycache__/x.pyc", "x")
                .file(".git/config", "x")
        })
        .build();
    fs::create_dir(project.path("cases/a/dir/empty")).unwrap();
    let outcome = project
        .casepack(["build", "--output", "json"])
        .assert_code(0);
    let told: Vec<(String, String)> = outcome.json()["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| {
            let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
            (text("rule"), text("entry"))
        })
        .collect();
    for (rule, entry) in [
        ("workspace-file-missing", "gone.md"),
        ("symlink-dangling", "link.md"),
        ("symlink-nested", "dir/inner"),
        ("empty-directory", "dir/empty"),
        ("unpackaged-file", "dir/__pycache__"),
        ("unpackaged-file", ".git"),
        ("shared-source-missing", "x"),
        ("reserved-dest", "hooks/x"),
    ] {
        assert!(
            told.contains(&(rule.into(), entry.into())),
            "{rule} {entry}: {told:?}"
        );
    }
}

#[test]
fn inert() {
    let project = project(2);
    project.write("sitecustomize.py", "open('customised', 'w')\n");
    for args in [
        &["check"][..],
        &["build", "--target", "workspace,harbor,evalhub"],
    ] {
        project
            .invoke(args)
            .env("PYTHONPATH", project.root())
            .run()
            .assert_code(0);
    }
    for trace in ["hooked", "customised", "cases/case-000/done", "/tmp/judged"] {
        assert!(
            !project.path(trace).exists(),
            "{trace}: something was executed"
        );
    }
}

/// Kills builds at moments that differ from each other, and looks whether everything that stands
/// under a final name is whole; then finishes the work.
#[test]
fn crash_safe() {
    let rounds = std::env::var("CASEPACK_TEST_KILLS")
        .ok()
        .and_then(|text| text.parse().ok());
    let project = project(40);
    build(&project, &["-o", "want"]);
    let old = tree(&project.path("want/harbor"));
    project.write("shared/guide.md", "another guide\n");
    build(&project, &["-o", "want2"]);
    let new = tree(&project.path("want2/harbor"));
    let mut killed = 0;
    for round in 0..rounds.unwrap_or(30) {
        // From one state to the other and back.
        let guide = if round % 2 == 0 {
            "another guide\n"
        } else {
            "the guide\n"
        };
        project.write("shared/guide.md", guide);
        let mut child = project
            .invoke(["build", "-o", "out", "-q"])
            .command()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(1_500 * (round * 37 % 61) + 2_000));
        child.kill().unwrap();
        killed += usize::from(!child.wait().unwrap().success());
        let out = project.path("out/harbor");
        if out.is_dir() {
            for (path, content) in tree(&out) {
                let whole = [&old, &new]
                    .iter()
                    .any(|want| want.get(&path) == Some(&content));
                // While a dataset.toml is written, it is that of some cases.
                assert!(
                    whole || path == Path::new("dataset.toml"),
                    "{}",
                    path.display()
                );
            }
            for entry in fs::read_dir(&out).unwrap() {
                let name = entry.unwrap().file_name();
                let package = tree(&out.join(&name));
                let same = |want: &BTreeMap<PathBuf, (Vec<u8>, bool)>| {
                    let mut want: BTreeMap<_, _> = want.clone();
                    want.retain(|path, _| path.starts_with(&name));
                    want.len() == package.len()
                        && package.iter().all(|(path, content)| {
                            want.get(&Path::new(&name).join(path)) == Some(content)
                        })
                };
                let is_file = out.join(&name).is_file();
                assert!(
                    is_file || same(&old) || same(&new),
                    "{name:?} is half of a package"
                );
            }
        }
    }
    project.write("shared/guide.md", "another guide\n");
    build(&project, &["-o", "out"]);
    assert_eq!(
        tree(&project.path("out/harbor")),
        new,
        "a rerun finishes the work"
    );
    let left: Vec<_> = fs::read_dir(project.path("out/.casepack/tmp"))
        .unwrap()
        .collect();
    assert!(left.is_empty(), "{left:?}");
    println!("{killed} builds were killed");
    assert!(killed > 5, "the kills came too late to mean anything");
}

#[test]
fn builds_into_one_directory_take_turns() {
    let project = project(3);
    fs::create_dir_all(project.path("dist/.casepack")).unwrap();
    let lock = fs::File::create(project.path("dist/.casepack/lock")).unwrap();
    lock.lock().unwrap();
    fs::write(project.path("dist/.casepack/lock"), "4711\n").unwrap();
    let mut child = project
        .invoke(["build"])
        .command()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert_eq!(
        line,
        "Waiting for another casepack (process 4711) in this output directory\n"
    );
    assert!(
        !project.path("dist/harbor").exists(),
        "nothing is done meanwhile"
    );
    drop(lock);
    assert!(child.wait().unwrap().success());
    assert!(project.path("dist/harbor/case-002/task.toml").exists());
}

/// Where the dataset is the directory in which casepack is started, its outputs are no cases.
#[test]
fn outputs_are_no_cases() {
    let project = ProjectBuilder::new()
        .eval_yaml(
            "name: demo\ndataset: {schema: prompt}\nexecution: {prompt: '{prompt}'}\n\
             judges: [{name: ok, check: return True}]\n\
             runner: {type: cli, command: 'true'}\n",
        )
        .file("one/input.yaml", "prompt: x\n")
        .build();
    for _ in 0..2 {
        build(&project, &[]);
        project.casepack(["run"]).assert_code(0);
    }
    let outcome = project.casepack(["build", "-o", "one/dist"]).assert_code(3);
    assert!(outcome.stderr.contains("lies in a case"), "{outcome}");
    assert!(!project.path("one/dist").exists());
    // Outputs that came with a dataset as links lead nowhere.
    let project = self::project(1);
    fs::create_dir(project.path("../elsewhere")).unwrap();
    for name in ["dist", "runs"] {
        std::os::unix::fs::symlink("../elsewhere", project.path(name)).unwrap();
    }
    project.casepack(["build"]).assert_code(3);
    project
        .casepack(["run", "-o", "other", "--agent", "nop"])
        .assert_code(2);
    assert_eq!(
        fs::read_dir(project.path("../elsewhere")).unwrap().count(),
        0
    );
}
