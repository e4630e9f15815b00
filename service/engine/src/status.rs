//! The statuses of ended calls, and the verdicts of chains.

use std::borrow::Cow;

use tollgate_shm_abi::status::Code;

use crate::ids::ServiceId;

/// How a call ended without a reply: what its caller reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// gRPC's code; OK only of a call that had responses.
    pub code: Code,
    /// One sentence that names the culprit.
    pub message: Cow<'static, str>,
    /// When to try again, in milliseconds; 0 if that is unknown.
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

    /// The same, saying when to try again; 0: that is unknown.
    #[must_use]
    pub fn with_retry_after_ms(self, retry_after_ms: u32) -> Self {
        Self {
            retry_after_ms,
            ..self
        }
    }
}

/// A call that has ended, for whoever keeps count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The method handle that an application called; 0 for a peer's call.
    pub handle: u32,
    /// What was called, if it has come as far as to a service of this host.
    pub served: Option<(ServiceId, u16)>,
    /// When it came; 0: that isn't known, or it was nothing that could be called.
    pub began_ns: u64,
    /// When it was [handed](crate::Engine::delivered) to a server of this host; 0: never.
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
