//! Who is at the other end: the handshake's states, and the proof of the key.
//!
//! ```text
//!                     HELLO, no key on either end
//!   AwaitHello ------------------------------------------------> Ready
//!       |                                                          ^
//!       | HELLO, key on both ends                                  | valid AUTH
//!       |   initiator: send AUTH                                   |   responder: send AUTH
//!       +--------------------------> AwaitAuth --------------------+
//!
//!   any state: GOAWAY before Ready, a frame that doesn't belong there, a bad HELLO or AUTH ------> Ended
//! ```
//!
//! Both ends send HELLO at once. With keys, the initiator proves itself first, so that whoever merely reaches a
//! listening port gets no proof to attack offline. A proof covers both HELLOs whole, and therefore both nonces, names,
//! versions and windows, and the prover's role: it can be neither replayed on another link nor reflected on this one.
//!
//! Deliberately absent: secrecy and integrity of what follows. The key decides who may open a link; it does not protect
//! against somebody who rewrites TCP segments in between. Mutual TLS will.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::config::{LinkConfig, PresharedKey, Role, valid_name};
use crate::error::LinkError;
use crate::frame::{self, Kind, u16_at, u32_at, u64_at};
use crate::limits;

/// Bytes of a HELLO before the name.
const HELLO_FIXED: usize = 64;

/// Bytes of a proof.
pub(crate) const PROOF: usize = 32;

/// Where the handshake stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    AwaitHello,
    AwaitAuth,
    Ready,
    Ended,
}

impl State {
    /// For sentences: "... while this end was {}".
    pub(crate) fn describe(self) -> &'static str {
        match self {
            State::AwaitHello => "waiting for HELLO",
            State::AwaitAuth => "waiting for AUTH",
            State::Ready => "ready",
            State::Ended => "done",
        }
    }
}

/// A frame, as far as the handshake cares; contents are judged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// An acceptable HELLO; neither end has a key.
    Hello,
    /// An acceptable HELLO; both ends have a key.
    HelloKeyed,
    /// This end found fault with a frame, or gives up.
    Refused,
    /// A valid proof.
    Auth,
    /// The peer ends the link, or announces that it will.
    GoAway,
    /// Any other frame.
    Traffic,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing yet.
    Wait,
    /// Send this end's proof.
    Prove,
    /// The peer is known: tell the daemon.
    Welcome,
    /// Send this end's proof, then tell the daemon.
    ProveAndWelcome,
    /// Hand the frame to the traffic rules.
    Deliver,
    /// End the link.
    End,
}

/// The diagram above.
pub(crate) fn step(role: Role, state: State, input: Input) -> (State, Action) {
    match (state, input) {
        (State::AwaitHello, Input::Hello) => (State::Ready, Action::Welcome),
        (State::AwaitHello, Input::HelloKeyed) => match role {
            Role::Initiator => (State::AwaitAuth, Action::Prove),
            Role::Responder => (State::AwaitAuth, Action::Wait),
        },
        (State::AwaitAuth, Input::Auth) => match role {
            Role::Initiator => (State::Ready, Action::Welcome),
            Role::Responder => (State::Ready, Action::ProveAndWelcome),
        },
        (State::Ready, Input::Traffic | Input::GoAway) => (State::Ready, Action::Deliver),
        (State::AwaitHello, Input::Auth | Input::Traffic | Input::GoAway | Input::Refused)
        | (
            State::AwaitAuth,
            Input::Hello | Input::HelloKeyed | Input::Traffic | Input::GoAway | Input::Refused,
        )
        | (State::Ready, Input::Hello | Input::HelloKeyed | Input::Auth | Input::Refused)
        | (State::Ended, _) => (State::Ended, Action::End),
    }
}

/// What the peer said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerHello {
    pub(crate) name: String,
    pub(crate) version: u16,
    pub(crate) offers: u32,
    pub(crate) window_calls: u32,
    pub(crate) window_bytes: u64,
    keyed: bool,
}

/// A handshake for another process.
pub(crate) struct Frozen {
    pub(crate) role: Role,
    pub(crate) state: State,
    pub(crate) own_hello: Vec<u8>,
    /// Empty before it came.
    pub(crate) peer_hello: Vec<u8>,
    pub(crate) offers: u32,
    pub(crate) peer_offers: u32,
}

/// The handshake of one link.
#[derive(Debug)]
pub(crate) struct Handshake {
    role: Role,
    state: State,
    key: Option<PresharedKey>,
    own_hello: Vec<u8>,
    /// What this end offers: what its HELLO says, or what it has said since then.
    offers: u32,
    peer_hello: Vec<u8>,
    peer: Option<PeerHello>,
}

impl Handshake {
    pub(crate) fn new(role: Role, config: &LinkConfig, nonce: &[u8; 32]) -> Handshake {
        Handshake {
            role,
            state: State::AwaitHello,
            key: config.key.clone(),
            own_hello: encode_hello(config, nonce),
            offers: frame::FEATURES,
            peer_hello: Vec::new(),
            peer: None,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// This end gives the link up.
    pub(crate) fn end(&mut self) {
        self.advance(Input::Refused);
    }

    pub(crate) fn peer(&self) -> Option<&PeerHello> {
        self.peer.as_ref()
    }

    /// What both ends offer; nothing before the peer's HELLO was read.
    pub(crate) fn features(&self) -> u32 {
        self.peer.as_ref().map_or(0, |peer| peer.offers) & self.offers
    }

    /// This end offers this from now on; whether that is something else than before.
    pub(crate) fn offer(&mut self, offers: u32) -> bool {
        std::mem::replace(&mut self.offers, offers) != offers
    }

    /// As it is, for another process.
    pub(crate) fn freeze(&self) -> Frozen {
        Frozen {
            role: self.role,
            state: self.state,
            own_hello: self.own_hello.clone(),
            peer_hello: self.peer_hello.clone(),
            offers: self.offers,
            peer_offers: self.peer.as_ref().map_or(0, |peer| peer.offers),
        }
    }

    /// The handshake that was [frozen](Self::freeze), with the key of `config`; or what is wrong with it.
    pub(crate) fn thaw(frozen: Frozen, config: &LinkConfig) -> Result<Handshake, String> {
        let peer = match &frozen.peer_hello[..] {
            [] => None,
            hello => Some(decode_hello(hello).map_err(|error| error.to_string())?),
        };
        let mut handshake = Handshake {
            role: frozen.role,
            state: frozen.state,
            key: config.key.clone(),
            own_hello: frozen.own_hello,
            offers: frozen.offers,
            peer_hello: frozen.peer_hello,
            peer,
        };
        let own = decode_hello(&handshake.own_hello).map_err(|error| error.to_string())?;
        let waits_for_hello = handshake.state == State::AwaitHello;
        if waits_for_hello != handshake.peer.is_none() {
            let state = handshake.state.describe();
            return Err(format!("while {state}, the peer's HELLO is what there is"));
        }
        if handshake.state != State::Ready && own.keyed != handshake.key.is_some() {
            return Err("whether there is a key isn't what the HELLO says".to_owned());
        }
        if let Some(peer) = &mut handshake.peer {
            peer.offers = frozen.peer_offers;
        }
        // Before the peer's HELLO is here, everything that this end has offered may come to be agreed on.
        let agreed = match waits_for_hello {
            true => handshake.offers,
            false => handshake.features(),
        };
        match agreed & !frame::FEATURES {
            0 => Ok(handshake),
            unknown => Err(format!(
                "it goes by the feature bits {unknown:#x}, which this daemon doesn't know"
            )),
        }
    }

    /// The peer offers this from now on. Whether all that both offered is among it.
    pub(crate) fn on_features(&mut self, offers: u32) -> bool {
        let stays = self.features() & !offers == 0;
        if let Some(peer) = &mut self.peer {
            peer.offers = offers;
        }
        stays
    }

    /// This end's HELLO payload.
    pub(crate) fn hello(&self) -> &[u8] {
        &self.own_hello
    }

    /// Takes the peer's HELLO payload.
    pub(crate) fn on_hello(&mut self, payload: &[u8]) -> Result<Action, LinkError> {
        self.expect(State::AwaitHello, Kind::HELLO)?;
        let peer = self.judge_hello(payload)?;
        let input = if peer.keyed {
            Input::HelloKeyed
        } else {
            Input::Hello
        };
        self.peer_hello = payload.to_vec();
        self.peer = Some(peer);
        Ok(self.advance(input))
    }

    /// Takes the peer's AUTH payload.
    pub(crate) fn on_auth(&mut self, proof: &[u8]) -> Result<Action, LinkError> {
        self.expect(State::AwaitAuth, Kind::AUTH)?;
        let peer_role = match self.role {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        };
        // `verify_slice` compares in constant time.
        if self.mac(peer_role).verify_slice(proof).is_err() {
            let name = self
                .peer
                .as_ref()
                .map(|p| p.name.clone())
                .unwrap_or_default();
            return Err(LinkError::KeyWrong { name });
        }
        Ok(self.advance(Input::Auth))
    }

    /// Takes any frame but HELLO and AUTH.
    pub(crate) fn on_other(&mut self, kind: Kind) -> Result<(), LinkError> {
        let input = if kind == Kind::GOAWAY {
            Input::GoAway
        } else {
            Input::Traffic
        };
        let before = self.state;
        match self.advance(input) {
            Action::Deliver => Ok(()),
            _ => Err(LinkError::Unexpected {
                kind,
                state: before.describe(),
            }),
        }
    }

    /// This end's AUTH payload.
    pub(crate) fn proof(&self) -> [u8; PROOF] {
        self.mac(self.role).finalize().into_bytes().into()
    }

    fn expect(&self, state: State, kind: Kind) -> Result<(), LinkError> {
        if self.state == state {
            Ok(())
        } else {
            Err(LinkError::Unexpected {
                kind,
                state: self.state.describe(),
            })
        }
    }

    fn advance(&mut self, input: Input) -> Action {
        let (state, action) = step(self.role, self.state, input);
        self.state = state;
        action
    }

    fn judge_hello(&self, payload: &[u8]) -> Result<PeerHello, LinkError> {
        let own_nonce = &self.own_hello[16..48];
        let peer = decode_hello(payload)?;
        if payload[16..48] == *own_nonce {
            return Err(LinkError::Reflected);
        }
        let name = peer.name.clone();
        match (&self.key, peer.keyed) {
            (Some(_), false) => Err(LinkError::KeyMissing { name }),
            (None, true) => Err(LinkError::KeyUnknown { name }),
            _ => Ok(peer),
        }
    }

    /// The proof that `prover` owes, not yet finalised.
    fn mac(&self, prover: Role) -> Hmac<Sha256> {
        let key = self
            .key
            .as_ref()
            .expect("AwaitAuth is entered only with a key");
        let (initiator, responder) = match self.role {
            Role::Initiator => (&self.own_hello, &self.peer_hello),
            Role::Responder => (&self.peer_hello, &self.own_hello),
        };
        let mut mac =
            Hmac::<Sha256>::new_from_slice(key.bytes()).expect("HMAC takes keys of any length");
        mac.update(b"tollgate link 1");
        mac.update(&[match prover {
            Role::Initiator => 0,
            Role::Responder => 1,
        }]);
        for hello in [initiator, responder] {
            let len = u32::try_from(hello.len()).expect("a HELLO is at most MAX_HANDSHAKE bytes");
            mac.update(&len.to_le_bytes());
            mac.update(hello);
        }
        mac
    }
}

fn encode_hello(config: &LinkConfig, nonce: &[u8; 32]) -> Vec<u8> {
    let mut hello = Vec::with_capacity(HELLO_FIXED + config.name.len());
    hello.extend_from_slice(&frame::MAGIC);
    hello.extend_from_slice(&frame::VERSION.to_le_bytes());
    hello.extend_from_slice(&frame::VERSION.to_le_bytes());
    hello.extend_from_slice(&frame::FEATURES.to_le_bytes());
    hello.extend_from_slice(nonce);
    hello.extend_from_slice(&config.window_bytes.to_le_bytes());
    hello.extend_from_slice(&config.window_calls.to_le_bytes());
    hello.push(u8::from(config.key.is_some()));
    hello.push(u8::try_from(config.name.len()).expect("a checked name has at most 64 bytes"));
    hello.extend_from_slice(&[0, 0]);
    hello.extend_from_slice(config.name.as_bytes());
    hello
}

fn decode_hello(payload: &[u8]) -> Result<PeerHello, LinkError> {
    let malformed = || LinkError::Malformed {
        kind: Kind::HELLO,
        len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
    };
    let magic: [u8; 8] = payload
        .get(..8)
        .and_then(|m| m.try_into().ok())
        .ok_or_else(malformed)?;
    if magic != frame::MAGIC {
        return Err(LinkError::Magic { magic });
    }
    if payload.len() < HELLO_FIXED {
        return Err(malformed());
    }
    let (lowest, highest) = (u16_at(payload, 8), u16_at(payload, 10));
    if !(lowest..=highest).contains(&frame::VERSION) {
        return Err(LinkError::Version { lowest, highest });
    }
    let keyed = match payload[60] {
        0 => false,
        1 => true,
        _ => {
            return Err(LinkError::Reserved {
                kind: Kind::HELLO,
                field: "authentication",
            });
        }
    };
    let name_end = HELLO_FIXED + usize::from(payload[61]);
    let name = payload.get(HELLO_FIXED..name_end).ok_or_else(malformed)?;
    let name = String::from_utf8_lossy(name).into_owned();
    if !valid_name(&name) {
        return Err(LinkError::PeerName { name });
    }
    let (window_bytes, window_calls) = (u64_at(payload, 48), u32_at(payload, 56));
    if window_calls > limits::MAX_WINDOW_CALLS || window_bytes > limits::MAX_WINDOW_BYTES {
        return Err(LinkError::CreditOverflow {
            calls: window_calls.into(),
            bytes: window_bytes,
        });
    }
    Ok(PeerHello {
        name,
        version: frame::VERSION,
        offers: u32_at(payload, 12),
        window_calls,
        window_bytes,
        keyed,
    })
}
