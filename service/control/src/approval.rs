//! Changes of tenants that wait for an operator, and what became of them.
//!
//! The store keeps a request as its asker made it: `what` to be shown, and `order` for the daemon,
//! which carries it out. Neither changes afterwards. `order` is dropped when the request is
//! decided.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::TokenDigest;

/// A request for an operator's approval.
#[derive(Clone, Debug, PartialEq)]
pub struct Approval {
    /// Whose policies it changes.
    pub tenant: String,
    /// Its number, from 1; a tenant's requests are numbered by themselves.
    pub number: u64,
    /// The tenant's credential that asked.
    pub credential: String,
    /// The token that asked: the request ends with it.
    pub token: TokenDigest,
    /// When it came.
    pub asked: SystemTime,
    /// Until when it can be approved.
    pub expires: SystemTime,
    /// What it would change, as a JSON object.
    pub what: Value,
    /// How the daemon carries it out; empty once it is decided.
    pub order: Vec<u8>,
    /// What became of it.
    pub state: ApprovalState,
    /// By whom and why; none while it waits.
    pub decision: Option<Decision>,
}

/// A request that somebody makes now.
#[derive(Clone, Debug)]
pub struct NewApproval {
    /// Whose policies it changes.
    pub tenant: String,
    /// The tenant's credential that asks.
    pub credential: String,
    /// Its token.
    pub token: TokenDigest,
    /// What it would change, as a JSON object.
    pub what: Value,
    /// How the daemon carries it out.
    pub order: Vec<u8>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApprovalState {
    /// Nobody has decided.
    Waiting,
    /// An operator approved it, and it was carried out.
    Approved,
    /// An operator denied it.
    Denied,
    /// The tenant withdrew it.
    Withdrawn,
    /// Nobody decided in time.
    Expired,
}

impl ApprovalState {
    /// `waiting`, `approved`, `denied`, `withdrawn` or `expired`.
    pub fn name(self) -> &'static str {
        match self {
            ApprovalState::Waiting => "waiting",
            ApprovalState::Approved => "approved",
            ApprovalState::Denied => "denied",
            ApprovalState::Withdrawn => "withdrawn",
            ApprovalState::Expired => "expired",
        }
    }
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When.
    pub at: SystemTime,
    /// By whom, in words for the tenant: the audit log has the user.
    pub by: String,
    /// Why, if an operator said so.
    pub reason: Option<String>,
}
