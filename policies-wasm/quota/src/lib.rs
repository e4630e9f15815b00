//! Limits calls per window of time, such as an hour or a day, and key. A key is made of the values
//! of fields and metadata keys that the configuration names; without any there is one count.
//!
//! Windows begin at multiples of their length since 1970 (UTC), the same for all keys. Counts
//! are kept in the shared state.

#![forbid(unsafe_code)]

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate_policy::table::{Key, Record, Table};
use tollgate_policy::{Status, Verdict, json_object, now_ms, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    calls: u32,
    window_s: u32,
    #[serde(default = "default_keys")]
    keys: u32,
    #[serde(default)]
    fields: Vec<String>,
    #[serde(default)]
    metadata: Vec<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    methods: IgnoredAny,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    absent: IgnoredAny,
}

fn default_keys() -> u32 {
    Table::DEFAULT_KEYS
}

/// The quota and its counts. A record is `[calls, number of the window]`.
pub struct Quota {
    calls: u64,
    window_ms: u64,
    counts: Table,
    /// The numbers of fields and metadata keys that make the key.
    fields: u32,
    metadata: u32,
    key: Key,
}

#[policy(
    name = "quota",
    version = "2.0",
    counters(exceeded),
    capabilities(state, clock)
)]
impl Quota {
    fn configure(config: &[u8]) -> Result<Quota, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if !(1..=31_622_400).contains(&config.window_s) {
            let window = config.window_s;
            return Err(format!(
                "window_s is {window}; 1 to 31622400 (a year) are allowed"
            ));
        }
        Ok(Quota {
            calls: config.calls.into(),
            window_ms: u64::from(config.window_s) * 1000,
            counts: Table::new(config.keys)?,
            fields: config.fields.len() as u32,
            metadata: config.metadata.len() as u32,
            key: Key::default(),
        })
    }

    fn lists(&self) -> Lists {
        Lists {
            fields: self.fields,
        }
    }

    #[request("*", reads(config(fields: string, bytes, int, uint, bool, enum)), metadata(*))]
    fn any(&mut self, request: &Any<'_>) -> Verdict<'_> {
        let metadata = (0..self.metadata).map(|key| request.metadata(key).first());
        self.key.set(request.fields_all(), metadata);
        let now = now_ms();
        let window = now / self.window_ms;
        let so_far = |record: &Record| if record[1] == window { record[0] } else { 0 };
        let count = |record: &mut Record| {
            let calls = so_far(record);
            *record = [self.calls.min(calls + 1), window];
            calls < self.calls
        };
        match self.counts.change(self.key.bytes(), so_far, count) {
            Ok(true) => Verdict::Allow,
            Ok(false) => {
                EXCEEDED.add(1);
                let rest_s = (self.window_ms - now % self.window_ms).div_ceil(1000);
                let message = format!(
                    "the quota of {} calls is used up; the next one begins in {rest_s} s",
                    self.calls
                );
                Verdict::deny(Status::RESOURCE_EXHAUSTED, message)
            }
            Err(_) => Verdict::deny(
                Status::RESOURCE_EXHAUSTED,
                "the policy's shared state is full",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Desk, Field, counter, set_now_ms};

    fn ask(desk: &mut Desk<Quota>, name: &str) -> Answer {
        desk.request("a.B/C", &[("user", Field::Text(name))])
    }

    fn desk(quota: &str) -> Desk<Quota> {
        let config = format!(r#"{{"fields": ["user"], {quota}}}"#);
        Desk::new(&config).unwrap().with_list("fields", &["user"])
    }

    #[test]
    fn a_window_has_its_calls_and_the_next_one_too() {
        let mut desk = desk(r#""calls": 2, "window_s": 60"#);
        set_now_ms(30_000);
        assert_eq!(
            [ask(&mut desk, "Ada"), ask(&mut desk, "Ada")],
            [Answer::Allow, Answer::Allow]
        );
        let message = "the quota of 2 calls is used up; the next one begins in 30 s";
        assert_eq!(
            ask(&mut desk, "Ada"),
            Answer::deny(Status::RESOURCE_EXHAUSTED, message)
        );
        assert_eq!(ask(&mut desk, "Bob"), Answer::Allow);
        set_now_ms(59_999);
        assert!(!ask(&mut desk, "Ada").passes());
        set_now_ms(60_000);
        assert!(ask(&mut desk, "Ada").passes());
        assert_eq!(counter(0), 2);
    }

    #[test]
    fn no_calls_at_all_is_a_quota() {
        let mut desk = desk(r#""calls": 0, "window_s": 1"#);
        assert!(!ask(&mut desk, "Ada").passes());
    }
}
