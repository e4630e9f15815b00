//! Policies in force: modules, versions, attachments, and their processes.
//!
//! ```text
//!   lifecycle/ changes live_policies.rs (attachments.rs) ─▶ a chain per method ─▶ the runtimes
//!   modules.rs: origin.rs ─▶ compile.rs ─▶ a version (model.rs)
//!   ceilings.rs: what an operator lets a tenant have
//!   given.rs: a schema to check a version against
//!   isolated.rs, processes.rs, child_user.rs: processes of isolated policies
//!   misfits.rs: bindings that an attachment doesn't fit
//! ```
//!
//! Invariant: a change is complete on every runtime, or it isn't made.

pub(super) mod attachment_index;
pub(super) mod attachments;
pub(super) mod ceilings;
pub(super) mod child_user;
pub(super) mod compile;
pub(super) mod given;
mod input_cache;
pub(super) mod isolated;
pub(super) mod lifecycle;
pub(super) mod live_policies;
mod misfits;
pub(super) mod model;
pub(super) mod modules;
pub(super) mod origin;
pub(super) mod processes;
