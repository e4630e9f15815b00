//! The state of the control plane.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::sync::{Notify, RwLock};
use tollgate_console::Console;
use tollgate_control::audit::Actor;
use tollgate_policy_host::{ChildUser, Rate};
use tollgate_provenance::TrustedKeys;

use crate::config::Config;
use crate::control::apps::admission::Admission;
use crate::control::apps::listeners::Listeners;
use crate::control::apps::peers::Peers;
use crate::control::apps::schemas::Schemas;
use crate::control::apps::sessions::Sessions;
use crate::control::apps::{heaps, names, turns};
use crate::control::changes::Changes;
use crate::control::in_force::InForce;
use crate::control::observe::exporters::Exporters;
use crate::control::observe::repeated::Repeated;
use crate::control::observe::taps::Taps;
use crate::control::placement::homes::Homes;
use crate::control::placement::running::Runtimes;
use crate::control::policies::attachments::Attachments;
use crate::control::policies::compile::Compilation;
use crate::control::policies::processes::Processes;
use crate::control::takeover::replacement::Replacement;
use crate::control::this_process::ThisProcess;

/// The state of the control plane.
pub(super) struct Control {
    pub(super) settings: InForce,
    pub(super) changes: Changes,
    pub(super) peers: Peers,
    pub(super) process: ThisProcess,
    pub(super) compilation: Compilation,
    /// The user of child processes if this one is root.
    pub(super) child_user: ChildUser,
    /// Keys of trusted signers of policies; empty: no signature is needed.
    pub(super) trusted: TrustedKeys,
    /// How fast this machine burns policies' fuel.
    pub(super) rate: Rate,
    pub(super) runtimes: Runtimes,
    /// The tenants' runtimes.
    pub(super) homes: Homes,
    pub(super) schemas: RefCell<Schemas>,
    pub(super) names: names::Names,
    pub(super) turns: turns::Turns,
    pub(super) attachments: RefCell<Attachments>,
    /// Notified when a token gets an end.
    pub(super) rotated: Notify,
    /// Processes of isolated policies.
    pub(super) processes: RefCell<Processes>,
    /// Repeated events, such as faults, that the audit log coalesces.
    pub(super) repeats: Repeated,
    /// Open sessions, and connections without a request so far.
    pub(super) sessions: Sessions,
    /// Held for reading during an application's request, for writing while another process takes
    /// over.
    pub(super) requests: RwLock<()>,
    /// Notified when waiting requests have to be given up because another process waits for them.
    pub(super) hurry: Notify,
    pub(super) admission: Rc<Admission>,
    pub(super) heaps: Rc<heaps::Heaps>,
    pub(super) listeners: Listeners,
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
