//! C arguments: handles, strings, bytes, and structs of other versions.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use tollgate_core::Status;

use crate::status::invalid;

/// The target of a pointer.
///
/// # Safety
/// It is NULL or as the header asks: a handle that wasn't freed, or a struct of its type; for as
/// long as the caller uses it.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Status> {
    // SAFETY: the caller's.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Like [`given`], for changing the target.
///
/// # Safety
/// As there, and nobody else uses it.
pub(crate) unsafe fn given_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Status> {
    // SAFETY: the caller's.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// A counted reference to the target of a handle.
///
/// # Safety
/// As of [`given`]; the handle came from [`Arc::into_raw`].
pub(crate) unsafe fn shared<T>(pointer: *const T, name: &str) -> Result<Arc<T>, Status> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the handle holds a count, by the contract above; this adds one for what is returned.
    unsafe {
        Arc::increment_strong_count(pointer);
        Ok(Arc::from_raw(pointer))
    }
}

/// Writes a result through C's pointer.
///
/// # Safety
/// The pointer is NULL, or one value of `T` may be written there.
pub(crate) unsafe fn put<T>(pointer: *mut T, name: &str, value: T) -> Result<(), Status> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's.
    unsafe { pointer.write(value) };
    Ok(())
}

fn null(name: &str) -> Status {
    invalid(format!("`{name}` is NULL"))
}

/// A zero-terminated string.
///
/// # Safety
/// It is NULL, or zero-terminated for as long as the caller uses it.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(pointer) };
    // The error has the position, not the text, which may be a secret.
    text.to_str().map_err(|error| {
        let at = error.valid_up_to();
        invalid(format!("`{name}` isn't UTF-8 at byte {at}, counted from 0"))
    })
}

/// Like [`text`], but NULL stands for a default.
///
/// # Safety
/// As there.
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Status> {
    match pointer.is_null() {
        true => Ok(None),
        // SAFETY: the caller's.
        false => unsafe { text(pointer, name) }.map(Some),
    }
}

/// `len` bytes.
///
/// # Safety
/// `len` bytes can be read there, or it is NULL or `len` 0.
pub(crate) unsafe fn bytes<'a>(
    pointer: *const u8,
    len: usize,
    name: &str,
) -> Result<&'a [u8], Status> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        // SAFETY: the caller's.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// The longest struct of a newer header, in bytes.
const MAX_STRUCT_BYTES: usize = 4096;

/// A struct that begins with its size, in the layout of the program's header. Fields that an older
/// header lacks become zero. Fields that a newer header adds have to be zero.
///
/// # Safety
/// The pointer is NULL, or to a struct whose first field tells its size. Zero is a value of every
/// field of `T`, which has no padding that matters and no type that isn't a number or a pointer.
pub(crate) unsafe fn sized<T>(
    pointer: *const T,
    least: usize,
    name: &str,
) -> Result<Option<T>, Status> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the size comes first, whatever the version.
    let size = unsafe { pointer.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < least || size > MAX_STRUCT_BYTES {
        return Err(invalid(format!(
            "`{name}.struct_size` is {size} bytes, which isn't a size of that struct: set it to its sizeof"
        )));
    }
    // SAFETY: zero is a value of `T`, by the contract above.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: the program's struct has `size` bytes, ours `known`, and they don't overlap.
    unsafe {
        pointer
            .cast::<u8>()
            .copy_to_nonoverlapping((&raw mut value).cast::<u8>(), size.min(known));
    }
    for at in known..size {
        // SAFETY: within the program's struct.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            return Err(invalid(format!(
                "`{name}` sets byte {at}, but this version of the library knows only the first {known} bytes"
            )));
        }
    }
    Ok(Some(value))
}

/// Writes into a struct that begins with its size as many fields as it has room for.
///
/// # Safety
/// The pointer is to a struct whose first field tells its size, and which may be written. `T` has
/// no padding.
pub(crate) unsafe fn put_sized<T>(
    pointer: *mut T,
    least: usize,
    name: &str,
    mut value: T,
) -> Result<(), Status> {
    // SAFETY: the size comes first, whatever the version.
    let size = unsafe { pointer.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < least || size > MAX_STRUCT_BYTES {
        return Err(invalid(format!(
            "`{name}.struct_size` is {size} bytes, which isn't a size of that struct: set it to its sizeof"
        )));
    }
    // SAFETY: the program's struct has `size` bytes, ours `known`; its size stays what it says.
    unsafe {
        (&raw mut value).cast::<usize>().write(size);
        (&raw const value)
            .cast::<u8>()
            .copy_to_nonoverlapping(pointer.cast::<u8>(), size.min(known));
    }
    Ok(())
}
