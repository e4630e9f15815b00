//! A connection's two queue pairs, their one completion queue, and the send and receive buffers:
//! the connection's own, or those of its poller's pool.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;
use tollgate_shm_abi::heap::{Block, Span};

use super::completions::no_completions;
use super::device::Device;
use super::domain::check;
use super::lane::{Lane, MarshalMemory};
use super::memory::Memory;
use super::pool::{Came, Pool};
use super::pool_share::PoolShare;
use super::side::{Own, Side, make_queue_pairs};
use super::window::Window;
use super::work::{Completion, Queue, Sending};
use super::work_ids::{ID_BODY, ID_KIND, ID_LANDING, ID_RECEIVE};
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::limits::{BODY_MESSAGES, MESSAGE_BYTES, RECEIVER_RETRIES, RETRIES};
use crate::named::Named;

#[cfg(test)]
mod attack;
mod sending;

#[cfg(test)]
pub(crate) use attack::Attack;

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
    /// Makes the queue pairs of an id whose device is known, in a pool if there is a share, and
    /// posts all receives.
    ///
    /// # Safety
    /// The id outlives this value, and has no queue pair.
    pub(super) unsafe fn new(
        id: NonNull<sys::rdma_cm_id>,
        device: &Arc<Device>,
        body_message: u32,
        share: Option<PoolShare>,
    ) -> Result<Queues, RdmaError> {
        let mut counts = Counts::default();
        let (side, lane) = match share {
            Some(share) => {
                let lane = Arc::clone(&share.lane);
                counts.system_calls += 2;
                (Side::Shared(share), lane)
            }
            None => {
                let lane = Lane::own(device)?;
                counts.registrations += 2;
                counts.system_calls += 7;
                (Side::Own(Own::new(device)?), Arc::new(lane))
            }
        };
        let (body, inline_bytes) = make_queue_pairs(id, device, &side, lane.sends())?;
        // SAFETY: the lane was made for this link, above or with its share, and these queues are
        // the only ones that have it.
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
        if let Side::Shared(share) = &mut queues.side {
            // SAFETY: both queue pairs were made above, and `destroy_pairs` has the share leave
            // them first.
            unsafe { share.join(stream, body) };
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
        if let Side::Shared(share) = &self.side {
            self.counts.system_calls += 1;
            // SAFETY: the queue pair has joined, and isn't destroyed.
            unsafe { share.hurry(self.stream()) };
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

    /// The message in a receive.
    ///
    /// # Panics
    /// If the receive is posted: the device may be writing there.
    pub(crate) fn received(&self, receive: u16, len: usize) -> &[u8] {
        match &self.side {
            Side::Own(own) => own.received(receive, len.min(MESSAGE_BYTES)),
            Side::Shared(share) => share.received(receive, len.min(MESSAGE_BYTES)),
        }
    }

    /// Frees a receive after reading. A link's own receive waits for [`Queues::post_receives`]; a
    /// shared one returns to its pool at once.
    pub(crate) fn repost(&mut self, receive: u16) {
        match &mut self.side {
            Side::Own(own) => own.repost(receive),
            Side::Shared(share) => share.repost(receive),
        }
    }

    /// Number of receives that were read and whose credits weren't returned.
    pub(crate) fn free_receives(&self) -> usize {
        match &self.side {
            Side::Own(own) => own.reposts.len(),
            Side::Shared(share) => share.freed(),
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
            Side::Shared(share) => share.post(),
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
        let Side::Shared(share) = &mut self.side else {
            return Ok(0);
        };
        let mut came = share.poll()?;
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
        if let Side::Shared(share) = &mut self.side {
            share.polled(came);
        }
        Ok(count)
    }

    fn keep(&mut self, bytes: Box<[u8]>) -> u16 {
        let Side::Shared(share) = &mut self.side else {
            unreachable!("only a pool spills")
        };
        self.counts.bytes_copied += bytes.len() as u64;
        share.keep(bytes)
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
            Side::Shared(share) => share.pool.descriptor(),
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
            Side::Shared(share) => share.pool.arm(),
        }
    }

    /// The pool of its share, if it has one.
    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        match &self.side {
            Side::Own(_) => None,
            Side::Shared(share) => Some(&share.pool),
        }
    }

    /// Moves its link to another poller, and names the link there.
    pub(crate) fn move_to(&mut self, named: &Arc<Named>) {
        if let Side::Shared(share) = &mut self.side {
            share.move_to(named);
        }
    }

    /// Names the link again: it has taken messages and not read them.
    pub(crate) fn remind(&self) {
        if let Side::Shared(share) = &self.side {
            share.remind();
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
        if let Side::Shared(share) = &self.side {
            // SAFETY: both queue pairs are there, and have joined.
            unsafe { share.stop(self.stream(), self.body) };
        }
        // SAFETY: both queue pairs are there, and destroyed once.
        unsafe {
            sys::rdma_destroy_qp(self.id.as_ptr());
            sys::ibv_destroy_qp(self.body.as_ptr());
        }
        if let Side::Shared(share) = &mut self.side {
            share.leave();
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.destroy_pairs();
    }
}
