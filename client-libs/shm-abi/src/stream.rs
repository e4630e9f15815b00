//! How much of a stream may be on its way: credit, end to end.
//!
//! ```text
//!   sender ── message, charge ──▶ daemon ══▶ daemon ── message, charge ──▶ reader
//!     Window: sent, not consumed                                            Consumed
//!     ◀─────────────────────── credit: messages, charges ───────────────────────┘
//! ```
//!
//! Each direction of each call is counted by itself, so a reader that reads slowly stops its own sender and nobody else. A
//! message's *charge* is the size that it has at its sender, whatever becomes of it on its way; it travels with the message, so both
//! ends count in the same unit though their layouts may differ.
//!
//! The rule: a message may be sent while fewer than [`STREAM_WINDOW_MESSAGES`] are on their way, and their charges either leave room
//! for it in [`STREAM_WINDOW_BYTES`] or are less than a quarter of that. The reader says what it has consumed once that is a
//! quarter of either. So what it hasn't said yet never keeps its sender from sending, and it needn't say anything
//! when it has read everything.
//!
//! Sender, both daemons and reader know the rule: a daemon that is sent more than fits ends whoever sent it. What a reader claims
//! to have consumed beyond what was sent is ignored. The message that a CALL or a REPLY brings isn't counted.

use crate::limits::{STREAM_WINDOW_BYTES, STREAM_WINDOW_MESSAGES};

/// What a reader has consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Messages.
    pub messages: u32,
    /// Their charges.
    pub bytes: u32,
}

/// What is on its way of one direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    messages: u32,
    bytes: u64,
}

impl Window {
    /// A window of which so many messages, of so many bytes by their charges, are on their way. `None`: by the rule there can't be.
    pub fn with(messages: u32, bytes: u64) -> Option<Window> {
        let most = u64::from(STREAM_WINDOW_BYTES / 4) + u64::from(u32::MAX);
        let may_be = messages <= STREAM_WINDOW_MESSAGES && bytes <= most;
        may_be.then_some(Window { messages, bytes })
    }

    /// How many messages are on their way.
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

    /// Counts a message that is sent. Whether it might be; if not, it isn't counted.
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

    /// The reader says that it has consumed so much. What of that can be true.
    #[inline]
    pub fn give_back(&mut self, said: Credit) -> Credit {
        let credit = Credit {
            messages: said.messages.min(self.messages),
            bytes: u64::from(said.bytes).min(self.bytes) as u32,
        };
        self.messages -= credit.messages;
        self.bytes -= u64::from(credit.bytes);
        credit
    }
}

/// What a reader has consumed and not said yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed(Credit);

impl Consumed {
    /// Counts a message that was consumed. What is to be said now, if anything.
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
        // However large, one message may go.
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
        /// A reader that consumes all that comes, and says so only when that is due, never leaves its sender waiting.
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
