//! Calls between two schemas: finds the methods that can be called, and converts messages from one
//! layout to the other.
//!
//! ```text
//!   bind, hashes differ ── description ──▶ control plane compares, off the datapath
//!                                            └── MethodMatch per method ──▶ routes
//!
//!   this host    caller's image ── encode ──▶ protobuf ── decode ──▶ server's block
//!                (replies: reversed)
//!   to a peer    caller's image ── encode ──▶ protobuf ── frame
//!   from a peer  frame ── protobuf ── decode ──▶ server's block
//! ```
//!
//! Invariants: each chain reads its own application's layout, so a request is converted after the
//! caller's chain and before the server's (P2: the outgoing message is made from the bytes that
//! were evaluated). Input of the encoder is private and accepted. Output of the decoder is
//! canonical by construction and has no extents. A message that can't be converted ends its call
//! and nothing else.
//!
//! Absent: state. A route says how its method is encoded, and the engine keeps that with the call.

use std::sync::Arc;

use tollgate_engine::{
    CallKey, Encoding, End, LinkId, Origin, RouteTarget, ServiceId, SessionId, Status,
};
use tollgate_jit::Codec;
use tollgate_marshal::{Fault, FaultCode};
use tollgate_schema::evolution::MethodMatch;
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::record::event;
use tollgate_transport::{CallHead, metadata_room};

use crate::binds::{Bound, ServiceSchema};
use crate::calls::binding::{client_routes, lacks_method, schema_differs};
use crate::calls::memory::discard;
use crate::calls::table::Sessions;
use crate::command::{Comparison, Event};
use crate::links::arrivals::invalid;
use crate::links::events::After;
use crate::links::remote::Compared;
use crate::links::wire::credit_bytes;
use crate::ports::{Answer, LinkState};
use crate::report::ByteCounters;
use crate::runtime::Runtime;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::{Body, Message, Pool};
use tollgate_policy_chain::plan::MethodSteps;

/// Conversion of messages.
impl Runtime {
    /// Carries out [`tollgate_engine::Output::Convert`].
    pub(crate) fn convert(&mut self, call: CallKey, from: End, to: End, message: Box<Message>) {
        let message = self.pool.unboxed(message);
        let (Some(source), target) = (self.method_of_end(from), self.method_of_end(to)) else {
            // The caller has gone, and the call with it.
            return discard(message, &mut self.pool, &mut self.sessions);
        };
        let is_request = matches!(from, End::Caller { .. });
        self.observer.marshals_more();
        self.counters.converted += 1;
        let rewritten = rewrite(
            &source,
            target.as_ref(),
            is_request,
            message,
            &mut self.pool,
            &mut self.sessions,
            &mut self.bytes,
        );
        match rewritten {
            Ok(message) => {
                let what = match is_request {
                    true => "request",
                    false => "reply",
                };
                self.observer.marshalled(
                    &self.engine,
                    call,
                    event::CONVERTED,
                    what,
                    message.message_len(),
                );
                let bytes = credit_bytes(&message);
                let message = self.pool.boxed(message);
                self.engine.converted(call, bytes, message);
            }
            Err(status) => self.engine.undeliverable(call, status),
        }
    }

    fn method_of_end(&self, end: End) -> Option<Arc<Method>> {
        match end {
            End::Caller { session, handle } => self.sessions.method_of(session, handle),
            End::Server { service, method } => {
                self.services.method(service, method).map(Arc::clone)
            }
            End::Peer => None,
        }
    }
}

/// A message in the target's layout; without a target, as protobuf.
fn rewrite(
    source: &Arc<Method>,
    target: Option<&Arc<Method>>,
    is_request: bool,
    mut message: Message,
    pool: &mut Pool,
    sessions: &mut Sessions,
    counts: &mut ByteCounters,
) -> Result<Message, Status> {
    source.crosses();
    // These are the same in every layout.
    let metadata = std::mem::take(&mut message.metadata);
    let bare = message.bare;
    let codec = codec_of(source, is_request);
    let (bytes, start) = encode(codec, message, pool, sessions, counts)
        .map_err(|fault| unfit(source, is_request, &fault))?;
    let Some(target) = target else {
        let total_len = (bytes.len() - start) as u32;
        return Ok(Message {
            body: Body::Encoded { bytes, start },
            inline_len: 0,
            total_len,
            metadata,
            bare,
        });
    };
    target.called();
    target.crosses();
    let decoded = decode(codec_of(target, is_request), &bytes[start..], pool);
    pool.give(bytes);
    let decoded = decoded.map_err(|fault| unfit(target, is_request, &fault))?;
    Ok(Message {
        metadata,
        bare,
        ..decoded
    })
}

/// An empty message with the given metadata. Chains see it in place of an absent message.
pub(crate) fn bare(codec: &Codec, metadata: Vec<u8>, pool: &mut Pool) -> Result<Message, Status> {
    let nothing = decode(codec, &[], pool).map_err(|fault| {
        let text = format!(
            "a message without fields isn't valid: {}",
            codec.explain(&fault)
        );
        Status::new(Code::INVALID_ARGUMENT, text)
    })?;
    Ok(Message {
        metadata,
        bare: true,
        ..nothing
    })
}

/// The protobuf encoding of a message, and where it begins in the buffer.
fn encode(
    codec: &Codec,
    mut message: Message,
    pool: &mut Pool,
    sessions: &mut Sessions,
    counts: &mut ByteCounters,
) -> Result<(Vec<u8>, usize), Fault> {
    let mut out = pool.take(0);
    let encoded = accept_privately(codec, &mut message, pool, sessions, counts)
        .and_then(|()| codec.encode(message.evaluated().0, &mut out));
    discard(message, pool, sessions);
    match encoded {
        Ok(start) => Ok((out, start)),
        Err(fault) => {
            pool.give(out);
            Err(fault)
        }
    }
}

/// Makes an image private and contiguous, with its extents in place.
fn accept_privately(
    codec: &Codec,
    message: &mut Message,
    pool: &mut Pool,
    sessions: &mut Sessions,
    counts: &mut ByteCounters,
) -> Result<(), Fault> {
    if let Some(source) = message.make_private(pool) {
        counts.send_heap_to_private += u64::from(message.total_len);
        sessions.reclaim(source);
    }
    let Body::Private {
        bytes,
        accepted: accepted @ false,
        extents,
    } = &mut message.body
    else {
        return Ok(());
    };
    codec.accept(bytes, message.inline_len as usize)?;
    *accepted = true;
    extents.clear();
    Ok(())
}

/// Decodes protobuf that another party wrote.
fn decode(codec: &Codec, protobuf: &[u8], pool: &mut Pool) -> Result<Message, Fault> {
    let mut block = pool.take(0);
    match codec.decode(protobuf, &mut block) {
        Ok(()) => {
            let inline_len = block.len() as u32;
            Ok(Message::accepted(block, inline_len))
        }
        Err(fault) => {
            pool.give(block);
            Err(fault)
        }
    }
}

pub(crate) fn decoded_request(
    method: &Arc<Method>,
    protobuf: &[u8],
    pool: &mut Pool,
) -> Result<Message, Status> {
    method.called();
    method.crosses();
    let decoded = decode(&method.request, protobuf, pool);
    decoded.map_err(|fault| unfit(method, true, &fault))
}

/// The status for a message that can't be converted.
fn unfit(method: &Method, is_request: bool, fault: &Fault) -> Status {
    let explained = codec_of(method, is_request).explain(fault);
    let mut status = invalid(method, &explained, is_request);
    if fault.code == FaultCode::TooLarge {
        // The message isn't wrong: one layout takes more room than the other.
        status.code = Code::RESOURCE_EXHAUSTED;
    }
    status
}

fn codec_of(method: &Method, is_request: bool) -> &Codec {
    if is_request {
        &method.request
    } else {
        &method.reply
    }
}

/// Protobuf from a peer.
impl Runtime {
    pub(crate) fn encoded_request(
        &mut self,
        link: LinkId,
        service: ServiceId,
        head: &CallHead,
        protobuf: &[u8],
        metadata: Vec<u8>,
    ) {
        let bytes = (protobuf.len() + metadata_room(metadata.len())) as u64;
        self.observer
            .arriving(&metadata, &self.options.tuning.telemetry);
        self.counters.converted += 1;
        let pool = &mut self.pool;
        let decoded = self
            .services
            .served(service, head.method)
            .and_then(|method| decoded_request(method, protobuf, pool));
        match decoded {
            Ok(decoded) => {
                let message = Message {
                    metadata,
                    ..decoded
                };
                self.request_arrived(link, service, head, Encoding::Protobuf, bytes, message)
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

    pub(crate) fn encoded_answer(
        &mut self,
        link: LinkId,
        answer: Answer,
        protobuf: &[u8],
        metadata: Vec<u8>,
    ) {
        let Some(method) = self.answering(link, answer) else {
            return;
        };
        method.crosses();
        self.counters.converted += 1;
        self.observer.marshals_more();
        match decode(&method.reply, protobuf, &mut self.pool) {
            Ok(decoded) => {
                let message = Message {
                    metadata,
                    ..decoded
                };
                self.answered(link, answer, message);
            }
            Err(fault) => {
                let status = unfit(&method, false, &fault);
                self.engine.fail_from_link(link, answer.key, status);
            }
        }
    }

    /// The method of the call that a peer answers; `None`: the call ended meanwhile.
    pub(crate) fn answering(&self, link: LinkId, answer: Answer) -> Option<Arc<Method>> {
        let expected = self.engine.expected_from_link(link, answer.key)?;
        self.sessions.method_of(expected.session, expected.handle)
    }
}

/// Bindings to a schema that differs.
impl Runtime {
    /// The peer serves the binding with this schema. The control plane compares it, off the
    /// datapath.
    pub(crate) fn compare(&mut self, link: LinkId, bind: u32, key: u32, theirs: &str) {
        if let Some(waiting) = self.bindings.why_not_compare(key) {
            let text = format!("{waiting} are being compared, which is the limit");
            return self.bind_refused(key, Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        let begun = self.bindings.begin_comparison(key, link, bind);
        let Some((ticket, binding)) = begun else {
            return;
        };
        self.control.tell(Event::Compare(Comparison {
            runtime: self.options.index,
            ticket,
            binding: key,
            tenant: Arc::clone(&binding.tenant),
            ours: Arc::clone(&binding.schema),
            theirs: theirs.to_owned(),
        }));
    }

    /// The result of [`Runtime::compare`]. It is outdated if the binding was lost, refused or
    /// answered again meanwhile.
    pub(crate) fn compared(&mut self, ticket: u64, key: u32, matches: Vec<MethodMatch>) {
        let Some(compared) = self.bindings.end_comparison(key, ticket) else {
            return;
        };
        let Compared {
            link,
            bind,
            schema,
            peer,
        } = compared;
        let who = format!("peer {peer}");
        match refused_methods(&schema, &matches, &who) {
            Ok(refused) => {
                let target = |method, encoding| RouteTarget::Link {
                    link,
                    bind,
                    method,
                    encoding,
                };
                self.bind_accepted(key, refused, |k| {
                    route_to(&schema, &matches, k, &who, target)
                });
            }
            Err(status) => self.bind_refused(key, status),
        }
    }

    /// Binds a client to a service of this host that has another schema.
    pub(crate) fn bind_across(
        &mut self,
        session: SessionId,
        tenant: &Arc<str>,
        schema: Arc<ServiceSchema>,
        chains: Vec<MethodSteps>,
        service: ServiceId,
        matches: &[MethodMatch],
    ) -> Result<Bound, Status> {
        const WHO: &str = "the serving application";
        let served = self.services.schema(service).methods.len();
        let refused = refused_methods(&schema, matches, WHO)?;
        let target = |method: u16, encoding| {
            // The engine uses it as an offset into the server's handles; handles of other services
            // follow these.
            if usize::from(method) >= served {
                let reason = "the server has no such method";
                return RouteTarget::Broken(lacks_method(&schema, WHO, reason));
            }
            RouteTarget::Local {
                service,
                method,
                encoding,
            }
        };
        let routes = client_routes(&mut self.policies, tenant, chains, |k| {
            route_to(&schema, matches, k, WHO, target)
        })?;
        let first_handle = self.add_handles(session, &schema, true, routes)?;
        Ok(Bound {
            first_handle,
            service: None,
            refused,
        })
    }

    /// The peer's BIND names another schema than this host serves: the peer is told which one.
    pub(crate) fn bound_across(
        &mut self,
        state: &mut LinkState,
        bind: u32,
        service: ServiceId,
    ) -> After {
        state.inbound.insert(bind, service);
        let schema = Arc::clone(self.services.schema(service));
        After::BoundAcross { bind, schema }
    }
}

/// The methods that can't be called, with the reasons; an error if none can be called.
fn refused_methods(
    ours: &ServiceSchema,
    matches: &[MethodMatch],
    who: &str,
) -> Result<Vec<(u16, String)>, Status> {
    let reasons = matches.iter().zip(0u16..);
    let refused: Vec<_> = reasons
        .filter_map(|(found, k)| match found {
            MethodMatch::Absent { reason } | MethodMatch::Refused { reason } => {
                Some((k, reason.clone()))
            }
            MethodMatch::Native { .. } | MethodMatch::Protobuf { .. } => None,
        })
        .collect();
    let Some((_, first)) = refused
        .first()
        .filter(|_| refused.len() == ours.methods.len())
    else {
        return Ok(refused);
    };
    // A difference is more informative than an absence.
    let differs = matches.iter().find_map(|found| match found {
        MethodMatch::Refused { reason } => Some(reason),
        _ => None,
    });
    Err(match differs {
        Some(reason) => schema_differs(ours, who, reason),
        None => lacks_method(ours, who, first),
    })
}

/// The destination of calls of the caller's method `k`.
fn route_to(
    ours: &ServiceSchema,
    matches: &[MethodMatch],
    k: u16,
    who: &str,
    target: impl Fn(u16, Encoding) -> RouteTarget,
) -> RouteTarget {
    match matches.get(usize::from(k)) {
        Some(MethodMatch::Native { index }) => target(*index, Encoding::Native),
        Some(MethodMatch::Protobuf { index }) => target(*index, Encoding::Protobuf),
        Some(MethodMatch::Absent { reason }) => {
            RouteTarget::Broken(lacks_method(ours, who, reason))
        }
        Some(MethodMatch::Refused { reason }) => {
            RouteTarget::Broken(schema_differs(ours, who, reason))
        }
        None => RouteTarget::Broken(schema_differs(ours, who, "the schemas weren't compared")),
    }
}
