//! One runtime: the loop that moves calls between rings, links, chains and the engine.
//!
//! ```text
//!   turn:  commands → links (read) → sessions (rings) → deadlines → parked calls
//!            → flush (links, rings, wakes)
//!          the engine's outputs are carried out after each input, so no queue builds up inside
//!   idle:  polls and yields the core for the spin budget; then publishes "I sleep" on every ring,
//!          polls once more, and waits in epoll for a doorbell, a socket, a command or a deadline
//! ```
//!
//! Invariants: one thread; no lock; only that wait and a hand-over block. One turn takes a bounded
//! number of submissions per session and of frames per link, so no burst delays other ports for
//! long. A tenant that has had more of this thread than another tenant with work is throttled for
//! the turn ([`Scheduler`]).

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::thread::CpuSet;
use tollgate_engine::fair::FlowId;
use tollgate_engine::slots::Slots;
use tollgate_engine::{
    Encoding, Engine, EngineId, LinkId, Origin, Output, ServiceId, SessionId, Status,
};
use tollgate_policy_host::Rate;
use tollgate_policy_host::isolated::Channel;
use tollgate_shm_abi::messages::{FEATURE_HEAPS, FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::{For, Patience, Step, now_ns};
use tollgate_telemetry::record::{Record, event};
use tollgate_transport::CallHead;

use crate::command::{Command, Event, Handle, Map};
use crate::durations::Durations;
use crate::peers::{Full, Peers};
use crate::placement::Placement;
use crate::ports::{LinkPort, RemoteBinding, Service, SessionPort, Who};
use crate::rdma::{Polled, Rdma, WithoutRdma};
use crate::reply::Events;
use crate::report::{
    ByteCounters, CallCounters, Doing, LinkBytes, Report, RuntimeReport, RuntimeTimes,
};
use crate::scheduler::Scheduler;
use crate::strangers::Strangers;
use crate::target::Dial;
use crate::traces::Traces;
use crate::tuning::Tuning;
use tollgate_policy_chain::evaluation::Evaluation;
use tollgate_policy_chain::ids::ProcessId;
use tollgate_policy_chain::isolated::Successor;
use tollgate_policy_chain::limits::EVALUATED_AT_ONCE;
use tollgate_policy_chain::message::{Body, Message, Pool, Source};
use tollgate_policy_chain::plan::{PolicyChange, Scope};
use tollgate_policy_chain::policies::Policies;

/// The setup of one runtime.
pub struct Options {
    /// The runtime's index.
    pub index: usize,
    /// The id of its engine, unique in this process.
    pub engine_id: EngineId,
    /// Its settings.
    pub tuning: Tuning,
    /// The fuel that a policy burns per microsecond.
    pub rate: Rate,
    /// The devices.
    pub rdma: Rdma,
    /// Takes the records of single calls.
    pub records: SyncSender<Record>,
}

/// Tokens of epoll: the kind above, the key below.
const WAKE_COMMAND: u64 = 0;
const WAKE_SESSION: u64 = 1 << 32;
const WAKE_LINK: u64 = 2 << 32;
const WAKE_PROCESS: u64 = 3 << 32;
const WAKE_POLLER: u64 = 4 << 32;

/// Wake-ups taken from epoll at once; further ones are reported the next time.
const EPOLL_BATCH: usize = 64;

/// Tokens of blocks that links send from are unique in the whole process, because they move with
/// their links.
fn first_token(engine_id: EngineId) -> u64 {
    u64::from(engine_id.number()) << 48
}

/// One runtime's state.
pub struct Runtime {
    pub(crate) options: Options,
    pub(crate) epoll: Arc<OwnedFd>,
    commands: mpsc::Receiver<Command>,
    pub(crate) events: Events<Event>,
    /// The placement of tenants, as far as this runtime knows.
    pub(crate) map: Map,
    pub(crate) engine: Engine<Box<Message>>,
    pub(crate) sessions: Slots<Box<SessionPort>>,
    pub(crate) links: Slots<Box<LinkPort>>,
    /// The links over RDMA.
    pub(crate) polled: Polled,
    /// Parallel to the engine's services.
    pub(crate) services: Vec<Service>,
    pub(crate) bindings: Slots<RemoteBinding>,
    /// Peers that are being dialled, or will be again.
    pub(crate) dials: Vec<Dial>,
    /// Last errors of peers, for reports.
    pub(crate) peers: Peers,
    pub(crate) strangers: Strangers,
    /// The last link that found no room.
    pub(crate) full: Option<Full>,
    /// Peers that are dialled by TCP for a while, because RDMA has failed.
    pub(crate) without_rdma: WithoutRdma,
    /// Links that became ready in this turn.
    pub(crate) opened: Vec<LinkId>,
    pub(crate) policies: Policies,
    pub(crate) shares: Scheduler,
    /// Bytes of messages that the port has received in its current turn.
    pub(crate) turn_bytes: usize,
    /// Reused by `evaluate` and `turn_parked`.
    pub(crate) evaluations: Vec<Evaluation>,
    pub(crate) pool: Pool,
    /// Blocks that links are still sending from, by the token given to the link.
    pub(crate) sending: HashMap<u64, Source>,
    pub(crate) next_token: u64,
    /// The number of the last comparison of schemas.
    pub(crate) next_ticket: u64,
    pub(crate) now_ns: u64,
    pub(crate) counters: CallCounters,
    /// Traffic of links is added when they end.
    pub(crate) bytes: ByteCounters,
    /// Credit for the first requests of streams. It is returned to the peer of the link that has
    /// its turn.
    pub(crate) openings_bytes: u64,
    pub(crate) durations: Durations,
    pub(crate) traces: Traces,
    times: RuntimeTimes,
    patience: Patience,
    /// The cores that the thread had before it was pinned, and the core that it is pinned to.
    everywhere: Option<CpuSet>,
    pinned: Option<usize>,
    stopping: bool,
}

/// Starts a runtime's thread. [`Command::Place`] tells it the placement of tenants.
pub fn spawn(
    options: Options,
    events: Events<Event>,
) -> std::io::Result<(Handle, std::thread::JoinHandle<()>)> {
    let name = format!("runtime-{}", options.index);
    let (runtime, handle) = Runtime::new(options, events)?;
    let thread = std::thread::Builder::new()
        .name(name)
        .spawn(move || runtime.run())?;
    Ok((handle, thread))
}

impl Runtime {
    /// A runtime without a thread.
    pub fn new(options: Options, events: Events<Event>) -> std::io::Result<(Runtime, Handle)> {
        let traces = Traces::new(options.records.clone());
        let (sender, commands) = mpsc::channel();
        let doorbell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(
            &*epoll,
            &*doorbell,
            EventData::new_u64(WAKE_COMMAND),
            EventFlags::IN | EventFlags::ET,
        )?;
        let polled = Polled::new(&options.rdma, &epoll, WAKE_POLLER)?;
        let handle = Handle {
            commands: sender,
            doorbell,
            #[cfg(feature = "rdma")]
            door: polled.door().cloned(),
        };
        let tuning = &options.tuning;
        let shares = Scheduler::new(tuning.scheduling);
        let policies = Policies::new(tuning.cpu_share_percent, options.rate);
        let mut engine = Engine::born(options.engine_id);
        engine.set_wait_target(tuning.wait_target_ns());
        let patience = tuning.patience();
        let map = Map {
            placement: Placement::spread(options.index + 1),
            runtimes: Vec::new(),
        };
        let next_token = first_token(options.engine_id);
        let runtime = Runtime {
            options,
            epoll,
            commands,
            events,
            map,
            engine,
            sessions: Slots::default(),
            links: Slots::default(),
            polled,
            services: Vec::new(),
            bindings: Slots::default(),
            dials: Vec::new(),
            peers: Peers::default(),
            strangers: Strangers::default(),
            full: None,
            without_rdma: WithoutRdma::default(),
            opened: Vec::new(),
            policies,
            shares,
            turn_bytes: 0,
            evaluations: Vec::with_capacity(EVALUATED_AT_ONCE),
            pool: Pool::new(),
            sending: HashMap::new(),
            next_token,
            next_ticket: 0,
            now_ns: now_ns(),
            counters: CallCounters::default(),
            bytes: ByteCounters::default(),
            openings_bytes: 0,
            durations: Durations::default(),
            traces,
            times: RuntimeTimes::default(),
            patience,
            everywhere: None,
            pinned: None,
            stopping: false,
        };
        Ok((runtime, handle))
    }

    /// The only runtime of a daemon, run by a test; its events are lost.
    #[cfg(test)]
    pub(crate) fn idle() -> (Runtime, Handle) {
        Runtime::idle_at(0)
    }

    /// One of several runtimes that a test runs.
    #[cfg(test)]
    pub(crate) fn idle_at(index: usize) -> (Runtime, Handle) {
        use tollgate_telemetry::sampling::Sampler;
        use tollgate_transport::LinkConfig;

        use crate::peer_room::PeerRoom;
        use crate::tuning::Watch;
        use crate::tuning::{Scheduling, Waiting};

        let options = Options {
            index,
            engine_id: EngineId::new(index as u32).expect("there are few"),
            tuning: Tuning {
                core: None,
                waiting: Waiting::Sleep,
                spin_us: 0,
                scheduling: Scheduling::default(),
                wait_target: None,
                link: LinkConfig {
                    unauthenticated_loopback: true,
                    ..LinkConfig::new("t")
                },
                room: PeerRoom::of_each(1, None),
                cpu_share_percent: 100,
                telemetry: Watch {
                    durations: true,
                    traces: false,
                    sampler: Sampler::default(),
                    told: false,
                    kept_spans: 0,
                    taps: Arc::default(),
                    lines: false,
                },
            },
            rate: Rate::default(),
            rdma: Rdma::Unavailable("it isn't tested here".into()),
            records: mpsc::sync_channel(1).0,
        };
        let events = Events::new(|_unheard| {});
        Runtime::new(options, events).expect("the kernel has an epoll left")
    }

    fn run(mut self) {
        self.everywhere = rustix::thread::sched_getaffinity(None).ok();
        self.pin();
        let mut doing = Doing::Spinning;
        while !self.stopping {
            let since_ns = std::mem::replace(&mut self.now_ns, now_ns());
            self.times.add(doing, self.now_ns.saturating_sub(since_ns));
            doing = Doing::Spinning;
            if self.turn() {
                doing = Doing::Busy;
                self.patience.reset();
            } else if self.patience.step(self.awaits()) == Step::Sleep {
                doing = Doing::Sleeping;
                self.sleep();
                self.patience.reset();
                continue;
            }
            self.poll_wakes(Some(Duration::ZERO));
        }
        self.shut_down();
    }

    /// Pins this thread to its core; without a core, restores the cores that it had before.
    fn pin(&mut self) {
        let core = self.options.tuning.core;
        if core == self.pinned {
            return;
        }
        let only = core.map(|core| {
            let mut set = CpuSet::new();
            set.set(core);
            set
        });
        let Some(set) = only.as_ref().or(self.everywhere.as_ref()) else {
            return;
        };
        match rustix::thread::sched_setaffinity(None, set) {
            Ok(()) => self.pinned = core,
            Err(error) => {
                let index = self.options.index;
                let cores =
                    core.map_or_else(|| "all its cores".to_owned(), |core| format!("core {core}"));
                tracing::warn!("runtime {index} can't be pinned to {cores}: {error}");
            }
        }
    }

    /// Switches to other settings.
    fn tune(&mut self, tuning: Tuning) {
        self.shares.set_scheduling(tuning.scheduling);
        self.engine.set_wait_target(tuning.wait_target_ns());
        self.policies
            .set_cpu_share(tuning.cpu_share_percent, self.now_ns);
        let before = &self.options.tuning;
        if (before.waiting, before.spin_us) != (tuning.waiting, tuning.spin_us) {
            // It was learned with the other budget.
            self.patience = tuning.patience();
        }
        self.options.tuning = tuning;
        let most = self.options.tuning.telemetry.kept_spans;
        self.traces.keep_at_most(most);
        self.pin();
        for slot in 0..self.links.slots() {
            if let Some((_, port)) = self.links.at_mut(slot) {
                port.set_window(&self.options.tuning.link);
            }
        }
    }

    /// The kind of the next input, as far as it is known.
    fn awaits(&self) -> For {
        match self.engine.live_calls() {
            0 => For::Anything,
            _ => For::Answer,
        }
    }

    /// Whether another flow has input, or output that leaves when this round ends. Costs one load
    /// per session, and one system call for the links.
    pub(crate) fn others_wait(&mut self, flow: FlowId) -> bool {
        if self.shares.others_worked(flow) {
            return true;
        }
        let posted = self.sessions.iter_mut().any(|(_, port)| {
            // A session that misbehaves counts: it ends in its turn.
            port.flow != flow && !matches!(port.end.submissions.is_empty(), Ok(true))
        });
        posted || {
            self.poll_wakes(Some(Duration::ZERO));
            self.ask_poller();
            let mut links = self.links.iter();
            links.any(|(_, port)| port.state.flow != flow && port.state.readable)
        }
    }

    /// Does a bounded amount of the pending work. Whether there was any.
    pub fn turn(&mut self) -> bool {
        let mut worked = self.take_commands();
        self.ask_poller();
        self.shares.begin_round();
        for slot in 0..self.links.slots() {
            let Some((key, port)) = self.links.at(slot) else {
                continue;
            };
            let flow = port.state.flow;
            worked |= self.shares.is_throttled(flow) || {
                let worked = self.turn_link(LinkId(key));
                self.shares.end_turn(flow, worked)
            };
        }
        for slot in 0..self.sessions.slots() {
            let Some((key, port)) = self.sessions.at(slot) else {
                continue;
            };
            let flow = port.flow;
            worked |= self.shares.is_throttled(flow) || {
                let worked = self.turn_session(SessionId(key), flow);
                self.shares.end_turn(flow, worked)
            };
        }
        worked |= self.pass_time();
        worked |= self.turn_processes();
        worked |= self.turn_parked();
        worked | self.flush()
    }

    /// Finds the links over RDMA that have data. All links must be in their places: a link that
    /// isn't would be missed.
    fn ask_poller(&mut self) {
        #[cfg(feature = "rdma")]
        self.polled
            .mark(self.links.iter_mut().filter_map(|(_, port)| {
                let LinkPort { io, state } = &mut **port;
                Some((io.by_rdma()?, &mut state.readable))
            }));
    }

    fn take_commands(&mut self) -> bool {
        let mut worked = false;
        while let Ok(command) = self.commands.try_recv() {
            worked = true;
            self.command(command);
            self.act();
        }
        worked
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::OpenSession {
                mut end,
                tenant,
                app,
                pid,
                features,
                label,
                reply,
            } => {
                let who = Who {
                    tenant,
                    app,
                    pid,
                    takes_metadata: features & FEATURE_METADATA != 0,
                    tells_waits: features & FEATURE_WAITS != 0,
                    knows_streams: features & FEATURE_STREAMS != 0,
                    follows_heaps: features & FEATURE_HEAPS != 0,
                    label: (!label.is_empty()).then(|| label.into()),
                };
                if !who.follows_heaps {
                    end.stays();
                }
                let opened = self.open_session(*end, who);
                if let Err(Ok(session)) = reply.send(opened) {
                    // The requester has given up, so nothing else would close the session.
                    self.close_session(session);
                }
            }
            Command::HandOver {
                with_links,
                until,
                stands,
                all_stand,
                reply,
                verdict,
            } => {
                if stands.send(()).is_err() || all_stand.recv().is_err() {
                    return;
                }
                // Takes links that other runtimes have sent to this one: none follows.
                self.take_commands();
                let handover_state = self.hand_over(with_links, until);
                let is_whole = handover_state.is_ok();
                // Nothing happens here until the other process has taken over, or has failed to.
                if reply.send(handover_state).is_ok() && is_whole && verdict.recv().is_ok() {
                    self.leave();
                    self.stopping = true;
                }
            }
            Command::TakeOver {
                handover_state,
                inventory,
                reply,
                begins,
            } => {
                let (answer, beginning) = match self.take_over(*handover_state, inventory) {
                    Ok((resumed, beginning)) => (Ok(resumed), Some(beginning)),
                    Err(why) => (Err(why), None),
                };
                // The old process may still continue with its objects: nothing is touched before
                // that is known.
                let is_heard = reply.send(answer).is_ok();
                match beginning.filter(|_| is_heard && begins.recv().is_ok()) {
                    Some(beginning) => self.begin(beginning),
                    None => {
                        self.leave();
                        self.stopping = true;
                    }
                }
            }
            Command::Drain { session, reply } => {
                self.engine.drain_session(session);
                let _ = reply.send(());
            }
            Command::CloseSession { session } => self.close_session(session),
            Command::Bind {
                session,
                schema,
                bind,
                chains,
                reply,
            } => self.bind(session, schema, bind, chains, reply),
            Command::Compared {
                ticket,
                binding,
                matches,
            } => self.compared(ticket, binding, matches),
            Command::Found {
                tenant,
                peer,
                found,
            } => self.found(tenant, peer, found),
            Command::Serve {
                session,
                bound,
                done,
            } => {
                if let Some(service) = bound.service {
                    let port = self.sessions.get(session.0);
                    let label = port.and_then(|port| port.who.label.clone());
                    self.engine
                        .serve(service, session, bound.first_handle, label);
                }
                let _ = done.send(());
            }
            Command::Accept { stream, unseen } => {
                self.accept(stream);
                drop(unseen);
            }
            #[cfg(feature = "rdma")]
            Command::AcceptByRdma { link } => self.accept_by_rdma(link),
            Command::Adopt { port, bind } => self.adopt(port, bind),
            Command::Process {
                id,
                tenant,
                channel,
            } => self.open_process(id, tenant, channel),
            Command::Part { order } => self.part_with(*order),
            Command::Absorb { moving } => self.absorb(moving),
            Command::Retire { map, reply } => {
                self.retire(*map);
                let _ = reply.send(self.measured_report());
                self.stopping = true;
            }
            Command::Place { map, done } => {
                self.placed(*map);
                let _ = done.send(());
            }
            Command::Rehearse {
                id,
                version,
                successor,
                done,
            } => {
                let done = Box::new(|could| drop(done.send(could)));
                let successor = Successor {
                    version,
                    isolated: successor,
                };
                self.policies.rehearse(id, successor, done);
                self.pass_on_events();
            }
            Command::Policies { change, done } => {
                let applied = self.apply(change);
                let _ = done.send(applied);
            }
            Command::Tune {
                tuning,
                cpu,
                of,
                done,
            } => {
                self.tune(*tuning);
                self.policies.limit_cpu(&of, cpu);
                let _ = done.send(());
            }
            Command::Recorded { id, reply } => {
                let _ = reply.send(self.policies.recorded(id));
            }
            Command::KeptSpans { reply } => {
                let _ = reply.send(self.traces.kept());
            }
            Command::Report { reply } => {
                let _ = reply.send(self.report());
            }
            Command::Measure { reply } => {
                let _ = reply.send(self.measured_report());
            }
            Command::Stop => self.stopping = true,
        }
    }

    fn open_process(&mut self, id: ProcessId, tenant: Arc<str>, mut channel: Box<Channel>) {
        if let Some(home) = self.elsewhere(&tenant) {
            home.send(Command::Process {
                id,
                tenant,
                channel,
            });
            return;
        }
        if let Err(error) = channel.watch(&self.epoll, Self::process_token(id)) {
            // Its answers would wake no thread.
            channel.end(format!("it can't be watched: {error}"));
        }
        self.policies.processes().open(id, tenant, *channel);
    }

    fn apply(&mut self, change: PolicyChange) -> Result<(), String> {
        let tenant_of = |scope: &Scope| match *scope {
            Scope::Client { session, .. } => self.sessions.get(session.0).map(|s| &s.who.tenant),
            Scope::Server { service, .. } => {
                let service = self.services.get(service.0 as usize);
                service.map(|service| &service.tenant)
            }
        };
        // A scope that has gone has no chains to change.
        let tenant_of = |scope: &Scope| tenant_of(scope).map_or_else(|| "".into(), Arc::clone);
        let applied = self.policies.apply(change, &mut self.engine, tenant_of);
        self.pass_on_events();
        applied
    }

    /// Passes events of policies on to the control plane.
    #[inline]
    pub(crate) fn pass_on_events(&mut self) {
        for event in self.policies.take_events() {
            self.events.tell(Event::Policies(event));
        }
    }

    /// Handles deadlines, links' timers and redials. Whether anything was due.
    fn pass_time(&mut self) -> bool {
        let mut worked = false;
        if self
            .engine
            .poll_timeout()
            .is_some_and(|at| at <= self.now_ns)
        {
            self.engine.expire(self.now_ns);
            self.act();
            worked = true;
        }
        for slot in 0..self.links.slots() {
            let Some(key) = self.links.key_at(slot) else {
                continue;
            };
            let Some(port) = self.links.get_mut(key) else {
                continue;
            };
            let due = |at: Option<u64>| at.is_some_and(|at| at <= self.now_ns);
            if let Some(reason) = port.overdue(self.now_ns) {
                self.lose_link(LinkId(key), &reason);
                worked = true;
            } else if due(port.io.link().next_tick())
                && let Err(error) = port.io.link_mut().tick(self.now_ns)
            {
                self.lose_link(LinkId(key), &error.to_string());
                worked = true;
            } else {
                worked |= self.end_replaced(LinkId(key));
            }
        }
        self.policies.tend(self.now_ns, &self.engine);
        self.pass_on_events();
        worked | self.retry_due()
    }

    /// Carries out the engine's outputs until there are none.
    pub(crate) fn act(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Evaluate {
                    call,
                    stage,
                    chain,
                    evaluated_in,
                    message,
                } => {
                    let mut evaluation = Evaluation::new(call, message);
                    evaluation.evaluated_in = evaluated_in;
                    evaluation.notes = self.notes_of(call);
                    self.evaluate(evaluation, stage, chain);
                }
                Output::Recall { call } => self.recall(call),
                Output::Convert {
                    call,
                    from,
                    to,
                    message,
                } => {
                    let message = self.pool.unboxed(message);
                    self.convert(call, from, to, message);
                }
                Output::Held { call } => self.trace_queued(call, "link"),
                Output::SendCall {
                    link,
                    bind,
                    method,
                    call,
                    deadline_ns,
                    encoding,
                    more,
                    message,
                } => {
                    let head = CallHead {
                        call: call.to_wire(),
                        bind,
                        method,
                        deadline_us: self.remaining_us(deadline_ns),
                        protobuf: encoding == Encoding::Protobuf,
                        more,
                        bare: message.bare,
                    };
                    self.trace_sent(call, message.message_len());
                    let message = self.pool.unboxed(message);
                    self.send_call(link, call, &head, message);
                }
                Output::SendRequest {
                    link,
                    call,
                    encoding,
                    more,
                    charge,
                    message,
                } => {
                    let head = (more, charge, encoding);
                    self.send_request(link, call, head, message);
                }
                Output::SendResponse {
                    link,
                    call,
                    encoding,
                    charge,
                    message,
                } => self.send_response(link, call, (charge, encoding), message),
                Output::Credit { to, of, credit } => self.tell_credit(to, of, credit),
                Output::SendReply {
                    link,
                    call,
                    encoding,
                    request_bytes,
                    message,
                    ended,
                } => {
                    self.call_ended(Origin::Link { link, call }, &ended, None);
                    let message = self.pool.unboxed(message);
                    self.send_reply(link, call, encoding, request_bytes, message);
                }
                Output::SendStatus {
                    link,
                    call,
                    request_bytes,
                    status,
                    ended,
                } => {
                    self.call_ended(Origin::Link { link, call }, &ended, Some(&status));
                    self.send_status(link, call, request_bytes, status);
                }
                Output::SendCancel { link, call } => self.send_cancel(link, call),
                Output::Deliver {
                    session,
                    handle,
                    call,
                    deadline_ns,
                    more,
                    message,
                } => {
                    self.engine.delivered(self.now_ns, call);
                    self.trace_event(call, event::DELIVERED, Vec::new);
                    let message = self.pool.unboxed(message);
                    self.deliver(session, handle, call, (more, deadline_ns), message);
                }
                Output::DeliverRequest {
                    session,
                    handle,
                    call,
                    more,
                    charge,
                    message,
                } => self.deliver_request((session, handle), call, (more, charge), message),
                Output::Respond {
                    session,
                    handle,
                    call,
                    charge,
                    message,
                } => self.respond((session, handle), call, charge, message),
                Output::CancelDelivered { session, call } => {
                    self.cancel_delivered(session, call);
                }
                Output::Complete {
                    session,
                    handle,
                    call,
                    message,
                    ended,
                } => {
                    self.call_ended(Origin::Session { session, call }, &ended, None);
                    let message = self.pool.unboxed(message);
                    self.complete(session, handle, call, message);
                }
                Output::Fail {
                    session,
                    call,
                    status,
                    ended,
                } => {
                    self.call_ended(Origin::Session { session, call }, &ended, Some(&status));
                    self.fail(session, call, status);
                }
                Output::Discard(message) => {
                    let message = self.pool.unboxed(message);
                    self.discard(message);
                }
            }
        }
        self.trace_settled();
    }

    /// Frees a message's buffer, its block, or both.
    pub(crate) fn discard(&mut self, message: Message) {
        self.pool.give(message.metadata);
        match message.body {
            Body::Private { bytes, .. } | Body::Encoded { bytes, .. } => self.pool.give(bytes),
            Body::Gathered { inline, source, .. } => {
                self.pool.give(inline);
                self.reclaim(source);
            }
            Body::Landed { session, block } => {
                if let Some(port) = self.sessions.get_mut(session.0) {
                    port.end.receive_heap.discard(block);
                }
            }
        }
    }

    /// Returns a block of a send heap that is no longer read.
    pub(crate) fn reclaim(&mut self, source: Source) {
        if let Some(port) = self.sessions.get_mut(source.session.0) {
            port.reclaim(source.offset);
        }
    }

    /// Sends and delivers everything that was queued. Whether more was queued meanwhile.
    fn flush(&mut self) -> bool {
        self.policies.processes().flush();
        self.shares.begin_turns();
        let more = self.flush_links();
        for slot in 0..self.sessions.slots() {
            let Some((key, port)) = self.sessions.at_mut(slot) else {
                continue;
            };
            let flow = port.flow;
            match port.flush(Some(self.now_ns)) {
                Ok(woken) => drop(self.shares.end_turn(flow, woken)),
                Err(how) => self.expel(SessionId(key), &how.to_string()),
            }
        }
        more
    }

    pub(crate) fn flush_links(&mut self) -> bool {
        let mut more = false;
        for slot in 0..self.links.slots() {
            if let Some((key, port)) = self.links.at(slot) {
                let flow = port.state.flow;
                let flushed = self.flush_link(LinkId(key));
                self.shares.end_turn(flow, flushed.sent);
                more |= flushed.more;
            }
        }
        more
    }

    /// Publishes on every ring that this runtime sleeps, and then sleeps, unless input has arrived
    /// meanwhile.
    pub(crate) fn sleep(&mut self) {
        let mut may_sleep = true;
        for (_, port) in self.sessions.iter_mut() {
            if port.has_reclaims() {
                let _the_next_turn_says_so = port.flush(None);
            }
            may_sleep &= port.end.submissions.announce_sleep();
        }
        may_sleep &= self.policies.processes().announce_sleep();
        may_sleep &= self.prepare_links_to_wait();
        if may_sleep {
            self.counters.sleeps += 1;
            let timeout = self.next_timeout();
            self.poll_wakes(timeout);
        }
        for (_, port) in self.sessions.iter_mut() {
            port.end.submissions.cancel_sleep();
        }
        self.policies.processes().cancel_sleep();
    }

    /// Makes epoll report the input of links that were polled so far. Whether there is no input
    /// yet.
    fn prepare_links_to_wait(&mut self) -> bool {
        let mut quiet = true;
        let mut lost = Vec::new();
        for (key, port) in self.links.iter_mut() {
            match port.io.announce_sleep() {
                Ok(is_quiet) => quiet &= is_quiet,
                Err(error) => lost.push((LinkId(key), error)),
            }
        }
        quiet &= lost.is_empty();
        for (link, error) in lost {
            self.lose_link(link, &error.to_string());
        }
        quiet & self.polled.prepare_to_wait()
    }

    /// How long nothing needs to be done if no input arrives.
    fn next_timeout(&self) -> Option<Duration> {
        let links = self.links.iter().flat_map(|(_, port)| {
            let again = port.state.rdma_again_ns.into_iter();
            let ends = port.io.link().next_tick().into_iter();
            ends.chain(port.ends_at()).chain(again)
        });
        let dials = self.dials.iter().map(|dial| dial.at_ns);
        let rebinds = self
            .bindings
            .iter()
            .filter_map(|(_, binding)| binding.retry_at_ns);
        let next_ns = self
            .engine
            .poll_timeout()
            .into_iter()
            .chain(links)
            .chain(dials)
            .chain(rebinds)
            .chain(self.policies.next_due_ns())
            .min();
        // An application that is behind frees places in its ring without ringing.
        let backlog = self
            .sessions
            .iter()
            .any(|(_, port)| port.has_backlog())
            .then(|| self.now_ns + 1_000_000);
        let next_ns = next_ns.into_iter().chain(backlog).min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(now_ns())))
    }

    /// Takes wake-ups; `None` waits without limit.
    pub(crate) fn poll_wakes(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EPOLL_BATCH];
        let woken = match epoll::wait(&*self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => events,
            // A signal: the next turn checks everything anyway.
            Err(_) => return,
        };
        for event in woken.iter() {
            let token = event.data.u64();
            if token & !0xffff_ffff == WAKE_LINK
                && let Some(port) = self.links.get_mut(token as u32)
            {
                let over = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                port.state.readable = true;
                port.state.ends |= { event.flags }.intersects(over);
            }
            if token & !0xffff_ffff == WAKE_PROCESS {
                self.policies
                    .processes()
                    .look_after(ProcessId(token as u32));
            }
        }
    }

    pub(crate) fn session_token(session: SessionId) -> u64 {
        WAKE_SESSION | u64::from(session.0)
    }

    pub(crate) fn link_token(link: LinkId) -> u64 {
        WAKE_LINK | u64::from(link.0)
    }

    pub(crate) fn process_token(process: ProcessId) -> u64 {
        WAKE_PROCESS | u64::from(process.0)
    }

    /// The runtime of a tenant, if that isn't this one.
    pub(crate) fn elsewhere(&self, tenant: &str) -> Option<Handle> {
        let home = self.map.placement.home(tenant);
        let sibling = self.map.runtimes.get(home);
        sibling.filter(|_| home != self.options.index).cloned()
    }

    /// The service that a client of `tenant` with this schema reaches on this host, or the reason
    /// why there is none.
    pub(crate) fn find_service(
        &self,
        tenant: &str,
        name: &str,
        hash: &[u8; 32],
    ) -> Result<ServiceId, Refusal> {
        let mut known = None;
        for (service, id) in self.services.iter().zip(0u32..) {
            if &*service.tenant != tenant || service.schema.name != name {
                continue;
            }
            let served = self.engine.servers_of(ServiceId(id)) > 0;
            match (served, service.schema.hash == *hash) {
                (true, true) => return Ok(ServiceId(id)),
                // Of several services, the one that was served last.
                (true, false) => known = Some(Some(id)),
                (false, _) => known = known.or(Some(None)),
            }
        }
        Err(match known {
            Some(Some(id)) => Refusal::Differs(ServiceId(id)),
            Some(None) => Refusal::Absent(Status::new(
                Code::UNAVAILABLE,
                format!("no application of tenant {tenant} serves {name} at the moment"),
            )),
            None => Refusal::Absent(Status::new(
                Code::UNIMPLEMENTED,
                format!("no application of tenant {tenant} serves {name} on this host"),
            )),
        })
    }

    /// The report, with the data that only metrics show.
    fn measured_report(&self) -> Report {
        let links = self.links.iter();
        let links = links.map(|(_, port)| {
            let moved = port.io.link().moved();
            LinkBytes {
                address: port.state.address.clone(),
                tenant: port.state.tenant.clone(),
                sent: moved.private_copied + moved.shared_copied + moved.shared_in_place,
                received: moved.received,
                retransmits: port.io.retransmits(),
            }
        });
        Report {
            measured: self.durations.measured(),
            times: vec![(self.options.index, self.times)],
            untraced: self.traces.untraced,
            unrecorded: self.traces.dropped,
            link_bytes: links.collect(),
            ..self.report()
        }
    }

    fn report(&self) -> Report {
        let mut bytes = self.bytes;
        for (_, port) in self.links.iter() {
            bytes.add_link(&port.io.link().moved());
        }
        let services = self
            .services
            .iter()
            .zip(0u32..)
            .filter(|(_, id)| self.engine.servers_of(ServiceId(*id)) > 0);
        let service = |key: u32| {
            let binding = self.bindings.get(key).filter(|binding| binding.stands());
            binding.map(|binding| &*binding.schema.name)
        };
        let links = self.links.iter().map(|(_, port)| port.report(service));
        let tuning = &self.options.tuning;
        let runtime = RuntimeReport {
            runtime: self.options.index,
            core: self.pinned,
            waiting: tuning.waiting,
            spin_us: tuning.spin_us,
            scheduling: tuning.scheduling,
            wait_target_us: tuning
                .wait_target
                .map_or(0, |target| target.as_micros() as u64),
            cpu_share_percent: tuning.cpu_share_percent,
            sleeps: self.counters.sleeps,
            rdma: self.polled.report(),
        };
        Report {
            runtimes: vec![runtime],
            sessions: self
                .sessions
                .iter()
                .map(|(_, port)| port.report(&self.engine))
                .collect(),
            problems: self.problems(),
            links: links.collect(),
            peers: self.peer_reports(),
            services: services
                .map(|(service, id)| service.report(self.engine.servers_of(ServiceId(id))))
                .collect(),
            policies: self.policies.report(),
            accounts: self.policies.report_accounts(),
            shares: self.shares.report(),
            calls: self.counters,
            bytes,
            live_calls: self.engine.live_calls(),
            ..Report::default()
        }
    }

    /// Ends every session, and sends a GOAWAY to every peer.
    fn shut_down(&mut self) {
        for slot in 0..self.sessions.slots() {
            if let Some(key) = self.sessions.key_at(slot) {
                self.close_session(SessionId(key));
            }
        }
        self.act();
        for (_, port) in self.links.iter_mut() {
            let reason = tollgate_transport::Reason::SHUTDOWN;
            let _not_ready = port
                .io
                .link_mut()
                .send_goaway(reason, "the daemon is shutting down");
            port.io.end();
        }
    }
}

/// Why a BIND finds no service.
pub(crate) enum Refusal {
    /// It is served with another schema.
    Differs(ServiceId),
    /// No application serves it.
    Absent(Status),
}
