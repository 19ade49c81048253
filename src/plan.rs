//! Builds: from a dataset to outputs that are whole, case by case.
//!
//! Owns what is built for which case, in parallel, and what becomes of earlier outputs. Refuses to
//! know the command line.
//! Invariants: crash-safe (an output appears under its name by a rename, whole), owns-what-it-wrote
//! (only what the record says and what is unchanged is replaced or removed), reproducible (results
//! are put in the order of case ids, whatever the threads do).

mod output;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use globset::{Glob, GlobSet, GlobSetBuilder};
use rayon::prelude::*;

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
        Ok(Self { globs: Some(set) })
    }

    /// Whether `case` is one of them.
    pub fn has(&self, case: &CaseId) -> bool {
        self.globs
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
    package: Option<(String, TreePath, Digest)>,
    coverage: Option<Coverage>,
    /// In batch mode: the case's part of the one `batch.yaml`.
    input: Option<Yaml>,
    failed: bool,
    error: Option<Error>,
    skipped: bool,
}

/// Everything that the cases of one build share.
struct Build<'a> {
    dataset: &'a Dataset,
    common: Common<'a>,
    harbor: Option<(harbor::Prepared, &'a harbor::Options)>,
    outputs: Vec<(Target, Option<Output>)>,
    force: bool,
}

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
    };
    let all = run(&build, Stage::Check, select, jobs, stop, observer, diags);
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
/// # Errors
/// When the output directory can't be used; what is in place by then stays.
pub fn build(
    request: &Request<'_>,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Result<Summary, Error> {
    let dataset = request.dataset;
    let mut summary = Summary::default();
    let selected = || {
        dataset
            .cases
            .iter()
            .filter(|id| request.select.has(id))
            .cloned()
    };
    let out = output::create(request.out)?;
    let lock = output::lock(&out)?;
    let common = assemble::prepare(dataset, std::slice::from_ref(&out), diags);
    let wants_harbor = request.targets.contains(&Target::Harbor);
    let prepared = if wants_harbor {
        harbor::prepare(dataset, request.harbor, diags).map(Some)
    } else {
        Some(None)
    };
    let (Some(common), Some(prepared)) = (common, prepared) else {
        summary.failed = selected().collect();
        return Ok(summary);
    };
    let mut outputs = Vec::new();
    for &target in request.targets {
        outputs.push((target, Some(Output::open(&out, target.name(), diags)?)));
    }
    let build = Build {
        dataset,
        common,
        harbor: prepared.map(|prepared| (prepared, request.harbor)),
        outputs,
        force: request.force,
    };
    let all = run(
        &build,
        Stage::Build,
        request.select,
        request.jobs,
        request.stop,
        observer,
        diags,
    );

    let mut tasks = Vec::new();
    let mut first_error = None;
    let mut inputs = Vec::new();
    for (id, mut done) in all {
        inputs.extend(done.input.take());
        first_error = first_error.or(done.error);
        if done.skipped {
            summary.interrupted = true;
            continue;
        }
        if done.failed {
            summary.failed.push(id);
            continue;
        }
        let (mut files, mut bytes, mut written) = (0, 0, false);
        for placed in &done.placed {
            if let Placed::Written(stats) = placed {
                files += stats.files;
                bytes += stats.bytes;
                written = true;
            }
        }
        summary.files += files;
        summary.bytes += bytes;
        if let Some((task, place, digest)) = done.package {
            summary
                .packages
                .push((id.clone(), out.join("harbor").join(place.as_str())));
            tasks.push((id.clone(), task, digest));
        }
        if written {
            summary.built.push(id);
        } else {
            summary.unchanged.push(id);
        }
    }
    if let Some(error) = first_error {
        return Err(error);
    }
    if dataset.mode == Mode::Batch && !summary.interrupted {
        batch(&build, &inputs, request.force, diags, &mut summary)?;
    }
    for (target, output) in build.outputs {
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
        output.finish()?;
    }
    drop(lock);
    Ok(summary)
}

/// Does every selected case, in parallel; the results in the order of case ids. Diagnostics are
/// added in that order too.
fn run(
    build: &Build<'_>,
    stage: Stage,
    select: &Select,
    jobs: usize,
    stop: &AtomicBool,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Vec<(CaseId, Done)> {
    let ids: Vec<&CaseId> = build
        .dataset
        .cases
        .iter()
        .filter(|id| select.has(id))
        .collect();
    observer.on(Event::StageStarted {
        stage,
        total: ids.len(),
    });
    let empty = diags.fork();
    let one = |id: &&CaseId| {
        if stop.load(Ordering::Relaxed) {
            return Done {
                skipped: true,
                ..Done::default()
            };
        }
        let mut done = Done {
            diags: empty.fork(),
            ..Done::default()
        };
        build.case(id, &mut done);
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
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(jobs.max(1))
        .build();
    let mut all: Vec<Done> = match pool {
        Ok(pool) => pool.install(|| ids.par_iter().map(one).collect()),
        // No threads to be had: do it here.
        Err(_) => ids.iter().map(one).collect(),
    };
    let mut coverage = Coverage::new(build.dataset);
    for done in &mut all {
        diags.append(std::mem::take(&mut done.diags));
        if let Some(seen) = done.coverage.take() {
            coverage.merge(seen);
        }
    }
    // Only all cases together can say that a branch of a judge is never taken.
    if select.globs.is_none() && !all.iter().any(|done| done.skipped || done.failed) {
        coverage.finish(build.dataset, diags);
    }
    observer.on(Event::StageFinished { stage });
    ids.into_iter().cloned().zip(all).collect()
}

impl Build<'_> {
    /// Reads, assembles and places one case.
    fn case(&self, id: &CaseId, done: &mut Done) {
        let Some((case, views)) = self.read(id, done) else {
            done.failed = true;
            return;
        };
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
                            done.package = Some((package.task_name, place.clone(), digest));
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
                    // Proof: a constant of one valid component.
                    if let Ok(cases) = TreePath::new("cases") {
                        let tree = evalhub::case(id, &views, &mut done.diags);
                        trees.push((at, cases.join(&id.to_path()), tree));
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
                Ok(placed) => done.placed.push(placed),
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
