//! The schema crate's rule for offsets, checked at compile time: generated numbers that differ from
//! it don't compile.
//!
//! ```text
//! presence words, cases, then the fields by (alignment descending, number), unknown fields last of alignment 4
//! ```

use super::value::{EntryLayout, Value};

/// The offsets that generated code assumes for one struct's fixed part.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Bytes of the fixed part.
    pub size: usize,
    /// Number of fields with a bit in the presence bitmap.
    pub optionals: usize,
    /// Offsets of the oneofs' cases.
    pub cases: &'a [usize],
    /// The fields by number.
    pub fields: &'a [Spot],
    /// Offset of the slot for unknown fields.
    pub unknown: usize,
}

/// The place of a field, and the size and alignment that follow from its type.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    at: usize,
    size: usize,
    align: usize,
}

impl Spot {
    /// A slot.
    const SLOT: (usize, usize) = (8, 4);
    /// A reference to a struct.
    const REFERENCE: (usize, usize) = (4, 4);

    /// A field that holds one value.
    pub const fn one<V: Value>(at: usize) -> Spot {
        let (size, align) = field::<V>();
        Spot { at, size, align }
    }

    /// A repeated field.
    pub const fn list(at: usize) -> Spot {
        let (size, align) = Spot::SLOT;
        Spot { at, size, align }
    }

    /// A map; its entry's numbers are checked at once.
    pub const fn map<K: Value, V: Value>(entry: EntryLayout, at: usize) -> Spot {
        let fields = [Spot::one::<K>(entry.key), Spot::one::<V>(entry.value)];
        let end = place(&fields, None, 0);
        assert!(entry.size == end, "the size of a map's entry");
        Spot::list(at)
    }
}

impl Shape<'_> {
    /// Compares the numbers with the rule. Panics in a constant, so a wrong number doesn't compile.
    pub const fn check(&self) {
        let mut at = self.optionals.div_ceil(32) * 4;
        let mut i = 0;
        while i < self.cases.len() {
            assert!(self.cases[i] == at, "the offset of a oneof's case");
            at += 4;
            i += 1;
        }
        let end = place(self.fields, Some(self.unknown), at);
        assert!(self.size == end, "the size of a struct");
    }
}

/// The size and alignment of a field of this type in the fixed part.
const fn field<V: Value>() -> (usize, usize) {
    if V::IS_STRUCT {
        Spot::REFERENCE
    } else {
        (V::STRIDE, V::ALIGN)
    }
}

/// Places the fields from `start` on, compares each offset, and returns the struct's size.
const fn place(fields: &[Spot], unknown: Option<usize>, start: usize) -> usize {
    let mut at = start;
    let mut align = 8;
    while align > 0 {
        let mut i = 0;
        while i < fields.len() {
            let spot = fields[i];
            if spot.align == align {
                at = at.next_multiple_of(align);
                assert!(spot.at == at, "the offset of a field");
                at += spot.size;
            }
            i += 1;
        }
        if let (Some(unknown), 4) = (unknown, align) {
            at = at.next_multiple_of(4);
            assert!(unknown == at, "the offset of the unknown fields");
            at += 8;
        }
        align /= 2;
    }
    let size = at.next_multiple_of(8);
    if size == 0 { 8 } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Shape<'static> = Shape {
        size: 48,
        optionals: 1,
        cases: &[4],
        fields: &[
            Spot::one::<bool>(40),
            Spot::one::<String>(16),
            Spot::one::<u64>(8),
            Spot::list(24),
        ],
        unknown: 32,
    };

    const _: () = GOOD.check();

    #[test]
    fn a_number_that_the_rule_does_not_give_panics() {
        let check = |wrong: Shape<'_>, expected: &str| {
            let caught = std::panic::catch_unwind(|| wrong.check());
            let message = caught
                .err()
                .and_then(|e| e.downcast_ref::<&str>().copied().map(str::to_owned));
            assert_eq!(message.as_deref(), Some(expected));
        };
        check(Shape { size: 56, ..GOOD }, "the size of a struct");
        check(
            Shape {
                optionals: 33,
                ..GOOD
            },
            "the offset of a oneof's case",
        );
        check(
            Shape {
                cases: &[0],
                ..GOOD
            },
            "the offset of a oneof's case",
        );
        check(
            Shape {
                unknown: 24,
                ..GOOD
            },
            "the offset of the unknown fields",
        );
        check(
            Shape {
                fields: &[Spot::one::<u64>(16)],
                ..GOOD
            },
            "the offset of a field",
        );
        let entry = EntryLayout {
            size: 16,
            key: 8,
            value: 0,
        };
        let caught = std::panic::catch_unwind(|| Spot::map::<bool, u64>(entry, 0));
        assert!(caught.is_ok());
        let entry = EntryLayout {
            size: 16,
            key: 0,
            value: 8,
        };
        assert!(std::panic::catch_unwind(|| Spot::map::<bool, u64>(entry, 0)).is_err());
    }
}
