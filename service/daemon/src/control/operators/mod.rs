//! Administration: what the API's requests ask for.
//!
//! ```text
//!   crate::control::api ─┬─▶ report.rs, explain.rs, replay.rs, usage.rs: questions
//!                        ├─▶ console.rs: invitations to the web console
//!                        └─▶ settings.rs, approvals.rs, ceilings.rs, ending.rs, pushing.rs,
//!                            policies::lifecycle, placement, desired/: changes
//! ```
//!
//! Invariant: only requests that the API has authorized get here, and the audit log records each
//! change.

pub(super) mod approvals;
pub(super) mod ceilings;
pub(super) mod console;
pub(super) mod desired;
pub(super) mod ending;
pub(super) mod explain;
pub(super) mod pushing;
pub(super) mod replay;
pub(super) mod report;
pub(super) mod settings;
pub(super) mod usage;
pub(super) mod visitor;
