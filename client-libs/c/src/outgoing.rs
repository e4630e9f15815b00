//! Outgoing messages: C's generated writer writes straight into the send heap.
//!
//! ```text
//!   Outgoing::new ── writer, no buffer ──▶ len, extents ──▶ core measures, allocates ──▶ writer, into the heap
//! ```
//!
//! The library calls a writer once to measure and once to write. Extents are values that the writer
//! lists instead of copying. An extent that is exactly a frozen buffer of the session is referred
//! to in place; the others are copied behind the block.
//!
//! Memory borrowed from C is valid until the function that lent it returns. A message that hasn't
//! been written by then is [detached](Outgoing::detach), which copies it.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_core::codec::{Encode, Measure, Measured, Sink};
use tollgate_core::{SharedBytes, Status};

use crate::session::State;
use crate::status::invalid;

/// `TOLLGATE_MAX_EXTENTS` of tollgate_block.h.
const MAX_EXTENTS: usize = 64;
/// `TOLLGATE_EXTENT_MIN`.
const EXTENT_MIN: usize = tollgate_core::codec::EXTENT_MIN;

/// `tollgate_error` of tollgate_block.h.
const WRITTEN: i32 = 0;
const TOO_SMALL: i32 = 1;
const TOO_DEEP: i32 = 2;
const TOO_LARGE: i32 = 3;

/// `tollgate_extent` of tollgate_block.h.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, unreachable_pub, reason = "as in C")]
pub struct tollgate_extent {
    data: *const u8,
    len: u32,
}

/// `tollgate_writer` of tollgate_block.h.
#[repr(C)]
#[allow(non_camel_case_types, unreachable_pub, reason = "as in C")]
pub struct tollgate_writer {
    data: *mut u8,
    capacity: usize,
    extents: *mut tollgate_extent,
    extent_capacity: usize,
    extent_min: usize,
    len: usize,
    extent_count: usize,
    error: i32,
    extent_bytes_: usize,
    depth_: u32,
}

/// A writer function of C.
pub(crate) type WriteFn = unsafe extern "C-unwind" fn(*mut tollgate_writer, *const c_void) -> i32;

/// C's description of a message to send.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, unreachable_pub, reason = "as in C")]
pub struct tollgate_source {
    /// Writes the value; NULL: `value` is a block of `len` bytes.
    pub(crate) write: Option<WriteFn>,
    /// The value, or the block.
    pub(crate) value: *const c_void,
    /// The length of a block, in bytes.
    pub(crate) len: usize,
}

/// A measured message.
pub(crate) struct Outgoing {
    content: Mutex<Content>,
    len: usize,
    too_deep: bool,
    too_large: bool,
    written: AtomicBool,
    changed: AtomicBool,
}

struct Content {
    block: Block,
    extents: Vec<Extent>,
}

enum Block {
    Borrowed(tollgate_source),
    Owned(Vec<u8>),
}

/// A value outside the block.
enum Extent {
    Borrowed(*const u8, usize),
    Shared(SharedBytes),
    Owned(Vec<u8>),
}

// SAFETY: the pointers are followed by `Outgoing::new`, by `detach`, and by `write` while the
// content is borrowed. All of that happens within the one call of C's that brought them, on its
// thread: what outlives that call was detached, and has no pointers any more.
unsafe impl Send for Outgoing {}
// SAFETY: as above; what changes lies behind a lock or is atomic.
unsafe impl Sync for Outgoing {}

impl Outgoing {
    /// Measures a message from C.
    ///
    /// # Safety
    /// `source` is as tollgate.h asks: its writer reads its value, or its value is a block of its
    /// length; valid until the message is written or detached.
    pub(crate) unsafe fn new(source: tollgate_source, session: &State) -> Result<Outgoing, Status> {
        let mut outgoing = Outgoing {
            content: Mutex::new(Content {
                block: Block::Borrowed(source),
                extents: Vec::new(),
            }),
            len: source.len,
            too_deep: false,
            too_large: false,
            written: AtomicBool::new(false),
            changed: AtomicBool::new(false),
        };
        let Some(write) = source.write else {
            if source.value.is_null() || source.len == 0 {
                return Err(invalid(
                    "the message has no writer and is no block: `write` is NULL, and `value` is, too, or `len` is 0",
                ));
            }
            return Ok(outgoing);
        };
        let pass = Pass::run(write, source.value, &mut []);
        match pass.error {
            WRITTEN | TOO_SMALL if pass.len > 0 => {}
            WRITTEN | TOO_SMALL => return Err(invalid("the message's writer wrote nothing")),
            TOO_DEEP => outgoing.too_deep = true,
            TOO_LARGE => outgoing.too_large = true,
            error => {
                return Err(invalid(format!(
                    "the message's writer returned {error}, which isn't a tollgate_error"
                )));
            }
        }
        outgoing.len = pass.len;
        let content = outgoing
            .content
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for extent in pass.extents() {
            let (at, len) = (extent.data, extent.len as usize);
            content
                .extents
                .push(match session.shared_at(at.addr(), len) {
                    Some(shared) => Extent::Shared(shared),
                    None => Extent::Borrowed(at, len),
                });
        }
        Ok(outgoing)
    }

    /// Copies everything that hasn't been written yet, so that no memory of C is needed any more.
    pub(crate) fn detach(&self) {
        if self.written.load(Ordering::Acquire) {
            return;
        }
        let mut block = vec![0; self.len];
        let mut content = self.lock();
        self.fill(&content, &mut block);
        content.block = Block::Owned(block);
        for extent in &mut content.extents {
            if let Extent::Borrowed(..) = extent {
                *extent = Extent::Owned(extent.bytes().to_vec());
            }
        }
    }

    /// Fails if the value changed between measuring and writing.
    pub(crate) fn check_unchanged(&self) -> Result<(), Status> {
        match self.changed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(invalid(
                "the message's value was changed while it was written",
            )),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the block itself.
    fn fill(&self, content: &Content, room: &mut [u8]) {
        let source = match &content.block {
            Block::Owned(block) => return room.copy_from_slice(block),
            Block::Borrowed(source) => source,
        };
        let Some(write) = source.write else {
            // SAFETY: the source is a block of `len` bytes, as the contract of `new` says, and
            // `room` is as long.
            let block =
                unsafe { std::slice::from_raw_parts(source.value.cast::<u8>(), source.len) };
            return room.copy_from_slice(block);
        };
        let pass = Pass::run(write, source.value, room);
        let same = pass.error == WRITTEN
            && pass.len == self.len
            && pass.extents().len() == content.extents.len()
            && pass
                .extents()
                .iter()
                .zip(&content.extents)
                .all(|(new, old)| {
                    let old = old.bytes();
                    (new.data, new.len as usize) == (old.as_ptr(), old.len())
                });
        if !same {
            self.changed.store(true, Ordering::Release);
            room.fill(0);
        }
    }

    /// Claims the block and lists the extents. Returns the start of the block.
    fn lay_out<S: Sink>(&self, content: &Content, sink: &mut S) -> u32 {
        let at = sink.claim(self.len, 8);
        for extent in &content.extents {
            let referred = match extent {
                Extent::Shared(shared) => sink.refer(shared),
                Extent::Borrowed(..) | Extent::Owned(_) => None,
            };
            if referred.is_none() {
                sink.extent(extent.bytes());
            }
        }
        at
    }
}

impl Extent {
    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: the writer listed so many readable bytes, as tollgate.h asks of it; see
            // `Outgoing` for how long.
            Extent::Borrowed(at, len) => unsafe { std::slice::from_raw_parts(*at, *len) },
            Extent::Shared(shared) => shared,
            Extent::Owned(bytes) => bytes,
        }
    }
}

/// One call of a writer.
struct Pass {
    error: i32,
    len: usize,
    count: usize,
    list: [MaybeUninit<tollgate_extent>; MAX_EXTENTS],
}

impl Pass {
    fn run(write: WriteFn, value: *const c_void, room: &mut [u8]) -> Pass {
        let mut pass = Pass {
            error: WRITTEN,
            len: 0,
            count: 0,
            list: [const { MaybeUninit::uninit() }; MAX_EXTENTS],
        };
        let data = match room.is_empty() {
            true => std::ptr::null_mut(),
            false => room.as_mut_ptr(),
        };
        let mut writer = tollgate_writer {
            data,
            capacity: room.len(),
            extents: pass.list.as_mut_ptr().cast(),
            extent_capacity: MAX_EXTENTS,
            extent_min: EXTENT_MIN,
            len: 0,
            extent_count: 0,
            error: WRITTEN,
            extent_bytes_: 0,
            depth_: 0,
        };
        // SAFETY: a writer of the stubs' kind, which stays within `capacity` and `extent_capacity`,
        // and reads the value that came with it; its buffer and list outlive the call.
        pass.error = unsafe { write(&raw mut writer, value) };
        pass.len = writer.len;
        pass.count = writer.extent_count.min(MAX_EXTENTS);
        pass
    }

    fn extents(&self) -> &[tollgate_extent] {
        let list = self.list[..self.count].as_ptr().cast();
        // SAFETY: the writer has listed as many as it counts, as tollgate.h asks of it.
        unsafe { std::slice::from_raw_parts(list, self.count) }
    }
}

/// The message for core: borrowed for a call that ends before it, shared with a call that may
/// outlive it.
pub(crate) struct OutgoingMessage<O>(pub(crate) O);

impl<O: Deref<Target = Outgoing>> Encode for OutgoingMessage<O> {
    fn measure_within(&self, session: u64) -> Measured {
        let outgoing = &*self.0;
        let mut measure = Measure::within(0, session);
        outgoing.lay_out(&outgoing.lock(), &mut measure);
        let mut measured = measure.finish();
        measured.too_deep = outgoing.too_deep;
        if outgoing.too_large {
            measured.total = usize::MAX;
        }
        measured
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        let outgoing = &*self.0;
        let content = outgoing.lock();
        let at = outgoing.lay_out(&content, sink);
        sink.fill(at, outgoing.len, |room| outgoing.fill(&content, room));
        outgoing.written.store(true, Ordering::Release);
    }
}
