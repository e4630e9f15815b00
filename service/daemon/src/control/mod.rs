//! The control plane: sessions, bindings, tenants, policies and status, on one thread beside the datapath.
//!
//! ```text
//!   Unix socket ── connection.rs ──┬─ sessions and bindings ──▶ Command ──▶ the tenant's runtime
//!                                  └─ admin.rs ──┬─ lifecycle/: attachments, and what becomes of their versions
//!                                                └─ report.rs, replay.rs: status, audit log, comparisons
//!   TCP listener ── Accept ──▶ a runtime                 runtime ── Event ──▶ events (below)
//! ```
//!
//! One tokio thread; what takes long (compiling, configuring a policy) runs on its blocking threads. Nothing here is ever
//! waited for by the datapath.

mod admin;
mod apart;
mod compile;
mod connection;
mod lifecycle;
mod lives;
mod origin;
mod policies;
mod prefetch;
mod repeats;
mod replay;
mod report;
mod schemas;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tollgate_control::{Repeats, Store, audit};
use tollgate_engine::{SessionId, Status};
use tollgate_policy_host::{Compiler, Host, HostConfig, Rate};
use tollgate_provenance::TrustedKeys;
use tollgate_shm_abi::control::ControlListener;
use tollgate_shm_abi::status::Code;
use tollgate_transport::{LinkConfig, PresharedKey};

use crate::config::Config;
use crate::control::compile::Compilation;
use crate::control::policies::Attachments;
use crate::control::schemas::Schemas;
use crate::datapath::command::PolicyChange;
use crate::datapath::{Command, Event, Handle, Options, runtime_of, spawn};
use crate::limits::{COMMAND_TIMEOUT, MAX_CONNECTIONS};

/// Why a daemon doesn't start, or stops: a sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DaemonError(String);

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

/// What the control plane knows.
struct Control {
    config: Config,
    store: Store,
    compilation: Compilation,
    /// Who may have signed a policy; none: nobody needs to.
    trusted: TrustedKeys,
    /// How fast this machine burns policies' fuel.
    rate: Rate,
    runtimes: Vec<Handle>,
    schemas: RefCell<Schemas>,
    attachments: RefCell<Attachments>,
    /// Where isolated policies run.
    processes: RefCell<apart::Processes>,
    /// One administrative change at a time.
    changing: tokio::sync::Mutex<()>,
    /// Faults and the like, which the audit log has coalesced.
    repeats: RefCell<Repeats<(audit::Event, serde_json::Value)>>,
    /// Where to tell a session's connection that the runtime ended it.
    sessions: RefCell<HashMap<(usize, SessionId), oneshot::Sender<String>>>,
    /// Has as many other owners as there are sessions, over all runtimes.
    each_session: Rc<()>,
    connections: RefCell<usize>,
    listen: Option<std::net::SocketAddr>,
}

/// As many descriptors as this process may have: a session takes three, and who starts a daemon often leaves it 1,024 in all.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Then it stays as it is, and what finds none is refused.
    let _as_it_was = setrlimit(Resource::Nofile, limit);
}

/// Runs a daemon until SIGINT or SIGTERM. Prints one line to standard output once it serves.
pub fn run(config: Config) -> Result<(), DaemonError> {
    raise_descriptors();
    let reactor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Each worker has one that waits for it; two for what is short.
        .max_blocking_threads(2 + config.compile.workers)
        .build()
        .map_err(|error| failed("the control plane can't start")(&error))?;
    tokio::task::LocalSet::new().block_on(&reactor, serve(config))
}

async fn serve(config: Config) -> Result<(), DaemonError> {
    let store = match &config.state {
        Some(directory) => Store::open(directory),
        None => Store::in_memory(),
    };
    let store = store.map_err(|error| failed("the store can't be opened")(&error))?;
    let host = HostConfig {
        instances: config.policies.instances,
        ..HostConfig::default()
    };
    let host = Host::new(host).map_err(|error| failed("the policy host can't start")(&error))?;
    let rate = host.calibrated();
    let compiler = Compiler::new(host, config.compile.compiler(config.state.as_deref()))
        .map_err(|error| failed("policies can't be compiled")(&error))?;
    let compilation = Compilation::new(compiler, config.compile.workers);
    let trusted = origin::trusted_keys(&config)?;
    let link = link_config(&config)?;
    let socket = config.socket_path();
    let sessions = listen_unix(&socket)?;
    let peers =
        match config.listen {
            Some(address) => {
                let bound = TcpListener::bind(address).await;
                Some(bound.map_err(|error| {
                    failed(&format!("can't listen for peers on {address}"))(&error)
                })?)
            }
            None => None,
        };
    let listen = peers
        .as_ref()
        .and_then(|listener| listener.local_addr().ok());
    let (events, inbox) = mpsc::unbounded_channel();
    let compiler = crate::machine_code::start()
        .map_err(|error| failed("the compile thread can't start")(&error))?;
    let (runtimes, threads) = start_runtimes(&config, rate, &link, &events)?;
    let control = Rc::new(Control {
        config,
        store,
        compilation,
        trusted,
        rate,
        runtimes,
        schemas: RefCell::new(Schemas::new(compiler)),
        attachments: RefCell::default(),
        processes: RefCell::default(),
        changing: tokio::sync::Mutex::new(()),
        repeats: RefCell::default(),
        sessions: RefCell::default(),
        each_session: Rc::default(),
        connections: RefCell::new(0),
        listen,
    });
    control.restore().await?;
    prefetch::configured(&control).await?;
    tokio::task::spawn_local(Rc::clone(&control).follow_events(inbox));
    tokio::task::spawn_local(Rc::clone(&control).follow_repeats());
    tokio::task::spawn_local(Rc::clone(&control).follow_processes());
    tokio::task::spawn_local(Rc::clone(&control).accept_applications(sessions));
    if let Some(peers) = peers {
        tokio::task::spawn_local(Rc::clone(&control).accept_peers(peers));
    }
    let shown = listen.map_or_else(|| "none".to_owned(), |address| address.to_string());
    println!(
        "tollgated {} ready socket={} listen={shown}",
        control.config.name,
        socket.display()
    );
    until_told_to_stop().await?;
    control.compilation.stop();
    for runtime in &control.runtimes {
        runtime.send(Command::Stop);
    }
    for thread in threads {
        if thread.join().is_err() {
            return Err(DaemonError(
                "a runtime panicked; this is a bug of the daemon".to_owned(),
            ));
        }
    }
    let _already_gone = std::fs::remove_file(&socket);
    Ok(())
}

fn link_config(config: &Config) -> Result<LinkConfig, DaemonError> {
    let mut link = LinkConfig::new(&config.name);
    if let Some(path) = &config.psk_file {
        let doing = format!("the key in {} can't be used", path.display());
        let secret = std::fs::read(path).map_err(|error| failed(&doing)(&error))?;
        link.key =
            Some(PresharedKey::new(secret.trim_ascii()).map_err(|error| failed(&doing)(&error))?);
    }
    Ok(link)
}

fn listen_unix(path: &std::path::Path) -> Result<AsyncFd<Watched<ControlListener>>, DaemonError> {
    let doing = format!("can't listen on {}", path.display());
    if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(|error| failed(&doing)(&error))?;
    }
    let text = path
        .to_str()
        .ok_or_else(|| DaemonError(format!("{doing}: the path isn't UTF-8")))?;
    let listener = ControlListener::bind(text).map_err(|error| failed(&doing)(&error))?;
    watch(listener).map_err(|error| failed(&doing)(&error))
}

type Threads = Vec<std::thread::JoinHandle<()>>;

fn start_runtimes(
    config: &Config,
    rate: Rate,
    link: &LinkConfig,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(Vec<Handle>, Threads), DaemonError> {
    let siblings = Arc::new(OnceLock::new());
    let (mut handles, mut threads) = (Vec::new(), Vec::new());
    for index in 0..config.runtimes() {
        let options = Options {
            index,
            runtimes: config.runtimes(),
            core: config.cores.get(index).copied(),
            spin: config.spin(),
            scheduling: config.scheduling,
            wait_target: config.wait_target(),
            link: link.clone(),
            cpu_share_percent: config.policies.cpu_share_percent,
            rate,
        };
        let started = spawn(options, events.clone(), Arc::clone(&siblings));
        let (handle, thread) = started.map_err(|error| failed("a runtime can't start")(&error))?;
        handles.push(handle);
        threads.push(thread);
    }
    // Set once, here: the threads only read it when a link moves.
    let _set = siblings.set(handles.clone());
    Ok((handles, threads))
}

async fn until_told_to_stop() -> Result<(), DaemonError> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch = |kind| signal(kind).map_err(|error| failed("signals can't be watched")(&error));
    let (mut interrupt, mut terminate) = (
        watch(SignalKind::interrupt())?,
        watch(SignalKind::terminate())?,
    );
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

impl Control {
    async fn accept_applications(self: Rc<Self>, listener: AsyncFd<Watched<ControlListener>>) {
        loop {
            let Ok(mut ready) = listener.readable().await else {
                return;
            };
            let accepted =
                ready.try_io(|inner| inner.get_ref().0.accept().map_err(std::io::Error::from));
            match accepted {
                Ok(Ok(_)) if *self.connections.borrow() >= MAX_CONNECTIONS => {}
                Ok(Ok(socket)) => {
                    *self.connections.borrow_mut() += 1;
                    let control = Rc::clone(&self);
                    tokio::task::spawn_local(async move {
                        connection::serve(&control, socket).await;
                        *control.connections.borrow_mut() -= 1;
                    });
                }
                Ok(Err(error)) => {
                    // Out of descriptors, say: others may close some.
                    tracing::warn!("an application's connection can't be accepted: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                Err(_would_block) => {}
            }
        }
    }

    async fn accept_peers(self: Rc<Self>, listener: TcpListener) {
        let mut turn = 0;
        loop {
            match listener
                .accept()
                .await
                .and_then(|(stream, _)| stream.into_std())
            {
                Ok(stream) => {
                    // Which tenant it is for is known after its first BIND; the link moves then.
                    turn = (turn + 1) % self.runtimes.len();
                    self.runtimes[turn].send(Command::Accept { stream });
                }
                Err(error) => {
                    tracing::warn!("a peer's connection can't be accepted: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn follow_events(self: Rc<Self>, mut inbox: mpsc::UnboundedReceiver<Event>) {
        while let Some(event) = inbox.recv().await {
            match event {
                Event::SessionEnded {
                    runtime,
                    session,
                    reason,
                } => {
                    tracing::warn!("session {} was ended: {reason}", session.0);
                    if let Some(connection) = self.sessions.borrow_mut().remove(&(runtime, session))
                    {
                        let _connection_gone = connection.send(reason);
                    }
                }
                Event::Compare {
                    runtime,
                    ticket,
                    binding,
                    ours,
                    theirs,
                } => {
                    let runtime = self.runtimes[runtime].clone();
                    tokio::task::spawn_local(async move {
                        let matches = schemas::compare(&ours, theirs).await;
                        runtime.send(Command::Compared {
                            ticket,
                            binding,
                            matches,
                        });
                    });
                }
                Event::PolicyFaulted {
                    id,
                    version,
                    reason,
                } => {
                    tokio::task::spawn_local(Rc::clone(&self).faulted(id, version, reason));
                }
                Event::CandidateFailed {
                    id,
                    version,
                    reason,
                } => {
                    tokio::task::spawn_local(Rc::clone(&self).trial_failed(id, version, reason));
                }
                Event::ProcessEnded { id, reason } => self.process_ended(id, &reason),
                Event::Throttled { tenant, refused } => {
                    tracing::warn!(
                        "{refused} calls of tenant {tenant} were refused: its policies have used up their CPU share"
                    );
                    let details = serde_json::json!({"tenant": &*tenant, "refused": refused});
                    self.happened(audit::Event::Throttled, &tenant, details);
                }
                Event::PolicyLogged {
                    label,
                    lines,
                    dropped,
                } => {
                    for line in lines {
                        tracing::info!(policy = label, "{line}");
                    }
                    if dropped > 0 {
                        tracing::info!(policy = label, "{dropped} more lines were dropped");
                    }
                }
            }
        }
    }

    fn runtime_of(&self, tenant: &str) -> usize {
        runtime_of(tenant, self.runtimes.len())
    }

    /// Sends a command that is answered, and waits for the answer.
    async fn ask<T>(
        &self,
        runtime: usize,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        self.runtimes[runtime].send(command(reply));
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

    async fn apply(&self, runtime: usize, change: PolicyChange) -> Result<(), Status> {
        let applied = self.ask(runtime, |done| Command::Policies { change, done });
        applied
            .await?
            .map_err(|refusal| Status::new(Code::FAILED_PRECONDITION, refusal))
    }
}
