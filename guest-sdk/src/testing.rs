//! Views for a policy's own tests, which run natively with `cargo test`.
//!
//! ```
//! use tollgate_policy::{Call, testing::{Field, view}};
//! let view = view(&[Field::Text("alice"), Field::Absent]);
//! assert_eq!(Call::new(0, &view).text(0), Some("alice"));
//! ```

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// No value.
    Absent,
    /// Signed integers and enums.
    Int(i64),
    /// Unsigned integers.
    Uint(u64),
    /// A bool.
    Bool(bool),
    /// A float.
    Float(f32),
    /// A double.
    Double(f64),
    /// A string.
    Text(&'a str),
    /// A bytes field.
    Bytes(&'a [u8]),
}

/// Writes the view of these fields, as the host would.
pub fn view(fields: &[Field<'_>]) -> Vec<u8> {
    let mut data_at = 8 + 16 * fields.len();
    let mut data = Vec::new();
    let mut view = Vec::new();
    for field in fields {
        let (len, value) = match *field {
            Field::Absent => (0, 0),
            Field::Int(value) => (0, value.cast_unsigned()),
            Field::Uint(value) => (0, value),
            Field::Bool(value) => (0, value.into()),
            Field::Float(value) => (0, value.to_bits().into()),
            Field::Double(value) => (0, value.to_bits()),
            Field::Text(text) => append(&mut data, &mut data_at, text.as_bytes()),
            Field::Bytes(bytes) => append(&mut data, &mut data_at, bytes),
        };
        let present = u32::from(*field != Field::Absent);
        view.extend(present.to_le_bytes());
        view.extend((len as u32).to_le_bytes());
        view.extend(value.to_le_bytes());
    }
    let mut whole = Vec::with_capacity(data_at);
    whole.extend((data_at as u32).to_le_bytes());
    whole.extend((fields.len() as u32).to_le_bytes());
    whole.extend(view);
    whole.extend(data);
    whole
}

fn append(data: &mut Vec<u8>, at: &mut usize, bytes: &[u8]) -> (usize, u64) {
    let begin = *at as u64;
    data.extend(bytes);
    *at += bytes.len();
    (bytes.len(), begin)
}
