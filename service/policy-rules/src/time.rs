//! Constant times: timestamps, durations and offsets, as CEL writes them, in microseconds.

use crate::error::shown;

/// The first microsecond of the year 1, and the last one of 9999.
pub(crate) const TIMESTAMPS: (i64, i64) = (-62_135_596_800_000_000, 253_402_300_799_999_999);
/// The longest duration: 64 bits of nanoseconds, 292 years.
pub(crate) const LONGEST: i64 = i64::MAX / 1000;

const SECOND: i64 = 1_000_000;
const DAY_S: i64 = 86_400;

/// Microseconds since 1970 of a time of RFC 3339.
pub(crate) fn timestamp(text: &str) -> Result<i64, String> {
    let wrong = || {
        format!(
            "{} is no time such as \"2026-12-24T18:00:00Z\", with microseconds at the finest",
            shown(text)
        )
    };
    let parts = split(text).ok_or_else(wrong)?;
    let Parts {
        numbers: [year, month, day, hour, minute, second],
        fraction_us,
        offset_us,
    } = parts;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return Err(wrong()),
    };
    if !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 59 || year < 1 {
        return Err(wrong());
    }
    let seconds = days_before(year, month, day) * DAY_S + hour * 3600 + minute * 60 + second;
    let time = seconds * SECOND + fraction_us - offset_us;
    match (TIMESTAMPS.0..=TIMESTAMPS.1).contains(&time) {
        true => Ok(time),
        false => Err(wrong()),
    }
}

struct Parts {
    numbers: [i64; 6],
    fraction_us: i64,
    offset_us: i64,
}

fn split(text: &str) -> Option<Parts> {
    let (time, rest) = text.split_at_checked(19)?;
    let is_separated = time.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        10 => byte == b'T' || byte == b't',
        13 | 16 => byte == b':',
        _ => byte.is_ascii_digit(),
    });
    if !is_separated {
        return None;
    }
    let number = |from: usize, to: usize| time[from..to].parse::<i64>().ok();
    let numbers = [
        number(0, 4)?,
        number(5, 7)?,
        number(8, 10)?,
        number(11, 13)?,
        number(14, 16)?,
        number(17, 19)?,
    ];
    let (fraction_us, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            (fraction(&rest[..end])?, &rest[end..])
        }
        None => (0, rest),
    };
    let offset_us = match zone {
        "Z" | "z" => 0,
        _ => offset(zone).ok().filter(|_| zone.starts_with(['+', '-']))?,
    };
    Some(Parts {
        numbers,
        fraction_us,
        offset_us,
    })
}

/// The microseconds of a decimal fraction; finer ones aren't there.
fn fraction(digits: &str) -> Option<i64> {
    if digits.is_empty() || digits.len() > 6 {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    Some(number * 10_i64.pow(6 - digits.len() as u32))
}

/// Days between 1970 and a date, by the calendar of all centuries.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    // The year begins with March, so that its last day is the leap day.
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The microseconds of a duration such as `1h30m` or `-1.5s`.
pub(crate) fn duration(text: &str) -> Result<i64, String> {
    let wrong = || {
        format!(
            "{} is no duration such as \"1h30m\" or \"1.5s\", in microseconds or longer",
            shown(text)
        )
    };
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    let mut sum: i64 = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = rest.split_at(end.ok_or_else(wrong)?);
        let units = [
            ("ms", 1_000),
            ("us", 1),
            ("h", 3600 * SECOND),
            ("m", 60 * SECOND),
            ("s", SECOND),
        ];
        let (name, us) = units
            .into_iter()
            .find(|(name, _)| unit.starts_with(name))
            .ok_or_else(wrong)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let whole: i64 = whole.parse().map_err(|_| wrong())?;
        let part = fraction(part).ok_or_else(wrong)?;
        if part * us % SECOND != 0 {
            return Err(wrong());
        }
        let value = whole
            .checked_mul(us)
            .and_then(|value| value.checked_add(part * us / SECOND));
        sum = value
            .and_then(|value| sum.checked_add(value))
            .ok_or_else(wrong)?;
        rest = &unit[name.len()..];
    }
    match sum {
        0..=LONGEST if is_negative => Ok(-sum),
        0..=LONGEST => Ok(sum),
        _ => Err(format!("{} is longer than 292 years", shown(text))),
    }
}

/// The microseconds by which a zone is ahead of UTC.
pub(crate) fn offset(text: &str) -> Result<i64, String> {
    let wrong = || {
        let zone = shown(text);
        format!(
            "{zone} is no time zone of rules; write UTC or an offset such as +02:00: the rules of named zones change, and compiled rules don't"
        )
    };
    if text == "UTC" || text == "Z" {
        return Ok(0);
    }
    let (sign, rest) = match text.split_at_checked(1) {
        Some(("-", rest)) => (-1, rest),
        Some(("+", rest)) => (1, rest),
        _ => (1, text),
    };
    let (hours, minutes) = rest.split_once(':').ok_or_else(wrong)?;
    let number = |digits: &str, most: i64| {
        let is_number = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits
            .parse()
            .ok()
            .filter(|number| is_number && *number <= most)
    };
    let hours: i64 = number(hours, 23).ok_or_else(wrong)?;
    let minutes: i64 = number(minutes, 59).ok_or_else(wrong)?;
    Ok(sign * (hours * 3600 + minutes * 60) * SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_rfc_3339_are_microseconds() {
        let check = |text: &str, expected| assert_eq!(timestamp(text).ok(), expected, "{text}");
        check("1970-01-01T00:00:00Z", Some(0));
        check("2009-02-13T23:31:30Z", Some(1_234_567_890_000_000));
        check("2009-02-14T01:31:30.25+02:00", Some(1_234_567_890_250_000));
        check("1969-12-31T23:59:59Z", Some(-SECOND));
        check("0001-01-01T00:00:00Z", Some(-62_135_596_800 * SECOND));
        check(
            "9999-12-31T23:59:59.999999Z",
            Some(253_402_300_799 * SECOND + 999_999),
        );
        check("2024-02-29T00:00:00Z", Some(1_709_164_800 * SECOND));
        for wrong in [
            "",
            "2026",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.1234567Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01 00:00:00Z",
            "0000-01-01T00:00:00Z",
            "2026-01-01T00:00:00UTC",
            "2026-01-01T00:00:0üZ",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn durations_have_units() {
        let check = |text: &str, expected| assert_eq!(duration(text).ok(), expected, "{text}");
        check("0", Some(0));
        check("1h30m", Some(5_400 * SECOND));
        check("1.5s", Some(1_500_000));
        check("-2ms", Some(-2_000));
        check("7us", Some(7));
        for wrong in [
            "",
            "1",
            "s",
            "1x",
            "1.5us",
            "1ns",
            "99999999999999h",
            "1..5s",
            "-",
            "1s2",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn offsets_have_hours_and_minutes() {
        let check = |text: &str, expected| assert_eq!(offset(text).ok(), expected, "{text}");
        check("UTC", Some(0));
        check("+02:00", Some(7_200 * SECOND));
        check("-00:30", Some(-1_800 * SECOND));
        check("02:00", Some(7_200 * SECOND));
        for wrong in ["", "Europe/Berlin", "+2", "+24:00", "+02:60", "+0a:00", "+"] {
            check(wrong, None);
        }
    }
}
