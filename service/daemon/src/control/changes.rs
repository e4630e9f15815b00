//! Administrative changes: the store, and the lock that admits one change at a time.
//!
//! Invariant: the lock is held while tenants, policies in force, settings or runtimes change.
//! Reads, records of the audit log, and the addition of a tenant or a version need no lock.

use tokio::sync::{Mutex, MutexGuard};
use tollgate_control::{Owner, Store, StoreError};
use tollgate_engine::Status;

use crate::control::refusals::store_failed;

/// The stored state, and the lock of its changes.
pub(super) struct Changes {
    store: Store,
    /// One administrative change at a time.
    changing: Mutex<()>,
}

/// While this exists, no other change begins.
pub(super) type OneAtATime<'c> = MutexGuard<'c, ()>;

impl Changes {
    pub(super) fn new(store: Store) -> Changes {
        let changing = Mutex::new(());
        Changes { store, changing }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Begins an operator's change.
    ///
    /// # Errors
    /// Another process is about to take over; changes would be lost.
    pub(super) async fn begin(&self) -> Result<OneAtATime<'_>, Status> {
        if self.store.is_held() {
            return Err(store_failed(&StoreError::HandedOver));
        }
        Ok(self.changing.lock().await)
    }

    /// Begins a change that the daemon makes by itself.
    pub(super) async fn begin_own(&self) -> OneAtATime<'_> {
        self.changing.lock().await
    }

    /// Begins a change now; `None`: another one is in progress.
    pub(super) fn try_begin(&self) -> Option<OneAtATime<'_>> {
        self.changing.try_lock().ok()
    }

    /// The provider always exists.
    pub(super) fn require_owner(&self, owner: &Owner) -> Result<(), Status> {
        let required = self.store.require_owner(owner);
        required.map_err(|error| store_failed(&error))
    }
}
