//! The fence: the verbs that a link uses, as owned values that can't be misused from outside.
//!
//! ```text
//!   Rdma ── Device ── Memory            one context and protection domain per device; what is registered with it
//!            ├─ Pool                   a completion queue, receives and buffers for many links of one poller
//!            └─ Connection ── Queues   an rdma_cm id; two queue pairs on one completion queue, and their buffers, or a seat in a pool
//!                               ├─ Lane     what is sent from that isn't a heap
//!                               └─ Window   what the peer of a one-sided link may write
//! ```
//!
//! What makes it safe: a device touches memory only by work requests, and those are made here, of ranges that were checked. Who posts one
//! leaves what keeps its memory in place ([`Memory`], a [`Block`](tollgate_shm_abi::heap::Block), this crate's own buffers) in
//! [`Queues`], until its completion was taken or the queue pair was destroyed, after which no device touches it (InfiniBand
//! specification 1.4, section 10.2.4.4). A buffer that is posted to be received into can't be looked at. No memory is registered for access by a
//! peer but a one-sided link's window, which nothing but atomic loads and copies out of it ever touches here.
//!
//! Everything is nonblocking. The functions count themselves ([`Counts`](crate::Counts)).
#![allow(unsafe_code)]

mod completions;
mod connection;
mod device;
mod domain;
mod lane;
mod memory;
mod pool;
mod pools;
mod queues;
mod seat;
mod window;
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
pub(crate) use queues::{Completion, Gather, Queue, Queues, To};
