//! `casepack ls`: the releases of a store, or the cases of one of them.

use serde_json::{Value, json};

use super::Context;
use super::args::Ls;
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::store;
use super::ui::{Cell, Ink, Table, count, size};
use crate::bundle::{Fault, RefName};
use crate::diag::Diagnostics;
use crate::escape;
use crate::publish::{CaseRow, Remote, Which, cases};
use crate::store::Purpose;

pub(super) fn run(args: &Ls, context: &Context) -> Outcome {
    list(args, context).unwrap_or_else(store::stopped)
}

fn list(args: &Ls, context: &Context) -> Result<Outcome, (Exit, Failure)> {
    let store = store::open(&args.store, &args.s3, context, Purpose::Read)?;
    let remote = Remote::new(&*store, None);
    let outcome = match &args.r#ref {
        None => refs(remote, context)?,
        Some(name) => of_release(remote, name, context)?,
    };
    Ok(outcome.field("store", args.store.to_string()))
}

fn refs(remote: Remote<'_>, context: &Context) -> Result<Outcome, (Exit, Failure)> {
    let refs = remote.refs().map_err(|error| store::told(&error))?;
    let mut table = Table::default();
    let mut fields: Vec<Value> = Vec::new();
    let mut first_bad = None;
    for named in refs {
        let name = named.name.as_str();
        match named.release {
            Ok(release) => {
                let document = &release.document;
                let bytes: u64 = release.blobs().iter().map(|blob| blob.size).sum();
                table.row([
                    Cell::new(name).ink(Ink::Strong),
                    Cell::new(release.digest.to_string()),
                    Cell::new(count(document.cases, "case", "cases")).right(),
                    Cell::new(size(bytes)).right(),
                    Cell::new(document.name.clone()),
                ]);
                fields.push(json!({
                    "name": name, "release": release.digest.to_string(),
                    "dataset": document.name, "dataset_digest": document.dataset.to_string(),
                    "packages_digest": document.packages.to_string(), "cases": document.cases,
                    "bytes": bytes, "modified": named.modified,
                }));
            }
            Err(bad) => {
                table.row([
                    Cell::new(name).ink(Ink::Strong),
                    Cell::new(bad.to_string()).ink(Ink::Bad),
                ]);
                fields.push(json!({"name": name, "error": bad.to_string()}));
                first_bad.get_or_insert((name.to_owned(), bad));
            }
        }
    }
    let fields_empty = fields.is_empty();
    let mut outcome = Outcome::of(Diagnostics::default()).field("refs", fields);
    outcome.text = if fields_empty {
        format!(
            "There is no release in {}.\n",
            escape::line(&remote.store.show(""))
        )
    } else {
        table.show(context.look.color_out)
    };
    let Some((first, bad)) = first_bad else {
        return Ok(outcome);
    };
    let failure = match bad.fault {
        Fault::Damaged => Failure::new(
            format!("The ref '{first}' is damaged."),
            "Publish the release again, or remove the ref's object.",
        ),
        Fault::Older | Fault::Newer => Failure::new(
            format!("The ref '{first}' names a release of another version of the format."),
            bad.help(),
        ),
    };
    Ok(outcome.failed(Exit::System, failure))
}

fn of_release(
    remote: Remote<'_>,
    name: &RefName,
    context: &Context,
) -> Result<Outcome, (Exit, Failure)> {
    let failed = |error| store::told(&error);
    let release = remote.release(&Which::Ref(name.clone())).map_err(failed)?;
    let rows = cases(remote, &release).map_err(failed)?;
    let mut table = Table::default();
    let mut fields: Vec<Value> = Vec::new();
    for CaseRow {
        id,
        tree,
        files,
        bytes,
    } in rows
    {
        table.row([
            Cell::new(id.as_str()).ink(Ink::Strong),
            Cell::new(tree.to_string()),
            Cell::new(count(files, "file", "files")).right(),
            Cell::new(size(bytes)).right(),
        ]);
        fields.push(json!({
            "id": id.as_str(), "workspace": tree.to_string(), "files": files, "bytes": bytes,
        }));
    }
    let mut outcome = Outcome::of(Diagnostics::default())
        .field("ref", name.as_str())
        .field("release", release.digest.to_string())
        .field("dataset_digest", release.document.dataset.to_string())
        .field("cases", fields);
    outcome.text = table.show(context.look.color_out);
    Ok(outcome)
}
