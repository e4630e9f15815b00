//! Calls that this application issues.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::Status;
use crate::codec::{Encode, Measured, RawBlock};
use crate::connection::{Inner, Locked};
use crate::deadline;
use crate::outgoing::{check_metadata, measure};
use crate::received::ReceivedBlock;
use crate::session::Session;
use crate::submit::{OutgoingMessage, PendingDescriptor};
use crate::tables::calls::{Outcome, Removed};
use crate::tables::retry::Attempts;
use crate::tables::space::Ticket;
use crate::tables::streams::Side;
use tollgate_shm_abi::Code;
use tollgate_shm_abi::descriptor::Part;
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::wait::now_ns;

impl Session {
    /// Calls a method with a message. The first poll of the future writes the message into shared
    /// memory; if there is no room, it waits for room. Dropping the future cancels the call.
    ///
    /// # Errors
    /// The status that the call ended with; RESOURCE_EXHAUSTED for a message that is too long or
    /// for too many calls at once, DEADLINE_EXCEEDED after `timeout`, UNAVAILABLE when the session
    /// ends first. A call of an idempotent method that ended UNAVAILABLE has been tried again
    /// ([`SessionOptions::retries`](crate::SessionOptions::retries)).
    pub fn call<E: Encode>(&self, handle: u32, message: E, timeout: Option<Duration>) -> Call<E> {
        Call {
            inner: self.inner(),
            session: self.clone(),
            state: State::New { timeout },
            handle,
            deadline_ns: 0,
            attempts: Attempts::default(),
            message,
            metadata: MetadataBuf::new(),
            measured: None,
            ticket: None,
        }
    }

    /// Calls a method with a block in canonical form, which [`crate::codec::encode_inline`] and the
    /// schema crate's `dynamic` write.
    ///
    /// # Errors
    /// The same as [`Session::call`].
    pub fn call_raw<B: AsRef<[u8]>>(
        &self,
        handle: u32,
        block: B,
        timeout: Option<Duration>,
    ) -> Call<RawBlock<B>> {
        self.call(handle, RawBlock(block), timeout)
    }
}

/// A call; resolves to its reply.
#[derive(Debug)]
#[must_use = "a call is issued when it is first polled"]
pub struct Call<E> {
    inner: Arc<Inner>,
    /// Ends with the last of its users.
    #[allow(dead_code, reason = "it is only held")]
    session: Session,
    state: State,
    handle: u32,
    /// Set once the call has begun; 0 for none.
    deadline_ns: u64,
    attempts: Attempts,
    message: E,
    metadata: MetadataBuf,
    measured: Option<Measured>,
    ticket: Option<Ticket>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Not in any table yet.
    New {
        timeout: Option<Duration>,
    },
    /// Not in any table, because its method isn't bound. The driving thread has had a turn
    /// meanwhile, which may have bound it.
    Unbound,
    /// In the call table, waiting for room.
    Waiting {
        id: u64,
        pending: PendingDescriptor,
    },
    /// The daemon has it.
    Submitted {
        id: u64,
    },
    /// It ended, and is to be made again. Its entry in the call table only waits for its deadline,
    /// the end of the pause.
    Pausing {
        id: u64,
    },
    Finished,
}

// The message is never pinned. It is only read through `&self.message`.
impl<E> Unpin for Call<E> {}

impl<E: Encode> Future for Call<E> {
    type Output = Result<ReceivedBlock, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = &mut *self;
        let polled = match call.state {
            State::New { timeout } => {
                call.deadline_ns = deadline::of_call(timeout);
                call.begin(cx)
            }
            State::Unbound => call.begin(cx),
            State::Waiting { id, pending } => call.resume(id, pending, cx),
            State::Submitted { id } => take_outcome(&call.inner, id, cx),
            State::Pausing { id } => call.begin_again(id, cx),
            State::Finished => panic!("a call that has ended was polled again"),
        };
        let polled = match polled {
            Poll::Ready(Err(status)) if status.code == Code::UNAVAILABLE => call.pause(status, cx),
            other => other,
        };
        match polled {
            Poll::Pending => call.inner.ensure_driven(),
            Poll::Ready(_) => call.finish(),
        }
        polled
    }
}

impl<E: Encode> Call<E> {
    /// Enters the call into the table, and submits it if there is room.
    fn begin(&mut self, cx: &Context<'_>) -> Poll<Result<ReceivedBlock, Status>> {
        let inner = Arc::clone(&self.inner);
        let measured = measure(&self.message, &inner)?;
        check_metadata(&self.metadata, &inner)?;
        let deadline_ns = self.deadline_ns;
        let mut shared = inner.lock();
        if let Some(status) = shared.ended() {
            return Poll::Ready(Err(status.clone()));
        }
        let method = match shared.methods.resolve(self.handle) {
            // A program that only calls again and again would never let its service be bound.
            Err(_) if matches!(self.state, State::New { .. }) => {
                drop(shared);
                self.state = State::Unbound;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            method => method?,
        };
        let id = insert(&mut shared, deadline_ns, cx)?;
        self.measured = Some(measured);
        let pending = PendingDescriptor::Call {
            method,
            call: id,
            part: Part::ONLY,
            deadline_ns,
        };
        self.state = State::Waiting { id, pending };
        self.submit(shared, id, pending, cx)
    }

    /// Continues a call that was waiting for room: it may have expired, there may be room, or
    /// neither.
    fn resume(
        &mut self,
        id: u64,
        pending: PendingDescriptor,
        cx: &Context<'_>,
    ) -> Poll<Result<ReceivedBlock, Status>> {
        let inner = Arc::clone(&self.inner);
        let mut shared = inner.lock();
        if let Some(outcome) = shared.calls.poll(id, cx.waker()) {
            return Poll::Ready(received(&inner, shared, id, outcome));
        }
        self.submit(shared, id, pending, cx)
    }

    fn submit(
        &mut self,
        mut shared: Locked<'_>,
        id: u64,
        pending: PendingDescriptor,
        cx: &Context<'_>,
    ) -> Poll<Result<ReceivedBlock, Status>> {
        let measured = self
            .measured
            .as_ref()
            .expect("a call is measured before it waits");
        let outgoing = OutgoingMessage {
            message: &self.message,
            measured,
            metadata: self.metadata.as_bytes(),
        };
        match shared.poll_space(outgoing.room(), &mut self.ticket, cx.waker()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(status)) => Poll::Ready(Err(status)),
            Poll::Ready(Ok(block)) => {
                shared.submit(outgoing, block, pending)?;
                self.state = State::Submitted { id };
                Poll::Pending
            }
        }
    }
}

impl<E: Encode> Call<E> {
    /// Handles a call that ended UNAVAILABLE: makes it again after a pause, if it may be retried.
    #[cold]
    fn pause(&mut self, status: Status, cx: &Context<'_>) -> Poll<Result<ReceivedBlock, Status>> {
        let inner = Arc::clone(&self.inner);
        self.finish();
        let mut shared = inner.lock();
        let may = shared.ended().is_none()
            && shared.methods.is_idempotent(self.handle)
            && shared.retry_budget.failed();
        if !may {
            return Poll::Ready(Err(status));
        }
        let Some(pause) = self.attempts.next(inner.retries, status.retry_after) else {
            return Poll::Ready(Err(status));
        };
        let over_ns = now_ns().saturating_add(pause.as_nanos() as u64);
        if self.deadline_ns != 0 && over_ns >= self.deadline_ns {
            return Poll::Ready(Err(status));
        }
        let Ok(id) = insert(&mut shared, over_ns, cx) else {
            return Poll::Ready(Err(status));
        };
        self.state = State::Pausing { id };
        Poll::Pending
    }

    /// Checks whether the pause is over, or the session.
    #[cold]
    fn begin_again(&mut self, id: u64, cx: &Context<'_>) -> Poll<Result<ReceivedBlock, Status>> {
        let outcome = self.inner.lock().calls.poll(id, cx.waker());
        match outcome {
            None => Poll::Pending,
            Some(Outcome::Failed(status)) if status.code != Code::DEADLINE_EXCEEDED => {
                Poll::Ready(Err(status))
            }
            Some(_) => self.begin(cx),
        }
    }
}

/// Enters a call into the table.
fn insert(shared: &mut Locked<'_>, deadline_ns: u64, cx: &Context<'_>) -> Result<u64, Status> {
    let due_before = shared.calls.next_deadline_ns();
    let Some(id) = shared.calls.insert(deadline_ns, cx.waker()) else {
        let max = shared.calls.max();
        let text = format!("the session has {max} calls in flight, the most that it may have");
        return Err(Status::resource_exhausted(text));
    };
    shared.nudge |= shared.calls.next_deadline_ns() < due_before;
    Ok(id)
}

impl<E> Call<E> {
    /// Sends this metadata with the message. A reserved key in it makes the call fail with
    /// INVALID_ARGUMENT.
    pub fn with_metadata(mut self, metadata: MetadataBuf) -> Call<E> {
        self.metadata = metadata;
        self
    }

    /// Removes the call from the table and the queue, in any state.
    fn finish(&mut self) {
        let id = match std::mem::replace(&mut self.state, State::Finished) {
            State::Waiting { id, .. } | State::Submitted { id } | State::Pausing { id } => id,
            State::New { .. } | State::Unbound | State::Finished => return,
        };
        let mut shared = self.inner.lock();
        shared.leave_queue(&mut self.ticket);
        match shared.calls.remove(id) {
            Some(Removed::Submitted) => shared.cancel(id),
            Some(Removed::Done(Outcome::Reply(image))) => shared.release_image(&image),
            Some(Removed::Unsubmitted | Removed::Done(Outcome::Failed(_))) | None => {}
        }
        shared.forget_stream((Side::Own, id));
    }
}

impl<E> Drop for Call<E> {
    fn drop(&mut self) {
        self.finish();
    }
}

fn take_outcome(
    inner: &Arc<Inner>,
    id: u64,
    cx: &Context<'_>,
) -> Poll<Result<ReceivedBlock, Status>> {
    let mut shared = inner.lock();
    match shared.calls.poll(id, cx.waker()) {
        Some(outcome) => Poll::Ready(received(inner, shared, id, outcome)),
        None => Poll::Pending,
    }
}

fn received(
    inner: &Arc<Inner>,
    mut shared: Locked<'_>,
    id: u64,
    outcome: Outcome,
) -> Result<ReceivedBlock, Status> {
    match outcome {
        Outcome::Reply(image) => {
            shared.retry_budget.succeeded();
            drop(shared);
            ReceivedBlock::claim(inner, &image)
        }
        Outcome::Failed(Status {
            code: Code::OK,
            metadata,
            ..
        }) => only_response(inner, shared, id, metadata),
        Outcome::Failed(status) => Err(status),
    }
}

/// The one response before the end of a call with trailers.
#[cold]
fn only_response(
    inner: &Arc<Inner>,
    mut shared: Locked<'_>,
    id: u64,
    trailers: MetadataBuf,
) -> Result<ReceivedBlock, Status> {
    let items = shared.streams.remove((Side::Own, id));
    drop(shared);
    let mut blocks = Vec::new();
    let mut metadata = MetadataBuf::new();
    for item in items {
        let mut block = ReceivedBlock::claim_part(inner, &item.image, item.bare)?;
        match item.bare {
            true => metadata = block.take_metadata(),
            false => blocks.push(block),
        }
    }
    let count = blocks.len();
    match (blocks.pop(), count) {
        (Some(mut block), 1) => {
            if block.metadata.is_empty() {
                block.metadata = metadata;
            }
            block.trailers = trailers;
            Ok(block)
        }
        _ => Err(Status::new(
            Code::INTERNAL,
            format!("the server answered with {count} messages instead of one"),
        )),
    }
}
