//! Everything but the case directories that outputs depend on, as one digest.

use super::fingerprint::{Aids, Look, look};
use crate::bundle::Compression;
use crate::dataset::Dataset;
use crate::diag::Levels;
use crate::digest::Hasher;
use crate::fs::Kind;
use crate::path::TreePath;
use crate::target::{self, harbor};

/// Changes when what a build makes of the same inputs changes.
const VERSION: &str = concat!("casepack.state.v3 ", env!("CARGO_PKG_VERSION"));

/// The state of `dataset` and the options: the texts of the configs, what shared sources, judge
/// files and skills look like, options, templates, and what the user made of the rules. `None` when
/// a look can't vouch for one of them.
pub(super) fn of(
    dataset: &Dataset,
    options: &harbor::Options,
    compression: Compression,
    levels: &Levels,
    helpers: &str,
) -> Option<Look> {
    let mut hasher = Hasher::new();
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(VERSION.as_bytes());
    field(target::templates().hex().as_bytes());
    field(format!("{options:?}").as_bytes());
    field(compression.name().as_bytes());
    // What is an error, and what the user allowed, decides what is built.
    field(format!("{levels:?}").as_bytes());
    let sources = &dataset.sources;
    field(sources.project.as_os_str().as_encoded_bytes());
    field(sources.config.as_os_str().as_encoded_bytes());
    for text in &dataset.read {
        field(text.as_bytes());
    }
    // Who looks at the dataset besides: a finding of one that is missing now is none later.
    field(helpers.as_bytes());
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
            // It is told why.
            Err(why) => field(why.to_string().as_bytes()),
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
    for (index, path) in places {
        let root = roots.get(index)?;
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
                let aids = Aids {
                    roots: Some((roots, index)),
                    ..Aids::default()
                };
                let look = look(root, path.as_ref(), aids)
                    .ok()
                    .filter(|look| !look.odd)?;
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
