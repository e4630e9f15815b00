//! What a runtime notes about calls: durations, traces, records.

pub mod durations;
pub(crate) mod record;
pub(crate) mod traces;
