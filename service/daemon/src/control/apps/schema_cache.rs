//! The cached schemas, shared by all requests.
//!
//! Invariant: no borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;
use std::sync::Arc;

use tollgate_engine::Status;
use tollgate_jit::on_demand::Compiler;

use crate::control::apps::schemas::{
    BoundSchema, Bringer, Resolved, SchemaCounters, Schemas, SetKey,
};

/// The cached schemas.
pub(crate) struct SchemaCache(RefCell<Schemas>);

impl SchemaCache {
    pub(crate) fn new(compiler: Compiler) -> SchemaCache {
        SchemaCache(RefCell::new(Schemas::new(compiler)))
    }

    /// The schema of a descriptor set that was bound before, if it is still in memory.
    pub(super) fn known(&self, key: &SetKey) -> Option<Arc<BoundSchema>> {
        self.0.borrow_mut().known(key)
    }

    /// The cached schema that equals this one, or a new one. `key` is cached, too.
    pub(super) fn intern(
        &self,
        key: SetKey,
        resolved: Resolved,
        set: &[u8],
        by: &Bringer,
    ) -> Result<Arc<BoundSchema>, Status> {
        self.0.borrow_mut().intern(key, resolved, set, by)
    }

    /// Like [`intern`](Self::intern), but before a binding; the schema is never dropped.
    pub(super) fn keep(
        &self,
        key: SetKey,
        resolved: Resolved,
        set: &[u8],
    ) -> Result<Arc<BoundSchema>, Status> {
        self.0.borrow_mut().keep(key, resolved, set)
    }

    /// An operator's schema, which isn't cached; the cached one if it equals.
    pub(crate) fn lent(&self, resolved: Resolved, set: &[u8]) -> Arc<BoundSchema> {
        self.0.borrow().lent(resolved, set, &None)
    }

    /// The cached schema with this hash.
    pub(crate) fn of_hash(&self, hash: &[u8; 32]) -> Option<Arc<BoundSchema>> {
        self.0.borrow().of_hash(hash)
    }

    /// Every cached schema.
    pub(crate) fn all(&self) -> Vec<Arc<BoundSchema>> {
        self.0.borrow().all().cloned().collect()
    }

    pub(crate) fn counters(&self) -> SchemaCounters {
        self.0.borrow().counters()
    }
}
