//! To a peer: messages are queued on its link, or kept back until the link has room.
//!
//! ```text
//!               the link        is behind (1 MiB waits)        is full (4 MiB)
//!   call        queued          stays in the engine            fails
//!   reply       queued          stays with its application     is kept here
//!   status      queued          queued                         is kept here
//!   request,
//!   response    queued          stays in the engine            (can't happen)
//!   credit      queued          queued                         is kept here
//! ```
//!
//! So a slow peer delays only its callers and its own answers. The server that answers it continues
//! with other calls. The answers to that peer occupy the server's own heap. Kept answers take one
//! entry per call that the peer has unanswered, so its window bounds them. A peer that reads
//! nothing for [`TAKES_NOTHING_FOR`] loses its link.

use tollgate_engine::{CallKey, Encoding, Engine, LinkId, Status};
use tollgate_shm_abi::metadata::Metadata;
use tollgate_shm_abi::status::Code;
use tollgate_transport::{CallHead, Image, Link, Queued, SendError, Token};

use crate::calls::memory::{discard, discard_boxed};
use crate::calls::table::Sessions;
use crate::limits::{
    BYTES_PER_SHARED_TURN, KEPT_BEFORE_SWEEP, RDMA_PATIENCE, SUBMISSIONS_PER_TURN,
    TAKES_NOTHING_FOR,
};
use crate::links::outgoing::OutgoingBlocks;
use crate::links::wire::on_wire;
use crate::ports::{Kept, LinkPort};
use crate::runtime::Runtime;
use tollgate_policy_chain::message::{Body, Message, Pool};

/// The result of a flush of a link.
pub(crate) struct Flushed {
    /// There was something to send.
    pub(crate) sent: bool,
    /// Kept answers have been queued: flush again soon.
    pub(crate) more: bool,
}

/// A call on its way to a peer.
#[derive(Clone, Copy)]
pub(crate) struct OutgoingCall {
    /// The peer's id of the binding.
    pub(crate) bind: u32,
    pub(crate) method: u16,
    pub(crate) deadline_ns: u64,
    pub(crate) encoding: Encoding,
    /// Further requests follow.
    pub(crate) more: bool,
}

impl Runtime {
    pub(crate) fn send_call(
        &mut self,
        link: LinkId,
        call: CallKey,
        outgoing: OutgoingCall,
        message: Box<Message>,
    ) {
        let head = CallHead {
            call: call.to_wire(),
            bind: outgoing.bind,
            method: outgoing.method,
            deadline_us: remaining_us(outgoing.deadline_ns, self.now_ns),
            protobuf: outgoing.encoding == Encoding::Protobuf,
            more: outgoing.more,
            bare: message.bare,
        };
        self.observer
            .sent(&self.engine, call, message.message_len());
        let message = self.pool.unboxed(message);
        if (head.more || head.bare) && !self.links.carries_streams(link) {
            discard(message, &mut self.pool, &mut self.sessions);
            let text =
                "the peer's daemon predates streams: its calls have one request and one reply";
            let status = Status::new(Code::FAILED_PRECONDITION, text);
            return self.engine.undeliverable(call, status);
        }
        if !message.metadata.is_empty() && !self.links.carries_metadata(link) {
            discard(message, &mut self.pool, &mut self.sessions);
            let text = "the peer's daemon predates metadata";
            let status = Status::new(Code::FAILED_PRECONDITION, text);
            return self.engine.undeliverable(call, status);
        }
        let sent = self.send_image(link, message, |link, image, token| {
            link.send_call(&head, image, token)
        });
        if let Err(error) = sent {
            let text = format!("the call can't be sent: {error}");
            let status = Status::new(send_code(&error), text);
            self.engine.undeliverable(call, status);
        }
    }

    pub(crate) fn send_reply(
        &mut self,
        link: LinkId,
        call: u64,
        encoding: Encoding,
        request_bytes: u64,
        message: Box<Message>,
    ) {
        if self.links.is_full(link) {
            let reply = Kept::Reply {
                call,
                encoding,
                request_bytes,
                message,
            };
            return self.keep(link, reply);
        }
        let mut message = self.pool.unboxed(message);
        if !message.metadata.is_empty() && !self.links.carries_metadata(link) {
            // The handler has run. Its caller couldn't read the metadata, and an error would hide
            // the handler's work.
            self.pool.give(std::mem::take(&mut message.metadata));
        }
        match self.send_image(link, message, |link, image, token| {
            link.send_reply(call, encoding == Encoding::Protobuf, image, token)
        }) {
            Ok(()) => self.links.return_credit(link, request_bytes),
            Err(error) => {
                let text = format!("the reply can't be sent: {error}");
                let status = Status::new(send_code(&error), text);
                self.send_status(link, call, request_bytes, status);
            }
        }
    }

    pub(crate) fn send_status(
        &mut self,
        link: LinkId,
        call: u64,
        request_bytes: u64,
        status: Status,
    ) {
        let Some(port) = self.links.get_mut(link) else {
            return;
        };
        let trailers = Metadata::of_checked(&status.trailers);
        let link_of_port = port.io.link_mut();
        let queued = match status.code {
            // The call had no responses: a peer without streams gets none.
            Code::OK if !link_of_port.carries_streams() => {
                let text = "the server ended the call without a reply";
                link_of_port.send_status(call, Code::INTERNAL, 0, text, trailers)
            }
            code => {
                let retry_ms = status.retry_after_ms;
                link_of_port.send_status(call, code, retry_ms, &status.message, trailers)
            }
        };
        match queued {
            Ok(()) => {
                self.note_behind(link);
                self.links.return_credit(link, request_bytes);
            }
            Err(SendError::Full { .. }) => {
                let status = Kept::Status {
                    call,
                    request_bytes,
                    status,
                };
                self.keep(link, status);
            }
            // The link has ended, and its calls end with it.
            Err(_) => {}
        }
    }

    pub(crate) fn send_cancel(&mut self, link: LinkId, call: CallKey) {
        if let Some(port) = self.links.get_mut(link) {
            // The answer to the call is ignored anyway; cancelling only saves the peer some work.
            let _full = port.io.link_mut().send_cancel(call.to_wire());
        }
    }

    /// Queues an image on a link. Its memory is freed now, or once it has been sent.
    pub(crate) fn send_image(
        &mut self,
        link: LinkId,
        message: Message,
        send: impl FnOnce(&mut Link, &Image<'_>, Token) -> Result<Queued, SendError>,
    ) -> Result<(), SendError> {
        let token = self.outgoing.next_token();
        let port = self.links.get_mut(link);
        let queued =
            port.and_then(|port| on_wire(&message, |image| send(port.io.link_mut(), image, token)));
        let queued = queued.unwrap_or(Err(SendError::Ended));
        if let (Ok(Queued::Held), Body::Gathered { source, .. }) = (&queued, &message.body) {
            self.outgoing.add(*source);
            self.pool.give(message.metadata);
            if let Body::Gathered { inline, .. } = message.body {
                self.pool.give(inline);
            }
        } else {
            discard(message, &mut self.pool, &mut self.sessions);
        }
        self.note_behind(link);
        queued.map(|_| ())
    }

    /// Sends the data queued on a link.
    pub(crate) fn flush_link(&mut self, link: LinkId) -> Flushed {
        let mut flushed = Flushed {
            sent: false,
            more: false,
        };
        let Some(mut port) = self.links.take(link) else {
            return flushed;
        };
        let mut outcome = Ok(());
        let taken = port.io.link().taken();
        if port.io.link().wants_write() {
            flushed.sent = true;
            outcome = port.io.flush().map(|_| ());
        }
        reclaim_sent(&mut port, &mut self.outgoing, &mut self.sessions);
        if port.state.behind_since_ns.is_some() {
            flushed.more = !port.io.link().is_behind();
            if port.io.link().taken() > taken {
                port.state.behind_since_ns = Some(self.now_ns);
            }
        }
        self.links.put_back(link, port);
        if let Err(error) = outcome {
            self.lose_link(link, &error.to_string());
        } else if flushed.more {
            self.catch_up(link);
        }
        flushed
    }
}

/// Links with more data than their peers take.
impl Runtime {
    /// Called after data was queued: notes if everything that can wait has to wait from now on.
    pub(crate) fn note_behind(&mut self, link: LinkId) {
        if let Some(port) = self.links.get_mut(link)
            && port.state.behind_since_ns.is_none()
            && port.io.link().is_behind()
        {
            port.state.behind_since_ns = Some(self.now_ns);
            self.engine.set_behind(link, true);
        }
    }

    /// Keeps an answer until its link has room.
    pub(crate) fn keep(&mut self, link: LinkId, answer: Kept) {
        let Some(mut port) = self.links.take(link) else {
            // The call has ended with its link.
            return drop_answer(answer, &mut self.pool, &mut self.sessions);
        };
        let state = &mut port.state;
        if state.kept.len() >= state.sweep_at {
            for kept in std::mem::take(&mut state.kept) {
                match is_wanted(&kept, &self.engine) {
                    true => state.kept.push_back(kept),
                    false => drop_answer(kept, &mut self.pool, &mut self.sessions),
                }
            }
            state.sweep_at = KEPT_BEFORE_SWEEP.max(2 * state.kept.len());
        }
        state.kept.push_back(answer);
        self.links.put_back(link, port);
    }

    /// A link that was behind has room: sends what was kept back for it, until it is behind again.
    fn catch_up(&mut self, link: LinkId) {
        if let Some(port) = self.links.get_mut(link) {
            port.state.behind_since_ns = None;
        }
        self.engine.set_behind(link, false);
        loop {
            let more_calls = self.engine.send_waiting(link);
            self.act();
            let more_answers = self.take_up(link);
            self.act();
            if !more_calls && !more_answers {
                break;
            }
        }
    }

    /// Sends the waiting calls of the engine that the link has credit and room for.
    pub(crate) fn send_waiting(&mut self, link: LinkId) {
        while self.engine.send_waiting(link) {
            self.act();
        }
        self.act();
    }

    /// Sends one turn's worth of kept answers, unless the link is behind. Whether there were any.
    fn take_up(&mut self, link: LinkId) -> bool {
        self.scheduler.reset_turn_bytes();
        for taken in 0..SUBMISSIONS_PER_TURN {
            let Some(port) = self.links.get_mut(link) else {
                return false;
            };
            let enough = port.state.behind_since_ns.is_some()
                || self.scheduler.turn_bytes() >= BYTES_PER_SHARED_TURN;
            let Some(kept) = (!enough).then(|| port.state.kept.pop_front()).flatten() else {
                return taken > 0;
            };
            match kept {
                Kept::PutOff {
                    session,
                    call,
                    block,
                } => self.answer_after_wait(session, call, block),
                Kept::Reply {
                    call,
                    encoding,
                    request_bytes,
                    message,
                } => self.send_reply(link, call, encoding, request_bytes, message),
                Kept::Status {
                    call,
                    request_bytes,
                    status,
                } => self.send_status(link, call, request_bytes, status),
                Kept::Credit { call, of, credit } => self.send_credit(link, call, of, credit),
            }
        }
        true
    }
}

/// The time until a deadline, in us, for a peer with another clock; 0 if there is no deadline.
fn remaining_us(deadline_ns: u64, now_ns: u64) -> u64 {
    if deadline_ns == 0 {
        return 0;
    }
    deadline_ns.saturating_sub(now_ns).div_ceil(1_000).max(1)
}

/// Gives the blocks back that a link has sent.
pub(crate) fn reclaim_sent(
    port: &mut LinkPort,
    outgoing: &mut OutgoingBlocks,
    sessions: &mut Sessions,
) {
    while let Some(token) = port.io.poll_sent() {
        if let Some(source) = outgoing.sent(token) {
            sessions.reclaim(source);
        }
    }
}

/// Whether a kept answer is still needed: a call may end while its server has the answer.
fn is_wanted(kept: &Kept, engine: &Engine<Box<Message>>) -> bool {
    match *kept {
        Kept::PutOff { session, call, .. } => engine.expected_after_wait(session, call).is_some(),
        Kept::Reply { .. } | Kept::Status { .. } | Kept::Credit { .. } => true,
    }
}

fn drop_answer(answer: Kept, pool: &mut Pool, sessions: &mut Sessions) {
    match answer {
        Kept::PutOff { session, block, .. } => sessions.reclaim_block(session, block),
        Kept::Reply { message, .. } => discard_boxed(message, pool, sessions),
        Kept::Status { .. } | Kept::Credit { .. } => {}
    }
}

/// Drops the answers that wait for a link.
pub(crate) fn drop_kept(port: &mut LinkPort, pool: &mut Pool, sessions: &mut Sessions) {
    std::mem::take(&mut port.state.kept)
        .into_iter()
        .for_each(|kept| drop_answer(kept, pool, sessions));
}

/// The caller's status code if its message can't be queued on a link.
pub(crate) fn send_code(error: &SendError) -> Code {
    match error {
        SendError::Full { .. } | SendError::NoCredit { .. } => Code::RESOURCE_EXHAUSTED,
        _ => Code::UNAVAILABLE,
    }
}

impl LinkPort {
    /// When the link ends, unless its peer takes data or, if dialled by RDMA, becomes ready.
    pub(crate) fn ends_at(&self) -> Option<u64> {
        let behind = self.state.behind_since_ns;
        let behind = behind.map(|since_ns| since_ns + TAKES_NOTHING_FOR.as_nanos() as u64);
        behind.into_iter().chain(self.state.rdma_until_ns).min()
    }

    /// Why the link ends now, if it does.
    pub(crate) fn overdue(&self, now_ns: u64) -> Option<String> {
        self.ends_at().filter(|at_ns| *at_ns <= now_ns)?;
        Some(match self.state.rdma_until_ns {
            Some(_) => {
                let seconds = RDMA_PATIENCE.as_secs();
                format!("the peer isn't ready by RDMA after {seconds} s")
            }
            None => {
                let seconds = TAKES_NOTHING_FOR.as_secs();
                format!("data waits for the peer, and it has read nothing for {seconds} s")
            }
        })
    }
}
