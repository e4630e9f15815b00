//! All bounds of telemetry and their purposes. Overflow is counted, and the counts are metrics
//! themselves.

use std::time::Duration;

/// Series of calls' durations that one runtime keeps: one per tenant, method, side and status. Each is 2.7 KB, so all are 2.8 MB. What doesn't
/// fit is counted in one more series, with `otel.metric.overflow`.
pub const MAX_SERIES: usize = 1_024;

/// Of those, one tenant's: nobody else is left without by a tenant with many methods.
pub const MAX_SERIES_PER_TENANT: usize = MAX_SERIES / 4;

/// Octaves of a histogram's buckets: from 2^-30 s, about a nanosecond, to 2^12 s, more than the longest call.
pub const OCTAVES: usize = 42;

/// Buckets of one octave: a bucket's bounds differ by 9 %.
pub const BUCKETS_PER_OCTAVE: usize = 8;

/// Records (spans and lines) that wait between the runtimes and the control plane, which looks every [`COLLECT_EVERY`]. Some KB each.
pub const MAX_RECORDS: usize = 4_096;

/// How often the control plane takes what runtimes have left.
pub const COLLECT_EVERY: Duration = Duration::from_millis(200);

/// Calls in flight of one runtime that are traced; of those beyond, nothing but their durations is known.
pub const MAX_TRACED: usize = 4_096;

/// Events of one span: a call within one host meets four chains of 16 attachments at most, which is rare, and streams have many messages.
pub const MAX_EVENTS: usize = 48;

/// Lines about failed calls of one tenant on one runtime within a second; the first that comes later says how many there weren't.
pub const MAX_LINES_PER_SECOND: u32 = 10;

/// Calls that one runtime tells who watches them, within a second; the first that comes later says how many there weren't. Some KB each, and they
/// share a queue with spans and lines ([`MAX_RECORDS`]), which they must not crowd out.
pub const MAX_TAPPED_PER_SECOND: u32 = 2_000;

/// Characters of a `tracestate` that are carried, as W3C wants it; a longer one is dropped.
pub const MAX_TRACESTATE_BYTES: usize = 512;

/// Spans that wait for one endpoint, and as many lines. The newest are dropped beyond that: what is there is a whole story.
pub const MAX_QUEUED: usize = 8_192;

/// Spans, or lines, of one request.
pub const MAX_BATCH: usize = 512;

/// How long an endpoint may take to answer one request.
pub const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Of that, how long the connection may take: to a host that is down and drops what comes, so that the next request tries another one.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of an endpoint's answer over HTTP that are read. One over gRPC is 4 MiB at most, tonic's own limit.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Headers that an endpoint's requests carry beside the protocol's.
pub const MAX_HEADERS: usize = 32;

/// Bytes of the file that they are from. Servers refuse more than some KiB of headers anyway.
pub const MAX_HEADERS_BYTES: usize = 8 << 10;

/// Bytes of the file with the certificates that an endpoint's may come from. All that a system trusts are 250 KB.
pub const MAX_CA_BYTES: usize = 1 << 20;

/// How often it is said, of each kind of requests, that an endpoint doesn't take them, however many fail.
pub const FAILURE_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Characters of the reason that are said: a stranger's certificate has names of the stranger's choice in it.
pub const MAX_REASON_CHARS: usize = 300;

/// First and longest pause after a request that failed, doubled in between.
pub const EXPORT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(30));

/// The longest that an endpoint may have us wait that says when to come back. What is queued meanwhile has [`MAX_QUEUED`].
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Times that a request is made before its spans and lines are dropped.
pub const MAX_TRIES: u32 = 5;

/// Scrapes that are answered at once. One more takes the place of the oldest connection that hasn't sent a whole request.
pub const MAX_SCRAPES: usize = 8;

/// How long the head of a scrape's request may take.
pub const SCRAPE_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a scrape whose request is whole has its place to itself: some ten times as long as the answer takes.
pub const SCRAPE_KEPT: Duration = Duration::from_millis(250);

/// How long a scrape may take, its connection included.
pub const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
