//! Policies in a process of their own, for a provider who doesn't trust the compiler alone.
//!
//! ```text
//!   control plane                 runtime                              policy process of one tenant and runtime
//!   Process ── seat: code, ─┐     Channel ── orders, views ─────────▶  judge thread: instances, in seats
//!    spawn      manifest,   │      checks,  (ring + heap that the       │
//!    kill       config      │      copies    process can only read)     │
//!     │                     │        ◀──── answers ───────────────────  (ring + heap that the daemon copies out of)
//!     ▼                     └───────────────────────────────────────▶  set-up thread: loads, instantiates
//!   pidfd: it ended                                                     (a socket, off the datapath)
//! ```
//!
//! The process is this very executable, started with [`ARGUMENT`], and confined for the rest of its life before it gets a byte of
//! anybody's code ([`confine`]): no root, no capabilities, no files, no sockets but the one it has, no processes, limited memory. Code that a tenant
//! uploaded, compiled, runs there and not in the daemon; so whoever breaks out of the sandbox that the compiler makes has a process
//! that can do nothing but answer wrongly about its own tenant's calls.
//!
//! Invariants:
//!
//! - **All that the process says is an allegation.** An answer is copied out once and the copy is checked, by the same code
//!   that checks a guest's verdicts ([`crate::batch`]); a seat's answers are read by the manifest that the daemon parsed.
//! - **Answers come in the order of the orders.** An answer that isn't for the oldest order is the end of the process: so nothing
//!   is answered twice, or for another call. Whatever the daemon orders takes effect in that order, too: a seat that
//!   inherits a state judges after the state was handed over.
//! - **Nobody waits for it.** [`Channel`] posts and takes, and never blocks; an order has a deadline, after which the process is
//!   killed; and whatever was under way when it ends is handed back at once.
//! - Only views of declared and granted fields enter the shared memory: there is no other way into it.
//! - Once posted, an order can't be taken back: its views stay where they are until its answer has come.
//!
//! | what happens | what follows |
//! |---|---|
//! | a guest traps, loops, breaks the ABI | its seat is dead, the order fails; other seats go on |
//! | the process dies, whatever the reason | [`Channel::has_ended`]; all that is under way fails, all its seats are gone |
//! | it doesn't answer in time, or answers nonsense | the same, after it was killed |
//! | it wants more memory than its limit | its allocation fails: a guest's growth is refused, else it dies |
//! | the daemon dies | the kernel kills it |
//!
//! Absent: any sharing between processes. What the instances of a policy share lives and ends with the process.

mod channel;
mod confine;
mod process;
mod seats;
mod wire;

pub use channel::{Answer, Channel, Judgement, Order, Outcome, PostError, Seat, Ticket};
pub use confine::{ALLOWED, ALLOWED_IN_PART, Doors, ProcessLimits, confine};
pub use process::{Process, ProcessConfig, SeatError, Seating};
pub use seats::{ARGUMENT, main};
pub use wire::SeatId;
