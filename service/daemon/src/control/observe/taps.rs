//! Watchers of calls as they end, with the calls that they haven't fetched yet.
//!
//! Invariants: at most [`MAX_TAPS`] taps are open, and each keeps at most [`MAX_TAPPED`] calls; it
//! counts the others. A tap's number is never reused. No borrow outlives a method, so none is held
//! across a wait.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate_control::audit::rfc3339;
use tollgate_telemetry::prometheus::Now;
use tollgate_telemetry::record::{
    Attribute, Attributes, Event, POLICY, PROVIDERS_POLICY, Record, Side, Span,
};

use crate::limits::{MAX_TAPPED, MAX_TAPS, MAX_TAPS_PER_TENANT, OPERATORS_TAPS, TAP_PATIENCE};
use tollgate_datapath::tuning::Tap;

/// Whose view of a call is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// An operator's: everything.
    Whole,
    /// The tenant's: without the provider's policies, and without numbers that others' calls are
    /// part of.
    Tenants,
}

/// All watchers.
#[derive(Default)]
pub(crate) struct Taps {
    all: RefCell<All>,
    /// Notified when a tap is opened and the runtimes have it.
    opened: Notify,
}

#[derive(Default)]
struct All {
    open: BTreeMap<u64, Open>,
    opened: u64,
}

struct Open {
    tap: Tap,
    /// Whose view of calls it gets.
    view: View,
    seen: VecDeque<Value>,
    /// Calls that were dropped by runtimes, or for which there was no room here.
    missed: u64,
    asked: Instant,
}

impl Open {
    fn is_abandoned(&self) -> bool {
        self.asked.elapsed() > TAP_PATIENCE
    }
}

impl Taps {
    /// Opens a tap, and returns its number. `None`: [`MAX_TAPS`] are open, or as many as tenants
    /// may have, or as many as this one may have.
    pub(crate) fn open(&self, tap: Tap, view: View) -> Option<u64> {
        let mut all = self.all.borrow_mut();
        let tenants = all.open.values().filter(|open| open.view == View::Tenants);
        let own = tenants.clone().filter(|open| open.tap.tenant == tap.tenant);
        let is_full = match view {
            View::Whole => false,
            View::Tenants => {
                own.count() >= MAX_TAPS_PER_TENANT || tenants.count() >= MAX_TAPS - OPERATORS_TAPS
            }
        };
        if is_full || all.open.len() >= MAX_TAPS {
            return None;
        }
        all.opened += 1;
        let id = all.opened;
        let open = Open {
            tap,
            view,
            seen: VecDeque::new(),
            missed: 0,
            asked: Instant::now(),
        };
        all.open.insert(id, open);
        Some(id)
    }

    /// The calls of a tap since the last time, and the number of missed ones. `None`: there is no
    /// such tap.
    pub(crate) fn fetch(&self, id: u64) -> Option<(VecDeque<Value>, u64)> {
        let mut all = self.all.borrow_mut();
        let open = all.open.get_mut(&id)?;
        open.asked = Instant::now();
        Some((
            std::mem::take(&mut open.seen),
            std::mem::take(&mut open.missed),
        ))
    }

    /// The runtimes have a new tap.
    pub(crate) fn told(&self) {
        self.opened.notify_one();
    }

    /// Waits for a new tap.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }

    /// Whether there are watchers.
    pub(crate) fn any(&self) -> bool {
        !self.all.borrow().open.is_empty()
    }

    /// Whether a tap was not asked for a while.
    pub(crate) fn any_abandoned(&self) -> bool {
        let all = self.all.borrow();
        all.open.values().any(Open::is_abandoned)
    }

    /// Closes taps that were not asked for a while.
    pub(crate) fn close_abandoned(&self) {
        let mut all = self.all.borrow_mut();
        all.open.retain(|_, open| !open.is_abandoned());
    }

    /// The taps, for the runtimes.
    pub(crate) fn in_force(&self) -> Arc<[Tap]> {
        let all = self.all.borrow();
        all.open.values().map(|open| open.tap.clone()).collect()
    }

    /// A call has ended.
    pub(crate) fn note(&self, record: &Record, now: Now) {
        let mut all = self.all.borrow_mut();
        if all.open.is_empty() {
            return;
        }
        let (span, withheld, is_traced) = match record {
            Record::Span(span) => (&**span, 0, true),
            Record::Tapped(tapped) => (&tapped.span, tapped.withheld, false),
            Record::Line(_) => return,
        };
        let is_denied = denied_by(&span.attributes).is_some();
        for open in all.open.values_mut() {
            // The runtimes don't tell which taps they belong to: all taps have missed them. A
            // tenant would learn from them how much others do.
            if open.view == View::Whole {
                open.missed += withheld;
            }
            let code = span.outcome.code;
            if !open.tap.takes(&span.tenant, &span.method, code, is_denied) {
                continue;
            }
            match open.seen.len() < MAX_TAPPED {
                true => open.seen.push_back(told(span, open.view, is_traced, now)),
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
pub(crate) fn told(span: &Span, view: View, is_traced: bool, now: Now) -> Value {
    let mut span = Cow::Borrowed(span);
    if view == View::Tenants {
        span.to_mut().forget_providers();
    }
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
