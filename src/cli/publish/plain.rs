//! `casepack publish --layout evalhub-testdata|agent-eval-s3`: plain objects for the stock
//! downloaders of `EvalHub` (policy 26).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::args::Publish;
use super::super::exit::Exit;
use super::super::outcome::{Failure, Outcome};
use super::super::ui::{Progress, count, size};
use super::super::{Context, store};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::digest::Digest;
use crate::escape;
use crate::fs::Root;
use crate::publish::{Plain, PlainPushed, survey};
use crate::store::StoreUrl;
use crate::target::Target;
use crate::target::evalhub::{self, CASES, Layout};
use crate::tree::Tree;

/// What stands in the destination for the digest of the objects.
const DIGEST: &str = "{digest}";

/// What is to be sent.
struct Built {
    objects: Tree,
    dataset: Option<Digest>,
    /// Where the objects are, when they were built for this.
    _place: Option<super::Place>,
}

pub(super) fn run(args: &Publish, layout: Layout, context: &Context) -> Outcome {
    let mut diags = Diagnostics::new(args.input.levels.levels_to_ship());
    if let Some(tag) = &args.publishing.tag {
        let failure = Failure::new(
            format!("Plain objects have no tags, and --tag {tag} was given."),
            "Leave --tag out, and name them by the prefix; `{digest}` in it stands for the digest \
             of the objects. Releases (--layout bundle) have tags.",
        );
        return Outcome::of(diags).failed(Exit::Usage, failure);
    }
    if args.publishing.repair {
        let failure = Failure::new(
            "--repair is for releases.",
            "Leave it out: of plain objects, what is not as it was published is sent again anyway.",
        );
        return Outcome::of(diags).failed(Exit::Usage, failure);
    }
    let built = match built(args, layout, context, &mut diags) {
        Ok(built) => built,
        Err(end) => return end(diags),
    };
    evalhub::check(&built.objects, layout, &mut diags);
    let dest = at_digest(&args.dest, built.objects.id().0);
    let Some((parent, name)) = store::parted(&dest) else {
        let shown = dest.to_string();
        diags.push(
            Diagnostic::new(Rule::PrefixEmpty, format!("'{shown}' has no prefix."))
                .help("Add a prefix of its own: s3://BUCKET/PREFIX."),
        );
        return Outcome::of(diags);
    };
    if diags.has_errors() {
        return Outcome::of(diags);
    }
    match send(args, layout, context, &built, (&parent, &name), &mut diags) {
        Ok(Some((pushed, requests))) => told(args, layout, &dest, &built, pushed, diags)
            .field("record", format!("{parent}/.casepack/{name}.json"))
            .field("requests", requests),
        Ok(None) => Outcome::of(diags),
        Err((exit, failure)) => Outcome::of(diags).failed(exit, failure),
    }
}

/// The plain tree of the dataset, built; or what `--from` has.
fn built(
    args: &Publish,
    layout: Layout,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Built, super::End> {
    if let Some(from) = &args.publishing.from {
        let tree = read(&context.machine.absolute(from))?;
        return Ok(Built {
            objects: layout.objects(&tree),
            dataset: None,
            _place: None,
        });
    }
    let target = Target::EvalHub;
    let (loaded, summary, place) = super::build(args, target, context, diags)?;
    let tree = read(&place.of(target))?;
    // The output may have cases of earlier builds that are not meant this time.
    let tree = tree.filter(|path| {
        let mut components = path.components();
        let of_case = components.next() == Some(CASES);
        let case = components.next().filter(|_| of_case);
        let meant = |id: &str| {
            let case = loaded.dataset.cases.iter().find(|case| case.as_str() == id);
            case.is_some_and(|case| loaded.select.has(case))
        };
        case.is_none_or(meant)
    });
    Ok(Built {
        objects: layout.objects(&tree),
        dataset: summary.dataset_digest,
        _place: Some(place),
    })
}

/// The built tree at `dir`, without casepack's own records.
fn read(dir: &Path) -> Result<Tree, super::End> {
    let failed = |message: String, causes: Vec<String>| -> super::End {
        let failure = Failure {
            causes,
            ..Failure::new(message, "Build it again, or name another directory.")
        };
        Box::new(|diags| Outcome::of(diags).failed(Exit::System, failure))
    };
    let shown = dir.display();
    let root = Root::open(dir)
        .map_err(|error| failed(format!("{shown} can not be read."), vec![error.to_string()]))?;
    let tree = Tree::from_dir(&Arc::new(root), None, 0).map_err(|bad| {
        let causes = bad.into_iter().take(20);
        let causes = causes.map(|bad| format!("{}: {}", bad.shown, bad.why));
        failed(
            format!("{shown} has what can not be published."),
            causes.collect(),
        )
    })?;
    Ok(tree.filter(|path| !path.first().starts_with(".casepack")))
}

/// The destination with the digest filled in.
fn at_digest(dest: &StoreUrl, digest: Digest) -> StoreUrl {
    let filled = dest.to_string().replace(DIGEST, &digest.hex());
    match dest {
        StoreUrl::Directory(_) => StoreUrl::Directory(PathBuf::from(filled)),
        // Proof: hexadecimal digits in place of a text that was accepted are accepted.
        s3 @ StoreUrl::S3 { .. } => filled.parse().unwrap_or_else(|_| s3.clone()),
    }
}

/// What was done and with how many requests; `None`: findings keep it from being done.
fn send(
    args: &Publish,
    layout: Layout,
    context: &Context,
    built: &Built,
    (parent, name): (&StoreUrl, &str),
    diags: &mut Diagnostics,
) -> Result<Option<(PlainPushed, u64)>, (Exit, Failure)> {
    let store = store::open_to_write(parent, &args.s3, context, args.publishing.dry_run)?;
    let plain = Plain {
        store: &*store,
        name,
        layout,
        objects: &built.objects,
        dataset: built.dataset,
        force: args.destination.force,
        stop: &context.stop,
    };
    let work = survey(plain, diags).map_err(|error| store::told(&error))?;
    if diags.has_errors() {
        return Ok(None);
    }
    let pushed = if args.publishing.dry_run {
        work.wanted()
    } else {
        let progress = Progress::new(&context.look);
        work.send(&progress).map_err(|error| store::told(&error))?
    };
    Ok(Some((pushed, store.traffic().requests)))
}

fn told(
    args: &Publish,
    layout: Layout,
    dest: &StoreUrl,
    built: &Built,
    pushed: PlainPushed,
    diags: Diagnostics,
) -> Outcome {
    let dry_run = args.publishing.dry_run;
    let number = |objects: u64| usize::try_from(objects).unwrap_or(usize::MAX);
    let sent = count(number(pushed.uploaded), "object", "objects");
    let (verb, removed) = if dry_run {
        ("Would send", "to remove")
    } else {
        ("Sent", "removed")
    };
    let text = format!(
        "{verb} {sent} ({}) to {}/; {} there already, {} {removed}.\n",
        size(pushed.uploaded_bytes),
        escape::line(&dest.to_string()),
        pushed.present,
        pushed.removed,
    );
    let (bucket, key) = match dest {
        StoreUrl::S3 { bucket, prefix } => {
            let prefix = prefix.as_ref().map_or("", |prefix| prefix.as_str());
            (Some(bucket.clone()), Some(format!("{prefix}/")))
        }
        StoreUrl::Directory(_) => (None, None),
    };
    let advice = match (&bucket, &key) {
        (Some(bucket), Some(key)) => {
            let (bucket, key) = (escape::line(bucket), escape::line(key));
            let place = match layout {
                Layout::TestData => format!("test_data_ref.s3: bucket {bucket}, key {key}"),
                Layout::AgentEval => format!("parameters: s3_bucket {bucket}, s3_prefix {key}"),
            };
            format!(
                "  {place} (with its slash)\n  `casepack emit evalhub` writes the job's files.\n"
            )
        }
        _ => String::new(),
    };
    let mut outcome = Outcome::of(diags)
        .field("store", dest.to_string())
        .field("layout", layout.name())
        .field("bucket", bucket)
        .field("key", key)
        .field("tree", built.objects.id().to_string())
        .field(
            "dataset_digest",
            built.dataset.map(|digest| digest.to_string()),
        )
        .field("dry_run", dry_run)
        .field("uploaded", pushed.uploaded)
        .field("uploaded_bytes", pushed.uploaded_bytes)
        .field("reused", pushed.present)
        .field("removed", pushed.removed);
    outcome.text = format!("{text}{advice}");
    outcome
}
