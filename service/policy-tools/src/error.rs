//! Errors of the policy tools. A failed case isn't an error but a result.

use std::path::PathBuf;

use tollgate_policy_host::LoadError;

/// Why a tool can't continue. The author of the named file, or of the policy, is to blame.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A file can't be read.
    #[error("{} can't be read: {reason}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The kind of the system's error.
        kind: std::io::ErrorKind,
        /// The system's error.
        reason: String,
    },
    /// The file of cases is invalid as a whole.
    #[error("the cases: {reason}")]
    Cases {
        /// The field and what is wrong with it.
        reason: String,
    },
    /// One case is invalid.
    #[error("case {number} ({name:?}): {reason}")]
    Case {
        /// Its place in the file, from 1.
        number: usize,
        /// Its name.
        name: String,
        /// The field and what is wrong with it.
        reason: String,
    },
    /// The policy can't be loaded, or can't be set up with this configuration and these grants.
    #[error("the policy: {0}")]
    Policy(#[from] LoadError),
    /// The policy doesn't fit the schema, or the schema can't be loaded.
    #[error("the schema: {reason}")]
    Schema {
        /// What is wrong with it.
        reason: String,
    },
    /// A failure of this machine or of this program.
    #[error("{reason}")]
    Internal {
        /// The failure.
        reason: String,
    },
}

impl ToolError {
    /// For `map_err`.
    pub(crate) fn schema(reason: impl std::fmt::Display) -> ToolError {
        ToolError::Schema {
            reason: reason.to_string(),
        }
    }

    /// For `map_err`.
    pub(crate) fn internal(reason: impl std::fmt::Display) -> ToolError {
        ToolError::Internal {
            reason: reason.to_string(),
        }
    }
}
