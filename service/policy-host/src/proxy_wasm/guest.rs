//! The parameters and results of the specification's functions.

use wasmtime::Caller;

use super::state::Proxy;

/// The module name of the specification's functions.
pub(super) const MODULE: &str = "env";

/// The filter that calls.
pub(super) type Guest<'a> = Caller<'a, Proxy>;

/// The result of a function; an error ends the filter.
pub(super) type Answer = wasmtime::Result<u32>;
