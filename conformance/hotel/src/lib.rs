//! The hotel reservation of [DeathStarBench](https://github.com/delimitrou/DeathStarBench) (Gan et
//! al., ASPLOS'19), over Tollgate, and over tonic for comparison: seven services and a frontend.
//!
//! ```text
//!   HTTP ──▶ frontend ──▶ search ──▶ geo, rate
//!                    ├──▶ profile, recommendation, user, reservation
//! ```
//!
//! - [`dataset`] is what the hotels are, [`stay`] for when rooms are wanted.
//! - [`services`] decide, and know no transport; they keep their records in a [`store`], and what
//!   they look up often in a [`cache`].
//! - [`calls`] are what one service asks of another; [`rpc`] carries them, and has the stubs.
//! - [`frontend`] is HTTP's side, [`http`] a connection to it, [`load`] many of those with the
//!   suite's mixed workload.
//! - [`failure`] is how anything here ends otherwise than well.
//!
//! Absent: the original's attractions and reviews, its discovery of services (each is told where
//! the others are), and its tracing.

#![forbid(unsafe_code)]

pub mod cache;
pub mod calls;
pub mod dataset;
pub mod failure;
pub mod frontend;
pub mod http;
pub mod load;
pub mod rpc;
pub mod services;
pub mod stay;
pub mod store;
