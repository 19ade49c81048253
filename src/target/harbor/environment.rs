//! `environment/`: the workspace as Harbor gets it to the agent (policy 22, harbor.md 4).
//!
//! Owns the two modes: with an image the directory is the workspace, which Harbor uploads; without
//! one it is the context of a generated Dockerfile. Refuses to know verifiers.

use std::collections::BTreeSet;

use super::options::Options;
use crate::dataset::Output;
use crate::path::TreePath;
use crate::tree::Tree;

/// At these names at the top of `environment/` Harbor builds instead of uploading (harbor.md 0.3).
const BUILD_FILES: [&str; 2] = ["Dockerfile", "docker-compose.yaml"];

/// Names at the top of the workspace that stop Harbor from uploading it.
pub(super) fn blocking_names(workspace: &Tree) -> BTreeSet<&str> {
    workspace
        .iter()
        .map(|(path, _)| path.first())
        .filter(|name| BUILD_FILES.contains(name))
        .collect()
}

/// The generated Dockerfile: base image, workspace, directories of declared outputs.
pub(super) fn dockerfile(options: &Options, workspace: &Tree, outputs: &[Output]) -> String {
    let workdir = &options.workdir;
    let mut lines = vec![
        format!("FROM {}", options.base_image),
        format!("WORKDIR {workdir}"),
    ];
    if !workspace.is_empty() {
        lines.push("COPY workspace/ .".to_owned());
    }
    // In the form that no shell reads, so that a name means itself.
    let directories: BTreeSet<String> = outputs
        .iter()
        .filter_map(output_directory)
        .filter(|path| !is_below_a_file(path, workspace))
        .map(|path| format!("{workdir}/{path}"))
        .collect();
    if !directories.is_empty() {
        let words = ["mkdir", "-p", "--"].into_iter().map(str::to_owned);
        lines.push(run(words.chain(directories)));
    }
    if let Some(user) = &options.agent_user {
        let words = ["chown", "-R", user, workdir].map(str::to_owned);
        lines.push(run(words.into_iter()));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn run(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words
        .map(|word| serde_json::Value::String(word).to_string())
        .collect();
    format!("RUN [{}]", words.join(", "))
}

/// The directory that is to exist for an output: itself, or what holds it when its name has a
/// suffix, as agent-eval-harness has it (3.1).
fn output_directory(output: &Output) -> Option<TreePath> {
    let path = output.path.as_ref()?;
    let name = path.name();
    let suffix = name
        .rfind('.')
        .is_some_and(|dot| dot > 0 && dot + 1 < name.len());
    if output.directory || !suffix {
        Some(path.clone())
    } else {
        path.parent()
    }
}

/// Whether `path` or something above it is a file, so that there can be no directory.
fn is_below_a_file(path: &TreePath, tree: &Tree) -> bool {
    let mut at = Some(path.clone());
    while let Some(place) = at {
        if tree.get(&place).is_some() {
            return true;
        }
        at = place.parent();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Content, Mode, TreeBuilder};

    fn tree(paths: &[&str]) -> Tree {
        let mut tree = TreeBuilder::new();
        for path in paths {
            let path = TreePath::new(path).unwrap();
            tree.insert(path, Mode::Regular, Content::bytes(&b""[..]))
                .unwrap();
        }
        tree.finish()
    }

    fn output(path: &str) -> Output {
        Output {
            directory: path.ends_with('/'),
            path: Some(TreePath::new(path.trim_end_matches('/')).unwrap()),
            ..Output::default()
        }
    }

    #[test]
    fn builds_what_the_agent_needs() {
        let outputs = [
            "out/",
            "v1.2/",
            "report.html",
            "a/b.md",
            ".hidden",
            "in/x",
            "we ird\"$HOME\n/",
        ]
        .map(output);
        let options = Options {
            agent_user: Some("1000".to_owned()),
            ..Options::default()
        };
        insta::assert_snapshot!(
            dockerfile(&options, &tree(&["in", "input.yaml"]), &outputs),
            @r#"
        FROM python:3.12-slim
        WORKDIR /workspace
        COPY workspace/ .
        RUN ["mkdir", "-p", "--", "/workspace/.hidden", "/workspace/a", "/workspace/out", "/workspace/v1.2", "/workspace/we ird\"$HOME\n"]
        RUN ["chown", "-R", "1000", "/workspace"]
        "#
        );
        insta::assert_snapshot!(
            dockerfile(&Options::default(), &tree(&[]), &[]),
            @r"
        FROM python:3.12-slim
        WORKDIR /workspace
        "
        );
    }

    #[test]
    fn knows_the_names_that_stop_an_upload() {
        let names = [
            "Dockerfile/x",
            "a/Dockerfile",
            "dockerfile",
            "docker-compose.yml",
        ];
        assert_eq!(
            blocking_names(&tree(&names))
                .into_iter()
                .collect::<Vec<_>>(),
            ["Dockerfile"]
        );
        assert_eq!(blocking_names(&tree(&["docker-compose.yaml"])).len(), 1);
    }
}
