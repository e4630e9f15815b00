//! Dispatch: commands of the control plane and outputs of the engine, one call for each.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use tollgate_engine::{Ended, Origin, Output, SessionId, Status};
use tollgate_policy_host::isolated::Channel;
use tollgate_shm_abi::session::DaemonEnd;

use super::Runtime;
use crate::binds::Bound;
use crate::calls::memory::discard_boxed;
use crate::command::{Command, Event, Map};
use crate::handover::error::{LeaveError, ResumeError};
use crate::handover::transfer::{HandoverState, Inventory, Resumed};
use crate::links::send::OutgoingCall;
use crate::observe::Seen;
use crate::ports::Who;
use crate::reply::Reply;
use crate::report::Report;
use tollgate_policy_chain::ids::{AttachmentId, ProcessId, VersionNumber};
use tollgate_policy_chain::isolated::Successor;
use tollgate_policy_chain::plan::{ChangeError, Isolated, PolicyChange, Scope};

impl Runtime {
    pub(super) fn take_commands(&mut self) -> bool {
        let mut worked = false;
        while let Some(command) = self.control.next_command() {
            worked = true;
            self.command(command);
            self.act();
        }
        worked
    }

    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::OpenSession {
                end,
                tenant,
                app,
                pid,
                features,
                label,
                reply,
            } => self.open(*end, Who::of(tenant, app, pid, features, &label), reply),
            Command::HandOver {
                with_links,
                until,
                stands,
                all_stand,
                reply,
                verdict,
            } => {
                if stands.send(()).is_ok() && all_stand.recv().is_ok() {
                    self.leave_to_successor(with_links, until, reply, &verdict);
                }
            }
            Command::TakeOver {
                handover_state,
                inventory,
                reply,
                begins,
            } => self.continue_from(*handover_state, inventory, reply, &begins),
            Command::Drain { session, reply } => {
                self.engine.drain_session(session);
                answer(reply, ());
            }
            Command::CloseSession { session } => self.close_session(session),
            Command::Bind {
                session,
                schema,
                bind,
                chains,
                reply,
            } => self.bind(session, schema, bind, chains, reply),
            Command::Compared {
                ticket,
                binding,
                matches,
            } => self.compared(ticket, binding, matches),
            Command::Found {
                tenant,
                peer,
                found,
            } => self.found(tenant, peer, found),
            Command::Serve {
                session,
                bound,
                done,
            } => {
                self.serve(session, &bound);
                answer(done, ());
            }
            Command::Accept { stream, unseen } => self.accept(stream, unseen),
            #[cfg(feature = "rdma")]
            Command::AcceptByRdma { link } => self.accept_by_rdma(link),
            Command::Adopt { port, bind } => self.adopt(port, bind),
            Command::Process {
                id,
                tenant,
                channel,
            } => self.open_process(id, tenant, channel),
            Command::Part { order } => self.part_with(*order),
            Command::Absorb { moving } => self.absorb(moving),
            Command::Retire { map, reply } => answer(reply, self.end_without_tenants(*map)),
            Command::Place { map, done } => {
                self.placed(*map);
                answer(done, ());
            }
            Command::Rehearse {
                id,
                version,
                successor,
                done,
            } => self.rehearse(id, version, successor, done),
            Command::Policies { change, done } => answer(done, self.apply(change)),
            Command::Tune { tuning, cpu, done } => {
                self.tune(*tuning, &cpu);
                answer(done, ());
            }
            Command::Recorded { id, reply } => answer(reply, self.policies.recorded(id)),
            Command::KeptSpans { reply } => answer(reply, self.observer.kept()),
            Command::Report { reply } => answer(reply, self.report()),
            Command::Measure { reply } => answer(reply, self.measured_report()),
            Command::Stop => self.thread.end(),
        }
    }

    /// Opens a session for a requester, unless it has given up meanwhile.
    fn open(&mut self, mut end: DaemonEnd, who: Who, reply: Reply<Result<SessionId, Status>>) {
        if !who.follows_heaps {
            end.stays();
        }
        let opened = self.open_session(end, who);
        if let Err(Ok(session)) = reply.send(opened) {
            // Nothing else would close the session.
            self.close_session(session);
        }
    }

    /// Hands everything over, and ends if the other process continues.
    fn leave_to_successor(
        &mut self,
        with_links: bool,
        until: Instant,
        reply: Reply<Result<HandoverState, LeaveError>>,
        verdict: &mpsc::Receiver<()>,
    ) {
        // Takes links that other runtimes have sent to this one: none follows.
        self.take_commands();
        let handover_state = self.hand_over(with_links, until);
        let is_whole = handover_state.is_ok();
        // Nothing happens here until the other process has taken over, or has failed to.
        if reply.send(handover_state).is_ok() && is_whole && verdict.recv().is_ok() {
            self.leave();
            self.thread.end();
        }
    }

    /// Continues from the state of another process, or ends if that process continues.
    fn continue_from(
        &mut self,
        handover_state: HandoverState,
        inventory: Inventory,
        reply: Reply<Result<Vec<Resumed>, ResumeError>>,
        begins: &mpsc::Receiver<()>,
    ) {
        let (answer, beginning) = match self.take_over(handover_state, inventory) {
            Ok((resumed, beginning)) => (Ok(resumed), Some(beginning)),
            Err(why) => (Err(why), None),
        };
        // The old process may still continue with its objects: nothing is touched before that is
        // known.
        let is_heard = reply.send(answer).is_ok();
        match beginning.filter(|_| is_heard && begins.recv().is_ok()) {
            Some(beginning) => self.begin(beginning),
            None => {
                self.leave();
                self.thread.end();
            }
        }
    }

    /// Calls may arrive at a session that serves.
    fn serve(&mut self, session: SessionId, bound: &Bound) {
        if let Some(service) = bound.service {
            let port = self.sessions.get(session);
            let label = port.and_then(|port| port.who.label.clone());
            self.engine
                .serve(service, session, bound.first_handle, label);
        }
    }

    /// No tenant is placed here any more: the runtime ends. Returns its last report.
    fn end_without_tenants(&mut self, map: Map) -> Report {
        self.retire(map);
        self.thread.end();
        self.measured_report()
    }

    fn rehearse(
        &mut self,
        id: AttachmentId,
        version: VersionNumber,
        successor: Box<Isolated>,
        done: Reply<Result<(), ChangeError>>,
    ) {
        let done = Box::new(|could| answer(done, could));
        let successor = Successor {
            version,
            isolated: successor,
        };
        self.policies.rehearse(id, successor, done);
        self.pass_on_events();
    }

    pub(super) fn open_process(
        &mut self,
        id: ProcessId,
        tenant: Arc<str>,
        mut channel: Box<Channel>,
    ) {
        if let Some(home) = self.siblings.home_of(&tenant) {
            home.send(Command::Process {
                id,
                tenant,
                channel,
            });
            return;
        }
        if let Err(error) = self.wakes.watch_process(id, &mut channel) {
            // Its answers would wake no thread.
            channel.end(format!("it can't be watched: {error}"));
        }
        self.policies.processes().open(id, tenant, *channel);
    }

    pub(crate) fn apply(&mut self, change: PolicyChange) -> Result<(), ChangeError> {
        let tenant_of = |scope: &Scope| match *scope {
            Scope::Client { session, .. } => self.sessions.get(session).map(|s| &s.who.tenant),
            Scope::Server { service, .. } => {
                let service = self.services.get(service);
                service.map(|service| &service.tenant)
            }
        };
        // A scope that has gone has no chains to change.
        let tenant_of = |scope: &Scope| tenant_of(scope).map_or_else(|| "".into(), Arc::clone);
        let applied = self.policies.apply(change, &mut self.engine, tenant_of);
        self.pass_on_events();
        applied
    }

    /// Passes events of policies on to the control plane.
    #[inline]
    pub(crate) fn pass_on_events(&mut self) {
        for event in self.policies.take_events() {
            self.control.tell(Event::Policies(event));
        }
    }

    /// Carries out the engine's outputs until there are none.
    pub(crate) fn act(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Evaluate {
                    call,
                    stage,
                    chain,
                    evaluated_in,
                    message,
                } => {
                    let evaluation = self.evaluation(call, evaluated_in, message);
                    self.evaluate(evaluation, stage, chain);
                }
                Output::Recall { call } => self.recall(call),
                Output::Convert {
                    call,
                    from,
                    to,
                    message,
                } => self.convert(call, from, to, message),
                Output::Held { call } => self.observer.queued(&self.engine, call, "link"),
                Output::SendCall {
                    link,
                    bind,
                    method,
                    call,
                    deadline_ns,
                    encoding,
                    more,
                    message,
                } => {
                    let head = OutgoingCall {
                        bind,
                        method,
                        deadline_ns,
                        encoding,
                        more,
                    };
                    self.send_call(link, call, head, message);
                }
                Output::SendRequest {
                    link,
                    call,
                    encoding,
                    more,
                    charge,
                    message,
                } => self.send_request(link, call, more, charge, encoding, message),
                Output::SendResponse {
                    link,
                    call,
                    encoding,
                    charge,
                    message,
                } => self.send_response(link, call, charge, encoding, message),
                Output::Credit { to, of, credit } => self.tell_credit(to, of, credit),
                Output::SendReply {
                    link,
                    call,
                    encoding,
                    request_bytes,
                    message,
                    ended,
                } => {
                    self.call_ended(Origin::Link { link, call }, &ended, None);
                    self.send_reply(link, call, encoding, request_bytes, message);
                }
                Output::SendStatus {
                    link,
                    call,
                    request_bytes,
                    status,
                    ended,
                } => {
                    self.call_ended(Origin::Link { link, call }, &ended, Some(&status));
                    self.send_status(link, call, request_bytes, status);
                }
                Output::SendCancel { link, call } => self.send_cancel(link, call),
                Output::Deliver {
                    session,
                    handle,
                    call,
                    deadline_ns,
                    more,
                    message,
                } => self.deliver(session, handle, call, more, deadline_ns, message),
                Output::DeliverRequest {
                    session,
                    handle,
                    call,
                    more,
                    charge,
                    message,
                } => self.deliver_request(session, handle, call, more, charge, message),
                Output::Respond {
                    session,
                    handle,
                    call,
                    charge,
                    message,
                } => self.respond(session, handle, call, charge, message),
                Output::CancelDelivered { session, call } => {
                    self.cancel_delivered(session, call);
                }
                Output::Complete {
                    session,
                    handle,
                    call,
                    message,
                    ended,
                } => {
                    self.call_ended(Origin::Session { session, call }, &ended, None);
                    self.complete(session, handle, call, message);
                }
                Output::Fail {
                    session,
                    call,
                    status,
                    ended,
                } => {
                    self.call_ended(Origin::Session { session, call }, &ended, Some(&status));
                    self.fail(session, call, status);
                }
                Output::Discard(message) => {
                    discard_boxed(message, &mut self.pool, &mut self.sessions)
                }
            }
        }
        self.observer.settled();
    }

    /// A call has its answer: a `status` of `None` means a reply.
    #[inline]
    fn call_ended(&mut self, origin: Origin, ended: &Ended, status: Option<&Status>) {
        let seen = Seen::by(
            &self.options.tuning.telemetry,
            &self.sessions,
            &self.links,
            &self.services,
            self.now_ns,
        );
        self.observer.call_ended(origin, ended, status, seen);
    }
}

/// Answers a command. A sender that has given up needs no answer.
fn answer<T: Send + 'static>(reply: Reply<T>, answer: T) {
    let _ = reply.send(answer);
}
