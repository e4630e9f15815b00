//! The written bytes equal those of the generated messages.
#![allow(clippy::unwrap_used)]

use opentelemetry_proto::tonic::trace::v1::{Span as OtlpSpan, Status, span};

use super::*;
use crate::otlp::{call_attributes, pair};
use crate::record::{Attributes, Outcome};
use crate::w3c::{SpanId, TraceId};

const NOW: Now = Now {
    unix_ns: 1_700_000_000_000_000_000,
    monotonic_ns: 50_000_000_000,
};

fn generated(span: &Span) -> OtlpSpan {
    let mut attributes = call_attributes(&span.tenant, &span.method, &span.outcome);
    attributes.extend(span.attributes.iter().map(pair));
    let events = span.events.iter().map(|event| span::Event {
        time_unix_nano: NOW.unix_of(event.at_ns),
        name: event.name.to_owned(),
        attributes: event.attributes.iter().map(pair).collect(),
        ..span::Event::default()
    });
    let (kind, remote) = match span.side {
        Side::Client => (SpanKind::Client, 0),
        Side::Server => (SpanKind::Server, REMOTE_PARENT),
    };
    let (code, message) = match span.outcome.is_error {
        true => (StatusCode::Error, span.outcome.message.clone()),
        false => (StatusCode::Unset, String::new()),
    };
    OtlpSpan {
        trace_id: span.trace.bytes().to_vec(),
        span_id: span.span.bytes().to_vec(),
        trace_state: span.state.to_string(),
        parent_span_id: span.parent.map_or(Vec::new(), |p| p.bytes().to_vec()),
        flags: SPAN_FLAGS | remote,
        name: span.method.clone(),
        kind: kind as i32,
        start_time_unix_nano: NOW.unix_of(span.began_ns),
        end_time_unix_nano: NOW.unix_of(span.ended_ns),
        attributes,
        events: events.collect(),
        dropped_events_count: span.dropped_events,
        status: Some(Status {
            message,
            code: code as i32,
        }),
        ..OtlpSpan::default()
    }
}

/// A word with no letters, a few letters, or more than a one-byte length can express.
fn word(random: &mut fastrand::Rng) -> String {
    let len = *random.choice(&[0, 1, 7, 127, 128, 300]).unwrap();
    std::iter::repeat_with(|| random.alphanumeric())
        .take(len)
        .collect()
}

fn attributes(random: &mut fastrand::Rng) -> Attributes {
    let keys = ["tollgate.policy", "server.port", "k"];
    let attribute = |random: &mut fastrand::Rng| {
        let value = match random.u8(..4) {
            0 => word(random).into(),
            1 => "static".into(),
            2 => random.i64(..).into(),
            _ => i64::from(random.u8(..)).into(),
        };
        (*random.choice(&keys).unwrap(), value)
    };
    (0..random.usize(..4)).map(|_| attribute(random)).collect()
}

fn any_span(random: &mut fastrand::Rng) -> Span {
    let is_error = random.bool();
    Span {
        tenant: word(random).into(),
        trace: TraceId::new(random.u128(1..).to_be_bytes()).unwrap(),
        span: SpanId::new(random.u64(1..).to_be_bytes()).unwrap(),
        parent: SpanId::new(random.u64(..3).to_be_bytes()),
        state: word(random).into(),
        side: *random.choice(&[Side::Client, Side::Server]).unwrap(),
        method: word(random),
        began_ns: random.u64(..),
        ended_ns: random.u64(..60_000_000_000),
        outcome: Outcome {
            code: if is_error { "INTERNAL" } else { "OK" },
            is_error,
            message: word(random),
        },
        attributes: attributes(random),
        events: (0..random.usize(..4))
            .map(|_| Event {
                name: "tollgate.sent",
                at_ns: random.u64(..60_000_000_000),
                attributes: attributes(random),
            })
            .collect(),
        dropped_events: random.u32(..3),
    }
}

#[test]
fn spans_are_what_the_generated_messages_would_be() {
    let mut random = fastrand::Rng::with_seed(9);
    let mut writer = Writer::default();
    for _ in 0..2_000 {
        let span = any_span(&mut random);
        let bytes = writer.write(&span, NOW);
        let generated = generated(&span);
        assert_eq!(OtlpSpan::decode(bytes.clone()).unwrap(), generated);
        assert_eq!(bytes.len(), generated.encoded_len(), "nothing beside that");
    }
}
