//! Limits each customer's reservations per second, with bursts: a token bucket per name.
//!
//! The buckets are in the shared state, so one limit applies to all of the tenant's applications,
//! and an upgrade or a reload doesn't refill them.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::table::{Record, Table};
use tollgate_policy::{Status, Verdict, json_object, now_ms, policy};

/// Tokens are counted in thousandths.
const TOKEN: u64 = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    per_second: f64,
    burst: u32,
    #[serde(default = "default_keys")]
    keys: u32,
}

fn default_keys() -> u32 {
    Table::DEFAULT_KEYS
}

/// The limit and its buckets. A record is `[missing thousandths, time of that count]`: a new bucket
/// is full.
pub struct RateLimit {
    /// Thousandths of a token per second.
    rate: u64,
    capacity: u64,
    buckets: Table,
}

#[policy(
    name = "rate-limit",
    version = "1.0",
    proto = "../../conformance/proto/hotel.proto",
    counters(limited),
    capabilities(state, clock)
)]
impl RateLimit {
    fn configure(config: &[u8]) -> Result<RateLimit, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if !(0.001..=1_000_000.0).contains(&config.per_second) {
            let rate = config.per_second;
            return Err(format!(
                "per_second is {rate}; 0.001 to 1000000 are allowed"
            ));
        }
        if !(1..=1_000_000).contains(&config.burst) {
            return Err(format!(
                "burst is {}; 1 to 1000000 are allowed",
                config.burst
            ));
        }
        Ok(RateLimit {
            rate: (config.per_second * TOKEN as f64) as u64,
            capacity: u64::from(config.burst) * TOKEN,
            buckets: Table::new(config.keys)?,
        })
    }

    #[request("hotel.Reservation/Reserve", reads(customer_name))]
    fn reserve(&mut self, request: &Reserve<'_>) -> Verdict<'_> {
        let now = now_ms();
        let (rate, capacity) = (self.rate, self.capacity);
        let missing = |record: &Record| {
            let refilled = now.saturating_sub(record[1]).saturating_mul(rate) / 1000;
            record[0].saturating_sub(refilled)
        };
        let take = |record: &mut Record| {
            let missing = missing(record);
            let enough = missing + TOKEN <= capacity;
            if enough {
                *record = [missing + TOKEN, now];
            }
            enough
        };
        let key = request.customer_name_bytes();
        match self.buckets.update(key, missing, take) {
            Ok(true) => Verdict::Allow,
            Ok(false) => {
                LIMITED.add(1);
                Verdict::deny(
                    Status::RESOURCE_EXHAUSTED,
                    "too many reservations for this customer; try again later",
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

    const METHOD: &str = "hotel.Reservation/Reserve";

    fn passes(desk: &mut Desk<RateLimit>, name: &str) -> bool {
        desk.request(METHOD, &[("customer_name", Field::Text(name))])
            .passes()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut desk = Desk::<RateLimit>::new(r#"{"per_second": 2, "burst": 3}"#).unwrap();
        set_now_ms(1_000_000);
        let burst: Vec<bool> = (0..5).map(|_| passes(&mut desk, "Ada")).collect();
        assert_eq!(burst, [true, true, true, false, false]);
        assert_eq!(counter(0), 2);
        assert!(
            passes(&mut desk, "Bob"),
            "another customer has a bucket of their own"
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
        let mut desk = Desk::<RateLimit>::new(r#"{"per_second": 10, "burst": 5}"#).unwrap();
        let mut passed = 0;
        for ms in 0..10_000 {
            set_now_ms(ms);
            passed += u32::from(passes(&mut desk, "Ada"));
        }
        assert!((103..=105).contains(&passed), "{passed}");
    }

    #[test]
    fn instances_share_the_buckets() {
        let config = r#"{"per_second": 1, "burst": 1}"#;
        let mut first = Desk::<RateLimit>::new(config).unwrap();
        let mut second = Desk::<RateLimit>::beside(config).unwrap();
        assert!(passes(&mut first, "Ada"));
        assert!(!passes(&mut second, "Ada"));
    }

    #[test]
    fn without_room_nothing_passes() {
        let mut desk = Desk::<RateLimit>::new(r#"{"per_second": 1, "burst": 1}"#).unwrap();
        set_state_room(0);
        assert!(!passes(&mut desk, "Ada"));
    }
}
