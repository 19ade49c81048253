//! The work on one case: read, assembled, made into the trees of its targets, placed. Done for
//! every case that is not current, in parallel.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::fingerprint::{Aids, Look, look, look_again};
use super::output::{Output, Placed, Voucher};
use super::settings::{Settings, key};
use super::steps::{self, Action, Step};
use super::{Error, inventory, release};
use crate::assemble::{self, Common, Views};
use crate::bundle::{CaseDigests, PackageTree, Packer};
use crate::dataset::{Case, Coverage, Dataset, Mode, ReadFile};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity, Told};
use crate::digest::{Digest, TreeId};
use crate::event::{Event, Observer, Stage};
use crate::fs::Kind;
use crate::path::{CaseId, TreePath};
use crate::target::{Target, evalhub, harbor};
use crate::tree::Tree;
use crate::yaml::Yaml;

/// One case, built or not.
#[derive(Default)]
pub(super) struct Done {
    /// What was found about the case.
    pub(super) diags: Diagnostics,
    /// Where its outputs are, one for each target.
    pub(super) places: Vec<TreePath>,
    pub(super) placed: Vec<Placed>,
    pub(super) package: Option<Package>,
    /// What the case has of the fields that judges branch on; `None`: it was not read.
    pub(super) values: Option<BTreeMap<String, String>>,
    /// In batch mode: the case's part of the one `batch.yaml`.
    pub(super) input: Option<Yaml>,
    /// Whether it was given to the packer of a release.
    pub(super) packed: bool,
    /// Where only a plan is made: what would be done.
    pub(super) steps: Vec<Step>,
    pub(super) failed: bool,
    pub(super) error: Option<Error>,
    pub(super) skipped: bool,
}

/// A Harbor package that is in place.
pub(super) struct Package {
    pub(super) place: TreePath,
    pub(super) name: String,
    pub(super) digest: Digest,
    /// Where it lists the workspace, when it was made just now.
    listing: Option<TreePath>,
}

/// Where the trees of a target go.
pub(super) struct Sink {
    pub(super) target: Target,
    /// `None`: nowhere, they are only made.
    pub(super) output: Option<Output>,
    /// Bundles: takes the cases.
    pub(super) packer: Option<Packer>,
    pub(super) settings: Settings,
    settings_id: Digest,
}

impl Sink {
    pub(super) fn new(target: Target, output: Option<Output>, settings: Settings) -> Self {
        Self {
            target,
            output,
            packer: None,
            settings_id: settings.id(),
            settings,
        }
    }

    /// Says what its outputs depend on.
    pub(super) fn describe(&mut self, settings: Settings) {
        self.settings_id = settings.id();
        self.settings = settings;
    }
}

/// Everything that the cases of one build share.
pub(super) struct Build<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) common: Common<'a>,
    pub(super) harbor: Option<(harbor::Prepared, &'a harbor::Options)>,
    pub(super) sinks: Vec<Sink>,
    /// Where there is no output: who is shown the trees, with their places.
    pub(super) take: Option<&'a Take<'a>>,
    pub(super) force: bool,
    /// Whether it is to be told what would be done.
    pub(super) explain: bool,
    /// The file system's time before anything was read.
    pub(super) now_ns: i128,
}

/// Is shown a tree, with its place.
pub(super) type Take<'a> = dyn Fn(&TreePath, &Tree) + Sync + 'a;

/// A case that is to be done, and what its directory looked like.
pub(super) type Todo<'a> = (&'a CaseId, Option<Look>);

/// More threads than this only cost; a large `-j` means "as many as make sense".
const MAX_THREADS: usize = 256;

/// How cases are worked on.
pub struct Crew<'a> {
    /// Threads.
    pub jobs: usize,
    /// Set from outside to stop after the cases in hand.
    pub stop: &'a AtomicBool,
    /// Who is told.
    pub observer: &'a dyn Observer,
}

impl Crew<'_> {
    /// Whether it was stopped from outside.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// `work` for every item, in parallel; the results in the order of the items.
    pub(super) fn map<T: Sync, R: Send>(
        &self,
        items: &[T],
        work: impl Fn(&T) -> R + Sync + Send,
    ) -> Vec<R> {
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

/// Where the output of `id` for `target` is placed; `None` when it has none.
fn place_of(
    target: Target,
    id: &CaseId,
    dataset: &Dataset,
    harbor: Option<&(harbor::Prepared, &harbor::Options)>,
) -> Option<TreePath> {
    match target {
        Target::Harbor => {
            let (prepared, _) = harbor?;
            prepared.name(id).map(harbor::SafeName::to_path)
        }
        Target::Workspace if dataset.mode == Mode::Batch => None,
        // A bundle has no directories; it is the name in the record.
        Target::Workspace | Target::Bundle => Some(id.to_path()),
        // Where EvalHub's adapters look.
        Target::EvalHub => Some(TreePath::new("cases").ok()?.join(&id.to_path())),
    }
}

/// Which cases are current, and which are to be done. Nothing but metadata is read. Without a
/// `state` that vouches for them none is current, and none is looked at before its turn.
pub(super) fn look_at_all<'a>(
    dataset: &Dataset,
    selected: &[&'a CaseId],
    sinks: &[Sink],
    harbor: Option<&(harbor::Prepared, &harbor::Options)>,
    state: Option<&str>,
    empty: &Diagnostics,
    crew: &Crew<'_>,
) -> (Vec<(CaseId, Done)>, Vec<Todo<'a>>) {
    let sources = &dataset.sources;
    let root = sources.roots.get(sources.dataset_root);
    let aids = Aids {
        roots: Some((&sources.roots, sources.dataset_root)),
        ..Aids::default()
    };
    let Some(state) = state else {
        return (Vec::new(), selected.iter().map(|id| (*id, None)).collect());
    };
    let looks = crew.map(selected, |id| {
        let inputs = look(root?, Some(&id.to_path()), aids)
            .ok()
            .filter(|look| !look.odd)?;
        let fingerprint = inputs.fingerprint.hex();
        let current = current(dataset, id, sinks, harbor, state, &fingerprint, empty);
        Some((inputs, current))
    });
    let mut all = Vec::new();
    let mut todo = Vec::new();
    for (id, look) in selected.iter().zip(looks) {
        match look {
            Some((_, Some(done))) => {
                crew.observer.on(Event::CaseBuilt {
                    case: id,
                    files: 0,
                    bytes: 0,
                });
                all.push(((*id).clone(), done));
            }
            Some((look, None)) => todo.push((*id, Some(look))),
            None => todo.push((*id, None)),
        }
    }
    (all, todo)
}

/// The case as it was done before, when all of its outputs are as they were made then.
fn current(
    dataset: &Dataset,
    id: &CaseId,
    sinks: &[Sink],
    harbor: Option<&(harbor::Prepared, &harbor::Options)>,
    state: &str,
    fingerprint: &str,
    empty: &Diagnostics,
) -> Option<Done> {
    let mut done = Done {
        diags: empty.fork(),
        ..Done::default()
    };
    for sink in sinks {
        let place = place_of(sink.target, id, dataset, harbor)?;
        let known = sink.output.as_ref()?.current(&place, state, fingerprint)?;
        for told in &known.told {
            done.diags.push(told.again()?);
        }
        if sink.target.has_packages() {
            let (name, digest) = known.task?;
            done.package = Some(Package {
                place: place_of(Target::Harbor, id, dataset, harbor)?,
                name,
                digest: digest.parse().ok()?,
                listing: None,
            });
        }
        done.values = Some(known.values);
        done.places.push(place);
        done.placed.push(Placed::Unchanged);
    }
    Some(done)
}

/// Does every case of `todo`, in parallel; the results in the order of case ids.
pub(super) fn run(
    build: &Build<'_>,
    stage: Stage,
    todo: Vec<Todo<'_>>,
    crew: &Crew<'_>,
    empty: &Diagnostics,
) -> Vec<(CaseId, Done)> {
    let observer = crew.observer;
    observer.on(Event::StageStarted {
        stage,
        total: todo.len(),
    });
    let all = crew.map(&todo, |(id, look)| {
        if crew.is_stopped() {
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
                let (more, size) = placed.stats();
                (files + more, bytes + size)
            });
            observer.on(Event::CaseBuilt {
                case: id,
                files,
                bytes,
            });
        }
        done
    });
    observer.on(Event::StageFinished { stage });
    todo.into_iter()
        .map(|(id, _)| id.clone())
        .zip(all)
        .collect()
}

/// Adds what was found about the cases to `diags`, in the order of case ids, and what only all of
/// them together can say.
pub(super) fn tell(dataset: &Dataset, all: &mut [(CaseId, Done)], diags: &mut Diagnostics) {
    let mut coverage = Coverage::new(dataset);
    let mut complete = all.len() == dataset.cases.len();
    for (_, done) in all {
        diags.append(std::mem::take(&mut done.diags));
        match done.values.take().filter(|_| !done.failed) {
            Some(values) => coverage.add(&values),
            None => complete = false,
        }
    }
    if complete {
        coverage.finish(dataset, diags);
    }
}

/// What was made of a case for one target.
struct Made<'a> {
    sink: &'a Sink,
    place: TreePath,
    tree: Tree,
    /// What was found while it was made.
    diags: Diagnostics,
}

impl Build<'_> {
    /// Reads, assembles and places one case.
    fn case(&self, id: &CaseId, look: Option<&Look>, done: &mut Done) {
        let Some((case, views, looked)) = self.read(id, look.is_none(), done) else {
            done.failed = true;
            return;
        };
        let look = look.or(looked.as_ref());
        let values = Coverage::new(self.dataset).values(&case);
        let mut package = None;
        let mut all = Vec::new();
        for sink in &self.sinks {
            let mut diags = done.diags.fork();
            let Some(place) = place_of(sink.target, id, self.dataset, self.harbor.as_ref()) else {
                // In batch mode; a case without a name that Harbor takes is told with the dataset.
                done.failed |= sink.target.has_packages();
                continue;
            };
            let tree = match sink.target {
                Target::Workspace => Some(views.workspace.clone()),
                Target::EvalHub => Some(evalhub::case(id, &views, &mut diags)),
                Target::Harbor | Target::Bundle => {
                    let (made, found) =
                        package.get_or_insert_with(|| self.package(id, &case, &views, done));
                    diags.append(found.clone());
                    made.clone()
                }
            };
            if diags.has_errors() || tree.is_none() {
                done.failed = true;
            }
            all.extend(tree.map(|tree| Made {
                sink,
                place,
                tree,
                diags,
            }));
        }
        if let Some((None, found)) = package {
            done.diags.append(found);
        }
        if done.failed {
            for made in all {
                done.diags.append(made.diags);
            }
            return;
        }
        let settled = look.filter(|look| look.settled(self.now_ns));
        let ids = (views.workspace.id(), views.evaluation.id());
        let told: Option<Vec<Told>> = done.diags.iter().map(Told::of).collect();
        for made in all {
            let mut told = told.clone();
            for finding in made.diags.iter() {
                let more = Told::of(finding);
                told = told.zip(more).map(|(mut told, more)| {
                    told.push(more);
                    told
                });
            }
            // What can't be told again is looked for again.
            let inputs = settled.filter(|_| told.is_some());
            let voucher = Voucher {
                inputs: inputs.map(|look| look.fingerprint.hex()),
                views: Some(ids),
                told: told.unwrap_or_default(),
                values: values.clone(),
            };
            done.diags.append(made.diags);
            self.place(
                made.sink,
                id,
                &made.place,
                &made.tree,
                &views,
                voucher,
                done,
            );
            if done.error.is_some() {
                return;
            }
        }
        done.values = Some(values);
        if self.dataset.mode == Mode::Batch {
            done.input = Some(case.input);
        }
    }

    /// The Harbor package of `case`; `None` when an error is among the findings.
    fn package(
        &self,
        id: &CaseId,
        case: &Case,
        views: &Views,
        done: &mut Done,
    ) -> (Option<Tree>, Diagnostics) {
        let mut diags = done.diags.fork();
        let Some((prepared, options)) = self.harbor.as_ref() else {
            return (None, diags);
        };
        let package = harbor::package(self.dataset, case, views, options, prepared, &mut diags);
        let place = place_of(Target::Harbor, id, self.dataset, self.harbor.as_ref());
        let (Some(package), Some(place)) = (package, place) else {
            return (None, diags);
        };
        match harbor::digest(&package.tree) {
            Ok(digest) => {
                done.package = Some(Package {
                    place,
                    name: package.task_name,
                    digest,
                    listing: package.listing,
                });
                (Some(package.tree), diags)
            }
            Err(error) => {
                diags.push(
                    Diagnostic::new(
                        Rule::PackageInvalid,
                        format!("Harbor can not digest the package: {error}."),
                    )
                    .help("Mend the ignore file that the message names.")
                    .case(id),
                );
                (None, diags)
            }
        }
    }

    /// Places one tree, if it has to be, and notes what it is made of.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call, of what belongs together there"
    )]
    fn place(
        &self,
        sink: &Sink,
        id: &CaseId,
        place: &TreePath,
        tree: &Tree,
        views: &Views,
        voucher: Voucher,
        done: &mut Done,
    ) {
        let Some(output) = &sink.output else {
            if let Some(take) = self.take {
                take(place, tree);
            }
            return;
        };
        let (tree_id, placed) = if sink.target == Target::Bundle {
            match pack(sink, output, id, place, tree, views, done) {
                Ok(packed) => {
                    done.packed = true;
                    packed
                }
                Err(error) => {
                    done.error = Some(error);
                    return;
                }
            }
        } else {
            let tree_id = tree.id();
            match output.place(place, id, tree, &tree_id, self.force) {
                Ok(placed) => (tree_id, placed),
                Err(error) => {
                    done.error = Some(error);
                    return;
                }
            }
        };
        let key = key(sink.target, &sink.settings_id, views);
        if self.explain {
            let action = placed.action();
            let made = (action == Action::Changed).then(|| output.made(place));
            let made = made.flatten();
            let moved = made
                .as_ref()
                .map(|made| steps::moved(made, &sink.settings, views));
            done.steps.push(Step {
                key: Some(key),
                was: made.as_ref().and_then(|made| made.key),
                moved: moved.or((action != Action::Changed).then(Vec::new)),
                ..Step::bare(id, sink.target, place.as_str(), action)
            });
        }
        match placed {
            Placed::NotOurs => {
                done.diags.push(not_ours(output, place).case(id));
                done.failed = true;
            }
            Placed::SourceFailed(name, why) => {
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
            mut placed => {
                output.made_of(&inventory::Making {
                    place,
                    key,
                    workspace: &views.workspace,
                    evaluation: &views.evaluation,
                    task: &views.task,
                    output: tree,
                    tree: tree_id,
                });
                output.vouch(place, tree, &mut placed, voucher);
                done.placed.push(placed);
            }
        }
    }

    /// What the case's directory looked like before its files were read for the views. `None` when
    /// one of those that were read already was read through a link, which may lead elsewhere now.
    fn look(&self, case: &Case) -> Option<Look> {
        let material = &case.material;
        let listing = material.listing.as_ref()?;
        let is_own = |file: &ReadFile| {
            let below = match &material.dir {
                Some(dir) => file.path.strip_prefix(dir),
                None => Some(file.path.clone()),
            };
            let there = below.map(|below| listing.get(&below));
            file.root == material.root && matches!(there, Some(Ok(Some((_, Kind::File)))))
        };
        if !material.read.iter().all(is_own) {
            return None;
        }
        let aids = Aids {
            roots: Some((&self.dataset.sources.roots, material.root)),
            ..Aids::default()
        };
        let look = look_again(listing, material.dir.as_ref(), aids)?;
        (!look.odd).then_some(look)
    }

    /// Reads the case; with `looks`, with what its directory looked like before.
    fn read(
        &self,
        id: &CaseId,
        looks: bool,
        done: &mut Done,
    ) -> Option<(Case, Views, Option<Look>)> {
        let diags = &mut done.diags;
        let case = self.dataset.read_case(id, diags);
        let case = case.filter(|_| diags.count(Severity::Error) == 0)?;
        let look = if looks { self.look(&case) } else { None };
        let views = assemble::case(self.dataset, &self.common, &case, diags)?;
        Some((case, views, look))
    }
}

/// Gives the package to the packer, or where nothing is written only looks whether it is
/// another one. The task view's digest stands for it in the record.
fn pack(
    sink: &Sink,
    output: &Output,
    id: &CaseId,
    place: &TreePath,
    tree: &Tree,
    views: &Views,
    done: &Done,
) -> Result<(TreeId, Placed), Error> {
    let missing = || Error {
        doing: "can not pack",
        path: output.shown(place).into(),
        source: std::io::Error::other("it has no package"),
    };
    let package = done.package.as_ref().ok_or_else(missing)?;
    // A package's name is one component.
    let name = CaseId::new(package.place.as_str()).map_err(|_| missing())?;
    let package = PackageTree {
        name: &name,
        task: &package.name,
        harbor: package.digest,
        tree,
        listing: package.listing.as_ref(),
    };
    let (workspace, evaluation) = (&views.workspace, &views.evaluation);
    let digests = match &sink.packer {
        Some(packer) => packer
            .add(id, workspace, evaluation, &package)
            .map_err(|error| release::failed(error, output.path()))?,
        None => CaseDigests::of(workspace, evaluation, &package),
    };
    Ok((digests.task, output.packed(place, id, &digests)))
}

/// That something else stands where an output goes.
pub(super) fn not_ours(output: &Output, place: &TreePath) -> Diagnostic {
    Diagnostic::new(
        Rule::OutputNotOurs,
        format!(
            "{} was not written by casepack, or was changed since; it is left as it is.",
            output.shown(place)
        ),
    )
    .help("Move it away, build into another directory with -o, or replace it with --force.")
}
