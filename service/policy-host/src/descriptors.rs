//! Descriptors that processes inherit: only those that are passed on purpose. Rust opens everything
//! close-on-exec, but the daemon's parent process or a C library may not.
//!
//! Kernels without close_range(2) (before 5.9; for [`keep_to_oneself`] before 5.11) report so, and
//! then inherited descriptors stay.

use rustix::io::Errno;

/// The first descriptor that isn't a standard one.
const FIRST: libc::c_uint = 3;

/// Programs that this process executes from now on inherit no open descriptor but the standard
/// ones.
///
/// # Errors
/// The kernel's reason.
pub(crate) fn keep_to_oneself() -> Result<(), Errno> {
    close_range(libc::CLOSE_RANGE_CLOEXEC.cast_signed())
}

/// Closes all descriptors but the standard ones. For the beginning of a process, before it opens
/// any itself.
pub(crate) fn close_inherited() -> Result<(), Errno> {
    close_range(0)
}

fn close_range(flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: it touches no memory. Descriptors that Rust owns stay open: with CLOSE_RANGE_CLOEXEC
    // all do, and `close_inherited` is called before this process has opened any.
    match unsafe { libc::close_range(FIRST, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
}
