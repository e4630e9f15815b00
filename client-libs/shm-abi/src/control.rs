//! The control socket: packets of protobuf messages with file descriptors, over SOCK_SEQPACKET.
//!
//! A packet is one encoded [`Request`](crate::messages::Request) or
//! [`Response`](crate::messages::Response), at most 64 KiB, with at most 8 descriptors. What is
//! larger travels as a [blob](crate::blob).
//!
//! Invariants: nothing here blocks (a full or empty socket is `AGAIN`), except that
//! [`connect`](ControlSocket::connect) waits for a backlog with room; every descriptor that arrives is
//! close-on-exec and owned by what `recv` returns, or closed: a packet with more than eight is refused
//! whole.

use crate::limits::{MAX_PACKET_BYTES, MAX_PACKET_FDS};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::mem::MaybeUninit;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 128;

/// Bytes of ancillary data that [`MAX_PACKET_FDS`] descriptors take.
const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS));

/// Where apps and operators connect to.
#[derive(Debug)]
pub struct ControlListener {
    fd: OwnedFd,
}

impl ControlListener {
    /// Listens at a path. A socket of this user's that nobody listens on any more is replaced; whatever else is there stays.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: &str) -> Result<ControlListener, ListenError> {
        ControlListener::bind_after(path, || Ok(()))
    }

    /// As [`bind`](ControlListener::bind). `prepare` is called once the file is there, and nobody can connect before it has returned: it says
    /// who may.
    ///
    /// # Errors
    /// See [`ListenError`]; what `prepare` says, and then the file is gone again.
    pub fn bind_after<E: From<ListenError>>(
        path: &str,
        prepare: impl FnOnce() -> Result<(), E>,
    ) -> Result<ControlListener, E> {
        let listener = ControlListener::at(path)?;
        let prepared = prepare().and_then(|()| {
            let listens = rustix::net::listen(&listener.fd, BACKLOG);
            listens.map_err(|errno| ListenError::System(errno).into())
        });
        match prepared {
            Ok(()) => Ok(listener),
            Err(error) => {
                let _gone = rustix::fs::unlink(path);
                Err(error)
            }
        }
    }

    fn at(path: &str) -> Result<ControlListener, ListenError> {
        let address = SocketAddrUnix::new(path)?;
        let fd = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                check_stale(path, &address)?;
                rustix::fs::unlink(path)?;
                rustix::net::bind(&fd, &address)?;
            }
            bound => bound?,
        }
        Ok(ControlListener { fd })
    }

    /// The next connection.
    ///
    /// # Errors
    /// `AGAIN` if there is none; `MFILE` and the like if this process can't have more descriptors.
    pub fn accept(&self) -> Result<ControlSocket, Errno> {
        let fd = rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        Ok(ControlSocket { fd })
    }
}

/// Whether what is at a path may be replaced: a socket of this user's whose listener is gone.
fn check_stale(path: &str, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let there = rustix::fs::lstat(path)?;
    // A connection to any file that isn't a socket is refused, as one to a socket without a listener is.
    if FileType::from_raw_mode(there.st_mode) != FileType::Socket {
        return Err(ListenError::NoSocket);
    }
    let asking = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    if rustix::net::connect(&asking, address) != Err(Errno::CONNREFUSED) {
        return Err(ListenError::InUse);
    }
    if there.st_uid != rustix::process::geteuid().as_raw() {
        return Err(ListenError::Foreign { uid: there.st_uid });
    }
    Ok(())
}

/// Why a connection to a daemon's socket failed, for whoever wanted it.
pub fn unreachable(path: &dyn fmt::Display, errno: Errno) -> String {
    match errno {
        Errno::ACCESS => alloc::format!(
            "this user may not connect to {path}: the daemon's socket_mode and socket_group say who may"
        ),
        errno => alloc::format!("no daemon answers at {path}: {errno}"),
    }
}

/// Why nobody can listen at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Somebody listens there.
    InUse,
    /// There is something that isn't a socket.
    NoSocket,
    /// There is a socket without a listener, of another user.
    Foreign {
        /// Whose.
        uid: u32,
    },
    /// The system refused.
    System(Errno),
}

impl From<Errno> for ListenError {
    fn from(errno: Errno) -> ListenError {
        ListenError::System(errno)
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::InUse => write!(f, "another process listens there"),
            ListenError::NoSocket => {
                write!(
                    f,
                    "there is a file that isn't a socket: name another path, or remove it"
                )
            }
            ListenError::Foreign { uid } => write!(
                f,
                "the socket there belongs to user {uid}: remove it if its daemon is gone"
            ),
            ListenError::System(errno) => write!(f, "{errno}"),
        }
    }
}

impl core::error::Error for ListenError {}

/// What another process has listened with, and hands over.
impl From<OwnedFd> for ControlListener {
    fn from(fd: OwnedFd) -> ControlListener {
        ControlListener { fd }
    }
}

impl AsFd for ControlListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One connection; the life of a session is the life of this.
#[derive(Debug)]
pub struct ControlSocket {
    fd: OwnedFd,
}

/// What one packet held.
#[derive(Debug)]
pub struct Packet {
    /// At least 1, at most [`MAX_PACKET_BYTES`].
    pub bytes: Vec<u8>,
    /// The descriptors that came with it, at most [`MAX_PACKET_FDS`].
    pub fds: Vec<OwnedFd>,
}

/// Who is at the other end, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl ControlSocket {
    /// Connects to a listener.
    ///
    /// # Errors
    /// `NOENT` or `CONNREFUSED` if nobody listens there; whatever else the file system says.
    pub fn connect(path: &str) -> Result<ControlSocket, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let fd = seqpacket(SocketFlags::CLOEXEC)?;
        rustix::net::connect(&fd, &address)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(ControlSocket { fd })
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// If this process can't have more descriptors.
    pub fn pair() -> Result<(ControlSocket, ControlSocket), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((ControlSocket { fd: one }, ControlSocket { fd: other }))
    }

    /// Sends one packet, whole or not at all.
    ///
    /// # Errors
    /// [`ControlError::TooLarge`] before anything is sent; otherwise what the socket says.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        if bytes.is_empty() || bytes.len() > MAX_PACKET_BYTES || fds.len() > MAX_PACKET_FDS {
            return Err(ControlError::TooLarge {
                bytes: bytes.len(),
                fds: fds.len(),
            });
        }
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        Ok(())
    }

    /// Receives one packet; `None` once the other end is closed. Nobody else may receive meanwhile.
    ///
    /// It is looked at before it is taken, so that sessions, of which there may be thousands, don't each keep a buffer for the longest.
    ///
    /// # Errors
    /// `AGAIN` if there is none; [`ControlError::Truncated`] if it was longer than [`MAX_PACKET_BYTES`] or had more
    /// than [`MAX_PACKET_FDS`] descriptors: it is gone then, its descriptors closed.
    pub fn recv(&self) -> Result<Option<Packet>, ControlError> {
        let look = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let (_, len) = rustix::net::recv(&self.fd, &mut [0u8; 0], look)?;
        let mut bytes = vec![0; len.min(MAX_PACKET_BYTES)];
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::net::recvmsg(
            &self.fd,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            flags,
        )?;
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let truncated = received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        // The ancillary buffer's alignment may leave room for one descriptor more.
        if truncated || fds.len() > MAX_PACKET_FDS {
            return Err(ControlError::Truncated);
        }
        bytes.truncate(received.bytes);
        Ok((!bytes.is_empty()).then_some(Packet { bytes, fds }))
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// What getsockopt says; nothing that a connected socket causes.
    pub fn peer(&self) -> Result<PeerCredentials, Errno> {
        let credentials = sockopt::socket_peercred(&self.fd)?;
        Ok(PeerCredentials {
            pid: credentials.pid.as_raw_nonzero().get(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        })
    }
}

/// An end that another process was given.
impl From<OwnedFd> for ControlSocket {
    fn from(fd: OwnedFd) -> ControlSocket {
        ControlSocket { fd }
    }
}

impl From<ControlSocket> for OwnedFd {
    fn from(socket: ControlSocket) -> OwnedFd {
        socket.fd
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Why a packet wasn't sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// What was to be sent is empty or exceeds a packet.
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// Its descriptors.
        fds: usize,
    },
    /// The peer's packet exceeded the limits of bytes or descriptors, and was discarded.
    Truncated,
    /// The socket refused; `AGAIN` means later.
    System(Errno),
}

impl ControlError {
    /// Whether the socket was merely full or empty.
    pub fn is_would_block(&self) -> bool {
        *self == ControlError::System(Errno::AGAIN)
    }
}

impl From<Errno> for ControlError {
    fn from(errno: Errno) -> ControlError {
        ControlError::System(errno)
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::TooLarge { bytes, fds } => write!(
                f,
                "a packet of {bytes} bytes with {fds} descriptors isn't within 1..={MAX_PACKET_BYTES} bytes and 0..={MAX_PACKET_FDS} descriptors"
            ),
            ControlError::Truncated => write!(
                f,
                "the peer's packet exceeds {MAX_PACKET_BYTES} bytes or {MAX_PACKET_FDS} descriptors"
            ),
            ControlError::System(errno) => write!(f, "the control socket: {errno}"),
        }
    }
}

impl core::error::Error for ControlError {}

#[cfg(test)]
mod tests;
