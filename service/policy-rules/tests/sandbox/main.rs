//! Compiled rules in the sandbox that daemons have.

#![allow(clippy::unwrap_used)]

mod bed;
mod effects;
mod errors;
mod expressions;
mod hostile;
mod shape;
