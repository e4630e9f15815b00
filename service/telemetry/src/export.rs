//! Exporters: each sends one endpoint's data by OTLP over gRPC or HTTP.
//!
//! ```text
//!  push ─▶ spans, lines: queues of MAX_QUEUED ──┐
//!          metrics: the latest snapshot ────────┴─ one request at a time ─▶ the endpoint
//!                                                   fails: again after a pause that grows, MAX_TRIES times
//! ```
//!
//! An endpoint may say when to come back (`Retry-After` over HTTP, `RetryInfo` over gRPC). Until
//! then, and for [`MAX_RETRY_AFTER`](crate::limits::MAX_RETRY_AFTER) at most, it gets neither the
//! same request nor another one.
//!
//! Pushing never waits, memory is bounded, and every item is counted once: exported, rejected, or
//! dropped and why. Metrics are cumulative, so the next snapshot replaces one that couldn't be
//! sent. The log says that an endpoint takes nothing, and why. It doesn't quote the endpoint's own
//! words, since the endpoint knows the secrets in its headers.
//!
//! Absent on purpose: files for unsent data (a local collector has them), and client certificates
//! (headers identify the exporter).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::exposition::Now;
use crate::limits::{EXPORT_PAUSE, EXPORT_TIMEOUT, FAILURE_TOLD_EVERY, MAX_BATCH, MAX_QUEUED};
use crate::metrics::Metrics;
use crate::otlp::Daemon;
use crate::record::{Line, Record, Span};

mod batch;
mod client;
mod endpoint;
mod refused;

pub use batch::{Counts, Fate};
pub use endpoint::{Endpoint, EndpointError, Protocol};

use batch::Batch;
use client::Client;
use refused::Refused;

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
}
