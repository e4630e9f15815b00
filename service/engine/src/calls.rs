//! The table of calls: slots with generations, so that a late answer never reaches another call.
//!
//! A call keeps its [key](CallKey) when it moves to [another engine](crate::Migration), because
//! peers and applications know the call by its key. In the new engine it has a slot like any other
//! call, and a second table maps its key to the slot. That table is looked up only if the key isn't
//! one of the engine's own, and only if there are such calls.

use std::collections::HashMap;

use crate::ids::{CallKey, EngineId, Origin, ServiceId};
use crate::limits::MAX_CALLS;
use crate::routes::{Encoding, Steering, Target};
use crate::state::{Event, State};
use crate::status::Ended;
use crate::streams::queues::Stream;

/// Index into [`Call::evaluated_in`].
pub(crate) const CALLERS_SIDE: usize = 0;
/// Index into [`Call::evaluated_in`].
pub(crate) const SERVERS_SIDE: usize = 1;

/// One call.
pub(crate) struct Call<M> {
    pub(crate) state: State,
    pub(crate) origin: Origin,
    /// The method handle that an application called; 0 for a peer's call.
    pub(crate) handle: u32,
    pub(crate) target: Target,
    pub(crate) encoding: Encoding,
    /// The service and method, once delivered to a server: for the reply's chain.
    pub(crate) service: Option<(ServiceId, u16)>,
    /// 0 is never; only a call of a streaming method may have it.
    pub(crate) deadline_ns: u64,
    /// The time of its arrival, and of its delivery to a server of this host; 0: unknown, or not
    /// yet.
    pub(crate) began_ns: u64,
    pub(crate) delivered_ns: u64,
    /// The [policy epoch](crate::Engine::set_policy_epoch) in which its request was evaluated on
    /// the caller's side, and on the server's; 0: it wasn't evaluated.
    pub(crate) evaluated_in: [u32; 2],
    /// Size of the request, for credits.
    pub(crate) bytes: u64,
    /// Its priority and route.
    pub(crate) steering: Steering,
    /// The request, while it waits for credit.
    pub(crate) held: Option<M>,
    /// Set once there is more than one request, or a response before the answer.
    pub(crate) stream: Option<Box<Stream<M>>>,
}

impl<M> Call<M> {
    /// Steps the state machine. An illegal step is a bug in this crate. Tests catch it; in
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

    /// The report about the call after its end.
    pub(crate) fn ended(&self) -> Ended {
        Ended {
            handle: self.handle,
            served: self.service,
            began_ns: self.began_ns,
            delivered_ns: self.delivered_ns,
        }
    }
}

struct Slot<M> {
    /// The call's key; in a free slot, that of the next call.
    key: CallKey,
    call: Option<Call<M>>,
}

/// The place of a call that began elsewhere.
#[derive(Clone, Copy)]
struct Adopted {
    slot: u32,
    /// The key of the slot's next call.
    next: CallKey,
}

/// A call of a table that is being split or assembled: its key, the key of its place if that
/// differs, and the call.
pub(crate) type Placed<M> = (CallKey, Option<CallKey>, Call<M>);

/// All calls of one engine.
pub(crate) struct Calls<M> {
    engine_id: EngineId,
    slots: Vec<Slot<M>>,
    free: Vec<u32>,
    adopted: HashMap<CallKey, Adopted, foldhash::fast::RandomState>,
}

impl<M> Calls<M> {
    pub(crate) fn new(engine_id: EngineId) -> Self {
        Self {
            engine_id,
            slots: Vec::new(),
            free: Vec::new(),
            adopted: HashMap::default(),
        }
    }

    pub(crate) fn engine_id(&self) -> EngineId {
        self.engine_id
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= MAX_CALLS
    }

    /// Takes a free slot.
    fn take_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len() as u32;
            let key = CallKey::first(self.engine_id, slot);
            self.slots.push(Slot { key, call: None });
            slot
        })
    }

    /// The caller has checked [`is_full`](Self::is_full).
    pub(crate) fn insert(&mut self, call: Call<M>) -> CallKey {
        let slot = self.take_slot();
        let place = &mut self.slots[slot as usize];
        place.call = Some(call);
        place.key
    }

    /// Adds another engine's call, which keeps its key. Returns its slot. The caller has checked
    /// that the key isn't [here](Self::slot_of), and that there is a slot.
    pub(crate) fn adopt(&mut self, key: CallKey, call: Call<M>) -> u32 {
        let slot = self.take_slot();
        let place = &mut self.slots[slot as usize];
        let next = std::mem::replace(&mut place.key, key);
        place.call = Some(call);
        self.adopted.insert(key, Adopted { slot, next });
        slot
    }

    /// The slot that a key names, whether or not a call is there.
    #[inline]
    pub(crate) fn slot_of(&self, key: CallKey) -> Option<u32> {
        // A key of another engine id is beyond all slots.
        let slot = key.slot_under(self.engine_id);
        match self.slots.get(slot as usize) {
            Some(place) if place.key == key => Some(slot),
            _ if self.adopted.is_empty() => None,
            _ => self.slot_of_adopted(key),
        }
    }

    #[cold]
    fn slot_of_adopted(&self, key: CallKey) -> Option<u32> {
        self.adopted.get(&key).map(|adopted| adopted.slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call<M>> {
        let slot = key.slot_under(self.engine_id) as usize;
        if self.slots.get(slot).is_some_and(|place| place.key == key) {
            return self.slots[slot].call.as_mut();
        }
        if self.adopted.is_empty() {
            return None;
        }
        let slot = self.slot_of_adopted(key)?;
        self.slots.get_mut(slot as usize)?.call.as_mut()
    }

    #[inline]
    pub(crate) fn get(&self, key: CallKey) -> Option<&Call<M>> {
        let slot = key.slot_under(self.engine_id) as usize;
        match self.slots.get(slot) {
            Some(place) if place.key == key => place.call.as_ref(),
            _ if self.adopted.is_empty() => None,
            _ => {
                let slot = self.slot_of_adopted(key)?;
                self.slots.get(slot as usize)?.call.as_ref()
            }
        }
    }

    /// Removes a call; also returns its slot.
    pub(crate) fn remove(&mut self, key: CallKey) -> Option<(u32, Call<M>)> {
        let slot = self.slot_of(key)?;
        let place = &mut self.slots[slot as usize];
        let call = place.call.take()?;
        place.key = match self.adopted.is_empty() {
            true => key.next(),
            false => self.adopted.remove(&key).map_or(key.next(), |a| a.next),
        };
        self.free.push(slot);
        Some((slot, call))
    }

    /// The live call in `slot`, for the timer.
    pub(crate) fn key_in(&self, slot: u32) -> Option<CallKey> {
        let place = self.slots.get(slot as usize)?;
        place.call.as_ref().map(|_| place.key)
    }

    /// All live calls, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CallKey, &Call<M>)> {
        let slots = self.slots.iter();
        slots.filter_map(|place| Some((place.key, place.call.as_ref()?)))
    }

    /// Whether any of them began elsewhere.
    pub(crate) fn has_adopted(&self) -> bool {
        !self.adopted.is_empty()
    }

    /// The key of a call's place, if it differs from the call's own key.
    pub(crate) fn place_of(&self, key: CallKey) -> Option<CallKey> {
        self.adopted.get(&key).map(|adopted| adopted.next)
    }

    /// The keys for the next calls, the very next one last.
    pub(crate) fn free(&self) -> impl Iterator<Item = CallKey> {
        self.free.iter().map(|&slot| self.slots[slot as usize].key)
    }

    /// A table of these calls, which assigns the keys of `free`, the last one first. `None`: they
    /// don't have one slot each, without gaps, or a key is repeated.
    pub(crate) fn of(engine_id: EngineId, calls: Vec<Placed<M>>, free: &[CallKey]) -> Option<Self> {
        let count = calls.len() + free.len();
        let mut slots: Vec<Option<Slot<M>>> = Vec::new();
        slots.resize_with(count, || None);
        let mut adopted = HashMap::default();
        let unused = free.iter().map(|key| (*key, *key, None));
        let used = calls.into_iter();
        let used = used.map(|(key, place, call)| (key, place.unwrap_or(key), Some(call)));
        for (key, place, call) in unused.chain(used) {
            let slot = place.slot_under(engine_id);
            if slots
                .get_mut(slot as usize)?
                .replace(Slot { key, call })
                .is_some()
            {
                return None;
            }
            if key != place {
                let its = Adopted { slot, next: place };
                if adopted.insert(key, its).is_some() {
                    return None;
                }
            }
        }
        let slots: Vec<Slot<M>> = slots.into_iter().collect::<Option<_>>()?;
        // A call that has come back may be in its old slot.
        let twice = |(key, its): (&CallKey, &Adopted)| {
            let own = key.slot_under(engine_id);
            let there = slots.get(own as usize);
            own != its.slot && there.is_some_and(|there| there.key == *key)
        };
        if adopted.iter().any(twice) {
            return None;
        }
        Some(Self {
            engine_id,
            slots,
            free: free.iter().map(|key| key.slot_under(engine_id)).collect(),
            adopted,
        })
    }

    /// From now on calls begin under another engine id; existing calls keep their keys.
    pub(crate) fn set_engine_id(&mut self, engine_id: EngineId) {
        if engine_id == self.engine_id {
            return;
        }
        self.engine_id = engine_id;
        for (place, slot) in self.slots.iter_mut().zip(0u32..) {
            let next = CallKey::first(engine_id, slot);
            match &place.call {
                Some(_) => drop(self.adopted.insert(place.key, Adopted { slot, next })),
                None => place.key = next,
            }
        }
    }

    /// The live calls that `keep` selects. Walks the table: for rare events (a side was lost).
    pub(crate) fn select(&self, keep: impl Fn(&Call<M>) -> bool) -> Vec<CallKey> {
        let selected = self.iter().filter(|(_, call)| keep(call));
        selected.map(|(key, _)| key).collect()
    }
}
