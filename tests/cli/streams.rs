//! Standard output and standard error: who gets what, and what happens when they fail.

use std::fs::File;
use std::process::Stdio;

use crate::support::ProjectBuilder;

#[test]
fn a_closed_pipe_ends_quietly() {
    let project = ProjectBuilder::new().build();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = project
        .invoke(["explain"])
        .command()
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_closed_pipe_does_not_hide_findings() {
    let project = ProjectBuilder::new().build();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = project
        .invoke(["check", "nowhere"])
        .command()
        .stdout(writer)
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_full_disk_is_a_failure_worth_a_retry() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        println!("skipped: there is no /dev/full");
        return;
    };
    let project = ProjectBuilder::new().build();
    let output = project
        .invoke(["explain"])
        .command()
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("because: No space left on device"),
        "{stderr}"
    );
}

#[test]
fn without_a_current_directory_it_says_so() {
    let project = ProjectBuilder::new().directory("gone").build();
    let script = "cd gone && rmdir ../gone && exec \"$0\" explain";
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_casepack")])
        .current_dir(project.root())
        .output()
        .expect("a shell");
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("current directory"), "{stderr}");
}
