//! Every bound of the console, with what it protects.

use std::time::Duration;

/// Links that nobody has followed yet. Whoever may ask for one may do more than fill this.
pub const MAX_INVITATIONS: usize = 16;

/// How long a link can be followed: as long as it takes to copy it from a terminal.
pub const INVITATION_LASTS: Duration = Duration::from_secs(60);

/// Who is signed in at once. Each that looks costs the daemon a report a second.
pub const MAX_SESSIONS: usize = 16;

/// How long somebody stays signed in at most.
pub const SESSION_LASTS: Duration = Duration::from_secs(4 * 3_600);

/// How long somebody stays signed in whose page asks nothing: it is hidden, or closed.
pub const SESSION_IDLE: Duration = Duration::from_secs(15 * 60);

/// Connections at once, each with one request. One more takes the place of the oldest that hasn't proven that somebody was let in. A browser opens six.
pub const MAX_CONNECTIONS: usize = 32;

/// How long the head of a request may take, and then its body.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may take altogether: a change of policies may compile one.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);

/// Bytes of a request's head: hyper's least is 8 KiB.
pub const MAX_HEAD_BYTES: usize = 16 << 10;

/// Bytes of a request's body: an action names a policy and a place, whose names have some hundred bytes each.
pub const MAX_BODY_BYTES: usize = 8 << 10;
