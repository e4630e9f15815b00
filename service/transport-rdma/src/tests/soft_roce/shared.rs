//! Links of pollers: the same suite over shared receives, many links at once, and neighbours that
//! misbehave.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use tollgate_transport::testing::suite::{self, Node, turn_until_error};
use tollgate_transport::testing::{call, call_with, noise, span};
use tollgate_transport::{Blame, Image, Token};

use super::hostile::{forge, immediate, queues};
use super::*;
use crate::limits::{self, RECEIVES, SHARED_RECEIVES};
use crate::verbs::{Completion, Queue};
use crate::wire::Kind;
use crate::{LinkId, Poller, PollerOptions, RdmaError};

/// Each end's link is the only one of its poller.
pub(super) struct Pooled;

impl Testbed for Pooled {
    type Io = RdmaLink;

    const NEEDS_KEY: bool = true;

    const UNPROTECTED: bool = true;

    fn connect(a: &LinkConfig, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
        connect_pooled(0, a, b)
    }
}

transport_suite!(Pooled);

/// The same, with rings.
struct PooledRings;

impl Testbed for PooledRings {
    type Io = RdmaLink;

    const NEEDS_KEY: bool = true;

    const UNPROTECTED: bool = true;

    fn connect(a: &LinkConfig, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
        connect_pooled(limits::MIN_RING_BYTES, a, b)
    }
}

fn connect_pooled(ring_bytes: u32, a: &LinkConfig, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
    let rdma = devices();
    let pollers = [poller(&rdma, 1), poller(&rdma, 1)];
    let (mut listener, address) = listen_with(&rdma, ring_bytes);
    let options = from_caller(ring_bytes);
    let mut a = RdmaLink::connect_at(pollers[0].door(), address, &options, a, 0).unwrap();
    let b = until("the request", || {
        a.flush().unwrap();
        match listener.accept_at(pollers[1].door(), b, 0).unwrap() {
            Some(b) => ControlFlow::Break(b),
            None => ControlFlow::Continue(()),
        }
    });
    (a, b)
}

fn poller(rdma: &Rdma, links: u16) -> Poller {
    Poller::new(rdma, &PollerOptions { links, pools: 1 }).unwrap()
}

/// One thread's poller and its links, by their ids.
struct Side {
    poller: Poller,
    nodes: BTreeMap<LinkId, Node<RdmaLink>>,
    /// Links that are never turned, whatever comes.
    neglected: Vec<LinkId>,
    turns: u64,
}

impl Side {
    fn new(rdma: &Rdma, links: u16) -> Side {
        Side {
            poller: poller(rdma, links),
            nodes: BTreeMap::new(),
            neglected: Vec::new(),
            turns: 0,
        }
    }

    fn add(&mut self, link: RdmaLink) -> LinkId {
        let id = link.id().unwrap();
        self.nodes.insert(id, Node::new(link));
        id
    }

    /// Turns only the ready links.
    fn turn_ready(&mut self) -> usize {
        let mut ready = Vec::new();
        self.poller.poll(&mut ready).unwrap();
        ready.retain(|id| !self.neglected.contains(id));
        for id in &ready {
            self.turns += 1;
            self.nodes.get_mut(id).unwrap().turn().unwrap();
        }
        ready.len()
    }

    /// Sleeps until there is something to do; returns whether there is.
    fn wait(&mut self, at_most: Duration) -> bool {
        !self.poller.prepare_to_wait().unwrap() || self.is_called_within(at_most)
    }

    /// Whether its descriptor is readable.
    fn is_called(&self) -> bool {
        self.is_called_within(Duration::ZERO)
    }

    fn is_called_within(&self, at_most: Duration) -> bool {
        let timeout = Timespec::try_from(at_most).unwrap();
        let descriptor = PollFd::from_borrowed_fd(self.poller.as_fd(), PollFlags::IN);
        poll(&mut [descriptor], Some(&timeout)).unwrap() > 0
    }
}

/// This many ready links between two pollers, and their ids at both ends.
fn many(links: u16) -> (Side, Side, Vec<(LinkId, LinkId)>) {
    let rdma = devices();
    let (mut a, mut b) = (Side::new(&rdma, links), Side::new(&rdma, links));
    let (mut listener, address) = listen(&rdma);
    let mut pairs = Vec::new();
    for _ in 0..links {
        let options = from_caller(0);
        let link = RdmaLink::connect_at(a.poller.door(), address, &options, &key("a"), 0).unwrap();
        let at_a = a.add(link);
        let at_b = until("the request", || {
            a.nodes.get_mut(&at_a).unwrap().turn().unwrap();
            match listener.accept_at(b.poller.door(), &key("b"), 0).unwrap() {
                Some(link) => ControlFlow::Break(b.add(link)),
                None => ControlFlow::Continue(()),
            }
        });
        pairs.push((at_a, at_b));
    }
    until("all handshakes", || {
        let mut ready = true;
        for side in [&mut a, &mut b] {
            for node in side.nodes.values_mut() {
                node.turn().unwrap();
                ready &= node.io.link().is_ready();
            }
        }
        match ready {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    for side in [&mut a, &mut b] {
        side.nodes.values_mut().for_each(|node| node.said.clear());
    }
    (a, b, pairs)
}

/// Turns ready links until none is ready for a while: the last completions come late.
fn settle(a: &mut Side, b: &mut Side) {
    let mut quiet = Instant::now();
    until("silence", || {
        if a.turn_ready() + b.turn_ready() > 0 {
            quiet = Instant::now();
        }
        match quiet.elapsed() > Duration::from_millis(50) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
}

/// A call and its reply on each of these links; both sides only turn the links that their pollers
/// name.
fn round_trips(a: &mut Side, b: &mut Side, pairs: &[(LinkId, LinkId)], sleeps: bool) {
    for (at_a, at_b) in pairs {
        b.nodes.get_mut(at_b).unwrap().said.clear();
        let node = a.nodes.get_mut(at_a).unwrap();
        node.said.clear();
        call(node.io.link(), at_a.0, b"question");
        node.turn().unwrap();
    }
    until("replies to all", || {
        let mut found = b.turn_ready();
        for (at_a, at_b) in pairs {
            let node = b.nodes.get_mut(at_b).unwrap();
            if !std::mem::take(&mut node.said).is_empty() {
                let link = node.io.link();
                let reply = Image::inline(b"answer");
                link.send_reply(at_a.0, false, &reply, Token(0)).unwrap();
                node.turn().unwrap();
            }
        }
        found += a.turn_ready();
        if sleeps && found == 0 {
            a.wait(Duration::from_millis(20));
        }
        let answered = |(at_a, _): &(LinkId, LinkId)| !a.nodes[at_a].said.is_empty();
        match pairs.iter().all(answered) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
}

fn devices_pinned(rdma: &Rdma) -> u64 {
    rdma.devices().map(|device| device.pinned_bytes).sum()
}

#[test]
fn a_link_that_has_a_poller_works_one_sided_too() {
    suite::every_kind_of_frame_arrives_as_it_was_said::<PooledRings>();
    suite::calls_of_all_sizes_arrive_in_order::<PooledRings>();
    suite::an_idle_link_wakes_when_something_comes::<PooledRings>();
}

#[test]
fn sixty_four_links_share_receives_and_only_the_ready_ones_are_turned() {
    let (mut a, mut b, pairs) = many(64);
    round_trips(&mut a, &mut b, &pairs, false);
    round_trips(&mut a, &mut b, &pairs, true);
    // Only the requested link is turned, not all of them.
    settle(&mut a, &mut b);
    let before = [a.turns, b.turns];
    let completions = |side: &Side| {
        let nodes = side.nodes.values();
        nodes.map(|node| node.io.counts().completions).sum::<u64>()
    };
    let taken = completions(&b);
    round_trips(&mut a, &mut b, &pairs[7..8], false);
    let turns = [a.turns - before[0], b.turns - before[1]];
    assert!(
        turns.iter().all(|turns| (1..16).contains(turns)),
        "{turns:?}"
    );
    assert!(completions(&b) > taken);
    // No link has its own receives.
    let own: u64 = b.nodes.values().map(|node| node.io.counts().receives).sum();
    assert_eq!(own, 0);
    let shared = b.poller.door().uses().counts;
    assert!(shared.receives >= 64 * 4, "{shared:?}");
    assert_eq!(
        shared.bytes_copied, 0,
        "who reads at once has nothing copied"
    );
}

#[test]
fn what_links_pin_is_what_the_limits_say() {
    // The devices are opened for this test alone, so memory pinned by other tests isn't counted.
    let rdma = devices();
    assert_eq!(devices_pinned(&rdma), 0);
    let (mut listener, address) = listen(&rdma);
    let own: Vec<_> = (0..3)
        .map(|_| connect(&rdma, &mut listener, address, &key("a"), &key("b")))
        .map(|(a, b)| (Node::new(a), Node::new(b)))
        .map(|(mut a, mut b)| {
            suite::turn_until("the handshake", &mut a, &mut b, |a, b| {
                a.io.link().is_ready() && b.io.link().is_ready()
            });
            (a, b)
        })
        .collect();
    // Both ends are in this process.
    let with_own = limits::pinned_bytes(3, 0, None) as u64;
    assert_eq!(devices_pinned(&rdma), 2 * with_own);
    drop(own);
    assert_eq!(devices_pinned(&rdma), 0);

    let side = poller(&rdma, 40);
    let mut links = Vec::new();
    for _ in 0..3 {
        let options = from_caller(limits::MIN_RING_BYTES);
        let a = RdmaLink::connect_at(side.door(), address, &options, &key("a"), 0).unwrap();
        let (a, b) = accept(&mut listener, a, &key("b"));
        let (mut a, mut b) = (Node::new(a), Node::new(b));
        suite::turn_until("the handshake", &mut a, &mut b, |a, b| {
            a.io.link().is_ready() && b.io.link().is_ready()
        });
        links.push((a, b));
    }
    // The other end has given no ring, so there is none.
    let pooled = limits::pinned_bytes(3, 0, Some(40)) as u64;
    assert_eq!(devices_pinned(&rdma), pooled + with_own);
    drop((links, side));
    assert_eq!(devices_pinned(&rdma), 0, "it ends with its last link");

    let (a, b) = connect_with([limits::MIN_RING_BYTES; 2], &key("a"), &key("b"));
    drop((a, b));
    let thousand = [None, Some(1000)].map(|poller| limits::pinned_bytes(1000, 0, poller));
    assert_eq!(thousand, [1000 * (1792 << 10), 1000 * (256 << 10)]);
    let ring = limits::pinned_bytes(1, 1 << 20, None) - limits::pinned_bytes(1, 0, None);
    assert_eq!(ring, (1 << 20) + 4096);
}

/// Reserves this many huge pages.
fn set_huge_pages(count: u32) {
    std::fs::write("/proc/sys/vm/nr_hugepages", count.to_string()).unwrap();
}

#[test]
fn rings_and_pools_are_of_huge_pages_while_there_are_some() {
    let bytes = 4 << 20;
    let pinned = || {
        let rdma = devices();
        let side = poller(&rdma, 64);
        let (mut listener, address) = listen_with(&rdma, bytes - 4096);
        let options = from_caller(bytes - 4096);
        let a = RdmaLink::connect_at(side.door(), address, &options, &key("a"), 0).unwrap();
        let (a, b) = accept(&mut listener, a, &key("b"));
        let (mut a, mut b) = (Node::new(a), Node::new(b));
        suite::turn_until("the handshake", &mut a, &mut b, |a, b| {
            a.io.link().is_ready() && b.io.link().is_ready()
        });
        call(a.io.link(), 1, b"by either");
        suite::turn_until("a call", &mut a, &mut b, |_, b| b.said.len() == 2);
        let huge = rdma.devices().map(|device| device.huge_bytes);
        (
            a.io.pinned_bytes(),
            b.io.pinned_bytes(),
            huge.collect::<Vec<_>>(),
        )
    };
    let (ring, own) = (u64::from(bytes), 1792 << 10);
    set_huge_pages(0);
    assert_eq!(pinned(), ([ring, 0], [ring + own, 0], vec![0, 0]));
    // The pool's 16 MiB, and two rings of 4 MiB.
    set_huge_pages(12);
    let expected = ([ring, ring], [ring + own, ring], vec![20 << 20, 4 << 20]);
    assert_eq!(pinned(), expected);
    set_huge_pages(0);
}

/// The error of a link that its poller can't take.
fn refusal_of(link: &mut RdmaLink) -> String {
    until("a refusal", || match link.flush() {
        Ok(_) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error.to_string()),
    })
}

#[test]
fn pollers_have_limits() {
    let rdma = devices();
    let refused = |links, pools| {
        let refused = Poller::new(&rdma, &PollerOptions { links, pools });
        refused.err().unwrap()
    };
    for links in [0, limits::POOL_LINKS + 1] {
        assert!(matches!(refused(links, 1), RdmaError::PoolLinks { links: said } if said == links));
    }
    for pools in [0, limits::POLLER_POOLS + 1] {
        assert!(
            matches!(refused(1, pools), RdmaError::PollerPools { pools: said } if said == pools)
        );
    }
    let full = poller(&rdma, 1);
    let (mut listener, address) = listen(&rdma);
    let options = from_caller(0);
    let a = RdmaLink::connect_at(full.door(), address, &options, &key("a"), 0).unwrap();
    let (a, _b) = accept(&mut listener, a, &key("b"));
    let mut second = RdmaLink::connect_at(full.door(), address, &options, &key("a"), 0).unwrap();
    assert_eq!(
        refusal_of(&mut second),
        "the connection failed: the poller has 1 links on rxe_va, as many as it was made for"
    );
    // An ended link frees its place.
    drop((a, second));
    let again = RdmaLink::connect_at(full.door(), address, &options, &key("a"), 0).unwrap();
    let _pair = accept(&mut listener, again, &key("b"));
}

#[test]
fn a_full_pool_is_followed_by_another_which_ends_when_it_is_empty() {
    let rdma = devices();
    let options = PollerOptions { links: 2, pools: 2 };
    let full = Poller::new(&rdma, &options).unwrap();
    let (mut listener, address) = listen(&rdma);
    let options = from_caller(0);
    let connect =
        |full: &Poller| RdmaLink::connect_at(full.door(), address, &options, &key("a"), 0).unwrap();
    let own = limits::pinned_bytes(1, 0, None) as u64;
    let pool = limits::pinned_bytes(2, 0, Some(2)) as u64;
    let mut pairs = Vec::new();
    for (links, pools) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
        pairs.push(accept(&mut listener, connect(&full), &key("b")));
        let uses = full.door().uses();
        assert_eq!((uses.links, uses.pools), (links, pools));
        assert_eq!(
            devices_pinned(&rdma),
            links as u64 * own + pools as u64 * pool
        );
    }
    let mut fifth = connect(&full);
    assert_eq!(
        refusal_of(&mut fifth),
        "the connection failed: the poller has 4 links on rxe_va, as many as it was made for"
    );
    drop(fifth);
    let before = full.door().uses();
    // One of either pool, so both are still needed. Free places are taken before a new pool is
    // made.
    drop((pairs.remove(2), pairs.remove(0)));
    assert_eq!(full.door().uses().pools, 2);
    pairs.push(accept(&mut listener, connect(&full), &key("b")));
    assert_eq!(full.door().uses().pools, 2);
    pairs.clear();
    let after = full.door().uses();
    assert_eq!((after.links, after.pools), (0, 1));
    assert!(after.counts.receives >= before.counts.receives);
    assert_eq!(devices_pinned(&rdma), pool, "the last one is kept");
    let again = accept(&mut listener, connect(&full), &key("b"));
    assert_eq!(full.door().uses().links, 1);
    drop(again);
}

/// Nobody waits for events from before the last link's end.
#[test]
fn a_poller_without_links_sleeps() {
    let (mut a, mut b, pairs) = many(1);
    settle(&mut a, &mut b);
    assert!(b.poller.prepare_to_wait().unwrap());
    let (at_a, at_b) = pairs[0];
    let node = a.nodes.get_mut(&at_a).unwrap();
    call(node.io.link(), 1, b"too late");
    node.turn().unwrap();
    assert!(b.is_called_within(Duration::from_secs(10)));
    drop(b.nodes.remove(&at_b));
    b.poller.poll(&mut Vec::new()).unwrap();
    assert!(!b.wait(Duration::from_millis(100)));
}

/// Moves one side's link to the other.
fn hand(id: LinkId, from: &mut Side, to: &mut Side) {
    let mut node = from.nodes.remove(&id).unwrap();
    node.io.move_to(to.poller.door()).unwrap();
    assert_eq!(node.io.id(), Some(id), "it is called as before");
    to.nodes.insert(id, node);
}

/// One thread plays two threads' pollers: only the notified poller matters.
#[test]
fn a_link_that_moves_is_its_new_pollers_alone_and_wakes_it() {
    let (mut a, mut old, pairs) = many(3);
    let mut new = Side::new(&devices(), 1);
    settle(&mut a, &mut old);
    let (at_a, id) = pairs[1];
    let say = |a: &mut Side, n| {
        let node = a.nodes.get_mut(&at_a).unwrap();
        call(node.io.link(), n, b"for whoever has it");
        node.turn().unwrap();
    };
    let (mut at_old, mut at_new) = (Vec::new(), Vec::new());
    // A message that the old poller has already found, and that wasn't read.
    say(&mut a, 1);
    until("its arrival", || {
        old.poller.poll(&mut at_old).unwrap();
        match at_old.as_slice() {
            [] => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    assert_eq!(at_old, [id]);
    hand(id, &mut old, &mut new);
    let links = |side: &Side| side.poller.door().uses().links;
    assert_eq!((links(&old), links(&new)), (2, 1));
    new.poller.poll(&mut at_new).unwrap();
    assert_eq!(at_new, [id]);
    new.nodes.get_mut(&id).unwrap().turn().unwrap();
    assert_eq!(new.nodes[&id].said.len(), 1);
    settle(&mut a, &mut new);

    // A message that the old poller finds while the new one sleeps. The old one takes the device's
    // notification, so only the bell remains.
    (at_old, at_new) = (Vec::new(), Vec::new());
    new.poller.poll(&mut at_new).unwrap();
    assert!(new.poller.prepare_to_wait().unwrap());
    say(&mut a, 2);
    let mut readable = 0;
    until("the bell", || {
        old.poller.poll(&mut at_old).unwrap();
        old.poller.prepare_to_wait().unwrap();
        readable = if new.is_called() { readable + 1 } else { 0 };
        match readable {
            100 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    new.poller.poll(&mut at_new).unwrap();
    assert_eq!((at_old.as_slice(), at_new.as_slice()), (&[][..], &[id][..]));
    assert!(!new.is_called(), "it was heard");
    new.nodes.get_mut(&id).unwrap().turn().unwrap();
    assert_eq!(new.nodes[&id].said.len(), 2);

    // All continue, separately and with the other, and the link may come back.
    let others = [pairs[0], pairs[2]];
    for _ in 0..3 {
        round_trips(&mut a, &mut new, &pairs[1..2], true);
        round_trips(&mut a, &mut old, &others, true);
    }
    hand(id, &mut new, &mut old);
    hand(id, &mut old, &mut new);
    hand(id, &mut new, &mut old);
    assert_eq!((links(&old), links(&new)), (3, 0));
    let node = old.nodes.get_mut(&id).unwrap();
    node.io.move_to(old.poller.door()).unwrap();
    round_trips(&mut a, &mut old, &pairs, true);

    // Its poller also learns of its end.
    hand(id, &mut old, &mut new);
    settle(&mut a, &mut new);
    drop(a.nodes.remove(&at_a));
    (at_old, at_new) = (Vec::new(), Vec::new());
    let error = until("its end", || {
        old.poller.poll(&mut at_old).unwrap();
        new.poller.poll(&mut at_new).unwrap();
        if at_new.is_empty() {
            return ControlFlow::Continue(());
        }
        at_new.clear();
        match new.nodes.get_mut(&id).unwrap().turn() {
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    });
    assert_eq!(error.blame(), Blame::Network);
    assert_eq!(at_old, []);
    // The new poller's links in the old poller's pool end with it, and the old poller's links
    // don't.
    drop(new);
    round_trips(&mut a, &mut old, &others, true);
}

/// Sends CREDIT messages, `count` of them or until none is accepted for a while, and ignores the
/// link's credits. Returns their number.
fn flood(node: &mut Node<RdmaLink>, count: u16) -> u16 {
    let mut sent = 0;
    let mut taken = Instant::now();
    while sent < count && taken.elapsed() < Duration::from_millis(300) {
        queues(node).poll(&mut Vec::new()).unwrap();
        if queues(node).room(Queue::Stream) > 0 {
            forge(node, immediate(Kind::Credit), b"");
            sent += 1;
            taken = Instant::now();
        }
        std::thread::yield_now();
    }
    sent
}

#[test]
fn a_link_that_nobody_reads_takes_nothing_from_its_neighbours() {
    let (mut a, mut b, pairs) = many(16);
    // Half of b's links aren't read, and their peers send as much as allowed.
    let (slow, good) = pairs.split_at(8);
    b.neglected = slow.iter().map(|(_, at_b)| *at_b).collect();
    for (at_a, _) in slow {
        let node = a.nodes.get_mut(at_a).unwrap();
        // As many as fit after the handshake.
        for n in 0..40 {
            call(node.io.link(), n, &noise(n, 1000));
            node.turn().unwrap();
            b.turn_ready();
        }
    }
    settle(&mut a, &mut b);
    for _ in 0..5 {
        round_trips(&mut a, &mut b, good, false);
    }
    let spilled = b.poller.door().uses().counts.bytes_copied;
    let beyond = slow.len() * (40 - SHARED_RECEIVES) * 1000;
    assert!(spilled >= beyond as u64, "{spilled} bytes were spilled");
    // Spilled messages are unchanged.
    b.neglected.clear();
    until("the late calls", || {
        let mut read = true;
        for (at_a, at_b) in slow {
            let node = b.nodes.get_mut(at_b).unwrap();
            node.turn().unwrap();
            read &= node.said.len() == 40;
            a.nodes.get_mut(at_a).unwrap().turn().unwrap();
        }
        match read {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    round_trips(&mut a, &mut b, &pairs, false);
}

#[test]
fn a_link_that_ignores_its_credits_ends_and_its_neighbours_go_on() {
    let (mut a, mut b, pairs) = many(16);
    let (attackers, good) = pairs.split_at(3);
    a.neglected = attackers.iter().map(|(at_a, _)| *at_a).collect();
    b.neglected = attackers.iter().map(|(_, at_b)| *at_b).collect();
    for (at_a, _) in attackers {
        // b isn't polled in between: one link uses up all shared receives, and one more message
        // waits.
        let node = a.nodes.get_mut(at_a).unwrap();
        assert!(flood(node, 64) > 50);
        // Senders of messages that meet no receive are told to retry until b has polled.
        round_trips(&mut a, &mut b, good, false);
        let node = a.nodes.get_mut(at_a).unwrap();
        until("the attacker's end", || {
            b.turn_ready();
            let mut found = Vec::new();
            queues(node).poll(&mut found).unwrap();
            let ended = |each: &Completion| matches!(each, Completion::Failed { .. });
            if found.iter().any(ended) {
                return ControlFlow::Break(());
            }
            if queues(node).room(Queue::Stream) > 0 {
                forge(node, immediate(Kind::Credit), b"");
            }
            ControlFlow::Continue(())
        });
    }
    for _ in 0..3 {
        round_trips(&mut a, &mut b, good, false);
    }
    b.neglected.clear();
    for (_, at_b) in attackers {
        let mut node = b.nodes.remove(at_b).unwrap();
        let error = turn_until_error(&mut node);
        assert_eq!(
            error.to_string(),
            "the peer broke a rule of the connection: a message without credit"
        );
        assert_eq!(error.blame(), Blame::Peer);
    }
    // The receives that they held are free: another round changes nothing.
    round_trips(&mut a, &mut b, good, false);
}

/// Links come and go endlessly, and none leaks a receive.
#[test]
fn links_that_end_give_back_what_they_held() {
    let rdma = devices();
    let side = poller(&rdma, 2);
    let (mut listener, address) = listen(&rdma);
    let shared = span(&noise(1, 9000));
    for _ in 0..20 {
        let a = RdmaLink::connect(&rdma, address, &from_caller(0), &key("a"), 0).unwrap();
        let mut a = Node::new(a);
        let b = until("the request", || {
            a.turn().unwrap();
            match listener.accept_at(side.door(), &key("b"), 0).unwrap() {
                Some(b) => ControlFlow::Break(b),
                None => ControlFlow::Continue(()),
            }
        });
        let mut b = Node::new(b);
        suite::turn_until("the handshake", &mut a, &mut b, |a, b| {
            a.io.link().is_ready() && b.io.link().is_ready()
        });
        // When the link ends, some messages are unread and some in flight: over all rounds, more
        // than there are receives.
        for n in 0..12 {
            call_with(a.io.link(), n, b"", &shared);
            a.turn().unwrap();
        }
        drop(b);
        drop(a);
    }
    let a = RdmaLink::connect(&rdma, address, &from_caller(0), &key("a"), 0).unwrap();
    let mut a = Node::new(a);
    let _b = until("the request", || {
        a.turn().unwrap();
        match listener.accept_at(side.door(), &key("b"), 0).unwrap() {
            Some(b) => ControlFlow::Break(b),
            None => ControlFlow::Continue(()),
        }
    });
    until("a connection", || {
        a.turn().unwrap();
        match queues(&mut a).progress(Queue::Stream) {
            (0, _) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    // Nobody polls, so these only meet posted receives: all but a batch, minus the link's own
    // messages.
    let posted = RECEIVES - limits::RECEIVE_BATCH as u16 - 2;
    assert_eq!(flood(&mut a, posted), posted);
    until("their arrival", || {
        queues(&mut a).poll(&mut Vec::new()).unwrap();
        let (next, complete) = queues(&mut a).progress(Queue::Stream);
        match next == complete {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
}

/// The link has taken it from its poller, and the poller is polled next.
#[test]
fn what_a_flush_has_found_is_named_once_more() {
    let (mut a, mut b, pairs) = many(2);
    settle(&mut a, &mut b);
    let (at_a, at_b) = pairs[1];
    let sender = a.nodes.get_mut(&at_a).unwrap();
    call(sender.io.link(), 1, b"in between");
    sender.io.flush().unwrap();
    let receiver = b.nodes.get_mut(&at_b).unwrap();
    let before = receiver.io.counts().completions;
    until("its arrival", || {
        receiver.io.flush().unwrap();
        match receiver.io.counts().completions > before {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    assert!(!b.poller.prepare_to_wait().unwrap());
    let mut ready = Vec::new();
    b.poller.poll(&mut ready).unwrap();
    assert_eq!(ready, [at_b]);
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn idle_links_of_a_poller_use_no_processor() {
    let (mut a, mut b, pairs) = many(32);
    round_trips(&mut a, &mut b, &pairs, true);
    settle(&mut a, &mut b);
    // The descriptor may be readable once because of an earlier event.
    b.wait(Duration::from_millis(1));
    b.turn_ready();
    let before = (thread_time(), b.poller.door().uses().counts.system_calls);
    let (mut woken, mut ready) = (0, Vec::new());
    let (spin, most) = (Duration::from_micros(50), Duration::from_millis(200));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        b.poller.wait(&mut ready, spin, most).unwrap();
        woken += ready.len();
    }
    let (used, calls) = (
        thread_time() - before.0,
        b.poller.door().uses().counts.system_calls - before.1,
    );
    assert_eq!(woken, 0, "nothing came");
    assert!(used < Duration::from_millis(60), "{used:?} in 600 ms");
    assert!(calls < 30, "{calls} system calls");
    // It learns of it at once nevertheless.
    let node = a.nodes.get_mut(&pairs[3].0).unwrap();
    call(node.io.link(), 1, b"wake");
    node.turn().unwrap();
    let start = Instant::now();
    b.poller
        .wait(&mut ready, spin, Duration::from_secs(5))
        .unwrap();
    assert_eq!(ready, [pairs[3].1]);
    assert!(start.elapsed() < Duration::from_secs(4), "it was woken");
}
