//! The start of a daemon, and its end.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::SystemTime;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate_admin::server::{Listener, Server};
use tollgate_control::{Store, StoreError, audit};
use tollgate_policy_host::{Compiler, CompilerConfig, Host, HostConfig, daemon as confinement};
use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::limits::MAX_RECORDS;
use tollgate_transport::{LinkConfig, is_loopback, names_one_host};

use crate::capacity::Capacity;
use crate::config::Config;
use crate::control::api;
use crate::control::api::browsers;
use crate::control::api::paces::Paces;
use crate::control::api::remote::{OnNetwork, Remote};
use crate::control::api::socket::ApiSocket;
use crate::control::apps::admission::Admission;
use crate::control::apps::applications::Applications;
use crate::control::apps::listeners::Listeners;
use crate::control::apps::peers::Peers;
use crate::control::apps::requests::Requests;
use crate::control::apps::schema_cache::SchemaCache;
use crate::control::apps::socket_file::{Access, SocketFile};
use crate::control::apps::{accepting, prefetch};
use crate::control::changes::Changes;
use crate::control::error::{self, DaemonError, system};
use crate::control::events::each_runtime_answers;
use crate::control::guesses::Guesses;
use crate::control::in_force::InForce;
use crate::control::observe::exporters::Exporters;
use crate::control::observe::repeated::Repeated;
use crate::control::observe::taps::Taps;
use crate::control::observe::{repeats, telemetry};
use crate::control::operators::{approvals, ending};
use crate::control::placement::homes::Homes;
use crate::control::placement::placing;
use crate::control::placement::running::Runtimes;
use crate::control::placement::runtimes::Starter;
use crate::control::policies::compile::Compilation;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::modules::Modules;
use crate::control::policies::processes::Processes;
use crate::control::policies::{child_user, origin};
use crate::control::state::Control;
use crate::control::takeover::Predecessor;
use crate::control::takeover::replacement::Replacement;
use crate::control::this_process::ThisProcess;
use crate::control::{dev, inbox, key_file, state_directory, supervisor, takeover};
use crate::limits::{MAX_TENANT_ENDPOINTS, OPERATORS_THREADS, TURNS};
use crate::settings::Settings;

/// Raises the limit of descriptors to the hard limit: a session takes five, and the soft limit is
/// often 1,024.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // On failure the limit stays, and connections beyond it are rejected.
    let _as_it_was = setrlimit(Resource::Nofile, limit);
}

/// Runs a daemon until SIGINT or SIGTERM, or until another process has taken over. Prints one line
/// to standard output when it serves. If it takes over, its predecessor is at the other end of
/// standard input.
pub fn run(config: Config, takes_over: bool) -> Result<(), DaemonError> {
    raise_descriptors();
    confinement::give_up_privileges()?;
    let reactor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Each worker needs one that waits for it, and each exporter one for looking up its
        // endpoint: if no name server answers, all of them block.
        .max_blocking_threads(
            TURNS + OPERATORS_THREADS + config.compile.workers + 1 + MAX_TENANT_ENDPOINTS,
        )
        .build()
        .map_err(system("the control plane can't start"))?;
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
    let program = program.map_err(system("this program has no path"))?;
    let (opening, listeners) = match predecessor {
        Some(predecessor) => {
            let handover_state = predecessor.handover_state(&config).await?;
            if !predecessor.is_filtered() {
                forbid_system_calls();
            }
            let listeners = (handover_state.applications, handover_state.peers);
            (
                Opening::Done(Box::new(handover_state.store)),
                Some(listeners),
            )
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
    let host = Host::new(host)?;
    confinement::hide()?;
    let rate = host.calibrated();
    let store = opening.end()?;
    if let Some(sentence) = store.restored() {
        tracing::error!("{sentence}");
    }
    if let (Some(file), None) = (&config.dev_token, predecessor) {
        dev::add_tenant(&store, file)?;
    }
    let settings = Settings::restored(config, &store)?;
    let config = settings.in_force();
    let child_user = child_user::configured(&config)?;
    let compiler = CompilerConfig {
        user: child_user,
        ..config.compile.compiler(config.state.as_deref())
    };
    let compiler = Compiler::new(host, compiler)?;
    let compilation = Compilation::new(compiler, config.compile.workers);
    let trusted = origin::trusted_keys(&config)?;
    let remote = Remote::take(&config.admin, predecessor.is_some())?;
    let link = link_config(&config)?;
    if link.key.is_none() && !link.unauthenticated_loopback {
        let wanted =
            config.listen.is_some() || !config.peers.is_empty() || config.link.open_targets;
        if wanted {
            tracing::warn!(
                "without a key this daemon has no peers: it rejects connections and dials nobody. Give all daemons the same key with --psk-file"
            );
        }
    }
    let rdma = crate::rdma::open(&config.rdma);
    if let Some(why) = rdma.unavailable() {
        tracing::info!("links use TCP only: {why}");
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
    let listeners = Listeners::new(applications, peers);
    let listeners = listeners.map_err(system("the listeners can't be watched"))?;
    let (events, inbox) = inbox::open();
    let (records, left) = std::sync::mpsc::sync_channel(MAX_RECORDS);
    let compiler =
        crate::machine_code::start().map_err(system("the compile thread can't start"))?;
    let count = predecessor.map_or(config.runtimes(), Predecessor::runtimes);
    let peers = Peers::new(link, rdma, listeners.listen());
    let runtimes = Runtimes::new(Starter::new(rate, events, records));
    for _ in 0..count {
        runtimes.start_next(&config, &peers)?;
    }
    let placement = placing::restored(&store, count)?;
    let exporters = Exporters::start(&config)?;
    let control = Rc::new(Control {
        settings: InForce::new(settings),
        changes: Changes::new(store),
        guesses: Guesses::default(),
        peers,
        apps: Applications::new(
            Admission::new(getrlimit(Resource::Nofile).current, count),
            listeners,
            SchemaCache::new(compiler),
        ),
        process: ThisProcess {
            program,
            began_ns: now_ns(),
            state_since: predecessor
                .and_then(Predecessor::state_since)
                .unwrap_or_else(|| audit::rfc3339(SystemTime::now())),
        },
        modules: Modules::new(trusted, compilation, rate),
        runtimes,
        homes: Homes::new(placement),
        policies: LivePolicies::default(),
        processes: Processes::new(child_user),
        repeats: Repeated::default(),
        replacement: Replacement::default(),
        exporters,
        taps: Taps::default(),
        paces: Paces::default(),
        console: Rc::default(),
        on_network: remote.as_ref().map(Remote::place),
    });
    placing::tell(&control.homes, &control.runtimes)
        .await
        .map_err(DaemonError::Runtime)?;
    control.tune(false).await.map_err(DaemonError::Runtime)?;
    control.restore().await?;
    prefetch::configured(&control.config(), &control.apps.schemas).await?;
    each_runtime_answers(&control.runtimes).await?;
    tokio::task::spawn_local(Rc::clone(&control).follow_events(inbox));
    tokio::task::spawn_local(repeats::follow_repeats(Rc::clone(&control)));
    tokio::task::spawn_local(Rc::clone(&control).follow_processes());
    tokio::task::spawn_local(ending::follow_tokens(Rc::clone(&control)));
    tokio::task::spawn_local(approvals::follow_approvals(Rc::clone(&control)));
    #[cfg(feature = "rdma")]
    tokio::task::spawn_local(crate::control::apps::by_rdma::sweep(
        control.peers.rdma().clone(),
    ));
    tokio::task::spawn_local(telemetry::follow_scrapes(Rc::clone(&control)));
    tokio::task::spawn_local(telemetry::follow_metrics(Rc::clone(&control)));
    tokio::task::spawn_local(telemetry::follow_records(Rc::clone(&control), left));
    takeover::follow_signals(Rc::clone(&control)).await?;
    let end_signals = EndSignals::watch()?;
    match predecessor {
        Some(predecessor) => {
            predecessor.take_over(&control).await?;
            socket.admit(&access);
            control.resize_as_configured().await;
        }
        None => accepting::open(&control),
    }
    tokio::task::spawn_local(browsers::follow(Rc::clone(&control)));
    let (api_server, api_file) = serve_api(&control, &access, remote);
    if control.state_is_in_memory() {
        tracing::warn!(
            "there is no state directory (--state): tenants, policies and attachments are in memory only and are lost when the daemon stops"
        );
    }
    let shown = control
        .peers
        .listen()
        .map_or_else(|| "none".to_owned(), |at| at.to_string());
    let mut ready = format!(
        "tollgated {} ready socket={} listen={shown}",
        config.name,
        config.socket_path().display()
    );
    if let Some(OnNetwork { address, .. }) = &control.on_network {
        ready += &format!(" admin={address}");
    }
    ready.push('\n');
    Capacity::of_this_process(&control.config()).log();
    if let Err(error) = crate::output::print(&ready) {
        tracing::warn!(%error, "standard output can't be written");
    }
    if predecessor.is_none_or(|before| !before.tells_supervisor()) {
        supervisor::serves();
    }
    let ended = end_signals.ended_or_replaced(&control.replacement, &control.apps.requests);
    let is_replaced = ended.await;
    if !is_replaced {
        supervisor::stops();
    }
    control.modules.stop();
    drop(api_server);
    for thread in control.runtimes.stop() {
        if thread.join().is_err() {
            return Err(DaemonError::Panicked { what: "a runtime" });
        }
    }
    if !is_replaced {
        socket.remove();
    }
    // A successor has replaced it, unless it has no API.
    api_file.inspect(SocketFile::remove);
    match control.replacement.take_successor() {
        Some(successor) if std::process::id() == 1 => takeover::stand_in(successor).await,
        _ => Ok(()),
    }
}

/// Serves the API where it can be served; the log has what fails. Returns the file of its socket,
/// too.
fn serve_api(
    control: &Rc<Control>,
    access: &Access,
    remote: Option<Remote>,
) -> (Option<Server>, Option<SocketFile>) {
    let failed = |where_to: &str, why: &dyn std::fmt::Display| {
        tracing::error!("the administrative API can't be served{where_to}: {why}");
    };
    let mut listeners = Vec::new();
    let socket = ApiSocket::beside(&control.config().socket_path(), access);
    let socket = socket.inspect_err(|why| failed(" on its socket", why)).ok();
    let file = socket.map(|socket| {
        listeners.push(Listener::Processes(socket.listener));
        socket.file
    });
    let remote = remote.map(Remote::listen).transpose();
    let remote = remote.inspect_err(|why| failed(" on the network", why));
    listeners.extend(remote.ok().flatten());
    let server = api::start(control, listeners);
    let server = server.inspect_err(|why| failed("", why)).ok();
    (server, file)
}

fn forbid_system_calls() {
    if let Err(why) = confinement::forbid_system_calls() {
        tracing::warn!("this daemon's system calls can't be confined: {why}");
    }
}

/// The store, or the thread that opens it: that thread waits for the disk while the start of the
/// policy host uses the processor.
enum Opening {
    Done(Box<Store>),
    Begun(std::thread::JoinHandle<Result<Store, StoreError>>),
}

impl Opening {
    pub(super) fn begin(config: &Config) -> Result<Opening, DaemonError> {
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
        let begun = begun.map_err(system("the store can't be opened"))?;
        Ok(Opening::Begun(begun))
    }

    fn end(self) -> Result<Store, DaemonError> {
        let thread = match self {
            Opening::Done(store) => return Ok(*store),
            Opening::Begun(thread) => thread,
        };
        let opened = thread.join();
        let what = "opening the store";
        let opened = opened.map_err(|_| DaemonError::Panicked { what })?;
        opened.map_err(error::store("opened"))
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
        (None, Some(address)) if !is_loopback(&address) => Err(DaemonError::NoKey(address)),
        _ => Ok(link),
    }
}

fn listen_tcp(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| DaemonError::Listen { address, error })
}

/// SIGINT and SIGTERM. Before they are watched, they end the process and leave its sockets' files.
struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    fn watch() -> Result<EndSignals, DaemonError> {
        let watch = |kind| signal(kind).map_err(system("signals can't be watched"));
        Ok(EndSignals {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
        })
    }

    /// Waits for one of them, or for a successor; whether another process has taken over.
    async fn ended_or_replaced(mut self, replacement: &Replacement, requests: &Requests) -> bool {
        tokio::select! {
            _ = self.interrupt.recv() => {},
            _ = self.terminate.recv() => {},
            () = replacement.retired() => return true,
        }
        // Not while runtimes wait for the result of a hand-over.
        tokio::select! {
            () = requests.resumed() => false,
            () = replacement.retired() => true,
        }
    }
}
