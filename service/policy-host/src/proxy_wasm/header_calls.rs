//! The functions that read and change headers.
//!
//! The request's headers are readable always, the reply's from the reply's hook on. Trailers are
//! empty: there is no separate evaluation at a call's end. A missing map reads as empty and can't
//! be changed.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::headers::{Headers, TooMany, deserialize, name, serialize};
use super::memory::{answer, both, charge, copy, give, part};
use super::state::Proxy;
use super::status;
use crate::span::Span;
use crate::{Hook, cost, limits};

const REQUEST_HEADERS: u32 = 0;
const REPLY_HEADERS: u32 = 2;
/// Numbers from here on name no map.
const MAPS: u32 = 8;

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_get_header_map_size", get_size)?;
    linker.func_wrap(MODULE, "proxy_get_header_map_pairs", get_pairs)?;
    linker.func_wrap(MODULE, "proxy_set_header_map_pairs", set_pairs)?;
    linker.func_wrap(MODULE, "proxy_get_header_map_value", get_value)?;
    linker.func_wrap(MODULE, "proxy_add_header_map_value", add_value)?;
    linker.func_wrap(MODULE, "proxy_replace_header_map_value", replace_value)?;
    linker.func_wrap(MODULE, "proxy_remove_header_map_value", remove_value)?;
    Ok(())
}

/// A map to read; `None`: it isn't available now.
fn readable(state: &mut Proxy, map: u32) -> Option<&Headers> {
    let stream = state.current()?;
    match (map, stream.hook) {
        (REQUEST_HEADERS, _) => Some(&stream.request),
        (REPLY_HEADERS, Hook::Reply) => Some(&stream.reply),
        _ => None,
    }
}

/// A map to change; `None`: it can't be changed, now or ever.
fn writable(state: &mut Proxy, map: u32) -> Option<&mut Headers> {
    let stream = state.current()?;
    match (map, stream.hook) {
        (REQUEST_HEADERS, Hook::Request) | (REPLY_HEADERS, Hook::Reply) => Some(stream.headers()),
        _ => None,
    }
}

fn get_size(mut guest: Guest<'_>, map: u32, size_at: u32) -> Answer {
    Ok(match serialized(&mut guest, map)? {
        Some(pairs) => answer(&mut guest, size_at, pairs.len() as u32),
        None => status::BAD_ARGUMENT,
    })
}

fn get_pairs(mut guest: Guest<'_>, map: u32, data_at: u32, size_at: u32) -> Answer {
    match serialized(&mut guest, map)? {
        Some(pairs) => give(&mut guest, &pairs, data_at, size_at),
        None => Ok(status::BAD_ARGUMENT),
    }
}

/// A map's serialized form; `None`: unknown map.
fn serialized(guest: &mut Guest<'_>, map: u32) -> wasmtime::Result<Option<Vec<u8>>> {
    let price = readable(guest.data_mut(), map).map_or(0, Headers::price);
    charge(guest, cost::COMPAT + price)?;
    let pairs = readable(guest.data_mut(), map).map(Headers::pairs);
    let pairs = serialize(pairs.unwrap_or_default());
    Ok((map < MAPS).then_some(pairs))
}

fn set_pairs(mut guest: Guest<'_>, map: u32, pairs: u32, len: u32) -> Answer {
    // Parsing it costs several times its bytes in the worst case.
    charge(
        &mut guest,
        cost::COMPAT + 4 * u64::from(len.min(limits::HEADER_BYTES as u32)),
    )?;
    let (memory, state) = both(&mut guest);
    let Some(bytes) = part(memory, pairs, len) else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    if bytes.len() > 2 * limits::HEADER_BYTES {
        return Ok(status::BAD_ARGUMENT);
    }
    let Some(pairs) = deserialize(bytes) else {
        return Ok(status::BAD_ARGUMENT);
    };
    change(state, map, |headers| headers.set(pairs))
}

fn get_value(
    mut guest: Guest<'_>,
    map: u32,
    key: u32,
    key_len: u32,
    data_at: u32,
    size_at: u32,
) -> Answer {
    let Some(key) = read_key(&mut guest, map, key, key_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    if map >= MAPS {
        return Ok(status::BAD_ARGUMENT);
    }
    let headers = readable(guest.data_mut(), map);
    match headers.and_then(|headers| headers.value(&name(&key)?)) {
        Some(value) => give(&mut guest, &value, data_at, size_at),
        None => Ok(status::NOT_FOUND),
    }
}

fn add_value(
    guest: Guest<'_>,
    map: u32,
    key: u32,
    key_len: u32,
    value: u32,
    value_len: u32,
) -> Answer {
    let (key, value) = (span(key, key_len), span(value, value_len));
    put(guest, map, key, value, Headers::add)
}

fn replace_value(
    guest: Guest<'_>,
    map: u32,
    key: u32,
    key_len: u32,
    value: u32,
    value_len: u32,
) -> Answer {
    let (key, value) = (span(key, key_len), span(value, value_len));
    put(guest, map, key, value, Headers::replace)
}

fn span(address: u32, len: u32) -> Span {
    Span { address, len }
}

fn put(
    mut guest: Guest<'_>,
    map: u32,
    key: Span,
    value: Span,
    how: fn(&mut Headers, String, Vec<u8>) -> Result<(), TooMany>,
) -> Answer {
    let key = read_key(&mut guest, map, key.address, key.len)?;
    let value = copy(&mut guest, value.address, value.len)?;
    let (Some(key), Some(value)) = (key, value) else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    let Some(key) = name(&key) else {
        return Ok(status::BAD_ARGUMENT);
    };
    change(guest.data_mut(), map, |headers| how(headers, key, value))
}

fn remove_value(mut guest: Guest<'_>, map: u32, key: u32, key_len: u32) -> Answer {
    let Some(key) = read_key(&mut guest, map, key, key_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    change(guest.data_mut(), map, |headers| {
        name(&key).map_or(Ok(()), |key| headers.remove(&key))
    })
}

/// A key from memory; pays for it, and for searching the map.
fn read_key(
    guest: &mut Guest<'_>,
    map: u32,
    key: u32,
    len: u32,
) -> wasmtime::Result<Option<Vec<u8>>> {
    let price = readable(guest.data_mut(), map).map_or(0, Headers::price);
    charge(guest, cost::COMPAT + price)?;
    copy(guest, key, len)
}

fn change(
    state: &mut Proxy,
    map: u32,
    how: impl FnOnce(&mut Headers) -> Result<(), TooMany>,
) -> Answer {
    match writable(state, map) {
        Some(headers) => how(headers).map(|()| status::OK).map_err(|TooMany| {
            wasmtime::Error::msg(format!(
                "the filter makes more than {} headers or {} bytes of them",
                limits::HEADERS,
                limits::HEADER_BYTES
            ))
        }),
        None => Ok(status::BAD_ARGUMENT),
    }
}
