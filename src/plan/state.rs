//! Everything but the case directories that outputs depend on, as one digest.

use std::fs;

use super::fingerprint::{Look, look};
use crate::dataset::Dataset;
use crate::digest::Hasher;
use crate::fs::Kind;
use crate::path::TreePath;
use crate::target::{self, harbor};

/// Changes when what a build makes of the same inputs changes.
const VERSION: &str = concat!("casepack.state.v1 ", env!("CARGO_PKG_VERSION"));

/// The state of `dataset` and the options: the bytes of the config, what shared sources, judge
/// files and skills look like, options, templates. `None` when a look can't vouch for one of them.
pub(super) fn of(dataset: &Dataset, options: &harbor::Options) -> Option<Look> {
    let mut hasher = Hasher::new();
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(VERSION.as_bytes());
    field(target::templates().hex().as_bytes());
    field(format!("{options:?}").as_bytes());
    let sources = &dataset.sources;
    field(sources.project.as_os_str().as_encoded_bytes());
    for config in [Some(sources.config.clone()), sibling(dataset)]
        .into_iter()
        .flatten()
    {
        // A directory of Harbor tasks has no config of its own.
        if config.is_file() {
            field(&fs::read(&config).ok()?);
        }
    }
    // Texts that were read beside the config.
    field(format!("{:?}", dataset.interception).as_bytes());
    field(format!("{:?}", dataset.description).as_bytes());
    let roots = &sources.roots;
    let mut places: Vec<(usize, Option<TreePath>)> = Vec::new();
    for entry in &dataset.shared {
        field(entry.dest.as_str().as_bytes());
        field(entry.source.as_bytes());
        match roots.resolve(0, None, &entry.source) {
            Ok(found) => places.push((found.root, found.path)),
            Err(_) => field(b"none"),
        }
    }
    places.extend(
        dataset
            .judge_files
            .iter()
            .map(|file| (file.root, Some(file.path.clone()))),
    );
    places.extend(
        dataset
            .skills
            .iter()
            .map(|skill| (skill.root, Some(skill.path.clone()))),
    );
    if let Some((root, path)) = &dataset.interception.handlers_file {
        places.push((*root, Some(path.clone())));
    }
    let mut changed_ns = 0;
    for (root, path) in places {
        let root = roots.get(root)?;
        let stat = path
            .as_ref()
            .map_or(Ok(None), |path| root.stat(path))
            .ok()?;
        match stat {
            Some((Kind::File, stamp)) => {
                changed_ns = changed_ns.max(stamp.ctime_ns);
                field(format!("{stamp:?}").as_bytes());
            }
            Some((Kind::Dir, _)) | None => {
                let look = look(root, path.as_ref()).ok().filter(|look| !look.odd)?;
                changed_ns = changed_ns.max(look.changed_ns);
                field(look.fingerprint.as_bytes());
            }
            Some((Kind::Link | Kind::Special, _)) => return None,
        }
    }
    Some(Look {
        fingerprint: hasher.finish(),
        odd: false,
        changed_ns,
    })
}

/// A `casepack.yaml` beside the config.
fn sibling(dataset: &Dataset) -> Option<std::path::PathBuf> {
    let config = &dataset.sources.config;
    let dir = if config.is_dir() {
        config
    } else {
        config.parent()?
    };
    Some(dir.join("casepack.yaml"))
}
