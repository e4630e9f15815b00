//! The client's engine: a session with the daemon over shared memory, and the calls on it.
//!
//! ```text
//!   futures ──▶ submit (any thread) ──▶ send heap, submission ring ──▶ doorbell ──▶ daemon
//!      ▲                                                                              │
//!      └──── wakers ◀── driver (one thread) ◀── completion ring, receive heap ◀── wake┘
//! ```
//!
//! There is no async runtime. Calls are plain futures. The thread that drives the session wakes
//! them: a thread in [`block_on`], or a background thread. The parts, bottom up:
//!
//! ```text
//!   codec, buffer                    values and messages
//!   tables                           calls, streams, binds and the like, pure
//!   submit                           operations of any thread under one short lock
//!   sync, nudge, drivers             the right to drive, sleep and wake-ups; modelled
//!   ready, connection                state that futures, handlers and the driver share
//!   received, outgoing, serve        blocks and handlers
//!   tasks, drive                     the thread that drives: its turns, handlers and waits
//!   dev, token                       where socket and token come from
//!   open, bind, reconnect            the first connection, and those after a daemon went away
//!   session                          the handle of users
//!   call, stream, raw, workers,
//!   sessions, pump                   the operations of users
//! ```
//!
//! Invariants: a call ends exactly once for its caller (P7), with UNAVAILABLE when the daemon is
//! gone (P9). The daemon's bytes are untrusted: they are checked, and invalid ones end the session,
//! never the process. Every table has a bound in [`limits`] (P10).
//!
//! Absent: any knowledge of schemas, except which methods may be called again (`retry`).

#![forbid(unsafe_code)]

mod bind;
mod buffer;
mod call;
pub mod codec;
mod connection;
mod deadline;
pub mod dev;
mod drive;
mod drivers;
pub mod limits;
mod nudge;
mod open;
mod outgoing;
mod panics;
mod pause;
mod pump;
mod raw;
mod ready;
mod received;
mod reconnect;
mod serve;
mod session;
mod sessions;
mod status;
mod stream;
mod submit;
mod sync;
mod tables;
mod tasks;
pub mod token;
mod workers;

pub use buffer::{Bytes, SendBuffer, SharedBytes};
pub use call::Call;
pub use deadline::Deadline;
pub use open::SessionOptions;
pub use pump::Pump;
pub use ready::HandlerFuture;
pub use received::ReceivedBlock;
pub use serve::{Incoming, Requests, Responder, Service, ServiceInfo};
pub use session::Session;
pub use sessions::{Sessions, block_on};
pub use status::Status;
pub use stream::{Opening, StreamReceiver, StreamSender};
pub use submit::Held;
pub use tables::binds::{Binding, BoundMethod};
pub use tollgate_shm_abi::{Code, metadata};
pub use workers::{OnWorkers, Workers};
