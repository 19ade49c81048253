//! Started as `eval-runtime-init`, casepack does the work of `EvalHub`'s own init container: it
//! fetches the test data of a job from S3 (evalhub.md 2).
//!
//! That program takes no arguments: what to fetch is in the environment, who may do so in a
//! mounted secret. Other than `EvalHub`'s, it also pulls releases: keys as `casepack emit evalhub`
//! writes them for them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::args::{OutputFormat, Talk};
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::settings::{Machine, jobs};
use super::store;
use super::ui::{self, count, size};
use super::{Context, interrupts};
use crate::diag::Diagnostics;
use crate::escape;
use crate::plan::Select;
use crate::publish::{self, Chosen, Layout, PublishError, Remote, Which};
use crate::store::{Purpose, S3Settings, StoreUrl};
use crate::target::evalhub::{CASES, ReleaseKey};

/// The name of `EvalHub`'s program.
const NAME: &str = "eval-runtime-init";
/// Where the job looks for its files.
const TEST_DATA: &str = "/test_data";
/// Where the secret is mounted.
const SECRET: &str = "/var/run/secrets/test-data";

/// Whether the program was started under the name of `EvalHub`'s.
pub(super) fn is_meant(args: &[OsString]) -> bool {
    let name = args
        .first()
        .and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| name == NAME)
}

pub(super) fn main() -> Exit {
    let look = Machine::unknown().look(&Talk::fixed(OutputFormat::Human));
    let outcome = match Machine::ask() {
        Ok(machine) => {
            let (stop, again) = interrupts(false);
            run(&Context {
                machine,
                look,
                stop,
                again,
            })
        }
        Err(error) => {
            let help = "Start it in a directory that exists.";
            let failure = Failure::from_error(&error, help);
            Outcome::of(Diagnostics::default()).failed(Exit::System, failure)
        }
    };
    ui::show(&look, NAME, &outcome)
}

fn run(context: &Context) -> Outcome {
    let outcome = Outcome::of(Diagnostics::default());
    match fetch(context) {
        Ok(text) => Outcome { text, ..outcome },
        Err((exit, failure)) => outcome.failed(exit, failure),
    }
}

fn fetch(context: &Context) -> Result<String, (Exit, Failure)> {
    let env = &context.machine.env;
    let variable = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let usage = |message: String, help: &str| (Exit::Usage, Failure::new(message, help));
    let other = env.keys().find(|name| {
        ["TEST_DATA_GIT_", "TEST_DATA_HF_"]
            .iter()
            .any(|source| name.starts_with(source))
    });
    if let Some(other) = other {
        let message = format!("{other} is set, and casepack fetches from S3 only.");
        let help =
            "Use EvalHub's own init image for git and hf sources, or publish the data to S3.";
        return Err(usage(message, help));
    }
    let needed = |name: &str| {
        variable(name).cloned().ok_or_else(|| {
            usage(
                format!("{name} is not set."),
                "EvalHub sets it from test_data_ref.s3 of the job.",
            )
        })
    };
    let (bucket, key) = (needed("TEST_DATA_S3_BUCKET")?, needed("TEST_DATA_S3_KEY")?);
    let url = format!("s3://{bucket}").parse::<StoreUrl>();
    let Ok(url @ StoreUrl::S3 { prefix: None, .. }) = url else {
        return Err(usage(
            format!("'{bucket}' is no bucket."),
            "Correct test_data_ref.s3.bucket.",
        ));
    };
    let place = |name: &str, usual: &str| {
        let place = variable(name).map_or_else(|| PathBuf::from(usual), PathBuf::from);
        context.machine.absolute(&place)
    };
    let release = ReleaseKey::parse(&key).map_err(|why| {
        let message = format!("The key '{key}' names no release: {why}.");
        let help = "Correct test_data_ref.s3.key; `casepack emit evalhub` writes it.";
        usage(message, help)
    })?;
    let dest = place("CASEPACK_TEST_DATA", TEST_DATA);
    if !dest.is_dir() {
        let message = format!("{} is no directory.", dest.display());
        // What is made there would go with this container.
        let help = "EvalHub mounts a volume there, which the adapter has too; CASEPACK_TEST_DATA \
                    names another directory.";
        return Err((Exit::Usage, Failure::new(message, help)));
    }
    let mut settings = secret(&place("CASEPACK_S3_SECRET_DIR", SECRET))?;
    settings.stop = Arc::clone(&context.stop);
    if let Some(release) = release {
        return pull(&bucket, &release, &settings, &dest.join(CASES), context);
    }
    let store = crate::store::open(&url, &settings, Purpose::Read)
        .map_err(|error| (Exit::System, Failure::from_error(&error, error.help())))?;
    let fetched =
        publish::fetch(&*store, &key, &dest, &context.stop).map_err(|error| store::told(&error))?;
    let verified = if fetched.verified {
        "compared with what was published"
    } else {
        "not published by casepack, so compared with nothing"
    };
    let files = usize::try_from(fetched.files).unwrap_or(usize::MAX);
    Ok(format!(
        "Fetched {} ({}) into {}; {verified}.\n",
        count(files, "file", "files"),
        size(fetched.bytes),
        escape::line(&dest.to_string_lossy()),
    ))
}

/// Pulls a release, or a part of it, as adapters read cases.
fn pull(
    bucket: &str,
    key: &ReleaseKey<'_>,
    settings: &S3Settings,
    out: &Path,
    context: &Context,
) -> Result<String, (Exit, Failure)> {
    let url = format!("s3://{bucket}/{}", key.prefix);
    let url = url.parse::<StoreUrl>().map_err(|error| {
        let help = "Correct test_data_ref.s3.key.";
        (Exit::Usage, Failure::from_error(&error, help))
    })?;
    let mut select = Select::default();
    if let Some((index, of)) = key.shard {
        select = select.shard(index, of);
    }
    let store = crate::store::open(&url, settings, Purpose::Read)
        .map_err(|error| (Exit::System, Failure::from_error(&error, error.help())))?;
    let failed = |error| store::told(&error);
    let remote = Remote::new(&*store, None);
    let which = Which::Manifest(key.release);
    let release = remote.release(&which).map_err(failed)?;
    let pulled = publish::pull(
        &publish::Pull {
            remote,
            release: &release,
            chosen: Chosen {
                has: &|id| select.has(id),
                only: None,
            },
            layout: Layout::Cases,
            out,
            max_bytes: None,
            // The volume is of this pod alone.
            force: true,
            jobs: jobs(None),
            stop: &context.stop,
        },
        &(),
    )
    .map_err(failed)?;
    if pulled.interrupted {
        return Err(store::told(&PublishError::Stopped));
    }
    // Nobody pulls into this volume again, and whoever reads it finds what he expects.
    drop(fs::remove_file(out.join(publish::RECORD)));
    let number = |it: u64| usize::try_from(it).unwrap_or(usize::MAX);
    Ok(format!(
        "Pulled {} ({}, {}) into {}; compared with what was published.\n",
        count(number(pulled.cases), "case", "cases"),
        count(number(pulled.files), "file", "files"),
        size(pulled.bytes),
        escape::line(&out.to_string_lossy()),
    ))
}

/// The mounted secret; `EvalHub` wants all four of its keys.
fn secret(dir: &Path) -> Result<S3Settings, (Exit, Failure)> {
    let help = "The Secret needs AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION and \
                AWS_S3_ENDPOINT.";
    let settings = S3Settings::from_secret_dir(dir)
        .map_err(|error| (store::of_secret(&error), Failure::from_error(&error, help)))?;
    let lost = [
        (&settings.region, "AWS_DEFAULT_REGION"),
        (&settings.endpoint, "AWS_S3_ENDPOINT"),
    ];
    match lost.iter().find(|(value, _)| value.is_none()) {
        Some((_, name)) => {
            let message = format!("The secret in {} has no {name}.", dir.display());
            Err((Exit::Usage, Failure::new(message, help)))
        }
        None => Ok(settings),
    }
}
