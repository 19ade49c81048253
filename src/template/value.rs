//! YAML values as the Jinja engine sees them.
//!
//! Numbers, strings, booleans and null become the engine's own values, so that arithmetic and
//! tests work. What it does not have (dates, bytes, integers beyond 128 bits) or prints in
//! another way than Python (containers) becomes an object of ours.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectExt, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::args::undefined;
use super::text::{self, Pythonic, Shape};
use crate::yaml::{Date, DateTime, Yaml};

/// Deeper values are refused. The YAML reader's limit is lower.
const MAX_DEPTH: usize = 256;

/// The text of a container that is longer than this costs more fuel than there is.
const MAX_PRINTED: usize = super::MAX_TEXT / 4;

/// The value for the engine; `None` when it is nested too deep.
pub(super) fn from_yaml(value: &Yaml) -> Option<Value> {
    convert(value, MAX_DEPTH)
}

fn convert(value: &Yaml, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    Some(match value {
        Yaml::Null => Value::from(()),
        Yaml::Bool(flag) => Value::from(*flag),
        Yaml::Int(number) => i128::try_from(number)
            .map_or_else(|_| Value::from_object(Scalar(value.clone())), Value::from),
        Yaml::Float(number) => Value::from(*number),
        Yaml::Str(text) => Value::from(Arc::clone(text)),
        Yaml::Date(_) | Yaml::DateTime(_) | Yaml::Binary(_) => {
            Value::from_object(Scalar(value.clone()))
        }
        Yaml::Seq(nodes) => list(
            nodes
                .iter()
                .map(|node| convert(&node.value, depth))
                .collect::<Option<_>>()?,
        ),
        Yaml::Set(nodes) => Value::from_object(List {
            items: nodes
                .iter()
                .map(|node| convert(&node.value, depth))
                .collect::<Option<_>>()?,
            kind: ListKind::Set,
        }),
        Yaml::Map(nodes) => Dict::value(entries(nodes, depth)?),
        Yaml::Pairs(nodes) => list(
            entries(nodes, depth)?
                .into_iter()
                .map(|(key, value)| Value::from(Tuple::from([key, value])))
                .collect(),
        ),
    })
}

fn entries(
    nodes: &[(crate::yaml::Node, crate::yaml::Node)],
    depth: usize,
) -> Option<Vec<(Value, Value)>> {
    nodes
        .iter()
        .map(|(key, node)| Some((convert(&key.value, depth)?, convert(&node.value, depth)?)))
        .collect()
}

/// A scalar that the engine has no type for.
#[derive(Debug)]
pub(super) struct Scalar(pub(super) Yaml);

impl Scalar {
    fn date(&self) -> Option<Date> {
        match &self.0 {
            Yaml::Date(date) => Some(*date),
            Yaml::DateTime(time) => Some(time.date),
            _ => None,
        }
    }

    fn time(&self) -> Option<DateTime> {
        match &self.0 {
            Yaml::DateTime(time) => Some(*time),
            _ => None,
        }
    }
}

impl Object for Scalar {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !matches!(&self.0, Yaml::Binary(bytes) if bytes.is_empty())
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let date = self.date()?;
        match key.as_str()? {
            "year" => Some(Value::from(date.year)),
            "month" => Some(Value::from(date.month)),
            "day" => Some(Value::from(date.day)),
            name => {
                let time = self.time()?;
                match name {
                    "hour" => Some(Value::from(time.hour)),
                    "minute" => Some(Value::from(time.minute)),
                    "second" => Some(Value::from(time.second)),
                    "microsecond" => Some(Value::from(time.microsecond)),
                    _ => None,
                }
            }
        }
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        Some(match (&self.0, &other.0) {
            (Yaml::Int(left), Yaml::Int(right)) => left.cmp(right),
            (Yaml::Binary(left), Yaml::Binary(right)) => left.cmp(right),
            (Yaml::Date(left), Yaml::Date(right)) => left.cmp(right),
            (Yaml::DateTime(left), Yaml::DateTime(right)) => instant(left).cmp(&instant(right)),
            // Python compares no two types of these; any order that is always the same will do.
            (left, right) => text::scalar_text(left, true).cmp(&text::scalar_text(right, true)),
        })
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::scalar_text(&self.0, false))
    }
}

/// Orders points in time: by UTC where both have an offset. A naive time counts as UTC.
fn instant(time: &DateTime) -> (i64, u32) {
    let minutes = (super::dates::day_number(time.date) * 24 + i64::from(time.hour)) * 60
        + i64::from(time.minute)
        - i64::from(time.offset_minutes.unwrap_or(0));
    (minutes * 60 + i64::from(time.second), time.microsecond)
}

/// How a list is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    /// `[…]`
    List,
    /// `{…}`
    Set,
    /// `dict_keys([…])`
    Keys,
    /// `dict_values([…])`
    Values,
    /// `dict_items([…])`
    Items,
}

/// A list, a set or a view of a mapping.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) kind: ListKind,
}

/// A Python list.
pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List {
        items,
        kind: ListKind::List,
    })
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        if self.kind == ListKind::List {
            ObjectRepr::Seq
        } else {
            ObjectRepr::Iterable
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        if self.kind == ListKind::List && !is_float(key) {
            self.items.get(key.as_usize()?).cloned()
        } else {
            None
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.kind == ListKind::List {
            Enumerator::Seq(self.items.len())
        } else {
            self.mapped_enumerator(|this| Box::new(this.items.iter().cloned()))
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(Arc::clone(self)), f)
    }
}

/// Attributes of Python's `dict`. `input.items` is a method there, whatever keys there are.
const DICT_ATTRIBUTES: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// A Python dict: any keys, in their order.
#[derive(Debug)]
pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    /// Where each key is. Python's equality: `1`, `1.0` and `True` are one key.
    index: BTreeMap<Value, usize>,
}

impl Dict {
    pub(super) fn value(entries: Vec<(Value, Value)>) -> Value {
        let index = entries
            .iter()
            .enumerate()
            .map(|(place, (key, _))| (key.clone(), place))
            .collect();
        Value::from_object(Self { entries, index })
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let place = *self.index.get(key)?;
        self.entries.get(place).map(|(_, value)| value.clone())
    }

    /// The engine comes here for `input.name` and the attribute of a filter, and to
    /// [`Object::get_value`] for `input['name']`.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if DICT_ATTRIBUTES.contains(&key) {
            // Python would print the method, which no one wants.
            return Some(Value::from(Error::new(
                ErrorKind::InvalidOperation,
                format!("'.{key}' is a method of mappings: write ['{key}'] for the field"),
            )));
        }
        self.get_value(&Value::from(key))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_key_value_enumerator(|this| Box::new(this.entries.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(Arc::clone(self)), f)
    }
}

/// `range(…)`, with at most 100,000 numbers.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
    pub(super) count: usize,
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.count)?;
        let offset = i64::try_from(index).ok()?.checked_mul(self.step)?;
        self.start.checked_add(offset).map(Value::from)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.count)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "range({}, {}", self.start, self.stop)?;
        if self.step != 1 {
            write!(f, ", {}", self.step)?;
        }
        f.write_str(")")
    }
}

fn render(value: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut out = String::new();
    // A text that was cut at the limit costs more fuel than there is, so it is never seen; an
    // error here would be a panic in `to_string`.
    let _ = text::write(&mut out, value, false, MAX_PRINTED);
    f.write_str(&out)
}

/// `str(value)`.
pub(super) fn string(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(undefined(value));
    }
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    text::write(&mut out, value.clone(), false, MAX_PRINTED)
        .map_err(|text::TooLong| Error::from(ErrorKind::OutOfFuel))?;
    Ok(out)
}

/// The number, when it is a `float`.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    is_float(value)
        .then(|| f64::try_from(value.clone()).ok())
        .flatten()
}

fn is_float(value: &Value) -> bool {
    value.is_number() && !value.is_integer() && value.kind() == ValueKind::Number
}

impl Pythonic for Value {
    fn shape<'a>(self, quoted: bool) -> Shape<'a, Self>
    where
        Self: 'a,
    {
        if let Some(text) = self.as_str() {
            return Shape::Text(match (quoted, self.is_safe()) {
                (false, _) => text.to_owned(),
                (true, false) => text::quote(text),
                (true, true) => format!("Markup({})", text::quote(text)),
            });
        }
        if let Some(number) = as_float(&self) {
            return Shape::Text(text::float(number));
        }
        if let Some(bytes) = self.as_bytes() {
            return Shape::Text(text::scalar_text(&Yaml::Binary(bytes.into()), quoted));
        }
        if let Some(scalar) = self.downcast_object_ref::<Scalar>() {
            return Shape::Text(text::scalar_text(&scalar.0, quoted));
        }
        if self.is_undefined() && quoted {
            return Shape::Text("Undefined".to_owned());
        }
        if self.downcast_object_ref::<Range>().is_some() {
            return Shape::Text(self.to_string());
        }
        let Some(object) = self.as_object().cloned() else {
            return Shape::Text(self.to_string());
        };
        let (open, close) = match self.downcast_object_ref::<List>().map(|list| list.kind) {
            Some(ListKind::Set) if self.len() == Some(0) => ("set(", ")"),
            Some(ListKind::Set) => ("{", "}"),
            Some(ListKind::Keys) => ("dict_keys([", "])"),
            Some(ListKind::Values) => ("dict_values([", "])"),
            Some(ListKind::Items) => ("dict_items([", "])"),
            None if self.is_tuple() && self.len() == Some(1) => ("(", ",)"),
            None if self.is_tuple() => ("(", ")"),
            _ => ("[", "]"),
        };
        match object.repr() {
            ObjectRepr::Map => object
                .try_iter_pairs()
                .map_or_else(|| Shape::Text(self.to_string()), |pairs| Shape::Map(pairs)),
            ObjectRepr::Seq | ObjectRepr::Iterable => object.try_iter().map_or_else(
                || Shape::Text(self.to_string()),
                |items| Shape::Items(open, items, close),
            ),
            _ => Shape::Text(self.to_string()),
        }
    }
}
