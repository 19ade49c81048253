//! Arguments of filters, functions and methods, bound as Python binds them.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

/// Sorts positional and keyword arguments to `names`; an argument that is not given is `None`.
pub(super) fn bind<const N: usize>(
    args: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let mut bound = [const { None }; N];
    let (positional, keywords) = match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Some(Kwargs::try_from(last.clone())?)),
        _ => (args, None),
    };
    if positional.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    for (place, value) in bound.iter_mut().zip(positional) {
        *place = Some(value.clone());
    }
    if let Some(keywords) = keywords {
        for (place, name) in bound.iter_mut().zip(names) {
            if !keywords.has(name) {
                continue;
            }
            if place.is_some() {
                return Err(invalid(format!("the argument '{name}' is given twice")));
            }
            *place = Some(keywords.get(name)?);
        }
        keywords.assert_all_used()?;
    }
    Ok(bound)
}

/// A type that does not fit, and the like.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The engine's own error for an undefined value, which knows the expression.
pub(super) fn undefined(value: &Value) -> Error {
    match value.get_attr("") {
        Err(error) => error,
        Ok(_) => Error::from(ErrorKind::UndefinedError),
    }
}

/// The value, unless it is undefined or missing.
pub(super) fn required(value: Option<Value>, name: &str) -> Result<Value, Error> {
    let value = value.ok_or_else(|| {
        Error::new(
            ErrorKind::MissingArgument,
            format!("missing argument '{name}'"),
        )
    })?;
    if value.is_undefined() {
        return Err(undefined(&value));
    }
    Ok(value)
}

/// An integer argument.
pub(super) fn integer(value: Option<Value>, default: i64) -> Result<i64, Error> {
    match value {
        None => Ok(default),
        Some(value) if value.is_integer() || bool::try_from(value.clone()).is_ok() => {
            i64::try_from(value)
        }
        Some(value) => Err(invalid(format!(
            "expected an integer, not {}",
            value.kind()
        ))),
    }
}

/// A length or width, at most `usize` and at least 0.
pub(super) fn length(value: Option<Value>, default: usize) -> Result<usize, Error> {
    let default = i64::try_from(default).unwrap_or(i64::MAX);
    Ok(usize::try_from(integer(value, default)?.max(0)).unwrap_or(usize::MAX))
}

/// A switch, by Python's idea of truth.
pub(super) fn flag(value: Option<Value>, default: bool) -> Result<bool, Error> {
    match value {
        None => Ok(default),
        Some(value) if value.is_undefined() => Err(undefined(&value)),
        Some(value) => Ok(value.is_true()),
    }
}

/// A string argument; null counts as not given.
pub(super) fn optional_str(value: Option<Value>, name: &str) -> Result<Option<String>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => str_arg(Some(value), name).map(Some),
    }
}

/// A string argument.
pub(super) fn str_arg(value: Option<Value>, name: &str) -> Result<String, Error> {
    let value = required(value, name)?;
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| invalid(format!("'{name}' must be a string, not {}", value.kind())))
}
