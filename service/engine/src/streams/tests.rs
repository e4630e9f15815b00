//! Streams pass chains, layouts, windows and ends in the right order.
#![allow(clippy::unwrap_used)]

use tollgate_shm_abi::limits::{STREAM_WINDOW_BYTES, STREAM_WINDOW_MESSAGES};

use super::*;
use crate::limits::MAX_DEADLINE_NS;
use crate::output::Submission;
use crate::routes::MethodChains;
use crate::status::Verdict;
use crate::tests::{
    APP, Message, PEER, SERVER, delivered, drain, engine, failure, from_peer, served_here,
    submission,
};

const CALLER: Origin = Origin::Session {
    session: APP,
    call: 9,
};
const FROM_PEER: Origin = Origin::Link {
    link: PEER,
    call: 9,
};

fn opening(message: Message) -> Submission<Message> {
    Submission {
        streams: true,
        more: true,
        ..submission(9, message)
    }
}

/// A stream of the application to the local server.
fn open() -> (Engine<Message>, CallKey) {
    let (mut engine, _) = engine();
    engine.submit(0, APP, 0, opening(100));
    let call = delivered(&drain(&mut engine));
    (engine, call)
}

fn request(call: CallKey, more: bool, message: Option<Message>) -> Output<Message> {
    Output::DeliverRequest {
        session: SERVER,
        handle: 40,
        call,
        more,
        charge: message.map_or(0, |_| 5),
        message,
    }
}

fn respond(message: Message) -> Output<Message> {
    Output::Respond {
        session: APP,
        handle: 0,
        call: 9,
        charge: 5,
        message,
    }
}

fn ok() -> Status {
    Status::new(Code::OK, "")
}

/// A description of the outputs, for whole conversations.
fn told(output: &Output<Message>) -> String {
    match output {
        Output::Evaluate { chain, message, .. } => format!("chain {} on {message}", chain.0),
        Output::Convert { message, .. } => format!("convert {message}"),
        Output::SendCall { more, message, .. } => format!("send call {message} more {more}"),
        Output::SendRequest { more, message, .. } => {
            format!("send request {message:?} more {more}")
        }
        Output::SendResponse { message, .. } => format!("send response {message}"),
        Output::SendReply { message, .. } => format!("send reply {message}"),
        Output::SendStatus { status, .. } => format!("send status {}", status.code.0),
        Output::Deliver { more, message, .. } => format!("deliver {message} more {more}"),
        Output::DeliverRequest { more, message, .. } => format!("deliver {message:?} more {more}"),
        Output::Respond { message, .. } => format!("respond {message}"),
        Output::Complete { message, .. } => format!("complete {message}"),
        Output::Fail { status, .. } => format!("status {}", status.code.0),
        Output::Discard(message) => format!("discard {message}"),
        other => format!("{other:?}"),
    }
}

/// Lets every chain allow and every conversion add 1, until nothing comes out.
fn run(engine: &mut Engine<Message>) -> Vec<String> {
    let mut steps = Vec::new();
    while let Some(output) = engine.poll_output() {
        steps.push(told(&output));
        match output {
            Output::Evaluate { call, message, .. } => engine.verdict(call, Verdict::Allow, message),
            Output::Convert { call, message, .. } => engine.converted(call, 7, message + 1),
            _ => {}
        }
    }
    steps
}

#[test]
fn requests_and_responses_pass_until_a_status_ends_the_call() {
    let (mut engine, call) = open();
    assert_eq!(engine.request(CALLER, true, 5, Some(101)), Ok(()));
    assert_eq!(engine.response_from_session(SERVER, call, 5, 200), Ok(()));
    assert_eq!(engine.request(CALLER, false, 0, None), Ok(()));
    assert_eq!(
        drain(&mut engine),
        [
            request(call, true, Some(101)),
            respond(200),
            request(call, false, None)
        ]
    );
    assert_eq!(engine.response_from_session(SERVER, call, 5, 201), Ok(()));
    let status = ok().with_trailers(vec![1, 2]);
    assert!(engine.fail_from_session(SERVER, call, status.clone()));
    let end = Output::Fail {
        session: APP,
        call: 9,
        status,
        ended: served_here(ServiceId(0)),
    };
    assert_eq!(drain(&mut engine), [respond(201), end]);
    assert_eq!((engine.live_calls(), engine.outstanding(APP)), (0, 0));
    // A message that crosses the end is dropped.
    assert_eq!(engine.request(CALLER, true, 5, Some(102)), Ok(()));
    assert_eq!(engine.response_from_session(SERVER, call, 5, 202), Ok(()));
    assert_eq!(
        drain(&mut engine),
        [Output::Discard(102), Output::Discard(202)]
    );
}

/// Every message passes the chains and layouts of a request or a reply, on either way; messages
/// that arrive while one is on its way wait for it.
#[test]
fn every_message_meets_the_chains_of_both_ends_in_order() {
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
    // On this host. The requests come before the call has been delivered.
    engine.submit(0, APP, 3, opening(100));
    engine.request(CALLER, true, 5, Some(110)).unwrap();
    engine.request(CALLER, false, 5, Some(120)).unwrap();
    let Some(Output::Evaluate { call, .. }) = engine.poll_output() else {
        panic!("the opening is evaluated first");
    };
    assert_eq!(drain(&mut engine), [], "the others wait");
    engine.verdict(call, Verdict::Allow, 100);
    assert_eq!(
        run(&mut engine),
        [
            "convert 100",
            "chain 2 on 101",
            "deliver 101 more true",
            "chain 1 on 110",
            "convert 110",
            "chain 2 on 111",
            "deliver Some(111) more true",
            "chain 1 on 120",
            "convert 120",
            "chain 2 on 121",
            "deliver Some(121) more false",
        ]
    );
    engine.response_from_session(SERVER, call, 5, 200).unwrap();
    assert!(engine.reply_from_session(SERVER, call, 300));
    assert_eq!(
        run(&mut engine),
        [
            "chain 3 on 200",
            "convert 200",
            "chain 4 on 201",
            "respond 201",
            "chain 3 on 300",
            "convert 300",
            "chain 4 on 301",
            "complete 301",
        ]
    );
    // To a peer, whose responses are converted on arrival.
    engine.submit(0, APP, 4, opening(100));
    engine.request(CALLER, false, 5, Some(110)).unwrap();
    let Some(Output::Evaluate { call, .. }) = engine.poll_output() else {
        panic!("the opening is evaluated first");
    };
    engine.verdict(call, Verdict::Allow, 100);
    assert_eq!(
        run(&mut engine),
        [
            "convert 100",
            "send call 101 more true",
            "chain 1 on 110",
            "convert 110",
            "send request Some(111) more false",
        ]
    );
    engine.response_from_link(PEER, call, 5, 200);
    engine.reply_from_link(PEER, call, 300);
    assert_eq!(
        run(&mut engine),
        [
            "chain 4 on 200",
            "respond 200",
            "chain 4 on 300",
            "complete 300"
        ]
    );
    // From a peer, whose requests were converted on arrival.
    let arriving = Submission {
        streams: true,
        more: true,
        ..from_peer(9, 100)
    };
    engine.arrive(0, service, 0, Encoding::Protobuf, arriving);
    engine.request(FROM_PEER, true, 5, Some(110)).unwrap();
    let Some(Output::Evaluate { call, .. }) = engine.poll_output() else {
        panic!("the opening is evaluated first");
    };
    engine.verdict(call, Verdict::Allow, 100);
    engine.response_from_session(SERVER, call, 5, 200).unwrap();
    // The server finishes before it gets the second request.
    assert!(engine.fail_from_session(SERVER, call, ok()));
    assert_eq!(
        run(&mut engine),
        [
            "deliver 100 more true",
            "chain 2 on 110",
            "discard 110",
            "chain 3 on 200",
            "convert 200",
            "send response 201",
            "send status 0",
        ]
    );
    assert_eq!(engine.live_calls(), 0);
}

#[test]
fn a_denied_message_ends_its_call_for_both_sides() {
    for of_request in [true, false] {
        let (mut engine, service) = engine();
        engine.submit(0, APP, 0, opening(100));
        let call = delivered(&drain(&mut engine));
        *engine.service_chains_mut(service, 0).unwrap() = MethodChains {
            request: Some(ChainId(2)),
            reply: Some(ChainId(3)),
        };
        engine.request(CALLER, true, 5, Some(101)).unwrap();
        engine.response_from_session(SERVER, call, 5, 200).unwrap();
        let Some(Output::Evaluate { message, .. }) = engine.poll_output() else {
            panic!("the request came first");
        };
        if !of_request {
            engine.verdict(call, Verdict::Allow, message);
            assert_eq!(engine.poll_output(), Some(request(call, true, Some(101))));
            assert!(matches!(
                engine.poll_output(),
                Some(Output::Evaluate { .. })
            ));
        }
        let denied = Status::new(Code::PERMISSION_DENIED, "no");
        let on_its_way = if of_request { 101 } else { 200 };
        engine.verdict(call, Verdict::Deny(denied), on_its_way);
        let outputs = drain(&mut engine);
        assert_eq!(failure(&outputs).code, Code::PERMISSION_DENIED);
        assert!(outputs.contains(&Output::CancelDelivered {
            session: SERVER,
            call
        }));
        assert!(
            outputs.contains(&Output::Discard(200)),
            "it waited, or was denied"
        );
        assert_eq!(engine.live_calls(), 0);
    }
}

#[test]
fn a_call_that_ends_while_a_message_is_evaluated_asks_for_it_back() {
    let ends: [fn(&mut Engine<Message>, CallKey); 4] = [
        |engine, _| engine.refuse(CALLER, Status::new(Code::CANCELLED, "")),
        |engine, _| engine.session_closed(APP),
        |engine, _| engine.session_closed(SERVER),
        |engine, call| assert!(engine.fail_from_session(SERVER, call, ok())),
    ];
    for end in ends {
        let (mut engine, call) = open();
        engine.route_mut(APP, 0).unwrap().chains.request = Some(ChainId(1));
        engine.request(CALLER, true, 5, Some(101)).unwrap();
        engine.request(CALLER, true, 5, Some(102)).unwrap();
        assert!(matches!(drain(&mut engine)[..], [Output::Evaluate { .. }]));
        end(&mut engine, call);
        let outputs = drain(&mut engine);
        assert!(outputs.contains(&Output::Recall { call }), "{outputs:?}");
        assert!(outputs.contains(&Output::Discard(102)), "{outputs:?}");
        engine.verdict(call, Verdict::Allow, 101);
        assert_eq!(drain(&mut engine), [Output::Discard(101)]);
        assert_eq!(engine.live_calls(), 0);
    }
}

#[test]
fn a_window_bounds_what_is_on_its_way_and_its_reader_opens_it() {
    let (mut engine, call) = open();
    for _ in 0..STREAM_WINDOW_MESSAGES {
        engine.request(CALLER, true, 0, Some(1)).unwrap();
        engine.response_from_session(SERVER, call, 0, 2).unwrap();
    }
    drain(&mut engine);
    assert_eq!(engine.request(CALLER, true, 0, Some(3)), Err(Unfit::Window));
    assert_eq!(
        engine.response_from_session(SERVER, call, 0, 4),
        Err(Unfit::Window)
    );
    let two = Credit {
        messages: 2,
        bytes: 1,
    };
    engine.requests_consumed_by_session(APP, call, two);
    engine.requests_consumed_by_link(PEER, call, two);
    assert_eq!(
        drain(&mut engine),
        [Output::Discard(3), Output::Discard(4)],
        "neither of them has the call"
    );
    engine.requests_consumed_by_session(SERVER, call, two);
    engine.responses_consumed(CALLER, two);
    let credit = Credit {
        messages: 2,
        bytes: 0,
    };
    let server = Origin::Session {
        session: SERVER,
        call: call.to_wire(),
    };
    assert_eq!(
        drain(&mut engine),
        [
            Output::Credit {
                to: CALLER,
                of: Direction::Requests,
                credit
            },
            Output::Credit {
                to: server,
                of: Direction::Responses,
                credit
            }
        ],
        "no more than can be true"
    );
    engine
        .request(CALLER, true, STREAM_WINDOW_BYTES, Some(5))
        .unwrap();
    assert_eq!(engine.request(CALLER, true, 1, Some(6)), Err(Unfit::Window));
}

#[test]
fn a_reader_is_not_believed_to_have_consumed_what_waits_here() {
    let (mut engine, _) = engine();
    engine.submit(0, APP, 1, opening(100));
    let Some(Output::SendCall { call, .. }) = engine.poll_output() else {
        panic!("it is sent");
    };
    engine.request(CALLER, true, 7, Some(1)).unwrap();
    engine.set_behind(PEER, true);
    for _ in 1..STREAM_WINDOW_MESSAGES {
        engine.request(CALLER, true, 7, Some(2)).unwrap();
    }
    drain(&mut engine);
    let all = Credit {
        messages: u32::MAX,
        bytes: u32::MAX,
    };
    engine.requests_consumed_by_link(PEER, call, all);
    let one = Output::Credit {
        to: CALLER,
        of: Direction::Requests,
        credit: Credit {
            messages: 1,
            bytes: 7,
        },
    };
    assert_eq!(drain(&mut engine), [one], "one has been sent");
    engine.requests_consumed_by_link(PEER, call, all);
    assert_eq!(drain(&mut engine), []);
    engine.request(CALLER, true, 7, Some(3)).unwrap();
    assert_eq!(engine.request(CALLER, true, 7, Some(4)), Err(Unfit::Window));
}

#[test]
fn streams_that_end_while_they_wait_for_a_link_are_forgotten() {
    let (mut engine, _) = engine();
    let mut most = 0;
    for number in 0..10 * STREAMS_BEFORE_SWEEP as u64 {
        let origin = Origin::Session {
            session: APP,
            call: number,
        };
        let opening = Submission {
            origin,
            ..opening(100)
        };
        engine.set_behind(PEER, false);
        engine.submit(0, APP, 1, opening);
        engine.set_behind(PEER, true);
        engine.request(origin, true, 5, Some(101)).unwrap();
        engine.cancel(origin);
        drain(&mut engine);
        most = most.max(engine.links.get(PEER.0).unwrap().streams.len());
    }
    assert_eq!(engine.live_calls(), 0);
    assert!(most <= STREAMS_BEFORE_SWEEP, "{most}");
}

#[test]
fn a_peer_that_sends_more_than_fits_loses_the_call() {
    let (mut engine, _) = engine();
    engine.submit(0, APP, 1, opening(100));
    let Some(Output::SendCall { call, .. }) = engine.poll_output() else {
        panic!("it is sent");
    };
    engine.response_from_link(PEER, call, STREAM_WINDOW_BYTES, 200);
    engine.response_from_link(PEER, call, 1, 201);
    let outputs = drain(&mut engine);
    assert_eq!(
        &*failure(&outputs).message,
        "the peer broke the protocol: more messages of a stream came than its reader has consumed"
    );
    assert!(outputs.contains(&Output::SendCancel { link: PEER, call }));
    assert_eq!(engine.live_calls(), 0);
}

#[test]
fn what_is_after_the_last_or_somebody_elses_is_refused() {
    let (mut engine, call) = open();
    assert_eq!(
        engine.response_from_session(APP, call, 0, 1),
        Err(Unfit::NotTheirs)
    );
    engine.request(CALLER, false, 0, Some(101)).unwrap();
    assert_eq!(
        engine.request(CALLER, true, 0, Some(102)),
        Err(Unfit::AfterLast)
    );
    assert_eq!(
        engine.request(CALLER, false, 0, None),
        Err(Unfit::AfterLast)
    );
    // A unary call's requests end with the first.
    let (mut engine, _) = crate::tests::engine();
    engine.submit(0, APP, 0, submission(9, 100));
    assert_eq!(
        engine.request(CALLER, true, 0, Some(102)),
        Err(Unfit::AfterLast)
    );
    engine.refuse(CALLER, Status::new(Code::INVALID_ARGUMENT, "nonsense"));
    assert_eq!(failure(&drain(&mut engine)).code, Code::INVALID_ARGUMENT);
}

#[test]
fn a_link_that_is_behind_gets_a_streams_messages_once_it_has_caught_up() {
    let (mut engine, service) = engine();
    engine.submit(0, APP, 1, opening(100));
    let arriving = Submission {
        more: true,
        ..from_peer(9, 300)
    };
    engine.arrive(0, service, 0, Encoding::Native, arriving);
    let outputs = drain(&mut engine);
    let served = delivered(&outputs);
    engine.set_behind(PEER, true);
    engine.request(CALLER, true, 5, Some(101)).unwrap();
    engine.request(CALLER, true, 5, Some(102)).unwrap();
    engine
        .response_from_session(SERVER, served, 5, 200)
        .unwrap();
    assert!(engine.fail_from_session(SERVER, served, ok()));
    // Messages that don't go to the link continue.
    engine.request(FROM_PEER, true, 5, Some(301)).unwrap();
    assert_eq!(
        drain(&mut engine),
        [Output::Discard(301)],
        "nobody works on it"
    );
    assert!(!engine.send_waiting(PEER));
    engine.set_behind(PEER, false);
    while engine.send_waiting(PEER) {}
    let steps: Vec<_> = drain(&mut engine).iter().map(told).collect();
    assert_eq!(
        steps,
        [
            "send request Some(101) more true",
            "send request Some(102) more true",
            "send response 200",
            "send status 0"
        ]
    );
    assert_eq!(engine.live_calls(), 1);
}

#[test]
fn a_streaming_method_without_a_deadline_has_none() {
    let (mut engine, _) = open();
    assert_eq!(engine.poll_timeout(), None);
    engine.expire(3 * MAX_DEADLINE_NS);
    assert_eq!(engine.live_calls(), 1);
    engine.refuse(CALLER, Status::new(Code::CANCELLED, ""));
    let with_deadline = Submission {
        deadline_ns: 5,
        ..opening(100)
    };
    engine.submit(0, APP, 0, with_deadline);
    drain(&mut engine);
    engine.expire(6);
    assert_eq!(failure(&drain(&mut engine)).code, Code::DEADLINE_EXCEEDED);
}

#[test]
fn the_rim_learns_what_a_request_is_and_where_it_lands() {
    let (mut engine, service) = engine();
    assert_eq!(engine.expected_request(CALLER), None);
    engine.submit(0, APP, 3, opening(100));
    let expected = engine.expected_request(CALLER).unwrap();
    assert_eq!((expected.handle, expected.lands), (3, None));
    let arriving = Submission {
        more: true,
        ..from_peer(9, 300)
    };
    engine.arrive(0, service, 0, Encoding::Protobuf, arriving);
    let mut want = ExpectedRequest {
        handle: 0,
        served: Some((service, 0)),
        encoding: Encoding::Protobuf,
        lands: Some(SERVER),
    };
    assert_eq!(engine.expected_request(FROM_PEER), Some(want));
    engine.service_chains_mut(service, 0).unwrap().request = Some(ChainId(1));
    want.lands = None;
    assert_eq!(engine.expected_request(FROM_PEER), Some(want));
}
