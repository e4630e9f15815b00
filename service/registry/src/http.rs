//! How registries are accessed: user agent, time limit, and which registries are accessed without
//! TLS.

use std::time::Duration;

/// The longest duration of a complete fetch.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const USER_AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));

/// Whether this is `host` or `host:port` of a loopback address.
pub(crate) fn is_this_host(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}
