//! How long a judgement has had the core: what it costs its account.
//!
//! Two clocks are there. The wall's takes some 30 ns to look at, and goes on while somebody else has the core. The thread's own says
//! what it really had, and takes a system call of some 300 ns. So short judgements are taken by the wall's clock, and long ones by
//! the thread's:
//!
//! ```text
//!   expected    found     looked at before    after        cost
//!   short       short     wall                wall         by the wall
//!   long        any       wall, thread        + thread     by the thread, less what has been charged since the look before
//!   short       long      wall                + thread     by the wall, but no more than its fuel stands for
//! ```
//!
//! Nobody is preempted for less than [`LONG_NS`] worth talking about, and what was long once is expected to be long for
//! hundreds of times, so the last row is rare: a judgement's first time, and preemptions of short ones.

use rustix::time::{ClockId, clock_gettime};
use tollgate_engine::chain::unexpected_cost_ns;
use tollgate_shm_abi::wait::now_ns;

/// From here on the thread's clock is worth its system call. 16 us.
pub(crate) const LONG_NS: u64 = 16_000;

/// What the thread's clock showed.
#[derive(Clone, Copy, Debug)]
struct Look {
    thread_ns: u64,
    /// What has been charged since.
    charged_ns: u64,
}

/// Measures one judgement after the other.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// The wall's clock when the last one ended.
    now_ns: u64,
    look: Option<Look>,
    /// What they have cost together.
    total_ns: u64,
}

/// What the calling thread has had of its core.
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

    /// When the last judgement ended.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What all judgements since the start have cost.
    #[inline]
    pub(crate) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The next judgement is expected to take so long.
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

    /// A judgement is over whose fuel stands for `fuel_ns`. Returns what it costs.
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
