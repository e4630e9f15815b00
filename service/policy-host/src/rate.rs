//! How fast this machine burns fuel: converts a bound on units into a bound on time, and back.

use std::time::Duration;

use crate::FUEL_PER_MICROSECOND;

/// Units of fuel that the most expensive instructions burn in a microsecond on this machine.
///
/// The default, [`FUEL_PER_MICROSECOND`], is also the maximum: a faster machine gains nothing, a
/// slower one gets fewer units for the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// A rate in units per microsecond, cut to between 1 and [`FUEL_PER_MICROSECOND`].
    pub fn new(units_per_microsecond: u64) -> Rate {
        Rate(units_per_microsecond.clamp(1, FUEL_PER_MICROSECOND))
    }

    /// Units per microsecond.
    pub fn units_per_microsecond(self) -> u64 {
        self.0
    }

    /// The fuel for a time.
    pub fn fuel(self, time: Duration) -> u64 {
        let units = time.as_nanos().saturating_mul(self.0.into()) / 1000;
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// The time for an amount of fuel.
    pub fn time(self, fuel: u64) -> Duration {
        let nanos = u128::from(fuel) * 1000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Default for Rate {
    fn default() -> Rate {
        Rate(FUEL_PER_MICROSECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuel_and_time_convert() {
        let rate = Rate::default();
        assert_eq!(rate.fuel(Duration::from_micros(100)), 350_000);
        assert_eq!(rate.time(350_000), Duration::from_micros(100));
        assert_eq!(Rate::new(700).fuel(Duration::from_micros(5)), 3500);
        assert_eq!(Rate::new(700).time(7), Duration::from_nanos(10));
    }

    #[test]
    fn a_rate_stays_within_its_bounds() {
        assert_eq!(Rate::new(0).units_per_microsecond(), 1);
        assert_eq!(Rate::new(u64::MAX), Rate::default());
        assert_eq!(Rate::new(1).time(u64::MAX), Duration::from_nanos(u64::MAX));
        assert_eq!(Rate::default().fuel(Duration::MAX), u64::MAX);
    }
}
