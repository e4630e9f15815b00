//! The serving side: servers, and the base of generated dispatchers.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tollgate_core::codec::Message;
use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{Code, Incoming, Responder, Service, Session, Status};

use crate::{Received, Reply, Request, Stream, Streaming};

type Bind = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Serves services on a session.
///
/// Handlers run on the thread that drives the session: [`block_on`](crate::block_on)'s, or the
/// session's own.
#[must_use = "nothing is served until `serve` or `bind` is awaited"]
pub struct Server {
    session: Session,
    binds: Vec<Bind>,
}

impl Server {
    /// A server without services.
    pub fn new(session: &Session) -> Server {
        Server {
            session: session.clone(),
            binds: Vec::new(),
        }
    }

    /// Adds a service, such as a generated `ReservationServer`.
    pub fn add_service(mut self, service: impl Service) -> Server {
        let session = self.session.clone();
        self.binds.push(Box::pin(async move {
            session.bind_server(service).await.map(|_| ())
        }));
        self
    }

    /// Binds the services. They are served until the session ends.
    ///
    /// # Errors
    /// Like [`Session::bind_server`]; services added before the one that failed are served.
    pub async fn bind(self) -> Result<(), Status> {
        for bind in self.binds {
            bind.await?;
        }
        Ok(())
    }

    /// Binds the services and serves them until the session ends, which is always an error.
    ///
    /// # Errors
    /// Like [`Server::bind`]; otherwise the reason for the session's end.
    pub async fn serve(self) -> Result<(), Status> {
        let session = self.session.clone();
        self.bind().await?;
        Err(session.closed().await)
    }
}

impl Server {
    /// Serves until `signal` is ready, then drains: the daemon sends no further calls, and the
    /// calls in flight are answered before this future is ready. Other servers of the same services
    /// take over without losing a call.
    ///
    /// # Errors
    /// Like [`Server::bind`] and [`Session::drain`]; the reason for the session's end, if it ends
    /// before the signal.
    pub async fn serve_with_shutdown(self, signal: impl Future<Output = ()>) -> Result<(), Status> {
        let session = self.session.clone();
        self.bind().await?;
        let (mut signal, mut closed) = (pin!(signal), pin!(session.closed()));
        let ended = poll_fn(|cx| match signal.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => closed.as_mut().poll(cx).map(Some),
        });
        match ended.await {
            Some(status) => Err(status),
            None => session.drain().await,
        }
    }
}

/// Splits an incoming call into request and responder. For generated code.
pub fn accept<M: Message>(call: Incoming) -> (Request<Received<M>>, Responder) {
    let time_left = call.time_left();
    let mut block = call.request;
    let metadata = block.take_metadata();
    let request = request(Received::new(block), metadata, time_left);
    (request, call.responder)
}

/// Like [`accept`], for a method that takes a stream. For generated code.
pub fn accept_stream<M: Message>(call: Incoming) -> (Request<Streaming<M>>, Responder) {
    let time_left = call.time_left();
    let (mut requests, responder) = call.into_stream();
    let metadata = requests.take_metadata();
    let request = request(Streaming::of_requests(requests), metadata, time_left);
    (request, responder)
}

fn request<T>(content: T, metadata: MetadataBuf, time_left: Option<Duration>) -> Request<T> {
    let mut request = Request::new(content);
    *request.metadata_mut() = metadata.into();
    if let Some(left) = time_left {
        request.set_timeout(left);
    }
    request
}

/// Answers an incoming call. For generated code.
pub async fn respond<M: Message>(mut responder: Responder, reply: Reply<M>) {
    let response = match reply {
        Ok(response) => response,
        Err(status) => return responder.fail(&status),
    };
    let metadata = response.metadata().as_buf();
    if response.trailers().is_empty() {
        return responder.reply_with(response.get_ref(), metadata).await;
    }
    let sent = responder.respond_with(response.get_ref(), metadata).await;
    match sent {
        Ok(()) => responder.finish(response.trailers().as_buf().clone()),
        Err(status) => responder.fail(&status),
    }
}

/// Like [`respond`], for a method that answers with a stream. An `Err` with
/// [`Code::OK`](crate::Code::OK) from the stream ends it without an error; its metadata are the
/// trailers. For generated code.
pub async fn respond_stream<M: Message>(
    mut responder: Responder,
    reply: Reply<impl Stream<Item = Result<M, Status>> + Send + 'static>,
) {
    let mut response = match reply {
        Ok(response) => response,
        Err(status) => return responder.fail(&status),
    };
    let trailers = std::mem::take(response.trailers_mut());
    let (metadata, responses) = response.into_parts();
    // The caller's future is ready when the responses begin, though the first may come much later.
    if let Err(status) = responder.send_metadata(metadata.as_buf()).await {
        return responder.fail(&status);
    }
    let mut responses = pin!(responses);
    loop {
        let sent = match poll_fn(|cx| responses.as_mut().poll_next(cx)).await {
            Some(Ok(message)) => responder.respond(&message).await,
            Some(Err(status)) if status.code == Code::OK => {
                return responder.finish(status.metadata);
            }
            Some(Err(status)) => Err(status),
            None => return responder.finish(trailers.into_buf()),
        };
        if let Err(status) = sent {
            return responder.fail(&status);
        }
    }
}

/// Answers a call of a method that the service doesn't have. For generated code.
pub async fn unimplemented(call: Incoming) {
    call.responder.fail(&Status::new(
        Code::UNIMPLEMENTED,
        "this server has no handler for the method",
    ));
}
