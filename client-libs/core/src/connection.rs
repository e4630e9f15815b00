//! One connection to the daemon: the state that futures, handlers and the driver share.
//!
//! Absent: state that only the driving thread touches. [`Driven`](crate::drive::Driven) has it.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};

use rustix::fd::OwnedFd;
use tollgate_shm_abi::Misbehaved;
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::descriptor::BlockRef;
use tollgate_shm_abi::heap::{Block, Delivered, DeliveredHeap};
use tollgate_shm_abi::messages::{ReceiveHeap, SessionOpened};
use tollgate_shm_abi::ring::Consumer;
use tollgate_shm_abi::session::AppEnd;
use tollgate_shm_abi::wake::{DoorbellRinger, WakeListener};

use crate::Status;
use crate::buffer::Owner;
use crate::codec::{Encode, HeapSink};
use crate::drivers::{Drivers, Event, Phase};
use crate::limits::{MAX_OUTSTANDING, WRITE_LOCKED};
use crate::nudge::Nudge;
use crate::panics;
use crate::ready::Ready;
use crate::submit::{NextLook, OutgoingMessage, PendingDescriptor, Shared};

pub(crate) struct Inner {
    /// Unique in this process, not 0.
    pub(crate) id: u64,
    pub(crate) opened: SessionOpened,
    pub(crate) retries: u32,
    pub(crate) shared: Mutex<Shared>,
    /// Which thread drives, and whether the connection goes on.
    pub(crate) drivers: Drivers,
    pub(crate) control: ControlSocket,
    pub(crate) doorbell: DoorbellRinger,
    pub(crate) wake: WakeListener,
    /// Written when the daemon adds a heap.
    pub(crate) receive_heap: RwLock<DeliveredHeap>,
    pub(crate) nudge: Arc<Nudge>,
    /// Tasks for the driving thread.
    pub(crate) ready: Arc<Ready>,
    /// Starts the background thread.
    starter: Waker,
    /// Number of incoming calls that aren't answered yet.
    pub(crate) serving: AtomicUsize,
    /// How often the driving thread has found the ring empty.
    pub(crate) emptied: AtomicUsize,
    /// Tasks that wait until `serving` is 0.
    idle: Mutex<Vec<Waker>>,
}

impl Inner {
    /// A session that the daemon has opened, and the ring with the daemon's entries. The starter is
    /// woken when a future waits for the daemon and no thread was started to drive.
    pub(crate) fn new(
        control: ControlSocket,
        opened: SessionOpened,
        end: AppEnd,
        retries: u32,
        nudge: Arc<Nudge>,
        starter: Waker,
    ) -> (Inner, Consumer) {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let max_outstanding = (opened.max_outstanding as usize).min(MAX_OUTSTANDING);
        let inner = Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            opened,
            retries,
            shared: Mutex::new(Shared::new(end.submissions, end.send_heap, max_outstanding)),
            drivers: Drivers::new(),
            control,
            doorbell: end.doorbell,
            wake: end.wake,
            receive_heap: RwLock::new(end.receive_heap),
            ready: Ready::new(Arc::clone(&nudge)),
            nudge,
            starter,
            serving: AtomicUsize::new(0),
            emptied: AtomicUsize::new(0),
            idle: Mutex::default(),
        };
        (inner, end.completions)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Session({} of tenant {})",
            self.opened.session, self.opened.tenant
        )
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(self)
    }

    /// Takes over a block that a completion just delivered.
    pub(crate) fn claim(&self, offset: u64, len: usize) -> Result<Delivered, Misbehaved> {
        let heap = self.receive_heap.read();
        heap.unwrap_or_else(PoisonError::into_inner)
            .claim(offset, len)
    }

    /// Adds another heap, behind the existing ones. From now on blocks arrive there. Returns its
    /// end.
    pub(crate) fn add_heap(&self, heap: ReceiveHeap, fds: Vec<OwnedFd>) -> Result<u64, String> {
        let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err("the daemon added a heap without its memory".to_owned());
        };
        let mut heaps = self.heaps();
        let added = heaps.follow(fd, heap.bytes);
        added.map_err(|error| format!("can't use the session's memory: {error}"))?;
        Ok(heaps.end())
    }

    pub(crate) fn heaps(&self) -> RwLockWriteGuard<'_, DeliveredHeap> {
        let heaps = self.receive_heap.write();
        heaps.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session, if it hasn't ended. All waiting calls and tasks fail with this status. The
    /// driving thread drops the handlers.
    pub(crate) fn end(&self, status: Status) {
        let (wakers, _dropped_unlocked) = self.lock().end(status);
        self.drivers.end();
        wakers.into_iter().for_each(panics::wake);
        self.nudge.wake();
        // The daemon needn't wait for the last block to be dropped. It fails only if the daemon is
        // gone already.
        let _gone = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        self.wake_idle_waiters();
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.drivers.state().is_over()
    }
}

impl Inner {
    /// Whether this thread drives. Then its submissions are announced at the end of its turn.
    #[inline]
    pub(crate) fn is_driven_here(&self) -> bool {
        self.drivers.is_driven_here()
    }

    /// Makes sure that a thread drives, because something waits for the daemon: this thread, or
    /// else the background thread, which is started if necessary.
    pub(crate) fn ensure_driven(&self) {
        if self.drivers.must_start_background() {
            self.starter.wake_by_ref();
        }
    }
}

impl Inner {
    /// Records that a task waits until no call is being served.
    pub(crate) fn begin_to_drain(&self) {
        // It is never refused.
        let _draining = self.drivers.apply(Event::Drain);
    }

    /// Waits until all current entries have been taken out of the ring. The control socket and the
    /// ring are separate channels. So the ring may still hold calls when the daemon's message that
    /// no more calls follow is read.
    pub(crate) fn poll_emptied(&self) -> impl FnMut(&mut Context<'_>) -> Poll<()> {
        let before = self.emptied.load(Ordering::SeqCst);
        move |cx| {
            // One look at the ring may have begun before this. The next one hasn't.
            let since = self.emptied.load(Ordering::SeqCst).wrapping_sub(before);
            if since >= 2 || self.is_over() {
                return Poll::Ready(());
            }
            self.nudge.wake();
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    /// Whether all incoming calls have been answered. Otherwise keeps the waker until they are.
    pub(crate) fn poll_idle(&self, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker();
        let mut waiters = self.idle_waiters();
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        drop(waiters);
        match self.serving.load(Ordering::SeqCst) == 0 || self.is_over() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Records that an incoming call was answered.
    pub(crate) fn answered(&self) {
        let was_last = self.serving.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.drivers.state().phase == Phase::Draining {
            self.wake_idle_waiters();
        }
    }

    fn wake_idle_waiters(&self) {
        let waiters = std::mem::take(&mut *self.idle_waiters());
        waiters.into_iter().for_each(panics::wake);
    }

    fn idle_waiters(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner for Inner {
    fn take_back(&self, block: Block) {
        self.lock().discard_buffer(block);
    }
}

/// The lock on [`Shared`]. Unlocking it wakes the waiting tasks and rings the daemon, as the
/// changes require.
pub(crate) struct Locked<'i> {
    inner: &'i Inner,
    guard: Option<MutexGuard<'i, Shared>>,
}

impl<'i> Locked<'i> {
    fn new(inner: &'i Inner) -> Locked<'i> {
        // A panic under the lock came from a user's encoder, between two consistent states.
        let guard = inner.shared.lock().unwrap_or_else(PoisonError::into_inner);
        Locked {
            inner,
            guard: Some(guard),
        }
    }

    /// Ends a driver's turn: sends the batched entries, lets the first task that waits for room in,
    /// and rings once for all of it.
    pub(crate) fn end_turn(mut self) -> NextLook {
        self.flush_releases();
        self.flush_backlog();
        if std::mem::take(&mut self.reclaimed) || (self.ring_was_full && self.has_room()) {
            self.ring_was_full = false;
            self.wake_next = self.space.head();
        }
        let look = self.next_look();
        let inner = self.inner;
        let ring = self.take_doorbell();
        drop(self);
        if ring {
            inner.doorbell.ring();
        }
        look
    }

    /// Writes a block into memory from [`Shared::poll_space`] and submits it.
    pub(crate) fn submit(
        mut self,
        OutgoingMessage {
            message,
            measured,
            metadata,
        }: OutgoingMessage<'_, impl Encode>,
        mut block: Block,
        pending: PendingDescriptor,
    ) -> Result<(), Status> {
        let offset = block.offset();
        let session = self.inner.id;
        let write = |block: &mut Block| {
            let mut sink = HeapSink::new(block, offset, session, measured, metadata);
            let wrote = catch_unwind(AssertUnwindSafe(|| message.write(&mut sink)));
            wrote.map(|()| sink.into_shared())
        };
        let shared;
        if measured.allocation > WRITE_LOCKED {
            let inner = self.inner;
            self.reserve();
            drop(self);
            let wrote = write(&mut block);
            self = inner.lock();
            self.redeem();
            let wrote = match wrote {
                Ok(wrote) => wrote,
                Err(panic) => self.unwritten(block, panic),
            };
            if let Some(status) = self.ended().cloned() {
                // This may drop the last clone of a shared value, which takes the lock.
                drop(self);
                return Err(status);
            }
            shared = wrote;
        } else {
            shared = match write(&mut block) {
                Ok(wrote) => wrote,
                Err(panic) => self.unwritten(block, panic),
            };
        }
        if !shared.is_empty() {
            self.shared.insert(offset, shared);
        }
        self.heap.commit(block);
        let block = BlockRef {
            offset,
            len: measured.inline as u32,
            extents: measured.extents,
            metadata: metadata.len() as u32,
        };
        if let PendingDescriptor::Call { call, .. } = pending {
            self.calls.mark_submitted(call);
        }
        self.push_into_room(&pending.around(block).encode());
        Ok(())
    }
}

impl Locked<'_> {
    /// Handles a panic of a user's encoder: frees its block, and resumes the panic.
    #[cold]
    fn unwritten(mut self, block: Block, panic: Box<dyn Any + Send>) -> ! {
        self.heap.discard(block);
        self.wake_next = self.space.head();
        drop(self);
        resume_unwind(panic)
    }
}

impl Deref for Locked<'_> {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        self.guard
            .as_ref()
            .expect("the guard is taken in drop only")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Shared {
        self.guard
            .as_mut()
            .expect("the guard is taken in drop only")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else {
            return;
        };
        let wake = guard.wake_next.take();
        let driving = self.inner.is_driven_here();
        let ring = !driving && guard.take_doorbell();
        let nudge = std::mem::take(&mut guard.nudge) && !driving;
        drop(guard);
        if ring {
            self.inner.doorbell.ring();
        }
        if nudge {
            self.inner.nudge.wake();
        }
        if let Some(waker) = wake {
            panics::wake(waker);
        }
    }
}
