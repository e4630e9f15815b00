//! Calls that are traced, on their way to another process.
//!
//! What this process has no word for is left out, of an event or the event itself: the other one may be of another version.

use serde::{Deserialize, Serialize};
use tollgate_engine::{LinkId, Origin, SessionId};
use tollgate_telemetry::record::{Attribute, Event, event_word};
use tollgate_telemetry::w3c::{SpanId, TraceId};

use crate::datapath::traces::{Traced, Traces};

#[derive(Serialize, Deserialize)]
pub(super) struct TracedForm {
    origin: OriginForm,
    is_sampled: bool,
    trace: [u8; 16],
    parent: Option<[u8; 8]>,
    state: String,
    client: Option<[u8; 8]>,
    server: Option<[u8; 8]>,
    peer: Option<String>,
    events: Vec<EventForm>,
    dropped_events: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OriginForm {
    Session { session: SessionId, call: u64 },
    Link { link: LinkId, call: u64 },
}

#[derive(Serialize, Deserialize)]
struct EventForm {
    name: String,
    at_ns: u64,
    attributes: Vec<(String, AttributeForm)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AttributeForm {
    Text(String),
    Number(i64),
}

/// Of all that are traced.
pub(super) fn traced_forms(traces: &Traces) -> Vec<TracedForm> {
    let forms = traces
        .live()
        .map(|(origin, traced)| TracedForm::of(*origin, traced));
    forms.collect()
}

impl TracedForm {
    fn of(origin: Origin, traced: &Traced) -> TracedForm {
        let bytes = |span: Option<SpanId>| span.map(|span| *span.bytes());
        TracedForm {
            origin: match origin {
                Origin::Session { session, call } => OriginForm::Session { session, call },
                Origin::Link { link, call } => OriginForm::Link { link, call },
            },
            is_sampled: traced.is_sampled,
            trace: *traced.trace.bytes(),
            parent: bytes(traced.parent),
            state: traced.state.to_string(),
            client: bytes(traced.client),
            server: bytes(traced.server),
            peer: traced.peer.as_deref().map(str::to_owned),
            events: traced.events.iter().map(event_form).collect(),
            dropped_events: traced.dropped_events,
        }
    }

    /// `None` if its trace is none.
    pub(super) fn into_traced(self) -> Option<(Origin, Box<Traced>)> {
        let origin = match self.origin {
            OriginForm::Session { session, call } => Origin::Session { session, call },
            OriginForm::Link { link, call } => Origin::Link { link, call },
        };
        let events = self.events.into_iter().filter_map(event_of);
        let traced = Traced {
            is_sampled: self.is_sampled,
            trace: TraceId::new(self.trace)?,
            parent: self.parent.and_then(SpanId::new),
            state: self.state.into(),
            client: self.client.and_then(SpanId::new),
            server: self.server.and_then(SpanId::new),
            peer: self.peer.map(Into::into),
            events: events.collect(),
            dropped_events: self.dropped_events,
        };
        Some((origin, Box::new(traced)))
    }
}

fn event_form(event: &Event) -> EventForm {
    let attributes = event.attributes.iter();
    let attributes = attributes.map(|(key, value)| {
        let value = match value {
            Attribute::Text(text) => AttributeForm::Text(text.to_string()),
            Attribute::Number(number) => AttributeForm::Number(*number),
        };
        ((*key).to_owned(), value)
    });
    EventForm {
        name: event.name.to_owned(),
        at_ns: event.at_ns,
        attributes: attributes.collect(),
    }
}

fn event_of(form: EventForm) -> Option<Event> {
    let attributes = form.attributes.into_iter();
    let attributes = attributes.filter_map(|(key, value)| {
        let value = match value {
            AttributeForm::Text(text) => text.into(),
            AttributeForm::Number(number) => number.into(),
        };
        Some((event_word(&key)?, value))
    });
    Some(Event {
        name: event_word(&form.name)?,
        at_ns: form.at_ns,
        attributes: attributes.collect(),
    })
}
