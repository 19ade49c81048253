//! Stores as users name them, opened; and what is said when one fails.

use std::path::Path;
use std::sync::Arc;

use super::Context;
use super::args::{S3Args, Source};
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use crate::bundle::{RefName, Release};
use crate::diag::Diagnostics;
use crate::publish::{Cache, PublishError, Remote, Which};
use crate::store::{Access, Memory, Purpose, S3Settings, SecretError, Store, StoreUrl};

/// Opens the store.
pub(super) fn open(
    url: &StoreUrl,
    args: &S3Args,
    context: &Context,
    purpose: Purpose,
) -> Result<Box<dyn Store>, (Exit, Failure)> {
    let settings = match url {
        StoreUrl::Directory(_) => S3Settings::default(),
        StoreUrl::S3 { .. } => settings(args, context)?,
    };
    let url = url.clone().absolute(&context.machine.cwd);
    crate::store::open(&url, &settings, purpose)
        .map_err(|error| (Exit::System, Failure::from_error(&error, error.help())))
}

/// Opens the store that something is published to. A dry run makes no directory: one that is not
/// there is a store without anything in it.
pub(super) fn open_to_write(
    url: &StoreUrl,
    args: &S3Args,
    context: &Context,
    dry_run: bool,
) -> Result<Box<dyn Store>, (Exit, Failure)> {
    match dry_run {
        true if is_to_be_made(url, context) => Ok(Box::new(Memory::new())),
        true => open(url, args, context, Purpose::Read),
        false => open(url, args, context, Purpose::Write),
    }
}

/// Whether the store is a directory that is not there yet.
pub(super) fn is_to_be_made(url: &StoreUrl, context: &Context) -> bool {
    match url.clone().absolute(&context.machine.cwd) {
        StoreUrl::Directory(path) => path.symlink_metadata().is_err(),
        StoreUrl::S3 { .. } => false,
    }
}

/// Flags first, then the mounted secret, then the environment; the rest is up to the standard
/// chain of the AWS tools.
fn settings(args: &S3Args, context: &Context) -> Result<S3Settings, (Exit, Failure)> {
    let machine = &context.machine;
    let mut settings = match &args.s3_secret_dir {
        Some(dir) => S3Settings::from_secret_dir(&machine.absolute(dir)).map_err(|error| {
            let help = "Check --s3-secret-dir and what is mounted there.";
            (of_secret(&error), Failure::from_error(&error, help))
        })?,
        None => S3Settings::default(),
    };
    // Manifests set variables that are empty to say nothing.
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    settings.endpoint = given(&args.s3_endpoint).or(settings.endpoint);
    settings.region = given(&args.s3_region).or(settings.region);
    settings.profile = given(&args.s3_profile).or(settings.profile);
    settings.path_style = args.s3_path_style.or(settings.path_style);
    settings.ca_bundle = args
        .s3_ca_bundle
        .as_ref()
        .map(|path| machine.absolute(path))
        .or(settings.ca_bundle);
    settings.stop = Arc::clone(&context.stop);
    if args.s3_anonymous {
        settings.access = Access::Anonymous;
    }
    Ok(settings.with_variables(|name| machine.env.get(name).cloned()))
}

/// How a command ends that has no use for a secret.
pub(super) fn of_secret(error: &SecretError) -> Exit {
    match error {
        SecretError::NoDirectory(_) | SecretError::Missing { .. } => Exit::Usage,
        SecretError::Unreadable { .. } => Exit::System,
    }
}

/// The store that holds the prefix, and the prefix's last component.
pub(super) fn parted(dest: &StoreUrl) -> Option<(StoreUrl, String)> {
    match dest {
        StoreUrl::S3 { bucket, prefix } => {
            let prefix = prefix.as_ref()?;
            let parent = StoreUrl::S3 {
                bucket: bucket.clone(),
                prefix: prefix.parent(),
            };
            Some((parent, prefix.name().to_owned()))
        }
        StoreUrl::Directory(path) => {
            let name = path.file_name()?.to_str()?.to_owned();
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            Some((StoreUrl::Directory(parent.to_owned()), name))
        }
    }
}

/// Opens the store and its cache, and does `work` with the release that is meant, if it is of the
/// dataset that is expected.
pub(super) fn with_release<T>(
    source: &Source,
    s3: &S3Args,
    context: &Context,
    work: impl FnOnce(Remote<'_>, &Release) -> Result<T, (Exit, Failure)>,
) -> Result<T, (Exit, Failure)> {
    let url = &source.src.0;
    let store = open(url, s3, context, Purpose::Read).map_err(|told| match url {
        StoreUrl::Directory(_) => not_after_an_at(url, told),
        StoreUrl::S3 { .. } => told,
    })?;
    let cache = source.cache.as_ref();
    let cache = cache.map(|dir| Cache::open(&context.machine.absolute(dir)));
    let cache = cache.transpose().map_err(|error| told(&error))?;
    let remote = Remote::new(&*store, cache.as_ref());
    let which = match source.src.1 {
        Some(digest) => Which::Manifest(digest),
        None => Which::Ref(source.r#ref.clone().unwrap_or_else(RefName::latest)),
    };
    let release = remote.release(&which);
    let release = release.map_err(|error| match error {
        PublishError::Refused { .. } => not_after_an_at(url, told(&error)),
        error => told(&error),
    })?;
    if let (Some(digest), Some(name)) = (source.src.1, &source.r#ref) {
        let named = remote.release(&Which::Ref(name.clone()));
        let named = named.map_err(|error| told(&error))?.digest;
        if named != digest {
            let message =
                format!("--ref {name} is the release {named}, not the {digest} after the '@'.");
            let help = "Name the release by one of the two.";
            return Err((Exit::Usage, Failure::new(message, help)));
        }
    }
    match source.expect_dataset {
        Some(expected) if expected != release.document.dataset => Err((
            Exit::Usage,
            Failure::new(
                format!(
                    "The release {} is of the dataset {}, not of {expected}.",
                    release.digest, release.document.dataset
                ),
                "Name the release by its digest, or publish the dataset that is expected.",
            ),
        )),
        _ => work(remote, &release),
    }
}

/// What is said when nothing is found at a URL that ends like a digest does, with a name.
fn not_after_an_at(url: &StoreUrl, (exit, mut failure): (Exit, Failure)) -> (Exit, Failure) {
    let text = url.to_string();
    if let Some((_, name)) = text.rsplit_once('@')
        && let Ok(name) = RefName::new(name)
    {
        failure.help = format!(
            "Only a digest goes after an '@'. For a release of that name write --ref {name}."
        );
    }
    (exit, failure)
}

/// How a command ends that could not do what it was to do with a store.
pub(super) fn told(error: &PublishError) -> (Exit, Failure) {
    let exit = match error {
        PublishError::NoCase | PublishError::Refused { .. } => Exit::Usage,
        PublishError::Stopped => Exit::Interrupted,
        _ => Exit::System,
    };
    (exit, Failure::from_error(error, error.help()))
}

/// An outcome that is a failure and nothing else.
pub(super) fn stopped((exit, failure): (Exit, Failure)) -> Outcome {
    Outcome::of(Diagnostics::default()).failed(exit, failure)
}
