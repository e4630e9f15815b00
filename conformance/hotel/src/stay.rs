//! Nights: from the day of arrival to that of departure.

use chrono::NaiveDate;

use crate::failure::Failure;

/// The longest stay: bounds the work and the cache's keys of one request.
pub const MAX_NIGHTS: i64 = 31;

/// At least one night, at most [`MAX_NIGHTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Of arrival.
    pub first: NaiveDate,
    /// Of departure.
    pub last: NaiveDate,
}

impl Stay {
    /// From the parameters `inDate` and `outDate`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming the parameter.
    pub fn parse(in_date: &str, out_date: &str) -> Result<Stay, Failure> {
        let of = |name: &str, text: &str| {
            let sentence = || format!("{name} is {text:?}; it has to be a day such as 2015-04-09");
            day(text).ok_or_else(|| Failure::invalid(sentence()))
        };
        let (first, last) = (of("inDate", in_date)?, of("outDate", out_date)?);
        if last <= first {
            let sentence = format!("outDate is {last}; it has to be after inDate, {first}");
            return Err(Failure::invalid(sentence));
        }
        if (last - first).num_days() > MAX_NIGHTS {
            let sentence = format!("outDate is {last}: more than {MAX_NIGHTS} nights");
            return Err(Failure::invalid(sentence));
        }
        Ok(Stay { first, last })
    }

    /// The nights, each by the day on which it begins.
    pub fn nights(self) -> impl Iterator<Item = NaiveDate> {
        self.first
            .iter_days()
            .take_while(move |day| *day < self.last)
    }
}

/// `YYYY-MM-DD`, a day that exists.
fn day(text: &str) -> Option<NaiveDate> {
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok();
    // It also reads days that are written shorter, or longer.
    day.filter(|day| text.len() == 10 && day.to_string() == text)
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
    fn what_is_no_stay_is_refused_by_name() {
        for (in_date, out_date, culprit) in [
            ("2015-4-9", "2015-04-10", "inDate"),
            ("2015-02-29", "2015-04-10", "inDate"),
            ("2015-04-09", "2015-13-01", "outDate"),
            (" 2015-04-09", "2015-04-10", "inDate"),
            ("+2015-04-09", "2015-04-10", "inDate"),
            ("20150-04-09", "20150-04-10", "inDate"),
            ("+20150-04-09", "+20150-04-10", "inDate"),
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
