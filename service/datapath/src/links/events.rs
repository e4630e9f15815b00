//! Peers: links are accepted, bound and lost; frames become calls of the engine, and the engine's
//! output becomes frames.
//!
//! Distrust: a peer has authenticated (with a key) or is on this host (loopback) before any code
//! here runs. Even so, every image from a peer is validated before a chain or an application sees
//! it: in private memory, or in a receive heap that only this daemon can write. A peer that breaks
//! the protocol loses its link.

use std::sync::Arc;

use tollgate_engine::{CallKey, LinkId, Origin, Status};
use tollgate_shm_abi::stream::Credit as StreamCredit;
use tollgate_transport::{BodyOutcome, Event as LinkEvent, LinkError, ReadOutcome};

use crate::binds::{PendingBind, ServiceSchema};
use crate::command::Command;
use crate::limits::FRAMES_PER_TURN;
use crate::log_limited;
use crate::ports::{Answer, FurtherRequest, LargeBody, LinkPort, LinkState};
use crate::runtime::Runtime;

/// The next step on a link after one of its events, once the event's bytes are no longer borrowed.
pub(crate) enum After {
    Nothing,
    Bound(u32),
    /// The BIND names another schema than this host serves.
    BoundAcross {
        bind: u32,
        schema: Arc<ServiceSchema>,
    },
    Refused {
        bind: u32,
        status: Status,
        description: String,
    },
    Large(LargeBody),
    SkipBody,
}

/// From the peer.
impl Runtime {
    /// Takes a bounded number of frames. Whether there was anything to do.
    pub(crate) fn turn_link(&mut self, link: LinkId) -> bool {
        let Some(mut port) = self.links.take(link) else {
            return false;
        };
        let mut worked = false;
        let outcome = self.pump(link, &mut port, &mut worked);
        let moving = port.state.moving.take();
        let openings = self.links.take_openings();
        if openings > 0 {
            port.io.link_mut().return_credit(0, openings);
        }
        let credited = std::mem::take(&mut port.state.credited);
        self.links.put_back(link, port);
        self.bind_waiting();
        self.act();
        if credited && let Some(port) = self.links.get(link) {
            let credit = port.io.link().credit();
            self.engine.set_credit(link, credit.calls, credit.bytes);
            self.send_waiting(link);
        }
        match (outcome, moving) {
            (Err(error), _) => {
                self.lose_link(link, &error.to_string());
                true
            }
            (Ok(()), Some(bind)) => {
                self.move_link(link, bind);
                true
            }
            (Ok(()), None) => worked,
        }
    }

    fn pump(
        &mut self,
        link: LinkId,
        port: &mut LinkPort,
        worked: &mut bool,
    ) -> Result<(), LinkError> {
        let mut has_read = false;
        let at_most = self.scheduler.bytes_per_turn();
        for _ in 0..FRAMES_PER_TURN {
            if port.state.large.is_some() {
                if !port.state.readable {
                    break;
                }
                let is_complete = self.pump_large(link, port, at_most, worked)?;
                // If other tenants wait, one read is enough for a turn.
                if !is_complete || at_most < usize::MAX {
                    break;
                }
                continue;
            }
            let LinkPort { io, state } = &mut *port;
            if let Some(event) = io.link_mut().poll_event()? {
                *worked = true;
                let after = self.on_event(link, state, event);
                if state.proven && state.peer.is_none() {
                    state.peer = io.link().peer_identity().map(Into::into);
                }
                self.do_after(port, after);
                if port.state.moving.is_some() {
                    break;
                }
                continue;
            }
            if has_read || !state.readable {
                break;
            }
            has_read = true;
            state.readable = match io.read_some(at_most)? {
                ReadOutcome::Data { more } => {
                    // No further event reports that there is more.
                    *worked |= more || state.ends;
                    more || state.ends
                }
                ReadOutcome::BodyPending => true,
                ReadOutcome::Blocked => false,
            };
        }
        Ok(())
    }

    /// Continues reading a large body. Whether it is complete.
    fn pump_large(
        &mut self,
        link: LinkId,
        port: &mut LinkPort,
        at_most: usize,
        worked: &mut bool,
    ) -> Result<bool, LinkError> {
        let Some(large) = &mut port.state.large else {
            return Ok(true);
        };
        let outcome = port.io.read_large(&mut large.landing, at_most)?;
        *worked |= outcome != BodyOutcome::Blocked;
        match outcome {
            // The socket may have more data, whatever `more` says: the body may have come from the
            // buffer.
            BodyOutcome::Complete { .. } => {
                if let Some(large) = port.state.large.take() {
                    self.large_arrived(link, &port.state, large);
                }
                Ok(true)
            }
            BodyOutcome::More => Ok(false),
            BodyOutcome::Blocked => {
                port.state.readable = port.state.ends;
                Ok(false)
            }
        }
    }

    pub(crate) fn do_after(&mut self, port: &mut LinkPort, after: After) {
        let sent = match after {
            After::Nothing => Ok(()),
            After::Bound(bind) => port.io.link_mut().send_bound(bind, ""),
            After::BoundAcross { bind, schema } => port.answer_across(bind, &schema),
            After::Refused {
                bind,
                status,
                description,
            } => port
                .io
                .link_mut()
                .send_refused(bind, status.code, &status.message, &description),
            After::Large(large) => {
                port.state.large = Some(large);
                // The beginning of the body, maybe all of it, is in the receive buffer: no event
                // reports it.
                port.state.readable = true;
                Ok(())
            }
            After::SkipBody => {
                port.io.link_mut().skip_body();
                Ok(())
            }
        };
        if let Err(error) = sent {
            let culprit = port.state.tenant.clone().unwrap_or_default();
            let address = &port.state.address;
            log_limited!(
                warn,
                "answer lost",
                &culprit,
                "an answer to peer {address} was lost: {error}"
            );
        }
    }

    fn on_event(&mut self, link: LinkId, state: &mut LinkState, event: LinkEvent<'_>) -> After {
        match event {
            LinkEvent::Ready { name, version } => self.link_is_ready(link, state, name, version),
            LinkEvent::Bind {
                bind,
                tenant,
                service,
                schema_hash: hash,
            } => {
                let (tenant, service) = (tenant.to_owned(), service.to_owned());
                let wanted = PendingBind {
                    bind,
                    tenant,
                    service,
                    hash,
                };
                return self.bind_arrived(state, wanted);
            }
            LinkEvent::Bound { bind, description } => {
                self.bound_arrived(link, state, bind, description);
            }
            LinkEvent::Refused {
                bind,
                code,
                sentence,
                description,
            } => self.refused_arrived(state, bind, code, sentence, description),
            LinkEvent::Call { head, came } => return self.call_arrived(link, state, head, came),
            LinkEvent::Request {
                call,
                more,
                bare,
                protobuf,
                charge,
                came,
            } => {
                let request = FurtherRequest {
                    call,
                    more,
                    protobuf,
                    charge,
                };
                return self.further_request_arrived(link, request, bare, came);
            }
            LinkEvent::Response {
                call,
                bare,
                protobuf,
                charge,
                came,
            } => {
                let answer = Answer {
                    key: CallKey::from_wire(call),
                    protobuf,
                    charge: Some(charge),
                };
                return self.answer_arrived(link, answer, bare, came);
            }
            LinkEvent::RequestCredit {
                call,
                messages,
                bytes,
            } => {
                let credit = StreamCredit { messages, bytes };
                self.engine
                    .requests_consumed_by_link(link, CallKey::from_wire(call), credit);
            }
            LinkEvent::ResponseCredit {
                call,
                messages,
                bytes,
            } => {
                let credit = StreamCredit { messages, bytes };
                self.engine
                    .responses_consumed(Origin::Link { link, call }, credit);
            }
            LinkEvent::Reply {
                call,
                protobuf,
                came,
            } => {
                let answer = Answer {
                    key: CallKey::from_wire(call),
                    protobuf,
                    charge: None,
                };
                return self.answer_arrived(link, answer, false, came);
            }
            LinkEvent::Status {
                call,
                code,
                retry_after_ms,
                message,
                metadata,
            } => {
                let status = Status::new(code, message.to_owned())
                    .with_retry_after_ms(retry_after_ms)
                    .with_trailers(metadata.as_bytes().to_vec());
                self.engine
                    .fail_from_link(link, CallKey::from_wire(call), status);
            }
            LinkEvent::Cancel { call } => {
                self.engine.cancel(Origin::Link { link, call });
            }
            LinkEvent::Credit => state.credited = true,
            LinkEvent::GoAway { message, .. } => {
                let culprit = state.tenant.as_deref().unwrap_or_default();
                log_limited!(
                    info,
                    "peer goes",
                    culprit,
                    "peer {} is going away: {message}",
                    state.address
                );
            }
        }
        After::Nothing
    }

    fn link_is_ready(&mut self, link: LinkId, state: &mut LinkState, name: &str, version: u16) {
        let culprit = state.tenant.as_deref().unwrap_or_default();
        log_limited!(
            info,
            "link ready",
            culprit,
            "the link with {} ({name}) is ready, version {version}",
            state.address
        );
        state.ready_since_ns = Some(self.now_ns);
        if let (Some(peer), Some(tenant)) = (&state.dialled, &state.tenant) {
            self.dials.link_is_ready(tenant, peer);
        }
        (state.proven, state.rdma_until_ns) = (true, None);
        self.links.note_ready(link);
    }

    /// Moves a link to the runtime of its tenant.
    fn move_link(&mut self, link: LinkId, bind: PendingBind) {
        let Some(port) = self.links.remove(link) else {
            return;
        };
        self.engine.link_closed(link, "the link has moved");
        self.wakes.unwatch_link(&port.io);
        if let Some(home) = self.siblings.home_of(&bind.tenant) {
            let bind = Some(bind);
            home.send(Command::Adopt { port, bind });
        }
    }
}
