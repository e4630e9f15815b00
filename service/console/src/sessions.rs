//! Sessions and the links that open them. Pure: time is an argument.
//!
//! ```text
//!   invite ─▶ invitation ── enter, within INVITATION_LASTS, once ─┐
//!   a token's bearer ── admit ────────────────────────────────────┴▶ session ── SESSION_LASTS, SESSION_IDLE, leave, keep ──▶ gone
//! ```
//!
//! Absent on purpose: storage on disk. A restarted daemon has no sessions, so users sign in again.

use std::time::Instant;

use crate::error::ConsoleError;
use crate::limits::{
    INVITATION_LASTS, INVITATIONS_PER_TENANT, MAX_INVITATIONS, MAX_SESSIONS, OPERATORS_INVITATIONS,
    OPERATORS_SESSIONS, SESSION_IDLE, SESSION_LASTS, SESSIONS_PER_TENANT,
};
use crate::secret::Secret;

/// The permissions of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read-only access.
    Viewer,
    /// Read access, and a tenant's changes of its own policies.
    Owner,
    /// Read access, and changes of policies.
    Operator,
}

impl Role {
    /// Whether it may change anything.
    pub fn may_act(self) -> bool {
        self != Role::Viewer
    }

    /// Its name, for the page.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Owner => "owner",
            Role::Operator => "operator",
        }
    }
}

/// A user: of an operator's invitation, or the bearer of a tenant's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest<W> {
    /// The source's name for it.
    pub who: W,
    /// Its permissions.
    pub role: Role,
    /// The tenant that the page shows; `None`: the whole daemon.
    pub tenant: Option<String>,
    /// The tenant that a token's bearer belongs to; `None`: an operator.
    pub bearer_of: Option<String>,
}

/// The most guests of a kind: of all tenants and operators, of operators alone, and of one tenant.
struct Most {
    all: usize,
    operators: usize,
    of_tenant: usize,
}

impl Most {
    /// Whether there is room for another guest beside these. Tenants leave operators their part.
    fn admits<'g, W: 'g>(
        &self,
        guest: &Guest<W>,
        guests: impl Iterator<Item = &'g Guest<W>>,
    ) -> Room {
        let (mut all, mut tenants, mut own) = (0, 0, 0);
        for one in guests {
            all += 1;
            tenants += usize::from(one.bearer_of.is_some());
            own += usize::from(one.bearer_of == guest.bearer_of);
        }
        match &guest.bearer_of {
            Some(_) if own >= self.of_tenant => Room::NoneOfTenant,
            Some(_) if tenants >= self.all - self.operators => Room::None,
            _ if all >= self.all => Room::None,
            _ => Room::Free,
        }
    }
}

enum Room {
    Free,
    /// The tenant has its part.
    NoneOfTenant,
    None,
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
        let most = Most {
            all: MAX_INVITATIONS,
            operators: OPERATORS_INVITATIONS,
            of_tenant: INVITATIONS_PER_TENANT,
        };
        match most.admits(&guest, self.invitations.iter().map(|one| &one.guest)) {
            Room::Free => {}
            Room::None => return Err(ConsoleError::Invitations),
            Room::NoneOfTenant => return Err(ConsoleError::TenantsInvitations),
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
        let guest = self.invitations[found].guest.clone();
        let text = self.admit(now, guest.clone())?;
        self.invitations.remove(found);
        Ok((text, guest))
    }

    /// Opens a session; returns its secret.
    pub(crate) fn admit(&mut self, now: Instant, guest: Guest<W>) -> Result<String, ConsoleError> {
        self.forget(now);
        let most = Most {
            all: MAX_SESSIONS,
            operators: OPERATORS_SESSIONS,
            of_tenant: SESSIONS_PER_TENANT,
        };
        match most.admits(&guest, self.sessions.iter().map(|one| &one.guest)) {
            Room::Free => {}
            Room::None => return Err(ConsoleError::Sessions),
            Room::NoneOfTenant => return Err(ConsoleError::TenantsSessions),
        }
        let secret = Secret::new()?;
        let text = secret.reveal();
        self.sessions.push(Session {
            secret,
            guest,
            ends: now + SESSION_LASTS,
            idle_ends: now + SESSION_IDLE,
        });
        Ok(text)
    }

    /// Ends the invitations and sessions of all others.
    pub(crate) fn keep(&mut self, stays: impl Fn(&W) -> bool) {
        self.invitations.retain(|one| stays(&one.guest.who));
        self.sessions.retain(|one| stays(&one.guest.who));
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
        Guest {
            who,
            role: Role::Viewer,
            tenant: None,
            bearer_of: None,
        }
    }

    fn bearer(who: u32, tenant: &str) -> Guest<u32> {
        Guest {
            who,
            role: Role::Owner,
            tenant: Some(tenant.to_owned()),
            bearer_of: Some(tenant.to_owned()),
        }
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
            sessions.admit(now, guest(who)).unwrap();
        }
        let link = sessions.invite(now, guest(0)).unwrap();
        for _ in 1..MAX_INVITATIONS {
            sessions.invite(now, guest(0)).unwrap();
        }
        let refused = sessions.invite(now, guest(0)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "32 links to the console are unused, which is the limit: each expires after 60 s"
        );
        let refused = sessions.enter(now, &link).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "64 people are signed in to the console, which is the limit: one of them must sign out first"
        );
    }

    #[test]
    fn a_tenant_has_few_and_tenants_leave_operators_theirs() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let (mut tenants, mut who) = (0, 0);
        while tenants < MAX_SESSIONS - OPERATORS_SESSIONS {
            let tenant = format!("t{who}");
            who += 1;
            for _ in 0..SESSIONS_PER_TENANT.min(MAX_SESSIONS - OPERATORS_SESSIONS - tenants) {
                sessions.admit(now, bearer(who, &tenant)).unwrap();
                tenants += 1;
            }
        }
        let full = sessions.admit(now, bearer(0, "t0")).unwrap_err();
        assert_eq!(
            full.to_string(),
            "4 people of this tenant are signed in to the console, which is the limit: one of them must sign out first, or leave its page for 15 minutes"
        );
        let full = sessions.admit(now, bearer(0, "another"));
        assert!(matches!(full, Err(ConsoleError::Sessions)));
        for who in 0..OPERATORS_SESSIONS as u32 {
            sessions.admit(now, guest(who)).unwrap();
        }
        for _ in 0..INVITATIONS_PER_TENANT {
            sessions.invite(now, bearer(0, "t0")).unwrap();
        }
        let full = sessions.invite(now, bearer(0, "t0")).unwrap_err();
        assert_eq!(
            full.to_string(),
            "4 links to the console of this tenant are unused, which is the limit: each expires after 60 s"
        );
        for k in INVITATIONS_PER_TENANT..MAX_INVITATIONS - OPERATORS_INVITATIONS {
            sessions.invite(now, bearer(0, &format!("i{k}"))).unwrap();
        }
        let full = sessions.invite(now, bearer(0, "another"));
        assert!(matches!(full, Err(ConsoleError::Invitations)));
        sessions.invite(now, guest(0)).unwrap();
    }

    #[test]
    fn whoever_may_no_longer_be_here_leaves_with_its_link() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let gone = sessions.admit(now, bearer(1, "acme")).unwrap();
        let link = sessions.invite(now, bearer(1, "acme")).unwrap();
        let stays = sessions.admit(now, bearer(2, "acme")).unwrap();
        sessions.keep(|who| *who != 1);
        assert_eq!(sessions.find(now, &gone), None);
        assert!(sessions.enter(now, &link).is_err());
        assert!(sessions.find(now, &stays).is_some());
    }
}
