//! The hash of texts, computed here and by the module: for the tables of lists, and for buckets.

use wasm_encoder::{BlockType, ValType};

use crate::emit::code::{Code, Local, add, unaligned, while_not_zero};

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;

/// The factor of the hash.
const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;

/// The hash of a constant: of the length, the first and the last bytes, and those between them.
/// Callers can't lengthen a search in a table: the author has chosen the texts in it.
pub(crate) fn hash(text: &[u8]) -> u64 {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&text[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let mix = |state: u64, word: u64| {
        let product = (state ^ word).wrapping_mul(FACTOR);
        product ^ product >> 32
    };
    let mut state = text.len() as u64;
    match text.len().checked_sub(8) {
        Some(last) => {
            for at in (0..last).step_by(8) {
                state = mix(state, word(at));
            }
            state = mix(state, word(last));
        }
        None => {
            let word = text
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
            state = mix(state, word);
        }
    }
    // The last characters have reached the high bits only.
    mix(state, 0)
}

/// Writes code that computes the hash of a text; the local that has it.
pub(crate) fn hash_of(c: &mut Code, text: Local, len: Local) -> Local {
    let (state, word) = (c.local(I64), c.local(I64));
    let (next, last) = (c.local(I32), c.local(I32));
    c.get(len).op().i64_extend_i32_u();
    c.set(state);
    c.get(text).set(next);
    c.get(len).i32(8).op().i32_ge_u();
    c.begin_if(BlockType::Empty);
    c.get(text).get(len).op().i32_add();
    c.i32(8).op().i32_sub();
    c.set(last);
    let words = c.block(BlockType::Empty);
    let top = c.begin_loop();
    c.get(next).get(last).op().i32_ge_u();
    c.br_if(words);
    c.get(next).op().i64_load(unaligned(0));
    mix(c, state);
    add(c, next, 8);
    c.br(top);
    c.end();
    c.end();
    c.get(last).op().i64_load(unaligned(0));
    mix(c, state);
    c.begin_else();
    c.i64(0).set(word);
    c.get(len).set(last);
    while_not_zero(c, last, |c, _| {
        c.get(word).i64(8).op().i64_shl();
        c.get(next).op().i64_load8_u(unaligned(0)).i64_or();
        c.set(word);
        add(c, next, 1);
        add(c, last, u32::MAX);
    });
    c.get(word);
    mix(c, state);
    c.end();
    // The last characters have reached the high bits only.
    c.i64(0);
    mix(c, state);
    c.free(word);
    c.free_all([next, last]);
    state
}

/// `state = mix(state, word)`, where the word is on the stack.
fn mix(c: &mut Code, state: Local) {
    c.get(state).op().i64_xor();
    c.i64(FACTOR.cast_signed()).op().i64_mul();
    c.tee(state).get(state).i64(32).op().i64_shr_u().i64_xor();
    c.set(state);
}
