//! The client's engine: a session with the daemon over shared memory, and the calls on it.
//!
//! ```text
//!   futures ──▶ submit (any thread) ──▶ send heap, submission ring ──▶ doorbell ──▶ daemon
//!      ▲                                                                              │
//!      └──── wakers ◀── driver (one thread) ◀── completion ring, receive heap ◀── wake┘
//! ```
//!
//! There is no async runtime: calls are plain futures, woken by whichever thread drives the session ([`block_on`], or a
//! background thread). The parts, from the inside: `calls`, `streams`, `space` and `binds` are pure tables; `submit` is what any thread
//! does under one short lock; `driver` is what one thread does; `call`, `stream` and `serve` are the futures on top; [`codec`] writes
//! and reads messages; `buffer` holds what is sent without a copy; `reopen` opens a
//! session anew whose daemon went away.
//!
//! Invariants: a call ends exactly once for its caller (P7), with UNAVAILABLE when the daemon is gone (P9); what the daemon
//! writes is checked like anyone's bytes, and nonsense ends the session, never the process; every table has a bound in
//! [`limits`] (P10).
//!
//! Absent: any knowledge of schemas, but for which methods may be called again (`retry`).

#![forbid(unsafe_code)]

mod binds;
mod buffer;
mod call;
mod calls;
pub mod codec;
mod deadline;
mod driver;
mod driving;
pub mod limits;
mod nudge;
mod panics;
mod pause;
mod reopen;
mod retry;
mod serve;
mod session;
mod space;
mod status;
mod stream;
mod streams;
mod submit;
pub mod token;
mod workers;

pub use buffer::{Bytes, SendBuffer, SharedBytes};
pub use call::{Call, ReceivedBlock};
pub use deadline::Deadline;
pub use driving::{Pump, Sessions, block_on};
pub use serve::{HandlerFuture, Incoming, Requests, Responder, Service, ServiceInfo};
pub use session::{Binding, BoundMethod, Held, Session, SessionOptions};
pub use status::Status;
pub use stream::{Opening, StreamReceiver, StreamSender};
pub use tollgate_shm_abi::{Code, metadata};
pub use workers::{OnWorkers, Workers};
