//! A misbehaving peer's actions, for tests of its victim.

use std::ptr;

use rdma_mummy_sys as sys;

use super::Queues;
use crate::verbs::side::Side;
use crate::verbs::work::send_request;
use crate::verbs::work_ids::ID_STREAM;

/// An action of a misbehaving peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// A write of 8 bytes.
    Write,
    /// A write of nothing, with immediate data.
    WriteImmediate,
}

impl Queues {
    /// The address of the receives and their key.
    pub(crate) fn receives_for_attack(&self) -> (u64, u32) {
        let receives = match &self.side {
            Side::Own(own) => &own.receives,
            Side::Shared(share) => &*share.pool.memory,
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
