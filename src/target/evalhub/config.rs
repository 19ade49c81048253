//! `eval.yaml` as it lies beside the cases in `EvalHub`'s layout (evalhub.md 6.1): the cases are in
//! `cases`, and shared files are in them already.
//!
//! The text is edited in place, so that comments and everything else stay as they are. What the
//! edits made is read back and compared; where they can't be trusted (aliases, odd styles), the
//! whole value is written anew.

use std::ops::Range;
use std::sync::Arc;

use super::CASES;
use crate::diag::{Diagnostic, Source};
use crate::yaml::{self, Node, Yaml};

/// A text in place of some bytes.
type Edit = (Range<usize>, String);

/// The config of a dataset as the adapters in a pod need it: `dataset.path` leads to the cases of
/// the layout, and `dataset.workspace.files` has no `{dest, source}` entries, which agent-eval
/// 1.41.0 refuses to load.
///
/// # Errors
/// When `text` is no YAML.
pub fn config(name: &str, text: &str) -> Result<String, Box<Diagnostic>> {
    let document = yaml::parse(Arc::new(Source::new(name, text)))?;
    let wanted = wanted(&document.root);
    if wanted == document.root.value {
        return Ok(text.to_owned());
    }
    if let Some(edits) = edits(text, &document.root) {
        let edited = apply(text, edits);
        let read = yaml::parse(Arc::new(Source::new(name, edited.clone())));
        if read.is_ok_and(|read| read.root.value == wanted) {
            return Ok(edited);
        }
    }
    Ok(yaml::emit(&wanted))
}

/// Whether a dataset path means the directory of the layout.
fn is_cases(path: &str) -> bool {
    let mut parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    !path.starts_with('/') && parts.next() == Some(CASES) && parts.next().is_none()
}

/// Whether an item of `workspace.files` is one for all cases, which lies in them already.
fn is_shared(item: &Node) -> bool {
    matches!(item.value, Yaml::Map(_))
}

/// The value that the config should have.
fn wanted(root: &Node) -> Yaml {
    let mut wanted = root.value.clone();
    if let Some(files) = entry(&mut wanted, "dataset")
        .and_then(|dataset| entry(dataset, "workspace"))
        .and_then(|workspace| entry(workspace, "files"))
        && let Yaml::Seq(items) = files
    {
        items.retain(|item| !is_shared(item));
    }
    let node = |value| Node { value, span: 0..0 };
    let cases = || Yaml::Str(CASES.into());
    let path = || (node(Yaml::Str("path".into())), node(cases()));
    match entry(&mut wanted, "dataset") {
        Some(Yaml::Map(dataset)) => {
            let at = |(key, _): &(Node, Node)| key.value.as_str() == Some("path");
            match dataset.iter_mut().find(|pair| at(pair)) {
                Some((_, path)) if path.value.as_str().is_some_and(is_cases) => {}
                Some((_, path)) => path.value = cases(),
                None => dataset.insert(0, path()),
            }
        }
        Some(other) => *other = Yaml::Map(vec![path()]),
        None => {
            let dataset = node(Yaml::Map(vec![path()]));
            match &mut wanted {
                Yaml::Map(top) => top.push((node(Yaml::Str("dataset".into())), dataset)),
                other => *other = Yaml::Map(vec![(node(Yaml::Str("dataset".into())), dataset)]),
            }
        }
    }
    wanted
}

fn entry<'y>(value: &'y mut Yaml, key: &str) -> Option<&'y mut Yaml> {
    let Yaml::Map(entries) = value else {
        return None;
    };
    let mut entries = entries.iter_mut();
    let (_, node) = entries.find(|(name, _)| name.value.as_str() == Some(key))?;
    Some(&mut node.value)
}

/// The edits that should make the wanted value; `None`: there are none that are simple.
fn edits(text: &str, root: &Node) -> Option<Vec<Edit>> {
    let Some(dataset) = root.value.get("dataset") else {
        let newline = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let end = text.len();
        return Some(vec![(
            end..end,
            format!("{newline}dataset:\n  path: {CASES}\n"),
        )]);
    };
    let mut edits = Vec::new();
    match dataset.value.get("path") {
        Some(path) if path.value.as_str().is_some_and(is_cases) => {}
        Some(path) => edits.push((path.span.clone(), CASES.to_owned())),
        None => {
            let Yaml::Map(entries) = &dataset.value else {
                return None;
            };
            let at = entries.first()?.0.span.start;
            let before = text.get(line_start(text, at)..at)?;
            let separator = if before.trim().is_empty() {
                format!("\n{before}")
            } else {
                ", ".to_owned()
            };
            edits.push((at..at, format!("path: {CASES}{separator}")));
        }
    }
    if let Some(workspace) = dataset.value.get("workspace")
        && let Yaml::Map(entries) = &workspace.value
        && let Some((key, files)) = entries
            .iter()
            .find(|(key, _)| key.value.as_str() == Some("files"))
        && let Yaml::Seq(items) = &files.value
        && items.iter().any(is_shared)
    {
        edits.extend(without_shared(text, key, files, items)?);
    }
    edits.sort_by_key(|(range, _)| range.start);
    Some(edits)
}

/// Takes the shared entries out of `workspace.files`.
fn without_shared(text: &str, key: &Node, files: &Node, items: &[Node]) -> Option<Vec<Edit>> {
    if text.get(files.span.clone())?.starts_with('[') {
        let kept = items.iter().filter(|item| !is_shared(item));
        let kept: Option<Vec<&str>> = kept.map(|item| text.get(item.span.clone())).collect();
        return Some(vec![(
            files.span.clone(),
            format!("[{}]", kept?.join(", ")),
        )]);
    }
    if items.iter().all(is_shared) {
        let end = items.last()?.span.end;
        return Some(vec![(key.span.end..end, ": []".to_owned())]);
    }
    let lines = items.iter().filter(|item| is_shared(item)).map(|item| {
        let start = line_start(text, item.span.start);
        let rest = text.get(item.span.end..)?;
        let line = rest.find('\n').map_or(rest.len(), |newline| newline + 1);
        let plain = text.get(start..item.span.start)?.trim() == "-";
        let after = rest.get(..line)?.trim();
        let alone = after.is_empty() || after.starts_with('#');
        (plain && alone).then(|| (start..item.span.end + line, String::new()))
    });
    lines.collect()
}

fn line_start(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.rfind('\n').map_or(0, |newline| newline + 1)
}

/// `text` with `edits`, which are sorted; of two that overlap the second is left out.
fn apply(text: &str, edits: Vec<Edit>) -> String {
    let mut edited = String::with_capacity(text.len());
    let mut done = 0;
    for (range, new) in edits {
        if range.start < done {
            continue;
        }
        edited.push_str(text.get(done..range.start).unwrap_or_default());
        edited.push_str(&new);
        done = range.end;
    }
    edited.push_str(text.get(done..).unwrap_or_default());
    edited
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Yaml {
        let source = Arc::new(Source::new("eval.yaml", text));
        yaml::parse(source).unwrap().root.value
    }

    #[test]
    fn what_pods_can_not_read_is_taken_out_and_the_rest_stays() {
        for (before, after) in [
            (
                "dataset:\n  path: cases # here\n",
                "dataset:\n  path: cases # here\n",
            ),
            ("dataset: {path: ./cases/}\n", "dataset: {path: ./cases/}\n"),
            (
                "dataset:\n  path: eval/cases # here\nname: x\n",
                "dataset:\n  path: cases # here\nname: x\n",
            ),
            ("dataset: {path: \"a b\"}\n", "dataset: {path: cases}\n"),
            (
                "dataset:\n  schema: s\n",
                "dataset:\n  path: cases\n  schema: s\n",
            ),
            (
                "dataset: {schema: s}\n",
                "dataset: {path: cases, schema: s}\n",
            ),
            ("name: x", "name: x\ndataset:\n  path: cases\n"),
            (
                "dataset:\n  path: c\n  workspace:\n    files: # all\n      - a.md # one\n      # shared\n      \
                 - dest: b.md\n        source: shared/b.md # two\n      - c.md\nname: x\n",
                "dataset:\n  path: cases\n  workspace:\n    files: # all\n      - a.md # one\n      # shared\n      \
                 - c.md\nname: x\n",
            ),
            (
                "dataset:\n  path: cases\n  workspace:\n    files:\n    - {dest: b.md, source: b.md}\n    - a.md\n",
                "dataset:\n  path: cases\n  workspace:\n    files:\n    - a.md\n",
            ),
            (
                "dataset:\r\n  path: cases\r\n  workspace:\r\n    files:\r\n    - dest: b.md\r\n      source: b.md\r\n# end\r\n",
                "dataset:\r\n  path: cases\r\n  workspace:\r\n    files: []\r\n# end\r\n",
            ),
            (
                "dataset:\n  path: cases\n  workspace: {files: [a.md, {dest: b, source: b}, \"c\"]}\n",
                "dataset:\n  path: cases\n  workspace: {files: [a.md, \"c\"]}\n",
            ),
        ] {
            let made = config("eval.yaml", before).unwrap();
            assert_eq!(made, after);
            assert_eq!(config("eval.yaml", &made).unwrap(), made);
        }
    }

    #[test]
    fn what_edits_would_break_is_written_anew() {
        for before in [
            // The anchored entry would go, and its alias with it.
            "dataset:\n  path: cases\n  workspace:\n    files:\n      - &it {dest: b, source: b}\n      - a\nmore: *it\n",
            // The path is an alias: its place is elsewhere.
            "name: &name eval\ndataset:\n  path: *name\n  schema: s\n",
            "dataset:\n",
            "? dataset\n: path: x\n  workspace:\n    files: !!seq\n    - {dest: a, source: a}\n",
        ] {
            let made = value(&config("eval.yaml", before).unwrap());
            let source = Arc::new(Source::new("eval.yaml", before));
            let was = yaml::parse(source).unwrap().root;
            assert_eq!(made, wanted(&was), "{before}");
            assert_eq!(
                made.get("dataset")
                    .unwrap()
                    .value
                    .get("path")
                    .unwrap()
                    .value,
                Yaml::Str("cases".into())
            );
        }
    }
}
