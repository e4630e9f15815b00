//! Desired state in files: `tollgate apply` and `tollgate export`.
//!
//! ```text
//!   model.rs   what a file may say, and its JSON schema
//!      ├── read.rs ── order.rs ── apply.rs     files ─▶ one order for the daemon ─▶ what changes
//!      └── export.rs                           what the daemon has ─▶ the same files
//! ```

mod apply;
mod args;
mod export;
mod model;
mod order;
mod read;

pub(crate) use apply::apply;
pub(crate) use args::{Apply, Export};
pub(crate) use export::export;
