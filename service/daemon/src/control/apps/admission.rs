//! Admission at the control socket: limits of connections and sessions, with a share for each user
//! and tenant.
//!
//! | what | at most | of one |
//! |---|---|---|
//! | connections | [`MAX_CONNECTIONS`] | user that isn't the operator, without a session: [`STRANGERS_PER_USER`] |
//! | sessions | [`MAX_SESSIONS`] | tenant: [`MAX_SESSIONS_PER_TENANT`] |
//! | their bindings | | tenant: [`MAX_BINDINGS_PER_TENANT`] |
//! | descriptors | the process's limit, less [`KEPT_DESCRIPTORS`] and those of [peers](PeerRoom) and [policy processes](policy_processes) | user or tenant: one [share](SHARES_OF_DESCRIPTORS) |
//!
//! The operator is root or the daemon's own user. A share of their own would protect nobody: they
//! can end the daemon. Nothing is reserved for them here: administration has a socket of its own,
//! with its own places and descriptors. Shares shrink if this process may have few descriptors. A
//! silent connection is closed after [`FIRST_WORD`](crate::limits::FIRST_WORD).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::limits::{
    DESCRIPTORS_PER_POLICY_PROCESS, KEPT_DESCRIPTORS, MAX_BINDINGS_PER_TENANT, MAX_CONNECTIONS,
    MAX_POLICY_PROCESSES, MAX_SESSIONS, MAX_SESSIONS_PER_TENANT, SHARES_OF_DESCRIPTORS,
    STRANGERS_PER_USER,
};
use crate::process_room::policy_processes;
use tollgate_datapath::PeerRoom;

/// The remedy for too few descriptors.
const RAISE_DESCRIPTORS: &str = "RLIMIT_NOFILE: raise systemd's LimitNOFILE, or ulimit -Hn";

/// Why there is no place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPlace {
    #[error("the daemon has {0} control connections, which is the limit")]
    Connections(usize),
    #[error("user {user} has {count} connections without a session, which is the limit")]
    Strangers { user: u32, count: usize },
    #[error("the daemon has {MAX_SESSIONS} sessions, which is the limit")]
    Sessions,
    #[error("tenant {tenant} has {count} {what}, which is the limit of one tenant")]
    OfTenant {
        tenant: String,
        count: usize,
        what: &'static str,
    },
    #[error(
        "tenant {tenant} has {count} sessions, which take {descriptors} descriptors: one tenant's share of the daemon's descriptors \
         ({RAISE_DESCRIPTORS})"
    )]
    Share {
        tenant: String,
        count: usize,
        descriptors: usize,
    },
    #[error(
        "the daemon may have {0} descriptors; the rest is reserved for its administration, its peers and policy processes ({RAISE_DESCRIPTORS})"
    )]
    Descriptors(usize),
    #[error(
        "tenant {tenant} can't have a policy process: the daemon has {others}, which is the limit{raise}; \
         detach isolated policies of another tenant, or attach this tenant's with --isolation none"
    )]
    Processes {
        tenant: String,
        others: usize,
        raise: String,
    },
}

/// Counts connections, sessions, bindings and descriptors.
pub(crate) struct Admission {
    /// Descriptors that this process may have.
    all: usize,
    /// Descriptors that connections and sessions may take.
    descriptors: Cell<usize>,
    taken: RefCell<Taken>,
}

#[derive(Default)]
struct Taken {
    /// With and without a session.
    connections: usize,
    /// Connections without a session of users that aren't the operator.
    strangers: HashMap<u32, usize>,
    sessions: usize,
    /// Descriptors of sessions, without their connections'.
    descriptors: usize,
    of_tenants: HashMap<String, Of>,
}

/// The usage of one tenant.
#[derive(Default)]
struct Of {
    sessions: usize,
    /// Including those of its connections.
    descriptors: usize,
    bindings: usize,
}

/// A connection's place, until it is dropped.
pub(crate) struct Connection {
    admission: Rc<Admission>,
    /// The user of a connection without a session; `None` for the operator's connections and for
    /// those with a session.
    stranger: RefCell<Option<u32>>,
}

/// A session's place, until it is dropped.
pub(crate) struct Session {
    admission: Rc<Admission>,
    tenant: String,
    descriptors: usize,
    bindings: Cell<usize>,
}

impl Taken {
    fn descriptors(&self) -> usize {
        self.connections + self.descriptors
    }
}

impl Admission {
    /// For a process with this limit of descriptors (`None`: no limit). Peers of its runtimes take
    /// some of them.
    pub(crate) fn new(descriptors: Option<u64>, runtimes: usize) -> Rc<Admission> {
        let all = descriptors.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        });
        let admission = Rc::new(Admission {
            all,
            descriptors: Cell::new(0),
            taken: RefCell::default(),
        });
        admission.has_runtimes(runtimes);
        admission
    }

    /// Notes the new number of runtimes, whose peers take descriptors.
    pub(crate) fn has_runtimes(&self, runtimes: usize) {
        let peers = PeerRoom::of_each(runtimes, u64::try_from(self.all).ok());
        let processes = self.policy_processes() * DESCRIPTORS_PER_POLICY_PROCESS;
        let kept = KEPT_DESCRIPTORS + peers.descriptors(runtimes) + processes;
        self.descriptors.set(self.all.saturating_sub(kept));
    }

    fn policy_processes(&self) -> usize {
        policy_processes(u64::try_from(self.all).ok())
    }

    /// A place for a policy process of `tenant`, if other tenants have this many.
    pub(crate) fn start_process(&self, tenant: &str, others: usize) -> Result<(), NoPlace> {
        let most = self.policy_processes();
        if others < most {
            return Ok(());
        }
        Err(NoPlace::Processes {
            tenant: tenant.to_owned(),
            others,
            raise: match most < MAX_POLICY_PROCESSES {
                true => format!(" for its descriptors ({RAISE_DESCRIPTORS})"),
                false => String::new(),
            },
        })
    }

    /// A place for a connection of this user.
    pub(crate) fn connect(
        self: &Rc<Self>,
        user: u32,
        is_operator: bool,
    ) -> Result<Connection, NoPlace> {
        let mut taken = self.taken.borrow_mut();
        if taken.connections >= MAX_CONNECTIONS {
            return Err(NoPlace::Connections(taken.connections));
        }
        if taken.descriptors() >= self.descriptors.get() {
            return Err(NoPlace::Descriptors(self.all));
        }
        if !is_operator {
            let most = STRANGERS_PER_USER.min(self.descriptors.get() / SHARES_OF_DESCRIPTORS);
            let its = taken.strangers.entry(user).or_default();
            if *its >= most {
                return Err(NoPlace::Strangers { user, count: *its });
            }
            *its += 1;
        }
        taken.connections += 1;
        Ok(Connection {
            admission: Rc::clone(self),
            stranger: RefCell::new((!is_operator).then_some(user)),
        })
    }

    /// A place for a connection whose session another process opened: it stays regardless of the
    /// limits.
    pub(crate) fn go_on_with_connection(self: &Rc<Self>) -> Connection {
        self.taken.borrow_mut().connections += 1;
        Connection {
            admission: Rc::clone(self),
            stranger: RefCell::new(None),
        }
    }

    /// A place for a tenant's session that takes this many descriptors, including its connection's.
    pub(crate) fn open(
        self: &Rc<Self>,
        tenant: &str,
        descriptors: usize,
    ) -> Result<Session, NoPlace> {
        let taken = self.taken.borrow();
        if taken.sessions >= MAX_SESSIONS {
            return Err(NoPlace::Sessions);
        }
        if let Some(its) = taken.of_tenants.get(tenant) {
            let (count, tenant) = (its.sessions, || tenant.to_owned());
            if count >= MAX_SESSIONS_PER_TENANT {
                return Err(NoPlace::OfTenant {
                    tenant: tenant(),
                    count,
                    what: "sessions",
                });
            }
            if its.descriptors + descriptors > self.descriptors.get() / SHARES_OF_DESCRIPTORS {
                return Err(NoPlace::Share {
                    tenant: tenant(),
                    count,
                    descriptors: its.descriptors,
                });
            }
        }
        if taken.descriptors() + descriptors - 1 > self.descriptors.get() {
            return Err(NoPlace::Descriptors(self.all));
        }
        drop(taken);
        Ok(self.go_on(tenant, descriptors))
    }

    /// A place for a session that another process opened: it stays regardless of the limits.
    pub(crate) fn go_on(self: &Rc<Self>, tenant: &str, descriptors: usize) -> Session {
        let mut taken = self.taken.borrow_mut();
        taken.sessions += 1;
        taken.descriptors += descriptors - 1;
        let its = taken.of_tenants.entry(tenant.to_owned()).or_default();
        its.sessions += 1;
        its.descriptors += descriptors;
        Session {
            admission: Rc::clone(self),
            tenant: tenant.to_owned(),
            descriptors,
            bindings: Cell::new(0),
        }
    }
}

impl Connection {
    /// The connection has a session now and counts as its tenant's from now on.
    pub(crate) fn has_session(&self) {
        let Some(user) = self.stranger.take() else {
            return;
        };
        let strangers = &mut self.admission.taken.borrow_mut().strangers;
        if let Some(its) = strangers.get_mut(&user) {
            *its -= 1;
            if *its == 0 {
                strangers.remove(&user);
            }
        }
    }
}

impl Session {
    /// A place for one more binding of this session, held until the session ends even if the
    /// binding fails.
    pub(crate) fn bind(&self) -> Result<(), NoPlace> {
        let mut taken = self.admission.taken.borrow_mut();
        let its = taken.of_tenants.entry(self.tenant.clone()).or_default();
        if its.bindings >= MAX_BINDINGS_PER_TENANT {
            return Err(NoPlace::OfTenant {
                tenant: self.tenant.clone(),
                count: its.bindings,
                what: "bindings",
            });
        }
        its.bindings += 1;
        self.bindings.set(self.bindings.get() + 1);
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.has_session();
        self.admission.taken.borrow_mut().connections -= 1;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut taken = self.admission.taken.borrow_mut();
        taken.sessions -= 1;
        taken.descriptors -= self.descriptors - 1;
        if let Some(its) = taken.of_tenants.get_mut(&self.tenant) {
            its.sessions -= 1;
            its.descriptors -= self.descriptors;
            its.bindings -= self.bindings.get();
            if its.sessions == 0 {
                taken.of_tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::limits::DESCRIPTORS_PER_SESSION;

    /// Takes places until there are no more: their number, and the reason for the end.
    fn all<T>(mut take: impl FnMut() -> Result<T, NoPlace>) -> (Vec<T>, String) {
        let mut taken = Vec::new();
        loop {
            match take() {
                Ok(place) => taken.push(place),
                Err(why) => return (taken, why.to_string()),
            }
        }
    }

    #[test]
    fn a_user_without_sessions_leaves_room_for_others_unless_it_is_the_operator() {
        let admission = Admission::new(None, 1);
        let (first, why) = all(|| admission.connect(1_000, false));
        assert_eq!(first.len(), STRANGERS_PER_USER);
        assert!(why.contains("user 1000 has 512 connections"), "{why}");
        let mut user = 1_001;
        let (others, why) = all(|| {
            user += 1;
            admission.connect(user, false)
        });
        assert_eq!(first.len() + others.len(), MAX_CONNECTIONS);
        assert!(why.contains("control connections"), "{why}");
        assert!(admission.connect(0, true).is_err());
        drop((first, others));
        let (operators, why) = all(|| admission.connect(0, true));
        assert_eq!(operators.len(), MAX_CONNECTIONS);
        assert!(why.contains("control connections"), "{why}");
        drop(operators);
        assert!(admission.taken.borrow().strangers.is_empty());
        assert_eq!(admission.taken.borrow().connections, 0);
    }

    #[test]
    fn a_connection_with_a_session_is_no_strangers() {
        let admission = Admission::new(None, 1);
        let (taken, _) = all(|| admission.connect(1_000, false));
        assert!(admission.connect(1_000, false).is_err());
        taken[0].has_session();
        admission.connect(1_000, false).unwrap();
    }

    #[test]
    fn a_tenant_leaves_sessions_to_others() {
        let admission = Admission::new(None, 1);
        let (one, why) = all(|| admission.open("mallory", DESCRIPTORS_PER_SESSION));
        assert_eq!(one.len(), MAX_SESSIONS_PER_TENANT);
        assert!(why.contains("tenant mallory has 1024 sessions"), "{why}");
        let mut tenant = 0;
        let (others, why) = all(|| {
            tenant += 1;
            admission.open(&format!("t{tenant}"), DESCRIPTORS_PER_SESSION)
        });
        assert_eq!(one.len() + others.len(), MAX_SESSIONS);
        assert!(why.contains("the daemon has 4096 sessions"), "{why}");
        let _more = admission.go_on("mallory", DESCRIPTORS_PER_SESSION);
        drop((one, others));
        assert_eq!(admission.taken.borrow().of_tenants.len(), 1);
    }

    #[test]
    fn a_tenants_bindings_are_counted_over_its_sessions_and_end_with_them() {
        let admission = Admission::new(None, 1);
        let sessions = [
            admission.open("mallory", DESCRIPTORS_PER_SESSION).unwrap(),
            admission.open("mallory", DESCRIPTORS_PER_SESSION).unwrap(),
        ];
        for k in 0..MAX_BINDINGS_PER_TENANT {
            sessions[k % 2].bind().unwrap();
        }
        let why = sessions[0].bind().unwrap_err().to_string();
        assert!(why.contains("tenant mallory has 65536 bindings"), "{why}");
        admission
            .open("acme", DESCRIPTORS_PER_SESSION)
            .unwrap()
            .bind()
            .unwrap();
        let [first, second] = sessions;
        drop(second);
        first.bind().unwrap();
    }

    #[test]
    fn where_there_are_few_descriptors_shares_are_small() {
        let admission = Admission::new(Some(1_024), 1);
        let mut kept = Vec::new();
        let mut tenant = 0;
        let (sessions, why) = all(|| {
            tenant += 1;
            let connection = admission.connect(1_000, false)?;
            let session = admission.open(&format!("t{}", tenant / 20), DESCRIPTORS_PER_SESSION)?;
            connection.has_session();
            kept.push(connection);
            Ok(session)
        });
        assert!(why.contains("1024 descriptors"), "{why}");
        assert!(sessions.len() > 50, "{}", sessions.len());
        let alone = Admission::new(Some(1_024), 1);
        let (one, why) = all(|| alone.open("mallory", DESCRIPTORS_PER_SESSION));
        assert!(why.contains("LimitNOFILE"), "{why}");
        let peers = PeerRoom::of_each(1, Some(1_024)).descriptors(1);
        let processes = policy_processes(Some(1_024)) * DESCRIPTORS_PER_POLICY_PROCESS;
        assert_eq!(
            one.len(),
            (1_024 - KEPT_DESCRIPTORS - peers - processes) / 5 / SHARES_OF_DESCRIPTORS
        );
        assert!(alone.open("acme", DESCRIPTORS_PER_SESSION).is_ok());
    }

    #[test]
    fn peers_policy_processes_kept_descriptors_and_the_rest_fit_into_what_there_is() {
        for (most, runtimes) in [(1_024, 1), (1_024, 8), (4_096, 8), (20_000, 64)] {
            let admission = Admission::new(Some(most), 1);
            admission.has_runtimes(runtimes);
            let peers = PeerRoom::of_each(runtimes, Some(most)).descriptors(runtimes);
            let (connections, _) = all_of(&admission);
            let processes = policy_processes(Some(most)) * DESCRIPTORS_PER_POLICY_PROCESS;
            let taken = connections.len() + KEPT_DESCRIPTORS + peers + processes;
            assert!(taken <= most as usize, "{runtimes}: {taken}");
        }
    }

    #[test]
    fn the_policy_process_beyond_the_limit_is_refused_with_the_way_out() {
        let admission = Admission::new(Some(1_024), 1);
        assert!(admission.start_process("acme", 8).is_ok());
        let why = admission.start_process("acme", 9).unwrap_err().to_string();
        for words in ["tenant acme", "has 9,", "LimitNOFILE", "--isolation none"] {
            assert!(why.contains(words), "{why}");
        }
        let why = Admission::new(None, 1).start_process("acme", MAX_POLICY_PROCESSES);
        assert!(!why.unwrap_err().to_string().contains("LimitNOFILE"));
    }

    /// Connections of as many users as needed.
    fn all_of(admission: &Rc<Admission>) -> (Vec<Connection>, String) {
        let mut user = 1_000;
        all(|| {
            user += 1;
            admission.connect(user, false)
        })
    }
}
