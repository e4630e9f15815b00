//! Sessions and the links that open them. Pure: time is an argument.
//!
//! ```text
//!   invite ─▶ invitation ── enter, within INVITATION_LASTS, once ──▶ session ── SESSION_LASTS, SESSION_IDLE, leave ──▶ gone
//! ```
//!
//! Absent on purpose: storage on disk. A restarted daemon has no sessions, so users sign in again.

use std::time::Instant;

use crate::error::ConsoleError;
use crate::limits::{INVITATION_LASTS, MAX_INVITATIONS, MAX_SESSIONS, SESSION_IDLE, SESSION_LASTS};
use crate::secret::Secret;

/// The permissions of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read-only access.
    Viewer,
    /// Read access, and changes of policies.
    Operator,
}

/// An invited user and its inviter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guest<W> {
    pub(crate) who: W,
    pub(crate) role: Role,
}

struct Invitation<W> {
    secret: Secret,
    guest: Guest<W>,
    ends: Instant,
}

struct Session<W> {
    secret: Secret,
    guest: Guest<W>,
    ends: Instant,
    idle_ends: Instant,
}

/// All invitations and sessions.
pub(crate) struct Sessions<W> {
    invitations: Vec<Invitation<W>>,
    sessions: Vec<Session<W>>,
}

impl<W> Default for Sessions<W> {
    fn default() -> Self {
        Sessions {
            invitations: Vec::new(),
            sessions: Vec::new(),
        }
    }
}

impl<W: Clone> Sessions<W> {
    /// Creates an invitation and returns its secret.
    pub(crate) fn invite(&mut self, now: Instant, guest: Guest<W>) -> Result<String, ConsoleError> {
        self.forget(now);
        if self.invitations.len() >= MAX_INVITATIONS {
            return Err(ConsoleError::Invitations);
        }
        let secret = Secret::new()?;
        let text = secret.reveal();
        self.invitations.push(Invitation {
            secret,
            guest,
            ends: now + INVITATION_LASTS,
        });
        Ok(text)
    }

    /// Exchanges an invitation, once, for a session; returns the session's secret.
    pub(crate) fn enter(
        &mut self,
        now: Instant,
        alleged: &str,
    ) -> Result<(String, Guest<W>), ConsoleError> {
        self.forget(now);
        let invitations = self.invitations.iter();
        let found = invitations.enumerate().fold(None, |found, (k, one)| {
            let is_it = one.secret.is(alleged);
            found.or(is_it.then_some(k))
        });
        let found = found.ok_or(ConsoleError::Uninvited)?;
        // Without a free session, the link can be used again until it expires.
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(ConsoleError::Sessions);
        }
        let secret = Secret::new()?;
        let (text, guest) = (secret.reveal(), self.invitations.remove(found).guest);
        self.sessions.push(Session {
            secret,
            guest: guest.clone(),
            ends: now + SESSION_LASTS,
            idle_ends: now + SESSION_IDLE,
        });
        Ok((text, guest))
    }

    /// The user of a session. This ends the session's idle time.
    pub(crate) fn find(&mut self, now: Instant, alleged: &str) -> Option<Guest<W>> {
        self.forget(now);
        let found = self.sessions.iter_mut().fold(None, |found, session| {
            let is_it = session.secret.is(alleged);
            found.or(is_it.then_some(session))
        })?;
        found.idle_ends = now + SESSION_IDLE;
        Some(found.guest.clone())
    }

    /// Ends a session.
    pub(crate) fn leave(&mut self, alleged: &str) {
        self.sessions.retain(|session| !session.secret.is(alleged));
    }

    /// The next expiry; `None` without invitations and sessions.
    pub(crate) fn next_end(&mut self, now: Instant) -> Option<Instant> {
        self.forget(now);
        let invitations = self.invitations.iter().map(|one| one.ends);
        let sessions = self.sessions.iter().map(|one| one.ends.min(one.idle_ends));
        invitations.chain(sessions).min()
    }

    fn forget(&mut self, now: Instant) {
        self.invitations.retain(|one| now < one.ends);
        self.sessions
            .retain(|one| now < one.ends && now < one.idle_ends);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    fn guest(who: u32) -> Guest<u32> {
        let role = Role::Viewer;
        Guest { who, role }
    }

    #[test]
    fn an_invitation_is_followed_once_and_within_its_minute() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let link = sessions.invite(now, guest(7)).unwrap();
        let late = now + INVITATION_LASTS - MOMENT;
        let (session, who) = sessions.enter(late, &link).unwrap();
        assert_eq!(who, guest(7));
        assert!(matches!(
            sessions.enter(late, &link),
            Err(ConsoleError::Uninvited)
        ));
        // The two secrets aren't interchangeable.
        assert_eq!(sessions.find(late, &link), None);
        assert_eq!(sessions.find(late, &session), Some(guest(7)));
        let link = sessions.invite(now, guest(7)).unwrap();
        let too_late = sessions.enter(now + INVITATION_LASTS, &link);
        assert!(matches!(too_late, Err(ConsoleError::Uninvited)));
    }

    #[test]
    fn a_session_ends_when_nobody_looks_when_it_is_old_and_when_somebody_leaves() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let mut enter = |now| {
            let link = sessions.invite(now, guest(1)).unwrap();
            sessions.enter(now, &link).unwrap().0
        };
        let (idle, busy) = (enter(now), enter(now));
        let mut then = now;
        while then + SESSION_IDLE - MOMENT < now + SESSION_LASTS {
            then += SESSION_IDLE - MOMENT;
            assert_eq!(sessions.find(then, &busy), Some(guest(1)));
        }
        assert_eq!(sessions.find(then, &idle), None);
        assert_eq!(sessions.find(now + SESSION_LASTS, &busy), None);
        assert_eq!(sessions.next_end(now + SESSION_LASTS), None);

        let link = sessions.invite(now, guest(1)).unwrap();
        assert_eq!(sessions.next_end(now), Some(now + INVITATION_LASTS));
        let (left, _) = sessions.enter(now, &link).unwrap();
        assert_eq!(sessions.next_end(now), Some(now + SESSION_IDLE));
        sessions.leave("somebody else's");
        assert_eq!(sessions.find(now, &left), Some(guest(1)));
        sessions.leave(&left);
        assert_eq!(sessions.find(now, &left), None);
        assert_eq!(sessions.next_end(now), None);
    }

    #[test]
    fn there_are_so_many_invitations_and_sessions() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        for who in 0..MAX_SESSIONS as u32 {
            let link = sessions.invite(now, guest(who)).unwrap();
            sessions.enter(now, &link).unwrap();
        }
        let link = sessions.invite(now, guest(0)).unwrap();
        for _ in 1..MAX_INVITATIONS {
            sessions.invite(now, guest(0)).unwrap();
        }
        let refused = sessions.invite(now, guest(0)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "16 links to the console are unused, which is the limit: each expires after 60 s"
        );
        let refused = sessions.enter(now, &link).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "16 people are signed in to the console, which is the limit: one of them must sign out first"
        );
    }
}
