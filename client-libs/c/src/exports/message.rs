//! Received messages, read in place.

use super::{or_else, tollgate_bytes, tollgate_message, tollgate_metadata};
use crate::args::given;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_message_block(
    message: *const tollgate_message,
) -> tollgate_bytes {
    or_else(tollgate_bytes::NONE, || {
        // SAFETY: NULL or live.
        let message = unsafe { given(message, "message") }?;
        Ok(tollgate_bytes::from(&*message.block))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_message_metadata(
    message: *const tollgate_message,
) -> *const tollgate_metadata {
    or_else(std::ptr::null(), || {
        // SAFETY: NULL or live.
        let message = unsafe { given(message, "message") }?;
        Ok(std::ptr::from_ref(message.block.metadata()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_message_trailers(
    message: *const tollgate_message,
) -> *const tollgate_metadata {
    or_else(std::ptr::null(), || {
        // SAFETY: NULL or live.
        let message = unsafe { given(message, "message") }?;
        Ok(std::ptr::from_ref(message.block.trailers()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_message_free(message: *mut tollgate_message) {
    or_else((), || {
        if !message.is_null() {
            // SAFETY: live, and from this library, which boxes messages.
            drop(unsafe { Box::from_raw(message) });
        }
        Ok(())
    });
}
