//! tonic's server: `hotel.Reservation` and `hotel.Echo` over plain HTTP/2.
//!
//! Configured for speed within what tonic offers: see `tuning.rs`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use tollgate_benches::measure::{exit, say};
use tollgate_benches::request::{REPLY_BYTES, reservation_id};
use tollgate_benches::settings::Settings;
use tollgate_benches::stubs::tonic_hotel::echo_server::{Echo, EchoServer};
use tollgate_benches::stubs::tonic_hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_benches::stubs::tonic_hotel::{
    AvailabilityReply, AvailabilityRequest, EchoMessage, ReserveReply, ReserveRequest,
};
use tollgate_benches::tuning::{self, MESSAGE};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct Hotel;

#[tonic::async_trait]
impl Reservation for Hotel {
    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveReply>, Status> {
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

struct EchoBack;

#[tonic::async_trait]
impl Echo for EchoBack {
    async fn echo(&self, request: Request<EchoMessage>) -> Result<Response<EchoMessage>, Status> {
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
    runtime.block_on(async {
        let incoming = TcpIncoming::bind(settings.listen)
            .map_err(|error| format!("cannot listen on {}: {error}", settings.listen))?
            .with_nodelay(Some(true));
        let listen = incoming.local_addr().map_err(|error| error.to_string())?;
        say(&format!("ready listen={listen}"))?;
        Server::builder()
            .add_service(EchoServer::new(EchoBack).max_decoding_message_size(MESSAGE))
            .add_service(ReservationServer::new(Hotel).max_decoding_message_size(MESSAGE))
            .serve_with_incoming(incoming)
            .await
            .map_err(|error| format!("serving ended: {error}"))
    })
}
