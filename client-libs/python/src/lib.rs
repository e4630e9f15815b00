//! `tollgate._core`: the native part of the Python library, on top of the client's engine.
//!
//! ```text
//!   tollgate (Python: names, types, threads, event loops)
//!      │
//!   session, serve ── waiting ──▶ tollgate-core
//!      │                │
//!   encode, decode ── tables ◀── tollgate_block.py, beside the stubs
//!      │
//!   held ──▶ memoryview
//! ```
//!
//! No Python code runs on the thread that drives a session, and no waiting thread holds a lock of
//! Python. A received block lives as long as a view or memoryview of it. All state of a session
//! knows the process that opened it (`fork`).
//!
//! Absent: names for users and their documentation, which are in the package `tollgate`.

#![deny(unsafe_code)]

mod common;
mod convert;
mod decode;
mod encode;
mod fork;
mod health;
#[allow(unsafe_code, reason = "the buffer protocol is made of raw pointers")]
mod held;
mod serve;
mod session;
mod stubs;
mod tables;
mod waiting;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::convert::extended;
    #[pymodule_export]
    use crate::decode::to_owned;
    #[pymodule_export]
    use crate::encode::encode;
    #[pymodule_export]
    use crate::fork::after_fork;
    #[pymodule_export]
    use crate::health::Health;
    #[pymodule_export]
    use crate::serve::{Acceptor, Incoming};
    #[pymodule_export]
    use crate::session::{PySession, Receiver, SendBuffer, Sender};
    #[pymodule_export]
    use crate::stubs::tables;
    #[pymodule_export]
    use crate::tables::Tables;
    #[pymodule_export]
    use crate::waiting::Op;

    /// Which tables it reads: `tollgate_block.py` asks.
    #[pymodule_export]
    const TABLES_VERSION: u32 = 1;
}
