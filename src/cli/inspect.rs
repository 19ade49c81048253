//! `casepack inspect`: what a release is, or the trees of one of its cases.

use serde_json::{Map, Value, json};

use super::Context;
use super::args::Inspect;
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::store;
use super::ui::{Cell, Ink, Table, count, size};
use crate::bundle::{Release, View};
use crate::diag::Diagnostics;
use crate::path::CaseId;
use crate::publish::{Remote, case};

pub(super) fn run(args: &Inspect, context: &Context) -> Outcome {
    inspect(args, context).unwrap_or_else(store::stopped)
}

fn inspect(args: &Inspect, context: &Context) -> Result<Outcome, (Exit, Failure)> {
    store::with_release(&args.source, &args.s3, context, |remote, release| {
        let outcome = match &args.case {
            None => whole(release, context),
            Some(id) => one(remote, release, id, context)?,
        };
        Ok(outcome
            .field("store", args.source.src.0.to_string())
            .field("release", release.digest.to_string()))
    })
}

fn whole(release: &Release, context: &Context) -> Outcome {
    let document = &release.document;
    let mut table = Table::default();
    let mut row = |name: &str, value: String| {
        table.row([Cell::new(name).ink(Ink::Strong), Cell::new(value)]);
    };
    row("dataset", document.name.clone());
    row("release", release.digest.to_string());
    row("dataset digest", document.dataset.to_string());
    row("packages digest", document.packages.to_string());
    row("format", document.format.clone());
    row("cases", document.cases.to_string());
    for view in View::ALL {
        let (files, bytes) = document.views.get(&view).copied().unwrap_or_default();
        let packs = document.packs.iter().filter(|pack| pack.view == view);
        let stored = size(packs.map(|pack| pack.blob.size).sum());
        row(
            view.name(),
            format!(
                "{}, {}; {stored} of packs",
                count(files, "file", "files"),
                size(bytes)
            ),
        );
    }
    for (name, value) in &document.options {
        row(&format!("option {name}"), value.clone());
    }
    // The document is JSON that was parsed.
    let fields: Value = serde_json::from_slice(&release.document_bytes).unwrap_or_default();
    let mut outcome = Outcome::of(Diagnostics::default()).field("document", fields);
    outcome.text = table.show(context.look.color_out);
    outcome
}

fn one(
    remote: Remote<'_>,
    release: &Release,
    id: &str,
    context: &Context,
) -> Result<Outcome, (Exit, Failure)> {
    let id = CaseId::new(id).map_err(|error| {
        let failure = Failure::new(format!("'{id}' is no id of a case: {error}."), "");
        (Exit::Usage, failure)
    })?;
    let views = case(remote, release, &id).map_err(|error| store::told(&error))?;
    let mut table = Table::default();
    let mut fields = Map::new();
    for (view, tree, files) in views {
        table.row([
            Cell::new(view.name()).ink(Ink::Strong),
            Cell::new(tree.to_string()),
        ]);
        let mut list = Vec::new();
        for file in files {
            table.row([
                Cell::new(format!("  {} {}", file.mode.letter(), file.path)),
                Cell::new(file.digest.to_string()).ink(Ink::Faint),
                Cell::new(size(file.size)).right(),
            ]);
            list.push(json!([
                file.path.as_str(),
                file.mode.letter(),
                file.digest.hex(),
                file.size
            ]));
        }
        fields.insert(
            view.name().to_owned(),
            json!({"tree": tree.to_string(), "files": list}),
        );
    }
    let mut outcome = Outcome::of(Diagnostics::default())
        .field("case", id.as_str())
        .field("views", fields);
    outcome.text = table.show(context.look.color_out);
    Ok(outcome)
}
