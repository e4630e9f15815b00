//! Administration: requests on the control socket, and those of the API.
//!
//! ```text
//!   connection ─▶ admin.rs ─┬─▶ report.rs, explain.rs, replay.rs: questions
//!                           ├─▶ console.rs: invitations to the web console
//!                           └─▶ settings.rs, approvals.rs, ceilings.rs, ending.rs, pushing.rs,
//!                               policies::lifecycle, placement, desired/: changes
//! ```
//!
//! Invariant: only root, the daemon's own user and requests that the API has authorized get here,
//! and the audit log records each change.

pub(super) mod admin;
pub(super) mod approvals;
pub(super) mod ceilings;
pub(super) mod console;
pub(super) mod desired;
pub(super) mod ending;
mod explain;
mod pushing;
mod replay;
pub(super) mod report;
pub(super) mod settings;
pub(super) mod usage;
pub(super) mod visitor;
