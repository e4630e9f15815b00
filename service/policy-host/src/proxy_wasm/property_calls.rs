//! The functions that read and set properties: the few that are known here, and those that a filter
//! has set on its own call.
//!
//! A path is a list of parts separated by zero bytes (`request` 0 `path`); some filters end it with
//! one, too.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::headers::{Headers, name};
use super::memory::{charge, copy, give};
use super::state::Proxy;
use super::status;
use crate::{Hook, cost};

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_get_property", get)?;
    linker.func_wrap(MODULE, "proxy_set_property", set)?;
    Ok(())
}

fn get(mut guest: Guest<'_>, path: u32, path_len: u32, data_at: u32, size_at: u32) -> Answer {
    charge(&mut guest, cost::STATE)?;
    let Some(path) = copy(&mut guest, path, path_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    match find(guest.data_mut(), &path) {
        Some(value) => give(&mut guest, &value, data_at, size_at),
        None => Ok(status::NOT_FOUND),
    }
}

fn find(state: &mut Proxy, path: &[u8]) -> Option<Vec<u8>> {
    let path = path.strip_suffix(b"\0").unwrap_or(path);
    match path {
        b"plugin_name" => return Some(state.name.clone().into_bytes()),
        b"plugin_root_id" => return Some(state.root_id.clone().into_bytes()),
        b"plugin_vm_id" => return Some(Vec::new()),
        _ => {}
    }
    let stream = state.current()?;
    if let Some(set) = stream.properties.get(path) {
        return Some(set.to_vec());
    }
    let mut parts = path.split(|byte| *byte == 0);
    let (first, second, key) = (parts.next()?, parts.next()?, parts.next());
    let headers = |of: &Headers, key: &[u8]| of.value(&name(key)?);
    let text = |text: &str| Some(text.as_bytes().to_vec());
    match (first, second, key) {
        (b"request", b"path" | b"url_path", None) => text(&format!("/{}", stream.path)),
        (b"request", b"method", None) => text("POST"),
        (b"request", b"scheme", None) => text("http"),
        (b"request", b"protocol", None) => text("HTTP/2"),
        (b"request", b"host", None) => headers(&stream.request, b":authority"),
        (b"request", b"headers", Some(key)) => headers(&stream.request, key),
        (b"request", b"size", None) if stream.hook == Hook::Request => size(stream.body.as_deref()),
        (b"response", b"size", None) if stream.hook == Hook::Reply => size(stream.body.as_deref()),
        (b"response", b"headers", Some(key)) => headers(&stream.reply, key),
        (b"response", b"code", None) if stream.hook == Hook::Reply => {
            Some(200u64.to_le_bytes().to_vec())
        }
        _ => None,
    }
}

/// The size of a body that the filter may see.
fn size(body: Option<&[u8]>) -> Option<Vec<u8>> {
    Some((body?.len() as u64).to_le_bytes().to_vec())
}

fn set(mut guest: Guest<'_>, path: u32, path_len: u32, value: u32, value_len: u32) -> Answer {
    charge(&mut guest, cost::STATE_SET)?;
    let path = copy(&mut guest, path, path_len)?;
    let value = copy(&mut guest, value, value_len)?;
    let (Some(path), Some(value)) = (path, value) else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    let path = path.strip_suffix(b"\0").unwrap_or(&path).to_vec();
    let stream = guest.data_mut().current();
    Ok(
        match stream.map(|stream| stream.properties.set(path, value)) {
            Some(true) => status::OK,
            Some(false) => status::INTERNAL_FAILURE,
            None => status::NOT_FOUND,
        },
    )
}
