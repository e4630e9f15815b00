//! Where the hotels are: all of them are compared, as there are 80. `c/geo.c` is the same in C, and
//! answers exactly the same.

use std::path::Path;

use crate::dataset::{self, Point};
use crate::failure::Failure;
use crate::store::Store;

/// How far away a hotel may be.
pub const RADIUS_KM: f64 = 10.0;

/// How many are answered.
pub const MAX_NEAREST: usize = 5;

const EARTH_RADIUS_KM: f64 = 6371.0;

/// The hotels, by their numbers.
#[derive(Debug)]
pub struct Geo {
    hotels: Vec<(String, Point)>,
}

impl Geo {
    /// With the hotels of the store in this directory.
    ///
    /// # Errors
    /// INTERNAL if that can't be used.
    pub fn open(directory: &Path) -> Result<Geo, Failure> {
        let store = Store::open(directory, "geo", dataset::points())?;
        let hotels = store.all()?;
        Ok(Geo { hotels })
    }

    /// The nearest hotels, the nearest first; of those equally far the one with the lower number.
    pub fn nearest(&self, lat: f32, lon: f32) -> Vec<String> {
        let here = Point {
            lat: lat.into(),
            lon: lon.into(),
        };
        let hotels = self.hotels.iter();
        let mut near: Vec<_> = hotels
            .map(|(id, point)| (distance_km(here, *point), id))
            .filter(|(km, _)| *km <= RADIUS_KM)
            .collect();
        near.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let near = near.into_iter().take(MAX_NEAREST);
        near.map(|(_, id)| id.clone()).collect()
    }
}

/// Along a great circle, by the haversine formula; in the order of operations of `c/geo.c` and
/// `python/recommendation.py`.
pub fn distance_km(a: Point, b: Point) -> f64 {
    let lat = ((b.lat - a.lat).to_radians() / 2.0).sin();
    let lon = ((b.lon - a.lon).to_radians() / 2.0).sin();
    let (from, to) = (a.lat.to_radians().cos(), b.lat.to_radians().cos());
    let h = lat * lat + lon * lon * from * to;
    2.0 * EARTH_RADIUS_KM * h.sqrt().atan2((1.0 - h).sqrt())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_degree_of_latitude_is_111_km() {
        let at = |lat| Point { lat, lon: -122.0 };
        let km = distance_km(at(37.0), at(38.0));
        assert!((km - 111.19).abs() < 0.01, "{km}");
        assert_eq!(distance_km(at(37.0), at(37.0)), 0.0);
    }

    #[test]
    fn the_nearest_five_come_first_and_none_beyond_ten_km() {
        let place = tempfile::tempdir().unwrap();
        let geo = Geo::open(place.path()).unwrap();
        assert_eq!(geo.nearest(37.7867, -122.4112), ["1", "3", "5", "6", "2"]);
        // Number 40's own position: its neighbours are about 0.97 km apart.
        let forty = Point {
            lat: 37.7835 + 0.24,
            lon: -122.41 + 0.32,
        };
        let near = geo.nearest(forty.lat as f32, forty.lon as f32);
        assert_eq!(near[0], "40");
        assert_eq!(near.len(), 5);
        // 9 km beyond the last one, and 12.
        assert!(!geo.nearest(38.34, -121.76).is_empty());
        assert!(geo.nearest(38.37, -121.76).is_empty());
    }
}
