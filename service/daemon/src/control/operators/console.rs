//! The daemon's side of the web console: admission, the state that it shows, and the operator's
//! actions.
//!
//! Invariant: the console uses the same functions as the control socket, so it shows and does the
//! same. An action is recorded under the actor that requested the link at the socket.
//!
//! Absent on purpose: background work. A visible page asks for the state once per second.

use std::rc::Rc;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate_console::{Action, ConsoleError, Refusal, Role, Source, Step, limits, serve};
use tollgate_control::audit::Actor;
use tollgate_engine::Status;
use tollgate_shm_abi::messages::{
    Console as Wanted, PARTY_PROVIDER_POST, PARTY_PROVIDER_PRE, PARTY_TENANT, PolicySelection,
    PolicyStep, SIDE_CLIENT, SIDE_SERVER, STEP_PROMOTE, STEP_RELEASE, STEP_ROLLBACK,
};
use tollgate_shm_abi::status::Code;

use crate::control::observe::{metrics_json, watching};
use crate::control::operators::report;
use crate::control::policies::lifecycle;
use crate::control::state::Control;
use crate::limits::{CONSOLE_DENIALS, CONSOLE_RECORDS};

/// The answer to `tollgate console`: a link. Starts the listener if there is none.
pub(crate) fn invite(
    control: &Rc<Control>,
    actor: Actor,
    request: Wanted,
) -> Result<Value, Status> {
    let role = match request.is_operator {
        true => Role::Operator,
        false => Role::Viewer,
    };
    let console = &control.console;
    let invited = |secret: Result<String, ConsoleError>| {
        secret.map_err(|error| Status::new(Code::RESOURCE_EXHAUSTED, error.to_string()))
    };
    let (at, secret) = match console.listening() {
        Some(at) => (at, invited(console.invite(actor, role))?),
        None => {
            let wanted = control.config().console.listen;
            let cant = |error: std::io::Error| {
                let text = format!("the console can't listen on {wanted}: {error}");
                Status::new(Code::UNAVAILABLE, text)
            };
            let listener = std::net::TcpListener::bind(wanted).map_err(cant)?;
            listener.set_nonblocking(true).map_err(cant)?;
            let at = listener.local_addr().map_err(cant)?;
            let listener = TcpListener::from_std(listener).map_err(cant)?;
            let secret = invited(console.invite(actor, role))?;
            let source = Rc::new(Shown(Rc::clone(control)));
            tokio::task::spawn_local(serve(Rc::clone(console), listener, at, source));
            (at, secret)
        }
    };
    Ok(json!({
        "link": format!("http://{at}/#{secret}"), "address": at.to_string(), "operator": request.is_operator,
        "good_for_s": limits::INVITATION_LASTS.as_secs(),
    }))
}

struct Shown(Rc<Control>);

impl Source for Shown {
    type Who = Actor;

    async fn state(&self) -> Result<Value, Refusal> {
        let control = &self.0;
        let state = async {
            Ok(json!({
                "metrics": metrics_json::report(control, None).await?, "status": report::status(control).await?,
                "audit": report::audit(control.changes.store(), CONSOLE_RECORDS)?, "denied": watching::denied(&control.runtimes, CONSOLE_DENIALS).await?,
            }))
        };
        state.await.map_err(refusal)
    }

    async fn act(&self, who: Actor, action: Action) -> Result<(), Refusal> {
        let control = Rc::clone(&self.0);
        // A separate task: a change isn't dropped halfway if the browser goes away.
        let done = tokio::task::spawn_local(async move { act(&control, who, action).await });
        match done.await {
            Ok(done) => done.map_err(refusal),
            Err(error) => Err(Refusal(format!("the change was cancelled: {error}"))),
        }
    }
}

fn refusal(status: Status) -> Refusal {
    Refusal(status.message.into_owned())
}

async fn act(control: &Rc<Control>, actor: Actor, action: Action) -> Result<(), Status> {
    let at = selection(&action)?;
    let step = match action.step {
        Step::Promote => STEP_PROMOTE,
        Step::Rollback => STEP_ROLLBACK,
        Step::Release => STEP_RELEASE,
        Step::Detach => {
            let (changes, policies) = (&control.changes, &control.policies);
            return lifecycle::detach(changes, policies, &control.runtimes, actor, &at).await;
        }
    };
    let at = Some(at);
    lifecycle::step(control, actor, PolicyStep { at, step })
        .await?
        .made()?;
    Ok(())
}

/// The place that an action names, in the form of the control socket's requests.
fn selection(action: &Action) -> Result<PolicySelection, Status> {
    let invalid = |what: &str, value: &str| {
        let text = format!("{what} {value:?} is unknown");
        Status::new(Code::INVALID_ARGUMENT, text)
    };
    let party = match &*action.party {
        "tenant" => PARTY_TENANT,
        "provider-pre" => PARTY_PROVIDER_PRE,
        "provider-post" => PARTY_PROVIDER_POST,
        other => return Err(invalid("the party", other)),
    };
    let side = match &*action.side {
        "client" => SIDE_CLIENT,
        "server" => SIDE_SERVER,
        other => return Err(invalid("the side", other)),
    };
    Ok(PolicySelection {
        policy: action.policy.clone(),
        tenant: action.tenant.clone().unwrap_or_default(),
        service: action.service.clone().unwrap_or_default(),
        method: action.method.clone().unwrap_or_default(),
        side,
        party,
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
    fn a_place_is_one_that_the_socket_knows_too() {
        let place = selection(&action("tenant", "server")).unwrap();
        assert_eq!((place.party, place.side), (PARTY_TENANT, SIDE_SERVER));
        assert_eq!((&*place.tenant, &*place.service), ("acme", ""));
        let refused = |action| selection(&action).unwrap_err().message;
        let party = refused(action("nobody", "client"));
        assert_eq!(party, "the party \"nobody\" is unknown");
        let side = refused(action("provider-post", "both"));
        assert_eq!(side, "the side \"both\" is unknown");
    }
}
