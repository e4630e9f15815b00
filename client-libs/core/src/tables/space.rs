//! Tasks that wait for room in the ring or the send heap: first come, first served.
//!
//! Only the task at the head tries. When it succeeds or leaves, the next is woken. So small
//! messages don't starve a large one, and no task polls in vain. The number of calls and handlers
//! bounds the length of the queue. Pure.

use std::collections::VecDeque;
use std::task::Waker;

/// A place in the queue.
pub(crate) type Ticket = u64;

#[derive(Debug, Default)]
pub(crate) struct SpaceQueue {
    waiting: VecDeque<(Ticket, Waker)>,
    next: Ticket,
}

impl SpaceQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether `ticket` may try: it is at the head, or it is new and the queue is empty.
    pub(crate) fn may_try(&self, ticket: Option<Ticket>) -> bool {
        self.waiting.front().map(|(head, _)| *head) == ticket
    }

    /// Queues, or stays queued, with this waker.
    pub(crate) fn wait(&mut self, ticket: &mut Option<Ticket>, waker: &Waker) {
        match ticket {
            None => {
                self.next += 1;
                *ticket = Some(self.next);
                self.waiting.push_back((self.next, waker.clone()));
            }
            Some(ticket) => {
                let known = self.waiting.iter_mut().find(|(other, _)| other == ticket);
                if let Some((_, known)) = known.filter(|(_, known)| !known.will_wake(waker)) {
                    *known = waker.clone();
                }
            }
        }
    }

    /// Leaves the queue, successfully or not; returns the next waker to wake.
    pub(crate) fn leave(&mut self, ticket: &mut Option<Ticket>) -> Option<Waker> {
        let ticket = ticket.take()?;
        let at = self
            .waiting
            .iter()
            .position(|(other, _)| *other == ticket)?;
        self.waiting.remove(at);
        if at == 0 { self.head() } else { None }
    }

    /// The waker to wake when there is room.
    pub(crate) fn head(&self) -> Option<Waker> {
        self.waiting.front().map(|(_, waker)| waker.clone())
    }

    /// Empties the queue; returns the wakers to wake.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waker> {
        self.waiting.drain(..).map(|(_, waker)| waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_goes_first_and_wakes_the_next() {
        let mut queue = SpaceQueue::default();
        let (mut first, mut second, mut third) = (None, None, None);
        assert!(queue.may_try(first));
        queue.wait(&mut first, Waker::noop());
        assert!(!queue.may_try(None), "newcomers queue behind");
        queue.wait(&mut second, Waker::noop());
        queue.wait(&mut third, Waker::noop());
        queue.wait(&mut second, Waker::noop());
        assert!(queue.may_try(first) && !queue.may_try(second));
        assert!(
            queue.leave(&mut second).is_none(),
            "the head is still there"
        );
        assert!(
            queue.leave(&mut first).is_some(),
            "the third is the head now"
        );
        assert!(queue.may_try(third));
        assert!(queue.leave(&mut third).is_none());
        assert!(queue.is_empty() && queue.may_try(None));
    }
}
