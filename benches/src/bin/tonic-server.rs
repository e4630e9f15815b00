//! tonic's server: `hotel.Reservation` and `hotel.Echo` over plain HTTP/2.
//!
//! Configured for speed within what tonic offers: see `tuning.rs`.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use tollgate_benches::measure::{exit, say, work};
use tollgate_benches::request::{REPLY_BYTES, reservation_id};
use tollgate_benches::settings::Settings;
use tollgate_benches::stubs::tonic_hotel::echo_server::{Echo, EchoServer};
use tollgate_benches::stubs::tonic_hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_benches::stubs::tonic_hotel::{
    AvailabilityReply, AvailabilityRequest, EchoMessage, ReserveReply, ReserveRequest,
};
use tollgate_benches::tuning::{self, MESSAGE};
use tollgate_conformance::workload::blocked_names;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct Hotel {
    /// Whom it refuses itself.
    blocked: HashSet<String>,
}

#[tonic::async_trait]
impl Reservation for Hotel {
    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveReply>, Status> {
        if self.blocked.contains(&request.get_ref().customer_name) {
            return Err(Status::permission_denied("customer is on the block list"));
        }
        Ok(Response::new(ReserveReply {
            reservation_id: reservation_id(&request.get_ref().customer_name),
            hotel_ids: Vec::new(),
        }))
    }

    async fn check_availability(
        &self,
        _request: Request<AvailabilityRequest>,
    ) -> Result<Response<AvailabilityReply>, Status> {
        Err(Status::unimplemented("no benchmark asks for availability"))
    }
}

struct EchoBack {
    work: Duration,
}

#[tonic::async_trait]
impl Echo for EchoBack {
    async fn echo(&self, request: Request<EchoMessage>) -> Result<Response<EchoMessage>, Status> {
        work(self.work);
        let payload = request.into_inner().payload;
        Ok(Response::new(EchoMessage {
            payload: payload.slice(..payload.len().min(REPLY_BYTES)),
        }))
    }
}

fn main() -> ExitCode {
    exit("tonic-server", serve())
}

fn serve() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let runtime = tuning::runtime(&settings)?;
    let blocked = match settings.acl {
        true => blocked_names().into_iter().collect(),
        false => HashSet::new(),
    };
    runtime.block_on(async {
        let incoming = TcpIncoming::bind(settings.listen)
            .map_err(|error| format!("cannot listen on {}: {error}", settings.listen))?
            .with_nodelay(Some(true));
        let listen = incoming.local_addr().map_err(|error| error.to_string())?;
        say(&format!("ready listen={listen}"))?;
        Server::builder()
            .add_service(
                EchoServer::new(EchoBack {
                    work: settings.work,
                })
                .max_decoding_message_size(MESSAGE),
            )
            .add_service(
                ReservationServer::new(Hotel { blocked }).max_decoding_message_size(MESSAGE),
            )
            .serve_with_incoming(incoming)
            .await
            .map_err(|error| format!("serving ended: {error}"))
    })
}
