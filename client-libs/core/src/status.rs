//! How a failed call ended.

use std::fmt;
use std::time::Duration;

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::{MetadataBuf, MetadataError, STATUS_DETAILS};

/// A code (gRPC's numbers) and one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Never [`Code::OK`] in an `Err`.
    pub code: Code,
    /// One sentence; may be empty.
    pub message: String,
    /// The time after which a retry makes sense, if known: with RESOURCE_EXHAUSTED from an
    /// overloaded server (gRPC's `grpc-retry-pushback-ms`). It is sent in whole milliseconds,
    /// rounded up.
    pub retry_after: Option<Duration>,
    /// The server's trailers. The [`details`](Self::details) are a part of them.
    pub metadata: MetadataBuf,
}

impl Status {
    /// A status of this code.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status {
            code,
            message: message.into(),
            retry_after: None,
            metadata: MetadataBuf::new(),
        }
    }

    /// The same with details: a serialized `google.rpc.Status`.
    ///
    /// # Errors
    /// They don't fit into the metadata, which is at most 8 KiB.
    pub fn with_details(mut self, details: &[u8]) -> Result<Status, MetadataError> {
        self.metadata.remove(STATUS_DETAILS);
        self.metadata.push_any(STATUS_DETAILS, details)?;
        Ok(self)
    }

    /// The details of the error, a serialized `google.rpc.Status` by gRPC's convention; empty for
    /// none.
    pub fn details(&self) -> &[u8] {
        self.metadata.view().get(STATUS_DETAILS).unwrap_or_default()
    }

    /// The same, with the time after which to retry.
    #[must_use]
    pub fn with_retry_after(self, pause: Duration) -> Status {
        Status {
            retry_after: Some(pause),
            ..self
        }
    }

    /// The pause in the format of descriptors: at least 1 ms, and 0 if it isn't known.
    pub(crate) fn retry_after_ms(&self) -> u32 {
        self.retry_after.map_or(0, |pause| {
            let ms = pause.as_nanos().div_ceil(1_000_000).max(1);
            u32::try_from(ms).unwrap_or(u32::MAX)
        })
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The sentence; may be empty.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The connection to the daemon is gone, or was never established.
    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::new(Code::UNAVAILABLE, message)
    }

    /// A limit is reached.
    pub fn resource_exhausted(message: impl Into<String>) -> Status {
        Status::new(Code::RESOURCE_EXHAUSTED, message)
    }
}

/// Invalid metadata is the fault of the code that passed it.
impl From<MetadataError> for Status {
    fn from(error: MetadataError) -> Status {
        Status::new(Code::INVALID_ARGUMENT, error.to_string())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        match self.retry_after {
            Some(pause) => write!(f, " (try again in {pause:?})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Status {}
