//! Sends bytes from their place: private buffers and spans of shared heaps, in one `sendmsg`.
//!
//! A span's bytes go from the app's pages to the socket without a copy and without a Rust reference
//! to them: therefore this file calls `libc` (rustix's safe `sendmsg` takes slices). The kernel
//! reads memory that the app may be changing, and sends some mixture of its contents. So only spans
//! whose content was not checked may be sent this way (P2).
//!
//! It also reads the kernel's statistics of a TCP connection, which rustix doesn't offer.
#![allow(unsafe_code)]

use crate::heap::Span;
use crate::limits::MAX_PARTS;
use core::ptr;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

/// One piece of the bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Bytes that only this process writes.
    Private(&'a [u8]),
    /// The bytes of a span from `at` on; none if `at` is past its end.
    Shared {
        /// The span.
        span: &'a Span,
        /// The bytes of it that were sent before.
        at: usize,
    },
}

/// Sends the parts in order on a stream socket, as much as it accepts, without blocking and without
/// raising SIGPIPE. Returns the number of accepted bytes, which may end inside a part; parts past
/// the first [`MAX_PARTS`] are ignored.
///
/// # Errors
/// `AGAIN` if the socket accepts nothing now; otherwise the socket's error.
pub fn send_parts(socket: impl AsFd, parts: &[Part<'_>]) -> Result<usize, Errno> {
    let mut vectors = [libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; MAX_PARTS];
    let count = parts.len().min(MAX_PARTS);
    for (vector, part) in vectors.iter_mut().zip(parts) {
        let (start, len) = match *part {
            Part::Private(bytes) => (bytes.as_ptr(), bytes.len()),
            Part::Shared { span, at } => span.raw_from(at),
        };
        *vector = libc::iovec {
            iov_base: start.cast_mut().cast(),
            iov_len: len,
        };
    }
    // SAFETY: msghdr is a plain C struct for which all zeroes is the empty message.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = count as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the descriptor is open while `socket` is borrowed. `message` has no address and no
    // control data, and its `count` <= MAX_PARTS vectors are initialised and outlive the call. Each
    // vector is a range that stays mapped and readable during the call: a private part is a
    // borrowed slice, a shared one lies inside the mapping that the borrowed span keeps alive,
    // whose memfd can't shrink. sendmsg only reads them, and the kernel may read bytes that change.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &message, flags) };
    usize::try_from(sent).map_err(|_| last_errno())
}

/// The number of TCP segments that were retransmitted since the connection was opened
/// (`tcpi_total_retrans`).
///
/// # Errors
/// `OPNOTSUPP` or `NOPROTOOPT` if it isn't a TCP connection.
pub fn retransmits(socket: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: tcp_info is a plain C struct of integers, for which all zeroes is a value.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while `socket` is borrowed. The kernel writes at most `len`
    // bytes, which is the size of `info`, and then the written length into `len`; both outlive the
    // call. Every bit pattern is a value of such a struct.
    let told = unsafe {
        let (info, len) = (ptr::from_mut(&mut info).cast(), &raw mut len);
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info, len)
    };
    match told {
        0 => Ok(info.tcpi_total_retrans),
        _ => Err(last_errno()),
    }
}

#[cold]
fn last_errno() -> Errno {
    // SAFETY: the location is this thread's errno, always valid to read.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

#[cfg(test)]
mod tests;
