//! The hand-written functions do the same work as the programs. All contenders read and write the
//! same bytes.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use prost::Message;
use tollgate_bench_marshal::contenders;
use tollgate_bench_marshal::hand::{self, Hotel, Types};
use tollgate_bench_marshal::messages::{Example, ReserveRequest, examples, schema};
use tollgate_marshal::{MAX_EXTENTS, Program, interpreter};
use tollgate_schema::dynamic;

/// How often each block is damaged.
const SPOILED: u64 = 20_000;

fn random(state: &mut u64) -> usize {
    // SplitMix64.
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) as usize
}

/// Changes a few words, a few bytes, or the length.
fn spoil(block: &[u8], state: &mut u64) -> Vec<u8> {
    let mut bytes = block.to_vec();
    for _ in 0..1 + random(state) % 2 {
        let at = random(state) % bytes.len().max(4) / 4 * 4;
        match random(state) % 6 {
            0 => bytes.truncate(random(state) % (bytes.len() + 1)),
            1 => bytes.resize(bytes.len() + random(state) % 9, 0),
            2 if at < bytes.len() => bytes[at] = random(state) as u8,
            _ if at + 4 <= bytes.len() => {
                let value = match random(state) % 5 {
                    0 => 0,
                    1 => 0x8000_0000,
                    2 => random(state) as u32 % 256,
                    3 => bytes.len() as u32,
                    _ => u32::MAX,
                };
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            _ => {}
        }
    }
    bytes
}

fn agree(example: &Example, program: &Program, bytes: &[u8]) -> bool {
    let hotel = Hotel::named(example.name).unwrap();
    let types = types(example, program);
    let (mut ours, mut theirs) = ([0; MAX_EXTENTS], [0; MAX_EXTENTS]);
    let expected = interpreter::gather(program, bytes, &mut theirs).map_err(|fault| fault.code);
    let gathered = hand::gather(hotel, &types, bytes, &mut ours);
    assert_eq!(gathered, expected, "{} {bytes:?}", example.name);
    assert_eq!(ours, theirs, "{} {bytes:?}", example.name);
    for inline_len in [bytes.len(), bytes.len().saturating_sub(8), bytes.len() + 1] {
        accepted_alike(example, program, bytes, inline_len);
    }
    expected.is_ok()
}

fn accepted_alike(example: &Example, program: &Program, bytes: &[u8], inline_len: usize) -> bool {
    let hotel = Hotel::named(example.name).unwrap();
    let (mut ours, mut theirs) = (bytes.to_vec(), bytes.to_vec());
    let expected = interpreter::accept(program, &mut theirs, inline_len);
    let expected = expected.map_err(|fault| fault.code);
    let accepted = hand::accept(hotel, &types(example, program), &mut ours, inline_len);
    assert_eq!(accepted, expected, "{} {bytes:?}", example.name);
    if expected.is_ok() {
        assert_eq!(ours, theirs, "{} {bytes:?}", example.name);
    }
    expected.is_ok()
}

fn types<'p>(example: &Example, program: &'p Program) -> Types<'p> {
    Types {
        program,
        root: example.id,
        stay: example.layouts.find("hotel.Stay").unwrap(),
    }
}

#[test]
fn by_hand_and_by_program_the_verdicts_are_the_same() {
    let mut state = 7;
    for example in examples() {
        let program = Program::new(&example.layouts, example.id);
        let hotel = Hotel::named(example.name).unwrap();
        assert_eq!(hotel.size() as u32, example.layouts.get(example.id).size);
        assert!(agree(&example, &program, &example.block));
        let healthy = (0..SPOILED)
            .filter(|_| agree(&example, &program, &spoil(&example.block, &mut state)))
            .count();
        assert!(healthy < SPOILED as usize / 2, "spoiling spoils");
    }
}

#[test]
fn by_hand_and_by_program_extents_go_to_the_same_places() {
    let mut state = 11;
    for example in examples() {
        let program = Program::new(&example.layouts, example.id);
        let descriptor = schema()
            .message(&format!("hotel.{}", example.name))
            .unwrap();
        let message =
            dynamic::read_block(&example.layouts, example.id, &descriptor, &example.block);
        let parts = dynamic::write_parts(&example.layouts, example.id, &message.unwrap(), |_| true);
        let parts = parts.unwrap();
        assert!(!parts.extents.is_empty());
        let image = parts.image();
        assert!(accepted_alike(
            &example,
            &program,
            &image,
            parts.inline.len()
        ));
        for _ in 0..SPOILED / 4 {
            let spoiled = spoil(&image, &mut state);
            accepted_alike(&example, &program, &spoiled, parts.inline.len());
        }
    }
}

#[test]
fn all_contenders_finish_their_work() {
    let mut names = Vec::new();
    for mut contender in contenders() {
        (contender.work)(2);
        names.push((contender.message, contender.operation, contender.executor));
    }
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn prost_means_the_same_messages() {
    let example = examples().remove(0);
    let program = Program::new(&example.layouts, example.id);
    let mut wire = Vec::new();
    let start = interpreter::encode(&program, &example.block, &mut wire).unwrap();
    let request = ReserveRequest::decode(&wire[start..]).unwrap();
    assert_eq!(request.customer_name, "Ada Lovelace");
    assert_eq!(request.hotel_ids, ["marriott-1", "hilton-22"]);
    assert_eq!(request.stay.as_ref().unwrap().out_date, "2026-03-04");
    assert_eq!(request.encode_to_vec(), wire[start..]);
}
