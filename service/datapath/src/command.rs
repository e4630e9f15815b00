//! What the control plane and a runtime say to each other.
//!
//! Commands are carried out between two calls, in order; each that matters is answered, so whoever asked knows when it is in
//! force. A runtime never waits for the control plane.

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
use crate::handover::estate::{Estate, Inventory, Resumed};
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
use tollgate_policy_chain::plan::{Apart, CpuLimit, MethodSteps, PolicyChange};

/// From the control plane to a runtime.
pub enum Command {
    OpenSession {
        end: Box<DaemonEnd>,
        tenant: Arc<str>,
        app: String,
        pid: i32,
        /// What its library understands.
        features: u32,
        /// Under which it serves; empty for none.
        label: String,
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
        all_stand: mpsc::Receiver<()>,
        reply: Reply<Result<Estate, String>>,
        verdict: mpsc::Receiver<()>,
    },
    /// Go on with what another process leaves, once it has ended.
    TakeOver {
        estate: Box<Estate>,
        inventory: Inventory,
        reply: Reply<Result<Vec<Resumed>, String>>,
        begins: mpsc::Receiver<()>,
    },
    /// A session is given no further calls.
    Drain {
        session: SessionId,
        reply: Reply<()>,
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
        done: Reply<()>,
    },
    /// A peer connected.
    Accept {
        stream: TcpStream,
        /// Its place among those that no runtime has looked at.
        unseen: Box<dyn Send>,
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
        done: Reply<()>,
    },
    /// The runtime ends: nobody lives there, and nobody will. Links of peers that haven't said whose they are go to the first one.
    Retire {
        map: Box<Map>,
        reply: Reply<Report>,
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
        done: Reply<Result<(), String>>,
    },
    Policies {
        change: PolicyChange,
        /// An error says why nothing has changed.
        done: Reply<Result<(), String>>,
    },
    /// Other settings, from the next call on.
    Tune {
        tuning: Box<Tuning>,
        /// What a judgement may use, and the attachments that this is for.
        cpu: CpuLimit,
        of: Vec<u32>,
        done: Reply<()>,
    },
    /// The last views that an attachment's stable was shown, oldest first.
    Recorded {
        id: u32,
        reply: Reply<Vec<RecordedView>>,
    },
    /// The newest spans, oldest first.
    KeptSpans {
        reply: Reply<Vec<Arc<Span>>>,
    },
    Report {
        reply: Reply<Report>,
    },
    /// As [`Report`](Self::Report), with what is for metrics only.
    Measure {
        reply: Reply<Report>,
    },
    Stop,
}

/// From a runtime to the control plane.
pub enum Event {
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
    pub(crate) door: Option<Door>,
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
    pub placement: Placement,
    pub runtimes: Vec<Handle>,
}
