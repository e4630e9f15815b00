//! Which hotels to offer. Its own calls are due when the call is that it answers, and in the same
//! trace.

use crate::calls::{Calls, Cause};
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
        cause: Cause,
        lat: f32,
        lon: f32,
        stay: Stay,
    ) -> Result<Vec<String>, Failure> {
        let nearest = self.calls.nearest(cause.clone(), lat, lon).await?;
        self.calls.with_rates(cause, nearest, stay).await
    }
}
