//! Checks of a message before it is sent, and the sending of messages that aren't a call's only
//! request.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tollgate_shm_abi::Code;
use tollgate_shm_abi::messages::{FEATURE_METADATA, FEATURE_STREAMS};
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf};

use crate::Status;
use crate::codec::{Encode, Measured, RawBlock};
use crate::connection::Inner;
use crate::submit::{OutgoingMessage, PendingDescriptor};
use crate::tables::space::Ticket;

/// The size of a message, if it may be sent.
pub(crate) fn measure(message: &impl Encode, inner: &Inner) -> Result<Measured, Status> {
    let measured = message.measure_within(inner.id);
    let max = inner.opened.max_message_bytes as usize;
    if measured.too_deep {
        let depth = crate::codec::MAX_DEPTH;
        return Err(Status::new(
            Code::INVALID_ARGUMENT,
            format!("the message nests deeper than {depth} levels"),
        ));
    }
    if measured.total > max {
        let text = format!(
            "the message of {} bytes exceeds the limit of {max} bytes",
            measured.total
        );
        return Err(Status::resource_exhausted(text));
    }
    Ok(measured)
}

/// Checks whether metadata may be sent. The daemon ends a session that sends invalid metadata.
pub(crate) fn check_metadata(metadata: &MetadataBuf, inner: &Inner) -> Result<(), Status> {
    if metadata.is_empty() {
        return Ok(());
    }
    if inner.opened.features & FEATURE_METADATA == 0 {
        let text = "this host's daemon predates metadata: upgrade it";
        return Err(Status::new(Code::UNIMPLEMENTED, text));
    }
    Metadata::check_application(metadata.as_bytes())?;
    Ok(())
}

/// The content of a bare descriptor's block, without metadata.
pub(crate) const NOTHING: RawBlock<&[u8]> = RawBlock(&[]);

/// Whether streams may be used.
pub(crate) fn check_streams(inner: &Inner) -> Result<(), Status> {
    if inner.opened.features & FEATURE_STREAMS == 0 {
        let text = "this host's daemon predates streams: upgrade it";
        return Err(Status::new(Code::UNIMPLEMENTED, text));
    }
    Ok(())
}

/// Writes a block once there is room, and submits it.
pub(crate) async fn post(
    inner: &Arc<Inner>,
    message: &impl Encode,
    metadata: &MetadataBuf,
    pending: PendingDescriptor,
) -> Result<(), Status> {
    let mut place = Place {
        inner,
        ticket: None,
    };
    poll_fn(|cx| poll_post(inner, message, metadata, pending, &mut place.ticket, cx)).await
}

/// Like [`post`], but the caller keeps the place in the queue for room.
pub(crate) fn poll_post(
    inner: &Arc<Inner>,
    message: &impl Encode,
    metadata: &MetadataBuf,
    pending: PendingDescriptor,
    ticket: &mut Option<Ticket>,
    cx: &Context<'_>,
) -> Poll<Result<(), Status>> {
    let measured = measure(message, inner)?;
    let outgoing = OutgoingMessage {
        message,
        measured: &measured,
        metadata: metadata.as_bytes(),
    };
    let charge = measured.total as u32;
    let mut shared = inner.lock();
    if let Some(key) = pending.stream() {
        match ready!(shared.streams.poll_send(key, charge, cx.waker())) {
            true => {}
            false => return Poll::Ready(Err(over())),
        }
    }
    if outgoing.room() == 0 {
        // Neither a message nor metadata.
        shared.submit_bare(pending);
        return Poll::Ready(Ok(()));
    }
    let posted = match ready!(shared.poll_space(outgoing.room(), ticket, cx.waker())) {
        Ok(block) => {
            if let Some(key) = pending.stream() {
                shared.streams.sent(key, charge);
            }
            shared.submit(outgoing, block, pending)
        }
        Err(status) => Err(status),
    };
    Poll::Ready(posted)
}

/// A place in the queue for room. Dropping it leaves the queue.
pub(crate) struct Place<'i> {
    pub(crate) inner: &'i Inner,
    pub(crate) ticket: Option<Ticket>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.inner.lock().leave_queue(&mut self.ticket);
        }
    }
}

/// The status of a send after the end of the call. The receiver has the call's own status.
pub(crate) fn over() -> Status {
    Status::new(Code::CANCELLED, "the call is over")
}
