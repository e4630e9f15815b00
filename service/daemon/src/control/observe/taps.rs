//! Watchers of calls as they end, with the calls that they haven't fetched yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tollgate_control::audit::rfc3339;
use tollgate_telemetry::prometheus::Now;
use tollgate_telemetry::record::{
    Attribute, Attributes, Event, POLICY, PROVIDERS_POLICY, Record, Side, Span,
};

use crate::limits::MAX_TAPPED;
use tollgate_datapath::tuning::Tap;

/// All watchers.
#[derive(Default)]
pub(crate) struct Taps {
    pub(crate) open: BTreeMap<u64, Open>,
    pub(crate) opened: u64,
}

pub(crate) struct Open {
    pub(crate) tap: Tap,
    pub(crate) seen: VecDeque<Value>,
    /// Calls that were dropped by runtimes, or for which there was no room here.
    pub(crate) missed: u64,
    pub(crate) asked: Instant,
}

impl Taps {
    /// Whether there are watchers.
    pub(crate) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// The taps, for the runtimes.
    pub(crate) fn in_force(&self) -> Arc<[Tap]> {
        self.open.values().map(|open| open.tap.clone()).collect()
    }

    /// A call has ended.
    pub(crate) fn note(&mut self, record: &Record, now: Now) {
        if self.open.is_empty() {
            return;
        }
        let (span, withheld, is_traced) = match record {
            Record::Span(span) => (&**span, 0, true),
            Record::Tapped(tapped) => (&tapped.span, tapped.withheld, false),
            Record::Line(_) => return,
        };
        let is_denied = denied_by(&span.attributes).is_some();
        for open in self.open.values_mut() {
            // The runtimes don't tell which taps they belong to: all taps have missed them.
            open.missed += withheld;
            let code = span.outcome.code;
            if !open.tap.takes(&span.tenant, &span.method, code, is_denied) {
                continue;
            }
            match open.seen.len() < MAX_TAPPED {
                true => open.seen.push_back(told(span, is_traced, now)),
                false => open.missed += 1,
            }
        }
    }
}

/// The policy that denied a call, and whether it is the provider's.
pub(crate) fn denied_by(attributes: &Attributes) -> Option<(Value, bool)> {
    let mut attributes = attributes.iter();
    attributes.find_map(|(key, value)| match *key {
        POLICY => Some((plain(value), false)),
        PROVIDERS_POLICY => Some((plain(value), true)),
        _ => None,
    })
}

pub(crate) fn plain(attribute: &Attribute) -> Value {
    match attribute {
        Attribute::Text(text) => text.as_ref().into(),
        Attribute::Number(number) => (*number).into(),
    }
}

/// One side of a call. The trace is shown only if the call is traced.
pub(crate) fn told(span: &Span, is_traced: bool, now: Now) -> Value {
    let event = |event: &Event| {
        let more = event.attributes.iter();
        let more = more.map(|(key, value)| ((*key).to_owned(), plain(value)));
        json!({
            "name": event.name, "after_us": event.at_ns.saturating_sub(span.began_ns) / 1_000,
            "attributes": more.collect::<Map<_, _>>(),
        })
    };
    let (policy, is_providers) = denied_by(&span.attributes).unzip();
    let mut attributes = span.attributes.iter();
    let peer = attributes.find(|(key, _)| *key == "network.peer.address");
    json!({
        "tenant": &*span.tenant, "method": span.method,
        "side": match span.side { Side::Client => "client", Side::Server => "server" },
        "status": span.outcome.code, "message": span.outcome.message,
        "denied_by": policy, "providers": is_providers, "peer": peer.map(|(_, peer)| plain(peer)),
        "began": rfc3339(UNIX_EPOCH + Duration::from_nanos(now.unix_of(span.began_ns))),
        "took_us": span.ended_ns.saturating_sub(span.began_ns) / 1_000,
        "trace": is_traced.then(|| span.trace.to_string()),
        "span": is_traced.then(|| span.span.to_string()),
        "parent": span.parent.map(|parent| parent.to_string()),
        "events": span.events.iter().map(event).collect::<Vec<_>>(),
        "dropped_events": span.dropped_events,
    })
}
