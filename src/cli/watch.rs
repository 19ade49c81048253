//! `casepack build --watch`: builds again whenever something that a build reads has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use notify::{ErrorKind, Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use serde_json::Value;

use super::args::Building;
use super::exit::Exit;
use super::outcome::{Failure, Outcome, interrupted};
use super::{Context, build, ui};
use crate::dataset::{Dataset, OUTPUT_MARK};
use crate::diag::Diagnostics;
use crate::path::TreePath;
use crate::target::Target;

/// Nothing may happen for so long before a build begins: editors write a file in several steps.
const QUIET: Duration = Duration::from_millis(150);
/// A build begins after so long even when changes go on.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often an interrupt is looked for.
const TICK: Duration = Duration::from_millis(100);

/// Directories and files that a build reads, and whether all below is meant.
pub(super) type Places = BTreeMap<PathBuf, bool>;

pub(super) fn run(args: &Building, context: &Context) -> Outcome {
    let out = context.machine.absolute(&args.destination.out);
    let mut watched = Places::new();
    // While the dataset can't be loaded, what is watched is where it was looked for.
    watched.insert(context.machine.absolute(&args.input.path), false);
    let mut told = None;
    let mut watcher: Option<Watched> = None;
    loop {
        let (outcome, places) = build::once(args, context);
        if context.stop.load(Ordering::Relaxed) {
            return ended();
        }
        let messages = outcome.diagnostics.iter();
        let messages: Vec<_> = messages.map(|it| (it.rule, it.message.clone())).collect();
        let state = (outcome.exit as u8, messages);
        let made = ["built", "removed"].iter().any(|list| {
            let made = outcome.fields.get(*list).and_then(Value::as_array);
            made.is_some_and(|made| !made.is_empty())
        });
        if made || told.as_ref() != Some(&state) {
            ui::show(&context.look, "build", &outcome);
        }
        told = Some(state);
        watched = places.unwrap_or(watched);
        let out = out.canonicalize().unwrap_or_else(|_| out.clone());
        let here = watcher.take();
        if let Some(here) = &here
            && !here.wait(&watched, &out, context)
        {
            return ended();
        }
        // What was watched may have been replaced by something of the same name: it is looked for
        // anew. What changed before that is found by one more build, which costs next to nothing.
        if here.is_none() {
            match Watched::new(&watched) {
                Ok(new) => watcher = Some(new),
                Err(failure) => {
                    return Outcome::of(Diagnostics::default()).failed(Exit::System, failure);
                }
            }
        }
    }
}

fn ended() -> Outcome {
    interrupted(
        Outcome::of(Diagnostics::default()),
        "What was built is whole.",
    )
}

/// Where everything lies that a build of `dataset` reads.
pub(super) fn places(dataset: &Dataset) -> Places {
    let sources = &dataset.sources;
    let roots = &sources.roots;
    let mut places = Places::new();
    let mut add = |place: PathBuf| {
        if place.is_dir() {
            places.insert(place, true);
        } else if let Some(parent) = place.parent() {
            // A file may be replaced by another one: its directory sees that.
            places.entry(parent.to_owned()).or_insert(false);
        }
    };
    if sources.config.is_file() {
        add(sources.config.clone());
    }
    let place = |root: usize, path: Option<&TreePath>| roots.absolute(root, path);
    let own = [(sources.dataset_root, None)];
    let judges = dataset
        .judge_files
        .iter()
        .map(|file| (file.root, Some(&file.path)));
    let skills = dataset
        .skills
        .iter()
        .map(|skill| (skill.root, Some(&skill.path)));
    let handlers = dataset
        .interception
        .handlers_file
        .iter()
        .map(|(root, path)| (*root, Some(path)));
    let all = own.into_iter().chain(judges).chain(skills).chain(handlers);
    for (root, path) in all {
        if let Some(place) = place(root, path) {
            add(place);
        }
    }
    for entry in &dataset.shared {
        let found = roots.resolve(0, None, &entry.source).ok();
        let found = found.and_then(|found| place(found.root, found.path.as_ref()));
        // One that is missing may appear.
        add(found.unwrap_or_else(|| sources.project.join(&entry.source)));
    }
    places
}

/// A watch over places.
struct Watched {
    /// Ends the watch when it is dropped.
    _watcher: RecommendedWatcher,
    events: Receiver<notify::Result<Event>>,
}

impl Watched {
    fn new(places: &Places) -> Result<Self, Failure> {
        let (sender, events) = channel();
        let failed = |error: notify::Error| {
            let help = match error.kind {
                ErrorKind::MaxFilesWatch => {
                    "The system watches no more directories: raise fs.inotify.max_user_watches, or \
                     build without --watch."
                }
                _ => "Build without --watch.",
            };
            Failure::from_error(&error, help)
        };
        let mut watcher = notify::recommended_watcher(sender).map_err(failed)?;
        let mut all = BTreeMap::new();
        for (place, below) in places {
            // Its directory sees when it is replaced, or appears.
            if let Some(parent) = place.parent() {
                all.entry(parent).or_insert(false);
            }
            if place.is_dir() {
                let known = all.entry(place.as_path()).or_insert(false);
                *known |= *below;
            }
        }
        for (place, below) in all {
            let mode = if below {
                RecursiveMode::Recursive
            } else {
                RecursiveMode::NonRecursive
            };
            match watcher.watch(place, mode) {
                Err(error) if matches!(error.kind, ErrorKind::PathNotFound) => {}
                result => result.map_err(failed)?,
            }
        }
        Ok(Self {
            _watcher: watcher,
            events,
        })
    }

    /// Waits until something changed at `places` that is no output in `out`, and then until nothing
    /// does for a moment. Whether it was not interrupted.
    fn wait(&self, places: &Places, out: &Path, context: &Context) -> bool {
        let mut since: Option<(Instant, Instant)> = None;
        loop {
            if context.stop.load(Ordering::Relaxed) {
                return false;
            }
            let now = Instant::now();
            if let Some((first, last)) = since
                && (now - last >= QUIET || now - first >= PATIENCE)
            {
                return true;
            }
            match self.events.recv_timeout(TICK.min(QUIET)) {
                Ok(Ok(event)) => {
                    let counts = !event.kind.is_access()
                        && event
                            .paths
                            .iter()
                            .any(|path| concerns(places, path) && !is_output(out, path));
                    if counts || event.need_rescan() {
                        let now = Instant::now();
                        since = Some((since.map_or(now, |(first, _)| first), now));
                    }
                }
                // What was lost is looked for.
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(QUIET);
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Whether `path` is one of `places`, in one of them, or above one.
fn concerns(places: &Places, path: &Path) -> bool {
    places.iter().any(|(place, below)| {
        let inside =
            path.starts_with(place) && (*below || path == place || path.parent() == Some(place));
        inside || place.starts_with(path)
    })
}

/// Whether a build writes there.
fn is_output(out: &Path, path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(out) else {
        return false;
    };
    let first = inside.components().next();
    let first = first.and_then(|first| first.as_os_str().to_str());
    first.is_some_and(|first| first == OUTPUT_MARK || Target::from_name(first).is_some())
}
