//! A hotel that accepts every booking. Reservations are numbered; a hotel has as many rooms left as
//! its name has letters.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Code, Received, Reply, Request, Response, Server, Status, block_on};
use tollgate_examples::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_examples::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};

#[derive(Default)]
struct Hotel {
    reservations: AtomicU64,
}

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let booking = request.get_ref().view();
        if booking.room_count() == 0 {
            return Err(Status::new(
                Code::INVALID_ARGUMENT,
                "room_count is 0; book at least one room",
            ));
        }
        println!(
            "{} books {} rooms",
            booking.customer_name(),
            booking.room_count()
        );
        Ok(Response::new(ReserveReply {
            reservation_id: self.reservations.fetch_add(1, Ordering::Relaxed) + 1,
            hotel_ids: booking.hotel_ids().to_vec(),
        }))
    }

    async fn check_availability(
        &self,
        request: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        let hotels = request.get_ref().view().hotel_ids();
        let rooms_left = hotels
            .iter()
            .map(|hotel| (hotel.to_owned(), hotel.len() as u32))
            .collect();
        Ok(Response::new(AvailabilityReply { rooms_left }))
    }
}

fn main() -> Result<(), Status> {
    let (session, _) = tollgate_examples::session_from_arguments()?;
    println!("serving for tenant {}", session.tenant());
    let server = Server::new(&session).add_service(ReservationServer::new(Hotel::default()));
    block_on(&session, server.serve())
}
