//! A frozen link, which another process can continue: the same connection, at exactly the same
//! byte.
//!
//! ```text
//!  handshake      role, state, both HELLOs, the features that both ends offer now
//!  received       received bytes that weren't parsed: part of a frame, or frames that wait for their turn
//!  incoming       the large body being read: its length, the bytes so far, whether it is skipped, its tag
//!  sealed ...     the number of frames that each end has sealed, and the secret's id; keys are derived again from this process's key
//!  description    the received pieces of a BOUND
//!  queued         queued bytes, which may begin in the middle of a frame
//!  credit ...     both windows, unanswered calls, the time of the peer's last bytes
//! ```
//!
//! After freezing a link, its process neither reads from its socket nor writes to it, unless the
//! other process gives up. Queued bytes are copied, including those in shared memory, so no token
//! outlives the freezing. Bytes are stored outside the form, which has their positions. The counts
//! of moved bytes restart at zero.
//!
//! The form is parsed like the engine's: unknown fields are skipped, missing ones have their
//! declared defaults.

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

/// The state of a link between two turns, without its socket; the bytes that it refers to are where
/// [`Link::freeze`] has put them.
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
    /// The dialled address, or the address of arrival. Links that predate this field have no key.
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

/// The position and length of bytes outside the form.
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

/// The reason, as one sentence, why a link can't continue in this process. It is for people: no
/// code reacts to one of the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unportable(pub String);

impl fmt::Display for Unportable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unportable {}

/// The largest count of frames or calls, or time in ns, of a link. Counting on from a larger one
/// could overflow.
const MAX_COUNT: u64 = 1 << 62;

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
            Unportable(format!("{len} bytes of a link at {at} are missing"))
        })
    }
}

impl Link {
    /// The link's state, with its bytes at the end of `out`; `None` if it has ended. The link is
    /// unchanged, and the caller must not use it: further bytes would be sent or received twice.
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

    /// Restores a link that [was frozen](Self::freeze), with its bytes. Features that this code
    /// offers and the other process didn't are offered to the peer now, if possible.
    ///
    /// # Errors
    /// Both ends have agreed on a feature that this code doesn't know; or the state is impossible.
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
        .map_err(|error| Unportable(error.to_string()))?;
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
                "a large message's tag is missing".to_owned()
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
            // The time of the handover isn't the peer's silence.
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
            format!("{received} bytes were received and not parsed")
        })?;
        if let Some(Incoming { len, filled, .. }) = self.incoming {
            ensure(filled < len && len <= limits::MAX_MESSAGE as usize, || {
                format!("{filled} of {len} bytes of a large message")
            })?;
        }
        let window = check_window(self.window.calls, self.window.bytes);
        window.map_err(|error| Unportable(error.to_string()))?;
        let counts = [
            self.unanswered,
            self.started_ns,
            self.heard_ns,
            self.tx.seal().map_or(0, Seal::frames),
            self.opener.as_ref().map_or(0, Seal::frames),
        ];
        for count in counts {
            ensure(count <= MAX_COUNT, || {
                format!("a counter of {count} is impossible")
            })?;
        }
        let books = |limit: u64, window: u64, surplus: u64, granted: u64, returned: u64| {
            let used = window
                .checked_add(surplus)
                .filter(|had| *had <= limit)
                .and_then(|had| had.checked_sub(granted));
            ensure(used.is_some_and(|used| returned <= used), || {
                format!(
                    "the peer has {granted} of a window of {window} and {surplus} beyond, and {returned} returned"
                )
            })
        };
        let of_calls = |credit: Credit| u64::from(credit.calls);
        books(
            limits::MAX_WINDOW_CALLS.into(),
            of_calls(self.window),
            of_calls(self.surplus),
            of_calls(self.granted),
            of_calls(self.returned),
        )?;
        books(
            limits::MAX_WINDOW_BYTES,
            self.window.bytes,
            self.surplus.bytes,
            self.granted.bytes,
            self.returned.bytes,
        )
    }

    /// Offers the peer this code's features, if they differ from the earlier offer.
    fn renew(&mut self) {
        let can_be_told = self.is_ready() && self.features() & FEATURE_RENEWAL != 0;
        if can_be_told && self.handshake.offer(FEATURES) {
            let aux = FEATURES;
            let header = Header::new(Kind::FEATURES);
            self.tx.frame(Header { aux, ..header }, &[]);
        }
    }
}

/// The seals of both directions, as far as the handshake has come, with the link's original key.
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
        "the HELLOs and the state disagree about sealed frames".to_owned()
    })?;
    if frozen.sealed.is_some() && frozen.secret_id != Some(handshake.secret_id()) {
        let why = "the key isn't the link's original key";
        return Err(Unportable(why.to_owned()));
    }
    let again = |role, frames: Option<u64>| frames.and_then(|frames| handshake.seal(role, frames));
    Ok((again(own, frozen.sealed), again(theirs, frozen.opened)))
}

/// Returns `Err` with a message, unless `holds`.
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
