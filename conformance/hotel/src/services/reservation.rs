//! Which rooms are taken: never more than there are, whoever asks at the same time.
//!
//! The store decides: a reservation is one of its transactions, and there is one at a time. The
//! cache answers how many rooms are taken when somebody only asks, as in the original; there it
//! decides, too, where two reservations at once may both see the last room.
//!
//! Whatever changes a count in the cache holds `order` from before the store's transaction until
//! the cache has it, so that the cache has the counts in the order of the store.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::NaiveDate;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use serde::{Deserialize, Serialize};
use tollgate::Code;

use crate::cache::Cache;
use crate::calls::Booking;
use crate::dataset;
use crate::failure::Failure;
use crate::stay::Stay;
use crate::store;

/// Rooms of a hotel.
const ROOMS: TableDefinition<'_, &str, u32> = TableDefinition::new("rooms");
/// How many of them are taken, by [`night_key`].
const TAKEN: TableDefinition<'_, &str, u32> = TableDefinition::new("taken");
/// Who has taken them, by number, as JSON.
const RESERVATIONS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("reservations");

/// What is remembered of a reservation.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    customer: String,
    hotel: String,
    in_date: String,
    out_date: String,
    rooms: u32,
}

/// The rooms.
#[derive(Debug)]
pub struct Reservations {
    database: Database,
    cache: Cache,
    order: Mutex<()>,
}

impl Reservations {
    /// With the reservations of the store in this directory. A new one has Alice's, one room of
    /// hotel 4.
    ///
    /// # Errors
    /// INTERNAL if that can't be used.
    pub fn open(directory: &Path, memcached: Option<SocketAddr>) -> Result<Reservations, Failure> {
        let database = store::open(directory, "reservation")?;
        let alice = Booking {
            customer: "Alice".to_owned(),
            hotels: vec!["4".to_owned()],
            stay: Stay::parse("2015-04-09", "2015-04-10")?,
            rooms: 1,
        };
        fill(&database, &alice)?;
        Ok(Reservations {
            database,
            cache: Cache::new("reservation", memcached),
            order: Mutex::default(),
        })
    }

    /// Takes rooms of the first hotel in all nights, or in none: whether it had as many.
    ///
    /// # Errors
    /// INVALID_ARGUMENT without a hotel, NOT_FOUND for one that nobody knows; those of the store.
    pub fn reserve(&self, booking: &Booking) -> Result<bool, Failure> {
        let hotel = booking.hotels.first();
        let hotel = hotel.ok_or_else(|| Failure::invalid("hotelId is missing"))?;
        let rooms = self.rooms(hotel)?.ok_or_else(|| {
            Failure::new(
                Code::NOT_FOUND,
                format!("hotelId is {hotel:?}; there is no such hotel"),
            )
        })?;
        let _order = self.order();
        let Some(counts) = take(&self.database, hotel, booking, rooms)? else {
            return Ok(false);
        };
        let counts = counts.into_iter();
        let counts: Vec<_> = counts
            .map(|(key, taken)| (key, store::json(&taken)))
            .collect();
        self.cache.set(&counts);
        Ok(true)
    }

    /// Those of the hotels that have the rooms in each night, in their order; none that nobody
    /// knows.
    ///
    /// # Errors
    /// Those of the store.
    pub fn available(&self, booking: &Booking) -> Result<Vec<String>, Failure> {
        let hotels = &booking.hotels;
        let capacity_keys: Vec<_> = hotels.iter().map(|hotel| format!("{hotel}_cap")).collect();
        let capacities = self.cache.through(&capacity_keys, |key| {
            self.rooms(key.strip_suffix("_cap").unwrap_or(key))
        })?;
        let nights = booking.stay.nights().collect::<Vec<_>>();
        let keys = hotels.iter().flat_map(|hotel| {
            let key = |night: &NaiveDate| night_key(hotel, *night);
            nights.iter().map(key)
        });
        let taken = self.taken(&keys.collect::<Vec<_>>())?;
        let asked = hotels
            .iter()
            .zip(capacities)
            .zip(taken.chunks(nights.len()));
        let free = asked.filter(|((_, capacity), taken)| {
            let fits = |taken: &u32| taken.saturating_add(booking.rooms) <= capacity.unwrap_or(0);
            taken.iter().all(fits)
        });
        Ok(free.map(|((hotel, _), _)| hotel.clone()).collect())
    }

    /// How many rooms are taken by these keys, from the cache if that has all.
    fn taken(&self, keys: &[String]) -> Result<Vec<u32>, Failure> {
        let cached = self.cache.get(keys);
        let known = keys.iter().map(|key| cached.get(key));
        if let Some(known) = known.collect::<Option<Vec<_>>>() {
            return known
                .into_iter()
                .map(|taken| store::parsed(taken))
                .collect();
        }
        let _order = self.order();
        let taken = counts(&self.database, keys)?;
        let news = keys.iter().zip(&taken);
        let news: Vec<_> = news
            .map(|(key, taken)| (key.clone(), store::json(taken)))
            .collect();
        self.cache.set(&news);
        Ok(taken)
    }

    fn rooms(&self, hotel: &str) -> Result<Option<u32>, Failure> {
        let read = || {
            let rooms = self.database.begin_read()?.open_table(ROOMS)?;
            Ok(rooms.get(hotel)?.map(|rooms| rooms.value()))
        };
        read().map_err(|error: redb::Error| error.into())
    }

    fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hotel's night in the store and in the cache: `4_2015-04-09_2015-04-10`.
fn night_key(hotel: &str, night: NaiveDate) -> String {
    let next = night.succ_opt().unwrap_or(night);
    format!("{hotel}_{night}_{next}")
}

/// Makes the tables of a new store, with the data set.
fn fill(database: &Database, first: &Booking) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let mut rooms = transaction.open_table(ROOMS)?;
    let is_new = rooms.is_empty()?;
    if is_new {
        for (hotel, count) in dataset::rooms() {
            rooms.insert(hotel.as_str(), count)?;
        }
    }
    drop(rooms);
    transaction.open_table(TAKEN)?;
    transaction.open_table(RESERVATIONS)?;
    transaction.commit()?;
    if is_new {
        take(database, &first.hotels[0], first, first.rooms)?;
    }
    Ok(())
}

/// Takes rooms in one transaction; what is taken then, by key. `None`, and nothing changed, if a
/// night hasn't as many.
fn take(
    database: &Database,
    hotel: &str,
    booking: &Booking,
    rooms: u32,
) -> Result<Option<Vec<(String, u32)>>, redb::Error> {
    let transaction = database.begin_write()?;
    let mut table = transaction.open_table(TAKEN)?;
    let mut counts = Vec::new();
    for night in booking.stay.nights() {
        let key = night_key(hotel, night);
        let before = table.get(key.as_str())?.map_or(0, |taken| taken.value());
        let after = before.saturating_add(booking.rooms);
        if after > rooms {
            // Dropped uncommitted, the transaction has never been.
            return Ok(None);
        }
        table.insert(key.as_str(), after)?;
        counts.push((key, after));
    }
    drop(table);
    let mut reservations = transaction.open_table(RESERVATIONS)?;
    let record = Record {
        customer: booking.customer.clone(),
        hotel: hotel.to_owned(),
        in_date: booking.stay.first.to_string(),
        out_date: booking.stay.last.to_string(),
        rooms: booking.rooms,
    };
    let number = reservations.len()?;
    reservations.insert(number, store::json(&record).as_slice())?;
    drop(reservations);
    transaction.commit()?;
    Ok(Some(counts))
}

fn counts(database: &Database, keys: &[String]) -> Result<Vec<u32>, redb::Error> {
    let table = database.begin_read()?.open_table(TAKEN)?;
    let count = |key: &String| Ok(table.get(key.as_str())?.map_or(0, |taken| taken.value()));
    keys.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn booking(hotels: &[&str], dates: [&str; 2], rooms: i32) -> Booking {
        let hotels = hotels.iter().map(|&hotel| hotel.to_owned()).collect();
        Booking::parse("Ada", hotels, dates, rooms).unwrap()
    }

    #[test]
    fn a_stay_takes_rooms_in_all_nights_or_in_none() {
        let place = tempfile::tempdir().unwrap();
        let rooms = Reservations::open(place.path(), None).unwrap();
        let middle = booking(&["9"], ["2015-04-10", "2015-04-11"], 200);
        assert!(rooms.reserve(&middle).unwrap());
        let around = booking(&["9"], ["2015-04-09", "2015-04-12"], 1);
        assert!(!rooms.reserve(&around).unwrap());
        for dates in [["2015-04-09", "2015-04-10"], ["2015-04-11", "2015-04-12"]] {
            let all = booking(&["9"], dates, 200);
            assert_eq!(rooms.available(&all).unwrap(), ["9"]);
        }
        let hotels = booking(&["8", "nobody", "9", "7"], ["2015-04-09", "2015-04-12"], 1);
        assert_eq!(rooms.available(&hotels).unwrap(), ["8", "7"]);
    }

    #[test]
    fn a_store_remembers_and_begins_with_alice() {
        let place = tempfile::tempdir().unwrap();
        let all = booking(&["4"], ["2015-04-09", "2015-04-10"], 200);
        let rest = booking(&["4"], ["2015-04-09", "2015-04-10"], 199);
        let rooms = Reservations::open(place.path(), None).unwrap();
        assert!(!rooms.reserve(&all).unwrap());
        assert!(rooms.reserve(&rest).unwrap());
        drop(rooms);
        let rooms = Reservations::open(place.path(), None).unwrap();
        let one = booking(&["4"], ["2015-04-09", "2015-04-10"], 1);
        assert!(!rooms.reserve(&one).unwrap());
    }

    #[test]
    fn hotels_that_nobody_knows_have_no_rooms() {
        let place = tempfile::tempdir().unwrap();
        let rooms = Reservations::open(place.path(), None).unwrap();
        let failure = rooms.reserve(&booking(&["81"], ["2015-04-09", "2015-04-10"], 1));
        assert_eq!(failure.unwrap_err().code, Code::NOT_FOUND);
        let failure = rooms.reserve(&booking(&[], ["2015-04-09", "2015-04-10"], 1));
        assert_eq!(failure.unwrap_err().code, Code::INVALID_ARGUMENT);
    }
}
