//! Large bodies: from heap to heap, without a copy at either end.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tollgate_shm_abi::heap::Block;
use tollgate_shm_abi::metadata::Metadata;
use tollgate_transport::testing::suite::{Node, joined, turn_until};
use tollgate_transport::testing::{call, call_with, head, noise, span};
use tollgate_transport::{Body, Event, Image, Part, Token};

use super::*;
use crate::{Landing, limits};

/// An image with these extents after an inline part.
fn image<'a>(extents: &'a [Part<'a>]) -> Image<'a> {
    Image {
        inline: b"inline",
        extents,
        metadata: Metadata::default(),
    }
}

/// That image at the receiver.
fn expected(extents: &[&[u8]]) -> Vec<u8> {
    let mut body = b"inline".to_vec();
    for extent in extents {
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend_from_slice(extent);
    }
    body
}

/// Reads until the next large body is in a block of this heap.
fn land(
    a: &mut Node<RdmaLink>,
    b: &mut Node<RdmaLink>,
    alloc: &mut dyn FnMut(usize) -> Block,
) -> Block {
    let mut landing = false;
    until("the body", || {
        a.turn().unwrap();
        let io = &mut b.io;
        if landing {
            if let Landing::Complete { block, .. } = io.read_landing().unwrap() {
                return ControlFlow::Break(block);
            }
        } else {
            io.read_some(usize::MAX).unwrap();
            if let Some(Event::Call { came, .. }) = io.link().poll_event().unwrap() {
                let Body::Large(len) = came.body else {
                    panic!("a small body")
                };
                io.land(alloc(len)).unwrap();
                landing = true;
            }
        }
        io.flush().unwrap();
        ControlFlow::Continue(())
    })
}

#[test]
fn a_large_message_goes_from_heap_to_heap_without_a_copy() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (sender, mut caller) = heaps(4 << 20, 0);
    let (mut receiver, server) = heaps(0, 8 << 20);
    let bytes = noise(1, 1 << 20);
    let span = span_of(&sender, &mut caller, &bytes);
    for n in 0..3 {
        let before = [a.io.counts(), b.io.counts()];
        let moved = b.io.link().moved();
        call_with(a.io.link(), n, b"inline", &span);
        let heap = &mut receiver.receive_heap;
        let block = land(&mut a, &mut b, &mut |len| heap.alloc(len).unwrap());
        assert_eq!(*block, *expected(&[&bytes]));
        // The application can use it in place.
        let len = block.len();
        let offset = receiver.receive_heap.commit(block);
        let delivered = server.receive_heap.claim(offset, len).unwrap();
        assert_eq!(delivered[8..], *bytes);
        assert!(b.io.copies_because().is_none() && a.io.copies_because().is_none());
        let cost = [a.io.counts() - before[0], b.io.counts() - before[1]];
        for (end, cost) in cost.iter().enumerate() {
            assert_eq!(cost.bytes_in_place, 1 << 20, "end {end}: {cost:?}");
            assert!(cost.bytes_copied < 200, "end {end}: {cost:?}");
            let fresh = u64::from(n == 0);
            assert_eq!(cost.registrations, fresh, "call {n}, end {end}: {cost:?}");
        }
        let moved_since = b.io.link().moved();
        assert_eq!(moved_since.body_in_place - moved.body_in_place, 1 << 20);
        drop(delivered);
        receiver.receive_heap.free(offset).unwrap();
    }
    until("all tokens", || {
        a.turn().unwrap();
        match a.sent.len() {
            3 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
}

#[test]
fn a_body_above_the_devices_largest_message_takes_several() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (sender, mut caller) = heaps(32 << 20, 0);
    let (mut receiver, _server) = heaps(0, 32 << 20);
    // With its header and inline part, the largest possible message.
    let bytes = noise(2, (16 << 20) - 8);
    let span = span_of(&sender, &mut caller, &bytes);
    // soft-RoCE accepts 2 GiB; the test sets the smallest valid value.
    for end in [&mut a, &mut b] {
        let queues = end.io.connection.queues().unwrap();
        queues.agree_body_message(limits::MIN_BODY_MESSAGE);
    }
    call_with(a.io.link(), 1, b"inline", &span);
    let heap = &mut receiver.receive_heap;
    let block = land(&mut a, &mut b, &mut |len| heap.alloc(len).unwrap());
    assert!(*block == *expected(&[&bytes]));
    let cost = b.io.counts();
    assert_eq!(cost.bytes_in_place, bytes.len() as u64);
    let receives = usize::from(limits::RECEIVES) + limits::BODY_MESSAGES;
    assert!(cost.receives >= receives as u64, "{cost:?}");
}

#[test]
fn several_extents_and_private_parts_land_in_one_block() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (mut receiver, _server) = heaps(0, 8 << 20);
    let bytes = noise(3, 200_000);
    let (one, two) = (span(&bytes), span(&bytes[..70_001]));
    let extents = [
        Part::Shared { span: &one, at: 3 },
        Part::Private(&bytes[..9_000]),
        Part::Shared { span: &two, at: 0 },
        Part::Shared {
            span: &two,
            at: 60_001,
        },
    ];
    let link = a.io.link();
    link.send_call(&head(1), &image(&extents), Token(1))
        .unwrap();
    let heap = &mut receiver.receive_heap;
    let block = land(&mut a, &mut b, &mut |len| heap.alloc(len).unwrap());
    let pieces = [
        &bytes[3..],
        &bytes[..9_000],
        &bytes[..70_001],
        &bytes[60_001..70_001],
    ];
    assert!(*block == *expected(&pieces));
    let in_place = b.io.counts().bytes_in_place;
    assert_eq!(in_place, 200_000 - 3 + 70_001, "the two large ones");
}

#[test]
fn a_block_of_another_length_is_not_for_this_body() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (mut receiver, _server) = heaps(0, 8 << 20);
    let mut alloc = |len| receiver.receive_heap.alloc(len).unwrap();
    assert!(b.io.land(alloc(100)).is_err(), "no body is pending");
    let shared = span(&noise(1, 100_000));
    call_with(a.io.link(), 1, b"inline", &shared);
    let block = land(&mut a, &mut b, &mut |len| {
        assert_eq!(len, 100_008);
        alloc(len)
    });
    assert!(b.io.land(block).is_err(), "it was read");
}

#[test]
fn a_body_that_never_comes_gives_its_block_back() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (mut receiver, _server) = heaps(0, 8 << 20);
    let shared = span(&noise(1, 3 << 20));
    call_with(a.io.link(), 1, b"inline", &shared);
    until("a grant", || {
        let _ = b.io.read_some(usize::MAX);
        if let Ok(Some(Event::Call { .. })) = b.io.link().poll_event() {
            b.io.land(receiver.receive_heap.alloc((3 << 20) + 8).unwrap())
                .unwrap();
        }
        let _ = b.io.read_landing();
        // a only makes the offer, and never learns that it may send.
        let _ = a.io.connection.queues().unwrap().ring();
        match b.io.granted {
            Some(_) => ControlFlow::Break(()),
            None => {
                a.io.flush().unwrap();
                ControlFlow::Continue(())
            }
        }
    });
    assert!(b.io.reclaim_block().is_none(), "the device may write it");
    drop(a);
    until("the end", || match b.io.read_landing() {
        Ok(Landing::Pending) => ControlFlow::Continue(()),
        Ok(Landing::Complete { .. }) => panic!("half a body isn't one"),
        Err(_) => ControlFlow::Break(()),
    });
    let block = b.io.reclaim_block().unwrap();
    receiver.receive_heap.discard(block);
    assert_eq!(receiver.receive_heap.in_use(), 0);
}

#[test]
fn a_body_that_is_skipped_while_it_comes_passes_by() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let (mut receiver, _server) = heaps(0, 8 << 20);
    let shared = span(&noise(1, 1 << 20));
    call_with(a.io.link(), 1, b"inline", &shared);
    call(a.io.link(), 2, b"after");
    until("a grant", || {
        a.io.flush().unwrap();
        let _ = b.io.read_some(usize::MAX).unwrap();
        if let Some(Event::Call { .. }) = b.io.link().poll_event().unwrap() {
            let block = receiver.receive_heap.alloc((1 << 20) + 8).unwrap();
            b.io.land(block).unwrap();
        }
        if b.io.link().pending_body().is_some() {
            assert!(matches!(b.io.read_landing().unwrap(), Landing::Pending));
        }
        match b.io.granted {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    b.io.link().skip_body();
    turn_until("what follows", &mut a, &mut b, |_, b| !b.said.is_empty());
    assert!(b.said[0].ends_with("\"after\""), "{}", b.said[0]);
    let block = b.io.reclaim_block().unwrap();
    receiver.receive_heap.discard(block);
}

/// A device keeps the capabilities of the time when it was opened, so this takes a separate
/// process.
#[test]
fn a_process_that_may_not_pin_its_heaps_copies_and_says_why() {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("tests::soft_roce::bodies::without_the_right_to_pin_much")
        .status()
        .unwrap();
    assert!(status.success());
}

/// Limits apply to a process, so this must be a separate one.
#[test]
#[ignore = "started by a_process_that_may_not_pin_its_heaps_copies_and_says_why"]
fn without_the_right_to_pin_much() {
    let mut fewer = capabilities(None).unwrap();
    fewer.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, fewer).unwrap();
    // Room for two links' buffers of 1.75 MiB and the queues' memory, but not for a heap of 4 MiB.
    let limit = |bytes| {
        let limit = Rlimit {
            current: Some(bytes),
            ..getrlimit(Resource::Memlock)
        };
        setrlimit(Resource::Memlock, limit).unwrap();
    };
    limit(4 << 20);
    let (mut a, mut b) = joined::<SoftRoce>();
    let (sender, mut caller) = heaps(4 << 20, 0);
    let bytes = noise(1, 300_000);
    let span = span_of(&sender, &mut caller, &bytes);
    call_with(a.io.link(), 1, b"inline", &span);
    turn_until("the call", &mut a, &mut b, |a, b| {
        b.said.len() == 1 && a.sent.len() == 1
    });
    let why = a.io.copies_because().unwrap().to_string();
    assert!(
        why.starts_with("pinning 4194304 bytes for rxe_va failed: "),
        "{why}"
    );
    let advice = "this process may pin 4194304 bytes (RLIMIT_MEMLOCK: raise systemd's LimitMEMLOCK";
    assert!(why.contains(advice), "{why}");
    assert_eq!(a.io.counts().bytes_in_place, 0);
    assert!(a.io.counts().bytes_copied > 300_000);
    // A further link has no room for its own buffers: it ends before it is established.
    limit(64 << 10);
    let (_listener, address) = listen(&devices());
    let mut link =
        RdmaLink::connect(&devices(), address, &RdmaOptions::default(), &key("c"), 0).unwrap();
    let refused = until("a refusal", || match link.flush() {
        Ok(_) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error.to_string()),
    });
    assert!(refused.contains("pinning 786432 bytes"), "{refused}");
}
