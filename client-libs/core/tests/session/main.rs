//! Sessions over real shared memory, against a daemon that lives in the test.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

mod fake;

mod calls;
mod drains;
mod ends;
mod pumped;
mod serving;
mod together;
mod upgrades;
