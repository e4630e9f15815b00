//! Runtimes, and the tenants on them.
//!
//! ```text
//!   runtimes.rs: starts runtimes        running.rs: their handles and threads, commands
//!   resizing.rs: changes their number
//!   homes.rs: each tenant's runtime     placing.rs: moves tenants
//! ```
//!
//! Invariant: a tenant has one runtime. Its calls survive a move and a change of the number.

pub(super) mod homes;
pub(super) mod placing;
pub(super) mod resizing;
pub(super) mod running;
pub(super) mod runtimes;
