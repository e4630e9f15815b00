//! Streams of messages: a client's responses, or a server's requests.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

pub use futures_core::Stream;
use tollgate_core::codec::Message;
use tollgate_core::{ReceivedBlock, Requests, Status, StreamReceiver};

use crate::{MetadataMap, Received};

/// A stream of received messages, each a view into shared memory. Dropping a client's stream before
/// its end cancels the call.
///
/// ```no_run
/// # async fn example<M: tollgate::codec::Message + std::fmt::Debug>(mut responses: tollgate::Streaming<M>) -> Result<(), tollgate::Status> {
/// while let Some(message) = responses.message().await? {
///     println!("{message:?}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct Streaming<M> {
    source: Source,
    message: PhantomData<fn() -> M>,
}

enum Source {
    Responses(StreamReceiver),
    Requests(Requests),
}

impl<M: Message> Streaming<M> {
    pub(crate) fn of_responses(responses: StreamReceiver) -> Streaming<M> {
        Streaming {
            source: Source::Responses(responses),
            message: PhantomData,
        }
    }

    pub(crate) fn of_requests(requests: Requests) -> Streaming<M> {
        Streaming {
            source: Source::Requests(requests),
            message: PhantomData,
        }
    }

    /// The next message, or `None` after the last.
    ///
    /// # Errors
    /// For responses, the call's status if it failed; for requests, CANCELLED if the caller no
    /// longer waits.
    pub async fn message(&mut self) -> Result<Option<Received<M>>, Status> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// The trailers of a call that ended without an error, after the last message. A stream of
    /// requests has none.
    pub fn trailers(&self) -> Option<MetadataMap> {
        match &self.source {
            Source::Responses(responses) => Some(responses.trailers()?.clone().into()),
            Source::Requests(_) => None,
        }
    }

    fn poll_message(&mut self, cx: &Context<'_>) -> Poll<Result<Option<Received<M>>, Status>> {
        let block: Poll<Result<Option<ReceivedBlock>, Status>> = match &mut self.source {
            Source::Responses(responses) => responses.poll_next(cx),
            Source::Requests(requests) => requests.poll_next(cx),
        };
        block.map_ok(|block| block.map(Received::new))
    }
}

impl<M: Message> Stream for Streaming<M> {
    type Item = Result<Received<M>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx).map(Result::transpose)
    }
}

impl<M> fmt::Debug for Streaming<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.source {
            Source::Responses(_) => "Streaming(responses)",
            Source::Requests(_) => "Streaming(requests)",
        })
    }
}
