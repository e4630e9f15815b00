//! Incoming calls: services, handlers, answers.
//!
//! ```text
//!   CALL ──▶ start: Service::call ──▶ future, polled at once ──ready──▶ answered, nothing was stored but one box
//!                                        │ pending
//!                                        ▼
//!                                     a task, polled when woken ──▶ answered
//!   CANCEL ──▶ the task is dropped where it stands
//! ```
//!
//! Handlers run on the thread that drives the session. A handler answers through its [`Responder`],
//! straight into the send heap. If a handler ends without an answer, or panics, the call ends with
//! INTERNAL. The daemon ignores an answer that crosses a CANCEL.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tollgate_shm_abi::Code;
use tollgate_shm_abi::descriptor::Part;
use tollgate_shm_abi::messages::FEATURE_WAITS;
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::wait::now_ns;

use crate::Status;
use crate::codec::Encode;
use crate::connection::Inner;
use crate::deadline::Deadline;
use crate::outgoing::{NOTHING, check_metadata, check_streams, post};
use crate::ready::HandlerFuture;
use crate::received::ReceivedBlock;
use crate::submit::PendingDescriptor;
use crate::tables::streams::{Item, Next, Side, StreamKey};

/// Identifies a service to the daemon.
#[derive(Clone, Copy, Debug)]
pub struct ServiceInfo<'a> {
    /// Full name, such as `hotel.Reservation`.
    pub name: &'a str,
    /// The methods' names in the order in which [`Service::call`] counts them; empty for the
    /// schema's order.
    pub methods: &'a [&'a str],
    /// A serialized `FileDescriptorSet` with all imports.
    pub descriptor_set: &'a [u8],
}

/// A service that answers calls.
pub trait Service: Send + Sync + 'static {
    /// Its name and schema.
    fn info(&self) -> ServiceInfo<'_>;

    /// Begins to handle a call of the method with this index.
    fn call(&self, method: usize, call: Incoming) -> HandlerFuture;
}

/// An incoming call.
#[derive(Debug)]
pub struct Incoming {
    /// The request. For a method that takes a stream of requests, the first one. If there is none,
    /// an empty block with the call's metadata.
    pub request: ReceivedBlock,
    /// Answers the call.
    pub responder: Responder,
    part: Part,
    /// Absolute CLOCK_MONOTONIC nanoseconds; 0 for none.
    deadline_ns: u64,
}

impl Incoming {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        call: u64,
        (part, request): (Part, ReceivedBlock),
        times: CallTimes,
    ) -> Incoming {
        let guard = IncomingStream {
            inner: Arc::clone(inner),
            call,
        };
        inner.serving.fetch_add(1, Ordering::SeqCst);
        let responder = Responder {
            inner: Arc::clone(inner),
            call,
            waited_ns: times.waited_ns(),
            answered: false,
            stream: part.more.then(|| Arc::new(guard)),
        };
        Incoming {
            request,
            responder,
            part,
            deadline_ns: times.deadline_ns,
        }
    }

    /// Absolute CLOCK_MONOTONIC nanoseconds; 0 for none.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// When the caller gives up, for programs that run the handler on a thread of their own.
    pub fn deadline(&self) -> Deadline {
        Deadline {
            ns: self.deadline_ns,
        }
    }

    /// All requests, for a method that takes a stream of them, and the responder.
    pub fn into_stream(mut self) -> (Requests, Responder) {
        let metadata = self.request.take_metadata();
        let requests = Requests {
            first: (!self.part.bare).then_some(self.request),
            rest: self.responder.stream.clone(),
            metadata,
        };
        (requests, self.responder)
    }

    /// The time until the caller's deadline; `None` without one.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline().time_left()
    }
}

/// An incoming call's place in the table of streams.
#[derive(Debug)]
struct IncomingStream {
    inner: Arc<Inner>,
    call: u64,
}

impl IncomingStream {
    fn key(&self) -> StreamKey {
        (Side::Incoming, self.call)
    }
}

impl Drop for IncomingStream {
    fn drop(&mut self) {
        self.inner.lock().forget_stream(self.key());
    }
}

/// The requests of one incoming call.
#[derive(Debug)]
pub struct Requests {
    first: Option<ReceivedBlock>,
    /// `None`: there are no more requests.
    rest: Option<Arc<IncomingStream>>,
    metadata: MetadataBuf,
}

impl Requests {
    /// The metadata of the requests.
    pub fn metadata(&self) -> &MetadataBuf {
        &self.metadata
    }

    /// Takes the metadata of the requests.
    pub fn take_metadata(&mut self) -> MetadataBuf {
        std::mem::take(&mut self.metadata)
    }

    /// The next request, or `None` after the last.
    ///
    /// # Errors
    /// CANCELLED if the caller doesn't wait for the answer any more.
    pub async fn next(&mut self) -> Result<Option<ReceivedBlock>, Status> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Like [`next`](Self::next).
    ///
    /// # Errors
    /// The same as [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Result<Option<ReceivedBlock>, Status>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(Some(first)));
        }
        let Some(stream) = &self.rest else {
            return Poll::Ready(Ok(None));
        };
        let mut shared = stream.inner.lock();
        Poll::Ready(match shared.streams.next(stream.key(), cx.waker()) {
            Next::Item(Item { image, bare, .. }, credit) => {
                if let Some(credit) = credit {
                    shared.credit_requests(stream.call, credit);
                }
                drop(shared);
                ReceivedBlock::claim_part(&stream.inner, &image, bare).map(Some)
            }
            Next::End => Ok(None),
            Next::Wait => {
                drop(shared);
                stream.inner.ensure_driven();
                return Poll::Pending;
            }
            Next::Over => Err(match shared.ended() {
                Some(status) => status.clone(),
                None => Status::new(
                    Code::CANCELLED,
                    "the caller doesn't wait for an answer any more",
                ),
            }),
        })
    }
}

/// Answers one incoming call. Dropping it unused answers INTERNAL.
#[derive(Debug)]
pub struct Responder {
    inner: Arc<Inner>,
    call: u64,
    /// How long the call waited until its handler began, in ns; 0 if the daemon doesn't ask, or was
    /// told.
    waited_ns: u64,
    answered: bool,
    /// Set once there is more than one request, or a response before the answer.
    stream: Option<Arc<IncomingStream>>,
}

/// Times of an incoming call, in CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct CallTimes {
    /// 0 for none.
    pub(crate) deadline_ns: u64,
    /// 0 if the daemon doesn't ask how long the call waits.
    pub(crate) delivered_ns: u64,
}

impl CallTimes {
    /// How long the call has waited, in ns; 0 if the daemon doesn't ask.
    fn waited_ns(&self) -> u64 {
        match self.delivered_ns {
            0 => 0,
            delivered_ns => now_ns().saturating_sub(delivered_ns).max(1),
        }
    }
}

impl Responder {
    /// Answers with a message, once there is room for it. A message that may not be sent becomes a
    /// status.
    pub async fn reply(self, message: &impl Encode) {
        self.reply_with(message, &MetadataBuf::new()).await;
    }

    /// Like [`Responder::reply`], with metadata. A reserved key in it becomes a status, too.
    pub async fn reply_with(mut self, message: &impl Encode, metadata: &MetadataBuf) {
        let pending = PendingDescriptor::Reply {
            call: self.call,
            waited_ns: self.waited_ns,
        };
        let replied = match check_metadata(metadata, &self.inner) {
            Ok(()) => post(&self.inner, message, metadata, pending).await,
            Err(status) => Err(status),
        };
        match replied {
            Ok(()) => self.answered = true,
            Err(status) => self.fail(&status),
        }
    }

    /// Sends a response; more responses or [`finish`](Self::finish) follow. Waits until its reader
    /// has room for it.
    ///
    /// # Errors
    /// CANCELLED if the caller doesn't wait for the answer any more. Otherwise the reason why the
    /// message couldn't be sent.
    pub async fn respond(&mut self, message: &impl Encode) -> Result<(), Status> {
        self.respond_part(message, &MetadataBuf::new(), false).await
    }

    /// Like [`respond`](Self::respond), with the responses' metadata, which travels with the first.
    ///
    /// # Errors
    /// The same as [`respond`](Self::respond), and INVALID_ARGUMENT for a reserved key.
    pub async fn respond_with(
        &mut self,
        message: &impl Encode,
        metadata: &MetadataBuf,
    ) -> Result<(), Status> {
        check_metadata(metadata, &self.inner)?;
        self.respond_part(message, metadata, false).await
    }

    /// Sends the responses' metadata, before the first of them.
    ///
    /// # Errors
    /// The same as [`respond`](Self::respond), and INVALID_ARGUMENT for a reserved key.
    pub async fn send_metadata(&mut self, metadata: &MetadataBuf) -> Result<(), Status> {
        check_metadata(metadata, &self.inner)?;
        self.respond_part(&NOTHING, metadata, true).await
    }

    async fn respond_part(
        &mut self,
        message: &impl Encode,
        metadata: &MetadataBuf,
        bare: bool,
    ) -> Result<(), Status> {
        check_streams(&self.inner)?;
        self.open_stream();
        let pending = PendingDescriptor::Response {
            call: self.call,
            bare,
            waited_ns: self.waited_ns,
        };
        post(&self.inner, message, metadata, pending).await?;
        self.waited_ns = 0;
        Ok(())
    }

    fn open_stream(&mut self) {
        if self.stream.is_none() {
            let guard = IncomingStream {
                inner: Arc::clone(&self.inner),
                call: self.call,
            };
            self.inner.lock().streams.open(guard.key());
            self.stream = Some(Arc::new(guard));
        }
    }

    /// Ends the responses successfully, with these trailers. A reserved key in them becomes a
    /// status.
    pub fn finish(mut self, trailers: MetadataBuf) {
        if let Err(status) = check_metadata(&trailers, &self.inner) {
            return self.fail(&status);
        }
        self.answered = true;
        let mut status = Status::new(Code::OK, "");
        status.metadata = trailers;
        self.answer(&status);
    }

    /// Waits until the caller doesn't wait for the answer any more.
    pub async fn cancelled(&mut self) {
        self.open_stream();
        std::future::poll_fn(|cx| {
            let key = (Side::Incoming, self.call);
            self.inner.lock().streams.poll_over(key, cx.waker())
        })
        .await;
    }

    /// Answers with an error; OK counts as UNKNOWN.
    pub fn fail(mut self, status: &Status) {
        self.answered = true;
        match status.code {
            Code::OK => self.answer(&Status::new(Code::UNKNOWN, status.message.as_str())),
            _ => self.answer(status),
        }
    }

    fn answer(&self, status: &Status) {
        let retry_after_ms = match self.inner.opened.features & FEATURE_WAITS {
            0 => 0,
            _ => status.retry_after_ms(),
        };
        let mut shared = self.inner.lock();
        shared.answer_status(self.call, status, (self.waited_ns, retry_after_ms));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let status = Status::new(Code::INTERNAL, "the handler ended without an answer");
            self.answer(&status);
        }
        self.inner.answered();
    }
}
