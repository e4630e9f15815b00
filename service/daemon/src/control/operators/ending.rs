//! Final ends: of tokens, credentials, tenants and versions of policies.
//!
//! ```text
//!   the store, one transaction ─▶ sessions with invalid tokens ─▶ attachments here and on runtimes
//! ```
//!
//! Invariants: a session never outlives the token that it ends with, which is the token that it was
//! opened with unless a credential's sessions were kept. Calls end before the
//! policies that evaluate them, so no call passes without evaluation. The store's changes are never
//! undone: a daemon that is killed halfway starts without the tenant and its policies.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_control::audit::Actor;
use tollgate_control::{
    Attachment, Cause, Holdings, Identity, Owner, PolicyVersion, Store, Token, TokenDigest,
};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::control::apps::sessions::{Connected, Sessions};
use crate::control::changes::Changes;
use crate::control::operators::console;
use crate::control::placement::placing;
use crate::control::placement::running::Runtimes;
use crate::control::policies::lifecycle;
use crate::control::refusals::store_failed;
use crate::control::state::Control;
use tollgate_datapath::Command;

/// A credential, and whether its sessions outlive its tokens.
pub(crate) struct Of<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) credential: &'a str,
    pub(crate) keep_sessions: bool,
}

/// Gives a credential another token. Sessions of the former token end at once, or after the grace
/// period if there is one, or, if they are kept, with the new token.
pub(crate) async fn rotate(
    control: &Control,
    actor: Actor,
    of: Of<'_>,
    grace: Duration,
) -> Result<Token, Status> {
    let _one_at_a_time = control.changes.begin(&actor).await?;
    let (store, sessions) = (control.changes.store(), &control.apps.sessions);
    let failed = |error| store_failed(&error);
    let before = store.tokens_of(of.owner, of.credential).map_err(failed)?;
    let rotated = store.rotate_credential(actor, of.owner, of.credential, grace);
    let token = rotated.map_err(failed)?;
    if of.keep_sessions {
        sessions.keep(&before, Some(TokenDigest::of(token.reveal())));
    }
    end_sessions(sessions, store, &control.runtimes, of.owner.tenant());
    console::end_sessions(control);
    sessions.token_ends();
    Ok(token)
}

/// Ends a credential. Its sessions end at once or, if they are kept, with their tenant. Returns the
/// number of sessions that ended.
pub(crate) async fn revoke(control: &Control, actor: Actor, of: Of<'_>) -> Result<usize, Status> {
    let _one_at_a_time = control.changes.begin(&actor).await?;
    let (store, sessions) = (control.changes.store(), &control.apps.sessions);
    let failed = |error| store_failed(&error);
    let before = store.tokens_of(of.owner, of.credential).map_err(failed)?;
    let revoked = store.revoke_credential(actor, of.owner, of.credential);
    revoked.map_err(failed)?;
    if of.keep_sessions {
        sessions.keep(&before, None);
    }
    console::end_sessions(control);
    Ok(end_sessions(
        sessions,
        store,
        &control.runtimes,
        of.owner.tenant(),
    ))
}

/// What the removal of a tenant would remove.
pub(crate) fn would_remove(control: &Control, tenant: &str) -> Result<Value, Status> {
    let had = control.changes.store().holdings(tenant);
    let had = had.map_err(|error| store_failed(&error))?;
    Ok(told(tenant, &had, control.apps.sessions.count_of(tenant)))
}

/// Removes a tenant with everything it has.
pub(crate) async fn remove(control: &Control, actor: Actor, tenant: &str) -> Result<Value, Status> {
    let _one_at_a_time = control.changes.begin(&actor).await?;
    let sessions = control.apps.sessions.count_of(tenant);
    let ceiling = control.changes.store().ceiling_values(Some(tenant));
    let ceiling = ceiling.map_err(|error| store_failed(&error))?;
    let had = control.changes.store().remove_tenant(actor, tenant);
    let had = had.map_err(|error| store_failed(&error))?;
    end_sessions(
        &control.apps.sessions,
        control.changes.store(),
        &control.runtimes,
        Some(tenant),
    );
    console::end_sessions(control);
    lifecycle::end_attachments(&control.policies, &control.runtimes, &had.attachments).await?;
    control.policies.forget_misfits(tenant);
    if ceiling.contains_key("cpu_share_percent") {
        control.tune(false).await?;
    }
    if control.homes.forget(tenant) {
        placing::tell(&control.homes, &control.runtimes).await?;
    }
    tracing::info!("tenant {tenant} was removed, with {sessions} sessions");
    Ok(told(tenant, &had, sessions))
}

fn told(tenant: &str, had: &Holdings, sessions: usize) -> Value {
    let policies: Vec<_> = had.policies.iter().map(PolicyVersion::to_string).collect();
    let place = |a: &Attachment| {
        let owner = match a.target.owner() {
            Owner::Provider => "(provider)".to_owned(),
            Owner::Tenant(tenant) => tenant,
        };
        json!({"owner": owner, "policy": a.policy, "place": a.target.to_string()})
    };
    let attachments: Vec<_> = had.attachments.iter().map(place).collect();
    json!({"tenant": tenant, "sessions": sessions, "policies": policies, "attachments": attachments})
}

/// Deletes a version of a policy, or all, that no attachment needs.
pub(in crate::control) async fn delete(
    changes: &Changes,
    actor: Actor,
    owner: &Owner,
    policy: &str,
    version: Option<u32>,
) -> Result<Vec<PolicyVersion>, Status> {
    // An attachment in progress may need a version.
    let _one_at_a_time = changes.begin(&actor).await?;
    let deleted = changes.store().delete_policy(actor, owner, policy, version);
    deleted.map_err(|error| store_failed(&error))
}

/// Ends sessions whose token is no longer valid, or whose tenant was removed: one tenant's, or all
/// tenants'. Returns their number.
pub(in crate::control) fn end_sessions(
    sessions: &Sessions,
    store: &Store,
    runtimes: &Runtimes,
    of: Option<&str>,
) -> usize {
    let is_over = |connected: &Connected| {
        let Connected { tenant, token, .. } = connected;
        if of.is_some_and(|of| of != &**tenant) {
            return None;
        }
        why_over(store, tenant, token.as_ref())
    };
    let over = sessions.take_over(is_over);
    let count = over.len();
    for (connected, why) in over {
        let (runtime, session) = connected.at.get();
        // The session's connection closes it too, but later: until then it could call.
        runtimes.send(runtime, Command::CloseSession { session });
        tracing::info!("session {} was ended: {why}", session.0);
        connected.end(Status::new(Code::UNAUTHENTICATED, why));
    }
    count
}

/// The reason why a session is over, if it is. A store that can't be read ends no session.
pub(crate) fn why_over(store: &Store, tenant: &str, token: Option<&TokenDigest>) -> Option<String> {
    let is_its = |identity: &Identity| {
        identity.owner.tenant() == Some(tenant) && identity.role.opens_sessions()
    };
    let is_good = |token: &TokenDigest| match store.identity_of(token) {
        Ok(found) => found.as_ref().is_some_and(is_its),
        Err(_) => true,
    };
    if token.is_some_and(is_good) {
        return None;
    }
    match store.require_owner(&Owner::Tenant(tenant.to_owned())) {
        Err(error) if error.cause() == Cause::Missing => {
            Some(format!("tenant {tenant} was removed from this daemon"))
        }
        _ if token.is_none() => None,
        _ => Some(format!(
            "the session's token of tenant {tenant} was rotated or revoked, or has expired: open a session with another one"
        )),
    }
}

/// Ends sessions when their token ends.
pub(crate) async fn follow_tokens(control: Rc<Control>) {
    /// By then, changes of the clock are noticed, and a store that another process held for a
    /// while.
    const LOOK: Duration = Duration::from_secs(60);
    let (changes, sessions) = (&control.changes, &control.apps.sessions);
    loop {
        // At first those whose token ended while a process took over from another.
        {
            let _one_at_a_time = changes.begin_own().await;
            end_sessions(sessions, changes.store(), &control.runtimes, None);
            console::end_sessions(&control);
        }
        let next = changes.store().next_token_ends().unwrap_or(None);
        // The store counts in milliseconds.
        let next = next
            .map_or(LOOK, |next| next + Duration::from_millis(1))
            .min(LOOK);
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = sessions.another_end() => {}
        }
    }
}
