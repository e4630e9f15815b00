//! What is known of who calls: the attributes that policies may be shown.

use serde::{Deserialize, Serialize};
use tollgate_control::Side;
use tollgate_policy_host::{Attribute, Attributes};
use tollgate_shm_abi::control::PeerCredentials;

/// An application, as its session was opened. One whose daemon was upgraded from a version that
/// didn't tell this is unknown until it connects again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::control) struct Application {
    /// The name of the credential whose token it had.
    pub(super) credential: Option<String>,
    pub(super) process: Option<Process>,
}

/// The process that connected, as the kernel knew it then.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Process {
    uid: u32,
    gid: u32,
    pid: i32,
}

impl From<PeerCredentials> for Process {
    fn from(peer: PeerCredentials) -> Process {
        let PeerCredentials { uid, gid, pid } = peer;
        Process { uid, gid, pid }
    }
}

/// The attributes of calls that a binding evaluates. A server's binding evaluates calls of any
/// application of the tenant, also of other hosts: it isn't told of which.
pub(in crate::control) fn on(side: Side, tenant: &str, application: &Application) -> Attributes {
    let mut caller = Attributes::default();
    if side == Side::Client {
        if let Some(credential) = &application.credential {
            caller.set(Attribute::Application, credential);
        }
        if let Some(Process { uid, gid, pid }) = application.process {
            caller.set(Attribute::Uid, &uid.to_string());
            caller.set(Attribute::Gid, &gid.to_string());
            caller.set(Attribute::Pid, &pid.to_string());
        }
    }
    with(caller, side, tenant)
}

/// Adds what is known of every call.
pub(in crate::control) fn with(mut caller: Attributes, side: Side, tenant: &str) -> Attributes {
    caller.set(Attribute::Side, side.name());
    caller.set(Attribute::Tenant, tenant);
    caller
}
