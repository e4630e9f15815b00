//! What hotels say of themselves. Profiles are cached.

use std::net::SocketAddr;
use std::path::Path;

use crate::cache::Cache;
use crate::calls;
use crate::dataset::{self, Profile};
use crate::failure::Failure;
use crate::store::Store;

/// The profiles.
#[derive(Debug)]
pub struct Profiles {
    store: Store,
    cache: Cache,
}

impl Profiles {
    /// With the profiles of the store in this directory.
    ///
    /// # Errors
    /// INTERNAL if that can't be used.
    pub fn open(directory: &Path, memcached: Option<SocketAddr>) -> Result<Profiles, Failure> {
        let store = Store::open(directory, "profile", dataset::profiles())?;
        let cache = Cache::new("profile", memcached);
        Ok(Profiles { store, cache })
    }

    /// Those of these hotels, in their order, without hotels that nobody knows.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for too many hotels; those of the store.
    pub fn profiles(&self, hotels: Vec<String>) -> Result<Vec<Profile>, Failure> {
        let hotels = calls::few(hotels)?;
        let profiles = self.cache.through(&hotels, |id| self.store.get(id))?;
        Ok(profiles.into_iter().flatten().collect())
    }
}
