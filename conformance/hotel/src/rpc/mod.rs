//! The services' transports, side by side: the same methods of the same deciders, and nothing
//! decided here.
//!
//! Handlers that block (the store, memcached) run on threads of their own as each library has it:
//! Tollgate's `Workers`, tokio's `spawn_blocking`. The others run where calls arrive.

pub mod over_tollgate;
pub mod over_tonic;

/// Where the services are: over Tollgate the daemon that serves each, as `host:port`, or empty for
/// this host's; over tonic its own address.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "named as the services")]
pub struct Targets<'t> {
    pub geo: &'t str,
    pub profile: &'t str,
    pub rate: &'t str,
    pub recommendation: &'t str,
    pub reservation: &'t str,
    pub search: &'t str,
    pub user: &'t str,
}

/// What services are asked and answer is there three times: in the crate's own types, and as the
/// stubs of either library, which are alike. How the first becomes the others is written once.
macro_rules! messages {
    ($($stubs:tt)*) => {
        impl From<crate::dataset::RatePlan> for $($stubs)*::rate::RatePlan {
            fn from(plan: crate::dataset::RatePlan) -> Self {
                let room = plan.room_type;
                Self {
                    hotel_id: plan.hotel_id,
                    code: plan.code,
                    in_date: plan.in_date,
                    out_date: plan.out_date,
                    room_type: Some($($stubs)*::rate::RoomType {
                        bookable_rate: room.bookable_rate,
                        total_rate: room.total_rate,
                        total_rate_inclusive: room.total_rate_inclusive,
                        code: room.code,
                        room_description: room.room_description,
                    }),
                }
            }
        }

        impl From<crate::dataset::Profile> for $($stubs)*::profile::Hotel {
            fn from(hotel: crate::dataset::Profile) -> Self {
                let address = hotel.address;
                Self {
                    id: hotel.id,
                    name: hotel.name,
                    phone_number: hotel.phone_number,
                    description: hotel.description,
                    address: Some($($stubs)*::profile::Address {
                        street_number: address.street_number,
                        street_name: address.street_name,
                        city: address.city,
                        state: address.state,
                        country: address.country,
                        postal_code: address.postal_code,
                        lat: address.lat,
                        lon: address.lon,
                    }),
                }
            }
        }

        impl From<crate::calls::Booking> for $($stubs)*::reservation::Request {
            fn from(booking: crate::calls::Booking) -> Self {
                Self {
                    customer_name: booking.customer,
                    hotel_id: booking.hotels,
                    in_date: booking.stay.first.to_string(),
                    out_date: booking.stay.last.to_string(),
                    room_number: i32::try_from(booking.rooms).unwrap_or(i32::MAX),
                }
            }
        }

        fn plans_of(hotel_ids: Vec<String>, stay: crate::stay::Stay) -> $($stubs)*::rate::Request {
            $($stubs)*::rate::Request {
                hotel_ids,
                in_date: stay.first.to_string(),
                out_date: stay.last.to_string(),
            }
        }

        fn wish(lat: f32, lon: f32, stay: crate::stay::Stay) -> $($stubs)*::search::NearbyRequest {
            $($stubs)*::search::NearbyRequest {
                lat,
                lon,
                in_date: stay.first.to_string(),
                out_date: stay.last.to_string(),
            }
        }

        /// A request, of the library whose stubs these are, that is given up when it is due, and is
        /// part of its cause's trace.
        fn made_for<T>(cause: &crate::calls::Cause, message: T) -> Result<Request<T>, crate::failure::Failure> {
            let mut request = Request::new(message);
            if let Some(left) = cause.left()? {
                request.set_timeout(left);
            }
            for (name, value) in cause.trace().into_iter().flat_map(|trace| trace.pairs()) {
                insert(&mut request, name, value)?;
            }
            Ok(request)
        }
    };
}
use messages;
