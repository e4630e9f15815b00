//! A cache of accepted tokens: a repeated check costs a comparison instead of a signature.
//!
//! The whole token is kept and compared: without a digest there are no collisions. Each token has
//! one place; a later token for the same place replaces it. Only tokens that met all rules are
//! stored, so callers without such tokens can't evict others.
//!
//! The cache is in the instance's memory and isn't handed over to another version: with a new
//! configuration (for example with a key less) every token is checked again.

use crate::claims::Pass;

/// An accepted token.
#[derive(Debug)]
struct Entry {
    token: Box<[u8]>,
    pass: Pass,
}

/// The places for tokens; none if caching is off.
#[derive(Debug)]
pub(crate) struct Cache(Vec<Option<Entry>>);

impl Cache {
    /// A cache with this many places.
    pub(crate) fn new(places: usize) -> Cache {
        Cache(std::iter::repeat_with(|| None).take(places).collect())
    }

    /// The stored result for a token.
    pub(crate) fn get(&self, token: &[u8]) -> Option<&Pass> {
        let entry = self.0.get(self.place(token)?)?.as_ref()?;
        same(&entry.token, token).then_some(&entry.pass)
    }

    /// Stores a token.
    pub(crate) fn put(&mut self, token: &[u8], pass: Pass) {
        if let Some(place) = self.place(token) {
            let token = token.into();
            self.0[place] = Some(Entry { token, pass });
        }
    }

    /// The place of a token. Tokens differ most at their ends, in the signature, which looks
    /// random.
    fn place(&self, token: &[u8]) -> Option<usize> {
        let end = token.last_chunk::<8>().copied().unwrap_or_default();
        let mixed = u64::from_le_bytes(end).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (mixed as usize).checked_rem(self.0.len())
    }
}

/// Equality, 8 bytes at a time: in WebAssembly a comparison of slices takes single bytes.
fn same(a: &[u8], b: &[u8]) -> bool {
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    let equal = |(a, b): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*a) == u64::from_le_bytes(*b);
    a.len() == b.len() && a_words.iter().zip(b_words).all(equal) && a_rest == b_rest
}
