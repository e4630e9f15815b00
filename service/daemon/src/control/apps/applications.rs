//! The applications of this host: their connections and sessions, and what these share.

use std::rc::Rc;
use std::sync::Arc;

use tollgate_control::audit::Actor;
use tollgate_datapath::command::{Command, Comparison};
use tollgate_datapath::target::Target;
use tollgate_engine::Status;

use crate::control::apps::admission::Admission;
use crate::control::apps::heaps::Heaps;
use crate::control::apps::listeners::Listeners;
use crate::control::apps::names::Names;
use crate::control::apps::requests::Requests;
use crate::control::apps::schema_cache::SchemaCache;
use crate::control::apps::schemas;
use crate::control::apps::sessions::Sessions;
use crate::control::apps::turns::{Turn, Turns};

/// What serves applications. Parts that only this room uses are visible only here.
pub(in crate::control) struct Applications {
    /// Open sessions, and connections without a request so far.
    pub(in crate::control) sessions: Sessions,
    pub(in crate::control) requests: Requests,
    pub(in crate::control) admission: Rc<Admission>,
    pub(in crate::control) schemas: SchemaCache,
    pub(in crate::control) listeners: Listeners,
    pub(in crate::control) heaps: Rc<Heaps>,
    pub(super) names: Names,
    pub(super) turns: Turns,
}

impl Applications {
    /// None so far.
    pub(in crate::control) fn new(
        admission: Rc<Admission>,
        listeners: Listeners,
        schemas: SchemaCache,
    ) -> Applications {
        Applications {
            sessions: Sessions::default(),
            requests: Requests::default(),
            admission,
            schemas,
            listeners,
            heaps: Rc::default(),
            names: Names::default(),
            turns: Turns::default(),
        }
    }

    /// Waits for the turn of whoever wants a schema resolved. Operators don't wait.
    pub(in crate::control) async fn turn_of(&self, actor: &Actor) -> Result<Turn, Status> {
        match actor {
            Actor::Credential { tenant, .. } => self.turns.of(tenant).await,
            Actor::Admin { .. } | Actor::Operator { .. } | Actor::Daemon => Ok(Turn::operators()),
        }
    }

    /// Compares two schemas for a runtime. Returns the command that answers it.
    pub(in crate::control) async fn compare(&self, comparison: Comparison) -> Command {
        let turn = self.turns.of(&comparison.tenant).await;
        let turn = turn.unwrap_or_else(|_ending| Turn::operators());
        let matches = schemas::compare(&turn, &comparison.ours, comparison.theirs).await;
        Command::Compared {
            ticket: comparison.ticket,
            binding: comparison.binding,
            matches,
        }
    }

    /// Looks a lost peer up. Returns the command that answers the tenant's runtime.
    pub(in crate::control) async fn look_up_again(
        &self,
        tenant: Arc<str>,
        peer: Target,
    ) -> Command {
        let found = self.names.find_again(&tenant, &peer).await;
        Command::Found {
            tenant,
            peer,
            found,
        }
    }
}
