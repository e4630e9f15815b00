//! What a daemon is told before it starts: one struct, read from a TOML file or from the command line.
//!
//! The fields are here and in `config/`; reading and checking them is in `loading.rs`.

mod error;
mod loading;
mod policies;
pub(crate) mod source;
mod telemetry;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
pub use tollgate_datapath::tuning::{Scheduling, Waiting};
use tollgate_transport::limits;

pub use self::error::ConfigError;
pub use self::policies::{CompileConfig, Policies};
use self::source::Source;
pub use self::telemetry::{Compression, OtlpProtocol, TelemetryConfig, TenantTelemetry};

/// The daemon's configuration. Every field has a default, so a file may be empty. What of it can change while the daemon runs is
/// in [`SETTINGS`](crate::settings::SETTINGS).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name under which peers and status know this daemon. 1 to 64 of `a-z 0-9 - _ .`; default `tollgate`.
    pub name: String,
    /// Unix socket for applications and administration. Default `/run/tollgate/NAME.sock`.
    ///
    /// Anybody who can open it may try tokens; administration needs the daemon's own user or root. Only the default's directory is made.
    pub socket: Option<PathBuf>,
    /// Mode of that socket, octal. Default `"0666"`: applications of every user of this host may connect, and need a token.
    ///
    /// `"0660"` with a `socket_group` keeps all others out.
    pub socket_mode: SocketMode,
    /// Group of that socket: a name of `/etc/group`, or a number. The daemon's user has to be a member. Default: the daemon's own.
    pub socket_group: Option<String>,
    /// TCP address for peers; none: this daemon accepts no links (it can still dial). Port 0 picks one.
    pub listen: Option<SocketAddr>,
    /// Directory of the store (tenants, policies, attachments). None: in memory, forgotten at the end.
    pub state: Option<PathBuf>,
    /// File with the secret that joins the daemons of a fleet, at least 16 bytes, which its owner alone may read. Without one there are no
    /// peers: see `link.unauthenticated_loopback`.
    pub psk_file: Option<PathBuf>,
    /// The peers that applications may name as targets; by default none. See `link.open_targets`.
    pub peers: Vec<PeerConfig>,
    /// One runtime thread per entry, pinned to that core; `[]` (default): one thread, wherever the kernel puts it.
    ///
    /// Tenants are spread over the runtimes by name, unless an operator has moved them. More runtimes serve more tenants at once, and cost a
    /// spinning core each while there is work.
    pub cores: Vec<usize>,
    /// How many runtime threads there are, 1 to 64; those beyond `cores` run wherever the kernel puts them. Default 0: as many as `cores` has
    /// entries, and at least one.
    pub runtimes: usize,
    /// How a runtime waits for work. Default `adaptive`.
    pub waiting: Waiting,
    /// How long an adaptive runtime looks for work before it sleeps, in microseconds, 0 to 10,000. Default 50.
    ///
    /// Sleeping costs no CPU; waking up costs up to 60 us across cores. While it looks, a runtime yields to whoever else
    /// wants the core.
    pub spin_us: u64,
    /// Who of a runtime's tenants has the next turn. Default `fair`.
    pub scheduling: Scheduling,
    /// How long calls may wait in front of a server in the mean, in microseconds, 100 to 1,000,000; more are refused, RESOURCE_EXHAUSTED, and
    /// told when to try again. Default 0: they all wait, up to 4,096 at each server.
    ///
    /// For services whose callers would rather go elsewhere than wait. Callers that have many calls in flight and don't try
    /// again are refused by it, too.
    pub wait_target_us: u64,
    /// Files with serialized descriptor sets (as `protoc --descriptor_set_out --include_imports` writes them) whose services are resolved
    /// and compiled before the daemon is ready. Default: none; a schema is resolved when it is first bound, and a method compiled
    /// when it is first called.
    pub prefetch: Vec<PathBuf>,
    /// Links with peers.
    pub link: Links,
    /// Links over RDMA.
    pub rdma: RdmaConfig,
    /// What policies may use.
    pub policies: Policies,
    /// How tenants' policies are compiled.
    pub compile: CompileConfig,
    /// What is known of calls, and who is told.
    pub telemetry: TelemetryConfig,
    /// Where browsers show what the daemon does.
    pub console: ConsoleConfig,
    /// Where the values of [`SETTINGS`](crate::settings::SETTINGS) are from that somebody has given.
    #[serde(skip)]
    pub(crate) sources: BTreeMap<&'static str, Source>,
}

/// A daemon that applications may name: a table `[[peers]]`. What else is to be known of a peer belongs here.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// `host:port`, as applications name it; `*` for the host, the port or both stands for any.
    pub address: String,
}

/// The permissions of the socket's file. Connecting takes the right to write.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct SocketMode(u32);

impl SocketMode {
    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

impl Default for SocketMode {
    fn default() -> Self {
        Self(0o666)
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600);
        mode.map(Self).ok_or_else(|| {
            format!(
                "{text:?} is no mode for a socket: 0600 to 0777 in octal are, with read and write for the owner"
            )
        })
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Links with peers: the section `[link]`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Links {
    /// Calls, 1 to 1,048,576. Default 16,384.
    ///
    /// More hides longer round trips and holds more memory here.
    pub window_calls: u32,
    /// Bytes of those calls, 32 MiB to 1 TiB. Default 64 MiB.
    pub window_bytes: u64,
    /// Further names of this daemon, `host` or `host:port`, if peers reach it by another address than its own: behind NAT or a load balancer. With any,
    /// peers have to name it by one of these, by its `name`, its host's name or its address.
    pub advertise: Vec<String>,
    /// Whether applications may name any target, not only `peers`. Default false: a target is somewhere that this daemon connects to and
    /// speaks for its tenants.
    pub open_targets: bool,
    /// Whether a daemon without a key accepts and dials peers on loopback addresses. Default false: anybody on this host is one then, and speaks for
    /// any tenant.
    pub unauthenticated_loopback: bool,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            window_calls: limits::WINDOW_CALLS,
            window_bytes: limits::WINDOW_BYTES,
            advertise: Vec::new(),
            open_targets: false,
            unauthenticated_loopback: false,
        }
    }
}

/// Links over RDMA: the section `[rdma]`. A daemon that wasn't built with it, or whose host has no device, uses TCP and says why.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct RdmaConfig {
    /// Whether peers are dialled and accepted over RDMA where that can be. Default `true`.
    pub enabled: bool,
    /// The address to dial from, and so the device and its port. Default: the one that has a way to the peer.
    pub from: Option<IpAddr>,
    /// Whether peers write into rings of memory here (RR-Compound's path) instead of sending messages (mRPC's), where both ends say so.
    /// Default `false`.
    pub one_sided: bool,
    /// Bytes of such a ring in KiB, 64 to 65,536. Default 1,024. Each link pins its own.
    pub ring_kib: u32,
    /// Whether what follows the handshake goes without tags, if the peer wants that, too: on a fabric that nobody but daemons reaches. Tags take a copy of
    /// every message and CPU for each of its bytes. Default `false`.
    pub unprotected: bool,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            from: None,
            one_sided: false,
            ring_kib: 1_024,
            unprotected: false,
        }
    }
}

impl RdmaConfig {
    /// Of each link's ring; 0: it has none.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nobody asks"))]
    pub(crate) fn ring_bytes(&self) -> u32 {
        match self.one_sided {
            true => self.ring_kib << 10,
            false => 0,
        }
    }
}

/// Where browsers show what the daemon does: the section `[console]`. Nobody listens there but while somebody was let in (`tollgate console`).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ConsoleConfig {
    /// The address. Default `127.0.0.1:0`: a port of the kernel's choice.
    ///
    /// HTTP goes in the clear, so what isn't loopback shows what is seen, and who may act, to the network in between.
    pub listen: SocketAddr,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "tollgate".to_owned(),
            socket: None,
            socket_mode: SocketMode::default(),
            socket_group: None,
            listen: None,
            state: None,
            psk_file: None,
            peers: Vec::new(),
            cores: Vec::new(),
            runtimes: 0,
            waiting: Waiting::default(),
            spin_us: 50,
            scheduling: Scheduling::default(),
            wait_target_us: 0,
            prefetch: Vec::new(),
            link: Links::default(),
            rdma: RdmaConfig::default(),
            policies: Policies::default(),
            compile: CompileConfig::default(),
            telemetry: TelemetryConfig::default(),
            console: ConsoleConfig::default(),
            sources: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The command line has said this, whatever the file says.
    pub fn given_on_command_line(&mut self, key: &'static str) {
        self.sources.insert(key, Source::CommandLine);
    }

    pub(crate) fn source_of(&self, key: &str) -> Source {
        self.sources.get(key).copied().unwrap_or(Source::Default)
    }

    /// Where the Unix socket is.
    pub fn socket_path(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("/run/tollgate/{}.sock", self.name)))
    }

    /// How long calls may wait in front of a server.
    pub(crate) fn wait_target(&self) -> Option<Duration> {
        let target = Duration::from_micros(self.wait_target_us);
        (!target.is_zero()).then_some(target)
    }

    /// How long a runtime looks for work before it sleeps.
    pub fn spin(&self) -> Duration {
        self.waiting.budget(self.spin_us)
    }

    /// How many runtime threads there are.
    pub fn runtimes(&self) -> usize {
        self.runtimes.max(self.cores.len()).max(1)
    }
}

#[cfg(test)]
mod tests;
