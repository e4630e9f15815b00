//! Exporters: what one endpoint gets, over OTLP by gRPC or HTTP.
//!
//! ```text
//!  push ─▶ spans, lines: queues of MAX_QUEUED ──┐
//!          metrics: the latest snapshot ────────┴─ one request at a time ─▶ the endpoint
//!                                                   fails: again after a pause that grows, MAX_TRIES times
//! ```
//!
//! Nobody who pushes waits, memory is bounded, and everything that goes in is counted once: exported, rejected, or dropped and why. Metrics are
//! cumulative, so a snapshot that couldn't be sent is dropped for the next one.
//!
//! Absent on purpose: files for what can't be sent (a local collector has them), and TLS for gRPC (likewise; over HTTP there is TLS).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use tokio::sync::Notify;
use tonic::transport::Channel;

use crate::limits::{
    EXPORT_PAUSE, EXPORT_TIMEOUT, MAX_ANSWER_BYTES, MAX_BATCH, MAX_QUEUED, MAX_TRIES,
};
use crate::metrics::Metrics;
use crate::otlp::Daemon;
use crate::prometheus::Now;
use crate::record::{Line, Record, Span};

/// How an endpoint is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC: port 4317 of a collector.
    #[default]
    Grpc,
    /// OTLP over HTTP, in protobuf: port 4318 of a collector.
    Http,
}

/// Where to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    protocol: Protocol,
}

/// Why an endpoint is none: the operator's mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It isn't a URL with a host.
    #[error("{url:?} is no endpoint: http://HOST:PORT is one")]
    NoUrl {
        /// What was written.
        url: String,
    },
    /// It has a scheme that isn't spoken.
    #[error("{url:?}: {scheme} isn't spoken with this protocol, {spoken}")]
    Scheme {
        /// What was written.
        url: String,
        /// Its scheme.
        scheme: String,
        /// What would do.
        spoken: &'static str,
    },
    /// Its client can't be made.
    #[error("{url:?} can't be used: {why}")]
    Unusable {
        /// What was written.
        url: String,
        /// The client's reason.
        why: String,
    },
}

impl Endpoint {
    /// Checks what an operator wrote.
    ///
    /// # Errors
    /// If it is no URL, or of a scheme that the protocol doesn't have here.
    pub fn new(url: &str, protocol: Protocol) -> Result<Endpoint, EndpointError> {
        let url = url.trim_end_matches('/').to_owned();
        let parsed = reqwest::Url::parse(&url).ok();
        let Some(parsed) = parsed.filter(reqwest::Url::has_host) else {
            return Err(EndpointError::NoUrl { url });
        };
        let (known, spoken): (&[&str], _) = match protocol {
            Protocol::Grpc => (&["http"], "http is: TLS needs a collector on this host"),
            Protocol::Http => (&["http", "https"], "http and https are"),
        };
        if !known.contains(&parsed.scheme()) {
            let scheme = parsed.scheme().to_owned();
            return Err(EndpointError::Scheme {
                url,
                scheme,
                spoken,
            });
        }
        Ok(Endpoint { url, protocol })
    }

    /// As it was written.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// What became of one kind of things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Accepted by the endpoint.
    pub exported: u64,
    /// Refused by the endpoint, of requests that it took.
    pub rejected: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Dropped because requests failed.
    pub failed: u64,
}

/// What became of everything that one endpoint was to get; and requests that failed, those that were made again included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans.
    pub spans: Fate,
    /// Lines.
    pub lines: Fate,
    /// Snapshots of metrics.
    pub snapshots: Fate,
    /// Requests.
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
    /// A panic in between leaves counts, which are right at any time.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One endpoint's exporter. Ends when it is dropped, with what waits.
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
    /// Starts one, within a tokio runtime. The endpoint needn't be there.
    ///
    /// # Errors
    /// If no client can be made for it.
    pub fn start(endpoint: Endpoint, daemon: Daemon) -> Result<Exporter, EndpointError> {
        let shared = Arc::<Shared>::default();
        let client = Client::new(&endpoint)?;
        let worker = Worker {
            shared: Arc::clone(&shared),
            client,
            daemon,
        };
        let task = tokio::task::spawn(worker.run());
        Ok(Exporter {
            shared,
            endpoint,
            task,
        })
    }

    /// Where it exports to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Queues what a call has left; full, it is dropped and counted.
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
            // Nobody exports what somebody watches.
            Record::Tapped(_) => return,
        }
        self.shared.bell.notify_one();
    }

    /// Has the latest metrics sent; those before, if they still wait, are dropped.
    pub fn snapshot(&self, metrics: Metrics, now: Now) {
        let mut queue = self.shared.queue();
        queue.now = Some(now);
        if queue.metrics.replace(metrics).is_some() {
            queue.counts.snapshots.overflowed += 1;
        }
        self.shared.bell.notify_one();
    }

    /// What has become of everything so far.
    pub fn counts(&self) -> Counts {
        self.shared.queue().counts
    }
}

/// What is sent in one request, and how many things that is.
enum Batch {
    Spans(ExportTraceServiceRequest, u64),
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

    /// A snapshot is old by the time that it could be sent again.
    fn tries(&self) -> u32 {
        match self {
            Batch::Metrics(_) => 1,
            _ => MAX_TRIES,
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    client: Client,
    daemon: Daemon,
}

impl Worker {
    async fn run(mut self) {
        loop {
            let batches = self.next();
            if batches.is_empty() {
                self.shared.bell.notified().await;
            }
            for batch in batches {
                self.send(&batch).await;
            }
        }
    }

    /// One request of each kind of which there is anything.
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
            let sent = tokio::time::timeout(EXPORT_TIMEOUT, self.client.send(batch)).await;
            let sent = sent.unwrap_or(Err(Refused { is_final: false }));
            match sent {
                Ok(rejected) => return self.note_sent(batch, rejected),
                Err(refused) => {
                    let is_last = refused.is_final || attempt == batch.tries();
                    self.note_failed(batch, is_last);
                    if is_last {
                        return;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(EXPORT_PAUSE.1);
        }
    }

    fn note_sent(&self, batch: &Batch, rejected: u64) {
        let rejected = rejected.min(batch.len());
        let counts = &mut self.shared.queue().counts;
        let fate = batch.fate(counts);
        fate.rejected += rejected;
        fate.exported += batch.len() - rejected;
    }

    fn note_failed(&self, batch: &Batch, is_last: bool) {
        let counts = &mut self.shared.queue().counts;
        counts.failed_requests += 1;
        if is_last {
            batch.fate(counts).failed += batch.len();
        }
    }
}

/// A request failed.
struct Refused {
    /// The same would fail again.
    is_final: bool,
}

impl From<tonic::Status> for Refused {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        // OTLP's table. What a channel that can't connect says is UNAVAILABLE.
        let may_succeed = matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::ResourceExhausted
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
        );
        Refused {
            is_final: !may_succeed,
        }
    }
}

enum Client {
    Grpc(Channel),
    Http(reqwest::Client, String),
}

impl Client {
    fn new(endpoint: &Endpoint) -> Result<Client, EndpointError> {
        let url = endpoint.url.clone();
        let unusable = |why: String| EndpointError::Unusable {
            url: url.clone(),
            why,
        };
        match endpoint.protocol {
            Protocol::Grpc => {
                let channel = Channel::from_shared(url.clone());
                let channel = channel.map_err(|error| unusable(error.to_string()))?;
                let connecting = Duration::from_secs(5).min(EXPORT_TIMEOUT);
                Ok(Client::Grpc(
                    channel.connect_timeout(connecting).connect_lazy(),
                ))
            }
            Protocol::Http => {
                let _chosen_before = rustls::crypto::ring::default_provider().install_default();
                // Nothing goes anywhere but where the operator said.
                let client = reqwest::Client::builder()
                    .no_proxy()
                    .redirect(reqwest::redirect::Policy::none())
                    .build();
                let client = client.map_err(|error| unusable(error.to_string()))?;
                Ok(Client::Http(client, url.clone()))
            }
        }
    }

    /// Returns how many things the endpoint has rejected.
    async fn send(&mut self, batch: &Batch) -> Result<u64, Refused> {
        match (self, batch) {
            (Client::Grpc(channel), Batch::Spans(request, _)) => {
                let mut client = TraceServiceClient::new(channel.clone());
                let answer = client.export(request.clone()).await?.into_inner();
                Ok(rejected_spans(&answer))
            }
            (Client::Grpc(channel), Batch::Lines(request, _)) => {
                let mut client = LogsServiceClient::new(channel.clone());
                let answer = client.export(request.clone()).await?.into_inner();
                Ok(rejected_lines(&answer))
            }
            (Client::Grpc(channel), Batch::Metrics(request)) => {
                let mut client = MetricsServiceClient::new(channel.clone());
                let answer = client.export(request.clone()).await?.into_inner();
                Ok(rejected_points(&answer))
            }
            (Client::Http(client, url), Batch::Spans(request, _)) => {
                let answer = post(client, format!("{url}/v1/traces"), request).await?;
                Ok(rejected_spans(&answer))
            }
            (Client::Http(client, url), Batch::Lines(request, _)) => {
                let answer = post(client, format!("{url}/v1/logs"), request).await?;
                Ok(rejected_lines(&answer))
            }
            (Client::Http(client, url), Batch::Metrics(request)) => {
                let answer = post(client, format!("{url}/v1/metrics"), request).await?;
                Ok(rejected_points(&answer))
            }
        }
    }
}

fn rejected_spans(answer: &ExportTraceServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| partial.rejected_spans.max(0) as u64)
}

fn rejected_lines(answer: &ExportLogsServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| partial.rejected_log_records.max(0) as u64)
}

/// Of a snapshot, all or nothing is told: some points of it are there.
fn rejected_points(answer: &ExportMetricsServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| u64::from(partial.rejected_data_points > 0))
}

async fn post<A: Message + Default>(
    client: &reqwest::Client,
    url: String,
    request: &impl Message,
) -> Result<A, Refused> {
    let sent = client
        .post(url)
        .header("content-type", "application/x-protobuf")
        .body(request.encode_to_vec())
        .send()
        .await;
    let mut answer = sent.map_err(|_unreachable| Refused { is_final: false })?;
    let status = answer.status();
    if !status.is_success() {
        let may_succeed = matches!(status.as_u16(), 429 | 502 | 503 | 504);
        return Err(Refused {
            is_final: !may_succeed,
        });
    }
    let mut body = Vec::new();
    loop {
        let chunk = answer.chunk().await;
        match chunk.map_err(|_cut_off| Refused { is_final: false })? {
            Some(chunk) if body.len() + chunk.len() <= MAX_ANSWER_BYTES => {
                body.extend_from_slice(&chunk);
            }
            // Nobody has that much to say about a request that was accepted.
            Some(_too_much) => return Ok(A::default()),
            None => break,
        }
    }
    // Accepted it is, whatever the answer says beside that.
    Ok(A::decode(&*body).unwrap_or_default())
}
