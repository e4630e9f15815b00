//! Measured numbers: how they are printed, and when they fail a test.
//!
//! Each number has a bar, which the issue or a document sets, and a bound for any machine in any
//! state. CI asserts the bound. The long form asserts the bar, and needs an idle machine. Both
//! print `measured X (bar Y)`.

use std::io::Write as _;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// How often a measurement is repeated before a bad result counts as a real one and not as a stall
/// of the machine.
const AGAIN: u32 = 3;

/// Use of the machine: tests that measure times run alone, the others may run together.
static MACHINE: RwLock<()> = RwLock::new(());

/// For a test that measures times.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that only counts.
pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the bars themselves are asserted, over longer windows.
pub(crate) fn is_long() -> bool {
    std::env::var_os("TOLLGATE_ATTACKS").is_some_and(|form| form == "long")
}

/// How long an attack goes on.
pub(crate) fn window() -> Duration {
    Duration::from_secs(if is_long() { 10 } else { 2 })
}

/// A limit for a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtMost(limit) => value <= limit,
            Limit::AtLeast(limit) => value >= limit,
        }
    }

    fn words(self) -> String {
        match self {
            Limit::AtMost(limit) => format!("at most {limit}"),
            Limit::AtLeast(limit) => format!("at least {limit}"),
        }
    }
}

/// Prints a sentence past the test runner, which hides the output of a passing test.
pub(crate) fn say(sentence: &str) {
    // If nobody reads it, the error doesn't matter.
    let _unread = writeln!(std::io::stderr(), "attack: {sentence}");
}

/// Prints a number with its bar; fails beyond `bound`, and in the long form beyond the bar.
#[track_caller]
pub(crate) fn measured(what: &str, value: f64, bar: Limit, bound: Limit) {
    say(&format!(
        "{what}: measured {value:.2} (bar {})",
        bar.words()
    ));
    assert!(
        bound.holds(value),
        "{what}: {value} is not {}",
        bound.words()
    );
    assert!(
        !is_long() || bar.holds(value),
        "{what}: {value} is not {}",
        bar.words()
    );
}

/// Measures up to [`AGAIN`] times until a result fits, because a bad result may be a stall of the
/// machine. The last result counts.
pub(crate) fn unless_stalled<T>(mut measure: impl FnMut() -> T, fits: impl Fn(&T) -> bool) -> T {
    let mut result = measure();
    for _ in 1..AGAIN {
        if fits(&result) {
            break;
        }
        result = measure();
    }
    result
}

/// The 99th percentile.
#[track_caller]
pub(crate) fn p99(sorted: &[u64]) -> f64 {
    assert!(sorted.len() > 200, "only {} calls", sorted.len());
    sorted[sorted.len() * 99 / 100] as f64
}
