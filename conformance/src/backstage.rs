//! What the documentation's examples have behind them, and tests of the Rust library: a daemon, and a server for those that only call. The
//! examples show what a program is, and run as they stand; what is here they hide.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{
    Code, Received, Reply, Request, Response, Server, Service, Session, SessionOptions, Status,
};

use crate::hotel::reservation_server::{Reservation, ReservationServer};
use crate::hotel::{AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest};
use crate::interop::{SemanticsServer, Server as Semantics};
use crate::testbed::{Daemon, Testbed};

/// A daemon with a tenant, and maybe a session that serves.
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
    /// Nothing is served.
    ///
    /// # Panics
    /// If the daemon doesn't come up.
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

    /// A hotel whose one room costs nothing.
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

    /// Serves this on a session of its own.
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

    /// How a session is opened here.
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

/// Books one room after the other, as long as one is asked for at a time.
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
