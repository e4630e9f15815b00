//! Errors of both sides of a hand-over.

use std::{fmt, io};

use tollgate_engine::{CallKey, SessionId, Status, Unportable};
use tollgate_policy_chain::ids::AttachmentId;
use tollgate_policy_chain::plan::ChangeError;

use crate::limits::HAND_OVER_TIMEOUT;

/// Why a runtime isn't handed over. It continues.
#[derive(Debug)]
pub enum LeaveError {
    /// The deadline has passed.
    TooSlow,
    /// The engine can't be handed over.
    Unportable(Unportable),
    /// The process has no descriptors left.
    NoDescriptors(io::Error),
    /// A bug: the state has no JSON form.
    State(serde_json::Error),
}

impl fmt::Display for LeaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaveError::TooSlow => write!(
                f,
                "its sessions take longer than {HAND_OVER_TIMEOUT:?} to hand over"
            ),
            LeaveError::Unportable(error) => error.fmt(f),
            LeaveError::NoDescriptors(error) => write!(f, "no descriptors are left: {error}"),
            LeaveError::State(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LeaveError {}

/// The cause of an error in one session or link.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The mistake in another process's state.
#[derive(Debug)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum ResumeError {
    Unreadable(serde_json::Error),
    Unportable(Unportable),
    NoSchema([u8; 32]),
    Keys(&'static str),
    NoPolicyState { id: AttachmentId },
    Policies(ChangeError),
    Session { session: SessionId, why: Cause },
    Link { address: String, why: Cause },
    NoSocket { address: String },
    UnknownCall(CallKey),
    NotParked(CallKey),
    NoRoom(Status),
    Bindings,
    Chains { had: usize, have: usize },
}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResumeError::Unreadable(error) => write!(f, "the state can't be read: {error}"),
            ResumeError::Unportable(error) => error.fmt(f),
            ResumeError::NoSchema(hash) => {
                write!(f, "no schema was handed over with hash {:02x?}", &hash[..4])
            }
            ResumeError::Keys(what) => {
                write!(f, "the keys of the {what} are missing or duplicate")
            }
            ResumeError::NoPolicyState { id } => write!(f, "the state of policy {id} is missing"),
            ResumeError::Policies(error) => error.fmt(f),
            ResumeError::Session { session, why } => write!(f, "session {}: {why}", session.0),
            ResumeError::Link { address, why } => write!(f, "the link with {address}: {why}"),
            ResumeError::NoSocket { address } => {
                write!(f, "the link with {address} has no socket")
            }
            ResumeError::UnknownCall(call) => write!(
                f,
                "call {} is parked in a chain, but the engine doesn't know it",
                call.to_wire()
            ),
            ResumeError::NotParked(call) => write!(
                f,
                "call {} is with a chain, but isn't parked there",
                call.to_wire()
            ),
            ResumeError::NoRoom(status) => f.write_str(&status.message),
            ResumeError::Bindings => f.write_str("there are more bindings than a runtime can have"),
            ResumeError::Chains { had, have } => {
                write!(
                    f,
                    "{had} methods had chains before the hand-over, {have} have chains now"
                )
            }
        }
    }
}

impl std::error::Error for ResumeError {}
