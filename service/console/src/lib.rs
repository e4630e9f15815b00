//! The web console: a page, served by the daemon itself, that shows its state to signed-in users.
//!
//! ```text
//!  administrator's socket ─ invite ─▶ link, for a minute, once ─▶ browser: page (assets.rs) ─ POST /api/session ─▶ secret of a session
//!                                       sessions.rs, secret.rs                              ─ GET /api/state, POST /api/act ─▶ Source: the daemon
//! ```
//!
//! Invariants: a client that isn't signed in learns only that the console exists. Hosts run
//! processes of untrusted tenants, so loopback is no protection. The console listens from the first
//! invitation until the last session ends, and costs nothing at other times. A viewer can't change
//! anything.
//!
//! Absent on purpose: cookies, because browsers send them to every port of a host, even to one on
//! which a tenant's process listens. The page keeps the session's secret in its own storage and
//! adds it to its requests, so another page can't make the browser do anything (CSRF). TLS: remote
//! access uses `ssh -L`. Views for single tenants. Connections of clients that aren't signed in
//! give way to others.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod assets;
mod error;
mod http;
pub mod limits;
mod secret;
mod sessions;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use crate::sessions::{Guest, Sessions};

pub use crate::error::ConsoleError;
pub use crate::http::serve;
pub use crate::sessions::Role;

/// The source of the console's data and actions.
pub trait Source: 'static {
    /// The person recorded as the author of changes.
    type Who: Clone + 'static;

    /// The complete current state.
    fn state(&self) -> impl Future<Output = Result<Value, Refusal>>;

    /// Changes something, even if the client no longer waits for the answer.
    fn act(&self, who: Self::Who, action: Action) -> impl Future<Output = Result<(), Refusal>>;
}

/// The reason for a failed request: a message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// An operator's action on an attached policy.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The step.
    pub step: Step,
    /// The policy's name, for all versions.
    pub policy: String,
    /// `tenant`, `provider-pre` or `provider-post`.
    pub party: String,
    /// The tenant whose calls the policy sees; `None`: all tenants, for a provider's policy.
    pub tenant: Option<String>,
    /// The service's full name; `None`: any service.
    pub service: Option<String>,
    /// The method's name; `None`: any method.
    pub method: Option<String>,
    /// `client` or `server`.
    pub side: String,
}

/// A step in a policy's life cycle.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The candidate takes over the decisions.
    Promote,
    /// The trial ends, or the previous version decides again.
    Rollback,
    /// Ends the quarantine.
    Release,
    /// The policy no longer evaluates calls.
    Detach,
}

/// The console's sessions and its address.
pub struct Console<W> {
    sessions: RefCell<Sessions<W>>,
    listening: Cell<Option<SocketAddr>>,
    /// Notified after an invitation or the end of a session.
    changed: Notify,
}

impl<W> Default for Console<W> {
    fn default() -> Self {
        Console {
            sessions: RefCell::default(),
            listening: Cell::new(None),
            changed: Notify::new(),
        }
    }
}

impl<W: Clone> Console<W> {
    /// The current address; `None`: no user is invited or signed in.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listening.get()
    }

    /// Returns the fragment of a link. The first invitation also starts the server.
    ///
    /// # Errors
    /// Too many links are unused.
    pub fn invite(&self, who: W, role: Role) -> Result<String, ConsoleError> {
        let mut sessions = self.sessions.borrow_mut();
        let secret = sessions.invite(Instant::now(), Guest { who, role })?;
        self.changed.notify_one();
        Ok(secret)
    }
}
