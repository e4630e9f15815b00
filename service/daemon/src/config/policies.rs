//! What policies may use, and what compiling them may take.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tollgate_control::Isolation;
use tollgate_policy_host::CompilerConfig;

use super::error::ConfigError;
use crate::limits::{COMPILE_MEMORY_BYTES, COMPILE_TIMEOUT_MS, MAX_COMPILE_WORKERS};

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

    /// As the compiler wants it; code is kept in `state`, if there is one.
    pub(crate) fn compiler(&self, state: Option<&Path>) -> CompilerConfig {
        CompilerConfig {
            timeout: Duration::from_millis(self.timeout_ms),
            memory_bytes: self.memory_bytes,
            artifacts: state.map(|state| state.join("compiled")),
            ..CompilerConfig::default()
        }
    }
}
