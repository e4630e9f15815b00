//! The table of calls: slots with generations, so that a late answer never meets another call.

use serde::{Deserialize, Serialize};

use crate::limits::MAX_CALLS;
use crate::state::{Event, State};
use crate::streams::Stream;
use crate::tables::{Encoding, Origin, ServiceId, Steering, Target};

/// Names one call of one engine: a slot and the generation of its use.
///
/// It is also what peers and serving applications are given as the call's number, so it is checked on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
pub struct CallKey {
    slot: u32,
    generation: u32,
}

impl CallKey {
    /// The number that travels in descriptors and frames.
    pub fn to_wire(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The key that a peer or application claims; whether it names a live call, the table knows.
    pub fn from_wire(wire: u64) -> Self {
        Self {
            slot: wire as u32,
            generation: (wire >> 32) as u32,
        }
    }

    pub(crate) fn slot(self) -> u32 {
        self.slot
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

/// One call.
pub(crate) struct Call<M> {
    pub(crate) state: State,
    pub(crate) origin: Origin,
    /// The method handle that an application called; 0 for a peer's call.
    pub(crate) handle: u32,
    pub(crate) target: Target,
    pub(crate) encoding: Encoding,
    /// Once delivered to a server: what was called, for the reply's chain.
    pub(crate) service: Option<(ServiceId, u16)>,
    /// 0 is never, which only a streaming method's call may have.
    pub(crate) deadline_ns: u64,
    /// Size of the request, for credits.
    pub(crate) bytes: u64,
    /// How soon, and to which servers.
    pub(crate) steering: Steering,
    /// The request, while it waits for credit.
    pub(crate) held: Option<M>,
    /// Once there is more than one request, or a response before the answer.
    pub(crate) stream: Option<Box<Stream<M>>>,
}

impl<M> Call<M> {
    /// Steps the state machine. An illegal step is a bug here; it is caught in tests, and in
    /// production the call is ended rather than the daemon.
    pub(crate) fn step(&mut self, event: Event) {
        match self.state.next(event) {
            Ok(next) => self.state = next,
            Err(illegal) => {
                debug_assert!(false, "{illegal:?}");
                self.state = State::Done;
            }
        }
    }
}

struct Slot<M> {
    generation: u32,
    call: Option<Call<M>>,
}

/// All calls of one engine.
pub(crate) struct Calls<M> {
    slots: Vec<Slot<M>>,
    free: Vec<u32>,
}

impl<M> Calls<M> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= MAX_CALLS
    }

    /// The caller has checked [`is_full`](Self::is_full).
    pub(crate) fn insert(&mut self, call: Call<M>) -> CallKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                call: None,
            });
            (self.slots.len() - 1) as u32
        });
        let place = &mut self.slots[slot as usize];
        place.call = Some(call);
        CallKey {
            slot,
            generation: place.generation,
        }
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call<M>> {
        let place = self.slots.get_mut(key.slot as usize)?;
        if place.generation == key.generation {
            place.call.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&Call<M>> {
        let place = self.slots.get(key.slot as usize)?;
        if place.generation == key.generation {
            place.call.as_ref()
        } else {
            None
        }
    }

    pub(crate) fn remove(&mut self, key: CallKey) -> Option<Call<M>> {
        let place = self.slots.get_mut(key.slot as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let call = place.call.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(call)
    }

    /// The live call in `slot`, for the timer.
    pub(crate) fn key_in(&self, slot: u32) -> Option<CallKey> {
        let place = self.slots.get(slot as usize)?;
        place.call.as_ref().map(|_| CallKey {
            slot,
            generation: place.generation,
        })
    }

    /// All live calls, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CallKey, &Call<M>)> {
        let with_slot = self.slots.iter().zip(0u32..);
        with_slot.filter_map(|(place, slot)| {
            let generation = place.generation;
            Some((CallKey { slot, generation }, place.call.as_ref()?))
        })
    }

    /// The keys that the next calls will get, the very next one last.
    pub(crate) fn free(&self) -> impl Iterator<Item = CallKey> {
        self.free.iter().map(|&slot| CallKey {
            slot,
            generation: self.slots[slot as usize].generation,
        })
    }

    /// A table of these calls, which gives out the keys of `free`, the last one first. `None`: they don't have one slot each,
    /// without gaps.
    pub(crate) fn of(calls: Vec<(CallKey, Call<M>)>, free: &[CallKey]) -> Option<Self> {
        let count = calls.len() + free.len();
        let mut places: Vec<Option<Slot<M>>> = Vec::new();
        places.resize_with(count, || None);
        let unused = free.iter().map(|key| (*key, None));
        let used = calls.into_iter().map(|(key, call)| (key, Some(call)));
        for (CallKey { slot, generation }, call) in unused.chain(used) {
            let place = places.get_mut(slot as usize)?;
            if place.replace(Slot { generation, call }).is_some() {
                return None;
            }
        }
        Some(Self {
            slots: places.into_iter().collect::<Option<_>>()?,
            free: free.iter().map(|key| key.slot).collect(),
        })
    }

    /// The live calls that `keep` selects. Walks the table: for events that are rare (a side was lost).
    pub(crate) fn select(&self, keep: impl Fn(&Call<M>) -> bool) -> Vec<CallKey> {
        let selected = self.iter().filter(|(_, call)| keep(call));
        selected.map(|(key, _)| key).collect()
    }
}
