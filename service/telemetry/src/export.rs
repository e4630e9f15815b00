//! Exporters: each sends one endpoint's data by OTLP over gRPC or HTTP.
//!
//! ```text
//!  push ─▶ spans, lines: queues of MAX_QUEUED ──┐
//!          metrics: the latest snapshot ────────┴─ one request at a time ─▶ the endpoint
//!                                                   fails: again after a pause that grows, MAX_TRIES times
//! ```
//!
//! An endpoint may say when to come back (`Retry-After` over HTTP, `RetryInfo` over gRPC). Until
//! then, and for [`MAX_RETRY_AFTER`] at most, it gets neither the same request nor another one.
//!
//! Pushing never waits, memory is bounded, and every item is counted once: exported, rejected, or
//! dropped and why. Metrics are cumulative, so the next snapshot replaces one that couldn't be
//! sent. The log says that an endpoint takes nothing, and why. It doesn't quote the endpoint's own
//! words, since the endpoint knows the secrets in its headers.
//!
//! Absent on purpose: files for unsent data (a local collector has them), and client certificates
//! (headers identify the exporter).

use std::collections::VecDeque;
use std::error::Error;
use std::io::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::Notify;
use tollgate_shm_abi::text;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig};
use tonic_prost::ProstCodec;

use crate::exposition::Now;
use crate::headers::Headers;
use crate::limits::{
    CONNECT_TIMEOUT, EXPORT_PAUSE, EXPORT_TIMEOUT, FAILURE_TOLD_EVERY, MAX_ANSWER_BYTES, MAX_BATCH,
    MAX_QUEUED, MAX_REASON_CHARS, MAX_RETRY_AFTER, MAX_TRIES,
};
use crate::metrics::Metrics;
use crate::otlp::{Daemon, TracesRequest};
use crate::record::{Line, Record, Span};

/// The protocol of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC: port 4317 of a collector.
    #[default]
    Grpc,
    /// OTLP over HTTP, in protobuf: port 4318 of a collector.
    Http,
}

/// An export destination, and the form of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    protocol: Protocol,
    headers: Headers,
    /// Authorities that may have signed its certificate; empty: the system's.
    authorities: Vec<CertificateDer<'static>>,
    is_compressed: bool,
}

/// The reason why an endpoint is invalid: the operator's mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It isn't a URL with a host.
    #[error("{url:?} is no endpoint: http://HOST:PORT is one")]
    NoUrl {
        /// The operator's text.
        url: String,
    },
    /// The URL has an invalid character. Some URL parsers skip such characters, and some don't.
    #[error("{url:?} has {character:?} in it, which no URL has: http://HOST:PORT is an endpoint")]
    Character {
        /// The operator's text.
        url: String,
        /// The first invalid character.
        character: char,
    },
    /// The scheme isn't supported.
    #[error("{url:?}: {scheme} isn't spoken, http and https are")]
    Scheme {
        /// The operator's text.
        url: String,
        /// Its scheme.
        scheme: String,
    },
    /// The URL has a part that may be a secret and would be shown with the URL.
    #[error("{url:?} has {part} that isn't shown here: what is secret belongs into headers")]
    Secret {
        /// The operator's text without that part.
        url: String,
        /// The name of the part.
        part: &'static str,
    },
    /// The endpoint doesn't use TLS, so authorities are useless.
    #[error("{url:?} has no certificate that authorities could have signed: https has one")]
    NoTls {
        /// The operator's text.
        url: String,
    },
    /// The authorities are invalid.
    #[error("{why}: certificates are wanted, in PEM")]
    NoAuthorities {
        /// The problem.
        why: String,
    },
    /// The client can't be created.
    #[error("{url:?} can't be used: {why}")]
    Unusable {
        /// The operator's text.
        url: String,
        /// The client's error.
        why: String,
    },
}

impl Endpoint {
    /// Checks an operator's URL.
    ///
    /// # Errors
    /// If it isn't a URL, has an unsupported scheme, or has a part that may be a secret.
    pub fn new(url: &str, protocol: Protocol) -> Result<Endpoint, EndpointError> {
        let url = url.trim_end_matches('/').to_owned();
        let is_none = |c: &char| c.is_whitespace() || c.is_control() || *c == '\\';
        if let Some(character) = url.chars().find(is_none)
            && !url.contains('@')
        {
            return Err(EndpointError::Character { url, character });
        }
        let parsed = reqwest::Url::parse(&url).ok();
        let Some(mut parsed) = parsed.filter(reqwest::Url::has_host) else {
            let url = match url.rsplit_once('@') {
                Some((_maybe_secret, rest)) => format!("...@{rest}"),
                None => url,
            };
            return Err(EndpointError::NoUrl { url });
        };
        let is_named = !parsed.username().is_empty() || parsed.password().is_some();
        let has_more = parsed.query().is_some() || parsed.fragment().is_some();
        if is_named || has_more {
            let part = match is_named {
                true => "a user",
                false => "a query",
            };
            let _a_url_with_a_host_takes_them =
                (parsed.set_username(""), parsed.set_password(None));
            parsed.set_query(None);
            parsed.set_fragment(None);
            let url = parsed.into();
            return Err(EndpointError::Secret { url, part });
        }
        if !["http", "https"].contains(&parsed.scheme()) {
            let scheme = parsed.scheme().to_owned();
            return Err(EndpointError::Scheme { url, scheme });
        }
        check_place(&url).map_err(|why| EndpointError::Unusable {
            url: url.clone(),
            why,
        })?;
        Ok(Endpoint {
            url,
            protocol,
            headers: Headers::default(),
            authorities: Vec::new(),
            is_compressed: false,
        })
    }

    /// Adds these headers to each request.
    #[must_use]
    pub fn with_headers(self, headers: Headers) -> Endpoint {
        Endpoint { headers, ..self }
    }

    /// Compresses each request with gzip.
    #[must_use]
    pub fn compressed(self) -> Endpoint {
        Endpoint {
            is_compressed: true,
            ..self
        }
    }

    /// Trusts only these authorities to sign its certificate.
    ///
    /// # Errors
    /// If they aren't certificates in PEM, or the endpoint doesn't use TLS.
    pub fn with_authorities(self, pem: &[u8]) -> Result<Endpoint, EndpointError> {
        self.needs_tls()?;
        let wrong = |why: String| EndpointError::NoAuthorities { why };
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let authorities = found.map_err(|error| wrong(error.to_string()))?;
        if authorities.is_empty() {
            return Err(wrong("there is no certificate".to_owned()));
        }
        for (number, authority) in (1..).zip(&authorities) {
            let added = RootCertStore::empty().add(authority.clone());
            added.map_err(|error| wrong(format!("certificate {number}: {error}")))?;
        }
        Ok(Endpoint {
            authorities,
            ..self
        })
    }

    /// # Errors
    /// If the endpoint doesn't use TLS.
    pub fn needs_tls(&self) -> Result<(), EndpointError> {
        match self.has_tls() {
            true => Ok(()),
            false => {
                let url = self.url.clone();
                Err(EndpointError::NoTls { url })
            }
        }
    }

    fn has_tls(&self) -> bool {
        let scheme = self.url.split(':').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case("https")
    }

    /// Whether its headers are readable on a network: they travel unencrypted to another host.
    pub fn shows_headers(&self) -> bool {
        let url = reqwest::Url::parse(&self.url).ok();
        let host = url.as_ref().and_then(reqwest::Url::host_str);
        let host = host.unwrap_or_default().trim_matches(['[', ']']);
        let address = host.parse().map(|address: IpAddr| address.is_loopback());
        let is_here = address.unwrap_or(host == "localhost");
        !self.has_tls() && !self.headers.is_empty() && !is_here
    }

    /// The URL as the operator wrote it.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Checks that connections can be made there: the gRPC library parses URLs differently from the
/// library that has parsed this one.
fn check_place(url: &str) -> Result<(), String> {
    let uri = url.parse::<Uri>().map_err(|error| error.to_string())?;
    let port = uri.authority().and_then(|authority| {
        let (_, port) = authority.as_str().rsplit_once(':')?;
        // The bracket at the end of an address is no port.
        (!port.contains(']')).then_some(port)
    });
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(()),
        Some(_) => Err(format!(
            "its port is {:?}, 1 to 65535 are ports",
            port.unwrap_or_default()
        )),
    }
}

/// Counts of one kind of items by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Accepted by the endpoint.
    pub exported: u64,
    /// Rejected by the endpoint within requests that it accepted.
    pub rejected: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Dropped because requests failed.
    pub failed: u64,
}

/// Counts of one endpoint's items by their outcome, and of failed requests, retries included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans.
    pub spans: Fate,
    /// Lines.
    pub lines: Fate,
    /// Snapshots of metrics.
    pub snapshots: Fate,
    /// Failed requests.
    pub failed_requests: u64,
}

#[derive(Default)]
struct Queue {
    spans: VecDeque<Arc<Span>>,
    lines: VecDeque<Box<Line>>,
    metrics: Option<Metrics>,
    now: Option<Now>,
    counts: Counts,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    bell: Notify,
}

impl Shared {
    /// A panic of another holder only leaves counts, and these are right at any time.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One endpoint's exporter. Dropping it ends it and discards its queue.
pub struct Exporter {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Exporter {
    /// Starts an exporter, within a tokio runtime. The endpoint needn't be reachable.
    ///
    /// # Errors
    /// If its client can't be created.
    pub fn start(endpoint: Endpoint, daemon: Daemon) -> Result<Exporter, EndpointError> {
        let shared = Arc::<Shared>::default();
        let client = Client::new(&endpoint)?;
        let worker = Worker {
            shared: Arc::clone(&shared),
            client,
            daemon,
            url: endpoint.url.clone(),
            told: Default::default(),
            not_before: None,
        };
        let task = tokio::task::spawn(worker.run());
        Ok(Exporter {
            shared,
            endpoint,
            task,
        })
    }

    /// The endpoint of this exporter.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Queues a call's record; if the queue is full, the record is dropped and counted.
    pub fn push(&self, record: Record, now: Now) {
        let mut queue = self.shared.queue();
        let queue = &mut *queue;
        queue.now = Some(now);
        match record {
            Record::Span(span) => match queue.spans.len() < MAX_QUEUED {
                true => queue.spans.push_back(span),
                false => queue.counts.spans.overflowed += 1,
            },
            Record::Line(line) => match queue.lines.len() < MAX_QUEUED {
                true => queue.lines.push_back(line),
                false => queue.counts.lines.overflowed += 1,
            },
            // Watched calls aren't exported.
            Record::Tapped(_) => return,
        }
        self.shared.bell.notify_one();
    }

    /// Queues the latest metrics; they replace earlier unsent ones.
    pub fn snapshot(&self, metrics: Metrics, now: Now) {
        let mut queue = self.shared.queue();
        queue.now = Some(now);
        if queue.metrics.replace(metrics).is_some() {
            queue.counts.snapshots.overflowed += 1;
        }
        self.shared.bell.notify_one();
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.shared.queue().counts
    }
}

/// The content of one request, and its number of items.
enum Batch {
    Spans(TracesRequest, u64),
    Lines(ExportLogsServiceRequest, u64),
    Metrics(ExportMetricsServiceRequest),
}

impl Batch {
    fn len(&self) -> u64 {
        match self {
            Batch::Spans(_, count) | Batch::Lines(_, count) => *count,
            Batch::Metrics(_) => 1,
        }
    }

    fn fate<'c>(&self, counts: &'c mut Counts) -> &'c mut Fate {
        match self {
            Batch::Spans(..) => &mut counts.spans,
            Batch::Lines(..) => &mut counts.lines,
            Batch::Metrics(_) => &mut counts.snapshots,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Batch::Spans(..) => Kind::Spans,
            Batch::Lines(..) => Kind::Lines,
            Batch::Metrics(_) => Kind::Metrics,
        }
    }

    /// Number of tries. A snapshot gets one: it would be outdated by the retry.
    fn tries(&self) -> u32 {
        match self {
            Batch::Metrics(_) => 1,
            _ => MAX_TRIES,
        }
    }
}

/// The kind of exported items.
#[derive(Clone, Copy)]
enum Kind {
    Spans,
    Lines,
    Metrics,
}

impl Kind {
    /// The kind's label in the metrics about exports.
    fn name(self) -> &'static str {
        match self {
            Kind::Spans => "spans",
            Kind::Lines => "lines",
            Kind::Metrics => "metrics",
        }
    }
}

/// The last log message about requests of one kind.
#[derive(Debug, Default)]
struct Told {
    failed_at: Option<Instant>,
    is_failing: bool,
}

impl Told {
    /// Whether to log a failure.
    fn failed(&mut self, now: Instant) -> bool {
        let is_known = |at| now.duration_since(at) < FAILURE_TOLD_EVERY;
        if self.failed_at.is_some_and(is_known) {
            return false;
        }
        self.failed_at = Some(now);
        self.is_failing = true;
        true
    }

    /// Whether to log that requests succeed again.
    fn sent(&mut self) -> bool {
        std::mem::take(&mut self.is_failing)
    }
}

struct Worker {
    shared: Arc<Shared>,
    client: Client,
    daemon: Daemon,
    url: String,
    /// One for each kind.
    told: [Told; 3],
    /// The earliest time that the endpoint allows for the next request.
    not_before: Option<tokio::time::Instant>,
}

impl Worker {
    async fn run(mut self) {
        loop {
            // Later items join the next request.
            self.come_back().await;
            let batches = self.next();
            if batches.is_empty() {
                self.shared.bell.notified().await;
            }
            for batch in batches {
                self.send(&batch).await;
            }
        }
    }

    /// One request for each kind with queued items.
    fn next(&self) -> Vec<Batch> {
        let mut queue = self.shared.queue();
        let Some(now) = queue.now else {
            return Vec::new();
        };
        let mut batches = Vec::new();
        let some = queue.spans.len().min(MAX_BATCH);
        let spans: Vec<_> = queue.spans.drain(..some).collect();
        let some = queue.lines.len().min(MAX_BATCH);
        let lines: Vec<_> = queue.lines.drain(..some).collect();
        let metrics = queue.metrics.take();
        drop(queue);
        if !spans.is_empty() {
            let request = self.daemon.traces(&spans, now);
            batches.push(Batch::Spans(request, spans.len() as u64));
        }
        if !lines.is_empty() {
            let request = self.daemon.logs(&lines, now);
            batches.push(Batch::Lines(request, lines.len() as u64));
        }
        if let Some(metrics) = metrics {
            batches.push(Batch::Metrics(self.daemon.metrics(&metrics, now)));
        }
        batches
    }

    async fn send(&mut self, batch: &Batch) {
        let mut pause = EXPORT_PAUSE.0;
        for attempt in 1..=batch.tries() {
            self.come_back().await;
            let sent = tokio::time::timeout(EXPORT_TIMEOUT, self.client.send(batch)).await;
            let sent = sent.unwrap_or_else(|_| Err(Refused::for_now(no_answer())));
            match sent {
                Ok(rejected) => return self.note_sent(batch, rejected),
                Err(refused) => {
                    let is_last = refused.is_final || attempt == batch.tries();
                    let after = refused.retry_after;
                    self.not_before = after.map(|after| tokio::time::Instant::now() + after);
                    self.note_failed(batch, is_last, &refused.why);
                    if is_last {
                        return;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(EXPORT_PAUSE.1);
        }
    }

    /// Waits until the endpoint allows the next request.
    async fn come_back(&mut self) {
        if let Some(at) = self.not_before.take() {
            tokio::time::sleep_until(at).await;
        }
    }

    fn note_sent(&mut self, batch: &Batch, rejected: u64) {
        let kind = batch.kind();
        if self.told[kind as usize].sent() {
            tracing::info!("{} takes {} again", self.url, kind.name());
        }
        let rejected = rejected.min(batch.len());
        let counts = &mut self.shared.queue().counts;
        let fate = batch.fate(counts);
        fate.rejected += rejected;
        fate.exported += batch.len() - rejected;
    }

    fn note_failed(&mut self, batch: &Batch, is_last: bool, why: &str) {
        let kind = batch.kind();
        if self.told[kind as usize].failed(Instant::now()) {
            tracing::warn!("{} doesn't take {}: {why}", self.url, kind.name());
        }
        let counts = &mut self.shared.queue().counts;
        counts.failed_requests += 1;
        if is_last {
            batch.fate(counts).failed += batch.len();
        }
    }
}

fn no_answer() -> String {
    format!("no answer within {} s", EXPORT_TIMEOUT.as_secs())
}

/// A failed request.
struct Refused {
    /// Whether a retry would fail again.
    is_final: bool,
    why: String,
    /// The pause that the endpoint asks for, if any; at most [`MAX_RETRY_AFTER`].
    retry_after: Option<Duration>,
}

impl Refused {
    /// A failure that a retry may fix.
    fn for_now(why: String) -> Refused {
        Refused {
            is_final: false,
            why,
            retry_after: None,
        }
    }
}

/// Parses a `Retry-After` header: seconds, or a date.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let after = match value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        // A number with too many digits exceeds the longest pause anyway.
        true => Duration::from_secs(value.parse().unwrap_or(u64::MAX)),
        false => {
            let at = httpdate::parse_http_date(value).ok()?;
            at.duration_since(now).unwrap_or_default()
        }
    };
    Some(after.min(MAX_RETRY_AFTER))
}

/// The used fields of `google.rpc.Status`: the details of a gRPC status.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<RpcDetail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcDetail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<RetryDelay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryDelay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The delay of the `RetryInfo` in a status' details.
fn retry_info(details: &[u8]) -> Option<Duration> {
    let details = RpcStatus::decode(details).ok()?.details;
    let mut infos = details
        .iter()
        .filter(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"));
    let delay = RetryInfo::decode(&*infos.next()?.value).ok()?.retry_delay?;
    let seconds = u64::try_from(delay.seconds).unwrap_or_default();
    let nanos = u32::try_from(delay.nanos)
        .unwrap_or_default()
        .min(999_999_999);
    Some(Duration::new(seconds, nanos).min(MAX_RETRY_AFTER))
}

impl From<tonic::Status> for Refused {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        let retry_after = retry_info(status.details());
        // OTLP's table. A channel that can't connect reports UNAVAILABLE.
        let may_succeed = match status.code() {
            // A quota may recover; an oversized message stays too long. RetryInfo indicates a
            // quota.
            Code::ResourceExhausted => retry_after.is_some(),
            code => matches!(
                code,
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Aborted
                    | Code::OutOfRange
                    | Code::Unavailable
                    | Code::DataLoss
            ),
        };
        // Only local errors have a cause.
        let why = match status.source() {
            Some(cause) => because(cause),
            None => format!("it answers {:?}", status.code()),
        };
        Refused {
            is_final: !may_succeed,
            why,
            retry_after,
        }
    }
}

/// Formats an error and its causes, the deepest last.
fn because(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut said: Vec<String> = Vec::new();
    for cause in causes.map(ToString::to_string) {
        // Some errors include their cause in their own text.
        if said.last().is_none_or(|last| !last.contains(&cause)) {
            said.push(cause);
        }
    }
    let said = said.join(": ");
    text::escape(&said).chars().take(MAX_REASON_CHARS).collect()
}

enum Client {
    Grpc(Grpc),
    Http(Http),
}

impl Client {
    fn new(endpoint: &Endpoint) -> Result<Client, EndpointError> {
        let _chosen_before = rustls::crypto::ring::default_provider().install_default();
        let made = match endpoint.protocol {
            Protocol::Grpc => Grpc::new(endpoint).map(Client::Grpc),
            Protocol::Http => Http::new(endpoint).map(Client::Http),
        };
        made.map_err(|why| EndpointError::Unusable {
            url: endpoint.url.clone(),
            why,
        })
    }

    /// Returns the number of items that the endpoint has rejected.
    async fn send(&mut self, batch: &Batch) -> Result<u64, Refused> {
        match self {
            Client::Grpc(grpc) => grpc.send(batch).await,
            Client::Http(http) => http.send(batch).await,
        }
    }
}

struct Grpc {
    channel: Channel,
    headers: MetadataMap,
    is_compressed: bool,
}

/// The path for spans. Their request isn't the generated message: it is written as bytes.
const TRACE_SERVICE: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A client of one of the other two services, which have two different types.
macro_rules! client {
    ($service:ident, $grpc:expr) => {{
        let client = $service::new($grpc.channel.clone());
        match $grpc.is_compressed {
            true => client.send_compressed(CompressionEncoding::Gzip),
            false => client,
        }
    }};
}

impl Grpc {
    fn new(endpoint: &Endpoint) -> Result<Grpc, String> {
        let channel = Channel::from_shared(endpoint.url.clone());
        let mut channel = channel.map_err(|error| error.to_string())?;
        if endpoint.has_tls() {
            let tls = match endpoint.authorities.is_empty() {
                true => ClientTlsConfig::new().with_native_roots(),
                false => ClientTlsConfig::new().trust_anchors(anchors(&endpoint.authorities)),
            };
            let secured = channel.tls_config(tls);
            channel = secured.map_err(|error| because(&error))?;
        }
        Ok(Grpc {
            channel: channel.connect_timeout(CONNECT_TIMEOUT).connect_lazy(),
            headers: MetadataMap::from_headers(endpoint.headers.map().clone()),
            is_compressed: endpoint.is_compressed,
        })
    }

    async fn send(&mut self, batch: &Batch) -> Result<u64, Refused> {
        match batch {
            Batch::Spans(request, _) => {
                let mut client = tonic::client::Grpc::new(self.channel.clone());
                if self.is_compressed {
                    client = client.send_compressed(CompressionEncoding::Gzip);
                }
                let ready = client.ready().await;
                ready.map_err(|error| Refused::for_now(because(&error)))?;
                let codec = ProstCodec::<TracesRequest, ExportTraceServiceResponse>::default();
                let path = PathAndQuery::from_static(TRACE_SERVICE);
                let answer = client.unary(self.request(request), path, codec).await?;
                Ok(rejected_spans(answer.get_ref()))
            }
            Batch::Lines(request, _) => {
                let mut client = client!(LogsServiceClient, self);
                let answer = client.export(self.request(request)).await?;
                Ok(rejected_lines(answer.get_ref()))
            }
            Batch::Metrics(request) => {
                let mut client = client!(MetricsServiceClient, self);
                let answer = client.export(self.request(request)).await?;
                Ok(rejected_points(answer.get_ref()))
            }
        }
    }

    fn request<M: Clone>(&self, message: &M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message.clone());
        request.metadata_mut().clone_from(&self.headers);
        request
    }
}

fn anchors(
    authorities: &[CertificateDer<'static>],
) -> Vec<rustls::pki_types::TrustAnchor<'static>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    roots.roots
}

struct Http {
    client: reqwest::Client,
    url: String,
    is_compressed: bool,
}

impl Http {
    fn new(endpoint: &Endpoint) -> Result<Http, String> {
        // Requests only go to the operator's address.
        let mut client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .default_headers(endpoint.headers.map().clone());
        if !endpoint.authorities.is_empty() {
            let authorities = endpoint.authorities.iter();
            let authorities: Result<Vec<_>, _> = authorities
                .map(|it| reqwest::Certificate::from_der(it))
                .collect();
            let authorities = authorities.map_err(|error| because(&error))?;
            client = client.tls_certs_only(authorities);
        }
        Ok(Http {
            client: client.build().map_err(|error| because(&error))?,
            url: endpoint.url.clone(),
            is_compressed: endpoint.is_compressed,
        })
    }

    async fn send(&mut self, batch: &Batch) -> Result<u64, Refused> {
        match batch {
            Batch::Spans(request, _) => {
                let answer = self.post("v1/traces", request).await?;
                Ok(rejected_spans(&answer))
            }
            Batch::Lines(request, _) => {
                let answer = self.post("v1/logs", request).await?;
                Ok(rejected_lines(&answer))
            }
            Batch::Metrics(request) => {
                let answer = self.post("v1/metrics", request).await?;
                Ok(rejected_points(&answer))
            }
        }
    }

    async fn post<A: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<A, Refused> {
        let unreachable = |error: reqwest::Error| Refused::for_now(because(&error.without_url()));
        let mut body = request.encode_to_vec();
        let mut post = self.client.post(format!("{}/{path}", self.url));
        post = post.header("content-type", "application/x-protobuf");
        if self.is_compressed {
            body = compress(&body).map_err(|error| Refused::for_now(because(&error)))?;
            post = post.header("content-encoding", "gzip");
        }
        let mut answer = post.body(body).send().await.map_err(unreachable)?;
        let status = answer.status();
        if !status.is_success() {
            let may_succeed = matches!(status.as_u16(), 429 | 502 | 503 | 504);
            let after = answer.headers().get("retry-after").filter(|_| may_succeed);
            let after = after.and_then(|after| after.to_str().ok());
            return Err(Refused {
                is_final: !may_succeed,
                why: format!("it answers {status}"),
                retry_after: after.and_then(|after| retry_after(after, SystemTime::now())),
            });
        }
        let mut body = Vec::new();
        loop {
            match answer.chunk().await.map_err(unreachable)? {
                Some(chunk) if body.len() + chunk.len() <= MAX_ANSWER_BYTES => {
                    body.extend_from_slice(&chunk);
                }
                // No valid answer to an accepted request is that long.
                Some(_too_much) => return Ok(A::default()),
                None => break,
            }
        }
        // The request was accepted, whatever else the answer says.
        Ok(A::decode(&*body).unwrap_or_default())
    }
}

fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(body)?;
    gzip.finish()
}

fn rejected_spans(answer: &ExportTraceServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| partial.rejected_spans.max(0) as u64)
}

fn rejected_lines(answer: &ExportLogsServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| partial.rejected_log_records.max(0) as u64)
}

/// A snapshot is counted as a whole: rejected only if all of its points are.
fn rejected_points(answer: &ExportMetricsServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| u64::from(partial.rejected_data_points > 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_failure_is_told_once_a_while_and_its_end_once() {
        let mut told = Told::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        assert!(!told.sent(), "nothing has failed");
        assert!(told.failed(at(0)));
        assert!(!told.failed(at(1)));
        assert!(told.sent());
        assert!(!told.sent());
        // Frequent failures don't cause frequent log lines.
        assert!(!told.failed(at(59)));
        assert!(!told.sent());
        assert_eq!(FAILURE_TOLD_EVERY.as_secs(), 60);
        assert!(told.failed(at(60)));
        assert!(!told.failed(at(119)));
        assert!(told.failed(at(120)), "it lasts");
    }

    #[test]
    fn when_to_come_back_is_seconds_or_a_date_and_has_an_end() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let after = |value| retry_after(value, now).map(|after| after.as_secs());
        for (value, expected) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            (
                "Sat, 06 Nov 2094 08:00:00 GMT",
                Some(MAX_RETRY_AFTER.as_secs()),
            ),
            ("100000000000000000000000", Some(MAX_RETRY_AFTER.as_secs())),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(after(value), expected, "{value:?}");
        }
    }

    #[test]
    fn retry_info_is_found_among_a_status_details() {
        let detail = |name: &str, value: Vec<u8>| RpcDetail {
            type_url: format!("type.googleapis.com/{name}"),
            value,
        };
        let info = |seconds, nanos| {
            let retry_delay = Some(RetryDelay { seconds, nanos });
            detail(
                "google.rpc.RetryInfo",
                RetryInfo { retry_delay }.encode_to_vec(),
            )
        };
        let found = |details: Vec<RpcDetail>| retry_info(&RpcStatus { details }.encode_to_vec());
        let other = || detail("google.rpc.DebugInfo", vec![1, 2, 3]);
        assert_eq!(
            found(vec![other(), info(2, 500_000_000)]),
            Some(Duration::from_millis(2_500))
        );
        assert_eq!(found(vec![info(-5, -1)]), Some(Duration::ZERO));
        assert_eq!(found(vec![info(i64::MAX, i32::MAX)]), Some(MAX_RETRY_AFTER));
        assert_eq!(found(vec![other()]), None);
        assert_eq!(retry_info(b"no message"), None);
        // OTLP's table: without RetryInfo, exhausted resources are a final error.
        let refused = Refused::from(tonic::Status::resource_exhausted("too long"));
        assert!(refused.is_final && refused.retry_after.is_none());
        let details = RpcStatus {
            details: vec![info(1, 0)],
        }
        .encode_to_vec();
        let status =
            tonic::Status::with_details(tonic::Code::ResourceExhausted, "", details.into());
        let refused = Refused::from(status);
        assert!(!refused.is_final);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failure {
        text: String,
        source: Option<Box<Failure>>,
    }

    #[test]
    fn a_reason_has_its_causes_once_and_an_end() {
        let failure = |text: &str, source| Failure {
            text: text.to_owned(),
            source,
        };
        let inner = || Box::new(failure("bad\u{1b}[31m name", None));
        let outer = failure("no TLS", Some(inner()));
        assert_eq!(because(&outer), "no TLS: bad\\u{1b}[31m name");
        let outer = failure("no TLS: bad\u{1b}[31m name", Some(inner()));
        assert_eq!(because(&outer), "no TLS: bad\\u{1b}[31m name");
        let long = failure(&"é".repeat(MAX_REASON_CHARS + 1), None);
        assert_eq!(because(&long), "é".repeat(MAX_REASON_CHARS));
    }
}
