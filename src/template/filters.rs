//! Which filters, tests and functions a template has, and the filters for lists and mappings.
//!
//! The engine's own are left where they do the same as Jinja2's; what it has and Jinja2 has not is
//! taken away, since a template that uses it would work here only.

use minijinja::value::{DynObject, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::args::{bind, flag, invalid, optional_str, required, undefined};
use super::strings::subject;
use super::value::{list, string};
use super::{globals, json, methods, numbers, strings};

type Filter = fn(&State<'_, '_>, &[Value]) -> Result<Value, Error>;

const FILTERS: [(&str, Filter); 33] = [
    ("_each", each),
    ("capitalize", strings::capitalize),
    ("center", strings::center),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("e", strings::escape),
    ("escape", strings::escape),
    ("filesizeformat", numbers::filesizeformat),
    ("float", numbers::to_float),
    ("forceescape", strings::forceescape),
    ("format", strings::printf),
    ("indent", strings::indent),
    ("int", numbers::to_int),
    ("items", items),
    ("join", join),
    ("lower", strings::lower),
    ("replace", strings::replace),
    ("round", numbers::round),
    ("safe", strings::safe),
    ("sort", sort),
    ("string", strings::to_string),
    ("striptags", strings::striptags),
    ("title", strings::title),
    ("tojson", json::tojson),
    ("trim", strings::trim),
    ("truncate", strings::truncate),
    ("upper", strings::upper),
    ("urlencode", strings::urlencode),
    ("wordcount", strings::wordcount),
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
    engine.add_test("lower", |value: &Value| -> Result<bool, Error> {
        Ok(methods::is_cased(
            &string(value)?,
            char::is_lowercase,
            char::is_uppercase,
        ))
    });
    engine.add_test("upper", |value: &Value| -> Result<bool, Error> {
        Ok(methods::is_cased(
            &string(value)?,
            char::is_uppercase,
            char::is_lowercase,
        ))
    });
    engine.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Bytes
        )
    });
    engine.add_function("range", |args: Args| globals::range(&values(args)));
    engine.add_function("dict", |state: &State<'_, '_>, args: Args| {
        globals::dict(state, &values(args))
    });
    engine.add_function("cycler", |args: Args| globals::cycler(&values(args)));
    engine.add_function("joiner", |args: Args| globals::joiner(&values(args)));
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
pub(super) fn pairs(state: &State<'_, '_>, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let pairs = value
        .as_object()
        .filter(|object| object.repr() == ObjectRepr::Map)
        .and_then(DynObject::try_iter_pairs)
        .ok_or_else(|| invalid(format!("expected a mapping, not {}", value.kind())))?;
    let pairs: Vec<_> = pairs.collect();
    charge(state, pairs.len())?;
    Ok(pairs)
}

fn tuple((key, value): (Value, Value)) -> Value {
    Value::from(Tuple::from([key, value]))
}

/// Pays for looking at `items` things.
pub(super) fn charge(state: &State<'_, '_>, items: usize) -> Result<(), Error> {
    state.consume_fuel(u64::try_from(items / 2).unwrap_or(u64::MAX))
}

/// The items of anything that can be iterated over.
pub(super) fn elements(state: &State<'_, '_>, value: &Value) -> Result<Vec<Value>, Error> {
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
