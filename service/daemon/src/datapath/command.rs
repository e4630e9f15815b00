//! What the control plane and a runtime say to each other.
//!
//! Commands are carried out between two calls, in order; each that matters is answered, so whoever asked knows when it is in
//! force. A runtime never waits for the control plane.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tollgate_engine::chain::{OnFault, Party, Trial};
use tollgate_engine::{ServiceId, SessionId, Status};
use tollgate_marshal::Patch;
use tollgate_policy_host::apart::Channel;
use tollgate_policy_host::{
    Capabilities, ForeignInstance, Hook, Instance, LoadError, Policy, Setup, SharedState,
    ShownKeys, TenantLimits,
};
use tollgate_schema::Layouts;
use tollgate_schema::evolution::MethodMatch;
use tollgate_shm_abi::session::DaemonEnd;
use tollgate_telemetry::record::Span;
use tollgate_transport::Moved;
#[cfg(feature = "rdma")]
use tollgate_transport_rdma::Door;

use crate::config::{Scheduling, Waiting};
pub(crate) use crate::datapath::apart::{Apart, ProcessId};
use crate::datapath::carrier::Carriage;
use crate::datapath::durations::Measured;
use crate::datapath::foreign::ForeignAsk;
use crate::datapath::handover::{Estate, Inventory, Resumed};
use crate::datapath::metrics::NamedMetrics;
use crate::datapath::moving::{Move, Moving};
use crate::datapath::placement::Map;
use crate::datapath::ports::LinkPort;
use crate::datapath::runtime::Tuning;
use crate::datapath::target::{Found, Target};
pub(crate) use crate::machine_code::{LazyProjector, Method};

/// A service as one application knows it: shared by all that bind the same schema.
pub(crate) struct ServiceSchema {
    pub(crate) name: String,
    /// What peers compare.
    pub(crate) hash: [u8; 32],
    /// What they are shown when hashes differ.
    pub(crate) description: String,
    pub(crate) methods: Vec<Arc<Method>>,
}

/// One attachment in a chain, prepared for one method. A version that has nothing to say about the method isn't asked: the call
/// passes it.
#[derive(Clone)]
pub(crate) struct Step {
    /// The attachment's [`Installed::id`].
    pub(crate) policy: u32,
    pub(crate) stable: Option<Ask>,
    pub(crate) candidate: Option<Ask>,
    /// Of versions that aren't in force any more, and judge the replies to what they have judged.
    pub(crate) before: Vec<Ask>,
}

impl Step {
    pub(crate) fn new(policy: u32, stable: Option<Ask>, candidate: Option<Ask>) -> Self {
        Self {
            policy,
            stable,
            candidate,
            before: Vec::new(),
        }
    }

    /// What a version is shown, wherever it is.
    pub(crate) fn ask_of(&self, version: u32) -> Option<&Ask> {
        let there = [&self.stable, &self.candidate].into_iter().flatten();
        let mut all = there.chain(&self.before);
        all.find(|ask| ask.version == version)
    }
}

/// What one version is shown of a message.
#[derive(Clone)]
pub(crate) struct Ask {
    /// Which.
    pub(crate) version: u32,
    /// The method's index in the version's manifest.
    pub(crate) method: u32,
    pub(crate) projector: Arc<LazyProjector>,
    /// The metadata that follows in its view.
    pub(crate) shown: Arc<ShownKeys>,
    /// What it may change; `None`: nothing.
    pub(crate) patch: Option<Arc<Patcher>>,
    /// What it is shown instead of a view, if it was made for another host.
    pub(crate) foreign: Option<Arc<ForeignAsk>>,
}

/// The fields and the metadata that a version may change of a message.
pub(crate) struct Patcher {
    pub(crate) patch: Patch,
    /// The metadata's keys.
    pub(crate) keys: Vec<String>,
    /// Those that the patch was made with.
    pub(crate) layouts: Arc<Layouts>,
}

/// The chains of one method on one side; empty: none.
#[derive(Clone, Default)]
pub(crate) struct MethodSteps {
    pub(crate) request: Vec<Step>,
    pub(crate) reply: Vec<Step>,
}

/// Which calls a chain is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Calls of one application's method handle.
    Client { session: SessionId, handle: u32 },
    /// Calls to a service of this host.
    Server { service: ServiceId, method: u16 },
}

/// An attachment's place in a runtime: what is in force, and what is on trial.
pub(crate) struct Installed {
    /// Chosen by the control plane.
    pub(crate) id: u32,
    /// `acl of tenant acme`.
    pub(crate) label: String,
    pub(crate) party: Party,
    /// The tenant that pays for its judgements; empty: the provider, who doesn't.
    pub(crate) account: Arc<str>,
    pub(crate) on_fault: OnFault,
    /// Percentage points by which a canary may err more often than the stable.
    pub(crate) max_worse: u8,
    pub(crate) stable: Place,
    pub(crate) candidate: Place,
    pub(crate) trial: Option<Trial>,
    /// How many of the last views to keep for [`Command::Recorded`]; 0: none.
    pub(crate) record: u32,
}

/// What becomes of one of the two places.
pub(crate) enum Place {
    /// It stays as it is; empty, in a new attachment.
    Keep,
    Empty,
    Put(Running),
    /// For the stable's: what is on trial moves here as it is, and its own place is free.
    FromCandidate,
}

/// A version that is to run.
pub(crate) struct Running {
    pub(crate) version: u32,
    pub(crate) how: How,
    /// It goes on from the state of the stable that is there now.
    pub(crate) inherit: bool,
}

/// How a version runs.
pub(crate) enum How {
    /// One instance for all calls.
    Kept(Box<Instance>),
    /// One instance of a foreign module for all calls.
    Foreign(Box<ForeignInstance>),
    /// A new instance for every call.
    Fresh(Box<Recipe>),
    /// In a process of its tenant's.
    Apart(Box<Apart>),
    /// Not at all, and why: its calls fare as [`Installed::on_fault`] says.
    Broken(String),
}

/// What judging one call may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuLimit {
    pub(crate) fuel_per_call: u64,
    /// How long a process may take for it, at most.
    pub(crate) apart_ns: u64,
}

impl How {
    /// Changes what judging one call may use.
    pub(crate) fn limit_cpu(&mut self, limit: CpuLimit) {
        match self {
            How::Kept(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            How::Foreign(instance) => instance.set_fuel_per_call(limit.fuel_per_call),
            How::Fresh(recipe) => recipe.limits.fuel_per_call = limit.fuel_per_call,
            How::Apart(apart) => apart.cpu = limit,
            How::Broken(_) => {}
        }
    }
}

/// What makes an instance.
pub(crate) struct Recipe {
    pub(crate) policy: Policy,
    pub(crate) limits: TenantLimits,
    pub(crate) config: Option<Arc<[u8]>>,
    pub(crate) granted: Capabilities,
    pub(crate) state: Option<SharedState>,
}

/// What an application binds.
pub(crate) enum BindAs {
    /// It calls the service: on this host, or at a peer.
    Client { peer: Option<Found> },
    /// It calls a service of this host whose schema is another one: what came of comparing them.
    Across {
        service: ServiceId,
        matches: Vec<MethodMatch>,
    },
    /// It serves it.
    Server,
}

/// What binding yields.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) first_handle: u32,
    /// For servers: what [`Command::Serve`] starts, and server-side chains are for.
    pub(crate) service: Option<ServiceId>,
    /// Methods that can't be called because the schemas are incompatible there, and why.
    pub(crate) refused: Vec<(u16, String)>,
}

/// What becomes of a [`Command::Bind`].
pub(crate) enum BindOutcome {
    Bound(Bound),
    /// A service of this host has the name and another schema: bind again as [`BindAs::Across`].
    Differs {
        service: ServiceId,
        served: Arc<ServiceSchema>,
    },
}

/// Who asked for a binding.
pub(crate) type Asker = oneshot::Sender<Result<BindOutcome, Status>>;

/// A change of policies, applied as a whole between two calls.
#[derive(Default)]
pub(crate) struct PolicyChange {
    pub(crate) install: Vec<Installed>,
    pub(crate) chains: Vec<(Scope, MethodSteps)>,
    pub(crate) remove: Vec<u32>,
}

/// From the control plane to a runtime.
pub(crate) enum Command {
    OpenSession {
        end: Box<DaemonEnd>,
        tenant: Arc<str>,
        app: String,
        pid: i32,
        /// What its library understands.
        features: u32,
        /// Under which it serves; empty for none.
        label: String,
        reply: oneshot::Sender<Result<SessionId, Status>>,
    },
    /// Another process is to go on with everything: the runtime does nothing until it hears that one does, or won't (the sender is
    /// dropped).
    HandOver {
        /// The other process can go on with links.
        with_links: bool,
        /// When it gives up.
        until: std::time::Instant,
        /// Told at once; then it waits for all runtimes to stand, so that no link is on its way between two of them.
        stands: oneshot::Sender<()>,
        all_stand: mpsc::Receiver<()>,
        reply: oneshot::Sender<Result<Estate, String>>,
        verdict: mpsc::Receiver<()>,
    },
    /// Go on with what another process leaves, once it has ended.
    TakeOver {
        estate: Box<Estate>,
        inventory: Inventory,
        reply: oneshot::Sender<Result<Vec<Resumed>, String>>,
        begins: mpsc::Receiver<()>,
    },
    /// A session is given no further calls.
    Drain {
        session: SessionId,
        reply: oneshot::Sender<()>,
    },
    CloseSession {
        session: SessionId,
    },
    Bind {
        session: SessionId,
        schema: Arc<ServiceSchema>,
        bind: BindAs,
        /// The client-side chains, by method; for servers, the server-side ones.
        chains: Vec<MethodSteps>,
        reply: Asker,
    },
    /// The answer to [`Event::Compare`].
    Compared {
        ticket: u64,
        binding: u32,
        matches: Vec<MethodMatch>,
    },
    /// The answer to [`Event::LookUp`]: where the peer is, or why nobody knows.
    Found {
        tenant: Arc<str>,
        peer: Target,
        found: Result<Vec<SocketAddr>, String>,
    },
    /// Calls may come from now on: the application knows its handles, or keeps calls until it does.
    Serve {
        session: SessionId,
        bound: Bound,
        done: oneshot::Sender<()>,
    },
    /// A peer connected.
    Accept {
        stream: TcpStream,
        /// Its place among those that no runtime has looked at.
        unseen: OwnedSemaphorePermit,
    },
    /// One connected by RDMA.
    #[cfg(feature = "rdma")]
    AcceptByRdma {
        link: Box<tollgate_transport_rdma::RdmaLink>,
    },
    /// A link moves here from the runtime that accepted it, with the BIND that showed where it belongs; without one, nothing has, and that
    /// runtime ends.
    Adopt {
        port: Box<LinkPort>,
        bind: Option<PendingBind>,
    },
    /// A tenant goes to another runtime, with all that it has.
    Part {
        order: Box<Move>,
    },
    /// A tenant comes from another runtime.
    Absorb {
        moving: Box<Moving>,
    },
    /// Where tenants live from now on.
    Place {
        map: Box<Map>,
        done: oneshot::Sender<()>,
    },
    /// The runtime ends: nobody lives there, and nobody will. Links of peers that haven't said whose they are go to the first one.
    Retire {
        map: Box<Map>,
        reply: oneshot::Sender<Report>,
    },
    /// A tenant has a policy process: what is to run there comes later.
    Process {
        id: ProcessId,
        tenant: Arc<str>,
        channel: Box<Channel>,
    },
    /// Whether the version in force could hand its state over to `heir`, which is thrown away; an error says why not.
    Rehearse {
        id: u32,
        version: u32,
        heir: Box<Apart>,
        done: oneshot::Sender<Result<(), String>>,
    },
    Policies {
        change: PolicyChange,
        /// An error says why nothing has changed.
        done: oneshot::Sender<Result<(), String>>,
    },
    /// Other settings, from the next call on.
    Tune {
        tuning: Box<Tuning>,
        /// What a judgement may use, and the attachments that this is for.
        cpu: CpuLimit,
        of: Vec<u32>,
        done: oneshot::Sender<()>,
    },
    /// The last views that an attachment's stable was shown, oldest first.
    Recorded {
        id: u32,
        reply: oneshot::Sender<Vec<RecordedView>>,
    },
    /// The newest spans, oldest first.
    KeptSpans {
        reply: oneshot::Sender<Vec<Arc<Span>>>,
    },
    Report {
        reply: oneshot::Sender<Report>,
    },
    /// As [`Report`](Self::Report), with what is for metrics only.
    Measure {
        reply: oneshot::Sender<Report>,
    },
    Stop,
}

/// A BIND that a peer sent.
pub(crate) struct PendingBind {
    pub(crate) bind: u32,
    pub(crate) tenant: String,
    pub(crate) service: String,
    pub(crate) hash: [u8; 32],
}

/// From a runtime to the control plane.
pub(crate) enum Event {
    /// The runtime ended a session that broke the rules.
    SessionEnded {
        runtime: usize,
        session: SessionId,
        reason: String,
    },
    /// A peer serves what an application has bound, with another schema: compare, and say so with [`Command::Compared`].
    Compare {
        runtime: usize,
        ticket: u64,
        binding: u32,
        tenant: Arc<str>,
        ours: Arc<ServiceSchema>,
        theirs: String,
    },
    /// A peer is to be dialled again, which may have moved: look its name up, and say so with [`Command::Found`].
    LookUp { tenant: Arc<str>, peer: Target },
    /// The version in force failed and is out of order: it wants a fresh instance.
    PolicyFaulted {
        id: u32,
        version: u32,
        reason: String,
    },
    /// The version on trial failed, or errs more often than the stable: it is gone from its place.
    CandidateFailed {
        id: u32,
        version: u32,
        reason: String,
    },
    /// A policy process is gone, with all its seats.
    ProcessEnded { id: ProcessId, reason: String },
    /// Calls were refused because their tenant's policies had used up their share. At most once a second per tenant.
    Throttled { tenant: Arc<str>, refused: u64 },
    /// Lines that a policy logged.
    PolicyLogged {
        label: String,
        lines: Vec<String>,
        dropped: u64,
    },
}

/// How the control plane reaches one runtime.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) doorbell: Arc<OwnedFd>,
    /// Of its poller, if there is RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) door: Option<Door>,
}

impl Handle {
    /// Queues a command and wakes the runtime. `false`: the runtime has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        self.try_send(command).is_ok()
    }

    /// As [`send`](Self::send), and gives the command back if the runtime has ended.
    ///
    /// # Errors
    /// The command.
    #[allow(clippy::result_large_err, reason = "nobody keeps it")]
    pub(crate) fn try_send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|unsent| unsent.0)?;
        // The counter can't be full: the runtime never lets 2^64 wake-ups gather.
        let _woken = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
        Ok(())
    }
}

/// A runtime's part of `status --json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) runtimes: Vec<RuntimeReport>,
    pub(crate) sessions: Vec<SessionReport>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) peers: Vec<PeerReport>,
    pub(crate) services: Vec<ServiceReport>,
    pub(crate) policies: Vec<PolicyReport>,
    pub(crate) accounts: Vec<AccountReport>,
    pub(crate) shares: Vec<ShareReport>,
    pub(crate) calls: CallCounters,
    pub(crate) bytes: ByteCounters,
    pub(crate) live_calls: usize,
    /// Sentences for the operator.
    #[serde(skip)]
    pub(crate) problems: Vec<String>,
    /// Of metrics, and of these only.
    #[serde(skip)]
    pub(crate) measured: Vec<Measured>,
    #[serde(skip)]
    pub(crate) times: Vec<(usize, RuntimeTimes)>,
    #[serde(skip)]
    pub(crate) link_bytes: Vec<LinkBytes>,
    /// Calls with a context that weren't traced, and records that were dropped, for want of room.
    #[serde(skip)]
    pub(crate) untraced: u64,
    #[serde(skip)]
    pub(crate) unrecorded: u64,
}

/// What a runtime's thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// There was something to do.
    Busy,
    /// It looks for something to do.
    Spinning,
    /// It waits to be woken.
    Sleeping,
}

/// For how long a runtime's thread has done what, by the wall's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeTimes {
    pub(crate) busy_ns: u64,
    pub(crate) spinning_ns: u64,
    pub(crate) sleeping_ns: u64,
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

/// Bytes of messages that a link has moved since it was opened.
#[derive(Clone, Debug)]
pub(crate) struct LinkBytes {
    pub(crate) address: String,
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Segments that were sent again, if somebody counts them.
    pub(crate) retransmits: Option<u32>,
}

impl Report {
    /// Adds another runtime's part.
    pub(crate) fn absorb(&mut self, part: Report) {
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

impl Report {
    /// A tenant that has moved has had something of several runtimes.
    pub(crate) fn merge_shares(&mut self) {
        self.shares.sort_unstable_by(|a, b| a.tenant.cmp(&b.tenant));
        self.shares.dedup_by(|more, its| {
            let same = more.tenant == its.tenant;
            its.busy_ns += u64::from(same) * more.busy_ns;
            same
        });
    }
}

/// How a runtime works at the moment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RuntimeReport {
    pub(crate) runtime: usize,
    /// Where it is pinned; `None`: nowhere, or the kernel refused.
    pub(crate) core: Option<usize>,
    pub(crate) waiting: Waiting,
    pub(crate) spin_us: u64,
    pub(crate) scheduling: Scheduling,
    /// 0: calls wait in front of a server however long.
    pub(crate) wait_target_us: u64,
    pub(crate) cpu_share_percent: u8,
    /// Times that it slept.
    pub(crate) sleeps: u64,
    /// What its links over RDMA share, if there are devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<PolledReport>,
}

/// What a runtime's links over RDMA have together, and what that has cost beside what they report each.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PolledReport {
    pub(crate) links: usize,
    /// Of receives and memory, each for so many links as a pool has room for.
    pub(crate) pools: usize,
    /// Messages that devices were given room for.
    pub(crate) receives: u64,
    /// Copied because their links weren't read at once.
    pub(crate) bytes_spilled: u64,
    pub(crate) system_calls: u64,
}

/// Calls since the daemon started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CallCounters {
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
    /// Messages rewritten between two schemas: made protobuf of, made from protobuf, or both.
    pub(crate) converted: u64,
    /// Times that a runtime slept.
    pub(crate) sleeps: u64,
}

/// Bytes of messages since the daemon started: each copy that this daemon makes is in one of the first six, and each byte that
/// only the kernel moves, between a socket and shared memory, in one of the last two. Rewriting between schemas isn't copying.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ByteCounters {
    /// Inline parts, always; extents, if a policy reads them or the message is to be rewritten.
    pub(crate) send_heap_to_private: u64,
    /// Extents for an application of this host.
    pub(crate) send_heap_to_receive_heap: u64,
    /// Extents too small to be sent from where they lie.
    pub(crate) send_heap_to_link: u64,
    pub(crate) private_to_link: u64,
    pub(crate) private_to_receive_heap: u64,
    /// Out of a link's receive buffer, to where the message lands.
    pub(crate) link_to_message: u64,
    /// Extents sent from where they lie.
    pub(crate) sent_in_place: u64,
    /// Large bodies received in the place where they stay.
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

    /// What a link has moved.
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
pub(crate) struct SessionReport {
    pub(crate) session: u32,
    pub(crate) tenant: String,
    pub(crate) app: String,
    pub(crate) pid: i32,
    pub(crate) outstanding: u32,
    /// Calls that it serves at the moment, how many of those there may be, and how many it wasn't given for having as many.
    pub(crate) serving: u32,
    pub(crate) serving_limit: u32,
    pub(crate) serving_refused: u64,
    pub(crate) send_heap_bytes: u64,
    pub(crate) receive_heap_bytes: u64,
    pub(crate) receive_heap_used: u64,
    pub(crate) methods: usize,
}

/// One link.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkReport {
    pub(crate) peer: String,
    pub(crate) address: String,
    pub(crate) tenant: Option<String>,
    /// Whether this end dialled: its applications call, those of the peer serve.
    pub(crate) dialled: bool,
    pub(crate) state: &'static str,
    /// What both ends speak, and the features that both have; nothing before the handshake.
    pub(crate) version: Option<u16>,
    pub(crate) features: Vec<&'static str>,
    /// Services that applications of this end are bound to through it, as the peer has accepted.
    pub(crate) bound: BTreeSet<String>,
    pub(crate) unanswered: u64,
    pub(crate) credit_calls: u32,
    pub(crate) credit_bytes: u64,
    /// What the peer may have unanswered here.
    pub(crate) window_calls: u32,
    pub(crate) window_bytes: u64,
    #[serde(flatten)]
    pub(crate) carriage: Carriage,
}

/// A peer as one tenant's calls have it: by a link, or by none although applications are bound through it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct PeerReport {
    /// Its name, once it has said it.
    pub(crate) name: Option<String>,
    pub(crate) address: String,
    pub(crate) dialled: bool,
    pub(crate) tenant: Option<String>,
    /// `ready`, `opening` or `lost`.
    pub(crate) state: &'static str,
    /// When that began, by CLOCK_MONOTONIC; unknown if that was before this process.
    pub(crate) since_ns: Option<u64>,
    /// What the last link to there ended with.
    pub(crate) last_error: Option<String>,
}

/// One service of this host.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ServiceReport {
    pub(crate) tenant: String,
    pub(crate) service: String,
    pub(crate) servers: usize,
    pub(crate) schema: String,
    pub(crate) methods: usize,
    /// Methods with machine code: those that were called.
    pub(crate) compiled: usize,
    /// Methods with machine code for protobuf: those whose messages have crossed between two schemas.
    pub(crate) compiled_wire: usize,
}

/// One version in an attachment's place, or one that was there.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) id: u32,
    pub(crate) version: u32,
    /// Where it is: in force, on trial, or neither any more.
    pub(crate) place: ReportedPlace,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    pub(crate) alive: bool,
    pub(crate) last_fault: Option<String>,
    /// Of its instance's linear memory; 0 if it has none between two calls, or in a process of its tenant's.
    pub(crate) memory_bytes: u64,
    pub(crate) metrics: NamedMetrics,
}

/// See [`PolicyReport::place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReportedPlace {
    Stable,
    Candidate,
    Retired,
}

/// What came of asking a version about one call, as [`Counts`] count it.
pub(crate) mod decision {
    pub(crate) const ALLOWED: &str = "allowed";
    pub(crate) const CHANGED: &str = "changed";
    pub(crate) const DENIED: &str = "denied";
    pub(crate) const REFUSED: &str = "refused";
    pub(crate) const UNJUDGED: &str = "unjudged";
}

/// What came of asking one version. A call that it was asked about is in exactly one of the first five.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Allowed with other contents.
    pub(crate) changed: u64,
    /// Refused without a judgement: it was out of order, or the message didn't fit into its view.
    pub(crate) refused: u64,
    /// Passed, or judged by the stable instead, because it had failed or was out of order.
    pub(crate) unjudged: u64,
    /// Times that it failed; the calls concerned are among the refused or the unjudged.
    pub(crate) faults: u64,
    /// In a shadow, among the above: calls that it would have denied.
    pub(crate) would_deny: u64,
    /// In a shadow: calls about which it said something else than the stable.
    pub(crate) differs: u64,
    pub(crate) cpu_ns: u64,
    /// Lines that it logged and that were passed on.
    pub(crate) logged: u64,
    /// Lines that it logged and that were dropped: it logged too many, or its tenant's policies together did.
    pub(crate) log_dropped: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, more: &Counts) {
        self.allowed += more.allowed;
        self.denied += more.denied;
        self.changed += more.changed;
        self.refused += more.refused;
        self.unjudged += more.unjudged;
        self.faults += more.faults;
        self.would_deny += more.would_deny;
        self.differs += more.differs;
        self.cpu_ns += more.cpu_ns;
        self.logged += more.logged;
        self.log_dropped += more.log_dropped;
    }
}

impl Recipe {
    /// A new instance. Runs the guest's set-up.
    pub(crate) fn instantiate(&self) -> Result<Instance, LoadError> {
        self.policy.instantiate(&self.setup())
    }

    /// A new instance of a foreign module. Runs the guest's set-up.
    pub(crate) fn instantiate_foreign(&self) -> Result<ForeignInstance, LoadError> {
        self.policy.instantiate_foreign(&self.setup())
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.policy.manifest().foreign().is_some()
    }

    fn setup(&self) -> Setup<'_> {
        Setup {
            limits: &self.limits,
            config: self.config.as_deref(),
            granted: self.granted,
            state: self.state.as_ref(),
        }
    }
}

/// What the policies of one tenant have used.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AccountReport {
    pub(crate) tenant: String,
    pub(crate) share_percent: u8,
    pub(crate) cpu_ns: u64,
    /// Calls refused because the share was used up, and stayed so.
    pub(crate) throttled: u64,
    /// Calls that wait: for their turn, for the account, or because a policy delays them.
    pub(crate) waiting: usize,
}

/// What a tenant's calls have had of its runtime.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShareReport {
    pub(crate) tenant: String,
    /// Time for taking, judging and sending them, the kernel's part included.
    pub(crate) busy_ns: u64,
}

/// A view as a policy was shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedView {
    /// Whose manifest `method` is an index into.
    pub(crate) version: u32,
    pub(crate) hook: Hook,
    pub(crate) method: u32,
    pub(crate) view: Vec<u8>,
}
