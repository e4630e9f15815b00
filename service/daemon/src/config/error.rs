//! Why a configuration is rejected.

use std::borrow::Cow;
use std::path::PathBuf;

use tollgate_telemetry::export::EndpointError;
use tollgate_telemetry::headers::HeadersError;

/// Why a configuration is rejected: names the setting and its value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The file isn't a valid configuration.
    #[error("{path}, line {line}, column {column}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line number.
        line: usize,
        /// The column number.
        column: usize,
        /// The parser's message.
        message: String,
        /// The line, with a caret below.
        shown: String,
    },
    /// A collector's endpoint is invalid.
    #[error("telemetry: {0}")]
    Endpoint(#[from] EndpointError),
    /// A file exceeds its size limit.
    #[error("{path}: more than {most} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        most: usize,
    },
    /// A collector's headers are invalid. The message doesn't contain the headers.
    #[error("{path}: {error}")]
    Headers {
        /// The file with the headers.
        path: PathBuf,
        /// The fault in it.
        error: HeadersError,
    },
    /// A collector's certificate authorities can't be read.
    #[error("{path}: {error}")]
    Authorities {
        /// The file with the certificates.
        path: PathBuf,
        /// The fault in it.
        error: EndpointError,
    },
    /// A value is out of its range.
    #[error("{setting} = {value}: {expected}")]
    OutOfRange {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The accepted values.
        expected: Cow<'static, str>,
    },
}

impl ConfigError {
    /// The lines of the file that contain the fault.
    pub fn shown(&self) -> Option<&str> {
        match self {
            ConfigError::Malformed { shown, .. } => Some(shown),
            _ => None,
        }
    }
}
