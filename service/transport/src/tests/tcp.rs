//! The same over real sockets of the loopback interface.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::io::{BodyOutcome, FlushOutcome, OpenError, ReadOutcome, TcpLink};
use crate::{Part, limits};

/// A link over TCP, with the loop that a daemon would run.
struct Node {
    tcp: TcpLink,
    said: Vec<String>,
    body: Option<(Vec<u8>, String)>,
    /// Bytes that it receives at once.
    at_most: usize,
}

impl Node {
    fn new(tcp: TcpLink) -> Node {
        Node {
            tcp,
            said: Vec::new(),
            body: None,
            at_most: usize::MAX,
        }
    }

    /// One turn: at most one recv, all events, one flush. Returns whether bytes moved in.
    fn turn(&mut self) -> Result<bool, LinkError> {
        let moved = match &mut self.body {
            Some((body, words)) => match self.tcp.read_some_body(body, self.at_most)? {
                BodyOutcome::Complete { .. } => {
                    self.said.push(format!("{words} {}", summary(body)));
                    self.body = None;
                    true
                }
                BodyOutcome::More => true,
                BodyOutcome::Blocked => false,
            },
            None => self.tcp.read_some(self.at_most)? != ReadOutcome::Blocked,
        };
        while self.body.is_none() {
            let Some(event) = self.tcp.link.poll_event()? else {
                break;
            };
            let large = large(&event);
            let words = words(event);
            match large {
                Some(len) => self.body = Some((vec![0; len], words)),
                None => self.said.push(words),
            }
        }
        self.tcp.flush()?;
        Ok(moved)
    }

    fn wait(&self) {
        let events = if self.tcp.wants_write() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        poll(
            &mut [PollFd::from_borrowed_fd(self.tcp.as_fd(), events)],
            Some(&timeout),
        )
        .unwrap();
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "waited in vain for {what}"
        );
    }
}

/// Both ends of a ready link.
fn joined() -> (Node, Node) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpLink::connect(listener.local_addr().unwrap(), &config("a"), 0).unwrap();
    let b = TcpLink::accept(listener.accept().unwrap().0, &config("b"), 0).unwrap();
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    until("the handshake", || {
        a.turn().unwrap();
        b.turn().unwrap();
        a.tcp.link.is_ready() && b.tcp.link.is_ready()
    });
    a.said.clear();
    b.said.clear();
    (a, b)
}

/// A peer that isn't a daemon, and the link that accepted it.
fn stranger() -> (TcpStream, Node) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (
        stranger,
        Node::new(TcpLink::accept(listener.accept().unwrap().0, &config("b"), 0).unwrap()),
    )
}

fn turn_until_error(node: &mut Node) -> LinkError {
    let mut error = None;
    until("an error", || {
        node.wait();
        error = node.turn().err();
        error.is_some()
    });
    error.unwrap()
}

#[test]
fn small_calls_share_a_segment_and_a_turn() {
    let (mut a, mut b) = joined();
    assert!(a.tcp.link.peer_name() == Some("b") && a.tcp.peer_address().ip().is_loopback());
    let nodelay = |node: &Node| rustix::net::sockopt::tcp_nodelay(node.tcp.as_fd()).unwrap();
    assert!(nodelay(&a) && nodelay(&b));
    for n in 0..100 {
        call(&mut a.tcp.link, n, b"payload");
    }
    assert_eq!(a.tcp.flush(), Ok(FlushOutcome::Done));
    until("100 calls", || {
        b.wait();
        b.turn().unwrap();
        b.said.len() == 100
    });
}

#[test]
fn large_extents_cross_a_full_socket_and_come_back() {
    cross_and_come_back(usize::MAX);
}

#[test]
fn large_extents_may_be_received_in_pieces() {
    cross_and_come_back(10_007);
}

fn cross_and_come_back(at_most: usize) {
    let (mut a, mut b) = joined();
    (a.at_most, b.at_most) = (at_most, at_most);
    let bytes = noise(3, 2 << 20);
    let span = span(&bytes);
    let mut blocked = false;
    for n in 0..8 {
        let image = Image {
            inline: b"inline",
            extents: &[Part::Shared { span: &span, at: 0 }],
            metadata: Metadata::default(),
        };
        a.tcp.link.send_call(&head(n), &image, Token(n)).unwrap();
        call(&mut a.tcp.link, 100 + n, b"between");
        // b doesn't read yet: the socket fills, and writes end inside a span.
        blocked |= a.tcp.flush() == Ok(FlushOutcome::Blocked);
    }
    assert!(
        blocked && a.tcp.wants_write(),
        "16 MiB don't fit into the socket buffers"
    );
    let mut sent = Vec::new();
    until("all 16 calls", || {
        a.turn().unwrap();
        b.turn().unwrap();
        sent.extend(std::iter::from_fn(|| a.tcp.link.poll_sent()));
        b.said.len() == 16
    });
    assert_eq!(sent, (0..8).map(Token).collect::<Vec<_>>());
    let body = [b"inline\0\0", &bytes[..]].concat();
    for pair in b.said.chunks(2) {
        assert!(
            pair[0].ends_with(&format!("large {}", summary(&body))),
            "{}",
            pair[0]
        );
        assert!(pair[1].ends_with("\"between\""));
    }
    b.tcp
        .link
        .send_reply(0, false, &Image::inline(&body), Token(0))
        .unwrap();
    until("the reply", || {
        b.turn().unwrap();
        a.turn().unwrap();
        !a.said.is_empty()
    });
    assert_eq!(
        a.said,
        [format!(
            "Reply 0 inline {}: large {}",
            body.len(),
            summary(&body)
        )]
    );
}

#[test]
fn a_body_must_be_read_before_the_next_read() {
    let (mut a, mut b) = joined();
    call(&mut a.tcp.link, 1, &noise(1, 100_000));
    a.tcp.flush().unwrap();
    until("the head", || {
        b.wait();
        b.turn().unwrap();
        b.body.is_some()
    });
    assert_eq!(b.tcp.read(), Ok(ReadOutcome::BodyPending));
    assert_eq!(
        b.tcp.read_body(&mut [0; 3]),
        Err(LinkError::BodyBuffer {
            len: 100_000,
            given: 3
        })
    );
}

#[test]
fn unpolled_events_are_not_mistaken_for_the_end() {
    let (mut a, mut b) = joined();
    for n in 0..8 {
        call(&mut a.tcp.link, n, &noise(1, limits::SMALL_BODY as usize));
    }
    let mut reads = 0;
    until("a full buffer", || {
        a.tcp.flush().unwrap();
        b.tcp.read().unwrap();
        reads += 1;
        b.tcp.link.rx_space().is_empty()
    });
    assert_eq!(
        b.tcp.read(),
        Ok(ReadOutcome::Data { more: true }),
        "after {reads} reads"
    );
    until("all calls", || {
        a.tcp.flush().unwrap();
        b.turn().unwrap();
        b.said.len() == 8
    });
}

#[test]
fn a_peer_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    match TcpLink::connect(address, &config("a"), 0) {
        Ok(tcp) => {
            let error = turn_until_error(&mut Node::new(tcp));
            assert!(error.to_string().contains("refused"), "{error}");
        }
        Err(OpenError::Socket { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn beyond_loopback_connecting_needs_a_key() {
    let address: SocketAddr = "192.0.2.1:7471".parse().unwrap();
    let refused = TcpLink::connect(address, &config("a"), 0).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "192.0.2.1:7471 isn't a loopback address: a peer beyond this host needs a key, the same on both daemons"
    );
    let mapped: SocketAddr = "[::ffff:192.0.2.1]:7471".parse().unwrap();
    assert!(matches!(
        TcpLink::connect(mapped, &config("a"), 0),
        Err(OpenError::NeedsKey { .. })
    ));
}

#[test]
fn garbage_on_the_port_ends_only_that_connection() {
    let (mut stranger, mut b) = stranger();
    stranger
        .write_all(b"GET / HTTP/1.1\r\nHost: tollgate\r\n\r\n")
        .unwrap();
    let error = turn_until_error(&mut b);
    assert_eq!(error, LinkError::UnknownKind { kind: Kind(b'/') });
    assert_eq!(b.tcp.flush(), Ok(FlushOutcome::Done));
    drop(b);
    let mut told = Vec::new();
    let _ = stranger.read_to_end(&mut told);
    assert!(
        told.ends_with(error.to_string().as_bytes()),
        "the HELLO, then a GOAWAY with the sentence"
    );
}

#[test]
fn a_close_is_the_networks_fault_wherever_it_comes() {
    let (stranger, mut b) = stranger();
    drop(stranger);
    assert_eq!(turn_until_error(&mut b), LinkError::Closed);

    let (mut a, mut b) = joined();
    call(&mut a.tcp.link, 1, &noise(1, 4 << 20));
    let _ = a.tcp.flush().unwrap();
    until("the head", || {
        b.wait();
        b.turn().unwrap();
        b.body.is_some()
    });
    drop(a);
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), crate::Blame::Network, "{error}");
    assert!(b.said.is_empty(), "half a body isn't delivered");
}
