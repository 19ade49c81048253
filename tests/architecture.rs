//! What the architecture promises and a reader can't see in one file: layers, and who may ask the
//! machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Uses within one layer that are meant (`who`, `whom`).
const WITHIN: &[(&str, &str)] = &[
    ("assemble", "dataset"),
    ("diag", "path"),
    ("event", "path"),
    ("plan", "bundle"),
    ("plan", "target"),
    ("store", "fs"),
    ("template", "yaml"),
    ("tree", "fs"),
];

#[test]
fn modules_use_only_lower_layers() {
    let layers = layers();
    let mut wrong = Vec::new();
    for Code {
        file,
        module,
        lines,
    } in sources()
    {
        if matches!(module.as_str(), "lib" | "main") {
            continue;
        }
        let own = layers
            .get(&module)
            .unwrap_or_else(|| panic!("{module} is missing in the table of src/lib.rs"));
        for (number, line) in lines {
            for used in modules_named_in(&line) {
                let Some(layer) = layers.get(&used) else {
                    continue;
                };
                let meant = WITHIN.contains(&(module.as_str(), used.as_str()));
                if used != module && layer >= own && !meant {
                    wrong.push(format!("{}:{number}: {line}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_settings_ask_the_machine() {
    let questions = [
        "env::var",
        "env::args",
        "env::current_dir",
        "env::home_dir",
        "is_terminal()",
        "SystemTime::now",
    ];
    let mut wrong = Vec::new();
    for Code {
        file,
        module,
        lines,
    } in sources()
    {
        if file.ends_with("src/cli/settings.rs") || module == "main" {
            continue;
        }
        for (number, line) in lines {
            if questions.iter().any(|question| line.contains(question)) {
                wrong.push(format!("{}:{number}: {line}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_test_file_is_forgotten() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let suite = fs::read_to_string(tests.join("suite.rs")).expect("the suite is there");
    for file in rust_files(&tests) {
        let name = file.file_stem().expect("a file").to_string_lossy();
        if file.parent() == Some(&tests) && name != "suite" {
            assert!(
                suite.contains(&format!("mod {name};")),
                "tests/suite.rs has no line for {name}"
            );
        }
    }
}

/// The layer of each module, from the table in the documentation of the crate.
fn layers() -> BTreeMap<String, u32> {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let text = fs::read_to_string(lib).expect("the crate has a root");
    let mut layers = BTreeMap::new();
    for row in text.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let Some(layer) = row.split(' ').next().and_then(|word| word.parse().ok()) else {
            continue;
        };
        for module in row.split('`').skip(1).step_by(2) {
            layers.insert(module.to_owned(), layer);
        }
    }
    assert!(layers.len() > 10, "the table was read: {layers:?}");
    layers
}

/// A source file: its module, and the numbered lines that are code but no tests.
struct Code {
    file: PathBuf,
    module: String,
    lines: Vec<(usize, String)>,
}

fn sources() -> Vec<Code> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |file: PathBuf| {
        let below = file.strip_prefix(&src).expect("it is below").to_owned();
        let first = below.iter().next().expect("it has a name");
        let module = first.to_string_lossy().trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&file).expect("it can be read");
        let lines = text
            .lines()
            .enumerate()
            .take_while(|(_, line)| *line != "#[cfg(test)]")
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(at, line)| (at + 1, line.to_owned()))
            .collect();
        Code {
            file,
            module,
            lines,
        }
    };
    let is_code = |file: &PathBuf| {
        !file.ends_with("tests.rs") && file.iter().rev().nth(1).is_none_or(|dir| dir != "tests")
    };
    rust_files(&src)
        .into_iter()
        .filter(is_code)
        .map(read)
        .collect()
}

/// Module names after `crate::`, one by one or in braces.
fn modules_named_in(line: &str) -> Vec<String> {
    let word = |text: &str| {
        text.trim_start()
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    let mut names = Vec::new();
    for rest in line.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => names.extend(list.split(',').map(word)),
            None => names.push(word(rest)),
        }
    }
    names
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}
