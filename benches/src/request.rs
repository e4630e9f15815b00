//! The content of the calls, the same for every system.
//!
//! `size` counts *content*: the payload of an echo, or the text in a reservation. Anything that a
//! system adds (tags, offsets, headers) is its own cost and is not credited as goodput. The reply
//! carries 8 bytes at every size: an echo's first 8 bytes, or a reservation's id.
//!
//! A reservation of `size` content bytes is filled in the order of [`Filling`]'s fields: always the
//! customer's name (16 bytes), then the dates (20 bytes) if they fit, then a hotel's id (at most 16
//! bytes), and a coupon with the rest. So 32 bytes are a name and a hotel, and 64 bytes have every
//! field. In a large reservation a policy's field is small compared with a big field that the
//! policy doesn't read.

use tollgate_conformance::workload::{Booking, Bookings, NAME_BYTES};

use crate::settings::{Method, Settings};
use crate::split::Split;
use crate::ycsb::Operations;

/// Bytes of a reply.
pub const REPLY_BYTES: usize = 8;

/// Number of bookings made before the run, so that making them is not measured. The run cycles
/// through them.
const PREPARED: usize = 10_000;

const DATES: [&str; 2] = ["2026-04-01", "2026-04-03"];
const HOTEL: &str = "hotel-lisboa-042";

/// The content of a reservation besides the customer's name. Fields without room are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filling {
    /// First and last day.
    pub dates: Option<[&'static str; 2]>,
    /// The hotel's id.
    pub hotel: String,
    /// The rest, filled with one letter.
    pub coupon: String,
}

impl Filling {
    /// The content that fills a reservation up to `size` bytes.
    pub fn new(size: usize) -> Filling {
        let mut left = size.saturating_sub(NAME_BYTES);
        let dates_len = DATES.iter().map(|date| date.len()).sum();
        let dates = (left >= dates_len).then_some(DATES);
        left -= dates.map_or(0, |_| dates_len);
        let hotel = HOTEL.get(..left.min(HOTEL.len())).unwrap_or(HOTEL);
        left -= hotel.len();
        Filling {
            dates,
            hotel: hotel.to_owned(),
            coupon: "x".repeat(left),
        }
    }
}

/// All requests of a client, prepared before the run.
#[derive(Debug)]
pub struct Requests {
    /// The method that is called.
    pub method: Method,
    /// Content bytes of each request.
    pub size: usize,
    /// The fields besides the customer's name.
    pub filling: Filling,
    /// The bookings, used in turn.
    pub bookings: Vec<Booking>,
    /// An echo's payload.
    pub payload: Vec<u8>,
    /// The operations on the store, if the method is one of the store.
    pub operations: Option<Operations>,
    /// The split of a reservation's latency, if it was requested.
    pub split: Option<Split>,
}

impl Requests {
    /// Prepares calls of `method` with `size` content bytes.
    pub fn new(method: Method, size: usize) -> Requests {
        let payload = (0..size).map(|at| (at % 251) as u8 + 1).collect();
        Requests {
            method,
            size,
            filling: Filling::new(size),
            bookings: Bookings::new(1).take(PREPARED).collect(),
            payload,
            operations: match method {
                Method::Ycsb(workload) => Some(Operations::new(workload)),
                Method::Echo | Method::Hotel => None,
            },
            split: None,
        }
    }

    /// Prepares calls from the arguments.
    pub fn of(settings: &Settings) -> Requests {
        Requests {
            split: settings.split.then(Split::default),
            ..Requests::new(settings.method, settings.size)
        }
    }

    /// The booking of call number `index`.
    pub fn booking(&self, index: usize) -> &Booking {
        &self.bookings[index % self.bookings.len()]
    }

    /// Whether `reply` is the server's reply to [`Requests::payload`].
    pub fn echoed(&self, reply: &[u8]) -> bool {
        reply == echo_reply(&self.payload)
    }
}

/// The reply of an echo server: the first [`REPLY_BYTES`] of the payload.
pub fn echo_reply(payload: &[u8]) -> &[u8] {
    &payload[..payload.len().min(REPLY_BYTES)]
}

/// The reply of a reservation server: an id that is never 0, computed from the request.
pub fn reservation_id(customer: &str) -> u64 {
    1 + customer.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filling_has_the_size_that_was_asked_for() {
        for size in [16, 17, 32, 35, 36, 52, 64, 8192, 2 << 20] {
            let filling = Filling::new(size);
            let dates = filling.dates.map_or(0, |dates| dates.concat().len());
            let sum = NAME_BYTES + dates + filling.hotel.len() + filling.coupon.len();
            assert_eq!(sum, size);
        }
        assert_eq!(Filling::new(32).dates, None);
        assert_eq!(Filling::new(32).hotel, HOTEL);
        assert_eq!(Filling::new(64).coupon.len(), 12);
    }

    #[test]
    fn one_percent_of_the_prepared_bookings_is_blocked() {
        let requests = Requests::new(Method::Hotel, 64);
        let blocked = requests.bookings.iter().filter(|b| b.blocked).count();
        assert_eq!(blocked * 100, requests.bookings.len());
    }

    #[test]
    fn an_echo_answers_the_first_bytes() {
        let requests = Requests::new(Method::Echo, 64);
        assert!(requests.echoed(&[1, 2, 3, 4, 5, 6, 7, 8]));
        assert!(!requests.echoed(&[1, 2, 3, 4, 5, 6, 7]));
    }
}
