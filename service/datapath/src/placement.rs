//! The runtime of each tenant. A tenant is on one runtime only, so no call crosses threads.
//!
//! By default a hash of the name decides; an operator can override it. The control plane has the
//! placement, and each runtime has the last version that it was told. The versions may differ
//! briefly while a tenant moves: a runtime that receives something of a tenant on another runtime
//! forwards it, and the runtime that a tenant has left is the first to know where it went.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_engine::Birth;

/// Which tenant lives where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How many runtimes there are.
    pub runtimes: usize,
    /// Tenants that don't live where their name says.
    pub assigned: HashMap<Arc<str>, usize>,
}

impl Placement {
    /// By names only.
    pub fn spread(runtimes: usize) -> Self {
        Self {
            runtimes: runtimes.max(1),
            assigned: HashMap::new(),
        }
    }

    /// Where a tenant lives.
    pub fn home(&self, tenant: &str) -> usize {
        let assigned = self.assigned.get(tenant).copied();
        // What was assigned to a runtime that there isn't goes by its name.
        let assigned = assigned.filter(|runtime| *runtime < self.runtimes);
        assigned.unwrap_or_else(|| spread(tenant, self.runtimes))
    }

    /// Says where a tenant lives from now on.
    pub fn assign(&mut self, tenant: &Arc<str>, runtime: usize) {
        self.assigned.insert(Arc::clone(tenant), runtime);
    }
}

/// The runtime that a name stands for: stable (FNV-1a).
fn spread(tenant: &str, runtimes: usize) -> usize {
    let hash = tenant
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    (hash % runtimes.max(1) as u64) as usize
}

/// Births that engines of this process have had, or of those that it has taken over from.
static BIRTHS: AtomicU32 = AtomicU32::new(0);

/// One that no engine has had. `None`: there are no more.
pub fn next_birth() -> Option<Birth> {
    Birth::new(BIRTHS.fetch_add(1, Ordering::Relaxed))
}

/// Another process' engine has had this one.
pub(crate) fn note_birth(birth: Birth) {
    BIRTHS.fetch_max(birth.number() + 1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_lives_where_it_was_assigned_or_where_its_name_says() {
        let mut placement = Placement::spread(2);
        let by_name = placement.home("acme");
        assert_eq!(Placement::spread(2).home("acme"), by_name);
        placement.assign(&"acme".into(), 1 - by_name);
        assert_eq!(placement.home("acme"), 1 - by_name);
        placement.assign(&"acme".into(), 2);
        assert_eq!(placement.home("acme"), by_name, "there is no such runtime");
        let homes: Vec<_> = (0..64).map(|k| placement.home(&format!("t{k}"))).collect();
        assert!(homes.contains(&0) && homes.contains(&1));
        assert_eq!(Placement::spread(0).home("acme"), 0);
    }
}
