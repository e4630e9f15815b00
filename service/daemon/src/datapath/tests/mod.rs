//! Policies on a runtime without its rings and links: real modules, real messages, every chain.

#![allow(clippy::unwrap_used)]

mod chains;
mod life;
mod parked;
mod puppet;
