//! Every bound of the engine, with its purpose and the resulting totals.
//!
//! A runtime preallocates for [`MAX_CALLS`]; nothing here grows with load beyond these numbers.

/// Calls that one runtime tracks at once, from all applications and links.
///
/// Each costs about 200 bytes here, so a full table is 13 MB. One more is answered
/// RESOURCE_EXHAUSTED.
pub const MAX_CALLS: usize = 65_536;

/// Engines that one process may have had, those that have ended and those of daemons before it included: each has a number in the keys of its
/// calls. A daemon that has started so many runtimes adds no more until it is restarted.
pub const MAX_BIRTHS: usize = 1 << 14;

/// Bytes of one call: a frame's length has 32 bits.
pub const MAX_CALL_BYTES: u64 = u32::MAX as u64;

/// Calls that one application session may have outstanding, queued ones included.
///
/// The application's completion queue holds as many answers, so an answer always has a place.
pub const MAX_OUTSTANDING_PER_SESSION: u32 = 4_096;

/// Calls delivered to one serving session and not answered yet.
pub const MAX_DELIVERED_PER_SESSION: u32 = 4_096;

/// Calls that one link holds back while its peer grants no credit, or takes less than it is sent.
pub const MAX_WAITING_PER_LINK: usize = 4_096;

/// Bytes of the calls that one link holds back.
pub const MAX_WAITING_BYTES_PER_LINK: u64 = 64 << 20;

/// Bytes of such calls that leave at once when they may, before their link is looked at again: 256 KiB. A single larger one leaves alone.
pub const SENT_AT_ONCE_BYTES: u64 = 256 << 10;

/// Priorities of calls: 0, which is the default, to 7, the most urgent.
pub const PRIORITIES: usize = 8;

/// Of the calls that wait for a link's credit, every so many-th to leave is the one that has waited longest.
pub const OLDEST_EVERY: u64 = 8;

/// Calls with streams that wait for a link, before those that have ended meanwhile are forgotten.
pub const STREAMS_BEFORE_SWEEP: usize = 64;

/// Longest life of a call. A call without a deadline, or with a later one, gets this: 1 hour.
pub const MAX_DEADLINE_NS: u64 = 3_600_000_000_000;

/// Resolution of deadlines: a call expires at most this much late. 1 ms.
pub const TIMER_TICK_NS: u64 = 1_000_000;

/// Slots of the timer wheel; a deadline further away than `TIMER_SLOTS` ticks stays in its slot
/// and is looked at once a turn of the wheel.
pub const TIMER_SLOTS: usize = 4_096;

/// How far one tenant's share of a runtime's time may be ahead of another's, who has something to do, before it sits out. 50 us.
pub const MAX_AHEAD_NS: u64 = 50_000;

/// What a tenant that had nothing to do may catch up, before it has no more than the others: 1 ms.
pub const MAX_BEHIND_NS: u64 = 1_000_000;

/// Calls that a serving session is given at once however long they wait there.
pub const LEAST_DELIVERED: u32 = 4;

/// How long waits are measured before a server's number of calls changes: 20 ms, and at least [`WAITS_PER_INTERVAL`] of them.
pub const WAITS_INTERVAL_NS: u64 = 20_000_000;

/// See [`WAITS_INTERVAL_NS`].
pub const WAITS_PER_INTERVAL: u64 = 16;

/// The longest after which the caller of a server that has too much to do is told to try again: 1 s.
pub const MAX_RETRY_MS: u32 = 1_000;
