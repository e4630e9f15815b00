//! A poller: one place to ask, and one descriptor to wait for, for many links; what they share is in `verbs/pool.rs`.
//!
//! ```text
//!   loop {
//!       poller.wait(&mut ready, spin, rest)?   one completion queue, whatever the number of links
//!       for id in ready.drain(..) { turn it }  as any link: read, events, flush, poll_sent
//!   }
//! ```
//!
//! Whoever waits for more than links uses [`poll`](Poller::poll), [`prepare_to_wait`](Poller::prepare_to_wait) and the descriptor instead.
//!
//! A link that isn't ready needn't be turned, but for its own sake: to send what was just given to it, to read what was left, and for its clock. Its own
//! [`prepare_to_wait`](tollgate_transport::LinkIo::prepare_to_wait) works as any link's does, by the poller's descriptor; it is needed by one-sided links only,
//! which have to say that they sleep. What is written into their rings is no completion, so a poller doesn't see it: while they are polled, turn them all.
//!
//! One thread has a poller and its links. They may move to another together; two threads that share a poller wait for each other.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::{CHANNEL, call, new_epoll, watch_for};
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::limits;
use crate::verbs::{Pools, Rdma};

/// What a poller calls one of its links. No two that it has ever had are called the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub(crate) u64);

/// How a poller is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerOptions {
    /// Links that it may have on each device, 1 to [`limits::POLLER_LINKS`]; by default [`limits::DEFAULT_POLLER_LINKS`]. Memory for so many is
    /// pinned when a device's first link comes, see [`limits::pinned_bytes`].
    pub links: u16,
}

impl Default for PollerOptions {
    fn default() -> PollerOptions {
        PollerOptions {
            links: limits::DEFAULT_POLLER_LINKS,
        }
    }
}

/// What many links share: completions, receives, and the descriptor that says that there are some.
pub struct Poller {
    shared: Arc<Shared>,
    rdma: Rdma,
    idle_polls: u32,
    waited: bool,
}

/// What a poller's links hold of it.
pub(super) struct Shared {
    watch: OwnedFd,
    pools: Pools,
    next: AtomicU64,
    /// By link, whether its connection has an event.
    called: Mutex<HashMap<u64, Arc<AtomicBool>>>,
}

impl Poller {
    /// One without links.
    ///
    /// # Errors
    /// The number of links is none, or there is no descriptor for it.
    pub fn new(rdma: &Rdma, options: &PollerOptions) -> Result<Poller, RdmaError> {
        let links = options.links;
        if !(1..=limits::POLLER_LINKS).contains(&links) {
            return Err(RdmaError::PollerLinks { links });
        }
        Ok(Poller {
            shared: Arc::new(Shared {
                watch: new_epoll()?,
                pools: Pools::new(links),
                next: AtomicU64::new(CHANNEL + 1),
                called: Mutex::new(HashMap::new()),
            }),
            rdma: rdma.clone(),
            idle_polls: 0,
            waited: false,
        })
    }

    /// Adds the links to which something has come, each once. Never waits.
    ///
    /// # Errors
    /// A device failed; so will its links, each when it is turned.
    pub fn poll(&mut self, ready: &mut Vec<LinkId>) -> Result<(), RdmaError> {
        let before = ready.len();
        for pool in self.shared.pools.made().iter() {
            pool.poll()?;
            pool.take_ready(ready);
        }
        self.idle_polls = match ready.len() > before {
            true => 0,
            false => self.idle_polls + 1,
        };
        if std::mem::take(&mut self.waited) || self.idle_polls >= limits::EVENTS_EVERY {
            self.idle_polls = 0;
            self.shared.take_calls(ready)?;
        }
        Ok(())
    }

    /// Makes the descriptor say what comes from now on. `false` if something has come already: don't wait.
    ///
    /// # Errors
    /// As of [`Poller::poll`].
    pub fn prepare_to_wait(&mut self) -> Result<bool, RdmaError> {
        self.waited = true;
        self.shared.arm()
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

    /// What no link has paid alone: receives that were posted for all, entering the kernel, and bytes that were copied because nobody
    /// read them.
    pub fn counts(&self) -> Counts {
        let pools = self.shared.pools.made();
        let counts = pools.iter().map(|pool| pool.counts());
        counts.fold(Counts::default(), |sum, counts| sum + counts)
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    pub(super) fn member(&self) -> Membership {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let called = Arc::new(AtomicBool::new(false));
        self.shared.called().insert(id, Arc::clone(&called));
        Membership {
            shared: Arc::clone(&self.shared),
            id: LinkId(id),
            called,
        }
    }
}

/// Readable when there is something to do for any of its links, once [`Poller::prepare_to_wait`] was called.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.watch.as_fd()
    }
}

impl Shared {
    fn called(&self) -> MutexGuard<'_, HashMap<u64, Arc<AtomicBool>>> {
        // Whoever panicked has added a link or none.
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(&self) -> Result<bool, RdmaError> {
        let mut nothing = true;
        for pool in self.pools.made().iter() {
            nothing &= pool.arm()?;
        }
        Ok(nothing)
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
    shared: Arc<Shared>,
    id: LinkId,
    called: Arc<AtomicBool>,
}

impl Membership {
    pub(super) fn id(&self) -> LinkId {
        self.id
    }

    pub(super) fn pools(&self) -> &Pools {
        &self.shared.pools
    }

    pub(super) fn was_called(&self) -> bool {
        self.called.swap(false, Ordering::Relaxed)
    }

    pub(super) fn watch_connection(&self, connection: BorrowedFd<'_>) -> Result<(), RdmaError> {
        watch_for(&self.shared.watch, connection, self.id.0)
    }

    /// All links of a device have one channel.
    pub(super) fn watch_queues(&self, channel: BorrowedFd<'_>) -> Result<(), RdmaError> {
        match watch_for(&self.shared.watch, channel, CHANNEL) {
            Err(RdmaError::Call { errno, .. }) if errno == Errno::EXIST => Ok(()),
            outcome => outcome,
        }
    }

    pub(super) fn arm(&self) -> Result<bool, RdmaError> {
        self.shared.arm()
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.watch.as_fd()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.called().remove(&self.id.0);
    }
}
