//! Resources that the links of one poller share on one device: a completion queue, a queue of
//! receives (SRQ), and memory that is registered once.
//!
//! ```text
//!   memory  | receives: SHARED_RECEIVES for each link | lane of link 0 | lane of link 1 | ...     a lane: its link's send memory
//!
//!   receive   Free ─▶ Device ─▶ of a link ─▶ Free          by the number of the queue pair that its completion names
//! ```
//!
//! A shared receive may serve any link, so one peer's misuse could affect all links. Three bounds
//! prevent that:
//!
//! - A link holds at most [`SHARED_RECEIVES`], the number that it has added. If nobody reads the
//!   link, further messages are *spilled*: copied into ordinary memory, and their receives are free
//!   at once.
//! - A link has at most [`RECEIVES`] unread messages, as many as its peer has credits. One more is
//!   the peer's fault: the queue pair ends at once, whichever poller polls, and the message is
//!   dropped.
//! - When a link ends, the receives that it held are free.
//!
//! A pool belongs to one poller, which makes further pools when it is full. A link that moves to
//! another poller keeps its place in the pool. Then both pollers poll the pool, each for all links,
//! and each names the other's ready links to it ([`Named`]).
//!
//! So the receives run out only if more messages than receives come between two polls. The device
//! then tells the senders to retry after [`SHARED_RETRY_TIMER`] until receives are free; no link
//! ends because of it.
//!
//! Absent: waiting for the device's confirmation that it has returned all receives of an ending
//! queue pair. Only receives that are polled before and after the end come back. If a device keeps
//! one, all links of the poller lose it for the pool's lifetime.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys as sys;

use super::completions::{Completions, no_completions};
use super::device::Device;
use super::domain::{check, failed};
use super::memory::Memory;
use super::work_ids::{ID_KIND, ID_RECEIVE};
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::limits::{
    BODY_MESSAGES, MESSAGE_BYTES, POLL_BATCH, POLL_BATCHES, POOLED_LANE_BYTES, POOLED_SENDS,
    RECEIVE_BATCH, RECEIVES, SHARED_RECEIVES, SHARED_RETRY_TIMER, pool_bytes, shared_receives,
};
use crate::link_id::LinkId;
use crate::named::Named;

pub(crate) struct Pool {
    state: Mutex<State>,
    receives: NonNull<sys::ibv_srq>,
    pub(super) completions: Completions,
    pub(super) memory: Arc<Memory>,
    pub(super) device: Arc<Device>,
}

// SAFETY: a queue of receives isn't bound to a thread, and is used under `state`'s lock; this value
// owns it.
unsafe impl Send for Pool {}
// SAFETY: as for Send.
unsafe impl Sync for Pool {}

/// The owner of a receive, which alone may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Free,
    Device,
    /// The link with this queue pair.
    Link(u32),
}

pub(super) struct State {
    pub(super) receives: Vec<Holder>,
    /// Free receives, to be posted.
    free: Vec<u16>,
    /// Free lanes.
    lanes: Vec<u16>,
    /// By the number of the link's first queue pair.
    pub(super) links: HashMap<u32, Inbox>,
    /// Maps the number of a second queue pair to that of the first.
    pub(super) bodies: HashMap<u32, u32>,
    counts: Counts,
}

/// Messages of a link that it hasn't taken yet.
pub(super) struct Inbox {
    pub(super) link: LinkId,
    /// The poller's list to name the link in.
    pub(super) named: Arc<Named>,
    pub(super) stream: NonNull<sys::ibv_qp>,
    pub(super) body: u32,
    pub(super) came: VecDeque<Came>,
    /// Unread messages, and the number of them in receives.
    pub(super) unread: u16,
    pub(super) holds: usize,
    pub(super) overrun: bool,
}

// SAFETY: the queue pair isn't bound to a thread; its link takes the inbox away before it destroys
// it.
unsafe impl Send for Inbox {}

/// A link's completion.
pub(super) enum Came {
    Completion(sys::ibv_wc),
    /// A message that was copied out of its receive.
    Spilled(sys::ibv_wc, Box<[u8]>),
    /// A message beyond the peer's credits: its queue pair was ended.
    Overrun,
}

impl Pool {
    pub(super) fn new(device: &Arc<Device>, links: u16) -> Result<Pool, RdmaError> {
        let count = shared_receives(links);
        // For each link, all sends of both queue pairs and all receives of the second.
        let entries = count + usize::from(links) * (POOLED_SENDS + 2 * BODY_MESSAGES);
        device.can_complete(entries)?;
        let memory = Memory::of_pages(&device.domain, pool_bytes(links))?;
        let completions = Completions::new(device, entries)?;
        let mut wanted = sys::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: sys::ibv_srq_attr {
                max_wr: count as u32,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the domain is there while the device is.
        let receives = NonNull::new(unsafe {
            sys::ibv_create_srq(device.domain.protection.as_ptr(), &mut wanted)
        });
        let receives = receives.ok_or_else(|| failed("creating a queue of shared receives"))?;
        let pool = Pool {
            state: Mutex::new(State {
                receives: vec![Holder::Free; count],
                free: (0..count as u16).collect(),
                lanes: (0..links).rev().collect(),
                links: HashMap::with_capacity(links.into()),
                bodies: HashMap::with_capacity(links.into()),
                counts: Counts {
                    registrations: 1,
                    system_calls: 4,
                    ..Counts::default()
                },
            }),
            receives,
            completions,
            memory: Arc::new(memory),
            device: Arc::clone(device),
        };
        pool.post(&mut pool.state())?;
        Ok(pool)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Only asserts about this crate's own numbers can panic while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free lane; returns its number and its offset in the memory.
    pub(super) fn take_lane(&self) -> Option<(u16, usize)> {
        let mut state = self.state();
        let lane = state.lanes.pop()?;
        let before = state.receives.len() * MESSAGE_BYTES;
        Some((lane, before + usize::from(lane) * POOLED_LANE_BYTES))
    }

    /// Frees the lane.
    pub(super) fn take_back(&self, lane: u16) {
        self.state().lanes.push(lane);
    }

    /// The queue of receives for new queue pairs.
    pub(super) fn receives(&self) -> *mut sys::ibv_srq {
        self.receives.as_ptr()
    }

    /// Takes pending completions for all links, as many as one turn takes; returns their number.
    pub(crate) fn poll(&self) -> Result<usize, RdmaError> {
        self.poll_into(&mut self.state())
    }

    /// Makes the descriptor report the next completion. `false` if one has come already.
    pub(crate) fn arm(&self) -> Result<bool, RdmaError> {
        let mut state = self.state();
        state.counts.system_calls += 1 + self.completions.take_notifications()?;
        self.completions.arm()?;
        Ok(self.poll_into(&mut state)? == 0)
    }

    /// Readable once a completion has come since [`Pool::arm`].
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.completions.descriptor()
    }

    /// Costs of no single link: posted receives, system calls, spilled bytes.
    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    pub(super) fn poll_into(&self, state: &mut State) -> Result<usize, RdmaError> {
        let mut entries = no_completions();
        let mut all = 0;
        for _ in 0..POLL_BATCHES {
            let count = self.completions.poll(&mut entries)?;
            for entry in &entries[..count] {
                self.deliver(state, entry);
            }
            all += count;
            if count < POLL_BATCH {
                break;
            }
        }
        self.post_soon(state)?;
        Ok(all)
    }

    /// Delivers a completion to its link.
    fn deliver(&self, state: &mut State, entry: &sys::ibv_wc) {
        let receive = (entry.wr_id & ID_KIND == ID_RECEIVE).then_some(entry.wr_id as u16);
        let number = state.bodies.get(&entry.qp_num).copied();
        let number = number.unwrap_or(entry.qp_num);
        let Some(inbox) = state.links.get_mut(&number) else {
            // Its link has ended.
            if let Some(receive) = receive {
                state.free(receive);
            }
            return;
        };
        let arrived = entry.status == sys::ibv_wc_status::IBV_WC_SUCCESS;
        let came = match receive {
            Some(receive) if !arrived => {
                state.receives[usize::from(receive)] = Holder::Free;
                state.free.push(receive);
                Came::Completion(*entry)
            }
            Some(receive) if inbox.unread == RECEIVES => {
                state.receives[usize::from(receive)] = Holder::Free;
                state.free.push(receive);
                if std::mem::replace(&mut inbox.overrun, true) {
                    return;
                }
                end_pair(inbox.stream);
                Came::Overrun
            }
            Some(receive) if inbox.holds == SHARED_RECEIVES => {
                inbox.unread += 1;
                let len = (entry.byte_len as usize).min(MESSAGE_BYTES);
                let bytes = self.bytes_of(receive, len).into();
                state.counts.bytes_copied += len as u64;
                state.receives[usize::from(receive)] = Holder::Free;
                state.free.push(receive);
                Came::Spilled(*entry, bytes)
            }
            Some(receive) => {
                inbox.unread += 1;
                inbox.holds += 1;
                state.receives[usize::from(receive)] = Holder::Link(number);
                Came::Completion(*entry)
            }
            None => Came::Completion(*entry),
        };
        inbox.came.push_back(came);
        if inbox.came.len() == 1 {
            inbox.named.add(inbox.link);
        }
    }

    /// The message in a receive: the device has written it, and doesn't write again until the
    /// receive is reposted.
    pub(super) fn bytes_of(&self, receive: u16, len: usize) -> &[u8] {
        let at = usize::from(receive) * MESSAGE_BYTES;
        let start = self.memory.own(at, len);
        // SAFETY: the range is of this value's own memory and initialised, since its pages begin
        // zeroed. Of both callers, `deliver` asks for a receive whose completion it has in its hand
        // and posts it afterwards, under the lock; `PoolShare::received` (in `pool_share.rs`) for
        // one that its link holds, which only `PoolShare::repost` ends, while the slice borrows the
        // share.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Posts the free receives once they are a batch. Many others are posted, so no message waits
    /// for these.
    pub(super) fn post_soon(&self, state: &mut State) -> Result<(), RdmaError> {
        if state.free.len() >= RECEIVE_BATCH {
            self.post(state)?;
        }
        Ok(())
    }

    pub(super) fn post(&self, state: &mut State) -> Result<(), RdmaError> {
        while !state.free.is_empty() {
            let from = state.free.len().saturating_sub(POLL_BATCH);
            let mut elements = [self.memory.element(0, 0); POLL_BATCH];
            let mut requests = [NO_REQUEST; POLL_BATCH];
            let mut next = ptr::null_mut();
            for (n, receive) in state.free.drain(from..).enumerate() {
                let at = usize::from(receive) * MESSAGE_BYTES;
                state.receives[usize::from(receive)] = Holder::Device;
                state.counts.receives += 1;
                elements[n] = self.memory.element(at, MESSAGE_BYTES);
                requests[n] = sys::ibv_recv_wr {
                    wr_id: ID_RECEIVE | u64::from(receive),
                    next,
                    sg_list: &mut elements[n],
                    num_sge: 1,
                };
                next = &mut requests[n];
            }
            state.counts.receive_doorbells += 1;
            let mut bad = ptr::null_mut();
            // SAFETY: the queue is there; requests and elements are during the call. What they name
            // is this value's own memory, which is the device's from here on and looked at by
            // nobody, and which is unregistered after the queue is destroyed.
            let status = unsafe { sys::ibv_post_srq_recv(self.receives.as_ptr(), next, &mut bad) };
            check("posting shared receives", status)?;
        }
        Ok(())
    }
}

impl State {
    pub(super) fn free(&mut self, receive: u16) {
        self.receives[usize::from(receive)] = Holder::Free;
        self.free.push(receive);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: every link's share holds the pool, and its queue pairs were destroyed before; the
        // queue is destroyed once, and before `memory` is unregistered.
        let status = unsafe { sys::ibv_destroy_srq(self.receives.as_ptr()) };
        debug_assert_eq!(status, 0, "no queue pair receives by it");
    }
}

const NO_REQUEST: sys::ibv_recv_wr = sys::ibv_recv_wr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null_mut(),
    num_sge: 0,
};

/// Ends a queue pair: it takes no more receives, and its posted work requests come back.
pub(super) fn end_pair(pair: NonNull<sys::ibv_qp>) {
    modify(
        pair,
        sys::ibv_qp_state::IBV_QPS_ERR,
        sys::ibv_qp_attr_mask::IBV_QP_STATE,
    );
}

pub(super) fn modify(pair: NonNull<sys::ibv_qp>, state: u32, fields: sys::ibv_qp_attr_mask) {
    // SAFETY: a C struct of numbers, and of pointers that may be null.
    let none: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
    let mut attributes = sys::ibv_qp_attr {
        qp_state: state,
        min_rnr_timer: SHARED_RETRY_TIMER,
        ..none
    };
    // SAFETY: the queue pair is valid: its inbox, or the caller, ends before it. A failure makes
    // no difference: the queue pair has ended.
    unsafe { sys::ibv_modify_qp(pair.as_ptr(), &mut attributes, fields.0 as i32) };
}

impl State {
    pub(super) fn has_nothing_for(&self, stream: Option<u32>) -> bool {
        let inbox = stream.and_then(|number| self.links.get(&number));
        inbox.is_none_or(|inbox| inbox.came.is_empty())
    }
}
