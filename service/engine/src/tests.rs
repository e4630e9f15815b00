//! The engine's promises: unit tests of each limit and refusal, and random schedules against a
//! ledger.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use proptest::prelude::*;
use tollgate_shm_abi::limits::STREAM_WINDOW_BYTES;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit;

use crate::frozen::tests::{freeze, thaw};
use crate::limits::*;
use crate::migration::tests::{OTHERS, inhabit};
use crate::{Renamed, Stage, Unfit, Wanted};
use crate::{engine::*, ids::*, output::*, routes::*, status::*};

pub(crate) const APP: SessionId = SessionId(1);
pub(crate) const SERVER: SessionId = SessionId(2);
pub(crate) const PEER: LinkId = LinkId(7);

const LINK_CALL_WINDOW: u32 = 2_048;
const LINK_BYTE_WINDOW: u64 = 32 << 20;

/// A message is a number, so that a ledger can follow it.
pub(crate) type Message = u32;

pub(crate) fn submission(number: u64, message: Message) -> Submission<Message> {
    Submission {
        origin: Origin::Session {
            session: APP,
            call: number,
        },
        deadline_ns: 0,
        streams: false,
        more: false,
        bytes: 10,
        steering: Steering::default(),
        message,
    }
}

pub(crate) fn from_peer(number: u64, message: Message) -> Submission<Message> {
    Submission {
        origin: Origin::Link {
            link: PEER,
            call: number,
        },
        deadline_ns: 0,
        streams: false,
        more: false,
        bytes: 10,
        steering: Steering::default(),
        message,
    }
}

/// An engine with an application, a server of one local service, and a link; handle 0 leads to the
/// service, handle 1 to the link, handle 2 nowhere; 3 and 4 are 0 and 1 between layouts that
/// differ.
pub(crate) fn engine() -> (Engine<Message>, ServiceId) {
    let mut engine = Engine::new();
    engine.session_opened(APP);
    engine.session_opened(SERVER);
    engine.link_opened(PEER, LINK_CALL_WINDOW, LINK_BYTE_WINDOW);
    let service = engine.add_service("hotel.Reservation", 1);
    engine.serve(service, SERVER, 40, None);
    let route = |target| Route {
        target,
        chains: MethodChains::default(),
    };
    engine.add_routes(
        APP,
        vec![
            route(local(service, Encoding::Native)),
            route(remote(Encoding::Native)),
            route(RouteTarget::Broken(Status::new(
                Code::UNAVAILABLE,
                "no such peer",
            ))),
            route(local(service, Encoding::Protobuf)),
            route(remote(Encoding::Protobuf)),
        ],
    );
    (engine, service)
}

fn local(service: ServiceId, encoding: Encoding) -> RouteTarget {
    RouteTarget::Local {
        service,
        method: 0,
        encoding,
    }
}

fn remote(encoding: Encoding) -> RouteTarget {
    RouteTarget::Link {
        link: PEER,
        bind: 5,
        method: 3,
        encoding,
    }
}

/// The outputs, without those that report held calls.
pub(crate) fn drain(engine: &mut Engine<Message>) -> Vec<Output<Message>> {
    let outputs = std::iter::from_fn(|| engine.poll_output());
    let asks = |output: &Output<Message>| !matches!(output, Output::Held { .. });
    outputs.filter(asks).collect()
}

pub(crate) fn failure(outputs: &[Output<Message>]) -> &Status {
    let found = outputs.iter().find_map(|o| match o {
        Output::Fail { status, .. } | Output::SendStatus { status, .. } => Some(status),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no failure in {outputs:?}"))
}

/// The end of a call that came at time 0 and was served here.
pub(crate) fn served_here(service: ServiceId) -> Ended {
    Ended {
        served: Some((service, 0)),
        ..Ended::default()
    }
}

pub(crate) fn delivered(outputs: &[Output<Message>]) -> CallKey {
    let found = outputs.iter().find_map(|o| match o {
        Output::Deliver { call, .. } => Some(*call),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("nothing delivered in {outputs:?}"))
}

#[test]
fn a_local_call_is_delivered_and_answered() {
    let (mut engine, service) = engine();
    engine.submit(5, APP, 0, submission(9, 100));
    let outputs = drain(&mut engine);
    let call = delivered(&outputs);
    let origin = Origin::Session {
        session: APP,
        call: 9,
    };
    assert_eq!(engine.origin_of(call), Some(origin));
    engine.delivered(7, call);
    assert!(matches!(
        outputs[..],
        [Output::Deliver {
            session: SERVER,
            handle: 40,
            message: 100,
            ..
        }]
    ));
    assert!(engine.reply_from_session(SERVER, call, 200));
    assert_eq!(
        drain(&mut engine),
        [Output::Complete {
            session: APP,
            handle: 0,
            call: 9,
            message: 200,
            ended: Ended {
                handle: 0,
                served: Some((service, 0)),
                began_ns: 5,
                delivered_ns: 7,
            },
        }]
    );
    assert_eq!(engine.origin_of(call), None);
    assert_eq!(
        (
            engine.live_calls(),
            engine.outstanding(APP),
            engine.poll_timeout()
        ),
        (0, 0, None)
    );
}

#[test]
fn chains_are_asked_in_order_and_deny_wins() {
    let (mut engine, service) = engine();
    engine.route_mut(APP, 0).unwrap().chains = MethodChains {
        request: Some(ChainId(1)),
        reply: Some(ChainId(4)),
    };
    *engine.service_chains_mut(service, 0).unwrap() = MethodChains {
        request: Some(ChainId(2)),
        reply: Some(ChainId(3)),
    };
    for deny_at in 1..=5 {
        engine.submit(0, APP, 0, submission(9, 100));
        let mut asked = Vec::new();
        let mut answer = None;
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Evaluate {
                    call,
                    chain,
                    message,
                    ..
                } => {
                    asked.push(chain.0);
                    let denied = Verdict::Deny(Status::new(
                        Code::PERMISSION_DENIED,
                        format!("chain {}", chain.0),
                    ));
                    engine.verdict(
                        call,
                        if chain.0 == deny_at {
                            denied
                        } else {
                            Verdict::Allow
                        },
                        message,
                    );
                }
                Output::Deliver { call, .. } => {
                    assert!(engine.reply_from_session(SERVER, call, 200))
                }
                Output::Complete { .. } => assert!(answer.replace(Code::OK).is_none()),
                Output::Fail { status, .. } => assert!(answer.replace(status.code).is_none()),
                Output::Discard(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(asked, (1..=deny_at.min(4)).collect::<Vec<_>>());
        assert_eq!(
            answer,
            Some(if deny_at == 5 {
                Code::OK
            } else {
                Code::PERMISSION_DENIED
            })
        );
        assert_eq!(engine.live_calls(), 0);
    }
}

/// On either side, and for a method's only request.
#[test]
fn a_reply_says_in_which_epoch_its_request_was_evaluated() {
    let (mut engine, service) = engine();
    let both = |request, reply| MethodChains {
        request: Some(ChainId(request)),
        reply: Some(ChainId(reply)),
    };
    engine.route_mut(APP, 0).unwrap().chains = both(1, 4);
    *engine.service_chains_mut(service, 0).unwrap() = both(2, 3);
    let mut run = |forgets: bool| {
        engine.submit(0, APP, 0, submission(9, 100));
        let (mut policy_epochs, mut oldest) = (Vec::new(), Vec::new());
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Evaluate {
                    call,
                    chain,
                    evaluated_in,
                    message,
                    ..
                } => {
                    engine.set_policy_epoch(10 * chain.0);
                    engine.verdict(call, Verdict::Allow, message);
                    if forgets && chain.0 == 2 {
                        engine.forget_policy_epoch(call);
                    }
                    policy_epochs.push(evaluated_in);
                    oldest.push(engine.oldest_policy_epoch());
                }
                Output::Deliver { call, .. } => {
                    assert!(engine.reply_from_session(SERVER, call, 200));
                }
                Output::Complete { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        (policy_epochs, oldest)
    };
    let ten = Some(10);
    assert_eq!(run(false), (vec![0, 0, 20, 10], vec![ten, ten, ten, None]));
    assert_eq!(run(true), (vec![0, 0, 0, 0], vec![ten, None, None, None]));
}

/// Every chain reads its own end's layout: conversions lie between the client's chain and the
/// server's, both ways.
#[test]
fn a_call_between_two_layouts_is_converted_between_the_chains_of_its_ends() {
    let (mut engine, service) = engine();
    for handle in [3, 4] {
        engine.route_mut(APP, handle).unwrap().chains = MethodChains {
            request: Some(ChainId(1)),
            reply: Some(ChainId(4)),
        };
    }
    *engine.service_chains_mut(service, 0).unwrap() = MethodChains {
        request: Some(ChainId(2)),
        reply: Some(ChainId(3)),
    };
    let mut steps = Vec::new();
    let mut run = |engine: &mut Engine<Message>| {
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Evaluate {
                    call,
                    chain,
                    message,
                    ..
                } => {
                    steps.push(format!("chain {} on {message}", chain.0));
                    engine.verdict(call, Verdict::Allow, message);
                }
                Output::Convert {
                    call,
                    from,
                    to,
                    message,
                } => {
                    let name = |end| match end {
                        End::Caller { handle, .. } => format!("handle {handle}"),
                        End::Server { method, .. } => format!("method {method}"),
                        End::Peer => "peer".to_owned(),
                    };
                    steps.push(format!("{message}: {} to {}", name(from), name(to)));
                    engine.converted(call, 77, message + 1);
                }
                Output::Deliver { call, message, .. } => {
                    steps.push(format!("deliver {message}"));
                    engine.reply_from_session(SERVER, call, 200);
                }
                Output::SendCall {
                    call,
                    message,
                    encoding,
                    ..
                } => {
                    steps.push(format!("send {message} {encoding:?}"));
                    assert_eq!(
                        engine.expected_from_link(PEER, call).unwrap().encoding,
                        Encoding::Protobuf
                    );
                    engine.reply_from_link(PEER, call, 300);
                }
                Output::SendReply {
                    message, encoding, ..
                } => steps.push(format!("reply {message} {encoding:?}")),
                Output::Complete { message, .. } => steps.push(format!("complete {message}")),
                other => panic!("unexpected {other:?}"),
            }
        }
    };
    engine.submit(0, APP, 3, submission(1, 100));
    run(&mut engine);
    engine.submit(0, APP, 4, submission(2, 100));
    run(&mut engine);
    engine.arrive(0, service, 0, Encoding::Protobuf, from_peer(3, 100));
    run(&mut engine);
    let want = [
        // On this host.
        "chain 1 on 100",
        "100: handle 3 to method 0",
        "chain 2 on 101",
        "deliver 101",
        "chain 3 on 200",
        "200: method 0 to handle 3",
        "chain 4 on 201",
        "complete 201",
        // To a peer, whose reply is converted on arrival.
        "chain 1 on 100",
        "100: handle 4 to peer",
        "send 101 Protobuf",
        "chain 4 on 300",
        "complete 300",
        // From a peer, whose request was converted on arrival.
        "chain 2 on 100",
        "deliver 100",
        "chain 3 on 200",
        "200: method 0 to peer",
        "reply 201 Protobuf",
    ];
    assert_eq!(steps, want);
    assert_eq!(engine.live_calls(), 0);
}

#[test]
fn a_call_that_cannot_be_converted_ends_and_a_converted_one_costs_its_new_size() {
    let (mut engine, _) = engine();
    let convert = |engine: &mut Engine<Message>| match engine.poll_output() {
        Some(Output::Convert { call, message, .. }) => (call, message),
        other => panic!("unexpected {other:?}"),
    };
    engine.submit(0, APP, 4, submission(1, 100));
    let (call, _) = convert(&mut engine);
    engine.undeliverable(call, Status::new(Code::INVALID_ARGUMENT, "not convertible"));
    assert_eq!(failure(&drain(&mut engine)).code, Code::INVALID_ARGUMENT);
    engine.converted(call, 5, 101);
    assert_eq!(drain(&mut engine), [Output::Discard(101)], "it has ended");

    // The link's credit covers the posted size, and not the changed one.
    engine.set_credit(PEER, 1, 50);
    assert!(!engine.send_waiting(PEER));
    engine.submit(0, APP, 4, submission(2, 102));
    let (call, message) = convert(&mut engine);
    engine.converted(call, 51, message);
    assert_eq!(engine.poll_output(), Some(Output::Held { call }));
    assert_eq!(drain(&mut engine), [], "it waits for credit");
    engine.set_credit(PEER, 1, 51);
    assert!(!engine.send_waiting(PEER));
    assert!(matches!(
        drain(&mut engine)[..],
        [Output::SendCall { message: 102, .. }]
    ));
}

#[test]
fn every_refusal_is_a_status_and_gives_the_message_back() {
    type Prepare = fn(&mut Engine<Message>);
    let cases: [(u32, Prepare, Code, &str); 4] = [
        (2, |_| {}, Code::UNAVAILABLE, "no such peer"),
        (99, |_| {}, Code::UNIMPLEMENTED, "method handle 99"),
        (
            0,
            |e| e.session_closed(SERVER),
            Code::UNAVAILABLE,
            "no application serves hotel.Reservation",
        ),
        (
            1,
            |e| e.link_closed(PEER, "gone"),
            Code::UNAVAILABLE,
            "link to the peer has closed",
        ),
    ];
    for (handle, prepare, code, text) in cases {
        let (mut engine, _) = engine();
        prepare(&mut engine);
        engine.submit(0, APP, handle, submission(9, 100));
        let outputs = drain(&mut engine);
        assert_eq!(failure(&outputs).code, code);
        assert!(
            failure(&outputs).message.contains(text),
            "{}",
            failure(&outputs).message
        );
        assert!(outputs.contains(&Output::Discard(100)), "{outputs:?}");
        assert_eq!(engine.live_calls(), 0);
    }
}

#[test]
fn a_number_in_use_is_refused_and_the_first_call_goes_on() {
    let (mut engine, _) = engine();
    engine.submit(0, APP, 1, submission(9, 100));
    drain(&mut engine);
    engine.submit(0, APP, 1, submission(9, 101));
    assert_eq!(failure(&drain(&mut engine)).code, Code::INVALID_ARGUMENT);
    assert_eq!(engine.outstanding(APP), 1);
}

#[test]
fn outstanding_calls_are_limited_per_session() {
    let (mut engine, _) = engine();
    for number in 0..u64::from(MAX_OUTSTANDING_PER_SESSION) {
        assert!(matches!(
            engine.submit(0, APP, 1, submission(number, 0)),
            Admission::Admitted(_)
        ));
    }
    drain(&mut engine);
    assert_eq!(
        engine.submit(0, APP, 1, submission(u64::MAX, 1)),
        Admission::Refused
    );
    let outputs = drain(&mut engine);
    assert_eq!(failure(&outputs).code, Code::RESOURCE_EXHAUSTED);
    assert!(failure(&outputs).message.contains("4096 calls outstanding"));
}

#[test]
fn delivered_calls_are_limited_per_server_and_come_back() {
    let (mut engine, service) = engine();
    for number in 0..u64::from(MAX_DELIVERED_PER_SESSION) {
        engine.arrive(0, service, 0, Encoding::Native, from_peer(number, 0));
    }
    let first = delivered(&drain(&mut engine));
    engine.arrive(0, service, 0, Encoding::Native, from_peer(u64::MAX, 1));
    assert_eq!(failure(&drain(&mut engine)).code, Code::RESOURCE_EXHAUSTED);
    assert!(engine.reply_from_session(SERVER, first, 5));
    drain(&mut engine);
    engine.arrive(0, service, 0, Encoding::Native, from_peer(u64::MAX, 1));
    delivered(&drain(&mut engine));
}

#[test]
fn without_a_target_any_more_servers_are_given_as_many_as_ever() {
    let (mut engine, service) = engine();
    engine.set_wait_target(Some(1_000_000));
    for number in 0..100 {
        engine.arrive(0, service, 0, Encoding::Native, from_peer(number, 0));
        delivered(&drain(&mut engine));
    }
    for wait in 1..=100 {
        engine.waited(wait * WAITS_INTERVAL_NS / 16, SERVER, 4_000_000);
    }
    engine.arrive(0, service, 0, Encoding::Native, from_peer(100, 0));
    failure(&drain(&mut engine));
    engine.set_wait_target(None);
    engine.waited(101 * WAITS_INTERVAL_NS, SERVER, 4_000_000);
    let serving = engine.serving(SERVER);
    assert_eq!(
        (serving.limit, serving.refused),
        (MAX_DELIVERED_PER_SESSION, 1)
    );
    engine.arrive(0, service, 0, Encoding::Native, from_peer(101, 0));
    delivered(&drain(&mut engine));
}

#[test]
fn calls_that_would_wait_too_long_are_refused_before_a_chain_is_asked() {
    let (mut engine, service) = engine();
    engine.set_wait_target(Some(1_000_000));
    let chains = engine.service_chains_mut(service, 0).unwrap();
    chains.request = Some(ChainId(1));
    let arrive = |engine: &mut Engine<Message>, number| {
        engine.arrive(0, service, 0, Encoding::Native, from_peer(number, 0));
        drain(engine)
    };
    let evaluated = |outputs: &[Output<Message>]| matches!(outputs, [Output::Evaluate { .. }]);
    for number in 0..100 {
        let [Output::Evaluate { call, message, .. }] = arrive(&mut engine, number)[..] else {
            panic!("call {number} isn't evaluated")
        };
        engine.verdict(call, Verdict::Allow, message);
        delivered(&drain(&mut engine));
    }
    for wait in 1..=100 {
        engine.waited(wait * WAITS_INTERVAL_NS / 16, SERVER, 4_000_000);
    }
    let serving = engine.serving(SERVER);
    assert_eq!((serving.calls, serving.refused), (100, 0));
    assert!(serving.limit < 100, "{serving:?}");
    let outputs = arrive(&mut engine, 100);
    let refused = failure(&outputs);
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    assert!((1..=MAX_RETRY_MS).contains(&refused.retry_after_ms));
    assert!(refused.message.contains("hotel.Reservation"), "{refused:?}");
    assert_eq!(engine.serving(SERVER).refused, 1);
    let before = engine.serving(SERVER).limit;
    engine.set_wait_target(Some(2_000_000));
    assert_eq!(engine.serving(SERVER).limit, before, "it is found anew");
    // Another server has room, and its reported waits don't affect the first one.
    let other = SessionId(77);
    engine.session_opened(other);
    engine.serve(service, other, 0, None);
    assert!(evaluated(&arrive(&mut engine, 101)));
    engine.session_closed(other);
    drain(&mut engine);
    assert!(!evaluated(&arrive(&mut engine, 102)));
    // Without a target all calls wait.
    let (mut engine, _) = self::engine();
    for wait in 1..=100 {
        engine.waited(wait * WAITS_INTERVAL_NS, SERVER, u64::MAX);
    }
    assert_eq!(engine.serving(SERVER).limit, MAX_DELIVERED_PER_SESSION);
}

#[test]
fn the_table_of_calls_is_limited() {
    let (mut engine, service) = engine();
    let sessions = MAX_CALLS as u32 / MAX_OUTSTANDING_PER_SESSION;
    for k in 0..sessions {
        let session = SessionId(100 + k);
        engine.session_opened(session);
        let target = RouteTarget::Link {
            link: PEER,
            bind: 0,
            method: 0,
            encoding: Encoding::Native,
        };
        engine.add_routes(
            session,
            vec![Route {
                target,
                chains: MethodChains {
                    request: Some(ChainId(0)),
                    reply: None,
                },
            }],
        );
        for call in 0..u64::from(MAX_OUTSTANDING_PER_SESSION) {
            let origin = Origin::Session { session, call };
            engine.submit(
                0,
                session,
                0,
                Submission {
                    origin,
                    deadline_ns: 0,
                    streams: false,
                    more: false,
                    bytes: 0,
                    steering: Steering::default(),
                    message: 0,
                },
            );
        }
    }
    drain(&mut engine);
    engine.arrive(0, service, 0, Encoding::Native, from_peer(1, 1));
    let outputs = drain(&mut engine);
    assert!(
        failure(&outputs).message.contains("65536 calls"),
        "{}",
        failure(&outputs).message
    );
}

#[test]
fn calls_without_credit_wait_in_order_and_the_queue_is_limited() {
    let (mut engine, _) = engine();
    for k in 0..LINK_CALL_WINDOW + 3 {
        engine.submit(0, APP, 1, submission(u64::from(k), k));
    }
    let sent = drain(&mut engine);
    assert_eq!(sent.len(), LINK_CALL_WINDOW as usize);
    engine.set_credit(PEER, 2, 20);
    assert!(!engine.send_waiting(PEER));
    let messages: Vec<u32> = drain(&mut engine)
        .iter()
        .map(|o| {
            if let Output::SendCall { message, .. } = o {
                *message
            } else {
                u32::MAX
            }
        })
        .collect();
    assert_eq!(messages, [LINK_CALL_WINDOW, LINK_CALL_WINDOW + 1]);
    // Expiry takes a waiting call out of the queue, and its message comes back.
    engine.cancel(Origin::Session {
        session: APP,
        call: u64::from(LINK_CALL_WINDOW + 2),
    });
    let outputs = drain(&mut engine);
    assert_eq!(failure(&outputs).code, Code::CANCELLED);
    assert!(outputs.contains(&Output::Discard(LINK_CALL_WINDOW + 2)));
    engine.set_credit(PEER, 1, 10);
    assert!(!engine.send_waiting(PEER));
    assert!(drain(&mut engine).is_empty());
}

#[test]
fn what_waited_leaves_in_parts_so_that_the_link_can_fall_behind_again() {
    let (mut engine, _) = engine();
    engine.set_behind(PEER, true);
    for call in 0..4 {
        let large = Submission {
            bytes: SENT_AT_ONCE_BYTES / 2,
            ..submission(call, 0)
        };
        engine.submit(0, APP, 1, large);
    }
    engine.set_behind(PEER, false);
    assert!(engine.send_waiting(PEER));
    assert_eq!(drain(&mut engine).len(), 2);
    engine.set_behind(PEER, true);
    assert!(!engine.send_waiting(PEER));
    assert_eq!(drain(&mut engine), []);
}

#[test]
fn urgent_calls_leave_before_others_and_no_call_waits_for_ever() {
    let (mut engine, _) = engine();
    for k in 0..LINK_CALL_WINDOW {
        engine.submit(0, APP, 1, submission(u64::from(k), k));
    }
    drain(&mut engine);
    let number = |k: u32| u64::from(LINK_CALL_WINDOW + k);
    for (k, priority) in [(0, 0), (1, 3), (2, 7), (3, 3)] {
        let urgent = Submission {
            steering: Steering {
                priority,
                route: None,
            },
            ..submission(number(k), k)
        };
        engine.submit(0, APP, 1, urgent);
    }
    let sent = |engine: &mut Engine<Message>| -> Vec<Message> {
        let sent = |output: &Output<Message>| match output {
            Output::SendCall { message, .. } => Some(*message),
            _ => None,
        };
        drain(engine).iter().filter_map(sent).collect()
    };
    engine.set_credit(PEER, 3, 30);
    assert!(!engine.send_waiting(PEER));
    assert_eq!(sent(&mut engine), [2, 1, 3]);
    // More urgent ones keep coming, one for each that leaves: the oldest still has its turn.
    let mut left = Vec::new();
    for k in 4..20 {
        let urgent = Submission {
            steering: Steering {
                priority: 7,
                route: None,
            },
            ..submission(number(k), k)
        };
        engine.submit(0, APP, 1, urgent);
        engine.set_credit(PEER, 1, 10);
        assert!(!engine.send_waiting(PEER));
        left.extend(sent(&mut engine));
    }
    let turn = left.iter().position(|message| *message == 0);
    assert!(
        turn.is_some_and(|at| at < OLDEST_EVERY as usize),
        "{left:?}"
    );
}

#[test]
fn a_route_chooses_among_the_servers_that_have_its_label() {
    let (mut engine, service) = engine();
    for session in [3, 4] {
        engine.session_opened(SessionId(session));
        engine.serve(service, SessionId(session), 0, Some("blue".into()));
    }
    let mut number = 0;
    let mut met = |engine: &mut Engine<Message>, route: Option<&str>| -> Vec<u32> {
        let mut met = Vec::new();
        for _ in 0..3 {
            number += 1;
            let steering = Steering {
                priority: 0,
                route: route.map(Arc::from),
            };
            let routed = Submission {
                steering,
                ..submission(number, 0)
            };
            engine.submit(0, APP, 0, routed);
            for output in drain(engine) {
                if let Output::Deliver { session, .. } = output {
                    met.push(session.0);
                }
            }
        }
        met
    };
    assert_eq!(met(&mut engine, Some("blue")), [3, 4, 3]);
    assert_eq!(met(&mut engine, None), [2, 2, 2], "what isn't for a canary");
    assert_eq!(met(&mut engine, Some("green")), [2, 2, 2], "nobody has it");
    assert_eq!(engine.landing(service, 0), Some((SERVER, false)));
    engine.session_closed(SERVER);
    assert_eq!(met(&mut engine, None).len(), 3, "nobody else is left");
}

#[test]
fn a_chain_steers_a_request_that_it_is_asked_about() {
    let (mut engine, _) = engine();
    let chain = Some(ChainId(9));
    engine.route_mut(APP, 1).unwrap().chains.request = chain;
    engine.submit(0, APP, 1, submission(1, 5));
    let Some(Output::Evaluate { call, .. }) = engine.poll_output() else {
        panic!("it is evaluated")
    };
    assert!(engine.steering_to_peer(call).unwrap().1.is_default());
    engine.steer(call, Some(7), Some("blue".into()));
    engine.steer(call, None, None);
    let steering = Steering {
        priority: 7,
        route: Some("blue".into()),
    };
    assert_eq!(engine.steering_to_peer(call), Some((PEER, &steering)));
    engine.verdict(call, Verdict::Allow, 5);
    engine.steer(call, Some(1), None);
    assert_eq!(engine.steering_to_peer(call), None, "it has left");
}

#[test]
fn what_a_link_holds_back_is_limited_in_calls_and_bytes() {
    let (mut engine, _) = engine();
    let other = SessionId(3);
    engine.session_opened(other);
    let target = RouteTarget::Link {
        link: PEER,
        bind: 0,
        method: 0,
        encoding: Encoding::Native,
    };
    engine.add_routes(
        other,
        vec![Route {
            target,
            chains: MethodChains::default(),
        }],
    );
    let post = |engine: &mut Engine<Message>, session, handle, call, bytes| {
        let origin = Origin::Session { session, call };
        engine.submit(
            0,
            session,
            handle,
            Submission {
                origin,
                deadline_ns: 0,
                streams: false,
                more: false,
                bytes,
                steering: Steering::default(),
                message: 0,
            },
        );
    };
    for call in 0..u64::from(MAX_OUTSTANDING_PER_SESSION) {
        post(&mut engine, APP, 1, call, 0);
    }
    for call in 0..u64::from(LINK_CALL_WINDOW) {
        post(&mut engine, other, 0, call, 0);
    }
    drain(&mut engine);
    post(&mut engine, other, 0, u64::MAX, 0);
    assert!(
        failure(&drain(&mut engine))
            .message
            .contains("queue is full (4096 calls")
    );

    let (mut engine, _) = self::engine();
    post(&mut engine, APP, 1, 0, LINK_BYTE_WINDOW);
    post(&mut engine, APP, 1, 1, MAX_WAITING_BYTES_PER_LINK);
    drain(&mut engine);
    post(&mut engine, APP, 1, 2, 1);
    assert_eq!(failure(&drain(&mut engine)).code, Code::RESOURCE_EXHAUSTED);
}

#[test]
fn a_link_that_is_behind_gets_calls_and_answers_once_it_has_caught_up() {
    let (mut engine, service) = engine();
    for number in 0..3 {
        engine.arrive(0, service, 0, Encoding::Native, from_peer(number, 0));
    }
    let calls: Vec<CallKey> = drain(&mut engine)
        .iter()
        .filter_map(|output| match output {
            Output::Deliver { call, .. } => Some(*call),
            _ => None,
        })
        .collect();
    let behind =
        |engine: &Engine<Message>, call| engine.expected_from_session(SERVER, call).unwrap().behind;
    assert_eq!(behind(&engine, calls[0]), None);
    engine.set_behind(PEER, true);
    assert_eq!(behind(&engine, calls[0]), Some(PEER));

    engine.submit(0, APP, 1, submission(9, 100));
    assert_eq!(drain(&mut engine), [], "a call waits, too");
    for &call in &calls {
        engine.put_off(SERVER, call);
    }
    assert_eq!(engine.serving(SERVER).calls, 0, "the server has answered");
    assert!(!engine.reply_from_session(SERVER, calls[0], 1), "once");
    assert_eq!(drain(&mut engine), [Output::Discard(1)]);
    engine.cancel(Origin::Link {
        link: PEER,
        call: 0,
    });
    assert!(
        matches!(drain(&mut engine)[..], [Output::SendStatus { call: 0, .. }]),
        "the server isn't told: it has answered"
    );

    engine.set_behind(PEER, false);
    assert!(!engine.send_waiting(PEER));
    assert!(matches!(
        drain(&mut engine)[..],
        [Output::SendCall { message: 100, .. }]
    ));
    assert_eq!(engine.expected_after_wait(SERVER, calls[0]), None);
    engine.reply_after_wait(SERVER, calls[0], 2);
    engine.reply_after_wait(SERVER, calls[1], 3);
    assert!(matches!(
        drain(&mut engine)[..],
        [
            Output::Discard(2),
            Output::SendReply {
                call: 1,
                message: 3,
                ..
            }
        ]
    ));
    engine.session_closed(SERVER);
    assert!(
        matches!(&drain(&mut engine)[..], [Output::SendStatus { call: 2, status, .. }] if status.code == Code::UNAVAILABLE),
        "what it kept is gone with it"
    );
}

#[test]
fn every_answer_to_a_peer_says_how_much_credit_is_back() {
    let (mut engine, service) = engine();
    for k in 0..3 {
        engine.arrive(0, service, 0, Encoding::Native, from_peer(k, 0));
        let call = delivered(&drain(&mut engine));
        match k {
            0 => assert!(engine.reply_from_session(SERVER, call, 1)),
            1 => engine.cancel(Origin::Link {
                link: PEER,
                call: k,
            }),
            _ => assert!(engine.fail_from_session(SERVER, call, Status::new(Code::INTERNAL, "no"))),
        }
        let answers = drain(&mut engine);
        let answer = answers.iter().find(|o| {
            matches!(
                o,
                Output::SendReply {
                    request_bytes: 10,
                    ..
                } | Output::SendStatus {
                    request_bytes: 10,
                    ..
                }
            )
        });
        assert!(answer.is_some(), "{answers:?}");
    }
}

#[test]
fn a_deadline_ends_the_call_everywhere_and_a_late_reply_is_dropped() {
    let (mut engine, _) = engine();
    let origin = Origin::Session {
        session: APP,
        call: 1,
    };
    engine.submit(
        0,
        APP,
        0,
        Submission {
            origin,
            deadline_ns: 5_000_000,
            streams: false,
            more: false,
            bytes: 1,
            steering: Steering::default(),
            message: 100,
        },
    );
    let call = delivered(&drain(&mut engine));
    engine.expire(4_000_000);
    assert!(drain(&mut engine).is_empty());
    engine.expire(engine.poll_timeout().unwrap());
    let outputs = drain(&mut engine);
    assert_eq!(failure(&outputs).code, Code::DEADLINE_EXCEEDED);
    assert!(outputs.contains(&Output::CancelDelivered {
        session: SERVER,
        call
    }));
    assert!(
        engine.reply_from_session(SERVER, call, 200),
        "the server could not know"
    );
    assert_eq!(drain(&mut engine), [Output::Discard(200)]);
    // A deadline that has passed already, and no deadline.
    engine.submit(
        10,
        APP,
        0,
        Submission {
            origin,
            deadline_ns: 5,
            streams: false,
            more: false,
            bytes: 1,
            steering: Steering::default(),
            message: 100,
        },
    );
    assert_eq!(failure(&drain(&mut engine)).code, Code::DEADLINE_EXCEEDED);
    engine.submit(
        10,
        APP,
        0,
        Submission {
            origin,
            deadline_ns: 0,
            streams: false,
            more: false,
            bytes: 1,
            steering: Steering::default(),
            message: 100,
        },
    );
    assert!(
        engine.poll_timeout().is_some(),
        "nothing lives without a deadline"
    );
    engine.expire(11 + MAX_DEADLINE_NS);
    assert_eq!(failure(&drain(&mut engine)).code, Code::DEADLINE_EXCEEDED);
}

#[test]
fn a_call_that_ends_while_it_is_evaluated_is_asked_back_from_its_chain() {
    let ends: [fn(&mut Engine<Message>); 3] = [
        |engine| engine.expire(2 * MAX_DEADLINE_NS),
        |engine| {
            engine.cancel(Origin::Session {
                session: APP,
                call: 1,
            })
        },
        |engine| engine.session_closed(APP),
    ];
    for end in ends {
        let (mut engine, _) = engine();
        engine.route_mut(APP, 0).unwrap().chains.request = Some(ChainId(1));
        engine.submit(0, APP, 0, submission(1, 100));
        let [Output::Evaluate { call, .. }] = drain(&mut engine)[..] else {
            panic!("a chain is asked");
        };
        end(&mut engine);
        let outputs = drain(&mut engine);
        assert!(outputs.contains(&Output::Recall { call }), "{outputs:?}");
        engine.verdict(call, Verdict::Allow, 100);
        assert_eq!(drain(&mut engine), [Output::Discard(100)]);
        assert_eq!(engine.live_calls(), 0);
    }
    // A denial is an answer: no message is recalled.
    let (mut engine, _) = engine();
    engine.route_mut(APP, 0).unwrap().chains.request = Some(ChainId(1));
    engine.submit(0, APP, 0, submission(1, 100));
    let [Output::Evaluate { call, .. }] = drain(&mut engine)[..] else {
        panic!("a chain is asked");
    };
    let denied = Verdict::Deny(Status::new(Code::PERMISSION_DENIED, "no"));
    engine.verdict(call, denied, 100);
    assert!(matches!(
        drain(&mut engine)[..],
        [Output::Discard(100), Output::Fail { .. }]
    ));
}

#[test]
fn an_application_can_answer_only_what_was_delivered_to_it() {
    let (mut engine, service) = engine();
    engine.submit(0, APP, 0, submission(1, 100));
    let call = delivered(&drain(&mut engine));
    assert!(!engine.reply_from_session(APP, call, 66));
    assert!(!engine.fail_from_session(APP, call, Status::new(Code::OK, "")));
    assert!(
        engine.reply_from_session(SERVER, CallKey::from_wire(u64::MAX), 67),
        "unknown: taken for late"
    );
    assert!(engine.reply_from_session(SERVER, call, 200));
    let outputs = drain(&mut engine);
    assert_eq!(
        outputs,
        [
            Output::Discard(66),
            Output::Discard(67),
            Output::Complete {
                session: APP,
                handle: 0,
                call: 1,
                message: 200,
                ended: served_here(service),
            }
        ]
    );
}

#[test]
fn a_peer_can_answer_only_what_was_sent_to_it() {
    let (mut engine, _) = engine();
    engine.submit(0, APP, 0, submission(1, 100));
    let local = delivered(&drain(&mut engine));
    engine.reply_from_link(PEER, local, 66);
    engine.fail_from_link(PEER, local, Status::new(Code::INTERNAL, ""));
    assert_eq!(drain(&mut engine), [Output::Discard(66)]);
    assert_eq!(engine.live_calls(), 1);
}

#[test]
fn servers_of_one_service_take_turns() {
    let (mut engine, service) = engine();
    engine.session_opened(SessionId(3));
    engine.serve(service, SessionId(3), 0, None);
    let mut met = Vec::new();
    for number in 0..4 {
        engine.submit(0, APP, 0, submission(number, 0));
        for output in drain(&mut engine) {
            if let Output::Deliver { session, .. } = output {
                met.push(session.0);
            }
        }
    }
    assert_eq!(met, [2, 3, 2, 3]);
}

#[test]
fn a_session_that_is_drained_keeps_the_calls_that_it_has() {
    let (mut engine, service) = engine();
    engine.submit(0, APP, 0, submission(1, 100));
    let call = delivered(&drain(&mut engine));
    engine.drain_session(SERVER);
    assert_eq!(engine.servers_of(service), 0);
    engine.submit(0, APP, 0, submission(2, 101));
    assert_eq!(failure(&drain(&mut engine)).code, Code::UNAVAILABLE);
    assert!(engine.reply_from_session(SERVER, call, 200));
    assert!(matches!(
        drain(&mut engine)[..],
        [Output::Complete { message: 200, .. }]
    ));
}

/// The operations of a random schedule.
#[derive(Clone, Debug)]
enum Op {
    Submit {
        handle: u32,
        deadline_ticks: u64,
        more: bool,
    },
    Arrive {
        more: bool,
    },
    /// The n-th caller sends another request, or none that follows.
    Request {
        nth: usize,
        more: bool,
        bare: bool,
    },
    /// The target of the n-th call sends a response before its answer.
    Respond {
        nth: usize,
    },
    /// Both ends have consumed the messages of the n-th call.
    Consume {
        nth: usize,
    },
    /// Answers the n-th delivered call: a reply, a status, or another side's reply.
    Answer {
        nth: usize,
        how: u8,
    },
    /// The n-th slow conversion is done.
    Converted {
        nth: usize,
    },
    /// The chain evaluates the n-th call that it has.
    Evaluated {
        nth: usize,
        deny: bool,
    },
    Cancel {
        nth: usize,
    },
    Advance {
        ticks: u64,
    },
    Credit,
    /// The link falls behind, or catches up.
    Behind(bool),
    /// The n-th answer that was put off is given now: with a reply or not at all.
    AfterWait {
        nth: usize,
        replies: bool,
    },
    Close {
        who: u8,
    },
    /// The daemon is replaced.
    Freeze,
    /// Everything moves to the other engine.
    Move,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..6, 0u64..20, any::<bool>()).prop_map(|(handle, deadline_ticks, more)| Op::Submit { handle, deadline_ticks, more }),
        3 => any::<bool>().prop_map(|more| Op::Arrive { more }),
        6 => (0usize..20, 0u8..4, any::<bool>()).prop_map(|(nth, last, bare)| Op::Request { nth, more: last > 0, bare: last == 0 && bare }),
        6 => (0usize..20).prop_map(|nth| Op::Respond { nth }),
        2 => (0usize..20).prop_map(|nth| Op::Consume { nth }),
        8 => (0usize..20, 0u8..4).prop_map(|(nth, how)| Op::Answer { nth, how }),
        4 => (0usize..8, any::<bool>()).prop_map(|(nth, deny)| Op::Evaluated { nth, deny }),
        4 => (0usize..4).prop_map(|nth| Op::Converted { nth }),
        2 => (0usize..20).prop_map(|nth| Op::Cancel { nth }),
        2 => (0u64..8).prop_map(|ticks| Op::Advance { ticks }),
        1 => Just(Op::Credit),
        2 => any::<bool>().prop_map(Op::Behind),
        2 => (0usize..4, any::<bool>()).prop_map(|(nth, replies)| Op::AfterWait { nth, replies }),
        1 => (0u8..3).prop_map(|who| Op::Close { who }),
        2 => Just(Op::Freeze),
        2 => Just(Op::Move),
    ]
}

/// An engine, and once it was frozen, the one thawed from it: both get the same inputs and must
/// behave alike.
struct Twins {
    first: Engine<Message>,
    thawed: Option<Engine<Message>>,
    /// The engine that each of them moves to: it has none of their parts, and parts of another
    /// tenant.
    elsewhere: [Engine<Message>; 2],
}

/// Moves everything that calls of the random schedules use to another engine of the same process,
/// with the same ids.
fn go(from: &mut Engine<Message>, to: &mut Engine<Message>) {
    let there = |id: &SessionId| from.sessions.get(id.0).is_some();
    let wanted = Wanted {
        sessions: [APP, SERVER].into_iter().filter(there).collect(),
        links: vec![PEER],
        services: vec![ServiceId(0)],
    };
    let migration = from.part(&wanted).unwrap();
    to.fits(&migration).unwrap();
    let names = Renamed {
        sessions: wanted.sessions.iter().map(|id| (*id, *id)).collect(),
        links: HashMap::from([(PEER, PEER)]),
        services: HashMap::from([(ServiceId(0), ServiceId(0))]),
        chains: (1..5).map(|id| (ChainId(id), ChainId(id))).collect(),
    };
    to.absorb(migration, &names, |_| {});
    std::mem::swap(from, to);
}

/// An engine that everything can move to, with another tenant's calls.
fn elsewhere() -> Engine<Message> {
    let mut engine = Engine::with_id(EngineId::new(1).unwrap());
    engine.add_service("hotel.Reservation", 1);
    inhabit(&mut engine, 3);
    engine
}

impl Twins {
    fn both<T: PartialEq + Debug>(&mut self, act: impl Fn(&mut Engine<Message>) -> T) -> T {
        let did = act(&mut self.first);
        if let Some(thawed) = &mut self.thawed {
            assert_eq!(act(thawed), did, "the thawed one did otherwise");
            assert_eq!(thawed.poll_timeout(), self.first.poll_timeout());
        }
        did
    }

    /// The two engines swap roles.
    fn go(&mut self) {
        let [of_first, of_thawed] = &mut self.elsewhere;
        go(&mut self.first, of_first);
        if let Some(thawed) = &mut self.thawed {
            go(thawed, of_thawed);
        }
    }

    /// The previously thawed engine is frozen in turn.
    fn freeze(&mut self, now_ns: u64) {
        let state = freeze(self.thawed.as_ref().unwrap_or(&self.first));
        let thawed = thaw(&state, now_ns).unwrap();
        assert_eq!(freeze(&thawed), state);
        assert_eq!(freeze(&self.first), state);
        self.thawed = Some(thawed);
        let state = freeze(&self.elsewhere[0]);
        self.elsewhere[1] = thaw(&state, now_ns).unwrap();
    }
}

/// Follows every message and every call: P7, and no leaks.
#[derive(Default)]
struct Ledger {
    next_message: Message,
    /// Messages inside the engine.
    inside: HashSet<Message>,
    /// Callers without their one answer yet.
    waiting: HashSet<Origin>,
    posted: Vec<Origin>,
    with_server: Vec<CallKey>,
    put_off: Vec<CallKey>,
    with_peer: Vec<CallKey>,
    /// Calls that a chain hasn't evaluated yet.
    with_chain: Vec<(CallKey, Message)>,
    /// Messages in slow conversions.
    converting: Vec<(CallKey, Message)>,
    closed: HashMap<u8, bool>,
    /// The last message of a call's direction that was handed on.
    handed: HashMap<(Origin, Direction), Message>,
}

impl Ledger {
    fn message(&mut self) -> Message {
        self.next_message += 1;
        self.inside.insert(self.next_message);
        self.next_message
    }

    fn came_out(&mut self, message: Message) {
        assert!(
            self.inside.remove(&message),
            "message {message} came out twice"
        );
    }

    /// A stream's messages are handed on in the order of their arrival: later ones have higher
    /// numbers.
    fn in_order(&mut self, to: Origin, of: Direction, message: Message) {
        self.came_out(message);
        let before = self.handed.insert((to, of), message);
        assert!(
            before < Some(message),
            "{before:?} was handed on before {message}"
        );
    }

    fn answered(&mut self, origin: Origin) {
        assert!(
            self.waiting.remove(&origin),
            "{origin:?} was answered twice"
        );
    }

    /// Rewrites a message, or reports that it can't.
    fn convert(&mut self, engine: &mut Twins, call: CallKey, message: Message) {
        self.came_out(message);
        if message.is_multiple_of(5) {
            let status = Status::new(Code::INVALID_ARGUMENT, "not convertible");
            engine.both(|e| e.undeliverable(call, status.clone()));
        } else {
            let message = self.message();
            engine.both(|e| e.converted(call, 1 + u64::from(message), message));
        }
    }

    fn absorb(&mut self, engine: &mut Twins) {
        while let Some(output) = engine.both(Engine::poll_output) {
            match output {
                Output::Evaluate {
                    call,
                    stage,
                    message,
                    ..
                } => {
                    // A slow chain.
                    if message % 3 == 0 {
                        self.with_chain.push((call, message));
                        continue;
                    }
                    let deny = message % 5 == 0;
                    let status = Status::new(Code::PERMISSION_DENIED, format!("{stage:?}"));
                    assert!(matches!(
                        stage,
                        Stage::ClientRequest
                            | Stage::ServerRequest
                            | Stage::ServerReply
                            | Stage::ClientReply
                    ));
                    let verdict = if deny {
                        Verdict::Deny(status)
                    } else {
                        Verdict::Allow
                    };
                    engine.both(|e| e.verdict(call, verdict.clone(), message));
                }
                Output::Convert {
                    call,
                    from,
                    to,
                    message,
                    ..
                } => {
                    assert_ne!(from, to);
                    if message % 3 == 0 {
                        self.converting.push((call, message));
                    } else {
                        self.convert(engine, call, message);
                    }
                }
                Output::SendCall {
                    link,
                    call,
                    message,
                    ..
                } => {
                    let to = Origin::Link {
                        link,
                        call: call.to_wire(),
                    };
                    self.in_order(to, Direction::Requests, message);
                    self.with_peer.push(call);
                }
                Output::Deliver {
                    session,
                    call,
                    message,
                    ..
                } => {
                    let to = Origin::Session {
                        session,
                        call: call.to_wire(),
                    };
                    self.in_order(to, Direction::Requests, message);
                    self.with_server.push(call);
                }
                Output::SendRequest {
                    link,
                    call,
                    message,
                    ..
                } => {
                    let call = call.to_wire();
                    if let Some(message) = message {
                        self.in_order(Origin::Link { link, call }, Direction::Requests, message);
                    }
                }
                Output::DeliverRequest {
                    session,
                    call,
                    message,
                    ..
                } => {
                    let call = call.to_wire();
                    if let Some(message) = message {
                        let to = Origin::Session { session, call };
                        self.in_order(to, Direction::Requests, message);
                    }
                }
                Output::Respond {
                    session,
                    call,
                    message,
                    ..
                } => {
                    let to = Origin::Session { session, call };
                    assert!(self.waiting.contains(&to), "a response after the answer");
                    self.in_order(to, Direction::Responses, message);
                }
                Output::SendResponse {
                    link,
                    call,
                    message,
                    ..
                } => {
                    let to = Origin::Link { link, call };
                    assert!(self.waiting.contains(&to), "a response after the answer");
                    self.in_order(to, Direction::Responses, message);
                }
                Output::Credit { .. } => {}
                Output::SendReply {
                    link,
                    call,
                    message,
                    ..
                } => {
                    let to = Origin::Link { link, call };
                    self.in_order(to, Direction::Responses, message);
                    self.answered(to);
                }
                Output::SendStatus { link, call, .. } => self.answered(Origin::Link { link, call }),
                Output::Complete {
                    session,
                    call,
                    message,
                    ..
                } => {
                    let to = Origin::Session { session, call };
                    self.in_order(to, Direction::Responses, message);
                    self.answered(to);
                }
                Output::Fail { session, .. } if session == OTHERS => {}
                Output::Fail { session, call, .. } => {
                    self.answered(Origin::Session { session, call })
                }
                Output::Discard(message) => self.came_out(message),
                Output::Recall { call } => {
                    // Unless it was answered between the call's end and now.
                    let held = |&(held, _): &(CallKey, Message)| held == call;
                    if let Some(at) = self.with_chain.iter().position(held) {
                        let (_, message) = self.with_chain.remove(at);
                        engine.both(|e| e.verdict(call, Verdict::Allow, message));
                    }
                }
                Output::SendCancel { .. }
                | Output::CancelDelivered { .. }
                | Output::Held { .. } => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// For any events in any order: each message comes out once, each caller is answered once (or
    /// is gone), and in the end all tables are empty. An engine that was frozen and thawed
    /// meanwhile behaves alike, and so does one that everything has moved to.
    #[test]
    fn random_schedules_lose_and_duplicate_nothing(ops in prop::collection::vec(op(), 1..120)) {
        let (mut engine, service) = engine();
        engine.route_mut(APP, 1).unwrap().chains = MethodChains { request: Some(ChainId(1)), reply: Some(ChainId(2)) };
        *engine.service_chains_mut(service, 0).unwrap() = MethodChains { request: Some(ChainId(3)), reply: Some(ChainId(4)) };
        let mut engine = Twins { first: engine, thawed: None, elsewhere: [elsewhere(), elsewhere()] };
        let mut ledger = Ledger::default();
        let (mut now, mut number) = (1u64, 0u64);
        for op in ops {
            match op {
                Op::Submit { handle, deadline_ticks, more } if !ledger.closed.contains_key(&0) => {
                    number += 1;
                    let origin = Origin::Session { session: APP, call: number };
                    let message = ledger.message();
                    ledger.waiting.insert(origin);
                    ledger.posted.push(origin);
                    let deadline_ns = if deadline_ticks == 0 { 0 } else { now + deadline_ticks * TIMER_TICK_NS };
                    let route = (handle % 2 == 0).then(|| "blue".into());
                    let steering = Steering { priority: (deadline_ticks % 8) as u8, route };
                    engine.both(|e| {
                        let steering = steering.clone();
                        e.submit(now, APP, handle, Submission { origin, deadline_ns, streams: false, more, bytes: LINK_BYTE_WINDOW / 3, steering, message })
                    });
                }
                Op::Arrive { more } if !ledger.closed.contains_key(&2) => {
                    number += 1;
                    let origin = Origin::Link { link: PEER, call: number };
                    let message = ledger.message();
                    ledger.waiting.insert(origin);
                    ledger.posted.push(origin);
                    let encoding = if number % 2 == 0 { Encoding::Native } else { Encoding::Protobuf };
                    engine.both(|e| e.arrive(now, service, 0, encoding, Submission { origin, deadline_ns: 0, streams: false, more, bytes: 7, steering: Steering::default(), message }));
                }
                Op::Submit { .. } | Op::Arrive { .. } => {}
                Op::Request { nth, more, bare } => {
                    if let Some(&origin) = ledger.posted.get(nth) {
                        let message = (!bare).then(|| ledger.message());
                        let charge = message.map_or(0, |message| message % 7 * STREAM_WINDOW_BYTES / 6);
                        // A message that exceeds the window is dropped, and its session would end.
                        let _unfit = engine.both(|e| e.request(origin, more, charge, message));
                    }
                }
                Op::Respond { nth } => {
                    if let Some(&call) = ledger.with_server.get(nth) {
                        let message = ledger.message();
                        let unfit = engine.both(|e| e.response_from_session(SERVER, call, message % 7 * STREAM_WINDOW_BYTES / 6, message));
                        prop_assert!(unfit != Err(Unfit::AfterLast));
                    } else if let Some(&call) = ledger.with_peer.get(nth / 2) {
                        let message = ledger.message();
                        engine.both(|e| e.response_from_link(PEER, call, message % 7, message));
                    }
                }
                Op::Consume { nth } => {
                    let all = Credit { messages: u32::MAX, bytes: u32::MAX };
                    if let Some(&call) = ledger.with_server.get(nth) {
                        engine.both(|e| e.requests_consumed_by_session(SERVER, call, all));
                    }
                    if let Some(&call) = ledger.with_peer.get(nth) {
                        engine.both(|e| e.requests_consumed_by_link(PEER, call, all));
                    }
                    if let Some(&origin) = ledger.posted.get(nth) {
                        engine.both(|e| e.responses_consumed(origin, all));
                    }
                }
                Op::Answer { nth, how } => {
                    let status = Status::new(Code::INTERNAL, "handler");
                    if let Some(&call) = ledger.with_server.get(nth) {
                        let expected = engine.both(|e| e.expected_from_session(SERVER, call));
                        if how < 2 && expected.is_some_and(|expected| expected.behind.is_some()) {
                            engine.both(|e| e.put_off(SERVER, call));
                            ledger.put_off.push(call);
                            prop_assert_eq!(engine.both(|e| e.expected_from_session(SERVER, call)), None, "it has answered");
                            continue;
                        }
                        let message = ledger.message();
                        match how {
                            0 | 1 => { engine.both(|e| e.reply_from_session(SERVER, call, message)); }
                            2 => { engine.both(|e| e.reply_from_session(APP, call, message)); }
                            _ => { ledger.came_out(message); engine.both(|e| e.fail_from_session(SERVER, call, status.clone())); }
                        }
                    } else if let Some(&call) = ledger.with_peer.get(nth / 2) {
                        if how < 3 {
                            let message = ledger.message();
                            engine.both(|e| e.reply_from_link(PEER, call, message));
                        } else {
                            engine.both(|e| e.fail_from_link(PEER, call, status.clone()));
                        }
                    }
                }
                Op::Evaluated { nth, deny } => {
                    if nth < ledger.with_chain.len() {
                        let (call, message) = ledger.with_chain.remove(nth);
                        let status = Status::new(Code::PERMISSION_DENIED, "late");
                        let verdict = if deny { Verdict::Deny(status) } else { Verdict::Allow };
                        engine.both(|e| e.verdict(call, verdict.clone(), message));
                    }
                }
                Op::Converted { nth } => {
                    if nth < ledger.converting.len() {
                        let (call, message) = ledger.converting.remove(nth);
                        ledger.convert(&mut engine, call, message);
                    }
                }
                Op::Cancel { nth } => {
                    if let Some(&origin) = ledger.posted.get(nth) {
                        engine.both(|e| e.cancel(origin));
                    }
                }
                Op::Advance { ticks } => { now += ticks * TIMER_TICK_NS; engine.both(|e| e.expire(now)); }
                Op::Credit => engine.both(|e| {
                    e.set_credit(PEER, 3, LINK_BYTE_WINDOW / 3);
                    while e.send_waiting(PEER) {}
                }),
                Op::Behind(behind) => engine.both(|e| {
                    e.set_behind(PEER, behind);
                    while e.send_waiting(PEER) {}
                }),
                Op::Freeze => {
                    engine.freeze(now);
                    // A message in conversion may belong to a call that has ended.
                    let known: HashSet<_> = ledger.with_chain.iter().chain(&ledger.converting).map(|(call, _)| *call).collect();
                    let with_rim: HashSet<_> = engine.first.with_rim().collect();
                    prop_assert!(with_rim.is_subset(&known), "{with_rim:?} and {known:?}");
                    prop_assert!(ledger.with_chain.iter().all(|(call, _)| with_rim.contains(call)));
                }
                Op::Move => engine.go(),
                Op::AfterWait { nth, replies } if nth < ledger.put_off.len() => {
                    let call = ledger.put_off.remove(nth);
                    if replies {
                        let message = ledger.message();
                        engine.both(|e| e.reply_after_wait(SERVER, call, message));
                    } else if engine.both(|e| e.expected_after_wait(SERVER, call)).is_some() {
                        engine.both(|e| e.undeliverable(call, Status::new(Code::INTERNAL, "not an answer")));
                    }
                }
                Op::AfterWait { .. } => {}
                Op::Close { who } => {
                    ledger.closed.insert(who, true);
                    match who {
                        0 => engine.both(|e| e.session_closed(APP)),
                        1 => engine.both(|e| e.session_closed(SERVER)),
                        _ => engine.both(|e| e.link_closed(PEER, "the peer is gone")),
                    }
                    ledger.absorb(&mut engine);
                    ledger.waiting.retain(|o| match o {
                        Origin::Session { .. } => who != 0,
                        Origin::Link { .. } => who != 2,
                    });
                }
            }
            ledger.absorb(&mut engine);
        }
        while let Some((call, message)) = ledger.converting.pop() {
            ledger.convert(&mut engine, call, message);
            ledger.absorb(&mut engine);
        }
        engine.both(|e| e.expire(now + 2 * MAX_DEADLINE_NS));
        ledger.absorb(&mut engine);
        prop_assert!(ledger.waiting.is_empty(), "never answered: {:?}", ledger.waiting);
        prop_assert!(ledger.with_chain.is_empty(), "never asked for: {:?}", ledger.with_chain);
        prop_assert!(ledger.inside.is_empty(), "never came out: {:?}", ledger.inside);
        prop_assert_eq!(engine.both(|e| e.live_calls()), 0);
        prop_assert_eq!(engine.both(|e| e.outstanding(APP)), 0);
        prop_assert_eq!(engine.both(|e| e.poll_timeout()), None);
    }
}

/// Counters are told how far a call has come, however it ends.
#[test]
fn a_call_that_ends_says_when_it_came_and_what_it_was_for() {
    let ended = |outputs: &[Output<Message>]| {
        let mut ended = outputs.iter().filter_map(|output| match output {
            Output::Complete { ended, .. }
            | Output::Fail { ended, .. }
            | Output::SendReply { ended, .. }
            | Output::SendStatus { ended, .. } => Some(*ended),
            _ => None,
        });
        ended.next().expect("a call has ended")
    };
    let (mut engine, service) = engine();
    let chain = engine.service_chains_mut(service, 0).unwrap();
    chain.request = Some(ChainId(2));
    engine.submit(5, APP, 0, submission(1, 100));
    let asked = drain(&mut engine);
    let [Output::Evaluate { call, .. }] = asked[..] else {
        panic!("{asked:?}");
    };
    let status = Status::new(Code::PERMISSION_DENIED, "no");
    engine.verdict(call, Verdict::Deny(status), 100);
    let denied = Ended {
        began_ns: 5,
        ..served_here(service)
    };
    assert_eq!(ended(&drain(&mut engine)), denied);
    // To a peer: the peer's services aren't known here.
    let (mut engine, _) = self::engine();
    engine.route_mut(APP, 0).unwrap().target = remote(Encoding::Native);
    engine.submit(6, APP, 0, submission(2, 100));
    drain(&mut engine);
    engine.link_closed(PEER, "gone");
    let lost = Ended {
        began_ns: 6,
        ..Ended::default()
    };
    assert_eq!(ended(&drain(&mut engine)), lost);
    // Refused before it became a call.
    let (mut engine, _) = self::engine();
    engine.submit(7, APP, 99, submission(3, 100));
    assert_eq!(ended(&drain(&mut engine)), Ended::default());
}
