//! Services with binds in flight. The binding thread leaves them here for the driving thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::serve::Service;

/// Services by the id of their bind.
#[derive(Default)]
pub(crate) struct PendingServices(Mutex<BTreeMap<u64, Arc<dyn Service>>>);

impl PendingServices {
    pub(crate) fn insert(&self, bind: u64, service: Arc<dyn Service>) {
        self.lock().insert(bind, service);
    }

    pub(crate) fn take(&self, bind: u64) -> Option<Arc<dyn Service>> {
        self.lock().remove(&bind)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn Service>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
