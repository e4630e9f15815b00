//! Books a room, asks for the rooms that are left, and prints the elapsed time.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use tollgate::{Channel, Request, Status, block_on};
use tollgate_examples::hotel::reservation_client::ReservationClient;
use tollgate_examples::hotel::{AvailabilityRequest, ReserveRequest, Stay};

fn main() -> Result<(), Status> {
    let (session, arguments) = tollgate_examples::session_from_arguments()?;
    let target = arguments.first().map_or("", String::as_str);
    let calls: u32 = arguments
        .get(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or(1);
    let client = ReservationClient::new(Channel::new(&session, target));
    block_on(&session, async {
        let begin = Instant::now();
        for _ in 0..calls {
            let mut request = Request::new(ReserveRequest {
                customer_name: "Ada".to_owned(),
                hotel_ids: vec!["ritz".to_owned()],
                stay: Some(Stay {
                    in_date: "2026-05-01".to_owned(),
                    out_date: "2026-05-03".to_owned(),
                }),
                room_count: 1,
                coupon: None,
            });
            request.set_timeout(Duration::from_secs(5));
            request.metadata_mut().insert("purpose", "holiday")?;
            let reply = client.reserve(request).await?;
            println!("reservation {}", reply.get_ref().view().reservation_id());
        }
        println!("{calls} calls in {:?}", begin.elapsed());
        let hotels = AvailabilityRequest {
            hotel_ids: vec!["ritz".to_owned()],
            ..Default::default()
        };
        let reply = client.check_availability(hotels).await?;
        for (hotel, rooms) in reply.get_ref().view().rooms_left().iter() {
            println!("{hotel}: {rooms} rooms left");
        }
        Ok(())
    })
}
