//! Limits of policies and of their compilation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tollgate_control::Isolation;
use tollgate_policy_host::CompilerConfig;

/// Limits of policies: the section `[policies]`. An attachment can override `cpu_us` for itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// CPU time of one evaluation.
    pub cpu_us: u32,
    /// CPU share of the policies of one tenant together.
    pub cpu_share_percent: u8,
    /// Linear memory of an instance. A policy in Rust needs 1,200 KiB.
    pub memory_kib: u32,
    /// Instances that exist at the same time, over all tenants.
    pub instances: u32,
    /// Number of faults within `quarantine_window_s` after which a policy gets no fresh instance
    /// until it is released or upgraded.
    pub quarantine_faults: u32,
    /// The time window of `quarantine_faults`.
    pub quarantine_window_s: u32,
    /// Where policies of tenants run by default; an attachment can override it. `none` (default):
    /// in the daemon, in sandboxes. `process`: in a process per tenant, so that the compiler of the
    /// sandboxes needn't be trusted.
    ///
    /// A process costs up to two wake-ups per evaluation, memory per tenant, and its own time spent
    /// spinning (`spin_us`).
    pub isolation: Isolation,
    /// Memory that the policies of one tenant may write in its process.
    pub process_memory_mib: u32,
    /// Files with public keys: PEM (Ed25519, or ECDSA P-256 as cosign writes it), or wasmsign2's
    /// format. If there are any, the daemon accepts only modules signed with one of these keys.
    pub trusted_keys: Vec<PathBuf>,
    /// User of the policy processes and compile workers of a daemon that runs as root: a name from
    /// `/etc/passwd`, or a number, which is also used as the group.
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

/// Limits of compiling tenants' policies. Each module is compiled by a process of its own, which is
/// killed at these limits.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct CompileConfig {
    /// CPU time for one module.
    pub timeout_ms: u64,
    /// Memory for one module.
    pub memory_bytes: u64,
    /// Modules compiled at the same time, over all tenants.
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

impl CompileConfig {
    /// The settings in the compiler's form. Compiled code is kept in `state`, if there is one.
    pub(crate) fn compiler(&self, state: Option<&Path>) -> CompilerConfig {
        CompilerConfig {
            timeout: Duration::from_millis(self.timeout_ms),
            memory_bytes: self.memory_bytes,
            artifacts: state.map(|state| state.join("compiled")),
            ..CompilerConfig::default()
        }
    }
}
