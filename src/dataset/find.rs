//! Finds what a PATH means: which format, which config, which project (cli.md, policy 12 and 33).
//!
//! Owns recognition and the reading of files that the user names. Refuses to know what is in them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::casepack_yaml::{self, CasepackYaml};
use super::{Format, LoadRequest, OptionValue};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity, Source};
use crate::yaml::{self, Document};

/// Largest config or case file that is parsed (feasibility 4.3: limits).
pub(super) const MAX_TEXT: u64 = 16 << 20;

const EVAL: &str = "eval.yaml";
const CASEPACK: &str = "casepack.yaml";
const TASK: &str = "task.toml";

/// What was found at a PATH.
pub(super) struct Found {
    /// Which reader.
    pub(super) format: Format,
    /// The `eval.yaml`, or the directory that is, or holds, Harbor tasks; absolute.
    pub(super) path: PathBuf,
    /// The `casepack.yaml` that belongs to it.
    pub(super) casepack: Option<CasepackYaml>,
    /// The project root; absolute, links resolved.
    pub(super) project: PathBuf,
}

/// Finds the dataset of `request`.
pub(super) fn find(request: &LoadRequest, diags: &mut Diagnostics) -> Option<Found> {
    let path = clean(&request.cwd.join(request.path));
    let shown = request.path.display();
    let Ok(metadata) = fs::metadata(&path) else {
        diags.push(
            Diagnostic::new(Rule::ConfigNotFound, format!("'{shown}' does not exist."))
                .help("Give the path of an eval.yaml, or of a directory that holds one; `casepack init DIR` writes an example.")
                .file(shown.to_string()),
        );
        return None;
    };
    let (format, path, casepack) = if metadata.is_dir() {
        in_directory(&path, request, diags)?
    } else {
        by_file(&path, request, diags)?
    };
    let anchor = casepack.as_ref().map_or_else(
        || match format {
            Format::EvalYaml => path.parent().unwrap_or(&path).to_owned(),
            Format::HarborTask => path.clone(),
        },
        |casepack| casepack.directory.clone(),
    );
    let project = project(request, &anchor, diags)?;
    Some(Found {
        format,
        path,
        casepack,
        project,
    })
}

type What = (Format, PathBuf, Option<CasepackYaml>);

fn in_directory(path: &Path, request: &LoadRequest, diags: &mut Diagnostics) -> Option<What> {
    let eval = path.join(EVAL);
    let own = path.join(CASEPACK);
    let casepack = if is_there(&own) {
        Some(casepack_yaml::read(&own, request, diags)?)
    } else {
        None
    };
    // What a casepack.yaml names is what is meant.
    if let Some((format, path)) = casepack.as_ref().and_then(CasepackYaml::names)
        && request.format.is_none_or(|wanted| wanted == format)
    {
        return Some((format, path, casepack));
    }
    let tasks = tasks_of(path);
    match (is_there(&eval), tasks.first(), request.format) {
        (true, _, Some(Format::EvalYaml)) | (true, None, None) => {
            Some((Format::EvalYaml, eval, casepack))
        }
        (_, Some(_), Some(Format::HarborTask)) | (false, Some(_), None) => {
            Some((Format::HarborTask, path.to_owned(), casepack))
        }
        (true, Some(task), None) => {
            let shown = request.path.display();
            diags.push(
                Diagnostic::new(
                    Rule::DatasetAmbiguous,
                    format!(
                        "'{shown}' holds two datasets: '{EVAL}' (eval-yaml) and the Harbor task \
                         '{}' (harbor-task).",
                        task.strip_prefix(path).unwrap_or(task).display()
                    ),
                )
                .help("Give the path of the one that is meant, or --format.")
                .file(shown.to_string()),
            );
            None
        }
        (false, None, _) | (_, None, Some(Format::HarborTask)) | (false, _, Some(_)) => {
            not_found(path, request, diags);
            None
        }
    }
}

/// Whether something has this name. What is no file is told when it is read, not passed over.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn by_file(path: &Path, request: &LoadRequest, diags: &mut Diagnostics) -> Option<What> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let directory = path.parent().unwrap_or(path);
    if name == CASEPACK {
        return in_directory(directory, request, diags);
    }
    if name == TASK
        && request
            .format
            .is_none_or(|format| format == Format::HarborTask)
    {
        return Some((Format::HarborTask, directory.to_owned(), None));
    }
    let yaml = [".yaml", ".yml"]
        .iter()
        .any(|ending| name.ends_with(ending));
    if request.format == Some(Format::HarborTask) || !yaml && request.format.is_none() {
        not_found(path, request, diags);
        return None;
    }
    // A casepack.yaml beside it belongs to it unless it names another one.
    let beside = directory.join(CASEPACK);
    let casepack = if is_there(&beside) {
        Some(casepack_yaml::read(&beside, request, diags)?)
    } else {
        None
    };
    let casepack = casepack.filter(|casepack| match casepack.names() {
        Some((Format::EvalYaml, named)) => same_file(&named, path),
        Some((Format::HarborTask, _)) => false,
        None => name == EVAL,
    });
    Some((Format::EvalYaml, path.to_owned(), casepack))
}

/// The Harbor task directories that `path` is, or holds; sorted.
pub(super) fn tasks_of(path: &Path) -> Vec<PathBuf> {
    if path.join(TASK).is_file() {
        return vec![path.join(TASK)];
    }
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let mut tasks: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path().join(TASK))
        .filter(|task| task.is_file())
        .collect();
    tasks.sort();
    tasks
}

fn not_found(path: &Path, request: &LoadRequest, diags: &mut Diagnostics) {
    let shown = request.path.display();
    let directory = path.is_dir();
    let message = match (directory, request.format) {
        (true, None) => format!("'{shown}' holds no {EVAL}, no {CASEPACK} and no Harbor task."),
        (true, Some(format)) => format!(
            "'{shown}' holds no dataset of the format {}.",
            format.name()
        ),
        (false, _) => format!("'{shown}' is no config: it is neither a YAML file nor a {TASK}."),
    };
    // Configs live in `eval/` or one directory below it (agent-eval-harness, discovery).
    let mut near: Vec<PathBuf> = Vec::new();
    for place in [
        path.join("eval.yml"),
        path.join("eval").join(EVAL),
        path.join("..").join(EVAL),
    ] {
        if place.is_file() {
            near.push(place);
        }
    }
    if let Ok(entries) = fs::read_dir(path.join("eval")) {
        let configs = entries.flatten().map(|entry| entry.path().join(EVAL));
        near.extend(configs.filter(|config| config.is_file()).take(20));
    }
    near.sort();
    let help = match near.first() {
        Some(_) if directory => format!(
            "Did you mean {}?",
            near.iter()
                .take(3)
                .map(|config| format!("'{}'", relative(&clean(config), request.cwd)))
                .collect::<Vec<_>>()
                .join(" or ")
        ),
        _ => "Give the path of an eval.yaml, or of a directory that holds one; `casepack init DIR` writes an example.".to_owned(),
    };
    diags.push(
        Diagnostic::new(Rule::ConfigNotFound, message)
            .help(help)
            .file(shown.to_string()),
    );
}

/// The project root (policy 12).
fn project(request: &LoadRequest, anchor: &Path, diags: &mut Diagnostics) -> Option<PathBuf> {
    if let Some(root) = request.project_root {
        return match fs::canonicalize(request.cwd.join(root)) {
            Ok(root) if root.is_dir() => Some(root),
            _ => {
                diags.push(
                    Diagnostic::new(
                        Rule::ConfigNotFound,
                        format!("The project root '{}' is no directory.", root.display()),
                    )
                    .help("Correct --project-root.")
                    .file(root.display().to_string()),
                );
                None
            }
        };
    }
    let anchor = fs::canonicalize(anchor).unwrap_or_else(|_| anchor.to_owned());
    match fs::canonicalize(request.cwd) {
        Ok(cwd) if anchor.starts_with(&cwd) => Some(cwd),
        _ => Some(anchor),
    }
}

/// The project root that the dataset's own options name, relative to the directory of the config:
/// a dataset that is built from anywhere has to say so itself. `--project-root` wins; without
/// either it stays as it was found (policy 12). A file can make the root smaller, never larger:
/// what else of the machine may be read is the operator's to say (policy 8).
pub(super) fn project_option(
    options: &mut BTreeMap<String, OptionValue>,
    config: &Path,
    found: PathBuf,
    request: &LoadRequest,
    diags: &mut Diagnostics,
) -> PathBuf {
    let Some(option) = options.remove("project-root") else {
        return found;
    };
    if request.project_root.is_some() {
        return found;
    }
    let base = config.parent().unwrap_or(config);
    let (message, help) = match fs::canonicalize(base.join(&option.text)) {
        Ok(root) if root.is_dir() && root.starts_with(&found) => return root,
        Ok(root) if root.is_dir() => (
            format!(
                "The project root '{}' is not in '{}', where casepack was started.",
                option.text,
                found.display()
            ),
            "Start casepack further up, or give --project-root.",
        ),
        _ => (
            format!("The project root '{}' is no directory.", option.text),
            "Write it relative to the directory of the config.",
        ),
    };
    diags.push(
        Diagnostic::new(Rule::BadValue, message)
            .help(help)
            .at_place(option.place.as_ref())
            .field("casepack.project_root")
            .entry(option.text),
    );
    found
}

/// Reads and parses a YAML file that the user named; tells what is wrong with it, duplicate keys
/// included.
pub(super) fn read_yaml(path: &Path, name: String, diags: &mut Diagnostics) -> Option<Document> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(finding) => {
            diags.push(finding.file(name));
            return None;
        }
    };
    match yaml::parse(Arc::new(Source::new(name, text))) {
        Ok(document) => {
            duplicate_keys(&document, |finding| diags.push(finding));
            Some(document)
        }
        Err(finding) => {
            diags.push(*finding);
            None
        }
    }
}

/// Tells the keys that one mapping has twice.
pub(super) fn duplicate_keys(document: &Document, mut tell: impl FnMut(Diagnostic)) {
    for (first, second) in &document.duplicate_keys {
        let key = document.source.text.get(second.clone()).unwrap_or_default();
        let mut finding = Diagnostic::new(
            Rule::DuplicateKey,
            format!("The key `{key}` is given twice; the first value has no effect."),
        )
        .help("Remove one of the two.")
        .at(&document.source, second.clone());
        let first = crate::diag::Place {
            source: Arc::clone(&document.source),
            range: first.clone(),
        };
        finding = finding.related(Some(&first), "first here");
        tell(finding);
    }
}

fn read_text(path: &Path) -> Result<String, Box<Diagnostic>> {
    let unreadable = |why: String| {
        Box::new(
            Diagnostic::new(
                Rule::FileUnreadable,
                format!("'{}' can not be read: {why}.", path.display()),
            )
            .help("Make it a readable file."),
        )
    };
    let read = || -> io::Result<Result<Vec<u8>, &str>> {
        // Asked before opening: opening a fifo would wait for a writer.
        if !fs::metadata(path)?.is_file() {
            return Ok(Err("it is no regular file"));
        }
        let mut bytes = Vec::new();
        fs::File::open(path)?
            .take(MAX_TEXT + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_TEXT {
            return Ok(Err("it is larger than 16 MiB"));
        }
        Ok(Ok(bytes))
    };
    let bytes = match read() {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(why)) => return Err(unreadable(why.to_owned())),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    utf8(bytes, &path.display().to_string())
}

/// The text of a YAML or TOML file; `shown` is its name for the finding.
pub(super) fn utf8(bytes: Vec<u8>, shown: &str) -> Result<String, Box<Diagnostic>> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error
            .as_bytes()
            .iter()
            .take(at)
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        Box::new(
            Diagnostic::new(
                Rule::YamlSyntax,
                format!("'{shown}' is not UTF-8: line {line} has other bytes."),
            )
            .help("Save the file as UTF-8.")
            .severity(Severity::Error),
        )
    })
}

/// `path` as a user would write it: relative to `base` where it lies below it.
pub(super) fn relative(path: &Path, base: &Path) -> String {
    match path.strip_prefix(base) {
        Ok(below) if below.as_os_str().is_empty() => ".".to_owned(),
        Ok(below) => below.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

/// Without `.` components; `..` stays where it is, since a link may stand before it.
fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::canonicalize(a), fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}
