//! A link with its socket: the only file here that makes system calls.
//!
//! Everything is nonblocking; the caller waits for the descriptor ([`AsFd`]). One turn of its loop
//! does at most one `recv` per link ([`TcpLink::read`] or [`TcpLink::read_body`]), so that a busy
//! peer can't starve the others, and one [`TcpLink::flush`]. With edge-triggered waiting, read
//! again while the result says that there may be more.
//!
//! A link that ended is flushed once more, so that the peer learns the reason. Before it is
//! dropped, `link.abandon` and `link.poll_sent` return the memory that its frames still borrow.

use std::io::{IoSliceMut, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::Part;
use crate::config::LinkSetup;
use crate::config::{ConfigError, LinkConfig, Role};
use crate::error::LinkError;
use crate::limits;
use crate::proto::{FrozenLink, Link, Unportable};
use crate::tx::Token;
use tollgate_shm_abi::io::send_parts;

/// The result of a [`TcpLink::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// New bytes came: poll events. With `more`, the socket may have further bytes.
    Data {
        /// The buffer was filled to its end.
        more: bool,
    },
    /// Nothing has come.
    Blocked,
    /// A large body waits: [`TcpLink::read_body`] or `link.skip_body()` comes first.
    BodyPending,
}

/// The result of a [`TcpLink::read_body`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyOutcome {
    /// The body is complete: continue polling events.
    Complete {
        /// The socket may have further bytes: read again.
        more: bool,
    },
    /// A part came, and there may be more at once.
    More,
    /// Nothing more has come.
    Blocked,
}

/// The result of a [`TcpLink::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Nothing is queued.
    Done,
    /// The socket is full: wait until it is writable.
    Blocked,
}

/// A [`Link`] with its transport: the interface for a daemon's loop, for every transport.
///
/// One turn is at most one [`read_some`](Self::read_some) or
/// [`read_some_body`](Self::read_some_body), all events, one [`flush`](Self::flush), and
/// [`poll_sent`](Self::poll_sent) until `None`. The descriptor is readable when there is something
/// to do.
pub trait LinkIo: AsFd {
    /// The protocol: events, frames, time.
    fn link(&mut self) -> &mut Link;

    /// The peer's address.
    fn peer_address(&self) -> SocketAddr;

    /// Receives into the link's buffer, at most `at_most` bytes.
    ///
    /// # Errors
    /// The connection ended ([`LinkError::Closed`]) or failed; so has the link.
    fn read_some(&mut self, at_most: usize) -> Result<ReadOutcome, LinkError>;

    /// Receives into the pending large body, at most `at_most` bytes. `body` is the caller's buffer
    /// for the whole body, the same on every call.
    ///
    /// # Errors
    /// [`LinkError::BodyBuffer`] if `body` has another length than announced (nothing changed);
    /// otherwise like [`read_some`](Self::read_some).
    fn read_some_body(&mut self, body: &mut [u8], at_most: usize)
    -> Result<BodyOutcome, LinkError>;

    /// Sends queued bytes, as far as possible now.
    ///
    /// # Errors
    /// The connection failed, and so has the link; the memory of its tokens is free.
    fn flush(&mut self) -> Result<FlushOutcome, LinkError>;

    /// A frame whose shared memory is no longer read, in order of sending. This differs from the
    /// link's own `poll_sent`, which reports frames that were handed over: a device may still be
    /// reading them.
    fn poll_sent(&mut self) -> Option<Token>;

    /// Whether the descriptor should be watched for writability.
    fn wants_writable(&self) -> bool;

    /// Arms the descriptor for future events. `false` if something has come already: don't wait.
    ///
    /// # Errors
    /// Like [`read_some`](Self::read_some).
    fn prepare_to_wait(&mut self) -> Result<bool, LinkError>;
}

/// How a connection was made.
struct Way {
    role: Role,
    /// The address that the initiator dialled.
    dialled: SocketAddr,
    /// The peer's name from an operator or an application; empty for the responder.
    target: String,
}

/// A [`Link`] over TCP.
pub struct TcpLink {
    /// The protocol: events, frames, time.
    pub link: Link,
    stream: TcpStream,
    address: SocketAddr,
    /// Dialled, but the peer hasn't shown itself yet.
    connecting: bool,
}

/// The reason why a link couldn't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The daemon's own configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The peer can't be reached.
    #[error("connecting to {address} failed: {errno}")]
    Connecting {
        /// The peer.
        address: SocketAddr,
        /// The kernel's error.
        errno: Errno,
    },
    /// The socket, its address or randomness failed.
    #[error("opening a link with {address} failed: {error}")]
    Socket {
        /// The peer.
        address: SocketAddr,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// Without a key, connecting is refused before a byte is sent, unless loopback peers are
    /// trusted.
    #[error(
        "this daemon has no key, and so no peers: give it and {address} the same key (--psk-file), or --unauthenticated-loopback"
    )]
    Keyless {
        /// The peer.
        address: SocketAddr,
    },
    /// Without a key, connecting beyond loopback is refused before a byte is sent.
    #[error(
        "{address} isn't a loopback address: a peer beyond this host needs a key, the same on both daemons"
    )]
    NeedsKey {
        /// The peer.
        address: SocketAddr,
    },
}

impl TcpLink {
    /// Starts to connect to this address, which is also the target; never waits. The descriptor
    /// becomes writable when the connection is established; the next read or flush reports a
    /// refused one. `now_ns` is the clock of `link.tick`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn connect(
        address: SocketAddr,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<TcpLink, OpenError> {
        TcpLink::dial(address, &address.to_string(), config, now_ns)
    }

    /// The same, at one of the addresses of `target`: `host:port`, as an operator or an application
    /// named the peer.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn dial(
        address: SocketAddr,
        target: &str,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<TcpLink, OpenError> {
        if config.key.is_none() {
            match is_loopback(&address) {
                false => return Err(OpenError::NeedsKey { address }),
                true if !config.unauthenticated_loopback => {
                    return Err(OpenError::Keyless { address });
                }
                true => {}
            }
        }
        let stream =
            start_connecting(&address).map_err(|errno| OpenError::Connecting { address, errno })?;
        let way = Way {
            role: Role::Initiator,
            dialled: address,
            target: target.to_owned(),
        };
        TcpLink::open(stream, address, way, config, now_ns)
    }

    /// Takes a connection that a listener accepted.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn accept(
        stream: TcpStream,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<TcpLink, OpenError> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = stream.peer_addr().map_err(|error| OpenError::Socket {
            address: unknown,
            error,
        })?;
        let arrived = stream
            .local_addr()
            .map_err(|error| OpenError::Socket { address, error })?;
        let way = Way {
            role: Role::Responder,
            dialled: arrived,
            target: String::new(),
        };
        TcpLink::open(stream, address, way, config, now_ns)
    }

    fn open(
        stream: TcpStream,
        address: SocketAddr,
        way: Way,
        config: &LinkConfig,
        now_ns: u64,
    ) -> Result<TcpLink, OpenError> {
        let socket = |error| OpenError::Socket { address, error };
        stream.set_nonblocking(true).map_err(socket)?;
        stream.set_nodelay(true).map_err(socket)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|error| socket(std::io::Error::other(error)))?;
        let setup = LinkSetup {
            role: way.role,
            loopback: is_loopback(&address),
            target: way.target,
            address: way.dialled,
            nonce,
            now_ns,
        };
        Ok(TcpLink {
            link: Link::new(config, &setup)?,
            stream,
            address,
            connecting: way.role == Role::Initiator,
        })
    }

    /// Takes over a link from another process, by its socket, which that process no longer uses.
    ///
    /// # Errors
    /// [`Unportable`], from [`Link::thaw`].
    pub fn resume(
        socket: OwnedFd,
        frozen: FrozenLink,
        bytes: &[u8],
        config: &LinkConfig,
    ) -> Result<TcpLink, Unportable> {
        let stream = TcpStream::from(socket);
        // The peer may be gone; the next read reports it.
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = stream.peer_addr().unwrap_or(unknown);
        let link = Link::thaw(frozen, bytes, config)?;
        Ok(TcpLink {
            link,
            stream,
            address,
            connecting: false,
        })
    }

    /// The peer's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the descriptor should be watched for writability.
    pub fn wants_write(&self) -> bool {
        self.link.wants_write()
    }

    /// Receives once into the link's buffer.
    ///
    /// # Errors
    /// The connection ended ([`LinkError::Closed`]) or failed; so has the link.
    pub fn read(&mut self) -> Result<ReadOutcome, LinkError> {
        self.read_some(usize::MAX)
    }

    /// Like [`read`](Self::read), at most `at_most` bytes.
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    pub fn read_some(&mut self, at_most: usize) -> Result<ReadOutcome, LinkError> {
        if self.link.pending_body().is_some() {
            return Ok(ReadOutcome::BodyPending);
        }
        let space = self.link.rx_space();
        let room = space.len().min(at_most);
        if room == 0 {
            // Events weren't polled; a receive of 0 bytes would look like the end.
            return Ok(ReadOutcome::Data { more: true });
        }
        match rustix::net::recv(&self.stream, &mut space[..room], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(self.broken(LinkError::Closed)),
            Ok((_, n)) => {
                self.connecting = false;
                self.link.rx_filled(n);
                Ok(ReadOutcome::Data { more: n == room })
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(ReadOutcome::Blocked),
            Err(errno) => Err(self.failed("receiving from the peer", errno)),
        }
    }

    /// Receives once, straight into `body`: the caller's buffer for the whole pending body, the
    /// same on every call. The same system call puts bytes after the body into the link's buffer.
    ///
    /// # Errors
    /// [`LinkError::BodyBuffer`] if `body` has another length than announced (nothing changed);
    /// otherwise the connection ended or failed, and so has the link.
    pub fn read_body(&mut self, body: &mut [u8]) -> Result<BodyOutcome, LinkError> {
        self.read_some_body(body, usize::MAX)
    }

    /// Like [`read_body`](Self::read_body), at most `at_most` bytes.
    ///
    /// # Errors
    /// Like [`read_body`](Self::read_body).
    pub fn read_some_body(
        &mut self,
        body: &mut [u8],
        at_most: usize,
    ) -> Result<BodyOutcome, LinkError> {
        let mut missing = self.link.fill_body(body)?;
        if missing.is_empty() {
            return Ok(BodyOutcome::Complete { more: false });
        }
        let all = missing.len();
        missing.end = missing.start + all.min(at_most.max(1));
        let want = missing.len();
        let space = match want == all {
            true => self.link.rx_space(),
            false => &mut [],
        };
        let room = want + space.len();
        let received = self
            .stream
            .read_vectored(&mut [IoSliceMut::new(&mut body[missing]), IoSliceMut::new(space)]);
        match received {
            Ok(0) => Err(self.broken(LinkError::Closed)),
            Ok(n) => {
                self.link.body_filled(body, n.min(want))?;
                self.link.rx_filled(n.saturating_sub(want));
                Ok(match n {
                    _ if n >= all => BodyOutcome::Complete { more: n == room },
                    _ if n == room => BodyOutcome::More,
                    _ => BodyOutcome::Blocked,
                })
            }
            Err(error) => match error
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error)
            {
                Errno::AGAIN | Errno::INTR => Ok(BodyOutcome::Blocked),
                errno => Err(self.failed("receiving from the peer", errno)),
            },
        }
    }

    /// Sends queued bytes until none are left or the socket is full.
    ///
    /// # Errors
    /// The connection failed, and so has the link; the memory of its tokens is free.
    pub fn flush(&mut self) -> Result<FlushOutcome, LinkError> {
        while self.link.wants_write() {
            let mut parts = [Part::Private(&[]); limits::TX_BATCH];
            let n = self.link.parts(&mut parts);
            match send_parts(&self.stream, &parts[..n]) {
                Ok(sent) => {
                    self.connecting = false;
                    self.link.advance(sent);
                }
                Err(Errno::AGAIN) => return Ok(FlushOutcome::Blocked),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("sending to the peer", errno)),
            }
        }
        Ok(FlushOutcome::Done)
    }

    /// If the connection was never established, the cause is the failed connect, whichever call
    /// reported it.
    fn failed(&mut self, doing: &'static str, errno: Errno) -> LinkError {
        let address = self.address;
        self.broken(match self.connecting {
            true => LinkError::Connecting { address, errno },
            false => LinkError::Socket { doing, errno },
        })
    }

    /// Ends the link with the socket's error, unless it has ended for a more precise reason.
    fn broken(&mut self, error: LinkError) -> LinkError {
        self.link.abandon(error);
        self.link.failure().cloned().expect("abandon has set it")
    }
}

impl LinkIo for TcpLink {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn peer_address(&self) -> SocketAddr {
        self.address
    }

    fn read_some(&mut self, at_most: usize) -> Result<ReadOutcome, LinkError> {
        TcpLink::read_some(self, at_most)
    }

    fn read_some_body(
        &mut self,
        body: &mut [u8],
        at_most: usize,
    ) -> Result<BodyOutcome, LinkError> {
        TcpLink::read_some_body(self, body, at_most)
    }

    fn flush(&mut self) -> Result<FlushOutcome, LinkError> {
        TcpLink::flush(self)
    }

    /// The kernel has copied the bytes that it was given.
    fn poll_sent(&mut self) -> Option<Token> {
        self.link.poll_sent()
    }

    fn wants_writable(&self) -> bool {
        self.wants_write()
    }

    /// The kernel's readiness is always current.
    fn prepare_to_wait(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }
}

impl AsFd for TcpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Whether an address is a loopback address, including IPv4 mapped into IPv6.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn start_connecting(address: &SocketAddr) -> Result<TcpStream, Errno> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno),
    }
}
