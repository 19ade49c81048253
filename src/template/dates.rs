//! What templates ask of `datetime.date` and `datetime.datetime`.

use super::text;
use crate::yaml::{Date, DateTime};

const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Days since 1970-01-01 in the Gregorian calendar.
pub(super) fn day_number(date: Date) -> i64 {
    // Years that begin in March put the leap day last, so that months have a fixed pattern.
    let month = i64::from(date.month);
    let year = i64::from(date.year) - i64::from(month <= 2);
    let shifted = (month + 9) % 12;
    let day_of_year = (153 * shifted + 2) / 5 + i64::from(date.day) - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

/// `date.weekday()`: 0 is Monday.
pub(super) fn weekday(date: Date) -> usize {
    usize::try_from((day_number(date) + 3).rem_euclid(7)).unwrap_or_default()
}

/// Seconds since 1970; a naive time counts as UTC.
fn day_of_year(date: Date) -> i64 {
    let first = Date {
        month: 1,
        day: 1,
        ..date
    };
    day_number(date) - day_number(first) + 1
}

/// ISO year and week.
fn iso_week(date: Date) -> (i64, i64) {
    let weekday = i64::try_from(weekday(date)).unwrap_or_default();
    let week = (day_of_year(date) - weekday + 9) / 7;
    let year = i64::from(date.year);
    if week < 1 {
        (year - 1, weeks_of(year - 1))
    } else if week > weeks_of(year) {
        (year + 1, 1)
    } else {
        (year, week)
    }
}

/// Weeks of an ISO year: 53 when it begins or ends with a Thursday.
fn weeks_of(year: i64) -> i64 {
    let last = |year: i64| {
        (year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400)).rem_euclid(7)
    };
    if last(year) == 4 || last(year - 1) == 3 {
        53
    } else {
        52
    }
}

/// `strftime` in the C locale. Nothing for a directive that is not one.
pub(super) fn strftime(time: &DateTime, format: &str) -> Option<String> {
    let date = time.date;
    let month = MONTHS.get(usize::from(date.month).checked_sub(1)?)?;
    let day = DAYS.get(weekday(date))?;
    let hour12 = match time.hour % 12 {
        0 => 12,
        hour => hour,
    };
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        // glibc: `%-d` drops the padding, `%_d` pads with spaces.
        let mut directive = characters.next()?;
        let mut pad = '0';
        if matches!(directive, '-' | '_') {
            pad = directive;
            directive = characters.next()?;
        }
        let number = |value: i64, width: usize, usual: char| match (pad, usual) {
            ('-', _) => format!("{value}"),
            ('_', _) | ('0', ' ') => format!("{value:width$}"),
            _ => format!("{value:0width$}"),
        };
        match directive {
            'Y' => out += &date.year.to_string(),
            'C' => out += &number(i64::from(date.year / 100), 2, '0'),
            'y' => out += &number(i64::from(date.year % 100), 2, '0'),
            'm' => out += &number(date.month.into(), 2, '0'),
            'd' => out += &number(date.day.into(), 2, '0'),
            'e' => out += &number(date.day.into(), 2, ' '),
            'H' => out += &number(time.hour.into(), 2, '0'),
            'k' => out += &number(time.hour.into(), 2, ' '),
            'I' => out += &number(hour12.into(), 2, '0'),
            'l' => out += &number(hour12.into(), 2, ' '),
            'M' => out += &number(time.minute.into(), 2, '0'),
            'S' => out += &number(time.second.into(), 2, '0'),
            'f' => out += &number(time.microsecond.into(), 6, '0'),
            'j' => out += &number(day_of_year(date), 3, '0'),
            'G' => out += &iso_week(date).0.to_string(),
            'V' => out += &number(iso_week(date).1, 2, '0'),
            'U' => {
                let sunday = (i64::try_from(weekday(date)).ok()? + 1) % 7;
                out += &number((day_of_year(date) + 6 - sunday) / 7, 2, '0');
            }
            'W' => {
                let monday = i64::try_from(weekday(date)).ok()?;
                out += &number((day_of_year(date) + 6 - monday) / 7, 2, '0');
            }
            'u' => out += &(weekday(date) + 1).to_string(),
            'w' => out += &((weekday(date) + 1) % 7).to_string(),
            'a' => out += day.get(..3)?,
            'A' => out += day,
            'b' | 'h' => out += month.get(..3)?,
            'B' => out += month,
            'p' => out += if time.hour < 12 { "AM" } else { "PM" },
            'P' => out += if time.hour < 12 { "am" } else { "pm" },
            'z' => {
                if let Some(minutes) = time.offset_minutes {
                    out += &text::offset(minutes, "");
                }
            }
            'Z' => {
                if let Some(minutes) = time.offset_minutes {
                    out += "UTC";
                    if minutes != 0 {
                        out += &text::offset(minutes, ":");
                    }
                }
            }
            'F' => out += &strftime(time, "%Y-%m-%d")?,
            'D' | 'x' => out += &strftime(time, "%m/%d/%y")?,
            'T' | 'X' => out += &strftime(time, "%H:%M:%S")?,
            'R' => out += &strftime(time, "%H:%M")?,
            'r' => out += &strftime(time, "%I:%M:%S %p")?,
            'c' => out += &strftime(time, "%a %b %e %H:%M:%S %Y")?,
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            _ => return None,
        }
    }
    Some(out)
}
