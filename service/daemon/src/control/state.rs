//! What the control plane knows, and how it speaks to the runtimes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::Child;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{MutexGuard, Notify, RwLock, oneshot};
use tollgate_console::Console;
use tollgate_control::audit::Actor;
use tollgate_control::{Repeats, Store, StoreError, audit};
use tollgate_engine::{SessionId, Status};
use tollgate_policy_host::{ChildUser, Rate};
use tollgate_provenance::TrustedKeys;
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::record::Record;
use tollgate_transport::LinkConfig;

use crate::config::Config;
use crate::control::admission::Admission;
use crate::control::compile::Compilation;
use crate::control::exporters::Exporters;
use crate::control::listeners::Doors;
use crate::control::packets::Socket;
use crate::control::policies::Attachments;
use crate::control::processes::Processes;
use crate::control::schemas::Schemas;
use crate::control::sessions::Connected;
use crate::control::taps::Taps;
use crate::control::{heaps, names, refusals, turns};
use crate::datapath::command::{Command, Event, Handle};
use crate::datapath::placement::Placement;
use crate::datapath::reply::Reply;
use crate::datapath::report::Report;
use crate::limits::COMMAND_TIMEOUT;
use crate::rdma::Rdma;
use crate::settings::Settings;
use tollgate_policy_chain::plan::PolicyChange;

/// A session that the control plane doesn't know by that name, and why it has ended.
type EndedEarly = ((usize, SessionId), String);

pub(super) type Threads = Vec<std::thread::JoinHandle<()>>;

/// What the control plane knows.
pub(super) struct Control {
    pub(super) settings: RefCell<Settings>,
    /// As links are made, but for what the settings say.
    pub(super) link: LinkConfig,
    pub(super) store: Store,
    pub(super) compilation: Compilation,
    /// What processes become that are started, if this one is root.
    pub(super) child_user: ChildUser,
    /// Who may have signed a policy; none: nobody needs to.
    pub(super) trusted: TrustedKeys,
    /// How fast this machine burns policies' fuel.
    pub(super) rate: Rate,
    pub(super) runtimes: RefCell<Vec<Handle>>,
    pub(super) threads: RefCell<Threads>,
    /// What runtimes tell of.
    pub(super) events: UnboundedSender<Event>,
    /// What runtimes that have gone had counted.
    pub(super) counted_before: RefCell<Report>,
    /// Where tenants live.
    pub(super) placement: RefCell<Placement>,
    /// Each tenant's gate: read while an application of its is served here, written while it moves.
    pub(super) gates: RefCell<HashMap<String, Arc<RwLock<()>>>>,
    /// While a tenant moves: sessions that have ended on the new runtime before it is known here what they are called there.
    pub(super) ended_early: RefCell<Option<Vec<EndedEarly>>>,
    /// For how long tenants that have moved stood still the last time.
    pub(super) pauses: RefCell<HashMap<String, Duration>>,
    pub(super) schemas: RefCell<Schemas>,
    pub(super) names: names::Names,
    pub(super) turns: turns::Turns,
    pub(super) attachments: RefCell<Attachments>,
    /// Told when a token ends at some time.
    pub(super) rotated: Notify,
    /// Where isolated policies run.
    pub(super) processes: RefCell<Processes>,
    /// One administrative change at a time.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Faults and the like, which the audit log has coalesced.
    pub(super) repeats: RefCell<Repeats<(audit::Event, serde_json::Value)>>,
    /// Open sessions, by runtime and number.
    pub(super) sessions: RefCell<HashMap<(usize, SessionId), Connected>>,
    /// Connections that have asked nothing yet.
    pub(super) strangers: RefCell<HashMap<RawFd, Rc<Socket>>>,
    /// Read while an application's request is carried out; written while another process takes over.
    pub(super) requests: RwLock<()>,
    /// Told when what waits for others is to be given up, because another process waits for it.
    pub(super) hurry: Notify,
    pub(super) admission: Rc<Admission>,
    pub(super) heaps: Rc<heaps::Heaps>,
    pub(super) doors: Doors,
    pub(super) rdma: Rdma,
    /// Why peers aren't accepted over RDMA, if they aren't.
    pub(super) not_listening: RefCell<Option<String>>,
    pub(super) listen: Option<SocketAddr>,
    /// What this process was started from.
    pub(super) program: PathBuf,
    /// When it began to count, by the monotonic clock.
    pub(super) began_ns: u64,
    /// When what there is of the state began to be kept, if it is in memory only.
    pub(super) state_since: String,
    /// Told once another process has taken over.
    pub(super) retired: Notify,
    pub(super) successor: RefCell<Option<Child>>,
    /// Why the last upgrade came to nothing, for those who only sent a signal.
    pub(super) refused_upgrade: RefCell<Option<String>>,
    /// Whom telemetry is sent to.
    pub(super) exporters: RefCell<Exporters>,
    /// Who watches calls.
    pub(super) taps: RefCell<Taps>,
    /// Rings when somebody begins to.
    pub(super) tapped: Notify,
    /// Who looks with a browser.
    pub(super) console: Rc<Console<Actor>>,
    /// Where runtimes put what single calls leave.
    pub(super) records: SyncSender<Record>,
}

impl Control {
    /// What holds now; it may be something else after the next wait.
    pub(super) fn config(&self) -> Rc<Config> {
        self.settings.borrow().in_force()
    }

    /// Whether it ends with the daemon.
    pub(super) fn state_is_in_memory(&self) -> bool {
        self.config().state.is_none()
    }

    /// Whether nobody can be a peer: there is no key, and this host's processes aren't trusted.
    pub(super) fn has_no_peers(&self) -> bool {
        self.link.key.is_none() && !self.link.unauthenticated_loopback
    }

    /// Where a tenant lives.
    pub(super) fn runtime_of(&self, tenant: &str) -> usize {
        self.placement.borrow().home(tenant)
    }

    /// How many runtimes there are.
    pub(super) fn runtimes(&self) -> usize {
        self.runtimes.borrow().len()
    }

    /// Sends a command to a runtime; one that has gone needs none.
    pub(super) fn send(&self, runtime: usize, command: Command) {
        if let Some(runtime) = self.runtimes.borrow().get(runtime) {
            runtime.send(command);
        }
    }

    /// Sends a command that is answered, and waits for the answer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        runtime: usize,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Status> {
        self.answered(self.begin(runtime, command)).await
    }

    /// Sends a command that is answered.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        runtime: usize,
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
                "the runtime dropped the request: it is ending",
            )),
            Err(_elapsed) => {
                let text = format!("no answer came within {} s", COMMAND_TIMEOUT.as_secs());
                Err(Status::new(Code::UNAVAILABLE, text))
            }
        }
    }

    /// Whoever administers changes something, alone.
    ///
    /// # Errors
    /// Another process is about to take over, and what is changed from then on is its.
    pub(super) async fn begin_change(&self) -> Result<MutexGuard<'_, ()>, Status> {
        if self.store.is_held() {
            return Err(refusals::store_failed(&StoreError::HandedOver));
        }
        Ok(self.changing.lock().await)
    }

    pub(super) async fn apply(&self, runtime: usize, change: PolicyChange) -> Result<(), Status> {
        let applied = self.ask(runtime, |done| Command::Policies { change, done });
        applied
            .await?
            .map_err(|refusal| Status::new(Code::FAILED_PRECONDITION, refusal))
    }
}

/// What a command is answered through, and where its answer comes.
pub(super) fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (sender, answer) = oneshot::channel();
    (Reply::new(|told| sender.send(told)), answer)
}
