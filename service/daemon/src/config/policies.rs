//! Limits of policies and of their compilation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tollgate_control::Isolation;
use tollgate_policy_host::CompilerConfig;

use super::error::ConfigError;
use crate::limits::{COMPILE_MEMORY_BYTES, COMPILE_TIMEOUT_MS, MAX_COMPILE_WORKERS};

/// Limits of policies: the section `[policies]`. An attachment can override `cpu_us` for itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// CPU time of one evaluation in microseconds, 5 to 10,000. Default 100.
    ///
    /// A lower limit protects the other tenants' latency, a higher limit allows more complex
    /// policies.
    pub cpu_us: u32,
    /// CPU share of the policies of one tenant together, in percent of one core, 1 to 100. Default
    /// 25.
    pub cpu_share_percent: u8,
    /// Linear memory of an instance in KiB, 64 to 16,384. Default 4,096. A policy in Rust needs
    /// 1,200 KiB.
    pub memory_kib: u32,
    /// Instances that exist at the same time, over all tenants, 1 to 20,000. Default 1,000.
    ///
    /// Each instance reserves 4 GiB of address space and up to 4 memory mappings
    /// (`vm.max_map_count` limits them, 65,530 by default).
    pub instances: u32,
    /// Number of faults within `quarantine_window_s` after which a policy gets no fresh instance
    /// until an operator acts, 1 to 1,000. Default 5.
    pub quarantine_faults: u32,
    /// The time window of `quarantine_faults`, in seconds, 1 to 3,600. Default 60.
    pub quarantine_window_s: u32,
    /// Where policies of tenants run by default; an attachment can override it. `none` (default):
    /// in the daemon, in sandboxes. `process`: in a process per tenant, so that the compiler of the
    /// sandboxes needn't be trusted.
    ///
    /// A process costs up to two wake-ups per evaluation, memory per tenant, and its own time spent
    /// spinning (`spin_us`).
    pub isolation: Isolation,
    /// Memory that the policies of one tenant may write in its process, in MiB, 16 to 4,096.
    /// Default 256.
    pub process_memory_mib: u32,
    /// Files with public keys: PEM (Ed25519, or ECDSA P-256 as cosign writes it), or wasmsign2's
    /// format. If there are any, the daemon accepts only modules signed with one of these keys.
    /// Default: none.
    pub trusted_keys: Vec<PathBuf>,
    /// User of the policy processes and compile workers of a daemon that runs as root: a name from
    /// `/etc/passwd`, or a number, which is also used as the group. Default: 2,147,000,000, which
    /// no system assigns.
    ///
    /// No other process may have this user, because processes of one user may stop and kill each
    /// other. Daemons that don't run as root ignore it.
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
    /// CPU time for one module in milliseconds, 100 to 600,000. Default 10,000.
    ///
    /// The largest accepted modules take about 2 s. A worker's wall-clock limit is six times this
    /// value.
    pub timeout_ms: u64,
    /// Memory for one module in bytes, 64 MiB to 8 GiB. Default 512 MiB.
    pub memory_bytes: u64,
    /// Modules compiled at the same time, over all tenants, 1 to 16. Default 2.
    ///
    /// Each tenant has at most one. More workers speed up pushes of many tenants, and take CPU from
    /// their calls, at low priority.
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

impl Policies {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
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
    pub(super) fn check(&self) -> Result<(), ConfigError> {
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
