//! Versions, codes and statuses.

use std::ffi::c_char;
use std::time::Duration;

use tollgate_core::metadata::STATUS_DETAILS;

use super::{
    answer, or_else, tollgate_bytes, tollgate_code, tollgate_metadata, tollgate_status,
    tollgate_str,
};
use crate::args::{bytes, given, given_mut, optional_text};
use crate::status::{END, Ended, StatusObject, WOULD_BLOCK, invalid};

const MAJOR: u32 = 0;
const MINOR: u32 = 2;
const PATCH: u32 = 0;

#[unsafe(no_mangle)]
pub static tollgate_abi_version: u32 = 0;

#[unsafe(no_mangle)]
pub extern "C" fn tollgate_version() -> u32 {
    MAJOR << 16 | MINOR << 8 | PATCH
}

#[unsafe(no_mangle)]
pub extern "C" fn tollgate_version_text() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn tollgate_code_name(code: tollgate_code) -> *const c_char {
    let name = match code {
        0 => c"OK",
        1 => c"CANCELLED",
        2 => c"UNKNOWN",
        3 => c"INVALID_ARGUMENT",
        4 => c"DEADLINE_EXCEEDED",
        5 => c"NOT_FOUND",
        6 => c"ALREADY_EXISTS",
        7 => c"PERMISSION_DENIED",
        8 => c"RESOURCE_EXHAUSTED",
        9 => c"FAILED_PRECONDITION",
        10 => c"ABORTED",
        11 => c"OUT_OF_RANGE",
        12 => c"UNIMPLEMENTED",
        13 => c"INTERNAL",
        14 => c"UNAVAILABLE",
        15 => c"DATA_LOSS",
        16 => c"UNAUTHENTICATED",
        WOULD_BLOCK => c"WOULD_BLOCK",
        END => c"END",
        _ => c"(a code without a name)",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn tollgate_status_new() -> *mut tollgate_status {
    Box::into_raw(Box::default())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_free(status: *mut tollgate_status) {
    if !status.is_null() {
        // SAFETY: a live status, which came from `tollgate_status_new`.
        drop(unsafe { Box::from_raw(status) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_code(status: *const tollgate_status) -> tollgate_code {
    or_else(0, || {
        // SAFETY: NULL or live.
        unsafe { given(status, "status") }.map(|status| status.code)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_message(status: *const tollgate_status) -> tollgate_str {
    or_else(tollgate_str::from(""), || {
        // SAFETY: NULL or live.
        let text = unsafe { given(status, "status") }?.text();
        Ok(tollgate_str {
            data: text.as_ptr().cast(),
            len: text.len(),
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_details(status: *const tollgate_status) -> tollgate_bytes {
    or_else(tollgate_bytes::NONE, || {
        // SAFETY: NULL or live.
        let status = unsafe { given(status, "status") }?;
        let details = status.metadata.view().get(STATUS_DETAILS);
        Ok(details.map_or(tollgate_bytes::NONE, tollgate_bytes::from))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_retry_after_ms(status: *const tollgate_status) -> i64 {
    or_else(-1, || {
        // SAFETY: NULL or live.
        let pause = unsafe { given(status, "status") }?.retry_after;
        Ok(pause.map_or(-1, |pause| {
            i64::try_from(pause.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
        }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_trailers(
    status: *const tollgate_status,
) -> *const tollgate_metadata {
    or_else(std::ptr::null(), || {
        // SAFETY: NULL or live.
        let status = unsafe { given(status, "status") }?;
        Ok(&raw const status.metadata)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_set(
    status: *mut tollgate_status,
    code: tollgate_code,
    message: *const c_char,
) -> tollgate_code {
    let work = || {
        if code < 0 {
            return Err(invalid(format!("{code} isn't a status code: codes are 0 or more")).into());
        }
        // SAFETY: NULL or zero-terminated.
        let text = unsafe { optional_text(message, "message") }?.unwrap_or_default();
        let mut object = StatusObject::default();
        object.code = code;
        object.set_text(text.as_bytes());
        // SAFETY: NULL or live, and nobody else's.
        *unsafe { given_mut(status, "status") }? = object;
        Ok(())
    };
    // SAFETY: no status is given.
    unsafe { answer(std::ptr::null_mut(), work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_set_details(
    status: *mut tollgate_status,
    details: *const u8,
    len: usize,
) -> tollgate_code {
    let work = || {
        // SAFETY: so many bytes, or none.
        let details = unsafe { bytes(details, len, "details") }?;
        // SAFETY: NULL or live, and nobody else's.
        let status = unsafe { given_mut(status, "status") }?;
        status.metadata.remove(STATUS_DETAILS);
        let pushed = status.metadata.push_any(STATUS_DETAILS, details);
        pushed.map_err(|error| Ended::With(error.into()))
    };
    // SAFETY: no status is given.
    unsafe { answer(std::ptr::null_mut(), work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_status_set_retry_after_ms(
    status: *mut tollgate_status,
    pause_ms: u32,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live, and nobody else's.
        let status = unsafe { given_mut(status, "status") }?;
        status.retry_after = Some(Duration::from_millis(pause_ms.into()));
        Ok(())
    };
    // SAFETY: no status is given.
    unsafe { answer(std::ptr::null_mut(), work) }
}
