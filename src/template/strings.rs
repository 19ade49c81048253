//! Filters that take a text and give a text.

use std::fmt::Write as _;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, State, Value};

use super::args::{bind, flag, integer, invalid, length, optional_str, required};
use super::filters::{elements, pairs};
use super::is_space;
use super::methods;
use super::value::string;

/// The first argument as text.
pub(super) fn subject(args: Option<Value>) -> Result<String, Error> {
    let value = required(args, "value")?;
    string(&value)
}

pub(super) fn to_string(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    match value {
        Some(value) if value.is_safe() => Ok(value),
        value => subject(value).map(Value::from),
    }
}

pub(super) fn safe(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let text = to_string(state, args)?;
    Ok(Value::from_safe_string(
        text.as_str().unwrap_or_default().to_owned(),
    ))
}

pub(super) fn upper(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(subject(value)?.to_uppercase()))
}

pub(super) fn lower(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(subject(value)?.to_lowercase()))
}

pub(super) fn title(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(minijinja::filters::title(
        subject(value)?.into(),
    )))
}

pub(super) fn capitalize(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(methods::change_case(
        &subject(value)?,
        "capitalize",
    )))
}

pub(super) fn trim(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bind(args, ["value", "chars"])?;
    let text = subject(value)?;
    Ok(Value::from(match optional_str(chars, "chars")? {
        None => text.trim_matches(is_space),
        Some(chars) => text.trim_matches(|character| chars.contains(character)),
    }))
}

pub(super) fn replace(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind(args, ["s", "old", "new", "count"])?;
    let count = integer(count.filter(|count| !count.is_none()), -1)?;
    let (old, new) = (subject(old)?, subject(new)?);
    replaced(state, &subject(value)?, &old, &new, count)
}

/// `str.replace`; a negative count is no limit.
pub(super) fn replaced(
    state: &State<'_, '_>,
    text: &str,
    old: &str,
    new: &str,
    count: i64,
) -> Result<Value, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let matches = text.matches(old).take(count).count();
    let added = matches.saturating_mul(new.len()) / 64;
    state.consume_fuel(u64::try_from(added).unwrap_or(u64::MAX))?;
    Ok(Value::from(text.replacen(old, new, matches)))
}

pub(super) fn printf(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let Some((text, args)) = args.split_first() else {
        return Err(invalid("there is nothing to format"));
    };
    let text = subject(Some(text.clone()))?;
    formatted(state, FormatStyle::Printf, &text, args)
}

/// `str.format` and `%`: the engine's, but for the text of values and the memory that it takes.
pub(super) fn formatted(
    state: &State<'_, '_>,
    style: FormatStyle,
    text: &str,
    args: &[Value],
) -> Result<Value, Error> {
    // The engine pads before it looks at its fuel.
    let mut digits = 0;
    for byte in text.bytes() {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return Err(invalid("the format asks for more than 9999 characters"));
        }
    }
    let fields = text.matches(['%', '{']).count().saturating_mul(160);
    state.consume_fuel(u64::try_from(fields / 64).unwrap_or(u64::MAX))?;
    // A field may reach into its argument, which would be a text by then.
    if style == FormatStyle::StrFormat
        && text.split('{').skip(1).any(|field| {
            field
                .split(['}', ':'])
                .next()
                .is_some_and(|name| name.contains(['.', '[']))
        })
    {
        return Err(invalid("format fields with attributes are not supported"));
    }
    let mut printable = Vec::with_capacity(args.len());
    for value in args {
        printable.push(if value.is_kwargs() {
            let keywords = Kwargs::try_from(value.clone())?;
            let named = keywords
                .args()
                .map(|name| Ok((name, printable_value(keywords.peek(name)?)?)))
                .collect::<Result<Vec<_>, Error>>()?;
            Value::from(named.into_iter().collect::<Kwargs>())
        } else {
            printable_value(value.clone())?
        });
    }
    minijinja::formatting::format(style, text, &printable).map(Value::from)
}

/// What is neither number nor string becomes its text.
fn printable_value(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Bool | ValueKind::Number | ValueKind::String => Ok(value),
        _ => string(&value).map(Value::from),
    }
}

pub(super) fn center(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width] = bind(args, ["value", "width"])?;
    let text = subject(value)?;
    padded(state, &text, length(width, 80)?, ' ', Side::Both).map(Value::from)
}

/// Where a padded text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    Both,
}

/// `str.ljust`, `str.rjust` and `str.center`.
pub(super) fn padded(
    state: &State<'_, '_>,
    text: &str,
    width: usize,
    fill: char,
    side: Side,
) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    state.consume_fuel(u64::try_from(missing / 16).unwrap_or(u64::MAX))?;
    let before = match side {
        Side::Left => 0,
        Side::Right => missing,
        // Python puts the odd one before the text when the width is odd.
        Side::Both => missing / 2 + (missing & width & 1),
    };
    let fill = |count| std::iter::repeat_n(fill, count);
    Ok(fill(before)
        .chain(text.chars())
        .chain(fill(missing - before))
        .collect())
}

pub(super) fn indent(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(args, ["value", "width", "first", "blank"])?;
    let text = subject(value)?;
    let indention = match width {
        Some(width) if width.as_str().is_some() => string(&width)?,
        width => {
            let width = length(width, 4)?;
            state.consume_fuel(u64::try_from(width / 64).unwrap_or(u64::MAX))?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (flag(first, false)?, flag(blank, false)?);
    // Jinja2 adds a newline so that a final one gives a last, empty line.
    let text = text + "\n";
    let lines: Vec<&str> = split_lines(&text).map(|(line, _)| line).collect();
    let added = indention.len().saturating_mul(lines.len());
    state.consume_fuel(u64::try_from(added / 64).unwrap_or(u64::MAX))?;
    let mut out = String::new();
    for (index, line) in lines.into_iter().enumerate() {
        let wanted = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if index > 0 {
            out.push('\n');
        }
        if wanted {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// `str.splitlines`: each line and its end.
pub(super) fn split_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(is_line_break).unwrap_or(rest.len());
        let (line, tail) = rest.split_at(end);
        let width = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(0, char::len_utf8)
        };
        let (ending, tail) = tail.split_at(width);
        rest = tail;
        Some((line, ending))
    })
}

fn is_line_break(character: char) -> bool {
    matches!(
        character,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

pub(super) fn truncate(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, limit, killwords, end, leeway] =
        bind(args, ["value", "length", "killwords", "end", "leeway"])?;
    let text = subject(value)?;
    let limit = length(limit, 255)?;
    let end = optional_str(end, "end")?.unwrap_or_else(|| "...".to_owned());
    let leeway = length(leeway.filter(|leeway| !leeway.is_none()), 5)?;
    let Some(kept) = limit.checked_sub(end.chars().count()) else {
        return Err(invalid("the length is less than that of the end"));
    };
    if text.chars().count() <= limit.saturating_add(leeway) {
        return Ok(Value::from(text));
    }
    let mut out: String = text.chars().take(kept).collect();
    if !flag(killwords, false)?
        && let Some(space) = out.rfind(' ')
    {
        out.truncate(space);
    }
    Ok(Value::from(out + &end))
}

pub(super) fn wordcount(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    let text = subject(value)?;
    let words = text
        .split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .filter(|word| !word.is_empty());
    Ok(Value::from(words.count()))
}

/// The characters that HTML gives a meaning, as markupsafe escapes them.
pub(super) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
    out
}

pub(super) fn escape(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    match value {
        Some(value) if value.is_safe() => Ok(value),
        value => forceescape(state, &[value.unwrap_or(Value::UNDEFINED)]),
    }
}

pub(super) fn forceescape(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    Ok(Value::from_safe_string(escape_html(&subject(value)?)))
}

pub(super) fn striptags(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    let text = without(&without(&subject(value)?, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = text
        .split(is_space)
        .filter(|word| !word.is_empty())
        .collect();
    unescape_html(&words.join(" ")).map(Value::from)
}

/// The text without the parts from `open` to `close`.
fn without(text: &str, open: &str, close: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, tail)) = rest.split_once(open)
        && let Some((_, tail)) = tail.split_once(close)
    {
        out.push_str(before);
        rest = tail;
    }
    out + rest
}

/// `html.unescape` for the entities that people write; others are refused, not left as they are.
fn unescape_html(text: &str) -> Result<String, Error> {
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|character: char| !(character.is_ascii_alphanumeric() || character == '#'))
            .unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let Some(rest) = rest.strip_prefix(';').filter(|_| !name.is_empty()) else {
            // The reader of browsers also takes some of them without the semicolon.
            let short = ["amp", "lt", "gt", "quot", "nbsp", "copy", "reg", "#"];
            if short.iter().any(|entity| name.starts_with(entity)) {
                return Err(invalid(format!(
                    "write the entity &{name} with a semicolon"
                )));
            }
            out.push('&');
            out.push_str(part);
            continue;
        };
        let character = match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            "nbsp" => Some('\u{a0}'),
            "copy" => Some('©'),
            "reg" => Some('®'),
            "hellip" => Some('…'),
            "ndash" => Some('–'),
            "mdash" => Some('—'),
            _ => numeric_entity(name),
        };
        let character =
            character.ok_or_else(|| invalid(format!("the entity &{name}; is not supported")))?;
        out.push(character);
        out.push_str(rest);
    }
    Ok(out)
}

fn numeric_entity(name: &str) -> Option<char> {
    let number = name.strip_prefix('#')?;
    let code = match number.strip_prefix(['x', 'X']) {
        Some(number) => u32::from_str_radix(number, 16),
        None => number.parse(),
    };
    // Codes that browsers read as something else are left out.
    char::from_u32(code.ok()?).filter(|character| !character.is_control() || *character == '\n')
}

pub(super) fn urlencode(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    let value = required(value, "value")?;
    let pairs = match value.kind() {
        ValueKind::Map => pairs(state, &value)?,
        ValueKind::Seq | ValueKind::Iterable => elements(state, &value)?
            .iter()
            .map(|pair| match &*elements(state, pair)? {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(invalid("urlencode needs pairs of key and value")),
            })
            .collect::<Result<_, Error>>()?,
        _ => return Ok(Value::from(percent_encode(&string(&value)?, false))),
    };
    let mut out = String::new();
    for (key, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        out += &percent_encode(&string(&key)?, true);
        out.push('=');
        out += &percent_encode(&string(&value)?, true);
    }
    Ok(Value::from(out))
}

fn percent_encode(text: &str, query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if !query => out.push('/'),
            b' ' if query => out.push('+'),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
