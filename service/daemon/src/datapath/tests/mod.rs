//! Policies on a runtime without its rings and links: real modules, real messages, every chain. And rings and links without policies
//! (`turns.rs`), also in another process (`handover.rs`).

#![allow(clippy::unwrap_used)]

mod chains;
mod dials;
mod handover;
mod life;
mod links;
mod moving;
mod parked;
mod past;
mod puppet;
mod turns;
