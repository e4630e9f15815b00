//! The two halves of a call, and whether they are in use.

use tollgate_core::{Requests, Responder, Status, StreamReceiver, StreamSender};

/// A half of a call, or its state.
pub(super) enum Slot<H> {
    Idle(H),
    Busy {
        then: Option<Then>,
        /// A non-blocking caller was turned away.
        is_wanted: bool,
    },
    Gone,
}

impl<H> Slot<H> {
    pub(super) const BUSY: Slot<H> = Slot::Busy {
        then: None,
        is_wanted: false,
    };
}

/// The operation after the current send.
pub(super) enum Then {
    HalfClose,
    Finish(Status),
}

pub(super) enum Sending {
    Requests(StreamSender),
    Responses(Responder),
}

pub(super) enum Receiving {
    Responses(StreamReceiver),
    Requests(Requests),
}

/// Takes a half out; `None` while it is in use, an error if it won't come back.
pub(super) fn take<H>(slot: &mut Slot<H>, is_wanted: bool) -> Result<Option<H>, ()> {
    match slot {
        Slot::Busy {
            then: None,
            is_wanted: wanted,
        } => {
            *wanted |= is_wanted;
            Ok(None)
        }
        Slot::Busy { .. } | Slot::Gone => Err(()),
        Slot::Idle(_) => match std::mem::replace(slot, Slot::BUSY) {
            Slot::Idle(half) => Ok(Some(half)),
            Slot::Busy { .. } | Slot::Gone => Err(()),
        },
    }
}
