//! Tollgate for C: sessions, calls and servers behind the header `include/tollgate.h`.
//!
//! ```text
//!   C ──▶ exports (pointers checked, panics caught) ──▶ session, call (safe) ──▶ tollgate-core
//!                        │                                  ▲
//!                        └── outgoing: C's writer, straight into the send heap
//! ```
//!
//! Invariants: no thread is started, and a program's functions (handlers, completions, readiness)
//! run on the threads that call `tollgate_session_serve` or `tollgate_session_drive`, with none of
//! the library's locks held; only writers run under one. Nothing unwinds into C. The guard of
//! `include/tollgate_cpp.h` catches C++ exceptions from such functions. A handle keeps everything
//! that it needs, so it may be freed after its session was closed.
//!
//! Absent: knowledge of schemas (the generated stubs have that).
//!
//! `unsafe` is in `args`, `callbacks`, `outgoing` and `exports`. Sessions and calls are safe code.

mod args;
mod call;
mod callbacks;
mod exports;
mod outgoing;
mod served;
mod session;
mod status;
