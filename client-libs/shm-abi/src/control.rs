//! The control socket: packets of protobuf messages with file descriptors, over SOCK_SEQPACKET.
//!
//! A packet is one encoded [`Request`](crate::messages::Request) or
//! [`Response`](crate::messages::Response), at most 64 KiB, with at most 8 descriptors. Larger data
//! is sent as a [blob](crate::blob).
//!
//! Invariants: nothing here blocks (a full or empty socket is `AGAIN`), except that
//! [`connect`](ControlSocket::connect) waits for room in the backlog. Every descriptor that arrives
//! is close-on-exec, and is owned by the result of `recv` or closed: a packet with more than eight
//! is refused whole.

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

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The bytes of ancillary data for [`MAX_PACKET_FDS`] descriptors.
const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS));

/// The socket for applications.
#[derive(Debug)]
pub struct ControlListener {
    fd: OwnedFd,
}

impl ControlListener {
    /// Listens at a path. Replaces a socket of this user without a listener; refuses any other
    /// existing file.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: &str) -> Result<ControlListener, ListenError> {
        ControlListener::bind_after(path, || Ok(()))
    }

    /// Like [`bind`](ControlListener::bind). `prepare` is called once the file exists and sets its
    /// permissions; nobody can connect before it has returned.
    ///
    /// # Errors
    /// See [`ListenError`]; or the error of `prepare`, and then the file is removed again.
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
    /// `AGAIN` if there is none; `MFILE` and the like if this process has reached its limit of
    /// descriptors.
    pub fn accept(&self) -> Result<ControlSocket, Errno> {
        let fd = rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        Ok(ControlSocket { fd })
    }
}

/// Whether the file at a path may be replaced: a socket of this user without a listener.
fn check_stale(path: &str, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let there = rustix::fs::lstat(path)?;
    // Connecting to a file that isn't a socket fails like connecting to a socket without a
    // listener.
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

/// The message for an application that failed to connect to a daemon's socket.
pub fn unreachable(path: &dyn fmt::Display, errno: Errno) -> String {
    match errno {
        Errno::ACCESS => alloc::format!(
            "this user may not connect to {path}: the daemon's socket_mode and socket_group decide which users may"
        ),
        errno => alloc::format!("no daemon answers at {path}: {errno}"),
    }
}

/// The reason why a path can't be listened at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Another process listens there.
    InUse,
    /// The file there isn't a socket.
    NoSocket,
    /// There is another user's socket without a listener.
    Foreign {
        /// The socket's owner.
        uid: u32,
    },
    /// The operating system's error.
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

/// Takes over the listening socket of another process.
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

/// One connection. Its lifetime is the session's lifetime.
#[derive(Debug)]
pub struct ControlSocket {
    fd: OwnedFd,
}

/// The contents of one packet.
#[derive(Debug)]
pub struct Packet {
    /// At least 1, at most [`MAX_PACKET_BYTES`].
    pub bytes: Vec<u8>,
    /// Its descriptors, at most [`MAX_PACKET_FDS`].
    pub fds: Vec<OwnedFd>,
}

/// The identity of the peer, recorded by the kernel at the time of the connection.
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
    /// `NOENT` or `CONNREFUSED` if nothing listens there; otherwise the file system's error.
    pub fn connect(path: &str) -> Result<ControlSocket, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let fd = seqpacket(SocketFlags::CLOEXEC)?;
        rustix::net::connect(&fd, &address)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(ControlSocket { fd })
    }

    /// Makes two connected ends.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub fn pair() -> Result<(ControlSocket, ControlSocket), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((ControlSocket { fd: one }, ControlSocket { fd: other }))
    }

    /// Sends one packet, completely or not at all.
    ///
    /// # Errors
    /// [`ControlError::TooLarge`] before anything is sent; otherwise the socket's error.
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

    /// Receives one packet; `None` once the other end is closed. Only one thread may receive at a
    /// time.
    ///
    /// The packet is measured before it is received, so that thousands of sessions don't each keep
    /// a buffer for the longest packet.
    ///
    /// # Errors
    /// `AGAIN` if there is none; [`ControlError::Truncated`] if it was longer than
    /// [`MAX_PACKET_BYTES`] or had more than [`MAX_PACKET_FDS`] descriptors: then it is discarded,
    /// and its descriptors are closed.
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
        // The alignment of the ancillary buffer may leave room for one more descriptor.
        if truncated || fds.len() > MAX_PACKET_FDS {
            return Err(ControlError::Truncated);
        }
        bytes.truncate(received.bytes);
        Ok((!bytes.is_empty()).then_some(Packet { bytes, fds }))
    }

    /// The peer's identity.
    ///
    /// # Errors
    /// The error of getsockopt; none occurs for a connected socket.
    pub fn peer(&self) -> Result<PeerCredentials, Errno> {
        let credentials = sockopt::socket_peercred(&self.fd)?;
        Ok(PeerCredentials {
            pid: credentials.pid.as_raw_nonzero().get(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        })
    }
}

/// Takes over an end from another process.
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

/// The reason why a packet wasn't sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// The outgoing packet is empty or exceeds the limits.
    TooLarge {
        /// Its length.
        bytes: usize,
        /// Its number of descriptors.
        fds: usize,
    },
    /// The peer's packet exceeded the limits of bytes or descriptors, and was discarded.
    Truncated,
    /// The socket's error; `AGAIN` means try later.
    System(Errno),
}

impl ControlError {
    /// Whether the socket was only full or empty.
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
