//! Python's methods on strings, mappings, lists, numbers, dates and bytes.
//!
//! A method that changes its value is refused: the engine's values do not change.

use minijinja::formatting::FormatStyle;
use minijinja::value::{ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::args::{bind, flag, integer, invalid, optional_str, required, str_arg};
use super::strings::{Side, formatted, padded, replaced, split_lines};
use super::value::{Dict, List, ListKind, Scalar, as_float, from_yaml, list};
use super::{dates, is_space, text};
use crate::yaml::{DateTime, Yaml};

/// Calls `value.method(args)`; the engine asks here when the value has no such method itself.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return on_string(state, text, method, args);
    }
    if let Some(number) = as_float(value)
        && method == "is_integer"
    {
        let [] = bind(args, [])?;
        return Ok(Value::from(number.is_finite() && number.fract() == 0.0));
    }
    if let Some(scalar) = value.downcast_object_ref::<Scalar>() {
        return on_scalar(&scalar.0, method, args);
    }
    match value.kind() {
        ValueKind::Map => on_mapping(state, value, method, args),
        ValueKind::Seq | ValueKind::Iterable => on_list(state, value, method, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn changes(method: &str) -> Error {
    invalid(format!(
        "the method {method} changes its value, which templates can not do here"
    ))
}

fn on_mapping(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(object) = value
        .as_object()
        .filter(|object| object.repr() == ObjectRepr::Map)
    else {
        return Err(Error::from(ErrorKind::UnknownMethod));
    };
    let kind = match method {
        "get" => {
            let [key, default] = bind(args, ["key", "default"])?;
            let found = object.get_value(&required(key, "key")?);
            return Ok(found.or(default).unwrap_or_else(|| Value::from(())));
        }
        "keys" => ListKind::Keys,
        "values" => ListKind::Values,
        "items" => ListKind::Items,
        "copy" => {
            let [] = bind(args, [])?;
            let pairs = object.try_iter_pairs().into_iter().flatten();
            return Ok(Dict::value(pairs.collect()));
        }
        "clear" | "pop" | "popitem" | "setdefault" | "update" => return Err(changes(method)),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    let [] = bind(args, [])?;
    let pairs = object.try_iter_pairs().into_iter().flatten();
    let items: Vec<Value> = pairs
        .map(|(key, value)| match kind {
            ListKind::Keys => key,
            ListKind::Values => value,
            _ => Value::from(Tuple::from([key, value])),
        })
        .collect();
    state.consume_fuel(u64::try_from(items.len() / 2).unwrap_or(u64::MAX))?;
    Ok(Value::from_object(List { items, kind }))
}

fn on_list(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match method {
        "count" | "index" => {
            let [wanted] = bind(args, ["value"])?;
            let wanted = required(wanted, "value")?;
            let mut count = 0_u64;
            for (index, item) in value.try_iter()?.checked().enumerate() {
                state.consume_fuel(1)?;
                if item? == wanted {
                    if method == "index" {
                        return Ok(Value::from(index));
                    }
                    count += 1;
                }
            }
            if method == "index" {
                return Err(invalid("the list has no such item"));
            }
            Ok(Value::from(count))
        }
        "copy" => {
            let [] = bind(args, [])?;
            Ok(value.clone())
        }
        "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort"
        | "add" | "discard" | "update" => Err(changes(method)),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn on_scalar(value: &Yaml, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (date, time) = match value {
        Yaml::Date(date) => (*date, None),
        Yaml::DateTime(time) => (time.date, Some(time)),
        Yaml::Binary(bytes) if method == "decode" => {
            let [encoding, _] = bind(args, ["encoding", "errors"])?;
            let encoding = optional_str(encoding, "encoding")?.unwrap_or_default();
            if !["", "utf-8", "utf8", "ascii"].contains(&encoding.to_lowercase().as_str()) {
                return Err(invalid(format!("the encoding {encoding} is not supported")));
            }
            return std::str::from_utf8(bytes)
                .map(Value::from)
                .map_err(|_| invalid("the bytes are not UTF-8"));
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    match method {
        "strftime" => {
            let [format] = bind(args, ["format"])?;
            let format = str_arg(format, "format")?;
            let midnight = DateTime {
                date,
                hour: 0,
                minute: 0,
                second: 0,
                microsecond: 0,
                offset_minutes: None,
            };
            dates::strftime(time.unwrap_or(&midnight), &format)
                .map(Value::from)
                .ok_or_else(|| invalid(format!("'{format}' is not a format for strftime")))
        }
        "isoformat" => {
            let [separator] = bind(args, ["sep"])?;
            let separator = optional_str(separator, "sep")?.unwrap_or_else(|| "T".to_owned());
            let separator = separator.chars().next().unwrap_or('T');
            Ok(Value::from(match time {
                None => text::iso_date(date),
                Some(time) => text::iso_datetime(time, separator),
            }))
        }
        "weekday" | "isoweekday" => {
            let [] = bind(args, [])?;
            Ok(Value::from(
                dates::weekday(date) + usize::from(method == "isoweekday"),
            ))
        }
        "date" if time.is_some() => {
            let [] = bind(args, [])?;
            from_yaml(&Yaml::Date(date)).ok_or_else(|| Error::from(ErrorKind::UnknownMethod))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// A string argument that must not be empty.
fn separator(value: Option<Value>) -> Result<Option<String>, Error> {
    match optional_str(value, "sep")? {
        Some(separator) if separator.is_empty() => Err(invalid("the separator is empty")),
        separator => Ok(separator),
    }
}

/// Characters to strip: those given, or white space.
fn strip(args: &[Value]) -> Result<impl Fn(char) -> bool, Error> {
    let [chars] = bind(args, ["chars"])?;
    let chars = optional_str(chars, "chars")?;
    Ok(move |character| match &chars {
        Some(chars) => chars.contains(character),
        None => is_space(character),
    })
}

/// Whether there is a character, and each is one of these.
fn all(args: &[Value], text: &str, is: impl Fn(char) -> bool) -> Result<Value, Error> {
    let [] = bind(args, [])?;
    Ok(Value::from(!text.is_empty() && text.chars().all(is)))
}

/// Whether there is a letter of one case and none of the other.
pub(super) fn is_cased(text: &str, is: fn(char) -> bool, not: fn(char) -> bool) -> bool {
    text.chars().any(is) && !text.chars().any(not)
}

fn cased(
    args: &[Value],
    text: &str,
    is: fn(char) -> bool,
    not: fn(char) -> bool,
) -> Result<Value, Error> {
    let [] = bind(args, [])?;
    Ok(Value::from(is_cased(text, is, not)))
}

fn strings(parts: impl Iterator<Item = impl AsRef<str>>) -> Value {
    list(parts.map(|part| Value::from(part.as_ref())).collect())
}

fn on_string(
    state: &State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match method {
        "upper" | "lower" | "casefold" | "swapcase" | "title" | "capitalize" => {
            let [] = bind(args, [])?;
            Ok(Value::from(change_case(text, method)))
        }
        "strip" => Ok(Value::from(text.trim_matches(strip(args)?))),
        "lstrip" => Ok(Value::from(text.trim_start_matches(strip(args)?))),
        "rstrip" => Ok(Value::from(text.trim_end_matches(strip(args)?))),
        "split" | "rsplit" => {
            let [sep, limit] = bind(args, ["sep", "maxsplit"])?;
            let limit = usize::try_from(integer(limit, -1)?).unwrap_or(usize::MAX);
            let sep = separator(sep)?;
            state.consume_fuel(u64::try_from(text.len() / 4).unwrap_or(u64::MAX))?;
            let from_end = method == "rsplit";
            Ok(match sep {
                None => strings(split_spaces(text, limit, from_end).into_iter()),
                Some(sep) if from_end => {
                    let mut parts: Vec<_> = text
                        .rsplitn(limit.saturating_add(1), sep.as_str())
                        .collect();
                    parts.reverse();
                    strings(parts.into_iter())
                }
                Some(sep) => strings(text.splitn(limit.saturating_add(1), sep.as_str())),
            })
        }
        "splitlines" => {
            let [keep] = bind(args, ["keepends"])?;
            let keep = flag(keep, false)?;
            state.consume_fuel(u64::try_from(text.len() / 4).unwrap_or(u64::MAX))?;
            Ok(strings(split_lines(text).map(|(line, end)| {
                if keep {
                    format!("{line}{end}")
                } else {
                    line.to_owned()
                }
            })))
        }
        "partition" | "rpartition" => {
            let [sep] = bind(args, ["sep"])?;
            let sep = separator(Some(required(sep, "sep")?))?.unwrap_or_default();
            let parts = if method == "partition" {
                text.split_once(&*sep)
                    .map_or((text, "", ""), |(before, after)| (before, &*sep, after))
            } else {
                text.rsplit_once(&*sep)
                    .map_or(("", "", text), |(before, after)| (before, &*sep, after))
            };
            let (before, sep, after) = parts;
            Ok(Value::from(Tuple::from([
                Value::from(before),
                Value::from(sep),
                Value::from(after),
            ])))
        }
        "replace" => {
            let [old, new, count] = bind(args, ["old", "new", "count"])?;
            let (old, new) = (str_arg(old, "old")?, str_arg(new, "new")?);
            replaced(state, text, &old, &new, integer(count, -1)?)
        }
        "removeprefix" => {
            let [prefix] = bind(args, ["prefix"])?;
            let prefix = str_arg(prefix, "prefix")?;
            Ok(Value::from(text.strip_prefix(&*prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let [suffix] = bind(args, ["suffix"])?;
            let suffix = str_arg(suffix, "suffix")?;
            Ok(Value::from(text.strip_suffix(&*suffix).unwrap_or(text)))
        }
        "startswith" | "endswith" => {
            let [affixes] = bind(args, ["prefix"])?;
            let affixes = required(affixes, "prefix")?;
            let matches = |affix: &str| {
                if method == "startswith" {
                    text.starts_with(affix)
                } else {
                    text.ends_with(affix)
                }
            };
            if affixes.as_str().is_none() && !affixes.is_tuple() {
                return Err(invalid(format!("{method} takes a string or a tuple")));
            }
            if let Some(affix) = affixes.as_str() {
                return Ok(Value::from(matches(affix)));
            }
            for affix in affixes.try_iter()? {
                if matches(&str_arg(Some(affix), "prefix")?) {
                    return Ok(Value::from(true));
                }
            }
            Ok(Value::from(false))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, method, args),
        "join" => {
            let [values] = bind(args, ["iterable"])?;
            let mut out = String::new();
            for (index, value) in required(values, "iterable")?
                .try_iter()?
                .checked()
                .enumerate()
            {
                let value = value?;
                let part = value.as_str().ok_or_else(|| {
                    invalid(format!(
                        "join takes strings, and item {index} is {}",
                        value.kind()
                    ))
                })?;
                if index > 0 {
                    out.push_str(text);
                }
                out.push_str(part);
                let added = (text.len() + part.len()) / 64 + 1;
                state.consume_fuel(u64::try_from(added).unwrap_or(u64::MAX))?;
            }
            Ok(Value::from(out))
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let [width, fill] = bind(args, ["width", "fillchar"])?;
            let width = integer(Some(required(width, "width")?), 0)?;
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            if method == "zfill" {
                let digits = text.trim_start_matches(['+', '-']);
                let digits = if text.len() - digits.len() > 1 {
                    text
                } else {
                    digits
                };
                let sign = text.strip_suffix(digits).unwrap_or_default();
                let width = width.saturating_sub(sign.len());
                return padded(state, digits, width, '0', Side::Right)
                    .map(|digits| Value::from(format!("{sign}{digits}")));
            }
            let fill = optional_str(fill, "fillchar")?.unwrap_or_else(|| " ".to_owned());
            let mut characters = fill.chars();
            let (Some(fill), None) = (characters.next(), characters.next()) else {
                return Err(invalid("the fill must be one character"));
            };
            let side = match method {
                "ljust" => Side::Left,
                "rjust" => Side::Right,
                _ => Side::Both,
            };
            padded(state, text, width, fill, side).map(Value::from)
        }
        "expandtabs" => {
            let [size] = bind(args, ["tabsize"])?;
            let size = usize::try_from(integer(size, 8)?.clamp(0, 1000)).unwrap_or_default();
            let tabs = text.matches('\t').count().saturating_mul(size) / 64;
            state.consume_fuel(u64::try_from(tabs).unwrap_or(u64::MAX))?;
            Ok(Value::from(expand_tabs(text, size)))
        }
        "format" => formatted(state, FormatStyle::StrFormat, text, args),
        "islower" => cased(args, text, char::is_lowercase, char::is_uppercase),
        "isupper" => cased(args, text, char::is_uppercase, char::is_lowercase),
        "isspace" => all(args, text, is_space),
        "isdigit" | "isdecimal" | "isnumeric" => {
            // Superscripts and fractions are in some of Python's three classes only.
            if text
                .chars()
                .any(|character| character.is_numeric() && !character.is_ascii())
            {
                return Err(invalid(format!(
                    "{method} is supported for ASCII digits only"
                )));
            }
            all(args, text, |character| character.is_ascii_digit())
        }
        "isalpha" => all(args, text, char::is_alphabetic),
        "isalnum" => all(args, text, char::is_alphanumeric),
        "isascii" => {
            let [] = bind(args, [])?;
            Ok(Value::from(text.is_ascii()))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// The methods that change the case of letters, by name.
pub(super) fn change_case(text: &str, method: &str) -> String {
    match method {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "casefold" => text.to_lowercase().replace('ß', "ss"),
        "swapcase" => text
            .chars()
            .flat_map(|character| {
                if character.is_uppercase() {
                    character.to_lowercase().collect::<Vec<_>>()
                } else {
                    character.to_uppercase().collect()
                }
            })
            .collect(),
        _ => {
            // Each word begins with a capital, or the whole does.
            let mut inside = false;
            let mut out = String::with_capacity(text.len());
            for character in text.chars() {
                if inside {
                    out.extend(character.to_lowercase());
                } else {
                    // Title case: only the first of several characters is a capital.
                    let mut upper = character.to_uppercase();
                    out.extend(upper.next());
                    out.extend(upper.flat_map(char::to_lowercase));
                }
                inside = method == "capitalize" || character.is_alphabetic();
            }
            out
        }
    }
}

/// `split()` without a separator: words between white space.
fn split_spaces(text: &str, limit: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_matches(is_space);
    while !rest.is_empty() {
        if words.len() >= limit {
            // What is left over keeps the white space at its far end.
            let all = if from_end {
                let end = rest.as_ptr().addr() - text.as_ptr().addr() + rest.len();
                text.get(..end)
            } else {
                let start = rest.as_ptr().addr() - text.as_ptr().addr();
                text.get(start..)
            };
            words.push(all.unwrap_or(rest));
            break;
        }
        let cut = if from_end {
            rest.rfind(is_space)
                .map(|at| (&rest[at..], rest[..at].trim_end_matches(is_space)))
        } else {
            rest.find(is_space)
                .map(|at| (&rest[..at], rest[at..].trim_start_matches(is_space)))
        };
        let (word, tail) = cut.unwrap_or((rest, ""));
        words.push(word.trim_matches(is_space));
        rest = tail;
    }
    if from_end {
        words.reverse();
    }
    words
}

/// `find`, `index`, `count` and from the right, in the characters from `start` to `end`.
fn search(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(args, ["sub", "start", "end"])?;
    let wanted = str_arg(wanted, "sub")?;
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let bound = |value: Option<Value>, default: i64| -> Result<usize, Error> {
        let at = integer(value.filter(|value| !value.is_none()), default)?;
        let at = if at < 0 {
            at.saturating_add(length)
        } else {
            at
        };
        Ok(usize::try_from(at.clamp(0, length)).unwrap_or_default())
    };
    let (start, end) = (bound(start, 0)?, bound(end, length)?);
    let byte = |at: usize| {
        text.char_indices()
            .nth(at)
            .map_or(text.len(), |(byte, _)| byte)
    };
    let part = text.get(byte(start)..byte(end)).unwrap_or_default();
    if method == "count" {
        return Ok(Value::from(part.matches(&*wanted).count()));
    }
    let found = if method.starts_with('r') {
        part.rfind(&*wanted)
    } else {
        part.find(&*wanted)
    };
    match found.and_then(|at| part.get(..at)) {
        Some(before) => Ok(Value::from(start + before.chars().count())),
        None if method.ends_with("index") => Err(invalid(format!("there is no '{wanted}' in it"))),
        None => Ok(Value::from(-1)),
    }
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0_usize;
    for character in text.chars() {
        match character {
            '\t' if size > 0 => {
                let width = size - column % size;
                out.extend(std::iter::repeat_n(' ', width));
                column += width;
            }
            '\t' => {}
            _ => {
                column = if matches!(character, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
                out.push(character);
            }
        }
    }
    out
}
