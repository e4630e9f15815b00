//! Batches: the content of one request, and the counts of its items by their outcome.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;

use crate::limits::MAX_TRIES;
use crate::otlp::TracesRequest;

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

/// The content of one request, and its number of items.
pub(super) enum Batch {
    Spans(TracesRequest, u64),
    Lines(ExportLogsServiceRequest, u64),
    Metrics(ExportMetricsServiceRequest),
}

impl Batch {
    pub(super) fn len(&self) -> u64 {
        match self {
            Batch::Spans(_, count) | Batch::Lines(_, count) => *count,
            Batch::Metrics(_) => 1,
        }
    }

    pub(super) fn fate<'c>(&self, counts: &'c mut Counts) -> &'c mut Fate {
        match self {
            Batch::Spans(..) => &mut counts.spans,
            Batch::Lines(..) => &mut counts.lines,
            Batch::Metrics(_) => &mut counts.snapshots,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Batch::Spans(..) => Kind::Spans,
            Batch::Lines(..) => Kind::Lines,
            Batch::Metrics(_) => Kind::Metrics,
        }
    }

    /// Number of tries. A snapshot gets one: it would be outdated by the retry.
    pub(super) fn tries(&self) -> u32 {
        match self {
            Batch::Metrics(_) => 1,
            _ => MAX_TRIES,
        }
    }
}

/// The kind of exported items.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Spans,
    Lines,
    Metrics,
}

impl Kind {
    /// The kind's label in the metrics about exports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Spans => "spans",
            Kind::Lines => "lines",
            Kind::Metrics => "metrics",
        }
    }
}
