//! A device's protection domain, and reasons why calls fail.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rdma_mummy_sys as sys;
use rustix::io::Errno;

use crate::error::RdmaError;

/// The contexts that librdmacm opened: one per device, owned by it, and open while the list is
/// held.
pub(super) struct Contexts(pub(super) NonNull<*mut sys::ibv_context>);

// SAFETY: the list is memory of librdmacm's that nobody changes; contexts may be used by all
// threads (verbs are thread-safe).
unsafe impl Send for Contexts {}
// SAFETY: as for Send; it is only read.
unsafe impl Sync for Contexts {}

impl Drop for Contexts {
    fn drop(&mut self) {
        // SAFETY: the list is one that rdma_get_devices returned, and it is freed once. Every
        // Device holds this value, so nothing uses the contexts any more.
        unsafe { sys::rdma_free_devices(self.0.as_ptr()) }
    }
}

/// One device's protection domain, to which queue pairs and memory belong.
pub(super) struct Domain {
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) protection: NonNull<sys::ibv_pd>,
    pub(super) name: String,
    pub(super) registrations: AtomicU64,
    pub(super) pinned_bytes: AtomicU64,
    pub(super) huge_bytes: AtomicU64,
    pub(super) _contexts: Arc<Contexts>,
}

// SAFETY: verbs may be called by all threads with the same context and protection domain
// (libibverbs is thread-safe); the rest is Sync.
unsafe impl Send for Domain {}
// SAFETY: as for Send.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything that was made in the domain holds this value, so nothing is left in
        // it; it is given back once.
        let status = unsafe { sys::ibv_dealloc_pd(self.protection.as_ptr()) };
        debug_assert_eq!(status, 0, "nothing is left in the domain");
    }
}

/// Checks the result of a call that returns 0, an errno, or -1 with errno.
pub(super) fn check(doing: &'static str, status: i32) -> Result<(), RdmaError> {
    match status {
        0 => Ok(()),
        -1 => Err(failed(doing)),
        errno => Err(RdmaError::Call {
            doing,
            errno: Errno::from_raw_os_error(errno.abs()),
        }),
    }
}

/// The error of a call that reports it in errno.
#[cold]
pub(super) fn failed(doing: &'static str) -> RdmaError {
    RdmaError::Call {
        doing,
        errno: last_errno(),
    }
}

#[cold]
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
