//! proxy-wasm 0.2.0 and 0.2.1: filters that were made for Envoy, unmodified. PROXY_WASM.md says what each function does here.
//!
//! | file | story |
//! |---|---|
//! | `life` | set-up, contexts, a judgement from its first callback to its last |
//! | `state` | what a filter has on the host's side, with all bounds |
//! | `memory` | in and out of the guest's memory |
//! | `headers`, `header_calls` | metadata as headers; the functions that read and change them |
//! | `body` | the message as a gRPC frame |
//! | `streams` | local responses, pausing, contexts |
//! | `shared` | shared data with compare-and-swap, and queues |
//! | `metrics`, `properties`, `logs` | what they say |
//! | `refused` | calls to elsewhere: there is no elsewhere |
//! | `wasi` | the harmless functions that a compiler for `wasm32-wasip1` needs |
//!
//! Invariants: a function charges before it works; an address or length is checked against memory each time it is used, and what
//! isn't in memory is answered with a status, as the specification says; everything that a filter makes the host keep has a limit.

mod body;
mod header_calls;
mod headers;
mod life;
mod logs;
mod memory;
mod metrics;
mod properties;
mod refused;
mod shared;
mod state;
mod streams;
mod wasi;

use wasmtime::{Caller, Engine, Linker};

pub(crate) use life::Filter;
pub use metrics::{MeasuredMetric, MetricKind};
pub(crate) use state::Proxy;

/// The module name of the specification's functions.
pub(crate) const MODULE: &str = "env";

/// The specification's functions.
pub(crate) const FUNCTIONS: [&str; 41] = [
    "proxy_add_header_map_value",
    "proxy_call_foreign_function",
    "proxy_close_stream",
    "proxy_continue_request",
    "proxy_continue_response",
    "proxy_continue_stream",
    "proxy_define_metric",
    "proxy_dequeue_shared_queue",
    "proxy_done",
    "proxy_enqueue_shared_queue",
    "proxy_get_buffer_bytes",
    "proxy_get_buffer_status",
    "proxy_get_current_time_nanoseconds",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_size",
    "proxy_get_header_map_value",
    "proxy_get_log_level",
    "proxy_get_metric",
    "proxy_get_property",
    "proxy_get_shared_data",
    "proxy_get_status",
    "proxy_grpc_call",
    "proxy_grpc_cancel",
    "proxy_grpc_close",
    "proxy_grpc_send",
    "proxy_grpc_stream",
    "proxy_http_call",
    "proxy_increment_metric",
    "proxy_log",
    "proxy_record_metric",
    "proxy_register_shared_queue",
    "proxy_remove_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_resolve_shared_queue",
    "proxy_send_local_response",
    "proxy_set_buffer_bytes",
    "proxy_set_effective_context",
    "proxy_set_header_map_pairs",
    "proxy_set_property",
    "proxy_set_shared_data",
    "proxy_set_tick_period_milliseconds",
];

/// Whether a filter can import this.
pub(crate) fn offers(module: &str, name: &str) -> bool {
    (module == MODULE && FUNCTIONS.contains(&name))
        || (module == wasi::MODULE && wasi::FUNCTIONS.contains(&name))
}

type Guest<'a> = Caller<'a, Proxy>;

/// What a function returns; an error ends the filter.
type Answer = wasmtime::Result<u32>;

/// The specification's `proxy_status_t`.
mod status {
    pub(super) const OK: u32 = 0;
    pub(super) const NOT_FOUND: u32 = 1;
    pub(super) const BAD_ARGUMENT: u32 = 2;
    pub(super) const INVALID_MEMORY_ACCESS: u32 = 6;
    pub(super) const EMPTY: u32 = 7;
    pub(super) const CAS_MISMATCH: u32 = 8;
    pub(super) const INTERNAL_FAILURE: u32 = 10;
    pub(super) const UNIMPLEMENTED: u32 = 12;
}

/// Defines all functions.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Proxy>> {
    let mut linker = Linker::new(engine);
    header_calls::define(&mut linker)?;
    body::define(&mut linker)?;
    streams::define(&mut linker)?;
    shared::define(&mut linker)?;
    metrics::define(&mut linker)?;
    properties::define(&mut linker)?;
    logs::define(&mut linker)?;
    refused::define(&mut linker)?;
    wasi::define(&mut linker)?;
    Ok(linker)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_offered_is_what_is_defined() {
        let engine = Engine::default();
        let mut store = wasmtime::Store::new(&engine, ());
        let _unused = &mut store;
        let linker = linker(&engine).unwrap();
        let mut store = wasmtime::Store::new(&engine, Proxy::for_tests());
        let mut defined: Vec<_> = linker
            .iter(&mut store)
            .map(|(module, name, _)| (module.to_owned(), name.to_owned()))
            .collect();
        defined.sort();
        let of = |module: &str, names: &[&str]| {
            let names = names.iter();
            names
                .map(|name| (module.to_owned(), (*name).to_owned()))
                .collect::<Vec<_>>()
        };
        let mut offered = of(MODULE, &FUNCTIONS);
        offered.extend(of(wasi::MODULE, &wasi::FUNCTIONS));
        offered.sort();
        assert_eq!(defined, offered);
    }
}
