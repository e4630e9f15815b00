//! Code for comparisons of texts.
//!
//! A text is compared with a constant by loads of 8, 4, 2 or 1 bytes, of which the last two may
//! overlap, so there is no loop. Texts are found in long lists by their hash.

use wasm_encoder::{BlockType, ValType};

use crate::emit::code::{Label, Local, unaligned};
use crate::emit::helper::Helper;
use crate::emit::values::Values;
use crate::ops::{TextTest, Typed};
use crate::parse::Comparison;

const I32: ValType = ValType::I32;
const BOOL: BlockType = BlockType::Result(I32);

/// Bytes of the longest constant that is compared without a loop.
const INLINE: usize = 48;
/// Texts of a list that are compared one after the other.
const FEW: usize = 3;

/// `text.startsWith(part)` and its likes.
pub(crate) fn test(
    values: &mut Values<'_>,
    test: TextTest,
    text: &Typed,
    part: &Typed,
    error: Label,
) {
    let constant = part.as_const().and_then(|part| part.bytes());
    let (address, len) = values.span(text, error);
    match (test, constant) {
        (TextTest::StartsWith | TextTest::EndsWith, Some(part)) if part.len() <= INLINE => {
            let size = part.len() as u32;
            values.code.get(len).i32(size).op().i32_ge_u();
            values.code.begin_if(BOOL);
            if test == TextTest::EndsWith {
                values.code.get(address).get(len).op().i32_add();
                values.code.i32(size).op().i32_sub();
                values.code.set(address);
            }
            is_constant(values, address, part);
            values.code.begin_else();
            values.code.i32(0);
            values.code.end();
        }
        (TextTest::StartsWith | TextTest::EndsWith, _) => {
            let (other, size) = values.span(part, error);
            values.code.get(len).get(size).op().i32_ge_u();
            values.code.begin_if(BOOL);
            if test == TextTest::EndsWith {
                values.code.get(address).get(len).op().i32_add();
                values.code.get(size).op().i32_sub();
                values.code.set(address);
            }
            let same = values.module.helper(Helper::Same);
            values.code.get(address).get(other).get(size).call(same);
            values.code.begin_else();
            values.code.i32(0);
            values.code.end();
            values.code.free(other);
            values.code.free(size);
        }
        (TextTest::Contains, _) => {
            let (other, size) = values.span(part, error);
            let find = values.module.helper(Helper::Find);
            values
                .code
                .get(address)
                .get(len)
                .get(other)
                .get(size)
                .call(find);
            values.code.free(other);
            values.code.free(size);
        }
    }
    values.code.free(address);
    values.code.free(len);
}

/// A comparison of two texts.
pub(crate) fn compare(
    values: &mut Values<'_>,
    comparison: Comparison,
    a: &Typed,
    b: &Typed,
    error: Label,
) {
    let is_equality = matches!(comparison, Comparison::Equal | Comparison::NotEqual);
    let constant = |node: &Typed| {
        let bytes = node.as_const()?.bytes()?;
        (bytes.len() <= INLINE).then(|| bytes.to_vec())
    };
    let (text, part) = match (constant(a), constant(b)) {
        (_, Some(part)) => (a, Some(part)),
        (Some(part), None) => (b, Some(part)),
        (None, None) => (a, None),
    };
    match part.filter(|_| is_equality) {
        Some(part) => {
            let (address, len) = values.span(text, error);
            equals_constant(values, address, len, &part);
            values.code.free(address);
            values.code.free(len);
        }
        None if is_equality => {
            let (address, len) = values.span(a, error);
            let (other, size) = values.span(b, error);
            let same = values.module.helper(Helper::Same);
            values.code.get(len).get(size).op().i32_eq();
            values.code.begin_if(BOOL);
            values.code.get(address).get(other).get(len).call(same);
            values.code.begin_else();
            values.code.i32(0);
            values.code.end();
            values.code.free_all([address, len, other, size]);
        }
        None => {
            values.value(a, error);
            values.value(b, error);
            let order = values.module.helper(Helper::Order);
            values.code.call(order);
            values.order(comparison, false);
            return;
        }
    }
    if comparison == Comparison::NotEqual {
        values.code.op().i32_eqz();
    }
}

/// Whether a text equals a constant.
fn equals_constant(values: &mut Values<'_>, address: Local, len: Local, part: &[u8]) {
    values.code.get(len).i32(part.len() as u32).op().i32_eq();
    if part.is_empty() {
        return;
    }
    values.code.begin_if(BOOL);
    is_constant(values, address, part);
    values.code.begin_else();
    values.code.i32(0);
    values.code.end();
}

/// Whether the bytes at an address are these.
fn is_constant(values: &mut Values<'_>, address: Local, part: &[u8]) {
    let len = part.len();
    let word = match len {
        0 => {
            values.code.i32(1);
            return;
        }
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    };
    // Whole words, and one more that ends with the last byte.
    let mut places: Vec<usize> = (0..=len - word).step_by(word).collect();
    if !len.is_multiple_of(word) {
        places.push(len - word);
    }
    for (at, place) in places.iter().enumerate() {
        let place = *place;
        let mut bytes = [0; 8];
        bytes[..word].copy_from_slice(&part[place..place + word]);
        let value = i64::from_le_bytes(bytes);
        let code = &mut *values.code;
        code.get(address);
        let from = unaligned(place as u32);
        match word {
            8 => {
                code.op().i64_load(from);
                code.i64(value).op().i64_eq();
            }
            4 => {
                code.op().i32_load(from);
                code.i32(value as u32).op().i32_eq();
            }
            2 => {
                code.op().i32_load16_u(from);
                code.i32(value as u32).op().i32_eq();
            }
            _ => {
                code.op().i32_load8_u(from);
                code.i32(value as u32).op().i32_eq();
            }
        }
        if at > 0 {
            code.op().i32_and();
        }
    }
}

/// Whether a text is in a list of constants.
pub(crate) fn is_one_of(values: &mut Values<'_>, value: &Typed, all: &[Vec<u8>], error: Label) {
    let (address, len) = values.span(value, error);
    if all.len() <= FEW && all.iter().all(|text| text.len() <= INLINE) {
        values.code.i32(0);
        for text in all {
            equals_constant(values, address, len, text);
            values.code.op().i32_or();
        }
    } else {
        let (table, mask) = hash_table(values, all);
        let lookup = values.module.helper(Helper::LookUp);
        values
            .code
            .get(address)
            .get(len)
            .i32(table)
            .i32(mask)
            .call(lookup);
    }
    values.code.free(address);
    values.code.free(len);
}

/// ```text
///   slots: a power of two, at least twice the texts: hash u32 | address of the text u32, 0: free, ends a search
///   text:  length u32 | bytes
/// ```
fn hash_table(values: &mut Values<'_>, all: &[Vec<u8>]) -> (u32, u32) {
    let slots = (2 * all.len()).next_power_of_two();
    let mut table = vec![(0, 0); slots];
    for text in all {
        let hash = hash(text);
        let mut slot = hash as usize % slots;
        while table[slot] != (0, 0) {
            slot = (slot + 1) % slots;
        }
        let mut record = (text.len() as u32).to_le_bytes().to_vec();
        record.extend_from_slice(text);
        table[slot] = (hash, values.module.constant(&record).address);
    }
    let words = table
        .into_iter()
        .flat_map(|(hash, address)| [hash, address]);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    (values.module.table(&bytes), slots as u32 - 1)
}

/// The factor of the hash.
pub(crate) const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;

/// The hash that the module computes, too: of the length, the first and the last bytes, and those
/// between them. Callers can't lengthen a search: the author has chosen the texts in the table.
fn hash(text: &[u8]) -> u32 {
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
    state as u32
}
