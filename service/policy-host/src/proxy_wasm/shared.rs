//! The functions of shared data with compare-and-swap, and of queues.
//!
//! Shared data is the policy's shared state, as for native policies: the same for all instances,
//! within the same limits. A value is stored after its compare-and-swap number.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::memory::{answer, charge, copy, give};
use super::state::Proxy;
use super::status;
use crate::wasi::Process;
use crate::{Capabilities, cost};

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_get_shared_data", get)?;
    linker.func_wrap(MODULE, "proxy_set_shared_data", set)?;
    linker.func_wrap(MODULE, "proxy_register_shared_queue", register)?;
    linker.func_wrap(MODULE, "proxy_resolve_shared_queue", resolve)?;
    linker.func_wrap(MODULE, "proxy_enqueue_shared_queue", enqueue)?;
    linker.func_wrap(MODULE, "proxy_dequeue_shared_queue", dequeue)?;
    Ok(())
}

fn get(
    mut guest: Guest<'_>,
    key: u32,
    key_len: u32,
    data_at: u32,
    size_at: u32,
    cas_at: u32,
) -> Answer {
    charge(&mut guest, cost::STATE)?;
    let Some(key) = copy(&mut guest, key, key_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    if !guest.data().may(Capabilities::STATE) {
        return Ok(status::NOT_FOUND);
    }
    let found = guest.data().shared.get(&key);
    let Some((cas, value)) = found
        .as_deref()
        .and_then(|value| value.split_first_chunk::<4>())
    else {
        return Ok(status::NOT_FOUND);
    };
    charge(&mut guest, value.len() as u64)?;
    match answer(&mut guest, cas_at, u32::from_le_bytes(*cas)) {
        status::OK => give(&mut guest, value, data_at, size_at),
        bad => Ok(bad),
    }
}

fn set(
    mut guest: Guest<'_>,
    key: u32,
    key_len: u32,
    value: u32,
    value_len: u32,
    cas: u32,
) -> Answer {
    charge(&mut guest, cost::STATE_SET + u64::from(value_len))?;
    let key = copy(&mut guest, key, key_len)?;
    let value = copy(&mut guest, value, value_len)?;
    let (Some(key), Some(value)) = (key, value) else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    if !guest.data().may(Capabilities::STATE) {
        return Ok(status::INTERNAL_FAILURE);
    }
    Ok(match guest.data().shared.exchange(&key, &value, cas) {
        Ok(true) => status::OK,
        Ok(false) => status::CAS_MISMATCH,
        Err(_full) => status::INTERNAL_FAILURE,
    })
}

fn register(mut guest: Guest<'_>, name: u32, name_len: u32, id_at: u32) -> Answer {
    charge(&mut guest, cost::STATE)?;
    let Some(name) = copy(&mut guest, name, name_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    match guest.data_mut().queues.register(name) {
        Some(id) => Ok(answer(&mut guest, id_at, id)),
        None => Ok(status::INTERNAL_FAILURE),
    }
}

/// Queues of other machines aren't reachable: for any machine name, the filter's own queues are
/// searched.
fn resolve(
    mut guest: Guest<'_>,
    _vm: u32,
    _vm_len: u32,
    name: u32,
    name_len: u32,
    id_at: u32,
) -> Answer {
    charge(&mut guest, cost::STATE)?;
    let Some(name) = copy(&mut guest, name, name_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    match guest.data().queues.find(&name) {
        Some(id) => Ok(answer(&mut guest, id_at, id)),
        None => Ok(status::NOT_FOUND),
    }
}

fn enqueue(mut guest: Guest<'_>, id: u32, value: u32, value_len: u32) -> Answer {
    charge(&mut guest, cost::STATE)?;
    let Some(item) = copy(&mut guest, value, value_len)? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    Ok(match guest.data_mut().queues.push(id, item) {
        Some(true) => status::OK,
        Some(false) => status::INTERNAL_FAILURE,
        None => status::NOT_FOUND,
    })
}

fn dequeue(mut guest: Guest<'_>, id: u32, data_at: u32, size_at: u32) -> Answer {
    charge(&mut guest, cost::STATE)?;
    match guest.data_mut().queues.pop(id) {
        Some(Some(item)) => give(&mut guest, &item, data_at, size_at),
        Some(None) => Ok(status::EMPTY),
        None => Ok(status::NOT_FOUND),
    }
}
