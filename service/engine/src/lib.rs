//! The pure datapath: decides what happens to a call, without a socket, clock, sandbox or segment.
//!
//! [`Engine`] owns the tables of sessions, links, services and calls of one runtime. The rim (the
//! daemon's runtime) reports events to it, and then carries out its outputs:
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
//! Messages are the rim's own type `M`. The engine moves them and never reads them. Every `M` that
//! goes in comes out exactly once, in an [`Output`] (at worst [`Output::Discard`]), so the rim can
//! account for its blocks. Every call that goes in ends exactly once for its caller (promise P7):
//! by [`Output::Complete`]/[`Output::Fail`] or [`Output::SendReply`]/[`Output::SendStatus`].
//!
//! Between two inputs, once its outputs are handled, an engine can be [frozen](Engine::freeze),
//! moved to another process, and [thawed](Engine::thaw). It can also [part](Engine::part) with
//! sessions, links and the calls between them, for another engine of its process to
//! [absorb](Engine::absorb).
//!
//! Absent on purpose: I/O, time, randomness, allocation per call in the steady state, and a `Clone`
//! of `M`.
#![forbid(unsafe_code)]

mod answers;
mod calls;
pub mod chain;
mod engine;
pub mod fair;
mod frozen;
mod ids;
pub mod limits;
mod migration;
mod output;
mod overload;
mod requests;
mod routes;
pub mod slots;
pub mod state;
mod status;
mod streams;
mod tables;
mod timer;
mod waiting;

#[cfg(test)]
mod tests;

pub use engine::Engine;
pub use frozen::{Frozen, Unportable};
pub use ids::{CallKey, ChainId, EngineId, LinkId, NoEngineId, Origin, ServiceId, SessionId};
pub use migration::{Migration, Renamed, Wanted};
pub use output::{Admission, Direction, Expected, Output, Served, Serving, Submission};
pub use routes::{Encoding, End, MethodChains, Route, RouteTarget, Steering};
pub use state::Stage;
pub use status::{Ended, Status, Verdict};
pub use streams::{ExpectedRequest, Unfit};
