//! Tollgate for Rust: typed calls through the host's daemon, which enforces policies, marshals and transports.
//!
//! A [`Session`] is the connection to the daemon; a [`Channel`] adds where calls go; generated clients call through a
//! channel, and generated servers are added to a [`Server`]. Messages are ordinary structs on their way out, and on their
//! way in [`Received`]: views into shared memory. How calls end otherwise is a [`Status`] with gRPC's codes.
//!
//! Stubs come from `tollgate_gen` in a build script, and [`include_proto!`] puts them into a module.
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
//! Futures are woken by the session's own thread, whatever executor polls them; [`block_on`] instead drives the session on
//! the calling thread, with the fewest wake-ups. Who has several sessions drives all of them on one thread: [`Sessions`].
//! Methods of one request are services of tower's, too: `client.reserve_service()` is a [`UnaryService`], in front of which layers go.
//!
//! # Servers
//!
//! A trait per service; its methods may be `async fn`. Handlers run on the thread that drives the session, and mustn't block it; those that
//! compute or block run on [`Workers`], per service or per method. [`Server::serve_with_shutdown`] ends without a call lost.
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
//!         std::thread::sleep(std::time::Duration::from_millis(5)); // It is a worker that sleeps.
//!         Ok(Response::new(request.get_ref().to_owned()))
//!     }
//! }
//!
//! let workers = Workers::start(2)?;
//! let server = Server::new(&session).add_service(workers.serve(EchoServer::new(Thorough)));
//! block_on(&session, server.bind())?; // Or `serve`, which goes on until the session ends.
//! # let echo = EchoClient::new(tollgate::Channel::new(&client, ""));
//! # block_on(&client, echo.echo(EchoMessage::default()))?;
//! # Ok::<(), tollgate::Status>(())
//! ```
//!
//! A handler that panics ends its call with INTERNAL, and nothing else; so do a waker and a destructor that panic on the library's threads end
//! alone. That takes `panic = "unwind"`, cargo's default: in a program that is built with `panic = "abort"`, a panic ends the process, as everywhere, and
//! its callers get UNAVAILABLE.
//!
//! # Streams
//!
//! Methods with any number of requests take a [`Stream`] of them, or of requests' [`Request`]; those with any number of responses answer
//! with [`Streaming`]. Who doesn't read stops who sends to it, and nobody else.
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
//! Beside its message, a [`Request`] or [`Response`] carries a [`MetadataMap`]; behind it a response has trailers. What goes beside every call
//! of a channel, an interceptor puts there: [`Channel::with_interceptor`]. Applications' own spans become parents so, and handlers' calls part of the
//! trace of the call that they answer, by the crate `tollgate-opentelemetry`.
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
//! request.metadata_mut().insert_bin("trace-bin", &[0x00, 0xff])?; // Bytes go by keys that end so.
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
//! Details are messages of any type, as gRPC has them, in protobuf's encoding:
//!
//! ```
//! use tollgate::{Code, Detail, Status, StatusExt};
//!
//! let field = b"\x0a\x0c\x0a\x0aroom_count"; // A google.rpc.BadRequest about it, as prost would have written it.
//! let status = Status::new(Code::INVALID_ARGUMENT, "book a room")
//!     .with_error_details(&[Detail::new("google.rpc.BadRequest", *field)])?;
//! let [detail] = &status.error_details()?[..] else { panic!() };
//! assert_eq!((detail.type_name(), &detail.value[..]), ("google.rpc.BadRequest", &field[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Deadlines, and giving up
//!
//! Dropping a call's future cancels it, and its handler's is dropped. The calls that a handler makes have its deadline, if their own is later.
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
//! One that is sent more than once, or is made where it is sent from, needn't be copied: [`Session::buffer`]. What came is read where it is,
//! and kept as long as its [`Received`] is; [`Session::held`] tells what a program has.
//!
//! ```
//! # use tollgate_conformance::{backstage::Backstage, hotel};
//! # use hotel::{EchoMessage, echo_client::EchoClient};
//! # let backstage = Backstage::new();
//! # let session = backstage.session();
//! let mut picture = session.buffer(1 << 20)?;
//! picture.fill(7);
//! let message = EchoMessage { payload: picture.freeze().into() }; // Sent as often as one likes, without a copy.
//! assert_eq!(session.held().buffer_bytes, 1 << 20);
//! # drop(message);
//! # Ok::<(), tollgate::Status>(())
//! ```
//!
//! # When the daemon goes
//!
//! A session opens itself anew, with what was bound and served ([`SessionOptions::reconnect`]); calls that were under way end with UNAVAILABLE.
//! Calls that ended so are made again where the schema marks their method idempotent ([`SessionOptions::retries`]), and only there: no
//! other handler runs twice.
//!
//! # Without generated code
//!
//! [`Session::bind_client`], [`Session::call_raw`], [`Session::open_stream`] and [`Session::serve_raw`].

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
    SharedBytes, Status, StreamReceiver, StreamSender, Workers, block_on, codec, limits, token,
};
pub use tower::{ReplyFuture, ServerStreamingService, UnaryService};

/// Includes the code that `tollgate_gen` generated for a package.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
