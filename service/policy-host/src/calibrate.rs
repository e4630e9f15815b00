//! Measures how fast this machine burns fuel, with the loops of `calibrate.wat`, in about 10 ms.
//!
//! The slowest loop counts, and of each loop the fastest run. Other load on the processor makes
//! runs slower, never faster. A budget that shrinks because the daemon started on a busy machine
//! would stay too small.

use std::convert::Infallible;
use std::time::Instant;

use crate::{Hook, Host, Instance, Rate, Setup, TenantLimits};

/// The module, as the compiler's input (a test compares it with `calibrate.wat`).
const LOOPS: &[u8] = include_bytes!("calibrate.wasm");

/// Runs of each loop, of about 10 us each: together longer than the time for which another virtual
/// machine holds the core at once.
const RUNS: usize = 96;

impl Host {
    /// Measures this machine. Takes about 10 ms and one instance of the pool: for the daemon's
    /// start.
    ///
    /// If the pool is used up, the default rate is returned.
    pub fn calibrated(&self) -> Rate {
        let limits = TenantLimits {
            fuel_per_call: u64::MAX,
            ..TenantLimits::default()
        };
        let loaded = self.load(LOOPS);
        let made = loaded.and_then(|policy| policy.instantiate(&Setup::new(&limits)));
        made.map_or_else(|_| Rate::default(), measure)
    }
}

fn measure(mut instance: Instance) -> Rate {
    let mut fastest = vec![u128::MAX; instance.policy().manifest().methods().len()];
    for _ in 0..RUNS {
        for (method, fastest) in (0..).zip(&mut fastest) {
            let start = Instant::now();
            let ran = instance.evaluate::<Infallible>(Hook::Request, method, 0, |_| Ok(0));
            let nanos = start.elapsed().as_nanos().max(1);
            debug_assert!(ran.is_ok(), "the loops end");
            // Picoseconds per unit.
            *fastest = (*fastest).min(nanos * 1000 / u128::from(instance.fuel_used().max(1)));
        }
    }
    let slowest = fastest.into_iter().max().unwrap_or(1).max(1);
    Rate::new(u64::try_from(1_000_000 / slowest).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    #[test]
    fn the_module_is_what_its_text_says() {
        let text = include_str!("calibrate.wat");
        assert!(
            wat::parse_str(text).unwrap() == super::LOOPS,
            "make it again: wat2wasm calibrate.wat"
        );
    }
}
