//! The fence: the verbs that a link uses, as owned values that can't be misused from outside.
//!
//! ```text
//!   Rdma ── Device ── Memory            one context and protection domain per device; registered memory
//!            ├─ Pool                   a completion queue, receives and buffers for many links of one poller
//!            └─ Connection ── Queues   an rdma_cm id; two queue pairs on one completion queue, and their buffers, or a share in a pool
//!                               ├─ Lane     send memory outside heaps
//!                               └─ Window   memory that the peer of a one-sided link may write
//! ```
//!
//! Safety argument: a device touches memory only by work requests, and those are made here, of
//! checked ranges. Posting one leaves the owner of its memory ([`Memory`], a
//! [`Block`](tollgate_shm_abi::heap::Block), this crate's own buffers) in [`Queues`] until its
//! completion was taken or the queue pair was destroyed. After that no device touches the memory
//! (InfiniBand specification 1.4, section 10.2.4.4). A buffer that is posted as a receive can't be
//! read. The only memory registered for access by a peer is a one-sided link's window, and only
//! atomic loads and copies out of it ever touch the window here.
//!
//! Everything is nonblocking. The functions count their own calls ([`Counts`](crate::Counts)).
#![allow(unsafe_code)]

mod completions;
mod connection;
mod device;
mod domain;
mod lane;
mod memory;
mod pool;
mod pool_share;
mod pools;
mod queues;
mod side;
mod window;
mod work;
mod work_ids;

pub(crate) use connection::{
    Connection, Event, EventKind, Listener, is_consequence, is_overlong, sentence_of,
};
pub use device::{DeviceInfo, Rdma};
pub(crate) use memory::Memory;
pub(crate) use pool::Pool;
pub(crate) use pools::Pools;
#[cfg(test)]
pub(crate) use queues::Attack;
pub(crate) use queues::Queues;
pub(crate) use work::{Completion, Gather, Queue, To};
