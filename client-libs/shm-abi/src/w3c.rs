//! W3C trace context: `traceparent` and `tracestate`, parsed from strangers and written for others.
//! Daemons and applications find it in a call's metadata, and must agree on its validity.
//!
//! ```text
//!  traceparent   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!                version  trace, 16 bytes          parent, 8 bytes   flags
//! ```
//!
//! Invariant: a [`Context`] has no id that is all zero. A later version is parsed as far as this
//! one defines it, as the recommendation requires, and written as version 0. All of version 0 have
//! one length, so a parent is replaced in place.
//!
//! Absent on purpose: baggage, which belongs to applications, and any interpretation of
//! `tracestate`.

use alloc::string::String;
use core::fmt;

/// The metadata key of the parent.
pub const TRACEPARENT: &str = "traceparent";

/// The metadata key of vendors' additions.
pub const TRACESTATE: &str = "tracestate";

/// The bytes of a `traceparent` of version 0.
pub const TRACEPARENT_BYTES: usize = 55;

/// The offset of the parent's id.
const PARENT_AT: usize = 36;

/// The flag for a caller that may have recorded its span.
const SAMPLED: u8 = 1;

/// The id of a trace. Never all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The id of a span. Never all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// `None` if all bytes are zero.
    pub fn new(bytes: [u8; 16]) -> Option<TraceId> {
        (bytes != [0; 16]).then_some(TraceId(bytes))
    }

    /// The bytes, in the order of sending.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl SpanId {
    /// `None` if all bytes are zero.
    pub fn new(bytes: [u8; 8]) -> Option<SpanId> {
        (bytes != [0; 8]).then_some(SpanId(bytes))
    }

    /// The bytes, in the order of sending.
    pub fn bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The contents of a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace that a call belongs to.
    pub trace: TraceId,
    /// The span that caused it.
    pub span: SpanId,
    /// Whether that span is recorded.
    pub sampled: bool,
}

impl Context {
    /// Parses a `traceparent`; `None` if it is invalid.
    pub fn parse(text: &[u8]) -> Option<Context> {
        let (version, rest) = text.split_at_checked(2)?;
        let [version] = hex(version)?;
        // 255 is forbidden. In version 0 nothing may follow, in later ones only separated fields.
        let fits = match version {
            0 => text.len() == TRACEPARENT_BYTES,
            255 => false,
            _ => text.len() == TRACEPARENT_BYTES || text.get(TRACEPARENT_BYTES) == Some(&b'-'),
        };
        let rest = rest.get(..TRACEPARENT_BYTES - 2).filter(|_| fits)?;
        let dashes = [0, 33, 50].iter().all(|at| rest[*at] == b'-');
        let [flags] = hex(&rest[51..53])?;
        let context = Context {
            trace: TraceId::new(hex(&rest[1..33])?)?,
            span: SpanId::new(hex(&rest[34..50])?)?,
            sampled: flags & SAMPLED != 0,
        };
        dashes.then_some(context)
    }

    /// The text's bytes. It doesn't use a formatter, which is called once per byte.
    pub fn to_bytes(&self) -> [u8; TRACEPARENT_BYTES] {
        let mut text = *b"00-................................-................-00";
        put_hex(&mut text[3..35], &self.trace.0);
        put_hex(&mut text[PARENT_AT..PARENT_AT + 16], &self.span.0);
        put_hex(&mut text[53..], &[u8::from(self.sampled)]);
        text
    }

    /// The text.
    pub fn to_text(&self) -> String {
        self.to_bytes().map(char::from).iter().collect()
    }
}

/// Replaces the parent in a `traceparent` that was [parsed](Context::parse).
pub fn replace_parent(text: &mut [u8], parent: SpanId) {
    if let Some(place) = text.get_mut(PARENT_AT..PARENT_AT + 16) {
        put_hex(place, &parent.0);
    }
}

/// Writes two digits for each byte.
fn put_hex(place: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in place.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]);
    }
}

/// Lower case only, as the recommendation requires.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::format;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_written_as_it_was_read() {
        let context = Context::parse(GOOD.as_bytes()).unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_text(), GOOD);
        let unsampled = GOOD.replace("-01", "-00");
        let context = Context::parse(unsampled.as_bytes()).unwrap();
        assert!(!context.sampled);
        assert_eq!(context.to_text(), unsampled);
    }

    #[test]
    fn what_isnt_a_context_is_none() {
        let wrong = [
            "",
            "00",
            "00-",
            "0-1-1-1",
            "+0-1-1-1",
            &GOOD[..54],
            &format!("{GOOD}-"),
            &format!("{GOOD}-more"),
            &format!(" {GOOD}"),
            &GOOD.replace("4bf9", "4BF9"),
            &GOOD.replace("4bf9", "+bf9"),
            &GOOD.replace("4bf9", "4bg9"),
            &GOOD.replace("00-4", "ff-4"),
            &GOOD.replace("00-4", "0--4"),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &GOOD.replace("-00f0", "_00f0"),
            &GOOD.replace("-01", "-0x"),
            &GOOD.replace("-01", "-é"),
            &format!("01{}x", &GOOD[2..]),
        ];
        for text in wrong {
            assert_eq!(Context::parse(text.as_bytes()), None, "{text}");
        }
        // Random bytes don't panic, and a parsed context can be parsed again.
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..100_000 {
            let mut text = GOOD.as_bytes().to_vec();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..text.len());
                text[at] = random.u8(..);
            }
            text.truncate(random.usize(..=text.len()));
            if let Some(context) = Context::parse(&text) {
                assert_eq!(Context::parse(&context.to_bytes()), Some(context));
            }
        }
    }

    #[test]
    fn a_later_version_is_read_as_far_as_this_one_goes() {
        let later = format!("cc{}-what-comes", &GOOD[2..]);
        let context = Context::parse(later.as_bytes()).unwrap();
        assert_eq!(context.to_text(), GOOD);
    }

    #[test]
    fn a_parent_is_replaced_in_place() {
        let mut text = GOOD.as_bytes().to_vec();
        let parent = SpanId::new([0x0a, 0xb1, 2, 3, 4, 5, 6, 0xff]).unwrap();
        replace_parent(&mut text, parent);
        let context = Context::parse(&text).unwrap();
        assert_eq!(context.span, parent);
        assert_eq!(
            context.trace,
            Context::parse(GOOD.as_bytes()).unwrap().trace
        );
        replace_parent(&mut text[..40], parent);
        assert_eq!(Context::parse(&text).unwrap().span, parent);
    }
}
