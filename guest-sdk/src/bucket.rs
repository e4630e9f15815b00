//! Token buckets in the shared state, one for each key: for limits of a rate that lets bursts pass.
//!
//! They are the generic cell rate algorithm (ITU-T I.371, the virtual scheduling form). A record's
//! second word is the time at which the bucket would be full again, in ns. A token that is taken
//! moves it on by the time that the bucket needs for one, and there is none if it would be further
//! away than the time for the whole burst.
//!
//! ```text
//!     now          full again                   now + time for the burst
//!      |---------------|------ tokens left -------|
//! ```
//!
//! A bucket that many calls use, and none waits for, is *leased from*: an instance takes some
//! tokens more than it needs, and spends them within a millisecond, without asking the shared
//! state. They are at most an eighth of those that are left, and as many as come within 10 ms. With
//! its next call the instance gives back what it hasn't spent. So all instances of a daemon
//! together never let more pass than one bucket would, with calls up to a millisecond late; and an
//! instance that becomes idle makes the limit stricter for 10 ms at most.

use std::ops::RangeInclusive;

use crate::table::{Full, Record, Table, hash};

/// How many keys an instance may lease tokens of at once.
const LEASES: usize = 16;
/// The most tokens of a lease.
const LEASED: u64 = 31;
/// How long a lease lasts, in microseconds.
const LEASE_US: u64 = 1_000;
/// No instance's clock is so far behind another's, in ns.
const BEHIND_NS: u64 = 1_000_000_000;
/// A lease has at most the tokens that come in this time.
const LEASED_NS: u64 = 10_000_000;

/// The buckets of one policy, all of one rate and burst.
#[derive(Clone, Debug)]
pub struct Buckets {
    table: Table,
    /// The time between two tokens, in ns.
    interval_ns: u64,
    /// The time in which an empty bucket gets full, in ns.
    depth_ns: u64,
    leases: [Lease; LEASES],
}

/// The last use of a bucket by this instance.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    /// The key's hash.
    hash: u64,
    /// Tokens that were taken and not spent.
    left: u64,
    /// When the bucket was asked.
    at_us: u64,
    /// When the bucket would be full again, with this lease.
    full_ns: u64,
}

impl Buckets {
    /// The valid rates, in tokens per second.
    pub const PER_SECOND: RangeInclusive<f64> = 0.001..=1_000_000.0;
    /// The valid capacities of a bucket, in tokens.
    pub const BURST: RangeInclusive<u32> = 1..=1_000_000;

    /// Buckets that get `per_second` tokens each, have room for `burst`, and are for about `keys`
    /// keys ([`Table::KEYS`]). The time between two tokens is rounded up to a nanosecond.
    ///
    /// # Errors
    /// A message for the user that configured the policy: a number isn't valid.
    pub fn new(per_second: f64, burst: u32, keys: u32) -> Result<Buckets, String> {
        if !Buckets::PER_SECOND.contains(&per_second) {
            return Err(format!(
                "per_second is {per_second}; 0.001 to 1000000 are allowed"
            ));
        }
        if !Buckets::BURST.contains(&burst) {
            return Err(format!("burst is {burst}; 1 to 1000000 are allowed"));
        }
        let interval_ns = (1e9 / per_second).ceil() as u64;
        Ok(Buckets {
            table: Table::new(keys)?,
            interval_ns,
            depth_ns: interval_ns * u64::from(burst),
            leases: [Lease::default(); LEASES],
        })
    }

    /// Takes a token, by the clock [`monotonic_us`](crate::monotonic_us); false if there is none.
    ///
    /// # Errors
    /// [`Full`]; nothing is then taken.
    pub fn take(&mut self, key: &[u8], now_us: u64) -> Result<bool, Full> {
        Ok(self.reserve(key, now_us, 0)?.is_some())
    }

    /// Takes a token, or the next one that there will be within `longest_us`. Returns how long to
    /// wait for it, in microseconds: tokens are given out in the order in which they were asked
    /// for. `None` if there will be none in that time.
    ///
    /// # Errors
    /// [`Full`]; nothing is then taken.
    pub fn reserve(
        &mut self,
        key: &[u8],
        now_us: u64,
        longest_us: u32,
    ) -> Result<Option<u32>, Full> {
        let hash = hash(key);
        let at = hash as usize % LEASES;
        let lease = self.leases[at];
        let age_us = match lease.hash == hash {
            true => now_us.saturating_sub(lease.at_us),
            false => u64::MAX,
        };
        if lease.left > 0 && age_us < LEASE_US {
            self.leases[at].left -= 1;
            return Ok(Some(0));
        }
        let (now_ns, longest_ns) = (now_us * 1000, u64::from(longest_us) * 1000);
        let (interval_ns, depth_ns) = (self.interval_ns, self.depth_ns);
        let worth = |record: &Record| record[1].saturating_sub(now_ns);
        // A bucket that has been full since the lease has these tokens already.
        let back_ns = match lease.left > 0 && now_ns < lease.full_ns {
            true => lease.left * interval_ns,
            false => 0,
        };
        // Nor has a key that has lost its record by now.
        let give_back = |record: &mut Record, is_own: bool| {
            let back_ns = if is_own { back_ns } else { 0 };
            record[1] = record[1].saturating_sub(back_ns);
            (back_ns > 0).then_some(())
        };
        if back_ns > 0 && lease.hash != hash {
            self.table.change_hashed(lease.hash, worth, give_back)?;
            self.leases[at].left = 0;
        }
        let is_same = lease.hash == hash;
        let most = match age_us < 2 * LEASE_US && longest_us == 0 {
            true => LEASED.min(LEASED_NS / interval_ns),
            false => 0,
        };
        let taken = self.table.change_hashed(hash, worth, |record, is_own| {
            let gave_back = is_same && give_back(record, is_own).is_some();
            // A record that is later is from a version with another rate, so it begins anew.
            let latest_ns = now_ns + depth_ns + longest_ns + BEHIND_NS;
            let before_ns = if record[1] > latest_ns { 0 } else { record[1] };
            let full_ns = before_ns.max(now_ns) + interval_ns;
            let wait_ns = full_ns.saturating_sub(now_ns + depth_ns);
            if wait_ns > longest_ns {
                return gave_back.then_some((None, 0, record[1]));
            }
            let spare_ns = (now_ns + depth_ns).saturating_sub(full_ns);
            let leased = most.min(spare_ns / interval_ns / 8);
            *record = [0, full_ns + leased * interval_ns];
            Some((Some(wait_ns.div_ceil(1000) as u32), leased, record[1]))
        });
        let (wait_us, left, full_ns) = taken?.unwrap_or_default();
        self.leases[at] = Lease {
            hash,
            left,
            at_us: now_us,
            full_ns,
        };
        Ok(wait_us)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::host::{reset, state_gets};
    use crate::testing::set_state_room;

    fn buckets(per_second: f64, burst: u32) -> Buckets {
        reset();
        beside(per_second, burst)
    }

    fn beside(per_second: f64, burst: u32) -> Buckets {
        Buckets::new(per_second, burst, Table::DEFAULT_KEYS).unwrap()
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (per_second, burst, keys, text) in [
            (0.0, 1, 8, "per_second is 0; 0.001 to 1000000 are allowed"),
            (
                f64::NAN,
                1,
                8,
                "per_second is NaN; 0.001 to 1000000 are allowed",
            ),
            (
                1e7,
                1,
                8,
                "per_second is 10000000; 0.001 to 1000000 are allowed",
            ),
            (1.0, 0, 8, "burst is 0; 1 to 1000000 are allowed"),
            (
                1.0,
                1_000_001,
                8,
                "burst is 1000001; 1 to 1000000 are allowed",
            ),
            (1.0, 1, 7, "keys is 7; 8 to 16384 are allowed"),
        ] {
            assert_eq!(Buckets::new(per_second, burst, keys).unwrap_err(), text);
        }
        for (per_second, burst) in [(0.001, 1_000_000), (1e6, 1)] {
            let mut buckets = buckets(per_second, burst);
            assert_eq!(buckets.take(b"k", u64::MAX / 2_000), Ok(true));
        }
    }

    #[test]
    fn tokens_are_given_out_in_order_up_to_the_longest_wait() {
        let mut buckets = buckets(1000.0, 2);
        let mut reserve = |now_us| buckets.reserve(b"k", now_us, 3_000).unwrap();
        let waits = [0, 0, 100, 100, 200, 300].map(&mut reserve);
        // The next tokens come at 1,000, 2,000 and 3,000.
        let expected = [Some(0), Some(0), Some(900), Some(1900), Some(2800), None];
        assert_eq!(waits, expected);
        assert_eq!(reserve(1_000), Some(3_000), "who was refused took none");
        assert_eq!(reserve(1_000), None);
    }

    #[test]
    fn without_room_nothing_is_taken() {
        let mut buckets = buckets(1.0, 1);
        set_state_room(0);
        assert_eq!(buckets.take(b"k", 0), Err(Full));
    }

    #[test]
    fn a_busy_bucket_is_seldom_asked() {
        let mut buckets = buckets(1e6, 1_000_000);
        let calls = 3_200;
        for now_us in 0..calls {
            assert_eq!(buckets.take(b"k", now_us), Ok(true));
        }
        let asked = state_gets();
        assert!(asked <= calls / 16, "{asked} of {calls}");
    }

    #[test]
    fn a_lease_that_is_over_goes_back() {
        let mut buckets = buckets(2_000.0, 1_000);
        for _ in 0..3 {
            assert_eq!(buckets.take(b"k", 10), Ok(true));
        }
        assert!(buckets.leases.iter().any(|lease| lease.left > 10));
        let mut other = beside(2_000.0, 1_000);
        let mut left = 0;
        // The first instance asks once more, later: what it had leased is there for the other one.
        assert_eq!(buckets.take(b"k", 2_010), Ok(true));
        while other.take(b"k", 2_010) == Ok(true) {
            left += 1;
        }
        // The bucket was full again by then.
        assert_eq!(left, 1_000 - 1);
    }

    /// Buckets outlive a version: the next one may have another rate.
    #[test]
    fn a_faster_rate_is_in_force_at_once() {
        let mut slow = buckets(0.001, 1_000);
        while slow.take(b"k", 0) == Ok(true) {}
        let mut fast = beside(100.0, 10);
        let passed = (0..20).filter(|_| fast.take(b"k", 0) == Ok(true)).count();
        assert_eq!(passed, 10);
        // Another instance's clock may be behind: that refills nothing.
        let mut late = beside(100.0, 10);
        while fast.take(b"k", 5_000_000) == Ok(true) {}
        assert_eq!(late.take(b"k", 4_999_000), Ok(false));
    }

    #[test]
    fn slow_rates_are_not_leased() {
        let mut buckets = buckets(1.0, 1_000);
        for _ in 0..3 {
            assert_eq!(buckets.take(b"k", 10), Ok(true));
        }
        assert!(buckets.leases.iter().all(|lease| lease.left == 0));
    }

    /// A key whose record another one has taken gives nothing back to others.
    #[test]
    fn a_lease_goes_back_to_its_own_bucket_only() {
        reset();
        // One set of eight records, and nine keys.
        let [mut first, mut others] = [(); 2].map(|()| Buckets::new(2_000.0, 100, 8).unwrap());
        let keys: Vec<[u8; 1]> = (0..9).map(|key| [key]).collect();
        let mut passed = 0;
        let mut exhaust = |buckets: &mut Buckets, key: &[u8], now_us: u64, most: u32| {
            for _ in 0..most {
                passed += u32::from(buckets.take(key, now_us).unwrap());
            }
            passed
        };
        exhaust(&mut first, &keys[0], 0, 2);
        for key in &keys[1..8] {
            exhaust(&mut others, key, 0, 50);
        }
        // The ninth key takes the record of the first.
        exhaust(&mut others, &keys[8], 0, 200);
        for _ in 0..3 {
            for key in &keys {
                exhaust(&mut first, key, 1_100, 200);
                exhaust(&mut others, key, 1_100, 200);
            }
        }
        let passed = exhaust(&mut first, &keys[0], 1_100, 0);
        assert!(passed <= 8 * (100 + 2), "{passed}");
    }

    /// What instances let pass together, with many keys and in bursts, is what one bucket per key
    /// lets pass, give or take what a lease is late.
    #[test]
    fn instances_together_are_one_bucket() {
        let (per_second, burst) = (2_000.0, 400);
        let first = buckets(per_second, burst);
        let mut instances = [first.clone(), first.clone(), first];
        let mut random = 1u64;
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            random >> 33
        };
        let keys: Vec<String> = (0..20).map(|key| format!("key {key}")).collect();
        // As they are in exact arithmetic: tokens and the time of that number.
        let mut oracle = vec![(f64::from(burst), 0u64); keys.len()];
        let (mut passed, mut refused_early, mut now_us) = (0, 0, 1_000_000);
        for _ in 0..400_000 {
            now_us += next() % 20;
            // Two keys get most of the calls.
            let key = if next() % 4 < 3 {
                next() % 2
            } else {
                next() % 20
            } as usize;
            let (tokens, at_us) = &mut oracle[key];
            let refilled = (now_us - *at_us) as f64 / 1e6 * per_second;
            (*tokens, *at_us) = ((*tokens + refilled).min(f64::from(burst)), now_us);
            let instance = &mut instances[(next() % 3) as usize];
            if instance.take(keys[key].as_bytes(), now_us).unwrap() {
                passed += 1;
                // A leased token was taken at most a millisecond ago.
                *tokens -= 1.0;
                assert!(*tokens > -per_second / 1e3 - 1.0, "{tokens} at {now_us}");
            } else {
                refused_early += u32::from(*tokens >= 2.0);
            }
        }
        assert!(passed > 20_000, "{passed}");
        // While others have leased what is left.
        assert!(
            refused_early < passed / 1_000,
            "{refused_early} of {passed}"
        );
    }
}
