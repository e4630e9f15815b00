//! One runtime: the loop that moves calls between rings, links, chains and the engine.
//!
//! ```text
//!   turn:  commands → links (read) → sessions (rings) → deadlines, redials → policy processes
//!            → parked calls → flush (links, rings, wakes)
//!          the engine's outputs are carried out after each input, so no queue builds up inside
//!   idle:  polls and yields the core for the spin budget; then publishes "I sleep" on every ring,
//!          polls once more, and waits in epoll for a doorbell, a socket, a command or a deadline
//! ```
//!
//! Each component owns a part of the state and has a file of its own, with its invariants:
//!
//! | component | owns |
//! |---|---|
//! | `Thread`, `WakeSources` | core, patience and time; what wakes the thread |
//! | `ControlPlane`, `Siblings` | commands and events; the placement of tenants |
//! | `Sessions`, `Services` | the ports of applications; the services that they serve |
//! | `Links`, `Guests`, `OutgoingBlocks` | the ports of peers; their limits; blocks being sent |
//! | `RemoteBindings`, `Dials` | bindings to services at peers; peers that are being dialled |
//! | `Engine`, `Policies`, `Scheduler` | calls; chains; the tenants' shares |
//! | `Observer` | durations, traces, records |
//!
//! A function that needs few of them has those as parameters. A method of [`Runtime`] is a turn, a
//! dispatch, or a step that makes the engine decide and carries out the outcome.
//!
//! Invariants: one thread; no lock; only that wait and a hand-over block. One turn takes a bounded
//! number of submissions per session and of frames per link, so no burst delays other ports for
//! long. A tenant that has had more of this thread than another tenant with work is throttled for
//! the turn ([`Scheduler`]).

mod control;
mod dispatch;
mod status;
mod thread;
mod turn;
mod wake;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tollgate_engine::{Engine, EngineId};
use tollgate_policy_host::Rate;
use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::record::Record;

use crate::calls::services::Services;
use crate::calls::table::Sessions;
use crate::command::{Event, Handle};
use crate::links::dials::Dials;
use crate::links::guests::Guests;
use crate::links::outgoing::OutgoingBlocks;
use crate::links::remote::RemoteBindings;
use crate::links::table::Links;
use crate::observe::Observer;
use crate::placement::RuntimeIndex;
use crate::rdma::Rdma;
use crate::reply::Events;
use crate::report::{ByteCounters, CallCounters};
use crate::scheduler::Scheduler;
use crate::siblings::Siblings;
use crate::tuning::Tuning;
use control::ControlPlane;
use thread::Thread;
use tollgate_policy_chain::evaluation::Evaluation;
use tollgate_policy_chain::ids::AttachmentId;
use tollgate_policy_chain::limits::EVALUATED_AT_ONCE;
use tollgate_policy_chain::message::{Message, Pool};
use tollgate_policy_chain::plan::CpuLimit;
use tollgate_policy_chain::policies::Policies;
use wake::WakeSources;

/// The setup of one runtime.
pub struct Options {
    /// The runtime's index.
    pub index: RuntimeIndex,
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

/// One runtime's state.
pub struct Runtime {
    pub(crate) options: Options,
    /// The thread that runs it.
    thread: Thread,
    pub(crate) wakes: WakeSources,
    pub(crate) control: ControlPlane,
    pub(crate) siblings: Siblings,
    pub(crate) engine: Engine<Box<Message>>,
    pub(crate) sessions: Sessions,
    pub(crate) links: Links,
    pub(crate) services: Services,
    pub(crate) bindings: RemoteBindings,
    pub(crate) dials: Dials,
    /// Decides which links have room.
    pub(crate) guests: Guests,
    pub(crate) policies: Policies,
    pub(crate) scheduler: Scheduler,
    /// Reused by `evaluate` and `turn_parked`.
    pub(crate) evaluations: Vec<Evaluation>,
    pub(crate) pool: Pool,
    pub(crate) outgoing: OutgoingBlocks,
    pub(crate) now_ns: u64,
    pub(crate) counters: CallCounters,
    /// Traffic of links is added when they end.
    pub(crate) bytes: ByteCounters,
    pub(crate) observer: Observer,
}

/// Starts a runtime's thread. [`Command::Place`](crate::Command::Place) tells it the placement of
/// tenants.
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
        let observer = Observer::new(options.records.clone());
        let (control, sender) = ControlPlane::new(events);
        let (wakes, doorbell) = WakeSources::new(&options.rdma)?;
        let handle = Handle {
            commands: sender,
            doorbell,
            #[cfg(feature = "rdma")]
            door: wakes.door().cloned(),
        };
        let tuning = &options.tuning;
        let scheduler = Scheduler::new(tuning.scheduling);
        let policies = Policies::new(tuning.cpu_share_percent, options.rate);
        let mut engine = Engine::with_id(options.engine_id);
        engine.set_wait_target(tuning.wait_target_ns());
        let thread = Thread::new(options.index, tuning);
        let siblings = Siblings::new(options.index);
        let outgoing = OutgoingBlocks::new(options.engine_id);
        let runtime = Runtime {
            options,
            thread,
            wakes,
            control,
            siblings,
            engine,
            sessions: Sessions::default(),
            links: Links::default(),
            services: Services::default(),
            bindings: RemoteBindings::default(),
            dials: Dials::default(),
            guests: Guests::default(),
            policies,
            scheduler,
            evaluations: Vec::with_capacity(EVALUATED_AT_ONCE),
            pool: Pool::new(),
            outgoing,
            now_ns: now_ns(),
            counters: CallCounters::default(),
            bytes: ByteCounters::default(),
            observer,
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
        use std::sync::mpsc;

        use tollgate_telemetry::sampling::Sampler;
        use tollgate_transport::LinkConfig;

        use crate::peer_room::PeerRoom;
        use crate::tuning::Watch;
        use crate::tuning::{Scheduling, Waiting};

        let options = Options {
            index: RuntimeIndex(index),
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
                cpu_shares: Default::default(),
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

    /// Switches to other settings, and to a CPU limit for some attachments.
    fn tune(&mut self, tuning: Tuning, cpu: &[(AttachmentId, CpuLimit)]) {
        self.scheduler.set_scheduling(tuning.scheduling);
        self.engine.set_wait_target(tuning.wait_target_ns());
        self.policies.set_cpu_shares(
            tuning.cpu_share_percent,
            Arc::clone(&tuning.cpu_shares),
            self.now_ns,
        );
        self.thread.tune(&self.options.tuning, &tuning);
        self.options.tuning = tuning;
        let most = self.options.tuning.telemetry.kept_spans;
        self.observer.keep_at_most(most);
        for (_, port) in self.links.iter_mut() {
            port.set_window(&self.options.tuning.link);
        }
        self.policies.limit_cpu(cpu);
    }

    /// Takes wake-ups; `None` waits without limit.
    pub(crate) fn poll_wakes(&mut self, timeout: Option<Duration>) {
        self.wakes
            .wait(timeout, &mut self.links, &mut self.policies);
    }
}
