//! Chains of policies, decided without a sandbox: the next policy, the version that evaluates a
//! call, the meaning of its answer, the failure of a trial, and the budget of a tenant's policies.
//!
//! ```text
//!   chain   provider-pre ... → tenant ... → provider-post ...      the first denial ends it, a change goes on to the next
//!   step    stable decides                        (no trial)
//!           stable decides, candidate is recorded (shadow)
//!           candidate decides n% of the calls     (canary); if it fails, the stable decides the very same call
//! ```
//!
//! Everything here is a function of its arguments, including the time and the call's key.

use crate::ids::CallKey;

/// A policy's owner and place in a chain: the order of this type is the order of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// The provider's, before the tenant's.
    ProviderPre,
    /// The tenant's own.
    Tenant,
    /// The provider's, after the tenant's: it sees the message as it is sent.
    ProviderPost,
}

/// Whether policies of these parties are in the order of a chain.
pub fn is_ordered(mut parties: impl Iterator<Item = Party>) -> bool {
    let Some(mut last) = parties.next() else {
        return true;
    };
    parties.all(|party| std::mem::replace(&mut last, party) <= party)
}

/// The kind of a candidate's trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// It evaluates every call, and decides none.
    Shadow,
    /// It decides this many percent of the calls, 1 to 100.
    Canary(u8),
}

/// The handling of calls after a policy has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// They are refused until a fresh instance is in place, which happens automatically.
    #[default]
    Reload,
    /// They are refused until the policy is released or upgraded.
    Closed,
    /// They pass unevaluated.
    Open,
}

/// One of the two versions in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The version in force.
    Stable,
    /// The version on trial.
    Candidate,
}

/// The version that decides a call. `salt` keeps two attachments from selecting the same calls. A
/// request and its reply have the same key, so one version sees both.
#[inline]
pub fn decider(trial: Option<Trial>, call: CallKey, salt: u32) -> Which {
    match trial {
        Some(Trial::Canary(percent)) if in_canary(call, salt, percent) => Which::Candidate,
        _ => Which::Stable,
    }
}

/// Whether a call is among the `percent` of all calls that a canary decides.
pub fn in_canary(call: CallKey, salt: u32, percent: u8) -> bool {
    // SplitMix64's finisher: keys count up, and any few bits of the result are as good as random.
    let mut bits = call
        .to_wire()
        .wrapping_add(u64::from(salt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let hundred = ((bits >> 32) * 100) >> 32;
    hundred < u64::from(percent)
}

/// The outcome of one version's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It lets the call pass.
    Allow,
    /// It ends the call.
    Deny,
    /// It lets the call pass with other contents.
    Change,
    /// It failed, or is out of order.
    Fault,
}

/// The meaning of an outcome for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The next step.
    Pass,
    /// The next step, with the changed message.
    Apply,
    /// The end, with the policy's own status.
    Deny,
    /// The end: the policy failed.
    Refuse,
    /// The stable version decides, ignoring the candidate.
    Fallback,
}

/// The meaning of the deciding version's outcome.
#[inline]
pub fn meaning(outcome: Outcome, decider: Which, on_fault: OnFault) -> Meaning {
    match (outcome, decider, on_fault) {
        (Outcome::Allow, _, _) => Meaning::Pass,
        (Outcome::Change, _, _) => Meaning::Apply,
        (Outcome::Deny, _, _) => Meaning::Deny,
        (Outcome::Fault, Which::Candidate, _) => Meaning::Fallback,
        (Outcome::Fault, Which::Stable, OnFault::Open) => Meaning::Pass,
        (Outcome::Fault, Which::Stable, OnFault::Reload | OnFault::Closed) => Meaning::Refuse,
    }
}

/// Recent evaluations of one version. Old ones fade: at [`Tally::FADES`] both numbers are halved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    evaluated: u32,
    errors: u32,
}

impl Tally {
    /// The maximum number of remembered evaluations.
    pub const FADES: u32 = 10_000;
    /// Evaluations that each version needs before they are compared.
    pub const ENOUGH: u32 = 200;

    /// Counts evaluations; `errors` of them were denials or faults.
    #[inline]
    pub fn count(&mut self, evaluated: u32, errors: u32) {
        self.evaluated += evaluated;
        self.errors += errors;
        if self.evaluated >= Self::FADES {
            self.evaluated /= 2;
            self.errors /= 2;
        }
    }

    /// The number of remembered evaluations.
    pub fn evaluated(&self) -> u32 {
        self.evaluated
    }

    /// The errors among them.
    pub fn errors(&self) -> u32 {
        self.errors
    }

    /// Whether this version's error rate exceeds that of `stable` by more than `max_worse`
    /// percentage points.
    pub fn is_worse_than(&self, stable: &Tally, max_worse: u8) -> bool {
        if self.evaluated < Self::ENOUGH || stable.evaluated < Self::ENOUGH {
            return false;
        }
        let of = |part: u32, whole: u32| u64::from(part) * u64::from(whole);
        let (ours, theirs) = (
            100 * of(self.errors, stable.evaluated),
            100 * of(stable.errors, self.evaluated),
        );
        ours > theirs + u64::from(max_worse) * of(self.evaluated, stable.evaluated)
    }
}

/// The CPU budget of one tenant's policies: a bucket of CPU time that fills at its share of a core.
///
/// An evaluation is charged once it is over, so the bucket can be overdrawn by one batch; no more
/// is evaluated until it is filled up again.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    share_percent: u8,
    /// In hundredths of a nanosecond.
    level: i64,
    at_ns: u64,
    spent_ns: u64,
}

impl Account {
    /// The maximum that a tenant may spend at once after being idle. 20 ms.
    pub const BURST_NS: i64 = 20_000_000;

    /// A full account that fills at `share_percent` of a core from `now_ns` on.
    pub fn new(share_percent: u8, now_ns: u64) -> Self {
        Self {
            share_percent,
            level: Self::BURST_NS * 100,
            at_ns: now_ns,
            spent_ns: 0,
        }
    }

    /// Whether the account may spend now.
    #[inline]
    pub fn may_spend(&mut self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(self.at_ns).min(i64::MAX as u64 / 100);
        self.at_ns = self.at_ns.max(now_ns);
        let filled = passed as i64 * i64::from(self.share_percent);
        self.level = self.level.saturating_add(filled).min(Self::BURST_NS * 100);
        self.level > 0
    }

    /// The time from which the account may spend, if nothing more is charged.
    pub fn filled_at_ns(&self) -> u64 {
        let owed = self.level.min(0).unsigned_abs();
        self.at_ns + (owed / u64::from(self.share_percent.max(1))).saturating_add(1)
    }

    /// Deducts spent time.
    #[inline]
    pub fn charge(&mut self, ns: u64) {
        self.spent_ns = self.spent_ns.saturating_add(ns);
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        self.level = self.level.saturating_sub(ns.saturating_mul(100));
    }

    /// The total ever spent.
    pub fn spent_ns(&self) -> u64 {
        self.spent_ns
    }

    /// Changes the share of a core at which it fills from now on.
    pub fn set_share_percent(&mut self, share_percent: u8, now_ns: u64) {
        // The elapsed time was at the old share.
        self.may_spend(now_ns);
        self.share_percent = share_percent;
    }

    /// Percent of a core.
    pub fn share_percent(&self) -> u8 {
        self.share_percent
    }
}

/// The cost of an evaluation with an unexpectedly long wall-clock time: that time, but no more than
/// its fuel stands for. Another thread may have had the core; fuel stands for the most that a guest
/// needs unless it waits for memory.
#[inline]
pub fn unexpected_cost_ns(wall_ns: u64, fuel_ns: u64) -> u64 {
    wall_ns.min(fuel_ns)
}

/// A recent cost: the maximum, which decays while costs are lower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    ns: u64,
}

impl Pace {
    /// The cap of a cost. 1 ms.
    pub const MAX_NS: u64 = 1_000_000;
    /// The fraction by which it decays each time: from the largest to a thousandth of it in about
    /// 3,500 times.
    pub const FADES: u64 = 512;

    /// Records a cost.
    #[inline]
    pub fn note(&mut self, ns: u64) {
        let faded_ns = self.ns - self.ns.div_ceil(Self::FADES);
        self.ns = faded_ns.max(ns.min(Self::MAX_NS));
    }

    /// The expected cost.
    #[inline]
    pub fn ns(self) -> u64 {
        self.ns
    }

    /// How many times, 1 to `most`, are expected to take no longer than `ns` together.
    #[inline]
    pub fn fits(self, ns: u64, most: usize) -> usize {
        if self.ns.saturating_mul(most as u64) <= ns {
            most
        } else {
            ((ns / self.ns) as usize).max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(slot: u32, generation: u32) -> CallKey {
        CallKey::from_wire(u64::from(generation) << 32 | u64::from(slot))
    }

    #[test]
    fn a_chain_is_ordered_by_party() {
        use Party::{ProviderPost, ProviderPre, Tenant};
        let ordered = |parties: &[Party]| is_ordered(parties.iter().copied());
        assert!(ordered(&[]) && ordered(&[Tenant]) && ordered(&[ProviderPre, ProviderPost]));
        assert!(ordered(&[ProviderPre, ProviderPre, Tenant, ProviderPost]));
        assert!(!ordered(&[Tenant, ProviderPre]));
        assert!(!ordered(&[ProviderPre, ProviderPost, Tenant]));
    }

    #[test]
    fn every_outcome_has_one_meaning() {
        use Meaning::{Apply, Deny, Fallback, Pass, Refuse};
        let outcomes = [
            Outcome::Allow,
            Outcome::Change,
            Outcome::Deny,
            Outcome::Fault,
        ];
        let row = |which, on_fault| outcomes.map(|outcome| meaning(outcome, which, on_fault));
        for on_fault in [OnFault::Reload, OnFault::Closed] {
            assert_eq!(row(Which::Stable, on_fault), [Pass, Apply, Deny, Refuse]);
        }
        assert_eq!(row(Which::Stable, OnFault::Open), [Pass, Apply, Deny, Pass]);
        for on_fault in [OnFault::Reload, OnFault::Closed, OnFault::Open] {
            let want = [Pass, Apply, Deny, Fallback];
            assert_eq!(row(Which::Candidate, on_fault), want);
        }
    }

    #[test]
    fn a_canary_gets_its_percentage_of_calls_however_they_are_numbered() {
        let rows: [&dyn Fn(u32) -> CallKey; 3] = [
            &|k| key(k, 0),
            &|k| key(0, k), // A caller that waits for each answer reuses one slot.
            &|k| key(k % 8, k / 8),
        ];
        for percent in [1, 5, 50, 99] {
            for (at, row) in rows.iter().enumerate() {
                let picked = (0..100_000).filter(|&k| in_canary(row(k), 7, percent));
                let got = picked.count() as f64 / 1000.0;
                let off = (got - f64::from(percent)).abs();
                assert!(off < 0.5, "row {at}: {got}% instead of {percent}%");
            }
        }
        assert!((0..10_000).all(|k| in_canary(key(k, k), 3, 100)));
    }

    #[test]
    fn two_attachments_pick_different_calls() {
        let both = |k: &u32| in_canary(key(*k, 0), 1, 50) && in_canary(key(*k, 0), 2, 50);
        let share = (0..100_000).filter(both).count();
        assert!(
            (24_000..26_000).contains(&share),
            "{share} of 100000 in both halves"
        );
    }

    #[test]
    fn only_a_canary_decides() {
        for k in 0..1000 {
            let call = key(k, 1);
            assert_eq!(decider(None, call, 0), Which::Stable);
            assert_eq!(decider(Some(Trial::Shadow), call, 0), Which::Stable);
            let all = decider(Some(Trial::Canary(100)), call, 0);
            assert_eq!(all, Which::Candidate);
        }
    }

    #[test]
    fn rates_are_compared_once_there_is_enough_and_by_the_margin() {
        let tally = |evaluated, errors| {
            let mut tally = Tally::default();
            tally.count(evaluated, errors);
            tally
        };
        let stable = tally(1000, 100);
        assert!(!tally(200, 30).is_worse_than(&stable, 5), "15% against 10%");
        assert!(tally(200, 31).is_worse_than(&stable, 5), "15.5% is beyond");
        assert!(
            !tally(199, 199).is_worse_than(&stable, 5),
            "too few to tell"
        );
        assert!(!tally(9000, 9000).is_worse_than(&tally(199, 0), 5));
        assert!(!tally(200, 0).is_worse_than(&tally(200, 200), 0), "better");
        assert!(
            !tally(200, 200).is_worse_than(&tally(200, 0), 100),
            "never by more than 100"
        );
    }

    #[test]
    fn old_evaluations_fade() {
        let mut tally = Tally::default();
        (0..Tally::FADES).for_each(|_| tally.count(1, 1));
        assert_eq!(
            (tally.evaluated(), tally.errors()),
            (Tally::FADES / 2, Tally::FADES / 2)
        );
        (0..Tally::FADES * 4).for_each(|_| tally.count(1, 0));
        assert!(
            tally.errors() * 10 < tally.evaluated(),
            "the recent past counts"
        );
    }

    #[test]
    fn an_account_allows_its_share_and_a_burst() {
        let mut account = Account::new(25, 1_000);
        let (mut now, mut granted) = (1_000, 0u64);
        // A policy that always takes 100 us, evaluating without a pause for 10 s.
        while now < 10_000_000_000 {
            if account.may_spend(now) {
                account.charge(100_000);
                granted += 1;
                now += 100_000;
            } else {
                now += 50_000;
            }
        }
        // 25% of 10 s and the burst.
        let fair = (2_500_000_000 + Account::BURST_NS as u64) / 100_000;
        assert!(
            granted.abs_diff(fair) <= 2,
            "{granted} batches instead of {fair}"
        );
        assert_eq!(account.spent_ns(), granted * 100_000);
    }

    #[test]
    fn an_overdrawn_account_says_when_it_is_filled() {
        for (share, cost) in [
            (1, 20_000_000),
            (25, 20_000_001),
            (33, 27_000_000),
            (100, 99_000_000),
        ] {
            let mut account = Account::new(share, 7);
            account.charge(cost);
            assert!(!account.may_spend(7));
            let at_ns = account.filled_at_ns();
            assert!(!account.may_spend(at_ns - 1), "{share}% after {cost} ns");
            assert!(account.may_spend(at_ns), "{share}% after {cost} ns");
        }
    }

    #[test]
    fn a_pace_is_the_most_lately() {
        let mut pace = Pace::default();
        assert_eq!((pace.ns(), pace.fits(50, 8)), (0, 8));
        pace.note(100_000);
        pace.note(100);
        assert!((99_000..100_000).contains(&pace.ns()), "{pace:?}");
        assert_eq!(pace.fits(50_000, 8), 1, "one, even if it is too long");
        assert_eq!(pace.fits(250_000, 8), 2);
        assert_eq!(pace.fits(8 * 100_000, 8), 8);
        (0..2_000).for_each(|_| pace.note(100));
        assert!(pace.ns() < 2_500, "{pace:?}");
        (0..20_000).for_each(|_| pace.note(100));
        assert_eq!(pace.ns(), 100);
        (0..200).for_each(|_| pace.note(0));
        assert_eq!(pace.ns(), 0);
        pace.note(u64::MAX);
        assert_eq!(pace.ns(), Pace::MAX_NS);
    }

    proptest! {
        #[test]
        fn an_account_never_gives_more_than_share_and_burst(
            share in 1u8..=100,
            steps in proptest::collection::vec((0u64..50_000_000, 0u64..2_000_000), 1..200),
        ) {
            let mut account = Account::new(share, 0);
            let (mut now, mut last) = (0, 0);
            for (pause, cost) in steps {
                now += pause;
                if account.may_spend(now) {
                    account.charge(cost);
                    last = cost;
                }
                let fair = now / 100 * u64::from(share) + u64::from(share) + Account::BURST_NS as u64;
                prop_assert!(account.spent_ns() <= fair + last, "{} of {fair}", account.spent_ns());
            }
        }

        #[test]
        fn an_account_survives_any_clock(times in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..50)) {
            let mut account = Account::new(100, u64::MAX / 2);
            for (now, cost) in times {
                account.may_spend(now);
                account.charge(cost);
            }
        }

        #[test]
        fn comparing_is_antisymmetric(a in 0u32..9_000, b in 0u32..9_000, x in 0u32..100, y in 0u32..100) {
            let tally = |evaluated: u32, percent: u32| {
                let mut tally = Tally::default();
                tally.count(evaluated, evaluated * percent / 100);
                tally
            };
            let (a, b) = (tally(a, x), tally(b, y));
            prop_assert!(!(a.is_worse_than(&b, 0) && b.is_worse_than(&a, 0)));
            prop_assert!(!a.is_worse_than(&a, 0));
        }

        #[test]
        fn a_larger_canary_keeps_the_calls_of_a_smaller_one(wire: u64, salt: u32, percent in 1u8..100) {
            let call = CallKey::from_wire(wire);
            if in_canary(call, salt, percent) {
                prop_assert!(in_canary(call, salt, percent + 1));
            }
        }
    }
}
