//! Tollgate's server: `hotel.Reservation` and `hotel.Echo` on the daemon at `socket=`.
//!
//! Handlers run on the thread that drives the session, which is this program's only busy one. Prints
//! `ready` once both services are bound, and ends when the session does.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use tollgate::{Code, Received, Reply, Request, Response, Server, Session, Status, block_on};
use tollgate_benches::measure::{exit, say, work};
use tollgate_benches::request::{echo_reply, reservation_id};
use tollgate_benches::settings::Settings;
use tollgate_benches::stubs::hotel::echo_server::{Echo, EchoServer};
use tollgate_benches::stubs::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_benches::stubs::hotel::{
    AvailabilityReply, AvailabilityRequest, EchoMessage, ReserveReply, ReserveRequest,
};

struct Hotel;

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        Ok(Response::new(ReserveReply {
            reservation_id: reservation_id(request.get_ref().view().customer_name()),
            hotel_ids: Vec::new(),
        }))
    }

    async fn check_availability(
        &self,
        _request: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Err(Status::new(
            Code::UNIMPLEMENTED,
            "no benchmark asks for availability",
        ))
    }
}

struct EchoBack {
    work: Duration,
}

impl Echo for EchoBack {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
        work(self.work);
        Ok(Response::new(EchoMessage {
            payload: echo_reply(request.get_ref().view().payload()).into(),
        }))
    }
}

fn main() -> ExitCode {
    exit("bench-server", serve())
}

fn serve() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let options = settings.session().map_err(|error| error.to_string())?;
    let session = Session::open(options).map_err(|status| format!("no session: {status}"))?;
    let server = Server::new(&session)
        .add_service(ReservationServer::new(Hotel))
        .add_service(EchoServer::new(EchoBack {
            work: settings.work,
        }));
    block_on(&session, server.bind()).map_err(|status| format!("cannot serve: {status}"))?;
    say("ready")?;
    let status = block_on(&session, session.closed());
    Err(format!("serving ended: {status}"))
}
