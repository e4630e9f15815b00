//! Nights: from the day of arrival to that of departure.

use std::fmt;

use crate::failure::Failure;

/// The longest stay: bounds the work and the cache's keys of one request.
pub const MAX_NIGHTS: i32 = 31;

/// A day of the Gregorian calendar, counted from 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(i32);

/// At least one night, at most [`MAX_NIGHTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Of arrival.
    pub first: Day,
    /// Of departure.
    pub last: Day,
}

impl Stay {
    /// From the parameters `inDate` and `outDate`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming the parameter.
    pub fn parse(in_date: &str, out_date: &str) -> Result<Stay, Failure> {
        let day = |name: &str, text: &str| {
            let sentence = || format!("{name} is {text:?}; it has to be a day such as 2015-04-09");
            Day::parse(text).ok_or_else(|| Failure::invalid(sentence()))
        };
        let (first, last) = (day("inDate", in_date)?, day("outDate", out_date)?);
        if last <= first {
            let sentence = format!("outDate is {last}; it has to be after inDate, {first}");
            return Err(Failure::invalid(sentence));
        }
        if last.0 - first.0 > MAX_NIGHTS {
            let sentence = format!("outDate is {last}: more than {MAX_NIGHTS} nights");
            return Err(Failure::invalid(sentence));
        }
        Ok(Stay { first, last })
    }

    /// The nights, each by the day on which it begins.
    pub fn nights(self) -> impl Iterator<Item = Day> {
        (self.first.0..self.last.0).map(Day)
    }
}

impl Day {
    /// The next one.
    pub fn next(self) -> Day {
        Day(self.0 + 1)
    }

    /// `YYYY-MM-DD`, a day that exists.
    fn parse(text: &str) -> Option<Day> {
        let bytes = text.as_bytes();
        if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
            return None;
        }
        let number = |from: usize, to: usize| {
            let digits = &bytes[from..to];
            let value = |sum: i32, digit: &u8| sum * 10 + i32::from(digit - b'0');
            let all = digits.iter().all(u8::is_ascii_digit);
            all.then(|| digits.iter().fold(0, value))
        };
        let day = Day::of(number(0, 4)?, number(5, 7)?, number(8, 10)?);
        // A day that doesn't exist, such as the 31st of April, is written otherwise.
        (day.to_string() == text).then_some(day)
    }

    /// Counts in years that begin in March, so that the leap day is a year's last.
    fn of(year: i32, month: i32, day: i32) -> Day {
        let year = if month <= 2 { year - 1 } else { year };
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        Day(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
    }

    /// Year, month, day.
    fn parts(self) -> (i32, i32, i32) {
        let count = self.0 + 719_468;
        let (era, of_era) = (count.div_euclid(146_097), count.rem_euclid(146_097));
        let years = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * years + years / 4 - years / 100);
        let shifted = (5 * of_year + 2) / 153;
        let month = (shifted + 2) % 12 + 1;
        let year = era * 400 + years + i32::from(month <= 2);
        (year, month, of_year - (153 * shifted + 2) / 5 + 1)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.parts();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nights_cross_months_and_leap_days() {
        let check = |in_date, out_date, expected: &[&str]| {
            let stay = Stay::parse(in_date, out_date).unwrap();
            let nights: Vec<_> = stay.nights().map(|night| night.to_string()).collect();
            assert_eq!(nights, expected);
        };
        check("2015-04-09", "2015-04-10", &["2015-04-09"]);
        check("2015-04-30", "2015-05-02", &["2015-04-30", "2015-05-01"]);
        check("2016-02-28", "2016-03-01", &["2016-02-28", "2016-02-29"]);
        check("1999-12-31", "2000-01-01", &["1999-12-31"]);
    }

    #[test]
    fn every_day_of_eight_centuries_is_read_as_it_is_written() {
        for day in (-146_097..146_097).map(Day) {
            assert_eq!(Day::parse(&day.to_string()), Some(day));
        }
        assert_eq!(Day(16_534).to_string(), "2015-04-09");
    }

    #[test]
    fn what_is_no_stay_is_refused_by_name() {
        for (in_date, out_date, culprit) in [
            ("2015-4-9", "2015-04-10", "inDate"),
            ("2015-02-29", "2015-04-10", "inDate"),
            ("2015-04-09", "2015-13-01", "outDate"),
            ("2015-04-09", "2015-04-0x", "outDate"),
            ("2015-04-09", "", "outDate"),
            ("2015-04-09", "2015-04-09", "outDate"),
            ("2015-04-09", "2015-05-11", "outDate"),
        ] {
            let message = Stay::parse(in_date, out_date).unwrap_err().message;
            assert!(message.starts_with(culprit), "{message}");
        }
    }
}
