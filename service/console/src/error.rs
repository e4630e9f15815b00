//! The console's errors: refused invitations and sign-ins.

use crate::limits::{INVITATIONS_PER_TENANT, MAX_INVITATIONS, MAX_SESSIONS, SESSIONS_PER_TENANT};

/// The reason for a refused invitation or sign-in.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// Another link would exceed the limit.
    #[error(
        "{MAX_INVITATIONS} links to the console are unused, which is the limit: each expires after 60 s"
    )]
    Invitations,
    /// The tenant has as many links as one tenant may.
    #[error(
        "{INVITATIONS_PER_TENANT} links to the console of this tenant are unused, which is the limit: each expires after 60 s"
    )]
    TenantsInvitations,

    /// The link or token is valid, but the sessions are at their limit.
    #[error(
        "{MAX_SESSIONS} people are signed in to the console, which is the limit: one of them must sign out first"
    )]
    Sessions,
    /// The link or token is valid, but the tenant's sessions are at their limit.
    #[error(
        "{SESSIONS_PER_TENANT} people of this tenant are signed in to the console, which is the limit: one of them must sign out first, or leave its page for 15 minutes"
    )]
    TenantsSessions,
    /// The link is unknown, was used before, or has expired.
    #[error(
        "this link is no longer valid: each works once, within 60 s; `tollgate console` prints another"
    )]
    Uninvited,
    /// The kernel returned an error.
    #[error("the kernel has no random bytes for a secret: {0}")]
    Random(String),
}
