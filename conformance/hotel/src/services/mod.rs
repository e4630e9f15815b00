//! What the services decide. Nothing here knows of a transport; of a clock or a socket only what
//! the cache does.

pub mod geo;
pub mod profile;
pub mod rate;
pub mod recommendation;
pub mod reservation;
pub mod search;
pub mod user;
