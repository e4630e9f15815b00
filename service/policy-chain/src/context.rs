//! What an evaluation needs besides the policies: buffers, processes, accounts and clocks.

use tollgate_policy_host::{Hook, PolicyTime, Rate};

use crate::accounts::Accounts;
use crate::evaluation::Evaluation;
use crate::events::PolicyEvent;
use crate::ids::{AccountId, Why};
use crate::isolated::{OrderTime, Processes};
use crate::message::Pool;
use crate::stopwatch::Stopwatch;

/// Converts fuel to time without a division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FuelTime {
    /// Nanoseconds per unit, times 2^20.
    scaled: u64,
}

impl FuelTime {
    pub(crate) fn new(rate: Rate) -> Self {
        let units = rate.units_per_microsecond();
        Self {
            scaled: (1000 << 20) / units,
        }
    }

    #[inline]
    pub(crate) fn ns(self, fuel: u64) -> u64 {
        // A batch's fuel is below 2^32: 8 x 10 ms.
        fuel.saturating_mul(self.scaled) >> 20
    }
}

/// What an evaluation needs besides the policies.
pub(crate) struct EvaluationContext<'a> {
    pub(crate) hook: Hook,
    pub(crate) pool: &'a mut Pool,
    pub(crate) processes: &'a mut Processes,
    /// [`Evaluation::stop`] has been called on some evaluation.
    pub(crate) has_stopped: bool,
    /// Calls of this tenant wait for their account. Later calls wait behind them.
    pub(crate) is_queued: bool,
    /// What the policy's clocks showed, if the evaluations are answers of a process.
    pub(crate) asked: Option<PolicyTime>,
    pub(crate) meter: Meter<'a>,
}

impl EvaluationContext<'_> {
    /// A policy delays a call.
    #[cold]
    pub(crate) fn delay(&mut self, evaluation: &mut Evaluation, delay_us: u32) {
        // From the time that the policy saw, so that calls that it puts in an order keep it.
        let seen = self.asked.unwrap_or(self.meter.time);
        let at_us = seen.monotonic_us + u64::from(delay_us);
        let at_ns = at_us * 1000;
        evaluation.stop(Why::Until { at_ns });
        self.has_stopped = true;
    }
}

/// Which account pays for what runs, and how much.
pub(crate) struct Meter<'a> {
    pub(crate) watch: Stopwatch,
    /// The policies' clocks.
    pub(crate) time: PolicyTime,
    pub(crate) fuel_time: FuelTime,
    pub(crate) accounts: &'a mut Accounts,
    pub(crate) events: &'a mut Vec<PolicyEvent>,
}

impl Meter<'_> {
    #[inline]
    pub(crate) fn may_spend(&mut self, account: Option<AccountId>) -> bool {
        let now_ns = self.watch.now_ns();
        account.is_none_or(|id| self.accounts.may_spend(id, now_ns))
    }

    /// The clocks' times for an order to a process.
    pub(crate) fn order_time(&self) -> OrderTime {
        OrderTime {
            now_ns: self.watch.now_ns(),
            time: self.time,
        }
    }

    /// Charges `account` for what has run since the last look at the clock and has used `fuel`.
    /// Returns the cost.
    #[inline]
    pub(crate) fn charge(&mut self, account: Option<AccountId>, fuel: u64) -> u64 {
        let cost_ns = self.watch.stop(self.fuel_time.ns(fuel));
        if let Some(id) = account {
            self.accounts.charge(id, cost_ns);
        }
        cost_ns
    }
}

/// Unix time as policies see it: advanced by this runtime's own clock, and occasionally set from
/// the system's.
#[derive(Default)]
pub(crate) struct CoarseClock {
    ahead_ms: i64,
}

impl CoarseClock {
    pub(crate) fn set(&mut self, now_ns: u64) {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let unix_ms = unix.map_or(0, |time| time.as_millis() as i64);
        self.ahead_ms = unix_ms - (now_ns / 1_000_000) as i64;
    }

    #[inline]
    fn time(&self, now_ns: u64) -> PolicyTime {
        PolicyTime {
            unix_ms: (now_ns / 1_000_000).saturating_add_signed(self.ahead_ms),
            monotonic_us: now_ns / 1_000,
        }
    }
}

/// What measures evaluations and pays for them, and the events that they cause.
pub(crate) struct Metering {
    pub(crate) accounts: Accounts,
    /// Events for the control plane.
    pub(crate) events: Vec<PolicyEvent>,
    pub(crate) clock: CoarseClock,
    fuel_time: FuelTime,
}

impl Metering {
    pub(crate) fn new(cpu_share_percent: u8, rate: Rate, now_ns: u64) -> Self {
        let mut clock = CoarseClock::default();
        clock.set(now_ns);
        Self {
            accounts: Accounts::new(cpu_share_percent),
            events: Vec::new(),
            clock,
            fuel_time: FuelTime::new(rate),
        }
    }

    /// Starts the measurement of an evaluation.
    #[inline]
    pub(crate) fn meter(&mut self) -> Meter<'_> {
        let watch = Stopwatch::start();
        Meter {
            time: self.clock.time(watch.now_ns()),
            watch,
            fuel_time: self.fuel_time,
            accounts: &mut self.accounts,
            events: &mut self.events,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuel_stands_for_time_to_a_thousandth() {
        for units in [1, 7, 350, 3_499, 3_500] {
            let rate = Rate::new(units);
            let time = FuelTime::new(rate);
            for fuel in [0, 100, 350_000, 280_000_000] {
                let exact = rate.time(fuel).as_nanos() as u64;
                let off = exact.abs_diff(time.ns(fuel));
                assert!(off <= 1 + exact / 1000, "{fuel} at {units}: off by {off}");
            }
        }
        assert_eq!(FuelTime::new(Rate::default()).ns(350_000) / 1000, 99);
    }
}
