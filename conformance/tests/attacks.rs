//! The effect of attacks: the attacker's own session, packet or connection ends, and every other
//! call continues.
//!
//! Each attack runs beside an honest tenant whose calls must not fail (`traffic`), and ends with a
//! check of the daemon's remaining resources. Attackers are applications with a valid token
//! ([`Hostile`]), any process that can open the control socket ([`Wire`]), and any host that
//! reaches the TCP port.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use prost::Message;
use prost::encoding::{WireType, encode_key};
use tollgate_admin::socket_beside;
use tollgate_conformance::hostile::{Hostile, Seeded, Target, Wire};
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Footprint, SOON, Testbed, eventually, proto_file, run,
};
use tollgate_conformance::traffic::{ECHO, Traffic, echo_block, hotel};
use tollgate_schema::dynamic::{from_json, write_block};
use tollgate_shm_abi::blob::blob_create;
use tollgate_shm_abi::descriptor::{
    BlockRef, Completion, Entry, Epilogue, Offsets, Part, Submission,
};
use tollgate_shm_abi::limits::{MAX_MESSAGE_BYTES, PAGE};
use tollgate_shm_abi::messages::{
    Bind, Empty, OpenSession, Request, RequestBody, ResponseBody, SIDE_CLIENT, SIDE_SERVER,
};
use tollgate_shm_abi::status::Code;

/// The time limit for a daemon to notice that an app is gone or has misbehaved: almost none, plus
/// the machine's stalls.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Two hosts, an honest tenant whose calls cross them, and an attacker's token.
struct Scene {
    honest: Traffic,
    a: Daemon,
    b: Daemon,
    token: String,
    token_b: String,
    before: Footprint,
    _bed: Testbed,
}

impl Scene {
    fn new() -> Scene {
        let bed = Testbed::new();
        let (a, b) = (bed.daemon("a"), bed.daemon("b"));
        let (token, token_b) = (a.tenant("mallory"), b.tenant("mallory"));
        let honest = Traffic::start("acme", &a, &b);
        let before = a.footprint();
        Scene {
            honest,
            a,
            b,
            token,
            token_b,
            before,
            _bed: bed,
        }
    }

    fn hostile(&self) -> Hostile {
        Hostile::open(self.a.socket(), &self.token)
    }

    /// The attacker has its own echo server on `b`.
    fn accomplice(&self) -> Process {
        serve_echo(&self.b, &self.token_b)
    }

    /// The honest tenant is unharmed, and the attacker's segments are gone.
    fn assert_unimpressed(&self) {
        self.honest.assert_flows();
        let freed = eventually(AT_ONCE, || {
            self.a.footprint().segments <= self.before.segments
        });
        freed.unwrap_or_else(|_| {
            panic!(
                "segments stay: {:?}, were {:?}",
                self.a.footprint(),
                self.before
            )
        });
    }
}

fn serve_echo(daemon: &Daemon, token: &str) -> Process {
    let proto = proto_file("hotel.proto").display().to_string();
    daemon.serve([
        "--token",
        token,
        "--proto",
        &proto,
        "--service",
        ECHO,
        "--echo",
    ])
}

/// A call's descriptor.
fn call(method: u32, call: u64, offset: u64, len: u32) -> Submission {
    let block = BlockRef {
        offset,
        len,
        extents: 0,
        metadata: 0,
    };
    Submission::Call {
        method,
        call,
        part: Part::ONLY,
        block,
        deadline_ns: 0,
    }
}

/// An entry with some bytes changed.
fn changed(submission: Submission, at: usize, bytes: &[u8]) -> Entry {
    let mut entry = submission.encode();
    entry[at..at + bytes.len()].copy_from_slice(bytes);
    entry
}

#[test]
fn a_broken_descriptor_ends_its_session() {
    let scene = Scene::new();
    let heap = 1_u64 << 20;
    let entries: Vec<(&str, Entry)> = vec![
        ("no kind", [0; 64]),
        ("an unknown kind", changed(call(0, 1, 0, 8), 0, &[10])),
        ("all ones", [0xff; 64]),
        ("past the end", call(0, 1, heap, 8).encode()),
        ("over the end", call(0, 1, heap - 8, 64).encode()),
        (
            "at the end of the address space",
            call(0, 1, u64::MAX - 7, 64).encode(),
        ),
        ("unaligned", call(0, 1, 4, 8).encode()),
        (
            "longer than a message",
            call(0, 1, 0, MAX_MESSAGE_BYTES + 1).encode(),
        ),
        (
            "more extents than allowed",
            changed(call(0, 1, 0, 8), 2, &[65, 0]),
        ),
        (
            "an extent table over the end",
            changed(call(0, 1, heap - 16, 8), 2, &[64, 0]),
        ),
        ("a reserved byte", changed(call(0, 1, 0, 8), 63, &[1])),
        (
            "a call without a message that has one",
            changed(call(0, 1, 0, 8), 1, &[2]),
        ),
        (
            "a status' trailers over the end",
            changed(Submission::Cancel { call: 1 }, 44, &[1, 0]),
        ),
        (
            "a status text past the end",
            Submission::Status {
                call: 1,
                code: Code::UNKNOWN,
                epilogue: Some(Epilogue {
                    offset: heap,
                    text: 8,
                    metadata: 0,
                }),
                waited_ns: 0,
                retry_after_ms: 0,
            }
            .encode(),
        ),
        (
            "a release of nothing",
            changed(Submission::Cancel { call: 0 }, 0, &[5, 0]),
        ),
        (
            "a release of too much",
            changed(Submission::Cancel { call: 0 }, 0, &[5, 7]),
        ),
        (
            "a release past the end",
            Submission::Release(Offsets::take_from(&[1 << 40]).unwrap()).encode(),
        ),
        (
            "a release of what was never given",
            Submission::Release(Offsets::take_from(&[0]).unwrap()).encode(),
        ),
        (
            "a reply to no call",
            Submission::Reply {
                call: 1 << 40,
                block: BlockRef {
                    offset: 0,
                    len: 8,
                    extents: 0,
                    metadata: 0,
                },
                waited_ns: 0,
            }
            .encode(),
        ),
    ];
    for (what, entry) in entries {
        let mut hostile = scene.hostile();
        hostile.submit(&entry).unwrap();
        // A stale reply is allowed: the call may have ended meanwhile. Everything else is a
        // violation.
        let reason = hostile.is_ended(AT_ONCE);
        assert!(
            reason.is_some() || what == "a reply to no call",
            "{what}: the session goes on"
        );
        assert!(
            reason.is_none_or(|reason| !reason.is_empty()),
            "{what}: ended without a reason"
        );
        drop(hostile);
        scene.assert_unimpressed();
    }
}

#[test]
fn random_descriptors_disturb_nobody() {
    let scene = Scene::new();
    let _accomplice = scene.accomplice();
    let schema = hotel();
    let block = echo_block(&schema, "aGVsbG8=");
    for seed in 0..60 {
        let mut random = Seeded(seed);
        let mut hostile = scene.hostile();
        let handle = hostile.bind(
            SIDE_CLIENT,
            schema.descriptor_set(),
            ECHO,
            &scene.b.listen().to_string(),
        );
        for number in 0..200 {
            let entry = match random.below(3) {
                0 => random.bytes(),
                // Almost valid entries: these get further.
                _ => {
                    let offset = random.below(1 << 14) * 64;
                    let _full = hostile.poke(Target::SendHeap, offset.min((1 << 20) - 64), &block);
                    let mut entry = call(handle, number, offset, block.len() as u32).encode();
                    let at = random.below(48) as usize;
                    entry[at] ^= 1 << random.below(8);
                    entry
                }
            };
            if hostile.submit(&entry).is_err() {
                break;
            }
        }
        let _maybe = hostile.is_ended(Duration::from_millis(50));
        drop(hostile);
        if seed % 10 == 0 {
            scene.assert_unimpressed();
        }
    }
    scene.assert_unimpressed();
}

#[test]
fn garbage_in_the_heap_is_never_delivered() {
    let scene = Scene::new();
    let schema = hotel();
    let good = echo_block(&schema, "aGVsbG8gaGVsbG8gaGVsbG8=");
    let mut random = Seeded(1);
    let (mut answered, mut ended) = (0, 0);
    for _ in 0..100 {
        // It serves itself, to see what passes.
        let mut hostile = scene.hostile();
        hostile.bind(SIDE_SERVER, schema.descriptor_set(), ECHO, "");
        let handle = hostile.bind(SIDE_CLIENT, schema.descriptor_set(), ECHO, "");
        let mut block = good.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(block.len() as u64) as usize;
            block[at] = random.word() as u8;
        }
        hostile.poke(Target::SendHeap, 0, &block).unwrap();
        hostile
            .submit(&call(handle, 1, 0, block.len() as u32).encode())
            .unwrap();
        let delivered = eventually(SOON, || {
            matches!(
                hostile.completion(Duration::ZERO),
                Some(Completion::Call { .. })
            ) || hostile.is_ended(Duration::ZERO).is_some()
        });
        assert!(
            delivered.is_ok(),
            "neither delivered nor refused: {block:?}"
        );
        // A few changes make another valid message; a sender of nonsense is disconnected.
        match hostile.is_ended(Duration::from_millis(20)) {
            Some(_) => ended += 1,
            None => answered += 1,
        }
    }
    assert!(
        ended > 10 && answered > 10,
        "{ended} ended, {answered} answered"
    );
    scene.assert_unimpressed();
}

#[test]
fn overlapping_parts_and_blocks_are_refused_or_harmless() {
    let scene = Scene::new();
    let schema = hotel();
    let layout = schema.service("hotel.Reservation").unwrap();
    let request = schema.message("hotel.ReserveRequest").unwrap();
    let json = r#"{"customer_name": "Ada Lovelace", "hotel_ids": ["first-hotel", "other-hotel"]}"#;
    let message = from_json(&request, json).unwrap();
    let good = write_block(&layout.layouts, layout.methods[0].input, &message).unwrap();
    // Two strings in one place: every slot that points past the fixed part is made to point at the
    // first string.
    let name = good
        .windows(12)
        .position(|text| text == b"Ada Lovelace")
        .unwrap() as u32;
    for at in (0..good.len() - 8).step_by(4) {
        let mut block = good.clone();
        block[at..at + 4].copy_from_slice(&name.to_le_bytes());
        if block == good {
            continue;
        }
        let mut hostile = scene.hostile();
        hostile.bind(
            SIDE_SERVER,
            schema.descriptor_set(),
            "hotel.Reservation",
            "",
        );
        let handle = hostile.bind(
            SIDE_CLIENT,
            schema.descriptor_set(),
            "hotel.Reservation",
            "",
        );
        hostile.poke(Target::SendHeap, 0, &block).unwrap();
        // And two calls in one block.
        for number in [1, 2] {
            hostile
                .submit(&call(handle, number, 0, block.len() as u32).encode())
                .unwrap();
        }
        let _delivered_or_refused = hostile.completion(Duration::from_millis(20));
    }
    scene.assert_unimpressed();
}

#[test]
fn a_block_that_changes_while_it_is_read_harms_nobody() {
    let scene = Scene::new();
    let schema = hotel();
    let good = echo_block(&schema, &"QUJD".repeat(300));
    let mut hostile = scene.hostile();
    hostile.bind(SIDE_SERVER, schema.descriptor_set(), ECHO, "");
    let handle = hostile.bind(SIDE_CLIENT, schema.descriptor_set(), ECHO, "");
    let heap = hostile.segment(Target::SendHeap).try_clone().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let scribbler = {
        let (stop, good) = (stop.clone(), good.clone());
        std::thread::spawn(move || {
            use std::os::unix::fs::FileExt;
            let mut random = Seeded(7);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                heap.write_all_at(&good, 0).unwrap();
                heap.write_all_at(&random.bytes::<16>(), random.below(32))
                    .unwrap();
            }
        })
    };
    let end = Instant::now() + Duration::from_secs(2);
    let mut number = 0;
    while Instant::now() < end {
        number += 1;
        if hostile
            .submit(&call(handle, number, 0, good.len() as u32).encode())
            .is_err()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        while let Some(completion) = hostile.completion(Duration::ZERO) {
            let offset = match completion {
                Completion::Call { call, image, .. } => {
                    let status = Submission::Status {
                        call,
                        code: Code::ABORTED,
                        epilogue: None,
                        waited_ns: 0,
                        retry_after_ms: 0,
                    };
                    let _full = hostile.submit(&status.encode());
                    Some(image.offset)
                }
                Completion::Status { epilogue, .. } => epilogue.map(|epilogue| epilogue.offset),
                _ => None,
            };
            if let Some(offset) = offset {
                let _full = hostile
                    .submit(&Submission::Release(Offsets::take_from(&[offset]).unwrap()).encode());
            }
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    scribbler.join().unwrap();
    drop(hostile);
    scene.assert_unimpressed();
}

#[test]
fn indices_that_jump_end_their_session() {
    let scene = Scene::new();
    for index in [5_000, u32::MAX, 1 << 31] {
        let hostile = scene.hostile();
        hostile.jump_producer(index);
        let reason = hostile.is_ended(AT_ONCE);
        assert!(
            reason.is_some_and(|reason| reason.contains("index")),
            "producer {index}"
        );
        drop(hostile);
        scene.assert_unimpressed();
    }
    // The consumer's index is read when the ring seems full: more answers than it holds cause that.
    let _accomplice = scene.accomplice();
    let schema = hotel();
    let block = echo_block(&schema, "");
    for index in [77_000, u32::MAX, 1 << 31] {
        let mut hostile = scene.hostile();
        let handle = hostile.bind(
            SIDE_CLIENT,
            schema.descriptor_set(),
            ECHO,
            &scene.b.listen().to_string(),
        );
        hostile.poke(Target::SendHeap, 0, &block).unwrap();
        let mut number = 0;
        let mut reason = None;
        let ended = eventually(SOON, || {
            while hostile
                .submit(&call(handle, number, 0, block.len() as u32).encode())
                .is_ok()
            {
                number += 1;
            }
            hostile.jump_consumer(index);
            reason = hostile.is_ended(Duration::ZERO);
            reason.is_some()
        });
        assert!(
            ended.is_ok(),
            "consumer {index}: the session goes on after {number} calls"
        );
        assert!(
            reason
                .as_ref()
                .is_some_and(|reason| reason.contains("index")),
            "consumer {index}: {reason:?}"
        );
        drop(hostile);
        scene.assert_unimpressed();
    }
}

#[test]
fn every_word_of_the_rings_may_be_garbage() {
    let scene = Scene::new();
    for seed in 0..30 {
        let hostile = scene.hostile();
        let mut random = Seeded(seed);
        for _ in 0..50 {
            let at = random.below(2 * (PAGE as u64 + (64 << 10))) & !7;
            let _past_the_end = hostile.poke(Target::Rings, at, &random.bytes::<8>());
            hostile.app.doorbell.ring();
        }
        let _maybe = hostile.is_ended(Duration::from_millis(20));
    }
    scene.assert_unimpressed();
}

#[test]
fn segments_can_not_be_truncated_and_the_receive_heap_not_written() {
    let scene = Scene::new();
    let hostile = scene.hostile();
    for target in [Target::Rings, Target::SendHeap, Target::ReceiveHeap] {
        let file = hostile.segment(target);
        let len = file.metadata().unwrap().len();
        assert!(file.set_len(0).is_err(), "{target:?} shrinks");
        assert!(file.set_len(len + 4096).is_err(), "{target:?} grows");
        assert_eq!(file.metadata().unwrap().len(), len);
    }
    assert!(
        hostile.poke(Target::ReceiveHeap, 0, b"forged").is_err(),
        "the receive heap can be written"
    );
    assert!(hostile.poke(Target::SendHeap, 0, b"mine").is_ok());
    drop(hostile);
    scene.assert_unimpressed();
}

#[test]
fn ten_thousand_calls_outstanding_are_queued_up_to_the_limit_and_refused_beyond() {
    const CALLS: u64 = 10_000;
    let scene = Scene::new();
    let schema = hotel();
    let block = echo_block(&schema, "");
    let mut hostile = scene.hostile();
    // It serves itself and never answers.
    hostile.bind(SIDE_SERVER, schema.descriptor_set(), ECHO, "");
    let handle = hostile.bind(SIDE_CLIENT, schema.descriptor_set(), ECHO, "");
    hostile.poke(Target::SendHeap, 0, &block).unwrap();
    let limit = u64::from(hostile.opened.max_outstanding);
    assert!(limit > 0 && limit < CALLS, "{limit}");
    let (mut pushed, mut refused, mut delivered, mut reclaimed) = (0, 0_u64, 0_u64, 0_u64);
    let end = Instant::now() + SOON;
    while (pushed < CALLS || reclaimed < CALLS) && Instant::now() < end {
        while pushed < CALLS {
            // One block for all: each call has its own copy in the daemon.
            if hostile
                .submit(&call(handle, pushed, 0, block.len() as u32).encode())
                .is_err()
            {
                break;
            }
            pushed += 1;
        }
        while let Some(completion) = hostile.completion(Duration::from_millis(1)) {
            match completion {
                Completion::Status { code, epilogue, .. } => {
                    assert_eq!(code, Code::RESOURCE_EXHAUSTED);
                    refused += 1;
                    if let Some(epilogue) = epilogue {
                        let release =
                            Submission::Release(Offsets::take_from(&[epilogue.offset]).unwrap());
                        while hostile.submit(&release.encode()).is_err() {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                }
                Completion::Call { .. } => delivered += 1,
                Completion::Reclaim(offsets) => reclaimed += offsets.as_slice().len() as u64,
                other => panic!("{other:?}"),
            }
        }
        assert!(
            hostile.is_ended(Duration::ZERO).is_none(),
            "asking for much is no crime"
        );
    }
    assert!(
        pushed == CALLS && delivered <= limit,
        "{pushed} pushed, {delivered} delivered"
    );
    assert!(
        refused >= CALLS - limit,
        "{refused} refused, the limit is {limit}"
    );
    scene.honest.assert_flows();
    drop(hostile);
    scene.assert_unimpressed();
}

#[test]
fn an_app_that_never_reads_its_completions_harms_itself() {
    let scene = Scene::new();
    let _accomplice = scene.accomplice();
    let schema = hotel();
    let block = echo_block(&schema, "");
    let mut hostile = scene.hostile();
    let handle = hostile.bind(
        SIDE_CLIENT,
        schema.descriptor_set(),
        ECHO,
        &scene.b.listen().to_string(),
    );
    hostile.poke(Target::SendHeap, 0, &block).unwrap();
    let mut pushed = 0;
    let end = Instant::now() + Duration::from_secs(2);
    while pushed < 200_000 && Instant::now() < end {
        match hostile.submit(&call(handle, pushed, 0, block.len() as u32).encode()) {
            Ok(()) => pushed += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let now = scene.a.footprint();
    assert!(
        now.resident_bytes < scene.before.resident_bytes + (64 << 20),
        "{now:?}, was {:?}",
        scene.before
    );
    scene.honest.assert_flows();
    drop(hostile);
    scene.assert_unimpressed();
}

#[test]
fn garbage_on_the_control_socket_ends_its_connection() {
    let scene = Scene::new();
    let mut random = Seeded(3);
    for len in [1, 2, 3, 17, 100, 4_096, 65_536] {
        for _ in 0..20 {
            let wire = Wire::connect(scene.a.socket());
            let bytes: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
            wire.send(&bytes, &[]);
            let _maybe = wire.hangs_up(Duration::from_millis(2));
        }
    }
    // Well-formed but misplaced: a bind before a session, a second session, requests without a
    // body.
    let mut wire = Wire::connect(scene.a.socket());
    let bind = Bind {
        role: SIDE_CLIENT,
        service: ECHO.to_owned(),
        target: String::new(),
    };
    let answer = wire.ask(RequestBody::Bind(bind), &[]);
    assert!(
        matches!(answer, None | Some((ResponseBody::Failure(_), _))),
        "{answer:?}"
    );
    let wire = Wire::connect(scene.a.socket());
    wire.send(&Request { id: 7, body: None }.encode_to_vec(), &[]);
    let _maybe = wire.hangs_up(Duration::from_millis(20));
    // Administration, as in release 0.2: each of its requests is told where to go.
    for number in 20..=45 {
        let mut request = Request { id: 7, body: None }.encode_to_vec();
        encode_key(number, WireType::LengthDelimited, &mut request);
        request.push(0);
        let wire = Wire::connect(scene.a.socket());
        wire.send(&request, &[]);
        let answer = wire.receive(AT_ONCE);
        let Some(ResponseBody::Failure(failure)) = answer.and_then(|(answer, _)| answer.body)
        else {
            panic!("request {number} isn't refused")
        };
        assert_eq!(failure.code, Code::UNIMPLEMENTED.0);
        let api = socket_beside(scene.a.socket());
        let names_it = failure.message.ends_with(api.to_str().unwrap());
        assert!(names_it, "{number}: {}", failure.message);
    }
    let mut hostile = scene.hostile();
    let open = OpenSession {
        abi_version: 1,
        token: scene.token.clone(),
        ..OpenSession::default()
    };
    let answer = hostile.wire.ask(RequestBody::OpenSession(open), &[]);
    assert!(
        matches!(answer, None | Some((ResponseBody::Failure(_), _))),
        "{answer:?}"
    );
    drop((wire, hostile));
    scene.assert_unimpressed();
}

#[test]
fn an_abi_or_a_heap_size_that_does_not_exist_is_refused() {
    let scene = Scene::new();
    let open = |abi_version, send_heap_bytes| OpenSession {
        abi_version,
        token: scene.token.clone(),
        app: "odd".repeat(10_000),
        send_heap_bytes,
        receive_heap_bytes: 0,
        ..OpenSession::default()
    };
    for (request, sentence) in [
        (open(2, 0), "version 2 of the session ABI"),
        (open(1, 1), "a heap of 1 bytes"),
        (open(1, u64::MAX), "a heap of 18446744073709551615 bytes"),
        (open(1, (1 << 30) + 1), "a heap of 1073741825 bytes"),
    ] {
        let mut wire = Wire::connect(scene.a.socket());
        let what = (request.abi_version, request.send_heap_bytes);
        let answer = wire.ask(RequestBody::OpenSession(request), &[]);
        let Some((ResponseBody::Failure(failure), _)) = answer else {
            panic!("{what:?}: {answer:?}")
        };
        let told = failure.message;
        assert!(told.contains(sentence), "{what:?}: {told}");
    }
    scene.assert_unimpressed();
}

#[test]
fn descriptors_that_are_no_blobs_are_refused_and_closed() {
    let scene = Scene::new();
    let before = scene.a.footprint().descriptors;
    let (pipe, _writer) = std::io::pipe().unwrap();
    let directory = std::fs::File::open("/").unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let truncated = truncated_memfd();
    let huge = sparse_memfd(1 << 40);
    let odd: [(&str, BorrowedFd<'_>); 5] = [
        ("a pipe", pipe.as_fd()),
        ("a directory", directory.as_fd()),
        ("a device", zero.as_fd()),
        ("a truncated memfd", truncated.as_fd()),
        ("a terabyte", huge.as_fd()),
    ];
    for (what, fd) in odd {
        let mut hostile = scene.hostile();
        let bind = Bind {
            role: SIDE_CLIENT,
            service: ECHO.to_owned(),
            target: String::new(),
        };
        let answer = hostile.wire.ask(RequestBody::Bind(bind), &[fd]);
        assert!(
            matches!(answer, None | Some((ResponseBody::Failure(_), _))),
            "{what}: {answer:?}"
        );
    }
    // More descriptors than expected, and some with a request that takes none.
    let blob = blob_create(b"surplus").unwrap();
    let mut wire = Wire::connect(scene.a.socket());
    let _answer = wire.ask(RequestBody::Drain(Empty {}), &[blob.as_fd(); 8]);
    drop(wire);
    let closed = eventually(AT_ONCE, || scene.a.footprint().descriptors <= before);
    closed.unwrap_or_else(|_| {
        panic!(
            "descriptors stay: {} were {before}",
            scene.a.footprint().descriptors
        )
    });
    scene.assert_unimpressed();
}

/// A memfd that shrinks after it was made to look like a blob.
fn truncated_memfd() -> OwnedFd {
    let fd = rustix::fs::memfd_create("odd", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
    rustix::fs::ftruncate(&fd, 3).unwrap();
    fd
}

fn sparse_memfd(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("odd", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    fd
}

#[test]
fn bogus_frames_on_the_tcp_port_end_their_connection() {
    let scene = Scene::new();
    let before = scene.b.footprint();
    let mut random = Seeded(5);
    let attack = |bytes: &[u8], address: SocketAddr| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        // The daemon may hang up during the write.
        let _closed = stream.write_all(bytes);
        let _closed = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _reset = stream.read_to_end(&mut rest);
    };
    let at = scene.b.listen();
    attack(b"GET / HTTP/1.1\r\nHost: tollgate\r\n\r\n", at);
    attack(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", at);
    attack(&[], at);
    attack(&[0; 4_096], at);
    attack(&[0xff; 4_096], at);
    for len in [1, 31, 32, 33, 64, 1_000, 100_000] {
        for _ in 0..5 {
            let bytes: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
            attack(&bytes, at);
        }
    }
    // A real peer's bytes, with one bit wrong.
    let hello = first_bytes_of_a_dialling_daemon(&scene);
    assert!(!hello.is_empty());
    for bit in 0..hello.len() * 8 {
        let mut bytes = hello.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if bit % 7 == 0 {
            attack(&bytes, at);
        }
    }
    scene.honest.assert_flows();
    let closed = eventually(SOON, || {
        scene.b.footprint().descriptors <= before.descriptors
    });
    closed.unwrap_or_else(|_| {
        panic!(
            "connections stay: {:?}, were {before:?}",
            scene.b.footprint()
        )
    });
}

/// Makes the daemon dial the test, and records its HELLO.
fn first_bytes_of_a_dialling_daemon(scene: &Scene) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let proto = proto_file("hotel.proto").display().to_string();
    let who = [
        "call",
        "--token",
        &scene.token,
        "--proto",
        &proto,
        "--to",
        &address,
    ];
    let _caller: Process = scene
        .a
        .start(who.into_iter().chain(["hotel.Echo/Echo", "{}"]));
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut bytes = vec![0; 4_096];
    let len = stream.read(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn silent_connections_are_let_go() {
    let scene = Scene::new();
    let before = scene.b.footprint().descriptors;
    let silent: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(scene.b.listen()).unwrap())
        .collect();
    scene.honest.assert_flows();
    // The handshake has a deadline; nobody has to hang up for it.
    let closed = eventually(SOON, || scene.b.footprint().descriptors <= before);
    closed.unwrap_or_else(|_| {
        panic!(
            "descriptors stay: {} were {before}",
            scene.b.footprint().descriptors
        )
    });
    drop(silent);
    scene.honest.assert_flows();
}

#[test]
fn a_message_above_the_limit_gets_a_status_at_once() {
    let scene = Scene::new();
    let _accomplice = scene.accomplice();
    let proto = proto_file("hotel.proto").display().to_string();
    let request = format!("{{\"payload\": \"{}\"}}", "AAAA".repeat(6 << 20));
    let socket = scene.a.socket().display().to_string();
    let to = scene.b.listen().to_string();
    let args = [
        "--socket",
        &socket,
        "call",
        "--token",
        &scene.token,
        "--proto",
        &proto,
        "--to",
        &to,
    ];
    let begin = Instant::now();
    let outcome = run(
        &program("tollgate"),
        args.into_iter().chain(["hotel.Echo/Echo", "-"]),
        request.as_bytes(),
    );
    let code = outcome.code as u32;
    assert!(
        code == Code::INVALID_ARGUMENT.0 || code == Code::RESOURCE_EXHAUSTED.0,
        "{}",
        outcome.err
    );
    assert!(
        outcome.err.contains(&MAX_MESSAGE_BYTES.to_string()),
        "the limit is named: {}",
        outcome.err
    );
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    scene.assert_unimpressed();
}

#[test]
fn a_killed_client_or_server_frees_its_segments_at_once() {
    let scene = Scene::new();
    let proto = proto_file("hotel.proto").display().to_string();
    for (daemon, token) in [(&scene.a, &scene.token), (&scene.b, &scene.token_b)] {
        let before = daemon.footprint();
        let mut server = serve_echo(daemon, token);
        assert!(
            daemon.footprint().segments > before.segments,
            "{:?}",
            daemon.footprint()
        );
        assert!(sessions(daemon, "mallory") == 1);
        server.kill();
        let freed = eventually(AT_ONCE, || {
            let now = daemon.footprint();
            (now.segments, now.descriptors) == (before.segments, before.descriptors)
                && sessions(daemon, "mallory") == 0
        });
        freed.unwrap_or_else(|_| panic!("they stay: {:?}, were {before:?}", daemon.footprint()));
    }
    // In the middle of calls, on both sides.
    let server = scene.accomplice();
    server.signal(rustix::process::Signal::STOP);
    let to = scene.b.listen().to_string();
    let who = [
        "call",
        "--token",
        &scene.token,
        "--proto",
        &proto,
        "--to",
        &to,
        "hotel.Echo/Echo",
        "{}",
    ];
    let mut callers: Vec<Process> = (0..4).map(|_| scene.a.start(who)).collect();
    eventually(SOON, || sessions(&scene.a, "mallory") == 4).unwrap();
    callers.iter_mut().for_each(Process::kill);
    scene.assert_unimpressed();
    drop(server);
    eventually(AT_ONCE, || sessions(&scene.b, "mallory") == 0).unwrap();
}

fn sessions(daemon: &Daemon, tenant: &str) -> usize {
    let status = daemon.status();
    let sessions = status["sessions"]
        .as_array()
        .unwrap_or_else(|| panic!("no sessions in {status}"));
    sessions
        .iter()
        .filter(|session| session["tenant"] == tenant)
        .count()
}

#[test]
fn a_thousand_connects_and_disconnects_leave_no_trace() {
    let scene = Scene::new();
    let _accomplice = scene.accomplice();
    let schema = hotel();
    let block = echo_block(&schema, "aGVsbG8=");
    let to = scene.b.listen().to_string();
    let connect = |number: usize| {
        // Every fourth session only connects, every other one also binds; the rest leaves a call
        // behind.
        if number.is_multiple_of(4) {
            drop(Wire::connect(scene.a.socket()));
            return;
        }
        let mut hostile = scene.hostile();
        if number.is_multiple_of(2) {
            return;
        }
        let handle = hostile.bind(SIDE_CLIENT, schema.descriptor_set(), ECHO, &to);
        hostile.poke(Target::SendHeap, 0, &block).unwrap();
        hostile
            .submit(&call(handle, 1, 0, block.len() as u32).encode())
            .unwrap();
    };
    // The objects that the first sessions make the daemon build (caches, pools, machine code)
    // aren't growth.
    (0..100).for_each(connect);
    let settle = || {
        let settled = eventually(SOON, || {
            sessions(&scene.a, "mallory") == 0
                && scene.a.footprint().segments <= scene.before.segments
        });
        settled.expect("sessions end with their connections");
        scene.a.footprint()
    };
    let before = settle();
    (0..1_000).for_each(connect);
    let mut after = settle();
    let counts = |all: &Footprint| [all.descriptors, all.segments, all.threads];
    let gone = eventually(SOON, || {
        after = scene.a.footprint();
        let mut pairs = std::iter::zip(counts(&after), counts(&before));
        pairs.all(|(after, before)| after <= before)
    });
    assert!(gone.is_ok(), "{after:?}, were {before:?}");
    // An allocator may split a mapping or keep a few pages; a leak of 1,000 sessions would be more.
    assert!(
        after.mappings <= before.mappings + 20,
        "{after:?}, were {before:?}"
    );
    assert!(
        after.resident_bytes <= before.resident_bytes + (8 << 20),
        "{after:?}, were {before:?}"
    );
    assert!(
        after.address_space_bytes <= before.address_space_bytes + (128 << 20),
        "{after:?}, were {before:?}"
    );
    scene.assert_unimpressed();
}
