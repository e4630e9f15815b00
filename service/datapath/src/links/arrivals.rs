//! Messages of peers: a frame becomes a call of the engine, or an answer to one.
//!
//! ```text
//!   frame ── arrived ──▶ the place of the body ── landed ──▶ valid ──▶ engine
//!                             └── large: filled in later turns ──┘
//! ```
//!
//! Invariant: the image of a message is validated in a place that only this daemon can write,
//! before a chain or an application sees it.

use tollgate_engine::{Encoding, LinkId, Origin, ServiceId, Status, Submission};
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::record::event;
use tollgate_transport::{Body as WireBody, CallHead, Came, metadata_room};

use crate::calls::memory::{discard, discard_landing, keep_metadata, landing};
use crate::calls::sessions::beyond_its_share;
use crate::calls::steering;
use crate::landing::Landing;
use crate::observe::Seen;
use crate::ports::{Answer, LargeBody, LargeKind, LinkState};
use crate::runtime::Runtime;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Message;

use crate::links::events::After;

impl Runtime {
    pub(crate) fn call_arrived(
        &mut self,
        link: LinkId,
        state: &LinkState,
        head: CallHead,
        came: Came<'_>,
    ) -> After {
        self.counters.received += 1;
        let credit_bytes = came.credit_bytes();
        let metadata = keep_metadata(came.metadata, &mut self.pool);
        let inline_len = came.inline_len;
        let (len, whole) = parts_of(came.body);
        let origin = Origin::Link {
            link,
            call: head.call,
        };
        let Some(service) = self.called(state, &head) else {
            let text = format!(
                "bind {} of this link has no method {}",
                head.bind, head.method
            );
            self.pool.give(metadata);
            let status = Status::new(Code::UNIMPLEMENTED, text);
            self.engine.reject(origin, credit_bytes, status);
            return if whole.is_none() {
                After::SkipBody
            } else {
                After::Nothing
            };
        };
        if head.bare {
            self.bare_request(link, service, &head, metadata);
            return After::Nothing;
        }
        if head.protobuf {
            let Some(bytes) = whole else {
                return After::Large(LargeBody {
                    what: LargeKind::Call(head),
                    landing: landing(None, 0, len, metadata, &mut self.pool, &mut self.sessions),
                });
            };
            self.encoded_request(link, service, &head, bytes, metadata);
            return After::Nothing;
        }
        let to = self.engine.landing(service, head.method);
        let unevaluated = to
            .filter(|(_, evaluated)| !evaluated)
            .map(|(session, _)| session);
        let mut landing = landing(
            unevaluated,
            inline_len,
            len,
            metadata,
            &mut self.pool,
            &mut self.sessions,
        );
        match whole {
            None => After::Large(LargeBody {
                what: LargeKind::Call(head),
                landing,
            }),
            Some(bytes) => {
                landing.bytes_mut().copy_from_slice(bytes);
                self.bytes.link_to_message += len as u64;
                self.request_landed(link, service, &head, landing);
                After::Nothing
            }
        }
    }

    pub(crate) fn answer_arrived(
        &mut self,
        link: LinkId,
        answer: Answer,
        bare: bool,
        came: Came<'_>,
    ) -> After {
        let inline_len = came.inline_len;
        let (len, whole) = parts_of(came.body);
        let skip = if whole.is_none() {
            After::SkipBody
        } else {
            After::Nothing
        };
        let Answer { key, protobuf, .. } = answer;
        let Some(expected) = self.engine.expected_from_link(link, key) else {
            // The call ended meanwhile.
            return skip;
        };
        if protobuf != (expected.encoding == Encoding::Protobuf) && !bare {
            let text = "the peer's reply isn't encoded as its call was";
            self.engine
                .fail_from_link(link, key, Status::new(Code::INTERNAL, text));
            return skip;
        }
        let metadata = keep_metadata(came.metadata, &mut self.pool);
        if bare {
            self.bare_answer(link, answer, metadata);
            return After::Nothing;
        }
        if protobuf && let Some(bytes) = whole {
            self.encoded_answer(link, answer, bytes, metadata);
            return After::Nothing;
        }
        let unevaluated = (!expected.evaluated && !protobuf).then_some(expected.session);
        let mut landing = landing(
            unevaluated,
            inline_len,
            len,
            metadata,
            &mut self.pool,
            &mut self.sessions,
        );
        match whole {
            None => After::Large(LargeBody {
                what: LargeKind::Answer(answer),
                landing,
            }),
            Some(bytes) => {
                landing.bytes_mut().copy_from_slice(bytes);
                self.bytes.link_to_message += len as u64;
                self.answer_landed(link, answer, landing);
                After::Nothing
            }
        }
    }

    pub(crate) fn large_arrived(&mut self, link: LinkId, state: &LinkState, mut large: LargeBody) {
        match large.what {
            LargeKind::Call(head) => match self.called(state, &head) {
                Some(service) if head.protobuf => {
                    let metadata = std::mem::take(&mut large.landing.metadata);
                    let bytes = large.landing.bytes();
                    self.encoded_request(link, service, &head, bytes, metadata);
                    discard_landing(large.landing, &mut self.pool, &mut self.sessions);
                }
                Some(service) => self.request_landed(link, service, &head, large.landing),
                None => discard_landing(large.landing, &mut self.pool, &mut self.sessions),
            },
            LargeKind::Request(request) if request.protobuf => {
                self.encoded_further_request(link, request, large.landing.bytes());
                discard_landing(large.landing, &mut self.pool, &mut self.sessions);
            }
            LargeKind::Request(request) => {
                self.further_request_landed(link, request, large.landing);
            }
            LargeKind::Answer(answer) if answer.protobuf => {
                let metadata = std::mem::take(&mut large.landing.metadata);
                self.encoded_answer(link, answer, large.landing.bytes(), metadata);
                discard_landing(large.landing, &mut self.pool, &mut self.sessions);
            }
            LargeKind::Answer(answer) => self.answer_landed(link, answer, large.landing),
        }
    }

    /// The called service; `None` if it has no such method.
    pub(crate) fn called(&self, state: &LinkState, head: &CallHead) -> Option<ServiceId> {
        let service = *state.inbound.get(&head.bind)?;
        self.services.method(service, head.method)?;
        Some(service)
    }

    fn request_landed(
        &mut self,
        link: LinkId,
        service: ServiceId,
        head: &CallHead,
        mut landing: Landing,
    ) {
        let origin = Origin::Link {
            link,
            call: head.call,
        };
        let bytes = (landing.len + metadata_room(landing.metadata.len())) as u64;
        let inline_len = landing.inline_len as usize;
        self.observer
            .arriving(&landing.metadata, &self.options.tuning.telemetry);
        let served = self.services.served(service, head.method);
        let accepted = served.and_then(|method| {
            method.called();
            let accepted = method.request.accept(landing.bytes_mut(), inline_len);
            accepted.map_err(|fault| invalid(method, &method.request.explain(&fault), true))
        });
        if let Err(status) = accepted {
            discard_landing(landing, &mut self.pool, &mut self.sessions);
            return self.engine.reject(origin, bytes, status);
        }
        let message = landing.into_message();
        self.request_arrived(link, service, head, Encoding::Native, bytes, message);
    }

    /// A peer's request in the service's layout; `bytes` is the credit that it used.
    pub(crate) fn request_arrived(
        &mut self,
        link: LinkId,
        service: ServiceId,
        head: &CallHead,
        encoding: Encoding,
        bytes: u64,
        mut message: Message,
    ) {
        let steering = steering::take(&mut message.metadata);
        let origin = Origin::Link {
            link,
            call: head.call,
        };
        let tenant = self.services.get(service);
        let tenant = tenant.map(|service| &*service.tenant);
        if let Some(status) = beyond_its_share(
            &self.engine,
            &self.scheduler,
            &self.sessions,
            &self.links,
            tenant,
            Some(link),
        ) {
            discard(message, &mut self.pool, &mut self.sessions);
            return self.engine.reject(origin, bytes, status);
        }
        let seen = Seen::by(
            &self.options.tuning.telemetry,
            &self.sessions,
            &self.links,
            &self.services,
            self.now_ns,
        );
        self.observer.arrived(origin, &mut message, seen);
        let deadline_ns = match head.deadline_us {
            0 => 0,
            us => self.now_ns.saturating_add(us.saturating_mul(1_000)),
        };
        let method = self.services.method(service, head.method);
        let streams = method.is_some_and(|method| method.streams.any());
        let bytes = if head.more {
            // A stream may last long. Its first message uses credit like the others.
            self.links.add_opening(bytes);
            0
        } else {
            bytes
        };
        let submission = Submission {
            origin,
            deadline_ns,
            streams,
            more: head.more,
            bytes,
            steering,
            message: self.pool.boxed(message),
        };
        self.engine
            .arrive(self.now_ns, service, head.method, encoding, submission);
    }

    fn answer_landed(&mut self, link: LinkId, answer: Answer, mut landing: Landing) {
        let Some(expected) = self.engine.expected_from_link(link, answer.key) else {
            return discard_landing(landing, &mut self.pool, &mut self.sessions);
        };
        let inline_len = landing.inline_len as usize;
        self.observer.marshals_more();
        let accepted = self.with_handle(expected.session, expected.handle, |_, bound| {
            let method = &bound?.method;
            let accepted = method.reply.accept(landing.bytes_mut(), inline_len);
            Some(accepted.map_err(|fault| invalid(method, &method.reply.explain(&fault), false)))
        });
        match accepted {
            Some(Ok(())) => self.answered(link, answer, landing.into_message()),
            Some(Err(status)) => {
                discard_landing(landing, &mut self.pool, &mut self.sessions);
                self.engine.fail_from_link(link, answer.key, status);
            }
            None => discard_landing(landing, &mut self.pool, &mut self.sessions),
        }
    }

    /// A peer's answer in the caller's layout.
    pub(crate) fn answered(&mut self, link: LinkId, answer: Answer, mut message: Message) {
        steering::take(&mut message.metadata);
        let message = self.pool.boxed(message);
        match answer.charge {
            Some(charge) => self
                .engine
                .response_from_link(link, answer.key, charge, message),
            None => {
                let bytes = message.message_len();
                self.observer.marshalled(
                    &self.engine,
                    answer.key,
                    event::MARSHALLED,
                    "reply",
                    bytes,
                );
                self.engine.reply_from_link(link, answer.key, message);
            }
        }
    }
}

/// A body's length, and its bytes if they have been received.
pub(crate) fn parts_of(body: WireBody<'_>) -> (usize, Option<&[u8]>) {
    match body {
        WireBody::Whole(bytes) => (bytes.len(), Some(bytes)),
        WireBody::Large(len) => (len, None),
    }
}

/// The status for a message that doesn't fit its reader's layout or schema. For a request, the
/// caller is at fault.
pub(crate) fn invalid(method: &Method, explained: &str, is_request: bool) -> Status {
    let code = if is_request {
        Code::INVALID_ARGUMENT
    } else {
        Code::INTERNAL
    };
    Status::new(
        code,
        format!("a message of {} isn't valid: {explained}", method.name),
    )
}
