//! The program's code on the library's threads: handlers, wakers, destructors. A panic ends only
//! the code that panicked.
//!
//! All code of the program shares the thread that drives a session or runs handlers, and no other
//! thread replaces it. So all such code runs in [`contain`].
//!
//! Absent: programs that are built with `panic = "abort"`. There a panic ends the process at once,
//! and the daemon answers its calls.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Runs code of the program. `None`: it panicked. State that it has touched isn't used afterwards,
/// or is consistent at each step.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(payload) => {
            discard(payload);
            None
        }
    }
}

/// Drops the payload of a panic. That may panic, too. Dropping the second payload may also panic,
/// so it is leaked.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

/// Wakes a future of the program, on any executor.
pub(crate) fn wake(waker: Waker) {
    contain(|| waker.wake());
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn payloads_that_panic_when_they_are_dropped_are_contained() {
        assert_eq!(contain(|| 7), Some(7));
        for depth in 0..4 {
            assert_eq!(contain(|| std::panic::panic_any(Bomb(depth))), None::<()>);
        }
    }
}
