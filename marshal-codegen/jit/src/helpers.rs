//! Helpers that emitted code calls: work that is better written once in Rust than emitted many
//! times.
//!
//! They never unwind: nothing in them can panic. Their pointers come from emitted code, which has
//! checked them to be inside buffers that its safe callers borrow.

use std::slice;
use tollgate_marshal::extents::{Gathered, Placed};
use tollgate_marshal::is_utf8;
use tollgate_marshal::program::Program;
use tollgate_marshal::wire::{Varint, all_unknown, check_unknown, read_varint};
use tollgate_schema::MessageId;

use crate::decode::{CONTEXT_NUMBER, CONTEXT_ROOM};
use crate::emit::{HELPERS, Helper};

/// The state of the helpers during one walk.
pub(crate) struct Context<'a> {
    pub(crate) program: &'a Program,
    pub(crate) extents: Extents<'a>,
}

/// The treatment of extents.
pub(crate) enum Extents<'a> {
    Gather(Gathered<'a>),
    Accept {
        image: *mut u8,
        len: usize,
        placed: Placed,
    },
}

/// The state of emitted code and helpers during decoding.
#[repr(C)]
pub(crate) struct DecodeContext<'a> {
    /// The bytes that the block may use.
    pub(crate) room: u64,
    /// A helper's result: the number of a varint.
    pub(crate) number: u64,
    pub(crate) program: &'a Program,
}

const _: () = assert!(std::mem::offset_of!(DecodeContext<'_>, room) == CONTEXT_ROOM as usize);
const _: () = assert!(std::mem::offset_of!(DecodeContext<'_>, number) == CONTEXT_NUMBER as usize);

/// Each helper's name, address and number of parameters.
pub(crate) fn table() -> [(Helper, &'static str, *const u8, usize); HELPERS] {
    [
        (Helper::IsUtf8, "is_utf8", helper_is_utf8 as *const u8, 2),
        (
            Helper::AreBools,
            "are_bools",
            helper_are_bools as *const u8,
            2,
        ),
        (Helper::Extent, "extent", helper_extent as *const u8, 4),
        (Helper::Unknown, "unknown", helper_unknown as *const u8, 4),
        (Helper::Copy, "copy", helper_copy as *const u8, 3),
        (Helper::Zero, "zero", helper_zero as *const u8, 2),
        (
            Helper::PutVarint,
            "put_varint",
            helper_put_varint as *const u8,
            2,
        ),
        (
            Helper::GetVarint,
            "get_varint",
            helper_get_varint as *const u8,
            3,
        ),
        (
            Helper::AllUnknown,
            "all_unknown",
            helper_all_unknown as *const u8,
            4,
        ),
        (
            Helper::CountVarints,
            "count_varints",
            helper_count_varints as *const u8,
            2,
        ),
        (Helper::Unpack, "unpack", helper_unpack as *const u8, 4),
    ]
}

/// Whether the text is UTF-8.
unsafe extern "C" fn helper_is_utf8(text: *const u8, len: u64) -> i64 {
    // SAFETY: the code calls this for parts that it has found to be in bounds, of a buffer that its
    // caller borrows.
    let text = unsafe { slice::from_raw_parts(text, len as usize) };
    i64::from(is_utf8(text))
}

/// Whether every byte is 0 or 1.
unsafe extern "C" fn helper_are_bools(bytes: *const u8, len: u64) -> i64 {
    // SAFETY: as in `helper_is_utf8`.
    let bytes = unsafe { slice::from_raw_parts(bytes, len as usize) };
    i64::from(bytes.iter().all(|b| *b <= 1))
}

/// A value that is an extent: its slot is at offset `at` and has the value `slot`. Returns 0 or a
/// fault's code.
unsafe extern "C" fn helper_extent(
    context: *mut Context<'_>,
    at: u64,
    slot: u64,
    utf8: i64,
) -> i64 {
    let (off, len) = (slot as u32, (slot >> 32) as u32);
    // SAFETY: the context is the one that `gather` or `accept` put on its stack for this call, and
    // passed exclusively.
    let done = match unsafe { &mut (*context).extents } {
        Extents::Gather(gathered) => gathered.extent(off, len),
        Extents::Accept {
            image,
            len: image_len,
            placed,
        } => {
            // SAFETY: pointer and length are those of the image that `accept` has borrowed
            // exclusively; the code holds no reference into it, and this one ends before the code
            // goes on.
            let image = unsafe { slice::from_raw_parts_mut(*image, *image_len) };
            placed.extent(image, at as usize, off, len, utf8 != 0)
        }
    };
    done.map_or_else(|code| i64::from(code as u8), |()| 0)
}

/// Unknown fields of message type `id`. Returns 0 or a fault's code.
unsafe extern "C" fn helper_unknown(
    context: *mut Context<'_>,
    records: *const u8,
    len: u64,
    id: i64,
) -> i64 {
    // SAFETY: as in `helper_extent`; only the shared reference to the program is read.
    let program = unsafe { (*context).program };
    // SAFETY: as in `helper_is_utf8`.
    let records = unsafe { slice::from_raw_parts(records, len as usize) };
    check_unknown(program, MessageId(id as u32), records)
        .map_or_else(|code| i64::from(code as u8), |()| 0)
}

/// Copies a value into a view.
unsafe extern "C" fn helper_copy(to: *mut u8, from: *const u8, len: u64) -> i64 {
    // SAFETY: the code has found the source to be in the image and the destination in the view's
    // room; the view is exclusively borrowed, so they don't overlap.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len as usize) };
    0
}

/// Zeroes part of a block.
unsafe extern "C" fn helper_zero(to: *mut u8, len: u64) -> i64 {
    // SAFETY: the code has found the part to be in the block's room, which its caller owns.
    unsafe { to.write_bytes(0, len as usize) };
    0
}

/// Writes a varint that ends at `end`; returns its start.
unsafe extern "C" fn helper_put_varint(end: *mut u8, mut number: u64) -> *mut u8 {
    let len = (64 - (number | 1).leading_zeros()).div_ceil(7) as usize;
    // SAFETY: the code has found room for the longest varint before `end`.
    let start = unsafe { end.sub(len) };
    for i in 0..len {
        let more = if i + 1 < len { 0x80 } else { 0 };
        // SAFETY: as above; `i` is below the length.
        unsafe { start.add(i).write(number as u8 & 0x7f | more) };
        number >>= 7;
    }
    start
}

/// Reads a varint; returns its end, or null if it is incomplete.
unsafe extern "C" fn helper_get_varint(
    at: *const u8,
    end: *const u8,
    number: *mut u64,
) -> *const u8 {
    // SAFETY: the code stays between the start and the end of the bytes that its caller borrows.
    let bytes = unsafe { slice::from_raw_parts(at, end.offset_from_unsigned(at)) };
    match read_varint(bytes, 0) {
        Ok((value, len)) => {
            // SAFETY: the word is in the context on the caller's stack; `len` is within `bytes`.
            unsafe {
                number.write(value);
                at.add(len)
            }
        }
        Err(_) => std::ptr::null(),
    }
}

/// Whether all records in `at..end` are complete and none is a field of struct `index`.
unsafe extern "C" fn helper_all_unknown(
    context: *const DecodeContext<'_>,
    index: u64,
    at: *const u8,
    end: *const u8,
) -> i64 {
    // SAFETY: the context is on the caller's stack for this call, and its program is only read.
    let program = unsafe { (*context).program };
    // SAFETY: as in `helper_get_varint`.
    let records = unsafe { slice::from_raw_parts(at, end.offset_from_unsigned(at)) };
    let of = program.structs().get(index as usize);
    i64::from(of.is_some_and(|of| all_unknown(of, records)))
}

/// The number of varints in `at..end`; -1 if the last one is incomplete, or one is too long.
unsafe extern "C" fn helper_count_varints(at: *const u8, end: *const u8) -> i64 {
    // SAFETY: as in `helper_get_varint`.
    let bytes = unsafe { slice::from_raw_parts(at, end.offset_from_unsigned(at)) };
    let (mut count, mut run) = (0, 0);
    for byte in bytes {
        run += 1;
        if run > 10 {
            return -1;
        }
        if byte & 0x80 == 0 {
            count += 1;
            run = 0;
        }
    }
    if run == 0 { count } else { -1 }
}

/// Writes the varints in `at..end`, which have been counted, as elements from `to` on.
unsafe extern "C" fn helper_unpack(at: *const u8, end: *const u8, to: *mut u8, kind: u64) -> i64 {
    // SAFETY: as in `helper_get_varint`.
    let bytes = unsafe { slice::from_raw_parts(at, end.offset_from_unsigned(at)) };
    let kind = Varint::from_number(kind);
    let (mut from, mut to) = (0, to);
    while let Ok((number, next)) = read_varint(bytes, from) {
        let value = kind.to_block(number).to_le_bytes();
        // SAFETY: the code has made room for as many elements of this size as there are varints.
        unsafe {
            to.copy_from_nonoverlapping(value.as_ptr(), kind.size());
            to = to.add(kind.size());
        }
        from = next;
    }
    0
}
