//! What the control plane and a runtime say to each other.
//!
//! Commands are carried out between two calls, in order; each that matters is answered, so whoever asked knows when it is in
//! force. A runtime never waits for the control plane.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use serde::Serialize;
use tokio::sync::oneshot;
use tollgate_engine::{ServiceId, SessionId, Status};
use tollgate_policy_host::Instance;
use tollgate_schema::evolution::MethodMatch;
use tollgate_shm_abi::descriptor::HeapSizes;
use tollgate_shm_abi::session::DaemonEnd;
use tollgate_transport::Moved;

use crate::datapath::ports::LinkPort;
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

/// One policy of a chain, prepared for one method.
#[derive(Clone)]
pub(crate) struct Step {
    /// The installed instance.
    pub(crate) policy: u32,
    /// The method's index in the policy's manifest.
    pub(crate) method: u32,
    pub(crate) projector: Arc<LazyProjector>,
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

/// A policy's instance for one attachment.
pub(crate) struct Installed {
    /// Chosen by the control plane.
    pub(crate) id: u32,
    /// `acl@1 of tenant acme`.
    pub(crate) label: String,
    /// `None`: it couldn't be loaded; its calls are refused.
    pub(crate) instance: Option<Box<Instance>>,
}

/// What an application binds.
pub(crate) enum BindAs {
    /// It calls the service: on this host, or at a peer.
    Client { peer: Option<SocketAddr> },
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
        heaps: HeapSizes,
        tenant: Arc<str>,
        app: String,
        pid: i32,
        reply: oneshot::Sender<Result<SessionId, Status>>,
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
    /// The application has been told its handles: calls may come.
    Serve {
        session: SessionId,
        bound: Bound,
    },
    /// A peer connected.
    Accept {
        stream: TcpStream,
    },
    /// A link moves here from the runtime that accepted it, with the BIND that showed where it belongs.
    Adopt {
        port: Box<LinkPort>,
        bind: PendingBind,
    },
    Policies {
        change: PolicyChange,
        done: oneshot::Sender<()>,
    },
    Report {
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
        ours: Arc<ServiceSchema>,
        theirs: String,
    },
    /// A policy's instance died and its calls fail closed: it wants a fresh one.
    PolicyFaulted { id: u32, reason: String },
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
}

impl Handle {
    /// Queues a command and wakes the runtime. `false`: the runtime has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        // The counter can't be full: the runtime never lets 2^64 wake-ups gather.
        let _woken = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
        sent
    }
}

/// A runtime's part of `status --json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) sessions: Vec<SessionReport>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) services: Vec<ServiceReport>,
    pub(crate) policies: Vec<PolicyReport>,
    pub(crate) calls: CallCounters,
    pub(crate) bytes: ByteCounters,
    pub(crate) live_calls: usize,
}

impl Report {
    /// Adds another runtime's part.
    pub(crate) fn absorb(&mut self, part: Report) {
        self.sessions.extend(part.sessions);
        self.links.extend(part.links);
        self.services.extend(part.services);
        self.policies.extend(part.policies);
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
    pub(crate) state: &'static str,
    pub(crate) unanswered: u64,
    pub(crate) credit_calls: u32,
    pub(crate) credit_bytes: u64,
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

/// One attached policy's instance.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) id: u32,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) faults: u64,
    /// Calls refused because the instance was dead.
    pub(crate) refused: u64,
    pub(crate) alive: bool,
    pub(crate) last_fault: Option<String>,
}
