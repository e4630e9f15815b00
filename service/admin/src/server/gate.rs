//! Whether a request may come: asked when its header has arrived. Nothing of its body is read
//! before the answer, and it takes no place of anything.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};
use tollgate_shm_abi::status::Code;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::connections::Client;
use super::incoming::{Admission, Caller, Header, Incoming, stopping};
use crate::operations::{ALL, Operation};
use crate::status::{Secret, Status};

/// A service behind the question who sends a request.
#[derive(Clone)]
pub(super) struct Gate<S> {
    inner: S,
    /// Who knows; none: everybody may send requests to this service.
    daemon: Option<mpsc::Sender<Incoming>>,
}

impl<S> Gate<S> {
    /// Only for clients that the daemon knows.
    pub(super) fn guarded(inner: S, daemon: &mpsc::Sender<Incoming>) -> Gate<S> {
        let daemon = Some(daemon.clone());
        Gate { inner, daemon }
    }

    /// For everybody.
    pub(super) fn open(inner: S) -> Gate<S> {
        let daemon = None;
        Gate { inner, daemon }
    }
}

impl<S: NamedService> NamedService for Gate<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Gate<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // The one that is ready; a clone needn't be.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let daemon = self.daemon.clone();
        let asked = Asked::of(&request);
        Box::pin(async move {
            match asked.admitted(daemon).await {
                Ok(caller) => {
                    request.extensions_mut().insert(caller);
                    inner.call(request).await
                }
                Err(status) => Ok(tonic::Status::from(status).into_http()),
            }
        })
    }
}

/// What the header of a request says.
struct Asked {
    client: Option<Client>,
    /// The token, or what is wrong with it.
    token: Result<Option<Secret>, Status>,
    row: Option<&'static Operation>,
}

impl Asked {
    fn of(request: &http::Request<Body>) -> Asked {
        let named = request.uri().path().strip_prefix("/tollgate.admin.v1.");
        let named = named.and_then(|path| path.split_once('/'));
        Asked {
            client: request.extensions().get().cloned(),
            token: token(request.headers()),
            row: named.and_then(|named| ALL.iter().find(|row| (row.service, row.method) == named)),
        }
    }

    /// Who sends the request, if it may come.
    async fn admitted(self, daemon: Option<mpsc::Sender<Incoming>>) -> Result<Caller, Status> {
        let internal = || Status::new(Code::INTERNAL, "the connection has no peer");
        let client = self.client.ok_or_else(internal)?;
        client.begins()?;
        let (peer, token) = (client.peer().clone(), self.token?);
        let caller = Caller { peer, token };
        let Some(daemon) = daemon else {
            return Ok(caller);
        };
        let (reply, answer) = oneshot::channel();
        let header = Header {
            caller: caller.clone(),
            row: self.row,
            reply,
        };
        let sent = daemon.send(Incoming::Header(header)).await;
        sent.map_err(|_closed| stopping())?;
        match answer.await.map_err(|_dropped| stopping())? {
            Admission::Unknown(status) => {
                client.is_unknown();
                Err(status)
            }
            Admission::MayNot(status) => {
                client.is_known();
                Err(status)
            }
            Admission::May => {
                client.is_known();
                Ok(caller)
            }
        }
    }
}

/// The token of a request.
pub(super) fn token(headers: &http::HeaderMap) -> Result<Option<Secret>, Status> {
    let unclear = |what: &str| {
        let text = format!("the metadata `authorization` {what}: send `Bearer TOKEN`");
        Err(Status::new(Code::UNAUTHENTICATED, text))
    };
    let mut values = headers.get_all(http::header::AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let token = value.to_str().ok();
            match token.and_then(|text| text.strip_prefix("Bearer ")) {
                Some(token) => Ok(Some(Secret::new(token))),
                None => unclear("isn't a bearer's token"),
            }
        }
        (Some(_), Some(_)) => unclear("is there twice"),
    }
}
