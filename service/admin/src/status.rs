//! Why a request failed, and secrets that are never printed.

use std::fmt;

use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::text;

use crate::limits::MAX_STATUS_BYTES;

/// Why a request failed.
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    /// gRPC's code.
    pub code: Code,
    /// One sentence that names the culprit and the value.
    pub message: String,
}

impl Status {
    /// A failure.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        let message = message.into();
        Status { code, message }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Status {}

/// A header has no room for a long message, and none for control characters.
impl From<Status> for tonic::Status {
    fn from(status: Status) -> tonic::Status {
        let mut message = text::escape(&status.message).to_string();
        if message.len() > MAX_STATUS_BYTES {
            let end = (0..=MAX_STATUS_BYTES).rev();
            let end = end.into_iter().find(|at| message.is_char_boundary(*at));
            message.truncate(end.unwrap_or(0));
            message.push_str("... (cut)");
        }
        tonic::Status::new(tonic::Code::from(status.code.0.cast_signed()), message)
    }
}

impl From<tonic::Status> for Status {
    fn from(status: tonic::Status) -> Status {
        let source = std::error::Error::source(&status);
        if let Some(lost) = source.filter(|error| error.is::<tonic::transport::Error>()) {
            return Status::new(Code::UNAVAILABLE, causes(lost));
        }
        let code = i32::from(status.code()).cast_unsigned();
        Status::new(Code(code), status.message())
    }
}

/// An error with its causes, in one sentence. A cause that it names already isn't repeated.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let its = error.to_string();
        if !text.contains(&its) {
            text += &format!(": {its}");
        }
        cause = error.source();
    }
    text
}

/// A token, which is never printed. The time of a comparison tells nothing but the length.
#[derive(Clone, Eq)]
pub struct Secret(String);

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        let (one, other) = (self.0.as_bytes(), other.0.as_bytes());
        let differ =
            |differ, (one, other): (&u8, &u8)| std::hint::black_box(differ | (one ^ other));
        one.len() == other.len() && one.iter().zip(other).fold(0, differ) == 0
    }
}

impl Secret {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Secret {
        Secret(token.into())
    }

    /// The token.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
