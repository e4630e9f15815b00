//! The thread of a runtime: its core, its patience, and how it spends its time.
//!
//! Invariants: only the thread itself calls these functions, because a thread can pin only itself.
//! Each stretch of time counts as exactly one activity. Once the thread is told to end, it ends
//! after its current turn.

use rustix::thread::CpuSet;
use tollgate_shm_abi::wait::{For, Patience, Step};

use crate::placement::RuntimeIndex;
use crate::report::{Doing, RuntimeTimes};
use crate::tuning::Tuning;

/// A runtime's thread.
pub(super) struct Thread {
    /// The runtime's index, for the log.
    runtime: RuntimeIndex,
    /// The cores that the thread had before it was pinned; `None`: it hasn't started, or the kernel
    /// doesn't say.
    everywhere: Option<CpuSet>,
    pinned: Option<usize>,
    patience: Patience,
    doing: Doing,
    times: RuntimeTimes,
    ends: bool,
}

impl Thread {
    pub(super) fn new(runtime: RuntimeIndex, tuning: &Tuning) -> Self {
        Self {
            runtime,
            everywhere: None,
            pinned: None,
            patience: tuning.patience(),
            doing: Doing::Spinning,
            times: RuntimeTimes::default(),
            ends: false,
        }
    }

    /// The thread starts.
    pub(super) fn start(&mut self, core: Option<usize>) {
        self.everywhere = rustix::thread::sched_getaffinity(None).ok();
        self.pin(core);
    }

    /// Switches from the settings `before` to others.
    pub(super) fn tune(&mut self, before: &Tuning, tuning: &Tuning) {
        if (before.waiting, before.spin_us) != (tuning.waiting, tuning.spin_us) {
            // It was learned with the other budget.
            self.patience = tuning.patience();
        }
        self.pin(tuning.core);
    }

    /// Pins the thread to its core; without a core, restores the cores that it had before.
    fn pin(&mut self, core: Option<usize>) {
        if core == self.pinned {
            return;
        }
        let only = core.map(|core| {
            let mut set = CpuSet::new();
            set.set(core);
            set
        });
        let Some(set) = only.as_ref().or(self.everywhere.as_ref()) else {
            return;
        };
        match rustix::thread::sched_setaffinity(None, set) {
            Ok(()) => self.pinned = core,
            Err(error) => {
                let index = self.runtime;
                let cores =
                    core.map_or_else(|| "all its cores".to_owned(), |core| format!("core {core}"));
                tracing::warn!("runtime {index} can't be pinned to {cores}: {error}");
            }
        }
    }

    /// A new turn begins: the last `ns` count as the current activity.
    #[inline]
    pub(super) fn count(&mut self, ns: u64) {
        self.times.add(self.doing, ns);
    }

    /// The turn had work.
    #[inline]
    pub(super) fn has_worked(&mut self) {
        self.doing = Doing::Busy;
        self.patience.reset();
    }

    /// The turn had no work, and the next input will be of this kind. Whether the thread must sleep
    /// now.
    #[inline]
    pub(super) fn must_sleep(&mut self, awaits: For) -> bool {
        let sleeps = self.patience.step(awaits) == Step::Sleep;
        self.doing = match sleeps {
            true => Doing::Sleeping,
            false => Doing::Spinning,
        };
        sleeps
    }

    /// The thread has slept.
    pub(super) fn has_slept(&mut self) {
        self.patience.reset();
    }

    /// The thread ends after its current turn.
    pub(super) fn end(&mut self) {
        self.ends = true;
    }

    #[inline]
    pub(super) fn ends(&self) -> bool {
        self.ends
    }

    /// The core that the thread is pinned to.
    pub(super) fn core(&self) -> Option<usize> {
        self.pinned
    }

    pub(super) fn times(&self) -> RuntimeTimes {
        self.times
    }
}
