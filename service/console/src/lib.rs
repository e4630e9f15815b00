//! The web console: a page, served by the daemon itself, that shows its state to signed-in users.
//!
//! ```text
//!  `tollgate console` ─ invite ─▶ link, for a minute, once ─┐
//!  the page's form ─ a tenant's token ─▶ Source::sign_in ───┴▶ POST /api/session ─▶ secret of a session
//!                                       sessions.rs, secret.rs  ─ GET /api/state, POST /api/act ─▶ Source: the daemon
//! ```
//!
//! Invariants: a client that isn't signed in learns only that the console exists. Hosts run
//! processes of untrusted tenants, so loopback is no protection. Unless it is told to stay, the
//! console listens from the first invitation until the last session ends, and costs nothing at
//! other times. A viewer can't change anything. Each request asks the source first whether its
//! guest may still be here. What a guest sees and does is the source's to decide.
//!
//! Absent on purpose: cookies, because browsers send them to every port of a host, even to one on
//! which a tenant's process listens. The page keeps the session's secret in its own storage and
//! adds it to its requests, so another page can't make the browser do anything (CSRF). TLS: remote
//! access uses `ssh -L`, and tokens are taken on loopback only. Connections of clients that aren't
//! signed in give way to others.

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
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::sessions::Sessions;

pub use crate::error::ConsoleError;
pub use crate::http::serve;
pub use crate::sessions::{Guest, Role};

/// The source of the console's data and actions.
pub trait Source: 'static {
    /// The person recorded as the author of changes.
    type Who: Clone + 'static;

    /// The bearer of a token.
    fn sign_in(&self, token: &str) -> impl Future<Output = Result<Guest<Self::Who>, Refusal>>;

    /// Checks that a guest may still be here, before each of its requests.
    ///
    /// # Errors
    /// [`Refusal::Over`]: it may not. Its session ends.
    fn check(&self, who: &Self::Who) -> Result<(), Refusal>;

    /// The current state: of the daemon, or of one tenant.
    fn state(
        &self,
        who: Self::Who,
        tenant: Option<String>,
    ) -> impl Future<Output = Result<Value, Refusal>>;

    /// Changes something, even if the client no longer waits for the answer.
    fn act(&self, who: Self::Who, action: Action) -> impl Future<Output = Result<(), Refusal>>;
}

/// The reason for a failed request, with a message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The token is wrong, or has ended: the guest's session is over.
    Over(String),
    /// The guest may not do this.
    Forbidden(String),
    /// Anything else.
    Failed(String),
}

/// An action on an attached policy.
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
    /// A listener that isn't served yet.
    door: Cell<Option<TcpListener>>,
    /// Notified when there is one.
    opened: Notify,
    /// Notified after an invitation or the end of a session.
    changed: Notify,
}

impl<W> Default for Console<W> {
    fn default() -> Self {
        Console {
            sessions: RefCell::default(),
            listening: Cell::new(None),
            door: Cell::new(None),
            opened: Notify::new(),
            changed: Notify::new(),
        }
    }
}

impl<W: Clone> Console<W> {
    /// The current address; `None`: no user is invited or signed in.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listening.get()
    }

    /// Listens from now on; [`serve`] serves the listener.
    ///
    /// # Errors
    /// The listener can't be watched.
    pub fn open(&self, listener: std::net::TcpListener) -> std::io::Result<SocketAddr> {
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        self.door.set(Some(TcpListener::from_std(listener)?));
        self.listening.set(Some(at));
        self.opened.notify_one();
        Ok(at)
    }

    /// Returns the fragment of a link.
    ///
    /// # Errors
    /// Too many links are unused.
    pub fn invite(&self, guest: Guest<W>) -> Result<String, ConsoleError> {
        let mut sessions = self.sessions.borrow_mut();
        let secret = sessions.invite(Instant::now(), guest)?;
        self.changed.notify_one();
        Ok(secret)
    }

    /// Ends the links and sessions of guests that may no longer be here.
    pub fn keep(&self, stays: impl Fn(&W) -> bool) {
        self.sessions.borrow_mut().keep(stays);
        self.changed.notify_one();
    }
}
