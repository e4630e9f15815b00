//! W3C trace context in OpenTelemetry's terms: `traceparent` and `tracestate`, parsed as the
//! daemons parse them.
//!
//! The SDK's propagator isn't used: a library has no SDK, and the propagator is lenient. It takes
//! `0-1-1-1` as a parent, which the daemons don't, so a handler's spans would be in another trace
//! than its call's.

use std::str::FromStr;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use tollgate_shm_abi::w3c::{self, Context as Parent};

pub(crate) use tollgate_shm_abi::w3c::{TRACEPARENT, TRACESTATE};

/// Parses a context; `None` if the parent is invalid. An invalid state is dropped; the parent
/// stays.
pub(crate) fn read(parent: &str, state: Option<&str>) -> Option<SpanContext> {
    let parent = Parent::parse(parent.as_bytes())?;
    let flags = match parent.sampled {
        true => TraceFlags::SAMPLED,
        false => TraceFlags::default(),
    };
    let state = state.and_then(|state| TraceState::from_str(state).ok());
    Some(SpanContext::new(
        TraceId::from_bytes(*parent.trace.bytes()),
        SpanId::from_bytes(*parent.span.bytes()),
        flags,
        true,
        state.unwrap_or_default(),
    ))
}

/// The `traceparent` of a context; `None` if the context isn't valid.
pub(crate) fn parent_of(context: &SpanContext) -> Option<String> {
    let parent = Parent {
        trace: w3c::TraceId::new(context.trace_id().to_bytes())?,
        span: w3c::SpanId::new(context.span_id().to_bytes())?,
        sampled: context.is_sampled(),
    };
    Some(parent.to_text())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashMap;

    use opentelemetry::Context;
    use opentelemetry::propagation::TextMapPropagator;
    use opentelemetry::trace::TraceContextExt;
    use opentelemetry_sdk::propagation::TraceContextPropagator;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The context that OpenTelemetry's own propagator reads.
    fn sdks(parent: &str, state: &str) -> SpanContext {
        let pairs = [(TRACEPARENT, parent), (TRACESTATE, state)];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let context = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HashMap::from(pairs));
        context.span().span_context().clone()
    }

    #[test]
    fn what_is_read_is_written_again_as_the_sdk_does() {
        let state = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";
        let unsampled = GOOD.replace("-01", "-00");
        // Unknown flags aren't passed on; later versions are written as version 0.
        let cases = [
            (GOOD.to_owned(), GOOD),
            (unsampled.clone(), &*unsampled),
            (GOOD.replace("-01", "-ff"), GOOD),
            (format!("cc{}-what-comes", &GOOD[2..]), GOOD),
        ];
        for (came, goes) in cases {
            let context = read(&came, Some(state)).unwrap();
            assert!(context.is_remote());
            assert_eq!(context, sdks(&came, state));
            assert_eq!(parent_of(&context).as_deref(), Some(goes));
            assert_eq!(context.trace_state().header(), state);
        }
        for state in [None, Some("no state"), Some("")] {
            let context = read(GOOD, state).unwrap();
            assert_eq!(context.trace_state().header(), "", "{state:?}");
        }
    }

    /// The daemons' tests decide which texts are invalid. The SDK would accept this one.
    #[test]
    fn what_the_daemons_refuse_is_none() {
        assert_eq!(read("0-1-1-1", None), None);
        assert!(sdks("0-1-1-1", "").is_valid());
        assert_eq!(parent_of(&SpanContext::empty_context()), None);
    }
}
