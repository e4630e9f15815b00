//! A completion queue and the channel that announces its completions.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::device::Device;
use super::domain::{check, failed, last_errno};
use crate::error::RdmaError;
use crate::limits::POLL_BATCH;

/// A completion queue and its channel, both owned; queue pairs that use them are destroyed before.
pub(super) struct Completions {
    queue: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    /// Keeps the context open longer than both.
    _device: Arc<Device>,
}

// SAFETY: neither is bound to a thread; this value owns both.
unsafe impl Send for Completions {}
// SAFETY: verbs are thread-safe, and what may not happen twice at once (the end) takes the value.
unsafe impl Sync for Completions {}

impl Completions {
    pub(super) fn new(device: &Arc<Device>, entries: usize) -> Result<Completions, RdmaError> {
        let context = device.domain.context.as_ptr();
        // SAFETY: the context is open while the device is.
        let channel = NonNull::new(unsafe { sys::ibv_create_comp_channel(context) })
            .ok_or_else(|| failed("creating a completion channel"))?;
        // SAFETY: context and channel are there.
        let queue = NonNull::new(unsafe {
            sys::ibv_create_cq(
                context,
                i32::try_from(entries).unwrap_or(i32::MAX),
                ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        });
        let Some(queue) = queue else {
            let error = failed("creating a completion queue");
            // SAFETY: nothing uses the channel.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let completions = Completions {
            queue,
            channel,
            _device: Arc::clone(device),
        };
        completions.set_nonblocking()?;
        Ok(completions)
    }

    /// For creating a queue pair.
    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.queue.as_ptr()
    }

    /// Takes pending completions, at most [`POLL_BATCH`].
    pub(super) fn poll(&self, found: &mut [sys::ibv_wc; POLL_BATCH]) -> Result<usize, RdmaError> {
        // SAFETY: the completion queue is there; the function fills at most as many entries as it
        // is told of.
        let count =
            unsafe { sys::ibv_poll_cq(self.queue.as_ptr(), POLL_BATCH as i32, found.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| failed("polling for completions"))
    }

    /// Readable once a completion has come since [`Completions::arm`].
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor are there while `self` is.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    fn set_nonblocking(&self) -> Result<(), RdmaError> {
        rustix::fs::fcntl_setfl(self.descriptor(), OFlags::NONBLOCK).map_err(|errno| {
            RdmaError::Call {
                doing: "making a completion channel nonblocking",
                errno,
            }
        })
    }

    /// The next completion makes the descriptor readable. Earlier ones don't: poll once more.
    pub(super) fn arm(&self) -> Result<(), RdmaError> {
        // SAFETY: the completion queue is there.
        let status = unsafe { sys::ibv_req_notify_cq(self.queue.as_ptr(), 0) };
        check("asking for a completion event", status)
    }

    /// Takes the notifications that made the descriptor readable; returns the number of system
    /// calls.
    pub(super) fn take_notifications(&self) -> Result<u64, RdmaError> {
        let mut events = 0;
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is there and nonblocking; the function fills both pointers, which
            // aren't used.
            let status =
                unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &mut queue, &mut context) };
            if status != 0 {
                break;
            }
            events += 1;
        }
        let errno = last_errno();
        // SAFETY: so many events were taken of this queue, the channel's only one. Destroying the
        // queue would wait for it otherwise.
        unsafe { sys::ibv_ack_cq_events(self.queue.as_ptr(), events) };
        match errno {
            Errno::AGAIN | Errno::INTR => Ok(u64::from(events) + 1),
            errno => Err(RdmaError::Call {
                doing: "taking a completion event",
                errno,
            }),
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue pairs, which used both, are gone; all events were acknowledged. Each is
        // destroyed once.
        unsafe {
            sys::ibv_destroy_cq(self.queue.as_ptr());
            sys::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// Zeroed completions.
pub(super) fn no_completions() -> [sys::ibv_wc; POLL_BATCH] {
    // SAFETY: C structs of numbers, and a union of them.
    unsafe { std::mem::zeroed() }
}
