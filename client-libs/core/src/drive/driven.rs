//! A connection together with its driver.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::Driver;
use super::pending::PendingServices;
use crate::Status;
use crate::connection::Inner;

/// A connection, and the state that only its driving thread touches.
pub(crate) struct Driven {
    pub(crate) inner: Arc<Inner>,
    /// Locked by the thread that drives. No thread ever waits for the lock: [`Drivers`] gives the
    /// right to drive to one thread.
    ///
    /// [`Drivers`]: crate::drivers::Drivers
    driver: Mutex<Driver>,
    /// Shared with the driver.
    pub(crate) pending: Arc<PendingServices>,
}

impl Driven {
    pub(crate) fn new(inner: Arc<Inner>, driver: Driver, pending: Arc<PendingServices>) -> Driven {
        Driven {
            inner,
            driver: Mutex::new(driver),
            pending,
        }
    }

    /// The driver, for the thread that has taken the right to drive. A panic of the program's
    /// future in [`block_on`](crate::block_on) poisons the lock; the driver is consistent then.
    pub(super) fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session as [`Inner::end`] does, and drops its handlers, unless a thread drives.
    /// Then that thread drops them.
    pub(crate) fn end(&self, status: Status) {
        self.inner.end(status);
        self.clear_if_over();
    }

    /// Drops handlers and services once the session has ended. If a thread drives, that thread
    /// drops them.
    pub(crate) fn clear_if_over(&self) {
        if self.inner.is_over() && self.inner.drivers.try_take() {
            self.driver().clear(&self.inner);
            self.inner.drivers.leave();
        }
    }
}
