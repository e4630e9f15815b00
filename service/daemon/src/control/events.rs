//! Events of the runtimes: ended sessions, peers to look up, and events of policies.

use std::rc::Rc;

use tokio::sync::mpsc;
use tollgate_control::audit;

use crate::control::apps::schemas;
use crate::control::apps::turns::Turn;
use crate::control::error::DaemonError;
use crate::control::state::Control;
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::command::{Command, Event};
use tollgate_datapath::log_limited;
use tollgate_policy_chain::events::PolicyEvent;

impl Control {
    pub(super) async fn follow_events(self: Rc<Self>, mut inbox: mpsc::Receiver<Event>) {
        while let Some(event) = inbox.recv().await {
            match event {
                Event::SessionEnded {
                    runtime,
                    session,
                    reason,
                } => {
                    let at = (runtime, session);
                    let tenant = self.sessions.with(at, |session| session.tenant.clone());
                    let tenant = tenant.unwrap_or_default();
                    log_limited!(
                        warn,
                        "session ended",
                        &tenant,
                        "session {} was ended: {reason}",
                        session.0
                    );
                    self.sessions.ended(at, reason);
                }
                Event::Compare {
                    runtime,
                    ticket,
                    binding,
                    tenant,
                    ours,
                    theirs,
                } => {
                    let control = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        let turn = control.turns.of(&tenant).await;
                        let turn = turn.unwrap_or_else(|_ending| Turn::operators());
                        let matches = schemas::compare(&turn, &ours, theirs).await;
                        let compared = Command::Compared {
                            ticket,
                            binding,
                            matches,
                        };
                        control.send(runtime, compared);
                    });
                }
                Event::LookUp { tenant, peer } => {
                    let control = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        let found = control.names.find_again(&tenant, &peer).await;
                        let home = control.runtime_of(&tenant);
                        let found = Command::Found {
                            tenant,
                            peer,
                            found,
                        };
                        control.send(home, found);
                    });
                }
                Event::Policies(event) => self.policy_event(event),
            }
        }
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
                tracing::warn!(
                    "{refused} calls of tenant {tenant} were refused: its policies have used up their CPU share"
                );
                let details = serde_json::json!({"tenant": &*tenant, "refused": refused});
                self.happened(audit::Event::Throttled, &tenant, details);
            }
            PolicyEvent::Logged {
                label,
                lines,
                dropped,
            } => {
                for line in lines {
                    // Quoted: an unquoted line could imitate fields.
                    tracing::info!(policy = label, "{:?}", line.to_string());
                }
                if dropped > 0 {
                    tracing::info!(policy = label, "{dropped} more lines were dropped");
                }
            }
        }
    }

    /// A runtime that doesn't answer is found now rather than by the first application.
    pub(super) async fn each_runtime_answers(&self) -> Result<(), DaemonError> {
        for runtime in RuntimeIndex::all(self.runtimes()) {
            let answer = self.ask(runtime, |reply| Command::Report { reply }).await;
            answer.map_err(DaemonError::Runtime)?;
        }
        Ok(())
    }
}
