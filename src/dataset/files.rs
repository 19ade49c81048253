//! Relative paths of configs, and the entries of `workspace.files` (agent-eval-harness 1.1, 1.2).
//!
//! Owns what such a path may be. Refuses to know the disk.

use super::{Listed, SharedEntry};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::path::{TreePath, TreePathError};
use crate::yaml::{Fields, Value, Yaml, nearest};

/// `workspace.files`, by kind of entry.
#[derive(Default)]
pub(super) struct Files {
    /// String entries.
    pub(super) listed: Vec<Listed>,
    /// `{dest, source}` entries.
    pub(super) shared: Vec<SharedEntry>,
}

/// Reads `workspace` of a dataset block.
pub(super) fn workspace(dataset: &mut Fields<'_>, diags: &mut Diagnostics) -> Files {
    let mut files = Files::default();
    let Some(mut workspace) = dataset.fields("workspace", diags) else {
        return files;
    };
    for entry in workspace.items("files", diags) {
        match entry.yaml() {
            Yaml::Str(text) => files.listed.extend(listed(&entry, text, diags)),
            Yaml::Map(_) => files.shared.extend(shared(&entry, diags)),
            _ => {
                let mut finding = entry.wrong_type("a string or a {dest, source} mapping");
                if !matches!(entry.yaml(), Yaml::Null | Yaml::Seq(_)) {
                    let place = entry.place();
                    let written = place
                        .source
                        .text
                        .get(place.range.clone())
                        .unwrap_or_default();
                    finding = finding
                        .help(format!(
                            "If it is the name of a file, put it in quotes: \"{written}\""
                        ))
                        .entry(written);
                }
                diags.push(finding);
            }
        }
    }
    workspace.finish(diags);
    files
}

/// A path of the case directory. The directory itself passes: that it must not be listed is a
/// matter of what it holds (policy 3).
fn listed(entry: &Value<'_>, text: &str, diags: &mut Diagnostics) -> Option<Listed> {
    let source = text.trim_end_matches('/');
    let dest = match relative(source) {
        Ok(path) => Some(path),
        Err(Bad::Root) => None,
        Err(bad) => {
            let what = format!("The entry `{text}`");
            let help = "Write the path relative to the case directory; for a file that all cases \
                        share, use {dest: …, source: …}.";
            diags.push(bad.finding(entry, &what, help).entry(text));
            return None;
        }
    };
    Some(Listed {
        source: source.to_owned(),
        dest,
        by_user: true,
        place: Some(entry.place()),
        field: entry.path().to_owned(),
    })
}

fn shared(entry: &Value<'_>, diags: &mut Diagnostics) -> Option<SharedEntry> {
    const KEYS: [&str; 2] = ["dest", "source"];
    let mut found: [Option<Value<'_>>; 2] = [None, None];
    let mut unknown = Vec::new();
    for (name, value) in entry.entries(diags)? {
        match KEYS.iter().position(|key| *key == name) {
            Some(at) => found[at] = Some(value),
            None => unknown.push((name, value)),
        }
    }
    let label = found
        .iter()
        .flatten()
        .find_map(|value| value.yaml().as_str())
        .unwrap_or("{dest, source}")
        .to_owned();
    let missing: Vec<&str> = KEYS
        .into_iter()
        .zip(&found)
        .filter(|(_, value)| value.is_none())
        .map(|(key, _)| key)
        .collect();
    if !missing.is_empty() {
        // A key that was meant to be the missing one is the same mistake.
        let mut help = format!("Add {}.", listing(&missing));
        unknown.retain(|(name, _)| {
            let meant = nearest(name, missing.iter().copied())
                .or_else(|| alias(name).filter(|key| missing.contains(key)));
            if let Some(key) = meant {
                help = format!("Did you mean `{key}` instead of `{name}`?");
            }
            meant.is_none()
        });
        diags.push(
            entry
                .finding(
                    Rule::MissingKey,
                    format!(
                        "A shared file needs `dest` and `source`; {} missing.",
                        are(&missing)
                    ),
                )
                .help(help)
                .entry(label.clone()),
        );
    }
    for (name, value) in &unknown {
        let help = match nearest(name, KEYS.into_iter()) {
            Some(key) => format!("Did you mean `{key}`?"),
            None => "Remove it: a shared file has `dest` and `source` only.".to_owned(),
        };
        diags.push(
            value
                .finding(
                    Rule::UnknownKey,
                    format!("A shared file has no key `{name}`."),
                )
                .severity(Severity::Error)
                .field(entry.path())
                .help(help)
                .entry(label.clone()),
        );
    }
    let [dest, source] = found;
    // Both are looked at, so that both are told.
    let dest = dest.and_then(|value| self::dest(&value, diags));
    let source = source.and_then(|value| {
        let text = value.str(diags)?;
        if text.is_empty() {
            diags.push(
                value
                    .finding(Rule::Empty, "The source of a shared file is empty.")
                    .help("Write the path of a file or directory, relative to the project root.")
                    .entry(label.clone()),
            );
            return None;
        }
        Some(text.to_owned())
    });
    if !unknown.is_empty() {
        return None;
    }
    Some(SharedEntry {
        dest: dest?,
        source: source?,
        place: Some(entry.place()),
        field: entry.path().to_owned(),
    })
}

/// Names that other tools give the two keys.
fn alias(name: &str) -> Option<&'static str> {
    match name {
        "dst" | "destination" | "target" | "to" => Some("dest"),
        "src" | "from" | "path" | "file" => Some("source"),
        _ => None,
    }
}

fn dest(value: &Value<'_>, diags: &mut Diagnostics) -> Option<TreePath> {
    let text = value.str(diags)?;
    if text.is_empty() {
        diags.push(
            value
                .finding(Rule::Empty, "The dest of a shared file is empty.")
                .help("Write the name that the file gets in the workspace."),
        );
        return None;
    }
    match relative(text.trim_end_matches('/')) {
        Ok(path) => Some(path),
        Err(bad) => {
            let what = format!("The dest `{text}`");
            let help = "Write a path relative to the workspace, for example docs/guide.md.";
            diags.push(bad.finding(value, &what, help).entry(text));
            None
        }
    }
}

/// Why a text is no relative path below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    Parent,
    Absolute,
    /// It names the directory itself.
    Root,
    Path(TreePathError),
}

/// A relative path, with `.` and doubled slashes taken out, as Python's `Path` does.
pub(super) fn relative(text: &str) -> Result<TreePath, Bad> {
    if text.split('/').any(|part| part == "..") {
        return Err(Bad::Parent);
    }
    if text.starts_with('/') {
        return Err(Bad::Absolute);
    }
    let parts: Vec<&str> = text
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.is_empty() {
        return Err(Bad::Root);
    }
    TreePath::new(&parts.join("/")).map_err(Bad::Path)
}

impl Bad {
    /// The finding about `value`, which `what` names at the start of a sentence.
    pub(super) fn finding(self, value: &Value<'_>, what: &str, help: &str) -> Diagnostic {
        let (rule, why) = match self {
            Self::Parent => (Rule::ParentTraversal, "leads upwards (`..`)".to_owned()),
            Self::Absolute => (Rule::AbsolutePath, "is absolute".to_owned()),
            Self::Root => (Rule::Root, "names the whole directory".to_owned()),
            Self::Path(why @ (TreePathError::Long | TreePathError::LongComponent)) => {
                (Rule::PathTooLong, format!("is too long: {why}"))
            }
            Self::Path(why) => (Rule::BadSegment, format!("is no usable path: {why}")),
        };
        value.finding(rule, format!("{what} {why}.")).help(help)
    }
}

fn listing(keys: &[&str]) -> String {
    keys.iter()
        .map(|key| format!("`{key}`"))
        .collect::<Vec<_>>()
        .join(" and ")
}

fn are(keys: &[&str]) -> String {
    format!(
        "{} {}",
        listing(keys),
        if keys.len() == 1 { "is" } else { "are" }
    )
}
