//! Python objects that export memory of a session's heaps: a received block, a buffer that is
//! filled, a buffer that is sent.
//!
//! ```text
//!   memoryview, its slices ──▶ tollgate._core.Memory ──▶ Memory: ReceivedBlock | SendBuffer | SharedBytes ──▶ session
//! ```
//!
//! The block lives as long as the last memoryview of it. The type is made by hand, because the
//! macros offer the buffer protocol to the stable ABI only from 3.11 on. `Py_buffer` has been the
//! same since 3.0, and types have taken these slots since 3.9.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tollgate_core::{ReceivedBlock, SendBuffer, SharedBytes};

use crate::fork::Own;

/// Number of blocks of its receive heap that a session's program holds.
pub(crate) type Count = Arc<AtomicUsize>;

/// The memory that an object exports.
enum Kind {
    Received {
        block: Own<ReceivedBlock>,
        count: Count,
    },
    /// `None` once it is frozen.
    Filling(Option<Own<SendBuffer>>),
    Shared(Own<SharedBytes>),
}

/// The content of one object.
pub(crate) struct Memory {
    kind: Kind,
    exports: AtomicUsize,
}

impl Memory {
    pub(crate) fn received(block: ReceivedBlock, count: &Count) -> Memory {
        count.fetch_add(1, Ordering::Relaxed);
        Memory::new(Kind::Received {
            block: Own::new(block),
            count: Arc::clone(count),
        })
    }

    pub(crate) fn filling(buffer: SendBuffer) -> Memory {
        Memory::new(Kind::Filling(Some(Own::new(buffer))))
    }

    pub(crate) fn shared(bytes: SharedBytes) -> Memory {
        Memory::new(Kind::Shared(Own::new(bytes)))
    }

    fn new(kind: Kind) -> Memory {
        Memory {
            kind,
            exports: AtomicUsize::new(0),
        }
    }

    /// The bytes, if they can't change any more.
    fn constant(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Received { block, .. } => block.get().ok().map(|block| &**block),
            Kind::Shared(bytes) => bytes.get().ok().map(|bytes| &**bytes),
            Kind::Filling(_) => None,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Kind::Received { count, .. } = &self.kind {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A Python object of the type [`memory_type`].
#[repr(C)]
struct Object {
    base: ffi::PyObject,
    /// From a `Box`; null until it is filled in.
    memory: *mut Memory,
}

/// `Py_buffer`, which the stable ABI has from 3.11 on.
#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

// SAFETY: the signature is that of CPython's header, the same from 3.0 on.
unsafe extern "C" {
    fn PyBuffer_FillInfo(
        view: *mut PyBuffer,
        object: *mut ffi::PyObject,
        buf: *mut c_void,
        len: ffi::Py_ssize_t,
        readonly: c_int,
        flags: c_int,
    ) -> c_int;
}

/// Slots of types by number. The stable ABI names 1 and 2 from 3.11 on.
const BF_GETBUFFER: c_int = 1;
const BF_RELEASEBUFFER: c_int = 2;

/// The type of all these objects.
fn memory_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
        let mut slots = [
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(BF_GETBUFFER, get_buffer as *mut c_void),
            slot(BF_RELEASEBUFFER, release_buffer as *mut c_void),
            slot(0, ptr::null_mut()),
        ];
        let mut spec = ffi::PyType_Spec {
            name: c"tollgate._core.Memory".as_ptr(),
            basicsize: size_of::<Object>() as c_int,
            itemsize: 0,
            flags: ffi::Py_TPFLAGS_DEFAULT as u32,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: `spec` and its slots live during the call, end with a zero, and name functions of
        // the slots' signatures; the name lives for ever. A null result is turned into the
        // exception that was set.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec)) }?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py))
}

/// A Python object for memory.
pub(crate) fn object(py: Python<'_>, memory: Memory) -> PyResult<Bound<'_, PyAny>> {
    let of = memory_type(py)?;
    // SAFETY: `of` is a type whose instances have the size of `Object`, all zero at first; only
    // this function makes any.
    let made = unsafe {
        let made = ffi::PyType_GenericAlloc(of.as_type_ptr(), 0);
        Bound::from_owned_ptr_or_err(py, made)
    }?;
    // SAFETY: it is an `Object`, which nobody else knows yet.
    unsafe { (*made.as_ptr().cast::<Object>()).memory = Box::into_raw(Box::new(memory)) };
    Ok(made)
}

/// The memory of an object, if it is one of these.
fn memory_of<'o>(object: &'o Bound<'_, PyAny>) -> Option<&'o Memory> {
    let of = memory_type(object.py()).ok()?;
    if !object.get_type().is(of) {
        return None;
    }
    // SAFETY: an instance of the type is an `Object`. Its memory was filled in by `object`, and is
    // freed with it, which the borrow prevents; it is changed by `freeze` only, which wants that
    // nobody has exported it, and holds the GIL.
    unsafe { (*object.as_ptr().cast::<Object>()).memory.as_ref() }
}

/// The bytes of an object of this type, if they are constant.
pub(crate) fn bytes_of<'o>(object: &'o Bound<'_, PyAny>) -> Option<&'o [u8]> {
    memory_of(object)?.constant()
}

/// The bytes of an object in a send heap.
pub(crate) fn shared_of(object: &Bound<'_, PyAny>) -> Option<SharedBytes> {
    match &memory_of(object)?.kind {
        Kind::Shared(bytes) => bytes.get().ok().cloned(),
        Kind::Received { .. } | Kind::Filling(_) => None,
    }
}

/// Ends the filling of a buffer, which must not be exported.
pub(crate) fn freeze(object: &Bound<'_, PyAny>) -> PyResult<SharedBytes> {
    let refuse = |text: String| Err(PyBufferError::new_err(text));
    match memory_of(object).map(|memory| memory.exports.load(Ordering::Relaxed)) {
        Some(0) => {}
        Some(count) => {
            return refuse(format!(
                "the buffer can't be frozen: {count} memoryviews of it can still be written to"
            ));
        }
        None => return refuse("this object isn't a buffer of a send heap".to_owned()),
    }
    // SAFETY: it is an `Object` with a memory (`memory_of` found one), and the reference that
    // `memory_of` gave has ended. The GIL is held until the kind has changed, so no other thread
    // reads it.
    let memory = unsafe { &mut *(*object.as_ptr().cast::<Object>()).memory };
    let Kind::Filling(buffer) = &mut memory.kind else {
        return refuse("the buffer is frozen already".to_owned());
    };
    match buffer.take().map(Own::into_inner).transpose()?.flatten() {
        Some(buffer) => Ok(buffer.freeze()),
        None => refuse("the buffer is frozen already".to_owned()),
    }
}

/// `bf_getbuffer`.
unsafe extern "C" fn get_buffer(
    object: *mut ffi::PyObject,
    view: *mut PyBuffer,
    flags: c_int,
) -> c_int {
    // SAFETY: CPython calls it with an instance of the type, attached, and with a view to be filled
    // in.
    let (object, memory) = unsafe { (object, (*object.cast::<Object>()).memory) };
    // SAFETY: the memory lives as long as its object; see `memory_of`. Attached, no other reference
    // to it is in use.
    let Some(memory) = (unsafe { memory.as_mut() }) else {
        return refuse(view, "the memory isn't there yet");
    };
    let (bytes, len, readonly) = match &mut memory.kind {
        Kind::Received { block, .. } => match block.get() {
            Ok(block) => (block.as_ptr().cast_mut(), block.len(), 1),
            Err(_) => return refuse(view, FORKED),
        },
        Kind::Shared(bytes) => match bytes.get() {
            Ok(bytes) => (bytes.as_ptr().cast_mut(), bytes.len(), 1),
            Err(_) => return refuse(view, FORKED),
        },
        Kind::Filling(Some(buffer)) => match buffer.get_mut() {
            Ok(buffer) => (buffer.as_mut_ptr(), buffer.len(), 0),
            Err(_) => return refuse(view, FORKED),
        },
        Kind::Filling(None) => return refuse(view, "the buffer is frozen"),
    };
    // SAFETY: `bytes` are `len` bytes that stay where they are until the object dies or is frozen:
    // the view holds a reference to the object, and what is exported isn't frozen. What can't be
    // written is exported read-only.
    let status = unsafe {
        PyBuffer_FillInfo(
            view,
            object,
            bytes.cast(),
            len as ffi::Py_ssize_t,
            readonly,
            flags,
        )
    };
    if status == 0 {
        memory.exports.fetch_add(1, Ordering::Relaxed);
    }
    status
}

const FORKED: &str = "this memory is of a process that this one was forked from";

fn refuse(view: *mut PyBuffer, why: &str) -> c_int {
    // SAFETY: as in `get_buffer`: a refusal leaves the view without an object, and an exception
    // behind. It runs attached.
    unsafe {
        (*view).obj = ptr::null_mut();
        let py = Python::assume_attached();
        PyBufferError::new_err(why.to_owned()).restore(py);
    }
    -1
}

/// `bf_releasebuffer`.
unsafe extern "C" fn release_buffer(object: *mut ffi::PyObject, _view: *mut PyBuffer) {
    // SAFETY: CPython calls it with an instance that it has got a view of before.
    if let Some(memory) = unsafe { (*object.cast::<Object>()).memory.as_ref() } {
        memory.exports.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `tp_dealloc`.
unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: CPython calls it once, with an instance that nobody refers to. Its memory is a box's
    // or null. The type is one of the heap: its instances hold a reference to it.
    unsafe {
        let memory = (*object.cast::<Object>()).memory;
        if !memory.is_null() {
            drop(Box::from_raw(memory));
        }
        let of = ffi::Py_TYPE(object);
        ffi::PyObject_Free(object.cast());
        ffi::Py_DECREF(of.cast());
    }
}
