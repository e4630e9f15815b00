//! How fast one tenant's requests are carried out, whatever its principals send.
//!
//! Invariants: of a tenant, at most [`REQUESTS_PER_TENANT`] requests are in progress, and changes
//! begin at most once per [`CHANGE_PACE`] on average, after [`CHANGES_AT_ONCE`] at once, and within
//! an hour as many as its ceiling says. Other requests begin at most once per [`LOOK_PACE`], after
//! [`LOOKS_AT_ONCE`] at once. Operators don't wait. A tenant without requests for two hours has no
//! entry.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tollgate_admin::{Principal, Status};
use tollgate_control::at_ceiling;
use tollgate_shm_abi::status::Code;

use crate::control::budget::Budget;
use crate::limits::{CHANGE_PACE, CHANGES_AT_ONCE, LOOK_PACE, LOOKS_AT_ONCE, REQUESTS_PER_TENANT};

/// The tenants that have requests in progress, or have just had some.
#[derive(Default)]
pub(in crate::control) struct Paces {
    tenants: RefCell<HashMap<String, Tenant>>,
}

struct Tenant {
    turns: Arc<Semaphore>,
    /// The paces of changes and of other requests.
    changes: Pace,
    looks: Pace,
    /// Changes that have begun.
    spent: Budget,
}

/// A pace with an allowance for requests at once.
struct Pace {
    pause: Duration,
    at_once: u32,
    /// When the allowance is complete again.
    complete: Instant,
}

/// What a request is, for its pace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// It changes nothing.
    Look,
    /// It is one of the tenant's changes per hour. If it only ends or takes something back, twice
    /// as many may begin.
    Change { per_hour: u32, is_way_out: bool },
}

/// Until it is dropped, the request is in progress.
pub(super) struct Turn {
    _held: Option<OwnedSemaphorePermit>,
}

impl Paces {
    /// Waits for a principal's turn.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: the tenant has begun an hour's changes.
    pub(super) async fn turn(&self, principal: &Principal, kind: Kind) -> Result<Turn, Status> {
        let Principal::Tenant { tenant, .. } = principal else {
            return Ok(Turn { _held: None });
        };
        let turns = self.of(tenant, Instant::now(), |tenant| Arc::clone(&tenant.turns));
        let stopping = |_| Status::new(Code::UNAVAILABLE, "the daemon is stopping");
        let held = turns.acquire_owned().await.map_err(stopping)?;
        let now = Instant::now();
        let begins = self.of(tenant, now, |its| match kind {
            Kind::Look => Ok(its.looks.next(now)),
            Kind::Change {
                per_hour,
                is_way_out,
            } => match its.spent.try_spend(now, per_hour, 1.0, is_way_out) {
                true => Ok(its.changes.next(now)),
                false => Err(per_hour),
            },
        });
        let begins = begins.map_err(|per_hour| {
            let has = "an hour's changes are used up";
            let text = at_ceiling(tenant, has, "changes_per_hour", per_hour);
            Status::new(Code::RESOURCE_EXHAUSTED, text)
        })?;
        tokio::time::sleep_until(begins.into()).await;
        Ok(Turn { _held: Some(held) })
    }

    fn of<T>(&self, name: &str, now: Instant, look: impl FnOnce(&mut Tenant) -> T) -> T {
        let mut tenants = self.tenants.borrow_mut();
        if !tenants.contains_key(name) {
            tenants.retain(|_, tenant| {
                let is_used = Arc::strong_count(&tenant.turns) > 1;
                let is_pausing = now < tenant.changes.complete.max(tenant.looks.complete);
                is_used || is_pausing || !tenant.spent.is_old(now)
            });
            let fresh = Tenant {
                turns: Arc::new(Semaphore::new(REQUESTS_PER_TENANT)),
                changes: Pace::new(CHANGE_PACE, CHANGES_AT_ONCE, now),
                looks: Pace::new(LOOK_PACE, LOOKS_AT_ONCE, now),
                spent: Budget::new(now),
            };
            tenants.insert(name.to_owned(), fresh);
        }
        let tenant = tenants.get_mut(name);
        look(tenant.expect("it was there, or was inserted"))
    }

    /// Counts further changes of a request that has begun.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: they are more than an hour has left. None is counted then.
    pub(in crate::control) fn charge(
        &self,
        tenant: &str,
        per_hour: u32,
        changes: usize,
    ) -> Result<(), Status> {
        let now = Instant::now();
        let cost = changes as f64;
        let has_room = self.of(tenant, now, |its| {
            its.spent.try_spend(now, per_hour, cost, false)
        });
        if has_room {
            return Ok(());
        }
        let has = format!("{changes} further changes are more than the hour has left");
        let text = at_ceiling(tenant, has, "changes_per_hour", per_hour);
        Err(Status::new(Code::RESOURCE_EXHAUSTED, text))
    }

    /// A tenant's changes that count now.
    pub(in crate::control) fn changes(&self, tenant: &str, per_hour: u32) -> f64 {
        let tenants = self.tenants.borrow();
        let its = tenants.get(tenant);
        its.map_or(0.0, |its| its.spent.spent(Instant::now(), per_hour))
    }
}

impl Pace {
    fn new(pause: Duration, at_once: u32, now: Instant) -> Pace {
        Pace {
            pause,
            at_once,
            complete: now,
        }
    }

    /// When a request begins that comes now.
    fn next(&mut self, now: Instant) -> Instant {
        self.complete = self.complete.max(now) + self.pause;
        self.complete
            .checked_sub(self.pause * self.at_once)
            .map_or(now, |begins| begins.max(now))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tollgate_admin::proto::Role;

    use super::*;

    fn owner(tenant: &str) -> Principal {
        Principal::Tenant {
            tenant: tenant.to_owned(),
            credential: "default".to_owned(),
            role: Role::Owner,
        }
    }

    fn change(per_hour: u32) -> Kind {
        Kind::Change {
            per_hour,
            is_way_out: false,
        }
    }

    #[test]
    fn changes_begin_at_the_pace_after_some_at_once() {
        let now = Instant::now();
        let mut pace = Pace::new(CHANGE_PACE, CHANGES_AT_ONCE, now);
        for _ in 0..CHANGES_AT_ONCE {
            assert_eq!(pace.next(now), now);
        }
        assert_eq!(pace.next(now), now + CHANGE_PACE);
        assert_eq!(pace.next(now), now + CHANGE_PACE * 2);
        let later = now + CHANGE_PACE * (CHANGES_AT_ONCE + 2);
        assert_eq!(pace.next(later), later, "the allowance is complete again");
    }

    #[test]
    fn a_tenant_has_so_many_requests_in_progress_and_delays_no_other() {
        let reactor = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        reactor.block_on(async {
            let paces = Paces::default();
            let mut held = Vec::new();
            for _ in 0..REQUESTS_PER_TENANT {
                held.push(paces.turn(&owner("acme"), Kind::Look).await.unwrap());
            }
            let (acme, evil) = (owner("acme"), owner("evil"));
            let mut more = std::pin::pin!(paces.turn(&acme, Kind::Look));
            tokio::select! {
                biased;
                _ = &mut more => panic!("acme has its turns"),
                _ = paces.turn(&evil, change(9)) => {}
            }
            let operator = Principal::Operator {
                who: "user 0".to_owned(),
            };
            paces.turn(&operator, change(9)).await.unwrap();
            held.pop();
            more.await.unwrap();
            drop(held);
            paces.turn(&owner("third"), Kind::Look).await.unwrap();
            assert!(
                paces.tenants.borrow().contains_key("acme"),
                "its changes count for a while"
            );
        });
    }

    #[test]
    fn an_hours_changes_are_refused_beyond_the_ceiling() {
        let reactor = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        reactor.block_on(async {
            let paces = Paces::default();
            for _ in 0..3 {
                paces.turn(&owner("acme"), change(3)).await.unwrap();
            }
            let refused = paces.turn(&owner("acme"), change(3)).await;
            let refused = refused.err().unwrap();
            assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
            for words in ["`changes_per_hour` = 3", "an operator can change it"] {
                assert!(refused.message.contains(words), "{refused}");
            }
            assert!(paces.changes("acme", 3) > 2.9);
            // What takes something back may be what ends the flood.
            let way_out = Kind::Change {
                per_hour: 3,
                is_way_out: true,
            };
            paces.turn(&owner("acme"), way_out).await.unwrap();
            paces.turn(&owner("acme"), Kind::Look).await.unwrap();
            paces.turn(&owner("evil"), change(3)).await.unwrap();
            paces.turn(&owner("acme"), change(5)).await.unwrap();
        });
    }
}
