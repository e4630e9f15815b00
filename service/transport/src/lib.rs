//! Links between daemons: a framed protocol over TCP.
//!
//! [`Link`] is the protocol as a pure state machine (`proto.rs`); [`TcpLink`] gives it a socket
//! (`io.rs`). The bytes on the wire are documented on one page, [`mod@frame`]. A link multiplexes
//! calls, of one message or of a stream of them, in both directions, bounds them by credits,
//! coalesces small frames, and sends large messages straight from shared memory.

#![forbid(unsafe_code)]

mod config;
mod error;
mod event;
pub mod frame;
mod handshake;
mod io;
pub mod limits;
mod marshal;
mod proto;
mod rx;
mod seal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tx;

pub use config::{ConfigError, LinkConfig, LinkSetup, PresharedKey, Role, names_one_host};
pub use error::{Blame, LinkError, Reason, SendError};
pub use event::{
    Body, CallHead, Came, Credit, Event, Image, Moved, Queued, StreamCredit, StreamHead,
};
pub use frame::metadata_room;
pub use io::{BodyOutcome, FlushOutcome, LinkIo, OpenError, ReadOutcome, TcpLink, is_loopback};
pub use marshal::DeviceMemory;
pub use proto::{FrozenLink, Link, Unportable};
pub use tollgate_shm_abi::heap::Span;
pub use tollgate_shm_abi::io::Part;
pub use tx::Token;

#[cfg(test)]
mod tests;
