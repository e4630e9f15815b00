//! A poller: one poll and one descriptor for many links. `verbs/pool.rs` holds their shared
//! resources.
//!
//! ```text
//!   loop {
//!       poller.wait(&mut ready, spin, rest)?   one completion queue per pool, whatever the number of links
//!       for id in ready.drain(..) { turn it }  as any link: read, events, flush, poll_sent
//!   }
//! ```
//!
//! A thread that waits for more than links uses [`poll`](Poller::poll),
//! [`prepare_to_wait`](Poller::prepare_to_wait) and the descriptor instead.
//!
//! A link that isn't ready needs a turn only in these cases: it is new to the poller, it has new
//! data to send, it has data left to read, or its clock is due. Its own
//! [`prepare_to_wait`](tollgate_transport::LinkIo::prepare_to_wait) works as for any link, by the
//! poller's descriptor. One-sided links have to [announce their
//! sleep](crate::RdmaLink::announce_sleep) before the poller sleeps. A write into a ring makes no
//! completion, so a poller doesn't see it: while polling, turn all one-sided links.
//!
//! One thread has a poller and its links. Other threads use its [`Door`]: through it they make
//! links of the poller, and give it theirs.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::watch::{BELL, CHANNEL, FIRST_LINK, call, new_epoll, watch_for};
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::limits;
use crate::link_id::LinkId;
use crate::named::Named;
use crate::verbs::{Pool, Pools, Rdma};

/// Options of a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerOptions {
    /// Links of a pool, 1 to [`limits::POOL_LINKS`]; by default [`limits::DEFAULT_POOL_LINKS`].
    /// Memory for that many is pinned when a device's first link comes, and again whenever all
    /// pools are full, see [`limits::pinned_bytes`].
    pub links: u16,
    /// Most pools on each device, 1 to [`limits::POLLER_POOLS`]; by default
    /// [`limits::DEFAULT_POLLER_POOLS`].
    pub pools: u16,
}

impl Default for PollerOptions {
    fn default() -> PollerOptions {
        PollerOptions {
            links: limits::DEFAULT_POOL_LINKS,
            pools: limits::DEFAULT_POLLER_POOLS,
        }
    }
}

/// The shared part of many links: completions, receives, and the descriptor that announces
/// completions.
pub struct Poller {
    door: Door,
    /// Polls since the last check for connections' events.
    polls: u32,
    waited: bool,
}

/// A poller's handle for other threads and for its links.
#[derive(Clone)]
pub struct Door(Arc<Shared>);

struct Shared {
    watch: OwnedFd,
    rdma: Rdma,
    pools: Pools,
    named: Arc<Named>,
    /// By link, whether its connection has an event.
    called: Mutex<HashMap<u64, Arc<AtomicBool>>>,
}

/// A poller's resources, and its costs beyond those of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// Number of its links.
    pub links: usize,
    /// Number of its own pools.
    pub pools: usize,
    /// Costs of no single link: receives posted for all, system calls, and bytes copied because
    /// nobody read them.
    pub counts: Counts,
}

impl Poller {
    /// A poller without links.
    ///
    /// # Errors
    /// If the number of links per pool or the number of pools is 0 or too large, or there is no
    /// descriptor left.
    pub fn new(rdma: &Rdma, options: &PollerOptions) -> Result<Poller, RdmaError> {
        let PollerOptions { links, pools } = *options;
        if !(1..=limits::POOL_LINKS).contains(&links) {
            return Err(RdmaError::PoolLinks { links });
        }
        if !(1..=limits::POLLER_POOLS).contains(&pools) {
            return Err(RdmaError::PollerPools { pools });
        }
        let (watch, named) = (new_epoll()?, Arc::new(Named::new()?));
        watch_for(&watch, named.as_fd(), BELL)?;
        Ok(Poller {
            door: Door(Arc::new(Shared {
                watch,
                rdma: rdma.clone(),
                pools: Pools::new([links, pools], &named),
                named,
                called: Mutex::new(HashMap::new()),
            })),
            polls: 0,
            waited: false,
        })
    }

    /// For making links of this poller.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Adds the ready links, each once. Never waits.
    ///
    /// # Errors
    /// If a device failed; its links fail, too, when they are turned. Links of other devices are
    /// named nevertheless.
    pub fn poll(&mut self, ready: &mut Vec<LinkId>) -> Result<(), RdmaError> {
        let Shared { pools, named, .. } = &*self.door.0;
        if self.waited {
            // From here on this thread's own findings needn't wake it.
            named.wake();
        }
        let polled = pools.poll();
        named.take(ready);
        self.polls += 1;
        if std::mem::take(&mut self.waited) || self.polls >= limits::EVENTS_EVERY {
            self.polls = 0;
            self.door.0.take_calls(ready)?;
        }
        polled
    }

    /// Makes the descriptor report the next event. `false` if one has come already: don't wait.
    ///
    /// # Errors
    /// Like [`Poller::poll`].
    pub fn prepare_to_wait(&mut self) -> Result<bool, RdmaError> {
        self.waited = true;
        self.door.0.prepare_to_wait()
    }

    /// Adds the ready links: polls for `spin`, like a runtime with adaptive waiting, and then
    /// sleeps until an event comes, at most for the given time. While a poller polls, no device
    /// makes an event for it.
    ///
    /// # Errors
    /// Like [`Poller::poll`], and if waiting for the descriptor fails.
    pub fn wait(
        &mut self,
        ready: &mut Vec<LinkId>,
        spin: Duration,
        at_most: Duration,
    ) -> Result<(), RdmaError> {
        let (before, start) = (ready.len(), Instant::now());
        loop {
            self.poll(ready)?;
            if ready.len() > before {
                return Ok(());
            }
            if start.elapsed() >= spin {
                break;
            }
            // Let other threads of this core run first.
            std::thread::yield_now();
        }
        if self.prepare_to_wait()? {
            let descriptor = PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN);
            let timeout = Timespec::try_from(at_most).unwrap_or_default();
            match poll(&mut [descriptor], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(call("waiting for a poller's descriptor")(errno)),
            }
        }
        self.poll(ready)
    }
}

impl Door {
    /// Its resources and costs.
    pub fn uses(&self) -> Uses {
        let (counts, pools) = self.0.pools.counts();
        Uses {
            links: self.0.called().len(),
            pools,
            counts,
        }
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.0.rdma
    }

    /// The membership for a new link.
    pub(super) fn member(&self) -> Membership {
        static NEXT: AtomicU64 = AtomicU64::new(FIRST_LINK);
        self.member_as(LinkId(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    fn member_as(&self, id: LinkId) -> Membership {
        let called = Arc::new(AtomicBool::new(false));
        self.0.called().insert(id.0, Arc::clone(&called));
        Membership {
            door: self.clone(),
            id,
            called,
            pool: None,
        }
    }

    fn is(&self, other: &Door) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Readable when there is something to do for any of its links, after [`Poller::prepare_to_wait`].
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.0.watch.as_fd()
    }
}

impl Shared {
    fn called(&self) -> MutexGuard<'_, HashMap<u64, Arc<AtomicBool>>> {
        // A panic left the link either added or not.
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare_to_wait(&self) -> Result<bool, RdmaError> {
        // In this order: completions found while arming need no bell.
        Ok(self.pools.arm()? && self.named.sleep())
    }

    /// Finds the links whose connections have events; each link reads its own.
    fn take_calls(&self, ready: &mut Vec<LinkId>) -> Result<(), RdmaError> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(CHANNEL),
        }; limits::POLL_BATCH];
        let now = Timespec::default();
        let count = match epoll::wait(&self.watch, &mut events[..], Some(&now)) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(call("looking for connections' events")(errno)),
        };
        let called = self.called();
        for event in &events[..count] {
            let id = event.data.u64();
            if id == BELL {
                self.named.hush();
            }
            let Some(flag) = called.get(&id) else {
                continue;
            };
            flag.store(true, Ordering::Relaxed);
            if !ready.contains(&LinkId(id)) {
                ready.push(LinkId(id));
            }
        }
        Ok(())
    }
}

/// A link's membership in a poller.
pub(super) struct Membership {
    door: Door,
    id: LinkId,
    called: Arc<AtomicBool>,
    /// Present once it is known.
    pool: Option<Arc<Pool>>,
}

impl Membership {
    pub(super) fn id(&self) -> LinkId {
        self.id
    }

    pub(super) fn pools(&self) -> &Pools {
        &self.door.0.pools
    }

    pub(super) fn named(&self) -> &Arc<Named> {
        &self.door.0.named
    }

    pub(super) fn was_called(&self) -> bool {
        self.called.swap(false, Ordering::Relaxed)
    }

    pub(super) fn watch_connection(&self, connection: BorrowedFd<'_>) -> Result<(), RdmaError> {
        watch_for(&self.door.0.watch, connection, self.id.0)
    }

    /// Watches a pool's channel, which all links of the pool share.
    pub(super) fn watch_pool(&mut self, pool: &Arc<Pool>) -> Result<(), RdmaError> {
        let Shared { pools, watch, .. } = &*self.door.0;
        pools.join(pool, |channel| watch_for(watch, channel, CHANNEL))?;
        self.pool = Some(Arc::clone(pool));
        Ok(())
    }

    /// The same link's membership in another poller; `None` if that is its poller already.
    pub(super) fn at(&self, door: &Door) -> Option<Membership> {
        (!self.door.is(door)).then(|| door.member_as(self.id))
    }

    /// Stops watching the connection, because another poller watches it.
    pub(super) fn leave_connection(&self, connection: BorrowedFd<'_>) {
        let _watched_by_nobody = epoll::delete(&self.door.0.watch, connection);
    }

    pub(super) fn prepare_to_wait(&self) -> Result<bool, RdmaError> {
        self.door.0.prepare_to_wait()
    }

    /// Ends the poller's sleep: the link was waited for on its own, and is turned again.
    pub(super) fn wake(&self) {
        self.door.0.named.wake();
        self.door.0.named.hush();
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.0.watch.as_fd()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let shared = &*self.door.0;
        shared.called().remove(&self.id.0);
        if let Some(pool) = &self.pool {
            shared.pools.leave(pool, |channel| {
                let _watched_no_more = epoll::delete(&shared.watch, channel);
            });
        }
    }
}
