//! Reasons why RDMA is missing or has ended; each is a sentence that an operator can act on.

use std::net::SocketAddr;

use rustix::io::Errno;
use tollgate_transport::ConfigError;

use crate::limits;
use crate::wire::WireError;

/// The reason why RDMA is unavailable, or why a link over it can't be opened. None of them prevents
/// the use of TCP.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum RdmaError {
    #[error("this daemon was built without RDMA: build it with the Cargo feature `verbs`")]
    NotBuilt,
    #[error(
        "there is no librdmacm or libibverbs on this host: install rdma-core (Debian: ibverbs-providers librdmacm1)"
    )]
    NoLibrary,
    #[error(
        "this host has no RDMA device: `rdma link` lists those that the kernel knows, and `ibv_devices` those that verbs can use"
    )]
    NoDevice,
    #[error("{doing} failed: {errno}")]
    Call { doing: &'static str, errno: Errno },
    #[error(
        "pinning {bytes} bytes for {device} failed: {errno}; this process may pin {limit} (RLIMIT_MEMLOCK: raise systemd's LimitMEMLOCK, or ulimit -l)"
    )]
    Pinning {
        device: String,
        bytes: usize,
        errno: Errno,
        limit: String,
    },
    #[error(
        "{device} can't read memory that is mapped read-only ({errno}): Linux before 6.2 refuses that"
    )]
    ReadOnly { device: String, errno: Errno },
    #[error("{device} has {count} heaps registered, which is the limit")]
    TooManyHeaps { device: String, count: usize },
    #[error("{device} takes {found} {what}; a link needs {needed}")]
    Device {
        device: String,
        what: &'static str,
        found: u32,
        needed: u32,
    },
    #[error("{address} isn't reachable by any RDMA device: {sentence}")]
    Unreachable {
        address: SocketAddr,
        sentence: String,
    },
    #[error("no connection with {address} after {} s", limits::CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout { address: SocketAddr },
    #[error(
        "{address} isn't a loopback address: a peer beyond this host needs a key, the same on both daemons"
    )]
    NeedsKey { address: SocketAddr },
    #[error("{address} said: {error}")]
    Greeting {
        address: SocketAddr,
        error: WireError,
    },
    #[error(
        "ring_bytes is {bytes}; use 0 or {} to {}",
        limits::MIN_RING_BYTES,
        limits::MAX_RING_BYTES
    )]
    RingBytes { bytes: u32 },
    #[error("a pool for {links} links; use 1 to {}", limits::POOL_LINKS)]
    PoolLinks { links: u16 },
    #[error("a poller with {pools} pools; use 1 to {}", limits::POLLER_POOLS)]
    PollerPools { pools: u16 },
    #[error("the poller has {links} links on {device}, as many as it was made for")]
    PollerFull { device: String, links: u32 },
    #[error(transparent)]
    Config(#[from] ConfigError),
}
