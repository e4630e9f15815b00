//! Tollgate for Rust: typed calls through the host's daemon, which enforces policies, marshals and
//! transports.
//!
//! A [`Session`] is the connection to the daemon. A [`Channel`] adds the destination of calls.
//! Generated clients call through a channel; generated servers are added to a [`Server`]. Outgoing
//! messages are ordinary structs; incoming ones are [`Received`], views into shared memory. A
//! failed call ends with a [`Status`] that has gRPC's codes.
//!
//! Stubs come from `tollgate_gen` in a build script, and [`include_proto!`] puts them into a
//! module.
//!
//! # Calls
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # let backstage = Backstage::with_hotel();
//! use hotel::{ReserveRequest, reservation_client::ReservationClient};
//! use tollgate::{Channel, Session, SessionOptions, block_on};
//!
//! let options = SessionOptions::new("/run/tollgate/tollgate.sock", "the tenant's token");
//! # let options = backstage.options();
//! let session = Session::open(options)?;
//! // Served on this host; "10.0.0.2:7472" would be another host's daemon.
//! let client = ReservationClient::new(Channel::new(&session, ""));
//! let request = ReserveRequest { room_count: 1, ..Default::default() };
//! let reply = block_on(&session, client.reserve(request))?;
//! assert_eq!(reply.get_ref().view().reservation_id(), 1);
//! # Ok::<(), tollgate::Status>(())
//! ```
//!
//! The session's own thread wakes futures, whichever executor polls them. [`block_on`] instead
//! drives the session on the calling thread, with the fewest wake-ups. [`Sessions`] drives several
//! sessions on one thread. Methods with one request are also tower services:
//! `client.reserve_service()` is a [`UnaryService`], and layers go in front of it.
//!
//! # Servers
//!
//! Each service has a trait; its methods may be `async fn`. Handlers run on the thread that drives
//! the session and must not block it. Handlers that compute or block run on [`Workers`], per
//! service or per method. [`Server::serve_with_shutdown`] ends without losing a call.
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # use hotel::{EchoMessage, echo_client::EchoClient};
//! # let backstage = Backstage::new();
//! # let (session, client) = (backstage.session(), backstage.session());
//! use hotel::echo_server::{Echo, EchoServer};
//! use tollgate::{Received, Reply, Request, Response, Server, Workers, block_on};
//!
//! struct Thorough;
//!
//! impl Echo for Thorough {
//!     async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
//!         std::thread::sleep(std::time::Duration::from_millis(5)); // Only a worker sleeps.
//!         Ok(Response::new(request.get_ref().to_owned()))
//!     }
//! }
//!
//! let workers = Workers::start(2)?;
//! let server = Server::new(&session).add_service(workers.serve(EchoServer::new(Thorough)));
//! block_on(&session, server.bind())?; // Or `serve`, which serves until the session ends.
//! # let echo = EchoClient::new(tollgate::Channel::new(&client, ""));
//! # block_on(&client, echo.echo(EchoMessage::default()))?;
//! # Ok::<(), tollgate::Status>(())
//! ```
//!
//! A panic in a handler ends its call with INTERNAL and has no other effect. A panic in a waker or
//! a destructor on the library's threads has no further effect either. This requires `panic =
//! "unwind"`, cargo's default: with `panic = "abort"` a panic ends the process, and its callers get
//! UNAVAILABLE.
//!
//! # Streams
//!
//! Methods with any number of requests take a [`Stream`] of them, or a [`Request`] with such a
//! stream; methods with any number of responses return [`Streaming`]. Backpressure from a slow
//! reader stops its sender and nobody else.
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, interop};
//! # let backstage = Backstage::with_semantics();
//! # let session = backstage.session();
//! # use interop::{Ask, SemanticsClient};
//! # use tollgate::{Channel, Status, block_on};
//! use futures_util::stream;
//!
//! let client = SemanticsClient::new(Channel::new(&session, ""));
//! block_on(&session, async {
//!     let asks = stream::iter([1, 2, 3]).map(|number| Ask { number, responses: 1, ..Default::default() });
//!     let mut answers = client.chat(asks).await?.into_inner();
//!     let mut sum = 0;
//!     while let Some(answer) = answers.message().await? {
//!         sum += answer.view().number();
//!     }
//!     assert_eq!(sum, 6);
//!     Ok::<(), Status>(())
//! })?;
//! # use futures_util::StreamExt as _;
//! # Ok::<(), Status>(())
//! ```
//!
//! # Metadata
//!
//! A [`Request`] or [`Response`] carries a [`MetadataMap`] with its message; a response may have
//! trailers after it. An interceptor adds metadata to every call of a channel:
//! [`Channel::with_interceptor`]. The crate `tollgate-opentelemetry` uses this to make an
//! application's spans the parents of its calls, and a handler's calls part of the trace of its own
//! call.
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # let backstage = Backstage::with_hotel();
//! # let session = backstage.session();
//! # use hotel::{ReserveRequest, reservation_client::ReservationClient};
//! # use tollgate::{Channel, Request, block_on};
//! # let client = ReservationClient::new(Channel::new(&session, ""));
//! let mut request = Request::new(ReserveRequest { room_count: 1, ..Default::default() });
//! request.metadata_mut().insert("purpose", "holiday")?;
//! request.metadata_mut().insert_bin("trace-bin", &[0x00, 0xff])?; // Keys that end in -bin take bytes.
//! let reply = block_on(&session, client.reserve(request))?;
//! assert_eq!(reply.metadata().get("desk"), Some("front"));
//! assert!(reply.trailers().is_empty());
//!
//! let channel = Channel::new(&session, "").with_interceptor(|metadata| Ok(metadata.insert("authorization", "Bearer Ada's")?));
//! let reply = block_on(&session, ReservationClient::new(channel).reserve(ReserveRequest { room_count: 1, ..Default::default() }))?;
//! # assert_eq!(reply.get_ref().view().reservation_id(), 2);
//! # Ok::<(), tollgate::Status>(())
//! ```
//!
//! # Errors
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # let backstage = Backstage::with_hotel();
//! # let session = backstage.session();
//! # use hotel::{ReserveRequest, reservation_client::ReservationClient};
//! # use tollgate::{Channel, block_on};
//! # let client = ReservationClient::new(Channel::new(&session, ""));
//! use tollgate::Code;
//!
//! let request = ReserveRequest { room_count: 7, ..Default::default() };
//! let status = block_on(&session, client.reserve(request)).unwrap_err();
//! assert_eq!((status.code(), status.message()), (Code::INVALID_ARGUMENT, "one room at a time"));
//! assert!(status.details().is_empty()); // A serialized google.rpc.Status, if the server gave one.
//! ```
//!
//! Details are messages of any type in protobuf's encoding, like gRPC's:
//!
//! ```
//! use tollgate::{Code, Detail, Status, StatusExt};
//!
//! let field = b"\x0a\x0c\x0a\x0aroom_count"; // A google.rpc.BadRequest, encoded as by prost.
//! let status = Status::new(Code::INVALID_ARGUMENT, "book a room")
//!     .with_error_details(&[Detail::new("google.rpc.BadRequest", *field)])?;
//! let [detail] = &status.error_details()?[..] else { panic!() };
//! assert_eq!((detail.type_name(), &detail.value[..]), ("google.rpc.BadRequest", &field[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Deadlines and cancellation
//!
//! Dropping a call's future cancels the call and drops its handler's future. A handler's deadline
//! also bounds the calls that the handler makes.
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # let backstage = Backstage::with_hotel();
//! # let session = backstage.session();
//! # use hotel::{AvailabilityRequest, reservation_client::ReservationClient};
//! # use tollgate::{Channel, Code, Request, block_on};
//! # let client = ReservationClient::new(Channel::new(&session, ""));
//! let mut request = Request::new(AvailabilityRequest::default());
//! request.set_timeout(std::time::Duration::from_millis(20));
//! let late = block_on(&session, client.check_availability(request));
//! assert_eq!(late.unwrap_err().code(), Code::DEADLINE_EXCEEDED);
//! ```
//!
//! # Large values
//!
//! A value that is sent more than once, or is made in shared memory, needs no copy:
//! [`Session::buffer`]. Received values are read in place and occupy memory until their
//! [`Received`] is dropped; [`Session::held`] reports what a program holds.
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # use hotel::{EchoMessage, echo_client::EchoClient};
//! # let backstage = Backstage::new();
//! # let session = backstage.session();
//! let mut picture = session.buffer(1 << 20)?;
//! picture.fill(7);
//! let message = EchoMessage { payload: picture.freeze().into() }; // Can be sent any number of times without a copy.
//! assert_eq!(session.held().buffer_bytes, 1 << 20);
//! # drop(message);
//! # Ok::<(), tollgate::Status>(())
//! ```
//!
//! # When the daemon ends
//!
//! A session reopens itself and repeats its bindings ([`SessionOptions::reconnect`]). Calls in
//! flight end with UNAVAILABLE. Such a call is retried only if the schema marks its method
//! idempotent ([`SessionOptions::retries`]); no other handler runs twice.
//!
//! # Without generated code
//!
//! [`Session::bind_client`], [`Session::call_raw`], [`Session::open_stream`] and
//! [`Session::serve_raw`].

#![forbid(unsafe_code)]

mod client;
mod details;
mod metadata;
mod received;
mod request;
mod server;
mod streaming;
mod tower;

pub use client::{Channel, Client};
pub use details::{Detail, DetailsError, StatusExt};
pub use metadata::MetadataMap;
pub use received::Received;
pub use request::{IntoRequest, IntoStreamingRequest, Reply, Request, Response};
pub use server::{Server, accept, accept_stream, respond, respond_stream, unimplemented};
pub use streaming::{Stream, Streaming};
pub use tollgate_core::metadata::{Metadata, MetadataBuf, MetadataError};
pub use tollgate_core::{
    Binding, BoundMethod, Bytes, Call, Code, HandlerFuture, Held, Incoming, Opening, ReceivedBlock,
    Requests, Responder, SendBuffer, Service, ServiceInfo, Session, SessionOptions, Sessions,
    SharedBytes, Status, StreamReceiver, StreamSender, Workers, block_on, codec, dev, limits,
    token,
};
pub use tower::{ReplyFuture, ServerStreamingService, UnaryService};

/// Includes the code that `tollgate_gen` generated for a package.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
