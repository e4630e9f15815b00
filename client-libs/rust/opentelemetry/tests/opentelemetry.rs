//! An application's own spans and the daemons' spans form one trace: `tollgate-opentelemetry`
//! between real daemons, with OpenTelemetry's SDK behind it.
//!
//! ```text
//!   application on a ─▶ a's client span ─▶ b's server span ─▶ the handler on b ─▶ b's client span ─▶ a's server span ─▶ a server on a
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream};
use opentelemetry::baggage::BaggageExt as _;
use opentelemetry::trace::{
    FutureExt as _, SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use serde_json::Value;
use tollgate::{
    Channel, Code, Incoming, MetadataMap, Received, Reply, Request, Response, Server, Service,
    ServiceInfo, Session, SessionOptions, Status, Streaming, Workers, block_on,
};
use tollgate_conformance::backstage::Backstage;
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::interop::{
    Answer, Ask, SEMANTICS, Semantics, SemanticsClient, SemanticsServer, Server as Echoing,
};
use tollgate_conformance::testbed::{Daemon, Options, SOON, eventually};
use tollgate_opentelemetry::{channel, extract, service};
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// The spans that an application's SDK exports.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl Spans {
    /// A tracer that exports to these spans.
    fn tracer(&self) -> SdkTracer {
        let provider = SdkTracerProvider::builder().with_simple_exporter(self.clone());
        provider.build().tracer("application")
    }

    fn all(&self) -> Vec<SpanData> {
        self.0.lock().unwrap().clone()
    }

    /// The spans of one trace.
    fn of(&self, trace: &str) -> Vec<SpanData> {
        let mut spans = self.all();
        spans.retain(|span| span.span_context.trace_id().to_string() == trace);
        spans
    }
}

/// A context with a foreign span as the parent.
fn within(flags: TraceFlags, state: &str) -> Context {
    within_trace(TRACE, flags, state)
}

fn within_trace(trace: &str, flags: TraceFlags, state: &str) -> Context {
    let trace = TraceId::from_hex(trace).unwrap();
    let (span, state) = (SpanId::from_hex(SPAN).unwrap(), state.parse::<TraceState>());
    let span = SpanContext::new(trace, span, flags, false, state.unwrap());
    Context::new().with_remote_span_context(span)
}

/// The current span, written as `traceparent`.
fn current() -> Option<String> {
    let mut metadata = MetadataMap::new();
    tollgate_opentelemetry::inject(&Context::current(), &mut metadata);
    metadata.get("traceparent").map(str::to_owned)
}

/// The ids of a `traceparent`, and its flags.
fn parts(parent: &str) -> [&str; 3] {
    let parts: Vec<_> = parent.split('-').collect();
    let ["00", trace, span, flags] = parts[..] else {
        panic!("{parent}");
    };
    [trace, span, flags]
}

fn ask(number: u64) -> Ask {
    Ask {
        number,
        responses: 1,
        echo: vec!["traceparent".to_owned()],
        ..Ask::default()
    }
}

/// Two hosts whose daemons begin no traces.
fn hosts() -> Hosts {
    Hosts::with(&Options {
        config: "[telemetry]\nsample_per_million = 0\n".to_owned(),
        ..Options::default()
    })
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

fn serve(session: &Session, service: impl Service) {
    let server = Server::new(session).add_service(service);
    block_on(session, server.bind()).unwrap();
}

/// A daemon's spans of a trace, as (span, parent).
fn spans_of(daemon: &Daemon, trace: &str, side: &str) -> Vec<(String, String)> {
    let shown = daemon.run(&format!("trace {trace} --json"));
    if shown.code != 0 {
        assert!(shown.err.contains("no span of"), "{shown}");
        return Vec::new();
    }
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    let spans = shown["spans"].as_array().unwrap().iter();
    let spans = spans.filter(|span| span["side"] == side);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    spans
        .map(|span| (text(&span["span"]), text(&span["parent"])))
        .collect()
}

/// Its handler calls a further server and returns the answer, with the metadata that the server
/// saw.
struct Relay {
    onward: SemanticsClient,
    /// Also records the current span after the answer.
    seen: Arc<Mutex<Vec<[Option<String>; 2]>>>,
}

impl Relay {
    async fn relay(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        let before = current();
        let answer = self.onward.unary(request.get_ref().to_owned()).await?;
        self.seen.lock().unwrap().push([before, current()]);
        let mut response = Response::new(answer.get_ref().to_owned());
        *response.metadata_mut() = answer.metadata().clone();
        Ok(response)
    }
}

/// The rest of the service, for implementations that don't need it.
macro_rules! nothing_else {
    () => {
        async fn collect(&self, _: Request<Streaming<Ask>>) -> Reply<Answer> {
            Err(Status::new(Code::UNIMPLEMENTED, ""))
        }
        type SpreadStream = BoxStream<'static, Result<Answer, Status>>;
        async fn spread(&self, _: Request<Received<Ask>>) -> Reply<Self::SpreadStream> {
            Err(Status::new(Code::UNIMPLEMENTED, ""))
        }
        type ChatStream = BoxStream<'static, Result<Answer, Status>>;
        async fn chat(&self, _: Request<Streaming<Ask>>) -> Reply<Self::ChatStream> {
            Err(Status::new(Code::UNIMPLEMENTED, ""))
        }
    };
}

impl Semantics for Relay {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        self.relay(request).await
    }
    nothing_else!();
}

/// The same with `tracing`.
struct TracingRelay(Relay);

impl Semantics for TracingRelay {
    #[tracing::instrument(skip_all, name = "handler")]
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        self.0.relay(request).await
    }
    nothing_else!();
}

/// A client on `a`, a relay on `b` that `with` turns into a service, and the last server on `a`.
struct Chain {
    hosts: Hosts,
    session: Session,
    client: SemanticsClient,
    seen: Arc<Mutex<Vec<[Option<String>; 2]>>>,
    _others: [Session; 2],
}

impl Chain {
    fn new<S: Service>(with: impl FnOnce(Relay) -> S) -> Chain {
        let hosts = hosts();
        let [a, b] = &hosts.tokens;
        let [asked, relaying, session] = [open(&hosts.a, a), open(&hosts.b, b), open(&hosts.a, a)];
        serve(&asked, SemanticsServer::new(Echoing));
        let onward = Channel::new(&relaying, &hosts.a.listen().to_string());
        let seen = Arc::default();
        let relay = Relay {
            onward: SemanticsClient::new(channel(onward)),
            seen: Arc::clone(&seen),
        };
        serve(&relaying, with(relay));
        let to_b = Channel::new(&session, &hosts.b.listen().to_string());
        Chain {
            client: SemanticsClient::new(channel(to_b)),
            seen,
            session,
            _others: [asked, relaying],
            hosts,
        }
    }

    /// Calls once; returns the `traceparent` that the last server saw.
    fn ask(&self, context: Context) -> Option<String> {
        let asked = self.client.unary(ask(7)).with_context(context);
        let answer = block_on(&self.session, asked).unwrap();
        assert_eq!(answer.get_ref().view().number(), 7);
        answer.metadata().get("traceparent").map(str::to_owned)
    }

    /// Checks all spans between the application's and the last server's; `spans` are the
    /// applications'.
    fn check(&self, trace: &str, spans: &[SpanData], heard: &str) {
        let of = |daemon, side| {
            let found = || spans_of(daemon, trace, side);
            let there = eventually(SOON, || !found().is_empty());
            let found = found();
            assert_eq!(found.len(), 1, "{side} spans: {found:?} {there:?}");
            found.into_iter().next().unwrap()
        };
        let named = |name: &str| {
            let mut found = spans.iter().filter(|span| span.name == name);
            let span = found.next().unwrap_or_else(|| panic!("{name}: {spans:?}"));
            assert!(found.next().is_none(), "{name}: {spans:?}");
            let own = span.span_context.span_id().to_string();
            (own, span.parent_span_id.to_string())
        };
        let chain = [
            named("guest"),
            of(&self.hosts.a, "client"),
            of(&self.hosts.b, "server"),
            named("handler"),
            of(&self.hosts.b, "client"),
            of(&self.hosts.a, "server"),
        ];
        for pair in chain.windows(2) {
            assert_eq!(pair[1].1, pair[0].0, "{chain:?}");
        }
        assert_eq!(spans.len(), 2, "{spans:?}");
        assert_eq!(parts(heard), [trace, &*chain[5].0, "01"]);
    }
}

#[test]
fn spans_of_applications_and_daemons_are_one_trace() {
    let spans = Spans::default();
    let tracer = spans.tracer();
    let chain =
        Chain::new(|relay| service(SemanticsServer::new(relay)).with_tracer(spans.tracer()));
    let guest = Context::new().with_span(tracer.start("guest"));
    let trace = guest.span().span_context().trace_id().to_string();
    let heard = chain.ask(guest.clone()).unwrap();
    guest.span().end();
    eventually(SOON, || spans.all().len() == 2).unwrap();
    let mut exported = spans.all();
    let handler = exported
        .iter_mut()
        .find(|span| span.name != "guest")
        .unwrap();
    // Its server span is the daemon's, so this span isn't a server span.
    assert_eq!(handler.span_kind, SpanKind::Internal);
    assert!(handler.parent_span_is_remote);
    let method = KeyValue::new("rpc.method", "interop.Semantics/Unary");
    assert!(handler.attributes.contains(&method), "{handler:?}");
    assert_eq!(handler.name, "interop.Semantics/Unary");
    handler.name = "handler".into();
    chain.check(&trace, &exported, &heard);
}

#[test]
fn spans_of_tracing_are_parents_and_children_too() {
    let spans = Spans::default();
    let layer = tracing_opentelemetry::layer().with_tracer(spans.tracer());
    let subscriber = tracing_subscriber::registry().with(layer);
    // Handlers run on a different thread.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    for on_workers in [false, true] {
        let chain = Chain::new(|relay| {
            let relay = service(SemanticsServer::new(TracingRelay(relay)));
            match on_workers {
                true => Either::Left(Workers::start(2).unwrap().serve(relay)),
                false => Either::Right(relay),
            }
        });
        let (heard, trace) = {
            let guest = tracing::info_span!("guest");
            let call = async {
                let answer = chain.client.unary(ask(7)).await.unwrap();
                let heard = answer.metadata().get("traceparent").unwrap().to_owned();
                (heard, current().unwrap())
            };
            block_on(&chain.session, call.instrument(guest))
        };
        let [trace, ..] = parts(&trace);
        eventually(SOON, || spans.of(trace).len() == 2).unwrap();
        chain.check(trace, &spans.of(trace), &heard);
    }
}

/// One of two services.
enum Either<L, R> {
    Left(L),
    Right(R),
}

impl<L: Service, R: Service> Service for Either<L, R> {
    fn info(&self) -> ServiceInfo<'_> {
        match self {
            Either::Left(left) => left.info(),
            Either::Right(right) => right.info(),
        }
    }

    fn call(&self, method: usize, call: Incoming) -> tollgate::HandlerFuture {
        match self {
            Either::Left(left) => left.call(method, call),
            Either::Right(right) => right.call(method, call),
        }
    }
}

#[test]
fn what_is_not_sampled_is_passed_on_as_such() {
    let spans = Spans::default();
    let chain =
        Chain::new(|relay| service(SemanticsServer::new(relay)).with_tracer(spans.tracer()));
    let heard = chain
        .ask(within(TraceFlags::NOT_SAMPLED, "vendor=1"))
        .unwrap();
    // It is the handler's span: the SDK gives it an id even if it isn't recorded.
    let [trace, span, flags] = parts(&heard);
    assert_eq!((trace, flags), (TRACE, "00"));
    assert_ne!(span, SPAN);
    // The same without spans of the handler: the incoming context is passed on.
    let chain = Chain::new(|relay| service(SemanticsServer::new(relay)));
    let heard = chain.ask(within(TraceFlags::NOT_SAMPLED, "")).unwrap();
    assert_eq!(parts(&heard), [TRACE, SPAN, "00"]);
    // A later, sampled call marks the point up to which spans have arrived.
    let sampled = within(TraceFlags::SAMPLED, "");
    assert_eq!(parts(&chain.ask(sampled).unwrap())[2], "01");
    for (daemon, side) in [(&chain.hosts.a, "client"), (&chain.hosts.b, "server")] {
        let found = spans_of(daemon, TRACE, side);
        assert_eq!(
            found.len(),
            1,
            "only the sampled one is recorded: {found:?}"
        );
    }
    assert_eq!(spans.all().len(), 0);
}

#[test]
fn without_a_span_nothing_is_sent() {
    let chain = Chain::new(|relay| service(SemanticsServer::new(relay)));
    assert_eq!(chain.ask(Context::new()), None);
    assert_eq!(*chain.seen.lock().unwrap(), [[None, None]]);
    // If handlers have a tracer, traces begin there.
    let spans = Spans::default();
    let chain =
        Chain::new(|relay| service(SemanticsServer::new(relay)).with_tracer(spans.tracer()));
    let heard = chain.ask(Context::new()).unwrap();
    eventually(SOON, || spans.all().len() == 1).unwrap();
    let span = &spans.all()[0];
    assert_eq!(span.parent_span_id, SpanId::INVALID);
    assert_eq!(parts(&heard)[0], span.span_context.trace_id().to_string());
}

/// The traces of handlers that take turns on one thread stay apart.
#[test]
fn each_call_has_a_context_of_its_own() {
    let chain = Chain::new(|relay| service(SemanticsServer::new(relay)));
    let traces: Vec<_> = (1..=20).map(|n| format!("{n:032x}")).collect();
    let calls = traces.iter().map(|trace| {
        let context = within_trace(trace, TraceFlags::SAMPLED, "");
        chain.client.unary(ask(7)).with_context(context)
    });
    let answers = block_on(&chain.session, join_all(calls));
    for (answer, trace) in answers.iter().zip(&traces) {
        let metadata = answer.as_ref().unwrap().metadata();
        assert_eq!(parts(metadata.get("traceparent").unwrap())[0], trace);
    }
    let seen = chain.seen.lock().unwrap();
    assert_eq!(seen.len(), traces.len());
    for [before, after] in seen.iter() {
        assert!(before.is_some());
        assert_eq!(before, after, "also after it has waited");
    }
}

/// A handler's finding: its place, the metadata's context, and the current context.
type Note = (&'static str, Option<String>, Option<String>);

/// Records the findings of handlers of all kinds.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Vec<Note>>>);

impl Witness {
    fn note(&self, place: &'static str, metadata: &MetadataMap) {
        let came = metadata.get("traceparent").map(str::to_owned);
        self.0.lock().unwrap().push((place, came, current()));
    }

    fn take(&self) -> Vec<Note> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// A response that is made when it is polled.
    fn later(&self, place: &'static str, metadata: MetadataMap) -> <Self as Semantics>::ChatStream {
        let witness = self.clone();
        Box::pin(stream::once(async move {
            witness.note(place, &metadata);
            Ok(Answer::default())
        }))
    }
}

impl Semantics for Witness {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        self.note("unary", request.metadata());
        Ok(Response::new(Answer::default()))
    }

    async fn collect(&self, request: Request<Streaming<Ask>>) -> Reply<Answer> {
        let (metadata, mut asks) = request.into_parts();
        while asks.message().await?.is_some() {}
        self.note("collect", &metadata);
        Ok(Response::new(Answer::default()))
    }

    type SpreadStream = Pin<Box<dyn tollgate::Stream<Item = Result<Answer, Status>> + Send>>;

    async fn spread(&self, request: Request<Received<Ask>>) -> Reply<Self::SpreadStream> {
        self.note("spread", request.metadata());
        let answers = self.later("spread's answer", request.metadata().clone());
        Ok(Response::new(answers))
    }

    type ChatStream = Self::SpreadStream;

    async fn chat(&self, request: Request<Streaming<Ask>>) -> Reply<Self::ChatStream> {
        let (metadata, mut asks) = request.into_parts();
        while asks.message().await?.is_some() {}
        self.note("chat", &metadata);
        Ok(Response::new(self.later("chat's answer", metadata)))
    }
}

#[test]
fn streams_are_in_the_trace_like_other_calls() {
    let hosts = hosts();
    let [serving, session] = [
        open(&hosts.b, &hosts.tokens[1]),
        open(&hosts.a, &hosts.tokens[0]),
    ];
    let witness = Witness::default();
    serve(&serving, service(SemanticsServer::new(witness.clone())));
    let to_b = Channel::new(&session, &hosts.b.listen().to_string());
    let client = SemanticsClient::new(channel(to_b));
    let asks = || stream::iter([ask(1), ask(2)]);
    let calls = async {
        client.unary(ask(1)).await?;
        client.collect(asks()).await?;
        let mut answers = client.spread(ask(1)).await?.into_inner();
        while answers.message().await?.is_some() {}
        let mut answers = client.chat(asks()).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    let context = within(TraceFlags::SAMPLED, "");
    block_on(&session, calls.with_context(context)).unwrap();
    let notes = witness.take();
    let places: Vec<_> = notes.iter().map(|(place, ..)| *place).collect();
    assert_eq!(
        places,
        [
            "unary",
            "collect",
            "spread",
            "spread's answer",
            "chat",
            "chat's answer"
        ]
    );
    for (place, came, current) in &notes {
        assert_eq!(parts(came.as_ref().unwrap())[0], TRACE, "{place}");
        assert_eq!(current, came, "{place}");
    }
    // Four calls, four pairs of spans.
    let parents = spans_of(&hosts.a, TRACE, "client");
    assert_eq!(parents.len(), 4);
    assert!(
        parents.iter().all(|(_, parent)| parent == SPAN),
        "{parents:?}"
    );
}

#[test]
fn callers_say_otherwise_and_strangers_say_nonsense() {
    let hosts = hosts();
    let session = open(&hosts.a, &hosts.tokens[0]);
    let witness = Witness::default();
    // Both ends are on one session: handlers run where another context is current.
    serve(&session, service(SemanticsServer::new(witness.clone())));
    let to_itself = Channel::new(&session, "");
    let traced = SemanticsClient::new(channel(to_itself.clone()));
    let plain = SemanticsClient::new(to_itself);
    let guest = within(TraceFlags::NOT_SAMPLED, "vendor=1");
    let _attached = guest.attach();
    let heard = |client: &SemanticsClient, pairs: &[(&str, &str)]| {
        let mut request = Request::new(ask(7));
        for (key, value) in pairs {
            request.metadata_mut().insert(key, value).unwrap();
        }
        block_on(&session, client.unary(request)).unwrap();
        let [(_, came, current)] = &witness.take()[..] else {
            panic!("one call");
        };
        (came.clone(), current.clone())
    };
    let own = format!("00-{TRACE}-{SPAN}-00");
    assert_eq!(heard(&traced, &[]), (Some(own.clone()), Some(own.clone())));
    let explicit = own.replace(TRACE, "0af7651916cd43dd8448eb211c80319c");
    let stays = heard(&traced, &[("traceparent", &explicit)]);
    assert_eq!(stays, (Some(explicit.clone()), Some(explicit)));
    for nonsense in [
        "0-1-1-1",
        "nonsense",
        &own.replace(SPAN, "0000000000000000"),
    ] {
        let stays = heard(&traced, &[("traceparent", nonsense)]);
        assert_eq!(stays, (Some(nonsense.to_owned()), None));
    }
    assert_eq!(heard(&plain, &[]), (None, None));
}

/// Further fields use the application's own propagators, which don't affect the daemons' fields.
#[test]
fn baggage_goes_if_the_application_wants_it() {
    struct Porter(Arc<Mutex<Vec<[Option<String>; 2]>>>);
    impl Semantics for Porter {
        async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
            let context = Context::current();
            let guest = context.baggage().get("guest").map(ToString::to_string);
            self.0.lock().unwrap().push([guest, current()]);
            let again = extract(request.metadata());
            assert_eq!(again.span().span_context(), context.span().span_context());
            Ok(Response::new(Answer::default()))
        }
        nothing_else!();
    }
    let backstage = Backstage::new();
    let (session, seen) = (backstage.session(), Arc::default());
    serve(
        &session,
        service(SemanticsServer::new(Porter(Arc::clone(&seen)))),
    );
    let client = SemanticsClient::new(channel(Channel::new(&session, "")));
    let go = |context: Context, parent: Option<&str>| {
        let mut request = Request::new(ask(7));
        if let Some(parent) = parent {
            request
                .metadata_mut()
                .insert("traceparent", parent)
                .unwrap();
        }
        block_on(&session, client.unary(request).with_context(context)).unwrap();
    };
    let guest = within(TraceFlags::NOT_SAMPLED, "");
    let guest = guest.with_baggage([KeyValue::new("guest", "Ada")]);
    go(guest.clone(), None);
    global::set_text_map_propagator(opentelemetry::propagation::TextMapCompositePropagator::new(
        vec![
            Box::new(TraceContextPropagator::new()),
            Box::new(BaggagePropagator::new()),
        ],
    ));
    go(guest.clone(), None);
    // The SDK's propagator would accept this parent.
    go(guest, Some("0-1-1-1"));
    let ada = Some("Ada".to_owned());
    let own = Some(format!("00-{TRACE}-{SPAN}-00"));
    let expected = [[None, own.clone()], [ada.clone(), own], [ada, None]];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn a_handlers_span_ends_with_the_handler() {
    struct Hoarder(Arc<Mutex<Vec<Context>>>);
    impl Semantics for Hoarder {
        async fn unary(&self, _: Request<Received<Ask>>) -> Reply<Answer> {
            self.0.lock().unwrap().push(Context::current());
            std::future::pending().await
        }
        nothing_else!();
    }
    let (spans, kept) = (Spans::default(), Arc::default());
    let hoarder = SemanticsServer::new(Hoarder(Arc::clone(&kept)));
    let backstage = Backstage::with(service(hoarder).with_tracer(spans.tracer()));
    let session = backstage.session();
    let client = SemanticsClient::new(Channel::new(&session, ""));
    let mut request = Request::new(ask(7));
    request.set_timeout(Duration::from_millis(20));
    let late = block_on(&session, client.unary(request)).unwrap_err();
    assert_eq!(late.code, Code::DEADLINE_EXCEEDED);
    // The span is exported although its context is still held.
    eventually(SOON, || spans.all().len() == 1).unwrap();
    assert_eq!(kept.lock().unwrap().len(), 1);
}

#[test]
fn a_service_that_begins_at_once_is_in_the_context_too() {
    struct Eager(Witness);
    impl Service for Eager {
        fn info(&self) -> ServiceInfo<'_> {
            SEMANTICS
        }

        fn call(&self, _: usize, call: Incoming) -> tollgate::HandlerFuture {
            let metadata = call.request.metadata().clone();
            self.0.note("at once", &metadata.into());
            Box::pin(tollgate::unimplemented(call))
        }
    }
    let witness = Witness::default();
    let backstage = Backstage::with(service(Eager(witness.clone())));
    let session = backstage.session();
    let client = SemanticsClient::new(channel(Channel::new(&session, "")));
    let call = client.unary(ask(7));
    let context = within(TraceFlags::NOT_SAMPLED, "");
    let refused = block_on(&session, call.with_context(context)).unwrap_err();
    assert_eq!(refused.code, Code::UNIMPLEMENTED);
    let notes = witness.take();
    let own = Some(format!("00-{TRACE}-{SPAN}-00"));
    assert_eq!(notes, [("at once", own.clone(), own)]);
}
