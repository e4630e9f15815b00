//! Why a configuration is refused.

use std::path::PathBuf;

use tollgate_telemetry::export::EndpointError;
use tollgate_telemetry::headers::HeadersError;

/// Why a configuration is refused: names the setting and its value.
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
    /// The file isn't a configuration.
    #[error("{path}, line {line}, column {column}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it.
        line: usize,
        /// Where in that line.
        column: usize,
        /// The parser's sentence.
        message: String,
        /// The line, with a caret below.
        shown: String,
    },
    /// A collector's endpoint is none.
    #[error("telemetry: {0}")]
    Endpoint(#[from] EndpointError),
    /// A file is longer than what it should have.
    #[error("{path}: more than {most} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What it may have.
        most: usize,
    },
    /// A collector's headers are none. Says nothing of what they are.
    #[error("{path}: {error}")]
    Headers {
        /// Their file.
        path: PathBuf,
        /// What is wrong with it.
        error: HeadersError,
    },
    /// Who may have signed a collector's certificate can't be told.
    #[error("{path}: {error}")]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// What is wrong with it.
        error: EndpointError,
    },
    /// A value is out of its range.
    #[error("{setting} = {value}: {expected}")]
    OutOfRange {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

impl ConfigError {
    /// The lines of the file that show what is wrong.
    pub fn shown(&self) -> Option<&str> {
        match self {
            ConfigError::Malformed { shown, .. } => Some(shown),
            _ => None,
        }
    }
}
