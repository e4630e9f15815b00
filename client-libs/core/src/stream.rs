//! Calls of this application with any number of requests and responses, and the two halves of a
//! stream.
//!
//! ```text
//!   Session::open_stream ── CALL ──▶ (StreamSender, StreamReceiver)
//!        send: waits for its reader's credit, then for room ── REQUEST ──▶
//!        next: ◀── RESPONSE ...  ◀── REPLY or STATUS: the end, with trailers
//! ```
//!
//! The call is cancelled if the receiver is dropped before its end, or the sender before it has
//! [finished](StreamSender::finish). A reader that doesn't read stops only its own sender. A
//! message counts as consumed once it is read, whether its block is dropped or not.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tollgate_shm_abi::Code;
use tollgate_shm_abi::descriptor::Part;
use tollgate_shm_abi::metadata::MetadataBuf;

use crate::Status;
use crate::codec::Encode;
use crate::connection::Inner;
use crate::deadline;
use crate::outgoing::{NOTHING, check_metadata, check_streams, over, poll_post, post};
use crate::panics;
use crate::received::ReceivedBlock;
use crate::session::Session;
use crate::submit::PendingDescriptor;
use crate::tables::calls::{Outcome, Removed};
use crate::tables::space::Ticket;
use crate::tables::streams::{Item, Next, Side, StreamKey};

/// How a stream is opened.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// The metadata of the first request, or of a stream without one.
    pub metadata: MetadataBuf,
    /// The call ends with DEADLINE_EXCEEDED after this time. Without it, only the session's end
    /// bounds the call.
    pub timeout: Option<Duration>,
    /// The first request is the only one, or there is no request at all.
    pub is_last: bool,
}

impl Session {
    /// Opens a call with any number of requests and responses, with the first request if there
    /// already is one.
    ///
    /// # Errors
    /// The same as [`Session::call`], if the error is known at once.
    pub async fn open_stream<E: Encode>(
        &self,
        handle: u32,
        first: Option<&E>,
        opening: Opening,
    ) -> Result<(StreamSender, StreamReceiver), Status> {
        let inner = &self.inner();
        check_streams(inner)?;
        check_metadata(&opening.metadata, inner)?;
        let deadline_ns = deadline::of_call(opening.timeout);
        if inner.lock().methods.resolve(handle).is_err() {
            // As for a call: the method may be bound then.
            a_turn().await;
        }
        let (id, method) = enter(inner, handle, deadline_ns)?;
        let guard = Arc::new(OwnCall {
            id,
            inner: Arc::clone(inner),
            session: self.clone(),
        });
        // From here on, an error or a drop leaves the tables.
        let receiver = StreamReceiver {
            guard: Arc::clone(&guard),
            metadata: None,
            ahead: None,
            end: None,
        };
        let sender = StreamSender {
            guard,
            ticket: None,
            is_finished: opening.is_last,
        };
        let part = Part {
            more: !opening.is_last,
            bare: first.is_none(),
        };
        let pending = PendingDescriptor::Call {
            method,
            call: id,
            part,
            deadline_ns,
        };
        match first {
            Some(message) => post(inner, message, &opening.metadata, pending).await?,
            None => post(inner, &NOTHING, &opening.metadata, pending).await?,
        }
        inner.ensure_driven();
        Ok((sender, receiver))
    }
}

/// Lets the driving thread have a turn.
async fn a_turn() {
    let mut had = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut had, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Enters a call and its stream into the tables. Returns its number, and the daemon's handle of its
/// method.
fn enter(inner: &Inner, handle: u32, deadline_ns: u64) -> Result<(u64, u32), Status> {
    let mut shared = inner.lock();
    if let Some(status) = shared.ended() {
        return Err(status.clone());
    }
    let method = shared.methods.resolve(handle)?;
    let due_before = shared.calls.next_deadline_ns();
    let Some(id) = shared.calls.insert(deadline_ns, std::task::Waker::noop()) else {
        let max = shared.calls.max();
        let text = format!("the session has {max} calls in flight, the most that it may have");
        return Err(Status::resource_exhausted(text));
    };
    shared.nudge |= shared.calls.next_deadline_ns() < due_before;
    shared.streams.open((Side::Own, id));
    Ok((id, method))
}

/// A streaming call of this application. It is in both tables until both halves are gone.
#[derive(Debug)]
struct OwnCall {
    inner: Arc<Inner>,
    /// Ends with the last of its users.
    #[allow(dead_code, reason = "it is only held")]
    session: Session,
    id: u64,
}

impl OwnCall {
    fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    fn key(&self) -> StreamKey {
        (Side::Own, self.id)
    }

    /// Ends the call, unless it has ended. Its status stays for the receiver.
    fn give_up(&self) {
        if self.inner().lock().calls.is_open(self.id) {
            self.forget();
        }
    }

    /// Ends the call for this side, in any state.
    fn forget(&self) {
        let mut wakers = Vec::new();
        let mut shared = self.inner().lock();
        match shared.calls.remove(self.id) {
            Some(Removed::Submitted) => shared.cancel(self.id),
            Some(Removed::Done(Outcome::Reply(image))) => shared.release_image(&image),
            Some(Removed::Unsubmitted | Removed::Done(Outcome::Failed(_))) | None => {}
        }
        shared.streams.end(self.key(), &mut wakers);
        drop(shared);
        wakers.into_iter().for_each(panics::wake);
    }
}

impl Drop for OwnCall {
    fn drop(&mut self) {
        self.forget();
        self.inner().lock().forget_stream(self.key());
    }
}

/// The half that sends requests.
#[derive(Debug)]
pub struct StreamSender {
    guard: Arc<OwnCall>,
    ticket: Option<Ticket>,
    is_finished: bool,
}

impl StreamSender {
    /// Sends a request, once its reader has room for it.
    ///
    /// # Errors
    /// CANCELLED if the call is over; the receiver has its status. INVALID_ARGUMENT or
    /// RESOURCE_EXHAUSTED for a message that can't be sent; then the call goes on.
    pub async fn send(&mut self, message: &impl Encode) -> Result<(), Status> {
        poll_fn(|cx| self.poll_send(message, cx)).await
    }

    /// Like [`send`](Self::send). Poll it again with the same message until it is ready.
    ///
    /// # Errors
    /// The same as [`send`](Self::send).
    pub fn poll_send(
        &mut self,
        message: &impl Encode,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Status>> {
        if self.is_finished {
            return Poll::Ready(Err(Status::new(
                Code::FAILED_PRECONDITION,
                "the requests have ended",
            )));
        }
        let pending = PendingDescriptor::Request {
            call: self.guard.id,
        };
        let inner = self.guard.inner();
        let none = MetadataBuf::new();
        let polled = poll_post(inner, message, &none, pending, &mut self.ticket, cx);
        if polled.is_pending() {
            inner.ensure_driven();
        }
        polled
    }

    /// Announces that no further requests follow.
    pub fn finish(&mut self) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        let mut shared = self.guard.inner().lock();
        if !shared.streams.is_over(self.guard.key()) {
            shared.end_requests(self.guard.id);
        }
    }

    /// Waits until the call is over, for any reason. Don't use it while [`send`](Self::send) waits.
    pub async fn closed(&mut self) {
        poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Like [`closed`](Self::closed).
    pub fn poll_closed(&mut self, cx: &Context<'_>) -> Poll<()> {
        let inner = self.guard.inner();
        let polled = inner.lock().streams.poll_over(self.guard.key(), cx.waker());
        if polled.is_pending() {
            inner.ensure_driven();
        }
        polled
    }
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.guard.inner().lock().leave_queue(&mut self.ticket);
        }
        if !self.is_finished {
            self.guard.give_up();
        }
    }
}

/// The half that reads responses.
#[derive(Debug)]
pub struct StreamReceiver {
    guard: Arc<OwnCall>,
    /// The responses' metadata, once it or a response has come.
    metadata: Option<MetadataBuf>,
    /// A response that came while the program waited only for metadata.
    ahead: Option<ReceivedBlock>,
    /// How the call ended.
    end: Option<Result<MetadataBuf, Status>>,
}

impl StreamReceiver {
    /// The next response, or `None` after the last.
    ///
    /// # Errors
    /// The status of a failed call. Each further call returns the same status.
    pub async fn next(&mut self) -> Result<Option<ReceivedBlock>, Status> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Like [`next`](Self::next).
    ///
    /// # Errors
    /// The same as [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Result<Option<ReceivedBlock>, Status>> {
        loop {
            if let Some(block) = self.ahead.take() {
                return Poll::Ready(Ok(Some(block)));
            }
            if let Some(end) = &self.end {
                return Poll::Ready(end.as_ref().map(|_| None).map_err(Status::clone));
            }
            ready!(self.poll_come(cx));
        }
    }

    /// Waits until the responses' metadata, a first response, or the end has come. The metadata is
    /// empty if the call ended without any.
    ///
    /// # Errors
    /// The status of a failed call.
    pub async fn metadata(&mut self) -> Result<&MetadataBuf, Status> {
        poll_fn(|cx| self.poll_metadata(cx)).await?;
        Ok(self.metadata.get_or_insert_default())
    }

    /// Like [`metadata`](Self::metadata), which returns at once when this is ready.
    ///
    /// # Errors
    /// The same as [`metadata`](Self::metadata).
    pub fn poll_metadata(&mut self, cx: &Context<'_>) -> Poll<Result<(), Status>> {
        while self.metadata.is_none() {
            if let Some(end) = &self.end {
                return Poll::Ready(end.as_ref().map(|_| ()).map_err(Status::clone));
            }
            ready!(self.poll_come(cx));
        }
        Poll::Ready(Ok(()))
    }

    /// The trailers of the call, once [`next`](Self::next) has returned `None`.
    pub fn trailers(&self) -> Option<&MetadataBuf> {
        self.end.as_ref()?.as_ref().ok()
    }

    /// Takes the next incoming item: metadata, a message, or the end. Requires that no response is
    /// `ahead`.
    fn poll_come(&mut self, cx: &Context<'_>) -> Poll<()> {
        let inner = self.guard.inner();
        let mut shared = inner.lock();
        let (image, bare) = match shared.streams.next(self.guard.key(), cx.waker()) {
            Next::Item(Item { image, bare, .. }, credit) => {
                if let Some(credit) = credit {
                    shared.credit_responses(self.guard.id, credit);
                }
                (image, bare)
            }
            Next::Wait | Next::Over | Next::End => {
                match shared.calls.poll(self.guard.id, cx.waker()) {
                    Some(Outcome::Reply(image)) => {
                        self.end = Some(Ok(MetadataBuf::new()));
                        (image, false)
                    }
                    Some(Outcome::Failed(status)) => {
                        self.end = Some(match status.code {
                            Code::OK => Ok(status.metadata),
                            _ => Err(status),
                        });
                        return Poll::Ready(());
                    }
                    None if shared.calls.knows(self.guard.id) => {
                        drop(shared);
                        inner.ensure_driven();
                        return Poll::Pending;
                    }
                    // The sender was dropped before it had finished.
                    None => {
                        self.end = Some(Err(over()));
                        return Poll::Ready(());
                    }
                }
            }
        };
        drop(shared);
        match ReceivedBlock::claim_part(inner, &image, bare) {
            Ok(mut block) => {
                // Only the first response has metadata.
                let metadata = block.take_metadata();
                self.metadata.get_or_insert(metadata);
                self.ahead = (!bare).then_some(block);
            }
            Err(status) => self.end = Some(Err(status)),
        }
        Poll::Ready(())
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.guard.forget();
            // The sender may notice late, and the messages that came will not be read.
            self.guard.inner().lock().forget_stream(self.guard.key());
        }
    }
}
