//! All interleavings of a sleeper with the threads that wake it: no wake-up is lost.

use super::Nudge;
use crate::sync::{AtomicUsize, Ordering};
use loom::thread;
use std::sync::Arc;

/// Three preemptions find every order of two threads' steps here: each has at most three steps that
/// the other one can see between two waits.
const PREEMPTIONS: usize = 3;

/// Starts this many threads that create work once and wake the sleeper. It sleeps until it has seen
/// all of the work; otherwise loom reports a deadlock.
fn all_work_is_seen(wakers: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        let nudge = Nudge::new().expect("a model needs no descriptors");
        let work = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..wakers)
            .map(|_| {
                let (nudge, work) = (Arc::clone(&nudge), Arc::clone(&work));
                thread::spawn(move || {
                    // Relaxed: the nudge alone orders the work before the sleeper's last look.
                    work.fetch_add(1, Ordering::Relaxed);
                    nudge.wake();
                })
            })
            .collect();
        while work.load(Ordering::Relaxed) < wakers {
            nudge.begin_sleep();
            if work.load(Ordering::Relaxed) < wakers {
                nudge.wait();
            }
            nudge.end_sleep();
        }
        for thread in threads {
            thread.join().expect("the thread ends");
        }
    });
}

#[test]
fn loom_a_sleeper_is_woken() {
    all_work_is_seen(1);
}

/// The nudge of one thread may still be on its way when the sleeper is awake again. Then it ends
/// the next sleep early.
#[test]
fn loom_a_late_nudge_hides_no_other() {
    all_work_is_seen(2);
}
