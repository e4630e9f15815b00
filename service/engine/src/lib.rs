//! The pure datapath: what happens to a call, decided without a socket, clock, sandbox or segment.
//!
//! [`Engine`] owns the tables of sessions, links, services and calls of one runtime. The rim (the
//! daemon's runtime) tells it what happened, and then does what it asks for:
//!
//! ```text
//!   rim: engine.submit(now, ...)      an application posted a call      ─┐
//!        engine.arrive(now, ...)      a peer sent one                    │ inputs
//!        engine.verdict(now, ...)     a chain answered                   │
//!        engine.reply / fail / cancel / credit / *_closed / expire        │
//!        engine.request / response / *_consumed       (of streams)       ─┘
//!        while let Some(output) = engine.poll_output() { act }
//!        sleep until engine.poll_timeout()
//! ```
//!
//! Messages are the rim's own type `M`, moved through the engine and never looked into. Every `M` that
//! goes in comes out exactly once, in an [`Output`] (at worst [`Output::Discard`]), so the rim can account for
//! its blocks. Every call that goes in ends exactly once for its caller (promise P7): by
//! [`Output::Complete`]/[`Output::Fail`] or [`Output::SendReply`]/[`Output::SendStatus`].
//!
//! Between two inputs, once its outputs are done, an engine can be [frozen](Engine::freeze), carried to another process, and
//! [thawed](Engine::thaw); and it can [part](Engine::part) with sessions and links for another engine of its process to
//! [absorb](Engine::absorb), with the calls between them.
//!
//! Absent on purpose: I/O, time, randomness, allocation per call in the steady state, and a `Clone` of `M`.
#![forbid(unsafe_code)]

mod answers;
mod calls;
pub mod chain;
pub mod fair;
mod frozen;
pub mod limits;
mod overload;
mod parcel;
mod requests;
pub mod slots;
pub mod state;
mod streams;
mod tables;
mod timer;
mod waiting;

#[cfg(test)]
mod tests;

pub use calls::{Birth, CallKey};
pub use frozen::{Frozen, Unportable};
pub use parcel::{Parcel, Renamed, Wanted};
pub use state::Stage;
pub use streams::{ExpectedRequest, Unfit};
pub use tables::{
    Admission, ChainId, Direction, Encoding, End, Ended, Engine, Expected, LinkId, MethodChains,
    Origin, Output, Route, RouteTarget, Served, ServiceId, Serving, SessionId, Status, Steering,
    Submission, Verdict,
};
