//! The directory that a pull fills: whoever filled it before, was killed at it, or is at work in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread;

use casepack::bundle::Compression;

use crate::support::read_tree as read;
use crate::support::{Case, Project, ProjectBuilder, fifo, many, pack, tree};

/// A store with `v1`, and with `v2`: the first case is gone, and the second another one.
fn two_releases(count: usize) -> Project {
    let project = ProjectBuilder::new().build();
    let mut cases = many(count);
    release(&project, &cases, "v1");
    cases.remove("case-00000");
    cases.insert("case-00001".to_owned(), other());
    release(&project, &cases, "v2");
    project
}

/// The second case of `v2`.
fn other() -> Case {
    Case::numbered(1).workspace("input.yaml", "changed: true\n")
}

fn release(project: &Project, cases: &BTreeMap<String, Case>, tag: &str) {
    pack(&project.path("bundle"), cases, Compression::Zstd, 2);
    let args = ["publish", "store", "--from", "bundle", "--tag", tag];
    project.casepack(args).assert_code(0);
}

/// The names in a destination.
fn names(project: &Project, out: &str) -> Vec<String> {
    let names = fs::read_dir(project.path(out)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// What a killed pull has put in place is casepack's, whatever is pulled next.
#[test]
fn a_killed_pull_leaves_no_case_that_is_nobodys() {
    let project = two_releases(700);
    for (first, next, layout) in [
        ("v1", "v2", &[][..]),
        ("v2", "v1", &[]),
        ("v1", "v2", &["--view", "workspace"]),
    ] {
        fs::remove_dir_all(project.path("out")).ok();
        let args = ["pull", "store", "-o", "out", "-j", "1"];
        let args: Vec<&str> = args.iter().chain(layout).copied().collect();
        let mut child = project
            .invoke(args.iter().chain(&["--ref", first]).copied())
            .command()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // As soon as some are in place, long before the last one is.
        let some = project.path("out/case-00003");
        while !some.exists() && child.try_wait().unwrap().is_none() {
            thread::yield_now();
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(names(&project, "out").len() < 650);

        let pull = [&args[..], &["--ref", next, "--output", "json"]].concat();
        let pulled = project.casepack(pull).assert_code(0);
        assert_eq!(pulled.json()["findings"]["warnings"], 0, "{pulled}");
        let cases = names(&project, "out")
            .into_iter()
            .filter(|name| name.starts_with("case-"));
        let expected = if next == "v1" { 700 } else { 699 };
        assert_eq!(cases.count(), expected, "{first} {next} {layout:?}");
        let case = if next == "v1" {
            Case::numbered(1)
        } else {
            other()
        };
        let expected = if layout.is_empty() {
            case.package()
        } else {
            tree(&case.workspace)
        };
        assert_eq!(read(&project.path("out/case-00001")).id(), expected.id());
        assert!(!project.path("out/.casepack/pull.journal").exists());
    }
}

/// Cases that were there already, as the release has them, are its cases as well.
#[test]
fn what_is_there_already_is_taken_over() {
    let project = two_releases(6);
    let pull = |tag, more: &[&str]| {
        let args = ["pull", "store", "-o", "out", "--ref", tag];
        let args = args.iter().chain(more);
        project.casepack(args.copied())
    };
    pull("v1", &[]).assert_code(0);
    // A record that nobody wrote is told of, and replaced.
    project.write("out/.casepack/pull.json", "{}");
    let again = pull("v1", &["--output", "json"]).assert_code(0);
    assert_eq!(again.json()["written"], 0, "{again}");
    assert_eq!(again.findings("record-damaged").len(), 1, "{again}");
    let newer = pull("v2", &["--output", "json"]).assert_code(0);
    assert_eq!(newer.json()["findings"]["warnings"], 0, "{newer}");
    assert!(!project.path("out/case-00000").exists());
}

/// Two pulls into one directory follow each other.
#[test]
fn pulls_into_one_directory_wait_for_each_other() {
    let project = two_releases(4);
    fs::create_dir_all(project.path("out/.casepack/tmp")).unwrap();
    let lock = fs::File::create(project.path("out/.casepack/pull.journal")).unwrap();
    lock.lock().unwrap();
    let mut child = project
        .invoke(["pull", "store", "-o", "out", "--ref", "v1", "--as", "cases"])
        .command()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(
        line,
        "Waiting for another casepack in this output directory\n"
    );
    assert_eq!(names(&project, "out"), [".casepack"]);
    // The one before ends, and takes everything of it along.
    fs::remove_dir_all(project.path("out")).unwrap();
    drop(lock);
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(names(&project, "out").len(), 5);

    // Whoever comes last has his release, and nothing else.
    for round in 0..4 {
        let out = format!("both-{round}");
        thread::scope(|scope| {
            for tag in ["v1", "v2"] {
                let args = ["pull", "store", "--ref", tag, "-o", &out];
                let pull = project.invoke(args);
                scope.spawn(move || pull.run().assert_code(0));
            }
        });
        let there = names(&project, &out);
        let case = |at: usize| read(&project.path(format!("{out}/case-0000{at}"))).id();
        if there.contains(&"case-00000".to_owned()) {
            assert_eq!(case(1), Case::numbered(1).package().id());
        } else {
            assert_eq!(case(1), other().package().id());
        }
        let args = [
            "pull", "store", "--ref", "v2", "-o", &out, "--output", "json",
        ];
        let pulled = project.casepack(args).assert_code(0);
        assert_eq!(pulled.json()["findings"]["warnings"], 0, "{pulled}");
        assert!(!project.path(format!("{out}/case-00000")).exists());
    }
}

/// What was pulled in one layout goes when another one takes its place, answers first of all.
#[test]
fn another_layout_leaves_nothing_of_the_one_before() {
    let layouts = [
        &["--as", "harbor"][..],
        &["--as", "cases"],
        &["--view", "workspace"],
        &["--view", "evaluation"],
    ];
    let project = two_releases(6);
    let pull = |out, tag, more: &[&str]| {
        let args = ["pull", "store", "--output", "json", "-o", out, "--ref", tag];
        let args = args.iter().chain(more);
        project.casepack(args.copied())
    };
    for before in layouts {
        for after in layouts.into_iter().filter(|after| *after != before) {
            for dir in ["out", "fresh"] {
                fs::remove_dir_all(project.path(dir)).ok();
            }
            pull("out", "v1", before).assert_code(0);
            let refused = pull("out", "v2", after);
            assert_eq!(refused.code, 2, "{refused}");
            assert!(
                refused.stdout.contains("was pulled in another layout"),
                "{refused}"
            );
            let force = [after, &["--force"]].concat();
            let pulled = pull("out", "v2", &force).assert_code(0);
            assert!(pulled.findings("output-left-behind").is_empty(), "{pulled}");
            pull("fresh", "v2", after).assert_code(0);
            for name in names(&project, "fresh") {
                if name.starts_with("case-") {
                    let [new, fresh] = ["out", "fresh"].map(|dir| project.path(dir).join(&name));
                    assert_eq!(read(&new).id(), read(&fresh).id());
                }
            }
            assert_eq!(
                names(&project, "out"),
                names(&project, "fresh"),
                "{before:?} {after:?}"
            );
        }
    }
    // What somebody has made of the list of packages is his.
    fs::remove_dir_all(project.path("out")).unwrap();
    pull("out", "v1", &[]).assert_code(0);
    project.write("out/dataset.toml", "mine");
    let pulled = pull("out", "v1", &["--as", "cases", "--force"]).assert_code(0);
    assert_eq!(pulled.findings("output-left-behind").len(), 1, "{pulled}");
    assert_eq!(project.read("out/dataset.toml"), "mine");
}

/// Nor does a pull of some cases leave others in another layout beside them.
#[test]
fn some_cases_in_another_layout_leave_nothing_of_the_one_before() {
    let project = two_releases(6);
    let pull = |more: &[&str]| {
        let args = ["pull", "store", "--output", "json", "-o", "out"];
        let args = args.iter().chain(&["--ref", "v1"]).chain(more);
        project.casepack(args.copied())
    };
    for before in [&["--case", "case-00000"][..], &[]] {
        fs::remove_dir_all(project.path("out")).ok();
        pull(before).assert_code(0);
        for after in [&["--case", "case-00001"][..], &["--case", "case-0000[1-3]"]] {
            let after = [after, &["--view", "workspace"]].concat();
            let refused = pull(&after);
            assert_eq!(refused.code, 2, "{refused}");
            assert!(
                refused.stdout.contains("was pulled in another layout"),
                "{refused}"
            );
        }
        let after = ["--case", "case-00001", "--view", "workspace"];
        let pulled = pull(&[&after[..], &["--force"]].concat()).assert_code(0);
        assert_eq!(pulled.json()["findings"]["warnings"], 0, "{pulled}");
        assert_eq!(names(&project, "out"), [".casepack.pulled", "case-00001"]);
        // More in the same layout come beside it.
        pull(&["--case", "case-00002", "--view", "workspace"]).assert_code(0);
        let both = [".casepack.pulled", "case-00001", "case-00002"];
        assert_eq!(names(&project, "out"), both);
    }
}

/// What was there before a case, and can't be removed, fails no pull and hides nothing.
#[test]
fn a_case_whose_predecessor_stays_is_known() {
    let project = two_releases(4);
    let pull = |tag| {
        let args = ["pull", "store", "--output", "json", "-o", "out"];
        project.casepack(args.iter().chain(&["--ref", tag]).copied())
    };
    pull("v1").assert_code(0);
    // A mount can be moved with what it is in, but not be removed, not even by root.
    let dir = project.path("out/case-00001/environment");
    assert!(dir.is_dir());
    let bwrap = || {
        let mut bwrap = Command::new("bwrap");
        bwrap.args(["--dev-bind", "/", "/", "--bind"]);
        bwrap.args([&dir, &dir]);
        bwrap
    };
    let probe = bwrap().arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: no bubblewrap that mounts a directory over itself");
        return;
    }
    let invoked = project
        .invoke(["pull", "store", "-o", "out", "--ref", "v2"])
        .command();
    let mut mounted = bwrap();
    mounted.arg(invoked.get_program()).args(invoked.get_args());
    mounted.current_dir(project.root());
    let output = mounted.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("out/.casepack/tmp"), "{said}");
    let case = project.path("out/case-00001");
    assert_eq!(read(&case).id(), other().package().id());
    // The next one removes it, and takes the case for what it is.
    let pulled = pull("v1").assert_code(0);
    assert_eq!(pulled.json()["findings"]["warnings"], 0, "{pulled}");
    assert_eq!(read(&case).id(), Case::numbered(1).package().id());
    assert_eq!(names(&project, "out/.casepack"), ["pull.json"]);
}

/// What a killed pull has staged beside the records goes with the next one.
#[test]
fn a_killed_pull_leaves_no_staged_file() {
    let project = two_releases(4);
    let pull = |more: &[&str]| {
        let args = ["pull", "store", "-o", "out", "--ref", "v1"];
        project.casepack(args.iter().chain(more).copied())
    };
    pull(&[]).assert_code(0);
    // No process has this number.
    for left in [
        ".casepack",
        ".casepack/.casepack",
        ".casepack/tmp/.casepack",
    ] {
        project.write(&format!("out/{left}-2147483647-1"), "{}");
    }
    pull(&["--view", "workspace", "--force"]).assert_code(0);
    let names = names(&project, "out").into_iter();
    let own: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
    assert_eq!(own, [".casepack.pulled"]);
}

/// What is in the place of a file of casepack's own is refused before a case is written.
#[test]
fn what_is_in_the_place_of_a_file_is_refused_first() {
    let project = two_releases(4);
    let pull = |tag, more: &[&str]| {
        fs::create_dir_all(project.path("out")).unwrap();
        let args = ["pull", "store", "-o", "out", "--ref", tag];
        project.casepack(args.iter().chain(more).copied())
    };
    for (at, layout) in [
        (".casepack/pull.json", "harbor"),
        ("dataset.toml", "harbor"),
        (".casepack.pulled", "cases"),
    ] {
        fs::remove_dir_all(project.path("out")).ok();
        fs::create_dir_all(project.path("out").join(at)).unwrap();
        let refused = pull("v1", &["--as", layout, "--force"]);
        assert_eq!(refused.code, 2, "{at}: {refused}");
        assert!(
            refused.stderr.contains(&format!("out/{at} is")),
            "{refused}"
        );
        assert_eq!(names(&project, "out").len(), 1, "{at}");
    }
    // Somebody's own list of packages is his, as long as he says nothing else.
    fs::remove_dir_all(project.path("out")).unwrap();
    project.write("out/dataset.toml", "mine");
    let refused = pull("v1", &[]);
    assert_eq!(refused.code, 2, "{refused}");
    assert_eq!(names(&project, "out"), ["dataset.toml"]);
    assert_eq!(project.read("out/dataset.toml"), "mine");
    pull("v1", &["--force"]).assert_code(0);
    pull("v2", &[]).assert_code(0);
    assert_ne!(project.read("out/dataset.toml"), "mine");
}

/// A case that can't be read was not changed.
#[test]
fn what_can_not_be_read_is_told_as_that() {
    let project = two_releases(4);
    let args = ["pull", "store", "-o", "out", "--ref", "v1"];
    project.casepack(args).assert_code(0);
    let dir = project.path("out/case-00002/environment");
    let mode = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
    // Not even by root.
    let bwrap = || {
        let mut bwrap = Command::new("bwrap");
        bwrap.args(["--dev-bind", "/", "/", "--cap-drop", "ALL"]);
        bwrap
    };
    let probe = bwrap().arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: no bubblewrap that takes capabilities away");
        return;
    }
    mode(0);
    let invoked = project.invoke(args).command();
    let mut pull = bwrap();
    pull.arg(invoked.get_program()).args(invoked.get_args());
    let output = pull.current_dir(project.root()).output().unwrap();
    mode(0o755);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
    project.casepack(args).assert_code(0);
}

/// A destination that somebody else has prepared leads nowhere and makes nobody wait.
#[test]
fn a_destination_leads_nowhere() {
    let project = two_releases(4);
    for at in [
        ".casepack",
        ".casepack/tmp",
        ".casepack/pull.journal",
        ".casepack/pull.json",
        ".casepack.pulled",
        "dataset.toml",
    ] {
        for link in [true, false] {
            for layout in ["harbor", "cases"] {
                for dir in ["out", "mine"] {
                    fs::remove_dir_all(project.path(dir)).ok();
                }
                let is_dir = matches!(at, ".casepack" | ".casepack/tmp");
                project.write("mine/pull.json", "mine");
                let path = project.path("out").join(at);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                match link {
                    true if is_dir => symlink(project.path("mine"), &path).unwrap(),
                    true => symlink(project.path("mine/pull.json"), &path).unwrap(),
                    false => fifo(&path),
                }
                let args = ["pull", "store", "--ref", "v1", "-o", "out", "--as", layout];
                let outcome = project.casepack(args);
                let list = at == "dataset.toml" && layout == "harbor";
                let refused = is_dir || at.ends_with("journal") || list;
                let code = if refused { 2 } else { 0 };
                assert_eq!(outcome.code, code, "{at} {link}: {outcome}");
                if refused {
                    let what = if list { "something else" } else { "a link" };
                    assert!(
                        outcome.stderr.contains(&format!("out/{at} is {what}")),
                        "{outcome}"
                    );
                    assert!(!project.path("out/case-00000").exists());
                }
                assert_eq!(names(&project, "mine"), ["pull.json"], "{at}");
                assert_eq!(project.read("mine/pull.json"), "mine", "{at}");
            }
        }
    }
}

/// A directory with nothing in it is no part of a case, and a change like any other.
#[test]
fn an_empty_directory_in_a_case_is_a_change() {
    let project = two_releases(4);
    let pull = |tag, more: &[&str]| {
        let args = ["pull", "store", "-o", "out", "--ref", tag];
        let args = args.iter().chain(more);
        project.casepack(args.copied())
    };
    pull("v1", &[]).assert_code(0);
    let extra = project.path("out/case-00001/environment/extra/deep");
    fs::create_dir_all(&extra).unwrap();
    let refused = pull("v1", &[]);
    assert_eq!(refused.code, 2, "{refused}");
    assert!(
        refused.stderr.contains("case-00001 is something else"),
        "{refused}"
    );
    pull("v1", &["--force"]).assert_code(0);
    assert!(!extra.parent().unwrap().exists());
    // Nor does a case go that is gone from the release, with what somebody has in it.
    let extra = project.path("out/case-00000/extra");
    fs::create_dir(&extra).unwrap();
    let pulled = pull("v2", &["--output", "json"]).assert_code(0);
    assert_eq!(pulled.findings("output-left-behind").len(), 1, "{pulled}");
    assert!(extra.exists());
}

/// A cache that others write to as well is read as plain files, and no further than they may be
/// long.
#[test]
fn a_cache_leads_nowhere() {
    let project = two_releases(4);
    let pull = || {
        fs::remove_dir_all(project.path("out")).ok();
        let args = [
            "pull", "store", "--ref", "v1", "-o", "out", "--cache", "cache",
        ];
        project.casepack(args)
    };
    pull().assert_code(0);
    let cached = names(&project, "cache/sha256");
    assert!(!cached.is_empty());
    for name in &cached {
        let path = project.path("cache/sha256").join(name);
        let bytes = fs::read(&path).unwrap();
        let sparse = || fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let link = || symlink("/dev/zero", &path).unwrap();
        let fifo = || fifo(&path);
        for spoil in [&fifo as &dyn Fn(), &sparse, &link] {
            fs::remove_file(&path).unwrap();
            spoil();
            // As nobody has so much memory.
            let args = ["--as=1500000000".into()];
            let pull = [
                "pull", "store", "--ref", "v1", "-o", "out", "--cache", "cache",
            ];
            fs::remove_dir_all(project.path("out")).ok();
            let mut pull = project.invoke(pull);
            if cfg!(target_os = "linux") {
                pull = pull.within("prlimit", args);
            }
            pull.run().assert_code(0);
            // It was read from the store, and is there again.
            assert!(path.symlink_metadata().unwrap().is_file());
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }
    // Nor is anything written elsewhere.
    fs::remove_dir_all(project.path("cache/sha256")).unwrap();
    fs::create_dir(project.path("away")).unwrap();
    symlink(project.path("away"), project.path("cache/sha256")).unwrap();
    let refused = pull().assert_code(2);
    assert!(
        refused.stderr.contains("cache/sha256 is a link"),
        "{refused}"
    );
    assert!(names(&project, "away").is_empty());
}
