//! What a daemon is told before it starts: one struct, read from a TOML file or from the command line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_control::Isolation;
use tollgate_policy_host::CompilerConfig;
use tollgate_schema::spelling::did_serde_mean;
use tollgate_shm_abi::text::point_at;
use tollgate_telemetry::export::{Endpoint, EndpointError, Protocol};
use tollgate_telemetry::headers::{Headers, HeadersError};
use tollgate_telemetry::limits::{MAX_CA_BYTES, MAX_HEADERS_BYTES};
use tollgate_telemetry::sampling::{MILLION, Sampler, Sampling};
use tollgate_transport::limits;

pub use tollgate_datapath::tuning::{Scheduling, Waiting};

use crate::limits::{
    COMPILE_MEMORY_BYTES, COMPILE_TIMEOUT_MS, MAX_COMPILE_WORKERS, MAX_KEPT_SPANS,
    MAX_TENANT_ENDPOINTS, RDMA_RING_KIB,
};
use crate::settings::{SETTINGS, Source};
use crate::targets;

/// The daemon's configuration. Every field has a default, so a file may be empty. What of it can change while the daemon runs is
/// in [`SETTINGS`].
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
    /// Where the values of [`SETTINGS`] are from that somebody has given.
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
    fn check(&self) -> Result<(), ConfigError> {
        if RDMA_RING_KIB.contains(&self.ring_kib) {
            return Ok(());
        }
        Err(ConfigError::OutOfRange {
            setting: "rdma.ring_kib",
            value: self.ring_kib.to_string(),
            expected: "64 to 65536",
        })
    }

    /// Of each link's ring; 0: it has none.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nobody asks"))]
    pub(crate) fn ring_bytes(&self) -> u32 {
        match self.one_sided {
            true => self.ring_kib << 10,
            false => 0,
        }
    }
}

/// What policies may use: the section `[policies]`. An attachment can change the first one for itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// CPU time of one judgement in microseconds, 5 to 10,000. Default 100.
    ///
    /// Lower protects the other tenants' latency, higher allows more thinking.
    pub cpu_us: u32,
    /// What the policies of one tenant may use together, in percent of one core, 1 to 100. Default 25.
    pub cpu_share_percent: u8,
    /// Linear memory of an instance in KiB, 64 to 16,384. Default 4,096. A policy in Rust needs 1,200.
    pub memory_kib: u32,
    /// Instances alive at once, over all tenants, 1 to 20,000. Default 1,000.
    ///
    /// Each reserves 4 GiB of address space and up to 4 memory mappings (`vm.max_map_count` bounds them, 65,530 by default).
    pub instances: u32,
    /// Faults within `quarantine_window_s` after which a policy gets no fresh instance until an operator acts, 1 to 1,000.
    /// Default 5.
    pub quarantine_faults: u32,
    /// See `quarantine_faults`. In seconds, 1 to 3,600. Default 60.
    pub quarantine_window_s: u32,
    /// Where tenants' policies run whose attachments don't say: `none` (default): in the daemon, in sandboxes; `process`: in a process
    /// per tenant, so that the compiler of the sandboxes needn't be trusted.
    ///
    /// A process costs each judgement up to two wake-ups, memory per tenant, and its own look for work (`spin_us`).
    pub isolation: Isolation,
    /// Memory that the policies of one tenant may write in its process, in MiB, 16 to 4,096. Default 256.
    pub process_memory_mib: u32,
    /// Files with public keys: PEM (Ed25519, or ECDSA P-256 as cosign writes it), or in wasmsign2's format. With any, only modules
    /// that one of them has signed are accepted. Default: none.
    pub trusted_keys: Vec<PathBuf>,
    /// User that policy processes and compile workers of a root daemon become: a name of `/etc/passwd`, or a number, which is its group's, too.
    /// Default: 2,147,000,000, which no system allots.
    ///
    /// No other process may have it: processes of one user may stop and kill each other. Daemons of another user don't use it.
    pub user: Option<String>,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            cpu_us: 100,
            cpu_share_percent: 25,
            memory_kib: 4_096,
            instances: 1_000,
            quarantine_faults: 5,
            quarantine_window_s: 60,
            isolation: Isolation::None,
            process_memory_mib: 256,
            trusted_keys: Vec::new(),
            user: None,
        }
    }
}

/// What compiling tenants' policies may take. Each module is compiled by a process of its own, which is killed at these limits.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct CompileConfig {
    /// Milliseconds of CPU for one module, 100 to 600,000. Default 10,000.
    ///
    /// The largest modules that are accepted at all take about 2 s. By the clock a worker may take six times as long.
    pub timeout_ms: u64,
    /// Bytes of memory for one module, 64 MiB to 8 GiB. Default 512 MiB.
    pub memory_bytes: u64,
    /// Modules compiled at once, over all tenants, 1 to 16. Default 2.
    ///
    /// A tenant has one at a time. More make pushes of many tenants faster and take CPU from their calls, at low priority.
    pub workers: usize,
}

impl Default for CompileConfig {
    fn default() -> Self {
        let default = CompilerConfig::default();
        Self {
            timeout_ms: u64::try_from(default.timeout.as_millis()).unwrap_or(u64::MAX),
            memory_bytes: default.memory_bytes,
            workers: 2,
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

/// What is known of calls, and who is told: the section `[telemetry]`. OPERATIONS.md says what each signal means.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Whether calls' durations are counted, per tenant, method, side and status. Default true.
    pub durations: bool,
    /// Where Prometheus scrapes `/metrics`, over HTTP. Default: nowhere. All tenants' numbers are there, for whoever can connect: keep it on
    /// loopback, or behind a firewall.
    pub prometheus: Option<SocketAddr>,
    /// The OpenTelemetry collector that gets everything, such as `http://127.0.0.1:4317`, or `https://` with TLS. Default: none.
    pub endpoint: Option<String>,
    /// How it is spoken to: `grpc` (default) or `http`.
    pub protocol: OtlpProtocol,
    /// File with headers that each request to it carries, one `name: value` per line, as of an API key. Read at the start. Default: none.
    pub headers_file: Option<PathBuf>,
    /// File with the certificates, in PEM, of who may have signed its own, for https. Read at the start. Default: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// How requests to it are compressed: `none` (default) or `gzip`.
    pub compression: Compression,
    /// Of a million calls whose application has no span of its own for them, how many begin a trace, 0 to 1,000,000. Default 10,000: one in a
    /// hundred. Those that have one are traced if that is. Only if there is an endpoint.
    pub sample_per_million: u32,
    /// Whether calls that fail have spans in any case. Default true. Only if there is an endpoint.
    pub sample_errors: bool,
    /// Whether calls that fail have a line in the daemon's own log, too, ten a second per tenant at most. Default false; an endpoint gets them in
    /// any case.
    pub log_failures: bool,
    /// How many of the newest spans each runtime keeps for `tollgate trace` and `tollgate explain`, 0 to 100,000, each about 1 KB; with no endpoint,
    /// they are of calls that fail and of calls whose application has a span of its own. Default 1,000.
    pub kept_spans: u32,
    /// How often metrics are sent, in seconds, 1 to 3,600. Default 10.
    pub interval_s: u32,
    /// What tenants have of their own, by their names.
    pub tenants: BTreeMap<String, TenantTelemetry>,
}

/// A tenant's own telemetry: the sections `[telemetry.tenants.NAME]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct TenantTelemetry {
    /// A collector that gets what is this tenant's, and nothing else. Default: none.
    pub endpoint: Option<String>,
    /// How it is spoken to: `grpc` (default) or `http`.
    pub protocol: OtlpProtocol,
    /// As for everybody, of this collector. Default: none; everybody's aren't sent to it.
    pub headers_file: Option<PathBuf>,
    /// As for everybody, of this collector. Default: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// As for everybody, of this collector. Default: `none`.
    pub compression: Compression,
    /// As for everybody, of this tenant's calls. Default: what holds for everybody.
    pub sample_per_million: Option<u32>,
    /// As for everybody, of this tenant's calls. Default: what holds for everybody.
    pub sample_errors: Option<bool>,
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// OTLP over gRPC, usually port 4317
    #[default]
    Grpc,
    /// OTLP over HTTP, usually port 4318
    Http,
}

/// How requests to a collector are compressed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// They aren't
    #[default]
    None,
    /// A tenth of the bytes or so, for some CPU; the collector has to take it
    Gzip,
}

/// What is configured of one endpoint.
struct Told<'c> {
    /// Whose it is; nobody's: everything's.
    tenant: Option<&'c str>,
    url: &'c Option<String>,
    protocol: OtlpProtocol,
    headers_file: &'c Option<PathBuf>,
    ca: &'c Option<PathBuf>,
    compression: Compression,
}

impl<'c> Told<'c> {
    /// What can be known of it without its files; `None` if there is none.
    fn checked(&self) -> Result<Option<Endpoint>, ConfigError> {
        let of = self.tenant.unwrap_or("the daemon");
        let Some(url) = self.url else {
            let idle = [("headers_file", self.headers_file), ("ca", self.ca)];
            let idle = idle
                .into_iter()
                .find_map(|(key, path)| Some((key, path.as_ref()?)));
            let Some((key, path)) = idle else {
                return Ok(None);
            };
            return Err(ConfigError::OutOfRange {
                setting: "telemetry",
                value: format!("{key} {path:?} of {of}"),
                expected: "an endpoint is wanted beside it",
            });
        };
        let endpoint = Endpoint::new(url, self.protocol.into())?;
        if self.ca.is_some() {
            endpoint.needs_tls()?;
        }
        Ok(Some(match self.compression {
            Compression::None => endpoint,
            Compression::Gzip => endpoint.compressed(),
        }))
    }

    /// It, with what is in its files.
    fn endpoint(&self) -> Result<Option<(Option<&'c str>, Endpoint)>, ConfigError> {
        let Some(mut endpoint) = self.checked()? else {
            return Ok(None);
        };
        if let Some(path) = self.headers_file {
            let headers = Headers::parse(&read(path, MAX_HEADERS_BYTES)?);
            let headers = headers.map_err(|error| ConfigError::Headers {
                path: path.clone(),
                error,
            })?;
            endpoint = endpoint.with_headers(headers);
        }
        if let Some(path) = self.ca {
            let trusting = endpoint.with_authorities(&read(path, MAX_CA_BYTES)?);
            endpoint = trusting.map_err(|error| ConfigError::Authorities {
                path: path.clone(),
                error,
            })?;
        }
        Ok(Some((self.tenant, endpoint)))
    }
}

/// A small file; of a larger one, or of one that has no end, a byte more than it may have.
fn read(path: &Path, most: usize) -> Result<Vec<u8>, ConfigError> {
    let mut content = Vec::new();
    let file = File::open(path);
    let read = file.and_then(|file| file.take(most as u64 + 1).read_to_end(&mut content));
    read.map_err(|error| ConfigError::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    if content.len() > most {
        return Err(ConfigError::TooLong {
            path: path.to_owned(),
            most,
        });
    }
    Ok(content)
}

impl From<OtlpProtocol> for Protocol {
    fn from(protocol: OtlpProtocol) -> Self {
        match protocol {
            OtlpProtocol::Grpc => Protocol::Grpc,
            OtlpProtocol::Http => Protocol::Http,
        }
    }
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            durations: true,
            prometheus: None,
            endpoint: None,
            protocol: OtlpProtocol::default(),
            headers_file: None,
            ca: None,
            compression: Compression::default(),
            sample_per_million: 10_000,
            sample_errors: true,
            log_failures: false,
            kept_spans: 1_000,
            interval_s: 10,
            tenants: BTreeMap::new(),
        }
    }
}

impl TelemetryConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if !(1..=3_600).contains(&self.interval_s) {
            return Err(ConfigError::OutOfRange {
                setting: "telemetry.interval_s",
                value: self.interval_s.to_string(),
                expected: "1 to 3600",
            });
        }
        if self.kept_spans > MAX_KEPT_SPANS {
            return Err(ConfigError::OutOfRange {
                setting: "telemetry.kept_spans",
                value: self.kept_spans.to_string(),
                expected: "0 to 100000",
            });
        }
        if self.tenants.len() > MAX_TENANT_ENDPOINTS {
            return Err(ConfigError::OutOfRange {
                setting: "telemetry.tenants",
                value: self.tenants.len().to_string(),
                expected: "at most 256",
            });
        }
        for (name, its) in &self.tenants {
            if its.sample_per_million.is_some_and(|part| part > MILLION) {
                return Err(ConfigError::OutOfRange {
                    setting: "telemetry.tenants",
                    value: format!("{name}.sample_per_million"),
                    expected: "0 to 1000000",
                });
            }
        }
        self.told().try_for_each(|told| told.checked().map(|_| ()))
    }

    /// Whether anybody gets spans and lines.
    pub(crate) fn is_told(&self) -> bool {
        self.endpoint.is_some() || self.tenants.values().any(|its| its.endpoint.is_some())
    }

    /// Which calls are traced: by chance only if somebody gets them.
    pub(crate) fn sampler(&self) -> Sampler {
        let by_chance = |per_million| match self.is_told() {
            true => per_million,
            false => 0,
        };
        let default = Sampling {
            per_million: by_chance(self.sample_per_million),
            errors: self.sample_errors,
        };
        let own = |its: &TenantTelemetry| Sampling {
            per_million: its
                .sample_per_million
                .map_or(default.per_million, by_chance),
            errors: its.sample_errors.unwrap_or(default.errors),
        };
        let tenants = self.tenants.iter();
        let tenants = tenants.map(|(name, its)| (name.clone(), own(its)));
        Sampler {
            default,
            tenants: Arc::new(tenants.collect()),
        }
    }

    /// Who is told: `None` is everything's, the others are tenants'. Reads their files.
    pub(crate) fn endpoints(&self) -> Result<Vec<(Option<&str>, Endpoint)>, ConfigError> {
        let endpoints = self.told().map(|told| told.endpoint());
        endpoints.filter_map(Result::transpose).collect()
    }

    fn told(&self) -> impl Iterator<Item = Told<'_>> {
        let own = Told {
            tenant: None,
            url: &self.endpoint,
            protocol: self.protocol,
            headers_file: &self.headers_file,
            ca: &self.ca,
            compression: self.compression,
        };
        let tenants = self.tenants.iter().map(|(name, its)| Told {
            tenant: Some(name),
            url: &its.endpoint,
            protocol: its.protocol,
            headers_file: &its.headers_file,
            ca: &its.ca,
            compression: its.compression,
        });
        [own].into_iter().chain(tenants)
    }
}

impl Policies {
    fn check(&self) -> Result<(), ConfigError> {
        let settings = [
            (
                "policies.instances",
                self.instances,
                1..=20_000,
                "1 to 20000",
            ),
            (
                "policies.process_memory_mib",
                self.process_memory_mib,
                16..=4_096,
                "16 to 4096",
            ),
        ];
        for (setting, value, range, expected) in settings {
            if !range.contains(&value) {
                let value = value.to_string();
                return Err(ConfigError::OutOfRange {
                    setting,
                    value,
                    expected,
                });
            }
        }
        Ok(())
    }
}

impl CompileConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let within = |setting, value: u64, (least, most): (u64, u64), expected| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let value = value.to_string();
            Err(ConfigError::OutOfRange {
                setting,
                value,
                expected,
            })
        };
        within(
            "compile.timeout_ms",
            self.timeout_ms,
            COMPILE_TIMEOUT_MS,
            "100 to 600000",
        )?;
        let memory = "64 MiB (67108864) to 8 GiB (8589934592)";
        within(
            "compile.memory_bytes",
            self.memory_bytes,
            COMPILE_MEMORY_BYTES,
            memory,
        )?;
        let workers = (1, MAX_COMPILE_WORKERS as u64);
        within("compile.workers", self.workers as u64, workers, "1 to 16")
    }

    /// As the compiler wants it; code is kept in `state`, if there is one.
    pub(crate) fn compiler(&self, state: Option<&std::path::Path>) -> CompilerConfig {
        CompilerConfig {
            timeout: Duration::from_millis(self.timeout_ms),
            memory_bytes: self.memory_bytes,
            artifacts: state.map(|state| state.join("compiled")),
            ..CompilerConfig::default()
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

/// Why a configuration is refused: names the setting and its value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The file isn't a configuration.
    #[error("{path}, line {line}, column {column}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it.
        line: usize,
        /// Where in that line.
        column: usize,
        /// The parser's sentence.
        message: String,
        /// The line, with a caret below.
        shown: String,
    },
    /// A collector's endpoint is none.
    #[error("telemetry: {0}")]
    Endpoint(#[from] EndpointError),
    /// A file is longer than what it should have.
    #[error("{path}: more than {most} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What it may have.
        most: usize,
    },
    /// A collector's headers are none. Says nothing of what they are.
    #[error("{path}: {error}")]
    Headers {
        /// Their file.
        path: PathBuf,
        /// What is wrong with it.
        error: HeadersError,
    },
    /// Who may have signed a collector's certificate can't be told.
    #[error("{path}: {error}")]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// What is wrong with it.
        error: EndpointError,
    },
    /// A value is out of its range.
    #[error("{setting} = {value}: {expected}")]
    OutOfRange {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

impl ConfigError {
    /// The lines of the file that show what is wrong.
    pub fn shown(&self) -> Option<&str> {
        match self {
            ConfigError::Malformed { shown, .. } => Some(shown),
            _ => None,
        }
    }
}

impl Config {
    /// Reads and checks a TOML file.
    pub fn read(path: &std::path::Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        let malformed = |error: toml::de::Error| {
            let (line, column, shown) = point_at(&text, error.span().unwrap_or_default());
            let message = error.message().trim_end().replace('\n', ", ");
            let meant = did_serde_mean(&message);
            ConfigError::Malformed {
                path: path.to_owned(),
                line,
                column,
                message: message + &meant,
                shown,
            }
        };
        let mut config: Self = toml::from_str(&text).map_err(malformed)?;
        let table: toml::Table = toml::from_str(&text).map_err(malformed)?;
        let says = |key: &str| match key.split_once('.') {
            Some((section, key)) => table.get(section).is_some_and(|its| its.get(key).is_some()),
            None => table.contains_key(key),
        };
        let said = SETTINGS.iter().filter(|setting| says(setting.key));
        config.sources = said.map(|setting| (setting.key, Source::File)).collect();
        config.check()?;
        Ok(config)
    }

    /// The command line has said this, whatever the file says.
    pub fn given_on_command_line(&mut self, key: &'static str) {
        self.sources.insert(key, Source::CommandLine);
    }

    pub(crate) fn source_of(&self, key: &str) -> Source {
        self.sources.get(key).copied().unwrap_or(Source::Default)
    }

    /// Checks ranges.
    pub fn check(&self) -> Result<(), ConfigError> {
        let named = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_.".contains(&c);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(named) {
            let value = format!("{:?}", self.name);
            return Err(ConfigError::OutOfRange {
                setting: "name",
                value,
                expected: "1 to 64 of a-z 0-9 - _ . are allowed",
            });
        }
        for setting in SETTINGS {
            setting.check(self)?;
        }
        self.check_peers()?;
        self.rdma.check()?;
        self.policies.check()?;
        self.telemetry.check()?;
        self.compile.check()
    }

    fn check_peers(&self) -> Result<(), ConfigError> {
        let refused = |setting, value: &String, expected| {
            let value = format!("{value:?}");
            Err(ConfigError::OutOfRange {
                setting,
                value,
                expected,
            })
        };
        let mut peers = self.peers.iter().map(|peer| &peer.address);
        if let Some(wrong) = peers.find(|address| !targets::is_pattern(address)) {
            return refused("peers.address", wrong, "host:port, or * for either of them");
        }
        let mut names = self.link.advertise.iter();
        match names.find(|name| !targets::is_name(name)) {
            Some(wrong) => refused("link.advertise", wrong, "host, or host:port"),
            None => Ok(()),
        }
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.toml");
        std::fs::write(&path, text).unwrap();
        Config::read(&path).map_err(|e| e.to_string().replace(path.to_str().unwrap(), "host.toml"))
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn a_runtime_waits_in_one_of_three_ways() {
        let spin = |text| parse(text).unwrap().spin();
        assert_eq!(spin("spin_us = 7"), Duration::from_micros(7));
        assert_eq!(spin("waiting = 'adaptive'"), Duration::from_micros(50));
        assert_eq!(spin("waiting = 'spin'"), Duration::MAX);
        assert_eq!(spin("waiting = 'sleep'\nspin_us = 7"), Duration::ZERO);
        let scheduling = |text| parse(text).unwrap().scheduling;
        assert_eq!(scheduling(""), Scheduling::Fair);
        assert_eq!(
            scheduling("scheduling = 'round-robin'"),
            Scheduling::RoundRobin
        );
        let target = |text| parse(text).unwrap().wait_target();
        assert_eq!(target(""), None);
        let millisecond = Duration::from_millis(1);
        assert_eq!(target("wait_target_us = 1000"), Some(millisecond));
        let error = parse("waiting = 'seldom'").unwrap_err();
        assert!(
            error.contains("seldom") && error.contains("`adaptive`"),
            "{error}"
        );
    }

    #[test]
    fn it_is_known_who_has_said_what() {
        let mut config = parse("spin_us = 50\nwaiting = 'spin'\n[policies]\ncpu_us = 5").unwrap();
        config.given_on_command_line("waiting");
        for (key, source) in [
            ("spin_us", Source::File),
            ("waiting", Source::CommandLine),
            ("policies.cpu_us", Source::File),
            ("policies.memory_kib", Source::Default),
            ("cores", Source::Default),
        ] {
            assert_eq!(config.source_of(key), source, "{key}");
        }
    }

    #[test]
    fn a_sockets_mode_is_octal_and_leaves_it_to_its_owner() {
        let mode = |text: &str| parse(text).map(|config| config.socket_mode.bits());
        assert_eq!(mode(""), Ok(0o666));
        assert_eq!(mode("socket_mode = '0660'"), Ok(0o660));
        assert_eq!(mode("socket_mode = '777'"), Ok(0o777));
        for wrong in ["'0066'", "'1666'", "'0668'", "'rw'", "'-1'"] {
            let error = mode(&format!("socket_mode = {wrong}")).unwrap_err();
            assert!(error.contains("is no mode for a socket"), "{error}");
        }
        let error = mode("socket_mode = 660").unwrap_err();
        assert!(error.contains("expected a string"), "{error}");
    }

    #[test]
    fn a_section_is_about_policies() {
        let config = parse("[policies]\ncpu_us = 5\ncpu_share_percent = 100").unwrap();
        assert_eq!(
            (config.policies.cpu_us, config.policies.cpu_share_percent),
            (5, 100)
        );
        assert_eq!(
            config.policies.quarantine_faults, 5,
            "what isn't said is the default"
        );
    }

    /// What is read at the start only: a configuration can be checked by who can't read the secrets.
    #[test]
    fn files_of_an_endpoint_are_small_and_what_is_wrong_with_one_is_said_without_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let endpoints = |key: &str, name: &str, content: Option<&[u8]>| {
            if let Some(content) = content {
                std::fs::write(path(name), content).unwrap();
            }
            let text = format!(
                "[telemetry.tenants.acme]\nendpoint = 'https://a'\n{key} = '{}'",
                path(name)
            );
            let config = parse(&text).unwrap();
            let found = config
                .telemetry
                .endpoints()
                .map(|found| format!("{found:?}"));
            found.map_err(|error| error.to_string().replace(&path(name), name))
        };
        let found = endpoints("headers_file", "key", Some(b"api-key: s3cret")).unwrap();
        assert!(
            found.contains("api-key") && !found.contains("s3cret"),
            "{found}"
        );
        let refused = endpoints("headers_file", "bad", Some(b"\ns3cret")).unwrap_err();
        assert!(
            refused.starts_with("bad: line 2 is no header") && !refused.contains("s3cret"),
            "{refused}"
        );
        for (key, most) in [("headers_file", MAX_HEADERS_BYTES), ("ca", MAX_CA_BYTES)] {
            let refused = endpoints(key, "gone", None).unwrap_err();
            assert!(refused.starts_with("can't read gone: No such"), "{refused}");
            let content = vec![b'#'; most + 1];
            let refused = endpoints(key, "long", Some(&content)).unwrap_err();
            assert_eq!(refused, format!("long: more than {most} bytes"));
        }
        let most = vec![b'#'; MAX_HEADERS_BYTES];
        endpoints("headers_file", "most", Some(&most)).unwrap();
        let most = vec![b'#'; MAX_CA_BYTES];
        let refused = endpoints("ca", "most", Some(&most)).unwrap_err();
        assert_eq!(
            refused,
            "most: there is no certificate: certificates are wanted, in PEM"
        );
    }

    #[test]
    fn a_mistake_in_a_file_is_shown_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.toml");
        std::fs::write(&path, "name = 'a'\nspin_us = oh\n").unwrap();
        let error = Config::read(&path).unwrap_err();
        assert_eq!(
            error.shown(),
            Some("  |\n2 | spin_us = oh\n  |           ^^")
        );
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }

    #[test]
    fn refusals_name_the_setting_and_the_value() {
        let check = |text: &str, expected: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        };
        check(
            "nmae = 'a'",
            "host.toml, line 1, column 1: unknown field `nmae`",
        );
        check("nmae = 'a'", "; did you mean \"name\"?");
        check(
            "\n[link]\nwindow_cals = 3",
            "host.toml, line 3, column 1: unknown",
        );
        check("waiting = 'slep'", "; did you mean \"sleep\"?");
        check("name = 'A b'", "name = \"A b\"");
        check("spin_us = 10001", "spin_us = 10001: 0 to 10000");
        for (value, text) in [(99, "99"), (1_000_001, "1000001")] {
            let expected = format!("wait_target_us = {text}: 0 (off), or 100 to 1000000");
            check(&format!("wait_target_us = {value}"), &expected);
        }
        check(
            &format!("cores = {:?}", vec![0; 65]),
            "0,0: at most 64 entries",
        );
        check(
            "cores = [1024]",
            "cores = 1024: at most 64 entries below 1024",
        );
        check(
            "[link]\nwindow_calls = 0",
            "link.window_calls = 0: 1 to 1048576",
        );
        check(
            "[[peers]]\naddress = 'b'",
            "peers.address = \"b\": host:port, or * for either",
        );
        check("[[peers]]\naddres = 'b:1'", "addres");
        check("[[peers]]\n", "address");
        check(
            "[link]\nadvertise = ['b', '::1']",
            "link.advertise = \"::1\": host, or host:port",
        );
        check("[rdma]\nring_kib = 63", "rdma.ring_kib = 63: 64 to 65536");
        check(
            "[rdma]\nfrom = 'eth0'",
            "line 2, column 8: invalid IP address",
        );
        check(
            "listen = 'nowhere'",
            "line 1, column 10: invalid socket address",
        );
        check("[policies]\ncpu = 1", "cpu");
        for (setting, value, expected) in [
            ("cpu_us", 4, "5 to 10000"),
            ("cpu_us", 10_001, "5 to 10000"),
            ("cpu_share_percent", 0, "1 to 100"),
            ("cpu_share_percent", 101, "1 to 100"),
            ("memory_kib", 63, "64 to 16384"),
            ("instances", 20_001, "1 to 20000"),
            ("quarantine_faults", 0, "1 to 1000"),
            ("quarantine_window_s", 3_601, "1 to 3600"),
        ] {
            let words = format!("policies.{setting} = {value}: {expected}");
            check(&format!("[policies]\n{setting} = {value}"), &words);
        }
        check(
            "[compile]\ntimeout_ms = 99",
            "compile.timeout_ms = 99: 100 to",
        );
        check(
            "[compile]\nmemory_bytes = 1",
            "compile.memory_bytes = 1: 64 MiB",
        );
        check("[compile]\nworkers = 0", "compile.workers = 0: 1 to 16");
        check("[compile]\nworkers = 17", "compile.workers = 17: 1 to 16");
        check(
            "[telemetry]\ninterval_s = 0",
            "telemetry.interval_s = 0: 1 to 3600",
        );
        check(
            "[telemetry]\nendpoint = 'ftp://a:4317'",
            "\"ftp://a:4317\": ftp isn't spoken",
        );
        check(
            "[telemetry]\nendpoint = 'http://a:4317'\nca = 'ca.pem'",
            "telemetry: \"http://a:4317\" has no certificate",
        );
        check(
            "[telemetry.tenants.acme]\nheaders_file = 'key'",
            "telemetry = headers_file \"key\" of acme: an endpoint is wanted beside it",
        );
        check(
            "[telemetry]\nca = 'ca.pem'",
            "ca \"ca.pem\" of the daemon: an endpoint",
        );
        check("[telemetry]\ncompression = 'zip'", "`gzip`");
        check(
            "[telemetry.tenants.acme]\nendpoint = 'nowhere'",
            "telemetry: \"nowhere\" is no endpoint",
        );
        check(
            "[telemetry]\nsample_per_million = 1000001",
            "telemetry.sample_per_million = 1000001: 0 to 1000000",
        );
        check(
            "[telemetry]\nkept_spans = 100001",
            "telemetry.kept_spans = 100001: 0 to 100000",
        );
        check(
            "[telemetry.tenants.acme]\nsample_per_million = 1000001",
            "telemetry.tenants = acme.sample_per_million: 0 to 1000000",
        );
        let tenants = (0..257).map(|k| format!("[telemetry.tenants.t{k}]\n"));
        check(
            &tenants.collect::<String>(),
            "telemetry.tenants = 257: at most 256",
        );
        assert!(
            Config::read(std::path::Path::new("/nonexistent.toml"))
                .unwrap_err()
                .to_string()
                .contains("/nonexistent.toml")
        );
    }
}
