//! Applications with a library that does the handshake and then sends anything: streams that break
//! their rules, and random bytes.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use tollgate::codec::encode_inline;
use tollgate_conformance::backends::{sample, scrape};
use tollgate_conformance::hostile::{Hostile, Seeded, Target};
use tollgate_conformance::interop::{Answer, Ask, SEMANTICS};
use tollgate_conformance::ports::free;
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, times};
use tollgate_conformance::traffic::Traffic;
use tollgate_shm_abi::descriptor::{BlockRef, Completion, Epilogue, Offsets, Part, Submission};
use tollgate_shm_abi::limits::{STREAM_WINDOW_BYTES, STREAM_WINDOW_MESSAGES};
use tollgate_shm_abi::messages::{
    FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS, SIDE_CLIENT, SIDE_SERVER,
};
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit;
use tollgate_shm_abi::wait::now_ns;

const ALL: u32 = FEATURE_METADATA | FEATURE_WAITS | FEATURE_STREAMS;

/// The indices of the methods in the service.
const UNARY: u32 = 0;
const COLLECT: u32 = 1;
const CHAT: u32 = 3;

const MORE: Part = Part {
    more: true,
    bare: false,
};

struct Scene {
    honest: Traffic,
    a: Daemon,
    token: String,
    _bed: Testbed,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(&Options::default())
    }

    fn with(options: &Options) -> Scene {
        let bed = Testbed::new();
        let a = bed.daemon_with("a", options);
        let token = a.tenant("mallory");
        let honest = Traffic::start("acme", &a, &a);
        Scene {
            honest,
            a,
            token,
            _bed: bed,
        }
    }

    /// A session that serves and calls itself: the handles of its client's and of its server's
    /// first method.
    fn hostile(&self, features: u32) -> (Hostile, u32) {
        let mut hostile = Hostile::open_as(self.a.socket(), &self.token, 1 << 20, features);
        let (set, name) = (SEMANTICS.descriptor_set, SEMANTICS.name);
        hostile.bind(SIDE_SERVER, set, name, "");
        let handle = hostile.bind(SIDE_CLIENT, set, name, "");
        (hostile, handle)
    }
}

/// Puts a request's block at `offset`.
fn place(hostile: &Hostile, offset: u64, payload: usize) -> BlockRef {
    let ask = Ask {
        number: 1,
        payload: vec![1; payload],
        ..Ask::default()
    };
    let block = encode_inline(&ask).unwrap();
    hostile.poke(Target::SendHeap, offset, &block).unwrap();
    BlockRef {
        offset,
        len: block.len() as u32,
        extents: 0,
        metadata: 0,
    }
}

fn call(method: u32, part: Part, block: BlockRef) -> Submission {
    Submission::Call {
        method,
        call: 1,
        part,
        block,
        deadline_ns: 0,
    }
}

fn request(part: Part, block: BlockRef) -> Submission {
    Submission::Request {
        call: 1,
        part,
        block,
    }
}

/// The first completion that isn't a returned block.
fn heard(hostile: &mut Hostile) -> Completion {
    loop {
        match hostile.completion(SOON) {
            Some(Completion::Reclaim(_)) => {}
            Some(heard) => return heard,
            None => panic!("the daemon says nothing"),
        }
    }
}

#[test]
fn a_stream_that_breaks_its_rules_costs_its_session() {
    let scene = Scene::new();
    let ends = |what: &str,
                reason: &str,
                features: u32,
                submissions: &dyn Fn(&Hostile, u32) -> Vec<Submission>| {
        let (mut hostile, handle) = scene.hostile(features);
        for submission in submissions(&hostile, handle) {
            hostile.submit(&submission.encode()).unwrap();
        }
        let ended = hostile.is_ended(SOON);
        assert!(
            ended.as_ref().is_some_and(|ended| ended.contains(reason)),
            "{what}: {ended:?}"
        );
    };
    let window = "more messages of a stream came than its reader has consumed";
    ends("too many requests", window, ALL, &|hostile, handle| {
        let block = place(hostile, 0, 8);
        let mut all = vec![call(handle + CHAT, MORE, block)];
        all.resize(2 + STREAM_WINDOW_MESSAGES as usize, request(MORE, block));
        all
    });
    ends("too many bytes", window, ALL, &|hostile, handle| {
        let half = place(hostile, 0, STREAM_WINDOW_BYTES as usize / 2);
        let mut all = vec![call(handle + CHAT, MORE, half)];
        all.resize(4, request(MORE, half));
        all
    });
    let last = "a request came after the call's last";
    ends("a request after the last", last, ALL, &|hostile, handle| {
        let block = place(hostile, 0, 8);
        vec![
            call(handle + COLLECT, MORE, block),
            request(Part::ONLY, block),
            request(Part::ONLY, block),
        ]
    });
    ends("a second request of one", last, ALL, &|hostile, handle| {
        let block = place(hostile, 0, 8);
        vec![
            call(handle + COLLECT, Part::ONLY, block),
            request(MORE, block),
        ]
    });
    ends("a block that is none", "", ALL, &|hostile, handle| {
        let block = place(hostile, 0, 8);
        let nonsense = BlockRef { len: 9, ..block };
        vec![call(handle + CHAT, MORE, block), request(MORE, nonsense)]
    });
    scene.honest.assert_flows();
}

#[test]
fn a_method_takes_as_many_requests_as_its_schema_says() {
    let scene = Scene::new();
    let (mut hostile, handle) = scene.hostile(ALL);
    let block = place(&hostile, 0, 8);
    let bare = Part {
        more: true,
        bare: true,
    };
    for (part, block) in [(MORE, block), (bare, BlockRef::default())] {
        let call = call(handle + UNARY, part, block);
        hostile.submit(&call.encode()).unwrap();
        let heard = heard(&mut hostile);
        assert!(
            matches!(
                heard,
                Completion::Status {
                    code: Code::INVALID_ARGUMENT,
                    ..
                }
            ),
            "{heard:?}"
        );
    }
    // Messages for the nonexistent call are ignored without harm.
    hostile.submit(&request(MORE, block).encode()).unwrap();
    let credit = Credit {
        messages: u32::MAX,
        bytes: u32::MAX,
    };
    for submission in [
        Submission::RequestCredit { call: 1, credit },
        Submission::ResponseCredit { call: 1, credit },
        Submission::Cancel { call: 1 },
    ] {
        hostile.submit(&submission.encode()).unwrap();
    }
    assert_eq!(hostile.is_ended(Duration::from_millis(200)), None);
}

#[test]
fn a_library_of_before_streams_is_given_none() {
    let scene = Scene::new();
    let (mut hostile, handle) = scene.hostile(0);
    let block = place(&hostile, 0, 8);
    hostile
        .submit(&call(handle + CHAT, MORE, block).encode())
        .unwrap();
    let heard = heard(&mut hostile);
    assert!(
        matches!(
            heard,
            Completion::Status {
                code: Code::UNIMPLEMENTED,
                ..
            }
        ),
        "{heard:?}"
    );
}

/// The daemon enforces deadlines even if libraries don't: the caller and the handler both learn
/// that it has passed.
#[test]
fn a_library_that_keeps_no_deadline_is_told_of_it() {
    const TIMEOUT: Duration = Duration::from_millis(50);
    let scene = Scene::new();
    let (mut hostile, handle) = scene.hostile(ALL);
    let block = place(&hostile, 0, 8);
    let deadline_ns = now_ns() + TIMEOUT.as_nanos() as u64;
    let call = Submission::Call {
        method: handle + UNARY,
        call: 1,
        part: Part::ONLY,
        block,
        deadline_ns,
    };
    hostile.submit(&call.encode()).unwrap();
    let (mut delivered, mut ended) = (None, false);
    while !ended || delivered.is_some() {
        match heard(&mut hostile) {
            Completion::Call { call, .. } => delivered = Some(call),
            Completion::Cancel { call } => assert_eq!(delivered.take(), Some(call)),
            Completion::Status {
                code: Code::DEADLINE_EXCEEDED,
                ..
            } => ended = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(now_ns() >= deadline_ns);
    scene.honest.assert_flows();
}

/// Submits a call with this number and deadline.
fn post(hostile: &mut Hostile, method: u32, call: u64, block: BlockRef) {
    let call = Submission::Call {
        method,
        call,
        part: Part::ONLY,
        block,
        deadline_ns: 0,
    };
    hostile.submit(&call.encode()).unwrap();
}

/// One more than 4,096 (`engine::limits::MAX_OUTSTANDING_PER_SESSION`) is refused, until one of
/// them has ended.
#[test]
fn calls_in_flight_are_limited() {
    const LIMIT: u64 = 4_096;
    let scene = Scene::new();
    let (mut hostile, handle) = scene.hostile(ALL);
    let block = place(&hostile, 0, 8);
    let post = |hostile: &mut Hostile, call| post(hostile, handle + UNARY, call, block);
    // They are delivered to this session itself, which answers none.
    let mut delivered = Vec::new();
    for call in 0..LIMIT {
        post(&mut hostile, call);
        match heard(&mut hostile) {
            Completion::Call { call, .. } => delivered.push(call),
            other => panic!("call {call}: {other:?}"),
        }
    }
    post(&mut hostile, LIMIT);
    match heard(&mut hostile) {
        Completion::Status {
            call,
            code: Code::RESOURCE_EXHAUSTED,
            epilogue: Some(text),
            ..
        } => {
            assert_eq!(call, LIMIT);
            let mut sentence = vec![0; text.text as usize];
            let heap = hostile.segment(Target::ReceiveHeap);
            heap.read_exact_at(&mut sentence, text.offset).unwrap();
            let expected = "the application has 4096 calls outstanding, which is the limit";
            assert_eq!(String::from_utf8_lossy(&sentence), expected);
        }
        other => panic!("{other:?}"),
    }
    let answer = Submission::Status {
        call: delivered[0],
        code: Code::NOT_FOUND,
        epilogue: None,
        waited_ns: 0,
        retry_after_ms: 0,
    };
    hostile.submit(&answer.encode()).unwrap();
    let ended = heard(&mut hostile);
    assert!(
        matches!(ended, Completion::Status { call: 0, .. }),
        "{ended:?}"
    );
    post(&mut hostile, LIMIT + 1);
    let next = heard(&mut hostile);
    assert!(matches!(next, Completion::Call { .. }), "{next:?}");
    scene.honest.assert_flows();
}

/// A runtime traces 4,096 calls at once (`telemetry::limits::MAX_TRACED`). Further calls are
/// counted and continue; there is room again once those are gone, answered or not.
#[test]
fn calls_in_flight_that_are_traced_are_limited() {
    const LIMIT: u64 = 4_096;
    let (at, nobody) = (free(), free());
    let config = format!(
        "[telemetry]\nprometheus = \"{at}\"\nendpoint = \"http://{nobody}\"\nsample_per_million = 1000000\n"
    );
    let scene = Scene::with(&Options {
        config,
        ..Options::on_cores("0")
    });
    let untraced = || {
        let text = scrape(at);
        let untraced = sample(&text, "tollgate_telemetry_untraced_total ");
        untraced.unwrap_or_else(|| panic!("{text}")) as u64
    };
    let (mut hostile, handle) = scene.hostile(ALL);
    let block = place(&hostile, 0, 8);
    for call in 0..LIMIT {
        if call == LIMIT - 16 {
            assert_eq!(untraced(), 0, "there is room for some more");
        }
        post(&mut hostile, handle + UNARY, call, block);
        let delivered = heard(&mut hostile);
        assert!(
            matches!(delivered, Completion::Call { .. }),
            "{delivered:?}"
        );
    }
    eventually(SOON, || untraced() > 0).unwrap();
    scene.honest.assert_flows();
    drop(hostile);
    eventually(SOON, || {
        let before = untraced();
        scene.honest.assert_flows();
        untraced() == before
    })
    .unwrap();
}

/// The seeds of the short run. The long run: `TOLLGATE_FUZZ_SESSIONS=20000 cargo test --test
/// hostile_libraries`.
fn sessions() -> u64 {
    times("TOLLGATE_FUZZ_SESSIONS", 300)
}

/// The state of a session that follows no rules.
#[derive(Default)]
struct Known {
    /// Its unfinished calls that take further requests.
    open: BTreeSet<u64>,
    /// Incoming calls.
    incoming: Vec<u64>,
    /// Delivered blocks.
    delivered: Vec<u64>,
}

impl Known {
    fn learn(&mut self, completion: &Completion) {
        match *completion {
            Completion::Call { call, image, .. } => {
                self.incoming.push(call);
                self.delivered.push(image.offset);
            }
            Completion::Reply { image, .. }
            | Completion::Request { image, .. }
            | Completion::Response { image, .. } => self.delivered.push(image.offset),
            Completion::Status {
                epilogue: Some(epilogue),
                ..
            } => self.delivered.push(epilogue.offset),
            _ => {}
        }
    }

    fn call(&self, random: &mut Seeded) -> u64 {
        match self.incoming.len() as u64 {
            0 => random.below(8),
            count => match random.below(8) {
                0 => random.below(8),
                1 => random.word(),
                _ => self.incoming[(count - 1 - random.below(count.min(8))) as usize],
            },
        }
    }
}

/// Prepared blocks: a small and a large one of each message, metadata after the small ones, and a
/// status's text and trailers.
struct Placed {
    asks: [BlockRef; 2],
    answers: [BlockRef; 2],
    metadata: u32,
    epilogue: Epilogue,
}

impl Placed {
    fn new(hostile: &Hostile) -> Placed {
        let mut metadata = MetadataBuf::new();
        metadata.push("user", b"Mallory").unwrap();
        let metadata = metadata.as_bytes();
        let place = |offset, message: &dyn Fn(usize) -> Vec<u8>| {
            let mut at = offset;
            [0, 100_000].map(|payload| {
                let block = message(payload);
                let placed = BlockRef {
                    offset: at,
                    len: block.len() as u32,
                    extents: 0,
                    metadata: 0,
                };
                hostile.poke(Target::SendHeap, at, &block).unwrap();
                hostile
                    .poke(Target::SendHeap, placed.metadata_offset(), metadata)
                    .unwrap();
                at += 4096;
                placed
            })
        };
        let asks = place(0, &|payload| {
            let payload = vec![1; payload];
            encode_inline(&Ask {
                payload,
                ..Ask::default()
            })
            .unwrap()
        });
        let answers = place(256 << 10, &|payload| {
            let payload = vec![1; payload];
            encode_inline(&Answer {
                payload,
                ..Answer::default()
            })
            .unwrap()
        });
        let epilogue = Epilogue {
            offset: 768 << 10,
            text: 8,
            metadata: metadata.len() as u32,
        };
        hostile
            .poke(Target::SendHeap, epilogue.metadata_offset(), metadata)
            .unwrap();
        Placed {
            asks,
            answers,
            metadata: metadata.len() as u32,
            epilogue,
        }
    }

    /// One of two blocks, rarely something else.
    fn any(&self, random: &mut Seeded, of: [BlockRef; 2]) -> BlockRef {
        let block = of[usize::from(random.below(8) == 0)];
        match random.below(300) {
            0 => BlockRef {
                offset: random.below(1 << 20) & !7,
                len: random.below(4096) as u32,
                ..block
            },
            1 => BlockRef {
                extents: random.below(70) as u16,
                ..block
            },
            2..80 => BlockRef {
                metadata: self.metadata,
                ..block
            },
            _ => block,
        }
    }
}

fn anything(random: &mut Seeded, known: &mut Known, first: u32, placed: &Placed) -> Submission {
    let part = Part {
        more: random.below(10) > 0,
        bare: random.below(8) == 0,
    };
    let emptied = |block: BlockRef| match (part.bare, block.metadata) {
        (false, _) => block,
        (true, 0) => BlockRef::default(),
        (true, _) => BlockRef {
            len: 0,
            extents: 0,
            // Its position, without a message before it.
            offset: block.metadata_offset(),
            ..block
        },
    };
    let ask = emptied(placed.any(random, placed.asks));
    let answer = placed.any(random, placed.answers);
    let own = random.below(8);
    let credit = Credit {
        messages: random.below(40) as u32,
        bytes: random.below(1 << 18) as u32,
    };
    let kind = random.below(16);
    if kind < 4 && part.more {
        known.open.insert(own);
    }
    // Mostly to a call that takes requests.
    let open = known.open.first().copied().filter(|_| random.below(60) > 0);
    let requested = open.unwrap_or(own);
    if (4..6).contains(&kind) && !part.more {
        known.open.remove(&requested);
    }
    match kind {
        0..4 => Submission::Call {
            method: first + random.below(5) as u32,
            call: own,
            part,
            block: ask,
            deadline_ns: match random.below(8) {
                0 => random.word(),
                _ => 0,
            },
        },
        4..6 => Submission::Request {
            call: requested,
            part,
            block: match part.bare {
                true => BlockRef::default(),
                false => BlockRef { metadata: 0, ..ask },
            },
        },
        6..9 => Submission::Response {
            call: known.call(random),
            bare: part.bare,
            block: emptied(answer),
            waited_ns: random.below(3),
        },
        9 => Submission::Reply {
            call: known.call(random),
            block: answer,
            waited_ns: 0,
        },
        10 => Submission::Status {
            call: known.call(random),
            code: Code(random.below(20) as u32),
            epilogue: (random.below(2) == 0).then_some(placed.epilogue),
            waited_ns: 0,
            retry_after_ms: random.below(2) as u32,
        },
        11 => Submission::Cancel { call: own },
        12 => Submission::RequestCredit {
            call: known.call(random),
            credit,
        },
        13 => Submission::ResponseCredit { call: own, credit },
        _ => match known.delivered.pop() {
            Some(offset) => Submission::Release(Offsets::take_from(&[offset]).unwrap()),
            None => Submission::Cancel { call: own },
        },
    }
}

/// A session sends arbitrary descriptors, and calls and serves itself. The daemon continues, other
/// calls flow, and nothing remains.
#[test]
fn a_library_that_says_anything_harms_itself() {
    let scene = Scene::new();
    let before = scene.a.footprint();
    let (mut said, mut heard) = (0_u64, 0_u64);
    let mut reasons = BTreeMap::new();
    for seed in 0..sessions() {
        let mut random = Seeded(seed);
        let features = match random.below(8) {
            0 => random.below(8) as u32,
            _ => ALL,
        };
        let (mut hostile, handle) = scene.hostile(features);
        let placed = Placed::new(&hostile);
        let mut known = Known::default();
        let mut reason = None;
        for round in 0..400 {
            let next = anything(&mut random, &mut known, handle, &placed);
            let mut entry = next.encode();
            if random.below(400) == 0 {
                entry[random.below(64) as usize] ^= 1 << random.below(8);
            }
            said += u64::from(hostile.submit(&entry).is_ok());
            // Sometimes the daemon gets the time to answer.
            let pause = Duration::from_micros(if round % 8 == 7 { 500 } else { 0 });
            while let Some(completion) = hostile.completion(pause) {
                heard += 1;
                known.learn(&completion);
            }
            if round % 64 == 63 {
                reason = hostile.is_ended(Duration::ZERO);
                if reason.is_some() {
                    break;
                }
            }
        }
        if let Some(reason) = reason {
            *reasons.entry(reason).or_insert(0) += 1;
        }
    }
    println!("{said} submissions, {heard} completions; sessions ended by: {reasons:#?}");
    assert!(heard > said / 10, "the daemon answers");
    scene.honest.assert_flows();
    let freed = eventually(SOON, || scene.a.footprint().segments <= before.segments);
    freed.unwrap_or_else(|_| panic!("{:?}, were {before:?}", scene.a.footprint()));
    let status = scene.a.status();
    let sessions = status["sessions"].as_array().unwrap();
    assert!(
        sessions.iter().all(|s| s["tenant"] == "acme"),
        "{sessions:?}"
    );
}
