//! Turns for slow work: resolving and comparing schemas.
//!
//! Invariant: at most [`TURNS_PER_TENANT`] pieces of one tenant's work run at once, on this thread
//! or on a blocking one, and all tenants' work leaves the operator's blocking threads free. A
//! tenant that keeps binding large schemas delays nobody else, and at most as many of its
//! descriptor sets are in memory as it has turns.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::limits::{TURNS, TURNS_PER_TENANT};

/// Permits for turns, waited for or held.
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    tenants: RefCell<HashMap<String, Arc<Semaphore>>>,
}

/// A turn, held until its last clone is dropped, even if the requester has gone.
#[derive(Clone)]
pub(crate) struct Turn {
    _held: Arc<[OwnedSemaphorePermit]>,
}

impl Default for Turns {
    fn default() -> Self {
        Turns {
            all: Arc::new(Semaphore::new(TURNS)),
            tenants: RefCell::default(),
        }
    }
}

impl Turns {
    /// Waits for a tenant's turn.
    pub(crate) async fn of(&self, tenant: &str) -> Result<Turn, Status> {
        let its = {
            let mut tenants = self.tenants.borrow_mut();
            tenants.retain(|_, turns| Arc::strong_count(turns) > 1);
            let fresh = || Arc::new(Semaphore::new(TURNS_PER_TENANT));
            Arc::clone(tenants.entry(tenant.to_owned()).or_insert_with(fresh))
        };
        let ending = |_| Status::new(Code::UNAVAILABLE, "the daemon is stopping");
        let its = its.acquire_owned().await.map_err(ending)?;
        let one_of_all = Arc::clone(&self.all).acquire_owned();
        let one_of_all = one_of_all.await.map_err(ending)?;
        Ok(Turn {
            _held: [its, one_of_all].into(),
        })
    }
}

impl Turn {
    /// The operator's turn, which nobody waits for.
    pub(crate) fn operators() -> Turn {
        Turn { _held: [].into() }
    }

    /// Runs work on a blocking thread that would block the reactor.
    pub(crate) async fn on_blocking_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let turn = self.clone();
        let work = move || {
            let done = work();
            drop(turn);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| {
            let text = format!("the work of a request failed: {error}");
            Status::new(Code::INTERNAL, text)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_tenants_work_leaves_turns_to_others_and_threads_to_the_operator() {
        let reactor = tokio::runtime::Builder::new_current_thread();
        let threads = TURNS + 1;
        let reactor = { reactor }.max_blocking_threads(threads).build().unwrap();
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&reactor, async {
            let turns = Turns::default();
            let mut working = Vec::new();
            for k in 0..TURNS / TURNS_PER_TENANT {
                for _ in 0..TURNS_PER_TENANT {
                    let turn = turns.of(&format!("t{k}")).await.unwrap();
                    let (end, ended) = mpsc::channel::<()>();
                    let work = move || ended.recv().is_err();
                    let work = async move { turn.on_blocking_thread(work).await };
                    working.push((tokio::task::spawn_local(work), end));
                }
            }
            tokio::task::yield_now().await;
            assert_eq!(turns.all.available_permits(), 0);
            Turn::operators().on_blocking_thread(|| ()).await.unwrap();
            // The requester has gone; the work continues, and so does its turn.
            let (asker, end) = working.pop().unwrap();
            asker.abort();
            tokio::task::yield_now().await;
            assert_eq!(turns.all.available_permits(), 0);
            drop(end);
            turns.of("acme").await.unwrap();
            let more = turns.of("t0");
            let mut more = std::pin::pin!(more);
            tokio::select! {
                biased;
                _ = &mut more => panic!("t0 has had its share"),
                _ = turns.of("acme") => {}
            }
            drop(working);
            assert!(more.await.is_ok());
        });
    }
}
