//! Why a desk tool gives up. A case that fails is no error: it is a result.

use std::path::PathBuf;

use tollgate_policy_host::LoadError;

/// What stands in the way. The culprit is who wrote the file that is named, or the policy.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// A file can't be read.
    #[error("{} can't be read: {reason}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system says, as a kind.
        kind: std::io::ErrorKind,
        /// What the system says.
        reason: String,
    },
    /// The file of cases as a whole is wrong.
    #[error("the cases: {reason}")]
    Cases {
        /// The field and what is wrong with it.
        reason: String,
    },
    /// One case is wrong.
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
    /// This machine, or this program.
    #[error("{reason}")]
    Internal {
        /// What is wrong.
        reason: String,
    },
}

impl DeskError {
    /// For `map_err`.
    pub(crate) fn schema(reason: impl std::fmt::Display) -> DeskError {
        DeskError::Schema {
            reason: reason.to_string(),
        }
    }

    /// For `map_err`.
    pub(crate) fn internal(reason: impl std::fmt::Display) -> DeskError {
        DeskError::Internal {
            reason: reason.to_string(),
        }
    }
}
