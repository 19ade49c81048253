//! The filter `tojson`: `json.dumps` with sorted keys, ASCII only, and safe inside of HTML.

use std::fmt::Write as _;

use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{Error, State, Value};

use super::args::{bind, invalid, length, required};
use super::text;
use super::value::{Scalar, as_float};
use crate::yaml::Yaml;

/// Deeper values are refused, about where Python gives up.
const MAX_DEPTH: usize = 500;

pub(super) fn tojson(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, indent] = bind(args, ["value", "indent"])?;
    let value = required(value, "value")?;
    let indent = match indent {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => match indent.as_str() {
            Some(indent) => Some(indent.to_owned()),
            None => Some(" ".repeat(length(Some(indent), 0)?.min(1000))),
        },
    };
    let mut writer = Writer {
        state,
        out: String::new(),
        indent,
        depth: 0,
    };
    writer.value(&value)?;
    Ok(Value::from_safe_string(writer.out))
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    indent: Option<String>,
    depth: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            self.state
                .consume_fuel(1 + u64::try_from(text.len() / 16).unwrap_or(u64::MAX))?;
            self.string(text);
            return Ok(());
        }
        if let Some(scalar) = scalar(value) {
            self.out.push_str(&scalar);
            return Ok(());
        }
        let Some(object) = value.as_object() else {
            return Err(unsupported(value));
        };
        if self.depth >= MAX_DEPTH {
            return Err(invalid("the value is nested too deep"));
        }
        self.depth += 1;
        match object.repr() {
            ObjectRepr::Map => {
                let pairs = object.try_iter_pairs().ok_or_else(|| unsupported(value))?;
                let mut entries = Vec::new();
                for (key, value) in pairs {
                    self.state.consume_fuel(1)?;
                    entries.push((key, value));
                }
                sort(&mut entries)?;
                self.out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.separate(index);
                    if let Some(key) = key.as_str() {
                        self.string(key);
                    } else {
                        self.string(&scalar(key).ok_or_else(|| unsupported(key))?);
                    }
                    self.out.push_str(": ");
                    self.value(value)?;
                }
                self.close(entries.is_empty(), '}');
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                let items = object.try_iter().ok_or_else(|| unsupported(value))?;
                self.out.push('[');
                let mut empty = true;
                for (index, item) in items.enumerate() {
                    self.state.consume_fuel(1)?;
                    empty = false;
                    self.separate(index);
                    self.value(&item)?;
                }
                self.close(empty, ']');
            }
            _ => return Err(unsupported(value)),
        }
        Ok(())
    }

    fn separate(&mut self, index: usize) {
        match (&self.indent, index) {
            (None, 0) => {}
            (None, _) => self.out.push_str(", "),
            (Some(_), 0) => self.line(),
            (Some(_), _) => {
                self.out.push(',');
                self.line();
            }
        }
    }

    fn line(&mut self) {
        self.out.push('\n');
        for _ in 0..self.depth {
            self.out
                .push_str(self.indent.as_deref().unwrap_or_default());
        }
    }

    fn close(&mut self, empty: bool, bracket: char) {
        self.depth -= 1;
        if !empty && self.indent.is_some() {
            self.line();
        }
        self.out.push(bracket);
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                // These four have a meaning in HTML.
                ' '..='~' if !"<>&'".contains(character) => self.out.push(character),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
            }
        }
        self.out.push('"');
    }
}

/// The JSON of a value that is neither string nor container.
fn scalar(value: &Value) -> Option<String> {
    if let Some(number) = as_float(value) {
        return Some(match text::float(number) {
            text if text == "nan" => "NaN".to_owned(),
            text => text.replace("inf", "Infinity"),
        });
    }
    match value.kind() {
        ValueKind::None => Some("null".to_owned()),
        ValueKind::Bool => Some(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Some(value.to_string()),
        _ => match value.downcast_object_ref::<Scalar>() {
            Some(Scalar(Yaml::Int(number))) => Some(number.to_string()),
            _ => None,
        },
    }
}

fn sort(entries: &mut [(Value, Value)]) -> Result<(), Error> {
    let number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    for pair in entries.windows(2) {
        if let [(left, _), (right, _)] = pair
            && !(number(left) && number(right)
                || left.as_str().is_some() && right.as_str().is_some())
        {
            return Err(invalid("keys of different types can not be sorted"));
        }
    }
    entries.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(())
}

fn unsupported(value: &Value) -> Error {
    match value.downcast_object_ref::<Scalar>() {
        Some(Scalar(Yaml::Date(_) | Yaml::DateTime(_))) => {
            invalid("JSON has no dates: make it text first, with | string | tojson")
        }
        _ => invalid(format!("JSON has no type for {}", value.kind())),
    }
}
