//! The directory that a pull fills: what casepack put there, and what of it is still so.
//!
//! A *record* says which cases are casepack's, whatever layout they came in. What a pull is about to
//! put in place is written to a *journal* first, so that what a killed pull left is known as well;
//! the journal is there as long as a pull is not finished, and is its lock. A case is known by what
//! it looks like, or else by its digest. Casepack's own files are opened below the handle of the
//! destination, never through a link.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Layout, PublishError, Pull, failed, refused};
use crate::digest::{Digest, TreeId};
use crate::event::{Event, Observer};
use crate::fs::{Found, FsError, Kind, ReadError, Root, StagedDir, Stamp, Walk, lock, write_all};
use crate::path::{CaseId, TreePath, fold};
use crate::plan::fingerprint::{Aids, GRANULARITY, look};
use crate::tree::{Content, Tree};

const SCHEMA: &str = "casepack.pulled.v1";
/// Bytes of a record or a journal that are believed to be one.
const MAX_RECORD: u64 = 512 << 20;
/// How often a directory that is removed again at once is made.
const TRIES: usize = 100;
/// The directory for what is not finished in a destination; of packages also for the record.
pub(super) const STATE: &str = ".casepack";
/// The record of other layouts, a file: adapters take every directory for a case.
pub const RECORD: &str = ".casepack.pulled";
/// The record of packages.
const PACKAGES_RECORD: &str = ".casepack/pull.json";
const JOURNAL: &str = ".casepack/pull.journal";
const STAGING: &str = ".casepack/tmp";

/// What casepack put into a destination.
#[derive(Serialize, Deserialize, Default)]
struct Record {
    schema: String,
    cases: BTreeMap<String, Known>,
    /// Files beside the cases, and their digests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
struct Known {
    /// The tree that was written.
    tree: String,
    /// What the directory looked like then.
    seen: Option<String>,
    /// The dataset that it is a case of; earlier casepacks did not say.
    #[serde(default)]
    dataset: Option<String>,
    /// The layout of it; earlier casepacks did not say.
    #[serde(default)]
    layout: Option<String>,
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    /// A case that is about to be put in place.
    Case(String, Known),
    /// A file beside the cases, and its digest.
    File(String, String),
}

/// What is at a case's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum There {
    /// Nothing.
    Nothing,
    /// The tree that is wanted.
    Same,
    /// Another tree, which casepack wrote.
    Ours,
    /// The same, but in another layout.
    Relaid,
    /// Something else.
    Foreign,
}

/// Directories that were made for a pull. Those that have nothing in them go again with this.
struct Made(Vec<PathBuf>);

impl Made {
    /// Makes `dir`, and what is missing above it.
    fn new(dir: &Path) -> Result<Self, PublishError> {
        let missing = dir.ancestors().take_while(|dir| !dir.exists());
        let made = Self(missing.map(Path::to_owned).collect());
        fs::create_dir_all(dir).map_err(failed("can not create", dir))?;
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in &self.0 {
            // Of another pull's, something may be in them.
            fs::remove_dir(dir).ok();
        }
    }
}

/// A destination, which this pull alone works on.
pub(super) struct Destination {
    out: Arc<Root>,
    layout: Layout,
    dataset: String,
    record: Mutex<Record>,
    /// Locked; what is in it is in the record as well.
    journal: File,
    /// Whether the journal is needed no more.
    finished: bool,
    /// The record, where one is that can't be read.
    damaged: Option<PathBuf>,
    /// Goes last.
    _made: Made,
}

impl Destination {
    /// Opens the destination, made when it is missing; waits for a pull that is at work in it.
    /// `None` when it was stopped before that had ended.
    pub(super) fn open(
        pull: &Pull<'_>,
        observer: &dyn Observer,
    ) -> Result<Option<Self>, PublishError> {
        let mut told = false;
        let mut tries = 0;
        let (made, out, mut journal) = loop {
            let made = Made::new(pull.out)?;
            let out = Arc::new(Root::open(pull.out).map_err(refused("can not use"))?);
            let (at, _) = records(pull.layout);
            if let Ok(Some((Kind::Dir, _))) = out.stat(&own(at)) {
                return Err(in_the_way(&out, at, "a file"));
            }
            let Some(journal) = open_journal(&out)? else {
                tries += 1;
                if tries > TRIES {
                    let gone = std::io::Error::from(ErrorKind::NotFound);
                    return Err(failed("can not make a directory in", pull.out)(gone));
                }
                continue;
            };
            let waiting = || {
                if !std::mem::replace(&mut told, true) {
                    observer.on(Event::Waiting { pid: None });
                }
            };
            let path = out.absolute(Some(&own(JOURNAL)));
            let locked = lock(&journal, false, pull.stop, waiting);
            if !locked.map_err(failed("can not lock", &path))? {
                return Ok(None);
            }
            // Whoever had it may have finished and removed it.
            let now = out.stat(&own(JOURNAL)).map_err(refused("can not read"))?;
            let ours = Stamp::of_open(&journal).map_err(failed("can not read", &path))?;
            if now.is_some_and(|(_, now)| (now.dev, now.ino) == (ours.1.dev, ours.1.ino)) {
                break (made, out, journal);
            }
        };
        // Records and the list of packages are staged beside their places. What can't go is told at
        // the end.
        for dir in [Some(STAGING), Some(STATE), None] {
            out.sweep_stale(dir.map(own).as_ref()).ok();
        }
        let mut damaged = None;
        let mut lines = Vec::new();
        let mut files = BTreeMap::new();
        for name in [PACKAGES_RECORD, RECORD] {
            match Record::read(&out, name) {
                Ok(record) => {
                    lines.extend(record.cases);
                    files.extend(record.files);
                }
                Err(Missing::NotThere) => {}
                Err(Missing::Damaged) => damaged = Some(pull.out.join(name)),
            }
        }
        for line in read_journal(&mut journal)
            .map_err(failed("can not read", &out.absolute(Some(&own(JOURNAL)))))?
        {
            match line {
                Line::Case(name, known) => lines.push((name, known)),
                // Announced, and maybe never written.
                Line::File(name, digest) => {
                    let path = TreePath::new(&name).ok();
                    let there = path.and_then(|path| out.read(&path, MAX_RECORD).ok());
                    if there.is_some_and(|(there, _)| Digest::of(&there).hex() == digest) {
                        files.insert(name, digest);
                    }
                }
            }
        }
        let record = Record {
            schema: SCHEMA.to_owned(),
            cases: settled(&out, lines).map_err(refused("can not read"))?,
            files,
        };
        Ok(Some(Self {
            out,
            layout: pull.layout,
            dataset: pull.release.document.name.clone(),
            record: Mutex::new(record),
            journal,
            finished: false,
            damaged,
            _made: made,
        }))
    }

    /// Its handle.
    pub(super) fn root(&self) -> &Arc<Root> {
        &self.out
    }

    /// The record, where one is that can't be read.
    pub(super) fn damaged(&self) -> Option<&Path> {
        self.damaged.as_deref()
    }

    /// An empty directory, out of sight, and its place.
    pub(super) fn staged(&self) -> Result<(StagedDir, TreePath), PublishError> {
        let staging = own(STAGING);
        let staged = StagedDir::below(&self.out, &staging)
            .map_err(refused("can not create a directory in"))?;
        let name = staged.path().file_name().unwrap_or_default();
        let place = staging
            .child(&name.to_string_lossy())
            .map_err(|why| failed("can not use", staged.path())(std::io::Error::other(why)))?;
        Ok((staged, place))
    }

    /// What is at the place `name`, where `tree` is wanted. `force`: what it looks like is no
    /// proof, and what can't be read is something else.
    pub(super) fn there(
        &self,
        name: &CaseId,
        tree: TreeId,
        force: bool,
    ) -> Result<There, PublishError> {
        let known = self.record().cases.get(name.as_str()).cloned();
        match self.compare(known.as_ref(), name, tree, force) {
            Err(_) if force => Ok(There::Foreign),
            there => there.map_err(refused("can not read")),
        }
    }

    fn compare(
        &self,
        known: Option<&Known>,
        name: &CaseId,
        tree: TreeId,
        by_content: bool,
    ) -> Result<There, FsError> {
        let place = name.to_path();
        match self.out.stat(&place)? {
            None => return Ok(There::Nothing),
            Some((Kind::Dir, _)) => {}
            Some(_) => return Ok(There::Foreign),
        }
        let wanted = tree.0.hex();
        let known_by_look = known.filter(|known| !by_content && known.seen.is_some());
        let found = match known_by_look {
            Some(known) if known.seen == seen(&self.out, Some(&place))? => Some(known.tree.clone()),
            _ => content(&self.out, &place)?,
        };
        Ok(match (found, known) {
            (Some(found), _) if found == wanted => There::Same,
            (Some(found), Some(known)) if found == known.tree => {
                let layout = known.layout.as_deref();
                if layout.is_none_or(|layout| layout == self.layout.name()) {
                    There::Ours
                } else {
                    There::Relaid
                }
            }
            _ => There::Foreign,
        })
    }

    /// Takes `tree`, which is at the place `name` already, for a case of this dataset.
    pub(super) fn adopt(&self, name: &CaseId, tree: TreeId) -> Result<(), PublishError> {
        let old = self.record().cases.get(name.as_str()).cloned();
        let old = old.filter(|known| known.tree == tree.0.hex());
        let known = self.known(tree, old.as_ref().and_then(|known| known.seen.clone()));
        if old.is_none() {
            self.announce(&Line::Case(name.as_str().to_owned(), known.clone()))?;
        }
        self.record().cases.insert(name.as_str().to_owned(), known);
        Ok(())
    }

    /// Puts `staged`, which has `tree`, at the place `name`. What is there and is no directory goes
    /// first: it is casepack's, or the user said so.
    pub(super) fn put(
        &self,
        staged: StagedDir,
        name: &CaseId,
        tree: TreeId,
    ) -> Result<(), PublishError> {
        let root = Arc::new(staged.root().map_err(refused("can not read"))?);
        // Before it comes to its place, where anybody may change it.
        let known = self.known(tree, seen(&root, None).map_err(refused("can not read"))?);
        self.announce(&Line::Case(name.as_str().to_owned(), known.clone()))?;
        let place = name.to_path();
        let there = self.out.stat(&place).map_err(refused("can not read"))?;
        if there.is_some_and(|(kind, _)| kind != Kind::Dir) {
            let removed = self.out.remove_file(&place);
            removed.map_err(refused("can not remove"))?;
        }
        if let Err(error) = staged.commit_in(&self.out, name.as_str()) {
            // It may be in place, and what was there before not be removed: `finish` tells.
            let there = self.compare(Some(&known), name, tree, false).ok();
            if there != Some(There::Same) {
                return Err(refused("can not write")(error));
            }
        }
        self.record().cases.insert(name.as_str().to_owned(), known);
        Ok(())
    }

    /// Refuses what is in the place of a file beside the cases, unless casepack wrote it or it has
    /// `bytes`; `force` refuses only a directory.
    pub(super) fn check_file(
        &self,
        name: &str,
        bytes: &[u8],
        force: bool,
    ) -> Result<(), PublishError> {
        let path = own(name);
        match self.out.stat(&path).map_err(refused("can not read"))? {
            None => return Ok(()),
            Some((Kind::Dir, _)) => return Err(in_the_way(&self.out, name, "a file")),
            Some(_) if force => return Ok(()),
            Some(_) => {}
        }
        let known = self.record().files.get(name).cloned();
        match self.out.read(&path, MAX_RECORD) {
            Ok((there, _)) if there == bytes || known == Some(Digest::of(&there).hex()) => Ok(()),
            Err(ReadError::Io(error)) => {
                let path = self.out.absolute(Some(&path));
                Err(failed("can not read", &path)(error))
            }
            _ => Err(PublishError::refused(
                format!(
                    "{} is something else, or was changed since it was pulled; it is left as it is",
                    self.out.named().join(name).display()
                ),
                "Pull into another directory with -o, or replace it with --force.",
            )),
        }
    }

    /// Writes a file beside the cases.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PublishError> {
        let path = own(name);
        let digest = Digest::of(bytes).hex();
        let limit = bytes.len() as u64;
        let there = self.out.read(&path, limit);
        if !there.is_ok_and(|(there, _)| there == bytes) {
            self.announce(&Line::File(name.to_owned(), digest.clone()))?;
            self.replace(&path, bytes)?;
        }
        self.record().files.insert(name.to_owned(), digest);
        Ok(())
    }

    /// What was pulled of this dataset, or of who knows which, and is none of `names`, folded.
    /// `relaid`: only what came in another layout.
    fn others(&self, names: &BTreeSet<String>, relaid: bool) -> Vec<(String, Known)> {
        let record = self.record();
        let others = record.cases.iter().filter(|(name, known)| {
            let of = known.dataset.as_deref();
            let layout = known.layout.as_deref();
            !names.contains(&fold(name))
                && of.is_none_or(|of| of == self.dataset)
                && (!relaid || layout.is_some_and(|layout| layout != self.layout.name()))
        });
        others
            .map(|(name, known)| (name.clone(), known.clone()))
            .collect()
    }

    /// Cases in another layout that are there and are none of `names`, folded.
    pub(super) fn relaid(&self, names: &BTreeSet<String>) -> Result<Vec<CaseId>, PublishError> {
        let mut relaid = Vec::new();
        let others = self.others(names, true).into_iter();
        for id in others.filter_map(|(name, _)| CaseId::new(&name).ok()) {
            let there = self.out.stat(&id.to_path());
            if there.map_err(refused("can not read"))?.is_some() {
                relaid.push(id);
            }
        }
        Ok(relaid)
    }

    /// Removes what was pulled of this dataset, or of who knows which, and is none of `names`,
    /// folded, nor of `files`, as far as it is as it was pulled; of cases in this layout, only when
    /// `all` of them are named. Returns what is left.
    pub(super) fn remove_others(
        &self,
        names: &BTreeSet<String>,
        files: &[&str],
        all: bool,
    ) -> Result<Vec<String>, PublishError> {
        let mut left = Vec::new();
        let others = self.others(names, !all);
        let mut record = self.record();
        for (name, known) in others {
            let case = || {
                Some((
                    CaseId::new(&name).ok()?,
                    Digest::from_hex(&known.tree).ok()?,
                ))
            };
            let there = case().map(|(id, tree)| {
                let there = self.compare(Some(&known), &id, TreeId(tree), false);
                there.map(|there| (id, there))
            });
            match there.transpose().map_err(refused("can not read"))? {
                Some((_, There::Nothing)) => {}
                Some((id, There::Same)) if known.dataset.is_some() => self
                    .out
                    .remove_at_once(&id.to_path(), &own(STAGING))
                    .map_err(refused("can not remove"))?,
                _ => {
                    left.push(name);
                    continue;
                }
            }
            record.cases.remove(&name);
        }
        let others = record.files.iter();
        let others = others.filter(|(name, _)| !files.contains(&name.as_str()));
        let others: Vec<(String, String)> = others
            .map(|(name, digest)| (name.clone(), digest.clone()))
            .collect();
        for (name, digest) in others {
            let Ok(path) = TreePath::new(&name) else {
                continue;
            };
            match self.out.read(&path, MAX_RECORD) {
                Err(ReadError::Missing) => {}
                Ok((bytes, _)) if Digest::of(&bytes).hex() == digest => {
                    let removed = self.out.remove_file(&path);
                    removed.map_err(refused("can not remove"))?;
                }
                _ => {
                    left.push(name);
                    continue;
                }
            }
            record.files.remove(&name);
        }
        Ok(left)
    }

    /// Writes the record; it has to be younger than what it vouches for. Where none is and nothing
    /// is to be recorded, none is made. Returns where something is that could not be removed.
    pub(super) fn finish(mut self) -> Result<Option<&'static str>, PublishError> {
        let (at, other) = records(self.layout);
        let path = own(at);
        let bytes = {
            let record = self.record();
            let empty = record.cases.is_empty() && record.files.is_empty();
            let bytes = serde_json::to_vec(&*record)
                .map_err(|error| failed("can not write", Path::new(at))(error.into()))?;
            let there = self.out.read(&path, MAX_RECORD);
            let missing = matches!(there, Err(ReadError::Missing));
            let same = there.is_ok_and(|(there, _)| there == bytes);
            let keep = same || empty && missing;
            (!keep).then_some(bytes)
        };
        if let Some(bytes) = bytes {
            std::thread::sleep(GRANULARITY);
            self.replace(&path, &bytes)?;
        }
        // What it said is in the one that was just written.
        if let Ok(Some((Kind::File, _))) = self.out.stat(&own(other)) {
            let removed = self.out.remove_file(&own(other));
            removed.map_err(refused("can not remove"))?;
        }
        self.finished = true;
        self.out.remove_empty_dir(&own(STAGING)).ok();
        let rest = self.out.stat(&own(STAGING));
        let rest = rest.map_err(refused("can not read"))?;
        Ok(rest.is_some().then_some(STAGING))
    }

    fn known(&self, tree: TreeId, seen: Option<String>) -> Known {
        Known {
            tree: tree.0.hex(),
            seen,
            dataset: Some(self.dataset.clone()),
            layout: Some(self.layout.name().to_owned()),
        }
    }

    /// Writes to the journal what is about to be done.
    fn announce(&self, line: &Line) -> Result<(), PublishError> {
        let path = self.out.absolute(Some(&own(JOURNAL)));
        let mut text = serde_json::to_vec(line)
            .map_err(|error| failed("can not write", &path)(error.into()))?;
        text.push(b'\n');
        // One at a time: a line that is written in two pieces stays one.
        let _one = self.record();
        write_all(&self.journal, &text)
            .map_err(|errno| failed("can not write", &path)(errno.into()))
    }

    fn replace(&self, path: &TreePath, bytes: &[u8]) -> Result<(), PublishError> {
        let failed = || refused("can not write");
        let staged = self.out.stage(path, 0o644).map_err(failed())?;
        write_all(staged.file(), bytes).map_err(|errno| {
            failed()(FsError {
                path: self.out.absolute(Some(path)),
                source: errno.into(),
            })
        })?;
        staged.commit().map_err(failed())
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        let empty = self.journal.metadata().is_ok_and(|there| there.len() == 0);
        if self.finished || empty {
            self.out.remove_file(&own(JOURNAL)).ok();
            // Of a build, something may be in them.
            for dir in [STAGING, STATE] {
                self.out.remove_empty_dir(&own(dir)).ok();
            }
        }
    }
}

/// The record of a layout, and that of the others.
fn records(layout: Layout) -> (&'static str, &'static str) {
    match layout {
        Layout::Harbor => (PACKAGES_RECORD, RECORD),
        Layout::Cases | Layout::View(_) => (RECORD, PACKAGES_RECORD),
    }
}

/// A path of casepack's own.
fn own(path: &str) -> TreePath {
    TreePath::new(path).expect("constants, each of which is a path")
}

/// Makes the state directories and opens the journal; `None` when another pull is just removing
/// them.
fn open_journal(out: &Root) -> Result<Option<File>, PublishError> {
    match out.make_dir(&own(STAGING)) {
        Ok(()) => {}
        Err(error) if error.source.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            for dir in [STATE, STAGING] {
                if let Ok(Some((kind, _))) = out.stat(&own(dir))
                    && kind != Kind::Dir
                {
                    return Err(in_the_way(out, dir, "a directory"));
                }
            }
            return Err(refused("can not create")(error));
        }
    }
    match out.open_to_append(&own(JOURNAL)) {
        Ok(journal) => Ok(Some(journal)),
        Err(ReadError::Missing) => Ok(None),
        Err(ReadError::Io(error)) => {
            let path = out.absolute(Some(&own(JOURNAL)));
            Err(failed("can not open", &path)(error))
        }
        Err(_) => Err(in_the_way(out, JOURNAL, "a file")),
    }
}

fn in_the_way(out: &Root, path: &str, what: &str) -> PublishError {
    PublishError::refused(
        format!(
            "{} is a link or something else than {what} of casepack's own",
            out.named().join(path).display()
        ),
        "Nothing was written. Remove it, or pull into another directory with -o.",
    )
}

/// What was announced by pulls that were not finished.
fn read_journal(journal: &mut File) -> std::io::Result<Vec<Line>> {
    let mut bytes = Vec::new();
    (&mut *journal).take(MAX_RECORD).read_to_end(&mut bytes)?;
    // The last line may be cut: then nothing was put in place for it.
    if bytes.last().is_some_and(|last| *last != b'\n') {
        write_all(&*journal, b"\n")?;
    }
    let lines = bytes.split(|byte| *byte == b'\n');
    Ok(lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect())
}

/// One state for each case: where several were announced, the one that is there.
fn settled(
    out: &Arc<Root>,
    lines: Vec<(String, Known)>,
) -> Result<BTreeMap<String, Known>, FsError> {
    let mut states: BTreeMap<String, Vec<Known>> = BTreeMap::new();
    for (name, known) in lines {
        let states = states.entry(name).or_default();
        states.retain(|before| *before != known);
        states.push(known);
    }
    let one = |(name, mut states): (String, Vec<Known>)| {
        let Some(last) = states.pop() else {
            return Ok(None);
        };
        if states.is_empty() {
            return Ok(Some((name, last)));
        }
        let Ok(place) = CaseId::new(&name) else {
            return Ok(None);
        };
        let place = place.to_path();
        states.push(last.clone());
        let looks = seen(out, Some(&place))?;
        let looks = |known: &&Known| known.seen.is_some() && known.seen == looks;
        let mut found = states.iter().rev().find(looks);
        if found.is_none()
            && let Some(tree) = content(out, &place)?
        {
            found = states.iter().rev().find(|known| known.tree == tree);
        }
        Ok(Some((name, found.unwrap_or(&last).clone())))
    };
    let settled: Result<Vec<_>, FsError> = states.into_par_iter().map(one).collect();
    Ok(settled?.into_iter().flatten().collect())
}

/// Why there is no record.
enum Missing {
    NotThere,
    Damaged,
}

impl Record {
    fn read(out: &Root, name: &str) -> Result<Self, Missing> {
        let bytes = match out.read(&own(name), MAX_RECORD) {
            Ok((bytes, _)) => bytes,
            Err(ReadError::Missing) => return Err(Missing::NotThere),
            Err(_) => return Err(Missing::Damaged),
        };
        let record: Option<Self> = serde_json::from_slice(&bytes).ok();
        let mut record = record
            .filter(|record| record.schema == SCHEMA)
            .ok_or(Missing::Damaged)?;
        if name == PACKAGES_RECORD {
            for known in record.cases.values_mut() {
                let layout = known.layout.take();
                known.layout = layout.or_else(|| Some(Layout::Harbor.name().to_owned()));
            }
        }
        Ok(record)
    }
}

/// `None` for what is gone, or is no directory.
fn present<T>(looked: Result<T, FsError>) -> Result<Option<T>, FsError> {
    match looked {
        Err(error)
            if matches!(
                error.source.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        looked => looked.map(Some),
    }
}

/// What a directory looks like; `None` when a look can't vouch for it.
fn seen(root: &Arc<Root>, place: Option<&TreePath>) -> Result<Option<String>, FsError> {
    let look = present(look(root, place, Aids::default()))?;
    let look = look.filter(|look| !look.odd);
    Ok(look.map(|look| look.fingerprint.hex()))
}

/// The digest of the files that are at `place`; `None` when there is something else as well: pulled
/// cases have no directories with nothing in them.
fn content(root: &Arc<Root>, place: &TreePath) -> Result<Option<String>, FsError> {
    let mut empty = false;
    let walked = root.walk(Some(place), &mut |found| {
        // A case without files is one.
        empty |= matches!(found, Found::EmptyDir(dir) if dir != *place);
        Walk::Enter
    });
    if present(walked)?.is_none() || empty {
        return Ok(None);
    }
    let bad = match Tree::from_dir(root, Some(place), 0) {
        Ok(tree) => return Ok(Some(tree.id().0.hex())),
        Err(bad) => bad,
    };
    // What can't be read is no change.
    for path in bad.iter().filter_map(|bad| TreePath::new(&bad.shown).ok()) {
        if let Err(ReadError::Io(source)) = Content::from_file(root, &path, 0) {
            let path = root.absolute(Some(&path));
            return Err(FsError { path, source });
        }
    }
    Ok(None)
}
