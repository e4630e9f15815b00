//! The life cycle of one call inside a daemon, as one table.
//!
//! ```text
//!  Admitted ──evaluate──► Evaluating(client request) ──allow──┐
//!     │                                                       ▼
//!     └───────────────────────────────────────────────────► Routed ──hold──► Waiting ──credit──┐
//!                                                            │  │                              │
//!                                Evaluating(server request)◄─┘  └──────────────forward─────────┤
//!                                     └────────────allow, forward──────────────────────────────▼
//!  Done ◄──answer── Replied ◄─allow── Evaluating(server reply, client reply) ◄─────reply── InFlight
//! ```
//!
//! A stream's further messages are passed on one at a time while the call is in flight, in either
//! direction:
//!
//! ```text
//!  InFlight ──pass──► Passing(client request) ──pass──► Passing(server request) ──passed──► InFlight
//!  InFlight ──pass──► Passing(server reply)   ──pass──► Passing(client reply)   ──passed──► InFlight
//!                                                                │ the last one ──answer──► Done
//! ```
//!
//! From every state but `Done`, `End` (denied, refused, expired, cancelled, a side was lost) leads
//! to `Done`: the caller got its one answer. No transition leaves `Done`, and none enters it twice.

use serde::{Deserialize, Serialize};

/// The chain that evaluates, and the message. Its names are in the states that daemons hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The caller's daemon, before the request leaves.
    ClientRequest,
    /// The serving daemon, before the application sees the request.
    ServerRequest,
    /// The serving daemon, before the reply leaves.
    ServerReply,
    /// The caller's daemon, before the application sees the reply.
    ClientReply,
}

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Counted against its limits, undecided.
    Admitted,
    /// A chain has the message.
    Evaluating(Stage),
    /// Allowed to leave the caller's side; its target is known.
    Routed,
    /// Held back until the peer grants credit.
    Waiting,
    /// The other side has it: a link's peer or a serving application.
    InFlight,
    /// The other side has it, and one of its stream's messages is on its way: with a chain, or
    /// between two layouts.
    Passing(Stage),
    /// The reply is here, and the serving side has allowed it.
    Replied,
    /// The caller has its answer.
    Done,
}

/// An event in a call's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A chain evaluates it.
    Evaluate(Stage),
    /// The chain allows it.
    Allow,
    /// No chain of the caller's side applies.
    Route,
    /// The link has no credit.
    Hold,
    /// Given to the other side.
    Forward,
    /// One of its stream's messages starts, or reaches its other side.
    Pass(Stage),
    /// That message has been handed on.
    Passed,
    /// The other side answered with a message.
    Reply,
    /// The reply is handed to the caller.
    Answer,
    /// The caller gets a status instead.
    End,
}

/// `event` is invalid in `state`: a bug of the engine, never the result of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Illegal {
    /// The state.
    pub state: State,
    /// The event.
    pub event: Event,
}

impl State {
    /// The state after `event`.
    pub fn next(self, event: Event) -> Result<Self, Illegal> {
        use Stage::{ClientReply, ClientRequest, ServerReply, ServerRequest};
        use State::{Admitted, Done, Evaluating, InFlight, Passing, Replied, Routed, Waiting};
        Ok(match (self, event) {
            (Admitted, Event::Evaluate(ClientRequest)) => Evaluating(ClientRequest),
            (Admitted, Event::Route) | (Evaluating(ClientRequest), Event::Allow) => Routed,
            (Routed, Event::Evaluate(ServerRequest)) => Evaluating(ServerRequest),
            (Routed, Event::Hold) => Waiting,
            (Routed | Waiting | Evaluating(ServerRequest), Event::Forward) => InFlight,
            (InFlight, Event::Evaluate(ServerReply)) => Evaluating(ServerReply),
            (InFlight, Event::Reply) | (Evaluating(ServerReply), Event::Allow) => Replied,
            (Replied, Event::Evaluate(ClientReply)) => Evaluating(ClientReply),
            (InFlight, Event::Pass(stage)) => Passing(stage),
            (Passing(ClientRequest), Event::Pass(ServerRequest)) => Passing(ServerRequest),
            (Passing(ServerReply), Event::Pass(ClientReply)) => Passing(ClientReply),
            (Passing(_), Event::Passed) => InFlight,
            (
                Replied | Evaluating(ClientReply) | Passing(ServerReply | ClientReply),
                Event::Answer,
            ) => Done,
            (
                Admitted | Evaluating(_) | Routed | Waiting | InFlight | Passing(_) | Replied,
                Event::End,
            ) => Done,
            (state, event) => return Err(Illegal { state, event }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// Every (state, event) pair, compared with the reviewed table.
    #[test]
    fn table() {
        use Stage::{ClientReply, ClientRequest, ServerReply, ServerRequest};
        let stages = [ClientRequest, ServerRequest, ServerReply, ClientReply];
        let mut states = vec![State::Admitted];
        states.extend(stages.map(State::Evaluating));
        states.extend([State::Routed, State::Waiting, State::InFlight]);
        states.extend(stages.map(State::Passing));
        states.extend([State::Replied, State::Done]);
        let mut events: Vec<Event> = stages.map(Event::Evaluate).to_vec();
        events.extend([Event::Allow, Event::Route, Event::Hold, Event::Forward]);
        events.extend(stages.map(Event::Pass));
        events.extend([Event::Passed, Event::Reply, Event::Answer, Event::End]);
        let mut got = String::new();
        for state in states {
            for &event in &events {
                if let Ok(next) = state.next(event) {
                    writeln!(got, "{state:?} {event:?} -> {next:?}")
                        .expect("a string takes every write");
                }
            }
        }
        assert_eq!(got, include_str!("../vectors/state.table"), "\n{got}");
    }
}
