//! Every bound of the daemon that isn't one of the parts' own (`engine`, `transport`, `policy-host`, `schema`,
//! `shm-abi` each have such a file), with what it protects.

use std::time::Duration;

/// Application sessions of one daemon. Each has three segments, of which only touched pages cost memory, and takes five descriptors (three if its
/// library can't follow to another daemon): this many need a hard limit of 23,700.
pub const MAX_SESSIONS: usize = 4_096;
/// Of those, one tenant's.
pub const MAX_SESSIONS_PER_TENANT: usize = MAX_SESSIONS / 4;
/// Bytes of the receive heaps of all sessions, as they announce them: 256 GiB, as many as [`MAX_SESSIONS`] have by default. A session with
/// larger ones leaves room for fewer.
pub const RECEIVE_HEAP_BYTES: u64 =
    MAX_SESSIONS as u64 * tollgate_shm_abi::limits::DEFAULT_HEAP_BYTES;
/// Of those, one tenant's.
pub const RECEIVE_HEAP_BYTES_PER_TENANT: u64 = RECEIVE_HEAP_BYTES / 4;

/// See [`MAX_SESSIONS`].
pub const DESCRIPTORS_PER_SESSION: usize = 5;
/// See [`MAX_SESSIONS`]: of a session whose library can't follow to another daemon.
pub const DESCRIPTORS_PER_STAYING_SESSION: usize = 3;
/// Descriptors that neither sessions nor connections may take: for listeners, policies' processes and files. Peers' come on top ([`SHARE_OF_PEERS`]).
pub const KEPT_DESCRIPTORS: usize = 56;

/// Sessions of one tenant may take one third of the other descriptors, and so may connections of one user. Not a quarter, as in other tables: many hosts have a hard
/// limit of 20,000, and [`MAX_SESSIONS_PER_TENANT`] sessions fit into a third of that.
pub const SHARES_OF_DESCRIPTORS: usize = 3;

/// Links and strangers of all runtimes may take one eighth of the descriptors that the process may have, and this part is reserved for them: with a
/// hard limit of 1,024 each of them has 64 places.
pub const SHARE_OF_PEERS: usize = 8;

/// Links, and strangers, that a runtime may have however few descriptors there are.
pub const LEAST_PEERS: usize = 4;

/// Connections of peers that are accepted and that no runtime has looked at yet: each takes a descriptor.
pub const ACCEPTED_UNSEEN: usize = 64;

/// Links of one runtime to peers, accepted and dialled (neither takes the last [`SHARE_OF_OTHERS`]), but for [`MAX_STRANGERS`]; fewer where there are few descriptors ([`SHARE_OF_PEERS`]). Each has a 256 KiB receive buffer, touched lazily.
pub const MAX_LINKS: usize = 1_024;

/// Connections that a runtime has accepted and that haven't proven who they are, beside [`MAX_LINKS`]; those that prove themselves at once may exceed that
/// by as many. Fewer where there are few descriptors. A daemon dials once per tenant, all at once after a restart. A silent one takes a descriptor and some 20 KiB.
pub const MAX_STRANGERS: usize = 1_024;

/// The part of those that may come from one address.
pub const STRANGERS_PER_ADDRESS: usize = 2;

/// Lines of one kind that the log has per second of one tenant, or of all strangers together. More are counted.
pub const LINES_PER_SECOND: u32 = 4;

/// Log lines that wait for standard error, of at most a few kilobytes each. Further lines are
/// dropped and counted (`tollgate.log.dropped`).
pub const MAX_LOG_LINES: usize = 4_096;

/// Kinds and culprits of such lines that are told apart. Those beyond have the lines of one, per kind.
pub const MAX_LINE_CULPRITS: usize = 4_096;

/// Dialled addresses of one runtime whose last error is remembered, for reports.
pub const MAX_PEER_ERRORS: usize = 256;

/// Calls of one tenant's applications and peers that a runtime tracks, of the engine's. Others find room for theirs.
pub const MAX_CALLS_PER_TENANT: usize = tollgate_engine::limits::MAX_CALLS / 2;

/// Methods that one session has bound or serves, over all its bindings. Handles aren't reused.
pub const MAX_METHODS_PER_SESSION: usize = 4_096;

/// Of all sessions of one tenant: a process that takes over hears of each, while calls stand still.
pub const MAX_METHODS_PER_TENANT: usize = 65_536;

/// Services that one tenant has ever served on this host since the daemon started; each version of a schema counts.
pub const MAX_SERVICES_PER_TENANT: usize = 256;

/// Attachments in force, over all tenants, those that concern every tenant once per runtime; the store limits each owner's.
pub const MAX_ATTACHMENTS: usize = 65_536;

/// Submissions taken from one session before the next one's turn: keeps one busy ring from delaying the others by
/// more than about 50 us.
pub const SUBMISSIONS_PER_TURN: usize = 64;

/// Bytes of messages taken from one link before the next one's turn, if tenants share a runtime. 256 KiB, some 60 us of copying.
pub const BYTES_PER_SHARED_TURN: usize = 256 << 10;

/// Bytes of messages taken from one session, if tenants share a runtime, before it looks whether another tenant waits; then its turn ends. A
/// single larger message is taken whole. 64 KiB, some 15 us of copying: looking takes less than one. Were every turn as short, the large calls
/// would take twice as long, whether anybody waits or not.
pub const BYTES_PER_LOOK: usize = 64 << 10;

/// Bytes of messages taken from one session before the next one's turn in any case: what they are sent over may be
/// [behind](tollgate_transport::limits::TX_BEHIND) by then. 1 MiB; a single larger message is taken whole.
pub const BYTES_PER_TURN: usize = 1 << 20;

/// Answers kept for one link until it has room before those are looked for that nobody waits for any more; then at twice as many as were
/// left. A kept answer is some 50 bytes: what it says stays with its application.
pub const KEPT_BEFORE_SWEEP: usize = 64;

/// A link [behind](tollgate_transport::limits::TX_BEHIND) whose peer takes nothing for so long is ended.
pub const TAKES_NOTHING_FOR: Duration = Duration::from_secs(10);

/// Bytes of an error on the control socket, and of all warnings of an answer: either fits a packet. Longer ones are cut.
pub const MAX_FAILURE_BYTES: usize = 16 << 10;
/// See [`MAX_FAILURE_BYTES`].
pub const MAX_WARNINGS_BYTES: usize = 32 << 10;

/// Bytes of a service's name in a binding, as in a schema.
pub const MAX_SERVICE_NAME: usize = tollgate_schema::limits::MAX_NAME;

/// Characters of the reason for which a successor doesn't take over: with JSON's escapes it fits a packet.
pub const REFUSAL_CHARS: usize = 4_096;

/// How long a runtime counts as shared after two tenants had something to do in one round.
pub const SHARED_FOR: Duration = Duration::from_millis(10);

/// Frames taken from one link before the next one's turn.
pub const FRAMES_PER_TURN: usize = 256;

/// Completions that wait for a place in a session's ring before its submissions are left alone. Answers to calls that
/// it has outstanding still find a place beyond this; they are bounded by the engine's limits.
pub const COMPLETION_BACKLOG: usize = 4_096;

/// Bytes of the messages that wait for room in one session's receive heap: 64 MiB, four of the largest. Of calls and answers without a
/// message as many wait as the engine lets a session have.
pub const HELD_BYTES: u64 = 64 << 20;

/// How long blocks are held back that are to be given back to an application which sleeps, if there is nothing else to wake it for: 1 ms. A
/// runtime that is about to sleep holds nothing back.
pub const RECLAIMS_HELD_NS: u64 = 1_000_000;

/// The part of a runtime's links that dialled ones leave to those that peers have opened, and those to them.
pub const SHARE_OF_OTHERS: usize = 4;
/// The part that one peer may have opened: it opens one link per tenant.
pub const ACCEPTED_PER_PEER: usize = 2;
/// The part that peers may have opened for one tenant: each peer opens one.
pub const ACCEPTED_PER_TENANT: usize = 4;
/// Links that one peer may have opened for one tenant. A peer needs one, and a few more while links are replaced or lost.
pub const MAX_ACCEPTED_PER_PAIR: usize = 16;

/// How long `status` shows that a link has found no room.
pub const FULL_SHOWN: Duration = Duration::from_secs(600);

/// The part that one tenant's applications may have had dialled. One more ends those that nobody is bound through any more, or is refused.
pub const DIALLED_PER_TENANT: usize = 4;

/// First and longest pause before a peer is dialled again, or asked again for a binding that it no longer accepts; doubled in between.
pub const REDIAL_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long a peer's address is dialled alone before its next one is dialled beside it: what RFC 8305 recommends.
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses of one name that are dialled. All have begun within 2 s; a binding waits for 5.
pub const MAX_ADDRESSES: usize = 8;

/// How long a runtime waits for a name to be looked up before it asks again: longer than [`LOOKUP_TIMEOUT`].
pub const LOOKUP_PATIENCE: Duration = Duration::from_secs(6);

/// How long who asks for a name's addresses waits for them. With the 5 s for the peer, a binding is answered before its library gives it up.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(4);

/// Names that are looked up at once, each on a thread of its own: the system's resolver can't be interrupted.
pub const LOOKUPS: usize = 64;

/// Names that are looked up beyond that, one of each tenant that has no other: as many tenants have one however many of others' names are dead.
pub const LOOKUPS_KEPT: usize = 64;

/// Of those, names of one tenant.
pub const LOOKUPS_PER_TENANT: usize = 4;

/// Names of one tenant whose addresses are remembered.
pub const NAMES_PER_TENANT: usize = 64;

/// How long a name's addresses are remembered, and how long that it has none. A peer that is lost is looked up anew.
pub const REMEMBERED_FOR: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));

/// Longest name of a peer, bytes: a DNS name has at most 253.
pub const MAX_HOST: usize = 253;

/// Smallest and largest ring of a link over RDMA that the configuration accepts, in KiB: those of the transport.
pub const RDMA_RING_KIB: std::ops::RangeInclusive<u32> = 64..=65_536;

/// How long a peer that is dialled by RDMA may take until it is ready; then it is dialled by TCP. Bindings wait 5 s for both.
pub const RDMA_PATIENCE: Duration = Duration::from_secs(2);

/// How long a peer that couldn't be reached by RDMA is reached by TCP without another try.
pub const RDMA_PAUSE: Duration = Duration::from_secs(10);

/// Links that share a pool of receives and memory, 8 MiB, of a runtime's poller, and pools of each device that it may have: as many links as a runtime.
#[cfg(feature = "rdma")]
pub const POOL_LINKS: u16 = 32;

/// See [`POOL_LINKS`].
#[cfg(feature = "rdma")]
pub const POOLS: u16 = MAX_LINKS as u16 / POOL_LINKS;

/// Peers of which one runtime remembers that.
pub const WITHOUT_RDMA: usize = 1_024;

/// How long the end of a link over RDMA waits until the peer has what was said last: 200 us, some ten round trips. Over TCP the kernel does.
pub const FAREWELL: Duration = Duration::from_micros(200);

/// How often heaps of ended sessions are unregistered from the RDMA devices, and listening for peers is tried again if it fails.
pub const RDMA_ROUND: Duration = Duration::from_secs(10);

/// First and longest pause before a faulted policy gets a fresh instance; doubled by every fault that follows within
/// [`FAULT_MEMORY`]. A policy that always loops costs its tenant's runtime 100 us per second.
pub const RELOAD_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A policy without a fault for this long starts over with the first pause.
pub const FAULT_MEMORY: Duration = Duration::from_secs(10);

/// How often repeated events are looked for that the audit log lacks the count of.
pub const AUDIT_FLUSH: Duration = Duration::from_secs(2);

/// How often it is tried whether a state that could only be read can be written, beside each change that tries it.
pub const STATE_RETRY: Duration = Duration::from_secs(30);

/// Decisions that a comparison of two versions shows; it counts all of them.
pub const SHOWN_DIFFERENCES: usize = 1_000;

/// Spans that each runtime keeps, at most: some 100 MB.
pub const MAX_KEPT_SPANS: u32 = 100_000;

/// Traces that are shown at once.
pub const MAX_SHOWN_TRACES: usize = 1_000;

/// Who watches calls as they end, at once. Each has calls copied for it.
pub const MAX_TAPS: usize = 16;

/// Calls that wait for one who watches; more are counted only.
pub const MAX_TAPPED: usize = 2_048;

/// How long who watches may not ask for more before nobody watches any more.
pub const TAP_PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of the message, as JSON, that `tollgate explain` asks about.
pub const MAX_EXPLAINED: usize = 4 << 20;

/// Fresh instances that a comparison of two versions makes at most, one per fault.
pub const REPLAY_INSTANCES: usize = 100;

/// A command from the control plane that a runtime has not answered in this time is reported as an error.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a tenant that is to move is waited for while the control plane serves its applications: longer than a binding waits for a peer.
pub const MOVE_PATIENCE: Duration = Duration::from_secs(10);

/// What a policy process may keep resident beyond its limit of writable memory: its program, and what it shares with the daemon. 64 MiB.
pub const PROCESS_OVERHEAD_BYTES: u64 = 64 << 20;

/// Policies' modules that wait for a compile worker or are being compiled, of one tenant and of all. Each holds its bytes, at
/// most 1 MiB.
pub const COMPILATIONS_QUEUED_PER_TENANT: usize = 8;
/// See [`COMPILATIONS_QUEUED_PER_TENANT`].
pub const COMPILATIONS_QUEUED: usize = 64;

/// Compile workers that the configuration accepts.
pub const MAX_COMPILE_WORKERS: usize = 16;

/// Shortest and longest time for compiling a module that the configuration accepts, in milliseconds.
pub const COMPILE_TIMEOUT_MS: (u64, u64) = (100, 600_000);

/// Smallest and largest memory of a compile worker that the configuration accepts. 64 MiB compile ordinary policies.
pub const COMPILE_MEMORY_BYTES: (u64, u64) = (64 << 20, 8 << 30);

/// Policy versions with compiled code held in memory. Older ones are loaded again when they are attached.
pub const COMPILED_POLICIES: usize = 64;

/// Versions of policies, each with a schema and with what is granted to it, of which it is remembered what they are shown. Of the others it
/// is worked out when a chain is made: milliseconds for a service of a dozen methods.
pub const KEPT_ASKS: usize = 256;
/// Of those, one owner's.
pub const KEPT_ASKS_PER_OWNER: usize = KEPT_ASKS / 4;

/// What an instance's set-up may take of the thread that all administration is done on; one that takes longer is made on another. 50 us.
pub const QUICK_SETUP: Duration = Duration::from_micros(50);

/// Schemas of services held in memory. One that nobody uses any more is forgotten when the table is full, or its tenant's share of it.
pub const MAX_SCHEMAS: usize = 4_096;
/// Of those, schemas that one tenant's applications were the first to bind.
pub const MAX_SCHEMAS_PER_TENANT: usize = MAX_SCHEMAS / 4;

/// Bytes that these take in memory, their descriptor sets included: a process that takes over gets those. 128 MiB, some three of the largest sets, or thousands of
/// usual ones.
pub const MAX_SCHEMA_BYTES_PER_TENANT: usize = 128 << 20;

/// Schemas of one tenant that are resolved or compared at once; further ones wait. Of each, the descriptor set is held.
pub const TURNS_PER_TENANT: usize = 2;
/// The same of all tenants: as many blocking threads.
pub const TURNS: usize = 32;
/// Blocking threads of the operator's: for administration, which does one thing at a time, and for instances of policies.
pub const OPERATORS_THREADS: usize = 8;

/// Bindings of one tenant's sessions. An entry is some 200 bytes.
pub const MAX_BINDINGS_PER_TENANT: usize = 65_536;

/// Refused bindings that `status` shows because a policy doesn't fit their schemas; of one tenant; and how long after the last try.
pub const MAX_MISFITS: usize = 64;
/// See [`MAX_MISFITS`].
pub const MISFITS_PER_TENANT: usize = 4;
/// See [`MAX_MISFITS`].
pub const MISFIT_SHOWN: Duration = Duration::from_secs(3_600);

/// Services that are prefetched: they stay in memory whether anybody uses them. An entry is some 100 KB with its machine code.
pub const MAX_PREFETCHED: usize = 256;

/// How long a prefetch waits for machine code; what isn't there by then comes later.
pub const PREFETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a process that is to take over may take until it is ready, unless the operator says otherwise.
pub const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest that an operator may allow for that: changes are refused meanwhile.
pub const MAX_UPGRADE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long applications' requests, bindings that wait for a peer among them, may take to be answered before it takes over; whose isn't by
/// then connects again.
pub const REQUESTS_GRACE: Duration = Duration::from_secs(1);

/// How long it may then take to open the store, while nobody is accepted.
pub const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long calls stand still at most, until it has heard of the sessions and can go on with them. If it can't by then, they go on here once it
/// has been killed.
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The most bytes of state, and of messages, that one runtime leaves: above what its limits let it hold. 1 GiB.
pub const ESTATE_BYTES: usize = 1 << 30;

/// How long it waits for what it is offered.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptor sets whose resolved service is remembered, so that binding one again costs a hash and a look-up. An entry is two
/// hashes and a service's name; the schema itself counts against [`MAX_SCHEMAS`].
pub const MAX_KNOWN_SETS: usize = 4_096;
/// Of those, sets that one tenant has bound.
pub const MAX_KNOWN_SETS_PER_TENANT: usize = MAX_KNOWN_SETS / 4;

/// Control connections at once; further ones are told so and closed.
pub const MAX_CONNECTIONS: usize = 8_192;
/// Of those, for the operator alone: root and the daemon's own user.
pub const OPERATORS_CONNECTIONS: usize = 64;
/// Of those, without a session and of one user that isn't the operator.
pub const STRANGERS_PER_USER: usize = 512;
/// How long a connection may say nothing that has no session: before its first request, and if it isn't the operator's, before each further one.
pub const FIRST_WORD: Duration = Duration::from_secs(10);
/// How long an answer waits for an application that doesn't read any. Then its connection is closed: what it has asked keeps others waiting, who take over,
/// say.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// Longest spin before a runtime sleeps that the configuration accepts. 10 ms.
pub const MAX_SPIN: Duration = Duration::from_millis(10);

/// Shortest and longest wait in front of a server that the configuration accepts as a target, in microseconds. Waking a server up
/// takes some 60.
pub const WAIT_TARGET_US: (u64, u64) = (100, 1_000_000);

/// A server is asked how long a call waited if that was last asked 50 us ago: its library reads the clock for it.
pub const WAIT_ASKED_EVERY_NS: u64 = 50_000;

/// In a burst, it is asked of every so many-th call.
pub const WAIT_ASKED_EVERY_CALLS: u32 = 16;

/// The last core that the configuration accepts: the kernel's sets of cores, as the daemon passes them, have 1,024.
pub const MAX_CORE: usize = 1_023;

/// Fewest and most calls that a peer may have unanswered over one link.
pub const WINDOW_CALLS: (u32, u32) = (1, tollgate_transport::limits::MAX_WINDOW_CALLS);

/// Fewest and most bytes of those calls.
pub const WINDOW_BYTES: (u64, u64) = (
    tollgate_transport::limits::MIN_WINDOW_BYTES,
    tollgate_transport::limits::MAX_WINDOW_BYTES,
);

/// Runtime threads that the configuration accepts.
pub const MAX_RUNTIMES: usize = 64;

/// Bytes of what proves a module's origin: an image's layer, its manifest and some signatures.
pub const PROOF_BYTES: usize = 4 << 20;

/// Signatures of one module that are looked at.
pub const SIGNATURES: usize = 8;

/// Tenants with telemetry of their own: each may have an exporter, with its queues (see `tollgate_telemetry::limits`).
pub const MAX_TENANT_ENDPOINTS: usize = 256;

/// How often a full table of traced calls is looked through for those whose callers have gone: 100 ms.
pub const TRACES_SWEPT_EVERY_NS: u64 = 100_000_000;

/// Records of the audit log that the console shows, the newest.
pub const CONSOLE_RECORDS: u32 = 50;

/// Denied calls that the web console shows: the newest.
pub const CONSOLE_DENIALS: usize = 50;
