//! Flow control by credits: a message always meets a posted receive.
//!
//! Each end announces the number of its posted receives; its peer starts with that many credits. A
//! message takes one credit. After reading it, the receiver reposts its receive and *owes* the
//! credit. The credit travels in the next message's immediate data, or in a CREDIT once a quarter
//! is owed.
//!
//! Invariant: the posted receives are at least the credits that the peer holds plus those in flight
//! to it. For a link that shares receives, the bound applies to its unread messages instead; if the
//! device has no free receive at the moment, it tells the peer's device to retry. No deadlock: the
//! last credit is for a CREDIT. An end with one credit has sent all others, so its peer, once it
//! has read them, owes more than a quarter, and has at least the one credit that a CREDIT takes.

use crate::wire::WireError;

/// The credits of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Number of the peer's receives.
    receives: u16,
    held: u16,
    owed: u16,
    /// Number of this end's receives.
    own: u16,
    /// Receives that the peer knows to be free.
    granted: u16,
}

impl Flow {
    /// A link whose ends have this many receives, all of them free.
    pub fn new(own: u16, receives: u16) -> Flow {
        Flow {
            receives,
            held: receives,
            owed: 0,
            own,
            granted: own,
        }
    }

    /// Whether a message other than a CREDIT may be sent.
    pub fn may_send(&self) -> bool {
        self.held >= 2
    }

    /// Whether enough is owed for a CREDIT, and one can be sent.
    pub fn must_return(&self) -> bool {
        self.owed >= self.own / 4 && self.held >= 1
    }

    /// Takes a credit for a message; returns the credits that the message returns.
    ///
    /// # Panics
    /// If there is no credit: the caller must check before.
    pub fn send(&mut self) -> u16 {
        self.held = self
            .held
            .checked_sub(1)
            .expect("asked before a message is sent");
        self.granted += self.owed;
        std::mem::take(&mut self.owed)
    }

    /// Handles a message that returns this many credits.
    ///
    /// # Errors
    /// If the peer had no credit for it, or returns credits that it doesn't have.
    pub fn receive(&mut self, returned: u16) -> Result<(), WireError> {
        self.granted = self.granted.checked_sub(1).ok_or(WireError::Overrun)?;
        let held = self.held.saturating_add(returned);
        if held > self.receives {
            return Err(WireError::Credits {
                returned,
                held: self.held,
                receives: self.receives,
            });
        }
        self.held = held;
        Ok(())
    }

    /// Marks the receive of a read message as reposted.
    pub fn reposted(&mut self) {
        self.owed += 1;
    }

    /// Credits that this end holds.
    pub fn held(&self) -> u16 {
        self.held
    }
}
