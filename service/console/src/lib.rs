//! The web console: what the daemon does, on a page that it serves itself, for whoever was let in.
//!
//! ```text
//!  administrator's socket ─ invite ─▶ link, for a minute, once ─▶ browser: page (assets.rs) ─ POST /api/session ─▶ secret of a session
//!                                       sessions.rs, secret.rs                              ─ GET /api/state, POST /api/act ─▶ Source: the daemon
//! ```
//!
//! Invariants: whoever only connects learns that there is a console, and nothing of the daemon's: hosts have untrusted tenants with processes of
//! their own, so loopback protects nothing. It listens from the first invitation until the last session is over, and costs nothing at other times.
//! Who was let in as a viewer changes nothing.
//!
//! Absent on purpose: cookies, since browsers send those to every port of a host, also to one that a tenant's process listens on: a session's secret is
//! in the page's own storage, and goes with requests that it makes itself, so there is nothing that another page could have the browser do (CSRF).
//! TLS: from elsewhere it is reached through `ssh -L`. Views for single tenants. Connections
//! of those who weren't let in give way.

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

/// What the console shows and does.
pub trait Source: 'static {
    /// Whom changes are recorded as being from.
    type Who: Clone + 'static;

    /// All that is shown, as it is now.
    fn state(&self) -> impl Future<Output = Result<Value, Refusal>>;

    /// Changes something, also if nobody waits for the answer any more.
    fn act(&self, who: Self::Who, action: Action) -> impl Future<Output = Result<(), Refusal>>;
}

/// Why something can't be shown or done: a sentence for whoever looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// What an operator does to a policy where it is attached.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// What.
    pub step: Step,
    /// The policy's name, whatever the version.
    pub policy: String,
    /// `tenant`, `provider-pre` or `provider-post`.
    pub party: String,
    /// Whose calls; none: everybody's, of a provider's policy.
    pub tenant: Option<String>,
    /// The service's full name; none: any.
    pub service: Option<String>,
    /// The method's name; none: any.
    pub method: Option<String>,
    /// `client` or `server`.
    pub side: String,
}

/// One step of a policy's life.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The candidate decides from now on.
    Promote,
    /// The trial ends, or what decided before decides again.
    Rollback,
    /// Out of its quarantine.
    Release,
    /// It judges no more.
    Detach,
}

/// Who may look, and where.
pub struct Console<W> {
    sessions: RefCell<Sessions<W>>,
    listening: Cell<Option<SocketAddr>>,
    /// Told when somebody was invited or has left.
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
    /// Where it listens now; none: nobody was invited or is signed in.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listening.get()
    }

    /// What the link's fragment is to be. Whoever invites first has it served, too.
    ///
    /// # Errors
    /// Too many wait to be followed.
    pub fn invite(&self, who: W, role: Role) -> Result<String, ConsoleError> {
        let mut sessions = self.sessions.borrow_mut();
        let secret = sessions.invite(Instant::now(), Guest { who, role })?;
        self.changed.notify_one();
        Ok(secret)
    }
}
