//! Streams: further requests, responses and credit, between applications, peers and the engine.
//!
//! ```text
//!   app ── REQUEST, RESPONSE ──▶ gather ──▶        ┌────────┐ ─▶ place ── REQUEST, RESPONSE ─▶ app
//!                                                  │ engine │
//!   peer ── REQUEST, RESPONSE ── accept, decode ─▶ └────────┘ ─▶ frame ─▶ peer
//! ```
//!
//! The same distrust applies as to the messages that open and end a call: a block is copied out
//! once and checked, and a peer's image is checked before any reader sees it. Input that a correct
//! library can't send, for example more than its reader has room for, ends the session; from a
//! peer, it ends the call.

use std::sync::Arc;

use tollgate_engine::{CallKey, Direction, Encoding, LinkId, Origin, ServiceId, SessionId, Status};
use tollgate_jit::Codec;
use tollgate_shm_abi::descriptor::{BlockRef, Completion, Part};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit;
use tollgate_transport::{CallHead, Came, SendError, StreamCredit, StreamHead, metadata_room};

use crate::calls::conversion::{bare as bare_message, decoded_request};
use crate::calls::memory::{discard, discard_landing, landing};
use crate::calls::sessions::Broken;
use crate::landing::Landing;
use crate::links::arrivals::{invalid, parts_of};
use crate::links::events::After;
use crate::links::send::send_code;
use crate::ports::{Answer, FurtherRequest, Kept, LargeBody, LargeKind};
use crate::runtime::Runtime;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Message;

/// From an application.
impl Runtime {
    /// As [`gather`](Self::gather), for a part of a stream that may have no message.
    pub(crate) fn gather_part(
        &mut self,
        session: SessionId,
        codec: &Codec,
        bare: bool,
        block: BlockRef,
        misuse: Code,
    ) -> Result<Result<Message, Status>, Broken> {
        if !bare {
            return self.gather(session, codec, block, misuse);
        }
        let mut metadata = Vec::new();
        if block.metadata > 0 {
            metadata = match self.gather_metadata(session, block, misuse)? {
                Ok(metadata) => metadata,
                Err(status) => return Ok(Err(status)),
            };
            self.sessions.reclaim_block(session, block);
        }
        Ok(bare_message(codec, metadata, &mut self.pool))
    }

    pub(crate) fn posted_request(
        &mut self,
        session: SessionId,
        call: u64,
        part: Part,
        block: BlockRef,
    ) -> Result<(), Broken> {
        let origin = Origin::Session { session, call };
        let Some(expected) = self.engine.expected_request(origin) else {
            // The call ended meanwhile; the application couldn't know.
            self.sessions.reclaim_part(session, part.bare, block);
            return Ok(());
        };
        let mut charge = 0;
        let mut message = None;
        if !part.bare {
            let gathered = self.with_handle(session, expected.handle, |runtime, bound| {
                let Some(bound) = bound else {
                    return Err(Broken("its call has no method".to_owned()));
                };
                let codec = &bound.method.request;
                runtime.gather(session, codec, block, Code::INVALID_ARGUMENT)
            });
            match gathered? {
                Ok(gathered) => {
                    charge = gathered.total_len;
                    message = Some(self.pool.boxed(gathered));
                }
                Err(status) => {
                    self.sessions.reclaim_block(session, block);
                    self.engine.refuse(origin, status);
                    return Ok(());
                }
            }
        }
        Ok(self.engine.request(origin, part.more, charge, message)?)
    }

    pub(crate) fn posted_response(
        &mut self,
        session: SessionId,
        call: CallKey,
        bare: bool,
        block: BlockRef,
    ) -> Result<(), Broken> {
        let Some(served) = self.engine.expected_from_session(session, call) else {
            self.sessions.reclaim_part(session, bare, block);
            return Ok(());
        };
        let gathered = self.with_served(served.service, served.method, |runtime, method| {
            runtime.gather_part(session, &method.reply, bare, block, Code::INTERNAL)
        });
        let gathered = gathered.unwrap_or_else(|lost| Ok(Err(lost)))?;
        match gathered {
            Ok(message) => {
                let charge = message.message_len();
                let message = self.pool.boxed(message);
                let responded = self
                    .engine
                    .response_from_session(session, call, charge, message);
                Ok(responded?)
            }
            Err(status) => {
                self.sessions.reclaim_part(session, bare, block);
                self.engine.fail_from_session(session, call, status);
                Ok(())
            }
        }
    }
}

/// To either side.
impl Runtime {
    /// Tells the sender of a stream how much has been consumed.
    pub(crate) fn tell_credit(&mut self, to: Origin, of: Direction, credit: Credit) {
        match to {
            Origin::Link { link, call } => self.send_credit(link, call, of, credit),
            Origin::Session { session, call } => {
                if let Some(port) = self.sessions.get_mut(session) {
                    port.push(&match of {
                        Direction::Requests => Completion::RequestCredit { call, credit },
                        Direction::Responses => Completion::ResponseCredit { call, credit },
                    });
                }
            }
        }
    }
}

/// The status of a call with an answer in a form that its caller doesn't support. Its handler has
/// run.
pub(crate) fn without_responses(whose: &str) -> Status {
    let text = format!(
        "the call was answered with responses or trailers, and the calling {whose} predates them"
    );
    Status::new(Code::INTERNAL, text)
}

/// From a peer.
impl Runtime {
    /// A call that begins without a message.
    pub(crate) fn bare_request(
        &mut self,
        link: LinkId,
        service: ServiceId,
        head: &CallHead,
        metadata: Vec<u8>,
    ) {
        let bytes = metadata_room(metadata.len()) as u64;
        self.observer
            .arriving(&metadata, &self.options.tuning.telemetry);
        let pool = &mut self.pool;
        let served = self.services.served(service, head.method);
        match served.and_then(|method| bare_message(&method.request, metadata, pool)) {
            Ok(message) => {
                let encoding = match head.protobuf {
                    true => Encoding::Protobuf,
                    false => Encoding::Native,
                };
                self.request_arrived(link, service, head, encoding, bytes, message);
            }
            Err(status) => {
                let origin = Origin::Link {
                    link,
                    call: head.call,
                };
                self.engine.reject(origin, bytes, status);
            }
        }
    }

    pub(crate) fn bare_answer(&mut self, link: LinkId, answer: Answer, metadata: Vec<u8>) {
        let Some(method) = self.answering(link, answer) else {
            return;
        };
        self.observer.marshals_more();
        match bare_message(&method.reply, metadata, &mut self.pool) {
            Ok(message) => self.answered(link, answer, message),
            Err(status) => self.engine.fail_from_link(link, answer.key, status),
        }
    }

    pub(crate) fn further_request_arrived(
        &mut self,
        link: LinkId,
        request: FurtherRequest,
        bare: bool,
        came: Came<'_>,
    ) -> After {
        let inline_len = came.inline_len;
        let (len, whole) = parts_of(came.body);
        let skip = match whole {
            None => After::SkipBody,
            Some(_) => After::Nothing,
        };
        let origin = Origin::Link {
            link,
            call: request.call,
        };
        let Some(expected) = self.engine.expected_request(origin) else {
            // The call ended meanwhile.
            return skip;
        };
        if bare {
            self.take_request(link, request, None);
            return After::Nothing;
        }
        if request.protobuf != (expected.encoding == Encoding::Protobuf) {
            let text = "the peer's request isn't encoded as its call was";
            self.engine
                .refuse(origin, Status::new(Code::INTERNAL, text));
            return skip;
        }
        if request.protobuf
            && let Some(bytes) = whole
        {
            self.encoded_further_request(link, request, bytes);
            return After::Nothing;
        }
        let lands = expected.lands.filter(|_| !request.protobuf);
        let mut landing = landing(
            lands,
            inline_len,
            len,
            Vec::new(),
            &mut self.pool,
            &mut self.sessions,
        );
        match whole {
            None => After::Large(LargeBody {
                what: LargeKind::Request(request),
                landing,
            }),
            Some(bytes) => {
                landing.bytes_mut().copy_from_slice(bytes);
                self.bytes.link_to_message += len as u64;
                self.further_request_landed(link, request, landing);
                After::Nothing
            }
        }
    }

    pub(crate) fn encoded_further_request(
        &mut self,
        link: LinkId,
        request: FurtherRequest,
        protobuf: &[u8],
    ) {
        let Some(method) = self.requested(link, request) else {
            return;
        };
        self.counters.converted += 1;
        let decoded = decoded_request(&method, protobuf, &mut self.pool);
        self.take_request(link, request, Some(decoded));
    }

    pub(crate) fn further_request_landed(
        &mut self,
        link: LinkId,
        request: FurtherRequest,
        mut landing: Landing,
    ) {
        let Some(method) = self.requested(link, request) else {
            return discard_landing(landing, &mut self.pool, &mut self.sessions);
        };
        let inline_len = landing.inline_len as usize;
        let accepted = match method.request.accept(landing.bytes_mut(), inline_len) {
            Ok(()) => Ok(landing.into_message()),
            Err(fault) => {
                discard_landing(landing, &mut self.pool, &mut self.sessions);
                Err(invalid(&method, &method.request.explain(&fault), true))
            }
        };
        self.take_request(link, request, Some(accepted));
    }

    /// The method of a further request; `None`: its call ended meanwhile.
    fn requested(&self, link: LinkId, request: FurtherRequest) -> Option<Arc<Method>> {
        let call = request.call;
        let expected = self.engine.expected_request(Origin::Link { link, call })?;
        let (service, method) = expected.served?;
        self.services.method(service, method).map(Arc::clone)
    }

    /// A further request in the service's layout, or the reason why it can't have it; `None`: the
    /// requests have ended.
    fn take_request(
        &mut self,
        link: LinkId,
        request: FurtherRequest,
        message: Option<Result<Message, Status>>,
    ) {
        let FurtherRequest {
            call, more, charge, ..
        } = request;
        let origin = Origin::Link { link, call };
        let message = match message.transpose() {
            Ok(message) => message.map(|message| self.pool.boxed(message)),
            Err(status) => return self.engine.refuse(origin, status),
        };
        if let Err(unfit) = self.engine.request(origin, more, charge, message) {
            let text = format!("the calling daemon broke the protocol: {unfit}");
            self.engine
                .refuse(origin, Status::new(Code::INTERNAL, text));
        }
    }
}

/// To a peer.
impl Runtime {
    pub(crate) fn send_request(
        &mut self,
        link: LinkId,
        call: CallKey,
        more: bool,
        charge: u32,
        encoding: Encoding,
        message: Option<Box<Message>>,
    ) {
        let head = StreamHead {
            bare: message.is_none(),
            protobuf: encoding == Encoding::Protobuf && message.is_some(),
            charge,
        };
        let message = match message {
            Some(message) => self.pool.unboxed(message),
            None => Message {
                bare: true,
                ..Message::default()
            },
        };
        let sent = self.send_image(link, message, |link, image, token| {
            link.send_request(call.to_wire(), more, &head, image, token)
        });
        if let Err(error) = sent {
            let text = format!("a request can't be sent: {error}");
            let status = Status::new(send_code(&error), text);
            self.engine.undeliverable(call, status);
        }
    }

    pub(crate) fn send_response(
        &mut self,
        link: LinkId,
        call: u64,
        charge: u32,
        encoding: Encoding,
        message: Box<Message>,
    ) {
        let message = self.pool.unboxed(message);
        let origin = Origin::Link { link, call };
        if !self.links.carries_streams(link) {
            discard(message, &mut self.pool, &mut self.sessions);
            return self.engine.refuse(origin, without_responses("daemon"));
        }
        let head = StreamHead {
            bare: message.bare,
            protobuf: encoding == Encoding::Protobuf && !message.bare,
            charge,
        };
        let sent = self.send_image(link, message, |link, image, token| {
            link.send_response(call, &head, image, token)
        });
        if let Err(error) = sent {
            let text = format!("a response can't be sent: {error}");
            let status = Status::new(send_code(&error), text);
            self.engine.refuse(origin, status);
        }
    }

    pub(crate) fn send_credit(&mut self, link: LinkId, call: u64, of: Direction, credit: Credit) {
        let Some(port) = self.links.get_mut(link) else {
            return;
        };
        let consumed = StreamCredit {
            messages: credit.messages,
            bytes: credit.bytes,
        };
        let link_of_port = port.io.link_mut();
        let queued = match of {
            Direction::Requests => link_of_port.send_request_credit(call, consumed),
            Direction::Responses => link_of_port.send_response_credit(call, consumed),
        };
        // Otherwise the link has ended, and its calls end with it.
        if let Err(SendError::Full { .. }) = queued {
            self.keep(link, Kept::Credit { call, of, credit });
        }
    }
}
