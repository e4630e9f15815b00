//! Arbitrary bytes from the peer of a link: `[end][step][bytes]`. The end is ready, or waits for
//! the peer's handshake, with or without a key.
//!
//! The link accepts the bytes or ends; into which pieces they are cut makes no difference. The
//! events, written as frames, are the bytes: all of them, in order and within the limits. There are
//! no more calls than the link grants, and no more answers than it has calls. An honest peer
//! understands the link's frames. With a key, the link accepts only frames of the honest peer.

use std::sync::OnceLock;

use tollgate_transport::Role;
use tollgate_transport::frame::{FEATURES, Header, Kind};
use tollgate_transport::limits::{HEADER, WINDOW_BYTES, WINDOW_CALLS};

use crate::link::{CALLS, End, LARGE, frame, frames_of_events, other, settle, transcript};

/// An end that hears the bytes.
struct Listener {
    role: Role,
    has_key: bool,
    /// Its handshake is behind it.
    is_ready: bool,
}

const fn listener(role: Role, has_key: bool, is_ready: bool) -> Listener {
    Listener {
        role,
        has_key,
        is_ready,
    }
}

/// An input's first byte chooses one: append only.
const LISTENERS: [Listener; 5] = [
    listener(Role::Responder, false, true),
    listener(Role::Responder, false, false),
    listener(Role::Initiator, false, false),
    listener(Role::Responder, true, false),
    listener(Role::Initiator, true, false),
];

/// What the honest peer of a fresh end says, and what that end hears of it.
struct Honest {
    said: Vec<u8>,
    heard: Vec<u8>,
}

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    let [which, step, bytes @ ..] = input else {
        return;
    };
    let listener = &LISTENERS[usize::from(*which) % LISTENERS.len()];
    let mut bytes = bytes.to_vec();
    let (mut end, mut peer) = listener.ends();
    let mut outcome = end.hear(&bytes);
    // A large message goes on with zeros, so that no input needs them.
    if outcome.is_ok()
        && let Some(missing) = end.missing()
        && missing <= 2 * LARGE
    {
        outcome = end.hear(&vec![0; missing]);
        bytes.resize(bytes.len() + missing, 0);
    }

    let (mut in_pieces, _) = listener.ends();
    let step = 1 + usize::from(*step).pow(2);
    let ended = bytes
        .chunks(step)
        .try_for_each(|piece| in_pieces.hear(piece));
    assert_eq!(ended, outcome);
    assert!(in_pieces.heard == end.heard, "what came in pieces differs");

    if let Err(error) = &outcome {
        assert_eq!(end.link.poll_event(), Err(error.clone()));
        assert!(end.link.freeze(&mut Vec::new()).is_none());
        assert!(!end.link.is_ready());
    }
    account(&end.heard);
    end.link.return_credit(u32::MAX, u64::MAX);
    in_pieces.link.return_credit(u32::MAX, u64::MAX);
    let sent = end.sent();
    assert!(
        in_pieces.sent() == sent,
        "what came in pieces is answered otherwise"
    );
    if listener.has_key {
        let honest = honest(listener.role);
        assert!(honest.heard.starts_with(&end.heard), "it is the peer's");
        let handshake = &honest.said[..handshake_len(&honest.said)];
        assert!(!end.link.is_ready() || bytes.starts_with(handshake));
        assert!(outcome.is_ok() || !honest.said.starts_with(&bytes));
    } else {
        let (frames, whole) = frames_of_events(&bytes);
        assert!(frames.starts_with(&end.heard), "something else was heard");
        assert!(
            outcome.is_err() || end.heard.len() >= whole,
            "it lacks frames"
        );
        assert_eq!(peer.hear(&sent), Ok(()), "an honest peer understands it");
    }
}

impl Listener {
    /// The end, and its honest peer.
    fn ends(&self) -> (End, End) {
        let mut near = End::new(self.role, self.has_key);
        let mut far = End::new(other(self.role), self.has_key);
        if self.is_ready {
            settle(&mut near, &mut far);
            near.heard.clear();
        }
        (near, far)
    }
}

/// With a key.
fn honest(role: Role) -> &'static Honest {
    static OF_INITIATOR: OnceLock<Honest> = OnceLock::new();
    static OF_RESPONDER: OnceLock<Honest> = OnceLock::new();
    let honest = match role {
        Role::Initiator => &OF_INITIATOR,
        Role::Responder => &OF_RESPONDER,
    };
    honest.get_or_init(|| {
        let said = transcript(role, true);
        let mut end = End::new(role, true);
        end.hear(&said).expect("the peer is honest");
        let heard = end.heard;
        Honest { said, heard }
    })
}

/// The bytes of a HELLO and an AUTH, with which the peer of an end with a key begins.
fn handshake_len(said: &[u8]) -> usize {
    let hello = first_len(said);
    hello + first_len(&said[hello..])
}

/// The bytes of the first frame, which has no tag.
fn first_len(frames: &[u8]) -> usize {
    let header = frames.first_chunk().expect("a frame has a header");
    HEADER + Header::decode(header).len as usize
}

fn account(mut heard: &[u8]) {
    let (mut calls, mut bytes, mut answers) = (0, 0, 0);
    while let Some((header, rest)) = heard.split_first_chunk() {
        let header = Header::decode(header);
        match header.kind {
            Kind::CALL => {
                calls += 1;
                bytes += u64::from(header.len);
            }
            Kind::REPLY | Kind::STATUS => answers += 1,
            _ => {}
        }
        heard = rest.get(header.len as usize..).unwrap_or_default();
    }
    assert!(calls <= WINDOW_CALLS && bytes <= WINDOW_BYTES);
    assert!(answers <= CALLS);
}

/// What honest peers say, whole and each frame by itself, and names for it.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |name: String, which: u8, bytes: &[u8]| {
        seeds.push((name, [&[which, 7][..], bytes].concat()));
    };
    for (which, listener) in (0..).zip(&LISTENERS) {
        let mut said = transcript(listener.role, listener.has_key);
        // The zeros follow by themselves.
        said.truncate(said.len() - LARGE);
        let handshake = match (listener.is_ready, listener.has_key) {
            (true, _) => {
                drop(said.drain(..first_len(&said)));
                0
            }
            (false, true) => handshake_len(&said),
            (false, false) => first_len(&said),
        };
        add(format!("end-{which}"), which, &said);
        add(format!("handshake-{which}"), which, &said[..handshake]);
    }
    let all = transcript(Role::Responder, false);
    let mut frames = &all[..];
    for number in 0.. {
        if frames.is_empty() {
            break;
        }
        let (one, rest) = frames.split_at(first_len(frames));
        let one = &one[..one.len().min(1024)];
        add(format!("frame-{number}"), 0, one);
        frames = rest;
    }
    let told = Header {
        aux: FEATURES,
        ..Header::new(Kind::FEATURES)
    };
    add("features".to_owned(), 0, &frame(told, &[]));
    let piece = Header {
        bind: 5,
        aux: 6,
        ..Header::new(Kind::BOUND)
    };
    let pieces = [frame(piece, b"abc"), frame(piece, b"def")].concat();
    add("pieces".to_owned(), 0, &pieces);
    seeds
}
