//! A call as a handle, for either side and for any type of call. The program may use the two halves
//! separately, also on two threads.
//!
//! ```text
//!            take                        put back
//!   Idle ───────────▶ Busy {then} ──────────────────▶ Idle      `then`: what was asked for meanwhile (half-close, finish)
//!     └── finish, cancel, free ──▶ Gone ◀── the same, or `then` ──┘
//! ```
//!
//! A sender or receiver takes its half out, so nothing is locked while it waits. A non-blocking
//! send that would have to wait continues as a task of the session, with a copy of its message.
//! Each call has at most one such send, which bounds the memory.
//!
//! The call is over for its peer when its halves are dropped: core cancels, or answers INTERNAL. So
//! a handle that is freed early can't leave anything behind.
//!
//! ```text
//!   halves                            the two halves, and whether they are in use
//!   state                             the call: who has its halves, who waits
//!   own, incoming, transfer           what the program does with it
//! ```

mod halves;
mod incoming;
mod own;
mod state;
mod transfer;

pub(crate) use state::Call;
