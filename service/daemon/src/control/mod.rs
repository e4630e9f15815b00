//! The control plane: sessions, bindings, tenants, policies and status, on one thread beside the datapath.
//!
//! ```text
//!   Unix socket ── connection.rs ──┬─ sessions and bindings ──▶ Command ──▶ the tenant's runtime
//!                                  └─ admin.rs ──┬─ lifecycle/: attachments, and what becomes of their versions
//!                                                ├─ settings.rs: what changes how the runtimes work
//!                                                ├─ report.rs, replay.rs: status, audit log, comparisons
//!                                                └─ console.rs: the same for whoever looks with a browser
//!   TCP listener ── Accept ──▶ a runtime (RDMA: by_rdma.rs)   runtime ── Event ──▶ events (below)
//! ```
//!
//! One tokio thread; what takes long (compiling, configuring a policy) runs on its blocking threads. Nothing here is ever
//! waited for by the datapath.

use crate::datapath::events::PolicyEvent;
mod admin;
mod admission;
mod apart;
mod asks;
#[cfg(feature = "rdma")]
mod by_rdma;
mod child_user;
mod compile;
mod connection;
mod console;
mod doors;
mod ending;
mod explain;
mod fitting;
mod given;
mod heaps;
mod key_file;
mod lifecycle;
mod live;
mod lives;
mod misfits;
mod names;
mod origin;
mod own_user;
mod placing;
mod policies;
mod prefetch;
mod repeats;
mod replay;
mod report;
mod resizing;
mod schemas;
mod settings;
mod socket_file;
mod state_directory;
mod supervisor;
mod takeover;
mod telemetry;
#[cfg(test)]
mod tests;
mod turns;
mod watching;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::PathBuf;
use std::process::Child;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime};

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;
use tokio::sync::{MutexGuard, Notify, RwLock, mpsc, oneshot};
use tollgate_console::Console;
use tollgate_control::audit::Actor;
use tollgate_control::{Repeats, Store, StoreError, audit};
use tollgate_engine::{SessionId, Status};
use tollgate_policy_host::{
    ChildUser, Compiler, CompilerConfig, Host, HostConfig, Rate, daemon as confinement,
};
use tollgate_provenance::TrustedKeys;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::limits::MAX_RECORDS;
use tollgate_telemetry::record::Record;
use tollgate_transport::{LinkConfig, is_loopback, names_one_host};

use crate::config::Config;
use crate::control::admission::Admission;
use crate::control::compile::Compilation;
use crate::control::connection::{Connected, Socket};
use crate::control::doors::Doors;
use crate::control::policies::Attachments;
use crate::control::schemas::Schemas;
use crate::control::socket_file::{Access, SocketFile};
use crate::control::takeover::Predecessor;
pub use crate::control::takeover::{ARGUMENT as TAKE_OVER, refuse as refuse_take_over};
use crate::control::turns::Turn;
use crate::datapath::plan::PolicyChange;
use crate::datapath::report::Report;
use crate::datapath::{Command, Event, Handle, Options, Placement, spawn};
use crate::limits::{COMMAND_TIMEOUT, MAX_TENANT_ENDPOINTS, OPERATORS_THREADS, TURNS};
use crate::lines::log_limited;
use crate::rdma::Rdma;
use crate::settings::Settings;

/// Why a daemon doesn't start, or stops: a sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DaemonError(String);

fn confined(why: String) -> DaemonError {
    failed("this process can't be confined")(&why)
}

fn failed(doing: &str) -> impl Fn(&dyn std::fmt::Display) -> DaemonError + '_ {
    move |error| DaemonError(format!("{doing}: {error}"))
}

/// Lets the reactor watch what only lends its descriptor.
struct Watched<T: AsFd>(T);

impl<T: AsFd> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Has the reactor watch a descriptor.
#[allow(
    deprecated,
    reason = "tokio's replacement is unsafe, for types that could close or swap their descriptor; `Watched` can't"
)]
fn watch<T: AsFd>(inner: T) -> std::io::Result<AsyncFd<Watched<T>>> {
    AsyncFd::new(Watched(inner))
}

/// A session that the control plane doesn't know by that name, and why it has ended.
type EndedEarly = ((usize, SessionId), String);

/// What the control plane knows.
struct Control {
    settings: RefCell<Settings>,
    /// As links are made, but for what the settings say.
    link: LinkConfig,
    store: Store,
    compilation: Compilation,
    /// What processes become that are started, if this one is root.
    child_user: ChildUser,
    /// Who may have signed a policy; none: nobody needs to.
    trusted: TrustedKeys,
    /// How fast this machine burns policies' fuel.
    rate: Rate,
    runtimes: RefCell<Vec<Handle>>,
    threads: RefCell<Threads>,
    /// What runtimes tell of.
    events: mpsc::UnboundedSender<Event>,
    /// What runtimes that have gone had counted.
    counted_before: RefCell<Report>,
    /// Where tenants live.
    placement: RefCell<Placement>,
    /// Each tenant's gate: read while an application of its is served here, written while it moves.
    gates: RefCell<HashMap<String, Arc<RwLock<()>>>>,
    /// While a tenant moves: sessions that have ended on the new runtime before it is known here what they are called there.
    ended_early: RefCell<Option<Vec<EndedEarly>>>,
    /// For how long tenants that have moved stood still the last time.
    pauses: RefCell<HashMap<String, Duration>>,
    schemas: RefCell<Schemas>,
    names: names::Names,
    turns: turns::Turns,
    attachments: RefCell<Attachments>,
    /// Told when a token ends at some time.
    rotated: Notify,
    /// Where isolated policies run.
    processes: RefCell<apart::Processes>,
    /// One administrative change at a time.
    changing: tokio::sync::Mutex<()>,
    /// Faults and the like, which the audit log has coalesced.
    repeats: RefCell<Repeats<(audit::Event, serde_json::Value)>>,
    /// Open sessions, by runtime and number.
    sessions: RefCell<HashMap<(usize, SessionId), Connected>>,
    /// Connections that have asked nothing yet.
    strangers: RefCell<HashMap<RawFd, Rc<Socket>>>,
    /// Read while an application's request is carried out; written while another process takes over.
    requests: RwLock<()>,
    /// Told when what waits for others is to be given up, because another process waits for it.
    hurry: Notify,
    admission: Rc<Admission>,
    heaps: Rc<heaps::Heaps>,
    doors: Doors,
    rdma: Rdma,
    /// Why peers aren't accepted over RDMA, if they aren't.
    not_listening: RefCell<Option<String>>,
    listen: Option<SocketAddr>,
    /// What this process was started from.
    program: PathBuf,
    /// When it began to count, by the monotonic clock.
    began_ns: u64,
    /// When what there is of the state began to be kept, if it is in memory only.
    state_since: String,
    /// Told once another process has taken over.
    retired: Notify,
    successor: RefCell<Option<Child>>,
    /// Why the last upgrade came to nothing, for those who only sent a signal.
    refused_upgrade: RefCell<Option<String>>,
    /// Whom telemetry is sent to.
    exporters: RefCell<telemetry::Exporters>,
    /// Who watches calls.
    taps: RefCell<watching::Taps>,
    /// Rings when somebody begins to.
    tapped: Notify,
    /// Who looks with a browser.
    console: Rc<Console<Actor>>,
    /// Where runtimes put what single calls leave.
    records: SyncSender<Record>,
}

/// As many descriptors as this process may have: a session takes five, and who starts a daemon often leaves it 1,024 in all.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Then it stays as it is, and what finds none is refused.
    let _as_it_was = setrlimit(Resource::Nofile, limit);
}

/// Runs a daemon until SIGINT or SIGTERM, or until another process has taken over. Prints one line to standard output once it
/// serves. If it is to take over itself, from whom is at the other end of standard input.
pub fn run(config: Config, takes_over: bool) -> Result<(), DaemonError> {
    raise_descriptors();
    confinement::give_up_privileges().map_err(confined)?;
    let reactor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Each worker has one that waits for it, and each exporter one that looks its endpoint up: where no name server answers, all of them wait.
        .max_blocking_threads(
            TURNS + OPERATORS_THREADS + config.compile.workers + 1 + MAX_TENANT_ENDPOINTS,
        )
        .build()
        .map_err(|error| failed("the control plane can't start")(&error))?;
    tokio::task::LocalSet::new().block_on(&reactor, async {
        if !takes_over {
            return serve(config, None).await;
        }
        let predecessor = Predecessor::on_stdin()?;
        let served = serve(config, Some(&predecessor)).await;
        if let Err(error) = &served {
            predecessor.refuse(error).await;
        }
        served
    })
}

async fn serve(config: Config, predecessor: Option<&Predecessor>) -> Result<(), DaemonError> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| failed("this program has no path")(&error))?;
    let (opening, listeners) = match predecessor {
        Some(predecessor) => {
            let estate = predecessor.estate(&config).await?;
            if !predecessor.is_filtered() {
                forbid_system_calls();
            }
            let listeners = (estate.applications, estate.peers);
            (Opening::Done(Box::new(estate.store)), Some(listeners))
        }
        None => {
            forbid_system_calls();
            (Opening::begin(&config)?, None)
        }
    };
    let host = HostConfig {
        instances: config.policies.instances,
        ..HostConfig::default()
    };
    let host = Host::new(host).map_err(|error| failed("the policy host can't start")(&error))?;
    confinement::hide().map_err(confined)?;
    let rate = host.calibrated();
    let store = opening.end()?;
    if let Some(sentence) = store.restored() {
        tracing::error!("{sentence}");
    }
    let settings = Settings::restored(config, &store)?;
    let config = settings.in_force();
    let child_user = child_user::configured(&config)?;
    let compiler = CompilerConfig {
        user: child_user,
        ..config.compile.compiler(config.state.as_deref())
    };
    let compiler = Compiler::new(host, compiler)
        .map_err(|error| failed("policies can't be compiled")(&error))?;
    let compilation = Compilation::new(compiler, config.compile.workers);
    let trusted = origin::trusted_keys(&config)?;
    let link = link_config(&config)?;
    if link.key.is_none() && !link.unauthenticated_loopback {
        let wanted =
            config.listen.is_some() || !config.peers.is_empty() || config.link.open_targets;
        if wanted {
            tracing::warn!(
                "without a key this daemon has no peers: it refuses who connects, and dials nobody. --psk-file names a key that all daemons have"
            );
        }
    }
    let rdma = Rdma::open(&config.rdma);
    if let Some(why) = rdma.unavailable() {
        tracing::info!("links are carried by TCP: {why}");
    }
    let access = Access::configured(&config)?;
    let (applications, peers, socket) = match listeners {
        Some((applications, peers)) => {
            let socket = SocketFile::at(config.socket_path());
            (applications, peers, socket)
        }
        None => {
            let (applications, socket) = SocketFile::listen(&config, &access)?;
            (applications, None, socket)
        }
    };
    let peers = match (peers, config.listen) {
        (None, Some(address)) => Some(listen_tcp(address)?),
        (peers, _) => peers,
    };
    let doors = Doors::new(applications, peers);
    let doors = doors.map_err(|error| failed("the listeners can't be watched")(&error))?;
    let (events, inbox) = mpsc::unbounded_channel();
    let (records, left) = std::sync::mpsc::sync_channel(MAX_RECORDS);
    let compiler = crate::machine_code::start()
        .map_err(|error| failed("the compile thread can't start")(&error))?;
    let count = predecessor.map_or(config.runtimes(), Predecessor::runtimes);
    let told = (&events, &records);
    let (runtimes, threads) = start_runtimes(&config, (rate, count), (&link, &rdma), told)?;
    let placement = placing::restored(&store, runtimes.len())?;
    let control = Rc::new(Control {
        settings: RefCell::new(settings),
        link,
        store,
        compilation,
        child_user,
        trusted,
        rate,
        runtimes: RefCell::new(runtimes),
        threads: RefCell::new(threads),
        events,
        counted_before: RefCell::default(),
        placement: RefCell::new(placement),
        gates: RefCell::default(),
        ended_early: RefCell::default(),
        pauses: RefCell::default(),
        schemas: RefCell::new(Schemas::new(compiler)),
        names: names::Names::default(),
        turns: turns::Turns::default(),
        attachments: RefCell::default(),
        rotated: Notify::new(),
        processes: RefCell::default(),
        changing: tokio::sync::Mutex::new(()),
        repeats: RefCell::default(),
        sessions: RefCell::default(),
        strangers: RefCell::default(),
        requests: RwLock::default(),
        hurry: Notify::new(),
        admission: Admission::new(getrlimit(Resource::Nofile).current, count),
        heaps: Rc::default(),
        listen: doors.listen(),
        doors,
        rdma,
        not_listening: RefCell::default(),
        program,
        began_ns: now_ns(),
        state_since: predecessor
            .and_then(Predecessor::state_since)
            .unwrap_or_else(|| audit::rfc3339(SystemTime::now())),
        retired: Notify::new(),
        successor: RefCell::default(),
        refused_upgrade: RefCell::default(),
        exporters: RefCell::default(),
        taps: RefCell::default(),
        tapped: Notify::new(),
        console: Rc::default(),
        records,
    });
    let exporters = telemetry::Exporters::start(&control)?;
    control.exporters.replace(exporters);
    control
        .tell_placement()
        .await
        .map_err(|status| failed("a runtime doesn't work")(&status.message))?;
    control.restore().await?;
    prefetch::configured(&control).await?;
    control.each_runtime_answers().await?;
    tokio::task::spawn_local(Rc::clone(&control).follow_events(inbox));
    tokio::task::spawn_local(Rc::clone(&control).follow_repeats());
    tokio::task::spawn_local(Rc::clone(&control).follow_processes());
    tokio::task::spawn_local(Rc::clone(&control).follow_tokens());
    #[cfg(feature = "rdma")]
    tokio::task::spawn_local(by_rdma::sweep(Rc::clone(&control)));
    tokio::task::spawn_local(telemetry::follow_scrapes(Rc::clone(&control)));
    tokio::task::spawn_local(telemetry::follow_metrics(Rc::clone(&control)));
    tokio::task::spawn_local(telemetry::follow_records(Rc::clone(&control), left));
    takeover::follow_signals(Rc::clone(&control)).await?;
    match predecessor {
        Some(predecessor) => {
            predecessor.take_over(&control).await?;
            socket.admit(&access);
            control.resize_as_configured().await;
        }
        None => control.doors.open(&control),
    }
    if control.state_is_in_memory() {
        tracing::warn!(
            "there is no state directory (--state): tenants, policies and attachments are in memory only and end with the daemon"
        );
    }
    let shown = control
        .listen
        .map_or_else(|| "none".to_owned(), |at| at.to_string());
    let ready = format!(
        "tollgated {} ready socket={} listen={shown}\n",
        config.name,
        config.socket_path().display()
    );
    if let Err(error) = crate::output::print(&ready) {
        tracing::warn!(%error, "standard output can't be written");
    }
    if predecessor.is_none_or(|before| !before.tells_supervisor()) {
        supervisor::serves();
    }
    let is_replaced = until_told_to_stop(&control).await?;
    if !is_replaced {
        supervisor::stops();
    }
    control.compilation.stop();
    for runtime in &*control.runtimes.borrow() {
        runtime.send(Command::Stop);
    }
    for thread in control.threads.take() {
        if thread.join().is_err() {
            return Err(DaemonError(
                "a runtime panicked; this is a bug of the daemon".to_owned(),
            ));
        }
    }
    if !is_replaced {
        socket.remove();
    }
    match control.successor.take() {
        Some(successor) if std::process::id() == 1 => takeover::stand_in(successor).await,
        _ => Ok(()),
    }
}

fn forbid_system_calls() {
    if let Err(why) = confinement::forbid_system_calls() {
        tracing::warn!("this daemon's system calls can't be confined: {why}");
    }
}

/// The store, or a thread that opens it: that waits for the disk while the policy host is started, which takes the processor.
enum Opening {
    Done(Box<Store>),
    Begun(std::thread::JoinHandle<Result<Store, StoreError>>),
}

impl Opening {
    fn begin(config: &Config) -> Result<Opening, DaemonError> {
        let state = config.state.clone();
        if let Some(directory) = &state {
            state_directory::check(directory)?;
        }
        let open = move || match state {
            Some(directory) => Store::open(&directory),
            None => Store::in_memory(),
        };
        let thread = std::thread::Builder::new().name("store".to_owned());
        let begun = thread.spawn(open);
        let begun = begun.map_err(|error| failed("the store can't be opened")(&error))?;
        Ok(Opening::Begun(begun))
    }

    fn end(self) -> Result<Store, DaemonError> {
        let thread = match self {
            Opening::Done(store) => return Ok(*store),
            Opening::Begun(thread) => thread,
        };
        let opened = thread.join();
        let opened = opened.map_err(|_| {
            DaemonError("opening the store panicked; this is a bug of the daemon".to_owned())
        })?;
        opened.map_err(|error| failed("the store can't be opened")(&error))
    }
}

fn link_config(config: &Config) -> Result<LinkConfig, DaemonError> {
    let mut link = LinkConfig::new(&config.name);
    link.unauthenticated_loopback = config.link.unauthenticated_loopback;
    link.only_names = !config.link.advertise.is_empty();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = Some(host.trim().to_owned()).filter(|host| names_one_host(host));
    let names = host
        .into_iter()
        .chain(config.link.advertise.iter().cloned());
    link.names = names.collect();
    if let Some(path) = &config.psk_file {
        link.key = Some(key_file::read(path)?);
    }
    match (&link.key, config.listen) {
        (None, Some(address)) if !is_loopback(&address) => Err(DaemonError(format!(
            "listening for peers on {address} takes a key, because whoever reaches a daemon without one may speak for any tenant: \
             write one with `openssl rand -base64 32` into a file for --psk-file, the same for all daemons, or listen on 127.0.0.1"
        ))),
        _ => Ok(link),
    }
}

fn listen_tcp(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| failed(&format!("can't listen for peers on {address}"))(&error))
}

type Threads = Vec<std::thread::JoinHandle<()>>;

fn start_runtimes(
    config: &Config,
    (rate, count): (Rate, usize),
    links: (&LinkConfig, &Rdma),
    told: (&mpsc::UnboundedSender<Event>, &SyncSender<Record>),
) -> Result<(Vec<Handle>, Threads), DaemonError> {
    let (mut handles, mut threads) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (handle, thread) = start_runtime(config, (rate, index), links, told)?;
        handles.push(handle);
        threads.push(thread);
    }
    Ok((handles, threads))
}

fn start_runtime(
    config: &Config,
    (rate, index): (Rate, usize),
    (link, rdma): (&LinkConfig, &Rdma),
    (events, records): (&mpsc::UnboundedSender<Event>, &SyncSender<Record>),
) -> Result<(Handle, std::thread::JoinHandle<()>), DaemonError> {
    let options = Options {
        index,
        birth: placing::birth()?,
        tuning: settings::tuning(config, index, link.clone()),
        rate,
        rdma: rdma.clone(),
        records: records.clone(),
    };
    let started = spawn(options, events.clone());
    started.map_err(|error| failed("a runtime can't start")(&error))
}

/// Whether another process has taken over.
async fn until_told_to_stop(control: &Control) -> Result<bool, DaemonError> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch = |kind| signal(kind).map_err(|error| failed("signals can't be watched")(&error));
    let (mut interrupt, mut terminate) = (
        watch(SignalKind::interrupt())?,
        watch(SignalKind::terminate())?,
    );
    tokio::select! {
        _ = interrupt.recv() => {},
        _ = terminate.recv() => {},
        () = control.retired.notified() => return Ok(true),
    }
    // Not while runtimes wait to hear who goes on.
    tokio::select! {
        _nobody_takes_over = control.requests.read() => Ok(false),
        () = control.retired.notified() => Ok(true),
    }
}

impl Control {
    /// What holds now; it may be something else after the next wait.
    fn config(&self) -> Rc<Config> {
        self.settings.borrow().in_force()
    }

    /// Whether it ends with the daemon.
    fn state_is_in_memory(&self) -> bool {
        self.config().state.is_none()
    }

    /// Whether nobody can be a peer: there is no key, and this host's processes aren't trusted.
    fn has_no_peers(&self) -> bool {
        self.link.key.is_none() && !self.link.unauthenticated_loopback
    }

    async fn follow_events(self: Rc<Self>, mut inbox: mpsc::UnboundedReceiver<Event>) {
        while let Some(event) = inbox.recv().await {
            match event {
                Event::SessionEnded {
                    runtime,
                    session,
                    reason,
                } => {
                    let sessions = self.sessions.borrow();
                    let connected = sessions.get(&(runtime, session));
                    let tenant = connected.map(|at| at.tenant.clone()).unwrap_or_default();
                    drop(sessions);
                    log_limited!(
                        warn,
                        "session ended",
                        &tenant,
                        "session {} was ended: {reason}",
                        session.0
                    );
                    self.session_ended((runtime, session), reason);
                }
                Event::Compare {
                    runtime,
                    ticket,
                    binding,
                    tenant,
                    ours,
                    theirs,
                } => {
                    let control = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        let turn = control.turns.of(&tenant).await;
                        let turn = turn.unwrap_or_else(|_ending| Turn::operators());
                        let matches = schemas::compare(&turn, &ours, theirs).await;
                        let compared = Command::Compared {
                            ticket,
                            binding,
                            matches,
                        };
                        control.send(runtime, compared);
                    });
                }
                Event::LookUp { tenant, peer } => {
                    let control = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        let found = control.names.find_again(&tenant, &peer).await;
                        let home = control.runtime_of(&tenant);
                        let found = Command::Found {
                            tenant,
                            peer,
                            found,
                        };
                        control.send(home, found);
                    });
                }
                Event::Policies(event) => self.policy_event(event),
            }
        }
    }

    fn policy_event(self: &Rc<Self>, event: PolicyEvent) {
        match event {
            PolicyEvent::Faulted {
                id,
                version,
                reason,
            } => {
                tokio::task::spawn_local(Rc::clone(self).faulted(id, version, reason));
            }
            PolicyEvent::CandidateFailed {
                id,
                version,
                reason,
            } => {
                tokio::task::spawn_local(Rc::clone(self).trial_failed(id, version, reason));
            }
            PolicyEvent::ProcessEnded { id, reason } => self.process_ended(id, &reason),
            PolicyEvent::Throttled { tenant, refused } => {
                tracing::warn!(
                    "{refused} calls of tenant {tenant} were refused: its policies have used up their CPU share"
                );
                let details = serde_json::json!({"tenant": &*tenant, "refused": refused});
                self.happened(audit::Event::Throttled, &tenant, details);
            }
            PolicyEvent::Logged {
                label,
                lines,
                dropped,
            } => {
                for line in lines {
                    // Quoted: without quotes it could hold what looks like fields.
                    tracing::info!(policy = label, "{:?}", line.to_string());
                }
                if dropped > 0 {
                    tracing::info!(policy = label, "{dropped} more lines were dropped");
                }
            }
        }
    }

    fn session_ended(&self, at: (usize, SessionId), reason: String) {
        let connected = self.sessions.borrow_mut().remove(&at);
        match (connected, &mut *self.ended_early.borrow_mut()) {
            (Some(connection), _) => {
                let text = format!("the session was ended: {reason}");
                connection.end(Status::new(Code::FAILED_PRECONDITION, text));
            }
            (None, Some(early)) => early.push((at, reason)),
            (None, None) => {}
        }
    }

    /// Who doesn't answer now would be found by the first application.
    async fn each_runtime_answers(&self) -> Result<(), DaemonError> {
        for runtime in 0..self.runtimes() {
            let answer = self.ask(runtime, |reply| Command::Report { reply }).await;
            answer.map_err(|status| failed("a runtime doesn't work")(&status.message))?;
        }
        Ok(())
    }

    /// Where a tenant lives.
    fn runtime_of(&self, tenant: &str) -> usize {
        self.placement.borrow().home(tenant)
    }

    /// How many runtimes there are.
    fn runtimes(&self) -> usize {
        self.runtimes.borrow().len()
    }

    /// Sends a command to a runtime; one that has gone needs none.
    fn send(&self, runtime: usize, command: Command) {
        if let Some(runtime) = self.runtimes.borrow().get(runtime) {
            runtime.send(command);
        }
    }

    /// Sends a command that is answered, and waits for the answer.
    async fn ask<T>(
        &self,
        runtime: usize,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Status> {
        self.answered(self.begin(runtime, command)).await
    }

    /// Sends a command that is answered.
    fn begin<T>(
        &self,
        runtime: usize,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        self.send(runtime, command(reply));
        answer
    }

    /// Waits for the answer to a command.
    async fn answered<T>(&self, answer: oneshot::Receiver<T>) -> Result<T, Status> {
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
    async fn begin_change(&self) -> Result<MutexGuard<'_, ()>, Status> {
        if self.store.is_held() {
            return Err(admin::store_failed(&StoreError::HandedOver));
        }
        Ok(self.changing.lock().await)
    }

    async fn apply(&self, runtime: usize, change: PolicyChange) -> Result<(), Status> {
        let applied = self.ask(runtime, |done| Command::Policies { change, done });
        applied
            .await?
            .map_err(|refusal| Status::new(Code::FAILED_PRECONDITION, refusal))
    }
}
