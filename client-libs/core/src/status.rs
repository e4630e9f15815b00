//! How a call ended when it didn't succeed.

use std::fmt;

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::MetadataError;

/// A code (gRPC's numbers) and one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Never [`Code::OK`] in an `Err`.
    pub code: Code,
    /// One sentence; may be empty.
    pub message: String,
}

impl Status {
    /// A status of this code.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status {
            code,
            message: message.into(),
        }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The sentence; may be empty.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The connection to the daemon is gone, or never came to be.
    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::new(Code::UNAVAILABLE, message)
    }

    /// A limit is reached.
    pub fn resource_exhausted(message: impl Into<String>) -> Status {
        Status::new(Code::RESOURCE_EXHAUSTED, message)
    }
}

/// What can't become metadata is the fault of whoever gave it.
impl From<MetadataError> for Status {
    fn from(error: MetadataError) -> Status {
        Status::new(Code::INVALID_ARGUMENT, error.to_string())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Status {}
