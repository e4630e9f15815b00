//! What travels on the control socket: protobuf messages, derived, so that libraries and daemons of
//! different ages understand each other and hostile bytes are errors.
//!
//! Every packet from an app or operator is a [`Request`], every answer a [`Response`] with its id.
//! Session requests (open, bind) are authorised by a tenant's token; the others by the peer's user
//! id. Descriptors beside a message are named in its comment, in order.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The client's side of a call, in `role` and `side` fields.
pub const SIDE_CLIENT: i32 = 0;
/// The server's side of a call.
pub const SIDE_SERVER: i32 = 1;
/// Either side; only in [`PolicySelection`].
pub const SIDE_ANY: i32 = -1;

/// The tenant's part of a chain, in `party` fields: what requests without such a field mean.
pub const PARTY_TENANT: i32 = 0;
/// The provider's part before the tenant's.
pub const PARTY_PROVIDER_PRE: i32 = 1;
/// The provider's part after the tenant's.
pub const PARTY_PROVIDER_POST: i32 = 2;
/// Either part of the provider's; only in [`PolicySelection`].
pub const PARTY_PROVIDER: i32 = 3;

/// The version decides, in `mode` fields.
pub const MODE_ENFORCE: i32 = 0;
/// The version is asked, and decides nothing.
pub const MODE_SHADOW: i32 = 1;
/// The version decides `percent` of the calls.
pub const MODE_CANARY: i32 = 2;

/// What [`PolicyStep`] does: the version on trial decides from now on.
pub const STEP_PROMOTE: i32 = 1;
/// The trial ends, or what decided before decides again.
pub const STEP_ROLLBACK: i32 = 2;
/// A quarantine ends, or a policy that stays closed after a fault gets a fresh instance.
pub const STEP_RELEASE: i32 = 3;

/// After a fault: refuse calls until a fresh instance is there, in `on_fault` fields.
pub const ON_FAULT_RELOAD: i32 = 0;
/// After a fault: refuse calls until an operator acts.
pub const ON_FAULT_CLOSED: i32 = 1;
/// After a fault: let calls pass until a fresh instance is there.
pub const ON_FAULT_OPEN: i32 = 2;

/// Calls may carry metadata, in `features` fields.
pub const FEATURE_METADATA: u32 = 1;
/// Deliveries may ask how long a call waited, which its answer says then, and a status may say when to try again, in `features` fields.
pub const FEATURE_WAITS: u32 = 2;
/// Calls may have any number of requests and responses, and statuses trailers, in `features` fields.
pub const FEATURE_STREAMS: u32 = 4;
/// The receive heap may be followed by another ([`ReceiveHeap`]), in `features` fields: the session stays when the daemon is upgraded.
pub const FEATURE_HEAPS: u32 = 8;

/// [`PolicyOptions::isolation`]: it runs in the daemon.
pub const ISOLATION_NONE: i32 = 0;
/// [`PolicyOptions::isolation`]: it runs in a process of its tenant's.
pub const ISOLATION_PROCESS: i32 = 1;

/// One question to the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// Chosen by the asker, not 0; the answer repeats it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What is asked.
    #[prost(
        oneof = "RequestBody",
        tags = "10, 11, 12, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45"
    )]
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
    /// Send this session no further calls; what it has been given, it still answers.
    #[prost(message, tag = "12")]
    Drain(Empty),
    /// Make a tenant.
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
    /// Put a version on trial beside the one that decides, or at once in its place; it goes on from that one's state.
    #[prost(message, tag = "27")]
    PolicyUpgrade(PolicyUpgrade),
    /// Promote, roll back or release.
    #[prost(message, tag = "28")]
    PolicyStep(PolicyStep),
    /// Describe a policy.
    #[prost(message, tag = "29")]
    PolicyShow(PolicyShow),
    /// Compare what two versions decide about recorded calls.
    #[prost(message, tag = "30")]
    PolicyDiff(PolicyDiff),
    /// Show the audit log's end.
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
    /// Change some of them, all or none.
    #[prost(message, tag = "35")]
    SettingsChange(SettingsChange),
    /// Replace the daemon by another process.
    #[prost(message, tag = "36")]
    Upgrade(Upgrade),
    /// Have a tenant live on another runtime.
    #[prost(message, tag = "37")]
    TenantMove(TenantMove),
    /// Report what has been counted and measured, as numbers that only grow.
    #[prost(message, tag = "38")]
    Metrics(Empty),
    /// Say what would become of a call.
    #[prost(message, tag = "39")]
    Explain(Explain),
    /// Watch calls as they end.
    #[prost(message, tag = "40")]
    Tap(Tap),
    /// Show what is kept of a trace.
    #[prost(message, tag = "41")]
    TraceShow(TraceShow),
    /// Let somebody look at the web console; the answer is a report with a link.
    #[prost(message, tag = "42")]
    Console(Console),
    /// Give a tenant another token.
    #[prost(message, tag = "43")]
    TenantRotate(TenantRotate),
    /// End a tenant with all that it has; the answer is a report.
    #[prost(message, tag = "44")]
    TenantRemove(TenantRemove),
    /// Forget versions of a policy; the answer is a report.
    #[prost(message, tag = "45")]
    PolicyDelete(PolicyDelete),
}

/// Say which policies would be asked about a call, what they would be shown, and, with a message, what they would answer; the answer is a
/// report. Descriptors, each if it is announced: blobs with a descriptor set and with the message as JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Explain {
    /// Whose call.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// The service's full name.
    #[prost(string, tag = "2")]
    pub service: String,
    /// The method's name within the service.
    #[prost(string, tag = "3")]
    pub method: String,
    /// [`SIDE_CLIENT`], [`SIDE_SERVER`] or [`SIDE_ANY`]: a call within the host, which is judged on both.
    #[prost(int32, tag = "4")]
    pub side: i32,
    /// About the reply; otherwise about the request.
    #[prost(bool, tag = "5")]
    pub is_reply: bool,
    /// With a descriptor set that has the service; without it, the one that the tenant's application has bound.
    #[prost(bool, tag = "6")]
    pub has_schema: bool,
    /// With a message.
    #[prost(bool, tag = "7")]
    pub has_message: bool,
    /// What travels beside the message, as a block of metadata.
    #[prost(bytes = "vec", tag = "8")]
    pub metadata: Vec<u8>,
}

/// Watch calls as they end; the answer is a report of those that ended since the last time. Nobody watches any more once this hasn't been
/// asked for a while.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tap {
    /// What the answer before said; 0: this is the first time.
    #[prost(uint64, tag = "1")]
    pub tap: u64,
    /// Whose calls; empty for everybody's.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// The service's full name; empty for any.
    #[prost(string, tag = "3")]
    pub service: String,
    /// The method's name within the service; empty for any.
    #[prost(string, tag = "4")]
    pub method: String,
    /// Only those that a policy denied.
    #[prost(bool, tag = "5")]
    pub denied: bool,
    /// Only those that didn't end with OK.
    #[prost(bool, tag = "6")]
    pub failed: bool,
}

/// Show the spans that the daemon has kept of a trace; the answer is a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TraceShow {
    /// The trace, or one of its spans, in hexadecimal; empty: the newest traces.
    #[prost(string, tag = "1")]
    pub id: String,
    /// How many of the newest.
    #[prost(uint32, tag = "2")]
    pub last: u32,
}

/// Let somebody look at the web console, who is then whoever asks.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Console {
    /// And change policies there.
    #[prost(bool, tag = "1")]
    pub is_operator: bool,
}

/// Have a tenant live on a runtime, with all that it has; the answer is a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantMove {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// The runtime, from 0 on; none: the one that its name stands for.
    #[prost(uint32, optional, tag = "2")]
    pub runtime: Option<u32>,
}

/// Replace the daemon by another process, which is started, checks that it can serve, and then takes over; the answer is a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upgrade {
    /// The program, an absolute path; empty: the one that the daemon was started from, as it is there now.
    #[prost(string, tag = "1")]
    pub binary: String,
    /// How long the new process may take until it is ready, in milliseconds; 0 is the daemon's default.
    #[prost(uint32, tag = "2")]
    pub timeout_ms: u32,
}

/// One answer of the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// The request's id; 0 if nobody asked (the session ended, with a [`Failure`] that says why, or has another [`ReceiveHeap`]).
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The answer.
    #[prost(oneof = "ResponseBody", tags = "2, 10, 11, 12, 20, 21, 22, 23, 26")]
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
    /// To nothing: what the daemon delivers from now on lies there.
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
    /// To all other requests of an operator; what they answer grows with every version, and with the number of policies.
    #[prost(message, tag = "26")]
    Report(Report),
}

/// Nothing to say.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// It is done.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Done {
    /// What whoever asked should know all the same: a sentence each.
    #[prost(string, repeated, tag = "1")]
    pub warnings: Vec<String>,
}

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
    /// What the library understands beyond the first version: [`FEATURE_METADATA`], [`FEATURE_WAITS`], [`FEATURE_STREAMS`],
    /// [`FEATURE_HEAPS`]. What it doesn't is left out.
    #[prost(uint32, tag = "6")]
    pub features: u32,
    /// Under which its services are served, for policies that choose among servers: 1 to 64 of `a-z 0-9 - _ .`; empty for none.
    #[prost(string, tag = "7")]
    pub label: String,
}

/// Without the token.
impl fmt::Debug for OpenSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("OpenSession");
        shown.field("abi_version", &self.abi_version);
        shown.field("app", &self.app);
        shown.field("label", &self.label);
        shown.finish_non_exhaustive()
    }
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
    /// As [`OpenSession::features`], of the daemon: what the library may send.
    #[prost(uint32, tag = "8")]
    pub features: u32,
}

/// A receive heap that begins where the one before ends. Descriptor: its memfd.
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

/// The tenant is there, or has another token.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct TenantAdded {
    /// Its token, shown this once.
    #[prost(string, tag = "1")]
    pub token: String,
}

/// Without the token.
impl fmt::Debug for TenantAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantAdded(..)")
    }
}

/// Give a tenant another token; the one before ends, and with it the sessions that were opened with it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantRotate {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// For how long the token before still opens sessions, in milliseconds; 0: not at all.
    #[prost(uint64, tag = "2")]
    pub grace_ms: u64,
}

/// End a tenant: its token, sessions, policies and attachments, and what the provider has attached to it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TenantRemove {
    /// Its name.
    #[prost(string, tag = "1")]
    pub tenant: String,
    /// Only say what would end.
    #[prost(bool, tag = "2")]
    pub is_question: bool,
}

/// Forget versions of a policy that no attachment needs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyDelete {
    /// Its name.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// One version of it; 0 for all.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Whose.
    #[prost(string, tag = "3")]
    pub tenant: String,
    /// It is the provider's, and `tenant` means nothing.
    #[prost(bool, tag = "4")]
    pub provider: bool,
}

/// List the tenants.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TenantList {
    /// The answer may be a report, a list of names: [`Tenants`] don't fit a packet if they are many.
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

/// Upload a policy. Descriptors: a blob with the module, and one with the configuration if `has_config`, with the manifest of a
/// module that has none if `has_description`, with the proof if `has_proof`, and with a descriptor set if `has_schema`.
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
    /// It is the provider's, and `tenant` means nothing.
    #[prost(bool, tag = "4")]
    pub provider: bool,
    /// Whether a blob with a [`PolicyProof`] comes along.
    #[prost(bool, tag = "5")]
    pub has_proof: bool,
    /// Whether a manifest comes along, for a module that was made for another host.
    #[prost(bool, tag = "6")]
    pub has_description: bool,
    /// Whether a schema comes along that the policy has to fit.
    #[prost(bool, tag = "7")]
    pub has_schema: bool,
}

/// Who signed a module, if its signature isn't inside it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyProof {
    /// Of the module's bytes; or, if there is a manifest, of the image that it was in. One of them has to hold.
    #[prost(message, repeated, tag = "1")]
    pub signatures: Vec<PolicySignature>,
    /// The image's manifest; empty: the module wasn't in one.
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
    /// What was signed, for an image; for a module its bytes were.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
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
    /// What whoever pushed it should know: a sentence each.
    #[prost(string, repeated, tag = "3")]
    pub warnings: Vec<String>,
}

/// Attach a policy. Descriptor, if `has_schema`: a blob with a descriptor set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyAttach {
    /// `name@version`.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// Whose calls, and whose policy unless it is the provider's, which may say `*` for every tenant's.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// The service's full name; `*` for every one, for the provider.
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
    /// Of a canary, 1 to 100.
    #[prost(uint32, tag = "8")]
    pub percent: u32,
    /// Conditions. None: what is attached there keeps its own, and what isn't gets the defaults.
    #[prost(message, optional, tag = "9")]
    pub options: Option<PolicyOptions>,
    /// Whether a schema comes along that the policy has to fit, besides those that are bound.
    #[prost(bool, tag = "10")]
    pub has_schema: bool,
}

/// Under which conditions a policy is attached. What is left out stays as it is, or as it is by default.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyOptions {
    /// [`ON_FAULT_RELOAD`], [`ON_FAULT_CLOSED`] or [`ON_FAULT_OPEN`].
    #[prost(int32, optional, tag = "1")]
    pub on_fault: Option<i32>,
    /// The hooks at which it may be asked.
    #[prost(message, optional, tag = "2")]
    pub hooks: Option<Names>,
    /// The fields that it may be shown.
    #[prost(message, optional, tag = "3")]
    pub fields: Option<Names>,
    /// What it may use beside `log` and `metrics`.
    #[prost(message, optional, tag = "4")]
    pub capabilities: Option<Names>,
    /// CPU microseconds per call.
    #[prost(uint32, optional, tag = "5")]
    pub cpu_us: Option<u32>,
    /// A new instance for every call.
    #[prost(bool, optional, tag = "6")]
    pub fresh: Option<bool>,
    /// Views kept for [`PolicyDiff`].
    #[prost(uint32, optional, tag = "7")]
    pub record: Option<u32>,
    /// Percentage points by which a candidate's error rate may be worse.
    #[prost(uint32, optional, tag = "8")]
    pub max_worse: Option<u32>,
    /// The metadata keys that it may be shown.
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Names>,
    /// [`ISOLATION_NONE`] or [`ISOLATION_PROCESS`].
    #[prost(int32, optional, tag = "10")]
    pub isolation: Option<i32>,
}

/// A list that may be empty, which isn't the same as none.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Names {
    /// Its entries.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}

/// Some attachments of a policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicySelection {
    /// Its name, whatever the version.
    #[prost(string, tag = "1")]
    pub policy: String,
    /// Whose calls, and whose policy unless it is the provider's; for the provider, empty for any.
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

/// Put a version on trial beside the one that decides, or at once in its place; it goes on from that one's state. Descriptor, if
/// `has_schema`: a blob with a descriptor set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyUpgrade {
    /// The version.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Of which policy, and where.
    #[prost(message, optional, tag = "2")]
    pub at: Option<PolicySelection>,
    /// [`MODE_ENFORCE`], [`MODE_SHADOW`] or [`MODE_CANARY`].
    #[prost(int32, tag = "3")]
    pub mode: i32,
    /// Of a canary, 1 to 100.
    #[prost(uint32, tag = "4")]
    pub percent: u32,
    /// Of a trial: after this time without a failure the daemon promotes it; none: an operator does.
    #[prost(uint64, optional, tag = "5")]
    pub probation_ms: Option<u64>,
    /// Whether a schema comes along that the version has to fit, besides those that are bound.
    #[prost(bool, tag = "6")]
    pub has_schema: bool,
}

/// Promote, roll back or release.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyStep {
    /// Which policy, and where.
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
    /// Whose.
    #[prost(string, tag = "3")]
    pub tenant: String,
    /// It is the provider's, and `tenant` means nothing.
    #[prost(bool, tag = "4")]
    pub provider: bool,
}

/// Compare what two versions decide about recorded calls.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyDiff {
    /// Which policy, and where its calls were recorded.
    #[prost(message, optional, tag = "1")]
    pub at: Option<PolicySelection>,
    /// The version that decisions are compared with.
    #[prost(uint32, tag = "2")]
    pub before: u32,
    /// The version whose decisions may be others.
    #[prost(uint32, tag = "3")]
    pub after: u32,
    /// The most calls, the newest ones.
    #[prost(uint32, tag = "4")]
    pub last: u32,
}

/// Show the audit log's end.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AuditShow {
    /// The most records.
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

/// One of them.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SettingChange {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// What it is set to. None: what it was set to is forgotten.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// What an operator asked for. Descriptor: a blob with JSON.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Report {}

#[cfg(test)]
mod tests;
