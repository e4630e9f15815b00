//! The runtimes of this process, as one of them knows them: which of them each tenant is placed on.
//!
//! Invariant: the placement changes only by order of the control plane, or when a tenant leaves or
//! arrives. So after a tenant has left, everything of it that still comes here is forwarded.

use std::sync::Arc;

use crate::command::{Handle, Map};
use crate::placement::{Placement, RuntimeIndex};

/// The other runtimes of one runtime.
pub(crate) struct Siblings {
    /// The index of this runtime.
    here: RuntimeIndex,
    map: Map,
}

impl Siblings {
    /// Until it is told the placement, a runtime knows no other.
    pub(crate) fn new(here: RuntimeIndex) -> Self {
        let map = Map {
            placement: Placement::spread(here.0 + 1),
            runtimes: Vec::new(),
        };
        Self { here, map }
    }

    /// Another placement is in force.
    pub(crate) fn set(&mut self, map: Map) {
        self.map = map;
    }

    /// The runtime of a tenant, if that isn't this one.
    pub(crate) fn home_of(&self, tenant: &str) -> Option<Handle> {
        let home = self.index_of(tenant)?;
        self.get(home)
    }

    /// The index of a tenant's runtime, if that isn't this one.
    pub(crate) fn index_of(&self, tenant: &str) -> Option<RuntimeIndex> {
        let home = self.map.placement.home(tenant);
        (home != self.here).then_some(home)
    }

    pub(crate) fn get(&self, runtime: RuntimeIndex) -> Option<Handle> {
        self.map.runtimes.get(runtime.0).cloned()
    }

    /// A tenant leaves for another runtime.
    pub(crate) fn has_left(&mut self, tenant: &Arc<str>, to: RuntimeIndex) {
        self.map.placement.assign(tenant, to);
    }

    /// A tenant arrives here.
    pub(crate) fn has_arrived(&mut self, tenant: &Arc<str>) {
        self.map.placement.assign(tenant, self.here);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_elsewhere_from_its_departure_to_its_return() {
        let (mut siblings, acme) = (Siblings::new(RuntimeIndex::FIRST), Arc::from("acme"));
        assert_eq!(siblings.index_of(&acme), None, "there is no other runtime");
        siblings.set(Map {
            placement: Placement::spread(2),
            runtimes: Vec::new(),
        });
        siblings.has_left(&acme, RuntimeIndex(1));
        assert_eq!(siblings.index_of(&acme), Some(RuntimeIndex(1)));
        assert!(siblings.home_of(&acme).is_none(), "it has ended");
        siblings.has_arrived(&acme);
        assert_eq!(siblings.index_of(&acme), None);
    }
}
