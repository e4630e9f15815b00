//! All functions that a filter can import.

use wasmtime::{Engine, Linker};

use super::guest::MODULE;
use super::state::Proxy;
use super::{body, header_calls, logs, metric_calls, property_calls, refused, shared, streams};
use crate::wasi;

/// The specification's functions.
const FUNCTIONS: [&str; 41] = [
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

/// Defines all functions.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Proxy>> {
    let mut linker = Linker::new(engine);
    header_calls::define(&mut linker)?;
    body::define(&mut linker)?;
    streams::define(&mut linker)?;
    shared::define(&mut linker)?;
    metric_calls::define(&mut linker)?;
    property_calls::define(&mut linker)?;
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
