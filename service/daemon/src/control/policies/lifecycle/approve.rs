//! An operator approves a tenant's change that waits: it is made as it was requested, or not at
//! all.

use std::rc::Rc;

use serde_json::json;
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Approval, ApprovalState, Role, StoreError};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::policies::lifecycle::candidates::Compiles;
use crate::control::policies::lifecycle::operator::{
    Step, attaching, check_all, stepping, upgrading,
};
use crate::control::policies::lifecycle::orders::Order;
use crate::control::policies::lifecycle::{Plan, Told, refused};
use crate::control::refusals::internal;
use crate::control::state::Control;
use tollgate_policy_chain::ids::VersionNumber;

impl Control {
    /// Carries out a request that waits, as it came, for an operator who approves it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: it is decided already, its token has ended, or it would change
    /// something else now. And those of the change itself. The request waits on.
    pub(in crate::control) async fn approve(
        self: &Rc<Self>,
        operator: Actor,
        tenant: &str,
        number: u64,
    ) -> Result<(), Status> {
        let store = self.changes.store();
        let waiting = || {
            let held = store.approval(tenant, number).map_err(refused)?;
            match held.state {
                ApprovalState::Waiting => Ok(held),
                state => Err(refused(StoreError::Decided {
                    tenant: tenant.to_owned(),
                    number,
                    state: state.name(),
                })),
            }
        };
        let held = waiting()?;
        let asker = Actor::Credential {
            tenant: tenant.to_owned(),
            name: held.credential.clone(),
            token: held.token,
            role: Role::Owner,
        };
        self.changes
            .require_actor(&asker)
            .map_err(|status| match status.code {
                Code::UNAUTHENTICATED => token_ended(&held),
                _ => status,
            })?;
        let order = serde_json::from_slice(&held.order).map_err(internal)?;
        let compiles = match order {
            Order::Promote(_) => Compiles::InAnyCase,
            Order::Attach(_) | Order::Upgrade(_) => Compiles::WithinCeiling,
        };
        let sketch = || sketched(self, &order);
        let (plans, prepared, _one_at_a_time) = self.loaded(&asker, compiles, sketch).await?;
        self.changes.require_actor(&operator)?;
        // It may have been withdrawn meanwhile.
        waiting()?;
        let act = held.what["act"].as_str().unwrap_or_default();
        if self.what(act, &plans)? != held.what {
            return Err(changed(&held));
        }
        check_all(self, &plans, &[])?;
        let details = json!({
            "tenant": tenant, "request": number, "credential": held.credential, "what": held.what,
        });
        let told = Told {
            actor: operator,
            event: Event::ApprovalGrant,
            details,
            approval: Some((tenant.to_owned(), number)),
        };
        self.carry_out(plans, prepared, told).await
    }
}

/// The plans of a stored order.
fn sketched(control: &Control, order: &Order) -> Result<Vec<Plan<VersionNumber>>, Status> {
    match order {
        Order::Attach(order) => Ok(vec![attaching(control, order)?]),
        Order::Upgrade(order) => upgrading(control, order),
        Order::Promote(at) => stepping(control.changes.store(), Step::Promote, at),
    }
}

fn token_ended(held: &Approval) -> Status {
    let Approval {
        tenant,
        number,
        credential,
        ..
    } = held;
    let text = format!(
        "request {tenant}/{number} can't be carried out: the token of credential {credential} that asked was rotated or revoked, or has expired; \
         deny the request, and let the tenant ask again"
    );
    Status::new(Code::FAILED_PRECONDITION, text)
}

fn changed(held: &Approval) -> Status {
    let Approval { tenant, number, .. } = held;
    let text = format!(
        "request {tenant}/{number} would change something else now than when it came: the place or the ceiling is different; \
         deny the request, and let the tenant ask again"
    );
    Status::new(Code::FAILED_PRECONDITION, text)
}
