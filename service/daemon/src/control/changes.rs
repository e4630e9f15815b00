//! Administrative changes: the store, and the lock that admits one change at a time.
//!
//! Invariant: the lock is held while tenants, policies in force, settings or runtimes change.
//! Reads, records of the audit log, and the addition of a tenant need no lock.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};
use tollgate_control::audit::Actor;
use tollgate_control::{Identity, Owner, Role, Store, StoreError};
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

    /// Checks that the actor's token hasn't ended since its request came, and that the credential
    /// has the role that it had then: whoever revokes a credential, rotates it or changes its role
    /// can rely on it that the old one changes nothing afterwards.
    ///
    /// # Errors
    /// UNAUTHENTICATED: it has ended, or has another role.
    pub(super) fn require_actor(&self, actor: &Actor) -> Result<(), Status> {
        let (token, owner, name, role) = match actor {
            Actor::Credential {
                tenant,
                name,
                token,
                role,
            } => (token, Owner::Tenant(tenant.clone()), name, *role),
            Actor::Operator { name, token } => (token, Owner::Provider, name, Role::Operator),
            Actor::Admin { .. } | Actor::Daemon => return Ok(()),
        };
        let found = self.store.identity_of(token);
        let found = found.map_err(|error| store_failed(&error))?;
        let is_same = |found: Identity| {
            found.owner == owner && found.credential == *name && found.role == role
        };
        if found.is_some_and(is_same) {
            return Ok(());
        }
        let text = format!(
            "the token of {actor} ended, or its role changed, before the change began: send the request again"
        );
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tollgate_control::{Change, TokenDigest, WantedCredential};

    use super::*;

    #[test]
    fn a_credential_whose_role_changes_ends_the_changes_that_it_began() {
        let changes = Changes::new(Store::in_memory().unwrap());
        let store = changes.store();
        let token = store.add_tenant(Actor::Daemon, "acme").unwrap();
        let token = TokenDigest::of(token.reveal());
        let actor = |role| Actor::Credential {
            tenant: "acme".to_owned(),
            name: "default".to_owned(),
            token,
            role,
        };
        changes.require_actor(&actor(Role::Owner)).unwrap();
        let demoted = Change::SetCredential {
            tenant: "acme".to_owned(),
            name: "default".to_owned(),
            wanted: WantedCredential {
                role: Role::Viewer,
                token: None,
                expires: None,
            },
        };
        store.change_all(&Actor::Daemon, &[demoted]).unwrap();
        let refused = changes.require_actor(&actor(Role::Owner)).unwrap_err();
        assert_eq!(refused.code, Code::UNAUTHENTICATED, "{refused:?}");
        changes.require_actor(&actor(Role::Viewer)).unwrap();
    }
}
