//! Requests for an operator's approval: shown, decided, withdrawn, and ended after their time.

use std::rc::Rc;

use serde_json::Value;
use tollgate_admin::from_json;
use tollgate_admin::proto::{
    self, ApprovalId, DecideApprovalRequest, ListApprovalsResponse, ShowApprovalResponse,
    WithdrawApprovalRequest,
};
use tollgate_control::audit::Actor;
use tollgate_control::{Approval, ApprovalState, NewDecision, Store};
use tollgate_engine::Status;

use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::APPROVAL_LOOK;

/// Requests of a tenant, or those of all tenants that wait.
///
/// # Errors
/// NOT_FOUND: there is no such tenant.
pub(in crate::control) fn list(
    store: &Store,
    tenant: &str,
) -> Result<ListApprovalsResponse, Status> {
    let tenant = Some(tenant).filter(|tenant| !tenant.is_empty());
    let (found, more) = store
        .approvals(tenant)
        .map_err(|error| store_failed(&error))?;
    let approvals = found.into_iter().map(|one| shown(store, one)).collect();
    Ok(ListApprovalsResponse { approvals, more })
}

/// One request, with everything that it would change.
///
/// # Errors
/// NOT_FOUND: there is no such tenant or request.
pub(in crate::control) fn show(
    store: &Store,
    tenant: &str,
    number: u64,
) -> Result<ShowApprovalResponse, Status> {
    let found = store.approval(tenant, number);
    let found = found.map_err(|error| store_failed(&error))?;
    let report = Some(from_json(found.what.clone()));
    let approval = Some(shown(store, found));
    Ok(ShowApprovalResponse { approval, report })
}

/// Carries a request out, or denies it.
///
/// # Errors
/// See [`Control::approve`]; INVALID_ARGUMENT: the reason is too long, or for an approval.
pub(in crate::control) async fn decide(
    control: &Rc<Control>,
    actor: Actor,
    request: &DecideApprovalRequest,
) -> Result<(), Status> {
    let DecideApprovalRequest {
        tenant,
        number,
        deny,
        reason,
    } = request;
    if !deny {
        if !reason.is_empty() {
            return Err(invalid("a reason is for a denial; an approval has none"));
        }
        return control.approve(actor, tenant, *number).await;
    }
    let denial = NewDecision {
        tenant,
        number: *number,
        state: ApprovalState::Denied,
        by: "operator",
        reason: Some(&**reason).filter(|reason| !reason.is_empty()),
    };
    end(control, actor, &denial).await
}

/// Withdraws a request.
///
/// # Errors
/// NOT_FOUND: there is no such request. FAILED_PRECONDITION: it is decided already.
pub(in crate::control) async fn withdraw(
    control: &Control,
    actor: Actor,
    request: &WithdrawApprovalRequest,
) -> Result<(), Status> {
    let by = match &actor {
        Actor::Credential { name, .. } => format!("credential {name}"),
        _ => "operator".to_owned(),
    };
    let withdrawal = NewDecision {
        tenant: &request.tenant,
        number: request.number,
        state: ApprovalState::Withdrawn,
        by: &by,
        reason: None,
    };
    end(control, actor, &withdrawal).await
}

async fn end(control: &Control, actor: Actor, with: &NewDecision<'_>) -> Result<(), Status> {
    let _one_at_a_time = control.changes.begin(&actor).await?;
    let ended = control.changes.store().end_approval(actor, with);
    ended.map_err(|error| store_failed(&error))
}

/// Ends requests whose time is over.
pub(in crate::control) async fn follow_approvals(control: Rc<Control>) {
    loop {
        {
            let _one_at_a_time = control.changes.begin_own().await;
            if !control.changes.store().is_held() {
                expire(control.changes.store());
            }
        }
        tokio::time::sleep(APPROVAL_LOOK).await;
    }
}

fn expire(store: &Store) {
    // An unwritable store is tried again at the next look, and shows them as expired meanwhile.
    for (tenant, number) in store.overdue_approvals().unwrap_or_default() {
        let expiry = NewDecision {
            tenant: &tenant,
            number,
            state: ApprovalState::Expired,
            by: "daemon",
            reason: None,
        };
        if let Err(error) = store.end_approval(Actor::Daemon, &expiry) {
            tracing::warn!("request {tenant}/{number} for approval has expired: {error}");
        }
    }
}

fn shown(store: &Store, one: Approval) -> proto::Approval {
    let state = match one.state {
        ApprovalState::Waiting => proto::ApprovalState::Waiting,
        ApprovalState::Approved => proto::ApprovalState::Approved,
        ApprovalState::Denied => proto::ApprovalState::Denied,
        ApprovalState::Withdrawn => proto::ApprovalState::Withdrawn,
        ApprovalState::Expired => proto::ApprovalState::Expired,
    };
    let is_waiting = one.state == ApprovalState::Waiting;
    let decision = one.decision;
    proto::Approval {
        state: state.into(),
        summary: summary(&one.what),
        token_ended: is_waiting && matches!(store.identity_of(&one.token), Ok(None)),
        id: Some(ApprovalId {
            tenant: one.tenant,
            number: one.number,
        }),
        credential: one.credential,
        asked: Some(one.asked.into()),
        expires: Some(one.expires.into()),
        decided: decision.as_ref().map(|its| its.at.into()),
        decided_by: decision
            .as_ref()
            .map_or_else(String::new, |its| its.by.clone()),
        reason: decision.and_then(|its| its.reason).unwrap_or_default(),
    }
}

/// `upgrade: acl@2 decides at client hotel.Reservation/*, and at 2 more places`
fn summary(what: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let changes = what["changes"].as_array().map_or(&[][..], Vec::as_slice);
    let mut effective = changes.iter().filter(|change| change["effect"].is_string());
    let Some(first) = effective.next() else {
        return text(&what["act"]);
    };
    let more = match effective.count() {
        0 => String::new(),
        1 => ", and at 1 more place".to_owned(),
        many => format!(", and at {many} more places"),
    };
    let (act, effect, place) = (&what["act"], &first["effect"], &first["place"]);
    format!("{}: {} at {}{more}", text(act), text(effect), text(place))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_has_the_first_place_and_the_number_of_others() {
        let at = |place: &str, effect: Option<&str>| json!({"place": place, "effect": effect});
        let what = |changes: &[Value]| json!({"act": "upgrade", "changes": changes});
        let one = at("client a.B/*", Some("acl@2 decides"));
        assert_eq!(
            summary(&what(&[at("server a.B/*", None), one.clone()])),
            "upgrade: acl@2 decides at client a.B/*"
        );
        assert_eq!(
            summary(&what(&[one.clone(), one.clone(), one])),
            "upgrade: acl@2 decides at client a.B/*, and at 2 more places"
        );
        assert_eq!(summary(&json!({"act": "attach"})), "attach");
        assert_eq!(summary(&json!([])), "");
    }
}
