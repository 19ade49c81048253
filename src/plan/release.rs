//! The release in `OUT/bundle`: of the cases that were packed in this build, and of those that
//! stay as they are.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::output::Output;
use super::{Error, Request, Summary};
use crate::bundle::{self, Compression, PackError, Packer, RefName};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::digest::{Digest, hash_reader};
use crate::fs::Root;
use crate::path::{CaseId, TreePath};
use crate::target::{self, harbor};

/// The ref of the release in `OUT/bundle`.
pub const LOCAL_REF: &str = "latest";

/// The ref of the release in `OUT/bundle`.
fn local_ref() -> Result<RefName, Error> {
    RefName::new(LOCAL_REF).map_err(|error| Error {
        doing: "can not name",
        path: LOCAL_REF.into(),
        source: io::Error::other(error),
    })
}

/// Forgets what is recorded of a release that is not there, or not whole. Blobs that somebody touched
/// since (`read`: in any case) are read and hashed; those that are damaged are removed when `mend`.
pub(super) fn believe(output: &mut Output, read: bool, mend: bool, diags: &mut Diagnostics) {
    let Some(recorded) = output.release() else {
        return;
    };
    let there = local_ref()
        .ok()
        .and_then(|reference| bundle::intact(output.path(), &reference));
    let trusted = !read && output.blobs_untouched();
    let whole = trusted || damaged(output.path(), mend) == 0;
    if whole && there.is_some_and(|it| it.digest.to_string() == recorded) {
        return;
    }
    diags.push(
        Diagnostic::new(
            Rule::RecordDamaged,
            format!(
                "The release in {} is not the one that was built there, or lacks something.",
                output.path().display()
            ),
        )
        .help("Nothing has to be done: every case is packed again."),
    );
    output.forget();
}

/// How many blobs of the store are not what their names say; with `mend` they are removed, so that
/// they are made again and not taken over. Nothing that a link leads to is looked at.
fn damaged(store: &Path, mend: bool) -> usize {
    let (Ok(root), Ok(blobs)) = (Root::open(store), TreePath::new("blobs/sha256")) else {
        return 0;
    };
    let entries = root.list(Some(&blobs)).unwrap_or_default();
    let damaged = entries.into_iter().filter(|entry| {
        let Some(path) = entry.name.as_ref().ok().and_then(|it| blobs.child(it).ok()) else {
            return false;
        };
        let digest = || hash_reader(&mut root.open_file(&path).ok()?.0).ok();
        let same = |digest: Digest| digest.hex() == path.name();
        let is_damaged = !digest().is_some_and(|(digest, _)| same(digest));
        is_damaged && (!mend || root.remove_file(&path).is_ok())
    });
    damaged.count()
}

/// Takes the cases of the next release.
pub(super) fn packer(output: &Output, compression: Compression) -> Result<Packer, Error> {
    Packer::new(output.path(), &output.staging(), local_ref()?, compression)
        .map_err(|error| failed(error, output.path()))
}

/// Makes the release of the cases that were `packed` and those that stay as they are. `false` when
/// the earlier release can't be used, and everything has to be packed again.
pub(super) fn make(
    request: &Request<'_>,
    output: &mut Output,
    packer_of_run: Option<Packer>,
    packed: &BTreeSet<&CaseId>,
    summary: &mut Summary,
) -> Result<bool, Error> {
    let dataset = request.dataset;
    let gone = output.drop_gone(dataset);
    if gone.is_empty() && packed.is_empty() {
        summary.release = output.release().and_then(|release| release.parse().ok());
        return Ok(true);
    }
    let packer = match packer_of_run {
        Some(packer) => packer,
        None => packer(output, request.compression)?,
    };
    for (id, digests) in output.cases() {
        if !packed.contains(&id) {
            packer.keep(&id, digests);
        }
    }
    let options = request.harbor.values();
    let about = bundle::About {
        name: dataset.name.clone(),
        description: dataset.description.clone(),
        format: dataset.format.name().to_owned(),
        harbor_name: harbor::dataset_name(dataset, request.harbor),
        options: options
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    };
    match packer.finish(&about, target::templates(), request.jobs, request.stop) {
        Ok(made) => {
            output.set_release(&made.release.digest);
            summary.release = Some(made.release.digest);
            summary.files += made.blobs;
            summary.bytes += made.bytes;
            let gone = gone.into_iter();
            summary
                .removed
                .extend(gone.map(|name| format!("bundle/{name}")));
            Ok(true)
        }
        Err(PackError::Previous(_)) if output.release().is_some() => {
            output.forget();
            Ok(false)
        }
        Err(PackError::Stopped) => {
            summary.interrupted = true;
            Ok(true)
        }
        Err(error) => Err(failed(error, output.path())),
    }
}

/// A failure to pack as one of the build.
pub(super) fn failed(error: PackError, at: &Path) -> Error {
    match error {
        PackError::Io {
            doing,
            path,
            source,
        } => Error {
            doing,
            path,
            source,
        },
        other => Error {
            doing: "can not pack the release in",
            path: at.to_owned(),
            source: io::Error::other(other),
        },
    }
}
