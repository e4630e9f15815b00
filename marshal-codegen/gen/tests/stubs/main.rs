//! The stubs of all languages against one zoo of messages: the same bytes from each, and the same
//! values back.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

mod annotate;
mod awkward;
mod c;
mod documented;
mod hostile;
mod plugin;
mod python;
mod rust;
mod zoo;
