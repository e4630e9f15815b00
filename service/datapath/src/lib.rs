//! The datapath: runtime threads that drive the pure engine and own its I/O.
//!
//! ```text
//!   control plane ── Command ──▶ runtime ── Event ──▶ control plane
//!                                   │
//!            ┌──────────────────────┼──────────────────────┐
//!       SessionPort        Engine<Box<Message>>         LinkPort
//!    rings, heaps, wakes    state of each call     frames, connection
//!      (sessions.rs)         (tollgate-engine)         (links.rs)
//!                                   │
//!                        ┌──────────┴──────────┐
//!                  policy chains          two schemas
//!                 (evaluating.rs,        (crossing.rs)
//!              tollgate-policy-chain)
//! ```
//!
//! | Files | Task |
//! |---|---|
//! | `runtime.rs`, `scheduler.rs`, `tuning.rs`, `limits.rs` | turns, shares, settings, bounds |
//! | `command.rs`, `reply.rs`, `binds.rs` | messages from and to the control plane |
//! | `ports.rs` | state of sessions and links |
//! | `sessions.rs`, `deliveries.rs`, `streams.rs`, `landing.rs` | messages of applications |
//! | `links.rs`, `sending.rs`, `wire.rs`, `steering.rs` | messages of peers |
//! | `carrier.rs`, `rdma.rs` | TCP and RDMA |
//! | `target.rs`, `dialling.rs`, `peers.rs` | links that this daemon dials |
//! | `guests.rs`, `strangers.rs`, `peer_room.rs` | links that peers open |
//! | `placement.rs`, `migration.rs`, `moving.rs` | the runtime of each tenant, moves |
//! | `handover.rs`, `handover/` | hand-over to another process |
//! | `report.rs`, `durations.rs`, `traces.rs`, `record.rs`, `lines.rs` | status, metrics, log |
//!
//! A runtime is one thread and shares nothing with the others. All sessions, links, services and
//! policies of a tenant are on the runtime that the [`Placement`] names, so no call crosses
//! threads. A tenant can [move](moving) to another runtime as a whole. Absent on purpose: locks,
//! async, and waiting for the control plane (except in a hand-over).

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
