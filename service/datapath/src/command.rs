//! Messages between the control plane and a runtime.
//!
//! A runtime carries out commands between two calls, in order. It answers each important command,
//! so the sender knows when the command is in force. A runtime never waits for the control plane,
//! except in a hand-over ([`Command::HandOver`], [`Command::TakeOver`]).

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use tollgate_engine::{SessionId, Status};
use tollgate_policy_host::isolated::Channel;
use tollgate_schema::evolution::MethodMatch;
use tollgate_shm_abi::session::DaemonEnd;
use tollgate_telemetry::record::Span;

#[cfg(feature = "rdma")]
use tollgate_transport_rdma::Door;

use crate::binds::{BindAs, BindReply, Bound, PendingBind, ServiceSchema};
use crate::handover::error::{LeaveError, ResumeError};
use crate::handover::transfer::{HandoverState, Inventory, Resumed};
use crate::links::target::Target;
use crate::migration::{Move, Moving};
use crate::placement::{Placement, RuntimeIndex};
use crate::ports::LinkPort;
use crate::queue::Sender;
use crate::reply::Reply;
use crate::report::Report;
use crate::tuning::Tuning;
use tollgate_policy_chain::counts::RecordedView;
use tollgate_policy_chain::events::PolicyEvent;
use tollgate_policy_chain::ids::{AttachmentId, ProcessId, VersionNumber};
use tollgate_policy_chain::plan::{ChangeError, CpuLimit, Isolated, MethodSteps, PolicyChange};

/// From the control plane to a runtime.
pub enum Command {
    /// An application has opened a session.
    OpenSession {
        /// The daemon's end of its segments.
        end: Box<DaemonEnd>,
        /// The tenant's name.
        tenant: Arc<str>,
        /// The application's name.
        app: String,
        /// Its process id.
        pid: i32,
        /// Features of its library.
        features: u32,
        /// Label under which it serves; empty for none.
        label: String,
        /// Takes the answer.
        reply: Reply<Result<SessionId, Status>>,
    },
    /// Hands everything over to another process. The runtime does nothing until it learns whether
    /// that process continues (`verdict`).
    HandOver {
        /// The other process can continue links.
        with_links: bool,
        /// The deadline of the hand-over.
        until: std::time::Instant,
        /// Told as soon as this runtime stands still. It then waits until all runtimes do, so that
        /// no link is on its way between two of them.
        stands: Reply<()>,
        /// Told once all runtimes stand still.
        all_stand: mpsc::Receiver<()>,
        /// Takes the answer.
        reply: Reply<Result<HandoverState, LeaveError>>,
        /// Told that the other process continues; dropped: it does not.
        verdict: mpsc::Receiver<()>,
    },
    /// Continues from the state of another process, once that process has ended.
    TakeOver {
        /// The state of the other process.
        handover_state: Box<HandoverState>,
        /// What the control plane knows about that state.
        inventory: Inventory,
        /// Takes the answer.
        reply: Reply<Result<Vec<Resumed>, ResumeError>>,
        /// Told once the other process has ended; dropped: that process continues.
        begins: mpsc::Receiver<()>,
    },
    /// A session gets no further calls.
    Drain {
        /// The session.
        session: SessionId,
        /// Takes the answer.
        reply: Reply<()>,
    },
    /// An application has closed its session, or has ended.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// An application binds a service, or serves it.
    Bind {
        /// The session.
        session: SessionId,
        /// The application's schema.
        schema: Arc<ServiceSchema>,
        /// The kind of binding.
        bind: BindAs,
        /// The client-side chains, by method; for servers, the server-side ones.
        chains: Vec<MethodSteps>,
        /// Takes the answer.
        reply: BindReply,
    },
    /// The answer to [`Event::Compare`].
    Compared {
        /// The number of the comparison.
        ticket: u64,
        /// The binding.
        binding: u32,
        /// How each method is called.
        matches: Vec<MethodMatch>,
    },
    /// The answer to [`Event::LookUp`]: the peer's addresses, or the reason why there are none.
    Found {
        /// The tenant's name.
        tenant: Arc<str>,
        /// The peer.
        peer: Target,
        /// The addresses, or the reason why there are none, which becomes the calls' status.
        found: Result<Vec<SocketAddr>, String>,
    },
    /// Calls may arrive from now on: the application knows its handles, or keeps calls until it
    /// does.
    Serve {
        /// The session.
        session: SessionId,
        /// The result of the binding.
        bound: Bound,
        /// Told once it is in force.
        done: Reply<()>,
    },
    /// A peer connected.
    Accept {
        /// The connection.
        stream: TcpStream,
        /// Its place in the queue of connections that no runtime has looked at.
        unseen: Box<dyn Send>,
    },
    /// A peer connected by RDMA.
    #[cfg(feature = "rdma")]
    AcceptByRdma {
        /// The link.
        link: Box<tollgate_transport_rdma::RdmaLink>,
    },
    /// A link moves here from the runtime that accepted it, with the BIND that named its tenant.
    /// Without a BIND the tenant is unknown, and the other runtime ends.
    Adopt {
        /// The link.
        port: Box<LinkPort>,
        /// The BIND that named the tenant.
        bind: Option<PendingBind>,
    },
    /// A tenant moves to another runtime, with everything that it has.
    Part {
        /// The tenant and its new runtime.
        order: Box<Move>,
    },
    /// A tenant comes from another runtime.
    Absorb {
        /// Everything that the tenant has.
        moving: Box<Moving>,
    },
    /// A new placement of tenants.
    Place {
        /// The new placement.
        map: Box<Map>,
        /// Told once it is in force.
        done: Reply<()>,
    },
    /// The runtime ends: no tenant is placed on it, and none will be. Its links without a tenant
    /// move to the first runtime.
    Retire {
        /// The new placement.
        map: Box<Map>,
        /// Takes the answer.
        reply: Reply<Report>,
    },
    /// A tenant has a policy process. Later commands say which policies run there.
    Process {
        /// The process.
        id: ProcessId,
        /// The tenant's name.
        tenant: Arc<str>,
        /// The channel to it.
        channel: Box<Channel>,
    },
    /// Checks whether the version in force could hand its state over to `successor`, which is then
    /// discarded.
    Rehearse {
        /// The attachment.
        id: AttachmentId,
        /// The version.
        version: VersionNumber,
        /// The version that would continue.
        successor: Box<Isolated>,
        /// Takes the result; an error gives the reason why not.
        done: Reply<Result<(), ChangeError>>,
    },
    /// Changes policies, from the next call on.
    Policies {
        /// What changes.
        change: PolicyChange,
        /// An error gives the reason why nothing has changed.
        done: Reply<Result<(), ChangeError>>,
    },
    /// Changes settings, from the next call on.
    Tune {
        /// The new settings.
        tuning: Box<Tuning>,
        /// Other limits for one evaluation, by attachment.
        cpu: Vec<(AttachmentId, CpuLimit)>,
        /// Told once it is in force.
        done: Reply<()>,
    },
    /// The last views that an attachment's stable version was shown, oldest first.
    Recorded {
        /// The attachment.
        id: AttachmentId,
        /// Takes the answer.
        reply: Reply<Vec<RecordedView>>,
    },
    /// The newest spans, oldest first.
    KeptSpans {
        /// Takes the answer.
        reply: Reply<Vec<Arc<Span>>>,
    },
    /// The data for `status`.
    Report {
        /// Takes the answer.
        reply: Reply<Report>,
    },
    /// As [`Report`](Self::Report), with the data that only metrics show.
    Measure {
        /// Takes the answer.
        reply: Reply<Report>,
    },
    /// The runtime ends.
    Stop,
}

impl Command {
    /// Whether a runtime takes the command even if it has [`COMMANDS_QUEUED`] others, because
    /// nobody would repeat it. What bounds each kind:
    ///
    /// | command | at most |
    /// |---|---|
    /// | `CloseSession` | one per session of this runtime |
    /// | `Compared` | [`MAX_COMPARISONS`] |
    /// | `Found` | one per dial: it asks again after the control plane has given up the look-up |
    /// | `Accept` | [`ACCEPTED_UNSEEN`] |
    /// | `Absorb` | one per tenant with links or sessions on another runtime |
    /// | `Process` | one per policy process |
    /// | `Serve` | one per session: it waits for the answer |
    /// | `Policies`, `Tune`, `Place`, `Part` | one per change: the next change waits for the answer, for at most a few seconds |
    /// | `Retire`, `Stop` | one |
    ///
    /// [`COMMANDS_QUEUED`]: crate::limits::COMMANDS_QUEUED
    /// [`MAX_COMPARISONS`]: crate::limits::MAX_COMPARISONS
    /// [`ACCEPTED_UNSEEN`]: crate::limits::ACCEPTED_UNSEEN
    pub fn is_owed(&self) -> bool {
        match self {
            Command::CloseSession { .. }
            | Command::Compared { .. }
            | Command::Found { .. }
            | Command::Accept { .. }
            | Command::Absorb { .. }
            | Command::Process { .. }
            | Command::Serve { .. }
            | Command::Policies { .. }
            | Command::Tune { .. }
            | Command::Place { .. }
            | Command::Part { .. }
            | Command::Retire { .. }
            | Command::Stop => true,
            // The sender learns that it isn't answered.
            Command::OpenSession { .. }
            | Command::HandOver { .. }
            | Command::TakeOver { .. }
            | Command::Drain { .. }
            | Command::Bind { .. }
            | Command::Rehearse { .. }
            | Command::Recorded { .. }
            | Command::KeptSpans { .. }
            | Command::Report { .. }
            | Command::Measure { .. } => false,
            // The peer learns that its connection has ended, and dials again.
            Command::Adopt { .. } => false,
            #[cfg(feature = "rdma")]
            Command::AcceptByRdma { .. } => false,
        }
    }
}

/// From a runtime to the control plane.
pub enum Event {
    /// The runtime ended a session that broke the rules.
    SessionEnded {
        /// The runtime's index.
        runtime: RuntimeIndex,
        /// The session.
        session: SessionId,
        /// The reason.
        reason: String,
    },
    /// A peer serves a bound service with another schema: compare them, and answer with
    /// [`Command::Compared`].
    Compare(Comparison),
    /// A peer that may have moved is about to be dialled again: look its name up, and answer with
    /// [`Command::Found`].
    LookUp {
        /// The tenant's name.
        tenant: Arc<str>,
        /// The peer.
        peer: Target,
    },
    /// An event of the tenants' policies.
    Policies(PolicyEvent),
}

impl Event {
    /// Whether the control plane may miss the event: it is repeated, or is only logged. (The audit
    /// log then lacks a throttling.) What bounds the others:
    ///
    /// | event | at most |
    /// |---|---|
    /// | `SessionEnded` | one per session |
    /// | `Compare` | [`MAX_COMPARISONS`](crate::limits::MAX_COMPARISONS) per runtime |
    /// | `Faulted`, `CandidateFailed` | one per instance, which the control plane replaces |
    /// | `ProcessEnded` | one per policy process, which the control plane replaces |
    pub fn may_be_lost(&self) -> bool {
        match self {
            // The runtime asks again after `LOOKUP_PATIENCE`.
            Event::LookUp { .. }
            | Event::Policies(PolicyEvent::Throttled { .. } | PolicyEvent::Logged { .. }) => true,
            Event::SessionEnded { .. }
            | Event::Compare(_)
            | Event::Policies(
                PolicyEvent::Faulted { .. }
                | PolicyEvent::CandidateFailed { .. }
                | PolicyEvent::ProcessEnded { .. },
            ) => false,
        }
    }
}

/// The schemas of a binding of an application and of the peer that serves it.
pub struct Comparison {
    /// The runtime's index.
    pub runtime: RuntimeIndex,
    /// The number of the comparison.
    pub ticket: u64,
    /// The binding.
    pub binding: u32,
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The application's schema.
    pub ours: Arc<ServiceSchema>,
    /// Description of the peer's schema.
    pub theirs: String,
}

/// The control plane's access to one runtime.
#[derive(Clone)]
pub struct Handle {
    pub(crate) commands: Sender<Command>,
    pub(crate) doorbell: Arc<OwnedFd>,
    /// The entrance to its poller, if there is RDMA.
    #[cfg(feature = "rdma")]
    pub door: Option<Door>,
}

impl Handle {
    /// Queues a command and wakes the runtime. `false`: the runtime has ended, or has too many
    /// commands; the waiting requester gets an error.
    pub fn send(&self, command: Command) -> bool {
        self.try_send(command).is_ok()
    }

    /// As [`send`](Self::send), and gives the command back if it can't be queued.
    ///
    /// # Errors
    /// The command.
    #[allow(clippy::result_large_err, reason = "nobody keeps it")]
    pub(crate) fn try_send(&self, command: Command) -> Result<(), Command> {
        let sent = match command.is_owed() {
            true => self.commands.send_reserved(command),
            false => self.commands.send(command),
        };
        sent?;
        // The counter can't be full: the runtime never lets 2^64 wake-ups gather.
        let _woken = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
        Ok(())
    }
}

/// A placement, and handles of its runtimes.
#[derive(Clone)]
pub struct Map {
    /// The placement.
    pub placement: Placement,
    /// The runtimes, by index.
    pub runtimes: Vec<Handle>,
}
