//! Targets that applications may name: those that the operator has listed, or all if targets are
//! open.
//!
//! The daemon connects to a target in the name of its tenants and with its own key. If applications
//! chose targets freely, any of them could make the daemon dial a port of the application's own.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;
use tollgate_transport::limits::MAX_TARGET;

use crate::config::Config;
use crate::limits::MAX_HOST;

/// Any host, or any port.
const ANY: &str = "*";

/// Host and port of `host:port`.
fn split(address: &str) -> Option<(&str, &str)> {
    let (host, port) = address.rsplit_once(':')?;
    let is_host = !host.is_empty() && (host.starts_with('[') || !host.contains(':'));
    let is_plain = address.len() <= MAX_TARGET && address.bytes().all(|b| b.is_ascii_graphic());
    (is_host && is_plain).then_some((host, port))
}

/// Whether an operator may list this address.
pub(crate) fn is_pattern(address: &str) -> bool {
    split(address).is_some_and(|(_, port)| port == ANY || port.parse::<u16>().is_ok())
}

/// Whether this is a valid name of a daemon: `host`, or `host:port`.
pub(crate) fn is_name(name: &str) -> bool {
    let with_port = split(name).is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let alone = format!("{name}:0");
    with_port || split(&alone).is_some_and(|(host, _)| host == name)
}

/// A host's address, if the host is an address and not a name.
fn literal(host: &str) -> Option<IpAddr> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let ip: IpAddr = bare.unwrap_or(host).parse().ok()?;
    Some(ip.to_canonical())
}

fn same_host(a: &str, b: &str) -> bool {
    match (literal(a), literal(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => {
            let [a, b] = [a, b].map(|host| host.trim_end_matches('.'));
            a.eq_ignore_ascii_case(b)
        }
        _ => false,
    }
}

fn matches(pattern: &str, target: &str) -> bool {
    let (Some((host, port)), Some((its_host, its_port))) = (split(pattern), split(target)) else {
        return false;
    };
    let same_port = || port.parse::<u16>().ok() == its_port.parse().ok();
    (host == ANY || same_host(host, its_host)) && (port == ANY || same_port())
}

/// The canonical spelling of a target: the host in lower case and without a final dot, an address
/// in its shortest form, the port as a number. Two spellings of one target are one peer, with one
/// link per tenant.
///
/// # Errors
/// A sentence that says why it isn't a peer's `host:port`.
pub(crate) fn canonical(target: &str) -> Result<String, Status> {
    let named = match target.len() {
        ..=MAX_TARGET => named(target),
        bytes => Err(TargetError::Long { bytes }),
    };
    named.map_err(|why| {
        let shown: String = target.chars().take(MAX_TARGET).collect();
        let text = format!("target {shown:?} isn't host:port of a peer: {why}");
        Status::new(Code::INVALID_ARGUMENT, text)
    })
}

/// Why a target isn't a peer's `host:port`.
#[derive(Debug, thiserror::Error)]
enum TargetError {
    #[error("it has {bytes} bytes, the limit is {MAX_TARGET}")]
    Long { bytes: usize },
    #[error("it is a URL; write the host and the port only")]
    Url,
    #[error("an IPv6 address with its port is written [{address}]:PORT")]
    Brackets { address: String },
    #[error("it has no host")]
    NoHost,
    #[error("its host has more than {MAX_HOST} bytes")]
    LongHost,
    #[error("its host has characters that names can't have")]
    HostCharacters,
    #[error("it has no port")]
    NoPort,
    #[error("its port {port:?} isn't a number from 1 to 65535")]
    Port { port: String },
}

fn named(target: &str) -> Result<String, TargetError> {
    if let Ok(mut address) = target.parse::<SocketAddr>()
        && address.port() > 0
    {
        address.set_ip(address.ip().to_canonical());
        return Ok(address.to_string());
    }
    if target.contains('/') {
        return Err(TargetError::Url);
    }
    if target.parse::<Ipv6Addr>().is_ok() {
        let address = target.to_owned();
        return Err(TargetError::Brackets { address });
    }
    let (host, port) = target.rsplit_once(':').ok_or(TargetError::NoPort)?;
    if host.len() > MAX_HOST {
        return Err(TargetError::LongHost);
    }
    if host.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(TargetError::HostCharacters);
    }
    let is_address = host.starts_with('[') && literal(host).is_some();
    if host.contains([':', '[', ']']) && !is_address {
        let address = "ADDRESS".to_owned();
        return Err(TargetError::Brackets { address });
    }
    let host = host.trim_end_matches('.');
    if host.is_empty() {
        return Err(TargetError::NoHost);
    }
    let number = port.parse::<u16>().ok().filter(|port| *port > 0);
    let number = number.ok_or_else(|| TargetError::Port {
        port: port.to_owned(),
    })?;
    Ok(match literal(host) {
        Some(ip) => SocketAddr::new(ip, number).to_string(),
        None => format!("{}:{number}", host.to_ascii_lowercase()),
    })
}

/// Whether applications may name this target.
///
/// # Errors
/// A sentence with the target and the ways to allow it.
pub(crate) fn allow(config: &Config, target: &str) -> Result<(), Status> {
    let mut listed = config.peers.iter();
    if config.link.open_targets || listed.any(|peer| matches(&peer.address, target)) {
        return Ok(());
    }
    let text = format!(
        "target {target:?} isn't among the peers that this daemon's operator has listed: `--peer` or `[[peers]]` lists one, `--open-targets` allows all"
    );
    Err(Status::new(Code::PERMISSION_DENIED, text))
}

/// Whether a target is this daemon's own listening address. It then stands for applications of this
/// host.
pub(crate) fn is_own(listen: Option<SocketAddr>, target: &str) -> bool {
    let (Some(listen), Some((host, port))) = (listen, split(target)) else {
        return false;
    };
    let ip = listen.ip().to_canonical();
    let is_host = match literal(host) {
        Some(its) => its == ip || ip.is_unspecified() && its.is_loopback(),
        None => host.eq_ignore_ascii_case("localhost") && (ip.is_unspecified() || ip.is_loopback()),
    };
    is_host && port.parse() == Ok(listen.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::PeerConfig;

    #[test]
    fn a_target_is_one_that_was_listed() {
        let check = |pattern: &str, target: &str, allowed: bool| {
            let mut config = Config::default();
            assert!(allow(&config, target).is_err());
            let address = pattern.to_owned();
            config.peers.push(PeerConfig { address });
            assert_eq!(
                allow(&config, target).is_ok(),
                allowed,
                "{pattern} {target}"
            );
            config.link.open_targets = true;
            assert!(allow(&config, target).is_ok());
        };
        check("b.example:7471", "b.example:7471", true);
        check("b.example:7471", "B.Example.:7471", true);
        check("b.example:7471", "b.example:07471", true);
        check("b.example:7471", "b.example:7472", false);
        check("b.example:7471", "evil.b.example:7471", false);
        check("b.example:7471", "b.example", false);
        check("b.example:*", "b.example:1", true);
        check("*:7471", "10.0.0.1:7471", true);
        check("*:7471", "10.0.0.1:7472", false);
        check("*:*", "[::1]:9", true);
        check("*:*", "", false);
        check("*:*", "nowhere", false);
        check("*.example:7471", "b.example:7471", false);
        check("10.0.0.1:7471", "[::ffff:10.0.0.1]:7471", true);
        check("10.0.0.1:7471", "10.0.0.01:7471", false);
        check("[::1]:7471", "[0:0::1]:7471", true);
        check("127.0.0.1:7471", "localhost:7471", false);
        check("b:7471", "b:7471\n", false);
    }

    #[test]
    fn a_refusal_names_the_target_and_the_ways_out() {
        let refused = allow(&Config::default(), "evil:1\u{1b}").unwrap_err();
        assert_eq!(refused.code, Code::PERMISSION_DENIED);
        for said in [r#""evil:1\u{1b}""#, "--peer", "[[peers]]", "--open-targets"] {
            assert!(refused.message.contains(said), "{}", refused.message);
        }
    }

    #[test]
    fn a_target_has_one_spelling() {
        let check = |spelled: &str, expected: &str| {
            assert_eq!(canonical(spelled).unwrap(), expected, "{spelled}");
            assert_eq!(canonical(expected).unwrap(), expected);
            let mut config = Config::default();
            let address = expected.to_owned();
            config.peers.push(PeerConfig { address });
            allow(&config, spelled).unwrap();
        };
        for spelled in [
            "b.example:7471",
            "B.Example:7471",
            "b.example.:7471",
            "b.EXAMPLE:0007471",
            "b.example:+7471",
        ] {
            check(spelled, "b.example:7471");
        }
        check("10.0.0.1:07471", "10.0.0.1:7471");
        check("[10.0.0.1]:7471", "10.0.0.1:7471");
        check("[::ffff:10.0.0.1]:7471", "10.0.0.1:7471");
        check("[0:0::1]:7471", "[::1]:7471");
        check("[FE80:0::0001]:7471", "[fe80::1]:7471");
        assert_eq!(canonical("[fe80::1%2]:1").unwrap(), "[fe80::1%2]:1");
    }

    #[test]
    fn what_is_no_target_is_refused_with_why() {
        let refused = |target: &str, why: &str| {
            let status = canonical(target).unwrap_err();
            assert_eq!(status.code, Code::INVALID_ARGUMENT);
            assert!(status.message.contains(why), "{}", status.message);
            assert!(status.message.len() < 4_096, "{}", status.message.len());
        };
        refused("b", "no port");
        refused(":7471", "no host");
        refused(".:7471", "no host");
        refused("b:", "\"\" isn't a number");
        refused("b:0", "1 to 65535");
        refused("b:65536", "1 to 65535");
        refused("b\n:1", "characters");
        refused("127.0.0.1", "no port");
        refused("http://localhost:1", "a URL");
        refused("b:1/path", "a URL");
        refused("[::1", "[ADDRESS]:PORT");
        refused("[b]:1", "[ADDRESS]:PORT");
        refused("::1", "[::1]:PORT");
        refused("fe80::1:zz:1", "[ADDRESS]:PORT");
        refused(&format!("{}:1", "b".repeat(254)), "253 bytes");
        refused(&format!("{}:1", "\u{1}".repeat(60_000)), "60002 bytes");
        refused(&format!("b:{}1", "0".repeat(60_000)), "the limit is 260");
        canonical("b.example:7471").unwrap();
        canonical(&format!("{}:65535", "b".repeat(253))).unwrap();
    }

    #[test]
    fn a_daemon_knows_where_it_listens() {
        let check = |listen: &str, target: &str, own: bool| {
            let listen = listen.parse().unwrap();
            assert_eq!(is_own(Some(listen), target), own, "{listen} {target}");
        };
        check("127.0.0.1:7471", "127.0.0.1:7471", true);
        check("127.0.0.1:7471", "localhost:7471", true);
        check("127.0.0.1:7471", "127.0.0.1:7472", false);
        check("127.0.0.1:7471", "127.0.0.2:7471", false);
        check("0.0.0.0:7471", "127.0.0.1:7471", true);
        check("[::]:7471", "[::1]:7471", true);
        check("192.0.2.2:7471", "192.0.2.2:7471", true);
        check("192.0.2.2:7471", "127.0.0.1:7471", false);
        check("192.0.2.2:7471", "localhost:7471", false);
        assert!(!is_own(None, "127.0.0.1:7471"));
    }

    #[test]
    fn what_may_be_listed() {
        for good in [
            "b:1",
            "*:*",
            "*:7471",
            "b.example:*",
            "[::1]:7471",
            "10.0.0.1:65535",
        ] {
            assert!(is_pattern(good), "{good}");
        }
        for bad in [
            "", "b", "b:", ":1", "b:x", "b:65536", "::1:7471", "b c:1", "b:1\n",
        ] {
            assert!(!is_pattern(bad), "{bad}");
        }
        for good in [
            "b",
            "b.example",
            "b.example:443",
            "[::1]",
            "[::1]:443",
            "203.0.113.5",
        ] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "b:x", "::1", "a b", ":443"] {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(!is_name(&"n".repeat(MAX_TARGET)));
    }
}
