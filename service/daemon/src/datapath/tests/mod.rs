//! Policies on a runtime without its rings and links: real modules, real messages, every chain. And rings and links without policies
//! (`turns.rs`).

#![allow(clippy::unwrap_used)]

mod chains;
mod life;
mod parked;
mod puppet;
mod turns;
