//! Input that was made to break things ends in a finding or a right result: no panic, no hang, no
//! escape. What one module can show is tested there (`fs`, `yaml`, `run`); here is the whole.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::support::{Project, ProjectBuilder, fifo};

const CONFIG: &str = "name: demo
dataset:
  path: cases
  schema: prompt
  workspace:
    files:
      - notes.md
      - {dest: guide, source: shared/guide}
execution: {prompt: '{prompt}'}
judges: [{name: ok, check: return True}]
";
const SECRET: &str = "TOP-SECRET";

/// Puts something odd at a path.
type Spoil<'a> = &'a dyn Fn(&Path);

fn project() -> Project {
    ProjectBuilder::new()
        .eval_yaml(CONFIG)
        .file("shared/guide/a.md", "a\n")
        .case("a", |case| {
            case.input("prompt: x\n")
                .annotations("answer: 1\n")
                .file("answers.yaml", "q: a\n")
                .file("notes.md", "n\n")
                .file("solution/solve.sh", "true\n")
        })
        .build()
}

/// Whether a file below `dir` holds the secret.
fn leaks(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return false;
    };
    entries.map(Result::unwrap).any(|entry| {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            return leaks(&entry.path());
        }
        kind.is_file() && String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).contains(SECRET)
    })
}

/// Something that is no file, in the place of each file that casepack reads.
#[test]
fn things_that_are_no_files_are_told_wherever_they_lie() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, format!("prompt: {SECRET}\n")).unwrap();
    let kinds: [(&str, Spoil<'_>); 5] = [
        ("fifo", &|path| fifo(path)),
        // A socket's path has at most 108 bytes: it is made elsewhere and moved.
        ("socket", &|path| {
            let made = outside.path().join("s");
            drop(UnixListener::bind(&made).unwrap());
            fs::rename(made, path).unwrap();
        }),
        ("device", &|path| symlink("/dev/zero", path).unwrap()),
        ("link", &|path| symlink(&secret, path).unwrap()),
        ("circle", &|path| {
            symlink(path.file_name().unwrap(), path).unwrap();
        }),
    ];
    let project = project();
    for (at, must_fail) in [
        ("eval.yaml", true),
        ("casepack.yaml", true),
        ("cases/a/input.yaml", true),
        ("cases/a/annotations.yaml", true),
        ("cases/a/answers.yaml", false),
        ("cases/a/notes.md", false),
        ("cases/a/unlisted", false),
        ("cases/a/solution/solve.sh", false),
        ("shared/guide/a.md", false),
    ] {
        let path = project.path(at);
        let was = fs::read(&path).ok();
        for (kind, make) in &kinds {
            if *kind == "link" && matches!(at, "eval.yaml" | "casepack.yaml") {
                // The operator's own file may lie anywhere.
                continue;
            }
            fs::remove_file(&path).ok();
            make(&path);
            let outcome = project.casepack(["build", "--target", "workspace,evalhub", "--force"]);
            let told = if must_fail { "error[" } else { "[" };
            assert!(
                outcome.stderr.contains(told) && outcome.code <= 1,
                "{kind} at {at}: {outcome}"
            );
            assert!(!must_fail || outcome.code == 1, "{kind} at {at}: {outcome}");
            assert!(!leaks(&project.path("dist")), "{kind} at {at}");
        }
        fs::remove_file(&path).ok();
        if let Some(content) = was {
            fs::write(&path, content).unwrap();
        }
    }
}

/// An output directory that came with a hostile dataset.
#[test]
fn an_output_directory_leads_nowhere_and_makes_nobody_wait() {
    for at in [
        "dist/.casepack/harbor.json",
        "dist/.casepack/harbor.journal",
        "dist/.casepack/lock",
        "dist/harbor/dataset.toml",
        "dist/harbor/a",
        "dist/harbor",
        "dist/.casepack",
        "dist/.casepack/tmp",
    ] {
        for link in [true, false] {
            let project = project();
            // No judge, so that nobody asks python3.
            let config = CONFIG
                .lines()
                .take_while(|line| !line.starts_with("judges"));
            project.write("eval.yaml", config.collect::<Vec<_>>().join("\n"));
            let path = project.path(at);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mine = project.path("mine");
            if link && !at.contains('.') {
                fs::create_dir(&mine).unwrap();
            } else {
                fs::write(&mine, "mine").unwrap();
            }
            if link {
                symlink(&mine, &path).unwrap();
            } else {
                fifo(&path);
            }
            let outcome = project.casepack(["build", "--force"]);
            assert!(matches!(outcome.code, 0 | 3), "{at} {link}: {outcome}");
            let built = project.path("dist/harbor/a/task.toml").exists();
            assert_eq!(built, outcome.code == 0, "{at} {link}: {outcome}");
            if mine.is_dir() {
                assert_eq!(fs::read_dir(mine).unwrap().count(), 0, "{at}");
            } else {
                assert_eq!(fs::read_to_string(mine).unwrap(), "mine", "{at}");
            }
        }
    }
}

/// Findings cost about as much as the file is long.
#[test]
fn thousands_of_mistakes_are_told_in_time() {
    let project = project();
    let many = 3_000;
    let started = Instant::now();
    let keys: Vec<String> = (0..many).map(|n| format!("  key{n}: v\n")).collect();
    let keys = keys.concat();
    project.write("eval.yaml", format!("{CONFIG}reward:\n{keys}"));
    let outcome = project.casepack(["check", "--output", "json"]);
    assert_eq!(outcome.findings("unknown-key").len(), many);
    let keys: Vec<String> = (0..20 * many).map(|n| format!("other{n}: v\n")).collect();
    let keys = keys.concat();
    project.write("eval.yaml", format!("{CONFIG}{keys}"));
    project.casepack(["check"]).assert_code(0);
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

/// A companion file that is larger than the memory that may be used: streamed, not read.
#[test]
fn a_large_sparse_companion_is_streamed() {
    let project = project();
    let file = fs::File::create(project.path("cases/a/notes.md")).unwrap();
    file.set_len(64 << 20).unwrap();
    let args = ["build", "--target", "workspace", "-q"];
    let invocation = project.invoke(args);
    // 48 MiB of data at most: less than the file.
    let command = invocation.command();
    let status = Command::new("sh")
        .args(["-c", "ulimit -d 49152; exec \"$@\"", "sh"])
        .arg(command.get_program())
        .args(args)
        .args(["-j", "1"])
        .current_dir(project.root())
        .status()
        .unwrap();
    assert!(status.success());
    let copied = fs::metadata(project.path("dist/workspace/a/notes.md")).unwrap();
    assert_eq!(copied.len(), 64 << 20);
}

/// Names of files that mean something to a shell, a terminal, a CI system or a page.
#[test]
fn names_of_files_are_only_names() {
    let project = project();
    let names = [
        "-rf".to_owned(),
        "line\nbreak".to_owned(),
        "tab\tstop".to_owned(),
        "\u{1b}[2J\u{202e}".to_owned(),
        "::error::x".to_owned(),
        "<script>`|*".to_owned(),
        "x".repeat(255),
    ];
    for name in &names {
        fs::write(project.path("shared/guide").join(name), "x\n").unwrap();
    }
    // Twins: equal after NFC. Told, and both kept.
    for name in ["\u{e9}", "e\u{301}"] {
        fs::write(project.path("shared/guide").join(name), "x\n").unwrap();
    }
    for output in ["human", "json", "github"] {
        let outcome = project.casepack(["build", "--target", "workspace", "--output", output]);
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(outcome.code <= 1, "{outcome}");
        assert!(!said.contains(['\u{1b}', '\u{202e}', '\t']), "{said:?}");
        assert!(
            !said.lines().any(|line| line.starts_with("::error::x")),
            "{said}"
        );
        assert!(
            output == "github" || said.contains("name-case-collision"),
            "{said}"
        );
    }
    for name in &names {
        let copied = project.path("dist/workspace/a/guide").join(name);
        assert!(copied.is_file(), "{name:?}");
    }
}

#[test]
fn no_more_threads_than_cases() {
    let project = project();
    for verb in ["check", "build"] {
        project.casepack([verb, "-j", "99999999"]).assert_code(0);
    }
}
