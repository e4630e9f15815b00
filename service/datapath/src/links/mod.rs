//! Links to peers: dialled or accepted, their frames, and the messages that they send.

pub(crate) mod accept;
pub(crate) mod arrivals;
pub(crate) mod bindings;
pub(crate) mod dial;
pub(crate) mod dials;
pub(crate) mod events;
pub(crate) mod guests;
pub(crate) mod outgoing;
pub(crate) mod peers;
pub(crate) mod remote;
pub(crate) mod send;
pub(crate) mod strangers;
pub(crate) mod table;
pub mod target;
pub(crate) mod wire;
