//! The statuses of ended calls, and the verdicts of chains.

use std::borrow::Cow;

use tollgate_shm_abi::status::Code;

use crate::ids::ServiceId;

/// The end of a call without a reply, as its caller reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The gRPC code; OK only for a call that had responses.
    pub code: Code,
    /// One sentence that names the cause.
    pub message: Cow<'static, str>,
    /// Retry time in milliseconds; 0 if unknown.
    pub retry_after_ms: u32,
    /// A checked block of metadata, from the server; empty for none.
    pub trailers: Vec<u8>,
}

impl Status {
    /// A status with a fixed or formatted message.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after_ms: 0,
            trailers: Vec::new(),
        }
    }

    /// The same, with trailers: a checked block of metadata, or none.
    #[must_use]
    pub fn with_trailers(self, trailers: Vec<u8>) -> Self {
        Self { trailers, ..self }
    }

    /// The same, with a retry time; 0: unknown.
    #[must_use]
    pub fn with_retry_after_ms(self, retry_after_ms: u32) -> Self {
        Self {
            retry_after_ms,
            ..self
        }
    }
}

/// A call that has ended, for counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The method handle that an application called; 0 for a peer's call.
    pub handle: u32,
    /// The service and method, if the call reached a service of this host.
    pub served: Option<(ServiceId, u16)>,
    /// The time of its arrival; 0: unknown, or it wasn't a valid call.
    pub began_ns: u64,
    /// The time of its [delivery](crate::Engine::delivered) to a server of this host; 0: never.
    pub delivered_ns: u64,
}

/// A chain's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Allow,
    /// The caller gets this status.
    Deny(Status),
}
