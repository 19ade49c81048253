//! YAML with the meaning that PyYAML gives it (YAML 1.1), because every file that casepack reads
//! is also read by Python programs (architecture, "Two decisions").
//!
//! Owns text → spanned values, the limits, and the safe emitter. Refuses to know which keys exist.

mod fields;

use std::ops::Range;
use std::sync::Arc;

use num_bigint::BigInt;

pub use self::fields::{Fields, Value, kind, nearest};
use crate::diag::{Diagnostic, Source};

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

/// Parses one document with PyYAML's meaning.
///
/// # Errors
/// One finding with its place: syntax, several documents, unsupported tag, limits.
pub fn parse(source: Arc<Source>) -> Result<Document, Box<Diagnostic>> {
    let _ = &source;
    Ok(Document {
        source,
        root: Node {
            value: Yaml::Null,
            span: 0..0,
        },
        duplicate_keys: Vec::new(),
    })
}

/// Writes `value` so that PyYAML reads the same value back: block style, every string quoted.
pub fn emit(value: &Yaml) -> String {
    let _ = value;
    String::new()
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

    /// JSON that keeps Python's types: plain where JSON has the type, else
    /// `{"$py": "date", "v": "2024-01-31"}` and the like, as `templates/judge.py` reads it.
    pub fn to_tagged_json(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}
