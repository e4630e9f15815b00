//! Connections: who is at the other end, and how many there may be; and places in general.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tollgate_shm_abi::status::Code;
use tonic::transport::server::Connected;

use super::tls::Tls;
use crate::limits::{
    ACCEPT_PAUSE, CONNECTIONS, CONNECTIONS_PER_USER, OPERATORS_CONNECTIONS, PREFACE_TIME,
    REMOTE_CONNECTIONS, REMOTE_CONNECTIONS_PER_NETWORK,
};
use crate::status::Status;

/// The bytes with which a client of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this host, when it connected.
    Process {
        /// Its user.
        uid: u32,
        /// Its process id; 0 if the kernel doesn't tell it.
        pid: i32,
    },
    /// A client on the network.
    Remote {
        /// Its address.
        address: IpAddr,
        /// The names of its certificate (URIs, then DNS names), which one of the configured
        /// authorities has signed; empty without a certificate.
        names: Arc<[String]>,
    },
}

/// Where requests come from, for limits: a user of this host, or a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A user.
    User(u32),
    /// An IPv4 address, or the first 64 bits of an IPv6 address, which one client has all of.
    Network(IpAddr),
}

impl Peer {
    /// Where its requests come from.
    pub fn origin(&self) -> Origin {
        match self {
            Peer::Process { uid, .. } => Origin::User(*uid),
            Peer::Remote { address, .. } => Origin::of(*address),
        }
    }
}

impl Origin {
    fn of(address: IpAddr) -> Origin {
        Origin::Network(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Ipv6Addr::from_bits(network).into()
            }
            address => address,
        })
    }
}

/// `user 1000`, `address 192.0.2.1` or `network 2001:db8::/64`.
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::User(uid) => write!(f, "user {uid}"),
            Origin::Network(IpAddr::V4(address)) => write!(f, "address {address}"),
            Origin::Network(IpAddr::V6(network)) => write!(f, "network {network}/64"),
        }
    }
}

/// How many of something there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// In all.
    pub(super) all: usize,
    /// Of those, the ones that only operators' processes get.
    pub(super) operators: usize,
    /// Of one origin that isn't an operator's process.
    pub(super) of_origin: usize,
}

/// Counts something, in all and of each origin that isn't an operator's process.
#[derive(Debug)]
pub(super) struct Places {
    most: Most,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of_origins: HashMap<Origin, usize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    origin: Option<Origin>,
}

impl Places {
    pub(super) fn new(most: Most) -> Arc<Places> {
        let taken = Mutex::default();
        Arc::new(Places { most, taken })
    }

    /// The refusal of one more.
    pub(super) fn full(&self, what: &str, origin: Origin) -> Status {
        let Most { all, of_origin, .. } = self.most;
        let text = format!(
            "{all} {what}, or {of_origin} of {origin}, are in progress, which is the limit: try again in a moment"
        );
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// `None`: there is no room for another one of this origin.
    pub(super) fn take(places: &Arc<Places>, origin: Origin, is_operator: bool) -> Option<Place> {
        let (most, mut taken) = (places.most, places.taken());
        let all = match is_operator {
            true => most.all,
            false => most.all - most.operators,
        };
        if taken.all >= all {
            return None;
        }
        if !is_operator {
            let its = taken.of_origins.entry(origin).or_default();
            if *its >= most.of_origin {
                return None;
            }
            *its += 1;
        }
        taken.all += 1;
        Some(Place {
            places: Arc::clone(places),
            origin: (!is_operator).then_some(origin),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(origin) = self.origin
            && let Some(its) = taken.of_origins.get_mut(&origin)
        {
            *its -= 1;
            if *its == 0 {
                taken.of_origins.remove(&origin);
            }
        }
    }
}

/// Bytes of a client, whatever carries them.
trait Bytes: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Bytes for T {}

/// A connection with its place.
pub(super) struct Connection {
    stream: Pin<Box<dyn Bytes>>,
    peer: Peer,
    /// Until HTTP/2's preface has come, and how much of it is missing. From then on, the server's
    /// pings find a dead client.
    silent: Option<(Pin<Box<Sleep>>, usize)>,
    _place: Place,
}

/// The connections that have a place, in the order in which they are ready. Others are closed at
/// once.
pub(super) type Accepted = ReceiverStream<io::Result<Connection>>;

impl Connection {
    fn new(stream: impl Bytes + 'static, peer: Peer, place: Place) -> Connection {
        Connection {
            stream: Box::pin(stream),
            peer,
            silent: Some((Box::pin(tokio::time::sleep(PREFACE_TIME)), PREFACE_BYTES)),
            _place: place,
        }
    }
}

/// Accepts processes of this host, until nobody takes the connections.
pub(super) fn of_processes(listener: UnixListener, is_operator: fn(u32) -> bool) -> Accepted {
    let (sender, receiver) = mpsc::channel(1);
    let places = Places::new(Most {
        all: CONNECTIONS,
        operators: OPERATORS_CONNECTIONS,
        of_origin: CONNECTIONS_PER_USER,
    });
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let Ok((stream, _)) = accepted else {
                // There may be no descriptor for it. It stays in the backlog.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(credentials) = stream.peer_cred() else {
                continue;
            };
            let (uid, pid) = (credentials.uid(), credentials.pid().unwrap_or(0));
            let Some(place) = Place::take(&places, Origin::User(uid), is_operator(uid)) else {
                continue;
            };
            let connection = Connection::new(stream, Peer::Process { uid, pid }, place);
            if sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Accepts clients on the network, until nobody takes the connections. A handshake in progress
/// holds up nobody else.
pub(super) fn of_the_network(listener: TcpListener, tls: Option<Tls>) -> Accepted {
    let (sender, receiver) = mpsc::channel(1);
    let places = Places::new(Most {
        all: REMOTE_CONNECTIONS,
        operators: 0,
        of_origin: REMOTE_CONNECTIONS_PER_NETWORK,
    });
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let Ok((stream, from)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let address = from.ip().to_canonical();
            let Some(place) = Place::take(&places, Origin::of(address), false) else {
                continue;
            };
            // Small answers wait for nothing.
            let _as_it_is = stream.set_nodelay(true);
            let (tls, sender) = (tls.clone(), sender.clone());
            tokio::spawn(async move {
                if let Some(connection) = secured(stream, address, tls, place).await {
                    let _nobody_takes_it = sender.send(Ok(connection)).await;
                }
            });
        }
    });
    ReceiverStream::new(receiver)
}

/// The connection after its handshake, or without one.
async fn secured(
    stream: TcpStream,
    address: IpAddr,
    tls: Option<Tls>,
    place: Place,
) -> Option<Connection> {
    let Some(tls) = tls else {
        let names = Arc::default();
        let peer = Peer::Remote { address, names };
        return Some(Connection::new(stream, peer, place));
    };
    let (stream, names) = tls.accept(stream, address).await?;
    let peer = Peer::Remote { address, names };
    Some(Connection::new(stream, peer, place))
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        let before = into.filled().len();
        let read = connection.stream.as_mut().poll_read(cx, into);
        if let Some((silent, missing)) = &mut connection.silent {
            *missing = missing.saturating_sub(into.filled().len() - before);
            if *missing == 0 {
                connection.silent = None;
            } else if read.is_pending() && silent.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().stream.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_origin_is_a_user_or_what_one_client_has_on_the_network() {
        let of = |text: &str| Origin::of(text.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.1"), "address 192.0.2.1");
        assert_eq!(of("::ffff:192.0.2.1"), "address 192.0.2.1");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "network 2001:db8:1:2::/64");
        assert_eq!(of("2001:db8:1:2:ffff::"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:3::1"), of("2001:db8:1:2::1"));
        let process = Peer::Process { uid: 7, pid: 1 };
        assert_eq!(process.origin().to_string(), "user 7");
    }
}
