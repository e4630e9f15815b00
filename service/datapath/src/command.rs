//! Messages between the control plane and a runtime.
//!
//! A runtime carries out commands between two calls, in order. It answers each important command,
//! so the sender knows when the command is in force. A runtime never waits for the control plane,
//! except in a hand-over ([`Command::HandOver`], [`Command::TakeOver`]).

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use tollgate_engine::{SessionId, Status};
use tollgate_policy_host::apart::Channel;
use tollgate_schema::evolution::MethodMatch;
use tollgate_shm_abi::session::DaemonEnd;
use tollgate_telemetry::record::Span;

#[cfg(feature = "rdma")]
use tollgate_transport_rdma::Door;

use crate::binds::{Asker, BindAs, Bound, PendingBind, ServiceSchema};
use crate::handover::transfer::{HandoverState, Inventory, Resumed};
use crate::migration::{Move, Moving};
use crate::placement::Placement;
use crate::ports::LinkPort;
use crate::reply::Reply;
use crate::report::Report;
use crate::target::Target;
use crate::tuning::Tuning;
use tollgate_policy_chain::counts::RecordedView;
use tollgate_policy_chain::events::PolicyEvent;
use tollgate_policy_chain::ids::ProcessId;
use tollgate_policy_chain::plan::{CpuLimit, Isolated, MethodSteps, PolicyChange};

/// From the control plane to a runtime.
pub enum Command {
    /// An application has a session.
    OpenSession {
        /// The daemon's end of its segments.
        end: Box<DaemonEnd>,
        /// The tenant's name.
        tenant: Arc<str>,
        /// The application's name.
        app: String,
        /// Its process.
        pid: i32,
        /// What its library understands.
        features: u32,
        /// Under which it serves; empty for none.
        label: String,
        /// Takes the answer.
        reply: Reply<Result<SessionId, Status>>,
    },
    /// Another process is to go on with everything: the runtime does nothing until it hears that one does, or won't (the sender is
    /// dropped).
    HandOver {
        /// The other process can go on with links.
        with_links: bool,
        /// When it gives up.
        until: std::time::Instant,
        /// Told at once; then it waits for all runtimes to stand, so that no link is on its way between two of them.
        stands: Reply<()>,
        /// Told once all runtimes stand.
        all_stand: mpsc::Receiver<()>,
        /// Takes the answer.
        reply: Reply<Result<HandoverState, String>>,
        /// Told that the other process goes on; dropped: it does not.
        verdict: mpsc::Receiver<()>,
    },
    /// Go on with what another process leaves, once it has ended.
    TakeOver {
        /// What the other process leaves.
        handover_state: Box<HandoverState>,
        /// What the control plane knows of it.
        inventory: Inventory,
        /// Takes the answer.
        reply: Reply<Result<Vec<Resumed>, String>>,
        /// Told once the other process has ended; dropped: it goes on.
        begins: mpsc::Receiver<()>,
    },
    /// A session is given no further calls.
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
        /// The BIND that it has brought.
        bind: BindAs,
        /// The client-side chains, by method; for servers, the server-side ones.
        chains: Vec<MethodSteps>,
        /// Takes the answer.
        reply: Asker,
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
    /// The answer to [`Event::LookUp`]: where the peer is, or why nobody knows.
    Found {
        /// The tenant's name.
        tenant: Arc<str>,
        /// The peer.
        peer: Target,
        /// The addresses, or the reason why there are none.
        found: Result<Vec<SocketAddr>, String>,
    },
    /// Calls may come from now on: the application knows its handles, or keeps calls until it does.
    Serve {
        /// The session.
        session: SessionId,
        /// What binding yielded.
        bound: Bound,
        /// Told once it is in force.
        done: Reply<()>,
    },
    /// A peer connected.
    Accept {
        /// The connection.
        stream: TcpStream,
        /// Its place among those that no runtime has looked at.
        unseen: Box<dyn Send>,
    },
    /// One connected by RDMA.
    #[cfg(feature = "rdma")]
    AcceptByRdma {
        /// The link.
        link: Box<tollgate_transport_rdma::RdmaLink>,
    },
    /// A link moves here from the runtime that accepted it, with the BIND that showed where it belongs; without one, nothing has, and that
    /// runtime ends.
    Adopt {
        /// The link.
        port: Box<LinkPort>,
        /// The BIND that it has brought.
        bind: Option<PendingBind>,
    },
    /// A tenant goes to another runtime, with all that it has.
    Part {
        /// Who goes where.
        order: Box<Move>,
    },
    /// A tenant comes from another runtime.
    Absorb {
        /// All that the tenant has.
        moving: Box<Moving>,
    },
    /// Where tenants live from now on.
    Place {
        /// The new placement.
        map: Box<Map>,
        /// Told once it is in force.
        done: Reply<()>,
    },
    /// The runtime ends: nobody lives there, and nobody will. Links of peers that haven't said whose they are go to the first one.
    Retire {
        /// The new placement.
        map: Box<Map>,
        /// Takes the answer.
        reply: Reply<Report>,
    },
    /// A tenant has a policy process: what is to run there comes later.
    Process {
        /// The attachment, or the process.
        id: ProcessId,
        /// The tenant's name.
        tenant: Arc<str>,
        /// The line to it.
        channel: Box<Channel>,
    },
    /// Whether the version in force could hand its state over to `successor`, which is thrown away; an error says why not.
    Rehearse {
        /// The attachment, or the process.
        id: u32,
        /// The version.
        version: u32,
        /// The version that would go on.
        successor: Box<Isolated>,
        /// Told once it is in force.
        done: Reply<Result<(), String>>,
    },
    /// Other policies, from the next call on.
    Policies {
        /// What changes.
        change: PolicyChange,
        /// An error says why nothing has changed.
        done: Reply<Result<(), String>>,
    },
    /// Other settings, from the next call on.
    Tune {
        /// The new settings.
        tuning: Box<Tuning>,
        /// What a judgement may use, and the attachments that this is for.
        cpu: CpuLimit,
        /// Attachments with a limit of their own.
        of: Vec<u32>,
        /// Told once it is in force.
        done: Reply<()>,
    },
    /// The last views that an attachment's stable was shown, oldest first.
    Recorded {
        /// The attachment, or the process.
        id: u32,
        /// Takes the answer.
        reply: Reply<Vec<RecordedView>>,
    },
    /// The newest spans, oldest first.
    KeptSpans {
        /// Takes the answer.
        reply: Reply<Vec<Arc<Span>>>,
    },
    /// What `status` shows.
    Report {
        /// Takes the answer.
        reply: Reply<Report>,
    },
    /// As [`Report`](Self::Report), with what is for metrics only.
    Measure {
        /// Takes the answer.
        reply: Reply<Report>,
    },
    /// The runtime ends.
    Stop,
}

/// From a runtime to the control plane.
pub enum Event {
    /// The runtime ended a session that broke the rules.
    SessionEnded {
        /// The runtime's index.
        runtime: usize,
        /// The session.
        session: SessionId,
        /// Why it ended.
        reason: String,
    },
    /// A peer serves what an application has bound, with another schema: compare, and say so with [`Command::Compared`].
    Compare {
        /// The runtime's index.
        runtime: usize,
        /// The number of the comparison.
        ticket: u64,
        /// The binding.
        binding: u32,
        /// The tenant's name.
        tenant: Arc<str>,
        /// The application's schema.
        ours: Arc<ServiceSchema>,
        /// The peer's schema, described.
        theirs: String,
    },
    /// A peer is to be dialled again, which may have moved: look its name up, and say so with [`Command::Found`].
    LookUp {
        /// The tenant's name.
        tenant: Arc<str>,
        /// The peer.
        peer: Target,
    },
    /// Something has happened to its policies.
    Policies(PolicyEvent),
}

/// How the control plane reaches one runtime.
#[derive(Clone)]
pub struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) doorbell: Arc<OwnedFd>,
    /// Of its poller, if there is RDMA.
    #[cfg(feature = "rdma")]
    pub door: Option<Door>,
}

impl Handle {
    /// Queues a command and wakes the runtime. `false`: the runtime has ended.
    pub fn send(&self, command: Command) -> bool {
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

/// A placement, and how the runtimes that it speaks of are reached.
#[derive(Clone)]
pub struct Map {
    /// Where tenants live.
    pub placement: Placement,
    /// The runtimes, by index.
    pub runtimes: Vec<Handle>,
}
