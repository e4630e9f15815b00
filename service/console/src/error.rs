//! Why somebody isn't let in.

use crate::limits::{MAX_INVITATIONS, MAX_SESSIONS};

/// Why somebody isn't let in.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// Asked for by whoever administers.
    #[error(
        "{MAX_INVITATIONS} links to the console wait to be followed, which is the limit: each is good for a minute"
    )]
    Invitations,
    /// A good link, and no place.
    #[error(
        "{MAX_SESSIONS} people are signed in to the console, which is the limit: one of them has to sign out"
    )]
    Sessions,
    /// A stranger, a link that was followed before, or one that is older than a minute.
    #[error(
        "this link is over: each works once, and for a minute; `tollgate console` prints another"
    )]
    Uninvited,
    /// The kernel has none.
    #[error("there is no randomness for a secret: {0}")]
    Random(String),
}
