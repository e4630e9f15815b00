//! Compiled rules in the sandbox that daemons have.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod bed;
mod cel_spec;
mod cost;
mod differential;
mod effects;
mod errors;
mod expressions;
mod hostile;
mod rates;
mod shape;
mod validation;
