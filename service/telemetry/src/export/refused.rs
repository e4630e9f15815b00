//! Failed requests: whether a retry may succeed, when, and why the request failed.

use std::error::Error;
use std::time::{Duration, SystemTime};

use prost::Message;
use tollgate_shm_abi::text;

use crate::limits::{MAX_REASON_CHARS, MAX_RETRY_AFTER};

/// A failed request.
pub(super) struct Refused {
    /// Whether a retry would fail again.
    pub(super) is_final: bool,
    pub(super) why: String,
    /// The pause that the endpoint asks for, if any; at most [`MAX_RETRY_AFTER`].
    pub(super) retry_after: Option<Duration>,
}

impl Refused {
    /// A failure that a retry may fix.
    pub(super) fn for_now(why: String) -> Refused {
        Refused {
            is_final: false,
            why,
            retry_after: None,
        }
    }
}

/// Parses a `Retry-After` header: seconds, or a date.
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let after = match value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        // A number with too many digits exceeds the longest pause anyway.
        true => Duration::from_secs(value.parse().unwrap_or(u64::MAX)),
        false => {
            let at = httpdate::parse_http_date(value).ok()?;
            at.duration_since(now).unwrap_or_default()
        }
    };
    Some(after.min(MAX_RETRY_AFTER))
}

/// The used fields of `google.rpc.Status`: the details of a gRPC status.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<RpcDetail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcDetail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<RetryDelay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryDelay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The delay of the `RetryInfo` in a status' details.
fn retry_info(details: &[u8]) -> Option<Duration> {
    let details = RpcStatus::decode(details).ok()?.details;
    let mut infos = details
        .iter()
        .filter(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"));
    let delay = RetryInfo::decode(&*infos.next()?.value).ok()?.retry_delay?;
    let seconds = u64::try_from(delay.seconds).unwrap_or_default();
    let nanos = u32::try_from(delay.nanos)
        .unwrap_or_default()
        .min(999_999_999);
    Some(Duration::new(seconds, nanos).min(MAX_RETRY_AFTER))
}

impl From<tonic::Status> for Refused {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        let retry_after = retry_info(status.details());
        // OTLP's table. A channel that can't connect reports UNAVAILABLE.
        let may_succeed = match status.code() {
            // A quota may recover; an oversized message stays too long. RetryInfo indicates a
            // quota.
            Code::ResourceExhausted => retry_after.is_some(),
            code => matches!(
                code,
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Aborted
                    | Code::OutOfRange
                    | Code::Unavailable
                    | Code::DataLoss
            ),
        };
        // Only local errors have a cause.
        let why = match status.source() {
            Some(cause) => because(cause),
            None => format!("it answers {:?}", status.code()),
        };
        Refused {
            is_final: !may_succeed,
            why,
            retry_after,
        }
    }
}

/// Formats an error and its causes, the deepest last.
pub(super) fn because(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut said: Vec<String> = Vec::new();
    for cause in causes.map(ToString::to_string) {
        // Some errors include their cause in their own text.
        if said.last().is_none_or(|last| !last.contains(&cause)) {
            said.push(cause);
        }
    }
    let said = said.join(": ");
    text::escape(&said).chars().take(MAX_REASON_CHARS).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn when_to_come_back_is_seconds_or_a_date_and_has_an_end() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let after = |value| retry_after(value, now).map(|after| after.as_secs());
        for (value, expected) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            (
                "Sat, 06 Nov 2094 08:00:00 GMT",
                Some(MAX_RETRY_AFTER.as_secs()),
            ),
            ("100000000000000000000000", Some(MAX_RETRY_AFTER.as_secs())),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(after(value), expected, "{value:?}");
        }
    }

    #[test]
    fn retry_info_is_found_among_a_status_details() {
        let detail = |name: &str, value: Vec<u8>| RpcDetail {
            type_url: format!("type.googleapis.com/{name}"),
            value,
        };
        let info = |seconds, nanos| {
            let retry_delay = Some(RetryDelay { seconds, nanos });
            detail(
                "google.rpc.RetryInfo",
                RetryInfo { retry_delay }.encode_to_vec(),
            )
        };
        let found = |details: Vec<RpcDetail>| retry_info(&RpcStatus { details }.encode_to_vec());
        let other = || detail("google.rpc.DebugInfo", vec![1, 2, 3]);
        assert_eq!(
            found(vec![other(), info(2, 500_000_000)]),
            Some(Duration::from_millis(2_500))
        );
        assert_eq!(found(vec![info(-5, -1)]), Some(Duration::ZERO));
        assert_eq!(found(vec![info(i64::MAX, i32::MAX)]), Some(MAX_RETRY_AFTER));
        assert_eq!(found(vec![other()]), None);
        assert_eq!(retry_info(b"no message"), None);
        // OTLP's table: without RetryInfo, exhausted resources are a final error.
        let refused = Refused::from(tonic::Status::resource_exhausted("too long"));
        assert!(refused.is_final && refused.retry_after.is_none());
        let details = RpcStatus {
            details: vec![info(1, 0)],
        }
        .encode_to_vec();
        let status =
            tonic::Status::with_details(tonic::Code::ResourceExhausted, "", details.into());
        let refused = Refused::from(status);
        assert!(!refused.is_final);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failure {
        text: String,
        source: Option<Box<Failure>>,
    }

    #[test]
    fn a_reason_has_its_causes_once_and_an_end() {
        let failure = |text: &str, source| Failure {
            text: text.to_owned(),
            source,
        };
        let inner = || Box::new(failure("bad\u{1b}[31m name", None));
        let outer = failure("no TLS", Some(inner()));
        assert_eq!(because(&outer), "no TLS: bad\\u{1b}[31m name");
        let outer = failure("no TLS: bad\u{1b}[31m name", Some(inner()));
        assert_eq!(because(&outer), "no TLS: bad\\u{1b}[31m name");
        let long = failure(&"é".repeat(MAX_REASON_CHARS + 1), None);
        assert_eq!(because(&long), "é".repeat(MAX_REASON_CHARS));
    }
}
