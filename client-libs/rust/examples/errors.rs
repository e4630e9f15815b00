//! How calls fail.

#![forbid(unsafe_code)]

use tollgate::{Channel, Code, Received, Reply, Request, Response, Server, Status, block_on};
use tollgate_examples::hotel::reservation_client::ReservationClient;
use tollgate_examples::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_examples::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};

struct Hotel;

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        match request.get_ref().view().room_count() {
            0 => {
                let text = "room_count is 0; book at least one room";
                Err(Status::new(Code::INVALID_ARGUMENT, text))
            }
            1..10 => Ok(Response::new(ReserveReply::default())),
            _ => {
                // Details are a serialized google.rpc.Status, in the place where gRPC's clients
                // look for it.
                let details = b"\x08\x09\x12\x04full";
                let mut full =
                    Status::new(Code::FAILED_PRECONDITION, "full").with_details(details)?;
                full.metadata.push("rooms", b"9")?;
                Err(full)
            }
        }
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Err(Status::new(Code::UNIMPLEMENTED, "ask the porter"))
    }
}

fn main() -> Result<(), Status> {
    let (serving, _) = tollgate_examples::session_from_arguments()?;
    let (session, _) = tollgate_examples::session_from_arguments()?;
    let server = Server::new(&serving).add_service(ReservationServer::new(Hotel));
    block_on(&serving, server.bind())?;
    let client = ReservationClient::new(Channel::new(&session, ""));
    block_on(&session, async {
        for room_count in [0, 1, 10] {
            let request = ReserveRequest {
                room_count,
                ..Default::default()
            };
            match client.reserve(request).await {
                Ok(_) => println!("{room_count} rooms: booked"),
                Err(status) => println!(
                    "{room_count} rooms: {:?}: {}, details {:?}",
                    status.code,
                    status.message,
                    status.details()
                ),
            }
        }
        let refused = client.check_availability(AvailabilityRequest::default());
        println!("{:?}", refused.await.map_err(|status| status.code).err());
    });
    Ok(())
}
