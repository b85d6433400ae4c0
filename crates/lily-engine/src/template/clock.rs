//! The date for templates that print it: Python's `strftime`, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// Seconds since 1970-01-01, UTC.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Year, month (1 to 12), day of the month and day of the year (both from 1) of a day counted from 1970-01-01.
fn date(mut day: u64) -> (u64, usize, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = day + 1;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month + 1, day + 1, day_of_year)
}

/// The directives that templates use; `-` after the percent sign drops padding.
pub fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (year, month, day, day_of_year) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let weekday = DAYS[((seconds / 86_400 + 4) % 7) as usize];
    let month_name = MONTHS[month - 1];
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let number = |value: u64, width: usize| format!("{value:0width$}", width = if padded { width } else { 1 });
        out += &match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month as u64, 2),
            Some('d') => number(day, 2),
            Some('e') => format!("{day:>width$}", width = if padded { 2 } else { 1 }),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(day_of_year, 3),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let detail = format!("strftime_now does not know %{}", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        };
    }
    Ok(out)
}
