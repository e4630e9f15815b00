//! Bounds on reads from daemons, files and hosts, on waiting times, and on the resources that a
//! host should have.

use std::time::Duration;

/// Open files that a daemon needs with as many sessions as it takes (`MAX_SESSIONS` of the daemon's limits).
pub(crate) const DESCRIPTORS: u64 = 23_700;

/// Memory mappings per process that Linux gives unless it is told otherwise; 10,000 instances of policies and their sessions need about as many.
pub(crate) const MAPPINGS: u64 = 65_530;

/// Free space below which a state directory is as good as full: 64 MiB. A module of a policy has up to 16 MiB, compiled several times that.
pub(crate) const FREE_STATE_BYTES: u64 = 64 << 20;

/// Most hosts in a fleet file: they are upgraded one after the other, so more take another tool.
pub(crate) const MAX_HOSTS: usize = 256;

/// Longest fleet file, in bytes.
pub(crate) const MAX_FLEET_BYTES: u64 = 1 << 20;

/// Longest journal of an upgrade, in bytes. What was there before is kept of one host at a time: 256 hosts, and some thousand services.
pub(crate) const MAX_JOURNAL_BYTES: u64 = 16 << 20;

/// The largest report of a daemon that is read: 64 MiB.
pub(crate) const MAX_REPORT_BYTES: usize = 64 << 20;

/// What is read of a failed command's standard error: 64 KiB.
pub(crate) const MAX_SAID_BYTES: usize = 64 << 10;

/// The longest that an operator may allow a host until it is as it was.
pub(crate) const MAX_SETTLE: Duration = Duration::from_secs(600);

/// The longest request on standard input: 96 MiB. A message has up to 16 MiB, and JSON up to six characters for a byte of it.
pub(crate) const MAX_INPUT_BYTES: usize = 96 << 20;

/// The first and the longest pause before `serve` tries to reach its daemon again; each is half as long again as the one before.
pub(crate) const REACH_AGAIN: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_secs(5));

/// Levels of a trace's tree that `tollgate trace` shows: a daemon's peers choose what is whose parent.
pub(crate) const MAX_TREE_DEPTH: usize = 64;

/// How often `tollgate tap` asks for what has ended.
pub(crate) const TAP_EVERY: Duration = Duration::from_millis(200);

/// The first and the longest pause between two looks at a host that settles.
pub(crate) const LOOK_AGAIN: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_secs(1));

/// How long `ssh` may take to connect, in seconds.
pub(crate) const SSH_CONNECT_S: u32 = 10;

/// Every so many seconds, `ssh` asks a silent host for a sign of life, and gives up after so many in vain.
pub(crate) const SSH_ALIVE: (u32, u32) = (10, 6);

/// Most buckets of a histogram that are read: the daemon's have 336.
pub(crate) const MAX_BUCKETS: usize = 4_096;

/// Most characters of a name in a live view; a method's full name has up to 511 bytes or so, and nobody's terminal shows more.
pub(crate) const MAX_NAME_CHARS: usize = 512;

/// How long `status` looks at what calls there are, to say how many per second.
pub(crate) const CALLS_LOOK: Duration = Duration::from_millis(250);

/// Lines that `status` and `policy show` have for each of what there may be many of: tenants, peers, policies, problems.
pub(crate) const MAX_SHOWN_EACH: usize = 6;

/// The shortest interval of a live view: what a daemon is asked costs it a copy of all series.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// How long a live view waits for a key before it looks at everything else.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(50);
