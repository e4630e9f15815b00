//! Whether a request may come: found out when its header has arrived. Nothing of its body is read
//! before that, and it takes no place of anything.
//!
//! The daemon is asked who the sender is, unless the kernel has told that, or the daemon has
//! answered a moment ago ([`PROOF_TIME`]). That saves two changes of threads, and decides nothing:
//! the daemon authenticates the sender once more when it carries the request out.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use tollgate_shm_abi::status::Code;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::connections::{Claim, Client, Party, Peer};
use super::incoming::{Caller, Header, Incoming, stopping};
use crate::limits::PROOF_TIME;
use crate::operations::{ALL, Operation};
use crate::rights::{Principal, may_send};
use crate::status::{Secret, Status};

/// A service behind the question who sends a request.
#[derive(Clone)]
pub(super) struct Gate<S> {
    inner: S,
    /// None: everybody may send requests to this service.
    keeper: Option<Keeper>,
}

/// Who knows senders.
#[derive(Clone)]
struct Keeper {
    daemon: mpsc::Sender<Incoming>,
    is_operator: fn(u32) -> bool,
}

impl<S> Gate<S> {
    /// Only for clients that the daemon knows.
    pub(super) fn guarded(
        inner: S,
        daemon: &mpsc::Sender<Incoming>,
        is_operator: fn(u32) -> bool,
    ) -> Gate<S> {
        let daemon = daemon.clone();
        let keeper = Some(Keeper {
            daemon,
            is_operator,
        });
        Gate { inner, keeper }
    }

    /// For everybody.
    pub(super) fn open(inner: S) -> Gate<S> {
        let keeper = None;
        Gate { inner, keeper }
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
        let keeper = self.keeper.clone();
        let asked = Asked::of(&request);
        Box::pin(async move {
            match asked.admitted(keeper).await {
                Ok(sender) => {
                    request.extensions_mut().insert(sender);
                    inner.call(request).await
                }
                Err(status) => Ok(tonic::Status::from(status).into_http()),
            }
        })
    }
}

/// Who sends a request that has been let in.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) caller: Caller,
    /// Whose places it takes, and how.
    pub(super) holder: (Party, Claim),
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
    async fn admitted(self, keeper: Option<Keeper>) -> Result<Sender, Status> {
        let internal = || Status::new(Code::INTERNAL, "the connection has no peer");
        let client = self.client.ok_or_else(internal)?;
        client.begins()?;
        let (peer, token) = (client.peer().clone(), self.token?);
        let caller = Caller { peer, token };
        let is_free = |keeper: &Keeper| keeper.is_operators_process(&caller);
        let Some(keeper) = keeper.filter(|keeper| !is_free(keeper)) else {
            let holder = Party::operator();
            return Ok(Sender { caller, holder });
        };
        let now = Instant::now();
        let principal = match client.proved(caller.token.as_ref(), now) {
            Some(principal) => principal,
            None => match keeper.ask(caller.clone()).await? {
                Ok(principal) => {
                    client.is_known(caller.token.clone(), principal, now + PROOF_TIME)?
                }
                Err(status) => {
                    client.is_unknown();
                    return Err(status);
                }
            },
        };
        if let Some(row) = self.row {
            may_send(&principal, row.method, &row.rights)?;
        }
        let holder = Party::of(&principal);
        Ok(Sender { caller, holder })
    }
}

impl Keeper {
    /// Whether the kernel has told that the sender may send everything.
    fn is_operators_process(&self, caller: &Caller) -> bool {
        match caller.peer {
            Peer::Process { uid, .. } => caller.token.is_none() && (self.is_operator)(uid),
            Peer::Remote { .. } => false,
        }
    }

    /// Asks the daemon who this is.
    async fn ask(&self, caller: Caller) -> Result<Result<Principal, Status>, Status> {
        let (reply, answer) = oneshot::channel();
        let header = Incoming::Header(Header { caller, reply });
        let sent = self.daemon.send(header).await;
        sent.map_err(|_closed| stopping())?;
        answer.await.map_err(|_dropped| stopping())
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
