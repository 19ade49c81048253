//! Builds: from a dataset to outputs that are whole, case by case.
//!
//! Owns what is built for which case, in parallel, and what becomes of earlier outputs. Refuses to
//! know the command line.
//! Invariants: crash-safe (an output appears under its name by a rename, whole), owns-what-it-wrote
//! (only what the record says and what is unchanged is replaced or removed), reproducible (results
//! are put in the order of case ids, whatever the threads do).

mod cases;
mod compare;
pub(crate) mod fingerprint;
mod index;
mod inventory;
mod output;
mod own;
mod record;
mod release;
mod select;
mod settings;
mod state;
mod steps;
mod verify;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

pub use self::cases::Crew;
use self::cases::{Build, Done, Sink, Todo};
pub use self::compare::{Changed, Comparison, FileChange, Side, diff};
use self::index::Index;
use self::output::{Access, Output, Placed};
pub use self::release::LOCAL_REF;
pub use self::select::Select;
use self::settings::Settings;
pub use self::steps::{Action, Moved, Step};
pub use self::verify::{Change, Difference, Verified, verify};
use crate::assemble;
use crate::bundle::Compression;
use crate::dataset::{self, Dataset, Format, Mode};
use crate::diag::{Diagnostic, Diagnostics, Rule, Told};
use crate::digest::Digest;
use crate::event::{Observer, Stage};
use crate::fs::real_place;
use crate::path::{CaseId, TreePath};
use crate::target::{Target, evalhub, harbor};
use crate::yaml::Yaml;

/// Where the one workspace of a batch lies; no case is called so.
const BATCH: &str = "_batch";

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
    /// Whether files that several outputs of a target have are hard links of each other, read-only.
    pub link: bool,
    /// How bundles are compressed.
    pub compression: Compression,
    /// What is not taken on trust.
    pub doubt: Doubt,
    /// Whether outputs that casepack did not write, or that were changed since, are replaced.
    pub force: bool,
    /// Looks at the dataset once more before anything is read for an output; not asked when there
    /// is nothing to do, or when it is recorded what it said of the same dataset.
    pub vet: &'a dyn Fn(&mut Diagnostics),
    /// What `vet` asks, as a text that is another one when its answers may be others.
    pub helpers: String,
    /// Set from outside to stop after the cases in hand.
    pub stop: &'a AtomicBool,
}

impl Request<'_> {
    fn selected(&self) -> Vec<&CaseId> {
        let cases = self.dataset.cases.iter();
        cases.filter(|id| self.select.has(id)).collect()
    }
}

/// What is not taken on trust, though the file system's metadata would vouch for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Doubt {
    /// Every case is read, whatever it looks like.
    pub inputs: bool,
    /// Every output is read and hashed, whatever it looks like.
    pub outputs: bool,
}

/// What was done. Every list is sorted by case id.
#[derive(Debug, Default)]
pub struct Summary {
    /// Cases that had no output.
    pub new: Vec<CaseId>,
    /// Cases of which at least one output was replaced.
    pub changed: Vec<CaseId>,
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
    /// Bundles: the manifest's digest of the release that is in place.
    pub release: Option<Digest>,
    /// When only some cases were chosen: the digests in hex of their workspace and evaluation
    /// views, of which, over all cases, the dataset's identity is made.
    pub views: Vec<(CaseId, String, String)>,
    /// The Harbor packages that are in place: case and directory.
    pub packages: Vec<(CaseId, PathBuf)>,
}

impl Summary {
    fn count(&mut self, placed: &Placed) {
        let (files, bytes) = placed.stats();
        self.files += files;
        self.bytes += bytes;
    }
}

/// What would be done, and why.
#[derive(Debug, Default)]
pub struct Plan {
    /// One for each output, sorted by case id and target; those of cases that are gone at the end.
    pub steps: Vec<Step>,
    /// Files beside the outputs, below the output directory, that are missing (`New`) or are not as
    /// the last build left them (`Changed`): each build writes them again.
    pub beside: Vec<(String, Action)>,
    /// Whether it was stopped from outside: some cases are missing.
    pub interrupted: bool,
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
    let Some(common) = assemble::prepare(dataset, &[], &(), diags) else {
        return summary;
    };
    let prepared = harbor::prepare(dataset, options, diags);
    let build = Build {
        dataset,
        common,
        harbor: prepared.map(|prepared| (prepared, options)),
        sinks: vec![Sink::new(Target::Harbor, None, Settings::default())],
        take: None,
        force: false,
        explain: false,
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
    let mut all = cases::run(&build, Stage::Check, todo, &crew, &diags.fork());
    cases::tell(dataset, &mut all, diags);
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
/// the dataset but its config is opened and nothing is written. What was found about such a case is
/// told again.
///
/// # Errors
/// When the output directory can't be used; what is in place by then stays.
pub fn build(
    request: &Request<'_>,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Result<Summary, Error> {
    refuse_case(request.dataset, request.out)?;
    if !has_targets(request, diags) {
        return Ok(Summary {
            failed: request.selected().into_iter().cloned().collect(),
            ..Summary::default()
        });
    }
    let out = own::create(request.out)?;
    let Some(lock) = own::lock(&out, request.stop, observer)? else {
        return Ok(Summary {
            interrupted: true,
            ..Summary::default()
        });
    };
    // Twice only when an earlier release turns out to be damaged: then nothing is kept of it.
    loop {
        let Some(worked) = work(request, &out, Access::Write, observer, diags)? else {
            return Ok(Summary {
                failed: request.selected().into_iter().cloned().collect(),
                ..Summary::default()
            });
        };
        if let Some(summary) = finish(request, &out, worked, &lock, diags)? {
            return Ok(summary);
        }
    }
}

/// What [`build`] would do for the same request, and why. Writes nothing.
///
/// # Errors
/// When the output directory can't be read.
pub fn plan(
    request: &Request<'_>,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Result<Plan, Error> {
    refuse_case(request.dataset, request.out)?;
    if !has_targets(request, diags) {
        return Ok(Plan::default());
    }
    // Where a link stands in its place, building says so.
    let out = request
        .out
        .canonicalize()
        .unwrap_or_else(|_| request.out.to_owned());
    let lock = own::lock_to_look(&out, request.stop, observer);
    let mut plan = Plan {
        interrupted: request.stop.load(Ordering::Relaxed),
        ..Plan::default()
    };
    if plan.interrupted {
        return Ok(plan);
    }
    let Some(worked) = work(request, &out, Access::Look, observer, diags)? else {
        return Ok(plan);
    };
    drop(lock);
    for (id, done) in worked.all {
        if done.skipped {
            plan.interrupted = true;
        } else if done.failed && done.steps.is_empty() {
            for sink in &worked.sinks {
                plan.steps
                    .push(Step::bare(&id, sink.target, id.as_str(), Action::Failed));
            }
        } else if done.steps.is_empty() {
            for (sink, place) in worked.sinks.iter().zip(done.places) {
                plan.steps.push(Step::bare(
                    &id,
                    sink.target,
                    place.as_str(),
                    Action::Unchanged,
                ));
            }
        } else {
            plan.steps.extend(done.steps);
        }
    }
    if let (Some(batch), Ok(id)) = (&worked.batch, CaseId::new(BATCH)) {
        let action = batch.action();
        plan.steps
            .push(Step::bare(&id, Target::Workspace, BATCH, action));
    }
    for sink in &worked.sinks {
        let Some(output) = &sink.output else { continue };
        for (name, mut was) in output.beside() {
            if sink.target == Target::EvalHub
                && let Ok(text) = evalhub_config(request.dataset)?
            {
                was = Digest::of(text.as_bytes()).to_string();
            }
            let action = match output.file(&name) {
                Ok(bytes) if Digest::of(&bytes).to_string() == was => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Action::New,
                _ => Action::Changed,
            };
            let path = format!("{}/{name}", sink.target.name());
            plan.beside.push((path, action));
        }
        for (place, case, ours) in output.gone(request.dataset) {
            let action = if ours { Action::Removed } else { Action::Kept };
            if let Ok(case) = CaseId::new(&case) {
                plan.steps
                    .push(Step::bare(&case, sink.target, &place, action));
            }
        }
        if sink.target != Target::Bundle {
            output.tell_foreign(output.foreign(), diags);
        }
    }
    Ok(plan)
}

/// The cases of a build or plan, worked on.
struct Worked {
    sinks: Vec<Sink>,
    all: Vec<(CaseId, Done)>,
    /// What vouches for everything but the cases' own files.
    state: Option<String>,
    /// What was found about the dataset as a whole, to be told again.
    told: Vec<Told>,
    /// Whether a case was read.
    reads: bool,
    /// What the one workspace of a batch became.
    batch: Option<Placed>,
    /// Where files were read: what is known of them now.
    index: Option<Vec<u8>>,
}

/// Does what build and plan have in common. `None` when an error keeps every case from being made.
fn work(
    request: &Request<'_>,
    out: &Path,
    access: Access,
    observer: &dyn Observer,
    diags: &mut Diagnostics,
) -> Result<Option<Worked>, Error> {
    let dataset = request.dataset;
    let selected = request.selected();
    let mut harbor = None;
    if request.targets.iter().any(|target| target.has_packages()) {
        let Some(prepared) = harbor::prepare(dataset, request.harbor, diags) else {
            return Ok(None);
        };
        harbor = Some((prepared, request.harbor));
    }
    let mut sinks = Vec::new();
    for &target in request.targets {
        let mut output = Output::open(out, target.name(), access, request.doubt, diags)?;
        if target == Target::Bundle {
            let (read, mend) = (request.doubt.outputs, access == Access::Write);
            release::believe(&mut output, read && mend, mend, diags);
        }
        sinks.push(Sink::new(target, Some(output), Settings::default()));
    }
    let crew = Crew {
        jobs: request.jobs,
        stop: request.stop,
        observer,
    };
    let look = state::of(
        dataset,
        request.harbor,
        request.compression,
        diags.levels(),
        &request.helpers,
    );
    let state = look.as_ref().map(|look| look.fingerprint.hex());
    let told = state
        .as_deref()
        .filter(|_| !request.doubt.inputs)
        .and_then(|state| sinks.first()?.output.as_ref()?.told(state));
    let empty = diags.fork();
    let (mut all, todo) = cases::look_at_all(
        dataset,
        &selected,
        &sinks,
        harbor.as_ref(),
        state.as_deref().filter(|_| told.is_some()),
        &empty,
        &crew,
    );
    let reads_all = todo.len() == dataset.cases.len();
    if todo.is_empty() {
        for finding in told.into_iter().flatten() {
            diags.push(finding);
        }
        cases::tell(dataset, &mut all, diags);
        return Ok(Some(Worked {
            sinks,
            all,
            state,
            told: Vec::new(),
            reads: false,
            batch: None,
            index: None,
        }));
    }

    // After the looks, before anything is read: what changes from now on carries a later time.
    let now_ns = match access {
        Access::Write => own::now_ns(out)?,
        Access::Look => i128::MAX,
    };
    let mend = access == Access::Write;
    let known = own::read_index(out, mend, diags)?.filter(|_| !request.doubt.inputs);
    let index = known.as_deref().and_then(|text| Index::parse(text, now_ns));
    if known.is_some() && index.is_none() {
        own::tell_index(out, diags);
    }
    let index = index.unwrap_or_else(|| Index::new(now_ns));
    let mut found = diags.fork();
    if told.is_none() {
        (request.vet)(&mut found);
    }
    let outputs = [out.to_owned()];
    let common = if found.has_errors() {
        None
    } else {
        assemble::prepare(dataset, &outputs, &index, &mut found)
    };
    if common.is_some()
        && let Some(told) = told
    {
        // In this state the dataset as a whole was looked at before, and this was found.
        found = diags.fork();
        for finding in told {
            found.push(finding);
        }
    }
    let told: Option<Vec<Told>> = found.iter().map(Told::of).collect();
    diags.append(found);
    let Some(common) = common else {
        return Ok(None);
    };
    let shared = || {
        let templates = harbor.iter().flat_map(|(prepared, _)| prepared.shared());
        common.contents().chain(templates)
    };
    for sink in &mut sinks {
        sink.describe(Settings::of(sink.target, dataset, request.harbor));
        if access == Access::Write
            && let Some(output) = &mut sink.output
        {
            let all = todo.len() >= output.len();
            output.write_down(sink.settings.clone(), all, diags)?;
            if request.link {
                output.link(shared())?;
            }
            if sink.target == Target::Bundle {
                sink.packer = Some(release::packer(output, request.compression)?);
            }
        }
    }
    let build = Build {
        dataset,
        common,
        harbor,
        sinks,
        take: None,
        force: request.force,
        explain: access == Access::Look,
        now_ns,
    };
    let stage = match access {
        Access::Write => Stage::Build,
        Access::Look => Stage::Check,
    };
    all.extend(cases::run(&build, stage, todo, &crew, &empty));
    all.sort_by(|a, b| a.0.cmp(&b.0));
    cases::tell(dataset, &mut all, diags);
    let mut inputs = Vec::new();
    for (_, done) in &mut all {
        inputs.extend(done.input.take());
    }
    // Without one of its cases a batch would be another one: the earlier one stays.
    let complete = !all.iter().any(|(_, done)| done.skipped || done.failed);
    let mut batch = None;
    let all_cases = all.len() == dataset.cases.len();
    if dataset.mode == Mode::Batch && !all_cases && request.targets.contains(&Target::Workspace) {
        diags.push(
            Diagnostic::new(
                Rule::BatchIncomplete,
                "The workspace of the batch is left as it is: not all cases were chosen.",
            )
            .help("Build it without --case and --shard; a batch is one workspace for all cases."),
        );
    }
    if dataset.mode == Mode::Batch && complete && all_cases {
        batch = place_batch(&build, &inputs, diags)?;
    }
    let settled = look.is_some_and(|look| look.settled(now_ns));
    let sinks = build.sinks;
    Ok(Some(Worked {
        sinks,
        index: Some(index.text(complete && reads_all)),
        all,
        state: state.filter(|_| settled && told.is_some()),
        told: told.unwrap_or_default(),
        reads: true,
        batch,
    }))
}

/// Brings the outputs as a whole up to date: what lists them, what is gone, the record. `None` when
/// it has to be done once more, because an earlier release can't be used.
fn finish(
    request: &Request<'_>,
    out: &Path,
    worked: Worked,
    _lock: &File,
    diags: &mut Diagnostics,
) -> Result<Option<Summary>, Error> {
    let dataset = request.dataset;
    let Worked { sinks, mut all, .. } = worked;
    if let Some(text) = &worked.index {
        own::write_index(out, text)?;
    }
    if let Some(error) = all.iter_mut().find_map(|(_, done)| done.error.take()) {
        // What is in place is written down as far as that is possible now.
        for output in sinks.into_iter().filter_map(|sink| sink.output) {
            output.give_up();
        }
        return Err(error);
    }
    let mut summary = Summary::default();
    let mut tasks = Vec::new();
    let mut made = BTreeSet::new();
    let has_harbor = request.targets.contains(&Target::Harbor);
    if let Some(placed) = &worked.batch {
        summary.count(placed);
    }
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
        for placed in &done.placed {
            summary.count(placed);
        }
        if let Some(package) = &done.package
            && has_harbor
        {
            let dir = out.join(Target::Harbor.name()).join(package.place.as_str());
            summary.packages.push((id.clone(), dir));
        }
        if let Some(package) = &done.package {
            tasks.push((id.clone(), package.name.clone(), package.digest));
        }
        let has = |what: fn(&Placed) -> bool| done.placed.iter().any(what);
        if has(|placed| matches!(placed, Placed::Changed(_))) {
            summary.changed.push(id.clone());
        } else if has(|placed| matches!(placed, Placed::New(_))) {
            summary.new.push(id.clone());
        } else {
            summary.unchanged.push(id.clone());
        }
    }
    // One that can't be brought up to date does not keep the others from being written down.
    let mut failure: Option<Error> = None;
    for sink in sinks {
        let Some(mut output) = sink.output else {
            continue;
        };
        if sink.target == Target::Bundle {
            // Until all cases are packed, the earlier release and its record stay.
            if summary.interrupted {
                continue;
            }
            output.record_tasks(&tasks);
            let packed = all.iter().filter(|(_, done)| done.packed);
            let packed = packed.map(|(id, _)| id).collect();
            if !release::make(request, &mut output, sink.packer, &packed, &mut summary)? {
                return Ok(None);
            }
            if summary.interrupted {
                continue;
            }
        } else {
            if sink.target == Target::Harbor {
                output.record_tasks(&tasks);
            }
            let removed = match around(request, &mut output, sink.target, &summary, diags) {
                Ok(removed) => removed,
                Err(error) => {
                    output.give_up();
                    failure.get_or_insert(error);
                    continue;
                }
            };
            let name = sink.target.name();
            let removed = removed.into_iter().map(|place| format!("{name}/{place}"));
            summary.removed.extend(removed);
        }
        if worked.reads {
            output.set_state(worked.state.as_deref(), worked.told.clone(), &made);
        }
        if !request.select.is_all() && summary.views.is_empty() {
            let chosen = dataset.cases.iter().filter(|id| request.select.has(id));
            summary.views = output.views(&chosen.cloned().collect::<Vec<_>>());
        }
        if summary.failed.is_empty() && !summary.interrupted && request.select.is_all() {
            summary.dataset_digest = summary
                .dataset_digest
                .or_else(|| output.dataset_digest(dataset));
        }
        if let Err(error) = output.finish() {
            failure.get_or_insert(error);
        }
    }
    failure.map_or(Ok(Some(summary)), Err)
}

/// Writes what lies beside the outputs of a target, and removes those that are gone: their places.
fn around(
    request: &Request<'_>,
    output: &mut Output,
    target: Target,
    summary: &Summary,
    diags: &mut Diagnostics,
) -> Result<Vec<String>, Error> {
    let dataset = request.dataset;
    if target == Target::Harbor {
        let name = harbor::dataset_name(dataset, request.harbor);
        let text = harbor::dataset_toml(&name, &dataset.description, &output.tasks(dataset));
        output.write("dataset.toml", text.as_bytes())?;
    }
    if target == Target::EvalHub {
        match evalhub_config(dataset)? {
            Ok(text) => output.write("eval.yaml", text.as_bytes())?,
            // It was read a moment ago: somebody has changed it since.
            Err(finding) => diags.push(*finding),
        }
    }
    if summary.interrupted {
        return Ok(Vec::new());
    }
    output.remove_gone(dataset, diags)
}

/// The `eval.yaml` of EvalHub's layout, of the one that is there now.
fn evalhub_config(dataset: &Dataset) -> Result<Result<String, Box<Diagnostic>>, Error> {
    let config = &dataset.sources.config;
    let text = fs::read_to_string(config).map_err(|source| Error {
        doing: "can not read",
        path: config.clone(),
        source,
    })?;
    let name = config.file_name().unwrap_or_default().to_string_lossy();
    Ok(evalhub::config(&name, &text))
}

/// Whether the dataset has what the targets are made of; tells what it lacks.
fn has_targets(request: &Request<'_>, diags: &mut Diagnostics) -> bool {
    let lacks =
        request.dataset.format == Format::HarborTask && request.targets.contains(&Target::EvalHub);
    if lacks {
        let message = "Harbor tasks have no eval.yaml, which EvalHub's adapters need.";
        diags.push(Diagnostic::new(Rule::Unsupported, message).help(
            "Build them with --target harbor or bundle. EvalHub can pull a release of them with \
             casepack as its init image.",
        ));
    }
    !lacks
}

/// An output in a case directory would be part of the case next time.
fn refuse_case(dataset: &Dataset, out: &Path) -> Result<(), Error> {
    let sources = &dataset.sources;
    let home = sources.roots.absolute(sources.dataset_root, None);
    let real = real_place(out);
    let below = home
        .as_ref()
        .and_then(|home| real.as_ref()?.strip_prefix(home).ok());
    let first = below.and_then(|below| below.components().next()?.as_os_str().to_str());
    let is_case =
        first.is_some_and(|first| dataset.cases.iter().any(|case| case.as_str() == first));
    let why = if is_case {
        "it lies in a case of the dataset: name another directory with -o"
    } else if home.is_some() && real == home && dataset.sources.config.parent() != home.as_deref() {
        "it is the dataset directory, and its outputs would be taken for cases: name another \
         directory with -o"
    } else {
        return Ok(());
    };
    Err(Error {
        doing: "can not build into",
        path: out.to_owned(),
        source: io::Error::other(why),
    })
}

/// `dist/workspace/_batch`: the one workspace that all cases share.
fn place_batch(
    build: &Build<'_>,
    inputs: &[Yaml],
    diags: &mut Diagnostics,
) -> Result<Option<Placed>, Error> {
    let (Ok(name), Ok(id)) = (TreePath::new(BATCH), CaseId::new(BATCH)) else {
        return Ok(None);
    };
    let workspace = |sink: &&Sink| sink.target == Target::Workspace;
    let Some(output) = build
        .sinks
        .iter()
        .find(workspace)
        .and_then(|sink| sink.output.as_ref())
    else {
        return Ok(None);
    };
    let text = dataset::batch_yaml(inputs).into_bytes();
    let tree = assemble::batch(build.dataset, &build.common, text);
    let placed = output.place(&name, &id, &tree, &tree.id(), build.force)?;
    if matches!(placed, Placed::NotOurs) {
        diags.push(cases::not_ours(output, &name));
    }
    Ok(Some(placed))
}
