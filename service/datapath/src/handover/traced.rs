//! Traced calls in a hand-over.
//!
//! The other process may be of another version. So unknown attributes of an event, unknown events,
//! and events beyond the limit of this process are dropped. A span says how many events it lacks.

use serde::{Deserialize, Serialize};
use tollgate_engine::{LinkId, Origin, SessionId};
use tollgate_telemetry::limits::MAX_EVENTS;
use tollgate_telemetry::record::{Attribute, Event, event_word};
use tollgate_telemetry::w3c::{SpanId, TraceId};

use crate::observe::Observer;
use crate::observe::traces::Traced;

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

/// All traced calls.
pub(super) fn traced_forms(observer: &Observer) -> Vec<TracedForm> {
    let forms = observer
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

    /// `None` if its trace id is invalid.
    pub(super) fn into_traced(self) -> Option<(Origin, Box<Traced>)> {
        let origin = match self.origin {
            OriginForm::Session { session, call } => Origin::Session { session, call },
            OriginForm::Link { link, call } => Origin::Link { link, call },
        };
        let came = self.events.len();
        let events = self.events.into_iter().filter_map(event_of);
        let events: Vec<_> = events.take(MAX_EVENTS).collect();
        let missing = (came - events.len()) as u32;
        let traced = Traced {
            is_sampled: self.is_sampled,
            trace: TraceId::new(self.trace)?,
            parent: self.parent.and_then(SpanId::new),
            state: self.state.into(),
            client: self.client.and_then(SpanId::new),
            server: self.server.and_then(SpanId::new),
            peer: self.peer.map(Into::into),
            events,
            dropped_events: self.dropped_events.saturating_add(missing),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_telemetry::record::{QUEUE, event};

    fn traced(events: Vec<Event>) -> Traced {
        Traced {
            is_sampled: true,
            parent: SpanId::new([2; 8]),
            client: SpanId::new([3; 8]),
            peer: Some("b:7471".into()),
            events,
            dropped_events: 1,
            ..Traced::of(TraceId::new([1; 16]).unwrap())
        }
    }

    fn queued(at_ns: u64) -> Event {
        Event {
            name: event::QUEUED,
            at_ns,
            attributes: vec![(QUEUE, "turn".into())],
        }
    }

    const ORIGIN: Origin = Origin::Session {
        session: SessionId(7),
        call: 9,
    };

    fn travels(traced: &Traced, change: impl Fn(&mut TracedForm)) -> Traced {
        let json = serde_json::to_vec(&TracedForm::of(ORIGIN, traced)).unwrap();
        let mut form: TracedForm = serde_json::from_slice(&json).unwrap();
        change(&mut form);
        let (origin, came) = form.into_traced().unwrap();
        assert_eq!(origin, ORIGIN);
        *came
    }

    #[test]
    fn what_is_known_of_a_call_comes_as_it_left() {
        let left = traced(vec![queued(5), queued(6)]);
        let came = travels(&left, |_| {});
        assert_eq!((came.trace, came.parent), (left.trace, left.parent));
        assert_eq!((came.client, came.server), (left.client, None));
        assert_eq!((came.peer, came.events), (left.peer, left.events));
        assert_eq!(came.dropped_events, 1);
    }

    #[test]
    fn what_another_version_says_is_left_out_as_far_as_it_is_not_known_or_too_much() {
        let strange = |form: &mut TracedForm| {
            form.events[0].name = "tollgate.dreamt".to_owned();
            let more = ("tollgate.of".to_owned(), AttributeForm::Number(1));
            form.events[1].attributes.push(more);
        };
        let came = travels(&traced(vec![queued(5), queued(6)]), strange);
        assert_eq!((came.events, came.dropped_events), (vec![queued(6)], 2));
        let many = (0..MAX_EVENTS as u64 + 3).map(queued).collect();
        let came = travels(&traced(many), |_| {});
        assert_eq!((came.events.len(), came.dropped_events), (MAX_EVENTS, 4));
        let no_trace = |form: TracedForm| TracedForm {
            trace: [0; 16],
            ..form
        };
        let form = no_trace(TracedForm::of(ORIGIN, &traced(Vec::new())));
        assert!(form.into_traced().is_none());
    }
}
