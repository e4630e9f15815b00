//! A link taken apart, for another process to go on with: the same connection, at the very byte where it stands.
//!
//! ```text
//!  handshake      role, state, both HELLOs, what both ends offer now
//!  received       what came and hasn't been parsed: less than a frame, or frames whose turn hasn't come
//!  incoming       the large body that is being read: its length, how much of it is there, whether it is given up, its tag
//!  sealed ...     how many frames either end has sealed, and of which secret; keys are derived anew, from the key that this process has
//!  description    the pieces of a BOUND that are here
//!  queued         what waits to leave, whose first bytes may be the middle of a frame
//!  credit ...     both windows, calls that wait for their answer, when the peer was last heard
//! ```
//!
//! Whoever freezes a link neither reads from its socket nor writes to it afterwards, unless the other process gives up. What waits to
//! leave is copied, out of shared memory, too, so no token outlives the freezing. Bytes lie beside the form; it has their places.
//! What a link has moved is counted anew.
//!
//! The form is read as the engine's: what isn't known is skipped, what is missing is as its declaration says.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{BodyCheck, Description, Incoming, Link};
use crate::config::{LinkConfig, Role, check_window};
use crate::event::{Credit, Moved};
use crate::frame::{FEATURE_RENEWAL, FEATURES, Header, Kind};
use crate::handshake::{Frozen as FrozenHandshake, Handshake, State};
use crate::limits;
use crate::rx::Rx;
use crate::seal::{Seal, TAG, What};
use crate::tx::Tx;

/// What a link is between two turns, without its socket; the bytes that it refers to lie where [`Link::freeze`] has put them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FrozenLink {
    #[serde(with = "RoleForm")]
    role: Role,
    #[serde(with = "StateForm")]
    state: State,
    own_hello: Bytes,
    peer_hello: Bytes,
    offers: u32,
    peer_offers: u32,
    /// What was dialled, or where it arrived. Those of before this have no key.
    #[serde(default = "nowhere")]
    address: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret_id: Option<u64>,
    received: Bytes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incoming: Option<IncomingForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<DescriptionForm>,
    queued: Bytes,
    /// The PONG that is owed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pong: Option<u64>,
    credit: CreditForm,
    granted: CreditForm,
    returned: CreditForm,
    window: CreditForm,
    surplus: CreditForm,
    unanswered: u64,
    going_away: bool,
    pinged: bool,
    started_ns: u64,
    heard_ns: u64,
}

/// Where bytes begin among those beside the form, and how many they are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Bytes {
    at: usize,
    len: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct IncomingForm {
    len: usize,
    filled: usize,
    skip: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<[u8; TAG]>,
}

fn nowhere() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct DescriptionForm {
    bind: u32,
    len: usize,
    bytes: Bytes,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CreditForm {
    calls: u32,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Role", rename_all = "snake_case")]
enum RoleForm {
    Initiator,
    Responder,
}

/// A link that has ended isn't frozen.
#[derive(Serialize, Deserialize)]
#[serde(remote = "State", rename_all = "snake_case")]
enum StateForm {
    AwaitHello,
    AwaitAuth,
    Ready,
    #[serde(skip)]
    Ended,
}

/// Why a link can't go on in this process: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unportable(pub String);

impl fmt::Display for Unportable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unportable {}

impl Bytes {
    fn keep(bytes: &[u8], out: &mut Vec<u8>) -> Bytes {
        let at = out.len();
        out.extend_from_slice(bytes);
        Bytes {
            at,
            len: bytes.len(),
        }
    }

    fn of(self, bytes: &[u8]) -> Result<&[u8], Unportable> {
        let rest = bytes.get(self.at..).unwrap_or_default();
        rest.get(..self.len).ok_or_else(|| {
            let Bytes { at, len } = self;
            Unportable(format!("{len} bytes of a link at {at} aren't there"))
        })
    }
}

impl Link {
    /// The link as it is, its bytes at the end of `out`; `None` if it has ended. It stays as it is, and the caller lets it rest: what would
    /// be sent or received from here on would be so twice.
    pub fn freeze(&self, out: &mut Vec<u8>) -> Option<FrozenLink> {
        if self.failed.is_some() || self.handshake.state() == State::Ended {
            return None;
        }
        let shake = self.handshake.freeze();
        let description = self.description.as_ref().map(|its| DescriptionForm {
            bind: its.bind,
            len: its.len,
            bytes: Bytes::keep(&its.bytes, out),
        });
        let incoming = self.incoming.as_ref().map(|body| IncomingForm {
            len: body.len,
            filled: body.filled,
            skip: body.skip,
            tag: body.check.as_ref().map(|check| check.tag),
        });
        let sealed = self.tx.seal().map(Seal::frames);
        let at = out.len();
        self.tx.copy_to(out);
        let len = out.len() - at;
        let queued = Bytes { at, len };
        Some(FrozenLink {
            role: shake.role,
            state: shake.state,
            own_hello: Bytes::keep(&shake.own_hello, out),
            peer_hello: Bytes::keep(&shake.peer_hello, out),
            offers: shake.offers,
            peer_offers: shake.peer_offers,
            address: shake.address,
            sealed,
            opened: self.opener.as_ref().map(Seal::frames),
            secret_id: sealed.map(|_| self.handshake.secret_id()),
            received: Bytes::keep(self.rx.unparsed(), out),
            incoming,
            description,
            queued,
            pong: self.pong,
            credit: self.credit.into(),
            granted: self.granted.into(),
            returned: self.returned.into(),
            window: self.window.into(),
            surplus: self.surplus.into(),
            unanswered: self.unanswered,
            going_away: self.going_away,
            pinged: self.pinged,
            started_ns: self.started_ns,
            heard_ns: self.heard_ns,
        })
    }

    /// The link that [was frozen](Self::freeze), with the bytes beside it. What this code offers and the other didn't is offered to the
    /// peer now, if it can be told.
    ///
    /// # Errors
    /// Both ends have agreed on something that this code doesn't know; or no link can have been like that.
    pub fn thaw(frozen: FrozenLink, bytes: &[u8], config: &LinkConfig) -> Result<Link, Unportable> {
        let handshake = Handshake::thaw(
            FrozenHandshake {
                role: frozen.role,
                state: frozen.state,
                own_hello: frozen.own_hello.of(bytes)?.to_vec(),
                peer_hello: frozen.peer_hello.of(bytes)?.to_vec(),
                offers: frozen.offers,
                peer_offers: frozen.peer_offers,
                address: frozen.address,
            },
            config,
        )
        .map_err(Unportable)?;
        let (seal, opener) = seals_again(&handshake, &frozen)?;
        let received = frozen.received.of(bytes)?;
        let description = frozen.description.map(|its| {
            let piece = its.bytes.of(bytes)?;
            ensure(
                piece.len() <= its.len && its.len <= limits::MAX_DESCRIPTION,
                || format!("{} of {} bytes of a description", piece.len(), its.len),
            )?;
            Ok(Description {
                bind: its.bind,
                len: its.len,
                bytes: piece.to_vec(),
            })
        });
        let incoming = frozen.incoming.map(|body| {
            ensure(body.tag.is_some() == opener.is_some(), || {
                "a large message whose tag is missing".to_owned()
            })?;
            let check = body.tag.zip(opener.as_ref());
            Ok(Incoming {
                len: body.len,
                filled: body.filled,
                skip: body.skip,
                check: check.map(|(tag, opener)| BodyCheck {
                    tag,
                    cover: opener.cover_of_last(What::Body),
                    seen: 0,
                }),
            })
        });
        let mut tx = Tx::of(frozen.queued.of(bytes)?);
        tx.seal_with(seal);
        let mut link = Link {
            handshake,
            rx: Rx::of(received),
            opener,
            tx,
            incoming: incoming.transpose()?,
            description: description.transpose()?,
            credit: frozen.credit.into(),
            granted: frozen.granted.into(),
            returned: frozen.returned.into(),
            window: frozen.window.into(),
            surplus: frozen.surplus.into(),
            unanswered: frozen.unanswered,
            moved: Moved::default(),
            share_min: limits::SHARE_MIN,
            taken: 0,
            pong: frozen.pong,
            going_away: frozen.going_away,
            failed: None,
            // That it takes a while to be handed over isn't the peer's silence.
            heard: true,
            pinged: frozen.pinged,
            started_ns: frozen.started_ns,
            heard_ns: frozen.heard_ns,
        };
        link.check(received.len())?;
        link.renew();
        Ok(link)
    }

    fn check(&self, received: usize) -> Result<(), Unportable> {
        ensure(received <= limits::RX_BUFFER, || {
            format!("{received} bytes were received and not looked at")
        })?;
        if let Some(Incoming { len, filled, .. }) = self.incoming {
            ensure(filled < len && len <= limits::MAX_MESSAGE as usize, || {
                format!("{filled} of {len} bytes of a large message")
            })?;
        }
        let window = check_window(self.window.calls, self.window.bytes);
        window.map_err(|error| Unportable(error.to_string()))?;
        let books = |window: u64, surplus: u64, granted: u64, returned: u64| {
            let used = window
                .checked_add(surplus)
                .and_then(|had| had.checked_sub(granted));
            ensure(used.is_some_and(|used| returned <= used), || {
                format!(
                    "the peer has {granted} of a window of {window} and {surplus} beyond, and {returned} returned"
                )
            })
        };
        let of_calls = |credit: Credit| u64::from(credit.calls);
        books(
            of_calls(self.window),
            of_calls(self.surplus),
            of_calls(self.granted),
            of_calls(self.returned),
        )?;
        books(
            self.window.bytes,
            self.surplus.bytes,
            self.granted.bytes,
            self.returned.bytes,
        )
    }

    /// Offers the peer what this code knows, if that isn't what it was offered.
    fn renew(&mut self) {
        let can_be_told = self.is_ready() && self.features() & FEATURE_RENEWAL != 0;
        if can_be_told && self.handshake.offer(FEATURES) {
            let aux = FEATURES;
            let header = Header::new(Kind::FEATURES);
            self.tx.frame(Header { aux, ..header }, &[]);
        }
    }
}

/// What seals, and what opens: as far as the handshake has come, and of the key that it began with.
fn seals_again(
    handshake: &Handshake,
    frozen: &FrozenLink,
) -> Result<(Option<Seal>, Option<Seal>), Unportable> {
    let (own, theirs) = match frozen.role {
        Role::Initiator => (Role::Initiator, Role::Responder),
        Role::Responder => (Role::Responder, Role::Initiator),
    };
    let is_ready = frozen.state == State::Ready;
    let has_proved = is_ready || (frozen.state, own) == (State::AwaitAuth, Role::Responder);
    let expected = [has_proved, is_ready].map(|so_far| so_far && handshake.is_sealed());
    let there = [frozen.sealed, frozen.opened].map(|frames| frames.is_some());
    ensure(expected == there, || {
        "whether its frames are sealed isn't what the HELLOs say".to_owned()
    })?;
    if frozen.sealed.is_some() && frozen.secret_id != Some(handshake.secret_id()) {
        let why = "the key isn't the one that it began with";
        return Err(Unportable(why.to_owned()));
    }
    let again = |role, frames: Option<u64>| frames.and_then(|frames| handshake.seal(role, frames));
    Ok((again(own, frozen.sealed), again(theirs, frozen.opened)))
}

/// `Err` with a sentence, unless `holds`.
fn ensure(holds: bool, sentence: impl FnOnce() -> String) -> Result<(), Unportable> {
    match holds {
        true => Ok(()),
        false => Err(Unportable(sentence())),
    }
}

impl From<Credit> for CreditForm {
    fn from(Credit { calls, bytes }: Credit) -> Self {
        Self { calls, bytes }
    }
}

impl From<CreditForm> for Credit {
    fn from(CreditForm { calls, bytes }: CreditForm) -> Self {
        Self { calls, bytes }
    }
}
