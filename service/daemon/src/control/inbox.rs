//! The queue of the runtimes' events for the control plane.
//!
//! Invariants: a runtime never waits for the control plane. The queue is bounded. Events that may
//! be lost never take the room of the others, so those always find room.

use tokio::sync::mpsc::{self, Receiver, Sender, error::TrySendError};
use tollgate_datapath::log_limited;

use crate::limits::{EVENTS_OWED, EVENTS_QUEUED};
use tollgate_datapath::Event;

/// The runtimes' end.
#[derive(Clone)]
pub(super) struct EventSender(Sender<Event>);

/// A queue of [`EVENTS_QUEUED`] events that may be lost, and of [`EVENTS_OWED`] others. It takes
/// memory only for events that wait.
pub(super) fn open() -> (EventSender, Receiver<Event>) {
    let (events, inbox) = mpsc::channel(EVENTS_QUEUED + EVENTS_OWED);
    (EventSender(events), inbox)
}

impl EventSender {
    /// Queues an event.
    pub(super) fn tell(&self, event: Event) {
        if event.may_be_lost() && self.0.capacity() <= EVENTS_OWED {
            log_limited!(
                warn,
                "event dropped",
                "",
                "the control plane is behind: an event of a runtime was dropped"
            );
            return;
        }
        match self.0.try_send(event) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => log_limited!(
                error,
                "event lost",
                "",
                "the control plane's queue has no room; this is a bug, please report it"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tollgate_datapath::RuntimeIndex;
    use tollgate_engine::SessionId;
    use tollgate_policy_chain::events::PolicyEvent;

    use super::*;

    fn throttled() -> Event {
        Event::Policies(PolicyEvent::Throttled {
            tenant: "t".into(),
            refused: 1,
        })
    }

    fn ended() -> Event {
        Event::SessionEnded {
            runtime: RuntimeIndex::FIRST,
            session: SessionId(0),
            reason: String::new(),
        }
    }

    #[test]
    fn events_that_may_be_lost_leave_room_for_the_others() {
        let (events, mut inbox) = open();
        (0..=EVENTS_QUEUED).for_each(|_| events.tell(throttled()));
        assert_eq!(inbox.len(), EVENTS_QUEUED, "one was dropped");
        (0..EVENTS_OWED).for_each(|_| events.tell(ended()));
        assert_eq!(inbox.len(), EVENTS_QUEUED + EVENTS_OWED, "none was dropped");
        events.tell(ended());
        assert_eq!(inbox.len(), EVENTS_QUEUED + EVENTS_OWED);
        for _ in 0..=EVENTS_OWED {
            inbox.try_recv().unwrap();
        }
        events.tell(throttled());
        assert_eq!(inbox.len(), EVENTS_QUEUED, "there is room again");
    }
}
