//! Shared data with compare-and-swap, and queues.
//!
//! Shared data is the policy's shared state, as native policies have it: the same for all instances, within the same limits. A
//! value is kept behind its compare-and-swap number. Queues belong to an instance and carry what one callback leaves for another.

use std::collections::VecDeque;

use wasmtime::Linker;

use super::memory::{answer, charge, copy, give};
use super::{Answer, Guest, MODULE, Proxy, status};
use crate::{Capabilities, cost, limits};

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

/// All queues of an instance.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: Vec<Queue>,
    bytes: usize,
}

#[derive(Debug)]
struct Queue {
    name: Vec<u8>,
    items: VecDeque<Vec<u8>>,
    /// Something was put in since it was told so.
    news: bool,
}

impl Queues {
    /// The number of a queue; numbers count from 1.
    fn find(&self, name: &[u8]) -> Option<u32> {
        let place = self.queues.iter().position(|queue| queue.name == name)?;
        Some(place as u32 + 1)
    }

    fn register(&mut self, name: Vec<u8>) -> Option<u32> {
        if let Some(known) = self.find(&name) {
            return Some(known);
        }
        let bytes = self.bytes + name.len() + limits::STATE_ENTRY_BYTES;
        if self.queues.len() >= limits::QUEUES || bytes > limits::QUEUED_BYTES {
            return None;
        }
        self.bytes = bytes;
        self.queues.push(Queue {
            name,
            items: VecDeque::new(),
            news: false,
        });
        Some(self.queues.len() as u32)
    }

    fn get(&mut self, id: u32) -> Option<&mut Queue> {
        self.queues.get_mut((id as usize).checked_sub(1)?)
    }

    /// False if it is full.
    fn push(&mut self, id: u32, item: Vec<u8>) -> Option<bool> {
        let bytes = self.bytes + item.len() + limits::STATE_ENTRY_BYTES;
        let queue = self.get(id)?;
        if bytes > limits::QUEUED_BYTES {
            return Some(false);
        }
        queue.items.push_back(item);
        queue.news = true;
        self.bytes = bytes;
        Some(true)
    }

    fn pop(&mut self, id: u32) -> Option<Option<Vec<u8>>> {
        let item = self.get(id)?.items.pop_front();
        if let Some(item) = &item {
            self.bytes -= item.len() + limits::STATE_ENTRY_BYTES;
        }
        Some(item)
    }

    /// A queue that has got something since the last time.
    pub(super) fn take_news(&mut self) -> Option<u32> {
        let (place, queue) = self
            .queues
            .iter_mut()
            .zip(1u32..)
            .find_map(|(queue, id)| queue.news.then_some((id, queue)))?;
        queue.news = false;
        Some(place)
    }
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

/// Queues of other machines aren't in reach: whichever it names, its own are looked through.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_order_and_have_limits() {
        let mut queues = Queues::default();
        assert_eq!(queues.push(1, Vec::new()), None);
        assert_eq!(queues.register(b"a".to_vec()), Some(1));
        assert_eq!(
            (
                queues.register(b"b".to_vec()),
                queues.register(b"a".to_vec())
            ),
            (Some(2), Some(1))
        );
        assert_eq!((queues.find(b"b"), queues.find(b"c")), (Some(2), None));
        assert_eq!(queues.take_news(), None);
        queues.push(2, vec![1]);
        queues.push(2, vec![2]);
        assert_eq!((queues.take_news(), queues.take_news()), (Some(2), None));
        assert_eq!(queues.pop(2), Some(Some(vec![1])));
        assert_eq!(queues.pop(1), Some(None));
        assert_eq!(queues.pop(2), Some(Some(vec![2])));
        let names = 2 * (1 + limits::STATE_ENTRY_BYTES);
        assert_eq!((queues.bytes, queues.pop(9)), (names, None));
        let mut long = Queues::default();
        assert_eq!(long.register(vec![b'q'; 2 * limits::NAME_BYTES]), Some(1));
        assert_eq!(long.register(vec![b'q'; limits::QUEUED_BYTES]), None);
        let many = (0u32..).take_while(|k| queues.register(k.to_le_bytes().to_vec()).is_some());
        assert_eq!(many.count() + 2, limits::QUEUES);
        let full = (0..)
            .take_while(|_| queues.push(1, vec![0; 1000]) == Some(true))
            .count();
        assert!(full * 1000 < limits::QUEUED_BYTES && queues.bytes <= limits::QUEUED_BYTES);
    }
}
