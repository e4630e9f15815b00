//! The source of a connection's completions and its receive buffers: its own, or a pool's; and the
//! queue pairs that are made on it.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;

use super::completions::Completions;
use super::device::Device;
use super::domain::{check, failed};
use super::memory::Memory;
use super::pool_share::PoolShare;
use super::work_ids::ID_RECEIVE;
use crate::error::RdmaError;
use crate::limits::{BODY_MESSAGES, INLINE_BYTES, MESSAGE_BYTES, RECEIVES, SENDS};

/// The source of completions and the receive buffers.
pub(super) enum Side {
    Own(Own),
    Shared(PoolShare),
}

/// Those of a link without a pool.
pub(super) struct Own {
    pub(super) completions: Completions,
    pub(super) receives: Memory,
    /// Whether the device may write each receive.
    pub(super) posted: [bool; RECEIVES as usize],
    /// Receives for the next [`Queues::post_receives`].
    pub(super) reposts: Vec<u16>,
}

impl Own {
    pub(super) fn new(device: &Arc<Device>) -> Result<Own, RdmaError> {
        let entries = SENDS + RECEIVES as usize + 2 * BODY_MESSAGES;
        Ok(Own {
            receives: Memory::of_pages(&device.domain, RECEIVES as usize * MESSAGE_BYTES)?,
            completions: Completions::new(device, entries)?,
            posted: [false; RECEIVES as usize],
            reposts: (0..RECEIVES).collect(),
        })
    }

    pub(super) fn received(&self, receive: u16, len: usize) -> &[u8] {
        assert!(!self.posted[usize::from(receive)], "a message came there");
        let start = self.receives.own(usize::from(receive) * MESSAGE_BYTES, len);
        // SAFETY: the range is of this value's own buffer and initialised. The device doesn't write
        // it: its receive is complete, and isn't posted again while the slice is borrowed from
        // `self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    pub(super) fn repost(&mut self, receive: u16) {
        assert!(
            !self.posted[usize::from(receive)] && !self.reposts.contains(&receive),
            "it was complete"
        );
        self.reposts.push(receive);
    }

    /// # Safety
    /// The queue pair exists, and is destroyed before `self` is dropped.
    pub(super) unsafe fn post(&mut self, pair: *mut sys::ibv_qp) -> Result<(), RdmaError> {
        const NONE: sys::ibv_recv_wr = sys::ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 1,
        };
        let mut elements = [self.receives.element(0, 0); RECEIVES as usize];
        let mut requests = [NONE; RECEIVES as usize];
        let mut next = ptr::null_mut();
        for (n, receive) in self.reposts.drain(..).enumerate() {
            self.posted[usize::from(receive)] = true;
            elements[n] = self
                .receives
                .element(usize::from(receive) * MESSAGE_BYTES, MESSAGE_BYTES);
            requests[n] = sys::ibv_recv_wr {
                wr_id: ID_RECEIVE | u64::from(receive),
                next,
                sg_list: &mut elements[n],
                ..NONE
            };
            next = &mut requests[n];
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there, as the caller says; requests and elements are there
        // during the call. What they name is this value's own buffer, which is marked as posted, so
        // nobody looks at it, and which is freed after the queue pair.
        let status = unsafe { sys::ibv_post_recv(pair, next, &mut bad) };
        check("posting receives", status)
    }
}

/// Makes the first queue pair, which becomes the id's, and the second; also returns the number of
/// bytes that both send inline.
pub(super) fn make_queue_pairs(
    id: NonNull<sys::rdma_cm_id>,
    device: &Arc<Device>,
    side: &Side,
    stream_sends: usize,
) -> Result<(NonNull<sys::ibv_qp>, usize), RdmaError> {
    let elements = device.max_elements() as u32;
    let (completions, shared) = match side {
        Side::Own(own) => (own.completions.as_ptr(), ptr::null_mut()),
        Side::Shared(share) => (share.pool.completions.as_ptr(), share.pool.receives()),
    };
    let stream_receives = if shared.is_null() { RECEIVES.into() } else { 0 };
    let attributes = |sends: usize, receives: usize, elements, inline| sys::ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: completions,
        recv_cq: completions,
        srq: ptr::null_mut(),
        cap: sys::ibv_qp_cap {
            max_send_wr: sends as u32,
            max_recv_wr: receives as u32,
            max_send_sge: elements,
            max_recv_sge: 1,
            max_inline_data: inline,
        },
        qp_type: sys::ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    let domain = device.domain.protection.as_ptr();
    let mut inline_bytes = 0;
    let mut status = -1;
    for inline in [INLINE_BYTES, 0] {
        let mut wanted = sys::ibv_qp_init_attr {
            srq: shared,
            ..attributes(stream_sends, stream_receives, elements, inline as u32)
        };
        // SAFETY: id, domain, completion queue and shared receives are there, and the id has no
        // queue pair.
        status = unsafe { sys::rdma_create_qp(id.as_ptr(), domain, &mut wanted) };
        if status == 0 {
            inline_bytes = inline;
            break;
        }
    }
    check("creating a queue pair", status)?;
    let mut wanted = attributes(BODY_MESSAGES, BODY_MESSAGES, 1, 0);
    // SAFETY: domain and completion queue are there.
    let body = NonNull::new(unsafe { sys::ibv_create_qp(domain, &mut wanted) });
    let Some(body) = body else {
        let error = failed("creating the second queue pair");
        // SAFETY: the id's queue pair was just created.
        unsafe { sys::rdma_destroy_qp(id.as_ptr()) };
        return Err(error);
    };
    Ok((body, inline_bytes))
}
