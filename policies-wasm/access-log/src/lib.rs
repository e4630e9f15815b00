//! Logs some reservations, and counts all of them.
//!
//! The daemon keeps 64 lines between two collections, so a busy service is sampled: `percent` of
//! all calls are logged, evenly spread.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{Level, Verdict, json_object, log, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    percent: f64,
    #[serde(default)]
    names: bool,
}

/// How many calls of a million are logged, and with which fields.
pub struct AccessLog {
    per_million: u64,
    names: bool,
    /// The accumulated fraction of a line, in millionths.
    due: u64,
}

#[policy(
    name = "access-log",
    version = "1.0",
    proto = "../../conformance/proto/hotel.proto",
    counters(requests, replies, logged),
    histograms(rooms)
)]
impl AccessLog {
    fn configure(config: &[u8]) -> Result<AccessLog, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if !(0.0..=100.0).contains(&config.percent) {
            return Err(format!(
                "percent is {}; 0 to 100 are allowed",
                config.percent
            ));
        }
        Ok(AccessLog {
            per_million: (config.percent * 10_000.0).round() as u64,
            names: config.names,
            due: 0,
        })
    }

    #[request("hotel.Reservation/Reserve", reads(customer_name, stay.in_date, stay.out_date, room_count))]
    fn reserve(&mut self, request: &Reserve<'_>) -> Verdict<'_> {
        REQUESTS.add(1);
        // A field that the operator withholds is left out: logging never refuses a call.
        if let Some(rooms) = request.room_count_if_granted() {
            ROOMS.record(rooms.into());
        }
        if self.is_due() {
            let name = request.customer_name_if_granted().filter(|_| self.names);
            log(
                Level::Info,
                &format!(
                    "Reserve customer={} in={} out={} rooms={}",
                    name.unwrap_or("-"),
                    request.stay_in_date().unwrap_or("-"),
                    request.stay_out_date().unwrap_or("-"),
                    request
                        .room_count_if_granted()
                        .map_or("-".to_owned(), |rooms| rooms.to_string()),
                ),
            );
        }
        Verdict::Allow
    }

    #[reply("hotel.Reservation/Reserve", reads(reservation_id))]
    fn reserved(&mut self, reply: &Reserved<'_>) -> Verdict<'_> {
        REPLIES.add(1);
        if self.is_due() {
            let id = reply.reservation_id_if_granted();
            log(
                Level::Info,
                &format!(
                    "Reserve reservation={}",
                    id.map_or("-".to_owned(), |id| id.to_string())
                ),
            );
        }
        Verdict::Allow
    }

    fn is_due(&mut self) -> bool {
        self.due += self.per_million;
        let due = self.due >= 1_000_000;
        if due {
            self.due -= 1_000_000;
            LOGGED.add(1);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Desk, Field, counter, histogram, log};

    const METHOD: &str = "hotel.Reservation/Reserve";
    const CALL: [(&str, Field<'_>); 3] = [
        ("customer_name", Field::Text("Ada")),
        ("stay.in_date", Field::Text("2026-05-01")),
        ("room_count", Field::Uint(2)),
    ];

    #[test]
    fn a_line_says_what_was_asked_and_answered() {
        let mut desk = Desk::<AccessLog>::new(r#"{"percent": 100, "names": true}"#).unwrap();
        assert_eq!(desk.request(METHOD, &CALL), Answer::Allow);
        desk.reply(METHOD, &[("reservation_id", Field::Uint(17))]);
        let lines: Vec<String> = log().into_iter().map(|(_, line)| line).collect();
        assert_eq!(
            lines,
            [
                "Reserve customer=Ada in=2026-05-01 out=- rooms=2",
                "Reserve reservation=17"
            ]
        );
        assert_eq!(histogram(0), [2]);
    }

    #[test]
    fn names_are_left_out_unless_they_are_wanted_and_granted() {
        let mut desk = Desk::<AccessLog>::new(r#"{"percent": 100}"#).unwrap();
        desk.request(METHOD, &CALL);
        let mut withheld = Desk::<AccessLog>::beside(r#"{"percent": 100, "names": true}"#).unwrap();
        withheld.request(
            METHOD,
            &[
                ("customer_name", Field::Absent),
                ("room_count", Field::Absent),
            ],
        );
        let lines: Vec<String> = log().into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines[0], "Reserve customer=- in=2026-05-01 out=- rooms=2");
        assert_eq!(lines[1], "Reserve customer=- in=- out=- rooms=-");
    }

    #[test]
    fn samples_are_spread_evenly() {
        let mut desk = Desk::<AccessLog>::new(r#"{"percent": 25}"#).unwrap();
        let lines: Vec<usize> = (0..12)
            .map(|_| {
                desk.request(METHOD, &CALL);
                log().len()
            })
            .collect();
        assert_eq!(lines, [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!((counter(0), counter(2)), (12, 3));
    }
}
