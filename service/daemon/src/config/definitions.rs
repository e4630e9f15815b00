//! The definition of every setting: its name, unit, range, meaning, and whether it can change while
//! the daemon runs. The default is in [`Config::default`].
//!
//! Everybody who needs a part of a definition reads it here: the check of the configuration and its
//! errors, the command line's help, `tollgate daemon settings` and `set`, and the reference in
//! docs/src/reference/settings.md, which [`reference()`] writes.

use std::fmt;

use serde_json::{Value, json};
use tollgate_control::limits::CPU_US;
use tollgate_policy_host::limits::{CPU_US_MAX, CPU_US_MIN};
use tollgate_telemetry::sampling::MILLION;

use super::error::ConfigError;
use super::{Config, SOCKET_MODES, Scheduling, Waiting};
use crate::limits::{
    COMPILE_MEMORY_BYTES, COMPILE_TIMEOUT_MS, MAX_ADMIN_CERTIFICATES, MAX_COMPILE_WORKERS,
    MAX_CORE, MAX_KEPT_SPANS, MAX_RUNTIMES, MAX_SPIN, MAX_TENANT_ENDPOINTS, RDMA_RING_KIB,
    WAIT_TARGET_US, WINDOW_BYTES, WINDOW_CALLS,
};

const _: () = assert!(
    CPU_US.0 as u64 == CPU_US_MIN && CPU_US.1 as u64 == CPU_US_MAX,
    "the store and the policy host accept the same times"
);

/// One setting.
#[derive(Debug)]
pub struct Definition {
    /// The name in the configuration file, with its section as a prefix: `section.key`.
    pub key: &'static str,
    /// Its meaning, one sentence or two.
    pub what: &'static str,
    /// Accepted values.
    pub takes: Takes,
    /// When a change at run time takes effect; `None`: the daemon reads the setting at its start.
    pub at_run_time: Option<&'static str>,
    read: fn(&Config) -> Value,
    /// `false`: the text can't be parsed. `None` if the setting can't change at run time.
    write: Option<fn(&mut Config, &str) -> bool>,
}

/// The values that a setting accepts. [`fmt::Display`] writes them as errors say them.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// A whole number, both ends included.
    Number {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
        /// The unit; empty: a plain number.
        unit: &'static str,
        /// The meaning of 0, if it has one of its own.
        zero: Option<&'static str>,
    },
    /// Bytes, with a binary prefix.
    Bytes {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Words(fn() -> Vec<String>),
    /// Numbers of cores, separated by commas.
    Cores,
    /// Anything else, in words.
    Text(&'static str),
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Takes::Number {
                least,
                most,
                zero: None,
                ..
            } => write!(f, "{least} to {most}"),
            Takes::Number {
                least: 0,
                most,
                zero: Some(zero),
                ..
            } => write!(f, "0 ({zero}) to {most}"),
            Takes::Number {
                least,
                most,
                zero: Some(zero),
                ..
            } => write!(f, "0 ({zero}), or {least} to {most}"),
            Takes::Bytes { least, most } => {
                write!(
                    f,
                    "{} ({least}) to {} ({most})",
                    binary(least),
                    binary(most)
                )
            }
            Takes::Flag => f.write_str("true or false"),
            Takes::Words(words) => {
                let words = words();
                let (last, others) = words.split_last().ok_or(fmt::Error)?;
                match others {
                    [] => f.write_str(last),
                    others => write!(f, "{} or {last}", others.join(", ")),
                }
            }
            Takes::Cores => write!(
                f,
                "at most {MAX_RUNTIMES} entries below {}, or none",
                MAX_CORE + 1
            ),
            Takes::Text(words) => f.write_str(words),
        }
    }
}

/// Bytes in the largest unit that divides them.
fn binary(bytes: u64) -> String {
    let shift = (bytes.trailing_zeros() / 10).min(4);
    let unit = ["bytes", "KiB", "MiB", "GiB", "TiB"][shift as usize];
    format!("{} {unit}", bytes >> (10 * shift))
}

impl Takes {
    fn unit(self) -> &'static str {
        match self {
            Takes::Number { unit, .. } => unit,
            Takes::Bytes { .. } => "bytes",
            _ => "",
        }
    }

    /// Whether a configuration may have this value. Values of other types have been checked where
    /// they were parsed.
    fn admits(self, value: &Value) -> bool {
        let within = |value: u64, least, most| (least..=most).contains(&value);
        match self {
            Takes::Number {
                least, most, zero, ..
            } => value
                .as_u64()
                .is_some_and(|value| within(value, least, most) || (value == 0 && zero.is_some())),
            Takes::Bytes { least, most } => value
                .as_u64()
                .is_some_and(|value| within(value, least, most)),
            Takes::Cores => value.as_array().is_some_and(|cores| {
                let last = MAX_CORE as u64;
                let is_core = |core: &Value| core.as_u64().is_some_and(|core| core <= last);
                cores.len() <= MAX_RUNTIMES && cores.iter().all(is_core)
            }),
            Takes::Flag | Takes::Words(_) | Takes::Text(_) => true,
        }
    }
}

const fn number(least: u64, most: u64, unit: &'static str) -> Takes {
    Takes::Number {
        least,
        most,
        unit,
        zero: None,
    }
}

/// A number from 0 on, where 0 has a meaning of its own.
const fn number_or_zero(zero: &'static str, least: u64, most: u64, unit: &'static str) -> Takes {
    Takes::Number {
        least,
        most,
        unit,
        zero: Some(zero),
    }
}

/// The names of an enum's values on the command line and in the file.
fn names<T: clap::ValueEnum>() -> Vec<String> {
    let values = T::value_variants().iter();
    let values = values.filter_map(|value| value.to_possible_value());
    values.map(|value| value.get_name().to_owned()).collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Words are spelled alike in the file and on the command line.
fn parse_word<T: clap::ValueEnum>(place: &mut T, text: &str) -> bool {
    T::from_str(text, false).map(|value| *place = value).is_ok()
}

fn parse<T: std::str::FromStr>(place: &mut T, text: &str) -> bool {
    text.parse().map(|value| *place = value).is_ok()
}

fn parse_cores(cores: &mut Vec<usize>, text: &str) -> bool {
    let list = match text {
        "none" => Some(Vec::new()),
        list => list.split(',').map(|core| core.parse().ok()).collect(),
    };
    list.map(|list| *cores = list).is_some()
}

/// A setting that the daemon reads at its start: `at_start!(key, field, takes, what)`.
macro_rules! at_start {
    ($key:literal, $($field:ident).+, $takes:expr, $what:literal) => {
        Definition {
            key: $key,
            what: $what,
            takes: $takes,
            at_run_time: None,
            read: |config| json!(config.$($field).+),
            write: None,
        }
    };
}

/// A setting that can change while the daemon runs: `at_run_time!(key, field, takes, parser, what,
/// when)`.
macro_rules! at_run_time {
    ($key:literal, $($field:ident).+, $takes:expr, $parse:path, $what:literal, $when:literal) => {
        Definition {
            key: $key,
            what: $what,
            takes: $takes,
            at_run_time: Some($when),
            read: |config| json!(config.$($field).+),
            write: Some(|config, text| $parse(&mut config.$($field).+, text)),
        }
    };
}

/// All settings, in the order of the configuration file.
pub const DEFINITIONS: &[Definition] = &[
    at_start!(
        "name",
        name,
        Takes::Text("1 to 64 of a-z 0-9 - _ ."),
        "The daemon's name for peers and in its status."
    ),
    Definition {
        key: "socket",
        what: "Unix socket for applications. Any process that can open it may try tokens. The administrative API has a socket of its own, at this path with .admin appended. The daemon creates a missing directory only for the default path.",
        takes: Takes::Text("a path"),
        at_run_time: None,
        read: |config| {
            json!(
                config
                    .socket
                    .clone()
                    .unwrap_or("/run/tollgate/NAME.sock".into())
            )
        },
        write: None,
    },
    Definition {
        key: "socket_mode",
        what: "Permissions of that socket. By default applications of every user of this host may connect, and need a token; 0660 with a socket_group allows only the members of that group.",
        takes: Takes::Text(SOCKET_MODES),
        at_run_time: None,
        read: |config| json!(format!("{:04o}", config.socket_mode.bits())),
        write: None,
    },
    at_start!(
        "socket_group",
        socket_group,
        Takes::Text("a name of /etc/group, or a number"),
        "Group of that socket. The daemon's user must be a member. Without it: the daemon's own group."
    ),
    at_start!(
        "listen",
        listen,
        Takes::Text("IP:PORT"),
        "TCP address for peers; port 0 picks a free port. Without it this daemon accepts no links, but can still dial."
    ),
    at_start!(
        "state",
        state,
        Takes::Text("a directory"),
        "Directory of the store: tenants, policies, attachments. Without it the store is in memory, and lost when the daemon stops."
    ),
    at_start!(
        "psk_file",
        psk_file,
        Takes::Text("a path"),
        "File with the secret that the daemons of a fleet share, at least 16 bytes, readable by its owner only. Without it there are no peers; see link.unauthenticated_loopback."
    ),
    Definition {
        key: "peers.address",
        what: "A peer that applications may name as a target, in a table [[peers]] of its own. See link.open_targets.",
        takes: Takes::Text("host:port, or * for either of them"),
        at_run_time: None,
        read: |_| Value::Null,
        write: None,
    },
    at_run_time!(
        "cores",
        cores,
        Takes::Cores,
        parse_cores,
        "The core of each runtime, a thread each. Tenants are distributed over the runtimes by name, unless an operator has moved them; each runtime keeps a core busy while there is work. none: one runtime, which the kernel places.",
        "at once; if the number of runtimes changes, see runtimes"
    ),
    at_run_time!(
        "runtimes",
        runtimes,
        number_or_zero("as many as cores has entries", 0, MAX_RUNTIMES as u64, ""),
        parse,
        "Number of runtimes. The kernel places those beyond cores. There is at least one.",
        "at once: tenants are redistributed by their names, and move with all that they have"
    ),
    at_run_time!(
        "waiting",
        waiting,
        Takes::Words(names::<Waiting>),
        parse_word,
        "How a runtime waits for work.",
        "at once; a running policy process keeps the mode it was started with"
    ),
    at_run_time!(
        "spin_us",
        spin_us,
        number(0, MAX_SPIN.as_micros() as u64, "microseconds"),
        parse,
        "How long an adaptive runtime spins before it sleeps. Sleeping costs no CPU; a wake-up costs up to 60 us across cores.",
        "at once; a running policy process keeps the mode it was started with"
    ),
    at_run_time!(
        "scheduling",
        scheduling,
        Takes::Words(names::<Scheduling>),
        parse_word,
        "The order in which a runtime's tenants take turns.",
        "at once; usage before the change does not count against a tenant"
    ),
    at_run_time!(
        "wait_target_us",
        wait_target_us,
        number_or_zero("off", WAIT_TARGET_US.0, WAIT_TARGET_US.1, "microseconds"),
        parse,
        "Target for the mean wait of calls for a server. Calls above it are rejected with RESOURCE_EXHAUSTED and a retry delay. Off: up to 4,096 calls wait for each server.",
        "at once"
    ),
    at_start!(
        "prefetch",
        prefetch,
        Takes::Text("a list of paths"),
        "Files with serialized descriptor sets (protoc --descriptor_set_out --include_imports). Their services are resolved and compiled before the daemon is ready."
    ),
    at_run_time!(
        "link.window_calls",
        link.window_calls,
        number(WINDOW_CALLS.0 as u64, WINDOW_CALLS.1 as u64, "calls"),
        parse,
        "Calls in flight per link. A larger window hides longer round trips and uses more memory on this host.",
        "on existing links too: a larger window at once, a smaller one as calls are answered"
    ),
    at_run_time!(
        "link.window_bytes",
        link.window_bytes,
        number(WINDOW_BYTES.0, WINDOW_BYTES.1, "bytes"),
        parse,
        "Bytes of those calls.",
        "on existing links too: a larger window at once, a smaller one as calls are answered"
    ),
    at_start!(
        "link.advertise",
        link.advertise,
        Takes::Text("a list of host or host:port"),
        "Further names of this daemon, for peers that reach it by another address than its own: behind NAT or a load balancer. If there are any, peers must name the daemon by one of these, by its name, or by its host's name or address."
    ),
    at_start!(
        "link.open_targets",
        link.open_targets,
        Takes::Flag,
        "Whether applications may name any target, not only peers: the daemon connects to a target and speaks there for its tenants."
    ),
    at_start!(
        "link.unauthenticated_loopback",
        link.unauthenticated_loopback,
        Takes::Flag,
        "Whether a daemon without a key accepts and dials peers on loopback addresses: every process on this host can then be a peer and speak for any tenant."
    ),
    at_start!(
        "rdma.enabled",
        rdma.enabled,
        Takes::Flag,
        "Whether to dial and accept peers over RDMA where possible. Without RDMA the daemon uses TCP and reports the reason."
    ),
    at_start!(
        "rdma.from",
        rdma.from,
        Takes::Text("an IP address"),
        "The address to dial from, which selects the device and its port. Without it: the address that has a route to the peer."
    ),
    at_start!(
        "rdma.one_sided",
        rdma.one_sided,
        Takes::Flag,
        "Whether peers write into rings of memory here (RR-Compound's path) instead of sending messages (mRPC's), if both ends enable it."
    ),
    at_start!(
        "rdma.ring_kib",
        rdma.ring_kib,
        number(
            *RDMA_RING_KIB.start() as u64,
            *RDMA_RING_KIB.end() as u64,
            "KiB"
        ),
        "Size of such a ring. Each link pins its own."
    ),
    at_start!(
        "rdma.unprotected",
        rdma.unprotected,
        Takes::Flag,
        "Whether frames after the handshake carry no tags, if the peer agrees. Only for a fabric that daemons alone can reach. Tags cost a copy of every message and CPU for each of its bytes."
    ),
    at_run_time!(
        "policies.cpu_us",
        policies.cpu_us,
        number(CPU_US.0 as u64, CPU_US.1 as u64, "microseconds"),
        parse,
        "CPU time of one evaluation, if the attachment sets none. A lower limit protects the other tenants' latency, a higher limit allows more complex policies.",
        "from the next evaluation on"
    ),
    at_run_time!(
        "policies.cpu_share_percent",
        policies.cpu_share_percent,
        number(1, 100, "percent of one core"),
        parse,
        "CPU share of the policies of one tenant together.",
        "at once"
    ),
    at_run_time!(
        "policies.memory_kib",
        policies.memory_kib,
        number(64, 16_384, "KiB"),
        parse,
        "Linear memory of one instance. A policy in Rust needs 1,200 KiB.",
        "for new instances"
    ),
    at_start!(
        "policies.instances",
        policies.instances,
        number(1, 20_000, "instances"),
        "Instances that exist at the same time, over all tenants. Each reserves 4 GiB of address space and up to 4 memory mappings (vm.max_map_count limits them)."
    ),
    at_run_time!(
        "policies.quarantine_faults",
        policies.quarantine_faults,
        number(1, 1_000, "faults"),
        parse,
        "Number of faults within policies.quarantine_window_s after which a policy gets no fresh instance until it is released or upgraded.",
        "from the next fault on"
    ),
    at_run_time!(
        "policies.quarantine_window_s",
        policies.quarantine_window_s,
        number(1, 3_600, "seconds"),
        parse,
        "The time window of policies.quarantine_faults.",
        "from the next fault on"
    ),
    Definition {
        key: "policies.isolation",
        what: "Where policies of tenants run by default; an attachment can override it. none: in the daemon, in sandboxes. process: in a process per tenant, so that the compiler of the sandboxes needn't be trusted.",
        takes: Takes::Words(|| words(&["none", "process"])),
        at_run_time: None,
        read: |config| json!(config.policies.isolation),
        write: None,
    },
    at_start!(
        "policies.process_memory_mib",
        policies.process_memory_mib,
        number(16, 4_096, "MiB"),
        "Memory that the policies of one tenant may write in its process."
    ),
    at_start!(
        "policies.trusted_keys",
        policies.trusted_keys,
        Takes::Text("a list of paths"),
        "Files with public keys: PEM (Ed25519, or ECDSA P-256 as cosign writes it), or wasmsign2's format. If there are any, the daemon accepts only modules signed with one of these keys."
    ),
    Definition {
        key: "policies.user",
        what: "User of the policy processes and compile workers of a daemon that runs as root. No other process may have this user, because processes of one user may stop and kill each other.",
        takes: Takes::Text("a name of /etc/passwd, or a number, which is also the group"),
        at_run_time: None,
        read: |config| {
            json!(
                config
                    .policies
                    .user
                    .clone()
                    .unwrap_or("2147000000".to_owned())
            )
        },
        write: None,
    },
    at_start!(
        "compile.timeout_ms",
        compile.timeout_ms,
        number(COMPILE_TIMEOUT_MS.0, COMPILE_TIMEOUT_MS.1, "milliseconds"),
        "CPU time for compiling one module. The largest accepted modules take about 2 s. A worker's wall-clock limit is six times this value."
    ),
    at_start!(
        "compile.memory_bytes",
        compile.memory_bytes,
        Takes::Bytes {
            least: COMPILE_MEMORY_BYTES.0,
            most: COMPILE_MEMORY_BYTES.1,
        },
        "Memory for compiling one module."
    ),
    at_start!(
        "compile.workers",
        compile.workers,
        number(1, MAX_COMPILE_WORKERS as u64, "processes"),
        "Modules compiled at the same time, over all tenants; each tenant has at most one. More workers speed up pushes of many tenants, and take CPU from their calls, at low priority."
    ),
    at_run_time!(
        "telemetry.durations",
        telemetry.durations,
        Takes::Flag,
        parse,
        "Whether to count calls' durations, per tenant, method, side and status.",
        "at once"
    ),
    at_start!(
        "telemetry.prometheus",
        telemetry.prometheus,
        Takes::Text("IP:PORT"),
        "Address at which Prometheus scrapes /metrics over HTTP. It shows all tenants' numbers to every client that can connect: keep it on loopback, or behind a firewall."
    ),
    at_start!(
        "telemetry.endpoint",
        telemetry.endpoint,
        Takes::Text("http://HOST:PORT, or https:// with TLS"),
        "The OpenTelemetry collector for all signals."
    ),
    at_start!(
        "telemetry.protocol",
        telemetry.protocol,
        Takes::Words(|| words(&["grpc", "http"])),
        "The collector's protocol: OTLP over gRPC, usually port 4317, or over HTTP, usually port 4318."
    ),
    at_start!(
        "telemetry.headers_file",
        telemetry.headers_file,
        Takes::Text("a path"),
        "File with headers that each request to the collector carries, one \"name: value\" per line, for example an API key."
    ),
    at_start!(
        "telemetry.ca",
        telemetry.ca,
        Takes::Text("a path"),
        "File with the certificates, in PEM, of the authorities that may have signed the collector's certificate, for https. Without it: the authorities that the system trusts."
    ),
    at_start!(
        "telemetry.compression",
        telemetry.compression,
        Takes::Words(|| words(&["none", "gzip"])),
        "Compression of requests to the collector. gzip: about a tenth of the bytes, for some CPU."
    ),
    at_run_time!(
        "telemetry.sample_per_million",
        telemetry.sample_per_million,
        number(0, MILLION as u64, "of a million calls"),
        parse,
        "Sampling rate of calls whose application has no span of its own for them. Calls with an application's span are traced if that span is sampled. Applies only if there is an endpoint.",
        "at once"
    ),
    at_run_time!(
        "telemetry.sample_errors",
        telemetry.sample_errors,
        Takes::Flag,
        parse,
        "Whether every failed call gets spans. Applies only if there is an endpoint.",
        "at once"
    ),
    at_start!(
        "telemetry.log_failures",
        telemetry.log_failures,
        Takes::Flag,
        "Whether failed calls are also logged in the daemon's own log, at most ten lines per second and tenant. An endpoint receives them in any case."
    ),
    at_run_time!(
        "telemetry.kept_spans",
        telemetry.kept_spans,
        number(0, MAX_KEPT_SPANS as u64, "spans"),
        parse,
        "Number of the newest spans that each runtime keeps for tollgate trace and tollgate explain, each about 1 KB. Without an endpoint these are the spans of failed calls and of calls whose application has a span of its own.",
        "at once"
    ),
    at_start!(
        "telemetry.interval_s",
        telemetry.interval_s,
        number(1, 3_600, "seconds"),
        "Interval at which metrics are sent."
    ),
    Definition {
        key: "telemetry.tenants",
        what: "Tenants' own telemetry, in tables [telemetry.tenants.NAME] with the keys endpoint, protocol, headers_file, ca, compression, sample_per_million and sample_errors. Each is like the daemon's own setting.",
        takes: Takes::Number {
            least: 0,
            most: MAX_TENANT_ENDPOINTS as u64,
            unit: "tables",
            zero: None,
        },
        at_run_time: None,
        read: |config| json!(config.telemetry.tenants.len()),
        write: None,
    },
    at_start!(
        "admin.listen",
        admin.listen,
        Takes::Text("IP:PORT"),
        "TCP address of the administrative API, for operators and tenants on other hosts; port 0 picks a free port. Beyond loopback it needs admin.certificate. Without it the API is on the host only."
    ),
    at_start!(
        "admin.certificate",
        admin.certificate,
        Takes::Text("a path"),
        "File with the API's certificate and those up to its authority, in PEM. The daemon speaks TLS 1.3, and reads the file again when it changes."
    ),
    at_start!(
        "admin.key",
        admin.key,
        Takes::Text("a path"),
        "File with the key of that certificate, in PEM, readable by its owner only. Read again when it changes."
    ),
    at_start!(
        "admin.client_ca",
        admin.client_ca,
        Takes::Text("a path"),
        "File with the authorities of clients' certificates, in PEM. Read again when it changes. Without it, clients have tokens only."
    ),
    Definition {
        key: "admin.certificates",
        what: "Clients' certificates that stand for credentials, in tables [[admin.certificates]]: name is a URI or a DNS name in the certificate, with * at its end for any characters, tenant and credential are what it stands for; without tenant it is an operators' credential. The first that fits counts.",
        takes: Takes::Number {
            least: 0,
            most: MAX_ADMIN_CERTIFICATES as u64,
            unit: "tables",
            zero: None,
        },
        at_run_time: None,
        read: |config| json!(config.admin.certificates.len()),
        write: None,
    },
    at_start!(
        "console.listen",
        console.listen,
        Takes::Text("IP:PORT"),
        "Address of the web console, which listens only while access given by tollgate console is valid, unless console.always is set; port 0 picks a free port. HTTP is unencrypted: on an address other than loopback, the network in between can read what the console shows, and the credentials for its actions. There, the console takes no tokens."
    ),
    at_start!(
        "console.always",
        console.always,
        Takes::Flag,
        "Whether the web console listens from the daemon's start, so that tenants can sign in with their tokens."
    ),
];

/// The value as an operator writes it.
pub(crate) fn written(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(written).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

impl Definition {
    /// The setting of this name.
    pub fn named(key: &str) -> Option<&'static Definition> {
        DEFINITIONS.iter().find(|setting| setting.key == key)
    }

    /// Its value in a configuration.
    pub(crate) fn read(&self, config: &Config) -> Value {
        (self.read)(config)
    }

    /// Checks this setting in a configuration.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let value = self.read(config);
        match self.takes.admits(&value) {
            true => Ok(()),
            false => Err(self.refuse(written(&value))),
        }
    }

    pub(crate) fn refuse(&self, value: String) -> ConfigError {
        ConfigError::OutOfRange {
            setting: self.key,
            value,
            expected: self.takes.to_string().into(),
        }
    }

    /// Writes a value into a configuration. If the value is rejected, the configuration must not be
    /// used.
    pub(crate) fn put(&self, config: &mut Config, text: &str) -> Result<(), ConfigError> {
        match self.write.is_some_and(|write| write(config, text)) {
            true => self.check(config),
            false => Err(self.refuse(text.to_owned())),
        }
    }

    fn default(&self) -> Option<String> {
        match self.read(&Config::default()) {
            Value::Null => None,
            value => Some(written(&value)),
        }
    }
}

/// The error for a text that a setting, or an element of it, doesn't accept.
pub(super) fn refuse(key: &'static str, text: &str) -> ConfigError {
    let takes = Definition::named(key).map(|setting| setting.takes.to_string());
    let takes = takes.unwrap_or_default();
    ConfigError::OutOfRange {
        setting: key,
        value: format!("{text:?}"),
        expected: takes.trim_start_matches("a list of ").to_owned().into(),
    }
}

/// A setting's help on the command line.
pub fn help(key: &str) -> String {
    let Some(setting) = Definition::named(key) else {
        return String::new();
    };
    let what = setting.what.trim_end_matches('.');
    // The parser lists words and their meanings itself. A flag takes no value.
    if let Takes::Words(_) | Takes::Flag = setting.takes {
        return what.to_owned();
    }
    let unit = match setting.takes.unit() {
        "" => String::new(),
        unit => format!(", in {unit}"),
    };
    let default = setting.default();
    let default = default.map_or(String::new(), |value| format!(" [default: {value}]"));
    format!("{what}: {}{unit}{default}", setting.takes)
}

/// The reference of all settings: a table in Markdown.
pub fn reference() -> String {
    let mut text = "| setting | meaning | values | default | a change at run time applies |\n|---|---|---|---|---|\n".to_owned();
    for setting in DEFINITIONS {
        let unit = match setting.takes.unit() {
            "" => String::new(),
            unit => format!(" {unit}"),
        };
        text += &format!(
            "| `{}` | {} | {}{unit} | {} | {} |\n",
            setting.key,
            setting.what.replace('*', "\\*"),
            setting.takes.to_string().replace('*', "\\*"),
            setting.default().unwrap_or("-".to_owned()),
            setting.at_run_time.unwrap_or("no"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde::de::value::Error;
    use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
    use serde::forward_to_deserialize_any;

    use super::*;
    use crate::config::{
        AdminConfig, CompileConfig, ConsoleConfig, Links, PeerConfig, Policies, RdmaConfig,
        TelemetryConfig,
    };

    /// Takes the names of a struct's fields from its deserialization.
    struct Fields<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("no struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            *self.0 = fields;
            Err(Error::custom("only the fields are wanted"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
            option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
            ignored_any
        }
    }

    fn fields<T: DeserializeOwned>(section: &str) -> Vec<String> {
        let mut fields: &'static [&'static str] = &[];
        assert!(T::deserialize(Fields(&mut fields)).is_err());
        assert!(!fields.is_empty(), "{section}");
        fields
            .iter()
            .map(|field| format!("{section}{field}"))
            .collect()
    }

    #[test]
    fn every_key_of_the_file_has_a_definition_and_no_other() {
        let sections = [
            "peers",
            "link",
            "rdma",
            "policies",
            "compile",
            "telemetry",
            "console",
            "admin",
        ];
        let mut keys = fields::<Config>("");
        keys.retain(|key| !sections.contains(&key.as_str()));
        keys.extend(fields::<PeerConfig>("peers."));
        keys.extend(fields::<Links>("link."));
        keys.extend(fields::<RdmaConfig>("rdma."));
        keys.extend(fields::<Policies>("policies."));
        keys.extend(fields::<CompileConfig>("compile."));
        keys.extend(fields::<TelemetryConfig>("telemetry."));
        keys.extend(fields::<ConsoleConfig>("console."));
        keys.extend(fields::<AdminConfig>("admin."));
        keys.sort();
        let mut defined: Vec<_> = DEFINITIONS.iter().map(|setting| setting.key).collect();
        defined.sort_unstable();
        assert_eq!(defined, keys);
    }

    #[test]
    fn defaults_are_admitted() {
        for setting in DEFINITIONS {
            setting.check(&Config::default()).unwrap();
        }
    }

    /// `TOLLGATE_BLESS=1` rewrites the reference.
    #[test]
    fn the_reference_page_is_this_one() {
        const BEGIN: &str = "<!-- settings: written by TOLLGATE_BLESS=1 cargo test -p tollgate-daemon --lib the_reference -->\n";
        const END: &str = "<!-- end of settings -->";
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/src/reference/settings.md"
        );
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (written, after) = rest.split_once(END).unwrap();
        if std::env::var_os("TOLLGATE_BLESS").is_some() {
            let text = format!("{before}{BEGIN}{}{END}{after}", reference());
            return std::fs::write(path, text).unwrap();
        }
        assert_eq!(written, reference(), "see the comment above the table");
    }

    #[test]
    fn help_names_range_unit_and_default() {
        assert_eq!(
            help("compile.memory_bytes"),
            "Memory for compiling one module: 64 MiB (67108864) to 8 GiB (8589934592), in bytes [default: 536870912]"
        );
        let help = help("wait_target_us");
        assert!(
            help.contains(": 0 (off), or 100 to 1000000, in microseconds [default: 0]"),
            "{help}"
        );
    }
}
