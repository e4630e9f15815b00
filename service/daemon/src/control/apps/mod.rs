//! Serves applications and peers: their connections, sessions, schemas and names.
//!
//! ```text
//!   socket_file.rs, listeners.rs ─▶ accepting.rs ─┬─▶ connection.rs: one application or operator
//!                                                 └─▶ a runtime (RDMA: by_rdma.rs): a peer
//!   connection.rs ─▶ session.rs ─▶ admission.rs, heaps.rs: may it have a session, how much memory
//!                 ─▶ binding.rs ─▶ descriptor_sets.rs ─▶ turns.rs ─▶ schemas.rs, schema_cache.rs
//!                 ─▶ fitting.rs: an answer in packets
//!   applications.rs: the state of all of these        requests.rs: the pause for a take-over
//!   prefetch.rs: schemas before the first binding      names.rs: addresses of peers
//!   peers.rs: the address, the configuration of links, RDMA
//! ```
//!
//! Invariant: the input is untrusted. A tenant uses at most its share of connections, memory, turns
//! and look-ups, so it delays no other tenant and not the operator.

pub(super) mod accepting;
pub(super) mod admission;
pub(super) mod applications;
mod binding;
#[cfg(feature = "rdma")]
pub(super) mod by_rdma;
pub(in crate::control) mod callers;
pub(super) mod connection;
pub(super) mod descriptor_sets;
mod fitting;
pub(super) mod heaps;
pub(super) mod listeners;
pub(super) mod names;
pub(super) mod peers;
pub(super) mod prefetch;
pub(super) mod requests;
pub(super) mod schema_cache;
pub(super) mod schemas;
pub(super) mod session;
pub(super) mod sessions;
pub(super) mod socket_file;
pub(super) mod turns;
