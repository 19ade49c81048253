//! Which file goes where: one set of trees per case, decided here and nowhere else.
//!
//! Owns the whitelist, shared `{dest, source}` entries, generated entries, and the trust boundary
//! between workspace and evaluation (policy 1–12). Refuses to know formats and targets.

use crate::tree::Tree;

/// The trees of one case.
#[derive(Debug, Clone, Default)]
pub struct Views {
    /// What the agent sees.
    pub workspace: Tree,
    /// What judges see besides.
    pub evaluation: Tree,
    /// Package files that the case itself brings (native Harbor tasks).
    pub task: Tree,
}
