//! Shapes traffic: calls that exceed a rate wait their turn, in order, up to a bound, instead of
//! being denied at once. Each key has a token bucket, as with `rate-limit`.
//!
//! Tokens are given out in the order of the calls, ahead of time: a call that gets the token of a
//! later time waits until then. No call overtakes another one of its key.

#![forbid(unsafe_code)]

use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate_policy::bucket::Buckets;
use tollgate_policy::table::{Key, Table};
use tollgate_policy::{Status, Verdict, json_object, monotonic_us, policy};

/// The longest wait in milliseconds: the longest delay that a policy can ask for.
const WAIT_MS: u32 = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    per_second: f64,
    #[serde(default = "default_burst")]
    burst: u32,
    wait_ms: u32,
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

fn default_burst() -> u32 {
    1
}

fn default_keys() -> u32 {
    Table::DEFAULT_KEYS
}

/// The rate: a bucket per key.
pub struct TrafficShaping {
    buckets: Buckets,
    wait_ms: u32,
    /// The numbers of fields and metadata keys that make the key.
    fields: u32,
    metadata: u32,
    key: Key,
}

#[policy(
    name = "traffic-shaping",
    version = "1.0",
    counters(delayed, limited),
    histograms(wait_us),
    capabilities(state, clock, delay)
)]
impl TrafficShaping {
    fn configure(config: &[u8]) -> Result<TrafficShaping, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if !(1..=WAIT_MS).contains(&config.wait_ms) {
            let wait = config.wait_ms;
            return Err(format!("wait_ms is {wait}; 1 to {WAIT_MS} are allowed"));
        }
        Ok(TrafficShaping {
            buckets: Buckets::new(config.per_second, config.burst, config.keys)?,
            wait_ms: config.wait_ms,
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
        let longest_us = self.wait_ms * 1000;
        let reserved = self
            .buckets
            .reserve(self.key.bytes(), monotonic_us(), longest_us);
        match reserved {
            Ok(Some(0)) => Verdict::Allow,
            Ok(Some(wait_us)) => {
                DELAYED.add(1);
                WAIT_US.record(wait_us.into());
                Verdict::Allow.with_delay(Duration::from_micros(wait_us.into()))
            }
            Ok(None) => {
                LIMITED.add(1);
                let wait = self.wait_ms;
                Verdict::deny(
                    Status::RESOURCE_EXHAUSTED,
                    format!("too many calls: this one would wait longer than {wait} ms"),
                )
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
    use tollgate_policy::testing::{
        Answer, Desk, Done, Field, counter, histogram, set_monotonic_us, set_state_room,
    };

    fn delayed(us: u64) -> Answer {
        Answer::Effects(Done {
            delay: Duration::from_micros(us),
            ..Done::default()
        })
    }

    fn desk(config: &str) -> Desk<TrafficShaping> {
        let config = format!(r#"{{"fields": ["user"], {config}}}"#);
        Desk::new(&config).unwrap().with_list("fields", &["user"])
    }

    fn ask(desk: &mut Desk<TrafficShaping>, user: &str) -> Answer {
        desk.request("a.B/C", &[("user", Field::Text(user))])
    }

    #[test]
    fn calls_wait_their_turn_up_to_the_bound() {
        let mut desk = desk(r#""per_second": 100, "wait_ms": 25"#);
        set_monotonic_us(7_000);
        assert_eq!(ask(&mut desk, "Ada"), Answer::Allow);
        assert_eq!(ask(&mut desk, "Ada"), delayed(10_000));
        set_monotonic_us(7_500);
        assert_eq!(ask(&mut desk, "Ada"), delayed(19_500));
        let message = "too many calls: this one would wait longer than 25 ms";
        assert_eq!(
            ask(&mut desk, "Ada"),
            Answer::deny(Status::RESOURCE_EXHAUSTED, message)
        );
        assert_eq!(ask(&mut desk, "Bob"), Answer::Allow, "a bucket of his own");
        assert_eq!((counter(0), counter(1)), (2, 1));
        assert_eq!(histogram(0), [10_000, 19_500]);
    }

    #[test]
    fn a_burst_waits_for_nothing() {
        let mut desk = desk(r#""per_second": 100, "burst": 3, "wait_ms": 25"#);
        for _ in 0..3 {
            assert_eq!(ask(&mut desk, "Ada"), Answer::Allow);
        }
        assert_eq!(ask(&mut desk, "Ada"), delayed(10_000));
    }

    #[test]
    fn without_room_nothing_passes() {
        let mut desk = desk(r#""per_second": 1, "wait_ms": 1"#);
        set_state_room(0);
        assert!(!ask(&mut desk, "Ada").passes());
    }

    #[test]
    fn a_wait_out_of_range_is_refused() {
        for wait in ["0", "1001"] {
            let config = format!(r#"{{"per_second": 1, "wait_ms": {wait}}}"#);
            let refused = Desk::<TrafficShaping>::new(&config).err();
            let text = format!("wait_ms is {wait}; 1 to 1000 are allowed");
            assert_eq!(refused, Some(text));
        }
    }
}
