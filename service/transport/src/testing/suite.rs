//! The common behaviour of every transport's links.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tollgate_shm_abi::metadata::Metadata;

use super::*;
use crate::config::LinkSetup;
use crate::config::Role;
use crate::error::{Blame, LinkError};
use crate::io::{BodyOutcome, FlushOutcome, ReadOutcome};
use crate::{Part, limits};

/// How long a test waits for expected events.
const PATIENCE: Duration = Duration::from_secs(60);

/// A link with a daemon's loop.
pub struct Node<T> {
    /// The transport.
    pub io: T,
    /// Every event as text.
    pub said: Vec<String>,
    /// The returned tokens.
    pub sent: Vec<Token>,
    /// The large body being read, and its event's text.
    pub body: Option<(Vec<u8>, String)>,
    /// Whether large bodies are skipped.
    pub skips: bool,
    /// The bytes received at once.
    pub at_most: usize,
    /// Now, for the link, ns.
    started: Instant,
}

impl<T: LinkIo> Node<T> {
    /// A link before any exchange.
    pub fn new(io: T) -> Node<T> {
        Node {
            io,
            said: Vec::new(),
            sent: Vec::new(),
            body: None,
            skips: false,
            at_most: usize::MAX,
            started: Instant::now(),
        }
    }

    /// One turn: one read, all events, one flush.
    pub fn turn(&mut self) -> Result<(), LinkError> {
        self.read()?;
        while self.body.is_none() {
            let Some(event) = self.io.link().poll_event()? else {
                break;
            };
            let large = large(&event);
            let words = words(event);
            match large {
                Some(_) if self.skips => {
                    self.said.push(format!("{words} skipped"));
                    self.io.link().skip_body();
                }
                Some(len) => self.body = Some((vec![0; len], words)),
                None => self.said.push(words),
            }
        }
        self.io.flush()?;
        self.collect();
        let now_ns = self.started.elapsed().as_nanos() as u64;
        // A busy or emulated machine, or one that loses packets, isn't a silent peer: it gets more
        // time for the handshake.
        let link = self.io.link();
        link.tick(if link.is_ready() { now_ns } else { now_ns / 8 })
    }

    fn read(&mut self) -> Result<(), LinkError> {
        match &mut self.body {
            Some((body, words)) => {
                if let BodyOutcome::Complete { .. } = self.io.read_some_body(body, self.at_most)? {
                    self.said.push(format!("{words} {}", summary(body)));
                    self.body = None;
                }
            }
            None => {
                self.io.read_some(self.at_most)?;
            }
        }
        Ok(())
    }

    /// Takes the returned tokens.
    pub fn collect(&mut self) {
        while let Some(token) = self.io.poll_sent() {
            self.sent.push(token);
        }
    }

    /// Sleeps until there is work, at most this long; returns whether there is.
    pub fn wait(&mut self, at_most: Duration) -> Result<bool, LinkError> {
        Ok(!self.io.prepare_to_wait()? || self.is_called_within(at_most))
    }

    /// Sleeps until its descriptor is readable, at most this long, once it has prepared to wait.
    fn is_called_within(&self, at_most: Duration) -> bool {
        let events = match self.io.wants_writable() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let timeout = Timespec::try_from(at_most).unwrap();
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(self.io.as_fd(), events)],
            Some(&timeout),
        );
        ready.unwrap() > 0
    }
}

/// Repeats this until it breaks, within the time limit.
pub fn until<R>(what: &str, mut again: impl FnMut() -> ControlFlow<R>) -> R {
    let start = Instant::now();
    loop {
        if let ControlFlow::Break(result) = again() {
            return result;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Turns both ends until this holds.
pub fn turn_until<T: LinkIo>(
    what: &str,
    a: &mut Node<T>,
    b: &mut Node<T>,
    mut done: impl FnMut(&mut Node<T>, &mut Node<T>) -> bool,
) {
    until(what, || {
        a.turn().unwrap();
        b.turn().unwrap();
        match done(a, b) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
}

/// The configuration of a daemon, with a key if the testbed needs one.
pub fn configured<B: Testbed>(name: &str) -> LinkConfig {
    match B::NEEDS_KEY {
        true => LinkConfig {
            unprotected: B::UNPROTECTED,
            ..keyed(name, "a key of the tests")
        },
        false => config(name),
    }
}

/// Both ends of a ready link.
pub fn joined<B: Testbed>() -> (Node<B::Io>, Node<B::Io>) {
    let (a, b) = B::connect(&configured::<B>("a"), &configured::<B>("b"));
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    turn_until("the handshake", &mut a, &mut b, |a, b| {
        a.io.link().is_ready() && b.io.link().is_ready()
    });
    a.said.clear();
    b.said.clear();
    (a, b)
}

/// Turns one end until it fails.
pub fn turn_until_error<T: LinkIo>(node: &mut Node<T>) -> LinkError {
    until("an error", || match node.turn() {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    })
}

fn image<'a>(extents: &'a [Part<'a>]) -> Image<'a> {
    Image {
        inline: b"inline",
        extents,
        metadata: Metadata::default(),
    }
}

/// Small frames are sent together, and report the peer's liveness.
pub fn small_calls_share_a_turn<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    assert_eq!(a.io.link().peer_name(), Some("b"));
    for n in 0..100 {
        call(a.io.link(), n, b"payload");
    }
    assert_eq!(a.io.flush(), Ok(FlushOutcome::Done));
    turn_until("100 calls", &mut a, &mut b, |_, b| b.said.len() == 100);
    for n in [0, 99] {
        let expected = format!(r#"Call {n} bind 3 method 1 deadline 250000 inline 7: "payload""#);
        assert_eq!(b.said[n], expected);
    }
}

/// The same events as when the bytes are moved in memory.
pub fn every_kind_of_frame_arrives_as_it_was_said<B: Testbed>() {
    let expected = heard_in_memory();
    let (mut a, mut b) = joined::<B>();
    for n in 0..4 {
        call(b.io.link(), n, b"");
    }
    turn_until("b's calls", &mut a, &mut b, |a, _| a.said.len() == 4);
    say_everything(a.io.link());
    turn_until("the conversation", &mut a, &mut b, |_, b| {
        b.said.len() == expected.len()
    });
    assert_eq!(b.said, expected);
}

/// The conversation without a transport.
fn heard_in_memory() -> Vec<String> {
    let [mut a, mut b] = [(Role::Initiator, 1), (Role::Responder, 2)].map(|(role, nonce)| {
        let setup = LinkSetup {
            role,
            loopback: true,
            target: String::new(),
            address: ([127, 0, 0, 1], 7471).into(),
            nonce: [nonce; 32],
            now_ns: 0,
        };
        Link::new(&config("x"), &setup).unwrap()
    });
    hand_over(&mut a, &mut b);
    hand_over(&mut b, &mut a);
    for n in 0..4 {
        call(&mut b, n, b"");
    }
    say_everything(&mut a);
    let said = hand_over(&mut a, &mut b);
    // READY came before.
    assert_eq!(said.len(), 21);
    said
}

fn hand_over(from: &mut Link, to: &mut Link) -> Vec<String> {
    let (mut bytes, mut said) = (Vec::new(), Vec::new());
    from.transmit(&mut bytes, usize::MAX);
    let mut left = &bytes[..];
    loop {
        let taken = to.receive(left);
        left = &left[taken..];
        while let Some(event) = to.poll_event().unwrap() {
            let large = large(&event);
            let mut words = words(event);
            if let Some(len) = large {
                let mut body = vec![0; len];
                while !to.fill_body(&mut body).unwrap().is_empty() {
                    let taken = to.receive(left);
                    left = &left[taken..];
                }
                words = format!("{words} {}", summary(&body));
            }
            said.push(words);
        }
        if left.is_empty() {
            return said;
        }
    }
}

/// Messages larger than any buffer in between, from shared memory; their tokens come back in order.
pub fn large_extents_cross_a_full_connection_and_come_back<B: Testbed>() {
    cross_and_come_back::<B>(usize::MAX);
}

/// The same, for a receiver that takes little at once.
pub fn large_extents_may_be_received_in_pieces<B: Testbed>() {
    cross_and_come_back::<B>(10_007);
}

fn cross_and_come_back<B: Testbed>(at_most: usize) {
    let (mut a, mut b) = joined::<B>();
    (a.at_most, b.at_most) = (at_most, at_most);
    let bytes = noise(3, 2 << 20);
    let span = span(&bytes);
    let mut blocked = false;
    for n in 0..8 {
        call_with(a.io.link(), n, b"inline", &span);
        call(a.io.link(), 100 + n, b"between");
        // b doesn't read yet.
        blocked |= a.io.flush() == Ok(FlushOutcome::Blocked);
    }
    assert!(
        blocked && a.io.link().wants_write(),
        "16 MiB don't fit into what is on the way"
    );
    turn_until("all 16 calls", &mut a, &mut b, |a, b| {
        b.said.len() == 16 && a.sent.len() == 8
    });
    assert_eq!(a.sent, (0..8).map(Token).collect::<Vec<_>>());
    let body = [b"inline\0\0", &bytes[..]].concat();
    for pair in b.said.chunks(2) {
        assert!(
            pair[0].ends_with(&format!("large {}", summary(&body))),
            "{}",
            pair[0]
        );
        assert!(pair[1].ends_with("\"between\""));
    }
    let link = b.io.link();
    link.send_reply(0, false, &Image::inline(&body), Token(0))
        .unwrap();
    turn_until("the reply", &mut a, &mut b, |a, _| !a.said.is_empty());
    let expected = format!("Reply 0 inline {}: large {}", body.len(), summary(&body));
    assert_eq!(a.said, [expected]);
}

/// Sizes around every limit at which a transport may change its method, both ways at once, private
/// and shared parts mixed.
pub fn calls_of_all_sizes_arrive_in_order<B: Testbed>() {
    const EDGES: [usize; 9] = [
        0,
        200,
        limits::SHARE_MIN,
        4 << 10,
        16 << 10,
        limits::SMALL_BODY as usize,
        100_000,
        256 << 10,
        1 << 20,
    ];
    let (mut a, mut b) = joined::<B>();
    let bytes = noise(7, (1 << 20) + 8);
    let shared = span(&bytes);
    let mut expected = Vec::new();
    for (n, edge) in EDGES.iter().enumerate() {
        for (m, len) in [edge.saturating_sub(1), *edge, edge + 1]
            .into_iter()
            .enumerate()
        {
            let number = (n * 3 + m) as u64;
            let part = span(&bytes[..len.max(1)]);
            let extents = [
                Part::Private(&bytes[..m * 50]),
                Part::Shared {
                    span: &part,
                    at: len.max(1) - len,
                },
                Part::Shared {
                    span: &shared,
                    at: bytes.len() - 3,
                },
            ];
            for end in [&mut a, &mut b] {
                let link = end.io.link();
                link.send_call(&head(number), &image(&extents), Token(number))
                    .unwrap();
            }
            let mut body = b"inline".to_vec();
            let pieces = [
                &bytes[..m * 50],
                &bytes[len.max(1) - len..len.max(1)],
                &bytes[bytes.len() - 3..],
            ];
            for piece in pieces {
                body.resize(body.len().next_multiple_of(8), 0);
                body.extend_from_slice(piece);
            }
            let size = if body.len() > limits::SMALL_BODY as usize {
                "large "
            } else {
                ""
            };
            expected.push(format!(
                "Call {number} bind 3 method 1 deadline 250000 inline 6: {size}{}",
                summary(&body)
            ));
        }
        turn_until("calls of a size", &mut a, &mut b, |a, b| {
            a.said.len() == expected.len() && b.said.len() == expected.len()
        });
    }
    assert_eq!(a.said, expected);
    assert_eq!(b.said, expected);
}

/// A pending body must be read first.
pub fn a_body_must_be_read_before_the_next_read<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    call(a.io.link(), 1, &noise(1, 100_000));
    turn_until("the head", &mut a, &mut b, |_, b| b.body.is_some());
    assert_eq!(b.io.read_some(usize::MAX), Ok(ReadOutcome::BodyPending));
    let wrong = b.io.read_some_body(&mut [0; 3], usize::MAX);
    assert_eq!(
        wrong,
        Err(LinkError::BodyBuffer {
            len: 100_000,
            given: 3
        })
    );
    turn_until("the body", &mut a, &mut b, |_, b| !b.said.is_empty());
}

/// A skipped body passes, and the next event follows.
pub fn a_large_body_may_be_skipped<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    b.skips = true;
    let shared = span(&noise(5, 1 << 20));
    call_with(a.io.link(), 1, b"inline", &shared);
    call(a.io.link(), 2, b"after");
    turn_until("both calls", &mut a, &mut b, |_, b| b.said.len() == 2);
    assert!(b.said[0].ends_with("large skipped"), "{}", b.said[0]);
    assert!(b.said[1].ends_with("\"after\""), "{}", b.said[1]);
}

/// Reading without polling fills a buffer, which isn't the end.
pub fn unpolled_events_are_not_mistaken_for_the_end<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    for n in 0..8 {
        call(a.io.link(), n, &noise(1, limits::SMALL_BODY as usize));
    }
    until("a full buffer", || {
        a.turn().unwrap();
        b.io.read_some(usize::MAX).unwrap();
        match b.io.link().rx_space().is_empty() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let more = Ok(ReadOutcome::Data { more: true });
    assert_eq!(b.io.read_some(usize::MAX), more);
    turn_until("all calls", &mut a, &mut b, |_, b| b.said.len() == 8);
}

/// A peer that doesn't read accepts only what its buffers hold; the other direction is unaffected.
pub fn who_is_not_read_from_stops_and_loses_nothing<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    let payload = noise(2, 60_000);
    let mut said = 0;
    // The buffers of a, and those in between.
    let taken = until("a full connection", || {
        while !a.io.link().is_full() && a.io.link().credit().bytes > 100_000 {
            call(a.io.link(), said, &payload);
            said += 1;
        }
        let taken = a.io.link().taken();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            a.turn().unwrap();
            std::thread::yield_now();
        }
        match a.io.link().taken() == taken {
            true => ControlFlow::Break(taken),
            false => ControlFlow::Continue(()),
        }
    });
    assert!(
        taken < said * 60_000,
        "not all of {said} calls is on the way"
    );
    call(b.io.link(), 7, b"the other way");
    until("the other way", || {
        let _ = b.io.flush().unwrap();
        a.turn().unwrap();
        match a.said.is_empty() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    turn_until("all calls", &mut a, &mut b, |_, b| {
        b.said.len() as u64 == said
    });
    assert!(
        b.said
            .iter()
            .all(|words| words.ends_with(&summary(&payload)))
    );
}

/// The handshake belongs to the protocol, whatever the transport.
pub fn keys_are_proved_and_wrong_ones_refused<B: Testbed>() {
    let (a, b) = B::connect(
        &keyed("a", "the key of one host"),
        &keyed("b", "the key of another"),
    );
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    let mut errors = [None, None];
    until("both ends' errors", || {
        for (node, error) in [&mut a, &mut b].into_iter().zip(&mut errors) {
            if error.is_none() {
                *error = node.turn().err();
            }
            // The failing end tells the other the reason.
            let _ = node.io.flush();
        }
        match errors.iter().all(Option::is_some) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let [a_says, b_says] = errors.map(|error| error.unwrap().to_string());
    assert_eq!(a_says, r#"peer "b" holds a different key"#);
    assert_eq!(b_says, format!("the peer refused the link: {a_says}"));
}

/// Between calls, and within a body.
pub fn a_close_is_the_networks_fault_wherever_it_comes<B: Testbed>() {
    let (a, mut b) = joined::<B>();
    drop(a);
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), Blame::Network, "{error}");

    let (mut a, mut b) = joined::<B>();
    // More than the kernel's buffers hold.
    let shared = span(&noise(1, 3 << 20));
    let extents = [Part::Shared {
        span: &shared,
        at: 0,
    }; 5];
    let link = a.io.link();
    link.send_call(&head(1), &image(&extents), Token(1))
        .unwrap();
    turn_until("the head", &mut a, &mut b, |_, b| b.body.is_some());
    drop(a);
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), Blame::Network, "{error}");
    assert!(b.said.is_empty(), "half a body isn't delivered");
}

/// Every token comes back once, whatever happened to its frame.
pub fn what_an_ended_link_held_is_free<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    let shared = span(&noise(4, 3 << 20));
    for n in 0..10 {
        call_with(a.io.link(), n, b"inline", &shared);
    }
    turn_until("the first head", &mut a, &mut b, |_, b| b.body.is_some());
    assert!(a.sent.len() < 10, "most of it waits");
    drop(b);
    let error = turn_until_error(&mut a);
    assert_eq!(error.blame(), Blame::Network, "{error}");
    a.collect();
    assert_eq!(a.sent, (0..10).map(Token).collect::<Vec<_>>());
    assert_eq!(turn_until_error(&mut a), error, "it stays so");
}

/// The reason for a link's end reaches the peer.
pub fn a_sentence_reaches_the_peer_before_the_end<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    // b was never called.
    let link = a.io.link();
    link.send_reply(9, false, &Image::inline(b""), Token(0))
        .unwrap();
    a.io.flush().unwrap();
    let error = turn_until_error(&mut b);
    assert_eq!(error, LinkError::Unasked { call: 9 });
    let _ = b.io.flush();
    until("the sentence", || {
        let _ = b.io.flush();
        let _ = a.turn();
        match a.said.is_empty() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    assert!(
        a.said[0].contains("no call was unanswered"),
        "{}",
        a.said[0]
    );
}

/// Waiting uses no turns, and ends when there is work.
pub fn an_idle_link_wakes_when_something_comes<B: Testbed>() {
    let (mut a, mut b) = joined::<B>();
    // The rest of the handshake, until both sleep.
    until("silence", || {
        a.turn().unwrap();
        b.turn().unwrap();
        let awake = a.wait(Duration::ZERO).unwrap() || b.wait(Duration::from_millis(100)).unwrap();
        match awake {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    for n in 1..4 {
        call(a.io.link(), n, b"wake up");
        a.io.flush().unwrap();
        let mut turns = 0;
        until("the call", || {
            // Only its descriptor wakes a sleeping end: it looks at no memory meanwhile.
            if b.io.prepare_to_wait().unwrap() {
                until("a wake-up", || {
                    if b.is_called_within(Duration::from_millis(20)) {
                        return ControlFlow::Break(());
                    }
                    // The news that b sleeps may come after the call: then a has work, and wakes b.
                    if a.wait(Duration::ZERO).unwrap() {
                        a.turn().unwrap();
                    }
                    ControlFlow::Continue(())
                });
            }
            b.turn().unwrap();
            turns += 1;
            match b.said.len() as u64 == n {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        assert!(turns < 100, "{turns} turns for one call");
        while b.wait(Duration::from_millis(20)).unwrap() {
            b.turn().unwrap();
        }
    }
}
