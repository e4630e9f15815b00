//! Sends some requests along another route: those with certain values of a metadata key, and a
//! share of the others.
//!
//! With a key, its values are divided, so that a user's calls stay on one route. Calls without the
//! key, and all calls if no key is configured, are divided by their number.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{NameSet, Route, Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    route: String,
    #[serde(default)]
    percent: f64,
    #[serde(default)]
    metadata: Vec<String>,
    #[serde(default)]
    values: Vec<String>,
    #[serde(default)]
    seed: u64,
}

/// The route, and the rules that select requests for it.
pub struct CanaryRoute {
    route: Route,
    per_million: u64,
    has_key: bool,
    values: NameSet,
    seed: u64,
    calls: u64,
}

#[policy(
    name = "canary-route",
    version = "1.0",
    capabilities(route),
    counters(routed)
)]
impl CanaryRoute {
    fn configure(config: &[u8]) -> Result<CanaryRoute, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if !(0.0..=100.0).contains(&config.percent) {
            let percent = config.percent;
            return Err(format!("percent is {percent}; 0 to 100 are allowed"));
        }
        if config.metadata.len() > 1 {
            let count = config.metadata.len();
            return Err(format!("metadata lists {count} keys; at most 1 is allowed"));
        }
        if config.metadata.is_empty() && !config.values.is_empty() {
            return Err("values need a key: set metadata".to_owned());
        }
        Ok(CanaryRoute {
            route: Route::new(&config.route)?,
            per_million: (config.percent * 10_000.0).round() as u64,
            has_key: !config.metadata.is_empty(),
            values: config.values.iter().collect(),
            seed: config.seed,
            calls: 0,
        })
    }

    #[request("*", metadata(*))]
    fn any(&mut self, call: &Any<'_>) -> Verdict<'_> {
        let value = match self.has_key {
            true => call.metadata(0).first(),
            false => None,
        };
        let matches = value.is_some_and(|value| self.values.contains(value));
        if !matches && self.share(value) >= self.per_million {
            return Verdict::Allow;
        }
        ROUTED.add(1);
        Verdict::Allow.with_route(&self.route)
    }

    /// A number below 1,000,000, the same for the same value.
    fn share(&mut self, value: Option<&[u8]>) -> u64 {
        let number = match value {
            Some(value) => value.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            }),
            None => {
                self.calls += 1;
                self.calls
            }
        };
        mix(self.seed, number) % 1_000_000
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
    use tollgate_policy::testing::{Answer, Desk, Done};

    /// The routing of these users' calls.
    fn routed(config: &str, users: impl Iterator<Item = Option<String>>) -> Vec<bool> {
        let desk = Desk::<CanaryRoute>::new(config).unwrap();
        let mut desk = desk.with_keys(&["x-user"], &[]);
        let taken = Answer::Effects(Done {
            route: Some("canary".to_owned()),
            ..Done::default()
        });
        users
            .map(|user| {
                let pairs: Vec<(&str, &[u8])> = user
                    .iter()
                    .map(|user| ("x-user", user.as_bytes()))
                    .collect();
                let answer = desk.request_with("a.B/C", &[], &pairs);
                assert!(answer == taken || answer == Answer::Allow, "{answer:?}");
                answer == taken
            })
            .collect()
    }

    const SHARE: &str =
        r#"{"route": "canary", "percent": 20, "metadata": ["x-user"], "values": ["tester"]}"#;

    #[test]
    fn a_user_stays_on_one_route_and_about_the_share_takes_it() {
        let users = || (0..2000).map(|i| Some(format!("user-{}", i % 1000)));
        let taken = routed(SHARE, users());
        assert_eq!(taken[..1000], taken[1000..]);
        let count = taken[..1000].iter().filter(|taken| **taken).count();
        assert!((140..260).contains(&count), "{count}");
    }

    #[test]
    fn calls_without_the_key_are_shared_out_by_their_number() {
        let taken = routed(SHARE, (0..1000).map(|_| None));
        let count = taken.iter().filter(|taken| **taken).count();
        assert!((140..260).contains(&count), "{count}");
    }

    #[test]
    fn a_value_that_is_named_always_takes_it() {
        let config = SHARE.replace("20", "0");
        let users = ["tester", "Tester", "other"].map(|user| Some(user.to_owned()));
        assert_eq!(routed(&config, users.into_iter()), [true, false, false]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (config, words) in [
            (r#"{"route": "Canary"}"#, r#""Canary" is not a valid route"#),
            (
                r#"{"route": "c", "percent": 101}"#,
                "percent is 101; 0 to 100",
            ),
            (r#"{"route": "c", "values": ["a"]}"#, "values need a key"),
        ] {
            let sentence = Desk::<CanaryRoute>::new(config).err().unwrap();
            assert!(sentence.contains(words), "{sentence} lacks {words}");
        }
    }
}
