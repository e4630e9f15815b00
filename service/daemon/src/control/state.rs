//! The state of the control plane.

use std::rc::Rc;

use tollgate_console::Console;
use tollgate_control::audit::Actor;

use crate::config::Config;
use crate::control::apps::applications::Applications;
use crate::control::apps::peers::Peers;
use crate::control::changes::Changes;
use crate::control::in_force::InForce;
use crate::control::observe::exporters::Exporters;
use crate::control::observe::repeated::Repeated;
use crate::control::observe::taps::Taps;
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
    pub(super) apps: Applications,
    pub(super) peers: Peers,
    pub(super) process: ThisProcess,
    pub(super) modules: Modules,
    pub(super) runtimes: Runtimes,
    /// The tenants' runtimes.
    pub(super) homes: Homes,
    pub(super) policies: LivePolicies,
    /// Processes of isolated policies.
    pub(super) processes: Processes,
    /// Repeated events, such as faults, that the audit log coalesces.
    pub(super) repeats: Repeated,
    /// Whether another process has taken over.
    pub(super) replacement: Replacement,
    /// Exporters of telemetry.
    pub(super) exporters: Exporters,
    /// Watchers of calls.
    pub(super) taps: Taps,
    /// The web console.
    pub(super) console: Rc<Console<Actor>>,
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
