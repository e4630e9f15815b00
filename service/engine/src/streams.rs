//! Streams: messages after a call's first request and before its answer.
//!
//! ```text
//!   request, response ──▶ its direction's queue ──▶ one at a time: chain, layout, chain ──▶ the other side
//!                          bounded by a window            State::Passing
//! ```
//!
//! A stream opens and ends like any other call. In between, each message passes the same chains as
//! a request or a reply, in the order in which its direction was sent. At most one message of a
//! call is on its way at a time, in either direction, so a chain has at most one; the others wait
//! here. Messages for a link that [is behind](Engine::set_behind) wait, too.
//!
//! Invariants: a queue has no more than its [`Window`](tollgate_shm_abi::stream::Window), which its
//! reader opens. A status waits for earlier responses. A side that has answered gets no further
//! requests.

use std::fmt;

use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit;

use crate::calls::Call;
use crate::engine::Engine;
use crate::ids::{CallKey, ChainId, LinkId, Origin, ServiceId, SessionId};
use crate::limits::STREAMS_BEFORE_SWEEP;
use crate::output::{Direction, Output};
use crate::routes::{Encoding, End, Target};
use crate::state::{Event, Stage, State};
use crate::status::Status;
use crate::streams::queues::{Stream, Waiting, What};

pub(crate) mod queues;

/// Messages that a correct library or daemon doesn't send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// A request after the last, or to a call that takes only one.
    AfterLast,
    /// More than its reader's window.
    Window,
    /// An answer to another application's call.
    NotTheirs,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfit::AfterLast => "a request came after the call's last",
            Unfit::Window => "more messages of a stream came than its reader has consumed",
            Unfit::NotTheirs => "an answer came to a call of another application",
        })
    }
}

/// Properties of a request's call that the rim needs to examine it and to choose where a large body
/// lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedRequest {
    /// The method handle that an application called; 0 for a peer's call.
    pub handle: u32,
    /// The service and method, if served here.
    pub served: Option<(ServiceId, u16)>,
    /// The encoding of requests from a peer.
    pub encoding: Encoding,
    /// The session that gets it, if it has the call and no chain reads requests first.
    pub lands: Option<SessionId>,
}

/// Incoming messages.
impl<M> Engine<M> {
    /// The next request of a call; `None` stands for no message, which ends the requests if no
    /// `more` follow. A request of an ended call is dropped: its caller can't know.
    ///
    /// # Errors
    /// The request is invalid; the message is dropped.
    pub fn request(
        &mut self,
        origin: Origin,
        more: bool,
        charge: u32,
        message: Option<M>,
    ) -> Result<(), Unfit> {
        let call = self.key_of(origin).and_then(|key| {
            let call = self.calls.get_mut(key)?;
            Some((key, call))
        });
        let Some((key, call)) = call else {
            self.discard_all(message);
            return Ok(());
        };
        let unfit = match &mut call.stream {
            Some(stream) if stream.more => {
                stream.more = more;
                let fits = message.is_none() || stream.requests_sent.take(charge);
                (!fits).then_some(Unfit::Window)
            }
            _ => Some(Unfit::AfterLast),
        };
        if let Some(unfit) = unfit {
            self.discard_all(message);
            return Err(unfit);
        }
        if (message.is_some() || !more)
            && let Some(stream) = &mut call.stream
        {
            let what = What::Request { more, charge };
            stream.requests.push_back(Waiting { what, message });
            self.pump(key);
        }
        Ok(())
    }

    /// A serving application's response. A response to an ended call is dropped.
    ///
    /// # Errors
    /// As for [`request`](Self::request).
    pub fn response_from_session(
        &mut self,
        session: SessionId,
        key: CallKey,
        charge: u32,
        message: M,
    ) -> Result<(), Unfit> {
        let responded = match self.calls.get(key).map(|call| call.target) {
            None => {
                self.discard(message);
                Ok(())
            }
            Some(target) if target == (Target::Session { session }) => {
                self.respond(key, charge, message)
            }
            Some(_) => {
                self.discard(message);
                Err(Unfit::NotTheirs)
            }
        };
        self.pump(key);
        responded
    }

    /// A peer's response to our call. If it is invalid, the call ends.
    pub fn response_from_link(&mut self, link: LinkId, key: CallKey, charge: u32, message: M) {
        if !self.is_with_link(link, key) {
            return self.discard(message);
        }
        match self.respond(key, charge, message) {
            Ok(()) => self.pump(key),
            Err(unfit) => {
                let text = format!("the peer broke the protocol: {unfit}");
                self.end(key, Status::new(Code::INTERNAL, text));
            }
        }
    }

    fn respond(&mut self, key: CallKey, charge: u32, message: M) -> Result<(), Unfit> {
        let Some(call) = self.calls.get_mut(key) else {
            self.discard(message);
            return Ok(());
        };
        let stream = call.stream.get_or_insert_with(|| Stream::new(false));
        if !stream.responses_sent.take(charge) {
            self.discard(message);
            return Err(Unfit::Window);
        }
        let what = What::Response { charge };
        let message = Some(message);
        stream.responses.push_back(Waiting { what, message });
        Ok(())
    }

    /// The answer to a stream: its sender no longer works on the call.
    pub(crate) fn reply_to_stream(&mut self, key: CallKey, message: M) {
        let Some(stream) = self.calls.get_mut(key).and_then(|c| c.stream.as_mut()) else {
            return self.discard(message);
        };
        let (what, message) = (What::Reply, Some(message));
        stream.responses.push_back(Waiting { what, message });
        self.pump(key);
    }

    /// A call ends with this status, after earlier responses. Its sender no longer works on the
    /// call.
    pub(crate) fn finish(&mut self, key: CallKey, status: Status) {
        let stream = self.calls.get_mut(key).and_then(|c| c.stream.as_mut());
        match stream.filter(|stream| {
            let responds = matches!(stream.passing, Some(What::Response { .. }));
            responds || !stream.responses.is_empty()
        }) {
            Some(stream) => stream.ending = Some(status),
            None => self.end(key, status),
        }
    }

    /// A caller's request is invalid: its call gets this status.
    pub fn refuse(&mut self, origin: Origin, status: Status) {
        if let Some(key) = self.key_of(origin) {
            self.end(key, status);
        }
    }

    /// A serving application has consumed requests.
    pub fn requests_consumed_by_session(
        &mut self,
        session: SessionId,
        key: CallKey,
        credit: Credit,
    ) {
        let its = Target::Session { session };
        if self.calls.get(key).is_some_and(|call| call.target == its) {
            self.requests_consumed(key, credit);
        }
    }

    /// A peer's application has consumed requests of our call.
    pub fn requests_consumed_by_link(&mut self, link: LinkId, key: CallKey, credit: Credit) {
        if self.is_with_link(link, key) {
            self.requests_consumed(key, credit);
        }
    }

    fn requests_consumed(&mut self, key: CallKey, credit: Credit) {
        let Some(call) = self.calls.get_mut(key) else {
            return;
        };
        let to = call.origin;
        if let Some(stream) = &mut call.stream {
            let credit = stream.consumed(Direction::Requests, credit);
            self.tell_credit(to, Direction::Requests, credit);
        }
    }

    /// The caller has consumed responses.
    pub fn responses_consumed(&mut self, origin: Origin, credit: Credit) {
        let Some(key) = self.key_of(origin) else {
            return;
        };
        let Some(call) = self.calls.get_mut(key) else {
            return;
        };
        let number = key.to_wire();
        let to = match call.target {
            Target::Session { session } => Origin::Session {
                session,
                call: number,
            },
            Target::Link { link, .. } => Origin::Link { link, call: number },
            _ => return,
        };
        if let Some(stream) = &mut call.stream {
            let credit = stream.consumed(Direction::Responses, credit);
            self.tell_credit(to, Direction::Responses, credit);
        }
    }

    fn tell_credit(&mut self, to: Origin, of: Direction, credit: Credit) {
        if credit != Credit::default() {
            self.outputs.push_back(Output::Credit { to, of, credit });
        }
    }

    /// The properties of the next request of a caller's call. `None`: there is no such call (any
    /// more).
    pub fn expected_request(&self, origin: Origin) -> Option<ExpectedRequest> {
        let call = self.calls.get(self.key_of(origin)?)?;
        let (served, session) = match call.target {
            Target::Service { service, method } => (Some((service, method)), None),
            Target::Session { session } => (call.service, Some(session)),
            _ => (call.service, None),
        };
        let is_evaluated =
            |(service, method)| self.server_chains(service, method).request.is_some();
        Some(ExpectedRequest {
            handle: call.handle,
            served,
            encoding: call.encoding,
            lands: session.filter(|_| !served.is_some_and(is_evaluated)),
        })
    }
}

/// The way of one message.
impl<M> Engine<M> {
    /// Passes on what it can.
    pub(crate) fn pump(&mut self, key: CallKey) {
        while let Some(waiting) = self.next_of(key) {
            self.set_out(key, waiting);
        }
    }

    /// The next message of a call that may start now; ends a call that has none left and only
    /// waited for this.
    fn next_of(&mut self, key: CallKey) -> Option<Waiting<M>> {
        let call = self.calls.get_mut(key)?;
        if call.state != State::InFlight {
            return None;
        }
        let stream = call.stream.as_mut()?;
        if let Target::PutOff { .. } | Target::Answered = call.target {
            for request in std::mem::take(&mut stream.requests) {
                let unread = request.message.map(Output::Discard);
                self.outputs.extend(unread);
            }
        }
        let links = &self.links;
        let is_behind = |id: LinkId| links.get(id.0).is_some_and(|link| link.behind);
        let (may_request, may_respond) = match (call.origin, call.target) {
            (_, Target::Link { link, .. }) => (!is_behind(link), true),
            (Origin::Link { link, .. }, _) => (true, !is_behind(link)),
            _ => (true, true),
        };
        if let Some(next) = stream.next(may_request, may_respond) {
            return Some(next);
        }
        if stream.responses.is_empty()
            && let Some(status) = stream.ending.take()
        {
            self.end(key, status);
            return None;
        }
        let waits = !(stream.requests.is_empty() && stream.responses.is_empty());
        if waits && !std::mem::replace(&mut stream.waits_for_link, true) {
            let link = match (call.origin, call.target) {
                (_, Target::Link { link, .. }) | (Origin::Link { link, .. }, _) => link,
                _ => return None,
            };
            self.wait_for_link(link, key);
        }
        None
    }

    fn wait_for_link(&mut self, link: LinkId, key: CallKey) {
        let Some(link) = self.links.get_mut(link.0) else {
            return;
        };
        if link.streams.len() >= link.sweep_at {
            let calls = &self.calls;
            link.streams.retain(|&key| calls.get(key).is_some());
            link.sweep_at = STREAMS_BEFORE_SWEEP.max(2 * link.streams.len());
        }
        link.streams.push_back(key);
    }

    /// Passes on messages of one stream that wait for a link that is no longer behind, before the
    /// link is checked again. Returns whether there may be more.
    pub(crate) fn pump_one_of(&mut self, id: LinkId) -> bool {
        let link = self.links.get_mut(id.0);
        let Some(key) = link
            .filter(|l| !l.behind)
            .and_then(|l| l.streams.pop_front())
        else {
            return false;
        };
        if let Some(stream) = self.calls.get_mut(key).and_then(|c| c.stream.as_mut()) {
            stream.waits_for_link = false;
        }
        self.pump(key);
        true
    }

    /// A verdict let a message pass.
    pub(crate) fn passed(&mut self, key: CallKey, stage: Stage, message: M) {
        match stage {
            Stage::ClientRequest => self.request_left(key, message),
            Stage::ServerRequest => self.hand_request(key, Some(message)),
            Stage::ServerReply => self.response_left(key, message),
            Stage::ClientReply => self.hand_response(key, message),
        }
        self.pump(key);
    }

    /// A message has the layout of its other side.
    pub(crate) fn crossed(&mut self, key: CallKey, stage: Stage, message: M) {
        match stage {
            Stage::ClientRequest | Stage::ServerRequest => self.request_crossed(key, message),
            Stage::ServerReply | Stage::ClientReply => self.response_crossed(key, message),
        }
        self.pump(key);
    }

    fn set_out(&mut self, key: CallKey, Waiting { what, message }: Waiting<M>) {
        let Some(call) = self.calls.get_mut(key) else {
            return self.discard_all(message);
        };
        if let Some(stream) = &mut call.stream {
            stream.passing = Some(what);
        }
        let (origin, service) = (call.origin, call.service);
        let Some(message) = message else {
            return self.hand_request(key, None);
        };
        match (what, origin, service) {
            (What::Request { .. }, Origin::Session { .. }, _) => {
                let chain = self
                    .calls
                    .get(key)
                    .and_then(|c| self.client_request_chain(c));
                if let Some(message) = self.pass(key, Stage::ClientRequest, chain, message) {
                    self.request_left(key, message);
                }
            }
            (What::Request { .. }, Origin::Link { .. }, _) => self.request_crossed(key, message),
            (_, _, Some((service, method))) => {
                let chain = self.server_chains(service, method).reply;
                if let Some(message) = self.pass(key, Stage::ServerReply, chain, message) {
                    self.response_left(key, message);
                }
            }
            (_, _, None) => self.response_crossed(key, message),
        }
    }

    /// Runs a chain on a message, or returns the message if there is no chain.
    fn pass(
        &mut self,
        call: CallKey,
        stage: Stage,
        chain: Option<ChainId>,
        message: M,
    ) -> Option<M> {
        self.step(call, Event::Pass(stage));
        let Some(chain) = chain else {
            return Some(message);
        };
        self.outputs.push_back(Output::Evaluate {
            call,
            stage,
            chain,
            evaluated_in: 0,
            message,
        });
        None
    }

    /// The caller's side has passed a request.
    fn request_left(&mut self, key: CallKey, message: M) {
        let Some(call) = self.calls.get(key) else {
            return self.discard(message);
        };
        let Origin::Session { session, .. } = call.origin else {
            return self.request_crossed(key, message);
        };
        if call.encoding == Encoding::Native {
            return self.request_crossed(key, message);
        }
        let handle = call.handle;
        let to = match call.service {
            Some((service, method)) => End::Server { service, method },
            None => End::Peer,
        };
        self.convert(key, End::Caller { session, handle }, to, message);
    }

    /// A request has the layout of its server, or of its server's daemon.
    fn request_crossed(&mut self, key: CallKey, message: M) {
        let served = self.calls.get(key).and_then(|call| match call.target {
            Target::Session { .. } => call.service,
            _ => None,
        });
        let Some((service, method)) = served else {
            return self.hand_request(key, Some(message));
        };
        let chain = self.server_chains(service, method).request;
        if let Some(message) = self.pass(key, Stage::ServerRequest, chain, message) {
            self.hand_request(key, Some(message));
        }
    }

    fn hand_request(&mut self, key: CallKey, message: Option<M>) {
        let Some(What::Request { more, charge }) = self.settle(key) else {
            return self.discard_all(message);
        };
        let Some(call) = self.calls.get(key) else {
            return self.discard_all(message);
        };
        let output = match call.target {
            Target::Link { link, .. } => Output::SendRequest {
                link,
                call: key,
                encoding: call.encoding,
                more,
                charge,
                message,
            },
            Target::Session { session } => Output::DeliverRequest {
                session,
                handle: call.stream.as_ref().map_or(0, |stream| stream.served_as),
                call: key,
                more,
                charge,
                message,
            },
            _ => return self.discard_all(message),
        };
        self.outputs.push_back(output);
    }

    /// The server's side has passed a response.
    fn response_left(&mut self, key: CallKey, message: M) {
        let Some(call) = self.calls.get(key) else {
            return self.discard(message);
        };
        match self.crossing_of_reply(call) {
            Some((from, to)) => self.convert(key, from, to, message),
            None => self.response_crossed(key, message),
        }
    }

    /// A response has the layout of its caller, or of its caller's daemon.
    fn response_crossed(&mut self, key: CallKey, message: M) {
        let Some(call) = self.calls.get(key) else {
            return self.discard(message);
        };
        if let Origin::Link { .. } = call.origin {
            return self.hand_response(key, message);
        }
        let chain = self.client_reply_chain(call);
        if let Some(message) = self.pass(key, Stage::ClientReply, chain, message) {
            self.hand_response(key, message);
        }
    }

    fn hand_response(&mut self, key: CallKey, message: M) {
        let stream = self.calls.get(key).and_then(|call| call.stream.as_ref());
        if let Some(What::Reply) = stream.and_then(|stream| stream.passing) {
            return self.complete(key, message);
        }
        let Some(What::Response { charge }) = self.settle(key) else {
            return self.discard(message);
        };
        let Some(call) = self.calls.get(key) else {
            return self.discard(message);
        };
        self.outputs.push_back(match call.origin {
            Origin::Session {
                session,
                call: number,
            } => Output::Respond {
                session,
                handle: call.handle,
                call: number,
                charge,
                message,
            },
            Origin::Link { link, call: number } => Output::SendResponse {
                link,
                call: number,
                encoding: call.encoding,
                charge,
                message,
            },
        });
    }

    /// The call's message is no longer on its way. Returns the kind of that message.
    fn settle(&mut self, key: CallKey) -> Option<What> {
        let call = self.calls.get_mut(key)?;
        if let State::Passing(_) = call.state {
            call.step(Event::Passed);
        }
        call.stream.as_mut()?.passing.take()
    }

    fn client_request_chain(&self, call: &Call<M>) -> Option<ChainId> {
        let Origin::Session { session, .. } = call.origin else {
            return None;
        };
        let session = self.sessions.get(session.0)?;
        session.routes.get(call.handle as usize)?.chains.request
    }

    fn discard_all(&mut self, messages: impl IntoIterator<Item = M>) {
        let dropped = messages.into_iter().map(Output::Discard);
        self.outputs.extend(dropped);
    }
}

#[cfg(test)]
mod tests;
