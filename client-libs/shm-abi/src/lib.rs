//! The shared interface of a Tollgate daemon and an application: segments, rings, descriptors,
//! heaps, wake-ups and control messages, offered as safe primitives.
//!
//! ```text
//!                    rings memfd (both write)
//!   app   ── submission ring ──────────────────────────────▶  daemon
//!         ◀───────────────────────────── completion ring ──
//!         ── send heap    (app writes,   daemon reads)  ───▶
//!         ◀── receive heap (daemon writes, app reads)  ─────
//!         ── doorbell ("look at the submission ring")  ────▶
//!         ◀────── wake ("look at the completion ring") ─────
//!         ◀══════════ control socket, SEQPACKET, fds ══════▶
//! ```
//!
//! Invariants for all other crates:
//!
//! - **P1**: data that a peer wrote is used only after it was copied out and checked, and each
//!   shared word is read once. No Rust reference ever points into memory that an untrusted peer can
//!   write; such memory is accessed by copies and atomics only.
//! - The daemon never blocks on anything that an application holds: it writes only to an eventfd
//!   that the application can't reach, and never reads the one that it can.
//! - Pushing, popping, allocating and freeing never allocate memory.
//!
//! `unsafe` is in four files, each for one reason: `segment` (mappings, copies, tables), `sync`
//! (the words and entries of a ring), `heap` (slices of blocks that one side owns), `io` (a
//! `sendmsg` with parts in shared memory, and the kernel's statistics of a connection). All other
//! crates of the service forbid it.
//!
//! Deliberately absent: growth of heaps, more than one producer or consumer per ring, and any
//! message format (blocks are bytes here; see the schema crate).
//!
//! # Tests
//!
//! ```text
//! cargo test -p tollgate-shm-abi
//! RUSTFLAGS="--cfg loom" cargo test -p tollgate-shm-abi --release --lib --target-dir target/loom -- loom
//! cargo +nightly miri test -p tollgate-shm-abi --lib -- ring:: heap:: buddy::
//! ```
//!
//! The second command model-checks the ring's orderings and its sleep/wake protocol: the same code
//! as in production over loom's atomics. The third runs ring and heaps over ordinary memory,
//! because Miri can't map files.

#![no_std]
#![deny(unsafe_code)]

// Heap offsets are u64 on the wire and usize here; memfds, seals and epoll are Linux's.
#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
)))]
compile_error!("Tollgate's shared memory needs 64-bit little-endian Linux");

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod descriptor;
pub mod limits;
pub mod metadata;
pub mod misbehaved;
pub mod ring;
pub mod secret;
pub mod status;
pub mod stream;
mod sync;
pub mod text;
pub mod w3c;

pub mod blob;
mod buddy;
pub mod control;
pub mod heap;
pub mod io;
pub mod messages;
pub mod segment;
pub mod session;
pub mod wait;
pub mod wake;

pub use misbehaved::Misbehaved;
pub use status::Code;
