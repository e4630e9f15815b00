//! The web console's sessions, as users of the API.
//!
//! ```text
//!   browser ─▶ tollgate-console ─▶ Browsers ─┬─ sign_in ─▶ the bearer of a token
//!                                            ├─ state ───▶ carry_out: GetStatus, GetMetrics, ShowTrace, ...
//!                                            └─ act ─────▶ carry_out: PromotePolicy, DetachPolicy, ...
//! ```
//!
//! Invariant: a session looks and acts by requests of the API, as its principal, so the API's table
//! decides what it may and whose objects it sees. Each begins with a check that the principal's
//! token hasn't ended.
//!
//! Absent on purpose: background work. A visible page asks for the state once per second.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Instant;

use serde_json::{Value, json};
use tollgate_admin::proto::{
    DetachPolicyRequest, GetMetricsRequest, GetStatusRequest, Owner, Party, PolicySelection,
    PromotePolicyRequest, ReleasePolicyRequest, RollBackPolicyRequest, ShowAuditRecordsRequest,
    ShowCeilingRequest, ShowTraceRequest, ShowUsageRequest, Side,
};
use tollgate_admin::server::Origin;
use tollgate_admin::{Answer, Ask, Principal, Status, carry_out, to_json};
use tollgate_console::{Action, Guest, Refusal, Source, Step, serve};
use tollgate_control::TokenDigest;
use tollgate_control::audit::{Actor, Event};
use tollgate_datapath::log_limited;
use tollgate_shm_abi::status::Code;

use crate::control::api::handler::Api;
use crate::control::api::kind;
use crate::control::api::words::refused;
use crate::control::authentication::forgotten;
use crate::control::guesses::{Guesses, Pace};
use crate::control::operators::console;
use crate::control::operators::visitor::{Visitor, role_of};
use crate::control::refusals::store_failed;
use crate::control::state::Control;
use crate::limits::{
    CONSOLE_DENIALS, CONSOLE_RECORDS, CONSOLE_RETRY, GUESS_PAUSE, GUESSES_AT_ONCE,
};

/// All browsers are one guesser: they may be behind one proxy or tunnel.
const EVERYBODY: Origin = Origin::Network(IpAddr::V4(Ipv4Addr::LOCALHOST));

/// Serves the console, and keeps it open if the configuration says so.
pub(in crate::control) async fn follow(control: Rc<Control>) {
    let stays = control.config().console.always;
    let browsers = Browsers {
        control: Rc::clone(&control),
        guesses: Guesses::default(),
    };
    let serving = serve(Rc::clone(&control.console), Rc::new(browsers), stays);
    if stays {
        tokio::join!(serving, open(&control));
    } else {
        serving.await;
    }
}

/// Opens the console as soon as its address can be had: a predecessor may still have it.
async fn open(control: &Control) {
    while control.console.listening().is_none() {
        match console::listen(control) {
            Ok(at) => tracing::info!("the console listens on {at}"),
            Err(status) => {
                log_limited!(warn, "console", "", "{}; trying again", status.message);
                tokio::time::sleep(CONSOLE_RETRY).await;
            }
        }
    }
}

struct Browsers {
    control: Rc<Control>,
    guesses: Guesses,
}

impl Source for Browsers {
    type Who = Visitor;

    async fn sign_in(&self, token: &str) -> Result<Guest<Visitor>, Refusal> {
        let token = TokenDigest::of(token);
        let store = self.control.changes.store();
        let found = store.identity_of(&token);
        let found = found.map_err(|error| refusal(refused(store_failed(&error))))?;
        match found {
            Some(identity) => {
                let guest = console::bearers(Visitor::bearer(identity, token));
                guest.map_err(|status| refusal(refused(status)))
            }
            None => Err(Refusal::Over(self.wrong().await)),
        }
    }

    fn check(&self, who: &Visitor) -> Result<(), Refusal> {
        still_valid(&self.control, who).map_err(refusal)
    }

    async fn state(&self, who: Visitor, tenant: Option<String>) -> Result<Value, Refusal> {
        look(&self.control, who, tenant).await.map_err(refusal)
    }

    async fn act(&self, who: Visitor, action: Action) -> Result<(), Refusal> {
        let control = Rc::clone(&self.control);
        // A separate task: a change isn't dropped halfway if the browser goes away.
        let done = tokio::task::spawn_local(async move { act(&control, who, action).await });
        match done.await {
            Ok(done) => done.map_err(refusal),
            Err(error) => Err(Refusal::Failed(format!(
                "the change was cancelled: {error}"
            ))),
        }
    }
}

impl Browsers {
    /// What the sender of a wrong token is told, after a pause if there were many.
    async fn wrong(&self) -> String {
        let control = &self.control;
        let forgotten = forgotten(&control.config(), &control.process);
        let mut text = format!("the token belongs to no tenant of this daemon{forgotten}");
        log_limited!(
            warn,
            "not let in",
            "",
            "a client of the console was rejected: {text}"
        );
        if let Pace::Slow { is_first } = self.guesses.wrong(Instant::now(), EVERYBODY) {
            if is_first {
                let details = json!({"at": "the web console", "tokens": GUESSES_AT_ONCE});
                // Without a record, the guesses are slow all the same.
                let _readable_only =
                    (control.changes.store()).record(Actor::Daemon, Event::Guesses, details);
            }
            let pause = GUESS_PAUSE.as_secs();
            text += &format!("; many wrong tokens come, so each answer takes {pause} s");
            tokio::time::sleep(GUESS_PAUSE).await;
        }
        text
    }
}

fn refusal(status: Status) -> Refusal {
    match status.code {
        Code::UNAUTHENTICATED => Refusal::Over(status.message),
        Code::PERMISSION_DENIED => Refusal::Forbidden(status.message),
        _ => Refusal::Failed(status.message),
    }
}

/// Checks that a session's token hasn't ended.
fn still_valid(control: &Control, who: &Visitor) -> Result<(), Status> {
    let required = control.changes.require_actor(&who.actor);
    required.map_err(|status| match (&who.actor, status.code) {
        (Actor::Credential { tenant, name, .. }, Code::UNAUTHENTICATED) => {
            let text = format!(
                "your session is over: the token of credential {name} of tenant {tenant} was rotated or revoked, or has expired"
            );
            Status::new(Code::UNAUTHENTICATED, text)
        }
        _ => refused(status),
    })?;
    // Documents may change a credential's role and keep its token.
    let (Principal::Tenant { role, .. }, Actor::Credential { token, .. }) =
        (&who.principal, &who.actor)
    else {
        return Ok(());
    };
    let found = control.changes.store().identity_of(token);
    let found = found.map_err(|error| refused(store_failed(&error)))?;
    match found.is_some_and(|found| role_of(found.role) == *role) {
        true => Ok(()),
        false => {
            let text = format!(
                "your session is over: the token of {} has another role now",
                who.actor
            );
            Err(Status::new(Code::UNAUTHENTICATED, text))
        }
    }
}

/// One request of a session.
async fn ask(control: &Rc<Control>, who: &Visitor, ask: Ask) -> Result<Answer, Status> {
    still_valid(control, who)?;
    let api = Api {
        control: Rc::clone(control),
        actor: who.actor.clone(),
    };
    carry_out(&api, &who.principal, ask).await
}

/// What the page shows. To its tenant's pace, it is one request.
async fn look(
    control: &Rc<Control>,
    who: Visitor,
    tenant: Option<String>,
) -> Result<Value, Status> {
    let of = tenant.clone().unwrap_or_default();
    let status = Ask::GetStatus(GetStatusRequest { tenant: of.clone() });
    let looks = kind(control, &who.principal, status.row())?;
    let _turn = control.paces.turn(&who.principal, looks).await?;
    let status = shown(ask(control, &who, status).await?)?;
    let metrics = Ask::GetMetrics(GetMetricsRequest { tenant: of.clone() });
    let audit = Ask::ShowAuditRecords(ShowAuditRecordsRequest {
        last: CONSOLE_RECORDS,
        tenant: of.clone(),
    });
    let denied = Ask::ShowTrace(ShowTraceRequest {
        id: String::new(),
        last: CONSOLE_DENIALS,
        tenant: of.clone(),
        denied: true,
    });
    let mut state = json!({
        "status": status, "metrics": shown(ask(control, &who, metrics).await?)?, "audit": shown(ask(control, &who, audit).await?)?,
        "denied": shown(ask(control, &who, denied).await?)?["denied"],
    });
    if tenant.is_some() {
        let usage = Ask::ShowUsage(ShowUsageRequest { tenant: of.clone() });
        state["usage"] = shown(ask(control, &who, usage).await?)?;
        let ceiling = Ask::ShowCeiling(ShowCeilingRequest { tenant: of });
        state["ceiling"] = shown(ask(control, &who, ceiling).await?)?;
    }
    Ok(state)
}

/// An answer as the page gets it.
fn shown(answer: Answer) -> Result<Value, Status> {
    let report = match answer {
        Answer::GetStatus(answer) => answer.report,
        Answer::GetMetrics(answer) => answer.report,
        Answer::ShowAuditRecords(answer) => answer.report,
        Answer::ShowTrace(answer) => answer.report,
        Answer::ShowUsage(answer) => {
            let usage = answer.usage.iter();
            let usage = usage
                .map(|one| json!({"what": one.what, "used": one.used, "limit": one.limit}))
                .collect::<Vec<_>>();
            return Ok(json!({
                "usage": usage, "policy_cpu_ns": answer.policy_cpu_ns, "throttled_calls": answer.throttled_calls,
            }));
        }
        Answer::ShowCeiling(answer) => {
            let values = answer.values.iter();
            return Ok(values
                .map(|one| json!({"key": one.key, "value": one.value}))
                .collect());
        }
        _ => {
            return Err(Status::new(
                Code::INTERNAL,
                "the answer is of another request",
            ));
        }
    };
    Ok(to_json(report.unwrap_or_default()))
}

async fn act(control: &Rc<Control>, who: Visitor, action: Action) -> Result<(), Status> {
    let at = Some(selection(&action)?);
    let change = match action.step {
        Step::Promote => Ask::PromotePolicy(PromotePolicyRequest { at }),
        Step::Rollback => Ask::RollBackPolicy(RollBackPolicyRequest { at }),
        Step::Release => Ask::ReleasePolicy(ReleasePolicyRequest { at }),
        Step::Detach => Ask::DetachPolicy(DetachPolicyRequest { at }),
    };
    let its = kind(control, &who.principal, change.row())?;
    let _turn = control.paces.turn(&who.principal, its).await?;
    let waits = match ask(control, &who, change).await? {
        Answer::PromotePolicy(promoted) => promoted.waits_for,
        _ => None,
    };
    let Some(waits) = waits else {
        return Ok(());
    };
    let (tenant, number) = (waits.tenant, waits.number);
    let text = format!("the change waits for an operator's approval: request {tenant}/{number}");
    Err(Status::new(Code::FAILED_PRECONDITION, text))
}

/// The place that an action names, in the API's words.
fn selection(action: &Action) -> Result<PolicySelection, Status> {
    let invalid = |what: &str, value: &str| {
        let text = format!("{what} {value:?} is unknown");
        Status::new(Code::INVALID_ARGUMENT, text)
    };
    let party = match &*action.party {
        "tenant" => Party::Tenant,
        "provider-pre" => Party::ProviderPre,
        "provider-post" => Party::ProviderPost,
        other => return Err(invalid("the party", other)),
    };
    let side = match &*action.side {
        "client" => Side::Client,
        "server" => Side::Server,
        other => return Err(invalid("the side", other)),
    };
    Ok(PolicySelection {
        owner: Some(Owner {
            tenant: action.tenant.clone().unwrap_or_default(),
            provider: party != Party::Tenant,
        }),
        name: action.policy.clone(),
        service: action.service.clone().unwrap_or_default(),
        method: action.method.clone().unwrap_or_default(),
        side: side.into(),
        party: party.into(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn action(party: &str, side: &str) -> Action {
        Action {
            step: Step::Promote,
            policy: "acl".to_owned(),
            party: party.to_owned(),
            tenant: Some("acme".to_owned()),
            service: None,
            method: None,
            side: side.to_owned(),
        }
    }

    #[test]
    fn a_place_is_one_that_the_api_knows_too() {
        let place = selection(&action("tenant", "server")).unwrap();
        assert_eq!((place.party(), place.side()), (Party::Tenant, Side::Server));
        let owner = place.owner.unwrap();
        assert_eq!((&*owner.tenant, owner.provider), ("acme", false));
        let providers = selection(&action("provider-post", "client")).unwrap();
        assert!(providers.owner.unwrap().provider);
        let refused = |action| selection(&action).unwrap_err().message;
        let party = refused(action("nobody", "client"));
        assert_eq!(party, "the party \"nobody\" is unknown");
        let side = refused(action("provider-post", "both"));
        assert_eq!(side, "the side \"both\" is unknown");
    }
}
