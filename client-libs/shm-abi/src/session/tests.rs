//! A session from both ends: shapes, a call and its reply, and the reach of a hostile app.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::control::ControlSocket;
use crate::descriptor::{Alleged, BlockRef, Completion, Image, Offsets, Part, Submission};
use crate::limits::MAX_HEAP_BYTES;
use rustix::io::Errno;
use std::string::ToString;
use std::time::Duration;

fn small() -> SessionShape {
    SessionShape {
        ring_capacity: 8,
        send_heap_bytes: MIN_HEAP_BYTES,
        receive_heap_bytes: MIN_HEAP_BYTES,
    }
}

/// Both ends, after the descriptors went through a control socket.
fn open(shape: &SessionShape) -> (DaemonEnd, AppEnd) {
    let (daemon, fds) = create(shape).unwrap();
    let (here, there) = ControlSocket::pair().unwrap();
    here.send(b"session opened", &fds.as_array()).unwrap();
    drop(fds);
    let packet = there.recv().unwrap().unwrap();
    let app = AppEnd::attach(shape, SessionFds::from_packet(packet.fds).unwrap()).unwrap();
    (daemon, app)
}

#[test]
fn a_call_goes_there_and_back() {
    let shape = small();
    let (mut daemon, mut app) = open(&shape);
    assert!(daemon.submissions.announce_sleep());

    let mut block = app.send_heap.alloc(5).unwrap();
    block.copy_from_slice(b"hello");
    let offset = app.send_heap.commit(block);
    let block = BlockRef {
        offset,
        len: 5,
        extents: 0,
        metadata: 0,
    };
    let call = Submission::Call {
        method: 3,
        call: 9,
        part: Part::ONLY,
        block,
        deadline_ns: 0,
    };
    app.submissions.push(&call.encode()).unwrap();
    assert!(app.submissions.needs_wake());
    app.doorbell.ring();

    let entry = daemon.submissions.pop().unwrap().unwrap();
    assert_eq!(Alleged::from(entry).submission(&shape.heaps()), Ok(call));
    let mut request = [0; 5];
    daemon.send_heap.copy_in(offset, &mut request).unwrap();
    assert_eq!(&request, b"hello");

    assert!(app.completions.announce_sleep());
    let mut reply = daemon.receive_heap.alloc(7).unwrap();
    reply.copy_from_slice(b"welcome");
    let image = Image {
        offset: daemon.receive_heap.commit(reply),
        inline_len: 7,
        total_len: 7,
        metadata: 0,
    };
    let reclaim = Completion::Reclaim(Offsets::take_from(&[offset]).unwrap());
    daemon.completions.push(&reclaim.encode()).unwrap();
    daemon
        .completions
        .push(&Completion::Reply { call: 9, image }.encode())
        .unwrap();
    assert!(daemon.completions.needs_wake());
    daemon.wake.wake();

    assert_eq!(app.wake.wait(Some(Duration::from_secs(5))), Ok(true));
    app.completions.cancel_sleep();
    let entry = app.completions.pop().unwrap().unwrap();
    assert_eq!(Alleged::from(entry).completion(&shape.heaps()), Ok(reclaim));
    app.send_heap.free(offset).unwrap();
    let entry = app.completions.pop().unwrap().unwrap();
    let completion = Alleged::from(entry).completion(&shape.heaps()).unwrap();
    assert_eq!(completion, Completion::Reply { call: 9, image });
    let delivered = app.receive_heap.claim(image.offset, 7).unwrap();
    assert_eq!(&*delivered, b"welcome");
    drop(daemon.submissions);
    daemon.receive_heap.free(delivered.into_offset()).unwrap();
    assert_eq!(
        (app.send_heap.in_use(), daemon.receive_heap.in_use()),
        (0, 0)
    );
}

#[test]
fn the_rings_do_not_overlap_and_wrap_many_times() {
    let (mut daemon, mut app) = open(&small());
    for turn in 0..100u8 {
        for at in 0..8 {
            app.submissions.push(&[turn ^ at; 64]).unwrap();
            daemon.completions.push(&[!(turn ^ at); 64]).unwrap();
        }
        assert!(app.submissions.push(&[0; 64]).is_err(), "capacity");
        for at in 0..8 {
            assert_eq!(daemon.submissions.pop(), Ok(Some([turn ^ at; 64])));
            assert_eq!(app.completions.pop(), Ok(Some([!(turn ^ at); 64])));
        }
        assert_eq!(daemon.submissions.pop(), Ok(None));
        assert_eq!(app.completions.pop(), Ok(None));
    }
}

#[test]
fn the_app_cannot_cut_a_segment_or_write_the_receive_heap() {
    let (_daemon, fds) = create(&small()).unwrap();
    for fd in [&fds.rings, &fds.send_heap, &fds.receive_heap] {
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
    }
    assert_eq!(
        rustix::io::pwrite(&fds.receive_heap, b"forged", 0),
        Err(Errno::PERM)
    );
    let receive = rustix::io::fcntl_dupfd_cloexec(&fds.receive_heap, 0).unwrap();
    let segment = Segment::adopt(RECEIVE_HEAP, receive, MIN_HEAP_BYTES as usize).unwrap();
    assert!(matches!(
        segment.map(Access::ReadWrite),
        Err(SegmentError::System {
            step: "map",
            errno: Errno::PERM,
            ..
        })
    ));
    // The app may write its own heap by any means; the daemon only copies from it.
    assert_eq!(rustix::io::pwrite(&fds.send_heap, b"mine", 0), Ok(4));
}

#[test]
fn an_app_that_writes_garbage_into_the_rings_is_misbehaved() {
    let (mut daemon, fds) = create(&small()).unwrap();
    let submission_producer = PAGE as u64;
    rustix::io::pwrite(&fds.rings, &9u32.to_ne_bytes(), submission_producer).unwrap();
    assert!(daemon.submissions.pop().is_err());
    let completion_consumer = (PAGE + small().ring_stride() + 64) as u64;
    rustix::io::pwrite(&fds.rings, &1u32.to_ne_bytes(), completion_consumer).unwrap();
    assert!(daemon.completions.free().is_err());
    rustix::io::pwrite(&fds.rings, &1u32.to_ne_bytes(), submission_producer).unwrap();
    rustix::io::pwrite(&fds.rings, &[0xff; 64], submission_producer + 256).unwrap();
    let entry = daemon.submissions.pop().unwrap().unwrap();
    assert!(Alleged::from(entry).submission(&small().heaps()).is_err());
}

#[test]
fn the_rings_begin_with_their_header() {
    let (_daemon, fds) = create(&small()).unwrap();
    let mut header = [0; 16];
    rustix::io::pread(&fds.rings, &mut header, 0).unwrap();
    assert_eq!(&header, b"TOLLGATE\x01\0\0\0\x08\0\0\0");
}

#[test]
fn heaps_are_sized_as_asked_within_the_limits() {
    let shape = |send, receive| SessionShape::for_request(HeapSizes { send, receive });
    assert_eq!(shape(0, 0), Ok(SessionShape::default()));
    let given = shape(MIN_HEAP_BYTES, (1 << 20) + 1).unwrap();
    assert_eq!(
        given.heaps(),
        HeapSizes {
            send: 1 << 20,
            receive: 2 << 20
        }
    );
    assert_eq!(
        shape(MAX_HEAP_BYTES, 0).unwrap().send_heap_bytes,
        MAX_HEAP_BYTES
    );
    for bytes in [1, MIN_HEAP_BYTES - 1, MAX_HEAP_BYTES + 1, u64::MAX] {
        assert_eq!(shape(bytes, 0), Err(SegmentError::BadHeapSize { bytes }));
        let error = shape(0, bytes).unwrap_err().to_string();
        assert!(
            error.ends_with("isn't a power of two within 1048576..=1073741824"),
            "{error}"
        );
    }
}

#[test]
fn shapes_outside_the_limits_make_no_session() {
    for capacity in [0, 1, 3, MAX_RING_CAPACITY * 2, u32::MAX] {
        let shape = SessionShape {
            ring_capacity: capacity,
            ..small()
        };
        assert_eq!(
            create(&shape).unwrap_err(),
            SegmentError::BadRingCapacity { capacity }
        );
    }
    let shape = SessionShape {
        receive_heap_bytes: (1 << 20) + 4096,
        ..small()
    };
    assert!(matches!(
        create(&shape),
        Err(SegmentError::BadHeapSize { bytes: 1_052_672 })
    ));
    for ring_capacity in [MIN_RING_CAPACITY, MAX_RING_CAPACITY] {
        open(&SessionShape {
            ring_capacity,
            send_heap_bytes: MAX_HEAP_BYTES,
            receive_heap_bytes: MAX_HEAP_BYTES,
        });
    }
}

#[test]
fn an_app_refuses_segments_that_are_not_as_announced() {
    let (_daemon, fds) = create(&small()).unwrap();
    let announced = SessionShape {
        send_heap_bytes: 2 << 20,
        ..small()
    };
    let error = AppEnd::attach(&announced, fds).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the session's send heap has 1048576 bytes, but 2097152 were announced"
    );
    let error = SessionFds::from_packet(Vec::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a session needs 5 file descriptors, but 0 came"
    );
}

#[test]
fn spans_and_delivered_blocks_outlive_their_session() {
    let (mut daemon, mut app) = open(&small());
    let mut block = app.send_heap.alloc(3).unwrap();
    block.copy_from_slice(b"abc");
    let span = daemon
        .send_heap
        .span(app.send_heap.commit(block), 3)
        .unwrap();
    let mut block = daemon.receive_heap.alloc(3).unwrap();
    block.copy_from_slice(b"def");
    let delivered = app
        .receive_heap
        .claim(daemon.receive_heap.commit(block), 3)
        .unwrap();
    drop((daemon, app));
    let mut bytes = [0; 3];
    assert_eq!(span.copy_to(&mut bytes), Some(()));
    assert_eq!(&bytes, b"abc");
    assert_eq!(&*delivered, b"def");
}

/// Another process has the daemon's end, as far as it can tell.
fn hand_over(daemon: &mut DaemonEnd, app: &mut AppEnd) -> DaemonEnd {
    let standing = daemon.standing();
    let lent = daemon
        .lend()
        .unwrap()
        .map(|fd| fd.try_clone_to_owned().unwrap());
    let (next, heap) = resume(&standing, lent.into()).unwrap();
    let bytes = standing.shape.receive_heap_bytes;
    app.receive_heap.follow(heap, bytes).unwrap();
    next
}

#[test]
fn another_process_goes_on_where_this_one_stood() {
    let (mut daemon, mut app) = open(&small());
    // The rings are at different positions, and each is half full.
    for at in 0..11u8 {
        app.submissions.push(&[at; 64]).unwrap();
        daemon.completions.push(&[at; 64]).unwrap();
        if at < 7 {
            assert_eq!(daemon.submissions.pop(), Ok(Some([at; 64])));
            assert_eq!(app.completions.pop(), Ok(Some([at; 64])));
            app.completions.flush();
        }
    }
    let mut first = daemon.receive_heap.alloc(3).unwrap();
    first.copy_from_slice(b"one");
    let first = daemon.receive_heap.commit(first);

    let mut next = hand_over(&mut daemon, &mut app);
    drop(daemon);
    for at in 7..11u8 {
        assert_eq!(next.submissions.pop(), Ok(Some([at; 64])));
        assert_eq!(app.completions.pop(), Ok(Some([at; 64])));
    }
    assert_eq!(next.submissions.pop(), Ok(None));
    for at in 0..8u8 {
        app.submissions.push(&[at; 64]).unwrap();
        next.completions.push(&[at; 64]).unwrap();
    }
    assert!(next.completions.push(&[0; 64]).is_err(), "capacity");
    // It wakes the app, and the app wakes it.
    assert!(app.completions.pop().unwrap().is_some());
    next.wake.wake();
    assert_eq!(app.wake.wait(Some(Duration::from_secs(5))), Ok(true));

    let mut second = next.receive_heap.alloc(3).unwrap();
    second.copy_from_slice(b"two");
    let second = next.receive_heap.commit(second);
    assert_eq!(second, MIN_HEAP_BYTES, "behind the first heap");
    assert_eq!(next.heaps().receive, 2 * MIN_HEAP_BYTES);
    let claimed = app.receive_heap.claim(first, 3).unwrap();
    assert_eq!(&*claimed, b"one");
    assert_eq!(&*app.receive_heap.claim(second, 3).unwrap(), b"two");
    app.receive_heap.forget_earlier();
    assert!(app.receive_heap.claim(first, 3).is_err());
    assert_eq!(&*claimed, b"one", "what was claimed stays");

    // Blocks delivered earlier are freed without effect; undelivered ones can't be freed.
    next.receive_heap.free(claimed.into_offset()).unwrap();
    assert_eq!(
        next.receive_heap.free(second + 64),
        Err(crate::Misbehaved::NotHeld {
            offset: second + 64
        })
    );
    next.receive_heap.free(second).unwrap();
    assert_eq!(next.receive_heap.in_use(), 0);
}

#[test]
fn the_next_receive_heap_is_as_closed_to_the_app_as_the_first() {
    let (mut daemon, _app) = open(&small());
    let standing = daemon.standing();
    let lent = daemon
        .lend()
        .unwrap()
        .map(|fd| fd.try_clone_to_owned().unwrap());
    let (_next, heap) = resume(&standing, lent.into()).unwrap();
    assert_eq!(rustix::io::pwrite(&heap, b"forged", 0), Err(Errno::PERM));
    let segment = Segment::adopt(RECEIVE_HEAP, heap, MIN_HEAP_BYTES as usize).unwrap();
    assert!(segment.map(Access::ReadWrite).is_err());
}

#[test]
fn what_cannot_be_gone_on_with_is_refused() {
    let (mut daemon, _app) = open(&small());
    let lent = || daemon_fds(&daemon);
    let fds = [lent(), lent(), lent(), lent(), lent()];
    let standing = daemon.standing();
    let [few, late, ahead, swapped, sizes] = fds;
    let few = resume(&standing, few.into_iter().take(3).collect());
    assert_eq!(
        few.unwrap_err().to_string(),
        "a session needs 4 file descriptors, but 3 came"
    );
    let last = Standing {
        receive_heap_end: MAX_RECEIVE_OFFSETS,
        ..standing
    };
    assert!(receive_heap_may_follow(
        MAX_RECEIVE_OFFSETS - MIN_HEAP_BYTES,
        MIN_HEAP_BYTES
    ));
    let end = MAX_RECEIVE_OFFSETS;
    assert_eq!(
        resume(&last, late).unwrap_err(),
        SegmentError::TooManyHeaps { end }
    );
    let impossible = Standing {
        told: standing.heard.wrapping_add(9),
        ..standing
    };
    assert_eq!(
        resume(&impossible, ahead).unwrap_err(),
        SegmentError::BadIndices
    );
    assert!(
        resume(&standing, swapped.into_iter().rev().collect()).is_err(),
        "other descriptors"
    );
    let mut other = standing;
    other.shape.send_heap_bytes *= 2;
    assert!(resume(&other, sizes).is_err(), "of another size");
}

#[test]
fn a_session_that_stays_keeps_no_segment() {
    let (mut daemon, _app) = open(&small());
    daemon.stays();
    assert!(daemon.lend().is_none());
}

fn daemon_fds(daemon: &DaemonEnd) -> Vec<OwnedFd> {
    let lent = daemon
        .lend()
        .unwrap()
        .map(|fd| fd.try_clone_to_owned().unwrap());
    lent.into()
}
