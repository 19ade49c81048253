//! Makes a release in a directory, from trees and from the release that is there.
//!
//! Memory holds entries, never contents: bytes that are only in memory when a case is added go to
//! an unnamed file, others are read again from where they are, and checked, when their pack is made.
//! A pack whose list of contents the earlier release has too is taken over as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rayon::prelude::*;

use super::catalog::{Mount, Placement};
use super::catalog_writer::{self, Line};
use super::pack::{self, Frame, Holds, Piece, Squeezer};
use super::previous::{Contents, Frames, Previous};
use super::release::{dataset_digest, packages_digest};
use super::{
    Bad, CatalogShard, Compression, Descriptor, Document, INDEX_JSON, OCI_LAYOUT, OCI_LAYOUT_BYTES,
    Pack, REFS, RefName, Release, View, blob_key, index_json, json, limits, ref_object,
    release_of_ref,
};
use crate::digest::{Digest, Hasher, TreeId};
use crate::fs::{FsError, ReadError, StagedDir, Stamp, read_regular, replace, write_atomic};
use crate::path::{CaseId, TreePath};
use crate::tree::{self, Content, Data, Entry, FileAt, Mode, Tree, id_of, listing_file, push_row};

/// What made packs and shards: those of another writer are not taken over, since they may have
/// other bytes.
const WRITER: &str = concat!("casepack ", env!("CARGO_PKG_VERSION"));
/// Frames in hand at a time at most, whatever the number of threads: each has 1 MiB or little more,
/// twice, and what its compressor needs.
const MAX_WINDOW: usize = 8;
/// What does not shrink below this share of its size is not worth the time: 97 %.
const SHRINKS: (u64, u64) = (97, 100);

/// What a release says about its dataset beside its cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// The dataset's name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The format of its sources.
    pub format: String,
    /// `org/name`, for `dataset.toml`.
    pub harbor_name: String,
    /// The options that packages were made with.
    pub options: BTreeMap<String, String>,
}

/// What identifies one case in a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaseDigests {
    /// Its workspace.
    pub workspace: TreeId,
    /// Its evaluation material.
    pub evaluation: TreeId,
    /// The rest of its package.
    pub task: TreeId,
    /// The package, as Harbor itself computes it.
    pub harbor: Digest,
}

/// The Harbor package of a case.
#[derive(Debug, Clone, Copy)]
pub struct PackageTree<'a> {
    /// Its directory.
    pub name: &'a CaseId,
    /// `[task].name`.
    pub task: &'a str,
    /// The digest that Harbor itself computes.
    pub harbor: Digest,
    /// All its files.
    pub tree: &'a Tree,
    /// Where it is known to have [`listing_file`] of the workspace; else that is looked for.
    pub listing: Option<&'a TreePath>,
}

impl CaseDigests {
    /// Those of a case with these trees.
    pub fn of(workspace: &Tree, evaluation: &Tree, package: &PackageTree<'_>) -> Self {
        let split = Split::new(workspace, evaluation, package);
        split.digests(workspace, evaluation, package.harbor)
    }
}

/// The release that the directory `root` has under `reference`, when all its blobs are there, by
/// their sizes, and all that names it says so.
pub fn intact(root: &Path, reference: &RefName) -> Option<Release> {
    let there = Previous::open(root, reference)?;
    let others = refs(root, reference).ok()?;
    let index = index_of(&others, reference, &there.release);
    let has = |name: &str, bytes: &[u8]| {
        let read = read_regular(&root.join(name), bytes.len() as u64);
        read.is_ok_and(|there| there == bytes)
    };
    let named = has(OCI_LAYOUT, OCI_LAYOUT_BYTES) && has(INDEX_JSON, &index);
    (named && is_whole(&there)).then_some(there.release)
}

/// What [`Packer::finish`] did.
#[derive(Debug)]
pub struct Packed {
    /// The release that is in the directory now.
    pub release: Release,
    /// Blobs written.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packs taken over from the earlier release.
    pub reused_packs: u64,
}

/// Why no release was made; the earlier one is still there.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The system refused.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// What was being done, as `can not write`.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// A file of the dataset is not what it was when its case was added.
    #[error("{path} can not be packed: {why}", path = path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// What happened.
        why: String,
    },
    /// A case that can't be part of a release.
    #[error("{0}")]
    Case(String),
    /// The earlier release in the directory can't be used: every case has to be added again.
    #[error("the earlier release is damaged: {0}")]
    Previous(#[from] Bad),
    /// It was stopped from outside.
    #[error("stopped")]
    Stopped,
}

/// Collects the cases of a release; several threads may add at once.
pub struct Packer {
    root: PathBuf,
    reference: RefName,
    compression: Compression,
    previous: Option<Previous>,
    temp: StagedDir,
    state: Mutex<State>,
}

struct State {
    /// The listings that were made last: what the next case has in common with them need not be
    /// looked up.
    recent: [Vec<u32>; 3],
    spool: io::BufWriter<File>,
    spooled: u64,
    contents: Vec<Row>,
    content_of: BTreeMap<Digest, u32>,
    paths: Vec<TreePath>,
    path_of: BTreeMap<TreePath, u32>,
    entries: Vec<(u32, Mode, u32)>,
    entry_of: BTreeMap<(u32, Mode, u32), u32>,
    cases: BTreeMap<CaseId, CaseRow>,
}

/// A content.
struct Row {
    piece: Piece,
    source: Source,
}

/// Where the bytes of a content are.
enum Source {
    /// In the spool, from this byte on.
    Spool(u64),
    /// In a file.
    File(Arc<FileAt>),
    /// In the earlier release.
    Previous,
}

struct CaseRow {
    digests: CaseDigests,
    /// Entries of each view, sorted by path.
    listings: [Vec<u32>; 3],
    placement: Option<Placement>,
    kept: bool,
}

impl Packer {
    /// Packs into the store root `root`, which exists, under the ref `reference`. Temporary files
    /// go to `temp`, a directory on the same file system. Nobody else may pack there at the time.
    ///
    /// # Errors
    /// When `temp` can't be used.
    pub fn new(
        root: &Path,
        temp: &Path,
        reference: RefName,
        compression: Compression,
    ) -> Result<Self, PackError> {
        let temp = StagedDir::new(temp).map_err(refused("can not create a directory in"))?;
        let path = temp.path().join("contents");
        let spool = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed("can not create", &path))?;
        Ok(Self {
            previous: Previous::open(root, &reference),
            root: root.to_owned(),
            reference,
            compression,
            temp,
            state: Mutex::new(State {
                recent: [const { Vec::new() }; 3],
                spool: io::BufWriter::with_capacity(1 << 20, spool),
                spooled: 0,
                contents: Vec::new(),
                content_of: BTreeMap::new(),
                paths: Vec::new(),
                path_of: BTreeMap::new(),
                entries: Vec::new(),
                entry_of: BTreeMap::new(),
                cases: BTreeMap::new(),
            }),
        })
    }

    /// The release that the directory has, of which cases may be kept.
    pub fn previous(&self) -> Option<&Release> {
        self.previous.as_ref().map(|previous| &previous.release)
    }

    /// Adds a case with its trees; adding it again replaces it.
    ///
    /// # Errors
    /// When bytes can't be put aside.
    pub fn add(
        &self,
        case: &CaseId,
        workspace: &Tree,
        evaluation: &Tree,
        package: &PackageTree<'_>,
    ) -> Result<CaseDigests, PackError> {
        let split = Split::new(workspace, evaluation, package);
        let digests = split.digests(workspace, evaluation, package.harbor);
        let placement = Placement {
            name: package.name.clone(),
            task: package.task.to_owned(),
            harbor: package.harbor,
            workspace: split.workspace,
            evaluation: split.evaluation,
            listing: split.listing,
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let listings = [
            state.listing(View::Workspace, workspace.iter(), &self.temp)?,
            state.listing(View::Evaluation, evaluation.iter(), &self.temp)?,
            state.listing(View::Task, split.task.into_iter(), &self.temp)?,
        ];
        let row = CaseRow {
            digests,
            listings,
            placement: Some(placement),
            kept: false,
        };
        state.cases.insert(case.clone(), row);
        Ok(digests)
    }

    /// Takes a case over from the release that the directory has. `digests` are those that the
    /// caller knows it by; [`Packer::finish`] refuses a case that has others there.
    pub fn keep(&self, case: &CaseId, digests: CaseDigests) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let row = CaseRow {
            digests,
            listings: [const { Vec::new() }; 3],
            placement: None,
            kept: true,
        };
        state.cases.insert(case.clone(), row);
    }

    /// Writes what is missing of the release of all cases, and moves the ref last. Blobs of the
    /// earlier release that nothing needs any more are removed then.
    ///
    /// # Errors
    /// See [`PackError`]; the ref is as it was then.
    pub fn finish(
        self,
        about: &About,
        templates: Digest,
        jobs: usize,
        stop: &AtomicBool,
    ) -> Result<Packed, PackError> {
        let Self {
            root,
            reference,
            compression,
            previous,
            temp,
            state,
        } = self;
        let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if state.cases.len() as u64 > limits::CASES {
            return Err(PackError::Case(
                "the dataset has more than 1,000,000 cases, more than a bundle can have".to_owned(),
            ));
        }
        let ids = || state.cases.iter().map(|(id, row)| (id, row.digests));
        let mut document = Document {
            name: about.name.clone(),
            description: about.description.clone(),
            format: about.format.clone(),
            harbor_name: about.harbor_name.clone(),
            options: about.options.clone(),
            templates,
            dataset: dataset_digest(ids().map(|(id, it)| (id, it.workspace, it.evaluation))),
            packages: packages_digest(ids().map(|(id, it)| (id, it.task, it.harbor))),
            writer: WRITER.to_owned(),
            compression,
            cases: state.cases.len() as u64,
            views: BTreeMap::new(),
            shards: Vec::new(),
            packs: Vec::new(),
        };
        if let Some(previous) = &previous
            && same_but_packing(&previous.release.document, &document)
            && is_whole(previous)
        {
            name(&root, &reference, &previous.release)?;
            return Ok(Packed {
                release: previous.release.clone(),
                blobs: 0,
                bytes: 0,
                reused_packs: previous.release.document.packs.len() as u64,
            });
        }
        if state.cases.values().any(|row| row.kept) {
            let missing = || Bad::new("the release", "is not there");
            state.load_kept(previous.as_ref().ok_or_else(missing)?)?;
        }
        state
            .spool
            .flush()
            .map_err(failed("can not write", temp.path()))?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(jobs.clamp(1, 256))
            .build()
            .map_err(|error| failed("can not start threads in", &root)(io::Error::other(error)))?;
        let blobs = Blobs {
            dir: root.join("blobs/sha256"),
            temp: temp.path().to_owned(),
            written: Mutex::default(),
        };
        real_dirs(&root)?;
        let work = Work {
            state: &state,
            compression,
            previous: previous.as_ref(),
            blobs: &blobs,
            stop,
        };
        let mut reused_packs = 0;
        pool.install(|| -> Result<(), PackError> {
            (document.packs, reused_packs) = work.packs(jobs)?;
            document.shards = work.shards()?;
            Ok(())
        })?;
        document.views = state.totals();
        let release = Release::new(document);
        if release.manifest.len() as u64 > limits::MANIFEST_BYTES
            || release.document_bytes.len() as u64 > limits::MANIFEST_BYTES
        {
            return Err(PackError::Case(
                "the release has a manifest of more than 8 MiB, more than a bundle can have"
                    .to_owned(),
            ));
        }
        blobs.write(&release.document_bytes)?;
        blobs.write(&release.manifest)?;
        let others = name(&root, &reference, &release)?;
        if let Some(previous) = &previous {
            let all = others.iter().chain([&release]);
            let needed: BTreeSet<Digest> = all.flat_map(with_manifest).collect();
            for digest in with_manifest(&previous.release) {
                if !needed.contains(&digest) {
                    let path = root.join(blob_key(digest));
                    fs::remove_file(&path)
                        .or_else(gone)
                        .map_err(failed("can not remove", &path))?;
                }
            }
        }
        let (blobs, bytes) = *blobs.written.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Packed {
            release,
            blobs,
            bytes,
            reused_packs,
        })
    }
}

/// Whether all blobs of a release are there, by their sizes.
fn is_whole(previous: &Previous) -> bool {
    let release = &previous.release;
    let mut blobs = release.blobs().into_iter().chain([release.manifest_blob()]);
    blobs.all(|blob| previous.has(blob))
}

fn with_manifest(release: &Release) -> impl Iterator<Item = Digest> {
    let blobs = release.blobs().into_iter().map(|blob| blob.digest);
    blobs.chain([release.digest])
}

/// Whether two documents are of the same content, made the same way.
fn same_but_packing(a: &Document, b: &Document) -> bool {
    let bare = |document: &Document| Document {
        views: BTreeMap::new(),
        shards: Vec::new(),
        packs: Vec::new(),
        ..document.clone()
    };
    bare(a) == bare(b)
}

/// A package taken apart into what comes from the other views, and the rest.
struct Split<'a> {
    workspace: Option<Mount>,
    evaluation: Option<Mount>,
    listing: Option<TreePath>,
    task: Vec<(&'a TreePath, &'a Entry)>,
}

impl<'a> Split<'a> {
    fn digests(&self, workspace: &Tree, evaluation: &Tree, harbor: Digest) -> CaseDigests {
        CaseDigests {
            workspace: workspace.id(),
            evaluation: evaluation.id(),
            task: id_of(self.task.iter().copied()),
            harbor,
        }
    }

    /// The workspace lies in a package whole or not at all; of the evaluation material a part may
    /// lie elsewhere, where the task tree has it.
    fn new(workspace: &Tree, evaluation: &Tree, package: &PackageTree<'a>) -> Self {
        let mut split = Self {
            workspace: None,
            evaluation: None,
            listing: None,
            task: Vec::new(),
        };
        // Places of the package that come from another view.
        let mut claimed: Vec<&TreePath> = Vec::new();
        for at in ["environment/workspace", "environment"] {
            let (found, missing) = common(package.tree, at, workspace);
            if missing.is_empty() && !workspace.is_empty() {
                split.workspace = Mount::new(at, missing);
                claimed.extend(found);
                break;
            }
        }
        let at = "tests/evaluation";
        let (found, missing) = common(package.tree, at, evaluation);
        if missing.len() < evaluation.len() {
            split.evaluation = Mount::new(at, missing);
            claimed.extend(found);
        }
        // Both are sorted, and one sorts before the other.
        let mut claimed = claimed.into_iter().peekable();
        let rest = package
            .tree
            .iter()
            .filter(|(path, _)| claimed.next_if_eq(path).is_none());
        split.task = rest.collect();
        let lists = |(_, Entry { mode, content }): &(&TreePath, &Entry), text: &[u8]| {
            *mode == Mode::Regular
                && content.size == text.len() as u64
                && match &content.data {
                    Data::Bytes(bytes) => **bytes == *text,
                    Data::File(_) => content.digest == Digest::of(text),
                }
        };
        let same = if let Some(known) = package.listing {
            split.task.iter().position(|(path, _)| *path == known)
        } else {
            let text = listing_file(workspace.iter());
            split.task.iter().position(|file| lists(file, &text))
        };
        debug_assert!(
            same.is_none_or(|at| lists(&split.task[at], &listing_file(workspace.iter()))),
            "it can be made again from the workspace"
        );
        if let Some(at) = same {
            split.listing = Some(split.task.remove(at).0.clone());
        }
        split
    }
}

impl Mount {
    fn new(at: &str, without: BTreeSet<TreePath>) -> Option<Self> {
        Some(Self {
            at: TreePath::new(at).ok()?,
            without,
        })
    }
}

/// The files of `view` that `package` has below `at`, by their places there, and those that it has
/// not.
fn common<'a>(package: &'a Tree, at: &str, view: &Tree) -> (Vec<&'a TreePath>, BTreeSet<TreePath>) {
    let below = |path: &'a TreePath| path.as_str().strip_prefix(at)?.strip_prefix('/');
    let mut there = package
        .starting_at(&format!("{at}/"))
        .map_while(|(place, entry)| Some((below(place)?, place, entry)))
        .peekable();
    let (mut found, mut missing) = (Vec::new(), BTreeSet::new());
    for (path, entry) in view.iter() {
        while there
            .next_if(|(below, ..)| *below < path.as_str())
            .is_some()
        {}
        let same = there.next_if(|(below, _, found)| {
            *below == path.as_str()
                && found.mode == entry.mode
                && found.content.digest == entry.content.digest
        });
        match same {
            Some((_, place, _)) => found.push(place),
            None => {
                missing.insert(path.clone());
            }
        }
    }
    (found, missing)
}

impl State {
    fn listing<'a>(
        &mut self,
        view: View,
        files: impl Iterator<Item = (&'a TreePath, &'a Entry)>,
        temp: &StagedDir,
    ) -> Result<Vec<u32>, PackError> {
        let mut recent = std::mem::take(&mut self.recent[view as usize])
            .into_iter()
            .peekable();
        let mut listing = Vec::with_capacity(files.size_hint().0);
        for (path, entry) in files {
            let path_of = |number: u32| &self.paths[self.entries[number as usize].0 as usize];
            while recent.next_if(|number| path_of(*number) < path).is_some() {}
            let same = recent.next_if(|number| {
                let (_, mode, content) = self.entries[*number as usize];
                path_of(*number) == path
                    && mode == entry.mode
                    && self.contents[content as usize].piece.digest == entry.content.digest
            });
            let number = if let Some(number) = same {
                number
            } else {
                let content = self.content(&entry.content, temp)?;
                self.entry(path, entry.mode, content)
            };
            listing.push(number);
        }
        self.recent[view as usize].clone_from(&listing);
        Ok(listing)
    }

    fn entry(&mut self, path: &TreePath, mode: Mode, content: u32) -> u32 {
        let paths = &mut self.paths;
        let path = *self.path_of.entry(path.clone()).or_insert_with(|| {
            paths.push(path.clone());
            number(paths.len() - 1)
        });
        let entries = &mut self.entries;
        *self
            .entry_of
            .entry((path, mode, content))
            .or_insert_with(|| {
                entries.push((path, mode, content));
                number(entries.len() - 1)
            })
    }

    fn content(&mut self, content: &Content, temp: &StagedDir) -> Result<u32, PackError> {
        if let Some(known) = self.content_of.get(&content.digest) {
            return Ok(*known);
        }
        let source = match &content.data {
            Data::Bytes(bytes) => {
                let at = self.spooled;
                self.spool
                    .write_all(bytes)
                    .map_err(failed("can not write to a file in", temp.path()))?;
                self.spooled += bytes.len() as u64;
                Source::Spool(at)
            }
            Data::File(at) => Source::File(Arc::clone(at)),
        };
        Ok(self.new_content(content.digest, content.size, source))
    }

    fn new_content(&mut self, digest: Digest, size: u64, source: Source) -> u32 {
        let number = number(self.contents.len());
        self.contents.push(Row {
            piece: Piece {
                digest,
                size,
                full: false,
            },
            source,
        });
        self.content_of.insert(digest, number);
        number
    }

    /// Fills in the listings of kept cases from the earlier release.
    fn load_kept(&mut self, previous: &Previous) -> Result<(), PackError> {
        let mut kept: BTreeMap<CaseId, CaseRow> = BTreeMap::new();
        self.cases.retain(|id, row| {
            if row.kept {
                let row = CaseRow {
                    digests: row.digests,
                    listings: [const { Vec::new() }; 3],
                    placement: None,
                    kept: true,
                };
                kept.insert(id.clone(), row);
            }
            !row.kept
        });
        for (at, view) in View::ALL.into_iter().enumerate() {
            let mut found = 0;
            let mut other = None;
            let wanted: BTreeSet<CaseId> = kept.keys().cloned().collect();
            previous.listings(
                view,
                &|id| wanted.contains(id),
                &mut |id, files, placement| {
                    let Some(row) = kept.get_mut(&id) else { return };
                    let digests = &row.digests;
                    let same = match view {
                        View::Workspace => id_of(&files) == digests.workspace,
                        View::Evaluation => id_of(&files) == digests.evaluation,
                        View::Task => {
                            id_of(&files) == digests.task
                                && placement.as_ref().map(|it| it.harbor) == Some(digests.harbor)
                        }
                    };
                    if !same {
                        other = Some(id);
                        return;
                    }
                    found += 1;
                    if placement.is_some() {
                        row.placement = placement;
                    }
                    let mut listing = Vec::with_capacity(files.len());
                    for file in files {
                        let content = match self.content_of.get(&file.digest) {
                            Some(content) => *content,
                            None => self.new_content(file.digest, file.size, Source::Previous),
                        };
                        listing.push(self.entry(&file.path, file.mode, content));
                    }
                    if let Some(place) = row.listings.get_mut(at) {
                        *place = listing;
                    }
                },
            )?;
            if other.is_some() || found != wanted.len() {
                let which = other.map_or_else(String::new, |id| format!(" '{id}'"));
                let why = format!("has not the case{which} that was to be kept");
                return Err(Bad::new("the release", why).into());
            }
        }
        self.cases.append(&mut kept);
        Ok(())
    }

    /// Files and bytes of each view.
    fn totals(&self) -> BTreeMap<View, (u64, u64)> {
        let mut totals = BTreeMap::new();
        for (at, view) in View::ALL.into_iter().enumerate() {
            let (mut files, mut bytes) = (0, 0_u64);
            for row in self.cases.values() {
                for entry in row.listings.get(at).into_iter().flatten() {
                    files += 1;
                    bytes = bytes.saturating_add(self.content_row(*entry).piece.size);
                }
            }
            totals.insert(view, (files, bytes));
        }
        totals
    }

    /// The content of an entry. Numbers of entries and contents are only made here.
    fn content_row(&self, entry: u32) -> &Row {
        &self.contents[self.entries[entry as usize].2 as usize]
    }

    fn push_entry(&self, out: &mut Vec<u8>, entry: u32) {
        let (path, mode, content) = self.entries[entry as usize];
        let Piece { digest, size, .. } = self.contents[content as usize].piece;
        let path = &self.paths[path as usize];
        let row = tree::Row {
            path,
            mode,
            digest,
            size,
        };
        push_row(out, row);
    }

    fn entry_len(&self, entry: u32) -> u64 {
        let (path, _, content) = self.entries[entry as usize];
        let size = self.contents[content as usize].piece.size;
        let digits = u64::from(size.checked_ilog10().unwrap_or(0)) + 1;
        json::text_len(self.paths[path as usize].as_str()) as u64 + digits + 74
    }
}

/// Numbers stay far below 2^32: a release has at most a million cases, and memory ends before.
fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// A pack to be.
struct Planned {
    view: View,
    shared: bool,
    range: Option<(String, String)>,
    contents: Vec<u32>,
    pieces: Vec<Piece>,
    frames: Vec<Holds>,
}

struct Work<'a> {
    state: &'a State,
    compression: Compression,
    previous: Option<&'a Previous>,
    blobs: &'a Blobs,
    stop: &'a AtomicBool,
}

/// A frame, ready to be written.
struct Squeezed {
    bytes: Vec<u8>,
    digest: Digest,
    raw: u64,
    /// Of a stretch of a large content: the inflated frame and where in it the data lie, to be hashed
    /// in order.
    data: Option<(u32, Vec<u8>, Range<usize>)>,
}

impl Work<'_> {
    /// Which content goes into which pack.
    fn plan(&self) -> Vec<Planned> {
        const NOWHERE: u32 = u32::MAX;
        let state = self.state;
        let ids: Vec<&CaseId> = state.cases.keys().collect();
        // For each content: its view, how many cases of it use it, and the last of them.
        let mut uses: Vec<(Option<View>, u32, u32)> =
            vec![(None, 0, NOWHERE); state.contents.len()];
        let mut planned = Vec::new();
        for (at, view) in View::ALL.into_iter().enumerate() {
            let mut met = Vec::new();
            for (case, row) in state.cases.values().enumerate() {
                let case = number(case);
                for entry in row.listings.get(at).into_iter().flatten() {
                    let content = state.entries[*entry as usize].2;
                    let (home, users, last) = &mut uses[content as usize];
                    if home.is_none() {
                        *home = Some(view);
                        met.push(content);
                    }
                    if *home == Some(view) && *last != case {
                        *users += 1;
                        *last = case;
                    }
                }
            }
            let (mut shared, own): (Vec<u32>, Vec<u32>) = met
                .into_iter()
                .partition(|content| uses[*content as usize].1 > 1);
            let piece = |content: &u32| state.contents[*content as usize].piece;
            shared.sort_by_key(|content| piece(content).digest);
            for (contents, is_shared) in [(shared, true), (own, false)] {
                let pieces: Vec<Piece> = contents.iter().map(piece).collect();
                for run in pack::packs(&pieces) {
                    let contents = contents.get(run.clone()).unwrap_or_default().to_vec();
                    let pieces = pieces.get(run).unwrap_or_default().to_vec();
                    let ends = contents.first().zip(contents.last());
                    let name = |content: &u32| {
                        if is_shared {
                            Some(piece(content).digest.hex())
                        } else {
                            let case = uses[*content as usize].2 as usize;
                            Some(ids.get(case)?.as_str().to_owned())
                        }
                    };
                    let told = !is_shared || view == View::Workspace;
                    planned.push(Planned {
                        view,
                        shared: is_shared,
                        range: ends
                            .filter(|_| told)
                            .and_then(|(first, last)| name(first).zip(name(last))),
                        contents,
                        frames: pack::frames(&pieces),
                        pieces,
                    });
                }
            }
        }
        let pieces = planned.iter().flat_map(|plan| &plan.pieces);
        let alike = pack::alike(pieces.map(|piece| piece.digest));
        if !alike.is_empty() {
            for piece in planned.iter_mut().flat_map(|plan| &mut plan.pieces) {
                piece.full = alike.contains(&piece.digest);
            }
        }
        planned
    }

    /// Makes the packs that are missing; also tells how many were taken over.
    fn packs(&self, jobs: usize) -> Result<(Vec<Pack>, u64), PackError> {
        let planned = self.plan();
        let mut there: BTreeMap<Digest, &Pack> = BTreeMap::new();
        let mut earlier: Option<Contents> = None;
        if let Some(previous) = self.previous {
            let document = &previous.release.document;
            let indexes = previous.indexes();
            let needed = self
                .state
                .contents
                .iter()
                .any(|row| matches!(row.source, Source::Previous));
            match indexes {
                Err(bad) if needed => return Err(bad.into()),
                // Nothing has to come from there.
                Err(_) => {}
                Ok(indexes) => {
                    let same_way =
                        document.writer == WRITER && document.compression == self.compression;
                    for (pack, index) in document.packs.iter().zip(&indexes) {
                        if same_way
                            && previous.has(pack.blob)
                            && let Some(list) = index.list
                        {
                            there.insert(list, pack);
                        }
                    }
                    if needed {
                        earlier = Some(previous.contents(indexes)?);
                    }
                }
            }
        }
        let mut packs: Vec<Option<Pack>> = Vec::new();
        let mut todo: Vec<(usize, usize)> = Vec::new();
        let mut reused = 0;
        for (at, plan) in planned.iter().enumerate() {
            let known = there.get(&pack::list_key(&plan.pieces));
            packs.push(known.map(|pack| Pack {
                view: plan.view,
                shared: plan.shared,
                range: plan.range.clone(),
                ..(*pack).clone()
            }));
            if known.is_some() {
                reused += 1;
            } else {
                todo.extend((0..plan.frames.len()).map(|frame| (at, frame)));
            }
        }
        self.squeeze_all(&planned, &todo, earlier.as_ref(), jobs, &mut packs)?;
        Ok((packs.into_iter().flatten().collect(), reused))
    }

    /// Makes the frames `todo` in parallel, and writes them in their order.
    fn squeeze_all(
        &self,
        planned: &[Planned],
        todo: &[(usize, usize)],
        earlier: Option<&Contents>,
        jobs: usize,
        packs: &mut [Option<Pack>],
    ) -> Result<(), PackError> {
        // Whether a large content shrinks is found out once, by whoever needs to know it first.
        let large: BTreeMap<u32, OnceLock<bool>> = todo
            .iter()
            .filter_map(|(pack, frame)| {
                let plan = planned.get(*pack)?;
                match plan.frames.get(*frame)? {
                    Holds::Stretch(at, _) => Some((*plan.contents.get(*at)?, OnceLock::new())),
                    Holds::Whole(_) => None,
                }
            })
            .collect();
        let mut open: Option<OpenPack> = None;
        let mut ready: Vec<Squeezed> = Vec::new();
        let mut written = todo.iter();
        let mut write = |ready: Vec<Squeezed>| -> Result<(), PackError> {
            for frame in ready {
                let Some((at, number)) = written.next() else {
                    break;
                };
                let Some(plan) = planned.get(*at) else { break };
                let pack = match &mut open {
                    Some(pack) => pack,
                    None => open.insert(OpenPack::new(self.blobs)?),
                };
                pack.add(frame, self.state)?;
                if number + 1 == plan.frames.len()
                    && let Some(pack) = open.take()
                    && let Some(place) = packs.get_mut(*at)
                {
                    *place = Some(pack.finish(plan, self)?);
                }
            }
            Ok(())
        };
        let window = (2 * jobs).clamp(2, MAX_WINDOW);
        for frames in todo.chunks(window) {
            if self.stop.load(Ordering::Relaxed) {
                return Err(PackError::Stopped);
            }
            let before = std::mem::take(&mut ready);
            let squeeze = || -> Result<Vec<Squeezed>, PackError> {
                frames
                    .par_iter()
                    .map_init(
                        || Squeezer::new(self.compression),
                        |squeezer, (pack, frame)| {
                            self.squeeze(planned, *pack, *frame, earlier, &large, squeezer)
                        },
                    )
                    .collect()
            };
            let (now, done) = rayon::join(squeeze, || write(before));
            done?;
            ready = now?;
        }
        write(ready)
    }

    fn squeeze(
        &self,
        planned: &[Planned],
        pack: usize,
        frame: usize,
        earlier: Option<&Contents>,
        large: &BTreeMap<u32, OnceLock<bool>>,
        squeezer: &mut Squeezer,
    ) -> Result<Squeezed, PackError> {
        let plan = &planned[pack];
        let mut read = Reader {
            state: self.state,
            earlier,
            frames: Frames::new(),
        };
        let temp = |source| failed("can not compress for", &self.blobs.dir)(source);
        let mut raw = Vec::new();
        let mut data = None;
        let mut fast = false;
        match &plan.frames[frame] {
            Holds::Whole(range) => {
                for at in range.clone() {
                    let piece = plan.pieces[at];
                    raw.extend(piece.header());
                    let start = raw.len();
                    read.append(plan.contents[at], 0..piece.size, &mut raw)?;
                    if Digest::of(&raw[start..]) != piece.digest {
                        return Err(read.changed(plan.contents[at]));
                    }
                    pack::pad(&mut raw, piece.size);
                }
            }
            Holds::Stretch(at, range) => {
                let (content, piece) = (plan.contents[*at], plan.pieces[*at]);
                if range.start == 0 {
                    raw.extend(piece.header());
                }
                let start = raw.len();
                read.append(content, range.clone(), &mut raw)?;
                data = Some((content, start..raw.len()));
                if range.end == piece.size {
                    pack::pad(&mut raw, piece.size);
                }
                if let Some(verdict) = large.get(&content) {
                    if let Some(known) = verdict.get() {
                        fast = *known;
                    } else {
                        let mut first = piece.header();
                        let to = piece.size.min(pack::LARGE - first.len() as u64);
                        read.append(content, 0..to, &mut first)?;
                        let size = squeezer.frame(&first, false).map_err(temp)?.len() as u64;
                        fast = size * SHRINKS.1 > first.len() as u64 * SHRINKS.0;
                        // Another thread has found the same, if any.
                        verdict.set(fast).ok();
                    }
                }
            }
        }
        let bytes = squeezer.frame(&raw, fast).map_err(temp)?;
        Ok(Squeezed {
            digest: Digest::of(&bytes),
            bytes,
            raw: raw.len() as u64,
            data: data.map(|(content, range)| (content, raw, range)),
        })
    }

    /// Writes the catalog shards.
    fn shards(&self) -> Result<Vec<CatalogShard>, PackError> {
        let state = self.state;
        let shards: Vec<Vec<CatalogShard>> = View::ALL
            .par_iter()
            .enumerate()
            .map(|(at, view)| {
                let lines: Vec<Line<'_>> = state
                    .cases
                    .iter()
                    .map(|(id, row)| Line {
                        id,
                        entries: row.listings.get(at).map_or(&[], Vec::as_slice),
                        placement: row.placement.as_ref().filter(|_| *view == View::Task),
                    })
                    .collect();
                let runs = catalog_writer::cut(&lines, &|entry| state.entry_len(entry));
                let shard = |run: &Range<usize>| -> Result<CatalogShard, PackError> {
                    let lines = lines.get(run.clone()).unwrap_or_default();
                    let text =
                        catalog_writer::text(lines, &|out, entry| state.push_entry(out, entry))
                            .map_err(|error| PackError::Case(error.to_string()))?;
                    let (Some(first), Some(last)) = (lines.first(), lines.last()) else {
                        return Err(PackError::Case("a shard has no case".to_owned()));
                    };
                    let compressed = pack::deflate_whole(&text)
                        .map_err(failed("can not compress for", &self.blobs.dir))?;
                    Ok(CatalogShard {
                        view: *view,
                        first: first.id.clone(),
                        last: last.id.clone(),
                        cases: lines.len() as u64,
                        blob: self.blobs.write(&compressed)?,
                        raw: text.len() as u64,
                    })
                };
                runs.par_iter().map(shard).collect()
            })
            .collect::<Result<_, PackError>>()?;
        Ok(shards.into_iter().flatten().collect())
    }
}

/// Gets the bytes of contents.
struct Reader<'a> {
    state: &'a State,
    earlier: Option<&'a Contents>,
    frames: Frames,
}

impl Reader<'_> {
    /// Appends the bytes `range` of a content.
    fn append(
        &mut self,
        content: u32,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), PackError> {
        let row = &self.state.contents[content as usize];
        let start = out.len();
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        match &row.source {
            Source::Previous => {
                let earlier = self
                    .earlier
                    .filter(|earlier| earlier.has(row.piece.digest))
                    .ok_or_else(|| {
                        Bad::new(format!("the content {}", row.piece.digest), "is not there")
                    })?;
                earlier.read(row.piece.digest, range, &mut self.frames, out)?;
            }
            Source::Spool(at) => {
                out.resize(start + length, 0);
                self.state
                    .spool
                    .get_ref()
                    .read_exact_at(&mut out[start..], at + range.start)
                    .map_err(failed("can not read", Path::new("the temporary file")))?;
            }
            Source::File(file) => {
                let FileAt { root, path, stamp } = &**file;
                let why = |error: ReadError| PackError::Source {
                    path: root.absolute(Some(path)),
                    why: error.to_string(),
                };
                let (file, before) = root.open_file(path).map_err(why)?;
                out.resize(start + length, 0);
                if before != *stamp {
                    return Err(self.changed(content));
                }
                file.read_exact_at(&mut out[start..], range.start)
                    .map_err(|error| why(error.into()))?;
                if Stamp::of_open(&file).map_err(|error| why(error.into()))?.1 != *stamp {
                    return Err(self.changed(content));
                }
            }
        }
        if out.len() - start == length {
            Ok(())
        } else {
            Err(self.changed(content))
        }
    }

    fn changed(&self, content: u32) -> PackError {
        changed(self.state, content)
    }
}

/// The content is not what it was when it was hashed.
fn changed(state: &State, content: u32) -> PackError {
    let row = &state.contents[content as usize];
    let why = "it changed while it was read".to_owned();
    match &row.source {
        Source::File(file) => PackError::Source {
            path: file.root.absolute(Some(&file.path)),
            why,
        },
        Source::Spool(_) => PackError::Source {
            path: PathBuf::from("the temporary file"),
            why,
        },
        Source::Previous => PackError::Previous(Bad::new(
            format!("the content {}", row.piece.digest),
            "has other bytes than its digest says",
        )),
    }
}

/// A pack that is being written.
struct OpenPack {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    size: u64,
    raw: u64,
    frames: Vec<Frame>,
    /// The large content that is under way.
    large: Option<(u32, Hasher, u64)>,
}

impl OpenPack {
    fn new(blobs: &Blobs) -> Result<Self, PackError> {
        let path = blobs.temp.join("pack");
        let file = File::create(&path).map_err(failed("can not create", &path))?;
        Ok(Self {
            path,
            file,
            hasher: Hasher::new(),
            size: 0,
            raw: 0,
            frames: Vec::new(),
            large: None,
        })
    }

    fn add(&mut self, frame: Squeezed, state: &State) -> Result<(), PackError> {
        if let Some((content, raw, range)) = frame.data {
            let data = raw.get(range).unwrap_or_default();
            let (_, hasher, size) = self
                .large
                .get_or_insert_with(|| (content, Hasher::new(), 0));
            hasher.update(data);
            *size += data.len() as u64;
            let piece = state.contents[content as usize].piece;
            if *size >= piece.size
                && let Some((_, hasher, _)) = self.large.take()
                && hasher.finish() != piece.digest
            {
                return Err(changed(state, content));
            }
        }
        self.file
            .write_all(&frame.bytes)
            .map_err(failed("can not write", &self.path))?;
        self.hasher.update(&frame.bytes);
        self.frames.push(Frame {
            offset: self.size,
            length: frame.bytes.len() as u64,
            raw: frame.raw,
            digest: frame.digest,
        });
        self.size += frame.bytes.len() as u64;
        self.raw += frame.raw;
        Ok(())
    }

    fn finish(mut self, plan: &Planned, work: &Work<'_>) -> Result<Pack, PackError> {
        let raw = pack::index_frame(&plan.pieces, &plan.frames, &self.frames);
        let bytes = Squeezer::new(work.compression)
            .frame(&raw, false)
            .map_err(failed("can not compress for", &work.blobs.dir))?;
        let index = Descriptor::of(&bytes);
        let frame = Squeezed {
            digest: index.digest,
            bytes,
            raw: raw.len() as u64,
            data: None,
        };
        self.add(frame, work.state)?;
        let blob = Descriptor {
            digest: self.hasher.finish(),
            size: self.size,
        };
        work.blobs.place(&self.path, blob)?;
        Ok(Pack {
            view: plan.view,
            shared: plan.shared,
            range: plan.range.clone(),
            blob,
            raw: self.raw,
            index,
        })
    }
}

/// Where blobs go.
struct Blobs {
    dir: PathBuf,
    temp: PathBuf,
    /// Number and bytes of those written.
    written: Mutex<(u64, u64)>,
}

impl Blobs {
    /// Writes a blob, unless it is there.
    fn write(&self, bytes: &[u8]) -> Result<Descriptor, PackError> {
        let blob = Descriptor::of(bytes);
        let path = self.dir.join(blob.digest.hex());
        if !has_size(&path, blob.size) {
            write_atomic(&path, bytes, 0o644).map_err(refused("can not write"))?;
            self.count(blob);
        }
        Ok(blob)
    }

    /// Moves a finished file to its place.
    fn place(&self, from: &Path, blob: Descriptor) -> Result<(), PackError> {
        let path = self.dir.join(blob.digest.hex());
        if has_size(&path, blob.size) {
            return fs::remove_file(from).map_err(failed("can not remove", from));
        }
        set_readable(from).map_err(failed("can not write", from))?;
        replace(from, &path).map_err(refused("can not write"))?;
        self.count(blob);
        Ok(())
    }

    fn count(&self, blob: Descriptor) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.0 += 1;
        written.1 += blob.size;
    }
}

/// Mode 0644, whatever the umask is.
fn set_readable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

fn has_size(path: &Path, size: u64) -> bool {
    path.symlink_metadata()
        .is_ok_and(|there| there.is_file() && there.len() == size)
}

/// Makes the directories of a store root; none of them may be a link that leads elsewhere.
fn real_dirs(root: &Path) -> Result<(), PackError> {
    for name in ["blobs", "blobs/sha256", "refs"] {
        real_dir(&root.join(name))?;
    }
    Ok(())
}

fn real_dir(path: &Path) -> Result<(), PackError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(failed("can not create", path))?,
    }
    let there = path
        .symlink_metadata()
        .map_err(failed("can not read", path))?;
    if there.is_dir() {
        Ok(())
    } else {
        Err(failed("can not write to", path)(io::Error::other(
            "it is no directory",
        )))
    }
}

/// Writes all that names the release, of which the blobs are there: the ref, which makes it one, before
/// the index, which follows from the refs. Gives the releases of the other refs.
fn name(root: &Path, reference: &RefName, release: &Release) -> Result<Vec<Release>, PackError> {
    put(root, OCI_LAYOUT, OCI_LAYOUT_BYTES)?;
    put(root, &reference.key(), &ref_object(release))?;
    let others = refs(root, reference)?;
    put(root, INDEX_JSON, &index_of(&others, reference, release))?;
    Ok(others.into_iter().map(|(_, release)| release).collect())
}

/// The index of a store that has `release` under `reference`, and the others.
fn index_of(others: &[(RefName, Release)], reference: &RefName, release: &Release) -> Vec<u8> {
    let mine = (reference, release.manifest_blob());
    let all = others.iter();
    let all = all.map(|(name, release)| (name, release.manifest_blob()));
    index_json(all.chain([mine]))
}

/// Writes an object that is no blob, unless it has these bytes.
fn put(root: &Path, key: &str, bytes: &[u8]) -> Result<(), PackError> {
    let path = root.join(key);
    if let Some(dir) = path.parent().filter(|dir| *dir != root) {
        real_dir(dir)?;
    }
    let there = read_regular(&path, bytes.len() as u64);
    if there.is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    write_atomic(&path, bytes, 0o644).map_err(refused("can not write"))
}

/// The readable refs of a store root but `mine`.
fn refs(root: &Path, mine: &RefName) -> Result<Vec<(RefName, Release)>, PackError> {
    let dir = root.join(REFS);
    let mut found = Vec::new();
    // What is no file is no ref that can be read.
    let read = |path: &Path, limit: u64| -> io::Result<Vec<u8>> {
        match read_regular(path, limit) {
            Err(ReadError::Io(error)) => Err(error),
            read => Ok(read.unwrap_or_default()),
        }
    };
    let mut list = |dir: &Path, prefix: &str| -> io::Result<Vec<String>> {
        let mut dirs = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                dirs.push(name);
            } else if kind.is_file()
                && let Some(name) = RefName::from_key(&format!("{REFS}{prefix}{name}"))
                && name != *mine
                && let bytes = read(&entry.path(), 2 * limits::MANIFEST_BYTES)?
                && let Ok((digest, manifest)) = release_of_ref(&name, &bytes)
                && let Ok(release) = Release::parse(digest, manifest, |config| {
                    read(&root.join(blob_key(config.digest)), config.size)
                })
            {
                found.push((name, release));
            }
        }
        Ok(dirs)
    };
    let dirs = list(&dir, "").map_err(failed("can not read", &dir))?;
    for name in dirs {
        let dir = dir.join(&name);
        list(&dir, &format!("{name}/")).map_err(failed("can not read", &dir))?;
    }
    Ok(found)
}

fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PackError + use<> {
    let path = path.to_owned();
    move |source| PackError::Io {
        doing,
        path,
        source,
    }
}

fn refused(doing: &'static str) -> impl FnOnce(FsError) -> PackError {
    move |FsError { path, source }| PackError::Io {
        doing,
        path,
        source,
    }
}
