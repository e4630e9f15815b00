//! The datapath: runtime threads that drive the pure engine and own its I/O.
//!
//! ```text
//!   control plane ── Command ──▶ runtime ── Event ──▶ control plane
//!                                   │
//!            ┌──────────────────────┼──────────────────────┐
//!       SessionPort        Engine<Box<Message>>         LinkPort
//!    rings, heaps, wakes    state of each call     frames, connection
//!        (calls/)          (tollgate-engine)          (links/)
//!                                   │
//!                        ┌──────────┴──────────┐
//!                  policy chains           two schemas
//!              (calls/evaluating.rs,  (calls/conversion.rs)
//!              tollgate-policy-chain)
//! ```
//!
//! | Files | Task |
//! |---|---|
//! | `runtime/`, `scheduler.rs`, `tuning.rs`, `limits.rs` | turns, shares, settings, bounds |
//! | `command.rs`, `queue.rs`, `reply.rs`, `binds.rs` | messages from and to the control plane |
//! | `ports.rs`, `carrier.rs`, `rdma.rs`, `landing.rs` | state of sessions and links |
//! | `calls/` | messages of applications, evaluation, conversion |
//! | `links/`, `peer_room.rs` | links that are dialled or accepted, messages of peers |
//! | `placement.rs`, `siblings.rs`, `migration.rs`, `moving.rs` | the tenants' runtimes, moves |
//! | `handover.rs`, `handover/` | hand-over to another process |
//! | `observe/`, `report.rs`, `lines.rs` | status, metrics, log |
//!
//! A runtime is one thread and shares nothing with the others. All sessions, links, services and
//! policies of a tenant are on the runtime that the [`Placement`] names, so no call crosses
//! threads. A tenant can [move](moving) to another runtime as a whole. Absent on purpose: locks,
//! async, and waiting for the control plane (except in a hand-over).

#![forbid(unsafe_code)]

pub mod binds;
mod calls;
mod carrier;
pub mod command;
pub mod handover;
mod landing;
pub mod limits;
pub mod lines;
mod links;
pub mod migration;
mod moving;
mod observe;
pub mod peer_room;
pub mod placement;
mod ports;
mod queue;
pub mod rdma;
pub mod reply;
pub mod report;
mod runtime;
mod scheduler;
mod siblings;
#[cfg(test)]
mod tests;
pub mod tuning;

pub use calls::steering;
pub use command::{Command, Event};
pub use links::target;
pub use observe::durations;
pub use peer_room::PeerRoom;
pub use placement::{Placement, RuntimeIndex};
pub use runtime::{Options, Runtime, spawn};
pub use tuning::Tap;
