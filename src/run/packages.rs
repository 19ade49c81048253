//! Packages as the input of a run: what a build, a pull or somebody else made.
//!
//! Owns what a directory of packages is, and what packages say about the whole they belong to.
//! Refuses to know datasets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use toml_edit::{DocumentMut, Item, TableLike};

use super::PackageRef;
use crate::dataset::Threshold;
use crate::fs::Root;
use crate::path::{CaseId, TreePath};

const TASK: &str = "task.toml";
/// Configs: where one is, the directory is a dataset and not only packages.
const CONFIGS: [&str; 2] = ["eval.yaml", "casepack.yaml"];
/// The largest file that is read here.
const MAX: u64 = 16 << 20;

/// Packages that were found.
#[derive(Debug)]
pub struct Packages {
    /// What they were built from, as they say; the directory's name where they do not.
    pub name: String,
    /// Sorted by id.
    pub packages: Vec<PackageRef>,
    /// Directories whose name can not be that of a case, with the reason.
    pub unusable: Vec<(PathBuf, String)>,
    /// `thresholds` of the dataset, as casepack's packages carry them.
    pub thresholds: BTreeMap<String, Threshold>,
}

/// The packages that `path` is, or holds: a task directory (or its `task.toml`), a directory of
/// them, or a `dist` with such a directory `harbor`. `None`: it is something else.
pub fn find(path: &Path) -> Option<Packages> {
    let is_task = path.file_name().is_some_and(|name| name == TASK) && path.is_file();
    let path = if is_task { path.parent()? } else { path };
    let dirs = if path.join(TASK).is_file() {
        vec![path.to_owned()]
    } else {
        if CONFIGS
            .iter()
            .any(|config| path.join(config).symlink_metadata().is_ok())
        {
            return None;
        }
        let own = children(path);
        if own.is_empty() {
            children(&path.join("harbor"))
        } else {
            own
        }
    };
    if dirs.is_empty() {
        return None;
    }
    let whole = dirs.first().and_then(|dir| {
        if dirs.len() == 1 {
            Some(dir.as_path())
        } else {
            dir.parent()
        }
    });
    let mut name = whole.and_then(Path::file_name).map_or_else(
        || "packages".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let mut found = Packages {
        name: String::new(),
        packages: Vec::new(),
        unusable: Vec::new(),
        thresholds: BTreeMap::new(),
    };
    let mut taken = BTreeSet::new();
    for (at, dir) in dirs.iter().enumerate() {
        let told = Told::read(dir);
        let of_dir = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // Two packages may say that they are of one case; their directories differ.
        let id = told.case.filter(|id| !taken.contains(id)).unwrap_or(of_dir);
        match CaseId::new(&id) {
            Ok(case) if taken.insert(id) => found.packages.push(PackageRef {
                id: case,
                dir: dir.clone(),
                views: None,
            }),
            Ok(_) => found
                .unusable
                .push((dir.clone(), "another package has its name".to_owned())),
            Err(why) => found.unusable.push((dir.clone(), why.to_string())),
        }
        if at == 0
            && let Some(dataset) = told.dataset
        {
            name = dataset;
        }
        found.thresholds.extend(told.thresholds);
    }
    found.name = name;
    found.packages.sort_by(|a, b| a.id.cmp(&b.id));
    Some(found)
}

/// The task directories directly below `dir`, sorted.
fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .filter(|dir| dir.join(TASK).symlink_metadata().is_ok())
        .collect();
    dirs.sort();
    dirs
}

/// What a package says about itself. What can't be read says nothing: running it tells why.
#[derive(Default)]
struct Told {
    case: Option<String>,
    dataset: Option<String>,
    thresholds: BTreeMap<String, Threshold>,
}

impl Told {
    fn read(dir: &Path) -> Self {
        let mut told = Self::default();
        let Ok(root) = Root::open(dir) else {
            return told;
        };
        let text = |path: &str| {
            let (bytes, _) = root.read(&TreePath::new(path).ok()?, MAX).ok()?;
            String::from_utf8(bytes).ok()
        };
        let Some(document) = text(TASK).and_then(|text| text.parse::<DocumentMut>().ok()) else {
            return told;
        };
        let metadata = document.get("metadata").and_then(Item::as_table_like);
        let of = |metadata: &dyn TableLike, key: &str| {
            metadata.get(key).and_then(Item::as_str).map(str::to_owned)
        };
        let Some(metadata) = metadata else {
            return told;
        };
        if of(metadata, "generated_by").as_deref() != Some("casepack") {
            return told;
        }
        told.case = of(metadata, "case_id");
        told.dataset = of(metadata, "dataset");
        let steps = document.get("steps").and_then(Item::as_array_of_tables);
        let steps = steps
            .into_iter()
            .flatten()
            .filter_map(|step| step.get("name")?.as_str());
        let configs = steps.map(|step| format!("steps/{step}/tests/config.json"));
        for config in std::iter::once("tests/config.json".to_owned()).chain(configs) {
            let config = text(&config).and_then(|text| serde_json::from_str::<Value>(&text).ok());
            let thresholds = config.as_ref().and_then(|config| config.get("thresholds"));
            for (judge, bounds) in thresholds.and_then(Value::as_object).into_iter().flatten() {
                let bound = |name: &str| bounds.get(name).and_then(Value::as_f64);
                let bounds = Threshold {
                    min_pass_rate: bound("min_pass_rate"),
                    min_mean: bound("min_mean"),
                    max_error_rate: bound("max_error_rate"),
                    min_win_rate: bound("min_win_rate"),
                };
                told.thresholds.insert(judge.clone(), bounds);
            }
        }
        told
    }
}
