//! The state of the control plane, and its commands to the runtimes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;

use tokio::sync::{Notify, RwLock, oneshot};
use tollgate_console::Console;
use tollgate_control::audit::Actor;
use tollgate_engine::Status;
use tollgate_policy_host::{ChildUser, Rate};
use tollgate_provenance::TrustedKeys;
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::record::Record;

use crate::config::Config;
use crate::control::apps::admission::Admission;
use crate::control::apps::listeners::Listeners;
use crate::control::apps::peers::Peers;
use crate::control::apps::schemas::Schemas;
use crate::control::apps::sessions::Sessions;
use crate::control::apps::{heaps, names, turns};
use crate::control::changes::Changes;
use crate::control::in_force::InForce;
use crate::control::inbox::EventSender;
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
use crate::limits::COMMAND_TIMEOUT;
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::command::Command;
use tollgate_datapath::reply::Reply;
use tollgate_policy_chain::plan::PolicyChange;

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
    /// Events of the runtimes.
    pub(super) events: EventSender,
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
    /// The runtimes' records of single calls.
    pub(super) records: SyncSender<Record>,
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

    /// A tenant's runtime.
    pub(super) fn runtime_of(&self, tenant: &str) -> RuntimeIndex {
        self.homes.of(tenant)
    }

    /// The number of runtimes.
    pub(super) fn runtimes(&self) -> usize {
        self.runtimes.count()
    }

    /// Sends a command to a runtime. A removed runtime needs none.
    pub(super) fn send(&self, runtime: RuntimeIndex, command: Command) {
        self.runtimes.send(runtime, command);
    }

    /// Sends a command, and waits for its answer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        runtime: RuntimeIndex,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Status> {
        self.answered(self.begin(runtime, command)).await
    }

    /// Sends a command that has an answer.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        runtime: RuntimeIndex,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> oneshot::Receiver<T> {
        let (reply, answer) = reply();
        self.send(runtime, command(reply));
        answer
    }

    /// Waits for the answer to a command.
    pub(super) async fn answered<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, Status> {
        match tokio::time::timeout(COMMAND_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_dropped)) => Err(Status::new(
                Code::UNAVAILABLE,
                "the runtime dropped the request: it is ending, or has too many others",
            )),
            Err(_elapsed) => {
                let text = format!(
                    "the runtime didn't answer within {} s",
                    COMMAND_TIMEOUT.as_secs()
                );
                Err(Status::new(Code::UNAVAILABLE, text))
            }
        }
    }

    pub(super) async fn apply(
        &self,
        runtime: RuntimeIndex,
        change: PolicyChange,
    ) -> Result<(), Status> {
        let applied = self.ask(runtime, |done| Command::Policies { change, done });
        applied
            .await?
            .map_err(|refusal| Status::new(Code::FAILED_PRECONDITION, refusal.to_string()))
    }
}

/// What a command is answered through, and where its answer comes.
pub(super) fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (sender, answer) = oneshot::channel();
    (Reply::new(|told| sender.send(told)), answer)
}
