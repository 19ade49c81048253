//! Jinja2's global functions.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Error, State, Value};

use super::args::{bind, integer, invalid, required, str_arg, undefined};
use super::filters::{elements, pairs};
use super::value::{Dict, Range};

pub(super) fn range(args: &[Value]) -> Result<Value, Error> {
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
pub(super) fn dict(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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
            entries.extend(pairs(state, source)?);
            continue;
        }
        for pair in elements(state, source)? {
            let pair: Vec<Value> = pair.try_iter()?.take(3).collect();
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
    at: AtomicUsize,
}

impl Cycler {
    fn at(&self) -> Option<Value> {
        self.items.get(self.at.load(Relaxed)).cloned()
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

pub(super) fn cycler(args: &[Value]) -> Result<Value, Error> {
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
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let [] = bind(args, [])?;
        if self.used.swap(true, Relaxed) {
            Ok(Value::from(self.separator.as_str()))
        } else {
            Ok(Value::from(""))
        }
    }
}

pub(super) fn joiner(args: &[Value]) -> Result<Value, Error> {
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
