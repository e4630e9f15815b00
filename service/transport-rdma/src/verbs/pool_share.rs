//! A link's share of a [pool](super::pool).

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys as sys;

use super::lane::Lane;
use super::pool::{Came, Holder, Inbox, Pool, end_pair, modify};
use crate::error::RdmaError;
use crate::limits::RECEIVES;
use crate::link_id::LinkId;
use crate::named::Named;

/// A link's share of a pool: a lane to send from, and receives.
pub(super) struct PoolShare {
    pub(super) pool: Arc<Pool>,
    link: LinkId,
    named: Arc<Named>,
    pub(super) lane: Arc<Lane>,
    /// The number of the first queue pair, while it may get completions.
    stream: Option<u32>,
    /// Messages in ordinary memory; their index here plus [`SPILLED`] is their receive number.
    spilled: Vec<Option<Box<[u8]>>>,
    /// Number of messages that were read and whose credits weren't returned.
    freed: usize,
    came: Vec<Came>,
}

/// The bit that distinguishes a spilled message from a receive.
const SPILLED: u16 = 1 << 15;

impl PoolShare {
    /// Takes a share of the pool; `None`: it is full.
    pub(super) fn take(pool: &Arc<Pool>, link: LinkId, named: &Arc<Named>) -> Option<PoolShare> {
        let (number, before) = pool.take_lane()?;
        Some(PoolShare {
            pool: Arc::clone(pool),
            link,
            named: Arc::clone(named),
            lane: Arc::new(Lane::of_pool(pool, number, before)),
            stream: None,
            spilled: (0..RECEIVES).map(|_| None).collect(),
            freed: 0,
            came: Vec::new(),
        })
    }

    /// Names its link to another poller from now on. It does so at once, too, because that poller
    /// doesn't know of the unread messages.
    pub(super) fn move_to(&mut self, named: &Arc<Named>) {
        let before = std::mem::replace(&mut self.named, Arc::clone(named));
        let mut state = self.pool.state();
        before.remove(self.link);
        let inbox = self.stream.and_then(|number| state.links.get_mut(&number));
        if let Some(inbox) = inbox {
            inbox.named = Arc::clone(named);
        }
        named.add(self.link);
    }

    /// Attributes the completions of these queue pairs to this share from now on.
    ///
    /// # Safety
    /// Both exist until [`PoolShare::leave`].
    pub(super) unsafe fn join(&mut self, stream: NonNull<sys::ibv_qp>, body: NonNull<sys::ibv_qp>) {
        // SAFETY: both queue pairs are there.
        let (number, body) = unsafe { (stream.as_ref().qp_num, body.as_ref().qp_num) };
        let mut state = self.pool.state();
        state.bodies.insert(body, number);
        let inbox = Inbox {
            link: self.link,
            named: Arc::clone(&self.named),
            stream,
            body,
            came: VecDeque::new(),
            unread: 0,
            holds: 0,
            overrun: false,
        };
        state.links.insert(number, inbox);
        self.stream = Some(number);
    }

    /// Shortens the peer's pause before it resends a message that met no receive. Called once the
    /// connection is established.
    ///
    /// # Safety
    /// It is the queue pair that has joined.
    pub(super) unsafe fn hurry(&self, stream: NonNull<sys::ibv_qp>) {
        use sys::ibv_qp_attr_mask as mask;
        // If a device can't set this, its senders pause longer.
        let fields = mask::IBV_QP_STATE | mask::IBV_QP_MIN_RNR_TIMER;
        modify(stream, sys::ibv_qp_state::IBV_QPS_RTS, fields);
    }

    /// Takes the completions of its link.
    pub(super) fn poll(&mut self) -> Result<Vec<Came>, RdmaError> {
        let mut came = std::mem::take(&mut self.came);
        let mut state = self.pool.state();
        let state = &mut *state;
        if state.has_nothing_for(self.stream) {
            self.pool.poll_into(state)?;
        }
        if let Some(inbox) = self.stream.and_then(|number| state.links.get_mut(&number))
            && !inbox.came.is_empty()
        {
            came.extend(inbox.came.drain(..));
            self.named.remove(self.link);
        }
        Ok(came)
    }

    /// Has the poller name its link once more.
    pub(super) fn remind(&self) {
        self.named.add(self.link);
    }

    /// Returns the vector from [`PoolShare::poll`] for reuse.
    pub(super) fn polled(&mut self, mut came: Vec<Came>) {
        came.clear();
        self.came = came;
    }

    /// Keeps a spilled message; returns a number that stands for its receive.
    pub(super) fn keep(&mut self, bytes: Box<[u8]>) -> u16 {
        let free = self.spilled.iter().position(Option::is_none);
        let place = free.expect("the pool spills no more than there are credits");
        self.spilled[place] = Some(bytes);
        SPILLED | place as u16
    }

    /// The bytes of a message.
    pub(super) fn received(&self, receive: u16, len: usize) -> &[u8] {
        if receive & SPILLED != 0 {
            let kept = self.spilled[usize::from(receive & !SPILLED)].as_ref();
            return &kept.expect("it wasn't read")[..len];
        }
        self.pool.bytes_of(receive, len)
    }

    /// Frees a message after reading.
    pub(super) fn repost(&mut self, receive: u16) {
        self.freed += 1;
        let mut state = self.pool.state();
        let state = &mut *state;
        let inbox = self.stream.and_then(|number| state.links.get_mut(&number));
        let Some(inbox) = inbox else { return };
        inbox.unread -= 1;
        if receive & SPILLED != 0 {
            self.spilled[usize::from(receive & !SPILLED)] = None;
            return;
        }
        let holder = state.receives[usize::from(receive)];
        assert_eq!(
            Some(holder),
            self.stream.map(Holder::Link),
            "a message came there"
        );
        inbox.holds -= 1;
        state.free(receive);
    }

    /// Number of messages read since [`PoolShare::post`].
    pub(super) fn freed(&self) -> usize {
        self.freed
    }

    /// Allows their credits to be returned.
    pub(super) fn post(&mut self) -> Result<(), RdmaError> {
        self.freed = 0;
        self.pool.post_soon(&mut self.pool.state())
    }

    /// Ends both queue pairs, so that their posted work requests come back.
    ///
    /// # Safety
    /// They are those that have joined.
    pub(super) unsafe fn stop(&self, stream: NonNull<sys::ibv_qp>, body: NonNull<sys::ibv_qp>) {
        end_pair(stream);
        end_pair(body);
        // Completions that can't be polled are lost with the device.
        let _lost = self.pool.poll();
    }

    /// Frees its receives. The queue pairs are destroyed before other code touches their memory.
    pub(super) fn leave(&mut self) {
        let Some(number) = self.stream.take() else {
            return;
        };
        let mut state = self.pool.state();
        let state = &mut *state;
        let _lost = self.pool.poll_into(state);
        if let Some(inbox) = state.links.remove(&number) {
            state.bodies.remove(&inbox.body);
        }
        self.named.remove(self.link);
        for receive in 0..state.receives.len() {
            if state.receives[receive] == Holder::Link(number) {
                state.free(receive as u16);
            }
        }
        let _lost = self.pool.post(state);
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        self.leave();
    }
}
