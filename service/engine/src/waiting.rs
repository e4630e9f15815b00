//! Calls that a link holds back until its peer grants credit: urgent calls first, without
//! starvation.
//!
//! The rule: the call with the highest priority leaves next, among equals the oldest. But every
//! [`OLDEST_EVERY`]th call to leave is the one that has waited longest, with any priority. So of n
//! waiting calls, none sees more than `OLDEST_EVERY * n` others leave before it, even if more
//! urgent ones keep coming.
//!
//! The next call changes only when a call leaves or a more urgent one arrives, so small calls of
//! the same priority don't overtake a large call at the head while it waits for bytes.

use std::collections::VecDeque;

use crate::ids::CallKey;
use crate::limits::{OLDEST_EVERY, PRIORITIES};

/// The queue of one link. Its users bound its length.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By priority; each in the order of arrival, with the number of the arrival.
    queues: [VecDeque<(u64, CallKey)>; PRIORITIES],
    len: usize,
    came: u64,
    left: u64,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, priority: u8, call: CallKey) {
        let place = usize::from(priority).min(PRIORITIES - 1);
        self.queues[place].push_back((self.came, call));
        self.came += 1;
        self.len += 1;
    }

    /// The call that leaves next.
    pub(crate) fn next(&self) -> Option<CallKey> {
        let queue = &self.queues[self.next_queue()?];
        queue.front().map(|(_, call)| *call)
    }

    /// Takes out the call that leaves next.
    pub(crate) fn pop(&mut self) -> Option<CallKey> {
        let at = self.next_queue()?;
        let (_, call) = self.queues[at].pop_front()?;
        self.len -= 1;
        self.left += 1;
        Some(call)
    }

    /// Removes a call from any position. Returns whether it was there.
    pub(crate) fn remove(&mut self, call: CallKey) -> bool {
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|(_, waiting)| *waiting == call) {
                queue.remove(at);
                self.len -= 1;
                return true;
            }
        }
        false
    }

    /// All of them, in the order of arrival.
    pub(crate) fn by_age(&self) -> Vec<CallKey> {
        let mut all: Vec<(u64, CallKey)> = self.queues.iter().flatten().copied().collect();
        all.sort_unstable_by_key(|(came, _)| *came);
        all.into_iter().map(|(_, call)| call).collect()
    }

    /// How many have left since one left because it was the oldest.
    pub(crate) fn since_oldest(&self) -> u64 {
        self.left % OLDEST_EVERY
    }

    /// An empty queue that continues from this [`since_oldest`](Self::since_oldest).
    pub(crate) fn resumed(since_oldest: u64) -> Self {
        Self {
            left: since_oldest % OLDEST_EVERY,
            ..Self::default()
        }
    }

    pub(crate) fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.len = 0;
    }

    fn next_queue(&self) -> Option<usize> {
        let places = 0..PRIORITIES;
        if self.left % OLDEST_EVERY == OLDEST_EVERY - 1 {
            let heads = places.filter_map(|at| Some((self.queues[at].front()?.0, at)));
            return heads.min().map(|(_, at)| at);
        }
        places.rev().find(|at| !self.queues[*at].is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64) -> CallKey {
        CallKey::from_wire(number)
    }

    fn leave(waiting: &mut Waiting) -> Vec<u64> {
        std::iter::from_fn(|| {
            let next = waiting.next();
            let popped = waiting.pop();
            assert_eq!(next, popped);
            popped.map(CallKey::to_wire)
        })
        .collect()
    }

    #[test]
    fn the_more_urgent_leave_first_and_equals_in_order() {
        let mut waiting = Waiting::default();
        for (number, priority) in [(1, 0), (2, 7), (3, 3), (4, 7), (5, 0)] {
            waiting.push(priority, call(number));
        }
        assert!(waiting.remove(call(3)) && !waiting.remove(call(3)));
        assert_eq!(waiting.len(), 4);
        assert_eq!(leave(&mut waiting), [2, 4, 1, 5]);
        assert!(waiting.is_empty());
        // Priorities above the highest count as the highest.
        waiting.push(7, call(6));
        waiting.push(200, call(7));
        waiting.push(7, call(8));
        assert_eq!(leave(&mut waiting), [6, 7, 8]);
        waiting.push(1, call(9));
        waiting.clear();
        assert_eq!((waiting.len(), waiting.next()), (0, None));
    }

    #[test]
    fn a_queue_that_is_filled_again_by_age_goes_on_alike() {
        let mut waiting = Waiting::default();
        let calls = [
            (9, 0),
            (4, 7),
            (7, 3),
            (1, 0),
            (8, 3),
            (2, 7),
            (3, 0),
            (6, 3),
        ];
        for (number, priority) in calls {
            waiting.push(priority, call(number));
        }
        for _ in 0..3 {
            waiting.pop();
        }
        assert_eq!(waiting.by_age(), [9, 1, 8, 3, 6].map(call));
        let mut again = Waiting::resumed(waiting.since_oldest());
        for left in waiting.by_age() {
            let its = calls.iter().find(|(number, _)| call(*number) == left);
            again.push(its.map_or(0, |(_, priority)| *priority), left);
        }
        for number in 10..20 {
            waiting.push(7, call(number));
            again.push(7, call(number));
        }
        assert_eq!(leave(&mut again), leave(&mut waiting));
    }

    #[test]
    fn urgent_calls_starve_nobody() {
        let mut waiting = Waiting::default();
        waiting.push(0, call(0));
        let mut before = 0;
        for number in 1.. {
            waiting.push(7, call(number));
            match waiting.pop() {
                Some(left) if left == call(0) => break,
                _ => before += 1,
            }
        }
        assert!(before < OLDEST_EVERY, "{before} others left before");
    }
}
