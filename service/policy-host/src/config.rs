//! The operator's settings: per host, and per tenant.

use std::time::Duration;

use crate::{Capabilities, Rate, SharedState, limits};

/// The host's configuration. Fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Instances alive at once, over all tenants and threads. Default 1,000. Each reserves 4 GiB of
    /// address space (of 128 TiB) and up to 4 memory mappings (bounded by `vm.max_map_count`, by
    /// default 65,530): 10,000 fit. After an instance ends, up to [`limits::KEPT_MEMORY_BYTES`] of
    /// its touched memory stay resident, zeroed.
    pub instances: u32,
    /// Bytes of linear memory that [`TenantLimits::memory_bytes`] may reach. Default 16 MiB.
    pub memory_bytes_max: usize,
    /// Elements that [`TenantLimits::table_elements`] may reach. Default 16,384. The pool reserves
    /// 8 bytes for each, per instance.
    pub table_elements_max: usize,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig {
            instances: limits::INSTANCES,
            memory_bytes_max: 4 * limits::MEMORY_BYTES,
            table_elements_max: limits::TABLE_ELEMENTS_MAX,
        }
    }
}

/// Limits of one instance. Values above the host's maxima are cut to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// Bytes of linear memory. Default 4 MiB. A Rust guest needs 1.2 MiB for its stack and statics.
    pub memory_bytes: usize,
    /// Bytes of linear memory of a compat module, instead. Default 8 MiB: Go's collector needs
    /// them.
    pub compat_memory_bytes: usize,
    /// Elements of its function table. Default 8,192.
    pub table_elements: usize,
    /// Fuel for evaluating one call; a batch gets this much per call. Default 350,000 units, at
    /// most about 100 us ([`crate::FUEL_PER_MICROSECOND`]). A lower value protects the other
    /// tenants' latency, a higher one allows more work.
    pub fuel_per_call: u64,
    /// Fuel for start function, first buffer and configuration together. Default 350,000,000 units,
    /// at most about 100 ms. Spent by the thread that instantiates, off the datapath.
    pub fuel_for_setup: u64,
    /// Fuel for `tollgate_save`, and the same amount for `tollgate_restore`. Default 7,000,000
    /// units, at most about 2 ms. Spent on the datapath, once per upgrade.
    pub fuel_for_handover: u64,
}

impl TenantLimits {
    /// The defaults, with `per_call` of CPU time for evaluating one call (cut to between 5 us and
    /// 10 ms) and every budget in units of this machine.
    pub fn for_cpu(per_call: Duration, rate: Rate) -> TenantLimits {
        let bounds =
            Duration::from_micros(limits::CPU_US_MIN)..=Duration::from_micros(limits::CPU_US_MAX);
        let per_call = per_call.clamp(*bounds.start(), *bounds.end());
        let fuel = |budget: u64| rate.fuel(Rate::default().time(budget));
        TenantLimits {
            fuel_per_call: rate.fuel(per_call),
            fuel_for_setup: fuel(limits::FUEL_FOR_SETUP),
            fuel_for_handover: fuel(limits::FUEL_FOR_HANDOVER),
            ..TenantLimits::default()
        }
    }
}

impl Default for TenantLimits {
    fn default() -> TenantLimits {
        TenantLimits {
            memory_bytes: limits::MEMORY_BYTES,
            compat_memory_bytes: limits::COMPAT_MEMORY_BYTES,
            table_elements: limits::TABLE_ELEMENTS,
            fuel_per_call: limits::FUEL_PER_CALL,
            fuel_for_setup: limits::FUEL_FOR_SETUP,
            fuel_for_handover: limits::FUEL_FOR_HANDOVER,
        }
    }
}

/// An instance's inputs besides its policy.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Its limits.
    pub limits: &'a TenantLimits,
    /// Its configuration; none is the same as an empty one.
    pub config: Option<&'a [u8]>,
    /// Its rights. They must include all capabilities that its manifest declares.
    pub granted: Capabilities,
    /// The state that it shares with other instances. Without one it gets its own.
    pub state: Option<&'a SharedState>,
}

impl<'a> Setup<'a> {
    /// No configuration, the default capabilities, no sharing.
    pub fn new(limits: &'a TenantLimits) -> Setup<'a> {
        Setup {
            limits,
            config: None,
            granted: Capabilities::default(),
            state: None,
        }
    }
}
