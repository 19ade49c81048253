//! What the real programs gave, against what casepack gives: the vectors of agent-eval-harness.
//!
//! Every vector runs through the binary, as a user would: `build` for the three targets that a
//! vector lists (`local` = workspace view, `harbor` = `environment/`, `s3` = the plain EvalHub
//! tree); the `load-*` vectors are tested beside the reader. A difference is accepted only where
//! `ACCEPTED` names the rule of policy.md that explains it; an accepted difference that is none
//! fails too, so that the list stays true.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use casepack::digest::Digest;
use serde_json::Value;

/// Differences that the policy explains: vector, target (`*`: all), rule.
const ACCEPTED: &[(&str, &str, &str)] = &[
    (
        "005-hidden-and-cache-dirs-are-cases",
        "*",
        "13: dot names and __pycache__ are no cases",
    ),
    (
        "006-case-dir-is-symlink",
        "*",
        "8: a case directory that leads out is refused",
    ),
    (
        "008-input-symlink-outside",
        "*",
        "8: input files follow the rule of listed links",
    ),
    ("009-answers-symlink-outside", "*", "8: answers.yaml too"),
    (
        "010-answers-symlink-sibling",
        "*",
        "8: a sibling's answers.yaml too",
    ),
    (
        "015-string-file-symlink-in-case",
        "s3",
        "1: listed links are files in every target",
    ),
    (
        "016-string-file-symlink-to-own-annotations",
        "*",
        "3: a link to the answer key",
    ),
    (
        "017-string-file-symlink-project",
        "s3",
        "1: listed links are files in every target",
    ),
    (
        "018-string-file-symlink-plugin",
        "s3",
        "1: listed links are files in every target",
    ),
    (
        "025-string-file-symlink-chain",
        "s3",
        "1: listed links are files in every target",
    ),
    (
        "029-string-path-through-dirlink-project",
        "s3",
        "1: the same in every target",
    ),
    (
        "030-string-path-through-dirlink-outside",
        "local harbor",
        "8: every component is checked",
    ),
    (
        "034-string-lists-annotations",
        "*",
        "3: the answer key is listed",
    ),
    (
        "035-string-dot-copies-whole-case",
        "*",
        "3: the whole case has the answer key",
    ),
    (
        "036-string-empty-copies-whole-case",
        "*",
        "3: the whole case has the answer key",
    ),
    (
        "037-string-slash-copies-whole-case",
        "*",
        "3: the whole case has the answer key",
    ),
    (
        "043-string-special-file",
        "s3",
        "5: special files are told and left behind",
    ),
    (
        "045-string-non-utf8-name",
        "*",
        "22: Harbor can not digest such a name, so it is refused",
    ),
    (
        "070-shared-source-answer-key",
        "*",
        "3: a shared source in a case directory",
    ),
    (
        "073-shared-dest-reserved-other-case",
        "*",
        "10: reserved names in any letter case",
    ),
    (
        "074-shared-dest-near-reserved",
        "*",
        "10: .hook-outputs.yaml is reserved; Dockerfile",
    ),
    (
        "080-shared-file-onto-dir",
        "*",
        "6: two entries claim one path",
    ),
    (
        "082-shared-dir-merges-into-dir",
        "*",
        "6: two entries claim one path",
    ),
    (
        "081-shared-dir-onto-file",
        "harbor",
        "1, 6: string entries are in packages, so it collides",
    ),
    (
        "083-shared-overrides-per-case-file",
        "*",
        "6: two entries claim one path",
    ),
    (
        "093-shared-unusual-names",
        "*",
        "6: names equal after NFC between two entries",
    ),
    (
        "099-batch-ignores-strings",
        "harbor",
        "16: the same entry, every string quoted",
    ),
    (
        "100-batch-with-shared-entry",
        "*",
        "16: shared entries work in batch mode",
    ),
    (
        "101-batch-list-inputs-and-order",
        "*",
        "13: a case without an input file is an error",
    ),
    (
        "102-batch-annotations-picked-as-input",
        "*",
        "13, 3: annotations are never the input",
    ),
    (
        "108-dataset-path-empty",
        "*",
        "13: a case without an input file is an error",
    ),
    (
        "112-dataset-empty",
        "s3",
        "13: a dataset without cases is an error",
    ),
    (
        "118-s3-case-subdirs-and-everything",
        "s3",
        "2: unlisted links follow the rule of listed ones",
    ),
    (
        "122-stale-output-rerun",
        "*",
        "24: what is gone from the dataset goes from the output",
    ),
    (
        "129-shared-source-whole-dataset",
        "*",
        "3: the dataset directory as a shared source",
    ),
    (
        "130-shared-source-is-eval-yaml",
        "*",
        "3: the config as a shared source",
    ),
    (
        "132-prompt-mode-repo-workspace",
        "*",
        "1, 25: the workspace view, and no package",
    ),
];

/// What the vectors call a warning, and our rules for it.
const WARNINGS: &[(&str, &[&str])] = &[
    ("batch-files-ignored", &["batch-files-ignored"]),
    ("shared-dest-reserved", &["reserved-dest"]),
    (
        "shared-recursive",
        &["shared-dest-in-source", "answer-key-in-workspace"],
    ),
    (
        "shared-source-unavailable",
        &["shared-source-outside-roots", "shared-source-missing"],
    ),
    ("string-directory-symlink", &["symlink-directory"]),
    ("string-nested-symlink", &["symlink-nested"]),
    ("string-symlink-dangling-or-loop", &["symlink-dangling"]),
    ("string-symlink-outside-roots", &["symlink-outside-roots"]),
];

/// What a tree holds: path to digest and executable bit.
type Listing = BTreeMap<String, (String, bool)>;

#[test]
fn trees_are_those_of_the_harness() {
    let Some(all) = vectors() else { return };
    let (mut same, mut explained, mut wrong) = (0, BTreeSet::new(), Vec::new());
    for dir in all {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let expected = expected(&dir);
        for target in expected["targets"].as_array().unwrap() {
            let target = target.as_str().unwrap();
            let differences = tree_vector(&dir, &expected, target);
            let accepted = ACCEPTED.iter().find(|(vector, on, _)| {
                *vector == name && (*on == "*" || on.split(' ').any(|on| on == target))
            });
            match (differences.is_empty(), accepted) {
                (true, _) => same += 1,
                (false, Some((vector, on, policy))) => {
                    println!("{name} {target}: differs by policy {policy}");
                    explained.insert((*vector, *on));
                }
                (false, None) => wrong.push(format!("{name} {target}: {differences:#?}")),
            }
        }
    }
    println!(
        "{same} trees are the same, {} vectors differ by policy",
        explained.len()
    );
    for (vector, on, policy) in ACCEPTED {
        if !explained.contains(&(*vector, *on)) {
            wrong.push(format!(
                "{vector} {on}: no difference that policy {policy} would explain"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The vectors' directories; `None`, with the reason printed, where they are absent.
fn vectors() -> Option<Vec<PathBuf>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/vectors/aeh");
    let Ok(entries) = fs::read_dir(&dir) else {
        println!("skipped: {} is absent", dir.display());
        return None;
    };
    let mut all: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expected.json").is_file())
        .collect();
    all.sort();
    assert!(all.len() > 100, "the vectors are there");
    Some(all)
}

fn expected(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("expected.json")).unwrap()).unwrap()
}

/// A private copy of the vector's project, set up.
fn prepare(dir: &Path) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .args(["-a", "--no-preserve=ownership"])
        .arg(dir.join("project"))
        .arg(root.path())
        .status()
        .unwrap();
    assert!(copied.success());
    let writable = Command::new("chmod")
        .args(["-R", "u+w"])
        .arg(root.path())
        .status()
        .unwrap();
    assert!(writable.success());
    script(root.path(), &dir.join("setup.sh"));
    root
}

fn script(root: &Path, script: &Path) {
    let output = Command::new("sh")
        .arg(script)
        .current_dir(root.join("project"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}: {output:?}", script.display());
}

fn casepack(root: &Path, args: &[&str]) -> (i32, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_casepack"))
        .args(args)
        .args(["--output", "json"])
        .current_dir(root.join("project"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", root)
        .output()
        .unwrap();
    let code = output.status.code().unwrap_or(-1);
    assert!(matches!(code, 0 | 1), "{args:?}: exit {code}: {output:?}");
    let document = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: no JSON: {error}: {output:?}"));
    (code, document)
}

/// What differs between casepack's trees and the reference's.
fn tree_vector(dir: &Path, expected: &Value, target: &str) -> Vec<String> {
    let root = prepare(dir);
    let config = expected["config"].as_str().unwrap();
    let out = if expected["out_inside_project"] == true {
        "export-out"
    } else {
        "../out"
    };
    let ours = match target {
        "local" => "workspace",
        "harbor" => "harbor",
        _ => "evalhub",
    };
    let build = || {
        let args = [
            "build",
            config,
            "-o",
            out,
            "--target",
            ours,
            "--image",
            "example/image:1",
        ];
        casepack(root.path(), &args)
    };
    let (mut code, mut said) = build();
    if expected["rerun"] == true && code == 0 {
        script(root.path(), &dir.join("rerun.sh"));
        (code, said) = build();
    }
    let want = &expected[target];
    let errors: Vec<String> = said["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["severity"] == "error")
        .map(|finding| format!("{}: {}", finding["rule"], finding["message"]))
        .collect();
    if want["ok"] == false {
        return if code == 0 {
            vec!["accepted what the reference refuses".into()]
        } else {
            vec![]
        };
    }
    if code != 0 {
        return vec![format!("refused: {errors:?}")];
    }
    let out = root.path().join("project").join(out).join(ours);
    let mut differences = Vec::new();
    for warning in want["warnings"].as_array().into_iter().flatten() {
        let rules = WARNINGS
            .iter()
            .find(|(kind, _)| warning["kind"] == *kind)
            .map(|(_, to)| *to);
        let told = said["diagnostics"]
            .as_array()
            .unwrap()
            .iter()
            .any(|finding| {
                let rule = finding["rule"].as_str().unwrap();
                rules.is_some_and(|rules| rules.contains(&rule))
                    && (warning["entry"].is_null() || finding["entry"] == warning["entry"])
            });
        if !told {
            differences.push(format!("not told: {warning}"));
        }
    }
    for (case, tree) in want["cases"].as_object().unwrap() {
        let (here, files) = match target {
            "local" => (out.join(case), listing(tree)),
            // Policy 1: the package holds the workspace view, string entries included.
            "harbor" => {
                let mut both = listing(&tree["environment"]);
                if let Some(local) = expected["local"]["cases"].get(case) {
                    both.extend(listing(local));
                }
                (package(&out, case).join("environment"), both)
            }
            _ => (out.join("cases").join(case), listing(tree)),
        };
        compare(case, &files, &scan(&here), &mut differences);
        let instructions = tree["instructions"].as_object();
        for (path, text) in instructions.into_iter().flatten() {
            let got = fs::read_to_string(package(&out, case).join(path)).unwrap_or_default();
            if got != text.as_str().unwrap() {
                differences.push(format!("{case}: {path} is {got:?}, not {text}"));
            }
        }
    }
    differences
}

/// The package directory of `case`, whose name may have been made safe.
fn package(out: &Path, case: &str) -> PathBuf {
    let plain = out.join(case);
    if plain.is_dir() {
        return plain;
    }
    let packages = fs::read_dir(out)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path());
    packages
        .filter(|path| {
            let text = fs::read_to_string(path.join("task.toml")).unwrap_or_default();
            let task: toml_edit::DocumentMut = text.parse().unwrap_or_default();
            let id = task
                .get("metadata")
                .and_then(|metadata| metadata.get("case_id"));
            id.and_then(|id| id.as_str()) == Some(case)
        })
        .last()
        .unwrap_or(plain)
}

/// The files of a tree in `expected.json`, without generated ones, links and empty directories.
fn listing(tree: &Value) -> Listing {
    tree.as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["type"] == "file" && entry["generated"] != true)
        .filter_map(|entry| {
            let path = entry["path"].as_str()?.to_owned();
            Some((
                path,
                (entry["sha256"].as_str()?.to_owned(), entry["exec"] == true),
            ))
        })
        .collect()
}

/// The files below `dir`.
fn scan(dir: &Path) -> Listing {
    let mut found = Listing::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap();
            if kind.is_dir() {
                left.push(path);
                continue;
            }
            assert!(kind.is_file(), "{} is no regular file", path.display());
            let below = path
                .strip_prefix(dir)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec();
            let digest = Digest::of(&fs::read(&path).unwrap()).hex();
            let executable = kind.permissions().mode() & 0o100 != 0;
            found.insert(String::from_utf8(below).unwrap(), (digest, executable));
        }
    }
    found
}

/// Files that casepack or the harness make themselves.
fn generated(path: &str) -> bool {
    matches!(
        path,
        ".claude/settings.json" | "tool_handlers.yaml" | "batch.yaml" | "_metadata.yaml"
    ) || path.starts_with("hooks/")
        || path.starts_with(".claude/skills/")
}

fn compare(case: &str, want: &Listing, got: &Listing, differences: &mut Vec<String>) {
    let paths: BTreeSet<&String> = want.keys().chain(got.keys()).collect();
    for path in paths {
        // Repository data of the inputs did not survive their own repository.
        if path.split('/').any(|name| name == ".git") {
            continue;
        }
        match (want.get(path), got.get(path)) {
            (Some(_), None) => differences.push(format!("{case}: missing {path}")),
            (None, Some(_)) if generated(path) => {}
            (None, Some(_)) => differences.push(format!("{case}: extra {path}")),
            (Some(a), Some(b)) if a.0 != b.0 => {
                differences.push(format!("{case}: {path} has other content"));
            }
            (Some(a), Some(b)) if a.1 != b.1 => {
                differences.push(format!("{case}: {path} has another executable bit"));
            }
            _ => {}
        }
    }
}
