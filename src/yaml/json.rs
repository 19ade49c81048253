//! JSON that keeps Python's types, for the judge runner that packages carry.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

use super::{Date, DateTime, Node, Yaml};

/// Integers up to here are the same in every JSON reader.
const MAX_PLAIN_INT: i64 = 1 << 53;

impl Yaml {
    /// JSON that keeps Python's types: plain where JSON has the type, else
    /// `{"$py": "date", "v": "2024-01-31"}` and the like, as `templates/judge.py` reads it.
    ///
    /// | `$py` | `v` |
    /// | --- | --- |
    /// | `int` | decimal text, beyond ±2⁵³ |
    /// | `float` | `nan`, `inf`, `-inf` |
    /// | `date`, `datetime` | ISO text, with a `T`, microseconds and offset where there are any |
    /// | `bytes` | base64 |
    /// | `set` | a list |
    /// | `tuple` | a list of two; `!!omap` and `!!pairs` are lists of these |
    /// | `dict` | a list of two-item lists: where keys are no strings, one is `$py`, or their order is not the sorted one that JSON text will have |
    pub fn to_tagged_json(&self) -> Value {
        serde_json::to_value(Tagged(self)).unwrap_or_default()
    }
}

/// Serialises as [`Yaml::to_tagged_json`] says, keys in their order.
pub(crate) struct Tagged<'a>(pub(crate) &'a Yaml);

impl<'a> Serialize for Tagged<'a> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Yaml::Null => to.serialize_unit(),
            Yaml::Bool(value) => to.serialize_bool(*value),
            Yaml::Int(value) => match i64::try_from(value) {
                Ok(value) if (-MAX_PLAIN_INT..=MAX_PLAIN_INT).contains(&value) => {
                    to.serialize_i64(value)
                }
                _ => tagged(to, "int", &value.to_string()),
            },
            Yaml::Float(value) if value.is_finite() => to.serialize_f64(*value),
            Yaml::Float(value) if value.is_nan() => tagged(to, "float", "nan"),
            Yaml::Float(value) if *value > 0.0 => tagged(to, "float", "inf"),
            Yaml::Float(_) => tagged(to, "float", "-inf"),
            Yaml::Str(text) => to.serialize_str(text),
            Yaml::Date(date) => tagged(to, "date", &date.to_string()),
            Yaml::DateTime(time) => tagged(to, "datetime", &time.to_string()),
            Yaml::Binary(bytes) => tagged(to, "bytes", &BASE64.encode(bytes)),
            Yaml::Seq(items) => to.collect_seq(values(items)),
            Yaml::Map(entries) if is_object(entries) => {
                let entry = |(key, node): &'a (Node, Node)| {
                    // `is_object` looked at the keys.
                    (key.value.as_str().unwrap_or_default(), Tagged(&node.value))
                };
                to.collect_map(entries.iter().map(entry))
            }
            Yaml::Map(entries) => {
                let pairs: Vec<_> = entries.iter().map(pair).collect();
                tagged(to, "dict", &pairs)
            }
            Yaml::Set(items) => tagged(to, "set", &values(items).collect::<Vec<_>>()),
            Yaml::Pairs(pairs) => to.collect_seq(pairs.iter().map(|entry| Tuple(pair(entry)))),
        }
    }
}

/// A pair that stays a tuple.
struct Tuple<'a>((Tagged<'a>, Tagged<'a>));

impl Serialize for Tuple<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        tagged(to, "tuple", &self.0)
    }
}

fn values(items: &[Node]) -> impl Iterator<Item = Tagged<'_>> {
    items.iter().map(|item| Tagged(&item.value))
}

fn pair((key, node): &(Node, Node)) -> (Tagged<'_>, Tagged<'_>) {
    (Tagged(&key.value), Tagged(&node.value))
}

fn tagged<S: Serializer>(
    to: S,
    kind: &str,
    value: &(impl Serialize + ?Sized),
) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(2))?;
    map.serialize_entry("$py", kind)?;
    map.serialize_entry("v", value)?;
    map.end()
}

/// Whether Python reads the same mapping from the plain object's text. `serde_json` sorts keys, and
/// a Python mapping has an order, which shows where a judge's prompt prints it.
fn is_object(entries: &[(Node, Node)]) -> bool {
    let mut last: Option<&str> = None;
    entries.iter().all(|(key, _)| {
        let Some(key) = key.value.as_str() else {
            return false;
        };
        let fine = key != "$py" && last.is_none_or(|last| last < key);
        last = Some(key);
        fine
    })
}

/// `isoformat()`.
impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// `isoformat()`: with a `T`; microseconds and offset where there are any.
impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}T{:02}:{:02}:{:02}",
            self.date, self.hour, self.minute, self.second
        )?;
        if self.microsecond != 0 {
            write!(f, ".{:06}", self.microsecond)?;
        }
        if let Some(offset) = self.offset_minutes {
            let sign = if offset < 0 { '-' } else { '+' };
            let offset = offset.unsigned_abs();
            write!(f, "{sign}{:02}:{:02}", offset / 60, offset % 60)?;
        }
        Ok(())
    }
}
