//! Reading the changes that a policy makes to a message.
//!
//! ```text
//!   list: | record 0 | record 1 | ..       record, 16 bytes:  kind u32 | field u32 | value u64
//!           kind 1: clear the field          value isn't read
//!           kind 2: set it to scalar bits    value = the bits, as in a view
//!           kind 3: set it to bytes          value = address | length << 32
//! ```
//!
//! The guest has stopped; everything here is its own claim. Whatever is read is copied out, so it doesn't matter whether
//! ranges of it overlap. Each copy is paid for before it is made.

use crate::{Fault, FieldChange, Value, cost, limits};

/// Bytes of one record.
pub(crate) const RECORD_BYTES: usize = 16;

const CLEAR: u32 = 1;
const BITS: u32 = 2;
const BYTES: u32 = 3;

/// Reads the list of call `index` at `address`. `fields` is how many fields its method may change; `charge` takes fuel.
pub(crate) fn read(
    memory: &[u8],
    (address, len): (u32, u32),
    index: usize,
    fields: usize,
    mut charge: impl FnMut(u64) -> Result<(), Fault>,
) -> Result<Vec<FieldChange>, Fault> {
    let bad = |what, value| Fault::BadEffect { index, what, value };
    if !(len as usize).is_multiple_of(RECORD_BYTES) {
        return Err(bad("list's length", len.into()));
    }
    let count = len as usize / RECORD_BYTES;
    if count > limits::CHANGES {
        return Err(bad("number of records", count as u64));
    }
    let outside = |address, len| Fault::EffectOutside {
        index,
        address,
        len,
        memory: memory.len(),
    };
    let list = part(memory, address, len).ok_or_else(|| outside(address, len))?;
    charge(cost::EFFECT * count as u64)?;
    let mut changes = Vec::with_capacity(count);
    let (mut changed, mut bytes_left) = (0u32, limits::CHANGED_BYTES);
    for record in list.as_chunks::<RECORD_BYTES>().0 {
        let [kind, field, low, high] = words(record);
        if field as usize >= fields {
            return Err(bad("field", field.into()));
        }
        // A method has at most 32 fields that may be changed.
        if changed & 1 << field != 0 {
            return Err(bad("field (for the second time)", field.into()));
        }
        changed |= 1 << field;
        let value = match kind {
            CLEAR => Value::Clear,
            BITS => Value::Bits(u64::from(low) | u64::from(high) << 32),
            BYTES => {
                let bytes = part(memory, low, high).ok_or_else(|| outside(low, high))?;
                bytes_left = bytes_left
                    .checked_sub(bytes.len())
                    .ok_or(bad("length of a value", high.into()))?;
                charge(high.into())?;
                Value::Bytes(bytes.to_vec())
            }
            _ => return Err(bad("kind", kind.into())),
        };
        changes.push(FieldChange { field, value });
    }
    Ok(changes)
}

/// `len` bytes of memory at `address`, if they are there.
pub(crate) fn part(memory: &[u8], address: u32, len: u32) -> Option<&[u8]> {
    memory.get(address as usize..)?.get(..len as usize)
}

fn words(record: &[u8; RECORD_BYTES]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(record.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

const _: () = assert!(limits::CHANGES <= 32, "one bit per field");
