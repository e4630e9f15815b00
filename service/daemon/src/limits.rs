//! The daemon's limits, each with what it protects. `engine`, `transport`, `policy-host`, `schema`
//! and `shm-abi` keep their own limits in files of the same name.

use std::time::Duration;

/// Application sessions of one daemon. Each has three segments, of which only touched pages cost
/// memory, and takes five descriptors, or three if its library can't follow to another daemon. This
/// many sessions need a hard limit of 25,000 descriptors.
pub const MAX_SESSIONS: usize = 4_096;
/// Sessions of one tenant.
pub const MAX_SESSIONS_PER_TENANT: usize = MAX_SESSIONS / 4;
/// Bytes of the receive heaps of all sessions, as the sessions announce them: 256 GiB, enough for
/// [`MAX_SESSIONS`] with default heaps. Larger heaps leave room for fewer sessions.
pub const RECEIVE_HEAP_BYTES: u64 =
    MAX_SESSIONS as u64 * tollgate_shm_abi::limits::DEFAULT_HEAP_BYTES;
/// Bytes of the receive heaps of one tenant's sessions.
pub const RECEIVE_HEAP_BYTES_PER_TENANT: u64 = RECEIVE_HEAP_BYTES / 4;

/// See [`MAX_SESSIONS`].
pub const DESCRIPTORS_PER_SESSION: usize = 5;
/// Descriptors of a session whose library can't follow to another daemon; see [`MAX_SESSIONS`].
pub const DESCRIPTORS_PER_STAYING_SESSION: usize = 3;
/// Descriptors reserved for listeners, compile workers and files: neither sessions nor connections
/// may take them. Those of peers
/// ([`SHARE_OF_PEERS`](tollgate_datapath::limits::SHARE_OF_PEERS)) and of policy processes
/// ([`SHARE_OF_POLICY_PROCESSES`]) are reserved separately.
pub const KEPT_DESCRIPTORS: usize = 56 + API_DESCRIPTORS;
/// Of those, the ones of the administrative API: its connections, and its thread's own.
pub const API_DESCRIPTORS: usize = tollgate_admin::CONNECTIONS
    + tollgate_admin::REMOTE_CONNECTIONS
    + tollgate_admin::OWN_DESCRIPTORS;
/// Clients' certificates that stand for credentials, in the configuration.
pub const MAX_ADMIN_CERTIFICATES: usize = 256;
/// Bytes of a file with certificates or a key for the administrative API. 1 MiB.
pub const MAX_CERTIFICATES_BYTES: u64 = 1 << 20;

/// Policy processes at once. A tenant with isolated policies has one. A low descriptor limit lowers
/// this number ([`SHARE_OF_POLICY_PROCESSES`]). The tenants whose isolated policies are stored keep
/// their places when the daemon starts, even if there are more.
pub const MAX_POLICY_PROCESSES: usize = MAX_SESSIONS / 4;
/// Descriptors that the daemon has for each policy process: two segments, two eventfds, a socket,
/// the process's output, and the process itself.
pub const DESCRIPTORS_PER_POLICY_PROCESS: usize = 7;
/// Policy processes may take one sixteenth of the daemon's descriptors. That part is reserved for
/// them: a hard limit of 1,024 leaves room for 9 processes, and 114,688 for
/// [`MAX_POLICY_PROCESSES`].
pub const SHARE_OF_POLICY_PROCESSES: usize = 16;
/// Policy processes that a daemon may have even if descriptors are scarce.
pub const LEAST_POLICY_PROCESSES: usize = 4;

/// One tenant's policies may hold this part of the instances in the daemon
/// (`policies.instances`): a quarter.
pub const SHARES_OF_INSTANCES: usize = 4;
/// A tenant's share of instances is at least this many, if there are as many.
pub const LEAST_SHARE_OF_INSTANCES: usize = 16;
/// The part of the instances that tenants leave to the provider's policies, and to fresh instances
/// after faults: one sixteenth, and at most [`MOST_KEPT_INSTANCES`].
pub const KEPT_INSTANCES: usize = 16;
/// See [`KEPT_INSTANCES`].
pub const MOST_KEPT_INSTANCES: usize = 64;

/// One tenant's sessions may take one third of the other descriptors; so may one user's
/// connections. A third, not a quarter as in other tables: many hosts have a hard limit of 20,000
/// descriptors, and [`MAX_SESSIONS_PER_TENANT`] sessions fit into a third of that.
pub const SHARES_OF_DESCRIPTORS: usize = 3;

/// Wrong tokens of one user, or of one network, that are answered at once. One more per
/// [`GUESS_PAUSE`] is; others are answered after that pause.
pub const GUESSES_AT_ONCE: u32 = 32;
/// See [`GUESSES_AT_ONCE`].
pub const GUESS_PAUSE: Duration = Duration::from_secs(1);
/// Users and networks whose wrong tokens are counted. Those of further ones are answered after
/// [`GUESS_PAUSE`]. About 48 bytes each.
pub const MAX_GUESSERS: usize = 1_024;

/// Requests of one tenant's principals that are carried out at once. Further ones wait.
pub const REQUESTS_PER_TENANT: usize = 2;
/// The average pause between the beginnings of two changes by one tenant's principals: each change
/// is written to the disk three times.
pub const CHANGE_PACE: Duration = Duration::from_millis(50);
/// Changes that a tenant's principals may begin without a pause after a quiet time.
pub const CHANGES_AT_ONCE: u32 = 10;
/// The average pause between the beginnings of two other requests by one tenant's principals: for
/// most, each runtime is asked between two calls.
pub const LOOK_PACE: Duration = Duration::from_millis(50);
/// Other requests that a tenant's principals may begin without a pause after a quiet time.
pub const LOOKS_AT_ONCE: u32 = 40;

/// Log lines that wait for standard error, each at most a few kilobytes. Further lines are dropped
/// and counted (`tollgate.log.dropped`).
pub const MAX_LOG_LINES: usize = 4_096;

/// Attachments in force, over all tenants. An attachment that concerns every tenant counts once per
/// runtime. The store limits each owner's attachments.
pub const MAX_ATTACHMENTS: usize = 65_536;

/// Bytes of an error on the control socket, so that it fits into a packet. Longer ones are cut.
pub const MAX_FAILURE_BYTES: usize = 16 << 10;

/// Bytes of a service's name in a binding, as in a schema.
pub const MAX_SERVICE_NAME: usize = tollgate_schema::limits::MAX_NAME;

/// Characters of the reason why a successor doesn't take over. With JSON's escapes it fits into a
/// packet.
pub const REFUSAL_CHARS: usize = 4_096;

/// How long a look-up of a name's addresses may take. With the 5 s for the peer, a binding is
/// answered before its library gives it up.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(4);

/// Concurrent look-ups of names. Each has a thread: the system's resolver can't be interrupted.
pub const LOOKUPS: usize = 64;

/// Concurrent look-ups beyond [`LOOKUPS`], one for each tenant that has no other. Dead names of
/// some tenants don't block the look-ups of others.
pub const LOOKUPS_KEPT: usize = 64;

/// Concurrent look-ups of one tenant.
pub const LOOKUPS_PER_TENANT: usize = 4;

/// Names per tenant whose addresses are cached.
pub const NAMES_PER_TENANT: usize = 64;

/// How long a name's addresses are cached, and how long their absence is. A lost peer is looked up
/// anew.
pub const REMEMBERED_FOR: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));

/// Longest name of a peer, in bytes: a DNS name has at most 253.
pub const MAX_HOST: usize = 253;

/// Smallest and largest ring of an RDMA link that the configuration accepts, in KiB: the
/// transport's limits.
pub const RDMA_RING_KIB: std::ops::RangeInclusive<u32> = 64..=65_536;

/// How often the heaps of ended sessions are unregistered from RDMA devices, and how often a failed
/// RDMA listener is opened again.
pub const RDMA_ROUND: Duration = Duration::from_secs(10);

/// First and longest pause before a faulted policy gets a fresh instance. Every fault within
/// [`FAULT_MEMORY`] doubles the pause. A policy that always loops costs its tenant's runtime 100 us
/// per second.
pub const RELOAD_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// After this long without a fault, a policy starts again with the first pause.
pub const FAULT_MEMORY: Duration = Duration::from_secs(10);

/// How often the audit log gets the counts of repeated events that it lacks.
pub const AUDIT_FLUSH: Duration = Duration::from_secs(2);

/// How often the daemon ends requests for approval whose time is over. One can't be approved in
/// between.
pub const APPROVAL_LOOK: Duration = Duration::from_secs(600);

/// How often the daemon tries to write a read-only state again. Each change tries it, too.
pub const STATE_RETRY: Duration = Duration::from_secs(30);

/// Differing decisions that a comparison of two versions shows; it counts all of them.
pub const SHOWN_DIFFERENCES: usize = 1_000;

/// Spans that each runtime keeps: at most about 100 MB.
pub const MAX_KEPT_SPANS: u32 = 100_000;

/// Traces in one answer.
pub const MAX_SHOWN_TRACES: usize = 1_000;

/// Concurrent watchers of calls as they end. Calls are copied for each watcher.
pub const MAX_TAPS: usize = 16;

/// Of [`MAX_TAPS`], those that only operators get.
pub const OPERATORS_TAPS: usize = 8;

/// Watchers of one tenant's principals.
pub const MAX_TAPS_PER_TENANT: usize = 2;

/// Calls that wait for one watcher; further calls are only counted.
pub const MAX_TAPPED: usize = 2_048;

/// How long a watcher may ask for nothing before its tap is closed.
pub const TAP_PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of the JSON message for `tollgate explain`.
pub const MAX_EXPLAINED: usize = 4 << 20;

/// The set-up of an instance that each call gets anew (`--fresh`) may take this many times the CPU
/// time of a call.
pub const FRESH_SETUP_TIMES: u64 = 10;

/// The longest probation of a version on trial: 30 days.
pub const MAX_PROBATION: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How often a watch over a probation looks whether another change has ended it.
pub const PROBATION_LOOK: Duration = Duration::from_secs(60);

/// Bytes of the audit records in one answer to a tenant. Older ones are left out. A record has at
/// most 20 KiB.
pub const MAX_TENANTS_RECORDS_BYTES: usize = 1 << 20;

/// Fresh instances that a comparison of two versions makes: one per fault.
pub const REPLAY_INSTANCES: usize = 100;
/// How long a comparison of two versions may take: it is charged to nobody's share of CPU.
pub const REPLAY_TIME: Duration = Duration::from_secs(10);

/// Events of the runtimes that wait for the control plane and may be lost: log lines and throttled
/// calls of policies, and peers to look up. Further ones are dropped, and the log says so.
pub const EVENTS_QUEUED: usize = 16_384;

/// Room for events that mustn't be lost: one per session that ends; per attachment, two versions
/// that fail and a process that ends; and, per runtime,
/// [`MAX_COMPARISONS`](tollgate_datapath::limits::MAX_COMPARISONS), and one event by which
/// [`EVENTS_QUEUED`] may be exceeded, because the runtimes don't wait for each other.
pub const EVENTS_OWED: usize = MAX_SESSIONS
    + 3 * MAX_ATTACHMENTS
    + MAX_RUNTIMES * (tollgate_datapath::limits::MAX_COMPARISONS + 1);

// Ordinary use stays below these limits: a session compares one schema at a time, and a connection
// waits for one command and may have given up another.
const _: () = {
    use tollgate_datapath::limits::{COMMANDS_QUEUED, MAX_COMPARISONS, MAX_COMPARISONS_PER_TENANT};
    assert!(MAX_COMPARISONS >= MAX_SESSIONS);
    assert!(MAX_COMPARISONS_PER_TENANT >= MAX_SESSIONS_PER_TENANT);
    assert!(COMMANDS_QUEUED >= 2 * MAX_CONNECTIONS);
};

/// How long a runtime may take to answer a command of the control plane; then the command fails.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the control plane waits for a tenant's move while it serves the tenant's applications.
/// Longer than a binding waits for a peer.
pub const MOVE_PATIENCE: Duration = Duration::from_secs(10);

/// Resident memory of a policy process beyond its limit of writable memory: its program, and memory
/// shared with the daemon. 64 MiB.
pub const PROCESS_OVERHEAD_BYTES: u64 = 64 << 20;

/// Modules of one tenant that wait for a compile worker or are being compiled. Each holds its
/// bytes, at most 1 MiB.
pub const COMPILATIONS_QUEUED_PER_TENANT: usize = 8;
/// The same for all tenants.
pub const COMPILATIONS_QUEUED: usize = 64;

/// Compile workers that the configuration accepts.
pub const MAX_COMPILE_WORKERS: usize = 16;

/// Shortest and longest time for compiling a module that the configuration accepts, in
/// milliseconds.
pub const COMPILE_TIMEOUT_MS: (u64, u64) = (100, 600_000);

/// Smallest and largest memory of a compile worker that the configuration accepts. 64 MiB are
/// enough for ordinary policies.
pub const COMPILE_MEMORY_BYTES: (u64, u64) = (64 << 20, 8 << 30);

/// Policy versions whose compiled code is kept in memory. Others are loaded again when they are
/// attached.
pub const COMPILED_POLICIES: usize = 64;

/// Cached inputs of policies, one per version, schema and grants. Without an entry, the input is
/// derived when a chain is made: milliseconds for a service of a dozen methods.
pub const CACHED_INPUTS: usize = 256;
/// Cached inputs of one owner's policies.
pub const CACHED_INPUTS_PER_OWNER: usize = CACHED_INPUTS / 4;

/// How often documents are compared with what is stored before they are refused: what they need may
/// have changed while modules were compiled.
pub const SKETCHES: usize = 4;

/// How long an instance may take to set up on the administration thread. A slower one is made on
/// another thread. 50 us.
pub const QUICK_SETUP: Duration = Duration::from_micros(50);

/// Schemas of services held in memory. Unused ones are dropped when the table, or a tenant's share
/// of it, is full.
pub const MAX_SCHEMAS: usize = 4_096;
/// Schemas that one tenant's applications were the first to bind.
pub const MAX_SCHEMAS_PER_TENANT: usize = MAX_SCHEMAS / 4;

/// Bytes of those schemas in memory, with their descriptor sets, which a successor receives. 128
/// MiB: about three of the largest sets, or thousands of usual ones.
pub const MAX_SCHEMA_BYTES_PER_TENANT: usize = 128 << 20;

/// Schemas of one tenant that are resolved or compared concurrently; further ones wait, with their
/// descriptor sets in memory.
pub const TURNS_PER_TENANT: usize = 2;
/// The same for all tenants. Each takes a blocking thread.
pub const TURNS: usize = 32;
/// Blocking threads for the operator: for administration, one task at a time, and for instances of
/// policies.
pub const OPERATORS_THREADS: usize = 8;

/// Bindings of one tenant's sessions. An entry takes about 200 bytes.
pub const MAX_BINDINGS_PER_TENANT: usize = 65_536;

/// Rejected bindings that `status` shows because a policy doesn't fit their schemas.
pub const MAX_MISFITS: usize = 64;
/// Such bindings of one tenant.
pub const MISFITS_PER_TENANT: usize = 4;
/// How long `status` shows such a binding after its last try.
pub const MISFIT_SHOWN: Duration = Duration::from_secs(3_600);

/// Prefetched services. They stay in memory even if nobody uses them. An entry takes about 100 KB
/// with its machine code.
pub const MAX_PREFETCHED: usize = 256;

/// How long a prefetch waits for machine code. Unfinished code is published later.
pub const PREFETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a successor may take to get ready, unless the operator sets another time.
pub const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time that an operator may set for that. Changes are rejected meanwhile.
pub const MAX_UPGRADE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a daemon that is replaced waits for its successor's administrative API, before it tells
/// of the upgrade. Daemons of release 0.2 have none.
pub const API_PATIENCE: Duration = Duration::from_secs(2);

/// How long applications' pending requests, including bindings that wait for a peer, may take
/// before a successor takes over. An application without an answer by then reconnects.
pub const REQUESTS_GRACE: Duration = Duration::from_secs(1);

/// How long the successor may then take to open the store. No application is accepted meanwhile.
pub const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(5);

/// State and messages, in bytes, that one runtime hands over. Above what the runtime's limits let
/// it hold. 1 GiB.
pub const HANDOVER_BYTES: usize = 1 << 30;

/// How long a successor waits for the offer.
pub const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptor sets whose resolved service is cached: binding one again costs a hash and a look-up.
/// An entry takes two hashes and a service's name; the schema itself counts against
/// [`MAX_SCHEMAS`].
pub const MAX_KNOWN_SETS: usize = 4_096;
/// Cached sets that one tenant has bound.
pub const MAX_KNOWN_SETS_PER_TENANT: usize = MAX_KNOWN_SETS / 4;

/// Control connections at once; further ones are told so and closed.
pub const MAX_CONNECTIONS: usize = 8_192;
/// Connections without a session of one user that is neither root nor the daemon's own.
pub const STRANGERS_PER_USER: usize = 512;
/// How long a connection without a session may stay idle: before its first request, and before each
/// further one.
pub const FIRST_WORD: Duration = Duration::from_secs(10);
/// How long an answer waits for an application that doesn't read. Then its connection is closed: a
/// pending request blocks others, such as a hand-over.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// Longest spin before a runtime sleeps that the configuration accepts: 10 ms.
pub const MAX_SPIN: Duration = Duration::from_millis(10);

/// Shortest and longest target for the wait in front of a server that the configuration accepts, in
/// microseconds. Waking a server takes about 60 us.
pub const WAIT_TARGET_US: (u64, u64) = (100, 1_000_000);

/// The last core that the configuration accepts: the daemon passes sets of 1,024 cores to the
/// kernel.
pub const MAX_CORE: usize = 1_023;

/// Fewest and most unanswered calls of a peer over one link.
pub const WINDOW_CALLS: (u32, u32) = (1, tollgate_transport::limits::MAX_WINDOW_CALLS);

/// Fewest and most bytes of those calls.
pub const WINDOW_BYTES: (u64, u64) = (
    tollgate_transport::limits::MIN_WINDOW_BYTES,
    tollgate_transport::limits::MAX_WINDOW_BYTES,
);

/// Runtime threads that the configuration accepts.
pub const MAX_RUNTIMES: usize = 64;

/// Bytes of the proof of a module's origin: an image's layer, its manifest and some signatures.
pub const PROOF_BYTES: usize = 4 << 20;

/// Signatures of one module that are checked.
pub const SIGNATURES: usize = 8;

/// Tenants with telemetry of their own. Each may have an exporter with its queues (see
/// `tollgate_telemetry::limits`).
pub const MAX_TENANT_ENDPOINTS: usize = 256;

/// The pause between two attempts to listen for the web console (`console.always`).
pub const CONSOLE_RETRY: Duration = Duration::from_secs(1);

/// Audit records that the console shows: the newest.
pub const CONSOLE_RECORDS: u32 = 50;

/// Denied calls that the web console shows: the newest.
pub const CONSOLE_DENIALS: u32 = 50;

/// Bytes of the token file of a daemon for development that are read: a token has 67.
pub const MAX_DEV_TOKEN_BYTES: u64 = 128;
