//! The submitting half of a session: operations that any thread may do, under one short lock.
//!
//! ```text
//!   futures, handlers, drops (any thread)                      driver (one thread)
//!   ── Shared ─────────────────────────────                    ── Driver ──────────
//!   call table · send heap · submission ring      ◀── locks ── completion ring, tasks, waiting
//! ```
//!
//! Invariants:
//! - Every entry that must reach the daemon does, in order: if the ring is full the entry goes to
//!   the backlog, and nothing overtakes it. New calls and replies don't go to the backlog; they
//!   wait for room. So the backlog holds at most one entry per submitted call (CANCEL), running
//!   handler (STATUS) and delivered block (RELEASE).
//! - The driver looks at the doorbell once per turn, regardless of the number of entries. Other
//!   threads look as they unlock. The doorbell is rung only if the daemon sleeps.
//! - Wakers of other threads are called after unlocking.

use std::collections::{HashMap, VecDeque};
use std::task::{Poll, Waker};

use tollgate_shm_abi::Misbehaved;
use tollgate_shm_abi::descriptor::{BlockRef, Entry, Epilogue, Image, Offsets, Part, Submission};
use tollgate_shm_abi::heap::{Block, HeapWriter};
use tollgate_shm_abi::limits::{MAX_OFFSETS, MAX_STATUS_TEXT_BYTES};
use tollgate_shm_abi::ring::{Producer, PushError};
use tollgate_shm_abi::stream::Credit;

use crate::Status;
use crate::buffer::SharedBytes;
use crate::codec::Measured;
use crate::limits::RELEASE_BYTES;
use crate::tables::binds::Binds;
use crate::tables::calls::CallTable;
use crate::tables::methods::Methods;
use crate::tables::retry::Budget;
use crate::tables::space::{SpaceQueue, Ticket};
use crate::tables::streams::{Side, StreamKey, StreamTable};

pub(crate) struct Shared {
    submissions: Producer,
    /// Entries that surely fit into the ring, minus reservations.
    room: u32,
    /// Room reserved for blocks that are being written without the lock.
    reserved: u32,
    pub(crate) heap: HeapWriter,
    /// Bytes of the heap in buffers. This program gives them back, not the daemon.
    buffer_bytes: u64,
    /// Values that blocks refer to while the daemon still reads the blocks, by the block's offset.
    pub(crate) shared: HashMap<u64, Vec<SharedBytes>>,
    pub(crate) calls: CallTable,
    pub(crate) streams: StreamTable,
    pub(crate) space: SpaceQueue,
    pub(crate) binds: Binds,
    pub(crate) methods: Methods,
    pub(crate) retry_budget: Budget,
    /// Delivered blocks that this program holds.
    delivered: u64,
    delivered_bytes: u64,
    /// Delivered blocks to give back, not yet a full RELEASE.
    releases: Vec<u64>,
    release_bytes: u64,
    backlog: VecDeque<Entry>,
    /// An entry was pushed since the last look at the doorbell.
    pushed: bool,
    /// Woken by the thread that unlocks.
    pub(crate) wake_next: Option<Waker>,
    /// Blocks came back since the last turn's end.
    pub(crate) reclaimed: bool,
    /// The first task in the queue found no room in the ring.
    pub(crate) ring_was_full: bool,
    /// A sleeping driver has to compute again how long to sleep.
    pub(crate) nudge: bool,
    ended: Option<Status>,
    /// Tasks that wait for the end.
    pub(crate) close_waiters: Vec<Waker>,
}

/// When the driver has to look again, even if nothing happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextLook {
    /// The next deadline of a call or bind, CLOCK_MONOTONIC; `u64::MAX` if there is none.
    pub(crate) deadline_ns: u64,
    /// A task waits for room in the ring.
    pub(crate) for_room: bool,
    /// Calls or binds are outstanding, or the backlog isn't empty.
    pub(crate) somebody_waits: bool,
}

/// Memory of a session's heaps that a program holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Received messages that weren't dropped: replies, requests and messages that wait in streams.
    /// A view keeps its message.
    pub messages: u64,
    /// Their bytes in the receive heap.
    pub message_bytes: u64,
    /// Bytes of [`buffer`](crate::Session::buffer)s in the send heap, including buffers that
    /// outgoing messages refer to.
    pub buffer_bytes: u64,
}

/// The descriptor to put on the ring for a block, once it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PendingDescriptor {
    Call {
        method: u32,
        call: u64,
        part: Part,
        deadline_ns: u64,
    },
    /// A further request of this application's call, not the last.
    Request {
        call: u64,
    },
    Response {
        call: u64,
        bare: bool,
        waited_ns: u64,
    },
    Reply {
        call: u64,
        waited_ns: u64,
    },
}

/// The content of a block: a measured message, and its metadata.
pub(crate) struct OutgoingMessage<'m, E> {
    pub(crate) message: &'m E,
    pub(crate) measured: &'m Measured,
    pub(crate) metadata: &'m [u8],
}

impl<E> OutgoingMessage<'_, E> {
    /// Bytes that its block takes.
    pub(crate) fn room(&self) -> usize {
        self.measured.allocation_with(self.metadata.len())
    }
}

impl PendingDescriptor {
    /// The stream with the window that it counts against.
    pub(crate) fn stream(self) -> Option<StreamKey> {
        match self {
            PendingDescriptor::Request { call } => Some((Side::Own, call)),
            PendingDescriptor::Response { call, .. } => Some((Side::Incoming, call)),
            PendingDescriptor::Call { .. } | PendingDescriptor::Reply { .. } => None,
        }
    }

    pub(crate) fn around(self, block: BlockRef) -> Submission {
        match self {
            PendingDescriptor::Call {
                method,
                call,
                part,
                deadline_ns,
            } => Submission::Call {
                method,
                call,
                part,
                block,
                deadline_ns,
            },
            PendingDescriptor::Request { call } => Submission::Request {
                call,
                part: Part {
                    more: true,
                    bare: false,
                },
                block,
            },
            PendingDescriptor::Response {
                call,
                bare,
                waited_ns,
            } => Submission::Response {
                call,
                bare,
                block,
                waited_ns,
            },
            PendingDescriptor::Reply { call, waited_ns } => Submission::Reply {
                call,
                block,
                waited_ns,
            },
        }
    }
}

impl Shared {
    pub(crate) fn new(submissions: Producer, heap: HeapWriter, max_outstanding: usize) -> Shared {
        Shared {
            submissions,
            room: 0,
            reserved: 0,
            heap,
            buffer_bytes: 0,
            shared: HashMap::new(),
            calls: CallTable::new(max_outstanding),
            streams: StreamTable::default(),
            space: SpaceQueue::default(),
            binds: Binds::default(),
            methods: Methods::default(),
            retry_budget: Budget::default(),
            delivered: 0,
            delivered_bytes: 0,
            releases: Vec::with_capacity(MAX_OFFSETS),
            release_bytes: 0,
            backlog: VecDeque::new(),
            pushed: false,
            wake_next: None,
            reclaimed: false,
            ring_was_full: false,
            nudge: false,
            ended: None,
            close_waiters: Vec::new(),
        }
    }

    /// Why the session ended, if it has.
    pub(crate) fn ended(&self) -> Option<&Status> {
        self.ended.as_ref()
    }

    /// Ends the session: every call, bind and wait fails with `status`. Returns the wakers to wake
    /// and the values to drop after unlocking.
    pub(crate) fn end(&mut self, status: Status) -> (Vec<Waker>, impl Sized + use<>) {
        let mut wakers = self.calls.fail_all(&status);
        self.streams.end_all(&mut wakers);
        wakers.extend(self.space.drain());
        wakers.extend(self.binds.fail_all(&status));
        wakers.append(&mut self.close_waiters);
        self.backlog.clear();
        self.releases.clear();
        self.ended.get_or_insert(status);
        (wakers, std::mem::take(&mut self.shared))
    }

    /// Replaces the reason with a better one. Returns whether it differs.
    pub(crate) fn ended_because(&mut self, status: Status) -> bool {
        let is_news = self.ended.as_ref().map(|ended| &ended.message) != Some(&status.message);
        self.ended = Some(status);
        is_news
    }

    /// Memory for a buffer, if there is room.
    pub(crate) fn alloc_buffer(&mut self, len: usize) -> Option<Block> {
        let before = self.heap.in_use();
        let block = self.heap.alloc(len)?;
        self.buffer_bytes += self.heap.in_use() - before;
        Some(block)
    }

    pub(crate) fn discard_buffer(&mut self, block: Block) {
        let before = self.heap.in_use();
        self.heap.discard(block);
        self.buffer_bytes -= before - self.heap.in_use();
        self.wake_next = self.space.head();
    }

    /// Handles a block that the daemon gives back. Returns the values that it referred to, to be
    /// dropped after unlocking.
    pub(crate) fn reclaim(&mut self, offset: u64) -> Result<Vec<SharedBytes>, Misbehaved> {
        self.heap.free(offset)?;
        self.reclaimed = true;
        // Most programs have no shared values.
        Ok(match self.shared.is_empty() {
            true => Vec::new(),
            false => self.shared.remove(&offset).unwrap_or_default(),
        })
    }

    /// Memory for a block of `len` bytes, with room in the ring for its descriptor, or a place in
    /// the queue for it.
    pub(crate) fn poll_space(
        &mut self,
        len: usize,
        ticket: &mut Option<Ticket>,
        waker: &Waker,
    ) -> Poll<Result<Block, Status>> {
        if let Some(status) = &self.ended {
            return Poll::Ready(Err(status.clone()));
        }
        let may_try = self.space.may_try(*ticket);
        if may_try && !self.has_room() {
            self.ring_was_full = true;
        } else if may_try {
            if let Some(block) = self.heap.alloc(len) {
                self.wake_next = self.space.leave(ticket);
                return Poll::Ready(Ok(block));
            }
            if self.heap.in_use() == self.buffer_bytes {
                let (heap, buffers) = (self.heap.len_bytes(), self.buffer_bytes);
                let beside = match buffers {
                    0 => String::new(),
                    _ => format!(" in which buffers take {buffers}"),
                };
                let text = format!(
                    "a message that takes {len} bytes doesn't fit into the send heap of {heap} bytes{beside}"
                );
                self.wake_next = self.space.leave(ticket);
                return Poll::Ready(Err(Status::resource_exhausted(text)));
            }
        }
        self.nudge |= self.space.is_empty();
        self.space.wait(ticket, waker);
        Poll::Pending
    }

    /// Gives up a place in the queue.
    pub(crate) fn leave_queue(&mut self, ticket: &mut Option<Ticket>) {
        if let Some(next) = self.space.leave(ticket) {
            self.wake_next = Some(next);
        }
    }

    /// Whether one more entry fits into the ring, behind the backlog.
    pub(crate) fn has_room(&mut self) -> bool {
        self.flush_backlog();
        self.backlog.is_empty() && self.refresh_room()
    }

    /// When the driver has to look again.
    pub(crate) fn next_look(&self) -> NextLook {
        NextLook {
            deadline_ns: self
                .calls
                .next_deadline_ns()
                .min(self.binds.next_deadline_ns()),
            for_room: self.ring_was_full || !self.backlog.is_empty(),
            somebody_waits: self.calls.len() > 0
                || !self.binds.is_empty()
                || !self.backlog.is_empty(),
        }
    }

    /// Ends overdue calls and binds; adds the wakers to wake.
    pub(crate) fn expire(&mut self, now_ns: u64, wakers: &mut Vec<Waker>) {
        let mut cancelled = Vec::new();
        self.calls.expire(now_ns, |call, waker| {
            cancelled.extend(call);
            wakers.extend(waker);
        });
        for call in cancelled {
            self.streams.end((Side::Own, call), wakers);
            self.cancel(call);
        }
        wakers.extend(self.binds.expire(now_ns));
    }

    /// Counts a delivered block of this length.
    #[inline]
    pub(crate) fn delivered(&mut self, len: usize) {
        self.delivered += 1;
        self.delivered_bytes += len as u64;
    }

    /// The memory of both heaps that the program holds.
    pub(crate) fn held(&self) -> Held {
        Held {
            messages: self.delivered,
            message_bytes: self.delivered_bytes,
            buffer_bytes: self.buffer_bytes,
        }
    }

    /// Gives a delivered block back, with the next batch.
    pub(crate) fn release(&mut self, offset: u64, len: usize) {
        self.delivered -= 1;
        self.delivered_bytes -= len as u64;
        if self.ended.is_some() {
            return;
        }
        self.releases.push(offset);
        self.release_bytes += len as u64;
        if self.releases.len() == MAX_OFFSETS || self.release_bytes >= RELEASE_BYTES {
            self.flush_releases();
        }
    }

    pub(crate) fn release_image(&mut self, image: &Image) {
        self.release(image.offset, image.held_bytes());
    }

    /// Tells the daemon of the blocks released so far.
    pub(crate) fn flush_releases(&mut self) {
        if let Some(offsets) = Offsets::take_from(&self.releases) {
            self.releases.clear();
            self.release_bytes = 0;
            self.push_surely(Submission::Release(offsets));
        }
    }

    /// Tells the daemon that the application gave a call up.
    pub(crate) fn cancel(&mut self, call: u64) {
        self.push_surely(Submission::Cancel { call });
    }

    /// Ends an incoming call with a status. The text and trailers are left out if the heap has no
    /// room for them.
    pub(crate) fn answer_status(
        &mut self,
        call: u64,
        status: &Status,
        (waited_ns, retry_after_ms): (u64, u32),
    ) {
        let text = cut_to(&status.message, MAX_STATUS_TEXT_BYTES as usize).as_bytes();
        let trailers = status.metadata.as_bytes();
        let mut epilogue = Epilogue {
            offset: 0,
            text: text.len() as u32,
            metadata: trailers.len() as u32,
        };
        let block = match epilogue.held_bytes() {
            0 => None,
            _ if self.ended.is_some() => None,
            held => self.heap.alloc(held),
        };
        let epilogue = block.map(|mut block| {
            block[..text.len()].copy_from_slice(text);
            let held = epilogue.held_bytes();
            block[held - trailers.len()..held].copy_from_slice(trailers);
            epilogue.offset = self.heap.commit(block);
            epilogue
        });
        self.push_surely(Submission::Status {
            call,
            code: status.code,
            epilogue,
            waited_ns,
            retry_after_ms,
        });
    }

    /// Tells the daemon that responses to a call were read.
    pub(crate) fn credit_responses(&mut self, call: u64, credit: Credit) {
        self.push_surely(Submission::ResponseCredit { call, credit });
    }

    /// Tells the daemon that requests of an incoming call were read.
    pub(crate) fn credit_requests(&mut self, call: u64, credit: Credit) {
        self.push_surely(Submission::RequestCredit { call, credit });
    }

    /// Tells the daemon that no further requests of a call follow.
    pub(crate) fn end_requests(&mut self, call: u64) {
        self.push_surely(Submission::Request {
            call,
            part: Part {
                more: false,
                bare: true,
            },
            block: BlockRef::default(),
        });
    }

    /// Submits an entry with neither a message nor metadata.
    pub(crate) fn submit_bare(&mut self, pending: PendingDescriptor) {
        if let PendingDescriptor::Call { call, .. } = pending {
            self.calls.mark_submitted(call);
        }
        if let Some(key) = pending.stream() {
            self.streams.sent(key, 0);
        }
        self.push_surely(pending.around(BlockRef::default()));
    }

    /// Removes a stream from the table; unread blocks go back.
    pub(crate) fn forget_stream(&mut self, key: StreamKey) {
        if self.streams.is_empty() {
            return;
        }
        for item in self.streams.remove(key) {
            if item.image.exists(item.bare) {
                self.release_image(&item.image);
            }
        }
    }

    /// Puts an entry into the ring, or into the backlog.
    fn push_surely(&mut self, submission: Submission) {
        if self.ended.is_some() {
            return;
        }
        let entry = submission.encode();
        if self.has_room() {
            self.push_into_room(&entry);
        } else {
            self.backlog.push_back(entry);
        }
    }

    pub(crate) fn flush_backlog(&mut self) {
        while !self.backlog.is_empty() && self.refresh_room() {
            if let Some(entry) = self.backlog.pop_front() {
                self.push_into_room(&entry);
            }
        }
    }

    /// Whether there is unreserved room. Looks at the daemon's progress if necessary.
    fn refresh_room(&mut self) -> bool {
        if self.room == 0 {
            // An invalid index gives no room. The driver ends the session when it meets it.
            self.room = self
                .submissions
                .free()
                .unwrap_or(0)
                .saturating_sub(self.reserved);
        }
        self.room > 0
    }

    pub(crate) fn push_into_room(&mut self, entry: &Entry) {
        self.room -= 1;
        match self.submissions.push(entry) {
            Ok(()) => self.pushed = true,
            // There was room, so only the daemon's index can be wrong; see `refresh_room`.
            Err(PushError::Full | PushError::Misbehaved(_)) => self.backlog.push_back(*entry),
        }
    }

    /// Whether the daemon's index into the submission ring still makes sense.
    pub(crate) fn check_ring(&mut self) -> Result<(), Misbehaved> {
        self.submissions.free().map(|_| ())
    }

    /// Whether an entry waits for the ring, or is in it.
    pub(crate) fn has_unsent(&mut self) -> bool {
        // An invalid index: the daemon takes nothing more.
        let in_ring = match self.submissions.free() {
            Ok(free) => free < self.submissions.capacity(),
            Err(_) => false,
        };
        self.ended.is_none() && (in_ring || self.reserved > 0 || !self.backlog.is_empty())
    }

    pub(crate) fn reserve(&mut self) {
        self.room -= 1;
        self.reserved += 1;
    }

    pub(crate) fn redeem(&mut self) {
        self.room += 1;
        self.reserved -= 1;
    }

    /// Whether the doorbell has to be rung for the pushed entries.
    pub(crate) fn take_doorbell(&mut self) -> bool {
        std::mem::take(&mut self.pushed) && self.submissions.needs_wake()
    }
}

/// The longest prefix of at most `max` bytes that ends between characters.
fn cut_to(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
