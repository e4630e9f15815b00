//! Ids of sessions, links, services, chains, engines and calls.
//!
//! ```text
//!  key: | generation, 32 bits | engine id, 14 bits | slot, 18 bits |
//! ```
//!
//! A call's key is unique in a process: its engine id is that of the engine in which the call
//! began.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_CALLS, MAX_ENGINE_IDS};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);
    };
}
id!(/// An application's session on this runtime. Chosen by the rim, never reused while calls name it.
    SessionId);
id!(/// A connection to a peer daemon. Chosen by the rim.
    LinkId);
id!(/// A tenant's service served on this host.
    ServiceId);
id!(/// An ordered list of policies, known to the rim.
    ChainId);

/// The bits of the slot in a key's lower half.
const SLOT_BITS: u32 = 18;

/// The number of slots that keys can name: an engine that takes calls back may have more than it
/// admits.
pub(crate) const MAX_SLOTS: usize = 1 << SLOT_BITS;

const _: () = assert!(MAX_SLOTS >= 2 * MAX_CALLS);
const _: () = assert!((MAX_ENGINE_IDS as u64) << SLOT_BITS == 1 << 32);

/// Distinguishes the engines of a process, including those that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct EngineId(u16);

impl EngineId {
    /// The id with this number; `None`: the number is too large ([`MAX_ENGINE_IDS`]).
    pub fn new(number: u32) -> Option<Self> {
        let number = u16::try_from(number).ok()?;
        (usize::from(number) < MAX_ENGINE_IDS).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0.into()
    }

    /// Its bits in a key's lower half.
    #[inline]
    fn bits(self) -> u32 {
        u32::from(self.0) << SLOT_BITS
    }
}

/// A number that isn't an [`EngineId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEngineId(u16);

impl fmt::Display for NoEngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoEngineId(number) = self;
        write!(f, "{number} is no engine id: there are {MAX_ENGINE_IDS}")
    }
}

impl std::error::Error for NoEngineId {}

impl TryFrom<u16> for EngineId {
    type Error = NoEngineId;

    fn try_from(number: u16) -> Result<Self, NoEngineId> {
        EngineId::new(number.into()).ok_or(NoEngineId(number))
    }
}

impl From<EngineId> for u16 {
    fn from(engine_id: EngineId) -> Self {
        engine_id.0
    }
}

/// Identifies one call of one engine: a slot and the generation of its use.
///
/// Peers and serving applications get it as the call's number, so it is checked on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct CallKey {
    /// The slot, with the engine id in the bits above.
    slot: u32,
    generation: u32,
}

impl CallKey {
    /// The number that travels in descriptors and frames.
    pub fn to_wire(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The key that a peer or application claims; the table checks whether it names a live call.
    pub fn from_wire(wire: u64) -> Self {
        Self {
            slot: wire as u32,
            generation: (wire >> 32) as u32,
        }
    }

    /// The engine in which the call began.
    pub fn engine_id(self) -> EngineId {
        EngineId((self.slot >> SLOT_BITS) as u16)
    }

    /// The first use of a slot.
    #[inline]
    pub(crate) fn first(engine_id: EngineId, slot: u32) -> Self {
        Self {
            slot: engine_id.bits() | slot,
            generation: 0,
        }
    }

    /// Its slot in a table of this engine; beyond all slots if the key has another engine id.
    #[inline]
    pub(crate) fn slot_under(self, engine_id: EngineId) -> u32 {
        self.slot ^ engine_id.bits()
    }

    /// The next use of the same slot.
    #[inline]
    pub(crate) fn next(self) -> Self {
        Self {
            generation: self.generation.wrapping_add(1),
            ..self
        }
    }
}

impl From<u64> for CallKey {
    fn from(wire: u64) -> Self {
        Self::from_wire(wire)
    }
}

impl From<CallKey> for u64 {
    fn from(key: CallKey) -> Self {
        key.to_wire()
    }
}

/// The side that waits for a call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An application of this host, with the number that it chose.
    Session {
        /// Its session.
        session: SessionId,
        /// Its number for the call.
        call: u64,
    },
    /// A peer daemon, with the number that it chose.
    Link {
        /// The link.
        link: LinkId,
        /// The peer's number for the call.
        call: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_birth_is_a_small_number() {
        let last = MAX_ENGINE_IDS as u32 - 1;
        assert_eq!(EngineId::new(last).map(EngineId::number), Some(last));
        assert_eq!(EngineId::new(last + 1), None);
        assert!(EngineId::try_from(u16::MAX).is_err());
        let key = CallKey::from_wire(u64::MAX);
        assert_eq!(key.engine_id().number(), last);
        assert_eq!(
            CallKey::from_wire(MAX_SLOTS as u64 - 1).engine_id(),
            EngineId(0)
        );
    }
}
