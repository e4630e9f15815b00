//! Work requests: what a link asks of a queue pair, and the device's completions.

use std::collections::VecDeque;
use std::sync::Arc;

use rdma_mummy_sys as sys;

use super::memory::Memory;

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

/// Sends of one queue pair.
#[derive(Default)]
pub(super) struct Sending {
    /// The number of the next message.
    pub(super) next: u64,
    /// All messages before this one are complete.
    pub(super) complete: u64,
    /// Heaps that are sent from, until the messages are complete.
    pub(super) held: VecDeque<(u64, Arc<Memory>)>,
    /// Requests not yet handed to the device; the elements of each are a range of `elements`.
    pub(super) requests: Vec<(sys::ibv_send_wr, usize)>,
    pub(super) elements: Vec<sys::ibv_sge>,
}

/// A send with this number of elements; `ring` fills them in.
pub(super) fn send_request(
    id: u64,
    elements: usize,
    flags: u32,
    immediate: Option<u32>,
) -> sys::ibv_send_wr {
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
