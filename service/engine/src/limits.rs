//! Every bound of the engine, with its purpose and the resulting totals.
//!
//! A runtime preallocates for [`MAX_CALLS`]; nothing here grows with load beyond these numbers.

/// Calls that one runtime tracks at once, from all applications and links.
///
/// Each takes about 200 bytes here, so a full table takes 13 MB. Another call is answered with
/// RESOURCE_EXHAUSTED.
pub const MAX_CALLS: usize = 65_536;

/// Engines that one process may have had, including ended ones and those of its predecessors: each
/// has a number in the keys of its calls. A daemon that has started this many runtimes adds none
/// until it is restarted.
pub const MAX_ENGINE_IDS: usize = 1 << 14;

/// Bytes of one call: a frame's length has 32 bits.
pub const MAX_CALL_BYTES: u64 = u32::MAX as u64;

/// Outstanding calls of one application session, including queued ones.
///
/// The application's completion queue holds this many answers, so an answer always has a slot.
pub const MAX_OUTSTANDING_PER_SESSION: u32 = 4_096;

/// Calls delivered to one serving session and not answered yet.
pub const MAX_DELIVERED_PER_SESSION: u32 = 4_096;

/// Calls that one link holds back while its peer grants no credit, or reads more slowly than calls
/// are sent.
pub const MAX_WAITING_PER_LINK: usize = 4_096;

/// Bytes of the calls that one link holds back.
pub const MAX_WAITING_BYTES_PER_LINK: u64 = 64 << 20;

/// Bytes of held calls that leave at once, before their link is checked again: 256 KiB. A larger
/// call leaves alone.
pub const SENT_AT_ONCE_BYTES: u64 = 256 << 10;

/// Priorities of calls: 0, which is the default, to 7, the most urgent.
pub const PRIORITIES: usize = 8;

/// One call in this many that leave a link's queue for credit is the one that has waited longest.
pub const OLDEST_EVERY: u64 = 8;

/// Calls with streams that wait for a link, before ended ones are removed.
pub const STREAMS_BEFORE_SWEEP: usize = 64;

/// Maximum life of a call: 1 hour. Calls without a deadline, or with a later one, get this one.
pub const MAX_DEADLINE_NS: u64 = 3_600_000_000_000;

/// Resolution of deadlines: a call expires at most this much late. 1 ms.
pub const TIMER_TICK_NS: u64 = 1_000_000;

/// Slots of the timer wheel; a deadline more than `TIMER_SLOTS` ticks away stays in its slot and is
/// checked once per turn of the wheel.
pub const TIMER_SLOTS: usize = 4_096;

/// How far one tenant's share of a runtime's time may be ahead of a busy tenant's before it is
/// throttled. 50 us.
pub const MAX_AHEAD_NS: u64 = 50_000;

/// The credit that an idle tenant may bank: 1 ms.
pub const MAX_BEHIND_NS: u64 = 1_000_000;

/// Calls that a serving session gets at once, however long they wait there.
pub const LEAST_DELIVERED: u32 = 4;

/// Interval of measured waits between changes of a server's number of calls: 20 ms, and at least
/// [`WAITS_PER_INTERVAL`] of them.
pub const WAITS_INTERVAL_NS: u64 = 20_000_000;

/// See [`WAITS_INTERVAL_NS`].
pub const WAITS_PER_INTERVAL: u64 = 16;

/// Maximum retry time for callers of an overloaded server: 1 s.
pub const MAX_RETRY_MS: u32 = 1_000;
