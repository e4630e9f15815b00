//! Queues of an instance, which carry data from one callback to another.

use std::collections::VecDeque;

use crate::limits;

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
    /// An item was added since the last notification.
    news: bool,
}

impl Queues {
    /// The number of a queue; numbers start at 1.
    pub(super) fn find(&self, name: &[u8]) -> Option<u32> {
        let place = self.queues.iter().position(|queue| queue.name == name)?;
        Some(place as u32 + 1)
    }

    pub(super) fn register(&mut self, name: Vec<u8>) -> Option<u32> {
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
    pub(super) fn push(&mut self, id: u32, item: Vec<u8>) -> Option<bool> {
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

    pub(super) fn pop(&mut self, id: u32) -> Option<Option<Vec<u8>>> {
        let item = self.get(id)?.items.pop_front();
        if let Some(item) = &item {
            self.bytes -= item.len() + limits::STATE_ENTRY_BYTES;
        }
        Some(item)
    }

    /// A queue with new items since the last time.
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
