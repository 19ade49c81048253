//! Findings about the user's files: rule, severity, place, sentence and way out.
//!
//! Owns the rules ([`Rule`], explained by `casepack explain`), what a finding says, and the
//! collector. Refuses to know the terminal: it collects, `cli` prints.
//! Invariant: a finding about several cases is told once, with all their ids (policy 9).

mod rules;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::rules::{Rule, RuleInfo};
pub use self::told::Told;
use crate::path::CaseId;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; changes nothing.
    Note,
    /// Probably a mistake; the work goes on.
    Warning,
    /// The case or the dataset can't be used.
    Error,
}

impl Severity {
    /// `error`, `warning` or `note`, as in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A text that findings point into.
#[derive(Debug)]
pub struct Source {
    /// The file's name as the user would write it (relative to the project root where it can be).
    pub name: String,
    /// All of its text, or whole lines of it.
    pub text: String,
    /// What comes before `text` in the file: nothing, unless it is an excerpt.
    pub before: Before,
}

/// How much of a file comes before an excerpt of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// Whole lines.
    pub lines: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Source {
    /// The whole text of a file.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
            before: Before::default(),
        }
    }

    /// The 1-based line and column (in characters) of byte `offset` of `text`.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let offset = self.text.floor_char_boundary(offset.min(self.text.len()));
        let before = &self.text[..offset];
        let line = before.rfind('\n').map_or(0, |newline| newline + 1);
        let lines = self.before.lines + newlines(before);
        (lines + 1, before[line..].chars().count() + 1)
    }
}

/// How many lines end in `text`. A sum over bytes is made of wide instructions, a search is not, and
/// a large file with thousands of findings is counted through thousands of times.
pub(crate) fn newlines(text: &str) -> usize {
    text.bytes().map(|byte| usize::from(byte == b'\n')).sum()
}

/// Bytes of a source.
#[derive(Debug, Clone)]
pub struct Place {
    /// Which text.
    pub source: Arc<Source>,
    /// Which bytes of it.
    pub range: Range<usize>,
}

/// One finding.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// Which rule it breaks.
    pub rule: Rule,
    /// How bad it is, before `--deny` and `--allow`.
    pub severity: Severity,
    /// One sentence: what is wrong with what. Never names a case (see `cases`).
    pub message: String,
    /// The way out.
    pub help: String,
    /// Where, if a text can be shown.
    pub place: Option<Place>,
    /// More places that matter, with a short text each.
    pub related: Vec<(Place, String)>,
    /// The file, where no text can be shown.
    pub file: Option<String>,
    /// The config path with indices (`dataset.workspace.files[2].dest`).
    pub field: Option<String>,
    /// The entry's own text, or the `dest` of a mapping.
    pub entry: Option<String>,
    /// The cases that it touches; none when it is about the dataset.
    pub cases: BTreeSet<CaseId>,
}

impl Diagnostic {
    /// A finding of `rule` with the rule's own severity.
    pub fn new(rule: Rule, message: impl Into<String>) -> Self {
        Self {
            rule,
            severity: rule.info().severity,
            message: message.into(),
            help: String::new(),
            place: None,
            related: Vec::new(),
            file: None,
            field: None,
            entry: None,
            cases: BTreeSet::new(),
        }
    }

    /// The same finding with another severity than the rule's own.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// Says how to mend it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Says where.
    #[must_use]
    pub fn at(mut self, source: &Arc<Source>, range: Range<usize>) -> Self {
        self.place = Some(Place {
            source: Arc::clone(source),
            range,
        });
        self
    }

    /// Says where, if there is a place.
    #[must_use]
    pub fn at_place(mut self, place: Option<&Place>) -> Self {
        self.place = place.cloned();
        self
    }

    /// Adds a second place.
    #[must_use]
    pub fn related(mut self, place: Option<&Place>, text: impl Into<String>) -> Self {
        if let Some(place) = place {
            self.related.push((place.clone(), text.into()));
        }
        self
    }

    /// Names the file where no text can be shown.
    #[must_use]
    pub fn file(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Names the config path, with indices.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Names the entry.
    #[must_use]
    pub fn entry(mut self, entry: impl Into<String>) -> Self {
        self.entry = Some(entry.into());
        self
    }

    /// Adds a case that it touches.
    #[must_use]
    pub fn case(mut self, case: &CaseId) -> Self {
        self.cases.insert(case.clone());
        self
    }
}

/// What the user made of the rules: `--deny` and `--allow` (cli.md, "Common flags").
#[derive(Debug, Clone, Default)]
pub struct Levels {
    /// Rules whose warnings count as errors.
    pub deny: BTreeSet<Rule>,
    /// Every warning counts as an error.
    pub deny_warnings: bool,
    /// Rules that are not told; an error only where the rule says that it may be allowed.
    pub allow: BTreeSet<Rule>,
}

/// Collects findings.
#[derive(Debug, Default, Clone)]
pub struct Diagnostics {
    levels: Arc<Levels>,
    items: Vec<Diagnostic>,
    index: BTreeMap<Key, usize>,
}

type Key = (
    Rule,
    String,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<(String, usize)>,
);

impl Diagnostics {
    /// An empty collector that judges by `levels`.
    pub fn new(levels: Levels) -> Self {
        Self {
            levels: Arc::new(levels),
            ..Self::default()
        }
    }

    /// An empty collector with the same levels, for a worker.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            levels: Arc::clone(&self.levels),
            ..Self::default()
        }
    }

    /// What the user made of the rules.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Whether the user allowed `rule`, so that what it forbids is done.
    pub fn allows(&self, rule: Rule) -> bool {
        self.levels.allow.contains(&rule) && rule.may_be_allowed()
    }

    /// Adds a finding, or its cases to the same finding; applies the levels.
    pub fn push(&mut self, mut diagnostic: Diagnostic) {
        if self.allows(diagnostic.rule) {
            return;
        }
        if diagnostic.severity == Severity::Warning
            && (self.levels.deny_warnings || self.levels.deny.contains(&diagnostic.rule))
        {
            diagnostic.severity = Severity::Error;
        }
        let key = (
            diagnostic.rule,
            diagnostic.message.clone(),
            diagnostic.file.clone(),
            diagnostic.field.clone(),
            diagnostic.entry.clone(),
            diagnostic.place.as_ref().map(|at| {
                (
                    at.source.name.clone(),
                    at.source.before.bytes + at.range.start,
                )
            }),
        );
        if let Some(&at) = self.index.get(&key) {
            self.items[at].cases.append(&mut diagnostic.cases);
        } else {
            self.index.insert(key, self.items.len());
            self.items.push(diagnostic);
        }
    }

    /// Adds all of `other`, which was judged by the same levels.
    pub fn append(&mut self, other: Self) {
        for diagnostic in other.items {
            self.push(diagnostic);
        }
    }

    /// Adds all of `other`, as findings about `case`.
    pub fn append_for(&mut self, other: Self, case: &CaseId) {
        for diagnostic in other.items {
            self.push(diagnostic.case(case));
        }
    }

    /// All findings, in the order in which they were told first.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether one is an error.
    pub fn has_errors(&self) -> bool {
        self.items
            .iter()
            .any(|item| item.severity == Severity::Error)
    }

    /// How many have `severity`.
    pub fn count(&self, severity: Severity) -> usize {
        self.items
            .iter()
            .filter(|item| item.severity == severity)
            .count()
    }
}

/// A number with what is counted: `1 case`, `2 cases`.
pub fn count<N: Copy + std::fmt::Display + PartialEq + From<u8>>(
    number: N,
    one: &str,
    many: &str,
) -> String {
    let what = if number == N::from(1) { one } else { many };
    format!("{number} {what}")
}
