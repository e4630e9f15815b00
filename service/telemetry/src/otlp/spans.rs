//! Writes spans directly as OTLP bytes.
//!
//! Spans are many. In the messages that OpenTelemetry's project generates, each key and each value
//! is a string of its own. Making those took most of the control plane's time. A test compares
//! both.

use bytes::{BufMut, Bytes, BytesMut};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::exposition::Now;
use crate::metrics::TENANT;
use crate::record::{Attribute, Event, Side, Span};

/// Flags of a span: it was sampled, and it is known whether its parent is remote.
const SPAN_FLAGS: u32 = 0x101;
/// Flag of a span: its parent belongs to another process.
const REMOTE_PARENT: u32 = 0x200;

/// A request to a trace service. On the wire it is an `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct TracesRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<InstrumentationScope>,
    /// Each is one encoded message.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(super) spans: Vec<Bytes>,
}

/// Writes spans one after another, without copying any again.
#[derive(Default)]
pub(super) struct Writer {
    spans: BytesMut,
    /// An encoded event; its length precedes it.
    event: Vec<u8>,
}

impl Writer {
    pub(super) fn write(&mut self, span: &Span, now: Now) -> Bytes {
        let (kind, remote) = match span.side {
            Side::Client => (SpanKind::Client, 0),
            Side::Server => (SpanKind::Server, REMOTE_PARENT),
        };
        let out = &mut self.spans;
        put_bytes(out, 1, span.trace.bytes());
        put_bytes(out, 2, span.span.bytes());
        if !span.state.is_empty() {
            put_bytes(out, 3, span.state.as_bytes());
        }
        if let Some(parent) = &span.parent {
            put_bytes(out, 4, parent.bytes());
        }
        if !span.method.is_empty() {
            put_bytes(out, 5, span.method.as_bytes());
        }
        put_number(out, 6, kind as u64);
        put_time(out, 7, now.unix_of(span.began_ns));
        put_time(out, 8, now.unix_of(span.ended_ns));
        put_text(out, 9, "rpc.system.name", "tollgate");
        put_text(out, 9, "rpc.method", &span.method);
        put_text(out, 9, "rpc.response.status_code", span.outcome.code);
        put_text(out, 9, TENANT, &span.tenant);
        if span.outcome.is_error {
            put_text(out, 9, "error.type", span.outcome.code);
        }
        for (key, value) in &span.attributes {
            put_attribute(out, 9, key, value);
        }
        for event in &span.events {
            self.event.clear();
            put_event(&mut self.event, event, now);
            put_bytes(out, 11, &self.event);
        }
        if span.dropped_events > 0 {
            put_number(out, 12, span.dropped_events.into());
        }
        put_status(out, span);
        encode_key(16, WireType::ThirtyTwoBit, out);
        out.put_u32_le(SPAN_FLAGS | remote);
        out.split().freeze()
    }
}

fn put_event(out: &mut impl BufMut, event: &Event, now: Now) {
    put_time(out, 1, now.unix_of(event.at_ns));
    put_bytes(out, 2, event.name.as_bytes());
    for (key, value) in &event.attributes {
        put_attribute(out, 3, key, value);
    }
}

/// Writes the status; an empty status means success.
fn put_status(out: &mut impl BufMut, span: &Span) {
    let message = match span.outcome.is_error {
        true => &*span.outcome.message,
        false => "",
    };
    let mut len = 0;
    if !message.is_empty() {
        len += bytes_len(2, message.len());
    }
    if span.outcome.is_error {
        len += key_len(3) + encoded_len_varint(StatusCode::Error as u64);
    }
    put_head(out, 15, len);
    if !message.is_empty() {
        put_bytes(out, 2, message.as_bytes());
    }
    if span.outcome.is_error {
        put_number(out, 3, StatusCode::Error as u64);
    }
}

/// Writes a key and a value of one of several kinds.
fn put_attribute(out: &mut impl BufMut, tag: u32, key: &str, value: &Attribute) {
    match value {
        Attribute::Text(text) => put_text(out, tag, key, text),
        Attribute::Number(number) => {
            // As a 64-bit integer in two's complement.
            let number = *number as u64;
            let value_len = key_len(3) + encoded_len_varint(number);
            put_key(out, tag, key, value_len);
            put_number(out, 3, number);
        }
    }
}

fn put_text(out: &mut impl BufMut, tag: u32, key: &str, text: &str) {
    put_key(out, tag, key, bytes_len(1, text.len()));
    put_bytes(out, 1, text.as_bytes());
}

/// Writes the pair's key, and the bytes before its value.
fn put_key(out: &mut impl BufMut, tag: u32, key: &str, value_len: usize) {
    put_head(out, tag, bytes_len(1, key.len()) + bytes_len(2, value_len));
    put_bytes(out, 1, key.as_bytes());
    put_head(out, 2, value_len);
}

/// Length of a field with this number of bytes.
fn bytes_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

fn put_head(out: &mut impl BufMut, tag: u32, len: usize) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}

fn put_bytes(out: &mut impl BufMut, tag: u32, bytes: &[u8]) {
    put_head(out, tag, bytes.len());
    out.put_slice(bytes);
}

fn put_number(out: &mut impl BufMut, tag: u32, number: u64) {
    encode_key(tag, WireType::Varint, out);
    encode_varint(number, out);
}

fn put_time(out: &mut impl BufMut, tag: u32, unix_ns: u64) {
    encode_key(tag, WireType::SixtyFourBit, out);
    out.put_u64_le(unix_ns);
}

#[cfg(test)]
mod tests;
