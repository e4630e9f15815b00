//! Single calls: those that end (`tap`), those that ended (`trace`), and those that might be made
//! (`explain`).
//!
//! The daemon's answer is shown as it is. A missing field, as from an older daemon, is left out.

mod args;
mod explain;
mod line;
mod tap;
mod trace;

pub(crate) use args::{Explain, Tap, Trace};
pub(crate) use explain::explain;
pub(crate) use tap::tap;
pub(crate) use trace::trace;
