//! Turns of a runtime, run one by one at times that the test sets: which ports are served in a
//! turn, and when lost links are dialled again.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_engine::limits::MAX_OUTSTANDING_PER_SESSION;
use tollgate_engine::{
    Encoding, LinkId, MethodChains, Origin, Route, RouteTarget, SessionId, Status, Steering,
    Submission as Posted,
};
use tollgate_jit::Codec;
use tollgate_shm_abi::descriptor::{Alleged, BlockRef, Completion, HeapSizes, Part, Submission};
use tollgate_shm_abi::session::{AppEnd, SessionFds, SessionShape, create};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;
use tollgate_transport::{Event, TcpLink};

use super::layout_of;
use super::links::trusting;
use crate::binds::ServiceSchema;
use crate::command::{Command, Handle};
use crate::limits::{
    BYTES_PER_LOOK, COMMANDS_QUEUED, FRAMES_PER_TURN, MAX_CALLS_PER_TENANT, RECLAIMS_HELD_NS,
    REDIAL_PAUSE, SUBMISSIONS_PER_TURN,
};
use crate::reply::Reply;
use crate::runtime::Runtime;
use tollgate_jit::on_demand::{Method, Streams, queue};
use tollgate_policy_chain::message::{Body, Message, Source};

const HEAPS: HeapSizes = HeapSizes {
    send: 1 << 20,
    receive: 1 << 20,
};

/// Opens a session in a turn of the runtime.
fn open(
    runtime: &mut Runtime,
    handle: &Handle,
    tenant: &str,
    is_awaited: bool,
) -> (SessionShape, SessionFds) {
    let (reply, answer) = super::reply();
    let answer = is_awaited.then_some(answer);
    let opened = ask_for_session(handle, tenant, 0, reply);
    runtime.turn();
    drop(answer);
    opened
}

/// A session with these features of its library.
pub(super) fn open_with(
    runtime: &mut Runtime,
    handle: &Handle,
    tenant: &str,
    features: u32,
) -> (SessionShape, SessionFds) {
    let (reply, _answer) = super::reply();
    let opened = ask_for_session(handle, tenant, features, reply);
    runtime.turn();
    opened
}

fn ask_for_session(
    handle: &Handle,
    tenant: &str,
    features: u32,
    reply: Reply<Result<SessionId, Status>>,
) -> (SessionShape, SessionFds) {
    let shape = SessionShape::for_request(HEAPS).unwrap();
    let (end, fds) = create(&shape).unwrap();
    handle.send(Command::OpenSession {
        end: Box::new(end),
        tenant: tenant.into(),
        app: String::new(),
        pid: 0,
        features,
        label: String::new(),
        reply,
    });
    (shape, fds)
}

#[test]
fn a_session_that_nobody_waits_for_any_more_is_closed() {
    let (mut runtime, handle) = Runtime::idle();
    open(&mut runtime, &handle, "t", true);
    assert_eq!(runtime.sessions.len(), 1);
    open(&mut runtime, &handle, "t", false);
    assert_eq!(runtime.sessions.len(), 1);
}

/// Calls answered since the last time.
fn answered(app: &mut AppEnd) -> usize {
    let mut statuses = 0;
    while let Some(entry) = app.completions.pop().unwrap() {
        let completion = Alleged::from(entry).completion(&HEAPS).unwrap();
        statuses += usize::from(matches!(completion, Completion::Status { .. }));
    }
    statuses
}

/// Posts a call. Nothing is bound, so it is answered with that error in its turn.
fn call(app: &mut AppEnd, call: u64) {
    let block = BlockRef {
        offset: 8 * call,
        len: 8,
        extents: 0,
        metadata: 0,
    };
    let call = Submission::Call {
        method: 0,
        call,
        part: Part::ONLY,
        block,
        deadline_ns: 0,
    };
    app.submissions.push(&call.encode()).unwrap();
}

#[test]
fn a_session_that_floods_its_ring_has_its_share_of_a_turn() {
    const FLOOD: usize = 5 * SUBMISSIONS_PER_TURN;
    let (mut runtime, handle) = Runtime::idle();
    let mut session = || {
        let (shape, fds) = open(&mut runtime, &handle, "t", true);
        AppEnd::attach(&shape, fds).unwrap()
    };
    let (mut busy, mut other) = (session(), session());
    (0..FLOOD).for_each(|k| call(&mut busy, k as u64));
    for turn in 0..5 {
        call(&mut other, turn);
        runtime.turn();
        let served = (answered(&mut busy), answered(&mut other));
        assert_eq!(served, (SUBMISSIONS_PER_TURN, 1), "turn {turn}");
    }
    assert!(!runtime.turn(), "that was all");
}

#[test]
fn an_application_that_sleeps_is_not_woken_for_its_blocks_alone() {
    let (mut runtime, handle) = Runtime::idle();
    let (shape, fds) = open(&mut runtime, &handle, "t", true);
    let mut app = AppEnd::attach(&shape, fds).unwrap();
    let reclaimed = |app: &mut AppEnd| {
        let entry = app.completions.pop().unwrap()?;
        let completion = Alleged::from(entry).completion(&HEAPS).unwrap();
        match completion {
            Completion::Reclaim(offsets) => Some(offsets.as_slice().to_vec()),
            other => panic!("{other:?}"),
        }
    };
    let woken = |app: &AppEnd| app.wake.wait(Some(Duration::ZERO)).unwrap();
    let give_back = |runtime: &mut Runtime, offset| {
        let session = runtime.sessions.at(0).unwrap().id;
        runtime.sessions.reclaim(Source { session, offset });
        runtime.turn();
    };
    give_back(&mut runtime, 8);
    assert_eq!(reclaimed(&mut app), Some(vec![8]), "it is awake");

    assert!(app.completions.announce_sleep());
    give_back(&mut runtime, 16);
    runtime.now_ns += RECLAIMS_HELD_NS - 1;
    give_back(&mut runtime, 24);
    assert!(!woken(&app), "there is nothing to do for it");
    runtime.now_ns += 1;
    runtime.turn();
    assert!(woken(&app), "it may wait for room");
    app.completions.cancel_sleep();
    assert_eq!(reclaimed(&mut app), Some(vec![16, 24]));

    // With another completion it is returned at once.
    assert!(app.completions.announce_sleep());
    give_back(&mut runtime, 32);
    assert!(!woken(&app));
    call(&mut app, 5);
    runtime.turn();
    assert!(woken(&app));
    app.completions.cancel_sleep();
    assert_eq!(answered(&mut app), 1);

    // The runtime returns it before it sleeps.
    assert!(app.completions.announce_sleep());
    give_back(&mut runtime, 40);
    assert!(!woken(&app));
    call(&mut app, 6);
    runtime.sleep();
    assert!(woken(&app), "although the runtime stays up, for the call");
}

#[test]
fn an_application_that_sleeps_is_woken_for_what_found_its_ring_full() {
    let (mut runtime, handle) = Runtime::idle();
    let (shape, fds) = open(&mut runtime, &handle, "t", true);
    let mut app = AppEnd::attach(&shape, fds).unwrap();
    let mut posted = 0;
    while !runtime.sessions.have_backlog() {
        call(&mut app, posted as u64);
        posted += 1;
        runtime.turn();
    }
    let in_ring = answered(&mut app);
    assert!(in_ring < posted, "{in_ring} of {posted} found a place");
    assert!(app.completions.announce_sleep(), "it has read all there is");
    assert!(!app.wake.wait(Some(Duration::ZERO)).unwrap());
    runtime.turn();
    assert!(app.wake.wait(Some(Duration::ZERO)).unwrap());
    app.completions.cancel_sleep();
    assert_eq!(in_ring + answered(&mut app), posted);
}

#[test]
fn a_tenant_with_many_sessions_has_no_more_of_the_runtime_than_one_with_one() {
    const SESSIONS: usize = 8;
    /// Calls that take many times as long as the kernel's interrupts, which are charged to the
    /// interrupted tenant.
    const ENOUGH: usize = 1_000_000;
    /// So many that a stall of the machine for a second doesn't matter, whichever tenant it is
    /// charged to.
    const MORE_THAN_A_STALL: usize = 20 * ENOUGH;
    let (mut runtime, handle) = Runtime::idle();
    let mut session = |tenant: &str| {
        let (shape, fds) = open(&mut runtime, &handle, tenant, true);
        (AppEnd::attach(&shape, fds).unwrap(), 0)
    };
    let mut many: Vec<_> = (0..SESSIONS).map(|_| session("many")).collect();
    let mut one = session("one");
    // Fills a ring up to a turn's worth. Returns the number of answered calls.
    let keep_busy = |(app, posted): &mut (AppEnd, usize)| {
        let done = answered(app);
        *posted -= done;
        (*posted..SUBMISSIONS_PER_TURN).for_each(|k| call(app, k as u64));
        *posted = SUBMISSIONS_PER_TURN;
        done
    };
    let (mut by_one, mut by_many) = (0, 0);
    let ratios = |runtime: &Runtime, by_one: usize, by_many: usize| {
        let shares = runtime.scheduler.report();
        let [many, one] = &shares[..] else {
            panic!("two tenants: {shares:?}")
        };
        let busy = one.busy_ns as f64 / many.busy_ns as f64;
        (by_one as f64 / by_many as f64, busy)
    };
    // If every session had an equal share, both would be an eighth.
    let are_fair =
        |(calls, busy): &(f64, f64)| (0.5..=2.0).contains(calls) && (0.8..=1.25).contains(busy);
    for end in [ENOUGH, MORE_THAN_A_STALL] {
        while by_one + by_many < end {
            by_one += keep_busy(&mut one);
            by_many += many.iter_mut().map(keep_busy).sum::<usize>();
            assert!(runtime.turn(), "everybody has something to do");
        }
        if are_fair(&ratios(&runtime, by_one, by_many)) {
            break;
        }
    }
    let ratios = ratios(&runtime, by_one, by_many);
    assert!(are_fair(&ratios), "{ratios:?}");
}

/// A method with messages of one string, and such a message as an image of about 15 KiB.
pub(super) fn large_method() -> (Arc<Method>, Vec<u8>) {
    let (layouts, root) = layout_of("string text = 1;");
    let codec = || Codec::new(&layouts, root);
    let mut protobuf = vec![10, 0x80, 0x78];
    protobuf.extend([b'x'; 15 << 10]);
    let mut image = Vec::new();
    codec().decode(&protobuf, &mut image).unwrap();
    let method = Method::new(
        "t.S/M".to_owned(),
        codec(),
        codec(),
        Streams::default(),
        &queue(1).0,
    );
    (Arc::new(method), image)
}

#[test]
fn a_turn_of_large_calls_ends_early_only_if_another_tenant_waits() {
    const CALLS: usize = 20;
    let (mut runtime, handle) = Runtime::idle();
    let mut session = |tenant: &str| {
        let (shape, fds) = open(&mut runtime, &handle, tenant, true);
        AppEnd::attach(&shape, fds).unwrap()
    };
    let (mut large, mut small) = (session("large"), session("small"));
    let flow = runtime.scheduler.of(&"large".into());
    let (method, image) = large_method();
    let nowhere = Route {
        target: RouteTarget::Broken(Status::new(Code::UNAVAILABLE, "nobody serves it")),
        chains: MethodChains::default(),
    };
    let schema = Arc::new(ServiceSchema {
        name: "p.S".to_owned(),
        hash: [0; 32],
        description: String::new(),
        methods: vec![method],
    });
    let port = runtime.sessions.iter().next().unwrap();
    let bound = runtime.add_handles(port.id, &schema, true, vec![nowhere]);
    assert_eq!(bound.unwrap(), 0);
    // Calls are answered one after the other, so all may use the same block.
    let mut block = large.send_heap.alloc(image.len()).unwrap();
    block.copy_from_slice(&image);
    let block = BlockRef {
        offset: large.send_heap.commit(block),
        len: image.len() as u32,
        extents: 0,
        metadata: 0,
    };
    let flood = |app: &mut AppEnd| {
        for id in 0..CALLS {
            let call = Submission::Call {
                method: 0,
                call: id as u64,
                part: Part::ONLY,
                block,
                deadline_ns: 0,
            };
            app.submissions.push(&call.encode()).unwrap();
        }
    };
    let before_a_look = BYTES_PER_LOOK.div_ceil(image.len());

    runtime.turn();
    runtime.scheduler.shared_until_ns = u64::MAX;
    flood(&mut large);
    runtime.turn();
    assert_eq!(answered(&mut large), CALLS, "nobody waits");

    runtime.scheduler.shared_until_ns = u64::MAX;
    call(&mut small, 0);
    flood(&mut large);
    runtime.turn();
    assert_eq!(answered(&mut large), before_a_look);
    assert_eq!(answered(&mut small), 1);
    let mut left = CALLS - before_a_look;
    until(|| {
        runtime.turn();
        left -= answered(&mut large);
        left == 0
    });

    runtime.turn();
    assert!(!runtime.others_wait(flow));
    let mut peer = link(&mut runtime);
    runtime.turn();
    assert!(!runtime.others_wait(flow));
    peer.link.send_bind(0, "t", "S", &[0; 32]).unwrap();
    peer.flush().unwrap();
    until(|| runtime.others_wait(flow));
}

/// Connects a peer to the runtime, and returns the peer's end of the link.
fn link(runtime: &mut Runtime) -> TcpLink {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut peer = TcpLink::connect(address, &trusting("peer"), now_ns()).unwrap();
    runtime.accept(listener.accept().unwrap().0, Box::new(()));
    until(|| {
        peer.flush().unwrap();
        runtime.poll_wakes(Some(Duration::ZERO));
        runtime.turn();
        peer.read().unwrap();
        while peer.link.poll_event().unwrap().is_some() {}
        peer.link.is_ready()
    });
    peer
}

fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}

/// Calls that wait for peers that take none. Each session has as many as one session may have.
#[test]
fn a_tenants_calls_leave_room_for_others() {
    const EACH: usize = MAX_OUTSTANDING_PER_SESSION as usize;
    let (mut runtime, handle) = Runtime::idle();
    for k in 0..(MAX_CALLS_PER_TENANT / EACH) as u32 {
        let _ends = open(&mut runtime, &handle, "mallory", true);
        let session = runtime.sessions.iter().last().unwrap().id;
        let link = LinkId(k);
        runtime.engine.link_opened(link, 0, 0);
        let target = RouteTarget::Link {
            link,
            bind: 0,
            method: 0,
            encoding: Encoding::Native,
        };
        let chains = MethodChains::default();
        let routes = vec![Route { target, chains }];
        runtime.engine.add_routes(session, routes);
        for call in 0..EACH as u64 {
            let message = Message {
                body: Body::Private {
                    bytes: Vec::new(),
                    accepted: true,
                    extents: Vec::new(),
                },
                inline_len: 0,
                total_len: 0,
                metadata: Vec::new(),
                bare: true,
            };
            let posted = Posted {
                origin: Origin::Session { session, call },
                deadline_ns: 0,
                streams: false,
                more: false,
                bytes: 0,
                steering: Steering::default(),
                message: Box::new(message),
            };
            runtime.engine.submit(runtime.now_ns, session, 0, posted);
            runtime.act();
        }
    }
    assert_eq!(runtime.engine.live_calls(), MAX_CALLS_PER_TENANT);
    let mut code = |tenant| {
        let (shape, fds) = open(&mut runtime, &handle, tenant, true);
        let mut app = AppEnd::attach(&shape, fds).unwrap();
        call(&mut app, 1);
        runtime.turn();
        let entry = app.completions.pop().unwrap().unwrap();
        match Alleged::from(entry).completion(&HEAPS) {
            Ok(Completion::Status { code, .. }) => code,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code("mallory"), Code::RESOURCE_EXHAUSTED);
    assert_eq!(code("acme"), Code::UNIMPLEMENTED, "it hasn't bound it");
}

/// BINDs refused since the last time.
fn refused(peer: &mut TcpLink) -> usize {
    let mut refusals = 0;
    peer.read().unwrap();
    while let Some(event) = peer.link.poll_event().unwrap() {
        refusals += usize::from(matches!(event, Event::Refused { .. }));
    }
    refusals
}

#[test]
fn a_link_that_floods_has_its_share_of_a_turn() {
    const FLOOD: usize = 3 * FRAMES_PER_TURN;
    let (mut runtime, _handle) = Runtime::idle();
    let (mut busy, mut other) = (link(&mut runtime), link(&mut runtime));
    // No service exists: each BIND is answered with that error in its turn.
    let bind = |peer: &mut TcpLink, bind: usize| {
        peer.link
            .send_bind(bind as u32, "t", "S", &[0; 32])
            .unwrap();
        peer.flush().unwrap();
    };
    (0..FLOOD).for_each(|k| bind(&mut busy, k));
    let (mut all, mut turns) = (0, 0);
    until(|| {
        bind(&mut other, turns);
        runtime.poll_wakes(Some(Duration::ZERO));
        runtime.turn();
        turns += 1;
        until(|| {
            all += refused(&mut busy);
            refused(&mut other) == 1
        });
        assert!(all <= turns * FRAMES_PER_TURN, "turn {turns}: {all}");
        all == FLOOD
    });
    assert!(turns >= 3);
}

/// Names that a peer makes up don't become shares.
#[test]
fn a_peer_that_makes_tenants_up_stays_a_stranger() {
    let (mut runtime, _handle) = Runtime::idle();
    for tenant in ["made", "up"] {
        let mut peer = link(&mut runtime);
        peer.link.send_bind(0, tenant, "S", &[0; 32]).unwrap();
        peer.flush().unwrap();
        until(|| {
            runtime.poll_wakes(Some(Duration::ZERO));
            runtime.turn();
            refused(&mut peer) == 1
        });
    }
    assert!(runtime.scheduler.report().is_empty());
}

/// One event reports both, and no further event follows: only reading on reveals the end.
#[test]
fn what_comes_together_with_the_end_does_not_hide_it() {
    let (mut runtime, _handle) = Runtime::idle();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    runtime.accept(listener.accept().unwrap().0, Box::new(()));
    // The beginning of a handshake that never continues.
    peer.write_all(&[0]).unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    until(|| {
        runtime.poll_wakes(Some(Duration::from_millis(1)));
        let (_, port) = runtime.links.iter().next().unwrap();
        port.state.ends
    });
    assert!(
        runtime.turn(),
        "there is more to be read, and nobody will say so again"
    );
    runtime.turn();
    assert!(runtime.links.is_empty());
}

#[test]
fn a_lost_link_is_dialled_again_after_pauses_that_double_up_to_the_limit() {
    let (mut runtime, handle) = Runtime::idle();
    open(&mut runtime, &handle, "t", true);
    let session = runtime.sessions.iter().next().unwrap().id;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer: SocketAddr = listener.local_addr().unwrap();
    let schema = Arc::new(ServiceSchema {
        name: "S".to_owned(),
        hash: [0; 32],
        description: String::new(),
        methods: Vec::new(),
    });
    let (asked, _answer) = super::reply();
    runtime.bind_remote(session, "t".into(), schema, Vec::new(), peer.into(), asked);
    runtime.bindings.all_stand();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let (lost, _) = listener.accept().unwrap();
        drop(lost);
        until(|| {
            runtime.poll_wakes(Some(Duration::ZERO));
            runtime.turn();
            runtime.links.is_empty()
        });
        let at_ns = runtime.dials.first().at_ns;
        pauses.push(Duration::from_nanos(at_ns - runtime.now_ns));
        runtime.now_ns = at_ns - 1;
        runtime.turn();
        assert!(runtime.links.is_empty(), "not before its time");
        runtime.now_ns = at_ns;
        runtime.turn();
        assert_eq!(runtime.links.len(), 1);
    }
    let (first, longest) = REDIAL_PAUSE;
    let doubled = (0..9).map(|k| (first * (1 << k)).min(longest));
    assert_eq!(pauses, doubled.collect::<Vec<_>>());
    assert_eq!(pauses[8], longest);
    // A link that becomes ready ends the series.
    let stream = listener.accept().unwrap().0;
    let mut link = TcpLink::accept(stream, &trusting("peer"), now_ns()).unwrap();
    until(|| {
        link.read().unwrap();
        while link.link.poll_event().unwrap().is_some() {}
        link.flush().unwrap();
        runtime.poll_wakes(Some(Duration::ZERO));
        runtime.turn();
        runtime.dials.is_empty()
    });
}

#[test]
fn commands_beyond_the_limit_are_rejected_but_not_those_that_nobody_repeats() {
    let (mut runtime, handle) = Runtime::idle();
    let ask = || {
        let (reply, answer) = super::reply();
        (handle.send(Command::KeptSpans { reply }), answer)
    };
    let asked: Vec<_> = (0..COMMANDS_QUEUED).map(|_| ask()).collect();
    assert!(asked.iter().all(|(is_queued, _)| *is_queued));
    let (is_queued, answer) = ask();
    assert!(!is_queued);
    assert!(answer.recv().is_err(), "there will be no answer");
    let session = SessionId(0);
    assert!(handle.send(Command::CloseSession { session }));
    runtime.turn();
    assert!(asked.iter().all(|(_, answer)| answer.try_recv().is_ok()));
    assert!(ask().0, "there is room again");
}
