//! Frames marshalled into a device's memory: the same bytes are sent in the same order as without
//! it, and none is overwritten before it was read.

use std::sync::Arc;
use std::sync::Mutex;

use proptest::prelude::*;

use crate::marshal::{DeviceMemory, MarshalRing};
use crate::testing::{noise, span};
use crate::tx::{Token, Tx};
use crate::{Part, Span};

/// A device that reads sent bytes later.
#[derive(Default)]
struct Device {
    /// Sent bytes, as counts since the beginning, with their contents at that time.
    reads: Vec<(u64, Vec<u8>)>,
}

/// Its memory. Borrowing a range for writing while it is read is an error.
struct Memory {
    bytes: Vec<u8>,
    device: Arc<Mutex<Device>>,
}

impl DeviceMemory for Memory {
    fn size(&self) -> usize {
        self.bytes.len()
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }

    fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        let device = self.device.lock().unwrap();
        for (count, read) in &device.reads {
            let start = (*count % self.bytes.len() as u64) as usize;
            assert_eq!(self.bytes[start..start + read.len()], read[..], "unchanged");
            let apart = at + len <= start || start + read.len() <= at;
            assert!(apart, "{at}, {len}: {start}, {} is being read", read.len());
        }
        &mut self.bytes[at..at + len]
    }
}

/// An operation on the queue.
#[derive(Clone, Debug)]
enum Act {
    Copy(usize),
    CopyShared(usize),
    Share(usize),
    /// This many queued bytes are sent.
    Leave(usize),
    /// The device has read this many of its outstanding reads.
    Read(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (0usize..300).prop_map(Act::Copy),
        (1usize..200).prop_map(Act::CopyShared),
        (1usize..200).prop_map(Act::Share),
        (0usize..500).prop_map(Act::Leave),
        (0usize..4).prop_map(Act::Read),
    ];
    prop::collection::vec(act, 0..60)
}

/// The queued bytes, as one piece.
fn waiting(tx: &Tx) -> Vec<u8> {
    let mut bytes = Vec::new();
    tx.copy_to(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn the_same_bytes_leave_and_none_is_overwritten(size in 1usize..400, acts in acts()) {
        let device = Arc::new(Mutex::new(Device::default()));
        let memory = Memory { bytes: vec![0; size], device: Arc::clone(&device) };
        let mut tx = Tx::default();
        tx.marshal_into(MarshalRing::new(Box::new(memory)));
        let content = noise(1, 400);
        let shared: Span = span(&content);
        // Bytes that were queued and not yet sent.
        let mut expected: Vec<u8> = Vec::new();
        let mut tokens = 0;
        for (n, act) in acts.into_iter().enumerate() {
            match act {
                Act::Copy(len) => {
                    let bytes = noise(n as u64, len);
                    tx.copy(&bytes);
                    expected.extend(bytes);
                }
                Act::CopyShared(at) => {
                    tx.copy_shared(&shared, at);
                    expected.extend(&content[at..]);
                }
                Act::Share(at) => {
                    tx.share(shared.clone(), at);
                    tx.mark(Token(tokens));
                    tokens += 1;
                    expected.extend(&content[at..]);
                }
                Act::Leave(most) => {
                    let mut parts = [Part::Private(&[])];
                    let filled = tx.parts(&mut parts);
                    let (n, read) = match parts[0] {
                        Part::Private(bytes) => (bytes.len().min(most), bytes.to_vec()),
                        Part::Shared { span, at } => ((span.len() - at).min(most), Vec::new()),
                    };
                    prop_assert_eq!(filled > 0, !expected.is_empty());
                    let before = tx.ring().unwrap().left();
                    tx.advance(n);
                    let left = tx.ring().unwrap().left() - before;
                    prop_assert!(left == 0 || left == n as u64);
                    if left > 0 {
                        device.lock().unwrap().reads.push((before, read[..n].to_vec()));
                    }
                    expected.drain(..n);
                }
                Act::Read(count) => {
                    let mut device = device.lock().unwrap();
                    let count = count.min(device.reads.len());
                    let done: Vec<_> = device.reads.drain(..count).collect();
                    if let Some((from, bytes)) = done.last() {
                        tx.ring().unwrap().was_read(from + bytes.len() as u64);
                    }
                }
            }
            prop_assert_eq!(waiting(&tx), &expected[..]);
            prop_assert_eq!(tx.is_empty(), expected.is_empty());
        }
    }
}

#[test]
fn small_frames_are_one_piece_and_an_abandoned_queue_has_none() {
    let memory = || {
        let device = Arc::default();
        let bytes = vec![0; 100];
        MarshalRing::new(Box::new(Memory { bytes, device }))
    };
    let mut tx = Tx::default();
    tx.marshal_into(memory());
    let pieces = |tx: &Tx| tx.parts(&mut [Part::Private(&[]); 8]);
    for n in 1..=10u8 {
        tx.copy(&[n; 9]);
    }
    assert_eq!((pieces(&tx), tx.copied()), (1, 90));
    // The end of the memory; there is no room at its beginning, and the rest is queued elsewhere.
    tx.copy(&[11; 15]);
    assert_eq!((pieces(&tx), tx.copied()), (2, 105));
    tx.advance(50);
    tx.copy(&[12; 3]);
    assert_eq!(pieces(&tx), 2, "what has left wasn't read");
    tx.ring().unwrap().was_read(50);
    tx.copy(&[13; 60]);
    assert_eq!((pieces(&tx), tx.copied()), (4, 118), "50 there, 10 not");
    tx.abandon();
    assert!(tx.is_empty() && tx.ring().is_none());
    assert_eq!(tx.copied(), 0);
}

#[test]
#[should_panic(expected = "bytes are read in the order in which they were sent")]
fn what_has_not_left_was_not_read() {
    let device = Arc::default();
    let bytes = vec![0; 100];
    let mut ring = MarshalRing::new(Box::new(Memory { bytes, device }));
    ring.place(10);
    ring.was_read(10);
}
