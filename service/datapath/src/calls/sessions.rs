//! Applications: their submissions are copied out, checked and given to the engine.
//!
//! Distrust (P1): a descriptor is copied out of the ring once and checked. A block is copied to
//! private memory once and validated there. An extent becomes a range of the heap that is only ever
//! copied or sent. Input that a correct library can't produce ends the session
//! ([`Runtime::expel`]), and nothing else.

use std::sync::Arc;

use tollgate_engine::fair::FlowId;
use tollgate_engine::{
    CallKey, Engine, LinkId, Origin, Served, ServiceId, SessionId, Status, Steering,
    Submission as Posted,
};
use tollgate_shm_abi::descriptor::{
    Alleged, BlockRef, EXTENT_ENTRY_BYTES, Epilogue, Extent, Part, Submission,
};
use tollgate_shm_abi::heap::Span;
use tollgate_shm_abi::limits::MAX_MESSAGE_BYTES;
use tollgate_shm_abi::metadata::{Metadata, MetadataError};
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::record::event;

use crate::binds::ServiceSchema;
use crate::calls::table::Sessions;
use crate::limits::{BYTES_PER_TURN, MAX_CALLS_PER_TENANT, SUBMISSIONS_PER_TURN};
use crate::links::table::Links;
use crate::links::wire::credit_bytes;
use crate::observe::Seen;
use crate::ports::{Handle, Kept, SessionPort};
use crate::report::SessionReport;
use crate::runtime::Runtime;
use crate::scheduler::Scheduler;
use tollgate_jit::on_demand::{Method, Streams};
use tollgate_policy_chain::message::{Body, Message, Source, image_layout};

/// An action that is impossible for a correct client library: the reason why the session ends.
pub(crate) struct Broken(pub(crate) String);

impl<E: std::fmt::Display> From<E> for Broken {
    fn from(error: E) -> Self {
        Broken(error.to_string())
    }
}

/// From the application.
impl Runtime {
    /// Takes a bounded number of submissions; fewer if they are large and other tenants wait.
    /// Whether there were any.
    pub(crate) fn turn_session(&mut self, session: SessionId, flow: FlowId) -> bool {
        let mut taken = 0;
        self.scheduler.reset_turn_bytes();
        let mut look_at = self.scheduler.bytes_per_look();
        while taken < SUBMISSIONS_PER_TURN && self.scheduler.turn_bytes() < BYTES_PER_TURN {
            if self.scheduler.turn_bytes() >= look_at {
                if self.others_wait(flow) {
                    break;
                }
                look_at = self.scheduler.turn_bytes() + self.scheduler.bytes_per_look();
            }
            let Some(port) = self.sessions.get_mut(session) else {
                break;
            };
            if port.is_choked() {
                break;
            }
            let entry = match port.end.submissions.pop() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(how) => {
                    self.expel(session, &how.to_string());
                    return true;
                }
            };
            taken += 1;
            if let Err(Broken(reason)) = self.submission(session, Alleged::from(entry)) {
                self.expel(session, &reason);
                return true;
            }
        }
        // Once for all submissions: calls for the same chain are evaluated together.
        self.act();
        taken > 0
    }

    fn submission(&mut self, session: SessionId, alleged: Alleged) -> Result<(), Broken> {
        let Some(port) = self.sessions.get_mut(session) else {
            return Ok(());
        };
        match alleged.submission(&port.heaps)? {
            Submission::Call {
                method,
                call,
                part,
                block,
                deadline_ns,
            } => self.posted_call(session, method, call, part, block, deadline_ns),
            Submission::Request { call, part, block } => {
                self.posted_request(session, call, part, block)
            }
            Submission::Response {
                call,
                bare,
                block,
                waited_ns,
            } => {
                self.began(session, waited_ns);
                self.posted_response(session, CallKey::from_wire(call), bare, block)
            }
            Submission::RequestCredit { call, credit } => {
                let key = CallKey::from_wire(call);
                self.engine
                    .requests_consumed_by_session(session, key, credit);
                Ok(())
            }
            Submission::ResponseCredit { call, credit } => {
                let origin = Origin::Session { session, call };
                self.engine.responses_consumed(origin, credit);
                Ok(())
            }
            Submission::Reply {
                call,
                block,
                waited_ns,
            } => {
                self.began(session, waited_ns);
                self.posted_reply(session, CallKey::from_wire(call), block)
            }
            Submission::Status {
                call,
                code,
                epilogue,
                waited_ns,
                retry_after_ms,
            } => {
                self.began(session, waited_ns);
                let key = CallKey::from_wire(call);
                let status = Status::new(code, "").with_retry_after_ms(retry_after_ms);
                self.posted_status(session, key, epilogue, status)
            }
            Submission::Cancel { call } => {
                self.engine.cancel(Origin::Session { session, call });
                Ok(())
            }
            Submission::Release(offsets) => {
                for &offset in offsets.as_slice() {
                    port.end.receive_heap.free(offset)?;
                }
                if !port.held.is_empty() {
                    self.hand_held(session);
                }
                Ok(())
            }
        }
    }

    /// An application answers a call that waited this long until its handler began; 0: unknown. The
    /// value affects only calls to the application itself.
    fn began(&mut self, session: SessionId, waited_ns: u64) {
        if waited_ns > 0 {
            self.engine.waited(self.now_ns, session, waited_ns);
        }
    }

    fn posted_call(
        &mut self,
        session: SessionId,
        handle: u32,
        call: u64,
        part: Part,
        block: BlockRef,
        deadline_ns: u64,
    ) -> Result<(), Broken> {
        self.counters.posted += 1;
        let origin = Origin::Session { session, call };
        if let Some(status) = beyond_its_share(
            &self.engine,
            &self.scheduler,
            &self.sessions,
            &self.links,
            self.sessions.tenant_of(session).map(|tenant| &**tenant),
            None,
        ) {
            self.sessions.reclaim_part(session, part.bare, block);
            self.engine.reject(origin, 0, status);
            return Ok(());
        }
        let seen = Seen::by(
            &self.options.tuning.telemetry,
            &self.sessions,
            &self.links,
            &self.services,
            self.now_ns,
        );
        let decision = self.observer.posting(session, block.metadata > 0, seen);
        let mut streams = Streams::default();
        let gathered = self.with_handle(session, handle, |runtime, bound| {
            let Some(bound) = bound.filter(|bound| bound.calls) else {
                let text =
                    format!("the application hasn't bound method handle {handle} to call it");
                return Ok(Err(Status::new(Code::UNIMPLEMENTED, text)));
            };
            bound.method.called();
            streams = bound.method.streams;
            let codec = &bound.method.request;
            if part == Part::ONLY {
                return runtime.gather(session, codec, block, Code::INVALID_ARGUMENT);
            }
            if !streams.requests {
                let text = format!("{} takes exactly one request", bound.method.name);
                return Ok(Err(Status::new(Code::INVALID_ARGUMENT, text)));
            }
            runtime.gather_part(session, codec, part.bare, block, Code::INVALID_ARGUMENT)
        });
        match gathered? {
            Ok(mut message) => {
                if let Some(decision) = decision {
                    let route = self.engine.route_mut(session, handle);
                    let target = route.map(|route| &route.target);
                    let seen = Seen::by(
                        &self.options.tuning.telemetry,
                        &self.sessions,
                        &self.links,
                        &self.services,
                        self.now_ns,
                    );
                    let pool = &mut self.pool;
                    self.observer
                        .posted(origin, target, decision, &mut message, pool, seen);
                }
                let bytes = credit_bytes(&message);
                let message = self.pool.boxed(message);
                self.engine.submit(
                    self.now_ns,
                    session,
                    handle,
                    Posted {
                        origin,
                        deadline_ns,
                        streams: streams.any(),
                        more: part.more,
                        bytes,
                        steering: Steering::default(),
                        message,
                    },
                );
            }
            Err(status) => {
                self.sessions.reclaim_part(session, part.bare, block);
                self.engine.reject(origin, 0, status);
            }
        }
        Ok(())
    }

    fn posted_reply(
        &mut self,
        session: SessionId,
        call: CallKey,
        block: BlockRef,
    ) -> Result<(), Broken> {
        let Some(served) = self.engine.expected_from_session(session, call) else {
            // The call ended meanwhile; the application couldn't know.
            self.sessions.reclaim_block(session, block);
            return Ok(());
        };
        if let Some(link) = served.behind {
            self.engine.put_off(session, call);
            let answer = Kept::PutOff {
                session,
                call,
                block,
            };
            self.keep(link, answer);
            return Ok(());
        }
        match self.gather_reply(session, call, &served, block)? {
            Ok(message) => {
                self.engine.reply_from_session(session, call, message);
            }
            Err(status) => {
                self.engine.fail_from_session(session, call, status);
            }
        }
        Ok(())
    }

    /// The link of a deferred answer has room now.
    pub(crate) fn answer_after_wait(&mut self, session: SessionId, call: CallKey, block: BlockRef) {
        let Some(served) = self.engine.expected_after_wait(session, call) else {
            return self.sessions.reclaim_block(session, block);
        };
        match self.gather_reply(session, call, &served, block) {
            Ok(Ok(message)) => self.engine.reply_after_wait(session, call, message),
            Ok(Err(status)) => self.engine.undeliverable(call, status),
            Err(Broken(reason)) => self.expel(session, &reason),
        }
    }

    /// As [`gather`](Self::gather), for an answer to a call. If there is an error, the block is
    /// returned.
    fn gather_reply(
        &mut self,
        session: SessionId,
        call: CallKey,
        served: &Served,
        block: BlockRef,
    ) -> Result<Result<Box<Message>, Status>, Broken> {
        self.observer.marshals_more();
        let gathered = self.with_served(served.service, served.method, |runtime, method| {
            // If the schemas differ only elsewhere, this isn't the caller's `Method`.
            method.called();
            runtime.gather(session, &method.reply, block, Code::INTERNAL)
        });
        let gathered = gathered.unwrap_or_else(|lost| Ok(Err(lost)))?;
        if gathered.is_err() {
            self.sessions.reclaim_block(session, block);
        }
        Ok(gathered.map(|message| {
            let bytes = message.message_len();
            self.observer
                .marshalled(&self.engine, call, event::MARSHALLED, "reply", bytes);
            self.pool.boxed(message)
        }))
    }

    fn posted_status(
        &mut self,
        session: SessionId,
        call: CallKey,
        epilogue: Option<Epilogue>,
        mut status: Status,
    ) -> Result<(), Broken> {
        let Some(port) = self.sessions.get_mut(session) else {
            return Ok(());
        };
        if let Some(epilogue) = epilogue {
            let heap = &port.end.send_heap;
            let mut text = vec![0; epilogue.text as usize];
            heap.copy_in(epilogue.offset, &mut text)?;
            status.message = String::from_utf8_lossy(&text).into_owned().into();
            let mut trailers = vec![0; epilogue.metadata as usize];
            heap.copy_in(epilogue.metadata_offset(), &mut trailers)?;
            port.reclaim(epilogue.offset);
            if !trailers.is_empty() {
                match Metadata::check_trailers(&trailers) {
                    Ok(_) => status.trailers = trailers,
                    // The status itself is more important than the error in its trailers.
                    Err(MetadataError::Reserved { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.engine.fail_from_session(session, call, status);
        Ok(())
    }

    /// Copies a posted block to private memory, and validates the copy. The inner error is a status
    /// for the caller; `misuse` is its code if the application used a reserved metadata key.
    pub(crate) fn gather(
        &mut self,
        session: SessionId,
        codec: &tollgate_jit::Codec,
        block: BlockRef,
        misuse: Code,
    ) -> Result<Result<Message, Status>, Broken> {
        let Some(port) = self.sessions.get_mut(session) else {
            return Err(Broken("the session has ended".to_owned()));
        };
        let mut inline = self.pool.take(block.len as usize);
        port.end.send_heap.copy_in(block.offset, &mut inline)?;
        self.bytes.send_heap_to_private += u64::from(block.len);
        let mut lens = [0; tollgate_marshal::MAX_EXTENTS];
        let found = codec
            .gather(&inline, &mut lens)
            .map_err(|fault| Broken(codec.explain(&fault)))?;
        if found != usize::from(block.extents) {
            let text = format!(
                "its message refers to {found} extents, its descriptor says {}",
                block.extents
            );
            return Err(Broken(text));
        }
        let mut metadata = Vec::new();
        if block.metadata > 0 {
            metadata = match self.gather_metadata(session, block, misuse)? {
                Ok(metadata) => metadata,
                Err(status) => {
                    self.pool.give(inline);
                    return Ok(Err(status));
                }
            };
        }
        let Some(port) = self.sessions.get_mut(session) else {
            return Err(Broken("the session has ended".to_owned()));
        };
        let source = Source {
            session,
            offset: block.offset,
        };
        if found == 0 {
            port.reclaim(block.offset);
            self.scheduler.add_turn_bytes(block.len as usize);
            let message = Message::accepted(inline, block.len);
            return Ok(Ok(Message {
                metadata,
                ..message
            }));
        }
        let spans = extents_of(port, &block, &lens[..found])?;
        let (_, total_len) = image_layout(inline.len(), spans.iter().map(Span::len));
        if total_len > u64::from(MAX_MESSAGE_BYTES) {
            self.pool.give(inline);
            return Ok(Err(too_large(total_len)));
        }
        self.scheduler.add_turn_bytes(total_len as usize);
        let body = Body::Gathered {
            inline,
            spans,
            source,
        };
        Ok(Ok(Message {
            body,
            inline_len: block.len,
            total_len: total_len as u32,
            metadata,
            bare: false,
        }))
    }

    /// Copies the metadata behind a posted block to private memory, and checks the copy. Errors are
    /// as those of [`gather`](Self::gather).
    pub(crate) fn gather_metadata(
        &mut self,
        session: SessionId,
        block: BlockRef,
        misuse: Code,
    ) -> Result<Result<Vec<u8>, Status>, Broken> {
        let Some(port) = self.sessions.get_mut(session) else {
            return Err(Broken("the session has ended".to_owned()));
        };
        let mut metadata = self.pool.take(block.metadata as usize);
        port.end
            .send_heap
            .copy_in(block.metadata_offset(), &mut metadata)?;
        match Metadata::check_application(&metadata) {
            Ok(_) => Ok(Ok(metadata)),
            Err(error @ MetadataError::Reserved { .. }) => {
                Ok(Err(Status::new(misuse, error.to_string())))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads a block's table of extents, once, and checks it against the lengths that the block states.
fn extents_of(port: &SessionPort, block: &BlockRef, lens: &[u32]) -> Result<Vec<Span>, Broken> {
    let mut table = [0; tollgate_marshal::MAX_EXTENTS * EXTENT_ENTRY_BYTES];
    let table = &mut table[..block.table_len()];
    port.end.send_heap.copy_in(block.table_offset(), table)?;
    let (entries, _) = table.as_chunks::<EXTENT_ENTRY_BYTES>();
    let mut spans = Vec::with_capacity(lens.len());
    for (entry, &len) in entries.iter().zip(lens) {
        let extent = Extent::check(entry, port.heaps.send)?;
        if extent.len != len {
            let text = format!(
                "an extent has {} bytes in the table, {len} in the message",
                extent.len
            );
            return Err(Broken(text));
        }
        spans.push(
            port.end
                .send_heap
                .span(extent.offset, extent.len as usize)?,
        );
    }
    Ok(spans)
}

fn too_large(bytes: u64) -> Status {
    let text = format!("the message has {bytes} bytes, the limit is {MAX_MESSAGE_BYTES}");
    Status::new(Code::RESOURCE_EXHAUSTED, text)
}

/// Why no further call of a tenant is tracked, if none is. `from` is the link that has its
/// turn; it isn't in its place. Until the engine has as many calls as one tenant may have, this
/// costs nothing.
pub(crate) fn beyond_its_share(
    engine: &Engine<Box<Message>>,
    scheduler: &Scheduler,
    sessions: &Sessions,
    links: &Links,
    tenant: Option<&str>,
    from: Option<LinkId>,
) -> Option<Status> {
    if engine.live_calls() < MAX_CALLS_PER_TENANT {
        return None;
    }
    let tenant = tenant?;
    let flow = scheduler.known(tenant)?;
    let sessions = sessions.iter();
    let sessions = sessions.filter(|port| port.flow == flow);
    let sessions = sessions.map(|port| engine.outstanding(port.id) as usize);
    let links = links.iter();
    let links = links.filter(|(_, port)| port.state.flow == flow);
    let links = links.map(|(link, _)| link).chain(from);
    let links = links.map(|link| engine.called_by(link));
    let count: usize = sessions.chain(links).sum();
    (count >= MAX_CALLS_PER_TENANT).then(|| {
        let text = format!(
            "tenant {tenant} has {count} calls in flight on this runtime, which is the limit of one tenant"
        );
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    })
}

/// Finds methods by their handles.
impl Runtime {
    /// Calls `work` with a method handle, if it exists. Meanwhile the session has no handles:
    /// counting a reference to the method would take longer than putting the handles back.
    pub(crate) fn with_handle<R>(
        &mut self,
        session: SessionId,
        handle: u32,
        work: impl FnOnce(&mut Self, Option<&Handle>) -> R,
    ) -> R {
        let handles = self.sessions.lend_handles(session);
        let done = work(self, handles.get(handle as usize));
        self.sessions.return_handles(session, handles);
        done
    }

    /// As [`with_handle`](Self::with_handle), with a method that is served here. Services stay, so
    /// it exists.
    pub(crate) fn with_served<R>(
        &mut self,
        service: ServiceId,
        method: u16,
        work: impl FnOnce(&mut Self, &Arc<Method>) -> R,
    ) -> Result<R, Status> {
        let services = std::mem::take(&mut self.services);
        let its = services.method(service, method);
        let done = its.map(|method| work(self, method));
        self.services = services;
        let text = "the daemon lost a method that it serves";
        done.ok_or_else(|| Status::new(Code::INTERNAL, text))
    }
}

impl SessionPort {
    /// Adds handles for the methods of a schema, behind the existing ones.
    pub(crate) fn add_handles(&mut self, schema: &Arc<ServiceSchema>, calls: bool) {
        let methods = schema.methods.iter().map(Arc::clone);
        let handles = methods.map(|method| Handle { method, calls });
        self.handles.extend(handles);
        self.bound.push((Arc::clone(schema), calls));
    }

    pub(crate) fn report(&self, engine: &Engine<Box<Message>>) -> SessionReport {
        let serving = engine.serving(self.id);
        SessionReport {
            session: self.id.0,
            tenant: self.who.tenant.to_string(),
            app: self.who.app.clone(),
            pid: self.who.pid,
            outstanding: engine.outstanding(self.id),
            serving: serving.calls,
            serving_limit: serving.limit,
            serving_refused: serving.refused,
            send_heap_bytes: self.heaps.send,
            receive_heap_bytes: self.end.receive_heap.len_bytes(),
            receive_heap_used: self.end.receive_heap.in_use(),
            methods: self.handles.len(),
        }
    }
}
