//! What differs between two builds, two datasets, or a dataset and a build: cases and files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::cases::{self, Build, Crew, Sink, Take, Todo};
use super::inventory::Listing;
use super::output::{Access, Output};
use super::own;
use super::settings::Settings;
use super::verify::{Change, compare, listing};
use super::{Doubt, Error, Request, Select};
use crate::assemble;
use crate::dataset::Mode;
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::event::Stage;
use crate::path::{CaseId, TreePath};
use crate::target::{Target, harbor};
use crate::tree::Tree;

/// One of the two things that are compared.
pub enum Side<'a> {
    /// The outputs in a build's directory. Those that look as they did when they were made are
    /// taken by their record, others are read. Only those of the cases that are selected.
    Built(&'a Path, &'a Select),
    /// What a dataset would be compiled to. `out`, `targets`, `doubt` and `force` of the request
    /// are not looked at.
    Dataset(&'a Request<'a>),
}

/// What differs in one output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The output, below the target's directory.
    pub place: String,
    /// Its files: path, how it differs, digest then and now. `None` where one side can't be read
    /// file by file.
    pub files: Option<Vec<FileChange>>,
}

/// One file that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Its path in the output.
    pub path: TreePath,
    /// How.
    pub change: Change,
    /// On the first side.
    pub old: Option<Digest>,
    /// On the second.
    pub new: Option<Digest>,
}

/// What differs between two sides. Every list is sorted.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Outputs that only the second side has.
    pub added: Vec<String>,
    /// Outputs that only the first side has.
    pub removed: Vec<String>,
    /// Outputs of both that are not the same.
    pub changed: Vec<Changed>,
    /// How many are the same.
    pub same: usize,
    /// Whether it was stopped from outside.
    pub interrupted: bool,
}

/// Compares the outputs of `target`, by place. `None` when a side has errors, which are in `diags`,
/// or was never built for that target.
///
/// # Errors
/// When a directory can't be read.
pub fn diff(
    sides: [&Side<'_>; 2],
    target: Target,
    crew: &Crew<'_>,
    diags: &mut Diagnostics,
) -> Result<Option<Comparison>, Error> {
    let mut opened = Vec::new();
    for side in sides {
        match Opened::new(side, target, crew, diags)? {
            Some(side) => opened.push(side),
            None => return Ok(None),
        }
    }
    let mut comparison = Comparison::default();
    let [old, new] = opened.as_slice() else {
        return Ok(None);
    };
    if crew.is_stopped() {
        comparison.interrupted = true;
        return Ok(Some(comparison));
    }
    let mut differ = BTreeSet::new();
    for (place, id) in &new.ids {
        match old.ids.get(place) {
            None => comparison.added.push(place.as_str().to_owned()),
            Some(other) if other == id => comparison.same += 1,
            Some(_) => {
                differ.insert(place.clone());
            }
        }
    }
    let removed = old.ids.keys().filter(|place| !new.ids.contains_key(*place));
    comparison.removed = removed.map(|place| place.as_str().to_owned()).collect();
    let mut listings = Vec::new();
    for side in [old, new] {
        listings.push(side.listings(&differ, target, crew, diags));
    }
    for place in differ {
        let both = listings[0].get(&place).zip(listings[1].get(&place));
        let files = both.map(|(old, new)| {
            let one = |(path, change, old, new)| FileChange {
                path,
                change,
                old,
                new,
            };
            compare(old, new).into_iter().map(one).collect()
        });
        comparison.changed.push(Changed {
            place: place.as_str().to_owned(),
            files,
        });
    }
    comparison.interrupted = crew.is_stopped();
    Ok(Some(comparison))
}

/// A side, with the digest of each output.
struct Opened<'a> {
    side: &'a Side<'a>,
    /// Of a build.
    output: Option<Output>,
    ids: BTreeMap<TreePath, String>,
}

impl<'a> Opened<'a> {
    fn new(
        side: &'a Side<'a>,
        target: Target,
        crew: &Crew<'_>,
        diags: &mut Diagnostics,
    ) -> Result<Option<Self>, Error> {
        match side {
            Side::Built(out, select) => {
                let _lock = own::lock_to_look(out, crew.stop, crew.observer);
                if !own::is_recorded(out, target.name()) {
                    return Ok(None);
                }
                let output =
                    Output::open(out, target.name(), Access::Look, Doubt::default(), diags)?;
                let places = output.places();
                let ids = crew.map(&places, |(place, case)| {
                    let id = CaseId::new(case).ok()?;
                    if !select.has(&id) {
                        return None;
                    }
                    // What is gone, or is no tree any more, is not there.
                    let there = output.read_id(place)?;
                    Some((place.clone(), there))
                });
                Ok(Some(Self {
                    side,
                    output: Some(output),
                    ids: ids.into_iter().flatten().collect(),
                }))
            }
            Side::Dataset(request) => {
                let ids = Mutex::new(BTreeMap::new());
                let take = |place: &TreePath, tree: &Tree| {
                    let mut ids = ids.lock().unwrap_or_else(PoisonError::into_inner);
                    ids.insert(place.clone(), tree.id().to_string());
                };
                if !make(request, target, &take, crew, diags) {
                    return Ok(None);
                }
                Ok(Some(Self {
                    side,
                    output: None,
                    ids: ids.into_inner().unwrap_or_else(PoisonError::into_inner),
                }))
            }
        }
    }

    /// The files of the outputs at `places`.
    fn listings(
        &self,
        places: &BTreeSet<TreePath>,
        target: Target,
        crew: &Crew<'_>,
        diags: &mut Diagnostics,
    ) -> BTreeMap<TreePath, Listing> {
        if places.is_empty() {
            return BTreeMap::new();
        }
        let request = match (self.side, &self.output) {
            (Side::Built(..), Some(output)) => {
                let places: Vec<&TreePath> = places.iter().collect();
                let ids = &self.ids;
                let all = crew.map(&places, |place| {
                    let known = output.known(place)?;
                    let recorded = ids.get(*place) == Some(&known.tree);
                    let made = recorded.then(|| output.made(place)).flatten();
                    let files = match made {
                        Some(made) => made.output,
                        None => listing(&output.read(place)?.ok()?),
                    };
                    Some(((*place).clone(), files))
                });
                return all.into_iter().flatten().collect();
            }
            (Side::Dataset(request), _) => request,
            (Side::Built(..), None) => return BTreeMap::new(),
        };
        let listings = Mutex::new(BTreeMap::new());
        let take = |place: &TreePath, tree: &Tree| {
            if places.contains(place) {
                let mut listings = listings.lock().unwrap_or_else(PoisonError::into_inner);
                listings.insert(place.clone(), listing(tree));
            }
        };
        // The findings were told the first time.
        make(request, target, &take, crew, &mut diags.fork());
        listings
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the trees of the selected cases and gives them to `take`. Whether there was no error.
fn make(
    request: &Request<'_>,
    target: Target,
    take: &Take<'_>,
    crew: &Crew<'_>,
    diags: &mut Diagnostics,
) -> bool {
    let dataset = request.dataset;
    let Some(common) = assemble::prepare(dataset, &[], &(), diags) else {
        return false;
    };
    let prepared = harbor::prepare(dataset, request.harbor, diags);
    if prepared.is_none() && target == Target::Harbor {
        return false;
    }
    let build = Build {
        dataset,
        common,
        harbor: prepared.map(|prepared| (prepared, request.harbor)),
        sinks: vec![Sink::new(target, None, Settings::default())],
        take: Some(take),
        force: false,
        explain: false,
        now_ns: 0,
    };
    let todo: Vec<Todo<'_>> = request
        .selected()
        .into_iter()
        .map(|id| (id, None))
        .collect();
    let mut all = cases::run(&build, Stage::Check, todo, crew, &diags.fork());
    let mut fine = true;
    let mut inputs = Vec::new();
    for (_, done) in &mut all {
        fine &= !done.failed;
        inputs.extend(done.input.take());
    }
    cases::tell(dataset, &mut all, diags);
    if fine && dataset.mode == Mode::Batch && target == Target::Workspace {
        let text = crate::dataset::batch_yaml(&inputs).into_bytes();
        if let Ok(place) = TreePath::new("_batch") {
            take(&place, &assemble::batch(dataset, &build.common, text));
        }
    }
    fine
}
