//! Plain objects for `EvalHub`'s stock downloaders: one object for each file, below a prefix of
//! their own (policy 26, evalhub.md 6).
//!
//! What casepack put there is recorded in an object beside the prefix, never below it, since the
//! downloaders take whatever they find below. The record is written before anything else is, so
//! that what a killed publish leaves is known as ours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::{PublishError, key};
use crate::bundle::Bad;
use crate::diag::{Diagnostic, Diagnostics, Rule, count};
use crate::digest::Digest;
use crate::event::{Event, Observer, Stage};
use crate::path::TreePath;
use crate::store::{AT_ONCE, Body, Etag, Expected, Listed, Reason, Store, Swap, for_each};
use crate::target::evalhub::Layout;
use crate::tree::{Content, Data, FileAt, Mode, Tree};

const SCHEMA: &str = "casepack.plain.v1";
/// Where records are, beside the prefixes.
const RECORDS: &str = ".casepack";
/// Bytes of a record at most.
const MAX_RECORD: u64 = 1 << 30;
/// Objects that casepack did not write are told one by one up to this number.
const TOLD: usize = 20;
/// Bytes of a key that S3 takes.
const MAX_KEY: usize = 1024;

/// What is to be published, and where.
pub struct Plain<'a> {
    /// The store, opened at the directory that holds the prefix.
    pub store: &'a dyn Store,
    /// The last component of the prefix.
    pub name: &'a str,
    /// How the objects are laid out.
    pub layout: Layout,
    /// The objects, by what follows the prefix.
    pub objects: &'a Tree,
    /// The dataset, when it is known.
    pub dataset: Option<Digest>,
    /// Whether objects are overwritten that casepack did not write.
    pub force: bool,
    /// Set from outside to stop.
    pub stop: &'a AtomicBool,
}

/// What has to be done; nothing is written yet.
pub struct Work<'a> {
    plain: Plain<'a>,
    /// The state in which the record was read.
    record_at: Option<Etag>,
    /// Objects that are right already.
    kept: BTreeMap<TreePath, String>,
    /// Objects to write.
    missing: Vec<TreePath>,
    /// Objects to remove: ours, and no more wanted.
    stale: Vec<TreePath>,
    /// Whether the record is what it should be.
    recorded: bool,
}

/// What was published, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlainPushed {
    /// Objects written.
    pub uploaded: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Objects that were there and right.
    pub present: u64,
    /// Objects removed.
    pub removed: u64,
}

/// The object that says what casepack put below a prefix.
#[derive(Serialize, Deserialize, Default, PartialEq, Eq)]
pub(super) struct Record {
    schema: String,
    layout: String,
    /// Digest of the tree of all objects.
    tree: String,
    dataset: Option<String>,
    files: BTreeMap<TreePathText, Recorded>,
    /// Objects that a publish was about to write or remove; it may have.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pending: BTreeSet<TreePathText>,
}

type TreePathText = String;

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
struct Recorded {
    sha256: String,
    size: u64,
    /// Plain objects don't have it; whoever restores it finds it here.
    executable: bool,
    /// Names the state in which the object was left.
    etag: String,
}

/// What a listing has of one object.
struct There {
    size: u64,
    etag: Option<Etag>,
}

/// What is below the prefix.
#[derive(Default)]
struct Listing {
    objects: BTreeMap<TreePath, There>,
    /// Keys that end in a slash, as consoles make for directories, and other keys that are no path.
    odd: Vec<String>,
    /// A key that starts like the prefix and is not below it.
    sibling: Option<String>,
}

/// The key of the record of the prefix `name`.
fn record_key(name: &str) -> Result<TreePath, Bad> {
    key(&format!("{RECORDS}/{name}.json"))
}

/// Compares what is there with what should be. What the downloaders would stumble over is told in
/// `diags`; with an error there, the work should not be done.
///
/// # Errors
/// When the store fails, or the record is none.
pub fn survey<'a>(plain: Plain<'a>, diags: &mut Diagnostics) -> Result<Work<'a>, PublishError> {
    long_keys(&plain, diags);
    let (record, record_at) = read_record(&plain)?;
    let listing = list(&plain)?;
    foreign(&plain, &record, &listing, diags);
    let mut kept = BTreeMap::new();
    let mut missing = Vec::new();
    for (path, entry) in plain.objects.iter() {
        let recorded = record.files.get(path.as_str());
        let there = listing.objects.get(path);
        match (recorded, there) {
            (Some(recorded), Some(there))
                if recorded.sha256 == entry.content.digest.hex()
                    && recorded.size == there.size
                    && there
                        .etag
                        .as_ref()
                        .is_none_or(|etag| bare(etag.as_str()) == bare(&recorded.etag)) =>
            {
                kept.insert(path.clone(), recorded.etag.clone());
            }
            _ => missing.push(path.clone()),
        }
    }
    let stale = listing
        .objects
        .keys()
        .filter(|path| plain.objects.get(path).is_none() && record.has(path.as_str()));
    let stale: Vec<TreePath> = stale.cloned().collect();
    let mut work = Work {
        plain,
        record_at,
        kept,
        missing,
        stale,
        recorded: false,
    };
    work.recorded = work.is_done() && work.record(work.kept.clone(), BTreeSet::new()) == record;
    Ok(work)
}

/// S3 refuses keys beyond its limit, in the midst of the work.
fn long_keys(plain: &Plain<'_>, diags: &mut Diagnostics) {
    let before = plain.store.show(plain.name).len();
    for (path, _) in plain.objects.iter() {
        if before + 1 + path.as_str().len() > MAX_KEY {
            let message = format!("The key of '{path}' would be longer than {MAX_KEY} bytes.");
            diags.push(
                Diagnostic::new(Rule::PathTooLong, message)
                    .help("Shorten the path, or use a shorter prefix."),
            );
        }
    }
}

/// What casepack put below `prefix`, when it is one of casepack's, with its slash, and at rest.
pub(super) fn record_of(store: &dyn Store, prefix: &str) -> Result<Option<Record>, PublishError> {
    let Some(Ok(place)) = prefix.strip_suffix('/').map(TreePath::new) else {
        return Ok(None);
    };
    let record = record_key(place.name())?;
    let path = place
        .parent()
        .map_or(record.clone(), |parent| parent.join(&record));
    let object = match store.get(&path, MAX_RECORD) {
        Err(error) if error.is_not_found() => return Ok(None),
        object => object?,
    };
    let named = || store.show(path.as_str());
    let record: Record = serde_json::from_slice(&object.bytes)
        .map_err(|error| Bad::new(named(), format!("is no record of plain objects: {error}")))?;
    if !record.pending.is_empty() {
        return Err(PublishError::busy(
            format!(
                "{} is being published, or its publish was stopped",
                store.show(prefix)
            ),
            "Publish again, and start the job when that has ended; or use `{digest}` in the prefix.",
        ));
    }
    Ok(Some(record))
}

/// What casepack published below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// How the objects are laid out.
    pub layout: Layout,
    /// The digest of the tree of all objects.
    pub tree: String,
    /// The digest of the dataset, when it was known.
    pub dataset: Option<String>,
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What casepack published below the prefix `name` of `store`; `None`: it has no record of it.
/// What the downloaders would stumble over there is told in `diags`.
///
/// # Errors
/// When the store fails, the record is none, or objects are not there that it names.
pub fn published(
    store: &dyn Store,
    name: &str,
    stop: &AtomicBool,
    diags: &mut Diagnostics,
) -> Result<Option<Published>, PublishError> {
    let Some(record) = record_of(store, &format!("{name}/"))? else {
        return Ok(None);
    };
    let bad = |why: String| Bad::new(store.show(&format!("{RECORDS}/{name}.json")), why);
    let layout = Layout::from_name(&record.layout)
        .filter(|_| record.schema == SCHEMA)
        .ok_or_else(|| bad("is of another version of casepack".to_owned()))?;
    let plain = Plain {
        store,
        name,
        layout,
        objects: &Tree::default(),
        dataset: None,
        force: false,
        stop,
    };
    let listing = list(&plain)?;
    let there = |path: &str| TreePath::new(path).is_ok_and(|it| listing.objects.contains_key(&it));
    if let Some(lost) = record.paths().find(|path| !there(path)) {
        let why = format!("lacks '{lost}', which was published");
        return Err(Bad::new(format!("{}/", store.show(name)), why).into());
    }
    foreign(&plain, &record, &listing, diags);
    Ok(Some(Published {
        layout,
        tree: record.tree,
        dataset: record.dataset,
        objects: record.files.len() as u64,
        bytes: record
            .files
            .values()
            .fold(0, |sum, file| sum.saturating_add(file.size)),
    }))
}

fn read_record(plain: &Plain<'_>) -> Result<(Record, Option<Etag>), PublishError> {
    let path = record_key(plain.name)?;
    let object = match plain.store.get(&path, MAX_RECORD) {
        Err(error) if error.is_not_found() => return Ok((Record::default(), None)),
        object => object?,
    };
    let named = || plain.store.show(path.as_str());
    let record: Record = serde_json::from_slice(&object.bytes)
        .map_err(|error| Bad::new(named(), format!("is no record of plain objects: {error}")))?;
    if record.schema != SCHEMA {
        let why = format!("has the schema '{}', not '{SCHEMA}'", record.schema);
        return Err(Bad::new(named(), why).into());
    }
    if record.layout != plain.layout.name() {
        return Err(PublishError::refused(
            format!(
                "{} holds the layout '{}', and casepack was asked for '{}'",
                plain.store.show(plain.name),
                record.layout,
                plain.layout.name()
            ),
            "Use another prefix for each layout.",
        ));
    }
    Ok((record, Some(object.etag)))
}

/// What is below the prefix. Asked for without its slash, as a job does that forgets it.
fn list(plain: &Plain<'_>) -> Result<Listing, PublishError> {
    let below = format!("{}/", plain.name);
    let mut listing = Listing::default();
    plain.store.list(plain.name, &mut |listed| {
        let (raw, entry) = match listed {
            Listed::Entry(entry) => (entry.key.as_str().to_owned(), Some(entry)),
            Listed::EmptyDir(_) => return ControlFlow::Continue(()),
            Listed::Unusable { key, .. } => (key, None),
        };
        let Some(rest) = raw.strip_prefix(&below) else {
            let after = raw > below;
            listing.sibling.get_or_insert(raw);
            // Keys come sorted: nothing of ours follows.
            return if after {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            };
        };
        match (entry, TreePath::new(rest)) {
            (Some(entry), Ok(path)) => {
                let (size, etag) = (entry.size, entry.etag);
                listing.objects.insert(path, There { size, etag });
            }
            _ => listing.odd.push(raw),
        }
        ControlFlow::Continue(())
    })?;
    Ok(listing)
}

/// Names what is below the prefix and not of casepack.
fn foreign(plain: &Plain<'_>, record: &Record, listing: &Listing, diags: &mut Diagnostics) {
    let show = |key: &str| plain.store.show(key);
    if let Some(sibling) = &listing.sibling {
        diags.push(
            Diagnostic::new(
                Rule::SharedKeyPrefix,
                format!(
                    "Without its last slash the key would fetch '{}' as well.",
                    show(sibling)
                ),
            )
            .help(format!(
                "Write the key in job requests with the slash: '{}/'.",
                show(plain.name)
            )),
        );
    }
    for odd in listing.odd.iter().take(TOLD) {
        diags.push(
            Diagnostic::new(
                Rule::PlaceholderObject,
                format!("'{}' is a key that downloaders stumble over.", show(odd)),
            )
            .help("Remove that object: consoles and sync tools make such keys for directories."),
        );
    }
    let others = listing.objects.keys().filter(|path| {
        let in_the_way = plain.objects.get(path).is_some();
        !(record.has(path.as_str()) || in_the_way && plain.force)
    });
    for path in others.clone().take(TOLD) {
        let shown = show(&format!("{}/{path}", plain.name));
        let (message, help) = if plain.objects.get(path).is_some() {
            (
                format!("'{shown}' is in the way and was not written by casepack."),
                "Use another prefix, remove the object, or overwrite it with --force.",
            )
        } else {
            (
                format!("'{shown}' was not written by casepack and would be fetched as well."),
                "Use a prefix of its own for each dataset, or remove the object.",
            )
        };
        diags.push(Diagnostic::new(Rule::ForeignObject, message).help(help));
    }
    let more = others.count().saturating_sub(TOLD);
    if more > 0 {
        let place = show(plain.name);
        let message = format!(
            "{} below '{place}/' that casepack did not write.",
            count(more, "more object", "more objects")
        );
        diags.push(
            Diagnostic::new(Rule::ForeignObject, message)
                .help("Use a prefix of its own for each dataset."),
        );
    }
}

impl Work<'_> {
    /// What has to be done.
    pub fn wanted(&self) -> PlainPushed {
        let sizes = self.missing.iter().filter_map(|path| {
            let entry = self.plain.objects.get(path)?;
            Some(entry.content.size)
        });
        PlainPushed {
            uploaded: self.missing.len() as u64,
            uploaded_bytes: sizes.sum(),
            present: self.kept.len() as u64,
            removed: self.stale.len() as u64,
        }
    }

    fn is_done(&self) -> bool {
        self.missing.is_empty() && self.stale.is_empty()
    }

    /// Does it: announces in the record what may change, removes what is stale and in the way of
    /// what is missing, writes that (the config last, so that a job that looks for it finds its
    /// cases), removes what else is stale, and records it.
    ///
    /// # Errors
    /// When the store fails, a file was changed since it was built, or another publisher is at
    /// work below the same prefix.
    pub fn send(self, observer: &dyn Observer) -> Result<PlainPushed, PublishError> {
        let pushed = self.wanted();
        if self.recorded {
            return Ok(pushed);
        }
        let mut at = self.record_at.clone();
        if !self.is_done() {
            let touched = self.missing.iter().chain(&self.stale);
            let pending = touched.map(|path| path.as_str().to_owned()).collect();
            at = Some(self.write_record(&self.record(self.kept.clone(), pending), at.as_ref())?);
        }
        let mut etags = self.kept.clone();
        let (first, last): (Vec<&TreePath>, Vec<&TreePath>) =
            self.stale.iter().partition(|path| self.is_in_the_way(path));
        self.remove(first)?;
        etags.extend(self.upload(pushed.uploaded_bytes, observer)?);
        self.remove(last)?;
        self.write_record(&self.record(etags, BTreeSet::new()), at.as_ref())?;
        Ok(pushed)
    }

    /// Whether a server that keeps objects as files has no room for all that is missing beside
    /// `stale`: a file was made a directory, or a directory a file.
    fn is_in_the_way(&self, stale: &TreePath) -> bool {
        let text = stale.as_str();
        let mut above = text
            .match_indices('/')
            .filter_map(|(end, _)| text.get(..end));
        let below = format!("{text}/");
        let from = self
            .missing
            .partition_point(|path| path.as_str() < below.as_str());
        self.missing
            .get(from)
            .is_some_and(|path| path.as_str().starts_with(&below))
            || above.any(|dir| {
                self.missing
                    .binary_search_by(|path| path.as_str().cmp(dir))
                    .is_ok()
            })
    }

    fn remove(&self, stale: Vec<&TreePath>) -> Result<(), PublishError> {
        for_each(stale, AT_ONCE, |path| {
            self.go_on()?;
            Ok(self.plain.store.delete(&self.key(path)?)?)
        })
    }

    fn go_on(&self) -> Result<(), PublishError> {
        if self.plain.stop.load(Ordering::Relaxed) {
            return Err(PublishError::Stopped);
        }
        Ok(())
    }

    fn key(&self, path: &TreePath) -> Result<TreePath, Bad> {
        Ok(key(self.plain.name)?.join(path))
    }

    fn upload(
        &self,
        bytes: u64,
        observer: &dyn Observer,
    ) -> Result<BTreeMap<TreePath, String>, PublishError> {
        observer.on(Event::TransferStarted {
            stage: Stage::Upload,
            objects: self.missing.len(),
            bytes,
        });
        let written = Mutex::new(BTreeMap::new());
        let put = |path: &TreePath| -> Result<(), PublishError> {
            self.go_on()?;
            let Some(entry) = self.plain.objects.get(path) else {
                return Ok(());
            };
            let etag = self.put(path, &entry.content)?;
            let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
            written.insert(path.clone(), etag.as_str().to_owned());
            observer.on(Event::Transferred {
                objects: 1,
                bytes: entry.content.size,
            });
            Ok(())
        };
        let (last, first): (Vec<_>, Vec<_>) = self
            .missing
            .iter()
            .partition(|path| path.parent().is_none());
        for_each(first, AT_ONCE, put)?;
        for_each(last, AT_ONCE, put)?;
        observer.on(Event::StageFinished {
            stage: Stage::Upload,
        });
        Ok(written.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, path: &TreePath, content: &Content) -> Result<Etag, PublishError> {
        let place = self.key(path)?;
        let store = self.plain.store;
        match &content.data {
            Data::Bytes(bytes) => Ok(store.put(&place, Body::Bytes(bytes), &content.digest)?),
            Data::File(at) => {
                let FileAt { root, path, stamp } = &**at;
                let bad =
                    |why: String| Bad::new(root.absolute(Some(path)).display().to_string(), why);
                let (file, now) = root
                    .open_file(path)
                    .map_err(|error| bad(error.to_string()))?;
                if now != *stamp {
                    return Err(bad("was changed while it was published".to_owned()).into());
                }
                let body = Body::File {
                    file: &file,
                    offset: 0,
                    size: content.size,
                };
                Ok(store.put(&place, body, &content.digest)?)
            }
        }
    }

    /// The record of the objects that have `etags`.
    fn record(&self, etags: BTreeMap<TreePath, String>, pending: BTreeSet<String>) -> Record {
        let plain = &self.plain;
        let files = etags.into_iter().filter_map(|(path, etag)| {
            let entry = plain.objects.get(&path)?;
            let recorded = Recorded {
                sha256: entry.content.digest.hex(),
                size: entry.content.size,
                executable: entry.mode == Mode::Executable,
                etag,
            };
            Some((path.as_str().to_owned(), recorded))
        });
        Record {
            schema: SCHEMA.to_owned(),
            layout: plain.layout.name().to_owned(),
            tree: plain.objects.id().to_string(),
            dataset: plain.dataset.map(|digest| digest.to_string()),
            files: files.collect(),
            pending,
        }
    }

    /// Writes the record, unless another publisher has done so since it was read.
    fn write_record(&self, record: &Record, at: Option<&Etag>) -> Result<Etag, PublishError> {
        let store = self.plain.store;
        let path = record_key(self.plain.name)?;
        // Proof: a record is plain text and numbers, which serde_json never refuses.
        let bytes = serde_json::to_vec(record).unwrap_or_default();
        let expected = at.map_or(Expected::Absent, Expected::At);
        match store.put_if(&path, &bytes, expected) {
            Ok(Swap::Done(etag)) => Ok(etag),
            Ok(Swap::Lost { .. }) => Err(PublishError::busy(
                format!(
                    "Another publisher is at work below {}/",
                    store.show(self.plain.name)
                ),
                "Wait until it has ended, and publish again; or use `{digest}` in the prefix.",
            )),
            Err(error) if matches!(*error.reason, Reason::NoConditions) => {
                Ok(store.put(&path, Body::Bytes(&bytes), &Digest::of(&bytes))?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Record {
    /// Everything that was published.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The SHA-256 of an object, in hexadecimal, and whether it may be executed.
    pub(super) fn expected(&self, path: &str) -> Option<(&str, bool)> {
        let file = self.files.get(path)?;
        Some((&file.sha256, file.executable))
    }

    /// Whether casepack wrote, or may have written, the object.
    fn has(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.pending.contains(path)
    }
}

/// An entity tag without what some servers put around it in one place and not in another.
fn bare(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}
