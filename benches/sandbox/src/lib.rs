//! What is measured of the sandbox by itself: judgements, host functions, and the life of instances, without a daemon.
//!
//! [`judging`] lists what happens per call, for those who time it (`policy-bench`) and for those who count its instructions
//! (`policy-instructions`); [`guests`] makes the modules. A crate of its own, since CI builds it optimised to count.

#![forbid(unsafe_code)]

pub mod guests;
pub mod judging;
