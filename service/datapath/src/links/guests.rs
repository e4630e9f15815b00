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
//! [`PeerRoom`] has the numbers. A peer is identified by its handshake:
//! by the instance, or by the name if it has no key.
//!
//! Invariant: the functions here only count and decide; the runtime ends links and refuses BINDs.

use std::fmt;
use std::net::SocketAddr;

use tollgate_engine::{LinkId, Status};
use tollgate_shm_abi::status::Code;

use crate::limits::FULL_SHOWN;
use crate::links::peers::Full;
use crate::links::strangers::Strangers;
use crate::links::table::Links;
use crate::log_limited;
use crate::peer_room::PeerRoom;
use crate::placement::RuntimeIndex;
use crate::ports::LinkState;

/// The room for the links of one runtime.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// The runtime's index, for texts.
    pub(crate) runtime: RuntimeIndex,
    pub(crate) numbers: PeerRoom,
}

/// Decides which links have room.
#[derive(Default)]
pub(crate) struct Guests {
    strangers: Strangers,
    /// The last link that found no room.
    full: Option<Full>,
}

impl Guests {
    /// The reason why a link that a peer has opened, and that is ready now, exceeds a limit, if it
    /// does.
    pub(crate) fn why_excess(
        &mut self,
        link: LinkId,
        links: &Links,
        room: Room,
        now_ns: u64,
    ) -> Option<String> {
        let port = links.get(link).filter(|port| port.state.is_guests())?;
        let (mut dialled, mut accepted, mut its) = (0, 0, 0);
        for (_, other) in links.iter().filter(|(other, _)| *other != link) {
            dialled += usize::from(other.state.dialled.is_some());
            accepted += usize::from(other.state.is_guests());
            let is_its = other.state.is_guests() && other.state.peer == port.state.peer;
            its += usize::from(is_its);
        }
        let why = if its >= room.numbers.accepted_per_peer() {
            let name = port.io.link().peer_name().unwrap_or("without a name");
            format!(
                "peer {name} has {its} links to runtime {}, which is the limit",
                room.runtime
            )
        } else {
            room.of_kind(false, dialled, accepted).err()?.to_string()
        };
        self.note_full(&why, now_ns);
        Some(why)
    }

    /// Whether a link may carry the calls of the tenant that its first BIND has named. The link
    /// isn't in the table.
    pub(crate) fn may_be_of(
        &mut self,
        state: &LinkState,
        tenant: &str,
        links: &Links,
        room: Room,
        now_ns: u64,
    ) -> Result<(), Status> {
        let others = links.iter().filter(|(_, port)| {
            port.state.is_guests() && port.state.tenant.as_deref() == Some(tenant)
        });
        let (mut all, mut of_peer) = (0, 0);
        for (_, other) in others {
            all += 1;
            of_peer += usize::from(other.state.peer == state.peer);
        }
        let whose = if of_peer >= room.numbers.accepted_per_pair() {
            format!("one peer has {of_peer} links for tenant {tenant}")
        } else if all >= room.numbers.accepted_per_tenant() {
            format!("peers have {all} links for tenant {tenant}")
        } else {
            return Ok(());
        };
        let why = format!("{whose} to runtime {}, which is the limit", room.runtime);
        self.note_full(&why, now_ns);
        log_limited!(
            warn,
            "link refused",
            tenant,
            "a binding of {} was refused: {why}",
            state.address
        );
        Err(Status::new(Code::RESOURCE_EXHAUSTED, why))
    }

    /// A link has found no room.
    pub(crate) fn note_full(&mut self, why: &str, now_ns: u64) {
        self.full = Some(Full {
            why: why.to_owned(),
            at_ns: now_ns,
        });
    }

    /// Problems for the operator.
    pub(crate) fn problems(&self, now_ns: u64) -> Vec<String> {
        let full = self.full.iter();
        let lately =
            full.filter(|full| now_ns.saturating_sub(full.at_ns) < FULL_SHOWN.as_nanos() as u64);
        lately
            .map(|full| format!("a link found no room: {}", full.why))
            .collect()
    }

    /// Adds a connection whose peer hasn't authenticated yet.
    pub(crate) fn add_stranger(&mut self, link: LinkId, address: SocketAddr) {
        self.strangers.note(link, address);
    }

    /// The connection that must end before a further one from this address is accepted.
    pub(crate) fn stranger_to_end(
        &mut self,
        address: SocketAddr,
        links: &Links,
        room: Room,
    ) -> Option<LinkId> {
        // Some have authenticated, or have gone.
        self.strangers.retain(|link| {
            let port = links.get(link);
            port.is_some_and(|port| !port.io.link().is_ready())
        });
        self.strangers
            .to_go(address.ip().to_canonical(), room.numbers)
    }
}

/// Why the table has no room for one more link of a kind.
pub(crate) enum NoRoom {
    OfKind {
        is_dialled: bool,
        there: usize,
        runtime: RuntimeIndex,
    },
    OfAny {
        all: usize,
        runtime: RuntimeIndex,
    },
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            NoRoom::OfKind {
                is_dialled,
                there,
                runtime,
            } => {
                let whose = match is_dialled {
                    true => "this daemon has dialled",
                    false => "peers have opened",
                };
                write!(
                    f,
                    "{whose} {there} links of runtime {runtime}, which is the limit"
                )
            }
            NoRoom::OfAny { all, runtime } => {
                write!(f, "runtime {runtime} has {all} links, which is the limit")
            }
        }
    }
}

impl Room {
    /// Whether the table has room for one more link of this kind.
    pub(crate) fn for_one_more(self, is_dialled: bool, links: &Links) -> Result<(), NoRoom> {
        let dialled = links.count(|state| state.dialled.is_some());
        let accepted = links.count(LinkState::is_guests);
        self.of_kind(is_dialled, dialled, accepted)
    }

    fn of_kind(self, is_dialled: bool, dialled: usize, accepted: usize) -> Result<(), NoRoom> {
        let Room { runtime, numbers } = self;
        let there = if is_dialled { dialled } else { accepted };
        if there >= numbers.of_one_kind() {
            return Err(NoRoom::OfKind {
                is_dialled,
                there,
                runtime,
            });
        }
        let all = dialled + accepted;
        if all >= numbers.links {
            return Err(NoRoom::OfAny { all, runtime });
        }
        Ok(())
    }
}
