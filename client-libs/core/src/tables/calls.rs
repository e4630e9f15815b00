//! The table of calls in flight that this application issued.
//!
//! ```text
//!            insert             mark_submitted          complete, expire, fail_all
//!   (free) ─────────▶ waiting ────────────────▶ submitted ────────────────────────▶ done
//!     ▲                  │  for room               │                                 │
//!     └──────────────────┴── remove (drop) ────────┴── remove (CANCEL follows) ──────┴── take
//! ```
//!
//! A call's id is its slot and the slot's generation, so a message about a call that is gone
//! (cancelled, expired) matches no slot. Slots are reused; in the steady state nothing is
//! allocated. Pure: no ring, no clock.

use std::task::Waker;

use tollgate_shm_abi::descriptor::Image;

use crate::Status;

/// A call's id in the protocol: generation in the upper half, slot in the lower.
pub(crate) type CallId = u64;

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With a block of the receive heap.
    Reply(Image),
    /// Without a block; OK if the responses have come before.
    Failed(Status),
}

#[derive(Debug)]
enum State {
    Free { next: Option<u32> },
    Waiting,
    Submitted,
    Done(Outcome),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    waker: Option<Waker>,
    /// Absolute CLOCK_MONOTONIC nanoseconds; 0 for none.
    deadline_ns: u64,
}

/// The state of a removed call.
#[derive(Debug)]
pub(crate) enum Removed {
    /// The daemon doesn't know the call.
    Unsubmitted,
    /// The daemon has to be told.
    Submitted,
    /// The call ended meanwhile.
    Done(Outcome),
}

#[derive(Debug)]
pub(crate) struct CallTable {
    slots: Vec<Slot>,
    free: Option<u32>,
    len: usize,
    max: usize,
    /// A lower bound of all deadlines. The earliest may be later.
    next_deadline_ns: u64,
}

impl CallTable {
    pub(crate) fn new(max: usize) -> CallTable {
        CallTable {
            slots: Vec::new(),
            free: None,
            len: 0,
            max,
            next_deadline_ns: u64::MAX,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// No call expires before this; `u64::MAX` if no call has a deadline.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        self.next_deadline_ns
    }

    /// A new call in state waiting, or `None` at the limit.
    pub(crate) fn insert(&mut self, deadline_ns: u64, waker: &Waker) -> Option<CallId> {
        if self.len == self.max {
            return None;
        }
        self.len += 1;
        if deadline_ns != 0 {
            self.next_deadline_ns = self.next_deadline_ns.min(deadline_ns);
        }
        let index = match self.free {
            Some(index) => index,
            None => {
                let free = State::Free { next: None };
                self.slots.push(Slot {
                    generation: 0,
                    state: free,
                    waker: None,
                    deadline_ns: 0,
                });
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[index as usize];
        if let State::Free { next } = slot.state {
            self.free = next;
        }
        slot.state = State::Waiting;
        slot.deadline_ns = deadline_ns;
        slot.waker = Some(waker.clone());
        Some(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Records that the call's descriptor was pushed.
    pub(crate) fn mark_submitted(&mut self, call: CallId) {
        if let Some(
            slot @ Slot {
                state: State::Waiting,
                ..
            },
        ) = self.slot(call)
        {
            slot.state = State::Submitted;
        }
    }

    /// Takes the outcome of a call that is done; otherwise keeps the waker until it is.
    pub(crate) fn poll(&mut self, call: CallId, waker: &Waker) -> Option<Outcome> {
        let slot = self.slot(call)?;
        if matches!(slot.state, State::Done(_)) {
            return match self.remove(call) {
                Some(Removed::Done(outcome)) => Some(outcome),
                _ => None,
            };
        }
        match &mut slot.waker {
            Some(known) if known.will_wake(waker) => {}
            known => *known = Some(waker.clone()),
        }
        None
    }

    /// Handles the end of a call. Returns the waker to wake, or the outcome if no submitted call
    /// has this id: the call was cancelled, it expired, or the daemon made the id up.
    pub(crate) fn complete(
        &mut self,
        call: CallId,
        outcome: Outcome,
    ) -> Result<Option<Waker>, Outcome> {
        match self.slot(call) {
            Some(
                slot @ Slot {
                    state: State::Submitted,
                    ..
                },
            ) => {
                slot.state = State::Done(outcome);
                Ok(slot.waker.take())
            }
            _ => Err(outcome),
        }
    }

    /// Whether the call is in the table.
    pub(crate) fn knows(&mut self, call: CallId) -> bool {
        self.slot(call).is_some()
    }

    /// Whether the call hasn't ended.
    pub(crate) fn is_open(&mut self, call: CallId) -> bool {
        let slot = self.slot(call);
        slot.is_some_and(|slot| matches!(slot.state, State::Waiting | State::Submitted))
    }

    /// Whether the daemon has the call.
    pub(crate) fn is_submitted(&mut self, call: CallId) -> bool {
        let slot = self.slot(call);
        slot.is_some_and(|slot| matches!(slot.state, State::Submitted))
    }

    /// Forgets a call.
    pub(crate) fn remove(&mut self, call: CallId) -> Option<Removed> {
        let free = State::Free { next: self.free };
        let slot = self.slot(call)?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.waker = None;
        let removed = match std::mem::replace(&mut slot.state, free) {
            State::Waiting => Removed::Unsubmitted,
            State::Submitted => Removed::Submitted,
            State::Done(outcome) => Removed::Done(outcome),
            State::Free { .. } => unreachable!("a slot that is found isn't free"),
        };
        self.free = Some(call as u32);
        self.len -= 1;
        Some(removed)
    }

    /// Ends every call whose deadline has passed. Calls `expired` for each, with its id if the
    /// daemon has to be told, and the waker to wake.
    pub(crate) fn expire(
        &mut self,
        now_ns: u64,
        mut expired: impl FnMut(Option<CallId>, Option<Waker>),
    ) {
        let mut next = u64::MAX;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let submitted = match slot.state {
                State::Waiting => false,
                State::Submitted => true,
                State::Free { .. } | State::Done(_) => continue,
            };
            if slot.deadline_ns == 0 {
                continue;
            }
            if slot.deadline_ns > now_ns {
                next = next.min(slot.deadline_ns);
                continue;
            }
            let id = u64::from(slot.generation) << 32 | index as u64;
            let status = Status::new(
                tollgate_shm_abi::Code::DEADLINE_EXCEEDED,
                "the call's deadline has passed",
            );
            slot.state = State::Done(Outcome::Failed(status));
            expired(submitted.then_some(id), slot.waker.take());
        }
        self.next_deadline_ns = next;
    }

    /// Ends every call with this status; returns the wakers to wake.
    pub(crate) fn fail_all(&mut self, status: &Status) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in &mut self.slots {
            if matches!(slot.state, State::Waiting | State::Submitted) {
                slot.state = State::Done(Outcome::Failed(status.clone()));
                wakers.extend(slot.waker.take());
            }
        }
        wakers
    }

    fn slot(&mut self, call: CallId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(call as u32 as usize)?;
        let known =
            slot.generation == (call >> 32) as u32 && !matches!(slot.state, State::Free { .. });
        known.then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn image(offset: u64) -> Outcome {
        Outcome::Reply(Image {
            offset,
            inline_len: 8,
            total_len: 8,
            metadata: 0,
        })
    }

    #[test]
    fn a_call_ends_once_and_its_id_never_names_another() {
        let mut calls = CallTable::new(2);
        let call = calls.insert(0, Waker::noop()).unwrap();
        assert!(
            calls.complete(call, image(0)).is_err(),
            "it wasn't submitted"
        );
        calls.mark_submitted(call);
        assert!(calls.poll(call, Waker::noop()).is_none());
        assert!(calls.complete(call, image(64)).unwrap().is_some());
        assert!(calls.complete(call, image(128)).is_err(), "it is done");
        assert!(matches!(
            calls.poll(call, Waker::noop()),
            Some(Outcome::Reply(Image { offset: 64, .. }))
        ));
        let next = calls.insert(0, Waker::noop()).unwrap();
        assert_eq!(next as u32, call as u32, "the slot is reused");
        calls.mark_submitted(next);
        assert!(calls.complete(call, image(0)).is_err());
        assert!(calls.complete(u64::MAX, image(0)).is_err());
        assert!(calls.remove(call).is_none());
        assert!(matches!(calls.remove(next), Some(Removed::Submitted)));
        assert_eq!(calls.len(), 0);
    }

    #[test]
    fn the_limit_holds_and_slots_come_back() {
        let mut calls = CallTable::new(2);
        let first = calls.insert(0, Waker::noop()).unwrap();
        calls.insert(0, Waker::noop()).unwrap();
        assert!(calls.insert(0, Waker::noop()).is_none());
        assert!(matches!(calls.remove(first), Some(Removed::Unsubmitted)));
        assert!(calls.insert(0, Waker::noop()).is_some());
        assert_eq!(calls.slots.len(), 2);
    }

    #[test]
    fn expiry_ends_what_is_due_and_knows_the_next() {
        let mut calls = CallTable::new(8);
        let due = calls.insert(100, Waker::noop()).unwrap();
        let waiting = calls.insert(50, Waker::noop()).unwrap();
        let later = calls.insert(200, Waker::noop()).unwrap();
        calls.insert(0, Waker::noop()).unwrap();
        calls.mark_submitted(due);
        calls.mark_submitted(later);
        assert_eq!(calls.next_deadline_ns(), 50);
        let mut told = Vec::new();
        calls.expire(100, |id, waker| told.push((id, waker.is_some())));
        assert_eq!(told, [(Some(due), true), (None, true)]);
        assert_eq!(calls.next_deadline_ns(), 200);
        for call in [due, waiting] {
            let Some(Outcome::Failed(status)) = calls.poll(call, Waker::noop()) else {
                panic!("it expired")
            };
            assert_eq!(status.code, tollgate_shm_abi::Code::DEADLINE_EXCEEDED);
        }
    }

    #[test]
    fn failing_all_reaches_whoever_waits() {
        let mut calls = CallTable::new(8);
        let waiting = calls.insert(0, Waker::noop()).unwrap();
        let submitted = calls.insert(0, Waker::noop()).unwrap();
        calls.mark_submitted(submitted);
        assert_eq!(calls.fail_all(&Status::unavailable("gone")).len(), 2);
        for call in [waiting, submitted] {
            assert!(matches!(
                calls.poll(call, Waker::noop()),
                Some(Outcome::Failed(_))
            ));
        }
    }
}
