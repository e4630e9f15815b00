//! Values on the command line, for several commands: numbers, times, the name of a method, a side.

use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

/// A whole number.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    let wrong = |_| format!("it must be a whole number, {} at most", u32::MAX);
    text.parse().map_err(wrong)
}

/// The longest valid time on the command line.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A description of a valid time.
const TIME: &str =
    "a time is a whole number and its unit, such as 500ms, 5s or 1m; at most one day";

/// A time with its unit: `ms`, `s` or `m`, whole numbers, longer than zero, up to a day.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(TIME.to_owned()),
    };
    let number = text
        .trim_end_matches(unit)
        .parse::<u64>()
        .map_err(|_| TIME.to_owned())?;
    let time = Duration::from_millis(number.saturating_mul(unit_ms));
    if time.is_zero() || time > DAY {
        return Err("a time is longer than zero and at most one day".to_owned());
    }
    Ok(time)
}

/// The life of a credential, or a grace: like [`duration`], also in hours and days.
pub(crate) fn long_duration(text: &str) -> Result<Duration, String> {
    const LONG: &str = "a time is a whole number and a unit: 30s, 60m, 12h or 30d";
    let split = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(split.ok_or(LONG)?);
    let unit_s = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "ms" => return duration(text),
        _ => return Err(LONG.to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| LONG.to_owned())?;
    // The daemon knows the range.
    Ok(Duration::from_secs(
        number.saturating_mul(unit_s).min(u64::from(u32::MAX)),
    ))
}

/// A time as [`long_duration`] reads it.
pub(crate) fn written_duration(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}ms", time.as_millis()),
    }
}

/// One of the two hosts of a call.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Side {
    /// On the caller's host
    Client,
    /// On the server's host
    Server,
}

/// A method's full name, `package.Service/Method`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MethodName {
    pub(crate) service: String,
    pub(crate) method: String,
}

impl FromStr for MethodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim_start_matches('/').split_once('/') {
            Some((service, method))
                if !service.is_empty() && !method.is_empty() && !method.contains('/') =>
            {
                Ok(MethodName {
                    service: service.to_owned(),
                    method: method.to_owned(),
                })
            }
            _ => Err("a method is written package.Service/Method".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_times_have_further_units() {
        let check = |text, expected: Option<u64>| {
            assert_eq!(
                long_duration(text).ok(),
                expected.map(Duration::from_secs),
                "{text}"
            );
        };
        check("30s", Some(30));
        check("60m", Some(3_600));
        check("12h", Some(43_200));
        check("30d", Some(2_592_000));
        check("3000ms", Some(3));
        check("99999999999d", Some(u64::from(u32::MAX)));
        for wrong in [
            "",
            "5",
            "d",
            "5w",
            "-5s",
            "5 s",
            "1.5d",
            "99999999999999999999d",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn times_have_a_unit_and_a_bound() {
        let check = |text, expected: Option<u64>| {
            assert_eq!(
                duration(text).ok(),
                expected.map(Duration::from_millis),
                "{text}"
            );
        };
        check("500ms", Some(500));
        check("5s", Some(5_000));
        check("1m", Some(60_000));
        check("1440m", Some(86_400_000));
        for wrong in [
            "",
            "5",
            "s",
            "5h",
            "-5s",
            "0s",
            "1441m",
            "99999999999999999999ms",
            "5 s",
            "1.5s",
        ] {
            check(wrong, None);
        }
    }
}
