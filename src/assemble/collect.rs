//! Collects the files of one view, and says which two entries claim one place (policy 6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::absolute;
use crate::diag::{Diagnostic, Diagnostics, Place, Rule, Severity};
use crate::digest::Digest;
use crate::fs::Roots;
use crate::path::{CaseId, TreePath, fold};
use crate::tree::{Content, Entry, Mode, Tree};

/// Who brought a file: for messages about two that want one place.
#[derive(Debug, Clone, Default)]
pub(super) struct Origin {
    /// In words: `the entry 'src'`.
    pub(super) label: String,
    /// Where the user wrote it.
    pub(super) place: Option<Place>,
    /// The config path.
    pub(super) field: Option<String>,
    /// The entry's own text.
    pub(super) entry: Option<String>,
    /// The case, when it is not in all of them.
    pub(super) case: Option<CaseId>,
    /// Whether it is the rest of the case directory rather than something listed.
    pub(super) rest: bool,
}

impl Origin {
    /// Casepack itself.
    pub(super) fn generated(label: String) -> Self {
        Self {
            label,
            ..Self::default()
        }
    }

    /// A finding about it.
    pub(super) fn finding(&self, rule: Rule, message: String) -> Diagnostic {
        let mut finding = Diagnostic::new(rule, message).at_place(self.place.as_ref());
        finding.field.clone_from(&self.field);
        finding.entry.clone_from(&self.entry);
        finding.cases.extend(self.case.clone());
        finding
    }
}

/// One file on its way into a view.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) mode: Mode,
    pub(super) content: Content,
    /// The file that the bytes come from: the same file claimed twice is no clash.
    pub(super) source: Option<(usize, TreePath)>,
    pub(super) origin: Arc<Origin>,
}

/// The files of one view, while they are decided.
#[derive(Clone)]
pub(super) struct Collected<'a> {
    roots: &'a Roots,
    items: BTreeMap<TreePath, Item>,
}

impl<'a> Collected<'a> {
    /// What its files hold.
    pub(super) fn contents(&self) -> impl Iterator<Item = Digest> {
        self.items.values().map(|item| item.content.digest)
    }

    /// No files.
    pub(super) fn new(roots: &'a Roots) -> Self {
        Self {
            roots,
            items: BTreeMap::new(),
        }
    }

    /// Adds a file, or tells what is in its way. The first one stays.
    pub(super) fn add(&mut self, path: TreePath, item: Item, diags: &mut Diagnostics) {
        let Some(at) = self.clash(&path, &item) else {
            self.items.entry(path).or_insert(item);
            return;
        };
        let Some(there) = self.items.get(&at) else {
            return;
        };
        let (old, new) = (&there.origin, &item.origin);
        let message = if at == path {
            format!(
                "'{path}' is claimed twice: by {} and by {}.",
                old.label, new.label
            )
        } else {
            format!(
                "'{path}' of {} needs a directory where '{at}' of {} is a file, or the other way \
                 round.",
                new.label, old.label
            )
        };
        // Point at what the user wrote; of two entries at the later one.
        let (main, other) = if new.place.is_some() {
            (new, old)
        } else {
            (old, new)
        };
        let mut finding = main
            .finding(Rule::PathCollision, message)
            .help("Give one of them another dest, or remove it.")
            .related(other.place.as_ref(), "the other one");
        finding.cases.extend(other.case.clone());
        diags.push(finding);
    }

    /// The entry that a new file at `path` can't live with.
    fn clash(&self, path: &TreePath, item: &Item) -> Option<TreePath> {
        if let Some(there) = self.items.get(path) {
            let same = match (&there.source, &item.source) {
                (Some(a), Some(b)) => {
                    a == b
                        || absolute(self.roots, a.0, Some(&a.1))
                            == absolute(self.roots, b.0, Some(&b.1))
                }
                _ => Arc::ptr_eq(&there.origin, &item.origin),
            };
            return (!same).then(|| path.clone());
        }
        let mut above = path.parent();
        while let Some(parent) = above {
            if self.items.contains_key(&parent) {
                return Some(parent);
            }
            above = parent.parent();
        }
        // `path/` sorts right before everything below `path`.
        let below = format!("{path}/");
        let (next, _) = self
            .items
            .range::<str, _>((
                std::ops::Bound::Excluded(&*below),
                std::ops::Bound::Unbounded,
            ))
            .next()?;
        next.as_str().starts_with(&below).then(|| next.clone())
    }

    /// The outermost names, as they collide.
    pub(super) fn tops(&self) -> BTreeSet<String> {
        self.items.keys().map(|path| fold(path.first())).collect()
    }

    /// Adds all of `other`; clashes are told for `case`.
    pub(super) fn merge(&mut self, other: &Self, case: &CaseId, diags: &mut Diagnostics) {
        let mut here = diags.fork();
        for (path, item) in &other.items {
            self.add(path.clone(), item.clone(), &mut here);
        }
        diags.append_for(here, case);
    }

    /// Names that are one name where letter case or Unicode form does not count: between two
    /// entries an error, inside one copied directory a warning (policy 6).
    pub(super) fn check_names(&self, case: &CaseId, diags: &mut Diagnostics) {
        let mut seen: BTreeMap<String, (&str, &Arc<Origin>)> = BTreeMap::new();
        let mut last = "";
        for (path, item) in &self.items {
            let text = path.as_str();
            // Only the components that the path before did not have.
            let shared = common_components(last, text);
            last = text;
            for (end, _) in text.match_indices('/').chain([(text.len(), "")]) {
                if end <= shared {
                    continue;
                }
                let name = &text[..end];
                let (other, origin) = *seen.entry(fold(name)).or_insert((name, &item.origin));
                if other == name {
                    continue;
                }
                let one = Arc::ptr_eq(origin, &item.origin);
                let (rule, what) = if one {
                    (Rule::NameCaseCollision, item.origin.label.clone())
                } else {
                    (
                        Rule::PathCollision,
                        format!("{} and {}", origin.label, item.origin.label),
                    )
                };
                let finding = item
                    .origin
                    .finding(
                        rule,
                        format!(
                            "'{other}' and '{name}' ({what}) are one name on file systems that \
                             ignore letter case or Unicode form."
                        ),
                    )
                    .help("Rename one of them.")
                    .related(
                        if one { None } else { origin.place.as_ref() },
                        "the other one",
                    )
                    .case(case);
                let severity = if one || item.origin.rest {
                    Severity::Warning
                } else {
                    Severity::Error
                };
                diags.push(finding.severity(severity));
                break;
            }
        }
    }

    /// The frozen tree.
    pub(super) fn finish(self) -> Tree {
        let entry = |item: Item| Entry {
            mode: item.mode,
            content: item.content,
        };
        // `add` lets no clash through.
        let items = self.items.into_iter();
        Tree::of(items.map(|(path, item)| (path, entry(item))))
    }

    /// The frozen tree of these files and of those of `other`, with none of which anything here has
    /// an outermost name in common.
    pub(super) fn finish_with(self, other: &Tree) -> Tree {
        let own = self.finish();
        if other.is_empty() {
            return own;
        }
        let mut other = other.iter().peekable();
        let mut own = own.iter().peekable();
        Tree::of(std::iter::from_fn(|| {
            let next = match (own.peek(), other.peek()) {
                (Some(mine), Some(theirs)) if theirs.0 < mine.0 => other.next(),
                (Some(_), _) => own.next(),
                (None, _) => other.next(),
            };
            next.map(|(path, entry)| (path.clone(), entry.clone()))
        }))
    }
}

/// How many leading bytes of `b` are whole components that `a` has too.
fn common_components(a: &str, b: &str) -> usize {
    let mut end = 0;
    for (at, (x, y)) in a
        .bytes()
        .chain([b'/'])
        .zip(b.bytes().chain([b'/']))
        .enumerate()
    {
        if x != y {
            break;
        }
        if x == b'/' {
            end = at;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::common_components;

    #[test]
    fn counts_whole_components() {
        assert_eq!(common_components("", "a"), 0);
        assert_eq!(common_components("a/b", "a/bc"), 1);
        assert_eq!(common_components("a/b/c", "a/b/d"), 3);
        assert_eq!(common_components("a/b", "a/b/d"), 3);
    }
}
