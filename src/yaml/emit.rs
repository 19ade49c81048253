//! YAML for Python readers: block style, every string double-quoted, so that nothing is taken for a
//! number, a date or a boolean.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{Node, Yaml};

/// PyYAML finds the colon of a key without `? ` only within 1,024 characters.
const MAX_SIMPLE_KEY: usize = 1000;

/// Writes `value` so that PyYAML reads the same value back: block style, every string quoted.
pub fn emit(value: &Yaml) -> String {
    let mut text = String::new();
    if let Some(scalar) = scalar(value) {
        text.push_str(&scalar);
        text.push('\n');
        return text;
    }
    if let Some(tag) = tag(value) {
        text.push_str(tag);
        text.push('\n');
    }
    block(value, 0, true, &mut text);
    text
}

/// The text of a scalar or of an empty collection, on one line.
fn scalar(value: &Yaml) -> Option<String> {
    Some(match value {
        Yaml::Null => "null".to_owned(),
        Yaml::Bool(value) => value.to_string(),
        Yaml::Int(value) => value.to_string(),
        Yaml::Float(value) => float(*value),
        Yaml::Str(text) => quoted(text),
        Yaml::Date(date) => date.to_string(),
        Yaml::DateTime(time) => time.to_string(),
        Yaml::Binary(bytes) => format!("!!binary \"{}\"", BASE64.encode(bytes)),
        Yaml::Seq(items) if items.is_empty() => "[]".to_owned(),
        Yaml::Map(entries) if entries.is_empty() => "{}".to_owned(),
        Yaml::Set(items) if items.is_empty() => "!!set {}".to_owned(),
        Yaml::Pairs(pairs) if pairs.is_empty() => "!!pairs []".to_owned(),
        Yaml::Seq(_) | Yaml::Map(_) | Yaml::Set(_) | Yaml::Pairs(_) => return None,
    })
}

fn tag(value: &Yaml) -> Option<&'static str> {
    match value {
        Yaml::Set(_) => Some("!!set"),
        Yaml::Pairs(_) => Some("!!pairs"),
        _ => None,
    }
}

/// PyYAML takes a text for a float only with a dot, and an exponent only with a sign.
fn float(value: f64) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let shortest = format!("{value:?}");
    match shortest.split_once('e') {
        None => shortest,
        Some((digits, exponent)) => {
            let dot = if digits.contains('.') { "" } else { ".0" };
            let sign = if exponent.starts_with('-') { "" } else { "+" };
            format!("{digits}{dot}e{sign}{exponent}")
        }
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0'..='\x1F' | '\x7F'..='\u{A0}' => push_escape(&mut out, 'x', letter, 2),
            // Line breaks for YAML 1.1, the byte order mark, and what is no character.
            '\u{2028}' | '\u{2029}' | '\u{FEFF}' | '\u{FFFE}' | '\u{FFFF}' => {
                push_escape(&mut out, 'u', letter, 4);
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
    out
}

fn push_escape(out: &mut String, kind: char, letter: char, width: usize) {
    // Writing to a string can not fail.
    let _ = write!(out, "\\{kind}{:0width$x}", u32::from(letter));
}

fn indent_by(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// A collection that is not empty, its lines `indent` spaces in; the first line stands where the
/// caller left off if `inline`.
fn block(value: &Yaml, indent: usize, inline: bool, out: &mut String) {
    let mut inline = inline;
    let mut start = |out: &mut String| {
        if !std::mem::take(&mut inline) {
            indent_by(indent, out);
        }
    };
    match value {
        Yaml::Seq(items) => {
            for item in items {
                start(out);
                out.push('-');
                after_indicator(&item.value, indent, out);
            }
        }
        Yaml::Map(entries) => {
            for (key, node) in entries {
                start(out);
                entry(key, &node.value, indent, out);
            }
        }
        Yaml::Set(items) => {
            for item in items {
                start(out);
                entry(item, &Yaml::Null, indent, out);
            }
        }
        Yaml::Pairs(pairs) => {
            for (key, node) in pairs {
                start(out);
                out.push_str("- ");
                entry(key, &node.value, indent + 2, out);
            }
        }
        _ => {}
    }
}

/// What stands behind a `-`, or behind the `?` or `:` of a long entry.
fn after_indicator(value: &Yaml, indent: usize, out: &mut String) {
    out.push(' ');
    match (scalar(value), tag(value)) {
        (Some(scalar), _) => {
            out.push_str(&scalar);
            out.push('\n');
        }
        (None, None) => block(value, indent + 2, true, out),
        (None, Some(tag)) => {
            out.push_str(tag);
            out.push('\n');
            block(value, indent + 2, false, out);
        }
    }
}

/// One key and its value.
fn entry(key: &Node, value: &Yaml, indent: usize, out: &mut String) {
    match scalar(&key.value) {
        Some(scalar) if scalar.len() <= MAX_SIMPLE_KEY => {
            out.push_str(&scalar);
            out.push(':');
        }
        _ => {
            out.push('?');
            after_indicator(&key.value, indent, out);
            indent_by(indent, out);
            out.push(':');
            after_indicator(value, indent, out);
            return;
        }
    }
    if let Some(scalar) = scalar(value) {
        out.push(' ');
        out.push_str(&scalar);
        out.push('\n');
        return;
    }
    if let Some(tag) = tag(value) {
        out.push(' ');
        out.push_str(tag);
    }
    out.push('\n');
    block(value, indent + 2, false, out);
}
