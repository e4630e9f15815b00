//! The sum of the daemon's limits: the most memory and descriptors that a configuration can need.
//!
//! Each [line](Line) names the limits that it follows from. The sum of memory is far above what a
//! daemon uses: it adds up what all tenants could hold at the same time, each at its limit. The
//! largest lines show which limit to lower on a small host.
//!
//! Not in the sum: the send heaps, which are the applications' memory. The sum has one RDMA device;
//! each further one may need as many pools.
//!
//! `status` reports the sum, `tollgate check` prints it, and the log says it at the start. Without
//! a running daemon, `tollgate check --config` asks `tollgated capacity`.

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use tollgate_datapath::PeerRoom;
use tollgate_datapath::limits::{
    COMMANDS_QUEUED, HELD_BYTES, MAX_COMPARISONS, MAX_METHODS_PER_SESSION,
};
use tollgate_engine::limits::{MAX_CALLS, MAX_WAITING_BYTES_PER_LINK};
use tollgate_policy_chain::limits::{
    LOG_LINES_PER_SECOND, MAX_CHAINS, PARKED_BYTES_PER_TENANT, PARKED_CALLS, POOLED_BUFFER_BYTES,
    POOLED_BUFFERS, RECORDED_BYTES,
};
use tollgate_policy_host::limits::{
    ARTIFACT_BYTES, ARTIFACTS_IN_MEMORY_BYTES, COMPAT_MEMORY_BYTES, COMPAT_MODULE_BYTES,
    ISOLATED_ANSWER_BYTES, ISOLATED_OUTPUT_BYTES, KEPT_MEMORY_BYTES, LOG_LINE_BYTES, STATE_BYTES,
};
use tollgate_schema::limits::MAX_DESCRIPTOR_SET;
use tollgate_shm_abi::limits::{MAX_MESSAGE_BYTES, MAX_PACKET_BYTES};
use tollgate_shm_abi::session::SessionShape;
use tollgate_telemetry::limits::{MAX_EVENTS, MAX_QUEUED, MAX_RECORDS, MAX_SERIES, MAX_TRACED};
use tollgate_transport::limits::{MAX_DESCRIPTION, RX_BUFFER, TX_SOFT_LIMIT};
#[cfg(feature = "rdma")]
use {
    tollgate_datapath::limits::{MAX_LINKS, POOL_LINKS},
    tollgate_transport_rdma::limits::{MESSAGE_BYTES, RECEIVES, SHARED_RECEIVES, pinned_bytes},
};

use crate::config::{Config, ConfigError};
use crate::limits::{
    API_DESCRIPTORS, COMPILATIONS_QUEUED, COMPILED_POLICIES, DESCRIPTORS_PER_POLICY_PROCESS,
    DESCRIPTORS_PER_SESSION, EVENTS_QUEUED, HANDOVER_BYTES, KEPT_DESCRIPTORS, LOOKUPS,
    LOOKUPS_KEPT, MAX_CONNECTIONS, MAX_LOG_LINES, MAX_PREFETCHED, MAX_SCHEMA_BYTES_PER_TENANT,
    MAX_SCHEMAS, MAX_SESSIONS, MAX_TAPPED, MAX_TAPS, OPERATORS_THREADS, PROCESS_OVERHEAD_BYTES,
    RECEIVE_HEAP_BYTES, TURNS,
};
use crate::process_room::policy_processes;

// Bytes of entries whose size no limit names, rounded up.

/// An entry of the engine's table of calls, with its place in the timer.
const CALL_ENTRY: u64 = 256;
/// A parked call without its message.
const PARKED_ENTRY: u64 = 300;
/// A chain of policies.
const CHAIN_ENTRY: u64 = 512;
/// A binding of a session.
const BINDING_ENTRY: u64 = 200;
/// A command that waits for a runtime.
const COMMAND: u64 = 1 << 10;
/// A connection of a peer that hasn't authenticated.
const STRANGER: u64 = 20 << 10;
/// A series of durations.
const SERIES: u64 = 2_800;
/// A span, a log record, or a call that a watcher sees.
const RECORD: u64 = 4 << 10;
/// One event of a span.
const EVENT: u64 = 64;
/// A line of the log.
const LOG_LINE: u64 = 8 << 10;
/// A prefetched service with its machine code.
const PREFETCHED: u64 = 100 << 10;
/// The stack of a thread that isn't a runtime's, as far as it is touched.
const THREAD: u64 = 256 << 10;
/// A resolved schema with its descriptor set, in multiples of the set.
const SCHEMA_PER_SET: u64 = 11;

/// A line of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// What takes the memory or the descriptors.
    pub what: &'static str,
    /// How many there may be at once.
    pub count: u64,
    /// Bytes, or descriptors, of each.
    pub each: u64,
    /// The limits and settings that it follows from.
    pub limits: &'static str,
}

impl Line {
    /// Bytes, or descriptors, of all of them.
    pub fn total(&self) -> u64 {
        self.count.saturating_mul(self.each)
    }
}

/// The most that a daemon can need.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Bytes of memory, largest line first.
    pub memory: Vec<Line>,
    /// Descriptors.
    pub descriptors: Vec<Line>,
}

/// The sum for a daemon that reads this configuration file and may have any number of descriptors,
/// as JSON. Settings that an operator has changed at run time aren't in it.
///
/// # Errors
/// If the file can't be read, or its configuration is invalid.
pub fn of_file(path: &Path) -> Result<String, ConfigError> {
    let config = Config::read(path)?;
    Ok(Capacity::of(&config, None).report().to_string())
}

fn line(what: &'static str, count: impl Count, each: impl Count, limits: &'static str) -> Line {
    Line {
        what,
        count: count.into_count(),
        each: each.into_count(),
        limits,
    }
}

/// Counts come as the types that limits have.
trait Count {
    fn into_count(self) -> u64;
}

impl Count for u64 {
    fn into_count(self) -> u64 {
        self
    }
}

impl Count for u32 {
    fn into_count(self) -> u64 {
        self.into()
    }
}

impl Count for usize {
    fn into_count(self) -> u64 {
        self as u64
    }
}

impl Capacity {
    /// The most that this configuration can need in a process with this limit of descriptors
    /// (`None`: no limit).
    pub fn of(config: &Config, descriptors: Option<u64>) -> Capacity {
        let runtimes = config.runtimes();
        let peers = PeerRoom::of_each(runtimes, descriptors);
        let processes = policy_processes(descriptors);
        let mut memory = of_applications();
        memory.extend(of_policies(config));
        memory.extend(of_policy_processes(config, processes));
        memory.extend(of_telemetry(config));
        memory.extend(of_runtimes(config, runtimes, peers));
        #[cfg(feature = "rdma")]
        memory.extend(of_rdma(config, runtimes, peers));
        memory.sort_by_key(|line| std::cmp::Reverse(line.total()));
        Capacity {
            memory,
            descriptors: vec![
                line(
                    "sessions, with their connections",
                    MAX_SESSIONS,
                    DESCRIPTORS_PER_SESSION,
                    "MAX_SESSIONS, DESCRIPTORS_PER_SESSION",
                ),
                line(
                    "connections without a session",
                    MAX_CONNECTIONS - MAX_SESSIONS,
                    1_u64,
                    "MAX_CONNECTIONS",
                ),
                line(
                    "links, and connections of peers",
                    peers.descriptors(runtimes),
                    1_u64,
                    "MAX_LINKS, MAX_STRANGERS, ACCEPTED_UNSEEN, runtimes",
                ),
                line(
                    "policy processes",
                    processes,
                    DESCRIPTORS_PER_POLICY_PROCESS,
                    "MAX_POLICY_PROCESSES, DESCRIPTORS_PER_POLICY_PROCESS",
                ),
                #[cfg(feature = "rdma")]
                line(
                    "pools of RDMA links, and their pollers",
                    runtimes * (rdma_pools(config, peers) + DESCRIPTORS_PER_POLLER),
                    1_u64,
                    "MAX_LINKS, POOL_LINKS, runtimes",
                ),
                line(
                    "the administrative API",
                    API_DESCRIPTORS,
                    1_u64,
                    "API_DESCRIPTORS",
                ),
                line(
                    "everything else",
                    KEPT_DESCRIPTORS - API_DESCRIPTORS,
                    1_u64,
                    "KEPT_DESCRIPTORS",
                ),
            ],
        }
    }

    /// The most that this configuration can need in this process.
    pub(crate) fn of_this_process(config: &Config) -> Capacity {
        Capacity::of(config, getrlimit(Resource::Nofile).maximum)
    }

    /// Says the sum in the log.
    pub(crate) fn log(&self) {
        let largest = self.memory.first().map_or("", |line| line.what);
        let may_have = match getrlimit(Resource::Nofile).maximum {
            Some(most) if most < self.descriptors() => {
                format!(" (it may have {most}, so its tables are smaller; LimitNOFILE raises that)")
            }
            _ => String::new(),
        };
        tracing::info!(
            "the limits add up to {} descriptors{may_have} and {} GiB of memory, most of it for {largest}; only full tables take as much",
            self.descriptors(),
            self.memory_bytes() >> 30,
        );
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        sum(&self.memory)
    }

    /// Descriptors with every table full. A lower limit of the process lowers the tables.
    pub fn descriptors(&self) -> u64 {
        sum(&self.descriptors)
    }

    /// The sum for `status`.
    pub(crate) fn report(&self) -> Value {
        let lines = |lines: &[Line]| -> Vec<Value> {
            let line = |line: &Line| {
                json!({
                    "what": line.what, "count": line.count, "each": line.each,
                    "total": line.total(), "limits": line.limits,
                })
            };
            lines.iter().map(line).collect()
        };
        json!({
            "memory_bytes": self.memory_bytes(), "memory": lines(&self.memory),
            "descriptors": self.descriptors(), "descriptors_by": lines(&self.descriptors),
        })
    }
}

fn sum(lines: &[Line]) -> u64 {
    let totals = lines.iter().map(Line::total);
    totals.fold(0, u64::saturating_add)
}

/// Sessions, connections and schemas.
fn of_applications() -> Vec<Line> {
    let sessions = MAX_SESSIONS;
    let set = MAX_DESCRIPTOR_SET as u64;
    // A tenant holds at least one schema of its bytes.
    let schema = (SCHEMA_PER_SET * set).min(MAX_SCHEMA_BYTES_PER_TENANT as u64);
    vec![
        line(
            "receive heaps",
            1_u64,
            RECEIVE_HEAP_BYTES,
            "RECEIVE_HEAP_BYTES",
        ),
        line(
            "rings",
            sessions,
            SessionShape::default().rings_bytes(),
            "MAX_SESSIONS, DEFAULT_RING_CAPACITY",
        ),
        line(
            "bindings",
            sessions * MAX_METHODS_PER_SESSION,
            BINDING_ENTRY,
            "MAX_SESSIONS, MAX_METHODS_PER_SESSION",
        ),
        line(
            "messages to the administrative API",
            (tollgate_admin::CONNECTIONS + tollgate_admin::REMOTE_CONNECTIONS)
                * tollgate_admin::REQUESTS_PER_CONNECTION,
            tollgate_admin::MAX_MESSAGE_BYTES,
            "CONNECTIONS, REMOTE_CONNECTIONS, REQUESTS_PER_CONNECTION, MAX_MESSAGE_BYTES",
        ),
        line(
            "pushes that are being received",
            tollgate_admin::PUSHES + tollgate_admin::REMOTE_PUSHES,
            tollgate_admin::PUSH_BYTES,
            "PUSHES, REMOTE_PUSHES, PUSH_BYTES",
        ),
        line(
            "documents that are being applied",
            tollgate_admin::APPLIES + tollgate_admin::REMOTE_APPLIES,
            tollgate_admin::APPLY_BYTES,
            "APPLIES, REMOTE_APPLIES, APPLY_BYTES",
        ),
        line(
            "packets of control connections",
            MAX_CONNECTIONS,
            MAX_PACKET_BYTES,
            "MAX_CONNECTIONS, MAX_PACKET_BYTES",
        ),
        line(
            "schemas",
            MAX_SCHEMAS,
            schema,
            "MAX_SCHEMAS, MAX_SCHEMA_BYTES_PER_TENANT, MAX_DESCRIPTOR_SET",
        ),
        line(
            "prefetched services",
            MAX_PREFETCHED,
            PREFETCHED,
            "MAX_PREFETCHED",
        ),
        line(
            "schemas being resolved",
            TURNS,
            schema,
            "TURNS, MAX_DESCRIPTOR_SET",
        ),
        line(
            "threads for look-ups and administration",
            LOOKUPS + LOOKUPS_KEPT + OPERATORS_THREADS,
            THREAD,
            "LOOKUPS, LOOKUPS_KEPT, OPERATORS_THREADS",
        ),
        line(
            "the store's cache",
            1_u64,
            tollgate_control::limits::CACHE_BYTES,
            "CACHE_BYTES",
        ),
        line(
            "audit records in memory",
            tollgate_control::limits::AUDIT_RING,
            tollgate_control::limits::MAX_LINE_BYTES,
            "AUDIT_RING, MAX_LINE_BYTES",
        ),
    ]
}

/// Modules, instances, and the processes that compile modules.
fn of_policies(config: &Config) -> Vec<Line> {
    let memory = u64::from(config.policies.memory_kib) << 10;
    vec![
        line(
            "memory of instances",
            config.policies.instances,
            memory.max(COMPAT_MEMORY_BYTES as u64) + KEPT_MEMORY_BYTES as u64,
            "policies.instances, policies.memory_kib, COMPAT_MEMORY_BYTES",
        ),
        line(
            "state of policies",
            config.policies.instances,
            STATE_BYTES,
            "policies.instances, STATE_BYTES",
        ),
        line(
            "views kept for comparing versions",
            config.policies.instances,
            RECORDED_BYTES,
            "policies.instances, RECORDED_BYTES",
        ),
        line(
            "compiled policies",
            COMPILED_POLICIES,
            ARTIFACT_BYTES,
            "COMPILED_POLICIES, ARTIFACT_BYTES",
        ),
        line(
            "compiled policies without a state directory",
            1_u64,
            ARTIFACTS_IN_MEMORY_BYTES,
            "ARTIFACTS_IN_MEMORY_BYTES",
        ),
        line(
            "modules waiting for a compile worker",
            COMPILATIONS_QUEUED,
            COMPAT_MODULE_BYTES,
            "COMPILATIONS_QUEUED, COMPAT_MODULE_BYTES",
        ),
        line(
            "compile workers (processes)",
            config.compile.workers,
            config.compile.memory_bytes,
            "compile.workers, compile.memory_bytes",
        ),
    ]
}

/// The processes of isolated policies, and the daemon's end of each.
fn of_policy_processes(config: &Config, processes: usize) -> Vec<Line> {
    let memory = u64::from(config.policies.process_memory_mib) << 20;
    vec![
        // The overhead includes the memory that a process shares with the daemon.
        line(
            "policy processes",
            processes,
            memory + PROCESS_OVERHEAD_BYTES,
            "MAX_POLICY_PROCESSES, policies.process_memory_mib, PROCESS_OVERHEAD_BYTES",
        ),
        line(
            "answers and output of policy processes",
            processes,
            ISOLATED_ANSWER_BYTES as u64 + ISOLATED_OUTPUT_BYTES,
            "MAX_POLICY_PROCESSES, ISOLATED_ANSWER_BYTES, ISOLATED_OUTPUT_BYTES",
        ),
        line(
            "threads that create instances in policy processes",
            processes,
            THREAD,
            "MAX_POLICY_PROCESSES",
        ),
    ]
}

/// The log, and what waits for telemetry's receivers.
fn of_telemetry(config: &Config) -> Vec<Line> {
    let telemetry = &config.telemetry;
    let of_tenants = telemetry.tenants.values();
    let own = of_tenants
        .filter(|tenant| tenant.endpoint.is_some())
        .count();
    let endpoints = usize::from(telemetry.endpoint.is_some()) + own;
    vec![
        line("lines of the log", MAX_LOG_LINES, LOG_LINE, "MAX_LOG_LINES"),
        line("records to collect", MAX_RECORDS, RECORD, "MAX_RECORDS"),
        line(
            "spans and lines to export",
            2 * MAX_QUEUED * endpoints,
            RECORD,
            "MAX_QUEUED, endpoints of telemetry",
        ),
        line(
            "calls for watchers",
            MAX_TAPS * MAX_TAPPED,
            RECORD,
            "MAX_TAPS, MAX_TAPPED",
        ),
    ]
}

/// Calls, links and their messages.
fn of_runtimes(config: &Config, runtimes: usize, peers: PeerRoom) -> Vec<Line> {
    let links = runtimes * peers.links();
    let message = u64::from(MAX_MESSAGE_BYTES);
    vec![
        line(
            "calls in flight",
            runtimes * MAX_CALLS,
            CALL_ENTRY,
            "MAX_CALLS, runtimes",
        ),
        line(
            "messages of peers' calls",
            links,
            config.link.window_bytes,
            "MAX_LINKS, link.window_bytes, runtimes",
        ),
        line(
            "buffers of links",
            links,
            RX_BUFFER as u64 + TX_SOFT_LIMIT as u64 + message,
            "MAX_LINKS, RX_BUFFER, TX_SOFT_LIMIT, MAX_MESSAGE_BYTES, runtimes",
        ),
        line(
            "calls that links hold back",
            links,
            MAX_WAITING_BYTES_PER_LINK,
            "MAX_LINKS, MAX_WAITING_BYTES_PER_LINK, runtimes",
        ),
        line(
            "commands for runtimes",
            runtimes * COMMANDS_QUEUED,
            COMMAND,
            "COMMANDS_QUEUED, runtimes",
        ),
        line(
            "events of runtimes",
            EVENTS_QUEUED,
            LOG_LINES_PER_SECOND as usize * LOG_LINE_BYTES,
            "EVENTS_QUEUED, LOG_LINES_PER_SECOND, LOG_LINE_BYTES",
        ),
        line(
            "schemas of peers being compared",
            runtimes * MAX_COMPARISONS,
            MAX_DESCRIPTION,
            "MAX_COMPARISONS, MAX_DESCRIPTION, runtimes",
        ),
        line(
            "connections of peers before they authenticate",
            runtimes * peers.strangers(),
            STRANGER,
            "MAX_STRANGERS, runtimes",
        ),
        line(
            "messages waiting for room in a receive heap",
            MAX_SESSIONS,
            HELD_BYTES,
            "MAX_SESSIONS, HELD_BYTES",
        ),
        line(
            "parked calls",
            runtimes * PARKED_CALLS,
            PARKED_ENTRY + message.min(PARKED_BYTES_PER_TENANT),
            "PARKED_CALLS, MAX_MESSAGE_BYTES, runtimes",
        ),
        line(
            "state handed over at an upgrade",
            runtimes,
            HANDOVER_BYTES,
            "HANDOVER_BYTES, runtimes",
        ),
        line(
            "buffers kept for reuse",
            runtimes * POOLED_BUFFERS,
            POOLED_BUFFER_BYTES,
            "POOLED_BUFFERS, POOLED_BUFFER_BYTES, runtimes",
        ),
        line(
            "chains of policies",
            runtimes * MAX_CHAINS,
            CHAIN_ENTRY,
            "MAX_CHAINS, runtimes",
        ),
        line(
            "series of durations",
            runtimes * (MAX_SERIES + 1),
            SERIES,
            "MAX_SERIES, runtimes",
        ),
        line(
            "traced calls in flight",
            runtimes * MAX_TRACED,
            RECORD + MAX_EVENTS as u64 * EVENT,
            "MAX_TRACED, MAX_EVENTS, runtimes",
        ),
        line(
            "kept spans",
            runtimes as u64 * u64::from(config.telemetry.kept_spans),
            1_000_u64,
            "telemetry.kept_spans, runtimes",
        ),
    ]
}

/// Descriptors of a runtime's RDMA poller: an epoll, and an eventfd that other pollers write to.
#[cfg(feature = "rdma")]
const DESCRIPTORS_PER_POLLER: usize = 2;

/// RDMA links of a runtime. Connections that haven't authenticated are links of its pools, too.
#[cfg(feature = "rdma")]
fn rdma_links(config: &Config, peers: PeerRoom) -> usize {
    match config.rdma.enabled {
        true => (peers.links() + peers.strangers()).min(MAX_LINKS),
        false => 0,
    }
}

#[cfg(feature = "rdma")]
fn rdma_pools(config: &Config, peers: PeerRoom) -> usize {
    rdma_links(config, peers).div_ceil(POOL_LINKS.into())
}

/// The memory of RDMA links beyond that of all links. Pools and rings are pinned.
#[cfg(feature = "rdma")]
fn of_rdma(config: &Config, runtimes: usize, peers: PeerRoom) -> Vec<Line> {
    let links = runtimes * rdma_links(config, peers);
    let pool = pinned_bytes(POOL_LINKS.into(), 0, Some(POOL_LINKS));
    let ring_bytes = config.rdma.ring_bytes();
    let with_rings = pinned_bytes(POOL_LINKS.into(), ring_bytes, Some(POOL_LINKS));
    vec![
        line(
            "pools of RDMA links",
            runtimes * rdma_pools(config, peers),
            pool,
            "MAX_LINKS, POOL_LINKS, runtimes",
        ),
        line(
            "rings of RDMA links",
            links,
            (with_rings - pool) / usize::from(POOL_LINKS),
            "MAX_LINKS, rdma.one_sided, rdma.ring_kib, runtimes",
        ),
        line(
            "messages of RDMA links that aren't read",
            links,
            (usize::from(RECEIVES) - SHARED_RECEIVES) * MESSAGE_BYTES,
            "MAX_LINKS, RECEIVES, SHARED_RECEIVES, MESSAGE_BYTES, runtimes",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Config)) -> Capacity {
        let mut config = Config::default();
        change(&mut config);
        Capacity::of(&config, None)
    }

    fn of(capacity: &Capacity, what: &str) -> u64 {
        let line = capacity.memory.iter().find(|line| line.what == what);
        line.map_or(0, Line::total)
    }

    /// The number in the documentation of [`MAX_SESSIONS`] and in `tollgate check`.
    #[test]
    fn all_sessions_and_peers_of_one_runtime_fit_into_the_documented_descriptors() {
        const DOCUMENTED: u64 = 25_000;
        let capacity = Capacity::of(&Config::default(), Some(DOCUMENTED));
        let strangers = (MAX_CONNECTIONS - MAX_SESSIONS) as u64;
        let needed = capacity.descriptors() - strangers;
        assert!((24_000..=DOCUMENTED).contains(&needed), "{needed}");
    }

    #[test]
    fn what_a_setting_allows_is_in_the_sum() {
        let before = with(|_| {});
        let window = with(|config| config.link.window_bytes *= 2);
        let messages = "messages of peers' calls";
        assert_eq!(of(&window, messages), 2 * of(&before, messages));
        assert_eq!(
            window.memory_bytes() - before.memory_bytes(),
            of(&before, messages)
        );
        let runtimes = with(|config| config.runtimes = 4);
        assert_eq!(
            of(&runtimes, "parked calls"),
            4 * of(&before, "parked calls")
        );
        assert!(runtimes.descriptors() > before.descriptors());
        let instances = with(|config| config.policies.instances = 1);
        assert!(of(&instances, "memory of instances") < 10 << 20);
        let processes = with(|config| config.policies.process_memory_mib = 64);
        assert_eq!(of(&processes, "policy processes"), 1_024 * (128 << 20));
        let workers = with(|config| config.compile.workers = 16);
        assert_eq!(
            of(&workers, "compile workers (processes)"),
            16 * (512 << 20)
        );
    }

    #[test]
    fn the_largest_line_comes_first_and_none_is_named_twice() {
        let capacity = with(|_| {});
        assert!(
            capacity
                .memory
                .is_sorted_by_key(|line| std::cmp::Reverse(line.total()))
        );
        let mut names: Vec<_> = capacity.memory.iter().map(|line| line.what).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), capacity.memory.len());
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn rdma_links_are_in_the_sum_unless_they_are_disabled() {
        let pools = "pools of RDMA links";
        let rings = "rings of RDMA links";
        let without_rings = with(|_| {});
        assert_eq!(of(&without_rings, pools), 1_024 * (256 << 10));
        assert_eq!(of(&without_rings, rings), 0);
        let with_rings = with(|config| config.rdma.one_sided = true);
        assert_eq!(of(&with_rings, rings), 1_024 * ((1 << 20) + 4_096));
        let disabled = with(|config| config.rdma.enabled = false);
        assert_eq!(of(&disabled, pools), 0);
        assert!(disabled.descriptors() < without_rings.descriptors());
    }

    /// A process with few descriptors has few links, and needs less memory for them.
    #[test]
    fn few_descriptors_lower_the_sum() {
        let few = Capacity::of(&Config::default(), Some(1_024));
        let all = Capacity::of(&Config::default(), None);
        assert!(of(&few, "buffers of links") < of(&all, "buffers of links"));
    }
}
