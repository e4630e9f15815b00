//! Parts are sent in order, from private and from shared memory, over socket pairs and TCP.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::session::{AppEnd, SessionShape, create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::vec::Vec;

/// Spans of a real session's send heap, each filled with its number.
fn spans(lens: &[usize]) -> Vec<Span> {
    let shape = SessionShape {
        send_heap_bytes: 16 << 20,
        receive_heap_bytes: 1 << 20,
        ..SessionShape::default()
    };
    let (daemon, fds) = create(&shape).unwrap();
    let mut app = AppEnd::attach(&shape, fds).unwrap();
    let mut spans = Vec::new();
    for (number, &len) in lens.iter().enumerate() {
        let mut block = app.send_heap.alloc(len).unwrap();
        block.fill(number as u8);
        spans.push(
            daemon
                .send_heap
                .span(app.send_heap.commit(block), len)
                .unwrap(),
        );
    }
    spans
}

#[test]
fn parts_of_both_kinds_leave_in_order_and_after_the_session_ended() {
    let spans = spans(&[4, 3]);
    let (sender, mut receiver) = UnixStream::pair().unwrap();
    let parts = [
        Part::Private(b"head"),
        Part::Shared {
            span: &spans[0],
            at: 0,
        },
        Part::Private(b""),
        Part::Shared {
            span: &spans[1],
            at: 1,
        },
        Part::Shared {
            span: &spans[1],
            at: 99,
        },
        Part::Private(b"tail"),
    ];
    assert_eq!(send_parts(&sender, &parts), Ok(14));
    drop(sender);
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"head\0\0\0\0\x01\x01tail");
}

/// Sends all parts, however little the socket accepts at a time.
fn send_all(socket: &TcpStream, head: &[u8], span: &Span) {
    let mut sent = 0;
    while sent < head.len() + span.len() {
        let parts = [
            Part::Private(&head[sent.min(head.len())..]),
            Part::Shared {
                span,
                at: sent.saturating_sub(head.len()),
            },
        ];
        match send_parts(socket, &parts) {
            Ok(more) => sent += more,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(errno) => panic!("{errno}"),
        }
    }
}

#[test]
fn eight_mebibytes_cross_tcp_from_the_heap() {
    let span = spans(&[0, 8 << 20]).pop().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let receiving = std::thread::spawn(move || {
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).unwrap();
        received
    });
    send_all(&sender, b"head", &span);
    drop(sender);
    let received = receiving.join().unwrap();
    assert_eq!(received.len(), 4 + (8 << 20));
    assert_eq!(&received[..4], b"head");
    assert!(received[4..].iter().all(|&byte| byte == 1));
}

#[test]
fn a_full_socket_says_later_even_if_it_would_block() {
    let (sender, _receiver) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let bytes = [7; 65_536];
    while let Ok(sent) = send_parts(&sender, &[Part::Private(&bytes)]) {
        assert!(sent > 0);
    }
    assert_eq!(
        send_parts(&sender, &[Part::Private(&bytes)]),
        Err(Errno::AGAIN)
    );
}

#[test]
fn a_closed_peer_is_an_error_and_no_signal() {
    let (sender, receiver) = UnixStream::pair().unwrap();
    drop(receiver);
    assert_eq!(
        send_parts(&sender, &[Part::Private(b"x")]),
        Err(Errno::PIPE)
    );
}

#[test]
fn parts_past_the_limit_wait_for_the_next_turn() {
    let (sender, _receiver) = UnixStream::pair().unwrap();
    let parts = [Part::Private(b"x"); MAX_PARTS + 1];
    assert_eq!(send_parts(&sender, &parts), Ok(MAX_PARTS));
    assert_eq!(send_parts(&sender, &[]), Ok(0));
}

/// A loopback device loses almost nothing.
#[test]
fn the_kernel_counts_what_a_connection_has_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    send_parts(&sender, &[Part::Private(b"once")]).unwrap();
    receiver.read_exact(&mut [0; 4]).unwrap();
    assert!(retransmits(&sender).unwrap() < 10);
    let (local, _other) = UnixStream::pair().unwrap();
    assert_eq!(retransmits(&local), Err(Errno::OPNOTSUPP));
}
