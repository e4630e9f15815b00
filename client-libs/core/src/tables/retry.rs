//! Retries: which calls are made again, and when.
//!
//! A unary call that ended UNAVAILABLE is made again if the schema marks its method as idempotent
//! (`option idempotency_level = IDEMPOTENT`, or `NO_SIDE_EFFECTS`): then it doesn't matter whether
//! its handler ran. Other calls are never made again, so each of them runs at most once.
//!
//! ```text
//!   call ──▶ UNAVAILABLE ──▶ idempotent? attempts, budget, time left? ──▶ pause ──▶ call
//!                                     │ no
//!                                     ▼
//!                              the caller's answer
//! ```
//!
//! gRPC's retry budget protects a server that is in trouble from more calls (gRFC A6, "Throttling
//! Retry Attempts and Hedged RPCs"). A session has [`RETRY_TOKENS`]. Each idempotent call that ends
//! UNAVAILABLE takes one token, and each reply puts a tenth back. Calls are made again only while
//! more than half of the tokens are there.
//!
//! Streams aren't made again, because their reader has seen a part. If the session ended, its calls
//! aren't made again either: the daemon is gone, and the time until it is back is unknown.

use std::collections::HashSet;
use std::time::Duration;

use prost::Message;

use crate::limits::{RETRY_PAUSE, RETRY_TOKENS};
use crate::pause::Pauses;

/// The number of parts in a token. A reply gives one part back.
const PARTS: u32 = 10;

/// Tokens of a session, in parts.
#[derive(Debug)]
pub(crate) struct Budget(u32);

impl Default for Budget {
    fn default() -> Budget {
        Budget(RETRY_TOKENS * PARTS)
    }
}

impl Budget {
    /// Records that a call was answered.
    #[inline]
    pub(crate) fn succeeded(&mut self) {
        if self.0 < RETRY_TOKENS * PARTS {
            self.0 += 1;
        }
    }

    /// Records that a retryable call failed. Returns whether it may be made again.
    pub(crate) fn failed(&mut self) -> bool {
        self.0 = self.0.saturating_sub(PARTS);
        self.0 > RETRY_TOKENS * PARTS / 2
    }
}

/// The attempts of one call. A call that is never made again allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Option<Box<(u32, Pauses)>>);

impl Attempts {
    /// The pause before another attempt, if fewer than `most` have followed the first. `asked` is
    /// the pause that the server asked for.
    pub(crate) fn next(&mut self, most: u32, asked: Option<Duration>) -> Option<Duration> {
        let begin = || Box::new((0, Pauses::new(RETRY_PAUSE)));
        let (made, pauses) = &mut **self.0.get_or_insert_with(begin);
        if *made >= most {
            return None;
        }
        *made += 1;
        Some(pauses.next().max(asked.unwrap_or_default()))
    }
}

/// The methods of a service that are marked idempotent. Bytes that are no descriptor set have none;
/// the daemon reports them.
pub(crate) fn idempotent_methods(descriptor_set: &[u8], service: &str) -> HashSet<String> {
    let files = FileDescriptorSet::decode(descriptor_set).unwrap_or_default();
    let (package, name) = service.rsplit_once('.').unwrap_or(("", service));
    let files = files
        .file
        .into_iter()
        .filter(|file| file.package == package);
    let services = files
        .flat_map(|file| file.service)
        .filter(|s| s.name == name);
    let marked = services
        .flat_map(|service| service.method)
        .filter(|method| method.is_idempotent());
    marked.map(|method| method.name).collect()
}

// The used part of `google/protobuf/descriptor.proto`.

#[derive(Clone, PartialEq, Message)]
struct FileDescriptorSet {
    #[prost(message, repeated, tag = "1")]
    file: Vec<File>,
}

#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "6")]
    service: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    method: Vec<Method>,
}

#[derive(Clone, PartialEq, Message)]
struct Method {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "4")]
    options: Option<Options>,
}

#[derive(Clone, PartialEq, Message)]
struct Options {
    /// 1: NO_SIDE_EFFECTS; 2: IDEMPOTENT.
    #[prost(int32, tag = "34")]
    idempotency_level: i32,
}

impl Method {
    fn is_idempotent(&self) -> bool {
        let level = self
            .options
            .as_ref()
            .map(|options| options.idempotency_level);
        matches!(level, Some(1 | 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_stops_at_half_and_comes_back_with_replies() {
        let mut budget = Budget::default();
        let granted = (0..100).take_while(|_| budget.failed()).count();
        assert_eq!(granted as u32, RETRY_TOKENS / 2 - 1);
        for _ in 0..RETRY_TOKENS {
            assert!(!budget.failed());
        }
        for _ in 0..RETRY_TOKENS * PARTS / 2 + PARTS {
            budget.succeeded();
        }
        assert!(!budget.failed(), "exactly half");
        for _ in 0..2 * PARTS {
            budget.succeeded();
        }
        assert!(budget.failed());
        for _ in 0..1000 {
            budget.succeeded();
        }
        assert_eq!(budget.0, RETRY_TOKENS * PARTS);
    }

    #[test]
    fn attempts_end_and_wait_at_least_as_long_as_the_server_asks() {
        let mut attempts = Attempts::default();
        let pause = attempts.next(2, None);
        assert!(
            pause.is_some_and(|pause| pause <= RETRY_PAUSE.0),
            "{pause:?}"
        );
        let asked = Duration::from_secs(9);
        assert_eq!(attempts.next(2, Some(asked)), Some(asked));
        assert_eq!(attempts.next(2, None), None);
        assert_eq!(Attempts::default().next(0, None), None);
    }

    #[test]
    fn methods_are_those_of_the_service_that_are_marked() {
        let method = |name: &str, level| Method {
            name: name.to_owned(),
            options: Some(Options {
                idempotency_level: level,
            }),
        };
        let service = |name: &str, method| Service {
            name: name.to_owned(),
            method,
        };
        let file = |package: &str, service| File {
            package: package.to_owned(),
            service,
        };
        let marked = vec![method("Read", 1), method("Put", 2), method("Add", 0)];
        let set = FileDescriptorSet {
            file: vec![
                file("a", vec![service("S", vec![method("Other", 1)])]),
                file("a.b", vec![service("S", marked), service("T", vec![])]),
                file("", vec![service("S", vec![method("Bare", 2)])]),
            ],
        };
        let set = set.encode_to_vec();
        let named = |service: &str| {
            let mut names: Vec<_> = idempotent_methods(&set, service).into_iter().collect();
            names.sort();
            names
        };
        assert_eq!(named("a.b.S"), ["Put", "Read"]);
        assert_eq!(named("a.S"), ["Other"]);
        assert_eq!(named("S"), ["Bare"]);
        assert!(named("a.b.T").is_empty() && named("b.S").is_empty());
        assert!(idempotent_methods(b"\xff\xff", "S").is_empty());
    }
}
