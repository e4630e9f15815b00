//! A connection together with its driver.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::driver::Driver;
use super::pending::PendingServices;
use crate::Status;
use crate::connection::Inner;

/// A connection, and the state that only its driving thread touches.
pub(crate) struct Driven {
    pub(crate) inner: Arc<Inner>,
    /// Held by the driving thread.
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

    /// The driver, if no other thread has it.
    pub(super) fn try_driver(&self) -> Option<MutexGuard<'_, Driver>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The driver, once no other thread has it.
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
        if self.inner.is_over()
            && let Ok(mut driver) = self.driver.try_lock()
        {
            driver.clear();
        }
    }
}
