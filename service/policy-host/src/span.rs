//! A range of a guest's memory, as the guest names it.

/// An address and a length, unchecked until [`Span::of`] compares them with the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) address: u32,
    pub(crate) len: u32,
}

impl Span {
    /// Its bytes, if they lie in memory.
    #[inline]
    pub(crate) fn of(self, memory: &[u8]) -> Option<&[u8]> {
        memory
            .get(self.address as usize..)?
            .get(..self.len as usize)
    }
}
