//! Packets and descriptors arrive; packets beyond the limits don't, and leave no descriptor open.
#![allow(clippy::unwrap_used)]

use super::*;
use rustix::io::FdFlags;
use std::string::{String, ToString};
use std::vec;

fn pair() -> (ControlSocket, ControlSocket) {
    ControlSocket::pair().unwrap()
}

#[test]
fn a_packet_arrives_whole_with_its_descriptors_close_on_exec() {
    let (one, other) = pair();
    let (reader, writer) = std::io::pipe().unwrap();
    one.send(b"first", &[writer.as_fd()]).unwrap();
    one.send(&vec![7; MAX_PACKET_BYTES], &[]).unwrap();
    drop(writer);

    let packet = other.recv().unwrap().unwrap();
    assert_eq!(packet.bytes, b"first");
    let [writer] = <[OwnedFd; 1]>::try_from(packet.fds).unwrap();
    assert!(
        rustix::io::fcntl_getfd(&writer)
            .unwrap()
            .contains(FdFlags::CLOEXEC)
    );
    rustix::io::write(&writer, b"x").unwrap();
    assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(1));

    let packet = other.recv().unwrap().unwrap();
    assert_eq!(
        (packet.bytes.len(), packet.fds.len()),
        (MAX_PACKET_BYTES, 0)
    );
    assert!(other.recv().unwrap_err().is_would_block());
    drop(one);
    assert!(other.recv().unwrap().is_none(), "closed");
}

#[test]
fn oversized_packets_are_not_sent() {
    let (one, other) = pair();
    let fds = [one.as_fd(); MAX_PACKET_FDS + 1];
    let refuse = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
        let wanted = ControlError::TooLarge {
            bytes: bytes.len(),
            fds: fds.len(),
        };
        assert_eq!(one.send(bytes, fds), Err(wanted));
        wanted.to_string()
    };
    refuse(b"", &[]);
    refuse(&vec![0; MAX_PACKET_BYTES + 1], &[]);
    let text = refuse(b"x", &fds);
    assert_eq!(
        text,
        "a packet of 1 bytes with 9 descriptors isn't within 1..=65536 bytes and 0..=8 descriptors"
    );
    one.send(b"x", &fds[..MAX_PACKET_FDS]).unwrap();
    let packet = other.recv().unwrap().unwrap();
    assert_eq!(packet.fds.len(), MAX_PACKET_FDS);
}

/// Sends a hostile peer's packet, without the checks of `send`.
fn send_raw(socket: &ControlSocket, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::empty(),
    )
    .unwrap();
}

#[test]
fn surplus_descriptors_are_closed_and_the_connection_goes_on() {
    let (one, other) = pair();
    for count in [9, 10, 64] {
        let (reader, writer) = std::io::pipe().unwrap();
        send_raw(&one, b"x", &vec![writer.as_fd(); count]);
        drop(writer);
        assert_eq!(other.recv().unwrap_err(), ControlError::Truncated);
        assert_eq!(
            rustix::io::read(&reader, &mut [0; 8]),
            Ok(0),
            "no writer is left open"
        );
    }
    one.send(b"y", &[]).unwrap();
    assert_eq!(other.recv().unwrap().unwrap().bytes.len(), 1);
}

#[test]
fn descriptors_of_an_empty_packet_are_closed() {
    let (one, other) = pair();
    let (reader, writer) = std::io::pipe().unwrap();
    send_raw(&one, b"", &[writer.as_fd()]);
    drop(writer);
    assert!(other.recv().unwrap().is_none(), "as good as closed");
    assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(0));
}

#[test]
fn a_packet_longer_than_the_limit_is_discarded() {
    let (one, other) = pair();
    send_raw(&one, &vec![1; MAX_PACKET_BYTES + 1], &[]);
    let error = other.recv().unwrap_err();
    assert_eq!(error, ControlError::Truncated);
    assert_eq!(
        error.to_string(),
        "the peer's packet exceeds 65536 bytes or 8 descriptors"
    );
}

#[test]
fn a_peer_that_does_not_read_fills_its_own_socket_only() {
    let (one, _other) = pair();
    let error = loop {
        if let Err(error) = one.send(&[0; 1024], &[]) {
            break error;
        }
    };
    assert!(error.is_would_block());
}

fn socket_path(directory: &tempfile::TempDir) -> String {
    directory
        .path()
        .join("tollgate.sock")
        .to_str()
        .unwrap()
        .to_string()
}

#[test]
fn a_listener_accepts_and_knows_its_peer() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_path(&directory);
    let listener = ControlListener::bind(&path).unwrap();
    assert_eq!(listener.accept().unwrap_err(), Errno::AGAIN);
    let app = ControlSocket::connect(&path).unwrap();
    let daemon = listener.accept().unwrap();
    app.send(b"hello", &[]).unwrap();
    assert_eq!(daemon.recv().unwrap().unwrap().bytes.len(), 5);
    assert!(daemon.recv().unwrap_err().is_would_block());
    assert!(app.recv().unwrap_err().is_would_block());
    let peer = daemon.peer().unwrap();
    assert_eq!(peer.pid, rustix::process::getpid().as_raw_nonzero().get());
    assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getgid().as_raw());
}

#[test]
fn a_path_is_taken_over_from_the_dead_but_not_from_the_living() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_path(&directory);
    assert_eq!(ControlSocket::connect(&path).unwrap_err(), Errno::NOENT);
    let first = ControlListener::bind(&path).unwrap();
    assert_eq!(
        ControlListener::bind(&path).unwrap_err(),
        ListenError::InUse
    );
    drop(first);
    assert_eq!(
        ControlSocket::connect(&path).unwrap_err(),
        Errno::CONNREFUSED
    );
    let _second = ControlListener::bind(&path).unwrap();
    ControlSocket::connect(&path).unwrap();
}

#[test]
fn what_is_no_stale_socket_of_this_users_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_path(&directory);
    let refused = || ControlListener::bind(&path).unwrap_err();
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(refused(), ListenError::NoSocket);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    // A symbolic link is never followed.
    std::fs::remove_file(&path).unwrap();
    for target in ["/dev/null", "/nowhere"] {
        std::os::unix::fs::symlink(target, &path).unwrap();
        assert_eq!(refused(), ListenError::NoSocket, "{target}");
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::create_dir(&path).unwrap();
    assert_eq!(refused(), ListenError::NoSocket);
    std::fs::remove_dir(&path).unwrap();
    // Of another type, and with a listener.
    let stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert_eq!(refused(), ListenError::InUse);
    drop(stream);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(&path, Some(65_534), None).unwrap();
        assert_eq!(refused(), ListenError::Foreign { uid: 65_534 });
        std::os::unix::fs::lchown(&path, Some(0), None).unwrap();
    }
    ControlListener::bind(&path).unwrap();
}

#[test]
fn nobody_connects_before_it_is_said_who_may() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_path(&directory);
    let refused = ControlListener::bind_after(&path, || {
        let connected = ControlSocket::connect(&path);
        assert_eq!(connected.unwrap_err(), Errno::CONNREFUSED);
        Err(ListenError::System(Errno::PERM))
    });
    assert_eq!(refused.unwrap_err(), ListenError::System(Errno::PERM));
    assert_eq!(ControlSocket::connect(&path).unwrap_err(), Errno::NOENT);
    let _listener = ControlListener::bind_after(&path, || Ok::<_, ListenError>(())).unwrap();
    ControlSocket::connect(&path).unwrap();
}
