//! How registries are asked: as whom, for how long, and which of them without TLS.

use std::time::Duration;

/// The longest that a fetch may take as a whole.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const USER_AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));

/// `host` or `host:port` of a loopback address.
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
