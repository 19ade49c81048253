//! Cases come from a store: catalogs, then indexes, then the frames that are needed.
//!
//! Cases are fetched and written in batches, so that memory holds a few of them; a case appears
//! under its name when every file of it was compared with its digest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::destination::{Destination, RECORD, STATE, There};
use super::locate::{Located, Need, locate};
use super::remote::requests;
use super::{Chosen, PublishError, Remote, failed, list, refused};
use crate::bundle::{
    Bad, CatalogShard, Listed, Mount, PackIndex, Placement, Release, Shard, View, dataset_digest,
};
use crate::dataset::JUDGE_FILES;
use crate::digest::{Digest, Hasher, TreeId};
use crate::event::{Event, Observer, Stage};
use crate::fs::Root;
use crate::path::{CaseId, TreePath, fold};
use crate::store::{AT_ONCE, Slots, for_each, in_order};
use crate::target::harbor;
use crate::tree::{
    Content, Data, MaterialiseError, Mode, Tree, TreeBuilder, id_of, listing_file, materialise,
};

/// Bytes of small files that a batch of cases needs.
const BATCH_BYTES: u64 = 8 << 20;
/// Cases of a batch.
const BATCH_CASES: usize = 256;
/// Batches that are fetched while one is written.
const AHEAD: usize = 2;
/// Contents from this size are streamed to their file, and never whole in memory.
const LARGE: u64 = 1 << 20;
/// Of these, so many at a time, whatever the number of threads.
const STREAMS: usize = 4;
/// Contents that several batches need stay in memory up to this size together.
const KEEP_BYTES: u64 = 24 << 20;
/// What lists all packages, beside them.
const DATASET_TOML: &str = "dataset.toml";

/// What a case becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Its Harbor package.
    Harbor,
    /// Its workspace and evaluation material in one directory, as `EvalHub`'s adapters read it.
    Cases,
    /// The tree of one view.
    View(View),
}

impl Layout {
    fn views(self) -> Vec<View> {
        match self {
            Self::Harbor => View::ALL.to_vec(),
            Self::Cases => vec![View::Workspace, View::Evaluation],
            Self::View(view) => vec![view],
        }
    }

    /// The word for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Harbor => "harbor",
            Self::Cases => "cases",
            Self::View(View::Workspace) => "workspace",
            Self::View(View::Evaluation) => "evaluation",
            Self::View(View::Task) => "task",
        }
    }
}

/// What is to be pulled.
pub struct Pull<'a> {
    /// Where from.
    pub remote: Remote<'a>,
    /// Which release.
    pub release: &'a Release,
    /// Which cases.
    pub chosen: Chosen<'a>,
    /// As what.
    pub layout: Layout,
    /// The destination; made when it is missing.
    pub out: &'a Path,
    /// Bytes that may be written.
    pub max_bytes: Option<u64>,
    /// Whether what is in the way, and was changed or is not casepack's, is replaced.
    pub force: bool,
    /// Threads that write.
    pub jobs: usize,
    /// Set from outside to stop after the cases in hand.
    pub stop: &'a AtomicBool,
}

/// What was pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Cases that are in place.
    pub cases: u64,
    /// Of these, those that were written now.
    pub written: u64,
    /// Files written.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Evaluation material that lies beside the workspace: path and number of cases.
    pub readable: BTreeMap<String, u64>,
    /// What was pulled before and is no part of this pull, and was changed since.
    pub left: Vec<String>,
    /// The record of what was pulled before, when it can't be read.
    pub damaged: Option<PathBuf>,
    /// Whether it was stopped before all were in place.
    pub interrupted: bool,
}

/// Pulls; returns what is in place.
///
/// # Errors
/// When no case is wanted, the store fails or is damaged, or something is in the way. Cases that
/// are in place by then are whole.
pub fn pull(pull: &Pull<'_>, observer: &dyn Observer) -> Result<Pulled, PublishError> {
    let catalog = Catalog::read(pull)?;
    if catalog.ids.is_empty() {
        return Err(PublishError::NoCase);
    }
    let mut done = Pulled::default();
    let Some(destination) = Destination::open(pull, observer)? else {
        done.interrupted = true;
        return Ok(done);
    };
    done.damaged = destination.damaged().map(Path::to_owned);
    let threads = rayon::ThreadPoolBuilder::new()
        .num_threads(pull.jobs.clamp(1, 256))
        .build()
        .map_err(|error| failed("can not start threads for", pull.out)(io::Error::other(error)))?;
    threads.install(|| catalog.check(pull))?;
    let all = pull.chosen.is_all(&catalog, pull);
    let list = match pull.layout {
        Layout::Harbor if all => Some(dataset_toml(pull, &catalog)?),
        _ => None,
    };
    if let Some(list) = &list {
        destination.check_file(DATASET_TOML, list.as_bytes(), pull.force)?;
    }
    let looked = threads.install(|| look(pull, &catalog, &destination, &mut done))?;
    let Looked { todo, same, names } = looked;
    let needs = needs(&todo, &catalog)?;
    let bytes = todo
        .iter()
        .map(|case| case.bytes)
        .fold(0, u64::saturating_add);
    if let Some(max) = pull.max_bytes.filter(|max| bytes > *max) {
        return Err(PublishError::refused(
            format!("The cases have {bytes} bytes, more than the {max} that --max-bytes allows"),
            "Pull fewer cases, or allow more.",
        ));
    }
    observer.on(Event::TransferStarted {
        stage: Stage::Download,
        objects: todo.len(),
        bytes,
    });
    let small: BTreeMap<Digest, u64> = needs
        .iter()
        .filter(|(_, need)| need.size < LARGE)
        .map(|(digest, need)| (*digest, need.size))
        .collect();
    let located = locate(pull.remote, pull.release, needs)?;
    let batches = batches(&todo, &catalog, &small)?;
    let work = Work {
        pull,
        catalog: &catalog,
        located: &located,
        kept: Mutex::default(),
        several: shared_by_batches(&batches, &small),
        large: Mutex::default(),
        streams: Slots::new(STREAMS),
        failed: AtomicBool::new(false),
        destination: &destination,
        observer,
    };
    for (name, tree) in &same {
        destination.adopt(name, *tree)?;
    }
    let mut fault = None;
    let moved = in_order(
        &batches,
        AHEAD,
        |batch| Ok((batch, work.fetch(batch)?)),
        |(batch, contents)| {
            let cases = todo.get(batch.cases.clone()).unwrap_or_default();
            let written: Vec<Result<Option<u64>, PublishError>> = threads.install(|| {
                cases
                    .par_iter()
                    .map(|case| work.write(case, &contents))
                    .collect()
            });
            let mut first = None;
            for (case, written) in cases.iter().zip(written) {
                match written {
                    Ok(Some(files)) => {
                        done.written += 1;
                        done.cases += 1;
                        done.files += files;
                        done.bytes += case.bytes;
                    }
                    Ok(None) | Err(PublishError::Stopped) => done.interrupted = true,
                    Err(error) => first = first.or(Some(error)),
                }
            }
            match first {
                // Whoever fetches meanwhile ends as well, and says less.
                Some(error) => {
                    fault = Some(error);
                    Err(PublishError::Stopped)
                }
                None if done.interrupted => Err(PublishError::Stopped),
                None => Ok(()),
            }
        },
    );
    // What is at the place of a case that failed is not known: its journal stays.
    match fault {
        Some(_) if pull.stop.load(Ordering::Relaxed) => {
            done.interrupted = true;
            return Ok(done);
        }
        Some(error) => return Err(error),
        None => {}
    }
    if moved.is_ok() {
        let files = match pull.layout {
            Layout::Harbor => &[DATASET_TOML][..],
            Layout::Cases | Layout::View(_) => &[],
        };
        done.left = destination.remove_others(&names, files, all)?;
        if let Some(list) = &list {
            destination.write(DATASET_TOML, list.as_bytes())?;
        }
    }
    done.left
        .extend(destination.finish()?.map(ToOwned::to_owned));
    match moved {
        // Also what failed, and was not tried again since it was to stop.
        Err(_) if pull.stop.load(Ordering::Relaxed) => done.interrupted = true,
        moved => moved?,
    }
    observer.on(Event::StageFinished {
        stage: Stage::Download,
    });
    Ok(done)
}

impl Chosen<'_> {
    fn is_all(&self, catalog: &Catalog, pull: &Pull<'_>) -> bool {
        self.only.is_none() && catalog.ids.len() as u64 == pull.release.document.cases
    }
}

/// The shards that are needed, and the cases in them that are wanted.
struct Catalog {
    /// For each view of the layout, its shards.
    shards: BTreeMap<View, Vec<Shard>>,
    /// Wanted cases, sorted.
    ids: Vec<CaseId>,
}

impl Catalog {
    fn read(pull: &Pull<'_>) -> Result<Self, PublishError> {
        let views = pull.layout.views();
        let document = &pull.release.document;
        let wanted: Vec<_> = document
            .shards
            .iter()
            .filter(|shard| views.contains(&shard.view))
            .filter(|shard| {
                pull.chosen.only.as_ref().is_none_or(|only| {
                    only.iter()
                        .any(|id| shard.first <= *id && *id <= shard.last)
                })
            })
            .collect();
        let mut shards: BTreeMap<View, Vec<Shard>> = BTreeMap::new();
        let read = |named: &CatalogShard| {
            Ok::<_, PublishError>((named.view, list::read(pull.remote, named)?))
        };
        in_order(wanted, AT_ONCE, read, |(view, shard)| {
            shards.entry(view).or_default().push(shard);
            Ok(())
        })?;
        let first = views.first().and_then(|view| shards.get(view));
        let cases = first.into_iter().flatten().flat_map(|shard| &shard.cases);
        let ids = cases
            .map(|case| &case.id)
            .filter(|id| (pull.chosen.has)(id))
            .cloned()
            .collect();
        Ok(Self { shards, ids })
    }

    /// Whether the catalogs give the dataset's digest, where all that it rests on was read.
    fn check(&self, pull: &Pull<'_>) -> Result<(), PublishError> {
        let (Some(workspace), Some(evaluation), None) = (
            self.shards.get(&View::Workspace),
            self.shards.get(&View::Evaluation),
            &pull.chosen.only,
        ) else {
            return Ok(());
        };
        let pairs = workspace.iter().flat_map(|shard| &shard.cases);
        let pairs: Vec<&CaseId> = pairs.map(|case| &case.id).collect();
        let trees = |shards: &[Shard]| -> Result<Vec<TreeId>, Bad> {
            let cases = shards.iter().flat_map(|shard| {
                let cases = shard.cases.iter();
                cases.map(move |case| (shard, case))
            });
            let cases: Vec<_> = cases.collect();
            let tree = |(shard, case): (&Shard, _)| Ok(id_of(&shard.listing(case)?));
            cases.into_par_iter().map(tree).collect()
        };
        let theirs = evaluation.iter().flat_map(|shard| &shard.cases);
        let same = theirs.map(|case| &case.id).eq(pairs.iter().copied());
        let trees = trees(workspace)?.into_iter().zip(trees(evaluation)?);
        let cases = pairs.into_iter().zip(trees);
        let digest = dataset_digest(cases.map(|(id, (a, b))| (id, a, b)));
        if same && digest == pull.release.document.dataset {
            return Ok(());
        }
        let why = "has another dataset digest than its catalogs give";
        Err(Bad::new(format!("the release {}", pull.release.digest), why).into())
    }

    /// The listing and the placement of a case in one view.
    fn listing(
        &self,
        view: View,
        id: &CaseId,
    ) -> Result<(Vec<Listed>, Option<&Placement>), PublishError> {
        let shards = self.shards.get(&view).map_or(&[][..], Vec::as_slice);
        let at =
            shards.partition_point(|shard| shard.cases.last().is_some_and(|last| last.id < *id));
        let found = shards
            .get(at)
            .and_then(|shard| Some((shard, shard.case(id)?)));
        let Some((shard, case)) = found else {
            let why = format!("has no {view} tree of '{id}'");
            return Err(Bad::new("the catalog", why).into());
        };
        Ok((shard.listing(case)?, case.placement.as_ref()))
    }
}

/// A case as it is to be.
struct Composed {
    name: CaseId,
    files: Vec<Listed>,
    /// Bytes of files that are not stored, since they can be made.
    made: BTreeMap<Digest, Arc<[u8]>>,
    /// Evaluation material beside the workspace.
    readable: Vec<String>,
}

fn compose(catalog: &Catalog, layout: Layout, id: &CaseId) -> Result<Composed, PublishError> {
    let mut composed = Composed {
        name: id.clone(),
        files: Vec::new(),
        made: BTreeMap::new(),
        readable: Vec::new(),
    };
    let placement = match layout {
        Layout::Harbor => {
            let (task, placement) = catalog.listing(View::Task, id)?;
            composed.add(task, None);
            let placement = placement.cloned().ok_or_else(|| {
                Bad::new(
                    "the catalog",
                    format!("says not how the package of '{id}' is put together"),
                )
            })?;
            composed.name = placement.name.clone();
            Some(placement)
        }
        _ => None,
    };
    for view in layout.views() {
        if view == View::Task && layout == Layout::Harbor {
            continue;
        }
        let (mut files, _) = catalog.listing(view, id)?;
        let mut at = None;
        if let Some(placement) = &placement {
            if let Some(path) = placement
                .listing
                .as_ref()
                .filter(|_| view == View::Workspace)
            {
                composed.make(path, listing_file(&files));
            }
            let mount = match view {
                View::Workspace => placement.workspace.as_ref(),
                _ => placement.evaluation.as_ref(),
            };
            let Some(Mount { at: place, without }) = mount else {
                continue;
            };
            files.retain(|file| !without.contains(&file.path));
            at = Some(place);
        }
        if layout == Layout::Cases && view == View::Evaluation {
            let judges = format!("{JUDGE_FILES}/");
            files.retain(|file| !file.path.as_str().starts_with(&judges));
            composed.readable = files
                .iter()
                .map(|file| file.path.as_str().to_owned())
                .collect();
        }
        composed.add(files, at);
    }
    composed.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(composed)
}

impl Composed {
    fn add(&mut self, files: Vec<Listed>, at: Option<&TreePath>) {
        self.files.extend(files.into_iter().map(|mut file| {
            if let Some(at) = at {
                file.path = at.join(&file.path);
            }
            file
        }));
    }

    fn make(&mut self, path: &TreePath, bytes: Vec<u8>) {
        let digest = Digest::of(&bytes);
        self.files.push(Listed {
            path: path.clone(),
            mode: Mode::Regular,
            digest,
            size: bytes.len() as u64,
        });
        self.made.insert(digest, bytes.into());
    }
}

/// A case that is to be fetched.
struct Todo {
    id: CaseId,
    name: CaseId,
    tree: TreeId,
    /// Bytes of its files.
    bytes: u64,
}

/// What is to be done.
struct Looked {
    /// Cases that are not in place.
    todo: Vec<Todo>,
    /// Those that are.
    same: Vec<(CaseId, TreeId)>,
    /// The folded names of all.
    names: BTreeSet<String>,
}

fn look(
    pull: &Pull<'_>,
    catalog: &Catalog,
    destination: &Destination,
    done: &mut Pulled,
) -> Result<Looked, PublishError> {
    let looked: Vec<(Todo, There, Vec<String>)> = catalog
        .ids
        .par_iter()
        .map(|id| {
            let composed = compose(catalog, pull.layout, id)?;
            let tree = id_of(&composed.files);
            let there = destination.there(&composed.name, tree, pull.force)?;
            let todo = Todo {
                id: id.clone(),
                name: composed.name,
                tree,
                bytes: composed
                    .files
                    .iter()
                    .map(|file| file.size)
                    .fold(0, u64::saturating_add),
            };
            Ok((todo, there, composed.readable))
        })
        .collect::<Result<_, PublishError>>()?;
    let mut names = BTreeSet::new();
    let (mut todo, mut same, mut in_the_way) = (Vec::new(), Vec::new(), Vec::new());
    for (case, there, readable) in looked {
        let name = fold(case.name.as_str());
        if !names.insert(name.clone()) || name == STATE || name == RECORD {
            let why = format!(
                "has a case or package '{}' that takes the place of another",
                case.name
            );
            return Err(Bad::new("the catalog", why).into());
        }
        for path in readable {
            *done.readable.entry(path).or_default() += 1;
        }
        match there {
            There::Same => {
                done.cases += 1;
                same.push((case.name, case.tree));
            }
            There::Foreign | There::Relaid if !pull.force => in_the_way.push((case.name, there)),
            _ => todo.push(case),
        }
    }
    if !pull.force {
        let relaid = destination.relaid(&names)?.into_iter();
        in_the_way.extend(relaid.map(|name| (name, There::Relaid)));
    }
    let Some((first, there)) = in_the_way.first() else {
        return Ok(Looked { todo, same, names });
    };
    let what = match there {
        There::Relaid => "was pulled in another layout",
        _ => "is something else, or was changed since it was pulled",
    };
    let more = match in_the_way.len() {
        1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    let place = pull.out.join(first.as_str());
    Err(PublishError::refused(
        format!("{} {what}{more}; it is left as it is", place.display()),
        "Pull into another directory with -o, or replace it with --force.",
    ))
}

/// What the cases need.
fn needs(todo: &[Todo], catalog: &Catalog) -> Result<BTreeMap<Digest, Need>, PublishError> {
    let mut needs: BTreeMap<Digest, Need> = BTreeMap::new();
    for case in todo {
        // Only views that the layout has are in the catalog.
        for view in catalog.shards.keys() {
            for file in catalog.listing(*view, &case.id)?.0 {
                let need = needs.entry(file.digest).or_insert_with(|| Need {
                    view: *view,
                    case: case.id.clone(),
                    size: file.size,
                });
                if need.size != file.size {
                    let why = format!("gives the content {} two sizes", file.digest);
                    return Err(Bad::new("the catalog", why).into());
                }
                if *view < need.view {
                    need.view = *view;
                    need.case = case.id.clone();
                }
            }
        }
    }
    Ok(needs)
}

/// Cases that are fetched and written together.
struct Batch {
    cases: std::ops::Range<usize>,
    contents: BTreeSet<Digest>,
}

fn batches(
    todo: &[Todo],
    catalog: &Catalog,
    small: &BTreeMap<Digest, u64>,
) -> Result<Vec<Batch>, PublishError> {
    let mut batches = Vec::new();
    let mut contents = BTreeSet::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, case) in todo.iter().enumerate() {
        for view in catalog.shards.keys() {
            for file in catalog.listing(*view, &case.id)?.0 {
                if let Some(size) = small.get(&file.digest)
                    && contents.insert(file.digest)
                {
                    bytes += size;
                }
            }
        }
        if bytes >= BATCH_BYTES || at + 1 - start >= BATCH_CASES || at + 1 == todo.len() {
            batches.push(Batch {
                cases: start..at + 1,
                contents: std::mem::take(&mut contents),
            });
            (start, bytes) = (at + 1, 0);
        }
    }
    Ok(batches)
}

/// Contents that more than one batch needs, as far as they may stay in memory.
fn shared_by_batches(batches: &[Batch], small: &BTreeMap<Digest, u64>) -> BTreeSet<Digest> {
    let mut uses: BTreeMap<Digest, u64> = BTreeMap::new();
    for digest in batches.iter().flat_map(|batch| &batch.contents) {
        *uses.entry(*digest).or_default() += 1;
    }
    let mut room = KEEP_BYTES;
    uses.into_iter()
        .filter(|(_, uses)| *uses > 1)
        .map(|(digest, _)| digest)
        .take_while(|digest| {
            let size = small.get(digest).copied().unwrap_or(0);
            let fits = size <= room;
            room = room.saturating_sub(size);
            fits
        })
        .collect()
}

type Contents = BTreeMap<Digest, Arc<[u8]>>;
/// Where in the destination a large content may be found, once somebody has fetched it.
type Places = Arc<Mutex<Vec<TreePath>>>;

/// Everything that fetching and writing share.
struct Work<'a> {
    pull: &'a Pull<'a>,
    catalog: &'a Catalog,
    located: &'a Located,
    /// Contents that several batches need.
    kept: Mutex<Contents>,
    several: BTreeSet<Digest>,
    /// Large contents that are in place already, and where.
    large: Mutex<BTreeMap<Digest, Places>>,
    /// Of those who stream one, each has some megabytes in hand.
    streams: Slots,
    /// Set when a case failed: the others of its batch need not try.
    failed: AtomicBool,
    destination: &'a Destination,
    observer: &'a dyn Observer,
}

impl Work<'_> {
    /// The contents of a batch.
    fn fetch(&self, batch: &Batch) -> Result<Contents, PublishError> {
        let mut found = Contents::new();
        // For each pack and frame: the contents that start there.
        let mut wanted: BTreeMap<usize, BTreeMap<usize, Vec<Digest>>> = BTreeMap::new();
        {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            for digest in &batch.contents {
                if let Some(bytes) = kept.get(digest) {
                    found.insert(*digest, Arc::clone(bytes));
                } else if let Some((pack, place)) = self.located.places.get(digest) {
                    let frames = wanted.entry(*pack).or_default();
                    frames.entry(place.frame).or_default().push(*digest);
                }
            }
        }
        let numbers = wanted
            .iter()
            .map(|(pack, frames)| (*pack, frames.keys().copied().collect()))
            .collect();
        let requests = requests(&self.located.indexes, numbers);
        let fetched = Mutex::new(Contents::new());
        for_each(requests, AT_ONCE / AHEAD, |(pack, frames)| {
            if self.stopped() {
                return Err(PublishError::Stopped);
            }
            let (Some(index), Some(starts), Some(named)) = (
                self.located.indexes.get(&pack),
                wanted.get(&pack),
                self.pull.release.document.packs.get(pack),
            ) else {
                return Ok(());
            };
            self.pull
                .remote
                .frames(named.blob.digest, index, &frames, &mut |number, raw| {
                    for digest in starts.get(&number).into_iter().flatten() {
                        let bytes = take(index, *digest, &raw).map_err(|why| {
                            Bad::new(format!("the pack {}", named.blob.digest), why)
                        })?;
                        fetched
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(*digest, bytes.into());
                    }
                    Ok(())
                })
        })?;
        let fetched = fetched.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for (digest, bytes) in fetched {
            if self.several.contains(&digest) {
                kept.insert(digest, Arc::clone(&bytes));
            }
            found.insert(digest, bytes);
        }
        Ok(found)
    }

    /// Whether nothing more is to be begun.
    fn stopped(&self) -> bool {
        self.pull.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }

    /// Writes a case, unless it is to stop; how many files.
    fn write(&self, case: &Todo, contents: &Contents) -> Result<Option<u64>, PublishError> {
        if self.stopped() {
            return Ok(None);
        }
        let written = self.place(case, contents);
        if written.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        written.map(Some)
    }

    fn place(&self, case: &Todo, contents: &Contents) -> Result<u64, PublishError> {
        let composed = compose(self.catalog, self.pull.layout, &case.id)?;
        let mut small = TreeBuilder::new();
        let mut large = Vec::new();
        for file in &composed.files {
            let known = contents.get(&file.digest);
            let Some(bytes) = known.or_else(|| composed.made.get(&file.digest)) else {
                large.push(file);
                continue;
            };
            let content = Content {
                digest: file.digest,
                size: file.size,
                data: Data::Bytes(Arc::clone(bytes)),
            };
            self.insert(&mut small, case, file, content)?;
        }
        // In the tree as well, so that a clash is seen; written apart.
        for file in &large {
            let none = Content::bytes(Vec::new());
            if small.clash(&file.path).is_some() {
                self.insert(&mut small, case, file, none)?;
            }
        }
        let small: Tree = small.finish();
        let (staged, place) = self.destination.staged()?;
        let dest = self.pull.out.join(case.name.as_str());
        materialise(&small, staged.handle()).map_err(|error| unwritten(error, &dest))?;
        let root = staged.root().map_err(refused("can not read"))?;
        for file in large {
            self.stream(file, &root, [&place, &case.name.to_path()])?;
        }
        self.destination.put(staged, &case.name, case.tree)?;
        let bytes = case.bytes;
        self.observer.on(Event::Transferred { objects: 1, bytes });
        Ok(composed.files.len() as u64)
    }

    fn insert(
        &self,
        tree: &mut TreeBuilder,
        case: &Todo,
        file: &Listed,
        content: Content,
    ) -> Result<(), PublishError> {
        tree.insert(file.path.clone(), file.mode, content)
            .map_err(|clash| {
                let why = format!("has two files for one place in '{}': {clash}", case.id);
                let object = format!("the release {}", self.pull.release.digest);
                Bad::new(object, why).into()
            })
    }

    /// Writes one large file below `root`, which is in the destination at the first of `at` and will
    /// be at the second, from the store or from another place that has it.
    fn stream(&self, file: &Listed, root: &Root, at: [&TreePath; 2]) -> Result<(), PublishError> {
        let mode = match file.mode {
            Mode::Regular => 0o644,
            Mode::Executable => 0o755,
        };
        let staged = root.stage(&file.path, mode);
        let staged = staged.map_err(refused("can not create"))?;
        let path = root.absolute(Some(&file.path));
        let places = {
            let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(large.entry(file.digest).or_default())
        };
        // Held while it is downloaded: who needs the same content waits, and copies it.
        let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stopped() {
            return Err(PublishError::Stopped);
        }
        for from in &*places {
            if copy(self.destination.root(), from, staged.file(), file).unwrap_or(false) {
                return staged.commit().map_err(refused("can not write"));
            }
            let emptied = staged.file().set_len(0);
            emptied.map_err(failed("can not write", &path))?;
        }
        {
            let _slot = self.streams.take();
            // The one before may have failed while this one waited.
            if self.stopped() {
                return Err(PublishError::Stopped);
            }
            self.download(file, staged.file(), &path)?;
        }
        staged.commit().map_err(refused("can not write"))?;
        // Where it is, and where it will be.
        places.extend(at.map(|at| at.join(&file.path)));
        Ok(())
    }

    fn download(&self, file: &Listed, mut to: &File, path: &Path) -> Result<(), PublishError> {
        to.rewind().map_err(failed("can not write", path))?;
        let missing = || {
            Bad::new(
                "the release",
                format!("has not the content {}", file.digest),
            )
        };
        let (pack, place) = self.located.places.get(&file.digest).ok_or_else(missing)?;
        let index = self.located.indexes.get(pack).ok_or_else(missing)?;
        let named = self
            .pull
            .release
            .document
            .packs
            .get(*pack)
            .ok_or_else(missing)?;
        let object = || format!("the pack {}", named.blob.digest);
        let numbers: Vec<usize> = index.frames_of(*place).collect();
        let mut hasher = Hasher::new();
        let mut left = place.size;
        for part in requests(&self.located.indexes, [(*pack, numbers)].into()) {
            if self.stopped() {
                return Err(PublishError::Stopped);
            }
            let mut write = |number: usize, raw: Vec<u8>| {
                let start = if number == place.frame {
                    if !PackIndex::is_file(file.digest, *place, &raw) {
                        return Err(Bad::new(object(), NO_FILE).into());
                    }
                    usize::try_from(place.offset).unwrap_or(usize::MAX)
                } else {
                    0
                };
                let data = raw.get(start..).unwrap_or_default();
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
                let data = data.get(..length).unwrap_or_default();
                hasher.update(data);
                to.write_all(data).map_err(failed("can not write", path))?;
                left -= data.len() as u64;
                Ok(())
            };
            let remote = self.pull.remote;
            remote.frames(named.blob.digest, index, &part.1, &mut write)?;
        }
        if left == 0 && hasher.finish() == file.digest {
            Ok(())
        } else {
            let why = format!(
                "has other bytes for the content {} than its digest says",
                file.digest
            );
            Err(Bad::new(object(), why).into())
        }
    }
}

const NO_FILE: &str = "has an entry that is no file, or not the one that its index names";

/// The bytes of a small content in its inflated frame.
fn take(index: &PackIndex, digest: Digest, raw: &[u8]) -> Result<Vec<u8>, String> {
    let place = index.find(digest).ok_or("has not a content that it had")?;
    if !PackIndex::is_file(digest, place, raw) {
        return Err(NO_FILE.to_owned());
    }
    let bounds = usize::try_from(place.offset)
        .ok()
        .zip(usize::try_from(place.offset + place.size).ok());
    let bytes = bounds.and_then(|(from, to)| raw.get(from..to));
    match bytes {
        Some(bytes) if Digest::of(bytes) == digest => Ok(bytes.to_vec()),
        _ => Err(format!(
            "has other bytes for the content {digest} than its digest says"
        )),
    }
}

/// Copies a file that is in place, if it still has the content.
fn copy(out: &Root, from: &TreePath, mut to: &File, file: &Listed) -> io::Result<bool> {
    let Ok((from, _)) = out.open_file(from) else {
        return Ok(false);
    };
    // One byte more shows that it has grown.
    let mut from = from.take(file.size.saturating_add(1));
    to.rewind()?;
    let mut buffer = vec![0; 256 << 10];
    let mut hasher = Hasher::new();
    loop {
        let read = from.read(&mut buffer)?;
        let bytes = buffer.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(hasher.finish() == file.digest);
        }
        hasher.update(bytes);
        to.write_all(bytes)?;
    }
}

/// `dataset.toml` over all packages, as `casepack build` writes it.
fn dataset_toml(pull: &Pull<'_>, catalog: &Catalog) -> Result<String, PublishError> {
    let document = &pull.release.document;
    let mut tasks = Vec::new();
    for id in &catalog.ids {
        if let (_, Some(placement)) = catalog.listing(View::Task, id)? {
            tasks.push((placement.task.clone(), placement.harbor));
        }
    }
    let name = &document.harbor_name;
    Ok(harbor::dataset_toml(name, &document.description, &tasks))
}

fn unwritten(error: MaterialiseError, dest: &Path) -> PublishError {
    let (path, source) = match error {
        MaterialiseError::Source { path, source } => (path, io::Error::other(source)),
        MaterialiseError::Write { path, source } => (path, source),
    };
    failed("can not write", &dest.join(path.as_str()))(source)
}
