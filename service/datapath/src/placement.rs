//! The runtime of each tenant. A tenant is on one runtime only, so no call crosses threads.
//!
//! By default a hash of the name decides; an operator can override it. The control plane has the
//! placement, and each runtime has the last version that it was told. The versions may differ
//! briefly while a tenant moves: a runtime that receives something of a tenant on another runtime
//! forwards it, and the runtime that a tenant has left is the first to know where it went.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};
use tollgate_engine::EngineId;

/// The index of a runtime in its process, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuntimeIndex(pub usize);

impl RuntimeIndex {
    /// The runtime that every daemon has.
    pub const FIRST: RuntimeIndex = RuntimeIndex(0);

    /// The indices of this many runtimes.
    pub fn all(runtimes: usize) -> impl Iterator<Item = RuntimeIndex> {
        (0..runtimes).map(RuntimeIndex)
    }

    /// The runtime after this one, in turns.
    pub fn next_of(self, runtimes: usize) -> RuntimeIndex {
        RuntimeIndex((self.0 + 1) % runtimes)
    }
}

impl fmt::Display for RuntimeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The placement of tenants on runtimes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The number of runtimes.
    pub runtimes: usize,
    /// Tenants with an override of their hash placement.
    pub assigned: HashMap<Arc<str>, RuntimeIndex>,
}

impl Placement {
    /// Hash placement only.
    pub fn spread(runtimes: usize) -> Self {
        Self {
            runtimes: runtimes.max(1),
            assigned: HashMap::new(),
        }
    }

    /// The runtime of a tenant.
    pub fn home(&self, tenant: &str) -> RuntimeIndex {
        let assigned = self.assigned.get(tenant).copied();
        // If the assigned runtime does not exist, the hash placement applies.
        let assigned = assigned.filter(|runtime| runtime.0 < self.runtimes);
        assigned.unwrap_or_else(|| spread(tenant, self.runtimes))
    }

    /// Overrides the placement of a tenant.
    pub fn assign(&mut self, tenant: &Arc<str>, runtime: RuntimeIndex) {
        self.assigned.insert(Arc::clone(tenant), runtime);
    }
}

/// The hash placement of a name: stable (FNV-1a).
fn spread(tenant: &str, runtimes: usize) -> RuntimeIndex {
    let hash = tenant
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    RuntimeIndex((hash % runtimes.max(1) as u64) as usize)
}

/// The number of engine ids that this process has used, including those of processes that it has
/// taken over from.
static NEXT_ENGINE_ID: AtomicU32 = AtomicU32::new(0);

/// An unused engine id. `None`: all are used up.
pub fn next_engine_id() -> Option<EngineId> {
    EngineId::new(NEXT_ENGINE_ID.fetch_add(1, Ordering::Relaxed))
}

/// Marks an id as used by another process's engine.
pub(crate) fn note_engine_id(engine_id: EngineId) {
    NEXT_ENGINE_ID.fetch_max(engine_id.number() + 1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_lives_where_it_was_assigned_or_where_its_name_says() {
        let mut placement = Placement::spread(2);
        let by_name = placement.home("acme");
        let other = by_name.next_of(2);
        assert_eq!(Placement::spread(2).home("acme"), by_name);
        placement.assign(&"acme".into(), other);
        assert_eq!(placement.home("acme"), other);
        placement.assign(&"acme".into(), RuntimeIndex(2));
        assert_eq!(placement.home("acme"), by_name, "there is no such runtime");
        let homes: Vec<_> = (0..64).map(|k| placement.home(&format!("t{k}"))).collect();
        assert!(RuntimeIndex::all(2).all(|index| homes.contains(&index)));
        assert_eq!(Placement::spread(0).home("acme"), RuntimeIndex::FIRST);
    }
}
