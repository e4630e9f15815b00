//! Ports for programs that can't choose a free one and say which.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Below the ports that the kernel gives to clients (`ip_local_port_range`, ip(7)). From those, a
/// client that tries whether the program listens already could get the program's port for its own
/// end: it would be connected with itself, and the program couldn't bind the port.
const PORTS: Range<u16> = 10_000..32_768;

/// How many addresses this process has been given.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// An unused loopback address, another one each time. Other processes begin elsewhere.
///
/// # Panics
/// If there is none.
pub fn free() -> SocketAddr {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let begin = now.map_or(0, |now| now.subsec_nanos()) ^ std::process::id();
    let tried = (0..PORTS.len()).map(|_| {
        let number = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (number as usize % PORTS.len()) as u16;
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    });
    let mut unused = tried.filter(|at| TcpListener::bind(at).is_ok());
    unused.next().expect("there are free ports")
}
