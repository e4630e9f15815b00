//! Single calls: those that end (`tap`), those that ended (`trace`), and those that might be made (`explain`).
//!
//! What the daemon says is shown as it comes; a field that is missing, as in what an older daemon says, is left out.

mod args;
mod explain;
mod line;
mod tap;
mod trace;

pub(crate) use args::{Explain, Tap, Trace};
pub(crate) use explain::explain;
pub(crate) use tap::tap;
pub(crate) use trace::trace;
