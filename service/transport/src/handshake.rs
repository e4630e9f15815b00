//! The handshake: its states, and the proof of the key.
//!
//! ```text
//!                     HELLO, no key on either end
//!   AwaitHello ------------------------------------------------> Ready
//!       |                                                          ^
//!       | HELLO, key on both ends                                  | valid AUTH
//!       |   responder: send AUTH                                   |   initiator: send AUTH
//!       +--------------------------> AwaitAuth --------------------+
//!
//!   any state: GOAWAY before Ready, an unexpected frame, a bad HELLO or AUTH ------> Ended
//! ```
//! Both ends send HELLO at once. A proof covers both whole HELLOs, and therefore both nonces,
//! names, versions and windows, the initiator's target, and the prover's role: it can't be replayed
//! on another link or reflected on this one. It can't be relayed either: a daemon that was tricked
//! into dialling another host states its target, and a daemon that isn't the target refuses
//! (`Names::include`). A daemon also refuses itself.
//!
//! The responder proves itself first, so that a dialling daemon gives the other end nothing to
//! attack offline. The remaining risk: anyone who reaches the port of a daemon with a key gets one
//! proof, against which keys can be tried. So keys must be random
//! ([`PresharedKey::new`](crate::PresharedKey::new) refuses weak ones).
//!
//! Later frames are sealed with keys of this link alone (`seal.rs`). Deliberately absent: secrecy.
//! Mutual TLS will provide it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::{
    ConfigError, LinkConfig, LinkSetup, PresharedKey, Role, names_one_host, valid_name,
};
use crate::error::LinkError;
use crate::frame::{self, Kind, u16_at, u32_at, u64_at};
use crate::limits;
use crate::seal::Seal;

/// The bytes of a HELLO before the name.
const HELLO_FIXED: usize = 64;

/// The bytes between name and address in a HELLO of version 2.
const MEANT_FIXED: usize = 20;

/// A HELLO's flag: later frames may have no tags.
const UNPROTECTED: u8 = 1;

/// The bytes of a proof.
pub(crate) const PROOF: usize = 32;

/// The state of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    AwaitHello,
    AwaitAuth,
    Ready,
    Ended,
}

impl State {
    /// For messages: "... while this end was {}".
    pub(crate) fn describe(self) -> &'static str {
        match self {
            State::AwaitHello => "waiting for HELLO",
            State::AwaitAuth => "waiting for AUTH",
            State::Ready => "ready",
            State::Ended => "done",
        }
    }
}

/// A frame, reduced to what the handshake needs; its contents have been validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// An acceptable HELLO; neither end has a key.
    Hello,
    /// An acceptable HELLO; both ends have a key.
    HelloKeyed,
    /// This end rejected a frame, or gives up.
    Refused,
    /// A valid proof.
    Auth,
    /// The peer ends the link, or announces this.
    GoAway,
    /// Any other frame.
    Traffic,
}

/// The reaction to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing yet.
    Wait,
    /// Send this end's proof.
    Prove,
    /// The peer is authenticated: tell the daemon.
    Welcome,
    /// Send this end's proof, then tell the daemon.
    ProveAndWelcome,
    /// Pass the frame on.
    Deliver,
    /// End the link.
    End,
}

/// The transitions of the diagram above.
pub(crate) fn step(role: Role, state: State, input: Input) -> (State, Action) {
    match (state, input) {
        (State::AwaitHello, Input::Hello) => (State::Ready, Action::Welcome),
        (State::AwaitHello, Input::HelloKeyed) => match role {
            Role::Initiator => (State::AwaitAuth, Action::Wait),
            Role::Responder => (State::AwaitAuth, Action::Prove),
        },
        (State::AwaitAuth, Input::Auth) => match role {
            Role::Initiator => (State::Ready, Action::ProveAndWelcome),
            Role::Responder => (State::Ready, Action::Welcome),
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

/// The contents of the peer's HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerHello {
    pub(crate) name: String,
    pub(crate) version: u16,
    pub(crate) offers: u32,
    pub(crate) window_calls: u32,
    pub(crate) window_bytes: u64,
    /// Further fields if it has a key.
    keyed: Option<Keyed>,
}

impl PeerHello {
    pub(crate) fn identity(&self) -> &[u8] {
        match &self.keyed {
            Some(keyed) => &keyed.instance,
            None => self.name.as_bytes(),
        }
    }
}

/// The further fields of a daemon with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Keyed {
    instance: [u8; 16],
    unprotected: bool,
    /// The target of the initiator, and the address that it dialled.
    target: String,
    address: String,
}

/// The names of the accepting end.
#[derive(Debug)]
struct Names {
    /// The address at which the connection arrived.
    arrived: SocketAddr,
    own: String,
    others: Arc<[String]>,
    only_names: bool,
}

/// A handshake that moves to another process.
pub(crate) struct Frozen {
    pub(crate) role: Role,
    pub(crate) state: State,
    pub(crate) own_hello: Vec<u8>,
    /// Empty before the HELLO has come.
    pub(crate) peer_hello: Vec<u8>,
    pub(crate) offers: u32,
    pub(crate) peer_offers: u32,
    /// The address at which the connection arrived, or that was dialled.
    pub(crate) address: SocketAddr,
}

/// The mistake in the state of a handshake that another process has handed over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ThawError {
    #[error(transparent)]
    Hello(LinkError),
    #[error("the peer's HELLO doesn't match the state, {state}")]
    State { state: &'static str },
    #[error("the HELLO and the configuration disagree about a key")]
    Key,
    #[error("it waits for a proof of a key, but has none")]
    Keyless,
    #[error("it uses the feature bits {unknown:#x}, which this daemon doesn't know")]
    Features { unknown: u32 },
}

/// The handshake of one link.
#[derive(Debug)]
pub(crate) struct Handshake {
    role: Role,
    state: State,
    key: Option<PresharedKey>,
    names: Names,
    own_hello: Vec<u8>,
    own: Option<Keyed>,
    /// The features that this end offers, in its HELLO or later.
    offers: u32,
    peer_hello: Vec<u8>,
    peer: Option<PeerHello>,
}

impl Handshake {
    pub(crate) fn new(config: &LinkConfig, setup: &LinkSetup) -> Result<Handshake, ConfigError> {
        if setup.target.len() > limits::MAX_TARGET {
            let len = setup.target.len();
            return Err(ConfigError::Target { len });
        }
        let own = config.key.as_ref().map(|_| Keyed::of(config, setup));
        let own_hello = encode_hello(config, &setup.nonce, own.as_ref());
        Ok(Handshake {
            role: setup.role,
            state: State::AwaitHello,
            key: config.key.clone(),
            names: Names::of(config, setup.address),
            own_hello,
            own,
            offers: frame::FEATURES,
            peer_hello: Vec::new(),
            peer: None,
        })
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Ends the handshake from this end.
    pub(crate) fn end(&mut self) {
        self.advance(Input::Refused);
    }

    pub(crate) fn peer(&self) -> Option<&PeerHello> {
        self.peer.as_ref()
    }

    /// The features that both ends offer; none before the peer's HELLO.
    pub(crate) fn features(&self) -> u32 {
        self.peer.as_ref().map_or(0, |peer| peer.offers) & self.offers
    }

    /// Sets the features that this end offers. Returns whether they changed.
    pub(crate) fn offer(&mut self, offers: u32) -> bool {
        std::mem::replace(&mut self.offers, offers) != offers
    }

    /// The handshake's state, for another process.
    pub(crate) fn freeze(&self) -> Frozen {
        Frozen {
            role: self.role,
            state: self.state,
            own_hello: self.own_hello.clone(),
            peer_hello: self.peer_hello.clone(),
            offers: self.offers,
            peer_offers: self.peer.as_ref().map_or(0, |peer| peer.offers),
            address: self.names.arrived,
        }
    }

    /// Restores a handshake that was [frozen](Self::freeze), with the key of `config`; or returns
    /// the mistake.
    pub(crate) fn thaw(frozen: Frozen, config: &LinkConfig) -> Result<Handshake, ThawError> {
        let peer = match &frozen.peer_hello[..] {
            [] => None,
            hello => Some(decode_hello(hello).map_err(ThawError::Hello)?),
        };
        let own = decode_hello(&frozen.own_hello).map_err(ThawError::Hello)?;
        let mut handshake = Handshake {
            role: frozen.role,
            state: frozen.state,
            key: config.key.clone(),
            names: Names::of(config, frozen.address),
            own_hello: frozen.own_hello,
            own: own.keyed,
            offers: frozen.offers,
            peer_hello: frozen.peer_hello,
            peer,
        };
        let waits_for_hello = handshake.state == State::AwaitHello;
        if waits_for_hello != handshake.peer.is_none() {
            let state = handshake.state.describe();
            return Err(ThawError::State { state });
        }
        let peer_keyed = handshake.peer.as_ref().map(|peer| peer.keyed.is_some());
        let is_keyed = handshake.own.is_some();
        if is_keyed != handshake.key.is_some() || peer_keyed.is_some_and(|its| its != is_keyed) {
            return Err(ThawError::Key);
        }
        if handshake.state == State::AwaitAuth && !is_keyed {
            return Err(ThawError::Keyless);
        }
        if let Some(peer) = &mut handshake.peer {
            peer.offers = frozen.peer_offers;
        }
        // Before the peer's HELLO has come, all features that this end has offered may be agreed
        // on.
        let agreed = match waits_for_hello {
            true => handshake.offers,
            false => handshake.features(),
        };
        match agreed & !frame::FEATURES {
            0 => Ok(handshake),
            unknown => Err(ThawError::Features { unknown }),
        }
    }

    /// Sets the features that the peer offers. Returns whether they include all agreed ones.
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

    /// Processes the peer's HELLO payload.
    pub(crate) fn on_hello(&mut self, payload: &[u8]) -> Result<Action, LinkError> {
        self.expect(State::AwaitHello, Kind::HELLO)?;
        let peer = self.check_hello(payload)?;
        let input = match peer.keyed {
            Some(_) => Input::HelloKeyed,
            None => Input::Hello,
        };
        self.peer_hello = payload.to_vec();
        self.peer = Some(peer);
        Ok(self.advance(input))
    }

    /// Processes the peer's AUTH payload.
    pub(crate) fn on_auth(&mut self, proof: &[u8]) -> Result<Action, LinkError> {
        self.expect(State::AwaitAuth, Kind::AUTH)?;
        let peer_role = match self.role {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        };
        // `verify_slice` compares in constant time.
        if self.derive("proof", peer_role).verify_slice(proof).is_err() {
            let name = self
                .peer
                .as_ref()
                .map(|p| p.name.clone())
                .unwrap_or_default();
            return Err(LinkError::KeyWrong { name });
        }
        Ok(self.advance(Input::Auth))
    }

    /// Processes any frame except HELLO and AUTH.
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
        self.derive("proof", self.role)
            .finalize()
            .into_bytes()
            .into()
    }

    /// The seal for the frames of a role after this many; `None` if they aren't sealed.
    pub(crate) fn seal(&self, role: Role, frames: u64) -> Option<Seal> {
        let key = || self.derive("frames", role).finalize().into_bytes().into();
        self.is_sealed().then(|| Seal::new(&key(), frames))
    }

    /// Whether frames have tags after their end's proof.
    pub(crate) fn is_sealed(&self) -> bool {
        let peer = self.peer.as_ref().and_then(|peer| peer.keyed.as_ref());
        let both = self.own.as_ref().zip(peer);
        both.is_some_and(|(own, peer)| !(own.unprotected && peer.unprotected))
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// An id that distinguishes secrets without revealing them: shows whether another process has
    /// this link's key.
    pub(crate) fn secret_id(&self) -> u64 {
        let id = self.derive("identity", Role::Initiator).finalize();
        u64_at(&id.into_bytes(), 0)
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

    fn check_hello(&self, payload: &[u8]) -> Result<PeerHello, LinkError> {
        let own_nonce = &self.own_hello[16..48];
        let peer = decode_hello(payload)?;
        if payload[16..48] == *own_nonce {
            return Err(LinkError::Reflected);
        }
        let name = peer.name.clone();
        match (&self.own, &peer.keyed) {
            (Some(_), None) => Err(LinkError::KeyMissing { name }),
            (None, Some(_)) => Err(LinkError::KeyUnknown { name }),
            (Some(own), Some(keyed)) if own.instance == keyed.instance => Err(LinkError::Itself),
            (Some(_), Some(keyed)) if self.role == Role::Responder => {
                match self.names.include(keyed) {
                    true => Ok(peer),
                    false => Err(LinkError::NotMeant {
                        target: keyed.target.clone(),
                        dialled: keyed.address.clone(),
                        arrived: self.names.arrived,
                    }),
                }
            }
            _ => Ok(peer),
        }
    }

    /// Derives a MAC from the key for this link alone.
    fn derive(&self, what: &str, role: Role) -> Hmac<Sha256> {
        let key = self.key.as_ref().expect("asked only with a key");
        let (initiator, responder) = match self.role {
            Role::Initiator => (&self.own_hello, &self.peer_hello),
            Role::Responder => (&self.peer_hello, &self.own_hello),
        };
        let mut mac = hmac(key.bytes());
        mac.update(b"tollgate link 2");
        for hello in [initiator, responder] {
            let len = u32::try_from(hello.len()).expect("a HELLO is at most MAX_HANDSHAKE bytes");
            mac.update(&len.to_le_bytes());
            mac.update(hello);
        }
        let mut derived = hmac(&mac.finalize().into_bytes());
        derived.update(what.as_bytes());
        derived.update(match role {
            Role::Initiator => b" of the initiator",
            Role::Responder => b" of the responder",
        });
        derived
    }
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length")
}

impl Keyed {
    /// This end's further fields.
    fn of(config: &LinkConfig, setup: &LinkSetup) -> Keyed {
        let (target, address) = match setup.role {
            Role::Initiator => (setup.target.clone(), setup.address.to_string()),
            Role::Responder => (String::new(), String::new()),
        };
        Keyed {
            instance: config.instance,
            unprotected: config.unprotected,
            target,
            address,
        }
    }

    fn encode(&self, hello: &mut Vec<u8>) {
        let Keyed {
            target, address, ..
        } = self;
        hello.extend_from_slice(&self.instance);
        hello.push(if self.unprotected { UNPROTECTED } else { 0 });
        hello.push(u8::try_from(address.len()).expect("an address has fewer than 100 bytes"));
        let len = u16::try_from(target.len()).expect("a checked target has at most MAX_TARGET");
        hello.extend_from_slice(&len.to_le_bytes());
        hello.extend_from_slice(address.as_bytes());
        hello.extend_from_slice(target.as_bytes());
    }

    fn decode(rest: &[u8]) -> Option<Keyed> {
        let (fixed, rest) = rest.split_at_checked(MEANT_FIXED)?;
        let (address_len, target_len) = (usize::from(fixed[17]), usize::from(u16_at(fixed, 18)));
        let (address, rest) = rest.split_at_checked(address_len)?;
        let target = rest.get(..target_len)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(Keyed {
            instance: *fixed.first_chunk()?,
            unprotected: fixed[16] & UNPROTECTED != 0,
            target: text(target),
            address: text(address),
        })
    }
}

impl Names {
    fn of(config: &LinkConfig, arrived: SocketAddr) -> Names {
        Names {
            arrived,
            own: config.name.clone(),
            others: Arc::clone(&config.names),
            only_names: config.only_names,
        }
    }

    /// Whether an initiator with this HELLO means this daemon.
    ///
    /// It does if its target names this daemon: by an address at which its connection arrived, or
    /// by a name that the daemon knows as its own, with the port. It also does if it dialled the
    /// address at which its connection arrived, whatever the name, unless `only_names`: a relay
    /// elsewhere was dialled at another address. All hosts share loopback addresses, so those alone
    /// identify no daemon.
    fn include(&self, peer: &Keyed) -> bool {
        let arrived = self.arrived;
        let is_here = |address: SocketAddr| {
            let (its, own) = (address.ip().to_canonical(), arrived.ip().to_canonical());
            (its, address.port()) == (own, arrived.port())
        };
        if self.knows(&peer.target) || self.knows(&peer.address) {
            return true;
        }
        match peer.target.parse::<SocketAddr>() {
            Ok(address) => is_here(address),
            Err(_) if self.only_names || arrived.ip().to_canonical().is_loopback() => false,
            Err(_) => peer.address.parse().is_ok_and(is_here),
        }
    }

    /// Whether this `host:port` is a name of this daemon.
    fn knows(&self, target: &str) -> bool {
        let Some((host, port)) = target.rsplit_once(':') else {
            return false;
        };
        let is_own_port = port.parse() == Ok(self.arrived.port());
        let same = |a: &str, b: &str| {
            a.trim_end_matches('.')
                .eq_ignore_ascii_case(b.trim_end_matches('.'))
        };
        let is_loopback = self.arrived.ip().to_canonical().is_loopback();
        let mut others = self.others.iter();
        let is_named = same(host, &self.own) && names_one_host(host);
        is_own_port && (is_named || is_loopback && same(host, "localhost"))
            || others.any(|name| match name.rsplit_once(':') {
                Some((its, its_port)) if !name.ends_with(']') => {
                    port == its_port && same(host, its)
                }
                _ => is_own_port && same(host, name),
            })
    }
}

fn encode_hello(config: &LinkConfig, nonce: &[u8; 32], keyed: Option<&Keyed>) -> Vec<u8> {
    let version = match keyed {
        Some(_) => frame::KEYED_VERSION,
        None => frame::VERSION,
    };
    let mut hello = Vec::with_capacity(HELLO_FIXED + config.name.len());
    hello.extend_from_slice(&frame::MAGIC);
    hello.extend_from_slice(&version.to_le_bytes());
    hello.extend_from_slice(&version.to_le_bytes());
    hello.extend_from_slice(&frame::FEATURES.to_le_bytes());
    hello.extend_from_slice(nonce);
    hello.extend_from_slice(&config.window_bytes.to_le_bytes());
    hello.extend_from_slice(&config.window_calls.to_le_bytes());
    hello.push(u8::from(keyed.is_some()));
    hello.push(u8::try_from(config.name.len()).expect("a checked name has at most 64 bytes"));
    hello.extend_from_slice(&[0, 0]);
    hello.extend_from_slice(config.name.as_bytes());
    if let Some(keyed) = keyed {
        keyed.encode(&mut hello);
    }
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
    let version = match payload[60] {
        0 => frame::VERSION,
        1 => frame::KEYED_VERSION,
        _ => {
            return Err(LinkError::Reserved {
                kind: Kind::HELLO,
                field: "authentication",
            });
        }
    };
    if !(lowest..=highest).contains(&version) {
        return Err(LinkError::Version { lowest, highest });
    }
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
    let keyed = match version {
        frame::KEYED_VERSION => Some(Keyed::decode(&payload[name_end..]).ok_or_else(malformed)?),
        _ => None,
    };
    Ok(PeerHello {
        name,
        version,
        offers: u32_at(payload, 12),
        window_calls,
        window_bytes,
        keyed,
    })
}
