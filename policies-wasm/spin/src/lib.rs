//! An endless loop, for tests and demonstrations of the budget: everything it judges fails closed.
//!
//! With the configuration `calls N` it lets N calls pass first; with `configure` it loops while it is configured. With `work N` it ends:
//! each call passes after N rounds, so that a budget can be used up to just below its end.

#![forbid(unsafe_code)]

use tollgate_policy::{Call, Policy, Verdict};

/// How many calls pass before it loops, and what each is kept waiting for.
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
                "{config:?} is none of \"calls N\", \"work N\" and \"configure\""
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
