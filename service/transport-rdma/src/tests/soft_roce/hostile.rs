//! A peer with a valid connection that sends anything it likes: only its link ends, with a sentence
//! that names it.

use tollgate_transport::testing::suite::{Node, joined, turn_until_error};
use tollgate_transport::testing::{call_with, noise, span};
use tollgate_transport::{Blame, Body, Event, LinkError};

use super::one_sided::SmallRings;
use super::*;
use crate::limits::{MESSAGE_BYTES, RECEIVES};
use crate::verbs::{Attack, Completion, Gather, Queue, Queues, To};
use crate::wire::{Immediate, Kind};
use crate::{Landing, limits};

pub(super) fn queues(node: &mut Node<RdmaLink>) -> &mut Queues {
    node.io.connection.queues().unwrap()
}

pub(super) fn immediate(kind: Kind) -> u32 {
    let returned = 0;
    Immediate { kind, returned }.encode()
}

/// The failure of a request. `before` runs before each poll; `others_succeed` lets other requests
/// complete.
fn failure(
    a: &mut Node<RdmaLink>,
    others_succeed: bool,
    mut before: impl FnMut(&mut Node<RdmaLink>),
) -> &'static str {
    let status = until("a refusal", || {
        before(a);
        let mut found = Vec::new();
        queues(a).poll(&mut found).unwrap();
        let failed = found.into_iter().find_map(|completion| match completion {
            Completion::Failed { status, .. } => Some(status),
            Completion::Sent { .. } if !others_succeed => panic!("it was done"),
            _ => None,
        });
        match failed {
            Some(status) => ControlFlow::Break(status),
            None => ControlFlow::Continue(()),
        }
    });
    crate::verbs::sentence_of(status)
}

/// The answer of the peer's device to this write.
pub(super) fn refusal(a: &mut Node<RdmaLink>, address: u64, key: u32) -> &'static str {
    queues(a).attack(Attack::Write, address, key);
    failure(a, false, |_| {})
}

/// Sends this payload from the place with this immediate data.
pub(super) fn forge(a: &mut Node<RdmaLink>, immediate: u32, payload: &[u8]) {
    if a.io.flow.may_send() {
        a.io.flow.send();
    }
    let queues = queues(a);
    queues.place()[..payload.len()].copy_from_slice(payload);
    let whole = [Gather::Place {
        at: 0,
        len: payload.len(),
    }];
    let elements = if payload.is_empty() {
        &[][..]
    } else {
        &whole[..]
    };
    queues.push(elements, To::Receive { immediate }, true);
    queues.ring().unwrap();
}

/// Waits until b's device has received or refused the forged message.
fn until_delivered(a: &mut Node<RdmaLink>) {
    until("their arrival", || {
        let mut found = Vec::new();
        queues(a).poll(&mut found).unwrap();
        let refused = found
            .iter()
            .any(|completion| matches!(completion, Completion::Failed { .. }));
        let (next, complete) = queues(a).progress(Queue::Stream);
        match refused || next == complete {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
}

/// Checks b's error after a's attack.
fn check(what: &str, attack: impl FnOnce(&mut Node<RdmaLink>), expected: &str) {
    let (mut a, mut b) = joined::<SoftRoce>();
    attack(&mut a);
    let error = turn_until_error(&mut b);
    let rule = "the peer broke a rule of the connection: ";
    assert_eq!(error.to_string(), format!("{rule}{expected}"), "{what}");
    assert_eq!(error.blame(), Blame::Peer, "{what}");
}

#[test]
fn wild_immediate_data_ends_the_link() {
    for (wild, shown) in [
        (0, "0x00000000"),
        (u32::MAX, "0xffffffff"),
        (8 << 28, "0x80000000"),
        (1 << 28 | 1 << 20, "0x10100000"),
    ] {
        let expected = format!("a message with immediate data {shown}, which means nothing");
        check(shown, |a| forge(a, wild, b"x"), &expected);
    }
}

#[test]
fn forged_lengths_end_the_link() {
    for (kind, payload, expected) in [
        (Kind::Stream, &b""[..], "a Stream of 0 bytes"),
        (Kind::Credit, b"x", "a Credit of 1 bytes"),
        (Kind::Grant, b"x", "a Grant of 1 bytes"),
        (Kind::Decline, b"xxxx", "a Decline of 4 bytes"),
        (Kind::Offer, b"xxx", "a Offer of 3 bytes"),
        (Kind::Offer, &[0; 4], "an offer of 0 bytes"),
        (Kind::Offer, &[1, 0, 0, 1], "an offer of 16777217 bytes"),
        (Kind::Offer, &[0xff; 4], "an offer of 4294967295 bytes"),
    ] {
        check(expected, |a| forge(a, immediate(kind), payload), expected);
    }
}

#[test]
fn answers_that_nobody_asked_for_end_the_link() {
    check(
        "a grant",
        |a| forge(a, immediate(Kind::Grant), b""),
        "Grant where none belongs",
    );
    check(
        "a decline",
        |a| forge(a, immediate(Kind::Decline), b""),
        "Decline where none belongs",
    );
    let two_offers = |a: &mut Node<RdmaLink>| {
        for _ in 0..2 {
            forge(a, immediate(Kind::Offer), &70_000_u32.to_le_bytes());
        }
        // Both messages have arrived when b looks: it answers none before.
        until_delivered(a);
    };
    check("two offers", two_offers, "Offer where none belongs");
}

#[test]
fn a_two_sided_link_knows_no_rings() {
    for kind in [Kind::Ring, Kind::Sleep] {
        let expected = format!("{kind:?} where none belongs");
        check("a ring", |a| forge(a, immediate(kind), &[1; 16]), &expected);
    }
}

#[test]
fn credits_that_were_never_taken_end_the_link() {
    let generous = Immediate {
        kind: Kind::Credit,
        returned: RECEIVES + 1,
    };
    let (mut a, mut b) = joined::<SoftRoce>();
    forge(&mut a, generous.encode(), b"");
    let error = turn_until_error(&mut b).to_string();
    assert!(
        error.contains("65 credits returned, of 64 with "),
        "{error}"
    );
}

#[test]
fn an_offer_where_no_body_is_pending_is_declined() {
    let (mut a, mut b) = joined::<SoftRoce>();
    forge(&mut a, immediate(Kind::Offer), &70_000_u32.to_le_bytes());
    // b is as ready as before. a learns that its offer was declined; a's link doesn't know of the
    // offer.
    let error = until("the answer", || {
        b.turn().unwrap();
        match a.turn() {
            Err(error) => ControlFlow::Break(error),
            Ok(()) => ControlFlow::Continue(()),
        }
    });
    assert!(
        error.to_string().ends_with("Decline where none belongs"),
        "{error}"
    );
    assert!(b.io.link().is_ready());
}

#[test]
fn more_bytes_than_a_receive_has_end_the_link_and_are_written_nowhere() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let queues = queues(&mut a);
    queues.place().fill(7);
    let whole = || Gather::Place {
        at: 0,
        len: MESSAGE_BYTES,
    };
    let immediate = immediate(Kind::Stream);
    queues.push(&[whole(), whole()], To::Receive { immediate }, true);
    queues.ring().unwrap();
    let error = turn_until_error(&mut b);
    assert_eq!(
        error,
        LinkError::Carried {
            sentence: "more bytes than were posted for them".to_owned()
        }
    );
}

#[test]
fn messages_beyond_the_credits_meet_no_receive_and_harm_their_sender_only() {
    let (mut a, mut b) = joined::<SoftRoce>();
    // b isn't turned, so it posts no new receives. One round of completions makes room for more.
    let mut sent = 0;
    let refused = failure(&mut a, true, |a| {
        while sent < 2 * u32::from(RECEIVES) && queues(a).room(Queue::Stream) > 0 {
            forge(a, immediate(Kind::Credit), b"");
            sent += 1;
        }
    });
    assert_eq!(refused, "the peer had no receive posted");
    // b has taken the messages that met a receive, and lives until the connection ends.
    drop(a);
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), Blame::Network, "{error}");
}

/// The attacker knows addresses and keys of the victim, and still can't write there. (Reads can't
/// even be requested: both ends forbid them when they connect.)
#[test]
fn memory_cannot_be_written_from_outside_whoever_knows_its_key() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (address, key) = queues(&mut b).receives_for_attack();
    let sentence = refusal(&mut a, address, key);
    assert_eq!(sentence, "the peer's device refused access to its memory");
    drop(a);
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), Blame::Network, "{error}");
}

/// A write of nothing needs no key, and its immediate data takes a receive.
#[test]
fn a_write_with_immediate_data_is_no_message() {
    let attack = |a: &mut Node<RdmaLink>| queues(a).attack(Attack::WriteImmediate, 0, 0);
    check("a write", attack, "Stream where none belongs");
}

/// Reads b until it has granted a's offer of `len` bytes.
fn until_granted(
    a: &mut Node<RdmaLink>,
    b: &mut Node<RdmaLink>,
    block: tollgate_shm_abi::heap::Block,
) {
    let mut block = Some(block);
    until("a grant", || {
        let _ = b.io.read_some(usize::MAX).unwrap();
        if let Some(Event::Call { came, .. }) = b.io.link().poll_event().unwrap() {
            assert!(matches!(came.body, Body::Large(_)));
            b.io.land(block.take().unwrap()).unwrap();
        }
        if block.is_none() {
            assert!(matches!(b.io.read_landing().unwrap(), Landing::Pending));
        }
        match b.io.granted {
            Some(_) => ControlFlow::Break(()),
            None => {
                a.io.flush().unwrap();
                ControlFlow::Continue(())
            }
        }
    });
}

#[test]
fn a_body_shorter_or_longer_than_was_granted_ends_the_link() {
    for (len, expected) in [
        (
            99_999,
            "the peer broke a rule of the connection: a body's message of 99999 bytes where 100000 were announced",
        ),
        (
            100_001,
            "the peer broke a rule of the connection: more bytes than were posted for them",
        ),
    ] {
        let (mut a, mut b) = joined::<SoftRoce>();
        let (mut receiver, _server) = heaps(0, 1 << 20);
        let bytes = [7; 100_001];
        let (shared, forged) = (span(&bytes[..100_000]), span(&bytes));
        call_with(a.io.link(), 1, b"", &shared);
        let block = receiver.receive_heap.alloc(100_000).unwrap();
        until_granted(&mut a, &mut b, block);
        let queues = queues(&mut a);
        let (memory, _) = queues
            .device()
            .heap(forged.region_address(), || forged.region());
        queues.push_body(&memory.unwrap(), forged.offset() as usize, len);
        queues.ring().unwrap();
        let error = until("the end", || match b.io.read_landing() {
            Ok(Landing::Pending) => ControlFlow::Continue(()),
            Ok(Landing::Complete { .. }) => panic!("it isn't what was announced"),
            Err(error) => ControlFlow::Break(error),
        });
        assert_eq!(error.to_string(), expected);
        let block = b.io.reclaim_block().unwrap();
        receiver.receive_heap.discard(block);
    }
}

#[test]
fn a_body_that_nobody_granted_meets_no_receive() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let forged = span(&[7; 100_000]);
    let attacker = queues(&mut a);
    let (memory, _) = attacker
        .device()
        .heap(forged.region_address(), || forged.region());
    attacker.push_body(&memory.unwrap(), forged.offset() as usize, 100_000);
    attacker.ring().unwrap();
    let error = turn_until_error(&mut a);
    assert_eq!(
        error.to_string(),
        "the connection failed: the peer had no receive posted (of a large body)"
    );
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), Blame::Network, "{error}");
}

/// Seeded nonsense, some of it well-formed, over either path: whatever comes, the victim's link
/// continues or ends with an error. It ends once the attacker is gone.
#[test]
fn nonsense_ends_a_link_or_is_survived() {
    let mut ended = 0;
    for seed in 0..40_u64 {
        let (mut a, mut b) = match seed % 2 {
            0 => joined::<SoftRoce>(),
            _ => joined::<SmallRings>(),
        };
        let bytes = noise(seed, 20 * 64);
        let mut error = None;
        for chunk in bytes.chunks_exact(64) {
            if error.is_some() || queues(&mut a).room(Queue::Stream) < 2 {
                break;
            }
            let word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            // Half of them have a valid kind and return no credits.
            let immediate = match chunk[4] % 2 {
                0 => (1 + word % 7) << 28,
                _ => word,
            };
            let len = match chunk[5] % 4 {
                0 => 0,
                1 => 4,
                2 => 16,
                _ => usize::from(chunk[6] % 58),
            };
            forge(&mut a, immediate, &chunk[6..6 + len]);
            until_delivered(&mut a);
            error = b.turn().err();
        }
        drop(a);
        ended += u32::from(error.is_some());
        let error = error.unwrap_or_else(|| turn_until_error(&mut b));
        assert!(
            matches!(error.blame(), Blame::Peer | Blame::Network),
            "seed {seed}: {error}"
        );
    }
    assert!(ended > 10, "{ended} of 40 were found out at once");
}

#[test]
fn every_limit_is_what_the_wire_says() {
    assert_eq!(limits::MESSAGE_BYTES, 16 << 10);
    let most = u64::from(limits::MIN_BODY_MESSAGE) * limits::BODY_MESSAGES as u64;
    assert_eq!(most, u64::from(tollgate_transport::limits::MAX_MESSAGE));
}
