//! All bounds of telemetry and their purposes. Overflow is counted, and the counts are metrics
//! themselves.

use std::time::Duration;

/// Series of calls' durations that one runtime keeps: one per tenant, method, side and status. Each
/// is 2.7 KB, so all are 2.8 MB. Overflow is counted in one more series, with
/// `otel.metric.overflow`.
pub const MAX_SERIES: usize = 1_024;

/// Series of one tenant, so that a tenant with many methods leaves room for others.
pub const MAX_SERIES_PER_TENANT: usize = MAX_SERIES / 4;

/// Octaves of a histogram's buckets: from 2^-30 s, about a nanosecond, to 2^12 s, more than the
/// longest call.
pub const OCTAVES: usize = 42;

/// Buckets of one octave: a bucket's bounds differ by 9 %.
pub const BUCKETS_PER_OCTAVE: usize = 8;

/// Records (spans and lines) in the queue from the runtimes to the control plane, which reads it
/// every [`COLLECT_EVERY`]. Some KB each.
pub const MAX_RECORDS: usize = 4_096;

/// Interval at which the control plane collects the runtimes' records.
pub const COLLECT_EVERY: Duration = Duration::from_millis(200);

/// Traced calls in flight of one runtime; further calls only leave their durations.
pub const MAX_TRACED: usize = 4_096;

/// Events of one span. A call within one host meets at most four chains of 16 attachments, which is
/// rare, and streams have many messages.
pub const MAX_EVENTS: usize = 48;

/// Lines about failed calls of one tenant on one runtime within a second; the next line says how
/// many were suppressed.
pub const MAX_LINES_PER_SECOND: u32 = 10;

/// Calls that one runtime reports to watchers within a second; the next call says how many were
/// suppressed. Some KB each. They share a queue with spans and lines ([`MAX_RECORDS`]) and must not
/// crowd them out.
pub const MAX_TAPPED_PER_SECOND: u32 = 2_000;

/// Characters of a `tracestate` that are carried, as W3C requires; a longer one is dropped.
pub const MAX_TRACESTATE_BYTES: usize = 512;

/// Queued spans for one endpoint, and the same number of lines. Beyond that the newest are dropped,
/// so that the queue stays a history without gaps.
pub const MAX_QUEUED: usize = 8_192;

/// Spans, or lines, in one request.
pub const MAX_BATCH: usize = 512;

/// Time for an endpoint to answer one request.
pub const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Part of that time for the connection, for hosts that are down and drop packets. The next request
/// then tries another one.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of an endpoint's HTTP answer that are read. A gRPC answer has 4 MiB at most, tonic's own
/// limit.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Extra headers in an endpoint's requests.
pub const MAX_HEADERS: usize = 32;

/// Bytes of the file with these headers. Servers refuse more than some KiB of headers anyway.
pub const MAX_HEADERS_BYTES: usize = 8 << 10;

/// Bytes of the file with an endpoint's certificate authorities. All authorities of a system are
/// about 250 KB.
pub const MAX_CA_BYTES: usize = 1 << 20;

/// Shortest interval between log messages about an endpoint's failures, per kind of request.
pub const FAILURE_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Characters of a failure's reason in the log: a stranger's certificate contains names of the
/// stranger's choice.
pub const MAX_REASON_CHARS: usize = 300;

/// First and longest pause after a request that failed, doubled in between.
pub const EXPORT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(30));

/// The longest pause that an endpoint may ask for. [`MAX_QUEUED`] bounds the queue meanwhile.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Tries of a request before its spans and lines are dropped.
pub const MAX_TRIES: u32 = 5;

/// Concurrent scrapes. One more replaces the oldest connection that hasn't sent a whole request.
pub const MAX_SCRAPES: usize = 8;

/// Time for the head of a scrape's request.
pub const SCRAPE_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which a scrape with a complete request keeps its place: about ten times the duration of
/// the answer.
pub const SCRAPE_KEPT: Duration = Duration::from_millis(250);

/// Time for a whole scrape, including its connection.
pub const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
