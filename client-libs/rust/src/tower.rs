//! Methods as tower services, so that existing layers (timeouts, rate and concurrency limits, load
//! shedding, buffers) can be put in front of them.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tollgate_core::Status;
use tollgate_core::codec::{Encode, Message};

use crate::{Client, Received, Reply, Request, Response, Streaming};

/// The result of a service's call.
pub type ReplyFuture<T> = Pin<Box<dyn Future<Output = Reply<T>> + Send>>;

/// A method with one request of type `Q` and one reply of type `A`. Generated clients make it:
/// `client.reserve_service()`.
///
/// It is always ready: the session limits calls and answers for those beyond the limits. The
/// service's error is the call's [`Status`]; a layer with errors of its own boxes both.
pub struct UnaryService<Q, A>(Method<Q, A>);

/// Like [`UnaryService`], for a method that answers with a stream of responses of type `A`.
pub struct ServerStreamingService<Q, A>(Method<Q, A>);

struct Method<Q, A> {
    client: Client,
    index: usize,
    messages: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Method<Q, A> {
    fn new(client: &Client, index: usize) -> Method<Q, A> {
        Method {
            client: client.clone(),
            index,
            messages: PhantomData,
        }
    }
}

impl<Q, A> UnaryService<Q, A> {
    /// The method with this index in [`ServiceInfo::methods`](crate::ServiceInfo::methods).
    pub fn new(client: &Client, method: usize) -> UnaryService<Q, A> {
        UnaryService(Method::new(client, method))
    }
}

impl<Q, A> ServerStreamingService<Q, A> {
    /// Like [`UnaryService::new`].
    pub fn new(client: &Client, method: usize) -> ServerStreamingService<Q, A> {
        ServerStreamingService(Method::new(client, method))
    }
}

impl<Q, A> tower_service::Service<Request<Q>> for UnaryService<Q, A>
where
    Q: Encode + Send + Sync + 'static,
    A: Message,
{
    type Response = Response<Received<A>>;
    type Error = Status;
    type Future = ReplyFuture<Received<A>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (client, index) = (self.0.client.clone(), self.0.index);
        Box::pin(async move { client.unary(index, request).await })
    }
}

impl<Q, A> tower_service::Service<Request<Q>> for ServerStreamingService<Q, A>
where
    Q: Encode + Send + Sync + 'static,
    A: Message,
{
    type Response = Response<Streaming<A>>;
    type Error = Status;
    type Future = ReplyFuture<Streaming<A>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (client, index) = (self.0.client.clone(), self.0.index);
        Box::pin(async move { client.server_streaming(index, request).await })
    }
}

// A derive would require the same traits of the messages.

impl<Q, A> Clone for Method<Q, A> {
    fn clone(&self) -> Self {
        Method::new(&self.client, self.index)
    }
}

impl<Q, A> fmt::Debug for Method<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.client.name_of(self.index))
    }
}

macro_rules! as_its_method {
    ($service:ident) => {
        impl<Q, A> Clone for $service<Q, A> {
            fn clone(&self) -> Self {
                $service(self.0.clone())
            }
        }

        impl<Q, A> fmt::Debug for $service<Q, A> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($service)).field(&self.0).finish()
            }
        }
    };
}

as_its_method!(UnaryService);
as_its_method!(ServerStreamingService);
