//! Every transport's suite over real loopback sockets, and tests specific to TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use super::*;
use crate::io::{FlushOutcome, OpenError, TcpLink};
use crate::testing::suite::{Node, joined, turn_until, turn_until_error};

/// Loopback sockets.
struct Loopback;

impl Testbed for Loopback {
    type Io = TcpLink;

    const NEEDS_KEY: bool = false;

    fn connect(a: &LinkConfig, b: &LinkConfig) -> (TcpLink, TcpLink) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpLink::connect(listener.local_addr().unwrap(), a, 0).unwrap();
        let b = TcpLink::accept(listener.accept().unwrap().0, b, 0).unwrap();
        (a, b)
    }
}

crate::transport_suite!(Loopback);

/// The same between daemons with a key: frames are sealed.
mod sealed {
    use super::*;

    struct Sealed;

    impl Testbed for Sealed {
        type Io = TcpLink;

        const NEEDS_KEY: bool = true;

        fn connect(a: &LinkConfig, b: &LinkConfig) -> (TcpLink, TcpLink) {
            Loopback::connect(a, b)
        }
    }

    // Except tests of messages that are sent without a copy.
    crate::transport_suite! { Sealed:
        small_calls_share_a_turn,
        every_kind_of_frame_arrives_as_it_was_said,
        calls_of_all_sizes_arrive_in_order,
        a_body_must_be_read_before_the_next_read,
        a_large_body_may_be_skipped,
        unpolled_events_are_not_mistaken_for_the_end,
        keys_are_proved_and_wrong_ones_refused,
        a_sentence_reaches_the_peer_before_the_end,
        an_idle_link_wakes_when_something_comes,
    }

    /// In pieces, for a receiver that takes little at once.
    #[test]
    fn large_extents_cross_a_full_connection_sealed() {
        let (mut a, mut b) = joined::<Sealed>();
        b.at_most = 10_007;
        let bytes = noise(3, 2 << 20);
        let shared = span(&bytes);
        for n in 0..8 {
            turn_until("room", &mut a, &mut b, |a, _| !a.io.link.is_full());
            call_with(&mut a.io.link, n, b"inline", &shared);
            turn_until("room", &mut a, &mut b, |a, _| !a.io.link.is_full());
            call(&mut a.io.link, 100 + n, b"between");
        }
        turn_until("all 16 calls", &mut a, &mut b, |_, b| b.said.len() == 16);
        let body = [b"inline\0\0", &bytes[..]].concat();
        for pair in b.said.chunks(2) {
            assert!(pair[0].ends_with(&summary(&body)), "{}", pair[0]);
            assert!(pair[1].ends_with("\"between\""));
        }
        assert_eq!(a.io.link.moved().shared_in_place, 0);
    }
}

/// A peer that isn't a daemon, and the link that accepted it.
fn stranger() -> (TcpStream, Node<TcpLink>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (
        stranger,
        Node::new(TcpLink::accept(listener.accept().unwrap().0, &config("b"), 0).unwrap()),
    )
}

#[test]
fn both_ends_know_their_peer_and_wait_for_no_segment() {
    let (a, b) = joined::<Loopback>();
    assert!(a.io.peer_address().ip().is_loopback());
    let nodelay = |node: &Node<TcpLink>| rustix::net::sockopt::tcp_nodelay(node.io.as_fd());
    assert_eq!((nodelay(&a), nodelay(&b)), (Ok(true), Ok(true)));
}

#[test]
fn a_peer_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = match TcpLink::connect(address, &config("a"), 0) {
        Ok(tcp) => turn_until_error(&mut Node::new(tcp)).to_string(),
        Err(error) => error.to_string(),
    };
    let expected = format!("connecting to {address} failed: Connection refused");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn beyond_loopback_connecting_needs_a_key() {
    let address: SocketAddr = "192.0.2.1:7471".parse().unwrap();
    let here = "127.0.0.1:7471".parse().unwrap();
    let refused = TcpLink::connect(here, &LinkConfig::new("a"), 0).err();
    assert!(matches!(refused, Some(OpenError::Keyless { .. })));
    let refused = TcpLink::connect(address, &config("a"), 0).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "192.0.2.1:7471 isn't a loopback address: a peer beyond this host needs a key, the same on both daemons"
    );
    let mapped: SocketAddr = "[::ffff:192.0.2.1]:7471".parse().unwrap();
    assert!(matches!(
        TcpLink::connect(mapped, &config("a"), 0),
        Err(OpenError::NeedsKey { .. })
    ));
}

#[test]
fn garbage_on_the_port_ends_only_that_connection() {
    let (mut stranger, mut b) = stranger();
    stranger
        .write_all(b"GET / HTTP/1.1\r\nHost: tollgate\r\n\r\n")
        .unwrap();
    let error = turn_until_error(&mut b);
    assert_eq!(error, LinkError::UnknownKind { kind: Kind(b'/') });
    assert_eq!(b.io.flush(), Ok(FlushOutcome::Done));
    drop(b);
    let mut told = Vec::new();
    let _ = stranger.read_to_end(&mut told);
    assert!(
        told.ends_with(error.to_string().as_bytes()),
        "the HELLO, then a GOAWAY with the sentence"
    );
}

#[test]
fn a_stranger_who_leaves_has_closed_the_link() {
    let (stranger, mut b) = stranger();
    drop(stranger);
    assert_eq!(turn_until_error(&mut b), LinkError::Closed);
}
