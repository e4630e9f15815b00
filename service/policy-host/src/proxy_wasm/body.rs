//! Buffers: the message as a gRPC frame, and the configuration.
//!
//! ```text
//!   0 | length u32, big-endian | protobuf        the body of a gRPC call on HTTP/2, as Envoy's filters expect it
//! ```
//!
//! The whole message is there at once. A filter that changes it must leave one such frame,
//! uncompressed.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::memory::{answer, charge, copy, give};
use super::state::Proxy;
use super::status;
use crate::{Fault, Hook, cost, limits};

const REQUEST_BODY: u32 = 0;
const REPLY_BODY: u32 = 1;
const VM_CONFIGURATION: u32 = 6;
const PLUGIN_CONFIGURATION: u32 = 7;
/// Numbers from here on name no buffer.
const BUFFERS: u32 = 9;

/// Bytes before the message.
const PREFIX: usize = 5;

/// A message as a frame.
pub(super) fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(PREFIX + message.len());
    frame.push(0);
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

/// The message in a frame that a filter has changed.
pub(super) fn unframe(frame: &[u8]) -> Result<Vec<u8>, Fault> {
    let bad =
        |why: &str| Fault::BadAnswer(format!("the changed body of {} bytes {why}", frame.len()));
    let Some((prefix, message)) = frame.split_first_chunk::<PREFIX>() else {
        return Err(bad("is no gRPC frame"));
    };
    let [compressed, a, b, c, d] = *prefix;
    if compressed != 0 {
        return Err(bad("is a compressed gRPC frame, or none"));
    }
    if u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return Err(bad("isn't one whole gRPC frame"));
    }
    Ok(message.to_vec())
}

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_get_buffer_bytes", get_bytes)?;
    linker.func_wrap(MODULE, "proxy_set_buffer_bytes", set_bytes)?;
    linker.func_wrap(MODULE, "proxy_get_buffer_status", get_status)?;
    Ok(())
}

/// A buffer to read; `None`: it isn't available now.
fn buffer(state: &mut Proxy, id: u32) -> Option<&[u8]> {
    match id {
        REQUEST_BODY | REPLY_BODY => body(state, id).map(|body| &body[..]),
        PLUGIN_CONFIGURATION => Some(&state.config),
        // There is one configuration; the machine's configuration is empty.
        VM_CONFIGURATION => Some(&[]),
        _ => None,
    }
}

fn body(state: &mut Proxy, id: u32) -> Option<&mut Vec<u8>> {
    let stream = state.current()?;
    match (id, stream.hook) {
        (REQUEST_BODY, Hook::Request) | (REPLY_BODY, Hook::Reply) => stream.body.as_mut(),
        _ => None,
    }
}

fn get_bytes(
    mut guest: Guest<'_>,
    id: u32,
    start: u32,
    max_size: u32,
    data_at: u32,
    size_at: u32,
) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    let Some(bytes) = buffer(guest.data_mut(), id) else {
        return Ok(missing(id));
    };
    let start = (start as usize).min(bytes.len());
    let end = start.saturating_add(max_size as usize).min(bytes.len());
    let len = end - start;
    // One copy to here, and one to the guest's memory.
    charge(&mut guest, len as u64)?;
    let bytes = buffer(guest.data_mut(), id).map(|bytes| bytes[start..end].to_vec());
    give(&mut guest, &bytes.unwrap_or_default(), data_at, size_at)
}

fn set_bytes(
    mut guest: Guest<'_>,
    id: u32,
    start: u32,
    size: u32,
    value: u32,
    value_len: u32,
) -> Answer {
    let moved = body(guest.data_mut(), id).map_or(0, |body| body.len());
    charge(&mut guest, cost::COMPAT + moved as u64)?;
    let Some(value) = copy(&mut guest, value, value_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    let Some(body) = body(guest.data_mut(), id) else {
        return Ok(missing(id));
    };
    let start = (start as usize).min(body.len());
    let end = start.saturating_add(size as usize).min(body.len());
    if body.len() - (end - start) + value.len() > limits::COMPAT_BODY_BYTES + PREFIX {
        return Err(wasmtime::Error::msg(format!(
            "the filter makes a body of more than {} bytes",
            limits::COMPAT_BODY_BYTES
        )));
    }
    body.splice(start..end, value);
    if let Some(stream) = guest.data_mut().current() {
        stream.body_changed = true;
    }
    Ok(status::OK)
}

fn get_status(mut guest: Guest<'_>, id: u32, size_at: u32, unused_at: u32) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    let Some(len) = buffer(guest.data_mut(), id).map(|bytes| bytes.len() as u32) else {
        return Ok(missing(id));
    };
    Ok(match answer(&mut guest, size_at, len) {
        status::OK => answer(&mut guest, unused_at, 0),
        bad => bad,
    })
}

fn missing(id: u32) -> u32 {
    if id < BUFFERS {
        status::NOT_FOUND
    } else {
        status::BAD_ARGUMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reads_back_and_nothing_else_is_one() {
        assert_eq!(frame(b"abc"), [0, 0, 0, 0, 3, b'a', b'b', b'c']);
        assert_eq!(unframe(&frame(b"abc")), Ok(b"abc".to_vec()));
        assert_eq!(unframe(&frame(b"")), Ok(Vec::new()));
        let cases: [&[u8]; 5] = [
            b"",
            b"\0\0\0\0",
            b"\x01\0\0\0\x01a",
            b"\0\0\0\0\x02a",
            b"\0\0\0\0\0a",
        ];
        for bytes in cases {
            assert!(
                matches!(unframe(bytes), Err(Fault::BadAnswer(_))),
                "{bytes:?}"
            );
        }
    }
}
