//! Bounds on reads from daemons, files and hosts, on waiting times, and on the resources that a
//! host should have.

use std::time::Duration;

/// Open files that a daemon needs with the maximum number of sessions (`MAX_SESSIONS` of the
/// daemon's limits).
pub(crate) const DESCRIPTORS: u64 = 25_000;

/// Linux's default limit of memory mappings per process. 10,000 instances of policies and their
/// sessions need about as many.
pub(crate) const MAPPINGS: u64 = 65_530;

/// Free space below which a state directory counts as full: 64 MiB. A policy's module has up to 16
/// MiB, and its compiled code several times that.
pub(crate) const FREE_STATE_BYTES: u64 = 64 << 20;

/// Most hosts in a fleet file. They are upgraded one after the other, so a larger fleet needs
/// another tool.
pub(crate) const MAX_HOSTS: usize = 256;

/// Longest fleet file, in bytes.
pub(crate) const MAX_FLEET_BYTES: u64 = 1 << 20;

/// Longest file of documents, in bytes: 16,384 objects.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// Most files of documents of one apply.
pub(crate) const MAX_DOCUMENT_FILES: usize = 4_096;

/// Longest journal of an upgrade, in bytes: 256 hosts, and some thousand services. Only one host at
/// a time has a snapshot in it.
pub(crate) const MAX_JOURNAL_BYTES: u64 = 16 << 20;

/// The largest accepted report of a daemon: 64 MiB.
pub(crate) const MAX_REPORT_BYTES: usize = 64 << 20;

/// The most bytes read of a failed command's standard error: 64 KiB.
pub(crate) const MAX_SAID_BYTES: usize = 64 << 10;

/// The longest time that an operator may allow a host to become healthy again.
pub(crate) const MAX_SETTLE: Duration = Duration::from_secs(600);

/// The longest request on standard input: 96 MiB. A message has up to 16 MiB, and JSON up to six
/// characters for a byte of it.
pub(crate) const MAX_INPUT_BYTES: usize = 96 << 20;

/// The first and the longest pause before `serve` tries to reach its daemon again. Each pause is
/// 1.5 times as long as the one before.
pub(crate) const REACH_AGAIN: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_secs(5));

/// Levels of a trace's tree that `tollgate trace` shows. It is bounded because a daemon's peers
/// choose the parents of spans.
pub(crate) const MAX_TREE_DEPTH: usize = 64;

/// The first and the longest pause between two looks at a host that settles.
pub(crate) const LOOK_AGAIN: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_secs(1));

/// How long `ssh` may take to connect, in seconds.
pub(crate) const SSH_CONNECT_S: u32 = 10;

/// The interval in seconds at which `ssh` probes a silent host, and the number of unanswered probes
/// after which it gives up.
pub(crate) const SSH_ALIVE: (u32, u32) = (10, 6);

/// The most buckets of a histogram that are read. The daemon's histograms have 336.
pub(crate) const MAX_BUCKETS: usize = 4_096;

/// The most characters of a name in a live view. A method's full name has up to about 511 bytes,
/// and no terminal shows more.
pub(crate) const MAX_NAME_CHARS: usize = 512;

/// How long `status` observes calls, to compute a rate per second.
pub(crate) const CALLS_LOOK: Duration = Duration::from_millis(250);

/// The most lines of `status` and `policy show` for each unbounded list: tenants, peers, policies,
/// problems.
pub(crate) const MAX_SHOWN_EACH: usize = 6;

/// The shortest interval of a live view. Each request costs the daemon a copy of all series.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// How long a live view waits for a key before it looks at everything else.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(50);

/// The most bytes of the file with the contexts.
pub(crate) const MAX_CONTEXTS_BYTES: u64 = 1 << 20;

/// The pause before a command that waits for an operator's approval watches it again, if the daemon
/// ended the watch.
pub(crate) const APPROVAL_LOOK: Duration = Duration::from_secs(1);
