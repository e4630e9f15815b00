//! Receive heaps: bytes per tenant and in total.
//!
//! A receive heap is the daemon's memory. An application that releases nothing makes the daemon
//! touch all of its heap, and the pages stay until the session ends. So the announced size counts,
//! touched or not. Applications touch the send heaps.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::limits::{RECEIVE_HEAP_BYTES, RECEIVE_HEAP_BYTES_PER_TENANT};

/// Counts the bytes of receive heaps.
#[derive(Default)]
pub(crate) struct Heaps {
    taken: RefCell<Taken>,
}

#[derive(Default)]
struct Taken {
    all: u64,
    of_tenants: HashMap<String, u64>,
}

/// Why there is no room for a receive heap. Sizes are in bytes.
#[derive(Debug, thiserror::Error)]
#[error(
    "{whose} have receive heaps of {} MiB and this one needs {} MiB more; the limit is {} MiB: ask for a smaller receive heap, or end sessions",
    .there >> 20,
    .bytes >> 20,
    .limit >> 20
)]
pub(crate) struct NoHeap {
    whose: String,
    there: u64,
    bytes: u64,
    limit: u64,
}

/// A session's receive heap; released when dropped.
pub(crate) struct Heap {
    heaps: Rc<Heaps>,
    tenant: String,
    bytes: u64,
}

impl Heaps {
    /// Room for a receive heap.
    pub(crate) fn open(self: &Rc<Self>, tenant: &str, bytes: u64) -> Result<Heap, NoHeap> {
        let taken = self.taken.borrow();
        let its = taken.of_tenants.get(tenant).copied().unwrap_or_default();
        let full = if its + bytes > RECEIVE_HEAP_BYTES_PER_TENANT {
            Some((
                format!("the sessions of tenant {tenant}"),
                its,
                RECEIVE_HEAP_BYTES_PER_TENANT,
            ))
        } else if taken.all + bytes > RECEIVE_HEAP_BYTES {
            Some(("all sessions".to_owned(), taken.all, RECEIVE_HEAP_BYTES))
        } else {
            None
        };
        drop(taken);
        match full {
            None => Ok(self.go_on(tenant, bytes)),
            Some((whose, there, limit)) => Err(NoHeap {
                whose,
                there,
                bytes,
                limit,
            }),
        }
    }

    /// Bytes of a tenant's receive heaps.
    pub(crate) fn of(&self, tenant: &str) -> u64 {
        let taken = self.taken.borrow();
        taken.of_tenants.get(tenant).copied().unwrap_or_default()
    }

    /// The receive heap of a session that another process opened: it stays regardless of the
    /// limits.
    pub(crate) fn go_on(self: &Rc<Self>, tenant: &str, bytes: u64) -> Heap {
        let mut taken = self.taken.borrow_mut();
        taken.all += bytes;
        *taken.of_tenants.entry(tenant.to_owned()).or_default() += bytes;
        Heap {
            heaps: Rc::clone(self),
            tenant: tenant.to_owned(),
            bytes,
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let mut taken = self.heaps.taken.borrow_mut();
        taken.all -= self.bytes;
        if let Some(its) = taken.of_tenants.get_mut(&self.tenant) {
            *its -= self.bytes;
            if *its == 0 {
                taken.of_tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tollgate_shm_abi::limits::{DEFAULT_HEAP_BYTES, MAX_HEAP_BYTES};

    use super::*;
    use crate::limits::{MAX_SESSIONS, MAX_SESSIONS_PER_TENANT};

    #[test]
    fn default_heaps_fit_for_as_many_sessions_as_there_may_be() {
        let heaps = Rc::new(Heaps::default());
        let mut kept = Vec::new();
        for k in 0..MAX_SESSIONS {
            let tenant = format!("t{}", k / MAX_SESSIONS_PER_TENANT);
            kept.push(heaps.open(&tenant, DEFAULT_HEAP_BYTES).unwrap());
        }
        let full = heaps
            .open("late", DEFAULT_HEAP_BYTES)
            .err()
            .unwrap()
            .to_string();
        assert!(full.contains("all sessions have"), "{full}");
        kept.clear();
        assert!(heaps.taken.borrow().of_tenants.is_empty());
        assert_eq!(heaps.taken.borrow().all, 0);
    }

    #[test]
    fn a_tenant_has_a_share_and_leaves_the_others_theirs() {
        let heaps = Rc::new(Heaps::default());
        let open = || heaps.open("mallory", MAX_HEAP_BYTES);
        let mut kept: Vec<_> = std::iter::from_fn(|| open().ok()).collect();
        assert_eq!(
            kept.len() as u64,
            RECEIVE_HEAP_BYTES_PER_TENANT / MAX_HEAP_BYTES
        );
        let full = open().err().unwrap();
        for said in [
            "tenant mallory",
            "65536 MiB",
            "ask for a smaller receive heap",
        ] {
            assert!(full.to_string().contains(said), "{full}");
        }
        heaps.open("acme", MAX_HEAP_BYTES).unwrap();
        kept.pop();
        assert!(open().is_ok());
        let over = heaps.go_on("mallory", 2 * MAX_HEAP_BYTES);
        assert!(open().is_err());
        drop(over);
        assert!(open().is_ok());
    }
}
