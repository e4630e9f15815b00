//! Bindings, as the control plane and a runtime exchange them: the request of an application, and
//! its outcome.

use std::sync::Arc;

use tollgate_engine::{ServiceId, Status};
use tollgate_schema::evolution::MethodMatch;

use crate::reply::Reply;
use crate::target::Found;
use tollgate_jit::on_demand::Method;

/// A service as one application knows it: shared by all that bind the same schema.
pub struct ServiceSchema {
    /// The full name, such as `hotel.Reservation`.
    pub name: String,
    /// What peers compare.
    pub hash: [u8; 32],
    /// What they are shown when hashes differ.
    pub description: String,
    /// Its methods, in the order of their handles.
    pub methods: Vec<Arc<Method>>,
}

/// What an application binds.
pub enum BindAs {
    /// It calls the service: on this host, or at a peer.
    Client {
        /// Where the service is; `None`: on this host.
        peer: Option<Found>,
    },
    /// It calls a service of this host whose schema is another one: what came of comparing them.
    Across {
        /// The service of this host.
        service: ServiceId,
        /// How each method is called.
        matches: Vec<MethodMatch>,
    },
    /// It serves it.
    Server,
}

/// What binding yields.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The handle of the first method; the others follow.
    pub first_handle: u32,
    /// For servers: what [`Command::Serve`](crate::Command::Serve) starts, and server-side chains are for.
    pub service: Option<ServiceId>,
    /// Methods that can't be called because the schemas are incompatible there, and why.
    pub refused: Vec<(u16, String)>,
}

/// What becomes of a [`Command::Bind`](crate::Command::Bind).
pub enum BindOutcome {
    /// The application is bound.
    Bound(Bound),
    /// A service of this host has the name and another schema: bind again as [`BindAs::Across`].
    Differs {
        /// The service of this host.
        service: ServiceId,
        /// The schema that the service has.
        served: Arc<ServiceSchema>,
    },
}

/// Who asked for a binding.
pub(crate) type Asker = Reply<Result<BindOutcome, Status>>;

/// A BIND that a peer sent.
pub struct PendingBind {
    pub(crate) bind: u32,
    pub(crate) tenant: String,
    pub(crate) service: String,
    pub(crate) hash: [u8; 32],
}
