//! Deadlines that a call passes on to the calls of its handler.
//!
//! While a handler is polled, the calls that it begins get the handler's deadline, unless their own
//! is earlier. So no server works for a caller that has given up, at any depth. Futures that a
//! handler gives to other threads or executors don't get the deadline.

use std::cell::Cell;
use std::time::Duration;

use tollgate_shm_abi::wait::now_ns;

thread_local! {
    /// The deadline of the handler that this thread is polling; absolute, 0 for none.
    static INHERITED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Runs `work` for a call with this deadline; 0 for none.
pub(crate) fn within<R>(deadline_ns: u64, work: impl FnOnce() -> R) -> R {
    /// Restores the previous deadline, also after a panic.
    struct Before(u64);
    impl Drop for Before {
        fn drop(&mut self) {
            INHERITED_NS.set(self.0);
        }
    }
    let _before = Before(INHERITED_NS.replace(deadline_ns));
    work()
}

/// When the caller of an incoming call gives up, if ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Absolute CLOCK_MONOTONIC; 0 for none.
    pub(crate) ns: u64,
}

impl Deadline {
    /// The time until then; `None` without one.
    pub fn time_left(self) -> Option<Duration> {
        (self.ns != 0).then(|| Duration::from_nanos(self.ns.saturating_sub(now_ns())))
    }

    /// Runs `work` for the call. Calls that this thread begins meanwhile get its deadline, unless
    /// their own is earlier.
    pub fn within<R>(self, work: impl FnOnce() -> R) -> R {
        within(self.ns, work)
    }
}

/// The deadline of a call that begins now: absolute, 0 for none.
pub(crate) fn of_call(timeout: Option<Duration>) -> u64 {
    let own_ns = timeout.map_or(0, |timeout| {
        now_ns().saturating_add(timeout.as_nanos() as u64).max(1)
    });
    match (own_ns, INHERITED_NS.get()) {
        (0, inherited_ns) => inherited_ns,
        (own_ns, 0) => own_ns,
        (own_ns, inherited_ns) => own_ns.min(inherited_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_of_both_counts_while_a_handler_runs() {
        let soon = now_ns() + 50_000_000_000;
        assert_eq!(of_call(None), 0);
        within(soon, || {
            assert_eq!(of_call(None), soon);
            assert_eq!(of_call(Some(Duration::from_secs(100))), soon);
            assert!(of_call(Some(Duration::ZERO)) < soon);
            within(0, || assert_eq!(of_call(None), 0));
            let _panicked = std::panic::catch_unwind(|| within(1, || panic!("a handler's")));
            assert_eq!(of_call(None), soon);
        });
        assert!(of_call(Some(Duration::from_secs(100))) > soon);
    }
}
