//! Makes an application's own spans the parents of its calls and of its handlers' work, with
//! OpenTelemetry's API or with `tracing`.
//!
//! ```text
//!   an application's span ─▶ client span ─▶ server span ─▶ spans of the handler ─▶ client span of a call that it makes ─▶ ...
//!                 channel()                         service()                channel()
//! ```
//!
//! The daemons make the client span and the server span of every call, and carry the context from
//! one to the other. [`channel`] sets the parent of the client span; [`service`] makes the server
//! span the parent of the handler's work. A program calls each once, where it begins:
//!
//! ```
//! # use tollgate_conformance::{backstage::{Backstage, Hotel}, hotel};
//! # let backstage = Backstage::new();
//! # let (session, serving) = (backstage.session(), backstage.session());
//! # let hotel = Hotel::default();
//! # use hotel::{ReserveRequest, reservation_client::ReservationClient, reservation_server::ReservationServer};
//! use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer};
//! use opentelemetry::{Context, global};
//! use tollgate::{Channel, Server, block_on};
//!
//! let service = tollgate_opentelemetry::service(ReservationServer::new(hotel));
//! let server = Server::new(&serving).add_service(service.with_tracer(global::tracer("hotel")));
//! block_on(&serving, server.bind())?;
//! let client = ReservationClient::new(tollgate_opentelemetry::channel(Channel::new(&session, "")));
//!
//! // This call is a child of `book`; the handler's work is below it.
//! let book = Context::current_with_span(global::tracer("guest").start("book"));
//! let call = client.reserve(ReserveRequest { room_count: 1, ..Default::default() });
//! let reply = block_on(&session, call.with_context(book))?;
//! # assert_eq!(reply.get_ref().view().reservation_id(), 1);
//! # Ok::<(), tollgate::Status>(())
//! ```
//!
//! # With `tracing`
//!
//! The same two functions suffice: [`tracing-opentelemetry`](https://docs.rs/tracing-opentelemetry)
//! makes the entered span OpenTelemetry's current one (from 0.32 on, unless its layer was
//! configured with `with_context_activation(false)`), and takes that as the parent of the next. So
//! put `#[instrument]` on handlers' methods and on functions that make calls.
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # let backstage = Backstage::with_hotel();
//! # let session = backstage.session();
//! # use hotel::{ReserveRequest, reservation_client::ReservationClient};
//! # use tollgate::{Channel, Status, block_on};
//! #[tracing::instrument(skip_all)]
//! async fn book(client: &ReservationClient) -> Result<u64, Status> {
//!     let reply = client.reserve(ReserveRequest { room_count: 1, ..Default::default() }).await?;
//!     Ok(reply.get_ref().view().reservation_id())
//! }
//!
//! let client = ReservationClient::new(tollgate_opentelemetry::channel(Channel::new(&session, "")));
//! assert_eq!(block_on(&session, book(&client))?, 1);
//! # Ok::<(), Status>(())
//! ```
//!
//! # Rules
//!
//! - W3C's trace context is written and read whatever propagator the application has, since daemons
//!   know no other format. Further fields, such as baggage, go with it if the application has a
//!   propagator for them ([`opentelemetry::global::set_text_map_propagator`]).
//! - A context that isn't sampled is passed on as not sampled. Without a current span nothing is
//!   sent.
//! - Metadata that the call already has stays: an explicit `traceparent` takes precedence. No call
//!   fails because of its trace: a field without room in the metadata isn't sent.
//! - A handler's context is the one that came with its call and no other: never a span that is
//!   current where the session is driven. If the context that came is malformed, there is none.
//! - Wrap with [`Workers`](tollgate::Workers) last, `workers.serve(service(...))`: the context is
//!   current on the thread that polls the handler.
//!
//! Absent: spans of calls, which the daemons make. If metadata is given without a [`Channel`], as
//! to [`Session::call_raw`](tollgate::Session::call_raw), use [`inject`] and [`extract`].

#![forbid(unsafe_code)]

mod w3c;

use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::{FutureExt as _, Span, SpanKind, TraceContextExt as _, Tracer};
use opentelemetry::{Context, KeyValue};
use tollgate::{Channel, HandlerFuture, Incoming, Metadata, MetadataMap, Service, ServiceInfo};
use w3c::{TRACEPARENT, TRACESTATE};

/// A channel whose calls are children of the span that is current at their first poll.
pub fn channel(channel: Channel) -> Channel {
    channel.with_interceptor(|metadata| {
        inject(&Context::current(), metadata);
        Ok(())
    })
}

/// A service whose handlers run in the context that came with their call.
pub fn service<S: Service>(service: S) -> Traced<S> {
    Traced {
        service,
        tracer: None,
    }
}

/// Adds a context to a call's metadata, unless the metadata already has one.
pub fn inject(context: &Context, metadata: &mut MetadataMap) {
    // The context comes first: it must fit before the application's fields.
    if !metadata.contains_key(TRACEPARENT) {
        let span = context.span();
        let span = span.span_context();
        let parent = w3c::parent_of(span);
        if parent.is_some_and(|parent| add(metadata, TRACEPARENT, &parent)) {
            add(metadata, TRACESTATE, &span.trace_state().header());
        }
    }
    global::get_text_map_propagator(|others| {
        others.inject_context(context, &mut Fields(metadata));
    });
}

/// The context that came with a call; without a span if none came.
pub fn extract(metadata: &MetadataMap) -> Context {
    context_of(metadata.as_buf().view())
}

fn context_of(metadata: Metadata<'_>) -> Context {
    let context = Context::new();
    if metadata.is_empty() {
        return context;
    }
    // A propagator that nobody has set returns the current context, not the given one.
    let _nothing = context.clone().attach();
    let came = Came(metadata);
    let context =
        global::get_text_map_propagator(|others| others.extract_with_context(&context, &came));
    let parent = came.text(TRACEPARENT);
    match parent.and_then(|parent| w3c::read(parent, came.text(TRACESTATE))) {
        Some(parent) => context.with_remote_span_context(parent),
        None => context,
    }
}

/// Adds a pair. False if the key exists, the pair isn't valid metadata, or there is no room.
fn add(metadata: &mut MetadataMap, key: &str, value: &str) -> bool {
    !value.is_empty() && !metadata.contains_key(key) && metadata.insert(key, value).is_ok()
}

/// Whether the key is reserved for this crate; the application's propagators must not touch it.
fn is_ours(key: &str) -> bool {
    [TRACEPARENT, TRACESTATE].contains(&key)
}

/// The target of the application's propagators.
struct Fields<'m>(&'m mut MetadataMap);

impl Injector for Fields<'_> {
    fn set(&mut self, key: &str, value: String) {
        let key = key.to_ascii_lowercase();
        if !is_ours(&key) {
            add(self.0, &key, &value);
        }
    }
}

/// The source of the application's propagators.
struct Came<'m>(Metadata<'m>);

impl<'m> Came<'m> {
    fn text(&self, key: &str) -> Option<&'m str> {
        std::str::from_utf8(self.0.get(key)?).ok()
    }
}

impl Extractor for Came<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let key = key.to_ascii_lowercase();
        self.text(&key).filter(|_| !is_ours(&key))
    }

    fn keys(&self) -> Vec<&str> {
        let keys = self.0.iter().map(|(key, _)| key);
        keys.filter(|key| !is_ours(key)).collect()
    }
}

/// A service whose handlers run in the context that came with their call; see [`service`].
#[derive(Debug)]
pub struct Traced<S> {
    service: S,
    tracer: Option<BoxedTracer>,
}

impl<S: Service> Traced<S> {
    /// Runs each handler also in a span of this tracer, named after its method. The span is
    /// internal: the call's server span is the daemon's.
    pub fn with_tracer<T>(self, tracer: T) -> Traced<S>
    where
        T: Tracer + Send + Sync + 'static,
        T::Span: Span + Send + Sync + 'static,
    {
        Traced {
            tracer: Some(BoxedTracer::new(Box::new(tracer))),
            ..self
        }
    }

    fn begin(&self, tracer: &BoxedTracer, method: usize, came: &Context) -> Context {
        let info = self.service.info();
        // Without generated code, a method may have no name here.
        let name = match info.methods.get(method) {
            Some(method) => format!("{}/{method}", info.name),
            None => info.name.to_owned(),
        };
        let span = tracer
            .span_builder(name.clone())
            .with_kind(SpanKind::Internal)
            .with_attributes([
                KeyValue::new("rpc.system.name", "tollgate"),
                KeyValue::new("rpc.method", name),
            ]);
        came.with_span(span.start_with_context(tracer, came))
    }
}

impl<S: Service> Service for Traced<S> {
    fn info(&self) -> ServiceInfo<'_> {
        self.service.info()
    }

    fn call(&self, method: usize, call: Incoming) -> HandlerFuture {
        let mut context = context_of(call.request.metadata().view());
        let mut ends = None;
        if let Some(tracer) = &self.tracer {
            context = self.begin(tracer, method, &context);
            ends = Some(EndsWith(context.clone()));
        }
        // Some handlers work before their first poll.
        let attached = context.clone().attach();
        let handler = self.service.call(method, call);
        drop(attached);
        let handler = async move {
            let _ends = ends;
            handler.await;
        };
        Box::pin(handler.with_context(context))
    }
}

/// Ends the handler's span with the handler, even if the handler is dropped or its context lives
/// on.
struct EndsWith(Context);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.span().end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use opentelemetry::trace::SpanContext;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn context(state: &str) -> Context {
        Context::new().with_remote_span_context(w3c::read(PARENT, Some(state)).unwrap())
    }

    fn span_of(context: &Context) -> SpanContext {
        context.span().span_context().clone()
    }

    #[test]
    fn what_is_injected_is_extracted() {
        for (state, pairs) in [("", 1), ("vendor=1", 2)] {
            let mut metadata = MetadataMap::new();
            inject(&context(state), &mut metadata);
            assert_eq!(metadata.get(TRACEPARENT), Some(PARENT));
            assert_eq!(metadata.len(), pairs);
            assert_eq!(span_of(&extract(&metadata)), span_of(&context(state)));
        }
        let mut metadata = MetadataMap::new();
        inject(&Context::new(), &mut metadata);
        assert!(
            metadata.is_empty(),
            "without a span there is nothing to say"
        );
        assert!(!extract(&metadata).has_active_span());
    }

    #[test]
    fn what_is_there_stays() {
        let mut metadata = MetadataMap::new();
        metadata.insert(TRACEPARENT, "mine").unwrap();
        inject(&context("vendor=1"), &mut metadata);
        assert_eq!(metadata.get(TRACEPARENT), Some("mine"));
        assert_eq!(metadata.len(), 1, "no state without its parent");
        let context = extract(&metadata);
        assert!(!context.has_active_span(), "and what is none is no parent");
    }

    /// Nobody sets a propagator here, as in most programs.
    #[test]
    fn what_is_current_is_not_what_came() {
        let _attached = context("").attach();
        let mut metadata = MetadataMap::new();
        assert!(!extract(&metadata).has_active_span());
        metadata.insert("user", "Ada").unwrap();
        assert!(!extract(&metadata).has_active_span());
        metadata.insert(TRACEPARENT, "nonsense").unwrap();
        assert!(!extract(&metadata).has_active_span());
        assert_eq!(span_of(&Context::current()), span_of(&context("")));
    }

    #[test]
    fn what_there_is_no_room_for_is_left_out() {
        // Room for all of the state, for part of it, and not even for the parent.
        for (free, added) in [(512, 2), (80, 1), (20, 0)] {
            let mut metadata = MetadataMap::new();
            let full = (0..8 * 1024).rev().find(|&len| {
                let filled = metadata.insert("filler", &"x".repeat(len));
                filled.is_ok()
            });
            metadata
                .insert("filler", &"x".repeat(full.unwrap() - free))
                .unwrap();
            let state = format!("vendor={}", "y".repeat(200));
            inject(&context(&state), &mut metadata);
            assert_eq!(metadata.len(), 1 + added, "{free}");
        }
        // Invalid metadata isn't added either.
        let mut metadata = MetadataMap::new();
        inject(&context("vendor=\u{e9}"), &mut metadata);
        assert_eq!(metadata.len(), 1);
        assert_eq!(metadata.get(TRACEPARENT), Some(PARENT));
    }
}
