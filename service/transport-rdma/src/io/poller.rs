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

/// How a poller is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerOptions {
    /// Links of a pool, 1 to [`limits::POOL_LINKS`]; by default [`limits::DEFAULT_POOL_LINKS`]. Memory for so many is pinned when a device's first
    /// link comes, and again whenever all pools are full, see [`limits::pinned_bytes`].
    pub links: u16,
    /// Pools that it may have of each device, 1 to [`limits::POLLER_POOLS`]; by default [`limits::DEFAULT_POLLER_POOLS`].
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

/// What many links share: completions, receives, and the descriptor that says that there are some.
pub struct Poller {
    door: Door,
    /// Since connections' events were looked for.
    polls: u32,
    waited: bool,
}

/// A poller, as other threads know it, and its links.
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

/// What a poller has, and has cost beyond what its links have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// Links that are its.
    pub links: usize,
    /// Pools that it has made and has.
    pub pools: usize,
    /// Of no link alone: receives that were posted for all, entering the kernel, and bytes that were copied because nobody read them.
    pub counts: Counts,
}

impl Poller {
    /// One without links.
    ///
    /// # Errors
    /// There are no links in a pool, or no pools, or too many; or there is no descriptor for it.
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

    /// For whoever makes links of it.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Adds the links to which something has come, each once. Never waits.
    ///
    /// # Errors
    /// A device failed; so will its links, each when it is turned. Links of others are named nevertheless.
    pub fn poll(&mut self, ready: &mut Vec<LinkId>) -> Result<(), RdmaError> {
        let Shared { pools, named, .. } = &*self.door.0;
        if self.waited {
            // From here on what this thread finds itself needn't wake it.
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

    /// Makes the descriptor say what comes from now on. `false` if something has come already: don't wait.
    ///
    /// # Errors
    /// As of [`Poller::poll`].
    pub fn prepare_to_wait(&mut self) -> Result<bool, RdmaError> {
        self.waited = true;
        self.door.0.prepare_to_wait()
    }

    /// Adds the links to which something has come: polls for `spin`, as a runtime does whose waiting is adaptive, and then sleeps until something comes, at
    /// most so long. Nobody's device makes an event for a poller that polls.
    ///
    /// # Errors
    /// As of [`Poller::poll`], and of waiting for the descriptor.
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
            // Whoever else has work on this core goes first.
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
    /// What there is of it.
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

    /// What makes a new link its.
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

/// Readable when there is something to do for any of its links, once [`Poller::prepare_to_wait`] was called.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.0.watch.as_fd()
    }
}

impl Shared {
    fn called(&self) -> MutexGuard<'_, HashMap<u64, Arc<AtomicBool>>> {
        // Whoever panicked has added a link or none.
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare_to_wait(&self) -> Result<bool, RdmaError> {
        // In this order: what is found while arming needs no bell.
        Ok(self.pools.arm()? && self.named.sleep())
    }

    /// Finds the links whose connections have events: each of them will read its own.
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

/// That a link is a poller's.
pub(super) struct Membership {
    door: Door,
    id: LinkId,
    called: Arc<AtomicBool>,
    /// Once it is known.
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

    /// All links of a pool have one channel.
    pub(super) fn watch_pool(&mut self, pool: &Arc<Pool>) -> Result<(), RdmaError> {
        let Shared { pools, watch, .. } = &*self.door.0;
        pools.join(pool, |channel| watch_for(watch, channel, CHANNEL))?;
        self.pool = Some(Arc::clone(pool));
        Ok(())
    }

    /// The same link's, of another poller; `None` if it is of that one.
    pub(super) fn at(&self, door: &Door) -> Option<Membership> {
        (!self.door.is(door)).then(|| door.member_as(self.id))
    }

    /// Its connection is watched by another.
    pub(super) fn leave_connection(&self, connection: BorrowedFd<'_>) {
        let _watched_by_nobody = epoll::delete(&self.door.0.watch, connection);
    }

    pub(super) fn prepare_to_wait(&self) -> Result<bool, RdmaError> {
        self.door.0.prepare_to_wait()
    }

    /// The link was waited for by itself, and is turned again.
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
