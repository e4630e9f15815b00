//! Bindings as the control plane and a runtime speak of them: what an application binds, and what comes of it.

use std::sync::Arc;

use tollgate_engine::{ServiceId, Status};
use tollgate_schema::evolution::MethodMatch;

use crate::reply::Reply;
use crate::target::Found;
use tollgate_jit::on_demand::Method;

/// A service as one application knows it: shared by all that bind the same schema.
pub struct ServiceSchema {
    pub name: String,
    /// What peers compare.
    pub hash: [u8; 32],
    /// What they are shown when hashes differ.
    pub description: String,
    pub methods: Vec<Arc<Method>>,
}

/// What an application binds.
pub enum BindAs {
    /// It calls the service: on this host, or at a peer.
    Client { peer: Option<Found> },
    /// It calls a service of this host whose schema is another one: what came of comparing them.
    Across {
        service: ServiceId,
        matches: Vec<MethodMatch>,
    },
    /// It serves it.
    Server,
}

/// What binding yields.
#[derive(Clone, Debug)]
pub struct Bound {
    pub first_handle: u32,
    /// For servers: what [`Command::Serve`] starts, and server-side chains are for.
    pub service: Option<ServiceId>,
    /// Methods that can't be called because the schemas are incompatible there, and why.
    pub refused: Vec<(u16, String)>,
}

/// What becomes of a [`Command::Bind`].
pub enum BindOutcome {
    Bound(Bound),
    /// A service of this host has the name and another schema: bind again as [`BindAs::Across`].
    Differs {
        service: ServiceId,
        served: Arc<ServiceSchema>,
    },
}

/// Who asked for a binding.
pub(crate) type Asker = Reply<Result<BindOutcome, Status>>;

/// A BIND that a peer sent.
pub(crate) struct PendingBind {
    pub(crate) bind: u32,
    pub(crate) tenant: String,
    pub(crate) service: String,
    pub(crate) hash: [u8; 32],
}
