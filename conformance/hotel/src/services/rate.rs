//! What rooms cost. Plans are cached, also that a hotel has none.
//!
//! As in the original the days of the request aren't looked at. Other than there a hotel that isn't
//! cached has its own plan only, not everybody's.

use std::net::SocketAddr;
use std::path::Path;

use crate::cache::Cache;
use crate::calls;
use crate::dataset::{self, RatePlan};
use crate::failure::Failure;
use crate::store::Store;

/// The plans.
#[derive(Debug)]
pub struct Rates {
    store: Store,
    cache: Cache,
}

impl Rates {
    /// With the plans of the store in this directory.
    ///
    /// # Errors
    /// INTERNAL if that can't be used.
    pub fn open(directory: &Path, memcached: Option<SocketAddr>) -> Result<Rates, Failure> {
        let store = Store::open(directory, "rate", dataset::rate_plans())?;
        let cache = Cache::new("rate", memcached);
        Ok(Rates { store, cache })
    }

    /// The plans of these hotels, the most expensive first; those of one price in the order of the
    /// hotels.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for too many hotels; those of the store.
    pub fn plans(&self, hotels: Vec<String>) -> Result<Vec<RatePlan>, Failure> {
        let hotels = calls::few(hotels)?;
        let plans = self.cache.through(&hotels, |id| self.store.get(id))?;
        let mut plans: Vec<RatePlan> = plans.into_iter().flatten().collect();
        plans.sort_by(|a, b| b.room_type.total_rate.total_cmp(&a.room_type.total_rate));
        Ok(plans)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_most_expensive_comes_first_and_hotels_without_a_plan_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let rates = Rates::open(place.path(), None).unwrap();
        let hotels = ["3", "4", "2", "nobody", "1", "9"].map(str::to_owned);
        let plans = rates.plans(hotels.to_vec()).unwrap().into_iter();
        assert!(plans.map(|plan| plan.hotel_id).eq(["9", "2", "3", "1"]));
        let many = vec![String::new(); calls::MAX_HOTELS + 1];
        assert!(rates.plans(many).is_err());
    }
}
