//! Limits calls per second, with bursts: a token bucket per key. A key is made of the values of
//! fields and metadata keys that the configuration names; without any there is one bucket.
//!
//! The buckets are in the shared state, so one limit applies to all of the tenant's applications,
//! and an upgrade or a reload doesn't refill them.

#![forbid(unsafe_code)]

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate_policy::bucket::Buckets;
use tollgate_policy::table::{Key, Table};
use tollgate_policy::{Status, Verdict, json_object, monotonic_us, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    per_second: f64,
    burst: u32,
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

/// The limit: a bucket per key.
pub struct RateLimit {
    buckets: Buckets,
    /// The numbers of fields and metadata keys that make the key.
    fields: u32,
    metadata: u32,
    key: Key,
}

#[policy(
    name = "rate-limit",
    version = "2.0",
    counters(limited),
    capabilities(state, clock)
)]
impl RateLimit {
    fn configure(config: &[u8]) -> Result<RateLimit, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        Ok(RateLimit {
            buckets: Buckets::new(config.per_second, config.burst, config.keys)?,
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
        match self.buckets.take(self.key.bytes(), monotonic_us()) {
            Ok(true) => Verdict::Allow,
            Ok(false) => {
                LIMITED.add(1);
                Verdict::deny(
                    Status::RESOURCE_EXHAUSTED,
                    "too many calls; try again later",
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
    use tollgate_policy::testing::{Desk, Field, counter, set_now_ms, set_state_room};

    const METHOD: &str = "a.B/C";

    fn desk(limit: &str) -> Desk<RateLimit> {
        with_fields(Desk::new(&configured(limit)).unwrap())
    }

    fn configured(limit: &str) -> String {
        format!(r#"{{"fields": ["user", "floor"], "metadata": ["x-app"], {limit}}}"#)
    }

    fn with_fields(desk: Desk<RateLimit>) -> Desk<RateLimit> {
        let desk = desk.with_list("fields", &["user", "floor"]);
        desk.with_keys(&["x-app"], &[])
    }

    fn passes(desk: &mut Desk<RateLimit>, name: &str) -> bool {
        desk.request(METHOD, &[("user", Field::Text(name))])
            .passes()
    }

    #[test]
    fn a_key_is_all_its_values() {
        let mut desk = desk(r#""per_second": 1, "burst": 1"#);
        let mut passes = |user, floor, app: &str| {
            let fields = [("user", user), ("floor", floor)];
            let metadata = [("x-app", app.as_bytes())];
            desk.request_with(METHOD, &fields, &metadata).passes()
        };
        let (ada, none) = (Field::Text("Ada"), Field::Absent);
        for (user, floor, app) in [
            (ada, Field::Int(1), "a"),
            (ada, Field::Int(2), "a"),
            (ada, Field::Int(1), "b"),
            (ada, none, "a"),
            (none, none, "a"),
            (Field::Text(""), none, "a"),
        ] {
            assert!(passes(user, floor, app), "{user:?} {floor:?} {app}");
            assert!(!passes(user, floor, app), "{user:?} {floor:?} {app}");
        }
    }

    #[test]
    fn without_a_key_all_calls_share_a_bucket() {
        let mut desk = Desk::<RateLimit>::new(r#"{"per_second": 1, "burst": 1}"#).unwrap();
        assert!(desk.request("a.B/C", &[]).passes());
        assert!(!desk.request("a.B/D", &[]).passes());
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut desk = desk(r#""per_second": 2, "burst": 3"#);
        set_now_ms(1_000_000);
        let burst: Vec<bool> = (0..5).map(|_| passes(&mut desk, "Ada")).collect();
        assert_eq!(burst, [true, true, true, false, false]);
        assert_eq!(counter(0), 2);
        assert!(
            passes(&mut desk, "Bob"),
            "another user has a bucket of their own"
        );
        set_now_ms(1_000_499);
        assert!(!passes(&mut desk, "Ada"));
        set_now_ms(1_000_500);
        assert!(passes(&mut desk, "Ada"));
        assert!(!passes(&mut desk, "Ada"));
    }

    /// In any period, at most the burst plus the rate's tokens.
    #[test]
    fn no_second_gets_more_than_it_should() {
        let mut desk = desk(r#""per_second": 10, "burst": 5"#);
        let mut passed = 0;
        for ms in 0..10_000 {
            set_now_ms(ms);
            passed += u32::from(passes(&mut desk, "Ada"));
        }
        assert!((103..=105).contains(&passed), "{passed}");
    }

    #[test]
    fn instances_share_the_buckets() {
        let limit = r#""per_second": 1, "burst": 1"#;
        let mut first = desk(limit);
        let mut second = with_fields(Desk::beside(&configured(limit)).unwrap());
        assert!(passes(&mut first, "Ada"));
        assert!(!passes(&mut second, "Ada"));
    }

    #[test]
    fn without_room_nothing_passes() {
        let mut desk = desk(r#""per_second": 1, "burst": 1"#);
        set_state_room(0);
        assert!(!passes(&mut desk, "Ada"));
    }
}
