//! Serves operators: requests on the control socket, and the web console.
//!
//! ```text
//!   connection ─▶ admin.rs ─┬─▶ report.rs, explain.rs, replay.rs: questions
//!   browser ─▶ console.rs ──┤
//!                           └─▶ settings.rs, approvals.rs, ceilings.rs, ending.rs, policies::lifecycle, placement: changes
//! ```
//!
//! Invariant: only root and the daemon's own user get here, and the audit log records each change.

pub(super) mod admin;
pub(super) mod approvals;
pub(super) mod ceilings;
pub(super) mod console;
pub(super) mod ending;
mod explain;
mod replay;
pub(super) mod report;
pub(super) mod settings;
pub(super) mod usage;
