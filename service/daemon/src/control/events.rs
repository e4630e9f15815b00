//! Events of the runtimes: ended sessions, peers to look up, and events of policies.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;
use tollgate_control::{Store, audit};

use crate::control::apps::sessions::Sessions;
use crate::control::error::DaemonError;
use crate::control::observe::repeated::Repeated;
use crate::control::placement::running::Runtimes;
use crate::control::state::Control;
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::command::{Command, Comparison, Event};
use tollgate_datapath::log_limited;
use tollgate_datapath::target::Target;
use tollgate_engine::SessionId;
use tollgate_policy_chain::events::PolicyEvent;

impl Control {
    pub(super) async fn follow_events(self: Rc<Self>, mut inbox: mpsc::Receiver<Event>) {
        while let Some(event) = inbox.recv().await {
            match event {
                Event::SessionEnded {
                    runtime,
                    session,
                    reason,
                } => session_ended(&self.apps.sessions, (runtime, session), reason),
                Event::Compare(comparison) => {
                    tokio::task::spawn_local(Rc::clone(&self).compare(comparison));
                }
                Event::LookUp { tenant, peer } => {
                    tokio::task::spawn_local(Rc::clone(&self).look_up_again(tenant, peer));
                }
                Event::Policies(event) => self.policy_event(event),
            }
        }
    }

    async fn compare(self: Rc<Self>, comparison: Comparison) {
        let runtime = comparison.runtime;
        let compared = self.apps.compare(comparison).await;
        self.runtimes.send(runtime, compared);
    }

    async fn look_up_again(self: Rc<Self>, tenant: Arc<str>, peer: Target) {
        let found = self.apps.look_up_again(Arc::clone(&tenant), peer).await;
        self.runtimes.send(self.homes.of(&tenant), found);
    }

    fn policy_event(self: &Rc<Self>, event: PolicyEvent) {
        match event {
            PolicyEvent::Faulted {
                id,
                version,
                reason,
            } => {
                tokio::task::spawn_local(Rc::clone(self).faulted(id, version, reason));
            }
            PolicyEvent::CandidateFailed {
                id,
                version,
                reason,
            } => {
                tokio::task::spawn_local(Rc::clone(self).trial_failed(id, version, reason));
            }
            PolicyEvent::ProcessEnded { id, reason } => self.process_ended(id, &reason),
            PolicyEvent::Throttled { tenant, refused } => {
                throttled(&self.repeats, self.changes.store(), &tenant, refused);
            }
            PolicyEvent::Logged {
                label,
                lines,
                dropped,
            } => log(&label, lines, dropped),
        }
    }
}

/// A runtime has ended a session.
fn session_ended(sessions: &Sessions, at: (RuntimeIndex, SessionId), reason: String) {
    let tenant = sessions.with(at, |session| session.tenant.clone());
    let tenant = tenant.unwrap_or_default();
    let (_, session) = at;
    log_limited!(
        warn,
        "session ended",
        &tenant,
        "session {} was ended: {reason}",
        session.0
    );
    sessions.ended(at, reason);
}

/// Calls were refused because policies have used up their CPU share.
fn throttled(repeats: &Repeated, store: &Store, tenant: &str, refused: u64) {
    tracing::warn!(
        "{refused} calls of tenant {tenant} were refused: its policies have used up their CPU share"
    );
    let details = serde_json::json!({"tenant": tenant, "refused": refused});
    repeats.happened(store, audit::Event::Throttled, tenant, details);
}

/// A runtime that doesn't answer is found now rather than by the first application.
pub(super) async fn each_runtime_answers(runtimes: &Runtimes) -> Result<(), DaemonError> {
    for runtime in RuntimeIndex::all(runtimes.count()) {
        let answer = runtimes
            .ask(runtime, |reply| Command::Report { reply })
            .await;
        answer.map_err(DaemonError::Runtime)?;
    }
    Ok(())
}

/// Writes what a policy logged.
fn log(label: &str, lines: Vec<String>, dropped: u64) {
    for line in lines {
        // Quoted: an unquoted line could imitate fields.
        tracing::info!(policy = label, "{line:?}");
    }
    if dropped > 0 {
        tracing::info!(policy = label, "{dropped} more lines were dropped");
    }
}
