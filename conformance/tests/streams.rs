//! Calls of all four types between real applications, on one host and across two: the
//! interoperability service's responses come in order and complete.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_channel::mpsc;
use futures_util::future::Either;
use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use rustix::process::Signal;
use tollgate::{
    Channel, Code, Held, Received, Reply, Request, Response, Session, SessionOptions, Status,
    Streaming, block_on,
};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::interop::{
    Answer, Ask, Semantics, SemanticsClient, SemanticsServer, Server,
};
use tollgate_conformance::testbed::{Daemon, SOON, Testbed, eventually, proto_file};

/// A separate server on each host, and a session to call from.
struct Bed {
    hosts: Hosts,
    session: Session,
    servers: [Session; 2],
}

fn open(daemon: &Daemon, token: &str) -> Session {
    open_with(daemon, token, 8 << 20)
}

fn open_with(daemon: &Daemon, token: &str, heap_bytes: u64) -> Session {
    let mut options = SessionOptions::new(daemon.socket(), token);
    options.send_heap_bytes = heap_bytes;
    options.receive_heap_bytes = heap_bytes;
    Session::open(options).unwrap()
}

fn serve(session: &Session) {
    let server = tollgate::Server::new(session).add_service(SemanticsServer::new(Server));
    block_on(session, server.bind()).unwrap();
}

/// Nothing received is still held, whatever happened.
impl Drop for Bed {
    fn drop(&mut self) {
        let held = || [&self.session, &self.servers[0], &self.servers[1]].map(Session::held);
        if !std::thread::panicking() {
            let nothing = eventually(SOON, || held() == [Held::default(); 3]);
            assert!(nothing.is_ok(), "{:?}", held());
        }
    }
}

impl Bed {
    fn new() -> Bed {
        Bed::with_heaps(8 << 20)
    }

    fn with_heaps(bytes: u64) -> Bed {
        let hosts = Hosts::new();
        let servers = [
            open_with(&hosts.a, &hosts.tokens[0], bytes),
            open_with(&hosts.b, &hosts.tokens[1], bytes),
        ];
        servers.iter().for_each(serve);
        let session = open_with(&hosts.a, &hosts.tokens[0], bytes);
        Bed {
            hosts,
            session,
            servers,
        }
    }

    /// Does the same with the server of this host, and with that of the other.
    fn with_both(&self, test: impl AsyncFn(SemanticsClient)) {
        for to in [String::new(), self.hosts.b.listen().to_string()] {
            let client = SemanticsClient::new(Channel::new(&self.session, &to));
            block_on(&self.session, test(client));
        }
    }

    /// The same with a client of another session.
    fn with_both_beside(&self, test: impl AsyncFn(SemanticsClient, SemanticsClient)) {
        let other = open(&self.hosts.a, &self.hosts.tokens[0]);
        for to in [String::new(), self.hosts.b.listen().to_string()] {
            let [client, beside] = [&self.session, &other]
                .map(|session| SemanticsClient::new(Channel::new(session, &to)));
            block_on(&self.session, test(client, beside));
        }
    }
}

fn ask(number: u64, responses: u32, response_bytes: u32) -> Ask {
    Ask {
        number,
        responses,
        response_bytes,
        ..Ask::default()
    }
}

async fn all(mut answers: Streaming<Answer>) -> Result<Vec<Answer>, Status> {
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(answer.to_owned());
    }
    Ok(all)
}

#[test]
fn calls_of_all_four_types_are_answered() {
    Bed::new().with_both(async |client| {
        let reply = client.unary(ask(7, 1, 5)).await.unwrap();
        let view = reply.get_ref().view();
        assert_eq!((view.number(), view.payload()), (7, &[7; 5][..]));

        let asks = (1..=100).map(|number| Ask {
            number,
            payload: vec![number as u8],
            ..Ask::default()
        });
        let reply = client.collect(stream::iter(asks)).await.unwrap();
        let view = reply.get_ref().view();
        let want: Vec<u8> = (1..=100).collect();
        assert_eq!((view.number(), view.payload()), (5050, &want[..]));
        // No requests at all.
        let reply = client.collect(stream::iter([])).await.unwrap();
        assert_eq!(reply.get_ref().to_owned(), Answer::default());

        let reply = client.spread(ask(1000, 300, 10)).await.unwrap();
        let answers = all(reply.into_inner()).await.unwrap();
        let numbers: Vec<_> = answers.iter().map(|answer| answer.number).collect();
        assert_eq!(numbers, (1000..1300).collect::<Vec<_>>());
        assert!(
            answers
                .iter()
                .all(|a| a.payload == vec![a.number as u8; 10])
        );
        let reply = client.spread(ask(0, 0, 0)).await.unwrap();
        assert_eq!(all(reply.into_inner()).await.unwrap(), []);

        let asks = (0..50).map(|k| ask(k * 10, 3, 100));
        let reply = client.chat(stream::iter(asks)).await.unwrap();
        let numbers: Vec<_> = all(reply.into_inner()).await.unwrap();
        let want = (0..50).flat_map(|k| (0..3).map(move |n| k * 10 + n));
        let numbers = numbers.into_iter().map(|answer| answer.number);
        assert!(numbers.eq(want));
    });
}

/// Each side waits for the other, so nothing can be held back for batching.
#[test]
fn a_conversation_goes_back_and_forth() {
    Bed::new().with_both(async |client| {
        let (mut asks, requests) = mpsc::channel(1);
        let reply = client.chat(requests).await.unwrap();
        let mut answers = reply.into_inner();
        for number in 0..1000 {
            asks.try_send(ask(number, 1, 10)).unwrap();
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), number);
        }
        drop(asks);
        assert!(answers.message().await.unwrap().is_none());
    });
}

#[test]
fn metadata_goes_both_ways_and_trailers_come_last() {
    Bed::new().with_both(async |client| {
        let mut request = Request::new(Ask {
            echo: vec!["head".to_owned(), "blob-bin".to_owned()],
            echo_as_trailers: vec!["tail".to_owned(), "blob-bin".to_owned()],
            ..ask(1, 2, 0)
        });
        for (key, value) in [
            ("head", "a"),
            ("tail", "b"),
            ("head", "c"),
            ("unasked", "d"),
        ] {
            request.metadata_mut().append(key, value).unwrap();
        }
        request
            .metadata_mut()
            .insert_bin("blob-bin", &[0, 255])
            .unwrap();
        let check = |head: &tollgate::MetadataMap, tail: &tollgate::MetadataMap| {
            assert_eq!(
                format!("{head:?}"),
                r#"{"head": "a", "head": "c", "blob-bin": [0, 255]}"#
            );
            assert_eq!(
                format!("{tail:?}"),
                r#"{"tail": "b", "blob-bin": [0, 255]}"#
            );
        };
        // For one reply, which then needs two steps.
        let reply = client.unary(request.clone()).await.unwrap();
        assert_eq!(reply.get_ref().view().number(), 1);
        check(reply.metadata(), reply.trailers());
        // For a stream.
        let reply = client.spread(request.clone()).await.unwrap();
        let (head, mut answers) = reply.into_parts();
        assert!(answers.trailers().is_none(), "not before the end");
        while answers.message().await.unwrap().is_some() {}
        check(&head, &answers.trailers().unwrap());
        // For an error, with details.
        let (metadata, message) = request.into_parts();
        let mut failing = Request::new(Ask {
            code: 9,
            message: "not yet".to_owned(),
            details: vec![8, 9],
            ..message
        });
        *failing.metadata_mut() = metadata;
        for status in [
            client.unary(failing.clone()).await.unwrap_err(),
            all(client.spread(failing).await.unwrap().into_inner())
                .await
                .unwrap_err(),
        ] {
            assert_eq!(
                (status.code, status.message()),
                (Code::FAILED_PRECONDITION, "not yet")
            );
            assert_eq!(status.details(), [8, 9]);
            assert_eq!(status.metadata.view().get("tail"), Some(&b"b"[..]));
        }
    });
}

#[test]
fn an_error_ends_a_stream_after_what_came_before() {
    Bed::new().with_both(async |client| {
        let failing = Ask {
            code: 5,
            message: "no more".to_owned(),
            ..ask(1, 3, 0)
        };
        let mut answers = client.spread(failing.clone()).await.unwrap().into_inner();
        for number in 1..=3 {
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), number);
        }
        for _ in 0..2 {
            let status = answers.message().await.unwrap_err();
            assert_eq!(
                (status.code, status.message()),
                (Code::NOT_FOUND, "no more")
            );
        }
        // The server answers before it has read everything: the rest is dropped.
        let asks = stream::iter((0..10_000).map(move |k| match k {
            3 => failing.clone(),
            _ => ask(k, 1, 0),
        }));
        let status = client.collect(asks).await.unwrap_err();
        assert_eq!(status.code, Code::NOT_FOUND);
    });
}

#[test]
fn large_messages_stream_too() {
    Bed::new().with_both(async |client| {
        let large = 3 << 20;
        let answers = client.spread(ask(1, 4, large)).await.unwrap().into_inner();
        let mut answers = pin!(answers);
        let mut number = 1;
        while let Some(answer) = answers.next().await {
            let answer = answer.unwrap();
            let payload = answer.view().payload();
            assert_eq!((payload.len(), payload[0]), (large as usize, number));
            number += 1;
        }
        assert_eq!(number, 5);
        let asks = (0..3).map(|_| Ask {
            payload: vec![1; 2 << 20],
            ..ask(1, 0, 0)
        });
        let reply = client.collect(stream::iter(asks)).await.unwrap();
        assert_eq!(reply.get_ref().view().payload().len(), 6 << 20);
    });
}

#[test]
fn a_deadline_ends_a_stream_on_both_sides() {
    Bed::new().with_both(async |client| {
        let (asks, requests) = mpsc::channel::<Ask>(1);
        let mut request = Request::new(requests);
        // Long enough to reach its handler.
        request.set_timeout(Duration::from_secs(2));
        let began = Instant::now();
        let reply = client.chat(request).await.unwrap();
        let status = reply.into_inner().message().await.unwrap_err();
        assert_eq!(status.code, Code::DEADLINE_EXCEEDED);
        assert!(began.elapsed() < SOON);
        drop(asks);
    });
}

/// A slow reader stops its own sender, and other calls of the same session continue.
#[test]
fn a_slow_reader_stops_its_writer_and_nobody_else() {
    Bed::new().with_both(async |client| {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let asks = stream::iter(0..).map(move |k| {
            count.fetch_add(1, Ordering::Relaxed);
            ask(k, 1, 1000)
        });
        let mut answers = client.chat(asks).await.unwrap().into_inner();
        // The answers aren't read: the server stops, so its requests aren't read either.
        let stuck = settled(&made, &client).await;
        assert!(stuck < 1000, "{stuck} requests were made");
        for number in 0..100 {
            let reply = client.unary(ask(number, 1, 1000)).await.unwrap();
            assert_eq!(reply.get_ref().view().number(), number);
        }
        assert_eq!(settled(&made, &client).await, stuck);
        for number in 0..5_000 {
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), number);
        }
        assert!(made.load(Ordering::Relaxed) > stuck);
    });
}

/// An application that holds received messages gets more when it returns some, and waiting messages
/// come in order.
#[test]
fn answers_wait_until_their_caller_has_room() {
    // About four of them fill the heap.
    const LARGE: u32 = 200_000;
    Bed::with_heaps(1 << 20).with_both_beside(async |client, beside| {
        let mut kept = VecDeque::new();
        let mut waiting = loop {
            let mut next = Box::pin(client.unary(ask(1, 1, LARGE)));
            match in_time(next.as_mut(), &beside).await {
                Some(reply) => kept.push_back(reply.unwrap()),
                None => break next,
            }
        };
        assert!((2..6).contains(&kept.len()), "{} fit", kept.len());
        let mut behind = pin!(client.unary(ask(2, 1, 1)));
        assert!(in_time(behind.as_mut(), &beside).await.is_none());
        assert!(in_time(waiting.as_mut(), &beside).await.is_none());
        kept.pop_front();
        assert_eq!(waiting.await.unwrap().get_ref().view().number(), 1);
        assert_eq!(behind.await.unwrap().get_ref().view().number(), 2);
        // So do the messages of a stream, and its end.
        let answers = client.spread(ask(10, 5, LARGE)).await.unwrap().into_inner();
        drop(kept);
        let numbers = all(answers).await.unwrap().into_iter().map(|a| a.number);
        assert!(numbers.eq(10..15));
        // A message that can never fit doesn't wait.
        let status = client.unary(ask(1, 1, 2 << 20)).await.unwrap_err();
        assert_eq!(status.code, Code::RESOURCE_EXHAUSTED, "{status}");
    });
}

/// A busy server gets more when it has finished.
#[test]
fn calls_wait_until_their_server_has_room() {
    Bed::with_heaps(1 << 20).with_both(async |client| {
        let calls = (0..12).map(|number| {
            let client = client.clone();
            async move {
                let request = Ask {
                    payload: vec![1; 200_000],
                    delay_ms: 20,
                    ..ask(number, 1, 1)
                };
                client
                    .unary(request)
                    .await
                    .unwrap()
                    .get_ref()
                    .view()
                    .number()
            }
        });
        let numbers: Vec<_> = calls.collect::<FuturesUnordered<_>>().collect().await;
        assert_eq!(numbers.iter().sum::<u64>(), 66);
        // A call that is cancelled while it waits never reaches its handler, and doesn't block
        // others.
        let large = Ask {
            payload: vec![1; 600_000],
            delay_ms: 100,
            ..ask(1, 1, 1)
        };
        let first = client.unary(large.clone());
        let mut request = Request::new(large);
        request.set_timeout(Duration::from_millis(20));
        let (first, second) = futures_util::future::join(first, client.unary(request)).await;
        first.unwrap();
        assert_eq!(second.unwrap_err().code, Code::DEADLINE_EXCEEDED);
        client.unary(ask(1, 1, 1)).await.unwrap();
    });
}

/// Calls that are answered while other work takes the same path, so that everything involved has
/// had its turn by then.
const BESIDE: usize = 50;

/// Events that depend on timers, not on turns, have happened by then.
const MOMENT: Duration = Duration::from_millis(100);

/// Until that many calls are answered and the time has passed.
async fn others_are_answered(client: &SemanticsClient) {
    let (began, mut answered) = (Instant::now(), 0);
    while answered < BESIDE || began.elapsed() < MOMENT {
        client.unary(ask(1, 1, 1)).await.unwrap();
        answered += 1;
    }
}

/// The output of a future, if it is ready before others are answered.
async fn in_time<F: Future>(future: Pin<&mut F>, beside: &SemanticsClient) -> Option<F::Output> {
    let others = pin!(others_are_answered(beside));
    match futures_util::future::select(future, others).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

/// A count that doesn't rise any more.
async fn settled(count: &AtomicUsize, client: &SemanticsClient) -> usize {
    loop {
        let before = count.load(Ordering::Relaxed);
        others_are_answered(client).await;
        if count.load(Ordering::Relaxed) == before {
            return before;
        }
    }
}

/// Answers with the milliseconds until its caller's deadline, from a nested call with a timeout of
/// an hour; without another server it answers itself.
struct Hurried(Option<SemanticsClient>);

impl Hurried {
    async fn time_left(&self, left: Option<Duration>, is_stream: bool) -> Reply<Answer> {
        let Some(next) = &self.0 else {
            let number = left.map_or(u64::MAX, |left| left.as_millis() as u64);
            let payload = Vec::new();
            return Ok(Response::new(Answer { number, payload }));
        };
        let reply = match is_stream {
            true => next.collect(stream::iter([Ask::default()])).await?,
            false => {
                let mut request = Request::new(Ask::default());
                request.set_timeout(Duration::from_secs(3600));
                next.unary(request).await?
            }
        };
        Ok(Response::new(reply.get_ref().to_owned()))
    }
}

impl Semantics for Hurried {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        self.time_left(request.timeout(), false).await
    }

    async fn collect(&self, requests: Request<Streaming<Ask>>) -> Reply<Answer> {
        self.time_left(requests.timeout(), true).await
    }

    type SpreadStream = stream::Empty<Result<Answer, Status>>;

    async fn spread(&self, _: Request<Received<Ask>>) -> Reply<Self::SpreadStream> {
        Ok(Response::new(stream::empty()))
    }

    type ChatStream = stream::Empty<Result<Answer, Status>>;

    async fn chat(&self, _: Request<Streaming<Ask>>) -> Reply<Self::ChatStream> {
        Ok(Response::new(stream::empty()))
    }
}

#[test]
fn a_deadline_passes_to_the_calls_that_a_handler_makes() {
    let hosts = Hosts::new();
    let [front, behind] = [(&hosts.a, 0), (&hosts.b, 1)]
        .map(|(daemon, token): (&Daemon, usize)| open(daemon, &hosts.tokens[token]));
    let to_b = Channel::new(&front, &hosts.b.listen().to_string());
    let servers = [
        (&behind, Hurried(None)),
        (&front, Hurried(Some(SemanticsClient::new(to_b)))),
    ];
    for (session, server) in servers {
        let server = tollgate::Server::new(session).add_service(SemanticsServer::new(server));
        block_on(session, server.bind()).unwrap();
    }
    let session = open(&hosts.a, &hosts.tokens[0]);
    let client = SemanticsClient::new(Channel::new(&session, ""));
    block_on(&session, async {
        for seconds in [5, 50] {
            let timeout = Duration::from_secs(seconds);
            let mut request = Request::new(Ask::default());
            request.set_timeout(timeout);
            let one = client.unary(request).await.unwrap();
            let mut requests = Request::new(stream::iter([Ask::default()]));
            requests.set_timeout(timeout);
            let other = client.collect(requests).await.unwrap();
            for left in [one, other].map(|reply| reply.get_ref().view().number()) {
                assert!(
                    (1..=seconds * 1000).contains(&left),
                    "{left} ms of {seconds} s"
                );
            }
        }
        // Without a deadline the nested call has its own, or none.
        let left = client.unary(Ask::default()).await.unwrap();
        assert!(left.get_ref().view().number() > 3_000_000);
    });
}

/// Servers come and go while calls flow, and none is lost.
#[test]
fn a_server_that_is_drained_answers_what_it_has_and_others_take_over() {
    let hosts = Hosts::new();
    let session = open(&hosts.a, &hosts.tokens[0]);
    let client = SemanticsClient::new(Channel::new(&session, &hosts.b.listen().to_string()));
    let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let serve_until = || {
        let server = open(&hosts.b, &hosts.tokens[1]);
        let (signal, signalled) = futures_channel::oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let bound = tollgate::Server::new(&server).add_service(SemanticsServer::new(Server));
            let signal = async move {
                ready.send(()).unwrap();
                let _sent = signalled.await;
            };
            block_on(&server, bound.serve_with_shutdown(signal))
        });
        is_ready.recv_timeout(SOON).unwrap();
        (signal, thread)
    };
    let mut serving = serve_until();
    let load = {
        let (client, session) = (client.clone(), session.clone());
        let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
        std::thread::spawn(move || {
            while stop.load(Ordering::Relaxed) == 0 {
                let slow = (0..4).map(|k| {
                    client.unary(Ask {
                        delay_ms: 5,
                        ..ask(k, 1, 100)
                    })
                });
                let spread = client.spread(ask(1, 50, 100));
                block_on(&session, async {
                    for reply in futures_util::future::join_all(slow).await {
                        reply.unwrap();
                    }
                    assert_eq!(
                        all(spread.await.unwrap().into_inner()).await.unwrap().len(),
                        50
                    );
                });
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    for _ in 0..5 {
        let before = done.load(Ordering::Relaxed);
        let next = serve_until();
        let (signal, thread) = std::mem::replace(&mut serving, next);
        signal.send(()).unwrap();
        thread.join().unwrap().unwrap();
        let began = Instant::now();
        while done.load(Ordering::Relaxed) < before + 3 {
            assert!(began.elapsed() < SOON && !load.is_finished(), "calls go on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    stop.store(1, Ordering::Relaxed);
    load.join().unwrap();
    // The last server, with a call in flight: that is answered, and the next finds no server.
    let (signal, thread) = serving;
    block_on(&session, async {
        let (mut asks, requests) = mpsc::channel(1);
        let mut answers = client.chat(requests).await.unwrap().into_inner();
        let mut chat = async |number| {
            asks.try_send(ask(number, 1, 1)).unwrap();
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), number);
        };
        chat(7).await;
        signal.send(()).unwrap();
        let refused = loop {
            match client.unary(ask(1, 1, 1)).await {
                Ok(_) => {}
                Err(status) => break status,
            }
        };
        assert_eq!(refused.code, Code::UNAVAILABLE, "{refused}");
        chat(8).await;
        drop(asks);
        assert!(answers.message().await.unwrap().is_none());
    });
    thread.join().unwrap().unwrap();
}

/// The command line prints each answer of a stream as it comes, and sends one request per line.
#[test]
fn the_command_line_calls_methods_of_all_four_types() {
    let bed = Bed::new();
    let proto = proto_file("interop.proto");
    let run = |method: &str, json: &str| {
        let (shown, to) = (
            proto.display().to_string(),
            bed.hosts.b.listen().to_string(),
        );
        let method = format!("interop.Semantics/{method}");
        let line = [
            "call",
            "--token",
            &bed.hosts.tokens[0],
            "--proto",
            &shown,
            "--to",
            &to,
        ];
        let tail = ["--show-metadata", "--metadata", "tail=x", &method, json];
        let outcome = bed.hosts.a.tollgate([&line[..], &tail[..]].concat());
        (outcome.code, outcome.out)
    };
    let none = r#"{"metadata":{}}"#;
    let answer = |number: u32| format!(r#"{{"number":"{number}"}}"#);
    let told = run("Unary", r#"{"number": 3, "responses": 1}"#);
    assert_eq!(told, (0, format!("{}\n{none}\n", answer(3))));
    let told = run(
        "Spread",
        r#"{"number": 3, "responses": 2, "echo_as_trailers": ["tail"]}"#,
    );
    let trailers = r#"{"metadata":{"tail":["x"]}}"#;
    assert_eq!(
        told,
        (
            0,
            format!("{}\n{}\n{none}\n{trailers}\n", answer(3), answer(4))
        )
    );
    let told = run("Collect", "{\"number\": 3}\n{\"number\": 4}\n");
    assert_eq!(told, (0, format!("{}\n{none}\n", answer(7))));
    let told = run(
        "Spread",
        r#"{"number": 3, "responses": 1, "code": 5, "message": "gone"}"#,
    );
    assert_eq!(told, (5, format!("{}\n", answer(3))));
}

/// Methods of all types, with the same type for requests and replies.
const TALK: &str = r#"syntax = "proto3"; package talk;
service Talk {
  rpc Say(Word) returns (Word);
  rpc Tell(stream Word) returns (Word);
  rpc List(Word) returns (stream Word);
  rpc Chat(stream Word) returns (stream Word);
}
message Word { string text = 1; }
"#;

#[test]
fn the_command_line_serves_methods_of_all_four_types() {
    let hosts = Hosts::new();
    let bed = Testbed::new();
    let proto = bed.file("talk.proto", TALK).display().to_string();
    let to = hosts.b.listen().to_string();
    let serve = |answer: [&str; 2]| {
        let service = ["--proto", &proto, "--service", "talk.Talk"];
        let more = ["--print-requests", "--metadata", "desk=front"];
        let token = ["--token", &hosts.tokens[1]];
        let answer = answer.into_iter().filter(|argument| !argument.is_empty());
        hosts
            .b
            .serve(token.into_iter().chain(service).chain(more).chain(answer))
    };
    let call = |method: &str, json: &str| {
        let method = format!("talk.Talk/{method}");
        let line = ["call", "--token", &hosts.tokens[0], "--proto", &proto];
        let line = line.into_iter().chain(["--to", &to]);
        let outcome = hosts
            .a
            .tollgate(line.chain(["--show-metadata", &method, json]));
        (outcome.code, outcome.out)
    };
    let words = |texts: &[&str]| {
        let word = |text: &&str| format!("{{\"text\":\"{text}\"}}\n");
        texts.iter().map(word).collect::<String>()
    };
    let came = |texts: &[&str]| (0, words(texts) + "{\"metadata\":{\"desk\":[\"front\"]}}\n");

    let echoing = serve(["--echo", ""]);
    assert_eq!(call("Say", &words(&["a"])), came(&["a"]));
    assert_eq!(call("Tell", &words(&["a", "b"])), came(&["b"]));
    assert_eq!(call("List", &words(&["a"])), came(&["a"]));
    assert_eq!(
        call("Chat", &words(&["a", "b", "c"])),
        came(&["a", "b", "c"])
    );
    let printed = echoing.said();
    let requests: Vec<_> = printed
        .iter()
        .filter(|line| line.starts_with('{'))
        .collect();
    assert_eq!(requests.len(), 1 + 2 + 1 + 3, "{requests:?}");
    let (code, _) = call("Tell", "");
    assert_eq!(code, 3, "nothing can be echoed");
    drop(echoing);

    let mut fixed = serve(["--reply", "{\"text\": \"x\"}\n{\n\"text\": \"y\"}"]);
    assert_eq!(call("List", &words(&["a"])), came(&["x", "y"]));
    assert_eq!(
        call("Chat", &words(&["a", "b"])),
        came(&["x", "y", "x", "y"])
    );
    // One reply isn't two.
    assert_eq!(call("Say", &words(&["a"])).0, 12);
    fixed.signal(Signal::TERM);
    assert!(fixed.ended(SOON).is_some_and(|end| end.success()));

    let _one = serve(["--reply", "{\"text\": \"x\"}"]);
    assert_eq!(call("Say", &words(&["a"])), came(&["x"]));
    assert_eq!(call("Tell", &words(&["a", "b"])), came(&["x"]));
    assert_eq!(call("Chat", ""), came(&[]));
}

/// Each side waits for the other; and it drains when it is stopped.
#[test]
fn the_command_line_answers_requests_as_they_come() {
    let hosts = Hosts::new();
    let proto = proto_file("interop.proto").display().to_string();
    let service = ["--proto", &proto, "--service", "interop.Semantics"];
    let token = ["--token", &hosts.tokens[1], "--reply", r#"{"number": 7}"#];
    let mut serving = hosts.b.serve(token.into_iter().chain(service));
    let session = open(&hosts.a, &hosts.tokens[0]);
    let client = SemanticsClient::new(Channel::new(&session, &hosts.b.listen().to_string()));
    block_on(&session, async {
        let (mut asks, requests) = mpsc::channel(1);
        let mut answers = client.chat(requests).await.unwrap().into_inner();
        for time in 0..3 {
            asks.try_send(Ask::default()).unwrap();
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), 7);
            drop(answer);
            if time == 1 {
                serving.signal(Signal::TERM);
                while client.unary(Ask::default()).await.is_ok() {}
            }
        }
        drop(asks);
        assert!(answers.message().await.unwrap().is_none());
    });
    assert!(serving.ended(SOON).is_some_and(|end| end.success()));
}

/// A server of one method that reports the end of its handler.
struct Watched {
    began: std::sync::mpsc::Sender<()>,
    ended: std::sync::mpsc::Sender<()>,
}

struct Ends(std::sync::mpsc::Sender<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        let _test_is_over = self.0.send(());
    }
}

impl tollgate::Service for Watched {
    fn info(&self) -> tollgate::ServiceInfo<'_> {
        tollgate_conformance::interop::SEMANTICS
    }

    fn call(&self, _: usize, call: tollgate::Incoming) -> tollgate::HandlerFuture {
        let ends = Ends(self.ended.clone());
        self.began.send(()).unwrap();
        Box::pin(async move {
            let (mut requests, _responder) = call.into_stream();
            while let Ok(Some(_)) = requests.next().await {}
            std::future::pending::<()>().await;
            drop(ends);
        })
    }
}

#[test]
fn a_caller_that_gives_up_reaches_the_handler() {
    let hosts = Hosts::new();
    let ((began, begins), (ended, ends)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let server = open(&hosts.b, &hosts.tokens[1]);
    let service = Watched { began, ended };
    block_on(&server, server.bind_server(service)).unwrap();
    let session = open(&hosts.a, &hosts.tokens[0]);
    let client = SemanticsClient::new(Channel::new(&session, &hosts.b.listen().to_string()));
    for is_stream in [true, false] {
        let (_asks, requests) = mpsc::channel::<Ask>(1);
        block_on(&session, async {
            let chat = client.chat(requests);
            let collect = client.collect(stream::iter([ask(1, 1, 1)]));
            let mut call = pin!(async {
                match is_stream {
                    true => chat.await.map(|_| ()),
                    false => collect.await.map(|_| ()),
                }
            });
            std::future::poll_fn(|cx| {
                assert!(call.as_mut().poll(cx).is_pending());
                match begins.try_recv() {
                    Ok(()) => Poll::Ready(()),
                    Err(_) => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                }
            })
            .await;
            assert!(ends.try_recv().is_err());
        });
        // The call's future was dropped.
        ends.recv_timeout(SOON).unwrap();
    }
}

#[test]
fn a_daemon_that_dies_ends_its_streams() {
    let mut bed = Bed::new();
    let to = bed.hosts.b.listen().to_string();
    let client = SemanticsClient::new(Channel::new(&bed.session, &to));
    let (mut asks, requests) = mpsc::channel(1);
    let session = bed.session.clone();
    let mut answers = block_on(&session, async {
        let mut answers = client.chat(requests).await.unwrap().into_inner();
        asks.try_send(ask(1, 1, 1)).unwrap();
        answers.message().await.unwrap().unwrap();
        answers
    });
    bed.hosts.b.process().kill();
    let status = block_on(&session, answers.message()).unwrap_err();
    assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
}
