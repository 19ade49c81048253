//! `casepack diff STORE@A STORE@B`: what differs between two releases. Only the catalog shards that
//! one of them does not have are read, and no pack.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::super::args::Diff;
use super::super::exit::Exit;
use super::super::outcome::{Failure, Outcome};
use super::super::ui::{Cell, Ink, Table, count};
use super::super::verify::{brief, build_at, ink, stored};
use super::super::{Context, build, input, store};
use super::SHOWN;
use crate::bundle::{RefName, Release};
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::escape;
use crate::path::CaseId;
use crate::plan::Change;
use crate::publish::{Changes, Difference, Remote, Which, diff};
use crate::store::{Purpose, StoreUrl};
use crate::target::Target;

/// A release in a store.
pub(super) struct Side {
    url: StoreUrl,
    which: Which,
}

/// The releases that are to be compared; `None`: it is about builds and datasets.
pub(super) fn sides(args: &Diff, context: &Context) -> Result<Option<[Side; 2]>, Failure> {
    let a = side(&args.a, None, context)?;
    let b = side(&args.b, a.as_ref().map(|side| &side.url), context)?;
    let bundles = args.target.meant() == Target::Bundle;
    if a.is_none() && b.is_none() && !bundles {
        return Ok(None);
    }
    let or_built = |side: Option<Side>, path: &Path| {
        if let Some(side) = side {
            return Ok(side);
        }
        let built = build_at(&context.machine.absolute(path));
        let store = built.map(|out| StoreUrl::Directory(out.join(Target::Bundle.name())));
        let store = store.filter(|store| is_store(store, context));
        let url = store.ok_or_else(|| {
            Failure::new(
                format!("'{}' holds no release to compare.", path.display()),
                "Build it with --target bundle, and name the output directory.",
            )
        })?;
        Ok(Side {
            url,
            which: Which::Ref(RefName::latest()),
        })
    };
    Ok(Some([or_built(a, &args.a)?, or_built(b, &args.b)?]))
}

fn is_store(url: &StoreUrl, context: &Context) -> bool {
    match url {
        StoreUrl::Directory(path) => stored::at(path, &context.machine.absolute(path)).is_some(),
        StoreUrl::S3 { .. } => true,
    }
}

/// `STORE`, `STORE@NAME`, `STORE@sha256:…`, or without the store that of the other side.
fn side(path: &Path, first: Option<&StoreUrl>, context: &Context) -> Result<Option<Side>, Failure> {
    let absolute = context.machine.absolute(path);
    let Some(text) = path.to_str() else {
        return Ok(None);
    };
    let parted = text
        .rsplit_once('@')
        .filter(|(_, name)| !name.is_empty() && !absolute.exists());
    let Some((place, name)) = parted else {
        return match stored::at(path, &absolute) {
            None => Ok(None),
            Some(url) => Ok(Some(Side {
                url,
                which: Which::Ref(RefName::latest()),
            })),
        };
    };
    let url = if place.is_empty() {
        first.cloned()
    } else {
        let place = Path::new(place);
        stored::at(place, &context.machine.absolute(place))
    };
    let Some(url) = url else {
        return Err(Failure::new(
            format!("'{text}' names a release, and there is no store before the '@'."),
            "Write STORE@NAME or STORE@sha256:…; see releases with `casepack ls STORE`.",
        ));
    };
    let which = match name.strip_prefix("sha256:") {
        Some(hex) => Digest::from_hex(hex)
            .map(Which::Manifest)
            .map_err(|error| error.to_string()),
        None => RefName::new(name)
            .map(Which::Ref)
            .map_err(|error| error.to_string()),
    };
    let which = which.map_err(|why| {
        Failure::new(
            format!("'{name}' is neither the name nor the digest of a release: {why}."),
            "See releases with `casepack ls STORE`.",
        )
    })?;
    Ok(Some(Side { url, which }))
}

pub(super) fn run(
    sides: &[Side; 2],
    args: &Diff,
    context: &Context,
) -> Result<Outcome, (Exit, Failure)> {
    let select = input::select(&args.reading).map_err(|failure| (Exit::Usage, failure))?;
    let failed = |error| store::told(&error);
    let [a, b] = sides;
    let open = |side: &Side| store::open(&side.url, &args.s3, context, Purpose::Read);
    let (store_a, store_b) = (open(a)?, open(b)?);
    let remote_a = Remote::new(&*store_a, None);
    let remote_b = Remote::new(&*store_b, None);
    let old = remote_a.release(&a.which).map_err(failed)?;
    let new = remote_b.release(&b.which).map_err(failed)?;
    let mut changes = diff((remote_a, &old), (remote_b, &new)).map_err(failed)?;
    changes.added.retain(|id| select.has(id));
    changes.removed.retain(|id| select.has(id));
    changes.files.retain(|file| select.has(&file.case));
    let outcome = tell(args, &changes, [&old, &new], select.is_all(), context);
    let requests = store_a.traffic().requests + store_b.traffic().requests;
    Ok(outcome.field("requests", requests))
}

fn tell(
    args: &Diff,
    changes: &Changes,
    [old, new]: [&Release; 2],
    all: bool,
    context: &Context,
) -> Outcome {
    let mut by_case: BTreeMap<&CaseId, Vec<&Difference>> = BTreeMap::new();
    for file in &changes.files {
        by_case.entry(&file.case).or_default().push(file);
    }
    let (added, removed, changed) = (changes.added.len(), changes.removed.len(), by_case.len());
    let cases = usize::try_from(old.document.cases).unwrap_or(usize::MAX);
    let same = cases.saturating_sub(removed + changed);
    let mut numbers = vec![(added, "added"), (removed, "removed"), (changed, "changed")];
    if all {
        numbers.push((same, "the same"));
    }
    let [a, b] = [&args.a, &args.b].map(|path| path.to_string_lossy().into_owned());
    let mut text = table(changes, context);
    text.extend([
        &escape::line(&a),
        " → ",
        &escape::line(&b),
        ", ",
        &count(added + cases, "case", "cases"),
        &build::tally(&numbers),
        ".\n",
    ]);
    let changed: Vec<Value> = by_case
        .iter()
        .map(|(case, files)| {
            let files: Vec<Value> = files.iter().map(|it| file(it)).collect();
            json!({ "output": case.as_str(), "files": files })
        })
        .collect();
    let ids = |ids: &[CaseId]| super::super::outcome::ids(ids);
    let side = |release: &Release| {
        json!({
            "release": release.digest.to_string(),
            "dataset_digest": release.document.dataset.to_string(),
        })
    };
    let mut outcome = Outcome::of(Diagnostics::default())
        .field("a", a)
        .field("b", b)
        .field("target", Target::Bundle.name())
        .field("releases", vec![side(old), side(new)])
        .field("added", ids(&changes.added))
        .field("removed", ids(&changes.removed))
        .field("changed", changed)
        .field("same", all.then_some(same));
    outcome.text = text;
    if added + removed + by_case.len() > 0 {
        return outcome.at_least(Exit::Findings);
    }
    outcome
}

fn file(file: &Difference) -> Value {
    let text = |digest: Option<Digest>| digest.map(|digest| digest.to_string());
    json!({
        "file": file.path,
        "view": file.view.name(),
        "change": file.change.name(),
        "old": text(file.old),
        "new": text(file.new),
    })
}

fn table(changes: &Changes, context: &Context) -> String {
    let cases = [
        (&changes.added, Change::Added),
        (&changes.removed, Change::Removed),
    ];
    let cases = cases.into_iter().flat_map(|(ids, change)| {
        ids.iter()
            .map(move |id| (change, id.to_string(), String::new()))
    });
    let files = changes.files.iter().map(|file| {
        let brief = |digest: Digest| brief(&digest.to_string()).to_owned();
        let what = match (file.change, file.old, file.new) {
            (Change::Content, Some(old), Some(new)) => format!("{} → {}", brief(old), brief(new)),
            _ => String::new(),
        };
        let place = format!("{}/{}: {}", file.case, file.view.name(), file.path);
        (file.change, place, what)
    });
    let rows: Vec<_> = cases.chain(files).collect();
    let limit = if context.look.verbose {
        rows.len()
    } else {
        SHOWN
    };
    let mut table = Table::default();
    for (change, place, what) in rows.iter().take(limit) {
        table.row([
            Cell::new(change.name()).ink(ink(*change)),
            Cell::new(place.as_str()),
            Cell::new(what.as_str()).ink(Ink::Faint),
        ]);
    }
    let mut text = table.show(context.look.color_out);
    let more = rows.len().saturating_sub(limit);
    if more > 0 {
        text.extend(["… and ", &more.to_string(), " more (-v shows all)\n"]);
    }
    text
}
