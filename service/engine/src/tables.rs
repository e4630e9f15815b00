//! The rows of the engine's tables: sessions, links, and services with their servers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::ids::{CallKey, SessionId};
use crate::overload::Limit;
use crate::routes::{MethodChains, Route};
use crate::waiting::Waiting;

/// Calls by the numbers that their caller chose, for cancelling. An attacker that finds out the
/// hash's key by timing can slow look-ups down to the number of outstanding calls that a caller may
/// have.
pub(crate) type ByNumber = HashMap<u64, CallKey, foldhash::fast::RandomState>;

pub(crate) struct Session {
    pub(crate) outstanding: u32,
    pub(crate) delivered: u32,
    /// The maximum of those.
    pub(crate) limit: Limit,
    /// Routes by method handle.
    pub(crate) routes: Vec<Route>,
    pub(crate) by_number: ByNumber,
}

impl Session {
    /// Whether it has the maximum number of unanswered calls.
    pub(crate) fn is_full(&self) -> bool {
        self.delivered >= self.limit.calls()
    }
}

pub(crate) struct Link {
    /// The credit that the peer grants us.
    pub(crate) credit_calls: u32,
    pub(crate) credit_bytes: u64,
    /// Too much is queued on it: everything that can wait waits.
    pub(crate) behind: bool,
    /// Calls held back.
    pub(crate) waiting: Waiting,
    pub(crate) waiting_bytes: u64,
    /// Calls with messages that wait until the link isn't behind; each once, and some that have
    /// ended.
    pub(crate) streams: VecDeque<CallKey>,
    /// At this number, ended ones are removed.
    pub(crate) sweep_at: usize,
    pub(crate) by_number: ByNumber,
}

impl Link {
    pub(crate) fn affords(&self, bytes: u64) -> bool {
        !self.behind && self.credit_calls > 0 && self.credit_bytes >= bytes
    }
}

pub(crate) struct Server {
    pub(crate) session: SessionId,
    pub(crate) first_handle: u32,
    pub(crate) label: Option<Arc<str>>,
}

impl Server {
    /// Whether it takes calls of this route: of a label, or of none.
    pub(crate) fn is_for(&self, route: Option<&str>) -> bool {
        self.label.as_deref() == route
    }
}

pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) servers: Vec<Server>,
    /// The next server.
    pub(crate) next: usize,
    pub(crate) chains: Vec<MethodChains>,
}

impl Service {
    /// The label of the servers that take a call of this route; `None` stands for servers without a
    /// label. The outer `None`: all servers, because otherwise none is left. Calls without a route
    /// stay with servers without a label, so that a canary gets only its own calls.
    pub(crate) fn destination<'r>(&self, route: Option<&'r str>) -> Option<Option<&'r str>> {
        let has = |route| self.servers.iter().any(|server| server.is_for(route));
        [route, None].into_iter().find(|route| has(*route))
    }

    /// The indices of the servers for a call of this route, in the order of their turns.
    pub(crate) fn turns(&self, route: Option<&str>) -> impl Iterator<Item = usize> {
        let destination = self.destination(route);
        let count = self.servers.len();
        (0..count)
            .map(move |turn| (self.next + turn) % count)
            .filter(move |at| destination.is_none_or(|route| self.servers[*at].is_for(route)))
    }
}
