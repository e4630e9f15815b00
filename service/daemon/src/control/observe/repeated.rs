//! Events that may repeat forever, for the audit log: the first is recorded at once, the others as
//! a count from time to time.
//!
//! Invariant: no borrow outlives a method, so none is held while a record is written.

use std::cell::RefCell;
use std::time::Instant;

use serde_json::Value;
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Due, Repeats, Store};

/// Events that may repeat forever, and their counts since the last record.
#[derive(Default)]
pub(crate) struct Repeated(RefCell<Repeats<(Event, Value)>>);

impl Repeated {
    /// Records an event that may repeat forever.
    pub(crate) fn happened(&self, store: &Store, event: Event, culprit: &str, details: Value) {
        let key = format!("{} {culprit}", event.name());
        let happened = (event, details);
        let due = self.0.borrow_mut().happened(Instant::now(), &key, happened);
        if let Some(due) = due {
            record(store, due);
        }
    }

    /// Records the counts that are due.
    pub(super) fn record_due(&self, store: &Store) {
        while let Some(due) = self.next_due() {
            record(store, due);
        }
    }

    fn next_due(&self) -> Option<Due<(Event, Value)>> {
        self.0.borrow_mut().due(Instant::now())
    }
}

fn record(store: &Store, due: Due<(Event, Value)>) {
    let (event, mut details) = due.event;
    details["times"] = due.times.into();
    if let Err(error) = store.record(Actor::Daemon, event, details) {
        tracing::error!(
            "the audit log lacks {} records of {}: {error}",
            due.times,
            due.key
        );
    }
}
