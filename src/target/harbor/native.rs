//! Cases that are Harbor tasks already: passed on as they are.
//!
//! Owns how their two views become one directory again. Refuses to know judges and options: the
//! task's own files say everything.
//! Invariant: no byte of the task's files is changed.

use toml_edit::{Document, Item};

use super::{Package, Prepared};
use crate::assemble::Views;
use crate::dataset::Case;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::path::TreePath;
use crate::tree::{Data, Tree, TreeBuilder};

/// The task's own files at their places, the workspace and shared files below `environment/`.
pub(super) fn package(
    case: &Case,
    views: &Views,
    shared: &Prepared,
    diags: &mut Diagnostics,
) -> Option<Package> {
    let name = shared.names.get(&case.id)?.clone();
    let mut tree = TreeBuilder::new();
    for (path, entry) in views.task.iter() {
        // A tree has no clash with itself.
        tree.insert(path.clone(), entry.mode, entry.content.clone())
            .ok()?;
    }
    let environment = TreePath::new("environment").ok()?;
    if let Err(clash) = tree.graft(&environment, &views.workspace) {
        diags.push(
            Diagnostic::new(
                Rule::PathCollision,
                format!(
                    "'{}' of the workspace and '{}' of the task need one place.",
                    clash.adding, clash.at
                ),
            )
            .help("Give the shared entry another dest.")
            .case(&case.id),
        );
        return None;
    }
    let task_name =
        own_name(&views.task).unwrap_or_else(|| format!("{}/{}", shared.org, name.as_str()));
    Some(Package {
        name,
        task_name,
        tree: tree.finish(),
        listing: None,
    })
}

/// `[task].name`, where there is one.
fn own_name(task: &Tree) -> Option<String> {
    let entry = task.get(&TreePath::new("task.toml").ok()?)?;
    let Data::Bytes(bytes) = &entry.content.data else {
        return None;
    };
    let document = Document::parse(str::from_utf8(bytes).ok()?).ok()?;
    let table = document.get("task").and_then(Item::as_table_like)?;
    Some(table.get("name")?.as_str()?.to_owned())
}
