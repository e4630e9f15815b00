//! Blobs: control data too large for a packet (modules, descriptor sets, status), as memfds.
//!
//! A stranger's descriptor could be a pipe that blocks, a file on an unreachable network drive, or
//! a memfd that shrinks under a mapping. So [`blob_read`] accepts only descriptors that answer
//! F_GET_SEALS (such memory can't block), reads them with `pread` into a private buffer, and never
//! maps them.

use crate::segment::create_memfd;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::Errno;

/// A sealed memfd that holds `bytes`.
///
/// # Errors
/// The operating system's error: out of memory or descriptors.
pub fn blob_create(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = create_memfd("tollgate-blob")?;
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(&fd, &bytes[written..], written as u64)?;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Copies a stranger's blob, if it is memory and at most `limit_bytes` long.
///
/// # Errors
/// If it isn't memory, is too long, or shrank during the read.
pub fn blob_read(blob: impl AsFd, limit_bytes: usize) -> Result<Vec<u8>, BlobError> {
    let blob = blob.as_fd();
    rustix::fs::fcntl_get_seals(blob).map_err(|_| BlobError::NotMemory)?;
    let size = rustix::fs::fstat(blob).map_err(BlobError::System)?.st_size as u64;
    if size > limit_bytes as u64 {
        return Err(BlobError::TooLarge {
            size_bytes: size,
            limit_bytes: limit_bytes as u64,
        });
    }
    read_exactly(blob, size)
}

/// Copies `size` bytes; the blob may have shrunk since its size was read.
fn read_exactly(blob: BorrowedFd<'_>, size: u64) -> Result<Vec<u8>, BlobError> {
    let mut bytes = vec![0; size as usize];
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::pread(blob, &mut bytes[read..], read as u64) {
            Ok(0) => {
                return Err(BlobError::Shrank {
                    size_bytes: size,
                    read_bytes: read as u64,
                });
            }
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(BlobError::System(errno)),
        }
    }
    Ok(bytes)
}

/// The reason why a blob wasn't read. The sender is at fault, except for `System`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobError {
    /// It isn't memory, but a pipe, a socket or a file on a disk.
    NotMemory,
    /// It is longer than its purpose allows.
    TooLarge {
        /// Its length in bytes.
        size_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// Its owner truncated it during the read.
    Shrank {
        /// Its length in bytes at the start of the read.
        size_bytes: u64,
        /// The bytes that were read.
        read_bytes: u64,
    },
    /// The operating system's error.
    System(Errno),
}

impl fmt::Display for BlobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlobError::NotMemory => f.write_str("the blob isn't a memfd"),
            BlobError::TooLarge {
                size_bytes,
                limit_bytes,
            } => {
                write!(
                    f,
                    "the blob has {size_bytes} bytes, and the limit is {limit_bytes}"
                )
            }
            BlobError::Shrank {
                size_bytes,
                read_bytes,
            } => {
                write!(
                    f,
                    "the blob shrank from {size_bytes} to {read_bytes} bytes while it was read"
                )
            }
            BlobError::System(errno) => write!(f, "can't read the blob: {errno}"),
        }
    }
}

impl core::error::Error for BlobError {}

#[cfg(test)]
mod tests;
