//! The runtimes of tenants, and the gates that keep requests away while a tenant moves.
//!
//! Invariants: [`Homes::of`] is the runtime that the tenant's sessions, bindings and attachments
//! name, except within a move. Only the holder of a tenant's shut gate, or of the lock of
//! [changes](crate::control::changes), changes its runtime. No borrow outlives a method, so none is
//! held across a wait.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use tokio::time::timeout;
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::limits::{MAX_SESSIONS, MOVE_PATIENCE};
use tollgate_datapath::{Placement, RuntimeIndex};

/// While this exists, no request about the tenant is served.
pub(crate) type Shut = OwnedRwLockWriteGuard<()>;

/// Each tenant's runtime, gate and last move.
pub(crate) struct Homes {
    placement: RefCell<Placement>,
    /// Held for reading while a request of the tenant's applications is served, for writing while
    /// the tenant moves.
    gates: RefCell<HashMap<String, Arc<RwLock<()>>>>,
    /// The pause of each tenant's last move.
    pauses: RefCell<HashMap<String, Duration>>,
}

impl Homes {
    pub(crate) fn new(placement: Placement) -> Homes {
        Homes {
            placement: RefCell::new(placement),
            gates: RefCell::default(),
            pauses: RefCell::default(),
        }
    }

    /// A tenant's runtime.
    pub(crate) fn of(&self, tenant: &str) -> RuntimeIndex {
        self.placement.borrow().home(tenant)
    }

    /// A copy of the placement in force.
    pub(crate) fn placement(&self) -> Placement {
        self.placement.borrow().clone()
    }

    /// Puts a placement in force.
    pub(crate) fn place(&self, placement: Placement) {
        self.placement.replace(placement);
    }

    /// A tenant has moved. If it stays there, this is its runtime from now on.
    pub(crate) fn moved(&self, tenant: &str, to: Option<RuntimeIndex>, pause: Duration) {
        if let Some(to) = to {
            self.placement.borrow_mut().assign(&tenant.into(), to);
        }
        let mut pauses = self.pauses.borrow_mut();
        pauses.insert(tenant.to_owned(), pause);
    }

    /// Forgets a removed tenant. Returns whether the placement has changed.
    pub(crate) fn forget(&self, tenant: &str) -> bool {
        self.pauses.borrow_mut().remove(tenant);
        let mut placement = self.placement.borrow_mut();
        placement.assigned.remove(tenant).is_some()
    }

    /// A tenant's gate.
    pub(crate) fn gate(&self, tenant: &str) -> Arc<RwLock<()>> {
        let mut gates = self.gates.borrow_mut();
        if gates.len() > 2 * MAX_SESSIONS {
            // Drops unused gates.
            gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        Arc::clone(gates.entry(tenant.to_owned()).or_default())
    }

    /// Waits until no request of the tenant's applications is in flight.
    pub(crate) async fn shut_gate(&self, tenant: &str) -> Result<Shut, Status> {
        let shut = timeout(MOVE_PATIENCE, self.gate(tenant).write_owned()).await;
        shut.map_err(|_elapsed| {
            let text = format!(
                "a binding of tenant {tenant} is still pending after {MOVE_PATIENCE:?}: try again"
            );
            Status::new(Code::UNAVAILABLE, text)
        })
    }

    /// For `status`: each tenant's runtime, whether an operator set it, and the pause of its last
    /// move.
    pub(crate) fn report(&self, tenants: &[String]) -> Value {
        let (placement, pauses) = (self.placement.borrow(), self.pauses.borrow());
        let home = |tenant: &String| {
            let runtime = placement.home(tenant);
            let pause = pauses.get(tenant).map(|pause| pause.as_micros() as u64);
            json!({
                "tenant": tenant, "runtime": runtime, "moved": placement.assigned.get(tenant.as_str()) == Some(&runtime),
                "pause_us": pause,
            })
        };
        tenants.iter().map(home).collect()
    }
}
