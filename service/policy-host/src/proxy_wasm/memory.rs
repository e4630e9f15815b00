//! Reads from and writes to a filter's memory.
//!
//! A filter passes addresses; an address outside its memory is answered with INVALID_MEMORY_ACCESS.
//! The host's results are copied to memory from the filter's own allocator. The allocation is a
//! call into the filter: with the filter's fuel, and never nested.

use super::guest::{Answer, Guest};
use super::state::Proxy;
use super::status;
pub(super) use crate::budget::charge;

/// The whole memory and the state; the memory is empty before the instance is complete.
pub(super) fn both<'a>(guest: &'a mut Guest<'_>) -> (&'a mut [u8], &'a mut Proxy) {
    match guest.data().memory {
        Some(memory) => memory.data_and_store_mut(guest),
        None => (&mut [], guest.data_mut()),
    }
}

/// A part of memory that the guest named.
pub(super) fn part(memory: &[u8], address: u32, len: u32) -> Option<&[u8]> {
    memory.get(address as usize..)?.get(..len as usize)
}

/// A copy of a part; paid by the byte.
pub(super) fn copy(
    guest: &mut Guest<'_>,
    address: u32,
    len: u32,
) -> wasmtime::Result<Option<Vec<u8>>> {
    charge(guest, len.into())?;
    let (memory, _) = both(guest);
    Ok(part(memory, address, len).map(<[u8]>::to_vec))
}

/// Writes `bytes` to the guest's address; false if that is outside memory.
pub(super) fn write(guest: &mut Guest<'_>, address: u32, bytes: &[u8]) -> bool {
    let (memory, _) = both(guest);
    let place = memory
        .get_mut(address as usize..)
        .and_then(|rest| rest.get_mut(..bytes.len()));
    match place {
        Some(place) => {
            place.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}

/// Writes a number and answers OK.
pub(super) fn answer(guest: &mut Guest<'_>, address: u32, number: u32) -> u32 {
    match write(guest, address, &number.to_le_bytes()) {
        true => status::OK,
        false => status::INVALID_MEMORY_ACCESS,
    }
}

/// Copies `bytes` to memory that the guest allocates, and writes their address; paid by the byte.
pub(super) fn give(guest: &mut Guest<'_>, bytes: &[u8], data_at: u32, size_at: u32) -> Answer {
    charge(guest, bytes.len() as u64)?;
    let address = match bytes {
        [] => 0,
        bytes => match allocate(guest, bytes.len() as u32)? {
            Some(address) => address,
            None => return Ok(status::INTERNAL_FAILURE),
        },
    };
    if !write(guest, address, bytes) {
        return Err(wasmtime::Error::msg(format!(
            "the filter's allocator gave {} bytes at {address}, which aren't in its memory",
            bytes.len()
        )));
    }
    let told = write(guest, data_at, &address.to_le_bytes())
        && write(guest, size_at, &(bytes.len() as u32).to_le_bytes());
    Ok(match told {
        true => status::OK,
        false => status::INVALID_MEMORY_ACCESS,
    })
}

/// Requests memory from the guest; `None` if it has none, or its own allocator is the caller.
fn allocate(guest: &mut Guest<'_>, len: u32) -> wasmtime::Result<Option<u32>> {
    let Some(function) = guest
        .data()
        .allocate
        .clone()
        .filter(|_| !guest.data().allocating)
    else {
        return Ok(None);
    };
    guest.data_mut().allocating = true;
    let address = function.call(&mut *guest, len);
    guest.data_mut().allocating = false;
    Ok(Some(address?).filter(|address| *address != 0))
}
