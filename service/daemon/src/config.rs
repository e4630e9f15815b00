//! The daemon's configuration before it starts: one struct, read from a TOML file or from the
//! command line.
//!
//! The fields are here and in `config/`; reading and checking them is in `loading.rs`.

mod admin;
pub mod definitions;
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

pub use self::admin::{AdminCertificate, AdminConfig};
pub use self::error::ConfigError;
pub(crate) use self::error::{code_of_file, is_no_path};
pub use self::policies::{CompileConfig, Policies};
use self::source::Source;
pub use self::telemetry::{Compression, OtlpProtocol, TelemetryConfig, TenantTelemetry};

/// The daemon's configuration. Every field has a default, so a file may be empty.
/// [`definitions`] has the range and unit of each, and says which can change while the daemon runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The daemon's name for peers and in its status. 1 to 64 of `a-z 0-9 - _ .`; default
    /// `tollgate`.
    pub name: String,
    /// Unix socket for applications. The administrative API's is beside it, with `.admin` appended.
    pub socket: Option<PathBuf>,
    /// Mode of that socket, octal.
    pub socket_mode: SocketMode,
    /// Group of that socket: a name from `/etc/group`, or a number. The daemon's user must be a
    /// member.
    pub socket_group: Option<String>,
    /// TCP address for peers. None: this daemon accepts no links, but can still dial. Port 0 picks
    /// a free port.
    pub listen: Option<SocketAddr>,
    /// Directory of the store (tenants, policies, attachments). None: in memory, lost when the
    /// daemon stops.
    pub state: Option<PathBuf>,
    /// File with the secret that the daemons of a fleet share, at least 16 bytes, readable by its
    /// owner only. Without one there are no peers: see `link.unauthenticated_loopback`.
    pub psk_file: Option<PathBuf>,
    /// Peers that applications may name as targets. See `link.open_targets`.
    pub peers: Vec<PeerConfig>,
    /// One runtime thread per entry, pinned to that core.
    pub cores: Vec<usize>,
    /// Number of runtime threads. The kernel places those beyond `cores`.
    pub runtimes: usize,
    /// How a runtime waits for work.
    pub waiting: Waiting,
    /// How long an adaptive runtime spins before it sleeps.
    pub spin_us: u64,
    /// The order in which a runtime's tenants take turns.
    pub scheduling: Scheduling,
    /// Target for the mean wait of calls for a server. Calls above it are rejected with
    /// RESOURCE_EXHAUSTED and a retry delay.
    pub wait_target_us: u64,
    /// Files with serialized descriptor sets (as `protoc --descriptor_set_out --include_imports`
    /// writes them). Their services are resolved and compiled before the daemon is ready.
    pub prefetch: Vec<PathBuf>,
    /// Links with peers.
    pub link: Links,
    /// Links over RDMA.
    pub rdma: RdmaConfig,
    /// Limits of policies.
    pub policies: Policies,
    /// Limits of compiling tenants' policies.
    pub compile: CompileConfig,
    /// Telemetry of calls, and its receivers.
    pub telemetry: TelemetryConfig,
    /// The administrative API on the network.
    pub admin: AdminConfig,
    /// The web console.
    pub console: ConsoleConfig,
    /// The file for the token of the tenant `dev`, in a daemon for development.
    #[serde(skip)]
    pub dev_token: Option<PathBuf>,
    /// The sources of values that aren't defaults.
    #[serde(skip)]
    pub(crate) sources: BTreeMap<&'static str, Source>,
}

/// A daemon that applications may name: a table `[[peers]]`. Further settings of a peer belong
/// here.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// `host:port`, as applications name it. `*` as host or port matches any.
    pub address: String,
}

/// The permissions of the socket's file. Connecting needs write permission.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct SocketMode(u32);

/// The modes that a socket may have, in words.
const SOCKET_MODES: &str = "0600 to 0777, octal, with read and write for the owner";

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

/// A text that isn't a [`SocketMode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mode for a socket: {SOCKET_MODES}")]
pub struct NoSocketMode(String);

impl FromStr for SocketMode {
    type Err = NoSocketMode;

    fn from_str(text: &str) -> Result<Self, NoSocketMode> {
        let mode = u32::from_str_radix(text, 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600);
        mode.map(Self).ok_or_else(|| NoSocketMode(text.to_owned()))
    }
}

impl TryFrom<String> for SocketMode {
    type Error = NoSocketMode;

    fn try_from(text: String) -> Result<Self, NoSocketMode> {
        text.parse()
    }
}

/// Links with peers: the section `[link]`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Links {
    /// Calls in flight per link.
    pub window_calls: u32,
    /// Bytes of those calls.
    pub window_bytes: u64,
    /// Further names of this daemon, `host` or `host:port`, for peers that reach it by another
    /// address than its own: behind NAT or a load balancer. If there are any, peers must name the
    /// daemon by one of these, by its `name`, or by its host's name or address.
    pub advertise: Vec<String>,
    /// Whether applications may name any target, not only `peers`.
    pub open_targets: bool,
    /// Whether a daemon without a key accepts and dials peers on loopback addresses.
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

/// Links over RDMA: the section `[rdma]`. A daemon that was built without RDMA, or whose host has
/// no device, uses TCP and reports the reason.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct RdmaConfig {
    /// Whether to dial and accept peers over RDMA where possible.
    pub enabled: bool,
    /// The address to dial from, which selects the device and its port.
    pub from: Option<IpAddr>,
    /// Whether peers write into rings of memory here (RR-Compound's path) instead of sending
    /// messages (mRPC's), if both ends enable it.
    pub one_sided: bool,
    /// Size of such a ring. Each link pins its own ring.
    pub ring_kib: u32,
    /// Whether frames after the handshake carry no tags, if the peer agrees. Use it only on a
    /// fabric that only daemons can reach. Tags cost a copy of every message and CPU for each of
    /// its bytes.
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
    /// Size of each link's ring in bytes; 0: no ring.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nobody asks"))]
    pub(crate) fn ring_bytes(&self) -> u32 {
        match self.one_sided {
            true => self.ring_kib << 10,
            false => 0,
        }
    }
}

/// The web console: the section `[console]`. Unless it always does, the daemon listens only while
/// access given by `tollgate console` is valid.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ConsoleConfig {
    /// The address.
    pub listen: SocketAddr,
    /// Whether it listens all the time, for tenants that sign in with a token.
    pub always: bool,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self {
            always: false,
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
            admin: AdminConfig::default(),
            console: ConsoleConfig::default(),
            dev_token: None,
            sources: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Records that the command line overrides the file's value.
    pub fn given_on_command_line(&mut self, key: &'static str) {
        self.sources.insert(key, Source::CommandLine);
    }

    pub(crate) fn source_of(&self, key: &str) -> Source {
        self.sources.get(key).copied().unwrap_or(Source::Default)
    }

    /// Path of the Unix socket.
    pub fn socket_path(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("/run/tollgate/{}.sock", self.name)))
    }

    /// Target for the mean wait of calls for a server.
    pub(crate) fn wait_target(&self) -> Option<Duration> {
        let target = Duration::from_micros(self.wait_target_us);
        (!target.is_zero()).then_some(target)
    }

    /// How long a runtime spins before it sleeps.
    pub fn spin(&self) -> Duration {
        self.waiting.budget(self.spin_us)
    }

    /// Number of runtime threads.
    pub fn runtimes(&self) -> usize {
        self.runtimes.max(self.cores.len()).max(1)
    }
}

#[cfg(test)]
mod tests;
