//! Connections: who is at the other end, and how many there may be; and places in general.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tollgate_shm_abi::status::Code;
use tonic::transport::server::Connected;

use super::tls::Tls;
use crate::limits::{
    ACCEPT_PAUSE, CONNECTIONS, CONNECTIONS_PER_USER, KNOWN_NETWORKS, KNOWN_TIME,
    OPERATORS_CONNECTIONS, PREFACE_TIME, REMOTE_CONNECTIONS, REMOTE_CONNECTIONS_PER_NETWORK,
    REMOTE_CONNECTIONS_PER_TENANT, REMOTE_KNOWN_CONNECTIONS, REMOTE_OPERATORS_CONNECTIONS,
    STRANGER_LAST, STRANGER_REQUESTS, STRANGER_TIME,
};
use crate::rights::Principal;
use crate::status::{Secret, Status};

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

/// Who wants a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Anybody.
    Anybody,
    /// A client of a network that has lately proved who it is.
    Known,
    /// An operator.
    Operator,
}

/// Whose places are counted together.
pub(super) trait Holder: Clone + Eq + std::hash::Hash + std::fmt::Display {}

impl Holder for Origin {}

/// A tenant, or an operator, whose places are counted in all only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Party(String);

impl Holder for Party {}

impl Party {
    /// Who this is, and its claim on a place.
    pub(super) fn of(principal: &Principal) -> (Party, Claim) {
        match principal {
            Principal::Operator { .. } => Party::operator(),
            Principal::Tenant { tenant, .. } => (Party(tenant.clone()), Claim::Anybody),
        }
    }

    /// An operator, and its claim on a place.
    pub(super) fn operator() -> (Party, Claim) {
        (Party(String::new()), Claim::Operator)
    }
}

/// `tenant acme`.
impl std::fmt::Display for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tenant {}", self.0)
    }
}

/// How many of something there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// In all.
    pub(super) all: usize,
    /// Of those, the ones that not anybody gets.
    pub(super) kept: usize,
    /// Of one holder that isn't an operator.
    pub(super) of_each: usize,
}

/// Counts something, in all and of each holder that isn't an operator.
#[derive(Debug)]
pub(super) struct Places<H: Holder> {
    most: Most,
    taken: Mutex<Taken<H>>,
}

#[derive(Debug)]
struct Taken<H> {
    all: usize,
    of_each: HashMap<H, usize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<H: Holder> {
    places: Arc<Places<H>>,
    holder: Option<H>,
}

impl<H: Holder> Places<H> {
    pub(super) fn new(most: Most) -> Arc<Places<H>> {
        let (all, of_each) = (0, HashMap::new());
        let taken = Mutex::new(Taken { all, of_each });
        Arc::new(Places { most, taken })
    }

    /// The refusal of one more.
    pub(super) fn full(&self, what: &str, holder: &H) -> Status {
        let Most { all, of_each, .. } = self.most;
        let text = format!(
            "{all} {what}, or {of_each} of {holder}, are in progress, which is the limit: try again in a moment"
        );
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    }

    fn taken(&self) -> MutexGuard<'_, Taken<H>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Holder> Place<H> {
    /// `None`: there is no room for another one of this holder.
    pub(super) fn take(places: &Arc<Places<H>>, holder: &H, claim: Claim) -> Option<Place<H>> {
        let (most, mut taken) = (places.most, places.taken());
        let all = match claim {
            Claim::Known | Claim::Operator => most.all,
            Claim::Anybody => most.all - most.kept,
        };
        if taken.all >= all {
            return None;
        }
        let is_operator = claim == Claim::Operator;
        if !is_operator {
            let its = taken.of_each.entry(holder.clone()).or_default();
            if *its >= most.of_each {
                return None;
            }
            *its += 1;
        }
        taken.all += 1;
        Some(Place {
            places: Arc::clone(places),
            holder: (!is_operator).then(|| holder.clone()),
        })
    }
}

impl<H: Holder> Drop for Place<H> {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(holder) = &self.holder
            && let Some(its) = taken.of_each.get_mut(holder)
        {
            *its -= 1;
            if *its == 0 {
                taken.of_each.remove(holder);
            }
        }
    }
}

/// Networks that have lately proved who they are.
#[derive(Debug, Default)]
struct Known(Mutex<HashMap<Origin, Instant>>);

impl Known {
    fn has(&self, origin: Origin, now: Instant) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = known.get(&origin).copied();
        last.is_some_and(|last| now.saturating_duration_since(last) < KNOWN_TIME)
    }

    fn note(&self, origin: Origin, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&origin)
            && known.len() >= KNOWN_NETWORKS
            && let Some(oldest) = known.iter().min_by_key(|(_, last)| **last)
        {
            let oldest = *oldest.0;
            known.remove(&oldest);
        }
        known.insert(origin, now);
    }
}

/// A client of a connection, and what it has proved so far.
#[derive(Clone, Debug)]
pub(super) struct Client {
    peer: Peer,
    /// What its last proof said.
    proof: Arc<Mutex<Option<Proof>>>,
    /// Of a client on the network.
    stranger: Option<Arc<Stranger>>,
}

/// Who the bearer of a token is, or the client without one.
#[derive(Debug)]
struct Proof {
    token: Option<Secret>,
    principal: Principal,
    ends: Instant,
}

/// A client on the network, who is unknown until a request says who it is.
#[derive(Debug)]
struct Stranger {
    network: Arc<Network>,
    state: Mutex<Proved>,
}

/// What the connections from the network have in common.
#[derive(Debug)]
struct Network {
    known: Known,
    /// Connections whose clients are known.
    parties: Arc<Places<Party>>,
}

impl Network {
    fn new() -> Arc<Network> {
        Arc::new(Network {
            known: Known::default(),
            parties: Places::new(Most {
                all: REMOTE_CONNECTIONS,
                kept: REMOTE_OPERATORS_CONNECTIONS,
                of_each: REMOTE_CONNECTIONS_PER_TENANT,
            }),
        })
    }
}

#[derive(Debug)]
struct Proved {
    is_known: bool,
    /// The connection's place among those of whom it has proved to be.
    place: Option<(Party, Place<Party>)>,
    /// Requests that have begun while it is unknown.
    requests: u32,
    /// When its connection ends if it is still unknown then.
    ends: Instant,
}

impl Stranger {
    fn new(network: Arc<Network>) -> Arc<Stranger> {
        let state = Mutex::new(Proved {
            is_known: false,
            place: None,
            requests: 0,
            ends: Instant::now() + STRANGER_TIME,
        });
        Arc::new(Stranger { network, state })
    }

    /// The client has proved who it is. Its connection counts among those of its tenant.
    fn is_known(&self, origin: Origin, principal: &Principal) -> Result<(), Status> {
        let (party, claim) = Party::of(principal);
        let mut state = self.state();
        if !matches!(&state.place, Some((before, _)) if *before == party) {
            // Another tenant's place, if it had one, is free.
            state.place = None;
            let Some(place) = Place::take(&self.network.parties, &party, claim) else {
                let last = Instant::now() + STRANGER_LAST;
                state.ends = match state.is_known {
                    true => last,
                    false => state.ends.min(last),
                };
                state.is_known = false;
                return Err(self.network.parties.full("connections", &party));
            };
            state.place = Some((party, place));
        }
        state.is_known = true;
        self.network.known.note(origin, Instant::now());
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, Proved> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// A process of this host, whose user the kernel knows.
    pub(super) fn process(uid: u32, pid: i32) -> Client {
        Client {
            peer: Peer::Process { uid, pid },
            proof: Arc::default(),
            stranger: None,
        }
    }

    fn proof(&self) -> MutexGuard<'_, Option<Proof>> {
        self.proof.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who sends a request with this token, if the connection's last proof says so.
    pub(super) fn proved(&self, token: Option<&Secret>, now: Instant) -> Option<Principal> {
        let proof = self.proof();
        let proof = proof.as_ref().filter(|proof| now < proof.ends)?;
        (proof.token.as_ref() == token).then(|| proof.principal.clone())
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A request begins.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: too many of the connection have proved nothing.
    pub(super) fn begins(&self) -> Result<(), Status> {
        let Some(stranger) = &self.stranger else {
            return Ok(());
        };
        let mut state = stranger.state();
        if state.is_known {
            return Ok(());
        }
        state.requests = state.requests.saturating_add(1);
        if state.requests == STRANGER_REQUESTS {
            state.ends = state.ends.min(Instant::now() + STRANGER_LAST);
        }
        if state.requests <= STRANGER_REQUESTS {
            return Ok(());
        }
        let text = format!(
            "this connection has sent {STRANGER_REQUESTS} requests without a valid token or certificate, which is the limit: connect again"
        );
        Err(Status::new(Code::RESOURCE_EXHAUSTED, text))
    }

    /// A request has proved who the client is. Until `ends`, the same token proves it again.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: its tenant has as many connections as it may have. This one ends.
    pub(super) fn is_known(
        &self,
        token: Option<Secret>,
        principal: Principal,
        ends: Instant,
    ) -> Result<Principal, Status> {
        if let Some(stranger) = &self.stranger {
            stranger.is_known(self.peer.origin(), &principal)?;
        }
        *self.proof() = Some(Proof {
            token,
            principal: principal.clone(),
            ends,
        });
        Ok(principal)
    }

    /// A request has a token or certificate that isn't valid. If an earlier one was, it may have
    /// ended: the client begins anew.
    pub(super) fn is_unknown(&self) {
        *self.proof() = None;
        if let Some(stranger) = &self.stranger {
            let mut state = stranger.state();
            if state.is_known {
                *state = Proved {
                    is_known: false,
                    place: None,
                    requests: 1,
                    ends: Instant::now() + STRANGER_TIME,
                };
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
    client: Client,
    /// Of a client on the network: when it ends, while the client is unknown.
    unknown: Option<Pin<Box<Sleep>>>,
    /// Until HTTP/2's preface has come, and how much of it is missing. From then on, the server's
    /// pings find a dead client.
    silent: Option<(Pin<Box<Sleep>>, usize)>,
    _place: Place<Origin>,
}

/// The connections that have a place, in the order in which they are ready. Others are closed at
/// once.
pub(super) type Accepted = ReceiverStream<io::Result<Connection>>;

impl Connection {
    fn new(stream: impl Bytes + 'static, client: Client, place: Place<Origin>) -> Connection {
        let unknown = client.stranger.as_ref();
        let unknown = unknown.map(|stranger| {
            let ends = stranger.state().ends;
            Box::pin(tokio::time::sleep_until(ends.into()))
        });
        Connection {
            stream: Box::pin(stream),
            client,
            unknown,
            silent: Some((Box::pin(tokio::time::sleep(PREFACE_TIME)), PREFACE_BYTES)),
            _place: place,
        }
    }

    /// Fails when the client had its time to say who it is, whatever it sends or reads.
    fn require_known(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let (Some(sleep), Some(stranger)) = (&mut self.unknown, &self.client.stranger) else {
            return Ok(());
        };
        let Proved { is_known, ends, .. } = *stranger.state();
        if is_known {
            return Ok(());
        }
        if sleep.deadline() != ends.into() {
            sleep.as_mut().reset(ends.into());
        }
        match sleep.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

/// Accepts processes of this host, until nobody takes the connections.
pub(super) fn of_processes(listener: UnixListener, is_operator: fn(u32) -> bool) -> Accepted {
    let (sender, receiver) = mpsc::channel(1);
    let places = Places::new(Most {
        all: CONNECTIONS,
        kept: OPERATORS_CONNECTIONS,
        of_each: CONNECTIONS_PER_USER,
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
            let claim = match is_operator(uid) {
                true => Claim::Operator,
                false => Claim::Anybody,
            };
            let Some(place) = Place::take(&places, &Origin::User(uid), claim) else {
                continue;
            };
            let connection = Connection::new(stream, Client::process(uid, pid), place);
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
        kept: REMOTE_KNOWN_CONNECTIONS,
        of_each: REMOTE_CONNECTIONS_PER_NETWORK,
    });
    let network = Network::new();
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
            let origin = Origin::of(address);
            let claim = match network.known.has(origin, Instant::now()) {
                true => Claim::Known,
                false => Claim::Anybody,
            };
            let Some(place) = Place::take(&places, &origin, claim) else {
                continue;
            };
            // Small answers wait for nothing.
            let _as_it_is = stream.set_nodelay(true);
            let (tls, sender, network) = (tls.clone(), sender.clone(), Arc::clone(&network));
            tokio::spawn(async move {
                if let Some(connection) = secured(stream, (address, network), tls, place).await {
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
    (address, network): (IpAddr, Arc<Network>),
    tls: Option<Tls>,
    place: Place<Origin>,
) -> Option<Connection> {
    let client = |names| Client {
        peer: Peer::Remote { address, names },
        proof: Arc::default(),
        stranger: Some(Stranger::new(network)),
    };
    let Some(tls) = tls else {
        return Some(Connection::new(stream, client(Arc::default()), place));
    };
    let (stream, names) = tls.accept(stream, address).await?;
    Some(Connection::new(stream, client(names), place))
}

impl Connected for Connection {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        if let Err(error) = connection.require_known(cx) {
            return Poll::Ready(Err(error));
        }
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
        let connection = self.get_mut();
        // A client that reads nothing isn't read from, either.
        if let Err(error) = connection.require_known(cx) {
            return Poll::Ready(Err(error));
        }
        connection.stream.as_mut().poll_write(cx, bytes)
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
    use crate::proto::Role;

    #[test]
    fn some_places_are_for_those_who_are_known() {
        let places = Places::new(Most {
            all: 4,
            kept: 2,
            of_each: 2,
        });
        let take = |user, claim| Place::take(&places, &Origin::User(user), claim);
        let anybody = [1, 2].map(|user| take(user, Claim::Anybody).unwrap());
        assert!(take(3, Claim::Anybody).is_none(), "the rest is kept");
        let known = [4, 4].map(|user| take(user, Claim::Known).unwrap());
        drop(anybody);
        assert!(take(4, Claim::Known).is_none(), "one origin has so many");
        let _operators = [5, 5].map(|user| take(user, Claim::Operator).unwrap());
        assert!(take(5, Claim::Operator).is_none(), "there are no more");
        drop(known);
    }

    #[test]
    fn tenants_on_the_network_leave_connections_to_operators() {
        let network = Network::new();
        let tenant = |n: usize| Principal::Tenant {
            tenant: format!("t{n}"),
            credential: "default".to_owned(),
            role: Role::Owner,
        };
        let known = |principal: &Principal| {
            let stranger = Stranger::new(Arc::clone(&network));
            let origin = Origin::User(0);
            stranger.is_known(origin, principal).map(|()| stranger)
        };
        let most = REMOTE_CONNECTIONS - REMOTE_OPERATORS_CONNECTIONS;
        let of_tenants: Vec<_> = (0..most)
            .map(|n| known(&tenant(n / REMOTE_CONNECTIONS_PER_TENANT)).unwrap())
            .collect();
        let refused = known(&tenant(most)).unwrap_err();
        assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
        let who = "operator credential deploy".to_owned();
        let operator = Principal::Operator { who };
        let operators: Vec<_> = (0..REMOTE_OPERATORS_CONNECTIONS)
            .map(|_| known(&operator).unwrap())
            .collect();
        assert!(known(&operator).is_err(), "there are no more");
        drop(of_tenants);
        known(&tenant(0)).unwrap();
        drop(operators);
    }

    #[test]
    fn so_many_networks_are_known_for_so_long() {
        let (known, start) = (Known::default(), Instant::now());
        let second = std::time::Duration::from_secs(1);
        for user in 0..KNOWN_NETWORKS as u32 {
            known.note(Origin::User(user), start + second * user);
        }
        known.note(Origin::User(0), start + KNOWN_TIME);
        let now = start + KNOWN_TIME;
        assert!(known.has(Origin::User(0), now));
        assert!(known.has(Origin::User(1), now));
        assert!(!known.has(Origin::User(1), now + second), "a day ago");
        known.note(Origin::User(u32::MAX), now);
        assert!(known.has(Origin::User(u32::MAX), now));
        assert!(!known.has(Origin::User(1), now), "it was the oldest");
        assert!(known.has(Origin::User(2), now));
    }

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
