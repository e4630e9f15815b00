//! Extracts numbers from a client's JSON.

/// A number from a client's JSON, and its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Its key.
    pub(crate) key: &'static str,
    /// Its column's title, with the unit.
    pub(crate) title: &'static str,
    /// Digits after the point.
    pub(crate) digits: usize,
    /// Whether a larger number is better.
    pub(crate) more: bool,
}

pub(crate) const P50: Metric = Metric {
    key: "p50_us",
    title: "p50, us",
    digits: 1,
    more: false,
};
pub(crate) const P99: Metric = Metric {
    key: "p99_us",
    title: "p99, us",
    digits: 1,
    more: false,
};
/// The mean time of the handler, and of its client before and after the call.
pub(crate) const APPLICATION: Metric = Metric {
    key: "application_us",
    title: "application, us",
    digits: 1,
    more: false,
};
/// The mean of the rest of the latency.
pub(crate) const NETWORK: Metric = Metric {
    key: "network_us",
    title: "network, us",
    digits: 1,
    more: false,
};
pub(crate) const RPS: Metric = Metric {
    key: "rps",
    title: "calls/s",
    digits: 0,
    more: true,
};
pub(crate) const GOODPUT: Metric = Metric {
    key: "gbytes_s",
    title: "GB/s",
    digits: 3,
    more: true,
};
pub(crate) const FIRST_CALL: Metric = Metric {
    key: "first_call_ms",
    title: "first call, ms",
    digits: 2,
    more: false,
};
pub(crate) const OPEN: Metric = Metric {
    key: "open_ms",
    title: "session before it, ms",
    digits: 2,
    more: false,
};
/// CPU time of server and daemons.
pub(crate) const SHARE: Metric = Metric {
    key: "share_percent",
    title: "server and daemons, % of a core",
    digits: 1,
    more: false,
};
/// The difference between the two tenants' shares of the daemon's time.
pub(crate) const DIFFERENCE: Metric = Metric {
    key: "share_difference_percent",
    title: "difference of shares, %",
    digits: 1,
    more: false,
};
/// The rival's goodput.
pub(crate) const RIVAL_GOODPUT: Metric = Metric {
    key: "rival_gbytes_s",
    title: "rival's GB/s",
    digits: 3,
    more: true,
};
/// Memory of all processes involved; shared pages count once.
pub(crate) const MEMORY: Metric = Metric {
    key: "pss_mib",
    title: "MiB of all processes",
    digits: 0,
    more: false,
};
/// CPU time of all processes involved.
pub(crate) const CPU: Metric = Metric {
    key: "cpu_s_per_million",
    title: "CPU s per million calls",
    digits: 1,
    more: false,
};
