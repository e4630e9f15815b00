//! The environment of the documentation's examples and of the Rust library's tests: a daemon, and a
//! server for examples that only call. The examples show a whole program, and run as written; this
//! code is hidden in them.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{
    Code, Received, Reply, Request, Response, Server, Service, Session, SessionOptions, Status,
};

use crate::hotel::reservation_server::{Reservation, ReservationServer};
use crate::hotel::{AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest};
use crate::interop::{SemanticsServer, Server as Semantics};
use crate::testbed::{Daemon, Testbed};

/// A daemon with a tenant, and optionally a session that serves.
#[derive(Debug)]
pub struct Backstage {
    token: String,
    serving: Option<Session>,
    daemon: Daemon,
    _bed: Testbed,
}

impl Default for Backstage {
    fn default() -> Backstage {
        Backstage::new()
    }
}

impl Backstage {
    /// An environment without a server.
    ///
    /// # Panics
    /// If the daemon doesn't start.
    pub fn new() -> Backstage {
        let bed = Testbed::new();
        let daemon = bed.daemon("a");
        Backstage {
            token: daemon.tenant("acme"),
            serving: None,
            daemon,
            _bed: bed,
        }
    }

    /// An environment with a hotel whose only room costs nothing.
    ///
    /// # Panics
    /// If it can't be served.
    pub fn with_hotel() -> Backstage {
        Backstage::with(ReservationServer::new(Hotel::default()))
    }

    /// The service of the interoperability suite.
    ///
    /// # Panics
    /// If it can't be served.
    pub fn with_semantics() -> Backstage {
        Backstage::with(SemanticsServer::new(Semantics))
    }

    /// Serves a service on its own session.
    ///
    /// # Panics
    /// If it can't be served.
    pub fn with(service: impl Service) -> Backstage {
        let mut backstage = Backstage::new();
        let session = backstage.session();
        let server = Server::new(&session).add_service(service);
        if let Err(status) = tollgate::block_on(&session, server.bind()) {
            panic!("{status}");
        }
        backstage.serving = Some(session);
        backstage
    }

    /// The options for opening a session.
    pub fn options(&self) -> SessionOptions {
        SessionOptions::new(self.daemon.socket(), &*self.token)
    }

    /// A session.
    ///
    /// # Panics
    /// If it can't be opened.
    pub fn session(&self) -> Session {
        Session::open(self.options()).unwrap_or_else(|status| panic!("{status}"))
    }
}

/// Books one room after the other, if the request is for one room.
#[derive(Debug, Default)]
pub struct Hotel(AtomicU64);

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        if request.get_ref().view().room_count() != 1 {
            let text = "one room at a time";
            return Err(Status::new(Code::INVALID_ARGUMENT, text));
        }
        let mut response = Response::new(ReserveReply {
            reservation_id: self.0.fetch_add(1, Ordering::Relaxed) + 1,
            hotel_ids: Vec::new(),
        });
        response.metadata_mut().insert("desk", "front")?;
        Ok(response)
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        std::future::pending().await
    }
}
