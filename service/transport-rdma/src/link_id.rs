//! Ids of links.

/// What pollers call a link. No two of a process have ever been called the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub(crate) u64);
