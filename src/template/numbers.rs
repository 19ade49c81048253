//! Filters that give numbers, and `int()`, `float()` and `round()` as Python has them.

use std::cmp::Ordering;

use minijinja::{Error, State, Value};
use num_bigint::BigInt;

use super::args::{bind, flag, integer, invalid, optional_str, required};
use super::is_space;
use super::value::{as_float, from_yaml};
use crate::yaml::Yaml;

pub(super) fn filesizeformat(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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
        // Zero has no sign here.
        return Ok(Value::from(format!("{:.0} Bytes", bytes.trunc() + 0.0)));
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

pub(super) fn to_float(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind(args, ["value", "default"])?;
    let value = required(value, "value")?;
    let default = || default.unwrap_or_else(|| Value::from(0.0));
    Ok(number(&value).map_or_else(|_| default(), Value::from))
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

pub(super) fn to_int(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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

pub(super) fn round(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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
