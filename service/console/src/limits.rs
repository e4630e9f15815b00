//! The console's limits, with the reason for each.

use std::time::Duration;

/// Unused links. An operator that may request one could do worse than fill this.
pub const MAX_INVITATIONS: usize = 32;
/// Unused links that tenants leave to operators.
pub const OPERATORS_INVITATIONS: usize = 8;
/// Unused links of one tenant's principals.
pub const INVITATIONS_PER_TENANT: usize = 4;

/// The lifetime of a link: enough to copy it from a terminal.
pub const INVITATION_LASTS: Duration = Duration::from_secs(60);

/// Sessions at once. Each visible page costs the daemon one report per second.
pub const MAX_SESSIONS: usize = 64;
/// Sessions that tenants leave to operators.
pub const OPERATORS_SESSIONS: usize = 16;
/// Sessions of one tenant's principals.
pub const SESSIONS_PER_TENANT: usize = 4;

/// The maximum duration of a session.
pub const SESSION_LASTS: Duration = Duration::from_secs(4 * 3_600);

/// The maximum idle time of a session, in which its page is hidden or closed.
pub const SESSION_IDLE: Duration = Duration::from_secs(15 * 60);

/// Connections at once, each with one request. A further connection replaces the oldest that isn't
/// authenticated. A browser opens six.
pub const MAX_CONNECTIONS: usize = 32;

/// The time limit for a request's head, and again for its body.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for a whole connection: a policy change may compile a policy.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);

/// The size of a request's head in bytes: hyper's minimum is 8 KiB.
pub const MAX_HEAD_BYTES: usize = 16 << 10;

/// The size of a request's body in bytes: an action names a policy and a place, with some hundred
/// bytes per name. A token is shorter.
pub const MAX_BODY_BYTES: usize = 8 << 10;
