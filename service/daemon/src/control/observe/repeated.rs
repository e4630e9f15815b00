//! The counts of events that may repeat forever.
//!
//! Invariant: no borrow outlives a method, so none is held while a record is written.

use std::cell::RefCell;
use std::time::Instant;

use serde_json::Value;
use tollgate_control::audit::Event;
use tollgate_control::{Due, Repeats};

/// Events that may repeat forever, and their counts since the last record.
#[derive(Default)]
pub(crate) struct Repeated(RefCell<Repeats<(Event, Value)>>);

impl Repeated {
    /// An event has happened. Returns what to record now, if anything.
    pub(crate) fn happened(
        &self,
        key: &str,
        event: Event,
        details: Value,
    ) -> Option<Due<(Event, Value)>> {
        let mut repeats = self.0.borrow_mut();
        repeats.happened(Instant::now(), key, (event, details))
    }

    /// The next count that is due.
    pub(crate) fn due(&self) -> Option<Due<(Event, Value)>> {
        self.0.borrow_mut().due(Instant::now())
    }
}
