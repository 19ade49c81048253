//! JSON that keeps Python's types, for the judge runner that packages carry.

use std::fmt;

use serde_json::{Map, Value, json};

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
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => match i64::try_from(value) {
                Ok(value) if (-MAX_PLAIN_INT..=MAX_PLAIN_INT).contains(&value) => json!(value),
                _ => tagged("int", value.to_string()),
            },
            Self::Float(value) => match serde_json::Number::from_f64(*value) {
                Some(value) => Value::Number(value),
                None if value.is_nan() => tagged("float", "nan"),
                None if *value > 0.0 => tagged("float", "inf"),
                None => tagged("float", "-inf"),
            },
            Self::Str(text) => json!(**text),
            Self::Date(date) => tagged("date", date.to_string()),
            Self::DateTime(time) => tagged("datetime", time.to_string()),
            Self::Binary(bytes) => tagged("bytes", base64(bytes)),
            Self::Seq(items) => items
                .iter()
                .map(|item| item.value.to_tagged_json())
                .collect(),
            Self::Map(entries) => object(entries).unwrap_or_else(|| {
                let pairs: Value = entries
                    .iter()
                    .map(|(key, node)| {
                        json!([key.value.to_tagged_json(), node.value.to_tagged_json()])
                    })
                    .collect();
                tagged("dict", pairs)
            }),
            Self::Set(items) => {
                let items: Value = items
                    .iter()
                    .map(|item| item.value.to_tagged_json())
                    .collect();
                tagged("set", items)
            }
            Self::Pairs(pairs) => pairs
                .iter()
                .map(|(key, node)| {
                    tagged(
                        "tuple",
                        json!([key.value.to_tagged_json(), node.value.to_tagged_json()]),
                    )
                })
                .collect(),
        }
    }
}

fn tagged(kind: &str, value: impl Into<Value>) -> Value {
    json!({"$py": kind, "v": value.into()})
}

/// The plain object, when Python reads the same mapping from its text. `serde_json` sorts keys, and
/// a Python mapping has an order, which shows where a judge's prompt prints it.
fn object(entries: &[(Node, Node)]) -> Option<Value> {
    let mut object = Map::new();
    let mut last: Option<&str> = None;
    for (key, node) in entries {
        let key = key.value.as_str()?;
        if key == "$py" || last.is_some_and(|last| last >= key) {
            return None;
        }
        last = Some(key);
        object.insert(key.to_owned(), node.value.to_tagged_json());
    }
    Some(Value::Object(object))
}

/// Standard base64 with padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * place) & 0x3F) as usize];
            text.push(if place > chunk.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    text
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
