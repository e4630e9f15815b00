//! The datapath: runtime threads that drive the pure engine and own its I/O.
//!
//! ```text
//!   control plane ── Command ──▶ runtime ── Event ──▶ control plane
//!                                   │
//!            ┌──────────────────────┼─────────────────────┐
//!      SessionPort            Engine<Box<Message>>     LinkPort
//!   rings, heaps, wakes     what happens to a call    frames, socket
//!   (sessions.rs)             (its own crate)          (links.rs, sending.rs; which link and by what: dialling.rs, carrier.rs)
//!                           │               │
//!                 chains (policies.rs)   two schemas (crossing.rs)
//!                           │
//!            slot.rs: who decides → version.rs: an instance is asked, or a process (apart.rs)
//!            parked.rs: calls that have stopped on their way
//!            durations.rs, traces.rs: what is told of calls that have ended
//!   whose ports have a turn: shares.rs
//! ```
//!
//! A runtime is one thread, and shares nothing with the others: a tenant's sessions, links, services and policies all live on
//! the runtime that the [`Placement`] names, so no call ever crosses threads. A tenant can [move](moving) to another one, whole. Absent on
//! purpose: locks, async, and waiting for the control plane.

#![forbid(unsafe_code)]

pub mod binds;
mod carrier;
pub mod command;
mod crossing;
mod deliveries;
mod dialling;
pub mod durations;
mod evaluating;
mod guests;
pub mod handover;
mod landing;
pub mod limits;
pub mod lines;
mod links;
pub mod migration;
mod moving;
pub mod peer_room;
mod peers;
pub mod placement;
mod ports;
pub mod rdma;
mod record;
pub mod reply;
pub mod report;
mod runtime;
mod scheduler;
mod sending;
mod sessions;
pub mod steering;
mod strangers;
mod streams;
pub mod target;
#[cfg(test)]
mod tests;
mod traces;
pub mod tuning;
mod wire;

pub use command::{Command, Event};
pub use peer_room::PeerRoom;
pub use placement::Placement;
pub use runtime::{Options, Runtime, spawn};
pub use tuning::Tap;
