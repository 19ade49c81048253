//! `casepack gc`: blobs that no release needs go, in two passes.

use std::time::Duration;

use super::Context;
use super::args::Gc;
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::store;
use super::ui::{count, size};
use crate::diag::Diagnostics;
use crate::publish::{Collection, Remote, collect};
use crate::store::Purpose;

pub(super) fn run(args: &Gc, context: &Context) -> Outcome {
    pass(args, context).unwrap_or_else(store::stopped)
}

fn pass(args: &Gc, context: &Context) -> Result<Outcome, (Exit, Failure)> {
    let store = store::open(&args.store, &args.s3, context, Purpose::Read)?;
    let remote = Remote::new(&*store, None);
    let days = |days: u32| Duration::from_secs(u64::from(days) * 86_400);
    let pass = Collection {
        grace: days(args.grace),
        keep: days(args.keep),
        now: i64::try_from(context.machine.clock).unwrap_or(i64::MAX),
        write: args.write,
    };
    let done = collect(remote, pass, &context.stop).map_err(|error| store::told(&error))?;
    if done.needed.0 + done.named.0 + done.removed.0 == 0 {
        // Mistyped, as likely as not: then garbage stays for ever.
        let failure = Failure::new(
            format!("There is no release in {}.", store.show("")),
            "Check the URL: `casepack publish` prints that of a store.",
        );
        return Err((Exit::Usage, failure));
    }
    let blobs = |(number, bytes): (u64, u64)| {
        format!("{} ({})", count(number, "blob", "blobs"), size(bytes))
    };
    let mut outcome = Outcome::of(Diagnostics::default())
        .field("store", args.store.to_string())
        .field("write", args.write)
        .field("needed", done.needed.0)
        .field("needed_bytes", done.needed.1)
        .field("lost_releases", done.lost_releases)
        .field("named", done.named.0)
        .field("named_bytes", done.named.1)
        .field("removed", done.removed.0)
        .field("removed_bytes", done.removed.1);
    let (removed, hint) = if args.write {
        ("Removed", "")
    } else {
        ("Would remove", "Nothing was written: --write does it.\n")
    };
    let lost = match usize::try_from(done.lost_releases).unwrap_or(usize::MAX) {
        0 => String::new(),
        number => format!(
            "They include {} without a ref, since {} days have not passed.\n",
            count(number, "release", "releases"),
            args.keep
        ),
    };
    outcome.text = format!(
        "{removed} {}; {} that nothing needs wait for {} days; {} are needed.\n{lost}{hint}",
        blobs(done.removed),
        blobs(done.named),
        args.grace,
        blobs(done.needed),
    );
    Ok(outcome)
}
