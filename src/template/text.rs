//! What `str()` and `repr()` of Python make of a value (agent-eval-harness 2.2).
//!
//! Owns the text of scalars and the layout of containers, for YAML values and for values of the
//! Jinja engine alike ([`Pythonic`]). Nothing here recurses: a value may be nested as deep as it
//! likes, and the text ends at a limit.

use std::fmt::Write as _;

use crate::yaml::{Date, DateTime, Node, Yaml};

/// The text would be longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

/// A value that Python has a text for.
pub(super) trait Pythonic: Sized {
    /// The text of a scalar, or the parts of a container. `quoted` asks for `repr()`.
    fn shape<'a>(self, quoted: bool) -> Shape<'a, Self>
    where
        Self: 'a;
}

/// How a value is laid out.
pub(super) enum Shape<'a, N> {
    /// All of it.
    Text(String),
    /// Items between two texts.
    Items(&'static str, Box<dyn Iterator<Item = N> + 'a>, &'static str),
    /// A mapping.
    Map(Box<dyn Iterator<Item = (N, N)> + 'a>),
    /// A list of tuples of two.
    Pairs(Box<dyn Iterator<Item = (N, N)> + 'a>),
}

/// What is left to write of an open container.
enum Frame<'a, N> {
    Items(Box<dyn Iterator<Item = N> + 'a>, &'static str, bool),
    Pairs {
        entries: Box<dyn Iterator<Item = (N, N)> + 'a>,
        second: Option<N>,
        marks: &'static Marks,
        first: bool,
    },
}

/// The texts around the two halves of an entry.
struct Marks {
    before: &'static str,
    between: &'static str,
    after: &'static str,
    close: &'static str,
}

const MAP: Marks = Marks {
    before: "",
    between: ": ",
    after: "",
    close: "}",
};

const TUPLES: Marks = Marks {
    before: "(",
    between: ", ",
    after: ")",
    close: "]",
};

/// Adds `str(node)` to `out`, or `repr(node)` when `quoted`, while it is not longer than `limit`.
pub(super) fn write<'a, N: Pythonic + 'a>(
    out: &mut String,
    node: N,
    quoted: bool,
    limit: usize,
) -> Result<(), TooLong> {
    let mut stack: Vec<Frame<'a, N>> = Vec::new();
    let mut next = Some(node);
    let mut quoted = quoted;
    loop {
        if let Some(node) = next.take() {
            match node.shape(quoted) {
                Shape::Text(text) => out.push_str(&text),
                Shape::Items(open, items, close) => {
                    out.push_str(open);
                    stack.push(Frame::Items(items, close, true));
                }
                Shape::Map(entries) => {
                    out.push('{');
                    stack.push(Frame::entries(entries, &MAP));
                }
                Shape::Pairs(entries) => {
                    out.push('[');
                    stack.push(Frame::entries(entries, &TUPLES));
                }
            }
            quoted = true;
        }
        if out.len() > limit {
            return Err(TooLong);
        }
        let Some(frame) = stack.last_mut() else {
            return Ok(());
        };
        next = frame.advance(out);
        if next.is_none() {
            stack.pop();
        }
    }
}

impl<'a, N> Frame<'a, N> {
    fn entries(entries: Box<dyn Iterator<Item = (N, N)> + 'a>, marks: &'static Marks) -> Self {
        Self::Pairs {
            entries,
            second: None,
            marks,
            first: true,
        }
    }

    /// Writes what stands before the next part and gives that part, or closes the container.
    fn advance(&mut self, out: &mut String) -> Option<N> {
        match self {
            Self::Items(items, close, first) => {
                let item = items.next();
                if item.is_none() {
                    out.push_str(close);
                } else if !std::mem::take(first) {
                    out.push_str(", ");
                }
                item
            }
            Self::Pairs {
                entries,
                second,
                marks,
                first,
            } => {
                if let Some(second) = second.take() {
                    out.push_str(marks.between);
                    return Some(second);
                }
                if !*first {
                    out.push_str(marks.after);
                }
                let Some((key, value)) = entries.next() else {
                    out.push_str(marks.close);
                    return None;
                };
                if !std::mem::take(first) {
                    out.push_str(", ");
                }
                out.push_str(marks.before);
                *second = Some(value);
                Some(key)
            }
        }
    }
}

impl Pythonic for &Yaml {
    fn shape<'a>(self, quoted: bool) -> Shape<'a, Self>
    where
        Self: 'a,
    {
        fn values<'a>(nodes: &'a [Node]) -> Box<dyn Iterator<Item = &'a Yaml> + 'a> {
            Box::new(nodes.iter().map(|node| &node.value))
        }
        fn entries<'a>(
            nodes: &'a [(Node, Node)],
        ) -> Box<dyn Iterator<Item = (&'a Yaml, &'a Yaml)> + 'a> {
            Box::new(nodes.iter().map(|(key, node)| (&key.value, &node.value)))
        }
        match self {
            Yaml::Seq(nodes) => Shape::Items("[", values(nodes), "]"),
            Yaml::Set(nodes) if nodes.is_empty() => Shape::Text("set()".to_owned()),
            Yaml::Set(nodes) => Shape::Items("{", values(nodes), "}"),
            Yaml::Map(nodes) => Shape::Map(entries(nodes)),
            Yaml::Pairs(nodes) => Shape::Pairs(entries(nodes)),
            scalar => Shape::Text(scalar_text(scalar, quoted)),
        }
    }
}

/// The text of a scalar; nothing for a container.
pub(super) fn scalar_text(value: &Yaml, quoted: bool) -> String {
    match value {
        Yaml::Null => "None".to_owned(),
        Yaml::Bool(true) => "True".to_owned(),
        Yaml::Bool(false) => "False".to_owned(),
        Yaml::Int(number) => number.to_string(),
        Yaml::Float(number) => float(*number),
        Yaml::Str(text) if quoted => quote(text),
        Yaml::Str(text) => (**text).to_owned(),
        Yaml::Date(date) if quoted => {
            format!("datetime.date({}, {}, {})", date.year, date.month, date.day)
        }
        Yaml::Date(date) => iso_date(*date),
        Yaml::DateTime(time) if quoted => datetime_repr(time),
        Yaml::DateTime(time) => iso_datetime(time, ' '),
        Yaml::Binary(bytes) => quote_bytes(bytes),
        Yaml::Seq(_) | Yaml::Map(_) | Yaml::Set(_) | Yaml::Pairs(_) => String::new(),
    }
}

/// `repr(float)`: the shortest digits that give the same number back, with an exponent from 1e16
/// on and below 1e-4.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // The same digits and the same thresholds; only the exponent is written in another way.
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    let digits = digits.strip_suffix(".0").unwrap_or(digits);
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `repr(str)`: single quotes unless only they are inside, and escapes for what is not printable.
pub(super) fn quote(text: &str) -> String {
    let quote = quote_mark(text.contains('\''), text.contains('"'));
    let mut out = String::with_capacity(text.len().saturating_add(2));
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => {
                if character == quote {
                    out.push('\\');
                }
                out.push(character);
            }
            _ if is_printable(character) => out.push(character),
            _ => push_escape(&mut out, character),
        }
    }
    out.push(quote);
    out
}

fn push_escape(out: &mut String, character: char) {
    let code = u32::from(character);
    // Writing to a string can't fail.
    let _ = match code {
        0..=0xff => write!(out, "\\x{code:02x}"),
        0x100..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

fn quote_mark(single: bool, double: bool) -> char {
    if single && !double { '"' } else { '\'' }
}

/// `str.isprintable` for one character outside of ASCII: no control, format, private, unassigned
/// or separator character. The standard library escapes by the same categories; the character
/// stands second, because only a first one is also escaped for being a combining mark.
fn is_printable(character: char) -> bool {
    let mut buffer = String::with_capacity(5);
    buffer.push('a');
    buffer.push(character);
    buffer.escape_debug().nth(1) == Some(character)
}

/// `repr(bytes)`.
fn quote_bytes(bytes: &[u8]) -> String {
    let quote = quote_mark(bytes.contains(&b'\''), bytes.contains(&b'"'));
    let mut out = String::with_capacity(bytes.len().saturating_add(3));
    out.push('b');
    out.push(quote);
    for byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => {
                if char::from(*byte) == quote {
                    out.push('\\');
                }
                out.push(char::from(*byte));
            }
            _ => push_escape(&mut out, char::from(*byte)),
        }
    }
    out.push(quote);
    out
}

/// `date.isoformat()`.
pub(super) fn iso_date(date: Date) -> String {
    format!("{:04}-{:02}-{:02}", date.year, date.month, date.day)
}

/// `datetime.isoformat(separator)`.
pub(super) fn iso_datetime(time: &DateTime, separator: char) -> String {
    let mut out = format!(
        "{}{separator}{:02}:{:02}:{:02}",
        iso_date(time.date),
        time.hour,
        time.minute,
        time.second
    );
    if time.microsecond != 0 {
        let _ = write!(out, ".{:06}", time.microsecond);
    }
    if let Some(minutes) = time.offset_minutes {
        out += &offset(minutes, ":");
    }
    out
}

/// `+02:00`.
pub(super) fn offset(minutes: i32, colon: &str) -> String {
    let sign = if minutes < 0 { '-' } else { '+' };
    let minutes = minutes.unsigned_abs();
    format!("{sign}{:02}{colon}{:02}", minutes / 60, minutes % 60)
}

fn datetime_repr(time: &DateTime) -> String {
    let mut out = format!(
        "datetime.datetime({}, {}, {}, {}, {}",
        time.date.year, time.date.month, time.date.day, time.hour, time.minute
    );
    if time.second != 0 || time.microsecond != 0 {
        let _ = write!(out, ", {}", time.second);
    }
    if time.microsecond != 0 {
        let _ = write!(out, ", {}", time.microsecond);
    }
    match time.offset_minutes {
        None => {}
        Some(0) => out += ", tzinfo=datetime.timezone.utc",
        Some(minutes) => {
            // timedelta keeps days of any sign and seconds that are never negative.
            let days = minutes.div_euclid(24 * 60);
            let seconds = minutes.rem_euclid(24 * 60) * 60;
            let delta = match (days, seconds) {
                (0, seconds) => format!("seconds={seconds}"),
                (days, 0) => format!("days={days}"),
                (days, seconds) => format!("days={days}, seconds={seconds}"),
            };
            let _ = write!(
                out,
                ", tzinfo=datetime.timezone(datetime.timedelta({delta}))"
            );
        }
    }
    out.push(')');
    out
}
