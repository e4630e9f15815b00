//! Calls between applications and the engine: submissions, evaluation, conversion, deliveries.

pub(crate) mod binding;
pub(crate) mod conversion;
pub(crate) mod deliveries;
pub(crate) mod evaluating;
pub(crate) mod memory;
pub(crate) mod services;
pub(crate) mod sessions;
pub mod steering;
pub(crate) mod streams;
pub(crate) mod table;
