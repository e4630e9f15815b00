//! Ends some calls with an error, to see what the callers make of it.
//!
//! Which calls is decided by a seed and the call's number, so that a run can be repeated. Delays aren't offered: a
//! policy can't wait.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{Call, Status, Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    percent: f64,
    #[serde(default = "unavailable")]
    status: u32,
    #[serde(default = "default_message")]
    message: String,
    #[serde(default)]
    seed: u64,
}

fn unavailable() -> u32 {
    Status::UNAVAILABLE.code()
}

fn default_message() -> String {
    "injected fault".to_owned()
}

/// How many calls of a million fail, and how.
pub struct FaultInjection {
    per_million: u64,
    status: Status,
    message: String,
    seed: u64,
    calls: u64,
}

#[policy(name = "fault-injection", version = "1.0", counters(injected))]
impl FaultInjection {
    fn configure(config: &[u8]) -> Result<FaultInjection, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if !(0.0..=100.0).contains(&config.percent) {
            return Err(format!(
                "percent is {}; 0 to 100 are allowed",
                config.percent
            ));
        }
        let status = Status::new(config.status);
        let status =
            status.ok_or_else(|| format!("status is {}; 1 to 16 are errors", config.status))?;
        Ok(FaultInjection {
            per_million: (config.percent * 10_000.0).round() as u64,
            status,
            message: config.message,
            seed: config.seed,
            calls: 0,
        })
    }

    #[request("*")]
    fn any(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        self.calls += 1;
        if mix(self.seed, self.calls) % 1_000_000 >= self.per_million {
            return Verdict::Allow;
        }
        INJECTED.add(1);
        Verdict::deny(self.status, &self.message)
    }
}

/// A number that looks random, of two that don't (splitmix64).
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
    use tollgate_policy::testing::{Answer, Desk, counter};

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
        assert!(run(r#"{"percent": 0}"#, 1000).iter().all(|passed| *passed));
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
}
