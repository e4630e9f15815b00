//! The messages on the control socket: derived protobuf messages, so that libraries and daemons of
//! different versions understand each other and hostile bytes are errors.
//!
//! Every packet from an app or operator is a [`Request`], every answer a [`Response`] with its id.
//! Session requests (open, bind) are authorised by a tenant's token; the others by the peer's user
//! id. A message's comment lists its descriptors, in order.
//!
//! All messages stand in one file, because each number is chosen with a look at the others.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The client's side of a call, in `role` and `side` fields.
pub const SIDE_CLIENT: i32 = 0;
/// The server's side of a call.
pub const SIDE_SERVER: i32 = 1;
/// Either side; only in [`PolicySelection`].
pub const SIDE_ANY: i32 = -1;

/// The tenant's part of a chain, in `party` fields: the default of requests without such a field.
pub const PARTY_TENANT: i32 = 0;
/// The provider's part before the tenant's.
pub const PARTY_PROVIDER_PRE: i32 = 1;
/// The provider's part after the tenant's.
pub const PARTY_PROVIDER_POST: i32 = 2;
/// Either of the provider's parts; only in [`PolicySelection`].
pub const PARTY_PROVIDER: i32 = 3;

/// The version enforces its decisions, in `mode` fields.
pub const MODE_ENFORCE: i32 = 0;
/// The version evaluates calls without enforcing its decisions.
pub const MODE_SHADOW: i32 = 1;
/// The version enforces its decisions for `percent` of the calls.
pub const MODE_CANARY: i32 = 2;

/// A step of [`PolicyStep`]: the version on trial takes over.
pub const STEP_PROMOTE: i32 = 1;
/// The trial ends, or the previous version takes over again.
pub const STEP_ROLLBACK: i32 = 2;
/// A quarantine ends, or a policy that stays closed after a fault gets a fresh instance.
pub const STEP_RELEASE: i32 = 3;

/// After a fault: refuse calls until there is a fresh instance, in `on_fault` fields.
pub const ON_FAULT_RELOAD: i32 = 0;
/// After a fault: refuse calls until an operator acts.
pub const ON_FAULT_CLOSED: i32 = 1;
/// After a fault: let calls pass until there is a fresh instance.
pub const ON_FAULT_OPEN: i32 = 2;

/// Calls may carry metadata, in `features` fields.
pub const FEATURE_METADATA: u32 = 1;
/// Deliveries may ask for the time that a call waited, which the answer then has, and a status may
/// recommend a time until a retry, in `features` fields.
pub const FEATURE_WAITS: u32 = 2;
/// Calls may have any number of requests and responses, and statuses trailers, in `features`
/// fields.
pub const FEATURE_STREAMS: u32 = 4;
/// Another receive heap may follow ([`ReceiveHeap`]), in `features` fields: the session survives an
/// upgrade of the daemon.
pub const FEATURE_HEAPS: u32 = 8;

/// [`PolicyOptions::isolation`]: the policy runs in the daemon.
pub const ISOLATION_NONE: i32 = 0;
/// [`PolicyOptions::isolation`]: the policy runs in a process of its tenant.
pub const ISOLATION_PROCESS: i32 = 1;

/// A request to the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// Chosen by the requester, not 0; the answer repeats it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The request's content.
    #[prost(
        oneof = "RequestBody",
        tags = "10, 11, 12, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45"
    )]
    pub body: Option<RequestBody>,
}

/// The content of a [`Request`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum RequestBody {
    /// Open the one session of this connection.
    #[prost(message, tag = "10")]
    OpenSession(OpenSession),
    /// Use or serve a service.
    #[prost(message, tag = "11")]
    Bind(Bind),
    /// Send this session no further calls; it still answers those that it has.
    #[prost(message, tag = "12")]
    Drain(Empty),
    /// Add a tenant.
    #[prost(message, tag = "20")]
    TenantAdd(TenantAdd),
    /// List the tenants.
    #[prost(message, tag = "21")]
    TenantList(TenantList),
    /// Upload a policy.
    #[prost(message, tag = "22")]
    PolicyPush(PolicyPush),
    /// Attach a policy.
    #[prost(message, tag = "23")]
    PolicyAttach(PolicyAttach),
    /// Detach a policy.
    #[prost(message, tag = "24")]
    PolicyDetach(PolicySelection),
    /// List policies and attachments.
    #[prost(message, tag = "25")]
    PolicyList(Empty),
    /// Report the daemon's state.
    #[prost(message, tag = "26")]
    Status(Empty),
    /// Put a version on trial next to the enforcing one, or directly in its place; it continues
    /// from that one's state.
    #[prost(message, tag = "27")]
    PolicyUpgrade(PolicyUpgrade),
    /// Promote, roll back or release.
    #[prost(message, tag = "28")]
    PolicyStep(PolicyStep),
    /// Describe a policy.
    #[prost(message, tag = "29")]
    PolicyShow(PolicyShow),
    /// Compare the decisions of two versions about recorded calls.
    #[prost(message, tag = "30")]
    PolicyDiff(PolicyDiff),
    /// Show the end of the audit log.
    #[prost(message, tag = "31")]
    AuditShow(AuditShow),
    /// Verify the audit log.
    #[prost(message, tag = "32")]
    AuditVerify(Empty),
    /// Resolve and compile a schema before it is bound. Descriptor: a blob with the descriptor set.
    #[prost(message, tag = "33")]
    Prefetch(Empty),
    /// Show the daemon's settings.
    #[prost(message, tag = "34")]
    Settings(Empty),
    /// Change some settings, all or none.
    #[prost(message, tag = "35")]
    SettingsChange(SettingsChange),
    /// Replace the daemon by another process.
    #[prost(message, tag = "36")]
    Upgrade(Upgrade),
    /// Move a tenant to another runtime.
    #[prost(message, tag = "37")]
    TenantMove(TenantMove),
    /// Report counters and measurements, as numbers that only grow.
    #[prost(message, tag = "38")]
    Metrics(Empty),
    /// Explain the decision about a call.
    #[prost(message, tag = "39")]
    Explain(Explain),
    /// Watch calls as they end.
    #[prost(message, tag = "40")]
    Tap(Tap),
    /// Show the stored spans of a trace.
    #[prost(message, tag = "41")]
    TraceShow(TraceShow),
    /// Invite the requester to the web console; the answer is a report with a link.
    #[prost(message, tag = "42")]
    Console(Console),
    /// Give a tenant a new token.
    #[prost(message, tag = "43")]
    TenantRotate(TenantRotate),
    /// Remove a tenant with all its objects; the answer is a report.
    #[prost(message, tag = "44")]
    TenantRemove(TenantRemove),
    /// Delete versions of a policy; the answer is a report.
    #[prost(message, tag = "45")]
    PolicyDelete(PolicyDelete),
}

/// Explain which policies would evaluate a call, the fields that they would see, and, with a
/// message, their decisions; the answer is a report. Descriptors, each if it is announced: blobs
/// with a descriptor set and with the message as JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Explain {
    /// The tenant.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// The service's full name.
    #[prost(string, tag = "2")]
    pub service: String,
    /// The method's name within the service.
    #[prost(string, tag = "3")]
    pub method: String,
    /// [`SIDE_CLIENT`], [`SIDE_SERVER`] or [`SIDE_ANY`]: a call within the host, which is evaluated
    /// on both.
    #[prost(int32, tag = "4")]
    pub side: i32,
    /// For the reply; otherwise for the request.
    #[prost(bool, tag = "5")]
    pub is_reply: bool,
    /// Whether a descriptor set with the service is attached; without it, the one that the tenant's
    /// application has bound is used.
    #[prost(bool, tag = "6")]
    pub has_schema: bool,
    /// Whether a message is attached.
    #[prost(bool, tag = "7")]
    pub has_message: bool,
    /// The message's metadata, as a block.
    #[prost(bytes = "vec", tag = "8")]
    pub metadata: Vec<u8>,
}

/// Watch calls as they end; the answer is a report of the calls that ended since the last request.
/// The watch ends after some time without such a request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tap {
    /// The value from the previous answer; 0 for the first request.
    #[prost(uint64, tag = "1")]
    pub tap: u64,
    /// The tenant; empty for all.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// The service's full name; empty for any.
    #[prost(string, tag = "3")]
    pub service: String,
    /// The method's name within the service; empty for any.
    #[prost(string, tag = "4")]
    pub method: String,
    /// Only calls that a policy denied.
    #[prost(bool, tag = "5")]
    pub denied: bool,
    /// Only calls that didn't end with OK.
    #[prost(bool, tag = "6")]
    pub failed: bool,
}

/// Show the stored spans of a trace; the answer is a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TraceShow {
    /// The trace, or one of its spans, in hexadecimal; empty: the newest traces.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The number of the newest traces.
    #[prost(uint32, tag = "2")]
    pub last: u32,
}

/// Invite the requester to the web console.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Console {
    /// With the right to change policies.
    #[prost(bool, tag = "1")]
    pub is_operator: bool,
}

/// Move a tenant to a runtime, with all its objects; the answer is a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantMove {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// The runtime, from 0 on; none: the one for its name's hash.
    #[prost(uint32, optional, tag = "2")]
    pub runtime: Option<u32>,
}

/// Replace the daemon by another process, which is started, checks that it can serve, and then
/// takes over; the answer is a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upgrade {
    /// The program, an absolute path; empty: the path from which the daemon was started, with its
    /// current content.
    #[prost(string, tag = "1")]
    pub binary: String,
    /// The time limit until the new process is ready, in milliseconds; 0 is the daemon's default.
    #[prost(uint32, tag = "2")]
    pub timeout_ms: u32,
}

/// An answer of the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// The request's id; 0 without a request (the session ended, with a [`Failure`] as the reason,
    /// or has another [`ReceiveHeap`]).
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The answer.
    #[prost(oneof = "ResponseBody", tags = "2, 10, 11, 12, 20, 21, 22, 23, 26")]
    pub body: Option<ResponseBody>,
}

/// The content of a [`Response`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ResponseBody {
    /// The request failed.
    #[prost(message, tag = "2")]
    Failure(Failure),
    /// To `OpenSession`.
    #[prost(message, tag = "10")]
    SessionOpened(SessionOpened),
    /// To `Bind`.
    #[prost(message, tag = "11")]
    Bound(Bound),
    /// Unrequested: the daemon delivers into this heap from now on.
    #[prost(message, tag = "12")]
    ReceiveHeap(ReceiveHeap),
    /// To `TenantAdd` and `TenantRotate`.
    #[prost(message, tag = "20")]
    TenantAdded(TenantAdded),
    /// To `TenantList`, unless the answer may be a report.
    #[prost(message, tag = "21")]
    Tenants(Tenants),
    /// To `PolicyPush`.
    #[prost(message, tag = "22")]
    PolicyPushed(PolicyPushed),
    /// To `Drain`, `PolicyAttach` and `PolicyDetach`.
    #[prost(message, tag = "23")]
    Done(Done),
    /// To all other requests of operators, whose answers grow with every version and with the
    /// number of policies.
    #[prost(message, tag = "26")]
    Report(Report),
}

/// An empty message.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// The request succeeded.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Done {
    /// Warnings for the requester, one sentence each.
    #[prost(string, repeated, tag = "1")]
    pub warnings: Vec<String>,
}

/// The reason for a failure.
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
#[prost(skip_debug)]
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
    /// The library's features beyond the first version: [`FEATURE_METADATA`], [`FEATURE_WAITS`],
    /// [`FEATURE_STREAMS`], [`FEATURE_HEAPS`]. Features that it doesn't support are omitted.
    #[prost(uint32, tag = "6")]
    pub features: u32,
    /// The label of its servers, for policies that choose among servers: 1 to 64 of `a-z 0-9 - _
    /// .`; empty for none.
    #[prost(string, tag = "7")]
    pub label: String,
}

/// Omits the token.
impl fmt::Debug for OpenSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("OpenSession");
        shown.field("abi_version", &self.abi_version);
        shown.field("app", &self.app);
        shown.field("label", &self.label);
        shown.finish_non_exhaustive()
    }
}

/// The session is open. Descriptors: those of [`SessionFds`](crate::session::SessionFds).
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
    /// The most calls in flight at once.
    #[prost(uint32, tag = "7")]
    pub max_outstanding: u32,
    /// Like [`OpenSession::features`], for the daemon: the features that the library may use.
    #[prost(uint32, tag = "8")]
    pub features: u32,
}

/// A receive heap that begins at the end of the previous one. Descriptor: its memfd.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReceiveHeap {
    /// Its length in bytes.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
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
    /// The `host:port` of the server's daemon; empty for this one. Ignored for servers.
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
    /// Its number in descriptors.
    #[prost(uint32, tag = "2")]
    pub handle: u32,
    /// The reason why it can't be called although the service was bound: its schemas are
    /// incompatible. Empty: it can be called.
    #[prost(string, tag = "3")]
    pub refused: String,
}

/// Add a tenant.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantAdd {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The tenant was added, or has a new token.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct TenantAdded {
    /// Its token, shown only this once.
    #[prost(string, tag = "1")]
    pub token: String,
}

/// Omits the token.
impl fmt::Debug for TenantAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantAdded(..)")
    }
}

/// Give a tenant a new token; the old token ends, and with it the sessions that it opened.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantRotate {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// How long the old token still opens sessions, in milliseconds; 0: not at all.
    #[prost(uint64, tag = "2")]
    pub grace_ms: u64,
}

/// Remove a tenant: its token, sessions, policies and attachments, and the provider's attachments
/// to it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantRemove {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// Only report the removal, without doing it.
    #[prost(bool, tag = "2")]
    pub is_question: bool,
}

/// Delete versions of a policy that no attachment needs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyDelete {
    /// Its name.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// One version of it; 0 for all.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Its tenant.
    #[prost(string, tag = "3")]
    pub tenant: String,
    /// It is the provider's; `tenant` is ignored.
    #[prost(bool, tag = "4")]
    pub provider: bool,
}

/// List the tenants.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TenantList {
    /// The answer may be a report, a list of names: many [`Tenants`] don't fit into a packet.
    #[prost(bool, tag = "1")]
    pub in_report: bool,
}

/// All tenants.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tenants {
    /// Their names, sorted.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}

/// Upload a policy. Descriptors: a blob with the module, and one with the configuration if
/// `has_config`, with the manifest of a module that has none if `has_description`, with the proof
/// if `has_proof`, and with a descriptor set if `has_schema`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyPush {
    /// The policy's tenant.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Whether a configuration is attached.
    #[prost(bool, tag = "3")]
    pub has_config: bool,
    /// It is the provider's; `tenant` is ignored.
    #[prost(bool, tag = "4")]
    pub provider: bool,
    /// Whether a blob with a [`PolicyProof`] is attached.
    #[prost(bool, tag = "5")]
    pub has_proof: bool,
    /// Whether a manifest is attached, for a module that was made for another host.
    #[prost(bool, tag = "6")]
    pub has_description: bool,
    /// Whether a schema is attached that the policy must fit.
    #[prost(bool, tag = "7")]
    pub has_schema: bool,
}

/// The signatures of a module, if they aren't inside it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyProof {
    /// Signatures of the module's bytes; or, if there is a manifest, of its image. One of them must
    /// be valid.
    #[prost(message, repeated, tag = "1")]
    pub signatures: Vec<PolicySignature>,
    /// The image's manifest; empty: the module was not in an image.
    #[prost(bytes = "vec", tag = "2")]
    pub manifest: Vec<u8>,
    /// The image's layer with the module.
    #[prost(bytes = "vec", tag = "3")]
    pub layer: Vec<u8>,
}

/// One signature, as cosign makes it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicySignature {
    /// In base64.
    #[prost(bytes = "vec", tag = "1")]
    pub signature: Vec<u8>,
    /// The signed bytes, for an image; for a module they are its bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// The policy was stored.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyPushed {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its new version, from 1.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Warnings for the requester, one sentence each.
    #[prost(string, repeated, tag = "3")]
    pub warnings: Vec<String>,
}

/// Attach a policy. Descriptor, if `has_schema`: a blob with a descriptor set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyAttach {
    /// `name@version`.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// The tenant of the calls, and of the policy unless it is the provider's, which may use `*`
    /// for every tenant.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// The service's full name; the provider may use `*` for every service.
    #[prost(string, tag = "3")]
    pub service: String,
    /// The method's name within the service; empty for all.
    #[prost(string, tag = "4")]
    pub method: String,
    /// [`SIDE_CLIENT`] or [`SIDE_SERVER`].
    #[prost(int32, tag = "5")]
    pub side: i32,
    /// [`PARTY_TENANT`], [`PARTY_PROVIDER_PRE`] or [`PARTY_PROVIDER_POST`].
    #[prost(int32, tag = "6")]
    pub party: i32,
    /// [`MODE_ENFORCE`], [`MODE_SHADOW`] or [`MODE_CANARY`].
    #[prost(int32, tag = "7")]
    pub mode: i32,
    /// The percentage of a canary, 1 to 100.
    #[prost(uint32, tag = "8")]
    pub percent: u32,
    /// The conditions. None: an existing attachment keeps its own, a new one gets the defaults.
    #[prost(message, optional, tag = "9")]
    pub options: Option<PolicyOptions>,
    /// Whether a schema is attached that the policy must fit, in addition to the bound ones.
    #[prost(bool, tag = "10")]
    pub has_schema: bool,
}

/// The conditions of an attachment. Omitted ones are unchanged or have their defaults.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyOptions {
    /// [`ON_FAULT_RELOAD`], [`ON_FAULT_CLOSED`] or [`ON_FAULT_OPEN`].
    #[prost(int32, optional, tag = "1")]
    pub on_fault: Option<i32>,
    /// The hooks at which it may run.
    #[prost(message, optional, tag = "2")]
    pub hooks: Option<Names>,
    /// The fields that it may see.
    #[prost(message, optional, tag = "3")]
    pub fields: Option<Names>,
    /// Its capabilities in addition to `log` and `metrics`.
    #[prost(message, optional, tag = "4")]
    pub capabilities: Option<Names>,
    /// CPU microseconds per call.
    #[prost(uint32, optional, tag = "5")]
    pub cpu_us: Option<u32>,
    /// A new instance for every call.
    #[prost(bool, optional, tag = "6")]
    pub fresh: Option<bool>,
    /// The number of views kept for [`PolicyDiff`].
    #[prost(uint32, optional, tag = "7")]
    pub record: Option<u32>,
    /// The percentage points by which a candidate's error rate may exceed the stable version's.
    #[prost(uint32, optional, tag = "8")]
    pub max_worse: Option<u32>,
    /// The metadata keys that it may see.
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Names>,
    /// [`ISOLATION_NONE`] or [`ISOLATION_PROCESS`].
    #[prost(int32, optional, tag = "10")]
    pub isolation: Option<i32>,
}

/// A list that may be empty, which differs from an absent list.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Names {
    /// Its entries.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}

/// Some attachments of a policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicySelection {
    /// Its name, for all versions.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// The tenant of the calls, and of the policy unless it is the provider's; for the provider,
    /// empty for any.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// The service's full name; empty for any.
    #[prost(string, tag = "3")]
    pub service: String,
    /// The method's name within the service; empty for any.
    #[prost(string, tag = "4")]
    pub method: String,
    /// [`SIDE_CLIENT`], [`SIDE_SERVER`] or [`SIDE_ANY`].
    #[prost(int32, tag = "5")]
    pub side: i32,
    /// [`PARTY_TENANT`], [`PARTY_PROVIDER_PRE`], [`PARTY_PROVIDER_POST`] or [`PARTY_PROVIDER`].
    #[prost(int32, tag = "6")]
    pub party: i32,
}

/// Put a version on trial next to the enforcing one, or directly in its place; it continues from
/// that one's state. Descriptor, if `has_schema`: a blob with a descriptor set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyUpgrade {
    /// The version.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The policy and its attachments.
    #[prost(message, optional, tag = "2")]
    pub at: Option<PolicySelection>,
    /// [`MODE_ENFORCE`], [`MODE_SHADOW`] or [`MODE_CANARY`].
    #[prost(int32, tag = "3")]
    pub mode: i32,
    /// The percentage of a canary, 1 to 100.
    #[prost(uint32, tag = "4")]
    pub percent: u32,
    /// For a trial: the daemon promotes it after this time without a failure; none: only an
    /// operator does.
    #[prost(uint64, optional, tag = "5")]
    pub probation_ms: Option<u64>,
    /// Whether a schema is attached that the version must fit, in addition to the bound ones.
    #[prost(bool, tag = "6")]
    pub has_schema: bool,
}

/// Promote, roll back or release.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyStep {
    /// The policy and its attachments.
    #[prost(message, optional, tag = "1")]
    pub at: Option<PolicySelection>,
    /// [`STEP_PROMOTE`], [`STEP_ROLLBACK`] or [`STEP_RELEASE`].
    #[prost(int32, tag = "2")]
    pub step: i32,
}

/// Describe a policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyShow {
    /// Its name.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// One version of it; 0 for the newest.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Its tenant.
    #[prost(string, tag = "3")]
    pub tenant: String,
    /// It is the provider's; `tenant` is ignored.
    #[prost(bool, tag = "4")]
    pub provider: bool,
}

/// Compare the decisions of two versions about recorded calls.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyDiff {
    /// The policy, and the attachment whose calls were recorded.
    #[prost(message, optional, tag = "1")]
    pub at: Option<PolicySelection>,
    /// The reference version.
    #[prost(uint32, tag = "2")]
    pub before: u32,
    /// The version to compare.
    #[prost(uint32, tag = "3")]
    pub after: u32,
    /// The maximum number of calls, newest first.
    #[prost(uint32, tag = "4")]
    pub last: u32,
}

/// Show the end of the audit log.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AuditShow {
    /// The maximum number of records.
    #[prost(uint32, tag = "1")]
    pub last: u32,
}

/// Change settings of the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SettingsChange {
    /// Each setting at most once.
    #[prost(message, repeated, tag = "1")]
    pub changes: Vec<SettingChange>,
}

/// One setting.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SettingChange {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its new value. None: remove the override.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// A report for an operator. Descriptor: a blob with JSON.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Report {}

#[cfg(test)]
mod tests;
