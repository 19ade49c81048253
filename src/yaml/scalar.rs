//! What a scalar is: PyYAML's implicit resolvers and constructors (`resolver.py`,
//! `constructor.py` of `SafeLoader`).
//!
//! Resolution looks at the whole text of a plain scalar; construction turns the text of a type
//! into its value, and can fail (`2024-02-31` is a date by its looks, and none in the calendar).

use std::sync::Arc;

use num_bigint::{BigInt, Sign};

use super::{Date, DateTime, Yaml};

/// Python converts no longer texts to integers, and no larger integers to text.
const MAX_INT_DIGITS: usize = 4300;
/// Bits of the largest integer of 4300 digits.
const MAX_INT_BITS: u64 = 14_285;

/// The type of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScalarType {
    Null,
    Bool,
    Int,
    Float,
    Str,
    Timestamp,
    Binary,
    /// `<<`: a merge when it is a key.
    Merge,
    /// `=`: a string when it is a key, else nothing can be built of it.
    Default,
}

/// Why a text is no value of its type: the end of the sentence "… looks like …, but …".
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotOfType {
    /// The type, with an article.
    pub(super) looks_like: &'static str,
    /// What speaks against it.
    pub(super) but: &'static str,
    /// Whether a limit speaks against it, not the value.
    pub(super) limit: bool,
}

fn not(looks_like: &'static str, but: &'static str) -> NotOfType {
    NotOfType {
        looks_like,
        but,
        limit: false,
    }
}

/// The type of the plain scalar `text`. The order of the tests is PyYAML's: the first resolver
/// that matches wins.
pub(super) fn resolve(text: &str) -> ScalarType {
    let bytes = text.as_bytes();
    let Some(first) = bytes.first() else {
        return ScalarType::Null;
    };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => match text {
            "~" | "null" | "Null" | "NULL" => ScalarType::Null,
            "yes" | "Yes" | "YES" | "no" | "No" | "NO" | "true" | "True" | "TRUE" | "false"
            | "False" | "FALSE" | "on" | "On" | "ON" | "off" | "Off" | "OFF" => ScalarType::Bool,
            _ => ScalarType::Str,
        },
        b'0'..=b'9' | b'+' | b'-' | b'.' => {
            if is_float(bytes) {
                ScalarType::Float
            } else if is_int(bytes) {
                ScalarType::Int
            } else if is_timestamp(text) {
                ScalarType::Timestamp
            } else {
                ScalarType::Str
            }
        }
        b'<' if text == "<<" => ScalarType::Merge,
        b'=' if text == "=" => ScalarType::Default,
        _ => ScalarType::Str,
    }
}

/// The value of `text`, which is of type `kind` by its looks or by its tag.
pub(super) fn construct(kind: ScalarType, text: &str) -> Result<Yaml, NotOfType> {
    Ok(match kind {
        ScalarType::Null => Yaml::Null,
        ScalarType::Bool => match text.to_lowercase().as_str() {
            "yes" | "true" | "on" => Yaml::Bool(true),
            "no" | "false" | "off" => Yaml::Bool(false),
            _ => return Err(not("true or false", "it is no spelling of either")),
        },
        ScalarType::Int => Yaml::Int(int(text)?),
        ScalarType::Float => Yaml::Float(float(text)?),
        ScalarType::Timestamp => timestamp(text)?,
        ScalarType::Binary => Yaml::Binary(base64(text)?),
        ScalarType::Str | ScalarType::Merge | ScalarType::Default => Yaml::Str(Arc::from(text)),
    })
}

fn unsigned(bytes: &[u8]) -> &[u8] {
    match bytes {
        [b'+' | b'-', rest @ ..] => rest,
        _ => bytes,
    }
}

/// Takes the bytes that `fits` off the front.
fn take(bytes: &[u8], fits: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let length = bytes
        .iter()
        .position(|&byte| !fits(byte))
        .unwrap_or(bytes.len());
    bytes.split_at(length)
}

fn digit_or_line(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'_'
}

/// `[-+]?0b[0-1_]+ | [-+]?0[0-7_]+ | [-+]?(?:0|[1-9][0-9_]*) | [-+]?0x[0-9a-fA-F_]+ |
/// [-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+`
fn is_int(bytes: &[u8]) -> bool {
    match unsigned(bytes) {
        [b'0'] => true,
        [b'0', b'b', rest @ ..] => {
            !rest.is_empty() && rest.iter().all(|byte| matches!(byte, b'0' | b'1' | b'_'))
        }
        [b'0', b'x', rest @ ..] => {
            !rest.is_empty()
                && rest
                    .iter()
                    .all(|&byte| byte.is_ascii_hexdigit() || byte == b'_')
        }
        [b'0', rest @ ..] => rest.iter().all(|byte| matches!(byte, b'0'..=b'7' | b'_')),
        [b'1'..=b'9', rest @ ..] => {
            let (_, rest) = take(rest, digit_or_line);
            rest.is_empty() || base_60(rest).is_some_and(<[u8]>::is_empty)
        }
        _ => false,
    }
}

/// `(?::[0-5]?[0-9])+` and what follows it.
fn base_60(mut bytes: &[u8]) -> Option<&[u8]> {
    let mut found = false;
    loop {
        bytes = match bytes {
            [b':', b'0'..=b'5', b'0'..=b'9', rest @ ..] | [b':', b'0'..=b'9', rest @ ..] => rest,
            _ => return found.then_some(bytes),
        };
        found = true;
    }
}

/// `[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)? | \.[0-9][0-9_]*(?:[eE][-+][0-9]+)? |
/// [-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]* | [-+]?\.(?:inf|Inf|INF) | \.(?:nan|NaN|NAN)`
fn is_float(bytes: &[u8]) -> bool {
    if let [b'.', first, rest @ ..] = bytes {
        if first.is_ascii_digit() {
            return is_exponent(take(rest, digit_or_line).1);
        }
        if matches!(bytes, b".nan" | b".NaN" | b".NAN") {
            return true;
        }
    }
    let bytes = unsigned(bytes);
    match bytes {
        b".inf" | b".Inf" | b".INF" => true,
        [b'0'..=b'9', rest @ ..] => match take(rest, digit_or_line).1 {
            [b'.', rest @ ..] => is_exponent(take(rest, digit_or_line).1),
            rest @ [b':', ..] => match base_60(rest) {
                Some([b'.', rest @ ..]) => take(rest, digit_or_line).1.is_empty(),
                _ => false,
            },
            _ => false,
        },
        _ => false,
    }
}

/// Nothing, or `[eE][-+][0-9]+`.
fn is_exponent(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [b'e' | b'E', b'+' | b'-', rest @ ..] => {
            !rest.is_empty() && rest.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

/// The implicit pattern asks for two digits of month and day in a date, and for a full time in
/// anything else.
fn is_timestamp(text: &str) -> bool {
    let Some(parts) = TimestampParts::new(text) else {
        return false;
    };
    parts.time.is_some() || text.len() == 10
}

/// The number in `digits` of base `radix`, which must hold nothing else.
fn natural(digits: &str, radix: u32) -> Option<BigInt> {
    (!digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix)))
        .then(|| BigInt::parse_bytes(digits.as_bytes(), radix))
        .flatten()
}

fn int(text: &str) -> Result<BigInt, NotOfType> {
    let too_long = NotOfType {
        looks_like: "a whole number",
        but: "it has more than 4,300 digits",
        limit: true,
    };
    if text.len() > MAX_INT_DIGITS * 4 {
        return Err(too_long);
    }
    let clean = text.replace('_', "");
    let (negative, digits) = match clean.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, clean.strip_prefix('+').unwrap_or(&clean)),
    };
    let value = if digits == "0" {
        Some(BigInt::ZERO)
    } else if let Some(binary) = digits.strip_prefix("0b") {
        natural(binary, 2)
    } else if let Some(hexadecimal) = digits.strip_prefix("0x") {
        natural(hexadecimal, 16)
    } else if digits.starts_with('0') {
        natural(digits, 8)
    } else if digits.len() > MAX_INT_DIGITS {
        return Err(too_long);
    } else if digits.contains(':') {
        digits.split(':').try_fold(BigInt::ZERO, |value, part| {
            natural(part, 10).map(|part| value * 60_u8 + part)
        })
    } else {
        natural(digits, 10)
    };
    let value = value.ok_or_else(|| not("a whole number", "it has no digits that make one"))?;
    if value.bits() > MAX_INT_BITS {
        return Err(too_long);
    }
    Ok(if negative { -value } else { value })
}

fn float(text: &str) -> Result<f64, NotOfType> {
    let wrong = || not("a number", "it has no digits that make one");
    let clean = text.replace('_', "").to_ascii_lowercase();
    let (sign, digits) = match clean.strip_prefix('-') {
        Some(digits) => (-1.0, digits),
        None => (1.0, clean.strip_prefix('+').unwrap_or(&clean)),
    };
    match digits {
        ".inf" => return Ok(sign * f64::INFINITY),
        ".nan" => return Ok(f64::NAN),
        _ => {}
    }
    if !digits.contains(':') {
        return digits
            .parse::<f64>()
            .map(|value| sign * value)
            .map_err(|_| wrong());
    }
    let mut value = 0.0;
    let mut base = BigInt::from(1);
    for part in digits.rsplit(':') {
        let part: f64 = part.parse().map_err(|_| wrong())?;
        // Python turns the integer into the nearest float, and so does parsing its text.
        let scale: f64 = base.to_string().parse().unwrap_or(f64::INFINITY);
        if scale.is_infinite() {
            return Err(not("a number", "it has too many parts"));
        }
        value += part * scale;
        base *= 60_u8;
    }
    Ok(sign * value)
}

/// A timestamp cut at its separators.
struct TimestampParts<'t> {
    year: u16,
    month: u8,
    day: u8,
    time: Option<TimeParts<'t>>,
}

struct TimeParts<'t> {
    hour: u8,
    minute: u8,
    second: u8,
    fraction: &'t str,
    /// Sign, hours, minutes; `Z` is no offset.
    offset: Option<(i32, u8, u8)>,
}

impl<'t> TimestampParts<'t> {
    /// `YYYY-M?M-D?D`, then `T` or blanks, `h?h:mm:ss`, `.fraction`, blanks, `Z` or `±h?h(:mm)?`.
    fn new(text: &'t str) -> Option<Self> {
        let (year, rest) = number(text, 4, 4)?;
        let (month, rest) = number(rest.strip_prefix('-')?, 1, 2)?;
        let (day, rest) = number(rest.strip_prefix('-')?, 1, 2)?;
        let (month, day) = (u8::try_from(month).ok()?, u8::try_from(day).ok()?);
        let time = if rest.is_empty() {
            None
        } else {
            Some(TimeParts::new(rest)?)
        };
        Some(Self {
            year,
            month,
            day,
            time,
        })
    }
}

impl<'t> TimeParts<'t> {
    fn new(text: &'t str) -> Option<Self> {
        let blank = |letter: char| letter == ' ' || letter == '\t';
        let rest = match text.strip_prefix(['T', 't']) {
            Some(rest) => rest,
            None if text.starts_with(blank) => text.trim_start_matches(blank),
            None => return None,
        };
        let (hour, rest) = number(rest, 1, 2)?;
        let (minute, rest) = number(rest.strip_prefix(':')?, 2, 2)?;
        let (second, rest) = number(rest.strip_prefix(':')?, 2, 2)?;
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let length = rest
                    .find(|letter: char| !letter.is_ascii_digit())
                    .unwrap_or(rest.len());
                rest.split_at(length)
            }
            None => ("", rest),
        };
        let zone = rest.trim_start_matches(blank);
        let offset = match zone.as_bytes() {
            [] if rest.is_empty() => None,
            [b'Z'] => Some((1, 0, 0)),
            [sign @ (b'+' | b'-'), ..] => {
                let (hours, rest) = number(zone.get(1..)?, 1, 2)?;
                let minutes = if rest.is_empty() {
                    0
                } else {
                    let (minutes, rest) = number(rest.strip_prefix(':')?, 2, 2)?;
                    if !rest.is_empty() {
                        return None;
                    }
                    minutes
                };
                let sign = if *sign == b'-' { -1 } else { 1 };
                Some((sign, u8::try_from(hours).ok()?, u8::try_from(minutes).ok()?))
            }
            _ => return None,
        };
        Some(Self {
            hour: u8::try_from(hour).ok()?,
            minute: u8::try_from(minute).ok()?,
            second: u8::try_from(second).ok()?,
            fraction,
            offset,
        })
    }
}

/// A number of `least` to `most` (at most four) digits at the front of `text`, as many as there are.
fn number(text: &str, least: usize, most: usize) -> Option<(u16, &str)> {
    let length = text
        .bytes()
        .take(most)
        .take_while(u8::is_ascii_digit)
        .count();
    if length < least {
        return None;
    }
    let (digits, rest) = text.split_at_checked(length)?;
    Some((digits.parse().ok()?, rest))
}

fn timestamp(text: &str) -> Result<Yaml, NotOfType> {
    let wrong = |but| not("a date or time", but);
    let parts = TimestampParts::new(text).ok_or_else(|| wrong("it is not written as one"))?;
    let date = Date {
        year: parts.year,
        month: parts.month,
        day: parts.day,
    };
    if date.year == 0
        || !(1..=12).contains(&date.month)
        || !(1..=days_in_month(date.year, date.month)).contains(&date.day)
    {
        return Err(wrong("the calendar has no such day"));
    }
    let Some(time) = parts.time else {
        return Ok(Yaml::Date(date));
    };
    if time.hour > 23 || time.minute > 59 || time.second > 59 {
        return Err(wrong("the clock has no such time"));
    }
    let offset_minutes = match time.offset {
        None => None,
        Some((sign, hours, minutes)) => {
            let offset = i32::from(hours) * 60 + i32::from(minutes);
            if offset >= 24 * 60 {
                return Err(wrong("its offset is a day or more"));
            }
            Some(sign * offset)
        }
    };
    let mut microsecond = 0;
    for place in 0..6 {
        let digit = time
            .fraction
            .as_bytes()
            .get(place)
            .map_or(0, |byte| byte - b'0');
        microsecond = microsecond * 10 + u32::from(digit);
    }
    Ok(Yaml::DateTime(DateTime {
        date,
        hour: time.hour,
        minute: time.minute,
        second: time.second,
        microsecond,
        offset_minutes,
    }))
}

fn days_in_month(year: u16, month: u8) -> u8 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => {
            29
        }
        2 => 28,
        _ => 31,
    }
}

/// Python's `base64.decodebytes`: skips what is not of the alphabet, stops at full padding.
fn base64(text: &str) -> Result<Arc<[u8]>, NotOfType> {
    let wrong = |but| not("base64", but);
    if !text.is_ascii() {
        return Err(wrong("it has letters outside of ASCII"));
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut filled, mut padding) = (0_u32, 0_u8, 0_u8);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                if filled >= 2 {
                    padding = padding.saturating_add(1);
                    if filled.saturating_add(padding) >= 4 {
                        filled = 0;
                        break;
                    }
                }
                continue;
            }
            _ => continue,
        };
        padding = 0;
        bits = (bits << 6 | u32::from(value)) & 0xFFF;
        filled = (filled + 1) % 4;
        let whole = match filled {
            2 => bits >> 4,
            3 => bits >> 2,
            0 => bits,
            _ => continue,
        };
        bytes.push((whole & 0xFF) as u8);
    }
    if filled != 0 {
        return Err(wrong("its padding is wrong"));
    }
    Ok(bytes.into())
}

/// A key as Python's `dict` compares it: `1`, `1.0` and `True` are one, so is every NaN (PyYAML has
/// a single one).
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyIdentity {
    Null,
    Int(BigInt),
    /// Bits of a float that is no integer.
    Float(u64),
    Str(Arc<str>),
    Date(u16, u8, u8),
    /// Microseconds since the year 0, and whether they are of UTC.
    Instant(i64, bool),
    Binary(Arc<[u8]>),
}

impl KeyIdentity {
    /// `None` for what Python can not use as a key.
    pub(super) fn new(key: &Yaml) -> Option<Self> {
        Some(match key {
            Yaml::Null => Self::Null,
            Yaml::Bool(value) => Self::Int(BigInt::from(u8::from(*value))),
            Yaml::Int(value) => Self::Int(value.clone()),
            Yaml::Float(value) => match integral(*value) {
                Some(whole) => Self::Int(whole),
                None if value.is_nan() => Self::Float(f64::NAN.to_bits()),
                None => Self::Float(value.to_bits()),
            },
            Yaml::Str(text) => Self::Str(Arc::clone(text)),
            Yaml::Date(date) => Self::Date(date.year, date.month, date.day),
            Yaml::DateTime(time) => {
                let days = days_before(time.date);
                let minutes = (days * 24 + i64::from(time.hour)) * 60 + i64::from(time.minute)
                    - i64::from(time.offset_minutes.unwrap_or(0));
                let micros = (minutes * 60 + i64::from(time.second)) * 1_000_000
                    + i64::from(time.microsecond);
                Self::Instant(micros, time.offset_minutes.is_some())
            }
            Yaml::Binary(bytes) => Self::Binary(Arc::clone(bytes)),
            Yaml::Seq(_) | Yaml::Map(_) | Yaml::Set(_) | Yaml::Pairs(_) => return None,
        })
    }
}

/// The integer that `value` is, if it is one.
fn integral(value: f64) -> Option<BigInt> {
    if !value.is_finite() || value.fract() != 0.0 {
        return None;
    }
    let bits = value.to_bits();
    let exponent = (bits >> 52) & 0x7FF;
    let fraction = bits & ((1 << 52) - 1);
    // A float with a value but no fraction is normal: mantissa times a power of two.
    let mantissa = if exponent == 0 {
        fraction
    } else {
        fraction | 1 << 52
    };
    let magnitude = BigInt::from(mantissa);
    let magnitude = if exponent >= 1075 {
        magnitude << (exponent - 1075)
    } else {
        magnitude >> (1075 - exponent)
    };
    Some(if value.is_sign_negative() {
        BigInt::from_biguint(Sign::Minus, magnitude.magnitude().clone())
    } else {
        magnitude
    })
}

/// Days from a fixed day to `date`, in the Gregorian calendar without end.
fn days_before(date: Date) -> i64 {
    let year = i64::from(date.year) - 1;
    let months: i64 = (1..date.month)
        .map(|month| i64::from(days_in_month(date.year, month)))
        .sum();
    year * 365 + year / 4 - year / 100 + year / 400 + months + i64::from(date.day)
}
