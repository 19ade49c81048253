//! Jinja2's filters, tests and globals where the engine's differ, or lack.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};
use num_bigint::BigInt;

use super::args::{
    bind, flag, integer, invalid, length, optional_str, required, str_arg, undefined,
};
use super::value::{Dict, Range, as_float, from_yaml, list, string};
use super::{is_space, json, methods};
use crate::yaml::Yaml;

type Filter = fn(&State<'_, '_>, &[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 33] = [
    ("_each", each),
    ("capitalize", capitalize),
    ("center", center),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("e", escape),
    ("escape", escape),
    ("filesizeformat", filesizeformat),
    ("float", to_float),
    ("forceescape", forceescape),
    ("format", printf),
    ("indent", indent),
    ("int", to_int),
    ("items", items),
    ("join", join),
    ("lower", lower),
    ("replace", replace),
    ("round", round),
    ("safe", safe),
    ("sort", sort),
    ("string", to_string),
    ("striptags", striptags),
    ("title", title),
    ("tojson", json::tojson),
    ("trim", trim),
    ("truncate", truncate),
    ("upper", upper),
    ("urlencode", urlencode),
    ("wordcount", wordcount),
    ("pprint", no_pprint),
    ("random", no_random),
    ("wordwrap", no_wordwrap),
];

/// All arguments; keywords are one value at the end.
type Args = Rest<ValueOrKwargs>;

fn values(args: Args) -> Vec<Value> {
    args.0.into_iter().map(ValueOrKwargs::into_value).collect()
}

pub(super) fn install(engine: &mut Environment<'static>) {
    for (name, filter) in FILTERS {
        engine.add_filter(name, move |state: &State<'_, '_>, args: Args| {
            filter(state, &values(args))
        });
    }
    // What the engine has and Jinja2 has not: a template that uses it works here only.
    for name in ["bool", "chain", "lines", "split", "zip"] {
        engine.remove_filter(name);
    }
    for name in ["endingwith", "safe", "startingwith"] {
        engine.remove_test(name);
    }
    engine.remove_global("debug");
    engine.add_test("callable", |value: &Value| {
        value
            .as_object()
            .is_some_and(|object| object.repr() == ObjectRepr::Plain)
    });
    engine.add_test("iterable", |value: &Value| {
        if value.is_undefined() {
            return Err(undefined(value));
        }
        Ok(!value.is_none() && value.try_iter().is_ok())
    });
    engine.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Bytes
        )
    });
    engine.add_function("range", |args: Args| range(&values(args)));
    engine.add_function("dict", |args: Args| dict(&values(args)));
    engine.add_function("cycler", |args: Args| cycler(&values(args)));
    engine.add_function("joiner", |args: Args| joiner(&values(args)));
}

fn no_pprint(_: &State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
    Err(invalid(
        "the filter pprint is not supported: use tojson(indent=2)",
    ))
}

fn no_random(_: &State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
    Err(invalid(
        "the filter random is not supported: an instruction must be the same in each build",
    ))
}

fn no_wordwrap(_: &State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
    Err(invalid("the filter wordwrap is not supported"))
}

/// The first argument as text.
fn subject(args: Option<Value>) -> Result<String, Error> {
    let value = required(args, "value")?;
    string(&value)
}

fn to_string(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    match value {
        Some(value) if value.is_safe() => Ok(value),
        value => subject(value).map(Value::from),
    }
}

/// What a `for` goes through: as it is, but for the characters of a string.
fn each(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    let value = required(value, "value")?;
    match value.as_str() {
        Some(_) => elements(state, &value).map(list),
        None if value.as_object().is_some() => Ok(value),
        None => Err(invalid(format!("{} is not iterable", value.kind()))),
    }
}

fn safe(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let text = to_string(state, args)?;
    Ok(Value::from_safe_string(
        text.as_str().unwrap_or_default().to_owned(),
    ))
}

fn upper(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(subject(value)?.to_uppercase()))
}

fn lower(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(subject(value)?.to_lowercase()))
}

fn title(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(minijinja::filters::title(
        subject(value)?.into(),
    )))
}

fn capitalize(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["s"])?;
    Ok(Value::from(methods::change_case(
        &subject(value)?,
        "capitalize",
    )))
}

fn trim(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bind(args, ["value", "chars"])?;
    let text = subject(value)?;
    Ok(Value::from(match optional_str(chars, "chars")? {
        None => text.trim_matches(is_space),
        Some(chars) => text.trim_matches(|character| chars.contains(character)),
    }))
}

fn replace(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

fn printf(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

fn default(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default, boolean] = bind(args, ["value", "default_value", "boolean"])?;
    let value = value.unwrap_or(Value::UNDEFINED);
    if value.is_undefined() || (flag(boolean, false)? && !value.is_true()) {
        return Ok(default.unwrap_or_else(|| Value::from("")));
    }
    Ok(value)
}

fn items(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    let value = value.unwrap_or(Value::UNDEFINED);
    if value.is_undefined() {
        return Ok(list(Vec::new()));
    }
    Ok(list(pairs(state, &value)?.into_iter().map(tuple).collect()))
}

/// Key and value of each entry of a mapping.
fn pairs(state: &State<'_, '_>, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let pairs = value
        .as_object()
        .filter(|object| object.repr() == ObjectRepr::Map)
        .and_then(|object| object.try_iter_pairs())
        .ok_or_else(|| invalid(format!("expected a mapping, not {}", value.kind())))?;
    let pairs: Vec<_> = pairs.collect();
    charge(state, pairs.len())?;
    Ok(pairs)
}

fn tuple((key, value): (Value, Value)) -> Value {
    Value::from(Tuple::from([key, value]))
}

/// Pays for looking at `items` things.
fn charge(state: &State<'_, '_>, items: usize) -> Result<(), Error> {
    state.consume_fuel(u64::try_from(items / 2).unwrap_or(u64::MAX))
}

/// The items of anything that can be iterated over.
fn elements(state: &State<'_, '_>, value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_none() {
        return Err(invalid("null is not iterable"));
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        items.push(item?);
        if items.len() % 1024 == 0 {
            charge(state, 1024)?;
        }
    }
    Ok(items)
}

/// `a.b.0` of an item, as the `attribute` arguments of filters look it up: keys first.
fn attribute(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else {
        return value.get_item(path);
    };
    let mut value = value.clone();
    for part in path.split('.') {
        value = match part.parse::<usize>() {
            Ok(index) => value.get_item_by_index(index)?,
            Err(_) => value.get_item(&Value::from(part))?,
        };
    }
    Ok(value)
}

fn join(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, separator, path] = bind(args, ["value", "d", "attribute"])?;
    let value = required(value, "value")?;
    let separator = match separator {
        None => String::new(),
        separator => subject(separator)?,
    };
    let mut out = String::new();
    for (index, item) in elements(state, &value)?.into_iter().enumerate() {
        let item = match &path {
            None => item,
            Some(path) if path.is_none() => item,
            Some(path) => attribute(&item, path)?,
        };
        let before = out.len();
        if index > 0 {
            out.push_str(&separator);
        }
        out.push_str(&string(&required(Some(item), "item")?)?);
        state.consume_fuel(u64::try_from((out.len() - before) / 64).unwrap_or(u64::MAX))?;
    }
    Ok(Value::from(out))
}

/// What Python can order: numbers among themselves, and equal types.
fn comparable(left: &Value, right: &Value) -> bool {
    let rank = |value: &Value| match value.kind() {
        ValueKind::Bool | ValueKind::Number => Some(0),
        ValueKind::String => Some(1),
        ValueKind::Seq => Some(2),
        ValueKind::Plain | ValueKind::Bytes => Some(3),
        _ => None,
    };
    matches!((rank(left), rank(right)), (Some(left), Some(right)) if left == right)
}

/// Sorts by keys, as stable as Python.
fn sort_by_keys<T>(
    state: &State<'_, '_>,
    mut items: Vec<(Vec<Value>, T)>,
    reverse: bool,
) -> Result<Vec<T>, Error> {
    let count = items.len();
    charge(
        state,
        count.saturating_mul(usize::try_from(count.max(2).ilog2()).unwrap_or(64) * 2),
    )?;
    for pair in items.windows(2) {
        let [(left, _), (right, _)] = pair else {
            continue;
        };
        if let Some((left, right)) = left
            .iter()
            .zip(right)
            .find(|(left, right)| !comparable(left, right))
        {
            for value in [left, right] {
                if value.is_undefined() {
                    return Err(undefined(value));
                }
            }
            return Err(invalid(format!(
                "{} and {} have no order",
                left.kind(),
                right.kind()
            )));
        }
    }
    items.sort_by(|(left, _), (right, _)| {
        if reverse {
            right.cmp(left)
        } else {
            left.cmp(right)
        }
    });
    Ok(items.into_iter().map(|(_, item)| item).collect())
}

/// A key without its case.
fn folded(value: Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    }
}

fn sort(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, reverse, case_sensitive, path] =
        bind(args, ["value", "reverse", "case_sensitive", "attribute"])?;
    let value = required(value, "value")?;
    let case_sensitive = flag(case_sensitive, false)?;
    let paths: Vec<Value> = match path {
        None => Vec::new(),
        Some(path) if path.is_none() => Vec::new(),
        Some(path) => match path.as_str() {
            Some(path) => path.split(',').map(Value::from).collect(),
            None => vec![path],
        },
    };
    let mut keyed = Vec::new();
    for item in elements(state, &value)? {
        let keys = if paths.is_empty() {
            vec![folded(item.clone(), case_sensitive)]
        } else {
            paths
                .iter()
                .map(|path| Ok(folded(attribute(&item, path)?, case_sensitive)))
                .collect::<Result<_, Error>>()?
        };
        keyed.push((keys, item));
    }
    sort_by_keys(state, keyed, flag(reverse, false)?).map(list)
}

fn dictsort(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, by, reverse] =
        bind(args, ["value", "case_sensitive", "by", "reverse"])?;
    let value = required(value, "value")?;
    let case_sensitive = flag(case_sensitive, false)?;
    let by_value = match optional_str(by, "by")?.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return Err(invalid("dictsort is by 'key' or 'value'")),
    };
    let keyed = pairs(state, &value)?
        .into_iter()
        .map(|(key, value)| {
            let by = if by_value { &value } else { &key };
            (
                vec![folded(by.clone(), case_sensitive)],
                tuple((key, value)),
            )
        })
        .collect();
    sort_by_keys(state, keyed, flag(reverse, false)?).map(list)
}

fn center(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

fn indent(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

fn truncate(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

fn wordcount(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

fn escape(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    match value {
        Some(value) if value.is_safe() => Ok(value),
        value => forceescape(state, &[value.unwrap_or(Value::UNDEFINED)]),
    }
}

fn forceescape(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    Ok(Value::from_safe_string(escape_html(&subject(value)?)))
}

fn striptags(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

fn urlencode(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

fn filesizeformat(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, binary] = bind(args, ["value", "binary"])?;
    let bytes = number(&required(value, "value")?)?;
    let (base, units) = if flag(binary, false)? {
        (
            1024.0,
            ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"],
        )
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    if bytes.to_bits() == 1.0_f64.to_bits() {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{:.0} Bytes", bytes.trunc())));
    }
    let mut unit = base;
    let mut name = "";
    for next in units {
        name = next;
        unit *= base;
        if bytes < unit {
            break;
        }
    }
    Ok(Value::from(format!("{:.1} {name}", base * bytes / unit)))
}

/// `float(value)`.
fn number(value: &Value) -> Result<f64, Error> {
    if let Some(text) = value.as_str() {
        return parse_float(text).ok_or_else(|| invalid("the string is not a number"));
    }
    if let Ok(flag) = bool::try_from(value.clone()) {
        return Ok(if flag { 1.0 } else { 0.0 });
    }
    f64::try_from(value.clone()).map_err(|_| invalid(format!("{} is not a number", value.kind())))
}

/// The digits without underscores, which may stand between two digits only.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let alone = |index: usize| {
        let digit = |at: Option<usize>| {
            at.and_then(|at| bytes.get(at))
                .is_some_and(u8::is_ascii_alphanumeric)
        };
        !digit(index.checked_sub(1)) || !digit(index.checked_add(1))
    };
    if text.match_indices('_').any(|(index, _)| alone(index)) {
        return None;
    }
    Some(text.replace('_', ""))
}

fn parse_float(text: &str) -> Option<f64> {
    without_underscores(text.trim_matches(is_space))?
        .parse()
        .ok()
}

fn to_float(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind(args, ["value", "default"])?;
    let value = required(value, "value")?;
    Ok(number(&value)
        .map(Value::from)
        .unwrap_or_else(|_| default.unwrap_or_else(|| Value::from(0.0))))
}

/// `int(text, base)`.
fn parse_int(text: &str, base: u32) -> Option<BigInt> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let digits = match digits.get(..prefix.len()) {
        Some(start) if !prefix.is_empty() && start.eq_ignore_ascii_case(prefix) => {
            digits.get(prefix.len()..)?
        }
        _ => digits,
    };
    if !digits.starts_with(|character: char| character.is_digit(base)) || digits.len() > 4300 {
        return None;
    }
    let number = BigInt::parse_bytes(without_underscores(digits)?.as_bytes(), base)?;
    Some(if negative { -number } else { number })
}

fn to_int(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind(args, ["value", "default", "base"])?;
    let value = required(value, "value")?;
    if value.is_integer() {
        return Ok(value);
    }
    if let Ok(flag) = bool::try_from(value.clone()) {
        return Ok(Value::from(i64::from(flag)));
    }
    let default = || default.clone().unwrap_or_else(|| Value::from(0));
    if let Some(number) = as_float(&value) {
        if number.is_nan() {
            return Ok(default());
        }
        return truncated(number).ok_or_else(|| invalid("the number is too large"));
    }
    let Some(text) = value.as_str() else {
        return Ok(default());
    };
    let base = u32::try_from(integer(base, 10)?)
        .ok()
        .filter(|base| (2..=36).contains(base))
        .ok_or_else(|| invalid("the base must be 2 to 36"))?;
    if let Some(number) = parse_int(text, base) {
        return from_yaml(&Yaml::Int(number)).ok_or_else(|| invalid("the number is too large"));
    }
    Ok(parse_float(text)
        .and_then(truncated)
        .unwrap_or_else(default))
}

/// The integer part.
fn truncated(number: f64) -> Option<Value> {
    let digits = format!("{:.0}", number.trunc());
    from_yaml(&Yaml::Int(digits.parse().ok()?))
}

fn round(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind(args, ["value", "precision", "method"])?;
    let value = required(value, "value")?;
    let precision = i32::try_from(integer(precision, 0)?.clamp(-400, 400)).unwrap_or_default();
    let method = optional_str(method, "method")?;
    if value.as_str().is_some() {
        return Err(invalid("a string can not be rounded"));
    }
    match method.as_deref() {
        None | Some("common") => {}
        Some(method @ ("ceil" | "floor")) => {
            let scale = 10_f64.powi(precision);
            let scaled = number(&value)? * scale;
            let rounded = if method == "ceil" {
                scaled.ceil()
            } else {
                scaled.floor()
            };
            if !rounded.is_finite() {
                return Err(invalid("the number is too large"));
            }
            return Ok(Value::from(rounded / scale));
        }
        Some(_) => return Err(invalid("the method must be common, ceil or floor")),
    }
    if let Some(number) = as_float(&value) {
        return Ok(Value::from(round_float(number, precision)));
    }
    let value = match bool::try_from(value.clone()) {
        Ok(flag) => Value::from(i64::from(flag)),
        Err(_) => value,
    };
    if precision >= 0 && value.is_integer() {
        return Ok(value);
    }
    let whole = i128::try_from(value)
        .map_err(|_| invalid("only numbers of up to 128 bits can be rounded"))?;
    Ok(Value::from(round_integer(whole, false, precision)))
}

/// `round(float, precision)`: to the nearest, and of two equally near ones to the even one.
fn round_float(number: f64, precision: i32) -> f64 {
    if !number.is_finite() {
        return number;
    }
    match usize::try_from(precision) {
        // The digits that formatting gives are those of the exact value.
        Ok(precision) => format!("{number:.precision$}").parse().unwrap_or(number),
        Err(_) if number.abs() < 1e36 => {
            let whole = format!("{:.0}", number.trunc()).parse().unwrap_or_default();
            let fraction = number.fract() != 0.0;
            let rounded = round_integer(whole, fraction, precision).to_string();
            rounded.parse::<f64>().unwrap_or(number).copysign(number)
        }
        Err(_) => number,
    }
}

/// Rounds to tens, hundreds, …; `more` says that there was a fraction.
fn round_integer(whole: i128, more: bool, precision: i32) -> i128 {
    let Some(unit) = 10_i128.checked_pow(precision.unsigned_abs()) else {
        return 0;
    };
    let (quotient, remainder) = (whole / unit, (whole % unit).abs());
    let up = match (remainder.saturating_mul(2)).cmp(&unit) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => more || quotient % 2 != 0,
    };
    let quotient = if up {
        quotient + whole.signum()
    } else {
        quotient
    };
    quotient.saturating_mul(unit)
}

fn range(args: &[Value]) -> Result<Value, Error> {
    let [first, second, step] = bind(args, ["start", "stop", "step"])?;
    let step = integer(step, 1)?;
    let first = integer(Some(required(first, "stop")?), 0)?;
    let (start, stop) = match second {
        None => (0, first),
        second => (first, integer(second, 0)?),
    };
    let (span, width) = match step.cmp(&0) {
        Ordering::Greater => (i128::from(stop) - i128::from(start), i128::from(step)),
        Ordering::Less => (i128::from(start) - i128::from(stop), -i128::from(step)),
        Ordering::Equal => return Err(invalid("range() needs a step that is not 0")),
    };
    let count = if span <= 0 { 0 } else { (span - 1) / width + 1 };
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= 100_000)
        .ok_or_else(|| invalid("range() gives more than 100,000 numbers"))?;
    Ok(Value::from_object(Range {
        start,
        stop,
        step,
        count,
    }))
}

/// `dict(mapping_or_pairs, **more)`.
fn dict(args: &[Value]) -> Result<Value, Error> {
    let (positional, keywords) = match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Some(last)),
        _ => (args, None),
    };
    let mut entries: Vec<(Value, Value)> = Vec::new();
    let mut sources = Vec::new();
    match positional {
        [] => {}
        [source] => sources.push(source),
        _ => return Err(invalid("dict() takes one argument and keywords")),
    }
    sources.extend(keywords);
    for source in sources {
        if source.is_undefined() {
            return Err(undefined(source));
        }
        if source.kind() == ValueKind::Map {
            let pairs = source
                .as_object()
                .and_then(|object| object.try_iter_pairs());
            entries.extend(pairs.into_iter().flatten());
            continue;
        }
        for pair in source.try_iter()?.checked() {
            let pair: Vec<Value> = pair?.try_iter()?.take(3).collect();
            match <[Value; 2]>::try_from(pair) {
                Ok([key, value]) => entries.push((key, value)),
                Err(_) => return Err(invalid("dict() needs pairs of key and value")),
            }
        }
    }
    Ok(Dict::value(entries))
}

/// `cycler(…)`: `next()`, `reset()` and `current`.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: std::sync::atomic::AtomicUsize,
}

impl Cycler {
    fn at(&self) -> Option<Value> {
        self.items
            .get(self.at.load(std::sync::atomic::Ordering::Relaxed))
            .cloned()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.at())?
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        use std::sync::atomic::Ordering::Relaxed;
        let [] = bind(args, [])?;
        match method {
            "next" => {
                let item = self.at();
                let next = (self.at.load(Relaxed) + 1) % self.items.len().max(1);
                self.at.store(next, Relaxed);
                Ok(item.unwrap_or_default())
            }
            "reset" => {
                self.at.store(0, Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(minijinja::ErrorKind::UnknownMethod)),
        }
    }
}

fn cycler(args: &[Value]) -> Result<Value, Error> {
    if args.is_empty() || args.iter().any(Value::is_kwargs) {
        return Err(invalid("cycler() takes the items to cycle through"));
    }
    Ok(Value::from_object(Cycler {
        items: args.to_vec(),
        at: 0.into(),
    }))
}

/// `joiner(sep)`: nothing for the first call, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: String,
    used: std::sync::atomic::AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let [] = bind(args, [])?;
        if self.used.swap(true, std::sync::atomic::Ordering::Relaxed) {
            Ok(Value::from(self.separator.as_str()))
        } else {
            Ok(Value::from(""))
        }
    }
}

fn joiner(args: &[Value]) -> Result<Value, Error> {
    let [separator] = bind(args, ["sep"])?;
    let separator = match separator {
        None => ", ".to_owned(),
        separator => str_arg(separator, "sep")?,
    };
    Ok(Value::from_object(Joiner {
        separator,
        used: false.into(),
    }))
}
