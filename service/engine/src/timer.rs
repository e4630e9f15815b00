//! A hashed timer wheel over the engine's call slots (Varghese and Lauck, SOSP'87, scheme 6).
//!
//! One slot of the wheel covers one tick. Entries of one slot form a doubly linked list. Its links
//! live in arrays indexed by call slot, so arming and disarming are O(1) and allocate nothing once
//! the arrays have grown. A heap with lazy deletion was rejected: calls nearly always end long
//! before their deadline, and the dead entries would pile up without bound.
//!
//! Invariant: a call is in the wheel exactly while it is armed, in the slot of its deadline's tick.
//! Absent on purpose: clocks, and ordering within one tick.

use crate::limits::{TIMER_SLOTS, TIMER_TICK_NS};

const NONE: u32 = u32::MAX;
const WORDS: usize = TIMER_SLOTS / 64;

#[derive(Clone, Copy)]
struct Entry {
    deadline_ns: u64,
    next: u32,
    prev: u32,
    armed: bool,
}

const IDLE: Entry = Entry {
    deadline_ns: 0,
    next: NONE,
    prev: NONE,
    armed: false,
};

/// Deadlines of call slots.
pub(crate) struct Wheel {
    heads: Box<[u32; TIMER_SLOTS]>,
    /// One bit per wheel slot that holds entries.
    occupied: [u64; WORDS],
    entries: Vec<Entry>,
    /// Every tick before this one has been expired.
    tick: u64,
    armed: usize,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            heads: Box::new([NONE; TIMER_SLOTS]),
            occupied: [0; WORDS],
            entries: Vec::new(),
            tick: 0,
            armed: 0,
        }
    }

    /// A wheel that has expired everything before this time.
    pub(crate) fn expired_until(expired_ns: u64) -> Self {
        Self {
            tick: expired_ns / TIMER_TICK_NS,
            ..Self::new()
        }
    }

    /// Everything before this time has been expired.
    pub(crate) fn expired_ns(&self) -> u64 {
        self.tick * TIMER_TICK_NS
    }

    /// The armed calls, in an order in which arming them gives this wheel again.
    pub(crate) fn armed(&self) -> Vec<u32> {
        let mut armed = Vec::with_capacity(self.armed);
        for &head in self.heads.iter() {
            let first = armed.len();
            let some = |call| (call != NONE).then_some(call);
            let next = |call: &u32| some(self.entries[*call as usize].next);
            armed.extend(std::iter::successors(some(head), next));
            // The call that was armed last is the head of its list.
            armed[first..].reverse();
        }
        armed
    }

    /// Arms `call` (not armed before) to expire once `deadline_ns` has passed.
    pub(crate) fn arm(&mut self, call: u32, deadline_ns: u64) {
        if self.entries.len() <= call as usize {
            self.entries.resize(call as usize + 1, IDLE);
        }
        debug_assert!(!self.entries[call as usize].armed, "a call is armed once");
        let slot = Self::slot_of(deadline_ns.max(self.tick * TIMER_TICK_NS));
        let head = self.heads[slot];
        self.entries[call as usize] = Entry {
            deadline_ns,
            next: head,
            prev: NONE,
            armed: true,
        };
        if head != NONE {
            self.entries[head as usize].prev = call;
        }
        self.heads[slot] = call;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.armed += 1;
    }

    /// Disarms `call`; a call that isn't armed is left alone.
    pub(crate) fn disarm(&mut self, call: u32) {
        let Some(entry) = self.entries.get(call as usize).copied().filter(|e| e.armed) else {
            return;
        };
        if entry.next != NONE {
            self.entries[entry.next as usize].prev = entry.prev;
        }
        if entry.prev != NONE {
            self.entries[entry.prev as usize].next = entry.next;
        } else {
            self.unhead(call, entry.next);
        }
        self.entries[call as usize] = IDLE;
        self.armed -= 1;
    }

    /// `call` is the first of some slot; `next` takes its place.
    fn unhead(&mut self, call: u32, next: u32) {
        let deadline_ns = self.entries[call as usize].deadline_ns;
        let natural = Self::slot_of(deadline_ns);
        // An entry armed for the past is in the slot that was current then.
        let slot = if self.heads[natural] == call {
            natural
        } else {
            self.heads
                .iter()
                .position(|&head| head == call)
                .expect("an armed entry without predecessor heads a slot")
        };
        self.heads[slot] = next;
        if next == NONE {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// Disarms one call that has expired at `now_ns`, and returns it; `None` when there is none.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<u32> {
        if self.armed == 0 {
            self.tick = now_ns / TIMER_TICK_NS;
            return None;
        }
        let target = now_ns / TIMER_TICK_NS;
        // A gap of more than one turn visits every slot once, not once per missed tick.
        self.tick = self.tick.max(target.saturating_sub(TIMER_SLOTS as u64));
        loop {
            let slot = (self.tick % TIMER_SLOTS as u64) as usize;
            let mut at = if self.occupied[slot / 64] & (1 << (slot % 64)) == 0 {
                NONE
            } else {
                self.heads[slot]
            };
            while at != NONE {
                let entry = self.entries[at as usize];
                if entry.deadline_ns <= now_ns {
                    self.disarm(at);
                    return Some(at);
                }
                at = entry.next;
            }
            if self.tick >= target {
                return None;
            }
            self.tick += 1;
        }
    }

    /// The next time at which [`expire`](Self::expire) is worth calling; `None` when nothing is
    /// armed.
    ///
    /// May be early (an entry of a later turn shares the slot), never more than a tick late.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        let start = (self.tick % TIMER_SLOTS as u64) as usize;
        let ahead = (0..=WORDS).find_map(|k| {
            let word = (start / 64 + k) % WORDS;
            let mut bits = self.occupied[word];
            if k == 0 {
                bits &= !0 << (start % 64);
            } else if k == WORDS {
                bits &= !(!0 << (start % 64));
            }
            (bits != 0).then(|| {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                (slot + TIMER_SLOTS - start) % TIMER_SLOTS
            })
        })?;
        // The end of that tick: by then every deadline in it has passed.
        Some((self.tick + ahead as u64 + 1) * TIMER_TICK_NS)
    }

    fn slot_of(deadline_ns: u64) -> usize {
        (deadline_ns / TIMER_TICK_NS % TIMER_SLOTS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn expires_in_the_tick_of_the_deadline() {
        let mut wheel = Wheel::new();
        wheel.arm(3, 10 * TIMER_TICK_NS + 5);
        assert_eq!(wheel.expire(10 * TIMER_TICK_NS), None);
        assert_eq!(wheel.next_ns(), Some(11 * TIMER_TICK_NS));
        assert_eq!(wheel.expire(11 * TIMER_TICK_NS), Some(3));
        assert_eq!(wheel.next_ns(), None);
    }

    #[test]
    fn an_entry_armed_for_the_past_can_be_disarmed() {
        let mut wheel = Wheel::new();
        assert_eq!(wheel.expire(100 * TIMER_TICK_NS), None);
        wheel.arm(1, 5);
        wheel.arm(2, 6);
        wheel.disarm(2);
        wheel.disarm(1);
        assert_eq!(wheel.next_ns(), None);
        wheel.arm(1, 5);
        assert_eq!(wheel.expire(100 * TIMER_TICK_NS), Some(1));
    }

    proptest! {
        /// Against an ordered map: exactly the map's calls have expired by `now`.
        #[test]
        fn agrees_with_an_ordered_map(ops in prop::collection::vec((0u32..40, 0u64..9_000, 0u8..4), 1..300)) {
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0u64;
            for (call, ticks, op) in ops {
                match op {
                    0 | 1 => {
                        if let std::collections::btree_map::Entry::Vacant(place) = model.entry(call) {
                            let deadline = now + ticks * TIMER_TICK_NS + u64::from(call);
                            place.insert(deadline);
                            wheel.arm(call, deadline);
                        }
                    }
                    2 => {
                        model.remove(&call);
                        wheel.disarm(call);
                    }
                    _ => {
                        now += ticks * TIMER_TICK_NS / 3;
                        let mut again = Wheel::expired_until(wheel.expired_ns());
                        for call in wheel.armed() {
                            again.arm(call, model[&call]);
                        }
                        prop_assert_eq!(again.next_ns(), wheel.next_ns());
                        let expired_again: Vec<u32> = std::iter::from_fn(|| again.expire(now)).collect();
                        let mut got = Vec::new();
                        while let Some(call) = wheel.expire(now) {
                            got.push(call);
                        }
                        prop_assert_eq!(&got, &expired_again, "a rebuilt wheel expires the same, in the same order");
                        got.sort_unstable();
                        let want: Vec<u32> = model.iter().filter(|(_, d)| **d <= now).map(|(c, _)| *c).collect();
                        prop_assert_eq!(&got, &want);
                        model.retain(|_, d| *d > now);
                    }
                }
                match (wheel.next_ns(), model.values().min()) {
                    (None, None) => {}
                    (Some(next), Some(&first)) => prop_assert!(next <= (first.max(now) / TIMER_TICK_NS + 1) * TIMER_TICK_NS),
                    other => prop_assert!(false, "next_ns and the model disagree: {:?}", other),
                }
            }
        }
    }
}
