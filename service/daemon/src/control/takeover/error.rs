//! Errors that keep a successor from taking over.

use tollgate_control::StoreError;

use crate::control::takeover::protocol::{ARGUMENT, FORMAT, TransferError};

/// Why a successor doesn't take over. It ends, and its predecessor continues.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum TakeOverError {
    #[error("{ARGUMENT} is only for successors that a running daemon starts: {0}")]
    NoOffer(String),
    #[error(
        "the running daemon (version {version}) hands over in format {format}, but this one (version {}) needs format {FORMAT}: restart it",
        env!("CARGO_PKG_VERSION")
    )]
    Format { version: String, format: u32 },
    #[error(
        "the configuration has another {what} ({configured}) than the running daemon ({running}): that needs a restart"
    )]
    Differs {
        what: &'static str,
        configured: String,
        running: String,
    },
    #[error("the state can't be taken over: {0}")]
    State(#[source] StoreError),
    #[error("some stored policies couldn't be put in force; the log says which")]
    Policies,
    #[error("a schema can't be taken over: {0}")]
    Schema(#[source] TransferError),
    #[error("the datapath can't be taken over: {0}")]
    Datapath(#[source] TransferError),
    #[error("the predecessor {0}")]
    Predecessor(&'static str),
}
