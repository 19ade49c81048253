//! The plain tree that EvalHub's stock adapters read: one directory per case with everything in it
//! (policy 26, evalhub.md 6).

use crate::assemble::Views;
use crate::dataset::JUDGE_FILES;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::path::{CaseId, TreePath};
use crate::tree::{Tree, TreeBuilder};

/// Workspace and evaluation views merged, without the judges' own files, which the stock adapter
/// does not read from there. Names what the agent can read there and should not (policy 26).
pub fn case(id: &CaseId, views: &Views, diags: &mut Diagnostics) -> Tree {
    let mut merged = TreeBuilder::new();
    for (path, entry) in views.workspace.iter() {
        // Proof: a tree has no clash with itself.
        let placed = merged.insert(path.clone(), entry.mode, entry.content.clone());
        debug_assert!(placed.is_ok());
    }
    let judges = TreePath::new(JUDGE_FILES).ok();
    for (path, entry) in views.evaluation.iter() {
        if judges
            .as_ref()
            .is_some_and(|judges| path.starts_with(judges))
        {
            continue;
        }
        if let Err(clash) = merged.insert(path.clone(), entry.mode, entry.content.clone()) {
            diags.push(
                Diagnostic::new(
                    Rule::PathCollision,
                    format!(
                        "In EvalHub's layout '{}' of the case and '{}' of the workspace need one \
                         place.",
                        clash.adding, clash.at
                    ),
                )
                .help("Rename one of them, or give the shared entry another dest.")
                .case(id),
            );
            continue;
        }
        diags.push(
            Diagnostic::new(
                Rule::AnswerKeyReadable,
                format!("The agent can read '{path}' in EvalHub's layout."),
            )
            .help("Use packages or bundles for cases whose answers must stay secret.")
            .case(id),
        );
    }
    merged.finish()
}
