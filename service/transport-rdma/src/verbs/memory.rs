//! Registered memory: a heap, or a link's own buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_mummy_sys as sys;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};
use tollgate_shm_abi::heap::Region;

use super::domain::{Domain, last_errno};
use crate::error::RdmaError;
use crate::limits::{HUGE_PAGE, HUGE_WASTE};
use crate::registrations::Held;

/// A range that a device may read, or also write. It stays mapped and registered while this value
/// is held.
pub(crate) struct Memory {
    key: NonNull<sys::ibv_mr>,
    start: NonNull<u8>,
    len: usize,
    held: Holds,
    /// It outlives the registration.
    domain: Arc<Domain>,
}

/// The owner that keeps it mapped.
enum Holds {
    Region(#[allow(dead_code, reason = "held, not looked at")] Region),
    Pages(Pages),
}

// SAFETY: a registration isn't bound to a thread, and the address is only handed to the device.
unsafe impl Send for Memory {}
// SAFETY: as for Send; `&Memory` gives numbers only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Registers a whole heap for sends; for receives as well, if this process may write it.
    pub(super) fn of_region(domain: &Arc<Domain>, region: &Region) -> Result<Memory, RdmaError> {
        let writable = region.is_writable();
        let (start, len) = (region.address(), region.len_bytes());
        let access = if writable { LOCAL_WRITE } else { NONE };
        let key = register(domain, start, len, access).map_err(|error| match error {
            RdmaError::Pinning { errno, device, .. } if errno == Errno::FAULT && !writable => {
                RdmaError::ReadOnly { device, errno }
            }
            other => other,
        })?;
        Ok(Memory {
            key,
            start,
            len,
            held: Holds::Region(region.clone()),
            domain: Arc::clone(domain),
        })
    }

    /// Zeroed pages of this process alone.
    pub(super) fn of_pages(domain: &Arc<Domain>, len: usize) -> Result<Memory, RdmaError> {
        Memory::zeroed(domain, len, LOCAL_WRITE)
    }

    /// The same, with the right to bind a window.
    pub(super) fn of_window(domain: &Arc<Domain>, len: usize) -> Result<Memory, RdmaError> {
        let bind = sys::ibv_access_flags::IBV_ACCESS_MW_BIND;
        Memory::zeroed(domain, len, LOCAL_WRITE | bind)
    }

    fn zeroed(
        domain: &Arc<Domain>,
        len: usize,
        access: sys::ibv_access_flags,
    ) -> Result<Memory, RdmaError> {
        let pages = Pages::new(len);
        let start = pages.start;
        let len = pages.len();
        let key = register(domain, start, len, access)?;
        let huge = pages.huge_bytes();
        domain.huge_bytes.fetch_add(huge, Ordering::Relaxed);
        Ok(Memory {
            key,
            start,
            len,
            held: Holds::Pages(pages),
            domain: Arc::clone(domain),
        })
    }

    /// Its bytes, and those of them in 2 MiB pages.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [self.len as u64, self.huge_bytes()]
    }

    fn huge_bytes(&self) -> u64 {
        match &self.held {
            Holds::Region(_) => 0,
            Holds::Pages(pages) => pages.huge_bytes(),
        }
    }

    /// The registration, to bind a window to.
    pub(super) fn registration(&self) -> *mut sys::ibv_mr {
        self.key.as_ptr()
    }

    /// An element of a work request's list.
    ///
    /// # Panics
    /// If the range leaves the memory: the device must not learn of any other.
    pub(super) fn element(&self, at: usize, len: usize) -> sys::ibv_sge {
        assert!(
            at <= self.len && len <= self.len - at,
            "a range inside of the memory"
        );
        sys::ibv_sge {
            addr: self.start.as_ptr() as u64 + at as u64,
            length: u32::try_from(len).expect("a message is at most 16 MiB"),
            // SAFETY: the registration is there while `self` is.
            lkey: unsafe { self.key.as_ref() }.lkey,
        }
    }

    /// The key that a peer would need to reach it, if it were registered for that.
    #[cfg(test)]
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the registration is there while `self` is.
        unsafe { self.key.as_ref() }.rkey
    }

    /// A range of a link's own buffers.
    ///
    /// # Panics
    /// If the range leaves the memory, or the memory isn't such a buffer.
    pub(super) fn own(&self, at: usize, len: usize) -> NonNull<u8> {
        let Holds::Pages(pages) = &self.held else {
            panic!("a heap's bytes aren't a link's to look at");
        };
        assert!(
            at <= self.len && len <= self.len - at,
            "a range inside of the memory"
        );
        // SAFETY: at <= len, the size of the one allocation that `start` begins.
        unsafe { pages.start.add(at) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the registration was made by ibv_reg_mr and is given back once; work requests
        // that use it hold this value.
        let status = unsafe { sys::ibv_dereg_mr(self.key.as_ptr()) };
        debug_assert_eq!(status, 0, "nothing uses the registration");
        let len = self.len as u64;
        self.domain.pinned_bytes.fetch_sub(len, Ordering::Relaxed);
        let huge = self.huge_bytes();
        self.domain.huge_bytes.fetch_sub(huge, Ordering::Relaxed);
    }
}

const NONE: sys::ibv_access_flags = sys::ibv_access_flags(0);
const LOCAL_WRITE: sys::ibv_access_flags = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;

/// Never registers for a peer: no access is remote.
fn register(
    domain: &Arc<Domain>,
    start: NonNull<u8>,
    len: usize,
    access: sys::ibv_access_flags,
) -> Result<NonNull<sys::ibv_mr>, RdmaError> {
    domain.registrations.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the domain is there while `domain` is. The range is mapped for as long as the caller
    // keeps what it is of, which Memory does; that the device writes only what was posted for
    // receiving is argued in `queues`.
    let key = unsafe {
        sys::ibv_reg_mr(
            domain.protection.as_ptr(),
            start.as_ptr().cast(),
            len,
            access.0 as i32,
        )
    };
    let key = NonNull::new(key).ok_or_else(|| RdmaError::Pinning {
        errno: last_errno(),
        device: domain.name.clone(),
        bytes: len,
        limit: match getrlimit(Resource::Memlock).current {
            Some(bytes) => format!("{bytes} bytes"),
            None => "any number of bytes".to_owned(),
        },
    })?;
    domain.pinned_bytes.fetch_add(len as u64, Ordering::Relaxed);
    Ok(key)
}

impl Held for Region {
    fn address(&self) -> usize {
        Region::address(self).as_ptr() as usize
    }

    fn holders(&self) -> usize {
        Region::holders(self)
    }
}

/// Zeroed pages: of 2 MiB if some are available and little of them is wasted, since a device looks
/// up each page; otherwise ordinary ones.
struct Pages {
    start: NonNull<u8>,
    of: PagesOf,
}

enum PagesOf {
    Heap(Layout),
    /// Mapped huge pages of this many bytes.
    Huge(usize),
}

const PAGE: usize = 4096;

impl Pages {
    fn new(len: usize) -> Pages {
        if let Some(pages) = Pages::huge(len) {
            return pages;
        }
        let layout = Layout::from_size_align(len.max(1), PAGE).expect("buffers are bounded");
        // SAFETY: the layout's size is at least 1.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Pages {
            start,
            of: PagesOf::Heap(layout),
        }
    }

    /// Takes pages that the host has reserved (`vm.nr_hugepages`); usually it has none.
    fn huge(len: usize) -> Option<Pages> {
        let whole = len.next_multiple_of(HUGE_PAGE);
        if len == 0 || whole - len > len / HUGE_WASTE {
            return None;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: a new mapping, at an address that the kernel chooses. Pages are set aside for all
        // of it by the call, so none is missing later.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), whole, protection, flags) };
        Some(Pages {
            start: NonNull::new(start.ok()?.cast())?,
            of: PagesOf::Huge(whole),
        })
    }

    /// The actual length: as requested, or up to the end of the last huge page.
    fn len(&self) -> usize {
        match self.of {
            PagesOf::Heap(layout) => layout.size(),
            PagesOf::Huge(bytes) => bytes,
        }
    }

    fn huge_bytes(&self) -> u64 {
        match self.of {
            PagesOf::Heap(_) => 0,
            PagesOf::Huge(bytes) => bytes as u64,
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let start = self.start.as_ptr();
        match self.of {
            // SAFETY: the pages came from alloc_zeroed with this layout; the registration, dropped
            // before, was what a device knew them by.
            PagesOf::Heap(layout) => unsafe { dealloc(start, layout) },
            PagesOf::Huge(bytes) => {
                // SAFETY: the pages are a mapping of this length, made in `huge`; otherwise as
                // above.
                let _freed = unsafe { munmap(start.cast(), bytes) };
            }
        }
    }
}
