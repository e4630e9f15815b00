//! The health of a server's services, by gRPC's health checking protocol: `grpc.health.v1.Health`.
//!
//! ```text
//! let (health, reporter) = tollgate_health::server();
//! reporter.set("hotel.Reservation", ServingStatus::SERVING);
//! let server = Server::new(&session).add_service(health).add_service(ReservationServer::new(hotel));
//! ```
//!
//! One of the target's servers of `grpc.health.v1.Health` answers a request, with its own health.
//! An unhealthy server that wants no calls tells the daemon, by
//! [`Session::drain`](tollgate::Session::drain) or by ending.
//!
//! The libraries for C and Python serve the same service (`tollgate_health_new`,
//! `tollgate.health`).

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tollgate::{Code, Received, Reply, Request, Response, Status, Stream};

/// Package `grpc.health.v1`.
pub mod v1 {
    #![allow(missing_docs, unreachable_pub, reason = "generated")]
    tollgate::include_proto!("grpc.health.v1");
}

pub use v1::health_check_response::ServingStatus;
pub use v1::health_client::HealthClient;
pub use v1::health_server::HealthServer;
use v1::{HealthCheckRequest, HealthCheckResponse};

/// The service, and the reporter that feeds it. The server as a whole is SERVING.
pub fn server() -> (HealthServer<Health>, Reporter) {
    let mut known = Known::default();
    known.services.insert(String::new(), ServingStatus::SERVING);
    let known = Arc::new(Mutex::new(known));
    let server = HealthServer::new(Health(Arc::clone(&known)));
    (server, Reporter(known))
}

/// The known statuses, and the wakers of the watches.
#[derive(Debug, Default)]
struct Known {
    services: HashMap<String, ServingStatus>,
    is_over: bool,
    watchers: Vec<Waker>,
}

impl Known {
    /// Wakes the watches, after unlocking.
    fn changed(mut known: MutexGuard<'_, Known>) {
        let watchers = std::mem::take(&mut known.watchers);
        drop(known);
        for watcher in watchers {
            watcher.wake();
        }
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the status of services. Clones set that of the same server.
#[derive(Clone, Debug)]
pub struct Reporter(Arc<Mutex<Known>>);

impl Reporter {
    /// Sets the status of `service`, named with its package. The empty name is the server as a
    /// whole.
    pub fn set(&self, service: &str, status: ServingStatus) {
        let mut known = lock(&self.0);
        if !known.is_over {
            known.services.insert(service.to_owned(), status);
            Known::changed(known);
        }
    }

    /// Removes the service: its status becomes unknown.
    pub fn forget(&self, service: &str) {
        let mut known = lock(&self.0);
        known.services.remove(service);
        Known::changed(known);
    }

    /// Sets everything to NOT_SERVING for good: later calls of `set` change nothing. The server is
    /// about to end, and watching clients choose another. Watches end once they have reported this,
    /// since otherwise a drain would wait for them.
    pub fn shut_down(&self) {
        let mut known = lock(&self.0);
        known.is_over = true;
        for status in known.services.values_mut() {
            *status = ServingStatus::NOT_SERVING;
        }
        Known::changed(known);
    }
}

/// Answers questions about health; see [`server`].
#[derive(Debug)]
pub struct Health(Arc<Mutex<Known>>);

impl v1::health_server::Health for Health {
    async fn check(
        &self,
        request: Request<Received<HealthCheckRequest>>,
    ) -> Reply<HealthCheckResponse> {
        let service = request.get_ref().view().service();
        let status = lock(&self.0).services.get(service).copied();
        match status {
            Some(status) => Ok(Response::new(HealthCheckResponse { status })),
            None => Err(Status::new(
                Code::NOT_FOUND,
                format!("the server doesn't report the health of the service {service:?}"),
            )),
        }
    }

    type WatchStream = Watch;

    async fn watch(&self, request: Request<Received<HealthCheckRequest>>) -> Reply<Watch> {
        Ok(Response::new(Watch {
            known: Arc::clone(&self.0),
            service: request.get_ref().view().service().to_owned(),
            last_sent: None,
        }))
    }
}

/// The status of a service, sent on every change.
#[derive(Debug)]
pub struct Watch {
    known: Arc<Mutex<Known>>,
    service: String,
    last_sent: Option<ServingStatus>,
}

impl Stream for Watch {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut known = lock(&self.known);
        let status = known.services.get(&self.service).copied();
        let status = status.unwrap_or(ServingStatus::SERVICE_UNKNOWN);
        if self.last_sent != Some(status) {
            drop(known);
            self.last_sent = Some(status);
            return Poll::Ready(Some(Ok(HealthCheckResponse { status })));
        }
        if known.is_over {
            return Poll::Ready(None);
        }
        // One waker per stream. The library bounds the number of streams; a stream that ended
        // leaves its waker until the next change.
        if !known
            .watchers
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            known.watchers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
