//! Arbitrary changes (`changes.rs`) of the state of a link that one daemon hands to the next:
//! `[state][change]...`. The bytes that the state refers to can be changed like the rest of it.
//!
//! The state is refused with one sentence, or thaws to a link. The link keeps its received and
//! queued bytes, is the same when frozen and thawed again, and accepts what its peer sends next.
//! Without a change it goes on like the original.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_transport::frame::{Header, Kind};
use tollgate_transport::limits::{HEADER, WINDOW_BYTES, WINDOW_CALLS};
use tollgate_transport::{CallHead, FrozenLink, Image, Link, Role, Token};

use crate::changes::{Change, change, count};
use crate::errors::one_sentence;
use crate::link::{End, LARGE, config, frame, transcript};

/// Parts of a state that a thawed link has as they were.
const KEPT: [&str; 20] = [
    "role",
    "state",
    "own_hello",
    "peer_hello",
    "address",
    "opened",
    "received",
    "incoming",
    "description",
    "pong",
    "credit",
    "granted",
    "returned",
    "window",
    "surplus",
    "unanswered",
    "going_away",
    "pinged",
    "started_ns",
    "heard_ns",
];

/// What roles and states of links are called.
const WORDS: [&str; 5] = [
    "initiator",
    "responder",
    "await_hello",
    "await_auth",
    "ready",
];

/// More bytes of a large message than this only cost time, and so does more of what follows.
const LARGEST: usize = 1 << 20;
const FOLLOWS: usize = 4 << 10;

/// A link that was frozen, and what becomes of it.
struct State {
    role: Role,
    has_key: bool,
    /// `link`, the `bytes` that it refers to, and [`WORDS`] that could be in it.
    form: Value,
    /// What its peer says next, what it hears of that, and what it has sent then.
    follows: Vec<u8>,
    heard: Vec<u8>,
    sent: Vec<u8>,
}

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    let Some((which, changes)) = input.split_first() else {
        return;
    };
    let states = states();
    let state = &states[usize::from(*which) % states.len()];
    let mut form = state.form.clone();
    let (changes, _) = changes.as_chunks();
    changes.iter().for_each(|one| change(&mut form, *one));
    let Ok(frozen) = FrozenLink::deserialize(&form["link"]) else {
        return;
    };
    let bytes = form["bytes"].as_array().into_iter().flatten();
    let bytes: Vec<u8> = bytes
        .map(|byte| byte.as_u64().unwrap_or_default() as u8)
        .collect();
    let told = whole(&frozen, &bytes);
    let config = config(state.role, state.has_key);
    let link = match Link::thaw(frozen, &bytes, &config) {
        Ok(link) => link,
        Err(why) => return one_sentence(&why),
    };

    let (frozen, bytes) = freeze(&link);
    let now = whole(&frozen, &bytes);
    for part in KEPT {
        assert_eq!(now[part], told[part], "{part}");
    }
    let queued = queued_bytes(&told);
    assert!(queued_bytes(&now).starts_with(&queued));
    let again = Link::thaw(frozen, &bytes, &config).expect("it was a link");
    let (frozen, bytes) = freeze(&again);
    assert_eq!(whole(&frozen, &bytes), now);

    if link.pending_body().is_some_and(|(len, _)| len > LARGEST) {
        return;
    }
    let mut end = End::of(link);
    if changes.is_empty() {
        assert_eq!(end.hear(&state.follows), Ok(()));
        assert!(end.heard == state.heard, "it hears something else");
        assert!(end.sent() == state.sent, "it says something else");
    } else {
        let follows = &state.follows[..state.follows.len().min(FOLLOWS)];
        let _the_peer_may_have_no_right_to_it = end.hear(follows);
        go_on(&mut end.link);
        assert!(end.sent().starts_with(&queued));
    }
}

fn freeze(link: &Link) -> (FrozenLink, Vec<u8>) {
    let mut bytes = Vec::new();
    let frozen = link.freeze(&mut bytes).expect("it hasn't ended");
    (frozen, bytes)
}

/// A state with the bytes that it refers to in their places.
fn whole(frozen: &FrozenLink, bytes: &[u8]) -> Value {
    let mut form = serde_json::to_value(frozen).expect("a state can be written");
    put_in_place(&mut form, bytes);
    form
}

fn put_in_place(form: &mut Value, bytes: &[u8]) {
    let number = |name: &str| form.get(name).and_then(Value::as_u64).map(|n| n as usize);
    if let (Some(at), Some(len)) = (number("at"), number("len")) {
        let rest = bytes.get(at..).unwrap_or_default();
        *form = rest.get(..len).map_or(Value::Null, Value::from);
    } else if let Value::Object(parts) = form {
        let parts = parts.values_mut();
        parts.for_each(|part| put_in_place(part, bytes));
    }
}

fn queued_bytes(whole: &Value) -> Vec<u8> {
    let bytes = whole["queued"].as_array().expect("it isn't refused");
    bytes
        .iter()
        .filter_map(|byte| Some(byte.as_u64()? as u8))
        .collect()
}

/// What a daemon does with a link.
fn go_on(link: &mut Link) {
    let call = CallHead {
        call: 99,
        bind: 3,
        method: 1,
        deadline_us: 0,
        protobuf: false,
        more: false,
        bare: false,
    };
    link.next_tick();
    link.return_credit(1, 100);
    link.return_credit(u32::MAX, u64::MAX);
    for (calls, bytes) in [(1, WINDOW_BYTES), (2 * WINDOW_CALLS, 2 * WINDOW_BYTES)] {
        link.set_window(calls, bytes).expect("it is in range");
        link.return_credit(u32::MAX, u64::MAX);
    }
    let _it_may_not_be_ready = link.send_call(&call, &Image::inline(b"call"), Token(0));
    for now_ns in [1 << 40, 1 << 41, 1 << 42] {
        let _the_peer_may_be_overdue = link.tick(now_ns);
        link.next_tick();
    }
}

/// An input's first byte chooses one: append only.
fn states() -> &'static [State] {
    static STATES: OnceLock<Vec<State>> = OnceLock::new();
    STATES.get_or_init(|| {
        let mut states = Vec::new();
        for (role, has_key) in [
            (Role::Responder, false),
            (Role::Initiator, true),
            (Role::Responder, true),
        ] {
            let said = said(role, has_key);
            let hello = HEADER + Header::decode(said.first_chunk().expect("a HELLO")).len as usize;
            // In the HELLO, in the next frame, before the large message, and within it.
            let large = said.len() - LARGE;
            for at in [10, hello + 10, large - HEADER - 10, large + 1000] {
                states.push(state(role, has_key, said.split_at(at)));
            }
        }
        states
    })
}

/// What an honest peer says; without a key, a description comes in two pieces before the large
/// message.
fn said(role: Role, has_key: bool) -> Vec<u8> {
    let mut said = transcript(role, has_key);
    if !has_key {
        let piece = Header {
            bind: 5,
            aux: 6,
            ..Header::new(Kind::BOUND)
        };
        let pieces = [frame(piece, b"abc"), frame(piece, b"def")].concat();
        let at = said.len() - LARGE - HEADER;
        said.splice(at..at, pieces);
    }
    said
}

fn state(role: Role, has_key: bool, (before, follows): (&[u8], &[u8])) -> State {
    let mut end = End::new(role, has_key);
    end.hear(before).expect("the peer is honest");
    end.heard.clear();
    let (link, bytes) = freeze(&end.link);
    end.hear(follows).expect("the peer is honest");
    State {
        role,
        has_key,
        form: json!({ "link": link, "bytes": bytes, "words": WORDS }),
        follows: follows.to_vec(),
        sent: end.sent(),
        heard: end.heard,
    }
}

/// Each state as it is, and with one change each way in many places, and names for it.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (which, state) in (0u8..).zip(states()) {
        seeds.push((format!("{which}"), vec![which]));
        let bytes = state.form["bytes"].as_array().map_or(0, Vec::len);
        // The bytes come first; most of the places are theirs.
        let places = [2, 3 + bytes / 2].into_iter();
        for place in places.chain(2 + bytes..count(&state.form)) {
            let [low, high] = (place as u16).to_le_bytes();
            let how = (place % 5) as u8;
            let change: Change = [low, high, high, low, how, 127];
            let input = [&[which][..], &change].concat();
            seeds.push((format!("{which}-{place}-{how}"), input));
        }
    }
    seeds
}
