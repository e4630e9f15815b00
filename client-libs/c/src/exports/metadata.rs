//! Metadata of messages.

use std::ffi::c_char;

use super::{
    answer, or_else, tollgate_bytes, tollgate_code, tollgate_metadata, tollgate_status,
    tollgate_str,
};
use crate::args::{bytes, given, given_mut, put, text};
use crate::status::invalid;

#[unsafe(no_mangle)]
pub extern "C" fn tollgate_metadata_new() -> *mut tollgate_metadata {
    Box::into_raw(Box::default())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_metadata_free(metadata: *mut tollgate_metadata) {
    if !metadata.is_null() {
        // SAFETY: live, and from `tollgate_metadata_new`.
        drop(unsafe { Box::from_raw(metadata) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_metadata_clear(metadata: *mut tollgate_metadata) {
    // SAFETY: NULL or live, and nobody else's.
    if let Some(metadata) = unsafe { metadata.as_mut() } {
        *metadata = tollgate_metadata::new();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_metadata_add(
    metadata: *mut tollgate_metadata,
    key: *const c_char,
    value: *const u8,
    len: usize,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or zero-terminated; so many bytes; NULL or live, and nobody else's.
        let (key, value, metadata) = unsafe {
            (
                text(key, "key")?,
                bytes(value, len, "value")?,
                given_mut(metadata, "metadata")?,
            )
        };
        let pushed = metadata.push(key, value);
        pushed.map_err(|error| tollgate_core::Status::from(error).into())
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_metadata_count(metadata: *const tollgate_metadata) -> usize {
    or_else(0, || {
        // SAFETY: NULL or live.
        unsafe { given(metadata, "metadata") }.map(|metadata| metadata.view().len())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_metadata_get(
    metadata: *const tollgate_metadata,
    index: usize,
    key: *mut tollgate_str,
    value: *mut tollgate_bytes,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let view = unsafe { given(metadata, "metadata") }?.view();
        let pair = view.iter().nth(index).ok_or_else(|| {
            let count = view.len();
            invalid(format!(
                "pair {index} doesn't exist: the metadata has {count} pairs"
            ))
        })?;
        // SAFETY: NULL or room for a value.
        unsafe {
            put(key, "key", pair.0.into())?;
            put(value, "value", pair.1.into())?;
        }
        Ok(())
    };
    // SAFETY: no status is given.
    unsafe { answer(std::ptr::null_mut(), work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_metadata_find(
    metadata: *const tollgate_metadata,
    key: *const c_char,
    value: *mut tollgate_bytes,
) -> bool {
    or_else(false, || {
        // SAFETY: NULL or live; NULL or zero-terminated.
        let (metadata, key) = unsafe { (given(metadata, "metadata")?, text(key, "key")?) };
        let Some(found) = metadata.view().get(key) else {
            return Ok(false);
        };
        // SAFETY: NULL or room for a value.
        unsafe { put(value, "value", found.into()) }?;
        Ok(true)
    })
}
