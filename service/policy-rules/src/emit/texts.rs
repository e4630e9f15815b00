//! Code for comparisons of texts.
//!
//! A text is compared with a constant by loads of 8, 4, 2 or 1 bytes, of which the last two may
//! overlap, so there is no loop. Texts are found in long lists by their hash.

use wasm_encoder::{BlockType, ValType};

use crate::emit::code::{Label, Local, unaligned};
use crate::emit::hash::hash;
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

impl Values<'_> {
    /// `text.startsWith(part)` and its likes.
    pub(crate) fn test_text(&mut self, test: TextTest, text: &Typed, part: &Typed, error: Label) {
        let constant = part.as_const().and_then(|part| part.bytes());
        let (address, len) = self.span(text, error);
        match (test, constant) {
            (TextTest::StartsWith | TextTest::EndsWith, Some(part)) if part.len() <= INLINE => {
                let size = part.len() as u32;
                self.code.get(len).i32(size).op().i32_ge_u();
                self.code.begin_if(BOOL);
                if test == TextTest::EndsWith {
                    self.code.get(address).get(len).op().i32_add();
                    self.code.i32(size).op().i32_sub();
                    self.code.set(address);
                }
                is_constant(self, address, part);
                self.code.begin_else();
                self.code.i32(0);
                self.code.end();
            }
            (TextTest::StartsWith | TextTest::EndsWith, _) => {
                let (other, size) = self.span(part, error);
                self.code.get(len).get(size).op().i32_ge_u();
                self.code.begin_if(BOOL);
                if test == TextTest::EndsWith {
                    self.code.get(address).get(len).op().i32_add();
                    self.code.get(size).op().i32_sub();
                    self.code.set(address);
                }
                let same = self.module.helper(Helper::Same);
                self.code.get(address).get(other).get(size).call(same);
                self.code.begin_else();
                self.code.i32(0);
                self.code.end();
                self.code.free(other);
                self.code.free(size);
            }
            (TextTest::Contains, _) => {
                let (other, size) = self.span(part, error);
                let find = self.module.helper(Helper::Find);
                self.code
                    .get(address)
                    .get(len)
                    .get(other)
                    .get(size)
                    .call(find);
                self.code.free(other);
                self.code.free(size);
            }
        }
        self.code.free(address);
        self.code.free(len);
    }

    /// A comparison of two texts.
    pub(crate) fn compare_texts(
        &mut self,
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
                let (address, len) = self.span(text, error);
                equals_constant(self, address, len, &part);
                self.code.free(address);
                self.code.free(len);
            }
            None if is_equality => {
                let (address, len) = self.span(a, error);
                let (other, size) = self.span(b, error);
                let same = self.module.helper(Helper::Same);
                self.code.get(len).get(size).op().i32_eq();
                self.code.begin_if(BOOL);
                self.code.get(address).get(other).get(len).call(same);
                self.code.begin_else();
                self.code.i32(0);
                self.code.end();
                self.code.free_all([address, len, other, size]);
            }
            None => {
                self.value(a, error);
                self.value(b, error);
                let order = self.module.helper(Helper::Order);
                self.code.call(order);
                self.order(comparison, false);
                return;
            }
        }
        if comparison == Comparison::NotEqual {
            self.code.op().i32_eqz();
        }
    }

    /// Whether a text is in a list of constants.
    pub(crate) fn is_one_of(&mut self, value: &Typed, all: &[Vec<u8>], error: Label) {
        let (address, len) = self.span(value, error);
        if all.len() <= FEW && all.iter().all(|text| text.len() <= INLINE) {
            self.code.i32(0);
            for text in all {
                equals_constant(self, address, len, text);
                self.code.op().i32_or();
            }
        } else {
            let (table, mask) = hash_table(self, all);
            let lookup = self.module.helper(Helper::LookUp);
            self.code
                .get(address)
                .get(len)
                .i32(table)
                .i32(mask)
                .call(lookup);
        }
        self.code.free(address);
        self.code.free(len);
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

/// ```text
///   slots: a power of two, at least twice the texts: hash u32 | address of the text u32, 0: free, ends a search
///   text:  length u32 | bytes
/// ```
fn hash_table(values: &mut Values<'_>, all: &[Vec<u8>]) -> (u32, u32) {
    let slots = (2 * all.len()).next_power_of_two();
    let mut table = vec![(0, 0); slots];
    for text in all {
        let hash = hash(text) as u32;
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
