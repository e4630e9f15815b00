//! What travels on the control socket: protobuf messages, derived, so that libraries and daemons of
//! different ages understand each other and hostile bytes are errors.
//!
//! Every packet from an app or operator is a [`Request`], every answer a [`Response`] with its id.
//! Session requests (open, bind) are authorised by a tenant's token; the others by the peer's user
//! id. Descriptors beside a message are named in its comment, in order.

use alloc::string::String;
use alloc::vec::Vec;

/// The client's side of a call, in `role` and `side` fields.
pub const SIDE_CLIENT: i32 = 0;
/// The server's side of a call.
pub const SIDE_SERVER: i32 = 1;
/// Either side; only in [`PolicyDetach`].
pub const SIDE_ANY: i32 = -1;

/// One question to the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// Chosen by the asker, not 0; the answer repeats it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What is asked.
    #[prost(oneof = "RequestBody", tags = "10, 11, 20, 21, 22, 23, 24, 25, 26")]
    pub body: Option<RequestBody>,
}

/// What a [`Request`] asks.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum RequestBody {
    /// Open the one session of this connection.
    #[prost(message, tag = "10")]
    OpenSession(OpenSession),
    /// Use or serve a service.
    #[prost(message, tag = "11")]
    Bind(Bind),
    /// Make a tenant.
    #[prost(message, tag = "20")]
    TenantAdd(TenantAdd),
    /// List the tenants.
    #[prost(message, tag = "21")]
    TenantList(Empty),
    /// Upload a policy.
    #[prost(message, tag = "22")]
    PolicyPush(PolicyPush),
    /// Attach a policy.
    #[prost(message, tag = "23")]
    PolicyAttach(PolicyAttach),
    /// Detach a policy.
    #[prost(message, tag = "24")]
    PolicyDetach(PolicyDetach),
    /// List policies and attachments.
    #[prost(message, tag = "25")]
    PolicyList(Empty),
    /// Report the daemon's state.
    #[prost(message, tag = "26")]
    Status(Empty),
}

/// One answer of the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// The request's id; 0 if nobody asked (the session ended, with a [`Failure`] that says why).
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The answer.
    #[prost(oneof = "ResponseBody", tags = "2, 10, 11, 20, 21, 22, 23, 25, 26")]
    pub body: Option<ResponseBody>,
}

/// What a [`Response`] answers.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ResponseBody {
    /// It didn't work.
    #[prost(message, tag = "2")]
    Failure(Failure),
    /// To `OpenSession`.
    #[prost(message, tag = "10")]
    SessionOpened(SessionOpened),
    /// To `Bind`.
    #[prost(message, tag = "11")]
    Bound(Bound),
    /// To `TenantAdd`.
    #[prost(message, tag = "20")]
    TenantAdded(TenantAdded),
    /// To `TenantList`.
    #[prost(message, tag = "21")]
    Tenants(Tenants),
    /// To `PolicyPush`.
    #[prost(message, tag = "22")]
    PolicyPushed(PolicyPushed),
    /// To `PolicyAttach` and `PolicyDetach`.
    #[prost(message, tag = "23")]
    Done(Empty),
    /// To `PolicyList`.
    #[prost(message, tag = "25")]
    Policies(Policies),
    /// To `Status`.
    #[prost(message, tag = "26")]
    Status(StatusReport),
}

/// Nothing to say.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// Why something didn't work.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failure {
    /// A [`Code`](crate::Code)'s number.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// One sentence that names the culprit and the value.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// An app introduces itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenSession {
    /// [`ABI_VERSION`](crate::segment::ABI_VERSION).
    #[prost(uint32, tag = "1")]
    pub abi_version: u32,
    /// The tenant's token.
    #[prost(string, tag = "2")]
    pub token: String,
    /// The app's name, for status and logs.
    #[prost(string, tag = "3")]
    pub app: String,
    /// Bytes of the send heap; 0 for the default.
    #[prost(uint64, tag = "4")]
    pub send_heap_bytes: u64,
    /// Bytes of the receive heap; 0 for the default.
    #[prost(uint64, tag = "5")]
    pub receive_heap_bytes: u64,
}

/// The session is there. Descriptors: those of [`SessionFds`](crate::session::SessionFds).
#[derive(Clone, PartialEq, prost::Message)]
pub struct SessionOpened {
    /// Its id, for status and logs.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The token's tenant.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// Entries of each ring.
    #[prost(uint32, tag = "3")]
    pub ring_capacity: u32,
    /// Bytes of the send heap.
    #[prost(uint64, tag = "4")]
    pub send_heap_bytes: u64,
    /// Bytes of the receive heap.
    #[prost(uint64, tag = "5")]
    pub receive_heap_bytes: u64,
    /// The longest message in bytes.
    #[prost(uint32, tag = "6")]
    pub max_message_bytes: u32,
    /// The most calls that may be outstanding at once.
    #[prost(uint32, tag = "7")]
    pub max_outstanding: u32,
}

/// Use or serve a service. Descriptor: a blob with its `google.protobuf.FileDescriptorSet`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Bind {
    /// [`SIDE_CLIENT`] or [`SIDE_SERVER`].
    #[prost(int32, tag = "1")]
    pub role: i32,
    /// The service's full name.
    #[prost(string, tag = "2")]
    pub service: String,
    /// `host:port` of the daemon that serves it; empty for this one. Of no meaning to servers.
    #[prost(string, tag = "3")]
    pub target: String,
}

/// The handles of a bound service's methods.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Bound {
    /// In the service's order.
    #[prost(message, repeated, tag = "1")]
    pub methods: Vec<BoundMethod>,
}

/// One method of a [`Bound`] service.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BoundMethod {
    /// Its name within the service.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What descriptors call it.
    #[prost(uint32, tag = "2")]
    pub handle: u32,
    /// Why it can't be called although the service was bound: the schemas are incompatible there. Empty: it can.
    #[prost(string, tag = "3")]
    pub refused: String,
}

/// Make a tenant.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantAdd {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The tenant is there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantAdded {
    /// Its token, shown this once.
    #[prost(string, tag = "1")]
    pub token: String,
}

/// All tenants.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tenants {
    /// Their names, sorted.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}

/// Upload a policy. Descriptors: a blob with the module, and one with the configuration if `has_config`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyPush {
    /// Whose policy.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Whether a configuration comes along.
    #[prost(bool, tag = "3")]
    pub has_config: bool,
}

/// The policy is there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyPushed {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The version it got, from 1.
    #[prost(uint32, tag = "2")]
    pub version: u32,
}

/// Attach a policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyAttach {
    /// `name@version`.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// Whose policy, and whose calls.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// The service's full name.
    #[prost(string, tag = "3")]
    pub service: String,
    /// The method's name within the service; empty for all.
    #[prost(string, tag = "4")]
    pub method: String,
    /// [`SIDE_CLIENT`] or [`SIDE_SERVER`].
    #[prost(int32, tag = "5")]
    pub side: i32,
}

/// Detach a policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyDetach {
    /// Its name, whatever the version.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// Whose policy.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// The service's full name.
    #[prost(string, tag = "3")]
    pub service: String,
    /// The method's name within the service; empty for all.
    #[prost(string, tag = "4")]
    pub method: String,
    /// [`SIDE_CLIENT`], [`SIDE_SERVER`] or [`SIDE_ANY`].
    #[prost(int32, tag = "5")]
    pub side: i32,
}

/// All policies.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Policies {
    /// Sorted by tenant, name and version.
    #[prost(message, repeated, tag = "1")]
    pub policies: Vec<PolicyInfo>,
}

/// One policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyInfo {
    /// Whose it is.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its version.
    #[prost(uint32, tag = "3")]
    pub version: u32,
    /// Bytes of its module.
    #[prost(uint64, tag = "4")]
    pub module_bytes: u64,
    /// SHA-256 of its module, in hex.
    #[prost(string, tag = "5")]
    pub digest: String,
    /// Where it is attached.
    #[prost(message, repeated, tag = "6")]
    pub attachments: Vec<AttachmentInfo>,
}

/// Where a policy is attached.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttachmentInfo {
    /// The service's full name.
    #[prost(string, tag = "1")]
    pub service: String,
    /// The method's name within the service; empty for all.
    #[prost(string, tag = "2")]
    pub method: String,
    /// [`SIDE_CLIENT`] or [`SIDE_SERVER`].
    #[prost(int32, tag = "3")]
    pub side: i32,
}

/// The daemon's state. Descriptor: a blob with JSON.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StatusReport {}

#[cfg(test)]
mod tests;
