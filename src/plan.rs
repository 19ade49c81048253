//! Builds: from a dataset to outputs that are whole, case by case.
//!
//! Owns what is built for which case, in parallel, and what becomes of earlier outputs. Refuses to
//! know the command line.
//! Invariants: crash-safe (an output appears under its name by a rename, whole), owns-what-it-wrote
//! (only what the record says and what is unchanged is replaced or removed), reproducible (results
//! are put in the order of case ids, whatever the threads do).

pub(crate) mod fingerprint;
mod output;
mod state;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use globset::{Glob, GlobSet, GlobSetBuilder};
use rayon::prelude::*;

use self::fingerprint::{Look, look};
use self::output::{Output, Placed};
use crate::assemble::{self, Common, Views};
use crate::dataset::{self, Case, Coverage, Dataset, Mode};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::digest::Digest;
use crate::event::{Event, Observer, Stage};
use crate::path::{CaseId, TreePath};
use crate::target::{Target, evalhub, harbor};
use crate::tree::Tree;
use crate::yaml::Yaml;

/// Which cases: those whose id matches one of the globs; all without globs.
#[derive(Debug, Clone, Default)]
pub struct Select {
    globs: Option<GlobSet>,
    /// `(i, n)`: part `i` of `n`, counted from 1.
    shard: Option<(u64, u64)>,
}

impl Select {
    /// The cases that match one of `globs` (`*`, `?`, `[…]`, `{a,b}`); every case when there is none.
    ///
    /// # Errors
    /// The first glob that is none, and why.
    pub fn new(globs: &[String]) -> Result<Self, (String, String)> {
        if globs.is_empty() {
            return Ok(Self::default());
        }
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(Glob::new(glob).map_err(|error| (glob.clone(), error.kind().to_string()))?);
        }
        let set = set
            .build()
            .map_err(|error| (globs.join(" "), error.to_string()))?;
        Ok(Self {
            globs: Some(set),
            shard: None,
        })
    }

    /// Only part `index` (from 1) of `count`: a stable share by the digest of the case id, so that
    /// a case stays in its part when others come and go.
    #[must_use]
    pub fn shard(mut self, index: u64, count: u64) -> Self {
        self.shard = Some((index, count.max(1)));
        self
    }

    /// Whether it is every case.
    pub fn is_all(&self) -> bool {
        self.globs.is_none() && self.shard.is_none()
    }

    /// Whether `case` is one of them.
    pub fn has(&self, case: &CaseId) -> bool {
        let in_shard = self.shard.is_none_or(|(index, count)| {
            let digest = Digest::of(case.as_str().as_bytes());
            let head = digest
                .as_bytes()
                .iter()
                .take(8)
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            head % count == index - 1
        });
        in_shard
            && self
                .globs
                .as_ref()
                .is_none_or(|globs| globs.is_match(case.as_str()))
    }
}

/// What is to be built.
pub struct Request<'a> {
    /// The dataset.
    pub dataset: &'a Dataset,
    /// The targets, each once.
    pub targets: &'a [Target],
    /// The output directory; made when it is missing.
    pub out: &'a Path,
    /// Threads.
    pub jobs: usize,
    /// Which cases.
    pub select: &'a Select,
    /// Options of the Harbor target.
    pub harbor: &'a harbor::Options,
    /// Whether outputs that casepack did not write, or that were changed since, are replaced.
    pub force: bool,
    /// Looks at the dataset once more before anything is read for an output; not asked when there
    /// is nothing to do.
    pub vet: &'a dyn Fn(&mut Diagnostics),
    /// Set from outside to stop after the cases in hand.
    pub stop: &'a AtomicBool,
}

/// What was done. Every list is sorted by case id.
#[derive(Debug, Default)]
pub struct Summary {
    /// Cases of which at least one output was written.
    pub built: Vec<CaseId>,
    /// Cases whose outputs were there already.
    pub unchanged: Vec<CaseId>,
    /// Outputs of cases that are gone: `harbor/case-007`.
    pub removed: Vec<String>,
    /// Cases with an error in the diagnostics; what was built of them before is still there.
    pub failed: Vec<CaseId>,
    /// Files written.
    pub files: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Whether it was stopped from outside; a rerun does the rest.
    pub interrupted: bool,
    /// The dataset's identity, when every case of it is built (bundle-format, "Digests").
    pub dataset_digest: Option<Digest>,
    /// The Harbor packages that are in place: case and directory.
    pub packages: Vec<(CaseId, PathBuf)>,
}

/// A failure that is not the dataset's: the output directory can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {path}", path = path.display())]
pub struct Error {
    /// What was being done, as `can not create`.
    pub doing: &'static str,
    /// To what.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

/// One case, built or not.
#[derive(Default)]
struct Done {
    diags: Diagnostics,
    placed: Vec<Placed>,
    package: Option<Package>,
    coverage: Option<Coverage>,
    /// In batch mode: the case's part of the one `batch.yaml`.
    input: Option<Yaml>,
    failed: bool,
    error: Option<Error>,
    skipped: bool,
}

/// A Harbor package that is in place.
struct Package {
    place: TreePath,
    name: String,
    digest: Digest,
}

/// Everything that the cases of one build share.
struct Build<'a> {
    dataset: &'a Dataset,
    common: Common<'a>,
    harbor: Option<(harbor::Prepared, &'a harbor::Options)>,
    outputs: Vec<(Target, Option<Output>)>,
    force: bool,
    /// The file system's time before anything was read.
    now_ns: i128,
}

/// A case that is to be done, and what its directory looked like.
type Todo<'a> = (&'a CaseId, Option<Look>);

/// Reads and assembles every selected case and makes its Harbor package, without writing anything.
pub fn check(
    dataset: &Dataset,
    select: &Select,
    options: &harbor::Options,
    jobs: usize,
    stop: &AtomicBool,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Summary {
    let mut summary = Summary::default();
    let Some(common) = assemble::prepare(dataset, &[], diags) else {
        return summary;
    };
    let prepared = harbor::prepare(dataset, options, diags);
    let build = Build {
        dataset,
        common,
        harbor: prepared.map(|prepared| (prepared, options)),
        outputs: vec![(Target::Harbor, None)],
        force: false,
        now_ns: 0,
    };
    let todo: Vec<Todo<'_>> = dataset
        .cases
        .iter()
        .filter(|id| select.has(id))
        .map(|id| (id, None))
        .collect();
    let crew = Crew {
        jobs,
        stop,
        observer,
    };
    let all = run(&build, Stage::Check, todo, &crew, diags);
    for (id, done) in all {
        if done.skipped {
            summary.interrupted = true;
        } else if done.failed {
            summary.failed.push(id);
        } else {
            summary.unchanged.push(id);
        }
    }
    summary
}

/// Builds the selected cases. An error of the dataset is in `diags`, and the cases that it touches
/// in `Summary::failed`.
///
/// Incremental: a case whose directory and outputs look as they did when its outputs were made is
/// not read, as long as everything else is the same too; when that holds for all cases, no file of
/// the dataset but its config is opened and nothing is written.
///
/// # Errors
/// When the output directory can't be used; what is in place by then stays.
pub fn build(
    request: &Request<'_>,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Result<Summary, Error> {
    let dataset = request.dataset;
    let mut summary = Summary::default();
    let selected: Vec<&CaseId> = dataset
        .cases
        .iter()
        .filter(|id| request.select.has(id))
        .collect();
    refuse_case(dataset, request.out)?;
    let out = output::create(request.out)?;
    let lock = output::lock(&out, observer)?;
    let mut harbor = None;
    if request.targets.contains(&Target::Harbor) {
        let Some(prepared) = harbor::prepare(dataset, request.harbor, diags) else {
            summary.failed = selected.into_iter().cloned().collect();
            return Ok(summary);
        };
        harbor = Some((prepared, request.harbor));
    }
    let mut outputs = Vec::new();
    for &target in request.targets {
        outputs.push((target, Some(Output::open(&out, target.name(), diags)?)));
    }
    let crew = Crew {
        jobs: request.jobs,
        stop: request.stop,
        observer,
    };
    let state = state::of(dataset, request.harbor);
    let state_hex = state.as_ref().map(|state| state.fingerprint.hex());
    let (current, todo) = look_at_all(
        dataset,
        &selected,
        &outputs,
        harbor.as_ref(),
        state_hex.as_deref(),
        &crew,
    );

    let mut all: Vec<(CaseId, Done)> = current;
    let mut clean = true;
    let reads = !todo.is_empty();
    let mut inputs = Vec::new();
    if reads {
        // After the looks, before anything is read: what changes from now on carries a later time.
        let now_ns = output::now_ns(&out)?;
        (request.vet)(diags);
        if diags.has_errors() {
            summary.failed = selected.into_iter().cloned().collect();
            return Ok(summary);
        }
        let before = diags.len();
        let Some(common) = assemble::prepare(dataset, std::slice::from_ref(&out), diags) else {
            summary.failed = selected.into_iter().cloned().collect();
            return Ok(summary);
        };
        let quiet = diags.len() == before;
        clean = quiet && state.is_some_and(|state| state.settled(now_ns));
        let build = Build {
            dataset,
            common,
            harbor,
            outputs,
            force: request.force,
            now_ns,
        };
        all.extend(run(&build, Stage::Build, todo, &crew, diags));
        all.sort_by(|a, b| a.0.cmp(&b.0));
        for (_, done) in &mut all {
            inputs.extend(done.input.take());
        }
        // Without one of its cases a batch would be another one: the earlier one stays.
        let complete = !all.iter().any(|(_, done)| done.skipped || done.failed);
        if dataset.mode == Mode::Batch && complete {
            batch(&build, &inputs, request.force, diags, &mut summary)?;
        }
        outputs = build.outputs;
    }
    if let Some(error) = all.iter_mut().find_map(|(_, done)| done.error.take()) {
        return Err(error);
    }
    let mut tasks = Vec::new();
    let mut made = BTreeSet::new();
    for (id, done) in &all {
        if done.skipped {
            summary.interrupted = true;
            continue;
        }
        if done.failed {
            summary.failed.push(id.clone());
            continue;
        }
        made.insert(id.as_str());
        let written = done
            .placed
            .iter()
            .any(|placed| matches!(placed, Placed::Written(_)));
        for stats in done.placed.iter().map(Placed::stats) {
            summary.files += stats.files;
            summary.bytes += stats.bytes;
        }
        if let Some(package) = &done.package {
            let dir = out.join(Target::Harbor.name()).join(package.place.as_str());
            summary.packages.push((id.clone(), dir));
            tasks.push((id.clone(), package.name.clone(), package.digest));
        }
        if written {
            summary.built.push(id.clone());
        } else {
            summary.unchanged.push(id.clone());
        }
    }
    for (target, output) in outputs {
        let Some(mut output) = output else { continue };
        if target == Target::Harbor {
            output.record_tasks(&tasks);
            let name = harbor::dataset_name(dataset, request.harbor);
            let text = harbor::dataset_toml(&name, &dataset.description, &output.tasks(dataset));
            output.write("dataset.toml", text.as_bytes())?;
        }
        if target == Target::EvalHub {
            let config = &dataset.sources.config;
            let text = fs::read(config).map_err(|source| Error {
                doing: "can not read",
                path: config.clone(),
                source,
            })?;
            output.write("eval.yaml", &text)?;
        }
        if !summary.interrupted {
            let gone = output.remove_gone(dataset, diags)?;
            summary.removed.extend(
                gone.into_iter()
                    .map(|name| format!("{}/{name}", target.name())),
            );
        }
        if reads {
            output.set_state(state_hex.as_deref().filter(|_| clean), &made);
        }
        if summary.failed.is_empty() && !summary.interrupted && request.select.is_all() {
            summary.dataset_digest = summary
                .dataset_digest
                .or_else(|| output.dataset_digest(dataset));
        }
        output.finish()?;
    }
    drop(lock);
    Ok(summary)
}

/// An output in a case directory would be part of the case next time.
fn refuse_case(dataset: &Dataset, out: &Path) -> Result<(), Error> {
    let sources = &dataset.sources;
    let home = sources.roots.absolute(sources.dataset_root, None);
    // It may not be there yet.
    let real = out.ancestors().find_map(|above| {
        let below = out.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(below))
    });
    let below = home
        .as_ref()
        .and_then(|home| real.as_ref()?.strip_prefix(home).ok());
    let first = below.and_then(|below| below.components().next()?.as_os_str().to_str());
    let is_case =
        first.is_some_and(|first| dataset.cases.iter().any(|case| case.as_str() == first));
    if !is_case {
        return Ok(());
    }
    Err(Error {
        doing: "can not build into",
        path: out.to_owned(),
        source: io::Error::other(
            "it lies in a case of the dataset: name another directory with -o",
        ),
    })
}

/// More threads than this only cost; a large `-j` means "as many as make sense".
const MAX_THREADS: usize = 256;

/// How the cases are worked on.
struct Crew<'a> {
    jobs: usize,
    stop: &'a AtomicBool,
    observer: &'a dyn Observer,
}

impl Crew<'_> {
    /// `work` for every item, in parallel; the results in the order of the items.
    fn map<T: Sync, R: Send>(&self, items: &[T], work: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.jobs.clamp(1, MAX_THREADS).min(items.len().max(1)))
            .build();
        match pool {
            Ok(pool) => pool.install(|| items.par_iter().map(&work).collect()),
            // No threads to be had: do it here.
            Err(_) => items.iter().map(&work).collect(),
        }
    }
}

/// Which cases are current, and which are to be done.
fn look_at_all<'a>(
    dataset: &Dataset,
    selected: &[&'a CaseId],
    outputs: &[(Target, Option<Output>)],
    harbor: Option<&(harbor::Prepared, &harbor::Options)>,
    state: Option<&str>,
    crew: &Crew<'_>,
) -> (Vec<(CaseId, Done)>, Vec<Todo<'a>>) {
    let sources = &dataset.sources;
    let root = sources.roots.get(sources.dataset_root);
    let looks = crew.map(selected, |id| {
        let inputs = look(root?, Some(&id.to_path()))
            .ok()
            .filter(|look| !look.odd)?;
        let fingerprint = inputs.fingerprint.hex();
        let mut package = None;
        let current = state.is_some_and(|state| {
            outputs.iter().all(|(target, output)| {
                let Some(output) = output else { return false };
                let place = match target {
                    Target::Harbor => harbor
                        .and_then(|(prepared, _)| prepared.name(id))
                        .map(harbor::SafeName::to_path),
                    Target::Workspace if dataset.mode == Mode::Batch => None,
                    Target::Workspace => Some(id.to_path()),
                    Target::EvalHub => evalhub_place(id),
                };
                let Some(place) = place else { return false };
                if *target == Target::Harbor {
                    let Some((name, digest)) = output.task(&place) else {
                        return false;
                    };
                    package = Some(Package {
                        place: place.clone(),
                        name,
                        digest,
                    });
                }
                output.is_current(&place, state, &fingerprint)
            })
        });
        Some((inputs, current.then_some(package)))
    });
    let mut current = Vec::new();
    let mut todo = Vec::new();
    for (id, look) in selected.iter().zip(looks) {
        match look {
            Some((_, Some(package))) => {
                crew.observer.on(Event::CaseBuilt {
                    case: id,
                    files: 0,
                    bytes: 0,
                });
                current.push((
                    (*id).clone(),
                    Done {
                        package,
                        ..Done::default()
                    },
                ));
            }
            Some((look, None)) => todo.push((*id, Some(look))),
            None => todo.push((*id, None)),
        }
    }
    (current, todo)
}

/// `cases/<id>`, where EvalHub's adapters look.
fn evalhub_place(id: &CaseId) -> Option<TreePath> {
    Some(TreePath::new("cases").ok()?.join(&id.to_path()))
}

/// Does every case of `todo`, in parallel; the results in the order of case ids. Diagnostics are
/// added in that order too.
fn run(
    build: &Build<'_>,
    stage: Stage,
    todo: Vec<Todo<'_>>,
    crew: &Crew<'_>,
    diags: &mut Diagnostics,
) -> Vec<(CaseId, Done)> {
    let observer = crew.observer;
    observer.on(Event::StageStarted {
        stage,
        total: todo.len(),
    });
    let empty = diags.fork();
    let mut all = crew.map(&todo, |(id, look)| {
        if crew.stop.load(Ordering::Relaxed) {
            return Done {
                skipped: true,
                ..Done::default()
            };
        }
        let mut done = Done {
            diags: empty.fork(),
            ..Done::default()
        };
        build.case(id, look.as_ref(), &mut done);
        done.failed |= done.error.is_some();
        if done.failed {
            observer.on(Event::CaseFailed { case: id });
        } else if stage == Stage::Check {
            observer.on(Event::CaseChecked { case: id });
        } else {
            let (files, bytes) = done.placed.iter().fold((0, 0), |(files, bytes), placed| {
                let stats = placed.stats();
                (files + stats.files, bytes + stats.bytes)
            });
            observer.on(Event::CaseBuilt {
                case: id,
                files,
                bytes,
            });
        }
        done
    });
    let mut coverage = Coverage::new(build.dataset);
    for done in &mut all {
        diags.append(std::mem::take(&mut done.diags));
        if let Some(seen) = done.coverage.take() {
            coverage.merge(seen);
        }
    }
    // Only all cases together can say that a branch of a judge is never taken.
    let complete = todo.len() == build.dataset.cases.len();
    if complete && !all.iter().any(|done| done.skipped || done.failed) {
        coverage.finish(build.dataset, diags);
    }
    observer.on(Event::StageFinished { stage });
    todo.into_iter()
        .map(|(id, _)| id.clone())
        .zip(all)
        .collect()
}

impl Build<'_> {
    /// Reads, assembles and places one case.
    fn case(&self, id: &CaseId, look: Option<&Look>, done: &mut Done) {
        let Some((case, views)) = self.read(id, done) else {
            done.failed = true;
            return;
        };
        let ids = (views.workspace.id(), views.evaluation.id());
        let mut coverage = Coverage::new(self.dataset);
        coverage.observe(&case);
        done.coverage = Some(coverage);
        let mut trees: Vec<(usize, TreePath, Tree)> = Vec::new();
        for (at, (target, _)) in self.outputs.iter().enumerate() {
            match target {
                Target::Harbor => {
                    let Some((prepared, options)) = &self.harbor else {
                        continue;
                    };
                    let package = harbor::package(
                        self.dataset,
                        &case,
                        &views,
                        options,
                        prepared,
                        &mut done.diags,
                    );
                    let Some(package) = package else {
                        done.failed = true;
                        return;
                    };
                    match harbor::digest(&package.tree) {
                        Ok(digest) => {
                            let place = package.name.to_path();
                            let name = package.task_name;
                            done.package = Some(Package {
                                place: place.clone(),
                                name,
                                digest,
                            });
                            trees.push((at, place, package.tree));
                        }
                        Err(error) => {
                            done.diags.push(
                                Diagnostic::new(
                                    Rule::PackageInvalid,
                                    format!("Harbor can not digest the package: {error}."),
                                )
                                .help("Mend the ignore file that the message names.")
                                .case(id),
                            );
                            done.failed = true;
                            return;
                        }
                    }
                }
                Target::Workspace if self.dataset.mode == Mode::Batch => {}
                Target::Workspace => trees.push((at, id.to_path(), views.workspace.clone())),
                Target::EvalHub => {
                    if let Some(place) = evalhub_place(id) {
                        let tree = evalhub::case(id, &views, &mut done.diags);
                        trees.push((at, place, tree));
                    }
                }
            }
        }
        if self.dataset.mode == Mode::Batch {
            done.input = Some(case.input);
        }
        for (at, place, tree) in trees {
            let Some((_, Some(output))) = self.outputs.get(at) else {
                continue;
            };
            match output.place(&place, id, &tree, self.force) {
                Ok(Placed::NotOurs) => {
                    done.diags.push(
                        Diagnostic::new(
                            Rule::OutputNotOurs,
                            format!(
                                "{} was not written by casepack, or was changed since; it is left \
                                 as it is.",
                                output.shown(&place)
                            ),
                        )
                        .help(
                            "Move it away, build into another directory with -o, or replace it \
                             with --force.",
                        )
                        .case(id),
                    );
                    done.failed = true;
                }
                Ok(Placed::SourceFailed(name, why)) => {
                    done.diags.push(
                        Diagnostic::new(
                            Rule::FileChanged,
                            format!("The source of '{name}' can not be used: {why}."),
                        )
                        .help("Run the command again when nothing else writes there.")
                        .case(id),
                    );
                    done.failed = true;
                }
                Ok(placed) => {
                    // A case that has something to be told is read on every build.
                    let settled = look.filter(|look| look.settled(self.now_ns));
                    let vouched = settled.filter(|_| done.diags.is_empty());
                    let inputs = vouched.map(|look| look.fingerprint.hex());
                    output.vouch(&place, inputs.as_deref(), ids);
                    done.placed.push(placed);
                }
                Err(error) => {
                    done.error = Some(error);
                    return;
                }
            }
        }
    }

    fn read(&self, id: &CaseId, done: &mut Done) -> Option<(Case, Views)> {
        let diags = &mut done.diags;
        let case = self.dataset.read_case(id, diags);
        let case = case.filter(|_| diags.count(Severity::Error) == 0)?;
        let views = assemble::case(self.dataset, &self.common, &case, diags)?;
        Some((case, views))
    }
}

/// `dist/workspace/_batch`: the one workspace that all cases share.
fn batch(
    build: &Build<'_>,
    inputs: &[Yaml],
    force: bool,
    diags: &mut Diagnostics,
    summary: &mut Summary,
) -> Result<(), Error> {
    let tree = assemble::batch(
        build.dataset,
        &build.common,
        dataset::batch_yaml(inputs).into_bytes(),
    );
    let (Ok(name), Ok(id)) = (TreePath::new("_batch"), CaseId::new("_batch")) else {
        return Ok(());
    };
    for (target, output) in &build.outputs {
        let Some(output) = output.as_ref().filter(|_| *target == Target::Workspace) else {
            continue;
        };
        match output.place(&name, &id, &tree, force)? {
            Placed::Written(stats) => {
                summary.files += stats.files;
                summary.bytes += stats.bytes;
            }
            Placed::NotOurs => diags.push(
                Diagnostic::new(
                    Rule::OutputNotOurs,
                    format!(
                        "{} was changed since casepack wrote it.",
                        output.shown(&name)
                    ),
                )
                .help("Move it away, or replace it with --force."),
            ),
            Placed::SourceFailed(..) | Placed::Unchanged => {}
        }
    }
    Ok(())
}
