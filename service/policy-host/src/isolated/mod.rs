//! Policies in a separate process, for a provider that doesn't trust the compiler alone.
//!
//! ```text
//!   control plane                 runtime                              policy process of one tenant and runtime
//!   Process ── set-up: code,┐     Channel ── orders, views ─────────▶  evaluate thread: instances
//!    spawn      manifest,   │      checks,  (ring + heap that the       │
//!    kill       config      │      copies    process can only read)     │
//!     │                     │        ◀──── answers ───────────────────  (ring + heap that the daemon copies out of)
//!     ▼                     └───────────────────────────────────────▶  set-up thread: loads, instantiates
//!   pidfd: it ended                                                     (a socket, off the datapath)
//! ```
//!
//! The process is this same executable, started with [`ARGUMENT`], and confined for the rest of its
//! life before it gets any tenant's code ([`confine`]): no root, no capabilities, no files, one
//! socket, no child processes, limited memory. A tenant's compiled code runs there and not in the
//! daemon. An attacker that escapes the compiler's sandbox controls a process that can only give
//! wrong answers about its own tenant's calls.
//!
//! Invariants:
//!
//! - **The process's output is untrusted.** An answer is copied out once and the copy is checked,
//!   by the same code that checks a guest's verdicts ([`crate::batch`]). An instance's answers are
//!   read with the manifest that the daemon parsed.
//! - **Answers come in the order of the orders.** An answer to any but the oldest order ends the
//!   process, so no order is answered twice, and no answer goes to another call. The daemon's
//!   orders also take effect in that order: an instance that inherits a state evaluates after the
//!   state was handed over.
//! - **Nothing waits for the process.** [`Channel`] posts and takes, and never blocks. An order has
//!   a deadline, after which the process is killed. When the process ends, all orders in flight are
//!   handed back at once.
//! - Only views of declared and granted fields enter the shared memory: there is no other way into
//!   it.
//! - A posted order can't be taken back: its views stay in place until its answer has come.
//!
//! | event | result |
//! |---|---|
//! | a guest traps, loops, breaks the ABI | its instance is dead, the order fails; other instances go on |
//! | the process dies, whatever the reason | [`Channel::has_ended`]; all orders in flight fail, all its instances are gone |
//! | it misses a deadline, or sends an invalid answer | the same, after it was killed |
//! | it needs more memory than its limit | its allocation fails: a guest's growth is refused, otherwise the process dies |
//! | the daemon dies | the kernel kills it |
//!
//! Absent: any sharing between processes. The shared state of a policy's instances is in one
//! process and ends with it.

mod channel;
mod confine;
mod instances;
mod process;
mod wire;

pub use channel::{
    Answer, Channel, InstanceHandle, Order, OrderBuilder, Outcome, PostError, Ticket,
};
pub use confine::{ALLOWED, ALLOWED_IN_PART, DescriptorAccess, ProcessLimits, confine};
pub use instances::{ARGUMENT, main};
pub use process::{InstanceSetup, InstantiateError, Process, ProcessConfig};
pub use wire::InstanceId;
