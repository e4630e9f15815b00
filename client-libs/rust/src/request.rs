//! What a call carries besides its message.

use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use tollgate_core::Status;
use tollgate_core::codec::{Encode, Message};

use crate::MetadataMap;

/// How a call ends: with a response or a status.
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

    /// Ends the call with DEADLINE_EXCEEDED if it takes longer than this from its first poll on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// The timeout. At a server: what was left of it when the request arrived.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// What is sent beside the message. At a server: what came beside it.
    pub fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    /// What is sent beside the message, to be changed.
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to be changed.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The message and what goes beside it.
    pub fn into_parts(self) -> (MetadataMap, T) {
        (self.metadata, self.message)
    }
}

/// What a generated client's method takes: the message, a [`Request`] with it, or either with the message in an
/// [`Arc`], so that one that is sent often isn't copied.
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

/// What a generated client's method with a stream of requests takes: a [`Stream`] of messages, or a [`Request`] with one.
///
/// The stream is polled on the thread that drives the session, so it mustn't block.
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

    /// What is sent beside the message. At a client: what came beside it.
    pub fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    /// What is sent beside the message, to be changed.
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata
    }

    /// What is sent behind the message or the stream, when the call ends. At a client: what came behind the message; of a stream see
    /// [`Streaming::trailers`](crate::Streaming::trailers).
    pub fn trailers(&self) -> &MetadataMap {
        &self.trailers
    }

    /// What is sent behind the message or the stream, to be changed. A reply with trailers takes two steps.
    pub fn trailers_mut(&mut self) -> &mut MetadataMap {
        &mut self.trailers
    }

    /// The message.
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to be changed.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The message and what came, or goes, beside it.
    pub fn into_parts(self) -> (MetadataMap, T) {
        (self.metadata, self.message)
    }
}

impl<T> From<T> for Response<T> {
    fn from(message: T) -> Response<T> {
        Response::new(message)
    }
}
