//! The background thread, which drives while no thread is in [`block_on`](crate::block_on).

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::thread;

use super::driven::Driven;
use super::driving::{Driving, turn};
use crate::Status;

/// A waker that starts the background thread.
pub(crate) fn starter(driven: Weak<Driven>) -> Waker {
    Waker::from(Arc::new(Starter(driven)))
}

struct Starter(Weak<Driven>);

impl Wake for Starter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A connection without a driver is over.
        let Some(driven) = self.0.upgrade() else {
            return;
        };
        let its = Arc::clone(&driven);
        let spawned = thread::Builder::new()
            .name("tollgate-session".to_owned())
            .spawn(move || drive_in_background(&its));
        if let Err(error) = spawned {
            driven.end(Status::resource_exhausted(format!(
                "can't start the thread that drives the session: {error}"
            )));
        }
    }
}

/// Drives while no thread is in [`block_on`](crate::block_on), until the session ends.
fn drive_in_background(driven: &Driven) {
    let interrupted = || driven.inner.drivers.state().interrupts_background();
    while let Some(mut driving) = Driving::begin_in_background(driven) {
        while !interrupted() {
            turn(std::slice::from_mut(&mut driving), None, interrupted);
        }
    }
}
