//! Harbor's own content digests, and the manifest that lists them (harbor.md 6).
//!
//! Owns which files of a task count and how. Refuses to know how packages are made.
//! Invariant: for every tree without links the digest is the one that Harbor computes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use toml_edit::{DocumentMut, Item};

use super::ignore::{BadLine, Dialect, Rules};
use super::task_toml::Text;
use crate::digest::{Digest, Hasher};
use crate::fs::{Kind, Root};
use crate::path::TreePath;
use crate::tree::{BadThing, Content, Data, Entry, Tree, TreeBuilder};

/// Why Harbor has no digest for a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// An ignore file whose bytes are not in memory.
    #[error("the content of '{0}' was not loaded")]
    NotLoaded(TreePath),
    /// An ignore file that is not UTF-8.
    #[error("'{0}' is not UTF-8")]
    NotText(TreePath),
    /// A directory where Harbor reads an ignore file.
    #[error("'{0}' is a directory, and Harbor reads it as an ignore file")]
    IgnoreIsDir(String),
    /// An ignore file that Harbor itself refuses.
    #[error("'{path}' has a line that Harbor refuses: '{line}'")]
    BadIgnoreLine {
        /// The file.
        path: TreePath,
        /// The line, as it stands.
        line: String,
    },
}

/// Files at the top of a task that count.
const SINGLES: [&str; 4] = [
    "task.toml",
    "instruction.md",
    "README.md",
    "trajectory.json",
];
/// Directories at the top of a task that count.
pub(super) const TREES: [&str; 4] = ["environment", "tests", "solution", "steps"];
/// What is left out when a task has no `.gitignore`.
const BUILT_IN: &str = "__pycache__/\n*.pyc\n.DS_Store\n*.swp\n*.swo\n*~\n";
const GITIGNORE: &str = ".gitignore";
const HARBORIGNORE: &str = ".harborignore";

/// Reads what counts of a task directory. What else lies there (a repository, runs) is nothing to
/// Harbor (harbor.md 2). Files over `keep` bytes stay on the disk. A link to a file that goes into a
/// container with it is that file, as it is in the digest; the links are given, too.
///
/// # Errors
/// All that counts and has no place in a tree (see [`Tree::from_dir`]).
pub fn read_task(root: &Arc<Root>, keep: u64) -> Result<(Tree, Vec<TreePath>), Vec<BadThing>> {
    let mut builder = TreeBuilder::new();
    let mut links = Vec::new();
    let mut resolve = |path: &TreePath| {
        let target = beside(root, path)?;
        links.push(path.clone());
        Some(target)
    };
    for name in SINGLES.into_iter().chain([GITIGNORE]).chain(TREES) {
        let bad = |why: String| {
            let shown = name.to_owned();
            vec![BadThing { shown, why }]
        };
        let path = TreePath::new(name).map_err(|why| bad(why.to_string()))?;
        let clash = match root.stat(&path) {
            Ok(None) => continue,
            Ok(Some((Kind::Dir, _))) => {
                let tree = Tree::from_dir_with(root, Some(&path), keep, &mut resolve)?;
                builder.graft(&path, &tree)
            }
            Ok(Some(_)) => {
                let read = Content::from_file(root, &path, keep);
                let (mode, content) = read.map_err(|error| bad(error.to_string()))?;
                builder.insert(path, mode, content)
            }
            Err(error) => return Err(bad(error.source.to_string())),
        };
        clash.map_err(|clash| bad(clash.to_string()))?;
    }
    Ok((builder.finish(), links))
}

/// The file that the link at `path` leads to, where it is uploaded to the same place of a container:
/// else the link leads nowhere there, and its content is for somebody else.
fn beside(root: &Root, path: &TreePath) -> Option<TreePath> {
    let top = root.path().canonicalize().ok()?;
    let target = root.absolute(Some(path)).canonicalize().ok()?;
    let target = TreePath::new(target.strip_prefix(top).ok()?.to_str()?).ok()?;
    // `environment`, `tests`, `solution`, `steps/NAME/workdir`, …
    let depth = if path.first() == "steps" { 3 } else { 1 };
    let upload = |path: &TreePath| path.components().count() > depth;
    let same = path
        .components()
        .take(depth)
        .eq(target.components().take(depth));
    let is_file = matches!(root.stat(&target), Ok(Some((Kind::File, _))));
    (same && is_file && upload(path) && upload(&target)).then_some(target)
}

/// Harbor's own content digest of a task (harbor.md 6.1–6.3). Ignore files (`.gitignore` at the
/// top, `.harborignore` below `tests` and `solution`) must be in memory.
///
/// # Errors
/// See [`DigestError`]; never for a tree that [`super::package`] made of an `eval.yaml` case.
pub fn digest(tree: &Tree) -> Result<Digest, DigestError> {
    let mut hasher = Hasher::new();
    for (path, entry) in files(tree)? {
        hasher.update(path.as_str().as_bytes());
        hasher.update(b"\0");
        hasher.update(&entry.content.digest.hex_digits());
        hasher.update(b"\n");
    }
    Ok(hasher.finish())
}

/// The files that count, in order.
fn files(tree: &Tree) -> Result<Vec<(&TreePath, &Entry)>, DigestError> {
    let top = match tree.iter().find(|(path, _)| path.as_str() == GITIGNORE) {
        Some((path, entry)) => Some(load(path, entry, Dialect::Basic)?),
        None => None,
    };
    let harborignore = HarborIgnore::load(tree);
    let mut kept = Vec::new();
    for (path, entry) in tree.iter() {
        let counts = SINGLES.contains(&path.as_str())
            || TREES.contains(&path.first()) && path.as_str() != path.first();
        if !counts || harborignore.excludes(path)? {
            continue;
        }
        let ignored = match &top {
            Some(rules) => rules.verdict(path.as_str(), Dialect::Basic) == Some(true),
            None => is_left_out_by_default(path),
        };
        if !ignored {
            kept.push((path, entry));
        }
    }
    Ok(kept)
}

/// Whether a path is missing in the digest of a task without a `.gitignore` (harbor.md 6.1).
pub(super) fn is_left_out_by_default(path: &TreePath) -> bool {
    let text = path.as_str().as_bytes();
    if text.contains(&b'\n') {
        // Where the patterns do odd things, ask the patterns.
        let rules = Rules::parse(BUILT_IN, Dialect::Basic);
        return rules.is_ok_and(|rules| rules.verdict(path.as_str(), Dialect::Basic) == Some(true));
    }
    let mut end = 0;
    text.split(|byte| *byte == b'/').any(|name| {
        end += name.len() + 1;
        match name.last() {
            Some(b'~') => true,
            Some(b'c') => name.ends_with(b".pyc"),
            Some(b'p') => name.ends_with(b".swp"),
            Some(b'o') => name.ends_with(b".swo"),
            Some(b'e') => name == b".DS_Store",
            // A directory only.
            Some(b'_') => name == b"__pycache__" && end < text.len(),
            _ => false,
        }
    })
}

fn load(path: &TreePath, entry: &Entry, dialect: Dialect) -> Result<Rules, DigestError> {
    let Data::Bytes(bytes) = &entry.content.data else {
        return Err(DigestError::NotLoaded(path.clone()));
    };
    let text = str::from_utf8(bytes).map_err(|_| DigestError::NotText(path.clone()))?;
    Rules::parse(text, dialect).map_err(|BadLine(line)| DigestError::BadIgnoreLine {
        path: path.clone(),
        line,
    })
}

/// The `.harborignore` files of a task, by the directory that they lie in (harbor.md 6.2). Like
/// Harbor, a bad one only matters when something lies beside it that could be ignored.
struct HarborIgnore {
    /// Whether anything at all is called so.
    named: bool,
    files: BTreeMap<String, Result<Rules, DigestError>>,
}

impl HarborIgnore {
    fn load(tree: &Tree) -> Self {
        let (mut named, mut files) = (false, BTreeMap::new());
        for (path, entry) in tree.iter() {
            let mut dots = path.as_str().match_indices('.');
            if !dots.any(|(at, _)| path.as_str()[at..].starts_with(HARBORIGNORE)) {
                continue;
            }
            let names: Vec<&str> = path.components().collect();
            let Some(at) = names.iter().position(|name| *name == HARBORIGNORE) else {
                continue;
            };
            named = true;
            if in_scope(&names[..at]) {
                let rules = if at + 1 == names.len() {
                    load(path, entry, Dialect::Harbor)
                } else {
                    Err(DigestError::IgnoreIsDir(names[..=at].join("/")))
                };
                files.insert(names[..at].join("/"), rules);
            }
        }
        Self { named, files }
    }

    /// Whether the file at `path` is left out. The rules of a directory hold for what is below it;
    /// of several files the innermost one with an opinion decides, for each directory on the way
    /// and for the file itself; what is below an excluded directory can't come back.
    fn excludes(&self, path: &TreePath) -> Result<bool, DigestError> {
        if !self.named {
            return Ok(false);
        }
        let parts: Vec<&str> = path.components().collect();
        let own = parts.iter().position(|name| *name == HARBORIGNORE);
        for length in 2..=own.unwrap_or(parts.len()) {
            let mut here = parts[..length].join("/");
            if length < parts.len() {
                here.push('/');
            }
            let mut excluded = false;
            for above in 1..length {
                let dir = parts[..above].join("/");
                let Some(rules) = self.files.get(&dir) else {
                    continue;
                };
                let rules = rules.as_ref().map_err(Clone::clone)?;
                let below = here.get(dir.len() + 1..).unwrap_or_default();
                excluded = rules.verdict(below, Dialect::Harbor).unwrap_or(excluded);
            }
            if excluded {
                return Ok(true);
            }
        }
        Ok(own.is_some())
    }
}

/// Whether the directory may hold ignore rules that count.
fn in_scope(dir: &[&str]) -> bool {
    matches!(
        dir,
        ["tests" | "solution", ..] | ["steps", _, "tests" | "solution", ..]
    )
}

/// The packages that the text of a `dataset.toml` lists: name and digest as they are written.
///
/// # Errors
/// Why it can't be read.
pub fn listed(text: &str) -> Result<BTreeMap<String, String>, String> {
    let document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let Some(tasks) = document.get("tasks") else {
        return Ok(BTreeMap::new());
    };
    let tasks = tasks
        .as_array_of_tables()
        .ok_or("`tasks` is no list of tables")?;
    tasks
        .iter()
        .map(|task| {
            let text = |key: &str| task.get(key).and_then(Item::as_str).map(str::to_owned);
            let name = text("name").ok_or("a task has no name")?;
            Ok((name, text("digest").unwrap_or_default()))
        })
        .collect()
}

/// The text of `dataset.toml` (harbor.md 6.4): every package, sorted by name, with the digest that
/// Harbor computes for it.
pub fn dataset_toml(name: &str, description: &str, tasks: &[(String, Digest)]) -> String {
    let mut text = Text::default();
    text.table("[dataset]");
    text.line("name", name);
    let description = one_line(description, 500);
    if !description.is_empty() {
        text.line("description", description);
    }
    let tasks: BTreeSet<(&str, Digest)> = tasks
        .iter()
        .map(|(name, digest)| (name.as_str(), *digest))
        .collect();
    for (name, digest) in tasks {
        text.table("[[tasks]]");
        text.line("name", name);
        text.line("digest", digest.to_string());
    }
    text.finish()
}

/// The dataset's content hash, as Harbor computes it for a manifest without files (harbor.md 6.4).
pub fn dataset_digest(tasks: &[Digest]) -> Digest {
    let mut hex: Vec<String> = tasks.iter().map(Digest::hex).collect();
    hex.sort();
    Digest::of(hex.join(",").as_bytes())
}

/// `text` in one line of at most `max` characters, without control characters.
pub(super) fn one_line(text: &str, max: usize) -> String {
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    let line = words.join(" ");
    if line.chars().count() <= max {
        return line;
    }
    let kept: String = line.chars().take(max.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::tree::Mode;

    const VECTORS: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../shared/vectors/harbor-digest"
    );

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = TreeBuilder::new();
        for (path, text) in files {
            tree.insert(
                TreePath::new(path).unwrap(),
                Mode::Regular,
                Content::bytes(text.as_bytes().to_vec()),
            )
            .unwrap();
        }
        tree.finish()
    }

    fn listed(tree: &Tree) -> Vec<&str> {
        files(tree)
            .unwrap()
            .into_iter()
            .map(|(path, _)| path.as_str())
            .collect()
    }

    /// What Harbor sees of a directory: links to files are their content, others are nothing.
    fn read(dir: &Path, prefix: &str, tree: &mut TreeBuilder) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{prefix}{name}");
            if entry.path().is_file() {
                let content = Content::bytes(fs::read(entry.path()).unwrap());
                tree.insert(TreePath::new(&path).unwrap(), Mode::Regular, content)
                    .unwrap();
            } else if entry.file_type().unwrap().is_dir() {
                read(&entry.path(), &format!("{path}/"), tree);
            }
        }
    }

    #[test]
    fn agrees_with_harbor_on_the_vectors() {
        let Ok(expected) = fs::read(format!("{VECTORS}/digests.json")) else {
            println!("skipped: no vectors at {VECTORS}");
            return;
        };
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let done = Command::new("tar")
            .arg("-xzf")
            .arg(format!("{VECTORS}/tasks.tar.gz"))
            .arg("-C")
            .arg(temp.path())
            .status()
            .unwrap();
        assert!(done.success());
        let mut digests = Vec::new();
        for (task, row) in expected["tasks"].as_object().unwrap() {
            let mut builder = TreeBuilder::new();
            read(&temp.path().join(task), "", &mut builder);
            let tree = builder.finish();
            let found: Vec<_> = files(&tree)
                .unwrap()
                .into_iter()
                .map(|(path, entry)| serde_json::json!([path.as_str(), entry.content.digest.hex()]))
                .collect();
            assert_eq!(serde_json::Value::Array(found), row["files"], "{task}");
            let digest = digest(&tree).unwrap();
            assert_eq!(digest.to_string(), row["digest"], "{task}");
            digests.push(digest);
        }
        assert!(digests.len() >= 4);
        if digests.len() == 6 {
            // Only all of them together make the recorded dataset.
            assert_eq!(
                dataset_digest(&digests).to_string(),
                expected["dataset_without_files"]
            );
        }
        assert_eq!(dataset_digest(&[]).to_string(), expected["dataset_empty"]);
        let twice: Vec<Digest> = [digests[0]].into_iter().chain(digests.clone()).collect();
        assert_ne!(dataset_digest(&twice), dataset_digest(&digests));
    }

    #[test]
    fn a_directory_is_no_ignore_file() {
        let outside = tree(&[("environment/.harborignore/x", ""), ("tests/a", "")]);
        assert_eq!(listed(&outside), ["tests/a"]);
        let inside = tree(&[("tests/.harborignore/x", ""), ("tests/a", "")]);
        let expected = DigestError::IgnoreIsDir("tests/.harborignore".to_owned());
        assert_eq!(digest(&inside), Err(expected));
    }

    #[test]
    fn counts_what_harbor_counts() {
        let plain = tree(&[
            (".gitignore.d", ""),
            ("LICENSE", ""),
            ("README.md", ""),
            ("environment/.DS_Store/x", ""),
            ("environment/.harborignore", "*"),
            ("environment/__pycache__", "a file of that name counts"),
            ("environment/a.pyc\n", ""),
            ("environment/b~", ""),
            ("environment/c/__pycache__/x", ""),
            ("environment/d", ""),
            ("task.toml", ""),
            ("tests/e", ""),
        ]);
        assert_eq!(
            listed(&plain),
            [
                "README.md",
                "environment/__pycache__",
                "environment/d",
                "task.toml",
                "tests/e"
            ]
        );
        let ignoring = tree(&[
            (".gitignore", "*.md\n"),
            ("README.md", ""),
            ("environment/x.pyc", "no built-in list beside a .gitignore"),
            ("tests/.harborignore", "sub\n!sub/y\n*.log\n"),
            ("tests/a.log", ""),
            ("tests/deep/.harborignore", "!b.log\n"),
            ("tests/deep/b.log", "the innermost file wins"),
            ("tests/sub/y", ""),
        ]);
        assert_eq!(listed(&ignoring), ["environment/x.pyc", "tests/deep/b.log"]);
    }

    #[test]
    fn says_why_there_is_no_digest() {
        assert_eq!(
            digest(&tree(&[(".gitignore", "ok\n!\n")])),
            Err(DigestError::BadIgnoreLine {
                path: TreePath::new(".gitignore").unwrap(),
                line: "!".to_owned()
            })
        );
        assert!(digest(&tree(&[("environment/.harborignore", "!")])).is_ok());
    }

    #[test]
    fn writes_a_manifest_that_harbor_reads() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let text = dataset_toml(
            "org/set",
            "First line\nsecond\u{7} line",
            &[("org/b".to_owned(), b), ("org/a".to_owned(), a)],
        );
        insta::assert_snapshot!(text, @r#"
        [dataset]
        name = "org/set"
        description = "First line second line"

        [[tasks]]
        name = "org/a"
        digest = "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"

        [[tasks]]
        name = "org/b"
        digest = "sha256:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"
        "#);
        assert_eq!(dataset_toml("o/n", "", &[]), "[dataset]\nname = \"o/n\"\n");
    }

    #[test]
    fn agrees_with_harbor_on_random_trees() {
        // Recorded from Harbor 0.25.0: which files count, or null where it fails.
        let rows: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/compat/harbor-ignore.json")).unwrap();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 60);
        for row in rows {
            let texts: Vec<(&str, &str)> = row["tree"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(path, text)| (path.as_str(), text.as_str().unwrap()))
                .collect();
            let tree = tree(&texts);
            let found = files(&tree).ok().map(|files| {
                let paths = files.iter().map(|(path, _)| path.as_str());
                paths.collect::<Vec<_>>()
            });
            assert_eq!(serde_json::json!(found), row["files"], "{}", row["tree"]);
        }
    }
}
