//! The task that keeps the audit log complete.

use std::rc::Rc;
use std::time::Instant;

use crate::control::state::Control;
use crate::limits::{AUDIT_FLUSH, STATE_RETRY};

/// Records the counts of repeated events, and retries records that couldn't be written.
pub(crate) async fn follow_repeats(control: Rc<Control>) {
    let store = control.changes.store();
    let mut retried = Instant::now();
    loop {
        tokio::time::sleep(AUDIT_FLUSH).await;
        if retried.elapsed() >= STATE_RETRY {
            store.retry();
            retried = Instant::now();
        }
        control.repeats.record_due(store);
    }
}
