//! Errors that keep a daemon from starting, or stop it.

use tollgate_policy_host::ConfineError;

/// Why a daemon doesn't start, or stops: a sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DaemonError(pub(super) String);

pub(super) fn confined(error: ConfineError) -> DaemonError {
    failed("this process can't be confined")(&error)
}

pub(super) fn failed(doing: &str) -> impl Fn(&dyn std::fmt::Display) -> DaemonError + '_ {
    move |error| DaemonError(format!("{doing}: {error}"))
}
