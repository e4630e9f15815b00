//! The tables of a connection. They know no ring, no lock and no socket.

pub(crate) mod binds;
pub(crate) mod calls;
pub(crate) mod methods;
pub(crate) mod retry;
pub(crate) mod space;
pub(crate) mod streams;
