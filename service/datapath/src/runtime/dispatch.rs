//! Dispatch: commands of the control plane and outputs of the engine, one call for each.

use std::sync::Arc;

use tollgate_engine::{Encoding, Ended, Origin, Output, Status};
use tollgate_policy_host::isolated::Channel;
use tollgate_shm_abi::messages::{FEATURE_HEAPS, FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS};
use tollgate_telemetry::record::event;
use tollgate_transport::CallHead;

use super::Runtime;
use crate::command::{Command, Event};
use crate::observe::Seen;
use crate::ports::Who;
use tollgate_policy_chain::evaluation::Evaluation;
use tollgate_policy_chain::ids::ProcessId;
use tollgate_policy_chain::plan::{PolicyChange, Scope};

impl Runtime {
    pub(super) fn take_commands(&mut self) -> bool {
        let mut worked = false;
        while let Ok(command) = self.commands.try_recv() {
            worked = true;
            self.command(command);
            self.act();
        }
        worked
    }

    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::OpenSession {
                mut end,
                tenant,
                app,
                pid,
                features,
                label,
                reply,
            } => {
                let who = Who {
                    tenant,
                    app,
                    pid,
                    takes_metadata: features & FEATURE_METADATA != 0,
                    tells_waits: features & FEATURE_WAITS != 0,
                    knows_streams: features & FEATURE_STREAMS != 0,
                    follows_heaps: features & FEATURE_HEAPS != 0,
                    label: (!label.is_empty()).then(|| label.into()),
                };
                if !who.follows_heaps {
                    end.stays();
                }
                let opened = self.open_session(*end, who);
                if let Err(Ok(session)) = reply.send(opened) {
                    // The requester has given up, so nothing else would close the session.
                    self.close_session(session);
                }
            }
            Command::HandOver {
                with_links,
                until,
                stands,
                all_stand,
                reply,
                verdict,
            } => {
                if stands.send(()).is_err() || all_stand.recv().is_err() {
                    return;
                }
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
            Command::TakeOver {
                handover_state,
                inventory,
                reply,
                begins,
            } => {
                let (answer, beginning) = match self.take_over(*handover_state, inventory) {
                    Ok((resumed, beginning)) => (Ok(resumed), Some(beginning)),
                    Err(why) => (Err(why), None),
                };
                // The old process may still continue with its objects: nothing is touched before
                // that is known.
                let is_heard = reply.send(answer).is_ok();
                match beginning.filter(|_| is_heard && begins.recv().is_ok()) {
                    Some(beginning) => self.begin(beginning),
                    None => {
                        self.leave();
                        self.thread.end();
                    }
                }
            }
            Command::Drain { session, reply } => {
                self.engine.drain_session(session);
                let _ = reply.send(());
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
                if let Some(service) = bound.service {
                    let port = self.sessions.get(session);
                    let label = port.and_then(|port| port.who.label.clone());
                    self.engine
                        .serve(service, session, bound.first_handle, label);
                }
                let _ = done.send(());
            }
            Command::Accept { stream, unseen } => {
                self.accept(stream);
                drop(unseen);
            }
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
            Command::Retire { map, reply } => {
                self.retire(*map);
                let _ = reply.send(self.measured_report());
                self.thread.end();
            }
            Command::Place { map, done } => {
                self.placed(*map);
                let _ = done.send(());
            }
            Command::Rehearse {
                id,
                version,
                successor,
                done,
            } => {
                let done = Box::new(|could| drop(done.send(could)));
                self.policies.rehearse(id, (successor, version), done);
                self.pass_on_events();
            }
            Command::Policies { change, done } => {
                let applied = self.apply(change);
                let _ = done.send(applied);
            }
            Command::Tune {
                tuning,
                cpu,
                of,
                done,
            } => {
                self.tune(*tuning);
                self.policies.limit_cpu(&of, cpu);
                let _ = done.send(());
            }
            Command::Recorded { id, reply } => {
                let _ = reply.send(self.policies.recorded(id));
            }
            Command::KeptSpans { reply } => {
                let _ = reply.send(self.observer.kept());
            }
            Command::Report { reply } => {
                let _ = reply.send(self.report());
            }
            Command::Measure { reply } => {
                let _ = reply.send(self.measured_report());
            }
            Command::Stop => self.thread.end(),
        }
    }

    pub(super) fn open_process(
        &mut self,
        id: ProcessId,
        tenant: Arc<str>,
        mut channel: Box<Channel>,
    ) {
        if let Some(home) = self.elsewhere(&tenant) {
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

    pub(crate) fn apply(&mut self, change: PolicyChange) -> Result<(), String> {
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
            self.events.tell(Event::Policies(event));
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
                    let mut evaluation = Evaluation::new(call, message);
                    evaluation.evaluated_in = evaluated_in;
                    evaluation.notes = self.observer.notes_of(&self.engine, call);
                    self.evaluate(evaluation, stage, chain);
                }
                Output::Recall { call } => self.recall(call),
                Output::Convert {
                    call,
                    from,
                    to,
                    message,
                } => {
                    let message = self.pool.unboxed(message);
                    self.convert(call, from, to, message);
                }
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
                    let head = CallHead {
                        call: call.to_wire(),
                        bind,
                        method,
                        deadline_us: self.remaining_us(deadline_ns),
                        protobuf: encoding == Encoding::Protobuf,
                        more,
                        bare: message.bare,
                    };
                    self.observer
                        .sent(&self.engine, call, message.message_len());
                    let message = self.pool.unboxed(message);
                    self.send_call(link, call, &head, message);
                }
                Output::SendRequest {
                    link,
                    call,
                    encoding,
                    more,
                    charge,
                    message,
                } => {
                    let head = (more, charge, encoding);
                    self.send_request(link, call, head, message);
                }
                Output::SendResponse {
                    link,
                    call,
                    encoding,
                    charge,
                    message,
                } => self.send_response(link, call, (charge, encoding), message),
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
                    let message = self.pool.unboxed(message);
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
                } => {
                    self.engine.delivered(self.now_ns, call);
                    self.observer
                        .event(&self.engine, call, event::DELIVERED, Vec::new);
                    let message = self.pool.unboxed(message);
                    self.deliver(session, handle, call, (more, deadline_ns), message);
                }
                Output::DeliverRequest {
                    session,
                    handle,
                    call,
                    more,
                    charge,
                    message,
                } => self.deliver_request((session, handle), call, (more, charge), message),
                Output::Respond {
                    session,
                    handle,
                    call,
                    charge,
                    message,
                } => self.respond((session, handle), call, charge, message),
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
                    let message = self.pool.unboxed(message);
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
                    let message = self.pool.unboxed(message);
                    self.discard(message);
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
