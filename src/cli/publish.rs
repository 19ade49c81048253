//! `casepack publish`: a release is built, and sent to a store.

mod plain;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Context;
use super::args::{Destination, Publish, PublishLayout};
use super::build;
use super::exit::Exit;
use super::input::{self, Loaded};
use super::outcome::{Failure, Outcome, ids, interrupted};
use super::store;
use super::ui::{Progress, count, size};
use crate::bundle::{RefName, Release};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::escape;
use crate::fs::{FsError, StagedDir, sweep_stale};
use crate::plan::Summary;
use crate::publish::{PublishError, Push, Pushed, Remote, Which, push};
use crate::store::{Directory, Store};
use crate::target::Target;
use crate::target::evalhub::Layout;

/// How long `casepack gc` lets garbage live unless it is told otherwise.
const GRACE: Duration = Duration::from_hours(7 * 24);

pub(super) fn run(args: &Publish, context: &Context) -> Outcome {
    match args.publishing.layout {
        PublishLayout::Bundle => {}
        PublishLayout::TestData => return plain::run(args, Layout::TestData, context),
        PublishLayout::AgentEval => return plain::run(args, Layout::AgentEval, context),
    }
    let mut diags = Diagnostics::new(args.input.levels.levels_to_ship());
    let open = || store::open_to_write(&args.dest, &args.s3, context, args.publishing.dry_run);
    // Before anything is built: a wrong address is told at once. A directory is made when there is
    // something to go there.
    let open_now = !store::is_to_be_made(&args.dest, context);
    let store = match open_now.then(open).transpose() {
        Ok(store) => store,
        Err((exit, failure)) => return Outcome::of(diags).failed(exit, failure),
    };
    let (from, _place) = match &args.publishing.from {
        Some(from) => (context.machine.absolute(from), None),
        None => match build(args, Target::Bundle, context, &mut diags) {
            Ok((.., place)) => (place.of(Target::Bundle), Some(place)),
            Err(end) => return end(diags),
        },
    };
    let sent = built(&from).and_then(|release| {
        let store = match store {
            Some(store) => store,
            None => open()?,
        };
        let pushed = send(args, context, &*store, (&from, &release), &mut diags)?;
        Ok((store, release, pushed))
    });
    match sent {
        Ok((store, release, pushed)) => told(args, &*store, &release, &pushed, diags),
        Err((exit, failure)) => Outcome::of(diags).failed(exit, failure),
    }
}

/// How a publish ends that has nothing to send, with what was found.
type End = Box<dyn FnOnce(Diagnostics) -> Outcome>;

/// Where what is to be sent is built.
struct Place {
    destination: Destination,
    /// What goes again with this.
    _temp: Option<StagedDir>,
}

impl Place {
    /// The output directory. A dry run makes none: where none is, it builds beside it, and leaves
    /// nothing there.
    fn new(args: &Publish, context: &Context) -> Result<Self, FsError> {
        let mut destination = args.destination.clone();
        destination.out = context.machine.absolute(&destination.out);
        if !args.publishing.dry_run || destination.out.symlink_metadata().is_ok() {
            return Ok(Self {
                destination,
                _temp: None,
            });
        }
        let above = destination.out.ancestors().find(|dir| dir.is_dir());
        let above = above.unwrap_or(Path::new("/"));
        // What a dry run left that was killed; what can't be removed is in nobody's way.
        sweep_stale(above).ok();
        let temp = StagedDir::new(above)?;
        temp.path().clone_into(&mut destination.out);
        Ok(Self {
            destination,
            _temp: Some(temp),
        })
    }

    /// Where the output of `target` is.
    fn of(&self, target: Target) -> PathBuf {
        self.destination.out.join(target.name())
    }
}

/// Builds what is to be sent.
fn build(
    args: &Publish,
    target: Target,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<(Loaded, Summary, Place), End> {
    let loaded = match input::load(&args.input, &args.packaging, context, diags) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Err(Box::new(Outcome::of)),
        Err(failure) => return Err(Box::new(|diags| input::refused(diags, failure))),
    };
    let place = Place::new(args, context).map_err(|error| -> End {
        let message = format!("Can not build in a directory in {}", error.path.display());
        let help = "Check that you may write there, or build first and name that with --from.";
        let failure = Failure {
            causes: vec![error.source.to_string()],
            ..Failure::new(message, help)
        };
        Box::new(|diags| Outcome::of(diags).failed(Exit::System, failure))
    })?;
    let built = build::build(&loaded, &[target], &place.destination, context, diags);
    let summary = built.map_err(|stopped| -> End { Box::new(|diags| stopped.outcome(diags)) })?;
    if summary.interrupted {
        return Err(Box::new(|diags| {
            interrupted(Outcome::of(diags), "Nothing was published.")
        }));
    }
    if diags.has_errors() || !summary.failed.is_empty() {
        let failed = ids(&summary.failed);
        return Err(Box::new(|diags| Outcome::of(diags).field("failed", failed)));
    }
    Ok((loaded, summary, place))
}

fn send(
    args: &Publish,
    context: &Context,
    store: &dyn Store,
    (from, release): (&Path, &Release),
    diags: &mut Diagnostics,
) -> Result<Pushed, (Exit, Failure)> {
    let publishing = &args.publishing;
    let tag = tag(args);
    let progress = Progress::new(&context.look);
    let push_it = Push {
        from,
        release,
        remote: Remote::new(store, None),
        reference: &tag,
        force: args.destination.force,
        repair: publishing.repair,
        dry_run: publishing.dry_run,
        grace: GRACE,
        stop: &context.stop,
    };
    let pushed = push(&push_it, &progress).map_err(|error| store::told(&error))?;
    drop(progress);
    if pushed.unconditional {
        diags.push(
            Diagnostic::new(
                Rule::StoreIgnoresConditions,
                "The store ignores conditional writes: when two publishers move one tag at the \
                 same time, the last one wins and the other is not told.",
            )
            .help("Let one publisher at a time move a tag, or use one tag for each."),
        );
    }
    Ok(pushed)
}

/// What the release is to be called.
fn tag(args: &Publish) -> RefName {
    let given = args.publishing.tag.clone();
    given.unwrap_or_else(RefName::latest)
}

/// The release that a build has made.
fn built(from: &Path) -> Result<Release, (Exit, Failure)> {
    let local = Directory::open(from).map_err(|error| store::told(&error.into()))?;
    let release = Remote::new(&local, None).release(&Which::Ref(RefName::latest()));
    release.map_err(|error| match error {
        PublishError::Refused { .. } => {
            let failure = Failure::new(
                format!("There is no release of a build in {}.", from.display()),
                "--from takes the directory `bundle` in the output of `casepack build --target \
                 bundle`.",
            );
            (Exit::Usage, failure)
        }
        error => store::told(&error),
    })
}

fn told(
    args: &Publish,
    store: &dyn Store,
    release: &Release,
    pushed: &Pushed,
    diags: Diagnostics,
) -> Outcome {
    let dry_run = args.publishing.dry_run;
    let (url, tag) = (args.dest.to_string(), tag(args).to_string());
    let traffic = store.traffic();
    let number = |blobs: u64| usize::try_from(blobs).unwrap_or(usize::MAX);
    let sent = count(number(pushed.uploaded), "blob", "blobs");
    let sent = format!("{sent} ({})", size(pushed.uploaded_bytes));
    let all = pushed.present + pushed.uploaded;
    let reused = format!("{} of {all} there already", pushed.present);
    let shown = escape::line(&url);
    let reused = match pushed.damaged {
        0 => reused,
        damaged => format!("{reused}, {damaged} more were damaged"),
    };
    let text = match (dry_run, pushed.unchanged) {
        (_, true) => {
            let compared = pushed.compared.map_or_else(String::new, |objects| {
                format!(
                    " Only the first {objects} objects of the store were compared: --force compares \
                     all."
                )
            });
            format!("'{tag}' in {shown} is this release already.{compared}")
        }
        (true, false) => format!("Would send {sent} to {shown} as '{tag}'; {reused}."),
        (false, false) => format!("Published to {shown} as '{tag}': {sent} sent, {reused}."),
    };
    let document = &release.document;
    let mut outcome = Outcome::of(diags)
        .field("store", url.clone())
        .field("tag", tag)
        .field("release", release.digest.to_string())
        .field("dataset", document.name.clone())
        .field("dataset_digest", document.dataset.to_string())
        .field("packages_digest", document.packages.to_string())
        .field("cases", document.cases)
        .field("dry_run", dry_run)
        .field("unchanged", pushed.unchanged)
        .field("before", pushed.before.map(|digest| digest.to_string()))
        .field("compared", pushed.compared)
        .field("damaged", pushed.damaged)
        .field("uploaded", pushed.uploaded)
        .field("uploaded_bytes", pushed.uploaded_bytes)
        .field("reused", pushed.present)
        .field("reused_bytes", pushed.present_bytes)
        .field("requests", traffic.requests)
        .field("retries", traffic.retries);
    outcome.text = format!(
        "{text}\n  release {}\n  dataset {}\n",
        release.digest, document.dataset
    );
    outcome
}
