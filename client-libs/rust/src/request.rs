//! Requests and responses: messages with their metadata and timeouts.

use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use tollgate_core::Status;
use tollgate_core::codec::{Encode, Message};

use crate::MetadataMap;

/// The result of a call: a response or a status.
pub type Reply<T> = Result<Response<T>, Status>;

/// A message on its way to a server.
#[derive(Clone, Debug)]
pub struct Request<T> {
    message: T,
    timeout: Option<Duration>,
    metadata: MetadataMap,
}

impl<T> Request<T> {
    /// A request without a timeout.
    pub fn new(message: T) -> Request<T> {
        Request {
            message,
            timeout: None,
            metadata: MetadataMap::new(),
        }
    }

    /// Ends the call with DEADLINE_EXCEEDED after this time, counted from its first poll.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// The timeout. At a server: the time that was left when the request arrived.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The metadata. At a client it is sent with the message; at a server it came with it.
    pub fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    /// The metadata, mutable.
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, mutable.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The metadata and the message.
    pub fn into_parts(self) -> (MetadataMap, T) {
        (self.metadata, self.message)
    }
}

/// The argument of a generated client's method: the message, or a [`Request`] with it. Either may
/// have the message in an [`Arc`], which avoids copies of a message that is sent often.
pub trait IntoRequest<M> {
    /// The message, possibly in an `Arc`.
    type Message: Encode;

    /// The request.
    fn into_request(self) -> Request<Self::Message>;
}

impl<M: Message> IntoRequest<M> for M {
    type Message = M;

    fn into_request(self) -> Request<M> {
        Request::new(self)
    }
}

impl<M: Message> IntoRequest<M> for Arc<M> {
    type Message = Arc<M>;

    fn into_request(self) -> Request<Arc<M>> {
        Request::new(self)
    }
}

impl<M: Message> IntoRequest<M> for Request<M> {
    type Message = M;

    fn into_request(self) -> Request<M> {
        self
    }
}

impl<M: Message> IntoRequest<M> for Request<Arc<M>> {
    type Message = Arc<M>;

    fn into_request(self) -> Request<Arc<M>> {
        self
    }
}

/// The argument of a generated client's method with a stream of requests: a [`Stream`] of messages,
/// or a [`Request`] with one.
///
/// The stream is polled on the thread that drives the session, so it must not block.
pub trait IntoStreamingRequest<M> {
    /// The stream.
    type Stream: Stream<Item = M> + Send + 'static;

    /// The request.
    fn into_streaming_request(self) -> Request<Self::Stream>;
}

impl<M, S: Stream<Item = M> + Send + 'static> IntoStreamingRequest<M> for S {
    type Stream = S;

    fn into_streaming_request(self) -> Request<S> {
        Request::new(self)
    }
}

impl<M, S: Stream<Item = M> + Send + 'static> IntoStreamingRequest<M> for Request<S> {
    type Stream = S;

    fn into_streaming_request(self) -> Request<S> {
        self
    }
}

/// A message on its way back.
#[derive(Clone, Debug)]
pub struct Response<T> {
    message: T,
    metadata: MetadataMap,
    trailers: MetadataMap,
}

impl<T> Response<T> {
    /// A response.
    pub fn new(message: T) -> Response<T> {
        Response {
            message,
            metadata: MetadataMap::new(),
            trailers: MetadataMap::new(),
        }
    }

    /// The metadata. At a server it is sent before the message; at a client it came with it.
    pub fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    /// The metadata, mutable.
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata
    }

    /// The trailers: metadata that is sent after the message or the stream, when the call ends. A
    /// client finds those of a stream with [`Streaming::trailers`](crate::Streaming::trailers).
    pub fn trailers(&self) -> &MetadataMap {
        &self.trailers
    }

    /// The trailers, mutable. A reply with trailers is sent in two steps.
    pub fn trailers_mut(&mut self) -> &mut MetadataMap {
        &mut self.trailers
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, mutable.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The metadata and the message.
    pub fn into_parts(self) -> (MetadataMap, T) {
        (self.metadata, self.message)
    }
}

impl<T> From<T> for Response<T> {
    fn from(message: T) -> Response<T> {
        Response::new(message)
    }
}
