//! Events that may repeat forever, for the audit log: the first is recorded at once, the others as
//! a count from time to time.

use std::rc::Rc;
use std::time::Instant;

use serde_json::Value;
use tollgate_control::audit::{Actor, Event};

use crate::control::state::Control;
use crate::limits::{AUDIT_FLUSH, STATE_RETRY};

impl Control {
    /// Records an event that may repeat forever.
    pub(crate) fn happened(&self, event: Event, culprit: &str, details: Value) {
        let key = format!("{} {culprit}", event.name());
        let due = {
            let mut repeats = self.repeats.borrow_mut();
            repeats.happened(Instant::now(), &key, (event, details))
        };
        if let Some(due) = due {
            self.record_due(due);
        }
    }

    /// Records the counts of repeated events, and retries records that couldn't be written.
    pub(crate) async fn follow_repeats(self: Rc<Self>) {
        let mut retried = Instant::now();
        loop {
            tokio::time::sleep(AUDIT_FLUSH).await;
            if retried.elapsed() >= STATE_RETRY {
                self.store.retry();
                retried = Instant::now();
            }
            loop {
                let due = self.repeats.borrow_mut().due(Instant::now());
                match due {
                    Some(due) => self.record_due(due),
                    None => break,
                }
            }
        }
    }

    fn record_due(&self, due: tollgate_control::Due<(Event, Value)>) {
        let (event, mut details) = due.event;
        details["times"] = due.times.into();
        if let Err(error) = self.store.record(Actor::Daemon, event, details) {
            tracing::error!(
                "the audit log lacks {} records of {}: {error}",
                due.times,
                due.key
            );
        }
    }
}
