//! Outputs against what was recorded of them: read and hashed, file by file.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use super::cases::Crew;
use super::inventory::Listing;
use super::output::{Access, Output};
use super::{Doubt, Error, own};
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::event::{Event, Stage};
use crate::path::{CaseId, TreePath};
use crate::target::{Target, harbor};
use crate::tree::{Mode, Tree};

/// What was read, and what is not as it was built.
#[derive(Debug, Default)]
pub struct Verified {
    /// The targets that are recorded there.
    pub targets: Vec<Target>,
    /// Outputs that were looked for.
    pub outputs: usize,
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sorted by target and place.
    pub differences: Vec<Difference>,
    /// Whether it was stopped from outside: some outputs were not read.
    pub interrupted: bool,
}

/// One thing that is not as it was built.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Of which target.
    pub target: Target,
    /// The output, below `OUT/<target>/`.
    pub place: String,
    /// The file in it; `None` where it is about the whole output.
    pub path: Option<String>,
    /// How it differs.
    pub change: Change,
    /// What was recorded: a digest.
    pub recorded: Option<String>,
    /// What is there.
    pub found: Option<String>,
}

/// How a file, or an output, differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It is there and should not be.
    Added,
    /// It should be there and is not.
    Removed,
    /// Its content is another.
    Content,
    /// Its executable bit is another.
    Mode,
    /// It is no regular file, or can't be read; `found` says why.
    Unusable,
    /// The digest in `dataset.toml` is not that of the package.
    Listed,
}

impl Change {
    /// The word in documents and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Content => "content",
            Self::Mode => "mode",
            Self::Unusable => "unusable",
            Self::Listed => "listed",
        }
    }
}

/// Reads every output of the build in `out` and compares it with the record, and Harbor packages
/// with `dataset.toml`. `None` when nothing is recorded there.
///
/// # Errors
/// When the directory can't be read.
pub fn verify(
    out: &Path,
    crew: &Crew<'_>,
    diags: &mut Diagnostics,
) -> Result<Option<Verified>, Error> {
    let _lock = own::lock_to_look(out, crew.stop, crew.observer);
    let mut verified = Verified::default();
    for &target in Target::ALL {
        // A bundle is a store, and verified as one.
        if target == Target::Bundle || !own::is_recorded(out, target.name()) {
            continue;
        }
        let output = Output::open(out, target.name(), Access::Look, Doubt::default(), diags)?;
        verified.targets.push(target);
        of_target(target, &output, crew, &mut verified);
    }
    verified.differences.sort();
    Ok((!verified.targets.is_empty()).then_some(verified))
}

fn of_target(target: Target, output: &Output, crew: &Crew<'_>, verified: &mut Verified) {
    let places = output.places();
    crew.observer.on(Event::StageStarted {
        stage: Stage::Verify,
        total: places.len(),
    });
    let each = crew.map(&places, |(place, case)| {
        if crew.is_stopped() {
            return None;
        }
        let one = of_output(target, output, place);
        if let Ok(case) = CaseId::new(case) {
            crew.observer.on(Event::CaseChecked { case: &case });
        }
        Some(one)
    });
    crew.observer.on(Event::StageFinished {
        stage: Stage::Verify,
    });
    let mut listed = BTreeMap::new();
    for one in each {
        let Some(one) = one else {
            verified.interrupted = true;
            continue;
        };
        verified.outputs += 1;
        verified.files += one.files;
        verified.bytes += one.bytes;
        verified.differences.extend(one.differences);
        listed.extend(one.listed);
    }
    let before = verified.differences.len();
    if target == Target::Harbor && !verified.interrupted {
        of_list(output, &listed, &mut verified.differences);
    }
    let told = verified.differences.len() > before;
    for (name, recorded) in output.beside() {
        // What differs in that one was told line by line.
        if target == Target::Harbor && name == "dataset.toml" && told {
            continue;
        }
        let (change, found) = match output.file(&name) {
            Ok(bytes) => (Change::Content, Digest::of(&bytes).to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (Change::Removed, error.to_string())
            }
            Err(error) => (Change::Unusable, error.to_string()),
        };
        if found != recorded {
            verified.differences.push(Difference {
                target,
                place: name,
                path: None,
                change,
                recorded: Some(recorded),
                found: Some(found),
            });
        }
    }
    for name in output.foreign() {
        verified.differences.push(Difference {
            target,
            place: name,
            path: None,
            change: Change::Added,
            recorded: None,
            found: None,
        });
    }
}

/// What was found about one output.
#[derive(Default)]
struct One {
    files: u64,
    bytes: u64,
    differences: Vec<Difference>,
    /// Harbor: the package's name and the digest of what is there.
    listed: Option<(String, Digest)>,
}

fn of_output(target: Target, output: &Output, place: &TreePath) -> One {
    let mut one = One::default();
    let differ =
        |path: Option<&str>, change, recorded: Option<String>, found: Option<String>| Difference {
            target,
            place: place.as_str().to_owned(),
            path: path.map(str::to_owned),
            change,
            recorded,
            found,
        };
    let Some(known) = output.known(place) else {
        return one;
    };
    let tree = match output.read(place) {
        None => {
            one.differences
                .push(differ(None, Change::Removed, Some(known.tree), None));
            return one;
        }
        Some(Err(bad)) => {
            for bad in bad {
                // The place itself is said already.
                let inside = bad.shown.strip_prefix(place.as_str()).unwrap_or(&bad.shown);
                let inside = inside.trim_start_matches('/');
                one.differences.push(differ(
                    Some(inside).filter(|inside| !inside.is_empty()),
                    Change::Unusable,
                    None,
                    Some(bad.why),
                ));
            }
            return one;
        }
        Some(Ok(tree)) => tree,
    };
    (one.files, one.bytes) = (tree.len() as u64, tree.bytes());
    if target == Target::Harbor
        && let Some((name, _)) = known.task
        && let Ok(digest) = harbor::digest(&tree)
    {
        one.listed = Some((name, digest));
    }
    let found = tree.id().to_string();
    if found == known.tree {
        return one;
    }
    let Some(made) = output.made(place) else {
        // Which file it is was not written down, or that was damaged.
        one.differences
            .push(differ(None, Change::Content, Some(known.tree), Some(found)));
        return one;
    };
    for (path, change, recorded, found) in compare(&made.output, &listing(&tree)) {
        let text = |digest: Option<Digest>| digest.map(|digest| digest.to_string());
        let path = Some(path.as_str());
        one.differences
            .push(differ(path, change, text(recorded), text(found)));
    }
    one
}

/// The files of a tree, without their content.
pub(super) fn listing(tree: &Tree) -> Listing {
    let item = |(path, entry): (&TreePath, &crate::tree::Entry)| {
        let content = &entry.content;
        (path.clone(), (entry.mode, content.digest, content.size))
    };
    tree.iter().map(item).collect()
}

/// What differs in `new` from `old`, by path.
pub(super) fn compare(
    old: &Listing,
    new: &Listing,
) -> Vec<(TreePath, Change, Option<Digest>, Option<Digest>)> {
    let mut all: Vec<&TreePath> = old.keys().chain(new.keys()).collect();
    all.sort();
    all.dedup();
    let content = |entry: Option<&(Mode, Digest, u64)>| entry.map(|(_, digest, _)| *digest);
    let mut differences = Vec::new();
    for path in all {
        let (old, new) = (old.get(path), new.get(path));
        let change = match (old, new) {
            (None, Some(_)) => Change::Added,
            (Some(_), None) => Change::Removed,
            (Some((_, a, _)), Some((_, b, _))) if a != b => Change::Content,
            (Some((a, ..)), Some((b, ..))) if a != b => Change::Mode,
            _ => continue,
        };
        differences.push((path.clone(), change, content(old), content(new)));
    }
    differences
}

/// `dataset.toml` against the packages that are there.
fn of_list(
    output: &Output,
    packages: &BTreeMap<String, Digest>,
    differences: &mut Vec<Difference>,
) {
    let mut add = |path: Option<String>, change, recorded: Option<String>, found| {
        differences.push(Difference {
            target: Target::Harbor,
            place: "dataset.toml".to_owned(),
            path,
            change,
            recorded,
            found,
        });
    };
    let listed = match output.file("dataset.toml") {
        Ok(text) => harbor::listed(&String::from_utf8_lossy(&text)),
        Err(why) => return add(None, Change::Unusable, None, Some(why.to_string())),
    };
    let listed = match listed {
        Ok(listed) => listed,
        Err(why) => return add(None, Change::Unusable, None, Some(why)),
    };
    for (name, digest) in packages {
        match listed.get(name) {
            Some(listed) if *listed == digest.to_string() => {}
            Some(listed) => add(
                Some(name.clone()),
                Change::Listed,
                Some(listed.clone()),
                Some(digest.to_string()),
            ),
            None => add(
                Some(name.clone()),
                Change::Removed,
                None,
                Some(digest.to_string()),
            ),
        }
    }
    for (name, digest) in &listed {
        if !packages.contains_key(name) {
            add(
                Some(name.clone()),
                Change::Added,
                Some(digest.clone()),
                None,
            );
        }
    }
}
