//! Administrative changes: the store, and the lock that admits one change at a time.
//!
//! Invariant: the lock is held while tenants, policies in force, settings or runtimes change.
//! Reads, records of the audit log, and the addition of a tenant or a version need no lock.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};
use tollgate_control::audit::Actor;
use tollgate_control::{Owner, Store, StoreError};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::refusals::store_failed;

/// The stored state, and the lock of its changes.
pub(super) struct Changes {
    store: Arc<Store>,
    /// One administrative change at a time.
    changing: Mutex<()>,
}

/// While this exists, no other change begins.
pub(super) type OneAtATime<'c> = MutexGuard<'c, ()>;

impl Changes {
    pub(super) fn new(store: Store) -> Changes {
        let changing = Mutex::new(());
        let store = Arc::new(store);
        Changes { store, changing }
    }

    /// Uses the store on a blocking thread. What may write there holds the lock of changes: others
    /// then wait for the lock, and not on their thread for the file.
    ///
    /// # Errors
    /// As for what it does; INTERNAL: it panicked.
    pub(super) async fn on_blocking_thread<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Status> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || look(&store));
        let done = done.await.map_err(|error| {
            let text = format!("using the stored state failed: {error}");
            Status::new(Code::INTERNAL, text)
        })?;
        done.map_err(|error| store_failed(&error))
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Begins an actor's change.
    ///
    /// # Errors
    /// UNAVAILABLE: another process is about to take over; changes would be lost. UNAUTHENTICATED:
    /// see [`Changes::require_actor`].
    pub(super) async fn begin(&self, actor: &Actor) -> Result<OneAtATime<'_>, Status> {
        if self.store.is_held() {
            return Err(store_failed(&StoreError::HandedOver));
        }
        let changing = self.changing.lock().await;
        // Meanwhile another process may have taken over.
        if self.store.is_held() {
            return Err(store_failed(&StoreError::HandedOver));
        }
        self.require_actor(actor)?;
        Ok(changing)
    }

    /// Checks that the actor's token hasn't ended since its request came: whoever revokes a
    /// credential, or rotates it, can rely on it that the old token changes nothing afterwards.
    ///
    /// # Errors
    /// UNAUTHENTICATED: it has.
    pub(super) fn require_actor(&self, actor: &Actor) -> Result<(), Status> {
        let (token, owner, name) = match actor {
            Actor::Credential {
                tenant,
                name,
                token,
            } => (token, Owner::Tenant(tenant.clone()), name),
            Actor::Operator { name, token } => (token, Owner::Provider, name),
            Actor::Admin { .. } | Actor::Daemon => return Ok(()),
        };
        let found = self.store.identity_of(token);
        let found = found.map_err(|error| store_failed(&error))?;
        if found.is_some_and(|found| found.owner == owner && found.credential == *name) {
            return Ok(());
        }
        let text = format!("the token of {actor} ended before the request began");
        Err(Status::new(Code::UNAUTHENTICATED, text))
    }

    /// Begins a change that the daemon makes by itself.
    pub(super) async fn begin_own(&self) -> OneAtATime<'_> {
        self.changing.lock().await
    }

    /// The provider always exists.
    pub(super) fn require_owner(&self, owner: &Owner) -> Result<(), Status> {
        let required = self.store.require_owner(owner);
        required.map_err(|error| store_failed(&error))
    }
}
