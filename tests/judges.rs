//! The Python files of packages: their own tests, run as part of the suite.

use std::process::Command;

#[test]
fn judge_py_and_the_interceptor_do_what_they_say() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let output = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "tests/python"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3 starts");
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("Ran ") && !said.contains("Ran 0 tests"),
        "{said}"
    );
}
