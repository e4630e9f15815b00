//! Starts runtimes.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rustix::process::{Resource, getrlimit};
use tollgate_engine::EngineId;
use tollgate_policy_host::Rate;
use tollgate_telemetry::record::Record;
use tollgate_transport::LinkConfig;

use crate::config::Config;
use crate::control::apps::peers::Peers;
use crate::control::error::{DaemonError, system};
use crate::control::inbox::EventSender;
use tollgate_datapath::command::Handle;
use tollgate_datapath::peer_room::PeerRoom;
use tollgate_datapath::placement::next_engine_id;
use tollgate_datapath::reply::Events;
use tollgate_datapath::tuning::{Tuning, Watch};
use tollgate_datapath::{Options, RuntimeIndex, spawn};

/// The threads of runtimes.
pub(crate) type Threads = Vec<std::thread::JoinHandle<()>>;

/// What all runtimes of a daemon are started with, besides their configuration and the ways to
/// peers.
pub(in crate::control) struct Starter {
    /// Fuel per microsecond.
    rate: Rate,
    /// The control plane's queue of their events.
    events: EventSender,
    /// The control plane's queue of their records of single calls.
    records: SyncSender<Record>,
}

impl Starter {
    pub(in crate::control) fn new(
        rate: Rate,
        events: EventSender,
        records: SyncSender<Record>,
    ) -> Starter {
        Starter {
            rate,
            events,
            records,
        }
    }

    /// Starts one runtime.
    pub(super) fn start(
        &self,
        config: &Config,
        peers: &Peers,
        index: RuntimeIndex,
    ) -> Result<(Handle, std::thread::JoinHandle<()>), DaemonError> {
        let options = Options {
            index,
            engine_id: engine_id()?,
            tuning: tuning(config, index, peers.link().clone()),
            rate: self.rate,
            rdma: peers.rdma().clone(),
            records: self.records.clone(),
        };
        let events = self.events.clone();
        let tell = Events::new(move |event| events.tell(event));
        spawn(options, tell).map_err(system("a runtime can't start"))
    }
}

/// A runtime's settings from a configuration, without taps and what ceilings say.
pub(crate) fn tuning(config: &Config, runtime: RuntimeIndex, link: LinkConfig) -> Tuning {
    Tuning {
        core: config.cores.get(runtime.0).copied(),
        waiting: config.waiting,
        spin_us: config.spin_us,
        scheduling: config.scheduling,
        wait_target: config.wait_target(),
        link: LinkConfig {
            window_calls: config.link.window_calls,
            window_bytes: config.link.window_bytes,
            ..link
        },
        room: PeerRoom::of_each(config.runtimes(), getrlimit(Resource::Nofile).current),
        cpu_share_percent: config.policies.cpu_share_percent,
        cpu_shares: Default::default(),
        telemetry: Watch {
            durations: config.telemetry.durations,
            traces: config.telemetry.is_told() || config.telemetry.kept_spans > 0,
            sampler: config.telemetry.sampler(),
            told: config.telemetry.is_told(),
            kept_spans: config.telemetry.kept_spans as usize,
            taps: Arc::default(),
            lines: config.telemetry.is_told() || config.telemetry.log_failures,
        },
    }
}

/// The id of the next engine.
pub(crate) fn engine_id() -> Result<EngineId, DaemonError> {
    next_engine_id().ok_or(DaemonError::EngineIds)
}
