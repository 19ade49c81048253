//! Everything but a case's own files that an output is made from, by name: options, the config,
//! templates. Two settings are compared name by name, so that a change can be told.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::assemble::Views;
use crate::dataset::Dataset;
use crate::diag::Source;
use crate::digest::{ActionKey, Digest, Hasher};
use crate::target::{self, Target, harbor};
use crate::yaml::{self, Node, Yaml};

/// Changes when what a target makes of the same inputs changes other than by its templates.
const FORMAT: &str = "1";
/// Blocks of the config that reach an output through the case's files or not at all.
const NOT_BUILT: &[&str] = &["dataset", "hooks", "casepack"];
/// A longer value is told by its digest.
const MAX_SHOWN: usize = 200;

/// Names and values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Settings(pub(super) BTreeMap<String, String>);

impl Settings {
    /// What outputs of `target` depend on besides files.
    pub(super) fn of(target: Target, dataset: &Dataset, options: &harbor::Options) -> Self {
        let mut all = BTreeMap::new();
        all.insert("casepack format".to_owned(), FORMAT.to_owned());
        if target.has_packages() {
            let templates = target::templates().hex();
            all.insert("casepack templates".to_owned(), templates[..16].to_owned());
            for (name, value) in options.values() {
                all.insert(format!("--{name}"), value);
            }
            for path in configs(dataset) {
                // It was read and understood a moment ago; if it is gone now, the next build sees it.
                let text = fs::read_to_string(&path).unwrap_or_default();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if let Ok(document) = yaml::parse(Arc::new(Source::new(name.clone(), text))) {
                    leaves(&name, "", &document.root, &mut all);
                }
            }
        }
        Self(all)
    }

    /// The digest of names and values.
    pub(super) fn id(&self) -> Digest {
        let mut hasher = Hasher::new();
        for (name, value) in &self.0 {
            for text in [name, value] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        hasher.finish()
    }
}

/// The action key of one output (architecture, "plan"): the target, its settings and the trees of
/// the case.
pub(super) fn key(target: Target, settings: &Digest, views: &Views) -> ActionKey {
    let mut hasher = Hasher::new();
    hasher.update(b"casepack.action.v1\0");
    hasher.update(target.name().as_bytes());
    hasher.update(b"\0");
    hasher.update(settings.as_bytes());
    for tree in [&views.workspace, &views.evaluation, &views.task] {
        hasher.update(tree.id().0.as_bytes());
    }
    ActionKey(hasher.finish())
}

/// The files that say how the dataset is to be built, those that are there.
fn configs(dataset: &Dataset) -> impl Iterator<Item = PathBuf> {
    let config = &dataset.sources.config;
    // A directory of Harbor tasks has no config of its own.
    let dir = if config.is_dir() {
        Some(config.as_path())
    } else {
        config.parent()
    };
    let sibling = dir.map(|dir| dir.join("casepack.yaml"));
    [Some(config.clone()), sibling]
        .into_iter()
        .flatten()
        .filter(|path| path.is_file())
}

/// Every value below `node` under the path that leads to it: `eval.yaml judges[0].check`.
fn leaves(file: &str, path: &str, node: &Node, into: &mut BTreeMap<String, String>) {
    match &node.value {
        Yaml::Map(items) if !items.is_empty() => {
            for (key, value) in items {
                let key = shown(&key.value);
                if path.is_empty() && NOT_BUILT.contains(&key.as_str()) {
                    continue;
                }
                let dot = if path.is_empty() { "" } else { "." };
                leaves(file, &format!("{path}{dot}{key}"), value, into);
            }
        }
        Yaml::Seq(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                leaves(file, &format!("{path}[{at}]"), item, into);
            }
        }
        value => {
            let mut text = shown(value);
            // The record lies among outputs, which travel.
            let secret = path.split('.').any(|part| part == "env");
            if secret || text.len() > MAX_SHOWN {
                text = Digest::of(text.as_bytes()).to_string();
            }
            into.insert(format!("{file} {path}"), text);
        }
    }
}

fn shown(value: &Yaml) -> String {
    match value {
        Yaml::Str(text) => text.to_string(),
        other => other.to_tagged_json().to_string(),
    }
}
