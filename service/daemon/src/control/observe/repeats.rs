//! Events that may repeat forever, for the audit log: the first is recorded at once, the others as
//! a count from time to time.

use std::rc::Rc;
use std::time::Instant;

use serde_json::Value;
use tollgate_control::Due;
use tollgate_control::audit::{Actor, Event};

use crate::control::state::Control;
use crate::limits::{AUDIT_FLUSH, STATE_RETRY};

impl Control {
    /// Records an event that may repeat forever.
    pub(crate) fn happened(&self, event: Event, culprit: &str, details: Value) {
        let key = format!("{} {culprit}", event.name());
        if let Some(due) = self.repeats.happened(&key, event, details) {
            self.record_due(due);
        }
    }

    /// Records the counts of repeated events, and retries records that couldn't be written.
    pub(crate) async fn follow_repeats(self: Rc<Self>) {
        let mut retried = Instant::now();
        loop {
            tokio::time::sleep(AUDIT_FLUSH).await;
            if retried.elapsed() >= STATE_RETRY {
                self.changes.store().retry();
                retried = Instant::now();
            }
            while let Some(due) = self.repeats.due() {
                self.record_due(due);
            }
        }
    }

    fn record_due(&self, due: Due<(Event, Value)>) {
        let (event, mut details) = due.event;
        details["times"] = due.times.into();
        if let Err(error) = self.changes.store().record(Actor::Daemon, event, details) {
            tracing::error!(
                "the audit log lacks {} records of {}: {error}",
                due.times,
                due.key
            );
        }
    }
}
