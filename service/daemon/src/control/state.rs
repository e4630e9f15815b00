//! The state of the control plane: components, each of which owns its part.
//!
//! | component | owns |
//! |---|---|
//! | [`InForce`] | the settings |
//! | [`Changes`] | the store, and the lock that admits one change at a time |
//! | [`ThisProcess`] | facts that never change |
//! | [`Guesses`] | the pace of wrong tokens |
//! | [`Applications`] | sessions, requests, admission, schemas, listeners, names, turns |
//! | [`Peers`] | the configuration of links, RDMA |
//! | [`LivePolicies`] | attachments in force, and the bindings that they cover |
//! | [`Modules`] | origin, compilation and limits of policies |
//! | [`Processes`] | processes of isolated policies |
//! | [`Runtimes`] | runtimes, and the commands to them |
//! | [`Homes`] | the tenants' runtimes |
//! | [`Exporters`], [`Taps`], [`Repeated`] | destinations of telemetry, watchers, audit records |
//! | [`Paces`] | how fast tenants administer |
//! | [`Console`] | browsers of operators and tenants |
//! | [`Replacement`] | the process that takes over |
//!
//! A function takes the components that it needs. It takes `Control` if it coordinates several, or
//! starts a task.

use std::rc::Rc;

use tollgate_console::Console;

use crate::config::Config;
use crate::control::api::paces::Paces;
use crate::control::api::remote::OnNetwork;
use crate::control::apps::applications::Applications;
use crate::control::apps::peers::Peers;
use crate::control::changes::Changes;
use crate::control::guesses::Guesses;
use crate::control::in_force::InForce;
use crate::control::observe::exporters::Exporters;
use crate::control::observe::repeated::Repeated;
use crate::control::observe::taps::Taps;
use crate::control::operators::visitor::Visitor;
use crate::control::placement::homes::Homes;
use crate::control::placement::running::Runtimes;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::modules::Modules;
use crate::control::policies::processes::Processes;
use crate::control::takeover::replacement::Replacement;
use crate::control::this_process::ThisProcess;

/// The state of the control plane.
pub(super) struct Control {
    pub(super) settings: InForce,
    pub(super) changes: Changes,
    pub(super) process: ThisProcess,
    pub(super) guesses: Guesses,
    pub(super) apps: Applications,
    pub(super) peers: Peers,
    pub(super) policies: LivePolicies,
    pub(super) modules: Modules,
    pub(super) processes: Processes,
    pub(super) runtimes: Runtimes,
    pub(super) homes: Homes,
    pub(super) exporters: Exporters,
    pub(super) taps: Taps,
    pub(super) repeats: Repeated,
    pub(super) paces: Paces,
    pub(super) console: Rc<Console<Visitor>>,
    pub(super) on_network: Option<OnNetwork>,
    pub(super) replacement: Replacement,
}

impl Control {
    /// The settings in force; they may change during the next wait.
    pub(super) fn config(&self) -> Rc<Config> {
        self.settings.config()
    }

    /// Whether the state is lost when the daemon stops.
    pub(super) fn state_is_in_memory(&self) -> bool {
        self.config().state.is_none()
    }
}
