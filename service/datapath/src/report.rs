//! A runtime's report about itself: its part of `status --json` and of the metrics.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use tollgate_transport::Moved;

use crate::observe::durations::Measured;
use crate::placement::RuntimeIndex;
use crate::tuning::{Scheduling, Waiting};
use tollgate_policy_chain::counts::{AccountReport, PolicyReport};

/// A runtime's part of `status --json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// One report per runtime.
    pub runtimes: Vec<RuntimeReport>,
    /// Sessions of applications.
    pub sessions: Vec<SessionReport>,
    /// Links to peers.
    pub links: Vec<LinkReport>,
    /// Peers, per tenant.
    pub peers: Vec<PeerReport>,
    /// Services of this host.
    pub services: Vec<ServiceReport>,
    /// Policies, by version.
    pub policies: Vec<PolicyReport>,
    /// The resources that the tenants' policies have used.
    pub accounts: Vec<AccountReport>,
    /// The time that the tenants' calls have used.
    pub shares: Vec<ShareReport>,
    /// Calls, counted.
    pub calls: CallCounters,
    /// Bytes of messages, counted.
    pub bytes: ByteCounters,
    /// Calls in flight.
    pub live_calls: usize,
    /// Problems, as sentences for the operator.
    #[serde(skip)]
    pub problems: Vec<String>,
    /// Durations, for metrics only.
    #[serde(skip)]
    pub measured: Vec<Measured>,
    /// How each runtime has spent its time.
    #[serde(skip)]
    pub times: Vec<(RuntimeIndex, RuntimeTimes)>,
    /// The traffic of each link.
    #[serde(skip)]
    pub link_bytes: Vec<LinkBytes>,
    /// Calls with a context that weren't traced because the table was full.
    #[serde(skip)]
    pub untraced: u64,
    /// Records that were dropped because the queue was full.
    #[serde(skip)]
    pub unrecorded: u64,
}

impl Report {
    /// Adds another runtime's part.
    pub fn absorb(&mut self, part: Report) {
        self.measured.extend(part.measured);
        self.times.extend(part.times);
        self.link_bytes.extend(part.link_bytes);
        self.untraced += part.untraced;
        self.unrecorded += part.unrecorded;
        self.runtimes.extend(part.runtimes);
        self.sessions.extend(part.sessions);
        self.problems.extend(part.problems);
        self.links.extend(part.links);
        self.peers.extend(part.peers);
        self.services.extend(part.services);
        self.policies.extend(part.policies);
        self.accounts.extend(part.accounts);
        self.shares.extend(part.shares);
        self.live_calls += part.live_calls;
        let (sum, more) = (&mut self.calls, part.calls);
        sum.posted += more.posted;
        sum.received += more.received;
        sum.delivered += more.delivered;
        sum.completed += more.completed;
        sum.failed += more.failed;
        sum.sleeps += more.sleeps;
        sum.converted += more.converted;
        self.bytes.add(&part.bytes);
    }
}

/// The activity of a runtime's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It has work.
    Busy,
    /// It polls for work.
    Spinning,
    /// It waits for a wake-up.
    Sleeping,
}

/// The wall-clock time of a runtime's thread per activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeTimes {
    /// Working, in ns.
    pub busy_ns: u64,
    /// Polling for work, in ns.
    pub spinning_ns: u64,
    /// Waiting for a wake-up, in ns.
    pub sleeping_ns: u64,
}

impl RuntimeTimes {
    #[inline]
    pub(crate) fn add(&mut self, doing: Doing, ns: u64) {
        match doing {
            Doing::Busy => self.busy_ns += ns,
            Doing::Spinning => self.spinning_ns += ns,
            Doing::Sleeping => self.sleeping_ns += ns,
        }
    }
}

/// Bytes of messages that a link has carried since it was opened.
#[derive(Clone, Debug)]
pub struct LinkBytes {
    /// The peer's address.
    pub address: String,
    /// The tenant's name.
    pub tenant: Option<Arc<str>>,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Retransmitted segments, if they are counted.
    pub retransmits: Option<u32>,
}

/// The state of a runtime.
#[derive(Clone, Debug, Serialize)]
pub struct RuntimeReport {
    pub(crate) runtime: RuntimeIndex,
    /// The core that it is pinned to; `None`: not pinned, or the kernel refused.
    pub(crate) core: Option<usize>,
    pub(crate) waiting: Waiting,
    pub(crate) spin_us: u64,
    pub(crate) scheduling: Scheduling,
    /// 0: calls may wait in front of a server without limit.
    pub(crate) wait_target_us: u64,
    pub(crate) cpu_share_percent: u8,
    /// The number of times that it slept.
    pub(crate) sleeps: u64,
    /// The shared resources of its links over RDMA, if there are devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<PolledReport>,
}

/// The resources that a runtime's links over RDMA share, and their cost beyond that of single
/// links.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PolledReport {
    pub(crate) links: usize,
    /// Pools of receives and memory. Each serves a fixed number of links.
    pub(crate) pools: usize,
    /// Receives posted to the devices.
    pub(crate) receives: u64,
    /// Bytes that were copied because their links weren't read at once.
    pub(crate) bytes_spilled: u64,
    pub(crate) system_calls: u64,
}

/// Calls since the daemon started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CallCounters {
    /// Posted by applications of this host.
    pub(crate) posted: u64,
    /// Received from peers.
    pub(crate) received: u64,
    /// Handed to serving applications.
    pub(crate) delivered: u64,
    /// Answered with a reply, to applications of this host.
    pub(crate) completed: u64,
    /// Answered with a status, to applications of this host.
    pub(crate) failed: u64,
    /// Messages converted between two schemas: encoded as protobuf, decoded from it, or both.
    pub(crate) converted: u64,
    /// The number of times that a runtime slept.
    pub(crate) sleeps: u64,
}

/// Bytes of messages since the daemon started. Each copy by this daemon is in one of the first six
/// counters. Bytes that only the kernel moves, between a socket and shared memory, are in one of
/// the last two. Conversion between schemas doesn't count as copying.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ByteCounters {
    /// Inline parts, always; extents, if a policy reads them or the message is converted.
    pub(crate) send_heap_to_private: u64,
    /// Extents for an application of this host.
    pub(crate) send_heap_to_receive_heap: u64,
    /// Extents too small to be sent in place.
    pub(crate) send_heap_to_link: u64,
    pub(crate) private_to_link: u64,
    pub(crate) private_to_receive_heap: u64,
    /// From a link's receive buffer to the place of the message.
    pub(crate) link_to_message: u64,
    /// Extents sent in place.
    pub(crate) sent_in_place: u64,
    /// Large bodies received directly into their final place.
    pub(crate) received_in_place: u64,
}

impl ByteCounters {
    pub(crate) fn add(&mut self, more: &ByteCounters) {
        self.send_heap_to_private += more.send_heap_to_private;
        self.send_heap_to_receive_heap += more.send_heap_to_receive_heap;
        self.send_heap_to_link += more.send_heap_to_link;
        self.private_to_link += more.private_to_link;
        self.private_to_receive_heap += more.private_to_receive_heap;
        self.link_to_message += more.link_to_message;
        self.sent_in_place += more.sent_in_place;
        self.received_in_place += more.received_in_place;
    }

    /// Adds the traffic of a link.
    pub(crate) fn add_link(&mut self, moved: &Moved) {
        self.private_to_link += moved.private_copied;
        self.send_heap_to_link += moved.shared_copied;
        self.sent_in_place += moved.shared_in_place;
        self.link_to_message += moved.body_copied;
        self.received_in_place += moved.body_in_place;
    }
}

/// One session.
#[derive(Clone, Debug, Serialize)]
pub struct SessionReport {
    pub(crate) session: u32,
    /// The tenant's name.
    pub tenant: String,
    pub(crate) app: String,
    pub(crate) pid: i32,
    pub(crate) outstanding: u32,
    /// Calls that it serves at the moment, the limit of those, and the number of calls that it
    /// wasn't given because of that limit.
    pub(crate) serving: u32,
    pub(crate) serving_limit: u32,
    pub(crate) serving_refused: u64,
    /// Size of the send heap.
    pub send_heap_bytes: u64,
    /// Size of the receive heap.
    pub receive_heap_bytes: u64,
    /// Used bytes of the receive heap.
    pub receive_heap_used: u64,
    pub(crate) methods: usize,
}

/// One link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    pub(crate) peer: String,
    /// The peer's address.
    pub address: String,
    /// The tenant's name.
    pub tenant: Option<String>,
    /// Whether this end dialled: then applications of this end call, and those of the peer serve.
    pub(crate) dialled: bool,
    /// `ready` or `opening`.
    pub state: &'static str,
    /// The protocol's version and the common features; empty before the handshake.
    pub(crate) version: Option<u16>,
    pub(crate) features: Vec<&'static str>,
    /// Services that applications of this end are bound to through this link, with the peer's
    /// acceptance.
    pub(crate) bound: BTreeSet<String>,
    /// Calls that the peer has not answered.
    pub unanswered: u64,
    /// Calls that may be sent now.
    pub credit_calls: u32,
    /// Bytes that may be sent now.
    pub credit_bytes: u64,
    /// The peer's window: its limits of unanswered calls and bytes.
    pub(crate) window_calls: u32,
    pub(crate) window_bytes: u64,
    #[serde(flatten)]
    pub(crate) carriage: Carriage,
}

/// A peer of one tenant: with a link, or without one although applications are bound to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PeerReport {
    /// Its name, once it has sent it.
    pub name: Option<String>,
    /// The peer's address.
    pub address: String,
    /// Whether this end dialled it.
    pub dialled: bool,
    /// The tenant's name.
    pub tenant: Option<String>,
    /// `ready`, `opening` or `lost`.
    pub state: &'static str,
    /// When that state began, by CLOCK_MONOTONIC; `None` if it began before this process.
    pub since_ns: Option<u64>,
    /// The last error of a link to it.
    pub last_error: Option<String>,
}

/// One service of this host.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceReport {
    pub(crate) tenant: String,
    pub(crate) service: String,
    pub(crate) servers: usize,
    pub(crate) schema: String,
    pub(crate) methods: usize,
    /// Methods with machine code, which are those that were called.
    pub(crate) compiled: usize,
    /// Methods with machine code for protobuf: those with messages that were converted between two
    /// schemas.
    pub(crate) compiled_wire: usize,
}

impl ServiceReport {
    /// The tenant's name.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
}

/// The runtime's time that one tenant's calls have used.
#[derive(Clone, Debug, Serialize)]
pub struct ShareReport {
    /// The tenant's name.
    pub tenant: String,
    /// Time for receiving, evaluating and sending them, including the kernel's part, in ns.
    pub busy_ns: u64,
}

impl Report {
    /// Adds up the shares of a tenant that has moved between runtimes.
    pub fn merge_shares(&mut self) {
        self.shares.sort_unstable_by(|a, b| a.tenant.cmp(&b.tenant));
        self.shares.dedup_by(|more, its| {
            let same = more.tenant == its.tenant;
            its.busy_ns += u64::from(same) * more.busy_ns;
            same
        });
    }
}

/// The transport of a link, for operators.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "transport", rename_all = "kebab-case")]
pub(crate) enum Carriage {
    Tcp {
        /// Why not RDMA, if this end dialled.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_rdma: Option<String>,
    },
    #[cfg(feature = "rdma")]
    Rdma {
        /// `None` until it is known.
        device: Option<String>,
        /// Whether the peer writes into a ring of this end.
        one_sided: bool,
        /// Why some messages are copied instead of sent in place.
        copies_because: Option<String>,
        work_requests: u64,
        doorbells: u64,
        completions: u64,
        registrations: u64,
        bytes_copied: u64,
        bytes_in_place: u64,
        system_calls: u64,
    },
}
