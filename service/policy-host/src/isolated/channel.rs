//! A runtime's end of a policy process: posts orders, checks and takes answers, and never blocks.
//!
//! ```text
//!   batch, tick, hand_over ─▶ in flight, in order ─▶ take: the answer to the oldest
//!                                  │ the process ended, overdue, invalid answer
//!                                  └──────────────▶ take: lost, every one of them
//! ```
//!
//! Invariant: every posted order yields exactly one [`Answer`], with its own ticket, in the order
//! of posting. After the first lost order, all others are lost, too.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use tollgate_shm_abi::heap::Block;
use tollgate_shm_abi::ring::PushError;
use tollgate_shm_abi::session::DaemonEnd;

use crate::batch::{Claim, ENTRY_BYTES};
use crate::isolated::wire::{
    AnswerEntry, AnswerError, InstanceId, METRIC_BYTES, OrderEntry, Result8, Task, put_view,
    read_log, read_metrics, views_at,
};
use crate::text::{cut, text};
use crate::{
    EvaluateError, Fault, Hook, LogLine, MetricChange, Misuse, Policy, PolicyTime, Verdict, limits,
};

/// Identifies one order of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A policy's place in a policy process. Dropping it gives the place up, after all earlier orders
/// are done.
#[derive(Debug)]
pub struct InstanceHandle {
    pub(super) id: InstanceId,
    /// The number of instances in the process.
    pub(super) taken: Arc<AtomicUsize>,
    pub(super) leave: mpsc::Sender<InstanceId>,
}

impl InstanceHandle {
    /// Its number in the process.
    pub fn id(&self) -> InstanceId {
        self.id
    }
}

impl Drop for InstanceHandle {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        // Without a channel there is no receiver.
        let _no_channel = self.leave.send(self.id);
    }
}

/// The result of an order.
#[derive(Debug)]
pub struct Answer {
    /// The order's ticket.
    pub ticket: Ticket,
    /// The order's instance.
    pub instance: InstanceId,
    /// See [`Outcome`].
    pub outcome: Outcome,
    /// The time for which the process worked on this order alone, by the daemon's clock: from the
    /// previous answer, or the order's posting, to this answer.
    pub cost_ns: u64,
    /// The instance's log lines since its last answer, and the number of dropped ones.
    pub log: (Vec<LogLine>, u64),
    /// The changes of the instance's metrics since its last answer.
    pub metrics: Vec<MetricChange>,
}

/// The outcome of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The verdicts, in the order of the pushes.
    Evaluated(Vec<Verdict>),
    /// The tick or the hand-over is done.
    Done,
    /// The policy failed, and its instance is dead.
    Failed(String),
    /// Of a hand-over: the successor failed, and its instance is dead.
    SuccessorFailed(String),
    /// The process is gone.
    Lost(String),
}

/// Reasons for not posting an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The maximum number of orders is in flight.
    #[error(
        "the tenant's policy process is {} orders behind",
        limits::ISOLATED_ORDERS
    )]
    Busy,
    /// The process is gone.
    #[error("{0}")]
    Ended(String),
    /// The daemon broke this API's rules.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

/// An order in flight.
struct Pending {
    ticket: Ticket,
    instance: InstanceId,
    /// Offset of its views.
    views: Option<u64>,
    kind: Kind,
    posted_ns: u64,
    budget_ns: u64,
}

enum Kind {
    Evaluate {
        policy: Policy,
        hook: Hook,
        methods: [u8; limits::ISOLATED_CALLS],
        count: usize,
    },
    Tick,
    HandOver,
}

/// A runtime's end of the connection to a policy process. Dropping it doesn't end the process.
pub struct Channel {
    end: DaemonEnd,
    /// Readable once the process has ended.
    process: OwnedFd,
    watched_by: Option<Arc<OwnedFd>>,
    pending: VecDeque<Pending>,
    next_ticket: u64,
    /// The time since which the process has worked on the oldest order.
    head_since_ns: u64,
    /// Instances that were given up.
    leaving: mpsc::Receiver<InstanceId>,
    /// The one for which the ring had no room.
    unsent: Option<InstanceId>,
    unrung: bool,
    /// Answers are copied here.
    copied: Vec<u8>,
    /// The process has ended by itself; its earlier answers are still valid.
    died: bool,
    ended: Option<String>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("pending", &self.pending.len())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// An order's parameters besides its content.
#[derive(Clone, Copy, Debug)]
pub struct Order<'s> {
    /// The order's instance.
    pub instance: &'s InstanceHandle,
    /// Now, by the monotonic clock.
    pub now_ns: u64,
    /// The clocks that the policy reads.
    pub time: PolicyTime,
    /// The process's time limit once it is the order's turn; [`limits::ISOLATED_MARGIN`] is added.
    pub budget_ns: u64,
    /// Fuel for evaluating one call, from now on; 0 keeps the instance's value.
    pub fuel_per_call: u64,
}

impl Channel {
    pub(super) fn new(
        end: DaemonEnd,
        process: OwnedFd,
        leaving: mpsc::Receiver<InstanceId>,
    ) -> Channel {
        Channel {
            end,
            process,
            watched_by: None,
            pending: VecDeque::with_capacity(limits::ISOLATED_ORDERS),
            next_ticket: 0,
            head_since_ns: 0,
            leaving,
            unsent: None,
            unrung: false,
            copied: Vec::new(),
            died: false,
            ended: None,
        }
    }

    /// Makes `epoll` report answers, and the process's end, as an event with `token`; it replaces
    /// an earlier registration.
    ///
    /// # Errors
    /// The error of epoll_ctl: out of memory, or too many watches.
    pub fn watch(&mut self, epoll: &Arc<OwnedFd>, token: u64) -> rustix::io::Result<()> {
        self.end.doorbell.watch(epoll, token)?;
        self.unwatch();
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&**epoll, &self.process, EventData::new_u64(token), flags)?;
        self.watched_by = Some(Arc::clone(epoll));
        Ok(())
    }

    /// Begins an order to evaluate up to `count` calls at an instance of `policy`, with views of up
    /// to `bytes` together, each rounded up to a multiple of 8. Nothing is sent before
    /// [`OrderBuilder::post`].
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn begin<'c>(
        &'c mut self,
        order: Order<'c>,
        policy: &'c Policy,
        hook: Hook,
        count: usize,
        bytes: usize,
    ) -> Result<OrderBuilder<'c>, PostError> {
        self.check_room()?;
        if !policy.manifest().hooks().contains(&hook) {
            return Err(Misuse::NoHook(hook).into());
        }
        let max = limits::ISOLATED_CALLS;
        if count > max {
            return Err(Misuse::BatchTooLong { count, max }.into());
        }
        let next = views_at(count);
        let (end, max) = (
            next + bytes.next_multiple_of(8),
            limits::ISOLATED_VIEWS_BYTES,
        );
        if end > max {
            return Err(Misuse::ViewTooLong { len: end, max }.into());
        }
        let block = self.end.receive_heap.alloc(end).ok_or(PostError::Busy)?;
        Ok(OrderBuilder {
            channel: self,
            block: Some(block),
            order,
            policy,
            hook,
            room: count,
            count: 0,
            methods: [0; limits::ISOLATED_CALLS],
            next,
        })
    }

    /// Orders a tick.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn tick(&mut self, order: Order<'_>) -> Result<Ticket, PostError> {
        self.check_room()?;
        self.post(order, Task::Tick, Kind::Tick, None)
    }

    /// Orders `successor` to continue from the state of the order's instance, which has the format
    /// `version`. The successor uses that state for all later orders.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn hand_over(
        &mut self,
        order: Order<'_>,
        successor: &InstanceHandle,
        version: u32,
    ) -> Result<Ticket, PostError> {
        self.check_room()?;
        let successor = successor.id;
        let task = Task::HandOver { successor, version };
        self.post(order, task, Kind::HandOver, None)
    }

    /// Wakes the process for posted orders and instances given up, if it sleeps. Call it after
    /// posting, once for several orders.
    #[inline]
    pub fn flush(&mut self) {
        self.say_leaving();
        if std::mem::take(&mut self.unrung) && self.end.completions.needs_wake() {
            self.end.wake.wake();
        }
    }

    /// The next answer, if there is one.
    pub fn take(&mut self, now_ns: u64) -> Option<Answer> {
        if self.ended.is_none() {
            match self.take_alleged(now_ns) {
                Ok(Some(answer)) => return Some(answer),
                Ok(None) if self.died => self.end("it died".to_owned()),
                Ok(None) => {}
                Err(nonsense) => self.end(format!("it was killed: {nonsense}")),
            }
        }
        let why = self.ended.clone()?;
        let lost = self.pending.pop_front()?;
        Some(self.answered(lost, Outcome::Lost(why), now_ns))
    }

    /// Whether an answer waits, or the process has ended: one load, for spinning.
    #[inline]
    pub fn has_news(&mut self) -> bool {
        self.died || self.ended.is_some() || !matches!(self.end.submissions.is_empty(), Ok(true))
    }

    /// Checks whether the process has ended by itself.
    pub fn look_after(&mut self) {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        self.died |= poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
    }

    /// Kills the process if the oldest order is overdue, and returns whether it was.
    pub fn expire(&mut self, now_ns: u64) -> bool {
        let overdue = self.ended.is_none() && self.next_due_ns().is_some_and(|due| due <= now_ns);
        if overdue {
            let waited = now_ns.saturating_sub(self.head_since_ns) / 1_000_000;
            self.end(format!(
                "it was killed: it has not answered for {waited} ms"
            ));
        }
        overdue
    }

    /// The time at which [`expire`](Self::expire) has something to do, if no answer comes.
    pub fn next_due_ns(&self) -> Option<u64> {
        let oldest = self.pending.front()?;
        let margin = limits::ISOLATED_MARGIN.as_nanos() as u64;
        Some(self.head_since_ns + oldest.budget_ns + margin)
    }

    /// Announces that the runtime is going to sleep; returns `false` if there is an answer. See
    /// [`tollgate_shm_abi::ring::Consumer`].
    pub fn announce_sleep(&mut self) -> bool {
        !self.died && self.ended.is_none() && self.end.submissions.announce_sleep()
    }

    /// The runtime is awake.
    pub fn cancel_sleep(&mut self) {
        self.end.submissions.cancel_sleep();
    }

    /// The reason for refusing new orders, once the process has ended.
    pub fn has_ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// The number of orders in flight.
    pub fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Gives the process up.
    #[cold]
    pub fn end(&mut self, why: String) {
        // Fails only if it is gone.
        let _gone = pidfd_send_signal(&self.process, Signal::KILL);
        self.ended
            .get_or_insert(format!("the tenant's policy process ended: {why}"));
    }
}

impl Channel {
    fn check_room(&self) -> Result<(), PostError> {
        match &self.ended {
            Some(why) => Err(PostError::Ended(why.clone())),
            None if self.pending.len() >= limits::ISOLATED_ORDERS => Err(PostError::Busy),
            None => Ok(()),
        }
    }

    fn post(
        &mut self,
        order: Order<'_>,
        task: Task,
        kind: Kind,
        views: Option<u64>,
    ) -> Result<Ticket, PostError> {
        let ticket = Ticket(self.next_ticket);
        let entry = OrderEntry {
            instance: order.instance.id,
            ticket: ticket.0,
            time: order.time,
            taken: self
                .pending
                .front()
                .map_or(ticket.0, |oldest| oldest.ticket.0),
            fuel_per_call: order.fuel_per_call,
            task,
        };
        match self.end.completions.push(&entry.to_entry()) {
            Ok(()) => {}
            // Only instances that were given up can fill the ring.
            Err(PushError::Full) => return Err(PostError::Busy),
            Err(PushError::Misbehaved(how)) => {
                self.end(format!("it was killed: {how}"));
                self.check_room()?;
            }
        }
        self.unrung = true;
        self.next_ticket += 1;
        if self.pending.is_empty() {
            self.head_since_ns = order.now_ns;
        }
        self.pending.push_back(Pending {
            ticket,
            instance: order.instance.id,
            views,
            kind,
            posted_ns: order.now_ns,
            budget_ns: order.budget_ns,
        });
        Ok(ticket)
    }

    fn say_leaving(&mut self) {
        while let Some(instance) = self.unsent.take().or_else(|| self.leaving.try_recv().ok()) {
            let entry = OrderEntry {
                instance,
                ticket: 0,
                time: PolicyTime::default(),
                taken: 0,
                fuel_per_call: 0,
                task: Task::Leave,
            };
            // A full ring takes it later; the next post notices a broken ring.
            if self.end.completions.push(&entry.to_entry()).is_err() {
                self.unsent = Some(instance);
                return;
            }
            self.unrung = true;
        }
    }

    fn take_alleged(&mut self, now_ns: u64) -> Result<Option<Answer>, AnswerError> {
        let Some(entry) = self.end.submissions.pop()? else {
            return Ok(None);
        };
        let alleged = AnswerEntry::of_entry(&entry)?;
        let ticket = alleged.ticket;
        let Some(oldest) = self.pending.front() else {
            return Err(AnswerError::Unasked { ticket });
        };
        if oldest.ticket.0 != ticket {
            let oldest = oldest.ticket.0;
            return Err(AnswerError::OutOfTurn { ticket, oldest });
        }
        self.copied.resize(alleged.len as usize, 0);
        let copied = self.end.send_heap.copy_in(alleged.offset, &mut self.copied);
        copied?;
        let (output, log) = self.copied.split_at(alleged.log_at as usize);
        let outcome = outcome(&oldest.kind, alleged.result, output)?;
        let (log, metrics) = log.split_at(log.len() - alleged.metrics as usize * METRIC_BYTES);
        let metrics = read_metrics(metrics)?;
        let log = (read_log(log, alleged.log_lines), alleged.log_dropped);
        let pending = self.pending.pop_front().expect("the oldest was looked at");
        let mut answer = self.answered(pending, outcome, now_ns);
        answer.log = log;
        answer.metrics = metrics;
        Ok(Some(answer))
    }

    fn answered(&mut self, pending: Pending, outcome: Outcome, now_ns: u64) -> Answer {
        if let Some(offset) = pending.views {
            let freed = self.end.receive_heap.free(offset);
            debug_assert!(freed.is_ok(), "what was committed can be freed once");
        }
        let cost_ns = now_ns.saturating_sub(self.head_since_ns.max(pending.posted_ns));
        self.head_since_ns = now_ns;
        Answer {
            ticket: pending.ticket,
            instance: pending.instance,
            outcome,
            cost_ns,
            log: Default::default(),
            metrics: Vec::new(),
        }
    }
}

/// Parses the copied bytes of an answer.
fn outcome(kind: &Kind, result: Result8, output: &[u8]) -> Result<Outcome, AnswerError> {
    let reason = || cut(&text(output, limits::CONFIG_ERROR_BYTES));
    match (result, kind) {
        (Result8::Failed, _) => Ok(Outcome::Failed(reason())),
        (Result8::SuccessorFailed, Kind::HandOver) => Ok(Outcome::SuccessorFailed(reason())),
        (Result8::SuccessorFailed, _) => Err(AnswerError::NoSuccessor),
        (Result8::Done, Kind::Tick | Kind::HandOver) => Ok(Outcome::Done),
        (
            Result8::Done,
            Kind::Evaluate {
                policy,
                hook,
                methods,
                count,
            },
        ) => {
            let entry = |index: usize| output.get(index * ENTRY_BYTES..)?.get(..ENTRY_BYTES);
            let verdicts = (0..*count).map(|index| {
                let claim = Claim {
                    memory: output,
                    entry: entry(index).ok_or(AnswerError::NoVerdicts)?,
                    manifest: policy.manifest(),
                    hook: *hook,
                    method: methods[index].into(),
                    index,
                };
                Ok(claim.read(|_| Ok::<_, Fault>(()))?)
            });
            let verdicts: Result<_, AnswerError> = verdicts.collect();
            verdicts.map(Outcome::Evaluated)
        }
    }
}

impl Channel {
    fn unwatch(&mut self) {
        if let Some(epoll) = self.watched_by.take() {
            // The control plane holds the process, too; closing only this descriptor would leave
            // the watch.
            let _gone = epoll::delete(&*epoll, self.process.as_fd());
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.unwatch();
    }
}

/// Calls of an order that isn't posted yet. Dropping it discards them.
#[derive(Debug)]
pub struct OrderBuilder<'c> {
    channel: &'c mut Channel,
    /// The block for the views, until the order is posted.
    block: Option<Block>,
    order: Order<'c>,
    policy: &'c Policy,
    hook: Hook,
    /// Maximum number of calls.
    room: usize,
    count: usize,
    methods: [u8; limits::ISOLATED_CALLS],
    /// Where the next view begins.
    next: usize,
}

impl OrderBuilder<'_> {
    /// Calls pushed so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a call; arguments as for [`crate::Batch::push`]. The view is written once, into memory
    /// that the process can only read.
    ///
    /// # Errors
    /// The writer failed, or the call doesn't fit. The order is unchanged and usable.
    pub fn push<E>(
        &mut self,
        method: u32,
        view_len_max: usize,
        write_view: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), EvaluateError<E>> {
        self.check(method, view_len_max)?;
        let (at, max) = (self.next, view_len_max);
        let Some(block) = &mut self.block else {
            return Err(Misuse::ViewTooLong { len: max, max: 0 }.into());
        };
        let len = write_view(&mut block[at..at + max]).map_err(EvaluateError::View)?;
        if len > max {
            return Err(Misuse::ViewTooLong { len, max }.into());
        }
        put_view(block, self.count, method, at, len);
        self.next = (at + len).next_multiple_of(8);
        self.methods[self.count] = method as u8;
        self.count += 1;
        Ok(())
    }

    fn check(&self, method: u32, view_len_max: usize) -> Result<(), Misuse> {
        let room = self
            .block
            .as_ref()
            .map_or(0, |block| block.len() - self.next);
        let max = limits::VIEW_BYTES.min(room);
        let methods = self.policy.manifest().methods().len();
        if self.count == self.room {
            Err(Misuse::BatchTooLong {
                count: self.count + 1,
                max: self.room,
            })
        } else if view_len_max > max {
            Err(Misuse::ViewTooLong {
                len: view_len_max,
                max,
            })
        } else if method as usize >= methods {
            Err(Misuse::Method {
                index: method,
                count: methods,
            })
        } else {
            Ok(())
        }
    }

    /// Sends the order.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post(mut self) -> Result<Ticket, PostError> {
        let kind = Kind::Evaluate {
            policy: self.policy.clone(),
            hook: self.hook,
            methods: self.methods,
            count: self.count,
        };
        let block = self.block.take().ok_or(PostError::Busy)?;
        let heap = &mut self.channel.end.receive_heap;
        let offset = heap.commit(block);
        let task = Task::Evaluate {
            hook: self.hook,
            count: self.count as u16,
            offset,
            len: self.next as u32,
        };
        let posted = self.channel.post(self.order, task, kind, Some(offset));
        if posted.is_err() {
            let freed = self.channel.end.receive_heap.free(offset);
            debug_assert!(freed.is_ok(), "what was committed can be freed once");
        }
        posted
    }
}

impl Drop for OrderBuilder<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.channel.end.receive_heap.discard(block);
        }
    }
}
