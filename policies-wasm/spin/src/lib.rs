//! An endless loop, for tests and demonstrations of the budget: every call fails closed.
//!
//! With the configuration `calls N` the first N calls pass; with `configure` it loops during
//! configuration. With `work N` each call passes after N rounds, so that a test can use up almost
//! all of a budget.

#![forbid(unsafe_code)]

use tollgate_policy::{Call, Policy, Verdict};

/// The number of calls that pass before it loops, and the work per call.
pub struct Spin {
    calls_left: u64,
    rounds: u64,
}

impl Policy for Spin {
    fn configure(config: &[u8]) -> Result<Spin, String> {
        let config = str::from_utf8(config).map_err(|e| e.to_string())?;
        match config.trim().split_once(' ') {
            Some(("calls", n)) => Ok(Spin {
                calls_left: n.parse().map_err(|e| format!("calls {n:?}: {e}"))?,
                rounds: 0,
            }),
            Some(("work", n)) => Ok(Spin {
                calls_left: u64::MAX,
                rounds: n.parse().map_err(|e| format!("work {n:?}: {e}"))?,
            }),
            None if config.trim() == "configure" => spin(),
            None if config.trim().is_empty() => Ok(Spin {
                calls_left: 0,
                rounds: 0,
            }),
            _ => Err(format!(
                "{config:?} isn't `calls N`, `work N` or `configure`"
            )),
        }
    }

    fn request(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        match self.calls_left.checked_sub(1) {
            Some(left) => self.calls_left = left,
            None => spin(),
        }
        for round in 0..self.rounds {
            std::hint::black_box(round);
        }
        Verdict::Allow
    }
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

tollgate_policy::export!(
    Spin,
    r#"{ "abi": 1, "name": "spin", "hooks": ["request"], "methods": [{ "method": "*" }] }"#
);
