//! The observation of calls: their durations, the traces of some, and records for the control
//! plane.
//!
//! ```text
//!   posting ─▶ posted ──┐                                       ┌─▶ durations
//!                       ├─▶ events while in flight ─▶ call_ended ┤
//!   arriving ▶ arrived ─┘                                       └─▶ spans, log lines
//! ```
//!
//! Invariants: observation changes nothing but the trace context in a message's metadata. It reads
//! the runtime's other components ([`Seen`]) and never calls them.

pub mod durations;
pub(crate) mod record;
pub(crate) mod traces;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tollgate_engine::Origin;
use tollgate_telemetry::record::{Record, Span};

use crate::calls::services::Services;
use crate::calls::table::Sessions;
use crate::links::table::Links;
use crate::observe::durations::{Durations, Measured};
use crate::observe::traces::{Traced, Traces};
use crate::tuning::Watch;

/// The observations of one runtime.
pub(crate) struct Observer {
    durations: Durations,
    traces: Traces,
}

/// The components that tell what a call is.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'r> {
    watch: &'r Watch,
    sessions: &'r Sessions,
    links: &'r Links,
    services: &'r Services,
    now_ns: u64,
}

impl<'r> Seen<'r> {
    #[inline]
    pub(crate) fn by(
        watch: &'r Watch,
        sessions: &'r Sessions,
        links: &'r Links,
        services: &'r Services,
        now_ns: u64,
    ) -> Self {
        Self {
            watch,
            sessions,
            links,
            services,
            now_ns,
        }
    }
}

impl Observer {
    pub(crate) fn new(records: SyncSender<Record>) -> Self {
        Self {
            durations: Durations::default(),
            traces: Traces::new(records),
        }
    }

    /// Keeps at most this many of the newest spans.
    pub(crate) fn keep_at_most(&mut self, most: usize) {
        self.traces.keep_at_most(most);
    }

    /// The newest spans, oldest first.
    pub(crate) fn kept(&self) -> Vec<Arc<Span>> {
        self.traces.kept()
    }

    /// A copy of all durations measured so far.
    pub(crate) fn measured(&self) -> Vec<Measured> {
        self.durations.measured()
    }

    /// Calls with a context that weren't traced because the table was full.
    pub(crate) fn untraced(&self) -> u64 {
        self.traces.untraced
    }

    /// Records that were dropped because the queue was full.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.traces.dropped
    }

    /// All traced calls, for another process.
    pub(crate) fn live(&self) -> impl Iterator<Item = (&Origin, &Traced)> {
        self.traces.live()
    }

    /// Removes the traced calls of some origins, for another runtime.
    pub(crate) fn part(&mut self, is_its: impl Fn(&Origin) -> bool) -> Vec<(Origin, Box<Traced>)> {
        self.traces.part(is_its)
    }

    /// Adds traced calls, as far as there is room.
    pub(crate) fn absorb(&mut self, traced: impl Iterator<Item = (Origin, Box<Traced>)>) {
        self.traces.absorb(traced);
    }
}
