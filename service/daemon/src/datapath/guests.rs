//! Links that peers have opened: their shares of a runtime's table.
//!
//! ```text
//!   MAX_LINKS ── dialled: at most MAX_DIALLED, one tenant's MAX_DIALLED_PER_TENANT
//!            └── accepted: at most MAX_ACCEPTED, one peer's MAX_ACCEPTED_PER_PEER ── ended with a GOAWAY that says so
//!                          └── once a BIND names the tenant: MAX_ACCEPTED_PER_TENANT, of one peer MAX_ACCEPTED_PER_PAIR ── the BIND is refused
//! ```
//!
//! A peer is known by what its handshake proves: the instance, or the name where there is no key.

use tollgate_engine::{LinkId, Status};
use tollgate_shm_abi::status::Code;
use tollgate_transport::Reason;

use crate::datapath::ports::{LinkPort, LinkState};
use crate::datapath::runtime::Runtime;
use crate::limits::{
    FULL_SHOWN, MAX_ACCEPTED, MAX_ACCEPTED_PER_PAIR, MAX_ACCEPTED_PER_PEER,
    MAX_ACCEPTED_PER_TENANT, MAX_DIALLED,
};
use crate::lines::log_limited;

/// The last link that found no room, for reports.
pub(crate) struct Full {
    why: String,
    at_ns: u64,
}

impl Runtime {
    /// Why the table has no room for one more link of its kind.
    pub(super) fn why_full(&self, is_dialled: bool) -> Result<(), String> {
        let links = self.links.iter();
        let (there, limit, whose) = match is_dialled {
            true => {
                let dialled = links.filter(|(_, port)| port.state.dialled.is_some());
                (dialled.count(), MAX_DIALLED, "this daemon has dialled")
            }
            false => {
                let accepted = links.filter(|(_, port)| port.state.is_guests());
                (accepted.count(), MAX_ACCEPTED, "peers have opened")
            }
        };
        match there < limit {
            true => Ok(()),
            false => Err(format!(
                "{whose} {there} links of runtime {}, which is the limit",
                self.options.index
            )),
        }
    }

    /// A link that a peer has opened is ready: ends it if it is one too many. Whether it stays.
    pub(super) fn stays(&mut self, link: LinkId) -> bool {
        let Some(port) = self.links.get(link.0).filter(|port| port.state.is_guests()) else {
            return true;
        };
        let links = self.links.iter();
        let others = links.filter(|(key, port)| LinkId(*key) != link && port.state.is_guests());
        let of_peer = |other: &LinkPort| other.state.peer == port.state.peer;
        let (mut all, mut its) = (0, 0);
        for (_, other) in others {
            all += 1;
            its += usize::from(of_peer(other));
        }
        let why = if its >= MAX_ACCEPTED_PER_PEER {
            let name = port.io.link().peer_name().unwrap_or("without a name");
            format!(
                "peer {name} has {its} links to runtime {}, which is the limit",
                self.options.index
            )
        } else if all >= MAX_ACCEPTED {
            let runtime = self.options.index;
            format!("peers have opened {all} links of runtime {runtime}, which is the limit")
        } else {
            return true;
        };
        self.note_full(&why);
        if let Some(port) = self.links.get_mut(link.0) {
            // Its end says less.
            let _no_room = port.io.link_mut().send_goaway(Reason::EXHAUSTED, &why);
        }
        self.lose_link(link, &why);
        false
    }

    /// Whether a link may carry a tenant's calls, whom its first BIND has named. The link isn't in the table.
    pub(super) fn may_be_of(&mut self, state: &LinkState, tenant: &str) -> Result<(), Status> {
        let links = self.links.iter();
        let others = links.filter(|(_, port)| {
            port.state.is_guests() && port.state.tenant.as_deref() == Some(tenant)
        });
        let (mut all, mut of_peer) = (0, 0);
        for (_, other) in others {
            all += 1;
            of_peer += usize::from(other.state.peer == state.peer);
        }
        let whose = if of_peer >= MAX_ACCEPTED_PER_PAIR {
            format!("one peer has {of_peer} links for tenant {tenant}")
        } else if all >= MAX_ACCEPTED_PER_TENANT {
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

    pub(super) fn note_full(&mut self, why: &str) {
        self.full = Some(Full {
            why: why.to_owned(),
            at_ns: self.now_ns,
        });
    }

    /// What an operator should know.
    pub(super) fn problems(&self) -> Vec<String> {
        let full = self.full.iter();
        let lately = full
            .filter(|full| self.now_ns.saturating_sub(full.at_ns) < FULL_SHOWN.as_nanos() as u64);
        lately
            .map(|full| format!("a link found no room: {}", full.why))
            .collect()
    }
}

impl LinkState {
    /// Whether a peer has opened it and proven itself.
    fn is_guests(&self) -> bool {
        self.dialled.is_none() && self.proven
    }
}
