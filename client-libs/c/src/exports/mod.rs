//! The functions of tollgate.h, and nothing else. They turn pointers into references, and results
//! into codes.
//!
//! The header's requirements are the safety contract of every function: handles are NULL or live
//! and of their kind, structs begin with their size, strings end with a zero byte, results have
//! room. The functions check as much of it as possible.

// The header is the documentation, and has the requirements for callers. A test compares the two
// name by name.
#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    reason = "the names in C, documented in tollgate.h"
)]

mod call;
mod client;
mod health;
mod message;
mod metadata;
mod session;
mod status;

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tollgate_core::{Code, Status};

use crate::call::Call;
use crate::session::Message;
use crate::status::{Ended, StatusObject};

pub type tollgate_code = i32;
pub type tollgate_session = crate::session::State;
pub type tollgate_call = Call;
pub type tollgate_message = Message;
pub type tollgate_status = StatusObject;
pub type tollgate_metadata = tollgate_core::metadata::MetadataBuf;
type DoneFn = unsafe extern "C-unwind" fn(*mut c_void, i32, *mut Message, *const StatusObject);
type HandlerFn = unsafe extern "C-unwind" fn(*mut Call, *mut c_void);
type ReadyFn = unsafe extern "C-unwind" fn(*mut Call, *mut c_void);

pub type tollgate_done_fn = Option<DoneFn>;
pub type tollgate_handler_fn = Option<HandlerFn>;
pub type tollgate_guard_fn = Option<crate::callbacks::GuardFn>;
pub type tollgate_ready_fn = Option<ReadyFn>;
pub use crate::outgoing::tollgate_source;

/// `tollgate_str` of tollgate_block.h.
#[repr(C)]
pub struct tollgate_str {
    data: *const std::ffi::c_char,
    len: usize,
}

/// `tollgate_bytes` of tollgate_block.h.
#[repr(C)]
pub struct tollgate_bytes {
    data: *const u8,
    len: usize,
}

impl From<&str> for tollgate_str {
    fn from(text: &str) -> tollgate_str {
        tollgate_str {
            data: text.as_ptr().cast(),
            len: text.len(),
        }
    }
}

impl From<&[u8]> for tollgate_bytes {
    fn from(bytes: &[u8]) -> tollgate_bytes {
        tollgate_bytes {
            data: bytes.as_ptr(),
            len: bytes.len(),
        }
    }
}

impl tollgate_bytes {
    const NONE: tollgate_bytes = tollgate_bytes {
        data: c"".as_ptr().cast(),
        len: 0,
    };
}

/// Runs the body of a function, and returns its result as a code, and in the status if there is
/// one.
///
/// # Safety
/// The status is NULL, or a live one that nobody else uses.
unsafe fn answer(
    status: *mut StatusObject,
    work: impl FnOnce() -> Result<(), Ended>,
) -> tollgate_code {
    let ended = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => {
            // SAFETY: the caller's.
            if let Some(status) = unsafe { status.as_mut() } {
                status.clear();
            }
            return 0;
        }
        Ok(Err(ended)) => ended,
        Err(_panic) => Ended::With(Status::new(
            Code::INTERNAL,
            "the library panicked, which is a bug: standard error has the details",
        )),
    };
    // SAFETY: the caller's.
    if let Some(status) = unsafe { status.as_mut() } {
        status.set(&ended);
    }
    ended.code()
}

/// Like [`answer`], for functions that return no code.
fn or_else<T>(fallback: T, work: impl FnOnce() -> Result<T, Status>) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(_)) | Err(_) => fallback,
    }
}
