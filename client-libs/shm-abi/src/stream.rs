//! Flow control of streams: credit, end to end.
//!
//! ```text
//!   sender ── message, charge ──▶ daemon ══▶ daemon ── message, charge ──▶ reader
//!     Window: sent, not consumed                                            Consumed
//!     ◀─────────────────────── credit: messages, charges ───────────────────────┘
//! ```
//!
//! Each direction of each call is counted separately, so a slow reader stops its own sender and
//! nobody else. A message's *charge* is its size at its sender, whatever happens on the way; it is
//! sent with the message, so both ends count in the same unit though their layouts may differ.
//!
//! The rule: a message may be sent while fewer than [`STREAM_WINDOW_MESSAGES`] are in flight, and
//! their charges either leave room for it in [`STREAM_WINDOW_BYTES`] or are less than a quarter of
//! that. The reader returns credit once it has consumed a quarter of either. So unreturned credit
//! never blocks a sender, and a reader needn't return the rest after reading everything.
//!
//! Sender, both daemons and reader apply the rule: a daemon that receives more than fits ends the
//! sender's session or link. If a reader claims to have consumed more than was sent, the excess is
//! ignored. The message in a CALL or a REPLY isn't counted.

use crate::limits::{STREAM_WINDOW_BYTES, STREAM_WINDOW_MESSAGES};

/// A reader's consumption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Messages.
    pub messages: u32,
    /// Their charges.
    pub bytes: u32,
}

/// The messages in flight in one direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    messages: u32,
    bytes: u64,
}

impl Window {
    /// A window with this many messages in flight, with these charges. `None` if the rule makes it
    /// impossible.
    pub fn with(messages: u32, bytes: u64) -> Option<Window> {
        let most = u64::from(STREAM_WINDOW_BYTES / 4) + u64::from(u32::MAX);
        let may_be = messages <= STREAM_WINDOW_MESSAGES && bytes <= most;
        may_be.then_some(Window { messages, bytes })
    }

    /// The number of messages in flight.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Their charges.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a message of this charge may be sent now.
    #[inline]
    pub fn affords(&self, charge: u32) -> bool {
        let bytes = u64::from(STREAM_WINDOW_BYTES);
        self.messages < STREAM_WINDOW_MESSAGES
            && (self.bytes < bytes / 4 || self.bytes + u64::from(charge) <= bytes)
    }

    /// Counts a sent message. False, and not counted, if it may not be sent.
    #[inline]
    #[must_use]
    pub fn take(&mut self, charge: u32) -> bool {
        let affords = self.affords(charge);
        if affords {
            self.messages += 1;
            self.bytes += u64::from(charge);
        }
        affords
    }

    /// Processes the reader's credit. Returns the plausible part.
    #[inline]
    pub fn give_back(&mut self, returned: Credit) -> Credit {
        let credit = Credit {
            messages: returned.messages.min(self.messages),
            bytes: u64::from(returned.bytes).min(self.bytes) as u32,
        };
        self.messages -= credit.messages;
        self.bytes -= u64::from(credit.bytes);
        credit
    }
}

/// A reader's consumption that it hasn't returned as credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed(Credit);

impl Consumed {
    /// Counts a consumed message. Returns the credit that is due now, if any.
    #[inline]
    pub fn add(&mut self, charge: u32) -> Option<Credit> {
        self.0.messages += 1;
        self.0.bytes = self.0.bytes.saturating_add(charge);
        let is_due = self.0.messages >= STREAM_WINDOW_MESSAGES / 4
            || self.0.bytes >= STREAM_WINDOW_BYTES / 4;
        is_due.then(|| core::mem::take(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn a_window_is_full_after_so_many_messages_or_bytes() {
        let mut window = Window::default();
        for _ in 0..STREAM_WINDOW_MESSAGES {
            assert!(window.take(0));
        }
        assert!(!window.take(0));
        let one = Credit {
            messages: 1,
            bytes: 0,
        };
        assert_eq!(window.give_back(one), one);
        assert!(window.take(0) && !window.take(0));

        let mut window = Window::default();
        assert!(window.take(STREAM_WINDOW_BYTES) && !window.take(1));
        // One message of any size may be sent.
        let mut window = Window::default();
        assert!(window.take(u32::MAX) && !window.take(1));
        // More than was sent can't be consumed.
        let much = Credit {
            messages: u32::MAX,
            bytes: u32::MAX,
        };
        let all = Credit {
            messages: 1,
            bytes: u32::MAX,
        };
        assert_eq!(window.give_back(much), all);
        assert_eq!(window, Window::default());
    }

    #[test]
    fn a_window_is_rebuilt_from_what_is_on_the_way_if_that_can_be() {
        let mut window = Window::default();
        assert!(window.take(STREAM_WINDOW_BYTES / 4 - 1) && window.take(u32::MAX));
        let again = Window::with(window.messages(), window.bytes());
        assert_eq!(again, Some(window));
        assert_eq!(Window::with(2, window.bytes() + 2), None);
        assert_eq!(Window::with(STREAM_WINDOW_MESSAGES + 1, 0), None);
    }

    proptest! {
        /// A reader that consumes everything, and returns credit only when due, never blocks its
        /// sender.
        #[test]
        fn who_reads_never_stops_its_sender(charges in prop::collection::vec(0..2 * STREAM_WINDOW_BYTES, 1..500)) {
            let (mut window, mut consumed) = (Window::default(), Consumed::default());
            let mut on_the_way = VecDeque::new();
            for charge in charges {
                while !window.affords(charge) {
                    let Some(read) = on_the_way.pop_front() else {
                        panic!("everything is consumed, and the sender waits");
                    };
                    if let Some(credit) = consumed.add(read) {
                        window.give_back(credit);
                    }
                }
                prop_assert!(window.take(charge));
                on_the_way.push_back(charge);
                prop_assert!(on_the_way.len() <= STREAM_WINDOW_MESSAGES as usize);
            }
        }
    }
}
