//! Ends some calls with an error and delays others, to test the callers' reaction.
//!
//! A seed and the call's number select the calls, so a run can be repeated. Errors and delays are
//! drawn separately; a call that fails isn't delayed.

#![forbid(unsafe_code)]

use std::time::Duration;

use serde::Deserialize;
use tollgate_policy::{Call, Status, Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    percent: f64,
    #[serde(default = "unavailable")]
    status: u32,
    #[serde(default = "default_message")]
    message: String,
    #[serde(default)]
    delay_percent: f64,
    #[serde(default)]
    delay_ms: u32,
    #[serde(default)]
    seed: u64,
}

/// The longest delay in milliseconds.
const DELAY_MS: u32 = 1000;

fn unavailable() -> u32 {
    Status::UNAVAILABLE.code()
}

fn default_message() -> String {
    "injected fault".to_owned()
}

/// How many calls of a million fail or are delayed, and how.
pub struct FaultInjection {
    per_million: u64,
    status: Status,
    message: String,
    delayed_per_million: u64,
    delay: Duration,
    seed: u64,
    calls: u64,
}

#[policy(
    name = "fault-injection",
    version = "1.1",
    counters(injected, delayed),
    capabilities(delay)
)]
impl FaultInjection {
    fn configure(config: &[u8]) -> Result<FaultInjection, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        let per_million = per_million("percent", config.percent)?;
        let delayed_per_million = self::per_million("delay_percent", config.delay_percent)?;
        if config.delay_ms > DELAY_MS || (delayed_per_million > 0 && config.delay_ms == 0) {
            let delay = config.delay_ms;
            return Err(format!("delay_ms is {delay}; 1 to {DELAY_MS} are allowed"));
        }
        let status = Status::new(config.status);
        let status =
            status.ok_or_else(|| format!("status is {}; 1 to 16 are errors", config.status))?;
        Ok(FaultInjection {
            per_million,
            status,
            message: config.message,
            delayed_per_million,
            delay: Duration::from_millis(config.delay_ms.into()),
            seed: config.seed,
            calls: 0,
        })
    }

    #[request("*")]
    fn any(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        self.calls += 1;
        if mix(self.seed, self.calls) % 1_000_000 < self.per_million {
            INJECTED.add(1);
            return Verdict::deny(self.status, &self.message);
        }
        // A different seed makes delays and errors independent.
        if mix(!self.seed, self.calls) % 1_000_000 < self.delayed_per_million {
            DELAYED.add(1);
            return Verdict::Allow.with_delay(self.delay);
        }
        Verdict::Allow
    }
}

fn per_million(name: &str, percent: f64) -> Result<u64, String> {
    match (0.0..=100.0).contains(&percent) {
        true => Ok((percent * 10_000.0).round() as u64),
        false => Err(format!("{name} is {percent}; 0 to 100 are allowed")),
    }
}

/// A pseudo-random number from two others (splitmix64).
fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Desk, Done, counter};

    fn run(config: &str, calls: usize) -> Vec<bool> {
        let mut desk = Desk::<FaultInjection>::new(config).unwrap();
        (0..calls)
            .map(|_| desk.request("a.B/C", &[]).passes())
            .collect()
    }

    #[test]
    fn a_seed_decides_which_calls_fail() {
        let first = run(r#"{"percent": 30, "seed": 7}"#, 1000);
        assert_eq!(run(r#"{"percent": 30, "seed": 7}"#, 1000), first);
        assert_ne!(run(r#"{"percent": 30, "seed": 8}"#, 1000), first);
        let failed = first.iter().filter(|passed| !**passed).count();
        assert!((250..350).contains(&failed), "{failed}");
    }

    #[test]
    fn none_and_all_are_exact() {
        let delays = r#"{"percent": 0, "delay_percent": 100, "delay_ms": 250}"#;
        assert!(run(delays, 1000).iter().all(|passed| *passed));
        assert_eq!((counter(0), counter(1)), (0, 1000));
        assert!(
            run(r#"{"percent": 100}"#, 1000)
                .iter()
                .all(|passed| !passed)
        );
        assert_eq!(counter(0), 1000);
    }

    #[test]
    fn the_error_is_the_configured_one() {
        let mut desk =
            Desk::<FaultInjection>::new(r#"{"percent": 100, "status": 4, "message": "slow"}"#)
                .unwrap();
        assert_eq!(
            desk.request("a.B/C", &[]),
            Answer::deny(Status::new(4).unwrap(), "slow")
        );
    }

    #[test]
    fn delays_fall_on_other_calls_than_errors() {
        let config = r#"{"percent": 30, "delay_percent": 30, "delay_ms": 250, "seed": 7}"#;
        let mut desk = Desk::<FaultInjection>::new(config).unwrap();
        let delay = Done {
            delay: Duration::from_millis(250),
            ..Done::default()
        };
        let answers: Vec<Answer> = (0..1000).map(|_| desk.request("a.B/C", &[])).collect();
        let passed: Vec<bool> = answers.iter().map(Answer::passes).collect();
        assert_eq!(passed, run(r#"{"percent": 30, "seed": 7}"#, 1000));
        let delayed = answers
            .iter()
            .filter(|answer| **answer == Answer::Effects(delay.clone()));
        // 30 % of the 70 % that pass.
        assert!((170..250).contains(&delayed.count()));
    }
}
