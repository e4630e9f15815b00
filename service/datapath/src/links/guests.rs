//! Links that peers have opened, and their shares of a runtime's table.
//!
//! ```text
//!   all ── dialled: at most three quarters, one tenant's a quarter
//!     └─── accepted: at most three quarters, one peer's a half
//!            │       a link beyond that is ended with a GOAWAY that gives the reason
//!            └── once a BIND names the tenant: a quarter, of one peer MAX_ACCEPTED_PER_PAIR
//!                    a BIND beyond that is refused
//! ```
//!
//! Both kinds share one table, and each kind always finds a quarter of it free of the other.
//! [`PeerRoom`](crate::PeerRoom) has the numbers. A peer is identified by its handshake:
//! by the instance, or by the name if it has no key.

use std::net::SocketAddr;

use tollgate_engine::{LinkId, Status};
use tollgate_shm_abi::status::Code;
use tollgate_transport::Reason;

use crate::limits::FULL_SHOWN;
use crate::links::peers::Full;
use crate::log_limited;
use crate::ports::LinkState;
use crate::runtime::Runtime;

impl Runtime {
    /// An error gives the reason why the table has no room for one more link of this kind.
    pub(crate) fn why_full(&self, is_dialled: bool) -> Result<(), String> {
        let count = |counts: &dyn Fn(&LinkState) -> bool| {
            let links = self.links.iter();
            links.filter(|(_, port)| counts(&port.state)).count()
        };
        let dialled = count(&|state| state.dialled.is_some());
        let accepted = count(&LinkState::is_guests);
        self.has_room(is_dialled, dialled, accepted)
    }

    fn has_room(&self, is_dialled: bool, dialled: usize, accepted: usize) -> Result<(), String> {
        let (runtime, room) = (self.options.index, self.options.tuning.room);
        let (there, whose) = match is_dialled {
            true => (dialled, "this daemon has dialled"),
            false => (accepted, "peers have opened"),
        };
        if there >= room.of_one_kind() {
            return Err(format!(
                "{whose} {there} links of runtime {runtime}, which is the limit"
            ));
        }
        let all = dialled + accepted;
        if all >= room.links {
            return Err(format!(
                "runtime {runtime} has {all} links, which is the limit"
            ));
        }
        Ok(())
    }

    /// A link that a peer has opened is ready: ends it if it exceeds a limit. Whether it stays.
    pub(crate) fn stays(&mut self, link: LinkId) -> bool {
        let Some(port) = self.links.get(link).filter(|port| port.state.is_guests()) else {
            return true;
        };
        let (mut dialled, mut accepted, mut its) = (0, 0, 0);
        for (_, other) in self.links.iter().filter(|(other, _)| *other != link) {
            dialled += usize::from(other.state.dialled.is_some());
            accepted += usize::from(other.state.is_guests());
            let is_its = other.state.is_guests() && other.state.peer == port.state.peer;
            its += usize::from(is_its);
        }
        let why = if its >= self.options.tuning.room.accepted_per_peer() {
            let name = port.io.link().peer_name().unwrap_or("without a name");
            format!(
                "peer {name} has {its} links to runtime {}, which is the limit",
                self.options.index
            )
        } else if let Err(why) = self.has_room(false, dialled, accepted) {
            why
        } else {
            return true;
        };
        self.note_full(&why);
        if let Some(port) = self.links.get_mut(link) {
            // The end of the connection carries less information.
            let _no_room = port.io.link_mut().send_goaway(Reason::EXHAUSTED, &why);
        }
        self.lose_link(link, &why);
        false
    }

    /// Whether a link may carry the calls of the tenant that its first BIND has named. The link
    /// isn't in the table.
    pub(crate) fn may_be_of(&mut self, state: &LinkState, tenant: &str) -> Result<(), Status> {
        let links = self.links.iter();
        let others = links.filter(|(_, port)| {
            port.state.is_guests() && port.state.tenant.as_deref() == Some(tenant)
        });
        let (mut all, mut of_peer) = (0, 0);
        for (_, other) in others {
            all += 1;
            of_peer += usize::from(other.state.peer == state.peer);
        }
        let room = self.options.tuning.room;
        let whose = if of_peer >= room.accepted_per_pair() {
            format!("one peer has {of_peer} links for tenant {tenant}")
        } else if all >= room.accepted_per_tenant() {
            format!("peers have {all} links for tenant {tenant}")
        } else {
            return Ok(());
        };
        let why = format!(
            "{whose} to runtime {}, which is the limit",
            self.options.index
        );
        self.note_full(&why);
        log_limited!(
            warn,
            "link refused",
            tenant,
            "a binding of {} was refused: {why}",
            state.address
        );
        Err(Status::new(Code::RESOURCE_EXHAUSTED, why))
    }

    pub(crate) fn note_full(&mut self, why: &str) {
        self.full = Some(Full {
            why: why.to_owned(),
            at_ns: self.now_ns,
        });
    }

    /// Problems for the operator.
    pub(crate) fn problems(&self) -> Vec<String> {
        let full = self.full.iter();
        let lately = full
            .filter(|full| self.now_ns.saturating_sub(full.at_ns) < FULL_SHOWN.as_nanos() as u64);
        lately
            .map(|full| format!("a link found no room: {}", full.why))
            .collect()
    }
}

/// Connections that haven't authenticated yet.
impl Runtime {
    /// Forgets connections that have authenticated, or have gone.
    fn forget_others(&mut self) {
        let links = &self.links;
        self.strangers.waiting.retain(|(link, _)| {
            let port = links.get(*link);
            port.is_some_and(|port| !port.io.link().is_ready())
        });
    }

    /// A further connection from this address is about to be accepted.
    pub(crate) fn make_room_for_stranger(&mut self, address: SocketAddr) {
        self.forget_others();
        let room = self.options.tuning.room;
        if let Some(link) = self.strangers.to_go(address.ip().to_canonical(), room) {
            self.lose_link(link, "it hasn't proven who it is, and others want to");
        }
    }
}
