//! The calling side: channels, and the base of generated clients.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use futures_core::Stream;
use tollgate_core::codec::{Encode, Message};
use tollgate_core::{Code, Opening, ServiceInfo, Session, Status, StreamReceiver, StreamSender};

use crate::{MetadataMap, Received, Reply, Request, Response, Streaming};

/// The destination of calls: a session, and the daemon that serves.
#[derive(Clone)]
pub struct Channel {
    session: Session,
    target: Arc<str>,
    interceptor: Option<Arc<Interceptor>>,
}

/// A function that sees the metadata of each call before it is sent.
type Interceptor = dyn Fn(&mut MetadataMap) -> Result<(), Status> + Send + Sync;

impl Channel {
    /// Calls go to servers of `target`, a daemon's `host:port`. An empty `target` is this host's
    /// daemon.
    pub fn new(session: &Session, target: &str) -> Channel {
        Channel {
            session: session.clone(),
            target: target.into(),
            interceptor: None,
        }
    }

    /// A channel whose calls also run this interceptor on their metadata, after earlier
    /// interceptors. It runs at the first poll of a call, so it sees what is current there, such as
    /// a span. If it returns an error, the call ends with that and isn't sent.
    pub fn with_interceptor(
        self,
        interceptor: impl Fn(&mut MetadataMap) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Channel {
        let interceptor: Arc<Interceptor> = match self.interceptor {
            None => Arc::new(interceptor),
            Some(earlier) => Arc::new(move |metadata| {
                earlier(metadata)?;
                interceptor(metadata)
            }),
        };
        Channel {
            interceptor: Some(interceptor),
            ..self
        }
    }

    /// The session that carries the calls.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The daemon that serves.
    pub fn target(&self) -> &str {
        &self.target
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut channel = f.debug_struct("Channel");
        channel.field("session", &self.session);
        channel.field("target", &self.target);
        channel.finish_non_exhaustive()
    }
}

/// The base of generated clients: a channel and one service's binding.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    service: &'static ServiceInfo<'static>,
    /// The methods' handles, once bound; `None` for a method that the daemon doesn't know.
    handles: Arc<OnceLock<Vec<Option<u32>>>>,
}

impl Client {
    /// A client that binds with its first call.
    pub fn new(channel: Channel, service: &'static ServiceInfo<'static>) -> Client {
        Client {
            channel,
            service,
            handles: Arc::default(),
        }
    }

    /// Calls the method with this index in [`ServiceInfo::methods`].
    ///
    /// # Errors
    /// The status of a failed binding or call.
    pub async fn unary<E: Encode, R: Message>(
        &self,
        method: usize,
        request: Request<E>,
    ) -> Reply<Received<R>> {
        let request = self.intercepted(request)?;
        let handle = self.handle(method).await?;
        let timeout = request.timeout();
        let (metadata, message) = request.into_parts();
        let mut block = self
            .channel
            .session
            .call(handle, message, timeout)
            .with_metadata(metadata.into_buf())
            .await?;
        let (metadata, trailers) = (block.take_metadata(), block.take_trailers());
        let mut response = Response::new(Received::new(block));
        *response.metadata_mut() = metadata.into();
        *response.trailers_mut() = trailers.into();
        Ok(response)
    }

    /// Like [`unary`](Self::unary), for a method that takes a stream of requests.
    ///
    /// # Errors
    /// Like there.
    pub async fn client_streaming<E: Encode + Send + Sync + 'static, R: Message>(
        &self,
        method: usize,
        requests: Request<impl Stream<Item = E> + Send + 'static>,
    ) -> Reply<Received<R>> {
        let mut responses = self.open_with(method, requests).await?;
        let block = responses.next().await?;
        let metadata = responses.metadata().await?.clone();
        let Some(block) = block else {
            return Err(answered(0));
        };
        if responses.next().await?.is_some() {
            return Err(answered(2));
        }
        let mut response = Response::new(Received::new(block));
        *response.metadata_mut() = metadata.into();
        let trailers = responses.trailers().cloned().unwrap_or_default();
        *response.trailers_mut() = trailers.into();
        Ok(response)
    }

    /// Like [`unary`](Self::unary), for a method that answers with a stream.
    ///
    /// # Errors
    /// Like there, if the call fails before the responses begin; later errors come from the stream.
    pub async fn server_streaming<E: Encode, R: Message>(
        &self,
        method: usize,
        request: Request<E>,
    ) -> Reply<Streaming<R>> {
        let request = self.intercepted(request)?;
        let handle = self.handle(method).await?;
        let timeout = request.timeout();
        let (metadata, message) = request.into_parts();
        let opening = Opening {
            metadata: metadata.into_buf(),
            timeout,
            is_last: true,
        };
        let session = &self.channel.session;
        let (_finished, responses) = session.open_stream(handle, Some(&message), opening).await?;
        begun(responses).await
    }

    /// Like [`server_streaming`](Self::server_streaming), for a method that also takes a stream of
    /// requests.
    ///
    /// # Errors
    /// Like there.
    pub async fn streaming<E: Encode + Send + Sync + 'static, R: Message>(
        &self,
        method: usize,
        requests: Request<impl Stream<Item = E> + Send + 'static>,
    ) -> Reply<Streaming<R>> {
        let responses = self.open_with(method, requests).await?;
        begun(responses).await
    }

    /// Opens a stream, with the first request if it is ready, and sends the others as they come.
    async fn open_with<E: Encode + Send + Sync + 'static>(
        &self,
        method: usize,
        requests: Request<impl Stream<Item = E> + Send + 'static>,
    ) -> Result<StreamReceiver, Status> {
        let requests = self.intercepted(requests)?;
        let handle = self.handle(method).await?;
        let timeout = requests.timeout();
        let (metadata, requests) = requests.into_parts();
        let mut requests = Box::pin(requests);
        let first = poll_fn(|cx| Poll::Ready(requests.as_mut().poll_next(cx))).await;
        let opening = Opening {
            metadata: metadata.into_buf(),
            timeout,
            is_last: matches!(first, Poll::Ready(None)),
        };
        let first = match first {
            Poll::Ready(first) => first,
            Poll::Pending => None,
        };
        let session = &self.channel.session;
        let (sender, responses) = session.open_stream(handle, first.as_ref(), opening).await?;
        session.spawn(send_all(sender, requests));
        Ok(responses)
    }

    /// Runs the interceptor before the first wait: later, another context may be current.
    fn intercepted<T>(&self, mut request: Request<T>) -> Result<Request<T>, Status> {
        if let Some(interceptor) = &self.channel.interceptor {
            interceptor(request.metadata_mut())?;
        }
        Ok(request)
    }

    async fn handle(&self, method: usize) -> Result<u32, Status> {
        let handle = match self.handles.get() {
            Some(handles) => handles[method],
            None => self.bind().await?[method],
        };
        handle.ok_or_else(|| {
            let method = self.name_of(method);
            Status::new(
                Code::UNIMPLEMENTED,
                format!("the daemon bound a service without its method {method}"),
            )
        })
    }

    /// `service/method`.
    pub(crate) fn name_of(&self, method: usize) -> String {
        format!("{}/{}", self.service.name, self.service.methods[method])
    }

    /// Binds the service now rather than with the first call.
    ///
    /// # Errors
    /// Like [`Session::bind_client`]; the next call tries again.
    pub async fn bind(&self) -> Result<&[Option<u32>], Status> {
        let binding = self
            .channel
            .session
            .bind_client(
                self.service.descriptor_set,
                self.service.name,
                &self.channel.target,
            )
            .await?;
        let handles = self
            .service
            .methods
            .iter()
            .map(|name| binding.handle(name))
            .collect();
        // Two first calls at once may both bind; they get the same handles.
        Ok(self.handles.get_or_init(|| handles))
    }
}

/// The responses, once they have begun, with their metadata.
async fn begun<R: Message>(mut responses: StreamReceiver) -> Reply<Streaming<R>> {
    let metadata = responses.metadata().await?.clone();
    let mut response = Response::new(Streaming::of_responses(responses));
    *response.metadata_mut() = metadata.into();
    Ok(response)
}

/// Sends the messages of a stream until the stream or the call ends.
async fn send_all<E: Encode>(
    mut sender: StreamSender,
    mut requests: Pin<Box<impl Stream<Item = E>>>,
) {
    loop {
        let next = poll_fn(|cx| {
            if sender.poll_closed(cx).is_ready() {
                return Poll::Ready(None);
            }
            requests.as_mut().poll_next(cx).map(Some)
        });
        match next.await {
            Some(Some(message)) => {
                if sender.send(&message).await.is_err() {
                    // The call is over, or a message can't be sent. The sender is dropped
                    // unfinished, which cancels the call.
                    return;
                }
            }
            Some(None) => return sender.finish(),
            None => return,
        }
    }
}

fn answered(count: usize) -> Status {
    let text = match count {
        0 => "the server ended the call without a reply",
        _ => "the server answered with several messages instead of one",
    };
    Status::new(Code::INTERNAL, text)
}
