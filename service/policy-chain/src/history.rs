//! Which versions evaluated requests before an attachment's versions changed. The same versions
//! evaluate the replies.
//!
//! ```text
//!   epoch 1      epoch 4            epoch 9
//!   ├── 1 ───────┼── 1, 2 at 10% ───┼── 2 ────▶ now       the versions in force, and which calls they decided
//!        request ●                      ● its reply: evaluated by 1, which is kept until no such call is left
//! ```
//!
//! A policy epoch ends whenever the versions of any attachment change. The engine knows in which
//! epoch each call's request was evaluated. A version that handed its state over evaluates no
//! replies to earlier requests, because what it would record about them would be lost. The
//! exception is a version whose manifest says that replies change nothing of its state. A version
//! that runs in a process of its own isn't kept, nor is a version that has failed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate_engine::CallKey;
use tollgate_engine::chain::{Trial, Which, decider};

use crate::limits::PAST_CHANGES;

/// Shared by all runtimes of the process, so an epoch keeps its meaning when a call moves between
/// runtimes. 0 means none.
static ERA: AtomicU32 = AtomicU32::new(1);

/// The current policy epoch.
pub fn policy_epoch() -> u32 {
    ERA.load(Ordering::Relaxed)
}

/// Begins the next policy epoch. Returns it.
pub(crate) fn next_policy_epoch() -> u32 {
    match ERA.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
        0 => next_policy_epoch(),
        policy_epoch => policy_epoch,
    }
}

/// Whether epoch `a` precedes `b`. Epochs count up and wrap around; no epoch is kept long enough to
/// become ambiguous.
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Identifies one installation of a version into a place; never reused within an attachment.
pub(crate) type Serial = u32;

/// The versions in force, and which of them decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) stable: Option<Serial>,
    pub(crate) candidate: Option<Serial>,
    pub(crate) trial: Option<Trial>,
}

impl Assignment {
    /// The version that decides a call.
    pub(crate) fn decider(&self, call: CallKey, salt: u32) -> Option<Serial> {
        match decider(self.trial, call, salt) {
            Which::Stable => self.stable,
            Which::Candidate => self.candidate,
        }
    }

    fn has(&self, serial: Serial) -> bool {
        self.stable == Some(serial) || self.candidate == Some(serial)
    }
}

/// Past assignments of one attachment whose versions are `V`.
pub(crate) struct VersionHistory<V> {
    /// Each assignment with the epoch that ended it, oldest first.
    assignments: VecDeque<(u32, Assignment)>,
    /// Retired versions that may have replies to evaluate.
    kept: Vec<(Serial, V)>,
    /// Nothing is known of epochs before this one.
    known_from: Option<u32>,
}

impl<V> Default for VersionHistory<V> {
    fn default() -> Self {
        Self {
            assignments: VecDeque::new(),
            kept: Vec::new(),
            known_from: None,
        }
    }
}

impl<V> VersionHistory<V> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.assignments.is_empty()
    }

    /// There are more entries than are to be kept.
    pub(crate) fn is_long(&self) -> bool {
        self.assignments.len() > PAST_CHANGES
    }

    /// Records that `ended` was in force until the epoch before `policy_epoch`.
    pub(crate) fn note(&mut self, policy_epoch: u32, ended: Assignment) {
        self.assignments.push_back((policy_epoch, ended));
    }

    /// The version that decided a call whose request was evaluated in `policy_epoch`, if a past
    /// assignment was in force then.
    pub(crate) fn decider(&self, policy_epoch: u32, call: CallKey, salt: u32) -> Option<Serial> {
        if self
            .known_from
            .is_some_and(|from| is_before(policy_epoch, from))
        {
            return None;
        }
        let mut assignments = self.assignments.iter();
        let (_, then) = assignments.find(|(until, _)| is_before(policy_epoch, *until))?;
        then.decider(call, salt)
    }

    /// Forgets assignments that no call needs; `oldest` is the oldest epoch of the calls that are
    /// left. Also forgets the oldest assignments beyond the limit.
    pub(crate) fn forget(&mut self, oldest: Option<u32>) {
        while let Some((until, _)) = self.assignments.front()
            && (self.is_long() || oldest.is_none_or(|oldest| !is_before(oldest, *until)))
        {
            self.known_from = Some(*until);
            self.assignments.pop_front();
        }
        let assignments = &self.assignments;
        let is_known = |serial: Serial| assignments.iter().any(|(_, then)| then.has(serial));
        self.kept.retain(|(serial, _)| is_known(*serial));
    }

    /// Keeps a retired version.
    pub(crate) fn keep(&mut self, serial: Serial, version: V) {
        self.kept.push((serial, version));
    }

    /// The kept versions.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &V> {
        self.kept.iter().map(|(_, version)| version)
    }

    /// See [`kept`](Self::kept).
    pub(crate) fn kept_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.kept.iter_mut().map(|(_, version)| version)
    }

    /// Takes a kept version out. Call [`keep`](Self::keep) again if it is still sound.
    pub(crate) fn take(&mut self, serial: Serial) -> Option<V> {
        let at = self.kept.iter().position(|(its, _)| *its == serial)?;
        Some(self.kept.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(stable: Serial) -> Assignment {
        Assignment {
            stable: Some(stable),
            candidate: None,
            trial: None,
        }
    }

    #[test]
    fn a_reply_is_evaluated_by_the_decider_of_its_request() {
        let mut past = VersionHistory::<()>::default();
        past.note(4, only(1));
        let trial = Some(Trial::Canary(50));
        past.note(
            9,
            Assignment {
                candidate: Some(2),
                trial,
                ..only(1)
            },
        );
        let call = CallKey::from_wire;
        let at = |policy_epoch, key| past.decider(policy_epoch, call(key), 0);
        assert_eq!([1, 3].map(|policy_epoch| at(policy_epoch, 0)), [Some(1); 2]);
        let split: Vec<_> = (0..64).map(|key| at(4, key).unwrap_or(0)).collect();
        assert!(split.contains(&1) && split.contains(&2), "{split:?}");
        assert_eq!(
            split,
            (0..64)
                .map(|key| at(8, key).unwrap_or(0))
                .collect::<Vec<_>>()
        );
        assert_eq!(
            [9, 10].map(|policy_epoch| at(policy_epoch, 0)),
            [None; 2],
            "today's affair"
        );
    }

    #[test]
    fn what_no_call_is_left_of_is_forgotten_and_so_is_what_is_too_much() {
        let mut past = VersionHistory::<()>::default();
        let policy_epochs = |past: &VersionHistory<()>| {
            past.assignments
                .iter()
                .map(|(policy_epoch, _)| *policy_epoch)
                .collect::<Vec<_>>()
        };
        for policy_epoch in [3, 5, 7] {
            past.note(policy_epoch, only(policy_epoch));
        }
        past.forget(Some(4));
        assert_eq!(policy_epochs(&past), [5, 7]);
        assert_eq!(past.decider(2, CallKey::from_wire(0), 0), None);
        past.forget(Some(5));
        assert_eq!(policy_epochs(&past), [7]);
        past.forget(None);
        assert!(past.is_empty());
        // A call that doesn't end.
        for policy_epoch in 8..10 + PAST_CHANGES as u32 {
            past.note(policy_epoch, only(policy_epoch));
            past.forget(Some(7));
        }
        assert_eq!(past.assignments.len(), PAST_CHANGES);
        assert_eq!(past.decider(7, CallKey::from_wire(0), 0), None);
        assert_eq!(past.decider(10, CallKey::from_wire(0), 0), Some(11));
    }

    #[test]
    fn eras_go_around() {
        let mut past = VersionHistory::<()>::default();
        past.note(u32::MAX, only(1));
        past.note(2, only(2));
        let at = |past: &VersionHistory<()>, policy_epoch| {
            past.decider(policy_epoch, CallKey::from_wire(0), 0)
        };
        let policy_epochs = [u32::MAX - 1, u32::MAX, 1, 2];
        assert_eq!(
            policy_epochs.map(|policy_epoch| at(&past, policy_epoch)),
            [Some(1), Some(2), Some(2), None]
        );
        past.forget(Some(1));
        assert_eq!(
            policy_epochs.map(|policy_epoch| at(&past, policy_epoch)),
            [None, Some(2), Some(2), None]
        );
    }
}
