//! Ending a call, pausing it, and choosing the context that functions act on.
//!
//! A local response denies the call. A pause that is still in force after the last callback denies
//! it, too: nothing here could resume the call later.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::headers::deserialize;
use super::memory::{answer, charge, copy, give};
use super::state::{Local, Proxy, ROOT};
use super::status;
use crate::text::text;
use crate::{cost, limits};

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_send_local_response", send_local_response)?;
    linker.func_wrap(MODULE, "proxy_continue_stream", continue_stream)?;
    linker.func_wrap(MODULE, "proxy_close_stream", close_stream)?;
    linker.func_wrap(MODULE, "proxy_continue_request", |guest: Guest<'_>| {
        continue_stream(guest, 0)
    })?;
    linker.func_wrap(MODULE, "proxy_continue_response", |guest: Guest<'_>| {
        continue_stream(guest, 1)
    })?;
    linker.func_wrap(MODULE, "proxy_set_effective_context", set_effective_context)?;
    linker.func_wrap(MODULE, "proxy_done", done)?;
    linker.func_wrap(MODULE, "proxy_get_status", get_status)?;
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the specification's")]
fn send_local_response(
    mut guest: Guest<'_>,
    http_status: u32,
    details: u32,
    details_len: u32,
    body: u32,
    body_len: u32,
    headers: u32,
    headers_len: u32,
    grpc_status: i32,
) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    // Bytes beyond the limit aren't read: the caller wouldn't see them.
    let most = limits::MESSAGE_BYTES as u32 + 4;
    let details = copy(&mut guest, details, details_len.min(most))?;
    let body = copy(&mut guest, body, body_len.min(most))?;
    let headers = copy(
        &mut guest,
        headers,
        headers_len.min(limits::HEADER_BYTES as u32),
    )?;
    let (Some(details), Some(body), Some(headers)) = (details, body, headers) else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    let Some(stream) = guest.data_mut().current() else {
        return Ok(status::BAD_ARGUMENT);
    };
    if stream.local.is_none() {
        let message = message_of(&headers).filter(|message| !message.is_empty());
        let message = message.unwrap_or(if body.is_empty() { details } else { body });
        stream.local = Some(Local {
            code: code(http_status, grpc_status),
            message: text(&message, limits::MESSAGE_BYTES).trim_end().to_owned(),
        });
    }
    Ok(status::OK)
}

/// The text of a response's own `grpc-message`.
fn message_of(headers: &[u8]) -> Option<Vec<u8>> {
    let pairs = deserialize(headers)?;
    let mut pairs = pairs.into_iter();
    pairs
        .find(|(key, _)| key == "grpc-message")
        .map(|(_, value)| value)
}

/// The caller's status for a filter's own response. A gRPC status is taken unchanged, except OK,
/// which would need a reply. An HTTP status is mapped as in gRPC.
fn code(http_status: u32, grpc_status: i32) -> u32 {
    const UNKNOWN: u32 = 2;
    match (grpc_status, http_status) {
        (1..=16, _) => grpc_status.cast_unsigned(),
        (_, 400) => 13,
        (_, 401) => 16,
        (_, 403) => 7,
        (_, 404) => 12,
        (_, 429 | 502..=504) => 14,
        _ => UNKNOWN,
    }
}

fn continue_stream(mut guest: Guest<'_>, kind: u32) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    match (kind, guest.data_mut().current()) {
        (0 | 1, Some(stream)) => {
            stream.paused = false;
            Ok(status::OK)
        }
        (0 | 1, None) => Ok(status::OK),
        (2 | 3, _) => Ok(status::UNIMPLEMENTED),
        _ => Ok(status::BAD_ARGUMENT),
    }
}

fn close_stream(mut guest: Guest<'_>, kind: u32) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    match (kind, guest.data_mut().current()) {
        (0 | 1, Some(stream)) => {
            stream.local.get_or_insert(Local {
                code: 14,
                message: "the filter closed the call".to_owned(),
            });
            Ok(status::OK)
        }
        _ => Ok(status::BAD_ARGUMENT),
    }
}

fn set_effective_context(mut guest: Guest<'_>, context: u32) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    if !guest.data().knows(context) {
        return Ok(status::BAD_ARGUMENT);
    }
    guest.data_mut().effective = context;
    Ok(status::OK)
}

/// Has no effect: a call ends without waiting for it.
fn done(mut guest: Guest<'_>) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    match guest.data().effective {
        ROOT => Ok(status::NOT_FOUND),
        _ => Ok(status::OK),
    }
}

/// The status of a call to another service; there are no such calls.
fn get_status(mut guest: Guest<'_>, code_at: u32, data_at: u32, size_at: u32) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    match answer(&mut guest, code_at, 0) {
        status::OK => give(&mut guest, &[], data_at, size_at),
        bad => Ok(bad),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_become_statuses() {
        let cases = [
            ((200, 7), 7),
            ((403, -1), 7),
            ((401, -1), 16),
            ((404, -1), 12),
            ((400, -1), 13),
            ((429, -1), 14),
            ((503, -1), 14),
            ((500, -1), 2),
            ((200, -1), 2),
            ((200, 0), 2),
            ((403, 17), 7),
        ];
        for ((http, grpc), expected) in cases {
            assert_eq!(code(http, grpc), expected, "{http} {grpc}");
        }
    }
}
