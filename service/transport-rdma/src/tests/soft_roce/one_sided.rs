//! Links whose stream is written into rings: the same suite, their costs, and a peer that misuses
//! its key.

use tollgate_transport::Blame;
use tollgate_transport::testing::suite::{Node, joined, turn_until, turn_until_error};
use tollgate_transport::testing::{call, call_with, noise};

use super::hostile::{forge, immediate, queues, refusal};
use super::*;
use crate::ring::{READ_AT, RING_AT, WRITTEN_AT, word};
use crate::verbs::{Gather, Queue, To};
use crate::wire::Kind;
use crate::{RdmaError, limits};

/// The smallest possible rings: they wrap often, and fill up soon.
pub(super) struct SmallRings;

impl Testbed for SmallRings {
    type Io = RdmaLink;

    const NEEDS_KEY: bool = true;

    const UNPROTECTED: bool = true;

    fn connect(a: &LinkConfig, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
        connect_with([limits::MIN_RING_BYTES; 2], a, b)
    }
}

transport_suite!(SmallRings);

/// Rings of different sizes, one of them the default.
struct Rings;

impl Testbed for Rings {
    type Io = RdmaLink;

    const NEEDS_KEY: bool = true;

    const UNPROTECTED: bool = true;

    fn connect(a: &LinkConfig, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
        connect_with([limits::RING_BYTES, 4 * limits::MIN_RING_BYTES], a, b)
    }
}

#[test]
fn a_link_is_one_sided_if_both_ends_give_a_ring() {
    for (rings, one_sided) in [
        ([1 << 20; 2], true),
        ([1 << 20, 0], false),
        ([0, 1 << 20], false),
    ] {
        let (a, b) = connect_with(rings, &key("a"), &key("b"));
        let (mut a, mut b) = (Node::new(a), Node::new(b));
        turn_until("the handshake", &mut a, &mut b, |a, b| {
            a.io.link().is_ready() && b.io.link().is_ready()
        });
        assert_eq!([a.io.is_one_sided(), b.io.is_one_sided()], [one_sided; 2]);
        call(a.io.link(), 1, b"by either");
        turn_until("a call", &mut a, &mut b, |_, b| b.said.len() == 2);
    }
}

#[test]
fn rings_have_limits() {
    let address = "10.99.0.2:1".parse().unwrap();
    for bytes in [1, limits::MIN_RING_BYTES - 1, limits::MAX_RING_BYTES + 1] {
        let outcome = RdmaLink::connect(&devices(), address, &from_caller(bytes), &key("a"), 0);
        assert!(
            matches!(outcome, Err(RdmaError::RingBytes { bytes: refused }) if refused == bytes)
        );
        let outcome = RdmaListener::bind(&devices(), address, &from_caller(bytes));
        assert!(matches!(outcome, Err(RdmaError::RingBytes { .. })));
    }
}

#[test]
fn a_polled_ring_takes_no_receive_and_wakes_nobody() {
    let (mut a, mut b) = joined::<Rings>();
    turn_until("silence", &mut a, &mut b, |_, _| true);
    let before = [a.io.counts(), b.io.counts()];
    for n in 0..100 {
        call(a.io.link(), n, b"payload");
    }
    a.io.flush().unwrap();
    turn_until("100 calls", &mut a, &mut b, |_, b| b.said.len() == 100);
    let sender = a.io.counts() - before[0];
    let receiver = b.io.counts() - before[1];
    // The bytes, and the word with their count: one list.
    assert_eq!(
        (sender.work_requests, sender.doorbells),
        (2, 1),
        "{sender:?}"
    );
    assert_eq!(
        (receiver.completions, receiver.receives),
        (0, 0),
        "{receiver:?}"
    );
    assert_eq!([sender.registrations, receiver.registrations], [0, 0]);
}

#[test]
fn a_medium_extent_is_written_from_its_heap_into_the_ring() {
    let (mut a, mut b) = joined::<Rings>();
    let (daemon, mut app) = heaps(4 << 20, 0);
    let span = span_of(&daemon, &mut app, &noise(1, 12_000));
    let before = a.io.counts();
    call_with(a.io.link(), 1, b"inline", &span);
    turn_until("the call", &mut a, &mut b, |a, b| {
        b.said.len() == 1 && a.sent.len() == 1
    });
    let sender = a.io.counts() - before;
    assert_eq!(
        (sender.bytes_copied, sender.bytes_in_place),
        (0, 12_000),
        "{sender:?}"
    );
}

/// Writes a false word into b's window.
fn lie(a: &mut Node<RdmaLink>, at: usize, count: u64) {
    let queues = queues(a);
    queues.place()[..16].copy_from_slice(&word(count));
    let to = To::Window {
        at,
        immediate: None,
    };
    queues.push(&[Gather::Place { at: 0, len: 16 }], to, true);
    queues.ring().unwrap();
}

#[test]
fn counts_that_cannot_be_end_the_link() {
    for (at, count, expected) in [
        (
            WRITTEN_AT,
            u64::MAX,
            "18446744073709551615 bytes written into a ring of 262144, after ",
        ),
        (
            WRITTEN_AT,
            0,
            "0 bytes written into a ring of 262144, after ",
        ),
        (
            READ_AT,
            u64::MAX,
            "18446744073709551615 bytes of the ring read, after 0 before, of ",
        ),
    ] {
        let (mut a, mut b) = joined::<Rings>();
        lie(&mut a, at, count);
        let error = turn_until_error(&mut b);
        assert_eq!(error.blame(), Blame::Peer, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn what_is_written_beside_the_counts_is_the_links_to_check() {
    let (mut a, mut b) = joined::<Rings>();
    // Bytes that aren't frames, and a count that covers them.
    let seen = b.io.seen_of_ring();
    let at = RING_AT + seen as usize % (4 * limits::MIN_RING_BYTES as usize);
    let queues = queues(&mut a);
    queues.place()[..64].fill(0xff);
    let to = To::Window {
        at,
        immediate: None,
    };
    queues.push(&[Gather::Place { at: 0, len: 64 }], to, true);
    lie(&mut a, WRITTEN_AT, seen + 64);
    let error = turn_until_error(&mut b);
    assert_eq!(
        error.to_string(),
        "the peer sent a frame of unknown kind 255"
    );
}

/// Waits until earlier sends are complete: a message that asks for a completion shows it.
fn settle(node: &mut Node<RdmaLink>) {
    forge(node, immediate(Kind::Credit), b"");
    until("silence", || {
        queues(node).poll(&mut Vec::new()).unwrap();
        let (next, complete) = queues(node).progress(Queue::Stream);
        match next == complete {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
}

#[test]
fn a_ring_is_all_that_its_key_reaches() {
    let bytes = RING_AT as u64 + 4 * u64::from(limits::MIN_RING_BYTES);
    for offset in [bytes, bytes - 4, u64::MAX - 7] {
        let (mut a, mut b) = joined::<Rings>();
        let (address, key) = queues(&mut a).peer_window_for_attack();
        settle(&mut a);
        let said = refusal(&mut a, address.wrapping_add(offset), key);
        assert_eq!(
            said, "the peer's device refused access to its memory",
            "at {offset}"
        );
        drop(a);
        let error = turn_until_error(&mut b);
        assert_eq!(error.blame(), Blame::Network, "{error}");
    }
}

#[test]
fn a_ring_is_written_by_its_own_link_only() {
    let (mut victim, mut b) = joined::<Rings>();
    let (mut attacker, _other) = joined::<Rings>();
    // All that the victim has told its peer.
    let (address, key) = queues(&mut victim).peer_window_for_attack();
    settle(&mut attacker);
    let said = refusal(&mut attacker, address, key);
    assert_eq!(said, "the peer's device refused access to its memory");
    call(victim.io.link(), 1, b"as before");
    turn_until("a call", &mut victim, &mut b, |_, b| b.said.len() == 1);
}

#[test]
fn rings_are_given_once_and_as_announced() {
    let (mut a, mut b) = joined::<Rings>();
    forge(&mut a, immediate(Kind::Ring), &[0; 16]);
    let error = turn_until_error(&mut b).to_string();
    assert!(error.ends_with("Ring where none belongs"), "{error}");

    let (mut a, b) = connect_with([1 << 20; 2], &key("a"), &key("b"));
    // It was already announced.
    a.ring_bytes *= 2;
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    let error = until("the refusal", || {
        let _ = a.turn();
        match b.turn() {
            Err(error) => ControlFlow::Break(error.to_string()),
            Ok(()) => ControlFlow::Continue(()),
        }
    });
    assert!(
        error.ends_with("a ring of 2097152 bytes, where 1048576 were announced"),
        "{error}"
    );
}

#[test]
fn a_one_sided_links_stream_is_in_its_ring_only() {
    let (mut a, mut b) = joined::<Rings>();
    forge(&mut a, immediate(Kind::Stream), b"by the other way");
    let error = turn_until_error(&mut b).to_string();
    assert!(error.ends_with("Stream where none belongs"), "{error}");
}
