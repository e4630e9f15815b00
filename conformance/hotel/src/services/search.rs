//! Which hotels to offer. Its own calls are due when the call is that it answers.

use crate::calls::{Calls, Due};
use crate::failure::Failure;
use crate::stay::Stay;

/// Whom it asks.
#[derive(Debug)]
pub struct Search<C> {
    calls: C,
}

impl<C: Calls> Search<C> {
    /// One that asks these.
    pub fn new(calls: C) -> Search<C> {
        Search { calls }
    }

    /// The nearest hotels that have rates, the most expensive first.
    ///
    /// # Errors
    /// Those of the services that it asks.
    pub async fn nearby(
        &self,
        due: Due,
        lat: f32,
        lon: f32,
        stay: Stay,
    ) -> Result<Vec<String>, Failure> {
        let nearest = self.calls.nearest(due, lat, lon).await?;
        self.calls.with_rates(due, nearest, stay).await
    }
}
