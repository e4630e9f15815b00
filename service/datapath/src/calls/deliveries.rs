//! To applications: messages are placed in their receive heaps, or wait until there is room.
//!
//! ```text
//!   engine ── call, request, response, reply, status ──▶ place ──▶ completion ring
//!                                                          │ no room
//!                                                          ▼
//!                                     held: in order, until the application gives blocks back
//! ```
//!
//! An application that doesn't give blocks back fills its heap. Later messages then wait here, and
//! everything after them waits behind them, so a call's messages and its end stay in order. A
//! waiting call can still be cancelled, and its deadline ends it. At most [`HELD_BYTES`] per
//! session wait; beyond that a call ends with RESOURCE_EXHAUSTED, and a reply is replaced by that
//! status.
//!
//! Credit, cancellations and returned blocks need no room, so they don't wait.

use std::collections::VecDeque;

use tollgate_engine::{CallKey, Origin, SessionId, Status};
use tollgate_jit::Codec;
use tollgate_shm_abi::descriptor::{Completion, Image, Part};
use tollgate_shm_abi::heap::Block;
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::record::event;

use crate::calls::memory::discard;
use crate::calls::streams::without_responses;
use crate::calls::table::Sessions;
use crate::limits::HELD_BYTES;
use crate::ports::{Delivery, Held, Placed, SessionPort};
use crate::report::ByteCounters;
use crate::runtime::Runtime;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::{Body, Message, Pool, copy_image};

/// Why a message isn't placed.
enum Unplaced {
    /// The heap has no room for it now.
    NoRoom(Message),
    /// The message is invalid and has been discarded.
    Invalid(Status),
}

/// Deliveries of the engine to applications.
impl Runtime {
    pub(crate) fn deliver(
        &mut self,
        session: SessionId,
        handle: u32,
        call: CallKey,
        more: bool,
        deadline_ns: u64,
        message: Box<Message>,
    ) {
        self.engine.delivered(self.now_ns, call);
        self.observer
            .event(&self.engine, call, event::DELIVERED, Vec::new);
        let message = self.pool.unboxed(message);
        if (more || message.bare) && !self.sessions.knows_streams(session) {
            discard(message, &mut self.pool, &mut self.sessions);
            let text = "the serving application's library predates streams";
            let status = Status::new(Code::UNIMPLEMENTED, text);
            return self.engine.undeliverable(call, status);
        }
        self.counters.delivered += 1;
        let what = Delivery::Call {
            handle,
            call,
            more,
            deadline_ns,
        };
        self.hand(session, handle, message, what);
    }

    pub(crate) fn deliver_request(
        &mut self,
        session: SessionId,
        handle: u32,
        call: CallKey,
        more: bool,
        charge: u32,
        message: Option<Box<Message>>,
    ) {
        let what = Delivery::Request { call, more, charge };
        match message {
            Some(message) => {
                let message = self.pool.unboxed(message);
                self.hand(session, handle, message, what);
            }
            None => {
                if let Some(port) = self.sessions.get_mut(session) {
                    port.say(Held::End { call });
                }
            }
        }
    }

    pub(crate) fn respond(
        &mut self,
        session: SessionId,
        handle: u32,
        call: u64,
        charge: u32,
        message: Box<Message>,
    ) {
        let message = self.pool.unboxed(message);
        if !self.sessions.knows_streams(session) {
            discard(message, &mut self.pool, &mut self.sessions);
            let status = without_responses("application's library");
            return self
                .engine
                .refuse(Origin::Session { session, call }, status);
        }
        self.hand(
            session,
            handle,
            message,
            Delivery::Response { call, charge },
        );
    }

    pub(crate) fn complete(
        &mut self,
        session: SessionId,
        handle: u32,
        call: u64,
        message: Box<Message>,
    ) {
        let message = self.pool.unboxed(message);
        self.hand(session, handle, message, Delivery::Reply { call });
    }

    pub(crate) fn fail(&mut self, session: SessionId, call: u64, status: Status) {
        self.counters.failed += u64::from(status.code != Code::OK);
        if let Some(port) = self.sessions.get_mut(session) {
            port.say(Held::Status { call, status });
        }
    }

    /// The answer to this call is no longer needed.
    pub(crate) fn cancel_delivered(&mut self, session: SessionId, call: CallKey) {
        let Some(port) = self.sessions.get_mut(session) else {
            return;
        };
        let held = port.held.len();
        if held > 0 {
            let mut was_told = true;
            let mut kept = VecDeque::with_capacity(held);
            let mut dropped = Vec::new();
            for waiting in port.held.drain(..) {
                match waiting.is_for(call) {
                    Some(is_call) => {
                        was_told &= !is_call;
                        dropped.push(waiting);
                    }
                    None => kept.push_back(waiting),
                }
            }
            port.held = kept;
            for waiting in dropped {
                self.drop_held(session, waiting);
            }
            if !was_told {
                return;
            }
        }
        if let Some(port) = self.sessions.get_mut(session) {
            port.push(&Completion::Cancel {
                call: call.to_wire(),
            });
        }
    }
}

/// Delivery, at once or later.
impl Runtime {
    /// Delivers a message, behind all waiting items.
    fn hand(&mut self, session: SessionId, handle: u32, message: Message, what: Delivery) {
        let must_wait = match self.sessions.get(session) {
            Some(port) => !port.held.is_empty(),
            None => return discard(message, &mut self.pool, &mut self.sessions),
        };
        if must_wait {
            return self.hold(session, handle, message, what);
        }
        let placed = self.with_handle(session, handle, |runtime, bound| match bound {
            Some(bound) => Some(place(
                session,
                what.codec(&bound.method),
                message,
                &mut runtime.pool,
                &mut runtime.sessions,
                &mut runtime.bytes,
            )),
            None => {
                discard(message, &mut runtime.pool, &mut runtime.sessions);
                None
            }
        });
        match placed {
            Some(Ok(placed)) => self.push_placed(session, placed, &what),
            Some(Err(Unplaced::NoRoom(message))) => self.hold(session, handle, message, what),
            Some(Err(Unplaced::Invalid(status))) => self.not_handed(session, &what, status),
            None => {}
        }
    }

    fn push_placed(&mut self, session: SessionId, placed: Placed, what: &Delivery) {
        let asks_wait = self.options.tuning.wait_target.is_some();
        let now_ns = self.now_ns;
        let Some(port) = self.sessions.get_mut(session) else {
            return;
        };
        let delivered_ns = match what {
            Delivery::Call { .. } if asks_wait => port.asks_wait_ns(now_ns),
            _ => 0,
        };
        port.push_placed(placed, what, delivered_ns);
        self.counters.completed += u64::from(matches!(what, Delivery::Reply { .. }));
    }

    #[cold]
    fn hold(&mut self, session: SessionId, handle: u32, message: Message, what: Delivery) {
        let method = self.sessions.method_of(session, handle);
        let (Some(method), Some(port)) = (method, self.sessions.get_mut(session)) else {
            return discard(message, &mut self.pool, &mut self.sessions);
        };
        let bytes = u64::from(message.total_len);
        let heap = port.end.receive_heap.len_bytes();
        let too_much = if bytes > heap {
            Some(format!(
                "a message of {bytes} bytes doesn't fit into the receiving application's receive heap of {heap} bytes"
            ))
        } else if port.held_bytes + bytes > HELD_BYTES {
            Some(format!(
                "the receiving application's receive heap is full, and {HELD_BYTES} bytes wait for room in it, which is the limit"
            ))
        } else {
            None
        };
        if let Some(text) = too_much {
            discard(message, &mut self.pool, &mut self.sessions);
            let status = Status::new(Code::RESOURCE_EXHAUSTED, text);
            return self.not_handed(session, &what, status);
        }
        port.held_bytes += bytes;
        let message = self.pool.boxed(message);
        if let Delivery::Call { call, .. } = what {
            self.observer.queued(&self.engine, call, "receive heap");
        }
        if let Some(port) = self.sessions.get_mut(session) {
            port.held.push_back(Held::Message {
                method,
                message,
                what,
            });
        }
    }

    /// A message that can't be delivered ends its call.
    fn not_handed(&mut self, session: SessionId, what: &Delivery, status: Status) {
        match *what {
            Delivery::Call { call, .. } | Delivery::Request { call, .. } => {
                self.engine.undeliverable(call, status);
            }
            Delivery::Response { call, .. } => {
                self.engine
                    .refuse(Origin::Session { session, call }, status);
            }
            Delivery::Reply { call } => self.fail(session, call, status),
        }
    }

    /// The application has returned blocks: waiting messages are delivered as long as there is
    /// room.
    pub(crate) fn hand_held(&mut self, session: SessionId) {
        loop {
            let Some(port) = self.sessions.get_mut(session) else {
                return;
            };
            let Some(next) = port.held.pop_front() else {
                return;
            };
            let (method, message, what) = match next {
                Held::Message {
                    method,
                    message,
                    what,
                } => (method, message, what),
                other => {
                    port.tell(other);
                    continue;
                }
            };
            let message = self.pool.unboxed(message);
            let bytes = u64::from(message.total_len);
            let placed = place(
                session,
                what.codec(&method),
                message,
                &mut self.pool,
                &mut self.sessions,
                &mut self.bytes,
            );
            let Some(port) = self.sessions.get_mut(session) else {
                return;
            };
            match placed {
                Err(Unplaced::NoRoom(message)) => {
                    let message = self.pool.boxed(message);
                    port.held.push_front(Held::Message {
                        method,
                        message,
                        what,
                    });
                    return;
                }
                Ok(placed) => {
                    port.held_bytes -= bytes;
                    self.push_placed(session, placed, &what);
                }
                Err(Unplaced::Invalid(status)) => {
                    port.held_bytes -= bytes;
                    self.not_handed(session, &what, status);
                }
            }
        }
    }

    /// Drops a waiting item of a session.
    pub(crate) fn drop_held(&mut self, session: SessionId, held: Held) {
        if let Held::Message { message, .. } = held {
            let message = self.pool.unboxed(message);
            if let Some(port) = self.sessions.get_mut(session) {
                port.held_bytes -= u64::from(message.total_len);
            }
            discard(message, &mut self.pool, &mut self.sessions);
        }
    }
}

/// Moves an image out of the heap in which it landed.
fn unland(
    from: SessionId,
    block: Block,
    len: usize,
    pool: &mut Pool,
    sessions: &mut Sessions,
    counts: &mut ByteCounters,
) -> Body {
    let mut bytes = pool.take(len);
    bytes.copy_from_slice(&block[..len]);
    counts.private_to_receive_heap += len as u64;
    sessions.discard_block(from, block);
    Body::Private {
        bytes,
        accepted: true,
        extents: Vec::new(),
    }
}

/// Puts a message and its metadata into a session's receive heap and validates all of it. The
/// message's own memory is freed.
fn place(
    session: SessionId,
    codec: &Codec,
    mut message: Message,
    pool: &mut Pool,
    sessions: &mut Sessions,
    counts: &mut ByteCounters,
) -> Result<Placed, Unplaced> {
    let metadata = std::mem::take(&mut message.metadata);
    let port = sessions.get(session);
    let shown = match port.is_some_and(|port| port.who.takes_metadata) {
        true => &metadata[..],
        false => &[],
    };
    let bare = message.bare;
    let total = message.message_len() as usize;
    let image = Image {
        offset: 0,
        inline_len: if bare { 0 } else { message.inline_len },
        total_len: message.message_len(),
        metadata: shown.len() as u32,
    };
    if !image.exists(bare) {
        discard(message, pool, sessions);
        pool.give(metadata);
        return Ok(Placed {
            bare,
            ..Placed::default()
        });
    }
    let placed = match place_image(
        session,
        codec,
        message,
        image.held_bytes(),
        pool,
        sessions,
        counts,
    ) {
        Err(Unplaced::NoRoom(message)) => {
            let message = Message {
                metadata,
                ..message
            };
            return Err(Unplaced::NoRoom(message));
        }
        placed => placed,
    };
    let placed = placed.map(|mut block| {
        if let Some(behind) = block.get_mut(total..image.held_bytes()) {
            let at = behind.len() - shown.len();
            behind[..at].fill(0);
            behind[at..].copy_from_slice(shown);
        }
        Placed {
            block: Some(block),
            image,
            bare,
        }
    });
    pool.give(metadata);
    placed
}

/// Puts an image into a block of `held` bytes of a session's receive heap and validates all of
/// it.
fn place_image(
    session: SessionId,
    codec: &Codec,
    mut message: Message,
    held: usize,
    pool: &mut Pool,
    sessions: &mut Sessions,
    counts: &mut ByteCounters,
) -> Result<Block, Unplaced> {
    if let Body::Landed {
        session: landed,
        block,
    } = message.body
    {
        if landed == session && block.len() >= held {
            return Ok(block);
        }
        // The message landed for another server than the one that gets it, or its metadata has
        // grown.
        message.body = unland(
            landed,
            block,
            message.total_len as usize,
            pool,
            sessions,
            counts,
        );
    }
    let room = sessions.alloc(session, held);
    let Some(mut block) = room else {
        return Err(Unplaced::NoRoom(message));
    };
    let image = &mut block[..message.message_len() as usize];
    let accepted = match &message.body {
        _ if message.bare => true,
        Body::Private {
            bytes, accepted, ..
        } => {
            image.copy_from_slice(bytes);
            counts.private_to_receive_heap += bytes.len() as u64;
            *accepted
        }
        Body::Gathered { inline, spans, .. } => {
            copy_image(inline, spans, image);
            counts.private_to_receive_heap += inline.len() as u64;
            let extents = spans.iter().map(|span| span.len() as u64);
            counts.send_heap_to_receive_heap += extents.sum::<u64>();
            false
        }
        Body::Encoded { bytes, start } => {
            debug_assert!(false, "protobuf goes to a link");
            image.copy_from_slice(&bytes[*start..]);
            false
        }
        Body::Landed { .. } => true,
    };
    let checked = if accepted {
        Ok(())
    } else {
        codec.accept(image, message.inline_len as usize)
    };
    discard(message, pool, sessions);
    match checked {
        Ok(()) => Ok(block),
        Err(fault) => {
            sessions.discard_block(session, block);
            let status = Status::new(Code::INVALID_ARGUMENT, codec.explain(&fault));
            Err(Unplaced::Invalid(status))
        }
    }
}

impl Delivery {
    fn codec<'m>(&self, method: &'m Method) -> &'m Codec {
        match self {
            Delivery::Call { .. } | Delivery::Request { .. } => &method.request,
            Delivery::Response { .. } | Delivery::Reply { .. } => &method.reply,
        }
    }
}

impl Held {
    /// `None`: it doesn't belong to this incoming call. Otherwise: whether it is the call itself.
    fn is_for(&self, wanted: CallKey) -> Option<bool> {
        match *self {
            Held::Message {
                what: Delivery::Call { call, .. },
                ..
            } if call == wanted => Some(true),
            Held::Message {
                what: Delivery::Request { call, .. },
                ..
            }
            | Held::End { call }
                if call == wanted =>
            {
                Some(false)
            }
            _ => None,
        }
    }
}

impl SessionPort {
    /// Sends an item that needs almost no room, behind all waiting items.
    fn say(&mut self, what: Held) {
        match self.held.is_empty() {
            true => self.tell(what),
            false => self.held.push_back(what),
        }
    }

    fn tell(&mut self, what: Held) {
        match what {
            Held::Status { call, status } => self.push_status(call, &status),
            Held::End { call } => self.push(&Completion::Request {
                call: call.to_wire(),
                part: Part {
                    more: false,
                    bare: true,
                },
                image: Image::default(),
                charge: 0,
            }),
            Held::Message { .. } => debug_assert!(false, "messages are placed"),
        }
    }
}
