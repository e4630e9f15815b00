//! Exporters and scrapes against real servers: a gRPC collector made of OpenTelemetry's own
//! services, and hand-written HTTP; slow, gone and refusing ones.
#![allow(clippy::unwrap_used)]

mod secured;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tonic::{Request, Response, Status};

use crate::export::{Endpoint, EndpointError, Exporter, Fate, Protocol};
use crate::histogram::{Exemplar, Histogram};
use crate::limits::{
    CONNECT_TIMEOUT, EXPORT_TIMEOUT, MAX_BATCH, MAX_QUEUED, MAX_SCRAPES, SCRAPE_HEAD_TIMEOUT,
    SCRAPE_TIMEOUT,
};
use crate::metrics::{Family, Kind, Metrics, Value};
use crate::otlp::Daemon;
use crate::prometheus::Now;
use crate::record::{DECISION, Event, Line, Outcome, PROVIDERS_POLICY, Record, Side, Span, event};
use crate::w3c::{SpanId, TraceId};

const NOW: Now = Now {
    unix_ns: 1_700_000_000_000_000_000,
    monotonic_ns: 50_000_000_000,
};

fn daemon() -> Daemon {
    Daemon {
        name: "a".to_owned(),
        version: "1.2.3",
        started_unix_ns: 1,
    }
}

fn outcome() -> Outcome {
    Outcome {
        code: "PERMISSION_DENIED",
        is_error: true,
        message: "acl@3 says no".to_owned(),
    }
}

fn span(number: u64) -> Record {
    let id = (number + 1).to_be_bytes();
    Record::Span(Arc::new(Span {
        tenant: "acme".into(),
        trace: TraceId::new([9; 16]).unwrap(),
        span: SpanId::new(id).unwrap(),
        parent: SpanId::new([7; 8]),
        state: "vendor=1".into(),
        side: Side::Client,
        method: "hotel.Search/Nearby".to_owned(),
        began_ns: 40_000_000_000,
        ended_ns: 45_000_000_000,
        outcome: outcome(),
        attributes: vec![("server.port", 80.into())],
        events: vec![Event {
            name: "policy",
            at_ns: 41_000_000_000,
            attributes: vec![("tollgate.policy", "acl@3".into())],
        }],
        dropped_events: 2,
    }))
}

fn line() -> Record {
    Record::Line(Box::new(Line {
        tenant: "acme".into(),
        at_ns: 45_000_000_000,
        span: Some((TraceId::new([9; 16]).unwrap(), SpanId::new([1; 8]).unwrap())),
        side: Side::Server,
        method: "hotel.Search/Nearby".to_owned(),
        outcome: outcome(),
        policy: Some("acl@3".to_owned()),
        is_providers: false,
        withheld: 4,
    }))
}

fn metrics() -> Metrics {
    let mut durations = Histogram::default();
    durations.record(0);
    durations.record(1_000_000_000);
    durations.exemplify(Exemplar {
        trace: TraceId::new([9; 16]).unwrap(),
        span: SpanId::new([1; 8]).unwrap(),
        took_ns: 1_000_000_000,
        at_ns: 45_000_000_000,
    });
    let mut calls = Family::new(
        "rpc.client.call.duration",
        "s",
        "How long.",
        Kind::Histogram,
    );
    let durations = Value::Durations(Box::new(durations));
    calls.push(Some(&"acme".into()), Vec::new(), durations);
    let mut count = Family::new("a.count", "{call}", "How many.", Kind::Counter);
    count.push(None, Vec::new(), Value::Count(5));
    let mut measure = Family::new("a.measure", "By", "How much.", Kind::Gauge);
    measure.push(None, Vec::new(), Value::Measure(0.5));
    Metrics {
        families: vec![calls, count, measure],
    }
}

/// The behaviour of a collector.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Good,
    /// Rejects one span of each request.
    Picky,
    /// Fails this number of times, then succeeds.
    FailsFirst(u32, tonic::Code),
    /// Never answers.
    Stuck,
}

struct Collector {
    mood: Mood,
    asked: AtomicU32,
    traces: Mutex<Vec<ExportTraceServiceRequest>>,
    logs: Mutex<Vec<ExportLogsServiceRequest>>,
    metrics: Mutex<Vec<ExportMetricsServiceRequest>>,
}

/// Shared by the servers.
struct Served(Arc<Collector>);

impl Collector {
    async fn think(&self) -> Result<(), Status> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        match self.mood {
            Mood::FailsFirst(times, code) if asked < times => Err(Status::new(code, "no")),
            Mood::Stuck => std::future::pending().await,
            _ => Ok(()),
        }
    }

    async fn start(mood: Mood) -> (Arc<Collector>, SocketAddr) {
        let collector = Arc::new(Collector {
            mood,
            asked: AtomicU32::new(0),
            traces: Mutex::default(),
            logs: Mutex::default(),
            metrics: Mutex::default(),
        });
        let served = || Served(Arc::clone(&collector));
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(served()))
            .add_service(LogsServiceServer::new(served()))
            .add_service(MetricsServiceServer::new(served()));
        let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
        let incoming = incoming.unwrap();
        let address = incoming.local_addr().unwrap();
        tokio::task::spawn(server.serve_with_incoming(incoming));
        (collector, address)
    }

    fn spans(&self) -> usize {
        let requests = self.traces.lock().unwrap();
        let spans = requests.iter().flat_map(|r| &r.resource_spans);
        let spans = spans.flat_map(|r| &r.scope_spans);
        spans.map(|scope| scope.spans.len()).sum()
    }
}

#[tonic::async_trait]
impl TraceService for Served {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.think().await?;
        self.0.traces.lock().unwrap().push(request.into_inner());
        let partial_success = (self.0.mood == Mood::Picky).then(|| ExportTracePartialSuccess {
            rejected_spans: 1,
            error_message: "not that one".to_owned(),
        });
        Ok(Response::new(ExportTraceServiceResponse {
            partial_success,
        }))
    }
}

#[tonic::async_trait]
impl LogsService for Served {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.0.think().await?;
        self.0.logs.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Served {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.0.think().await?;
        self.0.metrics.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

fn exporter(address: SocketAddr, protocol: Protocol) -> Exporter {
    let endpoint = Endpoint::new(&format!("http://{address}/"), protocol).unwrap();
    assert_eq!(endpoint.url(), format!("http://{address}"));
    Exporter::start(endpoint, daemon()).unwrap()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} doesn't happen");
}

#[tokio::test]
async fn a_collector_gets_everything_over_grpc() {
    let (collector, address) = Collector::start(Mood::Good).await;
    let exporter = exporter(address, Protocol::Grpc);
    exporter.push(span(0), NOW);
    exporter.push(line(), NOW);
    exporter.snapshot(metrics(), NOW);
    let done = || exporter.counts().snapshots.exported == 1;
    until("the export", done).await;
    let counts = exporter.counts();
    let once = Fate {
        exported: 1,
        ..Fate::default()
    };
    assert_eq!((counts.spans, counts.lines), (once, once));

    let traces = collector.traces.lock().unwrap();
    let resource = &traces[0].resource_spans[0];
    let attribute = |attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue], key| {
        let found = attributes.iter().find(|pair| pair.key == key);
        format!(
            "{:?}",
            found
                .and_then(|pair| pair.value.clone())
                .and_then(|v| v.value)
        )
    };
    let named = attribute(
        &resource.resource.as_ref().unwrap().attributes,
        "service.instance.id",
    );
    assert_eq!(named, "Some(StringValue(\"a\"))");
    let span = &resource.scope_spans[0].spans[0];
    assert_eq!(span.trace_id, [9; 16]);
    assert_eq!(span.parent_span_id, [7; 8]);
    assert_eq!(span.name, "hotel.Search/Nearby");
    assert_eq!(span.trace_state, "vendor=1");
    assert_eq!(
        span.end_time_unix_nano - span.start_time_unix_nano,
        5_000_000_000
    );
    assert_eq!(
        span.end_time_unix_nano,
        NOW.unix_ns - 5_000_000_000,
        "it ended 5 s ago"
    );
    for (key, want) in [
        ("rpc.response.status_code", "PERMISSION_DENIED"),
        ("error.type", "PERMISSION_DENIED"),
        ("tollgate.tenant", "acme"),
        ("rpc.system.name", "tollgate"),
    ] {
        let found = attribute(&span.attributes, key);
        assert_eq!(found, format!("Some(StringValue({want:?}))"), "{key}");
    }
    assert_eq!(span.events[0].name, "policy");
    assert_eq!(span.status.as_ref().unwrap().message, "acl@3 says no");

    let logs = collector.logs.lock().unwrap();
    let line = &logs[0].resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(line.trace_id, [9; 16]);
    let policy = attribute(&line.attributes, "tollgate.policy");
    assert_eq!(policy, "Some(StringValue(\"acl@3\"))");
    let withheld = attribute(&line.attributes, "tollgate.withheld");
    assert_eq!(withheld, "Some(IntValue(4))");

    let metrics = collector.metrics.lock().unwrap();
    let metrics = &metrics[0].resource_metrics[0].scope_metrics[0].metrics;
    let Some(Data::ExponentialHistogram(calls)) = &metrics[0].data else {
        panic!("{:?}", metrics[0]);
    };
    let point = &calls.data_points[0];
    assert_eq!((point.count, point.zero_count, point.scale), (2, 1, 3));
    let positive = point.positive.as_ref().unwrap();
    assert_eq!(
        (positive.offset, &positive.bucket_counts[..]),
        (-1, &[1][..])
    );
    assert_eq!(point.exemplars[0].trace_id, [9; 16]);
    assert!(matches!(&metrics[1].data, Some(Data::Sum(sum)) if sum.is_monotonic));
    assert!(matches!(&metrics[2].data, Some(Data::Gauge(_))));
}

#[tokio::test]
async fn what_a_collector_rejects_is_counted() {
    let (_collector, address) = Collector::start(Mood::Picky).await;
    let exporter = exporter(address, Protocol::Grpc);
    (0..3).for_each(|number| exporter.push(span(number), NOW));
    until("the export", || exporter.counts().spans.exported == 2).await;
    assert_eq!(exporter.counts().spans.rejected, 1);
}

#[tokio::test]
async fn a_request_that_may_succeed_is_made_again() {
    let mood = Mood::FailsFirst(1, tonic::Code::Unavailable);
    let (collector, address) = Collector::start(mood).await;
    let exporter = exporter(address, Protocol::Grpc);
    exporter.push(span(0), NOW);
    until("the export", || exporter.counts().spans.exported == 1).await;
    assert_eq!(exporter.counts().failed_requests, 1);
    assert_eq!(collector.spans(), 1);
}

#[tokio::test]
async fn a_request_that_is_refused_is_not_made_again() {
    let mood = Mood::FailsFirst(1, tonic::Code::PermissionDenied);
    let (collector, address) = Collector::start(mood).await;
    let exporter = exporter(address, Protocol::Grpc);
    exporter.push(span(0), NOW);
    until("the failure", || exporter.counts().spans.failed == 1).await;
    exporter.push(span(1), NOW);
    until("the export", || exporter.counts().spans.exported == 1).await;
    assert_eq!(collector.spans(), 1, "the second only");
}

#[tokio::test]
async fn memory_is_bounded_while_a_collector_is_stuck_and_what_is_dropped_is_counted() {
    let (_collector, address) = Collector::start(Mood::Stuck).await;
    let exporter = exporter(address, Protocol::Grpc);
    exporter.push(span(0), NOW);
    // The request is in flight by then.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let more = 100;
    let began = std::time::Instant::now();
    for number in 0..(MAX_QUEUED + more) as u64 {
        exporter.push(span(number), NOW);
    }
    for _ in 0..3 {
        exporter.snapshot(metrics(), NOW);
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "nobody waits for the collector"
    );
    let counts = exporter.counts();
    assert_eq!(counts.spans.overflowed, more as u64);
    assert_eq!(counts.snapshots.overflowed, 2);
}

/// Both fail after this patience, and not before; returns the elapsed time.
async fn expect_failures_after(patience: Duration, exporters: &[Exporter; 2]) -> Duration {
    let began = std::time::Instant::now();
    exporters.iter().for_each(|e| e.snapshot(metrics(), NOW));
    tokio::time::sleep(patience / 2).await;
    let failed = || exporters.each_ref().map(|e| e.counts().failed_requests);
    assert_eq!(failed(), [0, 0], "both have time left");
    until("the end of both", || failed() == [1, 1]).await;
    let took = began.elapsed();
    assert!(took >= patience, "{took:?}");
    took
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_in_time_has_failed() {
    let (_collector, grpc) = Collector::start(Mood::Stuck).await;
    // The kernel accepts its connections, and no program does.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = silent.local_addr().unwrap();
    let exporters = [
        exporter(grpc, Protocol::Grpc),
        exporter(http, Protocol::Http),
    ];
    expect_failures_after(EXPORT_TIMEOUT, &exporters).await;
    for exporter in &exporters {
        assert_eq!(exporter.counts().snapshots.failed, 1);
    }
}

#[tokio::test]
async fn an_endpoint_that_no_connection_reaches_has_failed_before_its_request_would_have() {
    // Its connection queue is full, so the kernel drops the next connection.
    let full = TcpSocket::new_v4().unwrap();
    full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = full.listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    let patience = Duration::from_millis(500);
    while let Ok(stream) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    let exporters = [Protocol::Grpc, Protocol::Http].map(|protocol| exporter(address, protocol));
    let took = expect_failures_after(CONNECT_TIMEOUT, &exporters).await;
    assert!(took < EXPORT_TIMEOUT, "{took:?}");
}

#[tokio::test]
async fn spans_for_a_collector_that_comes_late_are_there_in_batches() {
    // There is no listener yet.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let exporter = exporter(address, Protocol::Grpc);
    let count = MAX_BATCH + 5;
    (0..count as u64).for_each(|number| exporter.push(span(number), NOW));
    until("a failure", || exporter.counts().failed_requests > 0).await;
    let collector = Arc::new(Collector {
        mood: Mood::Good,
        asked: AtomicU32::new(0),
        traces: Mutex::default(),
        logs: Mutex::default(),
        metrics: Mutex::default(),
    });
    let service = TraceServiceServer::new(Served(Arc::clone(&collector)));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::task::spawn(server.serve(address));
    until("the export", || {
        exporter.counts().spans.exported == count as u64
    })
    .await;
    assert_eq!(collector.spans(), count);
    let requests = collector.traces.lock().unwrap();
    let most = |r: &ExportTraceServiceRequest| r.resource_spans[0].scope_spans[0].spans.len();
    assert!(requests.iter().all(|request| most(request) <= MAX_BATCH));
}

/// Reads one request; returns its path and body.
async fn request_of(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let (mut text, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let len = stream.read(&mut chunk).await.unwrap();
        text.extend_from_slice(&chunk[..len]);
        let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        assert!(head.contains("content-type: application/x-protobuf"));
        if text.len() == end + 4 + length {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            return (path, text[end + 4..].to_vec());
        }
    }
}

#[tokio::test]
async fn a_collector_gets_everything_over_http() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let exporter = exporter(listener.local_addr().unwrap(), Protocol::Http);
    exporter.push(span(0), NOW);
    exporter.push(line(), NOW);
    exporter.snapshot(metrics(), NOW);
    let mut paths = Vec::new();
    // First an overload, then success; the last one is a final refusal.
    for said in ["503 Later", "200 OK", "200 OK", "400 Bad Request"] {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (path, body) = request_of(&mut stream).await;
        if path == "/v1/traces" {
            let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
            let spans = &request.resource_spans[0].scope_spans[0].spans;
            assert_eq!(spans[0].name, "hotel.Search/Nearby");
        }
        paths.push(path);
        let answer = format!("HTTP/1.1 {said}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    assert_eq!(
        paths,
        ["/v1/traces", "/v1/traces", "/v1/logs", "/v1/metrics"]
    );
    until("the end", || exporter.counts().snapshots.failed == 1).await;
    let counts = exporter.counts();
    assert_eq!((counts.spans.exported, counts.lines.exported), (1, 1));
    assert_eq!(counts.failed_requests, 2);
}

/// Before the time that a collector has named, it gets no request: neither the failed one again nor
/// another one, whose tries have ended with the first.
#[tokio::test]
async fn a_collector_over_http_that_says_when_to_come_back_is_left_alone_until_then() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let exporter = exporter(listener.local_addr().unwrap(), Protocol::Http);
    let in_3_s = || {
        let at = std::time::SystemTime::now() + Duration::from_secs(3);
        format!("429 Slowly\r\nretry-after: {}", httpdate::fmt_http_date(at))
    };
    exporter.push(span(0), NOW);
    let mut answered: Option<std::time::Instant> = None;
    // A date has no fractions of a second.
    for (said, least_ms) in [
        ("503 Later\r\nretry-after: 2".to_owned(), 0),
        (in_3_s(), 2_000),
        ("200 OK".to_owned(), 0),
        ("429 Slowly\r\nretry-after: 2".to_owned(), 0),
        ("200 OK".to_owned(), 2_000),
    ] {
        let said = if said.contains("GMT") { in_3_s() } else { said };
        let (mut stream, _) = listener.accept().await.unwrap();
        let waited = answered.map_or(Duration::ZERO, |at| at.elapsed());
        let least = Duration::from_millis(least_ms);
        assert!(waited >= least, "{waited:?} before {said}");
        request_of(&mut stream).await;
        let answer = format!("HTTP/1.1 {said}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        answered = Some(std::time::Instant::now());
        stream.write_all(answer.as_bytes()).await.unwrap();
        if said == "200 OK" && exporter.counts().snapshots == Fate::default() {
            until("the export", || exporter.counts().spans.exported == 1).await;
            exporter.snapshot(metrics(), NOW);
            continue;
        }
        if said.starts_with("429") && least_ms == 0 {
            until("the failure", || exporter.counts().snapshots.failed == 1).await;
            exporter.snapshot(metrics(), NOW);
        }
    }
    until("the export", || exporter.counts().snapshots.exported == 1).await;
    assert_eq!(exporter.counts().failed_requests, 3);
}

/// A redirect isn't followed, and an endless answer is only read for a limited time.
#[tokio::test]
async fn a_collector_that_redirects_or_never_ends_its_answer_holds_nobody_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let exporter = exporter(address, Protocol::Http);
    exporter.push(span(0), NOW);
    let (mut stream, _) = listener.accept().await.unwrap();
    request_of(&mut stream).await;
    let elsewhere = format!(
        "HTTP/1.1 307 Elsewhere\r\nlocation: http://{address}/other\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(elsewhere.as_bytes()).await.unwrap();
    until("the refusal", || exporter.counts().spans.failed == 1).await;
    exporter.push(line(), NOW);
    let (mut stream, _) = listener.accept().await.unwrap();
    let (path, _) = request_of(&mut stream).await;
    assert_eq!(path, "/v1/logs", "nobody went to the other place");
    let endless = tokio::task::spawn(async move {
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // Until the other end closes.
        while stream.write_all(&[0; 4_096]).await.is_ok() {}
    });
    until("the export", || exporter.counts().lines.exported == 1).await;
    endless.await.unwrap();
}

#[test]
fn a_tenant_is_not_told_of_the_providers_policies() {
    let (Record::Span(mut span), Record::Line(mut line)) = (span(0), line()) else {
        panic!("they are what they are");
    };
    let own = ("server.port", 80.into());
    assert_eq!(
        Record::Line(line.clone()).for_tenant(),
        Record::Line(line.clone())
    );
    line.is_providers = true;
    let its = Arc::make_mut(&mut span);
    its.attributes.push((PROVIDERS_POLICY, "tax@1".into()));
    let events = its.events.clone();
    its.events.push(Event {
        name: event::VERDICT,
        at_ns: 42_000_000_000,
        attributes: vec![
            (DECISION, "allowed".into()),
            (PROVIDERS_POLICY, "tax@1".into()),
        ],
    });
    let Record::Span(span) = Record::Span(span).for_tenant() else {
        panic!("it stays a span");
    };
    assert_eq!(span.attributes, [own]);
    assert_eq!(span.events, events);
    let Record::Line(line) = Record::Line(line).for_tenant() else {
        panic!("it stays a line");
    };
    assert_eq!(line.policy, None);
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    let wrong = |url: &str, protocol| Endpoint::new(url, protocol).unwrap_err();
    for url in ["", "collector", "http://", "unix:/run/otel"] {
        let refused = wrong(url, Protocol::Grpc);
        assert!(matches!(refused, EndpointError::NoUrl { .. }), "{refused}");
    }
    // The libraries of both protocols parse these differently: some skip spaces, some accept any
    // number as a port.
    for protocol in [Protocol::Grpc, Protocol::Http] {
        for (url, expected) in [
            (
                "http://collector:4317 ",
                "\"http://collector:4317 \" has ' ' in it, which a URL can't have",
            ),
            (
                " http://collector:4317",
                "\" http://collector:4317\" has ' ' in it",
            ),
            (
                "http://coll\tector:4317",
                "\"http://coll\\tector:4317\" has '\\t' in it",
            ),
            (
                "http://collector:4317\n",
                "\"http://collector:4317\\n\" has '\\n' in it",
            ),
            (
                "http:\\\\collector",
                "\"http:\\\\\\\\collector\" has '\\\\' in it",
            ),
            (
                "http://collector:99999",
                "\"http://collector:99999\" is no endpoint",
            ),
            (
                "http://collector:0",
                "\"http://collector:0\" can't be used: its port is \"0\"",
            ),
            (
                "http://collector:",
                "\"http://collector:\" can't be used: its port is \"\"",
            ),
            (
                "http:collector:4317",
                "\"http:collector:4317\" can't be used: ",
            ),
        ] {
            let refused = wrong(url, protocol).to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
        for url in [
            "http://[::1]",
            "http://[::1]:4317",
            "HTTPS://collector",
            "http://a:65535/x",
        ] {
            Endpoint::new(url, protocol).unwrap();
        }
    }
    for (protocol, url) in [
        (Protocol::Grpc, "https://collector:4317"),
        (Protocol::Http, "https://collector:4318/otlp"),
    ] {
        Endpoint::new(url, protocol).unwrap();
    }
    let refused = wrong("ftp://collector", Protocol::Http);
    assert_eq!(
        refused.to_string(),
        "\"ftp://collector\": scheme ftp isn't supported; use http or https"
    );
    for (url, expected) in [
        ("https://me:s3cret@a:4317", "\"https://a:4317/\" has a user"),
        ("https://s3cret@a", "\"https://a/\" has a user"),
        ("https://a/?key=s3cret", "\"https://a/\" has a query"),
        ("https://a#s3cret", "\"https://a/\" has a query"),
        ("https://me:s3cret@:4317", "\"...@:4317\" is no endpoint"),
    ] {
        let refused = wrong(url, Protocol::Grpc).to_string();
        assert!(
            refused.starts_with(expected) && !refused.contains("s3cret"),
            "{refused}"
        );
    }
}

async fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_scrape_gets_what_is_shown_and_others_are_told() {
    let here = tokio::task::LocalSet::new();
    here.run_until(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let show = |format| async move { Some(crate::prometheus::write(&metrics(), format, NOW)) };
        tokio::task::spawn_local(crate::scrape::serve(listener, show));
        // Silent connections take all places but one.
        let mut idle = Vec::new();
        for _ in 1..MAX_SCRAPES {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = ask(address, "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("content-type: text/plain"), "{answer}");
        assert!(answer.contains("\na_count_total 5\n"), "{answer}");
        let answer = ask(
            address,
            "GET /metrics HTTP/1.1\r\nhost: a\r\naccept: application/openmetrics-text\r\n\r\n",
        )
        .await;
        assert!(answer.ends_with("# EOF\n"), "{answer}");
        let answer = ask(address, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        let answer = ask(address, "POST /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
        assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");
        // RFC 9110: GET without the body.
        let answer = ask(address, "HEAD /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("content-type: text/plain"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        // Many more silent connections come, before and after it: the scraper doesn't wait for
        // their deadline.
        let began = std::time::Instant::now();
        let asking = async {
            for _ in 0..4 * MAX_SCRAPES {
                idle.push(TcpStream::connect(address).await.unwrap());
            }
            let mut scraper = TcpStream::connect(address).await.unwrap();
            let request = b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";
            scraper.write_all(request).await.unwrap();
            for _ in 0..4 * MAX_SCRAPES {
                idle.push(TcpStream::connect(address).await.unwrap());
            }
            let mut answer = String::new();
            scraper.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = asking.await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let waited = began.elapsed();
        assert!(waited < SCRAPE_HEAD_TIMEOUT, "{waited:?}");
    })
    .await;
}

#[tokio::test]
async fn a_scrape_whose_head_takes_too_long_ends() {
    let here = tokio::task::LocalSet::new();
    here.run_until(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let show = |_| async { Some(Vec::new()) };
        tokio::task::spawn_local(crate::scrape::serve(listener, show));
        let began = std::time::Instant::now();
        let mut slow = Vec::new();
        for _ in 0..MAX_SCRAPES {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nho")
                .await
                .unwrap();
            slow.push(stream);
        }
        // A slow scraper gets no answer.
        let mut rest = Vec::new();
        slow[0].read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"");
        let waited = began.elapsed();
        let expected = SCRAPE_HEAD_TIMEOUT - Duration::from_millis(100)..SCRAPE_TIMEOUT;
        assert!(expected.contains(&waited), "{waited:?}");
    })
    .await;
}
