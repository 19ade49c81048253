//! Tests of the readers over whole projects: recorded vectors, twelve mistakes, cases.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::diag::Severity;

/// A project in a temporary directory.
pub(super) struct Project {
    dir: tempfile::TempDir,
}

impl Project {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("project")
    }

    pub(super) fn file(self, path: &str, text: &str) -> Self {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub(super) fn link(self, path: &str, target: &str) -> Self {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// An `eval.yaml` with these cases, each with an input that has a prompt.
    pub(super) fn eval(self, text: &str, cases: &[&str]) -> Self {
        let project = self.file("eval.yaml", text);
        cases.iter().fold(project, |project, case| {
            project.file(&format!("cases/{case}/input.yaml"), "prompt: do it\n")
        })
    }

    pub(super) fn load(&self) -> (Option<Dataset>, Diagnostics) {
        self.load_path(".")
    }

    pub(super) fn load_path(&self, path: &str) -> (Option<Dataset>, Diagnostics) {
        let mut diags = Diagnostics::default();
        let cwd = self.path();
        let dataset = load(&request(&cwd, Path::new(path)), &mut diags);
        (dataset, diags)
    }

    /// All cases, read.
    pub(super) fn cases(&self) -> (Vec<Case>, String) {
        let (dataset, mut diags) = self.load();
        let dataset = dataset.unwrap_or_else(|| panic!("{}", told(&diags)));
        let cases = dataset
            .cases
            .iter()
            .filter_map(|id| dataset.read_case(id, &mut diags))
            .collect();
        (cases, told(&diags))
    }
}

pub(super) fn request<'a>(cwd: &'a Path, path: &'a Path) -> LoadRequest<'a> {
    LoadRequest {
        path,
        format: None,
        project_root: None,
        cwd,
        home: None,
        plugin_dirs: &[],
    }
}

/// The findings as plain text, two lines each.
pub(super) fn told(diags: &Diagnostics) -> String {
    let mut text = String::new();
    for item in diags.iter() {
        let place = match (&item.place, &item.file) {
            (Some(place), _) => {
                let (line, column) = place.source.position(place.range.start);
                let shown = &place.source.text[place.range.clone()];
                let shown: String = shown.chars().take(30).collect();
                format!(
                    "{}:{line}:{column} «{}»",
                    place.source.name,
                    shown.escape_debug()
                )
            }
            (None, Some(file)) => file.clone(),
            (None, None) => "-".to_owned(),
        };
        let cases: Vec<&str> = item.cases.iter().map(CaseId::as_str).collect();
        writeln!(
            text,
            "{} {} {place} {}{}\n  {} {}",
            item.severity.name(),
            item.rule.name(),
            item.field.as_deref().unwrap_or("-"),
            if cases.is_empty() {
                String::new()
            } else {
                format!(" [{}]", cases.join(" "))
            },
            item.message,
            item.help,
        )
        .unwrap();
    }
    text
}

/// The rules of findings in plain text.
pub(super) fn rules(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split(' ').nth(1))
        .collect()
}

/// Compares findings in plain text with the recorded ones.
pub(super) fn snapshot(name: &str, text: &str) {
    insta::with_settings!({snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/findings"), prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

fn without_indices(field: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for letter in field.chars() {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            letter if !inside => text.push(letter),
            _ => {}
        }
    }
    text
}

/// Where we decided otherwise than the recorded program, and why.
const ELSEWISE: [(&str, &str); 8] = [
    ("load-execution-null", "a null block counts as absent"),
    ("load-outputs-null", "a null block counts as absent"),
    ("load-judges-null", "a null block counts as absent"),
    ("load-reward-null", "a null block counts as absent"),
    (
        "load-execution-timeout-unchecked-ok",
        "rejected, as the vector suggests",
    ),
    (
        "load-judge-duplicate-names-ok-at-load",
        "rejected, as the vector suggests",
    ),
    (
        "load-reward-weights-unknown-judge-ok",
        "a warning names the judge",
    ),
    ("load-dataset-null", "a null block counts as absent"),
];

#[test]
fn agrees_with_the_recorded_rejections() {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/vectors/aeh");
    let Ok(entries) = fs::read_dir(vectors) else {
        println!("skipped: the recorded vectors are not here");
        return;
    };
    let (mut agree, mut finer, mut elsewise) = (0, Vec::new(), Vec::new());
    let mut wrong = Vec::new();
    let mut names: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for vector in names {
        let name = vector.file_name().unwrap().to_str().unwrap();
        let Some((_, name)) = name
            .split_once('-')
            .filter(|(_, name)| name.starts_with("load-"))
        else {
            continue;
        };
        let expected: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(vector.join("expected.json")).unwrap())
                .unwrap();
        let mut diags = Diagnostics::default();
        let cwd = vector.join("project");
        load(&request(&cwd, Path::new("eval.yaml")), &mut diags);
        // The vectors have no cases.
        let errors: Vec<_> = diags
            .iter()
            .filter(|item| item.severity == Severity::Error)
            .filter(|item| !matches!(item.rule, Rule::DatasetNotFound | Rule::NoCases))
            .collect();
        let ok = expected["load"]["ok"] == true;
        let why = ELSEWISE.iter().find(|(vector, _)| *vector == name);
        let same = match errors.as_slice() {
            [] => ok,
            [error] if !ok => {
                let wanted = &expected["load"]["error"];
                let field = without_indices(error.field.as_deref().unwrap_or_default());
                let wanted_field = without_indices(wanted["field"].as_str().unwrap());
                let below = field.starts_with(&format!("{wanted_field}."))
                    || field.ends_with(&format!(".{wanted_field}"));
                if field != wanted_field && below {
                    finer.push(format!("{name}: {field} for {wanted_field}"));
                }
                error.rule.name() == wanted["kind"] && (field == wanted_field || below)
            }
            _ => false,
        };
        match (same, why) {
            (true, None) => agree += 1,
            (_, Some((name, why))) => elsewise.push(format!("{name}: {why}")),
            (false, None) => wrong.push(format!("{name}: {}\n{}", expected["load"], told(&diags))),
        }
    }
    println!(
        "{agree} vectors agree; of these the field is finer in {}:",
        finer.len()
    );
    println!("  {}", finer.join("\n  "));
    println!(
        "{} decided otherwise:\n  {}",
        elsewise.len(),
        elsewise.join("\n  ")
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(agree > 50);
}

/// A copy of a vector's project with its links and special files made.
fn set_up(vector: &Path) -> Option<tempfile::TempDir> {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &to);
            } else {
                fs::write(to, fs::read(entry.path()).unwrap()).unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().join("project");
    copy(&vector.join("project"), &project);
    let done = std::process::Command::new("sh")
        .arg(vector.join("setup.sh"))
        .current_dir(&project)
        .env("HOME", dir.path())
        .output();
    done.is_ok_and(|done| done.status.success()).then_some(dir)
}

/// Instructions that are ours for a reason: rule, and why.
const OTHER_CASES: [(&str, &str); 8] = [
    ("hidden-and-cache-dirs-are-cases", "policy 13"),
    (
        "case-dir-is-symlink",
        "policy 8: it leads out of the project",
    ),
    ("input-symlink-outside", "policy 8"),
    (
        "batch-list-inputs-and-order",
        "policy 13: a case needs an input file",
    ),
    (
        "batch-annotations-picked-as-input",
        "policy 13: a case needs an input file",
    ),
    (
        "dataset-path-empty",
        "policy 13: a case needs an input file",
    ),
    ("dataset-path-dot", "policy 13: a case needs an input file"),
    (
        "case-names-unusual",
        "policy 13: names that start with a dot",
    ),
];

#[test]
fn reads_the_cases_of_the_recorded_projects() {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/vectors/aeh");
    let Ok(entries) = fs::read_dir(vectors) else {
        println!("skipped: the recorded vectors are not here");
        return;
    };
    let mut names: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let (mut same, mut other, mut projects) = (0, Vec::new(), 0);
    for vector in names {
        let name = vector.file_name().unwrap().to_str().unwrap();
        let Some((_, name)) = name.split_once('-').filter(|_| vector.is_dir()) else {
            continue;
        };
        if name.starts_with("load-") {
            continue;
        }
        let Some(dir) = set_up(&vector) else {
            println!("{name}: skipped, its set-up does not work here");
            continue;
        };
        projects += 1;
        let expected: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(vector.join("expected.json")).unwrap())
                .unwrap();
        let mut diags = Diagnostics::default();
        let cwd = dir.path().join("project").canonicalize().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let request = LoadRequest {
            home: Some(&home),
            ..request(&cwd, Path::new("eval.yaml"))
        };
        let dataset = load(&request, &mut diags);
        let mut got = BTreeMap::new();
        for id in dataset.iter().flat_map(|dataset| &dataset.cases) {
            let Some(case) = dataset.as_ref().unwrap().read_case(id, &mut diags) else {
                continue;
            };
            for step in &case.steps {
                let name = step.id.as_ref().map_or_else(
                    || "instruction.md".to_owned(),
                    |id| format!("steps/{id}/instruction.md"),
                );
                if let Instruction::Text(text) = &step.instruction {
                    got.insert((id.to_string(), name), format!("{text}\n"));
                }
            }
        }
        let mut wanted = BTreeMap::new();
        let empty = serde_json::Map::new();
        for (case, outcome) in expected["harbor"]["cases"].as_object().unwrap_or(&empty) {
            for (name, text) in outcome["instructions"].as_object().unwrap_or(&empty) {
                wanted.insert(
                    (case.clone(), name.clone()),
                    text.as_str().unwrap().to_owned(),
                );
            }
        }
        let why = OTHER_CASES.iter().find(|(vector, _)| *vector == name);
        match (got == wanted, why) {
            (true, _) => same += got.len(),
            (false, Some((_, why))) => other.push(format!("{name}: {why}")),
            (false, None) => panic!("{name}: {got:?} is not {wanted:?}\n{}", told(&diags)),
        }
    }
    println!("{same} instructions of {projects} projects are the same; elsewise in {other:#?}");
    assert!(same > 80);
}
