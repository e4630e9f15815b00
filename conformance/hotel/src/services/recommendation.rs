//! The best hotels by one criterion. `python/recommendation.py` is the same in Python, and answers
//! exactly the same.

use std::path::Path;

use crate::dataset::{self, Offer, Point};
use crate::failure::Failure;
use crate::services::geo::distance_km;
use crate::store::Store;

/// The offers, by the hotels' numbers.
#[derive(Debug)]
pub struct Recommendations {
    offers: Vec<(String, Offer)>,
}

impl Recommendations {
    /// With the offers of the store in this directory.
    ///
    /// # Errors
    /// INTERNAL if that can't be used.
    pub fn open(directory: &Path) -> Result<Recommendations, Failure> {
        let store = Store::open(directory, "recommendation", dataset::offers())?;
        let offers = store.all()?;
        Ok(Recommendations { offers })
    }

    /// All that are equally good.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a criterion that there isn't.
    pub fn best(&self, require: &str, here: Point) -> Result<Vec<String>, Failure> {
        let least = |badness: &dyn Fn(&Offer) -> f64| {
            let bad: Vec<_> = self
                .offers
                .iter()
                .map(|(_, offer)| badness(offer))
                .collect();
            let least = bad.iter().copied().fold(f64::INFINITY, f64::min);
            let best = self.offers.iter().zip(bad).filter(|(_, bad)| *bad == least);
            best.map(|((id, _), _)| id.clone()).collect()
        };
        match require {
            "dis" => Ok(least(&|offer| distance_km(here, offer.point))),
            "rate" => Ok(least(&|offer| -offer.rate)),
            "price" => Ok(least(&|offer| offer.price)),
            _ => Err(Failure::invalid(format!(
                "require is {require:?}; it has to be dis, rate or price"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_criterion_has_its_best_hotels() {
        let place = tempfile::tempdir().unwrap();
        let all = Recommendations::open(place.path()).unwrap();
        let here = Point {
            lat: 37.7831,
            lon: -122.4181,
        };
        assert_eq!(all.best("dis", here).unwrap(), ["5"]);
        assert_eq!(all.best("price", here).unwrap(), ["2"]);
        let rate = all.best("rate", here).unwrap();
        assert_eq!(rate, ["9", "24", "39", "54", "69"]);
        assert!(all.best("view", here).unwrap_err().message.contains("view"));
    }
}
