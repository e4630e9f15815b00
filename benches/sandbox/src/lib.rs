//! Benchmarks of the sandbox alone, without a daemon: evaluations, host functions, and the life of
//! instances.
//!
//! [`evaluating`] lists the operations per call. `policy-bench` times them and
//! `policy-instructions` counts their instructions. [`guests`] makes the modules. This is a crate
//! of its own because CI builds it optimised to count instructions.

#![forbid(unsafe_code)]

pub mod evaluating;
pub mod guests;
