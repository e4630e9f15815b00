//! Values that lie in shared memory from the beginning. A program may send them from there any
//! number of times.
//!
//! ```text
//!   Session::buffer ─▶ SendBuffer ── filled by its one holder ──▶ freeze ─▶ SharedBytes ── clones ──▶ Bytes in messages
//!                                                                               │
//!        back to the heap  ◀── dropped by all: holders, and calls whose blocks the daemon still reads
//! ```
//!
//! A message's block refers to a shared value as an extent; so neither the library nor the daemon
//! copies it. The library keeps the block and never hands it over. The daemon can only read a send
//! heap, and has no say in when the block is freed.
//!
//! Invariant: memory that the daemon may still read isn't freed. Until the daemon gives a call's
//! block back, the session keeps the shared values that the block refers to.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use tollgate_shm_abi::heap::Block;

/// Memory of a session's send heap for its holder to fill. Dropping it gives the memory back.
pub struct SendBuffer {
    /// Taken in drop only.
    block: Option<Block>,
    /// The session's number in this process.
    session: u64,
    owner: Arc<dyn Owner>,
}

/// The heap that a buffer goes back to. Buffers inherit the auto traits of this bound.
pub(crate) trait Owner: Send + Sync + UnwindSafe + RefUnwindSafe {
    fn take_back(&self, block: Block);
}

impl SendBuffer {
    /// Memory in the heap of the session with this number.
    pub(crate) fn new(block: Block, session: u64, owner: Arc<dyn Owner>) -> SendBuffer {
        SendBuffer {
            block: Some(block),
            session,
            owner,
        }
    }

    /// Ends the filling. From now on the bytes can be shared and sent.
    pub fn freeze(self) -> SharedBytes {
        SharedBytes(Arc::new(self))
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_deref().unwrap_or_default()
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.owner.take_back(block);
        }
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendBuffer({} bytes)", self.len())
    }
}

/// Immutable bytes in a session's send heap. Clones share them; the last clone gives them back.
#[derive(Clone)]
pub struct SharedBytes(Arc<SendBuffer>);

impl SharedBytes {
    /// The session whose daemon can read the bytes; the same number as `Inner::id`.
    pub(crate) fn session(&self) -> u64 {
        self.0.session
    }

    /// Their offset in the send heap.
    pub(crate) fn offset(&self) -> u64 {
        self.0.block.as_ref().map_or(0, Block::offset)
    }

    /// The buffer, to be filled again, if neither a clone nor a call that the daemon still reads
    /// shares it.
    ///
    /// # Errors
    /// Returns the bytes if they are still shared.
    pub fn try_reuse(self) -> Result<SendBuffer, SharedBytes> {
        Arc::try_unwrap(self.0).map_err(SharedBytes)
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len())
    }
}

/// The value of a `bytes` field, if the stubs were generated with this type: ordinary bytes, or
/// bytes in shared memory. Cheap to clone either way.
#[derive(Clone)]
pub struct Bytes(Held);

#[derive(Clone)]
enum Held {
    Ordinary(Arc<[u8]>),
    Shared(SharedBytes),
}

impl Bytes {
    /// The bytes, if they lie in a send heap.
    pub(crate) fn shared(&self) -> Option<&SharedBytes> {
        match &self.0 {
            Held::Shared(shared) => Some(shared),
            Held::Ordinary(_) => None,
        }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes(Held::Ordinary(Arc::default()))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes(Held::Ordinary(bytes.into()))
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Bytes(Held::Ordinary(bytes.into()))
    }
}

impl From<SharedBytes> for Bytes {
    fn from(bytes: SharedBytes) -> Self {
        Bytes(Held::Shared(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Ordinary(bytes) => bytes,
            Held::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
