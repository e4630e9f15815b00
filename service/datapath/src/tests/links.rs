//! Links that another runtime can continue, and links that it can't.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_transport::{Event, Link, LinkConfig, LinkSetup, Role};

use super::handover::in_time;
use crate::handover::transfer::{HandoverState, Inventory};
use crate::runtime::Runtime;

/// A daemon without a key that trusts its host.
pub(super) fn trusting(name: &str) -> LinkConfig {
    LinkConfig {
        unauthenticated_loopback: true,
        ..LinkConfig::new(name)
    }
}

/// A peer that sends exactly as many bytes as a test says.
struct Peer {
    link: Link,
    stream: TcpStream,
    /// Bytes not yet sent.
    says: Vec<u8>,
}

impl Peer {
    /// A peer that a runtime has accepted; nothing has been exchanged yet.
    fn of(runtime: &mut Runtime) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        runtime.accept(listener.accept().unwrap().0, Box::new(()));
        let setup = LinkSetup {
            role: Role::Initiator,
            loopback: true,
            target: String::new(),
            address: ([127, 0, 0, 1], 7471).into(),
            nonce: [9; 32],
            now_ns: 0,
        };
        Peer {
            link: Link::new(&trusting("peer"), &setup).unwrap(),
            stream,
            says: Vec::new(),
        }
    }

    /// Sends at most this many bytes.
    fn say(&mut self, at_most: usize) {
        self.link.transmit(&mut self.says, usize::MAX);
        let n = at_most.min(self.says.len());
        self.stream.write_all(&self.says[..n]).unwrap();
        self.says.drain(..n);
    }

    /// The runtime's output of its next turns, up to the first output.
    fn hear(&mut self, runtime: &mut Runtime) -> String {
        let mut bytes = [0; 4096];
        for _ in 0..1_000 {
            runtime.poll_wakes(Some(std::time::Duration::from_millis(1)));
            runtime.turn();
            let n = self.stream.read(&mut bytes).unwrap_or(0);
            self.link.receive(&bytes[..n]);
            match self.link.poll_event().unwrap() {
                Some(Event::Refused { sentence, .. }) => return sentence.to_owned(),
                Some(Event::Ready { .. }) => return "ready".to_owned(),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        panic!("it says nothing");
    }

    fn ready(runtime: &mut Runtime) -> Peer {
        let mut peer = Peer::of(runtime);
        peer.say(usize::MAX);
        assert_eq!(peer.hear(runtime), "ready");
        peer
    }

    /// Sends a BIND for a service without a server.
    fn bind(&mut self, bind: u32) {
        let asked = self.link.send_bind(bind, "acme", "p.Nobody", &[1; 32]);
        asked.unwrap();
    }
}

fn nothing() -> Inventory {
    Inventory {
        schemas: Arc::default(),
        chains: Vec::new(),
        policies: Arc::default(),
    }
}

fn changed(handover_state: HandoverState, change: impl FnOnce(&mut Value)) -> HandoverState {
    let mut state: Value = serde_json::from_slice(&handover_state.state).unwrap();
    change(&mut state);
    let state = serde_json::to_vec(&state).unwrap();
    HandoverState {
        state,
        ..handover_state
    }
}

const NOBODY: &str = "no application of tenant acme serves p.Nobody on this host";

/// The cut is in the middle of a frame, or in the middle of the handshake.
#[test]
fn the_rest_of_a_frame_reaches_the_next_runtime() {
    for in_handshake in [false, true] {
        let (mut old, _old_handle) = Runtime::idle();
        let mut peer = match in_handshake {
            true => Peer::of(&mut old),
            false => Peer::ready(&mut old),
        };
        if !in_handshake {
            peer.bind(5);
        }
        peer.say(40);
        for _ in 0..5 {
            old.poll_wakes(Some(std::time::Duration::from_millis(1)));
            old.turn();
        }
        let handover_state = old.hand_over(true, in_time()).unwrap();
        // Input that arrives while no runtime reads isn't lost.
        peer.say(usize::MAX);
        let (mut new, _new_handle) = Runtime::idle();
        let (_, beginning) = new.take_over(handover_state, nothing()).unwrap();
        old.leave();
        drop(old);
        new.begin(beginning);
        if in_handshake {
            assert_eq!(peer.hear(&mut new), "ready");
            peer.bind(5);
            peer.say(usize::MAX);
        }
        assert_eq!(peer.hear(&mut new), NOBODY, "{in_handshake}");
        assert_eq!(new.links.len(), 1);
    }
}

#[test]
fn the_old_runtime_can_go_on_with_what_it_has_left() {
    let (mut old, _handle) = Runtime::idle();
    let mut peer = Peer::ready(&mut old);
    peer.bind(1);
    peer.say(50);
    let handover_state = old.hand_over(true, in_time()).unwrap();
    let (mut new, _new_handle) = Runtime::idle();
    new.take_over(handover_state, nothing()).unwrap();
    drop(new);
    peer.say(usize::MAX);
    assert_eq!(peer.hear(&mut old), NOBODY);
}

#[test]
fn a_link_that_cannot_go_on_ends_alone() {
    let unknown = |state: &mut Value| {
        let link = &mut state["links"][0]["link"];
        link["offers"] = json!(1 << 30);
        link["peer_offers"] = json!(1 << 30);
    };
    for with_links in [true, false] {
        let (mut old, _handle) = Runtime::idle();
        let (mut lost, mut kept) = (Peer::ready(&mut old), Peer::ready(&mut old));
        let key = old.links.iter().next().unwrap().0;
        let handover_state = old.hand_over(with_links, in_time()).unwrap();
        let handover_state = match with_links {
            true => changed(handover_state, unknown),
            false => handover_state,
        };
        let (mut new, _new_handle) = Runtime::idle();
        let (_, beginning) = new.take_over(handover_state, nothing()).unwrap();
        old.leave();
        drop(old);
        new.begin(beginning);
        assert_eq!(new.links.len(), usize::from(with_links));
        let end = lost.stream.read(&mut [0; 8]);
        assert_eq!(end.unwrap(), 0, "its peer hears the end");
        if with_links {
            kept.bind(2);
            kept.say(usize::MAX);
            assert_eq!(kept.hear(&mut new), NOBODY);
            let next = new.links.next_id().unwrap();
            assert_eq!(next.0, key.0 + (1 << 16), "as if it had been closed");
        }
    }
}

#[test]
fn links_that_no_runtime_can_have_left_are_refused() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 6] = [
        ("there is no service 3", |state| {
            state["links"][0]["inbound"] = json!([[1, 3]]);
        }),
        ("a binding that wasn't handed over", |state| {
            state["links"][0]["outbound"] = json!([{"binding": 0, "unanswered": 0}]);
        }),
        ("has no socket", |state| {
            state["links"][0]["id"] = json!(9);
        }),
        ("the keys of the links are missing or duplicate", |state| {
            state["free_links"] = json!([0]);
        }),
        ("isn't what its frame announced", |state| {
            state["links"][0]["large"] = json!({"at": 0, "filled": 0, "metadata": 0, "inline_len": 0, "len": 9,
                "what": {"request": {"call": 1, "more": false, "protobuf": false, "charge": 9}}});
        }),
        ("the bytes of a message at 99999 are missing", |state| {
            let message = json!({"at": 99_999, "image": 1, "metadata": 0, "inline_len": 1, "total_len": 1, "bare": false,
                "body": {"private": {"accepted": true, "extents": []}}});
            state["links"][0]["kept"] = json!([{"reply": {"call": 1, "protobuf": false, "request_bytes": 0, "message": message}}]);
        }),
    ];
    for (sentence, change) in changes {
        let (mut old, _handle) = Runtime::idle();
        let mut peer = Peer::ready(&mut old);
        let handover_state = changed(old.hand_over(true, in_time()).unwrap(), change);
        let (mut new, _new_handle) = Runtime::idle();
        let Err(why) = new.take_over(handover_state, nothing()) else {
            panic!("{sentence}: taken over");
        };
        assert!(why.to_string().contains(sentence), "{sentence}: {why}");
        drop(new);
        peer.bind(1);
        peer.say(usize::MAX);
        assert_eq!(peer.hear(&mut old), NOBODY, "{sentence}");
    }
}
