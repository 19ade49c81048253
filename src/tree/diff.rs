//! What differs between two trees.

use std::cmp::Ordering;

use super::{Entry, Tree};
use crate::path::TreePath;

/// What to do to one tree to get another; sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diff {
    /// Only in the second.
    pub added: Vec<TreePath>,
    /// Only in the first.
    pub removed: Vec<TreePath>,
    /// In both, with other content or mode.
    pub changed: Vec<TreePath>,
}

impl Diff {
    /// Whether the trees are equal.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// What differs from `old` in `new`. Contents are compared by digest.
pub fn diff(old: &Tree, new: &Tree) -> Diff {
    let mut diff = Diff::default();
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return diff,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let gone = (order != Ordering::Greater).then(|| old.next()).flatten();
        let come = (order != Ordering::Less).then(|| new.next()).flatten();
        match (gone, come) {
            (Some((path, a)), Some((_, b))) if !same(a, b) => diff.changed.push(path.clone()),
            (Some((path, _)), None) => diff.removed.push(path.clone()),
            (None, Some((path, _))) => diff.added.push(path.clone()),
            _ => {}
        }
    }
}

fn same(a: &Entry, b: &Entry) -> bool {
    a.mode == b.mode && a.content.digest == b.content.digest
}
