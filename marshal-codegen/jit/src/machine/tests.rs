#![allow(clippy::unwrap_used)]

#[path = "../../../marshal/tests/common/mod.rs"]
mod common;

use super::*;
use common::{Random, subjects};

/// The fast path is used for the output of encoders, and for unknown fields at the end; a test of
/// equal results alone would also pass if it never was.
#[test]
fn messages_in_order_are_read_by_machine_code() {
    // Groups, and arrays and maps of closed enums, are left to the interpreter.
    let in_order = |s: &common::Subject| s.layouts.get(s.id).name != "legacy.Record";
    for subject in subjects().into_iter().filter(in_order) {
        let wire = CompiledWire::new(&subject.program).unwrap();
        for seed in 0..50 {
            let mut random = Random(seed);
            let message = random.message(&subject.descriptor, 0);
            let block = subject.parts(&message, |_| false).inline;
            let mut out = Vec::new();
            let start = wire.encode(&block, &mut out).unwrap();
            let mut bytes = out[start..].to_vec();
            let mut decoded = Vec::new();
            let name = &subject.layouts.get(subject.id).name;
            assert!(wire.decode_in_order(&bytes, &mut decoded), "{name}");
            assert_eq!(decoded, block, "{name}");
            bytes.extend([0xf8, 0xe1, 0x09, 0x07]);
            assert!(wire.decode_in_order(&bytes, &mut decoded), "{name}");
        }
    }
}

/// Buffers grow up to a limit; the interpreter decides about messages beyond it.
#[test]
fn messages_longer_than_the_first_buffer_are_carried() {
    let all = subjects();
    let leaf = |s: &&common::Subject| s.layouts.get(s.id).name == "everything.Leaf";
    let leaf = all.iter().find(leaf).unwrap();
    let wire = CompiledWire::new(&leaf.program).unwrap();
    for len in [10, FIRST_ROOM, 1 << 20, MAX_MESSAGE - 4096, MAX_MESSAGE] {
        let mut bytes = vec![0x1a];
        let mut rest = len;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        bytes.resize(bytes.len() + len, 7);
        let mut block = Vec::new();
        let decoded = wire.decode(&bytes, &mut block);
        if len == MAX_MESSAGE {
            assert_eq!(decoded.unwrap_err().code, FaultCode::TooLarge);
            continue;
        }
        decoded.unwrap();
        let mut out = Vec::new();
        let start = wire.encode(&block, &mut out).unwrap();
        assert!(out[start..] == bytes, "{len} bytes");
    }
}
