//! The messages on the control socket: derived protobuf messages, so that libraries and daemons of
//! different versions understand each other and hostile bytes are errors.
//!
//! Every packet from an app is a [`Request`], every answer a [`Response`] with its id. A tenant's
//! token authorises a session. A message's comment lists its descriptors, in order.
//!
//! All messages stand in one file, because each number is chosen with a look at the others.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

/// The client's side of a call, in `role` and `side` fields.
pub const SIDE_CLIENT: i32 = 0;
/// The server's side of a call.
pub const SIDE_SERVER: i32 = 1;
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

/// A request to the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// Chosen by the requester, not 0; the answer repeats it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The request's content.
    #[prost(oneof = "RequestBody", tags = "10, 11, 12")]
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
}

/// An answer of the daemon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// The request's id; 0 without a request (the session ended, with a [`Failure`] as the reason,
    /// or has another [`ReceiveHeap`]).
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The answer.
    #[prost(oneof = "ResponseBody", tags = "2, 10, 11, 12, 23")]
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
    /// To `Drain`.
    #[prost(message, tag = "23")]
    Done(Empty),
}

/// An empty message.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

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

/// The numbers of requests that administrators sent to this socket until release 0.2. They have an
/// API of their own since; no request gets these numbers again.
const ADMINISTRATIVE: RangeInclusive<u32> = 20..=45;

/// Whether a packet is a request for administration, as programs of earlier releases send it.
pub fn is_administrative(packet: &[u8]) -> bool {
    let mut rest = packet;
    let mut found = false;
    while let Ok((tag, wire)) = prost::encoding::decode_key(&mut rest) {
        found |= ADMINISTRATIVE.contains(&tag);
        let context = prost::encoding::DecodeContext::default();
        if prost::encoding::skip_field(wire, tag, &mut rest, context).is_err() {
            return false;
        }
    }
    found
}

#[cfg(test)]
mod tests;
