//! Verdicts and answers, from a chain, a server or a peer towards the caller; and the other ways in
//! which a call ends.

use std::sync::Arc;

use tollgate_shm_abi::status::Code;

use crate::calls::{CALLERS_SIDE, Call, SERVERS_SIDE};
use crate::engine::Engine;
use crate::ids::{CallKey, LinkId, Origin, SessionId};
use crate::limits::SENT_AT_ONCE_BYTES;
use crate::output::Output;
use crate::routes::{Encoding, End, Steering, Target};
use crate::state::{Event, Stage, State};
use crate::status::{Ended, Status, Verdict};

/// Whether an application may answer a call.
enum Answerable {
    Yes,
    /// The call has ended; the application couldn't know.
    Late,
    NotTheirs,
}

impl<M> Engine<M> {
    /// A chain's verdict about `message`.
    pub fn verdict(&mut self, call: CallKey, verdict: Verdict, message: M) {
        let Some(state) = self.calls.get(call).map(|c| c.state) else {
            return self.discard(message);
        };
        let (State::Evaluating(stage) | State::Passing(stage)) = state else {
            return self.discard(message);
        };
        if let Verdict::Deny(status) = verdict {
            self.discard(message);
            if let Some(denied) = self.take_out(call) {
                self.answer(denied.origin, denied.ended(), denied.bytes, Err(status));
            }
            return;
        }
        if let State::Passing(_) = state {
            return self.passed(call, stage, message);
        }
        let side = match stage {
            Stage::ClientRequest => Some(CALLERS_SIDE),
            Stage::ServerRequest => Some(SERVERS_SIDE),
            Stage::ServerReply | Stage::ClientReply => None,
        };
        if let (Some(side), Some(call)) = (side, self.calls.get_mut(call)) {
            call.evaluated_in[side] = self.policy_epoch;
        }
        match stage {
            Stage::ClientRequest => {
                self.step(call, Event::Allow);
                self.forward(call, message);
            }
            Stage::ServerRequest => match self.calls.get(call).map(|c| c.target) {
                Some(Target::Service { service, method }) => {
                    self.deliver(call, service, method, message)
                }
                _ => self.discard(message),
            },
            Stage::ServerReply => {
                self.step(call, Event::Allow);
                self.replied(call, message);
            }
            Stage::ClientReply => self.complete(call, message),
        }
    }

    /// A chain changed a request's size before it leaves its caller's daemon: the size sent counts
    /// for credit.
    pub fn resized(&mut self, call: CallKey, bytes: u64) {
        if let Some(call) = self.calls.get_mut(call)
            && call.state == State::Evaluating(Stage::ClientRequest)
        {
            call.bytes = bytes;
        }
    }

    /// A chain that evaluates a request has decided on its way; an earlier chain's decision stays
    /// unless this one overrides it.
    pub fn steer(&mut self, call: CallKey, priority: Option<u8>, route: Option<Arc<str>>) {
        if let Some(call) = self.calls.get_mut(call)
            && let State::Evaluating(Stage::ClientRequest | Stage::ServerRequest) = call.state
        {
            call.steering.priority = priority.unwrap_or(call.steering.priority);
            call.steering.route = route.or(call.steering.route.take());
        }
    }

    /// The link and the steering of a request that is being evaluated, if it goes to a peer. The
    /// rim tells the peer's daemon.
    pub fn steering_to_peer(&self, call: CallKey) -> Option<(LinkId, &Steering)> {
        let call = self.calls.get(call)?;
        let is_asked = call.state == State::Evaluating(Stage::ClientRequest);
        match call.target {
            Target::Link { link, .. } if is_asked => Some((link, &call.steering)),
            _ => None,
        }
    }

    /// A serving application answered with a message. `false`: the application doesn't have the
    /// call.
    ///
    /// An answer to a call that has ended meanwhile is dropped: the application can't know.
    pub fn reply_from_session(&mut self, session: SessionId, call: CallKey, message: M) -> bool {
        match self.answerable(session, call) {
            Answerable::Yes => {}
            Answerable::Late => {
                self.discard(message);
                return true;
            }
            Answerable::NotTheirs => {
                self.discard(message);
                return false;
            }
        }
        self.leave_target(call);
        self.evaluate_reply(call, message);
        true
    }

    /// A serving application has answered, and keeps its answer until the link to the caller's
    /// daemon is no longer behind. Then the rim calls [`reply_after_wait`](Self::reply_after_wait),
    /// or [`undeliverable`](Self::undeliverable) if the answer is invalid. The application no
    /// longer works on the call.
    pub fn put_off(&mut self, session: SessionId, call: CallKey) {
        if let Answerable::Yes = self.answerable(session, call) {
            self.leave_target(call);
            if let Some(call) = self.calls.get_mut(call) {
                call.target = Target::PutOff { session };
            }
        }
    }

    /// The answer that was put off; it is dropped if the call has ended meanwhile.
    pub fn reply_after_wait(&mut self, session: SessionId, call: CallKey, message: M) {
        let waits = self.calls.get_mut(call);
        match waits.filter(|call| call.target == Target::PutOff { session }) {
            Some(waits) => {
                waits.target = Target::Answered;
                self.evaluate_reply(call, message);
            }
            None => self.discard(message),
        }
    }

    fn evaluate_reply(&mut self, call: CallKey, message: M) {
        if self.is_stream(call) {
            return self.reply_to_stream(call, message);
        }
        let chain = self
            .calls
            .get(call)
            .and_then(|c| c.service)
            .and_then(|(s, m)| self.server_chains(s, m).reply);
        match chain {
            Some(chain) => self.evaluate(call, Stage::ServerReply, chain, message),
            None => {
                self.step(call, Event::Reply);
                self.replied(call, message);
            }
        }
    }

    /// A serving application answered with a status. `false`: the application doesn't have the
    /// call.
    pub fn fail_from_session(&mut self, session: SessionId, call: CallKey, status: Status) -> bool {
        match self.answerable(session, call) {
            Answerable::Yes => {
                self.leave_target(call);
                self.finish(call, status);
                true
            }
            Answerable::Late => true,
            Answerable::NotTheirs => false,
        }
    }

    /// A peer replied to our call; an answer to an ended call is dropped.
    pub fn reply_from_link(&mut self, link: LinkId, call: CallKey, message: M) {
        if !self.is_with_link(link, call) {
            return self.discard(message);
        }
        self.leave_target(call);
        if self.is_stream(call) {
            return self.reply_to_stream(call, message);
        }
        self.step(call, Event::Reply);
        self.replied(call, message);
    }

    /// A peer answered our call with a status.
    pub fn fail_from_link(&mut self, link: LinkId, call: CallKey, status: Status) {
        if self.is_with_link(link, call) {
            self.leave_target(call);
            self.finish(call, status);
        }
    }

    /// The rim couldn't carry out [`Output::Deliver`], [`Output::SendCall`] or [`Output::Convert`].
    pub fn undeliverable(&mut self, call: CallKey, status: Status) {
        self.leave_target(call);
        self.end(call, status);
    }

    fn replied(&mut self, key: CallKey, message: M) {
        let Some(call) = self.calls.get(key) else {
            return self.discard(message);
        };
        match self.crossing_of_reply(call) {
            Some((from, to)) => self.convert(key, from, to, message),
            None => self.hand_over(key, message),
        }
    }

    /// The layouts between which a reply is converted here, if they differ: a peer's reply has been
    /// converted on arrival.
    pub(crate) fn crossing_of_reply(&self, call: &Call<M>) -> Option<(End, End)> {
        let (service, method) = call
            .service
            .filter(|_| call.encoding == Encoding::Protobuf)?;
        let to = match call.origin {
            Origin::Session { session, .. } => End::Caller {
                session,
                handle: call.handle,
            },
            Origin::Link { .. } => End::Peer,
        };
        Some((End::Server { service, method }, to))
    }

    fn is_stream(&self, call: CallKey) -> bool {
        self.calls
            .get(call)
            .is_some_and(|call| call.stream.is_some())
    }

    /// A reply in the caller's layout goes through the caller's chain to the caller.
    pub(crate) fn hand_over(&mut self, key: CallKey, message: M) {
        let chain = self
            .calls
            .get(key)
            .and_then(|call| self.client_reply_chain(call));
        match chain {
            Some(chain) => self.evaluate(key, Stage::ClientReply, chain, message),
            None => self.complete(key, message),
        }
    }

    pub(crate) fn complete(&mut self, key: CallKey, message: M) {
        self.step(key, Event::Answer);
        match self.retire(key) {
            Some(call) => {
                self.answer(
                    call.origin,
                    call.ended(),
                    call.bytes,
                    Ok((call.encoding, message)),
                );
            }
            None => self.discard(message),
        }
    }

    fn answerable(&self, session: SessionId, key: CallKey) -> Answerable {
        match self.calls.get(key) {
            None => Answerable::Late,
            Some(call) if call.target == (Target::Session { session }) => Answerable::Yes,
            Some(_) => Answerable::NotTheirs,
        }
    }

    pub(crate) fn is_with_link(&self, id: LinkId, key: CallKey) -> bool {
        self.calls.get(key).is_some_and(|call| {
            matches!(call.state, State::InFlight | State::Passing(_))
                && matches!(call.target, Target::Link { link, .. } if link == id)
        })
    }

    /// The target no longer works on the call.
    fn leave_target(&mut self, key: CallKey) {
        let Some(call) = self.calls.get_mut(key) else {
            return;
        };
        if let Target::Session { session } = call.target
            && let Some(session) = self.sessions.get_mut(session.0)
        {
            session.delivered -= 1;
        }
        call.target = Target::Answered;
    }
}

/// Ends without an answer: deadlines, cancellation, lost sides; and credit.
impl<M> Engine<M> {
    /// Ends every call with a passed deadline.
    pub fn expire(&mut self, now_ns: u64) {
        while let Some(slot) = self.timer.expire(now_ns) {
            if let Some(key) = self.calls.key_in(slot) {
                self.end(
                    key,
                    Status::new(
                        Code::DEADLINE_EXCEEDED,
                        "the call's deadline passed before its answer came",
                    ),
                );
            }
        }
    }

    /// The caller cancels the call; its one answer is CANCELLED.
    pub fn cancel(&mut self, origin: Origin) {
        let status = Status::new(Code::CANCELLED, "the caller cancelled the call");
        self.refuse(origin, status);
    }

    /// The peer has granted more: the credit left once every [`Output::SendCall`] so far has been
    /// sent. [`send_waiting`] follows.
    ///
    /// [`send_waiting`]: Self::send_waiting
    pub fn set_credit(&mut self, link_id: LinkId, calls: u32, bytes: u64) {
        let Some(link) = self.links.get_mut(link_id.0) else {
            return;
        };
        (link.credit_calls, link.credit_bytes) = (calls, bytes);
    }

    /// Sets whether a link has more queued than it should have. While it has, calls wait as they do
    /// for credit, and answers [can be put off](Self::put_off).
    pub fn set_behind(&mut self, link_id: LinkId, behind: bool) {
        if let Some(link) = self.links.get_mut(link_id.0) {
            link.behind = behind;
        }
    }

    /// Sends as many held calls and streams' messages as the link allows, about
    /// [`SENT_AT_ONCE_BYTES`] of them. Returns whether there may be more: once these have been
    /// sent, the link may be behind.
    pub fn send_waiting(&mut self, link_id: LinkId) -> bool {
        self.send_waiting_calls(link_id) || self.pump_one_of(link_id)
    }

    fn send_waiting_calls(&mut self, link_id: LinkId) -> bool {
        let mut sent = 0;
        while sent < SENT_AT_ONCE_BYTES {
            let Some(link) = self.links.get_mut(link_id.0) else {
                return false;
            };
            let Some(key) = link.waiting.next() else {
                return false;
            };
            let bytes = self.calls.get(key).map_or(0, |call| call.bytes);
            if !link.affords(bytes) {
                return false;
            }
            sent += bytes;
            link.waiting.pop();
            link.waiting_bytes -= bytes;
            if let Some(message) = self.calls.get_mut(key).and_then(|call| call.held.take()) {
                self.send_call(key, message);
            }
        }
        true
    }

    /// An application is gone: its calls are dropped; calls delivered to it end with UNAVAILABLE.
    pub fn session_closed(&mut self, id: SessionId) {
        self.drain_session(id);
        for key in self
            .calls
            .select(|call| matches!(call.target, Target::Session { session } | Target::PutOff { session } if session == id))
        {
            self.leave_target(key);
            self.end(
                key,
                Status::new(
                    Code::UNAVAILABLE,
                    "the application that served the call is gone",
                ),
            );
        }
        for key in self
            .calls
            .select(|call| matches!(call.origin, Origin::Session { session, .. } if session == id))
        {
            self.abandon(key);
        }
        self.sessions.remove(id.0);
    }

    /// A peer is gone: its calls are dropped; calls sent to it end with UNAVAILABLE.
    pub fn link_closed(&mut self, id: LinkId, reason: &str) {
        let Some(link) = self.links.get_mut(id.0) else {
            return;
        };
        link.waiting.clear();
        link.waiting_bytes = 0;
        for key in self
            .calls
            .select(|call| matches!(call.target, Target::Link { link, .. } if link == id))
        {
            self.leave_target(key);
            self.end(key, Status::new(Code::UNAVAILABLE, reason.to_owned()));
        }
        for key in self
            .calls
            .select(|call| matches!(call.origin, Origin::Link { link, .. } if link == id))
        {
            self.abandon(key);
        }
        self.links.remove(id.0);
    }

    /// Ends a call with a status, in any state, and notifies the target.
    pub(crate) fn end(&mut self, key: CallKey, status: Status) {
        let Some(call) = self.close(key) else { return };
        self.answer(call.origin, call.ended(), call.bytes, Err(status));
    }

    /// Ends a call after its caller is gone.
    fn abandon(&mut self, key: CallKey) {
        self.close(key);
    }

    /// Removes a call from every table, notifies the target, and recalls a message that a chain
    /// has.
    fn close(&mut self, key: CallKey) -> Option<Call<M>> {
        if let State::Evaluating(_) | State::Passing(_) = self.calls.get(key)?.state {
            self.outputs.push_back(Output::Recall { call: key });
        }
        self.take_out(key)
    }

    /// Removes a call from every table, and notifies the target.
    fn take_out(&mut self, key: CallKey) -> Option<Call<M>> {
        let call = self.calls.get_mut(key)?;
        let was = call.state;
        call.step(Event::End);
        match call.target {
            Target::Link { link, .. } if matches!(was, State::InFlight | State::Passing(_)) => {
                self.outputs
                    .push_back(Output::SendCancel { link, call: key });
            }
            Target::Session { session } => self
                .outputs
                .push_back(Output::CancelDelivered { session, call: key }),
            _ => {}
        }
        let target = call.target;
        // The call got as far as this service.
        if let Target::Service { service, method } = target {
            call.service = Some((service, method));
        }
        self.leave_target(key);
        let mut call = self.retire(key)?;
        if let Some(message) = call.held.take() {
            self.discard(message);
            self.unwait(target, key, call.bytes);
        }
        Some(call)
    }

    /// A held call leaves its link's queue.
    fn unwait(&mut self, target: Target, key: CallKey, bytes: u64) {
        let Target::Link { link, .. } = target else {
            return;
        };
        let Some(link) = self.links.get_mut(link.0) else {
            return;
        };
        if link.waiting.remove(key) {
            link.waiting_bytes -= bytes;
        }
    }

    /// Removes a call and its counts.
    fn retire(&mut self, key: CallKey) -> Option<Call<M>> {
        let (slot, mut call) = self.calls.remove(key)?;
        self.timer.disarm(slot);
        if let Some(stream) = call.stream.take() {
            let unread = (*stream).into_messages().map(Output::Discard);
            self.outputs.extend(unread);
        }
        match call.origin {
            Origin::Session {
                session,
                call: number,
            } => {
                if let Some(session) = self.sessions.get_mut(session.0) {
                    session.outstanding -= 1;
                    session.by_number.remove(&number);
                }
            }
            Origin::Link { link, call: number } => {
                if let Some(link) = self.links.get_mut(link.0) {
                    link.by_number.remove(&number);
                }
            }
        }
        Some(call)
    }

    /// The one place where a caller gets its answer.
    pub(crate) fn answer(
        &mut self,
        origin: Origin,
        ended: Ended,
        request_bytes: u64,
        answer: Result<(Encoding, M), Status>,
    ) {
        self.outputs.push_back(match (origin, answer) {
            (Origin::Session { session, call }, Ok((_, message))) => Output::Complete {
                session,
                handle: ended.handle,
                call,
                message,
                ended,
            },
            (Origin::Session { session, call }, Err(status)) => Output::Fail {
                session,
                call,
                status,
                ended,
            },
            (Origin::Link { link, call }, Ok((encoding, message))) => Output::SendReply {
                link,
                call,
                encoding,
                request_bytes,
                message,
                ended,
            },
            (Origin::Link { link, call }, Err(status)) => Output::SendStatus {
                link,
                call,
                request_bytes,
                status,
                ended,
            },
        });
    }
}
