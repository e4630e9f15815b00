//! Calls to other services and host-specific functions: a filter can import them, and they fail.
//!
//! A policy evaluates its input; it has no network. HTTP and gRPC calls fail with the status for a
//! host that couldn't send them, which filters have to expect. Their arguments aren't read.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::memory::charge;
use super::state::Proxy;
use super::status;
use crate::cost;

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_http_call", http_call)?;
    linker.func_wrap(MODULE, "proxy_grpc_call", grpc_call)?;
    linker.func_wrap(MODULE, "proxy_grpc_stream", grpc_stream)?;
    linker.func_wrap(
        MODULE,
        "proxy_grpc_send",
        |guest: Guest<'_>, _id: u32, _message: u32, _len: u32, _end: u32| {
            refuse(guest, status::NOT_FOUND)
        },
    )?;
    linker.func_wrap(MODULE, "proxy_grpc_cancel", |guest: Guest<'_>, _id: u32| {
        refuse(guest, status::NOT_FOUND)
    })?;
    linker.func_wrap(MODULE, "proxy_grpc_close", |guest: Guest<'_>, _id: u32| {
        refuse(guest, status::NOT_FOUND)
    })?;
    linker.func_wrap(
        MODULE,
        "proxy_call_foreign_function",
        |guest: Guest<'_>, _a: u32, _b: u32, _c: u32, _d: u32, _e: u32, _f: u32| {
            refuse(guest, status::NOT_FOUND)
        },
    )?;
    Ok(())
}

fn refuse(mut guest: Guest<'_>, answer: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    Ok(answer)
}

#[expect(clippy::too_many_arguments, reason = "the specification's")]
fn http_call(
    guest: Guest<'_>,
    _upstream: u32,
    _upstream_len: u32,
    _headers: u32,
    _headers_len: u32,
    _body: u32,
    _body_len: u32,
    _trailers: u32,
    _trailers_len: u32,
    _timeout_ms: u32,
    _id_at: u32,
) -> Answer {
    refuse(guest, status::INTERNAL_FAILURE)
}

#[expect(clippy::too_many_arguments, reason = "the specification's")]
fn grpc_call(
    guest: Guest<'_>,
    _upstream: u32,
    _upstream_len: u32,
    _service: u32,
    _service_len: u32,
    _method: u32,
    _method_len: u32,
    _metadata: u32,
    _metadata_len: u32,
    _message: u32,
    _message_len: u32,
    _timeout_ms: u32,
    _id_at: u32,
) -> Answer {
    refuse(guest, status::INTERNAL_FAILURE)
}

#[expect(clippy::too_many_arguments, reason = "the specification's")]
fn grpc_stream(
    guest: Guest<'_>,
    _upstream: u32,
    _upstream_len: u32,
    _service: u32,
    _service_len: u32,
    _method: u32,
    _method_len: u32,
    _metadata: u32,
    _metadata_len: u32,
    _id_at: u32,
) -> Answer {
    refuse(guest, status::INTERNAL_FAILURE)
}
