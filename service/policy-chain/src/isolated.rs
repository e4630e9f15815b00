//! Policy processes of a runtime: which orders are in flight to which process, and for which
//! version.
//!
//! ```text
//!   slot ── posts ─▶ order, with a ticket ──▶ channel ──▶ process of a tenant
//!     ▲                 │ calls are parked under it
//!     └── settles ◀── answered ◀── ticket ◀── answer, or: lost
//! ```
//!
//! Invariants: the runtime never waits for a process. Each ticket is answered exactly once, in the
//! order of posting, even if the process has ended. When a process has ended, everything in flight
//! is answered before its versions are informed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollgate_engine::Status;
use tollgate_engine::chain::Which;
use tollgate_policy_host::isolated::{
    Channel, InstanceId, Order, OrderBuilder, Outcome, PostError, Ticket,
};
use tollgate_policy_host::limits::ISOLATED_CALLS;
use tollgate_policy_host::{EvaluateError, Hook, LogLine, MetricChange, PolicyTime};
use tollgate_shm_abi::status::Code;

use crate::evaluation::{BatchSize, Decision, Evaluation, Unable};
use crate::ids::{AttachmentId, ProcessId, VersionNumber, Why};
use crate::limits::ORDERS_UNDER_WAY;
use crate::message::Pool;
use crate::plan::{ChangeError, Isolated, PolicyInput, Step};

/// How often a busy runtime checks the processes that owe answers. 1 ms.
const LOOK_NS: u64 = 1_000_000;

/// An instance in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstanceAt {
    pub(crate) process: ProcessId,
    pub(crate) instance: InstanceId,
}

/// The version that is evaluated, and its role.
#[derive(Clone, Copy)]
pub(crate) struct Evaluator<'a> {
    /// The attachment.
    pub(crate) slot: AttachmentId,
    pub(crate) version: VersionNumber,
    /// Its place when the evaluation was ordered.
    pub(crate) which: Which,
    /// It is a shadow: its decision has no effect on the call.
    pub(crate) is_shadow: bool,
    pub(crate) step: &'a Step,
}

/// Receives the result of a rehearsal: whether the state could be handed over. Dropped without an
/// answer if the process ends first.
pub type Rehearsed = Box<dyn FnOnce(Result<(), ChangeError>) + Send>;

/// What an order was for.
pub(crate) enum Purpose {
    Evaluate {
        slot: AttachmentId,
        version: VersionNumber,
        which: Which,
        is_shadow: bool,
        /// The time that the policy sees.
        time: PolicyTime,
        step: Box<Step>,
    },
    Tick {
        slot: AttachmentId,
        version: VersionNumber,
    },
    HandOver {
        slot: AttachmentId,
        from: VersionNumber,
        to: VersionNumber,
        successor: InstanceId,
    },
    Rehearse {
        slot: AttachmentId,
        from: VersionNumber,
        to: VersionNumber,
        /// Kept alive until the order has been answered.
        _successor: Box<Isolated>,
        done: Rehearsed,
    },
}

/// An order that has been answered.
pub(crate) struct Answered {
    pub(crate) ticket: u64,
    pub(crate) from: InstanceAt,
    pub(crate) purpose: Purpose,
    pub(crate) outcome: Outcome,
    /// Log lines, metrics and cost.
    pub(crate) output: InstanceOutput,
}

/// What a version reports after running in a process.
pub(crate) struct InstanceOutput {
    pub(crate) cost_ns: u64,
    pub(crate) log: (Vec<LogLine>, u64),
    pub(crate) metrics: Vec<MetricChange>,
}

/// The connection to one process.
pub(crate) struct Line {
    /// The tenant that the process belongs to.
    tenant: Arc<str>,
    channel: Channel,
    under_way: VecDeque<(u64, Purpose)>,
    /// Rotates over the orders in flight.
    waiting: usize,
}

/// All processes of this runtime's tenants.
#[derive(Default)]
pub struct Processes {
    lines: BTreeMap<ProcessId, Line>,
    next_ticket: u64,
    /// When a busy runtime checks the processes next.
    look_ns: u64,
}

/// The two clocks when an order is posted.
#[derive(Clone, Copy)]
pub(crate) struct OrderTime {
    /// The monotonic clock.
    pub(crate) now_ns: u64,
    /// The policies' clocks.
    pub(crate) time: PolicyTime,
}

/// An isolated version whose state is handed over, or that continues from it.
#[derive(Clone, Copy)]
pub(crate) struct IsolatedVersion<'a> {
    pub(crate) version: VersionNumber,
    pub(crate) isolated: &'a Isolated,
}

/// The version that a rehearsal hands the state to.
pub struct Successor {
    /// The version's number.
    pub version: VersionNumber,
    /// Its instance.
    pub isolated: Box<Isolated>,
}

/// A process's report that concerns an instance.
pub(crate) struct InstanceReport {
    pub(crate) from: InstanceAt,
    /// How the instance failed, if it did.
    pub(crate) fault: Option<String>,
}

/// How a runtime watches the processes that it adopts.
pub struct ProcessWatch<'a, F> {
    /// The runtime's epoll.
    pub epoll: &'a Arc<OwnedFd>,
    /// The token of a process's events.
    pub token: F,
}

/// Parameters for evaluating an isolated version.
pub(crate) struct Posting<'a> {
    pub(crate) input: &'a PolicyInput,
    pub(crate) evaluator: Evaluator<'a>,
    pub(crate) hook: Hook,
    pub(crate) time: OrderTime,
}

impl Processes {
    /// Opens a connection to a process of `tenant`.
    pub fn open(&mut self, id: ProcessId, tenant: Arc<str>, channel: Channel) {
        let line = Line {
            tenant,
            channel,
            under_way: VecDeque::new(),
            waiting: 0,
        };
        self.lines.insert(id, line);
    }

    /// Takes the connections to the processes of a tenant that moves to another runtime.
    pub(crate) fn part(&mut self, tenant: &str) -> Vec<(ProcessId, Line)> {
        let its = self
            .lines
            .iter()
            .filter(|(_, line)| *line.tenant == *tenant);
        let its: Vec<ProcessId> = its.map(|(id, _)| *id).collect();
        let lines = its.into_iter();
        lines
            .filter_map(|id| Some((id, self.lines.remove(&id)?)))
            .collect()
    }

    /// Adopts connections from another runtime. Returns the new ticket of each order in flight.
    pub(crate) fn absorb(
        &mut self,
        lines: Vec<(ProcessId, Line)>,
        watch: &ProcessWatch<'_, impl Fn(ProcessId) -> u64>,
    ) -> HashMap<u64, u64> {
        let mut tickets = HashMap::new();
        for (id, mut line) in lines {
            for (ticket, _) in &mut line.under_way {
                tickets.insert(*ticket, self.next_ticket);
                *ticket = self.next_ticket;
                self.next_ticket += 1;
            }
            if let Err(error) = line.channel.watch(watch.epoll, (watch.token)(id)) {
                // No event would wake this runtime for its answers.
                line.channel.end(format!("it can't be watched: {error}"));
            }
            self.lines.insert(id, line);
        }
        tickets
    }

    /// The next answer of any process.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<Answered> {
        for (&process, line) in &mut self.lines {
            if !line.channel.has_news() {
                continue;
            }
            let Some(answer) = line.channel.take(now_ns) else {
                continue;
            };
            let Some((ticket, purpose)) = line.under_way.pop_front() else {
                continue;
            };
            let instance = answer.instance;
            return Some(Answered {
                ticket,
                from: InstanceAt { process, instance },
                purpose,
                outcome: answer.outcome,
                output: InstanceOutput {
                    cost_ns: answer.cost_ns,
                    log: answer.log,
                    metrics: answer.metrics,
                },
            });
        }
        None
    }

    /// A process that has ended, and why, once everything in flight has been answered.
    pub(crate) fn next_ended(&mut self) -> Option<(ProcessId, String)> {
        let ended = self.lines.iter().find_map(|(id, line)| {
            let why = line.channel.has_ended()?;
            line.under_way.is_empty().then(|| (*id, why.to_owned()))
        })?;
        self.lines.remove(&ended.0);
        Some(ended)
    }

    /// The kernel has signaled an event for a process.
    pub fn look_after(&mut self, id: ProcessId) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.channel.look_after();
        }
    }

    /// Gives up processes that have missed their deadline. Returns whether there were any.
    pub fn expire(&mut self, now_ns: u64) -> bool {
        if self.lines.is_empty() {
            return false;
        }
        let looks = now_ns >= self.look_ns;
        if looks {
            self.look_ns = now_ns + LOOK_NS;
        }
        let lines = self.lines.values_mut();
        lines.fold(false, |any, line| {
            // A runtime that never sleeps receives no events from the kernel.
            if looks && !line.under_way.is_empty() {
                line.channel.look_after();
            }
            // A process that has answered isn't late, however late this runtime looks.
            (!line.channel.has_news() && line.channel.expire(now_ns)) | any
        })
    }

    /// Whether a process is still running.
    pub(crate) fn has(&self, process: ProcessId) -> bool {
        self.lines.contains_key(&process)
    }

    /// Wakes the processes that orders were posted to.
    #[inline]
    pub fn flush(&mut self) {
        for line in self.lines.values_mut() {
            line.channel.flush();
        }
    }

    /// Announces to all processes that the runtime is going to sleep. `false`: a process has an
    /// answer.
    pub fn announce_sleep(&mut self) -> bool {
        let lines = self.lines.values_mut();
        lines.fold(true, |all, line| line.channel.announce_sleep() & all)
    }

    /// Withdraws the announcement: the runtime doesn't sleep.
    pub fn cancel_sleep(&mut self) {
        for line in self.lines.values_mut() {
            line.channel.cancel_sleep();
        }
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let lines = self.lines.values();
        lines.filter_map(|line| line.channel.next_due_ns()).min()
    }

    /// Orders a version's tick.
    pub(crate) fn tick(&mut self, its: IsolatedVersion<'_>, slot: AttachmentId, time: OrderTime) {
        let IsolatedVersion { version, isolated } = its;
        let purpose = Purpose::Tick { slot, version };
        let order = order(isolated, time, isolated.call_ns());
        // A version that can't tick now ticks the next time.
        let _not_now = self.post(isolated.process, purpose, |channel| channel.tick(order));
    }

    /// Orders that `successor` continues from the state of a version.
    pub(crate) fn hand_over(
        &mut self,
        from: IsolatedVersion<'_>,
        to: IsolatedVersion<'_>,
        slot: AttachmentId,
        time: OrderTime,
    ) -> Result<(), PostError> {
        let (isolated, successor) = (from.isolated, to.isolated);
        let format = isolated.policy.manifest().state_version().unwrap_or(0);
        let purpose = Purpose::HandOver {
            slot,
            from: from.version,
            to: to.version,
            successor: successor.instance.id(),
        };
        let budget_ns = isolated.handover_ns + successor.handover_ns;
        let order = order(isolated, time, budget_ns);
        self.post(isolated.process, purpose, |channel| {
            channel.hand_over(order, &successor.instance, format)
        })
    }

    /// Orders a rehearsal: whether `successor` could continue from the state of a version.
    pub(crate) fn rehearse(
        &mut self,
        from: IsolatedVersion<'_>,
        to: Successor,
        slot: AttachmentId,
        time: OrderTime,
        done: Rehearsed,
    ) {
        let (isolated, successor) = (from.isolated, to.isolated);
        let format = isolated.policy.manifest().state_version().unwrap_or(0);
        let budget_ns = isolated.handover_ns + successor.handover_ns;
        let order = order(isolated, time, budget_ns);
        let Some(line) = self.lines.get_mut(&isolated.process) else {
            return;
        };
        if let Err(error) = line.channel.hand_over(order, &successor.instance, format) {
            return done(Err(ChangeError::NotPosted(error)));
        }
        let purpose = Purpose::Rehearse {
            slot,
            from: from.version,
            to: to.version,
            _successor: successor,
            done,
        };
        line.under_way.push_back((self.next_ticket, purpose));
        self.next_ticket += 1;
    }

    fn post(
        &mut self,
        process: ProcessId,
        purpose: Purpose,
        post: impl FnOnce(&mut Channel) -> Result<Ticket, PostError>,
    ) -> Result<(), PostError> {
        let line = self.lines.get_mut(&process);
        let line = line.ok_or_else(|| PostError::Ended("the process is gone".to_owned()))?;
        post(&mut line.channel)?;
        line.under_way.push_back((self.next_ticket, purpose));
        self.next_ticket += 1;
        Ok(())
    }
}

fn order(isolated: &Isolated, time: OrderTime, budget_ns: u64) -> Order<'_> {
    Order {
        instance: &isolated.instance,
        now_ns: time.now_ns,
        time: time.time,
        budget_ns,
        fuel_per_call: isolated.cpu.fuel_per_call,
    }
}

impl Isolated {
    /// Time limit for one call.
    fn call_ns(&self) -> u64 {
        self.cpu.isolated_ns.saturating_add(self.setup_ns)
    }

    pub(crate) fn place(&self) -> InstanceAt {
        InstanceAt {
            process: self.process,
            instance: self.instance.id(),
        }
    }

    /// Orders the evaluation of all wanted calls, in batches. Calls whose order is in flight stop;
    /// the others get the reason. Returns whether any have stopped.
    pub(crate) fn post_all(
        &self,
        posting: &Posting<'_>,
        processes: &mut Processes,
        pool: &mut Pool,
        evaluations: &mut [Evaluation],
    ) -> bool {
        let mut has_stopped = false;
        let mut rest = evaluations;
        while !rest.is_empty() {
            let size = BatchSize::of_first(rest, posting.input, ISOLATED_CALLS);
            let (batch, later) = rest.split_at_mut(size.len);
            rest = later;
            if size.wanted > 0 {
                has_stopped |= self.post_batch(posting, processes, pool, batch, size);
            }
        }
        has_stopped
    }

    fn post_batch(
        &self,
        posting: &Posting<'_>,
        processes: &mut Processes,
        pool: &mut Pool,
        evaluations: &mut [Evaluation],
        size: BatchSize,
    ) -> bool {
        let ticket = processes.next_ticket;
        let Some(line) = processes.lines.get_mut(&self.process) else {
            note_unposted(evaluations, &PostError::Ended(String::new()), None);
            return false;
        };
        // A shadow delays no call.
        let frees = (!posting.evaluator.is_shadow)
            .then(|| line.frees())
            .flatten();
        if line.under_way.len() >= ORDERS_UNDER_WAY {
            note_unposted(evaluations, &PostError::Busy, frees);
            return frees.is_some();
        }
        let budget_ns = self.call_ns().saturating_mul(size.wanted as u64);
        let order = order(self, posting.time, budget_ns);
        let begun = line
            .channel
            .begin(order, &self.policy, posting.hook, size.wanted, size.bytes);
        let mut builder = match begun {
            Ok(builder) => builder,
            Err(error) => {
                note_unposted(evaluations, &error, frees);
                return frees.is_some();
            }
        };
        for evaluation in evaluations
            .iter_mut()
            .filter(|evaluation| evaluation.is_wanted())
        {
            let index = builder.len() as u32;
            let mut shown = show(&mut builder, posting, evaluation);
            if shown.is_err() {
                evaluation.make_private(pool);
                shown = show(&mut builder, posting, evaluation);
            }
            evaluation.decision = match shown {
                Ok(()) => {
                    evaluation.stop(Why::Process { ticket, index });
                    Decision::Pending
                }
                Err(_unwritten) => Decision::Unshown,
            };
        }
        if builder.is_empty() {
            return false;
        }
        if let Err(error) = builder.post() {
            for evaluation in evaluations.iter_mut() {
                if matches!(evaluation.decision, Decision::Pending) {
                    evaluation.stop = None;
                    evaluation.decision = Decision::Wanted;
                }
            }
            note_unposted(evaluations, &error, frees);
            return frees.is_some();
        }
        let Evaluator {
            slot,
            version,
            which,
            is_shadow,
            step,
        } = posting.evaluator;
        let purpose = Purpose::Evaluate {
            slot,
            version,
            which,
            is_shadow,
            time: posting.time.time,
            step: Box::new(step.clone()),
        };
        line.under_way.push_back((ticket, purpose));
        processes.next_ticket += 1;
        true
    }
}

impl Line {
    /// The order whose answer makes room for another. Waiting calls are spread over all orders in
    /// flight.
    fn frees(&mut self) -> Option<u64> {
        self.waiting = self.waiting.wrapping_add(1);
        let at = self.waiting.checked_rem(self.under_way.len())?;
        self.under_way.get(at).map(|(ticket, _)| *ticket)
    }
}

/// No order was posted. If the process is behind, the calls wait until `frees` has been answered.
#[cold]
fn note_unposted(evaluations: &mut [Evaluation], error: &PostError, frees: Option<u64>) {
    for evaluation in evaluations
        .iter_mut()
        .filter(|evaluation| evaluation.is_wanted())
    {
        evaluation.decision = match (error, frees) {
            (PostError::Busy, Some(ticket)) => {
                evaluation.stop(Why::Busy { ticket });
                Decision::Pending
            }
            (PostError::Busy, None) => Decision::unable(Unable::NoRoom(error.to_string())),
            (PostError::Ended(_), _) => Decision::Down,
            (PostError::Misuse(misuse), _) => {
                let text =
                    format!("the daemon misused the policy interface: {misuse}; this is a bug");
                Decision::deny(Status::new(Code::INTERNAL, text))
            }
        };
    }
}

#[inline]
fn show(
    order: &mut OrderBuilder<'_>,
    posting: &Posting<'_>,
    evaluation: &Evaluation,
) -> Result<(), EvaluateError<tollgate_marshal::Fault>> {
    let view_max = evaluation.view_max(posting.input);
    order.push(posting.input.method, view_max, |view| {
        evaluation.write_view(posting.input, view)
    })
}
