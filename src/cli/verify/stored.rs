//! `casepack verify STORE`: every blob of its releases, read and compared with its digest.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::Context;
use super::super::args::Verify;
use super::super::exit::Exit;
use super::super::outcome::{Failure, Outcome, interrupted};
use super::super::store;
use super::super::ui::{Cell, Ink, Progress, Table, count, size};
use crate::bundle::{BLOBS, Fault, OCI_LAYOUT, RefName};
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::escape;
use crate::publish::{PublishError, Remote, verify, verify_layout};
use crate::store::{Purpose, StoreUrl};

/// Damaged releases that are told by name.
const TOLD: usize = 10;

/// The store that is meant, when it is one.
pub(in super::super) fn at(path: &Path, absolute: &Path) -> Option<StoreUrl> {
    let url: StoreUrl = path.to_str()?.parse().ok()?;
    match url {
        // Without its marker it is a damaged one; beside a build's record nothing else is meant.
        StoreUrl::Directory(_) => (absolute.join(OCI_LAYOUT).is_file()
            || absolute.join(BLOBS).is_dir() && !absolute.join(".casepack").exists())
        .then_some(url),
        StoreUrl::S3 { .. } => Some(url),
    }
}

pub(super) fn run(url: &StoreUrl, args: &Verify, context: &Context) -> Outcome {
    check(url, args, context).unwrap_or_else(store::stopped)
}

fn check(url: &StoreUrl, args: &Verify, context: &Context) -> Result<Outcome, (Exit, Failure)> {
    let failed = |error: PublishError| store::told(&error);
    let opened = store::open(url, &args.s3, context, Purpose::Read)?;
    let remote = Remote::new(&*opened, None);
    let (mut bad, mut unread) = (Vec::new(), Vec::new());
    let mut other_version = None;
    let mut releases = BTreeMap::new();
    let (mut names, mut damaged) = (Vec::new(), Vec::new());
    let refs = remote.refs().map_err(failed)?;
    let number = refs.len();
    if number == 0 {
        // A mistyped prefix is not whole.
        let failure = Failure::new(
            format!("There is no release in {}.", opened.show("")),
            "Check the URL: `casepack publish` prints that of a store.",
        );
        return Err((Exit::Usage, failure));
    }
    for named in refs {
        match named.release {
            Ok(release) => {
                names.push((named.name, release.digest));
                releases.insert(release.digest, release);
            }
            Err(error) if error.fault == Fault::Damaged => {
                damaged.push(named.name);
                bad.push(error.to_string());
            }
            Err(error) => {
                let told = format!("the ref '{}': {error}", named.name);
                other_version.get_or_insert((told.clone(), error.help()));
                unread.push(told);
            }
        }
    }
    let releases: Vec<_> = releases.into_values().collect();
    let progress = Progress::new(&context.look);
    let checked = verify(remote, &releases, args.share, &context.stop, &progress);
    drop(progress);
    let checked = match checked {
        Err(PublishError::Stopped) => {
            let outcome = Outcome::of(Diagnostics::default());
            return Ok(interrupted(outcome, "Not everything was read."));
        }
        checked => checked.map_err(failed)?,
    };
    bad.extend(checked.bad);
    // Other versions may have another index.
    if unread.is_empty() {
        bad.extend(verify_layout(remote).map_err(failed)?);
    }
    let first_bad = bad.first().cloned();
    bad.extend(unread);
    let wrong = |(name, release): &(RefName, Digest)| {
        let wrong = checked.damaged.contains(release);
        wrong.then(|| name.clone())
    };
    damaged.extend(names.iter().filter_map(wrong));
    damaged.sort();
    let mut table = Table::default();
    for line in &bad {
        table.row([Cell::new(line.clone()).ink(Ink::Bad)]);
    }
    let blobs = usize::try_from(checked.blobs).unwrap_or(usize::MAX);
    let text = format!(
        "{}{}: {} in {} ({}) read{}, {}.\n",
        table.show(context.look.color_out),
        escape::line(&url.to_string()),
        count(blobs, "blob", "blobs"),
        count(releases.len(), "release", "releases"),
        size(checked.bytes),
        match args.share {
            100.. => String::new(),
            share => format!(" (of the packs {share} %)"),
        },
        match bad.len() {
            0 => "all as their digests say".to_owned(),
            number => count(number, "thing wrong", "things wrong"),
        },
    );
    let mut outcome = Outcome::of(Diagnostics::default())
        .field("store", url.to_string())
        .field("refs", number)
        .field("releases", releases.len())
        .field("blobs", checked.blobs)
        .field("bytes", checked.bytes)
        .field("share", args.share)
        .field(
            "damaged",
            damaged.iter().map(RefName::as_str).collect::<Vec<_>>(),
        )
        .field("bad", bad.clone());
    outcome.text = text;
    let failure = match (first_bad, other_version) {
        (None, None) => return Ok(outcome),
        (Some(first), _) => Failure {
            causes: vec![first],
            ..Failure::new("The store is damaged.", repair(url, &damaged, &names))
        },
        (None, Some((first, help))) => Failure {
            causes: vec![first],
            ..Failure::new(
                "The store has a release of another version of the format, which was not read.",
                help,
            )
        },
    };
    outcome = outcome.failed(Exit::Findings, failure);
    Ok(outcome)
}

/// What to do about a store with these refs, some of them damaged.
fn repair(url: &StoreUrl, damaged: &[RefName], names: &[(RefName, Digest)]) -> String {
    let command = |name: &str| format!("`casepack publish {url} --tag {name} --repair`");
    match damaged {
        // What only other tools read is made anew by every release.
        [] => {
            let name = names.first().map_or("NAME", |(name, _)| name.as_str());
            format!("Publish a release of it again: {}.", command(name))
        }
        [name] => format!(
            "Publish it again from its dataset: {}.",
            command(name.as_str())
        ),
        several => {
            let shown = several.iter().take(TOLD).map(RefName::as_str);
            let shown = shown.collect::<Vec<_>>().join(", ");
            let more = match several.len().saturating_sub(TOLD) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "Publish them again, each from its dataset: {} for {shown}{more}.",
                command("NAME")
            )
        }
    }
}
