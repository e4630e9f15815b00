//! Limits the number of concurrent calls.
//!
//! A request counts up, its reply counts down. Calls that end without a reply (an error, a
//! cancelled call, a denial by a later policy) are not seen again, so a call is forgotten after
//! some time. The policy can't match a reply to its call, so it counts the oldest call as ended.
//! The remaining calls then look younger and are forgotten later: the limit is too strict at worst.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use serde::Deserialize;
use tollgate_policy::{Call, Status, Verdict, json_object, now_ms, policy};

/// Calls within 1/16 of the time to forget are counted together.
const SLOTS: u64 = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    calls: u32,
    forget_after_ms: u32,
}

/// The calls in flight, by start time, oldest first.
pub struct ConcurrencyLimit {
    calls: u32,
    slot_ms: u64,
    under_way: u32,
    begun: VecDeque<(u64, u32)>,
}

#[policy(
    name = "concurrency-limit",
    version = "2.0",
    counters(limited, forgotten),
    gauges(calls),
    capabilities(clock)
)]
impl ConcurrencyLimit {
    fn configure(config: &[u8]) -> Result<ConcurrencyLimit, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if config.calls == 0 {
            return Err("calls is 0; to stop all calls, detach the service instead".to_owned());
        }
        let forget = config.forget_after_ms;
        if !(100..=3_600_000).contains(&forget) {
            return Err(format!(
                "forget_after_ms is {forget}; 100 to 3600000 are allowed"
            ));
        }
        Ok(ConcurrencyLimit {
            calls: config.calls,
            slot_ms: u64::from(forget).div_ceil(SLOTS),
            under_way: 0,
            begun: VecDeque::new(),
        })
    }

    #[request("*")]
    fn begin(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        let slot = now_ms() / self.slot_ms;
        self.forget(slot);
        if self.under_way >= self.calls {
            LIMITED.add(1);
            return Verdict::deny(
                Status::RESOURCE_EXHAUSTED,
                "too many calls are in flight; try again later",
            );
        }
        match self.begun.back_mut() {
            Some((last, count)) if *last == slot => *count += 1,
            _ => self.begun.push_back((slot, 1)),
        }
        self.under_way += 1;
        CALLS.set(self.under_way.into());
        Verdict::Allow
    }

    #[reply("*")]
    fn end(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        if let Some((_, count)) = self.begun.front_mut() {
            *count -= 1;
            if *count == 0 {
                self.begun.pop_front();
            }
            self.under_way -= 1;
            CALLS.set(self.under_way.into());
        }
        Verdict::Allow
    }

    fn forget(&mut self, now: u64) {
        while let Some((slot, count)) = self.begun.front().copied() {
            if now.saturating_sub(slot) <= SLOTS {
                return;
            }
            FORGOTTEN.add(count.into());
            self.under_way -= count;
            self.begun.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Desk, counter, gauge, set_now_ms};

    const METHOD: &str = "hotel.Reservation/Reserve";

    #[test]
    fn a_reply_makes_room() {
        let mut desk =
            Desk::<ConcurrencyLimit>::new(r#"{"calls": 2, "forget_after_ms": 1000}"#).unwrap();
        let mut ask = |what: &str| match what {
            "request" => desk.request(METHOD, &[]).passes(),
            _ => desk.reply(METHOD, &[]).passes(),
        };
        assert!(ask("request") && ask("request"));
        assert!(!ask("request"));
        assert!(ask("reply"));
        assert!(ask("request"));
        assert!(!ask("request"));
        assert_eq!((counter(0), gauge(0)), (2, Some(2)));
    }

    #[test]
    fn a_call_without_a_reply_is_forgotten() {
        let mut desk =
            Desk::<ConcurrencyLimit>::new(r#"{"calls": 1, "forget_after_ms": 1000}"#).unwrap();
        set_now_ms(5_000);
        assert!(desk.request(METHOD, &[]).passes());
        set_now_ms(5_999);
        assert!(!desk.request(METHOD, &[]).passes());
        set_now_ms(6_200);
        assert!(desk.request(METHOD, &[]).passes());
        assert_eq!(counter(1), 1);
    }

    #[test]
    fn replies_of_calls_from_before_count_nothing() {
        let mut desk =
            Desk::<ConcurrencyLimit>::new(r#"{"calls": 1, "forget_after_ms": 1000}"#).unwrap();
        for _ in 0..3 {
            assert!(desk.reply(METHOD, &[]).passes());
        }
        assert!(desk.request(METHOD, &[]).passes());
        assert!(!desk.request(METHOD, &[]).passes());
    }
}
