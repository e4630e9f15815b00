//! The serving side: servers, and what generated dispatchers are made of.

use std::pin::Pin;

use tollgate_core::codec::Message;
use tollgate_core::{Code, Incoming, Responder, Service, Session, Status};

use crate::{Received, Reply, Request};

type Bind = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Serves services on a session.
///
/// Handlers run on the thread that drives the session: [`block_on`](crate::block_on)'s, or the session's own.
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
    /// As of [`Session::bind_server`]; services added before the one that failed are served.
    pub async fn bind(self) -> Result<(), Status> {
        for bind in self.binds {
            bind.await?;
        }
        Ok(())
    }

    /// Binds the services and serves them until the session ends, which is always an error.
    ///
    /// # Errors
    /// As of [`Server::bind`]; then, why the session ended.
    pub async fn serve(self) -> Result<(), Status> {
        let session = self.session.clone();
        self.bind().await?;
        Err(session.closed().await)
    }
}

/// Takes an incoming call apart. For generated code.
pub fn accept<M: Message>(call: Incoming) -> (Request<Received<M>>, Responder) {
    let time_left = call.time_left();
    let mut block = call.request;
    let metadata = block.take_metadata();
    let mut request = Request::new(Received::new(block));
    *request.metadata_mut() = metadata.into();
    if let Some(left) = time_left {
        request.set_timeout(left);
    }
    (request, call.responder)
}

/// Answers an incoming call. For generated code.
pub async fn respond<M: Message>(responder: Responder, reply: Reply<M>) {
    match reply {
        Ok(response) => {
            let metadata = response.metadata().as_buf();
            responder.reply_with(response.get_ref(), metadata).await;
        }
        Err(status) => responder.fail(&status),
    }
}

/// Answers a call of a method that has no handler. For generated code.
pub async fn unimplemented(call: Incoming) {
    call.responder.fail(&Status::new(
        Code::UNIMPLEMENTED,
        "this server has no handler for the method",
    ));
}
