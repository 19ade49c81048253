//! The plain tree that EvalHub's stock adapters read: one directory per case with everything in it
//! (policy 26, evalhub.md 6).

use crate::assemble::Views;
use crate::dataset::{Dataset, JUDGE_FILES};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::path::TreePath;
use crate::tree::{Tree, TreeBuilder};

/// Workspace and evaluation views merged, without the judges' own files, which the stock adapter
/// does not read from there.
pub fn case(views: &Views) -> Tree {
    let mut merged = TreeBuilder::new();
    let judges = TreePath::new(JUDGE_FILES).ok();
    for (path, entry) in views.workspace.iter().chain(views.evaluation.iter()) {
        if judges.as_ref().is_some_and(|judges| path.starts_with(judges)) {
            continue;
        }
        // An evaluation file that stands in the way of a workspace file: the workspace wins, as in
        // the package, where the two views never meet.
        let _ = merged.insert(path.clone(), entry.mode, entry.content.clone());
    }
    merged.finish()
}
