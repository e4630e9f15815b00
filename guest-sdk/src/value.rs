//! A field whose type the schema decides when the policy is attached.

use std::fmt;

/// The value of a field that the configuration names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A bool.
    Bool(bool),
    /// A signed integer of any width.
    Int(i64),
    /// An unsigned integer of any width.
    Uint(u64),
    /// A float.
    Float(f32),
    /// A double.
    Double(f64),
    /// A string, as UTF-8, which the host has checked.
    Text(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// The number of an enum.
    Enum(i32),
}

/// The types, as an entry has them.
pub(crate) const BOOL: u32 = 2;
pub(crate) const INT: u32 = 3;
pub(crate) const UINT: u32 = 4;
pub(crate) const FLOAT: u32 = 5;
pub(crate) const DOUBLE: u32 = 6;
pub(crate) const TEXT: u32 = 7;
pub(crate) const BYTES: u32 = 8;
/// The little-endian word at a byte offset.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = &bytes[at..][..4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
pub(crate) const ENUM: u32 = 9;

impl<'a> Value<'a> {
    /// The longest text of a number: a sign and 19 digits, or 20 digits.
    pub const NUMBER_BYTES: usize = 20;

    #[inline]
    pub(crate) fn of(view: &'a [u8], entry: &'a [u8]) -> Value<'a> {
        let (low, high) = (word(entry, 8), word(entry, 12));
        let bits = u64::from(low) | u64::from(high) << 32;
        match word(entry, 0) {
            TEXT => Value::Text(&view[low as usize..][..word(entry, 4) as usize]),
            BYTES => Value::Bytes(&view[low as usize..][..word(entry, 4) as usize]),
            INT => Value::Int(bits.cast_signed()),
            UINT => Value::Uint(bits),
            BOOL => Value::Bool(bits != 0),
            FLOAT => Value::Float(f32::from_bits(low)),
            DOUBLE => Value::Double(f64::from_bits(bits)),
            1 => panic!("the manifest names this field itself; its getter knows the type"),
            _ => Value::Enum(low.cast_signed()),
        }
    }

    /// The content of a string or of bytes.
    #[inline]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Value::Text(bytes) | Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A string.
    pub fn text(&self) -> Option<&'a str> {
        match *self {
            Value::Text(text) => {
                Some(str::from_utf8(text).expect("the host checked that strings are UTF-8"))
            }
            _ => None,
        }
    }

    /// The value as a key for a table or a list: the content of a string or of bytes; integers and
    /// enums in decimal digits; `true` or `false`; the bits of a float, little-endian.
    #[inline]
    pub fn key<'r>(&self, room: &'r mut [u8; Value::NUMBER_BYTES]) -> &'r [u8]
    where
        'a: 'r,
    {
        match *self {
            Value::Text(bytes) | Value::Bytes(bytes) => bytes,
            Value::Int(number) => digits(number.unsigned_abs(), number < 0, room),
            Value::Enum(number) => digits(number.unsigned_abs().into(), number < 0, room),
            Value::Uint(number) => digits(number, false, room),
            Value::Bool(true) => b"true",
            Value::Bool(false) => b"false",
            Value::Float(number) => {
                room[..4].copy_from_slice(&number.to_bits().to_le_bytes());
                &room[..4]
            }
            Value::Double(number) => {
                room[..8].copy_from_slice(&number.to_bits().to_le_bytes());
                &room[..8]
            }
        }
    }
}

fn digits(mut rest: u64, is_negative: bool, room: &mut [u8; Value::NUMBER_BYTES]) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if is_negative {
        at -= 1;
        room[at] = b'-';
    }
    &room[at..]
}

impl fmt::Display for Value<'_> {
    /// Text and bytes with escapes for all that isn't printable ASCII, or UTF-8.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Bool(value) => value.fmt(f),
            Value::Int(value) => value.fmt(f),
            Value::Uint(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::Double(value) => value.fmt(f),
            Value::Enum(value) => value.fmt(f),
            Value::Text(bytes) => match str::from_utf8(bytes) {
                Ok(text) => {
                    for c in text.chars() {
                        match c.is_control() || c == '"' || c == '\\' {
                            true => c.escape_default().fmt(f)?,
                            false => fmt::Write::write_char(f, c)?,
                        }
                    }
                    Ok(())
                }
                Err(_) => bytes.escape_ascii().fmt(f),
            },
            Value::Bytes(bytes) => bytes.escape_ascii().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(ty: u32, len: u32, bits: u64) -> Value<'static> {
        let entry = [
            &ty.to_le_bytes()[..],
            &len.to_le_bytes(),
            &bits.to_le_bytes(),
        ]
        .concat();
        Value::of(b"....Ada\xff", entry.leak())
    }

    #[test]
    fn every_type_is_read_as_itself() {
        for (ty, len, bits, expected, key, shown) in [
            (BOOL, 0, 1, Value::Bool(true), &b"true"[..], "true"),
            (INT, 0, u64::MAX, Value::Int(-1), b"-1", "-1"),
            (
                INT,
                0,
                i64::MIN.cast_unsigned(),
                Value::Int(i64::MIN),
                b"-9223372036854775808",
                "-9223372036854775808",
            ),
            (
                UINT,
                0,
                u64::MAX,
                Value::Uint(u64::MAX),
                b"18446744073709551615",
                "18446744073709551615",
            ),
            (UINT, 0, 0, Value::Uint(0), b"0", "0"),
            (
                FLOAT,
                0,
                u64::from(1.5f32.to_bits()),
                Value::Float(1.5),
                &1.5f32.to_le_bytes(),
                "1.5",
            ),
            (
                DOUBLE,
                0,
                0.25f64.to_bits(),
                Value::Double(0.25),
                &0.25f64.to_le_bytes(),
                "0.25",
            ),
            (TEXT, 3, 4, Value::Text(b"Ada"), b"Ada", "Ada"),
            (TEXT, 0, 8, Value::Text(b""), b"", ""),
            (BYTES, 2, 6, Value::Bytes(b"a\xff"), b"a\xff", "a\\xff"),
            (
                ENUM,
                0,
                (-2i64).cast_unsigned(),
                Value::Enum(-2),
                b"-2",
                "-2",
            ),
        ] {
            let value = value(ty, len, bits);
            assert_eq!(value, expected);
            assert_eq!(value.key(&mut [0; Value::NUMBER_BYTES]), key, "{value:?}");
            assert_eq!(value.to_string(), shown);
        }
    }
}
