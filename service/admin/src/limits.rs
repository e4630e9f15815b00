//! The limits of the administrative API, and their sum.
//!
//! Whoever may open the socket can make the daemon hold a message per request: at most
//! [`CONNECTIONS`] x [`REQUESTS_PER_CONNECTION`] x [`MAX_MESSAGE_BYTES`], 1 GiB, of one user a
//! quarter; if the daemon listens on the network, [`REMOTE_CONNECTIONS`] add 512 MiB, of one
//! network a quarter. Pushes hold [`PUSHES`] x [`PUSH_BYTES`] more, 256 MiB, and applies
//! [`APPLIES`] x [`APPLY_BYTES`], 256 MiB; of the network, half of each in addition. The daemon's
//! sum has all of them.
//!
//! One message at a time is decoded. One that consists of empty texts takes 24 times its bytes,
//! 96 MiB, until its lists are counted ([`MAX_LIST`]), and is refused then. A client that doesn't
//! read leaves an answer per request here; a tenant's have 1 MiB at most.

use std::time::Duration;

/// Connections to the API's socket. Each takes a descriptor.
pub const CONNECTIONS: usize = 64;

/// Connections of one user that isn't an operator.
pub const CONNECTIONS_PER_USER: usize = 16;

/// Of [`CONNECTIONS`], those that only operators' processes get.
pub const OPERATORS_CONNECTIONS: usize = 16;

/// Connections from the network. Each takes a descriptor.
pub const REMOTE_CONNECTIONS: usize = 32;

/// Connections of one IPv4 address, or of the addresses with the same first 64 bits of IPv6.
pub const REMOTE_CONNECTIONS_PER_NETWORK: usize = 8;

/// Of [`REMOTE_CONNECTIONS`], those that only clients get whose network has lately sent a request
/// with a valid token or certificate ([`KNOWN_TIME`]).
pub const REMOTE_KNOWN_CONNECTIONS: usize = 8;

/// Connections from the network on which one tenant's tokens or certificates were valid last.
pub const REMOTE_CONNECTIONS_PER_TENANT: usize = 8;

/// Of [`REMOTE_CONNECTIONS`], those that no tenants keep.
pub const REMOTE_OPERATORS_CONNECTIONS: usize = 4;

/// How long a network is known after such a request.
pub const KNOWN_TIME: Duration = Duration::from_secs(24 * 3_600);

/// Networks that are known at once. A further one takes the place of the one that was silent for
/// longest.
pub const KNOWN_NETWORKS: usize = 1_024;

/// How long a connection from the network lives, after its handshake, until a request has a valid
/// token or certificate.
pub const STRANGER_TIME: Duration = Duration::from_secs(5);

/// Requests without a valid token or certificate on one connection from the network. With the last
/// one, the connection ends: it has [`STRANGER_LAST`] for its answer.
pub const STRANGER_REQUESTS: u32 = 8;

/// See [`STRANGER_REQUESTS`]. The answer to a wrong token may take a second.
pub const STRANGER_LAST: Duration = Duration::from_secs(2);

/// How old a connection from the network gets, and how long its last requests may take then: so
/// old is a certificate's proof at most.
pub const REMOTE_CONNECTION_AGE: (Duration, Duration) =
    (Duration::from_secs(3_600), Duration::from_secs(60));

/// Pushes from the network that are in progress at once. Further ones are rejected.
pub const REMOTE_PUSHES: usize = 8;

/// Of [`REMOTE_PUSHES`], those that only the bearers of operators' credentials get.
pub const REMOTE_OPERATORS_PUSHES: usize = 2;

/// Applies from the network that are in progress at once. Further ones are rejected.
pub const REMOTE_APPLIES: usize = 2;

/// Of [`REMOTE_APPLIES`], those that only the bearers of operators' credentials get.
pub const REMOTE_OPERATORS_APPLIES: usize = 1;

/// How long a TLS handshake may take.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Descriptors of the server itself: per listener, it and what its thread waits with.
pub const OWN_DESCRIPTORS: usize = 8;

/// Requests in flight on one connection. Further ones wait in their client.
pub const REQUESTS_PER_CONNECTION: usize = 4;

/// Requests that wait for the daemon. Further ones wait on their connections.
pub const ASKS_QUEUED: usize = 64;

/// Bytes of one request message. 4 MiB.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Bytes of a request message without a schema. 64 KiB.
pub(crate) const MAX_SMALL_MESSAGE_BYTES: usize = 64 << 10;

/// Entries of a list in a request, such as the names in a list of grants.
pub(crate) const MAX_LIST: usize = 256;

/// Bytes of an answer that this crate's client accepts. 64 MiB.
pub const MAX_REPORT_BYTES: usize = 64 << 20;

/// Bytes of a status's message. Longer ones are cut, since gRPC sends them in a header.
pub const MAX_STATUS_BYTES: usize = 2_048;

/// Bytes of a request's headers.
pub const HEADER_BYTES: u32 = 16 << 10;

/// Bytes of all parts of one push: a module of 4 MiB, a layer of an image with it, and the rest.
/// 16 MiB.
pub const PUSH_BYTES: usize = 16 << 20;

/// Bytes of one piece of a push. 64 KiB.
pub const PUSH_CHUNK_BYTES: usize = 64 << 10;

/// Pushes that are in progress at once, from their first byte to their answer. Further ones are
/// rejected.
pub const PUSHES: usize = 16;

/// Of [`PUSHES`], those that only operators get.
pub const OPERATORS_PUSHES: usize = 4;

/// Pushes of one tenant that are in progress at once, on the socket or from the network.
pub const PUSHES_PER_TENANT: usize = 2;

/// Bytes of one apply: its objects and the contents that they name. 64 MiB.
pub const APPLY_BYTES: usize = 64 << 20;

/// Objects of one apply.
pub const APPLY_OBJECTS: usize = 16_384;

/// Bytes of one request of an apply. Objects are larger in memory than in their message, 200 times
/// if they are empty. 256 KiB.
pub const APPLY_MESSAGE_BYTES: usize = 256 << 10;

/// Applies that are in progress at once, from their first byte to their answer. Further ones are
/// rejected.
pub const APPLIES: usize = 4;

/// Of [`APPLIES`], those that only operators get.
pub const OPERATORS_APPLIES: usize = 1;

/// Applies of one tenant that are in progress at once, on the socket or from the network.
pub const APPLIES_PER_TENANT: usize = 1;

/// How long the parts of a push, or of an apply, may take to arrive.
pub const PUSH_PATIENCE: Duration = Duration::from_secs(60);

/// How long a connection may take to send HTTP/2's preface.
pub(crate) const PREFACE_TIME: Duration = Duration::from_secs(10);

/// How often the server asks the daemon for the calls of a watcher.
pub const TAP_INTERVAL: Duration = Duration::from_millis(250);

/// How often the server asks the daemon for what is watched, if the request doesn't say.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest and the longest interval of a watch.
pub const WATCH_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_secs(3600));

/// How long requests in progress may take when the server stops, before their connections end.
pub const STOP_GRACE: Duration = Duration::from_millis(500);

/// How long the token of a request, or the client's certificate, lets further requests of the same
/// connection come without another question to the daemon. The daemon authenticates each of them
/// all the same, when it carries it out.
pub const PROOF_TIME: Duration = Duration::from_secs(1);

/// Steps of a push, an apply or an upgrade that wait for being sent. A client misses further ones.
pub const STEPS_QUEUED: usize = 16;

/// How often a silent connection is pinged, and how long its answer may take.
pub const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// The pause after a connection that couldn't be accepted, mostly for lack of a descriptor.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
