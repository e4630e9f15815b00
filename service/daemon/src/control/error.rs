//! Errors that keep a daemon from starting, or stop it.

/// Why a daemon doesn't start, or stops: a sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DaemonError(pub(super) String);

pub(super) fn confined(why: String) -> DaemonError {
    failed("this process can't be confined")(&why)
}

pub(super) fn failed(doing: &str) -> impl Fn(&dyn std::fmt::Display) -> DaemonError + '_ {
    move |error| DaemonError(format!("{doing}: {error}"))
}
