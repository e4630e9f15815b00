//! What a policy changes in a message that it allows.

/// A field's new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewValue {
    /// The field becomes absent, or zero or empty if it can't be.
    Clear,
    /// A number, bool or enum, as a view has it.
    Bits(u64),
    /// A string or bytes.
    Bytes(Vec<u8>),
}

/// New values for fields that the manifest's `changes` (or `reply_changes`) lists, by their position there.
///
/// A field that is changed twice gets the later value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(Vec<(u32, NewValue)>);

impl Changes {
    /// None yet. Allocates nothing.
    pub const fn new() -> Changes {
        Changes(Vec::new())
    }

    /// Empties a field.
    pub fn clear(&mut self, field: u32) {
        self.put(field, NewValue::Clear);
    }

    /// Sets a number (sign-extended if it is signed), a bool, an enum, or a float's bits.
    pub fn bits(&mut self, field: u32, value: u64) {
        self.put(field, NewValue::Bits(value));
    }

    /// Sets a string or bytes field.
    pub fn bytes(&mut self, field: u32, value: &[u8]) {
        self.put(field, NewValue::Bytes(value.to_owned()));
    }

    /// True if nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields and their new values, each field once.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &NewValue)> {
        self.0.iter().map(|(field, value)| (*field, value))
    }

    fn put(&mut self, field: u32, value: NewValue) {
        match self.0.iter_mut().find(|(known, _)| *known == field) {
            Some((_, old)) => *old = value,
            None => self.0.push((field, value)),
        }
    }
}
