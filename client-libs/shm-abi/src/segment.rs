//! Segments: sealed memfds, their mappings, and the only functions that copy into and out of them.
//!
//! | segment | app | daemon | seals |
//! |---|---|---|---|
//! | rings | read, write | read, write | SHRINK GROW SEAL |
//! | send heap | read, write | read | SHRINK GROW SEAL |
//! | receive heap | read | read, write (mapped before the seal) | SHRINK GROW SEAL FUTURE_WRITE |
//!
//! ```text
//! rings:  0                       4096                 4096+R               4096+2R
//!         ┌───────────────────────┬────────────────────┬────────────────────┐
//!         │ header: magic u64     │ submission ring    │ completion ring    │
//!         │ version u32           │ (see `ring`)       │                    │
//!         │ ring capacity u32     │                    │                    │
//!         │ rest zero             │                    │                    │
//!         └───────────────────────┴────────────────────┴────────────────────┘   R = a ring, in whole pages
//! ```
//! The header is for people with debuggers: no code reads it, and sizes are sent on the control
//! socket.
//!
//! Invariants: a mapped memfd can't shrink, so touching its pages can't raise SIGBUS; and a mapping
//! lives as long as anything that points into it, because every such object holds an `Arc` of it.
#![allow(unsafe_code)]

use crate::limits::PAGE;
use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, compiler_fence};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// The start of the rings segment: "TOLLGATE" in memory order.
pub const RINGS_MAGIC: u64 = u64::from_le_bytes(*b"TOLLGATE");

/// The version of this crate's formats in shared memory.
pub const ABI_VERSION: u32 = 1;

/// The seals of every segment.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// This process's access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// The origin of a mapping's bytes, which determines how they are freed.
enum Backing {
    /// A mapping: of a sealed memfd, or anonymous.
    Mapped,
    /// Ordinary memory of this process, for tests and model runs (Miri can't map files).
    Allocated(Layout),
}

/// A range of memory that may be shared with another process.
///
/// It offers no references: [`read`](Mapping::read) copies bytes out, and callers that know the
/// writer use [`at`](Mapping::at).
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    backing: Backing,
}

// SAFETY: a Mapping is an address range that stays valid until it is dropped, whichever thread
// drops it (munmap and dealloc are not bound to a thread); it has no thread-local state.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference yields only copies out (`read`) and raw pointers (`at`), whose use is
// argued where they are used.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a sealed memfd. The caller has checked, or set, its size and seals.
    fn of_memfd(fd: impl AsFd, len: usize, access: Access) -> Result<Mapping, Errno> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a null hint lets the kernel choose an unused range, so no memory that Rust knows
        // of is replaced. The range's later use is argued at each use.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping {
            base,
            len,
            access,
            backing: Backing::Mapped,
        })
    }

    /// Zeroed memory of this process alone, straight from the kernel: pages cost nothing until
    /// touched, which an allocator that recycles (and must clear) large blocks can't promise.
    fn anonymous(len: usize) -> Result<Mapping, Errno> {
        if cfg!(miri) {
            return Ok(Mapping::private(len));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `of_memfd`.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping {
            base,
            len,
            access: Access::ReadWrite,
            backing: Backing::Mapped,
        })
    }

    /// Ordinary zeroed memory that behaves like a mapping, page-aligned.
    pub(crate) fn private(len: usize) -> Mapping {
        let layout = Layout::from_size_align(len.max(1), PAGE).expect("segment sizes are bounded");
        // SAFETY: the layout's size is at least 1.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            handle_alloc_error(layout)
        };
        Mapping {
            base,
            len,
            access: Access::ReadWrite,
            backing: Backing::Allocated(layout),
        }
    }

    /// Its length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether this process may write it.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    /// The address of byte `offset`, if `len` bytes from there are inside.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: offset <= end <= self.len, so the result stays within, or one past, the one
        // allocation that `base` begins.
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }

    /// Copies `bytes.len()` bytes at `offset` out; `None` if they aren't inside.
    ///
    /// Another process may write meanwhile: the copy then has a mixture of old and new bytes, and
    /// all later checks use the copy.
    #[inline]
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Option<()> {
        let from = self.at(offset, bytes.len())?;
        // SAFETY: `at` checked that the source range is mapped and readable; the destination is an
        // exclusive slice of private memory, so they can't overlap. A racing writer can only be
        // another process (within this one, ranges that are read here aren't written: the daemon
        // maps send heaps read-only), which the copy's loads tolerate: they are plain byte moves of
        // which no value is invalid.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        // The compiler must now assume that the source changed, so it can't read the copied bytes
        // from it again: later checks apply to the copy (P1).
        compiler_fence(Ordering::SeqCst);
        Some(())
    }

    /// Copies `bytes` in at `offset`; `None` if they don't fit or the mapping is read-only. Only
    /// before the mapping is shared: everything that points into it holds an `Arc` of it.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Option<()> {
        if self.access == Access::Read {
            return None;
        }
        let to = self.at(offset, bytes.len())?;
        // SAFETY: `at` checked the destination range and the mapping is writable; the source is a
        // slice of memory outside the mapping, into which nothing in this process points while it
        // is borrowed exclusively.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Some(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.backing {
            Backing::Mapped => {
                // SAFETY: base and len are those that mmap returned, and all that pointed inside
                // held an Arc of this Mapping, so nothing does any more.
                let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
                debug_assert_eq!(unmapped, Ok(()), "unmapping a whole mapping can't fail");
            }
            Backing::Allocated(layout) => {
                // SAFETY: base came from alloc_zeroed with this layout.
                unsafe { dealloc(self.base.as_ptr(), layout) }
            }
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes, {:?})", self.len, self.access)
    }
}

/// Rows of three integers in private memory, initially zero. Pages are touched only where rows are
/// used: bookkeeping that may be as large as a heap needs, but costs only what it uses.
pub(crate) struct Table {
    mapping: Mapping,
    len: usize,
}

/// One row of a [`Table`].
pub(crate) type Row = [u32; 3];

impl Table {
    /// A table of `len` zeroed rows.
    pub(crate) fn new(len: usize) -> Result<Table, Errno> {
        let mapping = Mapping::anonymous(len * size_of::<Row>())?;
        Ok(Table { mapping, len })
    }
}

impl Deref for Table {
    type Target = [Row];

    #[inline]
    fn deref(&self) -> &[Row] {
        // SAFETY: the mapping has len rows, is page-aligned, zeroed (a valid Row), private to this
        // process and to this Table, and lives as long as it.
        unsafe { core::slice::from_raw_parts(self.mapping.base.cast().as_ptr(), self.len) }
    }
}

impl DerefMut for Table {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Row] {
        // SAFETY: as in `deref`; the Table is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.mapping.base.cast().as_ptr(), self.len) }
    }
}

/// A memfd from the daemon, before it is mapped, sealed and passed on.
pub(crate) struct Segment {
    fd: OwnedFd,
    name: &'static str,
    len: usize,
}

impl Segment {
    /// A new zeroed memfd of `len` bytes with a fixed size.
    pub(crate) fn create(name: &'static str, len: usize) -> Result<Segment, SegmentError> {
        let failed = |step| move |errno| SegmentError::System { step, name, errno };
        let fd = create_memfd(name).map_err(failed("create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(failed("size"))?;
        rustix::fs::fcntl_add_seals(&fd, FIXED_SIZE).map_err(failed("seal"))?;
        Ok(Segment { fd, name, len })
    }

    /// A memfd from the daemon. Refuses one that isn't sealed or doesn't have the announced size:
    /// reading it could raise SIGBUS.
    pub(crate) fn adopt(
        name: &'static str,
        fd: OwnedFd,
        len: usize,
    ) -> Result<Segment, SegmentError> {
        let failed = |step| move |errno| SegmentError::System { step, name, errno };
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(failed("read the seals of"))?;
        if !seals.contains(FIXED_SIZE) {
            return Err(SegmentError::NotSealed { name });
        }
        let found = rustix::fs::fstat(&fd)
            .map_err(failed("read the size of"))?
            .st_size as u64;
        if found != len as u64 {
            return Err(SegmentError::WrongSize {
                name,
                found,
                announced: len as u64,
            });
        }
        Ok(Segment { fd, name, len })
    }

    /// Maps the whole segment.
    pub(crate) fn map(&self, access: Access) -> Result<Mapping, SegmentError> {
        Mapping::of_memfd(&self.fd, self.len, access).map_err(|errno| SegmentError::System {
            step: "map",
            name: self.name,
            errno,
        })
    }

    /// From now on nobody can map it writable or write it by its descriptor; existing mappings stay
    /// writable.
    pub(crate) fn forbid_future_writes(&self) -> Result<(), SegmentError> {
        self.seal(SealFlags::FUTURE_WRITE)
    }

    /// Returns the descriptor.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Seals the set of seals and returns the descriptor.
    pub(crate) fn finish(self) -> Result<OwnedFd, SegmentError> {
        self.seal(SealFlags::SEAL)?;
        Ok(self.fd)
    }

    fn seal(&self, seals: SealFlags) -> Result<(), SegmentError> {
        rustix::fs::fcntl_add_seals(&self.fd, seals).map_err(|errno| SegmentError::System {
            step: "seal",
            name: self.name,
            errno,
        })
    }
}

/// A memfd that may be sealed, and not executed if the kernel can forbid it (6.3).
pub(crate) fn create_memfd(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        created => created,
    }
}

/// The reason why a session's segments couldn't be made or taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The operating system returned an error.
    System {
        /// The step that failed.
        step: &'static str,
        /// The segment or descriptor.
        name: &'static str,
        /// The error.
        errno: Errno,
    },
    /// A segment from the daemon could still shrink.
    NotSealed {
        /// The segment.
        name: &'static str,
    },
    /// A segment from the daemon doesn't have the announced length.
    WrongSize {
        /// The segment.
        name: &'static str,
        /// Its length in bytes.
        found: u64,
        /// The announced length in bytes.
        announced: u64,
    },
    /// A ring's capacity isn't a power of two within the limits.
    BadRingCapacity {
        /// The capacity in entries.
        capacity: u32,
    },
    /// A heap's length isn't a power of two within the limits.
    BadHeapSize {
        /// The length in bytes.
        bytes: u64,
    },
    /// The daemon passed a wrong number of descriptors.
    WrongFdCount {
        /// The number that came.
        found: usize,
        /// The expected number.
        wanted: usize,
    },
    /// There is no room for a further receive heap.
    TooManyHeaps {
        /// The end of the existing ones.
        end: u64,
    },
    /// The indices of a ring are impossible.
    BadIndices,
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::limits::{
            MAX_HEAP_BYTES, MAX_RECEIVE_OFFSETS, MAX_RING_CAPACITY, MIN_HEAP_BYTES,
            MIN_RING_CAPACITY,
        };
        match self {
            SegmentError::System { step, name, errno } => {
                write!(f, "can't {step} the session's {name}: {errno}")
            }
            SegmentError::NotSealed { name } => {
                write!(f, "the session's {name} isn't sealed against shrinking")
            }
            SegmentError::WrongSize {
                name,
                found,
                announced,
            } => {
                write!(
                    f,
                    "the session's {name} has {found} bytes, but {announced} were announced"
                )
            }
            SegmentError::BadRingCapacity { capacity } => write!(
                f,
                "a ring of {capacity} entries isn't a power of two within {MIN_RING_CAPACITY}..={MAX_RING_CAPACITY}"
            ),
            SegmentError::BadHeapSize { bytes } => {
                write!(
                    f,
                    "a heap of {bytes} bytes isn't a power of two within {MIN_HEAP_BYTES}..={MAX_HEAP_BYTES}"
                )
            }
            SegmentError::TooManyHeaps { end } => write!(
                f,
                "the session's receive heaps end at {end}, and another would go past {MAX_RECEIVE_OFFSETS}"
            ),
            SegmentError::BadIndices => {
                f.write_str("the session's completion ring holds more than its capacity")
            }
            SegmentError::WrongFdCount { found, wanted } => {
                write!(
                    f,
                    "a session needs {wanted} file descriptors, but {found} came"
                )
            }
        }
    }
}

impl core::error::Error for SegmentError {}

#[cfg(test)]
mod tests;
