//! A control plane with a runtime that doesn't run.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use tollgate_control::Store;
use tollgate_policy_host::{ChildUser, Compiler, CompilerConfig, Host, HostConfig, Rate};
use tollgate_provenance::TrustedKeys;
use tollgate_shm_abi::status::Code;
use tollgate_transport::LinkConfig;

use crate::config::Config;
use crate::control::api::paces::Paces;
use crate::control::apps::admission::Admission;
use crate::control::apps::applications::Applications;
use crate::control::apps::listeners::Listeners;
use crate::control::apps::peers::Peers;
use crate::control::apps::schema_cache::SchemaCache;
use crate::control::changes::Changes;
use crate::control::guesses::Guesses;
use crate::control::in_force::InForce;
use crate::control::inbox;
use crate::control::observe::exporters::Exporters;
use crate::control::observe::repeated::Repeated;
use crate::control::observe::taps::Taps;
use crate::control::placement::homes::Homes;
use crate::control::placement::running::Runtimes;
use crate::control::placement::runtimes::{Starter, engine_id, tuning};
use crate::control::policies::compile::Compilation;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::modules::Modules;
use crate::control::policies::processes::Processes;
use crate::control::state::Control;
use crate::control::takeover::replacement::Replacement;
use crate::control::this_process::ThisProcess;
use crate::limits::COMMAND_TIMEOUT;
use crate::settings::Settings;
use tollgate_datapath::placement::Placement;
use tollgate_datapath::rdma::Rdma;
use tollgate_datapath::reply::Events;
use tollgate_datapath::{Options, Runtime, RuntimeIndex};
use tollgate_policy_chain::plan::PolicyChange;

/// Commands stay in the runtime's queue.
pub(super) fn control() -> (Rc<Control>, Runtime) {
    let link = LinkConfig::new("t");
    let options = Options {
        index: RuntimeIndex::FIRST,
        engine_id: engine_id().unwrap(),
        tuning: tuning(&Config::default(), RuntimeIndex::FIRST, link.clone()),
        rate: Rate::default(),
        rdma: Rdma::Unavailable("it isn't tested here".into()),
        records: std::sync::mpsc::sync_channel(1).0,
    };
    let (runtime, handle) = Runtime::new(options, Events::new(|_unheard| {})).unwrap();
    let (events, records) = (inbox::open().0, std::sync::mpsc::sync_channel(1).0);
    let runtimes = Runtimes::new(Starter::new(Rate::default(), events, records));
    runtimes.add_without_thread(handle);
    let compiler = Compiler::new(
        Host::new(HostConfig::default()).unwrap(),
        CompilerConfig::default(),
    );
    let control = Control {
        settings: InForce::new(Settings::new(Config::default(), BTreeMap::new(), vec![0])),
        changes: Changes::new(Store::in_memory().unwrap()),
        peers: Peers::new(link, Rdma::Unavailable("it isn't tested here".into()), None),
        guesses: Guesses::default(),
        apps: Applications::new(
            Admission::new(None, 1),
            Listeners::default(),
            SchemaCache::new(crate::machine_code::start().unwrap()),
        ),
        process: ThisProcess {
            program: PathBuf::new(),
            began_ns: 0,
            state_since: String::new(),
        },
        modules: Modules::new(
            TrustedKeys::default(),
            Compilation::new(compiler.unwrap(), 1),
            Rate::default(),
        ),
        runtimes,
        homes: Homes::new(Placement::spread(1)),
        policies: LivePolicies::default(),
        processes: Processes::new(ChildUser::default()),
        repeats: Repeated::default(),
        on_network: None,
        replacement: Replacement::default(),
        exporters: Exporters::default(),
        taps: Taps::default(),
        paces: Paces::default(),
        console: Rc::default(),
    };
    (Rc::new(control), runtime)
}

pub(super) fn wait<T>(what: impl Future<Output = T>) -> T {
    let mut reactor = tokio::runtime::Builder::new_current_thread();
    reactor.enable_all().build().unwrap().block_on(what)
}

#[test]
fn a_command_that_is_not_answered_is_an_error() {
    let (control, _runs_nothing) = control();
    let began = Instant::now();
    let applied = wait(
        control
            .runtimes
            .apply(RuntimeIndex::FIRST, PolicyChange::default()),
    );
    let refused = applied.unwrap_err();
    assert_eq!(refused.code, Code::UNAVAILABLE);
    assert_eq!(refused.message, "the runtime didn't answer within 5 s");
    assert!(began.elapsed() >= COMMAND_TIMEOUT);
}
