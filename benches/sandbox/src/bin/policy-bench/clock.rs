//! CPU time of this thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread. Other work on the machine doesn't count.
pub(crate) struct Clock(Duration);

impl Clock {
    pub(crate) fn start() -> Clock {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Clock(Duration::new(
            now.tv_sec.cast_unsigned(),
            now.tv_nsec as u32,
        ))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Clock::start().0.saturating_sub(self.0)
    }

    /// Nanoseconds for each of `count` calls.
    pub(crate) fn ns_each(&self, count: u32) -> f64 {
        self.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    }
}
