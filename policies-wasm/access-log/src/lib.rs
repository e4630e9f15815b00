//! Logs some calls with the fields that the configuration names, and counts all of them.
//!
//! The daemon keeps 64 lines between two collections, so a busy service is sampled: `percent` of
//! all calls are logged, evenly spread.

#![forbid(unsafe_code)]

use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate_policy::{Level, Value, Verdict, json_object, log, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    percent: f64,
    #[serde(default)]
    fields: Vec<String>,
    #[serde(default)]
    reply_fields: Vec<String>,
    #[serde(default)]
    measure: Vec<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    methods: IgnoredAny,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    absent: IgnoredAny,
}

/// How many calls of a million are logged, and with which fields.
pub struct AccessLog {
    per_million: u64,
    fields: Vec<String>,
    reply_fields: Vec<String>,
    measure: u32,
    /// The accumulated fraction of a line, in millionths.
    due: u64,
}

#[policy(
    name = "access-log",
    version = "2.0",
    counters(requests, replies, logged),
    histograms(measured)
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
        if config.measure.len() > 1 {
            let count = config.measure.len();
            return Err(format!(
                "measure lists {count} fields; at most 1 is allowed"
            ));
        }
        Ok(AccessLog {
            per_million: (config.percent * 10_000.0).round() as u64,
            fields: config.fields,
            reply_fields: config.reply_fields,
            measure: config.measure.len() as u32,
            due: 0,
        })
    }

    fn lists(&self) -> Lists {
        Lists {
            fields: self.fields.len() as u32,
            measure: self.measure,
            reply_fields: self.reply_fields.len() as u32,
        }
    }

    #[request("*", reads(config(fields), config(measure: int, uint)))]
    fn request(&mut self, request: &Request<'_>) -> Verdict<'_> {
        REQUESTS.add(1);
        // A field that the operator withholds is left out: logging never refuses a call.
        match request.measure_all().next().flatten() {
            Some(Value::Int(number)) => MEASURED.record(number),
            Some(Value::Uint(number)) => MEASURED.record(number.try_into().unwrap_or(i64::MAX)),
            _ => {}
        }
        if self.is_due() {
            log_line("request", &self.fields, request.fields_all());
        }
        Verdict::Allow
    }

    #[reply("*", reads(*))]
    fn reply(&mut self, reply: &Reply<'_>) -> Verdict<'_> {
        REPLIES.add(1);
        if self.is_due() {
            log_line("reply", &self.reply_fields, reply.reply_fields_all());
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

/// `request customer_name="Ada" room_count=2 coupon=-`
fn log_line<'a>(what: &str, paths: &[String], values: impl Iterator<Item = Option<Value<'a>>>) {
    let mut line = what.to_owned();
    for (path, value) in paths.iter().zip(values) {
        let _infallible = match value {
            None => write!(line, " {path}=-"),
            Some(value @ (Value::Text(_) | Value::Bytes(_))) => write!(line, " {path}=\"{value}\""),
            Some(value) => write!(line, " {path}={value}"),
        };
    }
    log(Level::Info, &line);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Desk, Field, counter, histogram, log};

    const METHOD: &str = "a.B/C";
    const PATHS: [&str; 3] = ["customer_name", "stay.in_date", "room_count"];
    const CALL: [(&str, Field<'_>); 2] = [
        ("customer_name", Field::Text("Ada \"x\"\n")),
        ("room_count", Field::Uint(2)),
    ];

    fn desk(percent: u32) -> Desk<AccessLog> {
        let config = format!(
            r#"{{"percent": {percent}, "fields": ["customer_name", "stay.in_date", "room_count"],
                "reply_fields": ["id"], "measure": ["floor"]}}"#
        );
        let desk = Desk::new(&config).unwrap().with_list("fields", &PATHS);
        let desk = desk.with_list("reply_fields", &["id"]);
        desk.with_list("measure", &["floor"])
    }

    #[test]
    fn a_line_says_what_was_asked_and_answered() {
        let mut desk = desk(100);
        let call = [CALL[0], CALL[1], ("floor", Field::Int(-3))];
        assert_eq!(desk.request(METHOD, &call), Answer::Allow);
        desk.reply(METHOD, &[("id", Field::Bytes(b"\x01\xff"))]);
        let lines: Vec<String> = log().into_iter().map(|(_, line)| line).collect();
        assert_eq!(
            lines,
            [
                "request customer_name=\"Ada \\\"x\\\"\\n\" stay.in_date=- room_count=2",
                "reply id=\"\\x01\\xff\""
            ]
        );
        assert_eq!(histogram(0), [-3]);
    }

    #[test]
    fn samples_are_spread_evenly() {
        let mut desk = desk(25);
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
