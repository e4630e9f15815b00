//! Heaps are registered once, and unregistered with their session.

use std::sync::Arc;

use crate::registrations::{Held, Registrations};

/// A heap by number.
struct Heap {
    address: usize,
    memory: Arc<()>,
}

impl Held for Heap {
    fn address(&self) -> usize {
        self.address
    }

    fn holders(&self) -> usize {
        Arc::strong_count(&self.memory)
    }
}

/// A registration holds its heap.
#[derive(Debug)]
struct Key(#[allow(dead_code)] Arc<()>);

type Table = Registrations<Heap, Key, &'static str>;

fn register(table: &mut Table, address: usize, memory: &Arc<()>) -> Arc<Key> {
    let heap = Heap {
        address,
        memory: Arc::clone(memory),
    };
    let key = Arc::new(Key(Arc::clone(memory)));
    table.insert(heap, Ok(key)).unwrap()
}

#[test]
fn what_was_registered_is_found_until_nobody_else_has_it() {
    let mut table = Table::new(2);
    let session = Arc::new(());
    let sending = register(&mut table, 0x1000, &session);
    assert!(table.find(0x2000).is_none());
    let found = table.find(0x1000).unwrap().unwrap();
    assert!(Arc::ptr_eq(found, &sending));
    assert_eq!(table.sweep(), 0, "the session is there");
    drop(session);
    assert_eq!(table.sweep(), 0, "a device reads it");
    drop(sending);
    assert_eq!((table.sweep(), table.len()), (1, 0));
}

#[test]
fn a_failure_is_remembered_for_as_long_as_its_heap() {
    let mut table = Table::new(2);
    let session = Arc::new(());
    let heap = Heap {
        address: 0x1000,
        memory: Arc::clone(&session),
    };
    assert_eq!(
        *table.insert(heap, Err(Arc::new("too large"))).unwrap_err(),
        "too large"
    );
    assert_eq!(**table.find(0x1000).unwrap().unwrap_err(), "too large");
    assert_eq!(table.sweep(), 0);
    drop(session);
    assert_eq!(table.sweep(), 1);
    assert!(table.find(0x1000).is_none());
}

#[test]
fn a_full_table_makes_room_of_what_is_over() {
    let mut table = Table::new(2);
    let sessions = [Arc::new(()), Arc::new(())];
    for (n, session) in sessions.iter().enumerate() {
        assert!(table.make_room());
        drop(register(&mut table, n, session));
    }
    assert!(!table.make_room(), "both are in use");
    let [first, _second] = sessions;
    drop(first);
    assert!(table.make_room());
    assert_eq!(table.len(), 1);
}
