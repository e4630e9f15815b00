//! Bindings, as the control plane and a runtime exchange them: the request of an application, and
//! its outcome.

use std::sync::Arc;

use tollgate_engine::{ServiceId, Status};
use tollgate_schema::evolution::MethodMatch;

use crate::links::target::Found;
use crate::reply::Reply;
use tollgate_jit::on_demand::Method;

/// A service as one application knows it: shared by all that bind the same schema.
pub struct ServiceSchema {
    /// The full name, such as `hotel.Reservation`.
    pub name: String,
    /// Hash of the schema; peers compare it.
    pub hash: [u8; 32],
    /// Description of the schema, sent to the peer if the hashes differ.
    pub description: String,
    /// Its methods, in the order of their handles.
    pub methods: Vec<Arc<Method>>,
}

/// A kind of binding.
pub enum BindAs {
    /// Calls the service: on this host, or at a peer.
    Client {
        /// Where the service is; `None`: on this host.
        peer: Option<Found>,
    },
    /// Calls a service of this host that has another schema. The two have been compared.
    Across {
        /// The service of this host.
        service: ServiceId,
        /// How each method is called.
        matches: Vec<MethodMatch>,
    },
    /// Serves the service.
    Server,
}

/// The result of a binding.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The handle of the first method; those of the other methods follow.
    pub first_handle: u32,
    /// For servers: the service. [`Command::Serve`](crate::Command::Serve) starts it, and
    /// server-side chains belong to it.
    pub service: Option<ServiceId>,
    /// Methods that can't be called because their schemas are incompatible, with the reasons.
    pub refused: Vec<(u16, String)>,
}

/// The outcome of a [`Command::Bind`](crate::Command::Bind).
pub enum BindOutcome {
    /// The application is bound.
    Bound(Bound),
    /// A service of this host has this name, but another schema: bind again as [`BindAs::Across`].
    Differs {
        /// The service of this host.
        service: ServiceId,
        /// The schema that the service has.
        served: Arc<ServiceSchema>,
    },
}

/// Takes the outcome of a binding.
pub(crate) type BindReply = Reply<Result<BindOutcome, Status>>;

/// A BIND that a peer sent.
pub struct PendingBind {
    pub(crate) bind: u32,
    pub(crate) tenant: String,
    pub(crate) service: String,
    pub(crate) hash: [u8; 32],
}
