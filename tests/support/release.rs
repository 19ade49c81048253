//! Releases made in code, for tests of what happens to them afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use casepack::bundle::{About, Compression, PackageTree, Packed, Packer, RefName};
use casepack::digest::Digest;
use casepack::fs::Root;
use casepack::path::{CaseId, TreePath};
use casepack::tree::{Content, Mode, Tree, TreeBuilder};

/// Paths and contents; one that starts with `#!` may be executed.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// A case: what the agent sees, and what only judges see.
#[derive(Debug, Clone, Default)]
pub(crate) struct Case {
    pub(crate) workspace: Files,
    pub(crate) evaluation: Files,
}

impl Case {
    /// Case `at` of many that differ in a few files and share others.
    pub(crate) fn numbered(at: usize) -> Self {
        let digest = Digest::of(&at.to_le_bytes()).hex();
        Self::default()
            .workspace("input.yaml", format!("number: {at}\n"))
            .workspace("notes.md", format!("{digest}\n").repeat(12))
            .workspace("skill/run.sh", "#!/bin/sh\necho shared\n".repeat(30))
            .workspace("skill/SKILL.md", "shared text\n".repeat(200))
            .evaluation(
                "annotations.yaml",
                format!("dup: {}\n", at.is_multiple_of(2)),
            )
            .evaluation("gold.md", format!("answer {digest}\n"))
    }

    /// Adds a file that the agent sees.
    pub(crate) fn workspace(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.workspace.insert(path.to_owned(), content.into());
        self
    }

    /// Adds a file that only judges see.
    pub(crate) fn evaluation(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.evaluation.insert(path.to_owned(), content.into());
        self
    }

    /// Its package, with an image.
    pub(crate) fn package(&self) -> Tree {
        let mut files = Files::new();
        files.insert("task.toml".to_owned(), b"version = \"1.0\"\n".to_vec());
        files.insert("tests/test.sh".to_owned(), b"#!/bin/sh\ntrue\n".to_vec());
        for (prefix, from) in [
            ("environment", &self.workspace),
            ("tests/evaluation", &self.evaluation),
        ] {
            for (path, content) in from {
                files.insert(format!("{prefix}/{path}"), content.clone());
            }
        }
        tree(&files)
    }
}

/// The files as a tree.
pub(crate) fn tree(files: &Files) -> Tree {
    let mut builder = TreeBuilder::new();
    for (path, content) in files {
        let mode = if content.starts_with(b"#!") {
            Mode::Executable
        } else {
            Mode::Regular
        };
        let path = TreePath::new(path).expect("a path of a test");
        builder
            .insert(path, mode, Content::bytes(content.clone()))
            .expect("no two files at one place");
    }
    builder.finish()
}

/// The tree that is in the directory `dir`.
pub(crate) fn read_tree(dir: &Path) -> Tree {
    Tree::from_dir(&Arc::new(Root::open(dir).unwrap()), None, 0).unwrap()
}

/// Cases `0` to `count`, by id.
pub(crate) fn many(count: usize) -> BTreeMap<String, Case> {
    let case = |at| (format!("case-{at:05}"), Case::numbered(at));
    (0..count).map(case).collect()
}

/// Packs the cases into the store root `root`, as the ref `latest`.
pub(crate) fn pack(
    root: &Path,
    cases: &BTreeMap<String, Case>,
    compression: Compression,
    jobs: usize,
) -> Packed {
    let temp = root.with_extension("temp");
    for dir in [root, &temp] {
        fs::create_dir_all(dir).expect("it can be made");
    }
    let latest = RefName::new("latest").expect("a name");
    let packer = Packer::new(root, &temp, latest, compression).expect("it can be used");
    for (id, case) in cases {
        let id = CaseId::new(id).expect("an id of a test");
        let tree_of_package = case.package();
        let package = PackageTree {
            name: &id,
            task: "tests/case",
            harbor: tree_of_package.id().0,
            tree: &tree_of_package,
            listing: None,
        };
        packer
            .add(
                &id,
                &tree(&case.workspace),
                &tree(&case.evaluation),
                &package,
            )
            .expect("there is room");
    }
    let about = About {
        name: "made in code".to_owned(),
        ..About::default()
    };
    packer
        .finish(
            &about,
            Digest::of(b"templates"),
            jobs,
            &AtomicBool::new(false),
        )
        .expect("it can be packed")
}
