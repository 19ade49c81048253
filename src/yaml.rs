//! YAML with the meaning that PyYAML gives it (YAML 1.1), because every file that casepack reads
//! is also read by Python programs (architecture, "Two decisions").
//!
//! The meaning is that of `yaml.safe_load`: PyYAML's `SafeLoader`, the pure Python one (the C loader
//! differs on tabs). `saphyr-parser` finds the structure; where it parts from PyYAML, `strict`
//! mends the value or refuses the text.
//!
//! Owns text → spanned values, the limits, and the safe emitter. Refuses to know which keys exist.
//! Invariant: a value that was parsed is at most [`MAX_DEPTH`] deep and has at most [`MAX_NODES`]
//! nodes, aliases written out, so that walking, cloning and dropping it is safe.

mod emit;
mod fields;
mod json;
mod load;
mod scalar;
mod strict;

use std::ops::Range;
use std::sync::Arc;

use num_bigint::BigInt;

pub use self::emit::emit;
pub use self::fields::{Fields, Value, kind, nearest};
pub(crate) use self::json::Tagged;
use crate::diag::{Diagnostic, Diagnostics, Place, Rule, Source};

/// Largest file that is parsed, in bytes.
pub const MAX_BYTES: usize = 16 << 20;
/// Deepest nesting of lists and mappings.
pub const MAX_DEPTH: usize = 128;
/// Most values in a file, aliases written out.
pub const MAX_NODES: usize = 1_000_000;
/// Most text behind aliases, written out.
pub const MAX_ALIAS_BYTES: usize = 64 << 20;

/// A value as `yaml.safe_load` would give it.
#[derive(Debug, Clone, PartialEq)]
pub enum Yaml {
    /// `None`
    Null,
    /// `True`, `False`
    Bool(bool),
    /// `int`, of any size
    Int(BigInt),
    /// `float`
    Float(f64),
    /// `str`
    Str(Arc<str>),
    /// `datetime.date`
    Date(Date),
    /// `datetime.datetime`
    DateTime(DateTime),
    /// `bytes` (`!!binary`)
    Binary(Arc<[u8]>),
    /// `list`
    Seq(Vec<Node>),
    /// `dict`, in the order of the file; of equal keys the last value, at the first one's place
    Map(Vec<(Node, Node)>),
    /// `set` (`!!set`)
    Set(Vec<Node>),
    /// list of tuples (`!!omap`, `!!pairs`)
    Pairs(Vec<(Node, Node)>),
}

/// A calendar date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// 1 to 9999.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31, valid in its month.
    pub day: u8,
}

/// A point in time as `datetime.datetime` holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    /// The day.
    pub date: Date,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
    /// 0 to 999,999.
    pub microsecond: u32,
    /// Offset from UTC in minutes (with seconds never given); `None` for a naive time.
    pub offset_minutes: Option<i32>,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// The value.
    pub value: Yaml,
    /// Its bytes in the source. For an alias, those of the anchored node.
    pub span: Range<usize>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A parsed text.
#[derive(Debug, Clone)]
pub struct Document {
    /// The text.
    pub source: Arc<Source>,
    /// The top value; null for an empty document.
    pub root: Node,
    /// Keys that were given twice in one mapping: first and second place.
    pub duplicate_keys: Vec<(Range<usize>, Range<usize>)>,
}

impl Document {
    /// Warns of the keys that are given twice: Python programs take the last one in silence.
    pub fn report_duplicate_keys(&self, diags: &mut Diagnostics) {
        let written =
            |range: &Range<usize>| self.source.text.get(range.clone()).unwrap_or_default();
        for (first, second) in &self.duplicate_keys {
            let message = match (written(first), written(second)) {
                (one, other) if one == other => {
                    format!("The key `{one}` is given twice, and only the last one counts.")
                }
                (one, other) => format!(
                    "The keys `{one}` and `{other}` are equal in YAML, and only the last one counts."
                ),
            };
            let first = Place {
                source: Arc::clone(&self.source),
                range: first.clone(),
            };
            diags.push(
                Diagnostic::new(Rule::DuplicateKey, message)
                    .help("Remove one of the two.")
                    .at(&self.source, second.clone())
                    .related(Some(&first), "the first one"),
            );
        }
    }
}

/// Parses one document with PyYAML's meaning.
///
/// # Errors
/// One finding with its place: syntax, several documents, unsupported tag, limits.
pub fn parse(source: Arc<Source>) -> Result<Document, Box<Diagnostic>> {
    match load::load(&source.text) {
        Ok((root, duplicate_keys)) => Ok(Document {
            source,
            root,
            duplicate_keys,
        }),
        Err(fault) => Err(Box::new(
            Diagnostic::new(fault.rule, fault.message)
                .help(fault.help)
                .at(&source, fault.range),
        )),
    }
}

/// Why a text can not be read; [`parse`] makes a finding of it.
struct Fault {
    rule: Rule,
    range: Range<usize>,
    message: String,
    help: String,
}

impl Fault {
    fn new(
        rule: Rule,
        range: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self {
            rule,
            range,
            message: message.into(),
            help: help.into(),
        }
    }

    fn syntax(range: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Rule::YamlSyntax, range, message, help)
    }

    fn too_deep(range: Range<usize>) -> Self {
        Self::new(
            Rule::YamlLimit,
            range,
            format!("Lists and mappings are nested more than {MAX_DEPTH} deep here."),
            "Flatten the structure; put a text that only holds brackets in quotes.",
        )
    }

    fn too_many_values(range: Range<usize>) -> Self {
        Self::new(
            Rule::YamlLimit,
            range,
            format!(
                "The file has more than {MAX_NODES} values, counting those behind aliases each time."
            ),
            "Split the file, or put large data into a file of its own and name that.",
        )
    }
}

impl Yaml {
    /// The value of `key`, when this is a mapping that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Map(entries) => entries
                .iter()
                .find(|(name, _)| matches!(&name.value, Self::Str(text) if **text == *key))
                .map(|(_, node)| node),
            _ => None,
        }
    }

    /// The text, when it is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
