//! From a plan to a module.
//!
//! ```text
//!   code      one function: labels, locals    module            functions, constants, sections
//!   values    expressions                     helper, helpers   what they call: texts, times, numbers
//!   rules     conditions, actions, exports    hash, buckets     tables of texts, rates
//! ```

mod buckets;
mod code;
mod hash;
mod helper;
mod helpers;
mod module;
mod rules;
mod texts;
mod values;

pub(crate) use rules::{counters, emit};
