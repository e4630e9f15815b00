//! A connection's two queue pairs, their one completion queue, and the send and receive buffers:
//! the connection's own, or those of its poller's pool.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;
use tollgate_shm_abi::heap::{Block, Span};

use super::completions::{Completions, no_completions};
use super::device::Device;
use super::domain::{check, failed};
use super::lane::{Lane, MarshalMemory};
use super::memory::Memory;
use super::pool::{Came, Pool};
use super::seat::Seat;
use super::window::Window;
use super::work_ids::{ID_BODY, ID_KIND, ID_LANDING, ID_RECEIVE, ID_STREAM};
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::limits::{
    BODY_MESSAGES, INLINE_BYTES, MESSAGE_BYTES, RECEIVER_RETRIES, RECEIVES, RETRIES, SENDS,
};
use crate::named::Named;

/// One of the two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Messages of the link's stream.
    Stream,
    /// Large bodies.
    Body,
}

/// An element of an outgoing message.
pub(crate) enum Gather {
    /// Bytes of the message's own place, see [`Queues::place`].
    Place { at: usize, len: usize },
    /// Bytes marshalled into registered memory, see [`Queues::marshalled_at`].
    Marshalled { at: usize, len: usize },
    /// Bytes of a heap.
    Heap {
        memory: Arc<Memory>,
        at: usize,
        len: usize,
    },
}

/// A completion of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The peer's device has received all messages of the queue up to this one.
    Sent { queue: Queue, message: u64 },
    /// A message came into this receive.
    Received {
        receive: u16,
        len: usize,
        immediate: Option<u32>,
        /// It came with a write elsewhere: the receive holds no bytes of it.
        written: bool,
    },
    /// A message came for which the peer had no credit: the first queue pair was ended.
    Overrun,
    /// The next message of a body came.
    Landed { len: usize },
    /// A work request failed: the queue pair has ended. The status is libibverbs'.
    Failed {
        queue: Queue,
        /// Whether the request was a receive.
        receiving: bool,
        status: u32,
    },
}

/// The destination of an outgoing message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// Into the peer's next receive.
    Receive { immediate: u32 },
    /// Into the peer's window at this byte; with immediate data it takes a receive, too.
    Window { at: usize, immediate: Option<u32> },
}

/// The peer's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PeerWindow {
    address: u64,
    key: u32,
    len: usize,
}

/// A body that is being received.
struct Landing {
    block: Block,
    /// Number of receives posted for it.
    posted: usize,
    _memory: Arc<Memory>,
}

/// Sends of one queue pair.
#[derive(Default)]
struct Sending {
    /// The number of the next message.
    next: u64,
    /// All messages before this one are complete.
    complete: u64,
    /// Heaps that are sent from, until the messages are complete.
    held: VecDeque<(u64, Arc<Memory>)>,
    /// Requests not yet handed to the device; the elements of each are a range of `elements`.
    requests: Vec<(sys::ibv_send_wr, usize)>,
    elements: Vec<sys::ibv_sge>,
}

/// The source of completions and the receive buffers.
enum Side {
    Own(Own),
    Shared(Seat),
}

/// Those of a link without a pool.
struct Own {
    completions: Completions,
    receives: Memory,
    /// Whether the device may write each receive.
    posted: [bool; RECEIVES as usize],
    /// Receives for the next [`Queues::post_receives`].
    reposts: Vec<u16>,
}

pub(crate) struct Queues {
    /// Owns the first queue pair; [`Connection`](super::Connection) drops it after this value.
    id: NonNull<sys::rdma_cm_id>,
    body: NonNull<sys::ibv_qp>,
    /// Whether both queue pairs are destroyed.
    destroyed: bool,
    side: Side,
    stream_sends: Sending,
    body_sends: Sending,
    lane: Arc<Lane>,
    /// The lane's ring, until the link takes it.
    marshal_memory: Option<MarshalMemory>,
    landing: Option<Landing>,
    /// The window that the peer may write.
    window: Option<Window>,
    /// The window that this end may write.
    peer_window: Option<PeerWindow>,
    inline_bytes: usize,
    body_message: u32,
    pub(crate) counts: Counts,
    device: Arc<Device>,
}

// SAFETY: verbs objects aren't bound to a thread; all that this value has belongs to it alone.
unsafe impl Send for Queues {}

impl Queues {
    /// Makes the queue pairs of an id whose device is known, in a pool if there is a seat, and
    /// posts all receives.
    ///
    /// # Safety
    /// The id outlives this value, and has no queue pair.
    pub(super) unsafe fn new(
        id: NonNull<sys::rdma_cm_id>,
        device: &Arc<Device>,
        body_message: u32,
        seat: Option<Seat>,
    ) -> Result<Queues, RdmaError> {
        let mut counts = Counts::default();
        let (side, lane) = match seat {
            Some(seat) => {
                let lane = Arc::clone(&seat.lane);
                counts.system_calls += 2;
                (Side::Shared(seat), lane)
            }
            None => {
                let lane = Lane::own(device)?;
                counts.registrations += 2;
                counts.system_calls += 7;
                (Side::Own(Own::new(device)?), Arc::new(lane))
            }
        };
        let (body, inline_bytes) = make_queue_pairs(id, device, &side, lane.sends())?;
        // SAFETY: the lane was made for this link, above or with its seat, and these queues are the
        // only ones that have it.
        let marshal_memory = Some(unsafe { MarshalMemory::of(&lane) });
        let mut queues = Queues {
            id,
            body,
            destroyed: false,
            side,
            stream_sends: Sending::default(),
            body_sends: Sending::default(),
            lane,
            marshal_memory,
            landing: None,
            window: None,
            peer_window: None,
            inline_bytes,
            body_message,
            counts,
            device: Arc::clone(device),
        };
        let stream = queues.stream();
        if let Side::Shared(seat) = &mut queues.side {
            // SAFETY: both queue pairs were made above, and `destroy_pairs` has the seat leave them
            // first.
            unsafe { seat.join(stream, body) };
        }
        queues.post_receives()?;
        Ok(queues)
    }

    /// The first queue pair, which exists until `destroy_pairs`.
    fn stream(&self) -> NonNull<sys::ibv_qp> {
        // SAFETY: the id is there while `self` is.
        let pair = unsafe { self.id.as_ref() }.qp;
        NonNull::new(pair).expect("it was made with `self`")
    }

    /// Whether the queues belong to a poller's pool.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.side, Side::Shared(_))
    }

    /// Most messages of the stream in flight.
    pub(crate) fn sends(&self) -> usize {
        self.lane.sends()
    }

    /// The memory for marshalling; the first call takes it.
    pub(crate) fn marshal_memory(&mut self) -> Option<MarshalMemory> {
        self.marshal_memory.take()
    }

    /// The offset of these bytes in that memory, if they are in it.
    pub(crate) fn marshalled_at(&self, bytes: &[u8]) -> Option<usize> {
        self.lane.marshalled_at(bytes)
    }

    /// Called once the connection is established.
    pub(crate) fn begin(&mut self) {
        if let Side::Shared(seat) = &self.side {
            self.counts.system_calls += 1;
            // SAFETY: the queue pair has joined, and isn't destroyed.
            unsafe { seat.hurry(self.stream()) };
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The registered memory of a span; registers it if needed.
    ///
    /// # Errors
    /// The reason why registering failed.
    pub(crate) fn heap_of(&mut self, span: &Span) -> Result<Arc<Memory>, Arc<RdmaError>> {
        let (memory, fresh) = self.device.heap(span.region_address(), || span.region());
        if fresh {
            self.counts.registrations += 1;
            self.counts.system_calls += 1;
        }
        memory
    }

    /// The second queue pair's number.
    pub(crate) fn body_number(&self) -> u32 {
        // SAFETY: the queue pair is there until `destroy`, which consumes.
        unsafe { self.body.as_ref() }.qp_num
    }

    /// The largest message of a body in bytes, as far as this end knows.
    pub(crate) fn body_message(&self) -> u32 {
        self.body_message
    }

    /// Sets the largest message of a body for both ends.
    pub(crate) fn agree_body_message(&mut self, bytes: u32) {
        self.body_message = self.body_message.min(bytes);
    }

    /// Connects the second queue pair with the peer's queue pair of this number, over the first
    /// one's path.
    pub(crate) fn join_body(&mut self, peer: u32) -> Result<(), RdmaError> {
        use sys::ibv_qp_attr_mask as mask;
        // SAFETY: C structs of numbers, and of pointers that may be null.
        let mut path: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut initial: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let asked = mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_TIMEOUT;
        let asked = asked | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        // SAFETY: the id has its queue pair until `destroy_pairs`; the function fills both structs.
        let status = unsafe {
            let stream = self.id.as_ref().qp;
            sys::ibv_query_qp(stream, &mut path, asked.0 as i32, &mut initial)
        };
        check("asking a queue pair for its path", status)?;
        let mut attributes = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_INIT,
            qp_access_flags: 0,
            dest_qp_num: peer,
            // Both ends know both numbers, and a new queue pair has seen no packet of an older one.
            rq_psn: peer,
            sq_psn: self.body_number(),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 12,
            retry_cnt: RETRIES,
            rnr_retry: RECEIVER_RETRIES,
            ..path
        };
        let steps = [
            (
                sys::ibv_qp_state::IBV_QPS_INIT,
                mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS,
            ),
            (
                sys::ibv_qp_state::IBV_QPS_RTR,
                mask::IBV_QP_AV
                    | mask::IBV_QP_PATH_MTU
                    | mask::IBV_QP_DEST_QPN
                    | mask::IBV_QP_RQ_PSN
                    | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                    | mask::IBV_QP_MIN_RNR_TIMER,
            ),
            (
                sys::ibv_qp_state::IBV_QPS_RTS,
                mask::IBV_QP_TIMEOUT
                    | mask::IBV_QP_RETRY_CNT
                    | mask::IBV_QP_RNR_RETRY
                    | mask::IBV_QP_SQ_PSN
                    | mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ),
        ];
        for (state, fields) in steps {
            attributes.qp_state = state;
            let fields = fields | mask::IBV_QP_STATE;
            // SAFETY: the queue pair is there; the struct is initialised.
            let status =
                unsafe { sys::ibv_modify_qp(self.body.as_ptr(), &mut attributes, fields.0 as i32) };
            check("connecting the second queue pair", status)?;
        }
        self.counts.system_calls += 4;
        Ok(())
    }

    // ---- sending

    /// Number of messages that the queue can take before a completion must come.
    pub(crate) fn room(&self, queue: Queue) -> usize {
        let (sends, all) = match queue {
            Queue::Stream => (&self.stream_sends, self.sends()),
            Queue::Body => (&self.body_sends, BODY_MESSAGES),
        };
        all - usize::try_from(sends.next - sends.complete).unwrap_or(all)
    }

    /// Number of messages sent by the queue, and the number before which all are complete.
    pub(crate) fn progress(&self, queue: Queue) -> (u64, u64) {
        let sends = match queue {
            Queue::Stream => &self.stream_sends,
            Queue::Body => &self.body_sends,
        };
        (sends.next, sends.complete)
    }

    /// The place for the copied bytes of the stream's next message.
    ///
    /// # Panics
    /// If there is no [room](Self::room).
    pub(crate) fn place(&mut self) -> &mut [u8] {
        assert!(self.room(Queue::Stream) > 0, "asked before");
        let start = self.lane.place(self.stream_sends.next);
        // SAFETY: the range is of this value's lane, whose places it borrows exclusively; it is
        // initialised, since the pages begin zeroed. The device doesn't read it: `sends` messages
        // ago it was last sent from, and that is complete. It never writes it.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), MESSAGE_BYTES) }
    }

    /// Adds a message to the stream's queue and returns its number; [`Queues::ring`] hands it to
    /// the device.
    ///
    /// # Panics
    /// If there is no [room](Self::room), an element lies outside of its memory, or a write lies
    /// outside of the peer's window.
    pub(crate) fn push(&mut self, elements: &[Gather], to: To, signalled: bool) -> u64 {
        assert!(self.room(Queue::Stream) > 0, "asked before");
        let sends = &mut self.stream_sends;
        let (message, first) = (sends.next, sends.elements.len());
        let (mut bytes, mut marshalled) = (0, 0);
        let mut inline = true;
        for element in elements {
            match element {
                Gather::Place { at, len } => {
                    let element = self.lane.place_element(message, *at, *len);
                    sends.elements.push(element);
                    bytes += len;
                }
                Gather::Marshalled { at, len } => {
                    sends.elements.push(self.lane.marshalled_element(*at, *len));
                    bytes += len;
                    marshalled += len;
                }
                Gather::Heap { memory, at, len } => {
                    sends.elements.push(memory.element(*at, *len));
                    sends.held.push_back((message, Arc::clone(memory)));
                    self.counts.bytes_in_place += *len as u64;
                    inline = false;
                }
            }
        }
        let mut flags = 0;
        if signalled || self.lane.is_much_of_ring(marshalled) {
            flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if inline && bytes > 0 && bytes <= self.inline_bytes {
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let count = sends.elements.len() - first;
        let immediate = match to {
            To::Receive { immediate } => Some(immediate),
            To::Window { immediate, .. } => immediate,
        };
        let mut request = send_request(ID_STREAM | message, count, flags, immediate);
        if let To::Window { at, .. } = to {
            let window = self.peer_window.expect("a window was given");
            assert!(at + bytes <= window.len, "a range inside of the window");
            request.opcode = match immediate {
                Some(_) => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
                None => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            };
            request.wr = sys::wr_t {
                rdma: sys::rdma_t {
                    // The peer has chosen this number, so it may be anything.
                    remote_addr: window.address.wrapping_add(at as u64),
                    rkey: window.key,
                },
            };
        }
        sends.requests.push((request, first));
        sends.next += 1;
        message
    }

    /// Opens a window of this many bytes for the peer. Returns its address and key. The peer may be
    /// told them in a message, since that is sent after the window is bound.
    pub(crate) fn open_window(&mut self, len: usize) -> Result<(u64, u32), RdmaError> {
        assert!(self.window.is_none(), "a link has one");
        let window = Window::new(&self.device.domain, len)?;
        self.counts.registrations += 1;
        self.counts.system_calls += 2;
        let (address, key, binding) = window.binding(len);
        let message = self.stream_sends.next;
        let mut request = send_request(ID_STREAM | message, 0, 0, None);
        request.opcode = sys::ibv_wr_opcode::IBV_WR_BIND_MW;
        request.bind_mw_tso_union = sys::bind_mw_tso_union_t { bind_mw: binding };
        let first = self.stream_sends.elements.len();
        self.stream_sends.requests.push((request, first));
        self.stream_sends.next += 1;
        self.window = Some(window);
        Ok((address, key))
    }

    /// Sets the window that the peer has given.
    pub(crate) fn use_window(&mut self, address: u64, key: u32, len: usize) {
        self.peer_window = Some(PeerWindow { address, key, len });
    }

    /// Two words of this end's window; zeros if there is no window.
    pub(crate) fn words(&self, at: usize) -> [u64; 2] {
        self.window
            .as_ref()
            .map_or([0, 0], |window| window.words(at))
    }

    /// Copies bytes that the peer has written out of this end's window.
    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let window = self.window.as_ref();
        window.expect("a window was opened").copy_out(at, bytes);
    }

    /// Adds the messages of a body, each of at most [`body_message`](Self::body_message) bytes.
    /// Returns the number of the last.
    ///
    /// # Panics
    /// If there is no room for them, or the range lies outside of the memory.
    pub(crate) fn push_body(&mut self, memory: &Arc<Memory>, at: usize, len: usize) -> u64 {
        let most = self.body_message as usize;
        let messages = len.div_ceil(most);
        assert!(messages <= self.room(Queue::Body), "asked before");
        let sends = &mut self.body_sends;
        for n in 0..messages {
            let from = at + n * most;
            let element = memory.element(from, most.min(at + len - from));
            // Only the last one's completion matters.
            let flags = match n + 1 == messages {
                true => sys::ibv_send_flags::IBV_SEND_SIGNALED.0,
                false => 0,
            };
            let request = send_request(ID_BODY | sends.next, 1, flags, None);
            sends.requests.push((request, sends.elements.len()));
            sends.elements.push(element);
            sends.held.push_back((sends.next, Arc::clone(memory)));
            sends.next += 1;
        }
        self.counts.bytes_in_place += len as u64;
        sends.next - 1
    }

    /// Hands the added messages to the device, as one list per queue pair.
    pub(crate) fn ring(&mut self) -> Result<(), RdmaError> {
        // SAFETY: the id has its queue pair until `destroy_pairs`.
        let stream = unsafe { self.id.as_ref() }.qp;
        for queue in [Queue::Body, Queue::Stream] {
            let (pair, sends) = match queue {
                Queue::Body => (self.body.as_ptr(), &mut self.body_sends),
                Queue::Stream => (stream, &mut self.stream_sends),
            };
            if sends.requests.is_empty() {
                continue;
            }
            self.counts.doorbells += 1;
            self.counts.work_requests += sends.requests.len() as u64;
            self.counts.elements += sends.elements.len() as u64;
            let elements = sends.elements.as_mut_ptr();
            let mut next = ptr::null_mut();
            for (request, first) in sends.requests.iter_mut().rev() {
                // SAFETY: `first` is the index of an element of the vector, or its length for a
                // message without elements.
                request.sg_list = unsafe { elements.add(*first) };
                request.next = next;
                next = request;
            }
            let mut bad = ptr::null_mut();
            // SAFETY: the list's requests and elements are there during the call, after which the
            // device has copied them. Each element is a range of registered memory that `self`
            // holds, until the request's completion or the queue pair's end: its lane, or what is
            // in `held`.
            let status = unsafe { sys::ibv_post_send(pair, next, &mut bad) };
            sends.requests.clear();
            sends.elements.clear();
            check("handing messages to the device", status)?;
        }
        Ok(())
    }

    // ---- receiving

    /// The message in a receive.
    ///
    /// # Panics
    /// If the receive is posted: the device may be writing there.
    pub(crate) fn received(&self, receive: u16, len: usize) -> &[u8] {
        match &self.side {
            Side::Own(own) => own.received(receive, len.min(MESSAGE_BYTES)),
            Side::Shared(seat) => seat.received(receive, len.min(MESSAGE_BYTES)),
        }
    }

    /// Frees a receive after reading. A link's own receive waits for [`Queues::post_receives`]; a
    /// shared one returns to its pool at once.
    pub(crate) fn repost(&mut self, receive: u16) {
        match &mut self.side {
            Side::Own(own) => own.repost(receive),
            Side::Shared(seat) => seat.repost(receive),
        }
    }

    /// Number of receives that were read and whose credits weren't returned.
    pub(crate) fn free_receives(&self) -> usize {
        match &self.side {
            Side::Own(own) => own.reposts.len(),
            Side::Shared(seat) => seat.freed(),
        }
    }

    /// Posts the free receives as one list: their credits may be returned.
    pub(crate) fn post_receives(&mut self) -> Result<(), RdmaError> {
        // SAFETY: the id is there while `self` is.
        let pair = unsafe { self.id.as_ref() }.qp;
        match &mut self.side {
            Side::Own(own) if own.reposts.is_empty() => Ok(()),
            Side::Own(own) => {
                self.counts.receive_doorbells += 1;
                self.counts.receives += own.reposts.len() as u64;
                // SAFETY: the id has its queue pair until `destroy_pairs`, before which `own` isn't
                // dropped.
                unsafe { own.post(pair) }
            }
            Side::Shared(seat) => seat.post(),
        }
    }

    /// Posts the receives for a body of `len` bytes, at `at` of the block. The block stays here
    /// until [`Queues::landed`].
    ///
    /// # Errors
    /// If the block's heap can't be registered: then the block comes back. Or if the device refuses
    /// the receives.
    ///
    /// # Panics
    /// If another body is being received, or the range leaves the block.
    pub(crate) fn land(
        &mut self,
        block: Block,
        at: usize,
        len: usize,
    ) -> Result<(), (Option<Block>, Arc<RdmaError>)> {
        assert!(
            self.landing.is_none() && at <= block.len() && len <= block.len() - at,
            "one body at a time, inside of its block"
        );
        let (region, start) = block.region();
        let (memory, fresh) = self.device.heap(region.address(), || region.clone());
        if fresh {
            self.counts.registrations += 1;
            self.counts.system_calls += 1;
        }
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => return Err((Some(block), error)),
        };
        let most = self.body_message as usize;
        let posted = len.div_ceil(most);
        let mut elements = [memory.element(0, 0); BODY_MESSAGES];
        let mut status = 0;
        for (n, element) in elements.iter_mut().take(posted).enumerate() {
            let from = n * most;
            *element = memory.element(start + at + from, most.min(len - from));
            let mut request = sys::ibv_recv_wr {
                wr_id: ID_LANDING,
                next: ptr::null_mut(),
                sg_list: element,
                num_sge: 1,
            };
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair is there until `destroy_pairs`; request and element are there
            // during the call. The element is a range of the block, exclusively its holder's, which
            // is `landing` from here on, until the receives are complete or the queue pair is
            // destroyed; the same holds its memory registered.
            status = unsafe { sys::ibv_post_recv(self.body.as_ptr(), &mut request, &mut bad) };
            if status != 0 {
                break;
            }
        }
        self.counts.receive_doorbells += posted as u64;
        self.counts.receives += posted as u64;
        self.counts.bytes_in_place += len as u64;
        self.landing = Some(Landing {
            block,
            posted,
            _memory: memory,
        });
        check("posting a body's receives", status).map_err(|error| (None, Arc::new(error)))
    }

    /// The block of a completed body.
    pub(crate) fn landed(&mut self) -> Option<Block> {
        let landing = self.landing.take_if(|landing| landing.posted == 0)?;
        Some(landing.block)
    }

    // ---- completions

    /// Takes pending completions; returns their number.
    pub(crate) fn poll(&mut self, found: &mut Vec<Completion>) -> Result<usize, RdmaError> {
        match self.side {
            Side::Own(_) => self.poll_own(found),
            Side::Shared(_) => self.poll_shared(found),
        }
    }

    fn poll_own(&mut self, found: &mut Vec<Completion>) -> Result<usize, RdmaError> {
        let Side::Own(own) = &self.side else {
            return Ok(0);
        };
        let mut entries = no_completions();
        let count = own.completions.poll(&mut entries)?;
        self.counts.completions += count as u64;
        for entry in &entries[..count] {
            found.push(self.complete(entry));
        }
        Ok(count)
    }

    fn poll_shared(&mut self, found: &mut Vec<Completion>) -> Result<usize, RdmaError> {
        let Side::Shared(seat) = &mut self.side else {
            return Ok(0);
        };
        let mut came = seat.poll()?;
        let count = came.len();
        self.counts.completions += count as u64;
        for each in came.drain(..) {
            let completion = match each {
                Came::Completion(entry) => self.complete(&entry),
                Came::Overrun => Completion::Overrun,
                Came::Spilled(entry, bytes) => match self.complete(&entry) {
                    Completion::Received {
                        len,
                        immediate,
                        written,
                        ..
                    } => Completion::Received {
                        receive: self.keep(bytes),
                        len,
                        immediate,
                        written,
                    },
                    other => other,
                },
            };
            found.push(completion);
        }
        if let Side::Shared(seat) = &mut self.side {
            seat.polled(came);
        }
        Ok(count)
    }

    fn keep(&mut self, bytes: Box<[u8]>) -> u16 {
        let Side::Shared(seat) = &mut self.side else {
            unreachable!("only a pool spills")
        };
        self.counts.bytes_copied += bytes.len() as u64;
        seat.keep(bytes)
    }

    fn complete(&mut self, entry: &sys::ibv_wc) -> Completion {
        let (kind, number) = (entry.wr_id & ID_KIND, entry.wr_id & !ID_KIND);
        let queue = match kind {
            ID_BODY | ID_LANDING => Queue::Body,
            _ => Queue::Stream,
        };
        // The device has stopped writing to a failed receive, too, but its content is meaningless.
        if entry.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
            return Completion::Failed {
                queue,
                receiving: matches!(kind, ID_RECEIVE | ID_LANDING),
                status: entry.status,
            };
        }
        match kind {
            ID_RECEIVE => {
                if let Side::Own(own) = &mut self.side {
                    own.posted[number as usize] = false;
                }
                let with_immediate = entry.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
                Completion::Received {
                    receive: number as u16,
                    len: entry.byte_len as usize,
                    immediate: with_immediate.then(|| {
                        // SAFETY: both fields of the union are numbers of 32 bits.
                        u32::from_be(unsafe { entry.imm_data_invalidated_rkey_union.imm_data })
                    }),
                    written: entry.opcode != sys::ibv_wc_opcode::IBV_WC_RECV,
                }
            }
            ID_LANDING => {
                if let Some(landing) = &mut self.landing {
                    landing.posted = landing.posted.saturating_sub(1);
                }
                Completion::Landed {
                    len: entry.byte_len as usize,
                }
            }
            _ => {
                let sends = match queue {
                    Queue::Stream => &mut self.stream_sends,
                    Queue::Body => &mut self.body_sends,
                };
                // A reliable connection completes in order, including sends that asked for no
                // completion.
                sends.complete = number + 1;
                while sends
                    .held
                    .pop_front_if(|(message, _)| *message <= number)
                    .is_some()
                {}
                Completion::Sent {
                    queue,
                    message: number,
                }
            }
        }
    }

    /// Bytes registered for this link alone, and those of them in 2 MiB pages.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        let own = match &self.side {
            Side::Own(own) => own.receives.bytes(),
            Side::Shared(_) => [0, 0],
        };
        let lane = self.lane.own_bytes();
        let window = self.window.as_ref().map_or([0, 0], Window::bytes);
        [0, 1].map(|n| own[n] + lane[n] + window[n])
    }

    // ---- waiting

    /// Readable once a completion has come since [`Queues::arm`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.side {
            Side::Own(own) => own.completions.descriptor(),
            Side::Shared(seat) => seat.pool.descriptor(),
        }
    }

    /// The next completion makes the descriptor readable. `false` if one has come already. For a
    /// link's own queue, poll once more to find out.
    pub(crate) fn arm(&mut self) -> Result<bool, RdmaError> {
        match &self.side {
            Side::Own(own) => {
                self.counts.system_calls += 1 + own.completions.take_notifications()?;
                own.completions.arm()?;
                Ok(true)
            }
            Side::Shared(seat) => seat.pool.arm(),
        }
    }

    /// The pool of its seat, if it has one.
    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        match &self.side {
            Side::Own(_) => None,
            Side::Shared(seat) => Some(&seat.pool),
        }
    }

    /// Moves its link to another poller, and names the link there.
    pub(crate) fn move_to(&mut self, named: &Arc<Named>) {
        if let Side::Shared(seat) = &mut self.side {
            seat.move_to(named);
        }
    }

    /// Names the link again: it has taken messages and not read them.
    pub(crate) fn remind(&self) {
        if let Side::Shared(seat) = &self.side {
            seat.remind();
        }
    }

    // ---- the end

    /// Ends both queue pairs: no device touches their memory afterwards. Returns the block of an
    /// incomplete body.
    pub(super) fn destroy(mut self) -> Option<Block> {
        self.destroy_pairs();
        self.landing.take().map(|landing| landing.block)
    }

    fn destroy_pairs(&mut self) {
        if std::mem::replace(&mut self.destroyed, true) {
            return;
        }
        if let Some(window) = &mut self.window {
            window.close();
        }
        if let Side::Shared(seat) = &self.side {
            // SAFETY: both queue pairs are there, and have joined.
            unsafe { seat.stop(self.stream(), self.body) };
        }
        // SAFETY: both queue pairs are there, and destroyed once.
        unsafe {
            sys::rdma_destroy_qp(self.id.as_ptr());
            sys::ibv_destroy_qp(self.body.as_ptr());
        }
        if let Side::Shared(seat) = &mut self.side {
            seat.leave();
        }
    }
}

/// A misbehaving peer's actions, for tests of its victim.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// A write of 8 bytes.
    Write,
    /// A write of nothing, with immediate data.
    WriteImmediate,
}

#[cfg(test)]
impl Queues {
    /// The address of the receives and their key.
    pub(crate) fn receives_for_attack(&self) -> (u64, u32) {
        let receives = match &self.side {
            Side::Own(own) => &own.receives,
            Side::Shared(seat) => &*seat.pool.memory,
        };
        let start = receives.own(0, 8).as_ptr() as u64;
        (start, receives.remote_key())
    }

    /// The peer's announcement of its window.
    pub(crate) fn peer_window_for_attack(&self) -> (u64, u32) {
        let window = self.peer_window.expect("a window was given");
        (window.address, window.key)
    }

    /// Tries the attack on the peer's memory.
    pub(crate) fn attack(&mut self, attack: Attack, address: u64, key: u32) {
        use sys::ibv_wr_opcode as is;
        let mut element = self.lane.place_element(0, 0, 8);
        let (opcode, elements) = match attack {
            Attack::Write => (is::IBV_WR_RDMA_WRITE, 1),
            Attack::WriteImmediate => (is::IBV_WR_RDMA_WRITE_WITH_IMM, 0),
        };
        let id = ID_STREAM | self.stream_sends.next;
        self.stream_sends.next += 1;
        let flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut request = send_request(id, elements, flags, Some(1 << 28));
        request.opcode = opcode;
        request.sg_list = &mut element;
        request.wr = sys::wr_t {
            rdma: sys::rdma_t {
                remote_addr: address,
                rkey: key,
            },
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair, the request and its element, a range of its lane, are there. What
        // it asks of the peer is for the peer's device to refuse.
        let status = unsafe { sys::ibv_post_send(self.id.as_ref().qp, &mut request, &mut bad) };
        assert_eq!(status, 0, "an attack that this end's device refuses");
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.destroy_pairs();
    }
}

impl Own {
    fn new(device: &Arc<Device>) -> Result<Own, RdmaError> {
        let entries = SENDS + RECEIVES as usize + 2 * BODY_MESSAGES;
        Ok(Own {
            receives: Memory::of_pages(&device.domain, RECEIVES as usize * MESSAGE_BYTES)?,
            completions: Completions::new(device, entries)?,
            posted: [false; RECEIVES as usize],
            reposts: (0..RECEIVES).collect(),
        })
    }

    fn received(&self, receive: u16, len: usize) -> &[u8] {
        assert!(!self.posted[usize::from(receive)], "a message came there");
        let start = self.receives.own(usize::from(receive) * MESSAGE_BYTES, len);
        // SAFETY: the range is of this value's own buffer and initialised. The device doesn't write
        // it: its receive is complete, and isn't posted again while the slice is borrowed from
        // `self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    fn repost(&mut self, receive: u16) {
        assert!(
            !self.posted[usize::from(receive)] && !self.reposts.contains(&receive),
            "it was complete"
        );
        self.reposts.push(receive);
    }

    /// # Safety
    /// The queue pair exists, and is destroyed before `self` is dropped.
    unsafe fn post(&mut self, pair: *mut sys::ibv_qp) -> Result<(), RdmaError> {
        const NONE: sys::ibv_recv_wr = sys::ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 1,
        };
        let mut elements = [self.receives.element(0, 0); RECEIVES as usize];
        let mut requests = [NONE; RECEIVES as usize];
        let mut next = ptr::null_mut();
        for (n, receive) in self.reposts.drain(..).enumerate() {
            self.posted[usize::from(receive)] = true;
            elements[n] = self
                .receives
                .element(usize::from(receive) * MESSAGE_BYTES, MESSAGE_BYTES);
            requests[n] = sys::ibv_recv_wr {
                wr_id: ID_RECEIVE | u64::from(receive),
                next,
                sg_list: &mut elements[n],
                ..NONE
            };
            next = &mut requests[n];
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there, as the caller says; requests and elements are there
        // during the call. What they name is this value's own buffer, which is marked as posted, so
        // nobody looks at it, and which is freed after the queue pair.
        let status = unsafe { sys::ibv_post_recv(pair, next, &mut bad) };
        check("posting receives", status)
    }
}

/// Makes the first queue pair, which becomes the id's, and the second; also returns the number of
/// bytes that both send inline.
fn make_queue_pairs(
    id: NonNull<sys::rdma_cm_id>,
    device: &Arc<Device>,
    side: &Side,
    stream_sends: usize,
) -> Result<(NonNull<sys::ibv_qp>, usize), RdmaError> {
    let elements = device.max_elements() as u32;
    let (completions, shared) = match side {
        Side::Own(own) => (own.completions.as_ptr(), ptr::null_mut()),
        Side::Shared(seat) => (seat.pool.completions.as_ptr(), seat.pool.receives()),
    };
    let stream_receives = if shared.is_null() { RECEIVES.into() } else { 0 };
    let attributes = |sends: usize, receives: usize, elements, inline| sys::ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: completions,
        recv_cq: completions,
        srq: ptr::null_mut(),
        cap: sys::ibv_qp_cap {
            max_send_wr: sends as u32,
            max_recv_wr: receives as u32,
            max_send_sge: elements,
            max_recv_sge: 1,
            max_inline_data: inline,
        },
        qp_type: sys::ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    let domain = device.domain.protection.as_ptr();
    let mut inline_bytes = 0;
    let mut status = -1;
    for inline in [INLINE_BYTES, 0] {
        let mut wanted = sys::ibv_qp_init_attr {
            srq: shared,
            ..attributes(stream_sends, stream_receives, elements, inline as u32)
        };
        // SAFETY: id, domain, completion queue and shared receives are there, and the id has no
        // queue pair.
        status = unsafe { sys::rdma_create_qp(id.as_ptr(), domain, &mut wanted) };
        if status == 0 {
            inline_bytes = inline;
            break;
        }
    }
    check("creating a queue pair", status)?;
    let mut wanted = attributes(BODY_MESSAGES, BODY_MESSAGES, 1, 0);
    // SAFETY: domain and completion queue are there.
    let body = NonNull::new(unsafe { sys::ibv_create_qp(domain, &mut wanted) });
    let Some(body) = body else {
        let error = failed("creating the second queue pair");
        // SAFETY: the id's queue pair was just created.
        unsafe { sys::rdma_destroy_qp(id.as_ptr()) };
        return Err(error);
    };
    Ok((body, inline_bytes))
}

/// A send with this number of elements; `ring` fills them in.
fn send_request(id: u64, elements: usize, flags: u32, immediate: Option<u32>) -> sys::ibv_send_wr {
    // SAFETY: a C struct of numbers, unions of numbers, and pointers that may be null.
    let empty: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
    sys::ibv_send_wr {
        wr_id: id,
        num_sge: elements as i32,
        opcode: match immediate {
            Some(_) => sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            None => sys::ibv_wr_opcode::IBV_WR_SEND,
        },
        send_flags: flags,
        imm_data_invalidated_rkey_union: sys::imm_data_invalidated_rkey_union_t {
            imm_data: immediate.unwrap_or(0).to_be(),
        },
        ..empty
    }
}
