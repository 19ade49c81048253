//! One output directory: places trees under their names, whole, and remembers what it placed.
//!
//! State lies in `OUT/.casepack/`: the record of each target, a journal of what is being placed
//! (so that a killed build knows its own work again), the lock, and staging directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::fingerprint::{Aids, GRANULARITY, look, look_of};
use super::inventory::{Inventory, Made, Making, Writer};
use super::own::{
    STAGING, STATE, clear, failed, own_file, put_aside, real_dir, refused, state_file, state_path,
};
use super::record::{Known, Record};
use super::settings::Settings;
use super::steps::Action;
use super::{BATCH, Doubt, Error};
use crate::bundle::CaseDigests;
use crate::dataset::{Dataset, Mode};
use crate::diag::{Diagnostic, Diagnostics, Rule, Told};
use crate::digest::{Digest, Hasher, TreeId};
use crate::fs::{
    Kind, ReadError, Root, StagedDir, Stamp, remove_at_once, sweep_stale, write_atomic,
};
use crate::path::{CaseId, TreePath};
use crate::target::Target;
use crate::tree::{
    BadThing, Links, MaterialiseError, Seen, Tree, Written, materialise, materialise_linked,
};

/// Files of this size are kept when an output is read.
const KEEP_BYTES: u64 = 64 * 1024;
/// What was written down about outputs may be twice as long as it has to be, and so much more.
const STALE_BYTES: u64 = 1 << 20;
/// What became of one tree, or, where nothing is written, would become of it.
#[derive(Debug)]
pub(super) enum Placed {
    /// The same tree is there already.
    Unchanged,
    /// It was written where nothing was.
    New(Written),
    /// It took the place of another one.
    Changed(Written),
    /// Something else is there, and casepack may not replace it.
    NotOurs,
    /// A file is not what it was when it was hashed; nothing was placed.
    SourceFailed(TreePath, ReadError),
}

impl Placed {
    /// Files and bytes written.
    pub(super) fn stats(&self) -> (u64, u64) {
        match self {
            Self::New(written) | Self::Changed(written) => (written.files, written.bytes),
            _ => (0, 0),
        }
    }

    /// The word for it in a plan.
    pub(super) fn action(&self) -> Action {
        match self {
            Self::Unchanged => Action::Unchanged,
            Self::New(_) => Action::New,
            Self::Changed(_) => Action::Changed,
            Self::NotOurs | Self::SourceFailed(..) => Action::Kept,
        }
    }

    /// The states of the files that were written; they take room, and are needed once.
    fn take_stamps(&mut self) -> Vec<Stamp> {
        match self {
            Self::New(written) | Self::Changed(written) => std::mem::take(&mut written.stamps),
            _ => Vec::new(),
        }
    }
}

/// Whether an output directory is opened to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing is made, changed or removed.
    Look,
    /// Directories that are missing are made.
    Write,
}

/// What vouches for an output next time, and what is to be told then.
#[derive(Debug, Default)]
pub(super) struct Voucher {
    /// What its case looked like; `None`: it has to be read again.
    pub(super) inputs: Option<String>,
    /// The digests of its workspace and evaluation views.
    pub(super) views: Option<(TreeId, TreeId)>,
    /// What was found about the case.
    pub(super) told: Vec<Told>,
    /// What it has of the fields that judges branch on.
    pub(super) values: BTreeMap<String, String>,
}

/// The directory of one target.
pub(super) struct Output {
    /// `OUT/<target>`.
    dir: PathBuf,
    /// `None`: it is not there, and nothing may be made.
    root: Option<Arc<Root>>,
    state: PathBuf,
    target: &'static str,
    access: Access,
    doubt: Doubt,
    record: Mutex<Record>,
    /// Trees that a build announced to be placed, by name: of this run and of killed ones.
    announced: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Opened when something is placed.
    journal: Mutex<Option<File>>,
    /// What earlier outputs were made of; opened when it is asked for.
    inventory: Mutex<Option<Inventory>>,
    /// Writes down what those of this build are made of.
    making: Option<Writer>,
    /// Whether what is written down has its full length after this build.
    measure_files: bool,
    /// Files that outputs share.
    links: Option<Links>,
    /// Where outputs are made before they take their places; made when something is placed.
    workshop: Mutex<Option<StagedDir>>,
}

impl Output {
    /// Opens `out/<target>`; a damaged or foreign record is told and not trusted.
    pub(super) fn open(
        out: &Path,
        target: &'static str,
        access: Access,
        doubt: Doubt,
        diags: &mut Diagnostics,
    ) -> Result<Self, Error> {
        let dir = out.join(target);
        let state = out.join(STATE);
        if access == Access::Write {
            real_dir(&dir)?;
            let staging = state.join(STAGING);
            real_dir(&staging)?;
            sweep_stale(&staging).map_err(refused("can not remove what a killed build left in"))?;
        }
        if access == Access::Write {
            for kind in ["record", "journal", "files"] {
                clear(&state_path(&state, target, kind), diags)?;
            }
        }
        let path = state_path(&state, target, "record");
        let read = match own_file(&path) {
            Ok(bytes) => Record::parse(target, &bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Some(Record::default()),
            Err(error) if error.kind() == ErrorKind::InvalidData => None,
            Err(error) => return Err(failed("can not read", &path)(error)),
        };
        let record = read.unwrap_or_else(|| {
            diags.push(
                Diagnostic::new(
                    Rule::RecordDamaged,
                    format!(
                        "{} is no record of {target} outputs that this version wrote, or was \
                         damaged.",
                        path.display()
                    ),
                )
                .help(
                    "Nothing is lost: outputs that are up to date are recognised by their \
                     content; others are replaced with --force.",
                ),
            );
            Record::default()
        });
        let path = state_path(&state, target, "journal");
        let mut announced: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        match own_file(&path) {
            Ok(bytes) => {
                for line in String::from_utf8_lossy(&bytes).lines() {
                    // The last line may be cut by a kill: then nothing was placed for it.
                    if let Ok((name, tree)) = serde_json::from_str::<(String, String)>(line) {
                        announced.entry(name).or_default().insert(tree);
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {}
            Err(error) => return Err(failed("can not read", &path)(error)),
        }
        let root = match dir.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            _ => Some(Arc::new(Root::open(&dir).map_err(refused("can not open"))?)),
        };
        let pool = state_path(&state, target, "links");
        let links = match pool.symlink_metadata() {
            Ok(there) if there.is_dir() => {
                let mend = access == Access::Write;
                let links = Links::open(&pool, &record.links, mend);
                Some(links.map_err(failed("can not open", &pool))?)
            }
            _ => None,
        };
        Ok(Self {
            dir,
            root,
            links,
            state,
            target,
            access,
            doubt,
            record: Mutex::new(record),
            announced: Mutex::new(announced),
            journal: Mutex::new(None),
            inventory: Mutex::new(None),
            making: None,
            measure_files: false,
            workshop: Mutex::new(None),
        })
    }

    /// Links files with one of `contents` from now on instead of writing them again.
    pub(super) fn link(&mut self, contents: impl IntoIterator<Item = Digest>) -> Result<(), Error> {
        let pool = self.own_path("links");
        if self.links.is_none() {
            real_dir(&pool)?;
            let links =
                Links::open(&pool, &Seen::new(), true).map_err(failed("can not open", &pool))?;
            self.links = Some(links);
        }
        if let Some(links) = &mut self.links {
            links.want(contents);
        }
        Ok(())
    }

    /// The file of the state directory that is called `<target>.<kind>`.
    fn own_path(&self, kind: &str) -> PathBuf {
        state_path(&self.state, self.target, kind)
    }

    /// What was written down of earlier outputs; `None` when there is nothing that can be used.
    fn read_inventory(&self) -> Option<Inventory> {
        let file = state_file(&self.own_path("files"), OpenOptions::new().read(true)).ok()?;
        Inventory::open(file).ok()
    }

    /// Begins to write down what the outputs of this build are made of. With `all`, nothing of
    /// what was written down before will count.
    pub(super) fn write_down(
        &mut self,
        settings: Settings,
        all: bool,
        diags: &mut Diagnostics,
    ) -> Result<(), Error> {
        let path = self.own_path("files");
        let earlier = if all { None } else { self.read_inventory() };
        if !all && earlier.is_none() && path.symlink_metadata().is_ok() {
            let path = path.display();
            let message = format!("{path} is no list that this version wrote, or was damaged.");
            let help = "Nothing has to be done: it is begun anew; until its cases are built again, \
                        `plan` and `verify` can not say which of their files are others.";
            diags.push(Diagnostic::new(Rule::RecordDamaged, message).help(help));
        }
        let mut earlier = match earlier {
            None => {
                // Anything that stands there is of no use; a link is not followed.
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(failed("can not replace", &path)(error));
                    }
                    _ => None,
                }
            }
            earlier => earlier,
        };
        let length = path.metadata().map_or(0, |there| there.len());
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let stale = length > 2 * record.files_length + STALE_BYTES;
        if let Some(old) = earlier.as_mut().filter(|_| stale) {
            let shorter = path.with_extension("files-new");
            let mut options = OpenOptions::new();
            let file = state_file(&shorter, options.write(true).create(true).truncate(true))?;
            old.compact(&file)
                .map_err(failed("can not write", &shorter))?;
            fs::rename(&shorter, &path).map_err(failed("can not replace", &path))?;
        }
        // It is as long as it has to be when it begins, or was written anew just now.
        self.measure_files = earlier.is_none() || stale;
        let file = state_file(&path, OpenOptions::new().append(true).create(true))?;
        self.making = Some(Writer::new(file, earlier.as_ref(), settings));
        Ok(())
    }

    /// Writes down what one output is made of.
    pub(super) fn made_of(&self, making: &Making<'_>) {
        if let Some(writer) = &self.making {
            writer.add(making);
        }
    }

    /// What the recorded output at `place` was made of, when that was written down.
    pub(super) fn made(&self, place: &TreePath) -> Option<Made> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = record.outputs.get(place.as_str())?.tree.clone();
        drop(record);
        let mut inventory = self
            .inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if inventory.is_none() {
            *inventory = self.read_inventory();
        }
        inventory.as_mut()?.get(place, &TreeId(tree.parse().ok()?))
    }

    /// The recorded outputs: place and case.
    pub(super) fn places(&self) -> Vec<(TreePath, String)> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |(name, known): (&String, &Known)| {
            Some((TreePath::new(name).ok()?, known.case.clone()))
        };
        record.outputs.iter().filter_map(place).collect()
    }

    /// What is recorded of the output at `place`.
    pub(super) fn known(&self, place: &TreePath) -> Option<Known> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.outputs.get(place.as_str()).cloned()
    }

    /// Reads and hashes what is at `place`; `None` when there is nothing.
    pub(super) fn read(&self, place: &TreePath) -> Option<Result<Tree, Vec<BadThing>>> {
        let root = self.root.as_ref()?;
        match root.stat(place) {
            Ok(None) => None,
            // Harbor's digest reads ignore files, which are small.
            Ok(Some((Kind::Dir, _))) => Some(Tree::from_dir(root, Some(place), KEEP_BYTES)),
            Ok(Some(_)) => Some(Err(vec![BadThing {
                shown: place.as_str().to_owned(),
                why: "it is no directory".to_owned(),
            }])),
            Err(error) => Some(Err(vec![BadThing {
                shown: place.as_str().to_owned(),
                why: error.source.to_string(),
            }])),
        }
    }

    /// The digest of what is at `place`: by its record when the output looks as it did then, else
    /// by its content. `None` when no tree of files is there.
    pub(super) fn read_id(&self, place: &TreePath) -> Option<String> {
        self.tree_at(place, &self.dir.join(place.as_str()))
    }

    /// A file beside the outputs.
    pub(super) fn file(&self, name: &str) -> io::Result<Vec<u8>> {
        own_file(&self.dir.join(name))
    }

    /// The files that were written beside the outputs, with their digests.
    pub(super) fn beside(&self) -> BTreeMap<String, String> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.beside.clone()
    }

    /// What lies beside the outputs and is none of casepack's, sorted.
    pub(super) fn foreign(&self) -> Vec<String> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        foreign(&record, &self.dir).unwrap_or_default()
    }

    /// How many outputs are recorded.
    pub(super) fn len(&self) -> usize {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.outputs.len()
    }

    /// The path of an output, for messages.
    pub(super) fn shown(&self, place: &TreePath) -> String {
        self.dir.join(place.as_str()).display().to_string()
    }

    /// Puts `tree`, whose digest is `id`, under the name `place`, by a rename of a staged directory.
    pub(super) fn place(
        &self,
        place: &TreePath,
        case: &CaseId,
        tree: &Tree,
        id: &TreeId,
        force: bool,
    ) -> Result<Placed, Error> {
        let want = id.to_string();
        let path = self.dir.join(place.as_str());
        let mut in_the_way = false;
        let mut placed: fn(Written) -> Placed = Placed::New;
        match path.symlink_metadata() {
            Ok(there) => {
                placed = Placed::Changed;
                in_the_way = !there.is_dir();
                let have = self.tree_at(place, &path);
                if have.as_deref() == Some(&want) {
                    self.remember(place, case, want);
                    return Ok(Placed::Unchanged);
                }
                if !force && !have.is_some_and(|have| self.owns(place, &have)) {
                    return Ok(Placed::NotOurs);
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("can not look at", &path)(error)),
        }
        if self.access == Access::Look {
            return Ok(placed(Written::default()));
        }
        let staged = self.staged()?;
        let written = match &self.links {
            Some(links) => materialise_linked(tree, staged.handle(), links),
            None => materialise(tree, staged.handle()),
        };
        let stats = match written {
            Ok(stats) => stats,
            Err(MaterialiseError::Source { path, source }) => {
                return Ok(Placed::SourceFailed(path, source));
            }
            Err(MaterialiseError::Write {
                path: inside,
                source,
            }) => {
                let path = path.join(inside.as_str());
                return Err(Error {
                    doing: "can not write",
                    path,
                    source,
                });
            }
        };
        self.announce(place, &want)?;
        if let Some(parent) = path.parent().filter(|parent| *parent != self.dir) {
            real_dir(parent)?;
        }
        if in_the_way {
            // A directory can be exchanged with another one only. What is here is nothing of
            // casepack's, and the user said --force; of a link, the link itself goes.
            fs::remove_file(&path).map_err(failed("can not replace", &path))?;
        }
        let committed = match &self.root {
            Some(root) if place.parent().is_none() => staged.commit_in(root, place.as_str()),
            _ => staged.commit(&path),
        };
        committed.map_err(refused("can not put in place"))?;
        self.remember(place, case, want);
        Ok(placed(stats))
    }

    /// An empty directory, out of sight.
    fn staged(&self) -> Result<StagedDir, Error> {
        let mut workshop = self.workshop.lock().unwrap_or_else(PoisonError::into_inner);
        let workshop = match &mut *workshop {
            Some(there) => there,
            none => {
                none.insert(StagedDir::new(&self.staging()).map_err(refused("can not create"))?)
            }
        };
        workshop.inside().map_err(refused("can not create"))
    }

    /// Notes that the case at `place` is to be in the release, and whether it is another than before.
    pub(super) fn packed(&self, place: &TreePath, case: &CaseId, digests: &CaseDigests) -> Placed {
        let known = self.known(place);
        let before = known.as_ref().and_then(digests_of);
        if self.access == Access::Write {
            self.remember(place, case, digests.task.to_string());
        }
        match before {
            Some(before) if before == *digests => Placed::Unchanged,
            Some(_) => Placed::Changed(Written::default()),
            None => Placed::New(Written::default()),
        }
    }

    /// `OUT/<target>`.
    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Where directories are made that are renamed when they are whole.
    pub(super) fn staging(&self) -> PathBuf {
        self.state.join(STAGING)
    }

    /// Bundles: the release that the record is about.
    pub(super) fn release(&self) -> Option<String> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.release.clone()
    }

    /// Bundles: notes the release that the outputs are in now.
    pub(super) fn set_release(&mut self, release: &Digest) {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        record.release = Some(release.to_string());
    }

    /// Bundles: whether the blobs look as they did when the release was whole.
    pub(super) fn blobs_untouched(&self) -> bool {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.blobs.is_some() && record.blobs == self.look_at_blobs()
    }

    fn look_at_blobs(&self) -> Option<String> {
        let blobs = TreePath::new("blobs").ok()?;
        let look = look(self.root.as_ref()?, Some(&blobs), Aids::default()).ok()?;
        Some(look.fingerprint.hex())
    }

    /// Bundles: forgets everything, so that every case is packed anew; also for a build that comes
    /// after this one.
    pub(super) fn forget(&mut self) {
        self.record = Mutex::default();
        if self.access == Access::Write {
            fs::remove_file(self.own_path("record")).ok();
        }
    }

    /// Bundles: removes the record's cases that the dataset has no more; their names.
    pub(super) fn drop_gone(&mut self, dataset: &Dataset) -> Vec<String> {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let gone = gone(record, dataset, self.target);
        for name in &gone {
            record.outputs.remove(name);
        }
        gone
    }

    /// Bundles: the recorded cases and what they are known by.
    pub(super) fn cases(&self) -> Vec<(CaseId, CaseDigests)> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let case = |known: &Known| Some((CaseId::new(&known.case).ok()?, digests_of(known)?));
        record.outputs.values().filter_map(case).collect()
    }

    /// The digest of the tree that is at `place`: the recorded one when the output looks as it did
    /// then, else that of its content.
    fn tree_at(&self, place: &TreePath, path: &Path) -> Option<String> {
        if !self.doubt.outputs {
            let looks = self.look(place);
            let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            let known = record.outputs.get(place.as_str());
            if let Some(known) = known.filter(|known| known.seen.is_some() && known.seen == looks) {
                return Some(known.tree.clone());
            }
        }
        existing(path)
    }

    /// What the output at `place` looks like, if it is one.
    fn look(&self, place: &TreePath) -> Option<String> {
        let aids = Aids {
            links: self.links.as_ref(),
            ..Aids::default()
        };
        let look = look(self.root.as_ref()?, Some(place), aids)
            .ok()
            .filter(|look| !look.odd)?;
        Some(look.fingerprint.hex())
    }

    /// What is known of the output at `place`, when it was made in `state` from a case that looked
    /// like `inputs`, and is as it was then.
    pub(super) fn current(&self, place: &TreePath, state: &str, inputs: &str) -> Option<Known> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let known = record.outputs.get(place.as_str())?;
        let same =
            record.state.as_deref() == Some(state) && known.inputs.as_deref() == Some(inputs);
        let known = known.clone();
        drop(record);
        if self.target == Target::Bundle.name() {
            // The release as a whole was looked at.
            return same.then_some(known);
        }
        if !same || known.seen.is_none() || known.seen != self.look(place) {
            return None;
        }
        let there = self
            .doubt
            .outputs
            .then(|| existing(&self.dir.join(place.as_str())));
        there
            .is_none_or(|there| there.as_deref() == Some(&known.tree))
            .then_some(known)
    }

    /// What was found about the dataset as a whole when it was in `state`; `None` when that is not
    /// recorded.
    pub(super) fn told(&self, state: &str) -> Option<Vec<Diagnostic>> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.state.as_deref() != Some(state) {
            return None;
        }
        record.told.iter().map(Told::again).collect()
    }

    /// Notes what vouches for the output at `place` next time, and what it looks like now that
    /// `tree` was `placed` there.
    pub(super) fn vouch(
        &self,
        place: &TreePath,
        tree: &Tree,
        placed: &mut Placed,
        voucher: Voucher,
    ) {
        let stamps = placed.take_stamps();
        let seen = if self.target == Target::Bundle.name() {
            None
        } else if stamps.len() == tree.len() {
            // That it was renamed since changed no file.
            Some(look_of(tree, &stamps).fingerprint.hex())
        } else {
            self.look(place)
        };
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = record.outputs.get_mut(place.as_str()) {
            known.inputs = voucher.inputs;
            known.seen = seen;
            known.views = voucher.views.map(|(a, b)| (a.0.hex(), b.0.hex()));
            known.told = voucher.told;
            known.values = voucher.values;
        }
    }

    /// Notes the state that the outputs of this build were made in, and what was found about the
    /// dataset as a whole. Outputs that were not looked at in this build are of an earlier one.
    pub(super) fn set_state(
        &mut self,
        state: Option<&str>,
        told: Vec<Told>,
        made: &BTreeSet<&str>,
    ) {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if record.state.as_deref() != state {
            for known in record
                .outputs
                .values_mut()
                .filter(|known| !made.contains(&*known.case))
            {
                known.inputs = None;
            }
        }
        record.state = state.map(str::to_owned);
        record.told = told;
    }

    /// Whether casepack wrote the tree `have` at `place`, in this run or an earlier one.
    fn owns(&self, place: &TreePath, have: &str) -> bool {
        let recorded = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = recorded
            .outputs
            .get(place.as_str())
            .is_some_and(|known| known.tree == have);
        let announced = self
            .announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        recorded
            || announced
                .get(place.as_str())
                .is_some_and(|trees| trees.contains(have))
    }

    /// Writes down, before it happens, that `tree` will be at `place`: one line in one write.
    fn announce(&self, place: &TreePath, tree: &str) -> Result<(), Error> {
        let mut line = serde_json::json!([place.as_str(), tree]).to_string();
        line.push('\n');
        let path = self.own_path("journal");
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let file = if let Some(file) = &mut *journal {
            file
        } else {
            // The first newline ends a line that a kill cut.
            line.insert(0, '\n');
            journal.insert(state_file(
                &path,
                OpenOptions::new().append(true).create(true),
            )?)
        };
        file.write_all(line.as_bytes())
            .map_err(failed("can not write", &path))
    }

    fn remember(&self, place: &TreePath, case: &CaseId, tree: String) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let known = record.outputs.entry(place.as_str().to_owned()).or_default();
        case.as_str().clone_into(&mut known.case);
        known.tree = tree;
    }

    /// Harbor: notes the packages' names and digests.
    pub(super) fn record_tasks(&mut self, tasks: &[(CaseId, String, Digest)]) {
        let by_case: BTreeMap<&str, (&String, &Digest)> = tasks
            .iter()
            .map(|(case, task, digest)| (case.as_str(), (task, digest)))
            .collect();
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for known in record.outputs.values_mut() {
            if let Some((task, digest)) = by_case.get(known.case.as_str()) {
                known.task = Some(((*task).clone(), digest.to_string()));
            }
        }
    }

    /// Harbor: every package of a case that the dataset still has, also of cases that this build
    /// did not select, sorted by name.
    pub(super) fn tasks(&mut self, dataset: &Dataset) -> Vec<(String, Digest)> {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut tasks: Vec<(String, Digest)> = record
            .outputs
            .iter()
            .filter(|(name, known)| has(dataset, &known.case) && self.dir.join(name).is_dir())
            .filter_map(|(_, known)| {
                let (task, digest) = known.task.as_ref()?;
                Some((task.clone(), digest.parse().ok()?))
            })
            .collect();
        tasks.sort();
        tasks
    }

    /// The digests of both views, in hex, of those cases whose outputs are known.
    pub(super) fn views(&mut self, cases: &[CaseId]) -> Vec<(CaseId, String, String)> {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let by_case = views_by_case(record);
        let known = cases.iter().filter_map(|id| {
            let (workspace, evaluation) = by_case.get(id.as_str())?;
            Some((id.clone(), workspace.clone(), evaluation.clone()))
        });
        known.collect()
    }

    /// The dataset digest, when the outputs of all cases are known: SHA-256 over, for every case
    /// sorted by id, `id NUL workspace-hex NUL evaluation-hex LF` (bundle-format, "Digests").
    pub(super) fn dataset_digest(&mut self, dataset: &Dataset) -> Option<Digest> {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let by_case = views_by_case(record);
        let mut hasher = Hasher::new();
        for id in &dataset.cases {
            let (workspace, evaluation) = by_case.get(id.as_str())?;
            hasher.update(format!("{id}\0{workspace}\0{evaluation}\n").as_bytes());
        }
        Some(hasher.finish())
    }

    /// Writes a file beside the outputs.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.dir.join(name);
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = Digest::of(bytes).to_string();
        record.beside.insert(name.to_owned(), digest);
        drop(record);
        if own_file(&path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        // What is moved away is told as something that this build did not make.
        if path.symlink_metadata().is_ok_and(|there| there.is_dir()) {
            put_aside(&path)?;
        }
        write_atomic(&path, bytes, 0o644).map_err(refused("can not write"))
    }

    /// The outputs of cases that are gone: name, case, and whether it is as casepack wrote it.
    pub(super) fn gone(&self, dataset: &Dataset) -> Vec<(String, String, bool)> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = |name: String| {
            let path = self.dir.join(&name);
            let known = record.outputs.get(&name)?;
            if self.target == Target::Bundle.name() {
                return Some((name, known.case.clone(), true));
            }
            path.symlink_metadata().ok()?;
            let ours = existing(&path).as_ref() == Some(&known.tree);
            Some((name, known.case.clone(), ours))
        };
        gone(&record, dataset, self.target)
            .into_iter()
            .filter_map(ours)
            .collect()
    }

    /// Removes outputs of cases that are gone and that are as casepack wrote them; names others.
    pub(super) fn remove_gone(
        &mut self,
        dataset: &Dataset,
        diags: &mut Diagnostics,
    ) -> Result<Vec<String>, Error> {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut removed = Vec::new();
        for name in gone(record, dataset, self.target) {
            let path = self.dir.join(&name);
            let tree = record.outputs.get(&name).map(|known| known.tree.clone());
            if path.symlink_metadata().is_err() {
                record.outputs.remove(&name);
            } else if existing(&path) == tree {
                remove_at_once(&path, &self.state.join(STAGING))
                    .map_err(refused("can not remove"))?;
                record.outputs.remove(&name);
                removed.push(name);
            } else {
                diags.push(
                    Diagnostic::new(
                        Rule::OutputLeftBehind,
                        format!(
                            "{} belongs to a case that is gone, but was changed since casepack \
                             wrote it; it is left.",
                            path.display()
                        ),
                    )
                    .help("Remove it if it is not needed."),
                );
            }
        }
        let foreign = foreign(record, &self.dir).map_err(failed("can not list", &self.dir))?;
        self.tell_foreign(foreign, diags);
        Ok(removed)
    }

    /// Tells of what lies beside the outputs and is none of casepack's.
    pub(super) fn tell_foreign(&self, names: Vec<String>, diags: &mut Diagnostics) {
        for name in names {
            diags.push(
                Diagnostic::new(
                    Rule::OutputLeftBehind,
                    format!(
                        "{} is nothing that this build made.",
                        self.dir.join(name).display()
                    ),
                )
                .help("Remove it if it is not needed; Harbor would run a package that lies there."),
            );
        }
    }

    /// Writes the record of a build that failed: it vouches for nothing, but knows what is in place.
    /// The failure is told already; one more changes nothing.
    pub(super) fn give_up(mut self) {
        if self.target != Target::Bundle.name() {
            self.set_state(None, Vec::new(), &BTreeSet::new());
            self.finish().ok();
        }
    }

    /// Writes the record; the journal has done its work.
    pub(super) fn finish(self) -> Result<(), Error> {
        let blobs = (self.target == Target::Bundle.name()).then(|| self.look_at_blobs());
        let own_path = |kind: &str| state_path(&self.state, self.target, kind);
        let journal = own_path("journal");
        let mut length = None;
        if let Some(writer) = self.making {
            let path = own_path("files");
            writer.finish().map_err(failed("can not write", &path))?;
            let whole = self.measure_files.then(|| path.metadata().ok()).flatten();
            length = whole.map(|there| there.len());
        }
        let mut record = self
            .record
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        record.files_length = length.unwrap_or(record.files_length);
        record.blobs = blobs.flatten();
        if let Some(links) = &self.links {
            let path = own_path("links");
            record.links = links.finish().map_err(failed("can not read", &path))?;
        }
        let path = own_path("record");
        // What was written a moment ago could be written again with the same time: the record must
        // be younger than that (the racy rule of git's index).
        let text = record
            .text(self.target)
            .map_err(|error| failed("can not write", &path)(error.into()))?;
        if !own_file(&path).is_ok_and(|there| there == text) {
            std::thread::sleep(GRANULARITY);
            write_atomic(&path, &text, 0o644).map_err(refused("can not write"))?;
        }
        match fs::remove_file(&journal) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed("can not remove", &journal)(error))
            }
            _ => Ok(()),
        }
    }
}

/// The digests of both views, in hex, of the cases that have some.
fn views_by_case(record: &Record) -> BTreeMap<&str, &(String, String)> {
    let known = record.outputs.values();
    known
        .filter_map(|known| Some((known.case.as_str(), known.views.as_ref()?)))
        .collect()
}

/// What a case of a bundle is known by.
fn digests_of(known: &Known) -> Option<CaseDigests> {
    let tree = |hex: &str| Some(TreeId(Digest::from_hex(hex).ok()?));
    let (workspace, evaluation) = known.views.as_ref()?;
    Some(CaseDigests {
        workspace: tree(workspace)?,
        evaluation: tree(evaluation)?,
        task: TreeId(known.tree.parse().ok()?),
        harbor: known.task.as_ref()?.1.parse().ok()?,
    })
}

/// What lies in `dir` and is no output, nor what lists them; sorted.
fn foreign(record: &Record, dir: &Path) -> io::Result<Vec<String>> {
    let known: BTreeSet<&str> = record
        .outputs
        .keys()
        .map(|name| name.split('/').next().unwrap_or(name))
        .chain(["dataset.toml", "eval.yaml"])
        .collect();
    let mut foreign: Vec<String> = fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| !known.contains(name.as_str()))
        .collect();
    foreign.sort();
    Ok(foreign)
}

/// The names of outputs that the dataset has no more: their cases are gone, or are one batch now, or
/// are one no more.
fn gone(record: &Record, dataset: &Dataset, target: &str) -> Vec<String> {
    let batch = dataset.mode == Mode::Batch && target == Target::Workspace.name();
    let outputs = record.outputs.iter();
    outputs
        .filter(|(name, known)| {
            if batch {
                *name != BATCH
            } else {
                !has(dataset, &known.case)
            }
        })
        .map(|(name, _)| name.clone())
        .collect()
}

fn has(dataset: &Dataset, case: &str) -> bool {
    dataset
        .cases
        .binary_search_by(|id| id.as_str().cmp(case))
        .is_ok()
}

/// The digest of the tree that is at `path`; `None` when it is no directory of regular files.
fn existing(path: &Path) -> Option<String> {
    if !path.symlink_metadata().ok()?.is_dir() {
        return None;
    }
    let root = Arc::new(Root::open(path).ok()?);
    Tree::from_dir(&root, None, 0)
        .ok()
        .map(|tree| tree.id().to_string())
}
