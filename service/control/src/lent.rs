//! A store's database during a hand-over between daemons: it says which process may change it, so
//! that no change is lost.
//!
//! ```text
//!   the daemon that goes:   Own ─ hold ─▶ Changes ─ let_go ─▶ (nothing) ─ the other fails: resume ─▶ Own
//!   the one that comes:     a copy, Everything ──────────────────────────────────────── resume ─▶ Own
//! ```
//!
//! While changes are held, records that aren't changes, such as a policy's fault, are still
//! written.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};

use crate::error::StoreError;

/// What is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nothing.
    Own,
    /// Changes; records are made.
    Changes,
    /// Changes and records: it is a copy, and they would be lost.
    Everything {
        /// A change or a record was asked for.
        asked: bool,
    },
}

#[derive(Debug)]
struct State {
    database: Option<Database>,
    held: Held,
}

/// A database that may be lent to another process.
#[derive(Debug)]
pub(crate) struct Lent(RwLock<State>);

impl Lent {
    pub(crate) fn new(database: Database, held: Held) -> Lent {
        let database = Some(database);
        Lent(RwLock::new(State { database, held }))
    }

    pub(crate) fn begin_read(&self) -> Result<ReadTransaction, StoreError> {
        let state = self.state();
        let database = state.database.as_ref().ok_or(StoreError::HandedOver)?;
        Ok(database.begin_read()?)
    }

    /// Begins a change, or only a record.
    pub(crate) fn begin_write(&self, changes: bool) -> Result<WriteTransaction, StoreError> {
        if self.refuses(changes) {
            return Err(StoreError::HandedOver);
        }
        let state = self.state();
        let database = state.database.as_ref().ok_or(StoreError::HandedOver)?;
        Ok(database.begin_write()?)
    }

    fn refuses(&self, changes: bool) -> bool {
        match &mut self.state_mut().held {
            Held::Own => false,
            Held::Changes => changes,
            Held::Everything { asked } => {
                *asked = true;
                true
            }
        }
    }

    pub(crate) fn held(&self) -> Held {
        self.state().held
    }

    pub(crate) fn hold(&self, held: Held) {
        self.state_mut().held = held;
    }

    /// Closes the file, so that another process can open it.
    pub(crate) fn let_go(&self) {
        self.state_mut().database = None;
    }

    #[cfg(test)]
    pub(crate) fn look<T>(
        &self,
        look: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let state = self.state();
        look(state.database.as_ref().ok_or(StoreError::HandedOver)?)
    }

    /// Whether the database is open.
    pub(crate) fn is_open(&self) -> bool {
        self.state().database.is_some()
    }

    /// Takes the database of another one. What is rejected stays the same.
    pub(crate) fn replace(&self, by: Lent) {
        let by = by.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.state_mut().database = by.database;
    }

    // A panic can leave the lock between two assignments at most.

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
