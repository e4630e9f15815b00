//! Limits on a runtime's state and on its work per turn.

use std::time::Duration;

// Commands.

/// Commands that wait for one runtime. It is more than all connections of applications and
/// operators can be waiting for, each for one. Further commands are rejected, except those that
/// another limit bounds ([`Command::is_owed`](crate::Command::is_owed)).
pub const COMMANDS_QUEUED: usize = 16_384;

// Peers and links.

/// Links of one runtime to peers. Neither accepted nor dialled links may take the last
/// [`SHARE_OF_OTHERS`]. [`MAX_STRANGERS`] are counted separately. A low descriptor limit lowers
/// this number ([`SHARE_OF_PEERS`]). Each link has a 256 KiB receive buffer, touched lazily.
pub const MAX_LINKS: usize = 1_024;

/// Connections that a runtime has accepted and that haven't authenticated yet, in addition to
/// [`MAX_LINKS`]; if all of them authenticate at once, links may exceed [`MAX_LINKS`] by this many.
/// A low descriptor limit lowers this number. A daemon dials once per tenant, all at once after a
/// restart. A silent stranger takes a descriptor and about 20 KiB.
pub const MAX_STRANGERS: usize = 1_024;

/// The fraction of strangers that may come from one address: half.
pub const STRANGERS_PER_ADDRESS: usize = 2;

/// Links and strangers of all runtimes may take one eighth of the process's descriptors. That part
/// is reserved for them: a hard limit of 1,024 leaves 64 for links and 64 for strangers.
pub const SHARE_OF_PEERS: usize = 8;

/// Links, and strangers, that a runtime may have even if descriptors are scarce.
pub const LEAST_PEERS: usize = 4;

/// Accepted connections of peers that no runtime has looked at yet. Each takes a descriptor.
pub const ACCEPTED_UNSEEN: usize = 64;

/// The fraction of a runtime's links that dialled links leave to accepted ones, and accepted links
/// to dialled ones: a quarter.
pub const SHARE_OF_OTHERS: usize = 4;

/// The fraction of a runtime's links that one peer may have opened: half. A peer opens one link per
/// tenant.
pub const ACCEPTED_PER_PEER: usize = 2;

/// The fraction of a runtime's links that peers may have opened for one tenant: a quarter. Each
/// peer opens one.
pub const ACCEPTED_PER_TENANT: usize = 4;

/// Links that one peer may have opened for one tenant. It needs one, and a few more while links are
/// replaced or lost.
pub const MAX_ACCEPTED_PER_PAIR: usize = 16;

/// The fraction of a runtime's links that one tenant's applications may have had dialled: a
/// quarter. One more replaces links without bindings, or is rejected.
pub const DIALLED_PER_TENANT: usize = 4;

/// Dialled peers of one runtime with a last error that is kept for reports.
pub const MAX_PEER_ERRORS: usize = 256;

/// How long `status` shows that a link found no room.
pub const FULL_SHOWN: Duration = Duration::from_secs(600);

/// Peers' schemas that the control plane compares for one runtime, or is asked to compare. A
/// description has at most [`MAX_DESCRIPTION`](tollgate_transport::limits::MAX_DESCRIPTION) bytes.
/// Further bindings that need a comparison are rejected; those that stood before are tried again.
/// The limit is the number of sessions: each binds one service at a time.
pub const MAX_COMPARISONS: usize = 4_096;
/// Those of one tenant.
pub const MAX_COMPARISONS_PER_TENANT: usize = MAX_COMPARISONS / 4;

// Dialling.

/// First and longest pause before a peer is dialled again, or asked again for a binding that it no
/// longer accepts. The pause doubles each time.
pub const REDIAL_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long one address of a peer is dialled alone before the next one is dialled in parallel, as
/// RFC 8305 recommends.
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses of one name that are dialled. All attempts have begun within 2 s; a binding waits for
/// 5 s.
pub const MAX_ADDRESSES: usize = 8;

/// How long a runtime waits for a name's look-up before it asks again. Longer than
/// the control plane's own deadline of 4 s.
pub const LOOKUP_PATIENCE: Duration = Duration::from_secs(6);

// RDMA.

/// How long an RDMA dial may take until the peer is ready; then the peer is dialled by TCP.
/// Bindings wait 5 s for both.
pub const RDMA_PATIENCE: Duration = Duration::from_secs(2);

/// How long a peer is dialled by TCP only after an RDMA dial has failed.
pub const RDMA_PAUSE: Duration = Duration::from_secs(10);

/// Links that share a pool of receives and memory (8 MiB) of a runtime's poller. [`POOLS`] limits
/// the pools per device so that they serve as many links as a runtime has.
#[cfg(feature = "rdma")]
pub const POOL_LINKS: u16 = 32;

/// Pools per device; see [`POOL_LINKS`].
#[cfg(feature = "rdma")]
pub const POOLS: u16 = MAX_LINKS as u16 / POOL_LINKS;

/// Peers for which one runtime remembers that an RDMA dial failed.
pub const WITHOUT_RDMA: usize = 1_024;

/// How long the end of an RDMA link waits until the peer has the last message: 200 us, about ten
/// round trips. Over TCP the kernel delivers it.
pub const FAREWELL: Duration = Duration::from_micros(200);

// Sessions and services of one tenant.

/// Calls of one tenant's applications and peers that a runtime tracks: half of the engine's calls,
/// so that other tenants find room.
pub const MAX_CALLS_PER_TENANT: usize = tollgate_engine::limits::MAX_CALLS / 2;

/// Methods that one session has bound or serves, over all its bindings. Handles aren't reused.
pub const MAX_METHODS_PER_SESSION: usize = 4_096;

/// Methods of all sessions of one tenant. A successor reads all of them during a hand-over, while
/// calls stand still.
pub const MAX_METHODS_PER_TENANT: usize = 65_536;

/// Services that one tenant has served on this host since the daemon started. Each version of a
/// schema counts.
pub const MAX_SERVICES_PER_TENANT: usize = 256;

// Turns.

/// Submissions taken from one session per turn. A busy ring delays the others by about 50 us at
/// most.
pub const SUBMISSIONS_PER_TURN: usize = 64;

/// Bytes of messages taken from one link per turn if tenants share a runtime: 256 KiB, about 60 us
/// of copying.
pub const BYTES_PER_SHARED_TURN: usize = 256 << 10;

/// Bytes of messages taken from one session, if tenants share a runtime, before the runtime checks
/// whether another tenant waits; if so, the turn ends. A single larger message is taken whole. 64
/// KiB take about 15 us to copy; the check takes less than 1 us. If every turn were this short,
/// large calls would take twice as long even when no other tenant waits.
pub const BYTES_PER_LOOK: usize = 64 << 10;

/// Bytes of messages taken from one session per turn in any case: the link may be
/// [behind](tollgate_transport::limits::TX_BEHIND) by then. 1 MiB; a single larger message is taken
/// whole.
pub const BYTES_PER_TURN: usize = 1 << 20;

/// Frames taken from one link before the next one's turn.
pub const FRAMES_PER_TURN: usize = 256;

/// How long a runtime counts as shared after two tenants had work in one round.
pub const SHARED_FOR: Duration = Duration::from_millis(10);

// What waits for slow readers.

/// Answers kept for one link until it has room before the first sweep, which drops answers that
/// are no longer needed. The next sweep is due at twice the number that the last one left. A
/// kept answer takes about 50 bytes; its message stays with the application.
pub const KEPT_BEFORE_SWEEP: usize = 64;

/// A link that is [behind](tollgate_transport::limits::TX_BEHIND) is closed if its peer reads
/// nothing for this long.
pub const TAKES_NOTHING_FOR: Duration = Duration::from_secs(10);

/// Completions that wait for a place in a session's ring before no more submissions are taken from
/// it. Answers to its outstanding calls are still queued beyond this; the engine's limits bound
/// them.
pub const COMPLETION_BACKLOG: usize = 4_096;

/// Bytes of messages that wait for room in one session's receive heap: 64 MiB, four of the largest
/// messages. The engine's limits bound calls and answers without a message.
pub const HELD_BYTES: u64 = 64 << 20;

/// How long freed blocks are held back from a sleeping application if nothing else wakes it: 1 ms.
/// A runtime that is about to sleep holds nothing back.
pub const RECLAIMS_HELD_NS: u64 = 1_000_000;

/// A server is asked for a call's waiting time if it was last asked 50 us ago or earlier: its
/// library reads the clock for each.
pub const WAIT_ASKED_EVERY_NS: u64 = 50_000;

/// In a burst, a server is asked once per this many calls.
pub const WAIT_ASKED_EVERY_CALLS: u32 = 16;

// Hand-over and traces.

/// How long calls may stand still until the successor has the sessions and can continue them.
/// After that the successor is killed and calls continue here.
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a full table of traced calls is swept of calls without a caller: 100 ms.
pub const TRACES_SWEPT_EVERY_NS: u64 = 100_000_000;

// The log.

/// Log lines of one kind per second for one tenant, or for all strangers together. Further lines
/// are only counted.
pub const LINES_PER_SECOND: u32 = 4;

/// Pairs of kind and culprit with separate limits on log lines. Further culprits share one
/// limit per kind.
pub const MAX_LINE_CULPRITS: usize = 4_096;
