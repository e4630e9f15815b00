//! CPU time of an evaluation: what it costs its account.
//!
//! Two clocks are available. Reading the wall clock takes about 30 ns, but it also runs while
//! another thread has the core. The thread's CPU clock measures the thread's own time, but reading
//! it is a system call of about 300 ns. So short evaluations are measured by the wall clock, and
//! long ones by the thread's clock:
//!
//! ```text
//!   expected    actual    read before         read after   cost
//!   short       short     wall                wall         by the wall clock
//!   long        any       wall, thread        + thread     by the thread's clock, minus what has been charged since the last reading
//!   short       long      wall                + thread     by the wall clock, but at most the time that its fuel stands for
//! ```
//!
//! A preemption shorter than [`LONG_NS`] doesn't matter. An evaluation that was long once is
//! expected to be long for hundreds of times. So the last row is rare: an evaluation's first time,
//! and preemptions of short ones.

use rustix::time::{ClockId, clock_gettime};
use tollgate_engine::chain::unexpected_cost_ns;
use tollgate_shm_abi::wait::now_ns;

/// From this duration on, reading the thread's clock is worth its system call. 16 us.
pub(crate) const LONG_NS: u64 = 16_000;

/// A reading of the thread's clock.
#[derive(Clone, Copy, Debug)]
struct Look {
    thread_ns: u64,
    /// Charged since this reading, in ns.
    charged_ns: u64,
}

/// Measures consecutive evaluations.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// The wall clock at the end of the last evaluation.
    now_ns: u64,
    look: Option<Look>,
    /// Total cost in ns.
    total_ns: u64,
}

/// CPU time of the calling thread, in ns.
pub(crate) fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            now_ns: now_ns(),
            look: None,
            total_ns: 0,
        }
    }

    /// When the last evaluation ended.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Total cost of all evaluations since the start, in ns.
    #[inline]
    pub(crate) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Sets the expected duration of the next evaluation.
    #[inline]
    pub(crate) fn expect(&mut self, ns: u64) {
        if ns >= LONG_NS && self.look.is_none() {
            self.look_now();
        }
    }

    #[cold]
    fn look_now(&mut self) -> u64 {
        let thread_ns = thread_ns();
        self.look = Some(Look {
            thread_ns,
            charged_ns: 0,
        });
        self.now_ns = now_ns();
        thread_ns
    }

    /// Ends the measurement of an evaluation whose fuel stands for `fuel_ns`. Returns its cost in
    /// ns.
    #[inline]
    pub(crate) fn stop(&mut self, fuel_ns: u64) -> u64 {
        let now = now_ns();
        let wall_ns = now.saturating_sub(std::mem::replace(&mut self.now_ns, now));
        let cost_ns = if wall_ns >= LONG_NS {
            self.stop_long(wall_ns, fuel_ns)
        } else {
            if let Some(look) = &mut self.look {
                look.charged_ns += wall_ns;
            }
            wall_ns
        };
        self.total_ns += cost_ns;
        cost_ns
    }

    #[cold]
    fn stop_long(&mut self, wall_ns: u64, fuel_ns: u64) -> u64 {
        let before = self.look;
        let thread_ns = self.look_now();
        match before {
            Some(look) => thread_ns
                .saturating_sub(look.thread_ns)
                .saturating_sub(look.charged_ns),
            None => unexpected_cost_ns(wall_ns, fuel_ns),
        }
    }
}
