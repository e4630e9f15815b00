//! The two kinds of ports of a runtime: an application's session, and a link to a peer.

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
use tollgate_shm_abi::ring::PushError;
use tollgate_shm_abi::session::DaemonEnd;
use tollgate_shm_abi::stream::Credit;
use tollgate_transport::CallHead;

use crate::binds::{Asker, PendingBind, ServiceSchema};
use crate::carrier::Carrier;
use crate::landing::Landing;
use crate::limits::{
    COMPLETION_BACKLOG, KEPT_BEFORE_SWEEP, RECLAIMS_HELD_NS, WAIT_ASKED_EVERY_CALLS,
    WAIT_ASKED_EVERY_NS,
};
use crate::target::Target;
use tollgate_jit::on_demand::Method;
use tollgate_policy_chain::message::Message;

/// A method handle of an application.
pub(crate) struct Handle {
    pub(crate) method: Arc<Method>,
    /// Whether the application calls it, or serves it.
    pub(crate) calls: bool,
}

/// Whose session it is, and what its library understands.
pub(crate) struct Who {
    pub(crate) tenant: Arc<str>,
    pub(crate) app: String,
    pub(crate) pid: i32,
    /// It can be given metadata. A library that can't gets the message alone: its application couldn't read more.
    pub(crate) takes_metadata: bool,
    /// It says how long calls waited, and can be told when to try again.
    pub(crate) tells_waits: bool,
    /// It knows of further requests, of responses and of trailers.
    pub(crate) knows_streams: bool,
    /// Its receive heap can be followed by another, so another process can go on with the session.
    pub(crate) follows_heaps: bool,
    /// Under which it serves.
    pub(crate) label: Option<Arc<str>>,
}

/// An application's session.
pub(crate) struct SessionPort {
    pub(crate) id: SessionId,
    pub(crate) who: Who,
    /// Its tenant's.
    pub(crate) flow: FlowId,
    pub(crate) end: DaemonEnd,
    pub(crate) heaps: HeapSizes,
    /// By handle; parallel to the engine's routes.
    pub(crate) handles: Vec<Handle>,
    /// What those are of, in order: schemas, and whether the application calls them.
    pub(crate) bound: Vec<(Arc<ServiceSchema>, bool)>,
    /// What waits for room in the receive heap, in order, and the bytes of its messages.
    pub(crate) held: VecDeque<Held>,
    pub(crate) held_bytes: u64,
    /// Completions that found the ring full, in order.
    pub(crate) backlog: VecDeque<Entry>,
    /// Blocks of the send heap to give back, less than one descriptor's worth.
    reclaims: Vec<u64>,
    /// Since when those are held back; 0: they aren't.
    held_since_ns: u64,
    /// Something was pushed since the last look at the sleeping flag.
    pushed: bool,
    /// When a call was last delivered that says so, and how many have been that don't.
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

    /// When a call is delivered, if its answer is to say how long it waited; 0 if not. Few enough are asked that their clocks
    /// cost nothing.
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

    /// Whether the application is so far behind with its completions that its submissions must wait.
    pub(crate) fn is_choked(&self) -> bool {
        self.backlog.len() >= COMPLETION_BACKLOG
    }

    /// Gives a block of the send heap back, in a batch.
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

    /// Tells the application something; in the backlog, if its ring is full.
    pub(crate) fn push(&mut self, completion: &Completion) {
        let entry = completion.encode();
        self.pushed = true;
        if !self.backlog.is_empty() || self.end.completions.push(&entry).is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Tells the application how its call ended without a reply. Text and trailers are left out when the heap has no room for them.
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

    /// Hands what was placed over, if it was, as this. `delivered_ns` is 0 if its answer needn't say how long it waited.
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

    /// Whether blocks to give back wait until the application is told something else: if it sleeps, nobody wakes it for them alone for
    /// [`RECLAIMS_HELD_NS`], or until the runtime sleeps, too.
    fn holds_back(&mut self, now_ns: u64) -> bool {
        if self.reclaims.is_empty() || self.pushed || !self.end.completions.is_asleep() {
            return false;
        }
        if self.held_since_ns == 0 {
            self.held_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.held_since_ns) < RECLAIMS_HELD_NS
    }

    /// Once per turn, `now_ns`, and before the runtime sleeps: gives reclaims and backlog to the ring, and wakes the application if it
    /// sleeps. Whether it did.
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

    /// Whether there are blocks to give back.
    pub(crate) fn has_reclaims(&self) -> bool {
        !self.reclaims.is_empty()
    }

    /// Whether something waits for a place in the ring, which the application makes without ringing.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }
}

/// A block that is filled and valid, and what is to be said of it. Where it lies is known once it is committed.
#[derive(Default)]
pub(crate) struct Placed {
    /// `None`: there is nothing to place.
    pub(crate) block: Option<Block>,
    pub(crate) image: Image,
    /// Only metadata, if anything.
    pub(crate) bare: bool,
}

/// What a delivered block is. Its names are in the states that daemons hand over.
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

/// What waits for room in a session's receive heap, or behind what does.
pub(crate) enum Held {
    Message {
        method: Arc<Method>,
        message: Box<Message>,
        what: Delivery,
    },
    /// How a call of the application's ended.
    Status { call: u64, status: Status },
    /// No further requests of an incoming call follow.
    End { call: CallKey },
}

/// A large body that is being read.
pub(crate) struct LargeBody {
    pub(crate) what: LargeKind,
    pub(crate) landing: Landing,
}

/// What a large body belongs to.
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

/// What a peer answered to a call of ours.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) key: CallKey,
    pub(crate) protobuf: bool,
    /// Of a response; `None`: it is the reply.
    pub(crate) charge: Option<u32>,
}

/// A client's binding to a service at a peer.
pub(crate) struct RemoteBinding {
    pub(crate) session: SessionId,
    pub(crate) first_handle: u32,
    pub(crate) schema: Arc<ServiceSchema>,
    /// Who asked for it and has no answer yet.
    pub(crate) asked: Option<Asker>,
    /// The peer accepted it with another schema, which is being compared.
    pub(crate) comparing: Option<Comparing>,
    pub(crate) tenant: Arc<str>,
    pub(crate) peer: Target,
    /// Refused after it had been bound (its server restarts, say): when to ask again.
    pub(crate) retry_at_ns: Option<u64>,
    /// The last pause before that, since it stood.
    pub(crate) retry_pause: Option<Duration>,
}

impl RemoteBinding {
    /// Whether the peer has accepted it, and hasn't refused it since.
    pub(crate) fn stands(&self) -> bool {
        self.asked.is_none() && self.comparing.is_none() && self.retry_at_ns.is_none()
    }
}

/// A binding that stands once the schemas have been compared.
pub(crate) struct Comparing {
    /// Tells this comparison from earlier ones of the same binding.
    pub(crate) ticket: u64,
    pub(crate) link: LinkId,
    pub(crate) bind: u32,
}

/// A link to a peer daemon. It carries the calls of one tenant, so that no tenant can use up another's credit or stand in
/// its way.
pub struct LinkPort {
    pub(crate) io: Carrier,
    pub(crate) state: LinkState,
}

/// A bind id of this end.
pub(crate) struct Outbound {
    /// The runtime's binding; one that is gone leaves the id to another, once the peer owes no answer about it.
    pub(crate) binding: u32,
    /// BINDs that the peer hasn't answered.
    pub(crate) unanswered: u32,
}

/// What the runtime knows of a link beyond its protocol.
pub(crate) struct LinkState {
    pub(crate) address: String,
    /// Whom this end dialled; `None`: the peer did.
    pub(crate) dialled: Option<Target>,
    /// At which of its addresses.
    pub(crate) at: Option<SocketAddr>,
    /// The peer has proved who it is, or needn't.
    pub(crate) proven: bool,
    /// Which one it is, once it has.
    pub(crate) peer: Option<Box<[u8]>>,
    /// Why it wasn't by RDMA, if this end dialled.
    pub(crate) not_rdma: Option<Arc<str>>,
    /// Dialled by RDMA and not ready yet: when TCP has its turn.
    pub(crate) rdma_until_ns: Option<u64>,
    /// Dialled by TCP: when RDMA is tried again.
    pub(crate) rdma_again_ns: Option<u64>,
    /// When it became ready; `None`: it isn't, or was already when this process took it over.
    pub(crate) ready_since_ns: Option<u64>,
    /// Another link has its bindings; what goes by it still, ends by it.
    pub(crate) replaced: bool,
    /// Known from the first BIND, or from the start when dialled.
    pub(crate) tenant: Option<Arc<str>>,
    /// Its tenant's, once a service of that tenant's was found here; that of strangers before.
    pub(crate) flow: FlowId,
    /// What the peer's binds mean.
    pub(crate) inbound: HashMap<u32, ServiceId, foldhash::fast::RandomState>,
    /// Our binds, by bind id.
    pub(crate) outbound: Vec<Outbound>,
    pub(crate) large: Option<LargeBody>,
    /// The socket may have more to read.
    pub(crate) readable: bool,
    /// The peer sends no more, which is found by reading to the end: no further event says so.
    pub(crate) ends: bool,
    /// The peer returned credit in this turn.
    pub(crate) credited: bool,
    /// So much waits to leave that what can wait does, and the peer has taken none of it since then.
    pub(crate) behind_since_ns: Option<u64>,
    /// Answers that wait for room, and at how many those are looked for that nobody waits for any more.
    pub(crate) kept: VecDeque<Kept>,
    pub(crate) sweep_at: usize,
    /// The first BIND, when it names a tenant of another runtime.
    pub(crate) moving: Option<PendingBind>,
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

/// An answer that waits until its link has room.
pub(crate) enum Kept {
    /// Its application has it still.
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
    /// What a stream's reader has consumed.
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
