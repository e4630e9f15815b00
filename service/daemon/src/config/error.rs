//! Why a configuration is rejected.

use std::borrow::Cow;
use std::path::PathBuf;

use tollgate_shm_abi::status::Code;
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
    /// A file with a secret isn't there. The message doesn't contain its path, which may be the
    /// secret itself.
    #[error(
        "{setting}: {error}; its value isn't shown because it may be the secret: it takes the path of a file"
    )]
    SecretUnreadable {
        /// The setting.
        setting: &'static str,
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

/// Whether a file wasn't found, so that its path may be something else: a secret, if the setting
/// takes the path of a file with one. Errors don't show it.
pub(crate) fn is_no_path(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(
        error.kind(),
        NotFound | InvalidFilename | InvalidInput | NotADirectory
    )
}

/// The lines that show a fault, without the value of a key that may be a secret: `psk_file` and
/// `headers_file` take paths, and who mistakes one for the other, or misspells it, writes a secret
/// there.
pub(super) fn without_secrets(shown: &str) -> String {
    let is_secret = |key: &str| {
        ["psk", "header", "key", "secret", "token"]
            .iter()
            .any(|word| key.contains(word))
    };
    let mut lines = shown.lines();
    let [Some(margin), Some(line), Some(carets)] = [lines.next(), lines.next(), lines.next()]
    else {
        return String::new();
    };
    match line.split_once('=') {
        Some((before, _)) if is_secret(&before.to_ascii_lowercase()) => {
            let key = carets.chars().take(before.chars().count());
            let carets: String = key.collect();
            format!("{margin}\n{before}= (hidden)\n{carets}")
                .trim_end()
                .to_owned()
        }
        _ => shown.to_owned(),
    }
}

impl ConfigError {
    /// The kind of fault: whether the file is missing, may not be read, or is wrong.
    pub fn code(&self) -> Code {
        match self {
            ConfigError::Unreadable { error, .. } | ConfigError::SecretUnreadable { error, .. } => {
                code_of_file(error)
            }
            _ => Code::INVALID_ARGUMENT,
        }
    }

    /// The lines of the file that contain the fault.
    pub fn shown(&self) -> Option<&str> {
        match self {
            ConfigError::Malformed { shown, .. } => Some(shown),
            _ => None,
        }
    }
}

/// The status for a file that can't be read.
pub(crate) fn code_of_file(error: &std::io::Error) -> Code {
    match error.kind() {
        std::io::ErrorKind::NotFound => Code::NOT_FOUND,
        std::io::ErrorKind::PermissionDenied => Code::PERMISSION_DENIED,
        _ => Code::INVALID_ARGUMENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        let shown = |line: &str| without_secrets(&format!("  |\n7 | {line}\n  | ^^^^^^^^^^^^^^^^"));
        for line in [
            "psk = \"MvssP8EZ\"",
            "psk_fil = \"MvssP8EZ\"",
            "headers_file = [\"MvssP8EZ\"]",
        ] {
            let text = shown(line);
            assert!(
                !text.contains("MvssP8EZ") && text.contains("= (hidden)"),
                "{text}"
            );
        }
        assert!(shown("spin_us = \"5\"").contains("\"5\""));
    }
}
