//! Memory that a peer may write: one window per one-sided link, see [`ring`](crate::ring).

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use rdma_mummy_sys as sys;

use super::domain::{Domain, failed};
use super::memory::Memory;
use crate::error::RdmaError;

/// A window of type 2: once bound, its key only works for the binding queue pair and only reaches
/// this memory.
pub(super) struct Window {
    window: NonNull<sys::ibv_mw>,
    closed: bool,
    memory: Memory,
}

// SAFETY: a window isn't bound to a thread; this value owns it.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn new(domain: &Arc<Domain>, len: usize) -> Result<Window, RdmaError> {
        let memory = Memory::of_window(domain, len)?;
        // SAFETY: the domain is there.
        let window = unsafe {
            sys::ibv_alloc_mw(domain.protection.as_ptr(), sys::ibv_mw_type::IBV_MW_TYPE_2)
        };
        let window = NonNull::new(window).ok_or_else(|| failed("allocating a memory window"))?;
        Ok(Window {
            window,
            closed: false,
            memory,
        })
    }

    /// Its address, its future key, and the parameters that bind it.
    pub(super) fn binding(&self, len: usize) -> (u64, u32, sys::bind_mw_t) {
        let address = self.memory.own(0, len).as_ptr() as u64;
        assert!(!self.closed, "it is bound when a link begins");
        // SAFETY: the window is there. The key differs from the window's own, as a bind has to.
        let key = unsafe { sys::ibv_inc_rkey(self.window.as_ref().rkey) };
        let bind_info = sys::ibv_mw_bind_info {
            mr: self.memory.registration(),
            addr: address,
            length: len as u64,
            mw_access_flags: sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        };
        let binding = sys::bind_mw_t {
            mw: self.window.as_ptr(),
            rkey: key,
            bind_info,
        };
        (address, key, binding)
    }

    /// Bytes of its memory, see [`Memory::bytes`].
    pub(super) fn bytes(&self) -> [u64; 2] {
        self.memory.bytes()
    }

    /// Two words that the peer may be writing.
    ///
    /// # Panics
    /// If they are outside, or not aligned.
    pub(super) fn words(&self, at: usize) -> [u64; 2] {
        assert!(at.is_multiple_of(8), "words are aligned");
        let start = self.memory.own(at, 16).cast::<AtomicU64>();
        // SAFETY: both words are inside of the pages, which are initialised, aligned, and there
        // while `self` is. Who writes them is a device, as another process would: they are only
        // read by atomic loads.
        let load = |n| unsafe { start.add(n).as_ref() }.load(Ordering::Acquire);
        [load(0), load(1)]
    }

    /// Copies bytes out, once: later reads only use the copy.
    ///
    /// # Panics
    /// If they are outside.
    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let from = self.memory.own(at, bytes.len());
        // SAFETY: the range is inside of the pages, which are initialised; the destination is an
        // exclusive slice of other memory. A device may write meanwhile, as another process would:
        // then the copy holds some mixture of bytes, of which no value is invalid.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        compiler_fence(Ordering::SeqCst);
    }
}

impl Window {
    /// Revokes the key. This must precede destroying the binding queue pair: soft-RoCE would wait
    /// for it.
    pub(super) fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        // SAFETY: the window is there, and given back once, before its memory.
        let status = unsafe { sys::ibv_dealloc_mw(self.window.as_ptr()) };
        debug_assert_eq!(status, 0, "a window can always be given back");
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.close();
    }
}
