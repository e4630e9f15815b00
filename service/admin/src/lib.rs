//! The daemon's administrative API, `tollgate.admin.v1`: its definition, who may do what, a server
//! and a client.
//!
//! ```text
//!   proto/tollgate/admin/v1/admin.proto ──▶ proto     messages and services
//!   operations   one table, request x principal: Ask, Answer, Handler, carry_out, ALL
//!        │
//!   rights       Principal, authorize ──▶ Authorized<Request>, which nothing else can make
//!        │
//!   server       gRPC on threads of its own ── Call ──▶ the daemon ── carry_out ──▶ its Handler
//!   client       for programs that block
//! ```
//!
//! The crate doesn't know the daemon. The daemon authenticates a [`Caller`](server::Caller) as a
//! [`Principal`] and implements [`Handler`]. Its methods get requests that are authorized: of a
//! tenant's principal they concern that tenant, and nothing of the provider's.

#![forbid(unsafe_code)]

pub mod client;
mod limits;
mod operations;
mod report;
mod rights;
mod scopes;
pub mod server;
mod status;

use std::path::{Path, PathBuf};

/// The messages and services, as generated from `admin.proto`.
#[allow(
    missing_docs,
    clippy::doc_markdown,
    clippy::large_enum_variant,
    reason = "generated from commented messages"
)]
pub mod proto {
    tonic::include_proto!("tollgate.admin.v1");

    impl std::fmt::Debug for AddTenantResponse {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("AddTenantResponse(..)")
        }
    }

    impl std::fmt::Debug for AddCredentialResponse {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("AddCredentialResponse(..)")
        }
    }

    impl std::fmt::Debug for RotateCredentialResponse {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("RotateCredentialResponse(..)")
        }
    }
}

/// The encoded `google.protobuf.FileDescriptorSet` of the API.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/admin.binpb"));

pub use limits::{
    ACCEPT_PAUSE, APPLIES, APPLIES_PER_TENANT, APPLY_BYTES, APPLY_MESSAGE_BYTES, APPLY_OBJECTS,
    ASKS_QUEUED, CONNECTIONS, CONNECTIONS_PER_USER, HANDSHAKE_TIME, HEADER_BYTES, KEEPALIVE,
    KNOWN_NETWORKS, KNOWN_TIME, MAX_MESSAGE_BYTES, MAX_REPORT_BYTES, MAX_STATUS_BYTES,
    OPERATORS_APPLIES, OPERATORS_CONNECTIONS, OPERATORS_PUSHES, OWN_DESCRIPTORS, PROOF_TIME,
    PUSH_BYTES, PUSH_CHUNK_BYTES, PUSH_PATIENCE, PUSHES, PUSHES_PER_TENANT, REMOTE_APPLIES,
    REMOTE_CONNECTION_AGE, REMOTE_CONNECTIONS, REMOTE_CONNECTIONS_PER_NETWORK,
    REMOTE_CONNECTIONS_PER_TENANT, REMOTE_KNOWN_CONNECTIONS, REMOTE_OPERATORS_APPLIES,
    REMOTE_OPERATORS_CONNECTIONS, REMOTE_OPERATORS_PUSHES, REMOTE_PUSHES, REQUESTS_PER_CONNECTION,
    STEPS_QUEUED, STOP_GRACE, STRANGER_LAST, STRANGER_REQUESTS, STRANGER_TIME, TAP_INTERVAL,
    WATCH_INTERVAL, WATCH_INTERVALS,
};
pub use operations::{
    ALL, Answer, ApplyOrder, Ask, Handler, Operation, PushOrder, Steps, TapPoll, UpgradeOrder,
    carry_out,
};
pub use report::{from_json, to_json};
pub use rights::{Authorized, Principal, Reach, Rights, may_send};
pub use scopes::{Scope, Scoped};
pub use status::{Secret, Status};

/// The path of the API's socket beside the daemon's.
pub fn socket_beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".admin");
    path.into()
}
