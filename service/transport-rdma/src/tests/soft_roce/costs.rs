//! The cost of a call, counted at the verbs.

use tollgate_shm_abi::metadata::Metadata;
use tollgate_transport::testing::suite::{Node, joined, turn_until};
use tollgate_transport::testing::{call, call_with, head, noise, summary};

use tollgate_transport::{Image, Part, Token};

use super::*;
use crate::{Counts, limits};

/// The costs of both ends during this action.
fn paid(
    a: &mut Node<RdmaLink>,
    b: &mut Node<RdmaLink>,
    work: impl FnOnce(&mut Node<RdmaLink>, &mut Node<RdmaLink>),
) -> [Counts; 2] {
    let before = [a.io.counts(), b.io.counts()];
    work(a, b);
    [a.io.counts() - before[0], b.io.counts() - before[1]]
}

#[test]
fn calls_that_wait_together_leave_by_one_doorbell() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let [sender, receiver] = paid(&mut a, &mut b, |a, b| {
        for n in 0..100 {
            call(a.io.link(), n, b"payload");
        }
        a.io.flush().unwrap();
        turn_until("100 calls", a, b, |_, b| b.said.len() == 100);
    });
    // 100 frames of 39 bytes are one message of one element, sent from the memory where they were
    // marshalled.
    assert_eq!(
        (sender.work_requests, sender.doorbells, sender.elements),
        (1, 1, 1),
        "{sender:?}"
    );
    assert_eq!(sender.bytes_copied, 0);
    assert_eq!(receiver.bytes_copied, 3900);
    assert_eq!([sender.registrations, receiver.registrations], [0, 0]);
}

#[test]
fn a_busy_link_registers_nothing_and_enters_the_kernel_for_nothing() {
    let (mut a, mut b) = joined::<SoftRoce>();
    // Fewer turns than the interval of checks for connection events, and no empty turns.
    a.io.idle_polls = 0;
    let [sender, _] = paid(&mut a, &mut b, |a, _| {
        for n in 0..20 {
            call(a.io.link(), n, b"payload");
            a.io.flush().unwrap();
        }
    });
    assert_eq!(
        (sender.system_calls, sender.registrations),
        (0, 0),
        "{sender:?}"
    );
    assert_eq!(sender.work_requests, 20);
    assert_eq!(sender.doorbells, 20);
    turn_until("20 calls", &mut a, &mut b, |_, b| b.said.len() == 20);
    // One in SIGNAL_EVERY asks for a completion.
    let most = 20 / limits::SIGNAL_EVERY + 1;
    assert!(sender.completions <= most, "{sender:?}");
}

#[test]
fn a_medium_extent_is_gathered_from_its_heap_in_one_work_request() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (daemon, mut app) = heaps(4 << 20, 0);
    let bytes = noise(1, 12_000);
    let span = span_of(&daemon, &mut app, &bytes);
    for n in 0..3 {
        let [sender, _] = paid(&mut a, &mut b, |a, b| {
            call_with(a.io.link(), n, b"inline", &span);
            turn_until("the call", a, b, |a, b| {
                b.said.len() as u64 == n + 1 && a.sent.len() as u64 == n + 1
            });
        });
        // The header with the inline part and padding; the extent in place.
        assert_eq!(
            (sender.work_requests, sender.elements),
            (1, 2),
            "{sender:?}"
        );
        assert_eq!(
            (sender.bytes_copied, sender.bytes_in_place),
            (0, 12_000),
            "{sender:?}"
        );
        assert_eq!(sender.registrations, u64::from(n == 0), "call {n}");
    }
}

/// BytePS's pattern: small elements are copied next to their neighbours, or aren't, and arrive
/// unchanged.
#[test]
fn small_elements_are_fused_unless_that_is_switched_off() {
    let (daemon, mut app) = heaps(4 << 20, 0);
    let bytes = noise(1, 12_000);
    let heap = span_of(&daemon, &mut app, &bytes);
    let last = |len: usize| Part::Shared {
        span: &heap,
        at: bytes.len() - len,
    };
    for (fuse, elements, in_place) in [(true, 3, 12_000), (false, 4, 12_012)] {
        let rdma = devices();
        let (mut listener, address) = listen(&rdma);
        let options = RdmaOptions {
            fuse,
            ..from_caller(0)
        };
        let a = RdmaLink::connect(&rdma, address, &options, &key("a"), 0).unwrap();
        let (a, b) = accept(&mut listener, a, &key("b"));
        let (mut a, mut b) = (Node::new(a), Node::new(b));
        turn_until("the handshake", &mut a, &mut b, |a, b| {
            a.io.link().is_ready() && b.io.link().is_ready()
        });
        b.said.clear();
        let [sender, _] = paid(&mut a, &mut b, |a, b| {
            let image = Image {
                inline: b"",
                extents: &[last(8), last(12_000), last(4)],
                metadata: Metadata::default(),
            };
            a.io.link().send_call(&head(1), &image, Token(1)).unwrap();
            turn_until("the call", a, b, |a, b| {
                b.said.len() == 1 && a.sent.len() == 1
            });
        });
        assert_eq!(
            (sender.work_requests, sender.elements, sender.bytes_in_place),
            (1, elements, in_place),
            "{sender:?}"
        );
        let expected = [&bytes[11_992..], &bytes, &bytes[11_996..]].concat();
        let summary = summary(&expected);
        assert!(b.said[0].contains(&summary), "{}, not {summary}", b.said[0]);
    }
}

#[test]
fn a_heap_is_registered_once_for_all_links_and_forgotten_with_its_session() {
    let rdma = devices();
    let (mut listener, address) = listen(&rdma);
    let mut pairs: Vec<_> = (0..3)
        .map(|_| connect(&rdma, &mut listener, address, &key("a"), &key("b")))
        .map(|(a, b)| (Node::new(a), Node::new(b)))
        .collect();
    let (daemon, mut app) = heaps(4 << 20, 0);
    let span = span_of(&daemon, &mut app, &noise(1, 12_000));
    let mut registrations = 0;
    for (a, b) in &mut pairs {
        turn_until("the handshake", a, b, |a, b| {
            a.io.link().is_ready() && b.io.link().is_ready()
        });
        let [sender, _] = paid(a, b, |a, b| {
            call_with(a.io.link(), 1, b"", &span);
            turn_until("the call", a, b, |a, _| a.sent.len() == 1);
        });
        registrations += sender.registrations;
    }
    assert_eq!(registrations, 1);
    let heaps_of = |rdma: &Rdma| rdma.devices().map(|device| device.heaps).sum::<usize>();
    assert_eq!(
        (heaps_of(&rdma), rdma.sweep()),
        (1, 0),
        "the session is there"
    );
    drop((span, daemon, app));
    // All sends of the transport suite's links from it are complete.
    assert_eq!((rdma.sweep(), heaps_of(&rdma)), (1, 0));
}

/// Frames that find no room in the ring are copied once more when they leave, and nothing waits for
/// that room.
#[test]
fn more_than_the_memory_for_frames_has_room_for_is_copied_once_more() {
    for pooled in [false, true] {
        let (mut a, mut b) = match pooled {
            false => joined::<SoftRoce>(),
            true => joined::<super::shared::Pooled>(),
        };
        let memory = match pooled {
            false => limits::MARSHAL_BYTES,
            true => limits::POOLED_MARSHAL_BYTES,
        };
        let [length, calls] = [4_000, 2 * memory / 4_000];
        let body = noise(1, length);
        let mut said = b.said.len();
        for round in 0..3 {
            let [sender, _] = paid(&mut a, &mut b, |a, b| {
                for n in 0..calls {
                    call(a.io.link(), (round * calls + n) as u64, &body);
                }
                said += calls;
                turn_until("the calls", a, b, |_, b| b.said.len() == said);
            });
            // Twice as many bytes were sent, in frames with headers.
            let [least, most] = [memory / 2, memory + memory / 4].map(|bytes| bytes as u64);
            assert!(
                (least..most).contains(&sender.bytes_copied),
                "{pooled}: {sender:?}"
            );
            // The receiver may be ahead of the completions that free the ring for the next round.
            turn_until("the ring to be free", &mut a, &mut b, |a, _| {
                a.io.marshalled_in_flight() < memory as u64 / 8
            });
        }
        let body = summary(&body);
        assert!(
            b.said[said - calls..]
                .iter()
                .all(|call| call.contains(&body))
        );
    }
}
