//! What the documentation's examples have behind them: a daemon, and servers for those that only call. They show what a program is, and run
//! as they stand; what is here they hide.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status};

use crate::hotel::reservation_server::{Reservation, ReservationServer};
use crate::hotel::{AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest};
use crate::interop::{SemanticsServer, Server as Semantics};
use crate::testbed::{Daemon, Testbed};

/// A daemon with a tenant, and sessions that serve.
#[derive(Debug)]
pub struct Backstage {
    token: String,
    serving: Vec<Session>,
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
            serving: Vec::new(),
            daemon,
            _bed: bed,
        }
    }

    /// A hotel whose one room costs nothing.
    ///
    /// # Panics
    /// If it can't be served.
    pub fn with_hotel() -> Backstage {
        let mut backstage = Backstage::new();
        let session = backstage.session();
        let server = Server::new(&session).add_service(ReservationServer::new(Hotel::default()));
        backstage.serve(session, server);
        backstage
    }

    /// The service of the interoperability suite.
    ///
    /// # Panics
    /// If it can't be served.
    pub fn with_semantics() -> Backstage {
        let mut backstage = Backstage::new();
        let session = backstage.session();
        let server = Server::new(&session).add_service(SemanticsServer::new(Semantics));
        backstage.serve(session, server);
        backstage
    }

    fn serve(&mut self, session: Session, server: Server) {
        if let Err(status) = tollgate::block_on(&session, server.bind()) {
            panic!("{status}");
        }
        self.serving.push(session);
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
#[derive(Default)]
struct Hotel(AtomicU64);

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
