//! The two kinds of ports of a runtime: sessions of applications, and links to peers.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_engine::fair::FlowId;
use tollgate_engine::{CallKey, Direction, Encoding, LinkId, ServiceId, SessionId, Status};
use tollgate_shm_abi::Misbehaved;
use tollgate_shm_abi::descriptor::{
    BlockRef, Completion, Entry, Epilogue, HeapSizes, Image, Offsets, Part,
};
use tollgate_shm_abi::heap::Block;
use tollgate_shm_abi::limits::{MAX_OFFSETS, MAX_STATUS_TEXT_BYTES};
use tollgate_shm_abi::messages::{FEATURE_HEAPS, FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS};
use tollgate_shm_abi::ring::PushError;
use tollgate_shm_abi::session::DaemonEnd;
use tollgate_shm_abi::stream::Credit;
use tollgate_transport::CallHead;

use crate::binds::{BindReply, PendingBind, ServiceSchema};
use crate::carrier::Carrier;
use crate::landing::Landing;
use crate::limits::{
    COMPLETION_BACKLOG, KEPT_BEFORE_SWEEP, RECLAIMS_HELD_NS, WAIT_ASKED_EVERY_CALLS,
    WAIT_ASKED_EVERY_NS,
};
use crate::links::target::Target;
use crate::report::LinkReport;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Message;
use tollgate_transport::LinkConfig;
use tollgate_transport::frame::feature_names;

/// A method handle of an application.
pub(crate) struct Handle {
    pub(crate) method: Arc<Method>,
    /// Whether the application calls the method; otherwise it serves it.
    pub(crate) calls: bool,
}

/// The owner of a session, and the features of its library.
pub(crate) struct Who {
    pub(crate) tenant: Arc<str>,
    pub(crate) app: String,
    pub(crate) pid: i32,
    /// It takes metadata. A library without that gets the message alone: its application couldn't
    /// read the metadata.
    pub(crate) takes_metadata: bool,
    /// It reports how long calls waited, and accepts a time for the next try.
    pub(crate) tells_waits: bool,
    /// It knows further requests, responses and trailers.
    pub(crate) knows_streams: bool,
    /// Its receive heap can be followed by another one, so another process can continue the
    /// session.
    pub(crate) follows_heaps: bool,
    /// Label under which it serves.
    pub(crate) label: Option<Arc<str>>,
}

impl Who {
    /// `features` are those of the library; an empty `label` is none.
    pub(crate) fn of(tenant: Arc<str>, app: String, pid: i32, features: u32, label: &str) -> Self {
        Self {
            tenant,
            app,
            pid,
            takes_metadata: features & FEATURE_METADATA != 0,
            tells_waits: features & FEATURE_WAITS != 0,
            knows_streams: features & FEATURE_STREAMS != 0,
            follows_heaps: features & FEATURE_HEAPS != 0,
            label: (!label.is_empty()).then(|| label.into()),
        }
    }
}

/// An application's session.
pub(crate) struct SessionPort {
    pub(crate) id: SessionId,
    pub(crate) who: Who,
    /// The flow of its tenant.
    pub(crate) flow: FlowId,
    pub(crate) end: DaemonEnd,
    pub(crate) heaps: HeapSizes,
    /// By handle; parallel to the engine's routes.
    pub(crate) handles: Vec<Handle>,
    /// The schemas of the handles, in order, and whether the application calls them.
    pub(crate) bound: Vec<(Arc<ServiceSchema>, bool)>,
    /// Items that wait for room in the receive heap, in order, and the bytes of their messages.
    pub(crate) held: VecDeque<Held>,
    pub(crate) held_bytes: u64,
    /// Completions that found the ring full, in order.
    pub(crate) backlog: VecDeque<Entry>,
    /// Blocks of the send heap to return; fewer than fit into one descriptor.
    reclaims: Vec<u64>,
    /// Since when `reclaims` are held back; 0: they aren't.
    held_since_ns: u64,
    /// An entry was pushed since the last check of the sleeping flag.
    pushed: bool,
    /// When a call with a request for its waiting time was last delivered, and the number of calls
    /// since then.
    asked_ns: u64,
    unasked: u32,
}

impl SessionPort {
    pub(crate) fn new(id: SessionId, who: Who, flow: FlowId, end: DaemonEnd) -> Self {
        let heaps = end.heaps();
        let reclaims = Vec::with_capacity(MAX_OFFSETS);
        Self {
            id,
            who,
            flow,
            end,
            heaps,
            handles: Vec::new(),
            bound: Vec::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            backlog: VecDeque::new(),
            reclaims,
            held_since_ns: 0,
            pushed: false,
            asked_ns: 0,
            unasked: 0,
        }
    }

    /// The time of delivery for a call, if the answer must report the call's waiting time;
    /// otherwise 0. Few answers must, so the library's clock reads cost almost nothing.
    pub(crate) fn asks_wait_ns(&mut self, now_ns: u64) -> u64 {
        if !self.who.tells_waits {
            return 0;
        }
        self.unasked += 1;
        if now_ns.saturating_sub(self.asked_ns) < WAIT_ASKED_EVERY_NS
            && self.unasked < WAIT_ASKED_EVERY_CALLS
        {
            return 0;
        }
        (self.asked_ns, self.unasked) = (now_ns, 0);
        now_ns
    }

    /// Whether the application is so far behind with its completions that its submissions must
    /// wait.
    pub(crate) fn is_choked(&self) -> bool {
        self.backlog.len() >= COMPLETION_BACKLOG
    }

    /// Returns a block of the send heap, in a batch.
    pub(crate) fn reclaim(&mut self, offset: u64) {
        self.reclaims.push(offset);
        if self.reclaims.len() == MAX_OFFSETS {
            self.push_reclaims();
        }
    }

    fn push_reclaims(&mut self) {
        if let Some(offsets) = Offsets::take_from(&self.reclaims) {
            self.reclaims.clear();
            self.held_since_ns = 0;
            self.push(&Completion::Reclaim(offsets));
        }
    }

    /// Sends a completion to the application; it goes to the backlog if the ring is full.
    pub(crate) fn push(&mut self, completion: &Completion) {
        let entry = completion.encode();
        self.pushed = true;
        if !self.backlog.is_empty() || self.end.completions.push(&entry).is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Tells the application that its call ended without a reply. Text and trailers are omitted if
    /// the heap has no room for them.
    pub(crate) fn push_status(&mut self, call: u64, status: &Status) {
        let text = &status.message[..status
            .message
            .floor_char_boundary(MAX_STATUS_TEXT_BYTES as usize)];
        let trailers = match self.who.knows_streams {
            true => &status.trailers[..],
            false => &[],
        };
        let mut epilogue = Epilogue {
            offset: 0,
            text: text.len() as u32,
            metadata: trailers.len() as u32,
        };
        let block = match epilogue.held_bytes() {
            0 => None,
            held => self.end.receive_heap.alloc(held),
        };
        let epilogue = block.map(|mut block| {
            let (before, behind) = block.split_at_mut(text.len());
            before.copy_from_slice(text.as_bytes());
            if !trailers.is_empty() {
                let at = text.len().next_multiple_of(8) - text.len();
                behind[..at].fill(0);
                behind[at..at + trailers.len()].copy_from_slice(trailers);
            }
            epilogue.offset = self.end.receive_heap.commit(block);
            epilogue
        });
        self.push(&Completion::Status {
            call,
            code: status.code,
            epilogue,
            retry_after_ms: match self.who.tells_waits {
                true => status.retry_after_ms,
                false => 0,
            },
        });
    }

    /// Commits a placed block and sends its completion. `delivered_ns` is 0 if the answer needn't
    /// report its waiting time.
    pub(crate) fn push_placed(&mut self, placed: Placed, what: &Delivery, delivered_ns: u64) {
        let mut image = placed.image;
        if let Some(block) = placed.block {
            image.offset = self.end.receive_heap.commit(block);
        }
        let bare = placed.bare;
        self.push(&match *what {
            Delivery::Call {
                handle,
                call,
                more,
                deadline_ns,
            } => Completion::Call {
                method: handle,
                call: call.to_wire(),
                part: Part { more, bare },
                image,
                deadline_ns,
                delivered_ns,
            },
            Delivery::Request { call, more, charge } => Completion::Request {
                call: call.to_wire(),
                part: Part { more, bare },
                image,
                charge,
            },
            Delivery::Response { call, charge } => Completion::Response {
                call,
                bare,
                image,
                charge,
            },
            Delivery::Reply { call } => Completion::Reply { call, image },
        });
    }

    /// Whether blocks to return wait for another completion. A sleeping application isn't woken for
    /// them alone until [`RECLAIMS_HELD_NS`] have passed, or until the runtime sleeps, too.
    fn holds_back(&mut self, now_ns: u64) -> bool {
        if self.reclaims.is_empty() || self.pushed || !self.end.completions.is_asleep() {
            return false;
        }
        if self.held_since_ns == 0 {
            self.held_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.held_since_ns) < RECLAIMS_HELD_NS
    }

    /// Called once per turn with `now_ns`, and before the runtime sleeps: moves reclaims and the
    /// backlog to the ring, and wakes the application if it sleeps. Whether it woke it.
    pub(crate) fn flush(&mut self, now_ns: Option<u64>) -> Result<bool, Misbehaved> {
        if !now_ns.is_some_and(|now_ns| self.holds_back(now_ns)) {
            self.push_reclaims();
        }
        self.end.submissions.flush();
        while let Some(entry) = self.backlog.front() {
            match self.end.completions.push(entry) {
                Ok(()) => {
                    self.backlog.pop_front();
                    self.pushed = true;
                }
                Err(PushError::Full) => break,
                Err(PushError::Misbehaved(how)) => return Err(how),
            }
        }
        let wakes = std::mem::take(&mut self.pushed) && self.end.completions.needs_wake();
        if wakes {
            self.end.wake.wake();
        }
        Ok(wakes)
    }

    /// Whether there are blocks to return.
    pub(crate) fn has_reclaims(&self) -> bool {
        !self.reclaims.is_empty()
    }

    /// Whether completions wait for a place in the ring. The application frees places without
    /// ringing.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }
}

/// A filled and valid block, and its description. Its place is known once it is committed.
#[derive(Default)]
pub(crate) struct Placed {
    /// `None`: there is nothing to place.
    pub(crate) block: Option<Block>,
    pub(crate) image: Image,
    /// Only metadata, or nothing.
    pub(crate) bare: bool,
}

/// The kind of a delivered block. Hand-over states contain these names.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Delivery {
    Call {
        handle: u32,
        call: CallKey,
        more: bool,
        deadline_ns: u64,
    },
    Request {
        call: CallKey,
        more: bool,
        charge: u32,
    },
    Response {
        call: u64,
        charge: u32,
    },
    Reply {
        call: u64,
    },
}

/// An item that waits for room in a session's receive heap, or behind another item.
pub(crate) enum Held {
    Message {
        method: Arc<Method>,
        message: Box<Message>,
        what: Delivery,
    },
    /// The status of a call of the application.
    Status { call: u64, status: Status },
    /// An incoming call has no further requests.
    End { call: CallKey },
}

/// A large body that is being read.
pub(crate) struct LargeBody {
    pub(crate) what: LargeKind,
    pub(crate) landing: Landing,
}

/// The message that a large body belongs to.
pub(crate) enum LargeKind {
    Call(CallHead),
    Request(FurtherRequest),
    Answer(Answer),
}

/// A further request of a call that a peer sent.
#[derive(Clone, Copy)]
pub(crate) struct FurtherRequest {
    /// The peer's number for the call.
    pub(crate) call: u64,
    pub(crate) more: bool,
    pub(crate) protobuf: bool,
    pub(crate) charge: u32,
}

/// A peer's answer to a call of this end.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) key: CallKey,
    pub(crate) protobuf: bool,
    /// The charge of a response; `None`: it is the reply.
    pub(crate) charge: Option<u32>,
}

/// A client's binding to a service at a peer.
pub(crate) struct RemoteBinding {
    pub(crate) session: SessionId,
    pub(crate) first_handle: u32,
    pub(crate) schema: Arc<ServiceSchema>,
    /// Takes the outcome, if it is still pending.
    pub(crate) reply: Option<BindReply>,
    /// The peer accepted it with another schema, which is being compared.
    pub(crate) comparing: Option<Comparing>,
    pub(crate) tenant: Arc<str>,
    pub(crate) peer: Target,
    /// The peer refused it after it had been accepted, for example during a restart of its server:
    /// the time of the next try.
    pub(crate) retry_at_ns: Option<u64>,
    /// The last pause before a retry, since it was last accepted.
    pub(crate) retry_pause: Option<Duration>,
}

impl RemoteBinding {
    /// Whether the peer has accepted it and hasn't refused it since.
    pub(crate) fn stands(&self) -> bool {
        self.reply.is_none() && self.comparing.is_none() && self.retry_at_ns.is_none()
    }
}

/// A binding that takes effect once the schemas have been compared.
pub(crate) struct Comparing {
    /// Distinguishes this comparison from earlier ones of the same binding.
    pub(crate) ticket: u64,
    pub(crate) link: LinkId,
    pub(crate) bind: u32,
}

/// A link to a peer daemon. It carries the calls of one tenant, so no tenant can use up another's
/// credit or block its calls.
pub struct LinkPort {
    pub(crate) io: Carrier,
    pub(crate) state: LinkState,
}

/// A bind id of this end.
pub(crate) struct Outbound {
    /// The runtime's binding. If it has gone, the id is reused once the peer owes no answer for it.
    pub(crate) binding: u32,
    /// BINDs that the peer hasn't answered.
    pub(crate) unanswered: u32,
}

/// The runtime's state of a link, in addition to the protocol's.
pub(crate) struct LinkState {
    pub(crate) address: String,
    /// The peer that this end dialled; `None`: the peer dialled.
    pub(crate) dialled: Option<Target>,
    /// The dialled address of the peer.
    pub(crate) at: Option<SocketAddr>,
    /// The peer has authenticated, or needn't.
    pub(crate) proven: bool,
    /// The identity of the peer, once it has authenticated.
    pub(crate) peer: Option<Box<[u8]>>,
    /// Why the link doesn't use RDMA, if this end dialled.
    pub(crate) not_rdma: Option<Arc<str>>,
    /// Dialled by RDMA and not ready yet: when TCP is tried.
    pub(crate) rdma_until_ns: Option<u64>,
    /// Dialled by TCP: when RDMA is tried again.
    pub(crate) rdma_again_ns: Option<u64>,
    /// When it became ready; `None`: it isn't ready, or it was ready before this process took it
    /// over.
    pub(crate) ready_since_ns: Option<u64>,
    /// Another link has its bindings; remaining calls end on this link.
    pub(crate) replaced: bool,
    /// Known from the first BIND, or from the start if this end dialled.
    pub(crate) tenant: Option<Arc<str>>,
    /// Its tenant's flow, once the tenant was found to have a service here; before that, the
    /// strangers' flow.
    pub(crate) flow: FlowId,
    /// The service of each of the peer's bind ids.
    pub(crate) inbound: HashMap<u32, ServiceId, foldhash::fast::RandomState>,
    /// Bindings of this end, by bind id.
    pub(crate) outbound: Vec<Outbound>,
    pub(crate) large: Option<LargeBody>,
    /// The socket may have more to read.
    pub(crate) readable: bool,
    /// The peer sends no more. Only reading to the end reveals that: no further event reports it.
    pub(crate) ends: bool,
    /// The peer returned credit in this turn.
    pub(crate) credited: bool,
    /// Since when so much is queued that everything that can wait does, and the peer has taken
    /// nothing.
    pub(crate) behind_since_ns: Option<u64>,
    /// Answers that wait for room, and their number at the next sweep, which drops answers that
    /// are no longer needed.
    pub(crate) kept: VecDeque<Kept>,
    pub(crate) sweep_at: usize,
    /// The first BIND, if it names a tenant of another runtime.
    pub(crate) moving: Option<PendingBind>,
}

impl LinkState {
    /// The peer that this end dialled, and the tenant.
    pub(crate) fn dialled_for(&self) -> Option<(&Arc<str>, &Target)> {
        Some((self.tenant.as_ref()?, self.dialled.as_ref()?))
    }

    pub(crate) fn leads_to(&self, tenant: &str, peer: &Target) -> bool {
        self.dialled.as_ref() == Some(peer) && self.tenant.as_deref() == Some(tenant)
    }

    /// Whether a peer has opened it and has authenticated.
    pub(crate) fn is_guests(&self) -> bool {
        self.dialled.is_none() && self.proven
    }
}

impl LinkPort {
    pub(crate) fn new(
        io: Carrier,
        address: String,
        dialled: Option<Target>,
        tenant: Option<Arc<str>>,
        flow: FlowId,
    ) -> Self {
        let state = LinkState {
            address,
            dialled,
            at: None,
            proven: false,
            peer: None,
            not_rdma: None,
            rdma_until_ns: None,
            rdma_again_ns: None,
            ready_since_ns: None,
            replaced: false,
            tenant,
            flow,
            inbound: HashMap::default(),
            outbound: Vec::new(),
            large: None,
            readable: true,
            ends: false,
            credited: false,
            behind_since_ns: None,
            kept: VecDeque::new(),
            sweep_at: KEPT_BEFORE_SWEEP,
            moving: None,
        };
        Self { io, state }
    }
}

impl LinkPort {
    /// Limits the peer's unanswered calls and bytes from now on.
    pub(crate) fn set_window(&mut self, config: &LinkConfig) {
        let set = self
            .io
            .link_mut()
            .set_window(config.window_calls, config.window_bytes);
        if let Err(error) = set {
            tracing::error!("the window of a link is unchanged: {error}");
        }
    }

    /// `service` returns the service of a binding that is accepted.
    pub(crate) fn report<'b>(&self, service: impl Fn(u32) -> Option<&'b str>) -> LinkReport {
        let link = self.io.link();
        let credit = link.credit();
        let bound = self.state.outbound.iter();
        let bound = bound.filter(|bound| bound.unanswered == 0);
        let bound = bound.filter_map(|bound| service(bound.binding));
        LinkReport {
            peer: link.peer_name().unwrap_or("unknown").to_owned(),
            address: self.state.address.clone(),
            tenant: self.state.tenant.as_deref().map(str::to_owned),
            dialled: self.state.dialled.is_some(),
            state: if link.is_ready() { "ready" } else { "opening" },
            version: link.version(),
            features: feature_names(link.features()).collect(),
            bound: bound.map(str::to_owned).collect(),
            unanswered: link.unanswered(),
            credit_calls: credit.calls,
            credit_bytes: credit.bytes,
            window_calls: link.window().calls,
            window_bytes: link.window().bytes,
            carriage: self.io.report(self.state.not_rdma.as_deref()),
        }
    }
}

/// An answer that waits until its link has room.
pub(crate) enum Kept {
    /// Its application still has it.
    PutOff {
        session: SessionId,
        call: CallKey,
        block: BlockRef,
    },
    Reply {
        call: u64,
        encoding: Encoding,
        request_bytes: u64,
        message: Box<Message>,
    },
    Status {
        call: u64,
        request_bytes: u64,
        status: Status,
    },
    /// Credit that a stream's reader has returned.
    Credit {
        call: u64,
        of: Direction,
        credit: Credit,
    },
}

/// A service of this host.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) tenant: Arc<str>,
    pub(crate) schema: Arc<ServiceSchema>,
}
